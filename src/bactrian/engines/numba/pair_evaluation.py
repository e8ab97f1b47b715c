"""D, beliefs and counts of pairs in linear space: after sweeps of star updates, at given multipliers, and of trees.

The symbols are those of :mod:`.linear`. After the last update of either of its ends a pair's Z is exactly 1 with scales
that cancel, s_l = -s_l' - shift: pairs add nothing to D. A hub adds theta_v - sum_l d_l - kappa_v log b, which is the
same for each of its states: the first is taken. At multipliers that no sweep left, a pair's belief is
E[a, b] u[a] v[b] / Z, and it adds kappa (log Z + scales) to D.

Trees with Bethe's numbers take two passes of one product m = E'u per edge. In the order of a tree's hubs each has at
most one neighbour before it, its parent. Going backward, a hub's star update leaves its parent's message out:
t_v b = exp(theta_v) prod m over children, and u = b for the parent. Going forward, the parent's message is multiplied
in, those of the children are as they were, and u = b / m for each child. Then D = log Z is the sum of log t_v and of
what exponentials were divided by, and the belief of a pair is E u u', with a sum of 1.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from bactrian.arrays import Bools, Floats, Ints
from bactrian.compiling import kernel, njit, record
from bactrian.engines.numba.arithmetic import CAREFUL, LEAST, MOST, log
from bactrian.engines.numba.linear import (
    Linear,
    begin_sweep,
    end_sweep,
    exponentials,
    load_messages,
    load_states,
    match_scales,
    multiply_messages,
    new_linear,
    store_logs,
    sweep_pairs,
)
from bactrian.engines.numba.tables import ALMOST_NOTHING, Limits, Passing, hold
from bactrian.engines.numba.vectors import (
    States,
    copy_scaled,
    normalise,
    pair_message,
    place,
    size_of,
    smallest,
    unsigned,
)


class Tally(NamedTuple):
    """What a block of instances adds up for shared tables."""

    outer: Floats  #: (shared entries,) sum of u u', to be multiplied by E
    times: Floats  #: (shared tables,) weight of pairs at which u = 1
    log_z: Floats  #: (shared tables,) log Z of those, NaN before the first
    row: Ints  #: (shared tables,) where the marginals of the first of those are
    column: Ints  #: (shared tables,)


HeldTally = record(Tally)


@kernel()
def evaluate_pairs(
    arrays: Passing, limits: Limits, counts: Floats, selected: Bools, first: int, last: int, states: States
) -> None:
    """What :func:`.stars.evaluate_instances` does, for the instances among ``first:last`` that are ``selected``.

    Sets ``beliefs.done`` of those that it does. Damped sweeps, here only those that halve steps, end with one that is
    not, after which D is that of the multipliers.
    """
    if limits.halvings < 0:
        return
    part, halvings = hold(arrays), limits.halvings
    beliefs, is_tree = part.beliefs, part.layout.instance_is_tree
    linear, tally = new_linear(part, first, last, False), new_tally(part, counts)
    held = np.empty(linear.product.size if halvings > 0 else 0)
    closing = 1 if halvings > 0 else 0
    asked = 0.5 * limits.tolerance if closing else limits.tolerance
    for instance in range(first, last):
        if not selected[instance]:
            continue
        # A tree takes all of its few sweeps, whatever the first one changes, as it does in two passes.
        is_exact = is_tree[instance] and limits.tree_sweeps <= limits.max_sweeps
        limit, sweeps, residual = limits.tree_sweeps if is_exact else limits.max_sweeps, 0, np.inf
        if beliefs.late[0]:
            limit = min(limit, 1)
        fast = load_states(part, linear, instance, False, states) and match_scales(part, linear, instance)
        while fast and sweeps < limit:
            halved = halvings if sweeps + closing < limit else 0
            residual = sweep_pairs(part, linear, instance, sweeps % 2 == 0, halved, held, states)
            sweeps += 1
            fast = not math.isnan(residual)
            if (residual <= asked and not is_exact) or beliefs.late[0]:
                limit = min(limit, sweeps + closing)
        fast = fast and store_logs(part, linear, instance, True, states)
        if fast:
            finish_hubs(part, linear, instance, states)
            finish_pairs(part, linear, instance, sweeps % 2 == 1, limits.marginals, tally.outer, states)
            beliefs.sweeps[instance], beliefs.residual[instance] = sweeps, residual
        beliefs.done[instance] = fast
    add_tally(part, tally, counts)


@kernel()
def evaluate_given(
    arrays: Passing, limits: Limits, counts: Floats, selected: Bools, first: int, last: int, states: States
) -> None:
    """The same without sweeps, at the multipliers as they are."""
    if limits.halvings < 0:
        return
    part = hold(arrays)
    linear, beliefs, tally = new_linear(part, first, last, False), part.beliefs, new_tally(part, counts)
    for instance in range(first, last):
        if selected[instance]:
            beliefs.done[instance] = _give_values(part, linear, instance, limits.consistent, tally, states)
            if beliefs.done[instance]:
                beliefs.sweeps[instance], beliefs.residual[instance] = 0, 0.0
    add_tally(part, tally, counts)


@njit()
def new_tally(part: Passing, counts: Floats) -> Tally:
    """Nothing counted yet of the shared entries that ``counts`` has a place for."""
    n_shared = part.layout.table_shared
    return HeldTally(
        np.zeros(counts.size),
        np.zeros(n_shared),
        np.full(n_shared, np.nan),
        np.zeros(n_shared, np.int64),
        np.zeros(n_shared, np.int64),
    )


@njit()
def add_tally(part: Passing, tally: Tally, counts: Floats) -> None:
    """Add what was counted to the expected entries of shared tables."""
    offset, entries = part.layout.table_offset, part.tables.exp_entries
    for table in range(part.layout.table_shared):
        times = tally.times[table] * math.exp(-tally.log_z[table]) if tally.times[table] != 0.0 else 0.0
        for i in range(offset[table], offset[table + 1]):
            counts[i] += (tally.outer[i] + times) * entries[i]


@njit()
def finish_hubs(part: Passing, linear: Linear, instance: int, states: States) -> None:
    """D of an instance after a sweep, once it is stored, and counts of its hubs."""
    layout, multipliers, hub_number = part.layout, part.multipliers, part.numbers.hub
    hub_offset, hub_scores, hub_log = layout.hub_offset, part.tables.hub_scores, part.beliefs.hub_log
    begin, end = layout.instance_hubs[instance], layout.instance_hubs[instance + 1]
    value = 0.0
    count_hubs(part, linear, instance, states)
    for hub in range(begin, end):
        first_state = place(hub_offset, hub, states)
        value += hub_scores[first_state] - hub_number[hub] * hub_log[first_state]
    for link in range(layout.hub_links[begin], layout.hub_links[end]):
        value -= multipliers[place(layout.link_offset, link, states)]
    part.beliefs.value[instance] = value


@njit()
def count_hubs(part: Passing, linear: Linear, instance: int, states: States) -> None:
    """Counts of an instance's hubs, from b."""
    layout = part.layout
    start = place(layout.hub_offset, layout.instance_hubs[instance], states)
    size = place(layout.hub_offset, layout.instance_hubs[instance + 1], states) - start
    copy_scaled(part.beliefs.hub_count, start, linear.belief, 0, part.weights[instance], size)


