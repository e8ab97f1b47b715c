"""Star updates and evaluation of the dual: the one message-passing kernel behind learning and inference.

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
computed in log space. All arrays over link states hold logarithms.
"""

from __future__ import annotations

import math

import numpy as np

from bactrian.arrays import Floats
from bactrian.compiling import njit
from bactrian.engines.numba.arithmetic import FAST_MATH, LEAST, MOST, RISE, RISING, exp
from bactrian.engines.numba.layout import Layout
from bactrian.engines.numba.tables import (
    Beliefs,
    Numbers,
    Tables,
    clear_counts,
    evaluate_cluster,
    evaluate_hubs,
    fill_scores,
    new_scratch,
    project_logsumexp,
)


@njit(cache=True, nogil=True, error_model="numpy")
def exp_message(multipliers: Floats, start: int, size: int, scale: float, out: Floats) -> float:
    """exp((d - top) * scale) into ``out``; returns top * scale."""
    top = -np.inf
    for k in range(size):
        top = max(top, multipliers[start + k])
    if top == -np.inf:
        top = 0.0
    for k in range(size):
        out[k] = exp((multipliers[start + k] - top) * scale)
    return top * scale


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST_MATH)
def _pair_product(
    entries: Floats, start: int, rows: int, columns: int, axis: int, message: Floats, out: Floats
) -> None:
    """Marginalise a pair's table onto ``axis``, weighting the other axis by ``message``."""
    if axis == 1:
        for b in range(columns):
            out[b] = 0.0
        for a in range(rows):
            weight = message[a]
            row = start + a * columns
            for b in range(columns):
                out[b] += weight * entries[row + b]
    else:
        for a in range(rows):
            row = start + a * columns
            total = 0.0
            for b in range(columns):
                total += entries[row + b] * message[b]
            out[a] = total


@njit(cache=True, nogil=True, error_model="numpy")
def pair_message(
    exp_entries: Floats,
    entries: int,
    shift: float,
    rows: int,
    columns: int,
    axis: int,
    multipliers: Floats,
    other: int,
    scale: float,
    small: Floats,
    product: Floats,
    out: Floats,
    start: int,
) -> bool:
    """log m of a pair's link on ``axis`` from the multipliers at ``other``; False where log space is needed.

    Takes plain arrays: reading a field of a named tuple inside a loop costs as much as the arithmetic.
    """
    top = exp_message(multipliers, other, rows if axis == 1 else columns, scale, small)
    _pair_product(exp_entries, entries, rows, columns, axis, small, product)
    states = columns if axis == 1 else rows
    safe = True
    for k in range(states):
        safe = safe and product[k] > LEAST and product[k] < MOST
    if safe:
        for k in range(states):
            out[start + k] = math.log(product[k]) + top + shift
    return safe


@njit(cache=True, nogil=True, error_model="numpy")
def incoming_message(
    layout: Layout,
    tables: Tables,
    numbers: Numbers,
    multipliers: Floats,
    link: int,
    scores: Floats,
    small: Floats,
    product: Floats,
    out: Floats,
    start: int,
) -> None:
    """log m of a link into ``out[start:]``; ``scores``, ``small`` and ``product`` are scratch."""
    cluster_link, link_offset, table_offset = layout.cluster_link, layout.link_offset, layout.table_offset
    cluster = layout.link_cluster[link]
    table = layout.cluster_table[cluster]
    kappa = numbers.cluster[cluster]
    rows = layout.cluster_rows[cluster]
    done = False
    if rows > 0 and tables.narrow[table] and numbers.table[table] == kappa:
        ends = layout.cluster_links[cluster]
        axis = 0 if cluster_link[ends] == link else 1
        entries = table_offset[table]
        columns = (table_offset[table + 1] - entries) // rows
        other = link_offset[cluster_link[ends + 1 - axis]]
        done = pair_message(
            tables.exp_entries, entries, tables.shift[table], rows, columns, axis, multipliers, other, 1.0 / kappa,
            small, product, out, start,
        )  # fmt: skip
    if not done:
        size = fill_scores(layout, tables, numbers, multipliers, cluster, link, scores)
        project_logsumexp(layout, link, scores, size, small, out, start)


