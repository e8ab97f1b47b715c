"""The checkers checked: the enumeration oracle and the dense CAMEL reference against each other and by hand."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from oracle import (
    Array,
    DenseModel,
    Observed,
    Propagation,
    bethe_free_energy,
    cluster_marginals,
    cluster_state_index,
    entropy,
    feature_sums,
    joint_distribution,
    joint_features,
    joint_scores,
    joint_states,
    largest_change,
    likelihood_hessian,
    log_partition,
    marginal,
    maximum_likelihood,
    mean_field_free_energy,
    most_probable,
    negative_log_likelihood,
    variable_marginals,
)
from random_models import (
    BETHE_SHAPES,
    EXPLICIT_SHAPES,
    LOOPY_SHAPES,
    TREE_SHAPES,
    Problem,
    Shape,
    conditional_problem,
    full_table_problem,
    generative_problem,
    ising_problem,
    loop_clusters,
    problems,
    random_features,
    star_edges,
    triangle_of_equation_8,
)
from reference import (
    EdgeSpec,
    NumberedGraph,
    bethe_edges,
    camel,
    camel0,
    empirical_beliefs,
    form_error,
    inner_problem,
    linearisation_constant,
    linearised_value,
    numbered_graph,
    optimality_error,
    penalty,
    piecewise,
    primal_value,
    propagation,
    relinearise,
    solve_inner,
    violation,
    with_hub_tables,
    without_appended_hubs,
)
from scipy.special import logsumexp


def finite_difference(function: Callable[[Array], float], point: Array, step: float = 1e-5) -> Array:
    """Central differences."""
    steps = step * np.eye(len(point))
    return np.array([(function(point + s) - function(point - s)) / (2 * step) for s in steps])


def small_problem(seed: int, shape: Shape, conditional: bool, base: bool = True, coupling: float = 1.0) -> Problem:
    if conditional:
        return conditional_problem(seed, shape, size=3, instances=3, base=base, coupling=coupling)
    return generative_problem(seed, shape, size=4 if shape != "junction" else 3, base=base, coupling=coupling)


# --- the oracle ---


def test_states_are_in_c_order() -> None:
    states = joint_states([2, 3, 2])
    assert states.shape == (12, 3)
    assert states[:4].tolist() == [[0, 0, 0], [0, 0, 1], [0, 1, 0], [0, 1, 1]]
    expected = np.ravel_multi_index((states[:, 2], states[:, 1]), (2, 3))
    np.testing.assert_array_equal(cluster_state_index([2, 3, 2], (2, 1), states), expected)


def test_marginal_sums_and_transposes() -> None:
    table = np.arange(12.0).reshape(2, 3, 2)
    cardinalities = [3, 2, 2]  # the table's scope is (1, 0, 2)
    np.testing.assert_allclose(marginal(cardinalities, (1, 0, 2), table, (2, 0)), table.sum(0).T.ravel())
    np.testing.assert_allclose(marginal(cardinalities, (1, 0, 2), table, ()), [table.sum()])


def test_partition_function_of_a_chain_is_a_matrix_product() -> None:
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=(2, 3)), rng.normal(size=(3, 4))
    model = DenseModel(
        [2, 3, 4], [(0, 1), (1, 2)], [np.zeros((6, 1)), np.zeros((12, 1))], [first.ravel(), second.ravel()]
    )
    product = np.exp(first) @ np.exp(second)
    weights = np.zeros(1)
    assert log_partition(model, weights) == pytest.approx(np.log(product.sum()))
    assert log_partition(model, weights, {2: 1}) == pytest.approx(np.log(product[:, 1].sum()))
    np.testing.assert_allclose(variable_marginals(model, weights)[0], product.sum(1) / product.sum())
    with_evidence = variable_marginals(model, weights, {2: 1})
    np.testing.assert_allclose(with_evidence[0], product[:, 1] / product[:, 1].sum())
    np.testing.assert_allclose(with_evidence[2], [0, 1, 0, 0])


def test_variables_in_no_cluster_count_their_states() -> None:
    model = DenseModel([2, 5], [(0,)], [np.eye(2)])
    weights = np.array([0.3, -1.0])
    assert log_partition(model, weights) == pytest.approx(logsumexp(weights) + np.log(5))


@pytest.mark.parametrize("shape", ["dense", "ternary", "junction"])
def test_cluster_marginals_give_expected_features(shape: Shape) -> None:
    problem = generative_problem(3, shape)
    model = problem.data[0].model
    tables = cluster_marginals(model, problem.true_weights)
    by_cluster = sum(t @ f for t, f in zip(tables, model.features, strict=True))
    by_joint = joint_distribution(model, problem.true_weights) @ joint_features(model)
    np.testing.assert_allclose(by_cluster, by_joint)


@pytest.mark.parametrize("conditional", [False, True])
@pytest.mark.parametrize("prior_variance", [None, 2.0])
def test_likelihood_gradient_and_hessian(conditional: bool, prior_variance: float | None) -> None:
    problem = small_problem(1, "ternary", conditional)
    weights = np.random.default_rng(5).normal(size=problem.data[0].model.n_weights)
    _, gradient = negative_log_likelihood(problem.data, weights, prior_variance)
    numeric = finite_difference(lambda w: negative_log_likelihood(problem.data, w, prior_variance)[0], weights)
    np.testing.assert_allclose(gradient, numeric, rtol=1e-6, atol=1e-6)
    hessian = likelihood_hessian(problem.data, weights, prior_variance)
    for column in range(len(weights)):
        slope = finite_difference(
            lambda w, c=column: float(negative_log_likelihood(problem.data, w, prior_variance)[1][c]),  # type: ignore[misc]
            weights,
        )
        np.testing.assert_allclose(hessian[column], slope, rtol=1e-6, atol=1e-6)


def test_likelihood_is_the_probability_of_the_rows() -> None:
    problem = generative_problem(2, "dense", base=True)
    seen, weights = problem.data[0], problem.true_weights
    joint = np.log(joint_distribution(seen.model, weights))
    everything = tuple(range(len(seen.model.cardinalities)))
    rows = cluster_state_index(seen.model.cardinalities, everything, seen.assignments)
    assert negative_log_likelihood(problem.data, weights)[0] == pytest.approx(-joint[rows].sum())


def test_maximum_likelihood_of_a_full_table_is_the_frequencies() -> None:
    model = DenseModel([2, 3], [(0, 1)], [np.eye(6)])
    rows = np.repeat(joint_states([2, 3]), [1, 2, 3, 4, 5, 6], axis=0)
    weights = maximum_likelihood([Observed(model, rows)])
    np.testing.assert_allclose(joint_distribution(model, weights), np.arange(1, 7) / 21, atol=1e-9)


def test_map_takes_the_lexicographically_first_of_ties() -> None:
    agree = np.array([[1.0], [0.0], [0.0], [1.0]])
    model = DenseModel([2, 2, 2], [(0, 1), (1, 2)], [agree, agree])
    assert most_probable(model, np.array([1.0])).tolist() == [0, 0, 0]
    assert most_probable(model, np.array([-1.0])).tolist() == [0, 1, 0]
    assert most_probable(model, np.array([1.0]), {1: 1}).tolist() == [1, 1, 1]


@pytest.mark.parametrize("seed", range(3))
def test_free_energies(seed: int) -> None:
    tree = generative_problem(seed, "tree", base=True)
    model, weights = tree.data[0].model, tree.true_weights
    exact = -log_partition(model, weights)
    singles = variable_marginals(model, weights)
    assert bethe_free_energy(model, weights, cluster_marginals(model, weights), singles) == pytest.approx(exact)
    assert mean_field_free_energy(model, weights, singles) > exact
    independent = DenseModel([2, 3], [(0,), (1,)], [np.eye(2, 5), np.eye(3, 5, 2)])
    free = np.random.default_rng(seed).normal(size=5)
    own = variable_marginals(independent, free)
    assert mean_field_free_energy(independent, free, own) == pytest.approx(-log_partition(independent, free))


# --- belief propagation ---


@pytest.mark.parametrize("shape", TREE_SHAPES)
@pytest.mark.parametrize("seed", range(3))
def test_propagation_is_exact_on_trees(shape: Shape, seed: int) -> None:
    problem = generative_problem(seed, shape, base=True)
    model, weights = problem.data[0].model, problem.true_weights
    graph = numbered_graph(model, problem.edges[0])
    beliefs, converged = propagation(model, graph, weights).run()
    assert converged
    exact = cluster_marginals(model, weights)
    assert largest_change(beliefs[: len(exact)], exact) < 1e-9
    full = with_hub_tables(model, graph, exact)
    assert propagation(model, graph, weights).fixed_point_error(full) < 1e-9


@pytest.mark.parametrize("shape", LOOPY_SHAPES)
def test_fixed_point_error_tells_fixed_points_from_other_beliefs(shape: Shape) -> None:
    problem = generative_problem(4, shape, coupling=0.7)
    model, weights = problem.data[0].model, problem.true_weights
    graph = numbered_graph(model, problem.edges[0])
    passing = propagation(model, graph, weights)
    beliefs, converged = passing.run(damping=0.3)
    assert converged
    assert passing.fixed_point_error(beliefs) < 1e-8
    assert form_error(model, graph, beliefs, weights) < 1e-8
    assert violation(model, graph, beliefs) < 1e-8
    not_fixed = with_hub_tables(model, graph, cluster_marginals(model, weights))
    assert passing.fixed_point_error(not_fixed) > 1e-4
    assert form_error(model, graph, not_fixed, weights) > 1e-4
    assert passing.fixed_point_error(passing.run(damping=0.3, max_sweeps=2)[0]) > 1e-6


def test_bethe_value_at_a_fixed_point() -> None:
    """On one cycle of attractive pairs Bethe's log Z differs from the exact one, and BP minimises its energy."""
    problem = ising_problem(0, loop_clusters(4), n=4, coupling=0.6, field=0.2, shared=True)
    model, weights = problem.data[0].model, problem.true_weights
    graph = numbered_graph(model)
    tables, converged = propagation(model, graph, weights).run()
    assert converged
    singles = tables[4:8]
    value = bethe_free_energy(model, weights, tables[: len(model.clusters)], singles)
    assert abs(value + log_partition(model, weights)) > 1e-3
    graphs = [graph]
    one_row = [Observed(model, np.zeros((1, 4), dtype=np.int64))]
    scores = sum(float(t @ f @ weights) for t, f in zip(tables, model.features, strict=True))
    assert value == pytest.approx(-scores - primal_value(one_row, graphs, [tables], 0.0))


