"""Files of fields: tables of rows, questions, and the folder of a field that was fitted to rows or margins."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from bactrian.estimators.markov_random_field import MarkovRandomField
from bactrian.frames import Table, columns_of, is_frame, word
from bactrian.margins.files import rows_of

#: The fitted field in its folder, and the page about it.
MODEL, REPORT = "field.safetensors", "report.html"

#: Cells that were not seen.
MISSING = ("", "?", "NA", "NaN")

_EXPECTED = "expected a question such as P(lung | smoker=yes)"


def read_table(path: Path) -> Table:
    """The columns of a CSV file (tabs between cells where it is called .tsv), the first line being their names.

    Columns of numbers become numbers, all others strings, such as codes that begin with 0; empty cells, ``?``, ``NA``
    and ``NaN`` are None.
    """
    names, rows = rows_of(path)
    if not rows:
        raise ValueError(f"{path}: there are no rows")
    columns = zip(*(row for _, row in rows), strict=True)
    return Table(
        {
            name: _numbers([None if cell in MISSING else cell for cell in column])
            for name, column in zip(names, columns, strict=True)
        }
    )


def states_with_minus_one(rows: Table) -> dict[str, list[Any]] | None:
    """States of the columns of whole numbers that hold -1, which in a file is never a missing cell; None without."""
    seen = {name: sorted(set(cells) - {None}) for name, cells in rows.items() if -1 in cells}
    return {name: states for name, states in seen.items() if all(float(state).is_integer() for state in states)} or None


def _numbers(cells: list[str | None]) -> list[Any]:
    """Cells as numbers where all are."""
    whole = r"(0|[1-9]\d{0,17})"
    for kind, pattern in ((int, f"-?{whole}"), (float, rf"[-+]?({whole}(\.\d*)?|\.\d+)([eE][-+]?\d+)?")):
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


def edges_of(pairs: Sequence[str] | None, how: str | None) -> Any:
    """The edges to give a field: pairs such as ``age,smoker``, a word, or pairs with the rest selected."""
    if pairs and how not in (None, "select"):
        raise ValueError(f"--edge goes alone or with --edges select, found --edges {how}")
    listed = read_pairs(pairs or ())
    return [*listed, "select"] if pairs and how else listed or how or "auto"


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
    event: dict[str, str | list[str]]
    given: dict[str, str | list[str]]

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

    def answer(self, field: MarkovRandomField) -> float | Table:
        """A probability, or a table of them for the states of the free variables."""
        event, given = _labelled(self.event, field), _labelled(self.given, field)
        mass = field.probability(event, given) if event else 1.0
        if not self.free:
            return mass
        found = field.marginal(self.free, {**given, **event} if mass > 0.0 else given)
        if not (is_frame(found) and tuple(found.columns)[: len(self.free)] == self.free):  # a table by its axes
            cells = zip(*product(*(field.states[name] for name in self.free)), strict=True)
            columns: dict[str, Any] = dict(zip(self.free, map(list, cells), strict=True))
            columns["probability"] = np.ravel(found).tolist()
        else:
            columns = {column.name: column.cells for column in columns_of(found)}
        *_, last = columns
        return Table({**columns, last: [f"{mass * chance:.6g}" for chance in columns[last]]})

    def limits(self, field: MarkovRandomField) -> list[tuple[float, float]]:
        """The 95 % confidence interval of each probability, in the order of the answer."""
        event, given = _labelled(self.event, field), _labelled(self.given, field)
        cells = product(*(field.states[name] for name in self.free))
        return [field.confint({**event, **dict(zip(self.free, cell, strict=True))}, given) for cell in cells]


def _terms(text: str, question: str) -> tuple[tuple[str, ...], dict[str, str | list[str]]]:
    """Variables, and those with a state, or with any of several: ``edu in {13, 14}``."""
    free: list[str] = []
    fixed: dict[str, str | list[str]] = {}
    for term in re.split(r",(?![^{}]*\})", text):
        several = re.fullmatch(r"\s*(.+?)\s+in\s*\{([^{}]*)\}\s*", term)
        name, equals, state = (part.strip() for part in (several.expand(r"\1=\2") if several else term).partition("="))
        states = [part.strip() for part in state.split(",")] if several else [state]
        if not name or (equals and not all(states)) or name in free or name in fixed:
            raise ValueError(f"{_EXPECTED}: {term.strip()!r} is not a variable, or is there twice, in {question!r}")
        if equals:
            fixed[name] = states if several else state
        else:
            free.append(name)
    return tuple(free), fixed


def _labelled(states: Mapping[str, str | list[str]], field: MarkovRandomField) -> dict[str, Any]:
    """States as the field calls them, from how they are written."""
    written = {name: {word(label): label for label in field.states.get(name, ())} for name in states}
    return {
        name: [written[name].get(state, state) for state in ([of] if isinstance(of, str) else of)]
        for name, of in states.items()
    }


def as_csv(table: Table) -> str:
    """The columns of a table below a line of names."""
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(table.columns)
    writer.writerows([word(cell) for cell in row] for row in zip(*table.values(), strict=True))
    return stream.getvalue()


def rows_as_csv(names: Sequence[Any], labels: Sequence[Sequence[Any] | None], states: Any) -> str:
    """Rows of states, or of their labels, below a line of names."""
    codes = states.T.tolist()
    columns = [
        column if of is None else [str(of[state]) for state in column] for column, of in zip(codes, labels, strict=True)
    ]
    return as_csv(Table(dict(zip(names, columns, strict=True))))
