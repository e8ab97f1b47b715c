"""``bactrian bench``: measurements on the user's own machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from bactrian.cli.common import bad_input, in_paragraphs, make_folder, positive, progress_bar, say, terminal_table

if TYPE_CHECKING:
    from bactrian.experiments.bench.files import BenchResult
    from bactrian.experiments.bench.learners import BenchSettings, Follow

app = typer.Typer(help="Measure learners on this machine.", no_args_is_help=True)

EXAMPLES = "Examples:  bactrian bench learners --quick  ·  bactrian bench learners --sizes 3x3,K6 --strengths 0.5,2"

#: Short headings; columns from which standard deviations fit as well.
_HEADS = {
    "log_likelihood": "held-out",
    "loss": "loss",
    "error_to_truth": "to truth",
    "error_to_weights": "to own w",
    "weight_error": "weights",
    "seconds": "seconds",
}
_WIDE = 150


def learners(
    sizes: Annotated[
        str, typer.Option(metavar="LIST", help="Grids (3x4, with three labels 3x4:3) and complete graphs (K6).")
    ] = "3x3,4x4,3x3:3,K6,K8",
    strengths: Annotated[str, typer.Option(metavar="LIST", help="Sizes of the couplings.")] = "0.25,0.5,1,2",
    seeds: Annotated[int, typer.Option(help="Fields drawn for each size, sharing and strength.")] = 5,
    samples: Annotated[int, typer.Option(help="Samples to learn from.")] = 500,
    max_iterations: Annotated[int, typer.Option(min=1, help="Limit of one training run.")] = 300,
    max_seconds: Annotated[
        float | None,
        typer.Option(callback=positive, help="Limit of one training run; its figures then depend on the machine."),
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for tables and plots.")] = Path(
        "bactrian-bench"
    ),
    quick: Annotated[
        bool, typer.Option("--quick", help="A small run: two small graphs, two strengths, two seeds.")
    ] = False,
) -> None:
    """Every learner on seeded random fields small enough for exact answers.

    Prints likelihoods, errors, times and statuses, and ratios of times; writes these with plots and the experiment on
    the rank of the moment constraints. Takes some minutes.
    """
    with bad_input(ValueError, ImportError):
        import matplotlib  # noqa: F401  (missing, it must be said before any work)

        from bactrian.experiments.bench.files import write_bench
        from bactrian.experiments.bench.learners import BenchSettings

        chosen = ("3x3", "K5") if quick else tuple(part.strip() for part in sizes.split(","))
        settings = BenchSettings(
            sizes=chosen,
            strengths=(0.25, 1.0) if quick else _numbers(strengths),
            n_seeds=2 if quick else seeds,
            n_samples=samples,
            max_iterations=max_iterations,
            max_seconds=max_seconds,
        )
    make_folder(output)
    with progress_bar("learners") as show:
        result = _measure(settings, show, quick)
    with bad_input(OSError):
        paths = write_bench(output, result)
    console = Console()
    _print(console, result)
    for path in paths:
        say(f"Written: {path}", console)


app.command("learners", help=in_paragraphs(learners), epilog=EXAMPLES)(learners)


def _measure(settings: BenchSettings, follow: Follow | None, quick: bool) -> BenchResult:
    from bactrian.experiments.bench.files import BenchResult
    from bactrian.experiments.bench.learners import run_learners
    from bactrian.experiments.bench.rank_argument import run_rank
    from bactrian.experiments.bench.speed import run_speed

    rows = run_learners(settings, follow)
    rank = run_rank(1 if quick else settings.n_seeds, settings.n_samples, follow)
    return BenchResult(settings, rows, rank, run_speed(settings, rows, 2 if quick else 3, follow))


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"--strengths must be numbers separated by commas, found {text!r}") from None


def _print(console: Console, result: BenchResult) -> None:
    from bactrian.experiments.bench.files import cell, speed_table
    from bactrian.experiments.bench.learners import METRICS
    from bactrian.experiments.bench.rank_argument import rank_reading
    from bactrian.experiments.bench.summary import summarise

    order = list(dict.fromkeys(row.learner for row in result.rows))
    for family in dict.fromkeys(row.family for row in result.rows):
        summaries = summarise([row for row in result.rows if row.family == family], "strength")
        summaries.sort(key=lambda s: (s.group[0], order.index(s.learner)))
        spread = console.width >= _WIDE
        table = terminal_table(
            f"{family.capitalize()} graphs: mean{' (standard deviation)' if spread else ''}", ["s", "learner"]
        )
        for metric in METRICS:
            table.add_column(_HEADS[metric], justify="right", no_wrap=True)
        table.add_column("status", overflow="fold")
        for s in summaries:
            cells = (cell(s, metric, spread) for metric in METRICS)
            ending = s.ending.replace(" converged", "") if s.n_runs else "refused"
            table.add_row(f"{s.group[0]:g}", escape(s.learner), *cells, escape(ending))
        console.print(table)
    for reason in sorted({f"{row.learner}: {row.status}" for row in result.rows if row.refused}):
        say(reason, console)
    heads, rows = speed_table(result.speed)
    speed = terminal_table("Ratios of times, best of several, where the second learner converged", heads)
    for row in rows:
        speed.add_row(*row)
    console.print(speed)
    for sentence in rank_reading(result.rank):
        say(f"Rank, {sentence}", console)
