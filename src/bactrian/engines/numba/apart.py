"""The fastest path, :mod:`.uniform`, where multipliers stay as they are or clusters need not agree."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from bactrian.compiling import njit
from bactrian.engines.numba.arithmetic import log
from bactrian.engines.numba.layout import Layout
from bactrian.engines.numba.ranges import LEAST, MOST
from bactrian.engines.numba.tables import Beliefs, Numbers, Tables, evaluate_hubs
from bactrian.engines.numba.uniform import CAREFUL, Scratch, States, exponentials, is_narrow, new_scratch, set_outer
from bactrian.engines.numba.vectors import (
    add_outer,
    add_scaled,
    copy_scaled,
    distance,
    multiply_by,
    multiply_matrix,
    normalise,
)

Floats = NDArray[np.float64]


@njit(cache=True, nogil=True, error_model="numpy")
def evaluate_apart(
    layout: Layout, tables: Tables, numbers: Numbers, beliefs: Beliefs, weights: Floats, shares: Floats,
    shared_counts: Floats, first: int, last: int, states: States,
) -> bool:  # fmt: skip
    """D of instances whose clusters need not agree: a cluster takes ``shares`` of its hubs' scores.

    Sets ``beliefs.done`` and returns whether all were done.
    """
    k = len(states)
    scratch = new_scratch(layout, first, last, k)
    all_done = True
    link_hub, hub_links = layout.link_hub, layout.hub_links
    outer = np.zeros(shared_counts.size)
    logs = np.full(layout.table_shared, np.nan)  # log Z of tables that were met
    first_cluster = np.empty(layout.table_shared, dtype=np.int64)
    times = np.zeros(layout.table_shared)
    scores = np.empty(scratch.message.size)
    for instance in range(first, last):
        beliefs.done[instance] = False
        begin, end = layout.instance_hubs[instance], layout.instance_hubs[instance + 1]
        first_link, last_link = hub_links[begin], hub_links[end]
        fast = is_narrow(layout, tables, instance)
        alike = _are_alike(layout, shares, instance)
        if not alike:
            for link in range(first_link, last_link):
                at = (link - first_link) * k
                copy_scaled(scores, at, tables.hub_scores, link_hub[link] * k, shares[link], states)
            fast = fast and exponentials(scores, 0, last_link - first_link, scratch.message, scratch.scale, states)
        fast = fast and _hubs_apart(layout, tables, numbers, beliefs, instance, weights[instance], scratch, states)
        if fast:
            if alike:
                value = _pairs_alike(
                    layout, tables, beliefs, instance, weights[instance], times, logs, first_cluster, states
                )
            else:
                value = _pairs_apart(layout, tables, beliefs, instance, weights[instance], outer, scratch, states)
            fast = not math.isnan(value)
            beliefs.value[instance] += value
        if fast:
            _join_apart(layout, numbers, beliefs, instance, weights[instance], shares, scratch.belief, states)
        beliefs.sweeps[instance] = 0
        beliefs.residual[instance] = 0.0
        beliefs.done[instance] = fast
        all_done = all_done and fast
    for table in range(layout.table_shared):
        if times[table] != 0.0:
            for i in range(layout.table_offset[table], layout.table_offset[table + 1]):
                outer[i] += times[table] * math.exp(-logs[table])
    for i in range(outer.size):
        shared_counts[i] += outer[i] * tables.exp_entries[i]
    return all_done


@njit(cache=True, nogil=True, error_model="numpy")
def evaluate_given(
    layout: Layout, tables: Tables, numbers: Numbers, multipliers: Floats, beliefs: Beliefs, weights: Floats,
    shares: Floats, shared_counts: Floats, first: int, last: int, states: States,
) -> bool:  # fmt: skip
    """D of instances ``first:last`` at the multipliers as they are; sets ``beliefs.done``, returns whether all were."""
    k = len(states)
    scratch = new_scratch(layout, first, last, k)
    outer = np.zeros(shared_counts.size)
    all_done = True
    for instance in range(first, last):
        begin, end = layout.instance_hubs[instance], layout.instance_hubs[instance + 1]
        first_link, last_link = layout.hub_links[begin], layout.hub_links[end]
        fast = is_narrow(layout, tables, instance) and exponentials(
            multipliers, first_link * k, last_link - first_link, scratch.message, scratch.scale, states
        )
        if fast:
            value = _pairs_apart(layout, tables, beliefs, instance, weights[instance], outer, scratch, states)
            fast = not math.isnan(value)
        if fast:
            beliefs.value[instance] = value + evaluate_hubs(
                layout, tables, numbers, multipliers, beliefs, instance, weights[instance], shares, True, False,
                scratch.product,
            )  # fmt: skip
            beliefs.sweeps[instance] = 0
            beliefs.residual[instance] = 0.0
        beliefs.done[instance] = fast
        all_done = all_done and fast
    for i in range(outer.size):
        shared_counts[i] += outer[i] * tables.exp_entries[i]
    return all_done


@njit(cache=True, nogil=True, error_model="numpy", fastmath=CAREFUL)
def _hubs_apart(
    layout: Layout, tables: Tables, numbers: Numbers, beliefs: Beliefs, instance: int, weight: float, scratch: Scratch,
    states: States,
) -> bool:  # fmt: skip
    """Beliefs of hubs that have a number of their own, and their part of D; 0 counts for the others."""
    k = len(states)
    begin, end = layout.instance_hubs[instance], layout.instance_hubs[instance + 1]
    tops = np.empty(end - begin)
    scores = np.empty((end - begin) * k)
    for hub in range(begin, end):
        inverse = 1.0 / numbers.hub[hub] if numbers.hub[hub] != 0.0 else 1.0
        copy_scaled(scores, (hub - begin) * k, tables.hub_scores, hub * k, inverse, states)
    if not exponentials(scores, 0, end - begin, scratch.belief, tops, states):
        return False
    value = 0.0
    belief, hub_log, hub_count = scratch.belief, beliefs.hub_log, beliefs.hub_count
    for hub in range(begin, end):
        at = (hub - begin) * k
        kappa = numbers.hub[hub]
        total = normalise(belief, at, states)
        value += kappa * (tops[hub - begin] + math.log(total))
        copy_scaled(hub_count, hub * k, belief, at, weight if kappa != 0.0 else 0.0, states)
    for i in range((end - begin) * k):
        hub_log[begin * k + i] = log(belief[i])
    beliefs.value[instance] = value
    return True


@njit(cache=True, nogil=True, error_model="numpy")
def _pairs_apart(
    layout: Layout, tables: Tables, beliefs: Beliefs, instance: int, weight: float, outer: Floats, scratch: Scratch,
    states: States,
) -> float:  # fmt: skip
    """The pairs' part of D, with marginals and counts; NaN, and nothing counted, where log space is needed."""
    k = len(states)
    cluster_link, cluster_table, table_offset = layout.cluster_link, layout.cluster_table, layout.table_offset
    entries, transposed, shift = tables.exp_entries, tables.exp_transposed, tables.shift
    n_shared = layout.table_shared
    message, scale, marginal = scratch.message, scratch.scale, beliefs.link_marginal
    first_link = layout.hub_links[layout.instance_hubs[instance]]
    first, last = layout.instance_clusters[instance], layout.instance_clusters[instance + 1]
    totals = np.empty(last - first)
    value = 0.0
    for cluster in range(first, last):
        row, column = cluster_link[2 * cluster], cluster_link[2 * cluster + 1]
        row_at, column_at = (row - first_link) * k, (column - first_link) * k
        table = cluster_table[cluster]
        multiply_matrix(transposed, table_offset[table], message, column_at, marginal, row * k, states)
        multiply_matrix(entries, table_offset[table], message, row_at, marginal, column * k, states)
        multiply_by(marginal, row * k, message, row_at, states)
        multiply_by(marginal, column * k, message, column_at, states)
        total = normalise(marginal, row * k, states)
        normalise(marginal, column * k, states)
        if not LEAST < total < MOST:
            return np.nan
        totals[cluster - first] = 1.0 / total
        value += math.log(total) + scale[row - first_link] + scale[column - first_link] + shift[table]
    for cluster in range(first, last):
        row_at = (cluster_link[2 * cluster] - first_link) * k
        column_at = (cluster_link[2 * cluster + 1] - first_link) * k
        table = cluster_table[cluster]
        times = weight * totals[cluster - first]
        if table < n_shared:
            add_outer(outer, table_offset[table], message, row_at, message, column_at, times, states)
        else:
            set_outer(beliefs.counts, entries, table_offset[table], message, row_at, column_at, times, states)
    return value


