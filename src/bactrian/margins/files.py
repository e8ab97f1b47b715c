"""Files of margins.

CSV: a column per variable, ``count``, and ``stddev`` where counts are noisy. A line is a cell; empty
variables are not part of its margin, so that lines with the same variables filled in make one margin::

    sex,age,count
    f,,52
    m,,48
    ,0-15,20
    ,16+,80

Cells that are not listed are 0. States come in the order in which the file has them first.

JSON: the arguments of :meth:`bactrian.MarkovRandomField.fit_marginals`, of which only ``margins`` must be there::

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
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bactrian.errors import about
from bactrian.margins.given import Marginal

COUNT, STDDEV = "count", "stddev"


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
        raise ValueError(f"{base}: every line of a seed table must fill in the same variables")
    found = {file: [_table(*group, labels) for group in of.items()] for file, of in groups.items()}
    states = {name: list(known) for name, known in labels.items()}
    return {"margins": found[path] if path else [], "cardinalities": states, "base": found[base][0] if base else None}


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
    columns, rows = rows_of(path)
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


def rows_of(path: Path) -> tuple[list[str], list[tuple[str, list[str]]]]:
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
