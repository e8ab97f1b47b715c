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
from numpy.typing import NDArray

from bactrian.arrays import Bools, Floats, Ints
from bactrian.compiling import kernel, njit
from bactrian.engines.numba.arithmetic import LEAST, MOST, RISE, RISING, START, exp, normalise_logs, pair_message
from bactrian.engines.numba.tables import (
    Limits,
    Passing,
    Scratch,
    evaluate_clusters,
    evaluate_hubs,
    fill_sums,
    new_scratch,
    project_logsumexp,
    turned,
)


@njit()
def log_messages(part: Passing, scratch: Scratch, first: int, last: int, out: Floats, start: int) -> None:
    """:func:`messages_of_arrays` of a record, for many links: what is taken out of it is counted, by locked writes."""
    layout, tables, numbers, multipliers = part.layout, part.tables, part.numbers, part.multipliers
    link_cluster, link_partner, link_offset = layout.link_cluster, layout.link_partner, layout.link_offset
    cluster_table, table_offset, link_axis = layout.cluster_table, layout.table_offset, layout.link_axis
    cluster_number, table_number, narrow, shift = numbers.cluster, numbers.table, tables.narrow, tables.shift
    entries, exponentials, turn = tables.log_entries, tables.exp_entries, turned(tables.exp_entries, tables.log_entries)
    small, product, scores = scratch.small, scratch.product, scratch.scores
    cluster_links, cluster_link = layout.cluster_links, layout.cluster_link
    link_projection, projection = layout.link_projection, layout.projection
    messages_of_arrays(
        link_cluster, link_partner, link_offset, link_axis, link_projection, projection, cluster_links, cluster_link,
        cluster_table, table_offset, cluster_number, table_number, narrow, shift, entries, exponentials, turn,
        multipliers, small, product, scores, first, last, out, start,
    )  # fmt: skip


@njit(forceinline=True)
def messages_of_arrays(
    link_cluster: Ints, link_partner: Ints, link_offset: Ints, link_axis: Ints, link_projection: Ints,
    projection: NDArray[np.int32], cluster_links: Ints, cluster_link: Ints, cluster_table: Ints, table_offset: Ints,
    cluster_number: Floats, table_number: Floats, narrow: Bools, shift: Floats, entries: Floats, exponentials: Floats,
    turn: int, multipliers: Floats, small: Floats, product: Floats, scores: Floats,
    first: int, last: int, out: Floats, start: int,
) -> None:  # fmt: skip
    """log m of links ``first:last``, one after the other, into ``out[start:]``."""
    for link in range(first, last):
        cluster, partner, n = link_cluster[link], link_partner[link], link_offset[link + 1] - link_offset[link]
        table, kappa, fits, level = cluster_table[cluster], cluster_number[cluster], False, 0.0
        if partner >= 0 and narrow[table] and table_number[table] == kappa:
            at, m, top = link_offset[partner], link_offset[partner + 1] - link_offset[partner], -np.inf
            for k in range(at, at + m):
                top = max(top, multipliers[k])
            top = top if top != -np.inf else 0.0
            for k in range(m):
                small[k] = exp((multipliers[at + k] - top) / kappa)
            origin, axis = table_offset[table], link_axis[link]
            level = top / kappa + shift[table]
            pair_message(exponentials, turn, origin, axis, small, START, product, START, m, n)
            fits = True
            for k in range(n):
                fits &= LEAST < product[k] < MOST
        if fits:
            for k in range(n):
                out[start + k] = math.log(product[k]) + level
        else:
            size = fill_sums(
                table_offset, cluster_table, cluster_links, cluster_link, link_projection, link_offset, projection,
                entries, multipliers, cluster, link, scores,
            )  # fmt: skip
            inverse = 1.0 / kappa
            for k in range(size):
                scores[k] *= inverse
            project_logsumexp(projection, link_projection[link], n, scores, size, small, out, start)
        start += n


@njit(forceinline=True)
def log_belief(
    link_cluster: Ints, cluster_number: Floats, number: float, hub_scores: Floats, at: int, n: int, first: int,
    last: int, incoming: Floats, of: int, out: Floats, to: int,
) -> bool:  # fmt: skip
    """log b of a hub into ``out[to:]`` from its scores and its links' messages; False: no state is possible.

    Its scores are in ``hub_scores[at:]``, its number is ``number``, its links ``first:last``, with messages in
    ``incoming[of:]``.
    """
    divisor = number
    for k in range(n):
        out[to + k] = hub_scores[at + k]
    for link in range(first, last):
        kappa = cluster_number[link_cluster[link]]
        divisor += kappa
        for k in range(n):
            out[to + k] += kappa * incoming[of + k]
        of += n
    inverse = 1.0 / divisor
    for k in range(n):
        out[to + k] *= inverse
    return bool(normalise_logs(out, to, to + n) > -np.inf)


