"""Features of announcements that are messages: their layout, and classes of their words.

Importing this module registers both: ``EntityFeatures(own=["message", "classes"])``.

**The layout of a message.** A line that opens with a name of at most three words and a colon, ``Who: Ada Lovelace``, is
a field; the lines below belong to it until the next one. Words are compared in small letters, without dots at their
ends and times without ``:00``.

==========================  ========================================================================================
strings                     the token has this if
==========================  ========================================================================================
``field=who``               its line opens with this name
``under=who``               it is on a line below, and no empty line lies between; ``under-gap=who`` if one does
``header``, ``body``        it comes before the field ``abstract``, or not
``in=who``                  its word occurs on another line in this field, before any empty line
``e-1=by``, ``e+1=,``       its word occurs, from twice to seven times, elsewhere after, or before, this
``at=2``, ``left=0``        so many tokens of its line come before it, or after it
``line-no=3``               so many pairs of lines come before its line in the body
==========================  ========================================================================================

**Classes of words** that announce names, places and times. A line ``Prof. Ada Lovelace, University of London`` is known
by its pattern, title, capital, capital, comma, organisation, more than by its words. The lists are general English;
none is taken from a corpus.

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

import re
from collections.abc import Sequence
from functools import lru_cache
from sys import intern
from typing import NamedTuple

from bactrian.text.documents import Document, line_borders
from bactrian.text.features import Token, register_features

MESSAGE, CLASSES = "message", "classes"

# --- the layout of a message ---

#: A name of a field and its colon; before a digit the colon is part of a time.
_NAME = re.compile(r"[ \t]*([^\W\d_](?:[^\W\d_]|[/&' ]){0,24}?)[ \t]*:(?!\d)")
_WORDS_OF_NAME = 3

#: The field whose line ends the header: the text of the message comes under it.
_BODY = "abstract"

#: A word that occurs more often is not a name, place or time.
_OFTEN = 8


class _Line(NamedTuple):
    """A line with tokens, and the field that it belongs to."""

    start: int
    stop: int
    field: str | None
    opens: bool  # it is the field's first
    gap: bool  # an empty line lies between the field's first and this one


@register_features(MESSAGE)
def message_features(document: Document) -> list[list[str]]:
    """What the layout of the message tells of each token."""
    tokens: list[list[str]] = [[] for _ in document.words]
    lines = _lines(document)
    first = next((line.start for line in lines if line.opens and line.field == _BODY), 0)
    number = 0  # of the line in the body
    for line in lines:
        number += line.start > first
        shared = ["body" if line.start >= first else "header"]
        shared.append(f"line-no={min(number // 2, 15)}" if line.start > first else "line-no=header")
        if line.field is not None:
            shared.append(f"{'field' if line.opens else 'under-gap' if line.gap else 'under'}={line.field}")
        for t in range(line.start, line.stop):
            tokens[t] += [*shared, f"at={min(t - line.start, 5)}", f"left={min(line.stop - 1 - t, 5)}"]
    _add_recurring(tokens, document.words, lines)
    return tokens


def _lines(document: Document) -> list[_Line]:
    text, starts, stops = document.text, document.starts, document.stops
    if text is None or starts is None or stops is None:
        raise ValueError(f"document {document.name!r} has no text, which {MESSAGE} needs")
    lines: list[_Line] = []
    field, gap = None, False
    for start, stop in line_borders(document, MESSAGE):
        place = int(starts[start])
        match = _NAME.match(text, text.rfind("\n", 0, place) + 1, int(stops[stop - 1]))
        opens = match is not None and len(match[1].split()) <= _WORDS_OF_NAME
        if match is not None and opens:
            field, gap = " ".join(match[1].lower().split()), False
        else:
            gap = gap or text.count("\n", int(stops[start - 1]) if start else 0, place) > 1
        lines.append(_Line(start, stop, field, opens, gap))
    return lines


def _add_recurring(tokens: Sequence[list[str]], words: Sequence[str], lines: Sequence[_Line]) -> None:
    """For words that occur more than once: fields of the other lines, and words around the other occurrences."""
    line_of = [line for line in lines for _ in range(line.start, line.stop)]
    occurrences: dict[str, list[int]] = {}
    for position, word in enumerate(words):
        if word[:1].isalnum():
            occurrences.setdefault(_bare(word), []).append(position)
    for positions in occurrences.values():
        named = (
            {(line_of[p].start, line_of[p].field) for p in positions if not line_of[p].gap}
            if len(positions) > 1
            else ()
        )
        for position in positions if len(positions) > 1 else ():
            start = line_of[position].start
            fields = {name for other, name in named if other != start and name not in (None, _BODY)}
            tokens[position] += [f"in={name}" for name in sorted(map(str, fields))]
            if len(positions) < _OFTEN:
                tokens[position] += _around(words, [other for other in positions if other != position])


def _around(words: Sequence[str], others: Sequence[int]) -> dict[str, None]:
    found: dict[str, None] = {}
    for other in others:
        if other > 0:
            found[f"e-1={words[other - 1].lower()}"] = None
        if other + 1 < len(words):
            found[f"e+1={words[other + 1].lower()}"] = None
    return found


def _bare(word: str) -> str:
    """The word by which occurrences are compared."""
    return word.lower().strip(".").removesuffix(":00")


# --- classes of words ---

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


@register_features(CLASSES)
def class_features(document: Document) -> list[Token]:
    """The classes around each token, as a bundle, and those of its line and its neighbours, as another."""
    tokens: list[Token] = []
    lines = [
        [word_class(word) for word in document.words[start:stop]] for start, stop in line_borders(document, CLASSES)
    ]
    telling = [(), *(tuple(sorted(_TELLING.intersection(line))) for line in lines), ()]
    for n, line in enumerate(lines):
        padded = (*[_START] * _REACH, *line, *[_STOP] * _REACH)
        shared = _of_lines(*telling[n : n + 3])
        for t in range(len(line)):
            window = _around_token(padded[t : t + 2 * _REACH + 1])
            tokens.append([window, shared] if shared else [window])
    return tokens


# Classes recur, and an encoder looks into each bundle only once: equal ones are the same object.


@lru_cache(100_000)
def _of_lines(above: Sequence[str], own: Sequence[str], below: Sequence[str]) -> tuple[str, ...]:
    named = (("line", own), ("above", above), ("below", below))
    return tuple(intern(f"{name}-k={found}") for name, classes in named for found in classes)


@lru_cache(100_000)
def _around_token(window: tuple[str, ...]) -> tuple[str, ...]:
    found = [f"k={window[_REACH]}", f"k-1={window[_REACH - 1]}", f"k+1={window[_REACH + 1]}"]
    for first, last in _SEQUENCES:
        found.append(f"k{first or ''}:{last}={'|'.join(window[_REACH + first : _REACH + last + 1])}")
    return tuple(map(intern, found))
