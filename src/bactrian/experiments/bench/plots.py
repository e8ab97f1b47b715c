"""Plots of ``bactrian bench`` as SVG, by matplotlib, which is imported when a plot is drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from io import StringIO
from typing import TYPE_CHECKING

import numpy as np

from bactrian.experiments.bench.learners import METRICS, BenchRow
from bactrian.experiments.bench.rank_argument import RankPoint
from bactrian.experiments.bench.summary import summarise_learners

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Colours that people with colour-blindness can tell apart (Okabe and Ito).
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#000000", "#999999")
_DASHES = ("-", "--", ":")
#: Metrics that have a plot, the name of its file, and a value under which nothing is told apart.
PLOTS = {
    "loss": ("held-out", 1e-4),
    "error_to_truth": ("marginals-truth", 1e-4),
    "error_to_weights": ("marginals-weights", 1e-5),
    "weight_error": ("weights", 1e-4),
    "seconds": ("seconds", 1e-4),
}


def metric_plot(rows: Sequence[BenchRow], metric: str, floor: float) -> str:
    """Medians of a metric against the strength of the couplings, a panel for each family of graphs."""
    families = list(dict.fromkeys(row.family for row in rows))
    learners = list(dict.fromkeys(row.learner for row in rows))

    def draw(panels: Sequence[Axes]) -> None:
        summaries = summarise_learners(rows, "family", "strength")
        for panel, family in zip(panels, families, strict=True):
            for number, learner in enumerate(learners):
                own = [s for s in summaries if s.group[0] == family and s.learner == learner]
                x = np.array([float(s.group[1]) for s in own])
                y = np.maximum([s.median[metric] for s in own], floor)
                kept = np.isfinite(y)
                if kept.any():
                    style = {"color": _COLOURS[number % 8], "linestyle": _DASHES[number // 8 % 3]}
                    panel.plot(x[kept], y[kept], marker="o", markersize=3, linewidth=1.2, label=learner, **style)  # type: ignore[arg-type]
            panel.set(xscale="log", yscale="log", xlabel="coupling strength", title=f"{family} graphs")
            ticks = sorted({row.strength for row in rows if row.strength > 0.0})
            panel.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
            panel.minorticks_off()
        panels[0].set_ylabel(f"{METRICS[metric]} (median)")

    return _svg(draw, len(families))


def rank_plot(points: Sequence[RankPoint]) -> str:
    """Violation, change of beliefs and added constraints against the rank, one panel each; points are means."""

    def draw(panels: Sequence[Axes]) -> None:
        quantities = (
            ("violation", "largest disagreement of piecewise beliefs"),
            ("change", "change of beliefs by consistency (TV)"),
            ("added_share", "constraints that consistency adds (part of all)"),
        )
        for number, setting in enumerate(dict.fromkeys(point.setting for point in points)):
            own = [point for point in points if point.setting == setting]
            shares = sorted({point.share for point in own})
            for panel, (key, label) in zip(panels, quantities, strict=True):
                y = [np.mean([getattr(p, key) for p in own if p.share == share]) for share in shares]
                panel.plot(shares, y, marker="o", markersize=3, color=_COLOURS[number], label=setting)
                panel.set(xlabel="rank of the moment constraints / unshared", title=label)
                panel.title.set_fontsize(8)

    return _svg(draw, 3)


def _svg(draw: Callable[[Sequence[Axes]], None], n_panels: int) -> str:
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "bactrian", "font.size": 8}):
        figure = Figure(figsize=(3.6 * n_panels, 4.2), layout="constrained")
        FigureCanvasSVG(figure)
        panels = list(np.atleast_1d(figure.subplots(1, n_panels)))
        draw(panels)
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
        text = StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n"
