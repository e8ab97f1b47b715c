"""Fields that are learned from margins: tables of counts where there are no rows."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from sklearn.base import clone

from bactrian.arrays import Bools, Floats, Ints
from bactrian.engines.numba.threads import Workers, single_threaded_blas
from bactrian.errors import ArgumentError, ArgumentTypeError, check_number
from bactrian.estimators.fields import Field
from bactrian.estimators.frames import Variables, restored_variables
from bactrian.estimators.marginals import (
    MARGINS,
    CheckedMargins,
    ContradictionWarning,
    Marginal,
    MarginFit,
    Residuals,
    check_margins,
    fit_margins,
    fit_with,
    projected,
    tolerance_of,
)
from bactrian.estimators.saving import Arrays
from bactrian.graphs.graph import Domain, Scope
from bactrian.graphs.loglinear import LogLinearModel
from bactrian.inference.problem import checked_evidence
from bactrian.learners.margins import FitOptions, MarginProblem, fit_side_by_side, joint_of, tree_of
from bactrian.solvers.solution import Callback, ConvergenceWarning


@dataclass(frozen=True)
class _Margins:
    """What a field that was learned from margins keeps of them."""

    problem: MarginProblem
    fitted: list[Floats]  #: probabilities, one axis per variable


@dataclass(kw_only=True, eq=False, repr=False)
class MarginField(Field):
    """Base of :class:`bactrian.MarkovRandomField`: learning from margins."""

    residuals_: Residuals = field(init=False)
    total_: float = field(init=False)
    _margins: _Margins | None = field(init=False, default=None)

    def fit_marginals(
        self,
        margins: Sequence[Marginal],
        cardinalities: Mapping[str, Any] | None = None,
        *,
        total: float | None = None,
        base: Any = None,
        impossible: Sequence[Mapping[str, Any]] = (),
        entropy_weight: float | None = None,
        callback: Callback | None = None,
    ) -> Self:
        """Learn from tables of counts where there are no rows: the distribution of maximum entropy.

        Exact margins that agree are met to a thousandth of ``tolerance``, as iterative proportional fitting would meet
        them; where they contradict each other a :class:`ContradictionWarning` and ``residuals_`` say which, and the
        nearest distribution, by least squares, is learned. Noisy margins count by their variances. The clusters of the
        model are the margins; ``edges``, ``tables``, ``prior_variance`` and ``l1`` play no part, and
        :mod:`bactrian.learners.margins` has the formulas.

        Parameters
        ----------
        margins : list of Marginal
            In any order, of any overlap.
        cardinalities : mapping, optional
            Number of states, or list of their labels, of each variable by its name; by default as many as the margins
            have.
        total : float, optional
            Number of rows; by default what exact margins add up to, or the best estimate from noisy ones.
        base : Marginal, list of them, or array, optional
            The seed table of proportional fitting: the distribution is as close to it (to the product, of several) as
            the margins allow. Cells of 0 stay 0. An array has one axis per variable.
        impossible : list of mappings
            Combinations of states that cannot be, such as ``{"age": "0-15", "married": "yes"}``.
        entropy_weight : float, optional
            Weight of the entropy against noise in a single fit: 1 is the likelihood's scale, which over-smooths, 0.01
            is near least squares. By default the weight goes by the noise and sixteen fits follow each other, each with
            the last one for a base: counts above the noise are fitted, those below it are left to the entropy.
        callback : callable, optional
            Sees a :class:`Progress` after every iteration; returning True stops learning.

        Examples
        --------
        >>> import bactrian as bt
        >>> margins = [bt.Marginal("sex", [40, 60]), bt.Marginal(("sex", "smoker"), [[30, 10], [30, 30]])]
        >>> field = bt.MarkovRandomField(method="auto").fit_marginals(margins, {"sex": ["f", "m"], "smoker": 2})
        >>> field.marginal(("smoker", "sex")).round(3)
        array([[0.3, 0.3],
               [0.1, 0.3]])
        """
        self.check_params()
        check_number("entropy_weight", entropy_weight, positive=True, below=np.inf, optional=True)
        checked = check_margins(margins, cardinalities, total, base, impossible)
        options = FitOptions(
            self.tolerance, self.max_iterations, self.max_seconds, self.n_threads, self.seed, callback=callback
        )
        found = fit_margins(checked, self.method, entropy_weight, self.memory_budget, options)
        return self._adopt_margins(checked.variables, found)

    def fit_zones(
        self,
        zones: Sequence[Sequence[Marginal]],
        cardinalities: Mapping[str, Any] | None = None,
        *,
        base: Any = None,
        impossible: Sequence[Mapping[str, Any]] = (),
        entropy_weight: float | None = None,
    ) -> Zones:
        """Fit a field to the margins of each of many zones, which are over the same variables in every zone.

        The junction tree is planned once, zones are fitted side by side, on ``n_threads`` threads. Each is fitted as by
        :meth:`fit_marginals`, to its own total; the field itself is left as it is.

        Parameters
        ----------
        zones : list of lists of Marginal
            One list per zone, over the same names in the same order.
        cardinalities, base, impossible, entropy_weight
            See :meth:`fit_marginals`; they are the same for all zones.

        Returns
        -------
        Zones
            A sequence of fitted fields, made when asked for.
        """
        self.check_params()
        check_number("entropy_weight", entropy_weight, positive=True, below=np.inf, optional=True)
        if self.method not in ("auto", "exact"):
            raise ArgumentError("method", f"must be 'auto' or 'exact' for zones, found {self.method!r}")
        checked = check_zones(zones, cardinalities, base, impossible)
        options = FitOptions(self.tolerance, self.max_iterations, self.max_seconds, 1, self.seed)
        found = fit_all(checked, entropy_weight, self.memory_budget, options, self.n_threads)
        template = self.__class__(**{**self.get_params(deep=False), "method": "exact"})
        return Zones(checked, found, lambda z: clone(template)._adopt_margins(checked[z].variables, found[z]))

    def _adopt_margins(self, variables: Variables, found: MarginFit) -> Self:
        """Take up what was learned from margins."""
        self._keep_margins(variables, found.problem, found.model, found.cells)
        self.residuals_, self.total_ = found.residuals, found.problem.total
        self.solution_, self.weights_, self.method_ = found.solution, found.solution.weights.copy(), found.method
        self.prior_variance_ = None
        return self

    def _keep(
        self, tables: str, model: LogLinearModel, edges: Ints, variables: Variables, frames: str | None = None
    ) -> None:
        """See :class:`Field`."""
        super()._keep(tables, model, edges, variables, frames)
        self._margins = None

    def _keep_margins(self, variables: Variables, problem: MarginProblem, model: LogLinearModel, cells: Floats) -> None:
        self._keep(MARGINS, model, np.zeros((0, 2), dtype=np.int64), variables)
        self._margins = _Margins(problem, problem.split(cells))

    def _marginal(self, scope: Scope, given: Mapping[int, int] | None) -> Floats:
        """See :class:`Field`; what fitted margins hold is read off them, and on regions the rest is put together."""
        if self._margins is None or (given and not self._on_regions):
            return super()._marginal(scope, given)
        evidence = checked_evidence(given, self.cardinalities_, "given")
        asked = (*scope, *(v for v in evidence if v not in scope))
        known: dict[Scope, Floats] = {}
        tables = zip(self._margins.problem.scopes, self._margins.fitted, strict=True)
        for of, table in sorted(tables, key=lambda pair: -len(set(pair[0]) & set(asked))):
            common = tuple(v for v in asked if v in of)
            if common and not any(set(common) <= set(larger) for larger in known):
                known[common] = projected(table, of, common)
        if asked in known:
            joint = known[asked]
        elif self._on_regions:
            joint = joint_of(self.cardinalities_, asked, known)
        else:
            return super()._marginal(scope, given)
        seen = np.zeros_like(joint)
        at = tuple(evidence.get(v, slice(None)) for v in asked)
        seen[at] = joint[at]
        if not seen.sum() > 0.0:
            raise ArgumentError("given", "has probability 0")
        return projected(seen / seen.sum(), asked, scope)

    def _tables_to_match(self) -> tuple[Sequence[Scope], list[Floats]]:
        """See :class:`Field`."""
        if self._margins is None:
            return super()._tables_to_match()
        return self._margins.problem.scopes, self._margins.fitted

    def _margin_contents(self) -> tuple[dict[str, Any], Arrays]:
        """What a file holds of margins."""
        if self._margins is None:
            return {}, {}
        problem = self._margins.problem
        kept = {
            "scopes": [list(scope) for scope in problem.scopes],
            "base": [list(scope) for scope, _ in problem.base],
            "total": problem.total,
        }
        arrays: Arrays = {
            "forbidden": problem.forbidden.astype(np.int64),
            "fitted": np.concatenate([table.ravel() for table in self._margins.fitted]),
            **{f"base.{i}": table for i, (_, table) in enumerate(problem.base)},
        }
        return {"margins": kept}, arrays

    def _restore_margins(self, cardinalities: Ints, attributes: dict[str, Any], arrays: Arrays) -> None:
        kept = attributes["margins"]
        scopes = Domain(cardinalities, kept["scopes"]).clusters
        base_scopes = Domain(cardinalities, kept["base"]).clusters
        cells = self.weights_.size
        problem = MarginProblem(
            cardinalities=cardinalities,
            scopes=scopes,
            observed=np.zeros(cells),
            precision=np.zeros(cells),
            forbidden=arrays["forbidden"].astype(np.bool_),
            total=float(kept["total"]),
            base=tuple((scope, arrays[f"base.{i}"]) for i, scope in enumerate(base_scopes)),
        )
        if not problem.bounds[-1] == cells == problem.forbidden.size == arrays["fitted"].size:
            raise ValueError(f"it has {cells} weights, which do not fit its margins")
        variables = restored_variables(cardinalities, attributes)
        model = problem.model(problem.graph(regions=self.method_ != "exact"))
        self._keep_margins(variables, problem, model, arrays["fitted"])
        self.total_ = problem.total


# --- many zones ---


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

    def __iter__(self) -> Iterator[Any]:
        return (self[z] for z in range(len(self)))

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
        if (checked[z].scopes, checked[z].variables) != (checked[0].scopes, checked[0].variables):
            listed = [margin.names for margin in checked[0].margins]
            raise ArgumentError("zones", f" must have the margins of zones[0] in the same order: {listed}", z)
    return checked


def fit_all(
    checked: Sequence[CheckedMargins],
    entropy_weight: float | None,
    memory_budget: int,
    options: FitOptions,
    n_threads: int | None,
) -> list[MarginFit]:
    """Fit every zone on the junction tree that all share; zones that contradict themselves by themselves."""
    problems = [zone.problem(entropy_weight, nearest=not zone.is_consistent) for zone in checked]
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
            residuals = zone.residuals(problem.split(done[1]), zone.contradictions)
            found.append(MarginFit(problem, graph, done[0], "exact", done[1], residuals))
    _warn(found)
    return found


def _warn(found: Sequence[MarginFit]) -> None:
    short = [z for z, fit in enumerate(found) if not fit.solution.converged]
    if short:
        first = f"zones[{short[0]}]: {found[short[0]].solution.status}"
        warnings.warn(f"{len(short)} of {len(found)} zones stopped short; {first}", ConvergenceWarning, stacklevel=4)
    apart = [z for z, fit in enumerate(found) if fit.residuals.contradictions]
    if apart:
        first = f"zones[{apart[0]}]: {found[apart[0]].residuals.contradictions[0]}"
        said = f"margins of {len(apart)} of {len(found)} zones contradict each other; {first}"
        warnings.warn(said, ContradictionWarning, stacklevel=4)
