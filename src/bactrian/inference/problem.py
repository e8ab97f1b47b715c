"""The common frame of all methods: packed models with evidence, options, and the loop that runs message passing."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from bactrian.arrays import Floats
from bactrian.camel.entropy import Carving, CountingNumbers, carve
from bactrian.camel.messages import Messages
from bactrian.engines.numba.arithmetic import RISING
from bactrian.engines.numba.schedules import CONTRADICTION, CONVERGED, RUNNING, SweepProgress
from bactrian.engines.numba.threads import Deadline, Workers
from bactrian.errors import warn
from bactrian.graphs.loglinear import LogLinearModel
from bactrian.graphs.packed import InstanceBeliefs, PackedData, TableReader
from bactrian.graphs.ragged import pointer
from bactrian.inference.arguments import (
    Evidence,
    check_free_states,
    check_scores,
    checked_path,
    checked_start,
    checked_weights,
    contradiction,
    hub_bias,
    packed,
)
from bactrian.inference.result import Callback, InferenceProgress, InferenceResult, VariableMarginals, WarmStart
from bactrian.solvers.solution import ConvergenceWarning

#: Runs at most the given number of sweeps of every instance that is still running.
Advance = Callable[[int], None]

#: Sweeps between looks at the clock: few at first, so that callbacks see something, then more.
_FIRST_ROUND, _LARGEST_ROUND = 2, 16
#: A round that leaves more than this part of the residual makes an adaptive method damp.
_SLOW, _MOST_DAMPING = 0.999, 0.9


@dataclass(frozen=True)
class Options:
    """Settings of one call of :func:`bactrian.infer`."""

    tolerance: float = 1e-8
    max_iterations: int = 1000
    max_seconds: float | None = None
    damping: float | None = None
    schedule: str = "sequential"
    counting_numbers: CountingNumbers | str | None = None
    fallback: str | None = None
    start: Any = None
    memory_budget: int = 4 * 2**30
    seed: int = 0
    callback: Callback | None = None


@dataclass(frozen=True)
class Problem:
    """Packed models, the weights to score them with, and what was observed of each."""

    data: PackedData
    weights: Floats
    evidence: Sequence[Evidence]
    bias: Floats  #: (n_hub_states,) -inf for states of hubs that evidence rules out, else 0
    many: bool  #: whether the caller gave several models, for the wording of errors
    workers: Workers
    options: Options
    began: float = field(default_factory=time.perf_counter)  #: at the start of the call
    deadline: Deadline = field(default_factory=Deadline)
    path: Floats | None = None  #: (n_steps, n_weights) the weights of each relinearisation, for a replay

    @property
    def seconds(self) -> float:
        """Time since the start of the call."""
        return time.perf_counter() - self.began

    @property
    def out_of_time(self) -> bool:
        """Whether the time limit has passed."""
        return self.deadline.has_passed

    def result(self, tables: TableReader, instance: int, log_partition: float | None, **fields: Any) -> InferenceResult:
        """The result of one instance, whose free energy is minus ``log_partition``."""
        value = None if log_partition is None else float(log_partition)
        return InferenceResult(
            variables=VariableMarginals(self.data, tables, instance),
            clusters=InstanceBeliefs(self.data, tables, instance),
            log_partition=value,
            free_energy=None if value is None else -value,
            seconds=self.seconds,
            **fields,
        )

    def messages(self, carving: Carving) -> Messages:
        """Messages under given counting numbers, warm-started where the caller asked for it."""
        data = self.data
        messages = Messages(data, carving, self.workers)
        messages.heed(self.deadline)
        messages.linearisation[:] = -self.bias
        messages.set_weights(self.weights)
        check_scores(messages.tables.log_entries, messages.tables.hub_scores)
        if self.options.start is not None:
            self._warm_start(messages, self.options.start)
        forbidden = self.bias[data.hub_state_of_link_state] == -np.inf
        messages.multipliers[forbidden] = -np.inf
        return messages

    def _warm_start(self, messages: Messages, start: Sequence[InferenceResult]) -> None:
        layout = self.data.layout
        for m, result in enumerate(start):
            links = layout.hub_links[layout.instance_hubs[m : m + 2]]
            first, last = layout.link_offset[links]
            earlier = result.messages
            if earlier is None or earlier.multipliers.size != last - first:
                found = "none" if earlier is None else f"{earlier.multipliers.size} multipliers"
                raise ValueError(
                    f"start[{m}] holds {found}, expected {last - first} multipliers: it must be the result of message "
                    "passing on a model with the same graph"
                )
            usable = np.isfinite(earlier.multipliers)
            messages.multipliers[first:last] = np.where(usable, earlier.multipliers, 0.0)


def new_problem(
    model: Any, weights: Any, evidence: Any, options: Options, n_threads: int | None = None, *, has_path: bool = False
) -> Problem:
    """What a method works on, from what a caller gave; models, weights, evidence and start are checked here.

    With ``has_path`` the weights are one row per relinearisation, and the problem starts at the first.
    """
    began, deadline = time.perf_counter(), Deadline(options.max_seconds)  # packing counts
    check_free_states(model, options.memory_budget)
    many = not isinstance(model, LogLinearModel)
    data, seen = packed(model, evidence)
    path = checked_path(weights, data.n_weights) if has_path else None
    return Problem(
        data=data,
        weights=checked_weights(weights, data.n_weights) if path is None else path[0],
        evidence=seen,
        bias=hub_bias(data, seen),
        many=many,
        workers=Workers(n_threads),
        options=replace(options, start=checked_start(options.start, many, data.layout.n_instances)),
        began=began,
        deadline=deadline,
        path=path,
    )


def new_progress(problem: Problem, carving: Carving, *, damping: float = 0.0) -> SweepProgress:
    """All instances at the start; two sweeps are marked exact where Bethe's numbers meet a tree."""
    layout = problem.data.layout
    n = layout.n_instances
    bethe = carve(problem.data, "bethe").whole
    off_hub = pointer(np.abs(carving.hub - bethe.hub) > 1e-12)[layout.instance_hubs]
    off_cluster = pointer(np.abs(carving.cluster - 1.0) > 1e-12)[layout.instance_clusters]
    exact = layout.instance_is_tree & (np.diff(off_hub) == 0) & (np.diff(off_cluster) == 0) & (damping == 0.0)
    return SweepProgress(
        status=np.zeros(n, dtype=np.int8),
        iterations=np.zeros(n, dtype=np.int64),
        updates=np.zeros(n, dtype=np.int64),
        residual=np.full(n, np.inf),
        damping=np.full(n, damping),
        exact_sweeps=np.where(exact, 2, 0),
        late=problem.deadline.late,
    )


