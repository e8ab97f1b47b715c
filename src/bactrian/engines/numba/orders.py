"""Orders and subsets of packed graphs: by keys, of hubs for message passing, colours of nodes, and acyclic subsets."""

from __future__ import annotations

import numpy as np

from bactrian.arrays import Bools, Ints
from bactrian.compiling import kernel, njit, setup
from bactrian.engines.numba.layout import Layout


@setup
def sweep_order(
    instance_hubs: Ints,
    hub_links: Ints,
    link_cluster: Ints,
    link_hub: Ints,
    cluster_links: Ints,
    cluster_link: Ints,
) -> tuple[Ints, Bools]:
    """Order of each instance's hubs, and whether its graph of hubs and clusters is a forest.

    On a forest the order is breadth-first: a backward sweep over it collects messages at the roots and a forward sweep
    distributes them, so that two sweeps of belief propagation are exact. Elsewhere hubs keep the order given.
    """
    n_instances = instance_hubs.size - 1
    order = np.empty(hub_links.size - 1, dtype=np.int64)
    is_tree = np.ones(n_instances, dtype=np.bool_)
    seen_hub = np.zeros(order.size, dtype=np.bool_)
    seen_cluster = np.zeros(cluster_links.size - 1, dtype=np.bool_)
    for instance in range(n_instances):
        first, last = instance_hubs[instance], instance_hubs[instance + 1]
        filled = head = first
        root = first
        while is_tree[instance] and head < last:
            if head == filled:  # a new component
                while seen_hub[root]:
                    root += 1
                seen_hub[root] = True
                order[filled] = root
                filled += 1
            hub = order[head]
            head += 1
            for link in range(hub_links[hub], hub_links[hub + 1]):
                cluster = link_cluster[link]
                if seen_cluster[cluster]:
                    continue
                seen_cluster[cluster] = True
                for position in range(cluster_links[cluster], cluster_links[cluster + 1]):
                    other = link_hub[cluster_link[position]]
                    if cluster_link[position] == link:
                        continue
                    if seen_hub[other]:  # by another way: a cycle
                        is_tree[instance] = False
                        break
                    seen_hub[other] = True
                    order[filled] = other
                    filled += 1
        if not is_tree[instance]:
            for hub in range(first, last):
                order[hub] = hub
    return order, is_tree


@setup
def stable_order(keys: Ints, n_keys: int) -> Ints:
    """``np.argsort(keys, kind="stable")`` of numbers from 0 to ``n_keys`` - 1, counted instead of compared."""
    place = np.zeros(n_keys + 1, dtype=np.int64)
    for key in keys:
        place[key + 1] += 1
    for key in range(n_keys):
        place[key + 1] += place[key]
    order = np.empty(keys.size, dtype=np.int64)
    for item in range(keys.size):
        key = keys[item]
        order[place[key]] = item
        place[key] += 1
    return order


@kernel()
def greedy_colours(pointer: Ints, neighbours: Ints) -> Ints:
    """(n_nodes,) the smallest colour that no earlier neighbour has, node after node.

    The neighbours of node v are ``neighbours[pointer[v]:pointer[v + 1]]``. Chains and grids in their natural order get
    two colours; no graph gets more than its largest degree plus one.
    """
    n_nodes = pointer.size - 1
    colours = np.full(n_nodes, -1, dtype=np.int64)
    largest = 0
    for v in range(n_nodes):
        largest = max(largest, pointer[v + 1] - pointer[v])
    taken_by = np.full(largest + 1, -1, dtype=np.int64)
    for v in range(n_nodes):
        for position in range(pointer[v], pointer[v + 1]):
            colour = colours[neighbours[position]]
            if colour >= 0:
                taken_by[colour] = v
        colour = 0
        while taken_by[colour] == v:
            colour += 1
        colours[v] = colour
    return colours


@njit(error_model="python")
def root_of(parent: Ints, node: int) -> int:
    """Root of a node's component; a root has minus the size of its component for a parent."""
    root = node
    while parent[root] >= 0:
        root = parent[root]
    while node != root:
        parent[node], node = root, parent[node]
    return root


@njit(error_model="python")
def _joins(ends: Ints, first: int, last: int, parent: Ints, roots: Ints) -> bool:
    """Add an item to the forest where it closes no cycle: its ends ``first:last`` are in components of their own."""
    largest = 0
    for position in range(first, last):
        root = root_of(parent, ends[position])
        for earlier in range(position - first):
            if roots[earlier] == root:
                return False
        roots[position - first] = root
        if parent[root] < parent[roots[largest]]:
            largest = position - first
    for other in range(last - first):
        if other != largest:
            parent[roots[largest]] += parent[roots[other]]
            parent[roots[other]] = roots[largest]
    return True


@kernel(error_model="python")
def appearances(
    layout: Layout, instance: int, by_hub: bool, order: Ints, n_forests: int, counts: Ints, late: Bools
) -> int:
    """How often each item is in a maximal acyclic subset; returns the number of subsets drawn.

    Items are clusters that join hubs or, ``by_hub``, hubs that join clusters. ``order`` lists the instance's items at
    random. Each subset is filled greedily; what it took goes to the end of the order, so that the items taken least
    often come first, and subsets are drawn until every item was taken and there are ``n_forests``, or it is ``late``:
    then the one under way counts only if it is needed.
    """
    of_instance = layout.instance_clusters if by_hub else layout.instance_hubs
    base, n_nodes = of_instance[instance], of_instance[instance + 1] - of_instance[instance]
    # Arrays of their own: looking them up in the layout for every item would take longer than all else.
    links = layout.hub_links if by_hub else layout.cluster_links
    first = links[order.min()] if order.size else 0
    ends = np.empty(links[order.max() + 1] - first if order.size else 0, dtype=np.int64)
    widest = 1
    for item in order:
        widest = max(widest, links[item + 1] - links[item])
        for position in range(links[item], links[item + 1]):
            end = layout.link_cluster[position] if by_hub else layout.link_hub[layout.cluster_link[position]]
            ends[position - first] = end - base
    parent, roots = np.empty(n_nodes, dtype=np.int64), np.empty(widest, dtype=np.int64)
    taken = np.empty(order.size, dtype=np.int64)
    drawn, missing = 0, order.size
    while missing > 0 or (drawn < n_forests and not late[0]):
        for node in range(n_nodes):
            parent[node] = -1
        kept, n_taken, needed = 0, 0, missing > 0
        for position in range(order.size):
            if late[0] and not needed:
                for other in range(n_taken):
                    counts[taken[other]] -= 1
                return drawn
            item = order[position]
            if _joins(ends, links[item] - first, links[item + 1] - first, parent, roots):
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
