"""Multi-label classification, against enumeration, other learners of the library and scikit-learn."""

import itertools

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.optimize import approx_fprime
from scipy.special import logsumexp
from sklearn.base import clone
from sklearn.datasets import make_multilabel_classification
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import bactrian as bt

RNG = np.random.default_rng(2)
X = RNG.normal(size=(60, 3))
Y = (X @ RNG.normal(size=(3, 4)) + RNG.normal(size=(60, 1)) > 0).astype(int)
SETS = np.array(list(itertools.product((0, 1), repeat=4)))


def scores_of_sets(coef, intercept, interactions, rows):
    pairs = 0.5 * np.einsum("sl,lm,sm->s", SETS, interactions, SETS)
    return (rows @ coef.T + intercept) @ SETS.T + pairs


def test_probabilities_and_sets_are_those_of_enumeration():
    crf = bt.MultiLabelCRF(edges=[(0, 1), (3, 1)]).fit(X, Y)
    assert crf.edges_.tolist() == [[0, 1], [1, 3]]
    scores = scores_of_sets(crf.coef_, crf.intercept_, crf.interactions_, X)
    p = np.exp(scores - logsumexp(scores, axis=1, keepdims=True))
    np.testing.assert_allclose(crf.predict_proba(X), p @ SETS, atol=1e-12)
    np.testing.assert_array_equal(crf.predict(X), SETS[p.argmax(axis=1)])
    assert crf.score(X, Y) == (SETS[p.argmax(axis=1)] == Y).all(axis=1).mean()
    assert crf.interactions_[0, 2] == 0.0 != crf.interactions_[1, 3] == crf.interactions_[3, 1]


def test_weights_maximise_the_penalised_likelihood():
    weights = RNG.uniform(0.5, 2.0, 60)
    prior = {"columns": 0.7, "intercepts": 5.0, "pairs": 0.3}
    crf = bt.MultiLabelCRF(prior_variance=prior, tolerance=1e-9).fit(X, Y, sample_weight=weights)
    first, second = np.triu_indices(4, 1)
    truth = (Y[:, None] == SETS).all(axis=2).argmax(axis=1)

    def loss(parameters):
        coef, intercept, pairs = np.split(parameters, [12, 16])
        interactions = np.zeros((4, 4))
        interactions[first, second] = interactions[second, first] = 2 * pairs
        scores = scores_of_sets(coef.reshape(4, 3), intercept - interactions.sum(axis=1) / 2, interactions, X)
        likelihood = weights @ (scores[np.arange(60), truth] - logsumexp(scores, axis=1))
        # Two classes have a weight each, of opposite signs.
        penalty = (coef**2).sum() / 0.7 / 4 + (intercept**2).sum() / 5.0 / 4 + (pairs**2).sum() / 0.3 / 2
        return penalty - likelihood

    intercept = crf.intercept_ + crf.interactions_.sum(axis=1) / 2
    found = np.concatenate([crf.coef_.ravel(), intercept, crf.interactions_[first, second] / 2])
    np.testing.assert_allclose(approx_fprime(found, loss, 1e-6), 0.0, atol=1e-3)


def test_learners_of_the_library_agree_where_they_are_exact():
    crf = bt.MultiLabelCRF(prior_variance=1.0, tolerance=1e-8, edges=[(0, 1), (1, 2), (2, 3), (0, 3)])
    crf.fit(X, Y)
    solution = bt.learn(clone(crf).encode(X, Y), "exact", prior_variance=1.0, tolerance=1e-8)  # on junction trees
    np.testing.assert_allclose(crf.weights_, solution.weights, atol=1e-5)
    assert crf.solution_.objective == pytest.approx(solution.objective, abs=1e-6)
    tree = bt.MultiLabelCRF(prior_variance=1.0, edges=[(0, 1), (1, 2)])
    listed = tree.fit(X, Y).predict_proba(X)
    np.testing.assert_allclose(tree.set_params(method="cccp").fit(X, Y).predict_proba(X), listed, atol=1e-3)
    np.testing.assert_array_equal(tree.predict(X[:5]).shape, (5, 4))


def test_without_pairs_it_is_a_logistic_regression_for_each_label():
    crf = bt.MultiLabelCRF(edges=[], prior_variance={"columns": 0.5, "intercepts": None}, tolerance=1e-9).fit(X, Y)
    for label in range(4):
        judge = LogisticRegression(C=1.0, tol=1e-10).fit(X, Y[:, label])
        np.testing.assert_allclose(crf.coef_[label], judge.coef_[0], atol=1e-5)
        assert crf.intercept_[label] == pytest.approx(judge.intercept_[0], abs=1e-5)
        np.testing.assert_allclose(crf.predict_proba(X)[:, label], judge.predict_proba(X)[:, 1], atol=1e-5)


