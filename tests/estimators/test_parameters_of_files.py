"""A file whose checksum is right but whose content is not is refused on loading, or works: it never fails later."""

from __future__ import annotations

import warnings
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bactrian as bt
from bactrian.estimators.saving import ModelFileError, SavedModel, read_saved, write_saved

GRAPHS = [([[1.0], [0.0], [0.5]], [(0, 1), (1, 2), (0, 2)]), ([[0.2], [0.3]], [(0, 1)])]
GRIDS = [np.eye(3), np.ones((2, 3))]
SEQUENCES = [[{"word": "Ava"}, {"word": "b"}, {"word": "Ava"}], [{"word": "b"}, {"word": "c"}]]
SAMPLES = np.array([[0, 1, 1], [1, 0, 1], [1, 1, 0], [0, 0, 0]])

ESTIMATORS: dict[str, tuple[Any, Any, Any]] = {
    "GraphCRF": (bt.GraphCRF(), GRAPHS, [[0, 1, 1], [0, 1]]),
    "GraphCRF with options": (
        bt.GraphCRF(method="cccp", inference="rbp", inference_options={"tolerance": 1e-4}, labels=["a", "b"]),
        GRAPHS,
        [["a", "b", "b"], ["a", "b"]],
    ),
    "GridCRF": (bt.GridCRF(by_direction=True), GRIDS, [np.eye(3, dtype=int), np.ones((2, 3), dtype=int)]),
    "LinearChainCRF": (bt.LinearChainCRF(class_weight={"x": 2.0}), SEQUENCES, [["x", "y", "x"], ["y", "y"]]),
    "SkipChainCRF": (bt.SkipChainCRF(inference="matched"), SEQUENCES, [["x", "y", "x"], ["y", "y"]]),
    "MarkovRandomField": (bt.MarkovRandomField(), SAMPLES, None),
}

BAD: list[Any] = [
    None, True, -1, 0, 3, 2**70, 0.5, -1.5, float("nan"), float("inf"), "", "bogus", "exact", [], [1], ["a", "b"],
    [[1]], (1, 2), {}, {"a": 1}, {"tolerance": -1.0}, {"n_threads": "x"}, {0: 1}, np.array([0.5, -1.0]),
    np.array(["x"]), bt.Likelihood("exact"), bt.Camel(),
]  # fmt: skip


@cache
def saved(name: str, folder: str) -> SavedModel:
    estimator, X, y = ESTIMATORS[name]
    path = Path(folder) / f"{name}.safetensors"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bt.ConvergenceWarning)
        (estimator.fit(X) if y is None else estimator.fit(X, y)).save(path)
    return read_saved(path, type(estimator).__name__)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("models"))


def use(estimator: Any, X: Any, y: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bt.ConvergenceWarning)
        if isinstance(estimator, bt.MarkovRandomField):
            estimator.predict([[0, -1, 1]])
            estimator.score(X)
            estimator.sample(2, seed=0)
            return
        if isinstance(estimator, bt.SkipChainCRF) and estimator.skips is None:
            estimator.predict(X, skips=[[(0, 2)], []])  # a call must give them then
            return
        assert len(estimator.predict(X)) == len(X)
        estimator.predict_marginals(X)
        if y is not None:
            estimator.score(X, y)


def check(model: SavedModel, kind: Any, X: Any, y: Any, path: Path) -> bool:
    """Whether the file was refused; where it was not the model works."""
    try:
        write_saved(path, model)
    except ValueError:
        return True  # what cannot be saved cannot be in a file
    try:
        estimator = kind.load(path)
    except ModelFileError:
        return True
    use(estimator, X, y)
    return False


@pytest.mark.parametrize("name", ESTIMATORS)
def test_every_parameter_is_checked(name: str, folder: str, tmp_path: Path) -> None:
    estimator, X, y = ESTIMATORS[name]
    good = saved(name, folder)
    refused = dict.fromkeys(good.params, 0)
    for param in good.params:
        for value in BAD:
            if param == "word" and isinstance(value, str):
                continue  # a model of tokens that call their word so
            changed = SavedModel(good.class_name, {**good.params, param: value}, good.attributes, good.arrays)
            try:
                refused[param] += check(changed, type(estimator), X, y, tmp_path / "model.safetensors")
            except Exception as error:
                raise AssertionError(f"{param} = {value!r} was loaded, and then: {error!r}") from error
    assert not [param for param, times in refused.items() if times == 0], refused


@pytest.mark.parametrize("name", ESTIMATORS)
def test_every_attribute_is_checked(name: str, folder: str, tmp_path: Path) -> None:
    estimator, X, _ = ESTIMATORS[name]
    good = saved(name, folder)
    for attribute in good.attributes:
        for value in BAD:
            if attribute == "n_edge_features" and isinstance(value, int) and value == 0:
                continue  # a model of other graphs, which have edge features, none of them
            attributes = {**good.attributes, attribute: value}
            changed = SavedModel(good.class_name, good.params, attributes, good.arrays)
            try:
                check(changed, type(estimator), X, None, tmp_path / "model.safetensors")
            except Exception as error:
                raise AssertionError(f"attribute {attribute} = {value!r} was loaded, and then: {error!r}") from error


@pytest.mark.parametrize("value", BAD, ids=repr)
def test_settings_of_learners_are_checked(value: Any, folder: str, tmp_path: Path) -> None:
    """Learners that a file names are made anew, so that what they refuse is refused."""
    for learner in (bt.Camel(), bt.Likelihood("lbp"), bt.PseudoLikelihood()):
        for field in vars(learner):
            other = object.__new__(type(learner))
            other.__dict__.update({**vars(learner), field: value})
            good = saved("GraphCRF", folder)
            changed = SavedModel(good.class_name, good.params, {**good.attributes, "fitted_method": other}, good.arrays)
            try:
                check(changed, bt.GraphCRF, GRAPHS, None, tmp_path / "model.safetensors")
            except Exception as error:
                raise AssertionError(f"{learner}: {field} = {value!r} was loaded, and then: {error!r}") from error
