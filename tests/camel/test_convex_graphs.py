"""Convex entropies on explicit graphs whose sepsets coincide, are nested, or are whole clusters, against SciPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from oracle import Array, DenseModel, Edge, Scope, log_partition, n_states, sub_index
from scipy.linalg import qr
from scipy.optimize import minimize

import bactrian as bt
from bactrian.camel.camel import Camel

GRAPHS: dict[str, tuple[list[Scope], list[Edge]]] = {
    "whole clusters in a ring": ([(0, 1), (0, 1, 2), (0, 1)], [(0, 1, (0, 1)), (0, 2, (0, 1)), (1, 2, (0, 1))]),
    "a sepset twice": ([(0, 1, 2), (0, 1, 3)], [(0, 1, (0, 1)), (0, 1, (0, 1))]),
    "nested sepsets": ([(0, 1, 2), (0, 1, 3)], [(0, 1, (0, 1)), (0, 1, (0,))]),
    "a variable in every sepset": ([(0, 1, 2), (0, 2, 3), (0, 3, 1)], [(0, 1, (0, 2)), (1, 2, (0, 3)), (2, 0, (0, 1))]),
    "singletons around a ring": (
        [(0,), (0, 1), (0, 1), (0,)],
        [(0, 1, (0,)), (1, 2, (0, 1)), (2, 3, (0,)), (3, 0, (0,))],
    ),
    "a tree": ([(0, 1), (0, 1, 2), (0, 1), (2, 3)], [(0, 1, (0, 1)), (1, 2, (0, 1)), (1, 3, (2,))]),
}


def best_beliefs(dense: DenseModel, edges: list[Edge], numbers: bt.CountingNumbers) -> tuple[float, list[Array]]:
    """The largest <theta, b> + sum_a kappa_a H_a - sum_e lambda_e H_e over beliefs that agree on sepsets."""
    scores = np.concatenate([dense.base(i) for i in range(len(dense.clusters))])
    starts = np.cumsum([0, *(dense.base(i).size for i in range(len(dense.clusters)))])
    projections, rows = [], [np.zeros(0)] * 0
    for i in range(len(dense.clusters)):
        row = np.zeros(scores.size)
        row[starts[i] : starts[i + 1]] = 1.0
        rows.append(row)
    totals = len(rows)
    for i, j, sepset in edges:
        both = []
        for a in (i, j):
            matrix = np.zeros((n_states(dense.cardinalities, sepset), scores.size))
            matrix[sub_index(dense.cardinalities, dense.clusters[a], sepset), np.arange(starts[a], starts[a + 1])] = 1.0
            both.append(matrix)
        projections.append(both[0])
        rows += list((both[0] - both[1])[:-1])
    kappa = np.repeat(np.broadcast_to(numbers.clusters, len(dense.clusters)), np.diff(starts))
    matrix, right = np.array(rows), np.r_[np.ones(totals), np.zeros(len(rows) - totals)]
    order = qr(matrix.T, mode="r", pivoting=True)[1][: np.linalg.matrix_rank(matrix)]  # SLSQP needs independent rows
    matrix, right = matrix[order], right[order]

    def negative(b: Array) -> tuple[float, Array]:
        b = np.maximum(b, 1e-14)
        value, gradient = b @ scores - (kappa * b) @ np.log(b), scores - kappa * (np.log(b) + 1.0)
        for number, onto in zip(numbers.sepsets, projections, strict=True):
            mu = onto @ b
            value, gradient = value + number * (mu @ np.log(mu)), gradient + number * onto.T @ (np.log(mu) + 1.0)
        return -float(value), -gradient

    start = np.repeat(1.0 / np.diff(starts), np.diff(starts))
    found = minimize(
        negative, start, jac=True, method="SLSQP", bounds=[(1e-12, 1.0)] * scores.size,
        constraints={"type": "eq", "fun": lambda b: matrix @ b - right, "jac": lambda _: matrix},
        options={"maxiter": 2000, "ftol": 1e-14},
    )  # fmt: skip
    return -float(found.fun), [found.x[starts[i] : starts[i + 1]] for i in range(len(dense.clusters))]


def drawn(name: str, seed: int, scale: float) -> tuple[DenseModel, list[Edge], bt.LogLinearModel]:
    clusters, edges = GRAPHS[name]
    rng = np.random.default_rng(seed)
    cardinalities = [2, 3, 2, 2][: 1 + max(map(max, clusters))]
    sizes = [n_states(cardinalities, scope) for scope in clusters]
    features = [rng.normal(size=(size, 2)) for size in sizes]
    base: list[Any] = [scale * rng.normal(size=size) for size in sizes]
    dense = DenseModel(cardinalities, clusters, features, base)
    return dense, edges, bt.LogLinearModel(bt.ClusterGraph(cardinalities, clusters, edges), features, base)


@pytest.mark.parametrize("scale", [0.5, 3.0])
@pytest.mark.parametrize("name", GRAPHS)
def test_inference_reaches_the_optimum(name: str, scale: float) -> None:
    for seed in range(4):
        dense, edges, model = drawn(name, seed, scale)
        result = bt.infer(model, [0.0, 0.0], "convex")
        assert result.converged
        value, beliefs = best_beliefs(dense, edges, result.counting_numbers)
        assert result.log_partition == pytest.approx(value, abs=1e-5)
        for found, expected in zip(result.clusters, beliefs, strict=True):
            np.testing.assert_allclose(np.ravel(found), expected, atol=2e-3)
        if name == "a tree":
            assert result.log_partition == pytest.approx(log_partition(dense, np.zeros(2)), abs=1e-9)


@pytest.mark.parametrize("learner", ["convex", Camel(entropy="convex"), Camel(fold=True)], ids=str)
@pytest.mark.parametrize("name", GRAPHS)
def test_learning_matches_moments(name: str, learner: Any) -> None:
    for seed in range(3):
        dense, edges, model = drawn(name, seed, 2.0)
        rng = np.random.default_rng(seed)
        rows = np.stack([rng.integers(0, k, 12) for k in dense.cardinalities], axis=1)
        solution = bt.learn(bt.Samples(model, rows), learner, prior_variance=2.0)
        assert solution.converged
        if learner == Camel(fold=True):
            continue
        result = bt.infer(model, solution.weights, "convex")
        shifted = [dense.base(i) + dense.features[i] @ solution.weights for i in range(len(dense.clusters))]
        at_weights = DenseModel(dense.cardinalities, dense.clusters, dense.features, list(shifted))
        _, beliefs = best_beliefs(at_weights, edges, result.counting_numbers)
        gap = solution.weights / 2.0
        for i, scope in enumerate(dense.clusters):
            index = np.ravel_multi_index(tuple(rows[:, list(scope)].T), [dense.cardinalities[v] for v in scope])
            gap = gap + 12 * beliefs[i] @ dense.features[i] - dense.features[i][index].sum(axis=0)
        np.testing.assert_allclose(gap, 0.0, atol=0.05)
