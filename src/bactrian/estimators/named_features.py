"""Named features of tokens become columns: dicts and lists of strings, looked up many at a time.

Nearly all the time of encoding goes into visits to memory: to each string of each token and each different bundle, and
to where the vocabulary has it. So tokens are taken some thousand strings at a time, which stay near the processor from
one pass to the next; the passes have no line of Python for each string, and the look-ups are in compiled code, on
threads of their own.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from itertools import chain, compress, repeat
from operator import is_
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from bactrian.estimators.feature_names import AT_ONCE, Bundle, GrowingNames, Names, NoStringError, Wait
from bactrian.graphs.inputs import BundledRows

Ints = NDArray[np.int64]

#: Threads that look names up while the next ones are put together.
_FINDERS = 2


class NamedTokens:
    """Columns and values of the features of all tokens, in their order."""

    def __init__(self, names: Names | GrowingNames, X: Any, what: str) -> None:
        self._n_tokens, self._sizes = array("q"), array("q")
        self._given: list[float] | None = None  # values, once there are dicts: all are 1 without
        with ThreadPoolExecutor(_FINDERS) as pool:
            self._encode(names, X, what, pool)

    def _encode(self, names: Names | GrowingNames, X: Any, what: str, pool: Executor) -> None:
        columns: list[Wait] = []
        bundled = [np.zeros(0, dtype=bool)]
        bundles: list[Bundle] = []
        for entries in self._parts(X, what):
            bundled.append(_are_tuples(entries))
            bundles += _chosen(entries, bundled[-1])
            try:
                columns.append(names.look_up(_chosen(entries, ~bundled[-1]), pool))
            except NoStringError as error:
                raise TypeError(f"{_place(X, error.entry, what)}: {error}") from None
        number, different = names.number(bundles)
        self._n_bundles = len(different)
        rows, in_bundles = _columns_of_bundles(names, different, pool)
        self._bundled: NDArray[np.bool_] = np.concatenate(bundled)
        token = np.repeat(np.arange(len(self._sizes)), self._sizes)
        self._own = token[~self._bundled], np.concatenate([np.zeros(0, dtype=np.int64), *(wait() for wait in columns)])
        self._use = token[self._bundled], number
        self._in_bundles = rows, in_bundles()

    @property
    def lengths(self) -> Ints:
        """Tokens of each sequence."""
        return np.array(self._n_tokens, dtype=np.int64)

    def inputs(self, n_features: int) -> Any:
        """Input rows over so many features."""
        values = None if self._given is None else np.array(self._given)
        n_tokens, bundled = len(self._sizes), self._bundled
        own = _matrix(*self._own, None if values is None else values[~bundled], (n_tokens, n_features))
        if not self._n_bundles:
            return own
        shape = (n_tokens, self._n_bundles)
        use = _matrix(*self._use, None if values is None else values[bundled], shape)
        return BundledRows(own, use, _matrix(*self._in_bundles, None, (self._n_bundles, n_features)))

    def _parts(self, X: Any, what: str) -> Iterator[list[Any]]:
        """Entries of successive tokens, some sequences at a time."""
        entries: list[Any] = []
        for m, sequence in enumerate(X):
            if isinstance(sequence, str | bytes | Mapping) or not isinstance(sequence, Sequence):
                raise TypeError(f"{what}[{m}] must be a list of tokens, found {type(sequence).__name__}")
            self._n_tokens.append(len(sequence))
            if self._given is None and set(map(type, sequence)) <= {list, tuple}:
                self._sizes.extend(map(len, sequence))
                entries.extend(chain.from_iterable(sequence))
            else:
                self._given = [1.0] * sum(self._sizes) if self._given is None else self._given
                for t, token in enumerate(sequence):
                    named, values = _features(token, f"{what}[{m}][{t}]")
                    entries.extend(named)
                    self._given.extend(values)
                    self._sizes.append(len(named))
            if len(entries) >= AT_ONCE:
                yield entries
                entries = []
        yield entries


def _place(X: Any, entry: Any, what: str) -> str:
    """Where an entry is, for a message."""
    return next(
        f"{what}[{m}][{t}]"
        for m, sequence in enumerate(X)
        for t, token in enumerate(sequence)
        if any(other is entry for other in token)
    )


def _are_tuples(entries: list[Any]) -> NDArray[np.bool_]:
    if tuple not in map(type, entries):
        return np.zeros(len(entries), dtype=bool)
    return np.frombuffer(bytes(map(is_, map(type, entries), repeat(tuple))), dtype=bool)


def _chosen(entries: list[Any], chosen: NDArray[np.bool_]) -> list[Any]:
    if chosen.all():
        return entries
    if not chosen.any():
        return []
    return list(compress(entries, chosen.tobytes()))


def _columns_of_bundles(names: Names | GrowingNames, bundles: list[Bundle], pool: Executor) -> tuple[Ints, Wait]:
    """Bundle and column of every feature in a bundle."""
    sizes = np.fromiter(map(len, bundles), np.int64, len(bundles))
    rows = np.repeat(np.arange(sizes.size), sizes)
    try:
        return rows, names.look_up(chain.from_iterable(bundles), pool)
    except NoStringError as error:
        bundle = next(bundle for bundle in bundles if any(entry is error.entry for entry in bundle))
        raise TypeError(f"a bundle holds strings alone, found another entry in {bundle[:3]!r}") from None


def _matrix(rows: Ints, columns: Ints, values: NDArray[np.float64] | None, shape: tuple[int, int]) -> sp.csr_array:
    """Entries in the order of their rows, without those in column -1."""
    known = columns >= 0
    if not known.all():
        rows, columns = rows[known], columns[known]
        values = None if values is None else values[known]
    pointer = np.zeros(shape[0] + 1, dtype=np.int64)
    np.cumsum(np.bincount(rows, minlength=shape[0]), out=pointer[1:])
    matrix = sp.csr_array((np.ones(columns.size) if values is None else values, columns, pointer), shape=shape)
    matrix.sum_duplicates()
    return matrix


def _features(token: Any, what: str) -> tuple[Sequence[Any], Iterable[float]]:
    if isinstance(token, list | tuple):
        return token, repeat(1.0, len(token))
    if not isinstance(token, Mapping):
        raise TypeError(f"{what}: a token is a dict or a list of strings, found {type(token).__name__}")
    try:
        return features_of_dict(token)
    except TypeError as error:
        raise TypeError(f"{what}: {error}") from None


def features_of_dict(token: Mapping[Any, Any]) -> tuple[list[str], list[float]]:
    """Names and values of a token's features.

    >>> features_of_dict({"word": "Ava", "capital": True, "length": 3, "affixes": ["A", "va"]})
    (['word:Ava', 'capital', 'length', 'affixes:A', 'affixes:va'], [1.0, 1.0, 3.0, 1.0, 1.0])
    """
    names: list[str] = []
    values: list[float] = []
    for key, value in token.items():
        if not isinstance(key, str):
            raise TypeError(f"names of features must be strings, found {key!r}")
        if isinstance(value, str):
            names.append(f"{key}:{value}")
            values.append(1.0)
        elif isinstance(value, bool | int | float | np.bool_ | np.integer | np.floating):
            number = float(value)
            if not np.isfinite(number):
                raise TypeError(f"feature {key!r} must be a finite number, found {value!r}")
            names.append(key)
            values.append(number)
        elif isinstance(value, Mapping):
            inner_names, inner_values = features_of_dict(value)
            names.extend(f"{key}:{name}" for name in inner_names)
            values.extend(inner_values)
        elif isinstance(value, list | tuple | set | frozenset):
            for entry in sorted(value) if isinstance(value, set | frozenset) else value:
                if not isinstance(entry, str):
                    raise TypeError(f"feature {key!r} lists {entry!r}; only strings may be listed")
                names.append(f"{key}:{entry}")
                values.append(1.0)
        else:
            raise TypeError(f"feature {key!r} must be a string, number, list or dict, found {type(value).__name__}")
    return names, values
