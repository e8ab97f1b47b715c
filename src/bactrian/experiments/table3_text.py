"""Table 3 as rows of text, means and deviations over the splits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bactrian.experiments.table3 import INFERENCES, Cell, Table3
from bactrian.experiments.table3_learners import ROWS

HEADINGS = (
    "method",
    "prior variance",
    "scores learned from",
    "node factors",
    "superpixel %, rbp",
    "superpixel %, matched",
    "pixel %, rbp",
    "pixel %, matched",
    "paper",
    "seconds",
    "CPU seconds",
    "outer loops",
    "violation",
    "moment gap",
    "BP converges",
    "status",
)


def table3_rows(table: Table3) -> list[tuple[str, ...]]:
    """One row of text, in the order of :data:`HEADINGS`, for each learner with and without a prior."""
    paper = {row.name: row.paper for row in ROWS}
    rows = []
    for with_prior in (False, True):
        names = dict.fromkeys(cell.row for cell in table.cells if (cell.prior_variance is not None) == with_prior)
        for name in names:
            cells = [c for c in table.cells if c.row == name and (c.prior_variance is not None) == with_prior]
            reported = paper.get(name)
            rows.append(
                (
                    name,
                    ", ".join(f"{c.prior_variance:g}" for c in cells if c.prior_variance is not None) or "none",
                    ", ".join(dict.fromkeys(c.fold for c in cells)),
                    ", ".join(dict.fromkeys(c.node_factors for c in cells)),
                    *(_accuracy([c.superpixel[way] for c in cells]) for way in INFERENCES),
                    *(_accuracy([c.pixel[way] for c in cells]) for way in INFERENCES),
                    "" if reported is None else f"{reported[0]:.1f} ({reported[1]:.1f})",
                    *_learning(cells),
                )
            )
    return rows


def plain_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns set flush with spaces."""
    widths = [max(len(row[c]) for row in (headings, *rows)) for c in range(len(headings))]
    lines = [headings, ["-" * width for width in widths], *rows]
    return "\n".join("  ".join(part.ljust(width) for part, width in zip(line, widths, strict=True)).rstrip()
                     for line in lines)  # fmt: skip


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float]:
    """Mean and sample standard deviation; 0 for a single value."""
    return float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def _accuracy(values: Sequence[float]) -> str:
    mean, deviation = mean_and_deviation([100.0 * value for value in values])
    return f"{mean:.1f} ({deviation:.1f})"


def _learning(cells: Sequence[Cell]) -> tuple[str, ...]:
    """What tells how learning went; empty for a row that does not learn."""
    if all(np.isnan(cell.seconds) for cell in cells):
        return ("",) * 7
    converged = np.mean([cell.bp_converged for cell in cells])
    return (
        f"{np.mean([cell.seconds for cell in cells]):.1f}",
        f"{np.mean([cell.cpu_seconds for cell in cells]):.1f}",
        f"{np.mean([cell.outer_loops for cell in cells]):.0f}",
        f"{max(cell.violation for cell in cells):.1e}",
        f"{max(cell.moment_gap for cell in cells):.1e}",
        f"{100.0 * converged:.0f} %",
        ", ".join(dict.fromkeys(cell.status for cell in cells)),
    )
