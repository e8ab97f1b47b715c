"""Odd but lawful input, what must not matter, the packed route against the one by hand, limits and histories.

Judges are the dense reference (piecewise, CAMEL(0), CCCP) and enumeration (exact likelihood).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from oracle import Array, DenseModel, Observed, cluster_marginals, maximum_likelihood, negative_log_likelihood
from random_models import Problem, random_features, sample
from reference import EdgeSpec, camel

import bactrian as bt

FRAMES: dict[str, dict[str, Any]] = {
    "piecewise": {"entropy": "clusters", "consistency": False},
    "camel0": {"entropy": "clusters", "consistency": True},
    "cccp": {"entropy": "bethe", "consistency": True},
}
METHODS = ("piecewise", "camel0", "cccp", "exact")
ALL_METHODS = (*METHODS, "cccp-empirical")


def library_model(model: DenseModel, edges: EdgeSpec) -> Any:
    graph = bt.ClusterGraph(model.cardinalities, model.clusters, edges)
    return bt.LogLinearModel(graph, model.features, model.base_scores)


def library_data(problem: Problem) -> Any:
    pairs = [
        (library_model(seen.model, e), seen.assignments) for seen, e in zip(problem.data, problem.edges, strict=True)
    ]
    if problem.generative:
        return bt.Samples(*pairs[0])
    return [bt.Instance(model, rows[0]) for model, rows in pairs]


def precise(data: Any, method: Any, **options: Any) -> Any:
    """Learn to nine digits; any warning is an error."""
    solution = bt.learn(data, method, **{"prior_variance": 5.0, "tolerance": 1e-9, "n_threads": 1, **options})
    assert solution.converged
    return solution


def dense_model(seed: int, cardinalities: list[int], clusters: list[Any], n_weights: int = 4) -> DenseModel:
    rng = np.random.default_rng(seed)
    return DenseModel(cardinalities, clusters, random_features(rng, cardinalities, clusters, n_weights, density=0.8))


def drawn(model: DenseModel, edges: EdgeSpec = "bethe", rows: int = 25, seed: int = 7) -> Problem:
    """Samples of a model at random weights."""
    rng = np.random.default_rng(seed)
    weights = rng.normal(size=model.n_weights)
    return Problem([Observed(model, sample(rng, model, weights, rows))], [edges], weights)


def check_tables(solution: Any) -> None:
    for tables in solution.beliefs:
        for table in tables:
            assert np.isfinite(table).all()
            assert (table >= 0.0).all()
            assert table.sum() == pytest.approx(1.0, abs=1e-9)


# --- graphs at the margin ---


@cache
def odd_problem(name: str) -> Problem:
    if name == "a cardinality of 1":
        return drawn(dense_model(0, [1, 2, 1, 3], [(0, 1), (1, 2), (1, 3), (3, 0), (2,)]))
    if name == "a cardinality of 1 in edges":
        return drawn(dense_model(1, [1, 2, 3], [(0, 1), (0, 2), (1, 2)]), [(0, 1, (0,)), (0, 2, (1,)), (1, 2, (2,))])
    if name == "a variable in no cluster":
        return drawn(dense_model(2, [2, 3, 4, 2], [(0, 1), (1, 3), (0, 3)]))
    if name == "a variable in no cluster, with edges":
        return drawn(dense_model(3, [2, 3, 4, 2], [(0, 1), (1, 3), (0, 3)]), [(0, 1, (1,)), (1, 2, (3,)), (0, 2, (0,))])
    if name == "disconnected":
        return drawn(dense_model(4, [2, 3, 2, 2, 3, 2], [(0, 1), (1, 2), (0, 2), (3, 4), (4,), (5,)]))
    if name == "no edges":
        return drawn(dense_model(5, [2, 3, 2], [(0, 1), (1, 2), (0, 2)]), [])
    if name == "a single variable":
        return drawn(dense_model(6, [3], [(0,)]))
    if name == "a single cluster":
        return drawn(dense_model(7, [3, 2], [(1, 0)]), [])
    if name == "duplicate clusters":
        return drawn(dense_model(8, [2, 3, 2], [(0, 1), (0, 1), (1, 0), (1, 2)]))
    if name == "duplicate edges":
        return drawn(dense_model(9, [2, 3], [(0, 1), (1, 0)]), [(0, 1, (0,)), (1, 0, (0,)), (0, 1, (1,))])
    if name == "several singletons for a variable":
        return drawn(dense_model(10, [2, 3, 2], [(0,), (0, 1), (0,), (1,), (1, 2), (0,), (1,)]))
    if name == "clusters of size 1 to 4":
        return drawn(dense_model(11, [2, 3, 1, 4], [(0,), (0, 1), (1, 2, 3), (3, 0, 2, 1), (3,)]))
    if name == "sepsets of several variables":
        edges = [(0, 1, (2, 1)), (1, 2, (1, 3)), (0, 2, (0,))]
        return drawn(dense_model(12, [2, 3, 2, 2], [(0, 1, 2), (1, 2, 3), (3, 0, 1)]), edges)
    assert name == "a sepset that is a whole cluster"
    return drawn(dense_model(13, [2, 3, 2], [(0, 1), (1, 0, 2), (2, 1)]), [(0, 1, (1, 0)), (1, 2, (2, 1))])


ODD = (
    "a cardinality of 1",
    "a cardinality of 1 in edges",
    "a variable in no cluster",
    "a variable in no cluster, with edges",
    "disconnected",
    "no edges",
    "a single variable",
    "a single cluster",
    "duplicate clusters",
    "duplicate edges",
    "several singletons for a variable",
    "clusters of size 1 to 4",
    "sepsets of several variables",
    "a sepset that is a whole cluster",
)


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("method", METHODS)
def test_odd_graphs(name: str, method: str) -> None:
    problem = odd_problem(name)
    solution = precise(library_data(problem), method)
    check_tables(solution)
    if method == "exact":
        expected = maximum_likelihood(problem.data, 5.0)
        assert solution.objective == pytest.approx(negative_log_likelihood(problem.data, expected, 5.0)[0], abs=1e-6)
    else:
        expected = camel(problem.data, problem.edges, prior_variance=5.0, **FRAMES[method]).weights
        assert solution.violation < 1e-6 or method == "piecewise"
    assert np.abs(expected).max() > 1e-2
    np.testing.assert_allclose(solution.weights, expected, atol=2e-5)


@pytest.mark.parametrize("method", ALL_METHODS)
def test_only_cardinalities_of_1(method: str) -> None:
    """Nothing can be learned, and nothing breaks."""
    model = dense_model(0, [1, 1], [(0, 1), (0,)])
    solution = precise(bt.Samples(library_model(model, "bethe"), [[0, 0]]), method)
    np.testing.assert_array_equal(solution.weights, 0.0)
    assert solution.objective == pytest.approx(0.0, abs=1e-12)
    assert [table.item() for table in solution.beliefs[0]] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("method", ALL_METHODS)
def test_a_model_without_weights(method: str) -> None:
    model = DenseModel([2, 3], [(0, 1)], [np.zeros((6, 0))])
    solution = precise(bt.Samples(library_model(model, "bethe"), [[0, 0], [1, 2]]), method)
    assert solution.weights.shape == (0,)
    assert solution.objective == pytest.approx(2 * np.log(6.0))


@pytest.mark.parametrize("method", METHODS)
def test_instances_of_every_kind_together(method: str) -> None:
    """Loops, a tree, no edges, one variable, and a variable alone: all in one data set."""
    names = ("disconnected", "no edges", "a single variable", "sepsets of several variables", "a single cluster")
    parts = [odd_problem(name) for name in (*names, "a variable in no cluster")]
    data = [Observed(part.data[0].model, part.data[0].assignments[:1]) for part in parts]
    problem = Problem(data, [part.edges[0] for part in parts], parts[0].true_weights)
    solution = precise(library_data(problem), method)
    check_tables(solution)
    if method == "exact":
        expected = maximum_likelihood(problem.data, 5.0)
    else:
        expected = camel(problem.data, problem.edges, prior_variance=5.0, **FRAMES[method]).weights
    np.testing.assert_allclose(solution.weights, expected, atol=2e-5)


def test_beliefs_are_a_sequence_of_sequences() -> None:
    problem = odd_problem("disconnected")
    solution = precise(library_data(problem), "cccp")
    [model] = [seen.model for seen in problem.data]
    assert len(solution.beliefs) == 1
    tables = solution.beliefs[0]
    appended = [(0,), (1,), (2,), (3,)]  # variables 4 and 5 have singletons of their own
    shapes = [tuple(model.cardinalities[v] for v in scope) for scope in [*model.clusters, *appended]]
    assert [table.shape for table in tables] == shapes
    np.testing.assert_array_equal(tables[-1], tables[len(tables) - 1])
    assert [t.shape for t in tables[1:3]] == shapes[1:3]
    assert solution.beliefs[-1][0].shape == shapes[0]
    assert [len(part) for part in solution.beliefs[:]] == [len(shapes)]
    with pytest.raises(IndexError):
        tables[len(shapes)]
    with pytest.raises(IndexError):
        solution.beliefs[1]
    np.testing.assert_allclose(tables[0].sum(axis=1), tables[6], atol=1e-6)


# --- weights of samples and instances ---


@pytest.mark.parametrize("method", METHODS)
def test_sample_weights_are_repetitions(method: str) -> None:
    [seen] = odd_problem("several singletons for a variable").data
    model = library_model(seen.model, "bethe")
    rows = seen.assignments[:6]
    counts = np.array([3, 0, 1, 2, 0, 5])
    weighted = precise(bt.Samples(model, rows, sample_weight=counts), method)
    repeated = precise(bt.Samples(model, np.repeat(rows, counts, axis=0)), method)
    np.testing.assert_allclose(weighted.weights, repeated.weights, atol=1e-8)
    assert weighted.objective == pytest.approx(repeated.objective, abs=1e-8)
    unweighted = precise(bt.Samples(model, rows), method)
    assert np.abs(weighted.weights - unweighted.weights).max() > 1e-2


def instances(weights: list[float] | None = None, order: list[int] | None = None) -> list[Any]:
    """Five instances with loops, cardinalities and features of their own."""
    result = []
    for m in range(5):
        model = dense_model(20 + m, [2, 3, 2 + m % 2], [(0, 1), (1, 2), (0, 2), (m % 3,)])
        y = sample(np.random.default_rng(m), model, np.ones(4), 1)[0]
        result.append(bt.Instance(library_model(model, "bethe"), y, 1.0 if weights is None else weights[m]))
    return result if order is None else [result[m] for m in order]


@pytest.mark.parametrize("method", METHODS)
def test_instance_weights_are_copies(method: str) -> None:
    weighted = precise(instances([2.0, 1.0, 3.0, 1.0, 0.0]), method)
    copies = precise(instances(order=[0, 0, 1, 2, 2, 2, 3]), method)
    np.testing.assert_allclose(weighted.weights, copies.weights, atol=1e-6)
    assert weighted.objective == pytest.approx(copies.objective, abs=1e-7)


@pytest.mark.parametrize("method", METHODS)
def test_an_instance_of_weight_zero_is_left_out_but_has_beliefs(method: str) -> None:
    weighted = precise(instances([1.0, 0.0, 1.0, 1.0, 0.0]), method)
    without = precise(instances(order=[0, 2, 3]), method)
    np.testing.assert_allclose(weighted.weights, without.weights, atol=1e-6)
    assert weighted.objective == pytest.approx(without.objective, abs=1e-7)
    assert len(weighted.beliefs) == 5
    check_tables(weighted)
    assert np.abs(weighted.weights - precise(instances(), method).weights).max() > 1e-3


@pytest.mark.parametrize("method", METHODS)
def test_weights_and_prior_scale_together(method: str) -> None:
    """Half the weight and twice the prior variance halve the objective, fractions and all."""
    whole = precise(instances([2.0, 1.0, 3.0, 1.0, 1.0]), method, prior_variance=4.0)
    half = precise(instances([1.0, 0.5, 1.5, 0.5, 0.5]), method, prior_variance=8.0)
    np.testing.assert_allclose(half.weights, whole.weights, atol=1e-6)
    assert 2 * half.objective == pytest.approx(whole.objective, abs=1e-7)


# --- what must not matter ---


@pytest.mark.parametrize("method", METHODS)
def test_order_of_instances_does_not_matter(method: str) -> None:
    straight = precise(instances(), method)
    order = [3, 0, 4, 1, 2]
    shuffled = precise(instances(order=order), method)
    np.testing.assert_allclose(shuffled.weights, straight.weights, atol=1e-6)
    for place, m in enumerate(order):
        for ours, theirs in zip(shuffled.beliefs[place], straight.beliefs[m], strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-6)


@pytest.mark.parametrize("method", ALL_METHODS)
@pytest.mark.parametrize("name", ["several singletons for a variable", "sepsets of several variables"])
def test_names_of_variables_and_order_of_clusters_do_not_matter(name: str, method: str) -> None:
    problem = odd_problem(name)
    [seen], [edges] = problem.data, problem.edges
    model = seen.model
    rng = np.random.default_rng(3)
    renamed = rng.permutation(len(model.cardinalities))
    # Singletons keep their order: the first of a variable is its hub.
    order = rng.permutation(len(model.clusters))
    singles = iter(sorted(i for i in order if len(model.clusters[i]) == 1))
    order = np.array([next(singles) if len(model.clusters[i]) == 1 else i for i in order])
    cardinalities = [0] * len(renamed)
    for v, new in enumerate(renamed):
        cardinalities[new] = model.cardinalities[v]
    assignments = np.empty_like(seen.assignments)
    assignments[:, renamed] = seen.assignments
    clusters, features = [], []
    for i in order:
        scope = model.clusters[i]
        axes = rng.permutation(len(scope))
        shape = tuple(model.cardinalities[v] for v in scope)
        table = model.features[i].reshape(*shape, -1).transpose(*axes, len(scope))
        clusters.append(tuple(int(renamed[scope[a]]) for a in axes))
        features.append(table.reshape(-1, model.n_weights))
    place = np.argsort(order)
    new_edges: EdgeSpec = edges
    if not isinstance(edges, str):
        new_edges = [
            (int(place[j]), int(place[i]), tuple(int(renamed[v]) for v in sepset[::-1])) for i, j, sepset in edges[::-1]
        ]
    other = Problem([Observed(DenseModel(cardinalities, clusters, features), assignments)], [new_edges], np.zeros(0))
    straight, changed = precise(library_data(problem), method), precise(library_data(other), method)
    np.testing.assert_allclose(changed.weights, straight.weights, atol=1e-6)
    assert changed.objective == pytest.approx(straight.objective, abs=1e-7)


def test_shared_tables_do_not_matter() -> None:
    """The same features as one object for all clusters or as copies, dense or sparse."""
    rng = np.random.default_rng(0)
    table = rng.normal(size=(9, 4))
    clusters = [(0, 1), (1, 2), (2, 3), (3, 0), (0, 2)]
    graph = bt.ClusterGraph([3] * 4, clusters)
    rows = rng.integers(0, 3, size=(20, 4))
    sparse = sp.coo_array(table)
    versions: list[Any] = [[table] * 5, [table.copy() for _ in clusters], np.stack([table] * 5), [sparse] * 5]
    solutions = [precise(bt.Samples(bt.LogLinearModel(graph, features), rows), "cccp") for features in versions]
    for solution in solutions[1:]:
        np.testing.assert_allclose(solution.weights, solutions[0].weights, atol=1e-7)


def test_a_cluster_without_features_may_be_none() -> None:
    rng = np.random.default_rng(1)
    table = rng.normal(size=(4, 2))
    graph = bt.ClusterGraph([2] * 3, [(0, 1), (1, 2), (0,)])
    rows = rng.integers(0, 2, size=(20, 3))
    none = precise(bt.Samples(bt.LogLinearModel(graph, [table, None, None]), rows), "camel0")
    zero = precise(bt.Samples(bt.LogLinearModel(graph, [table, 0 * table, np.zeros((2, 2))]), rows), "camel0")
    np.testing.assert_allclose(none.weights, zero.weights, atol=1e-8)


# --- hard constraints ---


def constrained(tree: bool) -> Problem:
    """Pairs and a singleton with forbidden states, each allowed by the data."""
    clusters = [(0, 1), (1, 2), (2, 3), (3,), (1,)] if tree else [(0, 1), (1, 2), (0, 2), (2, 3), (3,), (1,)]
    plain = dense_model(31, [2, 3, 2, 3], clusters)
    base: list[Array | None] = [None] * len(clusters)
    base[0] = np.array([0.0, -np.inf, 0.3, 0.0, 0.0, -np.inf])
    base[1] = np.array([0.5, 0.0, 0.0, -np.inf, 0.0, 0.0])
    base[-2] = np.array([0.0, 0.0, -np.inf])
    return drawn(DenseModel(plain.cardinalities, clusters, plain.features, base), rows=30)


@pytest.mark.parametrize("tree", [True, False])
@pytest.mark.parametrize("method", ALL_METHODS)
def test_forbidden_states_get_no_belief(method: str, tree: bool) -> None:
    problem = constrained(tree)
    solution = precise(library_data(problem), method)
    assert np.isfinite([solution.objective, solution.moment_gap, solution.violation]).all()
    check_tables(solution)
    model = problem.data[0].model
    for i in range(len(model.clusters)):
        table = solution.beliefs[0][i].ravel()
        np.testing.assert_array_equal(table[model.base(i) == -np.inf], 0.0)
    if method != "piecewise":
        assert solution.violation < 1e-6
        # State 1 of variable 1 is forbidden together with state 0 of variable 0, not altogether.
        assert solution.beliefs[0][len(model.clusters) - 1][1] > 0.0
    if method == "exact" or (tree and method.startswith("cccp")):
        expected = maximum_likelihood(problem.data, 5.0)
        np.testing.assert_allclose(solution.weights, expected, atol=2e-5)
        for ours, theirs in zip(solution.beliefs[0], cluster_marginals(model, expected), strict=False):
            np.testing.assert_allclose(ours.ravel(), theirs, atol=1e-5)


@pytest.mark.parametrize("method", ["piecewise", "camel0", "cccp"])
def test_forbidden_states_are_a_limit_of_bad_ones(method: str) -> None:
    problem = constrained(tree=False)
    [seen] = problem.data
    softened = [None if b is None else np.maximum(b, -30.0) for b in seen.model.base_scores or []]
    soft = DenseModel(seen.model.cardinalities, seen.model.clusters, seen.model.features, softened)
    expected = camel([Observed(soft, seen.assignments)], prior_variance=5.0, tolerance=1e-8, **FRAMES[method])
    solution = precise(library_data(problem), method)
    np.testing.assert_allclose(solution.weights, expected.weights, atol=1e-4)
    for i, table in enumerate(solution.beliefs[0][: len(seen.model.clusters)]):
        np.testing.assert_allclose(table.ravel(), expected.beliefs[0][i], atol=1e-4)


@pytest.mark.parametrize("where", [0, 1])
@pytest.mark.parametrize("entropy", ["clusters", "bethe"])
def test_the_joint_solver_respects_forbidden_states(entropy: str, where: int) -> None:
    """A state of variable 1 that one of its clusters forbids altogether, with no hub to say so to the others."""
    plain = dense_model(6, [2, 3, 2], [(0, 1), (1, 2), (0, 2)])
    base: list[Array | None] = [None] * 3
    base[where] = np.array([0.0, 0.0, -np.inf] * 2) if where == 0 else np.array([0.0, 0.0, 0.0, 0.0, -np.inf, -np.inf])
    problem = drawn(DenseModel(plain.cardinalities, plain.clusters, plain.features, base))
    options = {"prior_variance": 5.0, "n_threads": 1}
    expected = bt.learn(library_data(problem), bt.Camel(entropy=entropy), **options)
    solution = bt.learn(library_data(problem), bt.Camel(entropy=entropy, solver="joint"), **options)
    assert solution.converged
    np.testing.assert_allclose(solution.weights, expected.weights, atol=1e-3)
    for table in (solution.beliefs[0][0][:, 2], solution.beliefs[0][1][2]):
        np.testing.assert_allclose(table, 0.0, atol=1e-6)


@pytest.mark.parametrize("method", ALL_METHODS)
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_constraints_that_leave_a_single_state(method: str, share: float) -> None:
    """A chain of equalities and a first variable that is fixed: all beliefs are point masses."""
    equal = np.array([0.0, -np.inf, -np.inf, 0.0])
    model = dense_model(5, [2, 2, 2], [(0, 1), (1, 2), (0,)])
    model = DenseModel(model.cardinalities, model.clusters, model.features, [equal, equal, np.array([0.0, -np.inf])])
    learner: Any = method
    if method.startswith("cccp"):
        learner = bt.Camel(entropy="bethe", share=share, start="empirical" if method.endswith("empirical") else "zero")
    solution = precise(bt.Samples(library_model(model, "bethe"), [[0, 0, 0]] * 3), learner)
    check_tables(solution)
    if method != "piecewise":
        np.testing.assert_allclose(solution.weights, 0.0, atol=1e-6)
        assert solution.objective == pytest.approx(0.0, abs=1e-6)
        np.testing.assert_allclose(solution.beliefs[0][1], [[1.0, 0.0], [0.0, 0.0]], atol=1e-9)


def test_a_forbidden_observation_of_weight_zero_does_no_harm() -> None:
    model = bt.LogLinearModel(bt.ClusterGraph([2], [(0,)]), [[[1.0], [0.0]]], [[0.0, -np.inf]])
    solution = bt.learn(bt.Samples(model, [[0], [1]], sample_weight=[1.0, 0.0]), "cccp")
    np.testing.assert_allclose(solution.weights, 0.0)


# --- huge scores ---


@pytest.mark.parametrize("method", ALL_METHODS)
@pytest.mark.parametrize("where", ["features", "base_scores", "both"])
def test_huge_scores_stay_finite(where: str, method: str) -> None:
    """Scores of a thousand, far outside what exp can hold."""
    rng = np.random.default_rng(4)
    plain = dense_model(6, [2, 3, 2], [(0, 1), (1, 2), (0, 2), (1,)])
    features = [(1e3 if where != "base_scores" else 1.0) * table for table in plain.features]
    base = None if where == "features" else [1e3 * rng.normal(size=len(table)) for table in plain.features]
    model = DenseModel(plain.cardinalities, plain.clusters, features, base)
    rows = sample(rng, plain, np.ones(4), 20)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bt.ConvergenceWarning)  # features of a thousand are ill-conditioned
        solution = bt.learn(
            bt.Samples(library_model(model, "bethe"), rows), method, prior_variance=5.0, max_iterations=200
        )
    assert solution.converged or (where != "base_scores" and method not in ("exact", "piecewise"))
    assert np.isfinite(solution.weights).all()
    assert np.isfinite([solution.objective, solution.moment_gap, solution.violation]).all()
    check_tables(solution)
    data = [Observed(model, rows)]
    if method == "exact":
        value, gradient = negative_log_likelihood(data, solution.weights, 5.0)
        np.testing.assert_allclose(gradient, 0.0, atol=1e-3)
        assert solution.objective == pytest.approx(value, rel=1e-9)
    elif method == "piecewise":
        parts = []
        for scope, table, scores in zip(model.clusters, features, base or [None] * 4, strict=True):
            shape = [model.cardinalities[v] for v in scope]
            local = DenseModel(shape, [tuple(range(len(scope)))], [table], None if scores is None else [scores])
            parts.append(Observed(local, rows[:, scope]))
        np.testing.assert_allclose(negative_log_likelihood(parts, solution.weights, 5.0)[1], 0.0, atol=1e-3)
    else:
        assert solution.violation < 1e-4


def test_boundary_moments_without_a_prior_say_so() -> None:
    model = bt.LogLinearModel(bt.ClusterGraph([2, 2], [(0, 1)]), [np.eye(4)])
    for method in ALL_METHODS:
        with pytest.warns(bt.ConvergenceWarning, match="unbounded"):
            solution = bt.learn(bt.Samples(model, [[0, 0], [1, 1]]), method, prior_variance=None)
        assert solution.status is bt.Status.UNBOUNDED
        assert not solution.converged
        np.testing.assert_allclose(solution.beliefs[0][0], [[0.5, 0.0], [0.0, 0.5]], atol=1e-4)


# --- packed graphs against models by hand ---


TYINGS: dict[str, Callable[[int, int, int], int]] = {
    "full": lambda a, b, k: a * k + b,
    "symmetric": lambda a, b, k: [(i, j) for i in range(k) for j in range(i, k)].index((min(a, b), max(a, b))),
    "potts": lambda a, b, k: 0 if a == b else -1,
}
N_TIED = {"full": lambda k: k * k, "symmetric": lambda k: k * (k + 1) // 2, "potts": lambda _: 1}


class Packed:
    """Random labelled graphs, as arguments of GraphData and as instances by hand."""

    def __init__(
        self, tables: list[str], *, edge_inputs: int | None = None, n_labels: int = 3, seed: int = 0, tree: bool = False
    ) -> None:
        rng = np.random.default_rng(seed)
        self.tables, self.n_labels, self.n_edge_inputs = tables, n_labels, edge_inputs
        self.counts = [4, 1, 3, 5]  # the second graph has no edges
        self.first = np.concatenate([[0], np.cumsum(self.counts)])
        edges = []
        for start, count in zip(self.first, self.counts, strict=False):
            pairs = [(a, b) for a in range(count) for b in range(a)]
            keep = [p for p in pairs if p[0] == p[1] + 1 or (not tree and rng.random() < 0.5)]
            edges += [(start + a, start + b) if rng.random() < 0.5 else (start + b, start + a) for a, b in keep]
        self.edges = rng.permutation(np.array(edges))  # graphs mixed up
        n_nodes, n_edges = int(self.first[-1]), len(edges)
        self.inputs = rng.normal(size=(n_nodes, 2)) * (rng.random((n_nodes, 2)) < 0.8)
        self.types = rng.integers(0, len(tables), size=n_edges)
        self.edge_inputs = None
        if edge_inputs is not None:
            self.edge_inputs = rng.normal(size=(n_edges, edge_inputs)) * (rng.random((n_edges, edge_inputs)) < 0.7)
        self.labels = rng.integers(0, n_labels, size=n_nodes)
        self.weights = np.array([1.0, 2.0, 0.5, 1.0])
        sizes = [2 * n_labels] + [(edge_inputs or 1) * N_TIED[t](n_labels) for t in tables]
        self.bounds = np.concatenate([[0], np.cumsum(sizes)])
        self.n_weights = int(self.bounds[-1])

    def data(self, sparse: bool = False, **options: Any) -> Any:
        matrix = sp.csr_array if sparse else np.asarray
        given = {
            "n_labels": self.n_labels,
            "labels": self.labels,
            "tables": self.tables,
            "edge_types": self.types,
            "edge_inputs": None if self.edge_inputs is None else matrix(self.edge_inputs),
            "node_counts": self.counts,
            "weights": self.weights,
        }
        return bt.GraphData(matrix(self.inputs), self.edges, **{**given, **options})

    def edges_of(self, m: int) -> np.ndarray:
        """Numbers of the edges of graph m, in the order given."""
        inside = (self.edges >= self.first[m]) & (self.edges < self.first[m + 1])
        return np.flatnonzero(inside.all(axis=1))

    def node_table(self, node: int) -> np.ndarray:
        table = np.zeros((self.n_labels, self.n_weights))
        for label in range(self.n_labels):
            for i in range(2):
                table[label, i * self.n_labels + label] = self.inputs[node, i]
        return table

    def edge_table(self, edge: int) -> np.ndarray:
        k, kind = self.n_labels, int(self.types[edge])
        rows = np.ones(1) if self.edge_inputs is None else self.edge_inputs[edge]
        tied = N_TIED[self.tables[kind]](k)
        table = np.zeros((k * k, self.n_weights))
        for a in range(k):
            for b in range(k):
                column = TYINGS[self.tables[kind]](a, b, k)
                for i, value in enumerate(rows):
                    if column >= 0:
                        table[a * k + b, self.bounds[1 + kind] + i * tied + column] = value
        return table

    def by_hand(self, absorbed: bool = False) -> list[Any]:
        """The same as instances; with ``absorbed`` node tables are divided among the incident edges."""
        result = []
        for m, count in enumerate(self.counts):
            start, chosen = self.first[m], self.edges_of(m)
            degree = np.bincount(self.edges[chosen].ravel() - start, minlength=count)
            clusters: list[Any] = [(v,) for v in range(count) if not absorbed or degree[v] == 0]
            tables = [self.node_table(start + v) for (v,) in clusters]
            for e in chosen:
                a, b = (self.edges[e] - start).tolist()
                table = self.edge_table(e)
                if absorbed:
                    k = self.n_labels
                    table = table + np.repeat(self.node_table(start + a), k, axis=0) / degree[a]
                    table = table + np.tile(self.node_table(start + b), (k, 1)) / degree[b]
                clusters.append((a, b))
                tables.append(table)
            model = bt.LogLinearModel(bt.ClusterGraph([self.n_labels] * count, clusters), tables)
            result.append(bt.Instance(model, self.labels[start : start + count], self.weights[m]))
        return result


def compare(packed: Packed, data: Any, method: Any, absorbed: bool = False) -> None:
    ours, theirs = precise(data, method), precise(packed.by_hand(absorbed), method)
    assert np.abs(theirs.weights).max() > 0.1
    np.testing.assert_allclose(ours.weights, theirs.weights, atol=1e-6)
    assert ours.objective == pytest.approx(theirs.objective, abs=1e-6)
    assert len(ours.beliefs) == len(packed.counts)
    for m, count in enumerate(packed.counts):
        shapes = [(packed.n_labels,)] * count + [(packed.n_labels,) * 2] * len(packed.edges_of(m))
        assert [table.shape for table in ours.beliefs[m]] == shapes
        for size in (2,) if absorbed else (1, 2):
            sides = [[t for t in solution.beliefs[m] if t.ndim == size] for solution in (ours, theirs)]
            for mine, by_hand in zip(*sides, strict=True):
                np.testing.assert_allclose(mine, by_hand, atol=1e-6)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("tying", ["full", "symmetric", "potts"])
def test_packed_graphs_are_models_by_hand(tying: str, method: str) -> None:
    packed = Packed([tying])
    compare(packed, packed.data(), method)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("sparse", [False, True])
def test_packed_edge_types_and_inputs(sparse: bool, method: str) -> None:
    packed = Packed(["symmetric", "full", "potts"], edge_inputs=2)
    compare(packed, packed.data(sparse), method)


@pytest.mark.parametrize("method", METHODS)
def test_packed_edge_types(method: str) -> None:
    packed = Packed(["potts", "full"], n_labels=2)
    compare(packed, packed.data(sparse=True), method)


@pytest.mark.parametrize("method", METHODS)
def test_packed_trees(method: str) -> None:
    packed = Packed(["full"], tree=True)
    compare(packed, packed.data(), method)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("edge_inputs", [None, 1])
def test_packed_node_factors_absorbed_by_edges(edge_inputs: int | None, method: str) -> None:
    packed = Packed(["symmetric"], edge_inputs=edge_inputs)
    compare(packed, packed.data(node_factors="edges"), method, absorbed=True)


def test_place_of_node_factors_matters_to_clusters_only_entropies_alone() -> None:
    packed = Packed(["symmetric"])
    for method, same in (("cccp", True), ("exact", True), ("camel0", False), ("piecewise", False)):
        clusters = precise(packed.data(node_factors="clusters"), method).weights
        edges = precise(packed.data(node_factors="edges"), method).weights
        difference = np.abs(clusters - edges).max()
        assert difference < 2e-5 if same else difference > 1e-2


@pytest.mark.parametrize("node_factors", ["clusters", "edges"])
@pytest.mark.parametrize("method", ALL_METHODS)
def test_packed_graphs_without_any_edges(method: str, node_factors: str) -> None:
    packed = Packed(["symmetric"])
    data = bt.GraphData(packed.inputs, [], n_labels=3, labels=packed.labels, node_factors=node_factors)
    solution = precise(data, method)
    seen = [
        Observed(DenseModel([3], [(0,)], [packed.node_table(v)[:, :6]]), packed.labels[[v]][:, None])
        for v in range(len(packed.labels))
    ]
    expected = maximum_likelihood(seen, 5.0)
    node, _ = data.split_weights(solution.weights)
    np.testing.assert_allclose(node.ravel(), expected, atol=1e-6)


@pytest.mark.parametrize("method", METHODS)
def test_packed_data_with_one_label(method: str) -> None:
    data = bt.GraphData(np.ones((3, 2)), [(0, 1), (1, 2)], n_labels=1, labels=[0, 0, 0], tables="full")
    solution = precise(data, method)
    np.testing.assert_allclose(solution.weights, 0.0, atol=1e-12)


def test_packed_empty_graphs_and_double_edges() -> None:
    """A graph without nodes, and two edges between the same nodes."""
    rng = np.random.default_rng(0)
    inputs, labels = rng.normal(size=(3, 2)), [0, 1, 1]
    edges = [(0, 1), (1, 0), (1, 2)]
    data = bt.GraphData(inputs, edges, n_labels=2, labels=labels, tables="full", node_counts=[0, 3, 0])
    assert data.n_graphs == 3
    solution = precise(data, "exact")
    assert [len(part) for part in solution.beliefs] == [0, 6, 0]
    tables = [np.kron(inputs[v], np.eye(2)) for v in range(3)]
    features = [np.hstack([t, np.zeros((2, 4))]) for t in tables]
    features += [np.hstack([np.zeros((4, 4)), np.eye(4)])] * 3
    model = DenseModel([2, 2, 2], [(0,), (1,), (2,), *edges], features)
    expected = maximum_likelihood([Observed(model, np.array([labels]))], 5.0)
    np.testing.assert_allclose(solution.weights, expected, atol=1e-6)


@pytest.mark.parametrize(
    ("method", "inference"),
    [("exact", "exact"), ("cccp", "bp"), ("piecewise", "trw"), ("lbp", "double-loop"), ("exact", "gibbs")],
)
def test_beliefs_of_graphs_without_nodes(method: str, inference: str) -> None:
    """They are arrays of no rows, so that those of all graphs can be put together."""
    labels, counts = [0, 1, 1, 0], [0, 3, 0, 1, 0]
    data = bt.GraphData(np.eye(4), [(0, 1), (1, 2)], n_labels=2, labels=labels, tables="full", node_counts=counts)
    solution = bt.learn(data, method, n_threads=1)
    learned = [beliefs.hubs() for beliefs in solution.beliefs]
    found = [result.variables.stacked() for result in bt.infer(data, solution.weights, inference)]
    for beliefs in (learned, found):
        assert [tables.shape for tables in beliefs] == [(n, 2) for n in counts]
        assert (np.concatenate(beliefs).argmax(axis=1) == labels).all()


@pytest.mark.parametrize("tying", ["full", "symmetric", "potts"])
@pytest.mark.parametrize("edge_inputs", [None, 2])
def test_split_weights(tying: str, edge_inputs: int | None) -> None:
    packed = Packed([tying, "full"], edge_inputs=edge_inputs)
    data = packed.data()
    weights = np.random.default_rng(0).normal(size=packed.n_weights)
    assert data.n_weights == packed.n_weights
    node, tables = data.split_weights(weights)
    np.testing.assert_allclose(packed.inputs @ node, [packed.node_table(v) @ weights for v in range(data.n_nodes)])
    for e, kind in enumerate(packed.types):
        table = tables[kind]
        if packed.edge_inputs is not None:
            table = np.einsum("i,iab->ab", packed.edge_inputs[e], table)
        np.testing.assert_allclose(table.ravel(), packed.edge_table(e) @ weights, atol=1e-12)


# --- limits, callbacks, warm starts and history ---


@cache
def loopy() -> Any:
    problem = drawn(dense_model(40, [2, 3, 2, 3], [(0, 1), (1, 2), (2, 3), (3, 0), (0, 2), (1,)], 6), rows=40)
    return library_data(problem)


def stopped_short(method: Any, **options: Any) -> Any:
    """Learn, expecting exactly one warning, or none where the callback asked for the stop."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        solution = bt.learn(loopy(), method, n_threads=1, **options)
    asked = solution.status is bt.Status.STOPPED
    assert [w.category for w in caught] == ([] if asked else [bt.ConvergenceWarning])
    for warning in caught:
        assert str(solution.status) in str(warning.message)
        assert solution.method in str(warning.message)
        assert warning.filename == __file__
    assert not solution.converged
    check_tables(solution)
    return solution


