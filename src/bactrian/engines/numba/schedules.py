"""Schedules of message passing, instance by instance: sequential sweeps, parallel updates, and by residual.

All repeat the star update, of :mod:`.linear` where that is safe, and of :mod:`.stars`. A sequential sweep updates hub
after hub, each from the newest messages, forward and backward in turn. A parallel update computes the messages of all
clusters from the same old multipliers, then all multipliers from those (the flooding schedule). Damping, in log space,
mixes a part of the old multipliers into the new ones.

Residual belief propagation next updates the star that is furthest from its fixed point. Elidan, McGraw and Koller (UAI
2006) keep messages in a priority queue ordered by their residual, the change that an update would make. Here the queue
holds hubs, and an update of hub v computes those of its incoming messages that are out of date, its belief and all of
its multipliers. Computing every residual ahead would cost several messages for each one that is used, so, after a first
pass in which residuals are exact, the queue holds upper bounds (Sutton and McCallum, *Improved dynamic schedules for
belief propagation*, UAI 2007): in the norm

    |x| = max x - min x        (the range of a log-message; a constant changes nothing)

a change of a cluster's multipliers changes its messages to other hubs by no more than itself, so the changes that a hub
has not yet seen are added up. When the largest bound falls below the tolerance, no message would change by more.

For a pair the bound is sharper: a message is a contraction of the multipliers, by the factor tanh(R / 4) where R is the
range of the table's cross-differences theta(a,c) + theta(b,d) - theta(a,d) - theta(b,c) (Ihler, Fisher and Willsky,
JMLR 6, 2005, whose measure of a table's strength this is). The queue is an indexed binary heap of hubs per instance.

The state of an instance outlives a call, so that a caller may run a few sweeps, look at the clock, and go on.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bactrian.arrays import Bools, Floats, Ints
from bactrian.compiling import inner, njit
from bactrian.engines.numba.arithmetic import LEAST, MOST
from bactrian.engines.numba.linear import (
    Linear,
    begin_sweep,
    believe_hub,
    load,
    receive_all,
    receive_one,
    store_logs,
    update_pairs_together,
    with_scratch,
)
from bactrian.engines.numba.stars import all_messages, incoming_message, log_belief, sweep_hubs, update_hubs_together
from bactrian.engines.numba.tables import Limits, Passing, Scratch, new_scratch
from bactrian.engines.numba.vectors import States, count, largest, place, size_of, smallest, spread

RUNNING, CONVERGED, CONTRADICTION = 0, 1, 2


class SweepProgress(NamedTuple):
    """Where each of ``M`` instances stands."""

    status: NDArray[np.int8]  #: (M,) RUNNING, CONVERGED or CONTRADICTION (some hub has no possible state)
    iterations: Ints  #: (M,) sweeps, or equivalent sweeps
    updates: Ints  #: (M,) messages computed
    residual: Floats  #: (M,) largest change of a marginal in the last sweep
    damping: Floats  #: (M,) part of the old multipliers that stays
    exact_sweeps: Ints  #: (M,) sequential sweeps that are exact (two, on a tree), or 0
    late: Bools  #: (1,) time is up: no more sweeps, but one


@njit(cache=True, nogil=True, error_model="numpy")
def run_sequential(part: Passing, limits: Limits, progress: SweepProgress, first: int, last: int) -> None:
    """Sweeps in log space, backward and forward in turn, of each instance of ``first:last`` that is still running.

    Those that are ``done`` in linear space are left as they are.
    """
    beliefs = part.beliefs
    scratch = new_scratch(part.layout, first, last)
    for instance in range(first, last):
        if progress.status[instance] != RUNNING or beliefs.done[instance]:
            continue
        begun, exact = progress.iterations[instance], progress.exact_sweeps[instance]
        sweeps, residual = 0, np.inf
        limit = min(limits.max_sweeps, exact - begun) if exact > begun else limits.max_sweeps
        while sweeps < limit and residual > limits.tolerance and not (sweeps > 0 and progress.late[0]):
            backward = (begun + sweeps) % 2 == 0
            residual = sweep_hubs(part, instance, backward, progress.damping[instance], scratch)
            sweeps += 1
            if residual == np.inf:
                break
        beliefs.sweeps[instance], beliefs.residual[instance] = sweeps, residual


class ParallelMessages(NamedTuple):
    """Messages of all instances, for updates that do not go hub by hub."""

    outgoing: Floats  #: (n_link_states,) u
    incoming: Floats  #: (n_link_states,) m, or log m
    psi: Floats  #: (n_hub_states,) exp(theta_v), largest entry 1
    belief: Floats  #: (n_hub_states,) b
    pairwise: Bools  #: (M,) whether linear space can be tried
    in_use: Bools  #: (M,) kept in linear space between calls, by the residual schedule


@inner(allocates=True)
def of_instance(part: Passing, kept: ParallelMessages, instance: int, widest: int) -> Linear:
    """An instance's messages in linear space, with scales of 0; its hubs have at most ``widest`` states."""
    layout = part.layout
    begin, end = layout.instance_hubs[instance], layout.instance_hubs[instance + 1]
    first, last = layout.link_offset[layout.hub_links[begin]], layout.link_offset[layout.hub_links[end]]
    hubs = slice(layout.hub_offset[begin], layout.hub_offset[end])
    message, scale = kept.outgoing[first:last], np.zeros(layout.hub_links[end] - layout.hub_links[begin])
    return with_scratch(part, message, scale, kept.psi[hubs], kept.belief[hubs], kept.incoming[first:last], widest, 0)