@njit(forceinline=True)
def update_multipliers(
    link_cluster: Ints, cluster_number: Floats, link_offset: Ints, multipliers: Floats, hub_log: Floats, start: int,
    n: int, first: int, last: int, incoming: Floats, at: int, damping: float, belief: Floats,
) -> float:  # fmt: skip
    """Multipliers of all links of a hub from its log belief and their messages; the largest change of a marginal.

    They are 0 where the link's cluster already forbids a state. ``belief`` is scratch.
    """
    for k in range(n):
        belief[k] = exp(hub_log[start + k])
    change = 0.0
    for link in range(first, last):
        offset, kappa = link_offset[link], cluster_number[link_cluster[link]]
        inverse = 1.0 / kappa
        highest, level, top = -np.inf, 0.0, -1.0
        for k in range(n):
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
        at += n
    return change


@njit()
def sweep_hubs(
    part: Passing, instance: int, backward: bool, together: bool, damping: float, incoming: Floats, scratch: Scratch
) -> float:
    """Star updates of an instance's hubs in turn; returns the largest change of a marginal.

    With ``together`` all hubs are updated from the same old messages, whose largest is 0: a constant means nothing, but
    could grow or swing for ever. ``incoming`` takes the messages: of a star, or, by link state, of all links. inf where
    some hub has no possible state.
    """
    layout, multipliers, hub_log = part.layout, part.multipliers, part.beliefs.hub_log
    hub_order, hub_offset, hub_links = layout.hub_order, layout.hub_offset, layout.hub_links
    link_offset, hub_scores = layout.link_offset, part.tables.hub_scores
    link_cluster, cluster_number, hub_number = layout.link_cluster, part.numbers.cluster, part.numbers.hub
    begin, end, belief = layout.instance_hubs[instance], layout.instance_hubs[instance + 1], scratch.belief
    change = 0.0
    if together:
        log_messages(part, scratch, hub_links[begin], hub_links[end], incoming, link_offset[hub_links[begin]])
        for link in range(hub_links[begin], hub_links[end]):
            top = -np.inf
            for k in range(link_offset[link], link_offset[link + 1]):
                top = max(top, incoming[k])
            if top != -np.inf:
                for k in range(link_offset[link], link_offset[link + 1]):
                    incoming[k] -= top
    for position in range(end - begin):
        hub = hub_order[end - 1 - position if backward else begin + position]
        start, n = hub_offset[hub], hub_offset[hub + 1] - hub_offset[hub]
        first, last = hub_links[hub], hub_links[hub + 1]
        at = link_offset[first] if together else 0
        if not together:
            log_messages(part, scratch, first, last, incoming, at)
        if not log_belief(
            link_cluster, cluster_number, hub_number[hub], hub_scores, start, n, first, last, incoming, at, hub_log,
            start,
        ):  # fmt: skip
            return np.inf
        found = update_multipliers(
            link_cluster, cluster_number, link_offset, multipliers, hub_log, start, n, first, last, incoming, at,
            damping, belief,
        )  # fmt: skip
        change = max(change, found)
    return change


@njit()
def sweep_logs(
    part: Passing, instance: int, together: bool, damping: float, limit: int, tolerance: float, incoming: Floats,
    scratch: Scratch,
) -> None:  # fmt: skip
    """Sweeps of an instance, backward and forward in turn, until tolerance, limit or late.

    Beliefs have their number and the last change, infinity where some hub has no possible state.
    """
    late, sweeps, residual = part.beliefs.late, 0, np.inf if limit > 0 else 0.0
    while sweeps < limit and residual > tolerance and not (sweeps > 0 and (late[0] or residual == np.inf)):
        backward = not together and sweeps % 2 == 0
        residual = sweep_hubs(part, instance, backward, together, damping, incoming, scratch)
        sweeps += 1
    part.beliefs.sweeps[instance], part.beliefs.residual[instance] = sweeps, residual


@kernel()
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
        sweep_logs(part, instance, False, limits.damping, limit, limits.tolerance, scratch.star, scratch)
        value = evaluate_clusters(part, shared_counts, instance, scratch.scores)
        beliefs.value[instance] = value + evaluate_hubs(part, instance, limits.consistent, limit > 0, slack)


@kernel()
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
    link_cluster, cluster_number, hub_number = layout.link_cluster, part.numbers.cluster, part.numbers.hub
    n_hubs, scratch = layout.hub_offset.size - 1, new_scratch(layout, 0, layout.instance_hubs.size - 1)
    incoming, change = scratch.star, 0.0
    for position in range(n_hubs):
        hub = layout.hub_order[n_hubs - 1 - position if backward else position]
        start, first, last = layout.hub_offset[hub], layout.hub_links[hub], layout.hub_links[hub + 1]
        n = layout.hub_offset[hub + 1] - start
        log_messages(part, scratch, first, last, incoming, START)
        if prescribed[hub]:
            for k in range(n):
                hub_log[start + k] = hub_scores[start + k] = target[start + k]
                for message in range(k, (last - first) * n, n):
                    hub_scores[start + k] -= incoming[message]
        else:
            log_belief(
                link_cluster, cluster_number, hub_number[hub], hub_scores, start, n, first, last, incoming, START,
                hub_log, start,
            )  # fmt: skip
        kept = 0.0 if prescribed[hub] else damping
        found = update_multipliers(
            link_cluster, cluster_number, layout.link_offset, part.multipliers, hub_log, start, n, first, last,
            incoming, START, kept, scratch.belief,
        )  # fmt: skip
        change = max(change, found)
    return change