@njit()
def finish_pairs(
    part: Passing, linear: Linear, instance: int, backward: bool, marginals: bool, outer: Floats, states: States
) -> None:
    """Counts, violation and ``marginals`` of an instance's pairs after a sweep in the given direction."""
    layout, beliefs = part.layout, part.beliefs
    hub_offset, link_offset, link_hub = layout.hub_offset, layout.link_offset, layout.link_hub
    hub_links, hub_number, link_leads = layout.hub_links, part.numbers.hub, part.plan.link_leads
    cluster_table, cluster_links, cluster_link = layout.cluster_table, layout.cluster_links, layout.cluster_link
    table_offset, entries, turned = layout.table_offset, linear.entries, linear.turned
    message, belief, product, marginal = linear.message, linear.belief, linear.product, beliefs.link_marginal
    hub_count, weight = beliefs.hub_count, part.weights[instance]
    origin, violation = part.plan.origin[instance], 0.0
    hub_base, base = place(hub_offset, origin, states), place(link_offset, hub_links[origin], states)
    count_pairs(part, linear, instance, False, outer, states)
    for cluster in range(layout.instance_clusters[instance], layout.instance_clusters[instance + 1]):
        table, ends = cluster_table[cluster], cluster_links[cluster]
        row, column, start = cluster_link[ends], cluster_link[ends + 1], table_offset[table]
        row_at, column_at = place(link_offset, row, states), place(link_offset, column, states)
        m, n = size_of(link_offset, row, states), size_of(link_offset, column, states)
        # The end that was updated last has its hub's belief as marginal; the other may still disagree.
        if link_leads[row] == backward:
            axis, last, last_at, other, at, size, last_size = 1, row, row_at, column, column_at, n, m
        else:
            axis, last, last_at, other, at, size, last_size = 0, column, column_at, row, row_at, m, n
        pair_message(entries, turned, start, axis, message, last_at - base, product, 0 * m, last_size, size)
        to = place(hub_offset, link_hub[other], states)
        of, against = unsigned(at - base), unsigned(to - hub_base)
        for k in range(unsigned(size)):
            product[k] *= message[of + k]
            difference = abs(product[k] - belief[against + k])
            violation = difference if difference > violation else violation
        if hub_number[link_hub[other]] == 0.0 and other == hub_links[link_hub[other]]:
            copy_scaled(hub_count, to, product, 0, weight, size)
        if marginals or len(states) == 0:
            copy_scaled(marginal, at, product, 0, 1.0, size)
            copy_scaled(marginal, last_at, belief, place(hub_offset, link_hub[last], states) - hub_base, 1.0, last_size)
    beliefs.violation[instance] = violation


