"""Sums of table rows, one per context and observed row: the scores of conditionals, and what they leave in the tables.

Each observed row r is in one state of every context c. The table of a context has, for each of its states, the scores
that it adds to some columns; columns come in segments of neighbours. Forward,

    out[r, columns of c] += table[c, state of c in r, :]        for all c

and backward the same sum transposed. ``place[r, c]`` is where that row of the table begins.
"""

from __future__ import annotations

from typing import NamedTuple

from bactrian.arrays import Floats, Ints
from bactrian.compiling import njit

#: Rows gone through together in the transposed sum, so that they stay in the cache for all contexts.
_TILE = 64


class Segments(NamedTuple):
    """Columns to which each context adds."""

    pointer: Ints  #: (n_contexts + 1,) range of a context's segments
    column: Ints  #: (n_segments,) first column
    length: Ints  #: (n_segments,)


@njit(cache=True, nogil=True, error_model="numpy")
def add_rows(segments: Segments, place: Ints, table: Floats, out: Floats, first: int, last: int) -> None:
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


@njit(cache=True, nogil=True, error_model="numpy")
def collect_rows(segments: Segments, place: Ints, counts: Floats, table: Floats, first: int, last: int) -> None:
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
