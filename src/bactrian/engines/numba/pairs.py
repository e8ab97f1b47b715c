"""Star updates of pairwise instances in linear space: the fast path behind :mod:`bactrian.engines.numba.stars`.

Where all clusters of an instance are pairs between two hubs, all scores are finite and tables have a moderate range, a
link's multipliers are held as u = exp(d / kappa - s) with one logarithmic scale s a link. A message is then a product
of a table's exponential with a vector, a new multiplier a division, and the only transcendental functions left are K
logarithms and exponentials a hub:

    m_l = E'u,    b = (exp(theta_v) prod_l m_l^kappa_l)^(1 / (kappa_v + sum kappa_l)),    u_l = b / m_l

Every step is checked against the range of floating point; where it could lose digits the functions return False and
the caller starts over in log space.

With multipliers u and v at the ends of a pair, its belief is E[a, b] u[a] v[b] / Z, and it adds kappa (log Z + scales)
to D, where the scales are those of u, v and the table.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from bactrian.arrays import Bools, Floats
from bactrian.compiling import njit
from bactrian.engines.numba.arithmetic import FAST_MATH, LEAST, MOST, RISE, RISING, WIDEST, exp
from bactrian.engines.numba.layout import Layout
from bactrian.engines.numba.tables import Beliefs, Numbers, Tables, clear_counts, evaluate_hubs


class Linear(NamedTuple):
    """Linear multipliers of one instance, and scratch."""

    message: Floats  #: u, by link state counted from the instance's first
    scale: Floats  #: s, by link counted from the instance's first
    product: Floats  #: m of the links around a hub
    belief: Floats  #: b of a hub
    kappa: Floats  #: numbers of the links around a hub


@njit(cache=True, nogil=True, error_model="numpy")
def new_linear(layout: Layout, first: int, last: int) -> Linear:
    """Space for any of the instances ``first:last``."""
    states, links, star, belief = 1, 1, 1, 1
    for instance in range(first, last):
        hubs = layout.instance_hubs[instance], layout.instance_hubs[instance + 1]
        begin, end = layout.hub_links[hubs[0]], layout.hub_links[hubs[1]]
        links = max(links, end - begin)
        states = max(states, layout.link_offset[end] - layout.link_offset[begin])
        for hub in range(hubs[0], hubs[1]):
            size = layout.hub_offset[hub + 1] - layout.hub_offset[hub]
            belief = max(belief, size)
            star = max(star, size * (layout.hub_links[hub + 1] - layout.hub_links[hub]))
    return Linear(np.empty(states), np.empty(links), np.empty(star), np.empty(belief), np.empty(star))


@njit(cache=True, nogil=True, error_model="numpy")
def load_messages(
    layout: Layout, tables: Tables, numbers: Numbers, multipliers: Floats, instance: int, linear: Linear
) -> bool:
    """Fill the linear multipliers of a pairwise instance; False where the range demands log space."""
    cluster_table, link_offset = layout.cluster_table, layout.link_offset
    cluster_number, narrow = numbers.cluster, tables.narrow
    for cluster in range(layout.instance_clusters[instance], layout.instance_clusters[instance + 1]):
        if not narrow[cluster_table[cluster]]:
            return False
    begin, end = layout.instance_hubs[instance], layout.instance_hubs[instance + 1]
    link_cluster, message, scale = layout.link_cluster, linear.message, linear.scale
    begin, end = layout.hub_links[begin], layout.hub_links[end]
    base = link_offset[begin]
    for link in range(begin, end):
        start, stop = link_offset[link], link_offset[link + 1]
        inverse = 1.0 / cluster_number[link_cluster[link]]
        top, bottom = -np.inf, np.inf
        for k in range(start, stop):
            top, bottom = max(top, multipliers[k]), min(bottom, multipliers[k])
        if not (top - bottom) * inverse < WIDEST:  # infinite or NaN, where some multiplier is infinite
            return False
        scale[link - begin] = top * inverse
        for k in range(start, stop):
            message[k - base] = (multipliers[k] - top) * inverse
    for k in range(link_offset[end] - base):  # one long loop, which vectorises
        message[k] = exp(message[k])
    return True


@njit(cache=True, nogil=True, error_model="numpy")
def store_messages(layout: Layout, numbers: Numbers, multipliers: Floats, instance: int, linear: Linear) -> None:
    """Write the linear multipliers of an instance back as logarithms."""
    link_offset, link_cluster, cluster_number = layout.link_offset, layout.link_cluster, numbers.cluster
    message, scale = linear.message, linear.scale
    begin = layout.hub_links[layout.instance_hubs[instance]]
    end = layout.hub_links[layout.instance_hubs[instance + 1]]
    base = link_offset[begin]
    for link in range(begin, end):
        kappa = cluster_number[link_cluster[link]]
        for k in range(link_offset[link], link_offset[link + 1]):
            multipliers[k] = kappa * (math.log(message[k - base]) + scale[link - begin])


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST_MATH)
def pair_product(
    entries: Floats, start: int, rows: int, columns: int, axis: int, message: Floats, at: int, out: Floats, to: int
) -> float:
    """Marginal of a table on ``axis``, the other axis weighted by ``message[at:]``; returns the smallest entry.

    -1 where an entry is too large.
    """
    low, high = np.inf, 0.0
    if axis == 1:
        for b in range(columns):
            out[to + b] = 0.0
        for a in range(rows):
            weight = message[at + a]
            row = start + a * columns
            for b in range(columns):
                out[to + b] += weight * entries[row + b]
        for b in range(columns):
            low, high = min(low, out[to + b]), max(high, out[to + b])
    else:
        for a in range(rows):
            row = start + a * columns
            total = 0.0
            for b in range(columns):
                total += entries[row + b] * message[at + b]
            out[to + a] = total
            low, high = min(low, total), max(high, total)
    return low if high < MOST else -1.0


@njit(cache=True, nogil=True, error_model="numpy")
def hub_belief(
    hub_scores: Floats,
    start: int,
    states: int,
    degree: int,
    product: Floats,
    kappas: Floats,
    uniform: bool,
    divisor: float,
    hub_log: Floats,
    belief: Floats,
) -> bool:
    """log b and b of a hub from the products of its links; ``kappas`` holds the numbers of the links.

    False where states lie too far apart for linear space.
    """
    inverse = 1.0 / divisor
    uniform = uniform and degree > 0  # without links the numbers are whatever the scratch held, perhaps NaN
    for k in range(states):
        together, low, high = 1.0, 1.0, 1.0
        if uniform:
            for j in range(degree):
                together *= product[j * states + k]
                low, high = min(low, together), max(high, together)
        if uniform and low > LEAST and high < MOST:
            total = kappas[0] * math.log(together)
        else:
            total = 0.0
            for j in range(degree):
                total += kappas[j] * math.log(product[j * states + k])
        hub_log[start + k] = (hub_scores[start + k] + total) * inverse
    top, bottom = -np.inf, np.inf
    for k in range(states):
        top, bottom = max(top, hub_log[start + k]), min(bottom, hub_log[start + k])
    if not top - bottom < WIDEST:
        return False
    total = 0.0
    for k in range(states):
        belief[k] = exp(hub_log[start + k] - top)
        total += belief[k]
    normaliser = math.log(total)
    inverse = 1.0 / total
    for k in range(states):
        hub_log[start + k] = (hub_log[start + k] - top) - normaliser
        belief[k] *= inverse
    return True


@njit(cache=True, nogil=True, error_model="numpy")
def divide(message: Floats, at: int, product: Floats, start: int, belief: Floats, states: int) -> float:
    """u = b / m for one link; returns the largest change of the cluster's marginal on the hub, NaN out of range."""
    total = 0.0
    for k in range(states):
        total += message[at + k] * product[start + k]
    inverse = 1.0 / total
    change, low = 0.0, 1.0
    for k in range(states):
        old = message[at + k] * product[start + k] * inverse
        change = max(change, abs(old - belief[k]))
        if belief[k] > (1.0 + RISE) * old:
            change = max(change, RISING)
        message[at + k] = belief[k] / product[start + k]
        low = min(low, message[at + k])
    return change if low > LEAST else np.nan


