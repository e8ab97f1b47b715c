"""Log-linear models by hand: features per (cluster, state), with data for them.

The score of a cluster's state is ``features[i][state] @ weights + base_scores[i][state]``, the exponent of Eq. 1;
weights are shared freely within and between clusters, since every feature matrix has the same columns. Learning from
:class:`Samples` is the paper's Eq. 2, from a list of :class:`Instance` its Eq. 3. :class:`Moments` are all that Eq. 2
reads of the samples, with a variance each: Eq. 4.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike

from bactrian.arrays import Floats, Ints, integers, nonnegative, nonnegative_weights, real_numbers
from bactrian.errors import check_count, check_number
from bactrian.graphs.graph import Domain
from bactrian.graphs.inputs import checked_rows
from bactrian.graphs.ragged import first_of, pointer

#: Types of matrices that need no conversion.
_PLAIN = (np.ndarray, sp.csr_array, sp.csr_matrix)


@dataclass(frozen=True)
class ClusterTables:
    """Tables of clusters, one below the other; the rows of cluster i begin at ``start[i]``, -1 where it has none."""

    rows: Any  #: a sparse matrix of features, or flat scores
    start: Ints
    size: Ints

    def split(self) -> tuple[Any, ...]:
        """The table of each cluster, or None."""
        known: dict[int, Any] = {-1: None}
        for start, size in zip(self.start.tolist(), self.size.tolist(), strict=True):
            if start not in known:
                known[start] = self.rows[start : start + size]
        return tuple(known[start] for start in self.start.tolist())


class LogLinearModel:
    """A cluster graph with features.

    Parameters
    ----------
    graph : ClusterGraph
        Variables, clusters and how they are tied together.
    features : sequence
        One entry per cluster given to the graph: an array or ``scipy.sparse`` matrix of shape (states of the cluster,
        n_weights), or None for a cluster without features. Clusters given the *same object* share one table.
    base_scores : sequence, optional
        One entry per cluster: fixed log-potentials, one per state (any shape of that size), or None. ``-inf`` forbids
        a state.
    """

    def __init__(self, graph: Domain, features: Sequence[Any], base_scores: Sequence[Any] | None = None) -> None:
        if not isinstance(graph, Domain):
            raise TypeError(f"graph must be a ClusterGraph, found {type(graph).__name__}")
        # Lists keep every entry alive while equal ones are told apart by their identity.
        features = _checked_list(features, "features")
        base_scores = None if base_scores is None else _checked_list(base_scores, "base_scores")
        self.graph = graph
        n_clusters = len(graph.clusters)
        check_count("features", len(features), n_clusters, "entry per cluster")
        if base_scores is not None:
            check_count("base_scores", len(base_scores), n_clusters, "entry per cluster")
        self.feature_tables = _checked_features(graph, features)
        self.base_tables = _checked_base_scores(graph, base_scores)

    @property
    def n_weights(self) -> int:
        """Number of weights."""
        return int(self.feature_tables.rows.shape[1])

    @cached_property
    def features(self) -> tuple[sp.csr_array | None, ...]:
        """The features of each cluster; clusters that share a table have the same object."""
        return self.feature_tables.split()

    @cached_property
    def base_scores(self) -> tuple[Floats | None, ...]:
        """The fixed scores of each cluster, flat."""
        return self.base_tables.split()

    def with_base_scores(self, scores: Sequence[Floats | None]) -> LogLinearModel:
        """The same model with other fixed scores, flat and of the right sizes."""
        other = copy.copy(self)
        other.__dict__.pop("base_scores", None)
        has = np.array([own is not None for own in scores], dtype=bool)
        starts = np.where(has, pointer(np.where(has, self.graph.sizes, 0))[:-1], -1)
        rows = np.concatenate([np.zeros(0), *(own for own in scores if own is not None)])
        other.base_tables = ClusterTables(rows, starts, self.graph.sizes)
        return other

    def __repr__(self) -> str:
        return (
            f"LogLinearModel({self.graph.n_variables} variables, {len(self.graph.clusters)} clusters, "
            f"{self.n_weights} weights)"
        )


class Instance:
    """One conditional training example: its own model and the true state of every variable, -1 if unknown.

    ``weight`` multiplies its term of the log-likelihood. ``allowed`` restricts unknown states: it maps a variable to
    the states that it may have.
    """

    def __init__(
        self,
        model: LogLinearModel,
        y: ArrayLike,
        weight: float = 1.0,
        *,
        allowed: Mapping[int, Iterable[int]] | None = None,
    ) -> None:
        self.model = _checked_model(model)
        self.y = model.graph.checked_states(y, "y", unknown=True)
        if self.y.ndim != 1:
            raise ValueError(f"y must be flat, one state per variable, found shape {self.y.shape}")
        check_number("weight", weight, least=0, below=np.inf)
        self.weight = float(weight)
        self.allowed = _checked_allowed(allowed, self.y, model.graph.cardinalities, "allowed")

    def __repr__(self) -> str:
        return f"Instance({self.model!r})"


class Samples:
    """Generative training data: many draws ``X`` of shape (n_samples, n_variables) from one model, -1 if unknown.

    ``sample_weight`` multiplies each draw's term of the log-likelihood. ``allowed`` restricts unknown states: for each
    draw it has a mapping from variables to the states that they may have, or None.
    """

    def __init__(
        self,
        model: LogLinearModel,
        X: ArrayLike,
        sample_weight: ArrayLike | None = None,
        *,
        allowed: Sequence[Mapping[int, Iterable[int]] | None] | None = None,
    ) -> None:
        self.model = _checked_model(model)
        self.X = model.graph.checked_states(X, "X", unknown=True)
        if self.X.ndim != 2:
            raise ValueError(f"X must have shape (n_samples, n_variables), found {self.X.shape}")
        if self.X.shape[0] == 0:
            raise ValueError("X holds no samples; learning needs at least one")
        self.sample_weight = nonnegative_weights(sample_weight, "sample_weight", len(self.X))
        given = [None] * len(self.X) if allowed is None else _checked_list(allowed, "allowed", "sample")
        check_count("allowed", len(given), len(self.X), "entry per sample")
        self.allowed: dict[int, dict[int, Ints]] = {}
        for row, one in enumerate(given):
            if checked := _checked_allowed(one, self.X[row], model.graph.cardinalities, f"allowed[{row}]"):
                self.allowed[row] = checked

    def __repr__(self) -> str:
        return f"Samples({self.model!r}, {self.X.shape[0]} samples)"


class Moments:
    """Generative training data without rows: sums of the features over ``total`` samples, exact or noisy.

    The dual needs no more, so learners accept moments in place of :class:`Samples`, except those that need rows
    (pseudo-likelihoods, ``"ups"``, ``"pseudo-moments"`` and starts at the empirical distribution).

    Parameters
    ----------
    model : LogLinearModel
        One column of features for each moment.
    observed : (n_weights,)
        Sum of each feature over the samples, exact or noisy.
    total : float
        Number of samples, which multiplies the entropy.
    variances : float or (n_weights,), optional
        Variance of the noise in each observed sum; 0 or None for none. Noise of variance s^2 adds s^2 to the
        precision of a weight's Gaussian prior: the primal penalty is gap^2 / (2 s^2) where there is no other prior.

    Examples
    --------
    >>> import bactrian as bt
    >>> model = bt.LogLinearModel(bt.ClusterGraph([2], [(0,)]), [[[0.0], [1.0]]])
    >>> bt.learn(bt.Moments(model, [75.0], 100.0), prior_variance=None).weights.round(4)
    array([1.0986])
    """

    def __init__(
        self, model: LogLinearModel, observed: ArrayLike, total: float, variances: ArrayLike | None = None
    ) -> None:
        self.model = _checked_model(model)
        self.observed = real_numbers(observed, "observed")
        check_count("observed", self.observed.shape, (model.n_weights,), "sum per weight")
        if not np.isfinite(self.observed).all():
            raise ValueError(f"observed[{int(np.argmin(np.isfinite(self.observed)))}] is NaN or infinite")
        check_number("total", total, positive=True, below=np.inf)
        self.total = float(total)
        self.variances = np.zeros(model.n_weights)
        if variances is not None:
            given = real_numbers(variances, "variances")
            if given.shape not in ((), (model.n_weights,)):
                raise ValueError(
                    f"variances must be one number or one per weight, shape ({model.n_weights},), found {given.shape}"
                )
            self.variances = nonnegative(np.broadcast_to(given, model.n_weights), "variances")

    def __repr__(self) -> str:
        return f"Moments({self.model!r}, total {self.total:g})"


def _checked_model(model: Any) -> LogLinearModel:
    if not isinstance(model, LogLinearModel):
        raise TypeError(f"model must be a LogLinearModel, found {type(model).__name__}")
    return model


def _checked_allowed(allowed: Any, states: Ints, cardinalities: Ints, name: str) -> dict[int, Ints]:
    """Allowed states of variables that were not seen, or an error."""
    if allowed is None:
        return {}
    if not isinstance(allowed, Mapping):
        raise TypeError(f"{name} must be a mapping from variables to their states, found {type(allowed).__name__}")
    checked = {}
    for variable, some in allowed.items():
        if isinstance(variable, bool) or not isinstance(variable, int | np.integer) or not 0 <= variable < states.size:
            raise ValueError(f"{name} names variable {variable!r}; variables are 0 to {states.size - 1}")
        v = int(variable)
        found = integers(list(some), f"{name}[{v}]", below=int(cardinalities[v]))
        if not found.size:
            raise ValueError(f"{name}[{v}] is empty; variable {v} needs at least one allowed state")
        if states[v] >= 0 and states[v] not in found:
            raise ValueError(f"{name}[{v}] leaves out state {states[v]}, the observed state of variable {v}")
        if states[v] < 0:
            checked[v] = found
    return checked


def _checked_list(entries: Any, name: str, what: str = "cluster") -> list[Any]:
    if isinstance(entries, str) or sp.issparse(entries) or not isinstance(entries, Iterable):
        raise TypeError(f"{name} must be a sequence with one entry per {what}, found {type(entries).__name__}")
    return list(entries)


def _checked_features(graph: Domain, features: Sequence[Any]) -> ClusterTables:
    """All features one below the other, equal objects once."""
    table, first = _distinct(features)
    if not first:
        raise ValueError("features hold no matrix, so the number of weights is unknown; give at least one")
    given = [features[i] for i in first]
    for t, (i, entry) in enumerate(zip(first, given, strict=True)):
        if not (type(entry) in _PLAIN and entry.ndim == 2 and entry.dtype == np.float64):
            given[t] = sp.csr_array(checked_rows(entry, f"features[{i}]"))
    n_weights = given[0].shape[1]
    heights = np.array([entry.shape[0] for entry in given], dtype=np.int64)
    users = np.flatnonzero(table >= 0)
    wrong = heights[table[users]] != graph.sizes[users]
    wrong |= np.array([entry.shape[1] != n_weights for entry in given])[table[users]]
    if wrong.any():
        i = int(users[np.argmax(wrong)])
        raise ValueError(
            f"features[{i}] must have shape (states of cluster {i}, n_weights) = "
            f"({graph.size(graph.clusters[i])}, {n_weights}), found {given[table[i]].shape}"
        )
    # Dense tables become sparse together; the sparse ones follow.
    is_dense = np.array([type(entry) is np.ndarray for entry in given])
    order = np.argsort(~is_dense, kind="stable")
    dense = [given[t] for t in order[: is_dense.sum()]]
    sparse = [given[t] for t in order[is_dense.sum() :]]
    rows = sp.csr_array(np.concatenate(dense)) if dense else sp.csr_array((0, n_weights))
    if sparse:
        rows = sp.csr_array(sp.vstack([rows, *sparse], format="csr"))
        rows.sum_duplicates()
    if not np.isfinite(rows.data).all():
        for i, entry in zip(first, given, strict=True):
            checked_rows(entry, f"features[{i}]")  # says which
    bounds = np.zeros(len(given), dtype=np.int64)
    bounds[order] = pointer(heights[order])[:-1]
    return ClusterTables(rows, np.where(table >= 0, bounds[table], -1), graph.sizes)


def _checked_base_scores(graph: Domain, base_scores: Sequence[Any] | None) -> ClusterTables:
    """All fixed scores one after the other, equal objects once."""
    table, first = _distinct([None] * len(graph.clusters) if base_scores is None else base_scores)
    if base_scores is None or not first:
        return ClusterTables(np.zeros(0), table, graph.sizes)
    given = [base_scores[i] for i in first]
    for t, (i, entry) in enumerate(zip(first, given, strict=True)):
        if not (type(entry) is np.ndarray and entry.dtype == np.float64):
            given[t] = real_numbers(entry, f"base_scores[{i}]")
    sizes = np.array([entry.size for entry in given], dtype=np.int64)
    users = np.flatnonzero(table >= 0)
    wrong = sizes[table[users]] != graph.sizes[users]
    if wrong.any():
        i = int(users[np.argmax(wrong)])
        check_count("base_scores", sizes[table[i]], graph.size(graph.clusters[i]), f"score per state of cluster {i}", i)
    scores, starts = np.concatenate(given, axis=None), pointer(sizes)[:-1]
    largest = np.maximum.reduceat(scores, starts)
    if not (largest < np.inf).all():
        i = first[int(np.argmin(largest < np.inf))]
        raise ValueError(f"base_scores[{i}] holds NaN or +inf; scores are finite, or -inf for a forbidden state")
    if (largest == -np.inf).any():
        i = first[int(np.argmax(largest == -np.inf))]
        raise ValueError(f"base_scores[{i}] forbids every state of cluster {i}")
    return ClusterTables(scores, np.where(table >= 0, starts[table], -1), graph.sizes)


def _distinct(entries: Sequence[Any]) -> tuple[Ints, list[int]]:
    """The number of each entry's object in the order of appearance, -1 for None, and where each comes first."""
    numbers: dict[int, int] = {id(None): -1}
    table = np.array([numbers.setdefault(id(entry), len(numbers) - 1) for entry in entries], dtype=np.int64)
    used = table[table >= 0]
    return table, np.flatnonzero(table >= 0)[first_of(used)].tolist()
