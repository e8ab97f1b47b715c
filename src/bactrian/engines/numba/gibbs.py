"""Blocked Gibbs sampling on factor graphs.

A block (:mod:`.orders`) is sampled jointly: messages are collected towards the roots of its forest
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
from bactrian.engines.numba.layout import Layout
from bactrian.engines.numba.orders import Blocks, entry_of


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
                index = entry_of(layout, scores.strides, states, layout.link_cluster[link], link, -1)
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
        index = entry_of(layout, scores.strides, states, layout.link_cluster[up], up, down)
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
        index = entry_of(layout, scores.strides, states, layout.link_cluster[up], up, down)
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
        entry = entry_of(layout, chain.scores.strides, states, cluster, -1, -1)
        draws.clusters[cluster_start[cluster] + entry - layout.table_offset[layout.cluster_table[cluster]]] += 1


class Population(NamedTuple):
    """Particles that are led from a product of independent variables to the model; the scores under way are their own.

    At inverse temperature b the score of x is (1 - b) log q(x) + b s(x), with forbidden entries of tables at a finite
    penalty until the end.
    """

    chain: Chain
    target: ScoreArrays  #: s
    base: Floats  #: (n_hub_states,) log q, -inf where a state is ruled out
    floor: float  #: the penalty
    states: Ints  #: (P, n) of the instance's variables
    log_weights: Floats  #: (P,)
    gains: Floats  #: (P,) s - log q at the states
    mean: Floats  #: (n_hub_states,) weighted sum of conditional marginals
    cluster_start: Ints  #: (C + 1,) where those of a cluster are in ``clusters``
    clusters: Floats  #: weighted counts of sampled states of clusters
    late: Bools  #: (1,) time is up


@njit()
def _temper(population: Population, m: int, beta: float, floor: float) -> None:
    layout, scores, target = population.chain.layout, population.chain.scores, population.target
    hubs = layout.instance_hubs[m], layout.instance_hubs[m + 1]
    for k in range(layout.hub_offset[hubs[0]], layout.hub_offset[hubs[1]]):
        base = population.base[k]
        scores.hubs[k] = -np.inf if base == -np.inf else (1.0 - beta) * base + beta * target.hubs[k]
    for cluster in range(layout.instance_clusters[m], layout.instance_clusters[m + 1]):
        table = layout.cluster_table[cluster]
        for k in range(layout.table_offset[table], layout.table_offset[table + 1]):
            scores.entries[k] = beta * max(target.entries[k], floor)


@njit()
def _gain(population: Population, m: int, states: Ints) -> float:
    layout, target = population.chain.layout, population.target
    total = 0.0
    for hub in range(layout.instance_hubs[m], layout.instance_hubs[m + 1]):
        k = layout.hub_offset[hub] + states[hub]
        total += target.hubs[k] - population.base[k]
    for cluster in range(layout.instance_clusters[m], layout.instance_clusters[m + 1]):
        total += _entry(target, entry_of(layout, target.strides, states, cluster, -1, -1), population.floor)
    return total


@njit()
def _kept_share(log_weights: Floats, gains: Floats, step: float) -> float:
    """Effective part of the weighted particles after a step of the temperature (Zhou, Johansen & Aston 2016)."""
    top, most = log_weights.max(), -np.inf
    for i in range(gains.size):
        most = max(most, step * gains[i])
    weight, first, second = 0.0, 0.0, 0.0
    for i in range(gains.size):
        w, u = exp(log_weights[i] - top), exp(step * gains[i] - most)
        weight += w
        first += w * u
        second += w * u * u
    return first * first / (weight * second)


@njit()
def _next_beta(population: Population, beta: float, kept: float) -> float:
    """The largest inverse temperature after which a part ``kept`` of the particles is effective."""
    log_weights, gains = population.log_weights, population.gains
    if _kept_share(log_weights, gains, 1.0 - beta) >= kept:
        return 1.0
    low, high = 0.0, 1.0 - beta
    for _ in range(40):
        middle = 0.5 * (low + high)
        if _kept_share(log_weights, gains, middle) >= kept:
            low = middle
        else:
            high = middle
    return min(1.0, beta + max(low, 1e-9))


@njit()
def _resample(population: Population, random: Generator) -> float:
    """Draw the particles by their weights, systematically; returns the logarithm of their mean weight."""
    log_weights, states = population.log_weights, population.states
    n = log_weights.size
    mean = logsumexp(log_weights, 0, n) - np.log(n)
    old = states.copy()
    place, total = random.random(), 0.0
    filled = 0
    for i in range(n):
        total += exp(log_weights[i] - mean)
        while filled < n and place + filled < total:
            states[filled] = old[i]
            filled += 1
    while filled < n:  # rounding
        states[filled] = old[n - 1]
        filled += 1
    log_weights[:] = 0.0
    return mean


@kernel()
def anneal(
    population: Population, m: int, path: Floats, adaptive: bool, kept: float, n_shown: int, random: Generator
) -> tuple[float, int]:
    """Lead a population to the model: log Z, NaN where time was up, and how many temperatures it took.

    The inverse temperatures are those of ``path``, or if ``adaptive`` chosen so that a part ``kept`` of the particles
    stays effective, and left there. What ``n_shown`` sweeps on the model itself show is added to the sums.
    """
    chain, states, log_weights = population.chain, population.states, population.log_weights
    layout = chain.layout
    first, last = layout.instance_hubs[m], layout.instance_hubs[m + 1]
    n = states.shape[0]
    even = np.zeros(n)
    log_weights[:] = 0.0
    for hub in range(first, last):
        start = layout.hub_offset[hub]
        size = layout.hub_offset[hub + 1] - start
        for x in range(size):
            chain.small[x] = exp(population.base[start + x])
        for i in range(n):
            states[i, hub - first] = draw(chain.small, 0, size, random)
    log_partition, beta, k = 0.0, 0.0, 0
    while beta < 1.0:
        if population.late[0] or k == path.size:
            return np.nan, k
        for i in range(n):
            chain.states[first:last] = states[i]
            population.gains[i] = _gain(population, m, chain.states)
        if adaptive:
            path[k] = _next_beta(population, beta, kept)
        for i in range(n):
            log_weights[i] += (path[k] - beta) * population.gains[i]
        beta = path[k]
        k += 1
        if _kept_share(even, log_weights, 1.0) < 0.5:
            log_partition += _resample(population, random)
        _temper(population, m, beta, population.floor)
        for i in range(n):
            chain.states[first:last] = states[i]
            _sweep(chain, m, -np.inf, False, random)
            states[i] = chain.states[first:last]
    _temper(population, m, 1.0, -np.inf)
    for i in range(n):
        chain.states[first:last] = states[i]
        if joint_score(layout, chain.scores, chain.states, m) == -np.inf:
            log_weights[i] = -np.inf
    log_partition += logsumexp(log_weights, 0, n) - np.log(n)
    if log_partition > -np.inf:
        _show(population, m, n_shown, random)
    return log_partition, k


@njit()
def _show(population: Population, m: int, n_sweeps: int, random: Generator) -> None:
    """Add what weighted sweeps on the model itself show to the sums, which have total weight 1."""
    chain, log_weights = population.chain, population.log_weights
    layout = chain.layout
    first, last = layout.instance_hubs[m], layout.instance_hubs[m + 1]
    total = logsumexp(log_weights, 0, log_weights.size)
    for i in range(log_weights.size):
        if log_weights[i] == -np.inf:
            continue
        weight = exp(log_weights[i] - total) / n_sweeps
        chain.states[first:last] = population.states[i]
        for _ in range(n_sweeps):
            _sweep(chain, m, -np.inf, True, random)
            for k in range(layout.hub_offset[first], layout.hub_offset[last]):
                population.mean[k] += weight * chain.marginals[k]
            for cluster in range(layout.instance_clusters[m], layout.instance_clusters[m + 1]):
                table = layout.table_offset[layout.cluster_table[cluster]]
                entry = entry_of(layout, chain.scores.strides, chain.states, cluster, -1, -1) - table
                population.clusters[population.cluster_start[cluster] + entry] += weight
