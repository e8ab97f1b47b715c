"""Cluster graphs of many instances as hubs, links and table clusters, in one pass over arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NoReturn

import numpy as np
import scipy.sparse as sp

from bactrian.arrays import Bools, Floats, Ints
from bactrian.graphs.graph import ClusterGraph
from bactrian.graphs.ragged import Ragged, pointer, shifted

Scopes = tuple[Ints, list[tuple[int, ...]], list[tuple[int, ...]]]


@dataclass(frozen=True)
class Incidence:
    """Which variables are in which factors; a factor is a table cluster c, or hub h under the number C + h.

    The state of a factor is the sum of stride times state over its variables. Sepsets of explicit edges and featureless
    hubs of variables that table clusters cover are left out: they have no scores.
    """

    cardinalities: Ints  #: (V,) of the variables of instance after instance
    instance: Ints  #: (V,) instance of each variable
    factor: Ints  #: (n_incidences,)
    variable: Ints  #: (n_incidences,)
    stride: Ints  #: (n_incidences,)

    def factor_states(self, states: Ints) -> Ints:
        """(n_factors, n_rows) states of factors, those of variables (n_rows, V) given."""
        return sp.csr_array((self.stride, (self.factor, self.variable))) @ states[:, : self.variable.max() + 1].T


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
    explicit: Bools | None = None  #: (M,) the graph has hubs of its own, not Bethe's variables; None: no graph has

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

    @cached_property
    def _places(self) -> tuple[Ints, Ints]:
        """Where all clusters of each instance begin, and the place of each: p of a table, -1 - h of a hub."""
        own = np.flatnonzero(self.hub_cluster >= 0)
        n_instances = self.instance_hubs.size - 1
        first = pointer(np.diff(self.instance_clusters) + np.bincount(self.instance_of_hub[own], minlength=n_instances))
        places = np.zeros(first[-1], dtype=np.int64)
        places[first[self.instance_of_cluster] + self.cluster_given] = np.arange(self.cluster_given.size)
        places[first[self.instance_of_hub[own]] + self.hub_cluster[own]] = -1 - own
        return first, places

    def n_clusters(self, instance: int) -> int:
        """Number of clusters of an instance, appended hubs included."""
        return int(np.diff(self._places[0][instance : instance + 2])[0])

    def locate(self, instance: int, cluster: int) -> tuple[int, tuple[int, ...]]:
        """Place of a cluster, ``p`` for table cluster p of the packed data or ``-1 - h`` for hub h, and its shape."""
        first, places = self._places
        place = int(places[first[instance] + cluster])
        scopes, row = (self.table_scopes, place) if place >= 0 else (self.hub_scopes, -1 - place)
        return place, tuple(self.cardinalities[scopes.values[slice(*scopes.bounds[row : row + 2])]].tolist())

    def scopes(self, instance: int) -> Scopes:
        """Cardinalities of an instance's variables, scopes of its table clusters and of its hubs."""
        first, last = self.instance_variables[instance : instance + 2].tolist()
        tables, hubs = (
            rows.tuples(int(bounds[instance]), int(bounds[instance + 1]), first)
            for rows, bounds in ((self.table_scopes, self.instance_clusters), (self.hub_scopes, self.instance_hubs))
        )
        return self.cardinalities[first:last], tables, hubs

    def incidence(self) -> Incidence:
        """Variables and factors of all instances, in flat arrays."""
        scored = np.flatnonzero(self.hub_given | (np.diff(self.hub_links) == 0))
        hubs, tables, sizes = self.hub_scopes.take(scored), self.table_scopes, self.cardinalities
        return Incidence(
            cardinalities=sizes,
            instance=np.repeat(np.arange(self.instance_hubs.size - 1), np.diff(self.instance_variables)),
            factor=np.concatenate([tables.row_of_value, self.cluster_given.size + scored[hubs.row_of_value]]),
            variable=np.concatenate([tables.values, hubs.values]),
            stride=np.concatenate([tables.strides(sizes), hubs.strides(sizes)]),
        )


