"""Ranks joined by MPI (extra ``mpi``)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


class MPICommunicator:
    """All processes that ``mpirun`` started, or those of a given ``mpi4py`` communicator."""

    def __init__(self, comm: Any = None) -> None:
        from mpi4py import MPI

        self._mpi = MPI
        self._comm = MPI.COMM_WORLD if comm is None else comm
        self.rank, self.size = int(self._comm.Get_rank()), int(self._comm.Get_size())

    def add_up(self, values: NDArray[np.float64]) -> None:
        """See :class:`Communicator`."""
        self._comm.Allreduce(self._mpi.IN_PLACE, values, op=self._mpi.SUM)

    def give_up(self, code: int) -> None:
        """End the processes of all ranks: the others wait for one that failed."""
        self._comm.Abort(code)
