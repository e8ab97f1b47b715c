"""Data in memory: scores, multipliers and beliefs, and the sweeps that relate them (Eq. 11), by compiled routines.

Learning and inference both work on :class:`MemoryPart`. To the dual it is a part of the data
(:mod:`bactrian.camel.parts`), here the only one.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cached_property
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from bactrian.arrays import Bools, Floats, Ints
from bactrian.camel.accuracy import SCHEDULE, Schedule
from bactrian.camel.dual import Dual
from bactrian.camel.entropy import Carving
from bactrian.camel.parts import AddTerms, Carve, Hubs, Links, State, Storage, Summary, Vectors, store
from bactrian.camel.prior import Prior
from bactrian.engines.long_memory import make_memory
from bactrian.engines.numba.layout import Layout
from bactrian.engines.numba.linear import make_plan
from bactrian.engines.numba.pair_evaluation import evaluate_given, evaluate_pairs, evaluate_trees
from bactrian.engines.numba.pieces import Pieces, cut
from bactrian.engines.numba.stars import evaluate_instances
from bactrian.engines.numba.tables import (
    Beliefs,
    Limits,
    Numbers,
    Passing,
    Plan,
    Tables,
    halvings_of,
    hold,
    prepare_tables,
    summarise,
)
from bactrian.engines.recession import is_unbounded
from bactrian.graphs.inputs import N_BLOCKS
from bactrian.graphs.packed import HubTables, PackedData, instance_blocks, tables_by_number
from bactrian.graphs.ragged import pointer
from bactrian.parallel.threads import Context, Workers, balanced_blocks
from bactrian.solvers.lbfgs import Memory

Array = TypeVar("Array", bound=NDArray[Any])

#: Blocks of an evaluation: states of links that take as long as ten calls of a compiled routine, or fewer where there
#: would be less than so many blocks, but no fewer than take one.
_MANY_STATES, _FEW_STATES, _FEW_BLOCKS = 20_000.0, 2_000.0, 8
#: Table entries below which a block is not worth handing to a thread.
_LEAST_ENTRIES = 2_000.0
#: States from which a table's transpose pays for itself where loops are not unrolled.
_LEAST_TRANSPOSED = 8
#: Hubs from which an instance that has a sixteenth of all is cut into pieces, and swept by all threads.
WORTH_CUTTING = 20_000
#: States up to which loops are unrolled, and how much sooner those over two are: most models of this size share them.
_MOST_UNROLLED, _SOONER = 20, 10
#: The slowest decrease in a leg of sweeps that is believed when slow modes are extrapolated.
_SLOWEST = 0.995
#: Multipliers above which their level is removed: it takes digits from what they say.
_LARGE_MULTIPLIER = 1e6
#: Weights that passes over them take at a time, few enough to stay in the cache.
_WEIGHTS_AT_ONCE = 1 << 15


class Space:
    """Where the arrays of a part live: here in memory."""

    def zeros(self, size: int) -> Floats:
        """An array that keeps what is written to it."""
        return np.zeros(size)

    def keep(self, array: Array) -> Array:
        """An array that will not change."""
        return array

    def scratch(self, size: int) -> Floats:
        """An array whose contents matter within one pass alone."""
        return np.zeros(size)


class MemoryPart:
    """Scores, multipliers and beliefs of a data set under given counting numbers.

    Parameters
    ----------
    consistency : bool
        Whether clusters must agree on their sepsets. Without it the multipliers stay fixed: the scores of hubs that
        have no number of their own are spread over their clusters (``link_share``).

    Attributes
    ----------
    multipliers : (n_link_states,)
        delta, in log space.
    linearisation : (n_hub_states,)
        g, subtracted from the scores of hubs (Eq. 10); inf forbids a state.
    wants_marginals : bool
        Whether sweeps leave the links' marginals in ``beliefs``, as passes without sweeps do.
    shares : (n_links,)
        Part of its hub's scores that each link's cluster takes; 0 with consistency.
    tables, beliefs
        Scores at the last weights, and beliefs at the last pass; see :mod:`bactrian.engines.numba.stars`.
    name, stays, relinearises, has_saddle, is_forest, finest
        See :class:`bactrian.camel.parts.Part`.
    """

    stays, finest = True, 0.0

    def __init__(
        self,
        data: PackedData,
        carving: Carving,
        context: Context,
        *,
        consistency: bool = True,
        name: str = "",
        space: Space | None = None,
        schedule: Schedule | None = None,
    ) -> None:
        if space is None:  # a file keeps the data as it is
            data = tables_by_number(data, carving.cluster)
        layout = data.layout
        table_number = np.ones(layout.n_tables)
        table_number[layout.cluster_table[::-1]] = carving.cluster[::-1]
        is_pair = (layout.cluster_rows > 0) & (table_number[layout.cluster_table] == carving.cluster)
        others = pointer(~is_pair)
        self.pairwise = np.diff(others[layout.instance_clusters]) == 0
        self.name = name
        self.schedule = schedule = schedule or SCHEDULE
        self._pieces: list[Pieces] = []
        if space is None:
            data = self._cut(data)
            layout = data.layout
        self._space = space = space or Space()
        self.data, self.carving, self.workers, self.context = data, carving, context.workers, context
        self.consistency = consistency
        self._weights = data.weights.copy()
        self.multipliers = space.zeros(layout.n_link_states)
        self.linearisation = space.zeros(layout.n_hub_states)
        self._hubs: MemoryHubs | None = None
        self.relinearises = carving.relinearises
        states = _equal_states(layout)
        self.states = (0,) * states if _worth_unrolling(states, layout, carving, schedule) else ()
        transposes = bool(self.states) or states >= _LEAST_TRANSPOSED
        self.has_saddle = bool((carving.hub < 0.0).any())
        self.wants_marginals = bool(data.hub_virtual.any())
        self.is_forest = bool(layout.instance_is_tree.all())
        self.tables = Tables(
            space.scratch(layout.n_entries),
            space.scratch(layout.n_entries * (2 if transposes else 1)),
            space.scratch(layout.n_tables),
            np.empty(layout.n_tables, dtype=np.bool_),
            space.scratch(layout.n_hub_states),
            np.zeros(1, dtype=np.bool_),
        )
        self.numbers = Numbers(carving.cluster, carving.hub, space.keep(table_number))
        absorbed = (carving.hub == 0.0)[layout.link_hub] & (not consistency)
        self.shares = space.keep(np.where(absorbed, data.link_share, 0.0))
        self._plan = Plan._make(map(space.keep, make_plan(layout, self.numbers, self.shares)))
        self.beliefs = Beliefs(
            space.zeros(layout.n_hub_states),
            space.scratch(layout.n_link_states),
            space.scratch(layout.n_hub_states),
            space.scratch(layout.n_link_states),
            space.scratch(layout.n_entries),
            np.zeros(layout.n_instances),
            np.zeros(layout.n_instances),
            np.zeros(layout.n_instances),
            np.zeros(layout.n_instances, dtype=np.int64),
            np.zeros(layout.n_instances, dtype=np.bool_),
            context.deadline.late,
        )
        degree = np.diff(layout.hub_links)
        others = pointer(~self._plan.hub_multiplies | (carving.hub != 1.0 - degree))
        self._trees = layout.instance_is_tree & self.pairwise & (np.diff(others[layout.instance_hubs]) == 0)
        if layout.n_link_states < schedule.worth_compiling and not self._trees.all():
            self._trees[:] = False  # what other instances need serves few trees as well
        shared_entries = int(layout.table_offset[layout.table_shared])
        least = min(_MANY_STATES, max(_FEW_STATES, layout.n_link_states / _FEW_BLOCKS))
        self._blocks = instance_blocks(layout, least)
        self._block_counts = np.zeros((self._blocks.size - 1 + len(self._pieces), shared_entries))
        self._table_blocks = balanced_blocks(np.diff(layout.table_offset).astype(float), N_BLOCKS, _LEAST_ENTRIES)

    def _cut(self, data: PackedData) -> PackedData:
        """Cut large instances into pieces where they can be; returns the data with their hubs in that order."""
        layout, order = data.layout, data.layout.hub_order.copy()
        sizes = np.diff(layout.instance_hubs)
        large = (sizes >= max(WORTH_CUTTING, layout.n_hubs / N_BLOCKS)) & ~layout.instance_is_tree
        for instance in np.flatnonzero(large & self.pairwise).tolist():
            found = cut(layout, instance)
            if found is not None:
                order[found[1][0] : found[1][-1]] = found[0]
                self._pieces.append(Pieces(layout, instance, found[1]))
        return replace(data, layout=layout._replace(hub_order=order)) if self._pieces else data

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """See :class:`Part`; it stays."""

    def set_weights(self, weights: Floats) -> None:
        """Compute all scores at ``weights``."""
        layout, tables = self.data.layout, self.tables
        self.data.scores.scores(weights, tables.log_entries, tables.hub_scores, self.workers)
        np.subtract(tables.hub_scores, self.linearisation, out=tables.hub_scores)
        lowest = min(tables.log_entries.min(initial=0.0), tables.hub_scores.min(initial=0.0))
        tables.constrained[0] = lowest == -np.inf
        offset, numbers = layout.table_offset, self.numbers.table
        self.workers.run(
            lambda _, first, last: prepare_tables(offset, tables, numbers, first, last), self._table_blocks
        )

    def spread_scores(self) -> None:
        """Multipliers of clusters that need not agree: shares of their hubs' scores."""
        layout, tables = self.data.layout, self.tables
        shares = np.repeat(self.shares, np.diff(layout.link_offset))
        scores = tables.hub_scores[self.data.hub_state_of_link_state]
        # A hub that keeps its scores to itself may have forbidden states: no share of -inf is 0, not NaN.
        self.multipliers[:] = np.multiply(shares, scores, out=np.zeros_like(scores), where=shares > 0.0)

    def _remove_levels(self) -> None:
        """Where multipliers are large, take from those of each link their largest.

        A constant on a link changes neither beliefs nor D, and so sweeps carry it along for ever: one from weights
        that the solver left long ago would leave rounding of its own size in the scores.
        """
        layout, multipliers = self.data.layout, self.multipliers
        if max(multipliers.max(initial=0.0), -multipliers.min(initial=0.0)) <= _LARGE_MULTIPLIER:
            return
        top = np.maximum.reduceat(multipliers, layout.link_offset[:-1])
        level = np.where(np.isfinite(top), top, 0.0)
        multipliers -= np.repeat(level, np.diff(layout.link_offset))

    def pass_messages(
        self,
        *,
        tolerance: float = 0.0,
        max_sweeps: int = 0,
        tree_sweeps: int = 1 << 30,
        damping: float = 0.0,
        logs: bool = True,
    ) -> None:
        """Sweep the multipliers of every instance to ``tolerance``, then compute beliefs, counts and values.

        With ``max_sweeps`` = 0 the multipliers stay as they are. ``tree_sweeps`` limits the sweeps on trees, where two
        sweeps of belief propagation are exact.

        Where many sweeps are not enough, one slow mode is left, which shrinks by a constant factor: from two legs of
        sweeps the multipliers leap to where it leads. D is convex in them where no hub's number is negative, so sweeps
        mend a leap that went astray; where some are, damped sweeps lower D as well, and undamped ones may oscillate.
        """
        beliefs = self.beliefs
        if self.consistency and self.is_forest and 0 < tree_sweeps < max_sweeps:
            self.multipliers[:] = 0.0  # two sweeps need no start, and levels of an earlier one would cost digits
        elif self.consistency and max_sweeps > 0:
            self._remove_levels()
        leaps = self.consistency and self.has_saddle == (damping > 0.0) and tree_sweeps >= max_sweeps
        leg = self.schedule.leg if leaps else max_sweeps
        done: int | Ints = 0
        before: tuple[Floats, Floats] | None = None
        while True:
            sweeps, wanted = min(leg, max_sweeps), (self.wants_marginals, self.consistency, logs)
            limits = Limits(tolerance, sweeps, tree_sweeps, damping, *wanted)
            self._block_counts[:] = 0.0
            self.sweep_linearly(self.pairwise, limits, self._block_counts)
            self._sweep_others(limits)
            max_sweeps -= leg
            if max_sweeps <= 0 or beliefs.residual.max(initial=0.0) <= tolerance or beliefs.late[0]:
                break
            done = done + beliefs.sweeps
            if before is None:
                before = self.multipliers.copy(), beliefs.residual.copy()
            else:
                self._leap(*before, tolerance)
                before = None
        np.add(beliefs.sweeps, done, out=beliefs.sweeps)

    def _leap(self, multipliers: Floats, residual: Floats, tolerance: float) -> None:
        """Go on to the limit of the geometric series that a leg of sweeps since ``multipliers`` was part of."""
        layout, beliefs = self.data.layout, self.beliefs
        slow = (beliefs.residual > tolerance) & (residual > 0.0)
        ratio = np.divide(beliefs.residual, residual, out=np.zeros_like(residual), where=slow)
        ratio = np.where(ratio < 1.0, np.minimum(ratio, _SLOWEST), 0.0)
        states = np.diff(layout.link_offset[layout.hub_links[layout.instance_hubs]])
        factor = np.repeat(ratio / (1.0 - ratio), states)
        free = np.isfinite(self.multipliers) & np.isfinite(multipliers)
        step = np.subtract(self.multipliers, multipliers, out=np.zeros_like(multipliers), where=free)
        self.multipliers += factor * step

    def _sweep_others(self, limits: Limits) -> None:
        """The same in log space, of instances for which linear space was not safe; then the counts of all."""
        beliefs, part, spread = self.beliefs, self.arrays, False

        def block(b: int, first: int, last: int) -> None:
            nonlocal spread
            if beliefs.done[first:last].all():
                return
            if not self.consistency and not spread:
                self.spread_scores()
                spread = True
            evaluate_instances(part, limits, self._block_counts[b], first, last)

        if not beliefs.done.all():
            self.workers.run(block, self._blocks)
        if self._block_counts.size:
            beliefs.counts[: self._block_counts.shape[1]] = self._block_counts.sum(axis=0)

    def sweep(self, selected: Bools, limits: Limits) -> None:
        """Sweeps of the selected instances alone, and their beliefs; counts are left to :meth:`pass_messages`."""
        self.beliefs.done[:] = ~selected
        self.sweep_linearly(selected & self.pairwise, limits)
        self._sweep_others(limits)
        self.beliefs.done[:] = False

    @cached_property
    def arrays(self) -> Passing:
        """What array routines read and write, as they take it."""
        return hold(self._passing)

    @property
    def _passing(self) -> Passing:
        data, numbers = self.data, self.numbers
        rest = self.multipliers, self.beliefs, self._weights, self.shares
        return Passing(data.layout, self._plan, self.tables, numbers, *rest)

    def sweep_linearly(self, selected: Bools, limits: Limits, counts: Floats | None = None) -> None:
        """Sweeps of the selected instances for which linear space is safe, beliefs, counts and values.

        ``beliefs.done`` says which were; the counts of shared tables are added to ``counts``, a row for each block.
        Where they are not asked for, many sweeps are, which are worth smaller blocks.
        """
        part, blocks = self.arrays, self.data.blocks if counts is None else self._blocks
        limits = limits._replace(halvings=halvings_of(limits.damping))
        n_blocks = blocks.size - 1
        rows = np.zeros((n_blocks + len(self._pieces), self._block_counts.shape[1])) if counts is None else counts
        self.beliefs.done[selected] = False
        pairs = selected.copy()
        for pieces, row in zip(self._pieces, rows[n_blocks:], strict=True):
            if selected[pieces.instance]:
                pieces.evaluate(self._passing, limits, row, self.states, self.workers)
            pairs[pieces.instance] = False
        kernels = [(evaluate_pairs if limits.max_sweeps > 0 else evaluate_given, pairs)]
        if limits.tree_sweeps <= limits.max_sweeps and limits.damping == 0.0 and not limits.marginals:
            kernels = [(evaluate_trees, pairs & self._trees), (evaluate_pairs, pairs & ~self._trees)]
        # Asked once for all blocks: one at a time takes as long as a few stars.
        work = [(kernel, chosen, np.logical_or.reduceat(chosen, blocks[:-1]).tolist()) for kernel, chosen in kernels]

        def block(b: int, first: int, last: int) -> None:
            for kernel, chosen, some in work:
                if some[b]:
                    kernel(part, limits, rows[b], chosen, first, last, self.states)

        self.workers.run(block, blocks)

    @property
    def hub_log(self) -> Floats:
        """(n_hub_states,) log beliefs of hubs at the last pass."""
        return self.beliefs.hub_log

    def hub_beliefs(self) -> Floats:
        """(n_hub_states,) beliefs of hubs at the last pass."""
        return np.exp(self.beliefs.hub_log)

    @property
    def hubs(self) -> MemoryHubs:
        """See :class:`Part`; kept by a part that stays."""
        hubs = self._hubs or MemoryHubs(self.data, self.carving)
        self._hubs = hubs if self.stays else None
        return hubs

    def links(self) -> Links:
        """See :class:`Part`."""
        data, layout, self.wants_marginals = self.data, self.data.layout, True
        is_first = np.zeros(layout.n_links, dtype=np.bool_)
        is_first[layout.hub_links[:-1][data.degrees > 0]] = True
        sizes, hub = np.diff(layout.link_offset), layout.link_hub
        return Links(
            data.hub_state_of_link_state,
            is_first.repeat(sizes),
            data.hub_virtual[hub].repeat(sizes),
            data.degrees[hub].repeat(sizes),
            self.carving.hub[hub].repeat(sizes),
            self.beliefs.link_marginal,
            self.beliefs.disagreement,
            self.tables.hub_scores,
        )

    def summary(self) -> Summary:
        """What the last pass adds to the dual."""
        beliefs = self.beliefs
        value, sweeps, violation, residual = summarise(self._weights, beliefs)
        if self.data.hub_virtual.any():
            violation = self._violation_on_edges()
        moments = self.data.scores.moments(beliefs.counts, beliefs.hub_count, self.workers)
        return Summary(value, sweeps, violation, residual, moments)

    def moments_by(self, weights: Floats) -> Floats:
        """(R, n_weights) moments at the last scores and multipliers, for R rows of weights of instances."""
        found = []
        for row in (*weights, self.data.weights):  # the last puts back what the pass before left
            self._weights[:] = row
            self.pass_messages()
            found.append(self.summary().moments)
        return np.array(found[:-1])

    def _violation_on_edges(self) -> float:
        """Largest disagreement where some hubs are only sepsets: there clusters are compared with each other."""
        links, reference = self.links(), self.hub_beliefs()
        first = links.is_first & links.is_virtual
        reference[links.hub_state[first]] = links.marginal[first]
        return float(np.abs(links.marginal - reference[links.hub_state]).max(initial=0.0))

    def room_for(self, values: Floats) -> Floats:
        """See :class:`Part`."""
        return self._space.zeros(values.size)

    def state(self) -> State:
        """Multipliers and linearisation; they may be written to."""
        return State(self.multipliers, self.linearisation)

    def restore(self, multipliers: Floats, linearisation: Floats | None) -> None:
        """See :class:`Part`."""
        self.multipliers[:] = multipliers
        if linearisation is not None:
            self.linearisation[:] = linearisation


