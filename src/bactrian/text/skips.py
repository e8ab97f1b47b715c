"""Rules that join tokens of a document by skip edges (Sutton & McCallum 2004)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from bactrian.arrays import Ints, number_pairs
from bactrian.errors import check_number

#: A rule: its name, or a function from the words of a document to edges.
SkipRule = str | Callable[[Sequence[str]], ArrayLike]

RULES = ("nearest", "all", "names")


def skip_edges(words: Sequence[str], rule: SkipRule = "nearest", *, max_occurrences: int | None = None) -> Ints:
    """Edges between the positions of identical words that start with a capital letter.

    Parameters
    ----------
    words
        The words of one document.
    rule
        ``"nearest"`` joins each occurrence to the next one; ``"all"`` joins every pair of occurrences; ``"names"``
        joins whole runs of capitalised words to the next equal run, word by word; a function of the words returns
        edges of its own.
    max_occurrences
        For ``"all"``, whose number of edges is quadratic in the number of occurrences: words with more are joined as
        ``"nearest"`` joins them.

    Returns
    -------
    edges
        Positions, shape (n_edges, 2), the smaller of each edge first, sorted, none twice.

    Examples
    --------
    >>> skip_edges("Rome is Rome , is it not , Rome ?".split()).tolist()
    [[0, 2], [2, 8]]
    >>> skip_edges("Rome is Rome , is it not , Rome ?".split(), "all").tolist()
    [[0, 2], [0, 8], [2, 8]]
    >>> skip_edges("New York is not York , but New York is".split(), "names").tolist()
    [[0, 7], [1, 8]]
    """
    for position, word in enumerate(words):
        if not isinstance(word, str):
            raise TypeError(f"words[{position}] must be a string, found {word!r}")
    if callable(rule):
        pairs = number_pairs(rule(words), len(words), "what rule returns", "position")
        return np.unique(np.sort(pairs, axis=1), axis=0)
    if rule not in RULES:
        raise ValueError(f"rule must be one of {', '.join(RULES)} or a function of the words, found {rule!r}")
    if max_occurrences is not None:
        check_number("max_occurrences", max_occurrences, least=2, whole=True)
    occurrences: dict[Hashable, list[int]] = {}
    for position, (word, what) in enumerate(zip(words, _names(words) if rule == "names" else words, strict=True)):
        if word[:1].isupper():
            occurrences.setdefault(what, []).append(position)
    edges: list[tuple[int, int]] = []
    for positions in occurrences.values():
        if rule == "all" and (max_occurrences is None or len(positions) <= max_occurrences):
            edges.extend((first, second) for i, first in enumerate(positions) for second in positions[i + 1 :])
        else:
            edges.extend(itertools.pairwise(positions))
    return np.array(sorted(edges), dtype=np.int64).reshape(-1, 2)


def _names(words: Sequence[str]) -> list[tuple[int, int]]:
    """For each word the number of its name, a run of capitalised words, and its place in it."""
    numbers: dict[tuple[str, ...], int] = {}
    places: list[tuple[int, int]] = []
    for _, group in itertools.groupby(words, lambda word: word[:1].isupper()):
        run = tuple(group)
        number = numbers.setdefault(run, len(numbers))
        places += [(number, place) for place in range(len(run))]
    return places
