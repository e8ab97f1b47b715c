"""Charts: axes, lines, and the curves of convergence and calibration, which ``chart.html`` draws as inline SVG.

Colours and dashes come from the page's style sheet, so that they follow light and dark.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bactrian.arrays import Bools, Floats, Ints
from bactrian.runs.comparison import Curve, Reliability, Training

# --- axes ---


@dataclass(frozen=True)
class Axis:
    """An axis from ``low`` to ``high``, linear or logarithmic, drawn between places ``start`` and ``end``."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False
    step: float = 0.0  #: between the ticks of a linear axis

    @staticmethod
    def around(values: Floats, start: float, end: float, *, log: bool = False, whole: bool = False) -> Axis:
        """An axis that holds all finite values (positive ones if logarithmic); a linear one ends at its ticks."""
        usable = values[np.isfinite(values) & ((values > 0.0) | (not log))]
        if usable.size == 0:
            return Axis(0.1 if log else 0.0, 1.0, start, end, log, step=0.2)
        low, high = float(usable.min()), float(usable.max())
        if log:
            margin = 1.3 if high > 3.0 * low else 3.0
            return Axis(low / margin, high * margin, start, end, log)
        size = max(abs(low), abs(high))
        if high - low <= 1e-9 * size or size == 0.0:
            low, high = low - max(0.1 * size, 0.5), high + max(0.1 * size, 0.5)
        step = _nice_step(high - low, whole)
        return Axis(float(np.floor(low / step)) * step, float(np.ceil(high / step)) * step, start, end, step=step)

    def holds(self, values: Floats) -> Bools:
        """Which values can be drawn."""
        return np.isfinite(values) & ((values > 0.0) | (not self.log))

    def place(self, values: Floats | float) -> Floats:
        """Places of values; all of them must be drawable."""
        low, high = self.low, self.high
        if self.log:
            values, low, high = np.log(values), np.log(low), np.log(high)
        return np.asarray(self.start + (np.asarray(values) - low) / (high - low) * (self.end - self.start))

    def ticks(self) -> list[float]:
        """At most seven round values; powers of ten on a logarithmic axis that spans any."""
        if not self.log:
            count = round((self.high - self.low) / self.step)
            return [float(f"{self.low + k * self.step:.12g}") for k in range(count + 1)]
        first, last = int(np.ceil(np.log10(self.low))), int(np.floor(np.log10(self.high)))
        if last <= first:
            return [m * 10.0**e for e in (first - 1, first) for m in (1, 2, 5) if self.low <= m * 10.0**e <= self.high]
        stride = -(-(last - first + 1) // 6)
        return [10.0**e for e in range(first, last + 1, stride)]


def tick_label(value: float, log: bool = False) -> str:
    """A short label: plain where that is short, scientific elsewhere, and sooner so on logarithmic axes.

    >>> [tick_label(v) for v in (0.0, 0.25, 20.0, 1e-5, 3e6)], tick_label(1000.0, log=True)
    (['0', '0.25', '20', '10⁻⁵', '3·10⁶'], '10³')
    """
    most = 2e2 if log else 1e5
    if value == 0.0 or 5.0 / most < abs(value) < most:
        return f"{value:.6g}"
    mantissa, exponent = f"{value:.2e}".split("e")
    power = "10" + str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    mantissa = mantissa.rstrip("0").rstrip(".")
    return power if mantissa == "1" else f"{mantissa}·{power}"


def _nice_step(span: float, whole: bool) -> float:
    """A step of 1, 2 or 5 times a power of ten that divides ``span`` into about five parts."""
    rough = span / 5.0
    power = 10.0 ** np.floor(np.log10(rough))
    step = next(m * power for m in (1.0, 2.0, 5.0, 10.0) if m * power >= 0.999 * rough)
    return float(max(step, 1.0) if whole else step)


# --- lines ---

_WIDTH, _HEIGHT = 400, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 14, 12, 46
_STRIP = 78  #: height of the bars below a reliability diagram
_MOST_MARKERS = 60
_MOST_POINTS = 400


#: Places and words of a chart.
Chart = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Series:
    """A line through points (n,); ``number`` chooses its colour and dash, ``notes`` are shown on hovering a point.

    Where ``phase`` changes, a ring marks the first point of the new phase.
    """

    name: str
    number: int
    x: Floats
    y: Floats
    notes: Sequence[str] = ()
    phase: Ints | None = None


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
    counts: Sequence[Ints] | None = None,
) -> Chart:
    """Lines with markers; ``unit_square`` draws the diagonal of a reliability diagram, both axes ending at 1.

    ``counts`` of each series' points are drawn as bars below. What is returned is for ``chart.html``: places and words.
    """
    every_x = np.concatenate([s.x for s in series]) if series else np.zeros(0)
    every_y = np.concatenate([s.y for s in series]) if series else np.zeros(0)
    if unit_square:
        least = min(float(every_x.min(initial=0.5)), float(every_y.min(initial=0.5)))
        every_x = every_y = np.array([least, 1.0])
    across = Axis.around(every_x, _LEFT, _WIDTH - _RIGHT, log=log_x, whole=whole_x)
    up = Axis.around(every_y, _HEIGHT - _BOTTOM, _TOP, log=log_y)
    low, high = max(across.low, up.low), min(across.high, up.high)
    return {
        "title": title,
        "width": _WIDTH,
        "height": _HEIGHT if counts is None else _HEIGHT + _STRIP,
        "left": _LEFT,
        "right": across.end,
        "top": _TOP,
        "bottom": up.start,
        "across": [(_at(across, value), tick_label(value, across.log)) for value in across.ticks()],
        "up": [(_at(up, value), tick_label(value, up.log)) for value in up.ticks()],
        "x_label": (x_label, _HEIGHT - 6),
        "y_label": y_label,
        "ideal": [f"{_at(across, value)},{_at(up, value)}" for value in (low, high)] if unit_square else [],
        "lines": [_line(s, across, up) for s in series],
        "bars": [] if counts is None else [_bars(s, k, across, counts) for k, s in enumerate(series)],
    }


