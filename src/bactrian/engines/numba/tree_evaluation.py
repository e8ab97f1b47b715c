"""Exact beliefs, counts and D of trees of pairs with Bethe's numbers, in two passes of one product m = E'u per edge.

The symbols are those of :mod:`.linear`. In the order of a tree's hubs each has at most one neighbour before it, its
parent. Going backward, a hub's star update leaves its parent's message out: t_v b = exp(theta_v) prod m over children,
and u = b for the parent. Going forward, the parent's message is multiplied in, those of the children are as they were,
and u = b / m for each child. Then D = log Z is the sum of log t_v and of what exponentials were divided by, and the
belief of a pair is E u u', with a sum of 1.
"""

from __future__ import annotations

import numpy as np

from bactrian.arrays import Bools, Floats
from bactrian.compiling import inner, njit
from bactrian.engines.numba.arithmetic import log
from bactrian.engines.numba.linear import (
    CAREFUL,
    Linear,
    begin_sweep,
    end_sweep,
    load,
    new_linear,
    receive_one,
    store_logs,
)
from bactrian.engines.numba.pair_evaluation import add_counts, count_hubs, count_pairs
from bactrian.engines.numba.tables import Limits, Passing
from bactrian.engines.numba.vectors import (
    States,
    copy_scaled,
    divide,
    fill,
    multiply_messages,
    normalise,
    place,
    size_of,
)


@njit(cache=True, nogil=True, error_model="numpy")
def evaluate_trees(
    part: Passing, limits: Limits, counts: Floats, selected: Bools, first: int, last: int, states: States
) -> None:
    """What :func:`.pair_evaluation.evaluate_pairs` does, for ``selected`` trees and whatever the multipliers are."""
    linear, done = new_linear(part, first, last, True), part.beliefs.done
    outer = np.zeros(counts.size)
    for instance in range(first, last):
        if selected[instance]:
            done[instance] = _evaluate_tree(part, limits, linear, instance, outer, states)
    add_counts(part, outer, counts)


@inner(fastmath=CAREFUL)
def _evaluate_tree(part: Passing, limits: Limits, linear: Linear, instance: int, outer: Floats, states: States) -> bool:
    """See :func:`evaluate_trees`; False, and nothing counted, where log space is needed."""
    layout, beliefs, hub_links, totals = part.layout, part.beliefs, part.layout.hub_links, linear.spare
    if not load(part, linear, instance, True, states):
        return False
    begin, end = layout.instance_hubs[instance], layout.instance_hubs[instance + 1]
    value = linear.belief[: end - begin].sum() - linear.scale[: hub_links[end] - hub_links[begin]].sum()
    begin_sweep(linear)
    violation = 0.0
    for backward in (True, False):
        violation = _pass(part, linear, instance, backward, states)
    if np.isnan(end_sweep(linear)) or not store_logs(part, linear, instance, limits.logs, states):
        return False
    count_hubs(part, linear, instance, states)
    count_pairs(part, linear, instance, outer, states)
    for i in range(end - begin):
        totals[i] = log(totals[i])
    beliefs.value[instance] = value + totals[: end - begin].sum()
    beliefs.violation[instance], beliefs.sweeps[instance], beliefs.residual[instance] = violation, 2, violation
    return True


@inner()
def _pass(part: Passing, linear: Linear, instance: int, backward: bool, states: States) -> float:
    """One of the two passes; the largest part by which a t_v is now another than that of the pass before."""
    layout, leads, totals = part.layout, part.plan.link_leads, linear.spare
    hub_links, link_offset = layout.hub_links, layout.link_offset
    begin, end = layout.instance_hubs[instance], layout.instance_hubs[instance + 1]
    hub_base, base = place(layout.hub_offset, begin, states), place(link_offset, hub_links[begin], states)
    change = 0.0
    for position in range(end - begin):
        hub = layout.hub_order[end - 1 - position if backward else begin + position]
        first, last = hub_links[hub], hub_links[hub + 1]
        to, n = place(layout.hub_offset, hub, states) - hub_base, size_of(layout.hub_offset, hub, states)
        for link in range(first, last):
            at = place(link_offset, link, states) - base
            if leads[link] == backward:
                receive_one(part, linear, link, base, at, states)
            elif backward:
                fill(linear.product, at, 1.0, n)
        multiply_messages(linear, to, place(link_offset, first, states) - base, last - first, n)
        total = normalise(linear.belief, to, n)
        for link in range(first, last):
            at = place(link_offset, link, states) - base
            if leads[link] and not backward:
                divide(linear.message, at, linear.belief, to, linear.product, at, n)
            elif backward and not leads[link]:
                copy_scaled(linear.message, at, linear.belief, to, 1.0, n)
        if backward:
            totals[hub - begin] = total
        else:
            change = max(change, abs(total / totals[hub - begin] - 1.0))
    return change
