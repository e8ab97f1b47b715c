"""Columns of named features: of a vocabulary that is known, and of one that grows with what it meets."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from itertools import count, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bactrian.engines.numba.names import fill_slots, find_names

Ints = NDArray[np.int64]
Bundle = tuple[str, ...]
#: Waits for columns.
Wait = Callable[[], Ints]

#: Strings that are taken at a time, few enough to stay near the processor from one pass to the next.
AT_ONCE = 8192


class Names:
    """Columns of names that are known; any other name has column -1."""

    def __init__(self, names: Sequence[str]) -> None:
        self._text = _bytes_of(list(names))
        if self._text.size >= 2**31:
            raise ValueError(f"the names of the features have {self._text.size} bytes; expected less than 2**31")
        self._slots = np.full((1 << (2 * len(names)).bit_length(), 2), -1, dtype=np.int32)
        if not fill_slots(self._text, len(names), self._slots):
            raise ValueError("a feature name occurs twice in the vocabulary")

    def look_up(self, names: Iterable[str], pool: Executor) -> Wait:
        """Column of each name, once it is waited for: found in the pool while the next names are put together."""
        begun = []
        rest = iter(names)
        while some := list(islice(rest, AT_ONCE)):
            try:
                wanted = _bytes_of(some)
            except TypeError:
                _check_strings(some)
                raise
            begun.append(pool.submit(self._found, wanted, len(some)))
        return lambda: np.concatenate([np.zeros(0, dtype=np.int64), *(one.result() for one in begun)])

    def _found(self, wanted: NDArray[np.uint8], n_names: int) -> Ints:
        columns = np.empty(n_names, dtype=np.int64)
        find_names(wanted, self._text, self._slots, columns)
        return columns

    def number(self, bundles: list[Bundle]) -> tuple[Ints, list[Bundle]]:
        """Number of each bundle in the order in which they came, and the bundle of each number.

        Told apart as objects: to compare them would cost nearly what it costs to look into them.
        """
        return _by_object(bundles)


class GrowingNames:
    """Names that are new get the next column, and equal bundles the same number."""

    def __init__(self) -> None:
        self.columns: dict[str, int] = defaultdict(count().__next__)

    def look_up(self, names: Iterable[str], pool: Executor) -> Wait:
        """Column of each name; there is nothing to wait for."""
        names = list(names)
        _check_strings(names)
        columns = np.fromiter(map(self.columns.__getitem__, names), np.int64, len(names))
        return lambda: columns

    def number(self, bundles: list[Bundle]) -> tuple[Ints, list[Bundle]]:
        """Number of each bundle in the order in which they came, and the bundle of each number."""
        same, objects = _by_object(bundles)  # hashing a bundle hashes all its names: once for each object
        different: dict[Bundle, int] = defaultdict(count().__next__)
        try:
            numbers = np.fromiter(map(different.__getitem__, objects), np.int64, len(objects))
        except TypeError:  # one holds what has no hash: whoever looks into them will name it
            return same, objects
        return numbers[same], list(different)


class NoStringError(TypeError):
    """An entry that is no feature."""

    def __init__(self, entry: Any) -> None:
        super().__init__(f"features must be strings, or tuples of strings, found {entry!r}")
        self.entry = entry


def _bytes_of(names: list[str]) -> NDArray[np.uint8]:
    """The names one after the other, each with a zero byte behind it."""
    text = "\0".join(names).encode("utf-8", "surrogatepass") + b"\0" * bool(names)
    if text.count(0) != len(names):  # one has such a character: two bytes that stand for nothing else in UTF-8
        each = (name.encode("utf-8", "surrogatepass").replace(b"\0", b"\xc0\x80") for name in names)
        text = b"\0".join([*each, b""])
    return np.frombuffer(text, dtype=np.uint8)


def _check_strings(entries: list[Any]) -> None:
    if not set(map(type, entries)) <= {str}:
        for entry in entries:
            if not isinstance(entry, str):
                raise NoStringError(entry)


def _by_object(bundles: list[Bundle]) -> tuple[Ints, list[Bundle]]:
    identities = np.fromiter(map(id, bundles), np.int64, len(bundles))
    _, first, numbers = np.unique(identities, return_index=True, return_inverse=True)
    order = np.argsort(first)  # not by address, which differs from run to run
    rank = np.empty_like(order)
    rank[order] = np.arange(order.size)
    return rank[numbers], [bundles[place] for place in first[order].tolist()]
