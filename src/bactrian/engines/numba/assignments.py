"""Assignments: max-sum messages and scores, and how to improve them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bactrian.arrays import Floats, Ints
from bactrian.compiling import kernel, njit
from bactrian.engines.numba.layout import Layout
from bactrian.engines.numba.orders import Blocks, entry_of
from bactrian.engines.numba.tables import fill_scores, largest_sizes

Workspace = tuple[Floats, Floats, Floats, Floats]
#: Work space of :func:`climb` and :func:`climb_blocks`: scores of states, how many entries forbid them, choices of
#: children.
Climber = tuple[Floats, Floats, Ints]


class ScoreArrays(NamedTuple):
    """Scores of a factor graph."""

    entries: Floats  #: (n_entries,) tables
    hubs: Floats  #: (n_hub_states,) scores of variables
    strides: Ints  #: (L,) stride of a link's variable in its cluster's table


@njit()
def scratch(layout: Layout, first: int, last: int) -> Workspace:
    """Work space for instances ``first:last``: cluster scores, hub states, and twice the messages around a hub."""
    table, states, star = largest_sizes(layout, first, last)
    star = max(star, states)
    return np.empty(table), np.empty(states), np.empty(star), np.empty(star)


@njit()
def max_message(
    layout: Layout, entries: Floats, multipliers: Floats, link: int, sums: Floats, out: Floats, start: int
) -> None:
    """m of a link into ``out[start:]``; ``sums`` is scratch."""
    cluster = layout.link_cluster[link]
    states = layout.link_offset[link + 1] - layout.link_offset[link]
    for k in range(states):
        out[start + k] = -np.inf
    rows = layout.cluster_rows[cluster]
    if rows > 0:
        table = layout.cluster_table[cluster]
        first_entry = layout.table_offset[table]
        columns = (layout.table_offset[table + 1] - first_entry) // rows
        row_link = layout.cluster_link[layout.cluster_links[cluster]]
        column_link = layout.cluster_link[layout.cluster_links[cluster] + 1]
        if link == column_link:
            other = layout.link_offset[row_link]
            for a in range(rows):
                told = multipliers[other + a]
                row = first_entry + a * columns
                for b in range(columns):
                    out[start + b] = max(out[start + b], entries[row + b] + told)
        else:
            other = layout.link_offset[column_link]
            for a in range(rows):
                row = first_entry + a * columns
                best = -np.inf
                for b in range(columns):
                    best = max(best, entries[row + b] + multipliers[other + b])
                out[start + a] = best
        return
    size = fill_scores(layout, entries, multipliers, cluster, link, sums)
    projection = layout.link_projection[link]
    for k in range(size):
        state = start + layout.projection[projection + k]
        out[state] = max(out[state], sums[k])


@njit()
def update_star(
    layout: Layout, entries: Floats, hub_scores: Floats, multipliers: Floats, hub: int, damping: float, work: Workspace
) -> float:
    """Max-product at one hub: d_l = theta_v + sum of m over its other links, largest 0; returns the largest change.

    A state that the messages forbid becomes -inf at once, undamped. Returns -1 where they forbid all states, which
    proves that no joint state is allowed if the multipliers started at 0.
    """
    sums, suffix, incoming, others = work
    start = layout.hub_offset[hub]
    states = layout.hub_offset[hub + 1] - start
    first, last = layout.hub_links[hub], layout.hub_links[hub + 1]
    for k in range(states):
        suffix[k] = hub_scores[start + k]
    for link in range(first, last):
        message = (link - first) * states
        max_message(layout, entries, multipliers, link, sums, incoming, message)
        for k in range(states):
            others[message + k] = suffix[k]
            suffix[k] += incoming[message + k]
    for k in range(states):
        suffix[k] = 0.0
    change = 0.0
    for link in range(last - 1, first - 1, -1):
        message = (link - first) * states
        offset = layout.link_offset[link]
        top = -np.inf
        for k in range(states):
            others[message + k] += suffix[k]
            suffix[k] += incoming[message + k]
            top = max(top, others[message + k])
        if top == -np.inf:
            return -1.0
        for k in range(states):
            new = others[message + k] - top
            old = multipliers[offset + k]
            if new != -np.inf and old != -np.inf:
                change = max(change, abs(new - old))
                new += damping * (old - new)
            elif new != old:
                change = np.inf
            multipliers[offset + k] = new
    return change


@njit()
def joint_score(layout: Layout, scores: ScoreArrays, states: Ints, m: int) -> float:
    """Joint log score of one instance's assignment on a factor graph; ``states`` has one entry per hub."""
    total = 0.0
    for hub in range(layout.instance_hubs[m], layout.instance_hubs[m + 1]):
        total += scores.hubs[layout.hub_offset[hub] + states[hub]]
    for cluster in range(layout.instance_clusters[m], layout.instance_clusters[m + 1]):
        total += scores.entries[entry_of(layout, scores.strides, states, cluster, -1, -1)]
    return total