def _bars(series: Series, place: int, across: Axis, counts: Sequence[Ints]) -> tuple[int, list[Any]]:
    """Bars below the axis, as high as there are predictions; of a line alone, with the numbers."""
    most, n_series = max(int(n.max(initial=1)) for n in counts), len(counts)
    width = 14.0 if n_series == 1 else 18.0 / n_series
    foot, bars = _HEIGHT + _STRIP - 22, []
    for x, note, count in zip(across.place(series.x).tolist(), series.notes, counts[place].tolist(), strict=True):
        left, height = x - width * n_series / 2 + place * width, max(1.0, 38.0 * count / most)
        sides = [f"{side:.1f}" for side in (left, foot - height, max(width - 1.0, 1.0), height)]
        words = f"{count:,}"
        inside = min(x, _WIDTH - 4.0 * len(words) - 2.0)
        number = (round(inside, 1), round(foot - height - 4, 1), words) if n_series == 1 else None
        bars.append((sides, f"{series.name}: {note}", number))
    return series.number, bars


def _line(series: Series, across: Axis, up: Axis) -> tuple[int, list[str], list[tuple[list[str], str, bool]]]:
    """Number, points and some of them with what is said of each, and whether a phase begins there."""
    drawn = np.flatnonzero(across.holds(series.x) & up.holds(series.y))
    if drawn.size > _MOST_POINTS:  # more would make the page large, not the line finer
        drawn = drawn[np.linspace(0, drawn.size - 1, _MOST_POINTS).round().astype(np.int64)]
    places = zip(across.place(series.x[drawn]), up.place(series.y[drawn]), strict=True)
    points = [f"{a:.1f},{b:.1f}" for a, b in places]
    notes = series.notes or [f"{b:.3g} at {a:.3g}" for a, b in zip(series.x, series.y, strict=True)]
    stride = max(1, -(-drawn.size // _MOST_MARKERS))
    phase = np.zeros_like(drawn) if series.phase is None else series.phase[drawn]
    begins = np.diff(phase, prepend=phase[:1]) != 0
    marked = [k for k in range(drawn.size) if k % stride == 0 or k == drawn.size - 1 or begins[k]]
    marked.sort(key=lambda k: bool(begins[k]))  # rings on top
    words = [
        f"{series.name}: {notes[drawn[k]]}" + (f", phase {phase[k] + 1} begins" if begins[k] else "") for k in marked
    ]
    places_of = [points[k].split(",") for k in marked]
    return series.number, points, list(zip(places_of, words, begins[marked].tolist(), strict=True))


def _at(axis: Axis, value: float) -> float:
    return round(float(axis.place(value)), 1)


# --- convergence and calibration ---


#: Title, label and values of each chart; learners minimise different objectives, so these are measured from their ends,
#: and violations that are rounding errors would stretch the axis by orders of magnitude.
_QUANTITIES: tuple[tuple[str, str, Callable[[Curve], Floats]], ...] = (
    ("Objective", "objective, distance from its end", lambda curve: np.abs(curve.objective - curve.objective[-1:])),
    ("Moment gap", "moment gap", lambda curve: curve.moment_gap),
    (
        "Consistency violation",
        "consistency violation",
        lambda curve: np.where(curve.violation < 1e-9, np.nan, curve.violation),
    ),
)


def convergence_charts(trainings: Mapping[str, Training], numbers: Mapping[str, int]) -> dict[str, list[Chart]]:
    """Up to three charts for each choice of the horizontal axis, seconds or relinearisations: those with points."""
    charts: dict[str, list[Chart]] = {}
    for view, x_label in (("time", "seconds"), ("relinearisations", "outer iteration")):
        by_time = view == "time"
        curves = {name: training.iterations if by_time else training.history for name, training in trainings.items()}
        if not any(curve.outer.size for curve in curves.values()):
            continue
        charts[view] = []
        for title, y_label, y_of in _QUANTITIES:
            series = []
            for name, curve in curves.items():
                x = curve.seconds if by_time else (curve.outer + 1).astype(np.float64)
                series.append(Series(name, numbers[name], x, y_of(curve), phase=curve.phase))
            chart = line_chart(
                series,
                title=f"{title} against {x_label}",
                x_label=x_label,
                y_label=y_label,
                log_x=by_time,
                log_y=True,
                whole_x=not by_time,
            )
            if any(points for _, points, _ in chart["lines"]):
                charts[view].append(chart)
    return charts


def reliability_diagram(reliabilities: Mapping[str, Reliability], numbers: Mapping[str, int]) -> Chart:
    """How often predictions are right against how sure they are."""
    series = []
    for name, r in reliabilities.items():
        notes = [
            f"{right:.1%} right at confidence {confidence:.1%} ({count} predictions)"
            for right, confidence, count in zip(r.accuracy, r.confidence, r.counts, strict=True)
        ]
        series.append(Series(name, numbers[name], r.confidence, r.accuracy, notes))
    return line_chart(
        series,
        title="Reliability diagram",
        x_label="confidence of the prediction",
        y_label="share that is right",
        unit_square=True,
        counts=[r.counts for r in reliabilities.values()],
    )
