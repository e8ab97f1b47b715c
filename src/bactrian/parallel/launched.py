"""Ranks joined by MPI (extra ``mpi``) or ``torch.distributed`` (extra ``torch``), and what launched this process."""

from __future__ import annotations

import atexit
import datetime
import os
import sys
from collections.abc import Callable
from functools import cache
from types import TracebackType
from typing import Any

from bactrian.arrays import Floats
from bactrian.parallel import Alone, Communicator


class MPICommunicator:
    """All processes that ``mpirun`` started, or those of a given ``mpi4py`` communicator."""

    def __init__(self, comm: Any = None) -> None:
        from mpi4py import MPI

        self._mpi = MPI
        self._comm = MPI.COMM_WORLD if comm is None else comm
        self.rank, self.size = int(self._comm.Get_rank()), int(self._comm.Get_size())

    def add_up(self, values: Floats) -> None:
        """See :class:`Communicator`."""
        self._comm.Allreduce(self._mpi.IN_PLACE, values, op=self._mpi.SUM)

    def give_up(self, code: int) -> None:
        """End the processes of all ranks: the others wait for one that failed."""
        self._comm.Abort(code)


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

    def add_up(self, values: Floats) -> None:
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


Hook = Callable[[type[BaseException], BaseException, TracebackType | None], object]

#: Where Open MPI's ``mpirun``, and those of MPICH and Intel MPI, tell their processes how many they are.
_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
#: What other launchers set (``srun --mpi=pmix``): how many there are only MPI itself knows then.
_RANK = "PMIX_RANK"


@cache
def launched() -> Communicator:
    """The communicator of ``mpirun`` or ``torchrun``, from the environment; :class:`Alone` without them.

    With several ranks, an exception that nobody catches on one of them ends all from then on, after its message.

    Raises
    ------
    ImportError
        Where the extra that the launcher needs is not installed.
    """
    communicator = _found()
    if communicator.size > 1:
        sys.excepthook = _ending_all(sys.excepthook)
    return communicator


def _found() -> Communicator:
    if "TORCHELASTIC_RUN_ID" in os.environ:
        try:
            return ProcessGroup()
        except ImportError:
            raise ImportError("torchrun needs PyTorch: pip install torch") from None
    sizes = [os.environ[name] for name in _SIZES if name in os.environ]
    if any(size != "1" for size in sizes) or (not sizes and _RANK in os.environ):
        try:
            return MPICommunicator()
        except ImportError:
            raise ImportError("mpirun needs mpi4py: pip install mpi4py") from None
    return Alone()


def _ending_all(before: Hook) -> Hook:
    """A hook for uncaught exceptions: the one that was there says it, then all ranks end, which would wait for ever."""

    def hook(kind: type[BaseException], problem: BaseException, trace: TracebackType | None) -> None:
        before(kind, problem, trace)
        sys.stdout.flush()
        sys.stderr.flush()
        end_ranks(130 if issubclass(kind, KeyboardInterrupt) else 1)

    return hook


def end_ranks(code: int) -> None:
    """End the processes of all ranks, where there are several: the others would wait for one that failed."""
    if launched.cache_info().currsize and launched().size > 1:
        communicator: Any = launched()
        communicator.give_up(code)
