"""Residual belief propagation: the star that is furthest from its fixed point is updated next.

Elidan, McGraw and Koller (UAI 2006) keep messages in a priority queue ordered by their residual, the change that an
update would make. Here the queue holds hubs, and an update of hub v computes those of its incoming messages that are
out of date, its belief and all of its multipliers. Computing every residual ahead would cost several messages for each
one that is used, so, after a first pass in which residuals are exact, the queue holds upper bounds (Sutton and
McCallum, *Improved dynamic schedules for belief propagation*, UAI 2007): in the norm

    |x| = max x - min x        (the range of a log-message; a constant changes nothing)

a change of a cluster's multipliers changes its messages to other hubs by no more than itself, so the changes that a hub
has not yet seen are added up. When the largest bound falls below the tolerance, no message would change by more.

For a pair the bound is sharper: a message is a contraction of the multipliers, by the factor tanh(R / 4) where R is the
range of the table's cross-differences theta(a,c) + theta(b,d) - theta(a,d) - theta(b,c) (Ihler, Fisher and Willsky,
JMLR 6, 2005, whose measure of a table's strength this is).

The queue is an indexed binary heap of hubs per instance. Pairs are updated in linear space where they can be.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from bactrian.arrays import Bools, Floats, Ints
from bactrian.compiling import njit
from bactrian.engines.numba.arithmetic import FAST_MATH
from bactrian.engines.numba.flooding import (
    LinearMessages,
    all_messages,
    hub_belief,
    load_instance,
    log_belief,
    pair_messages,
    store_instance,
    to_column,
    to_row,
)
from bactrian.engines.numba.layout import Layout
from bactrian.engines.numba.schedules import CONTRADICTION, CONVERGED, RUNNING, SweepProgress
from bactrian.engines.numba.stars import incoming_message
from bactrian.engines.numba.tables import Numbers, Scratch, Tables, new_scratch

#: What a change from or to impossible counts as, in nats.
FAR = 50.0
#: Changes below this are rounding.
ROUNDING = 1e-14
#: A message is out of date where its bound is above this part of the tolerance, shared by the links of the hub.
STALE = 0.1


class Queue(NamedTuple):
    """Residuals and the heaps over them."""

    incoming: Floats  #: (n_link_states,) log m of every link when it was last computed
    pending: Floats  #: (L,) bound of the change of a link's message since then
    priority: Floats  #: (H,) bound of the change of a hub's multipliers
    heap: Ints  #: (H,) heap of each instance's hubs, in its range ``instance_hubs``
    place: Ints  #: (H,) place of a hub in its heap
    contraction: Floats  #: (T,) factor by which a table's messages shrink changes
    started: Bools  #: (M,) the first pass was made
    late: Bools  #: (1,) time is up


@njit(cache=True, nogil=True, error_model="numpy")
def contractions(layout: Layout, tables: Tables, numbers: Numbers, largest: int, out: Floats) -> None:
    """tanh(R / 4) of the tables of pairs, 1 for other tables and where a table has more than ``largest`` entries."""
    for t in range(out.size):
        out[t] = -1.0
    for cluster in range(layout.cluster_table.size):
        table = layout.cluster_table[cluster]
        start, rows = layout.table_offset[table], layout.cluster_rows[cluster]
        size = layout.table_offset[table + 1] - start
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
                    one = tables.log_entries[start + a * columns + c]
                    two = tables.log_entries[start + a * columns + d]
                    if one == -np.inf and two == -np.inf:
                        continue
                    low, high = min(low, one - two), max(high, one - two)
                if high > low:
                    widest = max(widest, high - low)
        out[table] = math.tanh(0.25 * widest / numbers.table[table])


@njit(cache=True, nogil=True, error_model="numpy")
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


@njit(cache=True, nogil=True, error_model="numpy")
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


@njit(cache=True, nogil=True, error_model="numpy")
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


@njit(cache=True, nogil=True, error_model="numpy")
def _change_of_link(
    multipliers: Floats,
    offset: int,
    states: int,
    incoming: Floats,
    log_hub: Floats,
    start: int,
    kappa: float,
    damping: float,
    commit: bool,
) -> float:
    """Range of the change of a link's multipliers over kappa, before damping; makes the change where ``commit``."""
    low, high = np.inf, -np.inf
    far = False
    inverse = 1.0 / kappa
    for k in range(states):
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


