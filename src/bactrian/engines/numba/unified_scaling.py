"""Propagation and scaling in one sweep: belief propagation where some hubs have prescribed beliefs."""

from __future__ import annotations

import math

from bactrian.arrays import Bools, Floats
from bactrian.compiling import njit
from bactrian.engines.numba.arithmetic import exp, normalise_logs
from bactrian.engines.numba.stars import incoming_message
from bactrian.engines.numba.tables import Part, new_scratch


@njit(cache=True, nogil=True, error_model="numpy")
def scale_hubs(part: Part, prescribed: Bools, target: Floats, backward: bool, damping: float) -> float:
    """Star updates of the hubs of one instance in turn, with Bethe's numbers; returns the largest change of a marginal.

    With m_l the marginal of link l's cluster on the hub without the link's own multiplier, and all sums over the links
    around the hub,

        prescribed (log b = ``target``):   theta_v = log b - sum log m_l       (written to ``tables.hub_scores``)
        free:                              log b = theta_v + sum log m_l, normalised

    and then d_l = log b - log m_l in both cases. ``damping`` keeps that part of the old multipliers of free hubs. Needs
    scores and targets that are finite.
    """
    layout, multipliers, hub_log = part.layout, part.multipliers, part.beliefs.hub_log
    n_hubs, hub_scores = layout.hub_offset.size - 1, part.tables.hub_scores
    scratch = new_scratch(layout, 0, layout.instance_hubs.size - 1)
    incoming, total = scratch.star, scratch.belief
    change = 0.0
    for position in range(n_hubs):
        hub = layout.hub_order[n_hubs - 1 - position if backward else position]
        start = layout.hub_offset[hub]
        states = layout.hub_offset[hub + 1] - start
        first, last = layout.hub_links[hub], layout.hub_links[hub + 1]
        for k in range(states):
            total[k] = 0.0
        for link in range(first, last):
            message = (link - first) * states
            incoming_message(part, link, scratch, incoming, message)
            for k in range(states):
                total[k] += incoming[message + k]
        if prescribed[hub]:
            for k in range(states):
                hub_log[start + k] = target[start + k]
                hub_scores[start + k] = target[start + k] - total[k]
        else:
            for k in range(states):
                hub_log[start + k] = hub_scores[start + k] + total[k]
            normalise_logs(hub_log, start, start + states)
        kept = 0.0 if prescribed[hub] else damping
        for link in range(first, last):
            message = (link - first) * states
            offset = layout.link_offset[link]
            # Only differences between states matter: the level of the old multipliers is removed first.
            level = 0.0
            for k in range(states):
                level += multipliers[offset + k] - (hub_log[start + k] - incoming[message + k])
            level /= states
            for k in range(states):
                new = hub_log[start + k] - incoming[message + k]
                step = multipliers[offset + k] - level - new
                change = max(change, exp(hub_log[start + k]) * min(1.0, math.fabs(step)))
                multipliers[offset + k] = new + kept * step
    return change