# --- graphs of the reference ---


def test_bethe_edges_follow_the_contract() -> None:
    clusters = [(0, 1), (2,), (1, 2), (2,), (1, 0, 2)]
    scopes, edges = bethe_edges([2, 2, 2], clusters)
    assert scopes == [*clusters, (0,), (1,)]
    assert edges == [
        (0, 5, (0,)), (4, 5, (0,)),
        (0, 6, (1,)), (2, 6, (1,)), (4, 6, (1,)),
        (2, 1, (2,)), (3, 1, (2,)), (4, 1, (2,)),
    ]  # fmt: skip
    kept = without_appended_hubs(len(clusters), edges)
    assert kept == [
        (2, 1, (2,)), (3, 1, (2,)), (4, 1, (2,)),
        (0, 4, (0,)), (0, 2, (1,)), (0, 4, (1,)),
    ]  # fmt: skip


def test_bethe_numbers_add_up_to_one_minus_degree() -> None:
    clusters = [(0, 1), (1, 2), (0, 2), (1,)]
    model = DenseModel([2, 2, 2], clusters, [np.zeros((n, 1)) for n in (4, 4, 4, 2)])
    graph = numbered_graph(model)
    for variable in range(3):
        singles = sum(
            number for scope, number in zip(graph.scopes, graph.cluster_numbers, strict=True) if scope == (variable,)
        )
        sepsets = sum(
            number
            for (_, _, sepset), number in zip(graph.edges, graph.sepset_numbers, strict=True)
            if sepset == (variable,)
        )
        assert singles - sepsets == 1 - 2
    flat = numbered_graph(model, entropy="clusters")
    assert flat.scopes == clusters
    assert flat.cluster_numbers == [1, 1, 1, 1]
    assert not any(flat.sepset_numbers)
    assert numbered_graph(model, entropy="clusters", consistency=False).edges == []


