"""Ratios of training times on the fields of ``bactrian bench learners``, both sides timed in one run.

Each pair of learners takes turns on the same data, so that whatever else slows the run slows both; the best of several
turns counts. A pair counts where its second learner converged within the limits: runs of ``lbp`` that would have
converged later are left out, which is to its advantage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from bactrian.experiments.bench.learners import (
    BenchRow,
    BenchSettings,
    RandomProblem,
    TellBench,
    bench_learners,
    problems,
    quiet_learn,
)

#: Numerator and denominator.
PAIRS = (("cccp", "lbp"), ("cccp, folded", "lbp"), ("camel0", "piecewise"))


@dataclass(frozen=True)
class SpeedRow:
    """Times of two learners on one field; ``counts`` where the second converged."""

    size: str
    sharing: str
    strength: float
    seed: int
    first: str
    second: str
    first_seconds: float
    second_seconds: float
    counts: bool

    @property
    def ratio(self) -> float:
        """First over second."""
        return self.first_seconds / self.second_seconds


@dataclass(frozen=True)
class SpeedSummary:
    """Ratios of one pair on one size, where the second learner converged."""

    size: str
    first: str
    second: str
    n: int
    n_all: int
    total: float  #: sum of the first's seconds over the sum of the second's
    median: float
    least: float
    most: float
    n_faster: int  #: ratios of at most 1


def run_speed(
    settings: BenchSettings, rows: Sequence[BenchRow], repeats: int = 3, tell: TellBench | None = None
) -> list[SpeedRow]:
    """Every pair on every field where its second learner converged according to ``rows``, those of the comparison."""
    converged = {(row.size, row.sharing, row.strength, row.seed, row.learner) for row in rows if row.converged}
    timed: list[SpeedRow] = []
    for number, problem in enumerate(problems(settings)):
        if tell is not None:
            tell("speed", f"{problem.size.name} {problem.sharing} {problem.strength:g}", number, settings.n_problems)
        place = (problem.size.name, problem.sharing, problem.strength, problem.seed)
        pairs = [pair for pair in PAIRS if (*place, pair[1]) in converged]
        seconds = _best_times(problem, settings, repeats, list(dict.fromkeys(name for pair in pairs for name in pair)))
        for first, second in PAIRS:
            counts = (first, second) in pairs
            times = (seconds[first], seconds[second]) if counts else (np.nan, np.nan)
            timed.append(SpeedRow(*place, first, second, *times, counts))
    return timed


def _best_times(
    problem: RandomProblem, settings: BenchSettings, repeats: int, names: Sequence[str]
) -> dict[str, float]:
    learners = bench_learners()
    seconds = dict.fromkeys(names, np.inf)
    for _ in range(repeats):
        for name in names:
            began = perf_counter()
            quiet_learn(problem.data, learners[name], prior_variance=settings.prior_variance, **settings.limits)
            seconds[name] = min(seconds[name], perf_counter() - began)
    return seconds


def summarise_speed(rows: Sequence[SpeedRow]) -> list[SpeedSummary]:
    """Ratios per size and pair."""
    found = []
    for group in dict.fromkeys((row.size, row.first, row.second) for row in rows):
        own = [row for row in rows if (row.size, row.first, row.second) == group]
        kept = [row for row in own if row.counts]
        ratios = np.array([row.ratio for row in kept] or [np.nan])
        total = sum(row.first_seconds for row in kept) / sum(row.second_seconds for row in kept) if kept else np.nan
        spread = float(np.median(ratios)), float(ratios.min()), float(ratios.max())
        found.append(SpeedSummary(*group, len(kept), len(own), total, *spread, int((ratios <= 1.0).sum())))
    return found
