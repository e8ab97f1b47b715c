"""Progress of learning in words, with an estimate of what is left."""

from __future__ import annotations

import math
import sys
from typing import TextIO

from bactrian.solvers.solution import Progress


class ProgressLines:
    """A callback of :func:`bactrian.learn` and of ``fit`` that prints a line now and then, on a terminal or off it.

    The first line comes after ``first`` seconds, the next after twice as many, later ones every ``most`` seconds, so
    that short runs say little and long ones do not fill a log or a notebook.

    Parameters
    ----------
    tolerance : float
        That of the learner, to estimate what is left: as long as the moment gap takes to fall there at its pace so far.
    first, most : float
        Seconds until the first line, and between later ones.
    file : file, optional
        Where lines go; standard error by default.

    Examples
    --------
    >>> import sys
    >>> import bactrian as bt
    >>> follow = bt.ProgressLines(first=0.0, most=1e9, file=sys.stdout)
    >>> _ = bt.LinearChainCRF().fit([[["a"], ["b"]]], [["A", "B"]], callback=follow)  # doctest: +ELLIPSIS
    iteration 1: objective ..., moment gap ..., ... s
    """

    def __init__(
        self, tolerance: float = 1e-6, *, first: float = 1.0, most: float = 30.0, file: TextIO | None = None
    ) -> None:
        self.tolerance, self.most, self.file = tolerance, most, file
        self._next, self._wait = first, max(first, 1.0)
        self._past: list[tuple[float, float]] = []  # seconds and log of the least gap so far

    def __call__(self, at: Progress) -> None:
        """See one iteration."""
        self.see(at)
        if at.seconds < self._next:
            return
        self._next = at.seconds + min(self._wait, self.most)
        self._wait *= 2.0
        left = self.left()
        words = "" if left is None else f", perhaps {in_time(left)} left"
        print(f"{in_words(at)}, {in_time(at.seconds)}{words}", file=self.file or sys.stderr, flush=True)

    def see(self, at: Progress) -> None:
        """Take note of an iteration, without a word."""
        gap = math.log(max(at.moment_gap, 1e-300))
        self._past.append((at.seconds, min(gap, self._past[-1][1]) if self._past else gap))
        if len(self._past) > 2000:  # every other one will do
            del self._past[1::2]

    def left(self) -> float | None:
        """Seconds that are left at the pace of the later half so far; None where that cannot be said."""
        now, gap = self._past[-1]
        then, before = next(entry for entry in self._past if entry[0] >= 0.5 * now)
        if before - gap < 0.1 or now <= then:
            return None
        return max(0.0, gap - math.log(self.tolerance)) * (now - then) / (before - gap)


def in_words(at: Progress) -> str:
    """How far learning has come."""
    outer = f"relinearisation {at.outer}, " if at.outer else ""
    return f"{outer}iteration {at.iteration}: objective {at.objective:.6g}, moment gap {at.moment_gap:.1e}"


def in_time(seconds: float) -> str:
    """Seconds, or minutes where they are many.

    >>> in_time(3.21), in_time(200)
    ('3 s', '3 min')
    """
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
