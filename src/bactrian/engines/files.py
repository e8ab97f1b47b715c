"""Packed data in a folder: chunks of instances in files, to learn from more than fits into memory.

A file is mapped into memory, not read: safetensors, with all arrays aligned. What a pass over the data needs is there
as the kernels want it, so opening takes no time and no memory of its own. What only reads beliefs or makes other data
out of it (scopes, observations) is left out.

===================  ==================================================================================================
``pack.json``        format and version, number of weights, files with their sizes and checksums, its own; written last
``observed.safetensors``  sums over all chunks: observed features, and which weights are learned
``00000.safetensors``...  the chunks, in the form in which kernels read them
===================  ==================================================================================================
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from bactrian.arrays import Arrays, Bools, Floats
from bactrian.atomic_files import atomic_file
from bactrian.camel.entropy import Carving
from bactrian.camel.parts import Carve, Storage, store
from bactrian.engines.memory import Array, HostVectors, MemoryPart, Space
from bactrian.engines.numba.layout import Layout
from bactrian.engines.recession import is_unbounded
from bactrian.graphs.graph_data import GraphData
from bactrian.graphs.inputs import Inputs
from bactrian.graphs.packed import PackedData
from bactrian.graphs.packing import pack
from bactrian.graphs.scores import EdgeType, StructuredScores, TiedTable
from bactrian.graphs.structure import no_structure
from bactrian.parallel.threads import Context

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
                raise ValueError(f"{path} is damaged, or is not a file of packed data")
            try:
                header = json.loads(file.read(head))
            except ValueError:
                raise ValueError(f"{path} is damaged, or is not a file of packed data") from None
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
        """Give the memory of all pages back to the system."""
        _let_go(self._map)


def _let_go(mapped: mmap.mmap) -> None:
    """Give the memory of all pages back to the system, where it supports that (Windows does not)."""
    if hasattr(mmap, "MADV_DONTNEED"):
        mapped.madvise(mmap.MADV_DONTNEED)


def write_packed(path: Path, data: PackedData) -> None:
    """Write packed data of structured graphs, all but its observed features, in one step."""
    scores = data.scores
    if not isinstance(scores, StructuredScores):
        raise TypeError("only GraphData can be packed into files; learn from models made by hand in memory")
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
    layout = Layout(**{name: arrays[f"layout.{name}"] for name in _LAYOUT}, table_shared=int(described["table_shared"]))
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
        make_structure=no_structure,
        empirical=None,
        hub_truth=arrays["hub_truth"],
    )


def _under(arrays: Arrays, prefix: str) -> Arrays:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


# --- where the arrays of a pass live ---

_ALIGNMENT = 64


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
        return kept

    def scratch(self, size: int) -> Floats:
        """See :class:`Space`."""
        self._n_scratch += 1
        return self._buffers.get(self._n_scratch - 1, size)

    def release(self) -> None:
        """Give the memory of all pages back to the system; what was written stays in the file."""
        _let_go(self._map)


# --- folders ---

FORMAT, FORMAT_VERSION = "bactrian-pack", 2


@dataclass(frozen=True)
class Chunk:
    """What is known of a chunk without opening it."""

    file: str
    bytes: int
    sha256: str
    instances: int
    total_weight: float
    widest: int  #: length of its longest array over entries or states


@dataclass(frozen=True, eq=False)
class PackedFolder:
    """Labelled graphs in a folder, which :func:`bactrian.learn` goes through chunk by chunk.

    Examples
    --------
    >>> import tempfile, numpy as np, bactrian as bt
    >>> def part(seed):
    ...     rng = np.random.default_rng(seed)
    ...     return bt.GraphData(rng.normal(size=(3, 2)), [(0, 1), (1, 2)], n_labels=2, labels=rng.integers(0, 2, 3))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     packed = bt.PackedFolder.write(folder, (part(seed) for seed in range(4)))
    ...     solution = bt.learn(packed, "camel0")
    >>> packed.n_chunks, solution.converged
    (4, True)
    """

    in_memory: ClassVar[bool] = False

    path: Path
    n_weights: int
    chunks: tuple[Chunk, ...]
    observed_sha256: str  #: checksum of observed.safetensors
    rank: int = 0  #: of the process whose share these chunks are

    @staticmethod
    def write(path: str | os.PathLike[str], parts: Iterable[GraphData]) -> PackedFolder:
        """Write a folder, a chunk for each of ``parts``, which are taken one at a time; and open it.

        Raises
        ------
        ValueError
            For a folder that holds something already, no parts, and parts that differ in their model.
        """
        folder = Path(path)
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise ValueError(f"{folder} is not empty; name another folder")
        chunks: list[Chunk] = []
        observed: Floats | None = None
        active: Bools | None = None
        model: tuple[Any, ...] | None = None
        for k, part in enumerate(parts):
            if not isinstance(part, GraphData):
                raise TypeError(f"part {k} must be GraphData, found {type(part).__name__}")
            own = _model_of(part)
            if model is not None and own != model:
                raise ValueError(f"part {k} has another model: {own}, expected {model}")
            model, data = own, pack(part)
            if data.holes is not None:
                raise ValueError(f"part {k} has unknown labels (-1); learn from it in memory")
            assert data.empirical is not None
            name = f"{k:05d}.safetensors"
            write_packed(folder / name, data)
            chunks.append(_describe(folder / name, data))
            observed = data.empirical.copy() if observed is None else observed + data.empirical
            if part.scores.active is not None:
                active = part.scores.active.copy() if active is None else active | part.scores.active
        if observed is None:
            raise ValueError("there are no parts to pack; at least one is needed")
        arrays: dict[str, Any] = {"observed": observed} | ({} if active is None else {"active": active})
        with atomic_file(folder / "observed.safetensors") as stream:
            stream.write(save(arrays))
        document = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "n_weights": int(observed.size),
            "observed_sha256": _checksum(folder / "observed.safetensors"),
            "chunks": [vars(chunk) for chunk in chunks],
        }
        with atomic_file(folder / "pack.json") as stream:
            stream.write(json.dumps(document | {"sha256": _document_checksum(document)}, indent=1).encode())
        return PackedFolder.open(folder)

    @staticmethod
    def is_one(path: str | os.PathLike[str]) -> bool:
        """Whether ``path`` is such a folder."""
        return (Path(path) / "pack.json").is_file()

    @staticmethod
    def open(path: str | os.PathLike[str]) -> PackedFolder:
        """Open a folder; its chunks are looked at when learning begins.

        Raises
        ------
        ValueError
            For a folder that :meth:`write` did not finish, and for one of a newer release.
        """
        folder = Path(path)
        try:
            document = json.loads((folder / "pack.json").read_text(encoding="utf-8"))
            known = document["format"] == FORMAT and int(document["format_version"]) == FORMAT_VERSION
            if known and document.pop("sha256") != _document_checksum(document):
                raise ValueError("its checksum does not fit its content")
        except FileNotFoundError:
            raise ValueError(
                f"{folder} is not a folder of packed data, or was not finished: it has no pack.json"
            ) from None
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{folder / 'pack.json'} is damaged: {error}") from None
        if not known:
            raise ValueError(
                f"{folder / 'pack.json'} was written in another format or by another release; pack the data again"
            )
        chunks = tuple(Chunk(**chunk) for chunk in document["chunks"])
        return PackedFolder(folder, document["n_weights"], chunks, document["observed_sha256"])

    @property
    def n_chunks(self) -> int:
        """Number of chunks."""
        return len(self.chunks)

    @property
    def total_weight(self) -> float:
        """Sum of the instances' weights."""
        return float(sum(chunk.total_weight for chunk in self.chunks))

    def share(self, rank: int, size: int) -> PackedFolder:
        """The chunks of one of ``size`` ranks, about equal in bytes."""
        if self.n_chunks < size:
            raise ValueError(
                f"{self.path} has {self.n_chunks} chunks, too few for {size} ranks; pack it again in smaller ones"
            )
        loads = np.zeros(size)
        shares: list[list[int]] = [[] for _ in range(size)]
        for k in sorted(range(self.n_chunks), key=lambda k: -self.chunks[k].bytes):
            least = int(loads.argmin())
            loads[least] += self.chunks[k].bytes
            shares[least].append(k)
        return replace(self, chunks=tuple(self.chunks[k] for k in sorted(shares[rank])), rank=rank)

    def observed(self) -> tuple[Floats, Bools | None]:
        """Sum of the observed features of all chunks, and which weights are learned (None: all)."""
        path = self.path / "observed.safetensors"
        if not path.is_file() or _checksum(path) != self.observed_sha256:
            raise ValueError(f"{path} is missing or damaged; pack the data again")
        arrays = MappedFile(path).arrays
        return arrays["observed"].copy(), arrays["active"].copy() if "active" in arrays else None

    def opened(self) -> Iterator[tuple[Chunk, MappedFile, PackedData]]:
        """Each chunk, checked and mapped into memory."""
        active = self.observed()[1]
        for chunk in self.chunks:
            path = self.path / chunk.file
            if not path.is_file() or path.stat().st_size != chunk.bytes or _checksum(path) != chunk.sha256:
                raise ValueError(f"{path} is missing, truncated or damaged; pack the data again")
            file = MappedFile(path)
            yield chunk, file, read_packed(file, active)


