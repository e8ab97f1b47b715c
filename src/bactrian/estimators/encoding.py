"""Tokens become rows: from dicts, lists of strings or matrix rows to sparse inputs over a vocabulary.

A token is

- a dict of features: ``{"shape": "Xxx", "capital": True, "length": 3.0}``, where a string is a feature of its own
  (``shape:Xxx``), a boolean or number is the value of the feature named by its key, and lists, sets and dicts of
  these are nested (``key:entry``); or
- a list of strings, each a feature of value 1. An entry may also be a *bundle*, a tuple of strings: bundles that many
  tokens share (all that depends on the word alone, say) are encoded once and multiplied with the weights once; or
- a row of a matrix, dense or sparse, in which case a sequence is the matrix.

A feature that is given twice counts twice.

Nearly all the time of encoding goes into visits to memory: to each string of each token and each different bundle, and
to where the vocabulary has it. So tokens are taken some thousand strings at a time, which stay near the processor from
one pass to the next; the passes have no line of Python for each string, and the look-ups are in compiled code, on
threads of their own.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain, compress, count, islice, repeat
from math import inf
from operator import is_
from threading import Lock
from typing import Any, cast

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from bactrian.arrays import Bools, Floats, Ints
from bactrian.engines.numba.sparse import entries_times_weights, fill_slots, find_names
from bactrian.graphs.inputs import LARGEST, N_BLOCKS, BundledRows, Inputs, checked_rows
from bactrian.graphs.ragged import pointer
from bactrian.parallel.threads import Workers, blocks_of_rows
from bactrian.text.features import Remembered

# --- columns of names ---

Bundle = tuple[str, ...]
#: Waits for columns.
Wait = Callable[[], Ints]

#: Strings that are taken at a time, few enough to stay near the processor from one pass to the next.
AT_ONCE = 8192
#: The same of tokens that are dicts, each of which is visited twice.
_TOKENS_AT_ONCE = 64
#: Different entries of dicts that are remembered from call to call.
_MOST_ENTRIES = 1 << 20
#: Different keys of whole dicts that are.
_MOST_SHAPES = 1 << 12


class Names:
    """Columns of names that are known; any other name has column -1."""

    def __init__(self, names: Sequence[str]) -> None:
        self._text = _bytes_of(list(names))
        if self._text.size >= 2**31:
            raise ValueError(f"the names of the features have {self._text.size} bytes; expected less than 2**31")
        self._slots = np.full((1 << (2 * len(names)).bit_length(), 2), -1, dtype=np.int32)
        if not fill_slots(self._text, len(names), self._slots):
            raise ValueError("a feature name occurs twice in the vocabulary")
        self._names = names
        self._entries: DictEntries | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Without what is remembered of dicts."""
        return {**self.__dict__, "_entries": None}

    @property
    def entries(self) -> DictEntries:
        """Entries of dicts by key and value; begun again when too many have been seen."""
        found = self._entries
        if found is None or found.count > _MOST_ENTRIES:
            columns = {name: column for column, name in enumerate(self._names)}
            found = self._entries = DictEntries(lambda name: columns.get(name, -1))
        return found

    def look_up(self, names: Iterable[str], pool: Executor) -> Wait:
        """Column of each name, once it is waited for: found in the pool while the next names are put together."""
        begun: list[Future[Ints]] = []
        rest = iter(names)
        while some := list(islice(rest, AT_ONCE)):
            try:
                wanted = _bytes_of(some)
            except TypeError:
                _check_strings(some)
                raise
            if len(some) < AT_ONCE and not begun:  # too few to wake a thread for
                columns = self._found(wanted, len(some))
                return lambda: columns
            begun.append(pool.submit(self._found, wanted, len(some)))
        return lambda: np.concatenate([np.zeros(0, dtype=np.int64), *(one.result() for one in begun)])

    def _found(self, wanted: NDArray[np.uint8], n_names: int) -> Ints:
        columns = np.empty(n_names, dtype=np.int64)
        find_names(wanted, self._text, self._slots, columns)
        return columns

    def number(self, bundles: list[Bundle]) -> tuple[Ints, list[Bundle]]:
        """Number of each bundle in the order in which they came, and the bundle of each number.

        Told apart as objects: to compare them would cost nearly what it costs to look into them.
        """
        return _by_object(bundles)


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
        sizes: list[int] = []
        numbers: list[Ints] = []
        for first in range(0, len(tokens), _TOKENS_AT_ONCE):
            some = tokens[first : first + _TOKENS_AT_ONCE]
            # Most tokens have the same keys in the same order: those are looked up together.
            places = list(map(self._shapes.__getitem__, map(tuple, some)))
            sizes += map(len, places)
            values = chain.from_iterable(map(dict.values, some))
            found = map(dict.__getitem__, chain.from_iterable(places), values)
            numbers.append(np.fromiter(found, np.int64, sum(sizes[first:])))
        return np.array(sizes), numbers[0] if len(numbers) == 1 else np.concatenate(numbers)

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


class NoStringError(TypeError):
    """An entry that is not a feature."""

    def __init__(self, entry: Any) -> None:
        super().__init__(f"features must be strings, or tuples of strings, found {entry!r}")
        self.entry = entry


