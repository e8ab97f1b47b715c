"""The page: a report rendered through templates into one HTML text that needs neither network, server nor script.

Sections are made ready for their templates first: names numbered, charts drawn, tables shaded, texts laid out on a grid
of characters, so that arcs between words find their ends without a script: a fixed-width font puts column c of line l
at a known place, since the style sheet gives a column the width ``1ch``.
"""

from __future__ import annotations

import base64
import re
import struct
import unicodedata
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, singledispatch
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined

from bactrian import __version__
from bactrian.arrays import Floats
from bactrian.atomic_files import write_atomically
from bactrian.report import content
from bactrian.report.charts import convergence_charts, reliability_diagram
from bactrian.report.content import Report, report_of
from bactrian.runs.comparison import Comparison, Confusion, Entry, LabelTable, Metric, Picture, TaggedText

# --- heat maps ---

_MOST_NUMBERS = 14  #: labels beyond which cells are too small for numbers


@dataclass(frozen=True)
class HeatMap:
    """A heat map with names at its rows and columns.

    Each cell has what is written in it, what hovering says, which colour, and how strong that is (0 to 1).
    """

    title: str
    row_labels: Sequence[str]
    column_labels: Sequence[str]
    rows: Sequence[Sequence[tuple[str, str, str, float]]]

    @property
    def dense(self) -> bool:
        """Whether there are too many cells for numbers in them."""
        return max(len(self.row_labels), len(self.column_labels)) > _MOST_NUMBERS


def _table_maps(tables_of: Mapping[str, Sequence[LabelTable]]) -> dict[str, list[HeatMap]]:
    """Interactions in tables of scores; colours run from minus the largest finite one of all through 0 to it."""
    every = [np.abs(table.interaction) for tables in tables_of.values() for table in tables]
    limit = float(max((values[np.isfinite(values)].max(initial=0.0) for values in every), default=0.0)) or 1.0

    def heat_map(table: LabelTable) -> HeatMap:
        rows = []
        for row, scores, found in zip(table.row_labels, table.values, table.interaction.tolist(), strict=True):
            shades = [0.75 * min(abs(value) / limit, 1.0) if np.isfinite(value) else 0.0 for value in found]
            titles = [
                f"{row}, {column}: score {score:.4f}" for column, score in zip(table.column_labels, scores, strict=True)
            ]
            styles = ["above" if value >= 0.0 else "below" for value in found]
            rows.append(list(zip(map(_signed, found), titles, styles, shades, strict=True)))
        return HeatMap(table.title, table.row_labels, table.column_labels, rows)

    return {name: [heat_map(table) for table in tables] for name, tables in tables_of.items()}


def _confusion_map(confusion: Confusion) -> HeatMap:
    """Counts, shaded by their share of the row: right ones in one colour, wrong ones in the other."""
    labels, totals = confusion.labels, confusion.counts.sum(axis=1)

    def cell(t: int, p: int) -> tuple[str, str, str, float]:
        count = int(confusion.counts[t, p])
        share = count / totals[t] if totals[t] else 0.0
        title = f"{labels[t]} taken for {labels[p]}: {count} of {totals[t]} ({share:.1%})"
        # The square root lifts rare confusions, which a linear scale would leave white.
        return f"{count:,}" if count else "·", title, "above" if t == p else "below", 0.75 * float(np.sqrt(share))

    places = range(len(labels))
    return HeatMap("", labels, labels, [[cell(t, p) for p in places] for t in places])


# --- sections ---

Numbering = Mapping[str, int]
#: A number written out, with or without a standard deviation: set like one, and never broken at a hyphen.
_IS_NUMBER = re.compile(r"[-+]?[\d.]+(e[-+]?\d+)?( \([\d.]+\))?")


def learners_of(report: content.Report) -> dict[str, int]:
    """Every learner on the page, numbered in order of appearance."""
    names: dict[str, None] = {}
    for section in report.sections:
        if isinstance(section, content.LearnersSection):
            names |= dict.fromkeys(entry.name for entry in section.entries)
        elif isinstance(section, content.ByLearnerSection):
            names |= dict.fromkeys(section.shown)
        elif isinstance(section, content.TextSection):
            names |= dict.fromkeys(_taggers(section))
    return {name: number for number, name in enumerate(names)}


@singledispatch
def _prepared(section: content.Section, numbers: Numbering) -> dict[str, Any]:
    """Values for a section's template, besides the section itself."""
    return {}


