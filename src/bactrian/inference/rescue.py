"""Beliefs that message passing left undefined, which happens only where it did not converge.

Where the clusters around a hub disagree so far that every state is impossible in one of them, the hub's belief from the
multipliers is 0 / 0. It is replaced by the mean of the clusters' marginals, and the dual value, which is then not a
number either, by minus the free energy of the beliefs as they are.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bactrian.camel.messages import Messages, MessageTables

Floats = NDArray[np.float64]


def mend_hubs(messages: Messages) -> None:
    """Replace undefined beliefs of hubs by the mean marginal of their links."""
    data, beliefs = messages.data, messages.beliefs
    layout, hub = data.layout, data.hub_of_state
    undefined = np.isnan(beliefs.hub_log)
    if not undefined.any():
        return
    marginal = np.where(np.isfinite(beliefs.link_marginal), beliefs.link_marginal, 0.0)
    total = np.bincount(data.hub_state_of_link_state, weights=marginal, minlength=layout.n_hub_states) + 1e-300
    mean = total / np.bincount(hub, weights=total, minlength=layout.n_hubs)[hub]
    beliefs.hub_log[undefined] = np.log(mean[undefined])


def free_energy(messages: Messages, reader: MessageTables, instance: int) -> float:
    """-<theta, b> - sum_a kappa_a H_a - sum_v kappa_v H_v at the beliefs of ``reader``."""
    layout, tables, numbers = messages.data.layout, messages.tables, messages.numbers
    energy = 0.0
    for cluster in range(*layout.instance_clusters[instance : instance + 2].tolist()):
        start, stop = layout.table_offset[layout.cluster_table[cluster] + np.arange(2)]
        energy -= _value(reader.cluster(cluster), tables.log_entries[start:stop], float(numbers.cluster[cluster]))
    for hub in range(*layout.instance_hubs[instance : instance + 2].tolist()):
        start, stop = layout.hub_offset[hub], layout.hub_offset[hub + 1]
        energy -= _value(reader.hub(hub), tables.hub_scores[start:stop], float(numbers.hub[hub]))
    return energy


def _value(belief: Floats, scores: Floats, number: float) -> float:
    used = (belief > 0.0) & np.isfinite(scores)
    belief = belief[used]
    return float(belief @ scores[used] - number * (belief @ np.log(belief)))
