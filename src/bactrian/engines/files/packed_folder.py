"""Packed data in a folder: chunks of instances in files, to learn from more than fits into memory.

===================  ==================================================================================================
``pack.json``        format and version, number of weights, files with their sizes and checksums, its own; written last
``observed.safetensors``  sums over all chunks: observed features, and which weights are learned
``00000.safetensors``...  the chunks, in the form in which kernels read them
===================  ==================================================================================================
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from safetensors.numpy import save

from bactrian.arrays import Bools, Floats
from bactrian.engines.files.packed_file import MappedFile, read_packed, write_packed
from bactrian.files import atomic_file
from bactrian.graphs.graph_data import GraphData
from bactrian.graphs.packed import PackedData
from bactrian.graphs.packing import pack

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
                raise ValueError(f"part {k} has a model of its own: {own}, expected {model}")
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
            raise ValueError(f"{folder / 'pack.json'} is of another format or another release; pack the data again")
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
