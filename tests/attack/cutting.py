"""How many cases a test of the attack has, and into what blocks they are cut."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Test = Callable[..., None]


def cases(*, sample: int, block: int, total: int) -> Callable[[Test], Test]:
    """Cases 0 to ``total`` - 1: the first ``sample`` in the ordinary run, the others slow, ``block`` to a test."""

    def mark(test: Any) -> Test:
        test.cases = (sample, block, total)
        return test

    return mark
