"""What scikit-learn's users expect of every estimator; its own checks hardly know structured inputs."""

import copy
import dataclasses
import inspect

import numpy as np
import pytest
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline

import bactrian as bt

RNG = np.random.default_rng(5)
WORDS = [["Ava", "met", "Bo", "in", "Rome"], ["Bo", "met", "Ava"], ["Rome"], ["Ava", "in", "Rome"]]
TOKENS = [[{"word": word, "n": float(len(word))} for word in words] for words in WORDS]
KIND = {"Ava": "B-P", "Bo": "B-P", "Rome": "B-L"}
TAGS = [[KIND.get(word, "O") for word in words] for words in WORDS]
PAIRS = [np.array([[0, 1], [1, 2]]), np.array([[0, 1]]), np.zeros((0, 2), dtype=np.int64), np.array([[0, 2]])]
LABELS = [RNG.integers(2, size=n) for n in (3, 2, 1, 3)]
GRAPHS = [
    (labels[:, None] + RNG.normal(0, 0.5, (len(labels), 2)), pairs) for labels, pairs in zip(LABELS, PAIRS, strict=True)
]
GRIDS = [RNG.integers(2, size=(2, 3)) for _ in range(4)]
STATES = RNG.integers(2, size=(24, 3))
TRUTH = RNG.integers(2, size=24)
SAID = np.where(RNG.random((24, 3)) < 0.8, TRUTH[:, None], 1 - TRUTH[:, None])

#: An estimator with settings that make fits quick, what it learns from, and something to search over.
CASES = {
    "chain": (bt.LinearChainCRF(tolerance=1e-3), TOKENS, TAGS, {"prior_variance": [0.1, 10.0]}),
    "skip chain": (bt.SkipChainCRF(tolerance=1e-3), TOKENS, TAGS, {"skips": ["nearest", "all"]}),
    "graph": (bt.GraphCRF(), GRAPHS, LABELS, {"prior_variance": [1.0, {"nodes": 3.0, "edges": 0.1}]}),
    "grid": (bt.GridCRF(), [grid[:, :, None] + 0.25 for grid in GRIDS], GRIDS, {"connectivity": [4, 8]}),
    "many labels": (
        bt.MultiLabelCRF(),
        STATES + 0.5,
        np.stack([TRUTH, STATES[:, 0]], axis=1),
        {"edges": [[], "complete"]},
    ),
    "labellers": (bt.LabelModel(), SAID, TRUTH, {"edges": [None, [(0, 1)]]}),
    "field": (bt.MarkovRandomField([(0, 1), (1, 2)], tolerance=1e-3), STATES, None, {"prior_variance": [0.1, 10.0]}),
}

every_estimator = pytest.mark.parametrize("name", CASES)


def fit(model, X, y):
    return model.fit(X) if y is None else model.fit(X, y)


def answers(model, X):
    if isinstance(model, bt.LabelModel | bt.MultiLabelCRF):
        return model.predict_proba(X)
    return model.score_samples(X) if isinstance(model, bt.MarkovRandomField) else model.predict_marginals(X)


@pytest.fixture(scope="module")
def fitted():
    return {name: fit(clone(model), X, y) for name, (model, X, y, _) in CASES.items()}


def test_every_estimator_is_here():
    public = {name for name in bt.__all__ if inspect.isclass(getattr(bt, name)) and hasattr(getattr(bt, name), "fit")}
    assert public == {type(model).__name__ for model, *_ in CASES.values()}


@every_estimator
def test_parameters_are_those_of_the_constructor_and_kept_as_given(name):
    model = CASES[name][0]
    signature = inspect.signature(type(model).__init__).parameters
    assert set(model.get_params()) == set(signature) - {"self"}
    given = {key: object() for key in model.get_params()}
    made = type(model)(**given)
    assert all(made.get_params(deep=False)[key] is value for key, value in given.items())
    assert set(vars(made)) == set(given)  # nothing is worked out before fit


@pytest.mark.parametrize("name", [name for name in CASES if name != "field"])
def test_there_is_one_base_and_few_names_to_complete(name):
    kind = type(CASES[name][0])
    assert [base.__name__ for base in kind.__mro__ if base.__module__.startswith("bactrian")][1:] == [
        "LearnedEstimator"
    ]
    assert not {"begin", "judged", "settled", "choose_prior"} & set(dir(kind))


