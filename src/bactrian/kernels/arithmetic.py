"""Scalar arithmetic for the kernels: an exponential that inlines, and log-sum-exp.

Numba calls the C library for each scalar ``exp``; the call cannot be inlined or vectorised and costs two to
three times as much as the arithmetic below, which is the textbook range reduction exp(x) = 2^n exp(r) with
|r| <= log(2)/2 and a Taylor polynomial of degree 13 for exp(r), accurate to two units in the last place.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import intrinsic

#: Flags that let LLVM fuse and reorder sums, but keep infinities and NaN meaningful.
FAST_MATH = {"contract", "nsz", "arcp", "reassoc"}

_ROUND = 6755399441055744.0  # 1.5 * 2^52: adding it rounds to an integer kept in the low bits
_ONE_BITS = 4607182418800017408  # the bit pattern of 1.0
_LOG2_HIGH = 6.93147180369123816490e-01
_LOG2_LOW = 1.90821492927058770002e-10


@intrinsic
def _bits_of(_context: Any, _value: Any) -> Any:
    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], context.get_value_type(types.int64))

    return types.int64(types.float64), generate


@intrinsic
def _from_bits(_context: Any, _bits: Any) -> Any:
    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], context.get_value_type(types.float64))

    return types.float64(types.int64), generate


# No `reassoc` here, nor in any function that calls this one, since callers' flags reach what is inlined into them: the
# rounding trick below depends on the order of two additions.
@njit(fastmath={"contract", "nsz"}, error_model="numpy", inline="always")
def exp(x: float) -> float:
    """exp(x); 0 below -708 (and for -inf), exp(709) above 709."""
    clipped = x if x > -708.0 else -708.0
    clipped = clipped if clipped < 709.0 else 709.0
    shifted = clipped * 1.4426950408889634 + _ROUND
    bits = _bits_of(shifted)
    n = shifted - _ROUND
    r = (clipped - n * _LOG2_HIGH) - n * _LOG2_LOW
    r2 = r * r
    r4 = r2 * r2
    low = (1.0 + r) + r2 * (0.5 + r * (1.0 / 6.0))
    middle = (1.0 / 24.0 + r * (1.0 / 120.0)) + r2 * (1.0 / 720.0 + r * (1.0 / 5040.0))
    high = (1.0 / 40320.0 + r * (1.0 / 362880.0)) + r2 * (1.0 / 3628800.0 + r * (1.0 / 39916800.0))
    top = 1.0 / 479001600.0 + r * (1.0 / 6227020800.0)
    polynomial = low + r4 * (middle + r4 * (high + r4 * top))
    power = _from_bits((bits << 52) + _ONE_BITS)
    below = 0.0 if x < -708.0 else x  # NaN stays NaN
    return polynomial * power if x >= -708.0 else below


@njit(cache=True, nogil=True, error_model="numpy")
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
