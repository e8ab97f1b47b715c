"""Charts as inline SVG. Colours and dashes come from the page's style sheet, so that they follow light and dark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup, escape
from numpy.typing import NDArray

from bactrian.report.axes import Axis, tick_label

Floats = NDArray[np.float64]

_WIDTH, _HEIGHT = 400, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 14, 12, 46
_MOST_MARKERS = 60
_MOST_POINTS = 400


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


def _line(series: Series, across: Axis, up: Axis) -> Markup:
    drawn = np.flatnonzero(across.holds(series.x) & up.holds(series.y))
    if drawn.size > _MOST_POINTS:  # more would make the page large, not the line finer
        drawn = drawn[np.linspace(0, drawn.size - 1, _MOST_POINTS).round().astype(np.int64)]
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
    return Markup('<g class="series learner-{} tone-{} dash-{}">{}{}</g>').format(
        series.number, series.number % 12, series.number % 5, line, markers
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
