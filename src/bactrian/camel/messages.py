"""Messages on packed data: scores, multipliers and beliefs, and the sweeps that relate them (Eq. 11).

Learning and inference both work on this object. To the dual it is the part that stays in memory
(:mod:`bactrian.camel.parts`). :class:`FilePart` is one that is mapped into memory while it is at work: its multipliers,
linearisation and beliefs live in a file of their own and outlast a pass, its scores and counts in buffers that such
parts share. A pass then holds one part in memory, and the vectors over the weights.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from bactrian.arrays import Bools, Floats, Ints
from bactrian.camel.entropy import Carving
from bactrian.camel.parts import Carve, Hubs, Part, Storage, Summary, Vectors, store
from bactrian.camel.schedule import SCHEDULE, Schedule
from bactrian.engines.files import Buffers, FileSpace, MappedFile, PackedFolder, Space
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
    log_scores,
    prepare_tables,
    summarise,
)
from bactrian.engines.numba.threads import Deadline, Workers, balanced_blocks
from bactrian.graphs.inputs import N_BLOCKS
from bactrian.graphs.packed import HubTables, PackedData, instance_blocks, tables_by_number
from bactrian.graphs.ragged import pointer

#: Blocks of an evaluation: states of links that take as long as ten calls of a compiled routine, or fewer where there
#: would be less than so many blocks, but no fewer than take one.
_MANY_STATES, _FEW_STATES, _FEW_BLOCKS = 20_000.0, 2_000.0, 8
#: Table entries below which a block is not worth handing to a thread.
_LEAST_ENTRIES = 2_000.0
#: States from which a table's transpose pays for itself where loops are not unrolled.
_LEAST_TRANSPOSED = 8


class Messages(Part):
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
    wants_logs : bool
        Whether exact passes over trees leave multipliers and log beliefs behind, as all others do.
    shares : (n_links,)
        Part of its hub's scores that each link's cluster takes; 0 with consistency.
    tables, beliefs
        Scores at the last weights, and beliefs at the last pass; see :mod:`bactrian.engines.numba.stars`.
    name, remembered, stays, relinearises, has_saddle, is_forest, finest, xp
        See :class:`bactrian.camel.parts.Part`.
    """

    def __init__(
        self,
        data: PackedData,
        carving: Carving,
        workers: Workers,
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
        self.data, self.carving, self.workers = data, carving, workers
        self.consistency = consistency
        self.multipliers = space.zeros(layout.n_link_states)
        self.linearisation = space.zeros(layout.n_hub_states)
        self._hub_of_state: Ints | None = None
        self.relinearises = carving.relinearises
        states = _equal_states(layout)
        self.states = (0,) * states if _worth_unrolling(states, layout, carving, schedule) else ()
        transposes = bool(self.states) or states >= _LEAST_TRANSPOSED
        self.has_saddle = bool((carving.hub < 0.0).any())
        self.wants_marginals, self.wants_logs = bool(data.hub_virtual.any()), True
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
            np.zeros(1, dtype=np.bool_),
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
        large = (sizes >= max(self.schedule.worth_cutting, layout.n_hubs / N_BLOCKS)) & ~layout.instance_is_tree
        for instance in np.flatnonzero(large & self.pairwise).tolist():
            found = cut(layout, instance)
            if found is not None:
                order[found[1][0] : found[1][-1]] = found[0]
                self._pieces.append(Pieces(layout, instance, found[1]))
        return replace(data, layout=layout._replace(hub_order=order)) if self._pieces else data

    def heed(self, deadline: Deadline) -> None:
        """Stop sweeping when a time limit has passed."""
        self.beliefs = self.beliefs._replace(late=deadline.late)

    @property
    def late(self) -> bool:
        """Whether the time limit has passed, so that sweeps were or will be cut short."""
        return bool(self.beliefs.late[0])

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

    def remove_levels(self) -> None:
        """Where multipliers are large, take from those of each link their largest.

        A constant on a link changes neither beliefs nor D, and so sweeps carry it along for ever: one from weights
        that the solver left long ago would leave rounding of its own size in the scores.
        """
        layout, multipliers = self.data.layout, self.multipliers
        largest = max(multipliers.max(initial=0.0), -multipliers.min(initial=0.0))
        if not self.consistency or largest <= self.schedule.large_multiplier:
            return
        top = np.maximum.reduceat(multipliers, layout.link_offset[:-1])
        level = np.where(np.isfinite(top), top, 0.0)
        multipliers -= np.repeat(level, np.diff(layout.link_offset))

    def pass_messages(
        self, *, tolerance: float = 0.0, max_sweeps: int = 0, tree_sweeps: int = 1 << 30, damping: float = 0.0
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
        leaps = self.consistency and self.has_saddle == (damping > 0.0) and tree_sweeps >= max_sweeps
        leg = self.schedule.leg if leaps else max_sweeps
        done: int | Ints = 0
        before: tuple[Floats, Floats] | None = None
        while True:
            sweeps, wanted = min(leg, max_sweeps), (self.wants_marginals, self.consistency, self.wants_logs)
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
        ratio = np.where(ratio < 1.0, np.minimum(ratio, self.schedule.slowest), 0.0)
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

    @property
    def arrays(self) -> Passing:
        """What array routines read and write, as they take it."""
        return hold(self._passing)

    @property
    def _passing(self) -> Passing:
        data = self.data
        return Passing(
            data.layout,
            self._plan,
            self.tables,
            self.numbers,
            self.multipliers,
            self.beliefs,
            data.weights,
            self.shares,
        )

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
    def hubs(self) -> Hubs:
        """See :class:`Part`."""
        data = self.data
        return Hubs(data.layout.hub_offset, data.hub_kind, data.hub_truth, bool(data.hub_virtual.any()))

    @property
    def _hub(self) -> Ints:
        """(n_hub_states,) hub of each state; kept by a part that stays."""
        hub = self.data.hub_of_state if self._hub_of_state is None else self._hub_of_state
        if self.stays:
            self._hub_of_state = hub
        return hub

    @property
    def linearised(self) -> Floats:
        """(n_hub_states,) how many times the hub's entropy is linearised."""
        return self.carving.linearised[self._hub]

    def of_hubs(self, values: Floats) -> Floats:
        """See :class:`Part`."""
        return values

    def hub_sums(self, values: Floats) -> Floats:
        """See :class:`Part`."""
        hub = self._hub
        sums = np.bincount(hub, weights=values, minlength=self.data.layout.n_hubs).astype(np.float64)
        return sums[hub]

    def normalised(self, logs: Floats) -> Floats:
        """See :class:`Part`."""
        top = np.maximum.reduceat(logs, self.data.layout.hub_offset[:-1])
        logs = logs - top[self._hub]
        return logs - np.log(self.hub_sums(np.exp(logs)))

    def summary(self, place: Floats | None = None) -> Summary:
        """What the last pass adds to the dual; moments are written to ``place`` where one is given."""
        beliefs = self.beliefs
        moments = self.data.scores.moments(beliefs.counts, beliefs.hub_count, self.workers, place)
        return Summary(*summarise(self.data.weights, beliefs), moments)

    @property
    def own_multipliers(self) -> Floats:
        """See :class:`Part`."""
        return self.multipliers

    def room_for(self, values: Floats) -> Floats:
        """See :class:`Part`."""
        return self._space.zeros(values.size)

    @property
    def n_link_states(self) -> int:
        """Number of multipliers."""
        return self.data.layout.n_link_states

    def state(self) -> tuple[Floats, Floats]:
        """Multipliers and linearisation; they may be written to."""
        return self.multipliers, self.linearisation

    def take_up(self, multipliers: Floats, linearisation: Floats | None) -> None:
        """See :class:`Part`."""
        self.multipliers[:] = multipliers
        if linearisation is not None:
            self.linearisation[:] = linearisation

    def largest_violation(self) -> float:
        """Largest disagreement over edges and sepset states at the last pass (Eq. 5).

        Clusters are compared with the hub's own belief, or with each other where the hub is only a sepset.
        """
        data, layout = self.data, self.data.layout
        if not data.hub_virtual.any():
            return float(self.beliefs.violation.max(initial=0.0))
        marginal, reference = self.beliefs.link_marginal, self.hub_beliefs()
        is_first = np.zeros(layout.n_links, dtype=bool)
        is_first[layout.hub_links[:-1][data.hub_virtual]] = True
        first_states = np.flatnonzero(is_first.repeat(np.diff(layout.link_offset)))
        hub_state = data.hub_state_of_link_state
        reference[hub_state[first_states]] = marginal[first_states]
        return float(np.abs(marginal - reference[hub_state]).max(initial=0.0))


def _equal_states(layout: Layout) -> int:
    """The number of states that all hubs have, where all clusters are pairs of them; else 0."""
    states = int(layout.hub_offset[1]) if layout.n_hubs else 0
    equal = (np.diff(layout.hub_offset) == states).all() and (layout.cluster_rows == states).all()
    return states if equal else 0


def _worth_unrolling(states: int, layout: Layout, carving: Carving, schedule: Schedule) -> bool:
    """Whether loops over so many states can be unrolled, and that pays for its compilation."""
    if layout.n_link_states < schedule.worth_compiling or not 2 <= states <= schedule.most_unrolled:
        return False
    return bool((carving.cluster == 1.0).all()) and bool((carving.hub + np.diff(layout.hub_links) > 0.0).all())


class MessageTables(HubTables):
    """Belief tables of clusters and hubs at the last pass; copies what it needs."""

    def __init__(self, messages: Messages) -> None:
        super().__init__(messages.data.layout, messages.hub_beliefs())
        tables = messages.tables
        if not messages.consistency:
            messages.spread_scores()
        self._tables = tables._replace(log_entries=tables.log_entries.copy())
        self._numbers = messages.numbers
        self._multipliers = messages.multipliers.copy()

    def cluster(self, index: int) -> Floats:
        """Belief table of a table cluster."""
        layout = self._layout
        entries, number = self._tables.log_entries, float(self._numbers.cluster[index])
        scores = log_scores(layout, entries, self._multipliers, number, index)
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


@store.register
def _(
    data: PackedData, carve: Carve, workers: Workers, *, consistency: bool, schedule: Schedule | None = None
) -> Storage:
    """Data in memory: one part."""
    part = Messages(data, carve(data), workers, consistency=consistency, schedule=schedule)
    return Storage(
        data,
        [part],
        Vectors(workers),
        data.empirical,
        data.observed_base,
        tables=lambda: MessageTables(part),
    )


# --- parts in files ---


class FilePart(Messages):
    """One chunk of a folder, with the state that outlives a pass."""

    stays = False

    def __init__(
        self,
        name: str,
        file: MappedFile,
        data: PackedData,
        carving: Carving,
        workers: Workers,
        *,
        consistency: bool,
        buffers: Buffers,
    ) -> None:
        self._file = file
        self._mapped = space = FileSpace(None, _capacity(data.layout), buffers)
        kept = Carving(space.keep(carving.cluster), space.keep(carving.hub), space.keep(carving.linearised))
        super().__init__(data, kept, workers, consistency=consistency, name=name, space=space)
        self._release()

    def __exit__(self, *error: object) -> None:
        """Give the memory of this part back."""
        self._release()

    def _release(self) -> None:
        self._file.release()
        self._mapped.release()


@store.register
def _(data: PackedFolder, carve: Carve, workers: Workers, *, consistency: bool, **_options: Any) -> Storage:
    """A part for every chunk of a folder; chunks have no fixed scores."""
    buffers = Buffers(max(chunk.widest for chunk in data.chunks))
    parts = [
        FilePart(chunk.file, file, part, carve(part), workers, consistency=consistency, buffers=buffers)
        for chunk, file, part in data.opened()
    ]
    return Storage(data, parts, Vectors(workers), data.observed()[0], of_all_ranks=True)


def _capacity(layout: Layout) -> int:
    """Bytes that suffice for all that is kept of a part; what is not used takes no room on the disk."""
    states = 3 * layout.n_link_states + 4 * layout.n_hub_states
    places = 4 * layout.n_links + 2 * layout.n_clusters + 4 * layout.n_hubs + 2 * layout.n_tables
    return 8 * (states + places) + (1 << 16)
