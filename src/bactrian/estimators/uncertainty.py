"""How sure a fitted pairwise field is: covariances of its weights, and intervals.

What the distribution tells apart of weights w are contrasts theta = M w. With state 0 as each variable's reference,

    log p(x) = sum_vk theta_vk [x_v = k] + sum_ujvk theta_ujvk [x_u = j] [x_v = k] - log Z,    j, k > 0.

The rest of w, the gauge, is held by the prior alone and has no variance here. Learners solve sum_r s_r(w) = Lambda w,
with s_r the score of row r and Lambda the precisions of the prior: features less their expectation, f(x_r) - E_w[f],
under the learner's entropy, or the slope of row r's pseudo-log-likelihood. With J minus the slope of sum_r s_r, A = J +
Lambda, and B the covariance of the summed scores, the covariance of w is

    V = A^+ (B + Lambda) A^+,

where Lambda in the middle is the bias of the prior, squared and averaged over weights that are drawn from it. For the
exact likelihood B = J, so V is the inverse Hessian, and without a prior that of Fisher's information; elsewhere it is
the sandwich of Godambe (Annals of Mathematical Statistics 31(4), 1960) and White (Econometrica 50(1), 1982). Where
states are missing, J is B (Berndt, Hall, Hall and Hausman 1974).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.special import expit, logit
from scipy.stats import norm

from bactrian.arrays import Floats, Ints
from bactrian.camel.camel import Camel
from bactrian.camel.dual import Dual
from bactrian.camel.entropy import carve
from bactrian.camel.prior import Prior
from bactrian.camel.run import Run, Settings
from bactrian.errors import check_number
from bactrian.estimators.pairwise import incomplete_rows, is_forest
from bactrian.frames import Variables
from bactrian.graphs.loglinear import LogLinearModel, Moments, Samples
from bactrian.graphs.packing import pack
from bactrian.graphs.ragged import pointer
from bactrian.inference.infer import infer
from bactrian.learners.learn import METHODS, matched_inference
from bactrian.learners.likelihood import Likelihood
from bactrian.learners.pseudolikelihood import PseudoLikelihood
from bactrian.parallel.threads import Context, Workers, single_threaded_blas

#: Most contrasts whose covariance is worked out: 128 MB.
_MOST_CONTRASTS = 4_000
#: Change of a contrast at which slopes of expectations are taken, on both sides.
_STEP = 1e-3
#: Work that slopes of an exact likelihood may take, 20 s; beyond, its information is that of so many drawn rows, whose
#: standard errors are off by 0.3 %.
MOST_WORK, _DRAWN = 5e9, 1 << 16
#: Eigenvalues below this part of the largest are 0.
SINGULAR = 1e-10
#: Parts of the work for threads; messages that one of them starts from are those of its last evaluation.
BLOCKS = 16
#: Rows whose scores are held at once.
_ROWS_AT_ONCE = 1 << 12


def check_level(level: float) -> float:
    """The normal quantile of a two-sided interval."""
    check_number("level", level, positive=True, below=1)
    return float(norm.ppf(0.5 + 0.5 * level))


@dataclass(frozen=True, eq=False)
class Contrasts:
    """What a pairwise model's distribution tells apart of its weights; S columns for states k > 0, then Q - S pairs."""

    cardinalities: Ints
    edges: Ints
    matrix: sp.csr_array  #: (Q, P), M above
    origin: Floats  #: (P,) features of the row of zeros
    first: Ints  #: (n_variables + 1,) the columns of each variable
    pairs: Ints  #: (Q - S, 2) the columns of each contrast of two variables
    edge_first: Ints  #: (n_edges + 1,) their contrasts

    @staticmethod
    def of(model: LogLinearModel, edges: Ints) -> Contrasts:
        """Those of a model whose clusters are variables and edges."""
        sizes, clusters = model.graph.cardinalities, model.graph.clusters
        first = pointer(sizes - 1)
        of_edge = (sizes[edges] - 1).prod(axis=1) if len(edges) else np.zeros(0, dtype=np.int64)
        edge_first = int(first[-1]) + pointer(of_edge)
        if edge_first[-1] > _MOST_CONTRASTS:
            raise ValueError(
                f"intervals need the covariance of all free weights, at most {_MOST_CONTRASTS}; the field has "
                f"{edge_first[-1]}. Select edges, or name fewer of them"
            )
        number = {(u, v): e for e, (u, v) in enumerate(edges.tolist())}
        rows, columns, signs, pairs, start = [], [], [], [np.zeros((0, 2), dtype=np.int64)], 0
        for scope in clusters:
            shape = model.graph.shape(scope)
            states = np.indices(shape).reshape(len(shape), -1)
            for axis, v in enumerate(scope):  # alone: the others at 0
                alone = np.flatnonzero((np.delete(states, axis, axis=0) == 0).all(axis=0))[1:]
                rows += [first[v] + np.arange(alone.size)] * 2
                columns += [start + alone, np.full(alone.size, start)]
                signs += [np.ones(alone.size), -np.ones(alone.size)]
            if len(scope) == 2:
                j, k = states[:, (states > 0).all(axis=0)]
                e = edge_first[number[scope[0], scope[1]]] + np.arange(j.size)
                for at, sign in ((j * shape[1] + k, 1.0), (j * shape[1], -1.0), (k, -1.0), (0 * k, 1.0)):
                    rows.append(e)
                    columns.append(start + at)
                    signs.append(np.full(j.size, sign))
            start += int(np.prod(shape))
        for u, v in edges.tolist():
            j, k = np.indices((sizes[u] - 1, sizes[v] - 1)).reshape(2, -1)
            pairs.append(np.stack([first[u] + j, first[v] + k], axis=1))
        entries = (np.concatenate(signs), (np.concatenate(rows), np.concatenate(columns)))
        features = sp.csr_array(sp.vstack([table for table in model.features if table is not None]))
        matrix = sp.csr_array(sp.csr_array(entries, shape=(int(edge_first[-1]), start)) @ features)
        starts = pointer(model.graph.sizes[: len(clusters)])[:-1]
        return Contrasts(sizes, edges, matrix, features[starts].sum(axis=0), first, np.concatenate(pairs), edge_first)

    def indicators(self, states: Ints) -> Floats:
        """(n, S) whether each variable is in each state k > 0; nowhere where it is missing."""
        owner = np.repeat(np.arange(self.cardinalities.size), self.cardinalities - 1)
        state = np.arange(owner.size) - self.first[owner] + 1
        return (states[:, owner] == state).astype(np.float64)

    def statistics(self, indicators: Floats) -> Floats:
        """(n, Q) what the contrasts multiply in the score of each row."""
        a, b = self.pairs.T
        return np.hstack([indicators, indicators[:, a] * indicators[:, b]])

    def expected(self, variables: Sequence[Floats], tables: Sequence[Floats]) -> Floats:
        """(Q,) expectations of the statistics, from marginals of variables and of edges."""
        return np.concatenate([np.zeros(0), *(p[1:] for p in variables), *(t[1:, 1:].ravel() for t in tables)])

    def block(self, e: int) -> slice:
        """The contrasts of an edge."""
        return slice(*self.edge_first[e : e + 2])

    def centred(self, e: int, theta: Floats) -> Floats:
        """Tables (n, K_u, K_v) of an edge whose rows and columns sum to zero, from contrasts (n, Q)."""
        shape = self.cardinalities[self.edges[e]] - 1
        tables = np.pad(theta[:, self.block(e)].reshape(len(theta), *shape), [(0, 0), (1, 0), (1, 0)])
        tables -= tables.mean(axis=1, keepdims=True)
        return np.asarray(tables - tables.mean(axis=2, keepdims=True))

    def basis(self, precision: Floats) -> Floats:
        """(P, at most Q) directions in which the weights move the distribution, and the prior has no gauge."""
        gram = self.matrix @ self.matrix.T
        thin = gram.shape[0] < self.matrix.shape[1]
        values, vectors = np.linalg.eigh((gram if thin else self.matrix.T @ self.matrix).toarray())
        kept = values > SINGULAR * values.max(initial=0.0)
        rows = self.matrix.T @ (vectors[:, kept] / np.sqrt(values[kept])) if thin else vectors[:, kept]
        if not precision.any():
            return np.asarray(rows)
        least = 1e-6 * precision[precision > 0.0].min()
        return np.asarray(rows) * (precision.max() / np.maximum(precision, least))[:, None]


