"""Arithmetic for the kernels: an exponential and a logarithm that inline, and short loops over entries of arrays.

Numba calls the C library for each scalar ``exp``; the call cannot be inlined or vectorised and costs two to
three times as much as the arithmetic below, which is the textbook range reduction exp(x) = 2^n exp(r) with
|r| <= log(2)/2 and a Taylor polynomial of degree 13 for exp(r), accurate to two units in the last place.

The range of linear space, for every route that multiplies instead of adding logarithms.

A route holds exponentials of scores and messages side by side. They are exact to rounding under two rules, and where
one is broken the route gives up and the caller does the same work in log space:

- A vector or table of logarithms is taken over, divided by its largest entry, only if its range is below ``WIDEST``;
  the smallest entry, exp(-600) = 3e-261, then still has all its digits.
- A sum, product or quotient that is kept, or whose logarithm is taken, lies between ``LEAST`` and ``MOST``. A term that
  underflows on the way to such a sum is below 2e-308, which is nothing beside 1e-280.

Beliefs far from each other are also why a sweep that changes no marginal may not be the last: a state of belief
exp(-500) that gains a factor exp(100) per sweep decides everything a few sweeps later. So a state whose belief still
rises by more than the factor 1 + ``RISE`` counts as a change of ``RISING``. One that falls does no harm, nor does one
that rises by less: most of these are near their limit, and 1 % a sweep takes a thousand sweeps for a factor exp(10).

A forbidden score is -inf and its exponential 0, so 0 must never come from underflow: only :mod:`.tables` and the
routes that say so take scores of -inf.

Arithmetic on n successive entries of arrays, where messages are passed in linear space: an array comes with the place
of its first entry, since slices cost more than so short a loop. Places are unsigned within loops: an index that might
be negative would be looked at for each entry, and keeps loops from being vectorised. A kernel that is given a tuple as
``states`` is compiled for hubs that all have as many states as it is long, and its loops over them are unrolled; with
``()`` for any: :func:`place` and :func:`size_of` are what differs.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from bactrian.arrays import Floats, Ints
from bactrian.compiling import COMPILED, njit

#: Its length is the number of states of all hubs; empty where they differ.
States = tuple[int, ...]
#: Of an index that is never negative.
unsigned: Any = np.uint64 if COMPILED else int
ONE, TWO, THREE, FOUR = unsigned(1), unsigned(2), unsigned(3), unsigned(4)
#: The start of an array, and no link, as numbers that are no literals: for each literal a function is compiled again.
START: Any = np.int64(0)
NO_LINK: Any = np.int64(-1)
#: Columns from which rows of a matrix are added up as vectors.
_MANY = unsigned(12)

#: Range of logarithms from which exponentials no longer share one scale.
WIDEST = 600.0
#: Bounds of numbers in linear space.
LEAST, MOST = 1e-280, 1e280
#: Part by which a belief, however small, may still rise in a sweep that counts as the last, and what more counts as.
RISE, RISING = 1e-2, 1e-3


@njit()
def in_range(values: Floats, at: int, size: int) -> bool:
    """Whether the ``size`` values from values[at] on lie between ``LEAST`` and ``MOST``; False for NaN."""
    outside, at = 0, unsigned(at)
    for k in range(unsigned(size)):  # a count, which vectorises
        outside += not LEAST < values[at + k] < MOST
    return outside == 0


#: Flags that let LLVM fuse and reorder sums, but keep infinities and NaN meaningful.
FAST_MATH = {"contract", "nsz", "arcp", "reassoc"}
#: Flags under which the exponential and the logarithm keep their digits.
CAREFUL = {"contract", "nsz"}

_ROUND = 6755399441055744.0  # 1.5 * 2^52: adding it rounds to an integer kept in the low bits
_ONE_BITS = 4607182418800017408  # the bit pattern of 1.0
_ROOT_HALF_BITS = 4604544271217802189  # the bit pattern of sqrt(1/2)
_MANTISSA = 4503599627370495
_BIAS = 1 << 62
_TWO_52_BITS = 4841369599423283200  # the bit pattern of 2^52
_TWO_52_AND_BIAS = 4503599627370496.0 + 1024.0
_LOG2_HIGH = 6.93147180369123816490e-01
_LOG2_LOW = 1.90821492927058770002e-10


# No `reassoc`: the rounding trick below depends on the order of two additions.
@njit(fastmath=CAREFUL, forceinline=True)
def exp(x: float) -> float:
    """exp(x); 0 below -708 (and for -inf), exp(709) above 709."""
    clipped = x if x > -708.0 else -708.0
    clipped = clipped if clipped < 709.0 else 709.0
    shifted = clipped * 1.4426950408889634 + _ROUND
    bits = np.float64(shifted).view(np.int64)
    n = shifted - _ROUND
    r = (clipped - n * _LOG2_HIGH) - n * _LOG2_LOW
    r2 = r * r
    r4 = r2 * r2
    low = (1.0 + r) + r2 * (0.5 + r * (1.0 / 6.0))
    middle = (1.0 / 24.0 + r * (1.0 / 120.0)) + r2 * (1.0 / 720.0 + r * (1.0 / 5040.0))
    high = (1.0 / 40320.0 + r * (1.0 / 362880.0)) + r2 * (1.0 / 3628800.0 + r * (1.0 / 39916800.0))
    top = 1.0 / 479001600.0 + r * (1.0 / 6227020800.0)
    polynomial = low + r4 * (middle + r4 * (high + r4 * top))
    power = np.int64((bits << 52) + _ONE_BITS).view(np.float64)
    below = 0.0 if x < -708.0 else x  # NaN stays NaN
    return polynomial * power if x >= -708.0 else below


@njit()
def logsumexp(values: np.ndarray, start: int, stop: int) -> float:
    """log of the sum of exp(values[start:stop]); -inf where the slice is empty or all -inf."""
    top = -np.inf
    for k in range(start, stop):
        top = max(top, values[k])
    if top == -np.inf:
        return -np.inf
    total = 0.0
    for k in range(start, stop):
        total += exp(values[k] - top)
    return top + math.log(total)


@njit()
def normalise_logs(values: np.ndarray, start: int, stop: int) -> float:
    """Subtract from values[start:stop] the log of the sum of their exponentials, and return it; -inf: none is finite.

    The largest value is taken away first, so that exponentials of the result add up to 1 however large it was.
    """
    top = -np.inf
    for k in range(start, stop):
        top = max(top, values[k])
    if top == -np.inf:
        return -np.inf
    total = 0.0
    for k in range(start, stop):
        values[k] -= top
        total += exp(values[k])
    rest = math.log(total)
    for k in range(start, stop):
        values[k] -= rest
    return top + rest


# Nor here: fused or reordered, the two parts of the exponent's logarithm would lose their point.
@njit(fastmath=CAREFUL, forceinline=True)
def log(x: float) -> float:
    """log(x) of a normal positive number, accurate to two units in the last place; anything else gives nonsense.

    x = 2^n m with m from sqrt(1/2) to sqrt(2), and log m = 2 artanh(s), s = (m - 1) / (m + 1), by its Taylor series.
    """
    bits = np.float64(x).view(np.int64) - _ROOT_HALF_BITS
    # n + 1024 sits in the upper bits; below those of 2^52 it becomes a float without a conversion, which vectorises.
    n = np.int64(((bits + _BIAS) >> 52) | _TWO_52_BITS).view(np.float64) - _TWO_52_AND_BIAS
    m = np.int64((bits & _MANTISSA) + _ROOT_HALF_BITS).view(np.float64)
    s = (m - 1.0) / (m + 1.0)
    z = s * s
    z2 = z * z
    z4 = z2 * z2
    low = (1.0 / 3.0 + z * (1.0 / 5.0)) + z2 * (1.0 / 7.0 + z * (1.0 / 9.0))
    middle = (1.0 / 11.0 + z * (1.0 / 13.0)) + z2 * (1.0 / 15.0 + z * (1.0 / 17.0))
    high = (1.0 / 19.0 + z * (1.0 / 21.0)) + z2 * (1.0 / 23.0)
    series = z * (low + z4 * (middle + z4 * high))
    return n * _LOG2_HIGH + (2.0 * s + (n * _LOG2_LOW + 2.0 * s * series))


# --- successive entries of arrays ---


@njit(forceinline=True)
def place(offsets: Ints, i: int, states: States) -> int:
    """``offsets[i]``, which is i times the number of states where that is known."""
    return i * len(states) if len(states) > 0 else offsets[i]


@njit(forceinline=True)
def size_of(offsets: Ints, i: int, states: States) -> int:
    """The number of states that item ``i`` has."""
    return len(states) if len(states) > 0 else offsets[i + 1] - offsets[i]


@njit(fastmath=FAST_MATH, forceinline=True)
def pair_message(
    entries: Floats, turned: int, start: int, axis: int, source: Floats, at: int, target: Floats, to: int, m: int,
    n: int,
) -> None:  # fmt: skip
    """m = E'u: target[to:] from source[at:]; E begins at ``start`` and is (m, n) for ``axis`` 1, (n, m) for 0.

    E's transpose begins ``turned`` further, unless that is 0.
    """
    start, at, to, m, n = unsigned(start), unsigned(at), unsigned(to), unsigned(m), unsigned(n)
    if axis == 0 and turned == 0:
        for r in range(n):
            total, row = 0.0, start + r * m
            for c in range(m):
                total += entries[row + c] * source[at + c]
            target[to + r] = total
        return
    start, last = start if axis == 1 else start + unsigned(turned), n - ONE
    if n < _MANY:  # four columns at a time, the last of them as often as needed
        for block in range((n + THREE) // FOUR):
            a = FOUR * block
            b, c, d = min(a + ONE, last), min(a + TWO, last), min(a + THREE, last)
            w = x = y = z = 0.0
            for r in range(m):
                factor, row = source[at + r], start + r * n
                w += factor * entries[row + a]
                x += factor * entries[row + b]
                y += factor * entries[row + c]
                z += factor * entries[row + d]
            target[to + a], target[to + b], target[to + c], target[to + d] = w, x, y, z
        return
    for c in range(n):
        target[to + c] = 0.0
    for r in range(m // FOUR):  # four rows at a time
        p, i = start + FOUR * r * n, at + FOUR * r
        q, s, t = p + n, p + n + n, p + n + n + n
        w, x, y, z = source[i], source[i + ONE], source[i + TWO], source[i + THREE]
        for c in range(n):
            target[to + c] += w * entries[p + c] + x * entries[q + c] + y * entries[s + c] + z * entries[t + c]
    for r in range(m - m % FOUR, m):
        factor, row = source[at + r], start + r * n
        for c in range(n):
            target[to + c] += factor * entries[row + c]


@njit()
def smallest(source: Floats, at: int, n: int) -> float:
    """min(source[at:])."""
    found, at = math.inf, unsigned(at)
    for k in range(unsigned(n)):
        found = source[at + k] if source[at + k] < found else found
    return found


@njit(fastmath=CAREFUL, forceinline=True)
def copy_scaled(target: Floats, to: int, source: Floats, at: int, factor: float, n: int) -> None:
    """target[to:] = factor * source[at:]."""
    to, at = unsigned(to), unsigned(at)
    for k in range(unsigned(n)):
        target[to + k] = factor * source[at + k]
