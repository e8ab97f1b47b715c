"""Star updates where all clusters are pairs with number 1 and all hubs have equally many states: the fastest path.

Like :mod:`.pairs`, in linear space, but the number of states K is the length of a tuple and so known to
the compiler, which unrolls the loops over states (a version for each K is compiled on first use and kept on disk).

With u_l = exp(d_l - s_l), one logarithmic scale s a link, and E a table's exponential shifted by its largest score,

    m_l = E'u,    b = (exp(theta_v) prod_l m_l)^(1 / (kappa_v + degree)) / sum,    u_l = b / m_l,    s_l = -s_l' - shift

so that after the last update of either of its ends a pair's Z is exactly 1 with scales that cancel: pairs add nothing
to D. A hub adds theta_v - sum_l d_l - kappa_v log b, which is the same for each of its states: the first is taken.

Every product is checked against the range of floating point; an instance that leaves it is not ``done``.

Where multipliers stay as they are, or clusters need not agree, the same arithmetic works without sweeps.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from bactrian.arrays import Bools, Floats, Ints
from bactrian.compiling import njit
from bactrian.engines.numba.arithmetic import LEAST, MOST, RISING, WIDEST, exp, in_range, log
from bactrian.engines.numba.layout import Layout
from bactrian.engines.numba.tables import Beliefs, Numbers, Tables, evaluate_hubs
from bactrian.engines.numba.vectors import (
    add_outer,
    add_scaled,
    copy_scaled,
    distance,
    divide_out,
    largest,
    multiply_and_widen,
    multiply_by,
    multiply_matrix,
    normalise,
    shift_by,
    smallest,
    widen,
)

#: Its length is the number of states.
States = tuple[int, ...]

#: Flags under which the exponential and the logarithm keep their digits.
CAREFUL = {"contract", "nsz"}


class Plan(NamedTuple):
    """Index arrays of the sweeps, made once from a layout."""

    link_start: Ints  #: (L,) first entry of the table of a link's cluster
    link_table: Ints  #: (L,) table of a link's cluster
    hub_rank: Ints  #: (H,) place of a hub in the order of a forward sweep


def make_plan(layout: Layout) -> Plan:
    """The plan of a layout."""
    table = layout.cluster_table[layout.link_cluster]
    rank = np.empty(layout.n_hubs, dtype=np.int64)
    rank[layout.hub_order] = np.arange(layout.n_hubs)
    return Plan(layout.table_offset[table], table, rank)


class PairScratch(NamedTuple):
    """Space for one instance, links and hubs counted from its first."""

    message: Floats  #: u
    scale: Floats  #: s
    psi: Floats  #: exp(theta_v - its largest)
    belief: Floats  #: b
    product: Floats  #: m of the links around a hub
    low: Floats  #: (K,) least entries of all products so far
    high: Floats  #: (K,) greatest entries
    change: Floats  #: (K,) largest changes of marginals
    rise: Floats  #: (K,) largest rises beyond what may be


@njit(cache=True, nogil=True, error_model="numpy")
def new_scratch(layout: Layout, first: int, last: int, k: int) -> PairScratch:
    """Space for any of the instances ``first:last``."""
    hubs, links, star = 1, 1, 1
    for instance in range(first, last):
        begin, end = layout.instance_hubs[instance], layout.instance_hubs[instance + 1]
        hubs = max(hubs, end - begin)
        links = max(links, layout.hub_links[end] - layout.hub_links[begin])
        for hub in range(begin, end):
            star = max(star, layout.hub_links[hub + 1] - layout.hub_links[hub])
    return PairScratch(
        np.empty(links * k), np.empty(links), np.empty(hubs * k), np.empty(hubs * k), np.empty(star * k), np.ones(k),
        np.ones(k), np.zeros(k), np.zeros(k),
    )  # fmt: skip


@njit(cache=True, nogil=True, error_model="numpy", fastmath=CAREFUL)
def exponentials(logs: Floats, start: int, rows: int, out: Floats, tops: Floats, states: States) -> bool:
    """exp(logs - largest) row by row, and the largest; False where a row is not finite or too wide."""
    k = len(states)
    widest = 0.0
    for row in range(rows):
        at = start + row * k
        top = largest(logs, at, states)
        widest = max(widest, top - smallest(logs, at, states))
        tops[row] = top
        shift_by(out, row * k, logs, at, -top, states)
    if not widest < WIDEST:  # infinite or NaN, where some score is infinite
        return False
    for i in range(rows * k):  # one long loop, which vectorises
        out[i] = exp(out[i])
    return True


@njit(cache=True, nogil=True, error_model="numpy", fastmath=CAREFUL)
def _root(belief: Floats, at: int, divisor: float, states: States) -> None:
    """belief^(1 / divisor)."""
    k = len(states)
    if divisor == 2.0:
        for j in range(k):
            belief[at + j] = math.sqrt(belief[at + j])
    elif divisor == 4.0:
        for j in range(k):
            belief[at + j] = math.sqrt(math.sqrt(belief[at + j]))
    else:
        inverse = 1.0 / divisor
        for j in range(k):
            belief[at + j] = exp(log(belief[at + j]) * inverse)


@njit(cache=True, nogil=True, error_model="numpy")
def _sweep(
    layout: Layout, plan: Plan, tables: Tables, numbers: Numbers, instance: int, backward: bool, scratch: PairScratch,
    halvings: int, states: States,
) -> float:  # fmt: skip
    """Star updates of an instance's hubs in turn; the largest change of a marginal, NaN where log space is needed.

    With ``halvings`` n a multiplier goes but 2^-n of its way, by n square roots of u_new u_old.
    """
    k = len(states)
    hub_order, hub_links = layout.hub_order, layout.hub_links
    link_partner, link_axis = layout.link_partner, layout.link_axis
    link_start, link_table, shift = plan.link_start, plan.link_table, tables.shift
    entries, transposed, hub_number = tables.exp_entries, tables.exp_transposed, numbers.hub
    message, scale, psi, belief, product, low, high, change, rise = scratch
    begin, end = layout.instance_hubs[instance], layout.instance_hubs[instance + 1]
    first_link = hub_links[begin]
    low[:], high[:], change[:], rise[:] = 1.0, 1.0, 0.0, 0.0
    held = np.empty(k)
    for position in range(end - begin):
        hub = hub_order[end - 1 - position if backward else begin + position]
        to = (hub - begin) * k
        first, last = hub_links[hub], hub_links[hub + 1]
        copy_scaled(belief, to, psi, to, 1.0, states)
        for link in range(first, last):
            partner = link_partner[link] - first_link
            of = (link - first) * k
            if link_axis[link] == 1:
                multiply_matrix(entries, link_start[link], message, partner * k, product, of, states)
            else:
                multiply_matrix(transposed, link_start[link], message, partner * k, product, of, states)
            multiply_and_widen(belief, to, product, of, low, 0, high, 0, states)
            scale[link - first_link] = -scale[partner] - shift[link_table[link]]
        divisor = hub_number[hub] + (last - first)
        if divisor != 1.0:
            _root(belief, to, divisor, states)
            widen(low, 0, high, 0, belief, to, states)
        normalise(belief, to, states)
        for link in range(first, last):
            at = (link - first_link) * k
            if halvings > 0:
                for state in range(k):
                    held[state] = message[at + state]
            divide_out(message, at, product, (link - first) * k, belief, to, change, 0, rise, 0, states)
            for _ in range(halvings):
                for state in range(k):
                    message[at + state] = math.sqrt(message[at + state] * held[state])
    # Checked once: what has left the range of floating point stays outside it.
    if not (smallest(low, 0, states) > LEAST and largest(high, 0, states) < MOST):
        return np.nan
    return max(largest(change, 0, states), RISING if largest(rise, 0, states) > 0.0 else 0.0)


@njit(cache=True, nogil=True, error_model="numpy")
def set_outer(counts: Floats, entries: Floats, start: int, message: Floats, row: int, column: int, weight: float,
              states: States) -> None:  # fmt: skip
    """Counts of a table of one pair: weight times its entries times both messages."""
    k = len(states)
    for a in range(k):
        copy_scaled(counts, start + a * k, message, column, weight * message[row + a], states)
        multiply_by(counts, start + a * k, entries, start + a * k, states)


@njit(cache=True, nogil=True, error_model="numpy")
def _finish(
    layout: Layout, plan: Plan, tables: Tables, numbers: Numbers, beliefs: Beliefs, instance: int, backward: bool,
    weight: float, outer: Floats, scratch: PairScratch, states: States,
) -> None:  # fmt: skip
    """D, counts and violation of an instance after a sweep; ``outer`` sums u u' of shared tables, without E."""
    k = len(states)
    hub_links, link_hub = layout.hub_links, layout.link_hub
    cluster_table, cluster_link = layout.cluster_table, layout.cluster_link
    entries, transposed = tables.exp_entries, tables.exp_transposed
    hub_number = numbers.hub
    hub_count, own_counts, n_shared = beliefs.hub_count, beliefs.counts, layout.table_shared
    table_offset, hub_rank = layout.table_offset, plan.hub_rank
    message, belief, product = scratch.message, scratch.belief, scratch.product
    begin, end = layout.instance_hubs[instance], layout.instance_hubs[instance + 1]
    first_link = hub_links[begin]
    for i in range((end - begin) * k):
        hub_count[begin * k + i] = weight * belief[i]
    violation = 0.0
    for cluster in range(layout.instance_clusters[instance], layout.instance_clusters[instance + 1]):
        table = cluster_table[cluster]
        start = table_offset[table]
        row_link, column_link = cluster_link[2 * cluster], cluster_link[2 * cluster + 1]
        row, column = (row_link - first_link) * k, (column_link - first_link) * k
        # The end that was updated last has its hub's belief as marginal; the other may still disagree.
        row_last = (hub_rank[link_hub[row_link]] < hub_rank[link_hub[column_link]]) == backward
        if row_last:
            multiply_matrix(entries, start, message, row, product, 0, states)
            other, at = column_link, column
        else:
            multiply_matrix(transposed, start, message, column, product, 0, states)
            other, at = row_link, row
        hub = link_hub[other]
        multiply_by(product, 0, message, at, states)
        violation = max(violation, distance(product, 0, belief, (hub - begin) * k, states))
        if hub_number[hub] == 0.0 and other == hub_links[hub]:
            copy_scaled(hub_count, hub * k, product, 0, weight, states)
        if table < n_shared:
            add_outer(outer, start, message, row, message, column, weight, states)
        else:
            set_outer(own_counts, entries, start, message, row, column, weight, states)
    beliefs.violation[instance] = violation


