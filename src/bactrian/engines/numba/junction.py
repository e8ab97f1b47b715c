"""Calibration of a junction tree: collect to the roots, distribute from them (Jensen, Lauritzen and Olesen 1990).

Factors are first multiplied into a few small tables per clique, its *pools*, so that the clique's own table is touched
once for each pool. A *view* tells how the entries of a clique's table, in order, map to entries of a smaller table:
runs of axes with a stride each (0 where the smaller table lacks the axis), neighbouring axes merged where one stride
serves both.

Tables are linear, scaled so that no factor or message exceeds 1. That is exact as long as the product of the smallest
positive entries that meet in a clique stays far from underflow, which is measured on the way; where it does not, the
whole tree is done again with logarithms.

A *circuit* is the collection of many rows of evidence at once, spelt out: sums of products of earlier numbers, one
after the other, and how much each number counts in the last ones. The numbers are those of a table, followed by one per
sum.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bactrian.arrays import Floats, Ints
from bactrian.compiling import kernel, njit
from bactrian.engines.numba.arithmetic import FAST_MATH, WIDEST, exp, log, logsumexp

#: The last of the modes of :func:`combine_tables`.
_ADD_UP = 3


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


@njit()
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


@njit(fastmath=FAST_MATH)
def combine_tables(
    table: Floats, start: int, stop: int, plan: TreePlan, view: int, small: Floats, base: int, mode: int
) -> None:
    """table = small, table *= small, table += small or small += table (modes 0 to 3), through a view."""
    first, last = plan.views[view], plan.views[view + 1]
    rows, columns = plan.dims[last - 2], plan.dims[last - 1]
    row_stride, stride = plan.strides[last - 2], plan.strides[last - 1]
    counter = np.zeros(max(1, last - first), dtype=np.int64)
    p = start
    while p < stop:
        for i in range(rows):
            q = base + i * row_stride
            if mode == _ADD_UP:
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
            elif stride == 0:
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


@njit()
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


@njit()
def _scale(small: Floats, start: int, stop: int) -> tuple[float, float]:
    """Divide by the largest entry; returns its logarithm (-inf where all are 0) and that of the smallest positive."""
    top = 0.0
    for k in range(start, stop):
        top = max(top, small[k])
    if top == 0.0:
        return -np.inf, 0.0
    inverse = 1.0 / top
    low = 1.0
    for k in range(start, stop):
        small[k] *= inverse
        if small[k] > 0.0:
            low = min(low, small[k])
    return math.log(top), math.log(low)


@njit()
def _shift(small: Floats, start: int, stop: int) -> float:
    """Subtract the largest entry and return it; -inf where all are."""
    top = -np.inf
    for k in range(start, stop):
        top = max(top, small[k])
    if top != -np.inf:
        for k in range(start, stop):
            small[k] -= top
    return top


@njit()
def _fill_pool(plan: TreePlan, scores: Floats, pooled: Floats, pool: int, logs: bool) -> tuple[float, float]:
    """Product of a pool's factors, largest entry 1; returns the logarithms of its scale and of its smallest entry."""
    first_factor = plan.pool_offset.size - 1 + 2 * plan.child.size
    start, stop = plan.pool_offset[pool], plan.pool_offset[pool + 1]
    for k in range(start, stop):
        pooled[k] = 0.0
    for factor in range(plan.pool_factors[pool], plan.pool_factors[pool + 1]):
        combine_tables(pooled, start, stop, plan, first_factor + factor, scores, plan.factor_source[factor], 2)
    top = _shift(pooled, start, stop)
    low = 0.0
    if not logs:
        for k in range(start, stop):
            if pooled[k] != -np.inf:
                low = min(low, pooled[k])
            pooled[k] = exp(pooled[k])
    return top, low


@njit()
def _collect(
    plan: TreePlan, scores: Floats, tables: Floats, pooled: Floats, sepsets: Floats, depth: Floats, logs: bool
) -> float:
    """Messages towards the roots; returns log Z (-inf: no state is possible; NaN: logarithms are needed)."""
    n_cliques, n_pools, n_edges = plan.clique_offset.size - 1, plan.pool_offset.size - 1, plan.child.size
    log_partition = 0.0
    for q in range(n_cliques):
        depth[q] = 0.0
        for pool in range(plan.clique_pools[q], plan.clique_pools[q + 1]):
            top, low = _fill_pool(plan, scores, pooled, pool, logs)
            log_partition += top
            depth[q] += low
            if top == -np.inf:
                return -np.inf
            mode = 0 if pool == plan.clique_pools[q] else (2 if logs else 1)
            combine_tables(
                tables, plan.clique_offset[q], plan.clique_offset[q + 1], plan, pool, pooled, plan.pool_offset[pool],
                mode,
            )  # fmt: skip
    is_root = np.ones(n_cliques, dtype=np.bool_)
    for e in range(n_edges):
        child, parent = plan.child[e], plan.parent[e]
        is_root[child] = False
        start, stop = plan.sepset_offset[e], plan.sepset_offset[e + 1]
        first, last = plan.clique_offset[child], plan.clique_offset[child + 1]
        if logs:
            log_add_up(tables, first, last, plan, n_pools + e, sepsets, start, stop - start)
            top, low = _shift(sepsets, start, stop), 0.0
        else:
            if depth[child] < -WIDEST:
                return np.nan
            for k in range(start, stop):
                sepsets[k] = 0.0
            combine_tables(tables, first, last, plan, n_pools + e, sepsets, start, _ADD_UP)
            top, low = _scale(sepsets, start, stop)
        if top == -np.inf:
            return -np.inf
        log_partition += top
        depth[parent] += low
        first, last = plan.clique_offset[parent], plan.clique_offset[parent + 1]
        combine_tables(tables, first, last, plan, n_pools + n_edges + e, sepsets, start, 2 if logs else 1)
    for q in range(n_cliques):
        if is_root[q]:
            if depth[q] < -WIDEST:
                return np.nan
            log_partition += _log_total(tables, plan.clique_offset[q], plan.clique_offset[q + 1], logs)
    return log_partition


