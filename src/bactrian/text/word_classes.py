"""Classes of words that announce names, places and times, and where in its line and the next ones they stand.

A line ``Prof. Ada Lovelace, University of London`` is known by its pattern, title, capital, capital, comma,
organisation, more than by its words. The lists are general English; none is taken from a corpus.

==========================  ========================================================================================
strings                     the token has this if
==========================  ========================================================================================
``k=title``                 this is the class of its word; ``k-1=``, ``k+1=`` of its neighbours in the line
``k-2:0=^|title|Aa``        these are the classes of successive words of its line; also ``k-3:0=``, ``k-2:2=``,
                            ``k-1:1=``, ``k:2=`` and ``k:3=``
``line-k=time``             a word of its line has this class, of those that the lists and patterns know;
                            ``above-k=``, ``below-k=`` for the line before and after
==========================  ========================================================================================
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from sys import intern
from typing import Any

from bactrian.text.documents import Document

_LISTS = {
    "day": "monday tuesday wednesday thursday friday saturday sunday mon tue tues wed thu thur thurs fri sat sun",
    "month": "january february march april may june july august september october november december "
    "jan feb mar apr jun jul aug sep sept oct nov dec",
    "title": "dr prof professor mr ms mrs dean president",
    "organisation": "university college institute school department dept center centre laboratory laboratories labs "
    "corporation inc corp company research",
    "room": "hall room rooms auditorium building bldg lounge wing floor theater theatre conference suite lecture lab "
    "library campus",
    "half": "am pm a.m p.m",
}
_CLASS_OF = {word: name for name, words in _LISTS.items() for word in words.split()}
_TIME = re.compile(r"\d{1,2}:\d\d(?:[ap]m)?|\d{1,2}[ap]m|noon")
_NUMBER = re.compile(r"(\d+)[a-z]?")

#: Classes that tell something of their line.
_TELLING = frozenset((*_LISTS, "time"))

#: How far the classes around a token are looked at.
_REACH = 3
_START, _STOP = "^", "$"

#: Windows of classes, by their first and last place.
_SEQUENCES = ((-2, 0), (0, 2), (-1, 1), (-2, 2), (-3, 0), (0, 3))


def word_class(word: str) -> str:
    """The class of a word.

    Numbers, with a letter after them or not, are classed by their length, other words by their case and those without
    letters by their first character.

    Examples
    --------
    >>> [word_class(word) for word in ("Prof.", "Ada", "IBM", "B", "talks", "3:30pm", "p.m.", "1996", "5409b", "--")]
    ['title', 'Aa', 'AA', 'A', 'a', 'time', 'half', 'd4', 'd4', '-']
    """
    bare = word.lower().strip(".")
    known = _CLASS_OF.get(bare)
    if known is not None:
        return known
    if _TIME.fullmatch(bare):
        return "time"
    number = _NUMBER.fullmatch(bare)
    if number is not None:
        return f"d{min(len(number[1]), 9)}"
    if word[:1].isupper():
        return "A" if len(word) == 1 else "AA" if word.isupper() else "Aa"
    return "a" if word[:1].isalpha() else word[:1]


def add_classes(
    tokens: Sequence[list[Any]], document: Document, known: dict[Any, tuple[str, ...]], *, remembered: int
) -> None:
    """Append to each token the classes around it, as a bundle, and those of its line and its neighbours, as another.

    Parameters
    ----------
    tokens
        Features of each token of the document, which get longer.
    document
        The document; it must know its lines.
    known
        Bundles by what they are made of, where those that are new are added.
    remembered
        Number of bundles from which ``known`` is emptied first.
    """
    if document.line_starts is None:
        raise ValueError(f"document {document.name!r} does not know its lines, which classes=True needs")
    classes = [word_class(word) for word in document.words]
    borders = [*document.line_starts.tolist(), len(document)]
    lines = [classes[start:stop] for start, stop in itertools.pairwise(borders)]
    telling = [(), *(tuple(sorted(_TELLING.intersection(line))) for line in lines), ()]
    for n, (start, line) in enumerate(zip(borders, lines, strict=False)):
        padded = (*[_START] * _REACH, *line, *[_STOP] * _REACH)
        shared = _remembered(("lines", *telling[n : n + 3]), known, remembered)
        for t in range(len(line)):
            window = _remembered(("k", padded[t : t + 2 * _REACH + 1]), known, remembered)
            tokens[start + t].extend([window, shared] if shared else [window])


def _remembered(key: tuple[Any, ...], known: dict[Any, tuple[str, ...]], remembered: int) -> tuple[str, ...]:
    bundle = known.get(key)
    if bundle is None:
        if len(known) >= remembered:
            known.clear()
        strings = _around(key[1]) if key[0] == "k" else _of_lines(*key[1:])
        bundle = known[key] = tuple(map(intern, strings))
    return bundle


def _around(window: Sequence[str]) -> list[str]:
    strings = [f"k={window[_REACH]}", f"k-1={window[_REACH - 1]}", f"k+1={window[_REACH + 1]}"]
    for first, last in _SEQUENCES:
        name = f"k{first or ''}:{last}"
        strings.append(f"{name}={'|'.join(window[_REACH + first : _REACH + last + 1])}")
    return strings


def _of_lines(above: Sequence[str], own: Sequence[str], below: Sequence[str]) -> list[str]:
    named = (("line", own), ("above", above), ("below", below))
    return [f"{name}-k={found}" for name, classes in named for found in classes]