@every_estimator
def test_clone_and_set_params(name):
    model = CASES[name][0]
    other = clone(model).set_params(prior_variance=2.5, seed=3)
    assert other.get_params() == {**model.get_params(), "prior_variance": 2.5, "seed": 3}
    assert clone(other).get_params() == other.get_params()
    with pytest.raises(ValueError, match="Invalid parameter 'hump'"):
        other.set_params(hump=2)


@every_estimator
def test_a_clone_is_not_fitted(name, fitted):
    X = CASES[name][1]
    methods = [
        m for m in ("predict", "predict_marginals", "score", "score_samples", "sample") if hasattr(fitted[name], m)
    ]
    for model in (clone(fitted[name]), CASES[name][0]):
        for method in methods:
            arguments = {"sample": (2,), "score": (X,) if name == "field" else (X, CASES[name][2])}.get(method, (X,))
            with pytest.raises(NotFittedError, match=type(model).__name__):
                getattr(model, method)(*arguments)
        with pytest.raises(NotFittedError):
            model.save("nowhere")
        if hasattr(model, "predict"):
            with pytest.raises(NotFittedError):
                model.predict([])


@every_estimator
def test_fit_returns_itself_and_leaves_inputs_and_parameters_alone(name):
    model, X, y, _ = CASES[name]
    model = clone(model)
    before, params = copy.deepcopy((X, y)), dict(model.get_params())
    assert fit(model, X, y) is model
    answers(model, X)
    np.testing.assert_equal((X, y), before)
    assert all(model.get_params()[key] is value for key, value in params.items())


@every_estimator
def test_fitted_attributes(name, fitted):
    model = fitted[name]
    added = set(vars(model)) - set(model.get_params())
    assert all(key.endswith("_") or key.startswith("_") for key in added)
    assert model.solution_.converged
    np.testing.assert_array_equal(model.weights_, model.solution_.weights)
    assert model.n_features_in_ == {"graph": 2, "grid": 1, "field": 3, "labellers": 3, "many labels": 3}.get(
        name, 6
    )  # five words and a length


@every_estimator
def test_the_same_seed_gives_the_same_model_whatever_the_threads(name, fitted):
    model, X, y, _ = CASES[name]
    again = fit(clone(model).set_params(n_threads=1), X, y)
    np.testing.assert_array_equal(again.weights_, fitted[name].weights_)
    for one, other in zip(answers(again, X), answers(fitted[name], X), strict=True):
        np.testing.assert_array_equal(one, other)


@every_estimator
def test_fitting_again_forgets_the_first_fit(name, fitted):
    model, X, y, _ = CASES[name]
    twice = (
        fit(clone(model), X[:2], None if y is None else y[:2]) if name != "field" else fit(clone(model), X[:9], None)
    )
    fit(twice, X, y)
    np.testing.assert_array_equal(twice.weights_, fitted[name].weights_)


@every_estimator
def test_a_failed_fit_keeps_the_earlier_one(name, fitted):
    model, X, y, _ = CASES[name]
    model = fit(clone(model), X, y)
    with pytest.raises((ValueError, TypeError)):
        fit(model, [], None if y is None else [])
    atol = 1e-3 if name == "many labels" else 0.0  # fit lists sets of labels, learn has junction trees
    np.testing.assert_allclose(model.weights_, fitted[name].weights_, rtol=0.0, atol=atol)
    answers(model, X)


@every_estimator
def test_fit_is_encode_learn_and_adopt(name, fitted):
    model, X, y, _ = CASES[name]
    model = clone(model)
    data = model.encode(X, y)
    with pytest.raises(NotFittedError):
        model.predict(X)
    solution = bt.learn(data, **model.learning_options())
    assert model.adopt(solution) is model
    atol = 1e-3 if name == "many labels" else 0.0  # fit lists sets of labels, learn has junction trees
    np.testing.assert_allclose(model.weights_, fitted[name].weights_, rtol=0.0, atol=atol)
    for one, other in zip(answers(model, X), answers(fitted[name], X), strict=True):
        np.testing.assert_allclose(one, other, rtol=0.0, atol=atol)
    assert model.encode(X[:3], y if y is None else y[:3]) is not None  # another model: the weights are not its own
    with pytest.raises(NotFittedError):
        model.predict(X)
    with pytest.raises(ValueError, match=r"solution must have \d+ weights, found"):
        model.adopt(dataclasses.replace(solution, weights=np.append(solution.weights, 0.0)))


