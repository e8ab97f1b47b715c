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

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain, compress, count, repeat
from math import inf
from operator import is_
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from bactrian.arrays import Floats, Ints
from bactrian.engines.numba.sparse import rows_times_weights
from bactrian.graphs.inputs import LARGEST, N_BLOCKS, BundledRows, Inputs, checked_rows
from bactrian.graphs.ragged import pointer
from bactrian.parallel.threads import Workers, blocks_of_rows
from bactrian.text.features import Remembered

# --- columns of names ---

Bundle = tuple[str, ...]

#: Entries below which a block of rows is not worth handing to a thread.
_LEAST_ENTRIES = 8192
#: Different entries of dicts that are remembered from call to call.
_MOST_ENTRIES = 1 << 20
#: Different keys of whole dicts that are.
_MOST_SHAPES = 1 << 12


class Columns:
    """Columns of names in their order; a name that is new gets the next."""

    def __init__(self) -> None:
        self.by_name: dict[str, int] = defaultdict(count().__next__)
        self._entries: DictEntries | None = None

    def __len__(self) -> int:
        """Number of names."""
        return len(self.by_name)

    def column(self, name: str) -> int:
        """That of one name."""
        return self.by_name[name]

    def columns(self, names: list[str]) -> Ints:
        """Those of many."""
        return np.fromiter(map(self.by_name.__getitem__, names), np.int64, len(names))

    def numbered(self, bundles: list[Bundle]) -> tuple[Ints, list[Bundle]]:
        """Number of each bundle, the same for equal ones, in the order in which they came; and the bundle of each."""
        different: dict[Bundle, int] = defaultdict(count().__next__)
        objects = {id(bundle): bundle for bundle in bundles}  # hashing one hashes all its names: once for each object
        number_of = {key: different[bundle] for key, bundle in objects.items()}
        return np.fromiter(map(number_of.__getitem__, map(id, bundles)), np.int64, len(bundles)), list(different)

    @property
    def entries(self) -> DictEntries:
        """Entries of dicts by key and value; begun again when too many have been seen."""
        if self._entries is None or self._entries.count > _MOST_ENTRIES:
            self._entries = DictEntries(self.column)
        return self._entries


