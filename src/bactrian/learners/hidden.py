"""Learning where some states were not seen: marginal likelihood, a difference of two duals.

With x the states that were seen and z the others, -log p(x; w) = log Z(w) - log Z(x, w): the dual of the free model
minus that of the model clamped to x. Both are convex in w where their entropies are concave, so the concave-convex
procedure applies to their difference, as it does to Bethe's entropy: linearise the clamped one at w_t, whose slope is
E[f | x; w_t], and minimise

    D(w) - w . E[f | x; w_t] + |w|^2 / 2 sigma^2

With exact inference this is the EM algorithm (Dempster, Laird and Rubin, J. R. Stat. Soc. B 39(1), 1977); Schwing et
al. (Efficient structured prediction with latent variables for general graphical models, ICML 2012) do the same with
approximate entropies. The slope of the whole at w_(t+1), where the last problem is solved, is the difference of the
expected features, E[f | x; w_t] - E[f | x; w_(t+1)]: the moment gap. Messages of both models stay warm. Steps are
extrapolated (:mod:`bactrian.solvers.anderson`) where that lowers the objective.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bactrian.arrays import Bools, Floats
from bactrian.camel.camel import Camel
from bactrian.camel.dual import Dual
from bactrian.camel.entropy import carve
from bactrian.camel.prior import Prior
from bactrian.camel.profiled import ProfiledObjective
from bactrian.camel.run import Settings
from bactrian.engines.numba.threads import Workers
from bactrian.graphs.junction import on_junction_trees
from bactrian.graphs.packed import Holes, PackedData
from bactrian.graphs.scores import ScoreMap
from bactrian.learners.likelihood import Likelihood, PropagatedObjective, is_forest
from bactrian.solvers.anderson import Anderson
from bactrian.solvers.solution import Callback, Progress, Record, Solution, Status

#: Inner problems are solved to this part of the gap that the last step left.
_PART = 0.1
#: The first one, per sample.
_LOOSEST = 1e-2
#: Size of the random weights that tell the states of variables apart which were never seen.
_SPREAD = 0.1
#: Steps in a row that do not lower the objective after which learning gives up.
_MOST_IDLE = 10
_MAX_SWEEPS = 1_000


@dataclass(frozen=True)
class Hidden:
    """A learner of the CAMEL family, or a likelihood, on data with unknown states."""

    learner: Any

    def __post_init__(self) -> None:
        learner = self.learner
        if isinstance(learner, Camel):
            if learner.start == "empirical":
                raise ValueError(f"{learner.name} starts at observed marginals, and some states are unknown (-1)")
            if not learner.consistency:
                raise ValueError(
                    f"{learner.name} takes each cluster by itself, so nothing says how clusters agree on an unknown "
                    "state (-1); choose 'camel0', which makes them agree"
                )
            if learner.tighten:
                raise ValueError("tighten does not support unknown states (-1); use Camel without it")
        elif not isinstance(learner, Likelihood):
            name = getattr(learner, "name", type(learner).__name__)
            raise ValueError(
                f"{name} looks at the state of every variable, and some are unknown (-1); choose 'exact', 'cccp', "
                "'camel0', 'convex', 'trw' or 'lbp'"
            )

    @property
    def name(self) -> str:
        """That of the learner."""
        name: str = self.learner.name
        return name

    def learn(self, data: PackedData, settings: Settings, workers: Workers) -> Solution:
        """Fit the weights of packed data."""
        holes = data.holes
        assert holes is not None
        if settings.communicator.size > 1:
            raise ValueError("learning with unknown states (-1) runs on one rank")
        clamped = _Clamped(self.learner, holes, settings, workers)
        search = _Search(self.learner, replace(data, holes=None), clamped, settings, workers)
        return search.run(_start(data, settings))


def _start(data: PackedData, settings: Settings) -> Floats:
    """Zero, or random weights where some variable was never seen: at zero all of its states would stay alike."""
    if settings.start is not None:
        return settings.start.copy()
    holes = data.holes
    assert holes is not None
    weights = np.zeros(data.n_weights)
    if data.generative and not holes.complete.any():
        layout = data.layout
        forbidden = holes.forbidden.reshape(-1, layout.n_hub_states).any(axis=0)
        if not np.logical_or.reduceat(forbidden, layout.hub_offset[:-1]).all():
            weights = _SPREAD * np.random.default_rng(settings.seed).normal(size=weights.size)
    return weights


class _ClampedScores:
    """Scores of a model with some states of its hubs forbidden."""

    def __init__(self, original: ScoreMap, forbidden: Bools) -> None:
        self._original, self._forbidden, self.n_weights = original, forbidden, original.n_weights

    def scores(self, weights: Floats, log_entries: Floats, hub_scores: Floats, workers: Workers) -> None:
        """See :class:`bactrian.graphs.scores.ScoreMap`."""
        self._original.scores(weights, log_entries, hub_scores, workers)
        hub_scores[self._forbidden] = -np.inf

    def moments(self, counts: Floats, hub_counts: Floats, workers: Workers, out: Floats | None = None) -> Floats:
        """See :class:`bactrian.graphs.scores.ScoreMap`."""
        return self._original.moments(counts, hub_counts, workers, out)

    def base_score(self, counts: Floats, hub_counts: Floats) -> float:
        """See :class:`bactrian.graphs.scores.ScoreMap`."""
        return self._original.base_score(counts, hub_counts)


class _Clamped:
    """The model clamped to what was seen: log Z(x, w) and E[f | x; w] under a learner's entropy."""

    def __init__(self, learner: Any, holes: Holes, settings: Settings, workers: Workers) -> None:
        self._complete = holes.complete
        data = replace(holes.data, scores=_ClampedScores(holes.data.scores, holes.forbidden))
        exact = isinstance(learner, Likelihood) and learner.inference == "exact"
        if exact and not is_forest(data):
            data = on_junction_trees(data).packed
        entropy = learner.entropy if isinstance(learner, Camel) else learner.inference
        entropy = "bethe" if entropy in ("exact", "lbp") else entropy
        carving = carve(data, entropy, settings.seed, settings.deadline).whole
        data = replace(data, empirical=np.zeros(data.n_weights))
        dual = Dual(data, carving, Prior(None), workers)
        dual.heed(settings.deadline)
        self._exact = exact
        self._objective: Any
        if exact:
            self._objective = ProfiledObjective(dual, accuracy=settings.tolerance, tree_sweeps=2)
        elif dual.has_saddle:
            self._objective = PropagatedObjective(
                dual,
                schedule="residual",
                accuracy=settings.tolerance,
                max_sweeps=_MAX_SWEEPS,
                tame=False,
                deadline=settings.deadline,
            )
        else:
            self._objective = ProfiledObjective(dual, accuracy=settings.tolerance)

    def at(self, weights: Floats) -> tuple[float, Floats]:
        """log Z(x, w) of the incomplete rows, with w.f of the complete ones, and its gradient."""
        self._objective.forget()
        value, moments = self._objective.value_and_gradient(weights)
        return value + float(weights @ self._complete), moments + self._complete

    @property
    def reliable(self) -> bool:
        """Whether messages converged the last time; on trees two sweeps are exact."""
        return self._exact or bool(self._objective.converged)


