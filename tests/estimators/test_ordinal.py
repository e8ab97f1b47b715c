"""Score tables of ordered variables, against enumeration."""

import itertools

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import logsumexp

import bactrian as bt

SIZES = (4, 3, 2)
STATES = np.array(list(itertools.product(*map(range, SIZES))))


def rows(n=300):
    rng = np.random.default_rng(0)
    latent = rng.normal(size=(n, 1)) + rng.normal(size=(n, 3))
    return np.stack([np.digitize(latent[:, v], np.linspace(-1, 1, k + 1)[1:-1]) for v, k in enumerate(SIZES)], axis=1)


def standard(k):
    return (np.arange(k) - (k - 1) / 2) / np.arange(k).std()


def test_numbers_have_one_weight_for_an_edge_and_the_most_likely_one():
    X = rows()
    field = bt.MarkovRandomField(tables="ordinal", method="exact", prior_variance=2.0, tolerance=1e-9).fit(X)
    assert field.weights_.size == sum(SIZES) + 3

    def scores(weights, at):
        variables = sum(weights[s + at[:, v]] for v, s in enumerate((0, 4, 7)))
        scored = [standard(k)[at[:, v]] for v, k in enumerate(SIZES)]
        pairs = zip(weights[9:], [(0, 1), (0, 2), (1, 2)], strict=True)
        return variables + sum(w * scored[a] * scored[b] for w, (a, b) in pairs)

    loss = lambda w: len(X) * logsumexp(scores(w, STATES)) - scores(w, X).sum() + w @ w / 4  # noqa: E731
    judge = minimize(loss, np.zeros(12), options={"gtol": 1e-6})
    np.testing.assert_allclose(field.weights_, judge.x, atol=1e-4)
    variables, pairs = field.log_potentials()
    np.testing.assert_allclose(pairs[0], judge.x[9] * np.outer(standard(4), standard(3)), atol=1e-4)
    found = sum(table[STATES[:, v]] for v, table in enumerate(variables))
    found = found + sum(t[STATES[:, a], STATES[:, b]] for t, (a, b) in zip(pairs, field.edges_.tolist(), strict=True))
    np.testing.assert_allclose(field.score_samples(STATES), found - logsumexp(found), atol=1e-9)
    edges = bt.MarkovRandomField(tables="ordinal", method="exact", node_factors="edges", prior_variance=2.0).fit(X)
    np.testing.assert_allclose(edges.weights_, field.weights_, atol=1e-4)
    information = np.zeros((12, 12))
    p = np.exp(found - logsumexp(found))
    features = np.stack([scores(e, STATES) for e in np.eye(12)], axis=1)
    information = len(X) * (features.T * p) @ (features - p @ features)
    np.testing.assert_allclose(
        field.covariance_[9:, 9:], np.linalg.inv(information + np.eye(12) / 2)[9:, 9:], atol=1e-6
    )


def test_ordered_categories_have_scores_and_others_states_of_their_own(tmp_path):
    pandas = pytest.importorskip("pandas")
    X = rows()
    frame = pandas.DataFrame(
        {
            "often": pandas.Categorical.from_codes(X[:, 0], ["never", "rarely", "often", "always"], ordered=True),
            "level": pandas.Categorical.from_codes(X[:, 1], ["low", "middle", "high"], ordered=True),
            "colour": pandas.Categorical.from_codes(X[:, 1], ["red", "green", "blue"]),
        }
    )
    field = bt.MarkovRandomField(tables="ordinal", prior_variance=1.0).fit(frame)
    assert field.weights_.size == 10 + 1 + 3 + 3
    field.save(tmp_path / "field")
    again = bt.MarkovRandomField.load(tmp_path / "field")
    assert again.tables_ == "ordinal"
    event, given = {"often": "always"}, {"level": "high"}
    assert again.probability(event, given) == pytest.approx(field.probability(event, given))
    assert field.probability(event, given) > field.probability(event, {"level": "low"})


