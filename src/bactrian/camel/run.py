"""One run of a learner: settings, limits, progress and result, and the interface of inner solvers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, NoReturn, Protocol
from weakref import ref

import numpy as np

from bactrian.arrays import Floats
from bactrian.camel.accuracy import Demands
from bactrian.camel.dual import Evaluation
from bactrian.camel.parts import Vector
from bactrian.camel.prior import Prior
from bactrian.graphs.junction import JunctionData
from bactrian.graphs.packed import BeliefTables
from bactrian.graphs.triplets import TightenedData
from bactrian.parallel import Signals, total
from bactrian.parallel.threads import Context
from bactrian.solvers.lbfgs import largest_slope, on_host
from bactrian.solvers.solution import Progress, Record, Solution, Status, goes_in_circles


@dataclass(frozen=True)
class Settings:
    """Options of :func:`bactrian.learn` that every learner shares."""

    prior: Prior
    tolerance: float
    max_iterations: int
    max_relinearisations: int
    seed: int = 0
    start: Floats | None = None
    state: Any = None
    gap_tolerance: float | None = None
    gain_tolerance: float = 0.0  #: share of an exact objective that ten iterations must gain for learning to go on
    is_noise: Callable[[Any], bool] | None = None  #: whether a part's moments are matched as well as the data tells


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

    def relinearised(self, change: float) -> None:
        """After an update of g at beliefs that had changed so much: make the next change mean something."""

    def evaluate(self, weights: Vector) -> Evaluation:
        """The dual at ``weights``, as accurately as the run demands."""


class Run:
    """Counts work against the limits, reports progress and keeps the history."""

    def __init__(self, settings: Settings, context: Context, data: Any, name: str) -> None:
        self.settings, self.context, self.data, self.name = settings, context, data, name
        total_weight = total(context.communicator, data.total_weight)
        self.demands = Demands.of(settings.tolerance, settings.gap_tolerance, settings.prior.curvature, total_weight)
        self.interrupted: Status | None = None
        #: Of two approximations' difference: the objective below which they mean nothing. Circles end it, too.
        self.least_objective: float | None = None
        self.records: list[Record] = []
        self.signals = Signals(lambda: context.deadline.has_passed)
        self._iterations = 0
        #: Whose work was counted before; weakly, for it knows this run, and the data would outlive both.
        self._inner: ref[InnerSolver] | None = None
        self._work = Work()
        self._path: list[Floats] = []

    @property
    def seconds(self) -> float:
        """Since learning began."""
        return time.perf_counter() - self.context.begun

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
        if self.context.callback is not None:
            progress = Progress(
                len(self.records), self._iterations, objective, gap, violation, self.seconds, on_host(weights)
            )
            answer = self.context.callback(progress)
            if isinstance(answer, bool | np.bool_) and answer:
                self.signals.stop = True
        self.is_late()
        if self.interrupted is None and self.iterations_left <= 0:
            self.interrupted = Status.ITERATION_LIMIT
        return self.interrupted is not None

    def is_over(self) -> bool:
        """Whether the run must stop; looks at the clock, since solvers also work between iterations."""
        self.is_late()
        return self.interrupted is not None

    def is_late(self) -> bool:
        """Note what stops the run; whether its time is up, so that message passing may have been cut short."""
        # Clocks and callbacks differ from rank to rank: what stops one stops all, once all have heard of it.
        stopped, late = self.signals.own() if self.context.communicator.size == 1 else self.signals.seen
        if stopped:
            self.interrupted = Status.STOPPED
        elif late and self.interrupted is None:
            self.interrupted = Status.TIME_LIMIT
        return late

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
        if self.least_objective is not None and self.interrupted is None:
            if result.objective < self.least_objective:
                self.interrupted = Status.DIVERGED
            elif goes_in_circles(self.records):
                self.interrupted = Status.ITERATION_LIMIT

    def solve(self, inner: InnerSolver, junction: JunctionData | None = None) -> Solution:
        """The solution of a learner that solves one problem, from its initial weights."""
        result = inner.solve(self.initial_weights(), tolerance=self.demands.gap, max_iterations=self.iterations_left)
        self.record(result, inner)
        return self.finish(inner, result.weights, result.status, junction)

    def finish(
        self, inner: InnerSolver, weights: Vector, status: Status, junction: JunctionData | TightenedData | None = None
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
        solution = self.solution(evaluation, weights, status, tables, dual.state())
        ended = status in (Status.CONVERGED, Status.STALLED, Status.UNRELIABLE)
        if ended and self.settings.prior.leaves_free:
            leg = solution.weights - self._path[0] if self._path else solution.weights
            status = Status.UNBOUNDED if dual.is_unbounded(weights, leg) else status
            solution = replace(solution, status=status, seconds=self.seconds)  # the certificate took its time
        return solution

    def solution(
        self,
        evaluation: Evaluation,
        weights: Vector,
        status: Status,
        tables: Sequence[Sequence[Floats]],
        state: Any = None,
    ) -> Solution:
        """What the last evaluation, at ``weights``, and the history add up to."""
        l1, on_device, weights = self.settings.prior.l1, weights, on_host(weights)
        return Solution(
            weights=weights,
            status=status,
            history=tuple(self.records),
            objective=evaluation.value + l1 * float(np.abs(weights).sum()),
            moment_gap=largest_slope(on_device, evaluation.gradient, l1),
            violation=evaluation.violation,
            beliefs=tables,
            method=self.name,
            seconds=self.seconds,
            evaluations=sum(record.evaluations for record in self.records),
            state=state,
        )


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