@njit(cache=True, nogil=True, error_model="numpy")
def sweep_hubs(
    layout: Layout,
    tables: Tables,
    numbers: Numbers,
    multipliers: Floats,
    hub_log: Floats,
    instance: int,
    backward: bool,
    damping: float,
    scores: Floats,
    small: Floats,
    product: Floats,
    incoming: Floats,
) -> float:
    """Star updates of an instance's hubs in turn; returns the largest change of a marginal.

    inf where some hub has no possible state. The arrays are taken out of their named tuples once, before the loops:
    inside them each access would cost as much as the arithmetic.
    """
    hub_order, hub_offset, hub_links = layout.hub_order, layout.hub_offset, layout.hub_links
    link_cluster, link_offset = layout.link_cluster, layout.link_offset
    cluster_link, cluster_links, cluster_rows = layout.cluster_link, layout.cluster_links, layout.cluster_rows
    cluster_table, table_offset = layout.cluster_table, layout.table_offset
    exp_entries, shift, narrow = tables.exp_entries, tables.shift, tables.narrow
    hub_scores = tables.hub_scores
    hub_number, cluster_number, table_number = numbers.hub, numbers.cluster, numbers.table
    begin, end = layout.instance_hubs[instance], layout.instance_hubs[instance + 1]
    change = 0.0
    for position in range(end - begin):
        hub = hub_order[end - 1 - position if backward else begin + position]
        start = hub_offset[hub]
        states = hub_offset[hub + 1] - start
        first, last = hub_links[hub], hub_links[hub + 1]
        divisor = hub_number[hub]
        for k in range(states):
            hub_log[start + k] = hub_scores[start + k]
        for link in range(first, last):
            message = (link - first) * states
            cluster = link_cluster[link]
            kappa = cluster_number[cluster]
            table = cluster_table[cluster]
            rows = cluster_rows[cluster]
            done = False
            if rows > 0 and narrow[table] and table_number[table] == kappa:
                ends = cluster_links[cluster]
                axis = 0 if cluster_link[ends] == link else 1
                entries = table_offset[table]
                columns = (table_offset[table + 1] - entries) // rows
                other = link_offset[cluster_link[ends + 1 - axis]]
                done = pair_message(
                    exp_entries, entries, shift[table], rows, columns, axis, multipliers, other, 1.0 / kappa,
                    small, product, incoming, message,
                )  # fmt: skip
            if not done:
                size = fill_scores(layout, tables, numbers, multipliers, cluster, link, scores)
                project_logsumexp(layout, link, scores, size, small, incoming, message)
            divisor += kappa
            for k in range(states):
                hub_log[start + k] += kappa * incoming[message + k]
        bottom = _normalise(hub_log, start, states, 1.0 / divisor, product)
        if math.isnan(bottom):
            return np.inf
        for link in range(first, last):
            message = (link - first) * states
            kappa = cluster_number[link_cluster[link]]
            offset = link_offset[link]
            if bottom == -np.inf:
                step = update_constrained(
                    multipliers, offset, hub_log, start, incoming, message, product, states, kappa, damping
                )
            else:
                step = _update_multipliers(
                    multipliers, offset, hub_log, start, incoming, message, product, states, kappa, damping
                )
            change = max(change, step)
    return change


@njit(cache=True, nogil=True, error_model="numpy")
def _normalise(log_beliefs: Floats, start: int, states: int, scale: float, beliefs: Floats) -> float:
    """Scale and normalise log beliefs in place, fill ``beliefs``; returns the smallest, NaN if all are -inf."""
    top, bottom = -np.inf, np.inf
    for k in range(states):
        score = log_beliefs[start + k] * scale
        log_beliefs[start + k] = score
        top = max(top, score)
        bottom = min(bottom, score)
    if top == -np.inf:
        return np.nan
    total = 0.0
    for k in range(states):
        beliefs[k] = exp(log_beliefs[start + k] - top)
        total += beliefs[k]
    normaliser = math.log(total)
    inverse = 1.0 / total
    for k in range(states):
        log_beliefs[start + k] = (log_beliefs[start + k] - top) - normaliser
        beliefs[k] *= inverse
    return bottom


