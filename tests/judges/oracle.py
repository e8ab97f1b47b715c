"""Enumeration oracle: every quantity by brute force over joint states, in plain dense NumPy.

This module shares no code with the library and never imports it. Conventions: states of a table are in
C order (last variable fastest), a cluster's features have shape (states, n_weights), and a model's joint
score is ``sum_i features_i[state_i] @ weights + base_scores_i[state_i]``. Likelihoods are sums over rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import lstsq
from scipy.optimize import minimize
from scipy.special import logsumexp, xlogy

Array = NDArray[np.float64]
Ints = NDArray[np.int64]
Scope = tuple[int, ...]
Edge = tuple[int, int, Scope]


@dataclass(frozen=True)
class DenseModel:
    """Cardinalities, clusters, a dense (states, n_weights) array per cluster, fixed scores or ``None``."""

    cardinalities: list[int]
    clusters: list[Scope]
    features: list[Array]
    base_scores: list[Array | None] | None = None

    @property
    def n_weights(self) -> int:
        return int(self.features[0].shape[1])

    def base(self, i: int) -> Array:
        """Fixed scores of cluster i, flat; zeros where none were given."""
        given = None if self.base_scores is None else self.base_scores[i]
        return np.zeros(len(self.features[i])) if given is None else np.asarray(given, dtype=float).ravel()


@dataclass(frozen=True)
class Observed:
    """One model and the joint assignments (rows, n_variables) seen of it.

    Generative data is one ``Observed`` with many rows; conditional data is many, with one row each.
    """

    model: DenseModel
    assignments: Ints


# --- states ---


def joint_states(cardinalities: Sequence[int]) -> Ints:
    """All joint assignments, shape (product of cardinalities, n_variables), in lexicographic order."""
    n_joint = prod(cardinalities)
    return np.stack(np.unravel_index(np.arange(n_joint), tuple(cardinalities)), axis=1).astype(np.int64)


def cluster_state_index(cardinalities: Sequence[int], cluster: Scope, assignments: Ints) -> Ints:
    """Flat table index of each row of ``assignments`` (rows, n_variables) in the cluster's table."""
    index = np.zeros(len(assignments), dtype=np.int64)
    for variable in cluster:
        index = index * cardinalities[variable] + assignments[:, variable]
    return index


def sub_index(cardinalities: Sequence[int], scope: Scope, subset: Scope) -> Ints:
    """For each state of ``scope``'s table the flat index of its restriction to ``subset``."""
    return _sub_index(tuple(cardinalities[v] for v in scope), tuple(scope.index(v) for v in subset))


@cache
def _sub_index(shape: tuple[int, ...], axes: tuple[int, ...]) -> Ints:
    local_states = joint_states(shape)
    index = np.zeros(len(local_states), dtype=np.int64)
    for axis in axes:
        index = index * shape[axis] + local_states[:, axis]
    index.flags.writeable = False
    return index


def n_states(cardinalities: Sequence[int], scope: Scope) -> int:
    """Number of states of a scope's table; 1 for the empty scope."""
    return prod(cardinalities[v] for v in scope)


def marginal(cardinalities: Sequence[int], scope: Scope, table: Array, subset: Scope) -> Array:
    """Sum a table over the variables of ``scope`` that are not in ``subset``; flat."""
    index = sub_index(cardinalities, scope, subset)
    sums: Array = np.bincount(index, weights=np.ravel(table), minlength=n_states(cardinalities, subset)).astype(float)
    return sums


# --- exact inference ---


def cluster_scores(model: DenseModel, weights: Array) -> list[Array]:
    """Log-potential of every cluster, flat tables."""
    return [features @ weights + model.base(i) for i, features in enumerate(model.features)]


def joint_scores(model: DenseModel, weights: Array) -> Array:
    """Unnormalised log-probability of every joint state, in lexicographic order."""
    states = joint_states(model.cardinalities)
    scores = np.zeros(len(states))
    for cluster, table in zip(model.clusters, cluster_scores(model, weights), strict=True):
        scores += table[cluster_state_index(model.cardinalities, cluster, states)]
    return scores


