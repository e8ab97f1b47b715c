"""Entropies: counting numbers of clusters and sepsets by name, and how they are carved (Eq. 6, and Section 3).

The family is H = sum_i kappa_i H(pi_i) - sum_ij lambda_ij H(mu_ij). Around a hub v all its sepset entropies are of
the same beliefs, so the hub's total number is c_v = kappa_v - sum lambda. The dual keeps a part ``hub`` of it in the
concave objective and linearises the rest, ``linearised`` = hub - c_v >= 0 (the concave-convex procedure of Yuille
2002). Message passing at fixed weights uses the totals: :attr:`Carving.whole`.

- ``"bethe"``: all numbers 1 (Eq. 6). A singleton cluster that the user gave counts 1. A hub that was appended is
  bookkeeping: its entropy is kept out of the concave part (Bethe's total 1 - d is reached by linearising d - 1), unless
  nothing else covers the variable.
- ``"folded"``: Bethe's, of which as much is kept as is provably concave (below).
- ``"clusters"``: kappa = 1, lambda = 0 (Eq. 9).
- ``"trw"``, tree-reweighted (Wainwright, Jaakkola and Willsky 2005): with rho_a the probability of cluster a in a
  distribution over acyclic subsets of the factor graph,

      H = sum_v H_v - sum_a rho_a (sum_{v in a} H_v - H_a),   kappa_a = rho_a,   c_v = 1 - sum_{a around v} rho_a

  is an average of upper bounds on the entropy, so that the optimum bounds log Z from above. :mod:`.forests` finds
  the rho. On an explicit cluster
  graph the subsets are spanning forests of clusters and sepsets, H = sum_i H_i - sum_e rho_e H_e: along a tree of
  clusters every further cluster adds at most its entropy given the sepset by which it hangs.
- ``"convex"`` (Heskes 2006; Weiss, Yanover and Meltzer 2007): numbers are provably concave where some c >= 0 give
  kappa_v = c_v - sum_a c_av and sum_{v in a} c_av <= kappa_a, for then H is a sum of entropies and of conditional
  entropies H_a - H_v. Here every cluster gives equal shares to its hubs.
- :class:`CountingNumbers`, or a name that :func:`register_entropy` knows: the user's own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from bactrian.arrays import Bools, Floats, Ints, real_numbers
from bactrian.errors import keeper
from bactrian.graphs.forests import appearances
from bactrian.graphs.packed import PackedData
from bactrian.parallel.threads import Deadline

ENTROPIES = ("bethe", "folded", "clusters", "trw", "convex")

_ROUNDING = 1e-12


@dataclass(frozen=True)
class Carving:
    """Counting numbers of a packed data set: what stays in the concave part, and what is linearised."""

    cluster: Floats  #: (C,) kappa of table clusters, positive
    hub: Floats  #: (H,) kept number of hubs
    linearised: Floats  #: (H,) number of times a hub's entropy is subtracted through its linearisation

    @property
    def relinearises(self) -> bool:
        """Whether anything is left to linearise."""
        return bool(self.linearised.any())

    @property
    def whole(self) -> Carving:
        """The same entropy with nothing linearised, for message passing: with Bethe's it is belief propagation."""
        return Carving(self.cluster, _snapped(self.hub - self.linearised), np.zeros_like(self.hub))


@dataclass(frozen=True)
class CountingNumbers:
    """Counting numbers of your own: H = sum_i clusters[i] H(pi_i) - sum_e sepsets[e] H(mu_e).

    Each is one number for all, or an array over the clusters (appended hubs last) or edges of a graph that all
    instances share. Numbers of clusters with a table must be positive and sepset numbers must not be negative.
    """

    clusters: Any = 1.0
    sepsets: Any = 1.0


CountingRule = Callable[[PackedData], Carving | CountingNumbers]

#: Entropies of users, by name.
REGISTERED: dict[str, CountingRule] = {}


