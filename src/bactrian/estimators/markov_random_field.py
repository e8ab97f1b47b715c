"""A generative Markov random field over discrete variables, in the manner of scikit-learn."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import DensityMixin, clone
from sklearn.utils.validation import check_is_fitted

from bactrian.arrays import Arrays, Bools, Floats, Ints, nonnegative_weights
from bactrian.errors import ArgumentError, ArgumentTypeError, check_choice, check_number, warn
from bactrian.estimators.base import LearnedEstimator
from bactrian.estimators.field_learning import (
    HeldOutRows,
    Joined,
    best_of_starts,
    check_edges,
    is_by_rows,
    joined,
    learn_conditionals,
)
from bactrian.estimators.fitted_field import AnswerOptions, FieldModel, FittedField, answered
from bactrian.estimators.network import draw, edge_table, interactions
from bactrian.estimators.pairwise import (
    FIELD_NODE_FACTORS,
    TABLES,
    PairwiseTables,
    check_known_states,
    check_seen_states,
    check_tables_fit,
    checked_cardinalities,
    checked_edges,
    checked_table,
    seen_cardinalities,
)
from bactrian.estimators.priors import N_FOLDS, Block, Fold, variances
from bactrian.estimators.refits import Bootstrap
from bactrian.estimators.uncertainty import Contrasts, Covariance, LearnedRows, check_level
from bactrian.frames import (
    FRAMES,
    Variables,
    column_names,
    columns_of,
    is_frame,
    kind_of_frame,
    make_frame,
    restored_variables,
)
from bactrian.graphs.graph import Domain
from bactrian.graphs.loglinear import LogLinearModel, Samples
from bactrian.inference.infer import OF_WEIGHTS
from bactrian.margins.fit import FittedMargins, MarginFit, Residuals, fit_margins
from bactrian.margins.given import Marginal, check_entropy_weight, check_margins
from bactrian.margins.problem import FitOptions
from bactrian.margins.zones import Zones, check_zones, fit_all_zones
from bactrian.solvers.solution import AttainmentWarning, Callback, ConvergenceWarning, Solution

#: What ``tables_`` of a field says that was learned from margins.
MARGINS = "margins"
#: Nats per variable that a field may lose to independent variables before it is worth a word.
_WORTH_A_WORD = 0.01
#: Work of exact learning that ``"auto"`` takes on: an evaluation takes a third of a second.
_MOST_WORK = 1e8
#: Of that work, the part where edges were selected by pseudo-likelihood.
_SELECTED = 0.1
#: Starts where there are hidden variables.
_STARTS = 5
#: Rounds of annealing that may say whether a field is worse than independent variables.
_JUDGED = 2


@dataclass(kw_only=True, eq=False, repr=False)
class MarkovRandomField(DensityMixin, LearnedEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """A pairwise Markov random field, learned from samples; or one with clusters of any size, learned from margins.

    log p(x) = sum_v s_v(x_v) + sum_(u,v) t_uv(x_u, x_v) - log Z, with tables s and t of weights. By default every
    variable's table is a cluster of its own (counting number 1 in clusters-only entropies); see ``node_factors``.

    Parameters
    ----------
    edges : "auto", "select", "tree", "complete", "grid" or pairs
        Pairs of variables that are joined, by number or, for a data frame, by name; a grid is 4-connected, with
        variables in row order. ``"select"`` finds them (:mod:`bactrian.learners.structure`); behind pairs it finds the
        rest: ``[("age", "smoker"), "select"]``. ``"tree"`` is the tree of greatest likelihood. ``"auto"``, the default,
        is complete where exact learning takes it on and edges have at most 10 free weights or one for five rows (or
        with hidden variables, ``"shared"`` or ``"potts"`` tables), else ``"select"`` with the criterion ``"aic"``: it
        predicts, where that of ``"select"`` finds edges. Where states follow from others all pairs may be joined, too.
        ``selection_`` says which.
    criterion : {"ebic", "aic", "cv", "stability"}, optional
        What selects edges: ``"ebic"``, the default of ``"select"``, is best at finding them, ``"aic"`` and ``"cv"``
        at predicting; ``"stability"`` bounds the number of false ones.
    shape : (height, width), optional
        Shape of the grid.
    tables : {"full", "shared", "potts", "ordinal"}
        A table per variable and per edge; one table for all variables and one for all edges (which then need equally
        many states); a table per variable and a single weight for agreement on any edge; or, with few weights, a table
        per variable and scores of states on edges: an edge of two ordered variables has a single weight, which their
        scores multiply, one of an ordered variable and another a weight per state of that. Ordered are columns of
        ordered categories and of numbers; their scores go in equal steps, with mean 0 and variance 1.
    method : str or learner
        ``"auto"``, the default, is ``"exact"`` if a junction tree fits ``memory_budget`` and has at most 1e8 entries,
        counted once for each table of the model, else ``"pseudolikelihood"``, or ``"cccp"`` if states are missing or
        margins are given; ``method_`` is the choice. Or any learner of :func:`bactrian.learn`, with two exceptions:
        ``"pseudo-moments"``, a closed form, needs ``tables="full"``, ``node_factors="clusters"``,
        ``prior_variance=None`` and ``l1=0``; ``"ups"`` learns tables of variables only and refuses fields with edges.
    prior_variance : "auto", float, mapping, "cv" or None
        Variance of the Gaussian prior. ``"auto"`` has 10 for the tables of variables, and chooses that of edges by the
        pseudo-likelihood of held-out samples (:doc:`/priors-and-tables`); edges that ``"aic"`` or ``"cv"`` selected
        have those under which the pseudo-likelihood has the selected optimum, unless one variance for all predicts
        much better. A mapping has one for each block:
        ``{"variables": 10.0, "edges": 0.1}``, edges a number or a list with one for each.
        ``"cv"`` chooses it by cross-validation over samples, by the loss of every state given the others of its sample;
        if some are missing, only states with known neighbours count.
    l1, tolerance, max_iterations, max_seconds, n_threads
        See :func:`bactrian.learn`.
    seed : int
        Seed of learners and inference methods that draw random numbers, and of :meth:`sample` by default.
    warm_start : bool
        Start from the weights of the last fit, or of the loaded file.
    verbose : int
        1 prints lines about the progress of learning; see :class:`bactrian.ProgressLines`.
    cardinalities : int, (n_variables,) ints or mapping, optional
        Number of states; by default one more than the largest state of each variable (of all variables, for shared
        tables), and for a data frame its categories or the observed values. A mapping has numbers or lists of states by
        name of the column: ``{"smoker": ["no", "yes"]}``. Give them if later data may hold other states than the
        training data, as in cross-validation.
    inference : str
        Method of :func:`bactrian.infer` for fields on which exact inference does not fit ``memory_budget``.
        ``"matched"`` always uses the learner's entropy (:func:`bactrian.learners.learn.matched_inference`), which suits
        the learned weights. Completions and draws do not depend on it.
    memory_budget : int
        Memory limit of the tables of a junction tree, in bytes. Without cycles inference is always exact.
    node_factors : {"clusters", "edges"}
        Whether the variables' tables are clusters of their own (the default), whose entropy counts, or are absorbed
        into the incident edges in equal parts (a variable without edges keeps its own). Piecewise training and CAMEL(0)
        depend on it; CCCP and the likelihoods do not.
    hidden : mapping, optional
        Variables that are never observed, with the number of their states or a list of labels: ``{"topic": 5}``. Edges
        may name them, and predictions have them as last columns. The order of their states depends on ``seed``.
    device : str, optional
        Where tables are learned with PyTorch, such as ``"cuda"``, by ``"convex"``, ``"camel0"``, ``"cccp"`` or
        ``"piecewise"`` (:doc:`/gpu`); by default on the CPU without. Of what ``"auto"`` chooses, pseudo-likelihood of
        full tables runs there. Questions are answered on the CPU.
    n_starts : int, optional
        With unknown states, number of starts from random weights; the solution with the least objective is kept. By
        default 5 with hidden variables, else 1, from zero weights.

    Attributes
    ----------
    weights_ : (n_weights,)
        Learned weights: tables of variables, then of edges; :meth:`log_potentials` gives them as tables.
    solution_ : Solution
        Status and history of learning.
    selection_ : str
        Which edges were chosen, and how, where they depend on the rows.
    path_ : table
        Where edges were selected: ``penalty``, ``edges``, ``pseudo_log_likelihood`` and ``criterion``, row by row.
    total_ : float
        Weight of all samples, or total of the margins.
    starts_ : (n_starts,)
        Final objective of each start, if there were several. A :class:`ConvergenceWarning` tells if only one reached
        the least.

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
    _newer_params: ClassVar = ("criterion", "hidden", "n_starts")

    method: Any = "auto"
    edges: Any = field(default="auto", kw_only=False)
    criterion: str | None = None
    shape: Any = None
    tables: str = "full"
    cardinalities: Any = None
    hidden: Any = None
    device: str | None = None
    n_starts: int | None = None
    node_factors: str = "clusters"
    inference: str = "rbp"
    memory_budget: int = 2**28
    residuals_: Residuals = field(init=False)
    total_: float = field(init=False)
    starts_: Floats = field(init=False)
    selection_: str = field(init=False)
    path_: Any = field(init=False)
    _kept: FieldModel = field(init=False)  #: what is fixed before there are weights
    _margins: FittedMargins | None = field(init=False, default=None)
    _held: FittedField | None = field(init=False, default=None)  #: what answers questions; see :meth:`_field`
    _chosen: dict[str, Any] | None = field(init=False, default=None)  #: what ``prior_variance="auto"`` stands for
    _selected: Floats | None = field(init=False, default=None)  #: variances of edges that their selection found
    _unknown: bool = field(init=False, default=False)  #: whether states of the last samples were missing
    _edge_variances: Floats | None = field(init=False, default=None)  #: of the prior with which edges were selected
    _samples: Samples | None = field(init=False, default=None)  #: those of the last fit; in no file and no pickle
    _sure: tuple[Floats, Covariance] | None = field(init=False, default=None)  #: weights, and how sure they are

    # --- learning ---

    def fit(
        self,
        X: Any,
        y: object = None,
        sample_weight: ArrayLike | None = None,
        *,
        callback: Callback | None = None,
    ) -> Self:
        """Learn the weights.

        Parameters
        ----------
        X : (n_samples, n_variables) ints, or data frame
            States from 0; booleans are 0 and 1. -1, NaN and None are missing cells. Columns of a pandas or polars frame
            hold strings, booleans, whole numbers or categories; the field then returns frames with the same values
            (:mod:`bactrian.frames`).
        y
            Ignored.
        sample_weight : (n_samples,), optional
            Weight of each sample's term of the log-likelihood.
        callback : callable, optional
            Sees a :class:`Progress` after every iteration; returning True stops learning.
        """
        return self._fit(partial(self.encode, X, y, sample_weight), callback)

    def encode(self, X: Any, y: object = None, sample_weight: ArrayLike | None = None) -> Samples:
        """The data that :meth:`fit` learns from; :meth:`adopt` keeps what is learned from them.

        Fixes the model, as that of the last time with ``warm_start``; else the estimator is not fitted until then.
        """
        self.check_params()
        again = self.warm_start and hasattr(self, "_kept")
        variables, states = self._read(X, again)
        if self.hidden:
            variables = variables.with_hidden(self.hidden)
            states = np.hstack([states, np.full((len(states), variables.n_hidden), -1)])
        weights = nonnegative_weights(sample_weight, "sample_weight", len(states))
        rows = HeldOutRows(states, weights, self.n_threads, self.max_seconds)
        joined = self._joined(variables, rows, again)
        check_tables_fit(self.tables, variables, joined.edges)
        tables = PairwiseTables.of(self.tables, variables, joined.edges, self.node_factors)
        if not again:
            self._forget()
        elif not tables.is_like(self._kept.tables):
            raise ValueError(
                "warm_start: edges, tables, node_factors or the numbers of states differ from those of the last fit; "
                "give cardinalities= where later data may hold further states"
            )
        self._selected = joined.variances
        self._keep(FieldModel(tables.model, variables, tables, kind_of_frame(X) if is_frame(X) else None))
        self._samples = samples = Samples(tables.model, states, sample_weight)
        self._unknown, self.total_ = bool((states < 0).any()), float(samples.sample_weight.sum())
        if joined.why:
            self.selection_ = joined.why
        if joined.path is not None:
            self.path_ = make_frame(self._kept.frames or "table", joined.path)
        if isinstance(self.prior_variance, str) and self.prior_variance == "auto":
            self._chosen = joined.prior or rows.chosen(tables, joined.variances)[0]
        return samples

    def _joined(self, variables: Variables, rows: HeldOutRows, again: bool) -> Joined:
        """The pairs that are joined; with ``warm_start`` those of the last fit where they were found in rows."""
        if not is_by_rows(self.edges):
            return Joined(checked_edges(variables.edges(self.edges), self.shape, len(variables.names)))
        if again:
            return Joined(self._edges, getattr(self, "selection_", ""), None, self._selected)
        Domain(np.array(variables.cardinalities), []).checked_states(rows.states, "X", unknown=True)
        check_tables_fit(self.tables, variables, checked_edges("complete", None, len(variables.names)))
        return joined(self.edges, self.criterion, self.tables, variables, rows, most_work=_MOST_WORK, seed=self.seed)

    def fit_marginals(
        self,
        margins: Sequence[Marginal],
        cardinalities: Mapping[str, Any] | None = None,
        *,
        total: float | None = None,
        base: Any = None,
        impossible: Sequence[Mapping[str, Any]] = (),
        entropy_weight: float | None = None,
        rescale: bool = False,
        callback: Callback | None = None,
    ) -> Self:
        """Learn the distribution of maximum entropy from tables of counts, without rows.

        Exact margins that agree are met to a thousandth of ``tolerance``, as by iterative proportional fitting. If
        margins contradict each other, a :class:`ContradictionWarning` and ``residuals_`` name them, and the nearest
        distribution, by least squares, is learned. Noisy margins are weighted by their variances. The clusters of the
        model are the margins; ``edges``, ``tables``, ``prior_variance`` and ``l1`` have no effect.
        :mod:`bactrian.margins.problem` has the formulas.

        Parameters
        ----------
        margins : list of Marginal
            In any order; they may overlap.
        cardinalities : mapping, optional
            Number of states, or list of their labels, of each variable by its name; by default as many as the margins
            have.
        total : float, optional
            Number of rows; by default the sum of exact margins, or the best estimate from noisy ones.
        base : Marginal, list of them, or array, optional
            The seed table of proportional fitting: the distribution is as close to it (to the product, of several) as
            the margins allow. Cells of 0 stay 0. An array has one axis per variable.
        impossible : list of mappings
            Combinations of states that are ruled out, such as ``{"age": "0-15", "married": "yes"}``.
        entropy_weight : float, optional
            Weight of the entropy against noise in a single fit: 1 is the likelihood's scale, which over-smooths; 0.01
            is close to least squares. By default the weight depends on the noise, and sixteen fits (eight on a region
            graph) follow each other, each with the last one as its base: they fit counts above the noise and leave
            those below it to the entropy. This is nearer to the truth, both on the given sets and on others.
        rescale : bool
            Scale exact margins to ``total``, or to the total of the first of them, instead of refusing other totals.
        callback : callable, optional
            Sees a :class:`Progress` after every iteration; returning True stops learning.

        Examples
        --------
        >>> import bactrian as bt
        >>> margins = [bt.Marginal("sex", [40, 60]), bt.Marginal(("sex", "smoker"), [[30, 10], [30, 30]])]
        >>> field = bt.MarkovRandomField(method="auto").fit_marginals(margins)
        >>> field.marginal(("smoker", "sex")).round(3)
        array([[0.3, 0.3],
               [0.1, 0.3]])
        >>> by_name = bt.Marginal("sex", {"f": 40, "m": 60})  # states may have labels
        >>> round(bt.MarkovRandomField().fit_marginals([by_name]).probability({"sex": "m"}), 6)
        0.6
        """
        self.check_params()
        check_entropy_weight(entropy_weight)
        checked = check_margins(margins, cardinalities, total, base, impossible, rescale=rescale)
        options = FitOptions(
            self.tolerance, self.max_iterations, self.max_seconds, self.n_threads, self.seed, callback=callback
        )
        found = fit_margins(checked, self.method, entropy_weight, self.memory_budget, options)
        return self._adopt_margins(checked.variables, found)

    def fit_zones(
        self,
        zones: Sequence[Sequence[Marginal]],
        cardinalities: Mapping[str, Any] | None = None,
        *,
        base: Any = None,
        impossible: Sequence[Mapping[str, Any]] = (),
        entropy_weight: float | None = None,
    ) -> Zones:
        """Fit a field to each of many zones, whose margins are over the same variables.

        The junction tree is planned once, and zones are fitted in parallel on ``n_threads`` threads. Each is fitted as
        by :meth:`fit_marginals`, to its own total; the field itself does not change.

        Parameters
        ----------
        zones : list of lists of Marginal
            One list per zone, over the same names in the same order.
        cardinalities, base, impossible, entropy_weight
            See :meth:`fit_marginals`; they are the same for all zones.

        Returns
        -------
        Zones
            A sequence of fitted fields, built on access.
        """
        self.check_params()
        check_entropy_weight(entropy_weight)
        if self.method not in ("auto", "exact"):
            raise ArgumentError("method", f"must be 'auto' or 'exact' for zones, found {self.method!r}")
        checked = check_zones(zones, cardinalities, base, impossible)
        options = FitOptions(self.tolerance, self.max_iterations, self.max_seconds, 1, self.seed)
        found = fit_all_zones(checked, entropy_weight, self.memory_budget, options, self.n_threads)
        template = self.__class__(**{**self.get_params(deep=False), "method": "exact"})
        return Zones(checked, found, lambda z: clone(template)._adopt_margins(checked[z].variables, found[z]))

    def _adopt_margins(self, variables: Variables, found: MarginFit) -> Self:
        """Take up what was learned from margins."""
        fitted = FittedMargins(found.problem, found.problem.split(found.cells))
        self._keep_margins(variables, fitted, found.model)
        self.residuals_ = found.residuals
        self.solution_, self.weights_, self.method_ = found.solution, found.solution.weights.copy(), found.method
        self.prior_variance_ = None
        self.__dict__.pop("prior_scores_", None)
        return self

    def _keep_margins(self, variables: Variables, margins: FittedMargins, model: LogLinearModel) -> None:
        self._keep(FieldModel(model, variables, None))
        self._margins, self.total_ = margins, margins.problem.total

    def _keep(self, kept: FieldModel) -> None:
        """Take up a model; its weights come apart from it."""
        self._kept, self._margins, self._held, self._samples, self._sure = kept, None, None, None, None
        for name in ("feature_names_in_", "residuals_", "starts_", "selection_", "path_"):  # of an earlier fit
            self.__dict__.pop(name, None)
        if kept.variables.seen.are_named:
            self.feature_names_in_ = np.array(kept.variables.seen.names, dtype=object)

    def _n_weights(self) -> int:
        return self.model_.n_weights

    def _options(self) -> dict[str, Any]:
        """See :class:`LearnedEstimator`; what ``"auto"`` stands for is known as soon as the model is."""
        options = super()._options()
        if options["method"] == "auto":
            most = _MOST_WORK * (_SELECTED if hasattr(self, "path_") else 1.0)
            fits = hasattr(self, "_kept") and self._kept.exact_work(self.memory_budget) <= most
            options["method"] = "exact" if fits else "cccp" if self._unknown else "pseudolikelihood"
        return options

    @property
    def _learner(self) -> Any:
        if self.device is not None and self.method != "auto":
            return self._learned_on_device
        conditional = self.method == "auto" and self._options()["method"] == "pseudolikelihood" and not self.l1
        if conditional and (self.device is None or self.tables_ == "full"):
            return partial(learn_conditionals, self._pairwise, device=self.device)
        n = self.n_starts or (_STARTS if self.hidden else 1)
        return partial(self._best_of_starts, n) if n > 1 and self._unknown else super()._learner

    def _learned_on_device(self, data: Samples, **options: Any) -> Solution:
        if self._unknown:
            raise ArgumentError("device", "does not support unknown states; learn on the CPU (device=None)")
        from bactrian.engines.torch.learn import learn_field

        given = {name: value for name, value in options.items() if name not in ("l1", "n_threads", "seed")}
        return learn_field(
            data.X, data.sample_weight, self.cardinalities_, self._edges, self.tables_,
            node_factors=self.node_factors, device=self.device, **given,
        )  # fmt: skip

    def _best_of_starts(self, n: int, data: Samples, start: Floats | None = None, **options: Any) -> Solution:
        if start is not None:
            return super()._learner(data, start=start, **options)
        best, self.starts_ = best_of_starts(n, super()._learner, not self.hidden, data, **options)
        return best

    def adopt(self, solution: Solution) -> Self:
        """See :class:`LearnedEstimator`."""
        super().adopt(solution)
        self.method_ = self._options()["method"]
        return self

    def _judge(self, data: Samples) -> None:
        """Warn where the field gives the samples a smaller likelihood than independent variables do."""
        rows, weights = data.X, data.sample_weight
        if self.method_ == "exact" or self._unknown or self.inference == "gibbs" or not weights.any():
            return
        with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
            joint = float(np.average(self._field.log_probabilities(rows), weights=weights))
        apart = 0.0
        for column in rows.T:
            counts = np.bincount(column, weights=weights)
            seen = counts[counts > 0.0] / weights.sum()
            apart += float(seen @ np.log(seen))
        least, by = apart - _WORTH_A_WORD * rows.shape[1], self.inference_method_
        if joint < least and not self._field.partition_converged:  # by that of annealing, which costs more
            found = self._field.mean_log_probability(rows, weights, _JUDGED)
            joint, by = found if found.interval is None else found.interval[1], found.how.removeprefix("by ")
        if joint < least:
            others = " or ".join(repr(name) for name in ("pseudolikelihood", "trw") if name != self.method_)
            warn(
                f"{self.solution_.method}: the field gives the training samples a mean log-likelihood of {joint:.2f} "
                f"(log Z by {by}), less than the {apart:.2f} of independent variables: use method='exact' "
                f"where a junction tree fits, {others}, or another prior",
                AttainmentWarning,
            )

    def _read(self, X: Any, again: bool) -> tuple[Variables, Ints]:
        """The variables of a table, and its rows in numbers of states."""
        if not is_frame(X):
            states, names = checked_table(X), column_names(X)
            _check_not_empty(states.shape)
            if self.cardinalities is None and not again:
                check_known_states(X, states, together=self.tables == "shared")
            return Variables.numbered(self._numbers_of_states(states, again, names), names), states
        columns = columns_of(X)
        _check_not_empty((len(columns[0].cells) if columns else 0, len(columns)))
        variables = Variables.of_columns(columns, self.cardinalities, alike=self.tables in ("shared", "potts"))
        if again and self._kept.frames is not None and variables.names == self._kept.variables.seen.names:
            variables = self._kept.variables.seen
        return variables, variables.codes(columns)

    def _numbers_of_states(self, states: Ints, again: bool, names: Any) -> Ints:
        n = states.shape[1]
        if isinstance(self.cardinalities, Mapping):
            raise ArgumentError("cardinalities", "maps names of columns, so X must be a data frame")
        if self.cardinalities is not None:
            return checked_cardinalities(self.cardinalities, n)
        check_seen_states(states, names)
        seen = seen_cardinalities(states)
        if self.tables == "shared":
            seen = np.full(n, seen.max())
        if again and self.cardinalities_.size == n:
            seen = np.maximum(seen, self.cardinalities_)
        return seen

    def _blocks(self) -> list[Block]:
        return [] if self._kept.tables is None else self._kept.tables.blocks

    def _folds(self, data: Samples) -> list[Fold]:
        """Folds over samples; the loss is that of every state given its neighbours, which needs no log Z."""
        tables = self._kept.tables
        assert tables is not None
        n, scored = data.X.shape[0], tables.known_around(data.X)
        if self.hidden or not scored.any():
            which = "some are hidden" if self.hidden else "there are none"
            raise ArgumentError(
                "prior_variance", f"= 'cv' scores states whose neighbours are known, and {which}; give a number"
            )
        if n < 2:
            raise ValueError("prior_variance='cv' needs at least two samples, found 1. Give a number")
        fold_of = np.random.default_rng(self.seed).permutation(n) % N_FOLDS

        def fold(out: Bools) -> Fold:
            rows, weights = data.X[out], data.sample_weight[out]
            train = Samples(data.model, data.X[~out], data.sample_weight[~out])
            n_scored = int(scored[out].sum())
            return Fold(train, lambda: float(weights @ tables.conditional_losses(rows, self.weights_)), n_scored)

        return [fold(fold_of == f) for f in range(min(N_FOLDS, n))]

    @property
    def _auto_prior(self) -> Any:
        if self._chosen is None or self._options()["method"] == "pseudolikelihood":
            return self._chosen
        edges = self._chosen["edges"]  # a likelihood sees one once, a pseudo-likelihood from both of its ends
        return {**self._chosen, "edges": [2.0 * v for v in edges] if isinstance(edges, list) else edges}

    def check_params(self) -> None:
        """Check the parameters, before looking at any data."""
        super().check_params()
        self._check_device()
        check_choice("tables", self.tables, TABLES)
        check_choice("node_factors", self.node_factors, FIELD_NODE_FACTORS)
        check_choice("inference", self.inference, ("matched", *OF_WEIGHTS))
        check_number("memory_budget", self.memory_budget, least=0, whole=True)
        if isinstance(self.cardinalities, Mapping):
            Variables.of(self.cardinalities)
        elif self.cardinalities is not None:
            checked_cardinalities(self.cardinalities, np.size(self.cardinalities))
        check_number("n_starts", self.n_starts, least=1, whole=True, optional=True)
        if self.hidden is not None:
            Variables.of(self.hidden, "hidden")
            if not all(isinstance(name, str) for name in self.hidden):
                raise ArgumentError("hidden", f"must have names that are strings, found {list(self.hidden)}")
            if self.tables != "full":
                raise ArgumentError("hidden", f"needs tables='full', found {self.tables!r}")
        if self.shape is not None and (np.shape(self.shape) != (2,) or np.asarray(self.shape).dtype.kind not in "iu"):
            raise ArgumentError("shape", f"must be (height, width), found {self.shape!r}")
        check_edges(self.edges, self.criterion)

    def log_potentials(self) -> tuple[list[Floats], list[Floats]]:
        """Tables of log-potentials: one per variable, shape (states,), and one per edge of ``edges_``."""
        check_is_fitted(self, "weights_")
        return self._pairwise.split(self.weights_)

    @property
    def _pairwise(self) -> PairwiseTables:
        if self._kept.tables is None:
            raise ValueError("a field learned from margins has no tables of edges; see model_ and weights_")
        return self._kept.tables

    @property
    def edge_strengths_(self) -> Floats:
        """Norm of each edge's table, without what its variables have on their own."""
        return interactions(self.log_potentials()[1])[0]

    def plot(self, ax: Any = None) -> Any:
        """Draw the network with matplotlib, on ``ax`` or a new figure, and return the axes.

        Joined variables are near each other. Lines are as thick as ``edge_strengths_``, solid where larger states (the
        later ones) go with larger ones, dashed where with smaller ones.
        """
        return draw(ax, self.variable_names, self._edges, *interactions(self.log_potentials()[1]))

    # --- what a fitted field answers ---

    @property
    def _field(self) -> FittedField:
        """What answers questions, with the weights and parameters as they are now."""
        check_is_fitted(self, "weights_")
        self.check_params()
        options = AnswerOptions(self.inference, self.memory_budget, self.n_threads, self.seed)
        held = self._held
        if held is None or held.options != options or not np.array_equal(held.weights, self.weights_):
            held = self._held = FittedField(self._kept, self.weights_.copy(), self.method_, self._margins, options)
        return held

    @property
    def inference_method_(self) -> str:
        """How marginals and log Z are computed: ``"exact"`` if that fits the memory budget, else ``inference``.

        The learner's own method if ``inference="matched"``.
        """
        return self._field.inference_method

    @property
    def log_partition_(self) -> float:
        """log Z, exact or approximate according to ``inference_method_``; computed on first access."""
        return self._field.log_partition

    @property
    def model_(self) -> LogLinearModel:
        """The model, for use with :func:`bactrian.infer` and others.

        A cluster for each variable (with ``node_factors="edges"`` for each without edges), then one for each edge.
        """
        return self._kept.model

    @property
    def tables_(self) -> str:
        """How the tables are tied."""
        return MARGINS if self._kept.tables is None else self._kept.tables.kind

    @property
    def cardinalities_(self) -> Ints:
        """The numbers of states."""
        return self._kept.model.graph.cardinalities.copy()

    @property
    def n_features_in_(self) -> int:
        """Number of variables, without hidden ones."""
        return len(self._kept.variables.seen.names)

    @property
    def _edges(self) -> Ints:
        """Pairs of variables by number."""
        return np.zeros((0, 2), dtype=np.int64) if self._kept.tables is None else self._kept.tables.edges

    @property
    def edges_(self) -> Any:
        """Pairs of variables that are joined, by name where variables have names, else by number."""
        named = self._kept.variables
        return np.array(named.names, dtype=object)[self._edges] if named.are_named else self._edges

    @property
    def variable_names(self) -> tuple[Any, ...]:
        """Names of the variables, hidden ones last; numbers where columns had no names."""
        return self._kept.variables.names

    @property
    def state_labels(self) -> tuple[tuple[Any, ...] | None, ...]:
        """Labels of the states of each variable; None where there are none."""
        return self._kept.variables.labels

    @property
    def states(self) -> dict[Any, Sequence[Any]]:
        """What the states of each variable are called, by its name: labels, or numbers where there are none."""
        return dict(zip(self.variable_names, self._kept.variables.states, strict=True))

    score_samples = answered(FittedField.score_samples)
    score = answered(FittedField.score)
    sample = answered(FittedField.sample)
    impute = answered(FittedField.impute)
    marginal = answered(FittedField.marginal)
    marginals = answered(FittedField.marginals)
    conditional = answered(FittedField.conditional)
    probability = answered(FittedField.probability)
    predict_marginals = answered(FittedField.predict_marginals)
    predict = answered(FittedField.predict)

    # --- how sure, and how good ---

    @property
    def rows_(self) -> LearnedRows:
        """The rows that the field was learned from, and how; see :mod:`bactrian.estimators.uncertainty`."""
        check_is_fitted(self, "weights_")
        hidden = self._kept.variables.n_hidden > 0
        if self._samples is None or hidden:
            why = "some of its variables are hidden" if hidden else "it was learned from margins, or read from a file"
            raise ValueError(f"intervals and tests need the rows that the field was fitted to: {why}")
        if self.l1:
            raise ArgumentError("l1", f"= {self.l1} has no intervals; select edges, then fit with l1=0")
        names = ("tolerance", "max_iterations", "seed")
        return LearnedRows(
            self.model_,
            self._kept.variables,
            self._edges,
            self._samples,
            self.weights_,
            self.method_,
            self._precision,
            {name: getattr(self, name) for name in names},
            self.n_threads,
            self._kept.exact_work(self.memory_budget),
            lambda n: np.asarray(self.sample(n, seed=self.seed, frame=False)),
        )

    @property
    def _precision(self) -> Floats:
        """1 / variance of each weight."""
        variance = variances(self.prior_variance_, self._blocks())
        return np.broadcast_to(0.0 if variance is None else 1.0 / np.asarray(variance), self._n_weights())

    @property
    def _covariance(self) -> Covariance:
        check_is_fitted(self, "weights_")
        if self._sure is None or not np.array_equal(self._sure[0], self.weights_):
            self._sure = self.weights_.copy(), self.rows_.covariance
        return self._sure[1]

    @property
    def covariance_(self) -> Floats:
        """(n_weights, n_weights) covariance of the weights; of a combination c of them, the variance is c V c."""
        return self._covariance.weights

    @property
    def standard_errors_(self) -> Floats:
        """(n_weights,) standard errors of the weights, of the inverse Hessian or the sandwich; see :meth:`confint`."""
        return self._covariance.standard_errors

    def confint(
        self, event: Mapping[Any, Any] | None = None, given: Mapping[Any, Any] | None = None, *, level: float = 0.95
    ) -> Any:
        """Confidence intervals of the weights, (n_weights, 2); or of P(event | given), (low, high).

        Those of ``"exact"`` are from the inverse Hessian (of large junction trees, from drawn rows, to 0.3 %), those of
        ``"pseudolikelihood"`` and of CAMEL's learners from the sandwich, with the prior in the Hessian; that of a
        probability is by the delta method, in log odds (:mod:`bactrian.estimators.uncertainty` has the formulas).
        Weights that a full table has beyond its contrasts are held by the prior alone, and vary only as the contrasts
        do. Edges count as given: where they were selected on the same rows, intervals are too narrow. Files have
        intervals if they were asked for before :meth:`save`.

        Examples
        --------
        >>> import bactrian as bt
        >>> field = bt.MarkovRandomField(prior_variance=None).fit([[0], [1], [1], [1]] * 25)
        >>> low, high = field.confint({0: 1})
        >>> round(low, 3), round(high, 3)
        (0.656, 0.825)
        """
        if event is not None and not isinstance(event, Mapping):
            raise ArgumentTypeError("event", f"must map variables to states, found {event!r}; the level is level=")
        z = check_level(level)
        if event is None:
            return self.weights_[:, None] + z * np.array([-1.0, 1.0]) * self.standard_errors_[:, None]
        slope = self._field.log_slope(event, given, self._covariance.contrasts)
        return self._covariance.interval(self._field.probability(event, given), slope, level)

    def bootstrap(self, n: int = 1000, seed: int = 0) -> Bootstrap:
        """Refits to ``n`` samples of the rows, with their intervals and the stability of edges.

        They start from the field and run on ``n_threads`` threads; the result depends on ``seed`` alone.
        """
        rows, kept, options = self.rows_, self._kept, self._field.options
        return Bootstrap.of(rows, n, seed, lambda weights: FittedField(kept, weights, self.method_, None, options))

    def pseudo_score(self, X: Any, y: object = None, sample_weight: ArrayLike | None = None) -> float:
        """Mean pseudo-log-likelihood of the samples, sum_v log p(x_v | all others), which needs no log Z.

        A missing state and those next to it do not count.
        """
        samples = Samples(self.model_, self._field.states_of(X), sample_weight)
        losses = self._pairwise.conditional_losses(samples.X, self.weights_)
        return -float(np.average(losses, weights=samples.sample_weight))

    def summary(self, level: float = 0.95) -> Any:
        """A row for each edge, the strongest first: the two variables, its association with an interval, and z.

        The association of two variables of two states is the log odds ratio given all others, and where they have
        scores that of neighbouring states; of larger tables it is the root of the mean square of the centred table,
        which has no sign and no interval. ``p`` is that of Wald's test that the edge has no effect. Returns a frame of
        the kind that the field was fitted to, else of pandas.
        """
        found = edge_table(self._covariance, self.weights_, check_level(level), self.variable_names)
        return make_frame(self._kept.frames or "pandas", found)

    # --- files ---

    def __getstate__(self) -> dict[str, Any]:
        """See :class:`LearnedEstimator`; rows stay here, and what is known of the weights goes along."""
        return {**super().__getstate__(), "_samples": None, "_held": None}

    def _contents(self) -> tuple[dict[str, Any], Arrays]:
        named = self._kept.variables
        arrays: Arrays = {"edges": self._edges, "cardinalities": self.cardinalities_}
        attributes = {
            "tables": self.tables_,  # parameters may have changed since
            "node_factors": self.node_factors if self._kept.tables is None else self._kept.tables.node_factors,
            "feature_names": list(named.names) if named.are_named or named.n_hidden else None,
            "n_hidden": named.n_hidden,
            "total": getattr(self, "total_", None),
            "starts": list(getattr(self, "starts_", ())),
            "labels": [None if labels is None else list(labels) for labels in named.labels],
            "ordered": list(named.ordered),
            "frames": self._kept.frames,
        }
        if self._sure is not None and np.array_equal(self._sure[0], self.weights_):
            arrays["covariance"] = self._sure[1].theta
        of_margins, their_arrays = self._margins.contents() if self._margins is not None else ({}, {})
        return attributes | of_margins, arrays | their_arrays

    def _restore(self, attributes: dict[str, Any], arrays: Arrays) -> None:
        cardinalities = Domain(arrays["cardinalities"], []).cardinalities
        if cardinalities.size == 0:
            raise ValueError("it has no variables")
        tables, frames, n_weights = attributes["tables"], attributes.get("frames"), self.weights_.size
        if frames not in (None, *FRAMES):
            raise ValueError(f"it has frames of {frames!r}")
        variables = restored_variables(cardinalities, attributes)
        if tables == MARGINS:
            margins = FittedMargins.restored(cardinalities, n_weights, attributes["margins"], arrays)
            graph = margins.problem.graph(regions=self.method_ != "exact")
            self._keep_margins(variables, margins, margins.problem.model(graph))
        else:
            edges = checked_edges(arrays["edges"], None, cardinalities.size)
            pairwise = PairwiseTables.of(tables, variables, edges, attributes["node_factors"])
            if pairwise.n_weights != n_weights:  # before any table is made
                raise ValueError(f"it has {n_weights} weights, which do not fit its tables")
            self._keep(FieldModel(pairwise.model, variables, pairwise, frames))
            if "covariance" in arrays:
                contrasts = Contrasts.of(pairwise.model, edges)
                self._sure = self.weights_.copy(), Covariance.of(contrasts, arrays["covariance"], self._precision)
        if attributes.get("total") is not None:
            self.total_ = float(attributes["total"])
        if attributes.get("starts"):
            self.starts_ = np.array([float(objective) for objective in attributes["starts"]])


def _check_not_empty(shape: tuple[int, ...]) -> None:
    if 0 in shape:
        raise ValueError(f"X must have at least one sample and one variable, found shape {shape}")
