"""Solving one inner problem: the profiled, joint and alternating schedules behind one interface."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from bactrian.camel.dual import Dual, Evaluation, JointObjective, ProfiledObjective
from bactrian.camel.long_memory import make_memory
from bactrian.camel.prior import pseudo_gradient
from bactrian.camel.run import Run
from bactrian.camel.shared_memory import SharedMemory
from bactrian.solvers.lbfgs import Minimum, Outcome, Step, minimise
from bactrian.solvers.solution import Status

Floats = NDArray[np.float64]

_MEMORY = 10
#: Change of a marginal at which the first sweeps stop; later ones follow the moment gap down to the run's accuracy.
_LOOSEST = 1e-2
_SHARPEST = 1e-13
#: Trials in one line search, and relative decrease of the objective, at which messages are made more accurate.
_MANY_TRIALS, _LITTLE_GAIN = 5, 1e-12

#: Sweeps at a time where the joint solver's clusters disagree, and how often in vain.
_SWEEPS, _MOST_FAILURES = 1000, 3


@dataclass(frozen=True)
class InnerResult:
    """Weights after an inner solve, with what it took."""

    weights: Floats
    objective: float
    gap: float
    violation: float
    iterations: int
    status: Status


class InnerSolver(Protocol):
    """Minimises the dual from given weights and the dual's multipliers; keeps what helps the next solve."""

    dual: Any  #: a Dual, or one that streams: the profiled schedule takes either
    sweeps: int

    @property
    def evaluations(self) -> int:
        """Evaluations of the dual so far."""

    @property
    def failures(self) -> int:
        """Evaluations at which message passing did not converge."""

    def solve(self, weights: Floats, *, tolerance: float, relative: float = 0.0, max_iterations: int) -> InnerResult:
        """Run until the moment gap is at most ``tolerance``, or ``relative`` of what it was at the start."""

    def refine(self, weights: Floats, belief_change: float) -> None:
        """Before a relinearisation: make beliefs consistent enough for a change of that size to mean something."""

    def objective_changed(self) -> None:
        """The linearisation was updated."""

    def evaluate(self, weights: Floats) -> Evaluation:
        """The dual at ``weights``, as accurately as the run demands."""


def make_inner(solver: str, dual: Any, run: Run) -> InnerSolver:
    """The schedule by name."""
    if solver == "profiled":
        return Profiled(dual, run)
    return Joint(dual, run) if solver == "joint" else Alternating(dual, run)


