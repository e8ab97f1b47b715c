"""A fitted field of discrete variables, and the questions that it answers."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, wraps
from itertools import product
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import softmax

from bactrian.arrays import Bools, Floats, Ints
from bactrian.errors import ArgumentError, ArgumentTypeError, check_number, warn
from bactrian.estimators.pairwise import PairwiseTables, checked_table, incomplete_rows, is_forest
from bactrian.estimators.uncertainty import Contrasts
from bactrian.frames import (
    Variables,
    column_names,
    columns_of,
    installed_kind,
    is_frame,
    kind_of_frame,
    labelled_table,
    make_frame,
    places,
    word,
)
from bactrian.graphs.elimination import MemoryBudgetError, junction_tree
from bactrian.graphs.graph import ClusterGraph, Scope
from bactrian.graphs.loglinear import LogLinearModel, Samples
from bactrian.graphs.ragged import pointer
from bactrian.inference.decode import decode
from bactrian.inference.draw import draw_by_gibbs, draw_exactly
from bactrian.inference.infer import infer
from bactrian.inference.problem import ImpossibleEvidenceError, checked_evidence
from bactrian.learners.learn import matched_inference
from bactrian.margins.fit import FittedMargins
from bactrian.margins.given import given_states, projected
from bactrian.margins.rounding import draw_along, round_rows
from bactrian.solvers.solution import ConvergenceWarning

#: Calls of inference, one for each state of the variables taken as evidence, that one marginal may cost; and how many
#: are made at once.
_MOST_CALLS, _AT_ONCE = 100_000, 256
#: What to try where this did not converge; elsewhere the double loop.
_OTHER = {"double-loop": "convex"}
#: Entries of a table of evidence and another variable, up to which it is put together of margins: 15 ms.
_LARGEST_TABLE = 10_000


_Asked = ParamSpec("_Asked")
_Answer = TypeVar("_Answer")


def answered(
    question: Callable[Concatenate[FittedField, _Asked], _Answer],
) -> Callable[Concatenate[Any, _Asked], _Answer]:
    """A method of an estimator that calls the same method of its ``_field``, with its documentation."""

    @wraps(question)
    def ask(self: Any, /, *args: _Asked.args, **options: _Asked.kwargs) -> _Answer:
        return question(self._field, *args, **options)

    return ask


@dataclass(frozen=True, eq=False)
class FieldModel:
    """A model with the names of its variables, without weights."""

    model: LogLinearModel
    variables: Variables
    tables: PairwiseTables | None  #: None where there are margins
    frames: str | None = None  #: kind of frame that it was fitted to and answers with
    _work: dict[int, float] = field(default_factory=dict)

    def exact_work(self, memory_budget: int) -> float:
        """Entries of junction-tree tables, once for each table of the model: 0 on forests, inf beyond the budget."""
        graph = self.model.graph
        if memory_budget not in self._work:
            work = 0.0
            if self.tables is None or not is_forest(graph.n_variables, self.tables.edges):
                try:
                    tree = junction_tree(graph.cardinalities, graph.clusters, memory_budget=memory_budget)
                    work = float(sum(graph.size(tree.cliques[q]) for q in tree.assignment))
                except MemoryBudgetError:
                    work = np.inf
            self._work[memory_budget] = work
        return self._work[memory_budget]


@dataclass(frozen=True)
class AnswerOptions:
    """How questions are answered: parameters of :class:`bactrian.MarkovRandomField`."""

    inference: str
    memory_budget: int
    n_threads: int | None
    seed: int


class LogLikelihood(float):
    """A mean log-probability, which says how log Z was found.

    Attributes
    ----------
    how : str
        ``"exact"``, or by which estimate.
    interval : (low, high) or None
        At 95 %, for the error of log Z, where that is estimated.
    """

    interval: tuple[float, float] | None
    how: str

    def __new__(cls, value: float, interval: tuple[float, float] | None, how: str) -> LogLikelihood:  # noqa: D102
        found = super().__new__(cls, value)
        found.interval, found.how = interval, how
        return found

    def __getnewargs__(self) -> tuple[Any, ...]:
        return float(self), self.interval, self.how

    def __repr__(self) -> str:
        between = "" if self.interval is None else ", {:.4f} to {:.4f} at 95 %".format(*self.interval)
        return f"{float(self):.4f} ({self.how}{between})"


@dataclass(frozen=True, eq=False)
class FittedField:
    """A model with its weights, which answers in the words of its variables."""

    of: FieldModel
    weights: Floats
    method: Any  #: that it was learned with
    margins: FittedMargins | None  #: where it was fitted to margins
    options: AnswerOptions

    # --- inference ---

    @property
    def _model(self) -> LogLinearModel:
        return self.of.model

    @property
    def inference_method(self) -> str:
        """How marginals and log Z are computed."""
        return self._method_and_options[0]

    @cached_property
    def _method_and_options(self) -> tuple[str, dict[str, Any]]:
        if not self._on_regions and self.options.inference != "matched":
            return ("exact" if self._fits_exactly else self.options.inference), {}
        method, options = matched_inference(self.method)
        if self._on_regions:
            return ("double-loop" if method == "rbp" else method), options  # Kikuchi's numbers may not suit propagation
        return ("rbp", {}) if method == "exact" and not self._fits_exactly else (method, options)

    @property
    def _on_regions(self) -> bool:
        """Whether the model is a region graph, so that its weights belong to that graph's entropy."""
        return self.margins is not None and self.method != "exact"

    @property
    def _fits_exactly(self) -> bool:
        """Whether exact inference fits the memory budget."""
        return self.of.exact_work(self.options.memory_budget) < np.inf

    @property
    def _is_matched(self) -> bool:
        """Whether inference uses the entropy of an approximate learner."""
        return self.options.inference == "matched" and matched_inference(self.method)[0] != "exact"

    @property
    def _limits(self) -> dict[str, Any]:
        # Trees are exact without a junction tree, which decoding asks for all the same.
        return {"memory_budget": max(1, self.options.memory_budget), "n_threads": self.options.n_threads}

    def _infer(self, evidence: Sequence[Mapping[int, int] | None]) -> list[Any]:
        method, options = self._method_and_options
        models = [self._model] * len(evidence)
        return infer(models, self.weights, method, list(evidence), **self._limits, seed=self.options.seed, **options)

    @property
    def log_partition(self) -> float:
        """log Z, or its approximation; a :class:`ConvergenceWarning` tells where that did not converge."""
        value, converged = self._partition
        if not converged:
            method = self.inference_method
            warn(
                f"log Z comes from {method}, which did not converge, so scores are not log-probabilities: raise "
                f"memory_budget until exact inference fits, or use inference={_OTHER.get(method, 'double-loop')!r} or "
                "a stronger prior",
                ConvergenceWarning,
            )
        return value

    @property
    def partition_converged(self) -> bool:
        """Whether inference converged where log Z is its approximation."""
        return self._partition[1]

    @cached_property
    def _partition(self) -> tuple[float, bool]:
        """log Z, and whether it converged."""
        with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
            result = self._infer([None])[0]
        if result.log_partition is None:
            asked = f"inference={self.options.inference!r}"
            raise ValueError(f"{asked} has no log-partition, and exact inference does not fit memory_budget")
        return float(result.log_partition), result.converged

    # --- samples ---

    def score_samples(self, X: Any) -> Floats:
        """Log-probability of what is known of each sample, summed over missing cells and hidden variables.

        Where ``inference_method_`` is not exact, log Z is its approximation.
        """
        return self.log_probabilities(self.states_of(X))

    def log_probabilities(self, states: Ints) -> Floats:
        """The same of rows of numbers of states, summed over hidden variables and missing cells, which are -1."""
        return self._log_sums(states) - self.log_partition

    def _log_sums(self, states: Ints) -> Floats:
        """log of the sum over all joint states that agree with each row."""
        scores, model = np.zeros(states.shape[0]), self._model
        complete = np.flatnonzero((states >= 0).all(axis=1))
        known = states[complete]
        for scope, features, base in zip(model.graph.clusters, model.features, model.base_scores, strict=True):
            index = np.ravel_multi_index(tuple(known[:, scope].T), model.graph.shape(scope))
            scores[complete] += 0.0 if features is None else (features @ self.weights)[index]
            scores[complete] += 0.0 if base is None else base[index]
        for rows, evidence, which in incomplete_rows(states, len(model.graph.clusters)):
            scores[rows] += np.array(self._log_masses(evidence))[which]
        return scores

    def _log_masses(self, evidence: Sequence[Mapping[int, int]]) -> list[float]:
        """log of the sum over all joint states that agree with each of ``evidence``; -inf where none is possible."""
        try:
            return [float(result.log_partition) for result in self._infer(evidence)]
        except ImpossibleEvidenceError:
            half = len(evidence) // 2
            return self._log_masses(evidence[:half]) + self._log_masses(evidence[half:]) if half else [-np.inf]

    def score(self, X: Any, y: object = None, sample_weight: ArrayLike | None = None) -> LogLikelihood:
        """Mean log-probability of the samples, weighted where ``sample_weight`` is given; ``y`` is ignored.

        A float that says which it is: ``how`` is ``"exact"`` where log Z is; elsewhere log Z is estimated by annealed
        importance sampling, and ``interval`` is (low, high) at 95 %, so that fields can be compared whose models are
        too large to sum over. With ``inference="matched"`` log Z is that of the learner's entropy.

        Examples
        --------
        >>> import bactrian as bt
        >>> bt.MarkovRandomField(prior_variance=None).fit([[0], [1], [1], [1]]).score([[1]])
        -0.2877 (exact)
        """
        states = self.states_of(X)
        return self.mean_log_probability(states, Samples(self._model, states, sample_weight).sample_weight)

    def mean_log_probability(self, states: Ints, weights: Floats, rounds: int | None = None) -> LogLikelihood:
        """:meth:`score` of rows of numbers of states; a few ``rounds`` of sampling have a wider interval."""
        mean = float(np.average(self._log_sums(states), weights=weights))
        log_partition, interval, how = self._estimated_partition if rounds is None else self._estimate(rounds)
        between = None if interval is None else (mean - interval[1], mean - interval[0])
        return LogLikelihood(mean - log_partition, between, how)

    @cached_property
    def _estimated_partition(self) -> tuple[float, tuple[float, float] | None, str]:
        return self._estimate(None)

    def _estimate(self, rounds: int | None) -> tuple[float, tuple[float, float] | None, str]:
        """log Z, its interval where it is an estimate, and how it was found."""
        method = self.inference_method
        if method == "exact" or self._on_regions or self.options.inference == "matched":
            return self.log_partition, None, "exact" if method == "exact" else f"by the log Z of {method}"
        options: dict[str, Any] = {**self._limits, "seed": self.options.seed}
        options |= {} if rounds is None else {"max_iterations": rounds}
        with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
            result = infer(self._model, self.weights, "annealing", **options)
        assert result.log_partition is not None
        return result.log_partition, result.interval, "by annealed importance sampling"

    def sample(
        self,
        n_samples: int = 1,
        seed: int | None = None,
        *,
        given: Mapping[Any, Any] | None = None,
        rounded: bool = False,
        frame: bool | None = None,
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
        given : mapping, optional
            States of observed variables, as in :meth:`conditional`.
        rounded : bool
            Change a few states until counts of the rows match the field's margins (the fitted margins, else its tables)
            as closely as whole rows can (:mod:`bactrian.margins.rounding`). Rows are then not independent: they form a
            synthetic population. Those of margins on a region graph start from draws down a tree of the fitted margins.
        frame : bool, optional
            Return a data frame, with labels of states if the field has them; by default if the field was fitted to a
            frame, or to margins whose states have labels. It is of the same kind, or else of pandas.
        """
        if isinstance(n_samples, bool) or not (isinstance(n_samples, int | np.integer) and n_samples >= 1):
            raise ValueError(f"n_samples must be an integer of at least 1, found {n_samples!r}")
        seed, seen = self._seed(seed), self._evidence(given, "given")
        if rounded and seen:
            raise ArgumentError("given", "needs independent draws: use rounded=False")
        n, cardinalities = int(n_samples), self._model.graph.cardinalities
        if rounded:
            scopes, tables, possible = self._tables_to_match()
            along = self._on_regions and not possible and self.margins is not None and not self.margins.problem.base
            tree = (cardinalities, scopes, tables, n)
            states = draw_along(*tree, seed=seed) if along else self._drawn([n], [{}], seed, even=True)
            states = round_rows(states, *tree[:3], possible, seed=seed)
        else:
            states = self._drawn([n], [seen], seed)
        named = self.of.variables
        if not (self.of.frames is not None or any(named.labels) if frame is None else frame):
            return states
        return named.frame(range(states.shape[1]), states, self.of.frames or ("pandas" if frame else installed_kind()))

    def impute(self, X: Any, n_draws: int = 5, seed: int | None = None) -> list[Any]:
        """Multiple imputation: ``n_draws`` tables like X, each with missing cells drawn given the rest of their row.

        Draws are independent and exact where :meth:`sample` is.

        Examples
        --------
        >>> import bactrian as bt
        >>> field = bt.MarkovRandomField(prior_variance=1.0).fit([[0, 0], [0, 1], [1, 0], [1, 1], [0, 1]])
        >>> [table[0].tolist() for table in field.impute([[0, -1], [1, 1]], 4)]
        [[0, 1], [0, 0], [0, 0], [0, 0]]
        """
        check_number("n_draws", n_draws, least=1, whole=True)
        states, seed = self.states_of(X), self._seed(seed)
        found = np.repeat(states[None], int(n_draws), axis=0)
        for rows, evidence, which in incomplete_rows(states, len(self._model.graph.clusters)):
            numbers, order = np.bincount(which), np.argsort(which, kind="stable")
            drawn = self._drawn(numbers * int(n_draws), evidence, seed + int(rows[0]))  # groups differ
            parts = np.split(drawn, n_draws * pointer(numbers)[1:-1])
            found[:, rows[order]] = np.hstack([part.reshape(n_draws, -1, states.shape[1]) for part in parts])
        return [self._like(table, X) for table in found]

    def _seed(self, seed: int | None) -> int:
        seed = self.options.seed if seed is None else seed
        check_number("seed", seed, least=0, whole=True)
        return seed

    def _drawn(self, numbers: Any, given: Sequence[Mapping[int, int]], seed: int, even: bool = False) -> Ints:
        """Draws given each piece of evidence, as many as ``numbers`` says, one after the other."""
        of, threads, budget = (self._model, self.weights), self.options.n_threads, self.options.memory_budget
        try:
            return draw_exactly(*of, numbers, given, seed=seed, memory_budget=budget, n_threads=threads, even=even)
        except MemoryBudgetError:
            pairs = enumerate(zip(numbers, given, strict=True))
            drawn = [draw_by_gibbs(*of, int(n), seen, seed=seed + i, n_threads=threads) for i, (n, seen) in pairs]
            return np.concatenate(drawn)

    def _tables_to_match(self) -> tuple[Sequence[Scope], Sequence[Floats], list[tuple[Scope, Bools]]]:
        """Scopes and probabilities of the margins that rounded rows should have, and what else restricts them."""
        if self.margins is not None:
            base = self.margins.problem.base
            possible = [(scope, np.isfinite(table)) for scope, table in base if not np.isfinite(table).all()]
            return self.margins.problem.scopes, self.margins.tables, possible
        clusters, result = self._model.graph.clusters, self._infer([None])[0]
        return clusters, [np.array(result.clusters[i]) for i in range(len(clusters))], []

    def predict_marginals(self, X: Any) -> Any:
        """Marginals given the observed states of each sample; -1 stands for a missing state.

        Returns a list with an array of shape (n_samples, states) for every variable; observed states have probability
        1. A field that was fitted to a frame returns a dict with a frame for every variable, with a column per state.
        """
        states, named = self.states_of(X), self.of.variables
        found = [np.zeros((states.shape[0], int(k))) for k in named.cardinalities]
        for rows, evidence, which in incomplete_rows(states, len(self._model.graph.clusters)):
            given = self._conditionals(evidence)
            for v, table in enumerate(found):
                table[rows] = np.stack([tables[v] for tables in given])[which]
        complete = np.flatnonzero((states >= 0).all(axis=1))
        for v, table in enumerate(found):
            table[complete, states[complete, v]] = 1.0
        return found if self.of.frames is None else self._framed(dict(enumerate(found)), X)

    def _framed(self, tables: Mapping[int, Floats], like: Any = None) -> dict[Any, Any]:
        """Marginals of variables, (n, states) each, as frames by name with a column per state."""
        named, kind = self.of.variables, kind_of_frame(like) if is_frame(like) else self.of.frames
        assert kind is not None
        return {
            named.names[v]: make_frame(kind, dict(zip(map(word, named.words([v])), table.T, strict=True)), like)
            for v, table in tables.items()
        }

    def predict(self, X: Any) -> Any:
        """Samples with the missing states (-1) filled in: the most probable completion of each.

        Exact if that fits ``memory_budget``, otherwise by max-product. Observed states do not change. For a frame,
        returns a frame like it.
        """
        states = self.states_of(X)
        method = "exact" if self._fits_exactly else "max-product"
        for rows, evidence, which in incomplete_rows(states.copy(), len(self._model.graph.clusters)):
            found = decode(
                [self._model] * len(evidence), self.weights, method, evidence, max_seconds=None, **self._limits
            )
            states[rows] = np.stack(found)[which]
        return self._like(states, X)

    def _like(self, states: Ints, X: Any) -> Any:
        """Rows of numbers of states as a table like X."""
        if self.of.frames is None:
            return states
        if is_frame(X):
            return self.of.variables.frame(range(states.shape[1]), states, kind_of_frame(X), X)
        cells = [self.of.variables.cells(v, column, "table") for v, column in enumerate(states.T)]
        return np.array(cells, dtype=object).T

    def states_of(self, X: Any) -> Ints:
        """Rows of numbers of states, checked; -1 for hidden variables and missing cells."""
        seen, n_hidden = self.of.variables.seen, self.of.variables.n_hidden
        framed = self.of.frames is not None or (is_frame(X) and any(self.of.variables.labels))
        given = columns_of(X) if framed else checked_table(X)
        names = column_names(X)
        if names is not None and seen.are_named:
            order = places(names, seen.names)
            given = [given[i] for i in order] if isinstance(given, list) else given[:, order]
        n, expected = len(given) if isinstance(given, list) else given.shape[1], len(seen.names)
        if n != expected:
            raise ValueError(f"X has {n} features, but MarkovRandomField is expecting {expected} features as input")
        states = seen.codes(given) if isinstance(given, list) else given
        states = np.hstack([states, np.full((len(states), n_hidden), -1)])
        self._model.graph.checked_states(np.where(states == -1, 0, states), "X")
        return states

    # --- questions ---

    def log_slope(self, event: Mapping[Any, Any], given: Mapping[Any, Any] | None, contrasts: Contrasts) -> Floats:
        """Slope of log P(event | given) in the contrasts: their expectation given both, less that given the latter."""
        asked, seen = self._choices(event, "event"), self._choices(given or {}, "given")
        both = [{**a, **b} for a in seen for b in asked if all(a.get(v, state) == state for v, state in b.items())]
        return self._expected(both, contrasts) - self._expected(seen if both else [], contrasts)

    def _choices(self, given: Mapping[Any, Any], name: str) -> list[dict[int, int]]:
        """Evidence for each way in which variables may have one of some states."""
        event = self._event(given, name)
        return [dict(zip(event, chosen, strict=True)) for chosen in product(*event.values())]

    def _expected(self, evidence: Sequence[Mapping[int, int]], contrasts: Contrasts) -> Floats:
        """Expected statistics of the contrasts where any of ``evidence`` holds, of which no two can."""
        n, found = len(self._model.graph.clusters), np.zeros(contrasts.edge_first[-1])
        results = self._infer(evidence) if evidence else []
        masses = softmax([result.log_partition for result in results]) if len(results) > 1 else [1.0]
        for mass, result in zip(masses, results, strict=False):
            tables = [result.clusters[i] for i in range(n - len(contrasts.edges), n)]
            found += mass * contrasts.expected(result.variables, tables)
        return found

    def marginal(self, names: str | int | Sequence[str | int], given: Mapping[Any, Any] | None = None) -> Any:
        """The joint marginal of some variables: probabilities, one axis per variable, in the order asked for.

        A set inside a fitted margin is read off it, as is one inside a table of the model with ``inference="matched"``.
        Otherwise exact inference is tried with the variables in one table; if that does not fit ``memory_budget``, or
        inference is matched to another learner, the states of all of them but one are taken as evidence in turn. If
        margins were fitted on a region graph, the result is the table of maximum entropy that agrees with the fitted
        margins of its variables. A field that was fitted to a frame returns a frame: a row per cell of the table, and
        the column ``probability``. One that was fitted to margins whose states have labels returns one or two variables
        as a series, or as a frame with the states of the second as columns, if pandas is installed.

        Parameters
        ----------
        names : name or number of a variable, or a sequence of them
        given : mapping, optional
            States of observed variables, as in :meth:`probability`.
        """
        listed: list[Any] = [names] if isinstance(names, str | int | np.integer) else list(names)
        named = self.of.variables
        numbers = [named.index(name, "names") if isinstance(name, str) else name for name in listed]
        scope = self._model.graph.checked_scope(numbers, "names")
        table = self._marginal_given(scope, self._event(given or {}, "given"))
        if self.of.frames is None:
            return labelled_table(table, [named.names[v] for v in scope], [named.labels[v] for v in scope])
        cells = np.indices(table.shape).reshape(table.ndim, -1).T
        return named.frame(scope, cells, self.of.frames, probability=table.ravel())

    def marginals(self, evidence: Mapping[Any, Any] | None = None) -> Any:
        """Marginal of every variable, given the states of some of them, which are then one-hot.

        Evidence is by name, with labels of states, or by number, with numbers of states. Returns a list of arrays; a
        field that was fitted to a frame returns one with columns ``variable``, ``state`` and ``probability``.
        """
        (tables,) = self._conditionals([self._evidence(evidence, "evidence")])
        return list(tables.values()) if self.of.frames is None else self._listed(tables)

    def conditional(self, evidence: Mapping[Any, Any]) -> Any:
        """Marginals of the variables that are not observed, given the states of those that are.

        Returns a dict with an array by number of the variable; a field that was fitted to a frame one with a frame by
        name, as :meth:`predict_marginals` does for one row: a column per state.
        """
        seen = self._evidence(evidence, "evidence")
        left = {v: table for v, table in self._conditionals([seen])[0].items() if v not in seen}
        return left if self.of.frames is None else self._framed({v: table[None] for v, table in left.items()})

    def probability(self, event: Mapping[Any, Any], given: Mapping[Any, Any] | None = None) -> float:
        """P(event | given), each the states of some variables: by name with labels, or by number with numbers.

        A list or set of states stands for any of them: ``{"edu": [13, 14]}``.

        Examples
        --------
        >>> import bactrian as bt
        >>> field = bt.MarkovRandomField(prior_variance=None).fit([[0, 0], [0, 1], [1, 1], [0, 0], [1, 0]])
        >>> round(field.probability({1: 0}, given={0: 0}), 3)
        0.667
        """
        if not isinstance(event, Mapping) or not event:
            raise ArgumentTypeError("event", f"must map variables to states, found {event!r}")
        asked, seen = self._event(event, "event"), self._event(given or {}, "given")
        sets = {
            v: states for v, states in asked.items() if len(states) > 1 or max(map(len, seen.values()), default=1) > 1
        }
        found = self._chance({v: states[0] for v, states in asked.items() if v not in sets}, seen)
        if not sets or found == 0.0:
            return found
        table = self._marginal_given(tuple(sets), {**seen, **{v: of for v, of in asked.items() if v not in sets}})
        return found * float(table[np.ix_(*sets.values())].sum())

    def _chance(self, asked: Mapping[int, int], given: Mapping[int, Sequence[int]]) -> float:
        """The probability of one state each of some variables."""
        seen, found = {v: states[0] for v, states in given.items()}, 1.0
        belief = None if self._on_regions or not asked else self._belief(tuple(asked), seen)
        if belief is not None:
            return float(belief[tuple(asked.values())])
        for v, state in asked.items():
            found *= float(self._conditionals([seen], [v])[0][v][state])
            if found == 0.0:
                break
            seen = {**seen, v: state}
        return found

    def _event(self, given: Any, name: str) -> dict[int, list[int]]:
        """Numbers of states by number of the variable, checked; several where any of them is meant."""
        if not isinstance(given, Mapping):
            raise ArgumentTypeError(name, f"must map variables to states, found {given!r}")
        found: dict[int, list[int]] = {}
        for variable, states in given.items():
            several = isinstance(states, list | tuple | set | frozenset | range | np.ndarray)
            codes = [self._evidence({variable: state}, name) for state in (states if several else [states])]
            if not codes:
                raise ArgumentError(name, f"[{variable!r}] has no states")
            found |= {v: list(dict.fromkeys(code[v] for code in codes)) for v in codes[0]}
        return found

    def _evidence(self, given: Any, name: str) -> dict[int, int]:
        """Numbers of states by number of the variable, checked."""
        return checked_evidence(self.of.variables.evidence(given, name), self.of.variables.cardinalities, name)

    def _listed(self, tables: Mapping[int, Floats]) -> Any:
        """Marginals of single variables as a frame."""
        assert self.of.frames is not None
        columns = {
            "variable": [self.of.variables.names[v] for v, table in tables.items() for _ in table],
            "state": self.of.variables.words(tables),
            "probability": np.concatenate([np.zeros(0), *tables.values()]),
        }
        return make_frame(self.of.frames, columns)

    def _conditionals(
        self, evidence: Sequence[dict[int, int]], wanted: Sequence[int] | None = None
    ) -> list[dict[int, Floats]]:
        """Marginals of the variables that are ``wanted``, or of all, by number, given each of ``evidence``.

        On regions what the margins say, as :meth:`marginal` does, unless there is too much evidence for a table.
        """
        graph, chosen = self._model.graph, range(self._model.graph.n_variables) if wanted is None else wanted
        most = _LARGEST_TABLE / graph.cardinalities.max()
        read = [self._on_regions and graph.size(tuple(seen)) <= most for seen in evidence]
        others = [seen for seen, is_read in zip(evidence, read, strict=True) if not is_read]
        inferred = iter(self._infer(others) if others else ())
        joint = cache(self._joint)  # that of all evidence on the same variables

        def tables_given(seen: dict[int, int], is_read: bool) -> dict[int, Floats]:
            if not is_read:
                variables = next(inferred).variables
                return {v: np.array(variables[v]) for v in chosen}
            scopes = {v: tuple(sorted({v, *seen})) for v in chosen}
            return {v: given_states(joint(of), of, (v,), seen, "evidence") for v, of in scopes.items()}

        return [tables_given(seen, is_read) for seen, is_read in zip(evidence, read, strict=True)]

    def _joint(self, asked: Scope) -> Floats:
        """The table over variables that margins on regions hold, or that is put together of them."""
        assert self.margins is not None
        table = self.margins.joint(asked, put_together=True)
        assert table is not None
        return table

    def _marginal_given(self, scope: Scope, given: Mapping[int, list[int]]) -> Floats:
        """The marginal of ``scope``, where each of ``given`` has any of some states."""
        sets = {v: states for v, states in given.items() if len(states) > 1}
        asked = (*scope, *(v for v in sets if v not in scope))
        table = self._marginal(asked, {v: states[0] for v, states in given.items() if v not in sets})
        return given_states(table, asked, scope, sets, "given") if sets else table

    def _marginal(self, scope: Scope, given: Mapping[int, int]) -> Floats:
        """The marginal of ``scope`` given evidence: what fitted margins hold is read off them.

        The rest is put together on regions. Elsewhere it is exact, with a table over ``scope`` in the junction tree, if
        that fits, or what inference says that is matched to another learner.
        """
        if self.margins is not None and (self._on_regions or not given):
            asked = (*scope, *(v for v in given if v not in scope))
            joint = self.margins.joint(asked, put_together=self._on_regions)
            if joint is not None:
                return given_states(joint, asked, scope, given, "given")
        model, graph = self._model, self._model.graph
        if self._is_matched:
            belief = self._belief(scope, given)
            return self._by_conditioning(graph.shape(scope), scope, given) if belief is None else belief
        with_table = LogLinearModel(
            ClusterGraph(graph.cardinalities, [*graph.clusters, scope]),
            [*model.features, None],
            [*model.base_scores, None],
        )
        try:
            result = infer(with_table, self.weights, "exact", dict(given), **self._limits)
        except MemoryBudgetError:
            return self._by_conditioning(graph.shape(scope), scope, given)
        return np.array(result.clusters[len(graph.clusters)])

    def _belief(self, scope: Scope, given: Mapping[int, int]) -> Floats | None:
        """The marginal of several variables that a table of the model has, under the learner's entropy; or None."""
        clusters = self._model.graph.clusters
        holder = next((i for i, cluster in enumerate(clusters) if set(scope) <= set(cluster)), None)
        if not self._is_matched or len(scope) == 1 or holder is None:
            return None
        return projected(np.array(self._infer([given])[0].clusters[holder]), clusters[holder], scope)

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
