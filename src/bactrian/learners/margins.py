"""Maximum entropy from margins: tables of counts over some sets of variables, exact or noisy, and no rows.

The distribution p over all variables has, next to a base measure q, the most entropy that the margins leave it. With
y_k the given count of a cell, N the total, mu_k(p) the probability of the cell, s_k the standard deviation of y_k and
epsilon the weight of the entropy, p maximises

    epsilon N [ H(p) + E_p log q ]  -  sum over noisy cells (y_k - N mu_k(p))^2 / (2 s_k^2)

and meets exact margins (s = 0). Divided by epsilon this is Eq. 4 of the paper with a variance per moment; its dual is
the likelihood of the log-linear model with a weight per cell and a Gaussian prior of precision epsilon s_k^2,

    D(w) = N log sum_x q(x) exp(sum_k w_k [x in cell k])  -  w.y  +  sum_k epsilon s_k^2 w_k^2 / 2.

That prior pulls every weight to 0, also those of counts far above the noise. Rounds after the first centre it at the
weights w_r of the last (Bregman iterations: Osher et al., Multiscale Modeling & Simulation 4(2), 2005),

    D_r(w) = N log Z(w)  -  w.y  +  sum_k epsilon s_k^2 (w_k - w_rk)^2 / 2,

which is D with counts y + epsilon s^2 w_r. After r rounds about (1 + c / (epsilon s^2))^-r is missing of what a margin
says of a cell of count c: many rounds with a large epsilon tell counts above the noise from those below it more sharply
than one with a small epsilon.

Where a junction tree fits, D is evaluated on it (:class:`MarginTree`; with exact margins its minimum is that of
iterative proportional fitting: Deming & Stephan, Ann. Math. Stat. 11(4), 1940; Csiszár, Ann. Prob. 3(1), 1975).
Elsewhere the entropy is Kikuchi's on the region graph of the margins (:mod:`bactrian.learners.region_margins`), or
another, with which :func:`bactrian.learn` learns from :class:`bactrian.Moments`. Noisy margins of private data are the
case of McKenna, Sheldon & Miklau (ICML 2019).

An exact margin's cell of count 0 has no finite weight, so it is forbidden instead: that is the limit. Weights of
overlapping margins are redundant; L-BFGS never leaves the span of gradients, so that this does no harm. If exact
margins are those of some distribution, D is at least N times that distribution's E log q: a smaller value proves that
they contradict each other, whether or not two of them do.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp

from bactrian.arrays import Bools, Floats, Ints
from bactrian.engines.long_memory import make_memory
from bactrian.engines.numba.junction import calibrate_rows
from bactrian.graphs.elimination import MemoryBudgetError, junction_tree
from bactrian.graphs.graph import ClusterGraph, Scope
from bactrian.graphs.junction import FactorTree
from bactrian.graphs.loglinear import LogLinearModel, Moments
from bactrian.graphs.packing import projection_map
from bactrian.graphs.ragged import pointer
from bactrian.graphs.regions import RegionGraph, region_graph
from bactrian.inference.exact import tree_plan
from bactrian.learners.learn import learn
from bactrian.parallel.threads import Deadline, Workers
from bactrian.solvers.lbfgs import Minimum, minimise
from bactrian.solvers.side_by_side import dot, minimise_side_by_side
from bactrian.solvers.solution import Callback, Progress, Record, Solution, Status


class NoStateError(ValueError):
    """Zeros of margins, base and impossible combinations rule out every joint state."""


#: Rounding, in nats per sample, that a proof of contradiction must exceed.
_SLACK = 1e-6
#: Rounds before the last are solved to so many tolerances, if that is less than the noise times the second number to
#: the power of rounds left: later rounds mend what earlier ones leave, and with tiny noise two thirds of the steps are
#: saved.
_LOOSE, _MENDED = 100.0, 1.5
#: Tempered variance of tables that need not be those of one distribution, rounds, and the tolerance and iterations with
#: which one is found: rounds come as near as a variance a thousand times smaller, which takes ten times as many steps.
_SOFT, _NEARER, _NEAR, _MOST_STEPS = 1e-5, 8, 1e-6, 2_000
#: Bytes that a table put together of others may take.
_MOST_MEMORY = 2**30
#: All rows.
_EVERY = slice(None)
#: Bytes that the vectors of problems fitted at once may take, about, and vectors per problem.
_AT_ONCE, _VECTORS = 2**28, 30


@dataclass(frozen=True)
class MarginProblem:
    """What is known of a distribution; margins are flat, one after the other, in the order of ``scopes``."""

    cardinalities: Ints
    scopes: tuple[Scope, ...]  #: of the margins
    observed: Floats  #: (n_cells,) counts
    precision: Floats  #: (n_cells,) epsilon s^2, 0 for exact cells
    forbidden: Bools  #: (n_cells,) cells that cannot be
    total: float
    base: tuple[tuple[Scope, Floats], ...] = ()  #: fixed log tables
    rounds: int = 1
    noise: float = 0.0  #: standard deviation of counts, about

    @cached_property
    def bounds(self) -> Ints:
        """(n_margins + 1,) where the cells of each margin begin."""
        return pointer([int(np.prod(self.cardinalities[list(scope)])) for scope in self.scopes])

    @property
    def scale(self) -> Floats:
        """(n_cells,) 1 / sqrt of a guess at the curvature of each weight: its count and its noise."""
        curvature = np.maximum(self.observed, 0.0) + self.precision
        return 1.0 / np.sqrt(np.maximum(curvature, max(1e-3 * self.total / max(curvature.size, 1), 1e-300)))

    def wanted(self, tolerance: float, rounds_left: int) -> float:
        """The gap in counts at which a round ends."""
        last = tolerance * self.total
        return max(last, min(_LOOSE * last, _MENDED**rounds_left * self.noise)) if rounds_left else last

    @property
    def least(self) -> float:
        """What D cannot fall below where exact margins are those of a distribution; -inf where some are noisy."""
        base = sum(float(table[np.isfinite(table)].min()) for _, table in self.base)
        return -np.inf if self.precision.any() else self.total * (base - _SLACK)

    def split(self, cells: Floats) -> list[Floats]:
        """Tables of the margins, one axis per variable."""
        parts = np.split(cells, self.bounds[1:-1])
        return [part.reshape(self.cardinalities[list(s)]) for part, s in zip(parts, self.scopes, strict=True)]

    def graph(self, *, regions: bool) -> ClusterGraph:
        """The graph of margins and base: a region graph, or one for exact inference alone."""
        scopes = [*self.scopes, *(scope for scope, _ in self.base)]
        if regions:
            return RegionGraph(self.cardinalities, scopes, raised=True)
        return ClusterGraph(self.cardinalities, scopes)

    def model(self, graph: ClusterGraph) -> LogLinearModel:
        """The log-linear model on a graph of these margins: a weight per cell."""
        identity = sp.identity(int(self.bounds[-1]), format="csr")
        features = [identity[a:b] for a, b in zip(self.bounds[:-1], self.bounds[1:], strict=True)]
        forbidden = np.split(np.where(self.forbidden, -np.inf, 0.0), self.bounds[1:-1])
        base_scores = [table if (table < 0.0).any() else None for table in forbidden]
        return LogLinearModel(
            graph,
            [*features, *[None] * len(self.base)],
            [*base_scores, *(table for _, table in self.base)],
        )


class MarginTree:
    """The junction tree of some tables: from log tables, one after the other, to log Z and all their marginals."""

    def __init__(self, cardinalities: Ints, scopes: Sequence[Scope], memory_budget: int) -> None:
        tree = junction_tree(cardinalities, scopes, memory_budget=memory_budget)
        factors = FactorTree(cardinalities.tolist(), list(scopes), len(scopes), tree)
        plan, pooled = tree_plan(factors)
        starts = pointer([int(np.prod(cardinalities[list(scope)])) for scope in scopes])[:-1]
        self.table_entries = tree.table_entries
        self._plan = plan._replace(factor_source=starts[pooled])

    def calibrated(self, scores: Floats, workers: Workers) -> tuple[Floats, Floats]:
        """log Z (-inf where no state is possible) and marginals of sets of scores, one per row."""
        beliefs, log_z = np.zeros(scores.shape), np.zeros(scores.shape[0])
        if workers.n_threads == 1:
            calibrate_rows(self._plan, scores, beliefs, log_z, 0, log_z.size)
            return log_z, beliefs
        blocks = np.unique(np.linspace(0, log_z.size, 8 * workers.n_threads + 1).astype(np.int64))
        workers.run(lambda _, first, last: calibrate_rows(self._plan, scores, beliefs, log_z, first, last), blocks)
        return log_z, beliefs


def joint_of(cardinalities: Ints, scope: Scope, known: Mapping[Scope, Floats]) -> Floats:
    """The table over ``scope`` of most entropy among those that have, as nearly as can be, the known ones inside it."""
    observed = np.concatenate([np.zeros(0), *(table.ravel() for table in known.values())])
    problem = MarginProblem(
        cardinalities=cardinalities,
        scopes=tuple(known),
        observed=observed,
        precision=np.full(observed.size, _SOFT),
        forbidden=observed == 0.0,
        total=1.0,
        base=((scope, np.zeros(cardinalities[list(scope)])),),
        rounds=_NEARER,
    )
    tree = MarginTree(cardinalities, [*known, scope], _MOST_MEMORY)
    solution, _ = fit_exactly(problem, tree, FitOptions(tolerance=_NEAR, max_iterations=_MOST_STEPS))
    scores = np.concatenate([solution.weights, problem.base[0][1].ravel()])
    return tree.calibrated(scores[None], Workers(1))[1][0, observed.size :].reshape(cardinalities[list(scope)])


@dataclass(frozen=True)
class FitOptions:
    """Limits of a fit, as those of :func:`bactrian.learn`."""

    tolerance: float = 1e-9
    max_iterations: int = 10_000
    max_seconds: float | None = None
    n_threads: int | None = None
    seed: int = 0
    callback: Callback | None = None


def tree_of(problem: MarginProblem, memory_budget: int, *, refuse: bool = False) -> MarginTree | None:
    """The junction tree of margins and base; where it does not fit the memory None, or with ``refuse`` an error."""
    scopes = [*problem.scopes, *(scope for scope, _ in problem.base)]
    try:
        return MarginTree(problem.cardinalities, scopes, memory_budget)
    except MemoryBudgetError:
        if refuse:
            raise
        return None


def fit_exactly(problem: MarginProblem, tree: MarginTree, options: FitOptions) -> tuple[Solution, Floats]:
    """The minimum of D on a junction tree, and the probabilities of all cells there."""
    objective = TreeDuals([problem], tree, Workers(1))
    began, deadline = time.perf_counter(), Deadline(options.max_seconds)
    tolerance = options.tolerance * problem.total
    least = problem.least
    iterations, evaluations, wanted, proved = 0, 0, tolerance, False
    value, gap = np.inf, np.inf  # at the last evaluation

    def value_and_gradient(x: Floats) -> tuple[float, Floats]:
        nonlocal evaluations, value, gap
        evaluations += 1
        values, slopes, gaps = objective.value_and_gradient(_EVERY, x[None])
        value, gap = float(values[0]), float(gaps[0])
        return value, slopes[0]

    def after_step(step: Any) -> bool:
        nonlocal proved
        proved = step.value < least
        if step.value == value and gap <= wanted:
            return True
        if options.callback is not None:
            seconds = time.perf_counter() - began
            weights = objective.weights(_EVERY, step.x[None])[0]
            told = Progress(0, iterations + step.iteration, step.value, gap, 0.0, seconds, weights)
            if options.callback(told) is True:
                return True
        return proved or deadline.has_passed

    if objective.calibrated(_EVERY, np.zeros((1, problem.observed.size)))[0][0] == -np.inf:
        raise NoStateError("no joint state is possible: zeros of exact margins, base and impossible rule out all")
    x, last = np.zeros((2, objective.size))
    memory = make_memory(x.size, Workers(1))  # a round changes no curvature
    for left in range(problem.rounds - 1, -1, -1):
        wanted = problem.wanted(options.tolerance, left)
        minimum: Minimum = minimise(
            value_and_gradient,
            x,
            tolerance=wanted * objective.least_scale,
            max_iterations=options.max_iterations - iterations,
            memory=memory,
            callback=after_step,
        )
        found, iterations = minimum.x, iterations + minimum.iterations
        value_and_gradient(found)
        if gap > wanted:
            break
        if left:
            objective.centre(found[None])
            x, last = 2.0 * found - last, found  # rounds are much alike
    status = minimum.status
    if status is Status.STOPPED and deadline.has_passed:
        status = Status.TIME_LIMIT
    if not left and gap <= tolerance:
        status = Status.CONVERGED
    elif proved:
        status = Status.UNBOUNDED
    weights = objective.weights(_EVERY, found[None])
    beliefs = objective.calibrated(_EVERY, weights)[1][0]
    record = Record(0, value, gap, 0.0, iterations, evaluations, 0, time.perf_counter() - began)
    return exact_solution(problem, weights[0], beliefs, status, record), beliefs


def exact_solution(
    problem: MarginProblem, weights: Floats, beliefs: Floats, status: Status, record: Record
) -> Solution:
    """What a fit on a junction tree found."""
    return Solution(
        weights=weights,
        status=status,
        history=(record,),
        objective=record.objective,
        moment_gap=record.moment_gap,
        violation=0.0,
        beliefs=[problem.split(beliefs)],
        method="exact",
        seconds=record.seconds,
        evaluations=record.evaluations,
    )


class Gauge:
    """Directions along which the tables of overlapping noisy margins change and their product does not.

    A table over {a, b} may gain u(a) if another with a loses it: log Z stays, and D is the prior's parabola alone,
    whose curvature is smaller than any other by the counts in a cell. Weights w = scale v + G t with a variable t for
    each noisy margin and state of an intersection R, in units of its own curvature, make all curvatures alike; G
    subtracts the mean over the margins with R, each by the inverse of its curvature, so that the softest give way.
    """

    def __init__(self, problem: MarginProblem) -> None:
        graph = region_graph(problem.cardinalities, problem.scopes)
        noisy = np.add.reduceat(problem.precision, problem.bounds[:-1]) > 0.0
        sizes = problem.cardinalities
        links = [(i, h, scope) for i, h, scope in graph.edges if noisy[i]]
        members = np.bincount([h for _, h, _ in links], minlength=len(graph.all_clusters))
        rows, columns, states, n = [], [], [], 0
        first_state: dict[int, int] = {}
        n_states = 0
        for i, h, scope in links:
            if members[h] < 2:
                continue
            size = int(np.prod(sizes[list(scope)]))
            if h not in first_state:
                first_state[h], n_states = n_states, n_states + size
            axes = tuple(problem.scopes[i].index(v) for v in scope)
            rows.append(np.arange(problem.bounds[i], problem.bounds[i + 1]))
            columns.append(n + projection_map(tuple(sizes[list(problem.scopes[i])].tolist()), axes).astype(np.int64))
            states.append(first_state[h] + np.arange(size))
            n += size
        self.n = n
        if n == 0:
            return
        lift = (np.ones(sum(map(len, rows))), (np.concatenate(rows), np.concatenate(columns)))
        self._lift = sp.csr_array(lift, shape=(problem.observed.size, n))
        at = (np.concatenate(states), np.arange(n))
        shared = sp.csr_array((np.ones(n), at), shape=(n_states, n))
        softness = self.scale(problem.precision) ** 2
        share = softness / (shared.T @ (shared @ softness))
        self._centred = sp.csr_array(self._lift @ (sp.eye_array(n) - sp.diags_array(share) @ shared.T @ shared))
        self._transposed = sp.csr_array(self._centred.T)

    def scale(self, precision: Floats) -> Floats:
        """1 / sqrt of the curvature of each t; precisions may have one column per problem, as all others here."""
        return 1.0 / np.sqrt(np.maximum(self._lift.T @ precision, 1e-300))

    def weights(self, t: Floats) -> Floats:
        """G t, for t in units of the cells' weights."""
        return self._centred @ t

    def gradient(self, gap: Floats) -> Floats:
        """G' applied to a gradient in the weights."""
        return self._transposed @ gap


