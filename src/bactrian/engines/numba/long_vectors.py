"""Arithmetic on long vectors in single passes over memory, one block a call: what is left of an optimiser's work.

Vectors may be kept in single precision; sums are always in double.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bactrian.arrays import Floats
from bactrian.compiling import njit
from bactrian.engines.numba.arithmetic import FAST_MATH

#: Entries of a vector that fit into the nearest cache together with those of another.
_TILE = 1024


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST_MATH)
def _dot(row: NDArray[Any], vector: Floats, count: int) -> float:
    total = 0.0
    for i in range(count):
        total += np.float64(row[i]) * vector[i]
    return total


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST_MATH)
def dot_rows(rows: NDArray[Any], vector: Floats, newest: int, other: int, first: int, last: int, out: Floats) -> None:
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


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST_MATH)
def _add_one(total: Floats, row: NDArray[Any], c: float, count: int) -> None:
    for i in range(count):
        total[i] += c * np.float64(row[i])


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST_MATH)
def combine_rows(
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


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST_MATH)
def store_pair(s: Floats, y: Floats, rows: NDArray[Any], s_row: int, y_row: int, first: int, last: int, out: Floats
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
