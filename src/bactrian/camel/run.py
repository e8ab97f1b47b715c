"""One run of a learner: settings, limits, progress and result, and what it asks of whoever solves inner problems."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, NoReturn, Protocol
from weakref import ref

import numpy as np

from bactrian.arrays import Bools, Floats
from bactrian.camel.dual import Evaluation
from bactrian.camel.parts import Vector
from bactrian.camel.prior import Prior
from bactrian.camel.recession import certifies, collect_states, has_direction, is_inside
from bactrian.camel.schedule import SCHEDULE
from bactrian.engines.numba.threads import Deadline
from bactrian.graphs.junction import JunctionData
from bactrian.graphs.packed import BeliefTables
from bactrian.graphs.triplets import TightenedData
from bactrian.parallel import Alone, Communicator, Message, Signals, total
from bactrian.solvers.lbfgs import largest_slope, on_host
from bactrian.solvers.solution import Callback, Progress, Record, Solution, Status

#: Directions that the path suggests are tried as they are, and rounded to such parts of their largest weight; how far
#: a direction is followed to see where multipliers go, and sweeps there.
_PARTS, _FURTHER, _SWEEPS = (1, 2, 4, 8), 100.0, 100


@dataclass(frozen=True)
class Settings:
    """Options of :func:`bactrian.learn` that every learner shares."""

    prior: Prior
    tolerance: float
    max_iterations: int
    max_relinearisations: int
    seed: int
    callback: Callback | None
    start: Floats | None
    state: Any = None
    gap_tolerance: float | None = None
    communicator: Communicator = field(default_factory=Alone)
    deadline: Deadline = field(default_factory=Deadline)


@dataclass(frozen=True)
class InnerResult:
    """Weights after an inner solve, with what it took."""

    weights: Vector
    objective: float
    gap: float
    violation: float
    iterations: int
    status: Status


class Work(NamedTuple):
    """What a solver has done."""

    evaluations: int = 0  #: of the dual
    sweeps: int = 0  #: of all instances
    failures: int = 0  #: evaluations at which message passing did not converge


class InnerSolver(Protocol):
    """Minimises the dual from given weights and the dual's multipliers; keeps what helps the next solve."""

    dual: Any

    @property
    def work(self) -> Work:
        """What was done so far."""

    def solve(self, weights: Vector, *, tolerance: float, relative: float = 0.0, max_iterations: int) -> InnerResult:
        """Run until the moment gap is at most ``tolerance``, or ``relative`` of what it was at the start."""

    def refine(self, weights: Vector, belief_change: float) -> None:
        """Before a relinearisation: make beliefs consistent enough for a change of that size to mean something."""

    def objective_changed(self) -> None:
        """The linearisation was updated."""

    def evaluate(self, weights: Vector) -> Evaluation:
        """The dual at ``weights``, as accurately as the run demands."""


