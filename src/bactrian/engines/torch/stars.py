"""Star updates of pairwise graphs with plain tensors, and the value of D with its derivatives by the scores.

The maths is that of :mod:`bactrian.engines.numba.stars` with kappa_a = 1 for every edge: with E = exp(theta_a), d the
multipliers of a link and u = exp(d) at the other end of its edge,

    m = E'u,    log b = (theta_v + sum_l log m_l) / (kappa_v + degree),    d_l = log b - log m_l

A constant added to the multipliers of a link changes neither beliefs nor D, so u is normalised to sum 1. The product
is then at least the smallest entry of E / K, and linear space is safe as long as the range of the table is moderate;
tables of a wider range are handled in log space. Messages are held and passed in ``dtype``.

An edge's part of D is log Z of its table plus the multipliers of its two links, a node's part that of its scores less
the multipliers around it, times its counting number. All of that is in float64, so that messages in single precision
cost accuracy of the multipliers only, in which D is stationary.

On a GPU the many small launches of a step are recorded once and started as one: it takes longer to launch them than to
run them.
"""

from __future__ import annotations

import gc
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, NamedTuple, Self, TypeVar

import torch
from torch import Tensor

from bactrian.arrays import Floats
from bactrian.camel.dual import larger
from bactrian.engines.torch.device import Movable
from bactrian.engines.torch.kernels import block_outer_product, can_update, tables_at_once, update_stars
from bactrian.engines.torch.structure import Structure

Result = TypeVar("Result")

#: Change of a belief below which messages of a precision only move within rounding.
FINEST = {torch.float64: 1e-12, torch.float32: 1e-5}
#: Stands for -inf: far enough to be nothing, near enough to keep the digits of what is added to it.
FORBIDDEN = -1e4
#: Rounds of sweeps, each sharper than the last, after which what disagreement is left counts as rounding.
_ROUNDS = 4
#: Sweeps between looks at whether damping is needed, the part of the residual that says so, and the most of it.
_TAME_SWEEPS, _SLOW, _MOST_DAMPING = 16, 0.999, 0.9
#: A recording waits for the whole device before it begins, which would spoil one that another thread is making.
_ONE_AT_A_TIME = threading.Lock()
#: Range of a table (in nats) up to which messages are products in linear space.
LINEAR = {torch.float64: 300.0, torch.float32: 40.0}
#: What changes from evaluation to evaluation.
_CHANGING = (
    "multipliers", "node_log", "scores", "tables", "swept", "star_log", "star_belief", "_oriented", "_log_tables",
    "wide",
)  # fmt: skip


@dataclass(frozen=True)
class NodeNumbers(Movable):
    """Counting numbers of nodes."""

    hub: Tensor  #: (N,) kept number kappa
    linearised: Tensor  #: (N,) number of times the node's entropy is subtracted through its linearisation
    any_unowned: bool  #: some node has the number 0

    @staticmethod
    def of(hub: Floats, linearised: Floats) -> NodeNumbers:
        """On the host."""
        return NodeNumbers(torch.from_numpy(hub), torch.from_numpy(linearised), bool((hub == 0.0).any()))


