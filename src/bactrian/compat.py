"""Drop-in stand-ins for other libraries' classes.

Use ``from bactrian.compat import CRF`` in place of ``from sklearn_crfsuite import CRF``: documented calls keep working,
on several cores, and ``chain_`` of a fitted one is a :class:`bactrian.LinearChainCRF`.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, Self

import numpy as np
import scipy.sparse as sp
from sklearn.base import BaseEstimator
from sklearn.metrics import precision_recall_fscore_support
from sklearn.utils.validation import check_is_fitted

from bactrian.arrays import Bools, Floats
from bactrian.errors import check_count, check_flag, check_number, warn
from bactrian.estimators.base import OF_HERE, restored_model, saved_model
from bactrian.estimators.labelled_sequences import EdgesGiven, of_all_labels, sums_over_labels
from bactrian.estimators.labellings import Labellings
from bactrian.estimators.labels import accuracy, listed_labels
from bactrian.estimators.saving import SavedModel, read_model, write_saved
from bactrian.estimators.sequences import LinearChainCRF
from bactrian.graphs.graph_data import GraphData
from bactrian.inference.decode import decode
from bactrian.learners.learn import learn
from bactrian.solvers.solution import Progress, Solution, Status

__all__ = ["CRF"]

#: What CRFsuite does where nothing is said.
_DEFAULTS = {
    "c1": 0.0, "c2": 1.0, "epsilon": 1e-5, "period": 10, "delta": 1e-5, "min_freq": 0.0, "max_iterations": 10_000,
}  # fmt: skip
_OPTIMISER = {"num_memories": 6, "linesearch": "MoreThuente", "max_linesearch": 20}
_OTHERS = (
    "calibration_eta", "calibration_rate", "calibration_samples", "calibration_candidates", "calibration_max_trials",
    "pa_type", "c", "error_sensitive", "averaging", "variance", "gamma", "trainer_cls",
)  # fmt: skip


@dataclass(eq=False, repr=False)  # scikit-learn has its own
class CRF(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """A linear-chain CRF with the parameters, attributes and files of ``sklearn_crfsuite.CRF``.

    The objective is CRFsuite's, over the same features. Parameters that are None have CRFsuite's defaults.

    Parameters
    ----------
    algorithm : {"lbfgs"}
        The only one supported; with ``c1`` it is OWL-QN, as in CRFsuite. ``fit`` refuses the others and their
        parameters (``calibration_eta`` to ``gamma``, and ``trainer_cls``).
    min_freq : float
        Features (of a token and its label, or of two successive labels) whose values sum to less in training have no
        weight. The default, 0, drops those with a negative sum, and keeps those of value 0 or False.
    all_possible_states, all_possible_transitions : bool
        Whether features get weights for labels with which they never occur in training.
    c1, c2 : float
        Coefficients of L1 and L2 regularisation; c2 = 1 / (2 prior_variance). By default 0 and 1.
    max_iterations : int, optional
        Limit on iterations; none by default.
    epsilon : float
        Accuracy: the largest gradient component per sequence at which training stops, by default 1e-5.
    period, delta : int, float
        Training also stops when the loss has fallen by less than its part ``delta`` (1e-5) in ``period`` (10)
        iterations.
    num_memories, linesearch, max_linesearch
        Of CRFsuite's optimiser. This library has its own; other values than CRFsuite's defaults warn.
    verbose : bool
        Print a line per iteration.
    model_filename : str, optional
        Where ``fit`` saves the model, in this library's format; a model that is not fitted is read from there.
    keep_tempfiles
        Without effect: there are no such files.
    n_threads : int, optional
        One per core by default.

    Attributes
    ----------
    chain_ : LinearChainCRF
        What was fitted.
    training_log_
        ``iterations``, a list of dicts with ``num``, ``loss``, ``active_features``, ``feature_norm`` and ``time``, and
        where ``fit`` was given ``X_dev`` the scores on them; ``last_iteration`` is the last.

    Examples
    --------
    >>> from bactrian.compat import CRF
    >>> X = [[{"word": "a"}, {"word": "b"}], [{"word": "b"}, {"word": "a"}]]
    >>> crf = CRF(algorithm="lbfgs", c1=0.0, c2=0.05, all_possible_transitions=True).fit(X, [["A", "B"], ["B", "A"]])
    >>> crf.predict(X)
    [['A', 'B'], ['B', 'A']]
    >>> sorted(crf.predict_marginals(X)[0][0])
    ['A', 'B']
    """

    algorithm: str | None = None
    min_freq: float | None = None
    all_possible_states: bool | None = None
    all_possible_transitions: bool | None = None
    c1: float | None = None
    c2: float | None = None
    max_iterations: int | None = None
    num_memories: int | None = None
    epsilon: float | None = None
    period: int | None = None
    delta: float | None = None
    linesearch: str | None = None
    max_linesearch: int | None = None
    calibration_eta: float | None = None
    calibration_rate: float | None = None
    calibration_samples: int | None = None
    calibration_candidates: int | None = None
    calibration_max_trials: int | None = None
    pa_type: int | None = None
    c: float | None = None
    error_sensitive: bool | None = None
    averaging: bool | None = None
    variance: float | None = None
    gamma: float | None = None
    verbose: bool = False
    model_filename: str | None = None
    keep_tempfiles: bool | None = False
    trainer_cls: Any = None
    n_threads: int | None = None
    chain_: LinearChainCRF = field(init=False)
    training_log_: Any = field(init=False, default=None)

    def _given(self) -> dict[str, Any]:
        """All parameters, with CRFsuite's values in place of None."""
        given = self.get_params(deep=False)
        return given | {name: value for name, value in _DEFAULTS.items() if given[name] is None}

    def _chain(self) -> LinearChainCRF:
        """The chain of these parameters, everything checked."""
        if self.algorithm not in (None, "lbfgs"):
            raise ValueError(
                f"algorithm must be 'lbfgs', found {self.algorithm!r}; the others are not implemented here"
            )
        given = self._given()
        for name in ("c1", "c2", "min_freq", "delta"):
            check_number(name, given[name], least=0, below=np.inf)
        check_number("period", given["period"], least=1, whole=True)
        other = next((name for name in _OTHERS if given[name] is not None), None)
        if other is not None:
            raise ValueError(f"{other} is not a parameter of 'lbfgs'; the other algorithms are not implemented here")
        for name in ("all_possible_states", "all_possible_transitions"):
            if given[name] is not None:
                check_flag(name, given[name])
        chain = LinearChainCRF(
            fit_intercept=False,
            prior_variance=None if given["c2"] == 0.0 else 0.5 / given["c2"],
            l1=given["c1"],
            tolerance=given["epsilon"],
            max_iterations=given["max_iterations"],
            n_threads=self.n_threads,
        )
        chain.check_params()
        return chain

    def fit(self, X: Any, y: Any, X_dev: Any = None, y_dev: Any = None, *, callback: Any = None, **more: Any) -> Self:
        """Train on sequences of dicts (or lists of strings) and their labels.

        Each iteration is scored on ``X_dev`` and ``y_dev``, where they are given.
        """
        if (X_dev is None) != (y_dev is None):
            raise ValueError("X_dev and y_dev must be given together")
        chain, given = self._chain(), self._given()
        for name, usual in _OPTIMISER.items():
            if given[name] not in (None, usual):
                warn(f"{name}={given[name]!r} has no effect: it is an option of CRFsuite's optimiser")
        data = chain.encode(X, y, **more)
        data.scores.active = _crfsuite_weights(data, given)
        log = _TrainingLog(chain, given, X_dev, y_dev)

        def watch(at: Progress) -> bool:
            return bool(callback is not None and callback(at)) or log.seen(at)

        options = {**chain.learning_options(), "gain_tolerance": 0.0}  # delta and period say when
        solution = learn(data, **options, callback=watch)
        if log.is_flat and solution.status is Status.STOPPED:
            solution = replace(solution, status=Status.CONVERGED)
        self.chain_ = chain.adopt(solution)
        self.training_log_ = SimpleNamespace(iterations=log.iterations, last_iteration=(log.iterations or [{}])[-1])
        if self.model_filename is not None:
            self.save(self.model_filename)
        return self

    # --- predictions ---

    @property
    def _fitted(self) -> LinearChainCRF | None:
        """The chain, from ``model_filename`` where none was fitted; None where there is none."""
        if not hasattr(self, "chain_") and self.model_filename is not None and os.path.exists(self.model_filename):
            self.chain_ = type(self).load(self.model_filename).chain_
        return getattr(self, "chain_", None)

    def _known(self) -> LinearChainCRF:
        """The chain, or an error that there is none."""
        found = self._fitted
        check_is_fitted(self, "chain_")
        assert found is not None
        return found.set_params(n_threads=self.n_threads)

    def predict(self, X: Any, **more: Any) -> list[list[Any]]:
        """Labels of each sequence."""
        return self._known().predict(X, **more)

    def predict_marginals(self, X: Any, **more: Any) -> Any:
        """A list of dicts from labels to probabilities for each sequence; ``edges=True`` adds those of pairs."""
        chain = self._known()
        labels, found = chain.classes_.tolist(), chain.predict_marginals(X, **more)
        nodes, edges = found if isinstance(found, tuple) else (found, None)
        dicts = [[dict(zip(labels, row, strict=True)) for row in table.tolist()] for table in nodes]
        return Labellings(dicts) if edges is None else (dicts, edges)

    def predict_single(self, xseq: Any) -> list[Any]:
        """Labels of one sequence."""
        return self.predict([xseq])[0]

    def predict_marginals_single(self, xseq: Any) -> list[dict[Any, float]]:
        """Marginals of one sequence."""
        return self.predict_marginals([xseq])[0]

    def score(self, X: Any, y: Any, **more: Any) -> float:
        """Accuracy of tokens, as in sklearn-crfsuite."""
        predicted = self.predict(X, **more)
        return accuracy(listed_labels(y, [len(labels) for labels in predicted]), predicted)

    # --- files ---

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to one file (safetensors with JSON), replacing an existing file atomically."""
        params = {name: value for name, value in self.get_params(deep=False).items() if name != "verbose"}
        write_saved(path, replace(saved_model(self._known()), class_name=type(self).__name__, params=params))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a model that :meth:`save` wrote."""
        return read_model(path, cls.__name__, cls._restored)

    @classmethod
    def _restored(cls, saved: SavedModel) -> Self:
        if {*saved.params} != {*cls._get_param_names()} - {"verbose"}:
            raise ValueError(f"its parameters are {', '.join(sorted(saved.params))}")
        crf = cls(**saved.params)
        params = {name: value for name, value in crf._chain().get_params(deep=False).items() if name not in OF_HERE}
        crf.chain_ = restored_model(LinearChainCRF, replace(saved, params=params))
        return crf

    # --- what was learned; None before ---

    @property
    def tagger_(self) -> _Tagger | None:
        """Has ``labels``, ``tag``, ``set``, ``marginal``, ``probability`` and ``info`` of ``pycrfsuite.Tagger``."""
        return None if self._fitted is None else _Tagger(self)

    @property
    def solution_(self) -> Solution:
        """Status and history of learning."""
        return self._known().solution_

    @property
    def weights_(self) -> Floats:
        """The weights; see :class:`bactrian.LinearChainCRF`."""
        return self._known().weights_

    @property
    def classes_(self) -> list[Any] | None:
        """Labels, as a list."""
        return None if self._fitted is None else self._fitted.classes_.tolist()

    @property
    def size_(self) -> int | None:
        """Bytes of the model as :meth:`save` writes it."""
        if self._fitted is None:
            return None
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "model")
            self.save(path)
            return os.path.getsize(path)

    @property
    def attributes_(self) -> list[str] | None:
        """Names of the features with a weight that is not 0."""
        chain = self._fitted
        if chain is None:
            return None
        names, used = chain.feature_names_, (chain.state_weights_ != 0.0).any(axis=1)
        return [names[i] for i in np.flatnonzero(used).tolist()]

    @property
    def num_attributes_(self) -> int | None:
        """Number of features with a weight that is not 0."""
        return None if self.attributes_ is None else len(self.attributes_)

    @property
    def state_features_(self) -> dict[tuple[str, Any], float] | None:
        """Weights that are not 0 of (feature, label)."""
        return None if self._fitted is None else self._fitted.state_features_

    @property
    def transition_features_(self) -> dict[tuple[Any, Any], float] | None:
        """Weights that are not 0 of (label, next label)."""
        if self._fitted is None:
            return None
        return {pair: weight for pair, weight in self._fitted.transition_features_.items() if weight != 0.0}