@kernel()
def score_of(layout: Layout, scores: ScoreArrays, states: Ints, m: int) -> float:
    """:func:`joint_score`, for Python."""
    return joint_score(layout, scores, states, m)


@njit()
def first_best(values: Floats, size: int) -> int:
    """First index of ``values[:size]`` that is within rounding of the largest."""
    top = -np.inf
    for k in range(size):
        top = max(top, values[k])
    for k in range(size):
        if values[k] == top or values[k] >= top - 1e-12 * max(1.0, abs(top)):
            return k
    return 0


@njit()
def add_conditional(
    layout: Layout, scores: ScoreArrays, states: Ints, link: int, out: Floats, forbidden: Floats
) -> None:
    """Add a cluster's scores, with its other variables fixed, to ``out`` over the states of a link's hub.

    Forbidden entries are counted in ``forbidden`` and add nothing to ``out``.
    """
    index = entry_of(layout, scores.strides, states, layout.link_cluster[link], link, -1)
    for k in range(layout.link_offset[link + 1] - layout.link_offset[link]):
        score = scores.entries[index + scores.strides[link] * k]
        if score == -np.inf:
            forbidden[k] += 1.0
        else:
            out[k] += score


@njit()
def _score_states(
    layout: Layout, scores: ScoreArrays, states: Ints, hub: int, total: Floats, forbidden: Floats
) -> None:
    """Score of each state of a variable given all others, and how many entries forbid it, which add nothing."""
    start, stop = layout.hub_offset[hub], layout.hub_offset[hub + 1]
    for k in range(start, stop):
        impossible = scores.hubs[k] == -np.inf
        total[k] = 0.0 if impossible else scores.hubs[k]
        forbidden[k] = np.inf if impossible else 0.0
    for link in range(layout.hub_links[hub], layout.hub_links[hub + 1]):
        add_conditional(layout, scores, states, link, total[start:stop], forbidden[start:stop])


@njit()
def assign_greedily(
    layout: Layout, entries: Floats, hub_scores: Floats, multipliers: Floats, states: Ints, m: int, work: Workspace
) -> None:
    """Fix the variables of an instance in turn, each to its best state given those fixed before it.

    State x of variable v scores theta_v(x) + sum over its clusters a of the largest theta_a + sum of d_u(x_u), over
    the states of a with x_v = x that agree with the variables already fixed and u over those not yet fixed. Where all
    states are forbidden the fixed variables of clusters are ignored. The first best state wins.
    """
    sums, total, incoming, _ = work
    first_hub = layout.instance_hubs[m]
    for hub in range(first_hub, layout.instance_hubs[m + 1]):
        start = layout.hub_offset[hub]
        size = layout.hub_offset[hub + 1] - start
        for attempt in range(2):
            for x in range(size):
                total[x] = hub_scores[start + x]
            for link in range(layout.hub_links[hub], layout.hub_links[hub + 1]):
                cluster = layout.link_cluster[link]
                n = fill_scores(layout, entries, multipliers, cluster, link, sums)
                for position in range(layout.cluster_links[cluster], layout.cluster_links[cluster + 1]):
                    other = layout.cluster_link[position]
                    fixed = layout.link_hub[other]
                    if attempt == 0 and fixed < hub:
                        projection = layout.link_projection[other]
                        for k in range(n):
                            if layout.projection[projection + k] != states[fixed]:
                                sums[k] = -np.inf
                for x in range(size):
                    incoming[x] = -np.inf
                projection = layout.link_projection[link]
                for k in range(n):
                    x = layout.projection[projection + k]
                    incoming[x] = max(incoming[x], sums[k])
                for x in range(size):
                    total[x] += incoming[x]
            best = first_best(total, size)
            if total[best] != -np.inf:
                break
        states[hub] = best