def run_rounds(
    problem: Problem, progress: SweepProgress, advance: Advance, method: str, *, tame: bool = False
) -> str | None:
    """Advance all instances until none is running or a limit is met; says which limit.

    With ``tame`` an instance whose residual does not fall is damped, more with every round that it does not.
    """
    limit = problem.options.max_iterations
    sweeps, done = _FIRST_ROUND, 0
    before = np.full(progress.residual.size, np.inf)
    status: str | None = None
    while status is None and (progress.status == RUNNING).any():
        sweeps = min(sweeps, limit - done)
        advance(sweeps)
        done += sweeps
        check_contradictions(problem, progress)
        if tame and sweeps >= 8:
            # A residual of RISING is of a state on its way up, which damping would only delay.
            slow = (progress.status == RUNNING) & (progress.residual > _SLOW * before) & (progress.residual != RISING)
            progress.damping[slow] = np.minimum(0.5 + 0.5 * progress.damping[slow], _MOST_DAMPING)
            before = np.minimum(before, progress.residual)
        sweeps = min(2 * sweeps, _LARGEST_ROUND)
        status = report(problem, progress, method, done)
    return status


def check_contradictions(problem: Problem, progress: SweepProgress) -> None:
    """Raise the error for the first instance on which a hub has no possible state."""
    for m in np.flatnonzero(progress.status == CONTRADICTION):
        raise contradiction(int(m), problem.many, problem.evidence)


def report(problem: Problem, progress: SweepProgress, method: str, done: int) -> str | None:
    """Tell the callback, and say which limit was met where some instance is still running after ``done`` iterations."""
    options = problem.options
    snapshot = InferenceProgress(
        method=method,
        iteration=int(progress.iterations.max(initial=0)),
        residual=float(progress.residual.max(initial=0.0)),
        n_converged=int((progress.status == CONVERGED).sum()),
        n_models=progress.status.size,
        seconds=problem.seconds,
    )
    stop = options.callback is not None and options.callback(snapshot)
    if not (progress.status == RUNNING).any():
        return None
    if stop:
        return "stopped by the callback"
    if problem.out_of_time:
        return f"stopped at the time limit of {options.max_seconds} s"
    if done >= options.max_iterations:
        return f"stopped at the limit of {options.max_iterations} iterations"
    return None


def warm_start_of(messages: Messages, instance: int) -> WarmStart:
    """Multipliers of one instance, for a later call."""
    layout = messages.data.layout
    hubs = layout.instance_hubs[instance : instance + 2]
    first, last = layout.link_offset[layout.hub_links[hubs]]
    start, stop = layout.hub_offset[hubs]
    return WarmStart(messages.multipliers[first:last].copy(), messages.beliefs.hub_log[start:stop].copy())


def warn_unconverged(method: str, results: Sequence[InferenceResult]) -> None:
    """Warn once about all results that did not converge."""
    short = [m for m, result in enumerate(results) if not result.converged]
    if not short:
        return
    worst = max(short, key=lambda m: results[m].residual)
    which = "" if len(results) == 1 else f"{len(short)} of {len(results)} models, worst model {worst}, "
    warn(
        f"{method} did not converge: {results[worst].status}; raise the limit or the tolerance, or choose 'convex'",
        ConvergenceWarning,
        f" ({which}residual {results[worst].residual:.1e})",
    )
