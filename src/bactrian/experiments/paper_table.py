"""A table of the paper beside ours, as text, and what the commands that make them share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bactrian.runs.comparison import Gallery
from bactrian.solvers.solution import Solution, Status

#: Called with a line about the progress.
Tell = Callable[[str], None]


@dataclass(frozen=True)
class PaperTable:
    """What ``bactrian reproduce`` prints: every row as long as ``columns``."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()  #: where settings came from, and what the numbers mean
    galleries: tuple[Gallery, ...] = ()  #: pictures for a report

    def __post_init__(self) -> None:
        for number, row in enumerate(self.rows):
            if len(row) != len(self.columns):
                raise ValueError(f"rows[{number}] must have {len(self.columns)} cells, found {len(row)}")


def rows_named(rows: Sequence[Any], names: Sequence[str]) -> tuple[Any, ...]:
    """Those of ``rows`` with one of the ``names``, in the order of ``rows``; all of them without names."""
    known = [row.name for row in rows]
    for name in names:
        if name not in known:
            raise ValueError(f"rows must be among {'; '.join(known)}; found {name!r}")
    return tuple(row for row in rows if not names or row.name in names)


def iterations_of(solution: Solution) -> int:
    """Quasi-Newton iterations of all inner solves."""
    return sum(record.iterations for record in solution.history)


def status_of(solution: Solution) -> str:
    """The status in a few words."""
    return solution.status.name.lower().replace("_", " ")


#: The status of a run that a user's limit in seconds stopped.
LATE = Status.TIME_LIMIT.name.lower().replace("_", " ")


def late_note(names: Sequence[str]) -> tuple[str, ...]:
    """A note on the rows that a limit in seconds stopped, if any."""
    if not names:
        return ()
    return (f"STOPPED by --seconds, so that figures depend on the machine: {'; '.join(dict.fromkeys(names))}",)


def percent(value: float) -> str:
    """A share as a percentage with one decimal."""
    return f"{100.0 * value:.1f}"


def mean_and_deviation(values: Sequence[float]) -> str:
    """Mean and sample standard deviation of shares, in per cent; the deviation of a single one is 0.

    >>> mean_and_deviation([0.1, 0.2, 0.3])
    '20.0 (10.0)'
    """
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    return f"{percent(float(np.mean(values)))} ({percent(deviation)})"
