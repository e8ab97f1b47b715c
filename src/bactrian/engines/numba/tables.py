"""Tables of scores and beliefs, and clusters of any shape in log space."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bactrian.arrays import Bools, Floats, Ints
from bactrian.compiling import kernel, njit, record
from bactrian.engines.numba.arithmetic import NO_LINK, START, WIDEST, exp, normalise_logs
from bactrian.engines.numba.layout import Layout

#: What stands for a belief that underflows, for 0 means that a state is forbidden.
ALMOST_NOTHING = 1e-300


class Tables(NamedTuple):
    """Scores of an evaluation: tables and hubs in log space, and the tables' exponentials."""

    log_entries: Floats  #: (n_entries,) theta_a
    exp_entries: (
        Floats  #: (n_entries,) exp(theta_a / kappa - shift), and perhaps the same of (K, K) tables turned round
    )
    shift: Floats  #: (T,) largest theta_a / kappa
    narrow: Bools  #: (T,) exp_entries can be trusted
    hub_scores: Floats  #: (n_hub_states,) theta_v, the linearisation already subtracted
    constrained: Bools  #: (1,) some score is -inf


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
    disagreement: Floats  #: (n_link_states,) weighted E[h]: the link's marginal less its hub's, the derivative by d
    counts: Floats  #: (n_entries,) expected table entries of the unshared tables, weighted by instance
    value: Floats  #: (M,) D of an instance, without weights
    violation: Floats  #: (M,) largest disagreement between a link's marginal and its hub
    residual: Floats  #: (M,) largest change of a marginal in the last sweep
    sweeps: Ints  #: (M,) sweeps made
    done: Bools  #: (M,) the fast path for pairs did the work of this pass
    late: Bools  #: (1,) time is up: no more sweeps, but one


class Plan(NamedTuple):
    """What linear space needs of links and hubs."""

    link_start: Ints  #: (L,) first entry of the table of a link's cluster
    link_leads: Bools  #: (L,) a forward sweep comes to its hub before that of the other end of its pair
    hub_multiplies: Bools  #: (H,) few links, of clusters with number 1: b is a product of messages
    origin: Ints  #: (M,) hub with which an instance's messages begin in memory: its first, unless it is a piece
    alike: Bools  #: (M,) pairs take no part of hubs' scores and have shared tables: those of a table are all alike


class Passing(NamedTuple):
    """What message passing reads and writes: the arrays of a data set, or of a part of one."""

    layout: Layout
    plan: Plan
    tables: Tables
    numbers: Numbers
    multipliers: Floats  #: (n_link_states,) d
    beliefs: Beliefs
    weights: Floats  #: (M,) that multiply the counts of an instance, not its value
    shares: Floats  #: (L,) part of its hub's scores that a link's cluster takes where clusters need not agree


HeldLayout, HeldPlan, HeldTables = record(Layout), record(Plan), record(Tables)
HeldNumbers, HeldBeliefs, HeldPassing = record(Numbers), record(Beliefs), record(Passing)


@kernel()
def hold(part: Passing) -> Passing:
    """The same as a record of records, which is what kernels take."""
    return HeldPassing(
        HeldLayout(*part.layout),
        HeldPlan(*part.plan),
        HeldTables(*part.tables),
        HeldNumbers(*part.numbers),
        part.multipliers,
        HeldBeliefs(*part.beliefs),
        part.weights,
        part.shares,
    )


class Limits(NamedTuple):
    """How far to sweep."""

    tolerance: float = 0.0  #: no marginal changes by more
    max_sweeps: int = 0  #: 0 evaluates at the multipliers given
    tree_sweeps: int = 1 << 30  #: on trees, where two sweeps of belief propagation are exact
    damping: float = 0.0  #: part of the old multipliers that stays
    marginals: bool = False  #: whether those of links are wanted where there are sweeps
    consistent: bool = True  #: whether clusters must agree; otherwise multipliers are fixed offsets of theirs
    logs: bool = True  #: whether trees leave log beliefs and multipliers behind, which their evaluation does not need
    halvings: int = 0  #: see :func:`halvings_of`


def halvings_of(damping: float) -> int:
    """n for the damping 1 - 2^-n, which linear space can do; -1 for others."""
    n = round(-math.log2(1.0 - damping))
    return n if damping == 1.0 - 0.5**n else -1


@njit()
def turned(exponentials: Floats, entries: Floats) -> int:
    """How much further tables are with rows and columns exchanged; 0 where there are none."""
    return entries.size if exponentials.size > entries.size else 0


