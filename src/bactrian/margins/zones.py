"""Many zones with margins of the same variables, fitted side by side on the junction tree that all share."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bactrian.arrays import Bools, Floats
from bactrian.engines.numba.threads import Deadline, Workers, single_threaded_blas
from bactrian.errors import ArgumentError, ArgumentTypeError
from bactrian.margins.fit import ContradictionWarning, MarginFit, fit_with, residuals_of, tolerance_of
from bactrian.margins.given import CheckedMargins, check_margins
from bactrian.margins.problem import FitOptions, MarginProblem, margin_problem
from bactrian.margins.tree import EVERY, MarginTree, TreeDuals, exact_solution, tree_of
from bactrian.solvers.side_by_side import minimise_side_by_side
from bactrian.solvers.solution import ConvergenceWarning, Record, Solution, Status

#: Bytes that the vectors of problems fitted at once may take, about, and vectors per problem.
_AT_ONCE, _VECTORS = 2**28, 30


class Zones(Sequence[Any]):
    """Fitted fields of all zones; ``zones[z]`` makes the field of one.

    ``marginal(names)`` has the probabilities of all zones, the first axis being the zones. ``totals``, ``converged``
    and ``contradictions`` (by zone) say how the fits ended.
    """

    def __init__(
        self, checked: Sequence[CheckedMargins], found: Sequence[MarginFit], make: Callable[[int], Any]
    ) -> None:
        self._checked, self._found, self._make = checked, found, make

    def __len__(self) -> int:
        return len(self._found)

    def __getitem__(self, zone):  # type: ignore[no-untyped-def]
        if isinstance(zone, slice):
            return [self[z] for z in range(*zone.indices(len(self)))]
        return self._make(range(len(self))[zone])

    def __repr__(self) -> str:
        return f"Zones({len(self)} zones, {int(self.converged.sum())} converged)"

    @property
    def totals(self) -> Floats:
        """(n_zones,) rows of each zone."""
        return np.array([checked.total for checked in self._checked])

    @property
    def converged(self) -> Bools:
        """(n_zones,) whether each fit reached its tolerance."""
        return np.array([found.solution.converged for found in self._found], dtype=np.bool_)

    @property
    def contradictions(self) -> dict[int, tuple[str, ...]]:
        """What contradicts what, for zones where anything does."""
        return {
            z: found.residuals.contradictions for z, found in enumerate(self._found) if found.residuals.contradictions
        }

    def marginal(self, names: Any) -> Floats:
        """Joint marginals of some variables in every zone, shape (n_zones, ...)."""
        return np.stack([field.marginal(names) for field in self])


def check_zones(zones: Any, cardinalities: Any, base: Any, impossible: Any) -> list[CheckedMargins]:
    """Refuse zones of which one makes no sense, or has other margins than the first."""
    if isinstance(zones, str) or not isinstance(zones, Sequence):
        raise ArgumentTypeError("zones", f"must be a list with the margins of each zone, found {type(zones).__name__}")
    if not zones:
        raise ArgumentError("zones", "is empty; give at least one zone")
    checked: list[CheckedMargins] = []
    for z, margins in enumerate(zones):
        try:
            checked.append(check_margins(margins, cardinalities, None, base, impossible))
        except ArgumentError as problem:
            kind = ArgumentTypeError if isinstance(problem, TypeError) else ArgumentError
            raise kind("zones", f": {problem}", z) from None
        if z == 0 and any(checked[0].variables.labels):
            cardinalities = dict(zip(checked[0].variables.names, checked[0].variables.states, strict=True))
        if (checked[z].scopes, checked[z].variables) != (checked[0].scopes, checked[0].variables):
            listed = [margin.names for margin in checked[0].margins]
            raise ArgumentError("zones", f" must have the margins of zones[0] in the same order: {listed}", z)
    return checked


def fit_all_zones(
    checked: Sequence[CheckedMargins],
    entropy_weight: float | None,
    memory_budget: int,
    options: FitOptions,
    n_threads: int | None,
) -> list[MarginFit]:
    """Fit every zone on the junction tree that all share; zones that contradict themselves by themselves."""
    problems = [margin_problem(zone, entropy_weight, nearest=not zone.is_consistent) for zone in checked]
    tree = tree_of(problems[0], memory_budget, refuse=True)
    assert tree is not None
    tolerances = np.array([tolerance_of(problem, options) for problem in problems])
    graph = problems[0].graph(regions=False)
    with single_threaded_blas():
        solved = fit_side_by_side(problems, tree, tolerances, options, Workers(n_threads))
    found = []
    for zone, problem, done in zip(checked, problems, solved, strict=True):
        if done is None:
            found.append(fit_with(zone, tree, "exact", entropy_weight, options))
        else:
            residuals = residuals_of(zone, problem.split(done[1]), zone.contradictions)
            found.append(MarginFit(problem, graph, done[0], "exact", done[1], residuals))
    _warn_of_zones(found)
    return found


def _warn_of_zones(found: Sequence[MarginFit]) -> None:
    short = [z for z, fit in enumerate(found) if not fit.solution.converged]
    if short:
        first = f"zones[{short[0]}]: {found[short[0]].solution.status}"
        warnings.warn(f"{len(short)} of {len(found)} zones stopped short; {first}", ConvergenceWarning, stacklevel=4)
    apart = [z for z, fit in enumerate(found) if fit.residuals.contradictions]
    if apart:
        first = f"zones[{apart[0]}]: {found[apart[0]].residuals.contradictions[0]}"
        said = f"margins of {len(apart)} of {len(found)} zones contradict each other; {first}"
        warnings.warn(said, ContradictionWarning, stacklevel=4)


def fit_side_by_side(
    problems: Sequence[MarginProblem], tree: MarginTree, tolerances: Floats, options: FitOptions, workers: Workers
) -> list[tuple[Solution, Floats] | None]:
    """Solutions of problems with the same scopes and base, and the probabilities of their cells.

    One call calibrates the trees of all, shared among threads, and :mod:`bactrian.solvers.side_by_side` takes their
    steps. None stands for problems that want a closer look: no state is possible, or steps did not get to the end.
    """
    n = problems[0].observed.size
    at_once = max(1, _AT_ONCE // (8 * _VECTORS * max(n, 1)))
    deadline = Deadline(options.max_seconds)
    # Directions among overlapping noisy margins are the same for all problems in which the same margins are noisy.
    noisy = np.stack([[problem.rounds, *(problem.precision[problem.bounds[:-1]] > 0.0)] for problem in problems])
    found: list[tuple[Solution, Floats] | None] = [None] * len(problems)
    for kind in np.unique(noisy, axis=0):
        alike = np.flatnonzero((noisy == kind).all(axis=1))
        for first in range(0, alike.size, at_once):
            some = alike[first : first + at_once]
            solved = _solve_together([problems[z] for z in some], tree, tolerances[some], options, deadline, workers)
            for z, solution in zip(some, solved, strict=True):
                found[z] = solution
    return found


def _solve_together(
    problems: Sequence[MarginProblem],
    tree: MarginTree,
    tolerances: Floats,
    options: FitOptions,
    deadline: Deadline,
    workers: Workers,
) -> list[tuple[Solution, Floats] | None]:
    duals = TreeDuals(problems, tree, workers)
    began = time.perf_counter()
    x, last = np.zeros((2, len(problems), duals.size))
    iterations, evaluations = np.zeros((2, len(problems)), dtype=np.int64)
    for left in range(problems[0].rounds - 1, -1, -1):
        wanted = np.array([p.wanted(t, left) for p, t in zip(problems, tolerances, strict=True)])
        minima = minimise_side_by_side(
            duals.value_and_gradient,
            x,
            tolerance=wanted,
            least=np.array([problem.least for problem in problems]),
            max_iterations=options.max_iterations - int(iterations.max()),
            interrupt=lambda: deadline.has_passed,
        )
        iterations, evaluations = iterations + minima.iterations, evaluations + minima.evaluations
        if left:
            duals.centre(minima.x)
            x, last = 2.0 * minima.x - last, minima.x
    weights = duals.weights(EVERY, minima.x)
    _, beliefs = duals.calibrated(EVERY, weights)
    seconds = (time.perf_counter() - began) / len(problems)
    found: list[tuple[Solution, Floats] | None] = []
    for z, problem in enumerate(problems):
        status = Status.TIME_LIMIT if deadline.has_passed else Status.ITERATION_LIMIT
        if minima.gap[z] <= wanted[z]:
            status = Status.CONVERGED
        elif minima.stalled[z] or not minima.value[z] >= problem.least:
            found.append(None)
            continue
        value, gap, counts = float(minima.value[z]), float(minima.gap[z]), (int(iterations[z]), int(evaluations[z]))
        record = Record(0, value, gap, 0.0, *counts, 0, seconds)
        found.append((exact_solution(problem, weights[z], beliefs[z], status, record), beliefs[z]))
    return found