# --- the reference's inner problem ---


def uneven(graph: NumberedGraph, rng: np.random.Generator) -> NumberedGraph:
    """The same graph with counting numbers that are all different."""
    numbers = rng.uniform(0.5, 1.5, size=len(graph.scopes))
    return NumberedGraph(graph.scopes, graph.edges, numbers.tolist(), rng.uniform(size=len(graph.edges)).tolist())


@pytest.mark.parametrize("shape", BETHE_SHAPES + EXPLICIT_SHAPES)
@pytest.mark.parametrize("conditional", [False, True])
def test_inner_gradient_and_hessian(shape: Shape, conditional: bool) -> None:
    problem = small_problem(7, shape, conditional)
    rng = np.random.default_rng(1)
    pairs = zip(problem.data, problem.edges, strict=True)
    graphs = [uneven(numbered_graph(seen.model, edges), rng) for seen, edges in pairs]
    inner = inner_problem(problem.data, graphs, prior_variance=1.5)
    g = rng.normal(size=len(inner.base))
    point: Array = rng.normal(size=(inner.matrix.shape[1],))
    _, gradient = inner.value_and_gradient(point, g)
    numeric = finite_difference(lambda x: inner.value_and_gradient(x, g)[0], point)
    np.testing.assert_allclose(gradient, numeric, rtol=1e-5, atol=1e-5)
    along: Array = rng.normal(size=len(point))
    slope = (
        inner.value_and_gradient(point + 1e-5 * along, g)[1] - inner.value_and_gradient(point - 1e-5 * along, g)[1]
    ) / 2e-5
    np.testing.assert_allclose(inner.hessian(point, g) @ along, slope, rtol=1e-5, atol=1e-5)


