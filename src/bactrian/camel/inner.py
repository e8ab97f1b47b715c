"""What the outer loop asks of whoever solves an inner problem: weights and multipliers at fixed g."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from bactrian.camel.dual import Evaluation
from bactrian.solvers.solution import Status

Floats = NDArray[np.float64]


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
