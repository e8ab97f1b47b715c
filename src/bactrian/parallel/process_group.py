"""Ranks joined by ``torch.distributed`` (extra ``torch``), as ``torchrun`` starts them."""

from __future__ import annotations

import atexit
import datetime
import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Seconds without an answer after which the other ranks count as lost.
PATIENCE = 50.0


class ProcessGroup:
    """All processes that ``torchrun`` started.

    Parameters
    ----------
    backend : {"gloo", "nccl"}
        ``"nccl"`` adds up on the GPU of the local rank. It was tried with a single rank only.
    """

    def __init__(self, backend: str = "gloo") -> None:
        import torch
        import torch.distributed

        if backend not in ("gloo", "nccl"):
            raise ValueError(f"backend must be 'gloo' or 'nccl', found {backend!r}")
        self._torch, self._distributed = torch, torch.distributed
        self._device: Any = "cpu"
        if backend == "nccl":
            self._device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        if not torch.distributed.is_initialized():
            torch.distributed.init_process_group(backend, timeout=datetime.timedelta(seconds=PATIENCE))
            # Left to the end of the process, its threads are now and then still at work then, and abort it.
            atexit.register(_end)
        self.rank, self.size = int(torch.distributed.get_rank()), int(torch.distributed.get_world_size())

    def add_up(self, values: NDArray[np.float64]) -> None:
        """See :class:`Communicator`."""
        shared = self._torch.from_numpy(values)
        there = shared.to(self._device)
        self._distributed.all_reduce(there)
        if there is not shared:
            shared.copy_(there)

    def give_up(self, code: int) -> None:
        """End this process at once; the launcher ends the others."""
        os._exit(code)


def _end() -> None:
    import torch.distributed

    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
