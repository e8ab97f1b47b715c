"""Tagged texts laid out on a grid of characters, so that arcs between words find their ends without a script.

A fixed-width font puts column c of line l at a known place; the page's style sheet gives a column the width ``1ch``.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bactrian.arrays import Floats
from bactrian.runs.comparison import TaggedText

_WIDTH = 100  #: columns at which a line is broken
_MOST_INDENT = 12
_DOUBT = 0.9  #: a token whose label is less probable than this is worth a look
FREE = 0.4  #: part of a line's height above its words, where arcs run
_GUTTER = 6  #: columns at the right for arcs from line to line
_SCHEME = ("B-", "I-", "E-", "S-", "L-", "U-")


@dataclass(frozen=True)
class Piece:
    """A stretch of a line: plain where ``styles`` is empty, else a token with something to say in ``tip``."""

    text: str
    styles: str = ""
    tip: str = ""
    stop: bool = False  #: whether the keyboard stops here
    columns: int = 0  #: given where characters may not be one column wide, else 0


@dataclass(frozen=True)
class Place:
    """Where a token stands, in lines and columns, and how many columns it takes."""

    line: int
    column: int
    width: int


@dataclass(frozen=True)
class Arc:
    """A skip edge, as an SVG path in units of columns and lines, and the two words it joins."""

    path: str
    text: str


def entity_of(label: str, outside: str = "O") -> str:
    """What a label is about, the BIO scheme removed; empty for the label outside.

    >>> entity_of("B-speaker"), entity_of("speaker"), entity_of("O")
    ('speaker', 'speaker', '')
    """
    if label == outside:
        return ""
    return label[2:] if label[:2] in _SCHEME and len(label) > 2 else label


def n_columns(text: str) -> int:
    """Columns that a text takes: two for a wide character, none for a mark set above another.

    >>> n_columns("room"), n_columns("会議室")
    (4, 6)
    """
    widths = (0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)
    return max(sum(widths), 1)


def lay_out(text: TaggedText) -> tuple[Place, ...]:
    """The place of every token."""
    places = []
    line = column = 0
    gaps = text.gaps or (" ",) * len(text.tokens)
    for token, gap in zip(text.tokens, gaps, strict=True):
        width = n_columns(token)
        if column > 0 and column + width > _WIDTH:
            line, column = line + 1, 0
        places.append(Place(line, column, width))
        column += width
        if "\n" in gap:
            line += 2 if gap.count("\n") > 1 else 1
            column = min(len(gap.rsplit("\n", 1)[1].expandtabs(8)), _MOST_INDENT)
        else:
            column += min(len(gap.expandtabs(8)), _MOST_INDENT)
    return tuple(places)


def lines_of(
    text: TaggedText,
    places: Sequence[Place],
    colours: dict[str, int],
    learner: str | None,
) -> list[list[Piece]]:
    """The text in lines of pieces, with the labels of a learner, or (None) the true ones; ``colours`` by entity."""
    labels = text.truth if learner is None else text.predictions[learner].labels
    marginals = None if learner is None else text.predictions[learner].marginals
    entities = [entity_of(label, text.outside) for label in labels]
    starts = [_starts(labels, entities, t) for t in range(len(labels))]
    lines: list[list[Piece]] = [[] for _ in range(places[-1].line + 1 if places else 0)]
    for t, place in enumerate(places):
        line = lines[place.line]
        before = 0 if t == 0 or places[t - 1].line != place.line else places[t - 1].column + places[t - 1].width
        if place.column > before:
            inside = t > 0 and bool(entities[t]) and not starts[t] and bool(line)
            styles = f"entity tint-{colours[entities[t]] % 8}" if inside else ""
            line.append(Piece(" " * (place.column - before), styles))
        row = None if marginals is None else marginals[t]
        wrong = learner is not None and labels[t] != text.truth[t]
        doubtful = row is not None and float(row.max()) < _DOUBT
        last = t + 1 == len(labels) or starts[t + 1] or not entities[t + 1] or places[t + 1].line != place.line
        styles = _styles(entities[t], colours, first=starts[t], last=last, wrong=wrong, doubtful=doubtful)
        tip = _tip(text, t, labels[t], row, judged=learner is not None) if styles else ""
        exact = place.width if not text.tokens[t].isascii() else 0
        line.append(Piece(text.tokens[t], styles, tip, bool(styles) and (starts[t] or wrong or doubtful), exact))
    return lines


def arcs_of(text: TaggedText, places: Sequence[Place]) -> tuple[list[Arc], int]:
    """The skip edges, and the columns that the text takes with them.

    Arcs keep to the space above each line, which is free of words: within a line they are bows; from line to line they
    run above the first word to a gutter at the right, down, and back above the second.
    """
    widest = max((place.column + place.width for place in places), default=1)
    far = [pair for pair in text.skips if places[pair[0]].line != places[pair[1]].line]
    arcs = []
    for pair in text.skips:
        a, b = sorted(pair)
        x1, x2 = (places[t].column + places[t].width / 2 for t in (a, b))
        y1, y2 = places[a].line, places[b].line
        if y1 == y2:
            path = f"M{x1:g} {y1 + FREE:g}C{x1:g} {y1 + 0.02:g} {x2:g} {y2 + 0.02:g} {x2:g} {y2 + FREE:g}"
        else:
            number = far.index(pair)
            lane = FREE * (1 + number % 4) / 5
            gutter = widest + 1 + number % _GUTTER
            path = f"M{x1:g} {y1 + FREE:g}V{y1 + lane:g}H{gutter:g}V{y2 + lane:g}H{x2:g}V{y2 + FREE:g}"
        arcs.append(Arc(path, f"{text.tokens[a]} – {text.tokens[b]}"))
    return arcs, widest + (min(len(far), _GUTTER) + 1 if far else 0)


def n_wrong(text: TaggedText, learner: str) -> int:
    """Tokens whose label is not the true one."""
    return sum(found != true for found, true in zip(text.predictions[learner].labels, text.truth, strict=True))


def _starts(labels: Sequence[str], entities: Sequence[str], t: int) -> bool:
    """Whether token t begins an entity."""
    if not entities[t]:
        return False
    return t == 0 or entities[t - 1] != entities[t] or labels[t][:2] in ("B-", "S-", "U-")


def _styles(entity: str, colours: dict[str, int], *, first: bool, last: bool, wrong: bool, doubtful: bool) -> str:
    styles = []
    if entity:
        styles += ["entity", f"tint-{colours[entity] % 8}", *["first"] * first, *["last"] * last]
    styles += ["wrong"] * wrong + ["doubt"] * (doubtful and not wrong)
    return " ".join(styles)


def _tip(text: TaggedText, t: int, label: str, row: Floats | None, *, judged: bool) -> str:
    """Probable labels, most probable first, and what is true."""
    if row is None:
        said = label
    else:
        order = [k for k in np.argsort(-row, kind="stable")[:4] if row[k] >= 0.005]
        said = ", ".join(f"{text.label_names[k]} {row[k]:.0%}" for k in order)
        if order and text.label_names[order[0]] != label:
            said = f"{label}; marginals: {said}"
    if not judged:
        return said
    return f"{said} (right)" if label == text.truth[t] else f"{said}; true label: {text.truth[t]}"
