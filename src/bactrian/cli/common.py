"""What the commands share: errors that are one line, and a progress bar."""

from __future__ import annotations

from collections.abc import Iterator
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
        hint = "; pip install 'bactrian[report]'" if isinstance(problem, ImportError) else ""
        raise BadInputError(prefix + " ".join(_words(problem).split()) + hint) from problem


def _words(problem: Exception) -> str:
    if isinstance(problem, MemoryError):
        return f"out of memory: {problem}"
    return str(problem)


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