@njit(cache=True, nogil=True, error_model="numpy")
def _first_pass(
    layout: Layout,
    tables: Tables,
    numbers: Numbers,
    multipliers: Floats,
    queue: Queue,
    instance: int,
    scratch: Scratch,
) -> bool:
    """All messages, exact residuals, and a heap of all hubs; False where a hub has no possible state."""
    base, stop = layout.instance_hubs[instance], layout.instance_hubs[instance + 1]
    hub_offset, hub_links, link_offset = layout.hub_offset, layout.hub_links, layout.link_offset
    link_cluster, cluster_number = layout.link_cluster, numbers.cluster
    incoming, belief = queue.incoming, scratch.belief
    all_messages(layout, tables, numbers, multipliers, instance, incoming, scratch)
    for hub in range(base, stop):
        first, last, states = hub_links[hub], hub_links[hub + 1], hub_offset[hub + 1] - hub_offset[hub]
        if not log_belief(
            tables.hub_scores, hub_offset[hub], states, numbers.hub[hub], link_cluster, cluster_number, link_offset,
            first, last, incoming, belief, 0,
        ):  # fmt: skip
            return False
        change = 0.0
        for link in range(first, last):
            queue.pending[link] = 0.0
            kappa = cluster_number[link_cluster[link]]
            step = _change_of_link(multipliers, link_offset[link], states, incoming, belief, 0, kappa, 0.0, False)
            change = max(change, step)
        queue.priority[hub] = change
    make_heap(queue.heap, queue.place, queue.priority, base, stop)
    return True


@njit(cache=True, nogil=True, error_model="numpy")
def _run_instance(
    layout: Layout,
    tables: Tables,
    numbers: Numbers,
    multipliers: Floats,
    hub_log: Floats,
    queue: Queue,
    instance: int,
    damping: float,
    tolerance: float,
    limit: float,
    scratch: Scratch,
) -> tuple[int, int]:
    """Update the hubs of an instance by priority; returns its status and the number of messages computed."""
    hub_offset, hub_links, link_offset = layout.hub_offset, layout.hub_links, layout.link_offset
    link_cluster, link_hub, cluster_table = layout.link_cluster, layout.link_hub, layout.cluster_table
    cluster_links, cluster_link = layout.cluster_links, layout.cluster_link
    hub_scores, hub_number, cluster_number = tables.hub_scores, numbers.hub, numbers.cluster
    incoming, pending, contraction = queue.incoming, queue.pending, queue.contraction
    heap, place, priority = queue.heap, queue.place, queue.priority
    scores, small, product = scratch.scores, scratch.small, scratch.product
    base, stop = layout.instance_hubs[instance], layout.instance_hubs[instance + 1]
    updates = 0
    while stop > base and updates < limit and not queue.late[0]:
        hub = heap[base]
        if priority[hub] <= tolerance:
            return CONVERGED, updates
        start, states = hub_offset[hub], hub_offset[hub + 1] - hub_offset[hub]
        first, last = hub_links[hub], hub_links[hub + 1]
        stale = STALE * tolerance / max(1, last - first)
        left = 0.0
        for link in range(first, last):
            if pending[link] > stale:
                incoming_message(
                    layout, tables, numbers, multipliers, link, scores, small, product, incoming, link_offset[link]
                )
                pending[link] = 0.0
                updates += 1
            left += pending[link]
        if not log_belief(
            hub_scores, start, states, hub_number[hub], link_cluster, cluster_number, link_offset, first, last,
            incoming, hub_log, start,
        ):  # fmt: skip
            return CONTRADICTION, updates
        undone = 0.0
        for link in range(first, last):
            cluster = link_cluster[link]
            change = _change_of_link(
                multipliers, link_offset[link], states, incoming, hub_log, start, cluster_number[cluster], damping, True
            )
            undone = max(undone, damping * change)
            change *= (1.0 - damping) * contraction[cluster_table[cluster]]
            if change > ROUNDING:
                for position in range(cluster_links[cluster], cluster_links[cluster + 1]):
                    other = cluster_link[position]
                    if other != link:
                        pending[other] += change
                        priority[link_hub[other]] += change
                        sift_up(heap, place, priority, base, link_hub[other])
        priority[hub] = left + undone
        sift_down(heap, place, priority, base, stop - base, hub)
    return CONVERGED if stop == base else RUNNING, updates


