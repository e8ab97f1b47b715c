"""Packed data in a file that is mapped into memory, not read: safetensors, with all arrays aligned.

What a pass over the data needs is in the file as the kernels want it, so opening takes no time and no memory of its
own. What only reads beliefs or makes other data out of it (views, observations) is left out.
"""

from __future__ import annotations

import json
import mmap
import tempfile
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from bactrian.arrays import Bools, Floats
from bactrian.engines.numba.layout import Layout
from bactrian.files import atomic_file
from bactrian.graphs.inputs import Inputs
from bactrian.graphs.packed import InstanceViews, PackedData
from bactrian.graphs.scores import EdgeType, StructuredScores, TiedTable

Arrays = dict[str, NDArray[Any]]

_DTYPES = {"F64": np.float64, "I64": np.int64, "I32": np.int32, "BOOL": np.bool_}
_LAYOUT = tuple(name for name in Layout._fields if name != "table_shared")
_FLAT = ("weights", "blocks", "hub_given", "hub_virtual", "hub_kind", "link_share", "cluster_index", "hub_index")


class MappedFile:
    """The arrays of a safetensors file, mapped into memory."""

    def __init__(self, path: Path) -> None:
        size = path.stat().st_size
        with path.open("rb") as file:
            head = int.from_bytes(file.read(8), "little")
            if not 0 < head <= size - 8:
                raise ValueError(f"{path} is damaged or no file of packed data")
            try:
                header = json.loads(file.read(head))
            except ValueError:
                raise ValueError(f"{path} is damaged or no file of packed data") from None
            # A private map: arrays that can be written to, as those in memory can, and pages that are never written.
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        self.metadata: dict[str, str] = header.pop("__metadata__", {})
        self.arrays: Arrays = {}
        for name, entry in header.items():
            dtype = np.dtype(_DTYPES[entry["dtype"]])
            first, last = entry["data_offsets"]
            count = int(np.prod(entry["shape"]))
            if 8 + head + last > size or last - first != count * dtype.itemsize:
                raise ValueError(f"{path} is truncated: {name} reaches beyond its end")
            self.arrays[name] = np.frombuffer(self._map, dtype, count, 8 + head + first).reshape(entry["shape"])

    def release(self) -> None:
        """Let the system have the memory of all pages."""
        self._map.madvise(mmap.MADV_DONTNEED)


def write_packed(path: Path, data: PackedData) -> None:
    """Write packed data of structured graphs, all but its observed features, in one step."""
    scores = data.scores
    if not isinstance(scores, StructuredScores):
        raise TypeError("only GraphData can be packed into files; models made by hand are learned from in memory")
    assert data.hub_truth is not None
    described: dict[str, Any] = {
        "table_shared": data.layout.table_shared,
        "n_labels": scores.n_labels,
        "inputs": scores.inputs.description(),
        "types": [
            {"tying": kind.table.tying, "inputs": None if kind.inputs is None else kind.inputs.description()}
            for kind in scores.types
        ],
    }
    arrays: Arrays = {f"layout.{name}": getattr(data.layout, name) for name in _LAYOUT}
    arrays |= {name: getattr(data, name) for name in _FLAT}
    arrays |= {"link_edge": data.link_edge, "hub_truth": data.hub_truth}
    arrays |= {f"inputs.{name}": array for name, array in scores.inputs.arrays().items()}
    for t, kind in enumerate(scores.types):
        arrays[f"types.{t}.rows"] = kind.rows
        if kind.inputs is not None:
            arrays |= {f"types.{t}.{name}": array for name, array in kind.inputs.arrays().items()}
    plain = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    with atomic_file(path) as stream:
        stream.write(save(plain, {"packed": json.dumps(described)}))


def read_packed(file: MappedFile, active: Bools | None) -> PackedData:
    """Packed data whose arrays are those of the file."""
    described = json.loads(file.metadata["packed"])
    arrays = file.arrays
    layout = Layout(
        **{name: arrays[f"layout.{name}"] for name in _LAYOUT},
        table_shared=int(described["table_shared"]),
    )
    n_labels = int(described["n_labels"])
    types = []
    for t, kind in enumerate(described["types"]):
        inputs = None if kind["inputs"] is None else Inputs.of_arrays(kind["inputs"], _under(arrays, f"types.{t}."))
        types.append(EdgeType(TiedTable.make(kind["tying"], n_labels), inputs, arrays[f"types.{t}.rows"]))
    inputs = Inputs.of_arrays(described["inputs"], _under(arrays, "inputs."))
    flat: dict[str, Any] = {name: arrays[name] for name in _FLAT}
    return PackedData(
        layout=layout,
        scores=StructuredScores(inputs, n_labels, tuple(types), active),
        **flat,
        link_edge=arrays["link_edge"],
        views=InstanceViews(),
        empirical=None,
        hub_truth=arrays["hub_truth"],
    )


def _under(arrays: Arrays, prefix: str) -> Arrays:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


# --- where the arrays of a pass live ---

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