class Recording(Generic[Result]):
    """A function of no arguments whose launches on the GPU are recorded once and then started as one.

    It must read and write the same tensors each time, and must not wait for the device. What it returns is overwritten
    by the next call.
    """

    def __init__(self, function: Callable[[], Result]) -> None:
        self._function: Callable[[], Result] | None = function
        self._graph: Any = None
        self._result: Any = None

    def __call__(self) -> Result:
        """Start the recorded launches."""
        if self._graph is None:
            with _ONE_AT_A_TIME:
                self._record()
        self._graph.replay()
        return self._result

    def _record(self) -> None:
        function = self._function
        assert function is not None
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            function()  # what is set up on first use cannot be recorded
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        # Other threads may go on meanwhile, with launches and transfers of their own.
        with _no_collection(), torch.cuda.graph(graph, stream=aside, capture_error_mode="thread_local"):
            self._result = function()
        # Often a method of whoever holds this recording: a cycle would keep the device's memory until a collection.
        self._graph, self._function = graph, None


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keep the garbage collector out: an old recording that it destroys while another is made would spoil that."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class Stars(Movable):
    """Scores, multipliers and beliefs of graphs under given counting numbers, and sweeps of star updates over them.

    Nodes, links and edges are numbered as inside :class:`Structure`. Without ``consistency`` the multipliers stay
    fixed: the scores of nodes that have no number of their own are spread over their edges, or with ``first_edge``
    given to the first of them.

    Attributes
    ----------
    multipliers : (2E, K)
        In ``dtype``; the rest is in float64 unless it serves the messages alone.
    scores, tables
        Scores of nodes (N, K), and of table entries (T, K, K), or (E, K, K) where edges have their own.
    node_log : (N, K)
        log b of the nodes at the last evaluation.
    linearisation : (N, K)
        g; callers subtract it from the scores of nodes.
    star_log, star_belief : (N, K)
        log b of the last star updates, of use once ``swept``, and b, from which the change in the next ones counts.
    unowned : (N,)
        Which nodes have the counting number 0, and so no belief of their own.
    wide : bool
        Whether the range of some table needs log space.
    records : bool
        Whether launches may be recorded.
    """

    def __init__(
        self,
        structure: Structure,
        numbers: NodeNumbers,
        n_labels: int,
        *,
        dtype: torch.dtype = torch.float64,
        consistency: bool = True,
        first_edge: bool = False,
        records: bool = True,
    ) -> None:
        self.structure, self.numbers, self.n_labels, self.dtype = structure, numbers, n_labels, dtype
        self.consistency, self.first_edge = consistency, first_edge
        device = structure.nodes.device
        n_nodes, n_edges = structure.n_nodes, structure.n_edges
        self.multipliers = torch.zeros(2 * n_edges, n_labels, dtype=dtype, device=device)
        self.node_log = torch.zeros(n_nodes, n_labels, dtype=torch.float64, device=device)
        self.scores = torch.zeros(n_nodes, n_labels, dtype=torch.float64, device=device)
        self.tables = torch.zeros(0)
        self.linearisation = torch.zeros(n_nodes, n_labels, dtype=torch.float64, device=device)
        self.swept = False
        self.star_log = torch.zeros(n_nodes, n_labels, dtype=dtype, device=device)
        self.star_belief = torch.zeros(n_nodes, n_labels, dtype=dtype, device=device)
        self._low_scores = torch.zeros(n_nodes, n_labels, dtype=dtype, device=device)
        self.change = torch.zeros((), dtype=dtype, device=device)
        self._changes = torch.zeros(n_nodes, dtype=dtype, device=device)
        self._inverse_divisor = (1.0 / (numbers.hub + structure.degree)).to(dtype)[:, None]
        self._offsets = [
            structure.pointer[first : last + 1] - structure.pointer[first]
            for first, last in zip(structure.colour_nodes, structure.colour_nodes[1:], strict=False)
        ]
        self.unowned = numbers.hub == 0.0
        self._oriented = self._log_tables = torch.zeros(0)
        self.wide = False
        self.records = records and device.type == "cuda"
        self._recordings: dict[str, Recording[Any]] = {}

    def to(self, device: Any) -> Self:
        """The same on another device."""
        moved = super().to(device)
        moved.records = False
        moved.forget_recordings()
        return moved

    def twin(self) -> Stars:
        """The same graphs with messages of their own, which start from these."""
        twin = Stars(
            self.structure, self.numbers, self.n_labels, dtype=self.dtype, consistency=self.consistency,
            first_edge=self.first_edge, records=False,
        )  # fmt: skip
        for name in ("multipliers", "linearisation", "star_belief"):
            getattr(twin, name).copy_(getattr(self, name))
        return twin

    def take_state(self, other: Stars) -> None:
        """Take over multipliers, scores and beliefs of the same graphs on another device."""
        for name in _CHANGING:
            value = getattr(other, name)
            setattr(self, name, value.to(self.structure.nodes.device) if isinstance(value, Tensor) else value)

    def set_scores(self, scores: Tensor, tables: Tensor) -> None:
        """Take scores of nodes (N, K) and tables (T, K, K), or (E, K, K) where edges have their own."""
        self.check_range(float(self.load(scores, tables)))
        if not self.consistency:
            share = self.structure.degree.clamp_min(1).to(torch.float64).reciprocal()
            share = torch.where(self.unowned, share, 0.0).index_select(0, self.structure.link_node)
            if self.first_edge:
                links = torch.arange(share.numel(), device=share.device)
                first = self.structure.first_link.index_select(0, self.structure.link_node)
                share = torch.where(links == first, share.ceil(), 0.0)
            # Never swept, so in float64.
            self.multipliers = share[:, None] * scores.index_select(0, self.structure.link_node)

    def load(self, scores: Tensor, tables: Tensor) -> Tensor:
        """Take scores, as for tables of a moderate range; returns their range, for :meth:`check_range`."""
        self.scores.copy_(scores)
        self._low_scores.copy_(scores - scores.amax(1, keepdim=True))
        if self.tables.shape != tables.shape:
            self.tables, self._oriented = tables.clone(), self._orient(tables)
            self.forget_recordings()
        else:  # in place, for what is recorded
            self.tables.copy_(tables)
            self._oriented.copy_(self._orient(tables))
        if not tables.numel():
            return torch.zeros((), dtype=torch.float64, device=scores.device)
        return (tables.amax((1, 2)) - tables.amin((1, 2))).max()

    def check_range(self, spread: float) -> None:
        """Turn to log space where the range of a table needs it."""
        self.turn(wide=not spread < LINEAR[self.dtype])

    def turn(self, *, wide: bool) -> None:
        """Turn to log space, or back."""
        self.wide = wide
        if wide:
            self._log_tables = self._turned(self.tables)

    def forget_recordings(self) -> None:
        """Tensors that launches were recorded with are no longer those in use."""
        self._recordings = {}

    def _recorded(self, name: str, function: Callable[[], Result]) -> Result:
        """What ``function`` returns, from its recording."""
        if name not in self._recordings:
            self._recordings[name] = Recording(function)
        return self._recordings[name]()

    def _orient(self, tables: Tensor) -> Tensor:
        """Exponentials of tables as messages meet them."""
        return self._turned((tables - tables.amax((1, 2), keepdim=True)).exp())

    def _turned(self, tables: Tensor) -> Tensor:
        """Tables in the order of the links, or of the kinds of links."""
        tables = tables.to(self.dtype)
        if self.structure.own_tables:
            of_links = tables.new_empty(2 * tables.shape[0], self.n_labels, self.n_labels)
            of_links[self.structure.links[:, 0]] = tables.transpose(1, 2)
            of_links[self.structure.links[:, 1]] = tables
            return of_links
        if self.structure.symmetric:
            return tables
        return torch.stack([tables.transpose(1, 2), tables], 1).flatten(0, 1)

    def _incoming(self, first: int, last: int) -> Tensor:
        """log m of links ``first:last``, up to a constant a link."""
        rows = self.multipliers.index_select(0, self.structure.partner[first:last])
        if self.wide:
            return self._log_products(torch.log_softmax(rows, 1), first, last)
        rows = torch.softmax(rows, 1)
        if self.structure.own_tables:
            return torch.bmm(rows[:, None, :], self._oriented[first:last])[:, 0].log_()
        kinds = self._oriented.shape[0]
        if kinds == 1:
            return (rows @ self._oriented[0]).log_()
        products = rows @ self._oriented.transpose(0, 1).reshape(self.n_labels, -1)
        chosen = self.structure.kind[first:last, None, None].expand(-1, 1, self.n_labels)
        return products.view(-1, kinds, self.n_labels).gather(1, chosen)[:, 0].log_()

    def _log_products(self, rows: Tensor, first: int, last: int) -> Tensor:
        block = tables_at_once(self.n_labels)
        parts = []
        for start in range(first, last, block):
            stop = min(last, start + block)
            own = self.structure.own_tables
            tables = self._log_tables[start:stop] if own else self._log_tables[self.structure.kind[start:stop]]
            parts.append(torch.logsumexp(rows[start - first : stop - first, :, None] + tables, 1))
        return torch.cat(parts) if parts else rows

    def sweep(self, damping: float = 0.0) -> Tensor:
        """Star updates of all nodes, colour after colour; returns the largest change of a belief, as a tensor."""
        self.swept = True
        if not self.records or self.wide or damping > 0.0:
            self._sweep(damping)
        else:
            self._recorded("sweep", self._sweep)
        return self.change

    def _sweep(self, damping: float = 0.0) -> None:
        s = self.structure
        if can_update(self.change.device, self.n_labels) and not self.wide and damping == 0.0:
            self._sweep_in_kernels()
            return
        self.change.zero_()
        for c in range(s.n_colours):
            nodes, links = slice(*s.colour_nodes[c : c + 2]), slice(*s.colour_links[c : c + 2])
            incoming = self._incoming(links.start, links.stop)
            total = torch.segment_reduce(incoming, "sum", offsets=self._offsets[c], axis=0, unsafe=True)
            total += self._low_scores[nodes]
            total *= self._inverse_divisor[nodes]
            log_belief = torch.log_softmax(total, 1)
            belief = log_belief.exp()
            torch.maximum(self.change, (belief - self.star_belief[nodes]).abs_().max(), out=self.change)
            self.star_belief[nodes] = belief
            self.star_log[nodes] = log_belief
            new = self.star_log.index_select(0, s.link_node[links])
            if damping > 0.0:
                new -= incoming
                self.multipliers[links] = new.lerp_(self.multipliers[links], damping)
            else:
                torch.sub(new, incoming, out=self.multipliers[links])

    def _sweep_in_kernels(self) -> None:
        s = self.structure
        for first, last in zip(s.colour_nodes, s.colour_nodes[1:], strict=False):
            update_stars(
                slice(first, last), self.multipliers, s.partner, None if s.own_tables else s.kind, s.pointer,
                self._low_scores, self._inverse_divisor, self._oriented, self.star_log, self.star_belief, self._changes,
            )  # fmt: skip
        if s.n_nodes:
            torch.amax(self._changes, 0, out=self.change)

    def solve(
        self, *, tolerance: float, max_sweeps: int, damping: float = 0.0, deadline: float = math.inf
    ) -> tuple[StarValues, int, float]:
        """Sweep until no belief changes, and no edge disagrees with its nodes, by more than ``tolerance``; evaluate.

        Returns the evaluation, the number of sweeps and the residual: 0 where no sweep was asked for. No sweep begins
        after ``deadline``, by :func:`time.perf_counter`.
        """
        tolerance = target = max(tolerance, FINEST[self.dtype])
        sweeps, change = 0, math.inf
        for _ in range(_ROUNDS):
            while sweeps < max_sweeps and time.perf_counter() < deadline:
                change = float(self.sweep(damping))
                sweeps += 1
                if not change > target:
                    break
            values = self.evaluate()
            residual = larger(change, float(values.violation)) if max_sweeps else 0.0
            if not residual > tolerance or sweeps >= max_sweeps or time.perf_counter() >= deadline:
                break
            target *= 0.1
        return values, sweeps, residual

    def ahead(self, sweeps: int) -> tuple[StarValues, Tensor]:
        """Sweep so often, and evaluate, without a look at the device; returns the residual as a tensor."""
        for _ in range(sweeps):
            self.sweep()
        values = self.evaluate()
        return values, torch.maximum(self.change, values.violation)

    def evaluate(self) -> StarValues:
        """D, its derivatives by the scores, and the violation, at the multipliers as they are.

        On a GPU the next evaluation overwrites what this one returns.
        """
        if not self.records or self.wide or not self.consistency:
            return evaluate(self)
        return self._recorded(f"evaluate {'after' if self.swept else 'before'} sweeps", partial(evaluate, self))


