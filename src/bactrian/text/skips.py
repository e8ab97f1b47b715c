"""Rules that join tokens of a document by skip edges (Sutton & McCallum 2004)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from bactrian.arrays import Ints

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
        return _checked_edges(rule(words), len(words))
    if rule not in RULES:
        raise ValueError(f"rule must be one of {', '.join(RULES)} or a function of the words, found {rule!r}")
    if max_occurrences is not None and (not isinstance(max_occurrences, int) or max_occurrences < 2):
        raise ValueError(f"max_occurrences must be None or an integer of 2 or more, found {max_occurrences!r}")
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


def _checked_edges(edges: ArrayLike, n_words: int) -> Ints:
    """The edges that a function returned, in the form that :func:`skip_edges` promises."""
    array = np.asarray(edges)
    if array.size == 0:
        return np.zeros((0, 2), dtype=np.int64)
    if array.ndim != 2 or array.shape[1] != 2 or array.dtype.kind not in "iu":
        raise ValueError(
            f"rule must return pairs of positions, shape (n_edges, 2) of integers, found shape {array.shape} "
            f"of {array.dtype}"
        )
    wrong = ((array < 0) | (array >= n_words)).any(axis=1) | (array[:, 0] == array[:, 1])
    if wrong.any():
        e = int(np.argmax(wrong))
        pair = tuple(array[e].tolist())
        raise ValueError(f"rule returned edge {e} = {pair}; expected two different positions among {n_words} words")
    return np.unique(np.sort(array.astype(np.int64), axis=1), axis=0)
