"""A table of the paper beside ours, as text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bactrian.runs.comparison import Gallery

#: Told what is going on, a line at a time.
Follow = Callable[[str], None]


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
