"""The packed cluster graph: what every kernel reads.

Clusters and sepsets of all instances become one bipartite structure of *clusters* (tables with a counting
number of their own) and *hubs* (the sets of states on which clusters must agree), joined by *links*:

- on a Bethe graph a hub is a variable, and its own singleton cluster, if any, lives on the hub;
- an explicit edge (i, j, sepset) is a hub without a table of its own and with two links.

Links are numbered hub by hub, so the links of hub ``h`` are ``hub_links[h]:hub_links[h + 1]``. States of hubs,
states of links (one multiplier each) and entries of tables live in flat arrays addressed by offsets. A table
may be shared by many clusters.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bactrian.arrays import Bools, Ints


class Layout(NamedTuple):
    """Index arrays of a packed data set; ``M`` instances, ``H`` hubs, ``L`` links, ``C`` clusters, ``T`` tables."""

    instance_hubs: Ints  #: (M + 1,) hubs of instance m
    instance_clusters: Ints  #: (M + 1,) clusters of instance m
    hub_order: Ints  #: (H,) hubs of each instance in the order of a forward sweep
    instance_is_tree: Bools  #: (M,) the bipartite graph of hubs and clusters is a forest
    hub_offset: Ints  #: (H + 1,) states of hub h in arrays over hub states
    hub_links: Ints  #: (H + 1,) links of hub h
    link_hub: Ints  #: (L,)
    link_cluster: Ints  #: (L,)
    link_offset: Ints  #: (L + 1,) states of link l in arrays over link states
    link_projection: Ints  #: (L,) where the map from cluster states to hub states starts, in ``projection``
    link_partner: Ints  #: (L,) the other link of a pair between two hubs, else -1
    link_axis: Ints  #: (L,) the axis of a pair's table that the link fixes, else 0
    cluster_links: Ints  #: (C + 1,) range in ``cluster_link``
    cluster_link: Ints  #: (L,) links of a cluster, in the order of the variables they fix
    cluster_table: Ints  #: (C,) table of cluster c
    cluster_rows: Ints  #: (C,) rows of a pair's table; 0 where the cluster is not a pair of two hubs
    table_offset: Ints  #: (T + 1,) entries of table t
    table_shared: int  #: the first ``table_shared`` tables may belong to many clusters, the rest to one each
    instance_tables: Ints  #: (M + 1,) tables of instance m among those that are not shared
    projection: NDArray[np.int32]  #: concatenated maps

    @property
    def n_instances(self) -> int:
        """Number of instances."""
        return self.instance_hubs.size - 1

    @property
    def n_hubs(self) -> int:
        """Number of hubs."""
        return self.hub_offset.size - 1

    @property
    def n_links(self) -> int:
        """Number of links."""
        return self.link_hub.size

    @property
    def n_clusters(self) -> int:
        """Number of clusters with a table of their own."""
        return self.cluster_table.size

    @property
    def n_tables(self) -> int:
        """Number of distinct tables."""
        return self.table_offset.size - 1

    @property
    def n_hub_states(self) -> int:
        """Length of arrays over hub states."""
        return int(self.hub_offset[-1])

    @property
    def n_link_states(self) -> int:
        """Length of arrays over link states (the multipliers)."""
        return int(self.link_offset[-1])

    @property
    def n_entries(self) -> int:
        """Length of arrays over table entries."""
        return int(self.table_offset[-1])


def pair_links(cluster_rows: Ints, cluster_links: Ints, cluster_link: Ints) -> tuple[Ints, Ints]:
    """``link_partner`` and ``link_axis`` of a layout."""
    partner = np.full(cluster_link.size, -1, dtype=np.int64)
    axis = np.zeros(cluster_link.size, dtype=np.int64)
    start = cluster_links[:-1][cluster_rows > 0]
    rows, columns = cluster_link[start], cluster_link[start + 1]
    partner[rows], partner[columns] = columns, rows
    axis[columns] = 1
    return partner, axis