@njit(cache=True, nogil=True, error_model="numpy")
def run_residual(
    layout: Layout,
    tables: Tables,
    numbers: Numbers,
    multipliers: Floats,
    hub_log: Floats,
    queue: Queue,
    linear: LinearMessages,
    progress: SweepProgress,
    first: int,
    last: int,
    tolerance: float,
    max_updates: float,
) -> None:
    """Update hubs by priority, each running instance up to ``max_updates`` messages per link."""
    scratch = new_scratch(layout, first, last)
    for instance in range(first, last):
        if progress.status[instance] != RUNNING:
            continue
        base, stop = layout.instance_hubs[instance], layout.instance_hubs[instance + 1]
        n_links = layout.hub_links[stop] - layout.hub_links[base]
        limit = max_updates * n_links
        damping = progress.damping[instance]
        updates, more, status = 0, 0, RUNNING
        if not queue.started[instance] and damping == 0.0:
            linear.in_use[instance] = load_instance(layout, tables, numbers, multipliers, linear, instance)
            if linear.in_use[instance]:
                queue.started[instance] = True
                updates = n_links
                if not first_linear_pass(layout, tables, linear, queue, instance, scratch.belief):
                    status = -1
        if linear.in_use[instance]:
            if status == RUNNING:
                status, more = run_linear(
                    layout, tables, linear, queue, instance, tolerance, limit - updates, scratch.belief
                )
                updates += more
            if status < 0:
                linear.in_use[instance], queue.started[instance] = False, False
            else:
                store_instance(layout, linear, multipliers, instance)
        if not linear.in_use[instance]:
            status = RUNNING
            if not queue.started[instance]:
                queue.started[instance] = True
                updates += n_links
                if not _first_pass(layout, tables, numbers, multipliers, queue, instance, scratch):
                    status = CONTRADICTION
            if status == RUNNING:
                status, more = _run_instance(
                    layout, tables, numbers, multipliers, hub_log, queue, instance, damping, tolerance,
                    limit - updates, scratch,
                )  # fmt: skip
                updates += more
        progress.status[instance] = status
        progress.updates[instance] += updates
        progress.iterations[instance] = (progress.updates[instance] + n_links - 1) // max(1, n_links)
        progress.residual[instance] = queue.priority[queue.heap[base]] if stop > base else 0.0


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST_MATH)
def _spread_of_ratio(belief: Floats, states: int, m: Floats, u: Floats, offset: int, commit: bool) -> float:
    """max / min - 1 of new over old multipliers, no less than the range of their logarithms; at most ``FAR``."""
    low, high = np.inf, 0.0
    for k in range(states):
        new = belief[k] / m[offset + k]
        ratio = new / u[offset + k]
        low, high = min(low, ratio), max(high, ratio)
        if commit:
            u[offset + k] = new
    return min(high - low, FAR * low) / low


