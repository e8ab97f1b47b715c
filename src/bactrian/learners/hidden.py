"""Learning where some states were not seen: marginal likelihood, a difference of two duals.

With x the states that were seen and z the others, -log p(x; w) = log Z(w) - log Z(x, w): the dual of the free model
minus that of the model clamped to x, whose states that were seen not to be are forbidden. By the envelope theorem its
gradient is a difference of expected features,

    E[f; w] - E[f | x; w] + w / sigma^2

so the profiled solver minimises it as it does one dual: every evaluation passes the messages of both models, which stay
warm.

The difference is not convex in w. The concave-convex procedure, which with exact inference is EM (Dempster, Laird and
Rubin, J. R. Stat. Soc. B 39(1), 1977), linearises the clamped dual in w as well (Schwing et al., Efficient structured
prediction with latent variables for general graphical models, ICML 2012). It has the same fixed points, and where
little was seen takes hundreds of steps for what quasi-Newton steps on the difference do in tens. So it is used only
where the free model is relinearised anyway: with Bethe's entropy, both at the same time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bactrian.arrays import Bools, Floats, Ints
from bactrian.camel.camel import Camel
from bactrian.camel.dual import Dual, Evaluation, larger
from bactrian.camel.entropy import Carving
from bactrian.camel.messages import Messages
from bactrian.camel.prior import Prior
from bactrian.camel.profiled import Profiled, ProfiledObjective
from bactrian.camel.run import InnerResult, Run, Settings
from bactrian.camel.schedule import SCHEDULE
from bactrian.engines.numba.arithmetic import WIDEST
from bactrian.engines.numba.layout import Layout
from bactrian.engines.numba.threads import Workers
from bactrian.graphs.junction import on_junction_trees
from bactrian.graphs.packed import Holes, PackedData
from bactrian.graphs.scores import ScoreMap
from bactrian.learners.likelihood import Likelihood, is_forest
from bactrian.solvers.lbfgs import pseudo_gradient
from bactrian.solvers.solution import Solution

#: Size of the random weights that tell the states of variables apart which were never seen.
_SPREAD = 0.1
_MAX_SWEEPS = 1_000
#: Log-odds at which a state may as well be forbidden: its belief, exp(-45) = 3e-20, is lost in rounding.
_NEGLIGIBLE = 45.0


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
        learner, holes = self.learner, data.holes
        assert holes is not None
        if settings.communicator.size > 1:
            raise ValueError("learning with unknown states (-1) runs on one rank")
        run = Run(replace(settings, start=_start(data, settings)), data, self.name)
        free, clamped = replace(data, empirical=holes.complete, holes=None), _clamped(holes)
        if isinstance(learner, Camel):
            dual = Dual(free, learner.carving(free, settings), settings.prior, workers)
            if settings.state is not None:
                dual.take_up(settings.state)
            seen = _clamped_dual(clamped, learner.carving(clamped, settings).whole, dual, run, workers)
            linearised = dual.relinearises
            # A linearised clamped dual must be settled, or the difference is no bound: by belief propagation.
            passes = Likelihood("lbp", settings.tolerance, _MAX_SWEEPS) if linearised else None
            accuracy = run.accuracy if linearised else SCHEDULE.loosest  # follows the gap down
            objective = passes.objective(seen, run) if passes else ProfiledObjective(seen, accuracy=accuracy)
            difference = _Difference(ProfiledObjective(dual, accuracy=accuracy), objective, linearised=linearised)
            inner = _ProfiledDifference(dual, run, difference)
            weights, status = learner.relinearise(run, inner, learner.linearisation(dual), run.initial_weights())
            return run.finish(inner, weights, status)
        junction = None
        if learner.inference == "exact" and not is_forest(data):
            junction, clamped = on_junction_trees(free), on_junction_trees(clamped).packed
            free = junction.packed
        carving = learner.carving(settings)
        dual = Dual(free, carving, settings.prior, workers)
        seen = _clamped_dual(clamped, carving(clamped), dual, run, workers)
        difference = _Difference(learner.objective(dual, run), learner.objective(seen, run))
        return run.solve(_ProfiledDifference(dual, run, difference), junction)


def _clamped(holes: Holes) -> PackedData:
    """The model clamped to what was seen."""
    scores = _ClampedScores(holes.data.scores, holes.forbidden)
    return replace(holes.data, scores=scores, empirical=np.zeros(scores.n_weights))


def _clamped_dual(data: PackedData, carving: Carving, free: Dual, run: Run, workers: Workers) -> Dual:
    """The dual of a clamped model, evaluated after the free one, with what makes that faster where it can be had."""
    if isinstance(data.scores, _ClampedScores):
        data.scores.penalise(data.layout, carving)
        if data.layout is free.data.layout:
            data.scores.free = free.part
    dual = Dual(data, carving, Prior(None), workers)
    dual.heed(run.settings.deadline)
    return dual


class _Difference:
    """The free dual minus the clamped one, as the profiled solver sees an objective.

    Where it is ``linearised``, the clamped dual is a linear function of the weights until :meth:`look_again`.
    """

    def __init__(self, free: Any, clamped: Any, *, linearised: bool = False) -> None:
        self._free, self._clamped, self.linearised = free, clamped, linearised
        self._seen: tuple[Floats, Evaluation] | None = None
        self.last: Evaluation | None = None
        self.weights: Any = None  # of the last evaluation
        self.sweeps = 0
        self.hopeless = self._settled = False

    def look_again(self) -> None:
        """Take the clamped dual anew where it is evaluated next."""
        self._seen = None

    @property
    def accuracy(self) -> float:
        """Of messages of both."""
        accuracy: float = self._free.accuracy
        return accuracy

    @accuracy.setter
    def accuracy(self, accuracy: float) -> None:
        self._free.accuracy = self._clamped.accuracy = accuracy

    @property
    def evaluations(self) -> int:
        """Evaluations of each."""
        count: int = self._free.evaluations
        return count

    @property
    def failures(self) -> int:
        """Evaluations of either at which messages did not converge."""
        return int(self._free.failures + self._clamped.failures)

    @property
    def converged(self) -> bool:
        """Whether messages of both did the last time; on trees two sweeps are exact."""
        return all(
            side.converged or (side.dual.is_forest and isinstance(side, ProfiledObjective))
            for side in (self._free, self._clamped)
        )

    def accept(self) -> None:
        """Take the last point for the best."""
        self._free.accept()
        self._clamped.accept()

    def forget(self) -> None:
        """Forget the best point."""
        self._free.forget()
        self._clamped.forget()

    def value_and_gradient(self, weights: Floats) -> tuple[float, Floats]:
        """The difference and its gradient."""
        self.forget()  # a side whose value rises is no worse for it, and its messages are the nearest
        self._free.value_and_gradient(weights)
        if self._seen is None or not self.linearised:
            self._clamped.value_and_gradient(weights)
            self._seen = weights.copy(), self._clamped.last
        there, clamped = self._seen
        free = self._free.last
        self._free.dual.empirical = self._free.dual.data.empirical + clamped.gradient  # as the certificate asks for it
        self.last = Evaluation(
            free.value - clamped.value - float(clamped.gradient @ (weights - there)),
            free.gradient - clamped.gradient,
            larger(free.violation, clamped.violation),
            free.sweeps + clamped.sweeps,
            larger(free.residual, clamped.residual),
        )
        self.weights, self.sweeps = weights, self.sweeps + self.last.sweeps
        self._settled |= self.converged
        # Where time runs out amid sweeps the difference may be anything, and must not pass for a better point.
        cut_short = self._settled and self._free.dual.late and not self.converged
        return (np.inf if cut_short else self.last.value), self.last.gradient


class _ProfiledDifference(Profiled):
    """The profiled solver of a difference, whose value is no bound before messages of both models have settled."""

    objective: Any

    @property
    def reliable(self) -> bool:
        """Whether messages of both converged at the last evaluation."""
        return bool(self.objective.converged)

    def solve(self, weights: Floats, **limits: Any) -> InnerResult:
        """See :class:`bactrian.camel.run.InnerSolver`; the gap is that of the difference itself."""
        result = super().solve(weights, **limits)
        if not self.objective.linearised:
            return result
        evaluation = self.evaluate(result.weights)
        gap = np.abs(pseudo_gradient(result.weights, evaluation.gradient, self.run.settings.prior.l1)).max(initial=0.0)
        return replace(result, objective=evaluation.value, gap=float(gap))

    def evaluate(self, weights: Floats) -> Evaluation:
        """See :class:`bactrian.camel.run.InnerSolver`."""
        self.objective.look_again()
        return super().evaluate(weights)


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
            weights = random_weights(weights.size, settings.seed)
    return weights


def random_weights(n: int, seed: int) -> Floats:
    """Weights at which states of variables that were never seen differ a little."""
    weights: Floats = _SPREAD * np.random.default_rng(seed).normal(size=n)
    return weights


class _ClampedScores:
    """Scores of a model with some states of its hubs forbidden.

    A score of -inf bars the fastest routes. Among pairs of number 1 a penalty P does the same: a message m = E'u varies
    over its hub's states by at most exp(R), R the range of its table, so that the belief of a forbidden state is at
    most exp((sum R - P) / (kappa + degree)) of that of an allowed one, which is made less than any rounding.
    """

    def __init__(self, original: ScoreMap, forbidden: Bools) -> None:
        self._original, self._forbidden, self.n_weights = original, np.flatnonzero(forbidden), original.n_weights
        self._penalty: tuple[Ints, Floats, Floats] | None = None
        self.free: Messages | None = None  #: of the same instances, whose scores were made last at the same weights

    def penalise(self, layout: Layout, carving: Carving) -> None:
        """Use penalties where all clusters are pairs, each an equal share of the entropy."""
        if (layout.cluster_rows > 0).all() and (carving.cluster == 1.0).all():
            degree = np.diff(layout.hub_links)
            hub = np.repeat(np.arange(layout.n_hubs), np.diff(layout.hub_offset))
            allowed = np.ones(hub.size, dtype=bool)
            allowed[self._forbidden] = False
            hub_of_allowed, first = np.unique(hub[allowed], return_index=True)
            reference = np.zeros(layout.n_hubs, dtype=np.int64)
            reference[hub_of_allowed] = np.flatnonzero(allowed)[first]
            mine = hub[self._forbidden]
            self._penalty = reference[mine], _NEGLIGIBLE * (carving.hub + degree)[mine], degree[mine].astype(np.float64)

    def scores(self, weights: Floats, log_entries: Floats, hub_scores: Floats, workers: Workers) -> None:
        """See :class:`bactrian.graphs.scores.ScoreMap`."""
        if self.free is not None and self.free.tables.log_entries.size == log_entries.size:
            log_entries[:] = self.free.tables.log_entries
            np.add(self.free.tables.hub_scores, self.free.linearisation, out=hub_scores)
        else:
            self._original.scores(weights, log_entries, hub_scores, workers)
        if self._penalty is not None and log_entries.size:
            reference, base, degree = self._penalty
            penalty = base + degree * (log_entries.max() - log_entries.min())
            if penalty.max(initial=0.0) < WIDEST / 2:
                hub_scores[self._forbidden] = hub_scores[reference] - penalty
                return
        hub_scores[self._forbidden] = -np.inf

    def moments(self, counts: Floats, hub_counts: Floats, workers: Workers, out: Floats | None = None) -> Floats:
        """See :class:`bactrian.graphs.scores.ScoreMap`."""
        return self._original.moments(counts, hub_counts, workers, out)

    def base_score(self, counts: Floats, hub_counts: Floats) -> float:
        """See :class:`bactrian.graphs.scores.ScoreMap`."""
        return self._original.base_score(counts, hub_counts)
