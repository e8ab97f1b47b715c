"""What is made of margins: a problem of maximum entropy, its fit on a junction tree or on regions, and what is left."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bactrian.arrays import Floats
from bactrian.estimators.marginals import AGREEMENT, CheckedMargins, first_cell
from bactrian.graphs.graph import ClusterGraph
from bactrian.graphs.loglinear import LogLinearModel
from bactrian.graphs.regions import region_graph
from bactrian.learners.margins import (
    FitOptions,
    MarginProblem,
    MarginTree,
    NoStateError,
    fit_exactly,
    fit_with_learner,
    tree_of,
)
from bactrian.learners.region_margins import fit_by_regions
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

    def __iter__(self) -> Iterator[MarginResidual]:
        return iter(self.margins)

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
