"""Maximum entropy from margins on their region graph: multipliers alone, since every table's weights follow from them.

Kikuchi's entropy, with raised numbers (:mod:`bactrian.graphs.regions`), has a table of beliefs for each margin and
numbers c_R for the intersections R on which they agree. Positive numbers are kept, negative ones linearised at the
last beliefs (the concave-convex procedure, as in :mod:`bactrian.camel.camel`). Where every margin has a weight per
cell, as here, the dual over weights and multipliers need not be minimised over the weights by an optimiser: at given
multipliers those of a margin follow from its own cells alone. What is left is

    D(delta) = sum over margins psi_a(m_a) + N sum over R  kept_R log sum exp((theta_R - sum_a delta_aR) / kept_R)

with m_a the sum of the multipliers of a, theta_R = (kept_R - c_R) log b_R the linearisation and, where nothing of R is
kept, the multipliers of R adding up to theta_R. L-BFGS minimises it, in multipliers scaled by their curvature: a
margin's own term has, in a cell, N b p / (p + N b). Exact margins are met by construction. Rounds after the first
centre the prior at the last weights, as on junction trees (:mod:`bactrian.margins.problem`).

A noisy margin with counts y and tempered variances p has, at the sums m of its multipliers, the weights w that minimise

    psi(m) = N log sum exp(w + m) - w.y + sum p w^2 / 2,        d psi / d m = N b,  b = softmax(w + m).

There N b = y - p w. With e = N b and L the log of the sum less log N this is, cell by cell,

    e / p + log e + L = y / p + m,        and all e add up to N:

Newton's method for v = log e of all cells and L together, from those of the last time. Where L is fixed, v is a convex
function's root, which steps from the right approach from the right; steps to the right are kept short.
"""

from __future__ import annotations

import math
import time
from typing import NamedTuple

import numpy as np

from bactrian.arrays import Bools, Floats, Ints
from bactrian.compiling import kernel, njit
from bactrian.engines.long_memory import make_memory
from bactrian.engines.numba.arithmetic import exp
from bactrian.engines.numba.layout import Layout
from bactrian.graphs.graph import ClusterGraph
from bactrian.graphs.packed import link_cells
from bactrian.graphs.ragged import ranges
from bactrian.margins.problem import FitOptions, MarginProblem, NoStateError, layout_of
from bactrian.parallel.threads import Deadline, Workers, balanced_blocks
from bactrian.solvers.anderson import Anderson
from bactrian.solvers.lbfgs import Step, minimise
from bactrian.solvers.solution import Progress, Record, Solution, Status

#: Blocks of tables and of hubs that threads share.
_N_BLOCKS = 16
#: Log ratio of a cell that cannot be, and the least belief that is linearised at.
_IMPOSSIBLE, _LEAST = -1e4, 1e-300
#: Exact margins agree on what they share to this part of the total, so that no more can be asked of others.
_AGREEMENT = 2e-7
#: Part of the last change of beliefs to which tables agree before the next linearisation.
_LOOSE = 0.1
#: Kinds of tables: noisy, exact (beliefs are y / N), and fixed scores without weights.
NOISY, EXACT, FIXED = 0, 1, 2
#: Step of v at which Newton's method has converged (errors are squared), steps at most, and the longest to the right.
_SMALL, _MOST_STEPS, _LONGEST = 1e-8, 200, 1.0


