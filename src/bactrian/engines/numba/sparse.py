"""Inputs: products of sparse rows that are never built, with label weights and of rows of tables.

``inputs`` has shape (n_rows, n_inputs) and ``weights`` (n_inputs, n_labels); the product of input features and
label tables is never materialised. Accumulators are float64 throughout, and a call works on one block of rows or
columns.

*Sums of table rows* are the scores of conditionals, and what they leave in the tables. Each observed row r is in one
state of every context c. The table of a context has, for each of its states, the scores that it adds to some columns;
columns come in segments of neighbours. Forward,

    out[r, columns of c] += table[c, state of c in r, :]        for all c

and backward the same sum transposed. ``place[r, c]`` is where that row of the table begins.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bactrian.arrays import Floats, Ints
from bactrian.compiling import kernel
from bactrian.engines.numba.arithmetic import FAST_MATH, FOUR, ONE, THREE, TWO, States, unsigned

#: Rows, or columns, of a sparse matrix: bounds of each, and indices and values of their entries.
Compressed = tuple[Ints, NDArray[np.int32], Floats]

#: Rows gone through together in the transposed sum, so that they stay in the cache for all contexts.
_TILE = 64


@kernel(fastmath=FAST_MATH)
def rows_times_weights(
    inputs: Compressed, weights: Floats, out: Floats, labels: int, first: int, last: int, states: States
) -> None:
    """``out[first:last] = inputs[first:last] @ weights`` for row-compressed inputs, weights and sums by ``labels``.

    With column-compressed inputs in place of row-compressed ones and ``weights`` an array over rows, the same loop
    accumulates the transposed product for inputs ``first:last``. ``states``: as many as labels, or () for any number.
    """
    (pointer, index, value), n = inputs, unsigned(len(states) if len(states) > 0 else labels)
    for row in range(unsigned(first), unsigned(last)):
        begin, end, to = unsigned(pointer[row]), unsigned(pointer[row + ONE]), row * n
        for k in range(n):
            out[to + k] = 0.0
        for group in range((end - begin) // FOUR):
            p = begin + FOUR * group
            q, r, s = p + ONE, p + TWO, p + THREE
            a, b, c, d = unsigned(index[p]) * n, unsigned(index[q]) * n, unsigned(index[r]) * n, unsigned(index[s]) * n
            w, x, y, z = value[p], value[q], value[r], value[s]
            for k in range(n):
                out[to + k] += w * weights[a + k] + x * weights[b + k] + y * weights[c + k] + z * weights[d + k]
        for p in range(end - (end - begin) % FOUR, end):
            w, a = value[p], unsigned(index[p]) * n
            for k in range(n):
                out[to + k] += w * weights[a + k]


class Segments(NamedTuple):
    """Columns to which each context adds."""

    pointer: Ints  #: (n_contexts + 1,) range of a context's segments
    column: Ints  #: (n_segments,) first column
    length: Ints  #: (n_segments,)


@kernel()
def add_table_rows(segments: Segments, place: Ints, table: Floats, out: Floats, first: int, last: int) -> None:
    """The forward sum for rows ``first`` to ``last``."""
    pointer, column, length = segments.pointer, segments.column, segments.length
    for r in range(first, last):
        row = out[r]
        row[:] = 0.0
        for c in range(pointer.size - 1):
            at = place[r, c]
            for g in range(pointer[c], pointer[c + 1]):
                to = column[g]
                for j in range(length[g]):
                    row[to + j] += table[at + j]
                at += length[g]


@kernel()
def collect_table_rows(segments: Segments, place: Ints, counts: Floats, table: Floats, first: int, last: int) -> None:
    """The transposed sum for contexts ``first`` to ``last``, whose parts of the table nothing else touches."""
    pointer, column, length = segments.pointer, segments.column, segments.length
    for tile in range(0, place.shape[0], _TILE):
        end = min(tile + _TILE, place.shape[0])
        for c in range(first, last):
            for r in range(tile, end):
                row = counts[r]
                at = place[r, c]
                for g in range(pointer[c], pointer[c + 1]):
                    to = column[g]
                    for j in range(length[g]):
                        table[at + j] += row[to + j]
                    at += length[g]
