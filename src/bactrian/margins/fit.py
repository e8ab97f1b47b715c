"""Learning from margins, on a junction tree or on regions, and the residuals."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bactrian.arrays import Arrays, Floats, Ints
from bactrian.graphs.graph import ClusterGraph, Domain, Scope
from bactrian.graphs.loglinear import LogLinearModel, Moments
from bactrian.learners.learn import learn
from bactrian.margins.given import AGREEMENT, CheckedMargins, first_cell, projected
from bactrian.margins.problem import FitOptions, MarginProblem, NoStateError, margin_problem
from bactrian.margins.regions import fit_by_regions
from bactrian.margins.tree import MarginTree, fit_exactly, joint_of, tree_of
from bactrian.solvers.solution import ConvergenceWarning, Solution, Status, warn_stopped

#: Exact margins are met to this part of the tolerance.
_EXACTLY = 1e-3


class ContradictionWarning(UserWarning):
    """Margins contradict each other; what was fitted is the nearest answer."""


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
    """The residuals of a fit whose tables of probabilities are ``fitted``."""
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


@dataclass(frozen=True, eq=False)
class FittedMargins:
    """The problem that a field was fitted to, and the fitted margins, one axis per variable."""

    problem: MarginProblem
    tables: Sequence[Floats]

    def joint(self, asked: Scope, *, put_together: bool) -> Floats | None:
        """The table over ``asked`` that a margin holds, or that may be put together of several; else None."""
        known: dict[Scope, Floats] = {}
        tables = zip(self.problem.scopes, self.tables, strict=True)
        for of, table in sorted(tables, key=lambda pair: -len(set(pair[0]) & set(asked))):
            common = tuple(v for v in asked if v in of)
            if common and not any(set(common) <= set(larger) for larger in known):
                known[common] = projected(table, of, common)
        if asked in known:
            return known[asked]
        return joint_of(self.problem.cardinalities, asked, known) if put_together else None

    def contents(self) -> tuple[dict[str, Any], Arrays]:
        """Attributes and arrays for a file."""
        problem = self.problem
        kept = {
            "scopes": [list(scope) for scope in problem.scopes],
            "base": [list(scope) for scope, _ in problem.base],
            "total": problem.total,
        }
        arrays: Arrays = {
            "forbidden": problem.forbidden.astype(np.int64),
            "fitted": np.concatenate([table.ravel() for table in self.tables]),
            **{f"base.{i}": table for i, (_, table) in enumerate(problem.base)},
        }
        return {"margins": kept}, arrays

    @staticmethod
    def restored(cardinalities: Ints, n_cells: int, kept: Mapping[str, Any], arrays: Arrays) -> FittedMargins:
        """Margins from the attributes and arrays of a file, checked."""
        base_scopes = Domain(cardinalities, kept["base"]).clusters
        problem = MarginProblem(
            cardinalities=cardinalities,
            scopes=Domain(cardinalities, kept["scopes"]).clusters,
            observed=np.zeros(n_cells),
            precision=np.zeros(n_cells),
            forbidden=arrays["forbidden"].astype(np.bool_),
            total=float(kept["total"]),
            base=tuple((scope, arrays[f"base.{i}"]) for i, scope in enumerate(base_scopes)),
        )
        if not problem.bounds[-1] == n_cells == problem.forbidden.size == arrays["fitted"].size:
            raise ValueError(f"it has {n_cells} weights, which do not fit its margins")
        return FittedMargins(problem, problem.split(arrays["fitted"]))


def fit_margins(
    checked: CheckedMargins, method: Any, entropy_weight: float | None, memory_budget: int, options: FitOptions
) -> MarginFit:
    """Learn from margins on a junction tree or on regions, by ``method`` and memory; warns of problems."""
    problem = margin_problem(checked, entropy_weight, nearest=True)
    tries = isinstance(method, str) and method in ("auto", "exact")
    tree = tree_of(problem, memory_budget, refuse=method == "exact") if tries else None
    found = fit_with(checked, tree, method, entropy_weight, options)
    warn_stopped(found.solution)
    if found.residuals.contradictions:
        warnings.warn("; ".join(found.residuals.contradictions), ContradictionWarning, stacklevel=3)
    return found


def tolerance_of(problem: MarginProblem, options: FitOptions) -> float:
    """Part of the total to which margins are met; exact ones are met more closely."""
    return options.tolerance if problem.precision.any() else _EXACTLY * options.tolerance


def fit_with(
    checked: CheckedMargins, tree: MarginTree | None, method: Any, entropy_weight: float | None, options: FitOptions
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
    """The message about exact margins that agree two by two, and still contradict each other."""
    gaps = []
    for i, (margin, table) in enumerate(zip(checked.margins, fitted, strict=True)):
        gap = np.abs(table - margin.table)
        worst = first_cell(gap == gap.max())
        if margin.stddev is None and gap.max() > 1e-5 * checked.total:
            cell = checked.variables.called(checked.scopes[i], worst)
            gaps.append((-gap.max(), f"margins[{i}] {margin.names} by up to {gap.max():.6g} ({cell})"))
    listed = ", ".join(text for _, text in sorted(gaps))
    return f"no distribution has all of these margins, though any two agree; the nearest one misses {listed}"


def fit_with_learner(
    problem: MarginProblem, method: Any, options: FitOptions, graph: ClusterGraph
) -> tuple[Solution, Floats]:
    """The solution of a learner on the region graph of the margins, and its beliefs of all cells."""
    model = problem.model(graph)
    moments = Moments(model, np.where(problem.forbidden, 0.0, problem.observed), problem.total, problem.precision)
    solution = learn(moments, method, prior_variance=None, **vars(options))
    tables = solution.beliefs[0][: len(problem.scopes)]
    return solution, np.concatenate([np.zeros(0), *(table.ravel() for table in tables)])
