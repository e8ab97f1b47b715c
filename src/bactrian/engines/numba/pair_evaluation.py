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
from bactrian.engines.numba.arithmetic import (
    CAREFUL,
    LEAST,
    MOST,
    START,
    States,
    copy_scaled,
    in_range,
    log,
    pair_message,
    place,
    size_of,
    smallest,
    unsigned,
)
from bactrian.engines.numba.linear import (
    Linear,
    believe,
    exponentials,
    load_messages,
    load_states,
    match_scales,
    new_linear,
    store_logs,
    sweep_pairs,
)
from bactrian.engines.numba.tables import ALMOST_NOTHING, Limits, Passing


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
    part: Passing, limits: Limits, counts: Floats, selected: Bools, first: int, last: int, states: States
) -> None:
    """What :func:`.stars.evaluate_instances` does, for the instances among ``first:last`` that are ``selected``.

    Sets ``beliefs.done`` of those that it does. Damped sweeps, here only those that halve steps, end with one that is
    not, after which D is that of the multipliers.
    """
    if limits.halvings < 0:
        return
    halvings, beliefs, is_tree = limits.halvings, part.beliefs, part.layout.instance_is_tree
    linear, outer = new_linear(part, first, last, False), np.zeros(counts.size)
    held = np.empty(3 * linear.product.size)
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
        fast = load_states(part, linear, instance, states) and match_scales(part, linear, instance)
        while fast and sweeps < limit:
            halved = halvings if sweeps + closing < limit else 0
            again = sweeps > 0 and halvings == 0
            residual = sweep_pairs(part, linear, instance, sweeps % 2 == 0, again, halved, held, linear.message, states)
            sweeps += 1
            fast = not math.isnan(residual)
            if (residual <= asked and not is_exact) or beliefs.late[0]:
                limit = min(limit, sweeps + closing)
        fast = fast and store_logs(part, linear, instance, True, states)
        if fast:
            finish_hubs(part, linear, instance, states)
            finish_pairs(part, linear, instance, sweeps % 2 == 1, limits.marginals, outer, states)
            beliefs.sweeps[instance], beliefs.residual[instance] = sweeps, residual
        beliefs.done[instance] = fast
    for i in range(counts.size):
        counts[i] += outer[i] * linear.entries[i]


@kernel()
def evaluate_given(
    part: Passing, limits: Limits, counts: Floats, selected: Bools, first: int, last: int, states: States
) -> None:
    """The same without sweeps, at the multipliers as they are."""
    if limits.halvings < 0:
        return
    linear, beliefs, tally = new_linear(part, first, last, False), part.beliefs, new_tally(part, counts)
    for instance in range(first, last):
        if selected[instance]:
            fast = give_hubs(part, linear, instance, limits.consistent, states)
            fast = fast and give_pairs(part, linear, instance, limits.consistent, tally, states)
            if fast:
                join(part, linear, instance, limits.consistent, states)
                beliefs.sweeps[instance], beliefs.residual[instance] = 0, 0.0
            beliefs.done[instance] = fast
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


@njit(inline="always")
def finish_hubs(part: Passing, linear: Linear, instance: int, states: States) -> None:
    """D of an instance after a sweep, once it is stored, and counts of its hubs."""
    layout, multipliers, hub_number = part.layout, part.multipliers, part.numbers.hub
    hub_offset, hub_scores, hub_log = layout.hub_offset, part.tables.hub_scores, part.beliefs.hub_log
    begin, end = layout.instance_hubs[instance], layout.instance_hubs[instance + 1]
    belief, hub_count, weight, value = linear.belief, part.beliefs.hub_count, part.weights[instance], 0.0
    start = unsigned(place(hub_offset, begin, states))
    for i in range(unsigned(place(hub_offset, end, states)) - start):
        hub_count[start + i] = weight * belief[i]
    for hub in range(begin, end):
        first_state = place(hub_offset, hub, states)
        value += hub_scores[first_state] - hub_number[hub] * hub_log[first_state]
    for link in range(layout.hub_links[begin], layout.hub_links[end]):
        value -= multipliers[place(layout.link_offset, link, states)]
    part.beliefs.value[instance] = value


@njit(inline="always")
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
    count_pairs(part, linear, instance, linear.spare[:0], outer, states)
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
        pair_message(entries, turned, start, axis, message, last_at - base, product, START, last_size, size)
        to = place(hub_offset, link_hub[other], states)
        of, against = unsigned(at - base), unsigned(to - hub_base)
        for k in range(unsigned(size)):
            product[k] *= message[of + k]
            difference = abs(product[k] - belief[against + k])
            violation = difference if difference > violation else violation
        if hub_number[link_hub[other]] == 0.0 and other == hub_links[link_hub[other]]:
            copy_scaled(hub_count, to, product, START, weight, size)
        if marginals or len(states) == 0:
            copy_scaled(marginal, at, product, START, 1.0, size)
            copy_scaled(marginal, last_at, belief, place(hub_offset, link_hub[last], states) - hub_base, 1.0, last_size)
    beliefs.violation[instance] = violation