def fit_by_regions(problem: MarginProblem, graph: ClusterGraph, options: FitOptions) -> tuple[Solution, Floats]:
    """The solution with Kikuchi's entropy on ``graph``, and its beliefs of all cells."""
    began, deadline = time.perf_counter(), Deadline(options.max_seconds)
    workers = Workers(options.n_threads)
    dual = RegionDual(problem, graph, workers)
    last = max(options.tolerance, _AGREEMENT) if dual.any_exact else options.tolerance
    memory, accelerate = make_memory(dual.x.size, workers), Anderson()
    records: list[Record] = []
    rounds_left, before_round = problem.rounds - 1, dual.x
    tolerance = problem.wanted(last, rounds_left) / problem.total
    iterations, change, wanted, stopped = 0, 1.0, tolerance, False

    def after_step(step: Step) -> bool:
        nonlocal stopped
        if options.callback is not None:
            spent, at = time.perf_counter() - began, (len(records), iterations + step.iteration)
            told = Progress(*at, step.value, 0.0, dual.violation, spent, dual.weights())
            stopped = options.callback(told) is True
        return stopped or deadline.has_passed or (step.value == dual.value and dual.violation <= wanted)

    status: Status | None = None
    while status is None:
        wanted = max(tolerance, _LOOSE * change) if dual.linearised.any() else tolerance
        before = dual.evaluations
        minimum = minimise(
            dual.value_and_gradient,
            dual.x,
            tolerance=0.0,
            max_iterations=options.max_iterations - iterations if dual.violation > wanted else 0,
            memory=memory,
            callback=after_step,
        )
        dual.x, iterations = minimum.x, iterations + minimum.iterations
        dual.value_and_gradient(dual.x)
        image, residual, change = dual.next_linearisation()
        figures = (dual.value, 0.0, dual.violation, minimum.iterations, dual.evaluations - before, 0)
        records.append(Record(len(records), *figures, time.perf_counter() - began, change))
        if stopped or deadline.has_passed:
            status = Status.STOPPED if stopped else Status.TIME_LIMIT
        elif dual.violation <= tolerance and change <= tolerance and rounds_left:
            rounds_left -= 1
            tolerance = problem.wanted(last, rounds_left) / problem.total
            dual.centre()
            dual.x, before_round = 2.0 * dual.x - before_round, dual.x  # rounds are much alike
            dual.value_and_gradient(dual.x)
            change, accelerate = 1.0, Anderson()
        elif dual.violation <= tolerance and change <= tolerance:
            status = Status.CONVERGED
        elif iterations >= options.max_iterations:
            status = Status.ITERATION_LIMIT
        elif not np.isfinite(dual.value):
            status = Status.UNRELIABLE
        elif minimum.status is Status.STALLED and change <= tolerance:
            status = Status.STALLED
        else:
            further = accelerate.next(image, residual, dual.hub_beliefs)
            dual.theta = image if further is None else further
            dual.value_and_gradient(dual.x)
    weights, beliefs = dual.weights(), dual.cells.beliefs[: problem.observed.size]
    solution = Solution(
        weights=weights,
        status=status,
        history=tuple(records),
        objective=dual.value,
        moment_gap=0.0,
        violation=dual.violation,
        beliefs=[problem.split(beliefs)],
        method="cccp",
        seconds=time.perf_counter() - began,
        evaluations=dual.evaluations,
    )
    return solution, beliefs


class Cells(NamedTuple):
    """What is known of the tables' cells, and where Newton's method stands."""

    kind: Ints  #: (T,)
    constant: Floats  #: y / p; of exact tables y; of fixed ones their scores
    precision: Floats  #: 1 / p; of others 0
    log_count: Floats  #: v
    level: Floats  #: (T,) L + log N
    beliefs: Floats


class Exchange(NamedTuple):
    """What passes between hubs and tables, and how hubs count it."""

    number: Floats  #: (H,) counting numbers that are kept
    scale: Floats  #: (n_link_states,) what x is multiplied by
    multipliers: Floats  #: (n_link_states,)
    marginal: Floats  #: (n_link_states,) of the link's table
    beliefs: Floats  #: (n_hub_states,)


