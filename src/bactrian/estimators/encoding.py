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

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from bactrian.estimators.feature_names import GrowingNames, Names
from bactrian.estimators.named_features import NamedTokens
from bactrian.graphs.inputs import BundledRows, checked_rows

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
        self._columns = Names([] if names is None else names)

    def encode(self, X: Any, what: str = "X") -> Rows:
        """Rows of sequences over this vocabulary; features that it does not have are ignored."""
        if is_matrices(X, what):
            if self.names is not None:
                raise TypeError(f"{what} holds matrices, but the model was fitted to named features")
            return _stacked(X, what, self.n_features)
        if self.names is None:
            raise TypeError(f"{what} holds named features, but the model was fitted to matrices")
        found = NamedTokens(self._columns, X, what)
        return Rows(found.inputs(self.n_features), found.lengths)


class GrowingVocabulary:
    """A vocabulary made from sequences that come in batches, of which it keeps names and counts alone."""

    def __init__(self) -> None:
        self._names = GrowingNames()
        self._counts = np.zeros(0, dtype=np.int64)

    def add(self, X: Any, what: str = "X") -> None:
        """Count the features of these sequences."""
        found = NamedTokens(self._names, X, what)
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
    growing = GrowingNames()
    found = NamedTokens(growing, X, what)
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
    """How many tokens carry each feature; one that has it on its own and in a bundle, or in two, counts for each."""
    counts = np.zeros(carried.shape[1], dtype=np.int64)
    own = carried.own if isinstance(carried, BundledRows) else carried
    np.add.at(counts, own.indices, 1)
    if isinstance(carried, BundledRows):
        used = np.asarray((carried.use != 0).sum(axis=0)).ravel()
        np.add.at(counts, carried.bundles.indices, np.repeat(used, np.diff(carried.bundles.indptr)))
    return counts


def check_sequences(X: Any, what: str) -> None:
    """Refuse what is no list of sequences."""
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
        parts.append(checked_rows(matrix, f"{what}[{m}]"))
    lengths = np.array([part.shape[0] for part in parts], dtype=np.int64)
    sparse = any(sp.issparse(part) for part in parts)
    return Rows(sp.csr_array(sp.vstack(parts, format="csr")) if sparse else np.concatenate(parts), lengths)
