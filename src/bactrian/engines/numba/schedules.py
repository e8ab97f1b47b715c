"""Schedules of message passing, instance by instance, beside sequential sweeps: parallel, and by residual.

All repeat the star update, of :mod:`.linear` where that is safe, and of :mod:`.stars`. A sequential sweep, which is
that of learning, updates hub after hub, each from the newest messages, forward and backward in turn. A parallel update
computes the messages of all clusters from the same old multipliers, then all multipliers from those (the flooding
schedule). Damping, in log space, mixes a part of the old multipliers into the new ones.

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
from bactrian.compiling import kernel, njit, record
from bactrian.engines.numba.arithmetic import States, in_range, pair_message, place, size_of, unsigned
from bactrian.engines.numba.layout import Layout
from bactrian.engines.numba.linear import (
    HeldLinear,
    Linear,
    believe,
    believe_by_logs,
    load_states,
    match_scales,
    store_logs,
    sweep_pairs,
)
from bactrian.engines.numba.stars import log_belief, messages_of_arrays, sweep_logs
from bactrian.engines.numba.tables import Limits, Passing, Scratch, new_scratch, turned

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


class ParallelMessages(NamedTuple):
    """Messages of all instances, for updates that do not go hub by hub."""

    outgoing: Floats  #: (n_link_states,) u
    incoming: Floats  #: (n_link_states,) m, or log m
    psi: Floats  #: (n_hub_states,) exp(theta_v), largest entry 1
    belief: Floats  #: (n_hub_states,) b
    pairwise: Bools  #: (M,) whether linear space can be tried
    in_use: Bools  #: (M,) kept in linear space between calls, by the residual schedule


@njit()
def of_instance(part: Passing, kept: ParallelMessages, instance: int) -> Linear:
    """An instance's messages in linear space, with scales of 0."""
    layout = part.layout
    begin, end = layout.instance_hubs[instance], layout.instance_hubs[instance + 1]
    first, last = layout.link_offset[layout.hub_links[begin]], layout.link_offset[layout.hub_links[end]]
    hubs = slice(layout.hub_offset[begin], layout.hub_offset[end])
    message, scale = kept.outgoing[first:last], np.zeros(layout.hub_links[end] - layout.hub_links[begin])
    entries, product = part.tables.exp_entries, kept.incoming[first:last]
    return HeldLinear(
        entries, turned(entries, part.tables.log_entries), message, scale, kept.psi[hubs], kept.belief[hubs], product,
        np.empty(scale.size),
    )  # fmt: skip


@kernel()
def run_parallel(
    part: Passing, limits: Limits, kept: ParallelMessages, progress: SweepProgress, first: int, last: int,
    states: States,
) -> None:  # fmt: skip
    """Parallel updates of each instance of ``first:last`` that is still running."""
    scratch, limit, tolerance = new_scratch(part.layout, first, last), limits.max_sweeps, limits.tolerance
    held = np.empty(3 * scratch.star.size)
    for instance in range(first, last):
        if progress.status[instance] != RUNNING:
            continue
        damping = progress.damping[instance]
        linear = of_instance(part, kept, instance)
        old = np.empty(linear.message.size)
        fast = damping == 0.0 and kept.pairwise[instance]
        fast = fast and load_states(part, linear, instance, states) and match_scales(part, linear, instance)
        linear.scale[:] = 0.0
        sweeps, residual = 0, np.inf
        while fast and sweeps < limit and residual > tolerance and not (sweeps > 0 and progress.late[0]):
            old[:] = linear.message
            residual = sweep_pairs(part, linear, instance, False, False, 0, held, old, states)
            sweeps += 1
            fast = not math.isnan(residual)
        if fast and store_logs(part, linear, instance, True, states):
            part.beliefs.sweeps[instance], part.beliefs.residual[instance] = sweeps, residual
        else:
            sweep_logs(part, instance, True, damping, limit, tolerance, kept.incoming, scratch)


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


@kernel()
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


@njit(forceinline=True)
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


@njit(forceinline=True)
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


@njit()
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


HeldQueue = record(Queue)


@njit(forceinline=True)
def _update_logs(
    link_offset: Ints, link_cluster: Ints, cluster_number: Floats, number: float, hub_scores: Floats,
    multipliers: Floats, hub_log: Floats, incoming: Floats, start: int, n: int, first: int, last: int, damping: float,
    commit: bool, steps: Floats,
) -> bool:  # fmt: skip
    """b of a hub and the change of its multipliers in log space, see :func:`_run_instance`; False: none is possible."""
    if not log_belief(
        link_cluster, cluster_number, number, hub_scores, start, n, first, last, incoming, link_offset[first], hub_log,
        start,
    ):  # fmt: skip
        return False
    for link in range(first, last):
        offset, kappa = link_offset[link], cluster_number[link_cluster[link]]
        low, high, far, inverse = np.inf, -np.inf, False, 1.0 / kappa
        for k in range(n):
            message = incoming[offset + k]
            if message == -np.inf:
                if commit:
                    multipliers[offset + k] = 0.0
                continue
            old, new = multipliers[offset + k], kappa * (hub_log[start + k] - message)
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
        steps[link - first] = max(change, FAR) if far else change
    return True


