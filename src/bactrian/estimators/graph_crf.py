"""Conditional random fields over graphs of any shape, in the manner of scikit-learn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from bactrian.arrays import Arrays, Floats, real_numbers
from bactrian.errors import ArgumentError, check_choice, check_flag, check_number
from bactrian.estimators.base import LearnedEstimator
from bactrian.estimators.graph_inputs import GraphReader, node_weights
from bactrian.estimators.held_out import checked_codes, log_loss
from bactrian.estimators.labelled_graphs import (
    BLOCKS,
    CONVEX,
    GraphCodec,
    check_graph_params,
    encode_graphs,
    fitted_graphs,
    judge_graphs,
    labels_of,
    learned_part,
)
from bactrian.estimators.labelled_nodes import stopping
from bactrian.estimators.labels import check_kind, codes_of, known_labels
from bactrian.estimators.neighbours import compared, diffused_data, diffused_prior, may_diffuse
from bactrian.estimators.priors import Fold, graph_folds, variances
from bactrian.graphs.graph_data import GraphData
from bactrian.inference.decode import decode
from bactrian.learners.diagnostics import diagnose
from bactrian.learners.diffusion import learn_diffused
from bactrian.learners.findings import Diagnosis
from bactrian.learners.learn import matched_inference, with_lines
from bactrian.parallel.threads import Deadline
from bactrian.solvers.solution import Callback, Solution, tell

#: What is as by default where ``neighbours="auto"`` looks beyond edges.
_OF_THE_MODEL = (
    "method", "prior_variance", "l1", "tables", "node_factors", "inference", "inference_options", "class_weight",
)  # fmt: skip


@dataclass(kw_only=True, eq=False, repr=False)
class GraphCRF(LearnedEstimator):
    """A conditional random field over graphs: every node has features and a label, every edge a table.

    log p(y | x) = sum_i w[y_i] . x_i + sum_(i,j) t_ij[y_i, y_j] - log Z(x). The table t is one for all edges, or, where
    edges have features z, a sum of tables weighted by them, t_ij = sum_k z_ijk T_k.

    X is a list of ``(node_features, edges)`` or ``(node_features, edges, edge_features)``: node features (n_nodes, d),
    dense or sparse, or None; edges (n_edges, 2), node numbers from 0; edge features (n_edges, e), dense or sparse.
    Graphs may differ in size and may have no edges. y is a list of arrays of n_nodes labels: integers, booleans or
    strings.

    Edges may also be a networkx graph, a square SciPy matrix, an ``edge_index`` (2, n_edges) or triples with a weight,
    and a whole graph may be one of these, or a ``Data`` of PyTorch Geometric. Node features of networkx are the
    attribute ``"x"``; weights of edges become a feature. Nodes may have names: those of a networkx graph, of a dict or
    of a frame of features; y is then in their order, or a dict by name (:mod:`bactrian.estimators.graph_inputs`).

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
        Variance of the Gaussian prior on weights. ``"auto"`` chooses one for each block by the log loss of held-out
        labels, given their features and neighbours, before learning begins; the unit of features does not matter
        (:doc:`/priors-and-tables`). A mapping has one for each block: ``{"nodes": 10.0, "edges": 0.1}``, None for no
        prior, 10 for blocks left out; deviations of pooled tables are the block ``"deviations"``, by default with a
        tenth of the variance of the edges, and the ``"intercept"`` has by default that of the nodes. ``"cv"`` chooses
        it by cross-validation of whole fits over graphs, or over the nodes of a single graph, each predicted with the
        labels of the others known.
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
        compares ``"edges"``, 0.1 and 0.3 by held-out labels, and takes the likeliest.
        ``bactrian train`` always uses ``"edges"``.
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
    device : str, optional
        Where learning and marginals run with PyTorch, such as ``"cuda"`` (:doc:`/gpu`); by default on the CPU without.

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
        The candidates that ``neighbours="auto"`` compared, empty where it did not: pairs of a restart, None for
        ``"edges"``, and the mean loss, - log p, of a held-out label.
    n_features_in_, n_edge_features_ : int
        Numbers of features of nodes and of edges (None for none), intercepts not counted.
    inference_method_ : tuple
        How marginals are computed: method and options.

    Examples
    --------
    >>> import bactrian as bt
    >>> X = [([[0.2], [0.9], [0.7]], [(0, 1), (1, 2)]), ([[-0.5], [-0.1]], [(0, 1)]), ([[0.1]], [])]
    >>> y = [["sky", "sky", "sky"], ["sea", "sea"], ["sky"]]
    >>> crf = bt.GraphCRF(method="cccp", prior_variance=100.0).fit(X, y)
    >>> crf.predict([([[-0.3], [0.1]], [(0, 1)])])
    [array(['sea', 'sky'], dtype='<U3')]
    >>> crf.predict_marginals([([[-0.3], [0.1]], [(0, 1)])], known=[["", "sky"]])[0].round(1)
    array([[0.1, 0.9],
           [0. , 1. ]])
    """

    _block_names: ClassVar = BLOCKS
    _tables: ClassVar = ("tables",)
    _newer_params: ClassVar = ("neighbours",)

    method: Any = CONVEX
    tolerance: float = 1e-3
    tables: str = "pooled"
    labels: Any = None
    class_weight: Any = None
    node_factors: str = "clusters"
    fit_intercept: bool = True
    edge_intercept: bool = True
    neighbours: Any = "auto"
    inference: str = "matched"
    inference_options: Mapping[str, Any] | None = None
    device: str | None = None
    n_edge_features_: int | None = field(init=False)
    restart_: float | None = field(init=False)
    neighbour_scores_: list[tuple[float | None, float]] = field(init=False)

    # --- learning ---

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        *,
        X_dev: Any = None,
        y_dev: Any = None,
        callback: Callback | None = None,
    ) -> Self:
        """Learn the weights.

        Parameters
        ----------
        X, y
            Graphs, and the labels of their nodes: integers, booleans or strings.
        sample_weight : (n_graphs,), or list of arrays shaped as those of y, optional
            Weight of each graph's term of the log-likelihood, or of each node. A likelihood is not a sum over nodes, so
            node weights mean the sum over thresholds t of (t - the threshold below) log p(labels of nodes of weight t
            or more). Nodes of weight 0 thus count as unknown, and every distinct weight costs as much as a graph.
        X_dev, y_dev : optional
            Held-out graphs: learning stops when their log loss, measured every 5 iterations, no longer falls, and keeps
            the weights of the smallest. ``held_out_scores_`` has the iterations and losses.
        callback : callable, optional
            Sees a :class:`Progress` after every iteration; returning True stops learning.
        """
        return self._fit(lambda: self.encode(X, y, sample_weight), callback, X_dev, y_dev)

    def _held_out(self, X: Any, y: Any) -> Callable[[], float]:
        """The loss of the adopted weights on these graphs."""
        stacked, _, _ = self.codec_.encoded(X)
        codes = checked_codes(codes_of(labels_of(y, stacked, "y_dev"), self.classes_, "y_dev"))
        # The codec may change before learning begins, where features are diffused.
        return lambda: log_loss(fitted_graphs(self).marginals(self.codec_.encoded(X)[1]).nodes, codes)

    def encode(self, X: Any, y: Any, sample_weight: Any = None) -> GraphData:
        """The data that :meth:`fit` learns from; :meth:`adopt` keeps what is learned from them.

        Fixes classes and features, those of the last time with ``warm_start``; else the estimator is not fitted until
        then.
        """
        self.check_params()
        reader = GraphReader((bool(self.fit_intercept), bool(self.edge_intercept)))
        codec, data = encode_graphs(self, reader, (self.tables,), X, y, sample_weight)
        self._encoded(codec)
        return data

    def _hold(self, codec: GraphCodec) -> None:
        super()._hold(codec)
        self.n_edge_features_ = codec.reader.n_edge_features

    def _forget(self) -> None:
        super()._forget()
        self.__dict__.pop("restart_", None)
        self.neighbour_scores_ = []

    def check_params(self) -> None:
        """Check the parameters, before looking at any data."""
        super().check_params()
        check_graph_params(self)
        check_flag("edge_intercept", self.edge_intercept)
        if isinstance(self.neighbours, str):
            check_choice("neighbours", self.neighbours, ("auto", "edges"))
        else:
            check_number("neighbours", self.neighbours, positive=True, below=1)
            if self.l1:
                raise ArgumentError("l1", f"must be 0 where neighbours is a number, found {self.l1}")
            if self.device is not None:
                raise ArgumentError("neighbours", "must be 'auto' or 'edges' on a device")

    def learning_options(self) -> dict[str, Any]:
        """See :meth:`LearnedEstimator.learning_options`; the moment gap is judged by what it may cost per label."""
        options = LearnedEstimator.learning_options(self)
        return stopping(options, self.codec_.n_known, self._n_weights())

    def adopt(self, solution: Solution) -> Self:
        """See :meth:`LearnedEstimator.adopt`; only ``fit`` learns with diffused features."""
        self.restart_ = self.codec_.restart
        if not isinstance(self.neighbours, str) and self.restart_ is None:
            raise ArgumentError("neighbours", f"must be 'auto' or 'edges' outside fit, found {self.neighbours}")
        return super().adopt(solution)

    def _folds(self, data: GraphData) -> list[Fold]:
        marginals = lambda part, known: fitted_graphs(self).marginals(part, known).nodes  # noqa: E731
        return graph_folds(data, marginals, self.seed, "graph")

    @property
    def _replays(self) -> bool:
        return self.inference == "matched"

    def _judge(self, data: GraphData) -> None:
        if self.codec_.restart is None:  # an agreement that was not learned is not judged
            judge_graphs(self, data)

    # --- neighbours ---

    @property
    def _learner(self) -> Any:
        return self._learned_by_neighbours

    def _learned_by_neighbours(self, data: GraphData, start: Floats | None = None, **options: Any) -> Solution:
        deadline = Deadline(options["max_seconds"])
        restart = self._chosen_restart(data, start)
        options["max_seconds"] = deadline.left
        if restart is None:
            self.codec_ = replace(self.codec_, restart=None)
            return super()._learner(learned_part(self, data), start=start, **options)
        if self.n_edge_features_ is not None or (data.weights != 1.0).any():
            raise ArgumentError("neighbours", "must be 'auto' or 'edges' if edges have features or labels have weights")
        prior = diffused_prior(diffused_data(data, restart), self.n_features_in_)
        self.codec_ = replace(self.codec_, restart=restart, auto_prior=prior)
        lines = with_lines(options["callback"], self.tolerance, options["verbose"])
        variance = self.learning_options()["prior_variance"]
        return learn_diffused(
            data, restart, variance, tolerance=self.tolerance, callback=lines, max_seconds=options["max_seconds"]
        )

    def _chosen_restart(self, data: GraphData, start: Floats | None) -> float | None:
        """The restart to learn with, None for edges alone; a warm start keeps that of the last fit."""
        if not isinstance(self.neighbours, str):
            return float(self.neighbours)
        if start is not None:
            return self.codec_.restart
        of_the_model = (entry for entry in fields(self) if entry.name in _OF_THE_MODEL)
        is_default = all(getattr(self, entry.name) == entry.default for entry in of_the_model)
        plain = self.n_edge_features_ is None and bool((data.weights == 1.0).all())
        if not (self.neighbours == "auto" and is_default and plain and may_diffuse(data)):
            return None
        self.neighbour_scores_ = compared(self, data)
        chosen = min(self.neighbour_scores_, key=lambda pair: pair[1])[0]
        if self.verbose:
            losses = ", ".join(f"{restart or 'edges'} {loss:.3f}" for restart, loss in self.neighbour_scores_)
            tell(f"neighbours={chosen or 'edges'!r}, by the loss of held-out labels: {losses}")
        return chosen

    # --- prediction ---

    @property
    def inference_method_(self) -> tuple[str, dict[str, Any]]:
        """Method of :func:`bactrian.infer` that prediction uses, and its options."""
        fitted = fitted_graphs(self)
        return fitted.method, dict(fitted.options)

    def predict_marginals(self, X: Any, known: Any = None, *, edges: bool = False) -> Any:
        """Probability of every label at every node, by ``inference``.

        Parameters
        ----------
        X
            Graphs.
        known : list of label arrays, optional
            Known labels, as in ``y``, with -1 (for string labels an empty string) for the others. With boolean labels,
            use 0, 1 and -1.
        edges : bool
            Return the marginals of edges too.

        Returns
        -------
        list of arrays
            For each graph an array with the shape of its nodes, then (n_classes,), in the order of ``classes_``. With
            ``edges`` a pair of lists, the second with arrays (n_edges, n_classes, n_classes) in the order of the edges.
            Empty lists if X is empty.
        """
        fitted = fitted_graphs(self)
        stacked, data, evidence = self.codec_.encoded(X, known)
        found = fitted.marginals(data, evidence, edges=edges)
        nodes = stacked.per_graph(found.nodes)
        return nodes if found.edges is None else (nodes, np.split(found.edges, stacked.edge_pointer[1:])[:-1])

    def predict(self, X: Any, known: Any = None) -> list[NDArray[Any]]:
        """The most probable label of every node, by its own marginal; ``known`` as in predict_marginals.

        Returns a list with an array for each graph, in the shape of its nodes and with the dtype of ``classes_``.
        """
        fitted = fitted_graphs(self)
        stacked, data, evidence = self.codec_.encoded(X, known)
        return stacked.per_graph(self.classes_[fitted.codes(data, evidence)])

    def decode(self, X: Any, known: Any = None, *, method: str = "dual", return_result: bool = False) -> Any:
        """The most probable labels of each graph together (MAP), by :func:`bactrian.decode`.

        ``predict`` gives every node its own most probable label; ``decode`` returns the labelling with the largest
        score as a whole, which is smoother. ``known`` is as in predict_marginals. With ``return_result``, returns a
        pair of lists, the second of :class:`bactrian.Decoding` objects, with scores, bounds and certificates.
        """
        fitted = fitted_graphs(self)
        stacked, data, evidence = self.codec_.encoded(X, known)
        found = decode(
            data, fitted.weights, method, evidence, return_result=True, max_seconds=None, n_threads=self.n_threads
        )
        parts = zip(found, stacked.shapes, strict=True)
        labels = [self.classes_[result.assignment].reshape(shape) for result, shape in parts]
        return (labels, found) if return_result else labels

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Accuracy over all nodes whose labels are known; ``sample_weight`` as in fit."""
        fitted = fitted_graphs(self)
        stacked, data, _ = self.codec_.encoded(X)
        if not data.n_nodes:
            raise ValueError("X has no nodes at all; a score needs at least one")
        predicted = self.classes_[fitted.codes(data)]
        truth = labels_of(y, stacked)
        known = known_labels(truth)
        if not known.any():
            raise ValueError("y holds no known label; a score needs at least one")
        check_kind(truth[known], self.classes_, "y")
        weights = np.ones(truth.size) if sample_weight is None else node_weights(sample_weight, stacked.shapes)
        if weights is None:
            by_graph = real_numbers(sample_weight, "sample_weight", len(stacked.shapes))
            weights = np.repeat(by_graph, stacked.node_counts)
        return float(np.average(predicted[known] == truth[known], weights=weights[known]))

    def diagnose(self, X: Any, y: Any, predict: Any = None, known: Any = None, *, restarts: int = 4) -> Diagnosis:
        """Look for signs that the fitted model, or inference at its weights, cannot be trusted.

        Give the training data, and in ``predict`` and ``known`` the graphs that are to be predicted; see
        :func:`bactrian.diagnose`. Models of diffused features, which do not match moments, are refused.
        """
        method, options = self.inference_method_
        if self.codec_.restart is not None:
            raise ValueError(
                "diagnose does not support models of diffused features, which do not match moments: fit with "
                "neighbours='edges'"
            )
        stacked, data, _ = self.codec_.encoded(X)
        data = data.with_labels(codes_of(labels_of(y, stacked, unknown_allowed=False), self.classes_, "y"))
        if method not in ("bp", "rbp", "trw", "convex", "replay"):
            method, options = matched_inference(self.method_)
            method = "rbp" if method == "exact" else method
        _, others, evidence = (None, None, None) if predict is None else self.codec_.encoded(predict, known)
        return diagnose(
            data,
            self.solution_,
            inference=method,
            counting_numbers=options.get("counting_numbers"),
            prior_variance=variances(self.prior_variance_, self._blocks()),
            l1=self.l1,
            restarts=restarts,
            seed=self.seed,
            n_threads=self.n_threads,
            label_names=[str(label) for label in self.classes_.tolist()],
            predict=others,
            evidence=evidence,
        )

    def weight_tables(self) -> tuple[Floats, list[Floats]]:
        """Weights as tables: of nodes (n_inputs, n_classes), the intercept last, and of each edge type.

        An edge type's table is (n_classes, n_classes), with edge features (n_edge_inputs, n_classes, n_classes).
        """
        check_is_fitted(self, "weights_")
        return self.codec_.layout.split_weights(self.weights_)

    # --- files ---

    def _contents(self) -> tuple[dict[str, Any], Arrays]:
        attributes, arrays = self.codec_.contents()
        return {**attributes, "restart": self.restart_, "neighbour_scores": self.neighbour_scores_}, arrays

    def _restore(self, attributes: dict[str, Any], arrays: Arrays) -> None:
        codec = GraphCodec.restored(attributes, arrays, self.weights_.size, GraphReader)
        self.restart_ = attributes.get("restart")  # older files have none
        self._hold(replace(codec, restart=self.restart_))
        if self.restart_ is not None:
            check_number("its restart", self.restart_, positive=True, below=1)
        scores = attributes.get("neighbour_scores") or ()  # older files have none
        self.neighbour_scores_ = [(restart, float(loss)) for restart, loss in scores]
