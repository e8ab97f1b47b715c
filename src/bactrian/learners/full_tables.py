"""Learners for unshared full tables: pseudo-moment matching, and unified propagation and scaling.

A cluster with K states has a *full table* where its features, a (K, n_weights) matrix F, can express every score up to
a constant: the centred matrix C F, C = I - 11'/K, has rank K - 1. Then scores t are reached by the smallest weights

    w = (C F)^+ C t,        F w = t + constant.

**Pseudo-moment matching.** Wainwright, Jaakkola and Willsky (Tree-reweighted belief propagation algorithms and
approximate ML estimation by pseudo-moment matching, AISTATS 2003) observe that where every cluster has a full table of
its own, the weights at which the observed marginals are a fixed point of belief propagation can be written down. With
pi_i the observed marginal of cluster i and mu_ij that of a sepset, the joint scores are, up to a constant,

    sum_i log pi_i(c_i) - sum_ij log mu_ij(s_ij)

On a Bethe graph the sepset terms around a variable v of degree d_v and its hub add up to (1 - d_v) log pi_v. The same
in terms of the dual (:mod:`bactrian.camel.dual`), with theta the scores, d_l the multiplier of link l and kappa_v
the number of hub v (1 - d_v; -1 for the sepset of an explicit edge):

    sum_{l around v} d_l = theta_v - kappa_v log mu_v           the hub's belief is its observed marginal
    theta_i = log pi_i - sum_{l of i} d_l + constant            so is the cluster's

The scores theta_v of a hub are left at its base scores, the links around it take equal parts, and the weights of each
cluster follow from theta_i by linear algebra. The multipliers come with the weights, so the beliefs returned are the
observed marginals even where belief propagation, run at these weights, would leave that fixed point because it is not
stable (Heinemann and Globerson, UAI 2011).

**Unified propagation and scaling.** Teh and Welling (The unified propagation and scaling algorithm, NIPS 2001) fit
marginals of single variables, with the rest of the model fixed, as iterative proportional fitting does, without exact
inference between the steps. Scaling and belief propagation both lower one objective, Bethe's free energy with the
constraints that variables with a table of their own have their observed marginals; here it appears as the dual D with
Bethe's numbers. Visiting variable v of degree d_v, with m_l the marginal on v of the l-th cluster around it without its
own multiplier d_l,

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
from typing import ClassVar

import numpy as np
import scipy.sparse as sp

from bactrian.arrays import Bools, Floats, Ints
from bactrian.camel.dual import Dual, Evaluation
from bactrian.camel.entropy import carve
from bactrian.camel.run import Run, Settings
from bactrian.engines.memory import MemoryPart, MemoryTables, in_memory
from bactrian.engines.numba.stars import scale_hubs
from bactrian.graphs.packed import BeliefTables, PackedData, link_cells
from bactrian.graphs.ragged import pointer, ranges
from bactrian.graphs.scores import SparseScores
from bactrian.parallel.threads import Context
from bactrian.solvers.lbfgs import largest_magnitude
from bactrian.solvers.solution import Record, Solution, Status

#: Moment gap, per sample, that rounding may leave in the closed form.
_ROUNDING = 1e-8
#: Sweeps without a new smallest change after which learning gives up.
_PATIENCE = 50
#: The dual has fallen where it is lower by this part of itself.
_FALL = 1e-12
#: Propagation that oscillates even with this part of the old multipliers kept is given up.
_MOST_DAMPING = 0.9
#: Least part of a uniform distribution that observed marginals on the boundary are mixed with.
_LEAST_MIXTURE = 1e-12


@dataclass(frozen=True)
class PseudoMoments:
    """Pseudo-moment matching (Wainwright, Jaakkola and Willsky 2003), in closed form.

    For generative data (Samples) without a prior, if every cluster except the hubs of a Bethe graph has a full table of
    weights that it shares with no other cluster; anything else raises an error. Base scores may be any finite numbers.
    The solution is that of ``"cccp"``. There are no iterations, so limits, callback and start have no effect.

    A cell that never occurs has no finite weight. Then the status is ``UNBOUNDED``, and the observed marginals are
    mixed with a share ``tolerance`` of the uniform distribution before they are matched: for finite weights that depend
    less on the tolerance, use a learner with a prior.
    """

    name: ClassVar = "pseudo-moments"

    def learn(self, data: PackedData, settings: Settings, context: Context) -> Solution:
        """Fit the weights of packed data."""
        data.require_rows(self.name)
        run = Run(settings, context, data, self.name)
        tables = FullTables(data, settings, self.name)
        layout = data.layout
        owners = np.flatnonzero(data.hub_given & (data.degrees == 0))  # singletons that no other cluster touches
        factors = [*range(layout.n_clusters), *(layout.n_clusters + owners).tolist()]
        inverses = [tables.inverse(factor) for factor in factors]

        assert data.hub_truth is not None
        hub_marginal = data.hub_truth / data.total_weight
        targets = [marginal / data.total_weight for marginal in _observed_counts(data)]
        targets += [hub_marginal[layout.hub_offset[h] : layout.hub_offset[h + 1]] for h in owners.tolist()]
        on_boundary = any((marginal <= 0.0).any() for marginal in targets)
        part = mixture(on_boundary, settings.tolerance)

        dual = Dual(data, carve(data, "bethe").whole, settings.prior, context)
        sizes = np.diff(layout.hub_offset)[data.hub_of_state]
        own = in_memory(dual)
        own.multipliers[:] = _multipliers(own, mixed(hub_marginal, part, sizes), tables.base[layout.n_entries :])
        cell, state = link_cells(layout)
        told = np.bincount(cell, weights=own.multipliers[state], minlength=sum(target.size for target in targets))
        weights = np.zeros(data.n_weights)
        each = zip(factors, inverses, targets, np.split(told, pointer([len(t) for t in targets])[1:-1]), strict=True)
        for factor, (columns, inverse), marginal, multipliers in each:
            scores = np.log(mixed(marginal, part, marginal.size)) - tables.base[tables.rows(factor)] - multipliers
            weights[columns] = inverse @ scores
        evaluation = dual.evaluate(weights)
        status, gap = Status.UNBOUNDED if on_boundary else Status.CONVERGED, largest_magnitude(evaluation.gradient)
        if not on_boundary and gap > max(run.demands.gap, _ROUNDING * run.demands.scale):
            status = Status.STALLED  # features so close to singular that rounding spoils the weights
        return finish(run, dual, evaluation, weights, status)


def _observed_counts(data: PackedData) -> list[Floats]:
    """Weighted counts of the states of every table cluster."""
    assert data.observations is not None
    states, weights = (
        data.structure.incidence().factor_states(data.observations.states),
        data.observations.weights[:, 0],
    )
    sizes = np.diff(data.layout.table_offset)[data.layout.cluster_table].tolist()
    return [np.bincount(states[c], weights, size).astype(np.float64) for c, size in enumerate(sizes)]


def _multipliers(part: MemoryPart, hub_marginal: Floats, hub_base: Floats) -> Floats:
    """Multipliers under which hubs believe ``hub_marginal``, in equal parts for the links around a hub."""
    data = part.data
    hub = data.hub_of_state
    linked = data.degrees[hub] > 0
    log_marginal = np.log(hub_marginal, out=np.zeros_like(hub_marginal), where=linked & (hub_marginal > 0.0))
    total = hub_base - part.carving.hub[hub] * log_marginal
    return (total / np.maximum(data.degrees[hub], 1))[data.hub_state_of_link_state]


@dataclass(frozen=True)
class UnifiedScaling:
    """Unified propagation and scaling (Teh and Welling 2001).

    For generative data (Samples) without a prior on a Bethe graph, if the singleton clusters have full tables of
    weights of their own, or no features at all, and larger clusters have fixed scores only (``base_scores``, finite);
    anything else raises an error. The solution is a fixed point of ``"cccp"``, and the same one if all variables have
    tables. An iteration is a sweep over the variables; ``start`` has no effect.

    A state that never occurs has no finite weight. Then the status is ``UNBOUNDED``, and the observed marginals are
    mixed with a share ``tolerance`` of uniform ones before they are matched.
    """

    name: ClassVar = "ups"

    def learn(self, data: PackedData, settings: Settings, context: Context) -> Solution:
        """Fit the weights of packed data."""
        data.require_rows(self.name)
        run = Run(settings, context, data, self.name)
        tables = FullTables(data, settings, self.name)
        prescribed, inverse = self._singletons(tables)
        target, on_boundary = _targets(data, prescribed, settings.tolerance)
        dual = Dual(data, carve(data, "bethe").whole, settings.prior, context)
        own, hub_base = in_memory(dual), tables.base[data.layout.n_entries :]
        weights = np.zeros(data.n_weights)
        evaluation = dual.evaluate(weights)
        headway = _Headway(can_damp=not prescribed.all())
        status = None if run.iterations_left > 0 else run.interrupted or Status.ITERATION_LIMIT
        sweeps = 0
        while status is None:
            change = scale_hubs(own.arrays, prescribed, target, sweeps % 2 == 0, headway.damping)
            sweeps += 1
            weights = inverse @ (own.tables.hub_scores - hub_base)
            evaluation = dual.evaluate(weights)
            status = headway.status(run, evaluation, weights, change)
        gap, rounding = largest_magnitude(evaluation.gradient) / run.demands.scale, max(settings.tolerance, _ROUNDING)
        matched = status is Status.STALLED and gap <= 10.0 * rounding  # which is in its way
        if on_boundary and (matched or status is Status.CONVERGED):
            status = Status.UNBOUNDED
        return finish(run, dual, evaluation, weights, status, sweeps)

    def _singletons(self, tables: FullTables) -> tuple[Bools, sp.csr_array]:
        """(H,) whether a hub has a table to learn, and the map (n_weights, n_hub_states) from scores to weights."""
        data = tables.data
        layout = data.layout
        if data.hub_virtual.any():
            raise ValueError(f"{self.name} needs a Bethe graph (edges='bethe'), found explicit edges")
        wrong, prescribed = np.split(tables.has_features, [layout.n_clusters])
        if wrong.any():
            raise ValueError(
                f"{self.name} learns the tables of variables and takes all others as they are: cluster "
                f"{data.cluster_index[wrong.argmax()]} has features but is not the hub of a variable on a Bethe graph; "
                "give it base_scores only"
            )
        if not prescribed.any():
            raise ValueError(f"{self.name} learns the tables of variables, and no singleton cluster has features")
        rows, columns, values = [], [], []
        for h in np.flatnonzero(prescribed).tolist():
            weights, inverse = tables.inverse(layout.n_clusters + h)
            states = np.arange(layout.hub_offset[h], layout.hub_offset[h + 1])
            rows.append(np.repeat(weights, states.size))
            columns.append(np.tile(states, weights.size))
            values.append(inverse.ravel())
        entries = (np.concatenate(values), (np.concatenate(rows), np.concatenate(columns)))
        return prescribed, sp.csr_array(entries, shape=(data.n_weights, layout.n_hub_states))


def _targets(data: PackedData, prescribed: Bools, tolerance: float) -> tuple[Floats, bool]:
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
        self._best = self._lowest = np.inf
        self._since = 0

    def status(self, run: Run, evaluation: Evaluation, weights: Floats, change: float) -> Status | None:
        """How the run ends after this sweep; None where it continues."""
        gap, violation = largest_magnitude(evaluation.gradient), evaluation.violation
        stop = run.after_step(weights, evaluation.value, gap, violation)
        residual = max(change, violation, gap / run.demands.scale)
        if residual <= run.settings.tolerance:
            return Status.CONVERGED
        if stop:
            return run.interrupted
        if not self._is_lost(residual, evaluation.value):
            return None
        return Status.UNRELIABLE if self._can_damp else Status.STALLED

    def _is_lost(self, residual: float, value: float) -> bool:
        """Whether sweeps no longer help; more damping is tried first.

        Where every variable has a table each sweep lowers the dual, and while that falls there is headway: scores of
        1e3 take a hundred sweeps in which no belief moves.
        """
        falls = not self._can_damp and value < self._lowest - _FALL * abs(value)
        self._lowest = min(self._lowest, value)
        if residual < self._best or falls:
            self._best, self._since = min(self._best, residual), 0
            return False
        self._since += 1
        if self._since >= _PATIENCE and self._can_damp and self.damping < _MOST_DAMPING:
            self.damping = 0.5 + 0.5 * self.damping
            self._best, self._since = np.inf, 0
        return self._since >= _PATIENCE


class FullTables:
    """The feature matrices of generative data, factor by factor (see :class:`bactrian.graphs.structure.Incidence`).

    Raises ``ValueError`` for a prior, for conditional data, for weights that several clusters share and for states that
    base scores forbid.
    """

    def __init__(self, data: PackedData, settings: Settings, method: str) -> None:
        self.data, self.method = data, method
        if not settings.prior.is_flat:
            raise ValueError(f"{method} has no prior; use prior_variance=None and l1=0")
        if not isinstance(data.scores, SparseScores) or not data.generative:
            raise ValueError(
                f"{method} learns from generative data, many samples of one model (Samples), found conditional data: "
                "its models change from instance to instance, so there are no observed marginals to match"
            )
        self.base = data.scores.base
        if not np.isfinite(self.base).all():
            raise ValueError(f"{method} needs base_scores that are finite, found forbidden states (-inf)")
        self._matrix = data.scores.matrix.copy()
        self._matrix.eliminate_zeros()
        self._inverses: dict[tuple[int, bytes], tuple[Floats, int]] = {}
        layout, table = data.layout, data.layout.cluster_table
        self._first = np.concatenate([layout.table_offset[table], layout.n_entries + layout.hub_offset[:-1]])
        self._last = np.concatenate([layout.table_offset[table + 1], layout.n_entries + layout.hub_offset[1:]])
        self._cluster = np.concatenate([data.cluster_index, data.hub_index])
        #: (n_factors,) whether any weight acts on it
        self.has_features = self._matrix.indptr[self._last] > self._matrix.indptr[self._first]
        self._refuse_sharing()

    def rows(self, factor: int) -> slice:
        """Rows of a factor in arrays over table entries and hub states."""
        return slice(int(self._first[factor]), int(self._last[factor]))

    def inverse(self, factor: int) -> tuple[Ints, Floats]:
        """Weights of a full table and the matrix (weights, states) from scores to them."""
        block = self._matrix[self.rows(factor)]
        columns = np.unique(block.indices)
        features = block[:, columns].toarray() if columns.size else np.zeros((block.shape[0], 0))
        key = (features.shape[1], features.tobytes())  # indicators of one size are all alike
        if key not in self._inverses:
            self._inverses[key] = _centred_inverse(features)
        inverse, rank = self._inverses[key]
        if rank < (free := features.shape[0] - 1):
            raise ValueError(
                f"{self.method} needs a full table on cluster {self._cluster[factor]}: up to a constant its {free + 1} "
                f"states have {free} free scores, and its features span {rank}"
            )
        return columns, inverse

    def _refuse_sharing(self) -> None:
        sizes = self._last - self._first
        owned = sp.csr_array(
            (np.ones(sizes.sum()), ranges(self._first, sizes), pointer(sizes)), (sizes.size, len(self.base))
        )
        used = sp.csc_array(owned @ abs(self._matrix))  # factors by weights
        shared = np.flatnonzero(np.diff(used.indptr) > 1)
        if shared.size:
            first, second = sorted(self._cluster[used[:, [shared[0]]].indices].tolist())[:2]
            raise ValueError(
                f"{self.method} needs weights of its own for every cluster: "
                f"weight {shared[0]} is shared by clusters {first} and {second}"
            )


def _centred_inverse(features: Floats) -> tuple[Floats, int]:
    """The pseudo-inverse of the centred features, and their rank."""
    centred = features - features.mean(axis=0)
    if not centred.size:
        return np.zeros(centred.shape[::-1]), 0
    inverse = np.linalg.pinv(centred, max(centred.shape) * np.finfo(np.float64).eps)
    return inverse - inverse.mean(axis=1, keepdims=True), int(np.linalg.matrix_rank(centred))


def mixture(on_boundary: bool, tolerance: float) -> float:
    """Part of a uniform distribution in the moments that are matched: 0 where no observed marginal is zero.

    Weights that match a marginal of zero are infinite. Mixed with a uniform distribution over joint states, the
    observed marginals stay consistent and move by no more than the tolerance, and the weights are finite.
    """
    return min(max(tolerance, _LEAST_MIXTURE), 0.5) if on_boundary else 0.0


def mixed(marginals: Floats, part: float, sizes: int | Ints) -> Floats:
    """Marginals of ``sizes`` states each, mixed with that part of uniform ones."""
    return (1.0 - part) * marginals + part / sizes


def finish(run: Run, dual: Dual, evaluation: Evaluation, weights: Floats, status: Status, sweeps: int = 0) -> Solution:
    """The solution at the dual's last evaluation, with its multipliers as they are."""
    made = sweeps, max(sweeps, 1), sweeps, run.seconds
    gap = largest_magnitude(evaluation.gradient)
    run.records.append(Record(0, evaluation.value, gap, evaluation.violation, *made))
    tables = BeliefTables(run.data, MemoryTables(in_memory(dual)))
    return run.solution(evaluation, weights, status, tables)