@njit()
def count_pairs(part: Passing, linear: Linear, instance: int, given: bool, outer: Floats, states: States) -> None:
    """Counts of an instance's pairs, of shared tables as sums of u u'; Z is 1, or ``given`` in ``linear.spare``."""
    layout, message, spare, entries = part.layout, linear.message, linear.spare, linear.entries
    link_offset, counts, table_offset = layout.link_offset, part.beliefs.counts, layout.table_offset
    cluster_table, cluster_links, cluster_link = layout.cluster_table, layout.cluster_links, layout.cluster_link
    base = place(link_offset, layout.hub_links[part.plan.origin[instance]], states)
    begin, end = layout.instance_clusters[instance], layout.instance_clusters[instance + 1]
    n_shared, own_weight = layout.table_shared, part.weights[instance]
    for cluster in range(begin, end):
        weight = own_weight / (spare[cluster - begin] if given else 1.0)
        table, ends = cluster_table[cluster], cluster_links[cluster]
        row, column, start = cluster_link[ends], cluster_link[ends + 1], unsigned(table_offset[table])
        at, of = unsigned(place(link_offset, row, states) - base), unsigned(place(link_offset, column, states) - base)
        m, n = unsigned(size_of(link_offset, row, states)), unsigned(size_of(link_offset, column, states))
        for r in range(m):
            factor, to = weight * message[at + r], start + r * n
            if table < n_shared:
                for c in range(n):
                    outer[to + c] += factor * message[of + c]
            else:
                for c in range(n):
                    counts[to + c] = factor * message[of + c] * entries[to + c]


