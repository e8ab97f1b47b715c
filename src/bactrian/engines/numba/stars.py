"""Star updates and evaluation of the dual in log space, where every model can be worked on.

Symbols (design: the dual D): for a cluster a with table theta_a, counting number kappa_a and multipliers d_l on its
links l, and a hub v with scores theta_v (minus the linearisation), counting number kappa_v and links l around it,

    D = sum_a kappa_a log sum exp((theta_a + sum_l d_l) / kappa_a)
      + sum_v kappa_v log sum exp((theta_v - sum_l d_l) / kappa_v)

The second sum becomes, for kappa_v = 0, the constraint that theta_v - sum_l d_l is constant. With m_l the marginal
of a link's cluster on the link's hub *without* the link's own multiplier, the star update of hub v is

    log b = (theta_v + sum_l kappa_l log m_l) / (kappa_v + sum_l kappa_l),    d_l = kappa_l (log b - log m_l)

For kappa_v >= 0 it minimises D exactly over the multipliers of the hub. With kappa_v = 1 - degree it is belief
propagation (Yedidia, Freeman and Weiss 2005); the other choices are the convex relatives (Heskes 2006; Hazan and
Shashua 2010).

A pair between two hubs uses its table's exponential E, computed once per evaluation however many clusters share the
table: m = E'u with u = exp(d / kappa). Where the range of E or of the product could underflow, the same quantity is
computed in log space. All arrays over link states hold logarithms. :mod:`.linear` does the same for pairs, faster,
where exponentials can be kept instead.
"""

from __future__ import annotations

import math

import numpy as np

from bactrian.arrays import Bools, Floats
from bactrian.compiling import inner, njit
from bactrian.engines.numba.arithmetic import LEAST, MOST, RISE, RISING, exp, normalise_logs
from bactrian.engines.numba.tables import (
    Limits,
    Passing,
    Scratch,
    clear_counts,
    evaluate_cluster,
    evaluate_hubs,
    fill_scores,
    new_scratch,
    project_logsumexp,
)
from bactrian.engines.numba.vectors import largest, pair_message, smallest


@inner(forceinline=True)
def incoming_message(part: Passing, link: int, scratch: Scratch, out: Floats, start: int) -> None:
    """log m of a link into ``out[start:]``."""
    layout, tables, numbers = part.layout, part.tables, part.numbers
    cluster, partner = layout.link_cluster[link], layout.link_partner[link]
    table, kappa = layout.cluster_table[cluster], numbers.cluster[cluster]
    if partner >= 0 and tables.narrow[table] and numbers.table[table] == kappa:
        at, small, product = layout.link_offset[partner], scratch.small, scratch.product
        m, n = layout.link_offset[partner + 1] - at, layout.link_offset[link + 1] - layout.link_offset[link]
        top = largest(part.multipliers, at, m)
        top = top if top != -np.inf else 0.0
        for k in range(m):
            small[k] = exp((part.multipliers[at + k] - top) / kappa)
        entries, axis = layout.table_offset[table], layout.link_axis[link]
        pair_message(tables.exp_entries, entries, axis, small, 0, product, 0, m, n)
        if smallest(product, 0, n) > LEAST and largest(product, 0, n) < MOST:
            for k in range(n):
                out[start + k] = math.log(product[k]) + top / kappa + tables.shift[table]
            return
    size = fill_scores(layout, tables, numbers, part.multipliers, cluster, link, scratch.scores)
    project_logsumexp(layout, link, scratch.scores, size, scratch.small, out, start)


@inner(forceinline=True)
def log_belief(part: Passing, hub: int, incoming: Floats, at: int, out: Floats, to: int) -> bool:
    """log b of a hub into ``out[to:]`` from its links' messages, in ``incoming[at:]``; False: no state is possible."""
    layout, numbers = part.layout, part.numbers
    start = layout.hub_offset[hub]
    states = layout.hub_offset[hub + 1] - start
    divisor = numbers.hub[hub]
    for k in range(states):
        out[to + k] = part.tables.hub_scores[start + k]
    for link in range(layout.hub_links[hub], layout.hub_links[hub + 1]):
        kappa = numbers.cluster[layout.link_cluster[link]]
        divisor += kappa
        for k in range(states):
            out[to + k] += kappa * incoming[at + k]
        at += states
    inverse = 1.0 / divisor
    for k in range(states):
        out[to + k] *= inverse
    return bool(normalise_logs(out, to, to + states) > -np.inf)


