"""The terms of D that are no sum over instances but depend on the weights alone: observed scores and Gaussian prior."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bactrian.camel.prior import Prior
from bactrian.engines.numba.long_vectors import add_prior
from bactrian.engines.numba.threads import Workers
from bactrian.graphs.inputs import N_BLOCKS

Floats = NDArray[np.float64]

#: Weights from which passes over them are worth several threads.
_MANY_WEIGHTS = 100_000


class WeightTerms:
    """- w.f_hat - base + sum_k w_k^2 / 2 sigma_k^2, for observed features f_hat and the fixed scores ``base``."""

    def __init__(self, empirical: Floats, base: float, prior: Prior, workers: Workers) -> None:
        self._empirical, self._base, self._precision, self._workers = empirical, base, prior.precision, workers
        n_blocks = N_BLOCKS if empirical.size >= _MANY_WEIGHTS else 1
        self._blocks = np.linspace(0, empirical.size, n_blocks + 1).astype(np.int64)

    def add(self, value: float, gradient: Floats, weights: Floats) -> float:
        """Add to the ``gradient`` in place, and to the ``value``, which is returned."""
        precision = self._precision
        products = np.zeros((self._blocks.size - 1, 2))

        def block(b: int, first: int, last: int) -> None:
            if isinstance(precision, float):
                add_prior(gradient, weights, self._empirical, precision, first, last, products[b])
                return
            add_prior(gradient, weights, self._empirical, 0.0, first, last, products[b])
            pull = precision[first:last] * weights[first:last]
            gradient[first:last] += pull
            products[b, 1] = pull @ weights[first:last]

        self._workers.run(block, self._blocks)
        linear, square = products.sum(axis=0)
        # In this order: with huge scores the first three cancel, and what is left must not drown in their rounding.
        value = value - float(linear) - self._base
        return value + 0.5 * (precision if isinstance(precision, float) else 1.0) * float(square)