def agrees(model: DenseModel, evidence: Mapping[int, int] | None) -> NDArray[np.bool_]:
    states = joint_states(model.cardinalities)
    keep = np.ones(len(states), dtype=bool)
    for variable, value in (evidence or {}).items():
        keep &= states[:, variable] == value
    return keep


def log_partition(model: DenseModel, weights: Array, evidence: Mapping[int, int] | None = None) -> float:
    """log of the sum of exp(score) over the joint states that agree with the evidence."""
    return float(logsumexp(joint_scores(model, weights)[agrees(model, evidence)]))


def joint_distribution(model: DenseModel, weights: Array, evidence: Mapping[int, int] | None = None) -> Array:
    """Probability of every joint state, zero where it contradicts the evidence."""
    scores = np.where(agrees(model, evidence), joint_scores(model, weights), -np.inf)
    probabilities: Array = np.exp(scores - logsumexp(scores))
    return probabilities


def cluster_marginals(model: DenseModel, weights: Array, evidence: Mapping[int, int] | None = None) -> list[Array]:
    """Exact marginal of every cluster, flat tables."""
    everything = tuple(range(len(model.cardinalities)))
    joint = joint_distribution(model, weights, evidence)
    return [marginal(model.cardinalities, everything, joint, cluster) for cluster in model.clusters]


def variable_marginals(model: DenseModel, weights: Array, evidence: Mapping[int, int] | None = None) -> list[Array]:
    """Exact marginal of every variable."""
    everything = tuple(range(len(model.cardinalities)))
    joint = joint_distribution(model, weights, evidence)
    return [marginal(model.cardinalities, everything, joint, (v,)) for v in everything]


def most_probable(
    model: DenseModel, weights: Array, evidence: Mapping[int, int] | None = None, tie: float = 1e-9
) -> Ints:
    """The best joint assignment; among those within ``tie`` of the best, the lexicographically first."""
    scores = np.where(agrees(model, evidence), joint_scores(model, weights), -np.inf)
    first = int(np.flatnonzero(scores >= scores.max() - tie)[0])
    best: Ints = joint_states(model.cardinalities)[first]
    return best


# --- exact likelihood ---


def feature_sums(data: Sequence[Observed]) -> Array:
    """Sufficient statistics f_hat summed over all rows of data."""
    total = np.zeros(data[0].model.n_weights)
    for model, rows in ((seen.model, seen.assignments) for seen in data):
        for cluster, features in zip(model.clusters, model.features, strict=True):
            total += features[cluster_state_index(model.cardinalities, cluster, rows)].sum(axis=0)
    return total


def base_sum(data: Sequence[Observed]) -> float:
    """Fixed scores of the observed states, summed over all rows of data."""
    total = 0.0
    for model, rows in ((seen.model, seen.assignments) for seen in data):
        for i, cluster in enumerate(model.clusters):
            total += float(model.base(i)[cluster_state_index(model.cardinalities, cluster, rows)].sum())
    return total


def joint_features(model: DenseModel) -> Array:
    """Feature vector of every joint state, shape (joint states, n_weights)."""
    states = joint_states(model.cardinalities)
    total = np.zeros((len(states), model.n_weights))
    for cluster, features in zip(model.clusters, model.features, strict=True):
        total += features[cluster_state_index(model.cardinalities, cluster, states)]
    return total


def negative_log_likelihood(
    data: Sequence[Observed], weights: Array, prior_variance: float | None = None
) -> tuple[float, Array]:
    """Exact penalised negative log-likelihood, summed over rows, and its gradient."""
    value = -base_sum(data) - float(weights @ feature_sums(data))
    gradient = -feature_sums(data)
    for seen in data:
        rows = len(seen.assignments)
        value += rows * log_partition(seen.model, weights)
        gradient = gradient + rows * joint_distribution(seen.model, weights) @ joint_features(seen.model)
    if prior_variance is not None:
        value += float(weights @ weights) / (2 * prior_variance)
        gradient = gradient + weights / prior_variance
    return value, gradient


