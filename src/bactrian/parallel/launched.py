"""Which launcher started this process, if any did."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import cache
from types import TracebackType
from typing import Any

from bactrian.parallel.communicator import Alone, Communicator

Hook = Callable[[type[BaseException], BaseException, TracebackType | None], object]

#: Where Open MPI's ``mpirun``, and those of MPICH and Intel MPI, tell their processes how many they are.
_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
#: What other launchers set (``srun --mpi=pmix``): how many there are only MPI itself knows then.
_RANK = "PMIX_RANK"


@cache
def launched() -> Communicator:
    """The communicator of ``mpirun`` or ``torchrun``, by what they leave in the environment; alone without them.

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
            from bactrian.parallel.process_group import ProcessGroup

            return ProcessGroup()
        except ImportError:
            raise ImportError("torchrun needs PyTorch: pip install 'bactrian[torch]'") from None
    sizes = [os.environ[name] for name in _SIZES if name in os.environ]
    if any(size != "1" for size in sizes) or (not sizes and _RANK in os.environ):
        try:
            from bactrian.parallel.mpi import MPICommunicator

            return MPICommunicator()
        except ImportError:
            raise ImportError("mpirun needs mpi4py: pip install 'bactrian[mpi]'") from None
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
