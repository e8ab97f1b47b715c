"""Which variables to join: edges by evidence, from the pseudo-likelihood of the rows.

Edge tables are gauge-fixed: with C_v an orthonormal basis of the vectors over the states of v whose sum is 0,

    log p(x_v | others) = <C_v[x_v], a_v> - log sum_k exp <C_v[k], a_v>,    a_v = b_v + sum_u M_uv^T z_u / (s_u s_v)

with z_u = C_u[x_u] less its mean and s_u its standard deviation, so that all tables M_uv are on one scale. The first
column of C_v has scores in equal steps; of variables whose tables have nothing but scores, M_uv is 0 elsewhere. Lee,
Ganapathi and Koller (Efficient structure learning of Markov networks using L1-regularization, NIPS 2006) penalise the
likelihood; here it is the pseudo-likelihood, per row, and as in Schmidt, Murphy, Fung and Rosales (CVPR 2008) a group
is the table of an edge, df_uv its free entries:

    F(b, M) = - mean_x sum_v log p(x_v | others) + penalty * sum_(u,v) weight_uv sqrt(df_uv) |M_uv|.

F is convex. Its optima at falling penalties, each started from the last, are found by proximal gradient steps of
Barzilai and Borwein's length (SpaRSA; Wright, Nowak and Figueiredo, IEEE Trans. Signal Processing 57(7), 2009), which
cost two matrix products each. A table is 0 where its slope is below the penalty.

Of the path, a criterion picks one penalty:

- **aic**: least ``-2 PL + 4 df``, Akaike's criterion; no edges where that hardly falls;
- **cv**: least loss on held-out rows in five folds;
- **ebic**: from the optimum of least Akaike criterion on, a second path with weights 1 / |M_uv| (the adaptive lasso;
  Zou, JASA 101, 2006), where each set of edges is fitted again without a penalty, and has the value ``-2 PL`` and, for
  each edge with a single free entry, ``2 log n + 4 gamma log V`` (Foygel and Drton, NIPS 2010). An edge with more of
  them adds twice what a chi-square variable of df degrees of freedom exceeds as rarely as ``log n + 2 gamma log V`` is
  exceeded with one: df times the former would hide the edges of larger tables in a few hundred rows;
- **stability**: edges that nine tenths of 50 half-samples find, down to the penalty at which at most one edge for 10
  variables is expected to be among them by chance (Meinshausen and Buehlmann, JRSS B 72(4), 2010; the bound is that of
  Shah and Samworth, JRSS B 75(1), 2013, for complementary halves).

Penalties of df and of edges are twice those of a likelihood, since a pseudo-likelihood sees each table from both ends
(Gao and Song, JASA 105, 2010). Cells that are missing (-1) add no term of their own, and stand at the mean z = 0 in the
terms of others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from time import perf_counter
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from scipy.stats import chi2

from bactrian.arrays import Bools, Floats, Ints
from bactrian.camel.run import NoBeliefs
from bactrian.parallel.threads import Deadline, Workers, single_threaded_blas
from bactrian.solvers.lbfgs import Step, minimise
from bactrian.solvers.solution import Callback, Progress, Solution

CRITERIA = ("ebic", "aic", "cv", "stability")
#: Gamma of the extended Bayesian information criterion.
_GAMMA = 0.25
#: Each penalty of a path over the last, the least over the first, and after how many worse values it ends.
_STEP, _LEAST, _PATIENCE = 0.8, 1e-3, 3
#: Of the penalty, the part of it by which slopes may be off; where nothing is penalised, of 1 / sqrt(rows).
_SLOPE, _FREE_SLOPE = 0.02, 0.03
#: Nats over all rows that the last proximal steps gain at least.
_GAIN = 0.3
#: Proximal steps for one penalty, values that the last of them is held against, and the decrease that it must bring.
_MOST_STEPS, _MEMORY, _ARMIJO = 300, 5, 1e-4
#: Times the root of the free weights of all pairs, by which Akaike's criterion must fall for any of them.
_CHANCE = 8.0
#: Parts into which cross-validation divides the rows.
_FOLDS = 5
#: Pairs of halves of stability selection, the part of these that must agree, and how many false edges, for each
#: variable, may be expected.
_PAIRS, _AGREED, _FALSE = 25, 0.9, 0.1
#: Blocks of rows for threads.
_BLOCKS = 16


class Selection(NamedTuple):
    """Edges that were selected, with what led to them."""

    edges: Ints  #: (n_edges, 2)
    path: dict[str, list[float]]  #: penalty, edges, pseudo_log_likelihood, criterion: a row per penalty
    #: Per edge, of a Gaussian prior under which the pseudo-likelihood has the optimum of the path; NaN where the edge
    #: was given, None where the criterion fits the chosen edges again.
    variances: Floats | None


# --- pairs of variables ---


def mutual_information(states: Ints, cardinalities: Ints, weights: Floats) -> Floats:
    """Of every two variables, in nats, over the rows that have both; shape (V, V), 0 on the diagonal."""
    known = states >= 0
    bounds = np.concatenate([[0], np.cumsum(cardinalities)])
    hot = np.zeros((len(states), bounds[-1]))
    row, v = np.nonzero(known)
    hot[row, bounds[v] + states[row, v]] = 1.0
    joint = hot.T @ (hot * weights[:, None])
    total = (known * weights[:, None]).T.astype(float) @ known
    owner = np.repeat(np.arange(cardinalities.size), cardinalities)
    joint /= np.maximum(total, np.finfo(float).tiny)[np.ix_(owner, owner)]
    across = np.add.reduceat(joint, bounds[:-1], axis=1)  # margins among the rows that have both
    apart = across[:, owner] * across.T[owner]
    told = joint * np.log(np.divide(joint, apart, out=np.ones_like(joint), where=joint > 0.0))
    found = np.maximum(np.add.reduceat(np.add.reduceat(told, bounds[:-1], axis=0), bounds[:-1], axis=1), 0.0)
    np.fill_diagonal(found, 0.0)
    return found


def tree(states: Ints, cardinalities: Ints, weights: Floats) -> Ints:
    """The tree of greatest likelihood, as edges in order (Chow and Liu, IEEE Trans. Information Theory 14(3), 1968).

    It joins no variables that tell nothing of each other, so that it may be a forest.
    """
    told = mutual_information(states, cardinalities, weights)
    found = sp.csgraph.minimum_spanning_tree(np.triu(1.0 + told.max(initial=0.0) - told, 1)).tocoo()
    pairs = np.stack([found.row, found.col], axis=1).astype(np.int64)
    pairs = pairs[told[pairs[:, 0], pairs[:, 1]] > 1e-12]
    return pairs[np.lexsort(pairs.T[::-1])]


# --- the pseudo-likelihood ---


@dataclass(frozen=True)
class _Point:
    """Biases and tables with the loss there, and its slope in each entry of a table that both of its ends share."""

    bias: Floats  #: (D,)
    tables: Floats  #: (D, D), symmetric; blocks of edges, 0 on those of one variable
    value: float
    bias_slope: Floats
    slope: Floats
    step: float = 0.5  #: length to try next


@dataclass(frozen=True, eq=False)
class Conditionals:
    """Conditionals of gauge-fixed tables on distinct rows; see the formula of the module."""

    sizes: Ints  #: (V,) states
    observed: Floats  #: (n, D) C_v[x_v]; 0 where it is missing
    features: Floats  #: (n, D) z / s; 0 where it is missing
    known: Floats | None  #: (n, D) 1 where it is not missing; None where none is
    scale: Floats  #: (D,) s
    mean: Floats  #: (D,) of C_v[x_v]
    used: Bools  #: (D,) whether tables have the column
    weights: Floats  #: (n,) of the rows, summing to 1
    total: float  #: number of rows
    workers: Workers

    @staticmethod
    def of(
        states: Ints, sizes: Ints, weights: Floats, n_threads: int | None = None, scored: Bools | None = None
    ) -> Conditionals:
        """Of rows of states; tables of ``scored`` variables have scores alone."""
        known = np.repeat(states >= 0, sizes - 1, axis=1).astype(np.float64)
        observed = np.hstack(
            [basis(k)[np.maximum(column, 0)] for column, k in zip(states.T, sizes.tolist(), strict=True)]
        )
        observed *= known
        total = float(weights.sum())
        share = known * weights[:, None]
        share /= share.sum(axis=0)
        mean = (share * observed).sum(axis=0)
        owner = np.repeat(np.arange(sizes.size), sizes - 1)
        first = np.append(True, owner[1:] != owner[:-1])[: owner.size]
        used = first | (True if scored is None else ~scored[owner])
        centred = (observed - mean) * known * used
        variance = np.bincount(owner, (share * centred**2).sum(axis=0)) / np.maximum(np.bincount(owner, used), 1.0)
        scale = np.where(variance > 0.0, np.sqrt(variance), 1.0)[owner]
        seen, workers = None if known.all() else known, Workers(n_threads)
        return Conditionals(sizes, observed, centred / scale, seen, scale, mean, used, weights / total, total, workers)

    def weighted(self, weights: Floats) -> Conditionals:
        """The same parameters on rows with other weights."""
        kept = weights > 0.0
        total = float(weights.sum())
        known = None if self.known is None else self.known[kept]
        observed, features = self.observed[kept], self.features[kept]
        return replace(
            self, observed=observed, features=features, known=known, weights=weights[kept] / total, total=total
        )

    @property
    def starts(self) -> Ints:
        """First column of each variable."""
        return np.concatenate([[0], np.cumsum(self.sizes - 1)[:-1]])

    @cached_property
    def owner(self) -> Ints:
        """Variable of each column."""
        return np.repeat(np.arange(self.sizes.size), self.sizes - 1)

    @cached_property
    def _fixed(self) -> Bools:
        """Entries of tables that are 0, (D, D)."""
        found: Bools = (self.owner[:, None] == self.owner) | ~(self.used[:, None] & self.used)
        return found

    @property
    def freedom(self) -> Floats:
        """Free entries of every table, (V, V)."""
        columns = np.bincount(self.owner, self.used, self.sizes.size).astype(np.float64, copy=False)
        return np.outer(columns, columns)

    @property
    def _uniform(self) -> Floats:
        """Entropy of a variable whose states are equally likely, shared among its columns: (D,)."""
        sizes = self.sizes[self.owner]
        return np.log(sizes) / (sizes - 1)

    @property
    def kinds(self) -> list[tuple[int, Ints]]:
        """Numbers of states, and the columns of the variables that have as many."""
        per_column = self.sizes[self.owner]
        return [(int(k), np.flatnonzero(per_column == k)) for k in np.unique(per_column)]

    def norms(self, tables: Floats) -> Floats:
        """Frobenius norm of every block, (V, V)."""
        if self.scale.size == self.sizes.size:
            return np.abs(tables)
        return np.sqrt(np.add.reduceat(np.add.reduceat(tables**2, self.starts, axis=0), self.starts, axis=1))

    def blocks(self, of_pairs: Floats) -> Floats:
        """A number for every pair, (V, V), at each entry of its block."""
        return of_pairs if self.scale.size == self.sizes.size else of_pairs[np.ix_(self.owner, self.owner)]

    def value_and_gradient(self, bias: Floats, tables: Floats) -> tuple[float, Floats, Floats]:
        """The loss, without a penalty, and its gradient: in the biases, and in the tables, as in :class:`_Point`."""
        n_blocks = min(_BLOCKS, len(self.features))
        bounds = np.linspace(0, len(self.features), n_blocks + 1).astype(np.int64)
        found: list[tuple[float, Floats, Floats]] = [(0.0, np.zeros(0), np.zeros(0))] * n_blocks
        inward = tables / self.scale
        kinds = self.kinds

        def block(number: int, first: int, last: int) -> None:
            z, w = self.features[first:last], self.weights[first:last, None]
            natural = z @ inward
            natural += bias / self.scale
            residual = self.observed[first:last].copy()
            loss = -np.vdot(residual * w, natural)
            if self.known is not None:
                natural *= self.known[first:last]
            for k, columns in kinds:
                part = slice(None) if len(kinds) == 1 else columns
                log_sums, expected = _means(natural[:, part], k)
                loss += float(w[:, 0] @ log_sums)
                residual[:, part] -= expected
            if self.known is not None:
                loss -= float(w[:, 0] @ (1.0 - self.known[first:last]) @ self._uniform)
            residual *= w
            residual /= -self.scale
            found[number] = (float(loss), residual.sum(axis=0), z.T @ residual)

        self.workers.run(block, bounds)
        value = sum(loss for loss, _, _ in found)
        slope = np.sum([part for _, _, part in found], axis=0)
        slope += slope.T.copy()
        slope[self._fixed] = 0.0
        return value, np.sum([part for _, part, _ in found], axis=0), slope

    def point(self, bias: Floats, tables: Floats, step: float = 0.5) -> _Point:
        """The loss at these parameters."""
        return _Point(bias, tables, *self.value_and_gradient(bias, tables), step)

    def independent(self) -> _Point:
        """The optimum without edges."""
        bias = np.empty(self.scale.size)
        mean = self.weights @ self.observed
        mean /= 1.0 if self.known is None else np.maximum(self.weights @ self.known, np.finfo(float).tiny)
        for k, columns in self.kinds:
            chances = 1.0 / k + mean[columns].reshape(-1, k - 1) @ basis(k).T
            bias[columns] = (np.log(np.maximum(chances, 0.5 / self.total)) @ basis(k)).ravel()
        return self.point(bias * self.scale, np.zeros((bias.size, bias.size)))


def basis(k: int) -> Floats:
    """An orthonormal basis of the vectors over k states whose sum is 0: (k, k - 1), first scores in equal steps."""
    columns = np.column_stack([np.ones(k), np.arange(k), np.eye(k, max(k - 2, 0))])
    return np.linalg.qr(columns)[0][:, 1:]


def _means(natural: Floats, k: int) -> tuple[Floats, Floats]:
    """Log-sums over the states of variables with k each, added up per row, and the means of C[x]; (n, m (k - 1))."""
    if k == 2:
        difference = np.sqrt(2.0) * natural
        decay = np.abs(difference)
        log_sums = 0.5 * decay.sum(axis=1)
        np.negative(decay, out=decay)
        np.exp(decay, out=decay)
        log_sums += np.log(1.0 + decay).sum(axis=1)
        expected = (1.0 - decay) / (1.0 + decay)
        expected *= np.sqrt(0.5)
        return log_sums, np.copysign(expected, difference, out=expected)
    scores = natural.reshape(len(natural), -1, k - 1) @ basis(k).T
    top = scores.max(axis=2, keepdims=True)
    scores -= top
    np.exp(scores, out=scores)
    sums = scores.sum(axis=2, keepdims=True)
    scores /= sums
    return (top + np.log(sums)).sum(axis=(1, 2)), (scores @ basis(k)).reshape(natural.shape)


# --- the penalised optimum ---


def minimise_penalised(
    of: Conditionals,
    start: _Point,
    penalty: Floats,
    tolerance: float,
    gain: float = 0.0,
    deadline: Deadline | None = None,
) -> _Point:
    """The optimum of the loss plus ``sum_(u,v) penalty_uv |M_uv|``; infinite penalties keep tables at 0.

    Stops when no slope, in the units of a table's norm, is off by more than ``tolerance``, or the last steps gained no
    more than ``gain``.
    """
    here = of.point(start.bias, _shrunk(of, start.tables, np.where(np.isinf(penalty), np.inf, 0.0)), start.step)
    values = [here.value + _penalty(of, here.tables, penalty)]
    for number in range(_MOST_STEPS):
        if violation(of, here, penalty) <= tolerance or (deadline is not None and deadline.has_passed):
            break
        if number >= 2 * _MEMORY and min(values[: -2 * _MEMORY]) - min(values) <= gain:
            break
        step = here.step
        while True:
            tables = _shrunk(of, here.tables - step * here.slope, step * penalty)
            there = of.point(here.bias - step * here.bias_slope, tables)
            by_bias, by_tables = there.bias - here.bias, there.tables - here.tables
            moved = float(by_bias @ by_bias + 0.5 * np.vdot(by_tables, by_tables))
            value = there.value + _penalty(of, tables, penalty)
            if value <= max(values[-_MEMORY:]) - 0.5 * _ARMIJO / step * moved or step < 1e-9:
                break
            step *= 0.4
        bend_bias, bend = there.bias_slope - here.bias_slope, there.slope - here.slope
        curved = float(by_bias @ bend_bias + 0.5 * np.vdot(by_tables, bend))
        bent = float(bend_bias @ bend_bias + 0.5 * np.vdot(bend, bend))
        if curved > 0.0:
            step = moved / curved if number % 2 else curved / bent
        here = replace(there, step=float(np.clip(step, 1e-6, 1e6)))
        values.append(value)
    return here


def _penalty(of: Conditionals, tables: Floats, penalty: Floats) -> float:
    norms = of.norms(tables)
    away = norms > 0.0
    return 0.5 * float(penalty[away] @ norms[away])


def _shrunk(of: Conditionals, tables: Floats, by: Floats) -> Floats:
    norms = of.norms(tables)
    left = norms - by
    return tables * of.blocks(np.divide(left, norms, out=np.zeros_like(norms), where=left > 0.0))


def violation(of: Conditionals, at: _Point, penalty: Floats) -> float:
    """By how much slopes are off: |slope| <= penalty where a table is 0, slope = - penalty M / |M| elsewhere."""
    norms, slopes = of.norms(at.tables), of.norms(at.slope)
    away = norms > 0.0
    pulled = at.slope + at.tables * of.blocks(np.divide(penalty, norms, out=np.zeros_like(norms), where=away))
    off = np.where(away, of.norms(pulled), np.maximum(slopes - penalty, 0.0))
    np.fill_diagonal(off, 0.0)
    return max(float(off.max(initial=0.0)), float(np.abs(at.bias_slope).max(initial=0.0)))


# --- the path and what is picked of it ---


@dataclass(frozen=True, eq=False)
class _Search:
    """What a path is made of: the rows, the relative weights of penalties, (V, V), and the time limit."""

    of: Conditionals
    weights: Floats  #: 0 where a table is given, infinite where it must be 0
    deadline: Deadline

    def edges(self, at: _Point) -> Bools:
        """Pairs whose tables are not 0, (V, V)."""
        return self.of.norms(at.tables) > 0.0

    def degrees_of_freedom(self, edges: Bools) -> float:
        """Free entries of the tables of edges."""
        return 0.5 * float(self.of.freedom[edges].sum())

    def solve(self, start: _Point, penalty: float) -> _Point:
        """The optimum at a penalty."""
        return minimise_penalised(self.of, start, penalty * self.weights, _SLOPE * penalty, self.gain, self.deadline)

    def free(self, start: _Point, edges: Bools) -> _Point:
        """The optimum over the tables of these edges without a penalty."""
        penalty, tolerance = np.where(edges, 0.0, np.inf), _FREE_SLOPE / np.sqrt(self.of.total)
        return minimise_penalised(self.of, start, penalty, tolerance, self.gain, self.deadline)

    @property
    def gain(self) -> float:
        """Gain of the last steps that is not worth more of them."""
        return _GAIN / self.of.total

    def path(self) -> Iterator[tuple[float, _Point]]:
        """Optima at falling penalties; the first has the given tables alone."""
        at = self.of.independent()
        if (self.weights == 0.0).any():
            at = self.free(at, self.weights == 0.0)
        slopes = self.of.norms(at.slope)
        penalised = (self.weights > 0.0) & np.isfinite(self.weights)
        most = float((slopes[penalised] / self.weights[penalised]).max(initial=0.0))
        penalty = most
        while penalty >= _LEAST * most > 1e-9:
            at = self.solve(at, penalty)
            yield penalty, at
            if self.deadline.has_passed:
                return
            penalty *= _STEP
        if most <= 1e-9:
            yield most, at


@dataclass(frozen=True, eq=False)
class _Rows:
    """Rows as numbers of the distinct ones, to divide them into parts."""

    which: Ints  #: (n,)
    weights: Floats
    n_distinct: int
    rng: np.random.Generator

    def counts(self, part: Bools | None = None) -> Floats:
        """Weight of each distinct row in a part of the rows."""
        weights = self.weights if part is None else np.where(part, self.weights, 0.0)
        return np.bincount(self.which, weights=weights, minlength=self.n_distinct).astype(np.float64, copy=False)

    def parts(self, n: int) -> list[Bools]:
        """As many disjoint parts of about equal size that have weight."""
        part = self.rng.permutation(self.which.size) % n
        return [part == k for k in range(n) if self.weights[part == k].any()]


@dataclass(eq=False)
class _Record:
    """What was tried, and the best of it."""

    path: dict[str, list[float]]
    best: tuple[float, Bools, _Point] | None = None  #: penalty, edges, optimum
    chosen: int = -1
    worse: int = 0  #: values since the best

    @staticmethod
    def empty() -> _Record:
        """Before anything."""
        return _Record({"penalty": [], "edges": [], "pseudo_log_likelihood": [], "criterion": []})

    def add(self, of: Conditionals, penalty: float, edges: Bools, at: _Point, criterion: float) -> bool:
        """Take up a row; the least criterion is best. Whether to go on."""
        better = self.best is None or criterion < self.path["criterion"][self.chosen]
        row = (penalty, int(edges.sum()) // 2, -at.value * of.total, criterion)
        for column, cell in zip(self.path.values(), row, strict=True):
            column.append(cell)
        if better:
            self.best, self.chosen, self.worse = (penalty, edges, at), len(self.path["penalty"]) - 1, 0
        else:
            self.worse += 1
        return self.worse < _PATIENCE


def _by_akaike(search: _Search, rows: _Rows) -> _Record:
    record = _Record.empty()
    for penalty, at in search.path():
        edges = search.edges(at)
        criterion = 2.0 * search.of.total * at.value + 4.0 * search.degrees_of_freedom(edges)
        if not record.add(search.of, penalty, edges, at, criterion):
            break
    return record


def _by_prediction(search: _Search, rows: _Rows) -> _Record:
    """As by Akaike's criterion, but without edges where these gain no more than chance may make of all pairs."""
    record, column = _by_akaike(search, rows), "criterion"
    pairs = (search.weights > 0.0) & np.isfinite(search.weights)
    chance = _CHANCE * np.sqrt(search.degrees_of_freedom(pairs))
    if record.path[column][0] - record.path[column][record.chosen] < chance:
        penalty, at = next(search.path())
        record.best, record.chosen = (penalty, search.edges(at), at), 0
    return record


