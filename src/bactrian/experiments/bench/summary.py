"""Rows of ``bactrian bench learners`` put together: means and standard deviations over seeds and sizes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bactrian.experiments.bench.learners import METRICS, BenchRow


@dataclass(frozen=True)
class LearnerSummary:
    """Rows of one learner put together: mean and standard deviation of every metric, and how the runs ended."""

    group: tuple[str | float, ...]
    learner: str
    n_runs: int  #: not counting those refused
    n_refused: int
    n_converged: int
    prior: bool
    statuses: tuple[tuple[str, int], ...]  #: the commonest first
    mean: dict[str, float]
    deviation: dict[str, float]
    median: dict[str, float]

    @property
    def ending(self) -> str:
        """In a few words: how many converged, what became of the others."""
        if not self.n_runs:
            return self.statuses[0][0]
        said = f"{self.n_converged}/{self.n_runs} converged"
        heads: Counter[str] = Counter()
        for status, count in self.statuses:
            heads[status.split(":")[0]] += count
        said = "; ".join([said, *(f"{count} {head}" for head, count in heads.items() if head != "converged")])
        return said if self.prior else f"{said}; no prior"


def summarise_learners(rows: Sequence[BenchRow], *keys: str) -> list[LearnerSummary]:
    """Means over all rows that agree in ``keys``, fields of :class:`BenchRow`, and in the learner."""
    groups: dict[tuple[tuple[str | float, ...], str], list[BenchRow]] = {}
    for row in rows:
        groups.setdefault((tuple(getattr(row, key) for key in keys), row.learner), []).append(row)
    return [_summary(group, learner, members) for (group, learner), members in groups.items()]


def _summary(group: tuple[str | float, ...], learner: str, rows: Sequence[BenchRow]) -> LearnerSummary:
    run = [row for row in rows if not row.refused]
    mean, deviation, median = {}, {}, {}
    for metric in METRICS:
        values = np.array([getattr(row, metric) for row in run], dtype=np.float64)
        values = values[np.isfinite(values)]
        mean[metric] = float(values.mean()) if values.size else np.nan
        median[metric] = float(np.median(values)) if values.size else np.nan
        deviation[metric] = float(values.std(ddof=1)) if values.size > 1 else np.nan
    return LearnerSummary(
        group=group,
        learner=learner,
        n_runs=len(run),
        n_refused=len(rows) - len(run),
        n_converged=sum(row.converged for row in run),
        prior=all(row.prior for row in run),
        statuses=tuple(Counter(row.status for row in rows).most_common()),
        mean=mean,
        deviation=deviation,
        median=median,
    )
