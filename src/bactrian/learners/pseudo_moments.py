"""Pseudo-moment matching: the closed form of Bethe learning for full tables.

Wainwright, Jaakkola and Willsky (Tree-reweighted belief propagation algorithms and approximate ML estimation by
pseudo-moment matching, AISTATS 2003) observe that where every cluster has a full table of its own, the weights at which
the observed marginals are a fixed point of belief propagation can be written down. With pi_i the observed marginal of
cluster i and mu_ij that of a sepset, the joint scores are, up to a constant,

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
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bactrian.camel.dual import Dual
from bactrian.camel.entropy import carve
from bactrian.camel.run import Run, Settings
from bactrian.engines.numba.threads import Workers
from bactrian.graphs.packed import PackedData
from bactrian.learners.full_tables import Tables, finish, mixed, mixture
from bactrian.solvers.solution import Solution, Status

Floats = NDArray[np.float64]

#: Moment gap, per sample, that rounding may leave in the closed form.
_ROUNDING = 1e-8


@dataclass(frozen=True)
class PseudoMoments:
    """Pseudo-moment matching (Wainwright, Jaakkola and Willsky 2003), in closed form.

    For generative data (Samples) without a prior, where every cluster but the hubs of a Bethe graph has a full table of
    weights that it shares with no other cluster; anything else is refused with the reason. Base scores may be any
    finite numbers. The solution is that of ``"cccp"``. There are no iterations, hence no use of limits, callback or
    start.

    A cell that was never observed has no finite weight. Then the status is ``UNBOUNDED``, and the marginals that are
    matched are the observed ones with a part ``tolerance`` of the uniform distribution mixed in: for finite weights
    that depend less on the tolerance, use a learner with a prior.
    """

    @property
    def name(self) -> str:
        """The shorthand of this learner."""
        return "pseudo-moments"

    def learn(self, data: PackedData, settings: Settings, workers: Workers) -> Solution:
        """Fit the weights of packed data."""
        run = Run(settings, data, self.name)
        tables = Tables(data, settings, self.name)
        layout = data.layout
        owners = np.flatnonzero(data.hub_given & (data.degrees == 0))  # singletons that no other cluster touches
        rows = [tables.rows_of_cluster(c) for c in range(layout.n_clusters)]
        rows += [tables.rows_of_hub(h) for h in owners.tolist()]
        indices = np.concatenate([data.cluster_index, data.hub_index[owners]]).tolist()
        inverses = [tables.inverse(span, index) for span, index in zip(rows, indices, strict=True)]

        assert data.hub_truth is not None
        hub_marginal = data.hub_truth / data.total_weight
        targets = [marginal / data.total_weight for marginal in _observed_counts(data)]
        targets += [hub_marginal[layout.hub_offset[h] : layout.hub_offset[h + 1]] for h in owners.tolist()]
        on_boundary = any((marginal <= 0.0).any() for marginal in targets)
        part = mixture(on_boundary, settings.tolerance)

        dual = Dual(data, carve(data, "bethe").whole, settings.prior, workers)
        sizes = np.diff(layout.hub_offset)[data.hub_of_state]
        dual.part.multipliers[:] = _multipliers(dual, mixed(hub_marginal, part, sizes), tables.base[layout.n_entries :])
        weights = np.zeros(data.n_weights)
        for i, ((columns, inverse), marginal, (first, last)) in enumerate(zip(inverses, targets, rows, strict=True)):
            scores = np.log(mixed(marginal, part, marginal.size)) - tables.base[first:last]
            if i < layout.n_clusters:
                scores -= _multipliers_of_cluster(dual, i, marginal.size)
            weights[columns] = inverse @ scores
        evaluation = dual.evaluate(weights)
        status = Status.UNBOUNDED if on_boundary else Status.CONVERGED
        gap = float(np.abs(evaluation.gradient).max(initial=0.0))
        if not on_boundary and gap > max(run.gap_tolerance, _ROUNDING * run.gap_scale):
            status = Status.STALLED  # features so close to singular that rounding spoils the weights
        return finish(run, dual, evaluation, weights, status)


def _observed_counts(data: PackedData) -> list[Floats]:
    """Weighted counts of the states of every table cluster."""
    layout, observations, incidence = data.layout, data.observations, data.views.incidence()
    assert observations is not None
    order = np.argsort(incidence.factor, kind="stable")
    bounds = np.searchsorted(incidence.factor[order], np.arange(layout.n_clusters + 1))
    sizes = np.diff(layout.table_offset)[layout.cluster_table]
    counts: list[Floats] = []
    for cluster in range(layout.n_clusters):
        around = order[bounds[cluster] : bounds[cluster + 1]]
        state = observations.states[:, incidence.variable[around]] @ incidence.stride[around]
        counted = np.bincount(state, weights=observations.weights[:, 0], minlength=int(sizes[cluster]))
        counts.append(counted.astype(np.float64))
    return counts


def _multipliers(dual: Dual, hub_marginal: Floats, hub_base: Floats) -> Floats:
    """Multipliers under which hubs believe ``hub_marginal``, in equal parts for the links around a hub."""
    data = dual.part.data
    hub = data.hub_of_state
    linked = data.degrees[hub] > 0
    log_marginal = np.log(hub_marginal, out=np.zeros_like(hub_marginal), where=linked & (hub_marginal > 0.0))
    total = hub_base - dual.part.carving.hub[hub] * log_marginal
    shares: Floats = (total / np.maximum(data.degrees[hub], 1))[data.hub_state_of_link_state]
    return shares


def _multipliers_of_cluster(dual: Dual, cluster: int, size: int) -> Floats:
    """Sum of a table cluster's multipliers, for each of its states."""
    layout = dual.part.data.layout
    total = np.zeros(size)
    for link in layout.cluster_link[layout.cluster_links[cluster] : layout.cluster_links[cluster + 1]].tolist():
        states = layout.projection[layout.link_projection[link] : layout.link_projection[link] + size]
        total += dual.part.multipliers[layout.link_offset[link] + states]
    return total
