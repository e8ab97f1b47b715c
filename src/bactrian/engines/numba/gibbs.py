"""Blocked Gibbs sampling on factor graphs.

A block (:mod:`.blocks`) is sampled jointly: messages are collected towards the roots of its forest
(forward filtering), and states drawn from the roots outward (backward sampling).

A chain has a generator for each block of instances, so that what it draws depends neither on threads nor on other
chains.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.random import Generator

from bactrian.arrays import Bools, Floats, Ints
from bactrian.compiling import kernel, njit
from bactrian.engines.numba.arithmetic import exp, logsumexp
from bactrian.engines.numba.assignments import ScoreArrays, joint_score
from bactrian.engines.numba.blocks import Blocks, conditional_start
from bactrian.engines.numba.layout import Layout


@njit()
def draw(probabilities: Floats, start: int, size: int, random: Generator) -> int:
    """A state drawn from ``probabilities[start : start + size]``, which add up to about 1."""
    total = 0.0
    for k in range(size):
        total += probabilities[start + k]
    left = random.random() * total
    chosen = 0
    for k in range(size):
        if probabilities[start + k] > 0.0:
            chosen = k
            left -= probabilities[start + k]
            if left < 0.0:
                break
    return chosen


class Chain(NamedTuple):
    """One chain."""

    layout: Layout
    scores: ScoreArrays
    blocks: Blocks
    states: Ints  #: (H,) states of all variables
    local: Floats  #: (n_hub_states,) scores of variables with what hangs below them in their block
    messages: Floats  #: (n_link_states,) scores of pairs of a block on the parent's side
    marginals: Floats  #: (n_hub_states,) of variables given the other blocks, where they are kept
    small: Floats  #: scratch over the states of a variable


class Draws(NamedTuple):
    """Sums over the sweeps kept, of one chain."""

    mean: Floats  #: (n_hub_states,) sum of conditional marginals
    batch: Floats  #: (n_hub_states,) the same over the batch under way
    batch_sum: Floats  #: (n_hub_states,) sum over batches of batch means
    batch_square: Floats  #: (n_hub_states,) sum of their squares
    halves: Ints  #: (2, n_hub_states) counts of sampled states in the two halves of the chain
    clusters: Ints  #: (total size of the clusters,) counts of sampled states of clusters


class Sweeps(NamedTuple):
    """How many sweeps of a chain there are."""

    burn_in: int
    thinning: int  #: sweeps for each one that is kept
    n_samples: int  #: sweeps that are kept
    batch: int  #: kept sweeps per batch


@njit()
def _entry(scores: ScoreArrays, index: int, floor: float) -> float:
    return max(scores.entries[index], floor)


@njit()
def _filter_block(chain: Chain, number: int, floor: float) -> None:
    """Collect towards the roots of a block."""
    layout, scores, blocks, states, local, messages, _, small = chain
    first, last = blocks.bounds[number], blocks.bounds[number + 1]
    for i in range(first, last):
        hub = blocks.order[i]
        start = layout.hub_offset[hub]
        size = layout.hub_offset[hub + 1] - start
        for x in range(size):
            local[start + x] = scores.hubs[start + x]
        for link in range(layout.hub_links[hub], layout.hub_links[hub + 1]):
            if not blocks.inside[link]:
                index = conditional_start(layout, scores.strides, states, link, -1)
                for x in range(size):
                    local[start + x] += _entry(scores, index + scores.strides[link] * x, floor)
    for i in range(last - 1, first - 1, -1):
        hub = blocks.order[i]
        up, down = blocks.up_link[hub], blocks.down_link[hub]
        if up < 0:
            continue
        start = layout.hub_offset[hub]
        size = layout.hub_offset[hub + 1] - start
        parent = layout.hub_offset[layout.link_hub[down]]
        told = layout.link_offset[down]
        index = conditional_start(layout, scores.strides, states, up, down)
        for y in range(layout.link_offset[down + 1] - told):
            for x in range(size):
                place = index + scores.strides[up] * x + scores.strides[down] * y
                small[x] = local[start + x] + _entry(scores, place, floor)
            messages[told + y] = logsumexp(small, 0, size)
            local[parent + y] += messages[told + y]


@njit()
def _sample_block(chain: Chain, number: int, floor: float, keep: bool, random: Generator) -> None:
    """Draw a block from the roots outward, after :func:`_filter_block`; ``keep`` the marginals of its variables."""
    layout, scores, blocks, states, local, messages, marginals, small = chain
    for i in range(blocks.bounds[number], blocks.bounds[number + 1]):
        hub = blocks.order[i]
        up, down = blocks.up_link[hub], blocks.down_link[hub]
        start = layout.hub_offset[hub]
        size = layout.hub_offset[hub + 1] - start
        if up < 0:
            normaliser = logsumexp(local, start, start + size)
            for x in range(size):
                small[x] = exp(local[start + x] - normaliser)
                marginals[start + x] = small[x]
            states[hub] = draw(small, 0, size, random)
            continue
        parent = layout.link_hub[down]
        told = layout.link_offset[down]
        index = conditional_start(layout, scores.strides, states, up, down)
        if keep:
            for x in range(size):
                marginals[start + x] = 0.0
            for y in range(layout.link_offset[down + 1] - told):
                mass = marginals[layout.hub_offset[parent] + y]
                if mass > 0.0:
                    for x in range(size):
                        place = index + scores.strides[up] * x + scores.strides[down] * y
                        score = local[start + x] + _entry(scores, place, floor)
                        marginals[start + x] += mass * exp(score - messages[told + y])
        y = states[parent]
        for x in range(size):
            place = index + scores.strides[up] * x + scores.strides[down] * y
            small[x] = exp(local[start + x] + _entry(scores, place, floor) - messages[told + y])
        states[hub] = draw(small, 0, size, random)


@njit()
def _sweep(chain: Chain, m: int, floor: float, keep: bool, random: Generator) -> None:
    for number in range(chain.blocks.instance_blocks[m], chain.blocks.instance_blocks[m + 1]):
        _filter_block(chain, number, floor)
        _sample_block(chain, number, floor, keep, random)


@kernel()
def start_chain(chain: Chain, first: int, last: int, max_sweeps: int, random: Generator, started: Bools) -> None:
    """Start a chain on each instance from ``first`` to ``last``; ``started`` says whether its states are allowed.

    Random states, then sweeps with forbidden entries as growing finite penalties, until the states are allowed.
    """
    layout, scores, states = chain.layout, chain.scores, chain.states
    for m in range(first, last):
        for hub in range(layout.instance_hubs[m], layout.instance_hubs[m + 1]):
            start = layout.hub_offset[hub]
            allowed = 0
            for k in range(start, layout.hub_offset[hub + 1]):
                allowed += scores.hubs[k] != -np.inf
            left = int(random.random() * allowed)
            for k in range(start, layout.hub_offset[hub + 1]):
                if scores.hubs[k] != -np.inf:
                    if left == 0:
                        states[hub] = k - start
                    left -= 1
        started[m] = joint_score(layout, scores, states, m) > -np.inf
        for sweep in range(max_sweeps):
            if started[m]:
                break
            _sweep(chain, m, -5.0 * (sweep + 1), False, random)
            started[m] = joint_score(layout, scores, states, m) > -np.inf


@kernel()
def run_chain(
    chain: Chain, first: int, last: int, cluster_start: Ints, draws: Draws, sweeps: Sweeps, random: Generator
) -> None:
    """All sweeps on the instances from ``first`` to ``last``."""
    for m in range(first, last):
        for _ in range(sweeps.burn_in):
            _sweep(chain, m, -np.inf, False, random)
        for sample in range(sweeps.n_samples):
            for skipped in range(sweeps.thinning):
                _sweep(chain, m, -np.inf, skipped == sweeps.thinning - 1, random)
            _keep(chain, m, sample, cluster_start, draws, sweeps)


@njit()
def _keep(chain: Chain, m: int, sample: int, cluster_start: Ints, draws: Draws, sweeps: Sweeps) -> None:
    """Add the last sweep on an instance to the sums."""
    layout, states, marginals = chain.layout, chain.states, chain.marginals
    first, last = layout.hub_offset[layout.instance_hubs[m]], layout.hub_offset[layout.instance_hubs[m + 1]]
    for k in range(first, last):
        draws.mean[k] += marginals[k]
        draws.batch[k] += marginals[k]
    if (sample + 1) % sweeps.batch == 0:
        for k in range(first, last):
            value = draws.batch[k] / sweeps.batch
            draws.batch_sum[k] += value
            draws.batch_square[k] += value * value
            draws.batch[k] = 0.0
    half = sweeps.n_samples // 2
    part = 0 if sample < half else 1
    if part == 0 or sample >= sweeps.n_samples - half:
        for hub in range(layout.instance_hubs[m], layout.instance_hubs[m + 1]):
            draws.halves[part, layout.hub_offset[hub] + states[hub]] += 1
    for cluster in range(layout.instance_clusters[m], layout.instance_clusters[m + 1]):
        index = cluster_start[cluster]
        for position in range(layout.cluster_links[cluster], layout.cluster_links[cluster + 1]):
            link = layout.cluster_link[position]
            index += chain.scores.strides[link] * states[layout.link_hub[link]]
        draws.clusters[index] += 1
