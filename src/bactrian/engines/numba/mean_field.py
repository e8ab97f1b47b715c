"""Naive mean field by coordinate ascent, on factor graphs.

For q(x) = prod_v q_v(x_v) the bound is

    F(q) = sum_v E[theta_v] + sum_a E[theta_a] + sum_v H(q_v) <= log Z

and its maximum over one q_v is q_v(x) ~ exp(theta_v(x) + sum_{a around v} E[theta_a | x_v = x]). Forbidden entries are
the limit of a penalty that grows without bound: q_v keeps to the states with the least expected number of forbidden
entries, so the pair (forbidden mass, F without it) improves lexicographically. F is -inf while any mass is left.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from bactrian.arrays import Bools, Floats, Ints
from bactrian.compiling import kernel, njit
from bactrian.engines.numba.arithmetic import exp, normalise_logs
from bactrian.engines.numba.assignments import ScoreArrays
from bactrian.engines.numba.layout import Layout
from bactrian.engines.numba.tables import Limits

_ROUNDING = 1e-12


class Ascent(NamedTuple):
    """Where each of ``M`` instances stands."""

    beliefs: Floats  #: (n_hub_states,) q
    bound: Floats  #: (M,) F
    residual: Floats  #: (M,) largest change of a belief in the last sweep
    iterations: Ints  #: (M,)
    late: Bools  #: (1,) time is up


@kernel()
def ascend_instances(
    layout: Layout, scores: ScoreArrays, ascent: Ascent, limits: Limits, first: int, last: int
) -> None:
    """Update the beliefs of instances ``first:last`` until none changes by more than the tolerance, or it is late.

    A sweep that is cut short leaves a residual of infinity.
    """
    beliefs, bound, residual, iterations, late = ascent
    tolerance, max_iterations = limits.tolerance, limits.max_sweeps
    largest = 1
    for hub in range(layout.instance_hubs[first], layout.instance_hubs[last]):
        largest = max(largest, layout.hub_offset[hub + 1] - layout.hub_offset[hub])
    expected, forbidden = np.empty(largest), np.empty(largest)
    for m in range(first, last):
        iterations[m] = 0
        residual[m] = np.inf
        while residual[m] > tolerance and iterations[m] < max_iterations and not late[0]:
            residual[m] = 0.0
            for hub in range(layout.instance_hubs[m], layout.instance_hubs[m + 1]):
                if late[0]:
                    residual[m] = np.inf
                    break
                change = _update(layout, scores, beliefs, hub, expected, forbidden)
                residual[m] = max(residual[m], change)
            iterations[m] += 1
        bound[m] = _evaluate(layout, scores.entries, scores.hubs, beliefs, m, expected, forbidden)


@njit()
def _update(
    layout: Layout, scores: ScoreArrays, beliefs: Floats, hub: int, expected: Floats, forbidden: Floats
) -> float:
    """The best belief of one variable given the others; returns its largest change."""
    start = layout.hub_offset[hub]
    states = layout.hub_offset[hub + 1] - start
    for x in range(states):
        expected[x], forbidden[x] = scores.hubs[start + x], 0.0
        if expected[x] == -np.inf:
            expected[x], forbidden[x] = 0.0, np.inf
    for link in range(layout.hub_links[hub], layout.hub_links[hub + 1]):
        _add_expectation(layout, scores.entries, beliefs, link, expected, forbidden)
    least = np.inf
    for x in range(states):
        least = min(least, forbidden[x])
    if least == np.inf:
        return 0.0
    for x in range(states):
        if forbidden[x] > least + _ROUNDING * (1.0 + least):
            expected[x] = -np.inf
    normalise_logs(expected, 0, states)
    change = 0.0
    for x in range(states):
        new = exp(expected[x])
        change = max(change, abs(new - beliefs[start + x]))
        beliefs[start + x] = new
    return change


@njit()
def _add_expectation(
    layout: Layout, entries: Floats, beliefs: Floats, link: int, expected: Floats, forbidden: Floats
) -> None:
    """Add E[theta_a | x_v = x] to ``expected``, and the mass on forbidden entries to ``forbidden``."""
    cluster = layout.link_cluster[link]
    table = layout.cluster_table[cluster]
    start = layout.table_offset[table]
    projection = layout.link_projection[link]
    first, last = layout.cluster_links[cluster], layout.cluster_links[cluster + 1]
    for k in range(layout.table_offset[table + 1] - start):
        mass = 1.0
        for position in range(first, last):
            other = layout.cluster_link[position]
            if other != link:
                state = layout.projection[layout.link_projection[other] + k]
                mass *= beliefs[layout.hub_offset[layout.link_hub[other]] + state]
        if mass > 0.0:
            x = layout.projection[projection + k]
            if entries[start + k] == -np.inf:
                forbidden[x] += mass
            else:
                expected[x] += mass * entries[start + k]


@njit()
def _evaluate(
    layout: Layout, entries: Floats, hub_scores: Floats, beliefs: Floats, m: int, expected: Floats, forbidden: Floats
) -> float:
    """F at the beliefs of an instance."""
    value = 0.0
    for k in range(layout.hub_offset[layout.instance_hubs[m]], layout.hub_offset[layout.instance_hubs[m + 1]]):
        if beliefs[k] > 0.0:
            value += beliefs[k] * (hub_scores[k] - math.log(beliefs[k]))
    for cluster in range(layout.instance_clusters[m], layout.instance_clusters[m + 1]):
        link = layout.cluster_link[layout.cluster_links[cluster]]
        start, states = (
            layout.hub_offset[layout.link_hub[link]],
            layout.link_offset[link + 1] - layout.link_offset[link],
        )
        expected[:states], forbidden[:states] = 0.0, 0.0
        _add_expectation(layout, entries, beliefs, link, expected, forbidden)
        for x in range(states):
            if beliefs[start + x] > 0.0:
                value += beliefs[start + x] * expected[x] if forbidden[x] == 0.0 else -np.inf
    return value
