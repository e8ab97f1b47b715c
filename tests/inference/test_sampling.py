"""Gibbs sampling against enumeration, with its own account of its errors."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import DenseModel, cluster_marginals, n_states, variable_marginals
from random_models import BETHE_SHAPES, EXPLICIT_SHAPES, generative_problem

import bactrian as bt
from bactrian.engines.numba.gibbs import draw

SHAPES = BETHE_SHAPES + EXPLICIT_SHAPES


def model_of(dense: DenseModel, edges="bethe") -> bt.LogLinearModel:
    graph = bt.ClusterGraph(dense.cardinalities, dense.clusters, edges)
    return bt.LogLinearModel(graph, dense.features, dense.base_scores)


def table_model(cardinalities, clusters, tables) -> DenseModel:
    features = [np.zeros((n_states(cardinalities, cluster), 1)) for cluster in clusters]
    return DenseModel(list(cardinalities), list(clusters), features, [np.asarray(t, dtype=float) for t in tables])


def infer(model, weights, **options):
    return bt.infer(model, weights, method="gibbs", **options)


@pytest.mark.parametrize("seed", range(20))
def test_within_four_standard_errors_of_exact(seed: int) -> None:
    shape = SHAPES[seed % len(SHAPES)]
    problem = generative_problem(seed, shape, size=4, rows=1, coupling=[0.5, 1.0, 1.5][seed % 3], base=True)
    dense, weights = problem.data[0].model, problem.true_weights
    evidence = {1: 1} if seed % 4 == 3 else None
    result = infer(model_of(dense, problem.edges[0]), weights, evidence=evidence, seed=seed)
    assert result.converged
    assert result.log_partition is None
    exact = variable_marginals(dense, weights, evidence)
    for found, expected, error in zip(result.variables, exact, result.standard_errors, strict=True):
        assert found.sum() == pytest.approx(1.0, abs=1e-9)
        assert np.abs(found - expected).max() < 0.05
        assert (np.abs(found - expected) <= 4.0 * error + 1e-9).all()
    for i, expected in enumerate(cluster_marginals(dense, weights, evidence)):
        np.testing.assert_allclose(result.clusters[i].ravel(), expected, atol=0.06)
        assert result.clusters[i].shape == tuple(dense.cardinalities[v] for v in dense.clusters[i])


def test_a_tree_is_one_block_and_exact() -> None:
    problem = generative_problem(2, "tree", size=7, rows=1, coupling=3.0)
    dense, weights = problem.data[0].model, problem.true_weights
    result = infer(model_of(dense), weights, n_samples=10, burn_in=0, r_hat=np.inf)
    assert result.n_blocks == 1
    for found, expected in zip(result.variables, variable_marginals(dense, weights), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-9)


def test_single_sites_agree_with_blocks() -> None:
    problem = generative_problem(4, "dense", size=4, rows=1, coupling=0.7)
    dense, weights = problem.data[0].model, problem.true_weights
    model = model_of(dense)
    single, blocked = infer(model, weights, blocked=False, n_samples=4000), infer(model, weights)
    assert single.n_blocks > blocked.n_blocks == 2
    for v, expected in enumerate(variable_marginals(dense, weights)):
        assert (np.abs(single.variables[v] - expected) <= 4.0 * single.standard_errors[v] + 1e-9).all()


def test_seeds_decide_and_threads_do_not() -> None:
    problem = generative_problem(4, "dense", size=4, rows=1)
    models = [model_of(problem.data[0].model)] * 3
    options = {"n_samples": 50, "burn_in": 10}
    one = infer(models, problem.true_weights, seed=1, n_threads=1, r_hat=np.inf, **options)
    two = infer(models, problem.true_weights, seed=1, n_threads=3, r_hat=np.inf, **options)
    other = infer(models, problem.true_weights, seed=2, n_threads=3, r_hat=np.inf, **options)
    for a, b, c in zip(one, two, other, strict=True):
        assert np.array_equal(a.variables[0], b.variables[0])
        assert not np.array_equal(a.variables[0], c.variables[0])
    assert not np.array_equal(one[0].variables[0], one[1].variables[0])


def test_thinning_keeps_the_number_of_samples() -> None:
    problem = generative_problem(4, "dense", size=4, rows=1)
    result = infer(model_of(problem.data[0].model), problem.true_weights, n_samples=500, thinning=3, burn_in=7)
    assert result.iterations == 4 * (7 + 3 * 500)
    assert result.clusters[0].sum() == pytest.approx(1.0)


def test_hard_constraints_start_from_an_allowed_state() -> None:
    """Colourings of a cycle of five with three colours: every variable is uniform by symmetry."""
    colours = np.where(np.eye(3, dtype=bool), -np.inf, 0.0).ravel()
    clusters = [(v, (v + 1) % 5) for v in range(5)]
    dense = table_model([3] * 5, clusters, [colours] * 5)
    result = infer(model_of(dense), [0.0], seed=5)
    for found, error in zip(result.variables, result.standard_errors, strict=True):
        assert (np.abs(found - 1.0 / 3.0) <= 4.0 * error + 1e-9).all()
    for i in range(5):
        assert np.diag(result.clusters[i]).tolist() == [0.0] * 3


def test_a_start_that_only_decoding_finds() -> None:
    """One allowed state among 4^6, in a single cluster."""
    table = np.full(4**6, -np.inf)
    table[1234] = 0.0
    dense = table_model([4] * 6, [tuple(range(6))], [table])
    result = infer(model_of(dense), [0.0], n_samples=10, burn_in=0)
    expected = np.unravel_index(1234, (4,) * 6)
    assert [int(np.argmax(p)) for p in result.variables] == [int(x) for x in expected]
    assert [float(p.max()) for p in result.variables] == [1.0] * 6


def test_chains_stuck_apart_are_told() -> None:
    """Three variables that must be equal are never moved together, so chains keep what they started with."""
    table = np.full((2, 2, 2), -np.inf)
    table[0, 0, 0] = table[1, 1, 1] = 0.0
    model = model_of(table_model([2] * 3, [(0, 1, 2)], [table]))
    with pytest.warns(bt.ConvergenceWarning, match="R-hat"):
        result = infer(model, [0.0], n_chains=8, n_samples=100)
    assert not result.converged
    assert (result.r_hat == np.inf).all()


def test_contradictions_are_errors() -> None:
    differ = np.where(np.eye(2, dtype=bool), -np.inf, 0.0).ravel()
    model = model_of(table_model([2] * 3, [(0, 1), (1, 2)], [differ] * 2))
    with pytest.raises(ValueError, match="contradicts"):
        infer(model, [0.0], evidence={0: 0, 2: 1})
    odd = model_of(table_model([2] * 3, [(0, 1), (1, 2), (0, 2)], [differ] * 3))
    with pytest.raises(ValueError, match="no joint state has positive probability"):
        infer(odd, [0.0])


@pytest.mark.parametrize(("name", "value"), [("n_samples", 3), ("burn_in", -1), ("thinning", 0), ("n_chains", 0)])
def test_bad_options_are_named(name: str, value: int) -> None:
    model = model_of(table_model([2], [(0,)], [np.zeros(2)]))
    with pytest.raises(ValueError, match=name):
        infer(model, [0.0], **{name: value})


@settings(max_examples=30)
@given(st.integers(0, 2**20), st.sampled_from([1, 50]))
def test_extremes_never_give_nan(seed: int, cardinality: int) -> None:
    rng = np.random.default_rng(seed)
    cardinalities = [cardinality, 2, 3]
    clusters = [(0, 1), (1, 2), (2, 0), (0, 1, 2)]
    tables = [rng.choice([-700.0, 0.0, 700.0], size=n_states(cardinalities, c)) for c in clusters]
    model = model_of(table_model(cardinalities, clusters, tables))
    result = infer(model, [0.0], n_samples=20, burn_in=5, r_hat=np.inf)
    for found, error in zip(result.variables, result.standard_errors, strict=True):
        assert np.isfinite(found).all()
        assert np.isfinite(error).all()
        assert found.sum() == pytest.approx(1.0, abs=1e-9)


def test_states_are_drawn_with_their_probabilities() -> None:
    probabilities, random = np.array([9.0, 0.0, 0.25, 0.75]), np.random.default_rng(0)
    drawn = np.bincount([draw(probabilities, 1, 3, random) for _ in range(4000)], minlength=3)
    assert drawn[0] == 0
    assert abs(drawn[1] - 1000) < 4.0 * np.sqrt(750.0)