def total_iterations(solution: Any) -> int:
    return sum(record.iterations for record in solution.history)


LEARNERS: list[Any] = [*ALL_METHODS, "lbp", "trw", "convex", bt.Camel(solver="joint")]
IDS = [*ALL_METHODS, "lbp", "trw", "convex", "joint"]


@pytest.mark.parametrize("learner", LEARNERS, ids=IDS)
@pytest.mark.parametrize("limit", [0, 1, 4])
def test_iteration_limit(limit: int, learner: Any) -> None:
    seen: list[Any] = []
    solution = stopped_short(learner, max_iterations=limit, callback=seen.append)
    assert solution.status is bt.Status.ITERATION_LIMIT
    assert total_iterations(solution) == limit
    assert [progress.iteration for progress in seen] == list(range(1, limit + 1))
    expected = seen[-1].weights if seen else np.zeros(6)
    np.testing.assert_array_equal(solution.weights, expected)


@pytest.mark.parametrize("method", ["camel0", "cccp"])
def test_no_tolerance_among_instances_of_which_some_are_exact_at_once(method: str) -> None:
    """One instance stands still to the last digit while messages on loops go on for ever; nothing is divided by 0."""
    rng = np.random.default_rng(0)
    data = []
    for clusters in [[(0, 1), (1, 2), (0, 2)]] * 3 + [[(0, 1)]]:
        graph = bt.ClusterGraph([2] * len({v for scope in clusters for v in scope}), clusters)
        model = bt.LogLinearModel(graph, [rng.normal(size=(4, 3)) for _ in clusters])
        data.append(bt.Instance(model, rng.integers(2, size=graph.n_variables)))
    with pytest.warns(bt.ConvergenceWarning):
        solution = bt.learn(data, method, tolerance=0.0, max_iterations=50, n_threads=1)
    np.testing.assert_allclose(solution.weights, bt.learn(data, method, tolerance=1e-9).weights, atol=1e-3)