@njit()
def _give_values(part: Passing, linear: Linear, instance: int, consistent: bool, tally: Tally, states: States) -> bool:
    """D, beliefs and counts at the multipliers as they are; False, and nothing counted, where log space is needed."""
    if not (
        give_hubs(part, linear, instance, consistent, states)
        and give_pairs(part, linear, instance, consistent, tally, states)
    ):
        return False
    join(part, linear, instance, consistent, states)
    return True


@njit()
def give_hubs(part: Passing, linear: Linear, instance: int, consistent: bool, states: States) -> bool:
    """Messages and beliefs of an instance's hubs at the multipliers as they are, and their part of D.

    Clusters that need not agree take ``shares`` of their hubs' scores, whatever the multipliers are.
    """
    layout, message, scale = part.layout, linear.message, linear.scale
    begin, end = layout.instance_hubs[instance], layout.instance_hubs[instance + 1]
    first, last = layout.hub_links[begin], layout.hub_links[end]
    base = place(layout.link_offset, first, states)
    if consistent:
        if not load_messages(part, linear, instance, states):
            return False
    elif part.plan.alike[instance]:
        for i in range(place(layout.link_offset, last, states) - base):
            message[i] = 1.0
        for i in range(last - first):
            scale[i] = 0.0
    else:
        link_offset, hub_offset = layout.link_offset, layout.hub_offset
        link_hub, hub_scores = layout.link_hub, part.tables.hub_scores
        link_cluster, cluster_number, shares = layout.link_cluster, part.numbers.cluster, part.shares
        for link in range(first, last):
            at, n = place(link_offset, link, states) - base, size_of(link_offset, link, states)
            if shares[link] != 0.0:
                factor = shares[link] / cluster_number[link_cluster[link]]
                copy_scaled(message, at, hub_scores, place(hub_offset, link_hub[link], states), factor, n)
            else:
                for k in range(at, at + n):
                    message[k] = 0.0
        if not exponentials(message, 0, layout.link_offset, first, last, message, scale, states):
            return False
    part.beliefs.value[instance] = _believe_given(part, linear, instance, consistent, states)
    return not math.isnan(part.beliefs.value[instance])


@njit()
def give_pairs(part: Passing, linear: Linear, instance: int, consistent: bool, tally: Tally, states: States) -> bool:
    """The pairs' part of D, with marginals and counts; False, and nothing counted, where log space is needed."""
    if not consistent and part.plan.alike[instance]:
        value = _evaluate_alike(part, linear, instance, tally, states)
    else:
        value = _evaluate_clusters(part, linear, instance, tally.outer, states)
    part.beliefs.value[instance] += value
    return not math.isnan(value)


@njit(fastmath=CAREFUL)
def _believe_given(part: Passing, linear: Linear, instance: int, consistent: bool, states: States) -> float:
    """Beliefs of hubs with a number of their own from what multipliers leave of their scores, and their part of D.

    NaN where log space is needed. What is left, theta_v - sum_l d_l, stays in ``linear.psi``.
    """
    layout, multipliers, link_offset = part.layout, part.multipliers, part.layout.link_offset
    hub_offset, hub_links, slack, belief = layout.hub_offset, layout.hub_links, linear.psi, linear.belief
    hub_number, hub_scores, hub_log = part.numbers.hub, part.tables.hub_scores, part.beliefs.hub_log
    begin, end = layout.instance_hubs[instance], layout.instance_hubs[instance + 1]
    base = place(hub_offset, begin, states)
    tops = linear.spare
    for hub in range(begin, end):
        start, n = place(hub_offset, hub, states), size_of(hub_offset, hub, states)
        to = start - base
        copy_scaled(slack, to, hub_scores, start, 1.0, n)
        if consistent:
            for link in range(hub_links[hub], hub_links[hub + 1]):
                at, of = unsigned(place(link_offset, link, states)), unsigned(to)
                for k in range(unsigned(n)):
                    slack[of + k] -= multipliers[at + k]
        if hub_number[hub] != 0.0:
            copy_scaled(belief, to, slack, to, 1.0 / hub_number[hub], n)
        elif not smallest(slack, to, n) > -np.inf:
            return np.nan
        else:
            for k in range(to, to + n):
                belief[k] = 0.0
    if not exponentials(belief, 0, hub_offset, begin, end, belief, tops, states):
        return np.nan
    value = 0.0
    for hub in range(begin, end):
        total = normalise(belief, place(hub_offset, hub, states) - base, size_of(hub_offset, hub, states))
        value += hub_number[hub] * (tops[hub - begin] + math.log(total))
    logs = hub_log[base : place(hub_offset, end, states)]
    for i in range(logs.size):
        logs[i] = log(belief[i])
    return value