def _bytes_of(names: list[str]) -> NDArray[np.uint8]:
    """The names one after the other, each with a zero byte behind it."""
    text = "\0".join(names).encode("utf-8", "surrogatepass") + b"\0" * bool(names)
    if text.count(0) != len(names):  # one has such a character: two bytes that stand for nothing else in UTF-8
        each = (name.encode("utf-8", "surrogatepass").replace(b"\0", b"\xc0\x80") for name in names)
        text = b"\0".join([*each, b""])
    return np.frombuffer(text, dtype=np.uint8)


def _check_strings(entries: list[Any]) -> None:
    if not set(map(type, entries)) <= {str}:
        for entry in entries:
            if not isinstance(entry, str):
                raise NoStringError(entry)


def _by_object(bundles: list[Bundle]) -> tuple[Ints, list[Bundle]]:
    identities = np.fromiter(map(id, bundles), np.int64, len(bundles))
    _, first, numbers = np.unique(identities, return_index=True, return_inverse=True)
    order = np.argsort(first)  # not by address, which differs from run to run
    rank = np.empty_like(order)
    rank[order] = np.arange(order.size)
    return rank[numbers], [bundles[place] for place in first[order].tolist()]


@dataclass(frozen=True)
class Numbered:
    """Tokens by the numbers of their entries, whose columns and values are known."""

    shape: tuple[int, int]  #: tokens and features
    bounds: Ints  #: (n_tokens + 1,) where each token's numbers are
    numbers: Ints
    columns: Ints  #: by number, -1 where there is no such feature
    values: Floats  #: by number

    def rows(self) -> sp.csr_array:
        """The tokens as input rows."""
        token = np.repeat(np.arange(self.shape[0]), np.diff(self.bounds))
        return _matrix(token, self.columns[self.numbers], self.values[self.numbers], self.shape)

    def times(self, weights: Floats, out: Floats, workers: Workers) -> None:
        """Products of the input rows with weights, without making the rows."""
        numbered = self.bounds, self.numbers, self.columns, self.values
        workers.run(
            lambda _, first, last: entries_times_weights(numbered, weights, out, first, last),
            blocks_of_rows(self.bounds, N_BLOCKS, AT_ONCE),
        )


# --- features of tokens ---

#: Threads that look names up while the next ones are put together.
_FINDERS = 2


class NamedTokens:
    """Columns and values of the features of all tokens, in their order."""

    def __init__(self, names: Names | GrowingVocabulary, X: Any, what: str) -> None:
        self._n_tokens, self._sizes = array("q"), cast(Any, array("q"))
        self._given: Any = None  # values, once there are dicts: all are 1 without
        self._numbered: tuple[Ints, Ints, Floats] | None = None
        if self._encode_dicts(names.entries, X):
            return
        with ThreadPoolExecutor(_FINDERS) as pool:
            self._encode(names, X, what, pool)

    def _encode_dicts(self, entries: DictEntries, X: Any) -> bool:
        """Encode tokens that are plain dicts of strings and numbers; whether they are."""
        if not (X and set(map(type, X)) <= {list, tuple}):
            return False
        tokens = list(chain.from_iterable(X))
        if set(map(type, tokens)) != {dict}:
            return False
        try:
            self._sizes, numbers = entries.numbers(tokens)
        except TypeError:  # one by one, nested or wrong
            return False
        self._n_tokens = array("q", map(len, X))
        self._numbered = numbers, entries.columns, entries.values
        return True

    def _encode(self, names: Names | GrowingVocabulary, X: Any, what: str, pool: Executor) -> None:
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
        self._bundled = np.concatenate(bundled)
        token = np.repeat(np.arange(len(self._sizes)), self._sizes)
        self._own = token[~self._bundled], np.concatenate([np.zeros(0, dtype=np.int64), *(wait() for wait in columns)])
        self._use = token[self._bundled], number
        self._in_bundles = rows, in_bundles()

    @property
    def lengths(self) -> Ints:
        """Tokens of each sequence."""
        return np.array(self._n_tokens, dtype=np.int64)

    def inputs(self, n_features: int) -> Any:
        """Input rows over ``n_features`` features, or the numbers of entries."""
        if self._numbered is not None:
            return Numbered((len(self._sizes), n_features), pointer(self._sizes), *self._numbered)
        values = None if self._given is None else np.asarray(self._given)
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
    """Where an entry is, for an error."""
    return next(
        f"{what}[{m}][{t}]"
        for m, sequence in enumerate(X)
        for t, token in enumerate(sequence)
        if any(other is entry for other in token)
    )


def _are_tuples(entries: list[Any]) -> Bools:
    if tuple not in map(type, entries):
        return np.zeros(len(entries), dtype=bool)
    return np.frombuffer(bytes(map(is_, map(type, entries), repeat(tuple))), dtype=bool)


def _chosen(entries: list[Any], chosen: Bools) -> list[Any]:
    if chosen.all():
        return entries
    if not chosen.any():
        return []
    return list(compress(entries, chosen.tobytes()))