@njit()
def _log_total(table: Floats, start: int, stop: int, logs: bool) -> float:
    if logs:
        return logsumexp(table, start, stop)
    total = 0.0
    for k in range(start, stop):
        total += table[k]
    return math.log(total) if total > 0.0 else -np.inf


@njit()
def _distribute(plan: TreePlan, tables: Floats, sepsets: Floats, depth: Floats, message: Floats, logs: bool) -> bool:
    """Messages away from the roots, by division of what was collected; False where logarithms are needed."""
    n_pools, n_edges = plan.pool_offset.size - 1, plan.child.size
    for e in range(n_edges - 1, -1, -1):
        child, parent = plan.child[e], plan.parent[e]
        start, size = plan.sepset_offset[e], plan.sepset_offset[e + 1] - plan.sepset_offset[e]
        first, last = plan.clique_offset[parent], plan.clique_offset[parent + 1]
        if logs:
            log_add_up(tables, first, last, plan, n_pools + n_edges + e, message, 0, size)
            for k in range(size):
                message[k] = message[k] - sepsets[start + k] if sepsets[start + k] != -np.inf else 0.0
            _shift(message, 0, size)
        else:
            for k in range(size):
                message[k] = 0.0
            combine_tables(tables, first, last, plan, n_pools + n_edges + e, message, 0, _ADD_UP)
            for k in range(size):
                message[k] = message[k] / sepsets[start + k] if sepsets[start + k] > 0.0 else 0.0
            depth[child] += _scale(message, 0, size)[1]
            if depth[child] < -WIDEST:
                return False
        first, last = plan.clique_offset[child], plan.clique_offset[child + 1]
        combine_tables(tables, first, last, plan, n_pools + e, message, 0, 2 if logs else 1)
    return True


@njit()
def _read_off(plan: TreePlan, tables: Floats, pooled: Floats, beliefs: Floats, logs: bool) -> None:
    """Normalised marginals of all factors, through those of the pools."""
    first_factor = plan.pool_offset.size - 1 + 2 * plan.child.size
    for q in range(plan.clique_offset.size - 1):
        first, last = plan.clique_offset[q], plan.clique_offset[q + 1]
        if logs:
            top = -np.inf
            for k in range(first, last):
                top = max(top, tables[k])
            for k in range(first, last):
                tables[k] = exp(tables[k] - top)
        for pool in range(plan.clique_pools[q], plan.clique_pools[q + 1]):
            start, stop = plan.pool_offset[pool], plan.pool_offset[pool + 1]
            for k in range(start, stop):
                pooled[k] = 0.0
            combine_tables(tables, first, last, plan, pool, pooled, start, _ADD_UP)
            total = 0.0
            for k in range(start, stop):
                total += pooled[k]
            for k in range(start, stop):
                pooled[k] /= total
            for factor in range(plan.pool_factors[pool], plan.pool_factors[pool + 1]):
                combine_tables(
                    pooled, start, stop, plan, first_factor + factor, beliefs, plan.factor_source[factor], _ADD_UP
                )


@njit()
def calibrate(plan: TreePlan, scores: Floats, beliefs: Floats) -> float:
    """Marginals of all factors, added to ``beliefs`` (laid out like ``scores``), and log Z.

    -inf means that no state is possible; nothing is added to ``beliefs`` then.
    """
    n_cliques = plan.clique_offset.size - 1
    tables, pooled = np.empty(plan.clique_offset[-1]), np.empty(plan.pool_offset[-1])
    sepsets, depth = np.empty(plan.sepset_offset[-1]), np.empty(n_cliques)
    widest = 1
    for e in range(plan.child.size):
        widest = max(widest, plan.sepset_offset[e + 1] - plan.sepset_offset[e])
    message = np.empty(widest)
    logs = False
    log_partition = _collect(plan, scores, tables, pooled, sepsets, depth, logs)
    if log_partition == -np.inf:
        return log_partition
    if math.isnan(log_partition) or not _distribute(plan, tables, sepsets, depth, message, logs):
        logs = True
        log_partition = _collect(plan, scores, tables, pooled, sepsets, depth, logs)
        if log_partition == -np.inf:
            return log_partition
        _distribute(plan, tables, sepsets, depth, message, logs)
    _read_off(plan, tables, pooled, beliefs, logs)
    return log_partition