@inner(forceinline=True)
def update_multipliers(part: Passing, hub: int, incoming: Floats, at: int, damping: float, belief: Floats) -> float:
    """Multipliers of all links of a hub from its log belief and their messages; the largest change of a marginal.

    They are 0 where the link's cluster already forbids a state. ``belief`` is scratch.
    """
    layout, multipliers, hub_log = part.layout, part.multipliers, part.beliefs.hub_log
    start = layout.hub_offset[hub]
    states = layout.hub_offset[hub + 1] - start
    for k in range(states):
        belief[k] = exp(hub_log[start + k])
    change = 0.0
    for link in range(layout.hub_links[hub], layout.hub_links[hub + 1]):
        offset, kappa = layout.link_offset[link], part.numbers.cluster[layout.link_cluster[link]]
        inverse = 1.0 / kappa
        highest, level, top = -np.inf, 0.0, -1.0
        for k in range(states):
            old, new = multipliers[offset + k], 0.0
            if incoming[at + k] != -np.inf:
                new = kappa * (hub_log[start + k] - incoming[at + k])
                if hub_log[start + k] != -np.inf:
                    step = new - old
                    change = max(change, belief[k] * min(1.0, abs(step) * inverse))
                    highest = max(highest, step)
                    if belief[k] > top:
                        top, level = belief[k], step
                    if damping > 0.0 and old != -np.inf:
                        new -= damping * step
            multipliers[offset + k] = new
        if (highest - level) * inverse > RISE:
            change = max(change, RISING)
        at += states
    return change


@inner()
def sweep_hubs(part: Passing, instance: int, backward: bool, damping: float, scratch: Scratch) -> float:
    """Star updates of an instance's hubs in turn; returns the largest change of a marginal.

    inf where some hub has no possible state.
    """
    layout, star = part.layout, scratch.star
    begin, end = layout.instance_hubs[instance], layout.instance_hubs[instance + 1]
    change = 0.0
    for position in range(end - begin):
        hub = layout.hub_order[end - 1 - position if backward else begin + position]
        start = layout.hub_offset[hub]
        states = layout.hub_offset[hub + 1] - start
        first = layout.hub_links[hub]
        for link in range(first, layout.hub_links[hub + 1]):
            incoming_message(part, link, scratch, star, (link - first) * states)
        if not log_belief(part, hub, star, 0, part.beliefs.hub_log, start):
            return np.inf
        change = max(change, update_multipliers(part, hub, star, 0, damping, scratch.belief))
    return change


@inner()
def update_hubs_together(part: Passing, instance: int, damping: float, incoming: Floats, scratch: Scratch) -> float:
    """Star updates of all hubs of an instance from the same old messages; see :func:`sweep_hubs`.

    ``incoming`` takes the messages, by link state.
    """
    layout = part.layout
    begin, end = layout.instance_hubs[instance], layout.instance_hubs[instance + 1]
    all_messages(part, instance, incoming, scratch)
    change = 0.0
    for hub in range(begin, end):
        at = layout.link_offset[layout.hub_links[hub]]
        if not log_belief(part, hub, incoming, at, part.beliefs.hub_log, layout.hub_offset[hub]):
            return np.inf
        change = max(change, update_multipliers(part, hub, incoming, at, damping, scratch.belief))
    return change


