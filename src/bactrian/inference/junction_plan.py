"""From scopes and evidence to the index arrays of a junction tree (:class:`.table_views.TreePlan`).

Variables are ranked in the reverse of the order in which they first appear on the way from the roots, and every table
has its axes in that order. What a clique does not share with its parent then comes first, and the sepset's table is a
contiguous block that repeats through the clique's: both messages of an edge run through memory in long stretches.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from bactrian.engines.numba.table_views import TreePlan
from bactrian.graphs.elimination import JunctionTree, junction_tree

Ints = NDArray[np.int64]
Scope = tuple[int, ...]

#: A pool has at most so many entries, or this part of its clique's, unless a single factor has more.
_SMALL_POOL, _POOL_PART = 256, 32


@dataclass(frozen=True)
class Elimination:
    """A junction tree ready to run, for factors that lie one after the other in one array of scores."""

    plan: TreePlan
    constants: Ints  #: entries that evidence leaves of factors without a free variable
    tree: JunctionTree


class Eliminator:
    """Junction trees of one call; instances with the same scopes and the same observed variables share one."""

    def __init__(self, memory_budget: int) -> None:
        self._memory_budget = memory_budget
        self._known: dict[tuple[object, ...], tuple[JunctionTree, TreePlan, list[int]]] = {}

    def eliminate(
        self, cardinalities: Ints, scopes: Sequence[Scope], starts: Sequence[int], evidence: Mapping[int, int]
    ) -> Elimination:
        """The plan for factors over ``scopes`` whose tables (C order) begin at ``starts`` in the scores."""
        key = (tuple(cardinalities.tolist()), tuple(scopes), tuple(starts), frozenset(evidence))
        if key not in self._known:
            tree = junction_tree(cardinalities, scopes, evidence=evidence.keys(), memory_budget=self._memory_budget)
            self._known[key] = (tree, *_plan(cardinalities.tolist(), scopes, tree))
        tree, plan, factors = self._known[key]
        sizes = cardinalities.tolist()
        observed = [start + _observed_part(scope, sizes, evidence) for scope, start in zip(scopes, starts, strict=True)]
        sources = np.array([observed[f] for f in factors], dtype=np.int64)
        constants = [observed[f] for f, clique in enumerate(tree.assignment) if clique < 0]
        return Elimination(plan._replace(factor_source=sources), np.array(constants, dtype=np.int64), tree)


def _observed_part(scope: Scope, sizes: list[int], evidence: Mapping[int, int]) -> int:
    """Index of the observed states in a table, its free variables at 0."""
    index = 0
    for v in scope:
        index = index * sizes[v] + evidence.get(v, 0)
    return index


def _plan(sizes: list[int], scopes: Sequence[Scope], tree: JunctionTree) -> tuple[TreePlan, list[int]]:
    """Index arrays (factor sources not yet known) and the factors in the order in which pools take them."""
    rank = _ranks(tree)
    cliques = [sorted(clique, key=rank.__getitem__) for clique in tree.cliques]
    taken: list[list[int]] = [[] for _ in cliques]
    for f, q in enumerate(tree.assignment):
        if q >= 0:
            taken[q].append(f)
    free = [{v for v in scope if v in rank} for scope in scopes]
    pools = [_pool(factors, free, sizes, _size(clique, sizes)) for factors, clique in zip(taken, cliques, strict=True)]
    pool_scopes = [sorted(scope, key=rank.__getitem__) for group in pools for scope, _ in group]
    pool_members = [members for group in pools for _, members in group]
    views = _Views(sizes)
    for scope, q in zip(pool_scopes, [q for q, group in enumerate(pools) for _ in group], strict=True):
        views.add(cliques[q], _strides(scope, sizes))
    sepsets = [sorted(sepset, key=rank.__getitem__) for _, _, sepset in tree.edges]
    for (child, _, _), sepset in zip(tree.edges, sepsets, strict=True):
        views.add(cliques[child], _strides(sepset, sizes))
    for (_, parent, _), sepset in zip(tree.edges, sepsets, strict=True):
        views.add(cliques[parent], _strides(sepset, sizes))
    for scope, members in zip(pool_scopes, pool_members, strict=True):
        for f in members:
            views.add(scope, _strides(scopes[f], sizes))
    factors = [f for members in pool_members for f in members]
    plan = TreePlan(
        clique_offset=_offsets(_size(clique, sizes) for clique in cliques),
        clique_pools=_offsets(len(group) for group in pools),
        pool_offset=_offsets(_size(scope, sizes) for scope in pool_scopes),
        pool_factors=_offsets(len(members) for members in pool_members),
        factor_source=np.zeros(len(factors), dtype=np.int64),
        sepset_offset=_offsets(_size(sepset, sizes) for sepset in sepsets),
        child=np.array([child for child, _, _ in tree.edges], dtype=np.int64),
        parent=np.array([parent for _, parent, _ in tree.edges], dtype=np.int64),
        views=np.array(views.bounds, dtype=np.int64),
        dims=np.array(views.dims, dtype=np.int64),
        strides=np.array(views.strides, dtype=np.int64),
    )
    return plan, factors


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
    children = {child for child, _, _ in tree.edges}
    rank: dict[int, int] = {}
    downward = [q for q in range(len(tree.cliques)) if q not in children]
    downward += [child for child, _, _ in reversed(tree.edges)]
    for q in downward:
        for v in tree.cliques[q]:
            rank.setdefault(v, -len(rank))
    return rank


def _strides(scope: Sequence[int], sizes: list[int]) -> dict[int, int]:
    """Stride of each variable in a table over ``scope``."""
    strides: dict[int, int] = {}
    stride = 1
    for v in reversed(scope):
        strides[v] = stride
        stride *= sizes[v]
    return strides


def _size(scope: Iterable[int], sizes: list[int]) -> int:
    return math.prod([sizes[v] for v in scope])


def _offsets(lengths: Iterable[int]) -> Ints:
    return np.array([0, *accumulate(lengths)], dtype=np.int64)


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
