"""Calibration of a junction tree: collect to the roots, distribute from them (Jensen, Lauritzen and Olesen 1990).

Factors are first multiplied into a few small tables per clique, its *pools*, so that the clique's own table is touched
once for each pool (:mod:`bactrian.engines.numba.table_views`).

Tables are linear, scaled so that no factor or message exceeds 1. That is exact as long as the product of the smallest
positive entries that meet in a clique stays far from underflow, which is measured on the way; where it does not, the
whole tree is done again with logarithms.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from bactrian.compiling import njit
from bactrian.engines.numba.arithmetic import exp
from bactrian.engines.numba.ranges import WIDEST
from bactrian.engines.numba.table_views import TreePlan, add_up, combine, log_add_up

Floats = NDArray[np.float64]


@njit(cache=True, nogil=True, error_model="numpy")
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


@njit(cache=True, nogil=True, error_model="numpy")
def _shift(small: Floats, start: int, stop: int) -> float:
    """Subtract the largest entry and return it; -inf where all are."""
    top = -np.inf
    for k in range(start, stop):
        top = max(top, small[k])
    if top != -np.inf:
        for k in range(start, stop):
            small[k] -= top
    return top


@njit(cache=True, nogil=True, error_model="numpy")
def _fill_pool(plan: TreePlan, scores: Floats, pooled: Floats, pool: int, logs: bool) -> tuple[float, float]:
    """Product of a pool's factors, largest entry 1; returns the logarithms of its scale and of its smallest entry."""
    first_factor = plan.pool_offset.size - 1 + 2 * plan.child.size
    start, stop = plan.pool_offset[pool], plan.pool_offset[pool + 1]
    for k in range(start, stop):
        pooled[k] = 0.0
    for factor in range(plan.pool_factors[pool], plan.pool_factors[pool + 1]):
        combine(pooled, start, stop, plan, first_factor + factor, scores, plan.factor_source[factor], 2)
    top = _shift(pooled, start, stop)
    low = 0.0
    if not logs:
        for k in range(start, stop):
            if pooled[k] != -np.inf:
                low = min(low, pooled[k])
            pooled[k] = exp(pooled[k])
    return top, low


@njit(cache=True, nogil=True, error_model="numpy")
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
            combine(
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
            add_up(tables, first, last, plan, n_pools + e, sepsets, start)
            top, low = _scale(sepsets, start, stop)
        if top == -np.inf:
            return -np.inf
        log_partition += top
        depth[parent] += low
        first, last = plan.clique_offset[parent], plan.clique_offset[parent + 1]
        combine(tables, first, last, plan, n_pools + n_edges + e, sepsets, start, 2 if logs else 1)
    for q in range(n_cliques):
        if is_root[q]:
            if depth[q] < -WIDEST:
                return np.nan
            log_partition += _log_total(tables, plan.clique_offset[q], plan.clique_offset[q + 1], logs)
    return log_partition


@njit(cache=True, nogil=True, error_model="numpy")  # no fast math: the exponential depends on the order of sums
def _log_total(table: Floats, start: int, stop: int, logs: bool) -> float:
    total = 0.0
    if not logs:
        for k in range(start, stop):
            total += table[k]
        return math.log(total) if total > 0.0 else -np.inf
    top = -np.inf
    for k in range(start, stop):
        top = max(top, table[k])
    if top == -np.inf:
        return top
    for k in range(start, stop):
        total += exp(table[k] - top)
    return top + math.log(total)


@njit(cache=True, nogil=True, error_model="numpy")
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
            add_up(tables, first, last, plan, n_pools + n_edges + e, message, 0)
            for k in range(size):
                message[k] = message[k] / sepsets[start + k] if sepsets[start + k] > 0.0 else 0.0
            depth[child] += _scale(message, 0, size)[1]
            if depth[child] < -WIDEST:
                return False
        first, last = plan.clique_offset[child], plan.clique_offset[child + 1]
        combine(tables, first, last, plan, n_pools + e, message, 0, 2 if logs else 1)
    return True


@njit(cache=True, nogil=True, error_model="numpy")
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
            add_up(tables, first, last, plan, pool, pooled, start)
            total = 0.0
            for k in range(start, stop):
                total += pooled[k]
            for k in range(start, stop):
                pooled[k] /= total
            for factor in range(plan.pool_factors[pool], plan.pool_factors[pool + 1]):
                add_up(pooled, start, stop, plan, first_factor + factor, beliefs, plan.factor_source[factor])


@njit(cache=True, nogil=True, error_model="numpy")
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
