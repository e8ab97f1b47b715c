"""Decoding: of graphs with loops by max-product and by a dual bound, of forests exactly, best labels of chains.

*Loops.* Max-product, and a dual bound by sequential reweighted messages, work on hubs that are variables
(:mod:`bactrian.inference.factors`), keep one multiplier per link state, and round to assignments by
:func:`.assignments.assign_greedily` and :func:`.assignments.climb`.

*Forests.* Max-product towards the roots leaves at each hub the best score of what hangs below it, for each of its
states. From the roots down every hub and cluster then takes its first best state given the one above; scores that
differ by no more than a tolerance are ties.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bactrian.arrays import Bools, Floats, Ints
from bactrian.compiling import kernel, njit
from bactrian.engines.numba.assignments import (
    Climber,
    ScoreArrays,
    Workspace,
    assign_greedily,
    climb,
    climb_blocks,
    joint_score,
    max_message,
    scratch,
    update_star,
)
from bactrian.engines.numba.layout import Layout
from bactrian.engines.numba.orders import Blocks
from bactrian.engines.numba.tables import Limits, fill_scores

_CLIMBS = 20
_ROUNDING = 1e-9


class Assignments(NamedTuple):
    """The best assignments found of all instances."""

    states: Ints  #: (H,) state of each variable
    score: Floats  #: (M,) joint log score; -inf where the assignment is forbidden
    bound: Floats  #: (M,) no assignment scores more; +inf where the method has no bound, -inf where none is allowed
    converged: Bools  #: (M,)
    iterations: Ints  #: (M,)


class Search(NamedTuple):
    """What a method works on, and where it got to."""

    layout: Layout
    scores: ScoreArrays
    blocks: Blocks  #: to climb by
    multipliers: Floats  #: (n_link_states,)
    found: Assignments
    active: Bools  #: (M,) instances to work on
    late: Bools  #: (1,) time is up


@kernel()
def search_instances(search: Search, limits: Limits, dual: bool, first: int, last: int) -> None:
    """Sweeps of max-product, or forward and backward ones that lower a dual bound, on active ones of ``first:last``.

    Those of max-product alternate in direction. The bound of multipliers d is B(d) = sum_v max (theta_v - sum_l d_l) +
    sum_a max (theta_a + sum_l d_l), no less than the score of any assignment. A search ends when B meets the best
    assignment found (a certificate), when a sweep lowers it by less than the tolerance of its size (for max-product,
    when no message changes by more than the tolerance), or after ``max_sweeps`` sweeps. The first ten, then every fifth
    (tenth) and the last are rounded, and what beats ``found`` is kept.
    """
    layout, scores, _, multipliers, found, active, late = search
    work = scratch(layout, first, last)
    trial = found.states.copy()
    climber = np.empty(scores.hubs.size), np.empty(scores.hubs.size), np.empty(layout.link_offset[-1], np.int64)
    for m in range(first, last):
        if not active[m]:
            continue
        begin, n = layout.instance_hubs[m], layout.instance_hubs[m + 1] - layout.instance_hubs[m]
        if dual:
            found.bound[m] = _bound(layout, scores, multipliers, m, work)
        for sweep in range(1, limits.max_sweeps + 1):
            residual, possible = 0.0, found.bound[m] != -np.inf
            for step in range(2 * n if dual else n):
                forward = step < n if dual else sweep % 2 == 0
                hub = begin + step % n if forward else begin + n - 1 - step % n
                if not possible:
                    break
                if dual:
                    possible = _reweight(layout, scores, multipliers, hub, forward, sweep == 1, work)
                else:
                    change = update_star(layout, scores.entries, scores.hubs, multipliers, hub, limits.damping, work)
                    possible, residual = change >= 0.0, max(residual, change)
            found.iterations[m], before = sweep, found.bound[m]
            if not possible:
                found.bound[m] = -np.inf
            elif dual:  # rounding may raise B a little; the least value met is a bound all the same
                found.bound[m] = min(before, _bound(layout, scores, multipliers, m, work))
                residual = (before - found.bound[m]) / max(1.0, abs(found.bound[m]))
            if found.bound[m] == -np.inf:
                found.converged[m] = True
                break
            settled = residual <= limits.tolerance
            if settled or late[0] or sweep <= 10 or sweep % (5 if dual else 10) == 0 or sweep == limits.max_sweeps:
                _round(search, trial, m, work, climber)
            gap = found.bound[m] - found.score[m]
            found.converged[m] = settled or (dual and gap <= _ROUNDING * max(1.0, abs(found.bound[m])))
            if found.converged[m] or late[0]:
                break


@njit()
def _round(search: Search, trial: Ints, m: int, work: Workspace, climber: Climber) -> None:
    """Round the multipliers to an assignment and keep it if it is the best so far."""
    layout, scores, blocks, multipliers, found, _, _ = search
    assign_greedily(layout, scores.entries, scores.hubs, multipliers, trial, m, work)
    climb(layout, scores, trial, m, _CLIMBS, climber)
    score = joint_score(layout, scores, trial, m)
    if score > -np.inf:
        climb_blocks(layout, scores, blocks, trial, m, _CLIMBS, climber)
    score = joint_score(layout, scores, trial, m)
    if score > found.score[m] or found.score[m] == -np.inf:
        found.score[m] = score
        for hub in range(layout.instance_hubs[m], layout.instance_hubs[m + 1]):
            found.states[hub] = trial[hub]


@njit()
def _reweight(
    layout: Layout, scores: ScoreArrays, multipliers: Floats, hub: int, forward: bool, collect: bool, work: Workspace
) -> bool:
    """Collect the max-marginals of a variable's clusters and share them out again; False where all is forbidden.

    With m_l the max-marginal of a cluster without the link's own multiplier, b = theta_v + sum_l m_l, the clusters
    whose last variable (first, going backward) is not v receive d_l = s b - m_l and the others d_l = -m_l, where 1/s
    is the larger of the numbers of clusters in which v is not the last and not the first (Kolmogorov 2006 for pairs,
    2015 for larger clusters). As s times the receivers is at most 1 the bound cannot rise. Clusters in which v is the
    first variable, going forward, have not changed since they were last collected, unless ``collect``.
    """
    sums, total, incoming, _ = work
    start = layout.hub_offset[hub]
    states = layout.hub_offset[hub + 1] - start
    first, last = layout.hub_links[hub], layout.hub_links[hub + 1]
    for k in range(states):
        total[k] = scores.hubs[start + k]
    n_later, n_earlier = 0, 0
    for link in range(first, last):
        message = (link - first) * states
        offset = layout.link_offset[link]
        earlier, later = _others(layout, link, hub)
        n_earlier += earlier
        n_later += later
        if collect or (earlier if forward else later):
            max_message(layout, scores.entries, multipliers, link, sums, incoming, message)
        else:
            for k in range(states):
                incoming[message + k] = -multipliers[offset + k] if multipliers[offset + k] != -np.inf else -np.inf
        top = -np.inf
        for k in range(states):
            if multipliers[offset + k] == -np.inf:
                incoming[message + k] = -np.inf
            top = max(top, incoming[message + k])
        if top == -np.inf:
            return False
        for k in range(states):
            incoming[message + k] -= top
            total[k] += incoming[message + k]
    top = -np.inf
    for k in range(states):
        top = max(top, total[k])
    if top == -np.inf:
        return False
    share = 1.0 / max(n_later, n_earlier, 1)
    for link in range(first, last):
        message = (link - first) * states
        offset = layout.link_offset[link]
        earlier, later = _others(layout, link, hub)
        part = share if (later if forward else earlier) else 0.0
        for k in range(states):
            if total[k] == -np.inf:
                multipliers[offset + k] = -np.inf
            else:
                multipliers[offset + k] = part * (total[k] - top) - incoming[message + k]
    return True


@njit()
def _others(layout: Layout, link: int, hub: int) -> tuple[bool, bool]:
    """Whether the link's cluster has variables before ``hub``, and after it."""
    cluster = layout.link_cluster[link]
    earlier, later = False, False
    for position in range(layout.cluster_links[cluster], layout.cluster_links[cluster + 1]):
        other = layout.link_hub[layout.cluster_link[position]]
        earlier = earlier or other < hub
        later = later or other > hub
    return earlier, later


