"""Pseudo-likelihood and piecewise pseudo-likelihood against brute force, scikit-learn and each other.

The reference writes every conditional out by enumeration (:mod:`oracle`) as one term of a multinomial logistic
regression and minimises their sum with SciPy; it shares no code with the library.
"""

from __future__ import annotations

import itertools
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import (
    Array,
    DenseModel,
    Ints,
    Observed,
    cluster_scores,
    cluster_state_index,
    joint_features,
    joint_scores,
    joint_states,
    n_states,
)
from random_models import (
    BETHE_SHAPES,
    EXPLICIT_SHAPES,
    Problem,
    conditional_problem,
    full_tables,
    generative_problem,
    ising_problem,
    loop_clusters,
    problems,
    sample,
)
from scipy.optimize import minimize
from scipy.special import logsumexp
from sklearn.linear_model import LogisticRegression

import bactrian as bt

PIECEWISE = "piecewise-pseudolikelihood"
METHODS = ("pseudolikelihood", PIECEWISE)
SHAPES = BETHE_SHAPES + EXPLICIT_SHAPES
GRID = [(0, 1), (1, 2), (3, 4), (4, 5), (0, 3), (1, 4), (2, 5)]


# --- the reference ---


@dataclass(frozen=True)
class Term:
    """One conditional: features (states, n_weights) and fixed scores of its states, and the observed one."""

    features: Array
    base: Array
    observed: int


def varied(cardinalities: Sequence[int], row: Ints, v: int) -> Ints:
    """The row with variable v in each of its states, (states of v, n_variables)."""
    rows = np.repeat(row[None, :], cardinalities[v], axis=0)
    rows[:, v] = np.arange(cardinalities[v])
    return rows


def terms_of(data: Sequence[Observed], *, piecewise: bool) -> list[Term]:
    """Every conditional of every row, by way of joint states, or of each cluster's own."""
    terms = []
    for seen in data:
        model = seen.model
        n = len(model.cardinalities)
        everything = tuple(range(n))
        features, base = joint_features(model), joint_scores(model, np.zeros(model.n_weights))
        tables = cluster_scores(model, np.zeros(model.n_weights))
        for row in seen.assignments:
            for v in everything:
                rows = varied(model.cardinalities, row, v)
                if not piecewise:
                    index = cluster_state_index(model.cardinalities, everything, rows)
                    terms.append(Term(features[index], base[index], int(row[v])))
                    continue
                for i, cluster in enumerate(model.clusters):
                    if v in cluster:
                        index = cluster_state_index(model.cardinalities, cluster, rows)
                        terms.append(Term(model.features[i][index], tables[i][index], int(row[v])))
    return terms


def value_and_gradient(terms: Sequence[Term], weights: Array, prior_variance: float | None) -> tuple[float, Array]:
    """Negative log pseudo-likelihood with the Gaussian prior."""
    return objective_of(terms, prior_variance)(weights)


def objective_of(terms: Sequence[Term], prior_variance: float | None) -> Callable[[Array], tuple[float, Array]]:
    """The same as a function of the weights, terms with equally many states stacked."""
    precision = 0.0 if prior_variance is None else 1.0 / prior_variance
    stacks = []
    for size in {len(term.base) for term in terms}:
        alike = [term for term in terms if len(term.base) == size]
        stacks.append(tuple(np.array([getattr(t, name) for t in alike]) for name in ("features", "base", "observed")))

    def objective(weights: Array) -> tuple[float, Array]:
        value, gradient = 0.5 * precision * float(weights @ weights), precision * weights
        for features, base, observed in stacks:
            scores = features @ weights + base
            log_total = logsumexp(scores, axis=1)
            row = np.arange(len(observed))
            value += float((log_total - scores[row, observed]).sum())
            expected = np.einsum("nk,nkw->w", np.exp(scores - log_total[:, None]), features)
            gradient = gradient + expected - features[row, observed].sum(axis=0)
        return value, gradient

    return objective


