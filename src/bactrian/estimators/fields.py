"""A field of discrete variables: what can be asked of any, however it was learned."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import DensityMixin
from sklearn.utils.validation import check_is_fitted

from bactrian.arrays import Bools, Floats, Ints
from bactrian.errors import ArgumentTypeError, check_choice, check_number
from bactrian.estimators.base import LearnedEstimator
from bactrian.estimators.pairwise import checked_table, incomplete_rows, is_forest
from bactrian.frames import (
    Variables,
    column_names,
    columns_of,
    is_frame,
    kind_of_frame,
    make_frame,
    word,
)
from bactrian.graphs.elimination import MemoryBudgetError, junction_tree
from bactrian.graphs.graph import ClusterGraph, Scope
from bactrian.graphs.loglinear import LogLinearModel, Samples
from bactrian.inference.decode import decode
from bactrian.inference.draw import draw_by_gibbs, draw_exactly
from bactrian.inference.infer import OF_WEIGHTS, infer
from bactrian.inference.problem import checked_evidence
from bactrian.learners.learn import matched_inference
from bactrian.margins.given import projected
from bactrian.margins.problem import MarginProblem
from bactrian.margins.rounding import round_rows

#: Calls of inference, one for each state of the variables taken as evidence, that one marginal may cost; and how many
#: are made at once.
_MOST_CALLS, _AT_ONCE = 100_000, 256


@dataclass(kw_only=True, eq=False, repr=False)
class Field(DensityMixin, LearnedEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Base of :class:`bactrian.MarkovRandomField`: inference, completions and draws."""

    node_factors: str = "clusters"
    inference: str = "rbp"
    memory_budget: int = 2**28
    tables_: str = field(init=False)
    node_factors_: str = field(init=False)
    model_: LogLinearModel = field(init=False)
    edges_: Ints = field(init=False)
    cardinalities_: Ints = field(init=False)
    n_features_in_: int = field(init=False)
    _variables: Variables = field(init=False)
    _frames: str | None = field(init=False, default=None)  #: kind of frame that it was fitted to and answers with
    #: What it was fitted to where that was margins, and their probabilities, one axis per variable.
    _margins: tuple[MarginProblem, list[Floats]] | None = field(init=False, default=None)
    _work: tuple[int, float] | None = field(init=False)
    _partition: tuple[object, Floats, float] | None = field(init=False)  #: log Z, and at which settings and weights

    def check_params(self) -> None:
        """Refuse parameters that make no sense, before any data are looked at."""
        super().check_params()
        check_choice("inference", self.inference, ("matched", *OF_WEIGHTS))
        check_number("memory_budget", self.memory_budget, least=0, whole=True)

    def _keep(
        self, tables: str, model: LogLinearModel, edges: Ints, variables: Variables, frames: str | None = None
    ) -> None:
        """Take up a model; its weights come apart from it."""
        self.tables_, self.node_factors_ = tables, self.node_factors
        self.model_, self.edges_ = model, edges
        self._variables, self._frames = variables, frames
        self.cardinalities_ = model.graph.cardinalities.copy()
        self.n_features_in_ = model.graph.n_variables - variables.n_hidden
        self._work = self._partition = None
        for name in ("feature_names_in_", "residuals_", "starts_"):  # of an earlier fit
            self.__dict__.pop(name, None)
        if variables.seen.are_named:
            self.feature_names_in_ = np.array(variables.seen.names, dtype=object)

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
            method = "double-loop" if method == "rbp" else method  # Kikuchi's numbers need not suit propagation
            return method, options
        if self.inference != "matched":
            return ("exact" if self._fits_exactly else self.inference), {}
        method, options = matched_inference(self.method_)
        if method == "exact" and not self._fits_exactly:
            return "rbp", {}
        return method, options

    @property
    def _on_regions(self) -> bool:
        """Whether the model is a region graph, so that its weights belong to that graph's entropy."""
        return self._margins is not None and self.method_ != "exact"

    @property
    def _fits_exactly(self) -> bool:
        """Whether exact inference fits the memory budget."""
        return self._exact_work < np.inf

    @property
    def _exact_work(self) -> float:
        """Entries of junction-tree tables, once for each table of the model: 0 on forests, inf beyond the budget."""
        if self._work is None or self._work[0] != self.memory_budget:
            work = 0.0
            if self._margins is not None or not is_forest(self.cardinalities_.size, self.edges_):
                graph = self.model_.graph
                try:
                    tree = junction_tree(self.cardinalities_, graph.clusters, memory_budget=self.memory_budget)
                    work = float(sum(graph.size(tree.cliques[q]) for q in tree.assignment))
                except MemoryBudgetError:
                    work = np.inf
            self._work = self.memory_budget, work
        return self._work[1]

    @property
    def _limits(self) -> dict[str, Any]:
        # Trees are exact without a junction tree, which decoding asks for all the same.
        return {"memory_budget": max(1, self.memory_budget), "n_threads": self.n_threads}

    def _infer(self, evidence: list[Any]) -> list[Any]:
        method, options = self._method_and_options()
        models = [self.model_] * len(evidence)
        return infer(models, self.weights_, method, evidence, **self._limits, seed=self.seed, **options)

    @property
    def log_partition_(self) -> float:
        """log Z, or its approximation."""
        key, known = (self.inference, self.inference_method_, self.memory_budget, self.seed), self._partition
        if known is None or known[0] != key or not np.array_equal(known[1], self.weights_):
            value = self._infer([None])[0].log_partition
            if value is None:
                raise ValueError(
                    f"inference={self.inference!r} has no log-partition, and exact inference does not fit memory_budget"
                )
            known = self._partition = key, self.weights_.copy(), value
        return known[2]

    def score_samples(self, X: Any) -> Floats:
        """Log-probability of each sample, summed over hidden variables.

        Where ``inference_method_`` is not exact, log Z is its approximation.
        """
        return self._scores(self._checked_states(X))

    def _scores(self, states: Ints) -> Floats:
        scores, model = np.full(states.shape[0], -self.log_partition_), self.model_
        if not self._variables.n_hidden:
            for scope, features, base in zip(model.graph.clusters, model.features, model.base_scores, strict=True):
                index = np.ravel_multi_index(tuple(states[:, scope].T), model.graph.shape(scope))
                scores += 0.0 if features is None else (features @ self.weights_)[index]
                scores += 0.0 if base is None else base[index]
            return scores
        for rows, evidence, which in incomplete_rows(states, len(model.graph.clusters)):
            scores[rows] += np.array([result.log_partition for result in self._infer(evidence)])[which]
        return scores

    def score(self, X: Any, y: object = None, sample_weight: ArrayLike | None = None) -> float:
        """Mean log-probability of the samples, weighted where ``sample_weight`` is given; ``y`` is ignored."""
        states = self._checked_states(X)
        weights = Samples(self.model_, states, sample_weight).sample_weight
        return float(np.average(self._scores(states), weights=weights))

    def sample(
        self, n_samples: int = 1, seed: int | None = None, *, rounded: bool = False, frame: bool | None = None
    ) -> Any:
        """Draws from the joint distribution, shape (n_samples, n_variables); the same ones for the same seed.

        Draws are independent and exact if a junction tree fits ``memory_budget``; otherwise they come from blocked
        Gibbs sampling: 16 chains, 500 sweeps before the first draw of each and 10 between draws. Unless weights were
        learned by ``"exact"``, the margins of draws differ from the learned ones; ``rounded`` corrects that.

        Parameters
        ----------
        n_samples : int
        seed : int, optional
            By default the seed of the field.
        rounded : bool
            Change a few states until counts of the rows match the field's margins (the fitted margins, else its tables)
            as closely as whole rows can (:mod:`bactrian.margins.rounding`). Rows are then not independent: they form a
            synthetic population.
        frame : bool, optional
            Return a data frame, with labels of states if the field has them; by default if the field was fitted to a
            frame. It is of the same kind, or else of pandas.
        """
        check_is_fitted(self, "weights_")
        if isinstance(n_samples, bool) or not (isinstance(n_samples, int | np.integer) and n_samples >= 1):
            raise ValueError(f"n_samples must be an integer of at least 1, found {n_samples!r}")
        seed = self.seed if seed is None else seed
        check_number("seed", seed, least=0, whole=True)
        given = self.model_, self.weights_, int(n_samples)
        try:
            states = draw_exactly(
                *given, seed=seed, memory_budget=self.memory_budget, n_threads=self.n_threads, even=rounded
            )
        except MemoryBudgetError:
            states = draw_by_gibbs(*given, seed=seed, n_threads=self.n_threads)
        if rounded:
            states = round_rows(states, self.cardinalities_, *self._tables_to_match(), seed=seed)
        if not (self._frames is not None if frame is None else frame):
            return states
        return self._variables.frame(range(states.shape[1]), states, self._frames or "pandas")

    def _tables_to_match(self) -> tuple[Sequence[Scope], list[Floats], list[tuple[Scope, Bools]]]:
        """Scopes and probabilities of the margins that rounded rows should have, and what else restricts them."""
        if self._margins is not None:
            problem, fitted = self._margins
            return problem.scopes, fitted, [(s, np.isfinite(t)) for s, t in problem.base if not np.isfinite(t).all()]
        clusters = self.model_.graph.clusters
        result = self._infer([None])[0]
        return clusters, [np.array(result.clusters[i]) for i in range(len(clusters))], []

    @property
    def variable_names(self) -> tuple[Any, ...]:
        """Names of the variables, hidden ones last; numbers where columns had no names."""
        return self._variables.names

    @property
    def state_labels(self) -> tuple[tuple[Any, ...] | None, ...]:
        """Labels of the states of each variable; None where there are none."""
        return self._variables.labels

    @property
    def states(self) -> dict[Any, Sequence[Any]]:
        """What the states of each variable are called, by its name: labels, or numbers where there are none."""
        return dict(zip(self.variable_names, self._variables.states, strict=True))

    def marginal(self, names: str | int | Sequence[str | int], given: Mapping[Any, Any] | None = None) -> Any:
        """The joint marginal of some variables: probabilities, one axis per variable, in the order asked for.

        A set inside a fitted margin is read off it, as is one inside a table of the model with ``inference="matched"``.
        Otherwise exact inference is tried with the variables in one table; if that does not fit ``memory_budget``, or
        inference is matched to another learner, the states of all of them but one are taken as evidence in turn. If
        margins were fitted on a region graph, the result is the table of maximum entropy that agrees with the fitted
        margins of its variables. A field that was fitted to a frame returns a frame: a row per cell of the table, and
        the column ``probability``.

        Parameters
        ----------
        names : name or number of a variable, or a sequence of them
        given : mapping, optional
            States of observed variables, as in :meth:`conditional`.
        """
        check_is_fitted(self, "weights_")
        scope = self._scope_of(names)
        table = self._marginal(scope, self._evidence(given, "given"))
        if self._frames is None:
            return table
        cells = np.indices(table.shape).reshape(table.ndim, -1).T
        return self._variables.frame(scope, cells, self._frames, probability=table.ravel())

    def _marginal(self, scope: Scope, given: Mapping[int, int] | None) -> Floats:
        """The marginal of ``scope`` given evidence: exact with a table over it in the junction tree, if that fits.

        Or what inference says that is matched to another learner.
        """
        model, graph = self.model_, self.model_.graph
        if self._is_matched:
            belief = self._belief(scope, given)
            return self._by_conditioning(graph.shape(scope), scope, given or {}) if belief is None else belief
        with_table = LogLinearModel(
            ClusterGraph(graph.cardinalities, [*graph.clusters, scope]),
            [*model.features, None],
            [*model.base_scores, None],
        )
        try:
            result = infer(with_table, self.weights_, "exact", given, **self._limits)
        except MemoryBudgetError:
            return self._by_conditioning(graph.shape(scope), scope, given or {})
        return np.array(result.clusters[len(graph.clusters)])

    @property
    def _is_matched(self) -> bool:
        """Whether answers are under the entropy of a learner that is not exact."""
        return self.inference == "matched" and matched_inference(self.method_)[0] != "exact"

    def _belief(self, scope: Scope, given: Mapping[int, int] | None) -> Floats | None:
        """The marginal of several variables that a table of the model has, under the learner's entropy; or None."""
        clusters = enumerate(self.model_.graph.clusters)
        holder = next((i for i, cluster in clusters if set(scope) <= set(cluster)), None)
        if not self._is_matched or len(scope) == 1 or holder is None:
            return None
        table = np.array(self._infer([given])[0].clusters[holder])
        return projected(table, self.model_.graph.clusters[holder], scope)

    def _by_conditioning(self, shape: Sequence[int], scope: Scope, given: Mapping[int, int]) -> Floats:
        """p(a, b, c) = p(a) p(b | a) p(c | a, b), each factor a marginal of a single variable."""
        calls = sum(int(np.prod(shape[:depth])) for depth in range(len(shape)))
        if calls > _MOST_CALLS:
            raise ValueError(
                f"names: a table of shape {tuple(shape)} needs {calls} runs of inference, and the limit is "
                f"{_MOST_CALLS}; name fewer variables, or raise memory_budget"
            )
        joint: Floats = np.ones(())
        for depth, variable in enumerate(scope):
            possible = [states for states in product(*map(range, shape[:depth])) if joint[states] > 0.0]
            grown = np.zeros((*shape[: depth + 1],))
            for first in range(0, len(possible), _AT_ONCE):
                batch = possible[first : first + _AT_ONCE]
                results = self._infer([{**given, **dict(zip(scope, states, strict=False))} for states in batch])
                for states, result in zip(batch, results, strict=True):
                    grown[states] = joint[states] * result.variables[variable]
            joint = grown
        return joint

    def _scope_of(self, names: Any) -> Scope:
        """Numbers of variables that are given by name or number."""
        listed: list[Any] = [names] if isinstance(names, str | int | np.integer) else list(names)
        known = self._variables
        scope = [known.index(name, "names") if isinstance(name, str) else name for name in listed]
        return self.model_.graph.checked_scope(scope, "names")

    def marginals(self, evidence: Mapping[Any, Any] | None = None) -> Any:
        """Marginal of every variable, given the states of some of them, which are then one-hot.

        Evidence is by name, with labels of states, or by number, with numbers of states. Returns a list of arrays; a
        field that was fitted to a frame returns one with columns ``variable``, ``state`` and ``probability``.
        """
        check_is_fitted(self, "weights_")
        (tables,) = self._conditionals([self._evidence(evidence, "evidence")])
        return list(tables.values()) if self._frames is None else self._listed(tables)

    def conditional(self, evidence: Mapping[Any, Any]) -> Any:
        """Marginals of the variables that are not observed, given the states of those that are.

        Returns arrays by number of the variable, or a frame like that of :meth:`marginals` if the field was fitted to
        one.
        """
        check_is_fitted(self, "weights_")
        seen = self._evidence(evidence, "evidence")
        left = {v: table for v, table in self._conditionals([seen])[0].items() if v not in seen}
        return left if self._frames is None else self._listed(left)

    def _evidence(self, given: Any, name: str) -> dict[int, int]:
        """Numbers of states by number of the variable, checked."""
        return checked_evidence(self._variables.evidence(given, name), self.cardinalities_, name)

    def _conditionals(self, evidence: list[Any], wanted: Iterable[int] | None = None) -> list[dict[int, Floats]]:
        """Marginals of the variables that are ``wanted``, or of all, by number, given each of ``evidence``."""
        chosen = range(self.cardinalities_.size) if wanted is None else wanted
        return [{v: np.array(result.variables[v]) for v in chosen} for result in self._infer(evidence)]

    def _listed(self, tables: Mapping[int, Floats]) -> Any:
        """Marginals of single variables as a frame."""
        assert self._frames is not None
        columns = {
            "variable": [self._variables.names[v] for v, table in tables.items() for _ in table],
            "state": self._variables.words(tables),
            "probability": np.concatenate([np.zeros(0), *tables.values()]),
        }
        return make_frame(self._frames, columns)

    def probability(self, event: Mapping[Any, Any], given: Mapping[Any, Any] | None = None) -> float:
        """P(event | given), each the states of some variables: by name with labels, or by number with numbers.

        Examples
        --------
        >>> import bactrian as bt
        >>> field = bt.MarkovRandomField(prior_variance=None).fit([[0, 0], [0, 1], [1, 1], [0, 0], [1, 0]])
        >>> round(field.probability({1: 0}, given={0: 0}), 3)
        0.667
        """
        check_is_fitted(self, "weights_")
        if not isinstance(event, Mapping) or not event:
            raise ArgumentTypeError("event", f"must map variables to states, found {event!r}")
        asked, seen, found = self._evidence(event, "event"), self._evidence(given, "given"), 1.0
        belief = None if self._on_regions else self._belief(tuple(asked), seen)
        if belief is not None:
            return float(belief[tuple(asked.values())])
        for v, state in asked.items():
            found *= float(self._conditionals([seen], [v])[0][v][state])
            if found == 0.0:
                break
            seen = {**seen, v: state}
        return found

    def predict_marginals(self, X: Any) -> Any:
        """Marginals given the observed states of each sample; -1 stands for a missing state.

        Returns a list with an array of shape (n_samples, states) for every variable; observed states have probability
        1. A field that was fitted to a frame returns a dict with a frame for every variable, with a column per state.
        """
        states = self._checked_states(X, missing=True)
        found = [np.zeros((states.shape[0], int(k))) for k in self.cardinalities_]
        for rows, evidence, which in incomplete_rows(states, len(self.model_.graph.clusters)):
            given = self._conditionals(evidence)
            for v, table in enumerate(found):
                table[rows] = np.stack([tables[v] for tables in given])[which]
        complete = np.flatnonzero((states >= 0).all(axis=1))
        for v, table in enumerate(found):
            table[complete, states[complete, v]] = 1.0
        if self._frames is None:
            return found
        kind, named = kind_of_frame(X) if is_frame(X) else self._frames, self._variables
        return {
            name: make_frame(kind, dict(zip(map(word, named.words([v])), found[v].T, strict=True)), X)
            for v, name in enumerate(named.names)
        }

    def predict(self, X: Any) -> Any:
        """Samples with the missing states (-1) filled in: the most probable completion of each.

        Exact if that fits ``memory_budget``, otherwise by max-product. Observed states do not change. For a frame,
        returns a frame like it.
        """
        states = self._checked_states(X, missing=True)
        method = "exact" if self._fits_exactly else "max-product"
        for rows, evidence, which in incomplete_rows(states.copy(), len(self.model_.graph.clusters)):
            found = decode([self.model_] * len(evidence), self.weights_, method, evidence, **self._limits)
            states[rows] = np.stack(found)[which]
        if self._frames is None:
            return states
        if is_frame(X):
            return self._variables.frame(range(states.shape[1]), states, kind_of_frame(X), X)
        cells = [self._variables.cells(v, column, "table") for v, column in enumerate(states.T)]
        return np.array(cells, dtype=object).T

    def _checked_states(self, X: Any, missing: bool = False) -> Ints:
        check_is_fitted(self, "weights_")
        framed = self._frames is not None or (is_frame(X) and any(self.state_labels))
        given = columns_of(X) if framed else checked_table(X)
        names = column_names(X)
        if names is not None and self._variables.seen.are_named:
            self._check_names(names)
        n = len(given) if isinstance(given, list) else given.shape[1]
        if n != self.n_features_in_:
            raise ValueError(
                f"X has {n} features, but {type(self).__name__} is expecting {self.n_features_in_} features as input"
            )
        states = self._variables.seen.codes(given) if isinstance(given, list) else given
        hidden = np.full((len(states), self._variables.n_hidden), -1)
        known = np.where(states == -1, 0, states) if missing else states
        self.model_.graph.checked_states(np.hstack([known, 0 * hidden]), "X")
        return np.hstack([states, hidden])

    def _check_names(self, names: list[str]) -> None:
        """Refuse columns other than those of fit."""
        expected = list(self._variables.seen.names)
        for name in names:
            if name not in expected:
                raise ValueError(f"X has a column {name!r}, which fit did not have; expected {', '.join(expected)}")
        for v, name in enumerate(expected):
            if name not in names:
                raise ValueError(f"X has no column {name!r}, which fit had")
            if names[v] != name:
                raise ValueError(f"X: column {v} is {names[v]!r}, but was {name!r} in fit")