@njit()
def _bound(layout: Layout, scores: ScoreArrays, multipliers: Floats, m: int, work: Workspace) -> float:
    """B at the multipliers, in which -inf forbids a state of its variable."""
    sums = work[0]
    value = 0.0
    for hub in range(layout.instance_hubs[m], layout.instance_hubs[m + 1]):
        start = layout.hub_offset[hub]
        top = -np.inf
        for k in range(layout.hub_offset[hub + 1] - start):
            left = scores.hubs[start + k]
            for link in range(layout.hub_links[hub], layout.hub_links[hub + 1]):
                given = multipliers[layout.link_offset[link] + k]
                left = left - given if given != -np.inf else -np.inf
            top = max(top, left)
        value += top
    for cluster in range(layout.instance_clusters[m], layout.instance_clusters[m + 1]):
        size = fill_scores(layout, scores.entries, multipliers, cluster, -1, sums)
        top = -np.inf
        for k in range(size):
            top = max(top, sums[k])
        value += top
    return value


# --- forests and chains ---


class Forest(NamedTuple):
    """Forests of hubs and clusters, and their variables.

    Variable v is read off state k of its ``cluster`` as ``k // stride % size``, or off hub h where that is ``-1 - h``.
    """

    layout: Layout
    entries: Floats  #: (n_entries,) tables
    hub_scores: Floats  #: (n_hub_states,)
    multipliers: Floats  #: (n_link_states,) 0 at the start
    tolerance: Floats  #: (M,) scores this close to the maximum count as ties
    variables: Ints  #: (M + 1,) variables of instance m; the next three are over variables
    cluster: Ints
    stride: Ints
    size: Ints


