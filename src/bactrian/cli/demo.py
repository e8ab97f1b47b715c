"""``bactrian demo``: a picture and digits restored, announcements tagged by every learner, tables and a report."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bactrian.cli.common import BadInputError, bad_input, make_folder, positive, progress_bar, say, terminal_table

if TYPE_CHECKING:
    from bactrian.experiments.digits.task import DemoStep
    from bactrian.runs.comparison import Comparison, Entry

EXAMPLES = "Examples:  bactrian demo  ·  bactrian demo --method piecewise --method cccp --noise 0.7 -o noisy.html"


def demo_command(
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The report, an HTML file; in a folder, report.html.")
    ] = Path("bactrian-demo/report.html"),
    method: Annotated[
        list[str] | None, typer.Option("--method", "-m", help="Learner to try; may be repeated (default: all).")
    ] = None,
    train: Annotated[int, typer.Option(help="Digits to learn from.")] = 40,
    test: Annotated[int, typer.Option(help="Digits to restore.")] = 300,
    announcements: Annotated[
        int, typer.Option(min=0, help="Announcements to learn from, and as many to tag; 0 leaves this task out.")
    ] = 80,
    noise: Annotated[
        float, typer.Option(help="Standard deviation of the noise on digits, whose pixels are 0 or 1.")
    ] = 0.5,
    seed: Annotated[int, typer.Option(help="Seed of pictures, announcements and noise.")] = 0,
    max_seconds: Annotated[
        float | None, typer.Option(callback=positive, help="Most seconds of training per learner (default: no limit).")
    ] = None,
    threads: Annotated[int | None, typer.Option(help="Number of threads (default: one per core).")] = None,
) -> None:
    """Restore a picture and digits from noise and tag announcements, every learner in turn, and write a report.

    The picture is drawn, the digits come with scikit-learn, and the announcements are made up, so nothing is
    downloaded. The first time takes a minute or two, most of it compilation; later it takes half a minute.
    """
    with bad_input(ValueError, ImportError):
        from bactrian.engines.numba.threads import available_cores
        from bactrian.experiments.announcements import task as text
        from bactrian.experiments.digits.task import LEARNERS, DigitsSettings, run_digits
        from bactrian.experiments.picture import task as picture
        from bactrian.report import report_of, write_report

        settings = DigitsSettings(
            learners=tuple(method) if method else tuple(LEARNERS),
            n_train=train,
            n_test=test,
            noise=noise,
            seed=seed,
            max_seconds=max_seconds,
            n_threads=threads,
        )
        text_settings = text.AnnouncementsSettings(
            # Exact learning needs small junction trees, which skip edges do not leave.
            learners=tuple(name for name in method if name != "exact") if method else tuple(text.LEARNERS),
            n_train=max(announcements, 1),
            n_test=max(announcements, 1),
            seed=seed,
            max_seconds=max_seconds,
            n_threads=threads,
        )
    path = _report_path(output)
    with _progress() as follow, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a learner that stops short says so in the table
        compiling = None
        if announcements and available_cores() > 1:
            # Compilation holds one core; what the second task needs can be compiled while the first one runs.
            compiling = get_context("spawn").Process(target=text.compile_kernels, args=(text_settings,), daemon=True)
            compiling.start()
        learners = tuple(name for name in picture.LEARNERS if not method or name in method)
        comparisons: list[Comparison] = []
        if learners:
            restored = picture.run_picture(
                learners, seed=seed, max_seconds=max_seconds, n_threads=threads, on_step=follow
            )
            comparisons.append(restored)
        comparisons.append(run_digits(settings, follow))
        if compiling is not None:
            compiling.join()
        if announcements:
            comparisons.append(text.run_announcements(text_settings, follow))
    with bad_input(OSError):
        title = "Pictures restored, announcements tagged" if announcements else None
        write_report(report_of(*comparisons, title=title), path)
    console = Console()
    for comparison in comparisons:
        console.print(_table(comparison))
    say(f"Report: {path}", console)
    if not all(comparison.converged for comparison in comparisons):
        raise typer.Exit(1)


def _report_path(output: Path) -> Path:
    """Where the report goes: ``output`` itself if it is named like a page, else report.html in that folder."""
    path = output if output.suffix.lower() in (".html", ".htm") else output / "report.html"
    make_folder(path.parent)
    if path.is_dir():
        raise BadInputError(f"--output: cannot write {path}")
    return path


@contextmanager
def _progress() -> Iterator[Callable[[DemoStep], None] | None]:
    with progress_bar("loading") as show:

        def follow(step: DemoStep) -> None:
            at = step.progress
            detail = ""
            if at is not None:
                detail = (
                    f"outer {at.outer + 1} step {at.iteration} objective {at.objective:.5g} gap {at.moment_gap:.0e}"
                )
            if show is not None:
                show(step.learner, detail, max(step.number - 1, 0), step.total)

        yield None if show is None else follow


def _table(comparison: Comparison) -> Table:
    """What fits on a terminal of 80 columns; the report has the rest."""
    table = terminal_table(comparison.title, ["learner"])
    for metric in comparison.metrics:
        shown = [format(entry.metrics.get(metric.key, 0.0), metric.format) for entry in comparison.entries]
        words = metric.name.split()
        table.add_column(metric.name, justify="right", min_width=max(map(len, [*shown, *words])))
    table.add_column("seconds", justify="right", no_wrap=True)
    table.add_column("status", min_width=len("converged"))
    for entry in comparison.entries:
        table.add_row(*_cells(comparison, entry))
    return table


def _cells(comparison: Comparison, entry: Entry) -> Iterator[str]:
    yield escape(entry.name)
    for metric in comparison.metrics:
        value = entry.metrics.get(metric.key)
        yield "" if value is None else format(value, metric.format)
    training = entry.training
    if training is None:
        yield from ("", "")
        return
    yield f"{training.seconds:.2f}"
    yield f"[green]{training.status}[/]" if training.converged else f"[yellow]{escape(training.status)}[/]"