class RegionDual:
    """D, in scaled multipliers x, at a linearisation ``theta``."""

    def __init__(self, problem: MarginProblem, graph: ClusterGraph, workers: Workers) -> None:
        self._workers, self._total, self._n = workers, problem.total, problem.observed.size
        layout = self._layout = layout_of(graph)
        self._tables = balanced_blocks(np.diff(layout.table_offset).astype(np.float64), _N_BLOCKS, 2_000.0)
        self._hubs = balanced_blocks(np.diff(layout.link_offset[layout.hub_links]) + 1.0, _N_BLOCKS, 2_000.0)
        self._degree = np.repeat(np.diff(layout.hub_links), np.diff(layout.hub_offset))
        self._hub_state = ranges(layout.hub_offset[layout.link_hub], np.diff(layout.link_offset))
        self._possible, hub_possible = _possible(problem, layout, self._hub_state)
        self.cells = self._start_of_cells(problem)
        self._given = self.cells.constant[: self._n].copy()
        self.any_exact = bool((self.cells.kind == EXACT).any())
        numbers = np.asarray(graph.hubs().numbers)[: graph.n_appended]
        self._kept = np.maximum(numbers, 0.0)
        states = np.diff(layout.hub_offset)
        self.linearised = np.repeat(self._kept - numbers, states) * hub_possible
        self._forbidding = np.where(hub_possible, 0.0, _IMPOSSIBLE * np.repeat(self._kept, states))
        self.marginal = np.zeros(layout.link_offset[-1])
        self.evaluations, self.value, self.violation = 0, np.inf, np.inf
        guess = self._guess(problem)
        marginal = self._projected(guess)
        self.hub_beliefs = np.bincount(self._hub_state, weights=marginal, minlength=self._degree.size) / self._degree
        kept = np.repeat(self._kept, states)[self._hub_state]
        self._scale = self._scale_of(guess, kept)
        logs = np.log(np.maximum(self.hub_beliefs, _LEAST))
        self.theta = self.linearised * logs
        multipliers = (-np.repeat(numbers, states) * logs * hub_possible / self._degree)[self._hub_state]
        self.x = multipliers / self._scale
        self.multipliers = multipliers
        self.value_and_gradient(self.x)

    def _start_of_cells(self, problem: MarginProblem) -> Cells:
        offset = self._layout.table_offset
        fixed = [np.where(np.isfinite(table), table, _IMPOSSIBLE) for _, table in problem.base]
        n_fixed = sum(table.size for table in fixed)
        p = np.concatenate([problem.precision, np.zeros(n_fixed)])
        noisy = p > 0.0
        kind = np.where(noisy[offset[:-1]], NOISY, EXACT)
        kind[len(problem.scopes) :] = FIXED
        precision = np.divide(1.0, p, out=np.zeros_like(p), where=noisy)
        constant = np.concatenate([problem.observed, *fixed])
        log_count = np.log(np.maximum(constant, np.where(noisy, p, 1.0)))
        constant[noisy] *= precision[noisy]
        impossible = ~self._possible
        log_count[impossible] = _IMPOSSIBLE
        constant[impossible] = np.where(np.repeat(kind, np.diff(offset))[impossible] == EXACT, 0.0, _IMPOSSIBLE)
        return Cells(kind, constant, precision, log_count, np.zeros(kind.size), np.zeros(p.size))

    def _guess(self, problem: MarginProblem) -> Floats:
        """Probabilities near the given counts, all of them positive where they may be."""
        found = np.ones(self._possible.size)
        found[: self._n] = np.maximum(np.maximum(problem.observed, np.sqrt(problem.precision)), 1e-12)
        found[~self._possible] = 0.0
        offset = self._layout.table_offset
        sums = np.add.reduceat(found, offset[:-1])
        return found / np.repeat(sums, np.diff(offset))

    def _projected(self, values: Floats) -> Floats:
        """Sums over the cells of each link's states."""
        cell, state = link_cells(self._layout)
        return np.bincount(state, weights=values[cell], minlength=self._layout.n_link_states).astype(np.float64)

    def _scale_of(self, guess: Floats, kept: Floats) -> Floats:
        """1 / sqrt of the curvature of each multiplier; exact margins have none, and take that of others at the hub."""
        counts = self._total * guess
        counts /= 1.0 + counts * self.cells.precision
        counts[np.repeat(self.cells.kind == EXACT, np.diff(self._layout.table_offset))] = 0.0
        curvature = self._projected(counts)
        own = curvature > 0.0
        n = np.bincount(self._hub_state, weights=own, minlength=self._degree.size)
        sums = np.bincount(self._hub_state, weights=curvature, minlength=self._degree.size)
        usual = np.where(n > 0.0, sums / np.maximum(n, 1.0), self._total * np.maximum(self.hub_beliefs, 1e-12))
        curvature = np.where(own, curvature, usual[self._hub_state])
        hub = self._total * self.hub_beliefs[self._hub_state]
        curvature += np.divide(hub, kept, out=np.zeros_like(hub), where=kept > 0.0)
        return 1.0 / np.sqrt(curvature)

    def value_and_gradient(self, x: Floats) -> tuple[float, Floats]:
        """D and its gradient in x."""
        layout, slope, scores = self._layout, np.empty_like(x), self.theta + self._forbidding
        between = Exchange(self._kept, self._scale, self.multipliers, self.marginal, self.hub_beliefs)
        tables = np.zeros(self._tables.size - 1)
        hubs = np.zeros((self._hubs.size - 1, 2))
        self.evaluations += 1

        def set_multipliers(_: int, first: int, last: int) -> None:
            fill_multipliers(layout, between, scores, x, first, last)

        def set_beliefs(b: int, first: int, last: int) -> None:
            tables[b] = evaluate_tables(layout, self.cells, between, self._total, first, last)

        def set_slope(b: int, first: int, last: int) -> None:
            hubs[b] = evaluate_region_hubs(layout, between, scores, self._total, slope, first, last)

        self._workers.run(set_multipliers, self._hubs)
        self._workers.run(set_beliefs, self._tables)
        self._workers.run(set_slope, self._hubs)
        self.value = float(tables.sum() + hubs[:, 0].sum())
        self.violation = float(hubs[:, 1].max(initial=0.0)) if np.isfinite(self.value) else np.nan
        return self.value, slope

    def next_linearisation(self) -> tuple[Floats, Floats, float]:
        """The linearisation at the present beliefs, how far it is from the last, and about the change of beliefs."""
        image = self.linearised * np.log(np.maximum(self.hub_beliefs, _LEAST))
        residual = np.where(self.linearised > 0.0, image - self.theta, 0.0)
        change = self.hub_beliefs * np.abs(residual) / np.maximum(self.linearised, 1.0)
        return image, residual, float(change.max(initial=0.0))

    def centre(self) -> None:
        """Begin a round: centre the prior at the weights of this one."""
        noisy = self.cells.precision[: self._n] > 0.0
        self.cells.constant[: self._n][noisy] = self._given[noisy] + self.weights()[noisy]

    def weights(self) -> Floats:
        """log b + L - m of every possible cell that has a weight."""
        cell, state = link_cells(self._layout)
        level = np.repeat(self.cells.level, np.diff(self._layout.table_offset)) - np.log(self._total)
        told = np.bincount(cell, weights=self.multipliers[state], minlength=level.size)
        return np.where(self._possible, self.cells.log_count + level - told, 0.0)[: self._n]


