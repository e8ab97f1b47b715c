"""CAMEL: learning as constrained approximate maximum entropy (Ganapathi, Vickrey, Duchi and Koller, UAI 2008).

The frame is entropy x constraints x prior. Each inner problem is the convex dual D of
:mod:`bactrian.camel.dual`; where the entropy is not concave (Bethe's), the part that was carved out is linearised
at the last beliefs and the problem solved again (Section 3 of the paper; Yuille 2002) until the beliefs no longer move.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from bactrian.arrays import Floats
from bactrian.camel.dual import Dual
from bactrian.camel.entropy import REGISTERED, Carving, CountingNumbers, carve
from bactrian.camel.joint import Joint
from bactrian.camel.linearisation import Linearisation
from bactrian.camel.parts import Vector
from bactrian.camel.profiled import Profiled
from bactrian.camel.run import InnerSolver, Run, Settings
from bactrian.errors import check_number
from bactrian.graphs.packed import PackedData
from bactrian.graphs.packing import require_bethe
from bactrian.graphs.triplets import find_triplets, tighten
from bactrian.parallel import anywhere
from bactrian.parallel.threads import Context
from bactrian.solvers.anderson import Anderson
from bactrian.solvers.lbfgs import largest_magnitude
from bactrian.solvers.solution import Solution, Status

_ENTROPIES = ("bethe", "clusters", "trw", "convex")

#: Quasi-Newton steps in each inner solve but the last ones; tighter solves early on are wasted on a linearisation
#: that is about to change. On Corel images a prototype took 10.4 s with tight first solves, 6.6 s loose, 5.6 s so.
_LOOSE_ITERATIONS = 10
#: Part of the gap that a relinearisation opened at which its solve stops. Set by ``bactrian bench learners``.
_LOOSE_REDUCTION = 0.003
#: Gap per instance at which a first solve stops, and iterations that piecewise training gets as a mere start.
_LOOSE_GAP, _START_ITERATIONS = 1e-2, 50
#: Largest change of a weight between relinearisations, and estimated distance still to go, at which, with a prior,
#: learning may stop.
_WEIGHT_TOLERANCE = 1e-4
#: Relinearisations in a row that moved nothing, and after which the solver found no step either, until it gives up.
_MOST_IDLE = 10


@dataclass(frozen=True, repr=False)
class Camel:
    """A learner in the frame of the paper.

    Parameters
    ----------
    entropy : "bethe", "clusters", "trw", "convex", the name of a registered entropy, or CountingNumbers
        Bethe's entropy is relinearised; clusters-only drops the sepset entropies; tree-reweighted and convex entropies
        are concave and solved directly.
    fold : bool
        Carve better (Section 3, "fold in"): keep the provably concave part of the entropy, hub numbers down to
        ``max(1 - d, -sum 1/|cluster|)``, and linearise only the rest. Same fixed points, fewer relinearisations.
    consistency : bool
        Whether clusters must agree on their sepsets.
    start : "zero", "piecewise" or "empirical"
        Start from g = 0, from the weights of piecewise training, or with g at the empirical distribution (in
        conditional training: marginals pooled over the data per kind of sepset, smoothed).
    solver : "profiled" or "joint"
        ``"profiled"``: block updates of the multipliers inside an optimiser over the weights. ``"joint"``: the paper's
        L-BFGS over weights and multipliers, followed by block updates if clusters still disagree by more than the
        tolerance.
    share : float
        Share of each linearised sepset entropy that the first cluster of an edge (the cluster, on a Bethe graph) takes;
        the second (the hub) takes the rest. It only changes the path.
    tight : bool
        Solve every inner problem to tolerance and relinearise at its beliefs, as the paper does: then the primal
        objective never decreases. Otherwise inner problems are solved loosely at first and the linearisation is
        extrapolated (:mod:`bactrian.solvers.anderson`); fixed points are the same.
    tighten : int
        Maximum number of triplets of variables to add per instance once Bethe's solution is found, on the cycles that
        correct it most (:mod:`bactrian.graphs.triplets`); learning continues with Kikuchi's entropy of triplets, pairs
        and variables. Give at least the number of independent cycles (twice that for grids).

    Examples
    --------
    ``"piecewise"``, ``"camel0"``, ``"cccp"``, ``"cccp-empirical"``, ``"trw"`` and ``"convex"`` are short for

    >>> Camel(entropy="clusters", consistency=False).name
    'piecewise'
    >>> Camel(entropy="clusters", start="piecewise").name
    'camel0'
    >>> Camel(entropy="bethe").name
    'cccp'
    >>> Camel(entropy="bethe", start="empirical").name
    'cccp-empirical'
    >>> Camel(entropy="trw").name, Camel(entropy="convex").name
    ('trw', 'convex')
    """

    entropy: str | CountingNumbers = "bethe"
    consistency: bool = True
    start: str = "zero"
    solver: str = "profiled"
    share: float = 0.0
    tight: bool = False
    fold: bool = False
    tighten: int = 0

    def __post_init__(self) -> None:
        known = (*_ENTROPIES, *REGISTERED)
        if not isinstance(self.entropy, CountingNumbers) and self.entropy not in known:
            raise ValueError(f"entropy must be one of {', '.join(known)} or CountingNumbers, found {self.entropy!r}")
        if self.fold and self.entropy != "bethe":
            raise ValueError("fold=True needs entropy='bethe'")
        check_number("tighten", self.tighten, least=0, whole=True)
        if self.tighten and self.entropy != "bethe":
            raise ValueError("tighten needs entropy='bethe'")
        if self.start not in ("zero", "piecewise", "empirical"):
            raise ValueError(f"start must be 'zero', 'piecewise' or 'empirical', found {self.start!r}")
        if self.solver not in ("profiled", "joint"):
            raise ValueError(f"solver must be 'profiled' or 'joint', found {self.solver!r}")
        if not 0.0 <= self.share <= 1.0:
            raise ValueError(f"share must be between 0 and 1, found {self.share}")
        if not self.consistency and self.entropy != "clusters":
            raise ValueError("consistency=False needs entropy='clusters': without agreement, sepsets have no entropy")

    def __repr__(self) -> str:
        """Settings that are not the usual ones."""
        entries = [(entry.name, getattr(self, entry.name), entry.default) for entry in fields(self)]
        return f"Camel({', '.join(f'{name}={value!r}' for name, value, usual in entries if value != usual)})"

    @property
    def name(self) -> str:
        """The shorthand of this learner, or its settings."""
        for name, method in SHORTHAND.items():
            if (self.entropy, self.consistency, self.start) == (method.entropy, method.consistency, method.start):
                name = f"{name}, folded" if self.fold else name
                return f"{name}, tightened" if self.tighten else name
        return repr(self)

    def learn(self, data: Any, settings: Settings, context: Context) -> Solution:
        """Fit the weights of packed data, of any kind that :func:`bactrian.camel.parts.store` takes."""
        carving = None
        if not data.in_memory:
            self._check_streams()
        else:
            if self.start == "empirical":
                data.require_rows(f"{self.name}, which starts at the empirical distribution,")
            if self.tighten:
                require_bethe(data)
            carving = self.carving(data, context)  # what is wrong with its numbers is said before any work
        run = Run(settings, context, data, self.name)
        weights: Vector = run.initial_weights()
        if self.start == "piecewise" and self.consistency and settings.start is None:
            weights = self._piecewise_weights(run, weights)
        dual = Dual(
            data,
            carving or (lambda part: self.carving(part, context)),
            settings.prior,
            context,
            consistency=self.consistency,
        )
        weights = dual.vectors.of(weights)
        resumed = settings.state is not None and self.consistency and dual.take_up(settings.state)
        linearisation = self.linearisation(dual)
        if not resumed and self.start == "empirical" and dual.relinearises:
            linearisation.start_at_observed()
        inner = _inner_solver(self.solver if self.consistency else "profiled", dual, run)
        weights, status = self.relinearise(run, inner, linearisation, weights)
        if self.tighten and run.iterations_left > 0:
            return self._tightened(run, inner, weights, status)
        return run.finish(inner, weights, status)

    def _check_streams(self) -> None:
        """Refuse settings that need all of the data in memory."""
        wanted = Camel(self.entropy, self.consistency, self.start, tight=self.tight, fold=self.fold)
        if self != wanted:
            raise ValueError(
                "learning from a folder of packed data needs the profiled solver, without share= and tighten=; "
                "leave these out, or learn from data in memory"
            )

    def _tightened(self, run: Run, bethe: InnerSolver, weights: Floats, status: Status) -> Solution:
        """Go on from Bethe's solution with triplets on its worst cycles."""
        bethe.evaluate(weights)
        tables, deadline = bethe.dual.tables(), run.context.deadline
        triplets = find_triplets(run.data, tables, self.tighten, deadline)
        found, late = anywhere(run.context.communicator, any(triplets), deadline.has_passed)
        if late or not found:
            return run.finish(bethe, weights, Status.TIME_LIMIT if late else status)
        data = tighten(run.data, triplets)
        kept = np.maximum(data.total, 0.0)
        carving = Carving(np.ones(data.packed.layout.n_clusters), kept, kept - data.total)
        dual = Dual(data.packed, carving, run.settings.prior, run.context)
        linearisation = self.linearisation(dual)
        linearisation.start_at(data.start(bethe.dual.part.hub_log, tables))
        inner = _inner_solver(self.solver, dual, run)
        weights, status = self.relinearise(run, inner, linearisation, weights)
        return run.finish(inner, weights, status, data)

    def linearisation(self, dual: Dual) -> Linearisation:
        """The linearisation of a dual's sepset entropies."""
        extrapolate = None if self.tight else Anderson(dual.communicator.add_up).next
        return Linearisation(dual, self.share, extrapolate)

    def carving(self, data: PackedData, context: Context) -> Carving:
        """Counting numbers of packed data under this learner's entropy."""
        return carve(data, "folded" if self.fold else self.entropy, context.deadline)

    def _piecewise_weights(self, run: Run, weights: Floats) -> Vector:
        """Weights to start from, by a loose solve: the problem with consistency is convex, whatever it starts from."""
        prior, apart = run.settings.prior, lambda part: carve(part, "clusters")
        dual = Dual(run.data, apart, prior, run.context, consistency=False)
        inner = Profiled(dual, run)
        result = inner.solve(
            dual.vectors.of(weights),
            tolerance=max(run.demands.gap, _LOOSE_GAP * run.demands.scale),
            max_iterations=min(_START_ITERATIONS, run.iterations_left),
        )
        run.record(result, inner)
        return result.weights

    def relinearise(
        self, run: Run, inner: InnerSolver, linearisation: Linearisation, weights: Vector
    ) -> tuple[Vector, Status]:
        """Inner solves until the beliefs no longer change."""
        dual = inner.dual
        loose = dual.relinearises and not self.tight
        # A few joint steps leave clusters that disagree, and a linearisation at such beliefs can run away.
        capped = loose and self.solver != "joint"
        limit = run.settings.max_relinearisations if dual.relinearises else 0
        last_weight_change, idle = np.inf, 0
        for outer in range(limit + 1):
            first = loose and outer == 0
            result = inner.solve(
                weights,
                tolerance=max(run.demands.gap, _LOOSE_GAP * run.demands.scale) if first else run.demands.gap,
                relative=_LOOSE_REDUCTION if loose and not first else 0.0,
                max_iterations=min(_LOOSE_ITERATIONS, run.iterations_left) if capped else run.iterations_left,
            )
            weight_change = largest_magnitude(result.weights - weights) if dual.relinearises else np.nan
            weights, ended = result.weights, result.status
            belief_change = change_of_g = np.nan
            status: Status | None = ended
            if dual.relinearises and (run.interrupted is None or ended is not run.interrupted):
                belief_change = dual.belief_change()
                still = belief_change <= run.settings.tolerance
                # Beliefs stand still without sweeps, too.
                settled = still and result.gap <= run.demands.gap and ended is not Status.TIME_LIMIT
                distance = max(weight_change, _remaining(weight_change, last_weight_change))
                last_weight_change = weight_change
                idle = idle + 1 if still and ended is Status.STALLED and result.iterations == 0 else 0
                if settled and (run.settings.prior.leaves_free or distance <= _WEIGHT_TOLERANCE):
                    status = Status.UNRELIABLE if ended is Status.UNRELIABLE else Status.CONVERGED
                elif run.iterations_left <= 0 or outer == limit:
                    status = run.interrupted or Status.ITERATION_LIMIT
                elif idle == _MOST_IDLE:
                    status = Status.STALLED
                else:
                    status, change_of_g = None, linearisation.update()
                    inner.relinearised(belief_change)
            run.record(result, inner, belief_change, weight_change, change_of_g)
            if status is not None:
                return weights, status
        raise AssertionError("the loop returns at its limit")


def _remaining(change: float, last: float) -> float:
    """Distance still to go where changes shrink by a constant factor."""
    ratio = min(change / last, 0.999) if 0.0 < last < np.inf else 0.0
    return change * ratio / (1.0 - ratio)


SHORTHAND = {
    "piecewise": Camel(entropy="clusters", consistency=False),
    "camel0": Camel(entropy="clusters", start="piecewise"),
    "cccp": Camel(entropy="bethe"),
    "cccp-empirical": Camel(entropy="bethe", start="empirical"),
    "trw": Camel(entropy="trw"),
    "convex": Camel(entropy="convex"),
}


def _inner_solver(solver: str, dual: Any, run: Run) -> InnerSolver:
    """The schedule by name."""
    return Profiled(dual, run) if solver == "profiled" else Joint(dual, run)
