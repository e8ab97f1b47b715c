"""Unified propagation and scaling: learning singleton tables with the rest of the model fixed.

Teh and Welling (The unified propagation and scaling algorithm, NIPS 2001) fit marginals of single variables, as
iterative proportional fitting does, without exact inference between the steps. Scaling and belief propagation both
lower one objective, Bethe's free energy with the constraints that variables with a table of their own have their
observed marginals; here it appears as the dual D of :mod:`bactrian.camel.dual` with Bethe's numbers. Visiting
variable v of degree d_v, with m_l the marginal on v of the l-th cluster around it without its own multiplier d_l,

    scaling (v has a table, b_v is the observed marginal):    theta_v = log b_v - sum_l log m_l
    propagation (v has none):                                 log b_v = theta_v + sum_l log m_l + constant
    in both cases                                             d_l = log b_v - log m_l

Scaling minimises D over theta_v and the multipliers around v at once. Where all variables have tables D is convex, the
steps are coordinate descent, in effect proportional fitting of each cluster's table to its variables' marginals, and
converge. Variables without a table are those of belief propagation, with its troubles on loops: steps there are damped
where they make no headway.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from bactrian.camel.dual import Dual, Evaluation
from bactrian.camel.entropy import carve
from bactrian.camel.run import Run, Settings
from bactrian.engines.numba.threads import Workers
from bactrian.engines.numba.unified_scaling import scale_hubs
from bactrian.graphs.packed import PackedData
from bactrian.learners.full_tables import Tables, finish, mixed, mixture
from bactrian.solvers.solution import Solution, Status

Floats = NDArray[np.float64]

#: Sweeps without a smaller change than ever before, after which there is no headway.
_PATIENCE = 50
#: Propagation that oscillates even with this part of the old multipliers kept is given up.
_MOST_DAMPING = 0.9


@dataclass(frozen=True)
class UnifiedScaling:
    """Unified propagation and scaling (Teh and Welling 2001).

    For generative data (Samples) without a prior on a Bethe graph, where the singleton clusters have full tables of
    weights of their own, or no features at all, and larger clusters have fixed scores only (``base_scores``, finite);
    anything else is refused with the reason. The solution is a fixed point of ``"cccp"``, and the same where all
    variables have tables. An iteration is a sweep over the variables; ``start`` makes no difference.

    A state of a variable that was never observed has no finite weight. Then the status is ``UNBOUNDED``, and the
    marginals that are matched are the observed ones with a part ``tolerance`` of uniform ones mixed in.
    """

    @property
    def name(self) -> str:
        """The shorthand of this learner."""
        return "ups"

    def learn(self, data: PackedData, settings: Settings, workers: Workers) -> Solution:
        """Fit the weights of packed data."""
        run = Run(settings, data, self.name)
        tables = Tables(data, settings, self.name)
        prescribed, inverse = self._singletons(tables)
        target, on_boundary = _targets(data, prescribed, settings.tolerance)
        dual = Dual(data, carve(data, "bethe").whole, settings.prior, workers)
        hub_base = tables.base[data.layout.n_entries :]
        weights = np.zeros(data.n_weights)
        evaluation = dual.evaluate(weights)
        headway = _Headway(can_damp=not prescribed.all())
        status = None if run.iterations_left > 0 else run.interrupted or Status.ITERATION_LIMIT
        sweeps = 0
        while status is None:
            change = scale_hubs(
                data.layout, dual.part.tables, dual.part.numbers, dual.part.multipliers, dual.part.beliefs.hub_log,
                prescribed, target, sweeps % 2 == 0, headway.damping,
            )  # fmt: skip
            sweeps += 1
            weights = inverse @ (dual.part.tables.hub_scores - hub_base)
            evaluation = dual.evaluate(weights)
            status = _status(run, dual, evaluation, weights, change, headway)
        if on_boundary and status in (Status.CONVERGED, Status.STALLED):
            status = Status.UNBOUNDED
        return finish(run, dual, evaluation, weights, status, sweeps)

    def _singletons(self, tables: Tables) -> tuple[NDArray[np.bool_], sp.csr_array]:
        """(H,) whether a hub has a table to learn, and the map (n_weights, n_hub_states) from scores to weights."""
        data = tables.data
        layout = data.layout
        if data.hub_virtual.any():
            raise ValueError(f"{self.name} needs a Bethe graph (edges='bethe'), found explicit edges")
        for c in range(layout.n_clusters):
            if tables.has_features(tables.rows_of_cluster(c)):
                raise ValueError(
                    f"{self.name} learns the tables of variables and takes all others as they are: cluster "
                    f"{data.cluster_index[c]} has features but is not the hub of a variable on a Bethe graph; "
                    "give it base_scores only"
                )
        prescribed = np.array([tables.has_features(tables.rows_of_hub(h)) for h in range(layout.n_hubs)], dtype=bool)
        if not prescribed.any():
            raise ValueError(f"{self.name} learns the tables of variables, and no singleton cluster has features")
        rows, columns, values = [], [], []
        for h in np.flatnonzero(prescribed).tolist():
            weights, inverse = tables.inverse(tables.rows_of_hub(h), int(data.hub_index[h]))
            states = np.arange(layout.hub_offset[h], layout.hub_offset[h + 1])
            rows.append(np.repeat(weights, states.size))
            columns.append(np.tile(states, weights.size))
            values.append(inverse.ravel())
        entries = (np.concatenate(values), (np.concatenate(rows), np.concatenate(columns)))
        return prescribed, sp.csr_array(entries, shape=(data.n_weights, layout.n_hub_states))


def _targets(data: PackedData, prescribed: NDArray[np.bool_], tolerance: float) -> tuple[Floats, bool]:
    """Log of the marginals to match (0 where there are none), and whether some observed marginal is zero."""
    assert data.hub_truth is not None
    hub = data.hub_of_state
    used = prescribed[hub]
    marginal = data.hub_truth / data.total_weight
    on_boundary = bool((marginal[used] <= 0.0).any())
    marginal = mixed(marginal, mixture(on_boundary, tolerance), np.diff(data.layout.hub_offset)[hub])
    return np.log(marginal, out=np.zeros_like(marginal), where=used), on_boundary


class _Headway:
    """Damps propagation that makes no headway, and says when there is no hope left."""

    def __init__(self, *, can_damp: bool) -> None:
        self.damping = 0.0
        self._can_damp = can_damp
        self._best = np.inf
        self._since = 0

    def lost(self, residual: float) -> bool:
        """Whether sweeps no longer help; more damping is tried first."""
        if residual < self._best:
            self._best, self._since = residual, 0
            return False
        self._since += 1
        if self._since < _PATIENCE:
            return False
        if self._can_damp and self.damping < _MOST_DAMPING:
            self.damping = 0.5 + 0.5 * self.damping
            self._best, self._since = np.inf, 0
            return False
        return True

    @property
    def status(self) -> Status:
        """How a run without headway ended."""
        return Status.UNRELIABLE if self._can_damp else Status.STALLED


def _status(
    run: Run, dual: Dual, evaluation: Evaluation, weights: Floats, change: float, headway: _Headway
) -> Status | None:
    """How the run ends after this sweep; None where it goes on."""
    gap = float(np.abs(evaluation.gradient).max(initial=0.0))
    violation = dual.largest_violation()
    stop = run.after_step(weights, evaluation.value, gap, violation)
    residual = max(change, violation, gap / run.gap_scale)
    if residual <= run.settings.tolerance:
        return Status.CONVERGED
    if stop:
        return run.interrupted
    return headway.status if headway.lost(residual) else None