@every_estimator
def test_an_interrupted_fit_keeps_the_earlier_one(name, fitted):
    model, X, y, _ = CASES[name]
    model = fit(clone(model), X, y)

    def interrupt(progress):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        model.fit(X[:3], y if y is None else y[:3], callback=interrupt)
    for one, other in zip(answers(model, X), answers(fitted[name], X), strict=True):
        np.testing.assert_array_equal(one, other)


@every_estimator
def test_repr_names_what_was_changed(name):
    model = CASES[name][0]
    changed = clone(model).set_params(prior_variance=2.5)
    assert repr(changed).startswith(f"{type(model).__name__}(")
    assert "prior_variance=2.5" in repr(changed)
    assert "l1" not in repr(changed)


@every_estimator
def test_grid_search(name):
    model, X, y, grid = CASES[name]
    search = GridSearchCV(model, grid, cv=2, error_score="raise")
    search.fit(X) if y is None else search.fit(X, y)
    assert set(search.best_params_) == set(grid)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert search.best_estimator_.solution_.converged


class Lowered(TransformerMixin, BaseEstimator):
    """A step that changes tokens, graphs or tables without knowing more than it must."""

    def __init__(self, change=None):
        self.change = change

    def fit(self, X, y=None):
        return self

    def transform(self, X):
        return [self.change(x) for x in X] if self.change else X

    def __sklearn_is_fitted__(self):
        return True


@every_estimator
def test_pipeline(name):
    model, X, y, _ = CASES[name]
    pipeline = Pipeline([("same", Lowered()), ("model", clone(model))])
    fit(pipeline, X, y)
    assert pipeline.named_steps["model"].solution_.converged
    if y is not None:
        assert len(pipeline.predict(X)) == len(X)
        assert 0.0 <= pipeline.score(X, y) <= 1.0
    assert clone(pipeline).get_params()["model__prior_variance"] == model.prior_variance


@pytest.mark.parametrize("name", [name for name in CASES if name not in ("field", "labellers", "many labels")])
def test_predictions_have_the_shape_of_the_labels(name, fitted):
    model, X, y = fitted[name], *CASES[name][1:3]
    for one, other, table in zip(model.predict(X), y, model.predict_marginals(X), strict=True):
        assert np.shape(one) == np.shape(other)
        assert table.shape == (*np.shape(other), len(model.classes_))
        np.testing.assert_allclose(table.sum(axis=-1), 1.0)
    assert list(model.classes_) == sorted(model.classes_)


class Frame:
    """As much of a data frame as an estimator may look at: an array whose columns have names."""

    def __init__(self, values, columns):
        self.values, self.columns = values, columns

    def __array__(self, dtype=None, copy=None):
        return np.array(self.values, dtype=dtype)


def test_feature_names_of_tables():
    model = bt.MarkovRandomField([(0, 1)]).fit(Frame(STATES, ["a", "b", "c"]))
    assert model.feature_names_in_.tolist() == ["a", "b", "c"]
    scores = model.score_samples(Frame(STATES, ["a", "b", "c"]))
    turned = Frame(STATES[:, [1, 0, 2]], ["b", "a", "c"])
    np.testing.assert_array_equal(model.score_samples(turned), scores)  # columns in another order are taken by name
    with pytest.raises(ValueError, match="'d'"):
        model.score_samples(Frame(STATES, ["a", "b", "d"]))


@pytest.mark.parametrize("name", ["chain", "skip chain"])
def test_feature_names_of_tokens(name, fitted):
    expected = {f"word:{word}" for words in WORDS for word in words}
    assert set(fitted[name].feature_names_) == {"n", *expected}
    unseen = [[{"word": "Oslo", "n": 4.0, "new": True}]]
    assert len(fitted[name].predict(unseen)[0]) == 1  # features that were not there in fit are ignored


@pytest.mark.parametrize("name", ["graph", "grid", "field", "labellers"])
def test_other_numbers_of_features_are_refused(name, fitted):
    other = {
        "graph": [(np.ones((2, 3)), [(0, 1)])],
        "grid": [np.ones((2, 2, 2))],
        "field": np.zeros((2, 4), dtype=int),
        "labellers": np.zeros((2, 4), dtype=int),
    }[name]
    with pytest.raises(ValueError, match="features"):
        answers(fitted[name], other)
