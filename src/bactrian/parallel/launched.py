"""Which launcher started this process, if any did."""

from __future__ import annotations

import os

from bactrian.parallel.communicator import Alone, Communicator

#: What each launcher of MPI programs tells its processes.
_MPI = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK")


def launched() -> Communicator:
    """The communicator of ``mpirun`` or ``torchrun``, by what they leave in the environment; alone without them.

    Raises
    ------
    ImportError
        Where the extra that the launcher needs is not installed.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ:
        try:
            from bactrian.parallel.process_group import ProcessGroup

            return ProcessGroup()
        except ImportError:
            raise ImportError("torchrun needs PyTorch: pip install 'bactrian[torch]'") from None
    if any(os.environ.get(name, "1") != "1" for name in _MPI[:2]):
        try:
            from bactrian.parallel.mpi import MPICommunicator

            return MPICommunicator()
        except ImportError:
            raise ImportError("mpirun needs mpi4py: pip install 'bactrian[mpi]'") from None
    return Alone()
