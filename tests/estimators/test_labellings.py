"""Labellings of sequences: n-best lists and explanations against enumeration, and what scikit-learn does with them."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import f1_score, log_loss
from sklearn.model_selection import GridSearchCV, LeaveOneOut, cross_val_predict, cross_val_score

import bactrian as bt
from bactrian.compat import CRF

LABELS = ["A", "B", "C"]


def chain_data(n: int = 12, seed: int = 0) -> tuple[list[Any], list[list[str]]]:
    rng = np.random.default_rng(seed)
    X, y = [], []
    for length in rng.integers(1, 5, n).tolist():
        codes = rng.integers(3, size=length)
        y.append([LABELS[c] for c in codes])
        noise = rng.integers(4, size=length)
        X.append([{"word": "abc"[c], f"noise{e}": 1.0, "size": 0.5} for c, e in zip(codes, noise, strict=True)])
    return X, y


def enumerated(crf: Any, tokens: list[dict[str, Any]], breaks: tuple[int, ...] = ()) -> dict[tuple[str, ...], float]:
    """Log-probabilities of all labellings, from the published weights alone."""
    states, moves = crf.state_features_, crf.transition_features_
    scores = {}
    for labels in product(crf.classes_.tolist(), repeat=len(tokens)):
        score = 0.0
        for token, label in zip(tokens, labels, strict=True):
            for name, value in token.items():
                key, size = (f"{name}:{value}", 1.0) if isinstance(value, str) else (name, value)
                score += size * states.get((key, label), 0.0)
        score += sum(moves[labels[t - 1], labels[t]] for t in range(1, len(labels)) if t not in breaks)
        scores[labels] = score
    log_z = np.logaddexp.reduce(list(scores.values()))
    return {labels: score - log_z for labels, score in scores.items()}


@pytest.fixture(scope="module")
def fitted() -> tuple[bt.LinearChainCRF, list[Any], list[list[str]]]:
    X, y = chain_data()
    return bt.LinearChainCRF().fit(X, y), X, y


@pytest.mark.parametrize("n", [1, 4, 40])
def test_the_n_best_labellings_are_those_of_enumeration(fitted: Any, n: int) -> None:
    crf, X, _ = fitted
    for tokens, found in zip(X, crf.predict_n_best(X, n), strict=True):
        every = enumerated(crf, tokens)
        best = sorted(every.values(), reverse=True)[:n]
        assert len(found) == len(best) == min(n, len(every))
        np.testing.assert_allclose([p for _, p in found], best, atol=1e-10)
        assert len({tuple(labels) for labels, _ in found}) == len(found)
        for labels, p in found:
            assert p == pytest.approx(every[tuple(labels)], abs=1e-10)
    assert [found[0][0] for found in crf.predict_n_best(X, n)] == crf.predict(X)


def test_n_best_heeds_breaks_features_of_transitions_and_empty_sequences(fitted: Any) -> None:
    crf, X, y = fitted
    tokens = next(tokens for tokens in X if len(tokens) == 4)
    every = enumerated(crf, tokens, breaks=(2,))
    found = crf.predict_n_best([[], tokens], 7, breaks=[[], [2]])
    assert found[0] == [([], 0.0)]
    np.testing.assert_allclose([p for _, p in found[1]], sorted(every.values(), reverse=True)[:7], atol=1e-10)
    moved = [[{"at": str(t % 2)} for t in range(1, len(tokens))] for tokens in X]
    with_features = bt.LinearChainCRF().fit(X, y, transition_features=moved)
    best = with_features.predict_n_best(X, 300, transition_features=moved)
    assert all(np.exp([p for _, p in one]).sum() == pytest.approx(1.0) for one in best)
    assert [one[0][0] for one in best] == with_features.predict(X, transition_features=moved)
    assert crf.predict_n_best([[], []]) == [[([], 0.0)], [([], 0.0)]]
    with pytest.raises(ValueError, match="n must be"):
        crf.predict_n_best(X, 0)


@pytest.mark.parametrize("position", [0, 1, 3])
def test_reasons_add_up_to_the_difference_of_log_probabilities(fitted: Any, position: int) -> None:
    crf, X, _ = fitted
    tokens = next(tokens for tokens in X if len(tokens) == 4)
    every, labels = enumerated(crf, tokens), crf.predict([tokens])[0]
    other = next(label for label in LABELS if label != labels[position])
    swapped = [*labels]
    swapped[position] = other
    found = crf.explain(tokens, position, against=other, n=None)
    assert sum(gain for _, gain in found) == pytest.approx(every[tuple(labels)] - every[tuple(swapped)], abs=1e-10)
    assert [abs(gain) for _, gain in found] == sorted((abs(gain) for _, gain in found), reverse=True)
    assert f"word:{tokens[position]['word']}" in dict(found)
    assert crf.explain(tokens, position, label=labels[position], n=1) == crf.explain(tokens, position)[:1]


def test_reasons_on_a_skip_chain_name_the_linked_token() -> None:
    X = [[{"word": "Ava"}, {"word": "met"}, {"word": "Ava"}]]
    crf = bt.SkipChainCRF().fit(X, [["PER", "O", "PER"]])
    found = dict(crf.explain(X[0], 2))
    assert found["linked to 'PER' at 0"] > 0.0
    assert "after 'O' at 1" in found
    with pytest.raises(ValueError, match=r"against must be one of \['O', 'PER'\], found 'X'"):
        crf.explain(X[0], 0, against="X")
    with pytest.raises(ValueError, match="position"):
        crf.explain(X[0], 3)


@pytest.mark.parametrize("make", [bt.LinearChainCRF, bt.SkipChainCRF, CRF])
def test_folds_are_joined_by_cross_val_predict(make: Any) -> None:
    X, y = chain_data(6)
    for cv in (3, LeaveOneOut()):
        found = cross_val_predict(make(), X, y, cv=cv)
        assert [len(labels) for labels in found] == [len(labels) for labels in y]
        assert all(isinstance(labels, list) and set(labels) <= set(LABELS) for labels in found)
    crf = make().fit(X, y)
    assert crf.predict(X) == list(crf.predict(X))
    assert np.asarray(crf.predict([X[0], X[0]])).shape == (2,)


@pytest.mark.parametrize("make", [bt.LinearChainCRF, CRF])
def test_flat_scorers_are_scikit_learn_s_metrics_of_all_tokens(make: Any) -> None:
    X, y = chain_data(20)
    y_known = [[*labels] for labels in y]
    y_known[15][0] = None if make is bt.LinearChainCRF else y_known[15][0]
    crf = make().fit(X[:10], y[:10])
    true = [label for labels in y_known[10:] for label in labels]
    known = [label is not None for label in true]
    guess = [label for labels in crf.predict(X[10:]) for label in labels]
    told = [label for label in true if label is not None]
    expected = f1_score(told, np.array(guess)[known], average="macro")
    assert bt.flat_scorer("f1_macro")(crf, X[10:], y_known[10:]) == pytest.approx(expected)
    rows = [row for part in bt.LinearChainCRF.predict_marginals(getattr(crf, "chain_", crf), X[10:]) for row in part]
    expected = -log_loss(told, np.array(rows)[known], labels=LABELS)
    assert bt.flat_scorer("neg_log_loss")(crf, X[10:], y_known[10:]) == pytest.approx(expected)
    assert (cross_val_score(make(), X, y, cv=2, scoring=bt.flat_scorer("f1_macro")) > 0.5).all()


def test_flat_scorers_serve_pictures_and_searches_and_refuse_what_has_no_labels() -> None:
    rng = np.random.default_rng(0)
    truth = (rng.random((4, 6, 5)) < 0.5).astype(int)
    X = list(truth[..., None] + rng.normal(0, 0.5, (4, 6, 5, 1)))
    search = GridSearchCV(bt.GridCRF(), {"prior_variance": [0.1, 1.0]}, cv=2, scoring=bt.flat_scorer("accuracy"))
    found = search.fit(X, list(truth))
    guess = found.best_estimator_.predict(X)
    hits = np.mean([a == b for a, b in zip(guess, truth, strict=True)])
    assert bt.flat_scorer("accuracy")(found.best_estimator_, X, list(truth)) == pytest.approx(hits)
    with pytest.raises(ValueError, match="no known label"):
        bt.flat_scorer("accuracy")(found.best_estimator_, X, [np.full((6, 5), -1)] * 4)
    with pytest.raises(ValueError, match="label per label of X"):
        bt.flat_scorer("accuracy")(found.best_estimator_, X, list(truth[:3]))


def test_completion_shows_what_users_call() -> None:
    X, y = chain_data(4)
    crf = bt.LinearChainCRF().fit(X, y)
    assert {"fit", "predict", "predict_proba", "predict_n_best", "explain", "weights_"} <= set(dir(crf))
    assert not {"adopt", "encode", "codec_"} & set(dir(crf))
    assert all(np.array_equal(a, b) for a, b in zip(crf.predict_proba(X), crf.predict_marginals(X), strict=True))
    assert crf.state_features_[("word:a", "A")] == crf.state_weights_[crf.feature_names_.index("word:a"), 0]


def test_a_stop_that_the_callback_asks_for_is_no_warning() -> None:
    X, y = chain_data()
    crf = bt.LinearChainCRF(tolerance=1e-9).fit(X, y, callback=lambda at: at.iteration >= 2)  # warnings are errors
    assert crf.solution_.status is bt.Status.STOPPED
    assert not crf.solution_.converged
    margins = [bt.Marginal("a", [1.0, 3.0]), bt.Marginal(("a", "b"), [[0.5, 0.5], [2.0, 1.0]], stddev=0.1)]
    field = bt.MarkovRandomField().fit_marginals(margins, callback=lambda _: True)
    assert field.solution_.status is bt.Status.STOPPED