def structure_of(graphs: Sequence[ClusterGraph]) -> GraphStructure:
    """The structure of graphs, one per instance."""
    own = [graph.hubs() for graph in graphs]
    variables = pointer([graph.n_variables for graph in graphs])
    given = pointer([len(graph.clusters) for graph in graphs])
    hubs = pointer([part.cluster.size for part in own])
    hub_cluster = _joined([part.cluster for part in own])
    instance_of_hub = np.repeat(np.arange(len(graphs)), np.diff(hubs))
    hub_given = (hub_cluster >= 0) & (hub_cluster < np.diff(given)[instance_of_hub])

    # Clusters that are hubs have no tables of their own.
    is_table = np.ones(given[-1], dtype=bool)
    is_table[given[instance_of_hub[hub_given]] + hub_cluster[hub_given]] = False
    table_of_cluster = np.cumsum(is_table) - 1
    scopes = Ragged.joined([graph.scopes for graph in graphs], variables)
    instance = np.repeat(np.arange(len(graphs)), np.diff(given))[is_table]
    numbers = [np.full(part.cluster.size, np.nan) if part.numbers is None else part.numbers for part in own]
    explicit = np.array([not graph.is_bethe for graph in graphs], dtype=bool)
    return GraphStructure(
        instance_variables=variables,
        instance_hubs=hubs,
        instance_clusters=pointer(np.bincount(instance, minlength=len(graphs))),
        cardinalities=_joined([graph.cardinalities for graph in graphs]),
        hub_scopes=Ragged.joined([part.scopes for part in own], variables),
        hub_cluster=hub_cluster,
        hub_given=hub_given,
        link_hub=shifted([part.link_hub for part in own], hubs),
        link_cluster=table_of_cluster[shifted([part.link_cluster for part in own], given)],
        link_edge=_joined([part.link_edge for part in own]),
        link_axes=Ragged.joined([part.link_axes for part in own], np.zeros(len(own), dtype=np.int64)),
        table_scopes=scopes.take(np.flatnonzero(is_table)),
        cluster_given=np.flatnonzero(is_table) - given[instance],
        hub_numbers=None if all(part.numbers is None for part in own) else np.concatenate(numbers),
        explicit=explicit if explicit.any() else None,
    )


def _joined(parts: Sequence[Ints]) -> Ints:
    return np.concatenate([np.zeros(0, dtype=np.int64), *parts])


def structure_of_scopes(instance: Ints, n_instances: int, sizes: Ints, scopes: Ragged) -> GraphStructure:
    """Instances of hubs, all given, and clusters over them.

    ``instance`` and ``sizes`` are those of each hub, ``scopes`` those of clusters; all are in the order of instances.
    """
    instance_hubs = pointer(np.bincount(instance, minlength=n_instances))
    of_cluster = instance[scopes.values[scopes.bounds[:-1]]]
    instance_clusters = pointer(np.bincount(of_cluster, minlength=n_instances))
    order = np.argsort(scopes.values, kind="stable")
    link_hub, numbers = scopes.values[order], np.arange(sizes.size)
    first_link = np.searchsorted(link_hub, instance_hubs)
    return GraphStructure(
        instance_variables=instance_hubs,
        instance_hubs=instance_hubs,
        instance_clusters=instance_clusters,
        cardinalities=sizes,
        hub_scopes=Ragged.singles(numbers),
        hub_cluster=numbers - instance_hubs[instance],
        hub_given=np.ones(sizes.size, dtype=bool),
        link_hub=link_hub,
        link_cluster=scopes.row_of_value[order],
        link_edge=np.arange(order.size) - first_link[instance[link_hub]],
        link_axes=Ragged.singles(scopes.places[order]),
        table_scopes=scopes,
        cluster_given=np.arange(of_cluster.size) + (np.diff(instance_hubs) - instance_clusters[:-1])[of_cluster],
    )


def no_structure() -> NoReturn:
    """In place of a structure that is not kept: of data in files, and of conditionals, whose arrays are many."""
    raise NotImplementedError("this data keeps no scopes")
