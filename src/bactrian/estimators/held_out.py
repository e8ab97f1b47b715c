"""Early stopping by held-out data."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from bactrian.arrays import Floats, Ints
from bactrian.errors import ArgumentError
from bactrian.solvers.solution import Callback, ConvergenceWarning, Progress, Solution, Status

#: Iterations from one look at held-out data to the next, and looks without a smaller loss after which learning stops.
EVERY, PATIENCE = 5, 5


def checked_codes(codes: Ints) -> Ints:
    """Numbers of held-out labels, at least one of which must be known."""
    if not (codes >= 0).any():
        raise ArgumentError("y_dev", "holds no known label")
    return codes


def log_losses(marginals: Floats, codes: Ints) -> Floats:
    """- log p of the labels whose numbers are known."""
    known = codes >= 0
    losses: Floats = -np.log(np.maximum(marginals[known, codes[known]], 1e-12))
    return losses


def log_loss(marginals: Floats, codes: Ints) -> float:
    """Their mean."""
    return float(log_losses(marginals, codes).mean())


@dataclass
class HeldOut:
    """A callback that looks at held-out data now and then, and remembers the best weights that it saw."""

    estimator: Any
    loss: Callable[[], float]  #: of the estimator as it is
    callback: Callback | None
    patience: int = PATIENCE
    scores: list[tuple[int, float]] = field(default_factory=list)  #: iteration and loss of each look
    best: Floats | None = None
    last: int = -1  #: the iteration seen last
    stopped: bool = False  #: because the loss fell no further

    def __call__(self, progress: Progress) -> bool:
        """See an iteration; True where learning should stop."""
        if self.callback is not None and self.callback(progress):
            return True
        self.last = progress.iteration
        if progress.iteration % EVERY:
            return False
        self._look(Solution(progress.weights.copy(), Status.STOPPED, attained=1.0), progress.iteration)
        losses = [loss for _, loss in self.scores]
        self.stopped = len(losses) - int(np.argmin(losses)) > self.patience
        return self.stopped

    def _look(self, solution: Solution, iteration: int) -> None:
        self.estimator.adopt(solution)
        with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):  # of weights on the way
            loss = self.loss()
        if all(loss < other for _, other in self.scores):
            self.best = solution.weights
        self.scores.append((iteration, loss))

    def chosen(self, solution: Solution) -> Solution:
        """The solution where it is at least as good as all that was seen, else with the best weights."""
        if solution.status is not Status.STOPPED:
            self._look(solution, self.last + 1)
        if self.best is None or self.best is solution.weights:
            return solution
        status = Status.HELD_OUT if self.stopped or solution.converged else solution.status
        return replace(solution, weights=self.best, status=status, path=None, attained=None)
