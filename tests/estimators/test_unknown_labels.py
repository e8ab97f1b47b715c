"""Sequences with unknown labels against marginal likelihoods by enumeration."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import logsumexp

import bactrian as bt
from bactrian.learners.likelihood import Likelihood, PropagatedObjective

Floats = NDArray[np.float64]

LABELS = ["A", "B", "C"]
VARIANCE = 2.0


def holey(seed: int, lengths: tuple[int, ...] = (4, 3, 1, 4, 2)) -> tuple[list[Floats], list[list[Any]]]:
    """Matrices of features, and labels of which some are unknown; one sequence has all, one none."""
    rng = np.random.default_rng(seed)
    X = [rng.normal(size=(n, 2)) for n in lengths]
    y: list[list[Any]] = [[LABELS[k] if rng.random() < 0.6 else None for k in rng.integers(3, size=n)] for n in lengths]
    y[1] = ["C", "A", "B"]
    y[-1] = [None] * lengths[-1]
    return X, y


def objective(weights: Floats, X: list[Floats], y: list[list[Any]], skips: list[Any]) -> float:
    """Negative marginal log-likelihood with the prior; a full table of transitions and, where there are, of skips."""
    node = weights[:6].reshape(2, 3)
    tables = weights[6:].reshape(-1, 3, 3)
    total = 0.5 * float(weights @ weights) / VARIANCE
    for inputs, labels, pairs in zip(X, y, skips, strict=True):
        states = np.array(list(itertools.product(range(3), repeat=len(inputs))))
        scores = (inputs @ node)[np.arange(len(inputs)), states].sum(axis=1)
        for t in range(len(inputs) - 1):
            scores = scores + tables[0][states[:, t], states[:, t + 1]]
        for a, b in pairs:
            scores = scores + tables[1][states[:, a], states[:, b]]
        seen = np.array([-1 if label is None else LABELS.index(label) for label in labels])
        total += logsumexp(scores) - logsumexp(scores[((states == seen) | (seen < 0)).all(axis=1)])
    return total


def slope(function: Any, weights: Floats, step: float = 1e-5) -> Floats:
    return np.array([(function(weights + e) - function(weights - e)) / (2 * step) for e in step * np.eye(weights.size)])


@pytest.mark.parametrize("method", ["exact", "cccp", "lbp", "convex likelihood"])
def test_chains_reach_a_stationary_point_of_the_marginal_likelihood(method: Any) -> None:
    X, y = holey(0)
    learner = Likelihood("convex") if method == "convex likelihood" else method
    model = bt.LinearChainCRF(method=learner, prior_variance=VARIANCE, fit_intercept=False, tolerance=1e-8).fit(X, y)
    if method == "convex likelihood":  # another entropy, so another optimum
        assert model.solution_.converged
        return
    none: list[Any] = [[]] * len(X)
    assert model.solution_.objective == pytest.approx(objective(model.weights_, X, y, none), abs=1e-7)
    assert np.abs(slope(lambda w: objective(w, X, y, none), model.weights_)).max() < 1e-5


def test_skip_chains_reach_one_too() -> None:
    X, y = holey(1)
    skips: list[Any] = [[(0, 2), (1, 3)], [(0, 2)], [], [(0, 3)], []]
    model = bt.SkipChainCRF(
        method="exact",
        skips=None,
        skip_tables="full",
        prior_variance=VARIANCE,
        fit_intercept=False,
        tolerance=1e-8,
        inference="exact",
    ).fit(X, y, skips=skips)
    assert model.solution_.objective == pytest.approx(objective(model.weights_, X, y, skips), abs=1e-7)
    assert np.abs(slope(lambda w: objective(w, X, y, skips), model.weights_)).max() < 1e-5


@pytest.mark.parametrize("holes", [True, False])
def test_a_sequence_in_which_nothing_is_known_changes_nothing(holes: bool) -> None:
    X, y = holey(2)
    y = y if holes else [[label or "A" for label in labels] for labels in y[:-1]] + y[-1:]
    with_it = bt.LinearChainCRF(tolerance=1e-8).fit(X, y)
    without = bt.LinearChainCRF(tolerance=1e-8).fit(X[:-1], y[:-1])
    np.testing.assert_allclose(with_it.weights_, without.weights_, atol=0.0 if not holes else 1e-7)


def test_what_stands_for_an_unknown_label() -> None:
    X = [np.eye(3), np.eye(3)[::-1]]
    reference = bt.LinearChainCRF().fit(X, [["a", None, "b"], ["b", "a", "a"]]).weights_
    for y in (
        [["a", "", "b"], ["b", "a", "a"]],
        [["a", float("nan"), "b"], ["b", "a", "a"]],
        [[0, -1, 1], [1, 0, 0]],
        [np.array([0.0, np.nan, 1.0]), np.array([1, 0, 0])],
        [[False, None, True], [True, False, False]],
    ):
        np.testing.assert_array_equal(bt.LinearChainCRF().fit(X, y).weights_, reference)


def test_bad_input_is_one_error() -> None:
    X = [np.eye(3)]
    with pytest.raises(ValueError, match="y holds no known label"):
        bt.LinearChainCRF().fit(X, [[None, None, None]])
    with pytest.raises(ValueError, match="y holds no known label"):
        bt.LinearChainCRF(labels=["a", "b"]).fit(X, [[None, "", None]])
    with pytest.raises(ValueError, match="'', which stands for an unknown label"):
        bt.LinearChainCRF(labels=["a", ""]).fit(X, [["a", None, "a"]])
    with pytest.raises(TypeError, match=r"y\[0\]\[1\] must be a string, an integer or a boolean, found 0.5"):
        bt.LinearChainCRF().fit(X, [["a", 0.5, "a"]])
    with pytest.raises(ValueError, match="needs the state of every variable"):
        bt.LinearChainCRF(method="pseudolikelihood").fit(X, [["a", None, "b"]])
    with pytest.raises(ValueError, match="needs at least two sequences with known labels"):
        bt.LinearChainCRF(prior_variance="cv").fit(X * 4, [["a", None, "b"]] + [[None] * 3] * 3)
    model = bt.LinearChainCRF().fit(X, [["a", None, "b"]])
    with pytest.raises(ValueError, match=r"y\[0\]\[1\] is None, .* every label is needed"):
        model.score(X, [["a", None, "b"]])


def test_a_variance_is_chosen_by_known_labels() -> None:
    """Whole sequences are held out, and unknown labels in them are not scored."""
    X, y = holey(6)
    model = bt.LinearChainCRF(prior_variance="cv", tolerance=1e-6).fit(X, y)
    variance, loss = model.prior_scores_[1]
    fold_of = np.random.default_rng(0).permutation(len(X)) % 5
    total, scored = 0.0, 0
    for fold in range(5):
        train, out = np.flatnonzero(fold_of != fold), np.flatnonzero(fold_of == fold)
        fitted = bt.LinearChainCRF(prior_variance=variance, tolerance=1e-6, labels=model.classes_.tolist())
        # features of all sequences, as the folds have them
        data = fitted.encode(X, [tags if m in train else [None] * len(tags) for m, tags in enumerate(y)])
        fitted.adopt(bt.learn(data, **fitted.learning_options()))
        for m in out.tolist():
            table = fitted.predict_marginals([X[m]])[0]
            for token, tag in enumerate(y[m]):
                if tag is not None:
                    total -= np.log(table[token, model.classes_.tolist().index(tag)])
                    scored += 1
    assert loss == pytest.approx(total / scored, abs=1e-4)


def test_features_count_where_their_label_is_known() -> None:
    X = [np.eye(3)]
    model = bt.LinearChainCRF(all_possible_states=False, all_possible_transitions=False).fit(X, [["a", None, "b"]])
    assert (model.state_weights_ != 0.0).tolist() == [[True, False], [False, False], [False, True]]
    assert not any(model.transition_features_.values())


def test_objective_is_the_chance_of_what_was_seen() -> None:
    """At weights of any size: log Z minus log Z with the known labels as evidence."""
    X, y = holey(3)
    data = bt.LinearChainCRF().encode(X, y)
    assert data.labels is not None
    parts = [labels.tolist() for labels in np.split(data.labels, data.node_pointer[1:-1])]
    seen = [{v: label for v, label in enumerate(labels) if label >= 0} for labels in parts]
    for scale in (0.0, 1.0, 10.0, 100.0):
        start = scale * np.random.default_rng(4).normal(size=data.n_weights)
        with pytest.warns(bt.ConvergenceWarning):
            found = bt.learn(data, "exact", prior_variance=None, start=start, max_iterations=0)
        free, clamped = (bt.infer(data, start, "exact", evidence=known) for known in (None, seen))
        loss = sum(a.log_partition - b.log_partition for a, b in zip(free, clamped, strict=True))
        assert found.objective == pytest.approx(loss, rel=1e-10)


def test_a_likelihood_keeps_its_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The learner's own message_tolerance and max_sweeps hold for free and clamped messages."""
    made: list[PropagatedObjective] = []
    begin = PropagatedObjective.__init__

    def note(self: PropagatedObjective, *given: Any, **more: Any) -> None:
        begin(self, *given, **more)
        made.append(self)

    monkeypatch.setattr(PropagatedObjective, "__init__", note)
    X, y = holey(5)
    bt.LinearChainCRF(method=Likelihood("lbp", message_tolerance=1e-11, max_sweeps=77)).fit(X, y)
    assert [objective.max_sweeps for objective in made] == [77, 77]
