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
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from bactrian.kernels.arithmetic import FAST_MATH, exp, logsumexp
from bactrian.kernels.layout import Layout

Floats = NDArray[np.float64]

#: A product of a narrow table (range up to exp(300)) and a message is exact to rounding inside these bounds.
_SMALLEST, _LARGEST = 1e-200, 1e200
_WIDEST = 300.0


class Tables(NamedTuple):
    """Scores of an evaluation: tables and hubs in log space, and the tables' exponentials."""

    log_entries: Floats  #: (n_entries,) theta_a
    exp_entries: Floats  #: (n_entries,) exp(theta_a / kappa - shift)
    shift: Floats  #: (T,) largest theta_a / kappa
    narrow: NDArray[np.bool_]  #: (T,) exp_entries can be trusted
    hub_scores: Floats  #: (n_hub_states,) theta_v, the linearisation already subtracted


class Numbers(NamedTuple):
    """Counting numbers of the concave part."""

    cluster: Floats  #: (C,) kappa_a > 0
    hub: Floats  #: (H,) kappa_v
    table: Floats  #: (T,) the kappa with which a table's exponential was taken


class Beliefs(NamedTuple):
    """What an evaluation leaves behind."""

    hub_log: Floats  #: (n_hub_states,) log beliefs of hubs
    link_marginal: Floats  #: (n_link_states,) marginal of the link's cluster on its hub
    hub_count: Floats  #: (n_hub_states,) expected hub states, weighted by instance: the derivative of D by hub scores
    counts: Floats  #: (n_entries,) expected table entries of the unshared tables, weighted by instance
    value: Floats  #: (M,) D of an instance, without weights
    violation: Floats  #: (M,) largest disagreement between a link's marginal and its hub
    residual: Floats  #: (M,) largest change of a marginal in the last sweep
    sweeps: NDArray[np.int64]  #: (M,) sweeps made


@njit(cache=True, nogil=True, error_model="numpy")
def prepare_tables(layout: Layout, tables: Tables, numbers: Numbers, first: int, last: int) -> None:
    """Exponentials of tables ``first:last``, shifted so that the largest is 1."""
    for t in range(first, last):
        start, stop = layout.table_offset[t], layout.table_offset[t + 1]
        scale = 1.0 / numbers.table[t]
        top, bottom = -np.inf, np.inf
        for k in range(start, stop):
            score = tables.log_entries[k]
            top = max(top, score)
            if score != -np.inf:
                bottom = min(bottom, score)
        if top == -np.inf:
            top, bottom = 0.0, 0.0
        tables.shift[t] = top * scale
        tables.narrow[t] = (top - bottom) * scale < _WIDEST
        for k in range(start, stop):
            tables.exp_entries[k] = exp((tables.log_entries[k] - top) * scale)


@njit(cache=True, nogil=True, error_model="numpy")
def _is_fast(layout: Layout, tables: Tables, numbers: Numbers, cluster: int) -> bool:
    table = layout.cluster_table[cluster]
    return bool(
        layout.cluster_rows[cluster] > 0 and tables.narrow[table] and numbers.table[table] == numbers.cluster[cluster]
    )


@njit(cache=True, nogil=True, error_model="numpy")
def _exp_message(multipliers: Floats, start: int, size: int, scale: float, out: Floats) -> float:
    """exp(d * scale - top) into ``out``; returns top."""
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
def fill_scores(
    layout: Layout, tables: Tables, numbers: Numbers, multipliers: Floats, cluster: int, skipped: int, out: Floats
) -> int:
    """(theta + sum of multipliers but those of link ``skipped``) / kappa of a cluster; returns the table's size."""
    table = layout.cluster_table[cluster]
    start = layout.table_offset[table]
    size = layout.table_offset[table + 1] - start
    for k in range(size):
        out[k] = tables.log_entries[start + k]
    for position in range(layout.cluster_links[cluster], layout.cluster_links[cluster + 1]):
        link = layout.cluster_link[position]
        if link != skipped:
            projection = layout.link_projection[link]
            offset = layout.link_offset[link]
            for k in range(size):
                out[k] += multipliers[offset + layout.projection[projection + k]]
    scale = 1.0 / numbers.cluster[cluster]
    for k in range(size):
        out[k] *= scale
    return size


