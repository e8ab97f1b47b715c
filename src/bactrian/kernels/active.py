"""Sequential sweeps that pass over hubs whose neighbours no longer change, in linear space.

On a large graph most hubs settle within a few sweeps, and the rest of the work is done for a few of them. A hub is
active while a marginal of a cluster around it has changed, at the cluster's other hub, by more than a threshold since
the hub was last updated. A caller that wants the accuracy of full sweeps ends with one over all hubs.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from bactrian.kernels.layout import Layout
from bactrian.kernels.pairs import Linear, divide, hub_belief, pair_product
from bactrian.kernels.tables import SMALLEST, Numbers, Tables

Floats = NDArray[np.float64]


@njit(cache=True, nogil=True, error_model="numpy")
def sweep_active(
    layout: Layout,
    tables: Tables,
    numbers: Numbers,
    hub_log: Floats,
    instance: int,
    backward: bool,
    linear: Linear,
    active: NDArray[np.bool_],
    threshold: float,
) -> float:
    """As :func:`bactrian.kernels.pairs.sweep_linear`, over the active hubs of an instance alone.

    ``active`` counts from the instance's first hub. Hubs that are updated become inactive; those next to a change of
    more than ``threshold`` become active.
    """
    hub_order, hub_offset, hub_links = layout.hub_order, layout.hub_offset, layout.hub_links
    link_cluster, link_offset, link_hub = layout.link_cluster, layout.link_offset, layout.link_hub
    link_partner, link_axis = layout.link_partner, layout.link_axis
    cluster_table, table_offset = layout.cluster_table, layout.table_offset
    exp_entries, shift, hub_scores = tables.exp_entries, tables.shift, tables.hub_scores
    hub_number, cluster_number = numbers.hub, numbers.cluster
    message, scale, product, belief = linear.message, linear.scale, linear.product, linear.belief
    kappas = linear.kappa
    begin, end = layout.instance_hubs[instance], layout.instance_hubs[instance + 1]
    first_link = hub_links[begin]
    base = link_offset[first_link]
    change = 0.0
    for position in range(end - begin):
        hub = hub_order[end - 1 - position if backward else begin + position]
        if not active[hub - begin]:
            continue
        active[hub - begin] = False
        start = hub_offset[hub]
        states = hub_offset[hub + 1] - start
        first, last = hub_links[hub], hub_links[hub + 1]
        divisor = hub_number[hub]
        uniform = True
        for link in range(first, last):
            cluster = link_cluster[link]
            kappa = cluster_number[cluster]
            table = cluster_table[cluster]
            partner = link_partner[link]
            at = link_offset[partner]
            others = link_offset[partner + 1] - at
            axis = link_axis[link]
            rows, columns = (others, states) if axis == 1 else (states, others)
            low = pair_product(
                exp_entries, table_offset[table], rows, columns, axis, message, at - base, product,
                (link - first) * states,
            )  # fmt: skip
            if not low > SMALLEST:
                return np.nan
            scale[link - first_link] = -scale[partner - first_link] - shift[table]
            divisor += kappa
            kappas[link - first] = kappa
            uniform = uniform and kappa == kappas[0]
        hub_belief(hub_scores, start, states, last - first, product, kappas, uniform, divisor, hub_log, belief)
        for link in range(first, last):
            step = divide(message, link_offset[link] - base, product, (link - first) * states, belief, states)
            if step > threshold:
                active[link_hub[link_partner[link]] - begin] = True
            change = max(change, step)
    return change
