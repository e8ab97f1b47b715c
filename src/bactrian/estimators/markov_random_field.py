"""A generative Markov random field over discrete variables, in the manner of scikit-learn."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logsumexp
from sklearn.base import DensityMixin, clone
from sklearn.utils.validation import check_is_fitted

from bactrian.arrays import Bools, Floats, Ints
from bactrian.errors import ArgumentError, check_choice, check_number, warn
from bactrian.estimators.base import LearnedEstimator
from bactrian.estimators.marginals import MARGINS, Marginal, MarginFit, Residuals, Variables, check_margins, fit_margins
from bactrian.estimators.pairwise import (
    NODE_FACTORS,
    TABLES,
    check_seen_states,
    check_tables_fit,
    checked_cardinalities,
    checked_edges,
    checked_table,
    column_names,
    evidence_of,
    incomplete_rows,
    is_forest,
    n_weights_of,
    pairwise_model,
    seen_cardinalities,
    split_tables,
)
from bactrian.estimators.priors import N_FOLDS, Block, Fold
from bactrian.estimators.saving import Arrays
from bactrian.estimators.zones import Zones, check_zones, fit_all
from bactrian.graphs.domain import Domain
from bactrian.graphs.elimination import MemoryBudgetError, junction_tree
from bactrian.graphs.loglinear import LogLinearModel, Samples
from bactrian.inference.decode import decode
from bactrian.inference.draw import draw_by_gibbs, draw_exactly
from bactrian.inference.infer import OF_WEIGHTS, infer
from bactrian.inference.joint import joint_marginal, joint_scores
from bactrian.inference.rounding import round_rows
from bactrian.learners.learn import matched_inference
from bactrian.learners.margins import FitOptions, MarginProblem
from bactrian.solvers.solution import AttainmentWarning, Callback, ConvergenceWarning, Solution

#: Nats per variable that a field may lose to independent variables before it is worth a word.
_WORTH_A_WORD = 0.01


@dataclass(frozen=True)
class _Margins:
    """What a field that was learned from margins keeps of them."""

    variables: Variables
    problem: MarginProblem
    fitted: list[Floats]  #: probabilities, one axis per variable


@dataclass(kw_only=True, eq=False, repr=False)
class MarkovRandomField(DensityMixin, LearnedEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """A pairwise Markov random field, learned from complete samples; or one of any clusters, learned from margins.

    log p(x) = sum_v s_v(x_v) + sum_(u,v) t_uv(x_u, x_v) - log Z, with tables s and t of weights. By default every
    variable's table is a cluster of its own (counting number 1 in clusters-only entropies); see ``node_factors``.

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
        ``"auto"``, the default: ``"exact"`` where a junction tree fits ``memory_budget``, else ``"pseudolikelihood"``,
        or ``"cccp"`` where states are missing or margins are given; ``method_`` says which.
        Or any learner of :func:`bactrian.learn`, but for two that are refused with the reason where they cannot work:
        ``"pseudo-moments"`` is a closed form for tables that share no weights, without a prior: it needs
        ``tables="full"``, ``node_factors="clusters"``, ``prior_variance=None`` and ``l1=0``. ``"ups"`` scales tables of
        variables, those of the edges being fixed, so that it cannot learn a field with edges.
    prior_variance : float, mapping, "cv" or None
        Variance of the Gaussian prior; a mapping has one for each block: ``{"variables": 10.0, "edges": 0.1}``.
        ``"cv"`` has it chosen by cross-validation over samples, by the loss of every state given the others of its
        sample.
    l1, tolerance, max_iterations, max_seconds, n_threads
        See :func:`bactrian.learn`.
    seed : int
        Seed of learners and inference methods that draw random numbers, and of :meth:`sample` by default.
    warm_start : bool
        Start from the weights of the last fit, or of the file the model was loaded from.
    verbose : int
        1 prints a line about learning now and then; see :class:`bactrian.ProgressLines`.
    cardinalities : int or (n_variables,) ints, optional
        Number of states; by default one more than the largest state seen of each variable (of all variables, for
        shared tables). Give them where later data may hold states that the training data does not, as in
        cross-validation.
    inference : str
        Method of :func:`bactrian.infer` where exact inference does not fit ``memory_budget``. Or ``"matched"``: always
        the entropy that the learner used (:func:`bactrian.learners.learn.matched_inference`), since weights fit
        the entropy under which they were learned; completions and draws do not depend on it.
    memory_budget : int
        Bytes that the tables of a junction tree may take. Without cycles inference is exact whatever it is.
    node_factors : {"clusters", "edges"}
        Whether the variables' tables are clusters of their own (the default), whose entropy counts, or are absorbed
        into the incident edges in equal parts (a variable without edges keeps its own). Piecewise training and CAMEL(0)
        depend on it; CCCP and the likelihoods do not.

    Attributes
    ----------
    weights_ : (n_weights,)
        Learned weights: tables of variables, then of edges; :meth:`log_potentials` gives them as tables.
    solution_ : Solution
        Status and history of learning.
    model_ : LogLinearModel
        The model, for use with :func:`bactrian.infer` and others: a cluster per variable (with
        ``node_factors="edges"`` per variable without edges), then one per edge.
    edges_, cardinalities_, tables_
        The edges, the numbers of states, and how the tables are tied.
    n_features_in_ : int
        Number of variables.
    inference_method_ : str
        How marginals and log Z are computed: ``"exact"`` where that fits the memory budget, else ``inference``; the
        learner's own method where ``inference="matched"``.
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

    _block_names: ClassVar = ("variables", "edges")

    method: Any = "auto"
    edges: Any = field(default="complete", kw_only=False)
    shape: Any = None
    tables: str = "full"
    cardinalities: Any = None
    node_factors: str = "clusters"
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
    residuals_: Residuals = field(init=False)
    total_: float = field(init=False)
    _margins: _Margins | None = field(init=False, default=None)
    _unknown: bool = field(init=False, default=False)  #: whether states of the last samples were missing

    # --- learning ---

    def fit(
        self,
        X: ArrayLike,
        y: object = None,
        sample_weight: ArrayLike | None = None,
        *,
        callback: Callback | None = None,
    ) -> Self:
        """Learn the weights.

        Parameters
        ----------
        X : (n_samples, n_variables) ints
            States from 0; booleans are 0 and 1.
        y
            Ignored.
        sample_weight : (n_samples,), optional
            Weight of each sample's term of the log-likelihood.
        callback : callable, optional
            Sees a :class:`Progress` after every iteration; returning True stops learning.
        """
        return self._fit(lambda: self.encode(X, y, sample_weight), callback)

    def encode(self, X: ArrayLike, y: object = None, sample_weight: ArrayLike | None = None) -> Samples:
        """The data that :meth:`fit` learns from; :meth:`adopt` keeps what is learned from them.

        Fixes the model, as that of the last time with ``warm_start``; else the estimator is not fitted until then.
        """
        states, names = checked_table(X), column_names(X)
        if states.shape[0] == 0 or states.shape[1] == 0:
            raise ValueError(f"X must have at least one sample and one variable, found shape {states.shape}")
        self.check_params()
        again = self.warm_start and hasattr(self, "model_")
        cardinalities = self._numbers_of_states(states, again, names)
        edges = checked_edges(self.edges, self.shape, states.shape[1])
        check_tables_fit(self.tables, cardinalities, edges, names)
        model = pairwise_model(self.tables, cardinalities, edges, self.node_factors)
        samples = Samples(model, states, sample_weight)
        if not again:
            self._forget()
        elif not (
            np.array_equal(cardinalities, self.cardinalities_)
            and np.array_equal(edges, self.edges_)
            and (self.tables, self.node_factors) == (self.tables_, self.node_factors_)
        ):
            raise ValueError(
                "warm_start: edges, tables, node_factors or the numbers of states differ from those of the last fit; "
                "give cardinalities= where later data may hold further states"
            )
        self._keep(self.tables, model, edges)
        self._unknown = bool((states < 0).any())
        self.node_factors_ = self.node_factors
        if names is not None:
            self.feature_names_in_ = names
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_
        return samples

    def fit_marginals(
        self,
        margins: Sequence[Marginal],
        cardinalities: Mapping[str, Any] | None = None,
        *,
        total: float | None = None,
        base: Any = None,
        impossible: Sequence[Mapping[str, Any]] = (),
        entropy_weight: float = 0.01,
        callback: Callback | None = None,
    ) -> Self:
        """Learn from tables of counts where there are no rows: the distribution of maximum entropy.

        Exact margins that agree are met to a thousandth of ``tolerance``, as iterative proportional fitting would meet
        them; where they contradict each other a :class:`ContradictionWarning` and ``residuals_`` say which, and the
        nearest distribution, by least squares, is learned. Noisy margins count by their variances. The clusters of the
        model are the margins; ``edges``, ``tables``, ``prior_variance`` and ``l1`` play no part, and
        :mod:`bactrian.learners.margins` has the formulas.

        Parameters
        ----------
        margins : list of Marginal
            In any order, of any overlap.
        cardinalities : mapping, optional
            Number of states, or list of their labels, of each variable by its name; by default as many as the margins
            have.
        total : float, optional
            Number of rows; by default what exact margins add up to, or the best estimate from noisy ones.
        base : Marginal, list of them, or array, optional
            The seed table of proportional fitting: the distribution is as close to it (to the product, of several) as
            the margins allow. Cells of 0 stay 0. An array has one axis per variable.
        impossible : list of mappings
            Combinations of states that cannot be, such as ``{"age": "0-15", "married": "yes"}``.
        entropy_weight : float
            Weight of the entropy against noise: 1 is the likelihood's scale, which over-smooths.
        callback : callable, optional
            Sees a :class:`Progress` after every iteration; returning True stops learning.

        Examples
        --------
        >>> import bactrian as bt
        >>> margins = [bt.Marginal("sex", [40, 60]), bt.Marginal(("sex", "smoker"), [[30, 10], [30, 30]])]
        >>> field = bt.MarkovRandomField(method="auto").fit_marginals(margins, {"sex": ["f", "m"], "smoker": 2})
        >>> field.marginal(("smoker", "sex")).round(3)
        array([[0.3, 0.3],
               [0.1, 0.3]])
        """
        self.check_params()
        check_number("entropy_weight", entropy_weight, positive=True, below=np.inf)
        checked = check_margins(margins, cardinalities, total, base, impossible)
        options = FitOptions(
            self.tolerance, self.max_iterations, self.max_seconds, self.n_threads, self.seed, callback=callback
        )
        found = fit_margins(checked, self.method, float(entropy_weight), self.memory_budget, options)
        return self._adopt_margins(checked.variables, found)

    def _keep_margins(self, variables: Variables, problem: MarginProblem, model: LogLinearModel, cells: Floats) -> None:
        self._keep(MARGINS, model, np.zeros((0, 2), dtype=np.int64))
        self.node_factors_ = self.node_factors
        self.feature_names_in_ = np.array(variables.names, dtype=object)
        self._margins = _Margins(variables, problem, problem.split(cells))

    def _adopt_margins(self, variables: Variables, found: MarginFit) -> Self:
        """Take up what was learned from margins."""
        self._keep_margins(variables, found.problem, found.model, found.cells)
        self.residuals_, self.total_ = found.residuals, found.problem.total
        self.solution_, self.weights_, self.method_ = found.solution, found.solution.weights.copy(), found.method
        self.prior_variance_ = None
        return self

    def fit_zones(
        self,
        zones: Sequence[Sequence[Marginal]],
        cardinalities: Mapping[str, Any] | None = None,
        *,
        base: Any = None,
        impossible: Sequence[Mapping[str, Any]] = (),
        entropy_weight: float = 0.01,
    ) -> Zones:
        """Fit a field to the margins of each of many zones, which are over the same variables in every zone.

        The junction tree is planned once, and zones are shared among ``n_threads`` threads. Each zone is fitted as by
        :meth:`fit_marginals`, to its own total; the field itself is left as it is.

        Parameters
        ----------
        zones : list of lists of Marginal
            One list per zone, over the same names in the same order.
        cardinalities, base, impossible, entropy_weight
            See :meth:`fit_marginals`; they are the same for all zones.

        Returns
        -------
        Zones
            A sequence of fitted fields, made when asked for.
        """
        self.check_params()
        check_number("entropy_weight", entropy_weight, positive=True, below=np.inf)
        if self.method not in ("auto", "exact"):
            raise ArgumentError("method", f"must be 'auto' or 'exact' for zones, found {self.method!r}")
        checked = check_zones(zones, cardinalities, base, impossible)
        options = FitOptions(self.tolerance, self.max_iterations, self.max_seconds, 1, self.seed)
        found = fit_all(checked, float(entropy_weight), self.memory_budget, options, self.n_threads)
        template = self.__class__(**{**self.get_params(deep=False), "method": "exact"})
        return Zones(checked, found, lambda z: clone(template)._adopt_margins(checked[z].variables, found[z]))

    def _options(self) -> dict[str, Any]:
        """See :class:`LearnedEstimator`; what ``"auto"`` stands for is known as soon as the model is."""
        options = super()._options()
        if options["method"] == "auto":
            fits = getattr(self, "model_", None) is not None and self._fits_exactly
            options["method"] = "exact" if fits else "cccp" if self._unknown else "pseudolikelihood"
        return options

    def adopt(self, solution: Solution) -> Self:
        """See :class:`LearnedEstimator`."""
        super().adopt(solution)
        self.method_ = self._options()["method"]
        return self

    def judged(self, data: Samples) -> Self:
        """Warn where the field gives the samples a smaller likelihood than independent variables do."""
        rows, weights = data.X, data.sample_weight
        if self.method_ == "exact" or self._unknown or self.inference == "gibbs" or not weights.any():
            return self
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            joint = float(np.average(self.score_samples(rows), weights=weights))
        apart = 0.0
        for column in rows.T:
            counts = np.bincount(column, weights=weights)
            seen = counts[counts > 0.0] / weights.sum()
            apart += float(seen @ np.log(seen))
        if joint < apart - _WORTH_A_WORD * rows.shape[1]:
            warn(
                f"{self.solution_.method}: the field gives the training samples a mean log-likelihood of {joint:.2f}, "
                f"independent variables {apart:.2f}: use method='exact' where a junction tree fits, "
                "'pseudolikelihood' or 'trw', or another prior",
                AttainmentWarning,
            )
        return self

    def _numbers_of_states(self, states: Ints, again: bool, names: Any) -> Ints:
        n = states.shape[1]
        if self.cardinalities is not None:
            return checked_cardinalities(self.cardinalities, n)
        check_seen_states(states, names)
        seen = seen_cardinalities(states)
        if self.tables == "shared":
            seen = np.full(n, seen.max())
        if again and self.cardinalities_.size == n:
            seen = np.maximum(seen, self.cardinalities_)
        return seen

    def _keep(self, tables: str, model: LogLinearModel, edges: Ints) -> None:
        """Take up a model; its weights come apart from it."""
        self.tables_ = tables
        self.model_ = model
        self.edges_ = edges
        self.cardinalities_ = model.graph.cardinalities.copy()
        self.n_features_in_ = model.graph.n_variables
        self._margins = None
        self._fits = None
        self._partition = None

    def _blocks(self) -> list[Block]:
        variables = len(self.cardinalities_) if self.tables_ != "shared" else 1
        first = int(self.cardinalities_[:variables].sum())
        return [Block("variables", slice(0, first)), Block("edges", slice(first, self._n_weights()))]

    def _folds(self, data: Samples) -> list[Fold]:
        """Folds over samples; the loss is that of every state given the sample's others, which needs no log Z."""
        n = data.X.shape[0]
        if n < 2:
            raise ValueError("prior_variance='cv' needs at least two samples, found 1. Give a number")
        fold_of = np.random.default_rng(self.seed).permutation(n) % N_FOLDS

        def fold(out: Bools) -> Fold:
            rows, weights = data.X[out], data.sample_weight[out]
            train = Samples(data.model, data.X[~out], data.sample_weight[~out])
            return Fold(train, lambda: float(weights @ self._conditional_losses(rows)), rows.size)

        return [fold(fold_of == f) for f in range(min(N_FOLDS, n))]

    def _conditional_losses(self, states: Ints) -> Floats:
        """- sum_v log p(x_v | all others) of each sample."""
        variables, pairs = self.log_potentials()
        scores = [np.tile(table, (states.shape[0], 1)) for table in variables]
        for (a, b), table in zip(self.edges_.tolist(), pairs, strict=True):
            scores[a] += table.T[states[:, b]]
            scores[b] += table[states[:, a]]
        losses = np.zeros(states.shape[0])
        for v, score in enumerate(scores):
            losses += logsumexp(score, axis=1) - score[np.arange(states.shape[0]), states[:, v]]
        return losses

    def _n_weights(self) -> int:
        return self.model_.n_weights

    # --- the joint distribution ---

    def check_params(self) -> None:
        """Refuse parameters that make no sense, before any data are looked at."""
        super().check_params()
        check_choice("inference", self.inference, ("matched", *OF_WEIGHTS))
        check_choice("tables", self.tables, TABLES)
        check_choice("node_factors", self.node_factors, NODE_FACTORS)
        check_number("memory_budget", self.memory_budget, least=0, whole=True)
        if self.cardinalities is not None:
            checked_cardinalities(self.cardinalities, np.size(self.cardinalities))
        if self.shape is not None and (np.shape(self.shape) != (2,) or np.asarray(self.shape).dtype.kind not in "iu"):
            raise ArgumentError("shape", f"must be (height, width), found {self.shape!r}")
        if isinstance(self.edges, str):
            if self.edges not in ("complete", "grid"):
                raise ArgumentError("edges", f"must be 'complete', 'grid' or pairs of variables, found {self.edges!r}")
        else:
            checked_edges(self.edges, None, np.iinfo(np.int64).max)

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
        if self.tables_ == MARGINS:
            raise ValueError("a field learned from margins has no tables of edges; see model_ and weights_")
        return split_tables(self.tables_, self.cardinalities_, self.edges_, self.weights_)

    def score_samples(self, X: ArrayLike) -> Floats:
        """Log-probability of each sample; where ``inference_method_`` is not exact, log Z is its approximation."""
        states = self._checked_states(X)
        if self.tables_ == MARGINS:
            return joint_scores(self.model_, self.weights_, states) - self.log_partition_
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

    def _tables_to_match(self) -> tuple[Sequence[tuple[int, ...]], list[Floats]]:
        """Scopes and probabilities of the margins that rounded rows should have."""
        if self._margins is not None:
            problem = self._margins.problem
            return problem.scopes, self._margins.fitted
        graph = self.model_.graph
        result = self._infer([None])[0]
        return graph.clusters, [np.array(result.clusters[i]) for i in range(len(graph.clusters))]

    @property
    def state_labels(self) -> tuple[tuple[Any, ...] | None, ...]:
        """Labels of the states of each variable that :meth:`fit_marginals` was given; None where there are none."""
        return (None,) * self.n_features_in_ if self._margins is None else self._margins.variables.labels

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
        names = list(getattr(self, "feature_names_in_", range(states.shape[1])))
        labels = self.state_labels
        columns = {
            name: states[:, v] if of is None else np.array(of, dtype=object)[states[:, v]]
            for v, (name, of) in enumerate(zip(names, labels, strict=True))
        }
        return pandas.DataFrame(columns)

    # --- marginals and completions ---

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
        scope = self._scope_of(names)
        for of, table in zip(self._margins.problem.scopes, self._margins.fitted, strict=True) if self._margins else ():
            if set(scope) <= set(of):
                kept = table.sum(axis=tuple(a for a, v in enumerate(of) if v not in scope))
                left = [v for v in of if v in scope]
                marginal: Floats = kept.transpose([left.index(v) for v in scope])
                return marginal
        budget = None if self._on_regions else self._budget
        return joint_marginal(self.model_, self.weights_, scope, self._infer, budget, self.n_threads)

    def _scope_of(self, names: Any) -> tuple[int, ...]:
        """Numbers of variables that are given by name or number."""
        listed = [names] if isinstance(names, str | int | np.integer) else list(names)
        known = list(getattr(self, "feature_names_in_", ()))
        scope: Any = tuple(known.index(name) if isinstance(name, str) and name in known else name for name in listed)
        for name in scope:
            if isinstance(name, str):
                raise ArgumentError("names", f"has {name!r}; the variables are {', '.join(map(str, known))}")
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

    # --- files ---

    def _contents(self) -> tuple[dict[str, Any], Arrays]:
        names = getattr(self, "feature_names_in_", None)
        arrays: Arrays = {"edges": self.edges_, "cardinalities": self.cardinalities_}
        attributes = {
            "tables": self.tables_,  # parameters may have changed since
            "node_factors": self.node_factors_,
            "feature_names": None if names is None else names.tolist(),
        }
        if self._margins is not None:
            problem = self._margins.problem
            attributes["margins"] = {
                "scopes": [list(scope) for scope in problem.scopes],
                "labels": [None if labels is None else list(labels) for labels in self._margins.variables.labels],
                "base": [list(scope) for scope, _ in problem.base],
                "total": problem.total,
            }
            arrays |= {"forbidden": problem.forbidden.astype(np.int64)}
            arrays |= {"fitted": np.concatenate([table.ravel() for table in self._margins.fitted])}
            arrays |= {f"base.{i}": table for i, (_, table) in enumerate(problem.base)}
        return attributes, arrays

    def _restore(self, attributes: dict[str, Any], arrays: Arrays) -> None:
        cardinalities = Domain(arrays["cardinalities"], []).cardinalities
        if cardinalities.size == 0:
            raise ValueError("it has no variables")
        tables = attributes["tables"]
        if tables == MARGINS:
            self._restore_margins(cardinalities, attributes, arrays)
            return
        edges = checked_edges(arrays["edges"], None, cardinalities.size)
        if n_weights_of(tables, cardinalities, edges) != self.weights_.size:  # before any table is made
            raise ValueError(f"it has {self.weights_.size} weights, which do not fit its tables")
        self.node_factors_ = attributes["node_factors"]
        self._keep(tables, pairwise_model(tables, cardinalities, edges, self.node_factors_), edges)
        names = attributes["feature_names"]
        if names is not None:
            self.feature_names_in_ = np.array(names, dtype=object)

    def _restore_margins(self, cardinalities: Ints, attributes: dict[str, Any], arrays: Arrays) -> None:
        kept = attributes["margins"]
        scopes = Domain(cardinalities, kept["scopes"]).clusters
        base_scopes = Domain(cardinalities, kept["base"]).clusters
        cells = self.weights_.size
        problem = MarginProblem(
            cardinalities=cardinalities,
            scopes=scopes,
            observed=np.zeros(cells),
            precision=np.zeros(cells),
            forbidden=arrays["forbidden"].astype(np.bool_),
            total=float(kept["total"]),
            base=tuple((scope, arrays[f"base.{i}"]) for i, scope in enumerate(base_scopes)),
        )
        if not problem.bounds[-1] == cells == problem.forbidden.size == arrays["fitted"].size:
            raise ValueError(f"it has {cells} weights, which do not fit its margins")
        labels = [None if listed is None else tuple(listed) for listed in kept["labels"]]
        variables = Variables(tuple(attributes["feature_names"]), tuple(cardinalities.tolist()), tuple(labels))
        if not len(variables.names) == len(labels) == cardinalities.size:
            raise ValueError("its names do not fit its variables")
        self._keep_margins(variables, problem, problem.model(regions=self.method_ != "exact"), arrays["fitted"])
        self.node_factors_, self.total_ = attributes["node_factors"], problem.total
