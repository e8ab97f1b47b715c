"""Tables of rows in CSV files, and questions to a field as one writes them: ``P(lung | smoker=yes)``."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from bactrian.estimators.fields import Field
from bactrian.estimators.frames import Table, columns_of, word

#: Cells that were not seen.
MISSING = ("", "?", "NA", "NaN")

_EXPECTED = "expected a question such as P(lung | smoker=yes)"


def read_table(path: Path) -> Table:
    """The columns of a CSV file (tabs between cells where it is called .tsv), the first line being their names.

    Columns of numbers become numbers, all others strings; empty cells, ``?``, ``NA`` and ``NaN`` are None.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"{path}: not UTF-8") from None
    reader = csv.reader(io.StringIO(text, newline=""), delimiter="\t" if path.suffix.lower() == ".tsv" else ",")
    names = [name.strip() for name in next(reader, [])]
    if not names or "" in names or len(set(names)) < len(names):
        raise ValueError(f"{path}: expected a first line with a different name for each column, found {names}")
    rows = []
    for row in reader:
        if len(row) not in (0, len(names)):
            raise ValueError(f"{path}:{reader.line_num}: expected {len(names)} cells, found {len(row)}")
        if row:
            rows.append([None if cell.strip() in MISSING else cell.strip() for cell in row])
    if not rows:
        raise ValueError(f"{path}: there are no rows")
    return Table({name: _numbers([row[v] for row in rows]) for v, name in enumerate(names)})


def _numbers(cells: list[str | None]) -> list[Any]:
    """Cells as numbers where all are."""
    for kind, pattern in ((int, r"[-+]?\d{1,18}"), (float, r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")):
        if all(cell is None or re.fullmatch(pattern, cell) for cell in cells):
            return [None if cell is None else kind(cell) for cell in cells]
    return cells


def read_pairs(texts: Sequence[str]) -> list[tuple[str, str]]:
    """Edges from texts such as ``age,smoker``."""
    pairs = [tuple(name.strip() for name in text.split(",")) for text in texts]
    for text, pair in zip(texts, pairs, strict=True):
        if len(pair) != 2 or not all(pair):
            raise ValueError(f"--edge must be two columns such as age,smoker, found {text!r}")
    return [(a, b) for a, b in pairs]


def read_hidden(texts: Sequence[str]) -> dict[str, int]:
    """Numbers of states from texts such as ``party=3``."""
    found = {}
    for text in texts:
        name, _, number = (part.strip() for part in text.partition("="))
        if not name or not re.fullmatch(r"[0-9]{1,9}", number):
            raise ValueError(f"--hidden must be a name and a number of states such as party=3, found {text!r}")
        found[name] = int(number)
    return found


@dataclass(frozen=True)
class Question:
    """P(free, event | given) in words."""

    free: tuple[str, ...]
    event: dict[str, str]
    given: dict[str, str]

    @staticmethod
    def of(text: str) -> Question:
        """Read a question; variables without a state are those that a table is wanted of."""
        inside = re.fullmatch(r"\s*[Pp]\s*\(([^|]*)(?:\|([^|]*))?\)\s*", text)
        if inside is None:
            raise ValueError(f"{_EXPECTED}, found {text!r}")
        asked, given = inside.groups()
        free, event = _terms(asked, text)
        more, seen = _terms(given, text) if given is not None else ((), {})
        if more:
            raise ValueError(f"{_EXPECTED}: {more[0]!r} behind the bar needs a state, in {text!r}")
        return Question(free, event, seen)

    def answer(self, field: Field) -> float | Table:
        """A probability, or a table of them for the states of the free variables."""
        event, given = _labelled(self.event, field), _labelled(self.given, field)
        mass = field.probability(event, given) if event else 1.0
        if not self.free:
            return mass
        found = field.marginal(self.free, {**given, **event} if mass > 0.0 else given)
        if isinstance(found, np.ndarray):
            cells = zip(*product(*(_states(name, field) for name in self.free)), strict=True)
            columns: dict[str, Any] = dict(zip(self.free, map(list, cells), strict=True))
            columns["probability"] = found.ravel().tolist()
        else:
            columns = {column.name: column.cells for column in columns_of(found)}
        *_, last = columns
        return Table({**columns, last: [mass * chance for chance in columns[last]]})


def _terms(text: str, question: str) -> tuple[tuple[str, ...], dict[str, str]]:
    free, fixed = [], {}
    for term in text.split(","):
        name, equals, state = (part.strip() for part in term.partition("="))
        if not name or (equals and not state) or name in free or name in fixed:
            raise ValueError(f"{_EXPECTED}: {term.strip()!r} is not a variable, or is there twice, in {question!r}")
        if equals:
            fixed[name] = state
        else:
            free.append(name)
    return tuple(free), fixed


def _states(name: str, field: Field) -> Sequence[Any]:
    """States of a variable; none where the field has no such variable."""
    known = dict(zip(field.variable_names, zip(field.state_labels, field.cardinalities_, strict=True), strict=True))
    labels, k = known.get(name, (None, 0))
    return range(k) if labels is None else labels


def _labelled(states: dict[str, str], field: Field) -> dict[str, Any]:
    """States as the field calls them, from how they are written."""
    return {
        name: next((label for label in _states(name, field) if word(label) == state), state)
        for name, state in states.items()
    }


def as_csv(table: Table) -> str:
    """The columns of a table below a line of names."""
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(table.columns)
    writer.writerows([word(cell) for cell in row] for row in zip(*table.values(), strict=True))
    return stream.getvalue()
