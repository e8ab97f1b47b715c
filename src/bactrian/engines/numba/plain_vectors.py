"""What :mod:`bactrian.engines.numba.vectors` does, in NumPy: for ``NUMBA_DISABLE_JIT=1``, where nothing is compiled."""

# ruff: noqa: D103 - what each does is said there

from __future__ import annotations

from typing import Any

import numpy as np

from bactrian.arrays import Floats
from bactrian.engines.numba.arithmetic import RISE

States = tuple[Any, ...]


def multiply_matrix(
    matrix: Floats, start: int, source: Floats, at: int, target: Floats, to: int, states: States
) -> None:
    k = len(states)
    target[to : to + k] = source[at : at + k] @ matrix[start : start + k * k].reshape(k, k)


def multiply_by(target: Floats, to: int, source: Floats, at: int, states: States) -> None:
    target[to : to + len(states)] *= source[at : at + len(states)]


def widen(low: Floats, low_at: int, high: Floats, high_at: int, source: Floats, at: int, states: States) -> None:
    k = len(states)
    value = source[at : at + k]
    np.copyto(low[low_at : low_at + k], value, where=value < low[low_at : low_at + k])
    np.copyto(high[high_at : high_at + k], value, where=value > high[high_at : high_at + k])


def multiply_and_widen(
    target: Floats,
    to: int,
    source: Floats,
    at: int,
    low: Floats,
    low_at: int,
    high: Floats,
    high_at: int,
    states: States,
) -> None:
    multiply_by(target, to, source, at, states)
    widen(low, low_at, high, high_at, source, at, states)
    widen(low, low_at, high, high_at, target, to, states)


def smallest(source: Floats, at: int, states: States) -> Any:
    return source[at : at + len(states)].min()


def largest(source: Floats, at: int, states: States) -> Any:
    return source[at : at + len(states)].max()


def normalise(target: Floats, to: int, states: States) -> Any:
    total = target[to : to + len(states)].sum()
    target[to : to + len(states)] /= total
    return total


def divide_out(
    message: Floats, at: int, product: Floats, of: int, belief: Floats, to: int, change: Floats, change_at: int,
    rise: Floats, rise_at: int, states: States,
) -> None:  # fmt: skip
    k = len(states)
    factor, wanted = product[of : of + k], belief[to : to + k]
    marginal = message[at : at + k] * factor
    marginal /= marginal.sum()
    message[at : at + k] = wanted / factor
    step = wanted - marginal
    changed, risen = change[change_at : change_at + k], rise[rise_at : rise_at + k]
    np.copyto(changed, np.abs(step), where=np.abs(step) > changed)
    np.copyto(risen, step - RISE * marginal, where=step - RISE * marginal > risen)


def distance(left: Floats, at: int, right: Floats, of: int, states: States) -> Any:
    return np.abs(left[at : at + len(states)] - right[of : of + len(states)]).max()


def copy_scaled(target: Floats, to: int, source: Floats, at: int, factor: float, states: States) -> None:
    target[to : to + len(states)] = factor * source[at : at + len(states)]


def add_scaled(target: Floats, to: int, source: Floats, at: int, factor: float, states: States) -> None:
    target[to : to + len(states)] += factor * source[at : at + len(states)]


def add_outer(
    counts: Floats, start: int, rows: Floats, at: int, columns: Floats, of: int, weight: float, states: States
) -> None:
    k = len(states)
    counts[start : start + k * k] += (weight * np.outer(rows[at : at + k], columns[of : of + k])).ravel()


def shift_by(target: Floats, to: int, source: Floats, at: int, number: float, states: States) -> None:
    target[to : to + len(states)] = source[at : at + len(states)] + number


def fill(target: Floats, to: int, number: float, states: States) -> None:
    target[to : to + len(states)] = number
