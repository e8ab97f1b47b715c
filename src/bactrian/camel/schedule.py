"""Constants that steer the solvers and are worth having, in one frozen object, with what they were set by.

Optima do not depend on them: they decide how long a solver takes to get there. ``benchmarks/bench_schedule.py`` halves
and doubles each. Change one with ``bench_learning.py``, ``bench_images.py`` and ``bench_text.py`` before and after.
Constants that were found to matter little stand where they are used.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """How far each step goes before the next begins."""

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
