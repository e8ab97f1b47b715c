"""Exact computation on any packed data: its clusters moved onto junction trees.

Every cluster's table is added into the table of a clique that contains its scope. That is a linear map from the old
table entries and hub states to clique entries, so scores and moments pass through it unchanged, and two sweeps of
message passing on the tree are exact.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from bactrian.graphs.elimination import JunctionTree, junction_tree
from bactrian.graphs.graph import ClusterGraph
from bactrian.graphs.packed import PackedData, TableReader
from bactrian.graphs.packing import ModelViews, TablePlan, build_layout, pack_layout, projection_map
from bactrian.graphs.scores import SpreadScores

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class JunctionData:
    """Packed junction trees of ``original``'s instances, and where its clusters and hubs went."""

    original: PackedData
    packed: PackedData
    cluster_place: tuple[Ints, list[tuple[int, ...]]]  #: clique and axes of each table cluster
    hub_place: tuple[Ints, list[tuple[int, ...]]]
    clique_shapes: list[tuple[int, ...]]

    def reader(self, cliques: TableReader) -> TableReader:
        """Tables of the original clusters and hubs, as marginals of cliques."""
        return _MarginalReader(self, cliques)


def on_junction_trees(data: PackedData) -> JunctionData:
    """Move every instance onto a junction tree, or raise MemoryBudgetError where its tables would not fit."""
    layout = data.layout
    graphs: list[ClusterGraph] = []
    cliques, cluster_axes, hub_axes = [], [], []
    cluster_clique, hub_clique = np.empty(layout.n_clusters, dtype=np.int64), np.empty(layout.n_hubs, dtype=np.int64)
    known: dict[tuple[object, ...], tuple[ClusterGraph, JunctionTree]] = {}
    placed = 0
    for m in range(layout.n_instances):
        cardinalities, table_scopes, hub_scopes = data.views.scopes(m)
        scopes = [*table_scopes, *hub_scopes]
        key = (tuple(cardinalities.tolist()), tuple(scopes))
        if key not in known:
            tree = junction_tree(cardinalities, scopes)
            known[key] = ClusterGraph(cardinalities, tree.cliques, tree.edges), tree
        graph, tree = known[key]
        assignment = np.array(tree.assignment, dtype=np.int64)
        first, last = layout.instance_clusters[m], layout.instance_clusters[m + 1]
        cluster_clique[first:last] = placed + assignment[: len(table_scopes)]
        first, last = layout.instance_hubs[m], layout.instance_hubs[m + 1]
        hub_clique[first:last] = placed + assignment[len(table_scopes) :]
        axes = [
            tuple(tree.cliques[q].index(v) for v in scope) for q, scope in zip(tree.assignment, scopes, strict=True)
        ]
        cluster_axes += axes[: len(table_scopes)]
        hub_axes += axes[len(table_scopes) :]
        cliques += [graph.shape(clique) for clique in tree.cliques]
        graphs.append(graph)
        placed += len(tree.cliques)

    tables = TablePlan.own([graph.structure for graph in graphs])
    tree_layout = build_layout([graph.structure for graph in graphs], tables)
    views = ModelViews(graphs, tree_layout.instance_hubs, tree_layout.instance_clusters)
    clusters, hubs = (cluster_clique, cluster_axes), (hub_clique, hub_axes)
    spread = _spread_matrix(data, tree_layout.table_offset, tree_layout.n_hub_states, cliques, clusters, hubs)
    scores = SpreadScores(data.scores, data.layout.n_entries, spread)
    packed = pack_layout(
        tree_layout, [graph.structure for graph in graphs], scores, data.weights, views, data.hub_kind[:0]
    )
    packed = replace(packed, empirical=data.empirical, observed_base=data.observed_base)
    return JunctionData(data, packed, clusters, hubs, cliques)


def _spread_matrix(
    data: PackedData,
    clique_offset: Ints,
    n_hub_states: int,
    shapes: list[tuple[int, ...]],
    clusters: tuple[Ints, list[tuple[int, ...]]],
    hubs: tuple[Ints, list[tuple[int, ...]]],
) -> sp.csr_array:
    """The matrix of :class:`SpreadScores`: ones where an old state is part of a clique's state."""
    layout = data.layout
    rows: list[Ints] = []
    columns: list[NDArray[np.int64]] = []
    starts = (layout.table_offset[layout.cluster_table], layout.n_entries + layout.hub_offset[:-1])
    for (places, all_axes), offset in zip((clusters, hubs), starts, strict=True):
        for place, axes, start in zip(places.tolist(), all_axes, offset.tolist(), strict=True):
            rows.append(np.arange(clique_offset[place], clique_offset[place + 1]))
            columns.append(start + projection_map(shapes[place], axes).astype(np.int64))
    shape = (int(clique_offset[-1]) + n_hub_states, layout.n_entries + layout.n_hub_states)
    if not rows:
        return sp.csr_array(shape)
    flat_rows, flat_columns = np.concatenate(rows), np.concatenate(columns)
    return sp.csr_array((np.ones(flat_rows.size), (flat_rows, flat_columns)), shape=shape)


class _MarginalReader(TableReader):
    def __init__(self, junction: JunctionData, cliques: TableReader) -> None:
        self._junction, self._cliques = junction, cliques

    def cluster(self, index: int) -> Floats:
        return self._marginal(self._junction.cluster_place, index)

    def hub(self, index: int) -> Floats:
        return self._marginal(self._junction.hub_place, index)

    def _marginal(self, place: tuple[Ints, list[tuple[int, ...]]], index: int) -> Floats:
        clique, axes = int(place[0][index]), place[1][index]
        states = projection_map(self._junction.clique_shapes[clique], axes)
        marginal: Floats = np.bincount(states, weights=self._cliques.cluster(clique)).astype(np.float64)
        return marginal
