"""Learning that can be interrupted: in segments, each a pure function of the checkpoint that it starts from.

A segment is a number of iterations. At its end weights, multipliers and linearisation are saved, and the next segment
starts from these alone: the memory of the quasi-Newton method is dropped. So a run that is killed and resumed from its
last checkpoint repeats an undisturbed run exactly, to the last bit, at the cost of a few iterations per segment.
"""

from __future__ import annotations

import dataclasses
import shutil
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bactrian.arrays import Floats
from bactrian.camel.camel import Camel
from bactrian.estimators.saving import ModelFileError, SavedModel, read_saved, write_saved
from bactrian.learners.learn import METHODS, learn, packed_once
from bactrian.parallel import Alone, Communicator, anywhere, total
from bactrian.parallel.threads import Deadline
from bactrian.solvers.solution import (
    Callback,
    ConvergenceWarning,
    Progress,
    Record,
    Solution,
    Status,
    WarmState,
    warn_stopped,
)

#: Iterations of a segment. The first few of each are spent on learning the curvature anew.
EVERY = 100

_CLASS, _CHUNK = "Checkpoint", "ChunkState"


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """Where learning continues, and what came before."""

    weights: Floats
    state: Any  #: a WarmState, what has ``states()`` of chunks, or None
    iterations: int
    seconds: float
    evaluations: int
    history: tuple[Record, ...]
    #: Of held-out data: iteration and loss of each look, and the weights of the smallest loss.
    held_out: tuple[tuple[int, float], ...] = ()
    best: Floats | None = None

    def write(self, path: Path, communicator: Communicator | None = None) -> None:
        """Write to ``path``, replacing what is there in one step.

        States of chunks go into a folder beside it, each written by the rank that has the chunk; a checkpoint that
        names the folder appears when all ranks are done, and only then are older folders removed.
        """
        communicator = communicator or Alone()
        arrays, states = {"weights": self.weights}, None
        if isinstance(self.state, WarmState):
            arrays |= {"multipliers": self.state.multipliers, "g": self.state.linearisation}
        elif self.state is not None:
            states = f"states-{self.iterations}"
            ChunkStates(path.parent / states).write(self.state)
        if self.best is not None:
            arrays["best"] = self.best
        attributes = {
            "held_out": self.held_out,
            "iterations": self.iterations,
            "seconds": self.seconds,
            "evaluations": self.evaluations,
            "history": [dataclasses.asdict(record) for record in self.history],
            "states": states,
        }
        total(communicator, 0.0)  # all ranks have written theirs
        if communicator.rank == 0:
            write_saved(path, SavedModel(_CLASS, {}, attributes, arrays))
            _remove_states(path, but=states)

    @staticmethod
    def read(path: Path) -> Checkpoint:
        """Read what :meth:`write` wrote; a damaged or foreign file is a ModelFileError."""
        saved = read_saved(path, _CLASS)
        arrays, attributes = saved.arrays, saved.attributes
        try:
            state: Any = None
            if "multipliers" in arrays:
                state = WarmState(arrays["multipliers"].copy(), arrays["g"].copy())
            elif attributes.get("states") is not None:
                state = ChunkStates(path.parent / Path(str(attributes["states"])).name)
            return Checkpoint(
                weights=arrays["weights"].copy(),
                state=state,
                iterations=int(attributes["iterations"]),
                seconds=float(attributes["seconds"]),
                evaluations=int(attributes["evaluations"]),
                history=tuple(Record(**record) for record in attributes["history"]),
                held_out=tuple((int(at), float(loss)) for at, loss in attributes.get("held_out", ())),  # older: none
                best=arrays["best"].copy() if "best" in arrays else None,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ModelFileError(f"{path}: the file does not describe a valid checkpoint: {error}") from None

    @staticmethod
    def remove(path: Path) -> None:
        """Remove a checkpoint with all that belongs to it."""
        path.unlink(missing_ok=True)
        _remove_states(path)


def _remove_states(path: Path, but: str | None = None) -> None:
    for folder in path.parent.glob("states-*"):
        if folder.name != but:
            shutil.rmtree(folder)


@dataclass(frozen=True)
class ChunkStates:
    """Multipliers and linearisations of chunks, a file for each, whichever rank has it."""

    folder: Path

    def write(self, state: Any) -> None:
        """Write the states of the chunks that this rank has."""
        self.folder.mkdir(exist_ok=True)
        for name, multipliers, linearisation in state.states():
            arrays = {"multipliers": np.array(multipliers), "g": np.array(linearisation)}
            write_saved(self.folder / name, SavedModel(_CHUNK, {}, {}, arrays))

    def states(self) -> Iterator[tuple[str, Floats, Floats]]:
        """Name, multipliers and linearisation of every chunk."""
        for file in sorted(self.folder.glob("*.safetensors")):
            arrays = read_saved(file, _CHUNK).arrays
            yield file.name, arrays["multipliers"], arrays["g"]


def learn_in_segments(
    data: Any,
    method: Any,
    *,
    every: int = EVERY,
    save: Callable[[Checkpoint], None],
    checkpoint: Checkpoint | None = None,
    communicator: Communicator | None = None,
    max_iterations: int,
    max_seconds: float | None = None,
    callback: Callback | None = None,
    **options: Any,
) -> Solution:
    """Learn with a checkpoint after every segment; other arguments and the result are those of :func:`bactrian.learn`.

    A segment has ``every`` iterations (0: there is one, without checkpoints), and ``save`` is called with what it
    reached. Of the limits, iterations before the ``checkpoint`` to continue from count too, but only seconds of this
    call.
    """
    deadline, data = Deadline(max_seconds), packed_once(data)
    uses_state = isinstance(METHODS.get(method) if isinstance(method, str) else method, Camel)
    at = checkpoint
    while True:
        segment = _Segment(every, at, callback)
        with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
            solution = learn(
                data,
                method,
                max_iterations=max(0, max_iterations - segment.before.iterations),
                max_seconds=deadline.left,
                callback=segment.follow,
                start=None if at is None else Solution(at.weights, Status.STOPPED, state=at.state),
                communicator=communicator,
                **options,
            )
        at = segment.after(solution)
        if not uses_state:
            at = dataclasses.replace(at, state=None)
        # Clocks and callbacks differ from rank to rank, but all must go on, or none.
        stopped, late = anywhere(communicator or Alone(), segment.stopped, deadline.has_passed)
        # A segment that was cut short, yet ended at the very same step, is done all the same.
        if segment.cut and not stopped and solution.status is not Status.CONVERGED:
            if at.iterations < max_iterations and not late:
                save(at)
                continue
            limit = Status.ITERATION_LIMIT if at.iterations >= max_iterations else Status.TIME_LIMIT
            solution = dataclasses.replace(solution, status=limit)
        if solution.status in (Status.TIME_LIMIT, Status.ITERATION_LIMIT):
            save(at)  # a run with a higher limit continues here
        warn_stopped(solution)
        return dataclasses.replace(solution, history=at.history, seconds=at.seconds, evaluations=at.evaluations)


class _Segment:
    """Counts the iterations of one segment and says when it ends."""

    def __init__(self, every: int, start: Checkpoint | None, callback: Callback | None) -> None:
        self.before = start or Checkpoint(np.zeros(0), None, 0, 0.0, 0, ())
        self.every, self.callback = every, callback
        self.iterations = 0
        self.cut = self.stopped = False

    def follow(self, progress: Progress) -> bool:
        """Pass progress on, counted from the beginning of the run."""
        self.iterations = progress.iteration
        self.cut = self.every > 0 and progress.iteration >= self.every
        if self.callback is not None:
            shifted = dataclasses.replace(
                progress,
                outer=progress.outer + len(self.before.history),
                iteration=progress.iteration + self.before.iterations,
                seconds=progress.seconds + self.before.seconds,
            )
            answer = self.callback(shifted)
            self.stopped |= isinstance(answer, bool | np.bool_) and bool(answer)  # ranks go on until all know of it
        return self.cut or self.stopped

    def after(self, solution: Solution) -> Checkpoint:
        """The checkpoint at the end of the segment."""
        before = self.before
        outer = len(before.history)
        records = tuple(
            dataclasses.replace(record, outer=record.outer + outer, seconds=record.seconds + before.seconds)
            for record in solution.history
        )
        return Checkpoint(
            weights=solution.weights,
            state=solution.state,
            iterations=before.iterations + self.iterations,
            seconds=before.seconds + solution.seconds,
            evaluations=before.evaluations + solution.evaluations,
            history=before.history + records,
        )