@njit(cache=True, nogil=True, error_model="numpy")
def _join_apart(
    layout: Layout, numbers: Numbers, beliefs: Beliefs, instance: int, weight: float, shares: Floats, belief: Floats,
    states: States,
) -> None:  # fmt: skip
    """Counts of hubs from the clusters that took shares of their scores, and the largest disagreement.

    A hub without a number of its own has the marginal of its first link for its belief.
    """
    k = len(states)
    hub_links, hub_log, hub_count = layout.hub_links, beliefs.hub_log, beliefs.hub_count
    marginal, hub_number = beliefs.link_marginal, numbers.hub
    violation = 0.0
    begin = layout.instance_hubs[instance]
    for hub in range(begin, layout.instance_hubs[instance + 1]):
        first, last = hub_links[hub], hub_links[hub + 1]
        at = (hub - begin) * k
        if hub_number[hub] == 0.0:
            copy_scaled(belief, at, marginal, first * k, 1.0, states)
            for j in range(k):
                hub_log[hub * k + j] = log(max(belief[at + j], 1e-300))
        for link in range(first, last):
            if shares[link] != 0.0:
                add_scaled(hub_count, hub * k, marginal, link * k, weight * shares[link], states)
            violation = max(violation, distance(marginal, link * k, belief, at, states))
    beliefs.violation[instance] = violation


