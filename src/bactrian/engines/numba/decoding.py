"""Decoding on factor graphs with loops: max-product, and a dual bound by sequential reweighted messages.

Both work on hubs that are variables (:mod:`bactrian.inference.factors`), keep one multiplier per link state, and round
to assignments by :func:`.assignments.assign_greedily` and :func:`.assignments.climb`.
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
def max_product_instances(search: Search, limits: Limits, first: int, last: int) -> None:
    """Sequential max-product on the active instances among ``first:last``; sweeps alternate in direction.

    The first ten sweeps, then every tenth and the last are rounded, and what beats ``found`` is kept.
    """
    layout, scores, _, multipliers, found, active, late = search
    max_iterations = limits.max_sweeps
    work = scratch(layout, first, last)
    trial = found.states.copy()
    climber = np.empty(scores.hubs.size), np.empty(scores.hubs.size), np.empty(layout.link_offset[-1], np.int64)
    for m in range(first, last):
        if not active[m]:
            continue
        hubs = layout.instance_hubs[m], layout.instance_hubs[m + 1]
        for sweep in range(1, max_iterations + 1):
            residual = 0.0
            for step in range(hubs[1] - hubs[0]):
                hub = hubs[1] - 1 - step if sweep % 2 == 1 else hubs[0] + step
                change = update_star(layout, scores.entries, scores.hubs, multipliers, hub, limits.damping, work)
                if change < 0.0:
                    found.bound[m] = -np.inf
                residual = max(residual, change)
            found.iterations[m] = sweep
            found.converged[m] = residual <= limits.tolerance
            if found.bound[m] == -np.inf:
                break
            if found.converged[m] or late[0] or sweep <= 10 or sweep % 10 == 0 or sweep == max_iterations:
                _round(search, trial, m, work, climber)
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


@kernel()
def dual_instances(search: Search, limits: Limits, first: int, last: int) -> None:
    """Lower the dual bound of the active instances among ``first:last``, forward and backward over the variables.

    The bound of multipliers d is B(d) = sum_v max (theta_v - sum_l d_l) + sum_a max (theta_a + sum_l d_l), no less than
    the score of any assignment. It stops when B meets the best assignment found (a certificate), when an iteration
    lowers it by less than the tolerance of its size, or after ``max_sweeps`` iterations.
    """
    layout, scores, _, multipliers, found, active, late = search
    max_iterations = limits.max_sweeps
    work = scratch(layout, first, last)
    trial = found.states.copy()
    climber = np.empty(scores.hubs.size), np.empty(scores.hubs.size), np.empty(layout.link_offset[-1], np.int64)
    for m in range(first, last):
        if not active[m]:
            continue
        hubs = layout.instance_hubs[m], layout.instance_hubs[m + 1]
        found.bound[m] = _bound(layout, scores, multipliers, m, work)
        for iteration in range(1, max_iterations + 1):
            possible = found.bound[m] != -np.inf
            for step in range(2 * (hubs[1] - hubs[0])):
                forward = step < hubs[1] - hubs[0]
                hub = hubs[0] + step if forward else 2 * hubs[1] - hubs[0] - 1 - step
                if possible:
                    possible = _reweight(layout, scores, multipliers, hub, forward, iteration == 1, work)
            found.iterations[m] = iteration
            previous = found.bound[m]
            # Rounding may raise B by a few units in the last place; the least value met is a bound all the same.
            found.bound[m] = min(previous, _bound(layout, scores, multipliers, m, work)) if possible else -np.inf
            if found.bound[m] == -np.inf:
                found.converged[m] = True
                break
            settled = previous - found.bound[m] <= limits.tolerance * max(1.0, abs(found.bound[m]))
            if settled or late[0] or iteration <= 10 or iteration % 5 == 0 or iteration == max_iterations:
                _round(search, trial, m, work, climber)
            tight = found.bound[m] - found.score[m] <= _ROUNDING * max(1.0, abs(found.bound[m]))
            found.converged[m] = settled or tight
            if found.converged[m] or late[0]:
                break


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
