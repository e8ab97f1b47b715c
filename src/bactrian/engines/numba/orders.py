"""Orders of packed graphs: by keys, of hubs for message passing, colours of nodes, and how nodes are peeled off."""

from __future__ import annotations

import numpy as np

from bactrian.arrays import Bools, Ints
from bactrian.compiling import kernel, njit, setup


@setup
def sweep_order(
    instance_hubs: Ints, hub_links: Ints, link_cluster: Ints, link_hub: Ints, cluster_links: Ints, cluster_link: Ints
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


@setup
def core_numbers(pointer: Ints, neighbours: Ints) -> Ints:
    """(n_nodes,) the largest k for which a node is in the k-core: what is left where all nodes of less degree go.

    The neighbours of node v are ``neighbours[pointer[v]:pointer[v + 1]]``. Nodes are peeled off in the order of what is
    left of their degrees, kept sorted by swapping a node with the first of its degree (Batagelj and Zaversnik 2003).
    """
    n_nodes = pointer.size - 1
    left, most = np.empty(n_nodes, dtype=np.int64), 0
    for v in range(n_nodes):
        left[v] = pointer[v + 1] - pointer[v]
        most = max(most, left[v])
    first = np.zeros(most + 2, dtype=np.int64)  # of each degree in the order
    for v in range(n_nodes):
        first[left[v] + 1] += 1
    for degree in range(most + 1):
        first[degree + 1] += first[degree]
    order, place = np.empty(n_nodes, dtype=np.int64), np.empty(n_nodes, dtype=np.int64)
    for v in range(n_nodes):
        place[v] = first[left[v]]
        order[place[v]] = v
        first[left[v]] += 1
    for degree in range(most, 0, -1):
        first[degree] = first[degree - 1]
    first[0] = 0
    for position in range(n_nodes):
        v = order[position]
        for at in range(pointer[v], pointer[v + 1]):
            other = neighbours[at]
            if left[other] > left[v]:
                swapped = order[first[left[other]]]
                order[place[other]], order[place[swapped]] = swapped, other
                place[other], place[swapped] = place[swapped], place[other]
                first[left[other]] += 1
                left[other] -= 1
    return left
