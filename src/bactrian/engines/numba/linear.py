"""Star updates in linear space, for clusters that are pairs between two hubs.

A link's multipliers are held as u = exp(d / kappa - s) with one logarithmic scale s per link, and a table as its
exponential E, shifted by its largest score. Then, with l the links of hub v,

    m_l = E'u_l',    b = (exp(theta_v) prod_l m_l^kappa_l)^(1 / (kappa_v + sum kappa_l)) / sum,    u_l = b / m_l

for l' the other end of l's pair, and the symbols of :mod:`.stars`. Where all kappa_l are 1, b takes no logarithm, and
no exponential either with Bethe's numbers. :mod:`.pair_evaluation` has what follows from it: D, beliefs and counts.

Every product is checked against the range of floating point (:mod:`.arithmetic`); an instance that leaves it is not
``done``, and is left as it was.

All functions take ``states`` (:mod:`.vectors`): compiled for K states, they have no loops over them; with ``()``, they
serve instances of any shape. With K states all numbers of clusters are 1.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from bactrian.arrays import Floats, Ints
from bactrian.compiling import inner
from bactrian.engines.numba.arithmetic import LEAST, MOST, RISING, WIDEST, exp, in_range, log
from bactrian.engines.numba.layout import Layout
from bactrian.engines.numba.tables import Numbers, Passing, Plan
from bactrian.engines.numba.vectors import (
    States,
    copy_scaled,
    count,
    divide_messages,
    largest,
    multiply_messages,
    normalise,
    place,
    receive,
    shift_by,
    size_of,
    smallest,
    widen,
)

#: Flags under which the exponential and the logarithm keep their digits.
CAREFUL = {"contract", "nsz"}
#: Links of a hub up to which the product of their messages is safe to stay in range.
_MOST_FACTORS = 64


def make_plan(layout: Layout, numbers: Numbers, shares: Floats) -> Plan:
    """The plan of a layout under given counting numbers, and parts of hubs' scores that clusters take."""
    rank = np.empty(layout.n_hubs, dtype=np.int64)
    rank[layout.hub_order] = np.arange(layout.n_hubs)
    rank = rank[layout.link_hub]
    leads = (layout.link_partner >= 0) & (rank < rank[layout.link_partner])
    kappa, degree = numbers.cluster[layout.link_cluster], np.diff(layout.hub_links)
    others = np.concatenate([[0], np.cumsum(kappa != 1.0)])[layout.hub_links]
    multiplies = (np.diff(others) == 0) & (degree <= _MOST_FACTORS) & (numbers.hub + degree > 0.0)
    start = layout.table_offset[layout.cluster_table[layout.link_cluster]]
    unlike = (shares != 0.0) | (layout.cluster_table[layout.link_cluster] >= layout.table_shared)
    alike = np.diff(np.concatenate([[0], np.cumsum(unlike)])[layout.hub_links[layout.instance_hubs]]) == 0
    return Plan(start, leads, multiplies, layout.instance_hubs[:-1], alike)


class Linear(NamedTuple):
    """Messages of one instance, its links and hubs counted from the first, its tables, and scratch."""

    entries: Floats  #: exponentials of all tables
    transposed: Floats  #: the same with rows and columns exchanged, or nothing
    message: Floats  #: u, by link state
    scale: Floats  #: s, by link
    psi: Floats  #: exp(theta_v - its largest), by hub state
    belief: Floats  #: b, by hub state
    product: Floats  #: m, of the links around a hub, or by link state
    low: Floats  #: least entries of all products so far; these four have as many entries as the largest hub has states
    high: Floats  #: greatest entries
    change: Floats  #: largest changes of marginals
    rise: Floats  #: largest rises beyond what may be
    spare: Floats  #: by hub or pair, where no sweep is wanted


@inner(allocates=True)
def with_scratch(
    part: Passing, message: Floats, scale: Floats, psi: Floats, belief: Floats, product: Floats, widest: int, spare: int
) -> Linear:
    """Messages, the tables they meet, and the rest of what sweeps need."""
    tables = part.tables
    low, high, change, rise = np.empty((4, widest))
    return Linear(
        tables.exp_entries, tables.exp_transposed, message, scale, psi, belief, product, low, high, change, rise,
        np.empty(spare),
    )  # fmt: skip