@dataclass(frozen=True)
class _Point:
    """Weights, what was seen in the light of them, and the free model there."""

    weights: Floats
    log_seen: float  #: log Z(x, w)
    seen: Floats  #: E[f | x; w]
    solution: Solution | None = None
    objective: float = np.inf


class _Search:
    """Minimises the difference of both duals."""

    def __init__(self, learner: Any, data: PackedData, clamped: _Clamped, settings: Settings, workers: Workers) -> None:
        self._learner, self._data, self._clamped, self._settings, self._workers = (
            learner,
            data,
            clamped,
            settings,
            workers,
        )
        self._scale = max(1.0, data.total_weight)
        self._records: list[Record] = []
        self._iterations = 0
        self._stopped = False  # a problem that is solved in the same step says that it converged
        self._begun = time.perf_counter()

    def run(self, weights: Floats) -> Solution:
        """Alternate between both models until what was seen no longer changes."""
        settings = self._settings
        point = self._seen_at(weights)
        anderson = Anderson()
        tolerance = max(_LOOSEST, settings.tolerance)
        state, best, idle = settings.state, np.inf, 0
        for outer in range(settings.max_relinearisations + 1):
            solution = self._solve(point, tolerance, state)
            state = solution.state
            image = self._seen_at(solution.weights, solution, point)
            gap = float(np.abs(image.seen - point.seen).max(initial=0.0)) + solution.moment_gap
            self._record(outer, solution, image.objective, gap, image.weights - point.weights)
            status = Status.STOPPED if self._stopped else solution.status
            if status in (Status.STOPPED, Status.TIME_LIMIT, Status.UNBOUNDED):
                return self._result(solution, image.objective, gap, status)
            sharp = tolerance <= settings.tolerance
            if sharp and gap <= settings.tolerance * self._scale:
                status = status if self._clamped.reliable else Status.UNRELIABLE
                return self._result(solution, image.objective, gap, status)
            if self._iterations >= settings.max_iterations:
                break
            idle = 0 if image.objective < best else idle + 1
            best = min(best, image.objective)
            if idle == _MOST_IDLE:
                reliable = self._clamped.reliable and status is not Status.UNRELIABLE
                return self._result(solution, image.objective, gap, Status.STALLED if reliable else Status.UNRELIABLE)
            tolerance = max(settings.tolerance, min(tolerance, _PART * gap / self._scale))
            step = image.weights - point.weights
            further = anderson.next(image.weights, step, np.ones_like(step))
            point = image
            if further is not None:
                ahead = self._evaluated(further, state)
                point = ahead if ahead.objective <= image.objective else image
        return self._result(solution, image.objective, gap, Status.ITERATION_LIMIT)

    def _seen_at(self, weights: Floats, solution: Solution | None = None, before: _Point | None = None) -> _Point:
        """The clamped model at ``weights``; the objective where they solve the problem ``before``."""
        value, seen = self._clamped.at(weights)
        objective = np.inf
        if solution is not None and before is not None:
            objective = solution.objective + float(weights @ before.seen) - value
        return _Point(weights, value, seen, solution, objective)

    def _evaluated(self, weights: Floats, state: Any) -> _Point:
        """Both models at ``weights``, without a step."""
        point = self._seen_at(weights)
        solution = self._solve(point, self._settings.tolerance, state, max_iterations=0)
        return replace(point, objective=solution.objective + float(weights @ point.seen) - point.log_seen)

    def _solve(self, point: _Point, tolerance: float, state: Any, max_iterations: int | None = None) -> Solution:
        """The free model with the moments that ``point`` expects."""
        settings = self._settings
        left = settings.max_iterations - self._iterations if max_iterations is None else max_iterations
        inner = replace(
            settings,
            tolerance=tolerance,
            max_iterations=left,
            start=point.weights,
            state=state,
            callback=None if settings.callback is None or max_iterations == 0 else self._callback(settings.callback),
        )
        solution: Solution = self._learner.learn(replace(self._data, empirical=point.seen), inner, self._workers)
        return solution

    def _callback(self, callback: Callback) -> Callback:
        """The caller's, with iterations counted from the start."""
        done, outer = self._iterations, len(self._records)

        def counted(progress: Progress) -> Any:
            seconds = time.perf_counter() - self._begun
            answer = callback(replace(progress, outer=outer, iteration=done + progress.iteration, seconds=seconds))
            self._stopped = isinstance(answer, bool | np.bool_) and bool(answer)
            return answer

        return counted

    def _record(self, outer: int, solution: Solution, objective: float, gap: float, step: Floats) -> None:
        history: Sequence[Record] = solution.history
        self._iterations += sum(record.iterations for record in history)
        self._records.append(
            Record(
                outer=outer,
                objective=objective,
                moment_gap=gap,
                violation=solution.violation,
                iterations=sum(record.iterations for record in history),
                evaluations=sum(record.evaluations for record in history),
                sweeps=sum(record.sweeps for record in history),
                seconds=time.perf_counter() - self._begun,
                weight_change=float(np.abs(step).max(initial=0.0)),
                failures=sum(record.failures for record in history),
            )
        )

    def _result(self, solution: Solution, objective: float, gap: float, status: Status) -> Solution:
        return replace(
            solution,
            status=status,
            objective=objective,
            moment_gap=gap,
            history=tuple(self._records),
            seconds=time.perf_counter() - self._begun,
            evaluations=sum(record.evaluations for record in self._records),
        )
