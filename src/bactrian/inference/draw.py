"""Draws from the joint distribution of a model.

Draws are exact where a junction tree fits: the root clique is drawn from its marginal, then every other clique given
its sepset with the parent (Dawid, Statistics and Computing 2, 1992). Elsewhere blocked Gibbs sampling.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from bactrian.arrays import Floats, Ints
from bactrian.engines.numba.orders import build_blocks
from bactrian.graphs.elimination import junction_tree
from bactrian.graphs.graph import ClusterGraph, Scope
from bactrian.graphs.loglinear import LogLinearModel
from bactrian.graphs.ragged import pointer
from bactrian.inference.factors import factor_scores
from bactrian.inference.gibbs import LARGEST_PAIR, Chains
from bactrian.inference.infer import infer
from bactrian.inference.problem import Evidence, Options, new_problem

#: Chains of Gibbs sampling, sweeps of each before its first draw, and sweeps for each draw.
_CHAINS, _BURN_IN, _THINNING = 16, 500, 10


def draw_exactly(
    model: LogLinearModel,
    weights: ArrayLike,
    n_samples: Any,
    given: Sequence[Evidence] = ({},),
    *,
    seed: int = 0,
    memory_budget: int = 4 * 2**30,
    n_threads: int | None = None,
    even: bool = False,
) -> Ints:
    """Independent draws, shape (n_samples, n_variables), down a junction tree; MemoryBudgetError where it is too big.

    With several pieces of evidence, ``n_samples`` draws, or its entry of them, for each, one after the other.

    With ``even`` they are no longer independent: rows that agree on a sepset get the states below it in proportion, as
    far as whole rows can (systematic sampling).

    >>> from bactrian.graphs.graph import ClusterGraph
    >>> model = LogLinearModel(ClusterGraph([2, 2], [(0, 1)]), [[[1.0], [0.0], [0.0], [1.0]]])
    >>> draws = draw_exactly(model, [100.0], 5)
    >>> (draws[:, 0] == draws[:, 1]).all()
    np.True_
    """
    graph = model.graph
    tree = junction_tree(graph.cardinalities, graph.clusters, memory_budget=memory_budget)
    with_cliques = LogLinearModel(
        ClusterGraph(graph.cardinalities, [*graph.clusters, *tree.cliques], []),
        [*model.features, *[None] * len(tree.cliques)],
        [*model.base_scores, *[None] * len(tree.cliques)],
    )
    options: dict[str, Any] = {"memory_budget": memory_budget, "n_threads": n_threads}
    results = infer([with_cliques] * len(given), weights, "exact", list(given), **options)
    random, bounds = np.random.default_rng(seed), pointer(np.broadcast_to(n_samples, len(given)))
    states = np.zeros((int(bounds[-1]), graph.n_variables), dtype=np.int64)
    for result, first, last in zip(results, bounds[:-1], bounds[1:], strict=True):
        for clique, sepset in tree.downwards:
            belief = result.clusters[len(graph.clusters) + clique]
            draw_clique(belief, tree.cliques[clique], sepset, states[first:last], random, even)
    return states


def draw_clique(
    belief: Floats,
    scope: Scope,
    sepset: Scope,
    states: Ints,
    random: np.random.Generator,
    even: bool,
) -> None:
    """Draw the variables of a clique that its sepset leaves open, into the columns of ``states``."""
    rest = tuple(v for v in scope if v not in sepset)
    table = belief.transpose([scope.index(v) for v in sepset + rest])
    shape = table.shape
    rows = np.cumsum(table.reshape(int(np.prod(shape[: len(sepset)], dtype=np.int64)), -1), axis=1)
    row = np.zeros(states.shape[0], dtype=np.int64)
    if sepset:
        row = np.ravel_multi_index(tuple(states[:, v] for v in sepset), shape[: len(sepset)])
    # Row r of the conditional distribution functions fills the interval from r to r + 1, so one search serves all.
    with np.errstate(divide="ignore", invalid="ignore"):
        bounds = np.where(rows[:, -1:] > 0.0, rows / rows[:, -1:], 1.0) + np.arange(rows.shape[0])[:, None]
    places = _evenly(row, random) if even else random.random(row.size)
    found = np.searchsorted(bounds.ravel(), row + places, side="right")
    found = np.clip(found - row * rows.shape[1], 0, rows.shape[1] - 1)
    for v, drawn in zip(rest, np.unravel_index(found, shape[len(sepset) :]), strict=True):
        states[:, v] = drawn


def _evenly(group: Ints, random: np.random.Generator) -> Floats:
    """A number from 0 to 1 for each row; those of a group are equally spaced, from a random start, in random order."""
    order = np.lexsort((random.random(group.size), group))
    size = np.bincount(group)
    first = pointer(size)
    rank = np.empty(group.size)
    rank[order] = np.arange(group.size) - first[group[order]]
    places: Floats = (rank + random.random(size.size)[group]) / size[group]
    return np.minimum(places, np.nextafter(1.0, 0.0))


def draw_by_gibbs(
    model: LogLinearModel,
    weights: ArrayLike,
    n_samples: int,
    given: Evidence | None = None,
    *,
    seed: int = 0,
    n_threads: int | None = None,
) -> Ints:
    """Draws, shape (n_samples, n_variables), from chains in turn: approximate, and dependent within a chain."""
    problem = new_problem(model, weights, given, Options(seed=seed), n_threads)
    scores = factor_scores(problem.data, problem.weights, problem.evidence, problem.workers)
    n_chains = max(1, min(_CHAINS, n_samples))
    chains = Chains(scores, build_blocks(scores.layout, scores.hubs, LARGEST_PAIR), n_chains, seed)
    chains.start(problem)
    rounds = -(-n_samples // n_chains)
    states = np.zeros((rounds, n_chains, model.graph.n_variables), dtype=np.int64)
    for r in range(rounds):
        chains.run(problem, _BURN_IN if r == 0 else 0, _THINNING, 1)
        states[r] = chains.states
    return states.reshape(-1, model.graph.n_variables)[:n_samples].copy()
