"""One large instance of pairs, evaluated piece by piece on all threads.

Its hubs are put into an order in which a piece, a stretch of it, touches none but its two neighbours. Every other piece
comes first in a sweep, then the pieces between: those of either half have no pair in common, and can be swept at the
same time. So a sweep is the sequential one in that order, whatever the number of threads, and what pieces add up is
added in their order. The half that a sweep ends with is the one that the next, in the other direction, begins with: a
piece turns round while it is in the cache, and threads wait for each other once a sweep. The rest of an evaluation
takes stretches of hubs, and of pairs, by their numbers.

To the functions of :mod:`.linear` and :mod:`.pair_evaluation` a piece is an instance, among whose messages
(``Plan.origin``) are those of the others.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from bactrian.arrays import Floats, Ints
from bactrian.compiling import kernel, njit
from bactrian.engines.numba.arithmetic import States, place
from bactrian.engines.numba.layout import Layout
from bactrian.engines.numba.linear import HeldLinear, Linear, load_states, match_scales, store_logs, sweep_pairs
from bactrian.engines.numba.pair_evaluation import (
    add_tally,
    finish_hubs,
    finish_pairs,
    give_hubs,
    give_pairs,
    join,
    new_tally,
)
from bactrian.engines.numba.tables import Limits, Passing, hold
from bactrian.parallel.threads import Workers, balanced_blocks

#: Hubs of four pieces, and the most pieces of an instance; there are two in a half at least.
_FOUR_PIECES = 20_000
_MOST_PIECES = 32
#: What is done piece by piece. In the first five a piece's messages are all that it reads and writes.
_LOAD, _CHECK, _STORE, _GIVE, _JOIN, _MATCH, _SWEEP, _TURN, _FINISH, _COUNT = range(10)


class Phase(NamedTuple):
    """A step of an evaluation."""

    kind: int  #: one of those above
    backward: bool  #: the direction of the sweep, or of the last
    again: bool  #: whether all pairs were swept before, without halvings


@kernel()
def evaluate_pieces(
    part: Passing, limits: Limits, messages: Linear, counts: Floats, first: int, last: int, phase: Phase, states: States
) -> bool:
    """One phase of an evaluation for pieces ``first:last``; False where log space is needed.

    ``messages`` are those of all pieces, ``counts`` have a row for each.
    """
    whole, fits, (kind, backward, again) = HeldLinear(*messages), True, phase
    for piece in range(first, last):
        if kind <= _JOIN:
            linear = _messages(part, whole, piece, piece + 1, states)
        else:
            linear = _messages(part, whole, 0, part.weights.size, states)
        if kind == _LOAD:
            fits &= load_states(part, linear, piece, states)
        elif kind == _CHECK:
            fits &= store_logs(part, linear, piece, False, states)
        elif kind == _STORE:
            store_logs(part, linear, piece, True, states)
            finish_hubs(part, linear, piece, states)
        elif kind == _GIVE:
            fits &= give_hubs(part, linear, piece, limits.consistent, states)
        elif kind == _JOIN:
            join(part, linear, piece, limits.consistent, states)
        elif kind == _MATCH:
            fits &= match_scales(part, linear, piece)
        elif kind <= _TURN:
            halvings = limits.halvings
            held = np.empty(3 * linear.product.size)
            for turn in range(kind + 1 - _SWEEP):
                residual, way = np.nan, backward == (turn == 0)
                if halvings >= 0:
                    settled = again or (turn > 0 and halvings == 0)
                    residual = sweep_pairs(part, linear, piece, way, settled, halvings, held, linear.message, states)
                part.beliefs.residual[piece] = residual
                fits &= not math.isnan(residual)
        else:
            tally = new_tally(part, counts[piece])
            if kind == _FINISH:
                finish_pairs(part, linear, piece, backward, limits.marginals, tally.outer, states)
            else:
                fits &= give_pairs(part, linear, piece, limits.consistent, tally, states)
            add_tally(part, tally, counts[piece])
    return fits


@njit()
def _messages(part: Passing, whole: Linear, first: int, last: int, states: States) -> Linear:
    """The messages of pieces ``first:last`` with scratch of their own."""
    layout, hub_links, origin = part.layout, part.layout.hub_links, part.plan.origin[first]
    begin, end = layout.instance_hubs[first], layout.instance_hubs[last]
    links = slice(hub_links[begin] - hub_links[origin], hub_links[end] - hub_links[origin])
    at, base = place(layout.link_offset, hub_links[begin], states), place(layout.link_offset, hub_links[origin], states)
    link_states = slice(at - base, place(layout.link_offset, hub_links[end], states) - base)
    at, base = place(layout.hub_offset, begin, states), place(layout.hub_offset, origin, states)
    hub_states = slice(at - base, place(layout.hub_offset, end, states) - base)
    message, scale = whole.message[link_states], whole.scale[links]
    psi, belief = whole.psi[hub_states], whole.belief[hub_states]
    product, spare = np.empty(whole.product.size), np.empty(whole.spare.size)
    return HeldLinear(whole.entries, whole.turned, message, scale, psi, belief, product, spare)


def cut(layout: Layout, instance: int) -> tuple[Ints, Ints] | None:
    """Order of a pairwise instance's hubs and bounds of pieces of it, the first half of which come first in a sweep.

    None where the graph is too small, or so entangled that pieces touch others than their neighbours.
    """
    begin, end = layout.instance_hubs[instance : instance + 2]
    order = np.arange(end - begin)
    n_pieces = min(_MOST_PIECES, 4 * (order.size // _FOUR_PIECES))
    pointer = layout.hub_links[begin : end + 1]
    degree, partners = np.diff(pointer), layout.link_partner[pointer[0] : pointer[-1]]
    here, there = np.repeat(order, degree), layout.link_hub[partners] - begin
    for reorders in (False, True):
        if reorders:
            ones, shape = np.ones(there.size, dtype=np.int8), (degree.size, degree.size)
            graph = sp.csr_array((ones, there, pointer - pointer[0]), shape=shape)
            order = sp.csgraph.reverse_cuthill_mckee(graph, symmetric_mode=True)
        bounds = balanced_blocks(degree[order] + 1.0, n_pieces)
        sizes = np.diff(bounds)
        piece = np.empty_like(degree)
        piece[order] = np.repeat(np.arange(sizes.size), sizes)
        if sizes.size >= 4 and np.abs(piece[here] - piece[there]).max(initial=0) <= 1:
            chosen = np.argsort(np.arange(sizes.size) % 2, kind="stable")
            order = np.concatenate([order[bounds[p] : bounds[p + 1]] for p in chosen])
            return begin + order, begin + np.concatenate([[0], np.cumsum(sizes[chosen])])
    return None


class Pieces:
    """An instance whose hubs are swept in the order, and in the pieces, of :func:`cut`."""

    def __init__(self, layout: Layout, instance: int, bounds: Ints) -> None:
        self.instance, self.bounds = instance, bounds
        first, last = layout.instance_clusters[instance : instance + 2]
        self._clusters = np.linspace(first, last, bounds.size).astype(np.int64)
        self._whole: Linear | None = None

    def _space(self, part: Passing) -> Linear:
        """Messages of the instance, kept from one evaluation to the next, and how much scratch a piece needs."""
        layout, (begin, end) = part.layout, self.bounds[[0, -1]]
        (first, last), (start, stop) = layout.hub_links[[begin, end]], layout.hub_offset[[begin, end]]
        n_link_states = int(np.diff(layout.link_offset[[first, last]])[0])
        widest = int(np.diff(layout.hub_offset[begin : end + 1]).max())
        most_links = int(np.diff(layout.hub_links[begin : end + 1]).max())
        spare = int(max(np.diff(self.bounds).max(), np.diff(self._clusters).max()))
        sizes = (n_link_states, last - first, stop - start, stop - start, most_links * widest, spare)
        tables, n = part.tables, part.layout.n_entries
        return Linear(tables.exp_entries, n if tables.exp_entries.size > n else 0, *map(np.empty, sizes))

    def evaluate(self, part: Passing, limits: Limits, counts: Floats, states: States, workers: Workers) -> bool:
        """What :func:`.pair_evaluation.evaluate_pairs` does, for this instance."""
        whole = self._whole = self._whole or self._space(part)
        beliefs, n = part.beliefs, self.bounds.size - 1
        found = beliefs._replace(value=np.empty(n), violation=np.empty(n), residual=np.zeros(n))
        plan, m = part.plan, self.instance
        pieces = part._replace(
            layout=part.layout._replace(instance_hubs=self.bounds, instance_clusters=self._clusters),
            plan=plan._replace(origin=np.full(n, self.bounds[0]), alike=np.full(n, plan.alike[m])),
            beliefs=found,
            weights=np.full(n, part.weights[m]),
        )
        held, piece_counts = hold(pieces), np.zeros((n, counts.size))
        chunks = 1 if workers.n_threads == 1 else 2 * workers.n_threads
        middle, sweeps = (n + 1) // 2, 0
        every, first_half, second_half = (
            np.append(np.arange(first, last, -(-(last - first) // chunks)), last)
            for first, last in ((0, n), (0, middle), (middle, n))
        )

        def run(kind: int, which: Ints = every, limits: Limits = limits, backward: bool = False) -> bool:
            fits, phase = [], Phase(kind, backward, sweeps > 0 and closing == 0)

            def task(_: int, start: int, stop: int) -> None:
                fits.append(evaluate_pieces(held, limits, whole, piece_counts, start, stop, phase, states))

            workers.run(task, which)
            return all(fits)

        closing = int(limits.damping > 0.0)
        if limits.max_sweeps > 0:
            asked = 0.5 * limits.tolerance if closing else limits.tolerance
            limit = 1 if beliefs.late[0] else limits.max_sweeps
            fast, backward, turns = run(_LOAD) and run(_MATCH), False, False
            while fast and sweeps < limit:
                now = limits if sweeps + closing < limit else limits._replace(damping=0.0, halvings=0)
                backward = sweeps % 2 == 0
                first, second = (second_half, first_half) if backward else (first_half, second_half)
                fast = turns or run(_SWEEP, first, now, backward)
                # Where a half has not converged there is a next sweep, and the other half turns round at once.
                goes_on = sweeps + 1 + closing < limit and found.residual[first[0] : first[-1]].max() > asked
                turns = fast and goes_on and not beliefs.late[0]
                fast = fast and run(_TURN if turns else _SWEEP, second, now, backward)
                sweeps += 1
                if not turns and (found.residual.max() <= asked or beliefs.late[0]):
                    limit = min(limit, sweeps + closing)
            fast = fast and run(_CHECK) and run(_STORE) and run(_FINISH, backward=backward)
        else:
            fast = run(_GIVE) and run(_COUNT) and run(_JOIN)
        if fast:
            counts += piece_counts.sum(axis=0)
            beliefs.value[m], beliefs.violation[m] = found.value.sum(), found.violation.max()
            beliefs.residual[m], beliefs.sweeps[m] = found.residual.max(), sweeps
        beliefs.done[m] = fast
        return fast