def optimum(terms: Sequence[Term], prior_variance: float | None, l1: float = 0.0) -> tuple[float, Array]:
    """Least value and its weights; the L1 term by splitting weights into their positive and negative parts."""
    n = terms[0].features.shape[1]
    objective = objective_of(terms, prior_variance)

    def split(parts: Array) -> tuple[float, Array]:
        value, gradient = objective(parts[:n] - parts[n:])
        return value + l1 * float(parts.sum()), np.concatenate([gradient + l1, l1 - gradient])

    options = {"maxiter": 20_000, "maxfun": 50_000, "ftol": 0.0, "gtol": 1e-9}
    found = minimize(split, np.zeros(2 * n), jac=True, method="L-BFGS-B", bounds=[(0, None)] * (2 * n), options=options)
    return float(found.fun), found.x[:n] - found.x[n:]


# --- the library ---


def model_of(dense: DenseModel, edges: Any = "bethe") -> bt.LogLinearModel:
    graph = bt.ClusterGraph(dense.cardinalities, dense.clusters, edges)
    return bt.LogLinearModel(graph, dense.features, dense.base_scores)


def library_data(problem: Problem) -> Any:
    models = [model_of(seen.model, edges) for seen, edges in zip(problem.data, problem.edges, strict=True)]
    if problem.generative:
        return bt.Samples(models[0], problem.data[0].assignments)
    return [bt.Instance(m, seen.assignments[0]) for m, seen in zip(models, problem.data, strict=True)]


def learn(data: Any, method: Any, **options: Any) -> bt.Solution:
    solution = bt.learn(data, method, **{"tolerance": 1e-10, "n_threads": 1, **options})
    assert solution.converged
    return solution


def assert_same(solution: bt.Solution, value: float, weights: Array, tolerance: float = 1e-5) -> None:
    assert solution.objective == pytest.approx(value, abs=tolerance)
    np.testing.assert_allclose(solution.weights, weights, atol=tolerance)


def assert_optimal(problem: Problem, method: str, prior_variance: float | None, l1: float = 0.0) -> None:
    terms = terms_of(problem.data, piecewise=method == PIECEWISE)
    value, weights = optimum(terms, prior_variance, l1)
    solution = learn(library_data(problem), method, prior_variance=prior_variance, l1=l1)
    assert_same(solution, value, weights)


