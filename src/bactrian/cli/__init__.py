"""The command line, ``bactrian``: commands, and how their errors end.

Exit codes: 0 done; 1 stopped short, results kept; 2 bad input, one line on standard error and nothing written; 130
interrupted.
"""

from __future__ import annotations

import gc
import io
import os
import runpy
import sys
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, cast

import typer
from rich.console import Console
from rich.markup import escape

from bactrian import __version__
from bactrian.cli import apply, fit, infer_uai, train, warm_up
from bactrian.cli.interrupts import interrupts
from bactrian.experiments import commands
from bactrian.terminal import BadInputError, in_paragraphs, in_words

app = typer.Typer(
    name="bactrian",
    help="Learn discrete Markov and conditional random fields with loops.",
    epilog="Examples:  bactrian demo  ·  bactrian train train.conll -o run  ·  bactrian predict run letter.txt",
    add_completion=False,
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _command, _examples in (
    (commands.demo_command, commands.DEMO_EXAMPLES),
    (warm_up.warm_up_command, warm_up.EXAMPLES),
    (train.train_command, train.TRAIN_EXAMPLES),
    (train.pack_command, train.PACK_EXAMPLES),
    (apply.predict_command, apply.PREDICT_EXAMPLES),
    (apply.evaluate_command, apply.EVALUATE_EXAMPLES),
    (apply.report_command, apply.REPORT_EXAMPLES),
    (infer_uai.infer_command, infer_uai.EXAMPLES),
    (fit.fit_command, fit.FIT_EXAMPLES),
    (fit.query_command, fit.QUERY_EXAMPLES),
    (fit.rake_command, fit.RAKE_EXAMPLES),
    (fit.sample_command, fit.SAMPLE_EXAMPLES),
    (commands.reproduce_command, commands.REPRODUCE_EXAMPLES),
):
    _name = _command.__name__.removesuffix("_command").replace("_", "-")
    app.command(_name, help=in_paragraphs(_command), epilog=_examples)(_command)
app.add_typer(commands.bench_app, name="bench")

#: Newer releases of typer carry click inside, older ones depend on it; this is the usage error of either.
_UsageError = cast(type[typer.BadParameter], typer.BadParameter.__base__)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of the ``bactrian`` command."""
    infer_uai.is_alone = arguments is None
    if arguments is None:
        gc.set_threshold(100_000)  # a short command drops little, and looking for it takes a tenth of its time
    _prepare_streams()
    errors = Console(stderr=True, highlight=False, soft_wrap=True)
    try:
        with interrupts(), warnings.catch_warnings():
            warnings.simplefilter("default", UserWarning)
            warnings.showwarning = lambda message, *_: errors.print(f"bactrian: {escape(str(message))}")
            code = app(args=None if arguments is None else list(arguments), prog_name="bactrian", standalone_mode=False)
    except _UsageError as problem:
        # There is no message where a group of commands was named alone: its help has been shown.
        if message := " ".join(problem.format_message().split()):
            errors.print(f"bactrian: {escape(message)}")
        code = 2
    except BadInputError as problem:
        errors.print(f"bactrian: {escape(str(problem))}")
        code = 2
    except MemoryError as problem:
        errors.print(f"bactrian: {escape(in_words(problem))}")
        code = 2
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    if code == 130:  # some releases of typer turn the interrupt into this code themselves
        errors.print("bactrian: interrupted, nothing written")
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:  # the reader has seen enough, as head does
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())  # or the interpreter complains at its end
    if code not in (None, 0, 1) and "bactrian.parallel.launched" in sys.modules:
        from bactrian.parallel.launched import end_ranks

        end_ranks(code)
    if arguments is None:
        gc.freeze()  # else the interpreter looks for garbage among all that it is about to drop
    sys.exit(code or 0)


def _prepare_streams() -> None:
    """Make sure that messages can be written, even to closed streams and in any encoding."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by the parent process
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - until the end
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"bactrian {__version__}")
        raise typer.Exit


def _run_plugin(path: Path) -> None:
    if not path.is_file():
        raise BadInputError(f"--plugin: {path}: there is no such file")
    try:
        runpy.run_path(str(path))
    except Exception as error:
        lines = [entry.lineno for entry in traceback.extract_tb(error.__traceback__) if entry.filename == str(path)]
        where = f"{path}, line {lines[-1]}" if lines else str(path)
        raise BadInputError(f"--plugin: {where}: {type(error).__name__}: {error}") from error


@app.callback()
def _common(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    plugin: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="A Python file to run first, which registers parts of your own by name. May be repeated.",
        ),
    ] = None,
) -> None:
    """Learn discrete Markov and conditional random fields with loops."""
    for path in plugin or ():
        _run_plugin(path)
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
