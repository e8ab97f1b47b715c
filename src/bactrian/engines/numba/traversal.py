"""Order of hubs for message passing."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bactrian.compiling import njit

Ints = NDArray[np.int64]


@njit(cache=True, nogil=True)
def sweep_order(
    instance_hubs: Ints,
    hub_links: Ints,
    link_cluster: Ints,
    link_hub: Ints,
    cluster_links: Ints,
    cluster_link: Ints,
) -> tuple[Ints, NDArray[np.bool_]]:
    """Order of each instance's hubs, and whether its graph of hubs and clusters is a forest.

    On a forest the order is breadth-first: a backward sweep over it collects messages at the roots and a forward sweep
    distributes them, so that two sweeps of belief propagation are exact. Elsewhere hubs keep the order given.
    """
    n_instances = instance_hubs.size - 1
    order = np.empty(hub_links.size - 1, dtype=np.int64)
    is_tree = np.empty(n_instances, dtype=np.bool_)
    seen_hub = np.zeros(order.size, dtype=np.bool_)
    seen_cluster = np.zeros(cluster_links.size - 1, dtype=np.bool_)
    for instance in range(n_instances):
        first, last = instance_hubs[instance], instance_hubs[instance + 1]
        filled = first
        head = first
        nodes = last - first
        components = 0
        for root in range(first, last):
            if seen_hub[root]:
                continue
            components += 1
            seen_hub[root] = True
            order[filled] = root
            filled += 1
            while head < filled:
                hub = order[head]
                head += 1
                for link in range(hub_links[hub], hub_links[hub + 1]):
                    cluster = link_cluster[link]
                    if seen_cluster[cluster]:
                        continue
                    seen_cluster[cluster] = True
                    nodes += 1
                    for position in range(cluster_links[cluster], cluster_links[cluster + 1]):
                        other = link_hub[cluster_link[position]]
                        if not seen_hub[other]:
                            seen_hub[other] = True
                            order[filled] = other
                            filled += 1
        links = hub_links[last] - hub_links[first]
        is_tree[instance] = links == nodes - components
        if not is_tree[instance]:
            for hub in range(first, last):
                order[hub] = hub
    return order, is_tree
