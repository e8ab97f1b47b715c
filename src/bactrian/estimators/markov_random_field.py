"""A generative Markov random field over discrete variables, in the manner of scikit-learn."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bactrian.estimators.pairwise import checked_edges, n_weights_of, pairwise_model
from bactrian.estimators.pairwise_field import PairwiseField
from bactrian.estimators.sample_tables import checked_cardinalities, checked_table, column_names, seen_cardinalities
from bactrian.estimators.saving import Arrays
from bactrian.estimators.table_sizes import check_seen_states, check_tables_fit
from bactrian.graphs.domain import Domain
from bactrian.graphs.loglinear import Samples
from bactrian.solvers.solution import Callback

Ints = NDArray[np.int64]


@dataclass(kw_only=True, eq=False, repr=False)
class MarkovRandomField(PairwiseField):
    """A pairwise Markov random field, learned from complete samples.

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
        Any learner of :func:`bactrian.learn`, but for two that are refused with the reason where they cannot work:
        ``"pseudo-moments"`` is a closed form for tables that share no weights, without a prior: it needs
        ``tables="full"``, ``node_factors="clusters"``, ``prior_variance=None`` and ``l1=0``. ``"ups"`` scales tables of
        variables, those of the edges being fixed, so that it cannot learn a field with edges.
    prior_variance, l1, tolerance, max_iterations, max_seconds, n_threads
        See :func:`bactrian.learn`.
    seed : int
        Seed of learners and inference methods that draw random numbers, and of :meth:`sample` by default.
    warm_start : bool
        Start from the weights of the last fit, or of the file the model was loaded from.
    cardinalities : int or (n_variables,) ints, optional
        Number of states; by default one more than the largest state seen of each variable (of all variables, for
        shared tables). Give them where later data may hold states that the training data does not, as in
        cross-validation.
    inference : str
        Method of :func:`bactrian.infer` where exact inference does not fit ``memory_budget``. Or ``"matched"``: always
        the entropy that the learner used (:func:`bactrian.learners.matched.matched_inference`), since weights fit
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

    edges: Any = field(default="complete", kw_only=False)
    shape: Any = None
    tables: str = "full"
    cardinalities: Any = None
    node_factors: str = "clusters"

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
        """The data that :meth:`fit` learns from; :meth:`adopt` takes up what is learned from them.

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
        self.node_factors_ = self.node_factors
        if names is not None:
            self.feature_names_in_ = names
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_
        return samples

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

    # --- files ---

    def _contents(self) -> tuple[dict[str, Any], Arrays]:
        names = getattr(self, "feature_names_in_", None)
        attributes = {
            "tables": self.tables_,  # parameters may have changed since
            "node_factors": self.node_factors_,
            "feature_names": None if names is None else names.tolist(),
        }
        return attributes, {"edges": self.edges_, "cardinalities": self.cardinalities_}

    def _restore(self, attributes: dict[str, Any], arrays: Arrays) -> None:
        cardinalities = Domain(arrays["cardinalities"], []).cardinalities
        if cardinalities.size == 0:
            raise ValueError("it has no variables")
        edges = checked_edges(arrays["edges"], None, cardinalities.size)
        tables = attributes["tables"]
        if n_weights_of(tables, cardinalities, edges) != self.weights_.size:  # before any table is made
            raise ValueError(f"it has {self.weights_.size} weights, which do not fit its tables")
        self.node_factors_ = attributes["node_factors"]
        self._keep(tables, pairwise_model(tables, cardinalities, edges, self.node_factors_), edges)
        names = attributes["feature_names"]
        if names is not None:
            self.feature_names_in_ = np.array(names, dtype=object)