def _by_folds(search: _Search, rows: _Rows) -> _Record:
    """The criterion is the loss per held-out row."""
    record, parts = _Record.empty(), rows.parts(_FOLDS)
    folds = [replace(search, of=search.of.weighted(rows.counts(~part))) for part in parts if len(parts) > 1]
    held_out = [search.of.weighted(rows.counts(part)) for part in parts]
    at_folds = [fold.of.independent() for fold in folds]
    for penalty, at in search.path():
        at_folds = [fold.solve(start, penalty) for fold, start in zip(folds, at_folds, strict=True)]
        losses = [of.total * of.point(p.bias, p.tables).value for of, p in zip(held_out, at_folds, strict=False)]
        if not record.add(search.of, penalty, search.edges(at), at, sum(losses) / search.of.total):
            break
    return record


def _by_ebic(search: _Search, rows: _Rows) -> _Record:
    first = _by_akaike(search, rows).best
    assert first is not None
    norms = search.of.norms(first[2].tables)
    given = search.weights == 0.0
    weights = np.divide(search.weights, norms, out=np.full_like(norms, np.inf), where=norms > 0.0)
    second = replace(search, weights=np.where(given, 0.0, weights))
    record, last, refitted = _Record.empty(), None, search.of.independent()
    of_one = chi2.sf(np.log(search.of.total) + 2.0 * _GAMMA * np.log(len(norms)), 1)
    of_edge = chi2.isf(of_one, search.of.freedom)
    for penalty, at in second.path():
        edges = search.edges(at) | given
        if last is not None and np.array_equal(edges, last):
            continue
        last, refitted = edges, search.free(refitted, edges)
        criterion = 2.0 * search.of.total * refitted.value + of_edge[edges].sum()
        if not record.add(search.of, penalty, edges, refitted, criterion):
            break
    return record


