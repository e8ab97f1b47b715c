"""Colouring of nodes, so that no edge joins two of one colour."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bactrian.compiling import njit

Ints = NDArray[np.int64]


@njit(cache=True, nogil=True, error_model="numpy")
def greedy_colours(pointer: Ints, neighbours: Ints) -> Ints:
    """(n_nodes,) the smallest colour that no earlier neighbour has, node after node.

    The neighbours of node v are ``neighbours[pointer[v]:pointer[v + 1]]``. Chains and grids in their natural order get
    two colours; no graph gets more than its largest degree plus one.
    """
    n_nodes = pointer.size - 1
    colours = np.full(n_nodes, -1, dtype=np.int64)
    largest = 0
    for v in range(n_nodes):
        largest = max(largest, pointer[v + 1] - pointer[v])
    taken_by = np.full(largest + 1, -1, dtype=np.int64)
    for v in range(n_nodes):
        for position in range(pointer[v], pointer[v + 1]):
            colour = colours[neighbours[position]]
            if colour >= 0:
                taken_by[colour] = v
        colour = 0
        while taken_by[colour] == v:
            colour += 1
        colours[v] = colour
    return colours
