"""Exact inference: two sweeps of messages on trees, a junction tree elsewhere.

Evidence is cut out of the tables before variables are eliminated, so that observed ones cost nothing: a factor is read
with the strides of its free variables, from where its observed ones stand.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from bactrian.arrays import Bools, Floats
from bactrian.camel.entropy import carve
from bactrian.engines.memory import MemoryPart
from bactrian.engines.numba.junction import Places, TreePlan, calibrate_rows, fill_maps
from bactrian.engines.numba.layout import Layout
from bactrian.engines.numba.schedules import CONVERGED
from bactrian.graphs.elimination import JunctionTree, MemoryBudgetError
from bactrian.graphs.graph import strides
from bactrian.graphs.junction import FactorTree, TreePlanner
from bactrian.graphs.packed import TableReader, instance_of
from bactrian.graphs.ragged import pointer
from bactrian.inference.problem import Evidence, Problem, contradiction
from bactrian.inference.propagation import BeliefReader, check_contradictions, new_progress, sequential
from bactrian.inference.result import InferenceResult

#: Most entries of a pool: this number, or this fraction of its clique's, unless a single factor has more.
_SMALL_POOL, _POOL_PART = 256, 512
#: Entries of a clique's table that are worked out together, which a processor keeps at hand.
_TILE = 2048
#: States of the variables over which a tree that does not fit is summed at most, and how much too large it may be.
_MOST_CUT, _NEAR = 64, 16


def exact(problem: Problem) -> list[InferenceResult]:
    """Exact marginals and log-partition of every instance."""
    found, refused = eliminations(problem)
    for error in refused.values():
        raise error
    return [result for result in solve(problem, found, np.zeros(1, dtype=np.bool_)) if result is not None]


def solve(problem: Problem, found: dict[int, Elimination], late: Bools) -> list[InferenceResult | None]:
    """Results by these eliminations, and on trees by two sweeps; None for other instances, and where time is up."""
    data, layout = problem.data, problem.data.layout
    others = sorted(found)
    swept = _swept(problem)
    carving = carve(data, "bethe").whole
    messages = problem.messages(carving)
    progress = new_progress(problem, carving)
    progress.status[~swept] = CONVERGED
    if swept.any():
        sequential(problem, messages, progress, 0.0)(2)
        check_contradictions(problem, progress)
    values = messages.beliefs.value.copy()
    values[~swept] = np.nan
    beliefs: dict[int, Floats] = {}
    tables = messages.tables

    def task(_: int, first: int, last: int) -> None:
        for m in others[first:last]:
            values[m], beliefs[m] = found[m].calibrated(tables.log_entries, tables.hub_scores, late)

    largest = max((8 * elimination.tree.message_entries for elimination in found.values()), default=0)
    together = largest * problem.workers.n_threads <= problem.options.memory_budget
    problem.workers.run(task, np.arange(len(others) + 1) if together else np.array([0, len(others)]))
    for impossible in np.flatnonzero(values == -np.inf):
        raise contradiction(int(impossible), problem.many, problem.evidence)
    reader = ExactReader(messages, found, beliefs)
    ended: dict[str, Any] = {"converged": True, "iterations": 2, "method": "exact", "status": "converged"}
    updates = [
        int(progress.updates[m]) if swept[m] else 2 * len(found[m].tree.edges) if m in found else 0
        for m in range(layout.n_instances)
    ]
    return [
        None if np.isnan(values[m]) else problem.result(reader, m, values[m], updates=n, bound="exact", **ended)
        for m, n in enumerate(updates)
    ]


def _swept(problem: Problem) -> Bools:
    """(M,) instances without loops, on which two sweeps are exact."""
    data = problem.data
    return data.layout.instance_is_tree & (True if data.explicit is None else ~data.explicit)


class Elimination:
    """The junction tree of one instance, whose factors' scores lie one after the other: tables, then states of hubs.

    It is summed over the states of the variables of ``cut``, which are in no clique. Behind hubs come ``further``
    factors of single variables, where the tree has more scopes.
    """

    def __init__(
        self, layout: Layout, instance: int, factors: FactorTree, plan: TreePlan, pooled: list[int],
        evidence: Evidence, cut: Sequence[int],
    ) -> None:  # fmt: skip
        tables = layout.cluster_table[slice(*layout.instance_clusters[instance : instance + 2])]
        hub_offset = layout.hub_offset[slice(layout.instance_hubs[instance], layout.instance_hubs[instance + 1] + 1)]
        self._table_start = layout.table_offset[tables]
        self._table_sizes = layout.table_offset[tables + 1] - self._table_start
        self._hub_states = slice(int(hub_offset[0]), int(hub_offset[-1]))
        own = np.concatenate([self._table_sizes, np.diff(hub_offset)])
        further = [factors.sizes[v] for (v,) in factors.scopes[own.size :]]
        self.start = pointer(np.concatenate([own, np.array(further, dtype=np.int64)]))  #: of each factor, and the end
        self.n_own = int(self.start[own.size])  #: where further factors start
        self._steps = [strides(scope, factors.sizes) for scope in factors.scopes]
        self.factors, self.tree = factors, factors.tree
        self.uncut = factors.tree  #: the best tree with the variables of the cut
        self._plan, self._pooled, self._evidence, self.cut = plan, pooled, evidence, cut
        self._is_constant = np.array(self.tree.assignment) < 0  # without a free variable

    @property
    def entries(self) -> float:
        """Entries of cliques that are worked out."""
        return float(self.tree.table_entries) * math.prod(self.factors.sizes[v] for v in self.cut)

    def calibrated(
        self, entries: Floats, hub_scores: Floats, late: Bools, further: Floats | None = None
    ) -> tuple[float, Floats]:
        """log Z, and the marginals of all factors, in this order, from the scores of all instances; NaN: it is late."""
        moved = np.repeat(self._table_start - self.start[: self._table_start.size], self._table_sizes)
        own = entries[np.arange(moved.size) + moved], hub_scores[self._hub_states]
        scores = np.concatenate(own if further is None else [*own, further])
        total, beliefs = -np.inf, np.zeros(scores.size)
        for states in product(*(range(self.factors.sizes[v]) for v in self.cut)):
            seen = {**self._evidence, **dict(zip(self.cut, states, strict=True))}
            value, found = self._at(scores, seen, late)
            if math.isnan(value):
                return value, beliefs
            if value > -np.inf:
                before, total = total, float(np.logaddexp(total, value))
                beliefs = math.exp(before - total) * beliefs + math.exp(value - total) * found if self.cut else found
        return total, beliefs

    def _at(self, scores: Floats, seen: Evidence, late: Bools) -> tuple[float, Floats]:
        """The same at one state of the cut; factors are read where observed states are, free variables at 0."""
        at = [sum(stride * seen.get(v, 0) for v, stride in step.items()) for step in self._steps]
        source = self.start[:-1] + np.array(at, dtype=np.int64)
        constants, beliefs = source[self._is_constant], np.zeros(scores.size)
        constant = float(scores[constants].sum())
        if constant == -np.inf:
            return constant, beliefs
        value = np.empty(1)
        plan = self._plan._replace(factor_source=source[self._pooled])
        calibrate_rows(plan, scores[None], beliefs[None], value, 0, 1, late)
        beliefs[constants] = 1.0
        return constant + float(value[0]), beliefs


def eliminations(problem: Problem, **options: Any) -> tuple[dict[int, Elimination], dict[int, MemoryBudgetError]]:
    """Junction trees of instances with loops, and why others have none; ``options`` of :func:`junction_tree`.

    Those with the same scopes and the same observed variables share a plan.
    """
    planner = TreePlanner(problem.data, problem.options.memory_budget, whole=False, **options)
    plans: dict[FactorTree, tuple[TreePlan, list[int]]] = {}
    found, refused = {}, {}
    for m in np.flatnonzero(~_swept(problem)).tolist():
        try:
            factors, cut, uncut = _with_cut(planner, m, problem.evidence[m])
        except MemoryBudgetError as error:
            refused[m] = error
            continue
        if factors not in plans:
            plans[factors] = tree_plan(factors)
        found[m] = Elimination(problem.data.layout, m, factors, *plans[factors], problem.evidence[m], cut)
        found[m].uncut = uncut
    return found, refused


def _with_cut(planner: TreePlanner, instance: int, evidence: Evidence) -> tuple[FactorTree, list[int], JunctionTree]:
    """A junction tree that fits, the few variables over whose states it must be summed, and the tree with these."""
    cut: list[int] = []
    states = 1
    refused: MemoryBudgetError | None = None
    while states <= _MOST_CUT:
        try:
            factors = planner.tree(instance, [*evidence, *cut])
            return factors, cut, factors.tree if refused is None or refused.tree is None else refused.tree
        except MemoryBudgetError as error:
            refused = refused or error
            if error.tree is None or error.needed > _NEAR * error.budget:
                break
            sizes = planner.sizes(instance)
            weight: dict[int, float] = {}
            for scope in [sepset for _, _, sepset in error.tree.edges] or error.tree.cliques:
                for v in scope:
                    weight[v] = weight.get(v, 0.0) + math.prod(sizes[u] for u in scope) * (1.0 - 1.0 / sizes[v])
            best = max(weight, key=lambda v: weight[v])
            cut.append(best)
            states *= sizes[best]
    assert refused is not None
    raise refused


class ExactReader(BeliefReader):
    """Marginals of clusters and hubs: of trees from their messages, of other instances from their junction trees."""

    def __init__(self, messages: MemoryPart, eliminations: dict[int, Elimination], beliefs: dict[int, Floats]) -> None:
        super().__init__(messages)
        self._eliminations, self._beliefs, layout = eliminations, beliefs, self._layout
        for m, found in beliefs.items():
            states = slice(*layout.hub_offset[layout.instance_hubs[m : m + 2]])
            self._hub_beliefs[states] = found[found.size - (states.stop - states.start) :]

    def cluster(self, index: int) -> Floats:
        """See :class:`TableReader`."""
        m = instance_of(self._layout.instance_clusters, index)
        if m not in self._eliminations:
            return super().cluster(index)
        factor = index - int(self._layout.instance_clusters[m])
        return self._beliefs[m][slice(*self._eliminations[m].start[factor : factor + 2])].copy()

    def pairs(self, first: int, last: int) -> Floats:
        """See :class:`TableReader`; the pairs are of one instance."""
        swept = instance_of(self._layout.instance_clusters, first) not in self._eliminations
        return super().pairs(first, last) if swept else TableReader.pairs(self, first, last)


def tree_plan(factors: FactorTree) -> tuple[TreePlan, list[int]]:
    """Index arrays (factor sources not yet known) and the factors in the order in which pools take them.

    Variables are ranked in the reverse of the order in which they first appear on the way from the roots, and every
    table has its axes in that order. What a clique does not share with its parent then comes first, and the sepset's
    table is a contiguous block that repeats through the clique's.
    """
    sizes, scopes, tree = factors.sizes, factors.scopes, factors.tree
    rank = _ranks(tree)
    cliques = [sorted((v for v in clique if sizes[v] > 1), key=rank.__getitem__) for clique in tree.cliques]
    taken: list[list[int]] = [[] for _ in cliques]
    for f, q in enumerate(tree.assignment):
        if q >= 0:
            taken[q].append(f)
    free = [{v for v in scope if v in rank} for scope in scopes]
    pools = [_pool(members, free, sizes, _size(clique, sizes)) for members, clique in zip(taken, cliques, strict=True)]
    pool_scopes = [sorted(scope, key=rank.__getitem__) for group in pools for scope, _ in group]
    pool_members = [members for group in pools for _, members in group]
    pool_clique = [q for q, group in enumerate(pools) for _ in group]
    sepsets = [sorted(sepset, key=rank.__getitem__) for _, _, sepset in tree.edges]
    children, parents = [child for child, _, _ in tree.edges], [parent for _, parent, _ in tree.edges]
    views = _Views(sizes, cliques)
    tables = [*pool_scopes, *sepsets]
    for scope, q in zip([*tables, *sepsets], [*pool_clique, *children, *parents], strict=True):
        views.add(q, strides(scope, sizes))
    members: list[list[tuple[int, int, int]]] = [[] for _ in cliques]  # level, table and view
    for table, q in enumerate([*pool_clique, *parents]):
        view = table if table < len(pool_scopes) else table + len(sepsets)
        members[q].append((views.level[view], table, view))
    for scope, group in zip(pool_scopes, pool_members, strict=True):
        for f in group:
            views.add_map(scope, strides(scopes[f], sizes), _size(scope, sizes))
    ordered = [member for each in members for member in sorted(each)]
    pooled = [f for group in pool_members for f in group]
    plan = TreePlan(
        table_offset=pointer([_size(scope, sizes) for scope in tables]),
        pool_factors=pointer([len(group) for group in pool_members]),
        factor_source=np.zeros(len(pooled), dtype=np.int64),
        child=np.array(children, dtype=np.int64),
        parent=np.array(parents, dtype=np.int64),
        tile=np.array([_size(inner, sizes) for inner in views.inner], dtype=np.int64),
        outer=pointer([len(outer) for outer in views.outer]),
        outer_dims=np.array([sizes[v] for outer in views.outer for v in outer], dtype=np.int64),
        clique_members=pointer([len(each) for each in members]),
        member_table=np.array([table for _, table, _ in ordered], dtype=np.int64),
        member_view=np.array([view for _, _, view in ordered], dtype=np.int64),
        level=np.array(views.level, dtype=np.int64),
        kind=np.array(views.kind, dtype=np.int64),
        view_steps=np.array(views.first_step, dtype=np.int64),
        steps=np.array(views.steps, dtype=np.int64),
        map_offset=pointer(views.map_sizes),
        maps=views.maps(),
    )
    return plan, pooled


def _pool(factors: list[int], free: list[set[int]], sizes: list[int], entries: int) -> list[tuple[set[int], list[int]]]:
    """Factors of a clique with ``entries`` states in groups whose joint scope stays small; at least one group."""
    limit = max(_SMALL_POOL, entries // _POOL_PART)
    pools: list[tuple[set[int], list[int]]] = []
    for f in sorted(factors, key=lambda f: -_size(free[f], sizes)):
        for scope, members in pools:
            if free[f] <= scope or _size(scope | free[f], sizes) <= limit:
                scope |= free[f]
                members.append(f)
                break
        else:
            pools.append((set(free[f]), [f]))
    return pools or [(set(), [])]


def _ranks(tree: JunctionTree) -> dict[int, int]:
    """Free variables in the reverse of the order in which they first appear from the roots down."""
    rank: dict[int, int] = {}
    for q, _ in tree.downwards:
        for v in tree.cliques[q]:
            rank.setdefault(v, -len(rank))
    return rank


def _size(scope: Iterable[int], sizes: list[int]) -> int:
    return math.prod([sizes[v] for v in scope])


class _Views:
    """How smaller tables lie in cliques, whose last axes are those of a tile, and factors in pools."""

    def __init__(self, sizes: list[int], cliques: list[list[int]]) -> None:
        self._sizes = sizes
        self.outer: list[list[int]] = []  #: axes of each clique but those of a tile
        self.inner: list[list[int]] = []
        for clique in cliques:
            first = max(len(clique) - 1, 0)
            while first > 0 and _size(clique[first - 1 :], sizes) <= _TILE:
                first -= 1
            self.outer.append(clique[:first])
            self.inner.append(clique[first:])
        self.level: list[int] = []
        self.kind: list[int] = []
        self.first_step: list[int] = []
        self.steps: list[int] = []
        self.map_sizes: list[int] = []
        self._bounds, self._dims, self._strides = [0], list[int](), list[int]()

    def add(self, clique: int, strides: Mapping[int, int]) -> None:
        """Add the view of a table with these strides in a clique."""
        outer, inner = self.outer[clique], self.inner[clique]
        steps = [strides.get(v, 0) for v in outer]
        self.first_step.append(len(self.steps))
        self.steps += steps
        self.level.append(max((axis + 1 for axis, step in enumerate(steps) if step), default=0))
        shared = sum(v in strides for v in inner)
        self.kind.append(0 if shared == 0 else 1 if shared == len(inner) else 2)
        self.add_map(inner, strides, _size(inner, self._sizes) if 0 < shared < len(inner) else 0)

    def add_map(self, scope: Sequence[int], strides: Mapping[int, int], size: int) -> None:
        """Add a map of a table with these strides from one over ``scope``, whose ``size`` is 0 where it is not used."""
        self.map_sizes.append(size)
        if size:
            axes = [v for v in scope if self._sizes[v] > 1]
            self._dims += [self._sizes[v] for v in axes]
            self._strides += [strides.get(v, 0) for v in axes]
        self._bounds.append(len(self._dims))

    def maps(self) -> Places:
        """All maps, one after the other."""
        found = np.empty(sum(self.map_sizes), dtype=np.uint32)
        bounds, dims, steps = (np.array(each, dtype=np.int64) for each in (self._bounds, self._dims, self._strides))
        fill_maps(bounds, dims, steps, pointer(self.map_sizes), found)
        return found
