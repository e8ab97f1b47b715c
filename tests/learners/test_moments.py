"""Pseudo-moment matching and unified propagation and scaling, against closed forms, enumeration, SciPy and CCCP.

Both have one class of models; every way out of it is refused with a reason.
"""

from __future__ import annotations

import warnings
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
    Scope,
    cluster_marginals,
    cluster_state_index,
    feature_sums,
    joint_scores,
    joint_states,
    log_partition,
    marginal,
    n_states,
    negative_log_likelihood,
    variable_marginals,
)
from random_models import (
    Problem,
    full_table_problem,
    full_tables,
    loop_clusters,
    random_cardinalities,
    sample,
    tree_clusters,
)

import bactrian as bt

SHAPES = ("tree", "loop", "dense", "ternary", "cycle-edges", "junction", "star-edges", "wide-sepsets")
TIGHT = bt.Camel(entropy="bethe", tight=True)
CLUSTERS: dict[str, list[Scope]] = {
    "loop": loop_clusters(4),
    "grid": [(0, 1), (1, 2), (3, 4), (4, 5), (0, 3), (1, 4), (2, 5)],
    "dense": [(a, b) for a in range(4) for b in range(a + 1, 4)],
    "ternary": [(0, 1, 2), (2, 1, 3), (0, 3)],
}


def samples(problem: Problem, **options: Any) -> Any:
    [seen], [edges] = problem.data, problem.edges
    model = seen.model
    graph = bt.ClusterGraph(model.cardinalities, model.clusters, edges)
    library = bt.LogLinearModel(graph, [sp.csr_array(f) for f in model.features], model.base_scores)
    return bt.Samples(library, seen.assignments, **options)


def learn(problem: Problem, method: Any, *, tolerance: float = 1e-9, **options: Any) -> Any:
    """Without a prior; a warning of any kind is an error."""
    return bt.learn(samples(problem), method, prior_variance=None, tolerance=tolerance, n_threads=1, **options)


def learn_quietly(problem: Problem, method: Any, **options: Any) -> Any:
    """Where stopping short is expected."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bt.ConvergenceWarning)
        return learn(problem, method, **options)


def frequencies(seen: Observed, scope: Scope, row_weights: Array | None = None) -> Array:
    """Observed marginal of a scope, flat."""
    cardinalities = seen.model.cardinalities
    index = cluster_state_index(cardinalities, scope, seen.assignments)
    counts = np.bincount(index, weights=row_weights, minlength=n_states(cardinalities, scope)).astype(float)
    result: Array = counts / counts.sum()
    return result


def closed_form(problem: Problem, row_weights: Array | None = None) -> Array:
    """Scores of joint states: log of clusters' observed marginals over those of sepsets, hubs of Bethe graphs 1 - d."""
    [seen], [edges] = problem.data, problem.edges
    model = seen.model
    states = joint_states(model.cardinalities)
    scores = np.zeros(len(states))

    def add(scope: Scope, number: float) -> None:
        table = np.log(frequencies(seen, scope, row_weights))
        scores[:] += number * table[cluster_state_index(model.cardinalities, scope, states)]

    if not isinstance(edges, str):
        for cluster in model.clusters:
            add(cluster, 1.0)
        for _, _, sepset in edges:
            add(tuple(sepset), -1.0)
        return scores
    hubs: set[int] = set()
    degrees = np.zeros(len(model.cardinalities))
    for cluster in model.clusters:
        if len(cluster) == 1 and cluster[0] not in hubs:
            hubs.add(cluster[0])
            continue
        add(cluster, 1.0)
        degrees[list(cluster)] += 1.0
    for v, degree in enumerate(degrees):
        if degree > 0 or v in hubs:
            add((v,), 1.0 - degree)
    return scores


def assert_beliefs(solution: Any, seen: Observed, atol: float, row_weights: Array | None = None) -> None:
    """Beliefs of all given clusters are the observed marginals."""
    for i, cluster in enumerate(seen.model.clusters):
        expected = frequencies(seen, cluster, row_weights)
        np.testing.assert_allclose(np.ravel(solution.beliefs[0][i]), expected, atol=atol)