@njit(forceinline=True)
def _evaluate_pair(
    marginal: Floats,
    entries: Floats,
    turned: int,
    message: Floats,
    start: int,
    at: int,
    of: int,
    base: int,
    m: int,
    n: int,
) -> float:
    """Z of a pair, and its marginals; NaN where log space is needed.

    Where some score is forbidden, a marginal of 0 leaves it open whether the state is: that takes log space too.
    """
    for axis in range(2):
        source, to, rows, columns = (at - base, of, m, n) if axis == 1 else (of - base, at, n, m)
        pair_message(entries, turned, start, axis, message, source, marginal, to, rows, columns)
    to, source = unsigned(at), unsigned(at - base)
    for k in range(unsigned(m)):
        marginal[to + k] *= message[source + k]
    to, source = unsigned(of), unsigned(of - base)
    for k in range(unsigned(n)):
        marginal[to + k] *= message[source + k]
    total = normalise(marginal, at, m)
    normalise(marginal, of, n)
    if min(smallest(marginal, at, m), smallest(marginal, of, n)) == 0.0:
        return np.nan
    return total if LEAST < total < MOST else np.nan


@njit()
def _evaluate_clusters(part: Passing, linear: Linear, instance: int, outer: Floats, states: States) -> float:
    """The pairs' part of D, with marginals and counts; NaN, and nothing counted, where log space is needed."""
    layout, link_offset = part.layout, part.layout.link_offset
    cluster_table, cluster_link, cluster_links = layout.cluster_table, layout.cluster_link, layout.cluster_links
    table_offset, cluster_number, shift = layout.table_offset, part.numbers.cluster, part.tables.shift
    scale, totals, narrow, marginal = linear.scale, linear.spare, part.tables.narrow, part.beliefs.link_marginal
    entries, turned, message = linear.entries, linear.turned, linear.message
    begin, end = layout.instance_clusters[instance], layout.instance_clusters[instance + 1]
    first = layout.hub_links[part.plan.origin[instance]]
    base = place(link_offset, first, states)
    value = 0.0
    for cluster in range(begin, end):
        table, ends = cluster_table[cluster], cluster_links[cluster]
        row, column = cluster_link[ends], cluster_link[ends + 1]
        at, of = place(link_offset, row, states), place(link_offset, column, states)
        m, n = size_of(link_offset, row, states), size_of(link_offset, column, states)
        total = _evaluate_pair(marginal, entries, turned, message, table_offset[table], at, of, base, m, n)
        if math.isnan(total) or not narrow[table]:
            return np.nan
        totals[cluster - begin] = total
        scales = scale[row - first] + scale[column - first] + shift[table]
        value += cluster_number[cluster] * (math.log(total) + scales)
    count_pairs(part, linear, instance, True, outer, states)
    return value


