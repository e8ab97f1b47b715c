"""All messages of an instance at once, then all multipliers: the two halves of a parallel update, in log space."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from bactrian.compiling import njit
from bactrian.engines.numba.arithmetic import exp, normalise_logs
from bactrian.engines.numba.layout import Layout
from bactrian.engines.numba.ranges import LEAST, MOST
from bactrian.engines.numba.scratch import Scratch
from bactrian.engines.numba.stars import exp_message, incoming_message, update_constrained
from bactrian.engines.numba.tables import Numbers, Tables

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@njit(cache=True, nogil=True, error_model="numpy")  # no fast math, which Numba hands down to the exponential
def _pair_messages(
    exp_entries: Floats,
    entries: int,
    shift: float,
    rows: int,
    columns: int,
    scale: float,
    multipliers: Floats,
    row_offset: int,
    column_offset: int,
    rows_message: Floats,
    columns_message: Floats,
    to_columns: Floats,
    incoming: Floats,
) -> bool:
    """Both messages of a pair in linear space; False where the range demands log space."""
    row_top = exp_message(multipliers, row_offset, rows, scale, rows_message) + shift
    column_top = exp_message(multipliers, column_offset, columns, scale, columns_message) + shift
    for b in range(columns):
        to_columns[b] = 0.0
    low, high = np.inf, 0.0
    for a in range(rows):
        weight = rows_message[a]
        row = entries + a * columns
        total = 0.0
        for b in range(columns):
            entry = exp_entries[row + b]
            total += entry * columns_message[b]
            to_columns[b] += entry * weight
        low, high = min(low, total), max(high, total)
        incoming[row_offset + a] = total
    for b in range(columns):
        low, high = min(low, to_columns[b]), max(high, to_columns[b])
    if not (low > LEAST and high < MOST):
        return False
    for a in range(rows):
        incoming[row_offset + a] = math.log(incoming[row_offset + a]) + column_top
    for b in range(columns):
        incoming[column_offset + b] = math.log(to_columns[b]) + row_top
    return True


@njit(cache=True, nogil=True, error_model="numpy")
def all_messages(
    layout: Layout,
    tables: Tables,
    numbers: Numbers,
    multipliers: Floats,
    instance: int,
    incoming: Floats,
    scratch: Scratch,
) -> None:
    """Messages of all clusters of an instance to their hubs, log m of every link.

    Arrays are taken out of their named tuples before the loop, where each access would cost as much as the arithmetic.
    """
    cluster_table, cluster_rows, cluster_links = layout.cluster_table, layout.cluster_rows, layout.cluster_links
    cluster_link, link_offset, table_offset = layout.cluster_link, layout.link_offset, layout.table_offset
    exp_entries, shift, narrow = tables.exp_entries, tables.shift, tables.narrow
    cluster_number, table_number = numbers.cluster, numbers.table
    scores, small, product, belief = scratch.scores, scratch.small, scratch.product, scratch.belief
    for cluster in range(layout.instance_clusters[instance], layout.instance_clusters[instance + 1]):
        table, rows, kappa = cluster_table[cluster], cluster_rows[cluster], cluster_number[cluster]
        first, last = cluster_links[cluster], cluster_links[cluster + 1]
        done = False
        if rows > 0 and narrow[table] and table_number[table] == kappa:
            entries = table_offset[table]
            columns = (table_offset[table + 1] - entries) // rows
            done = _pair_messages(
                exp_entries, entries, shift[table], rows, columns, 1.0 / kappa, multipliers,
                link_offset[cluster_link[first]], link_offset[cluster_link[first + 1]], small, product, belief,
                incoming,
            )  # fmt: skip
        if not done:
            for position in range(first, last):
                link = cluster_link[position]
                incoming_message(
                    layout, tables, numbers, multipliers, link, scores, small, product, incoming, link_offset[link]
                )
        for position in range(first, last):
            link = cluster_link[position]
            _fix_gauge(incoming, link_offset[link], link_offset[link + 1])


@njit(cache=True, nogil=True, error_model="numpy")
def _fix_gauge(incoming: Floats, start: int, stop: int) -> None:
    """Make the largest entry of a message 0: a constant means nothing, but could grow or swing for ever."""
    top = -np.inf
    for k in range(start, stop):
        top = max(top, incoming[k])
    if top != -np.inf:
        for k in range(start, stop):
            incoming[k] -= top


@njit(cache=True, nogil=True, error_model="numpy")
def log_belief(
    hub_scores: Floats,
    offset: int,
    states: int,
    hub_number: float,
    link_cluster: Ints,
    cluster_number: Floats,
    link_offset: Ints,
    first: int,
    last: int,
    incoming: Floats,
    out: Floats,
    start: int,
) -> bool:
    """log b of a hub from the messages of its links ``first:last`` into ``out[start:]``; False: none is possible."""
    divisor = hub_number
    for k in range(states):
        out[start + k] = hub_scores[offset + k]
    for link in range(first, last):
        kappa = cluster_number[link_cluster[link]]
        message = link_offset[link]
        divisor += kappa
        for k in range(states):
            out[start + k] += kappa * incoming[message + k]
    inverse = 1.0 / divisor
    for k in range(states):
        out[start + k] *= inverse
    return bool(normalise_logs(out, start, start + states) > -np.inf)


@njit(cache=True, nogil=True, error_model="numpy")
def update_all_hubs(
    layout: Layout,
    tables: Tables,
    numbers: Numbers,
    multipliers: Floats,
    hub_log: Floats,
    incoming: Floats,
    instance: int,
    damping: float,
    belief: Floats,
) -> float:
    """Beliefs and multipliers of all hubs from the messages; the largest change, inf where no state is possible."""
    hub_offset, hub_links, link_offset = layout.hub_offset, layout.hub_links, layout.link_offset
    link_cluster, hub_scores = layout.link_cluster, tables.hub_scores
    hub_number, cluster_number = numbers.hub, numbers.cluster
    change = 0.0
    for hub in range(layout.instance_hubs[instance], layout.instance_hubs[instance + 1]):
        start, states = hub_offset[hub], hub_offset[hub + 1] - hub_offset[hub]
        first, last = hub_links[hub], hub_links[hub + 1]
        if not log_belief(
            hub_scores, start, states, hub_number[hub], link_cluster, cluster_number, link_offset, first, last,
            incoming, hub_log, start,
        ):  # fmt: skip
            return np.inf
        for k in range(states):
            belief[k] = exp(hub_log[start + k])
        for link in range(first, last):
            kappa = cluster_number[link_cluster[link]]
            at = link_offset[link]
            step = update_constrained(multipliers, at, hub_log, start, incoming, at, belief, states, kappa, damping)
            change = max(change, step)
    return change
