"""All messages of an instance at once, then all multipliers: the two halves of a parallel update.

In log space for any instance, and in linear space where that is safe. Eligible are instances whose clusters are all
pairs between two hubs, with Bethe's numbers (kappa = 1, and 1 - degree for hubs), finite scores and tables of
moderate range. With E a table's exponential, psi a hub's and l its links,

    m_l = E'u / max,    b = psi prod_l m_l / max,    u_l = b / m_l        (u_l = exp(d_l), up to a constant)

so that neither exponentials nor logarithms are left. Every product is checked against the range of floating point;
where digits could be lost the caller goes on in log space, from the last multipliers stored.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from bactrian.arrays import Bools, Floats, Ints
from bactrian.compiling import njit
from bactrian.engines.numba.arithmetic import (
    FAST_MATH,
    LEAST,
    LEAST_RATIO,
    MOST,
    RISE,
    RISING,
    WIDEST,
    exp,
    normalise_logs,
)
from bactrian.engines.numba.layout import Layout
from bactrian.engines.numba.stars import exp_message, incoming_message, update_constrained
from bactrian.engines.numba.tables import Numbers, Scratch, Tables


class LinearMessages(NamedTuple):
    """Messages of all instances in linear space."""

    outgoing: Floats  #: (n_link_states,) u
    incoming: Floats  #: (n_link_states,) m
    psi: Floats  #: (n_hub_states,) exp(theta_v), largest entry 1
    in_use: Bools  #: (M,) kept by the residual schedule between calls


@njit(cache=True, nogil=True, error_model="numpy")
def _exponential(logs: Floats, start: int, stop: int, out: Floats) -> bool:
    """exp(logs - top) of one hub or link; False where the range is too wide."""
    top, bottom = -np.inf, np.inf
    for k in range(start, stop):
        top, bottom = max(top, logs[k]), min(bottom, logs[k])
    if not top - bottom < WIDEST:
        return False
    for k in range(start, stop):
        out[k] = exp(logs[k] - top)
    return True


@njit(cache=True, nogil=True, error_model="numpy")
def load_instance(
    layout: Layout, tables: Tables, numbers: Numbers, multipliers: Floats, linear: LinearMessages, instance: int
) -> bool:
    """Fill the messages of an instance from its multipliers; False where it is not eligible."""
    cluster_rows, cluster_table = layout.cluster_rows, layout.cluster_table
    hub_offset, hub_links, link_offset = layout.hub_offset, layout.hub_links, layout.link_offset
    for cluster in range(layout.instance_clusters[instance], layout.instance_clusters[instance + 1]):
        table = cluster_table[cluster]
        if cluster_rows[cluster] == 0 or not tables.narrow[table]:
            return False
        if numbers.cluster[cluster] != 1.0 or numbers.table[table] != 1.0:
            return False
    for hub in range(layout.instance_hubs[instance], layout.instance_hubs[instance + 1]):
        if numbers.hub[hub] != 1.0 - (hub_links[hub + 1] - hub_links[hub]):
            return False
        if not _exponential(tables.hub_scores, hub_offset[hub], hub_offset[hub + 1], linear.psi):
            return False
        for link in range(hub_links[hub], hub_links[hub + 1]):
            if not _exponential(multipliers, link_offset[link], link_offset[link + 1], linear.outgoing):
                return False
    return True


@njit(cache=True, nogil=True, error_model="numpy")
def store_instance(layout: Layout, linear: LinearMessages, multipliers: Floats, instance: int) -> None:
    """Write the logarithms of an instance's messages to its multipliers."""
    hubs = layout.instance_hubs[instance], layout.instance_hubs[instance + 1]
    first, last = layout.hub_links[hubs[0]], layout.hub_links[hubs[1]]
    for k in range(layout.link_offset[first], layout.link_offset[last]):
        multipliers[k] = math.log(linear.outgoing[k])


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST_MATH)
def _normalise(values: Floats, start: int, size: int) -> bool:
    """Divide by the largest entry; False where entries lie too far apart."""
    low, high = values[start], values[start]
    for k in range(1, size):
        low, high = min(low, values[start + k]), max(high, values[start + k])
    if not (low > LEAST and low > LEAST_RATIO * high):
        return False
    inverse = 1.0 / high
    for k in range(size):
        values[start + k] *= inverse
    return True


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST_MATH)
def to_row(entries: Floats, at: int, rows: int, columns: int, u: Floats, of: int, m: Floats, to: int) -> bool:
    """m of a pair's first hub from u of its second."""
    for a in range(rows):
        row = at + a * columns
        total = 0.0
        for b in range(columns):
            total += entries[row + b] * u[of + b]
        m[to + a] = total
    return _normalise(m, to, rows)


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST_MATH)
def to_column(entries: Floats, at: int, rows: int, columns: int, u: Floats, of: int, m: Floats, to: int) -> bool:
    """m of a pair's second hub from u of its first."""
    for b in range(columns):
        m[to + b] = 0.0
    for a in range(rows):
        weight = u[of + a]
        row = at + a * columns
        for b in range(columns):
            m[to + b] += entries[row + b] * weight
    return _normalise(m, to, columns)


