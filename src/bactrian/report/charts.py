"""Charts as inline SVG. Colours and dashes come from the page's style sheet, so that they follow light and dark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup, escape
from numpy.typing import NDArray

from bactrian.experiments.comparison import LabelTable
from bactrian.report.axes import Axis, tick_label

Floats = NDArray[np.float64]

_WIDTH, _HEIGHT = 400, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 14, 12, 46
_MOST_MARKERS = 60


@dataclass(frozen=True, eq=False)
class Series:
    """A line through points (n,); ``number`` chooses its colour and dash, ``notes`` are shown on hovering a point."""

    name: str
    number: int
    x: Floats
    y: Floats
    notes: Sequence[str] = ()


def line_chart(
    series: Sequence[Series],
    *,
    title: str,
    x_label: str,
    y_label: str,
    log_x: bool = False,
    log_y: bool = False,
    whole_x: bool = False,
    unit_square: bool = False,
) -> Markup:
    """Lines with markers; ``unit_square`` draws the diagonal of a reliability diagram, both axes ending at 1."""
    every_x = np.concatenate([s.x for s in series]) if series else np.zeros(0)
    every_y = np.concatenate([s.y for s in series]) if series else np.zeros(0)
    if unit_square:
        least = min(float(every_x.min(initial=0.5)), float(every_y.min(initial=0.5)))
        every_x = every_y = np.array([least, 1.0])
    across = Axis.around(every_x, _LEFT, _WIDTH - _RIGHT, log=log_x, whole=whole_x)
    up = Axis.around(every_y, _HEIGHT - _BOTTOM, _TOP, log=log_y)
    parts = [_frame(across, up, x_label, y_label)]
    if unit_square:
        low, high = max(across.low, up.low), min(across.high, up.high)
        ends = " ".join(f"{_at(across, v)},{_at(up, v)}" for v in (low, high))
        parts.append(Markup('<polyline class="ideal" points="{}"/>').format(ends))
    parts.extend(_line(s, across, up) for s in series)
    return _svg(title, _WIDTH, _HEIGHT, parts)


def heat_map(table: LabelTable, limit: float) -> Markup:
    """The interaction in a table of scores; colours run from -``limit`` (orange) through 0 to ``limit`` (blue)."""
    cell, left, top = 64, 44, 24
    interaction = table.interaction
    n_rows, n_columns = interaction.shape
    parts = []
    for c, name in enumerate(table.column_labels):
        parts.append(_text(left + cell * (c + 0.5), top - 8, name, "middle"))
    for r, name in enumerate(table.row_labels):
        parts.append(_text(left - 8, top + cell * (r + 0.5) + 4, name, "end"))
        for c, column in enumerate(table.column_labels):
            value = float(interaction[r, c])
            strength = 0.7 * min(abs(value) / limit, 1.0) if limit > 0.0 else 0.0
            x, y = left + cell * c, top + cell * r
            parts.append(
                Markup(
                    '<g class="{}"><rect x="{}" y="{}" width="{}" height="{}" fill-opacity="{:.3f}"/>'
                    '<text x="{}" y="{}" text-anchor="middle">{:+.2f}</text><title>{}, {}: score {:.4f}</title></g>'
                ).format(
                    "cell above" if value >= 0.0 else "cell below",
                    x, y, cell - 2, cell - 2, strength, x + cell / 2 - 1, y + cell / 2 + 4, value, name, column,
                    table.values[r, c],
                )
            )  # fmt: skip
    return _svg(f"Table {table.title}", left + cell * n_columns + 4, top + cell * n_rows + 4, parts)


def _line(series: Series, across: Axis, up: Axis) -> Markup:
    drawn = np.flatnonzero(across.holds(series.x) & up.holds(series.y))
    x, y = across.place(series.x[drawn]), up.place(series.y[drawn])
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))
    line = Markup('<polyline points="{}"/>').format(points) if drawn.size > 1 else Markup("")
    stride = max(1, -(-drawn.size // _MOST_MARKERS))
    marked = [k for k in range(drawn.size) if k % stride == 0 or k == drawn.size - 1]
    markers = Markup("").join(
        Markup('<circle cx="{:.1f}" cy="{:.1f}" r="2.6"><title>{}</title></circle>').format(
            x[k], y[k], _note(series, int(drawn[k]))
        )
        for k in marked
    )
    return Markup('<g class="series series-{} tone-{}">{}{}</g>').format(
        series.number, series.number % 8, line, markers
    )


def _note(series: Series, point: int) -> str:
    if series.notes:
        return f"{series.name}: {series.notes[point]}"
    return f"{series.name}: {series.y[point]:.3g} at {series.x[point]:.3g}"


def _frame(across: Axis, up: Axis, x_label: str, y_label: str) -> Markup:
    parts = []
    for value in across.ticks():
        x = _at(across, value)
        parts.append(Markup('<line class="rule" x1="{0}" x2="{0}" y1="{1}" y2="{2}"/>').format(x, _TOP, up.start))
        parts.append(_text(x, up.start + 18, tick_label(value, across.log), "middle"))
    for value in up.ticks():
        y = _at(up, value)
        parts.append(Markup('<line class="rule" x1="{0}" x2="{1}" y1="{2}" y2="{2}"/>').format(_LEFT, across.end, y))
        parts.append(_text(_LEFT - 8, y + 4, tick_label(value, up.log), "end"))
    middle = (_TOP + up.start) / 2
    parts.append(_text((across.start + across.end) / 2, _HEIGHT - 6, x_label, "middle", "label"))
    parts.append(
        Markup('<text class="label" text-anchor="middle" transform="translate(14 {}) rotate(-90)">{}</text>').format(
            middle, y_label
        )
    )
    return Markup("").join(parts)


def _at(axis: Axis, value: float) -> float:
    return round(float(axis.place(value)), 1)


def _text(x: float, y: float, text: str, anchor: str, style: str = "tick") -> Markup:
    return Markup('<text class="{}" x="{}" y="{}" text-anchor="{}">{}</text>').format(style, x, y, anchor, text)


def _svg(title: str, width: float, height: float, parts: Sequence[Markup]) -> Markup:
    return Markup('<svg viewBox="0 0 {0} {1}" style="max-width:{0}px" role="img" aria-label="{2}">{3}</svg>').format(
        width, height, escape(title), Markup("").join(parts)
    )