@njit(cache=True, nogil=True, error_model="numpy")
def sweep_linear(
    layout: Layout,
    tables: Tables,
    numbers: Numbers,
    hub_log: Floats,
    instance: int,
    backward: bool,
    linear: Linear,
) -> float:
    """Star updates of an instance's hubs in turn; returns the largest change of a marginal.

    NaN where log space is needed. Arrays are taken out of their named tuples before the loops: inside them each access
    would cost as much as the arithmetic.
    """
    hub_order, hub_offset, hub_links = layout.hub_order, layout.hub_offset, layout.hub_links
    link_cluster, link_offset = layout.link_cluster, layout.link_offset
    link_partner, link_axis = layout.link_partner, layout.link_axis
    cluster_table, table_offset = layout.cluster_table, layout.table_offset
    exp_entries, shift, hub_scores = tables.exp_entries, tables.shift, tables.hub_scores
    hub_number, cluster_number = numbers.hub, numbers.cluster
    message, scale, product, belief = linear.message, linear.scale, linear.product, linear.belief
    kappas = linear.kappa
    begin, end = layout.instance_hubs[instance], layout.instance_hubs[instance + 1]
    first_link = hub_links[begin]
    base = link_offset[first_link]
    change = 0.0
    for position in range(end - begin):
        hub = hub_order[end - 1 - position if backward else begin + position]
        start = hub_offset[hub]
        states = hub_offset[hub + 1] - start
        first, last = hub_links[hub], hub_links[hub + 1]
        divisor = hub_number[hub]
        uniform = True
        for link in range(first, last):
            cluster = link_cluster[link]
            kappa = cluster_number[cluster]
            table = cluster_table[cluster]
            partner = link_partner[link]
            at = link_offset[partner]
            others = link_offset[partner + 1] - at
            axis = link_axis[link]
            rows, columns = (others, states) if axis == 1 else (states, others)
            low = pair_product(
                exp_entries, table_offset[table], rows, columns, axis, message, at - base, product,
                (link - first) * states,
            )  # fmt: skip
            if not low > LEAST:
                return np.nan
            scale[link - first_link] = -scale[partner - first_link] - shift[table]
            divisor += kappa
            kappas[link - first] = kappa
            uniform = uniform and kappa == kappas[0]
        if not hub_belief(hub_scores, start, states, last - first, product, kappas, uniform, divisor, hub_log, belief):
            return np.nan
        for link in range(first, last):
            step = divide(message, link_offset[link] - base, product, (link - first) * states, belief, states)
            if math.isnan(step):
                return step
            change = max(change, step)
    return change


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST_MATH)
def _evaluate_pair(
    entries: Floats,
    start: int,
    rows: int,
    columns: int,
    message: Floats,
    row_at: int,
    column_at: int,
    marginal: Floats,
    row_to: int,
    column_to: int,
    weight: float,
    counts: Floats,
    constrained: bool,
) -> float:
    """Z of a pair, with its marginals and counts; NaN outside the safe range.

    Where some score is forbidden a marginal of 0 leaves it open whether the state is: that takes log space too.
    """
    by_row, by_column = message[row_at : row_at + rows], message[column_at : column_at + columns]
    row_marginal, column_marginal = marginal[row_to : row_to + rows], marginal[column_to : column_to + columns]
    for b in range(columns):
        column_marginal[b] = 0.0
    total = 0.0
    for a in range(rows):
        row = entries[start + a * columns : start + (a + 1) * columns]
        outer = by_row[a]
        part = 0.0
        for b in range(columns):
            part += row[b] * by_column[b]
            column_marginal[b] += row[b] * outer
        row_marginal[a] = part * outer
        total += part * outer
    if not LEAST < total < MOST:
        return np.nan
    inverse = 1.0 / total
    for a in range(rows):
        row_marginal[a] *= inverse
    for b in range(columns):
        column_marginal[b] *= by_column[b] * inverse
    if constrained:
        low = 1.0
        for a in range(rows):
            low = min(low, row_marginal[a])
        for b in range(columns):
            low = min(low, column_marginal[b])
        if low == 0.0:
            return np.nan
    for a in range(rows):
        row = entries[start + a * columns : start + (a + 1) * columns]
        row_counts = counts[start + a * columns : start + (a + 1) * columns]
        outer = by_row[a] * inverse * weight
        for b in range(columns):
            row_counts[b] += row[b] * by_column[b] * outer
    return total