class TreeDuals:
    """D of problems with the same scopes and base, a row each, in weights scaled by a guess at their curvature."""

    def __init__(self, problems: Sequence[MarginProblem], tree: MarginTree, workers: Workers) -> None:
        self._problems, self._tree, self._workers = problems, tree, workers
        self._free = np.stack([~problem.forbidden for problem in problems])
        self._fixed = np.where(self._free, 0.0, -np.inf)
        self._base = np.concatenate([np.zeros(0), *(table.ravel() for _, table in problems[0].base)])
        self._counts = np.stack([problem.observed for problem in problems])
        self._precision = np.stack([problem.precision for problem in problems])
        self._total = np.array([problem.total for problem in problems])
        self._scale = np.stack([problem.scale for problem in problems])
        self.least_scale = float(self._scale[self._free].min()) if self._free.any() else 1.0
        gauge = Gauge(problems[0]) if problems[0].precision.any() else None
        self._gauge = gauge if gauge is not None and gauge.n else None
        if self._gauge is not None:
            self._scale = np.hstack([self._scale, self._gauge.scale(self._precision.T).T])
        self.size = self._scale.shape[1]

    def weights(self, rows: Ints | slice, x: Floats) -> Floats:
        """Weights of all cells at scaled ones."""
        n, scaled = self._counts.shape[1], self._scale[rows] * x
        weights = scaled[:, :n]
        if self._gauge is not None:
            weights = weights + self._gauge.weights(scaled[:, n:].T).T
        return np.where(self._free[rows], weights, 0.0)

    def calibrated(self, rows: Ints | slice, weights: Floats) -> tuple[Floats, Floats]:
        """log Z, and probabilities of all cells."""
        n = weights.shape[1]
        scores = np.empty((len(weights), n + self._base.size))
        scores[:, :n], scores[:, n:] = self._fixed[rows] + weights, self._base
        log_z, beliefs = self._tree.calibrated(scores, self._workers)
        return log_z, beliefs[:, :n]

    def value_and_gradient(self, rows: Ints | slice, x: Floats) -> tuple[Floats, Floats, Floats]:
        """Values, gradients and largest gaps."""
        weights = self.weights(rows, x)
        log_z, beliefs = self.calibrated(rows, weights)
        observed, penalty, total = self._counts[rows], self._precision[rows] * weights, self._total[rows]
        gap = np.where(self._free[rows], total[:, None] * beliefs - observed + penalty, 0.0)
        value = total * log_z - dot(weights, observed) + 0.5 * dot(weights, penalty)
        slope = gap if self._gauge is None else np.concatenate([gap, self._gauge.gradient(gap.T).T], axis=1)
        return value, self._scale[rows] * slope, np.abs(gap).max(axis=1, initial=0.0)

    def centre(self, x: Floats) -> None:
        """Begin a round: centre the priors of all problems at ``x``."""
        weights = self.weights(_EVERY, x)
        self._counts = np.stack([p.observed + p.precision * w for p, w in zip(self._problems, weights, strict=True)])