@njit(cache=True, nogil=True, error_model="numpy")
def run_parallel(
    part: Passing, limits: Limits, kept: ParallelMessages, progress: SweepProgress, first: int, last: int,
    states: States,
) -> None:  # fmt: skip
    """Parallel updates of each instance of ``first:last`` that is still running."""
    scratch = new_scratch(part.layout, first, last)
    for instance in range(first, last):
        if progress.status[instance] != RUNNING:
            continue
        damping = progress.damping[instance]
        linear = of_instance(part, kept, instance, scratch.small.size)
        fast = damping == 0.0 and kept.pairwise[instance] and load(part, linear, instance, False, states)
        linear.scale[:] = 0.0
        sweeps, residual = 0, np.inf
        while (
            fast
            and sweeps < limits.max_sweeps
            and residual > limits.tolerance
            and not (sweeps > 0 and progress.late[0])
        ):
            residual = update_pairs_together(part, linear, instance, states)
            sweeps += 1
            fast = not math.isnan(residual)
        if not (fast and store_logs(part, linear, instance, True, states)):
            sweeps, residual = 0, np.inf
            while sweeps < limits.max_sweeps and residual > limits.tolerance and not (sweeps > 0 and progress.late[0]):
                residual = update_hubs_together(part, instance, damping, kept.incoming, scratch)
                sweeps += 1
                if residual == np.inf:
                    break
        part.beliefs.sweeps[instance], part.beliefs.residual[instance] = sweeps, residual


# --- by residual ---

#: What a change from or to impossible counts as, in nats.
FAR = 50.0
#: Changes below this are rounding.
ROUNDING = 1e-14
#: A message is out of date where its bound is above this part of the tolerance, shared by the links of the hub.
STALE = 0.1


class Queue(NamedTuple):
    """Residuals and the heaps over them."""

    pending: Floats  #: (L,) bound of the change of a link's message since it was last computed
    priority: Floats  #: (H,) bound of the change of a hub's multipliers
    heap: Ints  #: (H,) heap of each instance's hubs, in its range ``instance_hubs``
    place: Ints  #: (H,) place of a hub in its heap
    contraction: Floats  #: (T,) factor by which a table's messages shrink changes
    started: Bools  #: (M,) the first pass was made
    late: Bools  #: (1,) time is up


@njit(cache=True, nogil=True, error_model="numpy")
def contractions(
    cluster_table: Ints, cluster_rows: Ints, offset: Ints, entries: Floats, numbers: Floats, largest: int, out: Floats
) -> None:
    """tanh(R / 4) of the tables of pairs, 1 for other tables and where a table has more than ``largest`` entries."""
    for t in range(out.size):
        out[t] = -1.0
    for cluster in range(cluster_table.size):
        table, rows = cluster_table[cluster], cluster_rows[cluster]
        start, size = offset[table], offset[table + 1] - offset[table]
        if rows == 0 or size > largest:
            out[table] = 1.0
            continue
        if out[table] >= 0.0:
            continue
        columns = size // rows
        widest = 0.0
        for c in range(columns):
            for d in range(c):
                low, high = np.inf, -np.inf
                for a in range(rows):
                    one = entries[start + a * columns + c]
                    two = entries[start + a * columns + d]
                    if one == -np.inf and two == -np.inf:
                        continue
                    low, high = min(low, one - two), max(high, one - two)
                if high > low:
                    widest = max(widest, high - low)
        out[table] = math.tanh(0.25 * widest / numbers[table])


@inner()
def sift_up(heap: Ints, place: Ints, priority: Floats, base: int, hub: int) -> None:
    """Move a hub whose priority has risen towards the top of the heap that starts at ``base``."""
    position = place[hub]
    own = priority[hub]
    while position > 0:
        parent = (position - 1) >> 1
        above = heap[base + parent]
        if priority[above] >= own:
            break
        heap[base + position] = above
        place[above] = position
        position = parent
    heap[base + position] = hub
    place[hub] = position


