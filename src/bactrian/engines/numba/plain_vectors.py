"""What :mod:`bactrian.engines.numba.vectors` does, in NumPy: for ``NUMBA_DISABLE_JIT=1``, where nothing is compiled."""

# ruff: noqa: D103 - what each does is said there

from __future__ import annotations

from typing import Any

import numpy as np

from bactrian.arrays import Floats
from bactrian.engines.numba.arithmetic import RISE

#: An integer, or a tuple that is as long.
Number = Any


def _part(array: Floats, start: int, n: Number) -> Floats:
    return array[start : start + (len(n) if isinstance(n, tuple) else n)]


def _matrix(array: Floats, start: int, m: Number, n: Number) -> Floats:
    rows, columns = (len(size) if isinstance(size, tuple) else size for size in (m, n))
    return array[start : start + rows * columns].reshape(rows, columns)


def pair_message(
    matrix: Floats, start: int, axis: int, source: Floats, at: int, target: Floats, to: int, m: Number, n: Number
) -> None:
    table = _matrix(matrix, start, m, n) if axis == 1 else _matrix(matrix, start, n, m).T
    _part(target, to, n)[:] = _part(source, at, m) @ table


def receive(work: Any, start: int, axis: int, at: int, to: int, m: Number, n: Number) -> None:
    pair_message(work.entries, start, axis, work.message, at, work.product, to, m, n)


def multiply_messages(work: Any, to: int, of: int, degree: int, n: Number) -> None:
    size = len(n) if isinstance(n, tuple) else n
    belief = _part(work.belief, to, n)
    belief[:] = _part(work.psi, to, n)
    for j in range(degree):
        factor = _part(work.product, of + j * size, n)
        belief *= factor
        for value in (factor, belief):
            widen(work.low, 0, work.high, 0, value, 0, n)


def divide_messages(work: Any, at: int, of: int, to: int, degree: int, n: Number) -> None:
    size = len(n) if isinstance(n, tuple) else n
    wanted, change, rise = _part(work.belief, to, n), _part(work.change, 0, n), _part(work.rise, 0, n)
    for j in range(degree):
        message, factor = _part(work.message, at + j * size, n), _part(work.product, of + j * size, n)
        marginal = message * factor
        marginal /= marginal.sum()
        message[:] = wanted / factor
        step = wanted - marginal
        np.copyto(change, np.abs(step), where=np.abs(step) > change)
        np.copyto(rise, step - RISE * marginal, where=step - RISE * marginal > rise)


def spread(work: Any, at: int, to: int, commit: bool, n: Number) -> Any:
    new = _part(work.belief, to, n) / _part(work.product, at, n)
    ratio = new / _part(work.message, at, n)
    if commit:
        _part(work.message, at, n)[:] = new
    return ratio.max() / ratio.min()


def multiply_by(target: Floats, to: int, source: Floats, at: int, n: Number) -> None:
    _part(target, to, n)[:] *= _part(source, at, n)


def divide(target: Floats, to: int, source: Floats, at: int, divisor: Floats, of: int, n: Number) -> None:
    _part(target, to, n)[:] = _part(source, at, n) / _part(divisor, of, n)


def widen(low: Floats, low_at: int, high: Floats, high_at: int, source: Floats, at: int, n: Number) -> None:
    value, least, most = _part(source, at, n), _part(low, low_at, n), _part(high, high_at, n)
    np.copyto(least, value, where=value < least)
    np.copyto(most, value, where=value > most)


def smallest(source: Floats, at: int, n: Number) -> Any:
    return _part(source, at, n).min()


def largest(source: Floats, at: int, n: Number) -> Any:
    return _part(source, at, n).max()


def normalise(target: Floats, to: int, n: Number) -> Any:
    total = _part(target, to, n).sum()
    _part(target, to, n)[:] /= total
    return total


def distance(left: Floats, at: int, right: Floats, of: int, n: Number) -> Any:
    return np.abs(_part(left, at, n) - _part(right, of, n)).max()


def copy_scaled(target: Floats, to: int, source: Floats, at: int, factor: float, n: Number) -> None:
    _part(target, to, n)[:] = factor * _part(source, at, n)


def add_scaled(target: Floats, to: int, source: Floats, at: int, factor: float, n: Number) -> None:
    _part(target, to, n)[:] += factor * _part(source, at, n)


def shift_by(target: Floats, to: int, source: Floats, at: int, number: float, n: Number) -> None:
    _part(target, to, n)[:] = _part(source, at, n) + number


def add_outer(
    counts: Floats, start: int, rows: Floats, at: int, columns: Floats, of: int, weight: float, m: Number, n: Number
) -> None:
    _matrix(counts, start, m, n)[:] += weight * np.outer(_part(rows, at, m), _part(columns, of, n))


def add_rows(
    target: Floats, to: int, source: Floats, index: Any, value: Floats, first: int, last: int, n: Number
) -> None:
    rows = source.reshape(-1, len(n) if isinstance(n, tuple) else n)
    _part(target, to, n)[:] = value[first:last] @ rows[index[first:last]]


def fill(target: Floats, to: int, number: float, n: Number) -> None:
    _part(target, to, n)[:] = number
