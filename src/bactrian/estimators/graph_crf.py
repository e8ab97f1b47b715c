"""A conditional random field over graphs of any shape, in the manner of scikit-learn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bactrian.estimators.graph_arrays import StackedGraphs, stack_graphs
from bactrian.estimators.graph_common import GraphEstimator


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
    tables : {"symmetric", "full", "diagonal", "potts"}
        How the edges' table is tied. ``"full"`` tables are asymmetric: rows belong to the first node of an edge as
        given, so direction matters. ``"diagonal"`` has a weight a label for agreement, ``"potts"`` a single one.
    method : str or learner
        Any learner of :func:`bactrian.learn`. The default, ``Camel(entropy="convex")``, has a unique optimum and is
        about as fast as CAMEL(0); with matched inference it was the most accurate of all on noisy grids, ahead of
        CAMEL(0), CCCP and likelihood with belief propagation.
    prior_variance, l1, tolerance, max_iterations, max_seconds, n_threads
        See :func:`bactrian.learn`. The tolerance bounds moment gaps in sums over nodes, so larger graphs need no
        smaller one.
    node_factors : {"clusters", "edges"}
        Whether node scores are clusters of their own (the default), whose entropy counts, or are absorbed into the
        incident edges (a node without edges keeps its own). Piecewise training and CAMEL(0) depend on it, and with
        piecewise training absorbing is usually better; CCCP and the likelihoods do not.
    fit_intercept : bool
        Append a feature that is 1 at every node; it is regularised as the others.
    edge_intercept : bool
        Append a feature that is 1 at every edge, where edges have features: a table that all edges share.
    labels : sequence, optional
        All classes, where y may lack some of them.
    class_weight : "balanced", dict or sequence, optional
        Weight of each class; a graph counts as the mean weight of its nodes' labels, beside ``sample_weight``.
    inference : str
        ``"matched"``: the entropy that the learner used (:func:`bactrian.learners.matched.matched_inference`), since
        weights fit the entropy under which they were learned; or any method of :func:`bactrian.infer`. Weights of
        CAMEL(0), convex and tree-reweighted learners are too strong for belief propagation: on noisy grids matched
        marginals had half its log-loss or less, at an accuracy from 0.02 below (CAMEL(0)) to 0.05 above (convex).
    inference_options : dict, optional
        Options of :func:`bactrian.infer`, such as ``tolerance`` (by default 1e-3 for marginals and 1e-2 for labels,
        of which fewer than one in a thousand still changes then), ``max_iterations`` or ``damping``.
    seed : int
        Seed of learners and inference methods that draw random numbers.
    warm_start : bool
        Start from the weights of the last fit, or of the file the model was loaded from.

    Attributes
    ----------
    weights_ : (n_weights,)
        Learned weights; :meth:`weight_tables` gives them as tables.
    classes_ : (n_classes,)
        The labels, sorted.
    solution_ : Solution
        Status and history of learning.
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
    [array(['sea', 'sea'], dtype='<U3')]
    >>> crf.predict_marginals([([[-0.3], [0.1]], [(0, 1)])], known=[["", "sky"]])[0].round(2)
    array([[0.21, 0.79],
           [0.  , 1.  ]])
    """

    edge_intercept: bool = True

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
