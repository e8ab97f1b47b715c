"""Acyclic subsets of a packed graph, drawn so that every part appears in some of them."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from bactrian.engines.numba.layout import Layout

Ints = NDArray[np.int64]


@njit(cache=True, nogil=True)
def _root(parent: Ints, node: int) -> int:
    while parent[node] != node:
        parent[node] = parent[parent[node]]
        node = parent[node]
    return node


@njit(cache=True, nogil=True)
def _joins(layout: Layout, item: int, by_hub: bool, base: int, parent: Ints, roots: Ints) -> bool:
    """Add an item to the forest where it closes no cycle: its ends are in components of their own."""
    if by_hub:
        first, last = layout.hub_links[item], layout.hub_links[item + 1]
    else:
        first, last = layout.cluster_links[item], layout.cluster_links[item + 1]
    for position in range(first, last):
        end = layout.link_cluster[position] if by_hub else layout.link_hub[layout.cluster_link[position]]
        root = _root(parent, end - base)
        for earlier in range(position - first):
            if roots[earlier] == root:
                return False
        roots[position - first] = root
    for other in range(1, last - first):
        parent[roots[other]] = roots[0]
    return True


@njit(cache=True, nogil=True)
def appearances(layout: Layout, instance: int, by_hub: bool, order: Ints, n_forests: int, counts: Ints) -> int:
    """How often each item is in a maximal acyclic subset; returns the number of subsets drawn.

    Items are clusters that join hubs or, ``by_hub``, hubs that join clusters. ``order`` lists the instance's items at
    random. Each subset is filled greedily; what it took goes to the end of the order, so that the items taken least
    often come first, and subsets are drawn until every item was taken and there are ``n_forests``.
    """
    ends = layout.instance_clusters if by_hub else layout.instance_hubs
    base, n_nodes = ends[instance], ends[instance + 1] - ends[instance]
    widest = 1
    for item in order:
        links = layout.hub_links if by_hub else layout.cluster_links
        widest = max(widest, links[item + 1] - links[item])
    parent, roots = np.empty(n_nodes, dtype=np.int64), np.empty(widest, dtype=np.int64)
    taken = np.empty(order.size, dtype=np.int64)
    drawn, missing = 0, order.size
    while drawn < n_forests or missing > 0:
        for node in range(n_nodes):
            parent[node] = node
        kept, n_taken = 0, 0
        for position in range(order.size):
            item = order[position]
            if _joins(layout, item, by_hub, base, parent, roots):
                missing -= counts[item] == 0
                counts[item] += 1
                taken[n_taken] = item
                n_taken += 1
            else:
                order[kept] = item
                kept += 1
        for position in range(n_taken):
            order[kept + position] = taken[position]
        drawn += 1
        if kept == 0:  # the graph is a forest: every subset is the same
            break
    return drawn
