"""Mean field against enumeration: a lower bound, monotone, honest about forbidden states."""

from __future__ import annotations

import warnings
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from oracle import DenseModel, log_partition, mean_field_free_energy, n_states, variable_marginals
from random_models import BETHE_SHAPES, EXPLICIT_SHAPES, Problem, Shape, generative_problem, problems

import bactrian as bt

DIFFER = np.where(np.eye(2, dtype=bool), -np.inf, 0.0).ravel()


def model_of(dense: DenseModel, edges="bethe") -> bt.LogLinearModel:
    graph = bt.ClusterGraph(dense.cardinalities, dense.clusters, edges)
    return bt.LogLinearModel(graph, dense.features, dense.base_scores)


def table_model(cardinalities, clusters, tables) -> DenseModel:
    features = [np.zeros((n_states(cardinalities, cluster), 1)) for cluster in clusters]
    return DenseModel(list(cardinalities), list(clusters), features, [np.asarray(t, dtype=float) for t in tables])


def infer(model, weights, **options):
    return bt.infer(model, weights, method="mean-field", **options)


@pytest.mark.parametrize("shape", BETHE_SHAPES + EXPLICIT_SHAPES)
@pytest.mark.parametrize("seed", range(4))
def test_the_bound_is_that_of_its_beliefs(shape: Shape, seed: int) -> None:
    problem = generative_problem(seed, shape, size=4, rows=1, coupling=[0.3, 1.0, 3.0][seed % 3], base=True)
    dense, weights = problem.data[0].model, problem.true_weights
    evidence = {1: 1} if seed % 2 else None
    result = infer(model_of(dense, problem.edges[0]), weights, evidence=evidence)
    beliefs = list(result.variables)
    assert result.converged
    assert result.log_partition <= log_partition(dense, weights, evidence) + 1e-9
    assert result.log_partition == pytest.approx(-mean_field_free_energy(dense, weights, beliefs), abs=1e-9)
    for i, cluster in enumerate(dense.clusters):
        product = np.ones(())
        for v in cluster:
            product = np.multiply.outer(product, beliefs[v])
        np.testing.assert_allclose(result.clusters[i], product, atol=1e-12)
    if evidence:
        assert beliefs[1].tolist() == np.eye(dense.cardinalities[1])[1].tolist()


def test_the_bound_never_falls() -> None:
    problem = generative_problem(7, "dense", size=6, rows=1, coupling=2.0)
    model = model_of(problem.data[0].model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bt.ConvergenceWarning)
        bounds = [infer(model, problem.true_weights, max_iterations=n).log_partition for n in range(1, 25)]
    assert all(later >= earlier - 1e-12 for earlier, later in pairwise(bounds))


def test_independent_variables_are_exact() -> None:
    rng = np.random.default_rng(0)
    dense = table_model([3, 50, 1, 2], [(0,), (1,), (2,), (1,)], [rng.normal(size=k) for k in (3, 50, 1, 50)])
    result = infer(model_of(dense), [0.0])
    assert result.log_partition == pytest.approx(log_partition(dense, np.zeros(1)), abs=1e-10)
    for found, expected in zip(result.variables, variable_marginals(dense, np.zeros(1)), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-12)


def test_more_starts_are_no_worse_and_seeded() -> None:
    agree = 2.0 * np.eye(2).ravel()
    dense = table_model([2] * 4, [(0, 1), (1, 2), (2, 3), (0, 3)], [agree] * 4)
    model = model_of(dense)
    one, many = infer(model, [0.0]), infer(model, [0.0], restarts=8, seed=3)
    # The uniform start is a saddle: symmetric, and never left.
    assert many.log_partition > one.log_partition + 0.1
    again = infer(model, [0.0], restarts=8, seed=3, n_threads=1)
    assert again.log_partition == many.log_partition
    assert np.array_equal(np.stack(again.variables), np.stack(many.variables))
    with pytest.raises(ValueError, match="restarts"):
        infer(model, [0.0], restarts=0)


def test_forbidden_states_leave_a_finite_bound_where_one_is_found() -> None:
    colours = np.where(np.eye(3, dtype=bool), -np.inf, 0.0).ravel()
    clusters = [(0, 1), (1, 2), (2, 3), (0, 3), (0, 2)]
    dense = table_model([3] * 4, clusters, [colours] * 5)
    for edges in ("bethe", []):
        result = infer(model_of(dense, edges), [0.0])
        assert -np.inf < result.log_partition <= log_partition(dense, np.zeros(1)) + 1e-9
        for i in range(5):
            assert np.diag(result.clusters[i]).tolist() == [0.0] * 3


def test_observed_variables_are_one_hot_beside_explicit_graphs() -> None:
    scores = np.random.default_rng(0).normal(size=(40, 2, 9))
    for pair in scores:
        dense = table_model([3, 3, 3], [(0, 1), (1, 2)], pair)
        models = [model_of(dense, [(0, 1, (1,))]), model_of(dense)]
        for result in bt.infer(models, np.zeros(1), "mean-field", [{1: 2}, {1: 2}]):
            assert result.variables[1].tolist() == [0.0, 0.0, 1.0]


def test_contradictions_are_errors() -> None:
    model = model_of(table_model([2] * 3, [(0, 1), (1, 2)], [DIFFER] * 2))
    with pytest.raises(ValueError, match="contradicts"):
        infer(model, [0.0], evidence={0: 0, 2: 1})


def test_many_models_at_once() -> None:
    shapes = BETHE_SHAPES + EXPLICIT_SHAPES
    drawn = [generative_problem(s, shape, size=4, rows=1) for s, shape in enumerate(shapes)]
    models = [model_of(p.data[0].model, p.edges[0]) for p in drawn]
    weights = drawn[0].true_weights
    together = infer(models, weights, n_threads=2)
    for model, result in zip(models, together, strict=True):
        alone = infer(model, weights)
        assert result.log_partition == alone.log_partition
        assert result.iterations == alone.iterations


@given(problems())
def test_extreme_scores_never_give_nan(problem: Problem) -> None:
    dense, edges = problem.data[0].model, problem.edges[0]
    weights = 700.0 * np.sign(problem.true_weights)
    result = infer(model_of(dense, edges), weights)
    assert result.log_partition <= log_partition(dense, weights) + 1e-6
    for belief in result.variables:
        assert np.isfinite(belief).all()
        assert belief.sum() == pytest.approx(1.0, abs=1e-9)