@njit(cache=True, nogil=True, error_model="numpy", fastmath=CAREFUL)
def _store(
    layout: Layout, tables: Tables, numbers: Numbers, multipliers: Floats, beliefs: Beliefs, instance: int,
    scratch: PairScratch, states: States,
) -> None:  # fmt: skip
    """Logarithms of beliefs and of messages, and from these D."""
    k = len(states)
    begin, end = layout.instance_hubs[instance], layout.instance_hubs[instance + 1]
    hub_links, hub_scores, hub_number = layout.hub_links, tables.hub_scores, numbers.hub
    hub_log, belief, message, scale = beliefs.hub_log, scratch.belief, scratch.message, scratch.scale
    for i in range((end - begin) * k):
        hub_log[begin * k + i] = log(belief[i])
    first, last = hub_links[begin], hub_links[end]
    for i in range((last - first) * k):
        message[i] = log(message[i])
    for link in range(first, last):
        shift_by(multipliers, link * k, message, (link - first) * k, scale[link - first], states)
    value = 0.0
    for hub in range(begin, end):
        value += hub_scores[hub * k] - hub_number[hub] * hub_log[hub * k]
    for link in range(first, last):
        value -= multipliers[link * k]
    beliefs.value[instance] = value


@njit(cache=True, nogil=True, error_model="numpy")
def is_narrow(layout: Layout, tables: Tables, instance: int) -> bool:
    """Whether all tables of an instance fit into the range of floating point."""
    cluster_table, narrow = layout.cluster_table, tables.narrow
    for cluster in range(layout.instance_clusters[instance], layout.instance_clusters[instance + 1]):
        if not narrow[cluster_table[cluster]]:
            return False
    return True