@njit(cache=True, nogil=True, error_model="numpy")
def _are_alike(layout: Layout, shares: Floats, instance: int) -> bool:
    """Whether the pairs take no part of hubs' scores and have shared tables, so that those of a table are all alike."""
    begin, end = layout.instance_hubs[instance], layout.instance_hubs[instance + 1]
    for link in range(layout.hub_links[begin], layout.hub_links[end]):
        if shares[link] != 0.0:
            return False
    for cluster in range(layout.instance_clusters[instance], layout.instance_clusters[instance + 1]):
        if layout.cluster_table[cluster] >= layout.table_shared:
            return False
    return True


@njit(cache=True, nogil=True, error_model="numpy")
def _pairs_alike(
    layout: Layout, tables: Tables, beliefs: Beliefs, instance: int, weight: float, times: Floats, logs: Floats,
    first_cluster: NDArray[np.int64], states: States,
) -> float:  # fmt: skip
    """What ``_pairs_apart`` does, where pairs of a table are all alike: its first pair is worked out, others copied.

    ``logs`` and ``first_cluster`` have log Z of the tables that were met before, and their first pairs; ``times`` adds
    up the weights of a table's pairs.
    """
    k = len(states)
    cluster_link, marginal, entries = layout.cluster_link, beliefs.link_marginal, tables.exp_entries
    value = 0.0
    for cluster in range(layout.instance_clusters[instance], layout.instance_clusters[instance + 1]):
        row, column = cluster_link[2 * cluster] * k, cluster_link[2 * cluster + 1] * k
        table = layout.cluster_table[cluster]
        start = layout.table_offset[table]
        if math.isnan(logs[table]):
            total = 0.0
            marginal[row : row + k] = 0.0
            marginal[column : column + k] = 0.0
            for i in range(k):
                for j in range(k):
                    entry = entries[start + i * k + j]
                    total += entry
                    marginal[row + i] += entry
                    marginal[column + j] += entry
            normalise(marginal, row, states)
            normalise(marginal, column, states)
            logs[table] = math.log(total)
            first_cluster[table] = cluster
        else:
            like = first_cluster[table]
            copy_scaled(marginal, row, marginal, cluster_link[2 * like] * k, 1.0, states)
            copy_scaled(marginal, column, marginal, cluster_link[2 * like + 1] * k, 1.0, states)
        value += logs[table] + tables.shift[table]
        times[table] += weight
    return value