def register_entropy(name: str) -> Callable[[CountingRule], CountingRule]:
    """Register an entropy by name, for ``Camel(entropy=name)``: learning, matched inference and files.

    The decorated function takes packed data and returns :class:`CountingNumbers`, or a ``Carving`` with a number for
    every cluster and hub. Files contain only the name: register the entropy before you load them.

    Examples
    --------
    >>> import bactrian as bt
    >>> @bt.register_entropy("almost-bethe")
    ... def almost_bethe(data):
    ...     return bt.CountingNumbers(clusters=1.0, sepsets=0.9)
    >>> bt.Camel(entropy="almost-bethe").entropy
    'almost-bethe'
    """
    return keeper(REGISTERED, name, ENTROPIES)


def carve(data: PackedData, entropy: str | CountingNumbers, deadline: Deadline | None = None) -> Carving:
    """Counting numbers of ``data`` under an entropy of :data:`ENTROPIES`, or the user's own.

    ``"trw"`` falls back on rougher numbers after half of the time until the ``deadline``.
    """
    if isinstance(entropy, str) and entropy in REGISTERED:
        numbers = REGISTERED[entropy](data)
        if isinstance(numbers, Carving):
            return numbers
        entropy = numbers
    if isinstance(entropy, CountingNumbers):
        return _carve_numbers(data, entropy)
    if entropy == "trw":
        with (deadline or Deadline()).half() as half:
            return _tree_reweighted(data, half.late)
    if entropy not in ENTROPIES:
        known = ", ".join([*ENTROPIES, *REGISTERED])
        raise ValueError(f"entropy must be one of {known} or CountingNumbers, found {entropy!r}")
    total = data.total_numbers
    kept = (data.hub_given | (data.degrees == 0)).astype(np.float64)
    if data.hub_numbers is not None and entropy == "bethe":
        kept = np.maximum(kept, total)  # Kikuchi's numbers may be positive
    return Carving(np.ones(data.layout.n_clusters), *_by_name(entropy, total, kept, lambda: _concave(data)))


def pairwise_numbers(entropy: str, degrees: Ints, given: bool) -> tuple[Floats, Floats]:
    """Kept and linearised numbers of the nodes of a pairwise graph, which follow from their degrees.

    ``given`` says whether nodes have clusters of their own; "total" are Bethe's with nothing linearised.
    """
    total = 1.0 - degrees.astype(np.float64)
    kept = np.maximum(degrees == 0, float(given))
    if entropy == "total":
        return total, np.zeros_like(total)
    return _by_name(entropy, total, kept, lambda: np.maximum(total, -0.5 * degrees))


def _by_name(entropy: str, total: Floats, kept: Floats, concave: Callable[[], Floats]) -> tuple[Floats, Floats]:
    """Kept and linearised numbers of hubs, given Bethe's totals, and what is kept of them plainly and at most."""
    if entropy in ("folded", "convex"):
        kept = concave()
    return kept, kept - total if entropy in ("bethe", "folded") else np.zeros_like(total)


def _carve_numbers(data: PackedData, numbers: CountingNumbers) -> Carving:
    layout = data.layout
    hub_has_cluster = data.hub_index >= 0
    n_clusters = 1 + int(max(data.cluster_index.max(initial=-1), data.hub_index.max(initial=-1)))
    cluster = _spread(numbers.clusters, data.cluster_index, n_clusters, "clusters")
    of_hub = _spread(numbers.clusters, np.maximum(data.hub_index, 0), n_clusters, "clusters")
    own = np.where(hub_has_cluster, of_hub, 0.0)
    own = np.where(~hub_has_cluster & ~data.hub_virtual, 1.0, own)
    sepset = _spread(numbers.sepsets, data.link_edge, 1 + int(data.link_edge.max(initial=-1)), "sepsets")
    if (sepset < 0.0).any():
        raise ValueError("counting numbers of sepsets must not be negative")
    if (cluster <= 0.0).any() or (own[data.hub_given] <= 0.0).any():
        raise ValueError("counting numbers of clusters with a table must be positive")
    if (own < 0.0).any():
        raise ValueError("counting numbers of hubs must not be negative")
    per_hub = np.zeros(layout.n_hubs)
    np.add.at(per_hub, layout.link_hub, np.where(data.hub_virtual[layout.link_hub], 0.5, 1.0) * sepset)
    appended = ~data.hub_given & ~data.hub_virtual & (data.degrees > 0)
    folded = np.where(appended, np.minimum(own, per_hub), 0.0)
    return Carving(cluster, own - folded, per_hub - folded)


