"""Table 3 as rows of text, means and deviations over the splits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bactrian.experiments.table3.differences import Difference, paired_difference
from bactrian.experiments.table3.learners import ROWS
from bactrian.experiments.table3.table import INFERENCES, NODE_ROW, Cell, Table3

HEADINGS = (
    "method",
    "prior variance",
    "scores learned from",
    "node factors",
    "superpixel %, rbp",
    "superpixel %, matched",
    "against node scores, matched",
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
    for (name, _), cells in _by_row(table).items():
        reported = paper.get(name)
        rows.append(
            (
                name,
                ", ".join(f"{c.prior_variance:g}" for c in cells if c.prior_variance is not None) or "none",
                ", ".join(dict.fromkeys(c.fold for c in cells)),
                ", ".join(dict.fromkeys(c.node_factors for c in cells)),
                *(_accuracy([c.superpixel[way] for c in cells]) for way in INFERENCES),
                "" if name == NODE_ROW else str(against_nodes(table, cells)),
                *(_accuracy([c.pixel[way] for c in cells]) for way in INFERENCES),
                "" if reported is None else f"{reported[0]:.1f} ({reported[1]:.1f})",
                *_learning(cells),
            )
        )
    return rows


def _by_row(table: Table3) -> dict[tuple[str, bool], list[Cell]]:
    """Cells of every row, first those without a prior."""
    found: dict[tuple[str, bool], list[Cell]] = {}
    for cell in sorted(table.cells, key=lambda cell: cell.prior_variance is not None):
        found.setdefault((cell.row, cell.prior_variance is not None), []).append(cell)
    return found


def against_nodes(table: Table3, cells: Sequence[Cell]) -> Difference:
    """Superpixel accuracy of a row's cells under matched inference against that of the node scores alone."""
    alone = {cell.split: cell for cell in table.cells if cell.row == NODE_ROW}
    return paired_difference(
        [cell.right["matched"] - alone[cell.split].right["matched"] for cell in cells],
        [table.sizes[cell.split] for cell in cells],
        [table.test_images[cell.split] for cell in cells],
    )


def worse_than_nodes(table: Table3) -> str:
    """Which rows of the CAMEL family are below the node scores alone, and by more than chance."""
    camel = [row.name for row in ROWS if row.is_camel]
    below, surely = [], []
    for (name, prior), cells in _by_row(table).items():
        if name in camel:
            difference = against_nodes(table, cells)
            called = f"{name} {'with' if prior else 'without'} a prior"
            below += [called] if difference.mean < 0.0 else []
            surely += [called] if difference.high < 0.0 else []
    return (
        f"CAMEL rows below the node scores, matched inference: {', '.join(below) or 'none'}; by more than chance (95 % "
        f"of 4,000 resamples of the test images): {', '.join(surely) or 'none'}"
    )


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
