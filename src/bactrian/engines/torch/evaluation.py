"""The value of D and its derivatives by the scores, at multipliers as they are.

An edge's part of D is log Z of its table plus the multipliers of its two links, a node's part that of its scores less
the multipliers around it, times its counting number. All of it is in float64, so that messages in single precision
cost accuracy of the multipliers only, in which D is stationary.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from bactrian.engines.torch.kernels import block_outer_product, tables_at_once
from bactrian.engines.torch.star_state import StarState
from bactrian.engines.torch.structure import Structure


class StarValues(NamedTuple):
    """What an evaluation gives: D and its derivatives by the scores."""

    value: Tensor  #: () D summed over graphs with their weights, without the observed scores
    node_counts: Tensor  #: (N, K) dD / d node scores
    table_counts: Tensor  #: (T, K, K), or (E, K, K) where edges have their own: dD / d table scores
    violation: Tensor  #: () largest disagreement between an edge and its node
    node_value: Tensor  #: (N,) a node's part of D, without weights
    edge_value: Tensor  #: (E,)


def evaluate(state: StarState) -> StarValues:
    """D, its derivatives by the scores, and the violation; fills ``node_log``."""
    s = state.structure
    row_marginal, column_marginal, edge_value, table_counts = _edges(state)
    first, sums = None, None
    if state.any_unowned:
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
            violation = torch.maximum(violation, (marginal - reference).abs_().max())
    value = s.node_weight @ node_value + s.edge_weight @ edge_value
    return StarValues(value, node_counts, table_counts, violation, node_value, edge_value)


def sum_by_graph(structure: Structure, values: StarValues) -> Tensor:
    """(M,) D of each graph, without weights."""
    total = values.node_value.new_zeros(structure.n_graphs)
    total.index_add_(0, structure.node_graph, values.node_value)
    return total.index_add_(0, structure.edge_graph, values.edge_value)


def observed_counts(structure: Structure, labels: Tensor, n_labels: int) -> tuple[Tensor, Tensor]:
    """Weighted counts of observed node labels and table entries, in the shapes of an evaluation's."""
    s, k = structure, n_labels
    nodes = torch.nn.functional.one_hot(labels, k) * s.node_weight[:, None]
    ends = labels[s.link_node[s.links]]
    state = k * ends[:, 0] + ends[:, 1]
    table = s.table_of(torch.arange(s.n_edges, device=labels.device))
    n_tables = s.n_edges if s.own_tables else len(s.type_edges) - 1
    # Not bincount, which with weights on a GPU has no deterministic form.
    counts = s.edge_weight.new_zeros(n_tables * k * k).index_add_(0, k * k * table + state, s.edge_weight)
    return nodes, counts.view(n_tables, k, k)


def edge_beliefs(state: StarState, chosen: Tensor) -> Tensor:
    """(n, K, K) belief tables of some edges."""
    s = state.structure
    links = s.links[chosen]
    rows, columns = (state.multipliers[links[:, end]].to(torch.float64) for end in range(2))
    return joint_beliefs(state.tables[s.table_of(chosen)], rows, columns)


def joint_beliefs(tables: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """(n, K, K) beliefs of edges with these tables (n, K, K) and multipliers (n, K) of their two links."""
    joint = tables + rows[:, :, None] + columns[:, None, :]
    return torch.softmax(joint.flatten(1), 1).view_as(joint)


def _sum_links(structure: Structure, values: Tensor) -> Tensor:
    """Sum over the links of each node."""
    return torch.segment_reduce(values, "sum", offsets=structure.pointer, axis=0, unsafe=True)


def _nodes(state: StarState, first: Tensor | None, sums: Tensor | None) -> tuple[Tensor, Tensor]:
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
    normaliser = torch.logsumexp(scaled, 1, keepdim=True)
    node_log = scaled - normaliser
    node_value = number[:, 0] * normaliser[:, 0]
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


def _edges(state: StarState) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Marginals of edges on both nodes, log Z, and weighted counts of table entries."""
    s = state.structure
    rows, columns = (state.multipliers.index_select(0, s.links[:, end]).to(torch.float64) for end in range(2))
    if state.wide or s.own_tables:
        return _edges_in_log_space(s, state.tables, rows, columns)
    tops = [side.amax(1, keepdim=True) if s.n_edges else side[:, :1] for side in (rows, columns)]
    rows, columns = rows.sub_(tops[0]).exp_(), columns.sub_(tops[1]).exp_()
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
