"""Orders of packed graphs: of hubs for message passing, by keys, colours, peeled off, and in blocks.

A block holds variables that can be sampled jointly: with all other blocks fixed, the clusters join its variables in
pairs that form a forest (Hamze & de Freitas, UAI 2004). A tree of pairs is one block.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from bactrian.arrays import Bools, Floats, Ints
from bactrian.compiling import kernel, njit, setup
from bactrian.engines.numba.layout import Layout


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


def stable_order(keys: Ints, n_keys: int) -> Ints:
    """``np.argsort(keys, kind="stable")`` of numbers from 0 to ``n_keys`` - 1, counted instead of compared."""
    entries = np.ones(keys.size, dtype=np.bool_), keys, np.arange(keys.size + 1)
    return sp.csc_array(entries, shape=(n_keys, keys.size)).tocsr().indices.astype(np.int64)


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


class Blocks(NamedTuple):
    """Blocks of all instances."""

    instance_blocks: Ints  #: (M + 1,) blocks of instance m
    bounds: Ints  #: (n_blocks + 1,) places of a block's variables in ``order``
    order: Ints  #: (H,) variables, block after block, parents before children
    up_link: Ints  #: (H,) link of a variable to the cluster that it shares with its parent, or -1 for a root
    down_link: Ints  #: (H,) the parent's link to that cluster
    inside: Bools  #: (L,) the link belongs to such a cluster


@kernel()
def build_blocks(layout: Layout, hub_scores: Floats, largest_pair: int) -> Blocks:
    """Blocks filled greedily; a pair of a block has at most ``largest_pair`` joint states.

    A variable joins the block under way if no cluster would then hold three of its variables and no cycle would close.
    A variable with one allowed state is a block of its own, so that it closes no cycle.
    """
    n = layout.hub_offset.size - 1
    block = np.full(n, -1, np.int64)
    order = np.empty(n, np.int64)
    up_link, down_link = np.full(n, -1, np.int64), np.full(n, -1, np.int64)
    inside = np.zeros(layout.link_hub.size, np.bool_)
    parent, met = np.full(n, -1, np.int64), np.full(n, -1, np.int64)
    bounds = np.zeros(n + 1, np.int64)
    instance_blocks = np.zeros(layout.instance_hubs.size, np.int64)
    n_blocks, filled = 0, 0
    for m in range(layout.instance_hubs.size - 1):
        left = np.empty(layout.instance_hubs[m + 1] - layout.instance_hubs[m], np.int64)
        n_left = 0
        for hub in range(layout.instance_hubs[m], layout.instance_hubs[m + 1]):
            allowed = 0
            for k in range(layout.hub_offset[hub], layout.hub_offset[hub + 1]):
                allowed += hub_scores[k] != -np.inf
            if allowed <= 1:
                block[hub] = n_blocks
                order[filled] = hub
                filled += 1
                n_blocks += 1
                bounds[n_blocks] = filled
            else:
                left[n_left] = hub
                n_left += 1
        while n_left > 0:
            kept = 0
            for i in range(n_left):
                hub = left[i]
                if _fits(layout, block, parent, met, hub, n_blocks, largest_pair):
                    block[hub] = n_blocks
                    _join(layout, block, parent, hub, n_blocks)
                else:
                    left[kept] = hub
                    kept += 1
            n_left = kept
            filled = _order_block(layout, block, n_blocks, m, order, filled, (up_link, down_link, inside))
            n_blocks += 1
            bounds[n_blocks] = filled
        instance_blocks[m + 1] = n_blocks
    return Blocks(instance_blocks, bounds[: n_blocks + 1].copy(), order, up_link, down_link, inside)


@njit()
def _fits(layout: Layout, block: Ints, parent: Ints, met: Ints, hub: int, number: int, largest_pair: int) -> bool:
    size = layout.hub_offset[hub + 1] - layout.hub_offset[hub]
    stamp = number * block.size + hub
    for link in range(layout.hub_links[hub], layout.hub_links[hub + 1]):
        cluster = layout.link_cluster[link]
        members = 0
        for position in range(layout.cluster_links[cluster], layout.cluster_links[cluster + 1]):
            other = layout.link_hub[layout.cluster_link[position]]
            if other != hub and block[other] == number:
                tree = root_of(parent, other)
                members += 1
                pair = size * (layout.hub_offset[other + 1] - layout.hub_offset[other])
                if members > 1 or met[tree] == stamp or pair > largest_pair:
                    return False
                met[tree] = stamp
    return True


@njit()
def _join(layout: Layout, block: Ints, parent: Ints, hub: int, number: int) -> None:
    for link in range(layout.hub_links[hub], layout.hub_links[hub + 1]):
        cluster = layout.link_cluster[link]
        for position in range(layout.cluster_links[cluster], layout.cluster_links[cluster + 1]):
            other = layout.link_hub[layout.cluster_link[position]]
            if other != hub and block[other] == number:
                parent[root_of(parent, other)] = root_of(parent, hub)


@njit()
def _order_block(
    layout: Layout, block: Ints, number: int, m: int, order: Ints, filled: int, links: tuple[Ints, Ints, Bools]
) -> int:
    """Breadth-first order of a block's forest from ``order[filled]`` on; returns where it ends."""
    up_link, down_link, inside = links
    head = filled
    for start in range(layout.instance_hubs[m], layout.instance_hubs[m + 1]):
        if block[start] != number or up_link[start] >= 0:
            continue
        order[filled] = start
        filled += 1
        while head < filled:
            hub = order[head]
            head += 1
            for link in range(layout.hub_links[hub], layout.hub_links[hub + 1]):
                if inside[link]:
                    continue
                cluster = layout.link_cluster[link]
                for position in range(layout.cluster_links[cluster], layout.cluster_links[cluster + 1]):
                    child_link = layout.cluster_link[position]
                    child = layout.link_hub[child_link]
                    if child != hub and block[child] == number:
                        up_link[child], down_link[child] = child_link, link
                        inside[link], inside[child_link] = True, True
                        order[filled] = child
                        filled += 1
    return filled


@njit()
def entry_of(layout: Layout, strides: Ints, states: Ints, cluster: int, free: int, also: int) -> int:
    """Entry of a cluster at the states of its variables, but at 0 of two links; -1 for none."""
    index = layout.table_offset[layout.cluster_table[cluster]]
    for position in range(layout.cluster_links[cluster], layout.cluster_links[cluster + 1]):
        link = layout.cluster_link[position]
        if link != free and link != also:
            index += strides[link] * states[layout.link_hub[link]]
    return index
