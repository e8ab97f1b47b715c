"""Max-sum messages and joint scores: what the decoding methods share.

Symbols: for a cluster a with scores theta_a and a link l from it to hub v, with multipliers d on links,

    m_l(x) = max over states of a with x_v = x of theta_a + sum over the other links l' of a of d_l'

Everything here is in log space; -inf marks a forbidden state, and no difference of infinities is ever taken.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bactrian.compiling import njit
from bactrian.engines.numba.layout import Ints, Layout
from bactrian.engines.numba.scratch import largest_sizes

Floats = NDArray[np.float64]
Scratch = tuple[Floats, Floats, Floats, Floats]


@njit(cache=True, nogil=True, error_model="numpy")
def scratch(layout: Layout, first: int, last: int) -> Scratch:
    """Work space for instances ``first:last``: cluster scores, hub states, and twice the messages around a hub."""
    table, states, star = largest_sizes(layout, first, last)
    star = max(star, states)
    return np.empty(table), np.empty(states), np.empty(star), np.empty(star)


@njit(cache=True, nogil=True, error_model="numpy")
def fill_sums(layout: Layout, entries: Floats, multipliers: Floats, cluster: int, skipped: int, out: Floats) -> int:
    """theta_a plus the multipliers of all links but ``skipped``; returns the table's size."""
    table = layout.cluster_table[cluster]
    start = layout.table_offset[table]
    size = layout.table_offset[table + 1] - start
    for k in range(size):
        out[k] = entries[start + k]
    for position in range(layout.cluster_links[cluster], layout.cluster_links[cluster + 1]):
        link = layout.cluster_link[position]
        if link != skipped:
            projection = layout.link_projection[link]
            offset = layout.link_offset[link]
            for k in range(size):
                out[k] += multipliers[offset + layout.projection[projection + k]]
    return size


@njit(cache=True, nogil=True, error_model="numpy")
def max_message(
    layout: Layout, entries: Floats, multipliers: Floats, link: int, sums: Floats, out: Floats, start: int
) -> None:
    """m of a link into ``out[start:]``; ``sums`` is scratch."""
    cluster = layout.link_cluster[link]
    states = layout.link_offset[link + 1] - layout.link_offset[link]
    for k in range(states):
        out[start + k] = -np.inf
    rows = layout.cluster_rows[cluster]
    if rows > 0:
        table = layout.cluster_table[cluster]
        first_entry = layout.table_offset[table]
        columns = (layout.table_offset[table + 1] - first_entry) // rows
        row_link = layout.cluster_link[layout.cluster_links[cluster]]
        column_link = layout.cluster_link[layout.cluster_links[cluster] + 1]
        if link == column_link:
            other = layout.link_offset[row_link]
            for a in range(rows):
                told = multipliers[other + a]
                row = first_entry + a * columns
                for b in range(columns):
                    out[start + b] = max(out[start + b], entries[row + b] + told)
        else:
            other = layout.link_offset[column_link]
            for a in range(rows):
                row = first_entry + a * columns
                best = -np.inf
                for b in range(columns):
                    best = max(best, entries[row + b] + multipliers[other + b])
                out[start + a] = best
        return
    size = fill_sums(layout, entries, multipliers, cluster, link, sums)
    projection = layout.link_projection[link]
    for k in range(size):
        state = start + layout.projection[projection + k]
        out[state] = max(out[state], sums[k])


@njit(cache=True, nogil=True, error_model="numpy")
def update_star(
    layout: Layout,
    entries: Floats,
    hub_scores: Floats,
    multipliers: Floats,
    hub: int,
    damping: float,
    work: Scratch,
) -> float:
    """Max-product at one hub: d_l = theta_v + sum of m over its other links, largest 0; returns the largest change.

    A state that the messages forbid becomes -inf at once, undamped. Returns -1 where they forbid all states, which
    proves that no joint state is allowed if the multipliers started at 0.
    """
    sums, suffix, incoming, others = work
    start = layout.hub_offset[hub]
    states = layout.hub_offset[hub + 1] - start
    first, last = layout.hub_links[hub], layout.hub_links[hub + 1]
    for k in range(states):
        suffix[k] = hub_scores[start + k]
    for link in range(first, last):
        message = (link - first) * states
        max_message(layout, entries, multipliers, link, sums, incoming, message)
        for k in range(states):
            others[message + k] = suffix[k]
            suffix[k] += incoming[message + k]
    for k in range(states):
        suffix[k] = 0.0
    change = 0.0
    for link in range(last - 1, first - 1, -1):
        message = (link - first) * states
        offset = layout.link_offset[link]
        top = -np.inf
        for k in range(states):
            others[message + k] += suffix[k]
            suffix[k] += incoming[message + k]
            top = max(top, others[message + k])
        if top == -np.inf:
            return -1.0
        for k in range(states):
            new = others[message + k] - top
            old = multipliers[offset + k]
            if new != -np.inf and old != -np.inf:
                change = max(change, abs(new - old))
                new += damping * (old - new)
            elif new != old:
                change = np.inf
            multipliers[offset + k] = new
    return change


@njit(cache=True, nogil=True, error_model="numpy")
def joint_score(layout: Layout, entries: Floats, hub_scores: Floats, strides: Ints, states: Ints, m: int) -> float:
    """Joint log score of one instance's assignment on a factor graph; ``states`` has one entry per hub."""
    total = 0.0
    for hub in range(layout.instance_hubs[m], layout.instance_hubs[m + 1]):
        total += hub_scores[layout.hub_offset[hub] + states[hub]]
    for cluster in range(layout.instance_clusters[m], layout.instance_clusters[m + 1]):
        index = layout.table_offset[layout.cluster_table[cluster]]
        for position in range(layout.cluster_links[cluster], layout.cluster_links[cluster + 1]):
            link = layout.cluster_link[position]
            index += strides[link] * states[layout.link_hub[link]]
        total += entries[index]
    return total


@njit(cache=True, nogil=True, error_model="numpy")
def first_best(values: Floats, size: int) -> int:
    """First index of ``values[:size]`` that is within rounding of the largest."""
    top = -np.inf
    for k in range(size):
        top = max(top, values[k])
    for k in range(size):
        if values[k] == top or values[k] >= top - 1e-12 * max(1.0, abs(top)):
            return k
    return 0
