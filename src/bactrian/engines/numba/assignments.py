"""Assignments from messages, and how to improve them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bactrian.compiling import njit
from bactrian.engines.numba.blocks import Blocks, conditional_start
from bactrian.engines.numba.layout import Ints, Layout
from bactrian.engines.numba.maximum import Scratch, fill_sums, first_best, joint_score

Floats = NDArray[np.float64]
#: Work space of :func:`climb_blocks`: scores of variables, choices of children, states of a variable.
Climber = tuple[Floats, Ints, Floats]


class Scores(NamedTuple):
    """Scores of a factor graph."""

    entries: Floats  #: (n_entries,) tables
    hubs: Floats  #: (n_hub_states,) scores of variables
    strides: Ints  #: (L,) stride of a link's variable in its cluster's table


@njit(cache=True, nogil=True, error_model="numpy")
def add_conditional(
    layout: Layout, entries: Floats, strides: Ints, states: Ints, link: int, out: Floats, forbidden: Floats
) -> None:
    """Add a cluster's scores, with its other variables fixed, to ``out`` over the states of a link's hub.

    Forbidden entries are counted in ``forbidden`` and add nothing to ``out``.
    """
    cluster = layout.link_cluster[link]
    index = layout.table_offset[layout.cluster_table[cluster]]
    for position in range(layout.cluster_links[cluster], layout.cluster_links[cluster + 1]):
        other = layout.cluster_link[position]
        if other != link:
            index += strides[other] * states[layout.link_hub[other]]
    for k in range(layout.link_offset[link + 1] - layout.link_offset[link]):
        score = entries[index + strides[link] * k]
        if score == -np.inf:
            forbidden[k] += 1.0
        else:
            out[k] += score


@njit(cache=True, nogil=True, error_model="numpy")
def assign_greedily(
    layout: Layout, entries: Floats, hub_scores: Floats, multipliers: Floats, states: Ints, m: int, work: Scratch
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
                n = fill_sums(layout, entries, multipliers, cluster, link, sums)
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


@njit(cache=True, nogil=True, error_model="numpy")
def climb(
    layout: Layout, entries: Floats, hub_scores: Floats, strides: Ints, states: Ints, m: int, sweeps: int, work: Scratch
) -> None:
    """Improve an assignment one variable at a time until no change helps (iterated conditional modes, Besag 1986).

    Fewer forbidden entries count before a better score, so that it climbs towards what is allowed at all.
    """
    total, forbidden = work[1], work[2]
    for _ in range(sweeps):
        moved = False
        for hub in range(layout.instance_hubs[m], layout.instance_hubs[m + 1]):
            start = layout.hub_offset[hub]
            size = layout.hub_offset[hub + 1] - start
            for x in range(size):
                total[x] = hub_scores[start + x]
                forbidden[x] = 0.0
                if total[x] == -np.inf:
                    total[x] = 0.0
                    forbidden[x] = np.inf
            for link in range(layout.hub_links[hub], layout.hub_links[hub + 1]):
                add_conditional(layout, entries, strides, states, link, total, forbidden)
            best = states[hub]
            for x in range(size):
                gain = total[x] - total[best]
                enough = 1e-12 * max(1.0, abs(total[best]))
                if forbidden[x] < forbidden[best] or (forbidden[x] == forbidden[best] and gain > enough):
                    best = x
            if best != states[hub]:
                states[hub] = best
                moved = True
        if not moved:
            return


@njit(cache=True, nogil=True, error_model="numpy")
def climb_blocks(
    layout: Layout, scores: Scores, blocks: Blocks, states: Ints, m: int, sweeps: int, climber: Climber
) -> None:
    """Improve an allowed assignment one block at a time, each set to its best given the others, until none helps.

    The blocks are forests of pairs (:mod:`bactrian.engines.numba.blocks`), so that many variables move together.
    """
    first, last = blocks.instance_blocks[m], blocks.instance_blocks[m + 1]
    score = joint_score(layout, scores.entries, scores.hubs, scores.strides, states, m)
    for _ in range(sweeps):
        for number in range(first, last):
            _maximise_block(layout, scores, blocks, number, states, climber)
        improved = joint_score(layout, scores.entries, scores.hubs, scores.strides, states, m)
        if improved <= score + 1e-12 * max(1.0, abs(score)):
            return
        score = improved


@njit(cache=True, nogil=True, error_model="numpy")
def _maximise_block(
    layout: Layout, scores: Scores, blocks: Blocks, number: int, states: Ints, climber: Climber
) -> None:
    local, choice, forbidden = climber
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
                add_conditional(layout, scores.entries, scores.strides, states, link, local[start:], forbidden)
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
        index = conditional_start(layout, scores.strides, states, up, down)
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