# --- pseudo-moments: the closed form ---


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", range(2))
def test_pseudo_moments_is_the_closed_form_and_cccp(shape: str, seed: int) -> None:
    problem = full_table_problem(seed, shape)  # type: ignore[arg-type]
    [seen] = problem.data
    solution = learn(problem, "pseudo-moments")
    cccp = learn(problem, TIGHT)
    assert solution.converged
    assert solution.method == "pseudo-moments"
    scores = joint_scores(seen.model, solution.weights)
    assert np.ptp(scores - closed_form(problem)) < 1e-10
    assert np.ptp(scores - joint_scores(seen.model, cccp.weights)) < 1e-5
    assert solution.objective == pytest.approx(cccp.objective, abs=1e-6)
    assert solution.moment_gap < 1e-9
    assert solution.violation < 1e-12
    assert_beliefs(solution, seen, 1e-12)
    assert len(solution.history) == 1


@pytest.mark.parametrize("seed", range(3))
def test_pseudo_moments_on_a_tree_is_maximum_likelihood(seed: int) -> None:
    problem = full_table_problem(seed, "tree", size=4)
    [seen] = problem.data
    solution = learn(problem, "pseudo-moments")
    value, gradient = negative_log_likelihood(problem.data, solution.weights)
    assert solution.objective == pytest.approx(value, abs=1e-8)
    np.testing.assert_allclose(gradient, 0.0, atol=1e-8)
    for cluster, exact in zip(seen.model.clusters, cluster_marginals(seen.model, solution.weights), strict=True):
        np.testing.assert_allclose(exact, frequencies(seen, cluster), atol=1e-12)


def mixed_tables(seed: int, *, base: bool = True) -> Problem:
    """Features of full rank that are no indicators, hubs with and without features, a lonely singleton, base scores."""
    rng = np.random.default_rng(seed)
    cardinalities = [2, 3, 2, 3, 2]
    clusters: list[Scope] = [(0, 1), (1, 2), (2, 0), (1,), (0,), (0,), (3,)]  # variable 4 is in no cluster
    # Hub (1,) is full, hub (0,) has no features; the second (0,) is a table of its own.
    owners = [0, 1, 2, 3, 5, 6]
    features = full_tables(cardinalities, clusters, owners)
    for i in (0, 1, 6):
        columns = np.flatnonzero(features[i].any(axis=0))
        features[i][:, columns] = rng.normal(size=(len(features[i]), columns.size))
    features[2][:, np.flatnonzero(features[2].any(axis=0))[0]] = 0.0  # one state as the reference of the others
    scores = [rng.normal(size=len(table)) for table in features] if base else None
    model = DenseModel(cardinalities, clusters, features, scores)  # type: ignore[arg-type]
    rows = np.concatenate([joint_states(cardinalities), sample(rng, model, 0.3 * rng.normal(size=model.n_weights), 60)])
    return Problem([Observed(model, rows)], ["bethe"], np.zeros(model.n_weights))