@njit(cache=True, nogil=True, error_model="numpy")
def _project_logsumexp(
    layout: Layout, link: int, scores: Floats, size: int, tops: Floats, out: Floats, start: int
) -> None:
    """Log-sum-exp of a cluster's scores onto the states of a link's hub."""
    states = layout.link_offset[link + 1] - layout.link_offset[link]
    projection = layout.link_projection[link]
    for k in range(states):
        tops[k] = -np.inf
        out[start + k] = 0.0
    for k in range(size):
        state = layout.projection[projection + k]
        tops[state] = max(tops[state], scores[k])
    for k in range(size):
        if scores[k] != -np.inf:
            state = layout.projection[projection + k]
            out[start + state] += exp(scores[k] - tops[state])
    for k in range(states):
        out[start + k] = tops[k] + math.log(out[start + k]) if tops[k] != -np.inf else -np.inf


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
    cluster = layout.link_cluster[link]
    if _is_fast(layout, tables, numbers, cluster):
        table = layout.cluster_table[cluster]
        entries = layout.table_offset[table]
        rows = layout.cluster_rows[cluster]
        columns = (layout.table_offset[table + 1] - entries) // rows
        first = layout.cluster_link[layout.cluster_links[cluster]]
        axis = 0 if link == first else 1
        other = layout.cluster_link[layout.cluster_links[cluster] + 1 - axis]
        scale = 1.0 / numbers.cluster[cluster]
        top = _exp_message(multipliers, layout.link_offset[other], rows if axis == 1 else columns, scale, small)
        _pair_product(tables.exp_entries, entries, rows, columns, axis, small, product)
        states = columns if axis == 1 else rows
        safe = True
        for k in range(states):
            safe = safe and product[k] > _SMALLEST and product[k] < _LARGEST
        if safe:
            shift = top + tables.shift[table]
            for k in range(states):
                out[start + k] = math.log(product[k]) + shift
            return
    size = fill_scores(layout, tables, numbers, multipliers, cluster, link, scores)
    _project_logsumexp(layout, link, scores, size, small, out, start)


@njit(cache=True, nogil=True, error_model="numpy")
def _update_hub(
    layout: Layout,
    tables: Tables,
    numbers: Numbers,
    multipliers: Floats,
    hub_log: Floats,
    hub: int,
    damping: float,
    scores: Floats,
    small: Floats,
    product: Floats,
    incoming: Floats,
) -> float:
    """Star update of one hub; returns the largest change of a marginal around it."""
    start = layout.hub_offset[hub]
    states = layout.hub_offset[hub + 1] - start
    first, last = layout.hub_links[hub], layout.hub_links[hub + 1]
    divisor = numbers.hub[hub]
    for k in range(states):
        hub_log[start + k] = tables.hub_scores[start + k]
    for link in range(first, last):
        message = (link - first) * states
        incoming_message(layout, tables, numbers, multipliers, link, scores, small, product, incoming, message)
        kappa = numbers.cluster[layout.link_cluster[link]]
        divisor += kappa
        for k in range(states):
            hub_log[start + k] += kappa * incoming[message + k]
    for k in range(states):
        hub_log[start + k] /= divisor
    normaliser = logsumexp(hub_log, start, start + states)
    if normaliser == -np.inf:
        return np.inf
    for k in range(states):
        hub_log[start + k] -= normaliser
        product[k] = exp(hub_log[start + k])
    change = 0.0
    for link in range(first, last):
        message = (link - first) * states
        kappa = numbers.cluster[layout.link_cluster[link]]
        offset = layout.link_offset[link]
        for k in range(states):
            old = multipliers[offset + k]
            new = 0.0
            if incoming[message + k] != -np.inf:
                new = kappa * (hub_log[start + k] - incoming[message + k])
                if hub_log[start + k] != -np.inf:
                    step = (old - new) / kappa
                    if abs(step) < 1.0:
                        change = max(change, product[k] * abs(step))
                    else:
                        change = max(change, min(1.0, abs(product[k] * exp(step) - product[k])))
                    new += damping * (old - new) if damping > 0.0 and old != -np.inf else 0.0
            multipliers[offset + k] = new
    return change


@njit(cache=True, nogil=True, error_model="numpy")
def _scratch(layout: Layout, first: int, last: int) -> tuple[Floats, Floats, Floats, Floats, Floats]:
    """Work space for instances ``first:last``."""
    table, states, star = 1, 1, 1
    for cluster in range(layout.instance_clusters[first], layout.instance_clusters[last]):
        t = layout.cluster_table[cluster]
        table = max(table, layout.table_offset[t + 1] - layout.table_offset[t])
    for hub in range(layout.instance_hubs[first], layout.instance_hubs[last]):
        size = layout.hub_offset[hub + 1] - layout.hub_offset[hub]
        states = max(states, size)
        star = max(star, size * (layout.hub_links[hub + 1] - layout.hub_links[hub]))
    return np.empty(table), np.empty(states), np.empty(states), np.empty(states), np.empty(star)


