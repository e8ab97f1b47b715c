"""Residual belief propagation on pairs in linear space: the fast path behind :mod:`bactrian.engines.numba.residual`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bactrian.compiling import njit
from bactrian.engines.numba.arithmetic import FAST_MATH
from bactrian.engines.numba.layout import Layout
from bactrian.engines.numba.linear import Linear, hub_belief, pair_messages, to_column, to_row
from bactrian.engines.numba.queue import FAR, ROUNDING, STALE, Queue, make_heap, sift_down, sift_up
from bactrian.engines.numba.schedules import CONVERGED, RUNNING
from bactrian.engines.numba.tables import Tables

Floats = NDArray[np.float64]


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST_MATH)
def _spread_of_ratio(belief: Floats, states: int, m: Floats, u: Floats, offset: int, commit: bool) -> float:
    """max / min - 1 of new over old multipliers, no less than the range of their logarithms; at most ``FAR``."""
    low, high = np.inf, 0.0
    for k in range(states):
        new = belief[k] / m[offset + k]
        ratio = new / u[offset + k]
        low, high = min(low, ratio), max(high, ratio)
        if commit:
            u[offset + k] = new
    return min(high - low, FAR * low) / low


@njit(cache=True, nogil=True, error_model="numpy")
def first_linear_pass(
    layout: Layout, tables: Tables, linear: Linear, queue: Queue, instance: int, belief: Floats
) -> bool:
    """As :func:`_first_pass`, in linear space; False where log space is needed."""
    base, stop = layout.instance_hubs[instance], layout.instance_hubs[instance + 1]
    hub_offset, hub_links, link_offset = layout.hub_offset, layout.hub_links, layout.link_offset
    if not pair_messages(layout, tables, linear, instance):
        return False
    for hub in range(base, stop):
        first, last, states = hub_links[hub], hub_links[hub + 1], hub_offset[hub + 1] - hub_offset[hub]
        if not hub_belief(
            linear.psi, hub_offset[hub], states, linear.incoming, link_offset[first], last - first, belief
        ):
            return False
        change = 0.0
        for link in range(first, last):
            queue.pending[link] = 0.0
            step = _spread_of_ratio(belief, states, linear.incoming, linear.outgoing, link_offset[link], False)
            change = max(change, step)
        queue.priority[hub] = change
    make_heap(queue.heap, queue.place, queue.priority, base, stop)
    return True


@njit(cache=True, nogil=True, error_model="numpy")
def run_linear(
    layout: Layout,
    tables: Tables,
    linear: Linear,
    queue: Queue,
    instance: int,
    tolerance: float,
    limit: float,
    belief: Floats,
) -> tuple[int, int]:
    """As :func:`_run_instance`, in linear space; status -1 where log space is needed."""
    hub_offset, hub_links, link_offset = layout.hub_offset, layout.hub_links, layout.link_offset
    link_cluster, link_hub, cluster_table = layout.link_cluster, layout.link_hub, layout.cluster_table
    cluster_links, cluster_link, cluster_rows = layout.cluster_links, layout.cluster_link, layout.cluster_rows
    table_offset, entries = layout.table_offset, tables.exp_entries
    pending, contraction = queue.pending, queue.contraction
    heap, place, priority = queue.heap, queue.place, queue.priority
    u, m, psi = linear.outgoing, linear.incoming, linear.psi
    base, stop = layout.instance_hubs[instance], layout.instance_hubs[instance + 1]
    updates = 0
    while stop > base and updates < limit and not queue.late[0]:
        hub = heap[base]
        if priority[hub] <= tolerance:
            return CONVERGED, updates
        start, states = hub_offset[hub], hub_offset[hub + 1] - hub_offset[hub]
        first, last = hub_links[hub], hub_links[hub + 1]
        stale = STALE * tolerance / max(1, last - first)
        left = 0.0
        safe = True
        for link in range(first, last):
            if pending[link] > stale:
                cluster = link_cluster[link]
                ends, rows, at = cluster_links[cluster], cluster_rows[cluster], table_offset[cluster_table[cluster]]
                columns = (table_offset[cluster_table[cluster] + 1] - at) // rows
                row, column = cluster_link[ends], cluster_link[ends + 1]
                if link == row:
                    safe &= to_row(entries, at, rows, columns, u, link_offset[column], m, link_offset[row])
                else:
                    safe &= to_column(entries, at, rows, columns, u, link_offset[row], m, link_offset[column])
                pending[link] = 0.0
                updates += 1
            left += pending[link]
        if not (safe and hub_belief(psi, start, states, m, link_offset[first], last - first, belief)):
            return -1, updates
        for link in range(first, last):
            cluster = link_cluster[link]
            change = _spread_of_ratio(belief, states, m, u, link_offset[link], True)
            change *= contraction[cluster_table[cluster]]
            if change > ROUNDING:
                ends = cluster_links[cluster]
                other = cluster_link[ends + 1] if cluster_link[ends] == link else cluster_link[ends]
                pending[other] += change
                priority[link_hub[other]] += change
                sift_up(heap, place, priority, base, link_hub[other])
        priority[hub] = left
        sift_down(heap, place, priority, base, stop - base, hub)
    return CONVERGED if stop == base else RUNNING, updates
