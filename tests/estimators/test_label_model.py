"""Labellers without truth against EM, written out here, and against simulated truth."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import bactrian as bt

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def simulated(
    accuracies: list[float],
    *,
    n: int,
    k: int = 2,
    abstain: float = 0.2,
    copies: Any = (),
    share: float = 0.8,
    seed: int = 0,
) -> tuple[Ints, Ints]:
    """What labellers say, and the truth; of ``copies`` (a, b) labeller b repeats a in a share of the rows."""
    rng = np.random.default_rng(seed)
    y = rng.choice(k, size=n)
    wrong = (y[:, None] + rng.integers(1, k, size=(n, len(accuracies)))) % k
    L = np.where(rng.random((n, len(accuracies))) < accuracies, y[:, None], wrong)
    for a, b in copies:
        L[:, b] = np.where(rng.random(n) < share, L[:, a], L[:, b])
    L[rng.random(L.shape) < abstain] = -1
    return L, y


def dawid_skene(L: Ints, k: int, steps: int = 1000) -> tuple[Floats, Floats, Floats]:
    """Class shares, confusions (truth, said) and posteriors by EM; those who abstain say nothing."""
    shares, confusions = (
        np.full(k, 1 / k),
        np.tile(0.3 / (k - 1) + (0.7 - 0.3 / (k - 1)) * np.eye(k), (L.shape[1], 1, 1)),
    )
    for _ in range(steps):
        logs = np.log(shares) + sum(
            np.where(L[:, v, None] >= 0, np.log(confusions[v].T[L[:, v]]), 0.0) for v in range(L.shape[1])
        )
        posterior = np.exp(logs - logs.max(axis=1, keepdims=True))
        posterior /= posterior.sum(axis=1, keepdims=True)
        shares = posterior.mean(axis=0)
        counts = np.stack([[(posterior[L[:, v] == a]).sum(axis=0) for a in range(k)] for v in range(L.shape[1])])
        confusions = (counts / counts.sum(axis=1, keepdims=True)).transpose(0, 2, 1)
    return shares, confusions, posterior


@pytest.mark.parametrize(("k", "n"), [(2, 400), (3, 900)])
def test_without_edges_it_is_dawid_and_skene(k: int, n: int) -> None:
    L, _ = simulated([0.85, 0.75, 0.7, 0.65], n=n, k=k)
    shares, confusions, posterior = dawid_skene(L, k)
    model = bt.LabelModel(prior_variance=1e7, tolerance=1e-9).fit(L)
    np.testing.assert_allclose(model.class_prior_, shares, atol=1e-4)
    np.testing.assert_allclose(model.confusions_, confusions, atol=1e-4)
    np.testing.assert_allclose(model.predict_proba(L), posterior, atol=1e-4)
    accuracy = np.einsum("k,vkk->v", shares, confusions)
    np.testing.assert_allclose(model.labellers_, accuracy, atol=1e-4)


def test_probabilities_are_nearly_those_of_who_knows_the_accuracies() -> None:
    accuracies = np.array([0.9, 0.6, 0.7, 0.7, 0.6])
    L, y = simulated(accuracies.tolist(), n=4000, seed=1)
    model = bt.LabelModel().fit(L)
    votes = (L == 1).sum(axis=1) - (L == 0).sum(axis=1)
    assert model.score(L, y) > np.mean((votes > 0) == y) + 0.05
    np.testing.assert_allclose(model.labellers_, accuracies, atol=0.04)
    odds = np.where(L < 0, 0.0, np.log(accuracies / (1 - accuracies)) * (2 * L - 1)).sum(axis=1)
    assert np.abs(model.predict_proba(L)[:, 1] - 1 / (1 + np.exp(-odds))).mean() < 0.05


def test_labellers_that_copy_are_found_and_no_longer_taken_for_the_truth() -> None:
    truth = [0.62, 0.6, 0.6, 0.8, 0.8, 0.75, 0.7]
    L, y = simulated(truth, n=2000, abstain=0.1, copies=[(0, 1), (0, 2)], share=0.9, seed=2)
    blind, told, found = (bt.LabelModel(edges=edges).fit(L) for edges in (None, [(0, 1), (0, 2)], "auto"))
    assert found.edges_.tolist() == [[0, 1], [0, 2], [1, 2]]
    assert blind.score(L, y) < 0.7 < 0.84 < told.score(L, y)
    assert abs(found.score(L, y) - told.score(L, y)) < 0.01
    right = [np.mean(L[L[:, v] >= 0, v] == y[L[:, v] >= 0]) for v in range(7)]
    np.testing.assert_allclose(found.labellers_, right, atol=0.05)


@pytest.mark.parametrize("seed", range(3))
def test_independent_labellers_get_no_edges(seed: int) -> None:
    L, _ = simulated([0.9, 0.8, 0.7, 0.6, 0.75], n=2000, k=2 + seed, seed=seed)
    assert bt.LabelModel(edges="auto").encode(L) is not None
    model = bt.LabelModel(edges="auto", max_iterations=2)
    with pytest.warns(bt.ConvergenceWarning):
        model.fit(L)
    assert model.edges_.shape == (0, 2)


def test_some_truth_and_shares_of_classes_help() -> None:
    L, y = simulated([0.55, 0.6], n=600, seed=3)
    with pytest.raises(ValueError, match="takes at least three"):
        bt.LabelModel().fit(L)
    known = np.where(np.arange(600) < 300, y, -1)
    model = bt.LabelModel().fit(L, known)
    right = [np.mean(L[L[:, v] >= 0, v] == y[L[:, v] >= 0]) for v in range(2)]
    np.testing.assert_allclose(model.labellers_, right, atol=0.05)
    L, y = simulated([0.7, 0.7, 0.7], n=300, seed=4)
    keep = (y == 0) | (np.arange(300) % 4 == 0)
    model = bt.LabelModel(class_prior=[0.8, 0.2]).fit(L[keep])
    np.testing.assert_allclose(model.class_prior_, [0.8, 0.2], atol=0.02)


class Frame:
    """As much of a data frame as an estimator may look at."""

    def __init__(self, values: Any, columns: list[str]) -> None:
        self.values, self.columns = values, columns

    def __len__(self) -> int:
        return len(self.values)

    def __array__(self, dtype: Any = None, copy: Any = None) -> NDArray[Any]:
        return np.array(self.values, dtype=dtype)


def test_words_frames_and_abstentions_of_every_kind() -> None:
    L, _ = simulated([0.9, 0.8, 0.7, 0.7], n=60, seed=5)
    reference = bt.LabelModel(edges=[(0, 2)]).fit(L)
    words = np.array(["no", "yes", None], dtype=object)[L]
    named = bt.LabelModel(edges=[("a", "c")]).fit(Frame(words, ["a", "b", "c", "d"]))
    np.testing.assert_allclose(named.weights_, reference.weights_)
    assert named.predict(words)[:3].tolist() == [["no", "yes"][code] for code in reference.predict(L)[:3]]
    floats = np.where(L < 0, np.nan, L)
    np.testing.assert_array_equal(bt.LabelModel(edges=[(0, 2)]).fit(floats).weights_, reference.weights_)
    nothing = named.predict_proba(np.full((1, 4), "", dtype=object))
    np.testing.assert_allclose(nothing[0], named.class_prior_, atol=1e-9)
    with pytest.raises(ValueError, match="L has the columns b, a, c, d"):
        named.predict(Frame(words, ["b", "a", "c", "d"]))


def test_bad_input_is_one_error() -> None:
    L, _ = simulated([0.9, 0.8, 0.7], n=20)
    model = bt.LabelModel().fit(L)
    for call, words in (
        (lambda: bt.LabelModel().fit(np.full((3, 3), -1)), "L holds no known label"),
        (lambda: bt.LabelModel().fit([1, 0, 1]), "a row per item and a column per labeller"),
        (lambda: bt.LabelModel().fit(L, [1, 0]), r"one label per row of L: expected shape \(20,\)"),
        (lambda: bt.LabelModel(labels=[0]).fit(L), "holds label 1, which is not one of the 1 classes"),
        (lambda: bt.LabelModel(edges=[(0, 9)]).fit(L), "must join two different labellers from 0 to 2"),
        (lambda: bt.LabelModel(edges="all").fit(L), "must be pairs of labellers, 'auto' or None"),
        (lambda: bt.LabelModel(class_prior=[1.0, 0.0]).fit(L), "class_prior must be positive"),
        (lambda: bt.LabelModel(prior_variance="cv").fit(L), "needs known labels"),
        (lambda: bt.LabelModel(method="pseudolikelihood").fit(L), "needs the state of every variable"),
        (lambda: model.predict(L[:, :2]), r"2 features \(labellers\), and the model 3"),
        (lambda: model.predict([[0, 1, 5]]), "holds label 5"),
    ):
        with pytest.raises(ValueError, match=words):
            call()


def test_a_score_needs_a_row():
    model = bt.LabelModel().fit([[1, 1, 0], [0, 0, 0], [1, 1, 1]])
    assert len(model.predict([])) == 0
    with pytest.raises(ValueError, match="L is empty; a score needs at least one row"):
        model.score([], [])