def _by_stability(search: _Search, rows: _Rows) -> _Record:
    """The criterion is the bound on the expected number of false edges."""
    record = _Record.empty()
    halves = [part for _ in range(_PAIRS) for part in rows.parts(2)]
    searches = [replace(search, of=search.of.weighted(rows.counts(half))) for half in halves]
    points = [of_half.of.independent() for of_half in searches]
    found = np.zeros((len(halves), *search.weights.shape), dtype=bool)
    possible = 0.5 * float(((search.weights > 0.0) & np.isfinite(search.weights)).sum())
    by_chance = 4.0 * (1.0 - _AGREED + 0.5 / _PAIRS) / (1.0 + 1.0 / _PAIRS)
    for penalty, at in search.path():
        points = [of_half.solve(start, penalty) for of_half, start in zip(searches, points, strict=True)]
        found |= np.array([search.edges(point) for point in points])
        found &= search.weights > 0.0
        often = found.mean(axis=0) >= _AGREED
        bound = by_chance * float(found.sum(axis=(1, 2)).mean() / 2.0) ** 2 / max(possible, 1.0)
        if bound > _FALSE * len(often) and record.best is not None:
            break
        record.add(search.of, penalty, often | (search.weights == 0.0), at, bound)
        record.best, record.chosen = (penalty, often | (search.weights == 0.0), at), len(record.path["penalty"]) - 1
    return record