# --- scores and curvatures ---


class _Conditionals:
    """Pseudo-log-likelihood of rows as a function of the contrasts."""

    def __init__(self, contrasts: Contrasts, states: Ints) -> None:
        self.of, self.indicators = contrasts, contrasts.indicators(states)
        sizes = contrasts.cardinalities - 1
        self._starts, self._sizes = contrasts.first[:-1][sizes > 0], sizes[sizes > 0]

    def probabilities(self, theta: Floats, rows: slice = slice(None)) -> Floats:
        """(n, S) of each state k > 0 given the other variables of its row."""
        n, (a, b) = self.indicators.shape[1], self.of.pairs.T
        coupling = np.zeros((n, n))
        coupling[a, b] = coupling[b, a] = theta[n:]
        scores = self.indicators[rows] @ coupling + theta[:n]
        if not n:
            return scores
        largest = np.maximum(np.maximum.reduceat(scores, self._starts, axis=1), 0.0)
        scores -= np.repeat(largest, self._sizes, axis=1)
        np.exp(scores, out=scores)
        total = np.exp(-largest) + np.add.reduceat(scores, self._starts, axis=1)
        return np.asarray(scores / np.repeat(total, self._sizes, axis=1))

    def slope(self, theta: Floats, counts: Floats) -> Floats:
        """(Q,) of the sum over rows, each weighted by its count."""
        a, b = self.of.pairs.T
        left = (self.indicators - self.probabilities(theta)) * counts[:, None]
        both = self.indicators.T @ left
        return np.concatenate([left.sum(axis=0), both[a, b] + both[b, a]])

    def scores(self, theta: Floats, rows: slice) -> Floats:
        """(n, Q) slope of each row."""
        (a, b), seen = self.of.pairs.T, self.indicators[rows]
        left = seen - self.probabilities(theta, rows)
        return np.hstack([left, seen[:, a] * left[:, b] + seen[:, b] * left[:, a]])

    def curvature(self, theta: Floats, counts: Floats) -> Floats:
        """(Q, Q) minus the second derivative of the sum over rows."""
        contrasts, n = self.of, self.indicators.shape[1]
        found = np.zeros((len(contrasts.pairs) + n,) * 2)
        p = self.probabilities(theta)
        column = np.concatenate([contrasts.pairs[:, 0], contrasts.pairs[:, 1]])
        other = np.concatenate([contrasts.pairs[:, 1], contrasts.pairs[:, 0]])
        number = n + np.arange(len(contrasts.pairs)) % max(len(contrasts.pairs), 1)
        number = np.concatenate([number, number])
        for first, size in zip(self._starts.tolist(), self._sizes.tolist(), strict=True):
            states = range(first, first + size)
            around = [np.flatnonzero(column == j) for j in states]
            for j in states:
                seen = np.hstack([np.ones((len(p), 1)), self.indicators[:, other[around[j - first]]]])
                for k in states:
                    weight = counts * p[:, j] * ((j == k) - p[:, k])
                    beside = np.hstack([np.ones((len(p), 1)), self.indicators[:, other[around[k - first]]]])
                    at = [np.append(i, number[around[i - first]]) for i in (j, k)]
                    found[np.ix_(*at)] += seen.T @ (weight[:, None] * beside)
        return found


