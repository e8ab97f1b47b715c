"""Array types, and arguments as arrays, with errors that name the argument."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bactrian.errors import ArgumentError, ArgumentTypeError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
#: By their names in a file.
Arrays = dict[str, NDArray[Any]]


def rectangular(values: object, name: str) -> NDArray[Any]:
    """``values`` as an array, neither ragged nor with masked entries."""
    if isinstance(values, np.ma.MaskedArray) and np.ma.getmaskarray(values).any():
        place = ", ".join(map(str, np.argwhere(np.ma.getmaskarray(values))[0].tolist()))
        raise ArgumentError(name, f"has masked entries, the first at [{place}]; fill them in")
    try:
        return np.asarray(values)
    except ValueError:
        raise ArgumentError(name, "must be a rectangular array; its rows have different lengths") from None


def real_numbers(values: object, name: str, length: int | None = None) -> Floats:
    """A new array of floats; with ``length``, flat and of that length."""
    array = rectangular(values, name)
    if array.dtype.kind not in "biuf":
        raise ArgumentTypeError(name, f"must hold real numbers, found dtype {array.dtype}")
    if length is not None and array.shape != (length,):
        raise ArgumentError(name, f"must have shape ({length},), found {array.shape}")
    return array.astype(np.float64)


def nonnegative(values: object, name: str, length: int | None = None) -> Floats:
    """A new array of finite floats of at least 0, flat; with ``length``, of that length."""
    array = real_numbers(values, name, length)
    wrong = ~(np.isfinite(array) & (array >= 0.0))
    if wrong.any():
        place = int(np.argmax(wrong))
        raise ArgumentError(name, f"[{place}] must be finite and not negative, found {array[place]}")
    return array


def nonnegative_weights(values: object, name: str, length: int) -> Floats:
    """Weights of instances or labels, not all 0; 1 where none are given."""
    if values is None:
        return np.ones(length)
    array = nonnegative(values, name, length)
    if not array.any():
        raise ArgumentError(name, "must not be all zero")
    return array


def integers(values: object, name: str, length: int | None = None, *, least: int = 0, below: int | None = None) -> Ints:
    """A new flat array of integers from ``least`` to less than ``below``.

    >>> integers([0, 3], "labels", below=3)
    Traceback (most recent call last):
        ...
    bactrian.errors.ArgumentError: labels[1] = 3 is outside 0 to 2
    """
    array = rectangular(values, name)
    if length is not None and array.shape != (length,) and (array.size or length):
        raise ArgumentError(name, f"must have shape ({length},), found {array.shape}")
    if array.ndim != 1:
        raise ArgumentError(name, f"must be a flat sequence of integers, found shape {array.shape}")
    if array.size and array.dtype.kind not in "iu":
        raise ArgumentTypeError(name, f"must be integers, found dtype {array.dtype}")
    wrong = array < least if below is None else (array < least) | (array >= below)
    if wrong.any():
        place = int(np.argmax(wrong))
        limits = f"below {least}" if below is None else f"outside {least} to {below - 1}"
        raise ArgumentError(name, f"[{place}] = {array[place]} is {limits}")
    return array.astype(np.int64)


def number_pairs(values: object, n: int, name: str, what: str = "node") -> Ints:
    """Pairs of two different numbers from 0 to n - 1, shape (n_pairs, 2), of nodes or of ``what``."""
    array = rectangular(values, name)
    if array.size == 0:
        return np.zeros((0, 2), dtype=np.int64)
    if array.ndim != 2 or array.shape[1] != 2:
        raise ArgumentError(name, f"must have shape (n_edges, 2), found {array.shape}")
    if array.dtype.kind not in "iu":
        first = tuple(array[0].tolist())
        raise ArgumentTypeError(name, f"must hold integer {what} numbers, found dtype {array.dtype}: [0] = {first}")
    wrong = array[:, 0] == array[:, 1]
    if array.min() < 0 or array.max() >= n or wrong.any():
        wrong |= ((array < 0) | (array >= n)).any(axis=1)
        e = int(np.argmax(wrong))
        raise ArgumentError(
            name, f"[{e}] = {tuple(array[e].tolist())} must join two different {what}s from 0 to {n - 1}"
        )
    return array.astype(np.int64)


def is_unknown(label: Any) -> bool:
    """Whether a label is unknown: missing, an empty string, or -1."""
    return is_missing(label) or (isinstance(label, str | int | float | np.number) and label in ("", -1))


def is_missing(label: Any) -> bool:
    """Whether a label is missing: None, NaN, NaT or pandas' NA."""
    is_nan = isinstance(label, float | np.floating | np.datetime64 | np.timedelta64) and label != label
    return label is None or is_nan or type(label).__name__ in ("NAType", "NaTType")


def check_minus_one(
    given: Iterable[Any], classes: Iterable[Any], name: str, unknown: str = "None or NaN, or name the classes: labels="
) -> None:
    """Refuse -1, which stands for an unknown label, where the data say that it is a class.

    They do if the known ``classes`` are integers, and either a single one or some of them negative. ``given`` are the
    labels as given, in arrays or lists; ``unknown`` is the advice what to write for unknown ones.
    """
    known = list(classes)
    if not known or isinstance(known[0], str) or (len(known) > 1 and min(known) >= 0):
        return
    cells = (cell for part in given for cell in np.asarray(part, dtype=object).ravel().tolist())
    if any(not is_missing(cell) and cell == -1 for cell in cells):
        beside = f"other negative numbers, such as {min(known)}" if min(known) < 0 else f"no class but {known[0]}"
        raise ArgumentError(
            name,
            f"holds -1, which stands for an unknown label, and {beside}. If -1 is a class, number the classes from 0; "
            f"if it is unknown, write {unknown}",
        )