@njit(cache=True, nogil=True, error_model="numpy")
def first_linear_pass(
    layout: Layout, tables: Tables, linear: LinearMessages, queue: Queue, instance: int, belief: Floats
) -> bool:
    """As :func:`_first_pass`, in linear space; False where log space is needed."""
    base, stop = layout.instance_hubs[instance], layout.instance_hubs[instance + 1]
    hub_offset, hub_links, link_offset = layout.hub_offset, layout.hub_links, layout.link_offset
    if not pair_messages(layout, tables, linear, instance):
        return False
    for hub in range(base, stop):
        first, last, states = hub_links[hub], hub_links[hub + 1], hub_offset[hub + 1] - hub_offset[hub]
        if not hub_belief(
            linear.psi, hub_offset[hub], states, linear.incoming, link_offset[first], last - first, belief
        ):
            return False
        change = 0.0
        for link in range(first, last):
            queue.pending[link] = 0.0
            step = _spread_of_ratio(belief, states, linear.incoming, linear.outgoing, link_offset[link], False)
            change = max(change, step)
        queue.priority[hub] = change
    make_heap(queue.heap, queue.place, queue.priority, base, stop)
    return True


@njit(cache=True, nogil=True, error_model="numpy")
def run_linear(
    layout: Layout,
    tables: Tables,
    linear: LinearMessages,
    queue: Queue,
    instance: int,
    tolerance: float,
    limit: float,
    belief: Floats,
) -> tuple[int, int]:
    """As :func:`_run_instance`, in linear space; status -1 where log space is needed."""
    hub_offset, hub_links, link_offset = layout.hub_offset, layout.hub_links, layout.link_offset
    link_cluster, link_hub, cluster_table = layout.link_cluster, layout.link_hub, layout.cluster_table
    cluster_links, cluster_link, cluster_rows = layout.cluster_links, layout.cluster_link, layout.cluster_rows
    table_offset, entries = layout.table_offset, tables.exp_entries
    pending, contraction = queue.pending, queue.contraction
    heap, place, priority = queue.heap, queue.place, queue.priority
    u, m, psi = linear.outgoing, linear.incoming, linear.psi
    base, stop = layout.instance_hubs[instance], layout.instance_hubs[instance + 1]
    updates = 0
    while stop > base and updates < limit and not queue.late[0]:
        hub = heap[base]
        if priority[hub] <= tolerance:
            return CONVERGED, updates
        start, states = hub_offset[hub], hub_offset[hub + 1] - hub_offset[hub]
        first, last = hub_links[hub], hub_links[hub + 1]
        stale = STALE * tolerance / max(1, last - first)
        left = 0.0
        safe = True
        for link in range(first, last):
            if pending[link] > stale:
                cluster = link_cluster[link]
                ends, rows, at = cluster_links[cluster], cluster_rows[cluster], table_offset[cluster_table[cluster]]
                columns = (table_offset[cluster_table[cluster] + 1] - at) // rows
                row, column = cluster_link[ends], cluster_link[ends + 1]
                if link == row:
                    safe &= to_row(entries, at, rows, columns, u, link_offset[column], m, link_offset[row])
                else:
                    safe &= to_column(entries, at, rows, columns, u, link_offset[row], m, link_offset[column])
                pending[link] = 0.0
                updates += 1
            left += pending[link]
        if not (safe and hub_belief(psi, start, states, m, link_offset[first], last - first, belief)):
            return -1, updates
        for link in range(first, last):
            cluster = link_cluster[link]
            change = _spread_of_ratio(belief, states, m, u, link_offset[link], True)
            change *= contraction[cluster_table[cluster]]
            if change > ROUNDING:
                ends = cluster_links[cluster]
                other = cluster_link[ends + 1] if cluster_link[ends] == link else cluster_link[ends]
                pending[other] += change
                priority[link_hub[other]] += change
                sift_up(heap, place, priority, base, link_hub[other])
        priority[hub] = left
        sift_down(heap, place, priority, base, stop - base, hub)
    return CONVERGED if stop == base else RUNNING, updates