@njit(cache=True, nogil=True, error_model="numpy")
def sweep_uniform(
    layout: Layout, plan: Plan, tables: Tables, numbers: Numbers, multipliers: Floats, beliefs: Beliefs,
    weights: Floats, shared_counts: Floats, skipped: Bools, first: int, last: int, tolerance: float,
    max_sweeps: int, tree_sweeps: int, halvings: int, states: States,
) -> bool:  # fmt: skip
    """Sweep instances ``first:last`` and evaluate D there; sets ``beliefs.done`` and returns whether all were done.

    The messages of a tree that needs but ``tree_sweeps`` sweeps start from scratch. Instances that are ``skipped`` stay
    as they are. Damped sweeps (``halvings``) end with one that is not, after which D is that of the multipliers.
    """
    k = len(states)
    scratch = new_scratch(layout, first, last, k)
    outer = np.zeros(shared_counts.size)
    tops = np.empty(scratch.psi.size // k)
    all_done = True
    for instance in range(first, last):
        if skipped[instance]:
            continue
        beliefs.done[instance] = False
        begin, end = layout.instance_hubs[instance], layout.instance_hubs[instance + 1]
        first_link, last_link = layout.hub_links[begin], layout.hub_links[end]
        from_scratch = layout.instance_is_tree[instance] and tree_sweeps < max_sweeps
        fast = is_narrow(layout, tables, instance)
        fast = fast and exponentials(tables.hub_scores, begin * k, end - begin, scratch.psi, tops, states)
        if from_scratch:
            scratch.message[: (last_link - first_link) * k] = 1.0
            scratch.scale[: last_link - first_link] = 0.0
        else:
            fast = fast and exponentials(
                multipliers, first_link * k, last_link - first_link, scratch.message, scratch.scale, states
            )
        closing = 1 if halvings > 0 else 0  # the sweep that is not damped
        limit = (tree_sweeps if from_scratch else max_sweeps) - closing
        sweeps = 0
        residual = np.inf
        asked = 0.5 * tolerance if closing else tolerance
        if closing and beliefs.late[0]:
            limit = 0
        while fast and sweeps < limit and residual > asked and not (sweeps > 0 and beliefs.late[0]):
            residual = _sweep(layout, plan, tables, numbers, instance, sweeps % 2 == 0, scratch, halvings, states)
            sweeps += 1
            fast = not math.isnan(residual)
        if fast and closing:
            residual = _sweep(layout, plan, tables, numbers, instance, sweeps % 2 == 0, scratch, 0, states)
            sweeps += 1
            fast = not math.isnan(residual)
        fast = fast and in_range(scratch.belief, (end - begin) * k)
        fast = fast and in_range(scratch.message, (last_link - first_link) * k)
        if not fast:
            all_done = False
            continue
        _finish(
            layout, plan, tables, numbers, beliefs, instance, sweeps % 2 == 1, weights[instance], outer, scratch, states
        )
        _store(layout, tables, numbers, multipliers, beliefs, instance, scratch, states)
        beliefs.sweeps[instance] = sweeps
        beliefs.residual[instance] = residual
        beliefs.done[instance] = True
    for i in range(outer.size):
        shared_counts[i] += outer[i] * tables.exp_entries[i]
    return all_done


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
    layout: Layout, tables: Tables, numbers: Numbers, beliefs: Beliefs, instance: int, weight: float,
    scratch: PairScratch, states: States,
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
    layout: Layout, tables: Tables, beliefs: Beliefs, instance: int, weight: float, outer: Floats, scratch: PairScratch,
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
    first_cluster: Ints, states: States,
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
