"""Large neighbourhoods of an assignment: many variables set together to their best given all others.

A connected part of the variables is eliminated one after the other, the smallest table first; where every table would
be too large, a variable is held at its state, which makes others smaller. What is left free has a junction tree of
bounded width, on which max-product is exact (bucket elimination, Dechter, Artificial Intelligence 113, 1999; large
neighbourhoods, Shaw, CP 1998; the subgraphs of Hamze & de Freitas, UAI 2004, with more than trees).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.random import Generator

from bactrian.arrays import Bools, Floats, Ints
from bactrian.compiling import kernel, njit
from bactrian.engines.numba.assignments import ScoreArrays
from bactrian.engines.numba.layout import Layout

#: Entries of all messages of a neighbourhood, at most.
_MOST_ENTRIES = 2**22


class Part(NamedTuple):
    """Variables that are looked at together, by their own numbers, and how they are eliminated."""

    members: Ints  #: (most,) hubs
    number: Ints  #: (n,) place of a variable of the instance in ``members``, or -1
    joined: Bools  #: (most, most) neighbours that are left
    weight: Floats  #: (most,) log2 of the table that eliminating a variable takes
    step: Ints  #: (most,) when it is eliminated; -1 while it is held or waits
    order: Ints  #: (most,) variables by that
    scope_start: Ints  #: (most + 1,) where the neighbours at that time are in ``scope``
    scope: Ints
    message_start: Ints  #: (most + 1,) where the message over them is in ``messages``
    messages: Floats
    choices: Ints  #: the best state of the variable for each entry of its message


def new_part(n: int, most: int) -> Part:
    """Work space for parts of at most ``most`` of ``n`` variables."""
    return Part(
        np.empty(most, dtype=np.int64), np.full(n, -1, dtype=np.int64), np.zeros((most, most), dtype=np.bool_),
        np.empty(most), np.empty(most, dtype=np.int64), np.empty(most, dtype=np.int64),
        np.zeros(most + 1, dtype=np.int64), np.empty(64 * most, dtype=np.int64), np.zeros(most + 1, dtype=np.int64),
        np.empty(_MOST_ENTRIES), np.empty(_MOST_ENTRIES, dtype=np.int16),
    )  # fmt: skip


@kernel()
def search_neighbourhoods(
    layout: Layout, scores: ScoreArrays, movable: Bools, states: Ints, m: int, part: Part, bound: float, tries: int,
    random: Generator, late: Bools,
) -> None:  # fmt: skip
    """Set one random neighbourhood of an instance after the other to its best; ``bound`` is log2 of a table's entries.

    The score never falls. Scores must be finite.
    """
    table = np.empty(int(2.0**bound) + 1)
    for _ in range(tries):
        if late[0]:
            return
        size = _grow(layout, movable, m, part, random)
        n_free = _eliminate(layout, m, size, part, bound, random)
        _collect(layout, scores, states, m, n_free, part, table, random)
        for k in range(n_free - 1, -1, -1):
            index, stride = part.message_start[k], 1
            for place in range(part.scope_start[k], part.scope_start[k + 1]):
                hub = part.members[part.scope[place]]
                index += stride * states[hub]
                stride *= layout.hub_offset[hub + 1] - layout.hub_offset[hub]
            states[part.members[part.order[k]]] = part.choices[index]
        for i in range(size):
            part.number[part.members[i] - layout.instance_hubs[m]] = -1


@kernel()
def merge(layout: Layout, scores: ScoreArrays, states: Ints, trial: Ints, m: int) -> None:
    """Take from another assignment of an instance every connected part in which it differs and is no worse.

    No cluster has variables of two such parts, so that each can be chosen by itself (partition crossover, Whitley,
    Hains & Howe, GECCO 2009). Scores must be finite.
    """
    first, last = layout.instance_hubs[m], layout.instance_hubs[m + 1]
    reached, members = np.zeros(last - first, np.bool_), np.empty(last - first, np.int64)
    for root in range(first, last):
        if trial[root] == states[root] or reached[root - first]:
            continue
        gain, head, size, members[0], reached[root - first] = 0.0, 0, 1, root, True
        while head < size:
            hub = members[head]
            head += 1
            start = layout.hub_offset[hub]
            gain += scores.hubs[start + trial[hub]] - scores.hubs[start + states[hub]]
            for link in range(layout.hub_links[hub], layout.hub_links[hub + 1]):
                cluster = layout.link_cluster[link]
                before = after = layout.table_offset[layout.cluster_table[cluster]]
                counts = True  # a cluster, with the first of its variables that differ
                for position in range(layout.cluster_links[cluster], layout.cluster_links[cluster + 1]):
                    own = layout.cluster_link[position]
                    other = layout.link_hub[own]
                    before += scores.strides[own] * states[other]
                    after += scores.strides[own] * trial[other]
                    if trial[other] != states[other]:
                        counts = counts and other >= hub
                        if not reached[other - first]:
                            reached[other - first] = True
                            members[size] = other
                            size += 1
                if counts:
                    gain += scores.entries[after] - scores.entries[before]
        if gain >= 0.0:
            for i in range(size):
                states[members[i]] = trial[members[i]]


@njit()
def _grow(layout: Layout, movable: Bools, m: int, part: Part, random: Generator) -> int:
    """Take in variables around a random one, breadth first; returns how many."""
    first = layout.instance_hubs[m]
    n = layout.instance_hubs[m + 1] - first
    size, head, start = 0, 0, int(random.random() * n)
    most = min(part.members.size, int(16.0 * (part.members.size / 16.0) ** (1.5 * random.random())) + 1)
    for shift in range(n):
        seed = first + (start + shift) % n
        if size == most:
            break
        if not movable[seed] or part.number[seed - first] >= 0:
            continue
        part.members[size] = seed
        part.number[seed - first] = size
        size += 1
        while head < size:
            hub = part.members[head]
            head += 1
            for link in range(layout.hub_links[hub], layout.hub_links[hub + 1]):
                cluster = layout.link_cluster[link]
                for position in range(layout.cluster_links[cluster], layout.cluster_links[cluster + 1]):
                    other = layout.link_hub[layout.cluster_link[position]]
                    if movable[other] and part.number[other - first] < 0 and size < most:
                        part.members[size] = other
                        part.number[other - first] = size
                        size += 1
    return size


@njit()
def _log2_size(layout: Layout, hub: int) -> float:
    return np.log2(layout.hub_offset[hub + 1] - layout.hub_offset[hub])


@njit()
def _eliminate(layout: Layout, m: int, size: int, part: Part, bound: float, random: Generator) -> int:
    """Order the variables, holding those without which no table would be small enough; returns how many are free."""
    first = layout.instance_hubs[m]
    joined, weight = part.joined, part.weight
    joined[:size, :size] = False
    left = np.arange(size)
    noise, spread = np.empty(size), 4.0 * random.random() ** 3
    for i in range(size):
        hub = part.members[i]
        part.step[i] = -1
        noise[i] = 1.0 + spread * random.random()
        weight[i] = _log2_size(layout, hub)
        for link in range(layout.hub_links[hub], layout.hub_links[hub + 1]):
            cluster = layout.link_cluster[link]
            for position in range(layout.cluster_links[cluster], layout.cluster_links[cluster + 1]):
                other = layout.link_hub[layout.cluster_link[position]]
                j = part.number[other - first]
                if j >= 0 and j != i and not joined[i, j]:
                    joined[i, j] = True
                    weight[i] += _log2_size(layout, other)
    n_left, n_free, n_rivals = size, 0, 1 + int(4.0 * random.random())
    while n_left > 0:
        chosen, least = -1, np.inf
        for place in range(n_left):
            i = left[place]
            if weight[i] <= bound and weight[i] * noise[i] < least:
                chosen, least = place, weight[i] * noise[i]
        own = 0.0
        if chosen >= 0:
            own = _log2_size(layout, part.members[left[chosen]])
            entries = part.message_start[n_free] + 2.0 ** (weight[left[chosen]] - own)
            if entries + 1.0 > part.messages.size or part.scope_start[n_free] + 64 > part.scope.size:
                chosen = -1
        held = chosen < 0
        if held:  # of some, the one with the most neighbours
            for _ in range(n_rivals):
                place = int(random.random() * n_left)
                if chosen < 0 or weight[left[place]] > weight[left[chosen]]:
                    chosen = place
            own = _log2_size(layout, part.members[left[chosen]])
        i = left[chosen]
        n_left -= 1
        left[chosen] = left[n_left]
        end = part.scope_start[n_free]
        entries = 1
        for place in range(n_left):
            j = left[place]
            if joined[i, j]:
                joined[j, i] = False
                weight[j] -= own
                if not held:
                    part.scope[end] = j
                    end += 1
                    hub = part.members[j]
                    entries *= layout.hub_offset[hub + 1] - layout.hub_offset[hub]
        if held:
            continue
        for a in range(part.scope_start[n_free], end):
            for b in range(part.scope_start[n_free], end):
                j, k = part.scope[a], part.scope[b]
                if a != b and not joined[j, k]:
                    joined[j, k] = True
                    weight[j] += _log2_size(layout, part.members[k])
        part.step[i] = n_free
        part.order[n_free] = i
        part.message_start[n_free + 1] = part.message_start[n_free] + entries
        n_free += 1
        part.scope_start[n_free] = end
    start = end = 0  # what was held after it had met is no part of a message
    for k in range(n_free):
        entries = 1
        for place in range(start, part.scope_start[k + 1]):
            j = part.scope[place]
            if part.step[j] >= 0:
                part.scope[end] = j
                end += 1
                hub = part.members[j]
                entries *= layout.hub_offset[hub + 1] - layout.hub_offset[hub]
        start = part.scope_start[k + 1]
        part.scope_start[k + 1] = end
        part.message_start[k + 1] = part.message_start[k] + entries
    return n_free


@njit()
def _collect(
    layout: Layout, scores: ScoreArrays, states: Ints, m: int, n_free: int, part: Part, table: Floats, random: Generator
) -> None:
    """Eliminate the free variables: messages, and the best states behind them, ties at random."""
    first = layout.instance_hubs[m]
    head, after = np.full(n_free + 1, -1), np.full(n_free + 1, -1)  # messages that a step takes
    axis, sizes, strides = np.empty(part.step.size, np.int64), np.empty(66, np.int64), np.empty(66, np.int64)
    digits = np.empty(66, np.int64)
    for k in range(n_free):
        i = part.order[k]
        hub = part.members[i]
        own = layout.hub_offset[hub + 1] - layout.hub_offset[hub]
        sizes[0], axis[i], n_axes, heir = own, 0, 1, n_free
        for place in range(part.scope_start[k], part.scope_start[k + 1]):
            j = part.scope[place]
            axis[j] = n_axes
            sizes[n_axes] = layout.hub_offset[part.members[j] + 1] - layout.hub_offset[part.members[j]]
            n_axes += 1
            heir = min(heir, part.step[j])
        entries = part.message_start[k + 1] - part.message_start[k]
        table[: entries * own] = 0.0
        strides[:n_axes] = 0
        strides[0] = 1
        _add(table, sizes, strides, n_axes, scores.hubs, layout.hub_offset[hub], digits)
        for link in range(layout.hub_links[hub], layout.hub_links[hub + 1]):
            cluster = layout.link_cluster[link]
            index = layout.table_offset[layout.cluster_table[cluster]]
            strides[:n_axes] = 0
            is_first = True
            for position in range(layout.cluster_links[cluster], layout.cluster_links[cluster + 1]):
                other = layout.cluster_link[position]
                j = part.number[layout.link_hub[other] - first]
                if j < 0 or part.step[j] < 0:
                    index += scores.strides[other] * states[layout.link_hub[other]]
                elif part.step[j] < k:
                    is_first = False
                    break
                else:
                    strides[axis[j]] = scores.strides[other]
            if is_first:
                _add(table, sizes, strides, n_axes, scores.entries, index, digits)
        message = head[k]
        while message >= 0:
            strides[:n_axes] = 0
            stride = 1
            for place in range(part.scope_start[message], part.scope_start[message + 1]):
                j = part.scope[place]
                strides[axis[j]] = stride
                stride *= layout.hub_offset[part.members[j] + 1] - layout.hub_offset[part.members[j]]
            _add(table, sizes, strides, n_axes, part.messages, part.message_start[message], digits)
            message = after[message]
        after[k], head[heir] = head[heir], k
        shift = int(random.random() * own)
        for entry in range(entries):
            best, chosen = -np.inf, shift
            for x in range(own):
                state = x + shift if x + shift < own else x + shift - own
                if table[entry * own + state] > best:
                    best, chosen = table[entry * own + state], state
            part.messages[part.message_start[k] + entry] = best
            part.choices[part.message_start[k] + entry] = chosen


@njit()
def _add(table: Floats, sizes: Ints, strides: Ints, n_axes: int, source: Floats, start: int, digits: Ints) -> None:
    """Add to a table, whose first axis moves fastest, the entries of another with these strides."""
    digits[:n_axes] = 0
    place, to, own, stride = start, 0, sizes[0], strides[0]
    while True:
        for x in range(own):
            table[to + x] += source[place + stride * x]
        to += own
        a = 1
        while a < n_axes:
            digits[a] += 1
            place += strides[a]
            if digits[a] < sizes[a]:
                break
            place -= strides[a] * sizes[a]
            digits[a] = 0
            a += 1
        if a == n_axes:
            return
