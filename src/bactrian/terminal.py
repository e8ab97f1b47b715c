"""What commands share: one-line errors, a progress bar, and scores as a table."""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Column, Table

from bactrian.atomic_files import destination, is_stream
from bactrian.errors import ArgumentError

#: What bad input, files that cannot be read or written, and packages that are not installed raise.
_BAD_INPUT = (ValueError, TypeError, OSError, MemoryError, ImportError)


class BadInputError(Exception):
    """The command cannot begin; the message is one line for the user."""


@contextmanager
def bad_input(
    *kinds: type[Exception], prefix: str = "", options: Callable[[ArgumentError], str] = str
) -> Iterator[None]:
    """Turn exceptions of these ``kinds`` into one line after ``prefix``; ``options`` words errors about arguments."""
    kinds = kinds or _BAD_INPUT
    try:
        yield
    except BrokenPipeError:
        raise  # the reader of the output has gone; the input is fine
    except kinds as problem:
        words = options(problem) if isinstance(problem, ArgumentError) else in_words(problem)
        raise BadInputError(prefix + " ".join(words.split())) from problem


def named(setting: str, flag: str) -> Callable[[ArgumentError], str]:
    """For :func:`bad_input`: errors about ``setting`` name the option ``flag``."""
    return lambda error: error.said_of(flag) if error.argument == setting else str(error)


def in_words(problem: Exception) -> str:
    """The message of an exception, with its file or the package to install."""
    if isinstance(problem, MemoryError):
        return f"out of memory: {problem}"
    if isinstance(problem, OSError) and problem.filename is not None and problem.strerror:
        return f"{problem.filename}: {problem.strerror}"
    if isinstance(problem, ModuleNotFoundError):
        name = (problem.name or "").partition(".")[0]
        return f"{problem}; pip install {'scikit-image' if name == 'skimage' else name}"
    return str(problem)


def positive(value: float | None) -> float | None:
    """Check that an option is positive, if it was given."""
    if value is not None and not 0.0 < value < math.inf:
        raise typer.BadParameter(f"expected a positive number, found {value}")
    return value


def in_paragraphs(command: Callable[..., None]) -> str:
    """The docstring of a command as help: lines are joined within paragraphs, for a terminal of any width."""
    return "\n\n".join(" ".join(part.split()) for part in inspect.cleandoc(command.__doc__ or "").split("\n\n"))


#: Moves the progress bar: description, detail, how much is completed, and of how much (None: unknown).
Show = Callable[[str, str, float, float | None], None]


@contextmanager
def progress_bar(description: str) -> Iterator[Show | None]:
    """A progress bar on a terminal; elsewhere nothing."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description:<14}", table_column=Column(min_width=14, no_wrap=True)),
        BarColumn(12),
        TimeElapsedColumn(),
        TextColumn("[dim]{task.fields[detail]}", table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1)),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(description, total=None, detail="")

        def show(description: str, detail: str, completed: float, total: float | None) -> None:
            bar.update(task, description=description, completed=completed, total=total, detail=detail)

        yield show


def terminal_table(title: str, columns: Sequence[str] = (), *, numbers: bool = False) -> Table:
    """A table with the title at its left; ``numbers`` sets all columns but the first to the right."""
    table = Table(title=escape(title), title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(escape(column), justify="right" if numbers and number else "left", no_wrap=True)
    return table


def say(text: str, console: Console | None = None) -> None:
    """Print text as it is, without markup or line breaks."""
    (console or Console()).print(escape(text), soft_wrap=True, highlight=False)


def say_facts(facts: Iterable[tuple[str, object]]) -> None:
    """Print names and values, one pair per line."""
    for key, value in facts:
        typer.echo(f"{key:<12}{value}")


def check_output(output: Path | None, inputs: Iterable[Path | None]) -> None:
    """Refuse an output that cannot be written, or that would replace an input, before any work."""
    if output is None:
        return
    with bad_input(OSError, ValueError, prefix="--output: "):
        target = output if is_stream(output) else destination(output)
        if not target.parent.is_dir():
            raise BadInputError(f"--output: cannot write {output}: there is no folder {target.parent}")
        if target.is_dir() or not os.access(target if is_stream(target) else target.parent, os.W_OK):
            raise BadInputError(f"--output: cannot write {output}")
        for path in inputs:
            if path is not None and path.exists() and target.exists() and target.samefile(path):
                raise BadInputError(f"--output: {output} is an input file, and would be overwritten")


def make_folder(path: Path) -> None:
    """Make the folder that ``--output`` needs; refuse where nothing can be written."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise BadInputError(f"--output: cannot make the folder {path}: {problem.strerror}") from problem
    if not os.access(path, os.W_OK):
        raise BadInputError(f"--output: cannot write to {path}")


def print_scores(scores: dict[str, Any], title: str) -> None:
    """Print scores of texts (entities by type, micro, macro, tokens) or of graphs (accuracy, recall by label)."""
    console = Console()
    columns = ["", "precision", "recall", "F1", "number"] if "entities" in scores else ["", "recall", "number"]
    table = terminal_table(title, columns, numbers=True)
    if "entities" in scores:
        entities, tokens = scores["entities"], scores["token_f1"]
        for name, score in entities["types"].items():
            table.add_row(escape(name), *_figures(score))
        table.add_section()
        for what, scored in (("entities", entities), ("tokens", tokens)):
            for mean in ("micro", "macro"):
                table.add_row(f"{what}, {mean}", *_figures(scored[mean]))
        table.add_row("surface forms", *_figures(scores["surface"]))
        console.print(table)
    elif scores.get("labels"):
        for name, score in scores["labels"].items():
            table.add_row(escape(name), f"{100 * score['recall']:.2f}", str(score["support"]))
        console.print(table)
    else:
        say(title, console)
    what = "nodes" if "nodes" in scores else "tokens"
    accuracy = f"{what.removesuffix('s')} accuracy {100 * scores['accuracy']:.2f} %"
    console.print(f"{accuracy} ({scores[what]:,} {what})", highlight=False)


def _figures(score: dict[str, float]) -> list[str]:
    figures = [f"{100 * score[key]:.2f}" for key in ("precision", "recall", "f1")]
    return [*figures, str(score.get("support", ""))]