def fit_with_learner(
    problem: MarginProblem, method: Any, options: FitOptions, graph: ClusterGraph
) -> tuple[Solution, Floats]:
    """The solution of a learner on the region graph of the margins, and its beliefs of all cells."""
    model = problem.model(graph)
    moments = Moments(model, np.where(problem.forbidden, 0.0, problem.observed), problem.total, problem.precision)
    solution = learn(moments, method, prior_variance=None, **vars(options))
    tables = solution.beliefs[0][: len(problem.scopes)]
    return solution, np.concatenate([np.zeros(0), *(table.ravel() for table in tables)])


# --- many problems side by side ---


def fit_side_by_side(
    problems: Sequence[MarginProblem], tree: MarginTree, tolerances: Floats, options: FitOptions, workers: Workers
) -> list[tuple[Solution, Floats] | None]:
    """Solutions of problems with the same scopes and base, and the probabilities of their cells.

    One call calibrates the trees of all, shared among threads, and :mod:`bactrian.solvers.side_by_side` takes their
    steps. None stands for problems that want a closer look: no state is possible, or steps did not get to the end.
    """
    n = problems[0].observed.size
    at_once = max(1, _AT_ONCE // (8 * _VECTORS * max(n, 1)))
    deadline = Deadline(options.max_seconds)
    # Directions among overlapping noisy margins are the same for all problems in which the same margins are noisy.
    noisy = np.stack([[problem.rounds, *(problem.precision[problem.bounds[:-1]] > 0.0)] for problem in problems])
    found: list[tuple[Solution, Floats] | None] = [None] * len(problems)
    for kind in np.unique(noisy, axis=0):
        alike = np.flatnonzero((noisy == kind).all(axis=1))
        for first in range(0, alike.size, at_once):
            some = alike[first : first + at_once]
            solved = _solve_together([problems[z] for z in some], tree, tolerances[some], options, deadline, workers)
            for z, solution in zip(some, solved, strict=True):
                found[z] = solution
    return found


def _solve_together(
    problems: Sequence[MarginProblem],
    tree: MarginTree,
    tolerances: Floats,
    options: FitOptions,
    deadline: Deadline,
    workers: Workers,
) -> list[tuple[Solution, Floats] | None]:
    duals = TreeDuals(problems, tree, workers)
    began = time.perf_counter()
    x, last = np.zeros((2, len(problems), duals.size))
    iterations, evaluations = np.zeros((2, len(problems)), dtype=np.int64)
    for left in range(problems[0].rounds - 1, -1, -1):
        wanted = np.array([p.wanted(t, left) for p, t in zip(problems, tolerances, strict=True)])
        minima = minimise_side_by_side(
            duals.value_and_gradient,
            x,
            tolerance=wanted,
            least=np.array([problem.least for problem in problems]),
            max_iterations=options.max_iterations - int(iterations.max()),
            interrupt=lambda: deadline.has_passed,
        )
        iterations, evaluations = iterations + minima.iterations, evaluations + minima.evaluations
        if left:
            duals.centre(minima.x)
            x, last = 2.0 * minima.x - last, minima.x
    weights = duals.weights(_EVERY, minima.x)
    _, beliefs = duals.calibrated(_EVERY, weights)
    seconds = (time.perf_counter() - began) / len(problems)
    found: list[tuple[Solution, Floats] | None] = []
    for z, problem in enumerate(problems):
        status = Status.TIME_LIMIT if deadline.has_passed else Status.ITERATION_LIMIT
        if minima.gap[z] <= wanted[z]:
            status = Status.CONVERGED
        elif minima.stalled[z] or not minima.value[z] >= problem.least:
            found.append(None)
            continue
        value, gap, counts = float(minima.value[z]), float(minima.gap[z]), (int(iterations[z]), int(evaluations[z]))
        record = Record(0, value, gap, 0.0, *counts, 0, seconds)
        found.append((exact_solution(problem, weights[z], beliefs[z], status, record), beliefs[z]))
    return found
