"""How the cliques of a junction tree take in the tables of factors, against sums over all joint states."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

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
