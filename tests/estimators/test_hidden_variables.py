"""Variables that were never seen: latent classes against EM for mixtures, written out here."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from scipy.special import logsumexp

import bactrian as bt
from bactrian.frames import Table
from bactrian.learners.hidden import random_weights

CLASSES, ITEMS, N = 3, 6, 500
SHARES = np.array([0.5, 0.3, 0.2])
#: Chances of a yes, by class and item.
CHANCES = np.array([[0.9, 0.8, 0.85, 0.2, 0.1, 0.5], [0.15, 0.2, 0.1, 0.8, 0.9, 0.7], [0.1, 0.85, 0.2, 0.9, 0.15, 0.1]])
EDGES = [("class", item) for item in range(ITEMS)]


def answers(n: int = N, seed: int = 0) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    classes = rng.choice(CLASSES, n, p=SHARES)
    return (rng.random((n, ITEMS)) < CHANCES[classes]).astype(int), classes


def latent_classes(**options: Any) -> bt.MarkovRandomField:
    return bt.MarkovRandomField(EDGES, hidden={"class": CLASSES}, **options)


def best_matching(table: Any) -> tuple[int, ...]:
    """Which found class is which true one, from how often they go together."""
    return max(itertools.permutations(range(CLASSES)), key=lambda p: sum(table[i, p[i]] for i in range(CLASSES)))


def em(X: Any, shares: Any, chances: Any, steps: int = 3000) -> float:
    """Minus the log-likelihood of a mixture of independent items after so many steps."""
    for _ in range(steps + 1):
        log = np.log(shares) + X @ np.log(chances).T + (1 - X) @ np.log1p(-chances).T
        value = -float(logsumexp(log, axis=1).sum())
        parts = np.exp(log - logsumexp(log, axis=1, keepdims=True))
        shares, chances = parts.mean(axis=0), (parts.T @ X) / parts.sum(axis=0)[:, None]
    return value


def as_mixture(weights: Any) -> tuple[Any, Any]:
    """Shares and chances of a star of full tables, whose variables are the items and then the class."""
    items = weights[: 2 * ITEMS].reshape(ITEMS, 2)
    own = weights[2 * ITEMS : 2 * ITEMS + CLASSES]
    pairs = weights[2 * ITEMS + CLASSES :].reshape(ITEMS, CLASSES, 2)
    tables = items[:, None, :] + pairs
    log = own + logsumexp(tables, axis=2).sum(axis=0)
    return np.exp(log - logsumexp(log)), np.exp(tables[:, :, 1] - logsumexp(tables, axis=2)).T


def test_latent_classes_are_recovered():
    X, classes = answers(2000)
    field = latent_classes().fit(X)
    found = field.predict(X)[:, -1]
    table = np.array([[np.sum((classes == i) & (found == j)) for j in range(CLASSES)] for i in range(CLASSES)])
    match = best_matching(table)
    assert sum(table[i, match[i]] for i in range(CLASSES)) / 2000 > 0.9
    np.testing.assert_allclose(field.marginal("class")[list(match)], SHARES, atol=0.05)
    for item in range(ITEMS):
        chances = [field.probability({item: 1}, given={"class": match[i]}) for i in range(CLASSES)]
        np.testing.assert_allclose(chances, CHANCES[:, item], atol=0.07)


@pytest.mark.parametrize("seed", range(4))
def test_never_below_em_from_the_same_start(seed):
    X, _ = answers()
    field = latent_classes(prior_variance=None, n_starts=1, seed=seed).fit(X)
    start = random_weights(field.model_.n_weights, seed)
    assert field.solution_.objective <= em(X, *as_mixture(start)) + 1e-4
    assert em(X, *as_mixture(field.weights_), steps=0) == pytest.approx(field.solution_.objective, abs=1e-6)
    assert em(X, *as_mixture(field.weights_), steps=50) == pytest.approx(field.solution_.objective, abs=1e-4)


def test_scores_sum_over_what_is_hidden():
    X, _ = answers(50)
    field = latent_classes(n_starts=1).fit(X)
    shares, chances = as_mixture(field.weights_)
    log = np.log(shares) + X @ np.log(chances).T + (1 - X) @ np.log1p(-chances).T
    np.testing.assert_allclose(field.score_samples(X), logsumexp(log, axis=1), atol=1e-9)
    parts = field.predict_marginals(X)
    assert len(parts) == ITEMS + 1
    np.testing.assert_allclose(parts[-1], np.exp(log - logsumexp(log, axis=1, keepdims=True)), atol=1e-9)
    assert field.n_features_in_ == ITEMS
    assert field.sample(4).shape == (4, ITEMS + 1)


def test_the_best_start_is_kept_and_all_are_reported():
    X, _ = answers()
    field = latent_classes(n_starts=4, seed=2).fit(X)
    assert field.starts_.shape == (4,)
    assert field.solution_.objective == field.starts_.min()
    for i, objective in enumerate(field.starts_):
        alone = latent_classes(n_starts=1, seed=2 + i).fit(X)
        assert alone.solution_.objective == pytest.approx(objective, abs=1e-9)
        assert not hasattr(alone, "starts_")
    assert latent_classes().fit(X).starts_.size == 5


def test_starts_that_disagree_are_said_to():
    rng = np.random.default_rng(0)
    X = rng.integers(0, 2, (60, 8))  # noise: there is nothing to find
    field = bt.MarkovRandomField([("c", i) for i in range(8)], hidden={"c": 4}, n_starts=3, prior_variance=100.0)
    with pytest.warns(bt.ConvergenceWarning, match="only one of 3 starts reached the least objective.*raise n_starts"):
        field.fit(X)
    assert np.ptp(field.starts_) > 0.01


def test_holes_may_have_several_starts():
    X = np.array([[0, 1, 0], [1, -1, 1], [-1, 0, 0], [1, 1, 1], [0, 0, -1]] * 3)
    once, more = bt.MarkovRandomField().fit(X), bt.MarkovRandomField(n_starts=3).fit(X)
    np.testing.assert_allclose(once.weights_, more.weights_, atol=1e-4)
    assert more.starts_.size == 3
    assert not hasattr(bt.MarkovRandomField(n_starts=3).fit(np.abs(X)), "starts_")


def test_time_is_shared_among_starts():
    X, _ = answers()
    with pytest.warns(bt.ConvergenceWarning):
        field = latent_classes(max_seconds=1e-9, n_starts=5).fit(X)
    assert field.starts_.size == 1


def test_frames_have_hidden_columns(tmp_path):
    X, _ = answers(100)
    frame = Table({f"q{i}": ["yes" if x else "no" for x in X[:, i]] for i in range(ITEMS)})
    edges = [("kind", f"q{i}") for i in range(ITEMS)]
    field = bt.MarkovRandomField(edges, hidden={"kind": ["a", "b"]}, n_starts=2).fit(frame)
    filled = field.predict(frame)
    assert list(filled) == [*frame, "kind"]
    assert set(filled["kind"]) == {"a", "b"}
    field.save(tmp_path / "field")
    again = bt.MarkovRandomField.load(tmp_path / "field")
    assert again.predict(frame) == filled
    assert again.score(frame) == field.score(frame)
    np.testing.assert_array_equal(again.starts_, field.starts_)
    assert again.feature_names_in_.tolist() == list(frame)


def test_files_without_the_newer_parameters_load(tmp_path):
    from bactrian.estimators.saving import read_saved, write_saved

    path = tmp_path / "field"
    field = bt.MarkovRandomField().fit([[0, 1], [1, 0], [1, 1]])
    field.save(path)
    saved = read_saved(path, "MarkovRandomField")
    for name in ("hidden", "n_starts"):
        del saved.params[name]
    for name in ("labels", "ordered", "frames", "n_hidden", "starts"):
        del saved.attributes[name]
    write_saved(path, saved)
    np.testing.assert_array_equal(bt.MarkovRandomField.load(path).weights_, field.weights_)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hidden": {}}, "hidden must map names of variables to numbers of states"),
        ({"hidden": 3}, "hidden must map names"),
        ({"hidden": {"c": 0}}, r"hidden\['c'\] must be at least 1, found 0"),
        ({"hidden": {"c": "ab"}}, r"hidden\['c'\] must be a number or different labels"),
        ({"hidden": {"c": 1.5}}, r"hidden\['c'\] must be a number or different labels"),
        ({"hidden": {0: 2}}, "hidden must have names that are strings"),
        ({"hidden": {"x": 2}}, "hidden has 'x', which is a column of X"),
        ({"hidden": {"c": 2}, "tables": "potts"}, "hidden needs tables='full', found 'potts'"),
        ({"hidden": {"c": 2}, "method": "pseudolikelihood"}, "needs the state of every variable"),
        ({"hidden": {"c": 2}, "prior_variance": "cv"}, "scores states whose neighbours are known, and some are hidden"),
        ({"n_starts": 0}, "n_starts must be"),
        ({"n_starts": "many"}, "n_starts must be"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        bt.MarkovRandomField(**options).fit(Table(x=["a", "b", "a"], y=[0, 1, 1]))