@njit()
def _run_instance(
    part: Passing, linear: Linear | None, scratch: Scratch | None, incoming: Floats, damping: float, queue: Queue,
    instance: int, tolerance: float, limit: int, states: States,
) -> tuple[int, int]:  # fmt: skip
    """Update the hubs of an instance by priority, to a limit of messages; returns its status and their number.

    The first time a look at each hub, which changes no multipliers, leaves all messages, exact residuals and a heap.
    Messages are those of ``linear``, or their logarithms in ``incoming`` with ``scratch``: of the two what is None is
    not compiled.
    """
    layout, pending, priority, heap = part.layout, queue.pending, queue.priority, queue.heap
    link_offset, link_axis, cluster_number = layout.link_offset, layout.link_axis, part.numbers.cluster
    link_partner, link_hub, link_cluster = layout.link_partner, layout.link_hub, layout.link_cluster
    hub_offset, hub_links, cluster_table = layout.hub_offset, layout.hub_links, layout.cluster_table
    cluster_links, cluster_link, contraction = layout.cluster_links, layout.cluster_link, queue.contraction
    place_of, late, hub_number, hub_scores = queue.place, queue.late, part.numbers.hub, part.tables.hub_scores
    if linear is not None:
        steps = linear.spare  # bounds, for each link, of the range of the change of d / kappa before damping
        entries, turn, message, psi = linear.entries, linear.turned, linear.message, linear.psi
        belief, product, link_start = linear.belief, linear.product, part.plan.link_start
        hub_multiplies = part.plan.hub_multiplies
        first_hub_state = hub_offset[layout.instance_hubs[instance]]
        first_state = link_offset[hub_links[layout.instance_hubs[instance]]]
    if scratch is not None:
        steps = scratch.star
        multipliers, hub_log, log_entries = part.multipliers, part.beliefs.hub_log, part.tables.log_entries
        link_projection, projection, table_offset = layout.link_projection, layout.projection, layout.table_offset
        narrow, shift, table_number = part.tables.narrow, part.tables.shift, part.numbers.table
        small, received, scores = scratch.small, scratch.product, scratch.scores
        exponentials, turn = part.tables.exp_entries, turned(part.tables.exp_entries, part.tables.log_entries)
    base, stop = layout.instance_hubs[instance], layout.instance_hubs[instance + 1]
    unseen, updates = stop if queue.started[instance] else base, 0
    queue.started[instance] = True
    while unseen < stop or (stop > base and updates < limit and not late[0]):
        looks = unseen < stop
        hub = unseen if looks else heap[base]
        if not looks and priority[hub] <= tolerance:
            return CONVERGED, updates
        first, last = hub_links[hub], hub_links[hub + 1]
        stale = STALE * tolerance / max(1, last - first)
        left, highest, since, until = 0.0, 0.0, last, first
        n = size_of(hub_offset, hub, states)
        for link in range(first, last):
            if looks or pending[link] > stale:
                if linear is not None:
                    partner = link_partner[link]
                    source, m = place(link_offset, partner, states) - first_state, size_of(link_offset, partner, states)
                    at, start, axis = place(link_offset, link, states) - first_state, link_start[link], link_axis[link]
                    pair_message(entries, turn, start, axis, message, source, product, at, m, n)
                pending[link] = 0.0
                updates += 1
                until = link + 1
                since = since if since < link else link
            left += pending[link]
        if scratch is not None:
            # Those between the first and the last that are out of date come for less than a call of their own.
            messages_of_arrays(
                link_cluster, link_partner, link_offset, link_axis, link_projection, projection, cluster_links,
                cluster_link, cluster_table, table_offset, cluster_number, table_number, narrow, shift, log_entries,
                exponentials, turn, multipliers, small, received, scores, since, until, incoming, link_offset[since],
            )  # fmt: skip
            if not _update_logs(
                link_offset, link_cluster, cluster_number, hub_number[hub], hub_scores, multipliers, hub_log, incoming,
                hub_offset[hub], n, first, last, damping, not looks, steps,
            ):  # fmt: skip
                return CONTRADICTION, updates
        if linear is not None:
            at, to = place(link_offset, first, states) - first_state, place(hub_offset, hub, states) - first_hub_state
            if hub_multiplies[hub]:
                degree = last - first
                outside = believe(psi, product, belief, to, at, degree, hub_number[hub] + degree, n)[1]
                outside += not in_range(product, at, degree * n)
            else:
                outside = believe_by_logs(
                    hub_scores, place(hub_offset, hub, states), link_cluster, cluster_number, first, last,
                    product, belief, to, at, hub_number[hub], n,
                )  # fmt: skip
            if outside > 0:
                return _OUT_OF_RANGE, updates
            for j in range(last - first):
                # max / min - 1 of new over old multipliers is no less than the range of their logarithms.
                steps[j] = min(_spread(message, belief, product, at + j * n, to, not looks, n) - 1.0, FAR)
        if looks:
            for j in range(last - first):
                highest = max(highest, steps[j])
            priority[hub] = highest
            unseen += 1
            if unseen == stop:
                make_heap(heap, place_of, priority, base, stop)
            continue
        undone = 0.0
        for link in range(first, last):
            cluster, step = link_cluster[link], steps[link - first]
            undone = max(undone, damping * step)
            step *= (1.0 - damping) * contraction[cluster_table[cluster]]
            if step > ROUNDING:
                for position in range(cluster_links[cluster], cluster_links[cluster + 1]):
                    other = cluster_link[position]
                    if other != link:
                        pending[other] += step
                        priority[link_hub[other]] += step
                        sift_up(heap, place_of, priority, base, link_hub[other])
        priority[hub] = left + undone
        sift_down(heap, place_of, priority, base, stop - base, hub)
    return CONVERGED if stop == base else RUNNING, updates