@njit()
def _evaluate_alike(part: Passing, linear: Linear, instance: int, tally: Tally, states: States) -> float:
    """The same where all pairs of a table are alike: the first is worked out, and others are copied."""
    layout, marginal, link_offset = part.layout, part.beliefs.link_marginal, part.layout.link_offset
    cluster_table, cluster_link, cluster_links = layout.cluster_table, layout.cluster_link, layout.cluster_links
    table_offset, cluster_number, shift = layout.table_offset, part.numbers.cluster, part.tables.shift
    weight, narrow = part.weights[instance], part.tables.narrow
    entries, turned, message = linear.entries, linear.turned, linear.message
    log_z, times, like_row, like_column = tally.log_z, tally.times, tally.row, tally.column
    begin, end = layout.instance_clusters[instance], layout.instance_clusters[instance + 1]
    base = place(link_offset, layout.hub_links[part.plan.origin[instance]], states)
    for cluster in range(begin, end):
        table = cluster_table[cluster]
        if math.isnan(log_z[table]):
            row, column = cluster_link[cluster_links[cluster]], cluster_link[cluster_links[cluster] + 1]
            at, of = place(link_offset, row, states), place(link_offset, column, states)
            m, n = size_of(link_offset, row, states), size_of(link_offset, column, states)
            total = _evaluate_pair(marginal, entries, turned, message, table_offset[table], at, of, base, m, n)
            if math.isnan(total) or not narrow[table]:
                return np.nan
            log_z[table], like_row[table], like_column[table] = math.log(total), at, of
    value = 0.0
    for cluster in range(begin, end):
        table, ends = cluster_table[cluster], cluster_links[cluster]
        row, column = cluster_link[ends], cluster_link[ends + 1]
        at, m = place(link_offset, row, states), size_of(link_offset, row, states)
        copy_scaled(marginal, at, marginal, like_row[table], 1.0, m)
        of, n = place(link_offset, column, states), size_of(link_offset, column, states)
        copy_scaled(marginal, of, marginal, like_column[table], 1.0, n)
        value += cluster_number[cluster] * (log_z[table] + shift[table])
        times[table] += weight
    return value


@njit(fastmath=CAREFUL)
def join(part: Passing, linear: Linear, instance: int, consistent: bool, states: States) -> None:
    """Counts of hubs, disagreements and violation, and the part of D of hubs without a number.

    Such a hub has the marginal of its first link for its belief. Scores of hubs that clusters took shares of are
    counted there.
    """
    layout, beliefs, shares, hub_number = part.layout, part.beliefs, part.shares, part.numbers.hub
    hub_offset, link_offset, hub_links = layout.hub_offset, layout.link_offset, layout.hub_links
    marginal, belief, slack = beliefs.link_marginal, linear.belief, linear.psi
    hub_log, hub_count, disagreement = beliefs.hub_log, beliefs.hub_count, beliefs.disagreement
    weight = part.weights[instance]
    value, violation = 0.0, 0.0
    begin = layout.instance_hubs[instance]
    base = place(hub_offset, begin, states)
    for hub in range(begin, layout.instance_hubs[instance + 1]):
        start, n = place(hub_offset, hub, states), size_of(hub_offset, hub, states)
        first, last, to = hub_links[hub], hub_links[hub + 1], start - base
        own = hub_number[hub] != 0.0
        if not own and first < last:
            copy_scaled(belief, to, marginal, place(link_offset, first, states), 1.0, n)
            for k in range(n):
                hub_log[start + k] = log(max(belief[to + k], ALMOST_NOTHING))
                if consistent:
                    value += belief[to + k] * slack[to + k]
        counted = weight if own or (consistent and first < last) else 0.0
        copy_scaled(hub_count, start, belief, to, counted, n)
        for link in range(first, last):
            at = place(link_offset, link, states)
            share = 0.0 if consistent else weight * shares[link]
            of, against, into = unsigned(at), unsigned(to), unsigned(start)
            for k in range(unsigned(n)):
                difference = marginal[of + k] - belief[against + k]
                violation = max(violation, abs(difference))
                if consistent:
                    disagreement[of + k] = weight * difference
                elif share != 0.0:
                    hub_count[into + k] += share * marginal[of + k]
    beliefs.violation[instance] = violation
    beliefs.value[instance] += value


# --- trees ---


