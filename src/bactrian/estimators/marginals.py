"""Margins as users give them: by name, as counts or probabilities, checked and made one problem of maximum entropy."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from bactrian.arrays import Bools, Floats, real_numbers
from bactrian.errors import ArgumentError, ArgumentTypeError, check_number
from bactrian.estimators.frames import Variables
from bactrian.graphs.graph import ClusterGraph, Scope
from bactrian.graphs.loglinear import LogLinearModel
from bactrian.graphs.regions import intersections, region_graph
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

#: Sums of exact margins, and what two of them say of the variables they share, may differ by this part of the total.
AGREEMENT = 1e-7
#: Standard deviations by which two noisy margins must differ to be called contradictory.
_CONTRADICTION = 5.0
#: Margins whose sums are this close to 1 hold probabilities.
_ONE = 1e-6
#: Exact margins are met to this part of the tolerance.
_EXACTLY = 1e-3
#: By default the entropy's weight on junction trees is this over the standard deviation of fitted counts, in so many
#: rounds: about (1 + c / 10)^-16 is then missing of a count of c standard deviations. On regions it is less, in one
#: round, since Kikuchi's entropy is not concave and leads astray where it has much weight. Chosen on seeds 100 to 125
#: of ``benchmarks/bench_marginals.py synthetic``; 7 with 12 rounds and 18 with 30 do as well.
_WEIGHT, _ROUNDS, _WEIGHT_ON_REGIONS = 10.0, 16, 0.05
#: Standard deviations by which a count must exceed 0 for its margin to tell something.
_STANDS_OUT = 5.0
#: Where exact margins contradict each other, their cells get this part of the total as tempered variance.
NEAREST = 1e-6


class ContradictionWarning(UserWarning):
    """Margins contradict each other; what was fitted is the nearest answer."""


class Marginal:
    """A table over some variables, for :meth:`bactrian.MarkovRandomField.fit_marginals`.

    Parameters
    ----------
    names : str or tuple of str
        The variables, one per axis of the table.
    table : array
        Counts, or probabilities: a table that adds up to 1 is taken for probabilities.
    stddev : float or array, optional
        Standard deviation of the noise in each entry, in its units; None for an exact table. Only noisy tables may have
        negative entries.

    Examples
    --------
    >>> Marginal(("sex", "smoker"), [[30, 20], [10, 40]])
    Marginal(('sex', 'smoker'), 2 x 2, exact)
    """

    def __init__(self, names: str | Sequence[str], table: ArrayLike, stddev: ArrayLike | None = None) -> None:
        self.names: tuple[str, ...] = (names,) if isinstance(names, str) else tuple(names)
        if not self.names or len(set(self.names)) != len(self.names):
            raise ArgumentError("names", f"must be one or more different variables, found {names!r}")
        self.table = real_numbers(table, "table")
        if self.table.ndim != len(self.names):
            raise ArgumentError("table", f"must have one axis for each of {self.names}, found shape {self.table.shape}")
        if not np.isfinite(self.table).all():
            raise ArgumentError("table", f"holds NaN or infinity at {_first(~np.isfinite(self.table))}")
        self.stddev: Floats | None = None
        if stddev is not None:
            given = real_numbers(stddev, "stddev")
            if given.ndim and given.shape != self.table.shape:
                expected = f"must be one number or have the table's shape {self.table.shape}"
                raise ArgumentError("stddev", f"{expected}, found {given.shape}")
            if not (np.isfinite(given) & (given > 0.0)).all():
                raise ArgumentError("stddev", "must be positive and finite; None stands for an exact table")
            self.stddev = np.broadcast_to(given, self.table.shape).copy()
        elif (self.table < 0.0).any():
            raise ArgumentError(
                "table",
                f"is exact and has a negative entry at {_first(self.table < 0.0)}; give stddev= where it is noisy",
            )
        if stddev is None and not self.table.sum() > 0.0:
            raise ArgumentError("table", f"must add up to more than 0, found {self.table.sum():g}")

    def __repr__(self) -> str:
        kind = "exact" if self.stddev is None else "noisy"
        return f"Marginal({self.names}, {' x '.join(map(str, self.table.shape))}, {kind})"

    @property
    def variance(self) -> Floats:
        """Of every entry; 0 where exact."""
        return np.zeros(self.table.shape) if self.stddev is None else self.stddev**2

    @property
    def holds_probabilities(self) -> bool:
        """Whether it adds up to 1, as far as its noise lets one say."""
        spread = _CONTRADICTION * float(np.sqrt(self.variance.sum()))
        return bool(spread < 0.5 and abs(self.table.sum() - 1.0) <= max(_ONE, spread))

    def scaled(self, factor: float) -> Marginal:
        """The same in other units."""
        return Marginal(self.names, factor * self.table, None if self.stddev is None else factor * self.stddev)


def _first(where: Bools) -> tuple[int, ...]:
    return tuple(np.argwhere(where)[0].tolist())


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


@dataclass(frozen=True)
class CheckedMargins:
    """Margins in counts over numbered variables, with all that restricts the distribution beside them."""

    variables: Variables
    margins: tuple[Marginal, ...]
    scopes: tuple[Scope, ...]
    total: float
    base: tuple[tuple[Scope, Floats], ...]
    impossible: tuple[Bools, ...]  #: cells of each margin that cannot be
    contradictions: tuple[str, ...]
    is_consistent: bool  #: exact margins agree, two by two

    def problem(self, entropy_weight: float | None, *, nearest: bool, on_tree: bool = True) -> MarginProblem:
        """The problem of maximum entropy; with ``nearest`` exact margins become as soft as least squares.

        Where no weight of the entropy is given it goes by the noise, so that units of counts do not matter: by the mean
        variance of counts that stand out, so that margins that tell nothing have no say, and on trees by what least
        squares leave of it, the number of free counts by that of all.
        """
        observed = np.concatenate([margin.table.ravel() for margin in self.margins])
        exact = np.concatenate([np.full(margin.table.size, margin.stddev is None) for margin in self.margins])
        variance = np.concatenate([margin.variance.ravel() for margin in self.margins])
        forbidden = np.concatenate([cells.ravel() for cells in self.impossible])
        stddev = np.sqrt(variance[~exact])
        rounds, typical = 1, 0.0
        if entropy_weight is None and stddev.size:
            told = stddev[observed[~exact] > _STANDS_OUT * stddev]
            typical = float(np.sqrt(np.mean((told if told.size else stddev) ** 2)))
            if on_tree and not nearest:
                rounds = _ROUNDS
                typical *= np.sqrt(self._n_free / stddev.size)
            entropy_weight = (_WEIGHT if rounds > 1 else _WEIGHT_ON_REGIONS) / typical
        precision = (entropy_weight or 0.0) * variance
        if nearest:
            precision = np.where(exact, NEAREST * self.total, precision)
        else:
            forbidden = forbidden | (exact & (observed == 0.0))
        return MarginProblem(
            cardinalities=np.array(self.variables.cardinalities, dtype=np.int64),
            scopes=self.scopes,
            observed=observed,
            precision=precision,
            forbidden=forbidden,
            total=self.total,
            base=self.base,
            rounds=rounds,
            noise=typical,
        )

    @property
    def _n_free(self) -> float:
        """Noisy counts less those that follow from others: the regions' cells by their counting numbers."""
        noisy = [scope for scope, margin in zip(self.scopes, self.margins, strict=True) if margin.stddev is not None]
        graph = region_graph(self.variables.cardinalities, noisy)
        cells = [float(np.prod(graph.shape(scope))) for scope in graph.all_clusters]
        numbers = [*np.ones(len(noisy)), *graph.counting_numbers]
        return float(np.dot(numbers, cells))

    def residuals(self, fitted: Sequence[Floats], contradictions: Sequence[str]) -> Residuals:
        """The account of a fit whose tables of probabilities are ``fitted``."""
        entries = [
            MarginResidual(margin.names, margin.table, self.total * table, margin.stddev)
            for margin, table in zip(self.margins, fitted, strict=True)
        ]
        return Residuals(tuple(entries), tuple(contradictions))