class Profiled:
    """L-BFGS over the weights; every evaluation first minimises over the multipliers.

    Messages are iterated only as far as the moment gap deserves: ``accuracy`` follows the gap down.
    """

    def __init__(self, dual: Any, run: Run, objective: Any = None) -> None:
        self.dual, self.run = dual, run
        run.listen_to(dual)
        # At a saddle the value is no bound, so there inexact messages would mislead the line search.
        loosest = run.gradient_accuracy if dual.has_saddle else _LOOSEST
        self.objective: ProfiledObjective = objective or ProfiledObjective(dual, accuracy=loosest)
        self.memory = make_memory(_MEMORY, dual.data.n_weights, dual.workers)
        self.sweeps = 0
        self._evaluations_before = 0
        self._value_before = np.inf
        self._evaluated: Any = None  # weights of the last evaluation

    @property
    def evaluations(self) -> int:
        """Evaluations of the dual so far."""
        return self.objective.evaluations

    @property
    def failures(self) -> int:
        """Evaluations at which message passing did not converge."""
        return self.objective.failures

    @property
    def reliable(self) -> bool:
        """Whether messages converged at the last evaluation, where the value depends on it."""
        return self.objective.converged or not self.dual.has_saddle or self.dual.is_forest

    def solve(self, weights: Floats, *, tolerance: float, relative: float = 0.0, max_iterations: int) -> InnerResult:
        """See :class:`InnerSolver`."""
        run, objective = self.run, self.objective
        left = max_iterations
        total = 0
        while True:
            objective.forget()
            self._evaluations_before, self._value_before = objective.evaluations, np.inf
            minimum = minimise(
                self._value_and_gradient,
                weights,
                tolerance=tolerance,
                relative=relative,
                max_iterations=min(left, run.iterations_left),
                l1=run.settings.prior.l1,
                memory=self.memory,
                callback=self._after_step,
                interrupt=run.is_late,
            )
            weights, tolerance, relative = minimum.x, minimum.tolerance, 0.0
            total += minimum.iterations
            left -= minimum.iterations
            # The gap is measured with inexact multipliers: before it is believed, or where it no longer falls because
            # of them, sharpen them and go on.
            floor = {Outcome.CONVERGED: run.accuracy, Outcome.STALLED: _SHARPEST}.get(minimum.outcome, np.inf)
            if self.dual.consistency and objective.accuracy > floor and left > 0:
                objective.accuracy = max(floor, 0.01 * objective.accuracy)
                if minimum.outcome is Outcome.STALLED:
                    self.memory.clear()
                continue
            return self._result(minimum, total)

    def refine(self, weights: Floats, belief_change: float) -> None:
        """See :class:`InnerSolver`."""
        wanted = max(self.run.accuracy, 0.1 * belief_change) if np.isfinite(belief_change) else _LOOSEST
        if wanted < self.objective.accuracy:
            self.objective.accuracy = wanted

    def objective_changed(self) -> None:
        """See :class:`InnerSolver`."""
        self.objective.forget()

    def evaluate(self, weights: Floats) -> Evaluation:
        """See :class:`InnerSolver`; where time is up and they were evaluated last, that has to do."""
        if not (weights is self._evaluated and self.run.is_late()):
            self.objective.accuracy = min(self.objective.accuracy, self.run.accuracy)
            self._value_and_gradient(weights)
        assert self.objective.last is not None
        return self.objective.last

    def _value_and_gradient(self, weights: Floats) -> tuple[float, Floats]:
        value, gradient = self.objective.value_and_gradient(weights)
        self._evaluated = weights
        assert self.objective.last is not None
        self.sweeps += self.objective.last.sweeps
        return value, gradient

    def _after_step(self, step: Step) -> bool:
        objective, run = self.objective, self.run
        assert objective.last is not None
        wanted = 0.1 * step.gradient_norm / run.gap_scale
        if wanted < objective.accuracy:
            objective.accuracy = max(run.accuracy, wanted)
        # A search that took many trials, or gained next to nothing, was led astray by inexact messages.
        trials = objective.evaluations - self._evaluations_before
        gain = self._value_before - step.value
        if self.dual.consistency and (trials > _MANY_TRIALS or gain < _LITTLE_GAIN * abs(step.value)):
            objective.accuracy = max(_SHARPEST, min(objective.accuracy, 0.01 * run.accuracy), 0.1 * objective.accuracy)
        self._evaluations_before, self._value_before = objective.evaluations, step.value
        return run.after_step(step.x, step.value, step.gradient_norm, objective.last.violation)

    def _result(self, minimum: Minimum, iterations: int) -> InnerResult:
        last = self.objective.last
        assert last is not None
        gap = np.abs(pseudo_gradient(minimum.x, minimum.gradient, self.run.settings.prior.l1)).max(initial=0.0)
        status = self._status(minimum)
        return InnerResult(minimum.x, minimum.value, float(gap), last.violation, iterations, status)

    def _status(self, minimum: Minimum) -> Status:
        """That of the optimiser, unless messages did not converge, other than because the run was stopped."""
        status = self.run.status_of(minimum.outcome)
        return status if self.reliable or status is self.run.interrupted else Status.UNRELIABLE


class Joint:
    """The paper's solver: L-BFGS over weights and multipliers together.

    The gradient in the multipliers of an instance is its clusters' disagreement times its weight. Where that hides what
    instances of little weight, or of none, still disagree about, star updates of all multipliers see to it.
    """

    failures = 0  # no value depends on whether messages converge

    def __init__(self, dual: Dual, run: Run) -> None:
        self.dual, self.run = dual, run
        run.listen_to(dual)
        self.objective = JointObjective(dual)
        n_weights = dual.data.n_weights
        size = self.objective.initial(np.zeros(n_weights)).size
        self.memory = SharedMemory(_MEMORY, size, n_weights, dual.communicator)
        self.sweeps = 0

    @property
    def evaluations(self) -> int:
        """Evaluations of the dual so far."""
        return self.objective.evaluations

    def solve(self, weights: Floats, *, tolerance: float, relative: float = 0.0, max_iterations: int) -> InnerResult:
        """See :class:`InnerSolver`."""
        run, objective = self.run, self.objective
        l1 = np.concatenate([np.full(weights.size, run.settings.prior.l1), np.zeros(objective.n_free)])

        def after_step(step: Step) -> bool:
            assert objective.last is not None
            current = objective.split(step.x)[0]
            return run.after_step(current, step.value, step.gradient_norm, objective.last.violation)

        iterations = failed = 0
        while True:
            minimum = minimise(
                objective.value_and_gradient,
                objective.initial(weights),
                tolerance=tolerance,
                relative=relative,
                max_iterations=max_iterations - iterations,
                l1=l1,
                memory=self.memory,
                callback=after_step,
                interrupt=run.is_late,
            )
            objective.value_and_gradient(minimum.x)
            assert objective.last is not None
            weights, tolerance, relative = objective.split(minimum.x)[0].copy(), minimum.tolerance, 0.0
            iterations += minimum.iterations
            after, agreed = self._agree(weights, objective.last, max(run.accuracy, tolerance / run.gap_scale))
            gap = float(np.abs(pseudo_gradient(weights, after.gradient, l1[: weights.size])).max(initial=0.0))
            status = run.status_of(minimum.outcome)
            if status is Status.CONVERGED and not (agreed and gap <= tolerance):
                failed += not agreed
                if not run.is_over() and failed < _MOST_FAILURES:
                    continue
                status = run.interrupted or Status.UNRELIABLE
            value = after.value + run.settings.prior.l1 * float(np.abs(weights).sum())
            return InnerResult(weights, value, gap, after.violation, iterations, status)

    def _agree(self, weights: Floats, evaluation: Evaluation, allowed: float) -> tuple[Evaluation, bool]:
        """Star updates where clusters disagree by more than allowed; the evaluation, and whether they agree now."""
        if evaluation.violation <= allowed or self.run.is_over():
            return evaluation, evaluation.violation <= allowed
        after = self.dual.evaluate(weights, tolerance=allowed, max_sweeps=_SWEEPS)
        self.sweeps += after.sweeps
        return after, after.residual <= allowed

    def refine(self, weights: Floats, belief_change: float) -> None:
        """See :class:`InnerSolver`; the joint solve is as tight as it is."""

    def evaluate(self, weights: Floats) -> Evaluation:
        """See :class:`InnerSolver`; the multipliers are those of the last solve."""
        self.objective.value_and_gradient(self.objective.initial(weights))
        assert self.objective.last is not None
        return self.objective.last

    def objective_changed(self) -> None:
        """See :class:`InnerSolver`."""
        self.memory.clear()


