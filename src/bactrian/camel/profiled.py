"""The profiled solver: L-BFGS over the weights alone, with the multipliers minimised over inside every evaluation.

By the envelope theorem the gradient in w at the optimal multipliers is moments minus data, so nothing is differentiated
through the messages. Hazan and Urtasun (2010) are the nearest kin.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bactrian.arrays import Floats
from bactrian.camel.accuracy import Accuracy
from bactrian.camel.dual import Dual, Evaluation
from bactrian.camel.parts import Vector
from bactrian.camel.run import InnerResult, Run, Work
from bactrian.camel.units import Learned, feature_units
from bactrian.solvers.lbfgs import Minimum, Step, largest_magnitude, largest_slope, minimise
from bactrian.solvers.solution import Status

#: Star updates that oscillate even with this part of the old multipliers kept are given up.
_MOST_DAMPING = 0.9
#: Change of a marginal after a round of sweeps above which they oscillate, and rounds before an evaluation fails.
_OSCILLATES, _MOST_ROUNDS = 0.1, 8


class ProfiledObjective:
    """D minimised over the multipliers by star updates, as a function of w alone.

    Multipliers are warm-started. A trial point that turned out worse than the best so far leaves multipliers fitted to
    the wrong weights, so those of the best point are restored first. The point that the solver moves to
    counts as the best, whatever its value: a search finds that value again at short steps only with its multipliers.

    Where some hub's number is negative the star update solves for a saddle of D: before convergence D is not a bound,
    so sweeps go on to ``accuracy``, damped where they oscillate. Evaluations that do not get there are ``failures``.
    """

    hopeless = False  #: whether further steps are not worth their time: not here, where D is a bound or is damped

    def __init__(self, dual: Dual, accuracy: Accuracy, *, max_sweeps: int = 1000, tree_sweeps: int = 1 << 30) -> None:
        self.dual, self.accuracy = dual, accuracy
        self.max_sweeps = max_sweeps if dual.consistency else 0
        self.tree_sweeps = tree_sweeps
        self.damping = 0.0
        self.evaluations = self.sweeps = self.failures = 0
        self.converged = True
        self.last: Evaluation | None = None
        self.weights: Any = None  # of the last evaluation
        self._is_saddle = dual.has_saddle and tree_sweeps > max_sweeps
        self.is_exact = tree_sweeps < max_sweeps and dual.is_forest
        self._keeps = dual.consistency and not self.is_exact
        self._best_value = np.inf
        self.wants_logs = True  #: whether exact passes over trees leave multipliers and log beliefs behind

    def accept(self) -> None:
        """Take the last point for the best, since the solver has moved there."""
        if self.last is not None and self.last.value > self._best_value and self._keeps:
            self._best_value = self.last.value
            self.dual.remember()

    def forget(self) -> None:
        """Forget the best point, since the objective has changed."""
        self._best_value = np.inf

    def value_and_gradient(self, weights: Vector) -> tuple[float, Vector]:
        """Profiled D and its gradient (by the envelope theorem, that of D at the optimal multipliers)."""
        dual, accuracy = self.dual, self.accuracy.now
        if self.last is not None and (self.last.value > self._best_value or dual.late):
            dual.recall()
        before = _OSCILLATES
        for left in range(_MOST_ROUNDS, -1, -1):
            self.evaluations += 1
            self.last = dual.evaluate(
                weights,
                tolerance=0.0 if self.is_exact else accuracy,  # all of the few sweeps that a tree needs
                max_sweeps=self.max_sweeps,
                tree_sweeps=self.tree_sweeps,
                damping=self.damping,
                logs=self.wants_logs,
            )
            self.converged = self.last.residual <= max(accuracy, dual.finest)
            if not self._is_saddle or self.converged or dual.late or left == 0:
                break
            # What still shrinks needs further sweeps; what goes back and forth needs damping.
            if self.last.residual > 0.5 * before:
                if self.damping >= _MOST_DAMPING:
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

    Messages are iterated only as far as the moment gap deserves (:mod:`bactrian.camel.accuracy`).
    """

    measure: Callable[[Vector], float] | None = None  #: of the gap; its largest component where there is none

    def __init__(self, dual: Dual, run: Run, objective: Any = None, learned: Learned | None = None) -> None:
        self.dual, self.run, self.learned = dual, run, learned
        dual.signals = run.signals
        if objective is None:
            accuracy = Accuracy(run.demands, is_saddle=dual.has_saddle, least=dual.finest)
            objective = ProfiledObjective(dual, accuracy)
        self.objective: ProfiledObjective = objective
        self.accuracy: Accuracy = objective.accuracy
        if learned is None:
            units, vectors = self.units(), dual.vectors
            self.memory, self.unit = vectors.memory(dual.data.n_weights), None if units is None else vectors.of(units)
        else:
            self.memory, self.unit = learned.memory, learned.unit
        self._evaluations_before = 0
        self._value_before = np.inf
        self._was_stopped = False  # the last solve, before it converged
        if run.settings.is_noise is not None:
            self.measure = self._told_from_noise
        self.objective.wants_logs = learned is None  # before the end

    def units(self) -> Floats | None:
        """Those in which the solver counts weights, as the features have them; None where they are 1."""
        data, dual = self.run.data, self.dual  # a dual may be of other tables than the features have
        return feature_units([data] if data.in_memory else dual.packed(), dual.prior, dual.communicator)

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
        run, objective, learned = self.run, self.objective, self.learned
        function = objective.value_and_gradient if learned is None else learned.seen(objective.value_and_gradient)
        # Inexact messages gain and lose, and without a prior the optimum may lie at infinity.
        gain = run.settings.gain_tolerance if objective.is_exact and not run.settings.prior.leaves_free else 0.0
        left = max_iterations
        total = 0
        while True:
            objective.forget()
            self._evaluations_before, self._value_before = objective.evaluations, np.inf
            minimum = minimise(
                function,
                weights if learned is None else learned.of(weights),
                tolerance=tolerance,
                relative=relative,
                gain=gain,
                max_iterations=min(left, run.iterations_left),
                l1=run.settings.prior.l1,
                memory=self.memory,
                unit=self.unit,
                measure=self.measure,
                callback=self._after_step,
                interrupt=run.is_late,
            )
            minimum = minimum if learned is None else learned.unseen(minimum)
            weights, tolerance, relative = minimum.x, minimum.tolerance, 0.0
            total += minimum.iterations
            left -= minimum.iterations
            if left > 0 and self.dual.consistency and self._goes_on(minimum):
                continue
            return self._result(minimum, total)

    def _goes_on(self, minimum: Minimum) -> bool:
        """Whether a solve is to go on with sharper messages."""
        status = minimum.status
        if self.accuracy.sharpen(status, at_once=minimum.iterations == 0):
            if status is Status.STALLED:
                self.memory.clear()
            return True
        if status is not Status.CONVERGED or self.dual.relinearises:
            return False
        # What messages leave in the gap grows with the features: the last gap is measured once more.
        _, gradient = self.objective.value_and_gradient(minimum.x)
        largest = largest_slope(minimum.x, gradient, self.run.settings.prior.l1)
        gap = largest if self.measure is None else self.measure(gradient)
        return gap > minimum.tolerance and self.accuracy.sharpen_beyond()

    def _told_from_noise(self, gradient: Vector) -> float:
        assert self.run.settings.is_noise is not None
        return 0.0 if self.run.settings.is_noise(self.dual.part) else largest_magnitude(gradient)

    def relinearised(self, change: float) -> None:
        """See :class:`InnerSolver`."""
        self.accuracy.heed_beliefs(change)
        self.objective.forget()

    def evaluate(self, weights: Vector) -> Evaluation:
        """See :class:`InnerSolver`.

        After a limit, weights get no more sweeps than those before: full accuracy can take longer than all iterations
        together. If they were evaluated last, that evaluation is used.
        """
        objective, stopped = self.objective, self._was_stopped and self.learned is None
        if not (weights is objective.weights and (stopped or self.run.is_late())):
            if not stopped:
                self.accuracy.demand_all()
            objective.wants_logs = True
            objective.value_and_gradient(weights)
        assert objective.last is not None
        return objective.last

    def _after_step(self, step: Step) -> bool:
        objective, run = self.objective, self.run
        assert objective.last is not None
        if step.x is objective.weights:
            objective.accept()
        self.accuracy.heed_gap(step.gradient_norm)
        if self.dual.consistency:
            trials, gain = objective.evaluations - self._evaluations_before, self._value_before - step.value
            self.accuracy.heed_search(trials, gain, step.value)
        self._evaluations_before, self._value_before = objective.evaluations, step.value
        weights = step.x if self.learned is None else self.learned.weights(step.x)
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
