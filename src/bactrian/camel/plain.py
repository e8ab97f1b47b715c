"""CAMEL in plain NumPy: Eq. 5 to 12 of the paper, dense, to be read before anything else in this package.

The engines compute the same numbers from packed arrays, in compiled loops, part by part. This module has them in the
order of the paper and in its words, and the default algorithm with them, for problems of a few thousand table entries;
tests compare every engine with it.

All tables of all instances are stacked, one row per (instance, cluster, state). So a vector over rows is a set of
beliefs, and every sum of the paper is a product with a matrix:

    pi                                (rows,)             beliefs of all clusters                      ``beliefs``
    f(c_i)                            (rows, weights)     features                                     ``features``
    h(c_i)                            (rows, multipliers) +1 and -1 where two clusters must agree      ``disagreement``
    sum_{c_i without s_ij} pi_i       (sepset states, rows)  marginals of the first cluster of an edge ``to_sepsets``
    kappa_i, lambda_ij                                    counting numbers of clusters and sepsets
    M                                                     samples that a row stands for (1 in conditional learning)

Signs: g is *subtracted* in Eq. 10, so the exponent of a belief holds ``- g`` (the formula below Eq. 11 prints ``+ g``).
A hub whose number is 0 has no exponent of its own: it believes what the first cluster around it does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import xlogy

from bactrian.camel.entropy import CountingNumbers
from bactrian.graphs.graph import ClusterGraph
from bactrian.graphs.loglinear import Instance, Samples

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Star(NamedTuple):
    """Edges that lead to one sepset of a cluster: a hub and the clusters around it, or a single explicit edge."""

    centre: Ints  #: (sepset states, n) rows of the second cluster of these edges
    clusters: list[Ints]  #: (sepset states, n) rows of the first cluster of each
    multipliers: list[Ints]  #: (sepset states,) multipliers of each


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
    stars: list[Star]
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

    def scores(self, weights: Floats, multipliers: Floats, g: Floats) -> Floats:
        """w.f(c_i) + delta.h(c_i) - g_i(c_i), with fixed scores."""
        return self.features @ weights + self.base + self.disagreement @ multipliers - g

    def beliefs(self, weights: Floats, multipliers: Floats, g: Floats) -> tuple[Floats, Floats]:
        """pi_i = exp((w.f + delta.h - g_i) / kappa_i) / Z_i, and kappa_i log Z_i of every table (below Eq. 11)."""
        scores, first = self.scores(weights, multipliers, g), np.flatnonzero(np.diff(self.table, prepend=-1))
        counted = self.numbers != 0.0
        scaled = np.divide(scores, self.numbers, out=scores.copy(), where=counted)
        top = np.maximum.reduceat(scaled, first)
        powers = np.exp(scaled - top[self.table])
        sums = np.add.reduceat(powers, first)
        beliefs = np.where(counted, powers / sums[self.table], 0.0)
        for star in self.stars:
            if not counted[star.centre[0, 0]]:
                beliefs[star.centre[:, 0]] = beliefs[star.clusters[0]].sum(axis=1)
        return beliefs, np.where(counted[first], self.numbers[first] * (top + np.log(sums)), top)

    def dual(self, weights: Floats, multipliers: Floats, g: Floats) -> tuple[float, Floats]:
        """Minus Eq. 12, D = sum_i M kappa_i log Z_i - w.f_hat + |w|^2 / 2 sigma^2, and its gradient over (w, delta)."""
        beliefs, values = self.beliefs(weights, multipliers, g)
        first_rows = np.searchsorted(self.table, np.arange(values.size))
        value = float(self.samples[first_rows] @ values - weights @ self.observed) - self.observed_base
        by_weights = self.moments(beliefs) - self.observed
        if self.prior_variance is not None:
            value += 0.5 * float(weights @ weights) / self.prior_variance
            by_weights = by_weights + weights / self.prior_variance
        return value, np.concatenate([by_weights, (self.samples * beliefs) @ self.disagreement])

    # --- the default algorithm: multipliers by star updates, inside of an optimiser of the weights ---

    def update_star(self, star: Star, scores: Floats, multipliers: Floats) -> float:
        """Make a star agree, which minimises D over its multipliers; returns the largest change of a marginal.

        With m_a the marginal of cluster a without the star's multipliers, and t that of the centre times kappa_v:
        log b = (t + sum kappa_a log m_a) / (kappa_v + sum kappa_a), delta_a = kappa_a (log b - log m_a). Multipliers
        and the scores that contain them are changed in place.
        """
        kappa_v = self.numbers[star.centre[0, 0]]
        centre = scores[star.centre] + np.sum(multipliers[star.multipliers], axis=0)[:, None]
        log_b, total = centre[:, 0] if kappa_v == 0.0 else kappa_v * _log_sum(centre / kappa_v), kappa_v
        around = []
        for rows, place in zip(star.clusters, star.multipliers, strict=True):
            kappa = self.numbers[rows[0, 0]]
            log_m = _log_sum((scores[rows] - multipliers[place, None]) / kappa)
            log_b, total = log_b + kappa * log_m, total + kappa
            around.append((rows, place, kappa, log_m))
        log_b = log_b / total - _log_sum(log_b[None] / total)
        change = 0.0
        for rows, place, kappa, log_m in around:
            before, step = log_m + multipliers[place] / kappa, kappa * (log_b - log_m) - multipliers[place]
            change = max(change, float(np.abs(np.exp(log_b) - np.exp(before - _log_sum(before[None]))).max()))
            multipliers[place] += step
            scores[rows] += step[:, None]
            scores[star.centre] -= step[:, None]
        return change

    def profiled(self, weights: Floats, multipliers: Floats, g: Floats, tolerance: float) -> tuple[float, Floats]:
        """D minimised over the multipliers, in place, and its gradient in w, by the envelope theorem that of D."""
        scores = self.scores(weights, multipliers, g)
        for _ in range(10_000):
            if max((self.update_star(star, scores, multipliers) for star in self.stars), default=0.0) <= tolerance:
                break
        value, gradient = self.dual(weights, multipliers, g)
        return value, gradient[: weights.size]

    def solve(self, g: Floats, point: Floats, tolerance: float = 1e-10) -> Floats:
        """(w, delta) that minimise D at fixed g (Eq. 12); the gauge of delta is that of the star updates."""
        multipliers, scale = point[self.observed.size :].copy(), max(1.0, self.samples.max())

        def scaled(weights: Floats) -> tuple[float, Floats]:
            value, gradient = self.profiled(weights, multipliers, g, tolerance)
            return value / scale, gradient / scale

        options = {"maxiter": 10_000, "maxfun": 100_000, "ftol": 0.0, "gtol": tolerance, "maxcor": 20}
        found = minimize(scaled, point[: self.observed.size], jac=True, method="L-BFGS-B", options=options)
        scaled(found.x)
        return np.concatenate([found.x, multipliers])

    # --- the concave-convex procedure ---

    def linearisation(self, beliefs: Floats) -> Floats:
        """g_i(c_i) = sum_j lambda_ij (-1 - log mu_ij(s_ij)), on the first cluster of every edge (below Eq. 12)."""
        with np.errstate(divide="ignore"):
            slope = -1.0 - np.log(self.sepset_marginals(beliefs))
        used = self.sepset_numbers > 0.0
        weighted = np.multiply(self.sepset_numbers, slope, out=np.zeros_like(slope), where=used)
        on_rows = np.where(self.to_sepsets > 0.0, weighted[:, None], 0.0)
        return on_rows.sum(axis=0)

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
    entropy: str | CountingNumbers = "bethe",
    consistency: bool = True,
    prior_variance: float | None = None,
) -> PlainProblem:
    """Stack the tables of ``data``; piecewise training (Eq. 9) is ``entropy="clusters"`` without ``consistency``.

    Counting numbers are those of all clusters, hubs that the graph appended last, which may be negative, and of edges.
    """
    instances = (
        [(data.model, data.X, data.sample_weight)]
        if isinstance(data, Samples)
        else [(instance.model, instance.y[None], np.array([instance.weight])) for instance in data]
    )
    n_weights = instances[0][0].n_weights
    tables: list[tuple[Floats, Floats, float, float]] = []  # features, fixed scores, M and kappa of each
    edges: list[tuple[Ints, Ints, float, float]] = []  # rows by sepset state of both ends, M and lambda of each
    observed, observed_base, n_rows = np.zeros(n_weights), 0.0, 0
    for model, X, weight in instances:
        graph, total = model.graph, float(weight.sum())
        assert isinstance(graph, ClusterGraph)
        numbers, sepset_numbers = _numbers(graph, entropy)
        starts = n_rows + np.cumsum([0, *map(graph.size, graph.all_clusters)])
        n_rows = int(starts[-1])
        for i, scope in enumerate(graph.all_clusters):
            given, size = i < len(graph.clusters), graph.size(scope)
            matrix, fixed = (model.features[i], model.base_scores[i]) if given else (None, None)
            matrix = np.zeros((size, n_weights)) if matrix is None else matrix.toarray()
            fixed = np.zeros(size) if fixed is None else fixed
            states = np.ravel_multi_index(tuple(X[:, list(scope)].T), graph.shape(scope))
            observed += weight @ matrix[states]
            observed_base += float(weight @ fixed[states])
            tables.append((matrix, fixed, total, numbers[i]))
        for (i, j, sepset), number in zip(graph.edges if consistency else (), sepset_numbers, strict=False):
            ends = (starts[end] + _by_sepset(graph, graph.all_clusters[end], sepset) for end in (i, j))
            edges.append((*ends, total, number))
    sizes = [len(fixed) for _, fixed, _, _ in tables]
    offsets = np.cumsum([0, *(len(first) for first, _, _, _ in edges)])
    disagreement, to_sepsets = np.zeros((n_rows, offsets[-1])), np.zeros((offsets[-1], n_rows))
    stars: dict[bytes, Star] = {}
    for (first, second, _, _), start in zip(edges, offsets, strict=False):
        multipliers = start + np.arange(len(first))
        disagreement[first, multipliers[:, None]], disagreement[second, multipliers[:, None]] = 1.0, -1.0
        to_sepsets[multipliers[:, None], first] = 1.0
        star = stars.setdefault(second.tobytes(), Star(second, [], []))
        star.clusters.append(first)
        star.multipliers.append(multipliers)
    edge_samples, edge_numbers = (np.repeat([e[k] for e in edges], np.diff(offsets)).astype(float) for k in (2, 3))
    return PlainProblem(
        features=np.vstack([matrix for matrix, _, _, _ in tables]),
        disagreement=disagreement,
        to_sepsets=to_sepsets,
        stars=list(stars.values()),
        table=np.repeat(np.arange(len(sizes)), sizes),
        base=np.concatenate([fixed for _, fixed, _, _ in tables]),
        numbers=np.repeat([number for _, _, _, number in tables], sizes),
        sepset_numbers=edge_numbers,
        samples=np.repeat([total for _, _, total, _ in tables], sizes),
        sepset_samples=edge_samples,
        observed=observed,
        observed_base=observed_base,
        prior_variance=prior_variance,
    )


def _numbers(graph: ClusterGraph, entropy: str | CountingNumbers) -> tuple[Floats, Floats]:
    """kappa of all clusters and lambda of all edges; hubs that were appended count 0 without sepset entropies."""
    n, n_given = len(graph.all_clusters), len(graph.clusters)
    if isinstance(entropy, CountingNumbers):
        clusters, sepsets = (np.asarray(numbers, dtype=float) for numbers in (entropy.clusters, entropy.sepsets))
        return np.broadcast_to(clusters, n), np.broadcast_to(sepsets, len(graph.edges))
    covered = {v for scope in graph.clusters for v in scope}
    counted = [
        i < n_given or entropy == "bethe" or scope[0] not in covered for i, scope in enumerate(graph.all_clusters)
    ]
    return np.array(counted, dtype=float), np.full(len(graph.edges), 1.0 if entropy == "bethe" else 0.0)


def _log_sum(scores: Floats) -> Floats:
    """log sum_k exp(scores[:, k])."""
    top = scores.max(axis=1)
    return top + np.log(np.exp(scores - top[:, None]).sum(axis=1))


def _by_sepset(graph: ClusterGraph, scope: tuple[int, ...], sepset: tuple[int, ...]) -> Ints:
    """(sepset states, n) the states of a scope that agree with each state of a sepset."""
    axes = [scope.index(v) for v in sepset]
    states = np.arange(graph.size(scope)).reshape(graph.shape(scope))
    return np.moveaxis(states, axes, range(len(axes))).reshape(graph.size(sepset), -1)
