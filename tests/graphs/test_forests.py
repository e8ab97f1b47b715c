"""Appearance probabilities: spanning trees counted one by one, hulls of acyclic subsets, and other numberings."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

import bactrian as bt
from bactrian.engines.numba.orders import core_numbers
from bactrian.graphs.forests import MOST_NODES, appearances
from bactrian.graphs.graph import grid_edges

Clusters = Sequence[tuple[int, ...]]
PLENTY, NONE = np.array([False]), np.array([True])  # of time


def found(clusters: Clusters, n_nodes: int, late: Any = PLENTY) -> np.ndarray:
    item = np.repeat(np.arange(len(clusters)), [len(cluster) for cluster in clusters])
    node = np.array([v for cluster in clusters for v in cluster], dtype=np.int64)
    return appearances(item, node, len(clusters), n_nodes, late)


def joined(clusters: Clusters) -> nx.Graph:
    graph = nx.Graph()
    graph.add_nodes_from(("item", a) for a in range(len(clusters)))
    graph.add_edges_from((("item", a), v) for a, cluster in enumerate(clusters) for v in cluster)
    return graph


def is_acyclic(clusters: Clusters) -> bool:
    graph = joined(clusters)
    return graph.number_of_edges() == graph.number_of_nodes() - nx.number_connected_components(graph)


def in_hull(rho: np.ndarray, clusters: Clusters) -> bool:
    """Whether some distribution over acyclic subsets has these marginals, or larger ones: a linear program."""
    subsets = [
        [a in chosen for a in range(len(clusters))]
        for size in range(len(clusters) + 1)
        for chosen in map(set, itertools.combinations(range(len(clusters)), size))
        if is_acyclic([clusters[a] for a in chosen])
    ]
    rows = np.array(subsets, dtype=float).T
    ones = np.ones((1, rows.shape[1]))
    return bool(linprog(np.zeros(rows.shape[1]), -rows, 1e-9 - rho, ones, [1.0], method="highs").success)


@st.composite
def hypergraphs(draw: Any, largest: int = 4) -> tuple[Clusters, int]:
    n = draw(st.integers(2, 7))
    cluster = st.lists(st.integers(0, n - 1), min_size=1, max_size=min(largest, n), unique=True).map(tuple)
    return draw(st.lists(cluster, min_size=1, max_size=9)), n


@given(hypergraphs(), st.booleans())
@settings(max_examples=150)
def test_probabilities_are_those_of_a_distribution_over_acyclic_subsets(drawn: Any, late: bool) -> None:
    clusters, n = drawn
    rho = found(clusters, n, NONE if late else PLENTY)
    assert ((rho > 0.0) & (rho <= 1.0)).all()
    assert in_hull(rho, clusters)
    if is_acyclic(clusters):
        assert (rho == 1.0).all()


@given(hypergraphs(largest=2))
def test_pairs_are_in_as_many_spanning_forests_as_are_counted(drawn: Any) -> None:
    clusters, n = drawn
    graph = joined(clusters)
    size = len(clusters) - (graph.number_of_edges() - graph.number_of_nodes() + nx.number_connected_components(graph))
    forests = [
        chosen
        for chosen in itertools.combinations(range(len(clusters)), size)
        if is_acyclic([clusters[a] for a in chosen])
    ]
    counts = np.bincount(np.ravel(forests).astype(int), minlength=len(clusters))
    np.testing.assert_allclose(found(clusters, n), counts / len(forests), atol=1e-12)


def test_cycles_and_chains_between_branches() -> None:
    cycle = [(v, (v + 1) % 100) for v in range(100)]
    np.testing.assert_allclose(found(cycle, 100), 0.99)
    with_tail = [*cycle, (0, 100), (100, 101)]
    np.testing.assert_allclose(found(with_tail, 102), [0.99] * 100 + [1.0] * 2)
    # Three chains of 2, 3 and 5 pairs between two nodes: a spanning tree leaves out a pair each of two of them.
    theta = [(0, 2), (2, 1), (0, 3), (3, 4), (4, 1), (0, 5), (5, 6), (6, 7), (7, 8), (8, 1)]
    trees = 2 * 3 + 3 * 5 + 2 * 5
    expected = np.repeat([1 - (3 + 5) / trees, 1 - (2 + 5) / trees, 1 - (2 + 3) / trees], [2, 3, 5])
    np.testing.assert_allclose(found(theta, 9), expected)


def renumbered(clusters: Clusters, n: int, seed: int) -> tuple[Clusters, np.ndarray]:
    """The same graph with nodes, clusters and the nodes within each in another order, and where clusters went."""
    rng = np.random.default_rng(seed)
    name, order = rng.permutation(n), rng.permutation(len(clusters))
    return [tuple(rng.permutation(name[list(clusters[a])]).tolist()) for a in order], order


def large_graphs() -> dict[str, tuple[Clusters, int]]:
    rng = np.random.default_rng(0)
    side = 45
    grid = [tuple(edge) for edge in grid_edges(side, side).tolist()]
    sparse = {tuple(sorted(pair)) for pair in rng.integers(0, 6000, (9000, 2)).tolist() if pair[0] != pair[1]}
    few = [(v, v + 1) for v in range(9999)] + [(v, v + 4000) for v in range(0, 6000, 2)]
    return {"grid": (grid, side * side), "sparse": (sorted(sparse), 6000), "chain with skips": (few, 10_000)}


@pytest.mark.parametrize("name", ["grid", "sparse", "chain with skips"])
def test_large_graphs_in_another_order(name: str) -> None:
    clusters, n = large_graphs()[name]
    graph = nx.Graph(clusters)
    kernel = [v for v, degree in nx.k_core(graph, 2).degree() if degree > 2]
    assert len(kernel) > MOST_NODES
    rho = found(clusters, n)
    others, order = renumbered(clusters, n, 1)
    np.testing.assert_allclose(found(others, n), rho[order], rtol=1e-12)
    assert rho.sum() > 0.75 * (n - nx.number_connected_components(graph))
    # Edmonds: so much at most within any set of nodes. The densest sets are cores, balls and what is near the centre.
    core = nx.core_number(graph)
    sets = [{v for v in core if core[v] >= k} for k in range(1, 1 + max(core.values()))]
    sets += [set(nx.ego_graph(graph, v, radius=r)) for v in list(graph)[:: n // 40] for r in (1, 2, 5)]
    for chosen in sets:
        within = [a for a, (u, v) in enumerate(clusters) if u in chosen and v in chosen]
        assert rho[within].sum() <= len(chosen) - 1 + 1e-9


@pytest.mark.parametrize("seed", range(5))
def test_core_numbers_are_those_of_networkx(seed: int) -> None:
    graph = nx.gnm_random_graph(40, 20 * (1 + seed), seed=seed)
    neighbours = [sorted(graph[v]) for v in range(40)]
    pointer = np.concatenate([[0], np.cumsum([len(row) for row in neighbours])])
    flat = np.array([v for row in neighbours for v in row], dtype=np.int64)
    assert core_numbers(pointer, flat).tolist() == [nx.core_number(graph)[v] for v in range(40)]


# --- inference and learning in another order ---


def tables(clusters: Clusters, n: int, seed: int) -> dict[tuple[int, ...], np.ndarray]:
    rng = np.random.default_rng(seed)
    return {cluster: rng.normal(size=(2,) * len(cluster)) for cluster in [*((v,) for v in range(n)), *clusters]}


def model_of(scores: dict[tuple[int, ...], np.ndarray], n: int) -> bt.LogLinearModel:
    graph = bt.ClusterGraph([2] * n, list(scores))
    return bt.LogLinearModel(graph, [np.zeros((table.size, 0)) for table in scores.values()], list(scores.values()))


@pytest.mark.parametrize("kind", ["pairs", "triples"])
@pytest.mark.parametrize("seed", range(3))
def test_marginals_do_not_depend_on_the_order(kind: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = 10
    chosen = itertools.combinations(range(n), 2 if kind == "pairs" else 3)
    clusters = [c for c in chosen if rng.random() < (0.4 if kind == "pairs" else 0.12)]
    scores = tables(clusters, n, seed)
    first = bt.infer(model_of(scores, n), [], "trw", tolerance=1e-11, max_iterations=20_000)
    name, order = rng.permutation(n), rng.permutation(len(clusters))
    shuffled = {(int(name[v]),): scores[v,] for v in rng.permutation(n).tolist()}
    for a in order:
        turned = rng.permutation(len(clusters[a])).tolist()
        shuffled[tuple(int(name[clusters[a][i]]) for i in turned)] = scores[clusters[a]].transpose(turned)
    second = bt.infer(model_of(shuffled, n), [], "trw", tolerance=1e-11, max_iterations=20_000)
    assert first.converged
    assert second.converged
    assert first.log_partition == pytest.approx(second.log_partition, abs=1e-7)
    np.testing.assert_allclose(np.stack(second.variables)[name], np.stack(first.variables), atol=1e-8)


def test_sepsets_of_an_explicit_graph_are_in_spanning_trees_of_clusters() -> None:
    """A cycle of four clusters, of which every tree leaves out one sepset."""
    clusters = [(0, 1, 2), (2, 3, 4), (4, 5, 6), (6, 7, 0)]
    edges = [(0, 1, (2,)), (1, 2, (4,)), (2, 3, (6,)), (3, 0, (0,))]
    graph = bt.ClusterGraph([2] * 8, clusters, edges=edges)
    rng = np.random.default_rng(0)
    model = bt.LogLinearModel(graph, [np.zeros((8, 0))] * 4, base_scores=[rng.normal(size=8) for _ in range(4)])
    numbers = bt.infer(model, [], "trw").counting_numbers
    np.testing.assert_allclose(numbers.sepsets, 0.75)
    np.testing.assert_allclose(numbers.clusters, 1.0)


def test_learning_does_not_depend_on_the_order() -> None:
    rng = np.random.default_rng(0)
    n = 12
    edges = [pair for pair in itertools.combinations(range(n), 2) if rng.random() < 0.4]
    inputs, labels = rng.normal(size=(n, 2)), rng.integers(0, 3, n)
    options = {"n_labels": 3, "tables": "potts"}
    first = bt.learn(bt.GraphData(inputs, edges, labels=labels, **options), "trw", tolerance=1e-9)
    name = rng.permutation(n)
    place = np.argsort(name)
    others = [(name[u], name[v]) for u, v in rng.permutation(edges)]
    second = bt.learn(bt.GraphData(inputs[place], others, labels=labels[place], **options), "trw", tolerance=1e-9)
    np.testing.assert_allclose(second.weights, first.weights, atol=1e-6)