@njit(cache=True, nogil=True, error_model="numpy")
def pair_messages(layout: Layout, tables: Tables, linear: LinearMessages, instance: int) -> bool:
    """All messages of an instance's pairs to their hubs; False where log space is needed."""
    cluster_table, cluster_rows, cluster_links = layout.cluster_table, layout.cluster_rows, layout.cluster_links
    cluster_link, link_offset, table_offset = layout.cluster_link, layout.link_offset, layout.table_offset
    entries, u, m = tables.exp_entries, linear.outgoing, linear.incoming
    safe = True
    for cluster in range(layout.instance_clusters[instance], layout.instance_clusters[instance + 1]):
        table, rows = cluster_table[cluster], cluster_rows[cluster]
        at = table_offset[table]
        columns = (table_offset[table + 1] - at) // rows
        row = link_offset[cluster_link[cluster_links[cluster]]]
        column = link_offset[cluster_link[cluster_links[cluster] + 1]]
        safe &= to_row(entries, at, rows, columns, u, column, m, row)
        safe &= to_column(entries, at, rows, columns, u, row, m, column)
    return safe


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST_MATH)
def hub_belief(psi: Floats, start: int, states: int, m: Floats, offset: int, degree: int, belief: Floats) -> bool:
    """b of a hub, largest entry 1, from the messages of its links at ``offset``; False where log space is needed."""
    for k in range(states):
        belief[k] = psi[start + k]
    for link in range(degree):
        at = offset + link * states
        for k in range(states):
            belief[k] *= m[at + k]
    return _normalise(belief, 0, states)


@njit(cache=True, nogil=True, error_model="numpy")
def update_hubs(layout: Layout, linear: LinearMessages, instance: int, belief: Floats) -> float:
    """Multipliers of all hubs from the messages; the largest change of a marginal, NaN where log space is needed."""
    hub_offset, hub_links, link_offset = layout.hub_offset, layout.hub_links, layout.link_offset
    u, m, psi = linear.outgoing, linear.incoming, linear.psi
    change = 0.0
    for hub in range(layout.instance_hubs[instance], layout.instance_hubs[instance + 1]):
        start, states = hub_offset[hub], hub_offset[hub + 1] - hub_offset[hub]
        first, degree = hub_links[hub], hub_links[hub + 1] - hub_links[hub]
        if not hub_belief(psi, start, states, m, link_offset[first], degree, belief):
            return np.nan
        total, top = 0.0, 0
        for k in range(states):
            total += belief[k]
            top = k if belief[k] > belief[top] else top
        largest, rising = 0.0, False
        for link in range(first, first + degree):
            offset = link_offset[link]
            level = (1.0 + RISE) * belief[top] / (m[offset + top] * u[offset + top])
            for k in range(states):
                new = belief[k] / m[offset + k]
                rising |= new > level * u[offset + k]
                # |new - old| / new is the change of the logarithm, weighted by the belief of the state.
                largest = max(largest, min(belief[k], abs(new - u[offset + k]) * m[offset + k]))
                u[offset + k] = new
        change = max(change, largest / total, RISING if rising else 0.0)
    return change


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
