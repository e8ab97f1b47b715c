"""Several noisy labellers and no truth: a generative model of what they say, with the true label hidden.

With y the true label, l_v what labeller v says and an agreement weight for every pair of labellers that copy from each
other,

    log p(y, l) = s(y) + sum_v t_v(l_v, y) + sum_(u,v) c_uv [l_u = l_v] - log Z

Without edges this is the model of Dawid and Skene (Appl. Stat. 28, 1979), and with them that of Ratner et al. (Data
programming, NeurIPS 2016) with a table per labeller. Weights maximise the marginal likelihood of what the labellers
said (:mod:`bactrian.learners.hidden`); where one abstains its label is unknown, so that abstaining says nothing.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from sklearn.utils.validation import check_is_fitted

from bactrian.arrays import Arrays, Floats, Ints, check_minus_one, number_pairs, real_numbers
from bactrian.errors import ArgumentError, check_count, warn
from bactrian.estimators.base import LearnedEstimator
from bactrian.estimators.labels import codes_of, known_labels, label_array, unknown_label
from bactrian.estimators.pairwise import incomplete_rows
from bactrian.estimators.priors import VARIANCE
from bactrian.frames import column_names
from bactrian.graphs.graph import ClusterGraph
from bactrian.graphs.loglinear import LogLinearModel, Samples
from bactrian.inference.infer import infer
from bactrian.solvers.solution import AttainmentWarning, Callback, Solution

#: Weight of agreement with the truth from which every labeller starts.
_BETTER_THAN_CHANCE = 2.0
#: Class shares that are given count as so many times the rows.
_PRIOR_ROWS = 10.0
#: Standard errors from which agreement is clear, and the multiple of what is expected from which it is worth an edge.
_CLEAR, _WORTH = 4.0, 1.25
_ROUNDING = 1e-12
#: Labellers among whom dependent pairs are looked for: with fewer there are no others to compare with.
_LEAST_LABELLERS = 5
#: What labels may agree less with the labellers than those of majority vote.
_BELOW_MAJORITY = 0.04
#: Rows on which that is judged.
_JUDGED = 2_000


@dataclass(kw_only=True, eq=False, repr=False)
class LabelModel(LearnedEstimator):
    """Probabilities of true labels from several noisy labellers, who may be wrong or abstain.

    ``L`` has a row per item and a column per labeller: integers, strings or booleans, and -1, None, NaN or an empty
    string where a labeller abstains; an array, lists or a data frame. Whether a labeller abstains must not depend on
    the label that it would have given. A few known true labels help: ``fit(L, y)``, with the others unknown.

    Parameters
    ----------
    edges : (n_edges, 2) labellers, "auto" or None
        Pairs of labellers that depend on each other beyond the truth, by number or by name. Without an edge, two copies
        of one labeller count twice, and may be taken for the truth. ``"auto"``, the default, finds such pairs
        (:func:`dependent_pairs`) among five labellers or more; among fewer, and with None, there are none.
    labels : sequence, optional
        All labels; by default those seen.
    class_prior : (n_labels,) floats, optional
        Shares of the labels, in their order, where they are known; by default they are learned.
    method : str or learner
        Any learner that supports unknown states (:doc:`/unknown-states`).
    prior_variance, l1, tolerance, max_iterations, max_seconds, n_threads, seed, warm_start, verbose
        See :class:`bactrian.MarkovRandomField`; there is one variance for all weights.

    Attributes
    ----------
    classes_ : (n_labels,)
        The labels, sorted.
    edges_ : (n_edges, 2)
        Labellers that depend on each other.
    weights_, solution_, n_features_in_
        What was learned, and the number of labellers.

    Examples
    --------
    >>> import bactrian as bt
    >>> L = [[1, 1, 0], [0, 0, 0], [1, 1, -1], [0, 0, 1], [1, 1, 1], [0, -1, 0], [0, 0, 0], [1, 1, 1]]
    >>> model = bt.LabelModel().fit(L)
    >>> model.predict(L)
    array([1, 0, 1, 0, 1, 0, 0, 1])
    >>> model.labellers_.round(2)
    array([0.96, 0.95, 0.69])
    """

    _block_names: ClassVar = ()

    method: Any = "exact"
    prior_variance: Any = VARIANCE
    tolerance: float = 1e-4
    edges: Any = "auto"
    labels: Any = None
    class_prior: Any = None
    classes_: NDArray[Any] = field(init=False)
    edges_: Ints = field(init=False)
    n_features_in_: int = field(init=False)
    _anchored: bool = field(init=False, default=False)  #: whether the data say which hidden state is which label

    def check_params(self) -> None:
        """Check the parameters, before looking at any data."""
        super().check_params()
        if isinstance(self.prior_variance, str):
            raise ArgumentError(
                "prior_variance", f"= {self.prior_variance!r} needs known labels to hold out; give a number"
            )
        if isinstance(self.edges, str) and self.edges != "auto":
            raise ArgumentError("edges", f"must be pairs of labellers, 'auto' or None, found {self.edges!r}")

    # --- learning ---

    def fit(self, L: Any, y: Any = None, *, callback: Callback | None = None) -> Self:
        """Learn from what labellers say of each row, and from the true labels in ``y`` that are known."""
        return self._fit(lambda: self.encode(L, y), callback)

    def encode(self, L: Any, y: Any = None) -> Samples:
        """The data that :meth:`fit` learns from; :meth:`adopt` keeps what is learned from them."""
        self.check_params()
        said, names = _said(L), column_names(L)
        truth = np.full(len(said), unknown_label(said)) if y is None else label_array(y, "y", unknown_allowed=True)
        check_count("y", truth.shape, said.shape[:1], "label per row of L")
        if said.shape[1] < 3 and not known_labels(truth).any():
            raise ValueError(f"L has {said.shape[1]} labellers; estimating how good each is takes at least three")
        if not (known_labels(said).any() or known_labels(truth).any()):
            raise ValueError("L holds no known label; learning needs at least one")
        again = self.warm_start and hasattr(self, "classes_")
        classes = self.classes_ if again else self._checked_classes(said, truth)
        if not again and self.labels is None:
            check_minus_one([L, [] if y is None else y], classes.tolist(), "L")
        rows = np.column_stack([codes_of(said, classes, "L"), codes_of(truth, classes, "y")])
        counts = np.ones(len(rows))
        if self.class_prior is not None:
            shares = real_numbers(self.class_prior, "class_prior", classes.size)
            if not (shares > 0.0).all():
                raise ArgumentError("class_prior", f"must be positive, found {shares.tolist()}")
            of_truth = np.column_stack([np.full((classes.size, said.shape[1]), -1), np.arange(classes.size)])
            counts = np.append(counts, _PRIOR_ROWS * len(rows) * shares / shares.sum())
            rows = np.concatenate([rows, of_truth])
        if not again:
            self._forget()
        self._anchored = self.class_prior is not None or bool(known_labels(truth).any())
        self.classes_, self.n_features_in_ = classes, said.shape[1]
        self.__dict__.pop("feature_names_in_", None)
        if names is not None:
            self.feature_names_in_ = np.array(names, dtype=object)
        if not isinstance(self.edges, str):
            self.edges_ = self._checked_edges()
        elif not again:
            enough = said.shape[1] >= _LEAST_LABELLERS
            none = np.zeros((0, 2), dtype=np.int64)
            self.edges_ = dependent_pairs(rows[: len(said), :-1], classes.size) if enough else none
        return Samples(self._model(), rows, counts)

    def learning_options(self) -> dict[str, Any]:
        """See :meth:`LearnedEstimator.learning_options`; learning starts from labellers that are better than chance."""
        start = np.zeros(self._n_weights())
        k = self.classes_.size
        start[k : k + self.n_features_in_ * k * k].reshape(-1, k * k)[:, :: k + 1] = _BETTER_THAN_CHANCE
        return {**super().learning_options(), "start": start}

    def adopt(self, solution: Solution) -> Self:
        """See :meth:`LearnedEstimator.adopt`.

        Without known labels the order of the hidden states is arbitrary; the order in which labellers are right most
        often is kept.
        """
        super().adopt(solution)
        k = self.classes_.size
        order = linear_sum_assignment(self._joint().sum(axis=0), maximize=True)[1]
        if not self._anchored and (order != np.arange(k)).any():
            tables = self.weights_[: k + self.n_features_in_ * k * k].reshape(-1, k)  # states of the truth in columns
            tables[:] = tables[:, order]
            self.solution_ = replace(solution, weights=self.weights_.copy(), beliefs=(), state=None)
        return self

    def _judge(self, data: Samples) -> None:
        """Warn where the labels agree with the labellers much less than those of majority vote."""
        said = data.X[data.X[:, :-1].max(axis=1) >= 0, :-1][:_JUDGED]
        if self._anchored or not len(said):
            return
        votes = np.stack([(said == label).sum(axis=1) for label in range(self.classes_.size)], axis=1)
        chosen = votes[np.arange(len(said)), self._posterior(said).argmax(axis=1)].sum()
        found, most = chosen / votes.sum(), votes.max(axis=1).sum() / votes.sum()
        if found < most - _BELOW_MAJORITY:
            warn(
                f"the labels agree with {100 * found:.1f} % of what labellers say, those of a majority vote with "
                f"{100 * most:.1f} %: the model may trust a few labellers too much (see labellers_); name those that "
                "copy from each other with edges=, or give some true labels",
                AttainmentWarning,
            )

    def _checked_classes(self, said: NDArray[Any], truth: NDArray[Any]) -> NDArray[Any]:
        if self.labels is not None:
            return np.unique(label_array(self.labels, "labels"))
        seen = [part[known_labels(part)] for part in (said, truth) if known_labels(part).any()]
        return np.unique(np.concatenate(seen))

    def _checked_edges(self) -> Ints:
        names = list(getattr(self, "feature_names_in_", ()))
        given = [] if self.edges is None else list(self.edges)
        numbers = [[names.index(end) if end in names else end for end in pair] for pair in given]
        return number_pairs(numbers, self.n_features_in_, "edges", "labeller")

    def _model(self) -> LogLinearModel:
        """Variables are the labellers and, last, the truth."""
        k, m, edges = self.classes_.size, self.n_features_in_, self.edges_.tolist()
        own = sp.csr_array(sp.eye_array(k + m * k * k, self._n_weights()))
        agreement = sp.csr_array(np.eye(k).reshape(-1, 1))
        agree = [agreement @ sp.eye_array(1, own.shape[1], k=own.shape[0] + e) for e in range(len(edges))]
        tables = [own[k + v * k * k : k + (v + 1) * k * k] for v in range(m)]
        scopes = [(m,), *((v, m) for v in range(m)), *map(tuple, edges)]
        return LogLinearModel(ClusterGraph([k] * (m + 1), scopes), [own[:k], *tables, *agree])

    def _n_weights(self) -> int:
        k = self.classes_.size
        return int(k + self.n_features_in_ * k * k + len(self.edges_))

    # --- what was learned ---

    def _joint(self) -> Floats:
        """(n_labellers, n_labels, n_labels) joint probabilities of what a labeller says and the truth."""
        check_is_fitted(self, "weights_")
        result = infer(self._model(), self.weights_, "exact", n_threads=self.n_threads)
        return np.stack([result.clusters[1 + v] for v in range(self.n_features_in_)])

    @property
    def labellers_(self) -> Floats:
        """(n_labellers,) probability that a labeller, where it does not abstain, is right."""
        return np.trace(self._joint(), axis1=1, axis2=2)

    @property
    def confusions_(self) -> Floats:
        """(n_labellers, n_labels, n_labels) probability of what a labeller says (columns) given the truth (rows)."""
        joint = self._joint().transpose(0, 2, 1)
        return joint / joint.sum(axis=2, keepdims=True)

    @property
    def class_prior_(self) -> Floats:
        """(n_labels,) prior probabilities of the labels."""
        return self._joint()[0].sum(axis=0)

    # --- prediction ---

    def predict_proba(self, L: Any) -> Floats:
        """(n_rows, n_labels) probability of each label given what the labellers say; ``classes_`` names the columns."""
        check_is_fitted(self, "weights_")
        names, known = column_names(L), getattr(self, "feature_names_in_", None)
        said = _said(L) if len(L) else np.zeros((0, self.n_features_in_), dtype=np.int64)
        if said.shape[1] != self.n_features_in_:
            raise ValueError(f"L has {said.shape[1]} features (labellers), and the model {self.n_features_in_}")
        if names is not None and known is not None and names != known.tolist():
            raise ValueError(f"L has the columns {', '.join(names)}, and the model {', '.join(known)}")
        return self._posterior(codes_of(said, self.classes_, "L"))

    def _posterior(self, said: Ints) -> Floats:
        rows = np.column_stack([said, np.full(len(said), -1)])
        model, found = self._model(), np.empty((len(rows), self.classes_.size))
        for numbers, evidence, which in incomplete_rows(rows, len(model.graph.clusters)):
            results = infer([model] * len(evidence), self.weights_, "exact", evidence, n_threads=self.n_threads)
            found[numbers] = np.stack([result.variables[self.n_features_in_] for result in results])[which]
        return found

    def predict(self, L: Any) -> NDArray[Any]:
        """The most probable label of each row; that of ``class_prior_`` where every labeller abstains."""
        check_is_fitted(self, "weights_")
        return self.classes_[self.predict_proba(L).argmax(axis=1)]

    def score(self, L: Any, y: Any) -> float:
        """Accuracy of the predicted labels."""
        if not len(L):
            raise ValueError("L is empty; a score needs at least one row")
        return float(np.mean(self.predict(L) == label_array(y, "y")))

    # --- files ---

    def _contents(self) -> tuple[dict[str, Any], Arrays]:
        names = getattr(self, "feature_names_in_", None)
        attributes = {
            "classes": self.classes_.tolist(),
            "labellers": self.n_features_in_,
            "names": None if names is None else names.tolist(),
        }
        return attributes, {"edges": self.edges_}

    def _restore(self, attributes: dict[str, Any], arrays: Arrays) -> None:
        self.classes_ = np.unique(label_array(attributes["classes"], "classes"))
        self.n_features_in_, names = int(attributes["labellers"]), attributes["names"]
        if not 1 <= self.n_features_in_ <= self.weights_.size:  # before any array is made
            raise ValueError(f"it has {self.n_features_in_} labellers")
        self.edges_ = number_pairs(arrays["edges"], self.n_features_in_, "edges", "labeller")
        if names is not None:
            if len(names) != self.n_features_in_ or not all(isinstance(name, str) for name in names):
                raise ValueError("its names are not one string per labeller")
            self.feature_names_in_ = np.array(names, dtype=object)


def dependent_pairs(said: Ints, n_labels: int) -> Ints:
    """(n_pairs, 2) labellers that agree more than the truth which all share explains.

    Where only the truth ties labellers together, agreement beyond chance C, a covariance, is a product of what each
    owes to the truth, so that C_uv = C_uw C_vx / C_wx for all others w and x (Spearman's tetrads; exact for two
    labels). A pair that clearly exceeds the median of these, and most of them, is set aside, the clearest first: its
    agreement no longer speaks about others.
    """
    m = said.shape[1]
    together, error = np.full((m, m), np.nan), np.full((m, m), np.inf)
    for u, v in itertools.combinations(range(m), 2):
        both = said[(said[:, u] >= 0) & (said[:, v] >= 0)]
        if len(both) > 1:
            one, other = (np.eye(n_labels)[both[:, w]] for w in (u, v))
            products = ((one - one.mean(axis=0)) * (other - other.mean(axis=0))).sum(axis=1)
            together[u, v] = together[v, u] = products.mean()
            error[u, v] = error[v, u] = products.std() / math.sqrt(len(both)) + _ROUNDING
    told = together.copy()
    pairs: list[tuple[int, int]] = []
    while True:
        sure = np.where(told > _CLEAR * error, told, np.nan)
        gains = np.full((m, m), -np.inf)
        for u, v in itertools.combinations(range(m), 2):
            others = np.setdiff1d(np.arange(m), (u, v))
            tetrads = np.outer(told[u, others], told[v, others]) / sure[np.ix_(others, others)]
            if np.isfinite(told[u, v]) and not np.isnan(tetrads).all():
                median, most = np.nanquantile(tetrads, [0.5, 0.75])
                gains[u, v] = (told[u, v] - max(_WORTH * median, most)) / error[u, v]
        u, v = map(int, np.unravel_index(gains.argmax(), gains.shape))
        if gains[u, v] <= _CLEAR:
            return np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2)
        pairs.append((u, v))
        told[u, v] = told[v, u] = np.nan


def _said(L: Any) -> NDArray[Any]:
    said = label_array(L, "L", unknown_allowed=True)
    if said.ndim != 2 or said.size == 0:
        raise ValueError(f"L must have a row per item and a column per labeller, found shape {said.shape}")
    return said