@pytest.mark.parametrize("base", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_pseudo_moments_with_any_features_of_full_rank(seed: int, base: bool) -> None:
    problem = mixed_tables(seed, base=base)
    [seen] = problem.data
    solution = learn(problem, "pseudo-moments")
    assert solution.converged
    assert np.ptp(joint_scores(seen.model, solution.weights) - closed_form(problem)) < 1e-9
    assert_beliefs(solution, seen, 1e-10)
    cccp = learn(problem, TIGHT)
    assert solution.objective == pytest.approx(cccp.objective, abs=1e-5)
    assert np.ptp(joint_scores(seen.model, solution.weights) - joint_scores(seen.model, cccp.weights)) < 1e-4


def test_pseudo_moments_with_sample_weights() -> None:
    problem = full_table_problem(3, "loop")
    [seen] = problem.data
    row_weights = np.random.default_rng(0).uniform(0.1, 2.0, size=len(seen.assignments))
    solution = bt.learn(samples(problem, sample_weight=row_weights), "pseudo-moments", prior_variance=None)
    assert np.ptp(joint_scores(seen.model, solution.weights) - closed_form(problem, row_weights)) < 1e-9
    assert_beliefs(solution, seen, 1e-12, row_weights)


def test_pseudo_moments_of_one_cluster_are_log_frequencies() -> None:
    model = DenseModel([2, 3], [(1, 0)], [np.eye(6)])
    rows = np.concatenate([joint_states([2, 3]), [[0, 1], [1, 2]]])
    solution = learn(Problem([Observed(model, rows)], ["bethe"], np.zeros(6)), "pseudo-moments")
    expected = np.log(frequencies(Observed(model, rows), (1, 0)))
    np.testing.assert_allclose(solution.weights, expected - expected.mean(), atol=1e-12)  # the smallest weights


def test_pseudo_moments_hold_where_belief_propagation_leaves_the_fixed_point() -> None:
    """Strong attraction on a dense graph: observed marginals that no stable fixed point has (Heinemann, Globerson)."""
    clusters = CLUSTERS["dense"]
    model = DenseModel([2] * 4, clusters, full_tables([2] * 4, clusters, list(range(6))))
    rows = np.concatenate([joint_states([2] * 4), np.repeat([[0] * 4, [1] * 4], [55, 65], axis=0)])
    problem = Problem([Observed(model, rows)], ["bethe"], np.zeros(model.n_weights))
    solution = learn(problem, "pseudo-moments")
    assert solution.converged
    assert_beliefs(solution, problem.data[0], 1e-12)
    elsewhere = bt.infer(samples(problem).model, solution.weights, method="bp")
    assert abs(elsewhere.variables[0][1] - frequencies(problem.data[0], (0,))[1]) > 0.1


def test_pseudo_moments_on_the_boundary_are_unbounded_but_finite() -> None:
    problem = full_table_problem(1, "loop")
    [seen] = problem.data
    keep = ~((seen.assignments[:, 0] == 1) & (seen.assignments[:, 1] == 1))
    cut = Problem([Observed(seen.model, seen.assignments[keep])], problem.edges, problem.true_weights)
    with pytest.warns(bt.ConvergenceWarning, match="boundary"):
        solution = learn(cut, "pseudo-moments", tolerance=1e-6)
    assert solution.status is bt.Status.UNBOUNDED
    assert np.isfinite(solution.weights).all()
    assert np.isfinite(solution.objective)
    assert_beliefs(solution, cut.data[0], 1e-6)
    assert solution.violation < 1e-9
    assert solution.moment_gap <= 1e-6 * keep.sum()
    for tolerance in (0.0, 1e-9, 10.0):
        assert np.isfinite(learn_quietly(cut, "pseudo-moments", tolerance=tolerance).weights).all()


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**20), st.sampled_from(SHAPES), st.integers(1, 40))
def test_pseudo_moments_match_any_data(seed: int, shape: str, rows: int) -> None:
    """From a single row on: weights and objective are finite and beliefs are right, bounded or not."""
    problem = full_table_problem(seed, shape)  # type: ignore[arg-type]
    [seen] = problem.data
    few = Observed(seen.model, seen.assignments[-rows:])
    cut = Problem([few], problem.edges, problem.true_weights)
    solution = learn_quietly(cut, "pseudo-moments", tolerance=1e-7)
    assert np.isfinite(solution.weights).all()
    owners = [cluster for cluster, table in zip(few.model.clusters, few.model.features, strict=True) if table.any()]
    positive = all((frequencies(few, cluster) > 0).all() for cluster in owners)
    assert solution.status is (bt.Status.CONVERGED if positive else bt.Status.UNBOUNDED)
    assert solution.violation < 1e-8
    assert_beliefs(solution, few, 2e-7)


# --- pseudo-moments: what is refused ---