def in_memory(dual: Dual) -> MemoryPart:
    """The part of a dual whose data is in memory, for learners that read its arrays."""
    part = dual.part
    assert isinstance(part, MemoryPart)
    return part


class MemoryHubs(Hubs):
    """Hubs in the order of the data; see :class:`bactrian.camel.parts.Hubs`."""

    xp: Any = np

    def __init__(self, data: PackedData, carving: Carving) -> None:
        self.offset, self.kind, self.truth = data.layout.hub_offset, data.hub_kind, data.hub_truth
        self._hub = data.hub_of_state
        self.number = carving.linearised[self._hub]

    def of(self, values: Floats) -> Floats:
        """See :class:`Hubs`."""
        return values

    def sums(self, values: Floats) -> Floats:
        """See :class:`Hubs`."""
        sums = np.bincount(self._hub, weights=values, minlength=self.kind.size).astype(np.float64)
        return sums[self._hub]

    def normalised(self, logs: Floats) -> Floats:
        """See :class:`Hubs`."""
        logs = logs - np.maximum.reduceat(logs, self.offset[:-1])[self._hub]
        return logs - np.log(self.sums(np.exp(logs)))


def _equal_states(layout: Layout) -> int:
    """The number of states that all hubs have, where all clusters are pairs of them; else 0."""
    states = int(layout.hub_offset[1]) if layout.n_hubs else 0
    equal = (np.diff(layout.hub_offset) == states).all() and (layout.cluster_rows == states).all()
    return states if equal else 0