def _learner(method: Any) -> Any:
    return METHODS.get(method) if isinstance(method, str) else method


def expected_features(model: LogLinearModel, method: Any) -> Callable[[Floats], Floats]:
    """E_w[f] as a function of w, under the entropy of a learner; not to be called by two threads at once."""
    inference, options = matched_inference(method)
    edges = np.array([scope for scope in model.graph.clusters if len(scope) == 2], dtype=np.int64).reshape(-1, 2)
    if inference == "rbp" and is_forest(model.graph.n_variables, edges):
        inference = "exact"
    learner, context = Likelihood(inference), Context(Workers(1))
    data = pack(Moments(model, np.zeros(model.n_weights), 1.0))
    run = Run(Settings(Prior(None), 1e-9, 1 << 30, 1), context, data, learner.name)
    junction = learner.junction(data)
    packed = data if junction is None else junction.packed
    numbers = options.get("counting_numbers")
    carving = partial(learner.carving, context=context) if numbers is None else carve(packed, numbers).whole
    objective = learner.objective(Dual(packed, carving, Prior(None), context), learner.accuracy(run))
    return lambda weights: np.array(objective.value_and_gradient(weights)[1])


# --- covariances ---


@dataclass(frozen=True, eq=False)
class Covariance:
    """Covariance of contrasts (Q, Q), and the map (P, Q) from these to weights in the gauge of the prior."""

    contrasts: Contrasts
    theta: Floats
    gauge: Floats

    @staticmethod
    def of(contrasts: Contrasts, theta: Floats, precision: Floats) -> Covariance:
        """From the covariance of the contrasts, as files have it."""
        basis = contrasts.basis(precision)
        return Covariance(contrasts, theta, basis @ np.linalg.pinv(contrasts.matrix @ basis))

    @cached_property
    def weights(self) -> Floats:
        """(P, P) covariance of the weights."""
        return np.asarray(self.gauge @ self.theta @ self.gauge.T)

    @property
    def standard_errors(self) -> Floats:
        """(P,) of the weights."""
        return np.sqrt(np.maximum(np.einsum("pq,pq->p", self.gauge @ self.theta, self.gauge), 0.0))

    def interval(self, probability: float, slope: Floats, level: float) -> tuple[float, float]:
        """Of a probability whose logarithm has this slope in the contrasts; symmetric in log odds."""
        z = check_level(level)
        if not 0.0 < probability < 1.0:
            return probability, probability
        error = np.sqrt(max(float(slope @ self.theta @ slope), 0.0)) / (1.0 - probability)
        low, high = expit(logit(probability) + np.array([-z, z]) * error)
        return float(low), float(high)