@kernel()
def calibrate_rows(plan: TreePlan, scores: Floats, beliefs: Floats, log_z: Floats, first: int, last: int) -> None:
    """:func:`calibrate` of rows ``first:last``, one per set of scores."""
    for row in range(first, last):
        log_z[row] = calibrate(plan, scores[row], beliefs[row])


# --- many rows of evidence ---


class Circuit(NamedTuple):
    """Which numbers are multiplied and added up, in steps of sums whose terms have as many factors each."""

    n_given: int  #: numbers of the table
    sums: Ints  #: (n_steps + 1,) range of a step's sums
    terms: NDArray[np.int32]  #: (n_sums + 1,) range of a sum's terms
    widths: Ints  #: (n_steps,) factors of each term
    number: NDArray[np.int32]  #: (n_factors,) of all terms, one after the other


@kernel()
def sum_products(circuit: Circuit, numbers: Floats) -> None:
    """All sums."""
    terms, number, f = circuit.terms, circuit.number, 0
    for step in range(circuit.widths.size):
        width = circuit.widths[step]
        for s in range(circuit.sums[step], circuit.sums[step + 1]):
            total = 0.0
            for _ in range(terms[s], terms[s + 1]):
                term = numbers[number[f]]
                if width > 1:
                    term *= numbers[number[f + 1]]
                if width > 2:
                    term *= numbers[number[f + 2]]
                for k in range(f + 3, f + width):
                    term *= numbers[number[k]]
                total += term
                f += width
            numbers[circuit.n_given + s] = total


@kernel()
def differentiate(circuit: Circuit, numbers: Floats, slopes: Floats) -> None:
    """Derivatives by all numbers, backwards; ``slopes`` holds those by the last ones, and 0 elsewhere.

    A number's derivative times the number is what it counts for.
    """
    terms, number, f = circuit.terms, circuit.number, circuit.number.size
    others = np.empty(circuit.widths.max())
    for step in range(circuit.widths.size - 1, -1, -1):
        width = circuit.widths[step]
        for s in range(circuit.sums[step + 1] - 1, circuit.sums[step] - 1, -1):
            slope = slopes[circuit.n_given + s]
            for _ in range(terms[s], terms[s + 1]):
                f -= width
                if width == 1:
                    slopes[number[f]] += slope
                elif width == 2:
                    a, b = number[f], number[f + 1]
                    slopes[a] += slope * numbers[b]
                    slopes[b] += slope * numbers[a]
                elif width == 3:
                    a, b, c = number[f], number[f + 1], number[f + 2]
                    x, y, z = numbers[a], numbers[b], slope * numbers[c]
                    slopes[a] += y * z
                    slopes[b] += x * z
                    slopes[c] += slope * x * y
                else:
                    before = slope
                    for k in range(width):
                        others[k] = before
                        before *= numbers[number[f + k]]
                    after = 1.0
                    for k in range(width - 1, -1, -1):
                        slopes[number[f + k]] += others[k] * after
                        after *= numbers[number[f + k]]


@kernel()
def log_sum_products(circuit: Circuit, logs: Floats) -> None:
    """Logarithms of all sums, from those of numbers."""
    f = 0
    for step in range(circuit.widths.size):
        width = circuit.widths[step]
        for s in range(circuit.sums[step], circuit.sums[step + 1]):
            top, total = -math.inf, 0.0
            for _ in range(circuit.terms[s], circuit.terms[s + 1]):
                term = 0.0
                for k in range(f, f + width):
                    term += logs[circuit.number[k]]
                f += width
                if term > top:
                    total = total * exp(top - term) + 1.0
                    top = term
                elif term > -math.inf:
                    total += exp(term - top)
            logs[circuit.n_given + s] = top + log(total) if total > 0.0 else top


@kernel()
def share_out(circuit: Circuit, logs: Floats, weights: Floats) -> None:
    """What each number counts for, backwards: a sum's weight is shared out among its terms.

    ``weights`` holds those of the last numbers, and 0 elsewhere.
    """
    f = circuit.number.size
    for step in range(circuit.widths.size - 1, -1, -1):
        width = circuit.widths[step]
        for s in range(circuit.sums[step + 1] - 1, circuit.sums[step] - 1, -1):
            weight, total = weights[circuit.n_given + s], logs[circuit.n_given + s]
            for _ in range(circuit.terms[s], circuit.terms[s + 1]):
                f -= width
                if weight > 0.0:
                    term = 0.0
                    for k in range(f, f + width):
                        term += logs[circuit.number[k]]
                    share = weight * exp(term - total)
                    for k in range(f, f + width):
                        weights[circuit.number[k]] += share
