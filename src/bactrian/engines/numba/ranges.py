"""The range of linear space, for every route that multiplies instead of adding logarithms.

A route holds exponentials of scores and messages side by side. They are exact to rounding under two rules, and where
one is broken the route gives up and the caller does the same work in log space:

- A vector or table of logarithms is taken over, divided by its largest entry, only if its range is below ``WIDEST``;
  the smallest entry, exp(-600) = 3e-261, then still has all its digits.
- A sum, product or quotient that is kept, or whose logarithm is taken, lies between ``LEAST`` and ``MOST``. A term that
  underflows on the way to such a sum is below 2e-308, which is nothing beside 1e-280.

Beliefs far from each other are also why a sweep that changes no marginal may not be the last: a state of belief
exp(-500) that gains a factor exp(100) per sweep decides everything a few sweeps later. So a state whose belief still
rises by more than the factor 1 + ``RISING`` counts as a change of ``RISING``. One that falls does no harm.

A forbidden score is -inf and its exponential 0, so 0 must never come from underflow: only :mod:`.tables` and the
routes that say so take scores of -inf.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bactrian.compiling import njit

Floats = NDArray[np.float64]

#: Range of logarithms from which exponentials no longer share one scale.
WIDEST = 600.0
#: Bounds of numbers in linear space.
LEAST, MOST = 1e-280, 1e280
#: Numbers this close to their largest have quotients within the bounds.
LEAST_RATIO = 1e-140
#: Part by which a belief, however small, may still rise in a sweep that counts as the last.
RISING = 1e-3


@njit(cache=True, nogil=True, error_model="numpy")
def in_range(values: Floats, size: int) -> bool:
    """Whether the first ``size`` values lie between ``LEAST`` and ``MOST``; False for NaN."""
    outside = 0
    for k in range(size):  # a count, which vectorises
        outside += not LEAST < values[k] < MOST
    return outside == 0