def check_margins(margins: Any, cardinalities: Any, total: Any, base: Any, impossible: Any) -> CheckedMargins:
    """Refuse margins that make no sense, each with an error of its own, before any work."""
    if isinstance(margins, Marginal) or not isinstance(margins, Sequence):
        raise ArgumentTypeError("margins", f"must be a list of Marginal, found {type(margins).__name__}")
    if not margins:
        raise ArgumentError("margins", "is empty; give at least one Marginal")
    for i, margin in enumerate(margins):
        if not isinstance(margin, Marginal):
            raise ArgumentTypeError("margins", f"must be a Marginal, found {type(margin).__name__}", i)
    variables = Variables.of(_shapes(margins) if cardinalities is None else cardinalities)
    scopes = []
    for i, margin in enumerate(margins):
        scope = variables.scope(margin.names, f"margins[{i}]")
        expected = tuple(variables.cardinalities[v] for v in scope)
        if margin.table.shape != expected:
            raise ArgumentError(
                "margins", f" over {margin.names} must have shape {expected}, found {margin.table.shape}", i
            )
        scopes.append(scope)
    in_counts, number = _in_counts(margins, total)
    tables = _checked_base(base, variables)
    cells, more = _checked_impossible(impossible, variables, in_counts, scopes, tables)
    _check_base_has_mass(in_counts, scopes, tables, variables)
    words, consistent = _contradictions(in_counts, scopes, number, variables)
    return CheckedMargins(
        variables, tuple(in_counts), tuple(scopes), number, (*tables, *more), cells, tuple(words), consistent
    )


