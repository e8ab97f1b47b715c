"""The priority queue of residual belief propagation: an indexed binary heap of hubs per instance.

Hub h of the heap sits at ``place[h]``, so that its priority can be raised where it is.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bactrian.compiling import njit
from bactrian.engines.numba.layout import Layout
from bactrian.engines.numba.tables import Numbers, Tables

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

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
    started: NDArray[np.bool_]  #: (M,) the first pass was made
    late: NDArray[np.bool_]  #: (1,) time is up


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
