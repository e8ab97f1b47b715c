"""Likelihood with message passing inside: the classic double loop of learning (Section 3 of the paper).

Every evaluation runs inference at the weights to convergence, warm-started from the last messages; the approximate
log Z and marginals give value and gradient. With Bethe's numbers and residual scheduling this is the paper's LBP
(Elidan, McGraw and Koller 2006); with a concave entropy it is Wainwright's (JMLR 7, 2006). Where inference does not
converge the gradient means little: such evaluations are counted.
"""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from bactrian.camel.dual import Dual, Evaluation
from bactrian.engines.numba.deadline import Deadline
from bactrian.engines.numba.schedules import CONVERGED
from bactrian.inference.problem import Options, Problem, new_progress, run_rounds
from bactrian.inference.propagation import SCHEDULES

Floats = NDArray[np.float64]


class PropagatedObjective:
    """Negative penalised likelihood of w by message passing under the dual's counting numbers.

    Messages of a trial point worse than the best so far are fitted to the wrong weights, so those of the best point
    are restored first.
    """

    def __init__(
        self, dual: Dual, *, schedule: str, accuracy: float, max_sweeps: int, tame: bool, deadline: Deadline
    ) -> None:
        self.dual, self.deadline = dual, deadline
        self.schedule = schedule
        self.accuracy = accuracy
        self.max_sweeps = max_sweeps
        self.tame = tame
        self.evaluations = 0
        self.failures = 0
        self.last: Evaluation | None = None
        self.converged = True
        self._best_value = np.inf
        dual.remember()

    def forget(self) -> None:
        """Forget the best point."""
        self._best_value = np.inf
        self.dual.remove_levels()

    def value_and_gradient(self, weights: Floats) -> tuple[float, Floats]:
        """Value and gradient after passing messages at ``weights``."""
        dual = self.dual
        if self.last is not None and not (self.converged and self.last.value <= self._best_value):
            dual.recall()
        dual.part.set_weights(weights)
        sweeps = self._pass_messages(weights)
        self.last = dual.evaluate(weights, residual=0.0 if self.converged else np.inf, sweeps=sweeps)
        self.converged = self.last.residual < np.inf  # on every rank
        self.evaluations += 1
        self.failures += not self.converged
        if self.converged and self.last.value <= self._best_value:
            self._best_value = self.last.value
            dual.remember()
        return self.last.value, self.last.gradient

    def _pass_messages(self, weights: Floats) -> int:
        part = self.dual.part
        data = part.data
        problem = Problem(
            data=data,
            weights=weights,
            evidence=[{}] * data.layout.n_instances,
            bias=-part.linearisation,
            many=True,
            workers=part.workers,
            options=Options(tolerance=self.accuracy, max_iterations=self.max_sweeps),
            began=time.perf_counter(),
            deadline=self.deadline,
        )
        progress = new_progress(problem, part.carving)
        advance = SCHEDULES[self.schedule](problem, part, progress, self.accuracy)
        run_rounds(problem, progress, advance, self.schedule, tame=self.tame)
        self.converged = bool((progress.status == CONVERGED).all())
        return int(progress.iterations.sum())
