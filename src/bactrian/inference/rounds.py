"""Rounds of message passing on many instances: until all have converged, or a limit or a callback stops them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from bactrian.camel.entropy import Carving, carve
from bactrian.engines.memory import MemoryPart
from bactrian.engines.numba.arithmetic import RISING
from bactrian.engines.numba.schedules import CONTRADICTION, CONVERGED, RUNNING, SweepProgress
from bactrian.graphs.ragged import pointer
from bactrian.inference.problem import Problem, contradiction
from bactrian.inference.result import InferenceProgress, WarmStart

#: Runs at most the given number of sweeps of every instance that is still running.
Advance = Callable[[int], None]

#: Sweeps between looks at the clock: few at first, so that callbacks see something, then more.
_FIRST_ROUND, _LARGEST_ROUND = 2, 16
#: A round that leaves more than this part of the residual makes an adaptive method damp.
_SLOW, _MOST_DAMPING = 0.999, 0.9


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
    if problem.deadline.has_passed:
        return f"stopped at the time limit of {options.max_seconds} s"
    if done >= options.max_iterations:
        return f"stopped at the limit of {options.max_iterations} iterations"
    return None


def warm_start_of(messages: MemoryPart, instance: int) -> WarmStart:
    """Multipliers of one instance, for a later call."""
    layout = messages.data.layout
    hubs = layout.instance_hubs[instance : instance + 2]
    first, last = layout.link_offset[layout.hub_links[hubs]]
    start, stop = layout.hub_offset[hubs]
    return WarmStart(messages.multipliers[first:last].copy(), messages.beliefs.hub_log[start:stop].copy())
