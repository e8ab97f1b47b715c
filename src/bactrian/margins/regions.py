"""Maximum entropy from margins on their region graph: multipliers alone, since every table's weights follow from them.

Kikuchi's entropy, with raised numbers (:mod:`bactrian.graphs.regions`), has a table of beliefs for each margin and
numbers c_R for the intersections R on which they agree. Positive numbers are kept, negative ones linearised at the
last beliefs (the concave-convex procedure, as in :mod:`bactrian.camel.camel`). Where every margin has a weight per
cell, as here, the dual over weights and multipliers need not be minimised over the weights by an optimiser: at given
multipliers those of a margin follow from its own cells alone (:mod:`bactrian.margins.noisy_tables`). What is left
is

    D(delta) = sum over margins psi_a(m_a) + N sum over R  kept_R log sum exp((theta_R - sum_a delta_aR) / kept_R)

with m_a the sum of the multipliers of a, theta_R = (kept_R - c_R) log b_R the linearisation and, where nothing of R is
kept, the multipliers of R adding up to theta_R. L-BFGS minimises it, in multipliers scaled by their curvature: a
margin's own term has, in a cell, N b p / (p + N b). Exact margins are met by construction. Rounds after the first
centre the prior at the last weights, as on junction trees (:mod:`bactrian.margins.problem`).
"""

from __future__ import annotations

import time

import numpy as np

from bactrian.arrays import Bools, Floats, Ints
from bactrian.engines.long_memory import make_memory
from bactrian.engines.numba.layout import Layout
from bactrian.graphs.graph import ClusterGraph
from bactrian.graphs.packed import link_cells
from bactrian.graphs.ragged import ranges
from bactrian.margins.noisy_tables import (
    EXACT,
    FIXED,
    NOISY,
    Cells,
    Exchange,
    evaluate_region_hubs,
    evaluate_tables,
    fill_multipliers,
)
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