def test_sets_are_better_and_labels_no_worse_than_those_of_logistic_regressions():
    rows, labels = make_multilabel_classification(1600, 20, n_classes=6, n_labels=3, random_state=1)
    rows = (rows - rows.mean(axis=0)) / rows.std(axis=0)
    crf = bt.MultiLabelCRF().fit(rows[:800], labels[:800])
    alone = [LogisticRegression().fit(rows[:800], column).predict_proba(rows[800:])[:, 1] for column in labels[:800].T]
    alone, truth, chances = np.stack(alone, axis=1), labels[800:], crf.predict_proba(rows[800:])
    loss, judge = (-np.log(np.where(truth, p, 1 - p)).sum(axis=1) for p in (chances, alone))
    assert (loss - judge).mean() < 2 * (loss - judge).std() / np.sqrt(800)
    assert crf.score(rows[800:], truth) > ((alone > 0.5) == truth).all(axis=1).mean() + 0.02


def test_chosen_pairs_are_those_that_depend_on_each_other():
    rows = RNG.normal(size=(500, 2))
    noise = RNG.normal(size=(500, 5))
    noise[:, 1] += 2 * noise[:, 0]
    noise[:, 4] -= 2 * noise[:, 3]
    labels = (rows @ RNG.normal(size=(2, 5)) + noise > 0).astype(int)
    crf = bt.MultiLabelCRF(edges="select").fit(rows, labels)
    assert {(0, 1), (3, 4)} <= set(map(tuple, crf.edges_.tolist()))
    assert len(crf.edges_) <= 3
    assert crf.interactions_[0, 1] > 0 > crf.interactions_[3, 4]


def test_many_labels_are_learned_and_predicted_by_messages():
    labels = (np.repeat(Y, 4, axis=1) + (RNG.random((60, 16)) < 0.3)) % 2
    crf = bt.MultiLabelCRF().fit(X, labels)
    assert crf.method_ == "trw"
    p = crf.predict_proba(X)
    assert p.shape == crf.predict(X).shape == (60, 16)
    assert ((p > 0.0) & (p < 1.0)).all()


def test_works_in_pipelines_and_searches_and_with_sparse_columns_and_frames():
    search = GridSearchCV(
        make_pipeline(StandardScaler(), bt.MultiLabelCRF(tolerance=1e-3)),
        {"multilabelcrf__edges": [[], "complete"]},
        cv=3,
    )
    assert search.fit(X, Y).predict(X).shape == (60, 4)
    dense, sparse = (bt.MultiLabelCRF().fit(rows, Y).predict_proba(rows) for rows in (X, sp.csr_array(X)))
    np.testing.assert_allclose(dense, sparse)
    np.testing.assert_allclose(bt.MultiLabelCRF().fit(X, sp.csr_array(Y)).predict_proba(X), dense)
    pandas = pytest.importorskip("pandas")
    framed = bt.MultiLabelCRF().fit(pandas.DataFrame(X, columns=list("abc")), pandas.DataFrame(Y, columns=list("wxyz")))
    np.testing.assert_allclose(framed.predict_proba(X), dense)
    assert framed.feature_names_in_.tolist() == ["a", "b", "c"]


def test_a_prior_may_be_chosen_by_cross_validation_and_a_fit_go_on():
    crf = bt.MultiLabelCRF(prior_variance="cv", tolerance=1e-3, warm_start=True).fit(X, Y)
    assert crf.prior_variance_ is not None
    assert len(crf.prior_scores_) >= 3
    again = crf.fit(X, Y)
    assert again.score(X, Y) > 0.3


def test_bad_input_is_refused():
    crf = bt.MultiLabelCRF()
    with pytest.raises(ValueError, match=r"Y must hold 0 and 1, found Y\[1, 0\] = 2"):
        crf.fit([[0.0], [1.0]], [[0, 1], [2, 0]])
    with pytest.raises(ValueError, match="Y must have shape"):
        crf.fit([[0.0], [1.0]], [0, 1])
    with pytest.raises(ValueError, match="row for each of X"):
        crf.fit([[0.0], [1.0]], [[0, 1]])
    with pytest.raises(ValueError, match="edges must be 'auto', 'complete', 'select' or pairs, found 'tree'"):
        bt.MultiLabelCRF(edges="tree").fit(X, Y)
    with pytest.raises(ValueError, match="X has 2 features, but MultiLabelCRF is expecting 3"):
        bt.MultiLabelCRF().fit(X, Y).predict(X[:, :2])


def test_columns_of_frames_are_found_by_name():
    pd = pytest.importorskip("pandas")
    rng = np.random.default_rng(4)
    X = pd.DataFrame(rng.normal(size=(60, 3)), columns=list("abc"))
    Y = (X[["a", "b"]].to_numpy() > 0.0).astype(int)
    crf = bt.MultiLabelCRF().fit(X, Y)
    np.testing.assert_array_equal(crf.predict_proba(X[["c", "a", "b"]]), crf.predict_proba(X))
    with pytest.raises(ValueError, match="X has no column 'b', which fit had"):
        crf.predict(X[["a", "c"]])
