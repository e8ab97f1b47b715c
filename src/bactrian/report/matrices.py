"""Heat maps: learned tables and confusions, as cells with a shade."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bactrian.runs.comparison import LabelTable
from bactrian.runs.exhibits import Confusion

_MOST_NUMBERS = 14  #: labels beyond which cells are too small for numbers


@dataclass(frozen=True)
class Cell:
    """A cell: what is written in it, what hovering says, which colour, and how strong (0 to 1)."""

    text: str
    title: str
    style: str
    shade: float


@dataclass(frozen=True)
class Matrix:
    """A heat map with names at its rows and columns."""

    title: str
    row_labels: Sequence[str]
    column_labels: Sequence[str]
    rows: Sequence[Sequence[Cell]]

    @property
    def dense(self) -> bool:
        """Whether there are too many cells for numbers in them."""
        return max(len(self.row_labels), len(self.column_labels)) > _MOST_NUMBERS


def table_limit(tables: Sequence[LabelTable]) -> float:
    """The largest finite interaction of all tables, at which colours are strongest."""
    values = [np.abs(table.interaction[np.isfinite(table.interaction)]).max(initial=0.0) for table in tables]
    return float(max(values, default=0.0)) or 1.0


def table_matrix(table: LabelTable, limit: float) -> Matrix:
    """The interaction in a table of scores; colours run from -``limit`` through 0 to ``limit``."""
    interaction = table.interaction
    rows = []
    for r, row_name in enumerate(table.row_labels):
        cells = []
        for c, column_name in enumerate(table.column_labels):
            value = float(interaction[r, c])
            finite = bool(np.isfinite(value))
            cells.append(
                Cell(
                    f"{value:+.2f}".replace("-", "−") if finite else "–",
                    f"{row_name}, {column_name}: score {table.values[r, c]:.4f}",
                    "above" if value >= 0.0 else "below",
                    0.75 * min(abs(value) / limit, 1.0) if finite else 0.0,
                )
            )
        rows.append(cells)
    return Matrix(table.title, table.row_labels, table.column_labels, rows)


def confusion_matrix(confusion: Confusion) -> Matrix:
    """Counts, shaded by their share of the row: right ones in one colour, wrong ones in the other."""
    totals = confusion.counts.sum(axis=1)
    rows = []
    for t, true in enumerate(confusion.labels):
        cells = []
        for p, guess in enumerate(confusion.labels):
            count = int(confusion.counts[t, p])
            share = count / totals[t] if totals[t] else 0.0
            # The square root lifts rare confusions, which a linear scale would leave white.
            shade = 0.75 * float(np.sqrt(share))
            title = f"{true} taken for {guess}: {count} of {totals[t]} ({share:.1%})"
            cells.append(Cell(f"{count:,}" if count else "·", title, "above" if t == p else "below", shade))
        rows.append(cells)
    return Matrix("", confusion.labels, confusion.labels, rows)
