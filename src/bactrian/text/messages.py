"""What the layout of a message tells of its tokens: lines, named fields, and words that recur under them.

A line that opens with a name of at most three words and a colon, ``Who: Ada Lovelace``, is a field; the lines below
belong to it until the next one. Words are compared in small letters, without dots at their ends and times without
``:00``.

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
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from bactrian.text.documents import Document

#: A name of a field and its colon; before a digit the colon is part of a time.
_NAME = re.compile(r"[ \t]*([^\W\d_](?:[^\W\d_]|[/&' ]){0,24}?)[ \t]*:(?!\d)")
_WORDS_OF_NAME = 3

#: The field whose line ends the header: the text of the message comes under it.
_BODY = "abstract"

#: A word that occurs more often is no name, place or time.
_OFTEN = 8


class _Line(NamedTuple):
    """A line with tokens, and the field that it belongs to."""

    start: int
    stop: int
    field: str | None
    opens: bool  # it is the field's first
    gap: bool  # an empty line lies between the field's first and this one


def add_message(tokens: Sequence[list[Any]], document: Document) -> None:
    """Append to each token what the layout of the message tells of it.

    Parameters
    ----------
    tokens
        Features of each token of the document, which get longer.
    document
        The document; it must know its lines and have its text.
    """
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


def _lines(document: Document) -> list[_Line]:
    text, starts, stops = document.text, document.starts, document.stops
    if document.line_starts is None or text is None or starts is None or stops is None:
        raise ValueError(f"document {document.name!r} does not know its text and lines, which message=True needs")
    lines: list[_Line] = []
    field, gap = None, False
    for start, stop in itertools.pairwise([*document.line_starts.tolist(), len(document)]):
        place = int(starts[start])
        match = _NAME.match(text, text.rfind("\n", 0, place) + 1, int(stops[stop - 1]))
        opens = match is not None and len(match[1].split()) <= _WORDS_OF_NAME
        if match is not None and opens:
            field, gap = " ".join(match[1].lower().split()), False
        else:
            gap = gap or text.count("\n", int(stops[start - 1]) if start else 0, place) > 1
        lines.append(_Line(start, stop, field, opens, gap))
    return lines


def _add_recurring(tokens: Sequence[list[Any]], words: Sequence[str], lines: Sequence[_Line]) -> None:
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