@njit(cache=True, nogil=True, error_model="numpy")
def _evaluate_pairs(
    layout: Layout,
    tables: Tables,
    numbers: Numbers,
    beliefs: Beliefs,
    instance: int,
    linear: Linear,
    weight: float,
    shared_counts: Floats,
) -> float:
    """The clusters' part of D of an instance, with marginals and counts; NaN, no counts, where log space is needed."""
    cluster_link, cluster_links = layout.cluster_link, layout.cluster_links
    cluster_table, table_offset, link_offset = layout.cluster_table, layout.table_offset, layout.link_offset
    exp_entries, shift, cluster_number = tables.exp_entries, tables.shift, numbers.cluster
    message, scale = linear.message, linear.scale
    marginal, own_counts, n_shared = beliefs.link_marginal, beliefs.counts, layout.table_shared
    constrained = tables.constrained[0]
    first_link = layout.hub_links[layout.instance_hubs[instance]]
    base = link_offset[first_link]
    begin, end = layout.instance_clusters[instance], layout.instance_clusters[instance + 1]
    value = 0.0
    sign = 1.0
    cluster = begin
    while begin <= cluster < end:
        table = cluster_table[cluster]
        row_link = cluster_link[cluster_links[cluster]]
        column_link = cluster_link[cluster_links[cluster] + 1]
        row_at, column_at = link_offset[row_link], link_offset[column_link]
        rows, columns = link_offset[row_link + 1] - row_at, link_offset[column_link + 1] - column_at
        if table < n_shared:
            total = _evaluate_pair(
                exp_entries, table_offset[table], rows, columns, message, row_at - base, column_at - base, marginal,
                row_at, column_at, sign * weight, shared_counts, constrained,
            )  # fmt: skip
        else:
            total = _evaluate_pair(
                exp_entries, table_offset[table], rows, columns, message, row_at - base, column_at - base, marginal,
                row_at, column_at, sign * weight, own_counts, constrained,
            )  # fmt: skip
        if math.isnan(total):
            sign = -1.0  # walk back and take away what was counted
        scales = scale[row_link - first_link] + scale[column_link - first_link]
        value += cluster_number[cluster] * (math.log(total) + scales + shift[table])
        cluster += 1 if sign > 0.0 else -1
    return value if sign > 0.0 else np.nan


