"""Ties between assignments: moves to one that scores as much and comes first in lexicographic order."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bactrian.compiling import njit
from bactrian.engines.numba.assignments import Scores, add_conditional
from bactrian.engines.numba.blocks import conditional_start
from bactrian.engines.numba.layout import Ints, Layout

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

#: Passes over the variables of an instance at most.
_PASSES = 20


@njit(cache=True, nogil=True, error_model="numpy")
def lower_instances(
    layout: Layout, scores: Scores, states: Ints, active: Flags, tolerance: Floats, first: int, last: int
) -> None:
    """Lower the allowed assignments of the active instances among ``first:last`` while that costs them nothing.

    A variable takes the lowest state it can, alone or with a later one that shares a cluster and takes any other state,
    if the score falls by no more than ``tolerance`` of the instance over all moves together.
    """
    total, forbidden = np.zeros(scores.hubs.size), np.zeros(scores.hubs.size)
    for m in range(first, last):
        if not active[m]:
            continue
        begin, end = layout.instance_hubs[m], layout.instance_hubs[m + 1]
        for hub in range(begin, end):
            _score_states(layout, scores, states, hub, total, forbidden)
        left = tolerance[m]
        for _ in range(_PASSES):
            moved = False
            for hub in range(begin, end):
                for x in range(states[hub]):
                    other, y, change = _find_move(layout, scores, states, hub, x, total, forbidden, left)
                    if other < 0:
                        continue
                    left += min(change, 0.0)
                    states[hub] = x
                    states[other] = y
                    _refresh(layout, scores, states, hub, total, forbidden)
                    if other != hub:
                        _refresh(layout, scores, states, other, total, forbidden)
                    moved = True
                    break
            if not moved:
                break


@njit(cache=True, nogil=True, error_model="numpy")
def _score_states(layout: Layout, scores: Scores, states: Ints, hub: int, total: Floats, forbidden: Floats) -> None:
    """Score of each state of a variable given all others, and how many entries forbid it, which add nothing."""
    start, stop = layout.hub_offset[hub], layout.hub_offset[hub + 1]
    for k in range(start, stop):
        impossible = scores.hubs[k] == -np.inf
        total[k] = 0.0 if impossible else scores.hubs[k]
        forbidden[k] = 1.0 if impossible else 0.0
    for link in range(layout.hub_links[hub], layout.hub_links[hub + 1]):
        add_conditional(layout, scores.entries, scores.strides, states, link, total[start:stop], forbidden[start:stop])


@njit(cache=True, nogil=True, error_model="numpy")
def _refresh(layout: Layout, scores: Scores, states: Ints, hub: int, total: Floats, forbidden: Floats) -> None:
    """Score the states of all variables that share a cluster with one that has moved."""
    _score_states(layout, scores, states, hub, total, forbidden)
    for link in range(layout.hub_links[hub], layout.hub_links[hub + 1]):
        cluster = layout.link_cluster[link]
        for position in range(layout.cluster_links[cluster], layout.cluster_links[cluster + 1]):
            other = layout.link_hub[layout.cluster_link[position]]
            if other != hub:
                _score_states(layout, scores, states, other, total, forbidden)


@njit(cache=True, nogil=True, error_model="numpy")
def _find_move(
    layout: Layout, scores: Scores, states: Ints, hub: int, x: int, total: Floats, forbidden: Floats, left: float
) -> tuple[int, int, float]:
    """Another variable and its state with which ``hub`` can take state x, and the gain; the variable itself if alone.

    The variable is -1 where there is none.
    """
    start = layout.hub_offset[hub]
    change = total[start + x] - total[start + states[hub]]
    if forbidden[start + x] == 0.0 and change >= -left:
        return hub, x, change
    for link in range(layout.hub_links[hub], layout.hub_links[hub + 1]):
        cluster = layout.link_cluster[link]
        for position in range(layout.cluster_links[cluster], layout.cluster_links[cluster + 1]):
            other = layout.link_hub[layout.cluster_link[position]]
            if other <= hub:
                continue
            for y in range(layout.hub_offset[other + 1] - layout.hub_offset[other]):
                if y != states[other]:
                    change, count = _joint_change(layout, scores, states, hub, x, other, y, total, forbidden)
                    if count == 0.0 and change >= -left:
                        return other, y, change
    return -1, 0, 0.0


@njit(cache=True, nogil=True, error_model="numpy")
def _joint_change(
    layout: Layout,
    scores: Scores,
    states: Ints,
    hub: int,
    x: int,
    other: int,
    y: int,
    total: Floats,
    forbidden: Floats,
) -> tuple[float, float]:
    """Gain in score where two variables move together, and how many entries then forbid it."""
    at, before = layout.hub_offset[hub] + x, layout.hub_offset[hub] + states[hub]
    other_at, other_before = layout.hub_offset[other] + y, layout.hub_offset[other] + states[other]
    change = total[at] - total[before] + total[other_at] - total[other_before]
    count = forbidden[at] + forbidden[other_at]
    for link in range(layout.hub_links[hub], layout.hub_links[hub + 1]):
        cluster = layout.link_cluster[link]
        for position in range(layout.cluster_links[cluster], layout.cluster_links[cluster + 1]):
            shared = layout.cluster_link[position]
            if layout.link_hub[shared] != other:
                continue
            # Both scores count the cluster with the other variable where it was.
            index = conditional_start(layout, scores.strides, states, link, shared)
            row, column = scores.strides[link], scores.strides[shared]
            for sign, a, b in ((1.0, x, y), (-1.0, x, states[other]), (-1.0, states[hub], y)):
                entry = scores.entries[index + row * a + column * b]
                if entry == -np.inf:
                    count += sign
                else:
                    change += sign * entry
            change += scores.entries[index + row * states[hub] + column * states[other]]
    return change, count
