"""Work space that is large enough for any instance of a block."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bactrian.compiling import njit
from bactrian.engines.numba.layout import Layout

Floats = NDArray[np.float64]


class Scratch(NamedTuple):
    """Work space for the instances of a block."""

    scores: Floats  #: a table
    small: Floats  #: a hub's states, as are the next two
    product: Floats
    belief: Floats
    star: Floats  #: all messages around a hub


@njit(cache=True, nogil=True, error_model="numpy")
def largest_sizes(layout: Layout, first: int, last: int) -> tuple[int, int, int]:
    """Entries of the largest table, states of the largest hub, and all states around a hub, in ``first:last``."""
    table_offset, cluster_table = layout.table_offset, layout.cluster_table
    hub_offset, hub_links = layout.hub_offset, layout.hub_links
    table, states, star = 1, 1, 1
    for cluster in range(layout.instance_clusters[first], layout.instance_clusters[last]):
        t = cluster_table[cluster]
        table = max(table, table_offset[t + 1] - table_offset[t])
    for hub in range(layout.instance_hubs[first], layout.instance_hubs[last]):
        size = hub_offset[hub + 1] - hub_offset[hub]
        states = max(states, size)
        star = max(star, size * (hub_links[hub + 1] - hub_links[hub]))
    return table, states, star


@njit(cache=True, nogil=True, error_model="numpy")
def new_scratch(layout: Layout, first: int, last: int) -> Scratch:
    """Space for any of the instances ``first:last``."""
    table, states, star = largest_sizes(layout, first, last)
    return Scratch(np.empty(table), np.empty(states), np.empty(states), np.empty(states), np.empty(star))
