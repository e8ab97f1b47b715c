"""The result of learning, a Solution with its status and history, and lines about its progress."""

from __future__ import annotations

import enum
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TextIO

import numpy as np

from bactrian.arrays import Floats
from bactrian.errors import warn


class Status(enum.Enum):
    """How an optimisation ended."""

    CONVERGED = "converged"
    ITERATION_LIMIT = "stopped at the iteration limit"
    TIME_LIMIT = "stopped at the time limit"
    STOPPED = "stopped by the callback"
    STALLED = "stopped because no step improves the objective any further"
    UNBOUNDED = "unbounded: some moments lie on the boundary, so weights grow without limit; add a prior"
    HELD_OUT = "stopped because the loss of held-out data no longer falls"
    FOLLOWED = "stopped after its first relinearisations, which prediction repeats"
    DIVERGED = "diverged: by its approximations the known states are likelier than certain"
    UNRELIABLE = "message passing did not converge at some weights, so the gradient could not be trusted"

    def __str__(self) -> str:
        return self.value

    @property
    def is_done(self) -> bool:
        """Whether a stopping rule was met, at a finite optimum or by held-out data."""
        return self in (Status.CONVERGED, Status.HELD_OUT, Status.FOLLOWED)

    @property
    def advice(self) -> str:
        """What to do about it."""
        return _ADVICE.get(self.name, "")


_ADVICE = {
    "ITERATION_LIMIT": "raise max_iterations or tolerance",
    "TIME_LIMIT": "raise max_seconds or tolerance",
    "STALLED": "the weights are as good as rounding allows; raise tolerance, or scale features to about 1",
    "DIVERGED": "choose method='convex', or a smaller prior_variance",
    "UNRELIABLE": "choose method='convex', or a smaller prior_variance",
}


class ConvergenceWarning(UserWarning):
    """Learning or inference stopped short; the result is the best so far."""


class AttainmentWarning(ConvergenceWarning):
    """Inference at the learned weights does not find the learned beliefs, or labels worse than nodes alone."""


@dataclass(frozen=True)
class Record:
    """One outer iteration (one relinearisation; learners without any have a single record)."""

    outer: int
    objective: float
    moment_gap: float
    violation: float
    iterations: int  #: quasi-Newton iterations in this outer iteration
    evaluations: int
    sweeps: int
    seconds: float  #: since the start of learning
    belief_change: float = np.nan  #: largest change of a sepset belief since the last outer iteration
    weight_change: float = np.nan
    failures: int = 0  #: evaluations at which message passing did not converge
    linearisation_change: float = np.nan  #: largest change of g, a constant per sepset removed
    phase: int = 0  #: 0, or the step, from 1, of the path that inference replays


@dataclass(frozen=True)
class Progress:
    """What a callback sees after every quasi-Newton iteration; returning True stops learning."""

    outer: int
    iteration: int
    objective: float
    moment_gap: float
    violation: float
    seconds: float  #: since the start of learning
    weights: Floats
    phase: int = 0  #: 0, or the step, from 1, of the path that inference replays


Callback = Callable[[Progress], Any]


@dataclass(frozen=True)
class WarmState:
    """Multipliers and linearisation at a solution, from which learning on the same data can continue."""

    multipliers: Floats
    linearisation: Floats  #: g, which scores have subtracted

    def states(self) -> Iterator[tuple[str, Floats, Floats]]:
        """Name, multipliers and linearisation of each part of the data: in memory there is one, without a name."""
        yield "", self.multipliers, self.linearisation


@dataclass(frozen=True)
class Solution:
    """The result of :func:`bactrian.learn`.

    ``objective`` is the minimised value (the dual D, or the negative penalised log-likelihood); ``moment_gap`` is the
    largest absolute stationarity residual ``|E[f] - f_hat + w / sigma^2|`` in sums over the data; ``violation`` the
    largest disagreement over edges and sepset states; ``beliefs[m][i]`` the belief table of cluster i of instance m.
    ``attained`` is the agreement of cold inference at the weights with the learned beliefs, on the data of learning: 1
    minus the mean total variation of a variable's beliefs, None where it is not known.
    """

    weights: Floats
    status: Status
    history: tuple[Record, ...] = field(default=(), repr=False)
    objective: float = np.nan
    moment_gap: float = np.nan
    violation: float = np.nan
    beliefs: Sequence[Sequence[Floats]] = field(default=(), repr=False)
    method: str = ""
    seconds: float = 0.0
    evaluations: int = 0
    attained: float | None = None
    path: Floats | None = field(default=None, repr=False)  #: (n_steps, n_weights) weights that ``infer`` can replay
    state: Any = field(default=None, repr=False)  #: where ``learn(start=solution)`` continues

    @property
    def converged(self) -> bool:
        """Whether a stopping rule was met, at a finite optimum or by held-out data."""
        return self.status.is_done


