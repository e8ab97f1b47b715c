"""A generative Markov random field over discrete variables, in the manner of scikit-learn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import DensityMixin
from sklearn.utils.validation import check_is_fitted

from bactrian.clusters.elimination import MemoryBudgetError, junction_tree
from bactrian.estimators.base import LearnedEstimator
from bactrian.estimators.pairwise import checked_edges, is_forest, n_weights_of, pairwise_model
from bactrian.estimators.saving import Arrays
from bactrian.inference.decode import decode
from bactrian.inference.draw import draw_by_gibbs, draw_exactly
from bactrian.inference.infer import METHODS, infer
from bactrian.model.domain import Domain, rectangular
from bactrian.model.loglinear import LogLinearModel, Samples

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: Rows are packed together for inference up to so many clusters in all.
_CLUSTERS_AT_ONCE = 100_000


class MarkovRandomField(DensityMixin, LearnedEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """A pairwise Markov random field, learned from complete samples.

    log p(x) = sum_v s_v(x_v) + sum_(u,v) t_uv(x_u, x_v) - log Z, with tables s and t of weights. Every variable's table
    is a cluster of its own (counting number 1 in clusters-only entropies).

    Parameters
    ----------
    edges : "complete", "grid" or (n_edges, 2) ints
        Which variables are joined; a grid is 4-connected, variables in row order.
    shape : (height, width), optional
        Of the grid.
    tables : {"full", "shared", "potts"}
        A table per variable and per edge; one table for all variables and one for all edges (which then need equally
        many states); or a table per variable and a single weight for agreement on any edge.
    method : str or learner
        Any learner of :func:`bactrian.learn`.
    prior_variance, l1, tolerance, max_iterations, max_seconds, n_threads
        See :func:`bactrian.learn`.
    seed : int
        Seed of learners and inference methods that draw random numbers, and of :meth:`sample` by default.
    warm_start : bool
        Start from the weights of the last fit, or of the file the model was loaded from.
    cardinalities : int or (n_variables,) ints, optional
        Number of states; by default one more than the largest state seen of each variable (of all variables, for
        shared tables). Give them where later data may hold states that the training data does not, as in
        cross-validation.
    inference : str
        Method of :func:`bactrian.infer` where exact inference does not fit ``memory_budget``.
    memory_budget : int
        Bytes that the tables of a junction tree may take. Without cycles inference is always exact.

    Attributes
    ----------
    weights_ : (n_weights,)
        Learned weights: tables of variables, then of edges; :meth:`log_potentials` gives them as tables.
    solution_ : Solution
        Status and history of learning.
    model_ : LogLinearModel
        The model, for use with :func:`bactrian.infer` and others: a cluster per variable, then one per edge.
    edges_, cardinalities_, tables_
        The edges, the numbers of states, and how the tables are tied.
    n_features_in_ : int
        Number of variables.
    inference_method_ : str
        ``"exact"`` where that fits the memory budget, else ``inference``: how marginals and log Z are computed.
    log_partition_ : float
        log Z, exact or approximated according to ``inference_method_``; computed when first asked for.

    Examples
    --------
    >>> import bactrian as bt
    >>> X = [[0, 0, 1], [0, 0, 0], [1, 1, 0], [1, 1, 1], [0, 0, 1], [1, 0, 0]]
    >>> field = bt.MarkovRandomField(edges=[(0, 1), (1, 2)], prior_variance=1.0).fit(X)
    >>> field
    MarkovRandomField(edges=[(0, 1), (1, 2)], prior_variance=1.0)
    >>> field.conditional({0: 1})[1].round(2)
    array([0.45, 0.55])
    >>> field.predict([[0, -1, 1]])
    array([[0, 0, 1]])
    """

    def __init__(
        self,
        edges: Any = "complete",
        *,
        shape: Any = None,
        tables: str = "full",
        method: Any = "cccp",
        prior_variance: float | None = 10.0,
        l1: float = 0.0,
        tolerance: float = 1e-6,
        max_iterations: int = 10_000,
        max_seconds: float | None = None,
        n_threads: int | None = None,
        seed: int = 0,
        warm_start: bool = False,
        cardinalities: Any = None,
        inference: str = "rbp",
        memory_budget: int = 2**28,
    ) -> None:
        self.edges = edges
        self.shape = shape
        self.tables = tables
        self.method = method
        self.prior_variance = prior_variance
        self.l1 = l1
        self.tolerance = tolerance
        self.max_iterations = max_iterations
        self.max_seconds = max_seconds
        self.n_threads = n_threads
        self.seed = seed
        self.warm_start = warm_start
        self.cardinalities = cardinalities
        self.inference = inference
        self.memory_budget = memory_budget

    # --- learning ---

    def fit(self, X: ArrayLike, y: object = None, sample_weight: ArrayLike | None = None) -> Self:
        """Learn the weights from samples X, shape (n_samples, n_variables) of ints; ``y`` is ignored.

        ``sample_weight`` multiplies each sample's term of the log-likelihood.
        """
        states = _checked_table(X)
        if states.shape[0] == 0 or states.shape[1] == 0:
            raise ValueError(f"X must have at least one sample and one variable, found shape {states.shape}")
        _check_inference(self.inference)
        again = self.warm_start and hasattr(self, "weights_")
        cardinalities = self._checked_cardinalities(states, again)
        edges = checked_edges(self.edges, self.shape, states.shape[1])
        model = pairwise_model(self.tables, cardinalities, edges)
        samples = Samples(model, states, sample_weight)
        if again and not (
            np.array_equal(cardinalities, self.cardinalities_)
            and np.array_equal(edges, self.edges_)
            and self.tables == self.tables_
        ):
            raise ValueError(
                "warm_start: edges, tables or the numbers of states differ from those of the last fit; "
                "give cardinalities= where later data may hold further states"
            )
        self._learn(samples, start=self.weights_ if again else None)
        self._keep(self.tables, model, edges)
        names = _feature_names(X)
        if names is not None:
            self.feature_names_in_ = names
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_
        return self

    def _keep(self, tables: str, model: LogLinearModel, edges: Ints) -> None:
        self.tables_ = tables
        self.model_ = model
        self.edges_ = edges
        self.cardinalities_: Ints = model.graph.cardinalities.copy()
        self.n_features_in_ = model.graph.n_variables
        self._fits: tuple[int, bool] | None = None
        self._partition: tuple[object, float] | None = None

    def _checked_cardinalities(self, states: Ints, again: bool) -> Ints:
        n = states.shape[1]
        if self.cardinalities is None:
            if (states < 0).any():
                Domain([1] * n, []).checked_states(states, "X")  # says where
            seen: Ints = states.max(axis=0) + 1
            if self.tables == "shared":
                seen = np.full(n, seen.max())
            if again and self.cardinalities_.size == n:
                seen = np.maximum(seen, self.cardinalities_)
            return seen
        given = rectangular(self.cardinalities, "cardinalities")
        if given.ndim == 0:
            given = np.full(n, given)
        checked = Domain(given, []).cardinalities
        if checked.shape != (n,):
            raise ValueError(f"cardinalities must have one entry per variable: expected {n}, found {checked.size}")
        return checked

    # --- the joint distribution ---

    @property
    def inference_method_(self) -> str:
        """How marginals and log Z are computed."""
        check_is_fitted(self, "weights_")
        if self._fits is None or self._fits[0] != self.memory_budget:
            self._fits = self.memory_budget, self._exact_fits()
        return "exact" if self._fits[1] else self.inference

    def _exact_fits(self) -> bool:
        if is_forest(self.n_features_in_, self.edges_):
            return True
        try:
            junction_tree(self.cardinalities_, self.model_.graph.clusters, memory_budget=self.memory_budget)
        except MemoryBudgetError:
            return False
        return True

    @property
    def log_partition_(self) -> float:
        """log Z, or its approximation."""
        key = self.inference_method_, self.memory_budget, self.seed
        if self._partition is None or self._partition[0] != key:
            value = self._infer([None])[0].log_partition
            if value is None:
                raise ValueError(
                    f"inference={self.inference!r} has no log-partition, and exact inference does not fit memory_budget"
                )
            self._partition = key, value
        return self._partition[1]

    def log_potentials(self) -> tuple[list[Floats], list[Floats]]:
        """Tables of log-potentials: one per variable, shape (states,), and one per edge of ``edges_``."""
        check_is_fitted(self, "weights_")
        known: dict[int, Floats] = {}  # by the features' identity: shared tables are computed once
        tables: list[Floats] = []
        graph = self.model_.graph
        for scope, features in zip(graph.clusters, self.model_.features, strict=True):
            assert features is not None
            if id(features) not in known:
                known[id(features)] = np.asarray(features @ self.weights_)
            tables.append(known[id(features)].reshape(graph.shape(scope)).copy())
        return tables[: graph.n_variables], tables[graph.n_variables :]

    def score_samples(self, X: ArrayLike) -> Floats:
        """Log-probability of each sample; where ``inference_method_`` is not exact, log Z is its approximation."""
        states = self._checked_states(X)
        variables, pairs = self.log_potentials()
        scores = np.full(states.shape[0], -self.log_partition_)
        for v, table in enumerate(variables):
            scores += table[states[:, v]]
        for (a, b), table in zip(self.edges_.tolist(), pairs, strict=True):
            scores += table[states[:, a], states[:, b]]
        return scores

    def score(self, X: ArrayLike, y: object = None, sample_weight: ArrayLike | None = None) -> float:
        """Mean log-probability of the samples, weighted where ``sample_weight`` is given; ``y`` is ignored."""
        scores = self.score_samples(X)
        if sample_weight is None:
            return float(scores.mean())
        return float(np.average(scores, weights=Samples(self.model_, X, sample_weight).sample_weight))

    def sample(self, n_samples: int = 1, seed: int | None = None) -> Ints:
        """Draws from the joint distribution, shape (n_samples, n_variables); the same ones for the same seed.

        Independent and exact where a junction tree fits ``memory_budget``, otherwise by blocked Gibbs sampling: 16
        chains, 500 sweeps before the first draw of each and 10 between draws.
        """
        check_is_fitted(self, "weights_")
        if isinstance(n_samples, bool) or not (isinstance(n_samples, int | np.integer) and n_samples >= 1):
            raise ValueError(f"n_samples must be an integer of at least 1, found {n_samples!r}")
        seed = self.seed if seed is None else seed
        given = self.model_, self.weights_, int(n_samples)
        try:
            return draw_exactly(*given, seed=seed, memory_budget=self.memory_budget, n_threads=self.n_threads)
        except MemoryBudgetError:
            return draw_by_gibbs(*given, seed=seed, n_threads=self.n_threads)

    # --- marginals and completions ---

    def marginals(self, evidence: Mapping[int, int] | None = None) -> list[Floats]:
        """Marginal of every variable, given the states of some of them, which are then one-hot."""
        check_is_fitted(self, "weights_")
        return [np.array(table) for table in self._infer([evidence])[0].variables]

    def conditional(self, evidence: Mapping[int, int]) -> dict[int, Floats]:
        """Marginals of the variables that are not observed, by variable, given the states of those that are."""
        marginals = self.marginals(evidence)
        return {v: table for v, table in enumerate(marginals) if v not in evidence}

    def predict_marginals(self, X: ArrayLike) -> list[Floats]:
        """Marginals given what each sample shows; -1 stands for a state that is missing.

        A list with an array of shape (n_samples, states) for every variable; observed states have probability 1.
        """
        states = self._checked_states(X, missing=True)
        found = [np.zeros((states.shape[0], int(k))) for k in self.cardinalities_]
        for rows, patterns, which in self._incomplete(states):
            results = self._infer([_evidence(pattern) for pattern in patterns])
            for v, table in enumerate(found):
                table[rows] = np.stack([result.variables[v] for result in results])[which]
        complete = np.flatnonzero((states >= 0).all(axis=1))
        for v, table in enumerate(found):
            table[complete, states[complete, v]] = 1.0
        return found

    def predict(self, X: ArrayLike) -> Ints:
        """Samples with the missing states (-1) filled in: the most probable completion of each.

        Exact where inference is, otherwise by max-product. Observed states stay as they are.
        """
        states = self._checked_states(X, missing=True)
        method = "exact" if self.inference_method_ == "exact" else "max-product"
        for rows, patterns, which in self._incomplete(states.copy()):
            found = decode(
                [self.model_] * len(patterns),
                self.weights_,
                method,
                [_evidence(pattern) for pattern in patterns],
                memory_budget=self._budget,
                n_threads=self.n_threads,
            )
            states[rows] = np.stack(found)[which]
        return states

    @property
    def _budget(self) -> int:
        # Trees are exact without a junction tree, which decoding asks for all the same.
        return max(1, self.memory_budget)

    def _infer(self, evidence: list[Any]) -> list[Any]:
        return infer(
            [self.model_] * len(evidence),
            self.weights_,
            self.inference_method_,
            evidence,
            memory_budget=self._budget,
            n_threads=self.n_threads,
            seed=self.seed,
        )

    def _incomplete(self, states: Ints) -> list[tuple[Ints, Ints, Ints]]:
        """Rows with missing states in groups of a bounded size: row numbers, distinct patterns, pattern of each row."""
        rows = np.flatnonzero((states < 0).any(axis=1))
        if rows.size == 0:
            return []
        patterns, which = np.unique(states[rows], axis=0, return_inverse=True)
        which = which.ravel()
        step = max(1, _CLUSTERS_AT_ONCE // len(self.model_.graph.clusters))
        groups = []
        for first in range(0, len(patterns), step):
            inside = np.flatnonzero((which >= first) & (which < first + step))
            groups.append((rows[inside], patterns[first : first + step], which[inside] - first))
        return groups

    def _checked_states(self, X: ArrayLike, missing: bool = False) -> Ints:
        check_is_fitted(self, "weights_")
        states = _checked_table(X)
        if states.shape[1] != self.n_features_in_:
            raise ValueError(
                f"X has {states.shape[1]} features, but {type(self).__name__} is expecting {self.n_features_in_} "
                "features as input"
            )
        names, expected = _feature_names(X), getattr(self, "feature_names_in_", None)
        if names is not None and expected is not None and not np.array_equal(names, expected):
            v = int(np.argmax(names != expected))
            raise ValueError(f"X: column {v} is {names[v]!r}, but {expected[v]!r} was there in fit")
        known = np.where(states == -1, 0, states) if missing else states
        self.model_.graph.checked_states(known, "X")
        return states

    # --- files ---

    def _contents(self) -> tuple[dict[str, Any], Arrays]:
        names = getattr(self, "feature_names_in_", None)
        attributes = {
            "tables": self.tables_,  # the parameter may have changed since
            "feature_names": None if names is None else names.tolist(),
        }
        return attributes, {"edges": self.edges_, "cardinalities": self.cardinalities_}

    def _restore(self, attributes: dict[str, Any], arrays: Arrays) -> None:
        cardinalities = Domain(arrays["cardinalities"], []).cardinalities
        if cardinalities.size == 0:
            raise ValueError("it has no variables")
        edges = checked_edges(arrays["edges"], None, cardinalities.size)
        tables = attributes["tables"]
        if n_weights_of(tables, cardinalities, edges) != self.weights_.size:  # before any table is made
            raise ValueError(f"it has {self.weights_.size} weights, which do not fit its tables")
        self._keep(tables, pairwise_model(tables, cardinalities, edges), edges)
        names = attributes["feature_names"]
        if names is not None:
            self.feature_names_in_ = np.array(names, dtype=object)


def _checked_table(X: Any) -> Ints:
    """X as a new (n_samples, n_variables) array of ints, or an error."""
    states = rectangular(X, "X")
    if states.ndim != 2:
        raise ValueError(f"X must have shape (n_samples, n_variables), found {states.shape}")
    if states.dtype.kind not in "iu":
        raise TypeError(f"X must hold integer states, found dtype {states.dtype}")
    return states.astype(np.int64)


def _feature_names(X: Any) -> NDArray[Any] | None:
    """Names of the columns of a data frame, where all are strings."""
    columns = getattr(X, "columns", None)
    if columns is None or not all(isinstance(name, str) for name in columns):
        return None
    return np.array(list(columns), dtype=object)


def _evidence(pattern: Ints) -> dict[int, int]:
    return {v: state for v, state in enumerate(pattern.tolist()) if state >= 0}


def _check_inference(inference: Any) -> None:
    if inference not in METHODS:
        raise ValueError(f"inference must be one of {', '.join(map(repr, METHODS))}, found {inference!r}")
