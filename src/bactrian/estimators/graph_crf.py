"""Conditional random fields over graphs of any shape, in the manner of scikit-learn."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

from sklearn.utils.validation import check_is_fitted

from bactrian.arrays import Arrays, Floats
from bactrian.engines.numba.threads import Deadline
from bactrian.errors import ArgumentError, check_choice, check_flag, check_number
from bactrian.estimators.graph_arrays import StackedGraphs, stack_graphs
from bactrian.estimators.graph_base import GraphEstimator, auto_prior
from bactrian.estimators.neighbours import compared, diffused_data, has_few_labels, varying_part
from bactrian.estimators.priors import variances
from bactrian.graphs.graph_data import GraphData
from bactrian.learners.diffusion import diffused, learn_diffused
from bactrian.learners.findings import Diagnosis
from bactrian.learners.learn import with_lines
from bactrian.solvers.solution import Solution

#: What is as by default where ``neighbours="auto"`` looks beyond edges.
_OF_THE_MODEL = (
    "method", "prior_variance", "l1", "tables", "node_factors", "inference", "inference_options", "class_weight",
)  # fmt: skip


@dataclass(kw_only=True, eq=False, repr=False)
class GraphCRF(GraphEstimator):
    """A conditional random field over graphs: every node has features and a label, every edge a table.

    log p(y | x) = sum_i w[y_i] . x_i + sum_(i,j) t_ij[y_i, y_j] - log Z(x). The table t is one for all edges, or, where
    edges have features z, a sum of tables weighted by them, t_ij = sum_k z_ijk T_k.

    X is a list of ``(node_features, edges)`` or ``(node_features, edges, edge_features)``: node features (n_nodes, d),
    dense or sparse; edges (n_edges, 2), node numbers from 0; edge features (n_edges, e), dense or sparse. Graphs may
    differ in size and may have no edges. y is a list of arrays of n_nodes labels: integers, booleans or strings.

    Parameters
    ----------
    tables : {"pooled", "symmetric", "full", "diagonal", "potts"}
        How the edges' table is tied. ``"potts"`` has a single weight for agreement, ``"diagonal"`` one per label,
        ``"symmetric"`` one per pair of labels. ``"pooled"`` is the sum of the first and the last: an attraction that
        all labels share, and deviations from it, which have a tighter prior; with few edges it is as safe as Potts, and
        with many as rich as symmetric tables. ``"full"`` tables are asymmetric: rows belong to the first node of an
        edge as given, so direction matters.
    method : str or learner
        Any learner of :func:`bactrian.learn`. The default, ``Camel(entropy="convex")``, has a unique optimum and is
        about as fast as CAMEL(0); :doc:`/choosing-a-learner` compares them.
    prior_variance : "auto", float, mapping, "cv" or None
        Variance of the Gaussian prior on weights. ``"auto"`` is 30 divided by the mean squared norm of the features of
        a node, and 10 divided by that of an edge, or 10 where edges have none: the unit of features does not matter.
        Where labels are unknown, both are multiplied by the square root of the share that is known. A mapping has one
        for each block: ``{"nodes": 10.0, "edges": 0.1}``, None for no prior, 10 for blocks left out; deviations of
        pooled tables are the block ``"deviations"``, by default with a tenth of the variance of the edges. ``"cv"``
        chooses it by cross-validation over graphs, or over the nodes of a single graph, each predicted with the labels
        of the others known.
    l1, tolerance, max_iterations, max_seconds, n_threads
        See :func:`bactrian.learn`. Learning stops when the mean log-loss of a label, with the prior, is known to be
        within 1,000 times the square of ``tolerance`` of its minimum, or the moment gap is within ``tolerance``; with
        ``"cccp"``, when beliefs have settled.
    node_factors : {"clusters", "edges"}
        Whether node scores are clusters of their own (the default), whose entropy counts, or are absorbed into the
        incident edges (a node without edges keeps its own). Piecewise training and CAMEL(0) depend on it, and with
        piecewise training absorbing is usually better; CCCP and the likelihoods do not.
    fit_intercept : bool
        Append a feature that is 1 at every node; it is regularised like the others.
    edge_intercept : bool
        If edges have features, append one that is 1 at every edge: a table that all edges share.
    neighbours : "auto", "edges" or float
        How neighbours count. ``"edges"``: by the tables of edges alone. A number between 0 and 1: features of nodes are
        diffused over the edges first, and the number is the share of a node's own features at every step; learning
        alternates between weights and smoothed labels, and equal labels of neighbours score 1 / mean degree
        (``bactrian.learners.diffusion``; ``method`` then has no effect, and learning stops when a round changes the
        objective by less than the share ``tolerance``). ``"auto"`` is ``"edges"``, except for a single graph without
        edge features whose labels are mostly unknown, if the parameters of the model have their defaults: there it
        compares ``"edges"``, 0.1 and 0.3 on held-out labels, in three parts, and takes the likeliest. ``bactrian
        train`` always uses ``"edges"``.
    labels : sequence, optional
        All classes, if y may lack some of them.
    class_weight : "balanced", dict or sequence, optional
        Weight of each class; a graph is weighted by the mean weight of its nodes' labels, times ``sample_weight``.
    inference : str
        ``"matched"`` uses the learner's entropy (:func:`bactrian.learners.learn.matched_inference`), which suits the
        learned weights; or any method of :func:`bactrian.infer`. Weights of CAMEL(0), convex and tree-reweighted
        learners are too strong for belief propagation: on noisy grids matched marginals had half its log-loss or less,
        at an accuracy from 0.02 below (CAMEL(0)) to 0.05 above (convex).
    inference_options : dict, optional
        Options of :func:`bactrian.infer`, such as ``tolerance`` (by default 1e-3 for marginals and 1e-2 for labels,
        which leaves fewer than one label in a thousand to change), ``max_iterations`` or ``damping``.
    seed : int
        Seed of learners and inference methods that draw random numbers.
    warm_start : bool
        Start from the weights of the last fit, or of the loaded file.
    verbose : int
        1 prints lines about the progress of learning; see :class:`bactrian.ProgressLines`.

    Attributes
    ----------
    weights_ : (n_weights,)
        Learned weights; :meth:`weight_tables` gives them as tables.
    classes_ : (n_classes,)
        The labels, sorted.
    solution_ : Solution
        Status and history of learning.
    prior_variance_, prior_scores_
        The prior of learning and, if it was chosen, all candidates: pairs of a variance and the mean loss, - log p, of
        a held-out label.
    restart_ : float or None
        The number by which features are diffused; None with ``"edges"``.
    neighbour_scores_ : list
        The candidates of ``neighbours="auto"``: pairs of a restart, None for ``"edges"``, and the mean loss, - log p,
        of a held-out label.
    n_features_in_, n_edge_features_ : int
        Numbers of features of nodes and of edges (None for none), intercepts not counted.
    inference_method_ : tuple
        How marginals are computed: method and options.

    Examples
    --------
    >>> import bactrian as bt
    >>> X = [([[0.2], [0.9], [0.7]], [(0, 1), (1, 2)]), ([[-0.5], [-0.1]], [(0, 1)]), ([[0.1]], [])]
    >>> y = [["sky", "sky", "sky"], ["sea", "sea"], ["sky"]]
    >>> crf = bt.GraphCRF(method="cccp").fit(X, y)
    >>> crf.predict([([[-0.3], [0.1]], [(0, 1)])])
    [array(['sea', 'sky'], dtype='<U3')]
    >>> crf.predict_marginals([([[-0.3], [0.1]], [(0, 1)])], known=[["", "sky"]])[0].round(1)
    array([[0.6, 0.4],
           [0. , 1. ]])
    """

    _newer_params: ClassVar = ("neighbours",)

    edge_intercept: bool = True
    neighbours: Any = "auto"
    restart_: float | None = field(init=False)
    neighbour_scores_: list[tuple[float | None, float]] = field(init=False)

    def check_params(self) -> None:
        """Refuse parameters that make no sense, before any data are looked at."""
        super().check_params()
        check_flag("edge_intercept", self.edge_intercept)
        if isinstance(self.neighbours, str):
            check_choice("neighbours", self.neighbours, ("auto", "edges"))
        else:
            check_number("neighbours", self.neighbours, positive=True, below=1)
            if self.l1:
                raise ArgumentError("l1", f"must be 0 where neighbours is a number, found {self.l1}")

    def _stack(self, X: Any, fitted: bool) -> StackedGraphs:
        intercepts = self.intercepts_ if fitted else (bool(self.fit_intercept), bool(self.edge_intercept))
        return stack_graphs(
            X,
            n_features=self.n_features_in_ if fitted else None,
            n_edge_features=self.n_edge_features_ if fitted else None,
            fitted=fitted,
            intercept=intercepts[0],
            edge_intercept=intercepts[1],
        )

    def _tyings(self) -> tuple[str, ...]:
        return (self.tables,)

    # --- neighbours ---

    @property
    def _learner(self) -> Any:
        return self._learned_by_neighbours

    def _learned_by_neighbours(self, data: GraphData, start: Floats | None = None, **options: Any) -> Solution:
        deadline = Deadline(options["max_seconds"])
        restart = self.restart_ = self._chosen_restart(data, start, options)
        options["max_seconds"] = deadline.left
        if restart is None:
            return super()._learner(data, start=start, **options)
        if self.n_edge_features_ is not None or (data.weights != 1.0).any():
            raise ArgumentError("neighbours", "must be 'auto' or 'edges' if edges have features or labels have weights")
        self.mean_squares_ = self._diffused_squares(diffused_data(data, restart))
        lines = with_lines(options["callback"], self.tolerance, options["verbose"])
        variance = self.learning_options()["prior_variance"]
        return learn_diffused(
            data, restart, variance, tolerance=self.tolerance, callback=lines, max_seconds=options["max_seconds"]
        )

    def _diffused_squares(self, data: GraphData) -> dict[str, float]:
        """``mean_squares_`` of diffused features, of distances from their mean, which is most of a diffused row."""
        _, squares = self._scale(data)
        return {**squares, "nodes": squares["nodes"] * varying_part(data, self.n_features_in_)}

    def _chosen_restart(self, data: GraphData, start: Floats | None, options: dict[str, Any]) -> float | None:
        """The restart to learn with, None for edges alone; a warm start keeps that of the last fit."""
        if not isinstance(self.neighbours, str):
            return float(self.neighbours)
        if start is not None:
            return getattr(self, "restart_", None)
        other = GraphCRF(**{name: value for name, value in self.get_params().items() if name not in _OF_THE_MODEL})
        is_default = all(getattr(self, name) == getattr(other, name) for name in _OF_THE_MODEL)
        plain = self.n_edge_features_ is None and bool((data.weights == 1.0).all())
        if not (self.neighbours == "auto" and is_default and plain and has_few_labels(data)):
            return None
        rest = {name: value for name, value in options.items() if name not in ("callback", "verbose")}
        self.neighbour_scores_ = compared(
            self, data, rest, lambda part: variances(auto_prior(self._diffused_squares(part)), self._blocks())
        )
        return min(self.neighbour_scores_, key=lambda pair: pair[1])[0]

    def _forget(self) -> None:
        super()._forget()
        for name in ("restart_", "neighbour_scores_"):
            self.__dict__.pop(name, None)

    def adopt(self, solution: Solution) -> Self:
        """See :meth:`LearnedEstimator.adopt`; only ``fit`` learns with diffused features."""
        self.restart_ = getattr(self, "restart_", None)
        if not isinstance(self.neighbours, str) and self.restart_ is None:
            raise ArgumentError("neighbours", f"must be 'auto' or 'edges' outside fit, found {self.neighbours}")
        return super().adopt(solution)

    def _judge(self, data: GraphData) -> None:
        if self.restart_ is None:  # an agreement that was not learned is not judged
            super()._judge(data)

    def diagnose(self, X: Any, y: Any, predict: Any = None, known: Any = None, *, restarts: int = 4) -> Diagnosis:
        """See :meth:`GraphEstimator.diagnose`; models of diffused features, which do not match moments, are refused."""
        check_is_fitted(self, "weights_")
        if self.restart_ is not None:
            raise ValueError(
                "diagnose does not support models of diffused features, which do not match moments: fit with "
                "neighbours='edges'"
            )
        return super().diagnose(X, y, predict, known, restarts=restarts)

    @property
    def _matched(self) -> tuple[str, dict[str, Any]]:
        return super()._matched if self.restart_ is None else ("mean-field", {})

    def _seen(self, X: Any) -> StackedGraphs:
        stacked = super()._seen(X)
        if self.restart_ is None:
            return stacked
        return replace(stacked, inputs=diffused(stacked.inputs, stacked.edges, self.restart_))

    def _contents(self) -> tuple[dict[str, Any], Arrays]:
        attributes, arrays = super()._contents()
        scores = getattr(self, "neighbour_scores_", None)
        return {**attributes, "restart": self.restart_, "neighbour_scores": scores}, arrays

    def _restore(self, attributes: dict[str, Any], arrays: Arrays) -> None:
        super()._restore(attributes, arrays)
        self.restart_ = attributes.get("restart")  # older files have none
        if self.restart_ is not None:
            check_number("its restart", self.restart_, positive=True, below=1)
        if attributes.get("neighbour_scores") is not None:
            self.neighbour_scores_ = [(restart, float(loss)) for restart, loss in attributes["neighbour_scores"]]