def pair_problem(features: list[Array], clusters: list[Scope], base_scores: Any = None) -> Problem:
    n = 1 + max(v for cluster in clusters for v in cluster)
    model = DenseModel([2] * n, clusters, features, base_scores)
    return Problem([Observed(model, joint_states([2] * n))], ["bethe"], np.zeros(model.n_weights))


LOOP = loop_clusters(3)
FULL = full_tables([2] * 3, LOOP, [0, 1, 2])


def test_pseudo_moments_refuses_a_prior() -> None:
    problem = pair_problem(FULL, LOOP)
    for options in ({}, {"prior_variance": 1.0}, {"prior_variance": None, "l1": 0.5}):
        with pytest.raises(ValueError, match="pseudo-moments has no prior; use prior_variance=None and l1=0"):
            bt.learn(samples(problem), "pseudo-moments", **options)


def conditional(features: Array) -> list[Any]:
    graph = bt.ClusterGraph([2], [(0,)])
    return [bt.Instance(bt.LogLinearModel(graph, [features]), [y]) for y in (0, 1, 1)]


@pytest.mark.parametrize("method", ["pseudo-moments", "ups"])
def test_conditional_data_is_refused(method: str) -> None:
    with pytest.raises(ValueError, match=rf"{method} learns from generative data.*found conditional data"):
        bt.learn(conditional(np.eye(2)), method, prior_variance=None)
    with pytest.raises(ValueError, match=rf"{method} learns from generative data.*found conditional data"):
        bt.learn(conditional(np.eye(2))[:1], method, prior_variance=None)
    nodes = bt.GraphData(np.eye(4), [[0, 1], [1, 2]], labels=[0, 1, 1, 0], n_labels=2)
    with pytest.raises(ValueError, match=rf"{method} learns from generative data.*found conditional data"):
        bt.learn(nodes, method, prior_variance=None)


def test_pseudo_moments_refuses_shared_weights() -> None:
    shared = [*FULL[:2], np.roll(FULL[2], -4, axis=1)]
    with pytest.raises(ValueError, match="weight 4 is shared by clusters 1 and 2"):
        learn(pair_problem(shared, LOOP), "pseudo-moments")
    graph = bt.ClusterGraph([2] * 3, LOOP)
    table = np.eye(4)
    data = bt.Samples(bt.LogLinearModel(graph, [table, table, table]), joint_states([2] * 3))
    with pytest.raises(ValueError, match="weight 0 is shared by clusters 0 and 1"):
        bt.learn(data, "pseudo-moments", prior_variance=None)
    with_hub = [*FULL, np.eye(2, 12)]
    with pytest.raises(ValueError, match="weight 0 is shared by clusters 0 and 3"):
        learn(pair_problem(with_hub, [*LOOP, (1,)]), "pseudo-moments")


def test_pseudo_moments_refuses_tables_that_are_not_full() -> None:
    ising = [np.outer([1.0, -1.0, -1.0, 1.0], row) for row in np.eye(3)]
    with pytest.raises(ValueError, match=r"full table on cluster 0.* 3 free scores, and its features span 1"):
        learn(pair_problem(ising, LOOP), "pseudo-moments")
    with pytest.raises(ValueError, match=r"full table on cluster 1.* 3 free scores, and its features span 0"):
        learn(pair_problem([FULL[0], np.zeros((4, 12)), FULL[2]], LOOP), "pseudo-moments")
    with pytest.raises(ValueError, match=r"full table on cluster 3.* 1 free scores, and its features span 0"):
        learn(pair_problem([*FULL, np.zeros((2, 12))], [*LOOP, (3,)]), "pseudo-moments")


@pytest.mark.parametrize("method", ["pseudo-moments", "ups"])
def test_forbidden_states_are_refused(method: str) -> None:
    base = [None, np.array([0.0, 0.0, 0.0, -np.inf]), None]
    model = DenseModel([2] * 3, LOOP, FULL, base)
    rows = np.array([[0, 0, 0], [1, 0, 1]], dtype=np.int64)
    with pytest.raises(ValueError, match=rf"{method} needs base_scores that are finite, found forbidden states"):
        learn(Problem([Observed(model, rows)], ["bethe"], np.zeros(12)), method)


