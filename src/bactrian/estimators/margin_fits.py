"""What is made of margins: a problem of maximum entropy, its fit on a junction tree or on regions, and what is left.

Many zones, which have margins of the same variables, are fitted at once on the junction tree that all share.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bactrian.arrays import Bools, Floats
from bactrian.errors import ArgumentError, ArgumentTypeError
from bactrian.estimators.marginals import AGREEMENT, CheckedMargins, check_margins, first_cell
from bactrian.graphs.graph import ClusterGraph
from bactrian.graphs.loglinear import LogLinearModel
from bactrian.graphs.regions import region_graph
from bactrian.learners.margins import (
    FitOptions,
    MarginProblem,
    MarginTree,
    NoStateError,
    fit_exactly,
    fit_side_by_side,
    fit_with_learner,
    tree_of,
)
from bactrian.learners.region_margins import fit_by_regions
from bactrian.parallel.threads import Workers, single_threaded_blas
from bactrian.solvers.solution import ConvergenceWarning, Solution, Status

#: Exact margins are met to this part of the tolerance.
_EXACTLY = 1e-3
#: By default the entropy's weight is this over the standard deviation of fitted counts, in so many rounds: on junction
#: trees about (1 + c / 10)^-16 is then missing of a count of c standard deviations; chosen on seeds 100 to 125 of
#: ``benchmarks/bench_marginals.py synthetic``, and 7 with 12 rounds and 18 with 30 do as well. On regions, whose
#: entropy is not concave and leads astray where it has much weight, chosen on seeds 700 to 705.
_ON_TREES, _ON_REGIONS = (10.0, 16), (4.0, 8)
#: The same where exact margins contradict each other.
_OF_NEAREST = (0.05, 1)
#: Standard deviations by which a count must exceed 0 for its margin to tell something.
_STANDS_OUT = 5.0
#: Where exact margins contradict each other, their cells get this part of the total as tempered variance.
_NEAREST = 1e-6


class ContradictionWarning(UserWarning):
    """Margins contradict each other; what was fitted is the nearest answer."""


def margin_problem(
    checked: CheckedMargins, entropy_weight: float | None, *, nearest: bool, on_tree: bool = True
) -> MarginProblem:
    """The problem of maximum entropy; with ``nearest`` exact margins become as soft as least squares.

    Where no weight of the entropy is given it goes by the noise, so that units of counts do not matter: by the mean
    variance of counts that stand out, so that margins that tell nothing have no say, and on trees by what least
    squares leave of it, the number of free counts by that of all.
    """
    observed = np.concatenate([margin.table.ravel() for margin in checked.margins])
    exact = np.concatenate([np.full(margin.table.size, margin.stddev is None) for margin in checked.margins])
    variance = np.concatenate([margin.variance.ravel() for margin in checked.margins])
    forbidden = np.concatenate([cells.ravel() for cells in checked.impossible])
    stddev = np.sqrt(variance[~exact])
    rounds, typical = 1, 0.0
    if entropy_weight is None and stddev.size:
        told = stddev[observed[~exact] > _STANDS_OUT * stddev]
        typical = float(np.sqrt(np.mean((told if told.size else stddev) ** 2)))
        weight, rounds = _OF_NEAREST if nearest else _ON_TREES if on_tree else _ON_REGIONS
        if on_tree and not nearest:
            typical *= np.sqrt(_n_free(checked) / stddev.size)
        entropy_weight = weight / typical
    precision = (entropy_weight or 0.0) * variance
    if nearest:
        precision = np.where(exact, _NEAREST * checked.total, precision)
    else:
        forbidden = forbidden | (exact & (observed == 0.0))
    return MarginProblem(
        cardinalities=np.array(checked.variables.cardinalities, dtype=np.int64),
        scopes=checked.scopes,
        observed=observed,
        precision=precision,
        forbidden=forbidden,
        total=checked.total,
        base=checked.base,
        rounds=rounds,
        noise=typical,
    )


def _n_free(checked: CheckedMargins) -> float:
    """Noisy counts less those that follow from others: the regions' cells by their counting numbers."""
    noisy = [scope for scope, margin in zip(checked.scopes, checked.margins, strict=True) if margin.stddev is not None]
    graph = region_graph(checked.variables.cardinalities, noisy)
    cells = [float(np.prod(graph.shape(scope))) for scope in graph.all_clusters]
    numbers = [*np.ones(len(noisy)), *graph.counting_numbers]
    return float(np.dot(numbers, cells))


@dataclass(frozen=True)
class MarginResidual:
    """A margin as it was given and as it was fitted, both in counts."""

    names: tuple[str, ...]
    given: Floats
    fitted: Floats
    stddev: Floats | None

    @property
    def difference(self) -> Floats:
        """Fitted less given."""
        return self.fitted - self.given

    @property
    def z(self) -> Floats:
        """The difference in standard deviations; NaN where the margin is exact."""
        return np.full(self.given.shape, np.nan) if self.stddev is None else self.difference / self.stddev

    @property
    def distance(self) -> float:
        """Half the sum of absolute differences, as part of the total: total variation."""
        return float(0.5 * np.abs(self.difference).sum() / self.fitted.sum())


