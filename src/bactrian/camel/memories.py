"""Memories of L-BFGS: for millions of weights, and for vectors of which each rank holds a part."""

from __future__ import annotations

import numpy as np

from bactrian.arrays import Floats, Ints
from bactrian.camel.schedule import SCHEDULE
from bactrian.engines.numba.long_vectors import combine_rows, dot_rows, store_pair
from bactrian.engines.numba.threads import Workers
from bactrian.parallel import Communicator
from bactrian.parallel import largest as largest_anywhere
from bactrian.solvers.lbfgs import Memory, largest

_N_BLOCKS = 16


def make_memory(dimension: int, workers: Workers) -> Memory:
    """The memory for problems of that size."""
    return (
        Memory(SCHEDULE.memory, dimension)
        if dimension < SCHEDULE.long_dimension
        else LongMemory(SCHEDULE.long_memory, dimension, workers)
    )


class LongMemory(Memory):
    """Pairs (s, y) kept in single precision; each iteration reads them twice, for inner products and the direction.

    The inner products are those of the rounded pairs, so that the two loops stay consistent with what is stored, and
    sums are in double precision. Blocks are fixed: results do not depend on the number of threads.
    """

    def __init__(self, size: int, dimension: int, workers: Workers) -> None:
        super().__init__(size, 0)
        self._rows = np.zeros((2 * self._slots, dimension), dtype=np.float32)
        self._workers = workers
        self._blocks = np.linspace(0, dimension, _N_BLOCKS + 1).astype(np.int64)
        self._pending = -1  # slot whose inner products are not yet known

    def clear(self) -> None:
        """See :class:`Memory`."""
        super().clear()
        self._pending = -1

    def add(self, s: Floats, y: Floats, *, within: bool = False) -> None:
        """See :class:`Memory`."""
        slot = self._free_slot()
        sums = np.zeros((_N_BLOCKS, 3))
        self._workers.run(
            lambda b, first, last: store_pair(s, y, self._rows, slot, self._slots + slot, first, last, sums[b]),
            self._blocks,
        )
        if self._remember(slot, *sums.sum(axis=0).tolist()):
            self._pending = slot

    def direction(self, gradient: Floats) -> Floats:
        """See :class:`Memory`."""
        if not self._order:
            return super().direction(gradient)
        newest = self._order[-1]
        sums = np.zeros((_N_BLOCKS, 2 * self._slots, 3))
        self._workers.run(
            lambda b, first, last: dot_rows(self._rows, gradient, newest, self._slots + newest, first, last, sums[b]),
            self._blocks,
        )
        products = sums.sum(axis=0)
        if self._pending == newest:
            self._know(newest, products[:, 1:])
            self._pending = -1
        coefficients, scale = self._two_loops(products[:, 0])
        out = np.empty_like(gradient)
        self._workers.run(
            lambda _, first, last: combine_rows(coefficients, self._rows, -scale, gradient, first, last, out),
            self._blocks,
        )
        return out

    def _gathered(self, free: Ints) -> Floats:
        return self._rows[:, free].astype(np.float64)


class SharedMemory(Memory):
    """Pairs of vectors (w, d): weights that every rank has, then the multipliers of its own instances."""

    def __init__(self, size: int, dimension: int, n_weights: int, communicator: Communicator) -> None:
        super().__init__(size, dimension, self._inner_products)
        self._n_weights, self._communicator = n_weights, communicator

    def largest(self, x: Floats) -> float:
        """See :class:`Memory`."""
        return largest_anywhere(self._communicator, largest(x))[0]

    def _inner_products(self, left: Floats, right: Floats) -> Floats:
        if self._communicator.size == 1:
            product: Floats = left @ right.T
            return product
        n = self._n_weights
        own: Floats = np.ascontiguousarray(left[:, n:] @ right[:, n:].T)
        self._communicator.add_up(own.reshape(-1))
        own += left[:, :n] @ right[:, :n].T
        return own
