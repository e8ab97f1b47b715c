"""Margins of many zones on one junction tree, fitted side by side.

D of :mod:`bactrian.learners.margins` for every zone, with rows of arrays for zones: one call calibrates the trees of
all zones, shared among threads, and :mod:`bactrian.solvers.side_by_side` takes their steps.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from bactrian.arrays import Floats, Ints
from bactrian.engines.numba.threads import Deadline, Workers
from bactrian.learners.margins import FitOptions, Gauge, MarginProblem, MarginTree, exact_solution
from bactrian.solvers.side_by_side import minimise_side_by_side
from bactrian.solvers.solution import Solution, Status

#: Bytes that the vectors of zones fitted at once may take, about, and vectors per zone.
_AT_ONCE, _VECTORS = 2**28, 30


def fit_side_by_side(
    problems: Sequence[MarginProblem], tree: MarginTree, tolerances: Floats, options: FitOptions, workers: Workers
) -> list[tuple[Solution, Floats] | None]:
    """Solutions of problems with the same scopes and base, and the probabilities of their cells.

    None stands for problems that want a closer look: no state is possible, or steps did not get to the end.
    """
    n = problems[0].observed.size
    at_once = max(1, _AT_ONCE // (8 * _VECTORS * max(n, 1)))
    deadline = Deadline(options.max_seconds)
    # Directions among overlapping noisy margins are the same for all zones in which the same margins are noisy.
    noisy = np.stack([[problem.rounds, *(problem.precision[problem.bounds[:-1]] > 0.0)] for problem in problems])
    found: list[tuple[Solution, Floats] | None] = [None] * len(problems)
    for kind in np.unique(noisy, axis=0):
        zones = np.flatnonzero((noisy == kind).all(axis=1))
        gauge = Gauge(problems[zones[0]]) if kind[1:].any() else None
        for first in range(0, zones.size, at_once):
            some = zones[first : first + at_once]
            objective = _Objective([problems[z] for z in some], tree, gauge, workers)
            for z, solved in zip(some, objective.solve(tolerances[some], options, deadline), strict=True):
                found[z] = solved
    return found


class _Objective:
    """D of every zone, in weights scaled by a guess at their curvature."""

    def __init__(
        self, problems: Sequence[MarginProblem], tree: MarginTree, gauge: Gauge | None, workers: Workers
    ) -> None:
        self._problems, self._tree, self._workers = problems, tree, workers
        self._gauge = gauge if gauge is not None and gauge.n else None
        base = np.concatenate([np.zeros(0), *(table.ravel() for _, table in problems[0].base)])
        self._free = np.stack([~problem.forbidden for problem in problems])
        self._fixed = np.where(self._free, 0.0, -np.inf)
        self._base = base
        self._counts = np.stack([problem.observed for problem in problems])
        self._precision = np.stack([problem.precision for problem in problems])
        self._total = np.array([problem.total for problem in problems])
        self._scale = np.stack([problem.scale for problem in problems])
        if self._gauge is not None:
            self._scale = np.hstack([self._scale, self._gauge.scale(self._precision.T).T])

    def _weights(self, rows: Ints, x: Floats) -> Floats:
        n, scaled = self._counts.shape[1], self._scale[rows] * x
        weights = scaled[:, :n]
        if self._gauge is not None:
            weights = weights + self._gauge.weights(scaled[:, n:].T).T
        return np.where(self._free[rows], weights, 0.0)

    def _calibrated(self, rows: Ints, weights: Floats) -> tuple[Floats, Floats]:
        scores = np.hstack([self._fixed[rows] + weights, np.broadcast_to(self._base, (rows.size, self._base.size))])
        log_z, beliefs = self._tree.calibrated_rows(scores, self._workers)
        return log_z, beliefs[:, : weights.shape[1]]

    def value_and_gradient(self, rows: Ints, x: Floats) -> tuple[Floats, Floats, Floats]:
        """Values, gradients and largest gaps."""
        weights = self._weights(rows, x)
        log_z, beliefs = self._calibrated(rows, weights)
        observed, penalty, total = self._counts[rows], self._precision[rows] * weights, self._total[rows]
        gap = np.where(self._free[rows], total[:, None] * beliefs - observed + penalty, 0.0)
        value = total * log_z + (weights * (0.5 * penalty - observed)).sum(axis=1)
        slope = gap if self._gauge is None else np.hstack([gap, self._gauge.gradient(gap.T).T])
        return value, self._scale[rows] * slope, np.abs(gap).max(axis=1, initial=0.0)

    def solve(
        self, tolerances: Floats, options: FitOptions, deadline: Deadline
    ) -> list[tuple[Solution, Floats] | None]:
        """The zones' solutions; see :func:`fit_side_by_side`."""
        began, every = time.perf_counter(), np.arange(len(self._problems))
        x, last = np.zeros((2, *self._scale.shape))
        iterations, evaluations = np.zeros((2, every.size), dtype=np.int64)
        for left in range(self._problems[0].rounds - 1, -1, -1):
            wanted = np.array([p.wanted(t, left) for p, t in zip(self._problems, tolerances, strict=True)])
            minima = minimise_side_by_side(
                self.value_and_gradient,
                x,
                tolerance=wanted,
                least=np.array([problem.least for problem in self._problems]),
                max_iterations=options.max_iterations - int(iterations.max()),
                interrupt=lambda: deadline.has_passed,
            )
            iterations, evaluations = iterations + minima.iterations, evaluations + minima.evaluations
            weights = self._weights(every, minima.x)
            if left:
                self._counts = np.stack([p.centred(w) for p, w in zip(self._problems, weights, strict=True)])
                x, last = 2.0 * minima.x - last, minima.x
        _, beliefs = self._calibrated(every, weights)
        seconds = (time.perf_counter() - began) / every.size
        found: list[tuple[Solution, Floats] | None] = []
        for z, problem in enumerate(self._problems):
            status = Status.TIME_LIMIT if deadline.has_passed else Status.ITERATION_LIMIT
            if minima.gap[z] <= wanted[z]:
                status = Status.CONVERGED
            elif minima.stalled[z] or not minima.value[z] >= problem.least:
                found.append(None)
                continue
            counts = int(iterations[z]), int(evaluations[z])
            value, gap = float(minima.value[z]), float(minima.gap[z])
            told = exact_solution(problem, weights[z], beliefs[z], status, value, gap, *counts, seconds)
            found.append((told, beliefs[z]))
        return found
