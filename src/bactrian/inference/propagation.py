"""Belief propagation and its convex relatives: one loop, several schedules and counting numbers.

With Bethe's counting numbers the star update is belief propagation (Yedidia, Freeman and Weiss, IEEE Trans. Inf. Theory
51(7), 2005), run in parallel, sequentially, or by residual (Elidan, McGraw and Koller, UAI 2006). Other numbers give
tree-reweighted and convex message passing; see :mod:`bactrian.camel.entropy`. At a fixed point the value of the
dual is minus the free energy, the approximation of log Z.

Where messages did not converge, the clusters around a hub may disagree so far that every state is impossible in one of
them, and the hub's belief from the multipliers is 0 / 0. It is replaced by the mean of the clusters' marginals, and the
dual value, which is then not a number either, by minus the free energy of the beliefs as they are.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from bactrian.arrays import Bools, Floats
from bactrian.camel.entropy import Carving, carve, reported_numbers
from bactrian.engines.memory import MemoryPart, MemoryTables
from bactrian.engines.numba.arithmetic import RISING
from bactrian.engines.numba.schedules import (
    CONTRADICTION,
    CONVERGED,
    RUNNING,
    ParallelMessages,
    Queue,
    SweepProgress,
    contractions,
    run_parallel,
    run_residual,
)
from bactrian.engines.numba.tables import Limits
from bactrian.graphs.ragged import pointer
from bactrian.inference.problem import Options, Problem, contradiction
from bactrian.inference.result import InferenceProgress, InferenceResult, WarmStart

#: Runs at most the given number of sweeps of every instance that is still running.
Advance = Callable[[int], None]

#: Sweeps between looks at the clock: few at first, so that callbacks see something, then more.
_FIRST_ROUND, _LARGEST_ROUND = 2, 16
#: A round that leaves more than this part of the residual makes an adaptive method damp.
_SLOW, _MOST_DAMPING = 0.999, 0.9
#: Tables with more entries than this are not measured for their strength.
_LARGEST_MEASURED = 4096
#: Powers of the matrix whose spectral radius is bounded.
_POWERS = 8


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


class BeliefReader(MemoryTables):
    """Belief tables at the last pass; marginals that are zero up to rounding are zero."""

    def __init__(self, messages: MemoryPart) -> None:
        super().__init__(messages)
        self._hub_beliefs[self._hub_beliefs < 1e-290] = 0.0

    def hub(self, index: int) -> Floats:
        """Belief of a hub, normalised to the last digit: one-hot where it was observed."""
        belief = super().hub(index)
        belief /= belief.sum()
        return belief

    def hubs(self, first: int, last: int) -> Floats:
        """Beliefs of hubs, normalised likewise."""
        beliefs = super().hubs(first, last)
        beliefs /= beliefs.sum(axis=1, keepdims=True)
        return beliefs


def _new_parallel(messages: MemoryPart) -> ParallelMessages:
    layout = messages.data.layout
    return ParallelMessages(
        outgoing=np.zeros(layout.n_link_states),
        incoming=np.zeros(layout.n_link_states),
        psi=np.zeros(layout.n_hub_states),
        belief=np.ones(layout.n_hub_states),
        pairwise=messages.pairwise,
        in_use=np.zeros(layout.n_instances, dtype=np.bool_),
    )


def sequential(problem: Problem, messages: MemoryPart, progress: SweepProgress, tolerance: float) -> Advance:
    """The sequential schedule, threaded over instances."""
    tree_sweeps = 2 if progress.exact_sweeps.any() else 1 << 30

    def advance(sweeps: int) -> None:
        running, limits = progress.status == RUNNING, Limits(tolerance, sweeps, tree_sweeps)
        for damping in np.unique(progress.damping[running]).tolist():
            messages.sweep(running & (progress.damping == damping), limits._replace(damping=damping))
        _record(messages, progress, running, tolerance)

    return advance


def _record(
    messages: MemoryPart, progress: SweepProgress, ran: Bools, tolerance: float, *, parallel: bool = False
) -> None:
    """Note the outcome of the sweeps that instances made; those that are exact on trees leave no residual."""
    layout, sweeps, residual = messages.data.layout, messages.beliefs.sweeps[ran], messages.beliefs.residual[ran]
    progress.iterations[ran] += sweeps
    progress.updates[ran] += sweeps * np.diff(layout.hub_links[layout.instance_hubs])[ran]
    enough = (progress.exact_sweeps[ran] > 0) & (progress.exact_sweeps[ran] <= progress.iterations[ran])
    residual = np.where(enough & (residual < np.inf) & (not parallel), 0.0, residual)
    progress.residual[ran] = residual
    progress.status[ran] = np.where(
        residual == np.inf, CONTRADICTION, np.where(residual <= tolerance, CONVERGED, RUNNING)
    )


def parallel(problem: Problem, messages: MemoryPart, progress: SweepProgress, tolerance: float) -> Advance:
    """The parallel schedule, threaded over instances."""
    kept = _new_parallel(messages)

    def advance(sweeps: int) -> None:
        running, limits, part = progress.status == RUNNING, Limits(tolerance, sweeps), messages.arrays
        problem.workers.run(
            lambda _, first, last: run_parallel(part, limits, kept, progress, first, last, messages.states),
            problem.data.blocks,
        )
        _record(messages, progress, running, tolerance, parallel=True)

    return advance


def contractions_of(messages: MemoryPart) -> Floats:
    """(n_tables,) how much of a difference between messages a table passes on at most, from 0 to 1."""
    layout, entries, numbers = messages.data.layout, messages.tables.log_entries, messages.numbers.table
    found = np.ones(layout.n_tables)
    offset = layout.table_offset
    contractions(layout.cluster_table, layout.cluster_rows, offset, entries, numbers, _LARGEST_MEASURED, found)
    return found


def contracts(messages: MemoryPart) -> bool:
    """Whether belief propagation has one fixed point for sure, which it finds from every start.

    With A the matrix that has tanh(R / 4), R the dynamic range of a table, from every message to those that it enters,
    a spectral radius below 1 is enough (Mooij and Kappen, IEEE Trans. Inf. Theory 53(12), 2007). For every positive x
    it is at most max_i (Ax)_i / x_i, a bound that powers of A make tighter.
    """
    layout = messages.data.layout
    hub, cluster = layout.link_hub, layout.link_cluster
    strength = contractions_of(messages)[layout.cluster_table[cluster]]
    size = np.ones(layout.n_links)
    for _ in range(_POWERS):
        entering = np.bincount(hub, weights=size)[hub] - size
        grown = strength * (np.bincount(cluster, weights=entering)[cluster] - entering)
        if (grown < size).all():
            return True
        size = 0.5 * (size + grown / grown.max())
    return False


def residual(problem: Problem, messages: MemoryPart, progress: SweepProgress, tolerance: float) -> Advance:
    """The residual schedule, threaded over instances; trees are swept twice instead, which is exact."""
    layout, kept = messages.data.layout, _new_parallel(messages)
    queue = Queue(
        pending=np.zeros(layout.n_links),
        priority=np.zeros(layout.n_hubs),
        heap=np.zeros(layout.n_hubs, dtype=np.int64),
        place=np.zeros(layout.n_hubs, dtype=np.int64),
        contraction=contractions_of(messages),
        started=np.zeros(layout.n_instances, dtype=np.bool_),
        late=progress.late,
    )
    looped = np.flatnonzero(progress.exact_sweeps == 0)
    sweep_trees = sequential(problem, messages, progress, tolerance)

    def advance(sweeps: int) -> None:
        if looped.size < layout.n_instances and progress.iterations.max(initial=0) == 0:
            before = progress.status[looped]
            progress.status[looped] = CONVERGED
            sweep_trees(2)
            progress.status[looped] = before
        limits, part = Limits(tolerance, sweeps), messages.arrays
        problem.workers.run(
            lambda _, first, last: run_residual(part, limits, kept, queue, progress, first, last, messages.states),
            problem.data.blocks,
        )

    return advance


SCHEDULES = {"sequential": sequential, "parallel": parallel, "residual": residual}


def settle(
    messages: MemoryPart,
    weights: Floats,
    schedule: str,
    *,
    tolerance: float,
    max_sweeps: int,
    tame: bool,
    skipped: Bools | None = None,
) -> SweepProgress:
    """Pass the messages of a learner's data at ``weights`` until they settle, or for ``max_sweeps`` sweeps.

    Those of instances that are ``skipped`` stay as they are.
    """
    messages.set_weights(weights)
    problem = Problem(
        data=messages.data,
        weights=weights,
        evidence=[{}] * messages.data.layout.n_instances,
        bias=-messages.linearisation,
        many=True,
        context=messages.context,
        options=Options(tolerance=tolerance, max_iterations=max_sweeps),
    )
    progress = new_progress(problem, messages.carving)
    if skipped is not None:
        progress.status[skipped] = CONVERGED
    advance = SCHEDULES[schedule](problem, messages, progress, tolerance)
    run_rounds(problem, progress, advance, schedule, tame=tame)
    return progress


def propagate(
    problem: Problem, method: str, schedule: str, carving: Carving | None = None, *, tame: bool = False
) -> list[InferenceResult]:
    """Pass messages under ``carving`` (Bethe's by default) until they converge or a limit is met."""
    options = problem.options
    carving = carve(problem.data, "bethe").whole if carving is None else carving
    messages = problem.messages(carving)
    progress = new_progress(problem, carving, damping=options.damping or 0.0)
    advance = SCHEDULES[schedule](problem, messages, progress, options.tolerance)
    limit = run_rounds(problem, progress, advance, method, tame=tame and options.damping is None)
    messages.pass_messages()
    return collect(problem, messages, progress, method, limit or "converged")


def collect(
    problem: Problem,
    messages: MemoryPart,
    progress: SweepProgress,
    method: str,
    status: str,
    *,
    log_partition: Floats | None = None,
    histories: list[tuple[float, ...]] | None = None,
) -> list[InferenceResult]:
    """Results of all instances from the beliefs of the last pass."""
    data, beliefs = problem.data, messages.beliefs
    values = beliefs.value if log_partition is None else log_partition
    for impossible in np.flatnonzero(values == -np.inf):
        raise contradiction(int(impossible), problem.many, problem.evidence)
    mend_hubs(messages)
    reader = BeliefReader(messages)
    values = values.copy()
    for m in np.flatnonzero(~np.isfinite(values)).tolist():
        values[m] = -free_energy(messages, reader, m)
    results = []
    for m in range(data.layout.n_instances):
        converged = bool(progress.status[m] == CONVERGED)
        results.append(
            problem.result(
                reader,
                m,
                values[m],
                converged=converged,
                iterations=int(progress.iterations[m]),
                updates=int(progress.updates[m]),
                method=method,
                status="converged" if converged else status,
                residual=float(progress.residual[m]),
                violation=float(beliefs.violation[m]),
                counting_numbers=reported_numbers(data, messages.carving, m),
                history=() if histories is None else histories[m],
                messages=warm_start_of(messages, m),
                bound="upper" if method == "trw" and converged else None,
            )
        )
    return results


def mend_hubs(messages: MemoryPart) -> None:
    """Replace undefined beliefs of hubs by the mean marginal of their links."""
    data, beliefs = messages.data, messages.beliefs
    layout, hub = data.layout, data.hub_of_state
    undefined = np.isnan(beliefs.hub_log)
    if not undefined.any():
        return
    marginal = np.where(np.isfinite(beliefs.link_marginal), beliefs.link_marginal, 0.0)
    total = np.bincount(data.hub_state_of_link_state, weights=marginal, minlength=layout.n_hub_states) + 1e-300
    mean = total / np.bincount(hub, weights=total, minlength=layout.n_hubs)[hub]
    beliefs.hub_log[undefined] = np.log(mean[undefined])


def free_energy(messages: MemoryPart, reader: MemoryTables, instance: int) -> float:
    """-<theta, b> - sum_a kappa_a H_a - sum_v kappa_v H_v at the beliefs of ``reader``."""
    layout, tables, numbers = messages.data.layout, messages.tables, messages.numbers
    energy = 0.0
    for cluster in range(*layout.instance_clusters[instance : instance + 2].tolist()):
        start, stop = layout.table_offset[layout.cluster_table[cluster] + np.arange(2)]
        energy -= _value(reader.cluster(cluster), tables.log_entries[start:stop], float(numbers.cluster[cluster]))
    for hub in range(*layout.instance_hubs[instance : instance + 2].tolist()):
        start, stop = layout.hub_offset[hub], layout.hub_offset[hub + 1]
        energy -= _value(reader.hub(hub), tables.hub_scores[start:stop], float(numbers.hub[hub]))
    return energy


def _value(belief: Floats, scores: Floats, number: float) -> float:
    used = (belief > 0.0) & np.isfinite(scores)
    belief = belief[used]
    return float(belief @ scores[used] - number * (belief @ np.log(belief)))
