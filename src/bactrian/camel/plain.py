"""CAMEL in plain NumPy: Eq. 5 to 12 of the paper, dense, to be read before anything else in this package.

The engines compute the same numbers from packed arrays, in compiled loops, part by part. This module has them in the
order of the paper and in its words, for problems of a few thousand table entries; tests compare every engine with it.

All tables of all instances are stacked, one row per (instance, cluster, state). So a vector over rows is a set of
beliefs, and every sum of the paper is a product with a matrix:

    pi                                (rows,)             beliefs of all clusters                      ``beliefs``
    f(c_i)                            (rows, weights)     features                                     ``features``
    h(c_i)                            (rows, multipliers) +1 and -1 where two clusters must agree      ``disagreement``
    sum_{c_i without s_ij} pi_i       (sepset states, rows)  marginals of the first cluster of an edge ``to_sepsets``
    kappa_i, lambda_ij                                    counting numbers of clusters and sepsets
    M                                                     samples that a row stands for (1 in conditional learning)

Signs: g is *subtracted* in Eq. 10, so the exponent of a belief holds ``- g`` (the formula below Eq. 11 prints ``+ g``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import xlogy

from bactrian.graphs.graph import ClusterGraph
from bactrian.graphs.loglinear import Instance, Samples

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class PlainProblem:
    """The tables of a data set, stacked; see the module for names and shapes.

    The paper's running example (Eq. 8) is three pairs of binary variables with the features f00 and f11:

    >>> import bactrian as bt
    >>> graph = bt.ClusterGraph([2, 2, 2], [(0, 1), (1, 2), (0, 2)])
    >>> model = bt.LogLinearModel(graph, [[[1, 0], [0, 0], [0, 0], [0, 1]]] * 3)
    >>> data = bt.Samples(model, [[0, 0, 1], [0, 1, 0], [1, 0, 0]])
    >>> weights, beliefs, objectives = plain_problem(data, prior_variance=1e3).learn(1e-6)
    >>> beliefs[:4].round(2).tolist()  # of the first pair
    [0.33, 0.33, 0.33, 0.0]
    """

    features: Floats
    disagreement: Floats
    to_sepsets: Floats
    table: Ints  #: (rows,) which table a row belongs to
    base: Floats  #: (rows,) fixed scores
    numbers: Floats  #: (rows,) kappa
    sepset_numbers: Floats  #: (sepset states,) lambda
    samples: Floats  #: (rows,) M
    sepset_samples: Floats  #: (sepset states,) M
    observed: Floats  #: (weights,) f_hat, the sum of the features over the data
    observed_base: float
    prior_variance: float | None

    # --- the primal: maximum entropy under constraints ---

    def sepset_marginals(self, beliefs: Floats) -> Floats:
        """mu_ij(s_ij) = sum_{c_i without s_ij} pi_i(c_i) (Eq. 5)."""
        return self.to_sepsets @ beliefs

    def violation(self, beliefs: Floats) -> float:
        """Largest disagreement of two clusters on a sepset state (Eq. 5, and (b) of Eq. 7)."""
        return float(np.abs(beliefs @ self.disagreement).max(initial=0.0))

    def entropy(self, beliefs: Floats) -> float:
        """sum_i kappa_i H(pi_i) - sum_ij lambda_ij H(mu_ij), times M (Eq. 6; Bethe's where all numbers are 1)."""
        marginals = self.sepset_marginals(beliefs)
        clusters = -(self.samples * self.numbers) @ xlogy(beliefs, beliefs)
        sepsets = -(self.sepset_samples * self.sepset_numbers) @ xlogy(marginals, marginals)
        return float(clusters - sepsets)

    def penalty(self, beliefs: Floats) -> float:
        """(sigma^2 / 2) |f_hat - E[f]|^2, what a Gaussian prior puts in place of (a) of Eq. 7 (Eq. 4, squared)."""
        if self.prior_variance is None:
            return 0.0
        gap = self.observed - self.moments(beliefs)
        return 0.5 * self.prior_variance * float(gap @ gap)

    def moments(self, beliefs: Floats) -> Floats:
        """E_pi[f], summed over clusters and samples ((a) of Eq. 7)."""
        return (self.samples * beliefs) @ self.features

    def primal(self, beliefs: Floats) -> float:
        """The CAMEL objective (Eq. 7) with the prior's penalty and fixed scores; compare with :meth:`dual`."""
        return self.entropy(beliefs) + self._fixed(beliefs) - self.penalty(beliefs)

    def linearised_primal(self, beliefs: Floats, g: Floats) -> float:
        """The same with the sepset entropies replaced by g (Eq. 10): sum_i kappa_i H(pi_i) - g_i . pi_i."""
        clusters = -(self.samples * self.numbers) @ xlogy(beliefs, beliefs)
        slope = self.samples @ np.multiply(g, beliefs, out=np.zeros_like(g), where=beliefs > 0.0)
        return float(clusters - slope) + self._fixed(beliefs) - self.penalty(beliefs)

    def _fixed(self, beliefs: Floats) -> float:
        scores = np.multiply(self.base, beliefs, out=np.zeros_like(beliefs), where=beliefs > 0.0)
        return float(self.samples @ scores) - self.observed_base

    # --- the dual: local log-linear models with shared weights ---

    def beliefs(self, weights: Floats, multipliers: Floats, g: Floats) -> tuple[Floats, Floats]:
        """pi_i = exp((w.f + delta.h - g_i) / kappa_i) / Z_i, and log Z_i of every table (below Eq. 11)."""
        scores = (self.features @ weights + self.base + self.disagreement @ multipliers - g) / self.numbers
        top = np.full(self.table[-1] + 1, -np.inf)
        np.maximum.at(top, self.table, scores)
        powers = np.exp(scores - top[self.table])
        sums = np.bincount(self.table, weights=powers)
        return powers / sums[self.table], top + np.log(sums)

    def dual(self, weights: Floats, multipliers: Floats, g: Floats) -> tuple[float, Floats]:
        """Minus Eq. 12, D = sum_i M kappa_i log Z_i - w.f_hat + |w|^2 / 2 sigma^2, and its gradient over (w, delta)."""
        beliefs, log_z = self.beliefs(weights, multipliers, g)
        first_rows = np.searchsorted(self.table, np.arange(log_z.size))
        value = float((self.samples * self.numbers)[first_rows] @ log_z - weights @ self.observed) - self.observed_base
        by_weights = self.moments(beliefs) - self.observed
        if self.prior_variance is not None:
            value += 0.5 * float(weights @ weights) / self.prior_variance
            by_weights = by_weights + weights / self.prior_variance
        return value, np.concatenate([by_weights, (self.samples * beliefs) @ self.disagreement])

    # --- the concave-convex procedure ---

    def linearisation(self, beliefs: Floats) -> Floats:
        """g_i(c_i) = sum_j lambda_ij (-1 - log mu_ij(s_ij)), on the first cluster of every edge (below Eq. 12)."""
        with np.errstate(divide="ignore"):
            slope = -1.0 - np.log(self.sepset_marginals(beliefs))
        used = self.sepset_numbers > 0.0
        weighted = np.multiply(self.sepset_numbers, slope, out=np.zeros_like(slope), where=used)
        on_rows = np.where(self.to_sepsets > 0.0, weighted[:, None], 0.0)
        return on_rows.sum(axis=0)

    def solve(self, g: Floats, point: Floats, tolerance: float = 1e-10) -> Floats:
        """(w, delta) that minimise D at fixed g (Eq. 12), by damped Newton steps; the gauge of delta stays as it is."""
        n_weights = self.observed.size
        columns = np.hstack([self.features, self.disagreement])
        for _ in range(200):
            value, gradient = self.dual(point[:n_weights], point[n_weights:], g)
            if np.abs(gradient).max() <= tolerance * max(1.0, self.samples.max()):
                break
            beliefs, log_z = self.beliefs(point[:n_weights], point[n_weights:], g)
            means = np.zeros((log_z.size, columns.shape[1]))
            np.add.at(means, self.table, beliefs[:, None] * columns)
            centred = columns - means[self.table]
            curvature = (centred.T * (self.samples * beliefs / self.numbers)) @ centred
            if self.prior_variance is not None:
                curvature[np.arange(n_weights), np.arange(n_weights)] += 1.0 / self.prior_variance
            step = -np.linalg.lstsq(curvature, gradient, rcond=1e-13)[0]
            trial = point + step
            while self.dual(trial[:n_weights], trial[n_weights:], g)[0] > value and np.abs(trial - point).max() > 1e-12:
                trial = 0.5 * (point + trial)
            point = trial
        return point

    def learn(self, tolerance: float = 1e-8, most: int = 500) -> tuple[Floats, Floats, list[float]]:
        """Solve and relinearise from g = 0 until no belief changes by more; weights, beliefs, and Eq. 7 after each."""
        n_weights = self.observed.size
        point = np.zeros(n_weights + self.disagreement.shape[1])
        g = np.zeros(self.base.size)
        before: Floats | None = None
        objectives = []
        for _ in range(most):
            point = self.solve(g, point)
            weights, multipliers = point[:n_weights], point[n_weights:]
            beliefs = self.beliefs(weights, multipliers, g)[0]
            objectives.append(self.primal(beliefs))
            settled = before is not None and float(np.abs(beliefs - before).max()) <= tolerance
            if settled or not self.sepset_numbers.any():
                break
            before, g = beliefs, self.linearisation(beliefs)
        return weights, beliefs, objectives


def plain_problem(
    data: Samples | Sequence[Instance],
    *,
    entropy: str = "bethe",
    consistency: bool = True,
    prior_variance: float | None = None,
) -> PlainProblem:
    """Stack the tables of ``data``; piecewise training (Eq. 9) is ``entropy="clusters"`` without ``consistency``."""
    instances = (
        [(data.model, data.X, data.sample_weight)]
        if isinstance(data, Samples)
        else [(instance.model, instance.y[None], np.array([instance.weight])) for instance in data]
    )
    n_weights = instances[0][0].n_weights
    scopes: list[tuple[int, ...]] = []  # of all tables of all instances
    edges: list[tuple[int, int, tuple[int, ...], float]] = []
    shapes, features, base, samples = [], [], [], []
    observed, observed_base = np.zeros(n_weights), 0.0
    for model, X, weight in instances:
        graph = model.graph
        assert isinstance(graph, ClusterGraph)
        own_scopes, own_edges = _clusters_and_edges(graph, entropy, consistency)
        offset, total = len(scopes), float(weight.sum())
        edges += [(offset + i, offset + j, sepset, total) for i, j, sepset in own_edges]
        for i, scope in enumerate(own_scopes):
            given = i < len(graph.clusters)
            shape, size = graph.shape(scope), graph.size(scope)
            matrix = model.features[i] if given else None
            matrix = np.zeros((size, n_weights)) if matrix is None else matrix.toarray()
            fixed = model.base_scores[i] if given else None
            fixed = np.zeros(size) if fixed is None else fixed
            states = np.ravel_multi_index(tuple(X[:, list(scope)].T), shape)
            observed += weight @ matrix[states]
            observed_base += float(weight @ fixed[states])
            scopes.append(scope)
            shapes.append(shape)
            features.append(matrix)
            base.append(fixed)
            samples.append(np.full(size, total))
    sizes = np.array([len(table) for table in base])
    starts = np.concatenate([[0], np.cumsum(sizes)])
    columns: list[Floats] = []
    marginals: list[Floats] = []
    edge_samples: list[Floats] = []
    for i, j, sepset, total in edges:
        first, second = (_marginal_matrix(scopes[end], shapes[end], sepset) for end in (i, j))
        column = np.zeros((starts[-1], first.shape[0]))
        column[starts[i] : starts[i + 1]] = first.T
        marginals.append(column.T.copy())
        column[starts[j] : starts[j + 1]] = -second.T
        columns.append(column)
        edge_samples.append(np.full(first.shape[0], total))
    empty = np.zeros((starts[-1], 0))
    to_sepsets = np.vstack([*marginals, empty.T])
    return PlainProblem(
        features=np.vstack(features),
        disagreement=np.hstack([*columns, empty]),
        to_sepsets=to_sepsets,
        table=np.repeat(np.arange(sizes.size), sizes),
        base=np.concatenate(base),
        numbers=np.ones(starts[-1]),
        sepset_numbers=np.full(to_sepsets.shape[0], 1.0 if entropy == "bethe" else 0.0),
        samples=np.concatenate(samples),
        sepset_samples=np.concatenate([*edge_samples, np.zeros(0)]),
        observed=observed,
        observed_base=observed_base,
        prior_variance=prior_variance,
    )


def _clusters_and_edges(
    graph: ClusterGraph, entropy: str, consistency: bool
) -> tuple[list[tuple[int, ...]], list[tuple[int, int, tuple[int, ...]]]]:
    """Scopes that have an entropy, and edges among them.

    A hub that a Bethe graph appends counts 0 in the clusters-only entropy: there the clusters around it agree with the
    first of them instead.
    """
    scopes = list(graph.all_clusters)
    edges = list(graph.edges) if consistency else []
    if entropy == "bethe":
        return scopes, edges
    n_given = len(graph.clusters)
    covered = {v for scope in graph.clusters for v in scope}
    kept = [edge for edge in edges if edge[1] < n_given]
    around: dict[int, list[int]] = {}
    for i, hub, sepset in edges:
        if hub >= n_given:
            around.setdefault(sepset[0], []).append(i)
    for variable, (first, *others) in around.items():
        kept += [(first, other, (variable,)) for other in others]
    return scopes[:n_given] + [scope for scope in scopes[n_given:] if scope[0] not in covered], kept


def _marginal_matrix(scope: tuple[int, ...], shape: tuple[int, ...], sepset: tuple[int, ...]) -> Floats:
    """(sepset states, states of the scope): 1 where a state agrees with a sepset state."""
    axes = [scope.index(v) for v in sepset]
    states = np.unravel_index(np.arange(int(np.prod(shape))), shape)
    index = np.ravel_multi_index([states[a] for a in axes], [shape[a] for a in axes])
    return (index == np.arange(int(np.prod([shape[a] for a in axes])))[:, None]).astype(np.float64)