def _worth_unrolling(states: int, layout: Layout, carving: Carving, schedule: Schedule) -> bool:
    """Whether unrolled loops over so many states are worth compiling."""
    n_link_states = layout.n_link_states * (_SOONER if states == 2 else 1)
    if n_link_states < schedule.worth_compiling or not 2 <= states <= _MOST_UNROLLED:
        return False
    return bool((carving.cluster == 1.0).all()) and bool((carving.hub + np.diff(layout.hub_links) > 0.0).all())


class MemoryTables(HubTables):
    """Belief tables of clusters and hubs at the last pass; copies what it needs."""

    def __init__(self, messages: MemoryPart) -> None:
        super().__init__(messages.data.layout, messages.hub_beliefs())
        tables = messages.tables
        if not messages.consistency:
            messages.spread_scores()
        self._tables = tables._replace(log_entries=tables.log_entries.copy())
        self._numbers = messages.numbers
        self._multipliers = messages.multipliers.copy()

    def cluster(self, index: int) -> Floats:
        """Belief table of a table cluster."""
        layout, table = self._layout, self._layout.cluster_table[index]
        scores = self._tables.log_entries[layout.table_offset[table] : layout.table_offset[table + 1]].copy()
        for link in layout.cluster_link[layout.cluster_links[index] : layout.cluster_links[index + 1]].tolist():
            states = layout.projection[layout.link_projection[link] :][: scores.size]
            scores += self._multipliers[layout.link_offset[link] + states]
        scores /= self._numbers.cluster[index]
        beliefs: Floats = np.exp(scores - scores.max())
        beliefs /= beliefs.sum()
        return beliefs

    def hubs(self, first: int, last: int) -> Floats:
        """See :class:`TableReader`."""
        start, stop = self._layout.hub_offset[[first, last]]
        return self._hub_beliefs[start:stop].reshape(last - first, -1).copy()

    def pairs(self, first: int, last: int) -> Floats:
        """See :class:`TableReader`."""
        layout = self._layout
        tables = layout.cluster_table[first:last]
        size = int(layout.table_offset[1])
        states = math.isqrt(size)
        ends = layout.cluster_link[2 * np.arange(first, last)[:, None] + [0, 1]]
        messages = self._multipliers[layout.link_offset[ends][:, :, None] + np.arange(states)]
        scores: Floats = self._tables.log_entries.reshape(-1, states, states)[tables]
        scores = scores + messages[:, 0, :, None] + messages[:, 1, None, :]
        scores = scores.reshape(-1, size) / self._numbers.cluster[first:last, None]
        scores -= scores.max(axis=1, keepdims=True)
        np.exp(scores, out=scores)
        scores /= scores.sum(axis=1, keepdims=True)
        return scores


