"""Anderson's acceleration of a fixed-point iteration x <- T(x) (J. ACM 12(4), 1965; Walker and Ni, SINUM 49(4), 2011).

From the last residuals f = T(x) - x it takes the combination of images T(x) whose combined residual is least. Fixed
points stay what they are; where plain iterations shrink the residual by a constant factor, a handful of these does what
hundreds of those do.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from bactrian.arrays import Floats

#: Differences remembered, and the part of the mean square by which their least squares are made well posed.
WINDOW, _RIDGE = 5, 1e-10
#: Steps in which the squared residual has to come down by this factor, or all further ones are plain.
_PATIENCE, _PROGRESS = 15, 0.25


class Anderson:
    """Remembers the last residuals and images; falls back on plain steps where the residual grew.

    Where it does not come down over many steps, as between two fixed points, steps are plain from then on. Vectors are
    arrays, or tensors on a device.

    Parameters
    ----------
    add_up : callable
        Replaces an array by its sum over all ranks that hold parts of the vectors.
    """

    def __init__(self, add_up: Callable[[Floats], None] = lambda values: None) -> None:
        self._add_up = add_up
        self._residuals: list[Floats] = []  # differences of consecutive ones, oldest first
        self._images: list[Floats] = []
        self._last: tuple[Floats, Floats] | None = None
        self._norm = self._best = np.inf
        self._idle = 0

    def next(self, image: Floats, residual: Floats, importance: Floats) -> Floats | None:
        """Where to go on from, given T(x) and T(x) - x; None for T(x) itself.

        ``importance`` weighs the squares of the residual. The arrays are kept: they must not be written to later.
        """
        if self._idle > _PATIENCE:
            return None
        before = self._last
        self._last = image, residual
        if before is not None:
            self._images = [*self._images[1 - WINDOW :], image - before[0]]
            self._residuals = [*self._residuals[1 - WINDOW :], residual - before[1]]
        n = len(self._residuals)
        sums = np.empty((n + 1, n + 1))  # inner products of the differences and, last, of the residual
        rows = [*self._residuals, residual]
        for i, row in enumerate(rows):
            weighted = importance * row
            for j in range(i + 1):
                sums[i, j] = sums[j, i] = float(weighted @ rows[j])
        self._add_up(sums.reshape(-1))
        grew, self._norm = sums[n, n] > self._norm, sums[n, n]
        better = self._norm <= _PROGRESS * self._best
        self._best, self._idle = (self._norm, 0) if better else (self._best, self._idle + 1)
        if grew or not np.isfinite(sums).all():
            self._residuals, self._images = [], []
            return None
        if n == 0:
            return None
        gram = sums[:n, :n].copy()
        mean = gram.trace() / n
        if not mean > 0.0:
            return None
        gram.flat[:: n + 1] += _RIDGE * mean
        first, *others = np.linalg.solve(gram, sums[:n, n]).tolist()
        out: Floats = image - first * self._images[0]
        for coefficient, difference in zip(others, self._images[1:], strict=True):
            out -= coefficient * difference
        return out