def test_multipliers_measure_disagreement() -> None:
    problem = generative_problem(0, "dense")
    graph = numbered_graph(problem.data[0].model)
    inner = inner_problem(problem.data, [graph])
    point: Array = np.random.default_rng(0).normal(size=(inner.matrix.shape[1],))
    g = np.zeros(len(inner.base))
    disagreement = inner.value_and_gradient(point, g)[1][inner.n_weights :] / len(problem.data[0].assignments)
    tables = inner.beliefs(point, g)[0]
    assert violation(problem.data[0].model, graph, tables) == pytest.approx(np.abs(disagreement).max())


@pytest.mark.parametrize("shape", BETHE_SHAPES + EXPLICIT_SHAPES)
@pytest.mark.parametrize("prior", [(None, 2.0), (2.0, 0.0), (2.0, 1.0)])
def test_inner_duality(shape: Shape, prior: tuple[float | None, float]) -> None:
    prior_variance, l1 = prior
    problem = small_problem(2, shape, conditional=False)
    graphs = [numbered_graph(problem.data[0].model, problem.edges[0])]
    inner = inner_problem(problem.data, graphs, prior_variance, l1)
    g = np.random.default_rng(3).normal(size=len(inner.base))
    point = solve_inner(inner, g)
    beliefs = inner.beliefs(point, g)
    assert violation(problem.data[0].model, graphs[0], beliefs[0]) < 1e-8
    assert optimality_error(problem.data, beliefs, point[: inner.n_weights], prior_variance, l1) < 1e-7
    assert linearised_value(inner, beliefs, g) == pytest.approx(inner.objective(point, g), abs=1e-6)


