"""Exact inference: two sweeps of messages on trees, a junction tree elsewhere.

Evidence is cut out of the tables before variables are eliminated, so that observed ones cost nothing: a factor is read
with the strides of its free variables, from where its observed ones stand.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from bactrian.arrays import Floats
from bactrian.camel.entropy import carve
from bactrian.engines.memory import MemoryPart
from bactrian.engines.numba.junction import TreePlan, calibrate_rows
from bactrian.engines.numba.layout import Layout
from bactrian.engines.numba.schedules import CONVERGED
from bactrian.graphs.elimination import JunctionTree
from bactrian.graphs.graph import strides
from bactrian.graphs.junction import FactorTree, TreePlanner
from bactrian.graphs.packed import TableReader, instance_of
from bactrian.graphs.ragged import pointer
from bactrian.inference.evidence import Evidence, contradiction
from bactrian.inference.problem import Problem
from bactrian.inference.propagation import BeliefReader, sequential
from bactrian.inference.result import InferenceResult
from bactrian.inference.rounds import check_contradictions, new_progress

#: Most entries of a pool: this number, or this fraction of its clique's, unless a single factor has more.
_SMALL_POOL, _POOL_PART = 256, 32


def exact(problem: Problem) -> list[InferenceResult]:
    """Exact marginals and log-partition of every instance."""
    data, layout = problem.data, problem.data.layout
    swept = layout.instance_is_tree & (True if data.explicit is None else ~data.explicit)
    others = np.flatnonzero(~swept).tolist()
    eliminations = _eliminations(problem, others)
    carving = carve(data, "bethe").whole
    messages = problem.messages(carving)
    progress = new_progress(problem, carving)
    progress.status[others] = CONVERGED
    if swept.any():
        sequential(problem, messages, progress, 0.0)(2)
        check_contradictions(problem, progress)
        messages.pass_messages()
    values = messages.beliefs.value.copy()
    beliefs: dict[int, Floats] = {}

    def task(_: int, first: int, last: int) -> None:
        for m in others[first:last]:
            values[m], beliefs[m] = eliminations[m].calibrated(messages.tables.log_entries, messages.tables.hub_scores)

    largest = max((8 * elimination.tree.table_entries for elimination in eliminations.values()), default=0)
    together = largest * problem.workers.n_threads <= problem.options.memory_budget
    problem.workers.run(task, np.arange(len(others) + 1) if together else np.array([0, len(others)]))
    for impossible in np.flatnonzero(values == -np.inf):
        raise contradiction(int(impossible), problem.many, problem.evidence)
    reader = _ExactReader(messages, eliminations, beliefs)
    ended: dict[str, Any] = {
        "converged": True, "iterations": 2, "method": "exact", "status": "converged", "bound": "exact",
    }  # fmt: skip
    updates = [
        int(progress.updates[m]) if swept[m] else 2 * len(eliminations[m].tree.edges) for m in range(layout.n_instances)
    ]
    return [problem.result(reader, m, values[m], updates=n, **ended) for m, n in enumerate(updates)]


class _Elimination:
    """The junction tree of one instance, whose factors' scores lie one after the other: tables, then states of hubs."""

    def __init__(
        self, layout: Layout, instance: int, factors: FactorTree, plan: TreePlan, pooled: list[int], evidence: Evidence
    ) -> None:
        tables = layout.cluster_table[slice(*layout.instance_clusters[instance : instance + 2])]
        hub_offset = layout.hub_offset[slice(layout.instance_hubs[instance], layout.instance_hubs[instance + 1] + 1)]
        self._table_start = layout.table_offset[tables]
        self._table_sizes = layout.table_offset[tables + 1] - self._table_start
        self._hub_states = slice(int(hub_offset[0]), int(hub_offset[-1]))
        self.start = pointer(np.concatenate([self._table_sizes, np.diff(hub_offset)]))  #: of each factor, and the end
        self.tree = factors.tree
        # Where each factor's observed states are, its free variables at 0.
        steps = (strides(scope, factors.sizes) for scope in factors.scopes)
        seen = [sum(stride * evidence.get(v, 0) for v, stride in step.items()) for step in steps]
        source = self.start[:-1] + np.array(seen, dtype=np.int64)
        self._constants = source[np.array(self.tree.assignment) < 0]  # of factors without a free variable
        self._plan = plan._replace(factor_source=source[pooled])

    def calibrated(self, entries: Floats, hub_scores: Floats) -> tuple[float, Floats]:
        """log Z, and the marginals of all factors, in this order, from the scores of all instances."""
        moved = np.repeat(self._table_start - self.start[: self._table_start.size], self._table_sizes)
        scores = np.concatenate([entries[np.arange(moved.size) + moved], hub_scores[self._hub_states]])
        beliefs = np.zeros(scores.size)
        constant = float(scores[self._constants].sum())
        if constant == -np.inf:
            return constant, beliefs
        value = np.empty(1)
        calibrate_rows(self._plan, scores[None], beliefs[None], value, 0, 1)
        beliefs[self._constants] = 1.0
        return constant + float(value[0]), beliefs


