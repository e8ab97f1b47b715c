"""A fitted field of discrete variables: what can be asked of it, whatever it was learned from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import DensityMixin
from sklearn.utils.validation import check_is_fitted

from bactrian.arrays import Floats, Ints
from bactrian.errors import check_choice, check_number
from bactrian.estimators.base import LearnedEstimator
from bactrian.estimators.frames import Variables
from bactrian.estimators.marginals import MARGINS
from bactrian.estimators.pairwise import checked_table, column_names, evidence_of, incomplete_rows, is_forest
from bactrian.graphs.elimination import MemoryBudgetError, junction_tree
from bactrian.graphs.graph import Scope
from bactrian.graphs.loglinear import LogLinearModel, Samples
from bactrian.inference.decode import decode
from bactrian.inference.draw import draw_by_gibbs, draw_exactly
from bactrian.inference.infer import OF_WEIGHTS, infer
from bactrian.inference.joint import joint_marginal, joint_scores
from bactrian.inference.rounding import round_rows
from bactrian.learners.learn import matched_inference


@dataclass(kw_only=True, eq=False, repr=False)
class Field(DensityMixin, LearnedEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Base of :class:`bactrian.MarkovRandomField`: inference, completions and draws."""

    inference: str = "rbp"
    memory_budget: int = 2**28
    tables_: str = field(init=False)
    model_: LogLinearModel = field(init=False)
    edges_: Ints = field(init=False)
    cardinalities_: Ints = field(init=False)
    n_features_in_: int = field(init=False)
    _variables: Variables = field(init=False)
    _fits: tuple[int, bool] | None = field(init=False)
    _partition: tuple[object, float] | None = field(init=False)

    def check_params(self) -> None:
        """Refuse parameters that make no sense, before any data are looked at."""
        super().check_params()
        check_choice("inference", self.inference, ("matched", *OF_WEIGHTS))
        check_number("memory_budget", self.memory_budget, least=0, whole=True)

    def _keep(self, tables: str, model: LogLinearModel, edges: Ints, variables: Variables) -> None:
        """Take up a model; its weights come apart from it."""
        self.tables_ = tables
        self.model_ = model
        self.edges_ = edges
        self._variables = variables
        self.cardinalities_ = model.graph.cardinalities.copy()
        self.n_features_in_ = model.graph.n_variables
        self._fits = None
        self._partition = None
        self.__dict__.pop("feature_names_in_", None)
        if variables.are_named:
            self.feature_names_in_ = np.array(variables.names, dtype=object)

    def _n_weights(self) -> int:
        return self.model_.n_weights

    @property
    def inference_method_(self) -> str:
        """How marginals and log Z are computed."""
        return self._method_and_options()[0]

    def _method_and_options(self) -> tuple[str, dict[str, Any]]:
        check_is_fitted(self, "weights_")
        self.check_params()
        if self._on_regions:
            method, options = matched_inference(self.method_)
            return (
                "double-loop" if method == "rbp" else method
            ), options  # Kikuchi's numbers need not suit propagation
        if self.inference != "matched":
            return ("exact" if self._fits_exactly else self.inference), {}
        method, options = matched_inference(self.method_)
        if method == "exact" and not self._fits_exactly:
            return "rbp", {}
        return method, options

    @property
    def _on_regions(self) -> bool:
        """Whether the field was learned from margins on their region graph: its weights belong to that entropy."""
        return self.tables_ == MARGINS and self.method_ != "exact"

    @property
    def _fits_exactly(self) -> bool:
        """Whether exact inference fits the memory budget."""
        if self._fits is None or self._fits[0] != self.memory_budget:
            self._fits = self.memory_budget, self._exact_fits()
        return self._fits[1]

    def _exact_fits(self) -> bool:
        if self.tables_ != MARGINS and is_forest(self.n_features_in_, self.edges_):
            return True
        try:
            junction_tree(self.cardinalities_, self.model_.graph.clusters, memory_budget=self.memory_budget)
        except MemoryBudgetError:
            return False
        return True

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

    def score_samples(self, X: ArrayLike) -> Floats:
        """Log-probability of each sample; where ``inference_method_`` is not exact, log Z is its approximation."""
        states = self._checked_states(X)
        return joint_scores(self.model_, self.weights_, states) - self.log_partition_

    def score(self, X: ArrayLike, y: object = None, sample_weight: ArrayLike | None = None) -> float:
        """Mean log-probability of the samples, weighted where ``sample_weight`` is given; ``y`` is ignored."""
        scores = self.score_samples(X)
        if sample_weight is None:
            return float(scores.mean())
        return float(np.average(scores, weights=Samples(self.model_, X, sample_weight).sample_weight))

    def sample(self, n_samples: int = 1, seed: int | None = None, *, rounded: bool = False, frame: bool = False) -> Any:
        """Draws from the joint distribution, shape (n_samples, n_variables); the same ones for the same seed.

        Independent and exact where a junction tree fits ``memory_budget``, otherwise by blocked Gibbs sampling: 16
        chains, 500 sweeps before the first draw of each and 10 between draws.

        Parameters
        ----------
        n_samples : int
        seed : int, optional
            By default the field's own.
        rounded : bool
            Change a few states until counts of the rows match the field's margins (those that it was fitted to, else
            its tables) as closely as whole rows can (:mod:`bactrian.inference.rounding`). Rows are then not
            independent: they are a synthetic population, not a sample of one.
        frame : bool
            Give a pandas DataFrame, with labels of states where the field has them.
        """
        check_is_fitted(self, "weights_")
        if isinstance(n_samples, bool) or not (isinstance(n_samples, int | np.integer) and n_samples >= 1):
            raise ValueError(f"n_samples must be an integer of at least 1, found {n_samples!r}")
        seed = self.seed if seed is None else seed
        given = self.model_, self.weights_, int(n_samples)
        try:
            states = draw_exactly(
                *given, seed=seed, memory_budget=self.memory_budget, n_threads=self.n_threads, even=rounded
            )
        except MemoryBudgetError:
            states = draw_by_gibbs(*given, seed=seed, n_threads=self.n_threads)
        if rounded:
            states = round_rows(states, self.cardinalities_, *self._tables_to_match(), seed=seed)
        return self._framed(states) if frame else states

    def _tables_to_match(self) -> tuple[Sequence[Scope], list[Floats]]:
        """Scopes and probabilities of the margins that rounded rows should have."""
        clusters = self.model_.graph.clusters
        result = self._infer([None])[0]
        return clusters, [np.array(result.clusters[i]) for i in range(len(clusters))]

    @property
    def state_labels(self) -> tuple[tuple[Any, ...] | None, ...]:
        """Labels of the states of each variable; None where there are none."""
        return self._variables.labels

    def state_label(self, name: str, state: int) -> Any:
        """The label of a variable's state; its number where it has none."""
        labels = self.state_labels[self._scope_of(name)[0]]
        return state if labels is None else labels[state]

    def _framed(self, states: Ints) -> Any:
        """Rows as a pandas DataFrame."""
        try:
            import pandas
        except ImportError:
            raise ImportError("frame=True needs pandas: pip install pandas") from None
        columns = {
            name: states[:, v] if labels is None else np.array(labels, dtype=object)[states[:, v]]
            for v, (name, labels) in enumerate(zip(self._variables.names, self.state_labels, strict=True))
        }
        return pandas.DataFrame(columns)

    def marginal(self, names: str | int | Sequence[str | int]) -> Floats:
        """The joint marginal of some variables: probabilities, one axis per variable, in the order asked for.

        Any set of variables will do. A set inside a margin that was fitted is read off it. Otherwise exact inference is
        tried with the variables in one table; where that does not fit ``memory_budget``, or the field was learned on a
        region graph, the states of all of them but one are taken as evidence in turn.

        Parameters
        ----------
        names : name or number of a variable, or a sequence of them
        """
        check_is_fitted(self, "weights_")
        return self._marginal(self._scope_of(names))

    def _marginal(self, scope: Scope) -> Floats:
        budget = None if self._on_regions else self._budget
        return joint_marginal(self.model_, self.weights_, scope, self._infer, budget, self.n_threads)

    def _scope_of(self, names: Any) -> Scope:
        """Numbers of variables that are given by name or number."""
        listed: list[Any] = [names] if isinstance(names, str | int | np.integer) else list(names)
        known = self._variables
        scope = [known.index(name, "names") if isinstance(name, str) else name for name in listed]
        return self.model_.graph.checked_scope(scope, "names")

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
