"""What L-BFGS keeps of many weights: pairs in single precision, read once per pass, in blocks for threads."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bactrian.arrays import Floats, Ints
from bactrian.camel.accuracy import SCHEDULE
from bactrian.parallel.threads import Workers
from bactrian.solvers.lbfgs import PAIRS, Memory

#: Weights from which passes over the pairs outweigh all else, and how many pairs are kept of so many.
_MANY, _FEW_PAIRS = 100_000, 7
#: The same for exact likelihoods: weights from which pairs are kept in single precision, and from which there are few.
_EXACT_LONG, _EXACT_MANY = 10_000, 300_000
#: Blocks for threads: fixed, so that results do not depend on their number.
_N_BLOCKS = 16
#: Entries of all rows that fit into a cache in double precision.
_TILE = 4096


def make_memory(dimension: int, workers: Workers, *, exact: bool = False) -> Memory:
    """The memory for problems of that size; an exact likelihood is worth more pairs."""
    many, long, pairs = (_EXACT_MANY, _EXACT_LONG, SCHEDULE.exact_memory) if exact else (_MANY, _MANY, PAIRS)
    pairs = pairs if dimension < many else _FEW_PAIRS
    return Memory(pairs, dimension) if dimension < long else LongMemory(pairs, dimension, workers)


class LongMemory(Memory):
    """Pairs (s, y) kept in single precision; each iteration reads them twice, for inner products and the direction.

    The inner products are those of the rounded pairs, so that directions stay consistent with what is stored, and
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
        slot, sums = self._free_slot(), np.zeros((_N_BLOCKS, 3))

        def store(b: int, first: int, last: int) -> None:
            own, change = s[first:last], y[first:last]
            self._rows[slot, first:last], self._rows[self._slots + slot, first:last] = own, change
            sums[b] = own @ own, own @ change, change @ change

        self._workers.run(store, self._blocks)
        if self._remember(slot, *sums.sum(axis=0).tolist()):
            self._pending = slot

    def _tiles(self, first: int, last: int) -> Iterator[tuple[slice, Floats]]:
        """Stretches of a block, and all rows there in double precision."""
        held = np.empty((self._rows.shape[0], _TILE))
        for at in range(first, last, _TILE):
            place = slice(at, min(at + _TILE, last))
            rows = held[:, : place.stop - at]
            rows[:] = self._rows[:, place]
            yield place, rows

    def direction(self, gradient: Floats) -> Floats:
        """See :class:`Memory`."""
        if not self._order:
            return super().direction(gradient)
        newest, other = self._order[-1], self._slots + self._order[-1]
        sums = np.zeros((_N_BLOCKS, self._rows.shape[0], 3))

        def multiply(b: int, first: int, last: int) -> None:
            for place, rows in self._tiles(first, last):
                sums[b] += rows @ np.stack([gradient[place], rows[newest], rows[other]], axis=1)

        self._workers.run(multiply, self._blocks)
        products = sums.sum(axis=0)
        if self._pending == newest:
            self._know(newest, products[:, 1:])
            self._pending = -1
        coefficients, scale = self._coefficients(products[:, 0])
        out = np.empty_like(gradient)

        def combine(_: int, first: int, last: int) -> None:
            for place, rows in self._tiles(first, last):
                out[place] = coefficients @ rows - scale * gradient[place]

        self._workers.run(combine, self._blocks)
        return out

    def _gathered(self, free: Ints) -> Floats:
        return self._rows[:, free].astype(np.float64)