@njit()
def climb(layout: Layout, scores: ScoreArrays, states: Ints, m: int, sweeps: int, climber: Climber) -> None:
    """Improve an assignment one variable at a time until no change helps (iterated conditional modes, Besag 1986).

    Fewer forbidden entries count before a better score, so that it climbs towards what is allowed at all.
    """
    total, forbidden, _ = climber
    for _ in range(sweeps):
        moved = False
        for hub in range(layout.instance_hubs[m], layout.instance_hubs[m + 1]):
            _score_states(layout, scores, states, hub, total, forbidden)
            start = layout.hub_offset[hub]
            best = start + states[hub]
            for x in range(start, layout.hub_offset[hub + 1]):
                gain = total[x] - total[best]
                enough = 1e-12 * max(1.0, abs(total[best]))
                if forbidden[x] < forbidden[best] or (forbidden[x] == forbidden[best] and gain > enough):
                    best = x
            if best != start + states[hub]:
                states[hub] = best - start
                moved = True
        if not moved:
            return


@njit()
def climb_blocks(
    layout: Layout, scores: ScoreArrays, blocks: Blocks, states: Ints, m: int, sweeps: int, climber: Climber
) -> None:
    """Improve an allowed assignment one block at a time, each set to its best given the others, until none helps.

    The blocks are forests of pairs (:mod:`bactrian.engines.numba.orders`), so that many variables move together.
    """
    first, last = blocks.instance_blocks[m], blocks.instance_blocks[m + 1]
    score = joint_score(layout, scores, states, m)
    for _ in range(sweeps):
        for number in range(first, last):
            _maximise_block(layout, scores, blocks, number, states, climber)
        improved = joint_score(layout, scores, states, m)
        if improved <= score + 1e-12 * max(1.0, abs(score)):
            return
        score = improved


@njit()
def _maximise_block(
    layout: Layout, scores: ScoreArrays, blocks: Blocks, number: int, states: Ints, climber: Climber
) -> None:
    local, forbidden, choice = climber
    first, last = blocks.bounds[number], blocks.bounds[number + 1]
    for i in range(first, last):
        hub = blocks.order[i]
        start = layout.hub_offset[hub]
        size = layout.hub_offset[hub + 1] - start
        for x in range(size):
            local[start + x] = scores.hubs[start + x]
            forbidden[x] = 0.0
        for link in range(layout.hub_links[hub], layout.hub_links[hub + 1]):
            if not blocks.inside[link]:
                add_conditional(layout, scores, states, link, local[start:], forbidden)
        for x in range(size):
            if forbidden[x] > 0.0:
                local[start + x] = -np.inf
    for i in range(last - 1, first - 1, -1):
        hub = blocks.order[i]
        up, down = blocks.up_link[hub], blocks.down_link[hub]
        if up < 0:
            continue
        start = layout.hub_offset[hub]
        parent = layout.hub_offset[layout.link_hub[down]]
        told = layout.link_offset[down]
        index = entry_of(layout, scores.strides, states, layout.link_cluster[up], up, down)
        for y in range(layout.link_offset[down + 1] - told):
            best, chosen = -np.inf, 0
            for x in range(layout.hub_offset[hub + 1] - start):
                place = index + scores.strides[up] * x + scores.strides[down] * y
                score = local[start + x] + scores.entries[place]
                if score > best:
                    best, chosen = score, x
            choice[told + y] = chosen
            local[parent + y] += best
    for i in range(first, last):
        hub = blocks.order[i]
        if blocks.up_link[hub] >= 0:
            down = blocks.down_link[hub]
            states[hub] = choice[layout.link_offset[down] + states[layout.link_hub[down]]]
        else:
            start = layout.hub_offset[hub]
            states[hub] = first_best(local[start:], layout.hub_offset[hub + 1] - start)
