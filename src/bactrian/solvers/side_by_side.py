"""L-BFGS for many small problems of one dimension side by side: every vector operation serves all of them.

Each row has its own steps, line search (weak Wolfe, by doubling and halving) and memory; rows that are done drop out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from bactrian.arrays import Bools, Floats, Ints
from bactrian.solvers.lbfgs import ARMIJO, CURVATURE, MAX_STEPS, NOISE

#: Values, gradients and gaps of some rows at points, from the rows' numbers and the points.
RowsFunction = Callable[[Ints, Floats], tuple[Floats, Floats, Floats]]

#: Pairs remembered, and iterations without a smaller gap before a row is given up.
_MEMORY, _PATIENCE = 10, 50


@dataclass
class Minima:
    """The rows' last points."""

    x: Floats  #: (n_rows, n)
    value: Floats
    gap: Floats
    iterations: Ints
    evaluations: Ints
    stalled: Bools


def minimise_side_by_side(
    function: RowsFunction,
    x: Floats,
    *,
    tolerance: Floats,
    least: Floats,
    max_iterations: int,
    interrupt: Callable[[], bool],
) -> Minima:
    """Minimise a smooth convex function per row until its gap is at most ``tolerance`` or its value below ``least``."""
    n_rows, n = x.shape
    every = np.arange(n_rows)
    value, slope, gap = function(every, x)
    found = Minima(x.copy(), value, gap, np.zeros_like(every), np.ones_like(every), np.zeros(n_rows, dtype=np.bool_))
    steps, changes = np.zeros((2, _MEMORY, n_rows, n))
    curvature = np.zeros((_MEMORY, n_rows))  # 1 / s.y, 0 where a slot is empty
    scale = 1.0 / np.maximum(1.0, np.sqrt((slope**2).sum(axis=1)))
    best, idle, retried = np.full(n_rows, np.inf), np.zeros(n_rows, dtype=np.int64), np.zeros(n_rows, dtype=np.bool_)
    rows = np.flatnonzero(gap > tolerance)
    for iteration in range(max_iterations):
        if rows.size == 0 or interrupt():
            break
        slots = [(iteration - 1 - k) % _MEMORY for k in range(min(iteration, _MEMORY))]
        direction = _direction(slope[rows], rows, slots, steps, changes, curvature, scale)
        descent = dot(direction, slope[rows])
        uphill = descent >= 0.0
        direction[uphill] = -scale[rows[uphill], None] * slope[rows[uphill]]
        descent[uphill] = dot(direction[uphill], slope[rows[uphill]])
        moved, new_x, new_value, new_slope, new_gap = _search(function, found, rows, slope[rows], direction, descent)
        slot = iteration % _MEMORY
        curvature[slot, rows] = 0.0
        kept = rows[moved]
        s, y = new_x[moved] - found.x[kept], new_slope[moved] - slope[kept]
        sy, yy = dot(s, y), dot(y, y)
        good = sy > 1e-10 * np.sqrt(dot(s, s) * yy)
        steps[slot, kept], changes[slot, kept] = s, y
        curvature[slot, kept[good]] = 1.0 / sy[good]
        scale[kept[good]] = sy[good] / yy[good]
        found.x[kept], found.value[kept], slope[kept] = new_x[moved], new_value[moved], new_slope[moved]
        found.gap[kept] = new_gap[moved]
        found.iterations[kept] += 1
        failed = rows[~moved]
        found.stalled[failed[retried[failed]]] = True
        retried[rows] = ~moved
        curvature[:, failed] = 0.0
        scale[failed] = 1.0 / np.maximum(1.0, np.sqrt((slope[failed] ** 2).sum(axis=1)))
        better = found.gap[rows] < 0.9 * best[rows]
        best[rows] = np.where(better, found.gap[rows], best[rows])
        idle[rows] = np.where(better, 0, idle[rows] + 1)
        found.stalled[rows] |= idle[rows] >= _PATIENCE
        rows = rows[(found.gap[rows] > tolerance[rows]) & ~found.stalled[rows] & (found.value[rows] >= least[rows])]
    return found


def dot(a: Floats, b: Floats) -> Floats:
    """The inner products of rows."""
    return np.einsum("zn,zn->z", a, b)


def _direction(
    slope: Floats, rows: Ints, slots: list[int], steps: Floats, changes: Floats, curvature: Floats, scale: Floats
) -> Floats:
    """The two loops, over slots from the newest."""
    q, parts = slope.copy(), []
    for slot in slots:
        parts.append(curvature[slot, rows] * dot(steps[slot, rows], q))
        q -= parts[-1][:, None] * changes[slot, rows]
    q *= scale[rows, None]
    for slot, part in zip(reversed(slots), reversed(parts), strict=True):
        q += (part - curvature[slot, rows] * dot(changes[slot, rows], q))[:, None] * steps[slot, rows]
    return -q


def _search(
    function: RowsFunction, found: Minima, rows: Ints, slope: Floats, direction: Floats, descent: Floats
) -> tuple[Bools, Floats, Floats, Floats, Floats]:
    """Which rows have a point with a lower value, and the points, values, gradients and gaps."""
    begin, value = found.x[rows], found.value[rows]
    noise = NOISE * np.maximum(1.0, np.abs(value))
    new_x, new_value, new_slope, new_gap = begin.copy(), np.full(rows.size, np.inf), slope.copy(), found.gap[rows]
    t, low, high = np.ones(rows.size), np.zeros(rows.size), np.full(rows.size, np.inf)
    left = np.arange(rows.size)
    for _ in range(MAX_STEPS):
        trial = begin[left] + t[left, None] * direction[left]
        trial_value, trial_slope, trial_gap = function(rows[left], trial)
        found.evaluations[rows[left]] += 1
        along = dot(direction[left], trial_slope)
        enough = trial_value <= value[left] + ARMIJO * t[left] * descent[left]
        nearly = (trial_value <= value[left] + noise[left]) & (along <= (2.0 * ARMIJO - 1.0) * descent[left])
        good = np.isfinite(trial_value) & (enough | nearly)
        use = good & (trial_value <= new_value[left])
        at = left[use]
        new_x[at], new_value[at], new_slope[at], new_gap[at] = (
            trial[use], trial_value[use], trial_slope[use], trial_gap[use]
        )  # fmt: skip
        low[left[good]], high[left[~good]] = t[left[good]], t[left[~good]]
        left = left[~(good & (along >= CURVATURE * descent[left]))]
        left = left[high[left] - low[left] > 1e-12 * t[left]]
        if left.size == 0:
            break
        t[left] = np.where(np.isinf(high[left]), 4.0 * low[left], 0.5 * (low[left] + high[left]))
    return np.isfinite(new_value), new_x, new_value, new_slope, new_gap
