"""Cluster graphs of many instances as hubs, links and table clusters, in one pass over arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from bactrian.arrays import Bools, Floats, Ints
from bactrian.graphs.graph import ClusterGraph, SepsetHubs
from bactrian.graphs.ragged import Ragged, pointer, shifted


@dataclass(frozen=True)
class GraphStructure:
    """Instances in the form of :class:`bactrian.engines.numba.layout.Layout`, before tables are packed.

    Variables, hubs, links and table clusters are numbered through all instances; ``hub_cluster``, ``cluster_given`` and
    ``link_edge`` within each.
    """

    instance_variables: Ints
    instance_hubs: Ints
    instance_clusters: Ints
    cardinalities: Ints
    hub_scopes: Ragged
    hub_cluster: Ints  #: (H,) index in all_clusters, or -1 for the sepset of an explicit edge
    hub_given: Bools  #: (H,) the hub is a singleton cluster that the user gave
    link_hub: Ints  #: (L,) hub after hub
    link_cluster: Ints  #: (L,) table cluster
    link_edge: Ints  #: (L,) index in graph.edges
    link_axes: Ragged  #: axes of the hub's variables in the scope of the link's cluster
    table_scopes: Ragged
    cluster_given: Ints  #: (C,) index in graph.clusters of each table cluster
    hub_numbers: Floats | None = None  #: (H,) total counting numbers, NaN where they are Bethe's; None: everywhere

    @cached_property
    def hub_sizes(self) -> Ints:
        """(H,) states of each hub."""
        return self.hub_scopes.products(self.cardinalities)

    @cached_property
    def cluster_sizes(self) -> Ints:
        """(C,) entries of each cluster's table."""
        return self.table_scopes.products(self.cardinalities)

    @cached_property
    def hub_links(self) -> Ints:
        """(H + 1,) links of each hub."""
        return pointer(np.bincount(self.link_hub, minlength=self.hub_cluster.size))

    @cached_property
    def cluster_links(self) -> Ints:
        """(C + 1,) range of each cluster in ``cluster_link``."""
        return pointer(np.bincount(self.link_cluster, minlength=self.cluster_given.size))

    @cached_property
    def cluster_link(self) -> Ints:
        """(L,) links of each cluster, those of fewest variables first, then in the order of the first."""
        n_axes, first = self.link_axes.lengths, self.link_axes.values[self.link_axes.bounds[:-1]]
        longest = int(self.table_scopes.lengths.max(initial=0)) + 1
        return np.argsort((self.link_cluster * longest + n_axes) * longest + first, kind="stable")

    @cached_property
    def cluster_rows(self) -> Ints:
        """(C,) rows of a pair with one link for each of its variables, else 0."""
        scopes, two = self.table_scopes, np.flatnonzero(np.diff(self.cluster_links) == 2)
        two = two[scopes.lengths[two] == 2]
        links = self.cluster_link[self.cluster_links[two][:, None] + [0, 1]]
        single = (self.link_axes.lengths[links] == 1).all(axis=1)
        pair = two[single & (self.link_axes.values[self.link_axes.bounds[links]] == [0, 1]).all(axis=1)]
        rows = np.zeros(self.cluster_given.size, dtype=np.int64)
        rows[pair] = self.cardinalities[scopes.values[scopes.bounds[pair]]]
        return rows

    @cached_property
    def instance_of_cluster(self) -> Ints:
        """(C,) instance of each table cluster."""
        return np.repeat(np.arange(self.instance_clusters.size - 1), np.diff(self.instance_clusters))

    @cached_property
    def instance_of_hub(self) -> Ints:
        """(H,) instance of each hub."""
        return np.repeat(np.arange(self.instance_hubs.size - 1), np.diff(self.instance_hubs))