def _shapes(margins: Sequence[Marginal]) -> dict[str, int]:
    """Numbers of states by name, as the margins have them."""
    seen: dict[str, int] = {}
    for i, margin in enumerate(margins):
        for name, size in zip(margin.names, margin.table.shape, strict=True):
            if seen.setdefault(name, size) != size:
                raise ArgumentError("margins", f" has {size} states of {name!r}, others {seen[name]}", i)
    return seen


def _in_counts(margins: Sequence[Marginal], total: Any) -> tuple[list[Marginal], float]:
    """All margins in counts, and the total: given, that of exact margins, or the best estimate from noisy ones."""
    check_number("total", total, positive=True, below=np.inf, optional=True)
    number = None if total is None else float(total)
    probabilities = [margin.holds_probabilities for margin in margins]
    counts = [margin for margin, is_probability in zip(margins, probabilities, strict=True) if not is_probability]
    exact = [(i, margin) for i, margin in enumerate(margins) if margin.stddev is None and not probabilities[i]]
    if number is None and exact:
        number = float(exact[0][1].table.sum())
    if number is None and counts:
        # The sum of n entries of variance s^2 has variance n s^2.
        weights = np.array([1.0 / margin.variance.sum() for margin in counts])
        number = float(weights @ [margin.table.sum() for margin in counts] / weights.sum())
        if not number > 0.0:
            raise ArgumentError("total", "cannot be estimated: the noisy margins add up to less than 0; give it")
    number = 1.0 if number is None else number
    for i, margin in exact:
        if abs(margin.table.sum() - number) > AGREEMENT * number:
            other = f"total is {number:g}" if total is not None else f"margins[{exact[0][0]}] to {number:g}"
            raise ArgumentError(
                "margins",
                f" is exact and adds up to {margin.table.sum():.10g}, but {other}; scale it, give probabilities, or "
                "give stddev= where it is only known roughly",
                i,
            )
    scaled = [
        margin.scaled(number / margin.table.sum() if margin.stddev is None else number) if is_probability else margin
        for margin, is_probability in zip(margins, probabilities, strict=True)
    ]
    return scaled, number