# --- unified propagation and scaling ---


def scaling_problem(
    seed: int,
    clusters: list[Scope],
    *,
    learned: list[int] | None = None,
    coupling: float = 0.7,
    largest: int = 3,
    rows: int = 100,
) -> Problem:
    """Fixed tables on ``clusters``; each variable in ``learned`` (all) has a full singleton table after them."""
    rng = np.random.default_rng(seed)
    n = 1 + max(v for cluster in clusters for v in cluster)
    cardinalities = random_cardinalities(rng, n, largest)
    learned = list(range(n)) if learned is None else learned
    scopes: list[Scope] = [*clusters, *[(v,) for v in learned]]
    features = full_tables(cardinalities, scopes, list(range(len(clusters), len(scopes))))
    base: list[Array | None] = [coupling * rng.normal(size=len(table)) for table in features[: len(clusters)]]
    base += [0.3 * rng.normal(size=cardinalities[v]) if v % 2 else None for v in learned]
    model = DenseModel(cardinalities, scopes, features, base)
    drawn = sample(rng, model, 0.5 * rng.normal(size=model.n_weights), rows)
    every = np.stack([np.arange(max(cardinalities)) % k for k in cardinalities], axis=1)
    return Problem([Observed(model, np.concatenate([drawn, every]))], ["bethe"], np.zeros(model.n_weights))


def centred(problem: Problem, weights: Array) -> Array:
    """Singleton weights, each table's mean removed."""
    result = np.array(weights, dtype=float)
    for table in problem.data[0].model.features:
        columns = np.flatnonzero(table.any(axis=0))
        if columns.size:
            result[columns] -= result[columns].mean()
    return result


@pytest.mark.parametrize("name", CLUSTERS)
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("coupling", [0.5, 1.5])
def test_scaling_equals_cccp(name: str, seed: int, coupling: float) -> None:
    problem = scaling_problem(seed, CLUSTERS[name], coupling=coupling)
    [seen] = problem.data
    solution = learn(problem, "ups", tolerance=1e-10)
    cccp = learn(problem, TIGHT, tolerance=1e-9)
    assert solution.converged
    assert solution.method == "ups"
    for i in range(len(seen.model.clusters)):
        np.testing.assert_allclose(solution.beliefs[0][i], cccp.beliefs[0][i], atol=1e-6)
    np.testing.assert_allclose(solution.weights, centred(problem, solution.weights), atol=1e-12)
    np.testing.assert_allclose(centred(problem, solution.weights), centred(problem, cccp.weights), atol=1e-4)
    assert solution.objective == pytest.approx(cccp.objective, abs=1e-5)
    assert solution.violation < 1e-9
    assert solution.moment_gap < 1e-7
    for i, (v, *rest) in enumerate(seen.model.clusters):
        if not rest:
            np.testing.assert_allclose(solution.beliefs[0][i], frequencies(seen, (v,)), atol=1e-9)


