"""The double loop, which converges where belief propagation does not, on Bethe's polytope and on tighter ones.

Yuille (Neural Computation 14(7), 2002) splits the Bethe free energy into a convex and a concave part,

    F = -<theta, b> - sum_a H_a - sum_v (1 - d_v) H_v = [ -<theta, b> - sum_a H_a - sum_v k_v H_v ] + sum_v r_v H_v

with r_v = k_v - (1 - d_v) >= 0. The outer loop replaces r_v H(b_v) by its tangent at the last beliefs, -r_v log b_old;
the inner loop minimises what is then convex, by star updates. As the tangent lies above, F never increases. With D
the dual value of the inner problem,

    F(b) = -D - sum_v r_v KL(b_v | b_old,v)

Here k_v = 0 (1 for a variable in no cluster), for which every star update is an exact descent step of the inner dual.

:func:`tightened` adds triplets where the cycles of another method's solution do not close (Sontag & Jaakkola, NIPS
2007; Sontag, Meltzer, Globerson, Jaakkola & Weiss, UAI 2008; :mod:`bactrian.graphs.triplets`), and minimises the free
energy with them by the double loop, which always converges, from the beliefs found before.

:func:`replay` goes the way that learning went: where the outer loop changed the weights with every relinearisation, it
passes messages at the first weights with g = 0, linearises at their beliefs, goes on at the second, and so on. Every
inner problem is convex, so the beliefs are unique, and on the data of learning they are those that were learned.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from bactrian.arrays import Bools, Floats, Ints
from bactrian.camel.entropy import Carving, carve
from bactrian.engines.memory import MemoryPart
from bactrian.engines.numba.schedules import CONVERGED, RUNNING, SweepProgress
from bactrian.graphs.packed import PackedData, TableReader, instance_of
from bactrian.graphs.packing import require_bethe
from bactrian.graphs.triplets import find_triplets, tighten
from bactrian.inference.problem import Problem, contradiction
from bactrian.inference.propagation import (
    BeliefReader,
    check_contradictions,
    collect,
    new_progress,
    report,
    sequential,
)
from bactrian.inference.result import InferenceResult

#: Inner solves stop at this part of the last outer change, or after this many sweeps.
_INNER_PART, _INNER_SWEEPS = 0.05, 400
#: Methods that minimise Bethe's free energy, which the triplets refine.
TIGHTENED = ("bp", "rbp", "double-loop")


@dataclass(frozen=True)
class Descent:
    """Where the double loop ended."""

    messages: MemoryPart
    progress: SweepProgress
    status: str
    log_partition: Floats  #: (M,) minus the free energy
    histories: list[tuple[float, ...]]


def double_loop(problem: Problem, *, skipped: Bools | None = None) -> list[InferenceResult]:
    """Minimise the Bethe free energy of every instance but those ``skipped``."""
    end = descend(problem, carve(problem.data, "bethe").whole.hub, _first_beliefs(problem), skipped=skipped)
    return collect(
        problem, end.messages, end.progress, "double-loop", end.status,
        log_partition=end.log_partition, histories=end.histories,
    )  # fmt: skip


def descend(problem: Problem, total: Floats, start: Floats, *, skipped: Bools | None = None) -> Descent:
    """Minimise the free energy with counting numbers 1 of clusters and ``total`` of hubs from log beliefs ``start``.

    What is positive among the hubs' numbers is kept, the rest linearised.
    """
    data, layout, options = problem.data, problem.data.layout, problem.options
    kept = np.maximum(total, 0.0)
    carving = Carving(np.ones(layout.n_clusters), kept, kept - total)
    messages = problem.messages(carving)
    number = carving.linearised[data.hub_of_state]
    base = messages.tables.hub_scores.copy()
    previous = start
    outer = new_progress(problem, carving)
    if skipped is not None:
        outer.status[skipped] = CONVERGED
    instance_of_state = data.instance_of_state
    energies: list[list[float]] = [[] for _ in range(layout.n_instances)]
    values = np.zeros(layout.n_instances)
    inner = new_progress(problem, carving, damping=options.damping or 0.0)
    status: str | None = None
    tolerances = np.full(layout.n_instances, max(1e-3, options.tolerance))
    while (outer.status == RUNNING).any() and status is None:
        running = outer.status == RUNNING
        used = running[instance_of_state]
        slope = np.where(number > 0.0, number * np.where(number > 0.0, previous, 0.0), 0.0)
        np.copyto(messages.tables.hub_scores, base + slope, where=used)
        solved = np.zeros(layout.n_instances, dtype=np.bool_)
        # An instance is solved as far as its own change deserves, whatever others it shares the call with.
        for tolerance in np.unique(tolerances[running]).tolist():
            inner.status[:] = np.where(running & (tolerances == tolerance), RUNNING, CONVERGED)
            here = inner.status == RUNNING
            _solve_inner(problem, messages, inner, tolerance)
            solved |= here & (inner.status == CONVERGED)
        outer.updates[:] = inner.updates
        beliefs = np.where(np.isfinite(messages.beliefs.hub_log), messages.beliefs.hub_log, -np.inf)
        messages.pass_messages()
        divergence, change = _compare(beliefs, previous, number, instance_of_state, layout.n_instances)
        values = np.where(running, messages.beliefs.value + divergence, values)
        for m in np.flatnonzero(running):
            energies[m].append(-float(values[m]))
        outer.iterations[running] += 1
        outer.residual[running] = change[running]
        done = running & solved & (change <= options.tolerance) & (tolerances <= options.tolerance)
        outer.status[done] = CONVERGED
        previous = np.where(used, beliefs, previous)
        tolerances = np.maximum(np.minimum(tolerances, _power_of_ten(_INNER_PART * change)), 0.1 * options.tolerance)
        status = report(problem, outer, "double-loop", int(outer.iterations.max()))
    messages.beliefs.hub_log[:] = previous
    return Descent(messages, outer, status or "converged", values, [tuple(energy) for energy in energies])


def replay(problem: Problem) -> list[InferenceResult]:
    """Beliefs after one relinearisation per row of ``problem.path`` but the last, by the carving of learning."""
    assert problem.path is not None
    data, layout = problem.data, problem.data.layout
    carving = carve(data, "bethe")
    messages = problem.messages(carving)
    number = carving.linearised[data.hub_of_state]
    forbidden = problem.bias == -np.inf
    progress = new_progress(problem, carving)
    tolerance, most = problem.options.tolerance, problem.options.max_iterations
    status, short = None, np.zeros(layout.n_instances, dtype=np.bool_)
    before = np.zeros(layout.n_hub_states)
    for step, weights in enumerate(problem.path):
        if step:
            before = messages.beliefs.hub_log.copy()
            slope = -number * np.where(number > 0.0, before, 0.0)
            messages.linearisation[:] = np.where(forbidden, np.inf, slope)
            messages.set_weights(weights)
        messages.pass_messages(tolerance=tolerance, max_sweeps=most)
        progress.iterations[:] += messages.beliefs.sweeps
        progress.updates[:] += messages.beliefs.sweeps * np.diff(layout.hub_links[layout.instance_hubs])
        progress.residual[:] = messages.beliefs.residual
        short |= ~(progress.residual <= tolerance)
        status = report(problem, progress, "replay", most) or status
    progress.status[:] = np.where(short, RUNNING, CONVERGED)
    # D has g at the beliefs before: what it lacks of minus the free energy is a divergence from them.
    hub_log = np.where(np.isfinite(messages.beliefs.hub_log), messages.beliefs.hub_log, -np.inf)
    divergence, _ = _compare(hub_log, before, number, data.instance_of_state, layout.n_instances)
    return collect(
        problem, messages, progress, "replay", status or "converged", log_partition=messages.beliefs.value + divergence
    )


def _first_beliefs(problem: Problem) -> Floats:
    """Log beliefs of hubs at which to linearise first: those of an earlier result, or uniform ones."""
    data, layout = problem.data, problem.data.layout
    sizes = np.diff(layout.hub_offset).astype(np.float64)
    uniform: Floats = -np.log(sizes)[data.hub_of_state]
    start = problem.options.start
    if start is None:
        return uniform
    earlier = np.concatenate([uniform[:0], *(result.messages.hub_log for result in start if result.messages)])
    return np.where(np.isfinite(earlier), earlier, uniform)


def _power_of_ten(x: Floats) -> Floats:
    """The next below, so that instances fall into few groups; 0 for 0."""
    return 10.0 ** np.floor(np.log10(x, out=np.full_like(x, -np.inf), where=x > 0.0))


def _solve_inner(problem: Problem, messages: MemoryPart, inner: SweepProgress, tolerance: float) -> None:
    """Star updates to ``tolerance`` on every instance that is running."""
    advance = sequential(problem, messages, inner, tolerance)
    swept = 0
    while swept < _INNER_SWEEPS and (inner.status == RUNNING).any() and not problem.deadline.has_passed:
        advance(10)
        swept += 10
        check_contradictions(problem, inner)


def _compare(
    new: Floats, old: Floats, number: Floats, instance_of_state: Ints, n_instances: int
) -> tuple[Floats, Floats]:
    """sum_v r_v KL(new | old) and the largest change of a marginal, per instance."""
    belief = np.exp(new)
    used = (belief > 0.0) & (number > 0.0)
    ratio = np.where(used, np.where(used, new, 0.0) - np.where(used, old, 0.0), 0.0)
    divergence: Floats = np.bincount(instance_of_state, weights=number * belief * ratio, minlength=n_instances).astype(
        np.float64
    )
    change = np.zeros(n_instances)
    np.maximum.at(change, instance_of_state, np.abs(belief - np.exp(old)))
    return divergence, change


def tightened(problem: Problem, method: Callable[[Problem], list[InferenceResult]], most: int) -> list[InferenceResult]:
    """Results of ``method``, refined where some cycle of at most ``most`` triplets corrects them."""
    require_bethe(problem.data)
    before = method(problem)
    tables = _ResultTables(problem.data, before)
    triplets = find_triplets(problem.data, tables, most, problem.deadline)
    if not any(triplets):
        return before
    data = tighten(problem.data, triplets)
    hub_log = np.concatenate([np.log(np.maximum(b, 1e-300)) for result in before for b in result.variables])
    inner = replace(
        problem, data=data.packed, bias=data.spread_hubs(problem.bias), options=replace(problem.options, start=None)
    )
    end = descend(inner, data.total, data.start(hub_log, tables), skipped=np.array([not t for t in triplets]))
    for m in np.flatnonzero(end.log_partition == -np.inf).tolist():
        raise contradiction(m, problem.many, problem.evidence)
    reader = data.reader(BeliefReader(end.messages))
    after = []
    for m, earlier in enumerate(before):
        if not triplets[m]:
            after.append(earlier)
            continue
        converged = bool(end.progress.status[m] == CONVERGED)
        after.append(
            problem.result(
                reader,
                m,
                end.log_partition[m],
                method=earlier.method,
                converged=converged,
                status="converged" if converged else end.status,
                iterations=earlier.iterations + int(end.progress.iterations[m]),
                updates=earlier.updates + int(end.progress.updates[m]),
                residual=float(end.progress.residual[m]),
                violation=float(end.messages.beliefs.violation[m]),
                history=end.histories[m],
                messages=earlier.messages,
                triplets=data.triplets[m],
            )
        )
    return after


class _ResultTables(TableReader):
    """Beliefs of results on Bethe graphs by the numbers of packed clusters and hubs."""

    def __init__(self, data: PackedData, results: Sequence[InferenceResult]) -> None:
        self._data, self._results = data, results

    def cluster(self, index: int) -> Floats:
        m = instance_of(self._data.layout.instance_clusters, index)
        return self._results[m].clusters[int(self._data.cluster_index[index])].ravel()

    def hub(self, index: int) -> Floats:
        m = instance_of(self._data.layout.instance_hubs, index)
        return self._results[m].variables[index - int(self._data.layout.instance_hubs[m])]