def _eliminations(problem: Problem, instances: list[int]) -> dict[int, _Elimination]:
    """Junction trees of some instances; those with the same scopes and the same observed variables share a plan."""
    planner = TreePlanner(problem.data, problem.options.memory_budget)
    plans: dict[FactorTree, tuple[TreePlan, list[int]]] = {}
    found = {}
    for m in instances:
        factors = planner.tree(m, problem.evidence[m].keys())
        if factors not in plans:
            plans[factors] = tree_plan(factors)
        found[m] = _Elimination(problem.data.layout, m, factors, *plans[factors], problem.evidence[m])
    return found


class _ExactReader(BeliefReader):
    """Marginals of clusters and hubs: of trees from their messages, of other instances from their junction trees."""

    def __init__(self, messages: MemoryPart, eliminations: dict[int, _Elimination], beliefs: dict[int, Floats]) -> None:
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
    table is a contiguous block that repeats through the clique's: both messages of an edge run through memory in long
    stretches.
    """
    sizes, scopes, tree = factors.sizes, factors.scopes, factors.tree
    rank = _ranks(tree)
    cliques = [sorted(clique, key=rank.__getitem__) for clique in tree.cliques]
    taken: list[list[int]] = [[] for _ in cliques]
    for f, q in enumerate(tree.assignment):
        if q >= 0:
            taken[q].append(f)
    free = [{v for v in scope if v in rank} for scope in scopes]
    pools = [_pool(members, free, sizes, _size(clique, sizes)) for members, clique in zip(taken, cliques, strict=True)]
    pool_scopes = [sorted(scope, key=rank.__getitem__) for group in pools for scope, _ in group]
    pool_members = [members for group in pools for _, members in group]
    views = _Views(sizes)
    for scope, q in zip(pool_scopes, [q for q, group in enumerate(pools) for _ in group], strict=True):
        views.add(cliques[q], strides(scope, sizes))
    sepsets = [sorted(sepset, key=rank.__getitem__) for _, _, sepset in tree.edges]
    for (child, _, _), sepset in zip(tree.edges, sepsets, strict=True):
        views.add(cliques[child], strides(sepset, sizes))
    for (_, parent, _), sepset in zip(tree.edges, sepsets, strict=True):
        views.add(cliques[parent], strides(sepset, sizes))
    for scope, members in zip(pool_scopes, pool_members, strict=True):
        for f in members:
            views.add(scope, strides(scopes[f], sizes))
    pooled = [f for members in pool_members for f in members]
    plan = TreePlan(
        clique_offset=pointer([_size(clique, sizes) for clique in cliques]),
        clique_pools=pointer([len(group) for group in pools]),
        pool_offset=pointer([_size(scope, sizes) for scope in pool_scopes]),
        pool_factors=pointer([len(members) for members in pool_members]),
        factor_source=np.zeros(len(pooled), dtype=np.int64),
        sepset_offset=pointer([_size(sepset, sizes) for sepset in sepsets]),
        child=np.array([child for child, _, _ in tree.edges], dtype=np.int64),
        parent=np.array([parent for _, parent, _ in tree.edges], dtype=np.int64),
        views=np.array(views.bounds, dtype=np.int64),
        dims=np.array(views.dims, dtype=np.int64),
        strides=np.array(views.strides, dtype=np.int64),
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
    """Views one after the other: axes of a larger table with their strides in a smaller one."""

    def __init__(self, sizes: list[int]) -> None:
        self._sizes = sizes
        self.bounds = [0]
        self.dims: list[int] = []
        self.strides: list[int] = []

    def add(self, scope: Sequence[int], strides: Mapping[int, int]) -> None:
        """Add the view of a table over ``scope``; axes that one stride serves are merged."""
        dims, steps = [1], [0]
        for v in reversed(scope):
            size, stride = self._sizes[v], strides.get(v, 0)
            if size == 1:
                continue
            if dims[-1] == 1:
                dims[-1], steps[-1] = size, stride
            elif stride == steps[-1] * dims[-1]:
                dims[-1] *= size
            else:
                dims.append(size)
                steps.append(stride)
        if len(dims) == 1:
            dims.append(1)
            steps.append(0)
        self.dims += reversed(dims)
        self.strides += reversed(steps)
        self.bounds.append(len(self.dims))
