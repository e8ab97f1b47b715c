"""Recorded launches: a step made of many small kernels takes longer to launch than to run."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import torch

Result = TypeVar("Result")

#: A recording waits for the whole device before it begins, which would spoil one that another thread is making.
_ONE_AT_A_TIME = threading.Lock()


class Recording(Generic[Result]):
    """A function of no arguments whose launches on the GPU are recorded once and then started as one.

    It must read and write the same tensors each time, and must not wait for the device. What it returns is overwritten
    by the next call.
    """

    def __init__(self, function: Callable[[], Result]) -> None:
        self._function = function
        self._graph: Any = None
        self._result: Any = None

    def __call__(self) -> Result:
        """Start the recorded launches."""
        if self._graph is None:
            with _ONE_AT_A_TIME:
                self._record()
        self._graph.replay()
        result: Result = self._result
        return result

    def _record(self) -> None:
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            self._function()  # what is set up on first use cannot be recorded
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        # Other threads may go on meanwhile, with launches and transfers of their own.
        with _no_collection(), torch.cuda.graph(graph, stream=aside, capture_error_mode="thread_local"):
            self._result = self._function()
        self._graph = graph


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keep the garbage collector out: an old recording that it destroys while another is made would spoil that."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