def _possible(problem: MarginProblem, layout: Layout, hub_state: Ints) -> tuple[Bools, Bools]:
    """Cells and hub states that are possible: what no margin or base table rules out, nor a state that it shares."""
    fixed = [np.isfinite(table) for _, table in problem.base]
    cells = np.concatenate([~problem.forbidden, *fixed])
    cell, state = link_cells(layout)
    left = cells.size + 1
    while cells.sum() < left:
        left = cells.sum()
        without = np.bincount(state, weights=cells[cell], minlength=hub_state.size) == 0.0  # link states
        states = np.bincount(hub_state, weights=without, minlength=layout.hub_offset[-1]) == 0.0
        cells &= np.bincount(cell, weights=~states[hub_state][state], minlength=cells.size) == 0.0
    exact = (problem.precision == 0.0) & (problem.observed > 0.0)
    if not np.logical_or.reduceat(cells, layout.table_offset[:-1]).all() or (exact & ~cells[: exact.size]).any():
        raise NoStateError("no joint state is possible: zeros of exact margins, base and impossible rule out all")
    return cells, states


# --- kernels ---


@kernel()
def evaluate_tables(layout: Layout, cells: Cells, hubs: Exchange, total: float, first: int, last: int) -> float:
    """Beliefs of tables ``first:last`` and their marginals on links; returns the sum of psi up to constants."""
    multipliers, marginal = hubs.multipliers, hubs.marginal
    table_offset, cluster_links, cluster_link = layout.table_offset, layout.cluster_links, layout.cluster_link
    link_offset, link_projection, projection = layout.link_offset, layout.link_projection, layout.projection
    largest = 1
    for t in range(first, last):
        largest = max(largest, table_offset[t + 1] - table_offset[t])
    scores, counts = np.empty(largest), np.empty(largest)
    value = 0.0
    for t in range(first, last):
        start, size = table_offset[t], table_offset[t + 1] - table_offset[t]
        for k in range(size):
            scores[k] = 0.0
        for position in range(cluster_links[t], cluster_links[t + 1]):
            link = cluster_link[position]
            offset, states = link_offset[link], link_projection[link]
            for k in range(size):
                scores[k] += multipliers[offset + projection[states + k]]
        beliefs = cells.beliefs[start : start + size]
        constant = cells.constant[start : start + size]
        if cells.kind[t] == EXACT:
            for k in range(size):
                value += constant[k] * scores[k]
                beliefs[k] = constant[k] / total
        elif cells.kind[t] == FIXED:
            top = -np.inf
            for k in range(size):
                scores[k] += constant[k]
                top = max(top, scores[k])
            mass = 0.0
            for k in range(size):
                beliefs[k] = exp(scores[k] - top)
                mass += beliefs[k]
            for k in range(size):
                beliefs[k] /= mass
            value += total * (top + math.log(mass))
        else:
            precision = cells.precision[start : start + size]
            for k in range(size):
                scores[k] += constant[k]
            v = cells.log_count[start : start + size]
            cells.level[t] = _solve(scores, precision, v, counts, total, size) + math.log(total)
            prior = 0.0
            for k in range(size):
                weight = constant[k] - counts[k] * precision[k]
                prior += weight * (0.5 * weight / precision[k] + counts[k])
                beliefs[k] = counts[k] / total
            value += total * cells.level[t] - prior
        for position in range(cluster_links[t], cluster_links[t + 1]):
            link = cluster_link[position]
            offset, states = link_offset[link], link_projection[link]
            for k in range(offset, link_offset[link + 1]):
                marginal[k] = 0.0
            for k in range(size):
                marginal[offset + projection[states + k]] += beliefs[k]
    return value


