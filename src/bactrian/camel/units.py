"""Weights as the solver of an exact likelihood sees them: those that are learned, each in a unit of its own.

Features of a text occur once or in every token, and the curvature of the likelihood in their weights differs as much.
L-BFGS, which begins with the same curvature for all, takes a third of the iterations to within 0.1 % of the optimum
where weight k is counted in units of c_k^(-1/5), c_k being the sum of squares of the feature, times the probability of
its states if all are alike, and the prior's precision. (On CoNLL-2003; with c_k^(-1/2), Newton's step for a diagonal
Hessian, it takes more iterations than without: at the optimum frequent features have least left to say.)
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bactrian.arrays import Floats
from bactrian.camel.parts import LongMemory
from bactrian.camel.prior import Prior
from bactrian.camel.schedule import SCHEDULE
from bactrian.engines.numba.threads import Workers
from bactrian.graphs.packed import PackedData
from bactrian.graphs.scores import StructuredScores
from bactrian.solvers.lbfgs import Memory, Minimum, ValueAndGradient


class Units:
    """The learned weights among all, and their units, for data with features of nodes and edges."""

    def __init__(self, data: PackedData, prior: Prior, start: Floats, workers: Workers) -> None:
        assert isinstance(data.scores, StructuredScores)
        active = data.scores.active
        self._chosen = np.arange(start.size) if active is None else np.flatnonzero(active | (start != 0.0))
        curvature = data.scores.squared().moments(*data.uniform_counts(), workers) + prior.precision
        curvature[curvature <= 0.0] = 1.0
        self._unit = curvature[self._chosen] ** -SCHEDULE.unit_power
        self._weights = np.zeros(start.size)
        size = self._chosen.size
        pairs = SCHEDULE.exact_memory if size < SCHEDULE.exact_many else SCHEDULE.long_memory
        self.memory = Memory(pairs, size) if size < SCHEDULE.exact_long else LongMemory(pairs, size, workers)

    def of(self, weights: Floats) -> Floats:
        """What the solver sees of ``weights``."""
        return weights[self._chosen] / self._unit

    def weights(self, x: Floats) -> Floats:
        """All weights at a point of the solver, in the same place each time."""
        self._weights[self._chosen] = x * self._unit
        return self._weights

    def seen(self, function: ValueAndGradient) -> ValueAndGradient:
        """Value and gradient for the solver, from those for all weights."""

        def value_and_gradient(x: Floats) -> tuple[float, Floats]:
            value, gradient = function(self.weights(x))
            return value, gradient[self._chosen] * self._unit

        return value_and_gradient

    def measure(self, gradient: Floats) -> float:
        """The largest component of the gradient in the weights themselves."""
        return float(np.abs(gradient / self._unit).max(initial=0.0))

    def unseen(self, minimum: Minimum) -> Minimum:
        """The solver's result for all weights."""
        gradient = np.zeros(self._weights.size)
        gradient[self._chosen] = minimum.gradient / self._unit
        return replace(minimum, x=self.weights(minimum.x).copy(), gradient=gradient)