@kernel()
def evaluate_trees(
    arrays: Passing, limits: Limits, counts: Floats, selected: Bools, first: int, last: int, states: States
) -> None:
    """What :func:`evaluate_pairs` does, for ``selected`` trees and whatever the multipliers are."""
    part = hold(arrays)
    linear, done = new_linear(part, first, last, True), part.beliefs.done
    tally = new_tally(part, counts)
    for instance in range(first, last):
        if selected[instance]:
            done[instance] = _evaluate_tree(part, limits, linear, instance, tally.outer, states)
    add_tally(part, tally, counts)


@njit(fastmath=CAREFUL)
def _evaluate_tree(part: Passing, limits: Limits, linear: Linear, instance: int, outer: Floats, states: States) -> bool:
    """See :func:`evaluate_trees`; False, and nothing counted, where log space is needed."""
    layout, beliefs, hub_links, totals = part.layout, part.beliefs, part.layout.hub_links, linear.spare
    if not (load_states(part, linear, instance, True, states) and match_scales(part, linear, instance)):
        return False
    begin, end = layout.instance_hubs[instance], layout.instance_hubs[instance + 1]
    value = linear.belief[: end - begin].sum() - linear.scale[: hub_links[end] - hub_links[begin]].sum()
    begin_sweep(linear)
    violation = 0.0
    for backward in (True, False):
        violation = _pass(part, linear, instance, backward, states)
    if np.isnan(end_sweep(linear)) or not store_logs(part, linear, instance, limits.logs, states):
        return False
    count_hubs(part, linear, instance, states)
    count_pairs(part, linear, instance, False, outer, states)
    for i in range(end - begin):
        totals[i] = log(totals[i])
    beliefs.value[instance] = value + totals[: end - begin].sum()
    beliefs.violation[instance], beliefs.sweeps[instance], beliefs.residual[instance] = violation, 2, violation
    return True


@njit()
def _pass(part: Passing, linear: Linear, instance: int, backward: bool, states: States) -> float:
    """One of the two passes; the largest part by which a t_v is now another than that of the pass before."""
    layout, leads, totals, message = part.layout, part.plan.link_leads, linear.spare, linear.message
    link_partner, link_axis, link_start = layout.link_partner, layout.link_axis, part.plan.link_start
    entries, turned, psi, low, high = linear.entries, linear.turned, linear.psi, linear.low, linear.high
    hub_order, hub_offset = layout.hub_order, layout.hub_offset
    hub_links, link_offset, belief, product = layout.hub_links, layout.link_offset, linear.belief, linear.product
    begin, end = layout.instance_hubs[instance], layout.instance_hubs[instance + 1]
    hub_base, base = place(layout.hub_offset, begin, states), place(link_offset, hub_links[begin], states)
    change = 0.0
    for position in range(end - begin):
        hub = hub_order[end - 1 - position if backward else begin + position]
        first, last = hub_links[hub], hub_links[hub + 1]
        to, n = place(hub_offset, hub, states) - hub_base, size_of(hub_offset, hub, states)
        for link in range(first, last):
            at = place(link_offset, link, states) - base
            if leads[link] == backward:
                partner = link_partner[link]
                source, m = place(link_offset, partner, states) - base, size_of(link_offset, partner, states)
                start, axis = link_start[link], link_axis[link]
                pair_message(entries, turned, start, axis, message, source, product, at, m, n)
            elif backward:
                for k in range(at, at + n):
                    product[k] = 1.0
        of = place(link_offset, first, states) - base
        multiply_messages(psi, product, belief, low, high, to, of, last - first, n)
        total = normalise(belief, to, n)
        for link in range(first, last):
            at = place(link_offset, link, states) - base
            if leads[link] and not backward:
                i, own = unsigned(at), unsigned(to)
                for k in range(unsigned(n)):
                    message[i + k] = belief[own + k] / product[i + k]
            elif backward and not leads[link]:
                copy_scaled(message, at, belief, to, 1.0, n)
        if backward:
            totals[hub - begin] = total
        else:
            change = max(change, abs(total / totals[hub - begin] - 1.0))
    return change