class Run:
    """Counts work against the limits, reports progress and keeps the history."""

    def __init__(self, settings: Settings, data: Any, name: str) -> None:
        self.settings, self.name = settings, name
        self.data = data
        self.gap_scale = max(1.0, total(settings.communicator, data.total_weight))
        self.gap_tolerance = settings.tolerance * self.gap_scale
        if settings.gap_tolerance is not None:
            self.gap_tolerance = settings.gap_tolerance
            # Messages follow the gap down, to reach their own tolerance when it does.
            self.gap_scale = max(self.gap_scale, self.gap_tolerance / max(settings.tolerance, SCHEDULE.sharpest))
        elif settings.prior.curvature > 0.0:
            # The prior's curvature bounds the distance to the optimum by gap / curvature.
            weight_tolerance = SCHEDULE.weights_per_belief * settings.tolerance
            self.gap_tolerance = min(
                self.gap_tolerance, max(settings.tolerance, weight_tolerance * settings.prior.curvature)
            )
        self.accuracy = settings.tolerance
        #: Accuracy of messages at which the gradient is right to the gap tolerance, where it is no partial derivative.
        self.gradient_accuracy = max(1e-13, min(self.accuracy, 0.01 * self.gap_tolerance / self.gap_scale))
        self.interrupted: Status | None = None
        self.records: list[Record] = []
        self._begun = time.perf_counter()
        self.signals = Signals(lambda: settings.deadline.has_passed)
        self._iterations = 0
        #: Whose work was counted before; weakly, for it knows this run, and the data would outlive both.
        self._inner: ref[InnerSolver] | None = None
        self._work = Work()
        self._path: list[Floats] = []

    @property
    def seconds(self) -> float:
        """Since the run began."""
        return time.perf_counter() - self._begun

    @property
    def iterations_left(self) -> int:
        """Quasi-Newton iterations still allowed: none where the run must stop."""
        return 0 if self.is_over() else self.settings.max_iterations - self._iterations

    def initial_weights(self) -> Floats:
        """Zero, or the start that the user gave."""
        if self.settings.start is None:
            return np.zeros(self.data.n_weights)
        return self.settings.start.copy()

    def after_step(self, weights: Vector, objective: float, gap: float, violation: float) -> bool:
        """Count an iteration, call back; True where the run must stop."""
        self._iterations += 1
        if self._iterations & (self._iterations - 1) == 0:
            self._path = [*self._path[-1:], on_host(weights)]
        settings = self.settings
        if settings.callback is not None:
            progress = Progress(
                len(self.records), self._iterations, objective, gap, violation, self.seconds, on_host(weights)
            )
            answer = settings.callback(progress)
            if isinstance(answer, bool | np.bool_) and answer:
                self.signals.stop = True
        self.is_late()
        if self.interrupted is None and self.iterations_left <= 0:
            self.interrupted = Status.ITERATION_LIMIT
        return self.interrupted is not None

    def is_over(self) -> bool:
        """Whether the run must stop; asks the clock, for solvers work between iterations as well."""
        self.is_late()
        return self.interrupted is not None

    def is_late(self) -> bool:
        """Note what stops the run; whether its time is up, so that message passing may have been cut short."""
        # Clocks and callbacks differ from rank to rank: what stops one stops all, once all have heard of it.
        stopped, late = self.signals.own() if self.settings.communicator.size == 1 else self.signals.seen
        if stopped:
            self.interrupted = Status.STOPPED
        elif late and self.interrupted is None:
            self.interrupted = Status.TIME_LIMIT
        return late

    def listen_to(self, dual: Any) -> None:
        """Let a dual heed the time limit, and learn from its messages what other ranks want."""
        dual.heed(self.settings.deadline)
        message: Message | None = dual.message
        if message is not None:
            message.signals = self.signals

    def status_of(self, ended: Status) -> Status:
        """Status of a solve that the optimiser ended so: what stopped the run, unless it converged."""
        return ended if self.interrupted is None or ended is Status.CONVERGED else self.interrupted

    def record(
        self,
        result: InnerResult,
        inner: InnerSolver,
        belief_change: float = np.nan,
        weight_change: float = np.nan,
        linearisation_change: float = np.nan,
    ) -> None:
        """Add an outer iteration to the history."""
        if self._inner is None or self._inner() is not inner:
            self._inner, self._work = ref(inner), Work()
        work = inner.work
        done = Work(*(now - before for now, before in zip(work, self._work, strict=True)))
        self.records.append(
            Record(
                outer=len(self.records),
                objective=result.objective,
                moment_gap=result.gap,
                violation=result.violation,
                iterations=result.iterations,
                seconds=self.seconds,
                belief_change=belief_change,
                weight_change=weight_change,
                linearisation_change=linearisation_change,
                **done._asdict(),
            )
        )
        self._work = work

    def solve(self, inner: InnerSolver, junction: JunctionData | None = None) -> Solution:
        """The solution of a learner that solves one problem, from its initial weights."""
        result = inner.solve(self.initial_weights(), tolerance=self.gap_tolerance, max_iterations=self.iterations_left)
        self.record(result, inner)
        return self.finish(inner, result.weights, result.status, junction)

    def finish(
        self,
        inner: InnerSolver,
        weights: Vector,
        status: Status,
        junction: JunctionData | TightenedData | None = None,
    ) -> Solution:
        """The solution at ``weights``."""
        dual, evaluation = inner.dual, inner.evaluate(weights)
        reader = dual.tables()
        tables: Sequence[Sequence[Floats]]
        if reader is None:
            tables = NoBeliefs("learning from a folder of packed data")
        elif junction is not None:
            tables = BeliefTables(junction.original, junction.reader(reader))
        else:
            tables = BeliefTables(dual.data, reader)
        solution = self.solution(dual, evaluation, weights, status, tables, dual.state())
        ended = status in (Status.CONVERGED, Status.STALLED, Status.UNRELIABLE)
        if ended and self.settings.prior.leaves_free:
            weights = solution.weights
            status = Status.UNBOUNDED if self._is_unbounded(dual.in_memory_at(weights), weights) else status
            solution = replace(solution, status=status, seconds=self.seconds)  # the certificate took its time
        return solution

    def solution(
        self,
        dual: Any,
        evaluation: Evaluation,
        weights: Vector,
        status: Status,
        tables: Sequence[Sequence[Floats]],
        state: Any = None,
    ) -> Solution:
        """What the last evaluation of a dual, at ``weights``, and the history add up to."""
        l1, on_device, weights = self.settings.prior.l1, weights, on_host(weights)
        return Solution(
            weights=weights,
            status=status,
            history=tuple(self.records),
            objective=evaluation.value + l1 * float(np.abs(weights).sum()),
            moment_gap=largest_slope(on_device, evaluation.gradient, l1),
            violation=dual.largest_violation(),
            beliefs=tables,
            method=self.name,
            seconds=self.seconds,
            evaluations=sum(record.evaluations for record in self.records),
            state=state,
        )

    def _is_unbounded(self, dual: Any, weights: Floats) -> bool:
        """Whether no finite weights are optimal, by a certificate (:mod:`bactrian.camel.recession`)."""
        communicator = self.settings.communicator
        free = np.broadcast_to(np.equal(self.settings.prior.precision, 0.0), weights.shape)
        empirical = dual.empirical[free]
        states = collect_states(dual.parts_at(weights), free, communicator)
        if states is not None and is_inside(states, empirical, communicator):
            return False
        if self._path_recedes(dual, weights, free):
            return True
        seconds = max(1.0, self.settings.deadline.at - time.perf_counter())
        return states is not None and has_direction(states, empirical, communicator, seconds)

    def _path_recedes(self, dual: Any, weights: Floats, free: Bools) -> bool:
        """Whether the last leg of the path, or what rounding makes of it, is a direction of recession."""
        leg = np.where(free, weights - self._path[0] if self._path else weights, 0.0)
        length = float(np.abs(leg).max(initial=0.0))
        dual.remember()
        if not length > 0.0:
            return False
        leg = leg / length
        for direction in (leg, *(np.rint(parts * leg) / parts for parts in _PARTS)):
            dual.evaluate(
                weights + _FURTHER * direction, tolerance=self.accuracy, max_sweeps=_SWEEPS if dual.consistency else 0
            )
            if certifies(dual.parts_since(), direction, dual.empirical, self.settings.communicator):
                return True
            dual.recall()
        return False


class NoBeliefs(Sequence[Sequence[Floats]]):
    """In place of belief tables; says what to do instead."""

    def __init__(self, what: str) -> None:
        self._what = what

    def _refuse(self) -> NoReturn:
        raise ValueError(f"{self._what} has no cluster beliefs; call bactrian.infer at solution.weights")

    def __len__(self) -> int:
        self._refuse()

    def __getitem__(self, instance):  # type: ignore[no-untyped-def]
        self._refuse()
