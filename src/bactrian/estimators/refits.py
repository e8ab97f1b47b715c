"""Refits of a pairwise field to other weights of its rows: the bootstrap, and a test whether two groups differ.

A refit begins at the weights of the field and takes steps of A^+ (:mod:`bactrian.estimators.uncertainty`), whose error
falls with sqrt(rows): a few reach the tolerance of learning. Where they do not, the learner starts from there.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy.stats import chi2

from bactrian.arrays import Floats
from bactrian.errors import ArgumentError, check_number
from bactrian.estimators.pairwise import PairwiseTables
from bactrian.estimators.uncertainty import (
    BLOCKS,
    MOST_WORK,
    SINGULAR,
    LearnedRows,
    check_level,
    expected_features,
)
from bactrian.graphs.loglinear import Samples
from bactrian.learners.learn import learn
from bactrian.parallel.threads import Workers, single_threaded_blas
from bactrian.solvers.solution import ConvergenceWarning

#: Steps of a refit, and the largest part that one may leave of the gap, before the learner takes over.
_MOST_STEPS, _PROGRESS = 30, 0.7


def refits(rows: LearnedRows, n: int, counts: Callable[[int], Floats]) -> Floats:
    """(n, P) weights for counts of the distinct rows that depend on the number of the refit alone."""
    found = np.empty((n, rows.weights.size))
    _ = rows.basis, rows.is_incomplete or rows.curvature, rows.is_conditional and rows.conditionals  # once for all

    def task(_: int, first: int, last: int) -> None:
        refit = _refitter(rows)
        for i in range(first, last):
            found[i] = refit(counts(i))

    with single_threaded_blas():
        Workers(rows.n_threads).run(task, np.linspace(0, n, min(n, BLOCKS) + 1).astype(np.int64))
    return found


def _refitter(rows: LearnedRows) -> Callable[[Floats], Floats]:
    """The weights that the learner finds for other counts of the distinct rows; for one thread."""
    if rows.is_incomplete:
        return lambda counts: _learned(rows, counts, rows.weights)
    held, slope = rows.basis.T @ (rows.precision[:, None] * rows.basis), _slope(rows)
    inverses: dict[float, Floats] = {}

    def refit(counts: Floats) -> Floats:
        weights = rows.weights
        total, before = float(counts.sum()), np.inf
        for _ in range(_MOST_STEPS):
            gap = slope(weights, counts) - rows.precision * weights
            size = float(np.abs(gap).max(initial=0.0))
            if size <= rows.options["tolerance"] * total:
                return weights
            if not size <= _PROGRESS * before:
                break
            before, share = size, total / float(rows.counts.sum())
            if share not in inverses:
                inverse = np.linalg.pinv(share * rows.curvature + held, rcond=SINGULAR, hermitian=True)
                inverses[share] = np.asarray(inverse)
            weights = weights + np.asarray(rows.basis @ (inverses[share] @ (rows.basis.T @ gap)))
        return _learned(rows, counts, weights if np.isfinite(weights).all() else None)

    return refit


def _slope(rows: LearnedRows) -> Callable[[Floats, Floats], Floats]:
    """Summed scores (P,) as a function of the weights and of counts of the distinct rows; for one thread."""
    matrix, origin = rows.contrasts.matrix, rows.contrasts.origin
    if rows.is_conditional:
        return lambda weights, counts: matrix.T @ rows.conditionals.slope(matrix @ weights, counts)
    expected = expected_features(rows.model, rows.method)
    observed = rows.contrasts.statistics(rows.contrasts.indicators(rows.distinct[0]))
    return lambda weights, counts: matrix.T @ (counts @ observed) + counts.sum() * (origin - expected(weights))


def _learned(rows: LearnedRows, counts: Floats, start: Floats | None) -> Floats:
    """The weights that the learner itself finds."""
    seen = counts > 0.0
    samples = Samples(rows.model, rows.distinct[0][seen], counts[seen])
    with np.errstate(divide="ignore"), warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        options = {"prior_variance": 1.0 / rows.precision, "n_threads": 1, "start": start, **rows.options}
        return learn(samples, rows.method, **options).weights


# --- bootstrap ---


@dataclass(frozen=True, eq=False)
class Bootstrap:
    """Refits of a field to samples of its rows, with replacement (Efron, Annals of Statistics 7(1), 1979).

    Attributes
    ----------
    weights : (n, n_weights)
        Weights of each refit.
    stability : (n_edges,)
        Share of the refits in which an edge's interaction points the same way as in the field: has the same sign where
        both variables have two states, and elsewhere a positive product with its centred table.
    """

    weights: Floats
    stability: Floats
    answers: Callable[[Floats], Any] = field(repr=False)  #: what answers questions with given weights

    @staticmethod
    def of(rows: LearnedRows, n: int, seed: int, answers: Callable[[Floats], Any]) -> Bootstrap:
        """Refit to ``n`` samples."""
        check_number("n", n, least=2, whole=True)
        check_number("seed", seed, least=0, whole=True)
        (states, of), contrasts = rows.distinct, rows.contrasts

        def counts(i: int) -> Floats:
            times = np.random.default_rng([int(seed), i]).multinomial(of.size, np.full(of.size, 1.0 / of.size))
            return np.bincount(of, times * rows.samples.sample_weight, len(states)).astype(np.float64)

        weights, stability = refits(rows, int(n), counts), np.empty(len(rows.edges))
        own, others = rows.weights[None] @ contrasts.matrix.T, weights @ contrasts.matrix.T
        for e in range(len(rows.edges)):
            agreement = contrasts.centred(e, own) * contrasts.centred(e, others)
            stability[e] = np.mean(agreement.sum(axis=(1, 2)) > 0.0)
        return Bootstrap(weights, stability, answers)

    def confint(
        self, event: Mapping[Any, Any] | None = None, given: Mapping[Any, Any] | None = None, *, level: float = 0.95
    ) -> Any:
        """Percentile intervals: (n_weights, 2) of the weights, or (low, high) of P(event | given)."""
        check_level(level)
        at = [0.5 - 0.5 * level, 0.5 + 0.5 * level]
        if event is None:
            return np.quantile(self.weights, at, axis=0).T
        chances = [self.answers(weights).probability(event, given) for weights in self.weights]
        low, high = np.quantile(chances, at)
        return float(low), float(high)


# --- two groups ---


@dataclass(frozen=True, eq=False)
class GroupComparison:
    """Whether two groups differ in their interactions; see :func:`compare`.

    Attributes
    ----------
    p_value : float
        Of all edges together.
    edges : list of pairs
        Edges of either field, by name.
    p_values, adjusted : (n_edges,)
        Of each edge alone; and such that the chance of any false one below ``alpha`` is at most ``alpha``.
    differences : list of arrays
        Centred tables of each edge, of the first group less those of the second.
    n_permutations : int
    """

    p_value: float
    edges: list[tuple[Any, Any]]
    p_values: Floats
    adjusted: Floats
    differences: list[Floats] = field(repr=False)
    n_permutations: int


def compare(field_a: Any, field_b: Any, *, n_permutations: int = 1000, seed: int = 0) -> GroupComparison:
    """Do two groups differ, and in which edges? A permutation test on the rows that two fields were fitted to.

    Fields of both groups are refitted with the edges of either, and with the first one's prior: by pseudo-likelihood,
    unless both have the same edges and the same method, which takes little time. An edge's statistic is its squared
    difference over its covariance, that of all edges the sum; ``adjusted`` are by the largest statistic (Westfall and
    Young, Resampling-Based Multiple Testing, 1993). Permutations suppose that groups which do not differ in edges do
    not differ in frequencies either; where they do, p-values are approximate, as the statistics are studentised.

    Parameters
    ----------
    field_a, field_b : MarkovRandomField
        Fitted to rows of the same variables with the same states, and full tables.
    n_permutations : int
    seed : int

    Examples
    --------
    >>> import bactrian as bt
    >>> a = bt.MarkovRandomField().fit([[0, 0], [1, 1]] * 20 + [[0, 1], [1, 0]] * 5)
    >>> b = bt.MarkovRandomField().fit([[0, 0], [1, 1]] * 5 + [[0, 1], [1, 0]] * 20)
    >>> bt.compare(a, b, n_permutations=99).p_value
    0.01
    """
    check_number("n_permutations", n_permutations, least=1, whole=True)
    check_number("seed", seed, least=0, whole=True)
    pooled, first = _pooled(field_a.rows_, field_b.rows_)
    n = int(n_permutations)
    states, of = pooled.distinct
    weight, contrasts = pooled.samples.sample_weight, pooled.contrasts

    def counts(i: int) -> Floats:
        order = np.random.default_rng([seed, i // 2]).permutation(of.size) if i > 1 else np.arange(of.size)
        group = order[:first] if i % 2 == 0 else order[first:]
        return np.bincount(of[group], weight[group], len(states)).astype(np.float64)

    theta = refits(pooled, 2 * (n + 1), counts) @ contrasts.matrix.T
    gaps = theta[::2] - theta[1::2]
    edges = range(len(contrasts.edges))
    squares = np.empty((n + 1, len(edges)))
    for e in edges:
        block = contrasts.block(e)
        inverse = np.linalg.pinv(pooled.covariance.theta[block, block], hermitian=True)
        squares[:, e] = np.einsum("nq,qr,nr->n", gaps[:, block], inverse, gaps[:, block])
    sizes = np.maximum(np.diff(contrasts.edge_first), 1)
    share = first / of.size
    rarity = -chi2.logsf(squares * share * (1.0 - share), sizes)  # edges with tables of other sizes are comparable
    largest, total = rarity.max(axis=1, initial=0.0), squares.sum(axis=1)
    return GroupComparison(
        p_value=float(np.mean(total >= total[0])),
        edges=[(pooled.variables.names[u], pooled.variables.names[v]) for u, v in contrasts.edges.tolist()],
        p_values=np.mean(rarity >= rarity[0], axis=0),
        adjusted=np.mean(largest[:, None] >= rarity[0], axis=0),
        differences=[contrasts.centred(e, gaps[:1])[0] for e in edges],
        n_permutations=n,
    )


def _pooled(a: LearnedRows, b: LearnedRows) -> tuple[LearnedRows, int]:
    """The rows of both fields, learned together, and the number of those of the first."""
    if (a.variables.names, a.variables.states) != (b.variables.names, b.variables.states):
        raise ArgumentError("field_b", "must have the variables and states of field_a")
    alike = np.array_equal(a.edges, b.edges) and a.model.n_weights == b.model.n_weights
    model, edges, precision, method = a.model, a.edges, a.precision, a.method
    if not alike:
        edges = np.unique(np.sort(np.concatenate([a.edges, b.edges]), axis=1), axis=0)
        model = PairwiseTables("full", a.model.graph.cardinalities, edges).model
        n = int(a.model.graph.cardinalities.sum())
        of_edges = [own.precision[n:] for own in (a, b) if len(own.edges)]
        precision = np.repeat([a.precision[:n].mean(), np.mean(of_edges[0])], [n, model.n_weights - n])
    if not alike or a.method != b.method or 2.0 * model.n_weights * a.work > MOST_WORK:
        method = "pseudolikelihood"
    weight = np.concatenate([a.samples.sample_weight, b.samples.sample_weight])
    samples = Samples(model, np.concatenate([a.samples.X, b.samples.X]), weight)
    with np.errstate(divide="ignore"):
        learned = learn(samples, method, prior_variance=1.0 / precision, n_threads=a.n_threads, **a.options)
    own = {"model": model, "edges": edges, "samples": samples, "precision": precision, "method": method}
    return replace(a, weights=learned.weights, **own), len(a.samples.X)