@njit()
def count_pairs(part: Passing, linear: Linear, instance: int, z: Floats, outer: Floats, states: States) -> None:
    """Counts of an instance's pairs, of shared tables as sums of u u'; ``z`` has Z of each, or nothing: it is 1."""
    layout, message, entries = part.layout, linear.message, linear.entries
    link_offset, counts, table_offset = layout.link_offset, part.beliefs.counts, layout.table_offset
    cluster_table, cluster_links, cluster_link = layout.cluster_table, layout.cluster_links, layout.cluster_link
    base = place(link_offset, layout.hub_links[part.plan.origin[instance]], states)
    begin, end = layout.instance_clusters[instance], layout.instance_clusters[instance + 1]
    n_shared, own_weight = layout.table_shared, part.weights[instance]
    for cluster in range(begin, end):
        weight = own_weight / (z[cluster - begin] if z.size > 0 else 1.0)
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


@njit(inline="always")
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
        if not exponentials(message, START, layout.link_offset, first, last, message, scale, states):
            return False
    part.beliefs.value[instance] = _believe_given(part, linear, instance, consistent, states)
    return not math.isnan(part.beliefs.value[instance])


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
    if not exponentials(belief, START, hub_offset, begin, end, belief, tops, states):
        return np.nan
    value = 0.0
    for hub in range(begin, end):
        total, to = 0.0, unsigned(place(hub_offset, hub, states) - base)
        for k in range(unsigned(size_of(hub_offset, hub, states))):
            total += belief[to + k]
        for k in range(unsigned(size_of(hub_offset, hub, states))):
            belief[to + k] /= total
        value += hub_number[hub] * (tops[hub - begin] + math.log(total))
    logs = hub_log[base : place(hub_offset, end, states)]
    for i in range(logs.size):
        logs[i] = log(belief[i])
    return value


@njit(fastmath=CAREFUL)
def give_pairs(part: Passing, linear: Linear, instance: int, consistent: bool, tally: Tally, states: States) -> bool:
    """The pairs' part of D, with marginals and counts; False, and nothing counted, where log space is needed.

    Where some score is forbidden, a marginal of 0 leaves it open whether the state is: that takes log space too. Where
    all pairs of a table are alike, the first is worked out, and others are copied.
    """
    layout, link_offset, marginal = part.layout, part.layout.link_offset, part.beliefs.link_marginal
    cluster_table, cluster_link, cluster_links = layout.cluster_table, layout.cluster_link, layout.cluster_links
    table_offset, cluster_number, shift = layout.table_offset, part.numbers.cluster, part.tables.shift
    entries, turned, message, narrow = linear.entries, linear.turned, linear.message, part.tables.narrow
    scale, totals, times, log_z = linear.scale, linear.spare, tally.times, tally.log_z
    like_row, like_column, first = tally.row, tally.column, layout.hub_links[part.plan.origin[instance]]
    begin, end = layout.instance_clusters[instance], layout.instance_clusters[instance + 1]
    base, value, alike = place(link_offset, first, states), 0.0, not consistent and part.plan.alike[instance]
    for cluster in range(begin, end):
        table, ends = cluster_table[cluster], cluster_links[cluster]
        row, column = cluster_link[ends], cluster_link[ends + 1]
        at, of = place(link_offset, row, states), place(link_offset, column, states)
        m, n = size_of(link_offset, row, states), size_of(link_offset, column, states)
        if alike and not math.isnan(log_z[table]):
            logarithm = log_z[table]
            copy_scaled(marginal, at, marginal, like_row[table], 1.0, m)
            copy_scaled(marginal, of, marginal, like_column[table], 1.0, n)
        else:
            total, least = 0.0, np.inf
            for axis in range(2):
                source, own, size, to = (at, of, n, unsigned(of)) if axis == 1 else (of, at, m, unsigned(at))
                rows, start, beside = m + n - size, table_offset[table], unsigned(own - base)
                pair_message(entries, turned, start, axis, message, source - base, marginal, own, rows, size)
                total = 0.0
                for k in range(unsigned(size)):
                    marginal[to + k] *= message[beside + k]
                    total += marginal[to + k]
                for k in range(unsigned(size)):
                    marginal[to + k] /= total
                    least = min(least, marginal[to + k])
            if least == 0.0 or not (LEAST < total < MOST and narrow[table]):
                return False
            totals[cluster - begin], logarithm = total, math.log(total)
            if alike:
                log_z[table], like_row[table], like_column[table] = logarithm, at, of
        value += cluster_number[cluster] * (logarithm + scale[row - first] + scale[column - first] + shift[table])
    part.beliefs.value[instance] += value
    if alike:
        for cluster in range(begin, end):
            times[cluster_table[cluster]] += part.weights[instance]
    else:
        count_pairs(part, linear, instance, totals, tally.outer, states)
    return True


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