@njit(forceinline=True)
def _spread(message: Floats, belief: Floats, product: Floats, at: int, to: int, commit: bool, n: int) -> float:
    """max / min of q / u, where q = b / m of a link; with ``commit`` u = q."""
    high, low, i, source = 0.0, math.inf, unsigned(at), unsigned(to)
    for k in range(unsigned(n)):
        new = belief[source + k] / product[i + k]
        ratio = new / message[i + k]
        high = ratio if ratio > high else high
        low = ratio if ratio < low else low
        if commit:
            message[i + k] = new
    return high / low


def run_residual(
    part: Passing, limits: Limits, kept: ParallelMessages, heaps: Queue, progress: SweepProgress, first: int,
    last: int, states: States,
) -> None:  # fmt: skip
    """Update hubs by priority, each running instance up to ``max_sweeps`` messages per link."""
    block = slice(first, last)
    if (kept.pairwise[block] & (kept.in_use[block] | (progress.damping[block] == 0.0))).any():
        residuals_in_linear_space(part, limits, kept, heaps, progress, first, last, states)
    if ((progress.status[block] == RUNNING) & ~kept.in_use[block]).any():
        residuals_in_log_space(part, limits, kept, heaps, progress, first, last)


@kernel()
def residuals_in_linear_space(
    part: Passing, limits: Limits, kept: ParallelMessages, heaps: Queue, progress: SweepProgress, first: int,
    last: int, states: States,
) -> None:  # fmt: skip
    """The same for pairs, as long as they do not leave the range; those that do are no longer ``in_use``."""
    queue, layout = HeldQueue(*heaps), part.layout
    for instance in range(first, last):
        if progress.status[instance] != RUNNING:
            continue
        linear = of_instance(part, kept, instance)
        if not queue.started[instance] and progress.damping[instance] == 0.0 and kept.pairwise[instance]:
            kept.in_use[instance] = load_states(part, linear, instance, states) and match_scales(part, linear, instance)
            linear.scale[:] = 0.0
        if kept.in_use[instance]:
            limit = limits.max_sweeps * linear.scale.size
            status, updates = _run_instance(
                part, linear, None, kept.incoming, 0.0, queue, instance, limits.tolerance, limit, states
            )
            if status == _OUT_OF_RANGE or not store_logs(part, linear, instance, True, states):
                status, kept.in_use[instance], queue.started[instance] = RUNNING, False, False
            _note(layout, queue, progress, instance, status, updates)


@kernel()
def residuals_in_log_space(
    part: Passing, limits: Limits, kept: ParallelMessages, heaps: Queue, progress: SweepProgress, first: int, last: int
) -> None:
    """The same for all others, from the multipliers as they are."""
    queue, layout, scratch = HeldQueue(*heaps), part.layout, new_scratch(part.layout, first, last)
    for instance in range(first, last):
        if progress.status[instance] != RUNNING or kept.in_use[instance]:
            continue
        hubs = layout.instance_hubs[instance], layout.instance_hubs[instance + 1]
        limit = limits.max_sweeps * (layout.hub_links[hubs[1]] - layout.hub_links[hubs[0]])
        status, updates = _run_instance(
            part, None, scratch, kept.incoming, progress.damping[instance], queue, instance, limits.tolerance, limit, ()
        )
        _note(layout, queue, progress, instance, status, updates)


@njit()
def _note(layout: Layout, queue: Queue, progress: SweepProgress, instance: int, status: int, updates: int) -> None:
    """What came of updates of an instance."""
    base, stop = layout.instance_hubs[instance], layout.instance_hubs[instance + 1]
    n_links = layout.hub_links[stop] - layout.hub_links[base]
    progress.status[instance] = status
    progress.updates[instance] += updates
    progress.iterations[instance] = (progress.updates[instance] + n_links - 1) // max(1, n_links)
    progress.residual[instance] = queue.priority[queue.heap[base]] if stop > base else 0.0
