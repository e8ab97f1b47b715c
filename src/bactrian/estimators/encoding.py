"""Tokens become rows: from dicts, lists of strings or matrix rows to sparse inputs over a vocabulary.

A token is

- a dict of features: ``{"shape": "Xxx", "capital": True, "length": 3.0}``, where a string is a feature of its own
  (``shape:Xxx``), a boolean or number is the value of the feature named by its key, and lists, sets and dicts of
  these are nested (``key:entry``); or
- a list of strings, each a feature of value 1. An entry may also be a *bundle*, a tuple of strings: bundles that many
  tokens share (all that depends on the word alone, say) are encoded once and multiplied with the weights once; or
- a row of a matrix, dense or sparse, in which case a sequence is the matrix.

A feature that is given twice counts twice.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from bactrian.model.inputs import BundledRows

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Rows:
    """Stacked input rows of all sequences."""

    inputs: Any  #: (n_tokens, n_features) array, scipy.sparse or BundledRows
    lengths: Ints  #: tokens of each sequence


class Vocabulary:
    """Names of features and their columns; matrix inputs have a number of columns and no names."""

    def __init__(self, names: Sequence[str] | None, n_features: int) -> None:
        self.names = None if names is None else list(names)
        self.n_features = n_features
        self._column = {} if names is None else {name: column for column, name in enumerate(names)}
        if len(self._column) != (0 if names is None else n_features):
            raise ValueError("a feature name occurs twice in the vocabulary")

    def encode(self, X: Any, what: str = "X") -> Rows:
        """Rows of sequences over this vocabulary; features that it does not have are ignored."""
        if is_matrices(X, what):
            if self.names is not None:
                raise TypeError(f"{what} holds matrices, but the model was fitted to named features")
            return _stacked(X, what, self.n_features)
        if self.names is None:
            raise TypeError(f"{what} holds named features, but the model was fitted to matrices")
        found = _Collected(_Names(self._column, grows=False), X, what)
        return Rows(found.inputs(self.n_features), found.lengths)


class GrowingVocabulary:
    """A vocabulary made from sequences that come in batches, of which it keeps names and counts alone."""

    def __init__(self) -> None:
        self._names = _Names({}, grows=True)
        self._counts = np.zeros(0, dtype=np.int64)

    def add(self, X: Any, what: str = "X") -> None:
        """Count the features of these sequences."""
        found = _Collected(self._names, X, what)
        counts = _tokens_with(found.inputs(len(self._names.columns)))
        counts[: self._counts.size] += self._counts
        self._counts = counts

    def vocabulary(self, min_frequency: int) -> Vocabulary:
        """Features that occurred on at least so many tokens, in the order in which they came."""
        names = list(self._names.columns)
        kept = np.flatnonzero(self._counts >= min_frequency).tolist()
        return Vocabulary([names[column] for column in kept], len(kept))


def fit_vocabulary(X: Any, min_frequency: int, what: str = "X") -> tuple[Vocabulary, Rows]:
    """The vocabulary of the features that occur on at least ``min_frequency`` tokens, and the rows of ``X`` over it."""
    if is_matrices(X, what):
        rows = _stacked(X, what, None)
        return Vocabulary(None, int(rows.inputs.shape[1])), rows
    growing = _Names({}, grows=True)
    found = _Collected(growing, X, what)
    names = list(growing.columns)
    carried = found.inputs(len(names))
    counts = _tokens_with(carried)
    kept = np.flatnonzero(counts >= min_frequency)
    if isinstance(carried, BundledRows):
        inputs: Any = BundledRows(carried.own[:, kept], carried.use, carried.bundles[:, kept])
    else:
        inputs = carried[:, kept]
    return Vocabulary([names[column] for column in kept.tolist()], kept.size), Rows(inputs, found.lengths)


def _tokens_with(carried: Any) -> Ints:
    """How many tokens carry each feature, be it on their own or in a bundle."""
    counts = np.zeros(carried.shape[1], dtype=np.int64)
    own = carried.own if isinstance(carried, BundledRows) else carried
    np.add.at(counts, own.indices, 1)
    if isinstance(carried, BundledRows):
        used = np.asarray((carried.use != 0).sum(axis=0)).ravel()
        np.add.at(counts, carried.bundles.indices, np.repeat(used, np.diff(carried.bundles.indptr)))
    return counts


def is_matrices(X: Any, what: str) -> bool:
    """Whether the sequences are matrices; an error where they are nothing that has tokens."""
    if isinstance(X, str | bytes | Mapping) or not isinstance(X, Iterable):
        raise TypeError(f"{what} must be a list of sequences, found {type(X).__name__}")
    if isinstance(X, np.ndarray) and X.dtype != object:
        raise TypeError(f"{what} must be a list with one matrix per sequence, found a single array of shape {X.shape}")
    for sequence in X:
        if sp.issparse(sequence) or isinstance(sequence, np.ndarray):
            return True
        if len(sequence):
            return False
    return False


def _stacked(X: Any, what: str, n_features: int | None) -> Rows:
    parts = []
    for m, matrix in enumerate(X):
        if not (sp.issparse(matrix) or isinstance(matrix, np.ndarray)):
            raise TypeError(f"{what}[{m}] must be a matrix like the others, found {type(matrix).__name__}")
        if matrix.ndim != 2:
            raise ValueError(f"{what}[{m}] must have shape (n_tokens, n_features), found {matrix.shape}")
        n_features = int(matrix.shape[1]) if n_features is None else n_features
        if matrix.shape[1] != n_features:
            raise ValueError(f"{what}[{m}] must have {n_features} columns, found {matrix.shape[1]}")
        parts.append(matrix)
    lengths = np.array([part.shape[0] for part in parts], dtype=np.int64)
    sparse = any(sp.issparse(part) for part in parts)
    return Rows(sp.csr_array(sp.vstack(parts, format="csr")) if sparse else np.concatenate(parts), lengths)


# --- named features ---


class _Names:
    """Columns of names, and numbers of bundles.

    ``grows``: names that are new get the next column, while the vocabulary is made. Otherwise their column is -1.
    """

    def __init__(self, columns: dict[str, int], *, grows: bool) -> None:
        self.columns, self.grows = columns, grows
        self.bundles: dict[tuple[str, ...], int] = {}

    def look_up(self, entries: list[Any], *, bundles: bool) -> Ints:
        """Columns of names; bundles, where they are allowed, have numbers below -1, which no column has."""
        found = np.fromiter(map(self.columns.get, entries, repeat(-1)), np.int64, len(entries))
        columns, numbers = self.columns, self.bundles
        known: dict[int, int] = {}  # tokens share whole bundles, and hashing one hashes all its names
        for place in np.flatnonzero(found == -1).tolist():
            entry = entries[place]
            if isinstance(entry, str):
                if self.grows:
                    found[place] = columns.setdefault(entry, len(columns))
            elif isinstance(entry, tuple) and bundles:
                number = known.get(id(entry))
                if number is None:
                    number = known[id(entry)] = numbers.setdefault(entry, len(numbers))
                found[place] = -2 - number
            else:
                raise _BadEntryError(place, entry)
        return found


class _BadEntryError(TypeError):
    """An entry that is no feature."""

    def __init__(self, place: int, entry: Any) -> None:
        super().__init__(f"features must be strings, or tuples of strings, found {entry!r}")
        self.place = place


class _Collected:
    """Columns and values of all tokens, in the order of the tokens."""

    def __init__(self, names: _Names, X: Any, what: str) -> None:
        self._names = names
        entries: list[Any] = []
        values: list[float] | None = None
        lengths, sizes = array("q"), array("q")
        for m, sequence in enumerate(X):
            if isinstance(sequence, str | bytes | Mapping) or not isinstance(sequence, Sequence):
                raise TypeError(f"{what}[{m}] must be a list of tokens, found {type(sequence).__name__}")
            lengths.append(len(sequence))
            for t, token in enumerate(sequence):
                before = len(entries)
                if isinstance(token, list | tuple):
                    entries.extend(token)
                    if values is not None:
                        values.extend([1.0] * len(token))
                elif isinstance(token, Mapping):
                    try:
                        named, given = features_of_dict(token)
                    except TypeError as error:
                        raise TypeError(f"{what}[{m}][{t}]: {error}") from None
                    values = [1.0] * before if values is None else values
                    values.extend(given)
                    entries.extend(named)
                else:
                    raise TypeError(
                        f"{what}[{m}][{t}]: a token is a dict or a list of strings, found {type(token).__name__}"
                    )
                sizes.append(len(entries) - before)
        self.lengths: Ints = np.array(lengths, dtype=np.int64)
        self._sizes = np.array(sizes, dtype=np.int64)
        self._values = None if values is None else np.array(values)
        try:
            self._columns = names.look_up(entries, bundles=True)
        except _BadEntryError as error:
            t = int(np.searchsorted(np.cumsum(self._sizes), error.place, side="right"))
            m = int(np.searchsorted(np.cumsum(self.lengths), t, side="right"))
            raise TypeError(f"{what}[{m}][{t - int(self.lengths[:m].sum())}]: {error}") from None
        self._bundled = self._bundle_columns()  # now, so that their names are in the vocabulary

    def inputs(self, n_features: int) -> Any:
        columns = self._columns
        values = np.ones(columns.size) if self._values is None else self._values
        rows = np.repeat(np.arange(self._sizes.size), self._sizes)
        own = columns >= 0
        alone = _matrix(rows[own], columns[own], values[own], (self._sizes.size, n_features))
        n_bundles = len(self._names.bundles)
        if not n_bundles:
            return alone
        used = columns <= -2
        use = _matrix(rows[used], -2 - columns[used], values[used], (self._sizes.size, n_bundles))
        of_bundle, bundle_columns = self._bundled
        kept = bundle_columns >= 0
        shape = (n_bundles, n_features)
        return BundledRows(alone, use, _matrix(of_bundle[kept], bundle_columns[kept], np.ones(int(kept.sum())), shape))

    def _bundle_columns(self) -> tuple[Ints, Ints]:
        """Bundle and column of every feature in a bundle."""
        bundles = list(self._names.bundles)
        sizes = np.fromiter(map(len, bundles), np.int64, len(bundles))
        rows = np.repeat(np.arange(len(bundles)), sizes)
        try:
            return rows, self._names.look_up(list(chain.from_iterable(bundles)), bundles=False)
        except _BadEntryError as error:
            bundle = bundles[int(rows[error.place])]
            raise TypeError(f"a bundle holds strings alone, found another entry in {bundle[:3]!r}") from None


def _matrix(rows: Ints, columns: Ints, values: NDArray[np.float64], shape: tuple[int, int]) -> sp.csr_array:
    matrix = sp.csr_array((values, (rows, columns)), shape=shape)
    matrix.sum_duplicates()
    return matrix


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
