"""What a fitted pairwise field answers: log Z, probabilities, draws, marginals and completions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import DensityMixin
from sklearn.utils.validation import check_is_fitted

from bactrian.errors import check_choice
from bactrian.estimators.base import LearnedEstimator
from bactrian.estimators.pairwise import is_forest, split_tables
from bactrian.estimators.sample_tables import checked_table, column_names, evidence_of, incomplete_rows
from bactrian.graphs.elimination import MemoryBudgetError, junction_tree
from bactrian.graphs.loglinear import LogLinearModel, Samples
from bactrian.inference.decode import decode
from bactrian.inference.draw import draw_by_gibbs, draw_exactly
from bactrian.inference.infer import METHODS, infer
from bactrian.learners.matched import matched_inference

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(kw_only=True, eq=False, repr=False)
class PairwiseField(DensityMixin, LearnedEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """What :class:`MarkovRandomField` does once it is fitted; not for use by itself."""

    inference: str = "rbp"
    memory_budget: int = 2**28
    tables_: str = field(init=False)
    node_factors_: str = field(init=False)
    model_: LogLinearModel = field(init=False)
    edges_: Ints = field(init=False)
    cardinalities_: Ints = field(init=False)
    n_features_in_: int = field(init=False)
    _fits: tuple[int, bool] | None = field(init=False)
    _partition: tuple[object, float] | None = field(init=False)

    def _keep(self, tables: str, model: LogLinearModel, edges: Ints) -> None:
        """Take up a model; its weights come apart from it."""
        self.tables_ = tables
        self.model_ = model
        self.edges_ = edges
        self.cardinalities_ = model.graph.cardinalities.copy()
        self.n_features_in_ = model.graph.n_variables
        self._fits = None
        self._partition = None

    def _n_weights(self) -> int:
        return self.model_.n_weights

    # --- the joint distribution ---

    def check_params(self) -> None:
        """Refuse parameters that make no sense, before any data are looked at."""
        super().check_params()
        check_choice("inference", self.inference, ("matched", *METHODS))

    @property
    def inference_method_(self) -> str:
        """How marginals and log Z are computed."""
        return self._method_and_options()[0]

    def _method_and_options(self) -> tuple[str, dict[str, Any]]:
        check_is_fitted(self, "weights_")
        self.check_params()
        if self.inference != "matched":
            return ("exact" if self._fits_exactly else self.inference), {}
        method, options = matched_inference(self.method_)
        if method == "exact" and not self._fits_exactly:
            return "rbp", {}
        return method, options

    @property
    def _fits_exactly(self) -> bool:
        """Whether exact inference fits the memory budget."""
        if self._fits is None or self._fits[0] != self.memory_budget:
            self._fits = self.memory_budget, self._exact_fits()
        return self._fits[1]

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
        key = self.inference, self.inference_method_, self.memory_budget, self.seed
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
        return split_tables(self.tables_, self.cardinalities_, self.edges_, self.weights_)

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
        for rows, patterns, which in incomplete_rows(states, len(self.model_.graph.clusters)):
            results = self._infer([evidence_of(pattern) for pattern in patterns])
            for v, table in enumerate(found):
                table[rows] = np.stack([result.variables[v] for result in results])[which]
        complete = np.flatnonzero((states >= 0).all(axis=1))
        for v, table in enumerate(found):
            table[complete, states[complete, v]] = 1.0
        return found

    def predict(self, X: ArrayLike) -> Ints:
        """Samples with the missing states (-1) filled in: the most probable completion of each.

        Exact where that fits ``memory_budget``, otherwise by max-product. Observed states stay as they are.
        """
        states = self._checked_states(X, missing=True)
        method = "exact" if self._fits_exactly else "max-product"
        for rows, patterns, which in incomplete_rows(states.copy(), len(self.model_.graph.clusters)):
            found = decode(
                [self.model_] * len(patterns),
                self.weights_,
                method,
                [evidence_of(pattern) for pattern in patterns],
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
        method, options = self._method_and_options()
        return infer(
            [self.model_] * len(evidence),
            self.weights_,
            method,
            evidence,
            memory_budget=self._budget,
            n_threads=self.n_threads,
            seed=self.seed,
            **options,
        )

    def _checked_states(self, X: ArrayLike, missing: bool = False) -> Ints:
        check_is_fitted(self, "weights_")
        states = checked_table(X)
        if states.shape[1] != self.n_features_in_:
            raise ValueError(
                f"X has {states.shape[1]} features, but {type(self).__name__} is expecting {self.n_features_in_} "
                "features as input"
            )
        names, expected = column_names(X), getattr(self, "feature_names_in_", None)
        if names is not None and expected is not None and not np.array_equal(names, expected):
            v = int(np.argmax(names != expected))
            raise ValueError(f"X: column {v} is {names[v]!r}, but {expected[v]!r} was there in fit")
        known = np.where(states == -1, 0, states) if missing else states
        self.model_.graph.checked_states(known, "X")
        return states
