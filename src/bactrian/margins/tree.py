"""Maximum entropy from margins on a junction tree: the dual of :mod:`.problem`, minimised over a weight per cell."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import numpy as np
import scipy.sparse as sp

from bactrian.arrays import Floats, Ints
from bactrian.engines.long_memory import make_memory
from bactrian.engines.numba.junction import calibrate_rows
from bactrian.graphs.elimination import MemoryBudgetError, junction_tree
from bactrian.graphs.graph import Scope
from bactrian.graphs.junction import FactorTree
from bactrian.graphs.packed import link_cells
from bactrian.graphs.ragged import pointer, ranges
from bactrian.graphs.regions import region_graph
from bactrian.inference.exact import tree_plan
from bactrian.margins.problem import FitOptions, MarginProblem, NoStateError, layout_of
from bactrian.parallel.threads import Deadline, Workers
from bactrian.solvers.lbfgs import Step, minimise
from bactrian.solvers.solution import Progress, Record, Solution, Status

#: Tempered variance of tables that need not be those of one distribution, rounds, and the tolerance and iterations with
#: which one is found: rounds come as near as a variance a thousand times smaller, which takes ten times as many steps.
_SOFT, _NEARER, _NEAR, _MOST_STEPS = 1e-5, 8, 1e-6, 2_000
#: Bytes that a table put together of others may take.
_MOST_MEMORY = 2**30


class MarginTree:
    """The junction tree of some tables: from log tables, one after the other, to log Z and all their marginals."""

    def __init__(self, cardinalities: Ints, scopes: Sequence[Scope], memory_budget: int) -> None:
        tree = junction_tree(cardinalities, scopes, memory_budget=memory_budget)
        factors = FactorTree(cardinalities.tolist(), list(scopes), len(scopes), tree)
        plan, pooled = tree_plan(factors)
        starts = pointer([int(np.prod(cardinalities[list(scope)])) for scope in scopes])[:-1]
        self._plan = plan._replace(factor_source=starts[pooled])

    def calibrated(self, scores: Floats) -> tuple[Floats, Floats]:
        """log Z (-inf where no state is possible) and marginals of sets of scores, one per row."""
        beliefs, log_z = np.zeros(scores.shape), np.zeros(scores.shape[0])
        calibrate_rows(self._plan, scores, beliefs, log_z, 0, log_z.size, np.zeros(1, dtype=np.bool_))
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
    return tree.calibrated(scores[None])[1][0, observed.size :].reshape(cardinalities[list(scope)])


def tree_of(problem: MarginProblem, memory_budget: int, *, refuse: bool = False) -> MarginTree | None:
    """The junction tree of margins and base; if it does not fit the memory, None, or with ``refuse`` an error."""
    scopes = [*problem.scopes, *(scope for scope, _ in problem.base)]
    try:
        return MarginTree(problem.cardinalities, scopes, memory_budget)
    except MemoryBudgetError:
        if refuse:
            raise
        return None


def fit_exactly(problem: MarginProblem, tree: MarginTree, options: FitOptions) -> tuple[Solution, Floats]:
    """The minimum of D on a junction tree, and the probabilities of all cells there."""
    return fit_together([problem], tree, options)[0]


def fit_together(
    problems: Sequence[MarginProblem], tree: MarginTree, options: FitOptions
) -> list[tuple[Solution, Floats]]:
    """The same for problems with the same scopes, base, rounds and noisy margins: L-BFGS minimises the sum of their D.

    In scaled weights the curvatures of all are much alike, so that this takes few iterations more than each alone, and
    every operation serves them all. Where one stands in the way of the others, the rest need not have converged.
    """
    duals, shape = TreeDuals(problems, tree), (len(problems), -1)
    began, deadline = time.perf_counter(), Deadline(options.max_seconds)
    least = np.array([problem.least for problem in problems])
    iterations, evaluations, proved = 0, 0, False
    total, values, gaps = np.inf, least, np.full(len(problems), np.inf)  # at the last evaluation

    def value_and_gradient(x: Floats) -> tuple[float, Floats]:
        nonlocal evaluations, total, values, gaps
        evaluations += 1
        values, slopes, gaps = duals.value_and_gradient(x.reshape(shape))
        total = float(values.sum())
        return total, slopes.ravel()

    def after_step(step: Step) -> bool:
        nonlocal proved
        is_last = step.value == total
        proved = step.value < least.sum() or bool(is_last and (values < least).any())
        if is_last and (gaps <= wanted).all():
            return True
        if options.callback is not None:
            seconds = time.perf_counter() - began
            weights = duals.weights(step.x.reshape(shape))[0]
            told = Progress(0, iterations + step.iteration, step.value, float(gaps.max()), 0.0, seconds, weights)
            if options.callback(told) is True:
                return True
        return proved or deadline.has_passed

    if (duals.calibrated(np.zeros((len(problems), problems[0].observed.size)))[0] == -np.inf).any():
        raise NoStateError("no joint state is possible: zeros of exact margins, base and impossible rule out all")
    x, last = np.zeros((2, len(problems) * duals.size))
    memory = make_memory(x.size, Workers(1))  # a round changes no curvature
    for left in range(problems[0].rounds - 1, -1, -1):
        wanted = np.array([problem.wanted(options.tolerance, left) for problem in problems])
        minimum = minimise(
            value_and_gradient,
            x,
            tolerance=float(wanted.min()) * duals.least_scale,
            max_iterations=options.max_iterations - iterations,
            memory=memory,
            callback=after_step,
        )
        found, iterations = minimum.x, iterations + minimum.iterations
        value_and_gradient(found)
        if (gaps > wanted).any():
            break
        if left:
            duals.centre(found.reshape(shape))
            x, last = 2.0 * found - last, found  # rounds are much alike
    status = Status.UNBOUNDED if proved else minimum.status
    if status is Status.STOPPED and deadline.has_passed:
        status = Status.TIME_LIMIT
    weights = duals.weights(found.reshape(shape))
    beliefs = duals.calibrated(weights)[1]
    seconds = (time.perf_counter() - began) / len(problems)
    solutions = []
    for z, problem in enumerate(problems):
        converged = not left and gaps[z] <= wanted[z]
        record = Record(0, float(values[z]), float(gaps[z]), 0.0, iterations, evaluations, 0, seconds)
        solution = Solution(
            weights=weights[z],
            status=Status.CONVERGED if converged else status,
            history=(record,),
            objective=record.objective,
            moment_gap=record.moment_gap,
            violation=0.0,
            beliefs=[problem.split(beliefs[z])],
            method="exact",
            seconds=seconds,
            evaluations=evaluations,
        )
        solutions.append((solution, beliefs[z]))
    return solutions


class Gauge:
    """Directions along which the tables of overlapping noisy margins change and their product does not.

    A table over {a, b} may gain u(a) if another with a loses it: log Z stays, and D is the prior's parabola alone,
    whose curvature is smaller than any other by the counts in a cell. Weights w = scale v + G t with a variable t for
    each noisy margin and state of an intersection R, in units of its own curvature, make all curvatures alike; G
    subtracts the mean over the margins with R, each by the inverse of its curvature, so that the softest give way.
    """

    def __init__(self, problem: MarginProblem) -> None:
        layout = layout_of(region_graph(problem.cardinalities, problem.scopes))
        noisy = (np.add.reduceat(problem.precision, problem.bounds[:-1]) > 0.0)[layout.link_cluster]
        chosen = noisy & (np.bincount(layout.link_hub, weights=noisy)[layout.link_hub] > 1.0)
        states = np.diff(layout.link_offset)
        used = np.repeat(chosen, states)
        n = self.n = int(used.sum())
        if n == 0:
            return
        cell, state = link_cells(layout)
        entries = np.flatnonzero(used[state])
        lift = (np.ones(entries.size), (cell[entries], (np.cumsum(used) - 1)[state[entries]]))
        self._lift = sp.csr_array(lift, shape=(problem.observed.size, n))
        hub_state = ranges(layout.hub_offset[layout.link_hub], states)[used]
        shared = sp.csr_array((np.ones(n), (hub_state, np.arange(n))), shape=(layout.hub_offset[-1], n))
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

    def __init__(self, problems: Sequence[MarginProblem], tree: MarginTree) -> None:
        self._problems, self._tree = problems, tree
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

    def weights(self, x: Floats) -> Floats:
        """Weights of all cells at scaled ones."""
        n, scaled = self._counts.shape[1], self._scale * x
        weights = scaled[:, :n]
        if self._gauge is not None:
            weights = weights + self._gauge.weights(scaled[:, n:].T).T
        return np.where(self._free, weights, 0.0)

    def calibrated(self, weights: Floats) -> tuple[Floats, Floats]:
        """log Z, and probabilities of all cells."""
        n = weights.shape[1]
        scores = np.empty((len(weights), n + self._base.size))
        scores[:, :n], scores[:, n:] = self._fixed + weights, self._base
        log_z, beliefs = self._tree.calibrated(scores)
        return log_z, beliefs[:, :n]

    def value_and_gradient(self, x: Floats) -> tuple[Floats, Floats, Floats]:
        """Values, gradients and largest gaps."""
        weights = self.weights(x)
        log_z, beliefs = self.calibrated(weights)
        observed, penalty, total = self._counts, self._precision * weights, self._total
        gap = np.where(self._free, total[:, None] * beliefs - observed + penalty, 0.0)
        value = total * log_z - _dot(weights, observed) + 0.5 * _dot(weights, penalty)
        slope = gap if self._gauge is None else np.concatenate([gap, self._gauge.gradient(gap.T).T], axis=1)
        return value, self._scale * slope, np.abs(gap).max(axis=1, initial=0.0)

    def centre(self, x: Floats) -> None:
        """Begin a round: centre the priors of all problems at ``x``."""
        weights = self.weights(x)
        self._counts = np.stack([p.observed + p.precision * w for p, w in zip(self._problems, weights, strict=True)])


def _dot(a: Floats, b: Floats) -> Floats:
    """The inner products of rows."""
    return np.einsum("zn,zn->z", a, b)
