"""What conditional random fields over graphs and over grids share, in the manner of scikit-learn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from bactrian.arrays import Arrays, Floats, Ints, real_numbers
from bactrian.camel.camel import Camel
from bactrian.errors import ArgumentError, check_choice, check_count, check_flag, check_number
from bactrian.estimators.graph_arrays import StackedGraphs, node_weights, weight_layers
from bactrian.estimators.labels import (
    check_kind,
    checked_labels,
    class_weights,
    codes_of,
    evidence_of,
    known_labels,
    label_array,
    unknown_label,
)
from bactrian.estimators.node_labeller import NodeLabeller
from bactrian.estimators.priors import VARIANCE, Block, Fold, graph_blocks, graph_folds, variances
from bactrian.graphs.graph_data import GraphData, nonnegative_weights
from bactrian.graphs.scores import TYINGS
from bactrian.inference.decode import decode
from bactrian.inference.infer import OF_WEIGHTS, StackedMarginals, check_inference
from bactrian.learners.agreement import can_follow
from bactrian.learners.diagnostics import diagnose
from bactrian.learners.findings import Diagnosis
from bactrian.learners.learn import matched_inference
from bactrian.solvers.solution import Callback

#: The default learner: a concave entropy, solved as CAMEL is, so that messages are only as accurate as weights deserve.
CONVEX = Camel(entropy="convex")

#: Change of a message (rbp) or marginal at which message passing stops: for marginals, and where only labels are asked
#: for. On large noisy grids fewer than 1 label in 1,000 changed after the second, and none in 10,000 after the first.
TOLERANCE, LABEL_TOLERANCE = 1e-3, 1e-2


#: Twice 0.001, in squares of the default tolerance.
_PER_LABEL = 2_000.0

#: Variance of the scores of a node, and of an edge, under the prior "auto".
_AUTO = {"nodes": 30.0, "edges": 10.0}


def auto_prior(mean_squares: Mapping[str, float]) -> dict[str, float]:
    """The prior "auto" for features of such mean squares."""
    return {name: value / mean_squares[name] for name, value in _AUTO.items()}


def _is_auto(prior_variance: Any) -> bool:
    return isinstance(prior_variance, str) and prior_variance == "auto"


@dataclass(kw_only=True, eq=False, repr=False)
class GraphEstimator(NodeLabeller):
    """Base of estimators whose instances are graphs of labelled nodes.

    Subclasses stack their X (``_stack``) and name the tying of each edge type (``_tyings``).
    """

    _block_names: ClassVar[tuple[str, ...]] = ("nodes", "edges", "deviations")

    method: Any = CONVEX
    prior_variance: Any = "auto"
    tolerance: float = 1e-3
    tables: str = "pooled"
    node_factors: str = "clusters"
    fit_intercept: bool = True
    inference: str = "matched"
    inference_options: Mapping[str, Any] | None = None
    classes_: NDArray[Any] = field(init=False)
    n_features_in_: int = field(init=False)
    n_known_: float = field(init=False)  #: labels that were learned from, each with its weight
    #: Of the features of a node, and of an edge, summed; over the root of the share of labels that are known.
    mean_squares_: dict[str, float] = field(init=False)
    n_edge_features_: int | None = field(init=False)
    node_factors_: str = field(init=False)
    tyings_: tuple[str, ...] = field(init=False)
    intercepts_: tuple[bool, bool] = field(init=False)  #: of nodes and of edges with features

    def _stack(self, X: Any, fitted: bool) -> StackedGraphs:
        """Check X, against what was fitted where asked to, and stack it."""
        raise NotImplementedError

    def _tyings(self) -> tuple[str, ...]:
        """How the table of each edge type is tied."""
        raise NotImplementedError

    # --- learning ---

    def fit(self, X: Any, y: Any, sample_weight: Any = None, *, callback: Callback | None = None) -> Self:
        """Learn the weights.

        Parameters
        ----------
        X, y
            Graphs, and the labels of their nodes: integers, booleans or strings.
        sample_weight : (n_graphs,), or list of arrays shaped as those of y, optional
            Weight of each graph's term of the log-likelihood, or of each node. A likelihood is not a sum over nodes, so
            node weights mean the sum over thresholds t of (t - the threshold below) log p(labels of nodes of weight t
            or more). Nodes of weight 0 thus count as unknown, and every distinct weight costs as much as a graph.
        callback : callable, optional
            Sees a :class:`Progress` after every iteration; returning True stops learning.
        """
        return self._fit(lambda: self.encode(X, y, sample_weight), callback)

    def encode(self, X: Any, y: Any, sample_weight: Any = None) -> GraphData:
        """The data that :meth:`fit` learns from; :meth:`adopt` keeps what is learned from them.

        Fixes classes and features, those of the last time with ``warm_start``; else the estimator is not fitted until
        then.
        """
        self.check_params()
        again = self.warm_start and hasattr(self, "classes_")
        stacked = self._stack(X, fitted=again)
        labels = checked_labels(y, stacked.shapes, unknown_allowed=True)
        known = known_labels(labels)
        if labels.size and not known.any():
            raise ValueError("y holds no known label; learning needs at least one")
        classes = self._checked_classes(labels[known], again)
        codes = codes_of(labels, classes, "y")
        tyings = self._tyings()
        by_node = node_weights(sample_weight, stacked.shapes)
        if by_node is None:
            weights = nonnegative_weights(sample_weight, len(stacked.shapes), "sample_weight")
        else:
            which, thresholds, weights = weight_layers(by_node, stacked.node_pointer)
            nodes = np.concatenate([np.arange(*stacked.node_pointer[g : g + 2]) for g in which])
            stacked = stacked.taken(which)
            light = by_node[nodes] < np.repeat(thresholds, stacked.node_counts)
            codes = np.where(light, -1, codes[nodes])
        data = self._data(
            stacked, classes, tyings, self.node_factors, labels=codes, weights=weights,
            class_weight=class_weights(self.class_weight, classes),
        )  # fmt: skip
        fixed = classes.tolist(), tyings, self.node_factors
        if not again:
            self._forget()
        elif (self.classes_.tolist(), self.tyings_, self.node_factors_) != fixed:
            raise ValueError("warm_start: classes, tables or node_factors differ from those of the last fit")
        for name, value in stacked.columns.items():
            setattr(self, name, value)
        self.classes_, self.tyings_, self.node_factors_ = classes, tyings, self.node_factors
        self.n_known_, self.mean_squares_ = self._scale(data)
        return data

    def _scale(self, data: GraphData) -> tuple[float, dict[str, float]]:
        """``n_known_`` and ``mean_squares_`` of such data."""
        assert data.labels is not None
        counts = np.repeat(data.weights, np.diff(data.node_pointer))
        n_known = float(counts @ (data.labels >= 0))
        share = n_known / counts.sum() if n_known > 0.0 else 1.0
        squares = data.mean_squares(self.n_features_in_)
        return n_known, {name: square / share**0.5 for name, square in zip(_AUTO, squares, strict=True)}

    def learning_options(self) -> dict[str, Any]:
        """See :meth:`LearnedEstimator.learning_options`; the moment gap is judged by what it may cost per label.

        A convex objective with the curvature of its prior is above its optimum by at most
        sum_k gap_k^2 * variance_k / 2; the gap here leaves 0.001 per label at the default tolerance.
        """
        options = super().learning_options()
        if not can_follow(self.method) and options["prior_variance"] is not None:
            # Not where learning relinearises: that moves weights by less than such a gap.
            variance = np.asarray(options["prior_variance"])
            total = float(variance.sum()) * (1 if variance.ndim else self._n_weights())
            options["gap_tolerance"] = self.tolerance * max(1.0, (_PER_LABEL * self.n_known_ / total) ** 0.5)
        return options

    def _check_prior(self, options: dict[str, Any], prior_variance: Any) -> None:
        if isinstance(prior_variance, str) and prior_variance not in ("auto", "cv"):
            expected = "must be 'auto', a number, None, a mapping by block or 'cv'"
            raise ArgumentError("prior_variance", f"{expected}, found {prior_variance!r}")
        super()._check_prior(options, VARIANCE if _is_auto(prior_variance) else prior_variance)

    def _prior(self) -> Any:
        if not _is_auto(self.prior_variance):
            return super()._prior()
        if not hasattr(self, "mean_squares_"):
            raise ValueError("prior_variance='auto' needs the scale of the features, which older files do not have")
        return auto_prior(self.mean_squares_)

    def _blocks(self) -> list[Block]:
        return graph_blocks(self._layout(), ("nodes", *("edges",) * len(self.tyings_)))

    def _folds(self, data: GraphData) -> list[Fold]:
        return graph_folds(data, lambda part, known: self._marginals_of(part, known).nodes, self.seed, "graph")

    def check_params(self) -> None:
        """Refuse parameters that make no sense, before any data are looked at."""
        super().check_params()
        check_choice("inference", self.inference, ("matched", *OF_WEIGHTS))
        if self.inference_options is not None and not isinstance(self.inference_options, Mapping):
            raise TypeError(f"inference_options must be a dict, found {type(self.inference_options).__name__}")
        method = matched_inference(self.method)[0] if self.inference == "matched" else self.inference
        check_inference(method, self.inference_options or {})
        check_choice("tables", self.tables, TYINGS)
        check_flag("fit_intercept", self.fit_intercept)
        if self.labels is not None and label_array(self.labels, "labels").size == 0:
            raise ValueError("labels must name at least one class")

    def _checked_classes(self, labels: NDArray[Any], again: bool) -> NDArray[Any]:
        if self.labels is not None:
            classes: NDArray[Any] = np.unique(label_array(self.labels, "labels"))
        elif again:
            classes = self.classes_
        else:
            classes = np.unique(labels)
        if classes.size == 0:
            raise ValueError("labels must name at least one class")
        return classes

    @staticmethod
    def _data(
        stacked: StackedGraphs, classes: NDArray[Any], tyings: tuple[str, ...], node_factors: str, **more: Any
    ) -> GraphData:
        return GraphData(
            stacked.inputs,
            stacked.edges,
            n_labels=classes.size,
            tables=tyings,
            edge_types=stacked.edge_types,
            edge_inputs=stacked.edge_inputs,
            node_counts=stacked.node_counts,
            node_factors=node_factors,
            **more,
        )

    @property
    def _replays(self) -> bool:
        return self.inference == "matched"

    @property
    def _advice(self) -> str:
        others = {
            "inference='matched', ": self.inference != "matched",
            "method='convex', ": self.solution_.method != "convex",
        }
        tried = "".join(words for words, is_other in others.items() if is_other)
        return f"use {tried}{'or ' if tried else ''}a stronger prior on the edges; diagnose() looks closer"

    def _predicted_codes(self, data: GraphData) -> Ints:
        return self._marginals_of(data, None, tolerance=LABEL_TOLERANCE).nodes.argmax(axis=1)

    # --- prediction ---

    def _seen(self, X: Any) -> StackedGraphs:
        """X, checked against what was fitted, with the features that the fitted weights are of."""
        return self._stack(X, fitted=True)

    @property
    def _matched(self) -> tuple[str, dict[str, Any]]:
        """The inference that matches what was learned."""
        return matched_inference(self.method_)

    @property
    def inference_method_(self) -> tuple[str, dict[str, Any]]:
        """Method of :func:`bactrian.infer` that prediction uses, and its options."""
        check_is_fitted(self, "weights_")
        method: str = self.inference
        options: dict[str, Any] = {}
        if method == "matched":
            method, options = self._matched
            if self.solution_.path is not None:
                method, options = "replay", {}
        return method, {"seed": self.seed, "n_threads": self.n_threads, **options, **(self.inference_options or {})}

    def _marginals(
        self, X: Any, known: Any, edges: bool = False, tolerance: float = LABEL_TOLERANCE
    ) -> tuple[StackedGraphs, StackedMarginals]:
        check_is_fitted(self, "weights_")
        self.check_params()
        stacked, data, evidence = self._encoded(X, known)
        return stacked, self._marginals_of(data, evidence, edges, tolerance)

    def _encoded(self, X: Any, known: Any) -> tuple[StackedGraphs, GraphData, Any]:
        """Graphs to predict, as given and as data, and the labels that are known."""
        stacked = self._seen(X)
        evidence = None if known is None else self._evidence(known, stacked)
        return stacked, self._data(stacked, self.classes_, self.tyings_, self.node_factors_), evidence

    def _marginals_of(
        self, data: GraphData, evidence: Any, edges: bool = False, tolerance: float = TOLERANCE
    ) -> StackedMarginals:
        method, options = self.inference_method_
        if method != "gibbs":  # exact inference has no use for it, but its stand-in has
            options.setdefault("tolerance", tolerance)
        weights = self.weights_
        if method == "replay" and self.solution_.path is not None:
            weights = self.solution_.path
        return self._infer_graphs(data, weights, method, evidence, edges, **options)

    def _evidence(self, known: Any, stacked: StackedGraphs) -> list[dict[int, int]]:
        """Known labels by node; -1, or an empty string, stands for one that is not known."""
        labels = checked_labels(known, stacked.shapes, "known", unknown_allowed=True)
        missing = unknown_label(labels)
        if missing in self.classes_.tolist():  # in files of earlier releases
            raise ValueError(f"known: {missing!r} stands for an unknown label, but is one of the classes")
        return evidence_of(codes_of(labels, self.classes_, "known"), stacked.node_pointer)

    def _nothing(self, X: Any, known: Any) -> bool:
        """Whether there are no graphs to predict; such lists come from filters and batches, and are no mistake."""
        check_is_fitted(self, "weights_")
        if not isinstance(X, list | tuple | np.ndarray) or len(X) > 0:
            return False
        self.check_params()
        if known is not None:
            check_count("known", len(known), 0, "array per graph")
        return True

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
        if self._nothing(X, known):
            return ([], []) if edges else []
        stacked, found = self._marginals(X, known, edges, TOLERANCE)
        nodes = [
            part.reshape(*shape, -1) if part.size else np.zeros((*shape, self.classes_.size))
            for part, shape in zip(np.split(found.nodes, stacked.node_pointer[1:-1]), stacked.shapes, strict=True)
        ]
        if found.edges is None:
            return nodes
        return nodes, np.split(found.edges, stacked.edge_pointer[1:-1])

    def predict(self, X: Any, known: Any = None) -> list[NDArray[Any]]:
        """The most probable label of every node, by its own marginal; ``known`` as in predict_marginals.

        Returns a list with an array for each graph, in the shape of its nodes and with the dtype of ``classes_``.
        """
        if self._nothing(X, known):
            return []
        stacked, found = self._marginals(X, known)
        labels = self.classes_[found.nodes.argmax(axis=1)]
        parts = np.split(labels, stacked.node_pointer[1:-1])
        return [part.reshape(shape) for part, shape in zip(parts, stacked.shapes, strict=True)]

    def decode(self, X: Any, known: Any = None, *, method: str = "dual", return_result: bool = False) -> Any:
        """The most probable labels of each graph together (MAP), by :func:`bactrian.decode`.

        ``predict`` gives every node its own most probable label; ``decode`` returns the labelling with the largest
        score as a whole, which is smoother. ``known`` is as in predict_marginals. With ``return_result``, returns a
        pair of lists, the second of :class:`bactrian.Decoding` objects, with scores, bounds and certificates.
        """
        if self._nothing(X, known):
            return ([], []) if return_result else []
        stacked, data, evidence = self._encoded(X, known)
        found = decode(data, self.weights_, method, evidence, return_result=True, n_threads=self.n_threads)
        labels = [
            self.classes_[result.assignment].reshape(shape) for result, shape in zip(found, stacked.shapes, strict=True)
        ]
        return (labels, found) if return_result else labels

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Accuracy over all nodes; ``sample_weight`` as in fit."""
        stacked, found = self._marginals(X, None)
        truth = checked_labels(y, stacked.shapes)
        check_kind(truth, self.classes_, "y")
        right = self.classes_[found.nodes.argmax(axis=1)] == truth
        if sample_weight is None:
            return float(np.mean(right))
        weights = node_weights(sample_weight, stacked.shapes)
        if weights is None:
            by_graph = real_numbers(sample_weight, "sample_weight", len(stacked.shapes))
            weights = np.repeat(by_graph, stacked.node_counts)
        return float(np.average(right, weights=weights))

    def diagnose(self, X: Any, y: Any, predict: Any = None, known: Any = None, *, restarts: int = 4) -> Diagnosis:
        """Look for signs that the fitted model, or inference at its weights, cannot be trusted.

        Give the training data, and in ``predict`` and ``known`` the graphs that are to be predicted; see
        :func:`bactrian.diagnose`.
        """
        check_is_fitted(self, "weights_")
        stacked, data, _ = self._encoded(X, None)
        data = data.with_labels(codes_of(checked_labels(y, stacked.shapes), self.classes_, "y"))
        method, options = self.inference_method_
        if method not in ("bp", "rbp", "trw", "convex", "replay"):
            method, options = self._matched
            method = "rbp" if method == "exact" else method
        _, others, evidence = (None, None, None) if predict is None else self._encoded(predict, known)
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

    # --- files ---

    def _contents(self) -> tuple[dict[str, Any], Arrays]:
        numbers = self.classes_.dtype.kind == "i"
        attributes = {
            "classes": None if numbers else self.classes_.tolist(),
            "tyings": list(self.tyings_),
            "node_factors": self.node_factors_,
            "intercepts": list(self.intercepts_),
            "n_features": self.n_features_in_,
            "n_edge_features": self.n_edge_features_,
            "n_known": self.n_known_,
            "mean_squares": self.mean_squares_,
        }
        return attributes, {"classes": self.classes_} if numbers else {}

    def _restore(self, attributes: dict[str, Any], arrays: Arrays) -> None:
        names = attributes["classes"]
        classes = arrays["classes"] if names is None else np.array(names)
        if classes.ndim != 1 or classes.size == 0 or np.unique(classes).size != classes.size:
            raise ValueError("its classes are not a list of different labels")
        self.classes_ = classes
        self.tyings_ = tuple(attributes["tyings"])
        self.node_factors_ = attributes["node_factors"]
        node, edge = attributes["intercepts"]
        self.intercepts_ = bool(node), bool(edge)
        self.n_features_in_, self.n_edge_features_ = attributes["n_features"], attributes["n_edge_features"]
        if "mean_squares" in attributes:  # older files have none
            self.n_known_ = float(attributes["n_known"])
            self.mean_squares_ = {name: float(attributes["mean_squares"][name]) for name in _AUTO}
            if not all(0.0 < value < np.inf for value in (*self.mean_squares_.values(), 1.0 + self.n_known_)):
                raise ValueError("its features or labels have no scale")
        for size in (self.n_features_in_, 0 if self.n_edge_features_ is None else self.n_edge_features_):
            check_number("its number of features", size, least=0, whole=True)
            if not size <= self.weights_.size:  # before any array is made
                raise ValueError(f"it has {self.weights_.size} weights, too few for {size} features")

    def _layout(self) -> GraphData:
        edge_inputs = None
        if self.n_edge_features_ is not None:
            edge_inputs = np.zeros((0, self.n_edge_features_ + self.intercepts_[1]))
        inputs = np.zeros((1, self.n_features_in_ + self.intercepts_[0]))
        edges = np.zeros((0, 2), dtype=np.int64)
        stacked = StackedGraphs(inputs, edges, None, edge_inputs, [(1,)], np.zeros(1, dtype=np.int64))
        return self._data(stacked, self.classes_, self.tyings_, self.node_factors_)

    def weight_tables(self) -> tuple[Floats, list[Floats]]:
        """Weights as tables: of nodes (n_inputs, n_classes), the intercept last, and of each edge type.

        An edge type's table is (n_classes, n_classes), with edge features (n_edge_inputs, n_classes, n_classes).
        """
        check_is_fitted(self, "weights_")
        return self._layout().split_weights(self.weights_)
