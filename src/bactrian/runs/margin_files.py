"""Files of fields: margins, tables of rows, and the folder of a field that was fitted to either.

Margins as CSV: a column per variable, ``count``, and ``stddev`` where counts are noisy. A line is a cell; empty
variables are not part of its margin, so that lines with the same variables filled in make one margin::

    sex,age,count
    f,,52
    m,,48
    ,0-15,20
    ,16+,80

Cells that are not listed are 0. States come in the order in which the file has them first.

As JSON: the arguments of :meth:`bactrian.MarkovRandomField.fit_marginals`, of which only ``margins`` must be there::

    {
        "margins": [{"names": ["sex", "age"], "table": [[11, 41], [9, 39]], "stddev": 3.0}],
        "variables": {"sex": ["f", "m"], "age": 2},
        "total": 100,
        "base": {"names": ["sex"], "table": [1, 1]},
        "impossible": [{"sex": "f", "age": 0}],
    }
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from bactrian.errors import about
from bactrian.estimators.fields import Field
from bactrian.estimators.frames import Table, columns_of, word
from bactrian.estimators.marginals import Marginal

COUNT, STDDEV = "count", "stddev"
#: The fitted field in its folder, and the page about it.
MODEL, REPORT = "field.safetensors", "report.html"


def read_margins(path: Path, base: Path | None = None) -> dict[str, Any]:
    """Arguments of ``fit_marginals``: margins of a CSV or JSON file, and a seed table of another."""
    if path.suffix.lower() != ".json":
        return _from_csv(path, base)
    return _from_json(path) | ({} if base is None else {"base": _from_csv(None, base)["base"]})


def _from_json(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as problem:
        raise ValueError(f"{path}: not valid JSON: {problem}") from None
    if not isinstance(document, dict) or not isinstance(document.get("margins"), list):
        raise ValueError(f'{path}: expected an object with "margins", a list')
    unknown = sorted(document.keys() - {"margins", "variables", "total", "base", "impossible"})
    if unknown:
        raise ValueError(f"{path}: {unknown[0]!r} is not known; expected margins, variables, total, base, impossible")
    margins = []
    for i, entry in enumerate(document["margins"]):
        with about(f"{path}: margins", i):
            margins.append(_marginal(entry))
    base = document.get("base")
    return {
        "margins": margins,
        "cardinalities": document.get("variables"),
        "total": document.get("total"),
        "base": None if base is None else _marginal(base),
        "impossible": document.get("impossible", []),
    }


def _marginal(entry: Any) -> Marginal:
    if not isinstance(entry, dict) or not {"names", "table"} <= entry.keys() <= {"names", "table", "stddev"}:
        raise ValueError(' must be an object with "names", "table" and perhaps "stddev"')
    return Marginal(entry["names"], entry["table"], entry.get("stddev"))


@dataclass(frozen=True)
class _Cell:
    states: dict[str, str]
    count: float
    stddev: float | None
    place: str


def _from_csv(path: Path | None, base: Path | None) -> dict[str, Any]:
    """Margins of a file, and a seed table of another, over common variables."""
    labels: dict[str, dict[str, int]] = {}
    groups: dict[Path, dict[tuple[str, ...], list[_Cell]]] = {}
    for file in (path, base):
        if file is not None:
            groups[file] = {}
            for cell in _cells(file):
                for name, state in cell.states.items():
                    known = labels.setdefault(name, {})
                    known.setdefault(state, len(known))
                groups[file].setdefault(tuple(cell.states), []).append(cell)
    if base is not None and len(groups[base]) > 1:
        raise ValueError(f"{base}: a seed table has the same variables filled in on every line")
    found = {file: [_table(*group, labels) for group in of.items()] for file, of in groups.items()}
    states = {name: list(known) for name, known in labels.items()}
    return {
        "margins": found[path] if path else [],
        "cardinalities": states,
        "base": found[base][0] if base else None,
    }


def _table(names: tuple[str, ...], cells: Sequence[_Cell], labels: dict[str, dict[str, int]]) -> Marginal:
    """The margin over ``names`` that cells make; those that are not listed are 0."""
    what, shape = ", ".join(names), tuple(len(labels[name]) for name in names)
    table, spread, seen = np.zeros(shape), np.zeros(shape), np.zeros(shape, dtype=bool)
    noisy = cells[0].stddev is not None
    for cell in cells:
        index = tuple(labels[name][state] for name, state in cell.states.items())
        if seen[index]:
            raise ValueError(f"{cell.place}: this cell of {what} was given before")
        if (cell.stddev is not None) != noisy:
            raise ValueError(f"{cell.place}: either all cells of {what} have a {STDDEV} or none has")
        seen[index], table[index], spread[index] = True, cell.count, cell.stddev or 0.0
    if noisy and not seen.all():
        raise ValueError(f"{cells[0].place}: noisy margins must list all cells; {what} lacks some")
    try:
        return Marginal(names, table, spread if noisy else None)
    except ValueError as problem:
        raise ValueError(f"{cells[0].place}: the margin of {what}: {problem}") from None


def _cells(path: Path) -> list[_Cell]:
    columns, rows = _rows_of(path)
    names = [name for name in columns if name not in (COUNT, STDDEV)]
    if COUNT not in columns or not names:
        raise ValueError(f"{path}: expected a line of names first: variables, and {COUNT!r}")
    found = []
    for place, row in rows:
        line = dict(zip(columns, row, strict=True))
        states = {name: line[name] for name in names if line[name]}
        if not states:
            raise ValueError(f"{place}: no variable is filled in")
        numbers = [_number(line.get(column), column, place) for column in (COUNT, STDDEV)]
        if numbers[0] is None:
            raise ValueError(f"{place}: {COUNT} is empty")
        found.append(_Cell(states, numbers[0], numbers[1], place))
    if not found:
        raise ValueError(f"{path}: there are no cells")
    return found


def _number(text: str | None, column: str, place: str) -> float | None:
    if not text:
        return None
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{place}: {column} must be a number, found {text!r}") from None


def rows_as_csv(names: Sequence[Any], labels: Sequence[Sequence[Any] | None], states: Any) -> str:
    """Rows of states, or of their labels, below a line of names."""
    codes = states.T.tolist()
    columns = [
        column if of is None else [str(of[state]) for state in column] for column, of in zip(codes, labels, strict=True)
    ]
    return as_csv(Table(dict(zip(names, columns, strict=True))))


def _rows_of(path: Path) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """Names of the columns of a CSV file (tabs between cells where it is called .tsv), and its rows with their places.

    Spaces around cells are left out, and so are empty rows and empty columns at the end.
    """
    try:
        text = io.StringIO(path.read_text(encoding="utf-8-sig"), newline="")
    except UnicodeDecodeError:
        raise ValueError(f"{path}: not UTF-8") from None
    reader = csv.reader(text, delimiter="\t" if path.suffix.lower() == ".tsv" else ",", strict=True)
    try:
        lines = [(f"{path}:{reader.line_num}", [cell.strip() for cell in line]) for line in reader]
    except csv.Error as problem:
        raise ValueError(f"{path}:{reader.line_num}: {problem}") from None
    names = lines[0][1] if lines else []
    while names and not names[-1]:
        names.pop()
    if not names or "" in names or len(set(names)) < len(names):
        raise ValueError(f"{path}: expected a first line with a different name for each column, found {names}")
    rows = [(place, row) for place, row in lines[1:] if row]
    for place, row in rows:
        while len(row) > len(names) and not row[-1]:
            row.pop()
        if len(row) != len(names):
            raise ValueError(f"{place}: expected {len(names)} cells, found {len(row)}")
    return names, rows


# --- tables of rows, and questions ---

#: Cells that were not seen.
MISSING = ("", "?", "NA", "NaN")

_EXPECTED = "expected a question such as P(lung | smoker=yes)"


def read_table(path: Path) -> Table:
    """The columns of a CSV file (tabs between cells where it is called .tsv), the first line being their names.

    Columns of numbers become numbers, all others strings, such as codes that begin with 0; empty cells, ``?``, ``NA``
    and ``NaN`` are None.
    """
    names, rows = _rows_of(path)
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
            cells = zip(*product(*(field.states[name] for name in self.free)), strict=True)
            columns: dict[str, Any] = dict(zip(self.free, map(list, cells), strict=True))
            columns["probability"] = found.ravel().tolist()
        else:
            columns = {column.name: column.cells for column in columns_of(found)}
        *_, last = columns
        return Table({**columns, last: [f"{mass * chance:.6g}" for chance in columns[last]]})


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


def _labelled(states: dict[str, str], field: Field) -> dict[str, Any]:
    """States as the field calls them, from how they are written."""
    return {
        name: next((label for label in field.states.get(name, ()) if word(label) == state), state)
        for name, state in states.items()
    }


def as_csv(table: Table) -> str:
    """The columns of a table below a line of names."""
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(table.columns)
    writer.writerows([word(cell) for cell in row] for row in zip(*table.values(), strict=True))
    return stream.getvalue()
