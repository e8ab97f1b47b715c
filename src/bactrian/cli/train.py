"""``bactrian train`` and ``pack``: from labelled files to a run folder with model, history, metrics and report.

A pack is labelled files as a folder of chunks, for data beyond the memory and for several ranks.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from bactrian.cli.interrupts import interrupts
from bactrian.cli.run_options import DATA_OPTIONS, LEARNING_OPTIONS, Config, GivenOptions, merged_settings, takes
from bactrian.solvers.solution import ProgressLines, in_time, in_words
from bactrian.terminal import BadInputError, Show, bad_input, print_scores, progress_bar, say_facts

if TYPE_CHECKING:
    from bactrian.runs.settings import RunSettings
    from bactrian.runs.training import TrainedRun
    from bactrian.solvers.solution import Callback, Progress


TRAIN_EXAMPLES = (
    "Examples:  bactrian train train.conll --dev dev.conll -o ner  ·  "
    "bactrian train train.conll --model skip-chain --method cccp -o skips  ·  bactrian train --resume ner"
)

_QUIET = 5.0  #: seconds of learning before the first line off a terminal
_WIDE = 120  #: columns from which progress is shown in full words


@takes((*DATA_OPTIONS, *LEARNING_OPTIONS))
def train_command(
    train: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="FILE...", help="Training data: files of columns, a folder of tagged texts, graphs, or a pack."
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Run folder to write (default: bactrian-run).")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Run to continue, after an interruption or a limit.")
    ] = None,
    config: Config = None,
    **options: Any,
) -> None:
    """Learn a model from labelled text or graphs, and write a run folder.

    Ctrl-C stops after the current iteration and keeps the model; --resume continues from the last checkpoint. Exit code
    0: done; 1: stopped short, results kept; 2: bad input, nothing written.
    """
    given = GivenOptions.of(options, (*DATA_OPTIONS, *LEARNING_OPTIONS))
    with bad_input(ImportError):
        from bactrian.parallel.launched import launched

        ranks = launched()
    leads, path = ranks.rank == 0, resume
    if resume is not None:
        _check_resume(given, {"train": train, "output": output, "config": config})
    try:
        progress = progress_bar("reading") if leads else nullcontext()
        with bad_input(options=given.in_words), progress as show:
            from bactrian.runs.folders import RunFolder
            from bactrian.runs.training import interrupted_run, new_run
            from bactrian.runs.training import train as train_run

            if path is None:
                path, settings = _new_settings(train, output, given, config, leads)
            else:
                settings, _ = RunFolder(path).read_settings()
            with _interruptible(show, {**settings.options, **given.limits}, leads) as tell:
                run = interrupted_run(path, ranks, **given.limits) if resume else new_run(path, settings, ranks)
                trained = train_run(run, tell)
        if leads:
            _finish(trained)
    except KeyboardInterrupt:
        if path is None or not (path / "settings.json").is_file():
            raise
        typer.echo(f"bactrian: interrupted; continue with: bactrian train --resume {path}", err=True)
        raise typer.Exit(1) from None
    if not trained.converged:
        raise typer.Exit(1)


def _new_settings(
    train: list[Path] | None, output: Path | None, given: GivenOptions, config: Path | None, leads: bool
) -> tuple[Path, RunSettings]:
    """The folder of a new run, which must be free, and its settings."""
    from bactrian.runs.folders import RunFolder, check_free
    from bactrian.runs.settings import RunSettings, with_defaults

    values = merged_settings(train, given, config)
    named = values.pop("output", "bactrian-run")
    path = output or Path(named)
    if leads:
        go_on = f", or continue it: --resume {path}" if RunFolder(path).settings.is_file() else ""
        check_free(path, f"choose another name{go_on}")
    return path, RunSettings.of(with_defaults(values))


def _finish(trained: TrainedRun) -> None:
    """Write the report, then print a summary: the reader of a pipe may have gone."""
    from bactrian.runs.compare_runs import compare_runs, prior_in_words
    from bactrian.runs.fitted_run import FittedRun

    folder, metrics = trained.folder, trained.metrics
    with bad_input():  # a run that was done before may have been damaged since
        run = FittedRun.load(folder)
    if run.settings.report:
        with bad_input(OSError):
            from bactrian.report import report_of, write_report

            write_report(report_of(compare_runs([run], known=trained.evaluations)), folder.report)
    lines = [
        ("model", f"{run.settings.model}, {metrics['weights']:,} weights, {len(run.classes)} labels"),
        ("learner", f"{metrics['method']}, {metrics['outer_iterations']} outer and {metrics['iterations']} iterations"),
        ("prior", prior_in_words(run.estimator.prior_variance_)),
        ("status", metrics["status_in_words"]),
        ("seconds", f"{metrics['seconds']:.3g}"),
    ]
    if "held_out" in metrics:
        best = min(metrics["held_out"], key=lambda look: look["log_loss"])
        kept = f"least log loss {best['log_loss']:.4f}, at iteration {best['iteration']} of {metrics['iterations']}"
        lines.insert(-1, ("held out", kept))
    if "skip_edges" in metrics:
        lines.insert(1, ("skip edges", f"{metrics['skip_edges']:,} in {metrics['documents']:,} documents"))
    say_facts(lines)
    for name in ("dev", "test"):
        if name in metrics:
            print_scores(metrics[name], f"{name}: {getattr(run.settings, name)}")
    say_facts([("written", folder.path)])
    if not trained.converged:
        typer.echo(f"bactrian: stopped short; continue with: bactrian train --resume {folder.path}", err=True)


# --- settings ---


def _check_resume(given: GivenOptions, more: dict[str, Any]) -> None:
    flags = [f"--{name}" if name != "train" else "files" for name, value in more.items() if value]
    flags += [option.flag for option in given.values if not option.limit]
    if flags:
        raise BadInputError(f"--resume keeps the settings of the run: leave out {flags[0]}; only limits may change")


# --- progress and interrupts ---


@contextmanager
def _interruptible(show: Show | None, limits: Mapping[str, Any], told: bool) -> Iterator[Callback]:
    """A callback that shows progress, and stops training after the iteration in which Ctrl-C or SIGTERM came.

    Off a terminal it prints a line now and then, if ``told``. Before the first iteration, and the second time, an
    interrupt takes effect at once.
    """
    learning = wanted = False
    clock = _Clock(limits)

    def after_the_iteration() -> bool:
        nonlocal wanted
        second, wanted = wanted, learning
        return wanted and not second

    def tell(progress: Progress) -> bool:
        nonlocal learning
        learning = True
        if show is not None:
            show("stopping" if wanted else "learning", *clock.detail(progress))
        elif told:
            clock.lines(progress)
        return wanted

    with interrupts(after_the_iteration, (signal.SIGINT, signal.SIGTERM)):
        yield tell


class _Clock:
    """How far training has come in this session, in words and as a part of its limits."""

    def __init__(self, limits: Mapping[str, Any]) -> None:
        self.max_seconds, self.max_iterations = limits.get("max_seconds"), limits.get("max_iterations")
        self.wide = Console(stderr=True).width >= _WIDE
        self.lines = ProgressLines(limits.get("tolerance", 1e-4), first=_QUIET)
        self._first: tuple[float, int] | None = None  # time and iteration at which this session began

    def detail(self, at: Progress) -> tuple[str, float, float | None]:
        """What to show, how much is done, and of how much."""
        now = time.perf_counter()
        began, iteration = self._first = self._first or (now, at.iteration)
        words = in_words(at) if self.wide else f"iteration {at.iteration}, gap {at.moment_gap:.0e},"
        seconds = now - began
        self.lines.see(at)
        if self.max_seconds is not None:
            return f"{words} {max(0.0, self.max_seconds - seconds):.0f} s left", seconds, self.max_seconds
        if self.max_iterations is not None and at.iteration > iteration:
            left = seconds / (at.iteration - iteration) * max(0, self.max_iterations - at.iteration)
            return f"{words} at most {left:.0f} s left", at.iteration, self.max_iterations
        pace = self.lines.left()
        return words if pace is None else f"{words} perhaps {in_time(pace)} left", 0.0, None


# --- packs ---

PACK_EXAMPLES = (
    "Examples:  bactrian pack train.conll -o packed  ·  bactrian pack graphs.jsonl -o packed --chunk 200000  ·  "
    "bactrian train packed -o run  ·  mpirun -n 4 bactrian train packed -o run"
)


@takes(DATA_OPTIONS)
def pack_command(
    train: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FILE...", help="Training data: files of columns, tagged texts or graphs."),
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to write.")] = Path("bactrian-pack"),
    config: Config = None,
    chunk: Annotated[
        int, typer.Option(min=1, help="Tokens or nodes per chunk; one chunk is in memory at a time.")
    ] = 50_000,
    **options: Any,
) -> None:
    """Pack labelled data into a folder that train reads chunk by chunk.

    The files are read three times (graphs: twice) and never held in memory as a whole. Features,
    labels and the layout of the weights are fixed here; give the learner and its options to train.
    """
    given = GivenOptions.of(options, DATA_OPTIONS)
    with bad_input(options=given.in_words), progress_bar("packing") as show:
        from bactrian.runs.packs import write_pack
        from bactrian.runs.settings import RunSettings, with_defaults

        values = merged_settings(train, given, config)
        values.pop("output", None)

        def tell(what: str, chunks: int) -> None:
            if show is not None:
                show(what, f"{chunks} chunks", chunks, None)

        packed = write_pack(output, RunSettings.of(with_defaults(values)), chunk=chunk, tell=tell)
    size = sum(part.bytes for part in packed.chunks)
    chunks = f"{packed.n_chunks}, {size / 2**20:.0f} MiB"
    say_facts([("chunks", chunks), ("weights", f"{packed.n_weights:,}"), ("written", output)])
