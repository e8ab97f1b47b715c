"""Labels of sequences: strings, integers or booleans outside, codes 0 to K - 1 inside."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


#: Kinds of labels, in words, and the dtype of an array of them. In Python booleans are integers, so they come first.
_KINDS: dict[Any, tuple[str, Any]] = {
    str: ("strings", object),
    bool | np.bool_: ("booleans", np.bool_),
    int | np.integer: ("integers", np.int64),
}


@dataclass(frozen=True)
class Labels:
    """The labels of a model, sorted."""

    classes: NDArray[Any]

    @staticmethod
    def of(y: Any, given: Any = None) -> Labels:
        """Labels seen in ``y``, or those given."""
        if given is not None:
            listed = given.tolist() if isinstance(given, np.ndarray) else list(given)
            if not listed:
                raise ValueError("labels is empty; a model needs at least one label")
            if len(set(listed)) != len(listed):
                raise ValueError("labels names a label twice")
            return Labels(_as_array(listed))
        seen: set[Any] = set()
        for m, labels in enumerate(_sequences(y)):
            seen.update(_plain(labels, m))
        if not seen:
            raise ValueError("y has no labels; learning needs at least one labelled token")
        return Labels(_as_array(seen))

    def encode(self, y: Any, lengths: Ints) -> Ints:
        """Codes of the labels of all sequences, stacked."""
        code = {label: k for k, label in enumerate(self.classes.tolist())}
        codes: list[int] = []
        for m, plain in enumerate(listed_labels(y, lengths.tolist())):
            try:
                codes.extend([code[label] for label in plain])
            except KeyError as error:
                raise ValueError(f"y[{m}] holds the label {error.args[0]!r}; the labels are {self._list()}") from None
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
        labels: list[Any] = self.classes[codes].tolist()
        return labels

    def evidence(self, partial: Any, lengths: Ints) -> list[dict[int, int]]:
        """Observed labels by position, from label sequences in which None stands for an unknown one."""
        code = {label: k for k, label in enumerate(self.classes.tolist())}
        if not isinstance(partial, Sequence) or len(partial) != lengths.size:
            raise ValueError(f"partial must have one label sequence per sequence: expected {lengths.size}")
        found = []
        for m, labels in enumerate(partial):
            listed = [] if labels is None else list(labels)
            if labels is not None and len(listed) != lengths[m]:
                raise ValueError(
                    f"partial[{m}] must have one entry per token: expected {lengths[m]}, found {len(listed)}"
                )
            for t, label in enumerate(listed):
                if label is not None and label not in code:
                    raise ValueError(f"partial[{m}][{t}] is {label!r}; the labels are {self._list()}, None for unknown")
            found.append({t: code[label] for t, label in enumerate(listed) if label is not None})
        return found

    def _list(self) -> str:
        listed = [repr(label) for label in self.classes.tolist()]
        return ", ".join(listed if len(listed) <= 12 else [*listed[:11], "..."])


def checked_class_weight(class_weight: Any, labels: Labels) -> Any:
    """Class weights as :class:`bactrian.GraphData` takes them, from a dict by label."""
    if not isinstance(class_weight, Mapping):
        return class_weight
    known = labels.classes.tolist()
    for label in class_weight:
        if label not in known:
            raise ValueError(f"class_weight names the label {label!r}; the labels are {labels._list()}")
    return np.array([float(class_weight.get(label, 1.0)) for label in known])


def listed_labels(y: Any, lengths: Sequence[int]) -> list[list[Any]]:
    """Labels of every sequence as Python objects, one for each of its tokens."""
    sequences = _sequences(y)
    if len(sequences) != len(lengths):
        raise ValueError(f"y must have one label sequence per sequence of X: {len(lengths)}, found {len(sequences)}")
    listed = [_plain(labels, m) for m, labels in enumerate(sequences)]
    for m, labels in enumerate(listed):
        if len(labels) != lengths[m]:
            raise ValueError(f"y[{m}] must have one label per token: expected {lengths[m]}, found {len(labels)}")
    return listed


def _sequences(y: Any) -> Sequence[Any]:
    if isinstance(y, str | bytes | Mapping) or not isinstance(y, Iterable):
        raise TypeError(f"y must be a list of label sequences, found {type(y).__name__}")
    return y if isinstance(y, Sequence) else list(y)


def _plain(labels: Any, m: int) -> list[Any]:
    """Labels of one sequence as Python objects."""
    if isinstance(labels, str | bytes | Mapping) or not isinstance(labels, Iterable):
        raise TypeError(f"y[{m}] must be a list of labels, found {labels!r}")
    plain: list[Any] = labels.tolist() if isinstance(labels, np.ndarray) else list(labels)
    for t, label in enumerate(plain):
        if isinstance(label, str):
            continue
        if isinstance(label, np.integer | np.bool_):
            plain[t] = label.item()
        elif not isinstance(label, int) and not is_missing(label):
            raise TypeError(f"y[{m}][{t}] must be a string, an integer or a boolean, found {label!r}")
        if is_missing(label) or label == -1:
            raise ValueError(
                f"y[{m}][{t}] is {label!r}, which stands for an unknown label; learning and scores need every label"
            )
    return plain


def is_missing(label: Any) -> bool:
    """Whether a label is None, NaN, NaT or pandas' NA, which stand for one that is not known."""
    return label is None or type(label).__name__ in ("NAType", "NaTType") or _is_nan(label)


def _is_nan(label: Any) -> bool:
    return isinstance(label, float | np.floating | np.datetime64 | np.timedelta64) and label != label


def _as_array(labels: Iterable[Any]) -> NDArray[Any]:
    listed = list(labels)
    for label in listed:
        if not isinstance(label, str | int | np.integer | np.bool_):
            raise TypeError(f"labels must be strings, integers or booleans, found {label!r}")
    kinds = {next(kind for kind in _KINDS if isinstance(label, kind)) for label in listed}
    if len(kinds) > 1:
        found = " and ".join(words for kind, (words, _) in _KINDS.items() if kind in kinds)
        raise TypeError(f"labels must be all strings, all integers or all booleans, found {found}")
    return np.array(sorted(listed), dtype=_KINDS[kinds.pop()][1])
