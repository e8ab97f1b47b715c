"""Time that goes into compiling is no part of a time limit."""

import time

import numpy as np

from bactrian.compiling import kernel, seconds_compiling
from bactrian.parallel.threads import Deadline


def compile_for(seconds: float) -> None:
    """Compile functions, each of its own, until so many seconds have gone into it."""
    until = seconds_compiling() + seconds
    while seconds_compiling() < until:

        def function(x):
            return np.sort(x)[::-1].cumsum()

        kernel(cache=False)(function)(np.ones(3))


def test_compiling_does_not_count():
    with Deadline(0.5) as deadline:
        compile_for(0.7)
        assert not deadline.has_passed
        assert not deadline.late[0]
        assert 0.0 < deadline.left <= 0.5
        time.sleep(0.6)
        assert deadline.late[0]  # by the timer, which looked again
        assert deadline.has_passed
        assert deadline.left == 0.0


def test_what_is_late_stays_late():
    deadline = Deadline(0.0)
    assert deadline.has_passed
    compile_for(0.1)
    assert deadline.late[0]
    assert deadline.has_passed