@inner(allocates=True)
def new_linear(part: Passing, first: int, last: int, by_link: bool) -> Linear:
    """Space for any of the instances ``first:last``, ``by_link`` for m of all links at a time."""
    layout = part.layout
    hub_offset, hub_links, link_offset = layout.hub_offset, layout.hub_links, layout.link_offset
    n_hubs, n_links, n_states, most_links, widest, spare = 1, 1, 1, 1, 1, 1
    for instance in range(first, last):
        begin, end = layout.instance_hubs[instance], layout.instance_hubs[instance + 1]
        n_hubs = max(n_hubs, hub_offset[end] - hub_offset[begin])
        n_links = max(n_links, hub_links[end] - hub_links[begin])
        n_clusters = layout.instance_clusters[instance + 1] - layout.instance_clusters[instance]
        spare = max(spare, end - begin, n_clusters)
        n_states = max(n_states, link_offset[hub_links[end]] - link_offset[hub_links[begin]])
        for hub in range(begin, end):
            widest = max(widest, hub_offset[hub + 1] - hub_offset[hub])
            most_links = max(most_links, hub_links[hub + 1] - hub_links[hub])
    message, scale, psi, belief = np.empty(n_states), np.empty(n_links), np.empty(n_hubs), np.empty(n_hubs)
    product = np.empty(n_states if by_link else most_links * widest)
    return with_scratch(part, message, scale, psi, belief, product, widest, spare)


@inner(fastmath=CAREFUL)
def exponentials(
    logs: Floats, start: int, offsets: Ints, first: int, last: int, values: Floats, tops: Floats, states: States
) -> bool:
    """exp(logs - largest) of items ``first:last``, from ``logs[start]`` on, and the largest.

    False where an item is not finite or too wide.
    """
    base = place(offsets, first, states)
    widest = 0.0
    for i in range(first, last):
        at, n = place(offsets, i, states) - base, size_of(offsets, i, states)
        top = largest(logs, start + at, n)
        widest = max(widest, top - smallest(logs, start + at, n))
        tops[i - first] = top
        shift_by(values, at, logs, start + at, -top, n)
    if not widest < WIDEST:  # infinite or NaN, where some score is infinite
        return False
    for i in range(place(offsets, last, states) - base):  # one long loop, which vectorises
        values[i] = exp(values[i])
    return True


@inner(forceinline=True)
def load_messages(part: Passing, linear: Linear, instance: int, states: States) -> bool:
    """u and s of an instance from its multipliers; False where the range demands log space."""
    layout, message, multipliers, link_offset = part.layout, linear.message, part.multipliers, part.layout.link_offset
    first = layout.hub_links[layout.instance_hubs[instance]]
    last = layout.hub_links[layout.instance_hubs[instance + 1]]
    base = place(link_offset, first, states)
    if len(states) > 0:
        return exponentials(multipliers, base, link_offset, first, last, message, linear.scale, states)
    link_cluster, cluster_number = layout.link_cluster, part.numbers.cluster
    for link in range(first, last):
        at, inverse = link_offset[link], 1.0 / cluster_number[link_cluster[link]]
        copy_scaled(message, at - base, multipliers, at, inverse, link_offset[link + 1] - at)
    return exponentials(message, 0, link_offset, first, last, message, linear.scale, states)


@inner(forceinline=True)
def load(part: Passing, linear: Linear, instance: int, from_scratch: bool, states: States) -> bool:
    """Messages of an instance for star updates, ``from_scratch`` all 1; False where the range demands log space."""
    return load_states(part, linear, instance, from_scratch, states) and match_scales(part, linear, instance)


@inner(forceinline=True)
def load_states(part: Passing, linear: Linear, instance: int, from_scratch: bool, states: States) -> bool:
    """See :func:`load`; the scales of a pair are those of its multipliers, and need not cancel."""
    layout, scale, tops = part.layout, linear.scale, linear.belief
    begin, end = layout.instance_hubs[instance], layout.instance_hubs[instance + 1]
    base, hub_scores = place(layout.hub_offset, begin, states), part.tables.hub_scores
    if not exponentials(hub_scores, base, layout.hub_offset, begin, end, linear.psi, tops, states):
        return False
    first, last = layout.hub_links[begin], layout.hub_links[end]
    if from_scratch:
        base = place(layout.link_offset, first, states)
        linear.message[: place(layout.link_offset, last, states) - base] = 1.0
        scale[: last - first] = 0.0
        return True
    return load_messages(part, linear, instance, states)


@inner(forceinline=True)
def match_scales(part: Passing, linear: Linear, instance: int) -> bool:
    """Of each pair the end that a backward sweep comes to first takes the scale that makes them cancel; it stays so.

    False where some table demands log space.
    """
    layout, scale, origin = part.layout, linear.scale, part.layout.hub_links[part.plan.origin[instance]]
    first = layout.hub_links[layout.instance_hubs[instance]]
    last = layout.hub_links[layout.instance_hubs[instance + 1]]
    leads, link_partner, link_cluster = part.plan.link_leads, layout.link_partner, layout.link_cluster
    shift, narrow, cluster_table = part.tables.shift, part.tables.narrow, layout.cluster_table
    fits = True
    for link in range(first, last):
        if not leads[link]:
            table = cluster_table[link_cluster[link]]
            scale[link - origin] = -scale[link_partner[link] - origin] - shift[table]
            fits &= narrow[table]
    return fits


