"""Features of one's own: templates as CRF++ and CRFsuite have them, gazetteers, and functions that are registered.

A template has one feature per line: a name, and macros ``%x[row,column]`` that stand for the cell of a column, so many
rows below the token. Columns are named, or counted from 0 in the order of the file::

    # the word before, and the word with its part of speech
    U01:%x[-1,0]
    U02:%x[0,word]/%x[0,pos]
    B

Rows outside the sentence read ``_B-1``, ``_B+1`` and so on. ``B``, the pair of neighbouring labels, is part of every
chain; a line of kind B with macros is not supported.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bactrian.errors import ArgumentError, keeper
from bactrian.text.documents import Document

_MACRO = re.compile(r"%x\[\s*([+-]?\d+)\s*,\s*([^\],]+?)\s*\]")

Strings = Callable[[Document], Sequence[Iterable[str]]]

#: Functions from a document to the strings of each of its tokens, by name.
REGISTERED: dict[str, Strings] = {}


def register_features(name: str) -> Callable[[Strings], Strings]:
    """Make a function known by name, so that ``EntityFeatures(own=[name])`` and ``bactrian train`` use it.

    The function takes a :class:`Document` and returns the strings of each token. A run keeps the name alone: whoever
    loads it registers the function first, on the command line with ``bactrian --plugin FILE``.

    Examples
    --------
    >>> @register_features("length")
    ... def length(document):
    ...     return [[f"length={len(word)}"] for word in document.words]
    >>> own_strings(Document(["in", "Rome"]), ["length"])
    [['length=2'], ['length=4']]
    """
    return keeper(REGISTERED, name)


def own_strings(document: Document, names: Iterable[str]) -> list[list[str]]:
    """What registered functions give for each token, all names one after the other."""
    rows: list[list[str]] = [[] for _ in document.words]
    for name in names:
        found = list(REGISTERED[name](document))
        if len(found) != len(rows):
            raise ValueError(
                f"features {name!r} must give one list per token: expected {len(rows)}, found {len(found)}"
            )
        for row, strings in zip(rows, found, strict=True):
            row.extend(strings)
    return rows


@dataclass(frozen=True)
class TemplateLine:
    """A feature of a template: text and macros in turn, a macro as row and column."""

    pieces: tuple[str | tuple[int, int | str], ...]
    place: str  #: for errors

    def strings(self, document: Document, start: int, stop: int) -> list[str]:
        """The feature of each token of a sentence."""
        parts = [
            [piece] * (stop - start) if isinstance(piece, str) else self._cells(document, start, stop, *piece)
            for piece in self.pieces
        ]
        return ["".join(cells) for cells in zip(*parts, strict=True)]

    def _cells(self, document: Document, start: int, stop: int, row: int, column: int | str) -> list[str]:
        names = ["word", *document.columns]
        if isinstance(column, int) and column < len(names):
            column = names[column]
        if column not in names:
            raise ValueError(
                f"{self.place} looks at column {column}; document {document.name!r} has {', '.join(names)}"
            )
        values = document.words if column == "word" else document.columns[str(column)]
        inside = list(values[max(start + row, start) : min(stop + row, stop)])
        if row < 0:
            before = [f"_B-{d}" for d in range(-row, 0, -1)]
            return [*before, *inside][: stop - start]
        after = [f"_B+{d}" for d in range(1, row + 1)]
        return [*inside, *after][-(stop - start) :] if stop > start else []


def parse_template(lines: Iterable[str]) -> list[TemplateLine]:
    """The features of a template; comments and empty lines are left out."""
    found = []
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if not text or text.startswith("#") or re.fullmatch(r"B\d*:?", text):
            continue
        place = f"line {number}: {text!r}"
        if text[0] == "B":
            raise ArgumentError(
                "template", f": {place}: features of pairs of labels are not supported, but for B itself"
            )
        pieces: list[str | tuple[int, int | str]] = []
        for i, part in enumerate(_MACRO.split(text)):
            if i % 3 == 0 and part:
                pieces.append(part)
            elif i % 3 == 1:
                row = int(part)
            elif i % 3 == 2:
                pieces.append((row, int(part) if part.isdecimal() else part))
        if text[0] != "U" or "%" in "".join(piece for piece in pieces if isinstance(piece, str)):
            raise ArgumentError("template", f": {place}: expected a line such as U01:%x[-1,0] or B")
        found.append(TemplateLine(tuple(pieces), f"the template, {place},"))
    return found


class Gazetteers:
    """Lists of names, each looked up in a sentence; case and blanks do not count, so any tokenizer will do."""

    def __init__(self, entries: Mapping[str, Iterable[str]]) -> None:
        self._entries = {name: {_key(entry) for entry in listed} - {""} for name, listed in entries.items()}
        self._longest = {name: max(map(len, listed), default=0) for name, listed in self._entries.items()}

    def strings(self, words: Sequence[str]) -> list[list[str]]:
        """``city`` for each token of an entry, and its place, ``city=B``, ``I``, ``E`` or ``S`` for a single token.

        The longest entry counts, from left to right.
        """
        keys = [_key(word) for word in words]
        rows: list[list[str]] = [[] for _ in words]
        for name, entries in self._entries.items():
            t = 0
            while t < len(keys):
                stop = self._end(keys, t, entries, self._longest[name])
                for place in range(t, stop):
                    kind = "S" if stop == t + 1 else "B" if place == t else "E" if place == stop - 1 else "I"
                    rows[place] += [name, f"{name}={kind}"]
                t = max(stop, t + 1)
        return rows

    @staticmethod
    def _end(keys: Sequence[str], start: int, entries: set[str], longest: int) -> int:
        """Where the longest entry from a token on ends; the token itself where none starts there."""
        text, end = "", start
        for stop in range(start, len(keys)):
            text += keys[stop]
            if len(text) > longest:
                break
            if text in entries:
                end = stop + 1
        return end


def _key(text: str) -> str:
    return "".join(text.split()).casefold()


def check_strings(name: str, value: Any) -> None:
    """Refuse what is not a list of strings."""
    if isinstance(value, str) or not isinstance(value, Sequence) or not all(isinstance(entry, str) for entry in value):
        raise ArgumentError(name, f"must be a list of strings, found {value!r:.80}")
