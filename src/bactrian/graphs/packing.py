"""Packing: models made by hand and structured data become :class:`PackedData`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from bactrian.graphs.graph import ClusterGraph, Structure
from bactrian.graphs.graph_data import GraphData
from bactrian.graphs.layouts import TablePlan, build_layout, pack_layout, pointer
from bactrian.graphs.loglinear import Instance, LogLinearModel, Samples
from bactrian.graphs.packed import Incidence, InstanceViews, Observations, PackedData, Scopes
from bactrian.graphs.packing_graphs import pack_graph_data
from bactrian.graphs.scores import SparseScores

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

Data = Samples | Sequence[Instance] | GraphData


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
    if isinstance(data, Instance):
        raise TypeError("data must be a list of Instance objects; found a single Instance: wrap it in a list")
    if not isinstance(data, Sequence):
        raise TypeError(f"data must be Samples, a list of Instance objects or GraphData, found {type(data).__name__}")
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
    packed: PackedData, structures: list[Structure], states: list[Ints], weights: list[Floats]
) -> PackedData:
    """Add the observed moments: the weighted counts of observed states, mapped like beliefs."""
    layout = packed.layout
    entries = np.zeros(layout.n_entries)
    hub_states = np.zeros(layout.n_hub_states)
    for m, (structure, rows, weight) in enumerate(zip(structures, states, weights, strict=True)):
        first, last = layout.instance_clusters[m], layout.instance_clusters[m + 1]
        offsets = layout.table_offset[layout.cluster_table[first:last]]
        index = structure.table_strides @ rows.T + offsets[:, None]
        np.add.at(entries, index, weight[None, :])
        offsets = layout.hub_offset[layout.instance_hubs[m] : layout.instance_hubs[m + 1]]
        index = structure.hub_strides @ rows.T + offsets[:, None]
        np.add.at(hub_states, index, weight[None, :])
    return packed.observed(entries, hub_states, Observations(np.hstack(states), np.stack(weights, axis=1)))


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
    models: list[LogLinearModel], structures: list[Structure]
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
    models: list[LogLinearModel], structures: list[Structure], tables: TablePlan, owners: list[tuple[int, int]]
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


def _hub_kinds(graphs: list[ClusterGraph], structures: list[Structure]) -> Ints:
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