def _checked_base(base: Any, variables: Variables) -> tuple[tuple[Scope, Floats], ...]:
    """Log tables of the seed."""
    if base is None:
        return ()
    listed = [base] if isinstance(base, Marginal) else base
    if not (isinstance(listed, Sequence) and any(isinstance(entry, Marginal) for entry in listed)):
        table = real_numbers(base, "base")
        if table.shape != variables.cardinalities:
            expected = f"must be a Marginal, a list of them, or a table of shape {variables.cardinalities}"
            raise ArgumentError("base", f"{expected}, found shape {table.shape}")
        bad = ~(np.isfinite(table) & (table >= 0.0))
        if bad.any() or not table.any():
            what = f"{table[_first(bad)]:g} at {_first(bad)}" if bad.any() else "zeros alone"
            raise ArgumentError("base", f"must hold finite numbers of at least 0, some of them positive, found {what}")
        listed = [Marginal(variables.names, table)]
    found = []
    for i, margin in enumerate(listed):
        if not isinstance(margin, Marginal):
            raise ArgumentTypeError("base", f"must be a Marginal, found {type(margin).__name__}", i)
        scope = variables.scope(margin.names, "base")
        expected_shape = tuple(variables.cardinalities[v] for v in scope)
        if margin.table.shape != expected_shape:
            raise ArgumentError(
                "base", f"over {margin.names} must have shape {expected_shape}, found {margin.table.shape}"
            )
        if (margin.table < 0.0).any():
            raise ArgumentError("base", f"over {margin.names} has a negative entry at {_first(margin.table < 0.0)}")
        with np.errstate(divide="ignore"):
            found.append((scope, np.log(margin.table / margin.table.max()).ravel()))
    return tuple(found)


def _checked_impossible(
    impossible: Any,
    variables: Variables,
    margins: Sequence[Marginal],
    scopes: Sequence[Scope],
    base: Sequence[tuple[Scope, Floats]],
) -> tuple[tuple[Bools, ...], tuple[tuple[Scope, Floats], ...]]:
    """Impossible cells of each margin, and tables for those that are in none."""
    cells = [np.zeros(margin.table.shape, dtype=bool) for margin in margins]
    others: dict[Scope, Floats] = {}
    if isinstance(impossible, Mapping | str) or not isinstance(impossible, Sequence):
        raise ArgumentTypeError("impossible", f"must be a list of mappings from names to states, found {impossible!r}")
    for k, entry in enumerate(impossible):
        what = f"impossible[{k}]"
        if not isinstance(entry, Mapping) or not entry:
            raise ArgumentTypeError(what, f"must map names of variables to states, found {entry!r}")
        states = {variables.index(n, what): s for n, s in entry.items()}
        states = {v: variables.state(v, s, what) for v, s in states.items()}
        covered = False
        for i, (margin, scope) in enumerate(zip(margins, scopes, strict=True)):
            if states.keys() <= set(scope):
                index = tuple(states.get(v, slice(None)) for v in scope)
                cells[i][index] = True
                covered = True
                mass = float(margin.table[index].sum())
                if margin.stddev is None and mass > 0.0:
                    cell = variables.called(tuple(states), list(states.values()))
                    raise ArgumentError("margins", f" gives {mass:g} to {cell}, which {what} says cannot be", i)
        if not covered:
            scope = tuple(sorted(states))
            shape = tuple(variables.cardinalities[v] for v in scope)
            others.setdefault(scope, np.zeros(shape))[tuple(states[v] for v in scope)] = -np.inf
    for scope, table in others.items():
        if (table == -np.inf).all():
            raise ArgumentError("impossible", f"leaves no state of {[variables.names[v] for v in scope]}")
    return tuple(cells), tuple((scope, table.ravel()) for scope, table in others.items())


def _check_base_has_mass(
    margins: Sequence[Marginal], scopes: Sequence[Scope], base: Sequence[tuple[Scope, Floats]], variables: Variables
) -> None:
    """Refuse exact margins that give mass to what the base says is impossible."""
    for base_scope, table in base:
        support = np.isfinite(table).reshape([variables.cardinalities[v] for v in base_scope])
        for i, (margin, scope) in enumerate(zip(margins, scopes, strict=True)):
            common = [v for v in base_scope if v in scope]
            if margin.stddev is not None or not common:
                continue
            has_base = support.any(axis=tuple(a for a, v in enumerate(base_scope) if v not in common))
            has_mass = projected(margin.table, scope, common) > 0.0
            if (has_mass & ~has_base).any():
                cell = variables.called(tuple(common), _first(has_mass & ~has_base))
                raise ArgumentError("margins", f" gives mass to {cell}, to which base gives none", i)


