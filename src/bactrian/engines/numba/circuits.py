"""Sums of products of earlier numbers, one after the other, and how much each number counts in the last ones.

The numbers are those of a table, followed by one per sum. Terms of a sum are products of numbers that come before it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from numpy import int32
from numpy.typing import NDArray

from bactrian.arrays import Floats, Ints
from bactrian.compiling import njit
from bactrian.engines.numba.arithmetic import exp, log


class Circuit(NamedTuple):
    """Which numbers are multiplied and added up."""

    n_given: int  #: numbers of the table
    terms: Ints  #: (n_sums + 1,) range of a sum's terms
    factors: Ints  #: (n_terms + 1,) range of a term's factors
    number: NDArray[int32]  #: (n_factors,)


@njit(cache=True, nogil=True, error_model="numpy")
def add_up(circuit: Circuit, numbers: Floats, linear: bool) -> None:
    """All sums, or their logarithms where the numbers are logarithms."""
    for s in range(circuit.terms.size - 1):
        top, total = -math.inf, 0.0
        for t in range(circuit.terms[s], circuit.terms[s + 1]):
            term = 1.0 if linear else 0.0
            for f in range(circuit.factors[t], circuit.factors[t + 1]):
                number = numbers[circuit.number[f]]
                term = term * number if linear else term + number
            if linear:
                total += term
            elif term > top:
                total = total * exp(top - term) + 1.0
                top = term
            elif term > -math.inf:
                total += exp(term - top)
        numbers[circuit.n_given + s] = total if linear else top + log(total) if total > 0.0 else top


@njit(cache=True, nogil=True, error_model="numpy")
def share_out(circuit: Circuit, numbers: Floats, weights: Floats, linear: bool) -> None:
    """What each number counts for, backwards: a sum's weight is shared out among its terms.

    ``weights`` holds those of the last numbers, and 0 elsewhere.
    """
    for s in range(circuit.terms.size - 2, -1, -1):
        weight, total = weights[circuit.n_given + s], numbers[circuit.n_given + s]
        if weight == 0.0:
            continue
        first, last = circuit.terms[s], circuit.terms[s + 1]
        for t in range(first, last):
            share = weight
            if last - first > 1:
                term = 1.0 if linear else 0.0
                for f in range(circuit.factors[t], circuit.factors[t + 1]):
                    number = numbers[circuit.number[f]]
                    term = term * number if linear else term + number
                share *= term / total if linear else exp(term - total)
            for f in range(circuit.factors[t], circuit.factors[t + 1]):
                weights[circuit.number[f]] += share