@pytest.mark.parametrize("method", ["piecewise", "cccp", "exact"])
def test_more_iterations_give_a_better_result(method: str) -> None:
    """The best so far: every further iteration of one convex problem lowers the objective."""
    values = [stopped_short(method, max_iterations=limit).objective for limit in range(6)]
    assert (np.diff(values) < 0).all()


@pytest.mark.parametrize("method", ALL_METHODS)
def test_a_limit_that_is_just_enough_is_no_limit(method: str) -> None:
    free = bt.learn(loopy(), method, n_threads=1)
    limits = {"max_iterations": total_iterations(free), "max_relinearisations": len(free.history) - 1}
    bound = bt.learn(loopy(), method, n_threads=1, **limits)
    assert bound.converged
    np.testing.assert_array_equal(bound.weights, free.weights)


@pytest.mark.parametrize("method", ["cccp", "cccp-empirical"])
@pytest.mark.parametrize("limit", [0, 1, 2])
def test_relinearisation_limit(method: str, limit: int) -> None:
    solution = stopped_short(method, max_relinearisations=limit)
    assert solution.status is bt.Status.ITERATION_LIMIT
    assert len(solution.history) == limit + 1
    assert np.isfinite([record.linearisation_change for record in solution.history[:-1]]).all()
    assert np.isnan(solution.history[-1].linearisation_change)