def structure_of(graphs: Sequence[ClusterGraph]) -> GraphStructure:
    """The structure of graphs, one per instance."""
    variables = pointer([graph.n_variables for graph in graphs])
    given = pointer([len(graph.clusters) for graph in graphs])
    bethe = np.array([graph.is_bethe for graph in graphs], dtype=bool)
    sepsets = {m: graph.sepset_hubs() for m, graph in enumerate(graphs) if not graph.is_bethe}
    own_hubs = [_hubs(graph, sepsets.get(m)) for m, graph in enumerate(graphs)]
    hubs = pointer([index.size for _, index in own_hubs])
    hub_cluster = np.concatenate([np.zeros(0, dtype=np.int64), *(index for _, index in own_hubs)])
    hub_scopes = Ragged.joined([own for own, _ in own_hubs], variables)
    instance_of_hub = np.repeat(np.arange(len(graphs)), np.diff(hubs))
    hub_given = (hub_cluster >= 0) & (hub_cluster < np.diff(given)[instance_of_hub])

    is_table = np.ones(given[-1], dtype=bool)
    is_table[given[instance_of_hub[hub_given]] + hub_cluster[hub_given]] = False
    scopes = Ragged.joined([graph.scopes for graph in graphs], variables)
    table_scopes = scopes.take(np.flatnonzero(is_table))
    instance = np.repeat(np.arange(len(graphs)), np.diff(given))[is_table]

    # On a Bethe graph a variable is a hub, and each place of a scope a link to it.
    cluster, axis = table_scopes.row_of_value, table_scopes.places
    of_place = instance[cluster]
    by_variable = bethe[of_place]
    link_hub = (table_scopes.values + (hubs - variables)[of_place])[by_variable]
    link_cluster, axes = cluster[by_variable], Ragged.singles(axis[by_variable])
    if sepsets:
        number = np.cumsum(is_table) - 1
        more_hubs = shifted([own.link_hub for own in sepsets.values()], hubs[list(sepsets)])
        more = number[shifted([own.link_cluster for own in sepsets.values()], given[list(sepsets)])]
        shared = hub_scopes.take(more_hubs)
        keys = cluster * variables[-1] + table_scopes.values
        order = np.argsort(keys)
        wanted = more[shared.row_of_value] * variables[-1] + shared.values
        places = axis[order[np.searchsorted(keys, wanted, sorter=order)]]
        link_hub, link_cluster = np.concatenate([link_hub, more_hubs]), np.concatenate([link_cluster, more])
        axes = Ragged.joined([axes, Ragged(shared.bounds, places)], [0, 0])
    order = np.argsort(link_hub, kind="stable")
    link_hub = link_hub[order]
    of_link = instance_of_hub[link_hub]
    link_edge = np.arange(link_hub.size) - np.searchsorted(link_hub, hubs)[of_link]
    numbers = None
    if sepsets:
        link_edge[~bethe[of_link]] = np.concatenate([own.link_edge for own in sepsets.values()])
        if any(own.numbers is not None for own in sepsets.values()):
            numbers = np.full(hub_cluster.size, np.nan)
            for m, own in sepsets.items():
                if own.numbers is not None:
                    numbers[hubs[m] : hubs[m] + own.numbers.size] = own.numbers
    return GraphStructure(
        instance_variables=variables,
        instance_hubs=hubs,
        instance_clusters=pointer(np.bincount(instance, minlength=len(graphs))),
        cardinalities=np.concatenate([np.zeros(0, dtype=np.int64), *(graph.cardinalities for graph in graphs)]),
        hub_scopes=hub_scopes,
        hub_cluster=hub_cluster,
        hub_given=hub_given,
        link_hub=link_hub,
        link_cluster=link_cluster[order],
        link_edge=link_edge,
        link_axes=axes.take(order),
        table_scopes=table_scopes,
        cluster_given=np.flatnonzero(is_table) - given[instance],
        hub_numbers=numbers,
    )


def structure_of_scopes(instance: Ints, n_instances: int, sizes: Ints, scopes: Ragged) -> GraphStructure:
    """Instances of hubs, all given, and clusters over them.

    ``instance`` and ``sizes`` are those of each hub, ``scopes`` those of clusters; all are in the order of instances.
    """
    instance_hubs = pointer(np.bincount(instance, minlength=n_instances))
    of_cluster = instance[scopes.values[scopes.bounds[:-1]]]
    order = np.argsort(scopes.values, kind="stable")
    numbers = np.arange(sizes.size)
    return GraphStructure(
        instance_variables=instance_hubs,
        instance_hubs=instance_hubs,
        instance_clusters=pointer(np.bincount(of_cluster, minlength=n_instances)),
        cardinalities=sizes,
        hub_scopes=Ragged.singles(numbers),
        hub_cluster=numbers - instance_hubs[instance],
        hub_given=np.ones(sizes.size, dtype=bool),
        link_hub=scopes.values[order],
        link_cluster=scopes.row_of_value[order],
        link_edge=np.arange(order.size),
        link_axes=Ragged.singles(scopes.places[order]),
        table_scopes=scopes,
        cluster_given=np.arange(of_cluster.size),
    )


def _hubs(graph: ClusterGraph, sepsets: SepsetHubs | None) -> tuple[Ragged, Ints]:
    """Scopes of a graph's hubs, and their indices among its clusters; variables in no cluster come last."""
    if sepsets is None:
        return Ragged.singles(np.arange(graph.n_variables)), graph.hub_of_variable
    free = np.setdiff1d(np.arange(graph.n_variables), graph.scopes.values)
    rows = Ragged.joined([Ragged.of(sepsets.scopes), Ragged.singles(free)], [0, 0])
    return rows, np.concatenate([sepsets.cluster, np.full(free.size, -1, dtype=np.int64)])
