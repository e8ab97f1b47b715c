"""The linearisation g of the sepset entropies that were carved out of the concave part (Eq. 10, and below Eq. 12).

g is the slope of r H(b) at the last beliefs, r (-1 - log b), and the exponent of beliefs takes **minus** g (the sign
under Eq. 11 of the paper is a slip). The constant -r is left out: it changes neither beliefs nor weights, and without
it D at a fixed point is the dual value of the whole entropy, on a tree the exact negative log-likelihood. Everywhere in
the library, in memory and in checkpoints, ``linearisation`` is g with this sign; infinity forbids a state.

Shares of g may sit on the clusters around a hub: in terms of the multipliers that kernels see, d - g_link, that only
moves the point from which the next solve starts.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from bactrian.arrays import Floats, Ints
from bactrian.camel.dual import Dual, larger
from bactrian.camel.parts import Hubs, Part, Vector
from bactrian.graphs.ragged import ranges
from bactrian.parallel import largest_anywhere
from bactrian.solvers.lbfgs import largest_magnitude

Extrapolate = Callable[[Vector, Vector, Vector], Vector | None]

#: A linearisation takes log beliefs below minus this for it: a state that vanishes gets fainter with every
#: relinearisation, and g of 1e9 would leave rounding of 1e-7 in the dual, in which no line search finds its way.
_DEEPEST = 1e4


class Linearisation:
    """Keeps g of a dual up to date.

    ``extrapolate`` accelerates the fixed-point iteration over g: (T(x), T(x) - x, importance) to the next x, or None
    for T(x). Without it, and on data that comes and goes part by part, every update is a step of the concave-convex
    procedure.
    """

    def __init__(self, dual: Dual, share: float = 0.0, extrapolate: Extrapolate | None = None) -> None:
        self.dual = dual
        (first, *others) = dual.parts
        # Of parts that come and go nothing is kept between updates.
        self._extrapolate = extrapolate if first.stays and not others else None
        is_explicit = dual.data.in_memory and bool(dual.data.hub_virtual.any())
        self._on_links = _OnLinks(first, share) if share > 0.0 or is_explicit else None

    def update(self) -> float:
        """Relinearise at the beliefs of the last evaluation; returns the largest change of g."""
        change = 0.0
        for part in self.dual.loaded():
            change = larger(change, self._update(part))
        return largest_anywhere(self.dual.communicator, change)[0]

    def start_at(self, log_beliefs: Floats) -> None:
        """Linearise at given beliefs of hubs, of data in memory."""
        self._update(self.dual.part, log_beliefs)

    def start_at_observed(self) -> None:
        """Linearise at the observed distribution of states, pooled over all hubs of a kind."""
        counts = pooled_counts(self.dual)
        for part in self.dual.loaded():
            self._update(part, part.hubs.of(_smoothed_log(part.hubs, counts)))

    def _update(self, part: Part, log_beliefs: Vector | None = None) -> float:
        """Relinearise at ``log_beliefs`` of hubs, by default those of the last pass; returns the change of g."""
        hubs, xp = part.hubs, part.hubs.xp
        number, hub_log = hubs.number, part.hub_log if log_beliefs is None else log_beliefs
        hub_log = xp.where((hub_log < -_DEEPEST) & xp.isfinite(hub_log), -_DEEPEST, hub_log)
        used = number > 0.0
        g = xp.where(used, -number * xp.where(used, hub_log, 0.0), 0.0)
        if self._on_links is not None:
            g = self._on_links.spread(g, number, hub_log, at_beliefs=log_beliefs is None)
        old = part.linearisation
        usable = xp.isfinite(old) & xp.isfinite(g)
        # Without a constant per hub, for a constant changes nothing; 0 where a state is forbidden.
        difference = xp.where(usable, g, 0.0) - xp.where(usable, old, 0.0)
        moved = xp.where(usable, difference - hubs.sums(xp.exp(part.hub_log) * difference), 0.0)
        further = None
        if self._extrapolate is not None and log_beliefs is None:
            image = xp.where(xp.isfinite(old), old, 0.0) + moved
            further = self._extrapolate(image, moved, xp.exp(hub_log))
        if further is not None:
            # Beliefs that have this linearisation take the place of the last ones, and make it one of normalised
            # beliefs.
            free = used & xp.isfinite(g)
            logs = hubs.normalised(xp.where(free, -further / xp.where(used, number, 1.0), hub_log))
            g = xp.where(free, -number * xp.where(free, logs, 0.0), g)
            self.dual.count_changes_from(xp.exp(logs))
        part.linearisation[:] = g
        return largest_magnitude(moved)


class _OnLinks:
    """Shares of g that sit on the clusters around a hub."""

    def __init__(self, part: Part, share: float) -> None:
        self._part, links = part, part.links()
        self._on_links = np.zeros(links.hub_state.size)
        of_edge = np.where(links.is_first, share, 1.0 - share)
        self._share = np.where(links.is_virtual, of_edge, share / np.maximum(links.degree, 1))

    def spread(self, slope: Floats, number: Floats, hub_log: Floats, *, at_beliefs: bool) -> Floats:
        """Move the clusters' shares into the multipliers; returns g of the hubs, all shares together."""
        part, links = self._part, self._part.links()
        link_log = hub_log[links.hub_state]
        if at_beliefs:
            trusted = links.marginal > 1e-200
            link_log = np.where(trusted, np.log(np.where(trusted, links.marginal, 1.0)), link_log)
        coefficient = -self._share * number[links.hub_state]
        link_slope = np.multiply(coefficient, link_log, out=np.zeros_like(link_log), where=coefficient != 0.0)
        on_hub = 1.0 - np.bincount(links.hub_state, weights=self._share, minlength=number.size)
        total: Floats = np.multiply(on_hub, slope, out=np.zeros_like(slope), where=on_hub > 1e-12)
        total += np.bincount(links.hub_state, weights=link_slope, minlength=number.size)
        part.multipliers[:] += np.where(np.isfinite(link_slope), self._on_links - link_slope, 0.0)
        self._on_links = np.where(np.isfinite(link_slope), link_slope, 0.0)
        return total


