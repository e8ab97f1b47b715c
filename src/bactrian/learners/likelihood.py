"""Maximum (conditional) likelihood, with exact inference or with message passing inside.

``exact``: on an acyclic Bethe graph two sweeps of belief propagation are exact (forward-backward, on a chain); other
models are rewritten on a junction tree of their clusters, where the same two sweeps are exact.

``lbp``, ``trw`` and ``convex`` are the classic double loop of learning (Section 3 of the paper). Every evaluation runs
inference at the weights to convergence, warm-started from the last messages; the approximate log Z and marginals give
value and gradient. With Bethe's numbers and residual scheduling this is the paper's LBP (Elidan, McGraw and Koller
2006); with a concave entropy it is Wainwright's (JMLR 7, 2006). Where inference does not converge the gradient means
little: such evaluations are counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from bactrian.arrays import Floats
from bactrian.camel.accuracy import Accuracy
from bactrian.camel.dual import Dual
from bactrian.camel.entropy import Carving, carve
from bactrian.camel.profiled import Profiled, ProfiledObjective
from bactrian.camel.run import Run, Settings
from bactrian.camel.units import Learned
from bactrian.engines.memory import in_memory
from bactrian.engines.numba.schedules import CONVERGED
from bactrian.errors import check_choice, check_number
from bactrian.graphs.junction import JunctionData, on_junction_trees
from bactrian.graphs.packed import PackedData
from bactrian.graphs.scores import StructuredScores
from bactrian.inference.propagation import settle
from bactrian.parallel.threads import Context
from bactrian.solvers.solution import Solution

#: Evaluations in a row at which belief propagation did not converge, after which learning gives up: it would take a
#: thousand steps along gradients that mean little. Set by tests/attack.
MOST_UNCONVERGED = 300
#: What to choose for data in files instead.
_ADVICE = "choose a learner of the CAMEL family, such as 'cccp' or 'camel0', or 'convex' or 'trw'"


@dataclass(frozen=True)
class Likelihood:
    """Maximum likelihood; ``inference`` computes the partition function and marginals.

    Parameters
    ----------
    inference : {"exact", "lbp", "trw", "convex"}
        Exact inference, on trees or on junction trees; residual belief propagation (also called ``"rbp"``, as in
        :func:`bactrian.infer`); tree-reweighted or convex message passing. The last three run at every evaluation,
        warm-started. If they do not converge at the solution, the status is ``UNRELIABLE``; the history counts such
        evaluations as ``failures``.
    message_tolerance : float
        Change of a message (residual schedule) or marginal at which message passing stops; smaller where the
        tolerance on the gradient demands it.
    max_sweeps : int
        Maximum number of sweeps of message passing in one evaluation.
    """

    inference: str = "exact"
    message_tolerance: float = 1e-8
    max_sweeps: int = 500

    def __post_init__(self) -> None:
        if self.inference == "rbp":
            object.__setattr__(self, "inference", "lbp")
        check_choice("inference", self.inference, ("exact", "lbp", "trw", "convex"))
        check_number("message_tolerance", self.message_tolerance, positive=True)
        check_number("max_sweeps", self.max_sweeps, least=1, whole=True)

    @property
    def name(self) -> str:
        """The shorthand of this learner; "trw" and "convex" alone are short for CAMEL with these entropies."""
        return self.inference if self.inference in ("exact", "lbp") else f"{self.inference} likelihood"

    def learn(self, data: Any, settings: Settings, context: Context) -> Solution:
        """Fit the weights of packed data."""
        if not (data.in_memory or self.inference == "exact"):
            raise ValueError(f"{self.name} does not learn from a folder of packed data; {_ADVICE}")
        run = Run(settings, context, data, self.name)
        junction = self.junction(data) if data.in_memory else None
        data = data if junction is None else junction.packed
        dual = Dual(data, partial(self.carving, context=context), settings.prior, context)
        if not (data.in_memory or dual.is_forest):
            raise ValueError(f"exact does not learn graphs with loops from a folder of packed data; {_ADVICE}")
        learned = None
        alone = self.inference == "exact" and data.in_memory and context.communicator.size == 1
        if alone and isinstance(data.scores, StructuredScores) and not settings.prior.l1:
            learned = Learned(data, settings.prior, run.initial_weights(), context.workers, dual.vectors)
        return run.solve(Profiled(dual, run, self.objective(dual, self.accuracy(run)), learned), junction)

    def junction(self, data: PackedData, trees: JunctionData | None = None) -> JunctionData | None:
        """The junction trees on which messages are passed, ``trees`` where they are known.

        None where messages are passed on the data's own graphs.
        """
        return None if self.inference != "exact" or _is_forest(data) else trees or on_junction_trees(data)

    def carving(self, data: PackedData, context: Context) -> Carving:
        """The counting numbers under which messages are passed."""
        entropy = "bethe" if self.inference in ("exact", "lbp") else self.inference
        return carve(data, entropy, context.deadline).whole

    def accuracy(self, run: Run) -> Accuracy:
        """How exact messages must be."""
        demands = run.demands
        start = demands.messages if self.inference == "exact" else min(self.message_tolerance, demands.gradient)
        return Accuracy(demands, start=start)

    def objective(self, dual: Dual, accuracy: Accuracy) -> ProfiledObjective:
        """A dual as a function of the weights alone, its messages passed as this learner does."""
        if self.inference == "exact":
            return ProfiledObjective(dual, accuracy, tree_sweeps=2)
        bethe = self.inference == "lbp"
        schedule = "residual" if bethe else "sequential"
        return PropagatedObjective(dual, accuracy, schedule=schedule, max_sweeps=self.max_sweeps, tame=not bethe)


def _is_forest(data: PackedData) -> bool:
    """Whether two sweeps are exact; no message tells a cluster without links what others say of its variables."""
    has_links = (np.diff(data.layout.cluster_links) > 0).all()
    return bool(data.layout.instance_is_tree.all() and has_links and not data.hub_virtual.any())


class PropagatedObjective(ProfiledObjective):
    """Negative penalised likelihood of w by message passing under the dual's counting numbers.

    ``hopeless`` says that messages have not converged for so long that further steps are not worth their time.
    """

    def __init__(self, dual: Dual, accuracy: Accuracy, *, schedule: str, max_sweeps: int, tame: bool) -> None:
        super().__init__(dual, accuracy, max_sweeps=max_sweeps)
        self.schedule, self.tame = schedule, tame
        self._in_a_row = 0
        dual.remember()

    def accept(self) -> None:
        """See :class:`ProfiledObjective`; where messages did not converge the value means nothing."""
        if self.converged:
            super().accept()

    def value_and_gradient(self, weights: Floats) -> tuple[float, Floats]:
        """Value and gradient after passing messages at ``weights``."""
        dual = self.dual
        if self.last is not None and not (self.converged and self.last.value <= self._best_value):
            dual.recall()
        progress = settle(
            in_memory(dual),
            weights,
            self.schedule,
            tolerance=self.accuracy.now,
            max_sweeps=self.max_sweeps,
            tame=self.tame,
        )
        residual = 0.0 if (progress.status == CONVERGED).all() else np.inf
        self.last = dual.evaluate(weights, residual=residual, sweeps=int(progress.iterations.sum()))
        self.converged = self.last.residual < np.inf  # on every rank
        self.evaluations += 1
        self.weights, self.sweeps = weights, self.sweeps + self.last.sweeps
        self.failures += not self.converged
        self._in_a_row = 0 if self.converged else self._in_a_row + 1
        self.hopeless = self._in_a_row >= MOST_UNCONVERGED
        if self.converged and self.last.value <= self._best_value:
            self._best_value = self.last.value
            dual.remember()
        return self.last.value, self.last.gradient