@inner()
def sift_down(heap: Ints, place: Ints, priority: Floats, base: int, size: int, hub: int) -> None:
    """Move a hub whose priority has fallen away from the top of the heap of ``size`` hubs at ``base``."""
    position = place[hub]
    own = priority[hub]
    while True:
        child = 2 * position + 1
        if child >= size:
            break
        below = heap[base + child]
        if child + 1 < size and priority[heap[base + child + 1]] > priority[below]:
            child += 1
            below = heap[base + child]
        if priority[below] <= own:
            break
        heap[base + position] = below
        place[below] = position
        position = child
    heap[base + position] = hub
    place[hub] = position


@inner()
def make_heap(heap: Ints, place: Ints, priority: Floats, base: int, stop: int) -> None:
    """A heap of all hubs ``base:stop`` by their priorities."""
    for hub in range(base, stop):
        heap[hub] = hub
        place[hub] = hub - base
    size = stop - base
    for position in range(size // 2 - 1, -1, -1):
        sift_down(heap, place, priority, base, size, heap[base + position])


#: Multipliers go no further: those that would are running away, and past the range of floats they would look as if they
#: stood still, at states that only seem impossible.
_FURTHEST = 1e100
#: A status for the inside of this module: linear space does not hold the messages.
_OUT_OF_RANGE = -1


class Star(NamedTuple):
    """How the hubs of an instance are updated."""

    linear: Linear  #: messages, where they are held in linear space
    incoming: Floats  #: (n_link_states,) log m of all instances, where they are not
    scratch: Scratch
    logs: bool  #: which of the two it is
    damping: float  #: 0 in linear space
    first_state: int  #: of the instance's links
    first_hub_state: int


@inner(forceinline=True)
def _change_of_link(part: Passing, incoming: Floats, link: int, damping: float, commit: bool) -> float:
    """See :func:`_update`."""
    layout, multipliers, log_hub = part.layout, part.multipliers, part.beliefs.hub_log
    offset, start = layout.link_offset[link], layout.hub_offset[layout.link_hub[link]]
    kappa = part.numbers.cluster[layout.link_cluster[link]]
    low, high = np.inf, -np.inf
    far = False
    inverse = 1.0 / kappa
    for k in range(layout.link_offset[link + 1] - offset):
        message = incoming[offset + k]
        if message == -np.inf:
            if commit:
                multipliers[offset + k] = 0.0
            continue
        old, new = multipliers[offset + k], kappa * (log_hub[start + k] - message)
        if new == -np.inf or old == -np.inf:
            far = far or new != old
        else:
            step = (new - old) * inverse
            low, high = min(low, step), max(high, step)
            new += damping * (old - new)
            if not -_FURTHEST < new < _FURTHEST:
                new, far = _FURTHEST if new > 0.0 else -_FURTHEST, True
        if commit:
            multipliers[offset + k] = new
    change = high - low if high > low else 0.0
    return max(change, FAR) if far else change


@inner(forceinline=True)
def _update(part: Passing, star: Star, hub: int, commit: bool, steps: Floats, states: States) -> int:
    """b of a hub and the change of its multipliers, which is made where ``commit``; returns a status.

    ``steps`` takes a bound, for each link, of the range of the change of d / kappa before damping.
    """
    layout, linear = part.layout, star.linear
    first, degree = layout.hub_links[hub], layout.hub_links[hub + 1] - layout.hub_links[hub]
    if star.logs:
        at = layout.link_offset[first]
        if not log_belief(part, hub, star.incoming, at, part.beliefs.hub_log, layout.hub_offset[hub]):
            return CONTRADICTION
        for j in range(degree):
            steps[j] = _change_of_link(part, star.incoming, first + j, star.damping, commit)
        return RUNNING
    at, n = place(layout.link_offset, first, states) - star.first_state, size_of(layout.hub_offset, hub, states)
    to = place(layout.hub_offset, hub, states) - star.first_hub_state
    believe_hub(part, linear, hub, to, at, n)
    if not (smallest(linear.low, 0, n) > LEAST and largest(linear.high, 0, n) < MOST):
        return _OUT_OF_RANGE
    for j in range(degree):
        # max / min - 1 of new over old multipliers is no less than the range of their logarithms.
        steps[j] = min(spread(linear, at + j * count(n), to, commit, n) - 1.0, FAR)
    return RUNNING


@inner()
def _first_pass(part: Passing, star: Star, queue: Queue, instance: int, steps: Floats, states: States) -> int:
    """All messages, exact residuals, and a heap of all hubs; returns a status."""
    hub_links = part.layout.hub_links
    base, stop = part.layout.instance_hubs[instance], part.layout.instance_hubs[instance + 1]
    if star.logs:
        all_messages(part, instance, star.incoming, star.scratch)
    else:
        receive_all(part, star.linear, instance, states)
    for hub in range(base, stop):
        status = _update(part, star, hub, False, steps, states)
        if status != RUNNING:
            return status
        queue.priority[hub] = 0.0
        for link in range(hub_links[hub], hub_links[hub + 1]):
            queue.pending[link] = 0.0
            queue.priority[hub] = max(queue.priority[hub], steps[link - hub_links[hub]])
    make_heap(queue.heap, queue.place, queue.priority, base, stop)
    return RUNNING


@inner()
def _run_instance(
    part: Passing, star: Star, queue: Queue, instance: int, tolerance: float, limit: int, steps: Floats, states: States
) -> tuple[int, int]:
    """Update the hubs of an instance by priority, to a limit of messages; returns its status and their number."""
    layout, pending, priority, damping = part.layout, queue.pending, queue.priority, star.damping
    base, stop = layout.instance_hubs[instance], layout.instance_hubs[instance + 1]
    updates = 0
    while stop > base and updates < limit and not queue.late[0]:
        hub = queue.heap[base]
        if priority[hub] <= tolerance:
            return CONVERGED, updates
        first, last = layout.hub_links[hub], layout.hub_links[hub + 1]
        stale = STALE * tolerance / max(1, last - first)
        left = 0.0
        for link in range(first, last):
            if pending[link] > stale:
                if star.logs:
                    incoming_message(part, link, star.scratch, star.incoming, layout.link_offset[link])
                else:
                    to = place(layout.link_offset, link, states) - star.first_state
                    receive_one(part, star.linear, link, star.first_state, to, states)
                pending[link] = 0.0
                updates += 1
            left += pending[link]
        status = _update(part, star, hub, True, steps, states)
        if status != RUNNING:
            return status, updates
        undone = 0.0
        for link in range(first, last):
            cluster, step = layout.link_cluster[link], steps[link - first]
            undone = max(undone, damping * step)
            step *= (1.0 - damping) * queue.contraction[layout.cluster_table[cluster]]
            if step > ROUNDING:
                for position in range(layout.cluster_links[cluster], layout.cluster_links[cluster + 1]):
                    other = layout.cluster_link[position]
                    if other != link:
                        pending[other] += step
                        priority[layout.link_hub[other]] += step
                        sift_up(queue.heap, queue.place, priority, base, layout.link_hub[other])
        priority[hub] = left + undone
        sift_down(queue.heap, queue.place, priority, base, stop - base, hub)
    return CONVERGED if stop == base else RUNNING, updates


@njit(cache=True, nogil=True, error_model="numpy")
def run_residual(
    part: Passing, limits: Limits, kept: ParallelMessages, queue: Queue, progress: SweepProgress, first: int, last: int,
    states: States,
) -> None:  # fmt: skip
    """Update hubs by priority, each running instance up to ``max_sweeps`` messages per link."""
    layout = part.layout
    scratch = new_scratch(layout, first, last)
    steps = np.empty(scratch.star.size)
    for instance in range(first, last):
        if progress.status[instance] != RUNNING:
            continue
        base, stop = layout.instance_hubs[instance], layout.instance_hubs[instance + 1]
        n_links = layout.hub_links[stop] - layout.hub_links[base]
        linear = of_instance(part, kept, instance, scratch.small.size)
        first_state, first_hub_state = layout.link_offset[layout.hub_links[base]], layout.hub_offset[base]
        updates, more, status = 0, 0, _OUT_OF_RANGE
        if not queue.started[instance] and progress.damping[instance] == 0.0 and kept.pairwise[instance]:
            kept.in_use[instance] = load(part, linear, instance, False, states)
            linear.scale[:] = 0.0
        while status == _OUT_OF_RANGE:  # once, or again in log space
            logs, status, more = not kept.in_use[instance], RUNNING, 0
            damping = progress.damping[instance] if logs else 0.0
            star = Star(linear, kept.incoming, scratch, logs, damping, first_state, first_hub_state)
            begin_sweep(linear)
            if not queue.started[instance]:
                queue.started[instance] = True
                updates += n_links
                status = _first_pass(part, star, queue, instance, steps, states)
            if status == RUNNING:
                limit = limits.max_sweeps * n_links - updates
                status, more = _run_instance(part, star, queue, instance, limits.tolerance, limit, steps, states)
            updates += more
            if not logs and (status == _OUT_OF_RANGE or not store_logs(part, linear, instance, True, states)):
                status, kept.in_use[instance], queue.started[instance] = _OUT_OF_RANGE, False, False
        progress.status[instance] = status
        progress.updates[instance] += updates
        progress.iterations[instance] = (progress.updates[instance] + n_links - 1) // max(1, n_links)
        progress.residual[instance] = queue.priority[queue.heap[base]] if stop > base else 0.0
