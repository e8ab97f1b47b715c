"""Star updates and evaluation of the dual with plain tensors, for pairwise graphs.

The maths is that of :mod:`bactrian.kernels.stars` with kappa_a = 1 for every edge: with E = exp(theta_a), d the
multipliers of a link and u = exp(d) at the other end of its edge,

    m = E'u,    log b = (theta_v + sum_l log m_l) / (kappa_v + degree),    d_l = log b - log m_l

A constant added to the multipliers of a link changes neither beliefs nor D, so u is normalised to sum 1. The product
is then at least the smallest entry of E / K, and linear space is safe as long as the range of the table is moderate;
tables of a wider range are handled in log space.

Messages are held and passed in ``dtype``; evaluation is in float64 throughout, so that single precision costs accuracy
of the multipliers only, in which D is stationary.
"""

from __future__ import annotations

import copy
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bactrian.torch.numbers import NodeNumbers
from bactrian.torch.recording import Recording
from bactrian.torch.star_kernel import can_update, update_stars
from bactrian.torch.structure import Structure

#: Range of a table (in nats) up to which messages are products in linear space.
_WIDEST = {torch.float64: 300.0, torch.float32: 40.0}
#: Entries of the blocks in which log space works through edges.
_BLOCK_ENTRIES = 1 << 26
#: Rows of the blocks whose outer products are summed side by side.
_BLOCK_ROWS = 1024
#: Change of a belief below which messages of a precision only move within rounding.
FINEST = {torch.float64: 1e-12, torch.float32: 1e-5}
#: Rounds of sweeps, each sharper than the last, after which what disagreement is left counts as rounding.
_ROUNDS = 4
#: Sweeps between looks at whether damping is needed, the part of the residual that says so, and the most of it.
_TAME_SWEEPS, _SLOW, _MOST_DAMPING = 16, 0.999, 0.9
#: What changes from evaluation to evaluation.
_STATE = (
    "multipliers", "node_log", "scores", "tables", "swept", "_star_log", "_star_belief", "_oriented", "_log_tables",
    "_wide",
)  # fmt: skip


class StarValues(NamedTuple):
    """What an evaluation gives: D and its derivatives by the scores."""

    value: Tensor  #: () D summed over graphs with their weights, without the observed scores
    node_counts: Tensor  #: (N, K) dD / d node scores
    table_counts: Tensor  #: (T, K, K), or (E, K, K) where edges have their own: dD / d table scores
    violation: Tensor  #: () largest disagreement between an edge and its node
    node_value: Tensor  #: (N,) a node's part of D, without weights
    edge_value: Tensor  #: (E,)


def block_outer_product(left: Tensor, right: Tensor) -> Tensor:
    """``left.T @ right`` for tall matrices: summed in blocks, which keeps a whole device busy."""
    rows = left.shape[0] // _BLOCK_ROWS * _BLOCK_ROWS
    rest = left[rows:].T @ right[rows:]
    if rows == 0:
        return rest
    blocks = left[:rows].view(-1, _BLOCK_ROWS, left.shape[1]), right[:rows].view(-1, _BLOCK_ROWS, right.shape[1])
    return rest + torch.bmm(blocks[0].transpose(1, 2), blocks[1]).sum(0)


