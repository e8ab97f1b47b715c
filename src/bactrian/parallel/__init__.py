"""Learning on many machines: ranks that hold parts of the data and add up what they find.

The one operation that ranks need from each other is the sum of an array over all of them. Data is cut by instances.
Weights and the optimiser's memory are the same on every rank, multipliers belong to an instance and never move, so that
an evaluation of the objective takes a single all-reduce: of the gradient, with the value and a few other numbers behind
it. All ranks get the same sums bit for bit, hence take the same decisions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from bactrian.arrays import Floats


class Communicator(Protocol):
    """Joins ``size`` ranks, of which this one is ``rank``."""

    @property
    def rank(self) -> int:
        """Number of this rank, from 0."""

    @property
    def size(self) -> int:
        """Number of ranks."""

    def add_up(self, values: Floats) -> None:
        """Replace ``values`` by their sum over all ranks, the same bits on each; every rank must call it."""


class Alone:
    """A single rank."""

    rank = 0
    size = 1

    def add_up(self, values: Floats) -> None:
        """See :class:`Communicator`; the sum over one rank is there already."""


def total(communicator: Communicator, value: float) -> float:
    """Sum of a number over all ranks."""
    if communicator.size == 1:
        return value
    values = np.array([value])
    communicator.add_up(values)
    return float(values[0])


def largest_anywhere(communicator: Communicator, *values: float) -> tuple[float, ...]:
    """Largest of each number over all ranks; NaN where some rank has NaN."""
    if communicator.size == 1:
        return values
    slots = np.zeros((communicator.size, len(values)))
    slots[communicator.rank] = values
    communicator.add_up(slots.reshape(-1))
    return tuple(slots.max(axis=0).tolist())


def anywhere(communicator: Communicator, *flags: bool) -> tuple[bool, ...]:
    """Whether each flag is up on some rank."""
    return tuple(bool(value) for value in largest_anywhere(communicator, *map(float, flags)))


def gather(communicator: Communicator, values: Floats) -> Floats:
    """The arrays of all ranks, one after the other."""
    if communicator.size == 1:
        return values
    sizes = np.zeros(communicator.size)
    sizes[communicator.rank] = values.size
    communicator.add_up(sizes)
    bounds = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    everything = np.zeros(bounds[-1])
    everything[bounds[communicator.rank] : bounds[communicator.rank + 1]] = values
    communicator.add_up(everything)
    return everything


class Signals:
    """Whether this rank wants to stop, which every rank should know; it travels with messages that are sent anyway."""

    def __init__(self, is_late: Callable[[], bool]) -> None:
        self.stop = False  #: to be set on any rank
        self.is_late = is_late  #: whether this rank's time is up
        #: Whether some rank wanted to stop, and whether its time was up, at the last message: the same on all ranks.
        self.seen = False, False

    def own(self) -> tuple[bool, bool]:
        """Whether this rank wants to stop, and whether its time is up."""
        return self.stop, self.is_late()


def combine(
    communicator: Communicator,
    vector: Floats,
    sums: tuple[float, ...],
    maxima: tuple[float, ...],
    signals: Signals | None = None,
) -> tuple[Floats, tuple[float, ...], tuple[float, ...]]:
    """Sum of a vector, sums of numbers and largest of others, NaN where there is one, over all ranks in one message."""
    if communicator.size == 1:
        return vector, sums, maxima
    # Every rank has slots of its own for what is not a sum: adding zeros to them is passing them on.
    slots = np.zeros((communicator.size, len(maxima)))
    slots[communicator.rank] = maxima
    own = (False, False) if signals is None else signals.own()
    message = np.concatenate([vector, sums, own, slots.reshape(-1)])
    communicator.add_up(message)
    found, numbers, seen, flat = np.split(message, np.cumsum([vector.size, len(sums), 2]))
    if signals is not None:
        signals.seen = bool(seen[0] > 0.0), bool(seen[1] > 0.0)
    return found, tuple(numbers.tolist()), tuple(flat.reshape(slots.shape).max(axis=0).tolist())
