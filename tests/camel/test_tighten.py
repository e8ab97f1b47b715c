"""Triplets added to Bethe graphs: exact where they triangulate, closer to enumeration elsewhere."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import oracle
import pytest
from oracle import Array, DenseModel, Observed, Scope

import bactrian as bt
from bactrian.graphs.packing import pack_models
from bactrian.graphs.triplets import tighten
from bactrian.solvers.anderson import Anderson

SQUARE: list[Scope] = [(0, 1), (2, 1), (2, 3), (0, 3)]
#: Graphs of treewidth two: triplets on a basis of cycles are a junction tree.
NARROW: dict[str, tuple[int, list[Scope]]] = {
    "triangle": (3, [(0, 1), (2, 1), (0, 2)]),
    "square": (4, SQUARE),
    "chord": (4, [*SQUARE, (2, 0)]),
    "pentagon": (5, [(0, 1), (1, 2), (3, 2), (3, 4), (0, 4)]),
    "two triangles": (5, [(0, 1), (1, 2), (0, 2), (2, 3), (3, 4), (2, 4)]),
    "tail": (5, [(0, 1), (1, 2), (0, 2), (2, 3), (4, 3)]),
    "doubled": (3, [(0, 1), (1, 0), (1, 2), (0, 2)]),
    "ternary": (4, [(0, 1, 2), (2, 3), (3, 0)]),
}


def dense(
    rng: np.random.Generator, n: int, clusters: list[Scope], strength: float, cardinalities: list[int] | None = None
) -> DenseModel:
    """A model with singletons and random fixed scores; its one weight does nothing."""
    cards = cardinalities or [2] * n
    scopes: list[Scope] = [*((v,) for v in range(n)), *clusters]
    sizes = [oracle.n_states(cards, scope) for scope in scopes]
    scores: list[Array | None] = [
        (0.2 if len(scope) == 1 else strength) * rng.normal(size=size)
        for scope, size in zip(scopes, sizes, strict=True)
    ]
    return DenseModel(cards, scopes, [np.zeros((size, 1)) for size in sizes], scores)


def library(model: DenseModel) -> bt.LogLinearModel:
    graph = bt.ClusterGraph(model.cardinalities, model.clusters)
    return bt.LogLinearModel(graph, model.features, base_scores=model.base_scores)


def error(result: bt.InferenceResult, model: DenseModel, evidence: dict[int, int] | None = None) -> float:
    """Largest error of a variable's or cluster's marginal."""
    exact = oracle.variable_marginals(model, np.zeros(1), evidence) + oracle.cluster_marginals(
        model, np.zeros(1), evidence
    )
    found = [*result.variables, *(result.clusters[i].ravel() for i in range(len(model.clusters)))]
    return max(float(np.abs(a - b).max()) for a, b in zip(found, exact, strict=True))


@pytest.mark.parametrize("name", NARROW)
@pytest.mark.parametrize("method", ["rbp", "double-loop"])
def test_exact_where_triplets_triangulate(name: str, method: str) -> None:
    n, clusters = NARROW[name]
    rng = np.random.default_rng(3)
    cards = [int(k) for k in rng.integers(2, 4, size=n)]
    model = dense(rng, n, clusters, 1.0, cards)
    loose = bt.infer(library(model), [0.0], "double-loop", tolerance=1e-9)
    tight = bt.infer(library(model), [0.0], method, tighten=10, tolerance=1e-9)
    assert tight.converged
    assert tight.triplets
    assert error(loose, model) > 1e-3
    assert error(tight, model) < 1e-6
    assert tight.log_partition == pytest.approx(oracle.log_partition(model, np.zeros(1)), abs=1e-6)
    assert tight.violation < 1e-6


def test_exact_with_evidence_and_forbidden_states() -> None:
    rng = np.random.default_rng(5)
    n, clusters = NARROW["chord"]
    model = dense(rng, n, clusters, 1.0, [2, 3, 2, 3])
    scores = model.base(n)
    scores[1] = -np.inf
    assert model.base_scores is not None
    model.base_scores[n] = scores
    results = bt.infer([library(model)] * 2, [0.0], "double-loop", [None, {3: 1}], tighten=4, tolerance=1e-9)
    assert error(results[0], model) < 1e-6
    assert error(results[1], model, {3: 1}) < 1e-6
    assert results[1].variables[3].tolist() == [0.0, 1.0, 0.0]
    assert results[1].log_partition == pytest.approx(oracle.log_partition(model, np.zeros(1), {3: 1}), abs=1e-6)


@pytest.mark.parametrize("n", [4, 5])
def test_marginal_error_is_halved_on_frustrated_graphs(n: int) -> None:
    """Complete graphs, strong couplings: nothing is exact, but the mean error falls far below half."""
    before, after = [], []
    for seed in range(8):
        model = dense(np.random.default_rng(seed), n, list(combinations(range(n), 2)), 1.5)
        exact = oracle.variable_marginals(model, np.zeros(1))
        for errors, k in ((before, 0), (after, 20)):
            found = bt.infer(library(model), [0.0], "double-loop", tighten=k, tolerance=1e-6).variables
            errors.append(np.mean([np.abs(a - b).mean() for a, b in zip(found, exact, strict=True)]))
    assert np.mean(after) < 0.25 * np.mean(before)


def test_at_most_so_many_and_only_where_they_help() -> None:
    rng = np.random.default_rng(0)
    complete = library(dense(rng, 5, list(combinations(range(5), 2)), 1.0))
    chain = library(dense(rng, 3, [(0, 1), (1, 2)], 1.0))
    square = library(dense(rng, 4, SQUARE, 1.0))
    counts = [len(result.triplets) for result in bt.infer([complete, chain, square], [0.0], "rbp", tighten=3)]
    assert counts == [3, 0, 2]
    # One triplet cannot triangulate a square; ten triangles of K5 hold six independent ones.
    assert len(bt.infer(square, [0.0], "rbp", tighten=1).triplets) == 0
    assert len(bt.infer(complete, [0.0], "double-loop", tighten=99).triplets) == 6


def test_counting_numbers_are_kikuchis() -> None:
    """The numbers of all regions that contain a pair inside a triplet, or a variable, add up to one."""
    clusters: list[Scope] = [*combinations(range(4), 2), (3, 4)]
    triplets = ((0, 1, 2), (0, 1, 3), (0, 2, 3))
    model = library(dense(np.random.default_rng(0), 5, clusters, 1.0))
    data = tighten(pack_models([model]), [triplets])
    pairs: list[Scope] = sorted({pair for triplet in triplets for pair in combinations(triplet, 2)})
    hubs: list[Scope] = [*((v,) for v in range(5)), *pairs]
    regions = [*(((3, 4), 1.0),), *((t, 1.0) for t in triplets), *zip(hubs, data.total.tolist(), strict=True)]
    for hub in hubs:
        assert sum(number for scope, number in regions if set(hub) <= set(scope)) == 1.0
    assert sum(number for _, number in regions) == 1.0


def test_triplets_do_not_depend_on_company_or_threads() -> None:
    rng = np.random.default_rng(1)
    models = [library(dense(rng, 4, list(combinations(range(4), 2)), 1.0)) for _ in range(3)]
    alone = bt.infer(models[1], [0.0], "double-loop", tighten=4, tolerance=1e-9)
    together = bt.infer(models, [0.0], "double-loop", tighten=4, tolerance=1e-9, n_threads=2)[1]
    assert alone.triplets == together.triplets
    for a, b in zip(alone.variables, together.variables, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-7)


def test_result_can_start_another_call() -> None:
    model = library(dense(np.random.default_rng(2), 4, SQUARE, 1.0))
    first = bt.infer(model, [0.0], "rbp", tighten=2)
    again = bt.infer(model, [0.0], "rbp", tighten=2, start=first)
    assert again.log_partition == pytest.approx(first.log_partition, abs=1e-6)


def learning_problem(seed: int, n: int, clusters: list[Scope], rows: int) -> tuple[bt.Samples, Observed]:
    """Samples of a model with a weight for agreement in each pair and one for each variable."""
    rng = np.random.default_rng(seed)
    scopes: list[Scope] = [*((v,) for v in range(n)), *clusters]
    features = []
    for i, scope in enumerate(scopes):
        column = np.zeros((2 ** len(scope), len(scopes)))
        column[:, i] = [1.0, -1.0] if len(scope) == 1 else [1.0, -1.0, -1.0, 1.0]
        features.append(column)
    model = DenseModel([2] * n, scopes, features)
    true = np.where([len(s) == 1 for s in scopes], 0.1, 1.0) * rng.normal(size=len(scopes))
    X = oracle.joint_states([2] * n)[rng.choice(2**n, size=rows, p=oracle.joint_distribution(model, true))]
    graph = bt.ClusterGraph([2] * n, scopes)
    return bt.Samples(bt.LogLinearModel(graph, features), X), Observed(model, X)


@pytest.mark.parametrize("solver", ["profiled", "joint"])
@pytest.mark.parametrize("start", ["zero", "empirical"])
def test_learning_is_exact_where_triplets_triangulate(solver: str, start: str) -> None:
    data, observed = learning_problem(0, 4, [*SQUARE, (0, 2)], 200)
    exact = oracle.maximum_likelihood([observed], 10.0)
    learner = bt.Camel(tighten=4, solver=solver, start=start)
    solution = bt.learn(data, learner, prior_variance=10.0, tolerance=1e-8)
    loose = bt.learn(data, "cccp", prior_variance=10.0, tolerance=1e-8)
    assert solution.converged
    assert "tightened" in solution.method
    np.testing.assert_allclose(solution.weights, exact, atol=1e-4)
    assert np.abs(loose.weights - exact).max() > 1e-2
    for table, marginal in zip(solution.beliefs[0], oracle.cluster_marginals(observed.model, exact), strict=True):
        np.testing.assert_allclose(table.ravel(), marginal, atol=1e-5)


def test_learning_conditional_instances() -> None:
    data, observed = learning_problem(1, 4, SQUARE, 6)
    instances = [bt.Instance(data.model, row) for row in data.X]
    one = bt.learn(instances, bt.Camel(tighten=2), prior_variance=2.0, tolerance=1e-8)
    np.testing.assert_allclose(one.weights, oracle.maximum_likelihood([observed], 2.0), atol=1e-4)


def test_structured_data() -> None:
    """GraphData: two graphs, shared edge tables; learned weights are those of exact likelihood, beliefs too."""
    rng = np.random.default_rng(4)
    edges = [[0, 1], [1, 2], [2, 0], [3, 4], [5, 4], [5, 6], [6, 3]]
    labels = rng.integers(3, size=7)
    data = bt.GraphData(rng.normal(size=(7, 2)), edges, n_labels=3, labels=labels, node_counts=[3, 4], tables="full")
    exact = bt.learn(data, "exact", prior_variance=1.0, tolerance=1e-8)
    tight = bt.learn(data, bt.Camel(tighten=2), prior_variance=1.0, tolerance=1e-8)
    np.testing.assert_allclose(tight.weights, exact.weights, atol=1e-4)
    strong = 3.0 * rng.normal(size=exact.weights.size)
    for found, true in zip(
        bt.infer(data, strong, "double-loop", tighten=2, tolerance=1e-9), bt.infer(data, strong, "exact"), strict=True
    ):
        assert found.triplets
        assert found.log_partition == pytest.approx(true.log_partition, abs=1e-5)
        for a, b in zip([*found.variables, *found.clusters], [*true.variables, *true.clusters], strict=True):
            np.testing.assert_allclose(a, b, atol=1e-5)


def test_a_grid_gets_about_two_triplets_a_face() -> None:
    """Nine faces; a cycle around two of them may take the place of one, at four triplets for two."""
    graph = bt.grid_graph(4, 4, 2)
    rng = np.random.default_rng(0)
    base = [rng.normal(size=2 ** len(scope)) for scope in graph.clusters]
    model = bt.LogLinearModel(graph, [np.zeros((b.size, 1)) for b in base], base_scores=base)
    assert 18 <= len(bt.infer(model, [0.0], "double-loop", tighten=99, tolerance=1e-6).triplets) <= 22


def test_bad_arguments() -> None:
    model = library(dense(np.random.default_rng(0), 3, [(0, 1), (1, 2), (0, 2)], 1.0))
    with pytest.raises(ValueError, match="tighten must be at least 0"):
        bt.infer(model, [0.0], tighten=-1)
    with pytest.raises(TypeError, match="tighten must be an integer"):
        bt.infer(model, [0.0], tighten=True)
    with pytest.raises(ValueError, match="tighten is an option of 'bp', 'rbp', 'double-loop', not of 'trw'"):
        bt.infer(model, [0.0], "trw", tighten=2)
    with pytest.raises(ValueError, match="entropy='bethe'"):
        bt.Camel(entropy="clusters", tighten=2)
    with pytest.raises(ValueError, match="tighten must be at least 0"):
        bt.Camel(tighten=-2)
    with pytest.raises(TypeError, match="tighten must be an integer"):
        bt.Camel(tighten=1.5)  # type: ignore[arg-type]
    graph = bt.ClusterGraph([2, 2], [(0, 1), (1,)], [(0, 1, (1,))])
    explicit = bt.LogLinearModel(graph, [np.zeros((4, 1)), np.zeros((2, 1))])
    with pytest.raises(ValueError, match="explicit edges"):
        bt.infer(explicit, [0.0], "rbp", tighten=1)
    with pytest.raises(ValueError, match="explicit edges"):
        bt.learn(bt.Samples(explicit, [[0, 1]]), bt.Camel(tighten=1))


def test_tight_solves_are_not_extrapolated_with_triplets_either(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    whole = Anderson.next
    monkeypatch.setattr(Anderson, "next", lambda self, *arrays: (calls.append(1), whole(self, *arrays))[1])
    rng = np.random.default_rng(0)
    graph = bt.ClusterGraph([2] * 4, [(a, b) for a in range(4) for b in range(a + 1, 4)])
    model = bt.LogLinearModel(graph, [np.eye(4) for _ in range(6)])
    data = bt.Samples(model, rng.integers(0, 2, (50, 4)))
    bt.learn(data, bt.Camel(tighten=2, tight=True), prior_variance=1.0)
    assert not calls
    bt.learn(data, bt.Camel(tighten=2), prior_variance=1.0)
    assert calls