@inner(fastmath=CAREFUL, forceinline=True)
def store_logs(part: Passing, linear: Linear, instance: int, wanted: bool, states: States) -> bool:
    """Logarithms of an instance's beliefs and messages, where wanted; False, and nothing stored, out of range."""
    layout, multipliers, hub_log = part.layout, part.multipliers, part.beliefs.hub_log
    hub_offset, link_offset, hub_links = layout.hub_offset, layout.link_offset, layout.hub_links
    belief, message, scale = linear.belief, linear.message, linear.scale
    begin, end = layout.instance_hubs[instance], layout.instance_hubs[instance + 1]
    first, last = hub_links[begin], hub_links[end]
    hub_base, base = place(hub_offset, begin, states), place(link_offset, first, states)
    n_hub_states, n_link_states = place(hub_offset, end, states) - hub_base, place(link_offset, last, states) - base
    if not (in_range(belief, n_hub_states) and in_range(message, n_link_states)):
        return False
    if not wanted:
        return True
    # Slices, since an index that might be negative keeps loops from being vectorised.
    hub_log, logs = hub_log[hub_base : hub_base + n_hub_states], multipliers[base : base + n_link_states]
    for i in range(n_hub_states):
        hub_log[i] = log(belief[i])
    for i in range(n_link_states):
        logs[i] = log(message[i])
    link_cluster, cluster_number = layout.link_cluster, part.numbers.cluster
    for link in range(first, last):
        at, n = place(link_offset, link, states), size_of(link_offset, link, states)
        shift_by(multipliers, at, multipliers, at, scale[link - first], n)
        if len(states) == 0:
            copy_scaled(multipliers, at, multipliers, at, cluster_number[link_cluster[link]], n)
    return True


@inner(forceinline=True)
def believe(linear: Linear, to: int, of: int, degree: int, divisor: float, n: Any) -> None:
    """b of a hub into ``linear.belief[to:]`` from its links' messages in ``linear.product[of:]``; numbers are 1."""
    multiply_messages(linear, to, of, degree, n)
    if divisor != 1.0:
        _root(linear.belief, to, divisor, count(n))
        widen(linear.low, 0, linear.high, 0, linear.belief, to, n)
    normalise(linear.belief, to, n)


@inner()
def believe_by_logs(part: Passing, linear: Linear, hub: int, to: int, of: int) -> None:
    """The same whatever the numbers of its links, and however many there are."""
    layout, numbers, belief, product = part.layout, part.numbers, linear.belief, linear.product
    start, divisor = layout.hub_offset[hub], numbers.hub[hub]
    n = layout.hub_offset[hub + 1] - start
    copy_scaled(belief, to, part.tables.hub_scores, start, 1.0, n)
    for link in range(layout.hub_links[hub], layout.hub_links[hub + 1]):
        kappa = numbers.cluster[layout.link_cluster[link]]
        widen(linear.low, 0, linear.high, 0, product, of, n)
        _add_logs(belief, to, product, of, kappa, n)
        divisor += kappa
        of += n
    copy_scaled(belief, to, belief, to, 1.0 / divisor, n)
    top = largest(belief, to, n)
    if not top - smallest(belief, to, n) < WIDEST:
        linear.low[0] = 0.0
    shift_by(belief, to, belief, to, -top, n)
    _exponentiate(belief, to, n)
    normalise(belief, to, n)


@inner(forceinline=True)
def believe_hub(part: Passing, linear: Linear, hub: int, to: int, of: int, n: Any) -> None:
    """b of a hub by the faster of the two ways that its numbers allow."""
    if part.plan.hub_multiplies[hub]:
        degree = part.layout.hub_links[hub + 1] - part.layout.hub_links[hub]
        believe(linear, to, of, degree, part.numbers.hub[hub] + degree, n)
    else:
        believe_by_logs(part, linear, hub, to, of)


@inner(fastmath=CAREFUL)
def _root(values: Floats, at: int, divisor: float, size: int) -> None:
    """values^(1 / divisor)."""
    if divisor == 2.0:
        for k in range(at, at + size):
            values[k] = math.sqrt(values[k])
    elif divisor == 4.0:
        for k in range(at, at + size):
            values[k] = math.sqrt(math.sqrt(values[k]))
    else:
        inverse = 1.0 / divisor
        for k in range(at, at + size):
            values[k] = exp(log(values[k]) * inverse)