def likelihood_hessian(data: Sequence[Observed], weights: Array, prior_variance: float | None = None) -> Array:
    """Hessian of ``negative_log_likelihood``: summed feature covariance plus the prior's precision."""
    total = np.zeros((len(weights), len(weights)))
    for seen in data:
        features = joint_features(seen.model)
        joint = joint_distribution(seen.model, weights)
        mean = joint @ features
        centred = features - mean
        total += len(seen.assignments) * (centred.T * joint) @ centred
    return total if prior_variance is None else total + np.eye(len(weights)) / prior_variance


def maximum_likelihood(
    data: Sequence[Observed], prior_variance: float | None = None, gradient_tolerance: float = 1e-9
) -> Array:
    """Exact (penalised) maximum-likelihood weights: BFGS, then Newton until the gradient is tiny."""
    start = np.zeros(data[0].model.n_weights)

    def objective(weights: Array) -> tuple[float, Array]:
        return negative_log_likelihood(data, weights, prior_variance)

    weights: Array = minimize(objective, start, jac=True, method="BFGS").x
    for _ in range(100):
        _, gradient = negative_log_likelihood(data, weights, prior_variance)
        if np.abs(gradient).max() <= gradient_tolerance:
            return weights
        step = lstsq(likelihood_hessian(data, weights, prior_variance), gradient, cond=1e-12)[0]
        weights = weights - step
    raise RuntimeError(f"no maximum found: gradient {np.abs(gradient).max():.1e} left")


# --- free energies of given beliefs ---


def entropy(table: Array) -> float:
    """Shannon entropy in nats, with 0 log 0 = 0."""
    return -float(xlogy(table, table).sum())


def bethe_free_energy(
    model: DenseModel, weights: Array, cluster_beliefs: Sequence[Array], variable_beliefs: Sequence[Array]
) -> float:
    """Bethe free energy with every cluster a factor and number 1 - degree for each variable.

    Minus its value at a fixed point of belief propagation is the Bethe approximation of ``log_partition``.
    """
    degrees = [sum(v in cluster for cluster in model.clusters) for v in range(len(model.cardinalities))]
    energy = 0.0
    for table, belief in zip(cluster_scores(model, weights), cluster_beliefs, strict=True):
        energy -= float(table @ np.ravel(belief)) + entropy(np.ravel(belief))
    return energy - sum((1 - d) * entropy(b) for d, b in zip(degrees, variable_beliefs, strict=True))


def mean_field_free_energy(model: DenseModel, weights: Array, variable_beliefs: Sequence[Array]) -> float:
    """Free energy of the fully factorised distribution; never below ``-log_partition``."""
    joint = np.ones(1)
    for belief in variable_beliefs:
        joint = np.multiply.outer(joint, belief).ravel()
    return -float(joint @ joint_scores(model, weights)) - entropy(joint)


# --- belief propagation on a cluster graph ---