@njit(cache=True, nogil=True, error_model="numpy")
def _evaluate_hubs(
    layout: Layout,
    tables: Tables,
    numbers: Numbers,
    multipliers: Floats,
    beliefs: Beliefs,
    instance: int,
    weight: float,
    shares: Floats,
    consistent: bool,
    swept: bool,
    slack: Floats,
) -> float:
    """Beliefs of an instance's hubs from the multipliers, and their part of D; needs the links' marginals.

    A hub with kappa = 0 has no belief of its own: after a sweep it keeps that of its star update, else it takes the
    marginal of its first link.
    """
    value = 0.0
    violation = 0.0
    for hub in range(layout.instance_hubs[instance], layout.instance_hubs[instance + 1]):
        start = layout.hub_offset[hub]
        states = layout.hub_offset[hub + 1] - start
        first, last = layout.hub_links[hub], layout.hub_links[hub + 1]
        kappa = numbers.hub[hub]
        for k in range(states):
            slack[k] = tables.hub_scores[start + k]
        if consistent:
            for link in range(first, last):
                offset = layout.link_offset[link]
                for k in range(states):
                    if multipliers[offset + k] != -np.inf:
                        slack[k] -= multipliers[offset + k]
                    if beliefs.link_marginal[offset + k] == 0.0:
                        slack[k] = -np.inf
        if kappa != 0.0:
            for k in range(states):
                beliefs.hub_log[start + k] = slack[k] / kappa if slack[k] != -np.inf else -np.inf
            normaliser = logsumexp(beliefs.hub_log, start, start + states)
            value += kappa * normaliser
            for k in range(states):
                beliefs.hub_log[start + k] -= normaliser
        elif first < last:
            offset = layout.link_offset[first]
            for k in range(states):
                marginal = beliefs.link_marginal[offset + k]
                if consistent and marginal > 0.0 and slack[k] != -np.inf:
                    value += marginal * slack[k]
                if not swept:
                    beliefs.hub_log[start + k] = math.log(max(marginal, 1e-300))
        for k in range(states):
            slack[k] = exp(beliefs.hub_log[start + k])
            beliefs.hub_count[start + k] = weight * slack[k] if kappa != 0.0 else 0.0
        for link in range(first, last):
            offset = layout.link_offset[link]
            share = shares[link]
            if consistent:
                share = 1.0 if kappa == 0.0 and link == first else 0.0
            for k in range(states):
                marginal = beliefs.link_marginal[offset + k]
                violation = max(violation, abs(marginal - slack[k]))
                beliefs.hub_count[start + k] += weight * share * marginal
    beliefs.violation[instance] = violation
    return value


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST_MATH)
def _evaluate_pair(
    layout: Layout,
    tables: Tables,
    numbers: Numbers,
    multipliers: Floats,
    beliefs: Beliefs,
    cluster: int,
    weight: float,
    counts: Floats,
    rows_message: Floats,
    columns_message: Floats,
) -> float:
    """log Z of a pair in linear space, its marginals and counts; NaN where the range demands log space."""
    table = layout.cluster_table[cluster]
    entries = layout.table_offset[table]
    rows = layout.cluster_rows[cluster]
    columns = (layout.table_offset[table + 1] - entries) // rows
    scale = 1.0 / numbers.cluster[cluster]
    row_link = layout.cluster_link[layout.cluster_links[cluster]]
    column_link = layout.cluster_link[layout.cluster_links[cluster] + 1]
    row_offset, column_offset = layout.link_offset[row_link], layout.link_offset[column_link]
    top = _exp_message(multipliers, row_offset, rows, scale, rows_message)
    top += _exp_message(multipliers, column_offset, columns, scale, columns_message)
    total = 0.0
    for a in range(rows):
        part = 0.0
        row = entries + a * columns
        for b in range(columns):
            part += tables.exp_entries[row + b] * columns_message[b]
        part *= rows_message[a]
        beliefs.link_marginal[row_offset + a] = part
        total += part
    if not (_SMALLEST < total < _LARGEST):
        return np.nan
    inverse = 1.0 / total
    for a in range(rows):
        beliefs.link_marginal[row_offset + a] *= inverse
        rows_message[a] *= inverse
    for b in range(columns):
        beliefs.link_marginal[column_offset + b] = 0.0
    for a in range(rows):
        row = entries + a * columns
        for b in range(columns):
            belief = tables.exp_entries[row + b] * rows_message[a] * columns_message[b]
            beliefs.link_marginal[column_offset + b] += belief
            counts[row + b] += weight * belief
    return math.log(total) + top + tables.shift[table]


