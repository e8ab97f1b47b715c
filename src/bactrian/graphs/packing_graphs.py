"""Packing of structured data: labelled graphs in arrays become :class:`PackedData`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bactrian.engines.numba.layout import Layout
from bactrian.engines.numba.traversal import sweep_order
from bactrian.graphs.graph_data import GraphData
from bactrian.graphs.layouts import pointer, projection_map
from bactrian.graphs.loglinear import Instance, Samples
from bactrian.graphs.packed import Incidence, InstanceViews, Observations, PackedData, Scopes, instance_blocks

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

Data = Samples | Sequence[Instance] | GraphData


@dataclass(frozen=True)
class GraphViews(InstanceViews):
    """Clusters of structured data: an instance's nodes in order, then its edges."""

    n_labels: int
    instance_hubs: Ints
    instance_clusters: Ints
    edges: Ints

    def n_clusters(self, instance: int) -> int:
        """See :class:`InstanceViews`."""
        nodes = self.instance_hubs[instance + 1] - self.instance_hubs[instance]
        return int(nodes + self.instance_clusters[instance + 1] - self.instance_clusters[instance])

    def locate(self, instance: int, cluster: int) -> tuple[int, tuple[int, ...]]:
        """See :class:`InstanceViews`."""
        first = int(self.instance_hubs[instance])
        nodes = int(self.instance_hubs[instance + 1]) - first
        if cluster < nodes:
            return -1 - (first + cluster), (self.n_labels,)
        return int(self.instance_clusters[instance]) + cluster - nodes, (self.n_labels, self.n_labels)

    def scopes(self, instance: int) -> Scopes:
        """See :class:`InstanceViews`."""
        first, last = int(self.instance_hubs[instance]), int(self.instance_hubs[instance + 1])
        edges = self.edges[self.instance_clusters[instance] : self.instance_clusters[instance + 1]] - first
        pairs: list[tuple[int, ...]] = [(a, b) for a, b in edges.tolist()]
        return np.full(last - first, self.n_labels), pairs, [(v,) for v in range(last - first)]

    def incidence(self) -> Incidence:
        """See :class:`InstanceViews`."""
        n_nodes, n_edges = int(self.instance_hubs[-1]), self.edges.shape[0]
        nodes, edges = np.arange(n_nodes), np.arange(n_edges)
        return Incidence(
            cardinalities=np.full(n_nodes, self.n_labels),
            instance=np.repeat(np.arange(self.instance_hubs.size - 1), np.diff(self.instance_hubs)),
            factor=np.concatenate([np.repeat(edges, 2), n_edges + nodes]),
            variable=np.concatenate([self.edges.ravel(), nodes]),
            stride=np.concatenate([np.tile([self.n_labels, 1], n_edges), np.ones_like(nodes)]),
        )


def pack_graph_data(data: GraphData) -> PackedData:
    """Pack labelled graphs: nodes are hubs, edges clusters of pairs."""
    n_labels, n_nodes, n_edges = data.n_labels, data.n_nodes, data.edges.shape[0]
    ends = data.edges.ravel()
    by_hub = np.argsort(ends, kind="stable")
    link_of_end = np.empty_like(by_hub)
    link_of_end[by_hub] = np.arange(by_hub.size)
    hub_links = pointer(np.bincount(ends, minlength=n_nodes))
    link_hub = ends[by_hub]
    link_cluster = by_hub // 2
    cluster_links = np.arange(0, 2 * n_edges + 1, 2, dtype=np.int64)
    edge_graph = np.searchsorted(data.node_pointer, data.edges[:, 0], side="right") - 1
    instance_clusters = pointer(np.bincount(edge_graph, minlength=data.n_graphs))
    order, is_tree = sweep_order(data.node_pointer, hub_links, link_cluster, link_hub, cluster_links, link_of_end)
    entries = n_labels * n_labels
    is_own = data.table_of_edge >= data.n_shared_tables
    instance_tables = data.n_shared_tables + pointer(is_own.astype(np.int64))[instance_clusters]
    n_tables = int(instance_tables[-1])
    square = (n_labels, n_labels)
    layout = Layout(
        instance_hubs=data.node_pointer,
        instance_clusters=instance_clusters,
        hub_order=order,
        instance_is_tree=is_tree,
        hub_offset=n_labels * np.arange(n_nodes + 1, dtype=np.int64),
        hub_links=hub_links,
        link_hub=link_hub,
        link_cluster=link_cluster,
        link_offset=n_labels * np.arange(2 * n_edges + 1, dtype=np.int64),
        link_projection=entries * (by_hub % 2),
        link_partner=link_of_end[by_hub ^ 1],
        link_axis=by_hub % 2,
        cluster_links=cluster_links,
        cluster_link=link_of_end,
        cluster_table=data.table_of_edge,
        cluster_rows=np.full(n_edges, n_labels, dtype=np.int64),
        table_offset=entries * np.arange(n_tables + 1, dtype=np.int64),
        table_shared=data.n_shared_tables,
        instance_tables=instance_tables,
        projection=np.concatenate([projection_map(square, (0,)), projection_map(square, (1,))]),
    )
    within = np.arange(n_nodes) - np.repeat(data.node_pointer[:-1], np.diff(data.node_pointer))
    edge_within = np.arange(n_edges) - instance_clusters[edge_graph]
    nodes_of_edge = np.diff(data.node_pointer)[edge_graph]
    packed = PackedData(
        layout=layout,
        scores=data.scores,
        weights=data.weights,
        blocks=instance_blocks(layout),
        hub_given=np.full(n_nodes, data.node_factors == "clusters"),
        hub_virtual=np.zeros(n_nodes, dtype=bool),
        hub_kind=np.zeros(n_nodes, dtype=np.int64),
        link_share=_node_shares(data.node_factors, hub_links, link_hub),
        cluster_index=nodes_of_edge + edge_within,
        hub_index=within,
        link_edge=np.arange(2 * n_edges, dtype=np.int64) - 2 * instance_clusters[edge_graph][link_cluster],
        views=GraphViews(n_labels, data.node_pointer, instance_clusters, data.edges),
        empirical=None,
        hub_truth=None,
    )
    if data.labels is None:
        return packed
    node_weight = np.repeat(data.weights, np.diff(data.node_pointer))
    hub_states = np.zeros(layout.n_hub_states)
    hub_states[layout.hub_offset[:-1] + data.labels] = node_weight
    state = data.labels[data.edges[:, 0]] * n_labels + data.labels[data.edges[:, 1]]
    counts: Floats = np.bincount(
        layout.table_offset[layout.cluster_table] + state,
        weights=data.weights[edge_graph],
        minlength=layout.n_entries,
    ).astype(np.float64)
    return packed.observed(counts, hub_states, Observations(data.labels[None, :], data.weights[None, :]))


def _node_shares(node_factors: str, hub_links: Ints, link_hub: Ints) -> Floats:
    """Part of its node's score that each link's edge takes, where edges take them."""
    if node_factors != "first-edge":
        shares: Floats = 1.0 / np.maximum(np.diff(hub_links), 1)[link_hub]
        return shares
    whole: Floats = (np.arange(link_hub.size) == hub_links[link_hub]).astype(np.float64)
    return whole