@njit()
def _solve(scores: Floats, precision: Floats, v: Floats, counts: Floats, total: float, size: int) -> float:
    """v of all cells, their exponentials, and L, which is returned."""
    level = 0.0
    for _ in range(_MOST_STEPS):
        mass, slack, slope = 0.0, 0.0, 0.0
        for k in range(size):
            e = exp(v[k])
            counts[k] = e
            mass += e
            part = e / (e * precision[k] + 1.0)
            slope += part
            slack += part * (e * precision[k] + v[k] - scores[k])
        level = (mass - total - slack) / slope
        largest = 0.0
        for k in range(size):
            e = counts[k] * precision[k]
            step = min((scores[k] - level - e - v[k]) / (e + 1.0), _LONGEST)
            v[k] += step
            largest = max(largest, abs(step))
        if largest <= _SMALL:
            break
    for k in range(size):
        counts[k] = exp(v[k])
    return level


@kernel()
def fill_multipliers(layout: Layout, hubs: Exchange, scores: Floats, x: Floats, first: int, last: int) -> None:
    """Multipliers scale * x of hubs ``first:last``; those of hubs of number 0 are shifted to add up to its scores."""
    number, scale, multipliers = hubs.number, hubs.scale, hubs.multipliers
    for hub in range(first, last):
        begin, end = layout.hub_links[hub], layout.hub_links[hub + 1]
        for s in range(layout.hub_offset[hub + 1] - layout.hub_offset[hub]):
            total, squares = 0.0, 0.0
            for link in range(begin, end):
                k = layout.link_offset[link] + s
                multipliers[k] = scale[k] * x[k]
                total += multipliers[k]
                squares += scale[k] * scale[k]
            if number[hub] == 0.0:
                missing = (scores[layout.hub_offset[hub] + s] - total) / squares
                for link in range(begin, end):
                    k = layout.link_offset[link] + s
                    multipliers[k] += scale[k] * scale[k] * missing


@kernel()
def evaluate_region_hubs(
    layout: Layout, hubs: Exchange, scores: Floats, total: float, slope: Floats, first: int, last: int
) -> tuple[float, float]:
    """Beliefs of hubs and the gradient in x; returns the hubs' part of the dual and the largest disagreement."""
    number, scale, multipliers, marginal, beliefs = hubs
    value, violation = 0.0, 0.0
    for hub in range(first, last):
        begin, end = layout.hub_links[hub], layout.hub_links[hub + 1]
        start = layout.hub_offset[hub]
        states = layout.hub_offset[hub + 1] - start
        if number[hub] > 0.0:
            top = -np.inf
            for s in range(states):
                left = scores[start + s]
                for link in range(begin, end):
                    left -= multipliers[layout.link_offset[link] + s]
                beliefs[start + s] = left / number[hub]
                top = max(top, beliefs[start + s])
            mass = 0.0
            for s in range(states):
                beliefs[start + s] = exp(beliefs[start + s] - top)
                mass += beliefs[start + s]
            for s in range(states):
                beliefs[start + s] /= mass
            value += total * number[hub] * (top + math.log(mass))
        for s in range(states):
            if number[hub] == 0.0:
                weighted, squares = 0.0, 0.0
                for link in range(begin, end):
                    k = layout.link_offset[link] + s
                    weighted += scale[k] * scale[k] * marginal[k]
                    squares += scale[k] * scale[k]
                beliefs[start + s] = weighted / squares
            for link in range(begin, end):
                k = layout.link_offset[link] + s
                gap = marginal[k] - beliefs[start + s]
                slope[k] = total * scale[k] * gap
                violation = max(violation, abs(gap))
    return value, violation