def settle(
    stars: Stars, tolerance: float, max_sweeps: int, *, damping: float = 0.0, tame: bool = False
) -> tuple[StarValues, int, float]:
    """Sweep to ``tolerance`` as :meth:`Stars.solve` does, with ``tame`` damped more where the residual does not fall.

    With negative numbers of nodes undamped updates may oscillate.
    """
    done, before = 0, math.inf
    while True:
        limit = min(_TAME_SWEEPS, max_sweeps - done) if tame else max_sweeps
        values, sweeps, residual = stars.solve(tolerance=tolerance, max_sweeps=limit, damping=damping)
        done += sweeps
        if not residual > max(tolerance, FINEST[stars.dtype]) or done >= max_sweeps:
            return values, done, residual
        if residual > _SLOW * before:
            damping = min(0.5 + 0.5 * damping, _MOST_DAMPING)
        before = min(before, residual)


# --- evaluation ---


class StarValues(NamedTuple):
    """What an evaluation gives: D and its derivatives by the scores."""

    totals: Tensor  #: (2,) :attr:`value` and :attr:`violation`, to be read together
    node_counts: Tensor  #: (N, K) dD / d node scores
    table_counts: Tensor  #: (T, K, K), or (E, K, K) where edges have their own: dD / d table scores
    node_value: Tensor  #: (N,) a node's part of D, without weights
    edge_value: Tensor  #: (E,)

    @property
    def value(self) -> Tensor:
        """() D summed over graphs with their weights, without the observed scores."""
        return self.totals[0]

    @property
    def violation(self) -> Tensor:
        """() largest disagreement between an edge and its node."""
        return self.totals[1]


