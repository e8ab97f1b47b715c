"""The lexicographically first best assignment of a forest of hubs and clusters.

Two sweeps of max-product on a forest leave in every cluster its max-marginals: a state of a cluster belongs to some
best assignment exactly where its max-marginal attains the maximum. Those *tight* states form a tree of constraints
whose solutions are the best assignments. Once every tight state has support in the neighbouring clusters (arc
consistency, Mackworth, Artificial Intelligence 8(1), 1977) each of them extends to a solution (Freuder, J. ACM 29(1),
1982), so variables can be fixed one after the other, each to its first tight state, without ever backing up. States
only ever leave the lists, so where the best assignment is unique the work is one scan of the tables.

Forests of pairs are first tried without lists (:func:`decode_pairs`): max-product towards the roots, and back. Every
choice on the way back is checked: where another state would do as well, up to a tolerance, the instance is left to the
lists. With all choices clear, an assignment that differs from the one found differs somewhere first, and loses more
than the tolerance there.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bactrian.arrays import Bools, Floats, Ints
from bactrian.compiling import kernel, njit
from bactrian.engines.numba.assignments import Workspace, first_best, scratch, update_star
from bactrian.engines.numba.layout import Layout
from bactrian.engines.numba.tables import fill_scores


class Tight(NamedTuple):
    """Tight states of an instance's clusters, and hubs whose states may have lost their support."""

    listed: Ints  #: tight states, cluster after cluster
    begin: Ints  #: where a cluster's begin
    left: Ints  #: how many a cluster has left
    support: Ints  #: how many of them support each link state
    queue: Ints  #: hubs to look at, in a ring
    queued: Bools  #: whether a hub is in the queue
    ends: Ints  #: the two ends of the ring
    dead: Bools  #: scratch over the states of a hub


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
    layout, entries, hub_scores, multipliers, tolerance, variables, variable_cluster, variable_stride, sizes = forest
    work = scratch(layout, first, last)
    for m in range(first, last):
        if not active[m]:
            continue
        feasible[m] = _propagate(forest, m, work)
        if not feasible[m]:
            continue
        tight = _tight_states(layout, entries, multipliers, tolerance[m], m, work)
        for local in range(tight.left.size):
            feasible[m] = feasible[m] and tight.left[local] > 0
        if not feasible[m]:
            continue
        hubs = layout.instance_hubs[m], layout.instance_hubs[m + 1]
        for hub in range(hubs[0], hubs[1]):
            _enqueue(tight, hub - hubs[0], hubs[1] - hubs[0])
        _make_consistent(layout, tight, m)
        for variable in range(variables[m], variables[m + 1]):
            cluster = variable_cluster[variable]
            if cluster < 0:
                hub = -1 - cluster
                start, stop = layout.hub_offset[hub], layout.hub_offset[hub + 1]
                states[variable] = first_best(hub_scores[start:stop], stop - start)
                continue
            stride, size = variable_stride[variable], sizes[variable]
            local = cluster - layout.instance_clusters[m]
            listed, begin, count = tight.listed, tight.begin[local], tight.left[local]
            state = size
            for i in range(begin, begin + count):
                state = min(state, listed[i] // stride % size)
            states[variable] = state
            kept = begin
            for i in range(begin, begin + count):
                if listed[i] // stride % size == state:
                    listed[kept] = listed[i]
                    kept += 1
                else:
                    _withdraw(layout, tight, m, cluster, listed[i])
            tight.left[local] = kept - begin
            _make_consistent(layout, tight, m)


@njit()
def _propagate(forest: Forest, m: int, work: Workspace) -> bool:
    """Collect and distribute; False where every joint state is forbidden."""
    layout, entries, hub_scores, multipliers = forest.layout, forest.entries, forest.hub_scores, forest.multipliers
    first, last = layout.instance_hubs[m], layout.instance_hubs[m + 1]
    for sweep in range(2):
        for step in range(last - first):
            hub = layout.hub_order[last - 1 - step if sweep == 0 else first + step]
            if layout.hub_links[hub] == layout.hub_links[hub + 1]:
                start = layout.hub_offset[hub]
                top = -np.inf
                for k in range(start, layout.hub_offset[hub + 1]):
                    top = max(top, hub_scores[k])
                if top == -np.inf:
                    return False
            elif update_star(layout, entries, hub_scores, multipliers, hub, 0.0, work) < 0.0:
                return False
    return True


@njit()
def _tight_states(layout: Layout, entries: Floats, multipliers: Floats, slack: float, m: int, work: Workspace) -> Tight:
    """Lists of tight states, and for each link state the number of tight states that support it.

    A list is empty where a cluster forbids all its states.
    """
    clusters = layout.instance_clusters[m], layout.instance_clusters[m + 1]
    hubs = layout.instance_hubs[m], layout.instance_hubs[m + 1]
    links = layout.hub_links[hubs[0]], layout.hub_links[hubs[1]]
    begin = np.zeros(clusters[1] - clusters[0], np.int64)
    count = np.zeros(clusters[1] - clusters[0], np.int64)
    listed = np.empty(max(16, 2 * begin.size), np.int64)
    support = np.zeros(layout.link_offset[links[1]] - layout.link_offset[links[0]], np.int64)
    sums = work[0]
    used = 0
    for cluster in range(clusters[0], clusters[1]):
        size = fill_scores(layout, entries, multipliers, cluster, -1, sums)
        top = -np.inf
        for k in range(size):
            top = max(top, sums[k])
        begin[cluster - clusters[0]] = used
        for k in range(size):
            if sums[k] != -np.inf and sums[k] >= top - slack:
                if used == listed.size:
                    larger = np.empty(2 * used, np.int64)
                    for i in range(used):
                        larger[i] = listed[i]
                    listed = larger
                listed[used] = k
                used += 1
                for position in range(layout.cluster_links[cluster], layout.cluster_links[cluster + 1]):
                    link = layout.cluster_link[position]
                    x = layout.projection[layout.link_projection[link] + k]
                    support[layout.link_offset[link] - layout.link_offset[links[0]] + x] += 1
        count[cluster - clusters[0]] = used - begin[cluster - clusters[0]]
    n_hubs = hubs[1] - hubs[0]
    return Tight(
        listed, begin, count, support,
        np.zeros(n_hubs + 1, np.int64), np.zeros(n_hubs, np.bool_), np.zeros(2, np.int64),
        np.zeros(work[1].size, np.bool_),
    )  # fmt: skip


@njit()
def _enqueue(tight: Tight, hub: int, n_hubs: int) -> None:
    if not tight.queued[hub]:
        tight.queued[hub] = True
        tight.queue[tight.ends[1]] = hub
        tight.ends[1] = (tight.ends[1] + 1) % (n_hubs + 1)


@njit()
def _withdraw(layout: Layout, tight: Tight, m: int, cluster: int, state: int) -> None:
    """Take a tight state's support from its link states; hubs that lose the last of a state are queued."""
    support = tight.support
    first_hub = layout.instance_hubs[m]
    base = layout.link_offset[layout.hub_links[first_hub]]
    for position in range(layout.cluster_links[cluster], layout.cluster_links[cluster + 1]):
        link = layout.cluster_link[position]
        x = layout.link_offset[link] - base + layout.projection[layout.link_projection[link] + state]
        support[x] -= 1
        if support[x] == 0:
            _enqueue(tight, layout.link_hub[link] - first_hub, layout.instance_hubs[m + 1] - first_hub)


@njit()
def _make_consistent(layout: Layout, tight: Tight, m: int) -> None:
    """Drop tight states that some neighbouring cluster does not support, until none is left."""
    listed, begin, left, support, queue, queued, ends, dead = tight
    first_hub = layout.instance_hubs[m]
    n_hubs = layout.instance_hubs[m + 1] - first_hub
    base = layout.link_offset[layout.hub_links[first_hub]]
    while ends[0] != ends[1]:
        hub = queue[ends[0]] + first_hub
        ends[0] = (ends[0] + 1) % (n_hubs + 1)
        queued[hub - first_hub] = False
        first, last = layout.hub_links[hub], layout.hub_links[hub + 1]
        size = layout.hub_offset[hub + 1] - layout.hub_offset[hub]
        for x in range(size):
            dead[x] = False
            for link in range(first, last):
                dead[x] = dead[x] or support[layout.link_offset[link] - base + x] == 0
        for link in range(first, last):
            broken = False
            for x in range(size):
                broken = broken or (dead[x] and support[layout.link_offset[link] - base + x] > 0)
            if not broken:
                continue
            cluster = layout.link_cluster[link]
            local = cluster - layout.instance_clusters[m]
            projection = layout.link_projection[link]
            kept = begin[local]
            for i in range(begin[local], begin[local] + left[local]):
                if dead[layout.projection[projection + listed[i]]]:
                    _withdraw(layout, tight, m, cluster, listed[i])
                else:
                    listed[kept] = listed[i]
                    kept += 1
            left[local] = kept - begin[local]


@kernel()
def decode_pairs(
    layout: Layout, entries: Floats, hub_scores: Floats, tolerance: Floats, states: Ints, done: Bools, first: int,
    last: int,
) -> None:  # fmt: skip
    """Fill ``states`` of hubs and set ``done`` for the instances among ``first:last`` that are forests of pairs."""
    for m in range(first, last):
        done[m] = layout.instance_is_tree[m]
        for cluster in range(layout.instance_clusters[m], layout.instance_clusters[m + 1]):
            done[m] = done[m] and layout.cluster_rows[cluster] > 0
        if done[m]:
            parent = np.full(layout.instance_hubs[m + 1] - layout.instance_hubs[m], -1)
            total = _collect(layout, entries, hub_scores, m, parent)
            done[m] = _choose(layout, entries, total, tolerance[m], m, parent, states)


@njit()
def _collect(layout: Layout, entries: Floats, hub_scores: Floats, m: int, parent: Ints) -> Floats:
    """Best scores of each hub's states with what hangs below it; ``parent`` gets its link to the hub above."""
    begin, end = layout.instance_hubs[m], layout.instance_hubs[m + 1]
    base = layout.hub_offset[begin]
    total = hub_scores[base : layout.hub_offset[end]].copy()
    above = np.ones(end - begin, np.bool_)
    for step in range(end - begin - 1, -1, -1):
        hub = layout.hub_order[begin + step]
        above[hub - begin] = False
        for link in range(layout.hub_links[hub], layout.hub_links[hub + 1]):
            upper = layout.link_hub[layout.link_partner[link]]
            if not above[upper - begin]:
                continue
            parent[hub - begin] = link
            start, size = layout.hub_offset[hub] - base, layout.hub_offset[hub + 1] - layout.hub_offset[hub]
            to, upper_size = layout.hub_offset[upper] - base, layout.hub_offset[upper + 1] - layout.hub_offset[upper]
            table = layout.table_offset[layout.cluster_table[layout.link_cluster[link]]]
            across, down = (upper_size, 1) if layout.link_axis[link] == 0 else (1, size)
            for x in range(upper_size):
                best = -np.inf
                for y in range(size):
                    best = max(best, total[start + y] + entries[table + y * across + x * down])
                total[to + x] += best
    return total


@njit()
def _choose(layout: Layout, entries: Floats, total: Floats, slack: float, m: int, parent: Ints, states: Ints) -> bool:
    """States from the roots down; False where one is forbidden or not clearly the best."""
    begin, end = layout.instance_hubs[m], layout.instance_hubs[m + 1]
    base = layout.hub_offset[begin]
    for step in range(end - begin):
        hub = layout.hub_order[begin + step]
        start, size = layout.hub_offset[hub] - base, layout.hub_offset[hub + 1] - layout.hub_offset[hub]
        link = parent[hub - begin]
        table, across = 0, 0
        if link >= 0:
            upper = layout.link_hub[layout.link_partner[link]]
            upper_size = layout.hub_offset[upper + 1] - layout.hub_offset[upper]
            across, down = (upper_size, 1) if layout.link_axis[link] == 0 else (1, size)
            table = layout.table_offset[layout.cluster_table[layout.link_cluster[link]]] + states[upper] * down
        best, second = -np.inf, -np.inf
        for y in range(size):
            score = total[start + y]
            if link >= 0:
                score += entries[table + y * across]
            if score > best:
                best, second = score, best
                states[hub] = y
            else:
                second = max(second, score)
        if best == -np.inf or not second < best - slack:
            return False
    return True


@kernel()
def best_labels(
    scores: Floats, table: Floats, bounds: Ints, first: int, last: int, tie: float, labels: Ints, sure: Bools
) -> None:
    """Fill the labels of chains ``first:last``, with tokens ``bounds[c]:bounds[c + 1]``, from ``scores`` (n, k).

    All have the same ``table`` of transitions. A chain is ``sure`` where its scores are finite and each label beats the
    others by more than a tie: ``tie`` times the largest score, in thousands, or 1. The sums are those of
    :func:`decode_pairs`.
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
