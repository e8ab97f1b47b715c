"""What a problem takes on the device, and the error that says so."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch

#: How errors read that are not PyTorch's own class for it: from the host's allocator, CUDA itself and cuBLAS.
_OUT_OF_MEMORY = ("can't allocate memory", "not enough memory", "out of memory", "ALLOC_FAILED")


class DeviceMemoryError(MemoryError):
    """The device has too little memory for what was asked; says how much it takes and what helps."""


def state_bytes(n_nodes: int, n_edges: int, n_labels: int, *, own_tables: bool, single: bool) -> int:
    """Bytes of multipliers, beliefs, tables and the temporaries of an evaluation."""
    message = 4 if single else 8
    links = 2 * n_edges * n_labels
    kept = 2 * message * links + (3 * 8 + 3 * message) * n_nodes * n_labels
    passing = 3 * message * links + 2 * 8 * n_nodes * n_labels
    evaluating = 8 * 4 * links + 6 * 8 * n_nodes * n_labels
    tables = n_edges * n_labels**2 * (3 * 8 + 2 * message) if own_tables else 0
    return kept + max(passing, evaluating) + tables


def readable(n_bytes: float) -> str:
    """A size in the unit that suits it.

    >>> readable(3 * 2**30)
    '3.0 GiB'
    """
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if n_bytes < 1024 or unit == "GiB":
            break
        n_bytes /= 1024
    return f"{n_bytes:.0f} bytes" if unit == "bytes" else f"{n_bytes:.1f} {unit}"


class Needed(NamedTuple):
    """What a piece of work takes, and what helps where that is too much."""

    n_bytes: int
    n_graphs: int  #: at once
    remedy: str


@contextmanager
def explain_memory(device: torch.device, needed: Callable[[], Needed]) -> Iterator[None]:
    """Turn the device's bare out-of-memory error into one that names the size and the remedy."""
    try:
        yield
    except RuntimeError as error:
        if not (isinstance(error, torch.OutOfMemoryError) or any(words in str(error) for words in _OUT_OF_MEMORY)):
            raise
        has = ""
        if device.type == "cuda":
            free, total = torch.cuda.mem_get_info(device)
            has = f", which has {readable(free)} free of {readable(total)}"
        n_bytes, n_graphs, remedy = needed()
        raise DeviceMemoryError(
            f"{n_graphs} graph{'s' if n_graphs != 1 else ''} at once take about {readable(n_bytes)} on {device}{has}; "
            f"{remedy}"
        ) from error