@dataclass(frozen=True, eq=False)
class LearnedRows:
    """Rows that a pairwise field was learned from, with what it was learned by."""

    model: LogLinearModel
    variables: Variables
    edges: Ints
    samples: Samples
    weights: Floats
    method: Any
    precision: Floats  #: (P,) of the prior
    options: Mapping[str, Any]  #: of :func:`bactrian.learn`
    n_threads: int | None
    work: float  #: of an evaluation of the exact likelihood, in entries of tables
    draw: Callable[[int], Ints]  #: rows from the model

    def __post_init__(self) -> None:
        method = _learner(self.method)
        known = isinstance(method, Camel) and method.consistency
        known |= isinstance(method, Likelihood) or (isinstance(method, PseudoLikelihood) and not method.piecewise)
        if not known:
            raise ValueError(f"there are no formulas for intervals of {self.method!r}; use bootstrap")

    @cached_property
    def contrasts(self) -> Contrasts:
        """What the model tells apart."""
        return Contrasts.of(self.model, self.edges)

    @property
    def is_conditional(self) -> bool:
        """Whether weights maximise the pseudo-likelihood."""
        return isinstance(_learner(self.method), PseudoLikelihood)

    @cached_property
    def distinct(self) -> tuple[Ints, Ints]:
        """Distinct rows, and which of them each row is."""
        states, of = np.unique(self.samples.X, axis=0, return_inverse=True)
        return states, of.ravel()

    @cached_property
    def counts(self) -> Floats:
        """Weight of each distinct row."""
        states, of = self.distinct
        return np.bincount(of, self.samples.sample_weight, len(states)).astype(np.float64)

    @property
    def is_incomplete(self) -> bool:
        """Whether some states are missing."""
        return bool((self.samples.X < 0).any())

    @cached_property
    def basis(self) -> Floats:
        """(P, n) directions of the weights that matter."""
        return self.contrasts.basis(self.precision)

    @cached_property
    def conditionals(self) -> _Conditionals:
        """The pseudo-likelihood of the distinct rows."""
        return _Conditionals(self.contrasts, self.distinct[0])

    @cached_property
    def curvature(self) -> Floats:
        """(n, n) J of one set of rows along the basis."""
        along = self.contrasts.matrix @ self.basis
        if self.is_incomplete:
            return self.spread
        if self.is_conditional:
            theta = self.contrasts.matrix @ self.weights
            return np.asarray(along.T @ self.conditionals.curvature(theta, self.counts) @ along)
        if self.method == "exact" and 2.0 * along.shape[1] * self.work > MOST_WORK:
            return self._drawn_information(along)
        slopes, steps = np.empty((along.shape[1],) * 2), _STEP / np.abs(along).max(axis=0, initial=1e-300)

        def task(_: int, first: int, last: int) -> None:
            expected = expected_features(self.model, self.method)
            for k in range(first, last):
                step = steps[k] * self.basis[:, k]
                slopes[:, k] = self.basis.T @ (expected(self.weights + step) - expected(self.weights - step))

        n = along.shape[1]
        Workers(self.n_threads).run(task, np.linspace(0, n, min(n, BLOCKS) + 1).astype(np.int64))
        slopes *= self.counts.sum() / (2.0 * steps)
        return 0.5 * (slopes + slopes.T)

    def _drawn_information(self, along: Floats) -> Floats:
        """J from the covariance of drawn rows."""
        rows = self.draw(_DRAWN)
        total, squares = np.zeros(along.shape[1]), np.zeros((along.shape[1],) * 2)
        for first in range(0, _DRAWN, _ROWS_AT_ONCE):
            found = self.contrasts.statistics(self.contrasts.indicators(rows[first : first + _ROWS_AT_ONCE])) @ along
            total += found.sum(axis=0)
            squares += found.T @ found
        return np.asarray(squares - np.outer(total, total) / _DRAWN) * self.counts.sum() / _DRAWN

    @cached_property
    def spread(self) -> Floats:
        """(n, n) B: the sum of squares of the rows' scores along the basis, less that of their mean."""
        states, counts = self.distinct[0], self.counts
        along = self.contrasts.matrix @ self.basis
        theta, expected = self.contrasts.matrix @ self.weights, np.zeros(0)
        if not self.is_conditional:
            expected = self.basis.T @ (expected_features(self.model, self.method)(self.weights) - self.contrasts.origin)
        total, squares = np.zeros(along.shape[1]), np.zeros((along.shape[1],) * 2)
        for first in range(0, len(states), _ROWS_AT_ONCE):
            rows = slice(first, first + _ROWS_AT_ONCE)
            if self.is_conditional:
                scores = self.conditionals.scores(theta, rows) @ along
            else:
                scores = self._statistics(states[rows]) @ along - expected
            total += counts[rows] @ scores
            squares += scores.T @ (counts[rows, None] * scores)
        return np.asarray(squares - np.outer(total, total) / counts.sum())

    def _statistics(self, states: Ints) -> Floats:
        """(n, Q) statistics of rows; expected ones, under the learner's entropy, where states are missing."""
        found = self.contrasts.statistics(self.contrasts.indicators(states))
        n, (method, options) = len(self.model.graph.clusters), matched_inference(self.method)
        for rows, evidence, which in incomplete_rows(states, n):
            results = infer([self.model] * len(evidence), self.weights, method, evidence, **options)
            tables = [[result.clusters[i] for i in range(n - len(self.edges), n)] for result in results]
            pairs = zip(results, tables, strict=True)
            found[rows] = np.stack([self.contrasts.expected(result.variables, of) for result, of in pairs])[which]
        return found

    @cached_property
    def covariance(self) -> Covariance:
        """V, of the weights and of the contrasts."""
        with single_threaded_blas():
            held = self.basis.T @ (self.precision[:, None] * self.basis)
            is_exact = matched_inference(self.method)[0] == "exact" and not self.is_incomplete
            inverse = np.linalg.pinv(self.curvature + held, rcond=SINGULAR, hermitian=True)
            middle = (self.curvature if is_exact else self.spread) + held
            along = self.contrasts.matrix @ self.basis
            return Covariance.of(self.contrasts, along @ inverse @ middle @ inverse @ along.T, self.precision)