def projected(table: Floats, scope: Scope, onto: Sequence[int]) -> Floats:
    """Sums over all variables but ``onto``, in that order."""
    summed = table.sum(axis=tuple(a for a, v in enumerate(scope) if v not in onto))
    left = [v for v in scope if v in onto]
    projected: Floats = summed.transpose([left.index(v) for v in onto])
    return projected


def _contradictions(
    margins: Sequence[Marginal], scopes: Sequence[Scope], total: float, variables: Variables
) -> tuple[list[str], bool]:
    """In words which margins disagree on variables that they share; and whether all exact ones agree."""
    found: dict[tuple[int, int], str] = {}
    consistent = True
    sets = [set(scope) for scope in scopes]
    for common, around in zip(*intersections(scopes), strict=True):
        tables = np.stack([projected(margins[i].table, scopes[i], common).ravel() for i in around])
        variances = np.stack([projected(margins[i].variance, scopes[i], common).ravel() for i in around])
        least = (AGREEMENT * total) ** 2
        most = np.maximum(tables.max(axis=0) - tables, tables - tables.min(axis=0)) ** 2
        suspects = (most > np.maximum(_CONTRADICTION**2 * (variances + variances.min(axis=0)), least)).any(axis=1)
        for row in np.flatnonzero(suspects).tolist():
            i, a = around[row], margins[around[row]]
            gap = np.abs(tables - tables[row])
            variance = variances + variances[row]
            excess = gap**2 / np.maximum(_CONTRADICTION**2 * variance, least)
            for other in np.flatnonzero((excess > 1.0).any(axis=1)).tolist():
                j, b, worst = around[other], margins[around[other]], int(np.argmax(excess[other]))
                if j <= i or sets[i] & sets[j] != set(common):
                    continue
                by = f"by {gap[other, worst]:.6g}"
                if a.stddev is None and b.stddev is None:
                    consistent = False
                else:
                    by += f", {gap[other, worst] / np.sqrt(variance[other, worst]):.1f} standard deviations"
                shape = [variables.cardinalities[v] for v in common]
                cell = variables.called(common, [int(s) for s in np.unravel_index(worst, shape)])
                found[i, j] = (
                    f"margins[{i}] {a.names} and margins[{j}] {b.names} disagree {by} on {cell}: "
                    f"{tables[row, worst]:.10g} against {tables[other, worst]:.10g}"
                )
    return [found[pair] for pair in sorted(found)], consistent


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
    problem = checked.problem(entropy_weight, nearest=True)
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
    problem = checked.problem(entropy_weight, nearest=nearest, on_tree=tree is not None)
    chosen = "exact" if tree is not None else "cccp" if method == "auto" else method
    graph = problem.graph(regions=tree is None)

    def fit(problem: MarginProblem, tolerance: float) -> tuple[Solution, Floats]:
        limits = replace(options, tolerance=tolerance)
        if tree is not None:
            return fit_exactly(problem, tree, limits)
        if chosen == "cccp":
            return fit_by_regions(problem, graph, limits)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # whoever called says it
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
        problem = checked.problem(entropy_weight, nearest=True)
        solution, cells = fit(problem, options.tolerance)
        words.append(_no_distribution(checked, problem.split(checked.total * cells)))
    return MarginFit(problem, graph, solution, chosen, cells, checked.residuals(problem.split(cells), words))


def _no_distribution(checked: CheckedMargins, fitted: Sequence[Floats]) -> str:
    """What is said of exact margins that agree two by two, and contradict each other all the same."""
    gaps = []
    for i, (margin, table) in enumerate(zip(checked.margins, fitted, strict=True)):
        gap = np.abs(table - margin.table)
        worst = _first(gap == gap.max())
        if margin.stddev is None and gap.max() > 1e-5 * checked.total:
            cell = checked.variables.called(checked.scopes[i], worst)
            gaps.append((-gap.max(), f"margins[{i}] {margin.names} by up to {gap.max():.6g} ({cell})"))
    listed = ", ".join(text for _, text in sorted(gaps))
    return f"no distribution has all of these margins, though any two agree; the nearest one misses {listed}"