@kernel(fastmath=CAREFUL)
def evaluate_trees(
    part: Passing, limits: Limits, counts: Floats, selected: Bools, first: int, last: int, states: States
) -> None:
    """What :func:`evaluate_pairs` does, for ``selected`` trees and whatever the multipliers are.

    Trees are small and many: arrays are taken out of their records once for all of them.
    """
    layout, beliefs, leads = part.layout, part.beliefs, part.plan.link_leads
    linear, outer = new_linear(part, first, last, True), np.zeros(counts.size)
    instance_hubs, hub_order, hub_offset, hub_links = (
        layout.instance_hubs, layout.hub_order, layout.hub_offset, layout.hub_links,
    )  # fmt: skip
    link_offset, link_cluster, link_partner = layout.link_offset, layout.link_cluster, layout.link_partner
    link_axis, link_start, cluster_table = layout.link_axis, part.plan.link_start, layout.cluster_table
    shift, narrow, hub_scores, weights = part.tables.shift, part.tables.narrow, part.tables.hub_scores, part.weights
    entries, turned, message, scale = linear.entries, linear.turned, linear.message, linear.scale
    psi, belief, product, totals = linear.psi, linear.belief, linear.product, linear.spare
    hub_count, done = beliefs.hub_count, beliefs.done
    value, violation, sweeps, residual = beliefs.value, beliefs.violation, beliefs.sweeps, beliefs.residual
    for instance in range(first, last):
        if not selected[instance]:
            continue
        done[instance] = False
        begin, end = instance_hubs[instance], instance_hubs[instance + 1]
        hub_base, base = place(hub_offset, begin, states), place(link_offset, hub_links[begin], states)
        if not exponentials(hub_scores, hub_base, hub_offset, begin, end, psi, belief, states):
            continue
        constant, fits = 0.0, True
        for i in range(end - begin):
            constant += belief[i]
        for link in range(hub_links[begin], hub_links[end]):
            table = cluster_table[link_cluster[link]]
            scale[link - hub_links[begin]] = 0.0 if leads[link] else -shift[table]
            constant += 0.0 if leads[link] else shift[table]
            fits &= narrow[table]
        if not fits:
            continue
        change, outside = 0.0, 0
        for turn in range(2):
            backward = turn == 0
            for position in range(end - begin):
                hub = hub_order[end - 1 - position if backward else begin + position]
                to, n = place(hub_offset, hub, states) - hub_base, size_of(hub_offset, hub, states)
                for link in range(hub_links[hub], hub_links[hub + 1]):
                    at = place(link_offset, link, states) - base
                    if leads[link] == backward:
                        partner, start, axis = link_partner[link], link_start[link], link_axis[link]
                        source, m = place(link_offset, partner, states) - base, size_of(link_offset, partner, states)
                        pair_message(entries, turned, start, axis, message, source, product, at, m, n)
                    elif backward:
                        for k in range(at, at + n):
                            product[k] = 1.0
                of, degree = place(link_offset, hub_links[hub], states) - base, hub_links[hub + 1] - hub_links[hub]
                total, left = believe(psi, product, belief, to, of, degree, 1.0, n)
                outside += left
                for link in range(hub_links[hub], hub_links[hub + 1]):
                    i, own = unsigned(place(link_offset, link, states) - base), unsigned(to)
                    if leads[link] and not backward:
                        for k in range(unsigned(n)):
                            message[i + k] = belief[own + k] / product[i + k]
                    elif backward and not leads[link]:
                        for k in range(unsigned(n)):
                            message[i + k] = belief[own + k]
                if backward:
                    totals[hub - begin] = total
                else:
                    change = max(change, abs(total / totals[hub - begin] - 1.0))
        n_hub_states = place(hub_offset, end, states) - hub_base
        n_link_states = place(link_offset, hub_links[end], states) - base
        fits = in_range(product, START, n_link_states) and in_range(message, START, n_link_states)
        if outside > 0 or not (fits and in_range(belief, START, n_hub_states)):
            continue
        if limits.logs:
            store_logs(part, linear, instance, True, states)
        to, weight = unsigned(hub_base), weights[instance]
        for i in range(unsigned(n_hub_states)):
            hub_count[to + i] = weight * belief[i]
        count_pairs(part, linear, instance, totals[:0], outer, states)
        for i in range(end - begin):
            constant += log(totals[i])
        value[instance], violation[instance], residual[instance] = constant, change, change
        sweeps[instance], done[instance] = 2, True
    for i in range(counts.size):
        counts[i] += outer[i] * entries[i]
