"""Junction trees of packed instances: one plan for learning, inference and decoding.

The *factors* of an instance are its table clusters, then its hubs. Each is taken by a clique that contains its free
variables; observed variables are in no clique, and factors are read where these stand (:class:`FactorTree`). Exact
inference runs on views of the factors' tables (:mod:`bactrian.inference.exact`). Learning and decoding
(:mod:`bactrian.inference.maximum`) add the factors' tables up to tables of cliques, and pack the cliques as clusters of
a graph without loops, on which two sweeps of messages are exact.

For learning (:func:`on_junction_trees`) adding up is a linear map from the old table entries and hub states to clique
entries, so that scores and moments pass through it unchanged.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bactrian.arrays import Floats
from bactrian.engines.numba.layout import Layout
from bactrian.graphs.elimination import JunctionTree, junction_tree
from bactrian.graphs.graph import ClusterGraph, Scope
from bactrian.graphs.packed import PackedData, TableReader, instance_of
from bactrian.graphs.packing import TablePlan, build_layout, pack_layout
from bactrian.graphs.scores import ScoreMap, SpreadScores
from bactrian.graphs.structure import structure_of
from bactrian.parallel.threads import Workers

#: Entries of cliques, once for each of their factors, up to which the map from factors to cliques is written out, and
#: entries of the cliques of factors on average.
_MOST_MAPPED, _LARGE_TABLE = 2**22, 2**14


@dataclass(frozen=True, eq=False)
class FactorTree:
    """The junction tree of an instance's factors; instances whose factors have the same scopes share one."""

    sizes: list[int]  #: cardinalities of the variables
    scopes: list[Scope]  #: of the factors
    n_tables: int  #: how many factors are table clusters
    tree: JunctionTree

    @cached_property
    def graph(self) -> ClusterGraph:
        """The cliques as clusters of a graph."""
        return ClusterGraph(self.sizes, self.tree.cliques, self.tree.edges)

    def axes(self, scope: Sequence[int]) -> list[int]:
        """The variables that are axes of a table over ``scope``: arrays have few axes, so one state needs none."""
        return [v for v in scope if self.sizes[v] > 1]

    def shape(self, clique: int) -> list[int]:
        """Shape of a clique's table."""
        return [self.sizes[v] for v in self.axes(self.tree.cliques[clique])]

    def spread(self, factor: int, table: NDArray[Any], observed: Mapping[int, int]) -> NDArray[Any]:
        """A factor's table at the observed states, in the shape to be added to that of its clique.

        Where no clique has it, since all its variables are observed, a single entry is left.
        """
        scope, shape, order, spread = self._reshapings[factor]
        cut = table.reshape(shape)
        if observed:
            cut = cut[tuple(observed.get(v, slice(None)) for v in scope)]
        return cut.transpose(order).reshape(spread)

    @cached_property
    def _reshapings(self) -> list[tuple[list[int], list[int], list[int], list[int]]]:
        """Axes and shape of each factor's table, and the order and shape that its free axes have in its clique."""
        found = []
        for scope, clique in zip(self.scopes, self.tree.assignment, strict=True):
            axes = self.axes(scope)
            outer = self.axes(self.tree.cliques[clique]) if clique >= 0 else []
            free = [v for v in axes if v in outer]
            order = [free.index(v) for v in outer if v in free]
            spread = [self.sizes[v] if v in free else 1 for v in outer]
            found.append((axes, [self.sizes[v] for v in axes], order, spread))
        return found

    def marginal(self, factor: int, table: Floats) -> Floats:
        """Sums of its clique's table for each state of a factor that has no observed variables."""
        axes, scope = self.axes(self.tree.cliques[self.tree.assignment[factor]]), self.axes(self.scopes[factor])
        summed = table.reshape([self.sizes[v] for v in axes]).sum(
            axis=tuple(axis for axis, v in enumerate(axes) if v not in scope)
        )
        kept = [v for v in axes if v in scope]
        return np.ascontiguousarray(summed.transpose([kept.index(v) for v in scope])).ravel()


class TreePlanner:
    """Finds the junction trees of packed instances."""

    def __init__(self, data: PackedData, memory_budget: int = 4 * 2**30, **options: Any) -> None:
        self._data, self._options = data, {"memory_budget": memory_budget, **options}
        self._known: dict[tuple[object, ...], FactorTree] = {}

    def sizes(self, instance: int) -> list[int]:
        """Cardinalities of an instance's variables."""
        found: list[int] = self._data.structure.scopes(instance)[0].tolist()
        return found

    def tree(self, instance: int, observed: Collection[int] = ()) -> FactorTree:
        """The tree of an instance without its observed variables, or MemoryBudgetError; see :func:`junction_tree`."""
        cardinalities, tables, hubs = self._data.structure.scopes(instance)
        sizes, scopes = cardinalities.tolist(), [*tables, *hubs]
        key = (tuple(sizes), tuple(scopes), len(tables), frozenset(observed))
        if key not in self._known:
            tree = junction_tree(cardinalities, scopes, evidence=observed, **self._options)
            self._known[key] = FactorTree(sizes, scopes, len(tables), tree)
        return self._known[key]


def clique_layout(trees: Sequence[FactorTree]) -> Layout:
    """The cliques of trees, one instance each, with a table of its own for every clique; the hubs are sepsets."""
    structure = structure_of([tree.graph for tree in trees])
    return build_layout(structure, TablePlan.own(structure))


