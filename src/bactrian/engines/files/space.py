"""Where the arrays of a pass live: in memory, or, for parts of data that exceed it, in a file and in shared buffers."""

from __future__ import annotations

import mmap
import tempfile
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from bactrian.arrays import Floats

Array = TypeVar("Array", bound=NDArray[Any])
_ALIGNMENT = 64


class Space:
    """Arrays in memory."""

    def zeros(self, size: int) -> Floats:
        """An array that keeps what is written to it."""
        return np.zeros(size)

    def keep(self, array: Array) -> Array:
        """An array that will not change."""
        return array

    def scratch(self, size: int) -> Floats:
        """An array whose contents matter within one pass alone."""
        return np.zeros(size)


class Buffers:
    """Scratch that all parts share, since only one of them is at work at a time."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity  # of each buffer; memory is taken as it is written to
        self._buffers: list[Floats] = []

    def get(self, index: int, size: int) -> Floats:
        """The first ``size`` entries of the buffer of that number."""
        while len(self._buffers) <= index:
            self._buffers.append(np.empty(self._capacity))
        return self._buffers[index][:size]


class FileSpace(Space):
    """Kept arrays in a nameless file of a folder, mapped into memory; scratch from shared buffers.

    The file vanishes with the process, however that ends. Pages of it are in memory while they are used;
    :meth:`release` gives them back.
    """

    def __init__(self, folder: Path | None, capacity: int, buffers: Buffers) -> None:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.truncate(capacity)  # a hole until it is written to
            self._map = mmap.mmap(file.fileno(), capacity)
        self._capacity, self._used = capacity, 0
        self._buffers, self._n_scratch = buffers, 0

    def _take(self, size: int, dtype: Any) -> NDArray[Any]:
        start = -(-self._used // _ALIGNMENT) * _ALIGNMENT
        self._used = start + size * np.dtype(dtype).itemsize
        if self._used > self._capacity:
            raise AssertionError(f"the file has room for {self._capacity} bytes, wanted {self._used}")
        return np.frombuffer(self._map, dtype, size, start)

    def zeros(self, size: int) -> Floats:
        """See :class:`Space`."""
        return self._take(size, np.float64)

    def keep(self, array: Array) -> Array:
        """See :class:`Space`."""
        kept: Any = self._take(array.size, array.dtype)
        kept[:] = array
        return kept  # type: ignore[no-any-return]

    def scratch(self, size: int) -> Floats:
        """See :class:`Space`."""
        self._n_scratch += 1
        return self._buffers.get(self._n_scratch - 1, size)

    def release(self) -> None:
        """Let the system have the memory of all pages; what was written stays in the file."""
        self._map.madvise(mmap.MADV_DONTNEED)