def _crfsuite_weights(data: GraphData, given: Mapping[str, Any]) -> Bools:
    """Weights that CRFsuite would have: it sums values, signs and all, and features of value 0 are there."""
    possible = of_all_labels(data, given["all_possible_states"], given["all_possible_transitions"])
    seen = sums_over_labels(data, _ones) > 0.0
    return (seen | possible) & (sums_over_labels(data, lambda inputs: inputs) >= given["min_freq"])


class _Tagger:
    """The methods of ``pycrfsuite.Tagger`` that look at a model."""

    def __init__(self, crf: CRF) -> None:
        self._crf = crf
        self.set([])

    def labels(self) -> list[Any]:
        return list(self._crf.classes_ or ())

    def set(self, xseq: Any) -> None:
        self._xseq = xseq
        nodes, edges = self._crf.chain_.predict_marginals([xseq], edges=True)
        self._nodes, self._edges = nodes[0], edges[0]

    def tag(self, xseq: Any = None) -> list[Any]:
        return self._crf.predict_single(self._xseq if xseq is None else xseq)

    def marginal(self, y: Any, pos: int) -> float:
        return float(self._nodes[pos, self.labels().index(y)])

    def probability(self, yseq: Any) -> float:
        """That of these labels for the sequence that was set: pairs by the nodes that they share."""
        check_count("yseq", len(yseq), len(self._xseq), "label per item")
        codes = np.array([self.labels().index(label) for label in yseq], dtype=np.int64)
        if codes.size < 2:
            return float(np.prod(self._nodes[np.arange(codes.size), codes]))
        joint = self._edges[1][np.arange(codes.size - 1), codes[:-1], codes[1:]]
        shared = self._nodes[np.arange(codes.size), codes][1:-1]
        return float(np.exp(np.log(joint).sum() - np.log(shared).sum())) if joint.all() and shared.all() else 0.0

    def info(self) -> SimpleNamespace:
        crf = self._crf
        names = crf.attributes_ or []
        return SimpleNamespace(
            header={"size": crf.size_, "num_attrs": len(names), "num_labels": len(self.labels())},
            labels={label: str(k) for k, label in enumerate(self.labels())},
            attributes={name: str(k) for k, name in enumerate(names)},
            transitions=crf.transition_features_,
            state_features=crf.state_features_,
        )


