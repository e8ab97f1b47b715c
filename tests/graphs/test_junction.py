"""How the cliques of a junction tree take in the tables of factors, against sums over all joint states."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import scipy.sparse as sp

import bactrian as bt
from bactrian.graphs.junction import TreePlanner
from bactrian.graphs.packing import pack_models

CARDINALITIES = [2, 3, 1, 2, 4]
CLUSTERS = [(1, 0), (3, 1, 2), (0, 3), (4, 0), (2,), (4, 3)]


def loop() -> bt.LogLinearModel:
    graph = bt.ClusterGraph(CARDINALITIES, CLUSTERS)
    return bt.LogLinearModel(graph, [np.zeros((graph.size(scope), 1)) for scope in CLUSTERS])


def entry(scope: tuple[int, ...], joint: dict[int, int]) -> tuple[int, ...]:
    return tuple(joint[v] for v in scope)


@pytest.mark.parametrize("observed", [{}, {0: 1}, {3: 1, 4: 2}, {0: 0, 1: 2, 3: 1}])
def test_cliques_add_up_to_the_joint_score(observed: dict[int, int]) -> None:
    """At every joint state that agrees with the observations, cliques and what is left alone sum to all factors."""
    random = np.random.default_rng(0)
    factors = TreePlanner(pack_models([loop()])).tree(0, observed.keys())
    tables = [random.normal(size=[CARDINALITIES[v] for v in scope]) for scope in factors.scopes]
    cliques = [np.zeros(factors.shape(q)) for q in range(len(factors.tree.cliques))]
    alone = 0.0
    for factor, (table, q) in enumerate(zip(tables, factors.tree.assignment, strict=True)):
        part = factors.spread(factor, table.ravel(), observed)
        if q < 0:
            alone += float(part)
        else:
            cliques[q] += part
    for states in product(*[[observed[v]] if v in observed else range(k) for v, k in enumerate(CARDINALITIES)]):
        joint = dict(enumerate(states))
        expected = sum(table[entry(scope, joint)] for scope, table in zip(factors.scopes, tables, strict=True))
        found = alone
        for clique, table in zip(factors.tree.cliques, cliques, strict=True):
            found += table[tuple(joint[v] for v in clique if CARDINALITIES[v] > 1)]
        assert found == pytest.approx(expected, abs=1e-12)


def test_marginals_of_cliques() -> None:
    random = np.random.default_rng(1)
    factors = TreePlanner(pack_models([loop()])).tree(0)
    for factor, scope in enumerate(factors.scopes):
        clique = factors.tree.cliques[factors.tree.assignment[factor]]
        table = random.random([CARDINALITIES[v] for v in clique])
        expected = np.zeros([CARDINALITIES[v] for v in scope])
        for states in product(*[range(CARDINALITIES[v]) for v in clique]):
            expected[entry(scope, dict(zip(clique, states, strict=True)))] += table[states]
        np.testing.assert_allclose(factors.marginal(factor, table.ravel()), expected.ravel(), atol=1e-14)


def test_scopes_with_more_variables_than_an_array_has_axes() -> None:
    """Variables with one state cost nothing, so a cluster may have any number of them."""
    single, random = 70, np.random.default_rng(2)
    cardinalities = [1] * single + [2, 3, 2]
    a, b, c = range(single, single + 3)
    scores = [random.normal(size=6), random.normal(size=6), random.normal(size=4)]
    wide = [tuple(range(single + 2)), (b, c), (a, c)]
    narrow = [(0, 1), (1, 2), (0, 2)]
    features = [table[:, None] for table in scores]
    models = [
        bt.LogLinearModel(bt.ClusterGraph(sizes, clusters), features)
        for sizes, clusters in ((cardinalities, wide), (cardinalities[single:], narrow))
    ]
    for method in ("exact", "rbp", "mean-field"):
        found, expected = (bt.infer(model, [1.0], method).variables[-2] for model in models)
        np.testing.assert_allclose(found, expected, atol=1e-7)
    for method in ("exact", "dual"):
        found, expected = (bt.decode(model, [1.0], method)[-3:] for model in models)
        assert found.tolist() == expected.tolist()
    found, expected = (
        bt.learn([bt.Instance(model, states)], "exact").weights
        for model, states in zip(models, ([0] * single + [1, 2, 0], [1, 2, 0]), strict=True)
    )
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_learning_on_a_large_clique() -> None:
    """Too large for a map of its entries to those of its tables; the gradient is that of enumeration."""
    rng = np.random.default_rng(0)
    n, k = 9, 4
    pairs = [(a, b) for a in range(n) for b in range(a)]
    matrices = [sp.csr_array(np.eye(k * k, k * k * len(pairs), i * k * k)) for i in range(len(pairs))]
    base = [None] * (len(pairs) - 1) + [np.where(np.arange(k * k) == 5, -np.inf, rng.normal(size=k * k))]
    model = bt.LogLinearModel(bt.ClusterGraph([k] * n, pairs), matrices, base)
    X = rng.integers(0, k, (40, n))
    X[:, 8] = X[:, 7]  # never the state that is forbidden
    X[X[:, 8] == 1, 7] = 0
    solution = bt.learn(bt.Samples(model, X), "exact", prior_variance=1.0, tolerance=1e-7)
    assert solution.converged

    scores = np.zeros((k,) * n)
    for i, (a, b) in enumerate(pairs):
        table = solution.weights[i * k * k : (i + 1) * k * k] + (0.0 if base[i] is None else base[i])
        shape = [k if v in (a, b) else 1 for v in range(n)]
        scores += table.reshape(k, k).T.reshape(shape)  # b comes before a
    log_z = np.log(np.exp(scores - scores.max()).sum()) + scores.max()
    joint, gradient = np.exp(scores - log_z), solution.weights.copy()
    for i, (a, b) in enumerate(pairs):
        expected = joint.sum(axis=tuple(v for v in range(n) if v not in (a, b))).T
        observed = np.zeros((k, k))
        np.add.at(observed, (X[:, a], X[:, b]), 1.0)
        gradient[i * k * k : (i + 1) * k * k] += (len(X) * expected - observed).ravel()
    np.testing.assert_allclose(gradient, 0.0, atol=1e-4)
    expected = len(X) * log_z - scores[tuple(X.T)].sum() + 0.5 * solution.weights @ solution.weights
    np.testing.assert_allclose(solution.objective, expected, rtol=1e-10)
