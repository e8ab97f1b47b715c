"""What L-BFGS keeps of weights, and how it sees them: in pieces for threads, shared by ranks, in units of their own.

Memories
--------
Pairs of many weights (:class:`LongMemory`) are kept in single precision and read once per pass, in blocks of which
threads take one each; sums are in double precision. Pairs of weights and multipliers (:class:`SharedMemory`) lie on all
ranks.

Units
-----
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
precision. (Plain strings of CoNLL-2003, see :class:`.schedule.Schedule`; with c_k^(-1/2), Newton's step for a diagonal
Hessian, it takes more iterations than without: at the optimum frequent features have least left to say.) Unknown labels
gain as well. Where entropies are approximate and all labels known it can take twice as many as without, so there the
units above are all.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bactrian.arrays import Floats, Ints
from bactrian.camel.prior import Prior
from bactrian.camel.schedule import SCHEDULE
from bactrian.compiling import kernel, njit
from bactrian.engines.numba.arithmetic import FAST_MATH
from bactrian.engines.numba.threads import Workers
from bactrian.graphs.packed import PackedData
from bactrian.graphs.scores import StructuredScores
from bactrian.parallel import Alone, Communicator, largest_anywhere
from bactrian.solvers.lbfgs import InUnits, Memory, Minimum, ValueAndGradient, largest_magnitude

#: Blocks for threads: fixed, so that results do not depend on their number.
_N_BLOCKS = 16
#: Entries of a vector that fit into the nearest cache together with those of another.
_TILE = 1024


def make_memory(dimension: int, workers: Workers) -> Memory:
    """The memory for problems of that size."""
    return (
        Memory(SCHEDULE.memory, dimension)
        if dimension < SCHEDULE.long_dimension
        else LongMemory(SCHEDULE.long_memory, dimension, workers)
    )


class LongMemory(Memory):
    """Pairs (s, y) kept in single precision; each iteration reads them twice, for inner products and the direction.

    The inner products are those of the rounded pairs, so that the two loops stay consistent with what is stored, and
    sums are in double precision. Blocks are fixed: results do not depend on the number of threads.
    """

    def __init__(self, size: int, dimension: int, workers: Workers) -> None:
        super().__init__(size, 0)
        self._rows = np.zeros((2 * self._slots, dimension), dtype=np.float32)
        self._workers = workers
        self._blocks = np.linspace(0, dimension, _N_BLOCKS + 1).astype(np.int64)
        self._pending = -1  # slot whose inner products are not yet known

    def clear(self) -> None:
        """See :class:`Memory`."""
        super().clear()
        self._pending = -1

    def add(self, s: Floats, y: Floats, *, within: bool = False) -> None:
        """See :class:`Memory`."""
        slot = self._free_slot()
        sums = np.zeros((_N_BLOCKS, 3))
        self._workers.run(
            lambda b, first, last: _store_pair(s, y, self._rows, slot, self._slots + slot, first, last, sums[b]),
            self._blocks,
        )
        if self._remember(slot, *sums.sum(axis=0).tolist()):
            self._pending = slot

    def direction(self, gradient: Floats) -> Floats:
        """See :class:`Memory`."""
        if not self._order:
            return super().direction(gradient)
        newest = self._order[-1]
        sums = np.zeros((_N_BLOCKS, 2 * self._slots, 3))
        self._workers.run(
            lambda b, first, last: _dot_rows(self._rows, gradient, newest, self._slots + newest, first, last, sums[b]),
            self._blocks,
        )
        products = sums.sum(axis=0)
        if self._pending == newest:
            self._know(newest, products[:, 1:])
            self._pending = -1
        coefficients, scale = self._two_loops(products[:, 0])
        out = np.empty_like(gradient)
        self._workers.run(
            lambda _, first, last: _combine_rows(coefficients, self._rows, -scale, gradient, first, last, out),
            self._blocks,
        )
        return out

    def _gathered(self, free: Ints) -> Floats:
        return self._rows[:, free].astype(np.float64)


class SharedMemory(Memory):
    """Pairs of vectors (w, d): weights that every rank has, then the multipliers of its own instances."""

    def __init__(self, size: int, dimension: int, n_weights: int, communicator: Communicator) -> None:
        super().__init__(size, dimension, self._inner_products)
        self._n_weights, self._communicator = n_weights, communicator

    def largest(self, x: Floats) -> float:
        """See :class:`Memory`."""
        return largest_anywhere(self._communicator, largest_magnitude(x))[0]

    def _inner_products(self, left: Floats, right: Floats) -> Floats:
        if self._communicator.size == 1:
            return left @ right.T
        n = self._n_weights
        own: Floats = np.ascontiguousarray(left[:, n:] @ right[:, n:].T)
        self._communicator.add_up(own.reshape(-1))
        own += left[:, :n] @ right[:, :n].T
        return own


@njit(fastmath=FAST_MATH)
def _dot(row: NDArray[Any], vector: Floats, count: int) -> float:
    total = 0.0
    for i in range(count):
        total += np.float64(row[i]) * vector[i]
    return total


@kernel(fastmath=FAST_MATH)
def _dot_rows(rows: NDArray[Any], vector: Floats, newest: int, other: int, first: int, last: int, out: Floats) -> None:
    """Inner products of all rows with ``vector`` and with rows ``newest`` and ``other``, on first:last.

    ``out`` has shape (n_rows, 3). The three together read the rows from memory once.
    """
    out[:] = 0.0
    right = np.empty((3, _TILE))
    for tile in range(first, last, _TILE):
        count = min(_TILE, last - tile)
        for i in range(count):
            right[0, i] = vector[tile + i]
            right[1, i] = rows[newest, tile + i]
            right[2, i] = rows[other, tile + i]
        for r in range(rows.shape[0]):
            row = rows[r, tile : tile + count]
            for c in range(3):
                out[r, c] += _dot(row, right[c], count)


@njit(fastmath=FAST_MATH)
def _add_one(total: Floats, row: NDArray[Any], c: float, count: int) -> None:
    for i in range(count):
        total[i] += c * np.float64(row[i])


@kernel(fastmath=FAST_MATH)
def _combine_rows(
    coefficients: Floats, rows: NDArray[Any], factor: float, vector: Floats, first: int, last: int, out: Floats
) -> None:
    """out = factor * vector + coefficients @ rows, on first:last."""
    for tile in range(first, last, _TILE):
        count = min(_TILE, last - tile)
        total, given = out[tile : tile + count], vector[tile : tile + count]
        for i in range(count):
            total[i] = factor * given[i]
        for r in range(rows.shape[0]):
            _add_one(total, rows[r, tile : tile + count], coefficients[r], count)


@kernel(fastmath=FAST_MATH)
def _store_pair(s: Floats, y: Floats, rows: NDArray[Any], s_row: int, y_row: int, first: int, last: int, out: Floats
               ) -> None:  # fmt: skip
    """Put s and y into two rows; out = (s @ s, s @ y, y @ y), on first:last."""
    ss, sy, yy = 0.0, 0.0, 0.0
    for i in range(first, last):
        ss += s[i] * s[i]
        sy += s[i] * y[i]
        yy += y[i] * y[i]
        rows[s_row, i] = s[i]
        rows[y_row, i] = y[i]
    out[0], out[1], out[2] = ss, sy, yy


# --- units ---


def feature_units(parts: Iterable[PackedData], prior: Prior, communicator: Communicator | None = None) -> Floats | None:
    """Units of weights by the size of their features in all parts of the data; None where all are 1.

    None, too, where some part is of models made by hand. Of several ranks all must call it, and get the same.
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

    def __init__(self, data: PackedData, prior: Prior, start: Floats, workers: Workers) -> None:
        assert isinstance(data.scores, StructuredScores)
        active = data.scores.active
        chosen = np.full(start.size, True) if active is None else active | (start != 0.0)
        size = int(chosen.sum())
        self._chosen = slice(None) if size == start.size else np.flatnonzero(chosen)  # a slice copies nothing
        self._weights = np.zeros(start.size)
        pairs = SCHEDULE.exact_memory if size < SCHEDULE.exact_many else SCHEDULE.long_memory
        memory = Memory(pairs, size) if size < SCHEDULE.exact_long else LongMemory(pairs, size, workers)
        units = curvature_units(data, prior, workers)
        assert units is not None
        self.memory = InUnits(memory, units[self._chosen])

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
