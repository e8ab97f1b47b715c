"""Tables seen through smaller ones: the products and sums of a junction tree.

A *view* tells how the entries of a clique's table, in order, map to entries of a smaller table: runs of axes with a
stride each (0 where the smaller table lacks the axis), neighbouring axes merged where one stride serves both.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bactrian.compiling import njit
from bactrian.engines.numba.arithmetic import FAST_MATH, exp

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class TreePlan(NamedTuple):
    """One junction tree: ``Q`` cliques, ``E`` edges in collect order, ``P`` pools, ``F`` factors."""

    clique_offset: Ints  #: (Q + 1,) entries of clique q
    clique_pools: Ints  #: (Q + 1,) pools of clique q, at least one
    pool_offset: Ints  #: (P + 1,) entries of pool p
    pool_factors: Ints  #: (P + 1,) factors of pool p
    factor_source: Ints  #: (F,) where the factor's entries start in the scores, evidence included
    sepset_offset: Ints  #: (E + 1,)
    child: Ints  #: (E,)
    parent: Ints  #: (E,)
    views: Ints  #: (P + 2 E + F + 1,) range of each view: pool in clique, sepset in child, in parent, factor in pool
    dims: Ints  #: lengths of the views' axes, at least two each
    strides: Ints


@njit(cache=True, nogil=True, error_model="numpy")
def _next(dims: Ints, strides: Ints, first: int, last: int, counter: Ints, base: int) -> int:
    """Advance the outer axes of a view by one; returns the new base in the smaller table."""
    for axis in range(last - 3, first - 1, -1):
        counter[axis - first] += 1
        base += strides[axis]
        if counter[axis - first] < dims[axis]:
            return base
        base -= strides[axis] * dims[axis]
        counter[axis - first] = 0
    return base


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST_MATH)
def combine(
    table: Floats, start: int, stop: int, plan: TreePlan, view: int, small: Floats, base: int, mode: int
) -> None:
    """table = small (mode 0), table *= small (mode 1) or table += small (mode 2), through a view."""
    first, last = plan.views[view], plan.views[view + 1]
    rows, columns = plan.dims[last - 2], plan.dims[last - 1]
    row_stride, stride = plan.strides[last - 2], plan.strides[last - 1]
    counter = np.zeros(max(1, last - first), dtype=np.int64)
    p = start
    while p < stop:
        for i in range(rows):
            q = base + i * row_stride
            if stride == 0:
                value = small[q]
                if mode == 0:
                    for j in range(columns):
                        table[p + j] = value
                elif mode == 1:
                    for j in range(columns):
                        table[p + j] *= value
                else:
                    for j in range(columns):
                        table[p + j] += value
            elif stride == 1 and mode == 1:
                for j in range(columns):
                    table[p + j] *= small[q + j]
            elif mode == 0:
                for j in range(columns):
                    table[p + j] = small[q + j * stride]
            elif mode == 1:
                for j in range(columns):
                    table[p + j] *= small[q + j * stride]
            else:
                for j in range(columns):
                    table[p + j] += small[q + j * stride]
            p += columns
        base = _next(plan.dims, plan.strides, first, last, counter, base)


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST_MATH)
def add_up(table: Floats, start: int, stop: int, plan: TreePlan, view: int, small: Floats, base: int) -> None:
    """small += table, through a view."""
    first, last = plan.views[view], plan.views[view + 1]
    rows, columns = plan.dims[last - 2], plan.dims[last - 1]
    row_stride, stride = plan.strides[last - 2], plan.strides[last - 1]
    counter = np.zeros(max(1, last - first), dtype=np.int64)
    p = start
    while p < stop:
        for i in range(rows):
            q = base + i * row_stride
            if stride == 0:
                total = 0.0
                for j in range(columns):
                    total += table[p + j]
                small[q] += total
            elif stride == 1:
                for j in range(columns):
                    small[q + j] += table[p + j]
            else:
                for j in range(columns):
                    small[q + j * stride] += table[p + j]
            p += columns
        base = _next(plan.dims, plan.strides, first, last, counter, base)


@njit(cache=True, nogil=True, error_model="numpy")
def log_add_up(
    table: Floats, start: int, stop: int, plan: TreePlan, view: int, small: Floats, base: int, size: int
) -> None:
    """small = log of the sum of exp(table), through a view."""
    tops = np.full(size, -np.inf)
    first, last = plan.views[view], plan.views[view + 1]
    rows, columns = plan.dims[last - 2], plan.dims[last - 1]
    row_stride, stride = plan.strides[last - 2], plan.strides[last - 1]
    for k in range(size):
        small[base + k] = 0.0
    for second in range(2):
        counter = np.zeros(max(1, last - first), dtype=np.int64)
        p, q0 = start, 0
        while p < stop:
            for i in range(rows):
                q = q0 + i * row_stride
                for j in range(columns):
                    if second == 0:
                        tops[q + j * stride] = max(tops[q + j * stride], table[p + j])
                    elif table[p + j] != -np.inf:
                        small[base + q + j * stride] += exp(table[p + j] - tops[q + j * stride])
                p += columns
            q0 = _next(plan.dims, plan.strides, first, last, counter, q0)
    for k in range(size):
        small[base + k] = tops[k] + math.log(small[base + k]) if tops[k] != -np.inf else -np.inf
