"""D of pairwise instances in linear space: star updates of :mod:`bactrian.engines.numba.pairs`, then values and counts.

With multipliers u and v at the ends of a pair, its belief is E[a, b] u[a] v[b] / Z, and it adds kappa (log Z + scales)
to D, where the scales are those of u, v and the table.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from bactrian.compiling import njit
from bactrian.engines.numba.arithmetic import FAST_MATH
from bactrian.engines.numba.layout import Layout
from bactrian.engines.numba.pairs import Linear, load_messages, new_linear, store_messages, sweep_linear
from bactrian.engines.numba.ranges import LEAST, MOST
from bactrian.engines.numba.tables import Beliefs, Numbers, Tables, clear_counts, evaluate_hubs

Floats = NDArray[np.float64]


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
    pairwise: NDArray[np.bool_],
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