_PICKS = {"ebic": _by_ebic, "aic": _by_prediction, "cv": _by_folds, "stability": _by_stability}


def select(
    states: Ints,
    weights: Floats,
    criterion: str,
    *,
    given: Ints | None = None,
    scored: Ints | None = None,
    seed: int = 0,
    n_threads: int | None = None,
    max_seconds: float | None = None,
) -> Selection:
    """Edges of a pairwise field of these rows, (n, V) with -1 for missing cells; ``given`` ones are among them.

    ``scored`` has the number of states of variables whose tables have scores, and 0 for others. ``seed`` divides the
    rows for ``"cv"`` and ``"stability"``. Variables with a single observed state are not joined.
    """
    told = np.zeros((0, 2), dtype=np.int64) if given is None else given
    codes, seen = _codes_of_seen(states)
    number = np.flatnonzero([len(of) > 1 for of in seen])
    if number.size < 2:
        return Selection(told, _Record.empty().path, None)
    steps = np.zeros(len(seen), dtype=np.int64) if scored is None else scored
    codes = np.where(steps > 0, states, codes)
    distinct, which = np.unique(codes[:, number], axis=0, return_inverse=True)
    rows = _Rows(which.ravel(), weights, len(distinct), np.random.default_rng(seed))
    sizes = np.array([steps[v] or len(seen[v]) for v in number], dtype=np.int64)
    of = Conditionals.of(distinct, sizes, rows.counts(), n_threads, steps[number] > 0)
    relative = np.sqrt(of.freedom)
    np.fill_diagonal(relative, np.inf)
    place = np.full(len(seen), -1)
    place[number] = np.arange(number.size)
    a, b = place[told[(place[told] >= 0).all(axis=1)]].T
    relative[a, b] = relative[b, a] = 0.0
    with single_threaded_blas():
        record = _PICKS[criterion](_Search(of, relative, Deadline(max_seconds)), rows)
    assert record.best is not None
    penalty, joined, at = record.best
    pairs = number[np.argwhere(np.triu(joined, 1))].reshape(-1, 2)
    both = np.concatenate([told, pairs])
    _, first = np.unique(np.sort(both, axis=1), axis=0, return_index=True)
    edges = both[np.sort(first)]
    if criterion not in ("aic", "cv"):
        return Selection(edges, record.path, None)
    a, b = place[edges].T
    of_edges = np.full(len(edges), np.nan)
    free = (a >= 0) & (b >= 0) & (relative[a, b] > 0.0)
    a, b, scale = a[free], b[free], of.scale[of.starts] * np.sqrt(np.maximum(steps[number], 1))
    # |T| / variance of the one is, in rows, the penalty's slope of the other, where T = M / (s_u s_v); scores of k
    # states have the norm sqrt(k).
    of_edges[free] = of.norms(at.tables)[a, b] / (of.total * penalty * relative[a, b] * (scale[a] * scale[b]) ** 2)
    return Selection(edges, record.path, of_edges)


