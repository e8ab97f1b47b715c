"""Charts of convergence and of calibration."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from bactrian.report.charts import Series, line_chart
from bactrian.runs.calibration import Reliability
from bactrian.runs.comparison import Curve, Training

Floats = NDArray[np.float64]


def convergence_charts(trainings: Mapping[str, Training], numbers: Mapping[str, int]) -> dict[str, list[Markup]]:
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
    charts: dict[str, list[Markup]] = {}
    for view, (curve_of, x_of, x_label) in views.items():
        curves = {name: curve_of(training) for name, training in trainings.items()}
        if not any(curve.outer.size for curve in curves.values()):
            continue
        charts[view] = [
            line_chart(
                [Series(name, numbers[name], x_of(curve), y_of(curve)) for name, curve in curves.items()],
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


def reliability_diagram(reliabilities: Mapping[str, Reliability], numbers: Mapping[str, int]) -> Markup:
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
    )


def _to_last_objective(curve: Curve) -> Floats:
    """Learners minimise different objectives, so only their distances from their own ends can share an axis."""
    distance: Floats = np.abs(curve.objective - curve.objective[-1:])
    return distance


def _visible_violation(curve: Curve) -> Floats:
    """Rounding errors would stretch the axis over orders of magnitude that mean nothing."""
    return np.where(curve.violation < 1e-9, np.nan, curve.violation)