@kernel()
def prepare_tables(offset: Ints, tables: Tables, numbers: Floats, first: int, last: int) -> None:
    """Exponentials of tables ``first:last``, shifted so that the largest is 1."""
    entries, exponentials = tables.log_entries, tables.exp_entries
    turn = turned(exponentials, entries)
    for t in range(first, last):
        start, stop = offset[t], offset[t + 1]
        scale = 1.0 / numbers[t]
        top, bottom = -np.inf, np.inf
        for k in range(start, stop):
            score = entries[k]
            top = max(top, score)
            if score != -np.inf:
                bottom = min(bottom, score)
        if top == -np.inf:
            top, bottom = 0.0, 0.0
        tables.shift[t] = top * scale
        tables.narrow[t] = (top - bottom) * scale < WIDEST
        for k in range(start, stop):
            exponentials[k] = exp((entries[k] - top) * scale)
        if turn > 0:
            size = int(math.sqrt(stop - start))
            for a in range(size):
                for b in range(size):
                    exponentials[turn + start + b * size + a] = exponentials[start + a * size + b]


@njit(forceinline=True)
def fill_sums(
    table_offset: Ints, cluster_table: Ints, cluster_links: Ints, cluster_link: Ints, link_projection: Ints,
    link_offset: Ints, projection: NDArray[np.int32], entries: Floats, multipliers: Floats, cluster: int,
    skipped: int, out: Floats,
) -> int:  # fmt: skip
    """theta plus the multipliers of all links but ``skipped`` of a cluster; returns the table's size."""
    table = cluster_table[cluster]
    start = table_offset[table]
    size = table_offset[table + 1] - start
    for k in range(size):
        out[k] = entries[start + k]
    for position in range(cluster_links[cluster], cluster_links[cluster + 1]):
        link = cluster_link[position]
        if link != skipped:
            states, offset = link_projection[link], link_offset[link]
            for k in range(size):
                out[k] += multipliers[offset + projection[states + k]]
    return size


@njit()
def fill_scores(layout: Layout, entries: Floats, multipliers: Floats, cluster: int, skipped: int, out: Floats) -> int:
    """:func:`fill_sums` of a layout."""
    return fill_sums(
        layout.table_offset, layout.cluster_table, layout.cluster_links, layout.cluster_link, layout.link_projection,
        layout.link_offset, layout.projection, entries, multipliers, cluster, skipped, out,
    )  # fmt: skip


@njit(forceinline=True)
def project_logsumexp(
    hub_state: NDArray[np.int32], states: int, n: int, scores: Floats, size: int, tops: Floats, out: Floats, start: int
) -> None:
    """Log-sum-exp of a cluster's scores onto the ``n`` states of a hub, ``hub_state[states:]``, into out[start:]."""
    for k in range(n):
        tops[k] = -np.inf
        out[start + k] = 0.0
    for k in range(size):
        state = hub_state[states + k]
        tops[state] = max(tops[state], scores[k])
    for k in range(size):
        if scores[k] != -np.inf:
            state = hub_state[states + k]
            out[start + state] += exp(scores[k] - tops[state])
    for k in range(n):
        out[start + k] = tops[k] + math.log(out[start + k]) if tops[k] != -np.inf else -np.inf


@njit()
def evaluate_clusters(part: Passing, shared_counts: Floats, instance: int, scores: Floats) -> float:
    """The part of D of an instance's clusters in log space, with their links' marginals and counts.

    A marginal of 0 is a forbidden state.
    """
    layout, marginal, own_counts = part.layout, part.beliefs.link_marginal, part.beliefs.counts
    table_offset, cluster_table, link_offset = layout.table_offset, layout.cluster_table, layout.link_offset
    cluster_links, cluster_link = layout.cluster_links, layout.cluster_link
    link_projection, projection, n_shared = layout.link_projection, layout.projection, layout.table_shared
    entries, multipliers, cluster_number = part.tables.log_entries, part.multipliers, part.numbers.cluster
    weight, value = part.weights[instance], 0.0
    for cluster in range(layout.instance_clusters[instance], layout.instance_clusters[instance + 1]):
        size = fill_sums(
            table_offset, cluster_table, cluster_links, cluster_link, link_projection, link_offset, projection,
            entries, multipliers, cluster, NO_LINK, scores,
        )  # fmt: skip
        kappa = cluster_number[cluster]
        for k in range(size):
            scores[k] /= kappa
        normaliser = normalise_logs(scores, START, size)
        value += kappa * normaliser
        possible = normaliser != -np.inf
        for k in range(size):
            scores[k] = max(exp(scores[k]), ALMOST_NOTHING) if possible and scores[k] != -np.inf else 0.0
        for position in range(cluster_links[cluster], cluster_links[cluster + 1]):
            link = cluster_link[position]
            states, offset = link_projection[link], link_offset[link]
            for k in range(offset, link_offset[link + 1]):
                marginal[k] = 0.0
            for k in range(size):
                marginal[offset + projection[states + k]] += scores[k]
        table = cluster_table[cluster]
        start = table_offset[table]
        if table < n_shared:
            for k in range(size):
                shared_counts[start + k] += weight * scores[k]
        else:
            for k in range(size):
                own_counts[start + k] = weight * scores[k]
    return value