@_prepared.register
def _(section: content.LearnersSection, numbers: Numbering) -> dict[str, Any]:
    def cell(entry: Entry, metric: Metric) -> tuple[str, bool]:
        """A formatted value, and whether no other entry shows a better one."""
        value = entry.metrics.get(metric.key, float("nan"))
        if not np.isfinite(value):
            return "–", False
        shown = format(value, metric.format)
        return shown, len(section.entries) > 1 and shown == format(section.best(metric), metric.format)

    cells = [[cell(entry, metric) for metric in section.metrics] for entry in section.entries]
    return {"cells": cells, "trained": any(entry.training is not None for entry in section.entries)}


@_prepared.register
def _(section: content.TableSection, numbers: Numbering) -> dict[str, Any]:
    def show(value: str | float) -> tuple[str, bool]:
        if isinstance(value, str):
            return value, _IS_NUMBER.fullmatch(value) is not None
        return (format(value, ".4g") if np.isfinite(value) else "–"), True

    rows = [[show(value) for value in row] for row in section.rows]
    in_column = [
        {is_number for text, is_number in column if text not in ("", "–")} for column in zip(*rows, strict=True)
    ]
    return {"rows": rows, "numbers": [kinds == {True} for kinds in in_column] or [False] * len(section.columns)}


@_prepared.register
def _(section: content.ByLearnerSection, numbers: Numbering) -> dict[str, Any]:
    kind, shown = section.template, section.shown
    if kind == "types":
        return {}
    if kind == "curves":
        phases = any(training.history.phase.any() for training in shown.values())
        return {"charts": convergence_charts(shown, numbers), "phases": phases}
    if kind == "calibration":
        return {"chart": reliability_diagram(shown, numbers)}
    if kind == "edge_tables":
        return {"matrices": _table_maps(shown)}
    if kind == "confusions":
        return {"matrices": {name: _confusion_map(c) for name, c in shown.items()}}
    values = [abs(weight.value) for weights in shown.values() for weight in weights]
    return {"limit": max((value for value in values if np.isfinite(value)), default=0.0) or 1.0}


@_prepared.register
def _(section: content.GallerySection, numbers: Numbering) -> dict[str, Any]:
    pictures = [p for sheet in section.gallery.sheets for row in sheet.rows for p in row]
    return {"wide": max((p.size[0] for p in pictures), default=0) > 64}


@_prepared.register
def _(section: content.TextSection, numbers: Numbering) -> dict[str, Any]:
    learners = _taggers(section)
    colours = _entities(section.texts)
    examples = []
    for text in section.texts:
        places = lay_out(text)
        views: list[dict[str, Any]] = [{"lines": lines_of(text, places, colours, None), "wrong": 0, "view": 0}]
        views += [
            {"lines": lines_of(text, places, colours, name), "wrong": n_wrong(text, name), "view": view}
            for view, name in enumerate(learners, start=1)
            if name in text.predictions
        ]
        arcs, columns = arcs_of(text, places)
        n_lines = places[-1].line + 1 if places else 1
        examples.append({"text": text, "views": views, "arcs": arcs, "columns": columns, "n_lines": n_lines})
    with_errors = [sum(bool(n_wrong(t, name)) for t in section.texts if name in t.predictions) for name in learners]
    return {
        "learners": learners,
        "opened": learners.index(section.best) + 1 if section.best in learners else len(learners),
        "colours": colours,
        "examples": examples,
        "with_errors": with_errors,
        "has_skips": any(text.skips for text in section.texts),
    }


def _taggers(section: content.TextSection) -> list[str]:
    return list(dict.fromkeys(name for text in section.texts for name in text.predictions))


def _entities(texts: Sequence[TaggedText]) -> dict[str, int]:
    """Numbering of the colours of entities, in the order of the labels."""
    labels = [label for text in texts for label in (*text.label_names, *text.truth)]
    labels += [label for text in texts for tagging in text.predictions.values() for label in tagging.labels]
    names = dict.fromkeys(map(entity_of, labels))
    return {name: number for number, name in enumerate(name for name in names if name)}


# --- the page ---


def write_report(report: Report | Comparison, path: str | Path) -> Path:
    """Write a report, or the report of a comparison, as a self-contained HTML page; the path is returned.

    Missing folders are made, and the file is replaced atomically: a page that cannot be rendered leaves no trace.
    """
    path = Path(path)
    write_atomically(path, render_report(report))
    return path