@njit(cache=True, nogil=True, error_model="numpy")
def _update_multipliers(
    multipliers: Floats,
    offset: int,
    hub_log: Floats,
    start: int,
    incoming: Floats,
    message: int,
    belief: Floats,
    states: int,
    kappa: float,
    damping: float,
) -> float:
    """Multipliers of one link where every state is possible; returns the largest change of a marginal."""
    change, inverse = 0.0, 1.0 / kappa
    highest, level, top = -np.inf, 0.0, -1.0
    for k in range(states):
        old, new = multipliers[offset + k], kappa * (hub_log[start + k] - incoming[message + k])
        step = new - old
        change = max(change, belief[k] * min(1.0, abs(step) * inverse))
        highest = max(highest, step)
        if belief[k] > top:
            top, level = belief[k], step
        multipliers[offset + k] = new - damping * step if damping > 0.0 and step < np.inf else new
    return max(change, RISING) if (highest - level) * inverse > RISE else change


@njit(cache=True, nogil=True, error_model="numpy")
def update_constrained(
    multipliers: Floats,
    offset: int,
    hub_log: Floats,
    start: int,
    incoming: Floats,
    message: int,
    belief: Floats,
    states: int,
    kappa: float,
    damping: float,
) -> float:
    """The same where states may be impossible: 0 where the link's cluster already forbids a state."""
    change, inverse = 0.0, 1.0 / kappa
    highest, level, top = -np.inf, 0.0, -1.0
    for k in range(states):
        old, new = multipliers[offset + k], 0.0
        if incoming[message + k] != -np.inf:
            new = kappa * (hub_log[start + k] - incoming[message + k])
            if hub_log[start + k] != -np.inf:
                step = new - old
                change = max(change, belief[k] * min(1.0, abs(step) * inverse))
                highest = max(highest, step)
                if belief[k] > top:
                    top, level = belief[k], step
                if damping > 0.0 and old != -np.inf:
                    new -= damping * step
        multipliers[offset + k] = new
    return max(change, RISING) if (highest - level) * inverse > RISE else change


@njit(cache=True, nogil=True, error_model="numpy")
def evaluate_instances(
    layout: Layout,
    tables: Tables,
    numbers: Numbers,
    multipliers: Floats,
    beliefs: Beliefs,
    weights: Floats,
    shares: Floats,
    shared_counts: Floats,
    first: int,
    last: int,
    tolerance: float,
    max_sweeps: int,
    tree_sweeps: int,
    damping: float,
    consistent: bool,
) -> None:
    """Sweep the multipliers of instances ``first:last`` that are not done, then fill ``beliefs`` and counts.

    Sweeps alternate backward and forward over the hubs and stop when no marginal changes by more than ``tolerance``,
    after ``max_sweeps`` (0: evaluate at the multipliers given), or, on a tree, after ``tree_sweeps``. Without
    ``consistent`` the multipliers are fixed offsets of the clusters (``shares`` of the hubs' scores), and hubs stand
    for themselves. ``weights`` multiply the counts of an instance, not its value.
    """
    scores, small, product, slack, incoming = new_scratch(layout, first, last)
    for instance in range(first, last):
        if beliefs.done[instance]:
            continue
        limit = min(max_sweeps, tree_sweeps) if layout.instance_is_tree[instance] else max_sweeps
        sweeps = 0
        residual = np.inf if limit > 0 else 0.0
        while sweeps < limit and residual > tolerance and not (sweeps > 0 and beliefs.late[0]):
            residual = sweep_hubs(
                layout, tables, numbers, multipliers, beliefs.hub_log, instance, sweeps % 2 == 0, damping,
                scores, small, product, incoming,
            )  # fmt: skip
            sweeps += 1
        beliefs.sweeps[instance] = sweeps
        beliefs.residual[instance] = residual
        weight = weights[instance]
        clear_counts(layout, beliefs.counts, instance)
        value = 0.0
        for cluster in range(layout.instance_clusters[instance], layout.instance_clusters[instance + 1]):
            shared = layout.cluster_table[cluster] < layout.table_shared
            value += numbers.cluster[cluster] * evaluate_cluster(
                layout, tables, numbers, multipliers, beliefs, cluster, weight,
                shared_counts if shared else beliefs.counts, scores,
            )  # fmt: skip
        beliefs.value[instance] = value + evaluate_hubs(
            layout, tables, numbers, multipliers, beliefs, instance, weight, shares, consistent, sweeps > 0, slack
        )
