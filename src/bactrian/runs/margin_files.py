"""Margins in files, and the folder of a field that was fitted to them.

CSV: a column per variable, ``count``, and ``stddev`` where counts are noisy. A line is a cell; empty variables are not
part of its margin, so that lines with the same variables filled in make one margin::

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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bactrian.errors import about
from bactrian.estimators.marginals import Marginal

COUNT, STDDEV = "count", "stddev"
#: The fitted field in its folder, and the page about it.
MODEL, REPORT = "field.safetensors", "report.html"


@dataclass(frozen=True)
class MarginFile:
    """Arguments of ``fit_marginals``."""

    margins: list[Marginal]
    cardinalities: dict[str, Any] | None
    total: float | None = None
    base: Any = None
    impossible: list[dict[str, Any]] = field(default_factory=list)


def read_margins(path: Path, base: Path | None = None) -> MarginFile:
    """Margins of a CSV or JSON file, and a seed table of another."""
    if path.suffix.lower() == ".json":
        found = _from_json(path)
        if base is None:
            return found
        seed = _from_csv([base])
        return MarginFile(found.margins, found.cardinalities, found.total, _only(seed, base), found.impossible)
    found = _from_csv([path, *([] if base is None else [base])])
    if base is None:
        return found
    return MarginFile(found.margins[:-1], found.cardinalities, base=found.margins[-1])


def _only(found: MarginFile, path: Path) -> Marginal:
    if len(found.margins) != 1:
        raise ValueError(f"{path}: a seed table has the same variables filled in on every line")
    return found.margins[0]


def _from_json(path: Path) -> MarginFile:
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
    return MarginFile(
        margins=margins,
        cardinalities=document.get("variables"),
        total=document.get("total"),
        base=None if base is None else _marginal(base),
        impossible=document.get("impossible", []),
    )


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


def _from_csv(paths: Sequence[Path]) -> MarginFile:
    """Margins of one or more files over common variables; those of the last file come last, as one."""
    labels: dict[str, dict[str, int]] = {}
    groups: dict[tuple[int, tuple[str, ...]], list[_Cell]] = {}
    for number, path in enumerate(paths):
        before = len(groups)
        for cell in _cells(path):
            for name, state in cell.states.items():
                known = labels.setdefault(name, {})
                known.setdefault(state, len(known))
            groups.setdefault((number, tuple(cell.states)), []).append(cell)
        if number and len(groups) > before + 1:
            raise ValueError(f"{path}: a seed table has the same variables filled in on every line")
    margins = []
    for (_, names), cells in groups.items():
        shape = tuple(len(labels[name]) for name in names)
        table, spread, seen = np.zeros(shape), np.zeros(shape), np.zeros(shape, dtype=bool)
        noisy = cells[0].stddev is not None
        for cell in cells:
            index = tuple(labels[name][state] for name, state in cell.states.items())
            if seen[index]:
                raise ValueError(f"{cell.place}: this cell of {', '.join(names)} was given before")
            if (cell.stddev is not None) != noisy:
                raise ValueError(f"{cell.place}: either all cells of {', '.join(names)} have a {STDDEV} or none has")
            seen[index], table[index], spread[index] = True, cell.count, cell.stddev or 0.0
        if noisy and not seen.all():
            raise ValueError(f"{cells[0].place}: noisy margins must list all cells; {', '.join(names)} lacks some")
        try:
            margins.append(Marginal(names, table, spread if noisy else None))
        except ValueError as problem:
            raise ValueError(f"{cells[0].place}: the margin of {', '.join(names)}: {problem}") from None
    return MarginFile(margins, {name: list(known) for name, known in labels.items()})


def _cells(path: Path) -> list[_Cell]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"{path}: not UTF-8") from None
    reader = csv.DictReader(io.StringIO(text, newline=""))
    names = [name for name in reader.fieldnames or () if name not in (COUNT, STDDEV)]
    if COUNT not in (reader.fieldnames or ()) or not names:
        raise ValueError(f"{path}: expected a line of names first: variables, and {COUNT!r}")
    found = []
    for line in reader:
        place = f"{path}:{reader.line_num}"
        states = {name: line[name] for name in names if line[name] not in (None, "")}
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
    if text is None or text.strip() == "":
        return None
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{place}: {column} must be a number, found {text!r}") from None


def rows_as_csv(names: Sequence[Any], labels: Sequence[Sequence[Any] | None], states: Any) -> str:
    """Rows of states, or of their labels, below a line of names."""
    columns = [
        states[:, v].tolist() if of is None else [of[state] for state in states[:, v].tolist()]
        for v, of in enumerate(labels)
    ]
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(names)
    writer.writerows(zip(*columns, strict=True))
    return stream.getvalue()