def evaluate(state: Stars) -> StarValues:
    """D, its derivatives by the scores, and the violation; fills ``node_log``."""
    s = state.structure
    row_marginal, column_marginal, edge_value, table_counts = _edges(state)
    first, sums = None, None
    if state.numbers.any_unowned:
        marginals = row_marginal.new_empty(2 * s.n_edges, state.n_labels)
        marginals[s.links[:, 0]], marginals[s.links[:, 1]] = row_marginal, column_marginal
        first = marginals.index_select(0, s.first_link) if s.n_edges else torch.zeros_like(state.scores)
        sums = _sum_links(s, marginals)
    node_value, node_counts = _nodes(state, first, sums)
    violation = torch.zeros((), dtype=torch.float64, device=node_value.device)
    if s.n_edges:
        belief = state.node_log.exp()
        for end, marginal in enumerate((row_marginal, column_marginal)):
            reference = belief.index_select(0, s.link_node[s.links[:, end]])
            violation = torch.maximum(violation, torch.linalg.vector_norm(marginal - reference, torch.inf))
    value = s.node_weight @ node_value + s.edge_weight @ edge_value
    return StarValues(torch.stack([value, violation]), node_counts, table_counts, node_value, edge_value)


def subtract_observed(structure: Structure, labels: Tensor, nodes: Tensor, entries: Tensor) -> None:
    """Take observed labels (N,) away from counts of nodes (N, K) and of table entries, in the order of the batch."""
    s, n_labels = structure, nodes.shape[1]
    labels = labels[s.nodes]
    rows, columns = labels[s.link_node[s.links]].T
    table = s.edges if s.own_tables else s.edge_table
    nodes.view(-1).index_add_(0, s.nodes * n_labels + labels, s.node_weight, alpha=-1.0)
    entries.view(-1).index_add_(0, (table * n_labels + rows) * n_labels + columns, s.edge_weight, alpha=-1.0)