@pytest.mark.parametrize("method", ["piecewise", "camel0", "exact"])
def test_relinearisation_limit_means_nothing_where_there_is_none(method: str) -> None:
    assert bt.learn(loopy(), method, max_relinearisations=0, n_threads=1).converged


@pytest.mark.parametrize("learner", LEARNERS, ids=IDS)
@pytest.mark.parametrize("limit", [0.0, 1e-9])
def test_time_limit(limit: float, learner: Any) -> None:
    solution = stopped_short(learner, max_seconds=limit)
    assert solution.status is bt.Status.TIME_LIMIT
    assert total_iterations(solution) <= 1


@pytest.mark.parametrize("learner", LEARNERS, ids=IDS)
@pytest.mark.parametrize("after", [1, 3, 6])
def test_callback_that_stops(after: int, learner: Any) -> None:
    calls: list[Any] = []

    def callback(progress: Any) -> bool:
        calls.append(progress)
        return len(calls) >= after

    solution = stopped_short(learner, callback=callback)
    assert solution.status is bt.Status.STOPPED
    assert len(calls) == after
    np.testing.assert_array_equal(solution.weights, calls[-1].weights)


@pytest.mark.parametrize("answer", [np.True_, np.float64(1.0) > 0.5])
def test_callback_may_stop_with_numpys_true(answer: Any) -> None:
    assert stopped_short("cccp", callback=lambda _: answer).status is bt.Status.STOPPED


