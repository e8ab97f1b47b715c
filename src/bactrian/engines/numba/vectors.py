"""Vectors in arrays: arithmetic on n successive entries, where messages are passed in linear space.

An array comes with the place of its first entry, since slices cost more than so short a loop, and functions of several
arrays have many arguments. Places are unsigned within loops: an index that might be negative would be looked at for
each entry, and keeps loops from being vectorised.

A kernel that is given a tuple as ``states`` is compiled for hubs that all have as many states as it is long, and its
loops over them are unrolled; with ``()`` for any: :func:`place` and :func:`size_of` are what differs.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from bactrian.arrays import Floats, Ints
from bactrian.compiling import COMPILED, njit
from bactrian.engines.numba.arithmetic import CAREFUL, FAST_MATH

#: Its length is the number of states of all hubs; empty where they differ.
States = tuple[int, ...]
#: Of an index that is never negative.
unsigned: Any = np.uint64 if COMPILED else int
ONE, TWO, THREE, FOUR = unsigned(1), unsigned(2), unsigned(3), unsigned(4)
#: Columns from which rows of a matrix are added up as vectors.
_MANY = unsigned(12)


@njit(forceinline=True)
def place(offsets: Ints, i: int, states: States) -> int:
    """``offsets[i]``, which is i times the number of states where that is known."""
    return i * len(states) if len(states) > 0 else offsets[i]


@njit(forceinline=True)
def size_of(offsets: Ints, i: int, states: States) -> int:
    """The number of states that item ``i`` has."""
    return len(states) if len(states) > 0 else offsets[i + 1] - offsets[i]


@njit(fastmath=FAST_MATH, forceinline=True)
def pair_message(
    entries: Floats,
    turned: int,
    start: int,
    axis: int,
    source: Floats,
    at: int,
    target: Floats,
    to: int,
    m: int,
    n: int,
) -> None:
    """m = E'u: target[to:] from source[at:]; E begins at ``start`` and is (m, n) for ``axis`` 1, (n, m) for 0.

    E's transpose begins ``turned`` further, unless that is 0.
    """
    start, at, to, m, n = unsigned(start), unsigned(at), unsigned(to), unsigned(m), unsigned(n)
    if axis == 0 and turned == 0:
        for r in range(n):
            total, row = 0.0, start + r * m
            for c in range(m):
                total += entries[row + c] * source[at + c]
            target[to + r] = total
        return
    start, last = start if axis == 1 else start + unsigned(turned), n - ONE
    if n < _MANY:  # four columns at a time, the last of them as often as needed
        for block in range((n + THREE) // FOUR):
            a = FOUR * block
            b, c, d = min(a + ONE, last), min(a + TWO, last), min(a + THREE, last)
            w = x = y = z = 0.0
            for r in range(m):
                factor, row = source[at + r], start + r * n
                w += factor * entries[row + a]
                x += factor * entries[row + b]
                y += factor * entries[row + c]
                z += factor * entries[row + d]
            target[to + a], target[to + b], target[to + c], target[to + d] = w, x, y, z
        return
    for c in range(n):
        target[to + c] = 0.0
    for r in range(m // FOUR):  # four rows at a time
        p, i = start + FOUR * r * n, at + FOUR * r
        q, s, t = p + n, p + n + n, p + n + n + n
        w, x, y, z = source[i], source[i + ONE], source[i + TWO], source[i + THREE]
        for c in range(n):
            target[to + c] += w * entries[p + c] + x * entries[q + c] + y * entries[s + c] + z * entries[t + c]
    for r in range(m - m % FOUR, m):
        factor, row = source[at + r], start + r * n
        for c in range(n):
            target[to + c] += factor * entries[row + c]


@njit()
def smallest(source: Floats, at: int, n: int) -> float:
    """min(source[at:])."""
    found, at = math.inf, unsigned(at)
    for k in range(unsigned(n)):
        found = source[at + k] if source[at + k] < found else found
    return found


@njit(fastmath=CAREFUL, forceinline=True)
def copy_scaled(target: Floats, to: int, source: Floats, at: int, factor: float, n: int) -> None:
    """target[to:] = factor * source[at:]."""
    to, at = unsigned(to), unsigned(at)
    for k in range(unsigned(n)):
        target[to + k] = factor * source[at + k]