@pytest.mark.parametrize("name", ["loop", "dense"])
def test_scaling_is_proportional_fitting_of_each_table(name: str) -> None:
    """Where every variable is scaled, a pair's belief is its fixed table, rows and columns scaled in turn."""
    problem = scaling_problem(3, CLUSTERS[name])
    [seen] = problem.data
    solution = learn(problem, "ups", tolerance=1e-11)
    for i, cluster in enumerate(CLUSTERS[name]):
        table = np.exp(seen.model.base(i)).reshape([seen.model.cardinalities[v] for v in cluster])
        rows, columns = (frequencies(seen, (v,)) for v in cluster)
        for _ in range(3000):
            table *= (rows / table.sum(axis=1))[:, None]
            table *= columns / table.sum(axis=0)
        np.testing.assert_allclose(solution.beliefs[0][i], table, atol=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_scaling_with_free_variables_on_a_tree_is_maximum_likelihood(seed: int) -> None:
    clusters = tree_clusters(np.random.default_rng(seed), 5)
    problem = scaling_problem(seed, clusters, learned=[0, 2, 3])
    [seen] = problem.data
    solution = learn(problem, "ups", tolerance=1e-11)
    assert solution.converged
    value, gradient = negative_log_likelihood(problem.data, solution.weights)
    np.testing.assert_allclose(gradient, 0.0, atol=1e-7)
    assert solution.objective == pytest.approx(value, abs=1e-7)
    exact = variable_marginals(seen.model, solution.weights)
    for v in (0, 2, 3):
        np.testing.assert_allclose(exact[v], frequencies(seen, (v,)), atol=1e-9)
    for i, table in enumerate(cluster_marginals(seen.model, solution.weights)):
        np.testing.assert_allclose(np.ravel(solution.beliefs[0][i]), table, atol=1e-9)


def test_scaling_with_free_variables_on_loops_is_a_fixed_point_of_cccp() -> None:
    problem = scaling_problem(5, CLUSTERS["dense"], learned=[0, 1], coupling=0.5)
    solution = learn(problem, "ups", tolerance=1e-10)
    cccp = learn(problem, TIGHT, tolerance=1e-9)
    np.testing.assert_allclose(centred(problem, solution.weights), centred(problem, cccp.weights), atol=1e-4)
    for i in range(len(problem.data[0].model.clusters)):
        np.testing.assert_allclose(solution.beliefs[0][i], cccp.beliefs[0][i], atol=1e-6)


@pytest.mark.parametrize(("seed", "status"), [(11, bt.Status.CONVERGED), (5, bt.Status.UNRELIABLE)])
def test_scaling_with_free_variables_and_frustration_is_damped_or_given_up(seed: int, status: bt.Status) -> None:
    """Both oscillate without damping; it helps the first, and the second says that its result is not to be trusted."""
    pairs: list[Scope] = [(a, b) for a in range(8) for b in range(a + 1, 8)]
    problem = scaling_problem(seed, pairs, learned=[0], coupling=4.0, largest=2)
    solution = learn_quietly(problem, "ups", tolerance=1e-8)
    assert solution.status is status
    assert np.isfinite(solution.weights).all()
    assert solution.converged == (solution.violation <= 1e-8)


def test_scaling_takes_singletons_that_no_cluster_touches_and_hubs_of_degree_one() -> None:
    model = DenseModel(
        [3, 2, 2, 1],
        [(0,), (1,), (2,), (1, 2), (3,)],
        full_tables([3, 2, 2, 1], [(0,), (1,), (2,), (1, 2), (3,)], [0, 1, 2, 4]),
        [np.array([1.0, 0.0, -1.0]), None, None, np.array([1.0, -1.0, 0.5, 0.0]), None],
    )
    rows = np.array([[0, 0, 1, 0], [1, 1, 0, 0], [2, 1, 1, 0], [2, 1, 0, 0], [0, 1, 1, 0]], dtype=np.int64)
    problem = Problem([Observed(model, rows)], ["bethe"], np.zeros(model.n_weights))
    solution = learn(problem, "ups", tolerance=1e-12)
    value, gradient = negative_log_likelihood(problem.data, solution.weights)
    np.testing.assert_allclose(gradient, 0.0, atol=1e-9)
    assert solution.objective == pytest.approx(value, abs=1e-9)


def test_scaling_with_features_that_are_no_indicators() -> None:
    """A reference state without a weight, and a basis that is no indicator, are full tables up to gauge."""
    problem = scaling_problem(2, loop_clusters(3))
    [seen] = problem.data
    rng = np.random.default_rng(0)
    features = [table.copy() for table in seen.model.features]
    first, second = np.flatnonzero(features[3].any(axis=0)), np.flatnonzero(features[4].any(axis=0))
    features[3][:, first[0]] = 0.0
    features[4][:, second] = rng.normal(size=(len(features[4]), second.size))
    changed = DenseModel(seen.model.cardinalities, seen.model.clusters, features, seen.model.base_scores)
    other = Problem([Observed(changed, seen.assignments)], ["bethe"], problem.true_weights)
    ours, theirs = learn(other, "ups", tolerance=1e-11), learn(problem, "ups", tolerance=1e-11)
    assert np.ptp(joint_scores(changed, ours.weights) - joint_scores(seen.model, theirs.weights)) < 1e-8
    assert ours.objective == pytest.approx(theirs.objective, abs=1e-8)


def test_scaling_on_the_boundary_is_unbounded_but_finite() -> None:
    problem = scaling_problem(0, loop_clusters(4))
    [seen] = problem.data
    keep = seen.assignments[:, 3] != 2
    assert 0 < keep.sum() < keep.size
    cut = Problem([Observed(seen.model, seen.assignments[keep])], ["bethe"], problem.true_weights)
    with pytest.warns(bt.ConvergenceWarning, match="boundary"):
        solution = learn(cut, "ups", tolerance=1e-6)
    assert solution.status is bt.Status.UNBOUNDED
    assert np.isfinite(solution.weights).all()
    assert solution.moment_gap <= 2e-6 * keep.sum()
    hub = seen.model.clusters.index((3,))
    np.testing.assert_allclose(solution.beliefs[0][hub], frequencies(cut.data[0], (3,)), atol=2e-6)
    assert learn_quietly(cut, "ups", tolerance=0.0).status is bt.Status.UNBOUNDED


def test_scaling_crosses_scores_of_a_thousand() -> None:
    """For a hundred sweeps no belief moves; giving up after fifty, it called itself unbounded with beliefs 1.0 off."""
    graph = bt.ClusterGraph([3, 2], [(0, 1), (0,), (1,)])
    features = [np.zeros((6, 5)), np.eye(5)[:3], np.eye(5)[3:]]
    base = [[0.0, -1000.0, 0.0, -1000.0, 0.0, 0.0], [700.0, 0.0, 0.0], [-700.0, -700.0]]
    samples = bt.Samples(bt.LogLinearModel(graph, features, base), [[0, 1]])
    with pytest.warns(bt.ConvergenceWarning, match="boundary"):
        solution = bt.learn(samples, "ups", prior_variance=None, tolerance=1e-4)
    assert solution.status is bt.Status.UNBOUNDED
    np.testing.assert_allclose(solution.beliefs[0][1], [1.0, 0.0, 0.0], atol=1e-3)
    assert solution.moment_gap <= 1e-3


def test_scaling_respects_limits_and_the_callback() -> None:
    problem = scaling_problem(4, CLUSTERS["dense"], coupling=2.0)
    stopped = learn_quietly(problem, "ups", max_iterations=2)
    assert stopped.status is bt.Status.ITERATION_LIMIT
    assert stopped.history[0].iterations == 2
    nothing = learn_quietly(problem, "ups", max_iterations=0)
    assert nothing.status is bt.Status.ITERATION_LIMIT
    assert not nothing.weights.any()
    late = learn_quietly(problem, "ups", max_seconds=0.0)
    assert late.status is bt.Status.TIME_LIMIT
    seen: list[bt.Progress] = []

    def stop_at_three(progress: bt.Progress) -> bool:
        seen.append(progress)
        return len(seen) == 3

    halted = learn_quietly(problem, "ups", callback=stop_at_three)
    assert halted.status is bt.Status.STOPPED
    assert [progress.iteration for progress in seen] == [1, 2, 3]
    assert seen[0].violation > seen[2].violation
    assert learn_quietly(problem, "ups", tolerance=0.0).status is bt.Status.STALLED
    whole, again = learn(problem, "ups"), learn(problem, "ups", start=np.ones_like(halted.weights))
    np.testing.assert_array_equal(whole.weights, again.weights)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**20), st.sampled_from(list(CLUSTERS)), st.sampled_from([0.2, 1.0, 4.0]), st.integers(1, 30))
