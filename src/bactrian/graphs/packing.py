"""Packing: models made by hand and labelled graphs in arrays become :class:`PackedData`.

Both go through a :class:`~bactrian.graphs.structure.GraphStructure`, from which :func:`build_layout` makes the flat
arrays, without a Python object per cluster, node or edge.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from bactrian.arrays import Bools, Floats, Ints
from bactrian.engines.numba.layout import Layout, pair_links
from bactrian.engines.numba.orders import sweep_order
from bactrian.graphs.graph import ClusterGraph
from bactrian.graphs.graph_data import GraphData
from bactrian.graphs.loglinear import ClusterTables, Instance, LogLinearModel, Moments, Samples
from bactrian.graphs.packed import Holes, Observations, PackedData, instance_blocks
from bactrian.graphs.ragged import Ragged, first_of, kinds_of_rows, numbered, pointer, ranges
from bactrian.graphs.scores import ScoreMap, SparseScores
from bactrian.graphs.structure import GraphStructure, structure_of, structure_of_scopes

#: States of clusters in rows looked at together when they are counted; bounds the memory.
_COUNTED_AT_ONCE = 1 << 20
#: Squares of all states per pair up to which a product of matrices counts pairs faster than one by one.
_WORTH_A_PRODUCT = 64


def pack(data: Any, *, need_labels: bool = True) -> PackedData:
    """Pack anything that ``learn`` accepts, or raise an error that says what is wrong.

    Without ``need_labels`` the labels of a GraphData are ignored: counting them takes longest.
    """
    if isinstance(data, PackedData):
        return data
    if isinstance(data, GraphData):
        if need_labels and data.labels is None:
            raise ValueError("the GraphData has no labels; learning needs labels=")
        return pack_graph_data(data, data.labels if need_labels else None)
    if isinstance(data, Samples):
        return _pack_samples(data)
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
    models = [instance.model for instance in data]
    if not any((instance.y < 0).any() for instance in data):
        states = [instance.y[None, :] for instance in data]
        return _pack_models(models, states, [np.array([instance.weight]) for instance in data])
    packed = pack_models(models)
    seen = np.array([(instance.y >= 0).any() or bool(instance.allowed) for instance in data])
    forbidden = [_forbidden(i.model.graph, i.y[None, :], {0: i.allowed}, f"data[{m}]") for m, i in enumerate(data)]
    weights = np.where(seen, [instance.weight for instance in data], 0.0)
    return _with_holes(replace(packed, weights=weights), np.concatenate(forbidden, axis=1))


def _pack_samples(data: Samples) -> PackedData:
    """One instance for all rows; incomplete rows become its holes, equal ones merged."""
    holes = (data.X < 0).any(axis=1)
    if not holes.any():
        return replace(_pack_models([data.model], [data.X], [data.sample_weight]), generative=True)
    seen: Bools = np.asarray((data.X >= 0).any(axis=1))
    seen[list(data.allowed)] = True
    seen &= data.sample_weight > 0.0
    if not seen.any():
        raise ValueError("X has no observed state; learning needs at least one")
    whole, part = np.flatnonzero(seen & ~holes), np.flatnonzero(seen & holes)
    if whole.size:
        found = pack(Samples(data.model, data.X[whole], data.sample_weight[whole]))
        if not part.size:  # rows in which nothing was seen say nothing
            return found
        assert found.empirical is not None
        complete, packed = found.empirical, replace(found, empirical=None, hub_truth=None, observations=None)
    else:
        packed = pack_models([data.model])
        complete = np.zeros(packed.n_weights)
    packed = replace(packed, weights=data.sample_weight[seen].sum(keepdims=True), generative=True)
    allowed = {r: data.allowed[row] for r, row in enumerate(part.tolist()) if row in data.allowed}
    forbidden = _forbidden(data.model.graph, data.X[part], allowed, "X")
    kind = kinds_of_rows(forbidden.T, len(forbidden))
    weights = np.bincount(kind, weights=data.sample_weight[part]).astype(np.float64)
    return replace(packed, holes=Holes(forbidden[first_of(kind)], weights[:, None], complete))


def _forbidden(graph: Any, states: Ints, allowed: Mapping[int, Mapping[int, Ints]], name: str) -> Bools:
    """(n_rows, n_states of all variables) whether observations rule out a state of a row."""
    if isinstance(graph, ClusterGraph) and not graph.is_bethe:
        raise ValueError(
            f"{name}: learning with unknown states (-1) needs a graph with a hub for every variable; build the "
            "ClusterGraph without edges="
        )
    bounds = pointer(graph.cardinalities)
    owner = np.repeat(np.arange(graph.cardinalities.size), graph.cardinalities)
    seen = states[:, owner]
    forbidden: Bools = (seen >= 0) & (seen != np.arange(owner.size) - bounds[owner])
    for row, some in allowed.items():
        for v, kept in some.items():
            forbidden[row, bounds[v] : bounds[v + 1]] = True
            forbidden[row, bounds[v] + kept] = False
    return forbidden


def _with_holes(packed: PackedData, forbidden: Bools) -> PackedData:
    """Conditional data with these states of its hubs forbidden by what was seen."""
    if not packed.weights.any():
        raise ValueError("no instance of positive weight has an observed state; learning needs at least one")
    return replace(packed, holes=Holes(forbidden, packed.weights[None, :], np.zeros(packed.n_weights)))


def pack_models(models: Sequence[LogLinearModel]) -> PackedData:
    """Pack models without data, for inference."""
    return _pack_models(list(models), None, None)


def _pack_models(models: list[LogLinearModel], states: list[Ints] | None, weights: list[Floats] | None) -> PackedData:
    graphs: list[ClusterGraph] = []
    for m, model in enumerate(models):
        if not isinstance(model.graph, ClusterGraph):
            raise TypeError(f"the graph of model {m} must be a ClusterGraph, found {type(model.graph).__name__}")
        graphs.append(model.graph)
    structure = structure_of(graphs)
    tables, scores = _collect_tables(models, structure)
    layout = build_layout(structure, tables)
    instance_weights = np.ones(len(models)) if weights is None else np.array([w.sum() for w in weights])
    if all(graph is graphs[0] for graph in graphs):  # hubs of equal place are of one kind, else those of equal sizes
        kinds = np.tile(np.arange(structure.instance_hubs[1], dtype=np.int64), len(graphs))
    else:
        kinds = Ragged(structure.hub_scopes.bounds, structure.cardinalities[structure.hub_scopes.values]).kinds()
    packed = pack_layout(layout, structure, scores, instance_weights, kinds)
    if states is None or weights is None:
        return packed
    packed = _with_truth(packed, structure, np.hstack(states), np.stack(weights, axis=1))
    if packed.observed_base == -np.inf:
        _refuse_forbidden(models, states, weights)
    return packed


def _with_truth(packed: PackedData, structure: GraphStructure, states: Ints, weights: Floats) -> PackedData:
    """Add the observed moments: the weighted counts of observed states, mapped like beliefs."""
    layout, sizes = packed.layout, structure.cardinalities
    counts = []
    for scopes, starts, instance, size in (
        (structure.table_scopes, layout.table_offset[layout.cluster_table], structure.instance_of_cluster,
         layout.n_entries),
        (structure.hub_scopes, layout.hub_offset[:-1], structure.instance_of_hub, layout.n_hub_states),
    ):  # fmt: skip
        # Where most pairs of variables are scopes, counting each of them takes longer than a product of matrices.
        is_dense = int(sizes.sum()) ** 2 <= _WORTH_A_PRODUCT * scopes.lengths.size and (scopes.lengths == 2).all()
        if weights.shape[1] == 1 and is_dense:
            counts.append(_count_pairs(scopes.values.reshape(-1, 2), starts, size, sizes, states, weights))
            continue
        found = np.zeros(size)
        strides = scopes.strides(sizes)
        rows = max(1, _COUNTED_AT_ONCE // max(scopes.values.size, 1))
        for first in range(0, len(states) if starts.size else 0, rows):
            part = states[first : first + rows]
            index = np.add.reduceat(part[:, scopes.values] * strides, scopes.bounds[:-1], axis=1) + starts
            found += np.bincount(index.ravel(), weights[first : first + rows, instance].ravel(), size)
        counts.append(found)
    return packed.observed(counts[0], counts[1], Observations(states, weights))


def observed_by(data: PackedData, weights: Floats) -> Floats:
    """(R, n_weights) observed moments for R rows of weights of instances."""
    seen, structure = data.observations, data.structure
    assert seen is not None
    unweighted = seen.weights > 0.0
    return np.array([_with_truth(data, structure, seen.states, unweighted * row).empirical for row in weights])


def _count_pairs(pairs: Ints, starts: Ints, n_entries: int, sizes: Ints, states: Ints, weights: Floats) -> Floats:
    """Weighted counts of the states of pairs, as H'WH for rows H that are 1 at the states they are in."""
    bounds = pointer(sizes)
    owner = np.repeat(np.arange(sizes.size), sizes)
    together = np.zeros((owner.size, owner.size))
    rows = max(1, _COUNTED_AT_ONCE // max(owner.size, 1))
    for first in range(0, len(states), rows):
        part = states[first : first + rows]
        hot = (part[:, owner] == np.arange(owner.size) - bounds[owner]).astype(np.float64)
        together += (hot * weights[first : first + rows]).T @ hot
    columns = sizes[pairs[:, 1]]
    n_states = sizes[pairs[:, 0]] * columns
    place, pair = ranges(np.zeros_like(n_states), n_states), np.repeat(np.arange(len(pairs)), n_states)
    row, column = np.divmod(place, columns[pair])
    counts = np.zeros(n_entries)
    np.add.at(counts, starts[pair] + place, together[bounds[pairs[pair, 0]] + row, bounds[pairs[pair, 1]] + column])
    return counts


def _refuse_forbidden(models: list[LogLinearModel], states: list[Ints], weights: list[Floats]) -> None:
    """Raise an error that names the first observation in a state that its model forbids."""
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


def _collect_tables(models: Sequence[LogLinearModel], structure: GraphStructure) -> tuple[TablePlan, SparseScores]:
    """One table per distinct pair of feature and base-score objects, and the scores of tables and hubs."""
    known = list({id(model): model for model in models}.values())
    place = {id(model): k for k, model in enumerate(known)}
    first = pointer([len(model.graph.clusters) for model in known])[[place[id(model)] for model in models]]
    cluster = first[structure.instance_of_cluster] + structure.cluster_given
    hub = np.where(structure.hub_given, first[structure.instance_of_hub] + structure.hub_cluster, -1)
    features = _stacked([model.feature_tables for model in known])
    base = _stacked([model.base_tables for model in known])

    kinds = numbered(features[cluster] + 1)
    for key in (numbered(base[cluster] + 1), numbered(structure.cluster_sizes)):
        kinds = numbered(kinds * (key.max(initial=0) + 1) + key)
    plan, owner = TablePlan.sharing(kinds, structure)
    sizes = np.concatenate([structure.cluster_sizes[owner], structure.hub_sizes])
    source = np.concatenate([cluster[owner], hub])
    fixed = np.zeros(sizes.sum())
    at, rows = _rows(base, source, sizes)
    fixed[at] = np.concatenate([model.base_tables.rows for model in known])[rows]
    at, rows = _rows(features, source, sizes)
    matrices = [model.feature_tables.rows for model in known]
    stacked = matrices[0] if len(matrices) == 1 else sp.vstack(matrices, format="csr")
    lengths = np.zeros(fixed.size, dtype=np.int64)
    lengths[at] = np.diff(stacked.indptr)[rows]
    entries = ranges(stacked.indptr[rows].astype(np.int64), lengths[at])
    parts = (stacked.data[entries], stacked.indices[entries], pointer(lengths))
    return plan, SparseScores(sp.csr_array(parts, shape=(fixed.size, models[0].n_weights)), fixed)


def _stacked(tables: Sequence[ClusterTables]) -> Ints:
    """Where the rows of each cluster begin with the tables of all models stacked; -1: it has none."""
    first = pointer([own.rows.shape[0] for own in tables])[:-1]
    starts = np.concatenate([own.start for own in tables])
    return np.where(starts >= 0, starts + np.repeat(first, [own.start.size for own in tables]), -1)


def _rows(starts: Ints, source: Ints, sizes: Ints) -> tuple[Ints, Ints]:
    """Rows of all tables that have something in the stacked tables, and where it is there."""
    first = np.where(source >= 0, starts[source], -1) if starts.size else np.full(source.size, -1)
    has = first >= 0
    return ranges(pointer(sizes)[:-1][has], sizes[has]), ranges(first[has], sizes[has])


def require_bethe(data: PackedData) -> None:
    """Raise an error where an instance has explicit edges."""
    for m in range(data.layout.n_instances):
        if not data.is_bethe(m):
            raise ValueError(f"tighten needs edges='bethe'; the graph of model {m} has explicit edges")


@dataclass(frozen=True)
class TablePlan:
    """Which table each cluster uses; shared ones come first."""

    of_cluster: Ints
    offset: Ints
    n_shared: int
    instance_tables: Ints

    @staticmethod
    def sharing(kinds: Ints, structure: GraphStructure) -> tuple[TablePlan, Ints]:
        """A table for clusters of each kind, and a cluster that has it."""
        owner, users = first_of(kinds), np.bincount(kinds)
        order = np.lexsort((owner, users < 2))
        owner, n_shared = owner[order], int((users >= 2).sum())
        rank = np.empty_like(order)
        rank[order] = np.arange(order.size)
        of_single = structure.instance_of_cluster[owner[n_shared:]]
        plan = TablePlan(
            of_cluster=rank[kinds],
            offset=pointer(structure.cluster_sizes[owner]),
            n_shared=n_shared,
            instance_tables=n_shared + np.searchsorted(of_single, np.arange(structure.instance_clusters.size)),
        )
        return plan, owner

    @staticmethod
    def own(structure: GraphStructure) -> TablePlan:
        """A table of its own for every cluster."""
        return TablePlan(
            of_cluster=np.arange(structure.cluster_given.size, dtype=np.int64),
            offset=pointer(structure.cluster_sizes),
            n_shared=0,
            instance_tables=structure.instance_clusters,
        )


def build_layout(structure: GraphStructure, tables: TablePlan) -> Layout:
    """The layout of all instances."""
    hubs, links = structure.instance_hubs, (structure.cluster_links, structure.cluster_link)
    hub_offset = pointer(structure.hub_sizes)
    order, is_tree = sweep_order(hubs, structure.hub_links, structure.link_cluster, structure.link_hub, *links)
    link_projection, projection = _collect_projections(structure)
    link_partner, link_axis = pair_links(structure.cluster_rows, *links)
    return Layout(
        instance_hubs=hubs,
        instance_clusters=structure.instance_clusters,
        hub_order=order,
        instance_is_tree=is_tree,
        hub_offset=hub_offset,
        hub_links=structure.hub_links,
        link_hub=structure.link_hub,
        link_cluster=structure.link_cluster,
        link_offset=pointer(structure.hub_sizes[structure.link_hub]),
        link_projection=link_projection,
        link_partner=link_partner,
        link_axis=link_axis,
        cluster_links=structure.cluster_links,
        cluster_link=structure.cluster_link,
        cluster_table=tables.of_cluster,
        cluster_rows=structure.cluster_rows,
        table_offset=tables.offset,
        table_shared=tables.n_shared,
        instance_tables=tables.instance_tables,
        projection=projection,
    )


def pack_layout(
    layout: Layout, structure: GraphStructure, scores: ScoreMap, weights: Floats, hub_kind: Ints
) -> PackedData:
    """Packed data of graphs, not yet with labels."""
    degrees = np.diff(layout.hub_links)
    packed = PackedData(
        layout=layout,
        scores=scores,
        weights=weights,
        blocks=instance_blocks(layout),
        hub_given=structure.hub_given,
        hub_virtual=(structure.hub_cluster < 0) & (degrees > 0),
        hub_kind=hub_kind,
        link_share=1.0 / np.maximum(degrees, 1)[layout.link_hub],
        cluster_index=structure.cluster_given,
        hub_index=structure.hub_cluster,
        link_edge=structure.link_edge,
        make_structure=lambda: structure,
        empirical=None,
        hub_truth=None,
        explicit=structure.explicit,
    )
    if structure.hub_numbers is None:
        return packed
    own = np.isfinite(structure.hub_numbers)
    return replace(packed, hub_numbers=np.where(own, structure.hub_numbers, packed.total_numbers))


def _collect_projections(structure: GraphStructure) -> tuple[Ints, NDArray[np.int32]]:
    """Where the map of each link begins among all distinct ones."""
    scopes, axes = structure.table_scopes, structure.link_axes
    shapes = Ragged(scopes.bounds, structure.cardinalities[scopes.values])
    by_axes = axes.kinds()
    kinds = numbered(shapes.kinds()[structure.link_cluster] * (by_axes.max(initial=0) + 1) + by_axes)
    maps = []
    for link in first_of(kinds).tolist():
        cluster = int(structure.link_cluster[link])
        maps.append(projection_map(shapes.tuples(cluster, cluster + 1)[0], axes.tuples(link, link + 1)[0]))
    return pointer([own.size for own in maps])[kinds], np.concatenate([np.zeros(0, dtype=np.int32), *maps])


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


def pack_graph_data(data: GraphData, labels: Ints | None) -> PackedData:
    """Pack graphs: nodes are hubs, edges clusters of pairs."""
    structure = _structure_of_graphs(data)
    has_own_table = pointer(data.table_of_edge >= data.n_shared_tables)
    tables = TablePlan(
        of_cluster=data.table_of_edge,
        offset=data.n_labels**2 * np.arange(data.n_shared_tables + has_own_table[-1] + 1),
        n_shared=data.n_shared_tables,
        instance_tables=data.n_shared_tables + has_own_table[structure.instance_clusters],
    )
    layout, one_kind = build_layout(structure, tables), np.zeros(data.n_nodes, dtype=np.int64)
    packed = replace(
        pack_layout(layout, structure, data.scores, data.weights, one_kind),
        hub_given=np.full(data.n_nodes, data.node_factors == "clusters"),
        make_structure=cache(lambda: _structure_of_graphs(data)),  # large, and seldom asked for again
    )
    if data.node_factors == "first-edge":
        is_first = np.arange(layout.n_links) == layout.hub_links[layout.link_hub]
        packed = replace(packed, link_share=is_first.astype(np.float64))
    return packed if labels is None else _with_labels(packed, data, labels)


def _with_labels(packed: PackedData, data: GraphData, labels: Ints) -> PackedData:
    """Packed graphs with their labels observed, -1 for unknown ones; a graph without a label has no weight."""
    layout, sizes, n_labels = packed.layout, np.diff(data.node_pointer), data.n_labels
    if (labels < 0).any():
        n_seen = np.diff(pointer((labels >= 0).astype(np.int64))[data.node_pointer])
        packed = replace(packed, weights=np.where((n_seen > 0) | (sizes == 0), data.weights, 0.0))
        if ((n_seen > 0) & (n_seen < sizes)).any() or not n_seen.any():
            seen, state = np.repeat(labels, n_labels), np.tile(np.arange(n_labels), data.n_nodes)
            return _with_holes(packed, ((seen >= 0) & (seen != state))[None, :])
        labels = np.maximum(labels, 0)  # whatever they are, they do not count
    hub_states = np.zeros(layout.n_hub_states)
    hub_states[layout.hub_offset[:-1] + labels] = np.repeat(packed.weights, sizes)
    first, second = labels[data.edges].T
    counts: Floats = np.bincount(
        layout.table_offset[layout.cluster_table] + first * n_labels + second,
        weights=np.repeat(packed.weights, np.diff(layout.instance_clusters)),
        minlength=layout.n_entries,
    ).astype(np.float64)
    return packed.observed(counts, hub_states, Observations(labels[None, :], packed.weights[None, :]))


def _structure_of_graphs(data: GraphData) -> GraphStructure:
    """Nodes as hubs, edges as clusters."""
    graph = data.by_node(np.arange(data.n_graphs))
    pairs = Ragged(2 * np.arange(len(data.edges) + 1), data.edges.ravel())
    return structure_of_scopes(graph, data.n_graphs, np.full(data.n_nodes, data.n_labels), pairs)