def _spread(numbers: Any, index: Ints, count: int, name: str) -> Floats:
    array = real_numbers(numbers, f"counting numbers of {name}")
    if not np.isfinite(array).all():
        raise ValueError(f"counting numbers of {name} must be finite")
    if array.ndim == 0:
        return np.full(index.size, float(array))
    if array.shape != (count,):
        raise ValueError(
            f"counting numbers of {name} must be one number or one for each of the {count}, found shape {array.shape}"
        )
    return array[index]


def _tree_reweighted(data: PackedData, late: Bools) -> Carving:
    """Tree-reweighted numbers, which follow from the graph alone."""
    if data.hub_numbers is not None:
        raise ValueError("trw has no numbers for region graphs; choose 'convex', or a graph with edges='bethe'")
    layout = data.layout
    joins = data.hub_virtual[layout.link_hub]  # on an explicit graph sepsets join clusters
    hub, cluster = layout.link_hub, layout.link_cluster
    sepsets = appearances(hub[joins], cluster[joins], layout.n_hubs, layout.n_clusters, late)
    number = appearances(cluster[~joins], hub[~joins], layout.n_clusters, layout.n_hubs, late)
    taken = np.bincount(hub, weights=number[cluster], minlength=layout.n_hubs)
    return Carving(number, _snapped(np.where(data.hub_virtual, -sepsets, 1.0 - taken)), np.zeros(layout.n_hubs))


def _concave(data: PackedData) -> Floats:
    """With kappa_a = 1, kappa_v = max(1 - d_v, -sum_a 1/p_a), with p_a the number of hubs that a cluster touches.

    A singleton cluster that is its variable's hub counts among the d_v only through the hub itself.

    On an explicit graph sepsets of a cluster may coincide, contain each other, or be the whole cluster. Where all of
    them have a variable in common, H_a - sum_v H_v / p_a is linear in the marginal of that variable: it is concave, but
    an optimum may lie in a vertex, which messages do not find. Such a cluster keeps a part for itself, p_a is one more.
    A tree of clusters has Bethe's numbers: H of a root and of every other cluster given its sepset. On a region graph
    Kikuchi's numbers stand for 1 - d_v, and hubs whose number is not negative take no part of their clusters.
    """
    layout = data.layout
    total = data.total_numbers
    is_region = data.hub_numbers is not None
    explicit = [] if data.explicit is None else np.flatnonzero(data.explicit).tolist()
    taking = (total < 0.0) | (not is_region)  # hubs that take a part of their clusters
    parts = np.bincount(layout.link_cluster, weights=taking[layout.link_hub], minlength=layout.n_clusters)
    parts = np.maximum(parts, 1.0)
    on_tree = np.zeros(layout.n_hubs, dtype=np.bool_)
    for m in explicit:
        on_tree[layout.instance_hubs[m] : layout.instance_hubs[m + 1]] = layout.instance_is_tree[m]
        parts[layout.instance_clusters[m] : layout.instance_clusters[m + 1]] += _share_a_variable(data, m, taking)
    shares = np.bincount(layout.link_hub, weights=(1.0 / parts)[layout.link_cluster], minlength=layout.n_hubs)
    hub = np.where(on_tree, total, np.maximum(total, -shares))
    return _snapped(hub)


def _share_a_variable(data: PackedData, instance: int, taking: Bools) -> Bools:
    """Which clusters of an explicit graph have a variable that is in all of their sepsets, as far as these take."""
    layout, hub_scopes = data.layout, data.structure.scopes(instance)[2]
    first_hub = int(layout.instance_hubs[instance])
    clusters = range(*layout.instance_clusters[instance : instance + 2].tolist())
    found = np.zeros(len(clusters), dtype=np.bool_)
    for position, cluster in enumerate(clusters):
        links = layout.cluster_link[layout.cluster_links[cluster] : layout.cluster_links[cluster + 1]]
        scopes = [set(hub_scopes[hub - first_hub]) for hub in layout.link_hub[links].tolist() if taking[hub]]
        found[position] = bool(scopes and set.intersection(*scopes))
    return found


