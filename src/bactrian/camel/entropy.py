"""Entropies: counting numbers of clusters and sepsets, and how they are carved.

The family is H = sum_i kappa_i H(pi_i) - sum_ij lambda_ij H(mu_ij). Around a hub v all its sepset entropies are of
the same beliefs, so the hub's total number is c_v = kappa_v - sum lambda. The dual keeps a part ``hub`` of it in the
concave objective and linearises the rest, ``linearised`` = hub - c_v >= 0 (the concave-convex procedure of Yuille
2002).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bactrian.graphs.domain import real_numbers
from bactrian.graphs.packed import PackedData

Floats = NDArray[np.float64]


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


@dataclass(frozen=True)
class CountingNumbers:
    """Counting numbers of your own: H = sum_i clusters[i] H(pi_i) - sum_e sepsets[e] H(mu_e).

    Each is a number for all, or an array over the clusters (appended hubs last) or edges of the graph that all
    instances share. Numbers of clusters with a table must be positive and sepset numbers must not be negative.
    """

    clusters: Any = 1.0
    sepsets: Any = 1.0


def carve(data: PackedData, entropy: str | CountingNumbers) -> Carving:
    """Counting numbers of ``data`` under ``entropy``: "bethe", "clusters" or :class:`CountingNumbers`.

    A singleton cluster that the user gave counts 1. A hub that was appended is bookkeeping: its entropy is kept out of
    the concave part (Bethe's total 1 - d is reached by linearising d - 1), unless nothing else covers the variable.
    """
    layout = data.layout
    degrees = data.degrees.astype(np.float64)
    own = data.hub_given | (degrees == 0)
    if isinstance(entropy, CountingNumbers):
        return _carve_numbers(data, entropy)
    if entropy not in ("bethe", "clusters"):
        raise ValueError(f"entropy must be 'bethe', 'clusters' or CountingNumbers, found {entropy!r}")
    kept = own.astype(np.float64)
    if entropy == "clusters":
        linearised = np.zeros(layout.n_hubs)
    else:
        total = np.where(data.hub_virtual, -1.0, 1.0 - degrees)
        linearised = kept - total
    return Carving(np.ones(layout.n_clusters), kept, linearised)


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


def _spread(numbers: Any, index: NDArray[np.int64], count: int, name: str) -> Floats:
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


def total_numbers(data: PackedData) -> Carving:
    """Bethe's entropy with nothing linearised: message passing with these numbers is belief propagation."""
    total = np.where(data.hub_virtual, -1.0, 1.0 - data.degrees)
    return Carving(np.ones(data.layout.n_clusters), total, np.zeros(data.layout.n_hubs))
