"""Several yes-or-no labels of each row, which depend on its columns and on each other.

With y the labels, 0 or 1, x the columns and a 1, and E pairs of labels,

    log p(y | x) = sum_l s_l(y_l) . x + sum_(l,m) in E w_lm [y_l = y_m] - log Z(x),

a conditional field over the labels (Ghamrawi and McCallum, Collective multi-label classification, CIKM 2005). Where
sets of labels can be listed, log Z and marginals are sums over them: scores of all sets of a row are one product of
matrices. Elsewhere learners and inference of the library take each row as a graph of labels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, ClassVar, Self

import numpy as np
import scipy.sparse as sp
from scipy.special import expit
from sklearn.utils.validation import check_is_fitted

from bactrian.arrays import Arrays, Floats, Ints, number_pairs, rectangular
from bactrian.errors import ArgumentError, check_count
from bactrian.estimators.base import LearnedEstimator
from bactrian.estimators.priors import Block, Fold, graph_folds
from bactrian.frames import column_names, places
from bactrian.graphs.graph_data import GraphData
from bactrian.graphs.inputs import checked_rows
from bactrian.inference.decode import decode
from bactrian.inference.infer import graph_marginals
from bactrian.learners.learn import learn, matched_inference, with_lines
from bactrian.parallel.threads import Deadline, single_threaded_blas
from bactrian.solvers.lbfgs import Step, largest_magnitude, minimise
from bactrian.solvers.solution import Callback, Progress, Solution, Status, warn_stopped

#: Labels whose sets are listed, labels that are all joined by default, and scores that are held at once.
_LISTED, _ALL_JOINED, _AT_ONCE = 14, 14, 1 << 21
#: Variances of the prior "auto": of the score that the columns of a row give, of intercepts and of pairs.
_AUTO = {"columns": 10.0, "intercepts": 100.0, "pairs": 1.0}


@dataclass(frozen=True, eq=False)
class LabelCodec:
    """What ``encode`` fixes: numbers of columns and labels, pairs of labels, and the scale of the columns."""

    n_features: int
    n_outputs: int
    pairs: Ints
    mean_square: float

    def data(self, rows: Any, labels: Ints | None = None, weights: Any = None) -> GraphData:
        """Rows (n, n_features) as graphs with a node for each label, whose inputs are columns of its own."""
        (n, d), k = rows.shape, self.n_outputs
        wide = sp.kron(sp.csr_array(rows), np.ones((k, 1)), format="csr")
        own = sp.csr_array((wide.data, wide.indices + d * np.repeat(np.tile(np.arange(k), n), np.diff(wide.indptr)),
                            wide.indptr), shape=(n * k, k * d))  # fmt: skip
        of_pair = np.tile(np.arange(len(self.pairs)), n)
        pairs = sp.csr_array(
            (np.ones(of_pair.size), of_pair, np.arange(of_pair.size + 1)), (of_pair.size, len(self.pairs))
        )
        return GraphData(
            sp.csr_array(sp.hstack([own, sp.csr_array(np.tile(np.eye(k), (n, 1)))])),
            (k * np.arange(n)[:, None, None] + self.pairs).reshape(-1, 2),
            n_labels=2,
            labels=None if labels is None else labels.ravel(),
            tables="potts",
            edge_inputs=pairs,
            node_counts=np.full(n, k),
            weights=weights,
        )

    @property
    def layout(self) -> GraphData:
        """Data of a single row, which defines the order of the weights."""
        return self.data(np.zeros((1, self.n_features)))

    @property
    def blocks(self) -> list[Block]:
        """Blocks of weights."""
        first, second = 2 * self.n_outputs * self.n_features, 2 * self.n_outputs * (self.n_features + 1)
        ends = (slice(0, first), slice(first, second), slice(second, second + len(self.pairs)))
        return [Block(name, weights) for name, weights in zip(_AUTO, ends, strict=True)]

    @property
    def auto_prior(self) -> dict[str, float]:
        """The prior "auto"."""
        return {**_AUTO, "columns": _AUTO["columns"] / self.mean_square}


# --- sets of labels, listed ---


@dataclass(frozen=True, eq=False)
class LabelSets:
    """All sets of labels (n_sets, n_outputs), and which pairs agree in each."""

    sets: Floats
    agree: Floats

    @staticmethod
    def of(codec: LabelCodec) -> LabelSets:
        """Those of a codec."""
        k = codec.n_outputs
        sets = (np.arange(1 << k)[:, None] >> np.arange(k) & 1).astype(np.float64)
        first, second = codec.pairs.T
        return LabelSets(sets, (sets[:, first] == sets[:, second]).astype(np.float64))

    def each(self, scores: Floats, pairs: Floats, use: Callable[[slice, Floats, Floats], None]) -> None:
        """``use(rows, log Z, probabilities)`` of all sets, for some rows at a time, from log odds of labels alone."""
        constant, step = self.agree @ pairs, max(1, _AT_ONCE // len(self.sets))
        for first in range(0, len(scores), step):
            rows = slice(first, first + step)
            found = scores[rows] @ self.sets.T
            found += constant
            largest = found.max(axis=1, keepdims=True)
            found -= largest
            np.exp(found, out=found)
            total = found.sum(axis=1, keepdims=True)
            found /= total
            use(rows, (np.log(total) + largest)[:, 0], found)


def odds(data: GraphData, weights: Floats, n_outputs: int) -> tuple[Floats, Floats]:
    """Log odds (n, n_outputs) of each label alone, and weights of the pairs."""
    nodes, (pairs,) = data.scores.split(weights)
    rows = data.scores.inputs.rows(np.ones(data.n_nodes, dtype=bool))
    return np.asarray(rows @ (nodes[:, 1] - nodes[:, 0])).reshape(-1, n_outputs), pairs.ravel()


def learn_sets(
    data: GraphData, codec: LabelCodec, start: Floats | None, lines: Callback | None, options: Mapping[str, Any]
) -> Solution:
    """Maximum likelihood by listing all sets of labels; ``options`` are those of :func:`bactrian.learn`."""
    began, deadline, listed, evaluations = perf_counter(), Deadline(options["max_seconds"]), LabelSets.of(codec), 0
    truth = data.truth.reshape(-1, codec.n_outputs).astype(np.float64)
    first, second = codec.pairs.T
    observed = data.weights @ (truth[:, first] == truth[:, second])
    rows = data.scores.inputs.rows(np.ones(data.n_nodes, dtype=bool))
    across = sp.csr_array(rows.T)
    variance = options["prior_variance"]
    precision = np.broadcast_to(0.0 if variance is None else 1.0 / np.asarray(variance), data.n_weights)

    def value_and_gradient(weights: Floats) -> tuple[float, Floats]:
        nonlocal evaluations
        evaluations += 1
        scores, pairs = odds(data, weights, codec.n_outputs)
        left, agreed, value = np.empty_like(truth), np.zeros(len(pairs)), 0.0

        def add(some: slice, log_z: Floats, chances: Floats) -> None:
            nonlocal value
            left[some] = data.weights[some, None] * (chances @ listed.sets - truth[some])
            agreed[:] += (data.weights[some] @ chances) @ listed.agree
            value += float(data.weights[some] @ (log_z - (scores[some] * truth[some]).sum(axis=1)))

        listed.each(scores, pairs, add)
        slope = np.asarray(across @ left.ravel())
        gradient = np.concatenate([np.stack([-slope, slope], axis=1).ravel(), agreed - observed])
        held = precision * weights
        return value - float(pairs @ observed) + 0.5 * float(weights @ held), gradient + held

    def watch(step: Step) -> bool:
        if lines is None:
            return False
        spent = perf_counter() - began
        return bool(lines(Progress(0, step.iteration, step.value, step.gradient_norm, 0.0, spent, step.x)))

    with single_threaded_blas():
        found = minimise(
            value_and_gradient,
            np.zeros(data.n_weights) if start is None else start,
            tolerance=options["tolerance"] * data.weights.sum(),
            max_iterations=options["max_iterations"],
            l1=options["l1"],
            callback=watch,
            interrupt=lambda: deadline.has_passed,
        )
    status = Status.TIME_LIMIT if deadline.has_passed else found.status
    solution = Solution(
        weights=found.x, status=status, objective=found.value, moment_gap=largest_magnitude(found.gradient),
        violation=0.0, method="exact", seconds=perf_counter() - began, evaluations=evaluations,
    )  # fmt: skip
    warn_stopped(solution)
    return solution


# --- the estimator ---


@dataclass(kw_only=True, eq=False, repr=False)
class MultiLabelCRF(LearnedEstimator):
    """Multi-label classification by a conditional field: each label depends on the columns and on the other labels.

    log p(y | x) = sum_l y_l (coef_l . x + intercept_l) + sum_(l,m) interactions_lm y_l y_m - log Z(x). Without pairs it
    is a logistic regression for each label; with them, sets of labels are predicted that go together.

    Parameters
    ----------
    edges : "auto", "complete", "select" or pairs of labels
        Pairs that interact. ``"select"`` keeps those whose residuals, of a logistic regression for each label, are
        correlated beyond what chance gives (a score test, at the penalty of BIC); ``"auto"`` is ``"complete"`` up to 14
        labels, else ``"select"``.
    method : "auto" or learner
        ``"exact"`` lists all sets of labels, up to 14; ``"auto"`` is that, and ``"trw"`` beyond. Or any other learner
        of :func:`bactrian.learn`.
    prior_variance : "auto", float, mapping, "cv" or None
        Variance of the Gaussian prior. ``"auto"`` is 10 divided by the mean squared norm of a row for ``"columns"``,
        100 for ``"intercepts"`` and 1 for ``"pairs"``, which are the blocks of a mapping. ``"cv"`` chooses it by
        cross-validation over rows.
    l1, tolerance, max_iterations, max_seconds, n_threads, seed, warm_start, verbose
        See :class:`bactrian.LinearChainCRF` and :func:`bactrian.learn`.

    Attributes
    ----------
    edges_ : (n_edges, 2)
        Pairs of labels that interact.
    n_features_in_, n_outputs_ : int
        Numbers of columns and labels.
    solution_ : Solution
        Status of learning.

    Examples
    --------
    >>> import bactrian as bt
    >>> X = [[0.0], [1.0], [2.0], [3.0], [0.5], [2.5]]
    >>> Y = [[0, 0], [0, 0], [1, 1], [1, 1], [0, 0], [1, 1]]
    >>> crf = bt.MultiLabelCRF().fit(X, Y)
    >>> crf.predict([[0.0], [3.0]])
    array([[0, 0],
           [1, 1]])
    >>> crf.predict_proba([[3.0]]).round(1)
    array([[1., 1.]])
    """

    _block_names: ClassVar = tuple(_AUTO)

    method: Any = "auto"
    prior_variance: Any = "auto"
    tolerance: float = 1e-5
    edges: Any = "auto"
    n_features_in_: int = field(init=False)

    def fit(self, X: Any, Y: Any, sample_weight: Any = None, *, callback: Callback | None = None) -> Self:
        """Learn the weights.

        Parameters
        ----------
        X : (n_samples, n_features)
            Dense, sparse or a data frame.
        Y : (n_samples, n_outputs)
            Zeros and ones, as scikit-learn's multi-label tools take them; dense, sparse or a data frame.
        sample_weight : (n_samples,), optional
            Weight of each row's term of the log-likelihood.
        callback : callable, optional
            Sees a :class:`Progress` after every iteration; returning True stops learning.
        """
        return self._fit(lambda: self.encode(X, Y, sample_weight), callback)

    def encode(self, X: Any, Y: Any, sample_weight: Any = None) -> GraphData:
        """The data that :meth:`fit` learns from; :meth:`adopt` keeps what is learned from them."""
        self.check_params()
        rows, labels = _checked_columns(X), _checked_labels(Y)
        check_count("Y", len(labels), rows.shape[0], "row for each of X")
        (n, d), k = rows.shape, labels.shape[1]
        square = float((sp.csr_array(rows).power(2)).sum()) / n
        alone = LabelCodec(d, k, np.zeros((0, 2), dtype=np.int64), square or 1.0)
        again = self.warm_start and self.codec_ is not None
        pairs = self.codec_.pairs if again else self._pairs(alone, rows, labels)
        codec = LabelCodec(d, k, pairs, self.codec_.mean_square if again else alone.mean_square)
        if again and (d, k) != (self.codec_.n_features, self.codec_.n_outputs):
            raise ArgumentError("warm_start", "needs the columns and labels of the last fit")
        self._encoded(codec)
        names = column_names(X)
        self.__dict__.pop("feature_names_in_", None)
        if names is not None:
            self.feature_names_in_ = np.array(names, dtype=object)
        return codec.data(rows, labels, sample_weight)

    def _pairs(self, alone: LabelCodec, rows: Any, labels: Ints) -> Ints:
        """Pairs of labels that interact."""
        k, chosen = alone.n_outputs, self.edges
        every = np.stack(np.triu_indices(k, 1), axis=1).astype(np.int64)
        if isinstance(chosen, str):
            if chosen == "complete" or (chosen == "auto" and k <= _ALL_JOINED):
                return every
            data = alone.data(rows, labels)
            variance = np.repeat([alone.auto_prior["columns"], _AUTO["intercepts"]], [2 * k * alone.n_features, 2 * k])
            fitted = learn(data, "exact", prior_variance=variance, tolerance=1e-3, n_threads=self.n_threads)
            left = labels - expit(odds(data, fitted.weights, k)[0])
            together, spread = left.T @ left, np.square(left).T @ np.square(left)
            first, second = every.T
            statistic = together[first, second] ** 2 / np.maximum(spread[first, second], 1e-12)
            return every[statistic > np.log(len(labels))]
        return np.sort(number_pairs(chosen, k, "edges", "label"), axis=1)

    def _hold(self, codec: LabelCodec) -> None:
        self.codec_, self.n_features_in_ = codec, codec.n_features
        self.n_outputs_, self.edges_ = codec.n_outputs, codec.pairs

    def check_params(self) -> None:
        """Check the parameters, before looking at any data."""
        super().check_params()
        if isinstance(self.edges, str) and self.edges not in ("auto", "complete", "select"):
            raise ArgumentError("edges", f"must be 'auto', 'complete', 'select' or pairs, found {self.edges!r}")

    def _options(self) -> dict[str, Any]:
        options = super()._options()
        if options["method"] == "auto":
            options["method"] = "exact" if self.codec_ is None or self.codec_.n_outputs <= _LISTED else "trw"
        return options

    def adopt(self, solution: Solution) -> Self:
        """See :class:`LearnedEstimator`."""
        super().adopt(solution)
        self.method_ = self._options()["method"]
        return self

    @property
    def _learner(self) -> Any:
        return self._learned

    def _learned(self, data: GraphData, start: Floats | None = None, **options: Any) -> Solution:
        if options["method"] != "exact" or self.codec_.n_outputs > _LISTED:
            return super()._learner(data, start=start, **options)
        lines = with_lines(options["callback"], options["tolerance"], options["verbose"])
        return learn_sets(data, self.codec_, start, lines, options)

    def _folds(self, data: GraphData) -> list[Fold]:
        return graph_folds(data, lambda test, _: self._marginals(test), self.seed, "row")

    # --- prediction ---

    def predict_proba(self, X: Any) -> Floats:
        """(n_samples, n_outputs) probability of each label, whatever the others are."""
        return self._marginals(self._data(X))[:, 1].reshape(-1, self.codec_.n_outputs)

    def predict(self, X: Any) -> Ints:
        """(n_samples, n_outputs) the most probable set of labels of each row, as zeros and ones.

        It makes the fewest mistakes about whole sets; ``predict_proba(X) > 0.5`` about single labels.
        """
        data, k = self._data(X), self.codec_.n_outputs
        if not self._is_listed:
            found = decode(data, self.weights_, "max-product", n_threads=self.n_threads)
            return np.stack([np.asarray(row, dtype=np.int64) for row in found]).reshape(-1, k)
        listed, chosen = LabelSets.of(self.codec_), np.empty((data.n_graphs, k), dtype=np.int64)

        def use(rows: slice, _: Floats, chances: Floats) -> None:
            chosen[rows] = listed.sets[chances.argmax(axis=1)]

        listed.each(*odds(data, self.weights_, k), use)
        return chosen

    def score(self, X: Any, Y: Any, sample_weight: Any = None) -> float:
        """Share of the rows whose set of labels is right as a whole, as scikit-learn's multi-label tools score."""
        labels = _checked_labels(Y)
        right = (self.predict(X) == labels).all(axis=1)
        return float(np.average(right, weights=sample_weight))

    @property
    def coef_(self) -> Floats:
        """(n_outputs, n_features) log odds of each label for a unit of each column."""
        return self._log_odds[: -self.codec_.n_outputs].reshape(self.codec_.n_outputs, -1)

    @property
    def intercept_(self) -> Floats:
        """(n_outputs,) log odds of each label where columns and other labels are 0."""
        return self._log_odds[-self.codec_.n_outputs :] - 0.5 * self.interactions_.sum(axis=1)

    @property
    def interactions_(self) -> Floats:
        """(n_outputs, n_outputs) log odds ratio of each pair of labels, given the columns and all other labels."""
        check_is_fitted(self, "weights_")
        found = np.zeros((self.codec_.n_outputs,) * 2)
        first, second = self.codec_.pairs.T
        found[first, second] = found[second, first] = 2.0 * self.weights_[self.weights_.size - len(first) :]
        return found

    @property
    def _log_odds(self) -> Floats:
        check_is_fitted(self, "weights_")
        nodes = self.weights_[: self.weights_.size - len(self.codec_.pairs)].reshape(-1, 2)
        return np.asarray(nodes[:, 1] - nodes[:, 0])

    @property
    def _is_listed(self) -> bool:
        """Whether sets of labels are listed: not where the learner has an entropy of its own."""
        return self.codec_.n_outputs <= _LISTED and self.method_ in ("exact", "pseudolikelihood")

    def _data(self, X: Any) -> GraphData:
        check_is_fitted(self, "weights_")
        rows, names = _checked_columns(X), column_names(X)
        if names is not None and hasattr(self, "feature_names_in_"):
            rows = rows[:, places(names, self.feature_names_in_.tolist())]
        if rows.shape[1] != self.n_features_in_:
            expected = f"but {type(self).__name__} is expecting {self.n_features_in_} features as input"
            raise ValueError(f"X has {rows.shape[1]} features, {expected}")
        return self.codec_.data(rows)

    def _marginals(self, data: GraphData) -> Floats:
        """(n_nodes, 2) probabilities."""
        if not self._is_listed:
            method, options = matched_inference(self.method_)
            return graph_marginals(data, self.weights_, method, n_threads=self.n_threads, **options).nodes
        listed, found = LabelSets.of(self.codec_), np.empty((data.n_graphs, self.codec_.n_outputs))

        def use(rows: slice, _: Floats, chances: Floats) -> None:
            found[rows] = chances @ listed.sets

        listed.each(*odds(data, self.weights_, self.codec_.n_outputs), use)
        found = np.clip(found, 0.0, 1.0)
        return np.stack([1.0 - found.ravel(), found.ravel()], axis=1)

    # --- files ---

    def _contents(self) -> tuple[dict[str, Any], Arrays]:
        codec = self.codec_
        names = getattr(self, "feature_names_in_", None)
        attributes = {"n_features": codec.n_features, "n_outputs": codec.n_outputs, "mean_square": codec.mean_square}
        return {**attributes, "feature_names": None if names is None else list(names)}, {"edges": codec.pairs}

    def _restore(self, attributes: dict[str, Any], arrays: Arrays) -> None:
        n_features, n_outputs = int(attributes["n_features"]), int(attributes["n_outputs"])
        if n_features < 0 or n_outputs < 1:
            raise ValueError("it has no labels")
        pairs = number_pairs(arrays["edges"], n_outputs, "edges", "label")
        self._hold(LabelCodec(n_features, n_outputs, pairs, float(attributes["mean_square"])))
        if attributes["feature_names"] is not None:
            self.feature_names_in_ = np.array(attributes["feature_names"], dtype=object)


def _checked_columns(X: Any) -> Any:
    rows = checked_rows(X.to_numpy() if column_names(X) is not None and hasattr(X, "to_numpy") else X, "X")
    if rows.shape[0] == 0:
        raise ValueError("X must have at least one row, found none")
    return rows


def _checked_labels(Y: Any) -> Ints:
    found = rectangular(Y.toarray() if sp.issparse(Y) else Y, "Y")
    if found.ndim != 2 or found.shape[1] == 0:
        raise ValueError(f"Y must have shape (n_samples, n_outputs), found {found.shape}; one column per label")
    if not np.isin(found, (0, 1)).all():
        row, column = np.argwhere(~np.isin(found, (0, 1)))[0].tolist()
        raise ValueError(f"Y must hold 0 and 1, found Y[{row}, {column}] = {found[row, column]}")
    return found.astype(np.int64)
