"""Blocks of variables that can be sampled jointly.

The variables of an instance are split into blocks such that, with all other blocks fixed, the clusters join the
variables of a block in pairs that form a forest (Hamze & de Freitas, UAI 2004). A tree of pairs is one block.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bactrian.arrays import Bools, Floats, Ints
from bactrian.compiling import kernel, njit
from bactrian.engines.numba.layout import Layout
from bactrian.engines.numba.orders import root_of


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
def conditional_start(layout: Layout, strides: Ints, states: Ints, link: int, skipped: int) -> int:
    """Entry of a link's cluster at the states of its variables but those of two links."""
    cluster = layout.link_cluster[link]
    index = layout.table_offset[layout.cluster_table[cluster]]
    for position in range(layout.cluster_links[cluster], layout.cluster_links[cluster + 1]):
        other = layout.cluster_link[position]
        if other != link and other != skipped:
            index += strides[other] * states[layout.link_hub[other]]
    return index