@njit(cache=True, nogil=True, error_model="numpy")
def _evaluate_cluster(
    layout: Layout,
    tables: Tables,
    numbers: Numbers,
    multipliers: Floats,
    beliefs: Beliefs,
    cluster: int,
    weight: float,
    counts: Floats,
    scores: Floats,
) -> float:
    """log Z of any cluster in log space, with its links' marginals and counts."""
    size = fill_scores(layout, tables, numbers, multipliers, cluster, -1, scores)
    normaliser = logsumexp(scores, 0, size)
    for position in range(layout.cluster_links[cluster], layout.cluster_links[cluster + 1]):
        link = layout.cluster_link[position]
        for k in range(layout.link_offset[link], layout.link_offset[link + 1]):
            beliefs.link_marginal[k] = 0.0
    if normaliser == -np.inf:
        return normaliser
    for k in range(size):
        scores[k] = exp(scores[k] - normaliser)
    for position in range(layout.cluster_links[cluster], layout.cluster_links[cluster + 1]):
        link = layout.cluster_link[position]
        projection = layout.link_projection[link]
        offset = layout.link_offset[link]
        for k in range(size):
            beliefs.link_marginal[offset + layout.projection[projection + k]] += scores[k]
    start = layout.table_offset[layout.cluster_table[cluster]]
    for k in range(size):
        counts[start + k] += weight * scores[k]
    return normaliser


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
    """Sweep the multipliers of instances ``first:last``, then fill ``beliefs`` and the counts of shared tables.

    Sweeps alternate backward and forward over the hubs and stop when no marginal changes by more than ``tolerance``,
    after ``max_sweeps`` (0: evaluate at the multipliers given), or, on a tree, after ``tree_sweeps``. Without
    ``consistent`` the multipliers are fixed offsets of the clusters (``shares`` of the hubs' scores), and hubs stand
    for themselves. ``weights`` multiply the counts of an instance, not its value.
    """
    scores, small, product, slack, incoming = _scratch(layout, first, last)
    shared = layout.table_shared
    for instance in range(first, last):
        hubs = layout.instance_hubs[instance], layout.instance_hubs[instance + 1]
        limit = min(max_sweeps, tree_sweeps) if layout.instance_is_tree[instance] else max_sweeps
        sweeps = 0
        residual = np.inf if max_sweeps > 0 else 0.0
        while sweeps < limit and residual > tolerance:
            residual = 0.0
            for step in range(hubs[1] - hubs[0]):
                hub = layout.hub_order[hubs[1] - 1 - step if sweeps % 2 == 0 else hubs[0] + step]
                change = _update_hub(
                    layout, tables, numbers, multipliers, beliefs.hub_log, hub, damping,
                    scores, small, product, incoming,
                )  # fmt: skip
                residual = max(residual, change)
            sweeps += 1
        beliefs.sweeps[instance] = sweeps
        beliefs.residual[instance] = residual
        value = 0.0
        weight = weights[instance]
        for t in range(layout.instance_tables[instance], layout.instance_tables[instance + 1]):
            for k in range(layout.table_offset[t], layout.table_offset[t + 1]):
                beliefs.counts[k] = 0.0
        for cluster in range(layout.instance_clusters[instance], layout.instance_clusters[instance + 1]):
            counts = shared_counts if layout.cluster_table[cluster] < shared else beliefs.counts
            normaliser = np.nan
            if _is_fast(layout, tables, numbers, cluster):
                normaliser = _evaluate_pair(
                    layout, tables, numbers, multipliers, beliefs, cluster, weight, counts, small, product
                )
            if math.isnan(normaliser):
                normaliser = _evaluate_cluster(
                    layout, tables, numbers, multipliers, beliefs, cluster, weight, counts, scores
                )
            value += numbers.cluster[cluster] * normaliser
        value += _evaluate_hubs(
            layout, tables, numbers, multipliers, beliefs, instance, weight, shares, consistent, sweeps > 0, slack
        )
        beliefs.value[instance] = value
