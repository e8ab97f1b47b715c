"""What learning returns: a Solution with its status and history."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bactrian.arrays import Floats
from bactrian.errors import warn


class Status(enum.Enum):
    """How an optimisation ended."""

    CONVERGED = "converged"
    ITERATION_LIMIT = "stopped at the iteration limit"
    TIME_LIMIT = "stopped at the time limit"
    STOPPED = "stopped by the callback"
    STALLED = "stopped because no step improves the objective any further"
    UNBOUNDED = "unbounded: some moments lie on the boundary, so weights grow without limit; add a prior"
    FOLLOWED = "stopped after two relinearisations, which prediction repeats"
    UNRELIABLE = "message passing did not converge at some weights, so the gradient could not be trusted"

    def __str__(self) -> str:
        return self.value

    @property
    def advice(self) -> str:
        """What to do about it."""
        return _ADVICE.get(self.name, "")


_ADVICE = {
    "ITERATION_LIMIT": "raise max_iterations or tolerance",
    "TIME_LIMIT": "raise max_seconds or tolerance",
    "STALLED": "the weights are as good as rounding allows; raise tolerance, or scale features to about 1",
    "UNRELIABLE": "choose method='convex', or a smaller prior_variance",
}


class ConvergenceWarning(UserWarning):
    """Learning or inference stopped short; the result is the best so far."""


class AttainmentWarning(ConvergenceWarning):
    """Inference at the learned weights finds other beliefs than those that were learned, or worse labels than none."""


@dataclass(frozen=True)
class Record:
    """One outer iteration (one relinearisation; learners without any have a single record)."""

    outer: int
    objective: float
    moment_gap: float
    violation: float
    iterations: int  #: quasi-Newton iterations in this outer iteration
    evaluations: int
    sweeps: int
    seconds: float  #: since the start of learning
    belief_change: float = np.nan  #: largest change of a sepset belief since the last outer iteration
    weight_change: float = np.nan
    failures: int = 0  #: evaluations at which message passing did not converge
    linearisation_change: float = np.nan  #: largest change of g, a constant per sepset removed


@dataclass(frozen=True)
class Progress:
    """What a callback sees after every quasi-Newton iteration; returning True stops learning."""

    outer: int
    iteration: int
    objective: float
    moment_gap: float
    violation: float
    seconds: float
    weights: Floats


Callback = Callable[[Progress], Any]


@dataclass(frozen=True)
class WarmState:
    """Multipliers and linearisation at a solution, from which learning on the same data can continue."""

    multipliers: Floats
    linearisation: Floats  #: g, which scores have subtracted

    def states(self) -> Iterator[tuple[str, Floats, Floats]]:
        """Name, multipliers and linearisation of each part of the data: in memory there is one, without a name."""
        yield "", self.multipliers, self.linearisation


@dataclass(frozen=True)
class Solution:
    """The result of :func:`bactrian.learn`.

    ``objective`` is the minimised value (the dual D, or the negative penalised log-likelihood); ``moment_gap`` is the
    largest absolute stationarity residual ``|E[f] - f_hat + w / sigma^2|`` in sums over the data; ``violation`` the
    largest disagreement over edges and sepset states; ``beliefs[m][i]`` the belief table of cluster i of instance m.
    ``attained`` is the agreement of cold inference at the weights with the learned beliefs, on the data of learning: 1
    minus the mean total variation of a variable's beliefs, None where it is not known.
    """

    weights: Floats
    status: Status
    history: tuple[Record, ...] = field(default=(), repr=False)
    objective: float = np.nan
    moment_gap: float = np.nan
    violation: float = np.nan
    beliefs: Sequence[Sequence[Floats]] = field(default=(), repr=False)
    method: str = ""
    seconds: float = 0.0
    evaluations: int = 0
    attained: float | None = None
    path: Floats | None = field(default=None, repr=False)  #: (n_steps, n_weights) weights that ``infer`` can replay
    state: Any = field(default=None, repr=False)  #: where ``learn(start=solution)`` continues

    @property
    def converged(self) -> bool:
        """Whether the stopping rule was met at a finite optimum."""
        return self.status in (Status.CONVERGED, Status.FOLLOWED)


def warn_stopped(solution: Solution) -> None:
    """Warn of learning that stopped short, at the line of whoever called the library."""
    if not solution.converged:
        advice = f"; {solution.status.advice}" if solution.status.advice else ""
        if solution.method == "convex":
            advice = advice.replace("choose method='convex', or a smaller", "choose a larger tolerance or a smaller")
        warn(f"{solution.method}: {solution.status}{advice}", ConvergenceWarning)