def test_scaling_matches_marginals_of_any_data(seed: int, name: str, coupling: float, rows: int) -> None:
    problem = scaling_problem(seed, CLUSTERS[name], coupling=coupling, rows=rows)
    [seen] = problem.data
    solution = learn_quietly(problem, "ups", tolerance=1e-8, max_iterations=10_000)
    assert np.isfinite(solution.objective)
    assert np.isfinite(solution.weights).all()
    if coupling == 4.0 and not solution.converged:
        return  # nothing promises convergence among strong loops; what counts is that the status says so
    assert solution.converged
    expected = feature_sums(problem.data)
    found = np.zeros_like(expected)
    for i, table in enumerate(seen.model.features):
        found += table.T @ np.ravel(solution.beliefs[0][i]) * len(seen.assignments)
    np.testing.assert_allclose(found, expected, atol=1e-6 * len(seen.assignments))


# --- unified propagation and scaling: what is refused ---


def test_scaling_refuses_a_prior() -> None:
    problem = scaling_problem(0, loop_clusters(3))
    with pytest.raises(ValueError, match="ups has no prior; use prior_variance=None and l1=0"):
        bt.learn(samples(problem), "ups")
    with pytest.raises(ValueError, match="ups has no prior; use prior_variance=None and l1=0"):
        bt.learn(samples(problem), "ups", prior_variance=None, l1=1.0)