class Stars:
    """Scores, multipliers and beliefs of graphs under given counting numbers.

    Nodes, links and edges are numbered as inside :class:`Structure`. Without ``consistency`` the multipliers stay
    fixed: the scores of nodes that have no number of their own are spread over their edges, or with ``first_edge``
    given to the first of them.
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
    ) -> None:
        self.structure, self.numbers, self.n_labels, self.dtype = structure, numbers, n_labels, dtype
        self.consistency, self.first_edge = consistency, first_edge
        device = structure.nodes.device
        n_nodes, n_edges = structure.n_nodes, structure.n_edges
        self.multipliers = torch.zeros(2 * n_edges, n_labels, dtype=dtype, device=device)
        self.node_log = torch.zeros(n_nodes, n_labels, dtype=torch.float64, device=device)
        self.scores = torch.zeros(n_nodes, n_labels, dtype=torch.float64, device=device)
        self.tables = torch.zeros(0)
        self.bias = torch.zeros(n_nodes, n_labels, dtype=torch.float64, device=device)
        self.swept = False
        self._change = torch.zeros((), dtype=dtype, device=device)
        self._changes = torch.zeros(n_nodes, dtype=dtype, device=device)
        self._low_scores = torch.zeros(n_nodes, n_labels, dtype=dtype, device=device)
        self._star_log = torch.zeros(n_nodes, n_labels, dtype=dtype, device=device)
        self._star_belief = torch.zeros(n_nodes, n_labels, dtype=dtype, device=device)
        divisor = numbers.hub + structure.degree
        self._inverse_divisor = (1.0 / divisor).to(dtype)[:, None]
        self._offsets = [
            structure.pointer[first : last + 1] - structure.pointer[first]
            for first, last in zip(structure.colour_nodes, structure.colour_nodes[1:], strict=False)
        ]
        self._unowned = numbers.hub == 0.0
        self._any_unowned = bool(self._unowned.any())
        self._oriented = self._log_tables = torch.zeros(0)
        self._wide = False
        self.records = device.type == "cuda"
        self._recorded: Recording[None] | None = None
        self._evaluations: dict[bool, Recording[StarValues]] = {}

    def to(self, device: Any) -> Stars:
        """The same on another device."""
        moved = copy.copy(self)
        moved.structure, moved.numbers = self.structure.to(device), self.numbers.to(device)
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(moved, name, value.to(device))
        moved._offsets = [offset.to(device) for offset in self._offsets]
        moved.records = False
        moved.forget_recordings()
        return moved

    def take_state(self, other: Stars) -> None:
        """Take over multipliers, scores and beliefs of the same graphs on another device."""
        for name in _STATE:
            value = getattr(other, name)
            setattr(self, name, value.to(self.structure.nodes.device) if isinstance(value, Tensor) else value)

    # ------------------------------------------------------------------------------------------------- scores

    def set_scores(self, scores: Tensor, tables: Tensor) -> None:
        """Take scores of nodes (N, K) and tables (T, K, K), or (E, K, K) where edges have their own."""
        self.check_range(float(self.load(scores, tables)))
        if not self.consistency:
            share = self.structure.degree.clamp_min(1).to(torch.float64).reciprocal()
            share = torch.where(self._unowned, share, 0.0).index_select(0, self.structure.link_node)
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
        self._wide = not spread < _WIDEST[self.dtype]
        if self._wide:
            self._log_tables = self._turned(self.tables)

    @property
    def wide(self) -> bool:
        """Whether the range of some table needs log space."""
        return self._wide

    def forget_recordings(self) -> None:
        """Tensors that launches were recorded with are no longer those in use."""
        self._recorded = None
        self._evaluations = {}

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

    # ------------------------------------------------------------------------------------------------- sweeps

    def _incoming(self, first: int, last: int) -> Tensor:
        """log m of links ``first:last``, up to a constant a link."""
        rows = self.multipliers.index_select(0, self.structure.partner[first:last])
        if self._wide:
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
        block = max(1, _BLOCK_ENTRIES // self.n_labels**2)
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
        if not self.records or self._wide or damping > 0.0:
            self._sweep(damping)
        else:
            self._recorded = self._recorded or Recording(self._sweep)
            self._recorded()
        return self._change

    def _sweep(self, damping: float = 0.0) -> None:
        s = self.structure
        if can_update(self._change.device, self.n_labels) and not self._wide and damping == 0.0:
            self._sweep_in_kernels()
            return
        self._change.zero_()
        for c in range(s.n_colours):
            nodes, links = slice(*s.colour_nodes[c : c + 2]), slice(*s.colour_links[c : c + 2])
            incoming = self._incoming(links.start, links.stop)
            total = torch.segment_reduce(incoming, "sum", offsets=self._offsets[c], axis=0, unsafe=True)
            total += self._low_scores[nodes]
            total *= self._inverse_divisor[nodes]
            log_belief = torch.log_softmax(total, 1)
            belief = log_belief.exp()
            torch.maximum(self._change, (belief - self._star_belief[nodes]).abs_().max(), out=self._change)
            self._star_belief[nodes] = belief
            self._star_log[nodes] = log_belief
            new = self._star_log.index_select(0, s.link_node[links])
            if damping > 0.0:
                new -= incoming
                self.multipliers[links] = new.lerp_(self.multipliers[links], damping)
            else:
                torch.sub(new, incoming, out=self.multipliers[links])

    def _sweep_in_kernels(self) -> None:
        s = self.structure
        for first, last in zip(s.colour_nodes, s.colour_nodes[1:], strict=False):
            update_stars(
                slice(first, last),
                self.multipliers,
                s.partner,
                None if s.own_tables else s.kind,
                s.pointer,
                self._low_scores,
                self._inverse_divisor,
                self._oriented,
                self._star_log,
                self._star_belief,
                self._changes,
            )
        if s.n_nodes:
            torch.amax(self._changes, 0, out=self._change)

    def solve(self, *, tolerance: float, max_sweeps: int, damping: float = 0.0) -> tuple[StarValues, int, float]:
        """Sweep until no belief changes, and no edge disagrees with its nodes, by more than ``tolerance``; evaluate.

        Returns the evaluation, the number of sweeps and the residual: 0 where no sweep was asked for.
        """
        tolerance = target = max(tolerance, FINEST[self.dtype])
        sweeps, change = 0, math.inf
        for _ in range(_ROUNDS):
            while sweeps < max_sweeps:
                change = float(self.sweep(damping))
                sweeps += 1
                if not change > target:
                    break
            values = self.evaluate()
            residual = max(change, float(values.violation)) if sweeps else 0.0
            if not residual > tolerance or sweeps >= max_sweeps:
                break
            target *= 0.1
        return values, sweeps, residual

    # --------------------------------------------------------------------------------------------- evaluation

    def sum_by_graph(self, values: StarValues) -> Tensor:
        """(M,) D of each graph, without weights."""
        total = values.node_value.new_zeros(self.structure.n_graphs)
        total.index_add_(0, self.structure.node_graph, values.node_value)
        return total.index_add_(0, self.structure.edge_graph, values.edge_value)

    def observed_counts(self, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Weighted counts of observed node labels and table entries, in the shapes of an evaluation's."""
        s, k = self.structure, self.n_labels
        nodes = torch.nn.functional.one_hot(labels, k) * s.node_weight[:, None]
        ends = labels[s.link_node[s.links]]
        state = k * ends[:, 0] + ends[:, 1]
        edge = torch.arange(s.n_edges, device=labels.device)
        table = edge if s.own_tables else self._type_of(edge)
        n_tables = s.n_edges if s.own_tables else len(s.type_edges) - 1
        counts = torch.bincount(k * k * table + state, weights=s.edge_weight, minlength=n_tables * k * k)
        return nodes, counts.to(torch.float64).view(n_tables, k, k)

    def evaluate(self) -> StarValues:
        """D, its derivatives by the scores, and the violation, at the multipliers as they are.

        On a GPU the next evaluation overwrites what this one returns.
        """
        if not self.records or self._wide or not self.consistency:
            return self._evaluate()
        if self.swept not in self._evaluations:
            self._evaluations[self.swept] = Recording(self._evaluate)
        return self._evaluations[self.swept]()

    def _evaluate(self) -> StarValues:
        s = self.structure
        row_marginal, column_marginal, edge_value, table_counts = self._edges()
        first, sums = None, None
        if self._any_unowned:
            marginals = row_marginal.new_empty(2 * s.n_edges, self.n_labels)
            marginals[s.links[:, 0]], marginals[s.links[:, 1]] = row_marginal, column_marginal
            first = marginals.index_select(0, s.first_link) if s.n_edges else torch.zeros_like(self.scores)
            sums = self._sum_links(marginals)
        node_value, node_counts = self._nodes(first, sums)
        violation = torch.zeros((), dtype=torch.float64, device=node_value.device)
        if s.n_edges:
            belief = self.node_log.exp()
            for end, marginal in enumerate((row_marginal, column_marginal)):
                reference = belief.index_select(0, s.link_node[s.links[:, end]])
                violation = torch.maximum(violation, (marginal - reference).abs_().max())
        value = s.node_weight @ node_value + s.edge_weight @ edge_value
        return StarValues(value, node_counts, table_counts, violation, node_value, edge_value)

    def _sum_links(self, values: Tensor) -> Tensor:
        """Sum over the links of each node."""
        return torch.segment_reduce(values, "sum", offsets=self.structure.pointer, axis=0, unsafe=True)

    def _nodes(self, first: Tensor | None, sums: Tensor | None) -> tuple[Tensor, Tensor]:
        """The nodes' part of D and their weighted counts; fills ``node_log``."""
        s, number = self.structure, self.numbers.hub
        slack = self.scores
        if self.consistency:
            slack = slack - self._sum_links(self.multipliers.to(torch.float64))
        number = torch.where(self._unowned, 1.0, number)[:, None]
        scaled = slack / number
        normaliser = torch.logsumexp(scaled, 1, keepdim=True)
        node_log = scaled - normaliser
        node_value = number[:, 0] * normaliser[:, 0]
        if first is not None and sums is not None:
            # A node with number 0 has no belief of its own: after a sweep it keeps that of its star update, else it
            # takes the marginal of its first edge.
            unowned = self._unowned[:, None]
            belief = self._star_log.to(torch.float64) if self.swept else first.clamp_min(1e-300).log()
            node_log = torch.where(unowned, belief, node_log)
            bound = (first * slack).sum(1) if self.consistency else torch.zeros_like(node_value)
            node_value = torch.where(self._unowned, bound, node_value)
        self.node_log.copy_(node_log)
        counts = node_log.exp_()
        if first is not None and sums is not None:
            alone = self.consistency or self.first_edge
            moments = first if alone else sums / s.degree.clamp_min(1)[:, None]
            counts = torch.where(unowned, moments, counts)
        return node_value, counts.mul_(s.node_weight[:, None])

    def _edges(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Marginals of edges on both nodes, log Z, and weighted counts of table entries."""
        s = self.structure
        rows, columns = (self.multipliers.index_select(0, s.links[:, end]).to(torch.float64) for end in range(2))
        if self._wide or s.own_tables:
            return self._edges_in_log_space(rows, columns)
        tops = [side.amax(1, keepdim=True) if s.n_edges else side[:, :1] for side in (rows, columns)]
        rows, columns = rows.sub_(tops[0]).exp_(), columns.sub_(tops[1]).exp_()
        shift = self.tables.amax((1, 2))
        entries = (self.tables - shift[:, None, None]).exp()
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

    def _edges_in_log_space(self, rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        s = self.structure
        by_row, by_column = torch.empty_like(rows), torch.empty_like(columns)
        edge_value = torch.empty_like(rows[:, 0])
        counts = torch.zeros_like(self.tables)
        block = max(1, _BLOCK_ENTRIES // self.n_labels**2)
        bounds = (0, s.n_edges) if s.own_tables else s.type_edges
        for t in range(len(bounds) - 1):
            for start in range(bounds[t], bounds[t + 1], block):
                chosen = slice(start, min(start + block, bounds[t + 1]))
                joint = self.tables[chosen] if s.own_tables else self.tables[t]
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

    def edge_beliefs(self, chosen: Tensor) -> Tensor:
        """(n, K, K) belief tables of some edges."""
        s = self.structure
        links = s.links[chosen]
        table = chosen if s.own_tables else self._type_of(chosen)
        rows, columns = (self.multipliers[links[:, end]].to(torch.float64) for end in range(2))
        joint = self.tables[table] + rows[:, :, None] + columns[:, None, :]
        return torch.softmax(joint.flatten(1), 1).view_as(joint)

    def _type_of(self, edges: Tensor) -> Tensor:
        bounds = torch.tensor(self.structure.type_edges[1:], device=edges.device)
        return torch.searchsorted(bounds, edges, right=True)


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
