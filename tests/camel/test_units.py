"""Weights in units of their own: the same optimum in fewer evaluations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from ranks import together
from scipy.ndimage import median_filter
from scipy.optimize import minimize
from scipy.special import logsumexp

import bactrian as bt
from bactrian.camel.accuracy import SCHEDULE
from bactrian.camel.prior import Prior
from bactrian.camel.units import Learned, curvature_units, feature_units
from bactrian.engines.memory import HostVectors
from bactrian.graphs.inputs import BundledRows, Inputs
from bactrian.graphs.packing import pack
from bactrian.parallel.threads import Workers
from bactrian.solvers.lbfgs import Memory, minimise


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
    nodes = np.repeat(np.square(data.scores.inputs.dense).sum(axis=0), 3) / 3
    curvature = np.concatenate([nodes, np.full(9, 20 * 4 / 9)]) + 0.25
    units = curvature_units(packed, Prior(4.0), Workers(1))
    np.testing.assert_allclose(units, curvature**-SCHEDULE.unit_power)


@pytest.mark.parametrize("kind", ["dense", "sparse", "bundled"])
def test_sizes_of_features_are_those_where_they_are_not_0(kind: str) -> None:
    rng = np.random.default_rng(0)
    entries = np.where(rng.random((30, 4)) < 0.5, 10.0 ** np.arange(-2, 2) * rng.normal(size=(30, 4)), 0.0)
    entries[:, 2] = 0.0
    given: Any = entries
    if kind == "sparse":
        given = sp.csr_array(entries)
    if kind == "bundled":  # the first rows are of their own, the others in bundles
        use = sp.csr_array((np.ones(3), ([0, 4, 4], [2, 0, 1])), shape=(10, 20))
        given = BundledRows(sp.csr_array(entries[:10]), use, sp.csr_array(entries[10:]))
    squares, counts = Inputs(given).squares_and_counts()
    np.testing.assert_allclose(squares, [np.square(column).sum() for column in entries.T])
    np.testing.assert_array_equal(counts, [(column != 0.0).sum() for column in entries.T])


def test_units_are_those_of_features_and_strong_priors() -> None:
    """Rounded to powers of two; where all are 1, nothing is counted in units at all."""
    data = chains(20)
    assert feature_units([pack(data)], Prior(10.0)) is None
    scaled = bt.GraphData(
        data.scores.inputs.dense * ([1000.0] + [1.0] * 39), data.edges, n_labels=3, labels=data.labels,
        node_counts=[5] * 20, tables="full",
    )  # fmt: skip
    strong = np.full(scaled.n_weights, 10.0)
    strong[3] = 3.0 / 100.0 / 4.0**2  # of a third of 100 nodes
    units = feature_units([pack(scaled)], Prior(strong))
    np.testing.assert_array_equal(units[:6], [2.0**-10] * 3 + [0.25, 1.0, 1.0])
    assert (units[6:] == 1.0).all()


def test_units_are_the_same_on_all_ranks_and_of_all_parts() -> None:
    """Some features are on one rank alone, or 0 everywhere; models made by hand, on any rank, have no units."""
    rng = np.random.default_rng(0)
    inputs = 10.0 ** np.arange(-2, 3) * rng.normal(size=(30, 5))
    inputs[10:, 1] = inputs[:20, 2] = inputs[:, 3] = 0.0

    def part(first: int, last: int) -> Any:
        labels = np.arange(last - first) % 2
        return pack(bt.GraphData(inputs[first:last], [(0, 1)], n_labels=2, labels=labels))

    prior, parts = Prior(0.01), [part(0, 10), part(10, 20), part(20, 30)]
    wanted = feature_units([part(0, 30)], prior)
    assert wanted is not None
    np.testing.assert_array_equal(feature_units(parts, prior), wanted)
    for found in together(3, lambda rank: feature_units([parts[rank.rank]], prior, rank)):
        np.testing.assert_array_equal(found, wanted)
    graph = bt.ClusterGraph([2], [(0,)])
    by_hand = pack([bt.Instance(bt.LogLinearModel(graph, [np.ones((2, wanted.size))]), [0])])
    for found in together(2, lambda rank: feature_units([(parts[0], by_hand)[rank.rank]], prior, rank)):
        assert found is None


def test_weights_that_are_learned_are_seen_and_no_others() -> None:
    rng = np.random.default_rng(1)
    data = chains(20, active=rng.random(129) < 0.5)
    packed, start = pack(data), np.zeros(129)
    start[:3] = 1.0
    one = Workers(1)
    learned = Learned(packed, Prior(4.0), start, one, HostVectors(one))
    chosen = data.scores.active | (start != 0.0)
    x = learned.of(start)
    np.testing.assert_array_equal(learned.weights(x), start)
    assert x.size == chosen.sum() < 129
    value, gradient = learned.seen(lambda weights: (float(weights.sum()), np.arange(129.0)))(2.0 * x)
    assert value == 6.0
    np.testing.assert_array_equal(gradient, np.flatnonzero(chosen))


def test_directions_in_units_are_those_of_a_solver_in_these_units() -> None:
    """The same points as where the function is given in the units, an L1 term included."""
    rng = np.random.default_rng(0)
    unit, root = 10.0 ** rng.uniform(-2.0, 2.0, 12), rng.normal(size=(12, 12))
    target = rng.normal(size=12)

    def in_these_units(u: Any) -> tuple[float, Any]:
        off = root @ (u - target)
        return float(np.cosh(off).sum()), np.sinh(off) @ root

    def function(x: Any) -> tuple[float, Any]:
        value, gradient = in_these_units(x / unit)
        return value, gradient / unit

    for l1 in (0.0, 0.5):
        points: list[list[Any]] = [[], []]
        for seen, scale, units, kept in (
            (function, unit, unit, points[0]),
            (in_these_units, np.ones(12), None, points[1]),
        ):
            minimise(
                seen, np.zeros(12), tolerance=0.0, max_iterations=15, l1=l1 / scale, memory=Memory(5, 12), unit=units,
                callback=lambda step, kept=kept, scale=scale: kept.append(step.x / scale),
            )  # fmt: skip
        assert len(points[0]) == 15
        np.testing.assert_allclose(points[0], points[1], rtol=1e-6, atol=1e-9)


def pictures(n: int, seed: int = 0) -> tuple[list[Any], list[Any]]:
    """Grids of 5 x 5 with smooth regions of three labels, which three of six features tell apart."""
    rng = np.random.default_rng(seed)
    labels = [median_filter(rng.integers(0, 3, (5, 5)), 3) for _ in range(n)]
    X = [np.eye(6)[label] + rng.normal(0.0, 1.0, (5, 5, 6)) for label in labels]
    return X, labels


@pytest.mark.parametrize("method", ["camel0", "convex", "cccp", "trw", "piecewise", "exact", "pseudolikelihood"])
def test_evaluations_do_not_depend_on_the_units_of_features(method: str) -> None:
    """Nor does the optimum, where variances of weights follow the units."""
    X, labels = pictures(20)
    options: Any = {"n_threads": 1, "gap_tolerance": None if method == "cccp" else 0.01}  # as estimators do
    found = []
    for scale in (1.0, 0.01, 1000.0, [1.0, 1000.0, 1.0, 0.01, 1.0, 100.0]):
        scales = np.broadcast_to(scale, 6)
        data = bt.GridCRF(fit_intercept=False).encode([x * scales for x in X], labels)
        variance = np.full(data.n_weights, 10.0)
        variance[:18] /= np.repeat(scales, 3) ** 2
        found.append(bt.learn(data, method, prior_variance=variance, **options))
        assert found[-1].converged
        assert found[-1].objective == pytest.approx(found[0].objective, rel=1e-4)
    counts = [solution.evaluations for solution in found]
    assert max(counts) < 2.5 * min(counts), counts


SCALES = np.array([1.0, 1000.0, 0.001, 1.0, 30.0, 1.0])


def scaled_pictures(scale: Any, part: slice = slice(None)) -> bt.GraphData:
    X, labels = pictures(12)
    return bt.GridCRF(fit_intercept=False).encode([x * scale for x in X[part]], labels[part])


@pytest.mark.parametrize("kind", ["ranks", "folder"])
def test_nor_do_they_on_ranks_and_in_folders(kind: str, tmp_path: Path) -> None:
    """The optimum is that of one process with all data in memory, in hardly more evaluations."""
    whole = scaled_pictures(SCALES)
    options: Any = {"prior_variance": np.full(whole.n_weights, 10.0), "n_threads": 1, "max_iterations": 1000}
    options["prior_variance"][:18] /= np.repeat(SCALES, 3) ** 2
    judge = bt.learn(whole, "camel0", **options)
    if kind == "folder":
        folder = bt.PackedFolder.write(
            tmp_path / "packed", (scaled_pictures(SCALES, slice(k, None, 3)) for k in range(3))
        )
        found = [bt.learn(folder, "camel0", **options)]
    else:
        found = together(
            2,
            lambda rank: bt.learn(
                scaled_pictures(SCALES, slice(rank.rank, None, 2)), "camel0", communicator=rank, **options
            ),
        )
        np.testing.assert_array_equal(found[0].weights, found[1].weights)
    for solution in found:
        assert solution.converged
        assert solution.objective == pytest.approx(judge.objective, rel=1e-8)
        assert solution.evaluations < 2.0 * judge.evaluations


@pytest.mark.parametrize(("l1", "variance"), [(3.0, None), (0.3, 10.0)])
def test_an_l1_term_and_features_in_several_units(l1: float, variance: float | None) -> None:
    """Single nodes: multinomial regression, judged by scipy with bounds on both signs of each weight."""
    rng = np.random.default_rng(1)
    scales = 10.0 ** rng.uniform(-2.0, 3.0, 8)
    X, truth = rng.normal(size=(200, 8)), rng.normal(size=(8, 3)) * (rng.random((8, 3)) < 0.4)
    labels = (X @ truth + rng.gumbel(size=(200, 3))).argmax(axis=1)
    unit = np.repeat(scales, 3)

    def judged(u: Any) -> tuple[float, Any]:
        """The objective of weights (u+ - u-) / unit."""
        weights = ((u[:24] - u[24:]) / unit).reshape(8, 3)
        scores = (X * scales) @ weights
        logs = scores - logsumexp(scores, axis=1, keepdims=True)
        slope = (X * scales).T @ (np.exp(logs) - np.eye(3)[labels])
        value = -logs[np.arange(200), labels].sum() + l1 * (u / np.tile(unit, 2)).sum()
        if variance is not None:
            value, slope = value + (weights**2).sum() / (2.0 * variance), slope + weights / variance
        return value, np.concatenate([slope.ravel() / unit, -slope.ravel() / unit]) + l1 / np.tile(unit, 2)

    best = np.zeros(48)
    for _ in range(4):  # it stops early
        judge: Any = minimize(
            judged, best, jac=True, bounds=[(0.0, None)] * 48, method="L-BFGS-B", options={"ftol": 1e-15, "gtol": 1e-9}
        )
        best = judge.x
    data = bt.GraphData(X * scales, np.zeros((0, 2)), n_labels=3, labels=labels, node_counts=[1] * 200)
    found = bt.learn(data, "exact", l1=l1, prior_variance=variance, n_threads=1, max_iterations=1000)
    assert found.converged
    assert found.objective == pytest.approx(judge.fun, rel=1e-8)
    assert 0 < (found.weights == 0.0).sum() < 24


@pytest.mark.parametrize("method", ["camel0", "trw", "pseudolikelihood"])
def test_features_in_several_units_take_few_evaluations_with_an_l1_term(method: str) -> None:
    """Without units of weights none of them gets there in 3,000 iterations."""
    found = bt.learn(scaled_pictures(SCALES), method, l1=3.0, prior_variance=None, n_threads=1, max_iterations=600)
    assert found.converged, found.evaluations


@pytest.mark.parametrize("method", ["convex", "camel0"])
def test_nor_do_they_with_few_labels(method: str) -> None:
    rng = np.random.default_rng(0)
    classes = rng.integers(3, size=300)
    words = (rng.random((300, 60)) < np.where(np.arange(60) % 3 == classes[:, None], 0.2, 0.05)).astype(float)
    first = rng.integers(300, size=600)
    second = np.array([rng.choice(np.flatnonzero(classes == c)) for c in classes[first]])
    graph = np.column_stack([first, second])[first != second]
    known = np.where(np.arange(300) < 60, classes, -1)
    counts = []
    for X in (words, words / np.maximum(words.sum(axis=1, keepdims=True), 1.0), 1000.0 * words, 0.01 * words):
        prior = {"nodes": 13.4 / float((X**2).sum(axis=1).mean()), "edges": 4.5}  # in units of the features
        model = bt.GraphCRF(
            method=method, neighbours="edges", fit_intercept=False, prior_variance=prior, n_threads=1
        ).fit([(X, graph)], [known])
        assert model.solution_.converged
        counts.append(model.solution_.evaluations)
    assert max(counts) < 2.0 * min(counts), counts


def test_exact_likelihood_takes_fewer_evaluations_to_the_same_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    data = chains(300, active=np.random.default_rng(2).random(129) < 0.8)
    options: Any = {"prior_variance": 100.0, "tolerance": 1e-7, "n_threads": 1}
    ours = bt.learn(data, "exact", **options)
    monkeypatch.setattr("bactrian.learners.likelihood.Learned", lambda *_: None)
    plain = bt.learn(data, "exact", **options)
    assert ours.converged
    np.testing.assert_allclose(ours.weights, plain.weights, atol=1e-5)
    assert ours.objective == pytest.approx(plain.objective, rel=1e-12)
    assert ours.moment_gap == pytest.approx(0.0, abs=1e-5)
    assert not ours.weights[~data.scores.active].any()
    assert ours.evaluations < 0.7 * plain.evaluations
    np.testing.assert_allclose(ours.beliefs[7][0], plain.beliefs[7][0], atol=1e-6)