@njit()
def evaluate_hubs(part: Passing, instance: int, consistent: bool, swept: bool, slack: Floats) -> float:
    """Beliefs of an instance's hubs from the multipliers, and their part of D; needs the links' marginals.

    A hub with kappa = 0 has no belief of its own: after a sweep it keeps that of its star update, else it takes the
    marginal of its first link.
    """
    layout, tables, beliefs, weight = part.layout, part.tables, part.beliefs, part.weights[instance]
    hub_offset, hub_links, link_offset = layout.hub_offset, layout.hub_links, layout.link_offset
    link_marginal, hub_log, hub_count = beliefs.link_marginal, beliefs.hub_log, beliefs.hub_count
    hub_scores, hub_number, disagreement = tables.hub_scores, part.numbers.hub, beliefs.disagreement
    multipliers, constrained = part.multipliers, tables.constrained[0]
    value = 0.0
    violation = 0.0
    for hub in range(layout.instance_hubs[instance], layout.instance_hubs[instance + 1]):
        start = hub_offset[hub]
        states = hub_offset[hub + 1] - start
        first, last = hub_links[hub], hub_links[hub + 1]
        kappa = hub_number[hub]
        for k in range(states):
            slack[k] = hub_scores[start + k]
        if consistent:
            for link in range(first, last):
                offset = link_offset[link]
                for k in range(states):
                    if multipliers[offset + k] != -np.inf:
                        slack[k] -= multipliers[offset + k]
                    if constrained and link_marginal[offset + k] == 0.0:
                        slack[k] = -np.inf
        if kappa != 0.0:
            for k in range(states):
                hub_log[start + k] = slack[k] / kappa if slack[k] != -np.inf else -np.inf
            value += kappa * normalise_logs(hub_log, start, start + states)
        elif first < last:
            offset = link_offset[first]
            for k in range(states):
                marginal = link_marginal[offset + k]
                if consistent and marginal > 0.0 and slack[k] != -np.inf:
                    value += marginal * slack[k]
                if not swept:
                    hub_log[start + k] = math.log(max(marginal, ALMOST_NOTHING))
        for k in range(states):
            slack[k] = exp(hub_log[start + k])
            hub_count[start + k] = weight * slack[k] if kappa != 0.0 else 0.0
        for link in range(first, last):
            offset = link_offset[link]
            share = part.shares[link]
            if consistent:
                share = 1.0 if kappa == 0.0 and link == first else 0.0
            for k in range(states):
                marginal = link_marginal[offset + k]
                violation = max(violation, abs(marginal - slack[k]))
                hub_count[start + k] += weight * share * marginal
                reference = slack[k] if kappa != 0.0 else link_marginal[link_offset[first] + k]
                disagreement[offset + k] = weight * (marginal - reference)
    beliefs.violation[instance] = violation
    return value


def summarise(weights: Floats, beliefs: Beliefs) -> tuple[float, float, float, float]:
    """Weighted sum of the instances' values, their sweeps, and the largest violation and residual, NaN if any is."""
    with np.errstate(invalid="ignore"):
        value = float((weights * beliefs.value).sum())
    violation, residual = float(beliefs.violation.max(initial=0.0)), float(beliefs.residual.max(initial=0.0))
    return value, float(beliefs.sweeps.sum()), violation, residual


class Scratch(NamedTuple):
    """Work space for the instances of a block."""

    scores: Floats  #: a table
    small: Floats  #: a hub's states, as are the next two
    product: Floats
    belief: Floats
    star: Floats  #: all messages around a hub


HeldScratch = record(Scratch)


@njit()
def largest_sizes(layout: Layout, first: int, last: int) -> tuple[int, int, int]:
    """Entries of the largest table, states of the largest hub, and all states around a hub, in ``first:last``."""
    table_offset, cluster_table = layout.table_offset, layout.cluster_table
    hub_offset, hub_links = layout.hub_offset, layout.hub_links
    table, states, star = 1, 1, 1
    for cluster in range(layout.instance_clusters[first], layout.instance_clusters[last]):
        t = cluster_table[cluster]
        table = max(table, table_offset[t + 1] - table_offset[t])
    for hub in range(layout.instance_hubs[first], layout.instance_hubs[last]):
        size = hub_offset[hub + 1] - hub_offset[hub]
        states = max(states, size)
        star = max(star, size * (hub_links[hub + 1] - hub_links[hub]))
    return table, states, star


@njit()
def new_scratch(layout: Layout, first: int, last: int) -> Scratch:
    """Space for any of the instances ``first:last``."""
    table, states, star = largest_sizes(layout, first, last)
    return HeldScratch(np.empty(table), np.empty(states), np.empty(states), np.empty(states), np.empty(star))
