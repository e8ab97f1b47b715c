"""A resumable cache of arrays: files named by what they depend on, either there whole or not at all."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bactrian.arrays import Arrays
from bactrian.atomic_files import atomic_file


def arrays_checksum(*arrays: NDArray[Any]) -> str:
    """SHA-256 over the dtype, shape and bytes of arrays."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


class ArrayCache:
    """Arrays on disk, found again by a name and everything that they depend on; without a folder it keeps nothing."""

    def __init__(self, folder: str | Path | None) -> None:
        self.folder = None if folder is None else Path(folder)

    def get(self, name: str, key: Any, make: Callable[[], Arrays]) -> Arrays:
        """The arrays made before under this ``name`` and ``key`` (anything JSON can hold), or made now and kept.

        A damaged file is made anew.
        """
        if self.folder is None:
            return make()
        written = json.dumps(key, sort_keys=True, allow_nan=False)
        path = self.folder / f"{name}-{hashlib.sha256(written.encode()).hexdigest()[:16]}.npz"
        found = _read(path, written)
        if found is None:
            found = make()
            _write(path, written, found)
        return found


def _read(path: Path, key: str) -> Arrays | None:
    try:
        # Opened here, for NumPy leaves a damaged file open.
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
            if str(stored["key"]) != key:
                return None
            return {name: stored[name] for name in stored.files if name != "key"}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None


def _write(path: Path, key: str, arrays: Arrays) -> None:
    if "key" in arrays:
        raise ValueError("no array may be named 'key'")
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as stream:
        np.savez(stream, **{"key": np.array(key), **arrays})  # type: ignore[arg-type]
