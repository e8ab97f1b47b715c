"""Weights in units of their own: the same optimum in fewer evaluations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import bactrian as bt
from bactrian.camel.prior import Prior
from bactrian.camel.profiled import Units
from bactrian.camel.schedule import SCHEDULE
from bactrian.engines.numba.threads import Workers
from bactrian.graphs.packing import pack


def chains(n: int, active: Any = None, seed: int = 0) -> bt.GraphData:
    """Chains of five nodes with three labels, whose features occur once in two nodes or once in hundreds."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, 5 * n)
    inputs = (rng.random((5 * n, 40)) < 0.5 ** (1.0 + np.arange(40) / 5.0)).astype(float)
    inputs[np.arange(5 * n), labels] += 0.5  # not 0 or 1 alone
    edges = [(5 * m + i, 5 * m + i + 1) for m in range(n) for i in range(4)]
    return bt.GraphData(inputs, edges, n_labels=3, labels=labels, node_counts=[5] * n, tables="full", active=active)


def test_curvature_is_that_of_squared_features() -> None:
    data = chains(20)
    packed = pack(data)
    units = Units(packed, Prior(4.0), np.zeros(packed.n_weights), Workers(1))
    nodes = np.repeat(np.square(data.scores.inputs.dense).sum(axis=0), 3) / 3
    curvature = np.concatenate([nodes, np.full(9, 20 * 4 / 9)]) + 0.25
    np.testing.assert_allclose(units.weights(np.ones(packed.n_weights)), curvature**-SCHEDULE.unit_power)


def test_gradient_is_that_of_the_function_seen() -> None:
    """By differences, with some weights that are not learned; the solver's norm is that of the weights' gradient."""
    rng = np.random.default_rng(1)
    data = chains(20, active=rng.random(129) < 0.5)
    packed, start = pack(data), np.zeros(129)
    start[:3] = 1.0
    units = Units(packed, Prior(4.0), start, Workers(1))
    target = rng.normal(size=129)

    def function(weights: Any) -> tuple[float, Any]:
        return float(np.sin(weights * target).sum()), np.cos(weights * target) * target

    x = units.of(start)
    np.testing.assert_allclose(units.weights(x), start)
    assert x.size == (data.scores.active | (start != 0.0)).sum() < 129
    seen = units.seen(function)
    x += 0.1 * rng.normal(size=x.size)
    gradient = seen(x)[1]
    for k in range(x.size):
        step = 1e-6 * (np.arange(x.size) == k)
        assert gradient[k] == pytest.approx((seen(x + step)[0] - seen(x - step)[0]) / 2e-6, abs=1e-7)
    learned = data.scores.active | (start != 0.0)
    assert units.measure(gradient) == pytest.approx(np.abs(function(units.weights(x))[1][learned]).max())


def test_exact_likelihood_takes_fewer_evaluations_to_the_same_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    data = chains(300, active=np.random.default_rng(2).random(129) < 0.8)
    options: Any = {"prior_variance": 100.0, "tolerance": 1e-7, "n_threads": 1}
    ours = bt.learn(data, "exact", **options)
    monkeypatch.setattr("bactrian.learners.likelihood.Units", lambda *_: None)
    plain = bt.learn(data, "exact", **options)
    assert ours.converged
    np.testing.assert_allclose(ours.weights, plain.weights, atol=1e-5)
    assert ours.objective == pytest.approx(plain.objective, rel=1e-12)
    assert ours.moment_gap == pytest.approx(0.0, abs=1e-5)
    assert not ours.weights[~data.scores.active].any()
    assert ours.evaluations < 0.7 * plain.evaluations
    np.testing.assert_allclose(ours.beliefs[7][0], plain.beliefs[7][0], atol=1e-6)
