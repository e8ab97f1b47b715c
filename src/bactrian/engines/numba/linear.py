"""Star updates in linear space, for clusters that are pairs between two hubs.

A link's multipliers are held as u = exp(d / kappa - s) with one logarithmic scale s per link, and a table as its
exponential E, shifted by its largest score. Then, with l the links of hub v,

    m_l = E'u_l',    b = (exp(theta_v) prod_l m_l^kappa_l)^(1 / (kappa_v + sum kappa_l)) / sum,    u_l = b / m_l

for l' the other end of l's pair, and the symbols of :mod:`.stars`. Where all kappa_l are 1, b takes no logarithm, and
no exponential either with Bethe's numbers. :mod:`.pair_evaluation` has what follows from it: D, beliefs and counts.

Every product is checked against the range of floating point (:mod:`.arithmetic`); an instance that leaves it is not
``done``, and is left as it was.

All functions take ``states`` (:mod:`.arithmetic`): compiled for K states, their loops over them are unrolled; with
``()``, they serve instances of any shape. With K states all numbers of clusters are 1.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from bactrian.arrays import Floats, Ints
from bactrian.compiling import njit, record
from bactrian.engines.numba.arithmetic import (
    CAREFUL,
    FAST_MATH,
    FOUR,
    LEAST,
    MOST,
    ONE,
    RISE,
    RISING,
    START,
    THREE,
    TWO,
    WIDEST,
    States,
    exp,
    in_range,
    log,
    pair_message,
    place,
    size_of,
    unsigned,
)
from bactrian.engines.numba.layout import Layout
from bactrian.engines.numba.tables import Numbers, Passing, Plan, turned

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
    turned: int  #: how much further those with rows and columns exchanged are; 0 where there are none
    message: Floats  #: u, by link state
    scale: Floats  #: s, by link
    psi: Floats  #: exp(theta_v - its largest), by hub state
    belief: Floats  #: b, by hub state
    product: Floats  #: m, of the links around a hub, or by link state
    spare: Floats  #: by hub or pair, where no sweep is wanted


HeldLinear = record(Linear)


@njit()
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
    entries, product = part.tables.exp_entries, np.empty(n_states if by_link else most_links * widest)
    return HeldLinear(
        entries, turned(entries, part.tables.log_entries), np.empty(n_states), np.empty(n_links), np.empty(n_hubs),
        np.empty(n_hubs), product, np.empty(spare),
    )  # fmt: skip


@njit(fastmath=CAREFUL)
def exponentials(
    logs: Floats, start: int, offsets: Ints, first: int, last: int, values: Floats, tops: Floats, states: States
) -> bool:
    """exp(logs - largest) of items ``first:last``, from ``logs[start]`` on, and the largest.

    False where an item is not finite or too wide.
    """
    base = place(offsets, first, states)
    widest = 0.0
    for i in range(first, last):
        at, n = unsigned(place(offsets, i, states) - base), unsigned(size_of(offsets, i, states))
        of = unsigned(start) + at
        top, bottom = -np.inf, np.inf
        for k in range(n):
            value = logs[of + k]
            top = value if value > top else top
            bottom = value if value < bottom else bottom
        widest = max(widest, top - bottom)
        tops[i - first] = top
        for k in range(n):
            values[at + k] = logs[of + k] - top
    if not widest < WIDEST:  # infinite or NaN, where some score is infinite
        return False
    for i in range(place(offsets, last, states) - base):  # one long loop, which vectorises
        values[i] = exp(values[i])
    return True


@njit(inline="always")
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
        at, to, inverse = unsigned(link_offset[link]), unsigned(link_offset[link] - base), 1.0
        inverse /= cluster_number[link_cluster[link]]
        for k in range(unsigned(link_offset[link + 1]) - at):
            message[to + k] = inverse * multipliers[at + k]
    return exponentials(message, START, link_offset, first, last, message, linear.scale, states)


@njit(inline="always")
def load_states(part: Passing, linear: Linear, instance: int, states: States) -> bool:
    """Messages of an instance for star updates; False where the range demands log space.

    The scales of a pair are those of its multipliers: :func:`match_scales` makes them cancel.
    """
    layout, tops = part.layout, linear.belief
    begin, end = layout.instance_hubs[instance], layout.instance_hubs[instance + 1]
    base, hub_scores = place(layout.hub_offset, begin, states), part.tables.hub_scores
    if not exponentials(hub_scores, base, layout.hub_offset, begin, end, linear.psi, tops, states):
        return False
    return load_messages(part, linear, instance, states)


@njit(inline="always")
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


@njit(fastmath=CAREFUL)
def store_logs(part: Passing, linear: Linear, instance: int, wanted: bool, states: States) -> bool:
    """Logarithms of an instance's beliefs and messages, where wanted; False, and nothing stored, out of range."""
    layout, multipliers, hub_log = part.layout, part.multipliers, part.beliefs.hub_log
    link_offset, link_cluster, cluster_number = layout.link_offset, layout.link_cluster, part.numbers.cluster
    belief, message, scale = linear.belief, linear.message, linear.scale
    begin, end = layout.instance_hubs[instance], layout.instance_hubs[instance + 1]
    first, last = layout.hub_links[begin], layout.hub_links[end]
    hub_base, base = place(layout.hub_offset, begin, states), place(link_offset, first, states)
    n_hub_states = place(layout.hub_offset, end, states) - hub_base
    n_link_states = place(link_offset, last, states) - base
    if not (in_range(belief, START, n_hub_states) and in_range(message, START, n_link_states)):
        return False
    if not wanted:
        return True
    to = unsigned(hub_base)
    for i in range(unsigned(n_hub_states)):
        hub_log[to + i] = log(belief[i])
    to = unsigned(base)
    for i in range(unsigned(n_link_states)):
        multipliers[to + i] = log(message[i])
    for link in range(first, last):
        at, level = unsigned(place(link_offset, link, states)), scale[link - first]
        factor = 1.0 if len(states) > 0 else cluster_number[link_cluster[link]]
        for k in range(unsigned(size_of(link_offset, link, states))):
            multipliers[at + k] = factor * (multipliers[at + k] + level)
    return True