def test_penalty_is_the_conjugate_of_the_prior() -> None:
    """penalty(gap) = max over w of gap.w - |w|^2 / (2 sigma2) - c |w|_1, here on a fine grid of w."""
    w = np.linspace(-60, 60, 240_001)
    for gap in (-3.0, -0.5, 0.2, 2.0):
        for variance, cost in ((3.0, 0.0), (3.0, 1.0), (0.5, 0.1)):
            best = (gap * w - w**2 / (2 * variance) - cost * np.abs(w)).max()
            assert penalty(np.array([gap]), variance, cost) == pytest.approx(best, abs=1e-6)
    assert penalty(np.array([0.5]), None, 1.0) == 0.0
    assert penalty(np.array([1.5]), None, 1.0) == float("inf")


@pytest.mark.parametrize("conditional", [False, True])
def test_piecewise_is_a_sum_of_local_likelihoods(conditional: bool) -> None:
    problem = small_problem(11, "ternary", conditional)
    locals_ = []
    for seen in problem.data:
        for i, cluster in enumerate(seen.model.clusters):
            cardinalities = [seen.model.cardinalities[v] for v in cluster]
            base = None if seen.model.base_scores is None else [seen.model.base_scores[i]]
            scope = tuple(range(len(cluster)))
            model = DenseModel(cardinalities, [scope], [seen.model.features[i]], base)
            locals_.append(Observed(model, seen.assignments[:, list(cluster)]))
    weights = maximum_likelihood(locals_, 2.0)
    solution = piecewise(problem.data, 2.0)
    np.testing.assert_allclose(solution.weights, weights, atol=1e-7)
    assert solution.objective == pytest.approx(negative_log_likelihood(locals_, weights, 2.0)[0])


# --- the reference's outer loop ---


@pytest.mark.parametrize("shape", TREE_SHAPES)
@pytest.mark.parametrize("conditional", [False, True])
@pytest.mark.parametrize("seed", range(2))
def test_cccp_on_a_tree_is_maximum_likelihood(shape: Shape, conditional: bool, seed: int) -> None:
    problem = small_problem(seed, shape, conditional, coupling=1.5)
    exact = maximum_likelihood(problem.data, 3.0)
    solution = camel(problem.data, problem.edges, prior_variance=3.0)
    assert solution.converged
    np.testing.assert_allclose(solution.weights, exact, atol=1e-6)
    value, _ = negative_log_likelihood(problem.data, exact, 3.0)
    constant = linearisation_constant(problem.data, solution.graphs)
    assert solution.objective - constant == pytest.approx(value, abs=1e-6)
    zero = camel0(problem.data, problem.edges, prior_variance=3.0)
    assert np.abs(zero.weights - exact).max() > 0.05


def test_the_sign_of_the_linearisation_matters() -> None:
    problem = generative_problem(1, "tree")
    exact = maximum_likelihood(problem.data, 3.0)
    graphs = [numbered_graph(problem.data[0].model)]
    inner = inner_problem(problem.data, graphs, 3.0)
    point, g = None, np.zeros(len(inner.base))
    for _ in range(30):
        point = solve_inner(inner, g, point)
        g = -relinearise(inner, inner.beliefs(point, g))
    assert point is not None
    assert np.abs(point[: inner.n_weights] - exact).max() > 1e-2


