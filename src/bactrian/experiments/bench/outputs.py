"""Files of ``bactrian bench``: rows as CSV and JSON, plots, and a page in Markdown."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np

from bactrian.atomic_files import write_atomically
from bactrian.experiments.bench.learners import METRICS, BenchRow, BenchSettings, TellBench, run_learners
from bactrian.experiments.bench.plots import PLOTS, metric_plot, rank_plot
from bactrian.experiments.bench.rank_argument import RankPoint, rank_reading, run_rank
from bactrian.experiments.bench.speed import SpeedRow, run_speed, summarise_speed
from bactrian.experiments.bench.summary import LearnerSummary, summarise_learners
from bactrian.runs.folders import finite


@dataclass(frozen=True)
class BenchResult:
    """What ``bactrian bench learners`` found."""

    settings: BenchSettings
    rows: Sequence[BenchRow]
    rank: Sequence[RankPoint] = ()
    speed: Sequence[SpeedRow] = ()


def run_bench(settings: BenchSettings, tell: TellBench | None, *, quick: bool) -> BenchResult:
    """Everything that ``bactrian bench learners`` measures."""
    rows = run_learners(settings, tell)
    rank = run_rank(1 if quick else settings.n_seeds, settings.n_samples, tell)
    return BenchResult(settings, rows, rank, run_speed(settings, rows, 2 if quick else 3, tell))


def write_bench(folder: Path, result: BenchResult) -> list[Path]:
    """Write everything to ``folder``; returns the paths."""
    summaries = summarise_learners(result.rows, "size", "sharing", "strength")
    files = {
        "rows.csv": _csv([asdict(row) for row in result.rows]),
        "summary.csv": _csv([_flat(summary) for summary in summaries]),
        "learners.json": json.dumps(finite(asdict(result)), indent=1, allow_nan=False) + "\n",
        **{f"{name}.svg": metric_plot(result.rows, metric, floor) for metric, (name, floor) in PLOTS.items()},
    }
    if result.rank:
        files["rank.csv"] = _csv([asdict(point) for point in result.rank])
        files["rank.svg"] = rank_plot(result.rank)
    if result.speed:
        files["speed.csv"] = _csv([asdict(row) for row in result.speed])
    files["learners.md"] = markdown(result)
    for name, text in files.items():
        write_atomically(folder / name, text)
    return [folder / name for name in files]


def markdown(result: BenchResult) -> str:
    """The page: tables and plots, whose files lie beside it."""
    lines = ["# Learners on random fields", "", _about(result.settings), ""]
    for family in dict.fromkeys(row.family for row in result.rows):
        rows = [row for row in result.rows if row.family == family]
        lines += [f"## {family.capitalize()} graphs: {', '.join(dict.fromkeys(row.size for row in rows))}", ""]
        lines += _table(["strength", "learner", *METRICS.values(), "status"], family_rows(rows))
    refusals = sorted({f"- `{row.learner}`: {row.status}" for row in result.rows if row.refused})
    if refusals:
        lines += ["Refused:", "", *refusals, ""]
    lines += [f"![{METRICS[metric]}]({name}.svg)\n" for metric, (name, _) in PLOTS.items()]
    if result.rank:
        lines += ["## Rank of the moment constraints", "", "![Rank](rank.svg)", ""]
        lines += [*(f"- {sentence}" for sentence in rank_reading(result.rank)), ""]
    if result.speed:
        lines += ["## Ratios of times", "", *_table(*speed_table(result.speed))]
    return "\n".join(lines).rstrip() + "\n"


def speed_table(rows: Sequence[SpeedRow]) -> tuple[list[str], list[list[str]]]:
    """Headings and cells of the ratios per size."""
    heads = ["size", "ratio", "fields", "of total times", "median", "least", "most", "at most 1"]
    cells = []
    for s in summarise_speed(rows):
        numbers = [f"{value:.2f}" for value in (s.total, s.median, s.least, s.most)] if s.n else ["–"] * 4
        cells.append([s.size, f"{s.first} / {s.second}", f"{s.n} of {s.n_all}", *numbers, f"{s.n_faster} of {s.n}"])
    return heads, cells


def cell(summary: LearnerSummary, metric: str, spread: bool = True) -> str:
    """Mean (standard deviation, where ``spread`` is wanted), or a dash.

    >>> from types import SimpleNamespace
    >>> cell(SimpleNamespace(mean={"loss": 0.12345}, deviation={"loss": 0.5}), "loss")
    '0.123 (0.5)'
    """
    mean, deviation = summary.mean[metric], summary.deviation[metric]
    if not np.isfinite(mean):
        return "–"
    return f"{mean:.3g}" + (f" ({deviation:.2g})" if spread and np.isfinite(deviation) else "")


def family_rows(rows: Sequence[BenchRow], spread: bool = True) -> Iterator[list[str]]:
    """Cells of the table of a family of graphs: strength, learner, metrics and how the runs ended."""
    order = list(dict.fromkeys(row.learner for row in rows))
    summaries = summarise_learners(rows, "strength")
    for s in sorted(summaries, key=lambda s: (s.group[0], order.index(s.learner))):
        ending = s.ending if s.n_runs else "refused"
        yield [f"{s.group[0]:g}", s.learner, *(cell(s, metric, spread) for metric in METRICS), ending]


def _about(settings: BenchSettings) -> str:
    return (
        f"Sizes {', '.join(settings.sizes)}, weights unshared and shared, {settings.n_seeds} seeds each; "
        f"{settings.n_samples} samples to learn from, {settings.n_held_out} held out, prior variance "
        f"{settings.prior_variance:g}, at most {settings.max_iterations} iterations a run"
        + ("" if settings.max_seconds is None else f" and {settings.max_seconds:g} s")
        + ", on one thread. Every cell is the mean (standard deviation) over the sizes of a family, both kinds of "
        "sharing and the seeds."
    )


def _table(heads: Sequence[str], rows: Any) -> list[str]:
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    return [*lines, *("| " + " | ".join(row) + " |" for row in rows), ""]


def _flat(summary: LearnerSummary) -> dict[str, Any]:
    size, sharing, strength = summary.group
    flat: dict[str, Any] = {"size": size, "sharing": sharing, "strength": strength, "learner": summary.learner}
    for metric in METRICS:
        flat |= {metric: summary.mean[metric], f"{metric}_sd": summary.deviation[metric]}
    return flat | {"runs": summary.n_runs, "refused": summary.n_refused, "status": summary.ending}


def _csv(rows: Sequence[dict[str, Any]]) -> str:
    text = StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
