"""What the commands share: errors that are one line, and a progress bar."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Column


class BadInputError(Exception):
    """The command cannot begin; the message is one line for the user."""


@contextmanager
def bad_input(*kinds: type[Exception], prefix: str = "") -> Iterator[None]:
    """Turn exceptions of these kinds into one line, led by ``prefix``."""
    try:
        yield
    except kinds as problem:
        raise BadInputError(prefix + " ".join(_words(problem).split())) from problem


@contextmanager
def as_options(given: Collection[str]) -> Iterator[None]:
    """Let a ValueError that opens with the name of a setting name the option, where it was given as one."""
    try:
        yield
    except ValueError as problem:
        found = re.match(r"(?:(?:options|input|features)\.)?(\w+)(?=[ :])", str(problem))
        if found is None or found[1] not in given:
            raise
        raise ValueError(f"--{found[1].removeprefix('n_').replace('_', '-')}{str(problem)[found.end() :]}") from problem


def _words(problem: Exception) -> str:
    if isinstance(problem, MemoryError):
        return f"out of memory: {problem}"
    if isinstance(problem, OSError) and problem.filename is not None and problem.strerror:
        return f"{problem.filename}: {problem.strerror}"
    if isinstance(problem, ImportError) and "pip install" not in str(problem):
        extra = "vision" if problem.name is not None and problem.name.startswith("skimage") else "report"
        return f"{problem}; pip install 'bactrian[{extra}]'"
    return str(problem)


def in_paragraphs(command: Callable[..., None]) -> str:
    """The docstring of a command as help: lines are joined within paragraphs, for a terminal of any width."""
    return "\n\n".join(" ".join(part.split()) for part in inspect.cleandoc(command.__doc__ or "").split("\n\n"))


class Show(Protocol):
    """Moves the progress bar; a ``total`` of None is an unknown one."""

    def __call__(self, description: str, detail: str, completed: float, total: float | None) -> None:
        """Show how far it has come."""


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