def warn_stopped(solution: Solution) -> None:
    """Warn of learning that stopped short, unless the callback asked for it, at the caller's line."""
    if not solution.converged and solution.status is not Status.STOPPED:
        advice = f"; {solution.status.advice}" if solution.status.advice else ""
        if solution.method == "convex":
            advice = advice.replace("choose method='convex', or a smaller", "choose a larger tolerance or a smaller")
        if solution.status is Status.ITERATION_LIMIT and goes_in_circles(solution.history):
            advice = f" while its beliefs went in circles; {Status.UNRELIABLE.advice}"
        warn(f"{solution.method}: {solution.status}{advice}", ConvergenceWarning)


#: Relinearisations before which beliefs may still be on their way, and changes of a belief too large to be an approach.
_EARLY, _LARGE = 50, 0.05


def goes_in_circles(history: Sequence[Record]) -> bool:
    """Whether relinearisations went on without coming nearer to anything, so that more of them would not help."""
    late = [record.belief_change for record in history[len(history) // 2 :]]
    return len(history) >= _EARLY and min(late) > _LARGE


# --- progress in words ---

#: Iterations over which a gain of the objective is counted.
GAINED_IN = 10
#: Gains that tell what is left, the fall of their logarithm in an iteration that is none, and the part by which a new
#: estimate mends the last.
_LINE, _FLAT, _MENDED = 200, -1e-3, 0.3


def least_gain(tolerance: float) -> float:
    """The share of the objective that ten iterations gain at least while it is worth going on.

    What is left of an objective goes with the square of a gap: a thousandth at a tolerance of 1e-3, the last digits at
    1e-6.
    """
    return min(tolerance, 1_000.0 * tolerance**2)


class ProgressLines:
    """A callback of :func:`bactrian.learn` and of ``fit`` that prints a line now and then, on a terminal or off it.

    The first line comes after ``first`` seconds, the next after twice as many, later ones every ``most`` seconds, so
    that short runs say little and long ones do not fill a log or a notebook.

    Parameters
    ----------
    tolerance : float
        That of the learner, to estimate what is left: until ten iterations gain no more of the objective than
        1,000 times its square (or itself, if that is less), at the pace at which their gain has fallen so far.
    first, most : float
        Seconds until the first line, and between later ones.
    file : file, optional
        Where lines go; standard error by default.

    Examples
    --------
    >>> import sys
    >>> import bactrian as bt
    >>> lines = bt.ProgressLines(first=0.0, most=1e9, file=sys.stdout)
    >>> _ = bt.LinearChainCRF().fit([[["a"], ["b"]]], [["A", "B"]], callback=lines)  # doctest: +ELLIPSIS
    iteration 1: objective ..., moment gap ..., ... s
    """

    def __init__(
        self, tolerance: float = 1e-6, *, first: float = 1.0, most: float = 30.0, file: TextIO | None = None
    ) -> None:
        self.most, self.file = most, file
        self._least = math.log(max(least_gain(tolerance), 1e-300))
        self._next, self._wait = first, max(first, 1.0)
        self._last: list[tuple[float, float]] = []  # seconds and objective of the last iterations
        self._gains: list[tuple[int, float]] = []  # iteration, and log of the share that the last ten gained
        self._left: float | None = None

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
        """Take note of an iteration, without printing."""
        self._last = [*self._last[-GAINED_IN:], (at.seconds, at.objective)]
        (then, before), (now, value) = self._last[0], self._last[-1]
        if len(self._last) > GAINED_IN and value < before:
            self._gains.append((at.iteration, math.log((before - value) / max(abs(value), 1e-300))))
        iterations = self._iterations_left(at.iteration)
        if iterations is None:
            self._left = None
            return
        estimate = iterations * (now - then) / GAINED_IN
        if self._left is not None:  # a clock that runs down, mended little by little
            down = max(0.0, self._left - (now - self._last[-2][0]))
            estimate = down + _MENDED * (estimate - down)
        self._left = estimate

    def _iterations_left(self, iteration: int) -> float | None:
        """By a line through the later half of the gains; None where they do not fall."""
        later = np.array(self._gains[len(self._gains) // 2 :][-_LINE:])
        if len(later) < GAINED_IN or iteration - later[-1, 0] > GAINED_IN:
            return None
        slope, gain = np.polyfit(later[:, 0] - iteration, later[:, 1], 1)
        return None if slope > _FLAT else max(0.0, float((self._least - gain) / slope))

    def left(self) -> float | None:
        """Seconds that are left at the pace so far; None where that cannot be said."""
        return self._left


def tell(line: str) -> None:
    """Print a line where those of :class:`ProgressLines` go."""
    sys.stderr.write(f"{line}\n")


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