@pytest.mark.parametrize("answer", [None, False, np.False_, 0, 1, "yes", np.ones(3)])
def test_other_answers_of_a_callback_mean_go_on(answer: Any) -> None:
    assert bt.learn(loopy(), "piecewise", callback=lambda _: answer).converged


def test_an_error_in_a_callback_is_raised() -> None:
    def callback(_progress: Any) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        bt.learn(loopy(), "cccp", callback=callback)


def test_callbacks_see_copies() -> None:
    """What a callback does to its weights must not disturb learning."""

    def callback(progress: Any) -> None:
        progress.weights[:] = np.nan

    disturbed = bt.learn(loopy(), "camel0", callback=callback, n_threads=1)
    np.testing.assert_array_equal(disturbed.weights, bt.learn(loopy(), "camel0", n_threads=1).weights)


@pytest.mark.parametrize("learner", LEARNERS, ids=IDS)
def test_progress_is_sane(learner: Any) -> None:
    seen: list[Any] = []
    solution = bt.learn(loopy(), learner, callback=seen.append, n_threads=1)
    assert [progress.iteration for progress in seen] == list(range(1, len(seen) + 1))
    for name in ("outer", "seconds"):
        assert (np.diff([getattr(progress, name) for progress in seen]) >= 0).all()
    for progress in seen:
        assert np.isfinite([progress.objective, progress.moment_gap, progress.violation]).all()
        assert progress.moment_gap >= 0
        assert progress.violation >= 0
        assert progress.weights.shape == (6,)
        assert 0 <= progress.outer < len(solution.history)
    assert len(seen) == total_iterations(solution)