@kernel()
def decode_trees(forest: Forest, states: Ints, feasible: Bools, active: Bools, first: int, last: int) -> None:
    """Best assignments of the active instances among ``first:last``, which are forests.

    ``feasible[m]`` is False where every joint state is forbidden.
    """
    layout, work = forest.layout, scratch(forest.layout, first, last)
    base, hub_base = layout.instance_clusters[first], layout.instance_hubs[first]
    top = np.full(layout.instance_clusters[last] - base, -1)  # link to the hub above each cluster
    of_cluster, of_hub = np.zeros_like(top), np.zeros(layout.instance_hubs[last] - hub_base, np.int64)  # states
    for m in range(first, last):
        if not active[m]:
            continue
        feasible[m] = _collect(forest, m, top[layout.instance_clusters[m] - base :], of_hub, hub_base, work)
        feasible[m] = feasible[m] and _choose(forest, m, top, of_cluster, of_hub, base, hub_base, work)
        if feasible[m]:
            for v in range(forest.variables[m], forest.variables[m + 1]):
                cluster = forest.cluster[v]
                if cluster < 0:
                    states[v] = of_hub[-1 - cluster - hub_base]
                else:
                    states[v] = of_cluster[cluster - base] // forest.stride[v] % forest.size[v]


@njit()
def _collect(forest: Forest, m: int, top: Ints, of_hub: Ints, hub_base: int, work: Workspace) -> bool:
    """Pass messages to the roots, which take their first best states; False where all states of a hub are forbidden.

    ``top`` gets the link of each cluster to the hub above it.
    """
    layout, multipliers = forest.layout, forest.multipliers
    sums, total, incoming, _ = work
    begin, end, base = layout.instance_hubs[m], layout.instance_hubs[m + 1], layout.instance_clusters[m]
    left = layout.cluster_links[base : layout.instance_clusters[m + 1] + 1]
    left = left[1:] - left[:-1]  # hubs of each cluster still to come
    for step in range(end - begin - 1, -1, -1):
        hub = layout.hub_order[begin + step]
        start, n, above = layout.hub_offset[hub], layout.hub_offset[hub + 1] - layout.hub_offset[hub], -1
        for k in range(n):
            total[k] = forest.hub_scores[start + k]
        for link in range(layout.hub_links[hub], layout.hub_links[hub + 1]):
            cluster = layout.link_cluster[link] - base
            left[cluster] -= 1
            if left[cluster] > 0:
                above = link
                continue
            top[cluster] = link
            max_message(layout, forest.entries, multipliers, link, sums, incoming, 0)
            for k in range(n):
                total[k] += incoming[k]
        state = _first_best(total, n, forest.tolerance[m])
        if state < 0:
            return False
        of_hub[hub - hub_base] = state
        if above >= 0:
            for k in range(n):
                multipliers[layout.link_offset[above] + k] = total[k] - total[state]
    return True