def concave_numbers(data: PackedData, numbers: CountingNumbers | str) -> Carving:
    """Totals of a user's numbers; refuses those that are not provably concave or have no update."""
    carving = carve(data, numbers).whole
    if not is_concave(data, carving):
        raise ValueError(
            "counting_numbers give an entropy that is not provably concave: no split of the clusters' numbers covers "
            "what their sepsets subtract (lower the sepsets' numbers or raise the clusters')"
        )
    around = np.bincount(
        data.layout.link_hub, weights=carving.cluster[data.layout.link_cluster], minlength=carving.hub.size
    )
    if (carving.hub + around <= _ROUNDING).any():
        raise ValueError(
            "counting_numbers of a sepset and the clusters around it must add up to more than 0 for message passing "
            "(lower the sepsets' numbers a little)"
        )
    return carving


def is_concave(data: PackedData, carving: Carving) -> bool:
    """Whether some c_av >= 0 cover -kappa_v at every hub and add up to at most kappa_a in every cluster."""
    layout = data.layout
    wanted = np.maximum(-carving.hub, 0.0)
    size = np.maximum(np.diff(layout.cluster_links), 1)
    shares = np.bincount(
        layout.link_hub, weights=(carving.cluster / size)[layout.link_cluster], minlength=layout.n_hubs
    )
    if (shares >= wanted - _ROUNDING).all():
        return True
    from scipy.optimize import linprog  # a fifth of a second, which few need

    links = np.arange(layout.n_links)
    ones = np.ones(layout.n_links)
    covered = sp.csr_array((-ones, (layout.link_hub, links)), shape=(layout.n_hubs, layout.n_links))
    spent = sp.csr_array((ones, (layout.link_cluster, links)), shape=(layout.n_clusters, layout.n_links))
    # The least cover: how far the demands of all hubs can be met at once, as a common fraction t <= 1.
    nothing = sp.csr_array((layout.n_clusters, 1))
    matrix = sp.vstack([sp.hstack([covered, sp.csr_array(wanted[:, None])]), sp.hstack([spent, nothing])])
    bounds = np.concatenate([np.zeros(layout.n_hubs), carving.cluster])
    cost = np.zeros(layout.n_links + 1)
    cost[-1] = -1.0
    solved = linprog(cost, A_ub=matrix.tocsr(), b_ub=bounds, bounds=(0.0, None), method="highs")
    return bool(solved.status == 3 or (solved.success and -solved.fun >= 1.0 - 1e-9))


def reported_numbers(data: PackedData, carving: Carving, instance: int) -> CountingNumbers:
    """The numbers of one instance in the form in which a user gives them.

    A hub's total c_v = kappa_v - sum of its sepsets' numbers is told as kappa_v = 1 and equal sepset numbers; on an
    explicit graph a sepset's number is -c of its hub.
    """
    layout = data.layout
    clusters = np.ones(data.structure.n_clusters(instance))
    first, last = layout.instance_clusters[instance : instance + 2].tolist()
    clusters[data.cluster_index[first:last]] = carving.cluster[first:last]
    hubs = layout.instance_hubs[instance : instance + 2].tolist()
    total = carving.hub[hubs[0] : hubs[1]] - carving.linearised[hubs[0] : hubs[1]]
    links = layout.hub_links[hubs].tolist()
    virtual, degrees = data.hub_virtual[hubs[0] : hubs[1]], np.diff(layout.hub_links[hubs[0] : hubs[1] + 1])
    each = np.where(virtual, -total, (1.0 - total) / np.maximum(degrees, 1))
    edges = data.link_edge[links[0] : links[1]]
    sepsets = np.zeros(int(edges.max(initial=-1)) + 1)
    sepsets[edges] = each[layout.link_hub[links[0] : links[1]] - hubs[0]]
    return CountingNumbers(clusters, sepsets)


def _snapped(numbers: Floats) -> Floats:
    """Numbers that are whole up to rounding are made whole: dividing by an almost-zero would be fatal."""
    nearest = np.rint(numbers)
    return np.where(np.abs(numbers - nearest) < 1e-9, nearest, numbers)