@pytest.mark.parametrize("learner", LEARNERS, ids=IDS)
def test_history_is_sane(learner: Any) -> None:
    solution = bt.learn(loopy(), learner, n_threads=1)
    history = solution.history
    assert [record.outer for record in history] == list(range(len(history)))
    assert (np.diff([record.seconds for record in history]) >= 0).all()
    assert history[-1].seconds <= solution.seconds
    for record in history:
        assert np.isfinite([record.objective, record.moment_gap, record.violation]).all()
        assert record.iterations >= 0
        assert record.evaluations >= max(1, record.iterations)
        assert record.sweeps >= 0
    assert solution.evaluations == sum(record.evaluations for record in history)
    assert solution.objective == pytest.approx(history[-1].objective, rel=1e-6)
    relinearises = solution.method.startswith("cccp")
    assert (len(history) > 2) == relinearises
    changes = np.array([(r.belief_change, r.weight_change, r.linearisation_change) for r in history])
    if relinearises:
        assert np.isfinite(changes[1:, :2]).all()
        assert np.isfinite(changes[:-1, 2]).all()
        assert changes[-1, 0] <= 1e-6
    else:
        assert np.isnan(changes).all()


@pytest.mark.parametrize("method", ["piecewise", "exact"])
def test_warm_start_from_a_solution_is_done_at_once(method: str) -> None:
    cold = bt.learn(loopy(), method, n_threads=1)
    warm = bt.learn(loopy(), method, n_threads=1, start=cold)
    assert warm.converged
    assert total_iterations(warm) == 0
    assert len(warm.history) == 1
    np.testing.assert_array_equal(warm.weights, cold.weights)