def _columns_of_bundles(names: Names | GrowingVocabulary, bundles: list[Bundle], pool: Executor) -> tuple[Ints, Wait]:
    """Bundle and column of every feature in a bundle."""
    sizes = np.fromiter(map(len, bundles), np.int64, len(bundles))
    rows = np.repeat(np.arange(sizes.size), sizes)
    try:
        return rows, names.look_up(chain.from_iterable(bundles), pool)
    except NoStringError as error:
        bundle = next(bundle for bundle in bundles if any(entry is error.entry for entry in bundle))
        raise TypeError(f"a bundle must hold only strings, found {bundle[:3]!r}") from None


def _matrix(rows: Ints, columns: Ints, values: Floats | None, shape: tuple[int, int]) -> sp.csr_array:
    """Entries in the order of their rows, without those in column -1."""
    known = columns >= 0
    if not known.all():
        rows, columns = rows[known], columns[known]
        values = None if values is None else values[known]
    bounds = pointer(np.bincount(rows, minlength=shape[0]))
    matrix = sp.csr_array((np.ones(columns.size) if values is None else values, columns, bounds), shape=shape)
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


@dataclass(frozen=True)
class FeatureRows:
    """Stacked input rows of all sequences."""

    given: Any  #: (n_tokens, n_features) array, scipy.sparse, BundledRows, or Numbered, which become rows if need be
    lengths: Ints  #: tokens of each sequence

    @cached_property
    def inputs(self) -> Any:
        """(n_tokens, n_features) array, scipy.sparse or BundledRows."""
        return self.given.rows() if isinstance(self.given, Numbered) else self.given

    def times(self, weights: Floats, workers: Workers) -> Floats:
        """Products of the rows with weights (n_features, n_labels)."""
        rows = self.given if isinstance(self.given, Numbered) else Inputs(self.given)
        out = np.empty((rows.shape[0], weights.shape[1]))
        rows.times(weights, out, workers)
        return out


class FeatureVocabulary:
    """Names of features and their columns; matrix inputs have a number of columns and no names."""

    def __init__(self, names: Sequence[str] | None, n_features: int) -> None:
        self.names = None if names is None else list(names)
        self.n_features = n_features
        self._columns = Names([] if names is None else names)

    def encode(self, X: Any, what: str = "X") -> FeatureRows:
        """Rows of sequences over this vocabulary; features that it does not have are ignored."""
        if is_matrices(X, what):
            if self.names is not None:
                raise TypeError(f"{what} holds matrices, but the model was fitted to named features")
            return _stacked(X, what, self.n_features)
        if self.names is None:
            raise TypeError(f"{what} holds named features, but the model was fitted to matrices")
        found = NamedTokens(self._columns, X, what)
        return FeatureRows(found.inputs(self.n_features), found.lengths)

    def extended(self, other: FeatureVocabulary) -> FeatureVocabulary:
        """The vocabulary with the names of another behind its own; unchanged where columns have no names."""
        if self.names is None or other.names is None:
            return self
        names = list(dict.fromkeys([*self.names, *other.names]))
        return FeatureVocabulary(names, len(names))


class GrowingVocabulary:
    """A vocabulary made from sequences that come in batches, of which it keeps names and counts alone."""

    def __init__(self) -> None:
        self.columns: dict[str, int] = defaultdict(count().__next__)  #: a name that is new gets the next
        self.entries = DictEntries(self.columns.__getitem__)
        self._counts = np.zeros(0, dtype=np.int64)

    def look_up(self, names: Iterable[str], pool: Executor) -> Wait:
        """Column of each name; there is nothing to wait for."""
        names = list(names)
        _check_strings(names)
        columns = np.fromiter(map(self.columns.__getitem__, names), np.int64, len(names))
        return lambda: columns

    def number(self, bundles: list[Bundle]) -> tuple[Ints, list[Bundle]]:
        """Number of each bundle, the same for equal ones, in the order in which they came; and the bundle of each."""
        same, objects = _by_object(bundles)  # hashing a bundle hashes all its names: once for each object
        different: dict[Bundle, int] = defaultdict(count().__next__)
        try:
            numbers = np.fromiter(map(different.__getitem__, objects), np.int64, len(objects))
        except TypeError:  # one holds what has no hash: whoever looks into them will name it
            return same, objects
        return numbers[same], list(different)

    def add(self, X: Any, what: str = "X") -> FeatureRows:
        """Count the features of these sequences; their rows, over all names so far, are returned."""
        found = NamedTokens(self, X, what)
        rows = FeatureRows(found.inputs(len(self.columns)), found.lengths)
        counts = _tokens_with(rows.inputs)
        counts[: self._counts.size] += self._counts
        self._counts = counts
        return rows

    def kept(self, min_frequency: int) -> Ints:
        """Columns of the features that occur on at least ``min_frequency`` tokens, in the order in which they came."""
        return np.flatnonzero(self._counts >= min_frequency)

    def vocabulary(self, min_frequency: int) -> FeatureVocabulary:
        """The vocabulary of these features."""
        names, kept = list(self.columns), self.kept(min_frequency).tolist()
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
