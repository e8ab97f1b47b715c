"""``bactrian reproduce``: the tables of the paper, one command each."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from bactrian.cli.common import BadInputError, bad_input, positive, progress_bar, say, terminal_table
from bactrian.files import write_atomically

app = typer.Typer(help="Run the paper's experiments on your copy of their data.", no_args_is_help=True)

Data = Annotated[Path, typer.Option("--data", "-d", help="Folder with the data set; an error says what is missing.")]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="Write the table: .html or .json.")]
Quick = Annotated[bool, typer.Option("--quick", help="A small part of the data, to see that it works.")]
Rows = Annotated[
    list[str] | None, typer.Option("--rows", help="Row of the table, by name; may be repeated (default: all).")
]
Seconds = Annotated[
    float | None,
    typer.Option(
        "--seconds",
        callback=positive,
        help="Most seconds of each fit (default: no limit). Rows that it stops depend on your machine, and say so.",
    ),
]
Splits = Annotated[
    int | None, typer.Option("--splits", min=1, help="Number of splits of the data (default: those of the paper).")
]

#: Without a terminal, progress is printed as lines, this often.
_SECONDS_BETWEEN_LINES = 10.0


def _example(name: str) -> str:
    return f"Example:  bactrian reproduce {name} --data DIR --output {name}.html"


@app.command("table1", epilog=_example("table1"))
def table1(data: Data, output: Output = None, quick: Quick = False, rows: Rows = None, seconds: Seconds = None) -> None:
    """Named entities: CoNLL-2003 English, skip chains, every learner."""
    _run("table1", data, output, quick, rows, seconds)


@app.command("table2", epilog=_example("table2"))
def table2(
    data: Data,
    output: Output = None,
    quick: Quick = False,
    rows: Rows = None,
    seconds: Seconds = None,
    splits: Splits = None,
) -> None:
    """Seminar announcements, four folds."""
    _run("table2", data, output, quick, rows, seconds, splits=splits)


@app.command("table3", epilog=_example("table3"))
def table3(
    data: Data,
    output: Output = None,
    quick: Quick = False,
    rows: Rows = None,
    seconds: Seconds = None,
    splits: Splits = None,
    cache: Annotated[Path | None, typer.Option(help="Folder that keeps features for the next time.")] = None,
) -> None:
    """Images as superpixels: Corel, three random splits."""
    _run("table3", data, output, quick, rows, seconds, splits=splits, cache=cache)


def _run(
    name: str,
    data: Path,
    output: Path | None,
    quick: bool,
    rows: list[str] | None,
    seconds: float | None,
    **options: Any,
) -> None:
    if not data.is_dir():
        raise BadInputError(f"--data: {data} is not a folder")
    if output is not None and (output.suffix not in (".html", ".json") or not output.absolute().parent.is_dir()):
        raise BadInputError(f"--output: {output} must be a .html or .json file in a folder that exists")
    try:
        experiment = import_module(f"bactrian.experiments.{name}.table")
    except ModuleNotFoundError as problem:
        raise BadInputError(f"{name} needs {problem.name}, which is not installed") from problem
    run: Callable[..., Any] = experiment.run
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
    _print(table)
    if output is not None:
        with bad_input(OSError, ImportError):
            _write(table, output)
        typer.echo(f"Written: {output}")


def _print(table: Any) -> None:
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


def _write(table: Any, output: Path) -> None:
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
