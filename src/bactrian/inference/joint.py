"""Joint marginals of any set of variables, and scores of joint states."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from bactrian.arrays import Floats, Ints
from bactrian.graphs.elimination import MemoryBudgetError
from bactrian.graphs.graph import ClusterGraph, Scope
from bactrian.graphs.loglinear import LogLinearModel
from bactrian.inference.infer import infer

#: Calls of inference, one for each state of the variables taken as evidence, that one marginal may cost; and how many
#: are made at once.
_MOST_CALLS, _AT_ONCE = 100_000, 256

#: Results of inference for each of some evidence.
Infer = Callable[[list[Any]], list[Any]]


def joint_scores(model: LogLinearModel, weights: Floats, states: Ints) -> Floats:
    """Sum of the scores of all clusters for each row of states."""
    graph = model.graph
    total = np.zeros(states.shape[0])
    for scope, features, base in zip(graph.clusters, model.features, model.base_scores, strict=True):
        index = np.ravel_multi_index(tuple(states[:, scope].T), graph.shape(scope))
        if features is not None:
            total += (features @ weights)[index]
        if base is not None:
            total += base[index]
    return total


def joint_marginal(
    model: LogLinearModel,
    weights: Floats,
    scope: Scope,
    infer_given: Infer,
    memory_budget: int,
    n_threads: int | None = None,
    evidence: Mapping[int, int] | None = None,
) -> Floats:
    """The marginal of ``scope`` given evidence: exact with a table over it in the junction tree, if that fits memory.

    Else by conditioning: p(a, b, c) = p(a) p(b | a) p(c | a, b), each factor a
    marginal of a single variable by ``infer_given`` evidence.
    """
    graph = model.graph
    with_table = LogLinearModel(
        ClusterGraph(graph.cardinalities, [*graph.clusters, scope]),
        [*model.features, None],
        [*model.base_scores, None],
    )
    try:
        result = infer(with_table, weights, "exact", evidence, memory_budget=memory_budget, n_threads=n_threads)
    except MemoryBudgetError:
        return _by_conditioning(graph.shape(scope), scope, infer_given, evidence)
    return np.array(result.clusters[len(graph.clusters)])


def _by_conditioning(
    shape: Sequence[int], scope: Scope, infer_given: Infer, evidence: Mapping[int, int] | None
) -> Floats:
    calls = sum(int(np.prod(shape[:depth])) for depth in range(len(shape)))
    if calls > _MOST_CALLS:
        raise ValueError(
            f"names: {calls} runs of inference would be needed for a table of shape {tuple(shape)}, at most "
            f"{_MOST_CALLS} are made; ask for fewer variables, or raise memory_budget"
        )
    joint: Floats = np.ones(())
    for depth, variable in enumerate(scope):
        possible = [states for states in product(*map(range, shape[:depth])) if joint[states] > 0.0]
        grown = np.zeros((*shape[: depth + 1],))
        for first in range(0, len(possible), _AT_ONCE):
            batch = possible[first : first + _AT_ONCE]
            results = infer_given([{**(evidence or {}), **dict(zip(scope, states, strict=False))} for states in batch])
            for states, result in zip(batch, results, strict=True):
                grown[states] = joint[states] * result.variables[variable]
        joint = grown
    return joint