def _model_of(data: GraphData) -> tuple[Any, ...]:
    """What the parts of one data set have in common."""
    tables = tuple(
        (kind.table.tying, None if kind.inputs is None else kind.inputs.shape[1]) for kind in data.scores.types
    )
    return data.n_labels, data.scores.inputs.shape[1], tables, data.node_factors


def _describe(path: Path, data: PackedData) -> Chunk:
    layout = data.layout
    return Chunk(
        file=path.name,
        bytes=path.stat().st_size,
        sha256=_checksum(path),
        instances=layout.n_instances,
        total_weight=data.total_weight,
        widest=max(layout.n_entries, layout.n_link_states, layout.n_hub_states, layout.n_tables),
    )


def _document_checksum(document: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# --- parts in files ---


class FilePart(MemoryPart):
    """One chunk of a folder, mapped into memory while it is at work.

    Its multipliers, linearisation and beliefs live in a file of their own and outlast a pass, its scores and counts in
    buffers that such parts share. A pass then holds one part in memory, and the vectors over the weights.
    """

    stays = False

    def __init__(
        self,
        name: str,
        file: MappedFile,
        data: PackedData,
        carving: Carving,
        context: Context,
        *,
        consistency: bool,
        buffers: Buffers,
    ) -> None:
        self._file = file
        self._mapped = space = FileSpace(None, _capacity(data.layout), buffers)
        kept = Carving(space.keep(carving.cluster), space.keep(carving.hub), space.keep(carving.linearised))
        super().__init__(data, kept, context, consistency=consistency, name=name, space=space)
        self._release()

    def __exit__(self, *error: object) -> None:
        """Give the memory of this part back."""
        self._release()

    def _release(self) -> None:
        self._file.release()
        self._mapped.release()


@store.register
def _(data: PackedFolder, carve: Carve, context: Context, *, consistency: bool, **_options: Any) -> Storage:
    """A part for every chunk of a folder; chunks have no fixed scores."""
    buffers = Buffers(max(chunk.widest for chunk in data.chunks))
    parts = [
        FilePart(chunk.file, file, part, carve(part), context, consistency=consistency, buffers=buffers)
        for chunk, file, part in data.opened()
    ]
    vectors = HostVectors(context.workers)
    return Storage(data, parts, vectors, data.observed()[0], of_all_ranks=True, is_unbounded=is_unbounded)


def _capacity(layout: Layout) -> int:
    """Bytes that suffice for all that is kept of a part; what is not used takes no room on the disk."""
    states = 3 * layout.n_link_states + 4 * layout.n_hub_states
    places = 4 * layout.n_links + 2 * layout.n_clusters + 4 * layout.n_hubs + 2 * layout.n_tables
    return 8 * (states + places) + (1 << 16)
