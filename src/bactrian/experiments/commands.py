"""``bactrian demo``, ``bench`` and ``reproduce``: the experiments that come with the library."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from inspect import signature
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bactrian.atomic_files import write_atomically
from bactrian.terminal import (
    BadInputError,
    bad_input,
    in_paragraphs,
    make_folder,
    positive,
    progress_bar,
    say,
    terminal_table,
)

if TYPE_CHECKING:
    from bactrian.experiments.bench.outputs import BenchResult
    from bactrian.experiments.demo import DemoStep
    from bactrian.runs.comparison import Comparison, Entry

# --- a demonstration ---

DEMO_EXAMPLES = "Examples:  bactrian demo  ·  bactrian demo --method piecewise --method cccp --noise 0.7 -o noisy.html"

#: What to try after the demo.
_NEXT = """
Next, with a file of your own:
  bactrian fit survey.csv -o run        a table: a column per question, then bactrian query run "P(smoker)"
  bactrian train words.conll -o run     text: a word and its label per line, then bactrian predict run letter.txt
  bactrian rake margins.csv -o run      tables of counts, then bactrian sample run
  bactrian infer model.uai              a model in the UAI format"""


def demo_command(
    output: Annotated[
        Path, typer.Option("--output", "-o", help="HTML file to write, or a folder for report.html.")
    ] = Path("bactrian-demo/report.html"),
    method: Annotated[
        list[str] | None, typer.Option("--method", "-m", help="Learner to try (default: all). May be repeated.")
    ] = None,
    train: Annotated[int, typer.Option(help="Digits to learn from.")] = 40,
    test: Annotated[int, typer.Option(help="Digits to restore.")] = 300,
    announcements: Annotated[
        int, typer.Option(min=0, help="Announcements to learn from, and as many to tag; 0 skips this task.")
    ] = 80,
    noise: Annotated[
        float, typer.Option(help="Standard deviation of the noise on digits, whose pixels are 0 or 1.")
    ] = 0.5,
    seed: Annotated[int, typer.Option(help="Seed of pictures, announcements and noise.")] = 0,
    max_seconds: Annotated[
        float | None,
        typer.Option(callback=positive, help="Time limit of training per learner, in seconds (default: no limit)."),
    ] = None,
    threads: Annotated[int | None, typer.Option(help="Number of threads (default: one per core).")] = None,
) -> None:
    """Restore noisy pictures and tag announcements with every learner, and write a report.

    The picture is drawn, the digits come with scikit-learn, and the announcements are made up, so nothing is
    downloaded. The first time takes a minute or two, most of it compilation; later it takes half a minute.
    """
    with bad_input(ValueError, ImportError):
        from bactrian.experiments.announcements import task as text
        from bactrian.experiments.digits.task import LEARNERS, DigitsSettings, run_digits
        from bactrian.experiments.picture import task as picture
        from bactrian.parallel.threads import available_cores
        from bactrian.report import report_of, write_report

        common: dict[str, Any] = {"seed": seed, "max_seconds": max_seconds, "n_threads": threads}
        learners = tuple(method) if method else tuple(LEARNERS)
        settings = DigitsSettings(learners=learners, n_train=train, n_test=test, noise=noise, **common)
        # Exact learning needs small junction trees, which skip edges do not leave.
        taggers = tuple(name for name in method if name != "exact") if method else tuple(text.LEARNERS)
        n_texts = max(announcements, 1)
        text_settings = text.AnnouncementsSettings(learners=taggers, n_train=n_texts, n_test=n_texts, **common)
    path = _report_path(output)
    with _progress() as tell, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a learner that stops short says so in the table
        compiling = None
        if announcements and available_cores() > 1:
            # Compilation holds one core; what the second task needs can be compiled while the first one runs.
            compiling = get_context("spawn").Process(target=text.compile_kernels, args=(text_settings,), daemon=True)
            compiling.start()
        painters = tuple(name for name in picture.LEARNERS if not method or name in method)
        comparisons: list[Comparison] = []
        if painters:
            comparisons.append(picture.run_picture(painters, **common, on_step=tell))
        comparisons.append(run_digits(settings, tell))
        if compiling is not None:
            compiling.join()
        if announcements:
            comparisons.append(text.run_announcements(text_settings, tell))
    with bad_input(OSError):
        title = "Pictures restored, announcements tagged" if announcements else None
        write_report(report_of(*comparisons, title=title), path)
    console = Console()
    for comparison in comparisons:
        console.print(_learners_table(comparison))
    say(f"Report: {path}", console)
    say(_NEXT, console)
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

        def tell(step: DemoStep) -> None:
            assert show is not None
            at, detail = step.progress, ""
            if at is not None:
                words = f"outer {at.outer + 1} step {at.iteration} objective {at.objective:.5g}"
                detail = f"{words} gap {at.moment_gap:.0e}"
            show(step.learner, detail, max(step.number - 1, 0), step.total)

        yield None if show is None else tell


def _learners_table(comparison: Comparison) -> Table:
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


# --- learners measured ---

bench_app = typer.Typer(help="Measure learners on this machine.", no_args_is_help=True)

BENCH_EXAMPLES = (
    "Examples:  bactrian bench learners --quick  ·  bactrian bench learners --sizes 3x3,K6 --strengths 0.5,2"
)

#: Short headings of METRICS, in their order; columns from which standard deviations fit as well.
_HEADS = ("held-out", "loss", "to truth", "to own w", "weights", "seconds")
_WIDE = 150


def learners(
    sizes: Annotated[
        str, typer.Option(metavar="LIST", help="Grids (3x4, with three labels 3x4:3) and complete graphs (K6).")
    ] = "3x3,4x4,3x3:3,K6,K8",
    strengths: Annotated[str, typer.Option(metavar="LIST", help="Sizes of the couplings.")] = "0.25,0.5,1,2",
    seeds: Annotated[int, typer.Option(help="Fields drawn for each size, sharing and strength.")] = 5,
    samples: Annotated[int, typer.Option(help="Samples to learn from.")] = 500,
    max_iterations: Annotated[int, typer.Option(min=1, help="Maximum number of iterations of a training run.")] = 300,
    max_seconds: Annotated[
        float | None,
        typer.Option(
            callback=positive, help="Time limit of a training run, in seconds; figures then depend on the machine."
        ),
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for tables and plots.")] = Path(
        "bactrian-bench"
    ),
    quick: Annotated[
        bool, typer.Option("--quick", help="A small run: two small graphs, two strengths, two seeds.")
    ] = False,
) -> None:
    """Compare all learners on random fields small enough for exact answers.

    Prints likelihoods, errors, statuses, times and their ratios; writes these with plots and an experiment on the rank
    of the moment constraints. Takes some minutes.
    """
    with bad_input(ValueError, ImportError):
        import matplotlib  # noqa: F401  (missing, it must be said before any work)

        from bactrian.experiments.bench.learners import BenchSettings
        from bactrian.experiments.bench.outputs import run_bench, write_bench

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
        result = run_bench(settings, show, quick=quick)
    with bad_input(OSError):
        paths = write_bench(output, result)
    console = Console()
    _print_bench(console, result)
    for path in paths:
        say(f"Written: {path}", console)


bench_app.command("learners", help=in_paragraphs(learners), epilog=BENCH_EXAMPLES)(learners)


@bench_app.command("uai", epilog="Example:  bactrian bench uai DIR --seconds 20")
def uai(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Models NAME.uai with references such as NAME.uai.MAR.")
    ],
    seconds: Annotated[float, typer.Option(callback=positive, help="Time of each problem, all counted.")] = 20.0,
    task: Annotated[list[str] | None, typer.Option(help="MAR, PR or MPE (default: all). May be repeated.")] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="JSON file to write; what it holds already is not solved again.")
    ] = Path("uai.json"),
) -> None:
    """Solve the problems of a UAI competition by bactrian infer, a process each, and score them as their board does."""
    from bactrian.experiments.bench.uai import COLUMNS, SUFFIXES, family_rows, run_uai

    tasks = tuple(SUFFIXES) if not task else tuple(name.upper() for name in task)
    if unknown := set(tasks) - set(SUFFIXES):
        raise BadInputError(f"--task: expected MAR, PR or MPE, found {min(unknown)}")
    if not folder.is_dir():
        raise BadInputError(f"{folder} is not a folder")
    make_folder(output.parent)
    with progress_bar("uai") as show, bad_input(ValueError, OSError):
        outcomes = run_uai(folder, output, seconds=seconds, tasks=tasks, tell=show)
    table = terminal_table(f"{folder}, {seconds:g} seconds each", COLUMNS, numbers=True)
    for row in family_rows(outcomes):
        table.add_row(*map(escape, row))
    Console().print(table)
    say(f"Written: {output}")


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"--strengths must be numbers separated by commas, found {text!r}") from None


def _print_bench(console: Console, result: BenchResult) -> None:
    from bactrian.experiments.bench.outputs import family_rows, speed_table
    from bactrian.experiments.bench.rank_argument import rank_reading

    spread = console.width >= _WIDE
    for family in dict.fromkeys(row.family for row in result.rows):
        title = f"{family.capitalize()} graphs: mean{' (standard deviation)' if spread else ''}"
        table = terminal_table(title, ["s", "learner"])
        for head in _HEADS:
            table.add_column(head, justify="right", no_wrap=True)
        table.add_column("status", overflow="fold")
        for *cells, ending in family_rows([row for row in result.rows if row.family == family], spread):
            table.add_row(*map(escape, cells), escape(ending.replace(" converged", "")))
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


# --- the paper's tables ---

REPRODUCE_EXAMPLES = (
    "Examples:  bactrian reproduce table1 --data DIR --output table1.html  ·  "
    "bactrian reproduce table3 --data DIR --cache CACHE --splits 10"
)

#: Without a terminal, progress is printed as lines, this often.
_SECONDS_BETWEEN_LINES = 10.0


def reproduce_command(
    name: Annotated[str, typer.Argument(metavar="TABLE", help="table1, table2 or table3.")],
    data: Annotated[Path, typer.Option("--data", "-d", help="Folder with the data set; an error lists missing files.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write the table to, .html or .json.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Use a small part of the data, as a test.")] = False,
    rows: Annotated[
        list[str] | None, typer.Option("--rows", help="Name of a row to run (default: all). May be repeated.")
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            callback=positive,
            help="Time limit of each fit, in seconds (default: no limit). Rows that it stops are marked.",
        ),
    ] = None,
    splits: Annotated[
        int | None,
        typer.Option(min=1, help="Tables 2 and 3: number of splits of the data (default: those of the paper)."),
    ] = None,
    cache: Annotated[
        Path | None,
        typer.Option(help="Table 3: folder that keeps features, scores and finished rows for the next run."),
    ] = None,
    scores: Annotated[
        str | None,
        typer.Option(
            help="Table 3: node scores, rich or of a superpixel's own appearance alone (own; ten splits) "
            "(default: rich)."
        ),
    ] = None,
) -> None:
    """Run the paper's experiments on your copy of their data.

    Table 1: named entities of CoNLL-2003 (English) by skip chains, with every learner. Table 2: seminar announcements,
    four folds. Table 3: images of Corel as superpixels, three random splits.
    """
    if name not in ("table1", "table2", "table3"):
        raise BadInputError(f"expected table1, table2 or table3, found {name!r}")
    if not data.is_dir():
        raise BadInputError(f"--data: {data} is not a folder")
    if output is not None and (output.suffix not in (".html", ".json") or not output.absolute().parent.is_dir()):
        raise BadInputError(f"--output: {output} must be a .html or .json file in a folder that exists")
    given = {"splits": splits, "cache": cache, "scores": scores}
    options = {option: value for option, value in given.items() if value is not None}
    try:
        experiment = import_module(f"bactrian.experiments.{name}.table")
    except ModuleNotFoundError as problem:
        raise BadInputError(f"{name} needs {problem.name}, which is not installed") from problem
    run: Callable[..., Any] = experiment.run
    if other := sorted(options.keys() - signature(run).parameters.keys()):
        raise BadInputError(f"--{other[0]} is not an option of {name}")
    with progress_bar(name) as show, bad_input(ValueError, OSError, ImportError):
        said = -_SECONDS_BETWEEN_LINES

        def progress(text: str) -> None:
            nonlocal said
            if show is not None:
                show(name, text, 0.0, None)
            elif time.monotonic() - said >= _SECONDS_BETWEEN_LINES:
                said = time.monotonic()
                typer.echo(f"{name}: {text}", err=True)

        table = run(data, quick=quick, progress=progress, rows=rows or (), seconds=seconds, **options)
    _print_table(table)
    if output is not None:
        with bad_input(OSError, ImportError):
            _write_table(table, output)
        typer.echo(f"Written: {output}")


def _print_table(table: Any) -> None:
    console = Console()
    shown = terminal_table(table.title, table.columns, numbers=True)
    for row in table.rows:
        shown.add_row(*(escape(cell) for cell in row))
    width = shown.__rich_measure__(console, console.options.update(max_width=10_000)).maximum
    if width <= console.width:
        console.print(shown)
    elif not console.is_terminal:  # a file has room for any line
        Console(width=width).print(shown)
    else:
        _print_rows(console, table)
    for note in table.notes:
        say(note, console)


def _print_rows(console: Console, table: Any) -> None:
    """The table row by row, for terminals too narrow for it."""
    say(table.title, console)
    longest = max(len(column) for column in table.columns[1:])
    for row in table.rows:
        console.print(f"\n[bold]{escape(row[0])}", soft_wrap=True, highlight=False)
        for column, cell in zip(table.columns[1:], row[1:], strict=True):
            if cell:
                say(f"  {column:<{longest}}  {cell}", console)
    console.print()


def _write_table(table: Any, output: Path) -> None:
    if output.suffix == ".json":
        values = {"title": table.title, "columns": list(table.columns), "rows": table.rows, "notes": table.notes}
        write_atomically(output, json.dumps(values, indent=2) + "\n")
        return
    from bactrian.report import GallerySection, NoteSection, Report, TableSection, write_report

    rows = tuple(tuple(row) for row in table.rows)
    sections: tuple[Any, ...] = (
        TableSection(table.title, tuple(table.columns), rows),
        *(GallerySection(gallery) for gallery in table.galleries),
        NoteSection("Notes", tuple(table.notes)),
    )
    write_report(Report(table.title, sections), output)