@dataclass(frozen=True)
class JunctionData:
    """Packed junction trees of ``original``'s instances."""

    original: PackedData
    packed: PackedData
    trees: list[FactorTree]

    def reader(self, cliques: TableReader) -> TableReader:
        """Tables of the original clusters and hubs, as marginals of cliques."""
        return _MarginalReader(self, cliques)


class _MarginalReader(TableReader):
    def __init__(self, junction: JunctionData, cliques: TableReader) -> None:
        self._junction, self._cliques = junction, cliques

    def cluster(self, index: int) -> Floats:
        first = self._junction.original.layout.instance_clusters
        m = instance_of(first, index)
        return self._factor(m, index - int(first[m]))

    def hub(self, index: int) -> Floats:
        first = self._junction.original.layout.instance_hubs
        m = instance_of(first, index)
        return self._factor(m, self._junction.trees[m].n_tables + index - int(first[m]))

    def _factor(self, instance: int, factor: int) -> Floats:
        tree = self._junction.trees[instance]
        clique = int(self._junction.packed.layout.instance_clusters[instance]) + tree.tree.assignment[factor]
        return tree.marginal(factor, self._cliques.cluster(clique))


def on_junction_trees(data: PackedData) -> JunctionData:
    """Move every instance onto a junction tree, or raise MemoryBudgetError where its tables would not fit."""
    planner = TreePlanner(data)
    trees = [planner.tree(m) for m in range(data.layout.n_instances)]
    structure = structure_of([tree.graph for tree in trees])
    layout = build_layout(structure, TablePlan.own(structure))
    packed = pack_layout(layout, structure, _clique_scores(data, trees, layout), data.weights, data.hub_kind[:0])
    packed = replace(packed, empirical=data.empirical, observed_base=data.observed_base)
    return JunctionData(data, packed, trees)


class _Taken(NamedTuple):
    """A factor that a clique has taken in."""

    tree: FactorTree
    factor: int
    scores: slice  #: of the factor among old table entries and hub states
    entries: slice  #: of the clique among new table entries

    @property
    def shape(self) -> list[int]:
        """Of the clique's table."""
        return self.tree.shape(self.tree.tree.assignment[self.factor])


def _clique_scores(data: PackedData, trees: Sequence[FactorTree], cliques: Layout) -> ScoreMap:
    """A clique's state has the scores of all factors' states that are part of it."""
    layout = data.layout
    taken: list[_Taken] = []
    for m, tree in enumerate(trees):
        tables = layout.cluster_table[layout.instance_clusters[m] : layout.instance_clusters[m + 1]]
        hubs = layout.n_entries + layout.hub_offset[layout.instance_hubs[m] : layout.instance_hubs[m + 1] + 1]
        starts = np.concatenate([layout.table_offset[tables], hubs[:-1]]).tolist()
        stops = np.concatenate([layout.table_offset[tables + 1], hubs[1:]]).tolist()
        bounds = cliques.table_offset[int(cliques.instance_clusters[m]) :].tolist()
        for factor, (q, start, stop) in enumerate(zip(tree.tree.assignment, starts, stops, strict=True)):
            taken.append(_Taken(tree, factor, slice(start, stop), slice(bounds[q], bounds[q + 1])))
    if sum(each.entries.stop - each.entries.start for each in taken) > max(_MOST_MAPPED, _LARGE_TABLE * len(taken)):
        return _LargeCliques(data, taken)
    rows = [np.arange(each.entries.start, each.entries.stop) for each in taken]
    columns = [
        np.broadcast_to(each.tree.spread(each.factor, np.arange(each.scores.start, each.scores.stop), {}), each.shape)
        for each in taken
    ]
    return SpreadScores.of_ones(data.scores, layout, cliques, rows, [states.ravel() for states in columns])


class _LargeCliques:
    """The same without a map of all entries of all factors, which takes many times the memory of large tables."""

    def __init__(self, data: PackedData, taken: Sequence[_Taken]) -> None:
        self._original, self._taken = data.scores, taken
        self._n_entries, self._n_states = data.layout.n_entries, data.layout.n_hub_states
        self.n_weights = data.n_weights

    def scores(self, weights: Floats, log_entries: Floats, hub_scores: Floats, workers: Workers) -> None:
        """See :class:`ScoreMap`."""
        old = np.empty(self._n_entries + self._n_states)
        self._original.scores(weights, old[: self._n_entries], old[self._n_entries :], workers)
        log_entries[:] = hub_scores[:] = 0.0
        for each in self._taken:
            table = log_entries[each.entries].reshape(each.shape)
            table += each.tree.spread(each.factor, old[each.scores], {})

    def moments(self, counts: Floats, hub_counts: Floats, workers: Workers) -> Floats:
        """See :class:`ScoreMap`."""
        return self._original.moments(*self._gathered(counts), workers)

    def base_score(self, counts: Floats, hub_counts: Floats) -> float:
        """See :class:`ScoreMap`."""
        return self._original.base_score(*self._gathered(counts))

    def _gathered(self, counts: Floats) -> tuple[Floats, Floats]:
        """Weighted beliefs of old table entries and hub states."""
        old = np.zeros(self._n_entries + self._n_states)
        for each in self._taken:
            old[each.scores] += each.tree.marginal(each.factor, counts[each.entries])
        return old[: self._n_entries], old[self._n_entries :]
