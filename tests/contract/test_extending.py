"""docs/architecture.md, "How to add", tried: one of each, against enumeration or scikit-learn."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from library import library_data, library_model
from oracle import cluster_marginals, log_partition, maximum_likelihood
from random_models import generative_problem
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression

import bactrian as bt
from bactrian.camel import entropy as entropies
from bactrian.camel.run import Settings
from bactrian.estimators.base import LearnedEstimator
from bactrian.graphs.packed import PackedData
from bactrian.inference import infer as inference
from bactrian.inference.problem import Problem
from bactrian.inference.result import InferenceResult
from bactrian.learners import learn as learning
from bactrian.parallel.threads import Context
from bactrian.text import Document


@dataclass(frozen=True)
class ByScipy:
    """A learner of one's own: exact likelihood, with SciPy in place of our L-BFGS."""

    name: str = "by-scipy"

    def learn(self, data: PackedData, settings: Settings, context: Context) -> bt.Solution:
        from bactrian.camel.dual import Dual
        from bactrian.camel.entropy import carve

        dual = Dual(data, carve(data, "bethe").whole, settings.prior, context)

        def value_and_gradient(weights: Any) -> Any:
            found = dual.evaluate(weights, max_sweeps=100, tolerance=1e-13)
            return found.value, found.gradient

        found = minimize(value_and_gradient, np.zeros(data.n_weights), jac=True, method="BFGS", tol=1e-9)
        return bt.Solution(
            weights=found.x,
            status=bt.Status.CONVERGED,
            history=(),
            objective=float(found.fun),
            moment_gap=float(np.abs(found.jac).max()),
            violation=0.0,
            beliefs=(),
            method=self.name,
            seconds=0.0,
            evaluations=int(found.nfev),
        )


def test_a_learner() -> None:
    problem = generative_problem(0, "tree", size=4)
    solution = bt.learn(library_data(problem), ByScipy(), prior_variance=2.0)
    np.testing.assert_allclose(solution.weights, maximum_likelihood(problem.data, 2.0), atol=1e-4)


def test_an_entropy() -> None:
    """Counting numbers that lie between CAMEL(0)'s and Bethe's give weights between theirs and beliefs that agree."""
    data = library_data(generative_problem(1, "loop", size=4))
    half = bt.learn(data, bt.Camel(entropy=bt.CountingNumbers(clusters=1.0, sepsets=0.9)), prior_variance=1.0)
    bethe = bt.learn(data, bt.Camel(entropy=bt.CountingNumbers(clusters=1.0, sepsets=1.0)), prior_variance=1.0)
    assert half.converged
    assert half.violation < 1e-5
    np.testing.assert_allclose(bethe.weights, bt.learn(data, "cccp", prior_variance=1.0).weights, atol=1e-3)
    assert np.abs(half.weights - bethe.weights).max() > 1e-3


def test_an_inference_method(monkeypatch: pytest.MonkeyPatch) -> None:
    """A method that is entered in the table is reached by name, with checks and evidence as for any other."""

    def brute(problem: Problem) -> list[InferenceResult]:
        results = inference.METHODS["exact"](problem)
        return [replace(result, method="brute") for result in results]

    monkeypatch.setitem(inference.METHODS, "brute", brute)
    dense = generative_problem(2, "loop", size=3).data[0].model
    weights = np.linspace(-1.0, 1.0, dense.n_weights)
    result = bt.infer(library_model(dense, "bethe"), weights, "brute")
    assert result.method == "brute"
    assert result.log_partition == pytest.approx(log_partition(dense, weights), abs=1e-9)
    for found, expected in zip(result.clusters, cluster_marginals(dense, weights), strict=False):
        np.testing.assert_allclose(found.ravel(), expected, atol=1e-9)


@dataclass(kw_only=True, eq=False, repr=False)
class NodeClassifier(LearnedEstimator):
    """An estimator of one's own: labels of single points, that is multinomial logistic regression."""

    def fit(self, X: Any, y: Any) -> NodeClassifier:
        return self._fit(lambda: self.encode(X, y), None)

    def encode(self, X: Any, y: Any) -> bt.GraphData:
        self.classes_ = np.unique(y)
        self.data_ = self._points(X, np.searchsorted(self.classes_, y))
        return self.data_

    def predict(self, X: Any) -> Any:
        marginals = bt.infer(self._points(X, None), self.weights_, "exact")
        return self.classes_[[int(np.argmax(node)) for result in marginals for node in result.variables]]

    def _points(self, X: Any, labels: Any) -> bt.GraphData:
        return bt.GraphData(X, np.zeros((0, 2), dtype=int), n_labels=self.classes_.size, labels=labels)

    def _n_weights(self) -> int:
        return self.data_.n_weights