def render_report(report: Report | Comparison) -> str:
    """The page as text."""
    if isinstance(report, Comparison):
        report = report_of(report)
    if not isinstance(report, Report):
        raise TypeError(f"report must be a Report or a Comparison, found {type(report).__name__}")
    numbers = learners_of(report)
    views = [(number, section, _prepared(section, numbers)) for number, section in enumerate(report.sections, start=1)]
    page = _environment().get_template("page.html")
    return page.render(report=report, version=__version__, numbers=numbers, views=views)


@cache
def _environment() -> Environment:
    """Templates, compiled once."""
    environment = Environment(
        loader=PackageLoader("bactrian.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(data_address=data_address)
    environment.filters.update(small=_small_number, signed=_signed)
    return environment


def _small_number(value: float) -> str:
    """Two digits that show the magnitude.

    >>> [_small_number(v) for v in (0.0, 0.4312, 3.6e-05, float("nan"))]
    ['0', '0.43', '3.6e-05', '–']
    """
    if not np.isfinite(value):
        return "–"
    return "0" if value == 0.0 else f"{value:.2g}"


def _signed(value: float) -> str:
    """A number with its sign.

    >>> _signed(1.25), _signed(-1.25)
    ('+1.25', '−1.25')
    """
    return f"{value:+.2f}".replace("-", "−") if np.isfinite(value) else "–"


def data_address(picture: Picture) -> str:
    """A picture as a PNG in a ``data:`` address."""
    (width, height), pixels = picture.size, picture.pixels
    rows = np.pad(pixels.reshape(height, -1), ((0, 0), (1, 0)))  # a row begins with its filter: 0, none
    header = struct.pack(">IIBBBBB", width, height, 8, 2 if pixels.ndim == 3 else 0, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), 9)), (b"IEND", b""))
    content = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    )
    return "data:image/png;base64," + base64.b64encode(content).decode("ascii")


# --- passages of text ---

_WIDTH = 100  #: columns at which a line is broken
_MOST_INDENT = 12
_DOUBT = 0.9  #: a token whose label is less probable than this is worth a look
FREE = 0.4  #: part of a line's height above its words, where arcs run
_GUTTER = 6  #: columns at the right for arcs from line to line
_SCHEME = ("B-", "I-", "E-", "S-", "L-", "U-")


@dataclass(frozen=True)
class Stretch:
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


def entity_of(label: str) -> str:
    """What a label is about, the BIO scheme removed; empty for ``O``.

    >>> entity_of("B-speaker"), entity_of("speaker"), entity_of("O")
    ('speaker', 'speaker', '')
    """
    if label == "O":
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
    text: TaggedText, places: Sequence[Place], colours: dict[str, int], learner: str | None
) -> list[list[Stretch]]:
    """The text in lines of stretches, with the labels of a learner, or (None) the true ones; ``colours`` by entity."""
    labels = text.truth if learner is None else text.predictions[learner].labels
    marginals = None if learner is None else text.predictions[learner].marginals
    entities = list(map(entity_of, labels))
    starts = [_starts(labels, entities, t) for t in range(len(labels))]
    lines: list[list[Stretch]] = [[] for _ in range(places[-1].line + 1 if places else 0)]
    for t, place in enumerate(places):
        line = lines[place.line]
        before = 0 if t == 0 or places[t - 1].line != place.line else places[t - 1].column + places[t - 1].width
        if place.column > before:
            inside = t > 0 and bool(entities[t]) and not starts[t] and bool(line)
            styles = f"entity tint-{colours[entities[t]] % 8}" if inside else ""
            line.append(Stretch(" " * (place.column - before), styles))
        row = None if marginals is None else marginals[t]
        wrong = learner is not None and labels[t] != text.truth[t]
        doubtful = row is not None and float(row.max()) < _DOUBT
        last = t + 1 == len(labels) or starts[t + 1] or not entities[t + 1] or places[t + 1].line != place.line
        styles = _styles(entities[t], colours, first=starts[t], last=last, wrong=wrong, doubtful=doubtful)
        tip = _tip(text, t, labels[t], row, judged=learner is not None) if styles else ""
        exact = place.width if not text.tokens[t].isascii() else 0
        line.append(Stretch(text.tokens[t], styles, tip, bool(styles) and (starts[t] or wrong or doubtful), exact))
    return lines


def arcs_of(text: TaggedText, places: Sequence[Place]) -> tuple[list[tuple[str, str]], int]:
    """The skip edges, each a path (in columns and lines) and the words it joins; and the columns of text and edges.

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
        arcs.append((path, f"{text.tokens[a]} – {text.tokens[b]}"))
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
