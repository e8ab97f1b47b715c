"""The best assignment of a forest of pairs, where it is the only one: max-product towards the roots, and back.

Every choice on the way back is checked: where another state would do as well, up to a tolerance, the instance is left
to :mod:`.first_optimum`, which finds the first of several best assignments. With all choices clear, an
assignment that differs from the one found differs somewhere first, and loses more than the tolerance there.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bactrian.compiling import njit
from bactrian.engines.numba.layout import Layout

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


@njit(cache=True, nogil=True, error_model="numpy")
def decode_pairs(
    layout: Layout, entries: Floats, hub_scores: Floats, tolerance: Floats, states: Ints, done: Flags, first: int,
    last: int,
) -> None:  # fmt: skip
    """Fill ``states`` of hubs and set ``done`` for the instances among ``first:last`` that are forests of pairs."""
    for m in range(first, last):
        done[m] = layout.instance_is_tree[m]
        for cluster in range(layout.instance_clusters[m], layout.instance_clusters[m + 1]):
            done[m] = done[m] and layout.cluster_rows[cluster] > 0
        if done[m]:
            parent = np.full(layout.instance_hubs[m + 1] - layout.instance_hubs[m], -1)
            total = _collect(layout, entries, hub_scores, m, parent)
            done[m] = _choose(layout, entries, total, tolerance[m], m, parent, states)


@njit(cache=True, nogil=True, error_model="numpy")
def _collect(layout: Layout, entries: Floats, hub_scores: Floats, m: int, parent: Ints) -> Floats:
    """Best scores of each hub's states with what hangs below it; ``parent`` gets its link to the hub above."""
    begin, end = layout.instance_hubs[m], layout.instance_hubs[m + 1]
    base = layout.hub_offset[begin]
    total = hub_scores[base : layout.hub_offset[end]].copy()
    above = np.ones(end - begin, np.bool_)
    for step in range(end - begin - 1, -1, -1):
        hub = layout.hub_order[begin + step]
        above[hub - begin] = False
        for link in range(layout.hub_links[hub], layout.hub_links[hub + 1]):
            upper = layout.link_hub[layout.link_partner[link]]
            if not above[upper - begin]:
                continue
            parent[hub - begin] = link
            start, size = layout.hub_offset[hub] - base, layout.hub_offset[hub + 1] - layout.hub_offset[hub]
            to, upper_size = layout.hub_offset[upper] - base, layout.hub_offset[upper + 1] - layout.hub_offset[upper]
            table = layout.table_offset[layout.cluster_table[layout.link_cluster[link]]]
            across, down = (upper_size, 1) if layout.link_axis[link] == 0 else (1, size)
            for x in range(upper_size):
                best = -np.inf
                for y in range(size):
                    best = max(best, total[start + y] + entries[table + y * across + x * down])
                total[to + x] += best
    return total


@njit(cache=True, nogil=True, error_model="numpy")
def _choose(layout: Layout, entries: Floats, total: Floats, slack: float, m: int, parent: Ints, states: Ints) -> bool:
    """States from the roots down; False where one is forbidden or not clearly the best."""
    begin, end = layout.instance_hubs[m], layout.instance_hubs[m + 1]
    base = layout.hub_offset[begin]
    for step in range(end - begin):
        hub = layout.hub_order[begin + step]
        start, size = layout.hub_offset[hub] - base, layout.hub_offset[hub + 1] - layout.hub_offset[hub]
        link = parent[hub - begin]
        table, across = 0, 0
        if link >= 0:
            upper = layout.link_hub[layout.link_partner[link]]
            upper_size = layout.hub_offset[upper + 1] - layout.hub_offset[upper]
            across, down = (upper_size, 1) if layout.link_axis[link] == 0 else (1, size)
            table = layout.table_offset[layout.cluster_table[layout.link_cluster[link]]] + states[upper] * down
        best, second = -np.inf, -np.inf
        for y in range(size):
            score = total[start + y]
            if link >= 0:
                score += entries[table + y * across]
            if score > best:
                best, second = score, best
                states[hub] = y
            else:
                second = max(second, score)
        if best == -np.inf or not second < best - slack:
            return False
    return True
