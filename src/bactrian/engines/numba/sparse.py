"""Products of sparse input rows with label weights, one block of rows or columns a call.

``inputs`` has shape (n_rows, n_inputs) and ``weights`` (n_inputs, n_labels); the product of input features and
label tables is never materialised. Accumulators are float64 throughout.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bactrian.arrays import Floats, Ints
from bactrian.compiling import njit
from bactrian.engines.numba.arithmetic import FAST_MATH
from bactrian.engines.numba.vectors import add_rows


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST_MATH)
def rows_times_weights(
    pointer: Ints,
    index: NDArray[np.int32],
    value: Floats,
    weights: Floats,
    out: Floats,
    first: int,
    last: int,
) -> None:
    """``out[first:last] = inputs[first:last] @ weights`` for row-compressed inputs.

    With column-compressed inputs in place of row-compressed ones and ``weights`` an array over rows, the same loop
    accumulates the transposed product for inputs ``first:last``.
    """
    labels = weights.shape[1]
    for row in range(first, last):
        for k in range(labels):
            out[row, k] = 0.0
        for position in range(pointer[row], pointer[row + 1]):
            x = value[position]
            source = index[position]
            for k in range(labels):
                out[row, k] += x * weights[source, k]


@njit(cache=True, nogil=True, error_model="numpy")
def rows_times_states(
    pointer: Ints,
    index: NDArray[np.int32],
    value: Floats,
    weights: Floats,
    out: Floats,
    first: int,
    last: int,
    states: tuple[int, ...],
) -> None:
    """The same on flat arrays, with as many labels as the tuple ``states`` is long: known when compiled, so faster."""
    labels = len(states)
    for row in range(first, last):
        add_rows(out, row * labels, weights, index, value, pointer[row], pointer[row + 1], states)


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST_MATH)
def entries_times_weights(
    bounds: Ints,
    number: Ints,
    column: Ints,
    value: Floats,
    weights: Floats,
    out: Floats,
    first: int,
    last: int,
) -> None:
    """``out[first:last] = inputs[first:last] @ weights``, where a row has the numbers of its entries.

    ``column`` and ``value`` are those of each number; what has no column counts for nothing.
    """
    labels = weights.shape[1]
    for row in range(first, last):
        for k in range(labels):
            out[row, k] = 0.0
        for position in range(bounds[row], bounds[row + 1]):
            source = column[number[position]]
            if source >= 0:
                x = value[number[position]]
                for k in range(labels):
                    out[row, k] += x * weights[source, k]
