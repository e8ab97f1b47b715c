"""Units in which the solver counts weights.

L-BFGS begins with the same curvature for all weights. Where features are counts, shares and indicators side by side, or
are multiplied by 1,000, the curvature in their weights differs by the square of that, and it takes tens to hundreds of
times as many iterations, or never gets there. So the weight of a feature is counted in units of

    (s_k^2 + 1 / (n sigma_k^2))^(-1/2),

s_k being the feature's root mean square where it is not 0, over all chunks and ranks, and n the number of nodes over
that of labels: a prior strong enough to decide the curvature counts as well. Units are rounded to powers of two, so
that features of about 1, and indicators, leave all paths as they are.

Features of a text occur once or in every token, and the curvature differs as much. L-BFGS takes half of the iterations
to within 0.1 % of the optimum of an exact likelihood where weight k is counted in units of c_k^(-0.15), c_k being the
sum of squares of the feature, in the units above, times the probability of its states if all are alike, and the prior's
precision. (Plain strings of CoNLL-2003, see :class:`.accuracy.Schedule`; with c_k^(-1/2), Newton's step for a diagonal
Hessian, it takes more iterations than without: at the optimum frequent features have least left to say.) Unknown labels
gain as well. Where entropies are approximate and all labels known it can take twice as many as without, so there the
units above are all.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from bactrian.arrays import Floats
from bactrian.camel.accuracy import SCHEDULE
from bactrian.camel.parts import Vectors
from bactrian.camel.prior import Prior
from bactrian.graphs.packed import PackedData
from bactrian.graphs.scores import StructuredScores
from bactrian.parallel import Alone, Communicator
from bactrian.parallel.threads import Workers
from bactrian.solvers.lbfgs import Minimum, ValueAndGradient


def feature_units(parts: Iterable[PackedData], prior: Prior, communicator: Communicator | None = None) -> Floats | None:
    """Units of weights by the size of their features in all parts of the data; None where all are 1.

    Also None for models made by hand. All ranks must call it, and get the same.
    """
    sums: Floats | None = None  # squares, then the number of states; how many are not 0, then parts made by hand
    for data in parts:
        own = np.zeros((2, data.n_weights + 1))
        if isinstance(data.scores, StructuredScores):
            own[:, :-1] = data.scores.squares_and_counts()
            own[0, -1] = float(data.weights @ np.diff(data.layout.instance_hubs)) / data.scores.n_labels
        else:
            own[1, -1] = 1.0
        sums = own if sums is None else sums + own
    assert sums is not None
    for row in sums:
        (communicator or Alone()).add_up(row)
    if sums[1, -1] > 0.0:
        return None
    squares, counts = sums[:, :-1]
    curvature = np.divide(squares, counts, out=np.ones_like(squares), where=squares > 0.0)
    curvature += prior.precision / max(1.0, sums[0, -1])
    units: Floats = 2.0 ** -np.rint(0.5 * np.log2(curvature))
    return None if (units == 1.0).all() else units


def curvature_units(data: Any, prior: Prior, workers: Workers) -> Floats | None:
    """The same, of features as frequent as they are; None where they are not at hand."""
    if not (isinstance(data, PackedData) and isinstance(data.scores, StructuredScores)):
        return None
    found = feature_units([data], prior)
    units = np.ones(data.n_weights) if found is None else found
    curvature = data.scores.squared().moments(*data.uniform_counts(), workers) + prior.precision
    curvature[curvature <= 0.0] = 1.0
    return units * (curvature * units**2) ** -SCHEDULE.unit_power


class Learned:
    """The learned weights among all, as the solver of an exact likelihood sees them, and its memory."""

    def __init__(self, data: PackedData, prior: Prior, start: Floats, workers: Workers, vectors: Vectors) -> None:
        assert isinstance(data.scores, StructuredScores)
        active = data.scores.active
        chosen = np.full(start.size, True) if active is None else active | (start != 0.0)
        size = int(chosen.sum())
        self._chosen = slice(None) if size == start.size else np.flatnonzero(chosen)  # a slice copies nothing
        self._weights = np.zeros(start.size)
        units = curvature_units(data, prior, workers)
        assert units is not None
        self.memory, self.unit = vectors.memory(size, exact=True), units[self._chosen]

    def of(self, weights: Floats) -> Floats:
        """What the solver sees of ``weights``."""
        return weights[self._chosen]

    def weights(self, x: Floats) -> Floats:
        """All weights at a point of the solver, in the same place each time."""
        self._weights[self._chosen] = x
        return self._weights

    def seen(self, function: ValueAndGradient) -> ValueAndGradient:
        """Value and gradient for the solver, from those for all weights."""

        def value_and_gradient(x: Floats) -> tuple[float, Floats]:
            value, gradient = function(self.weights(x))
            return value, gradient[self._chosen]

        return value_and_gradient

    def unseen(self, minimum: Minimum) -> Minimum:
        """The solver's result for all weights."""
        gradient = np.zeros(self._weights.size)
        gradient[self._chosen] = minimum.gradient
        return replace(minimum, x=self.weights(minimum.x).copy(), gradient=gradient)
