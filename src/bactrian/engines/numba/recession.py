"""Largest scores of clusters and hubs, for the rate at which the dual grows along a direction."""

from __future__ import annotations

import numpy as np

from bactrian.arrays import Bools, Floats
from bactrian.compiling import njit
from bactrian.engines.numba.layout import Layout


@njit(cache=True, nogil=True, error_model="numpy")
def recession(
    layout: Layout,
    entries: Floats,
    hub_scores: Floats,
    multipliers: Floats,
    possible: Bools,
    possible_hub: Bools,
    weights: Floats,
) -> tuple[float, float]:
    """Weighted sum of the largest scores of clusters and hubs, and the most that a possible state loses against one.

    A cluster's scores are its table's and its links' multipliers; from a hub's the multipliers are taken away.
    Entries and hub states that are not ``possible`` do not count, nor do instances without weight.
    """
    value, loss = 0.0, 0.0
    for instance in range(weights.size):
        if weights[instance] == 0.0:
            continue
        for cluster in range(layout.instance_clusters[instance], layout.instance_clusters[instance + 1]):
            table = layout.cluster_table[cluster]
            start, stop = layout.table_offset[table], layout.table_offset[table + 1]
            top, bottom = -np.inf, np.inf
            for k in range(start, stop):
                score = entries[k]
                is_possible = possible[k]
                for position in range(layout.cluster_links[cluster], layout.cluster_links[cluster + 1]):
                    link = layout.cluster_link[position]
                    state = layout.projection[layout.link_projection[link] + k - start]
                    is_possible = is_possible and possible_hub[layout.hub_offset[layout.link_hub[link]] + state]
                    score += multipliers[layout.link_offset[link] + state]
                if is_possible:
                    top, bottom = max(top, score), min(bottom, score)
            if top != -np.inf:
                value += weights[instance] * top
                loss = max(loss, top - bottom)
        for hub in range(layout.instance_hubs[instance], layout.instance_hubs[instance + 1]):
            top, bottom = -np.inf, np.inf
            first, last = layout.hub_links[hub], layout.hub_links[hub + 1]
            for k in range(layout.hub_offset[hub + 1] - layout.hub_offset[hub]):
                score = hub_scores[layout.hub_offset[hub] + k]
                for link in range(first, last):
                    score -= multipliers[layout.link_offset[link] + k]
                if possible_hub[layout.hub_offset[hub] + k]:
                    top, bottom = max(top, score), min(bottom, score)
            if top != -np.inf:
                value += weights[instance] * top
                loss = max(loss, top - bottom)
    return value, loss
