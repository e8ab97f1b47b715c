"""Sequences become packed graphs: tokens are nodes, transitions and skips two types of edges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from bactrian.arrays import Ints, integers, number_pairs
from bactrian.estimators.encoding import Rows
from bactrian.graphs.ragged import pointer
from bactrian.text.skips import SkipRule, skip_edges

#: Types of edges in the packed graphs.
TRANSITION, SKIP = 0, 1


@dataclass(frozen=True)
class SequenceEdges:
    """Edges of all sequences over stacked tokens: transitions, then skips, each in the order of the sequences."""

    transitions: Ints  #: (n, 2)
    skips: Ints  #: (n, 2)

    @property
    def edges(self) -> Ints:
        """(n, 2) all edges."""
        return np.concatenate([self.transitions, self.skips])

    @property
    def types(self) -> Ints:
        """Type of each edge."""
        return np.repeat([TRANSITION, SKIP], [len(self.transitions), len(self.skips)])


def sequence_edges(lengths: Ints, breaks: Any, skips: Sequence[Ints] | None) -> SequenceEdges:
    """Edges of sequences of given lengths.

    ``breaks[m]`` are positions of sequence m at which a new sentence begins: no transition leads there.
    """
    start = pointer(lengths)
    begins = np.zeros(int(start[-1]) + 1, dtype=bool)
    begins[start] = True
    if breaks is not None:
        _check_length(breaks, lengths.size, "breaks")
        for m, positions in enumerate(breaks):
            begins[start[m] + integers(positions, f"breaks[{m}]", below=int(lengths[m]))] = True
    second = np.flatnonzero(~begins[:-1])
    transitions = np.stack([second - 1, second], axis=1)
    empty = np.zeros((0, 2), dtype=np.int64)
    joined = [empty] if skips is None else [empty, *(pairs + start[m] for m, pairs in enumerate(skips))]
    return SequenceEdges(transitions, np.concatenate(joined))


def checked_skips(skips: Any, lengths: Ints) -> list[Ints]:
    """Skip edges given per sequence, as pairs of positions."""
    _check_length(skips, lengths.size, "skips")
    return [number_pairs(pairs, int(lengths[m]), f"skips[{m}]", "position") for m, pairs in enumerate(skips)]


def ruled_skips(X: Any, rule: SkipRule, word: str) -> list[Ints]:
    """Skip edges by a rule on the words of each sequence."""
    read = WordReader(word)
    return [skip_edges([read(token) for token in sequence], rule) for sequence in X]


class WordReader:
    """The word of a token: ``token[name]`` of a dict, or what follows ``name=`` in a list of strings."""

    def __init__(self, name: str) -> None:
        self.name, self._prefix = name, f"{name}="
        # By object, which is kept so that no other gets its number: hashing a bundle hashes all its names.
        self._of_bundle: dict[int, tuple[tuple[str, ...], str | None]] = {}

    def __call__(self, token: Any) -> str:
        """The word; a rule for skips needs one on every token."""
        word = token.get(self.name) if isinstance(token, Mapping) else self._of_strings(token)
        if not isinstance(word, str):
            raise ValueError(
                f"a rule for skips needs the word of every token: {self.name!r} in a dict, or a feature "
                f"'{self._prefix}...' in a list of strings; found {token if len(str(token)) < 80 else type(token)}. "
                "Name another with word=, or give skips= per sequence"
            )
        return word

    def _of_strings(self, token: Any) -> str | None:
        if not isinstance(token, list | tuple):
            return None
        for feature in token:
            if isinstance(feature, tuple):
                known = self._of_bundle.get(id(feature))
                if known is None:
                    known = self._of_bundle[id(feature)] = feature, self._of_strings(feature)
                if known[1] is not None:
                    return known[1]
            elif isinstance(feature, str) and feature.startswith(self._prefix):
                return feature[len(self._prefix) :]
        return None


def with_constant(rows: Rows) -> Any:
    """Edge inputs with a constant in front, so that the features of an edge add to a table that all share."""
    ones = np.ones((rows.inputs.shape[0], 1))
    if isinstance(rows.inputs, np.ndarray):
        return np.hstack([ones, rows.inputs])
    plain = rows.inputs if sp.issparse(rows.inputs) else rows.inputs.multiplied_out()
    return sp.csr_array(sp.hstack([sp.csr_array(ones), plain], format="csr"))


def check_edge_rows(rows: Rows, counts: Ints, name: str) -> None:
    """Every edge of every sequence has a row of features."""
    wrong = np.flatnonzero(rows.lengths != counts) if rows.lengths.size == counts.size else np.array([0])
    if rows.lengths.size != counts.size:
        raise ValueError(f"{name} must have one entry per sequence: expected {counts.size}, found {rows.lengths.size}")
    if wrong.size:
        m = int(wrong[0])
        raise ValueError(f"{name}[{m}] must have one entry per edge: expected {counts[m]}, found {rows.lengths[m]}")


def _check_length(given: Any, expected: int, name: str) -> None:
    if not hasattr(given, "__len__") or len(given) != expected:
        found = len(given) if hasattr(given, "__len__") else type(given).__name__
        raise ValueError(f"{name} must have one entry per sequence: expected {expected}, found {found}")
