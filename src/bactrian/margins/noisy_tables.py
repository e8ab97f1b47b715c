"""Tables of beliefs under noisy counts of their own cells, tied to each other by the marginals that they share.

Clusters are the tables, each with a table of its own; hubs are what they share.

A table with counts y, tempered variances p, total N and scores m from its links has the weights w that minimise

    psi(m) = N log sum exp(w + m) - w.y + sum p w^2 / 2,        d psi / d m = N b,  b = softmax(w + m).

There N b = y - p w. With e = N b and L the log of the sum less log N this is, cell by cell,

    e / p + log e + L = y / p + m,        and all e add up to N:

Newton's method for v = log e of all cells and L together, from those of the last time. Where L is fixed, v is a convex
function's root, which steps from the right approach from the right; steps to the right are kept short.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from bactrian.arrays import Floats, Ints
from bactrian.compiling import kernel, njit
from bactrian.engines.numba.arithmetic import exp
from bactrian.engines.numba.layout import Layout

#: Kinds of tables: noisy, exact (beliefs are y / N), and fixed scores without weights.
NOISY, EXACT, FIXED = 0, 1, 2
#: Step of v at which Newton's method has converged (errors are squared), steps at most, and the longest to the right.
_SMALL, _MOST_STEPS, _LONGEST = 1e-8, 200, 1.0


class Cells(NamedTuple):
    """What is known of the tables' cells, and where Newton's method stands."""

    kind: Ints  #: (T,)
    constant: Floats  #: y / p; of exact tables y; of fixed ones their scores
    precision: Floats  #: 1 / p; of others 0
    log_count: Floats  #: v
    level: Floats  #: (T,) L + log N
    beliefs: Floats


class Exchange(NamedTuple):
    """What passes between hubs and tables, and how hubs count it."""

    number: Floats  #: (H,) counting numbers that are kept
    scale: Floats  #: (n_link_states,) what x is multiplied by
    multipliers: Floats  #: (n_link_states,)
    marginal: Floats  #: (n_link_states,) of the link's table
    beliefs: Floats  #: (n_hub_states,)


@kernel()
def evaluate_tables(layout: Layout, cells: Cells, hubs: Exchange, total: float, first: int, last: int) -> float:
    """Beliefs of tables ``first:last`` and their marginals on links; returns the sum of psi up to constants."""
    multipliers, marginal = hubs.multipliers, hubs.marginal
    table_offset, cluster_links, cluster_link = layout.table_offset, layout.cluster_links, layout.cluster_link
    link_offset, link_projection, projection = layout.link_offset, layout.link_projection, layout.projection
    largest = 1
    for t in range(first, last):
        largest = max(largest, table_offset[t + 1] - table_offset[t])
    scores, counts = np.empty(largest), np.empty(largest)
    value = 0.0
    for t in range(first, last):
        start, size = table_offset[t], table_offset[t + 1] - table_offset[t]
        for k in range(size):
            scores[k] = 0.0
        for position in range(cluster_links[t], cluster_links[t + 1]):
            link = cluster_link[position]
            offset, states = link_offset[link], link_projection[link]
            for k in range(size):
                scores[k] += multipliers[offset + projection[states + k]]
        beliefs = cells.beliefs[start : start + size]
        constant = cells.constant[start : start + size]
        if cells.kind[t] == EXACT:
            for k in range(size):
                value += constant[k] * scores[k]
                beliefs[k] = constant[k] / total
        elif cells.kind[t] == FIXED:
            top = -np.inf
            for k in range(size):
                scores[k] += constant[k]
                top = max(top, scores[k])
            mass = 0.0
            for k in range(size):
                beliefs[k] = exp(scores[k] - top)
                mass += beliefs[k]
            for k in range(size):
                beliefs[k] /= mass
            value += total * (top + math.log(mass))
        else:
            precision = cells.precision[start : start + size]
            for k in range(size):
                scores[k] += constant[k]
            v = cells.log_count[start : start + size]
            cells.level[t] = _solve(scores, precision, v, counts, total, size) + math.log(total)
            prior = 0.0
            for k in range(size):
                weight = constant[k] - counts[k] * precision[k]
                prior += weight * (0.5 * weight / precision[k] + counts[k])
                beliefs[k] = counts[k] / total
            value += total * cells.level[t] - prior
        for position in range(cluster_links[t], cluster_links[t + 1]):
            link = cluster_link[position]
            offset, states = link_offset[link], link_projection[link]
            for k in range(offset, link_offset[link + 1]):
                marginal[k] = 0.0
            for k in range(size):
                marginal[offset + projection[states + k]] += beliefs[k]
    return value


@njit()
def _solve(scores: Floats, precision: Floats, v: Floats, counts: Floats, total: float, size: int) -> float:
    """v of all cells, their exponentials, and L, which is returned."""
    level = 0.0
    for _ in range(_MOST_STEPS):
        mass, slack, slope = 0.0, 0.0, 0.0
        for k in range(size):
            e = exp(v[k])
            counts[k] = e
            mass += e
            part = e / (e * precision[k] + 1.0)
            slope += part
            slack += part * (e * precision[k] + v[k] - scores[k])
        level = (mass - total - slack) / slope
        largest = 0.0
        for k in range(size):
            e = counts[k] * precision[k]
            step = min((scores[k] - level - e - v[k]) / (e + 1.0), _LONGEST)
            v[k] += step
            largest = max(largest, abs(step))
        if largest <= _SMALL:
            break
    for k in range(size):
        counts[k] = exp(v[k])
    return level


@kernel()
def fill_multipliers(layout: Layout, hubs: Exchange, scores: Floats, x: Floats, first: int, last: int) -> None:
    """Multipliers scale * x of hubs ``first:last``; those of hubs of number 0 are shifted to add up to its scores."""
    number, scale, multipliers = hubs.number, hubs.scale, hubs.multipliers
    for hub in range(first, last):
        begin, end = layout.hub_links[hub], layout.hub_links[hub + 1]
        for s in range(layout.hub_offset[hub + 1] - layout.hub_offset[hub]):
            total, squares = 0.0, 0.0
            for link in range(begin, end):
                k = layout.link_offset[link] + s
                multipliers[k] = scale[k] * x[k]
                total += multipliers[k]
                squares += scale[k] * scale[k]
            if number[hub] == 0.0:
                missing = (scores[layout.hub_offset[hub] + s] - total) / squares
                for link in range(begin, end):
                    k = layout.link_offset[link] + s
                    multipliers[k] += scale[k] * scale[k] * missing


@kernel()
def evaluate_region_hubs(
    layout: Layout, hubs: Exchange, scores: Floats, total: float, slope: Floats, first: int, last: int
) -> tuple[float, float]:
    """Beliefs of hubs and the gradient in x; returns the hubs' part of the dual and the largest disagreement."""
    number, scale, multipliers, marginal, beliefs = hubs
    value, violation = 0.0, 0.0
    for hub in range(first, last):
        begin, end = layout.hub_links[hub], layout.hub_links[hub + 1]
        start = layout.hub_offset[hub]
        states = layout.hub_offset[hub + 1] - start
        if number[hub] > 0.0:
            top = -np.inf
            for s in range(states):
                left = scores[start + s]
                for link in range(begin, end):
                    left -= multipliers[layout.link_offset[link] + s]
                beliefs[start + s] = left / number[hub]
                top = max(top, beliefs[start + s])
            mass = 0.0
            for s in range(states):
                beliefs[start + s] = exp(beliefs[start + s] - top)
                mass += beliefs[start + s]
            for s in range(states):
                beliefs[start + s] /= mass
            value += total * number[hub] * (top + math.log(mass))
        for s in range(states):
            if number[hub] == 0.0:
                weighted, squares = 0.0, 0.0
                for link in range(begin, end):
                    k = layout.link_offset[link] + s
                    weighted += scale[k] * scale[k] * marginal[k]
                    squares += scale[k] * scale[k]
                beliefs[start + s] = weighted / squares
            for link in range(begin, end):
                k = layout.link_offset[link] + s
                gap = marginal[k] - beliefs[start + s]
                slope[k] = total * scale[k] * gap
                violation = max(violation, abs(gap))
    return value, violation