def pooled_counts(dual: Dual) -> Floats:
    """(kinds, states) weighted counts of observed states over all hubs of a kind, in all parts and ranks.

    In conditional training a single instance's empirical distribution is a point mass, whose logarithm is infinite.
    """
    most_states, last_kind = 1.0, 0.0
    for part in dual.loaded():
        most_states = max(most_states, float(np.diff(part.hubs.offset).max(initial=1)))
        last_kind = max(last_kind, float(part.hubs.kind.max(initial=0)))
    most_states, last_kind = largest_anywhere(dual.communicator, most_states, last_kind)
    counts = np.zeros((int(last_kind) + 1, int(most_states)))
    for part in dual.loaded():
        assert part.hubs.truth is not None
        place = _pool(part.hubs, counts.shape[1])
        counts += np.bincount(place, weights=part.hubs.truth, minlength=counts.size).reshape(counts.shape)
    dual.communicator.add_up(counts.reshape(-1))
    return counts


def _smoothed_log(hubs: Hubs, counts: Floats) -> Floats:
    """(n_hub_states,) log of the pooled distribution of each hub's kind, smoothed by one pseudo-count."""
    sizes = np.diff(hubs.offset)
    hub = np.repeat(np.arange(sizes.size), sizes)
    pooled = counts.reshape(-1)[_pool(hubs, counts.shape[1])]
    total = np.bincount(hub, weights=pooled, minlength=sizes.size)[hub]
    return np.log((pooled + 1.0 / sizes[hub]) / (total + 1.0))


def _pool(hubs: Hubs, most_states: int) -> Ints:
    """(n_hub_states,) place of each hub state among the states of all kinds."""
    return ranges(hubs.kind * most_states, np.diff(hubs.offset))