@pytest.mark.parametrize("shape", LOOPY_SHAPES)
@pytest.mark.parametrize("conditional", [False, True])
def test_cccp_on_loops(shape: Shape, conditional: bool) -> None:
    problem = small_problem(3, shape, conditional, coupling=2.0)
    solution = camel(problem.data, problem.edges, prior_variance=2.0, tolerance=1e-9)
    assert solution.converged
    assert np.diff(solution.primal_values).min() > -1e-7
    assert solution.primal_values[-1] - solution.primal_values[0] > 1e-3
    assert optimality_error(problem.data, solution.beliefs, solution.weights, 2.0) < 1e-6
    for seen, graph, tables in zip(problem.data, solution.graphs, solution.beliefs, strict=True):
        assert propagation(seen.model, graph, solution.weights).fixed_point_error(tables) < 1e-6
        assert form_error(seen.model, graph, tables, solution.weights) < 1e-6
    constant = linearisation_constant(problem.data, solution.graphs)
    assert solution.objective - constant == pytest.approx(solution.primal_values[-1], abs=1e-6)
    zero = camel0(problem.data, problem.edges, prior_variance=2.0)
    for seen, graph, tables in zip(problem.data, solution.graphs, zero.beliefs, strict=True):
        full = with_hub_tables(seen.model, graph, tables)
        assert propagation(seen.model, graph, zero.weights).fixed_point_error(full) > 1e-3


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_shares_do_not_matter(share: float) -> None:
    problem = generative_problem(6, "ternary", coupling=1.5)
    half = camel(problem.data, problem.edges, prior_variance=5.0)
    other = camel(problem.data, problem.edges, prior_variance=5.0, share=share)
    np.testing.assert_allclose(other.weights, half.weights, atol=1e-7)
    np.testing.assert_allclose(other.primal_values[:5], half.primal_values[:5], atol=1e-6)


def test_a_star_of_edges_is_bethe_without_hubs() -> None:
    problem = generative_problem(2, "star-edges", coupling=1.5)
    model = problem.data[0].model
    assert problem.edges[0] == star_edges(len(model.cardinalities), model.clusters)
    star = camel(problem.data, problem.edges, prior_variance=5.0)
    hubs = camel(problem.data, ["bethe"], prior_variance=5.0)
    np.testing.assert_allclose(star.weights, hubs.weights, atol=1e-7)


def test_the_start_does_not_matter_here() -> None:
    problem = generative_problem(1, "dense", coupling=2.0)
    zero = camel(problem.data, problem.edges, prior_variance=10.0)
    start = empirical_beliefs(problem.data, zero.graphs)
    empirical = camel(problem.data, problem.edges, prior_variance=10.0, start=start)
    np.testing.assert_allclose(empirical.weights, zero.weights, atol=1e-7)
    assert np.abs(maximum_likelihood(problem.data, 10.0) - zero.weights).max() > 0.05


@pytest.mark.parametrize("edges", ["bethe", [(0, 1, (1,)), (1, 2, (2,)), (0, 2, (0,))]], ids=["bethe", "explicit"])
def test_triangle_of_equation_8(edges: EdgeSpec) -> None:
    problem = triangle_of_equation_8(edges)
    np.testing.assert_allclose(feature_sums(problem.data), [3, 0])
    for solution in (camel(problem.data, problem.edges), camel0(problem.data, problem.edges)):
        for table in solution.beliefs[0][:3]:
            np.testing.assert_allclose(table, [1 / 3, 1 / 3, 1 / 3, 0], atol=1e-7)