@njit()
def _choose(
    forest: Forest, m: int, top: Ints, of_cluster: Ints, of_hub: Ints, base: int, hub_base: int, work: Workspace
) -> bool:
    """From the roots down, the first best state of each cluster given that of the hub above; False where there is none.

    A cluster without a hub above it is on its own.
    """
    layout, sums = forest.layout, work[0]
    n_hubs = layout.instance_hubs[m + 1] - layout.instance_hubs[m]
    for step in range(n_hubs + 1):
        hub = layout.hub_order[layout.instance_hubs[m] + step] if step < n_hubs else -1
        first, last = layout.instance_clusters[m], layout.instance_clusters[m + 1]
        if hub >= 0:
            first, last = layout.hub_links[hub], layout.hub_links[hub + 1]
        for item in range(first, last):
            cluster, above = (layout.link_cluster[item], item) if hub >= 0 else (item, -1)
            if top[cluster - base] != above:
                continue
            size = fill_scores(layout, forest.entries, forest.multipliers, cluster, -1, sums)
            if above >= 0:
                for k in range(size):
                    if layout.projection[layout.link_projection[above] + k] != of_hub[hub - hub_base]:
                        sums[k] = -np.inf
            state = _first_best(sums, size, forest.tolerance[m])
            if state < 0:
                return False
            of_cluster[cluster - base] = state
            for position in range(layout.cluster_links[cluster], layout.cluster_links[cluster + 1]):
                link = layout.cluster_link[position]
                at = layout.link_projection[link] + state
                of_hub[layout.link_hub[link] - hub_base] = layout.projection[at]
    return True


@njit()
def _first_best(scores: Floats, n: int, slack: float) -> int:
    """The first of ``n`` scores that is no further than ``slack`` from the largest; -1 where all are -inf."""
    best = -np.inf
    for k in range(n):
        best = max(best, scores[k])
    for k in range(n):
        if scores[k] >= best - slack and best > -np.inf:
            return k
    return -1


