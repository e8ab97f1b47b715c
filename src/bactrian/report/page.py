"""The page: a comparison rendered through a template into one HTML text that needs neither network nor server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from numpy.typing import NDArray

from bactrian import __version__
from bactrian.experiments.comparison import Comparison, Curve, Entry, Metric, Training
from bactrian.report.charts import Series, heat_map, line_chart
from bactrian.report.files import write_atomically
from bactrian.report.images import data_address

Floats = NDArray[np.float64]


def write_report(path: str | Path, comparison: Comparison) -> Path:
    """Write a comparison as a self-contained HTML page, atomically; the path is returned."""
    path = Path(path)
    write_atomically(path, render_report(comparison))
    return path


def render_report(comparison: Comparison) -> str:
    """The page as text."""
    environment = Environment(
        loader=PackageLoader("bactrian.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(data_address=data_address, metric_cell=_metric_cell, heat_map=heat_map)
    environment.filters["small"] = _small_number
    tables = [(number, entry) for number, entry in enumerate(comparison.entries) if entry.tables]
    magnitudes = [float(np.abs(table.interaction).max(initial=0.0)) for _, entry in tables for table in entry.tables]
    return environment.get_template("page.html").render(
        comparison=comparison,
        version=__version__,
        trained=[(number, entry) for number, entry in enumerate(comparison.entries) if entry.training is not None],
        convergence=_convergence(comparison.entries),
        calibration=_calibration(comparison.entries),
        tables=tables,
        table_limit=max(magnitudes, default=1.0),
    )


def _convergence(entries: Sequence[Entry]) -> dict[str, list[Markup]]:
    """Three charts for each choice of the horizontal axis: seconds, relinearisations."""
    views: dict[str, tuple[Callable[[Training], Curve], Callable[[Curve], Floats], str]] = {
        "time": (lambda t: t.iterations, lambda curve: curve.seconds, "seconds"),
        "relinearisations": (
            lambda t: t.history,
            lambda curve: (curve.outer + 1).astype(np.float64),
            "outer iteration",
        ),
    }
    quantities: tuple[tuple[str, str, Callable[[Curve], Floats]], ...] = (
        ("Objective", "objective, distance from its end", _to_last_objective),
        ("Moment gap", "moment gap", lambda curve: curve.moment_gap),
        ("Consistency violation", "consistency violation", _visible_violation),
    )
    trained = [(number, entry, entry.training) for number, entry in enumerate(entries) if entry.training is not None]
    charts: dict[str, list[Markup]] = {}
    for view, (curve_of, x_of, x_label) in views.items():
        curves = [(number, entry.name, curve_of(training)) for number, entry, training in trained]
        if not any(curve.outer.size for _, _, curve in curves):
            continue
        charts[view] = [
            line_chart(
                [Series(name, number, x_of(curve), y_of(curve)) for number, name, curve in curves],
                title=f"{title} against {x_label}",
                x_label=x_label,
                y_label=y_label,
                log_x=view == "time",
                log_y=True,
                whole_x=view != "time",
            )
            for title, y_label, y_of in quantities
        ]
    return charts


def _to_last_objective(curve: Curve) -> Floats:
    """Learners minimise different objectives, so only their distances from their own ends can share an axis."""
    distance: Floats = np.abs(curve.objective - curve.objective[-1:])
    return distance


def _visible_violation(curve: Curve) -> Floats:
    """Rounding errors would stretch the axis over orders of magnitude that mean nothing."""
    return np.where(curve.violation < 1e-9, np.nan, curve.violation)


def _calibration(entries: Sequence[Entry]) -> Markup | None:
    """The reliability diagram, where any entry has marginals."""
    series = []
    for number, entry in enumerate(entries):
        if entry.reliability is not None:
            r = entry.reliability
            notes = [
                f"{right:.1%} right at confidence {confidence:.1%} ({count} predictions)"
                for right, confidence, count in zip(r.accuracy, r.confidence, r.counts, strict=True)
            ]
            series.append(Series(entry.name, number, r.confidence, r.accuracy, notes))
    if not series:
        return None
    return line_chart(
        series,
        title="Reliability diagram",
        x_label="confidence of the prediction",
        y_label="share that is right",
        unit_square=True,
    )


def _metric_cell(comparison: Comparison, entry: Entry, metric: Metric) -> tuple[str, bool]:
    """A formatted value, and whether no other entry shows a better one."""
    if metric.key not in entry.metrics:
        return "–", False
    shown = format(entry.metrics[metric.key], metric.format)
    return shown, shown == format(comparison.best(metric), metric.format)


def _small_number(value: float) -> str:
    """Two digits that show the magnitude.

    >>> [_small_number(v) for v in (0.0, 0.4312, 3.6e-05, float("nan"))]
    ['0', '0.43', '3.6e-05', '–']
    """
    if not np.isfinite(value):
        return "–"
    return "0" if value == 0.0 else f"{value:.2g}"
