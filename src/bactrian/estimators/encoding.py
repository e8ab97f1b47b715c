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
        found = _Collected(_Known(self._column), X, what)
        return Rows(found.inputs(self.n_features), found.lengths)


class GrowingVocabulary:
    """A vocabulary made from sequences that come in batches, of which it keeps names and counts alone."""

    def __init__(self) -> None:
        self._growing = _Growing()
        self._counts = np.zeros(0, dtype=np.int64)

    def add(self, X: Any, what: str = "X") -> None:
        """Count the features of these sequences."""
        found = _Collected(self._growing, X, what)
        counts = _tokens_with(found.inputs(len(self._growing.columns)))
        counts[: self._counts.size] += self._counts
        self._counts = counts

    def vocabulary(self, min_frequency: int) -> Vocabulary:
        """Features that occurred on at least so many tokens, in the order in which they came."""
        names = list(self._growing.columns)
        kept = np.flatnonzero(self._counts >= min_frequency).tolist()
        return Vocabulary([names[column] for column in kept], len(kept))


def fit_vocabulary(X: Any, min_frequency: int, what: str = "X") -> tuple[Vocabulary, Rows]:
    """The vocabulary of the features that occur on at least ``min_frequency`` tokens, and the rows of ``X`` over it."""
    if is_matrices(X, what):
        rows = _stacked(X, what, None)
        return Vocabulary(None, int(rows.inputs.shape[1])), rows
    growing = _Growing()
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


class _Known(dict[Any, int]):
    """Columns of names and of bundles; unknown names have column -1 and are not kept."""

    def __init__(self, columns: Mapping[str, int]) -> None:
        super().__init__(columns)
        self.bundles: list[tuple[str, ...]] = []

    def __missing__(self, key: Any) -> int:
        if isinstance(key, tuple):
            # Bundles have numbers below -1, which no column has.
            self[key] = number = -2 - len(self.bundles)
            self.bundles.append(key)
            return number
        return self.new_name(key)

    def new_name(self, name: Any) -> int:
        _check_name(name)
        return -1


class _Growing(_Known):
    """The same while the vocabulary is made: names are added as they come."""

    def __init__(self) -> None:
        super().__init__({})
        self.columns: dict[str, None] = {}

    def new_name(self, name: Any) -> int:
        _check_name(name)
        self[name] = column = len(self.columns)
        self.columns[name] = None
        return column


def _check_name(name: Any) -> None:
    if not isinstance(name, str):
        raise TypeError(f"features must be strings, or tuples of strings, found {name!r}")


class _Collected:
    """Columns and values of all tokens, in the order of the tokens."""

    def __init__(self, known: _Known, X: Any, what: str) -> None:
        self._known = known
        self._columns = array("q")
        self._values: array[float] | None = None
        lengths, sizes = array("q"), array("q")
        lookup = known.__getitem__
        for m, sequence in enumerate(X):
            if isinstance(sequence, str | bytes | Mapping) or not isinstance(sequence, Sequence):
                raise TypeError(f"{what}[{m}] must be a list of tokens, found {type(sequence).__name__}")
            lengths.append(len(sequence))
            for t, token in enumerate(sequence):
                before = len(self._columns)
                try:
                    if isinstance(token, Mapping):
                        names, values = features_of_dict(token)
                        self._add_values(values)
                        self._columns.extend(map(lookup, names))
                    elif isinstance(token, list | tuple):
                        self._columns.extend(map(lookup, token))
                        if self._values is not None:
                            self._values.extend([1.0] * len(token))
                    else:
                        raise TypeError(f"a token is a dict or a list of strings, found {type(token).__name__}")
                except TypeError as error:
                    raise TypeError(f"{what}[{m}][{t}]: {error}") from None
                sizes.append(len(self._columns) - before)
        self.lengths: Ints = np.array(lengths, dtype=np.int64)
        self._sizes = np.array(sizes, dtype=np.int64)
        self._bundled = self._bundle_columns()  # now, so that their names are in the vocabulary

    def _add_values(self, values: list[float]) -> None:
        if self._values is None:
            self._values = array("d", [1.0]) * len(self._columns)
        self._values.extend(values)

    def inputs(self, n_features: int) -> Any:
        columns = np.frombuffer(self._columns, dtype=np.int64) if self._columns else np.zeros(0, dtype=np.int64)
        values = np.ones(columns.size) if self._values is None else np.array(self._values)
        rows = np.repeat(np.arange(self._sizes.size), self._sizes)
        own = columns >= 0
        alone = _matrix(rows[own], columns[own], values[own], (self._sizes.size, n_features))
        bundles = self._known.bundles
        if not bundles:
            return alone
        used = columns <= -2
        use = _matrix(rows[used], -2 - columns[used], values[used], (self._sizes.size, len(bundles)))
        of_bundle, bundle_columns = self._bundled
        kept = bundle_columns >= 0
        shape = (len(bundles), n_features)
        return BundledRows(alone, use, _matrix(of_bundle[kept], bundle_columns[kept], np.ones(int(kept.sum())), shape))

    def _bundle_columns(self) -> tuple[Ints, Ints]:
        """Bundle and column of every feature in a bundle."""
        known = self._known
        flat, sizes = array("q"), array("q")
        for bundle in list(known.bundles):
            if any(isinstance(name, tuple) for name in bundle):
                raise TypeError(f"a bundle holds strings alone, found a tuple in {bundle[:3]!r}")
            flat.extend(map(known.__getitem__, bundle))
            sizes.append(len(bundle))
        rows = np.repeat(np.arange(len(known.bundles)), np.array(sizes, dtype=np.int64))
        return rows, np.array(flat, dtype=np.int64)


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