class HostVectors(Vectors):
    """Vectors over the weights in memory; see :class:`bactrian.camel.parts.Vectors`."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers

    def of(self, values: Any) -> Floats:
        """See :class:`Vectors`."""
        return np.asarray(values, dtype=np.float64)

    def memory(self, dimension: int, *, exact: bool = False) -> Memory:
        """See :class:`Vectors`."""
        return make_memory(dimension, self._workers, exact=exact)

    def weight_terms(self, empirical: Floats, base: float, prior: Prior) -> AddTerms:
        """See :class:`Vectors`."""
        blocks = np.append(np.arange(0, empirical.size, _WEIGHTS_AT_ONCE), empirical.size)
        precision = np.broadcast_to(prior.precision, empirical.shape)

        def add(value: float, gradient: Floats, weights: Floats) -> float:
            products = np.zeros((blocks.size - 1, 2))

            def block(b: int, first: int, last: int) -> None:
                own, observed, slope = weights[first:last], empirical[first:last], gradient[first:last]
                pull = precision[first:last] * own
                slope += pull
                slope -= observed
                products[b] = own @ observed, pull @ own

            self._workers.run(block, blocks)
            linear, square = products.sum(axis=0).tolist()
            # In this order: with huge scores the first three cancel, and what is left must not drown in their rounding.
            return float(value - linear - base + 0.5 * square)

        return add


@store.register
def _(
    data: PackedData, carve: Carve, context: Context, *, consistency: bool, schedule: Schedule | None = None
) -> Storage:
    """Data in memory: one part."""
    part = MemoryPart(data, carve(data), context, consistency=consistency, schedule=schedule)
    return Storage(
        data,
        [part],
        HostVectors(context.workers),
        data.empirical,
        data.observed_base,
        tables=lambda: MemoryTables(part),
        is_unbounded=is_unbounded,
    )
