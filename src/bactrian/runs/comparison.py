"""What an experiment finds: learners side by side, as plain data.

Experiments fill these; :mod:`bactrian.report` and the command line show them. Nothing here knows how.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from bactrian.runs.calibration import Reliability
from bactrian.runs.exhibits import Confusion, Gallery, NamedWeight, TaggedText
from bactrian.solvers.solution import Progress, Record, Solution

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Metric:
    """A column of the table of learners; ``format`` is a format specification such as ``.1%``."""

    key: str
    name: str
    format: str
    higher_is_better: bool
    explanation: str = ""


@dataclass(frozen=True, eq=False)
class Curve:
    """The course of a training run, one point an iteration or an outer iteration; every array has shape (n_points,)."""

    outer: NDArray[np.int64]
    seconds: Floats
    objective: Floats
    moment_gap: Floats
    violation: Floats

    @staticmethod
    def of(points: Iterable[Progress | Record]) -> Curve:
        """The curve through the points that a callback saw, or through a history."""
        rows = [(p.outer, p.seconds, p.objective, p.moment_gap, p.violation) for p in points]
        columns = np.array(rows, dtype=np.float64).reshape(-1, 5).T
        return Curve(columns[0].astype(np.int64), *columns[1:])


@dataclass(frozen=True)
class Training:
    """How training went: its end, its cost and its course, per iteration and per outer iteration."""

    status: str
    converged: bool
    seconds: float
    outer_iterations: int
    violation: float
    moment_gap: float
    iterations: Curve
    history: Curve

    @staticmethod
    def of(solution: Solution, trace: Iterable[Progress] = ()) -> Training:
        """What a solution, and the progress that a callback saw, say about the run.

        The last point of both curves is the solution itself.
        """
        end = replace(
            solution.history[-1],
            objective=solution.objective,
            moment_gap=solution.moment_gap,
            violation=solution.violation,
            seconds=solution.seconds,
        )
        return Training(
            status=str(solution.status),
            converged=solution.converged,
            seconds=solution.seconds,
            outer_iterations=len(solution.history),
            violation=solution.violation,
            moment_gap=solution.moment_gap,
            iterations=Curve.of([*trace, end]),
            history=Curve.of([*solution.history[:-1], end]),
        )


@dataclass(frozen=True, eq=False)
class LabelTable:
    """A learned table of scores (n_rows, n_columns), with the names of its states."""

    title: str
    values: Floats
    row_labels: tuple[str, ...]
    column_labels: tuple[str, ...]

    @property
    def interaction(self) -> Floats:
        """The table with its row and column means removed.

        What depends on one state alone can move between tables, and between tables and node scores, without changing
        the model; what is left here is what a table says about the two together. Scores that are not finite, those of
        forbidden pairs, stay as they are and are left out of the means.
        """
        finite = np.isfinite(self.values)
        values = np.where(finite, self.values, 0.0)
        rows = values.sum(axis=1, keepdims=True) / np.maximum(finite.sum(axis=1, keepdims=True), 1)
        columns = values.sum(axis=0, keepdims=True) / np.maximum(finite.sum(axis=0, keepdims=True), 1)
        mean = values.sum() / max(int(finite.sum()), 1)
        return np.where(finite, values - rows - columns + mean, self.values)


@dataclass(frozen=True)
class Entry:
    """One learner, or one baseline that learns nothing (then ``training`` is None)."""

    name: str
    description: str
    metrics: Mapping[str, float]  #: by the key of the metric; one that has no meaning here is left out
    training: Training | None = None
    reliability: Reliability | None = None
    tables: tuple[LabelTable, ...] = ()
    confusion: Confusion | None = None
    weights: tuple[NamedWeight, ...] = ()  #: the most telling ones


@dataclass(frozen=True)
class Comparison:
    """Learners side by side on one task."""

    title: str
    summary: str
    metrics: tuple[Metric, ...]
    entries: tuple[Entry, ...]
    facts: Mapping[str, str] = field(default_factory=dict)  #: the settings of the experiment, to be shown as they are
    galleries: tuple[Gallery, ...] = ()
    texts: tuple[TaggedText, ...] = ()

    @property
    def converged(self) -> bool:
        """Whether every learner met its stopping rule."""
        return all(entry.training is None or entry.training.converged for entry in self.entries)

    def best(self, metric: Metric) -> float:
        """The best value of a metric over the entries; NaN where no entry has it."""
        values = [entry.metrics[metric.key] for entry in self.entries if metric.key in entry.metrics]
        if not values:
            return float("nan")
        return max(values) if metric.higher_is_better else min(values)
