"""The profiled solver: L-BFGS over the weights alone, with the multipliers minimised over inside every evaluation.

By the envelope theorem the gradient in w at the optimal multipliers is moments minus data, so nothing is differentiated
through the messages. Hazan and Urtasun (2010) are the nearest kin.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from bactrian.arrays import Floats
from bactrian.camel.dual import Dual, Evaluation
from bactrian.camel.parts import LongMemory, Vector
from bactrian.camel.prior import Prior
from bactrian.camel.run import InnerResult, Run, Work
from bactrian.camel.schedule import SCHEDULE
from bactrian.engines.numba.threads import Workers
from bactrian.graphs.packed import PackedData
from bactrian.graphs.scores import StructuredScores
from bactrian.solvers.lbfgs import Memory, Minimum, Step, ValueAndGradient, largest_slope, minimise
from bactrian.solvers.solution import Status


class ProfiledObjective:
    """D minimised over the multipliers by star updates, as a function of w alone.

    Multipliers are warm-started. A trial point that turned out worse than the best so far leaves multipliers fitted to
    the wrong weights, so those of the best point are restored first. The point that the solver moves to
    counts as the best, whatever its value: a search finds that value again at short steps only with its multipliers.

    Where some hub's number is negative the star update solves for a saddle of D: before convergence D is no bound, so
    sweeps go on to ``accuracy``, damped where they oscillate. Evaluations that do not get there are ``failures``.
    """

    hopeless = False  #: whether further steps are not worth their time: not here, where D is a bound or is damped

    def __init__(self, dual: Dual, *, accuracy: float, max_sweeps: int = 1000, tree_sweeps: int = 1 << 30) -> None:
        self.dual: Dual = dual
        self.accuracy = accuracy
        self.max_sweeps = max_sweeps if dual.consistency else 0
        self.tree_sweeps = tree_sweeps
        self.damping = 0.0
        self.evaluations = self.sweeps = self.failures = 0
        self.converged = True
        self.last: Evaluation | None = None
        self.weights: Any = None  # of the last evaluation
        self._is_saddle = dual.has_saddle and tree_sweeps > max_sweeps
        self._is_exact = tree_sweeps < max_sweeps and dual.is_forest
        self._keeps = dual.consistency and not self._is_exact
        self._best_value = np.inf

    @property
    def accuracy(self) -> float:
        """Largest change of a marginal that a sweep may still make; 0 asks for all that rounding allows."""
        return self._accuracy

    @accuracy.setter
    def accuracy(self, wanted: float) -> None:
        # What lies below the messages' precision is as good as nothing: a solver that asks for it has had all.
        self._accuracy = wanted if wanted >= self.dual.finest else 0.0

    def accept(self) -> None:
        """Take the last point for the best, since the solver has moved there."""
        if self.last is not None and self.last.value > self._best_value and self._keeps:
            self._best_value = self.last.value
            self.dual.remember()

    def forget(self) -> None:
        """Forget the best point, since the objective has changed."""
        self._best_value = np.inf
        if not self._is_exact:
            self.dual.remove_levels()

    def value_and_gradient(self, weights: Vector) -> tuple[float, Vector]:
        """Profiled D and its gradient (by the envelope theorem, that of D at the optimal multipliers)."""
        dual = self.dual
        if self.last is not None and (self.last.value > self._best_value or dual.late):
            dual.recall()
        before = SCHEDULE.oscillates
        for left in range(SCHEDULE.most_rounds, -1, -1):
            self.evaluations += 1
            self.last = dual.evaluate(
                weights,
                tolerance=0.0 if self._is_exact else self.accuracy,  # all of the few sweeps that a tree needs
                max_sweeps=self.max_sweeps,
                tree_sweeps=self.tree_sweeps,
                damping=self.damping,
            )
            self.converged = self.last.residual <= max(self.accuracy, dual.finest)
            if not self._is_saddle or self.converged or dual.late or left == 0:
                break
            # What still shrinks needs further sweeps; what goes back and forth needs damping.
            if self.last.residual > 0.5 * before:
                if self.damping >= SCHEDULE.most_damping:
                    break
                self.damping = 0.5 + 0.5 * self.damping
            before = self.last.residual
        assert self.last is not None
        self.weights, self.sweeps = weights, self.sweeps + self.last.sweeps
        self.failures += self._is_saddle and not self.converged
        if self.last.value <= self._best_value and self._keeps and not dual.late:
            self._best_value = self.last.value
            dual.remember()
        return self.last.value, self.last.gradient


class Profiled:
    """L-BFGS over the weights; every evaluation first minimises over the multipliers.

    Messages are iterated only as far as the moment gap deserves: ``accuracy`` follows the gap down.
    """

    measure: Callable[[Vector], float] | None = None  #: of the gap; its largest component where there is none

    def __init__(self, dual: Dual, run: Run, objective: Any = None, units: Units | None = None) -> None:
        self.dual, self.run, self.units = dual, run, units
        run.listen_to(dual)
        # At a saddle the value is no bound, so there inexact messages mislead the line search sooner.
        saddle = dual.has_saddle and objective is None
        self._finest = run.gradient_accuracy if saddle else run.accuracy
        loosest = max(self._finest, SCHEDULE.loosest_at_saddle) if saddle else SCHEDULE.loosest
        self.objective: ProfiledObjective = objective or ProfiledObjective(dual, accuracy=loosest)
        self.memory = dual.vectors.memory(dual.data.n_weights) if units is None else units.memory
        self._evaluations_before = 0
        self._value_before = np.inf
        self._was_stopped = False  # the last solve, before it converged
        if units is not None:
            dual.part.wants_logs = False  # before the end

    @property
    def work(self) -> Work:
        """See :class:`InnerSolver`."""
        return Work(self.objective.evaluations, self.objective.sweeps, self.objective.failures)

    @property
    def reliable(self) -> bool:
        """Whether messages converged at the last evaluation, where the value depends on it."""
        return self.objective.converged or not self.dual.has_saddle or self.dual.is_forest

    def solve(self, weights: Vector, *, tolerance: float, relative: float = 0.0, max_iterations: int) -> InnerResult:
        """See :class:`InnerSolver`."""
        run, objective, units = self.run, self.objective, self.units
        function = objective.value_and_gradient if units is None else units.seen(objective.value_and_gradient)
        left = max_iterations
        total = 0
        while True:
            objective.forget()
            self._evaluations_before, self._value_before = objective.evaluations, np.inf
            minimum = minimise(
                function,
                weights if units is None else units.of(weights),
                tolerance=tolerance,
                relative=relative,
                max_iterations=min(left, run.iterations_left),
                l1=run.settings.prior.l1,
                memory=self.memory,
                measure=self.measure if units is None else units.measure,
                callback=self._after_step,
                interrupt=run.is_late,
            )
            minimum = minimum if units is None else units.unseen(minimum)
            weights, tolerance, relative = minimum.x, minimum.tolerance, 0.0
            total += minimum.iterations
            left -= minimum.iterations
            # The gap is measured with inexact multipliers: before it is believed, or where it no longer falls because
            # of them, sharpen them and go on.
            floor = {Status.CONVERGED: self._finest, Status.STALLED: SCHEDULE.sharpest}.get(minimum.status, np.inf)
            if self.dual.consistency and objective.accuracy > floor and left > 0:
                arrived = minimum.status is Status.CONVERGED and minimum.iterations == 0
                objective.accuracy = floor if arrived else max(floor, 0.01 * objective.accuracy)
                if minimum.status is Status.STALLED:
                    self.memory.clear()
                continue
            # What messages leave in the gap grows with the features: the last gap is measured once more.
            if minimum.status is Status.CONVERGED and left > 0 and not self.dual.relinearises and self.dual.consistency:
                _, gradient = objective.value_and_gradient(weights)
                largest = largest_slope(weights, gradient, run.settings.prior.l1)
                gap = largest if self.measure is None else self.measure(gradient)
                if gap > tolerance and objective.accuracy > SCHEDULE.sharpest:
                    objective.accuracy = max(SCHEDULE.sharpest, 0.01 * objective.accuracy)
                    continue
            return self._result(minimum, total)

    def refine(self, weights: Vector, belief_change: float) -> None:
        """See :class:`InnerSolver`."""
        wanted = max(self._finest, 0.1 * belief_change) if np.isfinite(belief_change) else SCHEDULE.loosest
        if wanted < self.objective.accuracy:
            self.objective.accuracy = wanted

    def objective_changed(self) -> None:
        """See :class:`InnerSolver`."""
        self.objective.forget()

    def evaluate(self, weights: Vector) -> Evaluation:
        """See :class:`InnerSolver`.

        Weights that a limit stopped at are given no more sweeps than those before: nothing is claimed of them, and
        full accuracy can take longer than all iterations together. Where they were evaluated last, that has to do.
        """
        objective, stopped = self.objective, self._was_stopped and self.units is None
        if not (weights is objective.weights and (stopped or self.run.is_late())):
            if not stopped:
                objective.accuracy = min(objective.accuracy, self._finest)
            if self.units is not None:
                self.dual.part.wants_logs = True
            objective.value_and_gradient(weights)
        assert objective.last is not None
        return objective.last

    def _after_step(self, step: Step) -> bool:
        objective, run = self.objective, self.run
        assert objective.last is not None
        if step.x is objective.weights:
            objective.accept()
        wanted = 0.1 * step.gradient_norm / run.gap_scale
        if wanted < objective.accuracy:
            objective.accuracy = max(self._finest, wanted)
        # A search that took many trials, or gained next to nothing, was led astray by inexact messages.
        trials = objective.evaluations - self._evaluations_before
        gain = self._value_before - step.value
        if self.dual.consistency and (trials > SCHEDULE.many_trials or gain < SCHEDULE.little_gain * abs(step.value)):
            objective.accuracy = max(
                SCHEDULE.sharpest, min(objective.accuracy, 0.01 * self._finest), 0.1 * objective.accuracy
            )
        self._evaluations_before, self._value_before = objective.evaluations, step.value
        weights = step.x if self.units is None else self.units.weights(step.x)
        stop = run.after_step(weights, step.value, step.gradient_norm, objective.last.violation)
        return stop or objective.hopeless

    def _result(self, minimum: Minimum, iterations: int) -> InnerResult:
        last = self.objective.last
        assert last is not None
        gap = largest_slope(minimum.x, minimum.gradient, self.run.settings.prior.l1)
        status = self.run.status_of(minimum.status)
        if not self.reliable and status is not self.run.interrupted:
            status = Status.UNRELIABLE
        self._was_stopped = status is self.run.interrupted
        return InnerResult(minimum.x, minimum.value, gap, last.violation, iterations, status)


class Units:
    """Weights as the solver of an exact likelihood sees them: those that are learned, each in a unit of its own.

    Features of a text occur once or in every token, and the curvature of the likelihood in their weights differs as
    much. L-BFGS, which begins with the same curvature for all, takes a third of the iterations to within 0.1 % of the
    optimum where weight k is counted in units of c_k^(-1/5), c_k being the sum of squares of the feature, times the
    probability of its states if all are alike, and the prior's precision. (On CoNLL-2003; with c_k^(-1/2), Newton's
    step for a diagonal Hessian, it takes more iterations than without: at the optimum frequent features have least
    left to say.)

    For data with features of nodes and edges.
    """

    def __init__(self, data: PackedData, prior: Prior, start: Floats, workers: Workers) -> None:
        assert isinstance(data.scores, StructuredScores)
        active = data.scores.active
        self._chosen = np.arange(start.size) if active is None else np.flatnonzero(active | (start != 0.0))
        curvature = data.scores.squared().moments(*data.uniform_counts(), workers) + prior.precision
        curvature[curvature <= 0.0] = 1.0
        self._unit = curvature[self._chosen] ** -SCHEDULE.unit_power
        self._weights = np.zeros(start.size)
        size = self._chosen.size
        pairs = SCHEDULE.exact_memory if size < SCHEDULE.exact_many else SCHEDULE.long_memory
        self.memory = Memory(pairs, size) if size < SCHEDULE.exact_long else LongMemory(pairs, size, workers)

    def of(self, weights: Floats) -> Floats:
        """What the solver sees of ``weights``."""
        return weights[self._chosen] / self._unit

    def weights(self, x: Floats) -> Floats:
        """All weights at a point of the solver, in the same place each time."""
        self._weights[self._chosen] = x * self._unit
        return self._weights

    def seen(self, function: ValueAndGradient) -> ValueAndGradient:
        """Value and gradient for the solver, from those for all weights."""

        def value_and_gradient(x: Floats) -> tuple[float, Floats]:
            value, gradient = function(self.weights(x))
            return value, gradient[self._chosen] * self._unit

        return value_and_gradient

    def measure(self, gradient: Floats) -> float:
        """The largest component of the gradient in the weights themselves."""
        return float(np.abs(gradient / self._unit).max(initial=0.0))

    def unseen(self, minimum: Minimum) -> Minimum:
        """The solver's result for all weights."""
        gradient = np.zeros(self._weights.size)
        gradient[self._chosen] = minimum.gradient / self._unit
        return replace(minimum, x=self.weights(minimum.x).copy(), gradient=gradient)
