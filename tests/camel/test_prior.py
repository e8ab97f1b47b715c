"""A variance per weight. The judge: scaling a feature by s is the same as scaling its weight's variance by s^2."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.optimize
from numpy.typing import NDArray
from ranks import together

import bactrian as bt
from bactrian.camel.dual import Dual
from bactrian.camel.entropy import carve
from bactrian.camel.prior import Prior
from bactrian.graphs.packing import pack
from bactrian.parallel.threads import Context, Workers
from bactrian.runs.checkpoints import learn_in_segments

Floats = NDArray[np.float64]
SCALES = np.array([0.3, 2.0, 1.0, 0.5, 1.5])
LEARNERS: list[Any] = [
    "piecewise",
    "camel0",
    "cccp",
    "cccp-empirical",
    "exact",
    "lbp",
    "trw",
    "convex",
    "pseudolikelihood",
    "piecewise-pseudolikelihood",
    bt.Camel(entropy="convex"),
    bt.Camel(solver="joint", entropy="clusters"),
]


def instances(scales: Floats, seed: int = 0) -> list[bt.Instance]:
    """Triangles of three-state variables with random features."""
    rng = np.random.default_rng(seed)
    graph = bt.ClusterGraph([3, 3, 3], [(0,), (0, 1), (1, 2), (0, 2)])
    found = []
    for _ in range(6):
        features = [rng.normal(size=(size, 5)) * scales for size in (3, 9, 9, 9)]
        found.append(bt.Instance(bt.LogLinearModel(graph, features), rng.integers(0, 3, 3)))
    return found


def graphs(node_scale: float = 1.0, edge_scale: float = 1.0, part: slice = slice(None)) -> bt.GraphData:
    """Rings of five nodes, whose edges have one constant input."""
    rng = np.random.default_rng(3)
    inputs, labels = rng.normal(size=(8, 5, 2)), rng.integers(0, 2, (8, 5))
    inputs, labels = inputs[part], labels[part]
    n = len(labels)
    edges = np.concatenate([[(5 * m + i, 5 * m + (i + 1) % 5) for i in range(5)] for m in range(n)])
    return bt.GraphData(
        node_scale * inputs.reshape(-1, 2),
        edges,
        n_labels=2,
        labels=labels.ravel(),
        tables="symmetric",
        edge_inputs=np.full((5 * n, 1), edge_scale),
        node_counts=[5] * n,
    )


@pytest.mark.parametrize("learner", LEARNERS, ids=str)
def test_scaled_features_are_scaled_variances(learner: Any) -> None:
    options: dict[str, Any] = {"tolerance": 1e-8, "max_iterations": 50_000}
    ours = bt.learn(instances(np.ones(5)), learner, prior_variance=SCALES**2, **options)
    judge = bt.learn(instances(SCALES), learner, prior_variance=1.0, **options)
    assert ours.objective == pytest.approx(judge.objective, rel=1e-6)
    np.testing.assert_allclose(ours.weights, SCALES * judge.weights, atol=2e-4)


@pytest.mark.parametrize("entropy", ["clusters", "bethe"])
def test_gradient_by_finite_differences(entropy: str) -> None:
    packed = pack(instances(np.ones(5)))
    dual = Dual(packed, carve(packed, entropy), Prior(np.array([0.1, 2.0, np.inf, 0.5, 7.0])), Context(Workers(1)))
    weights = np.random.default_rng(1).normal(size=5)
    gradient = dual.evaluate(weights).gradient
    for k in range(5):
        step = np.zeros(5)
        step[k] = 1e-5
        slope = (dual.evaluate(weights + step).value - dual.evaluate(weights - step).value) / 2e-5
        assert gradient[k] == pytest.approx(slope, abs=1e-6)


def test_weights_without_a_prior_beside_others_by_scipy() -> None:
    """Multinomial logistic regression: one cluster, a penalty on two of three weights."""
    rng = np.random.default_rng(2)
    features, states = rng.normal(size=(40, 3, 3)), rng.integers(0, 3, 40)
    graph = bt.ClusterGraph([3], [(0,)])
    data = [bt.Instance(bt.LogLinearModel(graph, [f]), [y]) for f, y in zip(features, states, strict=True)]

    def objective(w: Floats) -> float:
        scores = features @ w
        return float(
            (np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(40), states]).sum() + w[0] ** 2 / 0.2 + w[2] ** 2
        )

    judge = scipy.optimize.minimize(objective, np.zeros(3), tol=1e-12)
    ours = bt.learn(data, "exact", prior_variance=[0.1, np.inf, 0.5], tolerance=1e-8)
    assert ours.converged
    assert ours.objective == pytest.approx(judge.fun, rel=1e-9)
    np.testing.assert_allclose(ours.weights, judge.x, atol=1e-5)


def test_an_array_of_equal_variances_is_the_number() -> None:
    for variance, same, l1 in ((2.5, 2.5, 0.0), (np.inf, None, 0.0), (2.5, 2.5, 0.2), (np.inf, None, 0.2)):
        array = bt.learn(instances(np.ones(5)), prior_variance=np.full(5, variance), l1=l1, tolerance=1e-8)
        number = bt.learn(instances(np.ones(5)), prior_variance=same, l1=l1, tolerance=1e-8)
        assert array.status is number.status
        assert array.objective == pytest.approx(number.objective, rel=1e-9)


def test_a_free_weight_that_runs_away_is_reported() -> None:
    graph = bt.ClusterGraph([2], [(0,)])
    model = bt.LogLinearModel(graph, [[[1.0, 0.0], [0.0, 0.5]]])
    with pytest.warns(bt.ConvergenceWarning, match="unbounded"):
        solution = bt.learn(bt.Samples(model, [[0], [0]]), "exact", prior_variance=[np.inf, 1.0])
    assert solution.status is bt.Status.UNBOUNDED
    assert bt.learn(bt.Samples(model, [[0], [0]]), "exact", prior_variance=[1.0, 1.0]).converged


def test_every_route_has_it(tmp_path: Path) -> None:
    """Packed graphs in memory, in files, over ranks and in segments, judged by scaled inputs."""
    variances = np.r_[np.full(4, 4.0), np.full(3, 0.25)]
    options: dict[str, Any] = {"tolerance": 1e-8}
    for method in ("cccp", "camel0", "exact"):
        judge = bt.learn(graphs(2.0, 0.5), method, prior_variance=1.0, **options)
        wanted = judge.weights * np.sqrt(variances)
        found = {"memory": bt.learn(graphs(), method, prior_variance=variances, **options)}
        segments = {"every": 3, "save": lambda checkpoint: None, "max_iterations": 5_000}
        found["segments"] = learn_in_segments(graphs(), method, prior_variance=variances, **segments, **options)
        parts = [slice(0, 3), slice(3, 8)]
        if method != "exact":  # rings are no trees
            folder = bt.PackedFolder.write(tmp_path / method, [graphs(part=part) for part in parts])
            found["files"] = bt.learn(folder, method, prior_variance=variances, **options)
        ranks = together(
            2,
            lambda rank, method=method, parts=parts: bt.learn(
                graphs(part=parts[rank.rank]), method, prior_variance=variances, communicator=rank, **options
            ),
        )
        found |= {f"rank {r}": solution for r, solution in enumerate(ranks)}
        for route, solution in found.items():
            np.testing.assert_allclose(solution.weights, wanted, atol=1e-5, err_msg=f"{method}, {route}")


def test_the_device_has_it() -> None:
    pytest.importorskip("torch")
    import bactrian.torch as btt

    variances = np.r_[np.full(4, 4.0), np.full(3, 0.25)]
    for method in ("cccp", "camel0", "convex", "piecewise"):
        ours = btt.learn(graphs(), method, device="cpu", prior_variance=variances, tolerance=1e-8)
        judge = btt.learn(graphs(2.0, 0.5), method, device="cpu", prior_variance=1.0, tolerance=1e-8)
        assert ours.objective == pytest.approx(judge.objective, rel=1e-8)
        np.testing.assert_allclose(ours.weights, judge.weights * np.sqrt(variances), atol=1e-5, err_msg=method)


@pytest.mark.parametrize(
    ("variance", "error", "words"),
    [
        ([1.0, 2.0], ValueError, r"one variance per weight: expected shape \(5,\), found \(2,\)"),
        ([1.0, 2.0, 0.0, 1.0, 1.0], ValueError, "weight 2 has 0.0"),
        ([1.0, 2.0, np.nan, 1.0, 1.0], ValueError, "weight 2 has nan"),
        (-1.0, ValueError, "must be positive"),
        (np.inf, ValueError, "None for no prior"),
        ("ten", TypeError, "'ten'"),
        ({"nodes": 1.0}, TypeError, "one per weight"),
    ],
)
def test_bad_variances(variance: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        bt.learn(instances(np.ones(5)), prior_variance=variance)
