"""Packing: models made by hand and labelled graphs in arrays become :class:`PackedData`.

Models go through the structures of their cluster graphs (:func:`build_layout`), labelled graphs straight to the same
flat arrays (:func:`pack_graph_data`); nothing there is a Python object per node or edge.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from bactrian.arrays import Floats, Ints
from bactrian.engines.numba.layout import Layout, pair_links
from bactrian.engines.numba.orders import sweep_order
from bactrian.graphs.domain import pointer
from bactrian.graphs.graph import ClusterGraph, GraphStructure
from bactrian.graphs.graph_data import GraphData
from bactrian.graphs.loglinear import Instance, LogLinearModel, Moments, Samples
from bactrian.graphs.packed import Incidence, InstanceViews, Observations, PackedData, Scopes, instance_blocks
from bactrian.graphs.scores import ScoreMap, SparseScores

#: States of clusters in rows looked at together when they are counted; bounds the memory.
_COUNTED_AT_ONCE = 1 << 20


def pack(data: Any, *, need_labels: bool = True) -> PackedData:
    """Pack anything that ``learn`` accepts, or raise an error that says what is wrong."""
    if isinstance(data, PackedData):
        return data
    if isinstance(data, GraphData):
        if need_labels and data.labels is None:
            raise ValueError("the GraphData has no labels; learning needs labels=")
        return pack_graph_data(data)
    if isinstance(data, Samples):
        return replace(_pack_models([data.model], [data.X], [data.sample_weight]), generative=True)
    if isinstance(data, Moments):
        packed = replace(pack_models([data.model]), weights=np.array([data.total]), generative=True)
        return replace(packed, empirical=data.observed)  # fixed scores of what was observed are not known
    if isinstance(data, Instance):
        raise TypeError("data must be a list of Instance objects; found a single Instance: wrap it in a list")
    if not isinstance(data, Sequence):
        found = type(data).__name__
        raise TypeError(f"data must be Samples, Moments, a list of Instance objects or GraphData, found {found}")
    if not data:
        raise ValueError("data is empty; learning needs at least one instance")
    for m, instance in enumerate(data):
        if not isinstance(instance, Instance):
            raise TypeError(f"data[{m}] must be an Instance, found {type(instance).__name__}")
        if instance.model.n_weights != data[0].model.n_weights:
            raise ValueError(
                f"data[{m}] has {instance.model.n_weights} weights and data[0] {data[0].model.n_weights}; "
                "all instances share one vector of weights"
            )
    if not any(instance.weight for instance in data):
        raise ValueError("every instance has weight 0; at least one must count")
    return _pack_models(
        [instance.model for instance in data],
        [instance.y[None, :] for instance in data],
        [np.array([instance.weight]) for instance in data],
    )


def pack_models(models: Sequence[LogLinearModel]) -> PackedData:
    """Pack models without data, for inference."""
    return _pack_models(list(models), None, None)


@dataclass(frozen=True)
class ModelViews(InstanceViews):
    """Clusters of models made by hand."""

    graphs: list[ClusterGraph]
    instance_hubs: Ints
    instance_clusters: Ints

    def n_clusters(self, instance: int) -> int:
        """See :class:`InstanceViews`."""
        return len(self.graphs[instance].all_clusters)

    def locate(self, instance: int, cluster: int) -> tuple[int, tuple[int, ...]]:
        """See :class:`InstanceViews`."""
        graph = self.graphs[instance]
        position = int(graph.structure.positions[cluster])
        shape = graph.shape(graph.all_clusters[cluster])
        if position >= 0:
            return position + int(self.instance_clusters[instance]), shape
        return position - int(self.instance_hubs[instance]), shape

    def scopes(self, instance: int) -> Scopes:
        """See :class:`InstanceViews`."""
        graph = self.graphs[instance]
        structure = graph.structure
        return graph.cardinalities, [graph.clusters[i] for i in structure.cluster_given], list(structure.hub_scopes)

    def incidence(self) -> Incidence:
        """See :class:`InstanceViews`."""
        structures = [graph.structure for graph in self.graphs]
        variables = pointer([graph.n_variables for graph in self.graphs])
        n_clusters = self.instance_clusters[-1]
        parts: list[list[Ints]] = [[np.zeros(0, dtype=np.int64)] for _ in range(3)]
        for m, structure in enumerate(structures):
            scored = np.flatnonzero(structure.hub_given | (np.diff(structure.hub_links) == 0))
            clusters = self.instance_clusters[m] + np.arange(structure.cluster_given.size)
            hubs = n_clusters + self.instance_hubs[m] + scored
            for rows, strides in ((clusters, structure.table_strides), (hubs, structure.hub_strides[scored])):
                parts[0].append(np.repeat(rows, np.diff(strides.indptr)))
                parts[1].append(variables[m] + strides.indices)
                parts[2].append(strides.data)
        factor, variable, stride = (np.concatenate(part).astype(np.int64) for part in parts)
        cardinalities = np.concatenate([graph.cardinalities for graph in self.graphs])
        return Incidence(
            cardinalities, np.repeat(np.arange(len(self.graphs)), np.diff(variables)), factor, variable, stride
        )


def _pack_models(models: list[LogLinearModel], states: list[Ints] | None, weights: list[Floats] | None) -> PackedData:
    graphs: list[ClusterGraph] = []
    for m, model in enumerate(models):
        if not isinstance(model.graph, ClusterGraph):
            raise TypeError(f"the graph of model {m} must be a ClusterGraph, found {type(model.graph).__name__}")
        graphs.append(model.graph)
    structures = [graph.structure for graph in graphs]
    tables, owners = _collect_tables(models, structures)
    layout = build_layout(structures, tables)
    scores = _sparse_scores(models, structures, tables, owners)
    instance_weights = np.ones(len(models)) if weights is None else np.array([w.sum() for w in weights])
    views = ModelViews(graphs, layout.instance_hubs, layout.instance_clusters)
    packed = pack_layout(layout, structures, scores, instance_weights, views, _hub_kinds(graphs, structures))
    if states is None or weights is None:
        return packed
    packed = _with_truth(packed, structures, states, weights)
    if packed.observed_base == -np.inf:
        _refuse_forbidden(models, states, weights)
    return packed


def _with_truth(
    packed: PackedData, structures: list[GraphStructure], states: list[Ints], weights: list[Floats]
) -> PackedData:
    """Add the observed moments: the weighted counts of observed states, mapped like beliefs."""
    layout = packed.layout
    entries = np.zeros(layout.n_entries)
    hub_states = np.zeros(layout.n_hub_states)
    for m, (structure, rows, weight) in enumerate(zip(structures, states, weights, strict=True)):
        first, last = layout.instance_clusters[m], layout.instance_clusters[m + 1]
        _count(entries, structure.table_strides, rows, weight, layout.table_offset[layout.cluster_table[first:last]])
        hubs = slice(layout.instance_hubs[m], layout.instance_hubs[m + 1])
        _count(hub_states, structure.hub_strides, rows, weight, layout.hub_offset[hubs])
    return packed.observed(entries, hub_states, Observations(np.hstack(states), np.stack(weights, axis=1)))


def _count(counts: Floats, strides: sp.csr_array, rows: Ints, weight: Floats, offsets: Ints) -> None:
    """Add the weights of the rows to the states that they have in each cluster, some clusters at a time."""
    step = max(1, _COUNTED_AT_ONCE // max(1, rows.shape[0]))
    for first in range(0, offsets.size, step):
        index = strides[first : first + step] @ rows.T + offsets[first : first + step, None]
        least = int(index.min(initial=counts.size))
        found = np.bincount((index - least).ravel(), np.broadcast_to(weight, index.shape).ravel())
        counts[least : least + found.size] += found


def _refuse_forbidden(models: list[LogLinearModel], states: list[Ints], weights: list[Floats]) -> None:
    """Say which observation is in a state that its model forbids, so that no weights explain it."""
    for m, (model, rows, weight) in enumerate(zip(models, states, weights, strict=True)):
        for i, scores in enumerate(model.base_scores):
            if scores is None:
                continue
            scope = model.graph.clusters[i]
            observed = rows[:, scope]
            index = np.ravel_multi_index(tuple(observed.T), model.graph.shape(scope))
            forbidden = np.flatnonzero((scores[index] == -np.inf) & (weight > 0.0))
            if forbidden.size:
                row = int(forbidden[0])
                raise ValueError(
                    f"data: row {row} of instance {m} is in state {tuple(observed[row].tolist())} of cluster {i}, "
                    f"which base_scores[{i}] forbids"
                )


def _collect_tables(
    models: list[LogLinearModel], structures: list[GraphStructure]
) -> tuple[TablePlan, list[tuple[int, int]]]:
    """One table per distinct pair of feature and base-score objects, and the (model, cluster) that defines each."""
    first_user: dict[tuple[int, int, int], int] = {}
    owner: list[tuple[int, int]] = []
    sizes: list[int] = []
    of_cluster: list[int] = []
    for m, (model, structure) in enumerate(zip(models, structures, strict=True)):
        for c, given in enumerate(structure.cluster_given.tolist()):
            size = int(structure.cluster_sizes[c])
            key = (id(model.features[given]), id(model.base_scores[given]), size)
            table = first_user.setdefault(key, len(owner))
            if table == len(owner):
                owner.append((m, given))
                sizes.append(size)
            of_cluster.append(table)
    users = np.bincount(np.array(of_cluster, dtype=np.int64), minlength=len(owner))
    order = np.argsort(users < 2, kind="stable")
    rank = np.empty(len(owner), dtype=np.int64)
    rank[order] = np.arange(len(owner))
    n_shared = int((users >= 2).sum())
    owner = [owner[t] for t in order]
    single_model = np.array([m for m, _ in owner[n_shared:]], dtype=np.int64)
    instance_tables = n_shared + np.searchsorted(single_model, np.arange(len(models) + 1))
    plan = TablePlan(
        of_cluster=rank[np.array(of_cluster, dtype=np.int64)],
        offset=pointer(np.array(sizes, dtype=np.int64)[order]),
        n_shared=n_shared,
        instance_tables=instance_tables.astype(np.int64),
    )
    return plan, owner


def _sparse_scores(
    models: list[LogLinearModel], structures: list[GraphStructure], tables: TablePlan, owners: list[tuple[int, int]]
) -> SparseScores:
    blocks: list[sp.csr_array] = []
    base: list[Floats] = []
    n_weights = models[0].n_weights

    def add(model: LogLinearModel | None, given: int, size: int) -> None:
        features = None if model is None else model.features[given]
        scores = None if model is None else model.base_scores[given]
        blocks.append(sp.csr_array((size, n_weights)) if features is None else features)
        base.append(np.zeros(size) if scores is None else scores)

    for t, (m, given) in enumerate(owners):
        add(models[m], given, int(tables.offset[t + 1] - tables.offset[t]))
    for model, structure in zip(models, structures, strict=True):
        for hub, cluster in enumerate(structure.hub_cluster.tolist()):
            given = structure.hub_given[hub]
            add(model if given else None, cluster, int(structure.hub_sizes[hub]))
    if not blocks:
        return SparseScores(sp.csr_array((0, n_weights)), np.zeros(0))
    return SparseScores(sp.csr_array(sp.vstack(blocks, format="csr")), np.concatenate(base))


def _hub_kinds(graphs: list[ClusterGraph], structures: list[GraphStructure]) -> Ints:
    """Hubs of equal place where all instances share one graph, else hubs with equal cardinalities."""
    if all(graph is graphs[0] for graph in graphs):
        return np.tile(np.arange(structures[0].hub_sizes.size, dtype=np.int64), len(graphs))
    kinds: dict[tuple[int, ...], int] = {}
    found = [
        kinds.setdefault(graph.shape(scope), len(kinds))
        for graph, structure in zip(graphs, structures, strict=True)
        for scope in structure.hub_scopes
    ]
    return np.array(found, dtype=np.int64)


def is_bethe(data: PackedData, instance: int) -> bool:
    """Whether the hubs of an instance are its variables."""
    views = data.views
    return not isinstance(views, ModelViews) or views.graphs[instance].is_bethe


def require_bethe(data: PackedData) -> None:
    """Raise an error where an instance has explicit edges."""
    for m in range(data.layout.n_instances):
        if not is_bethe(data, m):
            raise ValueError(f"tighten needs edges='bethe'; the graph of model {m} has explicit edges")


@dataclass(frozen=True)
class TablePlan:
    """Which table each cluster uses; shared ones come first."""

    of_cluster: Ints
    offset: Ints
    n_shared: int
    instance_tables: Ints

    @staticmethod
    def own(structures: list[GraphStructure]) -> TablePlan:
        """A table of its own for every cluster."""
        sizes = np.concatenate([s.cluster_sizes for s in structures])
        return TablePlan(
            of_cluster=np.arange(sizes.size, dtype=np.int64),
            offset=pointer(sizes),
            n_shared=0,
            instance_tables=pointer([s.cluster_sizes.size for s in structures]),
        )


def build_layout(structures: list[GraphStructure], tables: TablePlan) -> Layout:
    """Concatenate the structures of all instances."""
    hubs = pointer([s.hub_sizes.size for s in structures])
    clusters = pointer([s.cluster_given.size for s in structures])
    links = pointer([s.link_hub.size for s in structures])
    link_hub = shifted([s.link_hub for s in structures], hubs)
    hub_offset = pointer(np.concatenate([s.hub_sizes for s in structures]))
    hub_links = np.concatenate([[0], *(s.hub_links[1:] + links[m] for m, s in enumerate(structures))])
    link_cluster = shifted([s.link_cluster for s in structures], clusters)
    cluster_links = np.concatenate([[0], *(s.cluster_links[1:] + links[m] for m, s in enumerate(structures))])
    cluster_link = shifted([s.cluster_link for s in structures], links)
    order, is_tree = sweep_order(hubs, hub_links, link_cluster, link_hub, cluster_links, cluster_link)
    link_projection, projection = _collect_projections(structures)
    cluster_rows = np.concatenate([s.cluster_rows for s in structures])
    link_partner, link_axis = pair_links(cluster_rows, cluster_links, cluster_link)
    return Layout(
        instance_hubs=hubs,
        instance_clusters=clusters,
        hub_order=order,
        instance_is_tree=is_tree,
        hub_offset=hub_offset,
        hub_links=hub_links,
        link_hub=link_hub,
        link_cluster=link_cluster,
        link_offset=pointer(np.diff(hub_offset)[link_hub]),
        link_projection=link_projection,
        link_partner=link_partner,
        link_axis=link_axis,
        cluster_links=cluster_links,
        cluster_link=cluster_link,
        cluster_table=tables.of_cluster,
        cluster_rows=cluster_rows,
        table_offset=tables.offset,
        table_shared=tables.n_shared,
        instance_tables=tables.instance_tables,
        projection=projection,
    )


def pack_layout(
    layout: Layout,
    structures: list[GraphStructure],
    scores: ScoreMap,
    weights: Floats,
    views: InstanceViews,
    hub_kind: Ints,
) -> PackedData:
    """Packed data of graphs made of :class:`GraphStructure`, not yet with labels."""
    degrees = np.diff(layout.hub_links)
    packed = PackedData(
        layout=layout,
        scores=scores,
        weights=weights,
        blocks=instance_blocks(layout),
        hub_given=np.concatenate([s.hub_given for s in structures]),
        hub_virtual=np.concatenate([(s.hub_cluster < 0) & (np.diff(s.hub_links) > 0) for s in structures]),
        hub_kind=hub_kind,
        link_share=1.0 / np.maximum(degrees, 1)[layout.link_hub],
        cluster_index=np.concatenate([s.cluster_given for s in structures]),
        hub_index=np.concatenate([s.hub_cluster for s in structures]),
        link_edge=np.concatenate([s.link_edge for s in structures]),
        views=views,
        empirical=None,
        hub_truth=None,
    )
    if all(s.hub_numbers is None for s in structures):
        return packed
    numbers = packed.total_numbers
    for m, structure in enumerate(structures):
        if structure.hub_numbers is not None:
            numbers[layout.instance_hubs[m] : layout.instance_hubs[m + 1]] = structure.hub_numbers
    return replace(packed, hub_numbers=numbers)


def _collect_projections(structures: list[GraphStructure]) -> tuple[Ints, NDArray[np.int32]]:
    starts: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
    maps: list[NDArray[np.int32]] = []
    filled = 0
    link_projection: list[int] = []
    for structure in structures:
        for key in structure.link_projection:
            if key not in starts:
                starts[key] = filled
                maps.append(projection_map(*key))
                filled += maps[-1].size
            link_projection.append(starts[key])
    empty = np.zeros(0, dtype=np.int32)
    return np.array(link_projection, dtype=np.int64), np.concatenate([empty, *maps])


def projection_map(shape: tuple[int, ...], axes: tuple[int, ...]) -> NDArray[np.int32]:
    """State of a sub-scope (``axes``, in that order) for every state of a table of ``shape``, both in C order.

    >>> projection_map((2, 3), (1,)).tolist()
    [0, 1, 2, 0, 1, 2]
    """
    large = [axis for axis, size in enumerate(shape) if size > 1]  # arrays have few axes, scopes may have many
    index = np.zeros([shape[axis] for axis in large], dtype=np.int32)
    stride = 1
    for axis in reversed(axes):
        if shape[axis] > 1:
            states = stride * np.arange(shape[axis], dtype=np.int32)
            index += states.reshape([-1 if other == axis else 1 for other in large])
            stride *= shape[axis]
    return index.ravel()


def shifted(parts: list[Ints], shift: Ints) -> Ints:
    """Parts, each with its shift added, one after the other."""
    return np.concatenate([np.zeros(0, dtype=np.int64), *(part + shift[m] for m, part in enumerate(parts))])


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