@kernel()
def best_labels(
    scores: Floats, table: Floats, bounds: Ints, first: int, last: int, tie: float, labels: Ints, sure: Bools
) -> None:
    """Fill the labels of chains ``first:last``, with tokens ``bounds[c]:bounds[c + 1]``, from ``scores`` (n, k).

    All have the same ``table`` of transitions. A chain is ``sure`` where its scores are finite and each label beats the
    others by more than a tie: ``tie`` times the largest score, in thousands, or 1. The sums are those of
    :func:`decode_trees`.
    """
    k = table.shape[0]
    in_table = 0.0
    for a in range(k):
        for b in range(k):
            in_table = max(in_table, abs(table[a, b]))
    for chain in range(first, last):
        begin, end = bounds[chain], bounds[chain + 1]
        total = scores[begin:end].copy()
        largest = 0.0 if end - begin < 2 else in_table
        finite = True
        for t in range(end - begin):
            for a in range(k):
                largest = max(largest, abs(total[t, a]))
                finite = finite and np.isfinite(total[t, a])
        for t in range(end - begin - 2, -1, -1):
            for a in range(k):
                best = -np.inf
                for b in range(k):
                    best = max(best, total[t + 1, b] + table[a, b])
                total[t, a] += best
        slack = tie * max(1.0, 1e-3 * largest)
        sure[chain] = finite
        before = -1
        for t in range(end - begin):
            best, second, chosen = -np.inf, -np.inf, 0
            for a in range(k):
                score = total[t, a] if before < 0 else total[t, a] + table[before, a]
                if score > best:
                    best, second, chosen = score, best, a
                else:
                    second = max(second, score)
            if not second < best - slack:
                sure[chain] = False
            labels[begin + t] = chosen
            before = chosen


@kernel()
def n_best_labels(
    nodes: Floats, tables: Floats, table_of: Ints, bounds: Ints, first: int, last: int, labels: Ints, scores: Floats
) -> None:
    """Fill ``labels`` (n, n_tokens) and log-probabilities (n_chains, n) of the n best labellings of chains.

    ``table_of`` has the number of the table of transitions to each token, -1 where there is none. Each label of each
    token keeps the n best ways to reach it (the list Viterbi algorithm: Seshadri & Sundberg, IEEE Trans. Commun. 42,
    1994), and log Z is the forward recursion's. Of equal scores the first comes first; those that do not exist have
    -inf.
    """
    n, k = labels.shape[0], nodes.shape[1]
    longest = 0
    for chain in range(first, last):
        longest = max(longest, bounds[chain + 1] - bounds[chain])
    best = np.empty((longest + 1, k, n))
    back = np.empty((longest + 1, k, n), dtype=np.int64)  # label * n + rank of the token before
    forward, after, heads, pair = np.empty(k), np.empty(k), np.empty(k, dtype=np.int64), np.empty(k)
    for chain in range(first, last):
        begin, length = bounds[chain], bounds[chain + 1] - bounds[chain]
        if length == 0:
            scores[chain, 0] = 0.0
            continue
        for t in range(length):
            table = table_of[begin + t]
            for a in range(k):
                own = nodes[begin + t, a]
                if t == 0:
                    best[0, a] = -np.inf
                    best[0, a, 0] = own
                    after[a] = own
                    continue
                heads[:] = 0
                for b in range(k):
                    pair[b] = tables[table, b, a] if table >= 0 else 0.0
                for r in range(n):
                    top, chosen = -np.inf, 0
                    for b in range(k):
                        if heads[b] < n and best[t - 1, b, heads[b]] + pair[b] > top:
                            top, chosen = best[t - 1, b, heads[b]] + pair[b], b
                    best[t, a, r] = own + top
                    back[t, a, r] = chosen * n + heads[chosen]
                    heads[chosen] += 1 if top > -np.inf else 0
                pair += forward
                after[a] = own + _log_sum(pair)
            forward[:] = after
        log_partition = _log_sum(forward)
        heads[:] = 0
        for r in range(n):
            top, a = -np.inf, 0
            for b in range(k):
                if heads[b] < n and best[length - 1, b, heads[b]] > top:
                    top, a = best[length - 1, b, heads[b]], b
            if top == -np.inf:
                break
            scores[chain, r] = top - log_partition
            rank = heads[a]
            heads[a] += 1
            for t in range(length - 1, -1, -1):
                labels[r, begin + t] = a
                if t > 0:
                    a, rank = back[t, a, rank] // n, back[t, a, rank] % n


@njit()
def _log_sum(terms: Floats) -> float:
    """log sum exp."""
    top = terms.max()
    return top + np.log(np.exp(terms - top).sum()) if top > -np.inf else top
