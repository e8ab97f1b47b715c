"""Constants that steer the solvers, in one frozen object, with what they were set by where that is on record.

Optima do not depend on them: they decide how long a solver takes to get there, and when it gives up.
``benchmarks/bench_schedule.py`` halves and doubles each. Change one with ``bench_learning.py``, ``bench_images.py`` and
``bench_text.py`` before and after.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """How far each step goes before the next begins."""

    # --- the outer loop (camel.py) ---

    #: Quasi-Newton steps in each inner solve but the last ones; tighter solves early on are wasted on a linearisation
    #: that is about to change. On Corel images a prototype took 10.4 s with tight first solves, 6.6 s loose, 5.6 s so.
    loose_iterations: int = 10
    #: Part of the gap that a relinearisation opened at which its solve stops. Set by ``bactrian bench learners``.
    loose_reduction: float = 0.003
    #: Gap per instance at which a first solve stops, and iterations that piecewise training gets as a mere start.
    loose_gap: float = 1e-2
    start_iterations: int = 50
    #: Largest change of a weight between relinearisations, and estimated distance still to go, at which, with a prior,
    #: learning may stop.
    weight_tolerance: float = 1e-4
    #: Weights are wanted to this multiple of the tolerance on beliefs.
    weights_per_belief: float = 100.0
    #: Relinearisations in a row that moved nothing, and after which the solver found no step either, until it gives
    #: up.
    most_idle: int = 10

    #: A linearisation takes log beliefs below minus this for it: a state that vanishes gets fainter with every
    #: relinearisation, and g of 1e9 would leave rounding of 1e-7 in the dual, in which no line search finds its way.
    deepest: float = 1e4

    # --- the profiled solver (profiled.py) ---

    #: Pairs that L-BFGS remembers, and how many of them where there are so many weights that passes over the pairs
    #: outweigh all else.
    memory: int = 10
    long_memory: int = 7
    long_dimension: int = 100_000
    #: The same for exact likelihoods, whose weights, like those of any learner with unknown states, are counted in
    #: units of curvature to minus this power (memories.py), weights from which pairs are kept in single precision, and
    #: from which there are no more than ``long_memory``. To 0.1 % of the optimum on CoNLL-2003,
    #: plain strings: 329 evaluations in plain units, 192, 166 and 147 with the powers 0.1, 0.15 and 0.2, and on 2,000
    #: sentences 106, 75, 64 and 69; features in bundles: 118 iterations, 94 (0.12), 101 and 126, and 59, 53, 60 and 74.
    exact_memory: int = 20
    unit_power: float = 0.15
    exact_long: int = 10_000
    exact_many: int = 300_000
    #: Change of a marginal at which the first sweeps stop, and the least that is asked for; between them it follows the
    #: moment gap down.
    loosest: float = 1e-2
    sharpest: float = 1e-13
    #: The first where some hub's number is negative.
    loosest_at_saddle: float = 1e-3
    #: Trials in one line search, and relative decrease of the objective, at which messages are made more accurate.
    many_trials: int = 5
    little_gain: float = 1e-12
    #: Evaluations in a row at which belief propagation did not converge, after which likelihood learning gives up: it
    #: would take a thousand steps along gradients that mean little. Set by tests/attack.
    most_unconverged: int = 300
    #: Star updates that oscillate even with this part of the old multipliers kept are given up.
    most_damping: float = 0.9
    #: Change of a marginal after a round of sweeps above which they oscillate, and rounds before an evaluation fails.
    oscillates: float = 0.1
    most_rounds: int = 8

    # --- sweeps (messages.py) ---

    #: Sweeps in a leg, after two of which slow modes are extrapolated, and the slowest decrease in a leg that is
    #: believed. Set by ``bactrian bench learners`` (K6 at strength 2: 19,000 sweeps without, 150 to 850 with it).
    leg: int = 50
    slowest: float = 0.995
    #: Multipliers above which their level is removed: it takes digits from what they say.
    large_multiplier: float = 1e6
    #: States up to which loops are unrolled, and states of links from which that is worth the seconds of compiling.
    most_unrolled: int = 20
    worth_compiling: int = 20_000
    #: Hubs from which an instance that has a sixteenth of all is cut into pieces, and swept by all threads.
    worth_cutting: int = 20_000

    # --- the joint solver (joint.py) ---

    #: Sweeps at a time where the joint solver's clusters disagree, and how often in vain.
    joint_sweeps: int = 1000
    most_failures: int = 3

    # --- unknown states (learners/shared_rows.py) ---

    #: Entries that rows allow in a step, and factors of all sums of products, up to which rows share them: 64 MB.
    most_shared: int = 2**24


SCHEDULE = Schedule()
