"""Limited-memory BFGS, and its orthant-wise form for an L1 term.

The solver sees a callable that returns value and gradient, and an inner product. Coefficients of the stored vectors in
a direction follow from inner products alone (Chen, Wang and Zhou, NIPS 2014), so each iteration makes one pass over the
memory for inner products and one for the direction, and a distributed inner product is called once for all of them.
With an L1 term the steps are those of OWL-QN (Andrew and Gao, ICML 2007), but only the entries at 0 are held to the
sign of steepest descent: a direction with others cut off takes ten times as many iterations.

Without an L1 term, vectors may be of any type with arithmetic, ``abs`` and ``max``, such as tensors on a GPU, given a
memory that holds and multiplies such vectors.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg.lapack import dtrtrs

from bactrian.arrays import Floats, Ints
from bactrian.solvers.solution import GAINED_IN, Status

#: Pairs that a memory holds unless said otherwise.
PAIRS = 10

#: Inner products of the rows of one matrix with the rows of another.
InnerProducts = Callable[[Floats, Floats], Floats]
#: Value and gradient.
ValueAndGradient = Callable[[Floats], tuple[float, Floats]]

#: Wolfe's conditions: the part of the decrease that the slope promises, and the part of the slope that may be left.
ARMIJO, CURVATURE = 1e-4, 0.9
#: Trials of a line search.
MAX_STEPS = 25
#: Differences of the objective below this, relative to its size, are rounding.
NOISE = 5e-12
#: Least decrease, relative to the objective, that counts as progress: rounding makes no such steps in a row.
_PROGRESS = 1e-13
#: Iterations without a lower value or a smaller gradient before the memory is cleared, and again so many before the
#: solver gives up. So many trials of a line search count as one: among rounding every search takes all it may.
_PATIENCE, _TRIALS = 50, 5


@dataclass(frozen=True)
class Minimum:
    """The best point found."""

    x: Floats
    value: float
    gradient: Floats
    iterations: int
    status: Status  #: CONVERGED, ITERATION_LIMIT, STOPPED or STALLED
    tolerance: float  #: on the largest component of the (pseudo-)gradient, ``relative`` taken into account


@dataclass(frozen=True)
class Step:
    """What the callback sees after an iteration."""

    iteration: int
    x: Floats
    value: float
    gradient_norm: float


def local_inner_products(left: Floats, right: Floats) -> Floats:
    """Inner products within one process."""
    return left @ right.T


def largest_magnitude(x: Any) -> float:
    """Largest absolute entry of a vector or matrix of any array type; 0 where it is empty."""
    return float(abs(x).max()) if all(x.shape) else 0.0


def on_host(x: Any) -> Floats:
    """A copy of a vector of any array type, as an array in memory."""
    array: Floats = x if isinstance(x, np.ndarray) else x.cpu().numpy()
    return array.copy()


def _copied(x: Any) -> Any:
    return x.copy() if isinstance(x, np.ndarray) else x.clone()


class Memory:
    """The last pairs (s, y) of steps and gradient changes, with the inner products among them."""

    def __init__(self, size: int, dimension: int, inner: InnerProducts = local_inner_products) -> None:
        self.size = size
        self.inner = inner
        # One pair more than is remembered: a new one is looked at before the oldest goes.
        self._slots = size + 1
        self._vectors = np.zeros((2 * self._slots, dimension))  # s in the first half, y in the second
        self._gram = np.zeros((2 * self._slots, 2 * self._slots))
        self._order: list[int] = []  # slots, oldest first

    def clear(self) -> None:
        """Forget all pairs."""
        self._order.clear()

    @property
    def is_empty(self) -> bool:
        """Whether there are no pairs."""
        return not self._order

    def largest(self, x: Any) -> float:
        """Largest absolute entry of a vector, wherever its parts are."""
        return largest_magnitude(x)

    @property
    def gathers(self) -> bool:
        """Whether :meth:`direction_within` works: no part of the vectors is elsewhere."""
        return self.inner is local_inner_products

    def add(self, s: Floats, y: Floats, *, within: bool = False) -> None:
        """Store a pair unless its curvature is not positive; ``within``: for :meth:`direction_within` alone.

        The vectors may be overwritten.
        """
        slot = self._free_slot()
        rows = [slot, self._slots + slot]
        self._vectors[slot], self._vectors[rows[1]] = s, y
        if within:
            self._remember(slot, float(s @ s), float(s @ y), float(y @ y))
            return
        products = self.inner(self._vectors, self._vectors[rows])
        self._know(slot, products)
        ss, sy = self._gram[rows, slot].tolist()
        self._remember(slot, ss, sy, self._gram.item(rows[1], rows[1]))

    def direction(self, gradient: Floats) -> Floats:
        """-H g for the inverse-Hessian approximation H; steepest descent, scaled, while the memory is empty."""
        if not self._order:
            norm = np.sqrt(self.inner(gradient[None], gradient[None])[0, 0])
            return -gradient / max(1.0, norm)
        projections = self.inner(self._vectors, gradient[None])[:, 0]
        coefficients, scale = self._coefficients(projections)
        direction: Floats = coefficients @ self._vectors
        direction -= scale * gradient
        return direction

    def direction_within(self, gradient: Floats, free: Ints) -> Floats:
        """The free entries of the direction in which the others stand still, from those entries of the pairs alone."""
        rows = self._gathered(free)
        gram, slots = rows @ rows.T, self._slots
        order = [
            slot
            for slot in self._order
            if gram[slot, slots + slot] > 1e-10 * math.sqrt(gram[slot, slot] * gram[slots + slot, slots + slot])
        ]
        if not order:
            return -gradient / max(1.0, math.sqrt(float(gradient @ gradient)))
        coefficients, scale = _combination(gram, order, rows @ gradient)
        direction: Floats = coefficients @ rows
        direction -= scale * gradient
        return direction

    def _gathered(self, free: Ints) -> Floats:
        return self._vectors[:, free]

    def _free_slot(self) -> int:
        return next(slot for slot in range(self._slots) if slot not in self._order)

    def _know(self, slot: int, products: Floats) -> None:
        """Take up the inner products of all vectors with s and y of a slot, in two columns."""
        for k, row in enumerate((slot, self._slots + slot)):
            self._gram[row] = products[:, k]
            self._gram[:, row] = products[:, k]

    def _remember(self, slot: int, ss: float, sy: float, yy: float) -> bool:
        """Make the pair in a slot the newest, given its inner products, unless its curvature is not positive.

        A change of gradient so small that its square underflows says nothing of the curvature either.
        """
        if yy < sys.float_info.min or sy <= 1e-10 * math.sqrt(ss * yy):
            return False
        if len(self._order) == self.size:
            self._order.pop(0)
        self._order.append(slot)
        return True

    def _coefficients(self, projections: Floats) -> tuple[Floats, float]:
        """Coefficients of the stored vectors and of -gradient in the direction."""
        return _combination(self._gram, self._order, projections)


def _combination(gram: Floats, order: list[int], projections: Floats) -> tuple[Floats, float]:
    """Coefficients of the stored vectors in the direction, and of -gradient, from all inner products.

    The inverse-Hessian approximation is scale I + [S, scale Y] M [S, scale Y]', and M follows from the products of
    pairs: R, the upper triangle of S'Y, its diagonal, and Y'Y (Byrd, Nocedal and Schnabel, Math. Programming 63, 1994).
    """
    slots = gram.shape[0] // 2
    s = np.array(order)
    y = slots + s
    sy, yy = gram[s[:, None], y], gram[y[:, None], y]
    scale = float(sy[-1, -1] / yy[-1, -1])
    along = dtrtrs(sy, projections[s])[0]  # of a matrix it reads the upper triangle
    across = scale * (yy @ along - projections[y]) + sy.diagonal() * along
    coefficients = np.zeros(2 * slots)
    coefficients[s], coefficients[y] = -dtrtrs(sy, across, trans=1)[0], scale * along
    return coefficients, scale


def minimise(
    value_and_gradient: ValueAndGradient,
    x: Floats,
    *,
    tolerance: float,
    relative: float = 0.0,
    gain: float = 0.0,
    max_iterations: int,
    l1: float | Floats = 0.0,
    memory: Memory | None = None,
    unit: Any = None,
    measure: Callable[[Floats], float] | None = None,
    callback: Callable[[Step], bool] | None = None,
    interrupt: Callable[[], bool] | None = None,
) -> Minimum:
    """Minimise a smooth convex function plus ``l1 @ |x|``.

    The gradients that the function returns are kept: it must not write to them later.
    Stops when the largest component of the (pseudo-)gradient is at most ``tolerance``, or ``relative`` of what it was
    at the start, or near that where all that is left to gain is rounding, or when ten iterations gained less than the
    share ``gain`` of the value; ``measure`` gives another norm than the largest component. ``memory`` may come from an
    earlier call on a similar function. Directions are those of a solver to which ``x / unit`` was given, while points,
    gradients and norms stay as they are. The callback returns True to stop. ``interrupt`` is asked after every
    evaluation: where it says True, the evaluation may have been cut short, and the solver returns the point before it.
    """
    l1_vector = np.broadcast_to(np.asarray(l1, dtype=np.float64), x.shape)
    sparse = bool(l1_vector.any())
    memory = memory if memory is not None else Memory(PAIRS, x.size)
    x = _copied(x)
    value, gradient = value_and_gradient(x)
    value += float(l1_vector @ np.abs(x)) if sparse else 0.0
    gradient = _copied(gradient)
    trials = _Trials(value_and_gradient, interrupt)
    if interrupt is not None and interrupt():
        return Minimum(x, value, gradient, 0, Status.STOPPED, tolerance)
    retried = False
    iteration = 0
    best_value, best_norm, idle = np.inf, np.inf, 0
    cleared = False
    before = [np.inf] * GAINED_IN  # values
    while True:
        slope = pseudo_gradient(x, gradient, l1_vector) if sparse else gradient
        norm = memory.largest(slope) if measure is None else measure(slope)
        if iteration == 0:
            tolerance = max(tolerance, relative * norm)
        stop = iteration > 0 and callback is not None and callback(Step(iteration, x, value, norm))
        if gain and before[0] - value < gain * abs(value):
            tolerance = max(tolerance, norm)
        before = [*before[1:], value]
        if norm <= tolerance:
            return Minimum(x, value, gradient, iteration, Status.CONVERGED, tolerance)
        better = value < best_value - _PROGRESS * max(1.0, abs(value)) or norm < 0.9 * best_norm
        idle = 0 if better else idle + max(1, trials.made // _TRIALS)
        trials.made = 0
        if better:  # and only then: small steps in a row must add up
            best_value, best_norm, cleared = min(best_value, value), min(best_norm, norm), False
        if idle >= _PATIENCE and not cleared:
            memory.clear()  # pairs that are mostly rounding mislead, and steepest descent may get off the spot
            cleared = True
        if idle >= 2 * _PATIENCE:
            return Minimum(x, value, gradient, iteration, Status.STALLED, tolerance)
        if stop:
            return Minimum(x, value, gradient, iteration, Status.STOPPED, tolerance)
        if iteration >= max_iterations:
            return Minimum(x, value, gradient, iteration, Status.ITERATION_LIMIT, tolerance)
        found = None
        try:
            if sparse:
                descent, found = _orthant_step(trials, memory, unit, x, value, slope, l1_vector)
            else:
                direction = _direction(memory, unit, slope)
                descent = float(memory.inner(direction[None], slope[None])[0, 0])
                if descent < 0.0:
                    found = _wolfe_search(trials, memory, x, value, direction, descent)
        except _CutShortError:
            return Minimum(x, value, gradient, iteration, Status.STOPPED, tolerance)
        if found is None:
            if retried or memory.is_empty:
                within_rounding = norm <= 10.0 * tolerance and -descent <= 10.0 * NOISE * max(1.0, abs(value))
                status = Status.CONVERGED if within_rounding else Status.STALLED
                return Minimum(x, value, gradient, iteration, status, tolerance)
            memory.clear()
            retried = True
            continue
        retried = False
        new_x, value, new_gradient = found
        step, change = new_x - x, new_gradient - gradient
        if unit is not None:
            step /= unit
            change *= unit
        memory.add(step, change, within=sparse and memory.gathers)
        x, gradient = new_x, new_gradient
        iteration += 1


def _direction(memory: Memory, unit: Any, slope: Any, free: Ints | None = None) -> Any:
    """Minus the inverse Hessian of the memory times a slope; of ``free`` entries alone, the others standing still."""
    own = unit if unit is None or free is None else unit[free]
    scaled = slope if own is None else slope * own
    direction = memory.direction(scaled) if free is None else memory.direction_within(scaled, free)
    if own is not None:
        direction *= own
    return direction


class _CutShortError(Exception):
    """The evaluation just made is not to be used."""


class _Trials:
    """Evaluates the trial points of line searches, counts them, and raises an error where that was cut short."""

    def __init__(self, function: ValueAndGradient, interrupt: Callable[[], bool] | None) -> None:
        self._function, self._interrupt = function, interrupt
        self.made = 0

    def __call__(self, x: Floats) -> tuple[float, Floats]:
        """Value and gradient."""
        found = self._function(x)
        self.made += 1
        if self._interrupt is not None and self._interrupt():
            raise _CutShortError
        return found


def pseudo_gradient(x: Floats, gradient: Floats, l1: float | Floats) -> Floats:
    """Steepest-descent subgradient of smooth + l1 |x| (Andrew and Gao 2007); zero where |gradient| <= l1 at 0."""
    slope = np.abs(gradient)
    slope -= l1
    np.maximum(slope, 0.0, out=slope)
    np.copysign(slope, gradient, out=slope)
    away = np.flatnonzero(x)
    slope[away] = gradient[away] + np.broadcast_to(l1, x.shape)[away] * np.sign(x[away])
    return slope


def largest_slope(x: Any, gradient: Any, l1: float) -> float:
    """Largest entry of the pseudo-gradient; without ``l1``, of vectors of any array type."""
    return largest_magnitude(pseudo_gradient(x, gradient, l1) if l1 else gradient)


_Found = tuple[Floats, float, Floats] | None


def _wolfe_search(
    function: _Trials, memory: Memory, x: Floats, value: float, direction: Floats, descent: float
) -> _Found:
    """A step with sufficient decrease and curvature, by bracketing and cubic interpolation.

    Near the optimum decreases drown in rounding; there a step is also good when the slope says so (the approximate
    Wolfe conditions of Hager and Zhang 2005).
    """
    noise = NOISE * max(1.0, abs(value))
    low, low_value, low_slope = 0.0, value, descent
    high, high_value, high_slope = np.inf, np.nan, np.nan
    best: _Found = None
    t = 1.0
    for _ in range(MAX_STEPS):
        trial = t * direction
        trial += x
        trial_value, trial_gradient = function(trial)
        finite = np.isfinite(trial_value)
        slope = float(memory.inner(direction[None], trial_gradient[None])[0, 0]) if finite else np.nan
        enough = finite and trial_value <= value + ARMIJO * t * descent
        nearly = finite and trial_value <= value + noise and slope <= (2 * ARMIJO - 1.0) * descent
        if not (enough or nearly):
            high, high_value, high_slope = t, trial_value, slope
        else:
            if best is None or trial_value <= best[1]:
                best = (trial, trial_value, _copied(trial_gradient))
            if slope >= CURVATURE * descent:
                return trial, trial_value, best[2] if best[0] is trial else _copied(trial_gradient)
            low, low_value, low_slope = t, trial_value, slope
        if np.isinf(high):
            t = low * min(10.0, max(2.0, low_slope / (descent - low_slope) + 1.0 if low_slope > descent else 4.0))
        else:
            if high - low <= 1e-12 * high:
                break
            t = _interpolate(low, low_value, low_slope, high, high_value, high_slope)
    return best


def _interpolate(
    low: float, low_value: float, low_slope: float, high: float, high_value: float, high_slope: float
) -> float:
    """Minimiser of the cubic through both ends, kept inside the bracket."""
    width = high - low
    t = low + 0.5 * width
    if np.isfinite(high_value) and np.isfinite(high_slope):
        d1 = low_slope + high_slope - 3.0 * (low_value - high_value) / (low - high)
        square = d1 * d1 - low_slope * high_slope
        if 0.0 <= square < np.inf:
            d2 = np.sqrt(square)
            denominator = high_slope - low_slope + 2.0 * d2
            if denominator != 0.0:
                t = high - width * (high_slope + d2 - d1) / denominator
    return float(min(max(t, low + 0.1 * width), high - 0.1 * width))


def _orthant_step(
    function: _Trials, memory: Memory, unit: Any, x: Floats, value: float, slope: Floats, l1: Floats
) -> tuple[float, _Found]:
    """The slope along the direction, and a step within the orthant of x (of -slope where x is 0), by backtracking.

    Entries at 0 that would stay there are left out; others at 0 go downhill or stay.
    """
    free: Any = np.flatnonzero((x != 0.0) | (slope != 0.0)) if memory.gathers else slice(None)
    slope, begin, l1 = slope[free], x[free], l1[free]
    direction = _direction(memory, unit, slope, free if memory.gathers else None)
    downhill = direction * slope < 0.0
    direction = np.where(downhill | (begin != 0.0), direction, 0.0)
    descent = float(memory.inner(direction[None], slope[None])[0, 0])
    if descent >= 0.0:
        direction = np.where(downhill, direction, 0.0)
        descent = float(memory.inner(direction[None], slope[None])[0, 0])
    orthant = np.where((begin != 0.0) | (l1 == 0.0), np.sign(begin), -np.sign(slope))
    noise = NOISE * max(1.0, abs(value))
    t = 1.0
    for _ in range(2 * MAX_STEPS if descent < 0.0 else 0):
        inside = begin + t * direction
        inside[(inside * orthant <= 0.0) & (l1 != 0.0)] = 0.0
        trial = x.copy()  # the function may keep it
        trial[free] = inside
        trial_value, trial_gradient = function(trial)
        trial_value += float(l1 @ np.abs(inside))
        decrease = float(memory.inner(slope[None], (inside - begin)[None])[0, 0])
        if np.isfinite(trial_value) and trial_value <= value + ARMIJO * decrease + noise and decrease < 0.0:
            return descent, (trial, trial_value, trial_gradient)
        t *= 0.5
    return descent, None
