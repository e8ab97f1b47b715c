"""Rows of different lengths in two flat arrays: the scopes of many clusters without a Python object for each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bactrian.arrays import Bools, Ints


def pointer(counts: Sequence[int] | NDArray[np.integer | np.bool_]) -> Ints:
    """Bounds of consecutive runs of such lengths, from 0."""
    bounds = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, dtype=np.int64, out=bounds[1:])
    return bounds


def ranges(starts: Ints, lengths: Ints) -> Ints:
    """``starts[0], starts[0] + 1, ...`` for ``lengths[0]`` entries, then those of the next."""
    bounds = pointer(lengths)
    return np.repeat(starts - bounds[:-1], lengths) + np.arange(bounds[-1])


class Ragged(NamedTuple):
    """Row i is ``values[bounds[i] : bounds[i + 1]]``."""

    bounds: Ints
    values: Ints

    @staticmethod
    def of(rows: Sequence[Sequence[int]]) -> Ragged:
        """Rows of integers."""
        return Ragged(pointer([len(row) for row in rows]), np.array(list(chain.from_iterable(rows)), dtype=np.int64))

    @staticmethod
    def singles(values: Ints) -> Ragged:
        """One row per value."""
        return Ragged(np.arange(values.size + 1), values)

    @staticmethod
    def joined(parts: Iterable[Ragged], shifts: Sequence[int] | Ints) -> Ragged:
        """The rows of all parts, each part's values shifted."""
        rows = list(parts)
        return Ragged(
            pointer(np.concatenate([np.zeros(0, dtype=np.int64), *(part.lengths for part in rows)])),
            shifted([part.values for part in rows], shifts),
        )

    @property
    def lengths(self) -> Ints:
        """Length of each row."""
        return self.bounds[1:] - self.bounds[:-1]  # np.diff takes five times as long for a few rows

    @property
    def row_of_value(self) -> Ints:
        """Row of each value."""
        return np.repeat(np.arange(self.bounds.size - 1), self.lengths)

    @property
    def places(self) -> Ints:
        """Place of each value in its row."""
        return np.arange(self.values.size) - np.repeat(self.bounds[:-1], self.lengths)

    def take(self, index: Ints) -> Ragged:
        """Some of the rows."""
        lengths = self.lengths[index]
        return Ragged(pointer(lengths), self.values[ranges(self.bounds[index], lengths)])

    def tuples(self, first: int, last: int, shift: int = 0) -> list[tuple[int, ...]]:
        """Rows ``first`` to ``last`` with a shift taken from every value."""
        bounds = self.bounds[first : last + 1].tolist()
        values = (self.values[bounds[0] : bounds[-1]] - shift).tolist()
        return [tuple(values[a - bounds[0] : b - bounds[0]]) for a, b in pairwise(bounds)]

    def products(self, factors: Ints) -> Ints:
        """Product of ``factors[value]`` along each row, none of them empty; 2^62 where it would be more."""
        chosen, starts = factors[self.values], self.bounds[:-1]
        exact: Ints = np.multiply.reduceat(chosen, starts)
        rough = np.multiply.reduceat(chosen.astype(np.float64), starts)
        return np.where(rough < 2.0**62, exact, 2**62)

    def strides(self, factors: Ints) -> Ints:
        """Product of ``factors[value]`` over the values that come later in the row."""
        found = np.ones(self.values.size, dtype=np.int64)
        lengths, ends = self.lengths, self.bounds[1:]
        for place in range(2, int(lengths.max(initial=0)) + 1):
            at = ends[lengths >= place] - place
            found[at] = found[at + 1] * factors[self.values[at + 1]]
        return found

    def kinds(self) -> Ints:
        """A number for each row, from 0, the same for equal rows."""
        lengths, starts = self.lengths, self.bounds[:-1]
        found = numbered(lengths)
        base = int(self.values.max(initial=0)) + 1
        for place in range(int(lengths.max(initial=0))):
            long = lengths > place
            key = found * (base + 1)
            key[long] += 1 + self.values[starts[long] + place]
            found = numbered(key)
        return found


def kinds_of_rows(columns: Iterable[Ints | Bools], n_rows: int) -> Ints:
    """A number for each row, from 0, the same for equal rows, whose columns are not negative.

    Columns are digits of a key, numbered anew where it would outgrow 64 bits.
    """
    found, capacity = np.zeros(n_rows, dtype=np.int64), 1
    for column in columns:
        radix = int(column.max(initial=0)) + 1
        if capacity * radix >= 1 << 62:
            found = numbered(found)
            capacity = int(found.max(initial=0)) + 1
        found, capacity = found * radix + column, capacity * radix
    return numbered(found)


def numbered(keys: Ints) -> Ints:
    """Numbers from 0 for keys that are not negative: the same for equal keys, in the order of the keys."""
    largest = int(keys.max(initial=0))
    if largest > 8 * keys.size + 1024:
        return np.unique(keys, return_inverse=True)[1].astype(np.int64)
    seen = np.zeros(largest + 1, dtype=np.int64)
    seen[keys] = 1
    return (np.cumsum(seen) - 1)[keys]


def first_of(kinds: Ints) -> Ints:
    """Where each of the numbers that :func:`numbered` gave comes first."""
    found = np.zeros(int(kinds.max(initial=-1)) + 1, dtype=np.int64)
    found[kinds[::-1]] = np.arange(kinds.size)[::-1]
    return found


def shifted(parts: Sequence[Ints], shifts: Sequence[int] | Ints) -> Ints:
    """Parts, each with its shift added, one after the other."""
    joined = np.concatenate([np.zeros(0, dtype=np.int64), *parts])
    return joined + np.repeat(np.asarray(shifts, dtype=np.int64)[: len(parts)], [part.size for part in parts])