@dataclass(frozen=True)
class Residuals(Sequence[MarginResidual]):
    """One entry per margin, and in words which margins contradict which.

    ``str(residuals)`` is a table of them.
    """

    margins: tuple[MarginResidual, ...]
    contradictions: tuple[str, ...]

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        return self.margins[index]

    def __len__(self) -> int:
        return len(self.margins)

    def __str__(self) -> str:
        lines = [f"{'margin':40} {'largest difference':>18} {'total variation':>16} {'largest |z|':>12}"]
        for margin in self.margins:
            z = "exact" if margin.stddev is None else f"{np.abs(margin.z).max():.2f}"
            largest = np.abs(margin.difference).max()
            lines.append(f"{', '.join(margin.names):40} {largest:18.4g} {margin.distance:16.2e} {z:>12}")
        return "\n".join([*lines, *self.contradictions])


def residuals_of(checked: CheckedMargins, fitted: Sequence[Floats], contradictions: Sequence[str]) -> Residuals:
    """The account of a fit whose tables of probabilities are ``fitted``."""
    entries = [
        MarginResidual(margin.names, margin.table, checked.total * table, margin.stddev)
        for margin, table in zip(checked.margins, fitted, strict=True)
    ]
    return Residuals(tuple(entries), tuple(contradictions))


@dataclass(frozen=True)
class MarginFit:
    """What was learned from margins."""

    problem: MarginProblem
    graph: ClusterGraph
    solution: Solution
    method: Any  #: that was learned with
    cells: Floats  #: (n_cells,) fitted probabilities of all margins' cells
    residuals: Residuals

    @property
    def model(self) -> LogLinearModel:
        """The model that the weights are of."""
        return self.problem.model(self.graph)


def fit_margins(
    checked: CheckedMargins,
    method: Any,
    entropy_weight: float | None,
    memory_budget: int,
    options: FitOptions,
) -> MarginFit:
    """Learn from margins by the junction tree or on regions, as ``method`` and memory say; warns of what is amiss."""
    problem = margin_problem(checked, entropy_weight, nearest=True)
    tries = isinstance(method, str) and method in ("auto", "exact")
    tree = tree_of(problem, memory_budget, refuse=method == "exact") if tries else None
    found = fit_with(checked, tree, method, entropy_weight, options)
    if not found.solution.converged:
        warnings.warn(f"{found.solution.method}: {found.solution.status}", ConvergenceWarning, stacklevel=3)
    if found.residuals.contradictions:
        warnings.warn("; ".join(found.residuals.contradictions), ContradictionWarning, stacklevel=3)
    return found


def tolerance_of(problem: MarginProblem, options: FitOptions) -> float:
    """Part of the total to which margins are met; exact ones are met more closely."""
    return options.tolerance if problem.precision.any() else _EXACTLY * options.tolerance


def fit_with(
    checked: CheckedMargins,
    tree: MarginTree | None,
    method: Any,
    entropy_weight: float | None,
    options: FitOptions,
) -> MarginFit:
    """Learn on a junction tree, or on regions where there is none.

    Where exact margins contradict each other, this is the nearest answer by least squares.
    """
    nearest = not checked.is_consistent
    problem = margin_problem(checked, entropy_weight, nearest=nearest, on_tree=tree is not None)
    chosen = "exact" if tree is not None else "cccp" if method == "auto" else method
    graph = problem.graph(regions=tree is None)

    def fit(problem: MarginProblem, tolerance: float) -> tuple[Solution, Floats]:
        limits = replace(options, tolerance=tolerance)
        if tree is not None:
            return fit_exactly(problem, tree, limits)
        if chosen == "cccp":
            return fit_by_regions(problem, graph, limits)
        with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):  # whoever called says it
            return fit_with_learner(problem, chosen, limits, graph)

    words = list(checked.contradictions)
    impossible = False
    try:
        solution, cells = fit(problem, tolerance_of(problem, options))
        contradictory = solution.status in (Status.UNBOUNDED, Status.STALLED)
        contradictory = contradictory and solution.moment_gap > AGREEMENT * checked.total
        contradictory = contradictory and not problem.precision.all()
    except NoStateError:
        if nearest:
            raise
        contradictory = impossible = True
    if contradictory and (impossible or not nearest):
        problem = margin_problem(checked, entropy_weight, nearest=True)
        solution, cells = fit(problem, options.tolerance)
        words.append(_no_distribution(checked, problem.split(checked.total * cells)))
    return MarginFit(problem, graph, solution, chosen, cells, residuals_of(checked, problem.split(cells), words))


def _no_distribution(checked: CheckedMargins, fitted: Sequence[Floats]) -> str:
    """What is said of exact margins that agree two by two, and contradict each other all the same."""
    gaps = []
    for i, (margin, table) in enumerate(zip(checked.margins, fitted, strict=True)):
        gap = np.abs(table - margin.table)
        worst = first_cell(gap == gap.max())
        if margin.stddev is None and gap.max() > 1e-5 * checked.total:
            cell = checked.variables.called(checked.scopes[i], worst)
            gaps.append((-gap.max(), f"margins[{i}] {margin.names} by up to {gap.max():.6g} ({cell})"))
    listed = ", ".join(text for _, text in sorted(gaps))
    return f"no distribution has all of these margins, though any two agree; the nearest one misses {listed}"


# --- zones ---


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