class Alternating:
    """A few steps over the weights with the multipliers fixed, then sweeps with the weights fixed, in turn."""

    steps = 5
    sweeps_between = 2
    failures = 0  # no value depends on whether messages converge

    def __init__(self, dual: Dual, run: Run) -> None:
        self.dual, self.run = dual, run
        run.listen_to(dual)
        self.objective = JointObjective(dual)
        self.memory = make_memory(_MEMORY, dual.data.n_weights, dual.workers)
        self.sweeps = 0

    @property
    def evaluations(self) -> int:
        """Evaluations of the dual so far."""
        return self.objective.evaluations

    def solve(self, weights: Floats, *, tolerance: float, relative: float = 0.0, max_iterations: int) -> InnerResult:
        """See :class:`InnerSolver`."""
        run, objective, dual = self.run, self.objective, self.dual
        iterations = 0
        while True:
            multipliers = objective.split(objective.initial(weights))[1]

            def value_and_gradient(w: Floats, fixed: Floats = multipliers) -> tuple[float, Floats]:
                value, gradient = objective.value_and_gradient(np.concatenate([w, fixed]))
                return value, gradient[: w.size]

            def after_step(step: Step) -> bool:
                assert objective.last is not None
                return run.after_step(step.x, step.value, step.gradient_norm, objective.last.violation)

            self.memory.clear()
            minimum = minimise(
                value_and_gradient,
                weights,
                tolerance=tolerance,
                relative=relative,
                max_iterations=min(self.steps, max_iterations - iterations),
                l1=run.settings.prior.l1,
                memory=self.memory,
                callback=after_step,
                interrupt=run.is_late,
            )
            weights, tolerance, relative = minimum.x, minimum.tolerance, 0.0
            iterations += minimum.iterations
            after = dual.evaluate(weights, max_sweeps=self.sweeps_between)
            self.sweeps += after.sweeps
            slope = pseudo_gradient(weights, after.gradient, run.settings.prior.l1)
            gap = float(np.abs(slope).max(initial=0.0))
            consistent = after.residual <= run.accuracy
            done = gap <= tolerance and consistent
            outcome = minimum.outcome
            if done or iterations >= max_iterations or run.is_over():
                status = Status.CONVERGED if done else run.interrupted or run.status_of(outcome)
                if status is Status.CONVERGED and not done:
                    status = Status.ITERATION_LIMIT
                return InnerResult(weights, after.value, gap, after.violation, iterations, status)
            if minimum.iterations == 0:
                iterations += 1  # a turn without a step still counts, or sweeps alone could go on for ever

    def refine(self, weights: Floats, belief_change: float) -> None:
        """See :class:`InnerSolver`; every turn ends with sweeps."""

    def evaluate(self, weights: Floats) -> Evaluation:
        """See :class:`InnerSolver`."""
        return self.dual.evaluate(weights, tolerance=self.run.accuracy, max_sweeps=1000)

    def objective_changed(self) -> None:
        """See :class:`InnerSolver`."""
        self.memory.clear()