# --- brute force ---


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("base", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_generative_optimum(shape: Any, base: bool, method: str) -> None:
    assert_optimal(generative_problem(11, shape, base=base), method, prior_variance=2.0)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("base", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_conditional_optimum(shape: Any, base: bool, method: str) -> None:
    assert_optimal(conditional_problem(12, shape, base=base), method, prior_variance=2.0)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("prior_variance", "l1"), [(5.0, 1.0), (None, 0.7)])
def test_optimum_with_an_l1_penalty(method: str, prior_variance: float | None, l1: float) -> None:
    # A weight per pair and field, so that the optimum without a Gaussian prior is a single point too.
    problem = ising_problem(13, loop_clusters(4), n=4, rows=60)
    assert_optimal(problem, method, prior_variance, l1)
    small = learn(library_data(problem), method, prior_variance=prior_variance, l1=30.0).weights
    assert (small == 0.0).any()


@pytest.mark.parametrize("method", METHODS)
def test_optimum_without_a_prior(method: str) -> None:
    assert_optimal(ising_problem(14, loop_clusters(4), n=4, rows=200), method, prior_variance=None)


@settings(max_examples=25)
@given(problem=problems(), method=st.sampled_from(METHODS))
def test_gradient_vanishes_at_the_solution(problem: Problem, method: str) -> None:
    solution = learn(library_data(problem), method, prior_variance=3.0)
    terms = terms_of(problem.data, piecewise=method == PIECEWISE)
    value, gradient = value_and_gradient(terms, solution.weights, 3.0)
    assert solution.objective == pytest.approx(value, abs=1e-8)
    np.testing.assert_allclose(gradient, 0.0, atol=1e-6)
    assert solution.moment_gap <= 1e-6


@pytest.mark.parametrize("method", METHODS)
def test_states_that_are_forbidden(method: str) -> None:
    problem = generative_problem(15, "ternary", rows=30)
    dense, rows = problem.data[0].model, problem.data[0].assignments
    base: list[Array | None] = []
    for cluster, features in zip(dense.clusters, dense.features, strict=True):
        seen = np.zeros(len(features), dtype=bool)
        seen[cluster_state_index(dense.cardinalities, cluster, rows)] = True
        base.append(np.where(seen, 0.0, -np.inf))
    forbidding = DenseModel(dense.cardinalities, dense.clusters, dense.features, base)
    assert any(np.isinf(scores).any() for scores in base if scores is not None)
    assert_optimal(Problem([Observed(forbidding, rows)], ["bethe"], problem.true_weights), method, 1.0)


@pytest.mark.parametrize("method", METHODS)
def test_rows_without_weight_may_be_forbidden(method: str) -> None:
    # Given its second variable the first row leaves the first variable no state at all.
    graph = bt.ClusterGraph([2, 2], [(0, 1)])
    forbidden = [np.array([[0.0, -np.inf], [0.0, -np.inf]])]
    model = bt.LogLinearModel(graph, [np.array([[1.0], [0.0], [0.0], [0.0]])], forbidden)
    rows, weights = [[0, 1], [0, 0], [1, 0], [0, 0]], [0.0, 1.0, 1.0, 1.0]
    expected = learn(bt.Samples(model, rows[1:]), method, prior_variance=1.0)
    solution = learn(bt.Samples(model, rows, weights), method, prior_variance=1.0)
    assert_same(solution, expected.objective, expected.weights)
    instances = [bt.Instance(model, row, weight) for row, weight in zip(rows, weights, strict=True)]
    assert_same(learn(instances, method, prior_variance=1.0), expected.objective, expected.weights)


@pytest.mark.parametrize("method", METHODS)
def test_tables_that_clusters_share(method: str) -> None:
    # The shared array is 2 x 3 for one cluster and 3 x 2 for others; terms may meet in one entry.
    rng = np.random.default_rng(16)
    shared = rng.normal(size=(6, 4))
    cardinalities, clusters = [2, 3, 3, 2], [(0, 1), (0, 2), (1, 3), (2, 3), (3, 1)]
    dense = DenseModel(cardinalities, clusters, [shared] * 5)
    rows = joint_states(cardinalities)[rng.integers(36, size=50)]
    assert_optimal(Problem([Observed(dense, rows)], ["bethe"], np.zeros(4)), method, 2.0)
    one_by_one = Problem([Observed(dense, row[None, :]) for row in rows], ["bethe"] * 50, np.zeros(4))
    assert_optimal(one_by_one, method, 2.0)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("edges", ["bethe", []])
def test_variable_that_no_cluster_covers(method: str, edges: Any) -> None:
    covered = DenseModel([2, 2], [(0, 1)], [np.eye(4)])
    rows = np.array([[0, 0], [1, 1], [1, 0]])
    value, weights = optimum(terms_of([Observed(covered, rows)], piecewise=method == PIECEWISE), 1.0)
    model = bt.LogLinearModel(bt.ClusterGraph([2, 2, 5], [(0, 1)], edges), [np.eye(4)])
    solution = learn(bt.Samples(model, np.column_stack([rows, [0, 3, 4]])), method, prior_variance=1.0)
    assert_same(solution, value + 3 * np.log(5), weights)


# --- other people's regression, and identities ---


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("n_classes", [2, 4])
@pytest.mark.parametrize("route", ["instances", "graph data"])
def test_one_variable_an_instance_is_logistic_regression(route: str, n_classes: int, method: str) -> None:
    rng = np.random.default_rng(17)
    inputs, sigma2 = rng.normal(size=(80, 3)), 1.7
    labels = rng.integers(n_classes, size=80)
    labels[:20] = (inputs[:20, 0] > 0).astype(int)
    judge = LogisticRegression(
        C=sigma2 * (2 if n_classes == 2 else 1), fit_intercept=False, tol=1e-12, max_iter=10_000
    ).fit(inputs, labels)
    if route == "graph data":
        data: Any = bt.GraphData(inputs, [], n_labels=n_classes, labels=labels, node_counts=np.ones(80, dtype=int))
    else:
        graph = bt.ClusterGraph([n_classes], [(0,)])
        features = [np.einsum("d,ab->adb", x, np.eye(n_classes)).reshape(n_classes, -1) for x in inputs]
        data = [bt.Instance(bt.LogLinearModel(graph, [f]), [y]) for f, y in zip(features, labels, strict=True)]
    weights = learn(data, method, prior_variance=sigma2).weights[: 3 * n_classes].reshape(3, n_classes)
    expected = np.vstack([-judge.coef_ / 2, judge.coef_ / 2]) if n_classes == 2 else judge.coef_
    np.testing.assert_allclose(weights.T, expected, atol=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_independent_variables_equal_exact(method: str) -> None:
    rng = np.random.default_rng(18)
    cardinalities = [2, 3, 4]
    clusters = [(0,), (1,), (2,)]
    features = [rng.normal(size=(k, 3)) for k in cardinalities]
    rows = np.stack([rng.integers(k, size=30) for k in cardinalities], axis=1)
    data = bt.Samples(model_of(DenseModel(cardinalities, clusters, features)), rows)
    exact = learn(data, "exact", prior_variance=2.0)
    assert_same(learn(data, method, prior_variance=2.0), exact.objective, exact.weights)


@pytest.mark.parametrize("scope", [(0, 1), (1, 0, 2)])
@pytest.mark.parametrize("kind", ["samples", "instances"])
def test_one_cluster_makes_both_alike(scope: tuple[int, ...], kind: str) -> None:
    """With a single cluster there is nothing to break up."""
    rng = np.random.default_rng(19)
    cardinalities = [2, 3, 2][: len(scope)]
    rows = np.stack([rng.integers(k, size=25) for k in cardinalities], axis=1)
    graph = bt.ClusterGraph(cardinalities, [scope])
    models = [bt.LogLinearModel(graph, [rng.normal(size=(graph.size(scope), 4))]) for _ in rows]
    data: Any = bt.Samples(models[0], rows)
    if kind == "instances":
        data = [bt.Instance(model, row) for model, row in zip(models, rows, strict=True)]
    whole = learn(data, "pseudolikelihood", prior_variance=2.0)
    assert_same(learn(data, PIECEWISE, prior_variance=2.0), whole.objective, whole.weights)


def test_clusters_without_common_variables_make_both_alike() -> None:
    rng = np.random.default_rng(20)
    dense = DenseModel([2, 3, 2, 2], [(0, 1), (3, 2)], [rng.normal(size=(6, 4)), rng.normal(size=(4, 4))])
    data = bt.Samples(model_of(dense), joint_states([2, 3, 2, 2])[rng.integers(24, size=20)])
    whole = learn(data, "pseudolikelihood", prior_variance=2.0)
    assert_same(learn(data, PIECEWISE, prior_variance=2.0), whole.objective, whole.weights)


def test_full_table_of_one_cluster_is_learned_exactly() -> None:
    """Every cell observed, no prior: the conditionals of the empirical table are matched by its own logarithms."""
    rng = np.random.default_rng(21)
    cardinalities, scope = [2, 3], (0, 1)
    rows = np.concatenate([joint_states(cardinalities), joint_states(cardinalities)[rng.integers(6, size=60)]])
    counts = np.bincount(cluster_state_index(cardinalities, scope, rows), minlength=6)
    data = bt.Samples(model_of(DenseModel(cardinalities, [scope], full_tables(cardinalities, [scope], [0]))), rows)
    for method in METHODS:
        weights = learn(data, method, prior_variance=None).weights
        np.testing.assert_allclose(weights - weights.mean(), np.log(counts) - np.log(counts).mean(), atol=1e-5)


def test_piecewise_counts_a_variable_once_for_each_cluster() -> None:
    """A cluster given twice doubles the piecewise terms; Besag's conditionals see its scores doubled instead."""
    rng = np.random.default_rng(22)
    features = rng.normal(size=(6, 3))
    rows = joint_states([2, 3])[rng.integers(6, size=20)]
    once = bt.LogLinearModel(bt.ClusterGraph([2, 3], [(0, 1)]), [features])
    twice = bt.LogLinearModel(bt.ClusterGraph([2, 3], [(0, 1), (0, 1)]), [features, features])
    doubled = bt.LogLinearModel(bt.ClusterGraph([2, 3], [(0, 1)]), [2 * features])
    pieces = learn(bt.Samples(twice, rows), PIECEWISE, prior_variance=2.0)
    weighted = learn(bt.Samples(once, rows, np.full(20, 2.0)), PIECEWISE, prior_variance=2.0)
    assert_same(pieces, weighted.objective, weighted.weights)
    whole = learn(bt.Samples(twice, rows), "pseudolikelihood", prior_variance=2.0)
    reference = learn(bt.Samples(doubled, rows), "pseudolikelihood", prior_variance=2.0)
    assert_same(whole, reference.objective, reference.weights)


# --- structured data ---


@dataclass(frozen=True)
class Graphs:
    """Three labelled graphs, the last without edges, with two types of edges."""

    inputs: Array
    edges: Ints
    types: Ints
    edge_inputs: Array
    labels: Ints
    counts: tuple[int, ...] = (5, 4, 1)
    n_labels: int = 3

    def packed(self, node_factors: str, edge_inputs: bool, weights: Any = None, sparse: bool = False) -> bt.GraphData:
        return bt.GraphData(
            sp.csr_array(self.inputs) if sparse else self.inputs,
            self.edges,
            n_labels=self.n_labels,
            labels=self.labels,
            tables=("full", "potts"),
            edge_types=self.types,
            edge_inputs=self.edge_inputs if edge_inputs else None,
            node_counts=self.counts,
            node_factors=node_factors,
            weights=weights,
        )

    def by_hand(self, edge_inputs: bool) -> tuple[list[list[tuple[int, ...]]], list[list[Array]], list[Ints]]:
        """Clusters, features and labels of each graph: its nodes, then its edges."""
        k, d = self.n_labels, self.inputs.shape[1]
        rows = self.edge_inputs if edge_inputs else np.ones((len(self.edges), 1))
        width = rows.shape[1]
        n_weights = d * k + width * (k * k + 1)
        bounds = np.concatenate([[0], np.cumsum(self.counts)])
        clusters, features, labels = [], [], []
        for first, last in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            scopes: list[tuple[int, ...]] = [(v,) for v in range(last - first)]
            tables = []
            for x in self.inputs[first:last]:
                table = np.zeros((k, n_weights))
                table[:, : d * k] = np.einsum("d,ab->adb", x, np.eye(k)).reshape(k, -1)
                tables.append(table)
            for (a, b), kind, row in zip(self.edges.tolist(), self.types.tolist(), rows, strict=True):
                if first <= a < last:
                    scopes.append((a - first, b - first))
                    table = np.zeros((k * k, n_weights))
                    tied = np.eye(k * k) if kind == 0 else np.eye(k).reshape(-1, 1)
                    start = d * k + (0 if kind == 0 else width * k * k)
                    table[:, start : start + width * tied.shape[1]] = np.einsum("e,st->set", row, tied).reshape(
                        k * k, -1
                    )
                    tables.append(table)
            clusters.append(scopes)
            features.append(tables)
            labels.append(self.labels[first:last])
        return clusters, features, labels


def some_graphs() -> Graphs:
    rng = np.random.default_rng(23)
    # Node 4 has no edges, and the edges of the two graphs are mixed.
    edges = np.array([(0, 1), (6, 5), (1, 2), (2, 0), (5, 7), (3, 1), (7, 8), (6, 8), (2, 1)])
    return Graphs(
        rng.normal(size=(10, 2)),
        edges,
        rng.integers(2, size=len(edges)),
        rng.normal(size=(len(edges), 2)),
        rng.integers(3, size=10),
    )


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("edge_inputs", [False, True])
@pytest.mark.parametrize("sparse", [False, True])
def test_graph_data_equals_models_by_hand(method: str, edge_inputs: bool, sparse: bool) -> None:
    graphs = some_graphs()
    weights = [1.0, 2.5, 0.5]
    data = []
    for scopes, tables, labels, weight in zip(*graphs.by_hand(edge_inputs), weights, strict=True):
        model = bt.LogLinearModel(bt.ClusterGraph([3] * len(labels), scopes), tables)
        data.append(bt.Instance(model, labels, weight))
    expected = learn(data, method, prior_variance=2.0)
    solution = learn(graphs.packed("clusters", edge_inputs, weights, sparse), method, prior_variance=2.0)
    assert_same(solution, expected.objective, expected.weights)


@pytest.mark.parametrize("edge_inputs", [False, True])
def test_node_scores_absorbed_into_edges(edge_inputs: bool) -> None:
    """Each edge takes an even share of its nodes' scores; a node without edges keeps its own."""
    graphs = some_graphs()
    data = []
    for scopes, tables, labels in zip(*graphs.by_hand(edge_inputs), strict=True):
        n, k = len(labels), graphs.n_labels
        degrees = [sum(v in scope for scope in scopes[n:]) for v in range(n)]
        kept: list[tuple[tuple[int, ...], Array]] = [((v,), tables[v]) for v in range(n) if degrees[v] == 0]
        for (a, b), table in zip(scopes[n:], tables[n:], strict=True):
            shared = np.repeat(tables[a], k, axis=0) / degrees[a] + np.tile(tables[b], (k, 1)) / degrees[b]
            kept.append(((a, b), table + shared))
        model = DenseModel([k] * n, [scope for scope, _ in kept], [table for _, table in kept])
        data.append(Observed(model, labels[None, :]))
    value, weights = optimum(terms_of(data, piecewise=True), 2.0)
    assert_same(learn(graphs.packed("edges", edge_inputs), PIECEWISE, prior_variance=2.0), value, weights)
    # Besag's conditionals see all scores around a node, wherever they sit.
    value, weights = optimum(terms_of(data, piecewise=False), 2.0)
    for node_factors in ("clusters", "edges"):
        solution = learn(graphs.packed(node_factors, edge_inputs), "pseudolikelihood", prior_variance=2.0)
        assert_same(solution, value, weights)


# --- weights of samples, many samples ---


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", ["samples", "instances"])
def test_sample_weights_are_repetitions(method: str, kind: str) -> None:
    problem = generative_problem(24, "ternary", rows=12, base=True)
    model, rows = model_of(problem.data[0].model), problem.data[0].assignments
    times = np.random.default_rng(24).integers(0, 4, size=12)
    if kind == "samples":
        weighted: Any = bt.Samples(model, rows, times.astype(float))
        repeated: Any = bt.Samples(model, np.repeat(rows, times, axis=0))
    else:
        weighted = [bt.Instance(model, row, float(t)) for row, t in zip(rows, times, strict=True)]
        repeated = [bt.Instance(model, row) for row in np.repeat(rows, times, axis=0)]
    expected = learn(repeated, method, prior_variance=2.0)
    assert_same(learn(weighted, method, prior_variance=2.0), expected.objective, expected.weights)


@pytest.mark.parametrize("method", METHODS)
def test_samples_equal_instances_of_the_same_model(method: str) -> None:
    problem = generative_problem(25, "dense", rows=40)
    model, rows = model_of(problem.data[0].model), problem.data[0].assignments
    expected = learn([bt.Instance(model, row) for row in rows], method, prior_variance=2.0)
    solution = learn(bt.Samples(model, rows), method, prior_variance=2.0)
    assert_same(solution, expected.objective, expected.weights)


def test_weights_approach_those_the_data_was_drawn_with() -> None:
    errors = []
    for rows in (1_000, 100_000):
        problem = ising_problem(26, GRID, n=6, rows=rows, coupling=0.5)
        solution = learn(library_data(problem), "pseudolikelihood", prior_variance=None, tolerance=1e-6)
        errors.append(np.abs(solution.weights - problem.true_weights).max())
    assert errors[1] < 0.02
    assert errors[1] < errors[0] / 3


def test_the_piecewise_one_is_not_consistent_on_a_loop() -> None:
    """It sees each pair without its surroundings, so couplings come out too strong however much data there is."""
    clusters = loop_clusters(3)
    dense = DenseModel([2, 2, 2], [*clusters], [np.array([[1.0], [-1.0], [-1.0], [1.0]])] * 3)
    rows = sample(np.random.default_rng(27), dense, np.array([0.4]), 50_000)
    data = bt.Samples(model_of(dense), rows)
    besag, pieces = (learn(data, method, prior_variance=None, tolerance=1e-6).weights[0] for method in METHODS)
    assert besag == pytest.approx(0.4, abs=0.02)
    # E[x_a x_b] of the triangle, and the coupling of a pair on its own that has it.
    t = np.tanh(0.4)
    assert pieces == pytest.approx(np.arctanh((t + t**2) / (1 + t**3)), abs=0.02)


# --- the contract of learn ---


def test_method_objects_and_names() -> None:
    data = library_data(generative_problem(28, "loop"))
    for method, learner in zip(METHODS, (bt.PseudoLikelihood(), bt.PseudoLikelihood(piecewise=True)), strict=True):
        by_name, by_object = learn(data, method), learn(data, learner)
        assert by_name.method == by_object.method == learner.name == method
        np.testing.assert_array_equal(by_name.weights, by_object.weights)
    with pytest.raises(TypeError, match="piecewise must be True or False, found 'yes'"):
        bt.PseudoLikelihood(piecewise="yes")  # type: ignore[arg-type]


@pytest.mark.parametrize("method", METHODS)
def test_there_are_no_beliefs(method: str) -> None:
    solution = learn(library_data(generative_problem(29, "loop")), method)
    assert np.isnan(solution.violation)
    assert all(np.isnan(record.violation) for record in solution.history)
    for read in (lambda b: b[0], lambda b: b[0][0], len, list):
        with pytest.raises(
            ValueError, match=f"{method} has no cluster beliefs; call bactrian.infer at solution.weight"
        ):
            read(solution.beliefs)
    assert "weights" in repr(solution)


@pytest.mark.parametrize("method", METHODS)
def test_threads_change_nothing(method: str) -> None:
    data = library_data(conditional_problem(30, "ternary", instances=40))
    np.testing.assert_array_equal(learn(data, method).weights, learn(data, method, n_threads=3).weights)


@pytest.mark.parametrize("method", METHODS)
def test_start_callback_and_limits(method: str) -> None:
    data = library_data(generative_problem(31, "dense"))
    solution = learn(data, method)
    seen: list[bt.Progress] = []
    again = learn(data, method, start=solution, callback=seen.append, tolerance=1e-6)
    assert len(seen) <= 1
    np.testing.assert_allclose(again.weights, solution.weights, atol=1e-4)
    with pytest.warns(bt.ConvergenceWarning, match=f"{method}: stopped at the iteration limit"):
        short = bt.learn(data, method, max_iterations=2)
    assert short.status is bt.Status.ITERATION_LIMIT
    assert short.objective > solution.objective


@pytest.mark.parametrize("method", METHODS)
def test_moments_on_the_boundary_are_said_to_be_unbounded(method: str) -> None:
    model = bt.LogLinearModel(bt.ClusterGraph([2, 2], [(0, 1)]), [np.array([[0.0], [0.0], [0.0], [1.0]])])
    data = bt.Samples(model, [[0, 0], [0, 1], [1, 0]])
    with pytest.warns(bt.ConvergenceWarning, match="unbounded"):
        solution = bt.learn(data, method, prior_variance=None)
    assert solution.status is bt.Status.UNBOUNDED
    assert np.isfinite(solution.weights).all()


def test_equal_neighbourhoods_are_collapsed() -> None:
    """The cost of an evaluation follows the distinct neighbourhoods, not the samples."""
    from bactrian.graphs.packing import pack
    from bactrian.learners.pseudolikelihood import pack_conditionals

    problem = ising_problem(32, GRID, n=6, rows=5_000)
    packed = pack(library_data(problem))
    neighbours = [sum(v in scope for scope in GRID) for v in range(6)]
    whole = pack_conditionals(packed, piecewise=False)
    assert whole.layout.n_hubs <= sum(2**d for d in neighbours)
    assert whole.total_weight == pytest.approx(6 * 5_000)
    pieces = pack_conditionals(packed, piecewise=True)
    assert pieces.layout.n_hubs <= sum(2 * n_states([2] * 6, scope) // 2 for scope in GRID) + 6
    graphs = pack(some_graphs().packed("clusters", edge_inputs=False))
    # Edges of a type share a table: two ends, two types and three states of the other end, and the nodes.
    assert pack_conditionals(graphs, piecewise=True).layout.n_hubs <= 2 * 2 * 3 + 10


def complete_ising(n: int) -> bt.LogLinearModel:
    """A field and a coupling of states 0 and 1 for every variable and pair."""
    pairs = list(itertools.combinations(range(n), 2))
    clusters = [(v,) for v in range(n)] + pairs
    features = []
    for i, cluster in enumerate(clusters):
        table = np.zeros((2 ** len(cluster), len(clusters)))
        table[-1, i] = 1.0
        features.append(sp.csr_array(table))
    return bt.LogLinearModel(bt.ClusterGraph([2] * n, clusters), features)


def test_many_neighbours_are_summed_row_by_row() -> None:
    """Where every row has neighbourhoods of its own: logistic regressions on all other variables, by dense algebra."""
    rng = np.random.default_rng(5)
    n, rows = 30, 400
    x = rng.integers(2, size=(rows, n))
    x[50:60] = x[:10]
    weights = rng.integers(0, 4, size=rows).astype(float)
    solution = learn(bt.Samples(complete_ising(n), x, weights), "pseudolikelihood", prior_variance=0.5, tolerance=1e-8)
    field, pairs = solution.weights[:n], np.zeros((n, n))
    pairs[np.triu_indices(n, 1)] = solution.weights[n:]
    coupling = pairs + pairs.T
    odds = field + x @ coupling
    value = float(weights @ (np.logaddexp(0.0, odds) - x * odds).sum(axis=1)) + float(
        solution.weights @ solution.weights
    )
    residual = weights[:, None] * (1.0 / (1.0 + np.exp(-odds)) - x)
    slope = residual.T @ x
    gradient = np.concatenate([residual.sum(axis=0), (slope + slope.T)[np.triu_indices(n, 1)]]) + 2.0 * solution.weights
    assert solution.objective == pytest.approx(value, rel=1e-10)
    assert np.abs(gradient).max() < 1e-5


def test_memory_follows_the_rows_not_their_neighbourhoods() -> None:
    rng = np.random.default_rng(6)
    n, rows = 50, 3_000
    data = bt.Samples(complete_ising(n), rng.integers(2, size=(rows, n)))
    learn(data, "pseudolikelihood", prior_variance=1.0, tolerance=0.1)
    tracemalloc.start()
    try:
        learn(data, "pseudolikelihood", prior_variance=1.0, tolerance=0.1)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 60 * 8 * 2 * n * rows  # one value per state of every cell is 2.4 MB; by neighbourhood it is 380 MB
