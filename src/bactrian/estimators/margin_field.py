"""A field that is learned from margins, where there are no rows: the distribution of maximum entropy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Self

import numpy as np
from sklearn.base import clone

from bactrian.arrays import Arrays, Floats, Ints
from bactrian.errors import ArgumentError
from bactrian.estimators.fields import Field
from bactrian.frames import Variables, restored_variables
from bactrian.graphs.graph import Domain, Scope
from bactrian.graphs.loglinear import LogLinearModel
from bactrian.inference.problem import checked_evidence
from bactrian.margins.fit import MarginFit, Residuals, fit_margins
from bactrian.margins.given import Marginal, check_entropy_weight, check_margins, projected
from bactrian.margins.problem import FitOptions, MarginProblem
from bactrian.margins.tree import joint_of
from bactrian.margins.zones import Zones, check_zones, fit_all_zones
from bactrian.solvers.solution import Callback

#: What ``tables_`` of a field says that was learned from margins.
MARGINS = "margins"
#: Entries of a table of evidence and another variable, up to which it is put together: 15 ms.
_LARGEST_TABLE = 10_000


@dataclass(kw_only=True, eq=False, repr=False)
class MarginField(Field):
    """Base of :class:`bactrian.MarkovRandomField`: learning from margins, and reading answers off them."""

    residuals_: Residuals = field(init=False)
    total_: float = field(init=False)

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
        """Learn the distribution of maximum entropy from tables of counts, without rows.

        Exact margins that agree are met to a thousandth of ``tolerance``, as by iterative proportional fitting. If
        margins contradict each other, a :class:`ContradictionWarning` and ``residuals_`` name them, and the nearest
        distribution, by least squares, is learned. Noisy margins are weighted by their variances. The clusters of the
        model are the margins; ``edges``, ``tables``, ``prior_variance`` and ``l1`` have no effect.
        :mod:`bactrian.margins.problem` has the formulas.

        Parameters
        ----------
        margins : list of Marginal
            In any order; they may overlap.
        cardinalities : mapping, optional
            Number of states, or list of their labels, of each variable by its name; by default as many as the margins
            have.
        total : float, optional
            Number of rows; by default the sum of exact margins, or the best estimate from noisy ones.
        base : Marginal, list of them, or array, optional
            The seed table of proportional fitting: the distribution is as close to it (to the product, of several) as
            the margins allow. Cells of 0 stay 0. An array has one axis per variable.
        impossible : list of mappings
            Combinations of states that are ruled out, such as ``{"age": "0-15", "married": "yes"}``.
        entropy_weight : float, optional
            Weight of the entropy against noise in a single fit: 1 is the likelihood's scale, which over-smooths; 0.01
            is close to least squares. By default the weight depends on the noise, and sixteen fits (eight on a region
            graph) follow each other, each with the last one as its base: they fit counts above the noise and leave
            those below it to the entropy. This is nearer to the truth, both on the given sets and on others.
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
        check_entropy_weight(entropy_weight)
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
        """Fit a field to each of many zones, whose margins are over the same variables.

        The junction tree is planned once, and zones are fitted in parallel on ``n_threads`` threads. Each is fitted as
        by :meth:`fit_marginals`, to its own total; the field itself does not change.

        Parameters
        ----------
        zones : list of lists of Marginal
            One list per zone, over the same names in the same order.
        cardinalities, base, impossible, entropy_weight
            See :meth:`fit_marginals`; they are the same for all zones.

        Returns
        -------
        Zones
            A sequence of fitted fields, built on access.
        """
        self.check_params()
        check_entropy_weight(entropy_weight)
        if self.method not in ("auto", "exact"):
            raise ArgumentError("method", f"must be 'auto' or 'exact' for zones, found {self.method!r}")
        checked = check_zones(zones, cardinalities, base, impossible)
        options = FitOptions(self.tolerance, self.max_iterations, self.max_seconds, 1, self.seed)
        found = fit_all_zones(checked, entropy_weight, self.memory_budget, options, self.n_threads)
        template = self.__class__(**{**self.get_params(deep=False), "method": "exact"})
        return Zones(checked, found, lambda z: clone(template)._adopt_margins(checked[z].variables, found[z]))

    def _adopt_margins(self, variables: Variables, found: MarginFit) -> Self:
        """Take up what was learned from margins."""
        self._keep_margins(variables, found.problem, found.model, found.cells)
        self.residuals_, self.total_ = found.residuals, found.problem.total
        self.solution_, self.weights_, self.method_ = found.solution, found.solution.weights.copy(), found.method
        self.prior_variance_ = None
        self.__dict__.pop("prior_scores_", None)
        return self

    def _keep_margins(self, variables: Variables, problem: MarginProblem, model: LogLinearModel, cells: Floats) -> None:
        self._keep(MARGINS, model, np.zeros((0, 2), dtype=np.int64), variables)
        self._margins = problem, problem.split(cells)

    def _margin_contents(self) -> tuple[dict[str, Any], Arrays]:
        """What a file holds of margins."""
        if self._margins is None:
            return {}, {}
        problem, fitted = self._margins
        kept = {
            "scopes": [list(scope) for scope in problem.scopes],
            "base": [list(scope) for scope, _ in problem.base],
            "total": problem.total,
        }
        arrays: Arrays = {
            "forbidden": problem.forbidden.astype(np.int64),
            "fitted": np.concatenate([table.ravel() for table in fitted]),
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

    # --- what margins answer ---

    def _conditionals(self, evidence: list[Any], wanted: Iterable[int] | None = None) -> list[dict[int, Floats]]:
        """On regions what the margins say, as :meth:`marginal` does, unless there is too much evidence for a table."""
        if not self._on_regions:
            return super()._conditionals(evidence, wanted)
        chosen, graph = range(self.cardinalities_.size) if wanted is None else list(wanted), self.model_.graph
        given = [checked_evidence(one, self.cardinalities_, "evidence") for one in evidence]
        fits = [graph.size(tuple(seen)) * self.cardinalities_.max() <= _LARGEST_TABLE for seen in given]
        others = [seen for seen, small in zip(given, fits, strict=True) if not small]
        rest = iter(super()._conditionals(others, chosen) if others else ())
        joint = cache(self._joint)  # that of all evidence on the same variables
        return [
            {v: _given(joint(tuple(sorted({v, *seen}))), (v,), seen, "evidence") for v in chosen}
            if small
            else next(rest)
            for seen, small in zip(given, fits, strict=True)
        ]

    def _marginal(self, scope: Scope, given: Mapping[int, int] | None) -> Floats:
        """The marginal of ``scope`` given evidence: what fitted margins hold is read off them.

        The rest is put together on regions, and elsewhere exact, or by conditioning.
        """
        if self._margins is None or (given and not self._on_regions):
            return super()._marginal(scope, given)
        evidence = checked_evidence(given, self.cardinalities_, "given")
        asked, joint = self._joint((*scope, *(v for v in evidence if v not in scope)))
        return super()._marginal(scope, given) if joint is None else _given((asked, joint), scope, evidence, "given")

    def _joint(self, asked: Scope) -> _Joint:
        """The table over ``asked`` that margins hold, or on regions that is put together of them; else None."""
        assert self._margins is not None
        known: dict[Scope, Floats] = {}
        tables = zip(self._margins[0].scopes, self._margins[1], strict=True)
        for of, table in sorted(tables, key=lambda pair: -len(set(pair[0]) & set(asked))):
            common = tuple(v for v in asked if v in of)
            if common and not any(set(common) <= set(larger) for larger in known):
                known[common] = projected(table, of, common)
        if asked in known:
            return asked, known[asked]
        return asked, joint_of(self.cardinalities_, asked, known) if self._on_regions else None


_Joint = tuple[Scope, Floats | None]


def _given(joint: _Joint, scope: Scope, evidence: Mapping[int, int], name: str) -> Floats:
    """The marginal of some variables of a table given the states of others, which an error calls ``name``."""
    asked, table = joint
    assert table is not None
    seen = np.zeros_like(table)
    at = tuple(evidence.get(v, slice(None)) for v in asked)
    seen[at] = table[at]
    if not seen.sum() > 0.0:
        raise ArgumentError(name, "has probability 0")
    return projected(seen / seen.sum(), asked, scope)