class _TrainingLog:
    """Watches training as CRFsuite does: says when the loss falls no more, and keeps and prints iterations."""

    def __init__(self, chain: LinearChainCRF, params: Mapping[str, Any], X_dev: Any, y_dev: Any) -> None:
        self.params, self.X_dev, self.y_dev = params, X_dev, y_dev
        self.iterations: list[dict[str, Any]] = []
        self.is_flat = False
        self._chain = chain
        self._dev = None if X_dev is None else chain.codec_.encoded(X_dev, EdgesGiven(), lambda *_: None)

    def seen(self, at: Progress) -> bool:
        entry = {
            "num": at.iteration,
            "loss": at.objective,
            "time": at.seconds,
            "active_features": int(np.count_nonzero(at.weights)),
            "feature_norm": float(np.linalg.norm(at.weights)),
            **self._scores(at),
        }
        self.iterations.append(entry)
        if self.params["verbose"]:
            words = f"Iter {at.iteration:<3} time={at.seconds:<5.2f} loss={at.objective:<8.2f} "
            words += f"active={entry['active_features']:<5} feature_norm={entry['feature_norm']:<8.2f}"
            if self.X_dev is not None:
                words += f" F1={entry['avg_f1']:.3f} accuracy={entry['item_accuracy_float']:.3f}"
            sys.stdout.write(f"{words.rstrip()}\n")
        period = self.params["period"]
        if len(self.iterations) > period:
            before = self.iterations[-1 - period]["loss"]
            self.is_flat = before - at.objective < self.params["delta"] * at.objective
        return self.is_flat

    def _scores(self, at: Progress) -> dict[str, Any]:
        """Scores on the further data, over labels that occur in them or are predicted."""
        if self._dev is None:
            return {}
        codec = self._chain.codec_
        codes = decode(self._dev, at.weights, "exact", n_threads=self._chain.n_threads)
        guess = [codec.labels.decode(part) for part in codes]
        true = listed_labels(self.y_dev, [len(labels) for labels in guess])
        flat = [label for labels in true for label in labels], [label for labels in guess for label in labels]
        labels = sorted({*flat[0], *flat[1]})
        figures = np.array(precision_recall_fscore_support(*flat, labels=labels, zero_division=0.0))
        names = ("avg_precision", "avg_recall", "avg_f1")
        return {
            **dict(zip(names, figures[:3].mean(axis=1).tolist(), strict=True)),
            "item_accuracy_float": accuracy(true, guess),
            "instance_accuracy_float": float(np.mean([list(a) == b for a, b in zip(true, guess, strict=True)])),
            "scores": {
                label: SimpleNamespace(precision=p, recall=r, f1=f, ref=int(n))
                for label, (p, r, f, n) in zip(labels, figures.T.tolist(), strict=True)
            },
        }


def _ones(inputs: Any) -> Any:
    """The same entries, each 1, those of value 0 included."""
    if not sp.issparse(inputs):
        return np.ones_like(inputs)
    return sp.csr_array((np.ones(inputs.nnz), inputs.indices, inputs.indptr), shape=inputs.shape)