@inner()
def all_messages(part: Passing, instance: int, incoming: Floats, scratch: Scratch) -> None:
    """log m of every link of an instance, the largest 0: a constant means nothing, but could grow or swing for ever."""
    layout = part.layout
    begin, end = layout.instance_hubs[instance], layout.instance_hubs[instance + 1]
    for link in range(layout.hub_links[begin], layout.hub_links[end]):
        at, n = layout.link_offset[link], layout.link_offset[link + 1] - layout.link_offset[link]
        incoming_message(part, link, scratch, incoming, at)
        top = largest(incoming, at, n)
        if top != -np.inf:
            for k in range(at, at + n):
                incoming[k] -= top


@njit(cache=True, nogil=True, error_model="numpy")
def evaluate_instances(part: Passing, limits: Limits, shared_counts: Floats, first: int, last: int) -> None:
    """Sweep the multipliers of instances ``first:last`` that are not done, then fill ``beliefs`` and counts.

    Sweeps alternate backward and forward over the hubs and stop at the first of the ``limits``. Where clusters need not
    agree the multipliers are fixed offsets of the clusters (``shares`` of the hubs' scores), and hubs stand for
    themselves.
    """
    layout, beliefs = part.layout, part.beliefs
    scratch = new_scratch(layout, first, last)
    slack = np.empty(scratch.small.size)
    for instance in range(first, last):
        if beliefs.done[instance]:
            continue
        limit = limits.max_sweeps
        if layout.instance_is_tree[instance]:
            limit = min(limit, limits.tree_sweeps)
        sweeps = 0
        residual = np.inf if limit > 0 else 0.0
        while sweeps < limit and residual > limits.tolerance and not (sweeps > 0 and beliefs.late[0]):
            residual = sweep_hubs(part, instance, sweeps % 2 == 0, limits.damping, scratch)
            sweeps += 1
        beliefs.sweeps[instance] = sweeps
        beliefs.residual[instance] = residual
        clear_counts(layout, beliefs.counts, instance)
        value = 0.0
        for cluster in range(layout.instance_clusters[instance], layout.instance_clusters[instance + 1]):
            counts = shared_counts if layout.cluster_table[cluster] < layout.table_shared else beliefs.counts
            found = evaluate_cluster(part, cluster, counts, part.weights[instance], scratch.scores)
            value += part.numbers.cluster[cluster] * found
        beliefs.value[instance] = value + evaluate_hubs(part, instance, limits.consistent, sweeps > 0, slack)


@njit(cache=True, nogil=True, error_model="numpy")
def scale_hubs(part: Passing, prescribed: Bools, target: Floats, backward: bool, damping: float) -> float:
    """Star updates of the hubs of one instance in turn, with Bethe's numbers; returns the largest change of a marginal.

    With m_l the marginal of link l's cluster on the hub without the link's own multiplier, and all sums over the links
    around the hub,

        prescribed (log b = ``target``):   theta_v = log b - sum log m_l       (written to ``tables.hub_scores``)
        free:                              log b = theta_v + sum log m_l, normalised

    and then d_l = log b - log m_l in both cases. ``damping`` keeps that part of the old multipliers of free hubs. Needs
    scores and targets that are finite.
    """
    layout, hub_log, hub_scores = part.layout, part.beliefs.hub_log, part.tables.hub_scores
    n_hubs, scratch = layout.hub_offset.size - 1, new_scratch(layout, 0, layout.instance_hubs.size - 1)
    incoming, change = scratch.star, 0.0
    for position in range(n_hubs):
        hub = layout.hub_order[n_hubs - 1 - position if backward else position]
        start, first, last = layout.hub_offset[hub], layout.hub_links[hub], layout.hub_links[hub + 1]
        states = layout.hub_offset[hub + 1] - start
        for link in range(first, last):
            incoming_message(part, link, scratch, incoming, (link - first) * states)
        if prescribed[hub]:
            for k in range(states):
                hub_log[start + k] = hub_scores[start + k] = target[start + k]
                for message in range(k, (last - first) * states, states):
                    hub_scores[start + k] -= incoming[message]
        else:
            log_belief(part, hub, incoming, 0, hub_log, start)
        kept = 0.0 if prescribed[hub] else damping
        change = max(change, update_multipliers(part, hub, incoming, 0, kept, scratch.belief))
    return change