def edge_beliefs(state: Stars, chosen: Tensor) -> Tensor:
    """(n, K, K) belief tables of some edges."""
    s = state.structure
    links = s.links[chosen]
    rows, columns = (state.multipliers[links[:, end]].to(torch.float64) for end in range(2))
    return joint_beliefs(state.tables[s.edge_table[chosen]], rows, columns)


def joint_beliefs(tables: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """(n, K, K) beliefs of edges with these tables (n, K, K) and multipliers (n, K) of their two links."""
    joint = tables + rows[:, :, None] + columns[:, None, :]
    return torch.softmax(joint.flatten(1), 1).view_as(joint)


def _sum_links(structure: Structure, values: Tensor) -> Tensor:
    """Sum over the links of each node."""
    return torch.segment_reduce(values, "sum", offsets=structure.pointer, axis=0, unsafe=True)


def _nodes(state: Stars, first: Tensor | None, sums: Tensor | None) -> tuple[Tensor, Tensor]:
    """The nodes' part of D and their weighted counts; fills ``node_log``.

    ``first`` and ``sums`` are the marginals (N, K) of each node's first edge and those of all its edges added up, where
    any node has the number 0.
    """
    s, number = state.structure, state.numbers.hub
    slack = state.scores
    if state.consistency:
        slack = slack - _sum_links(s, state.multipliers.to(torch.float64))
    number = torch.where(state.unowned, 1.0, number)[:, None]
    scaled = slack / number
    node_log = torch.log_softmax(scaled, 1)
    node_value = number[:, 0] * (scaled[:, 0] - node_log[:, 0])
    if first is not None and sums is not None:
        # A node with number 0 has no belief of its own: after a sweep it keeps that of its star update, else it
        # takes the marginal of its first edge.
        unowned = state.unowned[:, None]
        belief = state.star_log.to(torch.float64) if state.swept else first.clamp_min(1e-300).log()
        node_log = torch.where(unowned, belief, node_log)
        bound = (first * slack).sum(1) if state.consistency else torch.zeros_like(node_value)
        node_value = torch.where(state.unowned, bound, node_value)
    state.node_log.copy_(node_log)
    counts = node_log.exp_()
    if first is not None and sums is not None:
        alone = state.consistency or state.first_edge
        moments = first if alone else sums / s.degree.clamp_min(1)[:, None]
        counts = torch.where(unowned, moments, counts)
    return node_value, counts.mul_(s.node_weight[:, None])


def _edges(state: Stars) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Marginals of edges on both nodes, log Z, and weighted counts of table entries."""
    s = state.structure
    rows, columns = (state.multipliers.index_select(0, s.links[:, end]) for end in range(2))
    if state.wide or s.own_tables:
        return _edges_in_log_space(s, state.tables, rows.to(torch.float64), columns.to(torch.float64))
    tops = [(side.amax(1, keepdim=True) if s.n_edges else side[:, :1]).to(torch.float64) for side in (rows, columns)]
    rows, columns = (rows - tops[0]).exp_(), (columns - tops[1]).exp_()
    shift = state.tables.amax((1, 2))
    entries = (state.tables - shift[:, None, None]).exp()
    to_rows, to_columns = torch.empty_like(rows), torch.empty_like(columns)
    base = torch.empty_like(rows[:, 0])
    edges_of = [slice(*s.type_edges[t : t + 2]) for t in range(entries.shape[0])]
    for t, chosen in enumerate(edges_of):
        torch.mm(columns[chosen], entries[t].T, out=to_rows[chosen])
        torch.mm(rows[chosen], entries[t], out=to_columns[chosen])
        base[chosen] = shift[t]
    to_rows *= rows
    to_columns *= columns
    total = to_rows.sum(1)
    inverse = total.reciprocal()
    edge_value = total.log() + base + tops[0][:, 0] + tops[1][:, 0]
    weighted = columns.mul_((s.edge_weight * inverse)[:, None])
    counts = torch.stack(
        [entries[t] * block_outer_product(rows[chosen], weighted[chosen]) for t, chosen in enumerate(edges_of)]
    )
    return to_rows.mul_(inverse[:, None]), to_columns.mul_(inverse[:, None]), edge_value, counts


def _edges_in_log_space(
    structure: Structure, tables: Tensor, rows: Tensor, columns: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    s = structure
    by_row, by_column = torch.empty_like(rows), torch.empty_like(columns)
    edge_value = torch.empty_like(rows[:, 0])
    counts = torch.zeros_like(tables)
    block = tables_at_once(rows.shape[1])
    bounds = (0, s.n_edges) if s.own_tables else s.type_edges
    for t in range(len(bounds) - 1):
        for start in range(bounds[t], bounds[t + 1], block):
            chosen = slice(start, min(start + block, bounds[t + 1]))
            joint = tables[chosen] if s.own_tables else tables[t]
            joint = joint + rows[chosen, :, None] + columns[chosen, None, :]
            edge_value[chosen] = torch.logsumexp(joint, (1, 2))
            joint = joint.sub_(edge_value[chosen][:, None, None]).exp_()
            by_row[chosen], by_column[chosen] = joint.sum(2), joint.sum(1)
            joint.mul_(s.edge_weight[chosen][:, None, None])
            if s.own_tables:
                counts[chosen] = joint
            else:
                counts[t] += joint.sum(0)
    return by_row, by_column, edge_value, counts