@pytest.mark.parametrize("method", ["camel0", "cccp", "cccp-empirical"])
@pytest.mark.parametrize("as_solution", [True, False])
def test_warm_start_ends_at_the_same_weights(method: str, as_solution: bool) -> None:
    """Multipliers and linearisation still have to be found, so only CAMEL(0) is sure to save work."""
    cold = bt.learn(loopy(), method, n_threads=1)
    warm = bt.learn(loopy(), method, n_threads=1, start=cold if as_solution else list(cold.weights))
    assert warm.converged
    assert warm.evaluations < cold.evaluations or method != "camel0"
    np.testing.assert_allclose(warm.weights, cold.weights, atol=2e-4)


def test_start_is_where_learning_starts() -> None:
    start = np.arange(6.0)
    solution = stopped_short("camel0", max_iterations=0, start=start)
    np.testing.assert_array_equal(solution.weights, start)
    assert solution.weights is not start


def test_start_is_not_written_to() -> None:
    start = np.zeros(6)
    bt.learn(loopy(), "cccp", start=start)
    np.testing.assert_array_equal(start, 0.0)


# --- class weights ---


def three_graphs(**options: Any) -> bt.GraphData:
    rng = np.random.default_rng(5)
    labels = np.array([0, 0, 0, 1, 1, 1, 0, 1, 0])
    edges = [[0, 1], [1, 2], [3, 4], [4, 5], [6, 7], [7, 8]]
    return bt.GraphData(rng.normal(size=(9, 2)), edges, n_labels=2, labels=labels, node_counts=[3, 3, 3], **options)


def test_class_weights_weight_graphs_by_their_labels() -> None:
    np.testing.assert_allclose(three_graphs(class_weight=[1.0, 3.0]).weights, [1.0, 3.0, 5.0 / 3.0])
    np.testing.assert_allclose(three_graphs(class_weight=[1.0, 3.0], weights=[2.0, 1.0, 0.0]).weights, [2.0, 3.0, 0.0])
    balanced = three_graphs(class_weight="balanced").weights
    np.testing.assert_allclose(balanced, [9 / 10, 9 / 8, (2 * 9 / 10 + 9 / 8) / 3])
    weighted = bt.learn(three_graphs(class_weight="balanced"), "cccp")
    by_hand = bt.learn(three_graphs(weights=balanced), "cccp")
    np.testing.assert_allclose(weighted.weights, by_hand.weights, atol=1e-8)
    assert np.abs(weighted.weights - bt.learn(three_graphs(), "cccp").weights).max() > 1e-4


@pytest.mark.parametrize("wrong", ["even", [1.0], [1.0, -1.0], [np.nan, 1.0]])
def test_bad_class_weights(wrong: Any) -> None:
    with pytest.raises(ValueError, match="class_weight"):
        three_graphs(class_weight=wrong)