def test_an_estimator() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 3))
    y = np.array(["a", "b", "c"])[np.argmax(X + 0.5 * rng.normal(size=X.shape), axis=1)]
    ours = NodeClassifier(prior_variance=2.0, tolerance=1e-8).fit(X, y)
    theirs = LogisticRegression(C=2.0, fit_intercept=False, tol=1e-8, max_iter=1000).fit(X, y)
    assert (ours.predict(X) == theirs.predict(X)).all()


def test_a_reader(tmp_path: Path) -> None:
    """A reader turns a file into documents, which every estimator of sequences takes."""
    (tmp_path / "slashed.txt").write_text("Rome/B-LOC is/O old/O\n\nAnna/B-PER smiles/O\n", encoding="utf-8")

    def read_slashed(path: Path) -> list[Document]:
        documents = []
        for line in filter(None, path.read_text(encoding="utf-8").splitlines()):
            words, tags = zip(*(token.rsplit("/", 1) for token in line.split()), strict=True)
            documents.append(Document(words=list(words), tags=list(tags)))
        return documents

    documents = read_slashed(tmp_path / "slashed.txt")
    tagger = bt.LinearChainCRF().fit([[[word] for word in d.words] for d in documents], [d.tags for d in documents])
    assert tagger.predict([[["Rome"], ["smiles"]]]) == [["B-LOC", "O"]]


# --- parts that register themselves: the worked example of docs/extending.md ---

PAGE = (Path(__file__).parents[2] / "docs" / "extending.md").read_text(encoding="utf-8")


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the Python blocks of the page define, run in an empty folder."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "page"}
    module = ModuleType("page")
    module.__dict__.update(names)
    monkeypatch.setitem(sys.modules, "page", module)
    for block in re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE):
        exec(compile(block, "extending.md", "exec"), module.__dict__)
    return module.__dict__


def test_a_registered_entropy_is_learned_matched_and_saved(page: dict[str, Any], tmp_path: Path) -> None:
    crf, X, y = page["crf"], page["X"], page["y"]
    assert crf.inference_method_[0] == "convex"
    assert crf.inference_method_[1]["counting_numbers"] == "tenth"
    by_hand = bt.Camel(entropy=bt.CountingNumbers(clusters=1.0, sepsets=0.9))
    same = bt.GraphCRF(method=by_hand, node_factors="edges").fit(X, y)
    np.testing.assert_array_equal(crf.weights_, same.weights_)
    np.testing.assert_array_equal(crf.predict_marginals(X)[0], same.predict_marginals(X)[0])
    crf.save(tmp_path / "tenth")
    np.testing.assert_array_equal(
        bt.GraphCRF.load(tmp_path / "tenth").predict_marginals(X)[0], crf.predict_marginals(X)[0]
    )
    del entropies.REGISTERED["tenth"]
    with pytest.raises(ValueError, match="entropy must be one of bethe"):
        bt.GraphCRF.load(tmp_path / "tenth")
    with pytest.raises(ValueError, match="name must be a string other than bethe"):
        bt.register_entropy("bethe")


def test_a_registered_learner_is_reached_by_name_and_saved(page: dict[str, Any], tmp_path: Path) -> None:
    X, y = page["X"], page["y"]
    named = bt.GraphCRF(method="rounds", tolerance=1e-6).fit(X, y)
    convex = bt.GraphCRF(method="convex", tolerance=1e-6).fit(X, y)
    np.testing.assert_allclose(named.weights_, convex.weights_, atol=1e-3)  # a convex problem has one optimum
    assert named.inference_method_[0] == "convex"
    named.save(tmp_path / "named")
    assert bt.GraphCRF.load(tmp_path / "named").inference_method_[0] == "convex"
    assert repr(bt.GraphCRF.load("rounds.bactrian").method) == "Rounds(weaker=10.0)"
    del learning.METHODS["rounds"]
    for path, words in (("rounds.bactrian", "unknown kind 'learner'"), (tmp_path / "named", "method must be one of")):
        with pytest.raises(ValueError, match=words):
            bt.GraphCRF.load(path)
    with pytest.raises(ValueError, match="has the name of one of the library's own"):
        bt.register_learner(type("Camel", (), {"name": "mine", "learn": lambda *_: None})())
    with pytest.raises(TypeError, match="an object with a name and a method learn"):
        bt.register_learner(page["Rounds"])


def test_the_commands_of_the_page_run(page: dict[str, Any], tmp_path: Path) -> None:
    (block,) = re.findall(r"^```bash\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-euc", block], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])["entities"]
    assert [(entity["type"], entity["text"]) for entity in found] == [("PER", "Eve"), ("LOC", "Rome")]