def _codes_of_seen(states: Ints) -> tuple[Ints, list[Ints]]:
    """States numbered among those seen, and which those are, by variable; -1 stays."""
    seen = [np.unique(column[column >= 0]) for column in states.T]
    columns = [np.where(c >= 0, np.searchsorted(of, c), -1) for c, of in zip(states.T, seen, strict=True)]
    return np.stack(columns, axis=1).astype(np.int16), seen


# --- chosen edges under a Gaussian prior ---


def fit_tables(
    states: Ints,
    sizes: Ints,
    sample_weight: Floats,
    edges: Ints,
    variances: Floats,
    *,
    tolerance: float,
    max_iterations: int,
    max_seconds: float | None = None,
    n_threads: int | None = None,
    callback: Callback | None = None,
    place: Callable[[Conditionals], Callable[[Floats, Floats], tuple[float, Floats, Floats]]] | None = None,
) -> Solution:
    """Maximum pseudo-likelihood of full tables of variables and edges, as :class:`PseudoLikelihood` has it.

    ``place`` may give another :meth:`Conditionals.value_and_gradient`, such as one on a device.

    ``variances`` (positive, finite), one per variable and then per edge, are those of the prior. What an edge's table
    has of its variables' own, r 1' + 1 c', is free given the sum b of these and the variable's table: the prior spreads
    it by variance, so that of b is ``S_v = variance_v + sum_(u,v) variance_uv / states_u``. What is left to fit is
    gauge-fixed, and in these coordinates well-conditioned. ``moment_gap`` is that of these coordinates.
    """
    deadline, began = Deadline(max_seconds), perf_counter()
    distinct, which = np.unique(states, axis=0, return_inverse=True)
    weights: Floats = np.bincount(which.ravel(), weights=sample_weight).astype(np.float64)
    of = Conditionals.of(distinct[weights > 0.0], sizes, weights[weights > 0.0], n_threads)
    evaluate = of.value_and_gradient if place is None else place(of)
    n, n_variables, owner, scale, shift = of.total, sizes.size, of.owner, of.scale, of.mean / of.scale
    ends, of_variables, of_edges = edges.T, variances[: sizes.size], variances[sizes.size :]
    spread = of_variables + np.bincount(ends.ravel(), (of_edges / sizes[ends[::-1]]).ravel(), n_variables)
    own = (1.0 / (n * spread))[owner]
    joined = np.zeros((n_variables, n_variables))
    joined[ends[0], ends[1]] = joined[ends[1], ends[0]] = 1.0 / (n * of_edges)
    row, column = np.nonzero(np.triu(joined[np.ix_(owner, owner)], 1))
    size, norm = scale[row] * scale[column], joined[owner[row], owner[column]]

    def split(x: Floats) -> tuple[Floats, Floats, Floats]:
        """Biases and tables, and the biases where no feature is centred."""
        tables = np.zeros((scale.size, scale.size))
        tables[row, column] = tables[column, row] = x[scale.size :]
        return x[: scale.size], tables, (x[: scale.size] - shift @ tables) / scale

    def value_and_gradient(x: Floats) -> tuple[float, Floats]:
        bias, tables, plain = split(x)
        value, bias_slope, slope = evaluate(bias, tables)
        pull, pulled = own * plain / scale, norm / size**2 * x[scale.size :]
        value += 0.5 * float(own @ plain**2 + pulled @ x[scale.size :])
        inside = slope[row, column] - shift[row] * pull[column] - shift[column] * pull[row]
        return value, np.concatenate([bias_slope + pull, inside + pulled])

    units = np.concatenate([scale, size])  # slopes of probabilities, whatever the coordinates

    def after(step: Step) -> bool:
        told = Progress(
            0, step.iteration, n * step.value, n * step.gradient_norm, np.nan, perf_counter() - began, step.x
        )
        return deadline.has_passed or (callback is not None and bool(callback(told)))

    start = of.independent()
    x = np.concatenate([start.bias, np.zeros(row.size)])
    unit = 1.0 / np.sqrt(np.concatenate([1.0 + own / scale**2, 1.0 + norm / size**2]))
    with single_threaded_blas():
        found = minimise(
            value_and_gradient, x, tolerance=tolerance, max_iterations=max_iterations, unit=unit, callback=after,
            measure=lambda slope: float(np.abs(slope * units).max(initial=0.0)),
        )  # fmt: skip
    _, tables, plain = split(found.x)
    tables /= np.outer(scale, scale)
    first = of.starts
    part = [slice(a, a + k - 1) for a, k in zip(first.tolist(), sizes.tolist(), strict=True)]
    bases = [basis(k) for k in sizes.tolist()]
    fields = [base @ plain[at] / s for base, at, s in zip(bases, part, spread.tolist(), strict=True)]
    flat = [variance * field for variance, field in zip(of_variables.tolist(), fields, strict=True)]
    for (a, b), variance in zip(edges.tolist(), of_edges.tolist(), strict=True):
        table = bases[a] @ tables[part[a], part[b]] @ bases[b].T
        table += variance * (fields[a][:, None] / sizes[b] + fields[b] / sizes[a])
        flat.append(table.ravel())
    return Solution(
        np.concatenate(flat), found.status, objective=n * found.value, violation=np.nan, method="pseudolikelihood",
        moment_gap=n * float(np.abs(found.gradient * units).max(initial=0.0)), seconds=perf_counter() - began,
        beliefs=NoBeliefs("pseudolikelihood"), evaluations=found.iterations,
    )  # fmt: skip
