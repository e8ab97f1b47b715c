"""Annealed importance sampling against enumeration: intervals hold the truth, marginals are near it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import bactrian as bt

STATES = {n: np.array(list(itertools.product((0, 1), repeat=n)), dtype=np.int64) for n in (8, 10)}


def random_model(seed: int, n: int) -> tuple[bt.LogLinearModel, np.ndarray]:
    """Couplings of random size up to 5 on a random graph, and the log scores of all joint states."""
    random = np.random.default_rng(seed)
    strength, kind = random.uniform(0.5, 5.0), seed % 3
    if kind == 0:
        scopes = [pair for pair in itertools.combinations(range(n), 2) if random.random() < 0.4]
    elif kind == 1:
        scopes = list(itertools.combinations(range(n), 2))
    else:
        scopes = [tuple(sorted(random.choice(n, 3, replace=False).tolist())) for _ in range(n)]
    tables = [strength * random.uniform(-1.0, 1.0, 2 ** len(scope)) for scope in scopes]
    scopes += [(v,) for v in range(n)]
    tables += [random.normal(0.0, 0.2, 2) for _ in range(n)]
    scores = np.zeros(len(STATES[n]))
    for scope, table in zip(scopes, tables, strict=True):
        scores += table.reshape([2] * len(scope))[tuple(STATES[n][:, v] for v in scope)]
    features = [np.zeros((table.size, 0)) for table in tables]
    return bt.LogLinearModel(bt.ClusterGraph([2] * n, scopes), features, tables), scores


def truth(scores: np.ndarray) -> float:
    return float(np.logaddexp.reduce(scores))


@pytest.mark.slow
def test_intervals_hold_the_truth() -> None:
    held = 0
    for seed in range(120):
        model, scores = random_model(seed, 10)
        low, high = bt.infer(model, [], "annealing", seed=seed, width=0.4, n_samples=256).interval
        held += low <= truth(scores) <= high
    assert held >= 0.93 * 120


@pytest.mark.parametrize("seed", range(6))
def test_near_the_truth(seed: int) -> None:
    model, scores = random_model(seed, 8)
    result = bt.infer(model, [], "annealing", seed=seed)
    assert result.converged
    assert result.bound is None
    assert result.interval[0] <= truth(scores) <= result.interval[1] <= result.interval[0] + 0.4
    p = np.exp(scores - truth(scores))
    for v, found in enumerate(result.variables):
        assert found[1] == pytest.approx(p[STATES[8][:, v] == 1].sum(), abs=0.08)
    for scope, found in zip(model.graph.clusters, result.clusters, strict=True):
        expected = np.zeros(found.shape)
        np.add.at(expected, tuple(STATES[8][:, v] for v in scope), p)
        np.testing.assert_allclose(found, expected, atol=0.08)


def test_threads_and_other_models_change_nothing() -> None:
    models = [random_model(seed, 8)[0] for seed in (0, 2)]
    evidence = [{0: 1}, {3: 0}]
    together = bt.infer(models, [], "annealing", evidence, n_threads=3, n_samples=64)
    alone = bt.infer(models[0], [], "annealing", evidence[0], n_threads=1, n_samples=64)
    assert together[0].interval == alone.interval
    assert together[0].variables[0].tolist() == [0.0, 1.0]
    assert bt.infer(models[0], [], "annealing", evidence[0], seed=1, n_samples=64).interval != alone.interval


def test_hard_constraints() -> None:
    graph = bt.ClusterGraph([3] * 5, [(v, (v + 1) % 5) for v in range(5)])
    with np.errstate(divide="ignore"):
        different = np.log(1.0 - np.eye(3)).ravel()
    model = bt.LogLinearModel(graph, [np.zeros((9, 0))] * 5, [different] * 5)
    result = bt.infer(model, [], "annealing")
    low, high = result.interval
    assert low <= np.log(30.0) <= high  # colourings of a cycle of five: 2^5 - 2
    assert all(np.trace(table) == 0.0 for table in result.clusters[:5])
    with pytest.raises(ValueError, match=r"probability zero|contradict"):
        bt.infer(model, [], "annealing", {0: 0, 1: 0})


def test_stops_when_told() -> None:
    model, scores = random_model(1, 10)
    seen = []
    with pytest.warns(bt.ConvergenceWarning):
        result = bt.infer(
            model, [], "annealing", width=1e-6, callback=lambda at: seen.append(at.residual) or len(seen) == 2
        )
    assert (result.iterations, result.status, len(seen)) == (2, "stopped by the callback", 2)
    with pytest.warns(bt.ConvergenceWarning):
        result = bt.infer(model, [], "annealing", width=1e-6, max_seconds=0.5)
    assert result.seconds < 5.0
    assert "time limit" in result.status
    assert np.isfinite(result.log_partition)
    assert abs(result.log_partition - truth(scores)) < 0.5
    with pytest.warns(bt.ConvergenceWarning):
        late = bt.infer(model, [], "annealing", max_seconds=1e-9)
    assert late.log_partition is None
    assert late.interval is None
    assert all(p.sum() == pytest.approx(1.0) for p in late.variables)


@pytest.mark.parametrize("options", [{"n_samples": 0}, {"width": 0.0}, {"r_hat": 1.1}])
def test_bad_options(options: dict) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        bt.infer(random_model(0, 8)[0], [], "annealing", **options)
