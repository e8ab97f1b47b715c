"""A time limit that array routines can see between two sweeps, however long they run."""

from __future__ import annotations

import math
from threading import TIMEOUT_MAX, Timer
from time import perf_counter
from types import TracebackType

import numpy as np


class Deadline:
    """So many seconds from now; as a context, ``late`` becomes true when they have passed.

    A thread of its own sets the flag, since array routines hold no lock and cannot ask the clock.
    """

    def __init__(self, seconds: float | None = None) -> None:
        seconds = math.inf if seconds is None else float(seconds)
        self.at = perf_counter() + seconds  #: by ``time.perf_counter``
        self.late = np.array([seconds <= 0.0])  #: (1,)
        self._timer: Timer | None = None

    @property
    def has_passed(self) -> bool:
        """Whether the time is up."""
        if perf_counter() >= self.at:
            self.late[0] = True
        return bool(self.late[0])

    def __enter__(self) -> Deadline:
        left = self.at - perf_counter()
        if left < TIMEOUT_MAX and not self.has_passed:
            self._timer = Timer(left, self.late.fill, (True,))
            self._timer.daemon = True
            self._timer.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
