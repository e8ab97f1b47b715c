"""Checks of what the engine is asked to do."""

from __future__ import annotations

from typing import Any

import torch

from bactrian.graphs.graph_data import GraphData

DTYPES = {"float64": torch.float64, "float32": torch.float32}


def checked_data(data: Any, *, need_labels: bool) -> GraphData:
    """The data, or an error that says what the engine takes."""
    if not isinstance(data, GraphData):
        raise TypeError(
            f"data must be a GraphData (pairwise graphs of nodes with equally many labels) on this engine, found "
            f"{type(data).__name__}; bactrian.learn and bactrian.infer on the CPU take all models"
        )
    if need_labels and data.labels is None:
        raise ValueError("the GraphData has no labels; learning needs labels=")
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
        raise ValueError(f"device={device!r} was asked for, but PyTorch finds no CUDA device; use device='cpu'")
    if chosen.type == "cuda" and chosen.index is not None and chosen.index >= torch.cuda.device_count():
        raise ValueError(f"device={device!r} was asked for, but there are {torch.cuda.device_count()} CUDA devices")
    return chosen


def checked_dtype(dtype: Any) -> torch.dtype:
    """float64 or float32, by name or as PyTorch's."""
    if isinstance(dtype, str) and dtype in DTYPES:
        return DTYPES[dtype]
    if dtype in DTYPES.values():
        chosen: torch.dtype = dtype
        return chosen
    raise ValueError(f"dtype must be 'float64' or 'float32', found {dtype!r}")


def checked_chunk(chunk: Any) -> int | None:
    """A number of graphs per pass, or None."""
    if chunk is None:
        return None
    if isinstance(chunk, bool) or not isinstance(chunk, int):
        raise TypeError(f"chunk must be a number of graphs per pass, found {chunk!r}")
    if chunk < 1:
        raise ValueError(f"chunk must be at least 1, found {chunk}")
    return chunk
