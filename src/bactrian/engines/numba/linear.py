"""Belief propagation on pairs in linear space, for the parallel and the residual schedule.

Eligible are instances whose clusters are all pairs between two hubs, with Bethe's numbers (kappa = 1, and 1 - degree
for hubs), finite scores and tables of moderate range. With E a table's exponential, psi a hub's and l its links,

    m_l = E'u / max,    b = psi prod_l m_l / max,    u_l = b / m_l        (u_l = exp(d_l), up to a constant)

so that neither exponentials nor logarithms are left. Every product is checked against the range of floating point;
where digits could be lost the caller goes on in log space, from the last multipliers stored.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bactrian.compiling import njit
from bactrian.engines.numba.arithmetic import FAST_MATH, exp
from bactrian.engines.numba.layout import Layout
from bactrian.engines.numba.ranges import LEAST, LEAST_RATIO, RISING, WIDEST
from bactrian.engines.numba.tables import Numbers, Tables

Floats = NDArray[np.float64]


class Linear(NamedTuple):
    """Messages of all instances in linear space."""

    outgoing: Floats  #: (n_link_states,) u
    incoming: Floats  #: (n_link_states,) m
    psi: Floats  #: (n_hub_states,) exp(theta_v), largest entry 1
    in_use: NDArray[np.bool_]  #: (M,) kept by the residual schedule between calls


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
    layout: Layout, tables: Tables, numbers: Numbers, multipliers: Floats, linear: Linear, instance: int
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
def store_instance(layout: Layout, linear: Linear, multipliers: Floats, instance: int) -> None:
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
def pair_messages(layout: Layout, tables: Tables, linear: Linear, instance: int) -> bool:
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
def update_hubs(layout: Layout, linear: Linear, instance: int, belief: Floats) -> float:
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
            level = (1.0 + RISING) * belief[top] / (m[offset + top] * u[offset + top])
            for k in range(states):
                new = belief[k] / m[offset + k]
                rising |= new > level * u[offset + k]
                # |new - old| / new is the change of the logarithm, weighted by the belief of the state.
                largest = max(largest, min(belief[k], abs(new - u[offset + k]) * m[offset + k]))
                u[offset + k] = new
        change = max(change, largest / total, RISING if rising else 0.0)
    return change