class KnownColumns(Columns):
    """Columns of names that are known; any other name has column -1."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__()
        self.by_name = dict(zip(names, count(), strict=False))
        if len(self.by_name) != len(names):
            raise ValueError("a feature name occurs twice in the vocabulary")

    def __reduce__(self) -> tuple[Any, ...]:
        return KnownColumns, (list(self.by_name),)  # without what is remembered of dicts

    def column(self, name: str) -> int:
        """That of one name."""
        return self.by_name.get(name, -1)

    def columns(self, names: list[str]) -> Ints:
        """Those of many."""
        return np.fromiter(map(self.by_name.get, names, repeat(-1)), np.int64, len(names))

    def numbered(self, bundles: list[Bundle]) -> tuple[Ints, list[Bundle]]:
        """Told apart as objects: to compare bundles would cost nearly what it costs to look into them."""
        objects = {id(bundle): bundle for bundle in bundles}
        number_of = dict(zip(objects, count(), strict=False))
        return np.fromiter(map(number_of.__getitem__, map(id, bundles)), np.int64, len(bundles)), list(objects.values())


class DictEntries:
    """Entries of dicts, each a string or number under a key: every different one is looked into once."""

    def __init__(self, column_of: Callable[[str], int]) -> None:
        self.column_of = column_of
        self.lock = Lock()
        self.count = 0
        self.columns, self.values = np.empty(1024, dtype=np.int64), np.empty(1024)  #: by number; as many as counted
        self._keys = Remembered(lambda key: Remembered(partial(self._add, key), inf), inf)  #: numbers by value, by key
        #: The same of all keys of a dict.
        self._shapes = Remembered(lambda keys: tuple(map(self._keys.__getitem__, keys)), _MOST_SHAPES)

    def numbers(self, tokens: list[dict[Any, Any]]) -> tuple[Ints, Ints]:
        """How many entries each token has, and their numbers; TypeError where one holds several features or none."""
        # Most tokens have the same keys in the same order: those are looked up together.
        places = list(map(self._shapes.__getitem__, map(tuple, tokens)))
        sizes = np.fromiter(map(len, places), np.int64, len(places))
        values = chain.from_iterable(map(dict.values, tokens))
        found = map(dict.__getitem__, chain.from_iterable(places), values)
        return sizes, np.fromiter(found, np.int64, int(sizes.sum()))

    def _add(self, key: Any, value: Any) -> int:
        """The number of a new entry."""
        names, values = features_of_dict({key: value})
        if len(names) != 1:
            raise TypeError
        with self.lock:
            number = self.count
            if number == self.columns.size:  # new arrays: whoever holds the old ones has no use for this entry
                self.columns, self.values = np.tile(self.columns, 2), np.tile(self.values, 2)
            self.columns[number], self.values[number] = self.column_of(names[0]), values[0]
            self.count += 1
        return number


# --- rows of tokens ---


class Entries(NamedTuple):
    """Rows by their entries, of which several may be in one column."""

    bounds: Ints  #: (n_tokens + 1,) range of each row
    columns: Ints
    values: Floats
    n_columns: int

    @staticmethod
    def of(sizes: Ints, columns: Ints, values: Floats, n_columns: int) -> Entries:
        """Rows of given sizes, without their entries in column -1."""
        bounds, known = pointer(sizes), columns >= 0
        if known.all():
            return Entries(bounds, columns, values, n_columns)
        return Entries(pointer(known)[bounds], columns[known], values[known], n_columns)

    def matrix(self) -> sp.csr_array:
        """The rows with one entry a column."""
        shape = self.bounds.size - 1, self.n_columns
        matrix = sp.csr_array((self.values, self.columns, self.bounds), shape=shape)
        matrix.sum_duplicates()
        return matrix


@dataclass(frozen=True)
class FeatureRows:
    """Stacked input rows of all sequences."""

    given: Any  #: (n_tokens, n_features) array, scipy.sparse, BundledRows, or Entries, which become a matrix if need be
    lengths: Ints  #: tokens of each sequence

    @cached_property
    def inputs(self) -> Any:
        """(n_tokens, n_features) array, scipy.sparse or BundledRows."""
        return self.given.matrix() if isinstance(self.given, Entries) else self.given

    def times(self, weights: Floats, workers: Workers) -> Floats:
        """Products of the rows with weights (n_features, n_labels), for which entries need no matrix."""
        out = np.empty((int(self.lengths.sum()), weights.shape[1]))
        if not isinstance(self.given, Entries):
            Inputs(self.given).times(weights, out, workers)
            return out
        compressed = self.given.bounds, self.given.columns.astype(np.int32), self.given.values
        flat, flat_out, labels = weights.ravel(), out.reshape(-1), weights.shape[1]
        workers.run(
            lambda _, first, last: rows_times_weights(compressed, flat, flat_out, labels, first, last, ()),
            blocks_of_rows(self.given.bounds, N_BLOCKS, _LEAST_ENTRIES),
        )
        return out


def _rows_of_names(names: Columns, X: Any, what: str) -> FeatureRows:
    """Rows of sequences whose features have names."""
    return _rows_of_dicts(names, X) or _rows_of_entries(names, X, what)


def _rows_of_dicts(names: Columns, X: Any) -> FeatureRows | None:
    """Rows of tokens that are all plain dicts of strings and numbers; None where some are not."""
    if not (X and set(map(type, X)) <= {list, tuple}):
        return None
    tokens = list(chain.from_iterable(X))
    if set(map(type, tokens)) != {dict}:
        return None
    entries = names.entries
    try:
        sizes, numbers = entries.numbers(tokens)
    except TypeError:  # one by one, nested or wrong
        return None
    rows = Entries.of(sizes, entries.columns[numbers], entries.values[numbers], len(names))
    return FeatureRows(rows, np.fromiter(map(len, X), np.int64, len(X)))


def _rows_of_entries(names: Columns, X: Any, what: str) -> FeatureRows:
    """Rows of tokens of any form, from their strings and bundles one after the other."""
    lengths, sizes, entries, values = _entries(X, what)
    kinds = set(map(type, entries))
    if not all(kind is tuple or issubclass(kind, str) for kind in kinds):
        place = next(i for i, entry in enumerate(entries) if type(entry) is not tuple and not isinstance(entry, str))
        token = int(np.searchsorted(pointer(sizes), place, side="right")) - 1
        m = int(np.searchsorted(pointer(lengths), token, side="right")) - 1
        where = f"{what}[{m}][{token - lengths[:m].sum()}]"
        raise TypeError(f"{where}: features must be strings, or tuples of strings, found {entries[place]!r}")
    if tuple not in kinds:
        return FeatureRows(Entries.of(sizes, names.columns(entries), values, len(names)), lengths)
    bundled = np.fromiter(map(is_, map(type, entries), repeat(tuple)), bool, len(entries))
    of_own = names.columns(list(compress(entries, (~bundled).tolist())))
    try:
        numbers, bundles = names.numbered(list(compress(entries, bundled.tolist())))
        listed = list(chain.from_iterable(bundles))
        "".join(listed)
    except TypeError:
        wrong = next(e for e in entries if type(e) is tuple and not all(isinstance(name, str) for name in e))
        raise TypeError(f"a bundle must hold only strings, found {wrong[:3]!r}") from None
    in_bundles, uses = names.columns(listed), np.diff(pointer(bundled)[pointer(sizes)])
    own = Entries.of(sizes - uses, of_own, values[~bundled], len(names))
    use = Entries.of(uses, numbers, values[bundled], len(bundles))
    sizes = np.fromiter(map(len, bundles), np.int64, len(bundles))
    together = Entries.of(sizes, in_bundles, np.ones(in_bundles.size), len(names))
    return FeatureRows(BundledRows(own.matrix(), use.matrix(), together.matrix()), lengths)


def _entries(X: Any, what: str) -> tuple[Ints, Ints, list[Any], Floats]:
    """Lengths of sequences, how many entries their tokens have, the entries of all of them, and their values."""
    for m, sequence in enumerate(X):
        if isinstance(sequence, str | bytes | Mapping) or not isinstance(sequence, Sequence):
            raise TypeError(f"{what}[{m}] must be a list of tokens, found {type(sequence).__name__}")
    tokens: list[Any] = list(chain.from_iterable(X))
    values: Iterable[Iterable[float]] = ()
    if not set(map(type, tokens)) <= {list, tuple}:
        places = (f"{what}[{m}][{t}]" for m, sequence in enumerate(X) for t in range(len(sequence)))
        tokens, values = zip(*map(_features, tokens, places), strict=True)
    sizes = np.fromiter(map(len, tokens), np.int64, len(tokens))
    entries = list(chain.from_iterable(tokens))
    each = np.fromiter(chain.from_iterable(values), np.float64, len(entries)) if values else np.ones(len(entries))
    return np.fromiter(map(len, X), np.int64, len(X)), sizes, entries, each


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
        if isinstance(value, str | bytes):
            names.append(f"{key}:{value if isinstance(value, str) else value.decode()}")
            values.append(1.0)
        elif isinstance(value, bool | int | float | np.bool_ | np.integer | np.floating):
            if not -LARGEST <= value <= LARGEST:
                raise TypeError(f"feature {key!r} must be a finite number of at most {LARGEST:g}, found {value!r}")
            names.append(key)
            values.append(float(value))
        elif isinstance(value, Mapping):
            nested_names, nested_values = features_of_dict(value)
            names.extend(f"{key}:{name}" for name in nested_names)
            values.extend(nested_values)
        elif isinstance(value, list | tuple | set | frozenset):
            for entry in sorted(value) if isinstance(value, set | frozenset) else value:
                if not isinstance(entry, str):
                    raise TypeError(f"feature {key!r} lists {entry!r}; only strings may be listed")
                names.append(f"{key}:{entry}")
                values.append(1.0)
        else:
            raise TypeError(f"feature {key!r} must be a string, number, list or dict, found {type(value).__name__}")
    return names, values


# --- vocabularies ---


class FeatureVocabulary:
    """Names of features and their columns; matrix inputs have a number of columns and no names."""

    def __init__(self, names: Sequence[str] | None, n_features: int) -> None:
        self.names = None if names is None else list(names)
        self.n_features = n_features
        self._columns = KnownColumns([] if names is None else names)

    def encode(self, X: Any, what: str = "X") -> FeatureRows:
        """Rows of sequences over this vocabulary; features that it does not have are ignored."""
        if is_matrices(X, what):
            if self.names is not None:
                raise TypeError(f"{what} holds matrices, but the model was fitted to named features")
            return _stacked(X, what, self.n_features)
        if self.names is None and not any(map(len, X)):
            return FeatureRows(np.zeros((0, self.n_features)), np.zeros(len(X), dtype=np.int64))
        if self.names is None:
            raise TypeError(f"{what} holds named features, but the model was fitted to matrices")
        return _rows_of_names(self._columns, X, what)

    def extended(self, other: FeatureVocabulary) -> FeatureVocabulary:
        """The vocabulary with the names of another behind its own; unchanged where columns have no names."""
        if self.names is None or other.names is None:
            return self
        names = list(dict.fromkeys([*self.names, *other.names]))
        return FeatureVocabulary(names, len(names))


class GrowingVocabulary:
    """A vocabulary made from sequences that come in batches, of which it keeps names and counts alone."""

    def __init__(self) -> None:
        self._columns = Columns()
        self._counts = np.zeros(0, dtype=np.int64)

    def add(self, X: Any, what: str = "X") -> FeatureRows:
        """Count the features of these sequences; their rows, over all names so far, are returned."""
        rows = _rows_of_names(self._columns, X, what)
        counts = _tokens_with(rows.inputs)
        counts[: self._counts.size] += self._counts
        self._counts = counts
        return rows

    def kept(self, min_frequency: int) -> Ints:
        """Columns of the features that occur on at least ``min_frequency`` tokens, in the order in which they came."""
        return np.flatnonzero(self._counts >= min_frequency)

    def vocabulary(self, min_frequency: int) -> FeatureVocabulary:
        """The vocabulary of these features."""
        names, kept = list(self._columns.by_name), self.kept(min_frequency).tolist()
        return FeatureVocabulary([names[column] for column in kept], len(kept))


def fit_vocabulary(X: Any, min_frequency: int, what: str = "X") -> tuple[FeatureVocabulary, FeatureRows]:
    """The vocabulary of the features that occur on at least ``min_frequency`` tokens, and the rows of ``X`` over it."""
    if is_matrices(X, what):
        rows = _stacked(X, what, None)
        return FeatureVocabulary(None, int(rows.inputs.shape[1])), rows
    growing = GrowingVocabulary()
    rows = growing.add(X, what)
    carried, kept = rows.inputs, growing.kept(min_frequency)
    if isinstance(carried, BundledRows):
        inputs: Any = BundledRows(carried.own[:, kept], carried.use, carried.bundles[:, kept])
    else:
        inputs = carried[:, kept]
    return growing.vocabulary(min_frequency), FeatureRows(inputs, rows.lengths)


def _tokens_with(carried: Any) -> Ints:
    """How many tokens carry each feature; one that has it on its own and in a bundle, or in two, counts for each."""
    if not isinstance(carried, BundledRows):
        return np.bincount(carried.indices, minlength=carried.shape[1])
    used = np.repeat(np.asarray((carried.use != 0).sum(axis=0)).ravel(), np.diff(carried.bundles.indptr))
    of_bundles = np.bincount(carried.bundles.indices, used, minlength=carried.shape[1])
    return _tokens_with(carried.own) + of_bundles.astype(np.int64)


def check_sequences(X: Any, what: str) -> None:
    """Refuse what is not a list of sequences."""
    if isinstance(X, str | bytes | Mapping) or not isinstance(X, Collection):
        raise TypeError(f"{what} must be a list of sequences, found {type(X).__name__}")


def is_matrices(X: Any, what: str) -> bool:
    """Whether the sequences are matrices; an error where they are nothing that has tokens."""
    check_sequences(X, what)
    if isinstance(X, np.ndarray) and X.dtype != object:
        raise TypeError(f"{what} must be a list with one matrix per sequence, found a single array of shape {X.shape}")
    for sequence in X:
        if sp.issparse(sequence) or isinstance(sequence, np.ndarray):
            return True
        if len(sequence):
            return False
    return False


def _stacked(X: Any, what: str, n_features: int | None) -> FeatureRows:
    parts = []
    for m, matrix in enumerate(X):
        if not (sp.issparse(matrix) or isinstance(matrix, np.ndarray)):
            raise TypeError(f"{what}[{m}] must be a matrix like the others, found {type(matrix).__name__}")
        if matrix.ndim != 2:
            raise ValueError(f"{what}[{m}] must have shape (n_tokens, n_features), found {matrix.shape}")
        n_features = int(matrix.shape[1]) if n_features is None else n_features
        if matrix.shape[1] != n_features:
            raise ValueError(f"{what}[{m}] must have {n_features} columns, found {matrix.shape[1]}")
        parts.append(checked_rows(matrix, f"{what}[{m}]"))
    lengths = np.array([part.shape[0] for part in parts], dtype=np.int64)
    sparse = any(sp.issparse(part) for part in parts)
    return FeatureRows(sp.csr_array(sp.vstack(parts, format="csr")) if sparse else np.concatenate(parts), lengths)