@dataclass(frozen=True)
class Propagation:
    """Log-potentials on a cluster graph, with parallel sum-product belief propagation over its edges.

    A message of edge (i, j, sepset) towards i is row 0 of its pair, towards j row 1; all in log space.
    Beliefs are ``b_i ~ exp(potentials_i + incoming messages)``.
    """

    cardinalities: list[int]
    scopes: list[Scope]
    potentials: list[Array]
    edges: list[Edge]

    def flat_messages(self) -> list[Array]:
        """Uninformative messages: one (2, sepset states) array of zeros per edge."""
        return [np.zeros((2, n_states(self.cardinalities, sepset))) for _, _, sepset in self.edges]

    def log_beliefs(self, messages: Sequence[Array]) -> list[Array]:
        totals = [np.array(potential, dtype=float) for potential in self.potentials]
        for (i, j, sepset), pair in zip(self.edges, messages, strict=True):
            for side, cluster in enumerate((i, j)):
                totals[cluster] += pair[side][sub_index(self.cardinalities, self.scopes[cluster], sepset)]
        return [total - logsumexp(total) for total in totals]

    def sweep(self, messages: Sequence[Array]) -> list[Array]:
        """All messages recomputed at once: outgoing = sepset marginal of the sender / what it was told."""
        beliefs = self.log_beliefs(messages)
        updated = []
        for (i, j, sepset), pair in zip(self.edges, messages, strict=True):
            outgoing = []
            for sender, told in ((j, pair[1]), (i, pair[0])):
                table = np.exp(beliefs[sender])
                sent = np.log(marginal(self.cardinalities, self.scopes[sender], table, sepset)) - told
                outgoing.append(sent - logsumexp(sent))
            updated.append(np.stack(outgoing))
        return updated

    def run(
        self,
        messages: Sequence[Array] | None = None,
        damping: float = 0.0,
        tolerance: float = 1e-12,
        max_sweeps: int = 10_000,
    ) -> tuple[list[Array], bool]:
        """Beliefs (flat tables) after parallel updates, and whether they stopped changing."""
        current = list(self.flat_messages() if messages is None else messages)
        beliefs = [np.exp(b) for b in self.log_beliefs(current)]
        for _ in range(max_sweeps):
            fresh = self.sweep(current)
            current = [damping * old + (1 - damping) * new for old, new in zip(current, fresh, strict=True)]
            previous, beliefs = beliefs, [np.exp(b) for b in self.log_beliefs(current)]
            if largest_change(previous, beliefs) <= tolerance:
                return beliefs, True
        return beliefs, False

    def messages_behind(self, beliefs: Sequence[Array]) -> tuple[list[Array], float]:
        """Messages that explain given positive beliefs, by least squares, and the largest residual.

        Unknowns: both messages of each edge, a constant per cluster and per edge. Equations: a cluster's
        log-belief minus its potential is the sum of its incoming messages; the two messages of an edge
        multiply to its sepset marginal. The residual vanishes exactly at fixed points of propagation.
        """
        sizes = [n_states(self.cardinalities, sepset) for _, _, sepset in self.edges]
        offsets = np.concatenate([[0], np.cumsum(2 * np.array(sizes, dtype=np.int64))]).astype(int)
        n_messages, n_clusters = int(offsets[-1]), len(self.scopes)
        width = n_messages + n_clusters + len(self.edges)
        blocks = [np.zeros((len(potential), width)) for potential in self.potentials]
        targets = [np.log(np.ravel(b)) - p for b, p in zip(beliefs, self.potentials, strict=True)]
        for i in range(n_clusters):
            blocks[i][:, n_messages + i] = 1
        for e, (i, j, sepset) in enumerate(self.edges):
            for side, cluster in enumerate((i, j)):
                index = sub_index(self.cardinalities, self.scopes[cluster], sepset)
                blocks[cluster][np.arange(len(index)), offsets[e] + side * sizes[e] + index] = 1
            product = np.zeros((sizes[e], width))
            states = np.arange(sizes[e])
            product[states, offsets[e] + states] = product[states, offsets[e] + sizes[e] + states] = 1
            product[:, n_messages + n_clusters + e] = 1
            blocks.append(product)
            targets.append(np.log(marginal(self.cardinalities, self.scopes[i], beliefs[i], sepset)))
        matrix, target = np.concatenate(blocks), np.concatenate(targets)
        found = np.asarray(lstsq(matrix, target)[0], dtype=float)
        messages = [found[offsets[e] : offsets[e + 1]].reshape(2, size) for e, size in enumerate(sizes)]
        return messages, float(np.abs(matrix @ found - target).max(initial=0.0))

    def fixed_point_error(self, beliefs: Sequence[Array]) -> float:
        """Largest change of given beliefs in one sweep, or their misfit to any messages if larger.

        Messages are recovered from the beliefs, the beliefs rebuilt from them, and one parallel sweep run.
        """
        messages, _ = self.messages_behind(beliefs)
        rebuilt = [np.exp(b) for b in self.log_beliefs(messages)]
        swept = [np.exp(b) for b in self.log_beliefs(self.sweep(messages))]
        return max(largest_change(beliefs, rebuilt), largest_change(beliefs, swept))


def largest_change(before: Sequence[Array], after: Sequence[Array]) -> float:
    """Largest absolute difference between two lists of tables."""
    pairs = zip(before, after, strict=True)
    return max(float(np.abs(np.ravel(a) - np.ravel(b)).max()) for a, b in pairs)