@pytest.mark.parametrize("shape", ["loop", "ternary", "cycle-edges", "junction", "wide-sepsets"])
def test_full_tables_have_a_closed_form(shape: Shape) -> None:
    problem = full_table_problem(0, shape)
    seen = problem.data[0]
    everything = tuple(range(len(seen.model.cardinalities)))
    solution = camel(problem.data, problem.edges)
    graph = solution.graphs[0]
    frequencies = empirical_beliefs(problem.data, [graph], smoothing=0.0)[0]
    assert min(table.min() for table in frequencies) > 0
    assert largest_change(solution.beliefs[0], frequencies) < 1e-8
    states = joint_states(seen.model.cardinalities)
    closed = np.zeros(len(states))
    for scope, table in zip(graph.scopes, frequencies, strict=True):
        closed += np.log(table)[cluster_state_index(seen.model.cardinalities, scope, states)]
    for i, _, sepset in graph.edges:
        table = marginal(seen.model.cardinalities, graph.scopes[i], frequencies[i], sepset)
        closed -= np.log(table)[cluster_state_index(seen.model.cardinalities, sepset, states)]
    difference = joint_scores(seen.model, solution.weights) - closed
    assert np.ptp(difference) < 1e-6
    assert len(everything) == states.shape[1]


@pytest.mark.parametrize("shape", ["dense", "junction", "cycle-edges"])
@pytest.mark.parametrize("prior_variance", [None, 5.0])
def test_l1_solutions_are_sparse_and_optimal(shape: Shape, prior_variance: float | None) -> None:
    problem = small_problem(2, shape, conditional=False)
    solution = camel(problem.data, problem.edges, prior_variance=prior_variance, l1=6.0, tolerance=1e-9)
    assert solution.converged
    assert 0 < np.count_nonzero(solution.weights == 0) < len(solution.weights)
    assert optimality_error(problem.data, solution.beliefs, solution.weights, prior_variance, 6.0) < 1e-6
    constant = linearisation_constant(problem.data, solution.graphs)
    primal = primal_value(problem.data, solution.graphs, solution.beliefs, prior_variance, 6.0)
    assert solution.objective - constant == pytest.approx(primal, abs=1e-5)


# --- the random models ---


@settings(max_examples=30, deadline=None, derandomize=True)
@given(problem=problems())
def test_random_problems_are_well_formed(problem: Problem) -> None:
    assert len(problem.data) == len(problem.edges)
    for seen, edges in zip(problem.data, problem.edges, strict=True):
        model = seen.model
        assert seen.assignments.shape[1] == len(model.cardinalities)
        assert ((seen.assignments >= 0) & (seen.assignments < model.cardinalities)).all()
        assert {v for cluster in model.clusters for v in cluster} == set(range(len(model.cardinalities)))
        assert len(model.features) == len(model.clusters)
        for i, j, sepset in () if isinstance(edges, str) else edges:
            assert i != j
            assert set(sepset) <= set(model.clusters[i]) & set(model.clusters[j])
    assert np.isfinite(feature_sums(problem.data)).all()


def test_random_features_are_shared_and_sparse() -> None:
    rng = np.random.default_rng(0)
    clusters = loop_clusters(4)
    tables = random_features(rng, [2, 3, 2, 3], clusters, 6)
    used = np.array([(np.abs(table) > 0).any(axis=0) for table in tables])
    assert (used.sum(axis=0) > 1).any()
    assert not used.all()
    assert any((table == 0).mean() > 0.3 for table in tables)
    assert any(len(set(table[:, 0][table[:, 0] != 0])) < np.count_nonzero(table[:, 0]) for table in tables)


def test_sampling_follows_the_model() -> None:
    problem = generative_problem(0, "loop", rows=20_000)
    model = problem.data[0].model
    frequencies = empirical_beliefs(problem.data, [numbered_graph(model, entropy="clusters")], 0.0)[0]
    assert largest_change(frequencies, cluster_marginals(model, problem.true_weights)) < 0.02


def test_entropy_of_certain_and_uniform_tables() -> None:
    assert entropy(np.array([1.0, 0.0])) == 0.0
    assert entropy(np.full(5, 0.2)) == pytest.approx(np.log(5))
    assert isinstance(Propagation([2], [(0,)], [np.zeros(2)], []).run()[1], bool)