def test_scaling_refuses_features_on_larger_clusters() -> None:
    with pytest.raises(ValueError, match="cluster 0 has features but is not the hub of a variable"):
        learn(pair_problem(FULL, LOOP), "ups")
    second = full_tables([2], [(0,), (0,)], [0, 1])
    with pytest.raises(ValueError, match="cluster 1 has features but is not the hub of a variable"):
        learn(pair_problem(second, [(0,), (0,)]), "ups")


def test_scaling_refuses_shared_weights() -> None:
    shared = [np.zeros((4, 2)), np.eye(2), np.eye(2)]
    with pytest.raises(ValueError, match="ups needs weights of its own for every cluster: weight 0 is shared"):
        learn(pair_problem(shared, [(0, 1), (0,), (1,)]), "ups")


def test_scaling_refuses_singletons_without_a_full_table() -> None:
    model = DenseModel([3, 2], [(0, 1), (0,)], [np.zeros((6, 1)), np.array([[1.0], [0.0], [0.0]])])
    with pytest.raises(
        ValueError, match=r"ups needs a full table on cluster 1.* 2 free scores, and its features span 1"
    ):
        learn(Problem([Observed(model, joint_states([3, 2]))], ["bethe"], np.zeros(1)), "ups")


def test_scaling_refuses_models_with_nothing_to_learn() -> None:
    with pytest.raises(ValueError, match="no singleton cluster has features"):
        learn(pair_problem([np.zeros((4, 1))], [(0, 1)]), "ups")


def test_scaling_refuses_explicit_edges() -> None:
    clusters: list[Scope] = [(0, 1), (0,)]
    model = DenseModel([2, 2], clusters, full_tables([2, 2], clusters, [1]))
    rows: Ints = joint_states([2, 2])
    with pytest.raises(ValueError, match=r"ups needs a Bethe graph \(edges='bethe'\), found explicit edges"):
        learn(Problem([Observed(model, rows)], [[(0, 1, (0,))]], np.zeros(2)), "ups")


def test_closed_form_of_a_tree_is_the_model_itself() -> None:
    """The test's own closed form, against enumeration: on a tree it normalises to the observed marginals."""
    problem = full_table_problem(0, "tree", size=4)
    [seen] = problem.data
    scores = closed_form(problem)
    assert np.log(np.exp(scores).sum()) == pytest.approx(0.0, abs=1e-10)
    everything = tuple(range(4))
    for cluster in seen.model.clusters:
        table = marginal(seen.model.cardinalities, everything, np.exp(scores), cluster)
        np.testing.assert_allclose(table, frequencies(seen, cluster), atol=1e-12)
    assert log_partition(seen.model, np.zeros(seen.model.n_weights)) > 0