def test_the_pseudo_likelihood_is_that_of_the_scores_and_chooses_a_prior():
    rng = np.random.default_rng(5)
    X = np.stack([rng.integers(0, k, 80) for k in SIZES], axis=1)
    X[:, 1] = np.minimum(X[:, 0], SIZES[1] - 1)
    field = bt.MarkovRandomField("complete", tables="ordinal", method="exact").fit(X)
    assert field.prior_variance_["edges"] > 0.0
    variables, pairs = field.log_potentials()
    total = 0.0
    for row in X:
        for v, k in enumerate(SIZES):
            scores = variables[v].copy()
            for (a, b), table in zip(field.edges_.tolist(), pairs, strict=True):
                scores += table[:, row[b]] if a == v else table[row[a]] if b == v else np.zeros(k)
            total += scores[row[v]] - logsumexp(scores)
    assert field.pseudo_score(X) == pytest.approx(total / len(X), rel=1e-10)


def test_summaries_have_the_log_odds_ratio_of_neighbouring_scores():
    field = bt.MarkovRandomField(tables="ordinal", method="exact", prior_variance=None, edges=[(0, 1)]).fit(rows())
    found, (table,) = field.summary(), field.log_potentials()[1]
    ratio = table[2, 1] - table[1, 1] - table[2, 0] + table[1, 0]
    assert found["association"][0] == pytest.approx(ratio, rel=1e-9)
    step = np.diff(standard(4))[0] * np.diff(standard(3))[0]
    half = 1.959964 * step * field.standard_errors_[-1]
    np.testing.assert_allclose([found["low"][0], found["high"][0]], [ratio - half, ratio + half], rtol=1e-5)


def test_edges_of_scores_are_selected():
    """A chain of levels, beside one that skips a state and a column of words."""
    rng, n = np.random.default_rng(7), 800
    X = rng.integers(0, 5, (n, 8))
    for v in range(1, 6):
        X[:, v] = np.clip(X[:, v - 1] + rng.integers(-1, 2, n), 0, 4)
    X[:, 6] = np.where(X[:, 6] == 2, 3, X[:, 6])  # a state in the middle that is not there
    field = bt.MarkovRandomField("select", tables="ordinal", cardinalities=5).fit(X)
    assert {tuple(edge) for edge in field.edges_.tolist()} == {(v, v + 1) for v in range(5)}
    assert field.weights_.size == 8 * 5 + 5
    assert "28 free weights" in field.selection_
    pd = pytest.importorskip("pandas")
    words = pd.DataFrame(X, columns=list("abcdefgh")).assign(h=np.array(["low", "no", "so"])[X[:, 0] // 2])
    by_aic = bt.MarkovRandomField([("a", "c"), "select"], tables="ordinal", criterion="aic").fit(words)
    assert ("a", "h") in {tuple(edge) for edge in by_aic.edges_.tolist()}
    with pytest.raises(ValueError, match="edges = 'tree' needs tables='full' and no hidden variables"):
        bt.MarkovRandomField("tree", tables="ordinal").fit(X)


def test_variances_of_selected_scores_have_the_penalised_optimum():
    """|w| / variance is n times the penalty, in the units of the scores; 5 weights for all of one word's scores."""
    rng, n = np.random.default_rng(8), 150
    X = rng.integers(0, 4, (n, 12))
    for v in range(1, 12, 2):
        X[:, v] = np.clip(X[:, v - 1] + rng.integers(-2, 3, n), 0, 3)
    options = {"tables": "ordinal", "criterion": "aic", "method": "pseudolikelihood", "cardinalities": 4}
    field = bt.MarkovRandomField("select", **options).fit(X)
    steps = X - X.mean(axis=0)  # orthonormal scores are these over sqrt(5)
    deviation = np.sqrt(np.mean(steps**2, axis=0) / 5.0)
    a, b = field.edges_.T
    penalty = field.path_["penalty"][int(np.argmin(field.path_["criterion"]))]
    weights = np.abs(field.weights_[12 * 4 :])
    slopes = weights / np.array(field.prior_variance_["edges"])
    away = weights > 0.02
    assert away.sum() >= 6
    np.testing.assert_allclose((slopes / (4.0 * n * penalty * deviation[a] * deviation[b]))[away], 1.0, atol=0.12)