@njit(fastmath=FAST_MATH, forceinline=True)
def believe(
    psi: Floats, product: Floats, belief: Floats, to: int, of: int, degree: int, divisor: float, n: int
) -> tuple[float, int]:
    """b of a hub into belief[to:], from psi[to:] and the ``degree`` messages in product[of:]; numbers of links are 1.

    Returns what b was divided by, and how often the product of a message with those before it left the range; who
    calls it looks at the messages themselves.
    """
    to, of, n, last, total, outside = unsigned(to), unsigned(of), unsigned(n), unsigned(n) - ONE, 0.0, 0
    for block in range((n + THREE) // FOUR):  # four states at a time, the last of them as often as needed
        a = FOUR * block
        b, c, d, start = min(a + ONE, last), min(a + TWO, last), min(a + THREE, last), of
        w, x, y, z = psi[to + a], psi[to + b], psi[to + c], psi[to + d]
        p = q = r = s = e = f = g = h = 1.0  # the smallest and the largest of each
        for _ in range(unsigned(degree)):
            w, x, y, z = w * product[start + a], x * product[start + b], y * product[start + c], z * product[start + d]
            p, q, r, s = min(p, w), min(q, x), min(r, y), min(s, z)
            e, f, g, h = max(e, w), max(f, x), max(g, y), max(h, z)
            start += n
        outside += not (min(min(p, q), min(r, s)) > LEAST and max(max(e, f), max(g, h)) < MOST)
        belief[to + a], belief[to + b], belief[to + c], belief[to + d] = w, x, y, z
    if divisor != 1.0:
        outside += _root(belief, to, divisor, n)
    for k in range(n):
        total += belief[to + k]
    inverse = 1.0 / total
    for k in range(n):
        belief[to + k] *= inverse
    return total, outside


@njit(fastmath=FAST_MATH, forceinline=True)
def divide_messages(
    message: Floats, product: Floats, belief: Floats, held: Floats, at: int, to: int, degree: int, normalised: bool,
    n: int,
) -> tuple[float, int, int]:  # fmt: skip
    """u = b / m for ``degree`` links: message[at:] = belief[to:] / product each.

    Returns the largest change of a marginal, which was message * product, divided by its sum unless that is 1, how many
    rose by more than ``RISE`` times themselves, and how many messages m are out of range. Positive numbers are in the
    order of their bits, whose largest is found in a loop that vectorises: it goes over the states of all links, with b
    and the sums repeated in ``held``.
    """
    at, to, n, size, change, rises = unsigned(at), unsigned(to), unsigned(n), unsigned(degree * n), 0, 0
    outside = 0
    for j in range(unsigned(degree)):
        i, p, total = at + j * n, j * n, 1.0
        if not normalised:
            total = 0.0
            for k in range(n):
                total += message[i + k] * product[p + k]
        inverse = 1.0 / total
        for k in range(n):
            held[p + k], held[size + p + k] = belief[to + k], inverse
    for i in range(size):
        factor, wanted = product[i], held[i]
        marginal = message[at + i] * factor * held[size + i]
        message[at + i] = wanted / factor
        step = wanted - marginal
        change = max(change, int(np.float64(abs(step)).view(np.int64)))
        rises += step > RISE * marginal
        outside += not LEAST < factor < MOST
    return np.int64(change).view(np.float64), rises, outside


@njit(fastmath=CAREFUL)
def believe_by_logs(
    hub_scores: Floats, start: int, link_cluster: Ints, cluster_number: Floats, first: int, last: int,
    product: Floats, belief: Floats, to: int, of: int, divisor: float, n: int,
) -> int:  # fmt: skip
    """The same from hub_scores[start:], whatever the numbers of its links, and however many there are."""
    total, top, bottom, outside = 0.0, -np.inf, np.inf, 0
    for k in range(n):
        belief[to + k] = hub_scores[start + k]
    for link in range(first, last):
        kappa = cluster_number[link_cluster[link]]
        for k in range(n):
            value = product[of + k]
            outside += not LEAST < value < MOST
            belief[to + k] += kappa * log(value)
        divisor += kappa
        of += n
    for k in range(to, to + n):
        belief[k] /= divisor
        top, bottom = max(top, belief[k]), min(bottom, belief[k])
    outside += not top - bottom < WIDEST
    for k in range(to, to + n):
        belief[k] = exp(belief[k] - top)
        total += belief[k]
    for k in range(to, to + n):
        belief[k] /= total
    return outside


@njit(fastmath=CAREFUL)
def _root(values: Floats, at: int, divisor: float, n: int) -> int:
    """values[at:]^(1 / divisor), and how many left the range; the place is unsigned."""
    inverse, outside = 1.0 / divisor, 0
    for k in range(n):
        value = values[at + k]
        if divisor == 2.0:
            value = math.sqrt(value)
        elif divisor == 4.0:
            value = math.sqrt(math.sqrt(value))
        else:
            value = exp(log(value) * inverse)
        values[at + k] = value
        outside += not LEAST < value < MOST
    return outside


@njit(inline="always")
def sweep_pairs(
    part: Passing, linear: Linear, instance: int, backward: bool, again: bool, halvings: int, held: Floats,
    source: Floats, states: States,
) -> float:  # fmt: skip
    """Star updates of an instance's hubs in turn, from the messages in ``source``; the largest change of a marginal.

    NaN where log space is needed: checked once, since what has left the range of floating point stays outside it.
    Where that is ``linear.message`` itself, each is made from the newest, and in a sweep that comes ``again``, after
    one without halvings, each pair's Z is 1 already. From a copy, all are made from the same old ones. With
    ``halvings`` n a multiplier goes but 2^-n of its way, by n square roots of u_new u_old. ``held`` is scratch: three
    times the states of a star, the last third for its old u.
    """
    layout, plan, hub_number = part.layout, part.plan, part.numbers.hub
    link_start, hub_multiplies = plan.link_start, plan.hub_multiplies
    hub_offset, hub_links, link_offset = layout.hub_offset, layout.hub_links, layout.link_offset
    hub_order, link_partner, link_axis = layout.hub_order, layout.link_partner, layout.link_axis
    entries, turn, message, psi = linear.entries, linear.turned, linear.message, linear.psi
    product, belief, change, rises, outside = linear.product, linear.belief, 0.0, 0, 0
    begin, end, origin = layout.instance_hubs[instance], layout.instance_hubs[instance + 1], part.plan.origin[instance]
    hub_base, base = place(hub_offset, origin, states), place(link_offset, hub_links[origin], states)
    hub_scores, link_cluster, cluster_number = part.tables.hub_scores, layout.link_cluster, part.numbers.cluster
    for position in range(end - begin):
        hub = hub_order[end - 1 - position if backward else begin + position]
        first, degree = hub_links[hub], hub_links[hub + 1] - hub_links[hub]
        to, n = place(hub_offset, hub, states) - hub_base, size_of(hub_offset, hub, states)
        for j in range(degree):
            partner = link_partner[first + j]
            at, m = place(link_offset, partner, states) - base, size_of(link_offset, partner, states)
            start, axis = link_start[first + j], link_axis[first + j]
            pair_message(entries, turn, start, axis, source, at, product, j * n, m, n)
        at, size = place(link_offset, first, states) - base, degree * n
        if hub_multiplies[hub]:
            outside += believe(psi, product, belief, to, START, degree, hub_number[hub] + degree, n)[1]
        else:
            outside += believe_by_logs(
                hub_scores, place(hub_offset, hub, states), link_cluster, cluster_number, first, first + degree,
                product, belief, to, START, hub_number[hub], n,
            )  # fmt: skip
        if halvings > 0:
            for i in range(size):
                held[2 * size + i] = message[at + i]
        moved, rising, left = divide_messages(message, product, belief, held, at, to, degree, again, n)
        change, rises, outside = max(change, moved), rises + rising, outside + left
        for _ in range(halvings):
            for i in range(size):
                message[at + i] = math.sqrt(message[at + i] * held[2 * size + i])
    return np.nan if outside > 0 else max(change, RISING if rises > 0 else 0.0)