@inner(fastmath=CAREFUL)
def _add_logs(values: Floats, at: int, more: Floats, of: int, factor: float, size: int) -> None:
    for k in range(size):
        values[at + k] += factor * log(more[of + k])


@inner(fastmath=CAREFUL)
def _exponentiate(values: Floats, at: int, size: int) -> None:
    for k in range(at, at + size):
        values[k] = exp(values[k])


@inner(forceinline=True)
def begin_sweep(linear: Linear) -> None:
    """Before a sweep: nothing has left the range, nothing has changed."""
    linear.low[:], linear.high[:], linear.change[:], linear.rise[:] = 1.0, 1.0, 0.0, 0.0


@inner(forceinline=True)
def end_sweep(linear: Linear) -> float:
    """The largest change of a marginal in a sweep; NaN where log space is needed.

    Checked once, since what has left the range of floating point stays outside it.
    """
    size = linear.low.size
    if not (smallest(linear.low, 0, size) > LEAST and largest(linear.high, 0, size) < MOST):
        return np.nan
    return max(largest(linear.change, 0, size), RISING if largest(linear.rise, 0, size) > 0.0 else 0.0)


@inner(forceinline=True)
def sweep_pairs(
    part: Passing, linear: Linear, instance: int, backward: bool, halvings: int, held: Floats, states: States
) -> float:
    """Star updates of an instance's hubs in turn, each from the newest messages; see :func:`end_sweep`.

    With ``halvings`` n a multiplier goes but 2^-n of its way, by n square roots of u_new u_old;
    ``held`` is for the old u of a star.
    """
    layout, message, link_offset = part.layout, linear.message, part.layout.link_offset
    begin, end, origin = layout.instance_hubs[instance], layout.instance_hubs[instance + 1], part.plan.origin[instance]
    hub_base, base = place(layout.hub_offset, origin, states), place(link_offset, layout.hub_links[origin], states)
    begin_sweep(linear)
    for position in range(end - begin):
        hub = layout.hub_order[end - 1 - position if backward else begin + position]
        first, degree = layout.hub_links[hub], layout.hub_links[hub + 1] - layout.hub_links[hub]
        to, n = place(layout.hub_offset, hub, states) - hub_base, size_of(layout.hub_offset, hub, states)
        for j in range(degree):
            receive_one(part, linear, first + j, base, j * count(n), states)
        believe_hub(part, linear, hub, to, 0, n)
        at, size = place(link_offset, first, states) - base, degree * count(n)
        if halvings > 0:
            copy_scaled(held, 0, message, at, 1.0, size)
        divide_messages(linear, at, 0, to, degree, n)
        for _ in range(halvings):
            for i in range(size):
                message[at + i] = math.sqrt(message[at + i] * held[i])
    return end_sweep(linear)


@inner(forceinline=True)
def receive_one(part: Passing, linear: Linear, link: int, base: int, to: int, states: States) -> None:
    """m of a link into ``linear.product[to:]``, where the instance's first link has the state ``base``."""
    link_offset, partner = part.layout.link_offset, part.layout.link_partner[link]
    at, m = place(link_offset, partner, states) - base, size_of(link_offset, partner, states)
    start, axis = part.plan.link_start[link], part.layout.link_axis[link]
    receive(linear, start, axis, at, to, m, size_of(link_offset, link, states))


@inner()
def receive_all(part: Passing, linear: Linear, instance: int, states: States) -> None:
    """m of all links of an instance, by link state."""
    layout = part.layout
    first = layout.hub_links[layout.instance_hubs[instance]]
    base = place(layout.link_offset, first, states)
    for link in range(first, layout.hub_links[layout.instance_hubs[instance + 1]]):
        receive_one(part, linear, link, base, place(layout.link_offset, link, states) - base, states)


@inner()
def update_pairs_together(part: Passing, linear: Linear, instance: int, states: States) -> float:
    """Star updates of all hubs of an instance from the same old messages; see :func:`end_sweep`."""
    layout, hub_links = part.layout, part.layout.hub_links
    begin, end = layout.instance_hubs[instance], layout.instance_hubs[instance + 1]
    hub_base, base = place(layout.hub_offset, begin, states), place(layout.link_offset, hub_links[begin], states)
    begin_sweep(linear)
    receive_all(part, linear, instance, states)
    for hub in range(begin, end):
        to, n = place(layout.hub_offset, hub, states) - hub_base, size_of(layout.hub_offset, hub, states)
        at = place(layout.link_offset, hub_links[hub], states) - base
        believe_hub(part, linear, hub, to, at, n)
        divide_messages(linear, at, at, to, hub_links[hub + 1] - hub_links[hub], n)
    return end_sweep(linear)
