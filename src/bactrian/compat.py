"""Drop-in stand-ins for other libraries' classes.

Use ``from bactrian.compat import CRF`` in place of ``from sklearn_crfsuite import CRF``: documented calls keep working,
on several cores, and the estimator is also a :class:`bactrian.LinearChainCRF`.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import tempfile
import warnings
from types import SimpleNamespace
from typing import Any, Self

import numpy as np
import scipy.sparse as sp
from sklearn.metrics import precision_recall_fscore_support

from bactrian.arrays import Ints
from bactrian.errors import check_count, check_flag, check_number, warn
from bactrian.estimators.encoding import FeatureRows
from bactrian.estimators.labels import Labels, accuracy, listed_labels
from bactrian.estimators.sequence_base import Edges, EdgesGiven
from bactrian.estimators.sequences import LinearChainCRF
from bactrian.graphs.inputs import BundledRows
from bactrian.graphs.packing import pack
from bactrian.inference.decode import decode
from bactrian.solvers.solution import ConvergenceWarning, Progress, Status

__all__ = ["CRF"]

#: What CRFsuite does where nothing is said.
_DEFAULTS = {"c1": 0.0, "c2": 1.0, "epsilon": 1e-5, "period": 10, "delta": 1e-5, "min_freq": 0.0}
_OPTIMISER = {"num_memories": 6, "linesearch": "MoreThuente", "max_linesearch": 20}
_OTHERS = (
    "calibration_eta", "calibration_rate", "calibration_samples", "calibration_candidates", "calibration_max_trials",
    "pa_type", "c", "error_sensitive", "averaging", "variance", "gamma", "trainer_cls",
)  # fmt: skip


class CRF(LinearChainCRF):
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

    def __init__(
        self,
        algorithm: str | None = None,
        min_freq: float | None = None,
        all_possible_states: bool | None = None,
        all_possible_transitions: bool | None = None,
        c1: float | None = None,
        c2: float | None = None,
        max_iterations: int | None = None,
        num_memories: int | None = None,
        epsilon: float | None = None,
        period: int | None = None,
        delta: float | None = None,
        linesearch: str | None = None,
        max_linesearch: int | None = None,
        calibration_eta: float | None = None,
        calibration_rate: float | None = None,
        calibration_samples: int | None = None,
        calibration_candidates: int | None = None,
        calibration_max_trials: int | None = None,
        pa_type: int | None = None,
        c: float | None = None,
        error_sensitive: bool | None = None,
        averaging: bool | None = None,
        variance: float | None = None,
        gamma: float | None = None,
        verbose: bool = False,
        model_filename: str | None = None,
        keep_tempfiles: bool | None = False,
        trainer_cls: Any = None,
        n_threads: int | None = None,
    ) -> None:
        self.__dict__.update(
            algorithm=algorithm, min_freq=min_freq, all_possible_states=all_possible_states,
            all_possible_transitions=all_possible_transitions, c1=c1, c2=c2, max_iterations=max_iterations,
            num_memories=num_memories, epsilon=epsilon, period=period, delta=delta, linesearch=linesearch,
            max_linesearch=max_linesearch, calibration_eta=calibration_eta, calibration_rate=calibration_rate,
            calibration_samples=calibration_samples, calibration_candidates=calibration_candidates,
            calibration_max_trials=calibration_max_trials, pa_type=pa_type, c=c, error_sensitive=error_sensitive,
            averaging=averaging, variance=variance, gamma=gamma, verbose=verbose, model_filename=model_filename,
            keep_tempfiles=keep_tempfiles, trainer_cls=trainer_cls, n_threads=n_threads,
        )  # fmt: skip
        self.training_log_: Any = None

    def _lines(self) -> int:
        return 0  # one per iteration instead, as CRFsuite prints

    def _of(self, name: str) -> Any:
        value = getattr(self, name)
        return _DEFAULTS[name] if value is None else value

    # Parameters of LinearChainCRF that follow from these; the others have their defaults.

    @property
    def prior_variance(self) -> float | None:
        """Of the Gaussian prior."""
        return None if self._of("c2") == 0.0 else 0.5 / self._of("c2")

    @property
    def l1(self) -> float:  # type: ignore[override]
        """Coefficient of the L1 penalty."""
        return self._of("c1")

    @property
    def tolerance(self) -> float:  # type: ignore[override]
        """At which learning stops."""
        return self._of("epsilon")

    def check_params(self) -> None:
        """Refuse parameters that make no sense, before any data are looked at."""
        if self.algorithm not in (None, "lbfgs"):
            raise ValueError(
                f"algorithm must be 'lbfgs', found {self.algorithm!r}; the others are not implemented here"
            )
        for name in ("c1", "c2", "min_freq", "delta"):
            check_number(name, self._of(name), least=0, below=np.inf)
        check_number("period", self._of("period"), least=1, whole=True)
        other = next((name for name in _OTHERS if getattr(self, name) is not None), None)
        if other is not None:
            raise ValueError(f"{other} is not a parameter of 'lbfgs'; the other algorithms are not implemented here")
        for name in ("all_possible_states", "all_possible_transitions"):
            if getattr(self, name) is not None:
                check_flag(name, getattr(self, name))
        self._check_prior(self._options(), self.prior_variance)

    def fit(self, X: Any, y: Any, X_dev: Any = None, y_dev: Any = None, *, callback: Any = None, **more: Any) -> Self:
        """Train on sequences of dicts (or lists of strings) and their labels.

        Each iteration is scored on ``X_dev`` and ``y_dev``, where they are given.
        """
        if (X_dev is None) != (y_dev is None):
            raise ValueError("X_dev and y_dev must be given together")
        self.check_params()
        for name, usual in _OPTIMISER.items():
            if getattr(self, name) not in (None, usual):
                warn(f"{name}={getattr(self, name)!r} has no effect: it is an option of CRFsuite's optimiser")
        log = _TrainingLog(self, X_dev, y_dev)

        def follow(at: Progress) -> bool:
            return bool(callback is not None and callback(at)) or log.settled(at)

        with warnings.catch_warnings():
            # A loss that has settled is the end that was asked for.
            warnings.filterwarnings("ignore", f".*{Status.STOPPED}", ConvergenceWarning)
            super().fit(X, y, callback=follow, **more)
        if log.is_settled and self.solution_.status is Status.STOPPED:
            self.solution_ = dataclasses.replace(self.solution_, status=Status.CONVERGED)
        self.training_log_ = SimpleNamespace(iterations=log.iterations, last_iteration=(log.iterations or [{}])[-1])
        if self.model_filename is not None:
            self.save(self.model_filename)
        return self

    def _active(self, rows: dict[str, FeatureRows], edges: Edges, labels: Labels, codes: Ints) -> Any:
        """Weights that CRFsuite would have: it counts values, signs and all, and features of value 0 are there."""
        data = self._graphs(rows, edges, labels, labels=codes)
        totals = pack(data).empirical
        ones = {name: FeatureRows(_ones(part.inputs), part.lengths) for name, part in rows.items()}
        counts = pack(self._graphs(ones, edges, labels, labels=codes)).empirical
        assert totals is not None
        assert counts is not None
        node = np.arange(counts.size) < int(data.scores.bounds[1])
        possible = np.where(node, bool(self.all_possible_states), bool(self.all_possible_transitions))
        return ((counts > 0) | possible) & (totals >= self._of("min_freq"))

    def _options(self) -> dict[str, Any]:
        """Those of :class:`LinearChainCRF`; a missing limit on iterations is its default."""
        options = super()._options()
        return options if self.max_iterations is not None else {**options, "max_iterations": 10_000}

    # --- predictions ---

    @property
    def _is_fitted(self) -> bool:
        self._read_named_file()
        return hasattr(self, "weights_")

    def _read_named_file(self) -> None:
        """Take up the model of ``model_filename``, where there is none yet."""
        if not hasattr(self, "weights_") and self.model_filename is not None and os.path.exists(self.model_filename):
            loaded = vars(type(self).load(self.model_filename))
            params = self.get_params(deep=False)
            self.__dict__.update({name: value for name, value in loaded.items() if name not in params})

    def predict(self, X: Any, **more: Any) -> list[list[Any]]:
        """Labels of each sequence."""
        self._read_named_file()
        return super().predict(X, **more)

    def predict_marginals(self, X: Any, **more: Any) -> Any:
        """A list of dicts from labels to probabilities for each sequence; ``edges=True`` adds those of pairs."""
        labels = self.classes_ or []
        found = super().predict_marginals(X, **more)
        nodes, edges = found if isinstance(found, tuple) else (found, None)
        dicts = [[dict(zip(labels, row, strict=True)) for row in table.tolist()] for table in nodes]
        return dicts if edges is None else (dicts, edges)

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

    # --- what was learned; None before ---

    @property
    def tagger_(self) -> _Tagger | None:
        """Has ``labels``, ``tag``, ``set``, ``marginal``, ``probability`` and ``info`` of ``pycrfsuite.Tagger``."""
        return _Tagger(self) if self._is_fitted else None

    @property
    def classes_(self) -> list[Any] | None:  # type: ignore[override]
        """Labels, as a list."""
        return self._labels.classes.tolist() if self._is_fitted else None

    @property
    def size_(self) -> int | None:
        """Bytes of the model as :meth:`save` writes it."""
        if not self._is_fitted:
            return None
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "model")
            self.save(path)
            return os.path.getsize(path)

    @property
    def attributes_(self) -> list[str] | None:
        """Names of the features with a weight that is not 0."""
        if not self._is_fitted:
            return None
        return [self.feature_names_[i] for i in np.flatnonzero((self.state_weights_ != 0.0).any(axis=1)).tolist()]

    @property
    def num_attributes_(self) -> int | None:
        """Number of features with a weight that is not 0."""
        return None if self.attributes_ is None else len(self.attributes_)

    @property
    def state_features_(self) -> dict[tuple[str, Any], float] | None:
        """Weights that are not 0 of (feature, label)."""
        if not self._is_fitted:
            return None
        weights, names, labels = self.state_weights_, self.feature_names_, self._labels.classes.tolist()
        return {(names[i], labels[k]): float(weights[i, k]) for i, k in np.argwhere(weights != 0.0).tolist()}

    @property
    def transition_features_(self) -> dict[tuple[Any, Any], float] | None:  # type: ignore[override]
        """Weights that are not 0 of (label, next label)."""
        if not self._is_fitted:
            return None
        return {pair: weight for pair, weight in super().transition_features_.items() if weight != 0.0}


class _Tagger:
    """The methods of ``pycrfsuite.Tagger`` that look at a model."""

    def __init__(self, crf: CRF) -> None:
        self._crf = crf
        self.set([])

    def labels(self) -> list[Any]:
        return list(self._crf.classes_ or ())

    def set(self, xseq: Any) -> None:
        self._xseq = xseq
        nodes, edges = LinearChainCRF.predict_marginals(self._crf, [xseq], edges=True)
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
        inner = self._nodes[np.arange(codes.size), codes][1:-1]
        return float(np.exp(np.log(joint).sum() - np.log(inner).sum())) if joint.all() and inner.all() else 0.0

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
    """Follows training as CRFsuite does: says when the loss has settled, and keeps and prints iterations."""

    def __init__(self, crf: CRF, X_dev: Any, y_dev: Any) -> None:
        self.crf, self.X_dev, self.y_dev = crf, X_dev, y_dev
        self.iterations: list[dict[str, Any]] = []
        self.is_settled = False
        self._dev: Any = None

    def settled(self, at: Progress) -> bool:
        entry = {
            "num": at.iteration,
            "loss": at.objective,
            "time": at.seconds,
            "active_features": int(np.count_nonzero(at.weights)),
            "feature_norm": float(np.linalg.norm(at.weights)),
            **self._scores(at),
        }
        self.iterations.append(entry)
        if self.crf.verbose:
            words = f"Iter {at.iteration:<3} time={at.seconds:<5.2f} loss={at.objective:<8.2f} "
            words += f"active={entry['active_features']:<5} feature_norm={entry['feature_norm']:<8.2f}"
            if self.X_dev is not None:
                words += f" F1={entry['avg_f1']:.3f} accuracy={entry['item_accuracy_float']:.3f}"
            sys.stdout.write(f"{words.rstrip()}\n")
        period = self.crf._of("period")
        if len(self.iterations) > period:
            before = self.iterations[-1 - period]["loss"]
            self.is_settled = before - at.objective < self.crf._of("delta") * at.objective
        return self.is_settled

    def _scores(self, at: Progress) -> dict[str, Any]:
        """Scores on the further data, over labels that occur in them or are predicted."""
        if self.X_dev is None:
            return {}
        crf = self.crf
        if self._dev is None:
            given = EdgesGiven()
            self._dev = crf._encoded(self.X_dev, given, crf._rows(self.X_dev, given))
        codes = decode(self._dev, at.weights, "exact", n_threads=crf.n_threads)
        guess = [crf._labels.decode(part) for part in codes]
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
    if isinstance(inputs, BundledRows):
        return BundledRows(_ones(inputs.own), _ones(inputs.use), _ones(inputs.bundles))
    if not sp.issparse(inputs):
        return np.ones_like(inputs)
    return sp.csr_array((np.ones(inputs.nnz), inputs.indices, inputs.indptr), shape=inputs.shape)
