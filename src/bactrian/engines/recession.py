"""Whether a finite optimum exists, decided by a certificate.

Without a prior D(w, delta) has a minimum if and only if the observed moments lie in the relative interior of the
moments of all consistent beliefs. Otherwise there is a direction of recession (d, delta) with

    r = sum_m M_m [ sum_i max_{c_i} (d.f(c_i) + delta.h(c_i)) ] - d.f_hat <= 0,        i over clusters and hubs,

and a state that may occur whose score lies below its cluster's maximum: D never rises along it, and no finite weights
give that state the probability 0 that the observed moments demand. Weights with a prior stay as they are along it. The
sum bounds max d.f over consistent beliefs for every delta, and the entropy is bounded, so this holds for every entropy.
Beliefs of clusters that need not agree take the scores of their hubs as fixed shares.

A certificate is believed only when r was computed from it. It comes from a linear program, on problems of moderate
size, or else from the path of the weights. That there is none is seen from beliefs that match the moments exactly and
give every state a positive probability: those at the solution, moved a little.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import lsmr

from bactrian.arrays import Bools, Floats, Ints
from bactrian.camel.dual import Dual
from bactrian.graphs.packed import PackedData, link_cells
from bactrian.graphs.ragged import pointer, ranges
from bactrian.parallel import Communicator, anywhere, gather, largest_anywhere, total
from bactrian.parallel.threads import Workers

#: States of clusters and hubs up to which the linear program is solved, entries of the dense features, and its seconds.
_MOST_STATES, _MOST_FEATURES, _MOST_SECONDS = 20_000, 20_000_000, 20.0
#: Rate r of a certificate, relative to the largest loss of a state's score and to the least weight of an instance.
_ROUNDING = 1e-7
#: What is left of the moments' gap, relative to the least probability, where beliefs count as matching exactly.
_EXACT = 1e-3
#: Directions that the path suggests are tried as they are, and rounded to such parts of their largest weight; how far
#: a direction is followed to see where multipliers go, and change of a marginal and sweeps at which they are there.
_PARTS, _FURTHER, _SETTLED, _SWEEPS = (1, 2, 4, 8), 100.0, 1e-6, 100


def is_unbounded(dual: Dual, weights: Floats, leg: Floats) -> bool:
    """Whether no finite weights are optimal; the last evaluation was at ``weights``, to which the path came by ``leg``.

    The dual must be of parts in memory or in files.
    """
    communicator = dual.communicator
    free = np.broadcast_to(np.equal(dual.prior.precision, 0.0), weights.shape)
    empirical = dual.empirical[free]
    states = collect_states(_at(dual, weights), free, communicator)
    first = communicator.rank == 0  # it decides for all: clocks differ
    if anywhere(communicator, first and states is not None and _is_inside(states, empirical))[0]:
        return False
    if _path_recedes(dual, weights, np.where(free, leg, 0.0)):
        return True
    seconds = max(1.0, dual.context.deadline.at - time.perf_counter())
    return anywhere(communicator, first and states is not None and _has_direction(states, empirical, seconds))[0]


def _at(dual: Dual, weights: Floats) -> Iterable[Any]:
    """Each part with its scores at ``weights``."""
    for part in dual.loaded():
        part.set_weights(weights)
        yield part


def _path_recedes(dual: Dual, weights: Floats, leg: Floats) -> bool:
    """Whether the last leg of the path, or what rounding makes of it, is a direction of recession."""
    length = float(np.abs(leg).max(initial=0.0))
    dual.remember()
    if not length > 0.0:
        return False
    leg = leg / length
    for direction in (leg, *(np.rint(parts * leg) / parts for parts in _PARTS)):
        further = weights + _FURTHER * direction
        dual.evaluate(further, tolerance=_SETTLED, max_sweeps=_SWEEPS if dual.consistency else 0)
        if certifies(dual.since_remembered(), direction, dual.empirical, dual.communicator):
            return True
        dual.recall()
    return False


@dataclass(frozen=True)
class PossibleStates:
    """The states of clusters and hubs of some instances that may occur, each a row."""

    features: sp.csr_array  #: (R, n free weights), with what a cluster takes of its hubs' features
    consistency: sp.csr_array  #: (R, n_link_states) 1 for a cluster's state, -1 for a hub's; 0 where none is asked
    owner: Ints  #: (R,) cluster or hub
    weight: Floats  #: (n_owners,) of the owner's instance
    belief: Floats  #: (R,) at the solution
    constrained: bool  #: some states were left out, because scores forbid them

    @property
    def membership(self) -> sp.csr_array:
        """(R, n_owners) which row is whose."""
        n = self.owner.size
        return sp.csr_array((np.ones(n), (np.arange(n), self.owner)), shape=(n, self.weight.size))


def collect_states(parts: Iterable[Any], free: Bools, communicator: Communicator) -> PossibleStates | None:
    """The states of all parts, of all ranks, with beliefs at the last evaluation; None where there are too many.

    ``free`` are the weights without a prior: others have no part in a direction of recession.
    """
    n_weights = int(free.sum())
    found = []
    n_rows = 0
    for part in parts:
        layout = part.data.layout
        n_rows += int(np.diff(layout.table_offset)[layout.cluster_table].sum()) + layout.n_hub_states
        if not _is_moderate(n_rows, n_weights):
            break
        found.append(states_of(part, free))
    if not _is_moderate(total(communicator, float(n_rows)), n_weights):
        return None
    return _gathered(_joined(found), communicator)


def _is_moderate(n_rows: float, n_weights: int) -> bool:
    return n_rows <= _MOST_STATES and n_rows * n_weights <= _MOST_FEATURES


def states_of(messages: Any, free: Bools) -> PossibleStates:
    """The states of instances that have weight, with features of free weights and beliefs at the last evaluation."""
    data, layout = messages.data, messages.data.layout
    table_size = np.diff(layout.table_offset)
    size = np.concatenate([table_size[layout.cluster_table], np.diff(layout.hub_offset)])
    first = np.concatenate([layout.table_offset[layout.cluster_table], layout.n_entries + layout.hub_offset[:-1]])
    owner, start = np.repeat(np.arange(size.size), size), pointer(size)[:-1]
    source = ranges(first, size)  # among table entries and hub states

    # Where a link's multipliers act: on each state of its cluster, and with the opposite sign on its hub's.
    acting, shape = link_cells(layout), (owner.size, layout.n_link_states)
    on_clusters = sp.csr_array((np.ones(acting[0].size), acting), shape=shape)
    hub_rows = int(size[: layout.n_clusters].sum())
    hub_row = hub_rows + data.hub_state_of_link_state
    ones = np.ones(layout.n_link_states)
    on_hubs = sp.csr_array((ones, (hub_row, np.arange(layout.n_link_states))), shape=shape)

    features, base = feature_matrix(data, free)
    matrix = sp.csr_array(features[source])
    if messages.consistency:
        consistency = sp.csr_array(on_clusters - on_hubs)
    else:
        shares = sp.diags_array(np.repeat(messages.shares, np.diff(layout.link_offset)))
        taken = shares @ features[layout.n_entries + data.hub_state_of_link_state]
        matrix = sp.csr_array(matrix + (on_clusters - on_hubs) @ taken)
        consistency = sp.csr_array(shape)

    multipliers = messages.multipliers
    if not messages.consistency:
        messages.spread_scores()
    scores = np.concatenate([messages.tables.log_entries, messages.tables.hub_scores])[source]
    forbidden = (multipliers == -np.inf) | (messages.linearisation[data.hub_state_of_link_state] == np.inf)
    impossible = (on_clusters @ forbidden.astype(float) > 0.0) | (base[source] == -np.inf)
    impossible |= np.concatenate([np.zeros(hub_rows, dtype=bool), messages.linearisation == np.inf])
    number = np.concatenate([messages.numbers.cluster, np.ones(layout.n_hubs)])
    scores = np.where(impossible, -np.inf, scores + on_clusters @ np.where(forbidden, 0.0, multipliers)) / number[owner]
    log_belief = scores - np.maximum.reduceat(scores, start)[owner] if owner.size else scores
    belief = np.exp(log_belief)
    belief[hub_rows:] = messages.hub_beliefs()
    belief /= np.bincount(owner, weights=belief, minlength=size.size)[owner]

    weight = np.repeat(data.weights, np.diff(layout.instance_clusters))
    weight = np.concatenate([weight, np.repeat(data.weights, np.diff(layout.instance_hubs))])
    kept = ~impossible & (weight[owner] > 0.0)
    return PossibleStates(matrix[kept], consistency[kept], owner[kept], weight, belief[kept], bool(impossible.any()))


def feature_matrix(data: PackedData, free: Bools) -> tuple[sp.csr_array, Floats]:
    """Features that free weights multiply, of table entries followed by hub states, and base scores.

    Columns of weights that are not learned are empty.
    """
    layout, one = data.layout, Workers(1)
    entries, hubs = np.empty(layout.n_entries), np.empty(layout.n_hub_states)

    def scores(weights: Floats) -> Floats:
        data.scores.scores(weights, entries, hubs, one)
        return np.concatenate([entries, hubs])

    base = scores(np.zeros(data.n_weights))
    finite = np.where(np.isfinite(base), base, 0.0)
    counts = np.random.default_rng(0).random(base.size)
    seen = data.scores.moments(counts[: entries.size], counts[entries.size :], one)
    columns = []
    for j in np.flatnonzero(free).tolist():
        column = np.zeros(base.size)
        if seen[j] != 0.0:
            unit = np.zeros(data.n_weights)
            unit[j] = 1.0
            found = scores(unit)
            column = np.where(np.isfinite(base), found - finite, 0.0)
        columns.append(sp.csc_array(column[:, None]))
    empty = sp.csc_array((base.size, 0))
    return sp.csr_array(sp.hstack([empty, *columns])), base


def _joined(parts: list[PossibleStates]) -> PossibleStates:
    owners = pointer([part.weight.size for part in parts])
    return PossibleStates(
        sp.csr_array(sp.vstack([part.features for part in parts])),
        sp.csr_array(sp.block_diag([part.consistency for part in parts])),
        np.concatenate([part.owner + shift for part, shift in zip(parts, owners[:-1], strict=True)]),
        np.concatenate([part.weight for part in parts]),
        np.concatenate([part.belief for part in parts]),
        any(part.constrained for part in parts),
    )


def _gathered(states: PossibleStates, communicator: Communicator) -> PossibleStates:
    """The states of all ranks."""
    if communicator.size == 1:
        return states

    def matrices(matrix: sp.csr_array, *, shared: bool) -> sp.csr_array:
        lengths = gather(communicator, np.diff(matrix.indptr).astype(np.float64))
        data = gather(communicator, matrix.data)
        widths = gather(communicator, np.array([float(matrix.shape[1])]))
        shift = 0.0 if shared else widths[: communicator.rank].sum()
        columns = gather(communicator, matrix.indices + shift)
        width = int(widths[0] if shared else widths.sum())
        parts = data, columns.astype(np.int64), pointer(lengths.astype(np.int64))
        return sp.csr_array(parts, shape=(lengths.size, width))

    owners = gather(communicator, np.array([float(states.weight.size)]))
    return PossibleStates(
        matrices(states.features, shared=True),
        matrices(states.consistency, shared=False),
        gather(communicator, states.owner + owners[: communicator.rank].sum()).astype(np.int64),
        gather(communicator, states.weight),
        gather(communicator, states.belief),
        anywhere(communicator, states.constrained)[0],
    )


def _is_inside(states: PossibleStates, empirical: Floats) -> bool:
    belief = states.belief
    if not belief.size or belief.min() <= 0.0:
        return not belief.size
    weight = states.weight[states.owner]
    conditions = sp.csr_array(sp.vstack([states.features.T * weight, states.consistency.T, states.membership.T]))
    n_owners = states.weight.size
    present = np.bincount(states.owner, minlength=n_owners) > 0
    wanted = np.concatenate([empirical, np.zeros(states.consistency.shape[1]), present.astype(float)])
    for _ in range(3):
        scaled = conditions * belief
        size = np.sqrt(np.asarray(scaled.multiply(scaled).sum(axis=1))).ravel()
        size[size == 0.0] = 1.0
        gap = wanted - conditions @ belief
        rounding = np.finfo(np.float64).eps * (abs(conditions) @ belief + np.abs(wanted))
        if (np.abs(gap) + 4.0 * rounding).max(initial=0.0) <= _EXACT * (weight * belief).min():
            return True
        change = lsmr(sp.diags_array(1.0 / size) @ scaled, gap / size, atol=1e-14, btol=1e-14, maxiter=1000)[0]
        belief = belief * (1.0 + change)
        if not belief.min() > 0.0:
            return False
    return False


def _has_direction(states: PossibleStates, empirical: Floats, seconds: float) -> bool:
    """Whether the linear program finds weights and multipliers along which D does not rise and states lose score.

    States that cannot occur in consistent beliefs, because of states that scores forbid, lose score along multipliers
    alone, and do not count.
    """
    lost = np.zeros(states.owner.size, dtype=bool)
    if states.constrained:
        alone = _solve(states, empirical, lost, seconds, fixed=True)
        if alone is None:
            return False
        lost = alone[2] > 0.5
    solved = _solve(states, empirical, lost, seconds, fixed=False)
    return solved is not None and _holds(states, empirical, *solved[:2], lost)


def _solve(
    states: PossibleStates, empirical: Floats, ignored: Bools, seconds: float, *, fixed: bool
) -> tuple[Floats, Floats, Floats] | None:
    """Maximise the sum of losses, each at most 1, subject to r <= 0; weights, multipliers and losses."""
    n_rows, n_owners = states.owner.size, states.weight.size
    n_weights, n_links = empirical.size, states.consistency.shape[1]
    rows = sp.hstack([states.features, states.consistency, -states.membership, sp.eye_array(n_rows)])
    present = np.bincount(states.owner, minlength=n_owners) > 0
    rate = np.concatenate([-empirical, np.zeros(n_links), np.where(present, states.weight, 0.0), np.zeros(n_rows)])
    cost = np.zeros(rate.size)
    cost[-n_rows:] = np.where(ignored, 0.0, -1.0)
    lower, upper = np.full(rate.size, -np.inf), np.full(rate.size, np.inf)
    if fixed:
        lower[:n_weights], upper[:n_weights] = 0.0, 0.0
    lower[-n_rows:], upper[-n_rows:] = 0.0, 1.0
    from scipy.optimize import linprog  # a fifth of a second, which few need

    solved: Any = linprog(
        cost,
        A_ub=sp.csr_array(sp.vstack([rows, sp.csr_array(rate[None])])),
        b_ub=np.zeros(n_rows + 1),
        bounds=np.stack([lower, upper], axis=1),
        method="highs",
        options={
            "time_limit": min(seconds, _MOST_SECONDS),
            "primal_feasibility_tolerance": 1e-10,
            "dual_feasibility_tolerance": 1e-10,
        },
    )
    if solved.status != 0:
        return None
    return solved.x[:n_weights], solved.x[n_weights : n_weights + n_links], solved.x[-n_rows:]


def _holds(states: PossibleStates, empirical: Floats, weights: Floats, multipliers: Floats, ignored: Bools) -> bool:
    """Whether r <= 0 along a direction, up to rounding, though a state loses score."""
    scores = states.features @ weights + states.consistency @ multipliers
    top = np.full(states.weight.size, -np.inf)
    np.maximum.at(top, states.owner, scores)
    present = top != -np.inf
    loss = float((top[states.owner] - scores)[~ignored].max(initial=0.0))
    rate = float(states.weight[present] @ top[present]) - float(empirical @ weights)
    return loss > 0.5 and rate <= _ROUNDING * loss * float(states.weight[present].min())


def _rate_and_loss(data: PackedData, entries: Floats, hub_scores: Floats, multipliers: Floats) -> tuple[float, float]:
    """Weighted sum of the largest scores of clusters and hubs, and the most that a possible state loses against one.

    A cluster's scores are its table's and its links' multipliers; from a hub's the multipliers are taken away. States
    of score -inf do not count, nor do instances without weight.
    """
    layout, (cells, states) = data.layout, link_cells(data.layout)
    sizes = np.diff(layout.table_offset)[layout.cluster_table]
    clusters = entries[ranges(layout.table_offset[layout.cluster_table], sizes)]
    clusters = clusters + np.bincount(cells, weights=multipliers[states], minlength=clusters.size)
    taken = np.bincount(data.hub_state_of_link_state, weights=multipliers, minlength=hub_scores.size)
    hubs = np.subtract(hub_scores, taken, out=np.full(taken.size, -np.inf), where=hub_scores != -np.inf)
    value, loss = 0.0, 0.0
    for scores, start, owners in (
        (clusters, pointer(sizes)[:-1], layout.instance_clusters),
        (hubs, layout.hub_offset[:-1], layout.instance_hubs),
    ):
        weight = np.repeat(data.weights, np.diff(owners))
        top = np.maximum.reduceat(scores, start) if scores.size else scores
        least = np.minimum.reduceat(np.where(scores == -np.inf, np.inf, scores), start) if scores.size else scores
        counts = (weight != 0.0) & (top != -np.inf)
        value += float(weight[counts] @ top[counts])
        loss = max(loss, float((top[counts] - least[counts]).max(initial=0.0)))
    return value, loss


def certifies(
    parts: Iterable[tuple[Any, Floats]], direction: Floats, empirical: Floats, communicator: Communicator
) -> bool:
    """Whether r <= 0 along weights ``direction`` with the multipliers that come with each part, or with none.

    The cheap check, for problems of any size; all ranks get one answer.
    """
    rates, loss, least = np.zeros(2), np.zeros(2), np.inf
    for messages, multipliers in parts:
        data, layout, tables = messages.data, messages.data.layout, messages.tables
        entries, hubs = tables.log_entries, tables.hub_scores
        data.scores.scores(np.zeros_like(direction), entries, hubs, messages.workers)
        base, base_hub = entries.copy(), hubs.copy()
        data.scores.scores(direction, entries, hubs, messages.workers)
        np.subtract(entries, base, out=entries, where=base != -np.inf)
        np.subtract(hubs, base_hub, out=hubs, where=base_hub != -np.inf)
        hub_state = data.hub_state_of_link_state
        shared = np.repeat(messages.shares, np.diff(layout.link_offset)) * hubs[hub_state]
        hubs[messages.linearisation == np.inf] = -np.inf
        for k, delta in enumerate((shared, multipliers)):
            delta = np.where(hubs[hub_state] == -np.inf, -np.inf, np.where(np.isfinite(delta), delta, 0.0))
            rate, lost = _rate_and_loss(data, entries, hubs, delta)
            rates[k] += rate
            loss[k] = max(loss[k], lost)
        least = min(least, float(data.weights[data.weights > 0.0].min(initial=np.inf)))
    communicator.add_up(rates)
    *losses, negative_least = largest_anywhere(communicator, *loss.tolist(), -least)
    rates -= empirical @ direction
    return any(
        lost > 0.0 and rate <= -negative_least * _ROUNDING * lost
        for rate, lost in zip(rates.tolist(), losses, strict=True)
    )
