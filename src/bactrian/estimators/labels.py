"""Labels of sequences and of graphs: strings, integers or booleans outside, codes 0 to K - 1 inside."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from bactrian.arrays import (
    Bools,
    Floats,
    Ints,
    check_minus_one,
    is_missing,
    is_unknown,
    nonnegative,
    real_numbers,
    rectangular,
)
from bactrian.errors import ArgumentError, about, check_count
from bactrian.graphs.ragged import pointer

#: Kinds of labels, in words, and the dtype of an array of them. In Python booleans are integers, so they come first.
_KINDS: dict[Any, tuple[str, Any]] = {
    str: ("strings", np.str_),
    bool | np.bool_: ("booleans", np.bool_),
    int | np.integer: ("integers", np.int64),
}


# --- one by one ---


def _plain(labels: Any, name: str, unknown_allowed: bool, any_missing: Callable[[], bool] | None = None) -> list[Any]:
    """Labels as Python objects, None or -1 for unknown ones.

    Beside missing ones, among these labels or as ``any_missing`` says of all, floats may stand for integers.
    """
    given: list[Any] = labels.ravel().tolist() if isinstance(labels, np.ndarray) else list(labels)
    plain, as_floats = given.copy(), None
    for t, label in enumerate(given):
        if isinstance(label, str) and label:
            continue
        if is_unknown(label):
            if not unknown_allowed:
                place = _place(name, t, labels)
                raise ValueError(f"{place} is {label!r}, which stands for an unknown label; every label is needed here")
            plain[t] = None if is_missing(label) or label == "" else -1
        elif isinstance(label, np.integer | np.bool_):
            plain[t] = label.item()
        elif not isinstance(label, int):
            if as_floats is None:
                as_floats = any_missing() if any_missing is not None else any(map(is_missing, given))
            if not (as_floats and isinstance(label, float) and label.is_integer()):
                place = _place(name, t, labels)
                raise TypeError(f"{place} must be a string, an integer or a boolean, found {label!r}")
            plain[t] = int(label)
        if not (plain[t] is None or np.iinfo(np.int64).min <= plain[t] <= np.iinfo(np.int64).max):
            raise ValueError(f"{_place(name, t, labels)} is {plain[t]}, which is beyond 64-bit integers")
    return plain


def _missing_anywhere(parts: Iterable[Any]) -> Callable[[], bool]:
    """Whether a label of any part is missing; computed on first use."""
    return cache(lambda: any(is_missing(label) for part in parts for label in np.array(part, dtype=object).ravel()))


def _place(name: str, t: int, labels: Any) -> str:
    """What to call the label with number ``t``."""
    position = np.unravel_index(t, labels.shape) if isinstance(labels, np.ndarray) else (t,)
    return f"{name}[{', '.join(map(str, position))}]" if position else name


def _dtype_of(labels: Iterable[Any], name: str) -> Any:
    """The dtype of an array of labels, which must be of one kind."""
    kinds = set()
    for label in {type(label): label for label in labels}.values():
        kind = next((kind for kind in _KINDS if isinstance(label, kind)), None)
        if kind is None:
            raise TypeError(f"{name} must be strings, integers or booleans, found {label!r}")
        kinds.add(kind)
    if len(kinds) > 1:
        found = " and ".join(words for kind, (words, _) in _KINDS.items() if kind in kinds)
        raise TypeError(f"{name} must be all strings, all integers or all booleans, found {found}")
    return _KINDS[kinds.pop()][1] if kinds else np.int64


# --- of sequences ---


@dataclass(frozen=True)
class Labels:
    """The labels of a model, sorted."""

    classes: NDArray[Any]

    @staticmethod
    def of(listed: Iterable[Sequence[Any]], given: Any = None) -> Labels:
        """Labels seen in ``listed``, or those given."""
        if given is not None:
            names = given.tolist() if isinstance(given, np.ndarray) else list(given)
            if not names:
                raise ValueError("labels is empty; a model needs at least one label")
            if len(set(names)) != len(names):
                raise ValueError("labels names a label twice")
            dtype = _dtype_of(names, "labels")
            _plain(names, "labels", unknown_allowed=True)
        else:
            parts = list(listed)
            seen = set[Any]().union(*parts)
            names = list(seen - {None, -1})
            if not names:
                raise ValueError("y holds no known label; learning needs at least one")
            mixed = {bool, int} <= set[Any]().union(*(map(type, part) for part in parts))  # True is 1 in a set
            told = [label for part in parts for label in part if label not in (None, -1)] if mixed else names
            dtype = _dtype_of(told, "labels")
        if given is None:
            check_minus_one([[*seen & {-1}]], names, "y")
        return Labels(np.array(sorted(names), dtype=object if dtype is np.str_ else dtype))

    def codes(self, listed: Iterable[Sequence[Any]], name: str = "y") -> Ints:
        """Codes of the labels of all sequences, stacked; -1 for unknown ones."""
        code = {label: k for k, label in enumerate(self.classes.tolist())} | {None: -1, -1: -1}
        codes: list[int] = []
        for m, plain in enumerate(listed):
            try:
                codes.extend([code[label] for label in plain])
            except KeyError as error:
                place = f"{name}[{m}][{plain.index(error.args[0])}]"
                raise ValueError(f"{place} is {error.args[0]!r}; the labels are {self._list()}") from None
        return np.array(codes, dtype=np.int64)

    def check_kind(self, listed: Iterable[Sequence[Any]]) -> None:
        """Refuse labels that can equal none of these, such as strings for integers."""
        strings = self.classes.dtype == object
        for m, labels in enumerate(listed):
            for t, label in enumerate(labels):
                if isinstance(label, str) != strings:
                    raise TypeError(f"y[{m}][{t}] is {label!r}, but the labels are {self._list()}")

    def decode(self, codes: Ints) -> list[Any]:
        """Labels by their codes."""
        return self.classes[codes].tolist()

    def evidence(self, partial: Any, lengths: Ints) -> list[dict[int, int]]:
        """Observed labels by position, from label sequences in which some are unknown; None has none that is known."""
        given = list(_sequences(partial, "partial"))
        for m, n in enumerate(lengths[: len(given)].tolist()):
            given[m] = [None] * n if given[m] is None else given[m]
        listed = listed_labels(given, lengths.tolist(), "partial", unknown_allowed=True)
        return evidence_of(self.codes(listed, "partial"), pointer(lengths))

    def _list(self) -> str:
        listed = [repr(label) for label in self.classes.tolist()]
        return ", ".join(listed if len(listed) <= 12 else [*listed[:11], "..."])


def class_weights(given: Any, classes: NDArray[Any]) -> str | Floats | None:
    """Weights of classes as :class:`bactrian.GraphData` takes them, from a dict by label, or one per class."""
    if given is None or isinstance(given, str):
        return given
    if isinstance(given, Mapping):
        known = classes.tolist()
        for label in given:
            if label not in known:
                raise ValueError(f"class_weight names label {label!r}, which is not one of the {len(known)} classes")
        return np.array([float(given.get(label, 1.0)) for label in known])
    weights = real_numbers(given, "class_weight")
    check_count("class_weight", weights.size, classes.size, "weight per class")
    return weights


def check_class_weight(class_weight: Any) -> None:
    """Refuse what cannot be class weights, whatever the labels."""
    if class_weight is None or (isinstance(class_weight, str) and class_weight == "balanced"):
        return
    if isinstance(class_weight, str | bytes) or not isinstance(class_weight, Mapping | Sequence | np.ndarray):
        expected = "must be 'balanced', a dict or one weight per label"
        raise ArgumentError("class_weight", f"{expected}, found {class_weight!r}")
    weights = list(class_weight.values()) if isinstance(class_weight, Mapping) else class_weight
    nonnegative(weights, "class_weight", len(weights))


def listed_labels(y: Any, lengths: Sequence[int], name: str = "y", *, unknown_allowed: bool = False) -> list[list[Any]]:
    """Labels of every sequence as Python objects, one for each of its tokens; None or -1 for unknown ones."""
    sequences = _sequences(y, name)
    check_count(name, len(sequences), len(lengths), "label sequence per sequence of X")
    listed, any_missing = [], _missing_anywhere(sequences)
    for m, (given, n) in enumerate(zip(sequences, lengths, strict=True)):
        if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
            raise TypeError(f"{name}[{m}] must be a list of labels, found {given!r}")
        labels = _plain(given, f"{name}[{m}]", unknown_allowed, any_missing)
        check_count(name, len(labels), n, "label per token", m)
        listed.append(labels)
    return listed


def _sequences(y: Any, name: str) -> Sequence[Any]:
    if isinstance(y, str | bytes | Mapping) or not isinstance(y, Iterable):
        raise TypeError(f"{name} must be a list of label sequences, found {type(y).__name__}")
    return y if isinstance(y, Sequence) else list(y)


def accuracy(true: Iterable[Sequence[Any]], predicted: Iterable[Sequence[Any]]) -> float:
    """Part of the labels of all sequences that are right; 0 where there are none."""
    hits = [a == b for one, other in zip(true, predicted, strict=True) for a, b in zip(one, other, strict=True)]
    return float(np.mean(hits)) if hits else 0.0


def evidence_of(codes: Ints, pointer: Ints) -> list[dict[int, int]]:
    """Known labels by node, for each of the graphs whose first nodes are in ``pointer``; -1 is an unknown one."""
    nodes = np.flatnonzero(codes >= 0)
    bounds = np.searchsorted(nodes, pointer)
    return [
        dict(zip((nodes[a:b] - first).tolist(), codes[nodes[a:b]].tolist(), strict=True))
        for a, b, first in zip(bounds[:-1], bounds[1:], pointer[:-1], strict=True)
    ]


# --- of graphs ---


def checked_list(X: Any, name: str, what: str, *, may_be_empty: bool = False) -> Sequence[Any]:
    """X as a sequence, checked."""
    if isinstance(X, str | bytes | dict) or sp.issparse(X) or not (isinstance(X, Sequence | np.ndarray)):
        raise TypeError(f"{name} must be a list of {what}, found {type(X).__name__}")
    if len(X) == 0 and not may_be_empty:
        raise ValueError(f"{name} is empty; expected at least one of {what}")
    return X  # type: ignore[return-value]  # an array of arrays serves as well


def checked_labels(
    y: Any, shapes: list[tuple[int, ...]], name: str = "y", *, unknown_allowed: bool = False
) -> NDArray[Any]:
    """Labels of all nodes, stacked and flat: int64, booleans or strings. ``shapes``: of each graph's array.

    -1, and an empty string among strings, stand for a label that is not known.
    """
    given = checked_list(y, name, "label arrays", may_be_empty=not shapes)
    check_count(name, len(given), len(shapes), "array per graph")
    parts, any_missing = [], _missing_anywhere(given)
    for i, (labels, shape) in enumerate(zip(given, shapes, strict=True)):
        with about(name, i):
            array = label_array(labels, "", unknown_allowed=unknown_allowed, any_missing=any_missing)
            if array.size == 0 and math.prod(shape) == 0:
                continue
            check_count("", array.shape, shape, "label per node")
        parts.append(array.ravel())
    told = [part for part in parts if known_labels(part).any()]
    if any(part.dtype.kind == "b" for part in told):  # beside unknown ones booleans are 0 and 1
        told = [part for part in told if known_labels(part).all() or not np.isin(part, (-1, 0, 1)).all()]
    unknown = unknown_label(np.empty(0, _dtype_of([part[0] for part in told], name)))
    parts = [part if known_labels(part).any() else np.full(part.size, unknown) for part in parts]
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)


def label_array(
    labels: Any, name: str, *, unknown_allowed: bool = False, any_missing: Callable[[], bool] | None = None
) -> NDArray[Any]:
    """Labels in any shape as int64, booleans or strings, or an error that calls them ``name``.

    Beside unknown ones, which are -1 or an empty string, booleans are 0 and 1; ``any_missing`` as in :func:`_plain`.
    """
    array = rectangular(labels, name)
    large = array.dtype.kind == "u" and array.size > 0 and int(array.max()) > np.iinfo(np.int64).max
    told = isinstance(labels, np.ndarray)  # or else NumPy may have made numbers of booleans, and strings of numbers
    if array.dtype.kind in "iu" and not told:
        told = bool not in set(map(type, np.asarray(labels, dtype=object).ravel().tolist()))
    if array.dtype.kind == "b" or (told and array.dtype.kind in "iuU" and not large):
        if not unknown_allowed and not known_labels(array).all():
            _plain(array, name, unknown_allowed)  # says where
        return array.astype(np.int64) if array.dtype.kind in "iu" else array
    plain = _plain(np.asarray(labels, dtype=object), name, unknown_allowed, any_missing)
    for t, label in enumerate(plain):
        if isinstance(label, str) and label.endswith("\0"):
            place = _place(name, t, array)
            raise ValueError(f"{place} is {label!r}, and arrays of strings drop the NUL at its end; give another label")
    known = [label for label in plain if label not in (None, -1)]
    dtype = _dtype_of(known, name)
    dtype = np.int64 if dtype is np.bool_ and len(known) < len(plain) else dtype
    unknown = unknown_label(np.empty(0, dtype))
    return np.array([unknown if label in (None, -1) else label for label in plain], dtype).reshape(array.shape)


def unknown_label(labels: NDArray[Any]) -> Any:
    """What stands for a label that is not known, among labels of the kind of ``labels``."""
    return "" if labels.dtype.kind == "U" else -1


def codes_of(labels: NDArray[Any], classes: NDArray[Any], name: str) -> Ints:
    """Position of each label among the sorted ``classes``, -1 for unknown ones; False and True are 0 and 1."""
    known, codes = known_labels(labels), np.full(labels.shape, -1)
    labels = labels[known]
    if {labels.dtype.kind, classes.dtype.kind} == {"b", "i"}:
        labels, classes = labels.astype(np.int64), classes.astype(np.int64)
    check_kind(labels, classes, name)
    place = np.minimum(np.searchsorted(classes, labels), classes.size - 1)
    unknown = classes[place] != labels
    if unknown.any():
        node = int(np.argmax(unknown))
        raise ValueError(f"{name} holds label {labels[node].item()!r}, which is not one of the {classes.size} classes")
    codes[known] = place
    return codes


def known_labels(labels: NDArray[Any]) -> Bools:
    """Which labels do not stand for an unknown one."""
    return labels != unknown_label(labels)


def check_kind(labels: NDArray[Any], classes: NDArray[Any], name: str) -> None:
    """Refuse labels that can equal none of the classes, such as strings for integers."""
    numbers = {labels.dtype.kind, classes.dtype.kind} <= {"b", "i"}
    if labels.size and labels.dtype.kind != classes.dtype.kind and not numbers:
        raise TypeError(f"{name} must hold labels such as {classes[0].item()!r}, found {labels[0].item()!r}")
