"""A hash table of names: many are looked up a call, in one run of bytes, without an object for each.

Names lie one after the other in ``text``, each with a zero byte behind it. Python's dictionary of as many names costs
several visits to distant memory a look-up, which is what most of its time goes into; here it is one or two.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bactrian.arrays import Ints
from bactrian.compiling import njit, setup

Bytes = NDArray[np.uint8]
Slots = NDArray[np.int32]

_BASIS, _PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)  # Fowler-Noll-Vo 1a
_FOLD = np.uint64(29)


@setup
def fill_slots(text: Bytes, n_names: int, slots: Slots) -> bool:
    """Enter the names that lie in ``text``; False where one is there twice.

    ``slots`` has a number and a start in ``text`` a row; it holds -1 everywhere, and a power of two of rows, more than
    there are names.
    """
    last = slots.shape[0] - 1
    start = 0
    for number in range(n_names):
        stop, slot = _hashed(text, start, np.uint64(last))
        while slots[slot, 0] >= 0:
            if _same(text, start, stop, text, slots[slot, 1]):
                return False
            slot = (slot + 1) & last
        slots[slot, 0], slots[slot, 1] = number, start
        start = stop + 1
    return True


@setup
def find_names(wanted: Bytes, text: Bytes, slots: Slots, out: Ints) -> None:
    """Number of each name in ``wanted``, each with a zero byte behind it, or -1."""
    last = slots.shape[0] - 1
    bounds, slot = np.zeros(out.size + 1, dtype=np.int64), np.empty(out.size, dtype=np.int64)
    for name in range(out.size):
        stop, slot[name] = _hashed(wanted, bounds[name], np.uint64(last))
        bounds[name + 1] = stop + 1
    for name in range(out.size):  # in a loop of its own, where the processor waits for many slots at once
        out[name] = slots[slot[name], 0]
    for name in range(out.size):
        here = slot[name]
        while slots[here, 0] >= 0 and not _same(wanted, bounds[name], bounds[name + 1] - 1, text, slots[here, 1]):
            here = (here + 1) & last
        out[name] = slots[here, 0]


@njit(error_model="python")
def _hashed(text: Bytes, start: int, mask: np.uint64) -> tuple[int, np.int64]:
    """Where the name ends, and its first slot."""
    value, place = _BASIS, start
    while text[place] != 0:
        value = (value ^ np.uint64(text[place])) * _PRIME
        place += 1
    return place, np.int64((value ^ (value >> _FOLD)) & mask)


@njit(error_model="python")
def _same(wanted: Bytes, start: int, stop: int, text: Bytes, at: int) -> bool:
    while wanted[start] == text[at]:
        if start == stop:  # the zero byte is compared too, so that no name is taken for the start of a longer one
            return True
        start += 1
        at += 1
    return False
