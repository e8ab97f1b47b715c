"""The device: checks of arguments, the memory that a problem needs, and the error if it does not fit."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from bactrian.graphs.graph_data import GraphData

DTYPES = {"float64": torch.float64, "float32": torch.float32}
#: Bytes below which what moves to a GPU is pinned.
_PINNED = 1 << 26
#: How errors read that are not PyTorch's own class for it: from the host's allocator, CUDA itself and cuBLAS.
_OUT_OF_MEMORY = ("can't allocate memory", "not enough memory", "out of memory", "ALLOC_FAILED")


def checked_data(data: Any, *, need_labels: bool) -> GraphData:
    """The data, or an error that says what the engine takes."""
    if not isinstance(data, GraphData):
        raise TypeError(
            f"data must be a GraphData (pairwise graphs of nodes with equally many labels) on this engine, found "
            f"{type(data).__name__}; bactrian.learn and bactrian.infer on the CPU take all models"
        )
    if need_labels and data.labels is None:
        raise ValueError("the GraphData has no labels; learning needs labels=")
    if need_labels and data.labels is not None and (data.labels < 0).any():
        raise ValueError("labels: this engine does not support unknown labels (-1); bactrian.learn on the CPU does")
    return data


def checked_device(device: Any) -> torch.device:
    """The device by name, or an error where it is not there."""
    try:
        chosen = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"device must be 'cpu' or 'cuda', found {device!r}") from error
    if chosen.type not in ("cpu", "cuda"):
        raise ValueError(f"device must be 'cpu' or 'cuda', found {device!r}")
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device={device!r} needs a CUDA device, and PyTorch finds none; use device='cpu'")
    if chosen.type == "cuda" and chosen.index is not None and chosen.index >= torch.cuda.device_count():
        raise ValueError(f"device={device!r} does not exist: there are {torch.cuda.device_count()} CUDA devices")
    return chosen


def checked_dtype(dtype: Any) -> torch.dtype:
    """float64 or float32, by name or as PyTorch's."""
    if isinstance(dtype, str) and dtype in DTYPES:
        return DTYPES[dtype]
    if dtype in DTYPES.values():
        return dtype
    raise ValueError(f"dtype must be 'float64' or 'float32', found {dtype!r}")


class Movable:
    """Something that has tensors, in attributes, in lists or tuples of theirs, or in others of this kind."""

    def to(self, device: Any) -> Self:
        """The same on another device."""
        moved = copy.copy(self)
        vars(moved).update({name: _moved(value, device) for name, value in vars(self).items()})
        return moved


def moved(tensor: Tensor, device: Any) -> Tensor:
    """The tensor on a device, which nobody waits for where it is small enough to be pinned."""
    if tensor.device.type == "cpu" and torch.device(device).type == "cuda" and tensor.nbytes < _PINNED:
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def _moved(value: Any, device: Any) -> Any:
    if isinstance(value, Movable):
        return value.to(device)
    if isinstance(value, Tensor):
        return value.to(device) if value.layout is not torch.strided else moved(value, device)
    return type(value)(_moved(one, device) for one in value) if isinstance(value, list | tuple) else value


class DeviceMemoryError(MemoryError):
    """The device has too little memory; the message says how much is needed and what helps."""


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
    """Memory that a piece of work needs, and what helps if it does not fit."""

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
