"""Training a run: from settings and data to a folder with model, history and metrics, with checkpoints on the way."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from bactrian.engines.files import PackedFolder
from bactrian.errors import warn
from bactrian.estimators.base import choose_prior, held_out, judge, to_adopt
from bactrian.estimators.held_out import HeldOut
from bactrian.graphs.graph_data import GraphData
from bactrian.parallel import Alone, Communicator, total
from bactrian.runs.checkpoints import Checkpoint, learn_in_segments
from bactrian.runs.fitted_run import FittedRun, RunEvaluation, evaluate_run
from bactrian.runs.folders import RunFolder, end_in_words, write_json
from bactrian.runs.graph_files import places_of
from bactrian.runs.packs import estimator_of_pack, is_pack
from bactrian.runs.run_data import RunData, check_data, checksum, read_data
from bactrian.runs.settings import RunSettings
from bactrian.solvers.solution import Callback, ConvergenceWarning, Progress, Solution, Status

#: A document of more sentences is probably many.
_MANY_SENTENCES = 1000


@dataclass(frozen=True)
class TrainedRun:
    """How training ended."""

    folder: RunFolder
    metrics: Mapping[str, Any]
    converged: bool
    evaluations: Mapping[str, RunEvaluation] = field(default_factory=dict)  #: by path, of the dev and test files


@dataclass(frozen=True, eq=False)
class OpenRun:
    """A run that is about to be trained."""

    folder: RunFolder
    settings: RunSettings
    data: RunData | Path | None  #: a path is that of a pack; None if training is done
    communicator: Communicator
    is_new: bool


def new_run(path: Path, settings: RunSettings, communicator: Communicator | None = None) -> OpenRun:
    """Make the folder of a new run; several ranks may train it together from a pack.

    Bad data or settings raise a ValueError, and no folder is made.
    """
    communicator = communicator or Alone()
    files = [name for name in (*settings.train, settings.dev, settings.test) if name is not None]
    checksums = {name: _checksum(name, "there is no such file") for name in files}
    data = _source(settings, communicator)
    labels = _labels_of(data, settings)
    for other in (settings.dev, settings.test):
        if other is not None:
            check_data([other], settings, labels)
    folder = RunFolder.create(path, settings, checksums) if communicator.rank == 0 else RunFolder(path)
    return OpenRun(folder, settings, data, communicator, True)


def interrupted_run(path: Path, communicator: Communicator | None = None, **limits: Any) -> OpenRun:
    """Open a run that was interrupted, or that a limit stopped; ``limits`` replace those of its settings.

    Training data that has changed since raises a ValueError.
    """
    communicator, folder = communicator or Alone(), RunFolder(path)
    folder.check_learned()
    settings, checksums = folder.read_settings()
    has_ended = folder.metrics.is_file() and not folder.checkpoint.is_file() and folder.model.is_file()
    if has_ended and folder.read_metrics().get("status") in [status.name for status in Status if status.is_done]:
        return OpenRun(folder, settings, None, communicator, False)
    options = {**settings.options, **{name: value for name, value in limits.items() if value is not None}}
    settings = RunSettings.of({**settings.as_dict(), "options": options})
    for name in settings.train:
        if _checksum(name, "there is no such file, but the run learned from it") != checksums.get(name):
            raise ValueError(f"{name} has changed since the run began; train again")
    return OpenRun(folder, settings, _source(settings, communicator), communicator, False)


def _source(settings: RunSettings, communicator: Communicator) -> RunData | Path:
    """The training data, or the folder of a pack."""
    first = Path(settings.train[0])
    if is_pack(first):
        return first
    if communicator.size > 1:
        raise ValueError("several ranks need a pack; make one with: bactrian pack")
    return read_data(settings.train, settings)


def _labels_of(data: RunData | Path, settings: RunSettings) -> set[Any]:
    """The labels that a model of such data has."""
    if isinstance(data, Path):
        model: Any = estimator_of_pack(data, settings)
        return set(model.classes_.tolist())
    return {label for labels in data.y for label in np.asarray(labels, dtype=object).tolist()} - {None, -1, ""}


def _checksum(name: str, missing: str) -> str:
    path = Path(name)
    if not path.exists():
        raise ValueError(f"{name}: {missing}")
    return checksum(path / "pack.json" if is_pack(path) else path)


def train(run: OpenRun, callback: Callback | None = None) -> TrainedRun:
    """Train a run, from its checkpoint if there is one; model, history and metrics go to its folder."""
    folder, settings, communicator = run.folder, run.settings, run.communicator
    if run.data is None:
        return TrainedRun(folder, folder.read_metrics(), True)
    with folder.training(is_new=run.is_new) if communicator.rank == 0 else nullcontext():
        total(communicator, 0.0)  # the folder is there for every rank
        checkpoint = Checkpoint.read(folder.checkpoint) if folder.checkpoint.is_file() else None
        trace = [] if checkpoint is None else folder.read_history(checkpoint.iterations)[0]

        def observe(progress: Progress) -> Any:
            # Without the weights: a copy of them for every iteration would fill the memory.
            trace.append(Progress(**{**vars(progress), "weights": progress.weights[:0].copy()}))
            return None if callback is None else callback(progress)

        def save(reached: Checkpoint) -> None:
            if communicator.rank == 0:
                folder.write_history(trace, reached.history)
            if watch is not None:
                reached = replace(reached, held_out=tuple(watch.scores), best=watch.best)
            reached.write(folder.checkpoint, communicator)

        estimator, encoded = _encoded(run)
        watch = None if settings.patience is None else _held_out(settings, estimator, observe, checkpoint)
        in_memory = isinstance(encoded, GraphData) and communicator.size == 1
        with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):  # the status says it
            solution = learn_in_segments(
                encoded,
                **estimator.learning_options(),
                every=settings.checkpoint_every,
                save=save,
                checkpoint=checkpoint,
                communicator=communicator,
                callback=watch or observe,
            )
            if in_memory and not (watch and watch.stopped):
                solution = to_adopt(estimator, encoded, solution)
            solution = solution if watch is None else watch.chosen(solution)
        estimator.adopt(solution)
        trained = _written(run, estimator, trace, watch)
        if in_memory and solution.status is not Status.STOPPED:
            judge(estimator, encoded)
        return trained


def _encoded(run: OpenRun) -> tuple[Any, GraphData | PackedFolder]:
    """The estimator, and the data as it learns from it."""
    if not isinstance(run.data, RunData):
        assert run.data is not None
        return estimator_of_pack(run.data, run.settings), PackedFolder.open(run.data)
    estimator: Any = run.settings.estimator()
    with places_of(run.data.places):
        encoded = estimator.encode(run.data.X, run.data.y, **run.data.given)
    _warn_of_long_documents(run.settings, run.data)
    choose_prior(estimator, encoded)
    return estimator, encoded


def _written(run: OpenRun, estimator: Any, trace: list[Progress], watch: HeldOut | None) -> TrainedRun:
    """Write the model and how training went, and score it."""
    folder, settings, solution = run.folder, run.settings, estimator.solution_
    metrics = _training_metrics(solution, trace) | {"prior_variance": estimator.prior_variance_}
    if watch is not None:
        metrics["held_out"] = [{"iteration": iteration, "log_loss": loss} for iteration, loss in watch.scores]
    if isinstance(run.data, RunData) and hasattr(estimator, "n_skips_"):
        metrics["skip_edges"], metrics["documents"] = estimator.n_skips_, len(run.data.documents)
    if run.communicator.rank > 0:
        return TrainedRun(folder, metrics, solution.converged)
    estimator.save(folder.model)
    folder.write_history(trace, solution.history)
    fitted, files = FittedRun.load(folder), {"dev": settings.dev, "test": settings.test}
    evaluations = {path: evaluate_run(fitted, [path]) for path in dict.fromkeys(files.values()) if path is not None}
    metrics |= {name: evaluations[path].scores for name, path in files.items() if path is not None}
    write_json(folder.metrics, metrics)
    if solution.converged:
        Checkpoint.remove(folder.checkpoint)
    return TrainedRun(folder, metrics, solution.converged, evaluations)


def _held_out(settings: RunSettings, estimator: Any, callback: Callback, checkpoint: Checkpoint | None) -> HeldOut:
    """What stops learning by the loss of the dev file; labels that the model lacks do not count."""
    assert settings.dev is not None
    assert settings.patience is not None
    data, known = read_data([settings.dev], settings, estimator.classes_.tolist()), set(estimator.classes_.tolist())
    listed = [np.asarray(labels, dtype=object).tolist() for labels in data.y]
    y = [[label if label in known else None for label in labels] for labels in listed]
    watch = held_out(estimator, data.X, y, callback, settings.patience, **data.given)
    if checkpoint is not None:
        watch.scores, watch.best = list(checkpoint.held_out), checkpoint.best
    return watch


def _warn_of_long_documents(settings: RunSettings, data: RunData) -> None:
    """Skips cross whatever is one document: a file without marks is rarely meant to be one."""
    sentences = max((len(document.sentence_starts) for document in data.documents), default=0)
    if settings.model == "skip-chain" and settings.input.format == "columns" and sentences > _MANY_SENTENCES:
        warn(
            f"a document has {sentences:,} sentences, and skip edges cross all of it; mark documents with -DOCSTART- "
            "lines, or use --documents blank-lines or sentences"
        )


def _training_metrics(solution: Solution, trace: list[Progress]) -> dict[str, Any]:
    return {
        "status": solution.status.name,
        "status_in_words": end_in_words(solution.status, solution.attained),
        "method": solution.method,
        "objective": solution.objective,
        "moment_gap": solution.moment_gap,
        "violation": solution.violation,
        "attained": solution.attained,
        "outer_iterations": len(solution.history),
        "iterations": trace[-1].iteration if trace else 0,
        "evaluations": solution.evaluations,
        "seconds": solution.seconds,
        "weights": int(solution.weights.size),
    }
