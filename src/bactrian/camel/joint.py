"""The paper's own solver: L-BFGS over weights and multipliers together."""

from __future__ import annotations

import numpy as np

from bactrian.arrays import Floats
from bactrian.camel.dual import Dual, Evaluation
from bactrian.camel.run import InnerResult, Run, Work
from bactrian.parallel import Communicator, largest_anywhere
from bactrian.solvers.lbfgs import PAIRS, Memory, Step, largest_magnitude, minimise, pseudo_gradient
from bactrian.solvers.solution import Status

#: Sweeps at a time where clusters disagree, and how often in vain.
_SWEEPS, _MOST_FAILURES = 1000, 3


class SharedMemory(Memory):
    """Pairs of vectors (w, d): weights that every rank has, then the multipliers of its own instances."""

    def __init__(self, size: int, dimension: int, n_weights: int, communicator: Communicator) -> None:
        super().__init__(size, dimension, self._inner_products)
        self._n_weights, self._communicator = n_weights, communicator

    def largest(self, x: Floats) -> float:
        """See :class:`Memory`."""
        return largest_anywhere(self._communicator, largest_magnitude(x))[0]

    def _inner_products(self, left: Floats, right: Floats) -> Floats:
        if self._communicator.size == 1:
            return left @ right.T
        n = self._n_weights
        own: Floats = np.ascontiguousarray(left[:, n:] @ right[:, n:].T)
        self._communicator.add_up(own.reshape(-1))
        own += left[:, :n] @ right[:, :n].T
        return own


class JointObjective:
    """D over x = (w, d), for the joint solver of the paper.

    Each link's multipliers are free, but the first link of a hub without an entropy of its own (kappa_v = 0) is
    eliminated: its multipliers are what is left of the hub's score. Needs kappa_v >= 0.
    """

    def __init__(self, dual: Dual) -> None:
        if dual.has_saddle:
            raise ValueError("the joint solver needs counting numbers of hubs that are not negative; use 'profiled'")
        self.dual, self.part, self._links = dual, dual.part, dual.part.links()
        self.evaluations = 0
        self.last: Evaluation | None = None
        tied = self._links.is_first & (self._links.hub_number == 0.0)
        self._free, self._tied = np.flatnonzero(~tied), np.flatnonzero(tied)
        self._impossible = np.zeros(0, dtype=np.int64)

    def initial(self, weights: Floats) -> Floats:
        """x from weights and the dual's current multipliers; those that forbid a state go on to do so, as 0 in x."""
        x = np.concatenate([weights, self.part.multipliers[self._free]])
        free = self.split(x)[1]
        self._impossible = np.flatnonzero(free == -np.inf)
        free[self._impossible] = 0.0
        return x

    def split(self, x: Floats) -> tuple[Floats, Floats]:
        """Weights and free multipliers."""
        return x[: self.dual.data.n_weights], x[self.dual.data.n_weights :]

    def value_and_gradient(self, x: Floats) -> tuple[float, Floats]:
        """D and its gradient over (w, free d)."""
        dual, part, links = self.dual, self.part, self._links
        weights, free = self.split(x)
        part.multipliers[self._free] = free
        part.multipliers[self._free[self._impossible]] = -np.inf
        if self._tied.size:
            part.set_weights(weights)
            states = links.hub_state[self._tied]
            possible = part.multipliers[self._tied] != -np.inf
            part.multipliers[self._tied] = 0.0
            sums = np.bincount(links.hub_state, weights=part.multipliers)[states]
            # A state that other clusters of the hub forbid stays forbidden to the first as well.
            left = np.full(states.size, -np.inf)
            np.subtract(links.hub_scores[states], sums, out=left, where=possible & np.isfinite(sums))
            part.multipliers[self._tied] = left
        self.last = dual.evaluate(weights)
        self.evaluations += 1
        gradient = np.concatenate([self.last.gradient, links.disagreement[self._free]])
        self.split(gradient)[1][self._impossible] = 0.0
        return self.last.value, gradient


class Joint:
    """The paper's solver: L-BFGS over weights and multipliers together.

    The gradient in the multipliers of an instance is its clusters' disagreement times its weight. Where that hides what
    instances of little weight, or of none, still disagree about, star updates of all multipliers see to it.
    """

    def __init__(self, dual: Dual, run: Run) -> None:
        self.dual, self.run = dual, run
        dual.signals = run.signals
        self.objective = JointObjective(dual)
        n_weights = dual.data.n_weights
        size = self.objective.initial(np.zeros(n_weights)).size
        self.memory = SharedMemory(PAIRS, size, n_weights, dual.communicator)
        self.sweeps = 0

    @property
    def work(self) -> Work:
        """See :class:`InnerSolver`; no value depends on whether messages converge."""
        return Work(self.objective.evaluations, self.sweeps)

    def solve(self, weights: Floats, *, tolerance: float, relative: float = 0.0, max_iterations: int) -> InnerResult:
        """See :class:`InnerSolver`."""
        run, objective = self.run, self.objective
        l1 = np.zeros(objective.initial(weights).size)
        l1[: weights.size] = run.settings.prior.l1

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
            after, agreed = self._agree(
                weights, objective.last, max(run.demands.messages, tolerance / run.demands.scale)
            )
            gap = float(np.abs(pseudo_gradient(weights, after.gradient, l1[: weights.size])).max(initial=0.0))
            status = run.status_of(minimum.status)
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

    def evaluate(self, weights: Floats) -> Evaluation:
        """See :class:`InnerSolver`; the multipliers are those of the last solve."""
        self.objective.value_and_gradient(self.objective.initial(weights))
        assert self.objective.last is not None
        return self.objective.last

    def relinearised(self, change: float) -> None:
        """See :class:`InnerSolver`; a solve is as tight as it is."""
        self.memory.clear()
