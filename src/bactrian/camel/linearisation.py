"""The linearisation g of the sepset entropies that were carved out of the concave part.

g is the slope of r H(b) at the last beliefs, r (-1 - log b), and the exponent of beliefs takes **minus** g (the sign
under Eq. 11 of the paper is a slip). The constant -r is left out: it changes neither beliefs nor weights, and without
it D at a fixed point is the dual value of the whole entropy, on a tree the exact negative log-likelihood.

Shares of g may sit on the clusters around a hub: in terms of the multipliers that kernels see, d - g_link, that only
moves the point from which the next solve starts.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from bactrian.camel.messages import Messages
from bactrian.graphs.packed import PackedData
from bactrian.parallel.communicator import Communicator, largest

Floats = NDArray[np.float64]
Extrapolate = Callable[[Floats, Floats, Floats], Floats | None]


class Linearisation:
    """Keeps ``dual.hub_bias`` = -g up to date.

    ``extrapolate`` accelerates the fixed-point iteration over g: (T(x), T(x) - x, importance) to the next x, or None
    for T(x). Without it every update is a step of the concave-convex procedure.
    """

    def __init__(self, dual: Messages, share: float = 0.0, extrapolate: Extrapolate | None = None) -> None:
        self.dual = dual
        self._extrapolate = extrapolate
        data = dual.data
        self._hub = data.hub_of_state
        self._number = dual.carving.linearised[self._hub]
        self._links = _OnLinks(dual, share) if share > 0.0 or data.hub_virtual.any() else None

    def update(self, log_beliefs: Floats | None = None) -> float:
        """Relinearise at ``log_beliefs`` of hubs, by default those of the last evaluation; returns the change of g."""
        dual = self.dual
        hub_log = dual.beliefs.hub_log if log_beliefs is None else log_beliefs
        number = self._number
        used = number > 0.0
        total = np.where(used, -number * np.where(used, hub_log, 0.0), 0.0)
        if self._links is not None:
            total = self._links.spread(total, number, hub_log, at_beliefs=log_beliefs is None)
        moved = _centred(dual, self._hub, -total, dual.hub_bias)
        change = float(np.abs(moved).max(initial=0.0))
        further = None
        if self._extrapolate is not None and log_beliefs is None:
            image = np.where(np.isfinite(dual.hub_bias), dual.hub_bias, 0.0) + moved
            further = self._extrapolate(image, moved, np.exp(hub_log))
        if further is None:
            dual.hub_bias[:] = -total
            return change
        # Beliefs that have this linearisation take the place of the last ones, and make it one of normalised beliefs.
        free = used & np.isfinite(total)
        logs = np.where(free, further / np.where(used, number, 1.0), hub_log)
        offsets, hub = dual.data.layout.hub_offset, self._hub
        logs -= np.maximum.reduceat(logs, offsets[:-1])[hub]
        logs -= np.log(np.bincount(hub, weights=np.exp(logs)))[hub]
        beliefs = np.exp(logs)
        dual.hub_bias[:] = np.where(free, number * np.where(free, logs, 0.0), -total)
        dual.beliefs_before = beliefs
        return change

    def start_at_observed(self, communicator: Communicator) -> None:
        """Linearise at the observed distribution of states, pooled over all hubs of a kind."""
        self.update(empirical_log_beliefs(self.dual.data, communicator))


class _OnLinks:
    """Shares of g that sit on the clusters around a hub."""

    def __init__(self, dual: Messages, share: float) -> None:
        self.dual = dual
        data, layout = dual.data, dual.data.layout
        self._hub_state = data.hub_state_of_link_state
        self._on_links = np.zeros(layout.n_link_states)
        link_share = share / np.maximum(data.degrees, 1)[layout.link_hub]
        virtual = data.hub_virtual[layout.link_hub]
        first = np.zeros(layout.n_links, dtype=bool)
        first[layout.hub_links[:-1][data.degrees > 0]] = True
        link_share = np.where(virtual, np.where(first, share, 1.0 - share), link_share)
        self._share = np.repeat(link_share, np.diff(layout.link_offset))

    def spread(self, slope: Floats, number: Floats, hub_log: Floats, *, at_beliefs: bool) -> Floats:
        """Move the clusters' shares into the multipliers; returns g of the hubs, all shares together."""
        dual = self.dual
        link_log = hub_log[self._hub_state]
        if at_beliefs:
            marginal = dual.beliefs.link_marginal
            trusted = marginal > 1e-200
            link_log = np.where(trusted, np.log(np.where(trusted, marginal, 1.0)), link_log)
        coefficient = -self._share * number[self._hub_state]
        link_slope = np.multiply(coefficient, link_log, out=np.zeros_like(link_log), where=coefficient != 0.0)
        on_hub = 1.0 - np.bincount(self._hub_state, weights=self._share, minlength=number.size)
        total: Floats = np.multiply(on_hub, slope, out=np.zeros_like(slope), where=on_hub > 1e-12)
        total += np.bincount(self._hub_state, weights=link_slope, minlength=number.size)
        dual.multipliers += np.where(np.isfinite(link_slope), self._on_links - link_slope, 0.0)
        self._on_links = np.where(np.isfinite(link_slope), link_slope, 0.0)
        return total


def empirical_log_beliefs(data: PackedData, communicator: Communicator) -> Floats:
    """Log of the observed distribution of each hub, pooled over hubs of one kind and smoothed by one pseudo-count.

    In conditional training a single instance's empirical distribution is a point mass, whose logarithm is infinite.
    """
    sizes = np.diff(data.layout.hub_offset)
    most_states, last_kind = largest(communicator, float(sizes.max(initial=1)), float(data.hub_kind.max(initial=0)))
    counts = pooled_counts(data, (int(last_kind) + 1, int(most_states)))
    communicator.add_up(counts.reshape(-1))
    return smoothed_log(data, counts)


def pooled_counts(data: PackedData, shape: tuple[int, int]) -> Floats:
    """(kinds, states) weighted counts of observed states over all hubs of a kind."""
    assert data.hub_truth is not None
    counts = np.bincount(_pool(data, shape[1]), weights=data.hub_truth, minlength=shape[0] * shape[1])
    return counts.astype(np.float64).reshape(shape)


def smoothed_log(data: PackedData, counts: Floats) -> Floats:
    """(n_hub_states,) log of the pooled distribution of each hub's kind."""
    hub, n_hubs = data.hub_of_state, data.layout.n_hubs
    sizes = np.diff(data.layout.hub_offset)
    pooled = counts.reshape(-1)[_pool(data, counts.shape[1])]
    total = np.bincount(hub, weights=pooled, minlength=n_hubs)[hub]
    return np.log((pooled + 1.0 / sizes[hub]) / (total + 1.0))


def _pool(data: PackedData, most_states: int) -> NDArray[np.int64]:
    """(n_hub_states,) place of each hub state among the states of all kinds."""
    hub = data.hub_of_state
    state = np.arange(data.layout.n_hub_states) - data.layout.hub_offset[hub]
    return data.hub_kind[hub] * most_states + state


def _centred(dual: Messages, hub: NDArray[np.int64], new: Floats, old: Floats) -> Floats:
    """The change of -g without a constant per hub, for a constant changes nothing; 0 where a state is forbidden."""
    usable = np.isfinite(old) & np.isfinite(new)
    difference = np.subtract(new, old, out=np.zeros_like(new), where=usable)
    mean = np.bincount(hub, weights=np.exp(dual.beliefs.hub_log) * difference, minlength=dual.data.layout.n_hubs)
    return np.where(usable, difference - mean[hub], 0.0)
