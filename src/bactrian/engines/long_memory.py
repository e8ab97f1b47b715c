"""What L-BFGS keeps of many weights: pairs in single precision, read once per pass, in blocks for threads."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bactrian.arrays import Floats, Ints
from bactrian.camel.accuracy import SCHEDULE
from bactrian.compiling import kernel, njit
from bactrian.engines.numba.arithmetic import FAST_MATH
from bactrian.parallel.threads import Workers
from bactrian.solvers.lbfgs import PAIRS, Memory

#: Weights from which passes over the pairs outweigh all else, and how many pairs are kept of so many.
_MANY, _FEW_PAIRS = 100_000, 7
#: The same for exact likelihoods: weights from which pairs are kept in single precision, and from which there are few.
_EXACT_LONG, _EXACT_MANY = 10_000, 300_000
#: Blocks for threads: fixed, so that results do not depend on their number.
_N_BLOCKS = 16
#: Entries of a vector that fit into the nearest cache together with those of another.
_TILE = 1024


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
        slot = self._free_slot()
        sums = np.zeros((_N_BLOCKS, 3))
        self._workers.run(
            lambda b, first, last: _store_pair(s, y, self._rows, slot, self._slots + slot, first, last, sums[b]),
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
            lambda b, first, last: _dot_rows(self._rows, gradient, newest, self._slots + newest, first, last, sums[b]),
            self._blocks,
        )
        products = sums.sum(axis=0)
        if self._pending == newest:
            self._know(newest, products[:, 1:])
            self._pending = -1
        coefficients, scale = self._coefficients(products[:, 0])
        out = np.empty_like(gradient)
        self._workers.run(
            lambda _, first, last: _combine_rows(coefficients, self._rows, -scale, gradient, first, last, out),
            self._blocks,
        )
        return out

    def _gathered(self, free: Ints) -> Floats:
        return self._rows[:, free].astype(np.float64)


@njit(fastmath=FAST_MATH)
def _dot(row: NDArray[Any], vector: Floats, count: int) -> float:
    total = 0.0
    for i in range(count):
        total += np.float64(row[i]) * vector[i]
    return total


@kernel(fastmath=FAST_MATH)
def _dot_rows(rows: NDArray[Any], vector: Floats, newest: int, other: int, first: int, last: int, out: Floats) -> None:
    """Inner products of all rows with ``vector`` and with rows ``newest`` and ``other``, on first:last.

    ``out`` has shape (n_rows, 3). The three together read the rows from memory once.
    """
    out[:] = 0.0
    right = np.empty((3, _TILE))
    for tile in range(first, last, _TILE):
        count = min(_TILE, last - tile)
        for i in range(count):
            right[0, i] = vector[tile + i]
            right[1, i] = rows[newest, tile + i]
            right[2, i] = rows[other, tile + i]
        for r in range(rows.shape[0]):
            row = rows[r, tile : tile + count]
            for c in range(3):
                out[r, c] += _dot(row, right[c], count)


@njit(fastmath=FAST_MATH)
def _add_one(total: Floats, row: NDArray[Any], c: float, count: int) -> None:
    for i in range(count):
        total[i] += c * np.float64(row[i])


@kernel(fastmath=FAST_MATH)
def _combine_rows(
    coefficients: Floats, rows: NDArray[Any], factor: float, vector: Floats, first: int, last: int, out: Floats
) -> None:
    """out = factor * vector + coefficients @ rows, on first:last."""
    for tile in range(first, last, _TILE):
        count = min(_TILE, last - tile)
        total, given = out[tile : tile + count], vector[tile : tile + count]
        for i in range(count):
            total[i] = factor * given[i]
        for r in range(rows.shape[0]):
            _add_one(total, rows[r, tile : tile + count], coefficients[r], count)


@kernel(fastmath=FAST_MATH)
def _store_pair(s: Floats, y: Floats, rows: NDArray[Any], s_row: int, y_row: int, first: int, last: int, out: Floats
               ) -> None:  # fmt: skip
    """Put s and y into two rows; out = (s @ s, s @ y, y @ y), on first:last."""
    ss, sy, yy = 0.0, 0.0, 0.0
    for i in range(first, last):
        ss += s[i] * s[i]
        sy += s[i] * y[i]
        yy += y[i] * y[i]
        rows[s_row, i] = s[i]
        rows[y_row, i] = y[i]
    out[0], out[1], out[2] = ss, sy, yy
