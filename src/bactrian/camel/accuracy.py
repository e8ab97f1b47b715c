"""How exact messages must be: decided here, from the gap, the change of beliefs and what the line search met.

An evaluation of the profiled dual sweeps the multipliers until no marginal changes by more than the accuracy of the
moment. Far from the optimum that may be coarse: the moment gap hides what messages leave of it. So the accuracy begins
loose, follows the gap and the change of beliefs between relinearisations down, and is made sharper where a search
finds that inexact messages led it astray, or before a gap is believed. It ends at what the run demands.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bactrian.solvers.solution import Status

#: Change of a marginal at which the first sweeps stop, the same where some hub's number is negative (there the value
#: is not a bound, so inexact messages mislead the line search sooner), and the least that is ever asked for.
_LOOSEST, _LOOSEST_AT_SADDLE, _SHARPEST = 1e-2, 1e-3, 1e-13
#: Part of the gap per instance, and of the change of beliefs, that messages may leave.
_SHARE = 0.1
#: Weights are wanted to this multiple of the tolerance on beliefs.
_WEIGHTS_PER_BELIEF = 100.0
#: Relative decrease of the objective in a step that is next to nothing.
_LITTLE_GAIN = 1e-12


@dataclass(frozen=True)
class Schedule:
    """Constants that steer the solvers and are worth having, with what they were set by.

    Optima do not depend on them: they decide how long a solver takes to get there. ``benchmarks/bench_schedule.py``
    halves and doubles each. Change one with ``bench_learning.py``, ``bench_images.py`` and ``bench_text.py`` before and
    after. Constants that were found to matter little stand where they are used.
    """

    #: Pairs that L-BFGS remembers of an exact likelihood, whose weights, like those of any learner with unknown states,
    #: are counted in units of curvature to minus the power below (units.py). To 0.1 % of the optimum on CoNLL-2003,
    #: plain strings: 329 evaluations in plain units, 192, 166 and 147 with the powers 0.1, 0.15 and 0.2, and on 2,000
    #: sentences 106, 75, 64 and 69; features in bundles: 118 iterations, 94 (0.12), 101 and 126, and 59, 53, 60 and 74.
    exact_memory: int = 20
    unit_power: float = 0.15
    #: Trials in one line search from which messages are made more accurate.
    many_trials: int = 5
    #: Sweeps in a leg, after two of which slow modes are extrapolated. Set by ``bactrian bench learners`` (K6 at
    #: strength 2: 19,000 sweeps without, 150 to 850 with it).
    leg: int = 50
    #: States of links from which unrolled loops are worth the seconds of compiling.
    worth_compiling: int = 20_000


SCHEDULE = Schedule()


@dataclass(frozen=True)
class Demands:
    """What a run asks for in the end."""

    scale: float  #: instances over which a gap is a sum
    gap: float  #: largest moment gap, in sums over instances
    messages: float  #: largest change of a marginal in a sweep
    gradient: float  #: the same, where the gradient is not a partial derivative: then it is right to the gap

    @staticmethod
    def of(tolerance: float, gap_tolerance: float | None, curvature: float, total_weight: float) -> Demands:
        """From the tolerance per instance, that of the gap if given, and the prior's curvature."""
        scale = max(1.0, total_weight)
        gap = tolerance * scale
        if gap_tolerance is not None:
            gap = gap_tolerance
            # Messages follow the gap down, to reach their own tolerance when it does.
            scale = max(scale, gap / max(tolerance, _SHARPEST))
        elif curvature > 0.0:
            # The prior's curvature bounds the distance to the optimum by gap / curvature.
            gap = min(gap, max(tolerance, _WEIGHTS_PER_BELIEF * tolerance * curvature))
        return Demands(scale, gap, tolerance, max(_SHARPEST, min(tolerance, 0.01 * gap / scale)))


class Accuracy:
    """Largest change of a marginal that a sweep may still make, as learning goes on.

    Parameters
    ----------
    demands : Demands
    start : float, optional
        Where it begins; by default loose.
    is_saddle : bool
        Whether some hub's number is negative.
    least : float
        What lies below this is rounding: a smaller demand counts as 0, all that can be had.
    """

    def __init__(
        self, demands: Demands, *, start: float | None = None, is_saddle: bool = False, least: float = 0.0
    ) -> None:
        self._scale, self._least = demands.scale, least
        self._finest = demands.gradient if is_saddle else demands.messages
        loosest = max(self._finest, _LOOSEST_AT_SADDLE) if is_saddle else _LOOSEST
        self._now = loosest if start is None else start

    @property
    def now(self) -> float:
        """The accuracy at present; 0 asks for all that rounding allows."""
        return self._now if self._now >= self._least else 0.0

    def heed_gap(self, gap: float) -> None:
        """After a step that left a gap."""
        wanted = _SHARE * gap / self._scale
        if wanted < self.now:
            self._now = max(self._finest, wanted)

    def heed_beliefs(self, change: float) -> None:
        """Before a relinearisation at beliefs that changed so much: make the next change mean something."""
        wanted = max(self._finest, _SHARE * change) if np.isfinite(change) else _LOOSEST
        self._now = min(self.now, wanted)

    def heed_search(self, trials: int, gain: float, value: float) -> None:
        """After a line search: many trials, or next to no gain, say that inexact messages led it astray."""
        if trials > SCHEDULE.many_trials or gain < _LITTLE_GAIN * abs(value):
            self._now = max(_SHARPEST, min(self.now, 0.01 * self._finest), 0.1 * self.now)

    def sharpen(self, ended: Status, *, at_once: bool) -> bool:
        """After a solve: sharpen the messages if its gap was measured too coarsely; True if it has to go on.

        The gap is measured with inexact multipliers: before it is believed, or where it no longer falls because of
        them, they are made sharper; as sharp as demanded if the solve ended ``at_once``.
        """
        floor = {Status.CONVERGED: self._finest, Status.STALLED: _SHARPEST}.get(ended, np.inf)
        if self.now <= floor:
            return False
        arrived = ended is Status.CONVERGED and at_once
        self._now = floor if arrived else max(floor, 0.01 * self.now)
        return True

    def sharpen_beyond(self) -> bool:
        """After a gap that turned out too large where it was believed: whether messages can be made sharper."""
        if self.now <= _SHARPEST:
            return False
        self._now = max(_SHARPEST, 0.01 * self.now)
        return True

    def demand_all(self) -> None:
        """At the end: what the run demands."""
        self._now = min(self.now, self._finest)
