"""The memory of L-BFGS for vectors of which each rank holds a part."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bactrian.parallel.communicator import Communicator
from bactrian.parallel.communicator import largest as largest_anywhere
from bactrian.solvers.lbfgs import Memory, largest

Floats = NDArray[np.float64]


class SharedMemory(Memory):
    """Pairs of vectors (w, d): weights that every rank has, then the multipliers of its own instances."""

    def __init__(self, size: int, dimension: int, n_weights: int, communicator: Communicator) -> None:
        super().__init__(size, dimension, self._inner_products)
        self._n_weights, self._communicator = n_weights, communicator

    def largest(self, x: Floats) -> float:
        """See :class:`Memory`."""
        return largest_anywhere(self._communicator, largest(x))[0]

    def _inner_products(self, left: Floats, right: Floats) -> Floats:
        if self._communicator.size == 1:
            product: Floats = left @ right.T
            return product
        n = self._n_weights
        own: Floats = np.ascontiguousarray(left[:, n:] @ right[:, n:].T)
        self._communicator.add_up(own.reshape(-1))
        own += left[:, :n] @ right[:, :n].T
        return own