@njit(cache=True, nogil=True, error_model="numpy")
def evaluate_pairwise(
    layout: Layout,
    tables: Tables,
    numbers: Numbers,
    multipliers: Floats,
    beliefs: Beliefs,
    weights: Floats,
    shares: Floats,
    shared_counts: Floats,
    pairwise: Bools,
    first: int,
    last: int,
    tolerance: float,
    max_sweeps: int,
    tree_sweeps: int,
    consistent: bool,
) -> bool:
    """What ``stars.evaluate_instances`` does, for the instances among ``first:last`` that are ``pairwise``.

    Sets ``beliefs.done``, and returns whether all were done: an instance whose range demands log space is left as it
    was.
    """
    linear = new_linear(layout, first, last)
    all_done = True
    for instance in range(first, last):
        beliefs.done[instance] = False
        fast = pairwise[instance] and load_messages(layout, tables, numbers, multipliers, instance, linear)
        limit = min(max_sweeps, tree_sweeps) if layout.instance_is_tree[instance] else max_sweeps
        sweeps = 0
        residual = np.inf if limit > 0 else 0.0
        while fast and sweeps < limit and residual > tolerance and not (sweeps > 0 and beliefs.late[0]):
            residual = sweep_linear(layout, tables, numbers, beliefs.hub_log, instance, sweeps % 2 == 0, linear)
            sweeps += 1
            fast = not math.isnan(residual)
        value = np.nan
        if fast:
            clear_counts(layout, beliefs.counts, instance)
            value = _evaluate_pairs(
                layout, tables, numbers, beliefs, instance, linear, weights[instance], shared_counts
            )
        if math.isnan(value):
            all_done = False
            continue
        if sweeps > 0:
            store_messages(layout, numbers, multipliers, instance, linear)
        beliefs.value[instance] = value + evaluate_hubs(
            layout, tables, numbers, multipliers, beliefs, instance, weights[instance], shares, consistent, sweeps > 0,
            linear.belief,
        )  # fmt: skip
        beliefs.sweeps[instance] = sweeps
        beliefs.residual[instance] = residual
        beliefs.done[instance] = True
    return all_done
