"""From the structures of cluster graphs to the packed layout that kernels read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bactrian.engines.numba.layout import Layout, pair_links
from bactrian.engines.numba.traversal import sweep_order
from bactrian.graphs.graph import Structure
from bactrian.graphs.graph_data import GraphData
from bactrian.graphs.loglinear import Instance, Samples
from bactrian.graphs.packed import InstanceViews, PackedData, instance_blocks
from bactrian.graphs.scores import ScoreMap

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

Data = Samples | Sequence[Instance] | GraphData


@dataclass(frozen=True)
class TablePlan:
    """Which table each cluster uses; shared ones come first."""

    of_cluster: Ints
    offset: Ints
    n_shared: int
    instance_tables: Ints

    @staticmethod
    def own(structures: list[Structure]) -> TablePlan:
        """A table of its own for every cluster."""
        sizes = np.concatenate([s.cluster_sizes for s in structures])
        return TablePlan(
            of_cluster=np.arange(sizes.size, dtype=np.int64),
            offset=pointer(sizes),
            n_shared=0,
            instance_tables=pointer([s.cluster_sizes.size for s in structures]),
        )


def build_layout(structures: list[Structure], tables: TablePlan) -> Layout:
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
    layout: Layout, structures: list[Structure], scores: ScoreMap, weights: Floats, views: InstanceViews, hub_kind: Ints
) -> PackedData:
    """Packed data of graphs made of :class:`Structure`, not yet with labels."""
    degrees = np.diff(layout.hub_links)
    return PackedData(
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


def _collect_projections(structures: list[Structure]) -> tuple[Ints, NDArray[np.int32]]:
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
    index = np.zeros(shape, dtype=np.int32)
    stride = 1
    for axis in reversed(axes):
        view = [1] * len(shape)
        view[axis] = shape[axis]
        index += stride * np.arange(shape[axis], dtype=np.int32).reshape(view)
        stride *= shape[axis]
    return index.ravel()


def pointer(counts: Sequence[int] | Ints) -> Ints:
    """Bounds of consecutive runs of such lengths, from 0."""
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def shifted(parts: list[Ints], shift: Ints) -> Ints:
    """Parts, each with its shift added, one after the other."""
    return np.concatenate([np.zeros(0, dtype=np.int64), *(part + shift[m] for m, part in enumerate(parts))])
