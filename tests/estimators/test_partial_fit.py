"""Chains that learn from data as they arrive, against enumeration and against learning from all at once."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import logsumexp

import bactrian as bt

Floats = NDArray[np.float64]

VARIANCE = 2.0


def batches(seed: int, sizes: tuple[int, ...] = (3, 4, 2), lengths: int = 4) -> list[tuple[list[Floats], list[Any]]]:
    rng = np.random.default_rng(seed)
    found = []
    for size in sizes:
        X = [rng.normal(size=(rng.integers(1, lengths + 1), 2)) for _ in range(size)]
        found.append((X, [((x @ [1.0, -1.0] + 0.5 * rng.normal(size=len(x))) > 0).astype(int).tolist() for x in X]))
    return found


def loss(weights: Floats, X: list[Floats], y: list[Any]) -> float:
    """Negative marginal log-likelihood by enumeration; None stands for a label that is not known."""
    node, table = weights[:4].reshape(2, 2), weights[4:].reshape(2, 2)
    total = 0.0
    for inputs, labels in zip(X, y, strict=True):
        states = np.array(list(itertools.product(range(2), repeat=len(inputs))))
        scores = (inputs @ node)[np.arange(len(inputs)), states].sum(axis=1)
        scores = scores + table[states[:, :-1], states[:, 1:]].sum(axis=1)
        seen = np.array([-1 if label is None else label for label in labels])
        total += logsumexp(scores) - logsumexp(scores[((states == seen) | (seen < 0)).all(axis=1)])
    return total


def slope(function: Any, weights: Floats, step: float = 1e-5) -> Floats:
    return np.array([(function(weights + e) - function(weights - e)) / (2 * step) for e in step * np.eye(weights.size)])


@pytest.mark.parametrize("unknown", [False, True])
def test_each_call_is_the_best_around_the_last(unknown: bool) -> None:
    model = bt.LinearChainCRF(fit_intercept=False, prior_variance=VARIANCE, tolerance=1e-9)
    mean, precision = np.zeros(8), np.full(8, 1 / VARIANCE)
    for X, y in batches(0):
        if unknown:
            y[0] = [None, *y[0][1:]]
        model.partial_fit(X, y, classes=[0, 1])

        def objective(w: Floats, X: Any = X, y: Any = y, mean: Floats = mean, precision: Floats = precision) -> float:
            return loss(w, X, y) + 0.5 * float(precision @ (w - mean) ** 2)

        assert np.abs(slope(objective, model.weights_)).max() < 1e-6
        mean, precision = model.weights_, model.precision_


def test_the_first_call_is_fit_and_precision_is_the_curvature_of_single_tokens() -> None:
    X, y = batches(1, sizes=(12,), lengths=1)[0]
    model = bt.LinearChainCRF(fit_intercept=False, prior_variance=VARIANCE, tolerance=1e-9).partial_fit(X, y)
    at_once = bt.LinearChainCRF(fit_intercept=False, prior_variance=VARIANCE, tolerance=1e-9).fit(X, y)
    np.testing.assert_allclose(model.weights_, at_once.weights_, atol=1e-12)
    curvature = [
        (loss(model.weights_ + e, X, y) - 2 * loss(model.weights_, X, y) + loss(model.weights_ - e, X, y)) / 1e-8
        for e in 1e-4 * np.eye(8)
    ]
    np.testing.assert_allclose(model.precision_, 1 / VARIANCE + np.array(curvature), atol=1e-5)


def test_weights_count_like_repetitions() -> None:
    X, y = batches(2, sizes=(3,))[0]
    twice = bt.LinearChainCRF(prior_variance=10.0, tolerance=1e-9).partial_fit(X * 2, y * 2)
    weighted = bt.LinearChainCRF(prior_variance=10.0, tolerance=1e-9).partial_fit(X, y, sample_weight=[2.0] * 3)
    np.testing.assert_allclose(twice.weights_, weighted.weights_, atol=1e-6)
    np.testing.assert_allclose(twice.precision_, weighted.precision_, atol=1e-6)


def test_features_grow_and_labels_may_come_later(tmp_path: Path) -> None:
    model = bt.LinearChainCRF().partial_fit([[["a"], ["b"]]], [["A", "B"]], classes=["A", "B", "C"])
    before = model.state_weights_.copy()
    model.save(tmp_path / "model")
    model = bt.LinearChainCRF.load(tmp_path / "model").partial_fit([[["c"], ["c", "a"]]], [["C", "C"]])
    assert model.feature_names_ == ["a", "b", "c"]
    assert model.state_weights_.shape == (3, 3)
    assert not np.allclose(model.state_weights_[0], before[0])
    assert model.predict([[["b"], ["c"]]]) == [["B", "C"]]
    assert model.n_features_in_ == 3


def test_in_parts_it_is_nearly_as_good_as_at_once() -> None:
    parts = batches(3, sizes=(40,) * 6, lengths=8)
    X, y = [x for part in parts for x in part[0]], [labels for part in parts for labels in part[1]]
    whole = bt.LinearChainCRF(fit_intercept=False, prior_variance=10.0).fit(X, y)
    model = bt.LinearChainCRF(fit_intercept=False, prior_variance=10.0)
    for part in parts:
        model.partial_fit(*part)
    last = bt.LinearChainCRF(fit_intercept=False, prior_variance=10.0).fit(*parts[-1])
    best, parted, alone = (loss(one.weights_, X, y) for one in (whole, model, last))
    assert best < parted
    assert parted - best < 0.4 * (alone - best)


def test_bad_input_is_one_error() -> None:
    X, y = batches(4, sizes=(3,))[0]
    fitted = bt.LinearChainCRF().fit(X, y)
    begun = bt.LinearChainCRF().partial_fit(X, y)
    weights = begun.weights_.copy()
    for call, words in (
        (lambda: fitted.partial_fit(X, y), "learned by fit"),
        (lambda: begun.partial_fit(X, [[5] * len(labels) for labels in y]), "is 5; the labels are 0, 1"),
        (lambda: begun.partial_fit(X, y, classes=[0, 1, 2]), "must be those of the first call"),
        (lambda: begun.partial_fit(X, [[None] * len(labels) for labels in y]), "y holds no known label"),
        (lambda: bt.LinearChainCRF(method="cccp").partial_fit(X, y), "learns by method='exact'"),
        (
            lambda: bt.LinearChainCRF(fit_intercept=False, prior_variance=None).partial_fit(X, y),
            "must be numbers in partial_fit",
        ),
    ):
        with pytest.raises(ValueError, match=words):
            call()
    np.testing.assert_array_equal(begun.weights_, weights)
    assert not hasattr(begun.fit(X, y), "precision_")


@pytest.mark.parametrize("tables", ["full", "symmetric", "diagonal", "potts", "pooled"])
def test_precision_of_pairs_is_the_curvature_of_the_likelihood(tables: str) -> None:
    """In sequences of two tokens nothing else depends on a transition, so the diagonal is that of the Hessian."""
    rng = np.random.default_rng(0)
    X, y = [rng.normal(size=(2, 2)) for _ in range(6)], rng.integers(3, size=(6, 2)).tolist()
    variance = {"tokens": VARIANCE, "transitions": 1.0, **({"deviations": 1.0} if tables == "pooled" else {})}
    model = bt.LinearChainCRF(fit_intercept=False, prior_variance=variance, transition_tables=tables).partial_fit(
        X, y, classes=[0, 1, 2]
    )
    pairs = np.array(list(itertools.combinations_with_replacement(range(3), 2)))
    states = np.array(list(itertools.product(range(3), repeat=2)))
    agree = (states[:, :1] == states[:, 1:]).astype(float)
    unordered = (np.sort(states, axis=1)[:, None] == pairs).all(axis=2).astype(float)
    features = {
        "full": np.eye(9),
        "symmetric": unordered,
        "diagonal": agree * (states[:, :1] == np.arange(3)),
        "potts": agree,
        "pooled": np.hstack([agree / 3**0.5, unordered]),
    }[tables]
    node, tied = model.weights_[:6].reshape(2, 3), model.weights_[6:]
    expected = np.full(tied.size, 1.0)
    if tables == "pooled":
        expected[0] = 1.0 / 3.0  # its variance is that of the attraction itself
    for inputs in X:
        scores = (inputs @ node)[np.arange(2), states].sum(axis=1) + features @ tied
        chances = np.exp(scores - logsumexp(scores))
        expected += chances @ features**2 - (chances @ features) ** 2
    np.testing.assert_allclose(model.precision_[6:], expected, rtol=1e-9)


def test_sequences_of_one_token_say_nothing_of_transitions() -> None:
    model = bt.LinearChainCRF(fit_intercept=False, prior_variance=VARIANCE).partial_fit(
        [np.ones((1, 1))] * 2, [[0], [1]]
    )
    np.testing.assert_allclose(model.precision_[2:], 1 / VARIANCE)
