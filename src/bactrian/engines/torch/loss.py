"""CAMEL as a loss on top of any network: scores in, a convex dual out, exact gradients back.

A network gives scores theta of nodes' labels and of edges' tables. The loss is the dual D of
:mod:`bactrian.camel.dual` minimised over the multipliers, less the scores of the observed labels:

    loss(theta) = min_d D(theta, d) - theta . observed,      d loss / d theta = beliefs - observed

by the envelope theorem: at the optimal multipliers only the explicit dependence on theta counts, so that nothing is
differentiated through the message passing. With Bethe's entropy, the part of it that is not concave is linearised, and
relinearised at the last beliefs on a schedule (the concave-convex procedure, one step of it at a time).
"""

from __future__ import annotations

import copy
import math
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import torch
from torch import Tensor

from bactrian.camel.camel import SHORTHAND
from bactrian.engines.torch.batch import GraphBatch, Layout
from bactrian.engines.torch.device import Needed, explain_memory, state_bytes
from bactrian.engines.torch.stars import (
    FINEST,
    Stars,
    StarValues,
    edge_beliefs,
    evaluate,
    observed_counts,
    settle,
    sum_by_graph,
)
from bactrian.engines.torch.structure import Structure
from bactrian.errors import warn
from bactrian.solvers.solution import ConvergenceWarning

#: Learners whose entropy and consistency the loss takes, and entropies of inference.
METHODS = {name: SHORTHAND[name] for name in ("piecewise", "camel0", "convex", "cccp")}
INFERENCE = {"bp": "total", "convex": "convex", "camel0": "clusters"}
#: Relinearisations of a layer's ``"cccp"``; estimators replay as many.
_RELINEARISATIONS = 2
#: Stands for -inf: far enough to be nothing, near enough to keep the digits of what is added to it.
FORBIDDEN = -1e4
#: Step of a perturbation, and the tolerance of messages there.
_STEP, _EXACT = 1e-4, 1e-11


@dataclass
class InstanceState:
    """What the loss keeps of one instance between visits, in the order of the batch."""

    multipliers: Tensor  #: (E, 2, K)
    linearisation: Tensor  #: (N, K) g
    log_beliefs: Tensor  #: (N, K) at the last visit
    visits: int = 0  #: since the last relinearisation


@dataclass(frozen=True)
class Marginals:
    """Marginals of a batch."""

    nodes: Tensor  #: (N, K)
    edges: Tensor  #: (E, K, K)
    converged: bool


class CamelLoss(torch.nn.Module):
    """Loss of pairwise graphs whose scores come from a network.

    Parameters
    ----------
    method : {"piecewise", "camel0", "convex", "cccp"}
        As in :func:`bactrian.learn`.
    node_factors : {"clusters", "edges"}
        Whether node scores are clusters of their own or absorbed into the incident edges; see
        :class:`bactrian.GraphData`.
    relinearise_every : int
        ``"cccp"`` only: visits of an instance between relinearisations. :meth:`relinearise` asks for one at the next.
    relinearisations : int
        ``"cccp"`` only: relinearisations in a row where one is due, each with the messages solved again. Many, at every
        visit, keep the beliefs at a fixed point of belief propagation; few leave them behind the network.
    reduction : {"mean", "sum"}
        Over the graphs of a batch.
    tolerance, max_sweeps
        Largest change of a belief at which message passing stops, and sweeps of it at most. A loss that stopped short
        is still a bound from above, except for ``"convex"``, and its gradient is off by about ``residual``.

    Attributes
    ----------
    residual : float
        What message passing left in the last call: the largest change of a belief in the last sweep, or disagreement
        between an edge and its node. NaN before the first call.
    converged : bool
        Whether that is within the tolerance. The first call that is not gives a :class:`bactrian.ConvergenceWarning`.

    Notes
    -----
    Multipliers, beliefs and linearisation belong to an instance and are kept between visits under its id, detached, on
    its device and in float64: message passing starts where it stopped. They are part of ``state_dict()``. Without
    ``instances`` every call starts anew, which for ``"cccp"`` leaves the entropy linearised at uniform beliefs, the
    same as ``"camel0"`` but for a constant.

    All sums are in float64, whatever the type of the scores. The loss is at least float32, and gradients have the type
    of the scores. There are no second derivatives: differentiating a gradient (``create_graph=True``) raises
    ``NotImplementedError``.
    """

    def __init__(
        self,
        method: str = "convex",
        *,
        node_factors: str = "clusters",
        relinearise_every: int = 1,
        relinearisations: int = 5,
        reduction: str = "mean",
        tolerance: float = 1e-6,
        max_sweeps: int = 200,
    ) -> None:
        super().__init__()
        if method not in METHODS:
            raise ValueError(f"method must be one of {', '.join(METHODS)}, found {method!r}")
        if node_factors not in ("clusters", "edges"):
            raise ValueError(f"node_factors must be 'clusters' or 'edges', found {node_factors!r}")
        if reduction not in ("mean", "sum"):
            raise ValueError(f"reduction must be 'mean' or 'sum', found {reduction!r}")
        if min(relinearise_every, relinearisations, max_sweeps) < 1:
            raise ValueError("relinearise_every, relinearisations and max_sweeps must be at least 1")
        self.method, self.node_factors, self.reduction = method, node_factors, reduction
        self.relinearise_every, self.relinearisations = relinearise_every, relinearisations
        self.tolerance, self.max_sweeps = tolerance, max_sweeps
        self.residual = math.nan
        self._warned = False
        self._states: dict[Any, InstanceState] = {}

    @property
    def converged(self) -> bool:
        """Whether message passing came to within the tolerance in the last call."""
        return self.residual <= max(self.tolerance, FINEST[torch.float64])

    def get_extra_state(self) -> dict[Any, dict[str, Any]]:
        """What is kept of instances, for ``state_dict``."""
        return {name: vars(state).copy() for name, state in self._states.items()}

    def set_extra_state(self, state: dict[Any, dict[str, Any]]) -> None:
        """Take up what :meth:`get_extra_state` gave, for ``load_state_dict``."""
        self._states = {name: InstanceState(**kept) for name, kept in state.items()}

    def forward(
        self,
        node_scores: Tensor,
        edge_scores: Tensor,
        graphs: GraphBatch,
        labels: Tensor,
        instances: Any = None,
    ) -> Tensor:
        """The loss of a batch.

        Parameters
        ----------
        node_scores : (N, K)
            Scores of the labels of all nodes of the batch, graph after graph.
        edge_scores : (K, K), (T, K, K) or (E, K, K)
            One table for all edges, one per type where the batch has ``edge_types``, or one per edge where it has none;
            rows belong to an edge's first node.
        graphs : GraphBatch
            The graphs of the batch.
        labels : (N,) ints
            Observed labels.
        instances : sequence of hashables, optional
            An id for each graph of the batch, under which its multipliers are kept.
        """
        with memory_of(graphs, node_scores, edge_scores):
            tables, structure = graphs.checked_scores(node_scores, edge_scores)
            labels = graphs.checked_labels(labels, node_scores.shape[1])
            ids = self._checked_ids(instances, graphs)
            chosen = METHODS[self.method]
            stars = self._stars(graphs, structure, node_scores.shape[1], str(chosen.entropy), chosen.consistency)
            due = None if ids is None else self._recall(stars, ids, graphs)
            scale = 1.0 / graphs.n_graphs if self.reduction == "mean" else 1.0
            loss: Tensor = _ProfiledDual.apply(node_scores, tables, stars, labels, due, self, scale, graphs)
            if ids is not None:
                self._keep(stars, ids, graphs)
        if not (self.converged or self._warned):
            self._warned = True
            warn(
                f"{self.method}: messages did not converge in max_sweeps={self.max_sweeps} sweeps: residual "
                f"{self.residual:.1e} for tolerance={self.tolerance:.1e}; this loss warns only once; see loss.residual",
                ConvergenceWarning,
            )
        return loss

    @torch.no_grad()
    def marginals(
        self, node_scores: Tensor, edge_scores: Tensor, graphs: GraphBatch, *, method: str | None = None
    ) -> Marginals:
        """Marginals of a batch at test time: ``"bp"``, ``"convex"`` or ``"camel0"``, by default as in training."""
        method = (self.method if self.method in INFERENCE else "bp") if method is None else method
        if method not in INFERENCE:
            raise ValueError(f"method must be one of {', '.join(INFERENCE)}, found {method!r}")
        with memory_of(graphs, node_scores, edge_scores):
            tables, structure = graphs.checked_scores(node_scores, edge_scores)
            stars = self._stars(graphs, structure, node_scores.shape[1], INFERENCE[method])
            _set_scores(stars, node_scores, tables)
            _, _, residual = settle(stars, self.tolerance, self.max_sweeps, tame=method == "convex")
            every = torch.arange(structure.n_edges, device=node_scores.device)
            nodes, edges = torch.empty_like(stars.node_log), edge_beliefs(stars, every)
            nodes[structure.nodes] = stars.node_log.exp()
            in_order = torch.empty_like(edges)
            in_order[structure.edges] = edges
            converged = residual <= max(self.tolerance, FINEST[stars.dtype])
            return Marginals(nodes.to(node_scores), in_order.to(node_scores), converged)

    def relinearise(self) -> None:
        """Linearise the entropies of all instances visited so far at their last beliefs."""
        for state in self._states.values():
            state.visits = self.relinearise_every

    def forget(self) -> None:
        """Drop all that is kept of instances."""
        self._states.clear()

    def _stars(
        self, graphs: GraphBatch, structure: Structure, n_labels: int, entropy: str, consistency: bool = True
    ) -> Stars:
        numbers = graphs.numbers(structure, entropy, own=self.node_factors == "clusters")
        stars = Stars(structure, numbers, n_labels, consistency=consistency)
        stars.records = False  # they live for one call: too short for a recording to pay
        return stars

    def _checked_ids(self, instances: Any, graphs: GraphBatch) -> list[Any] | None:
        """The ids under which state is kept, or None where none is."""
        if instances is None:
            return None
        given = instances.tolist() if hasattr(instances, "tolist") else list(instances)
        ids = [name.item() if hasattr(name, "item") else name for name in given]  # plain ones, which files may hold
        if len(ids) != graphs.n_graphs or len(set(ids)) != len(ids):
            raise ValueError(f"instances must be {graphs.n_graphs} different ids, one per graph, found {len(ids)}")
        return None if self.method == "piecewise" else ids

    def _recall(self, stars: Stars, ids: list[Any], graphs: GraphBatch) -> Tensor:
        """Put what is kept of the instances into a batch's state; returns (N,) whether a node is relinearised."""
        s = stars.structure
        multipliers = stars.multipliers.new_zeros(s.n_edges, 2, stars.n_labels)
        linearisation, beliefs = torch.zeros_like(stars.scores), torch.zeros_like(stars.scores)
        number = torch.empty_like(stars.numbers.linearised)
        number[s.nodes] = stars.numbers.linearised
        due = torch.zeros_like(number, dtype=torch.bool)
        for m, name in enumerate(ids):
            state = self._states.get(name)
            if state is None:
                continue
            nodes, edges = graphs.nodes_of(m), graphs.edges_of(m)
            shapes = linearisation[nodes].shape, multipliers[edges].shape
            if (state.linearisation.shape, state.multipliers.shape) != shapes:
                raise ValueError(f"instances[{m}] = {name!r} was seen before with another graph")
            if self.method == "cccp" and state.visits >= self.relinearise_every:
                state.linearisation = -number[nodes][:, None] * state.log_beliefs.to(number.device)
                state.visits = 0
                due[nodes] = True
            multipliers[edges] = state.multipliers.to(multipliers)
            linearisation[nodes] = state.linearisation.to(linearisation)
            beliefs[nodes] = state.log_beliefs.to(beliefs).exp()
        stars.multipliers[s.links] = multipliers[s.edges]
        stars.linearisation.copy_(linearisation[s.nodes])
        stars.star_belief.copy_(beliefs[s.nodes])
        return due[s.nodes]

    def _keep(self, stars: Stars, ids: list[Any], graphs: GraphBatch) -> None:
        s = stars.structure
        multipliers = stars.multipliers.new_empty(s.n_edges, 2, stars.n_labels)
        multipliers[s.edges] = stars.multipliers[s.links]
        linearisation, log_beliefs = torch.empty_like(stars.node_log), torch.empty_like(stars.node_log)
        linearisation[s.nodes], log_beliefs[s.nodes] = stars.linearisation, stars.node_log
        for m, name in enumerate(ids):
            nodes, edges = graphs.nodes_of(m), graphs.edges_of(m)
            visits = self._states[name].visits + 1 if name in self._states else 1
            self._states[name] = InstanceState(
                multipliers[edges].clone(), linearisation[nodes].clone(), log_beliefs[nodes].clone(), visits
            )


def _set_scores(stars: Stars, node_scores: Tensor, tables: Tensor) -> None:
    s = stars.structure
    inside = tables.detach().to(torch.float64)
    stars.set_scores(
        node_scores.detach().to(torch.float64)[s.nodes] - stars.linearisation,
        inside[s.edges] if s.own_tables else inside,
    )


def memory_of(graphs: GraphBatch, node_scores: Tensor, edge_scores: Tensor) -> AbstractContextManager[None]:
    """Explains an out-of-memory error in work on a batch."""

    def needed() -> Needed:
        n_edges = len(graphs.edges)
        own = edge_scores.ndim == 3 and len(edge_scores) == n_edges
        n_bytes = state_bytes(graphs.n_nodes, n_edges, node_scores.shape[-1], own_tables=own, single=False)
        return Needed(n_bytes, graphs.n_graphs, "use batches of fewer or smaller graphs")

    return explain_memory(node_scores.device, needed)


class _ProfiledDual(torch.autograd.Function):
    """D at its optimal multipliers less the observed scores, times a scale, by node scores and tables."""

    @staticmethod
    def forward(
        ctx: Any,
        node_scores: Tensor,
        tables: Tensor,
        stars: Stars,
        labels: Tensor,
        due: Tensor | None,
        loss: CamelLoss,
        scale: float,
        graphs: GraphBatch,
    ) -> Tensor:
        s = stars.structure
        _set_scores(stars, node_scores, tables)
        sweeps = loss.max_sweeps if stars.consistency else 0
        values, _, residual = settle(stars, loss.tolerance, sweeps, tame=loss.method == "convex")
        for _ in range(loss.relinearisations - 1):
            if due is None or not bool(due.any()):
                break
            slope = -stars.numbers.linearised[:, None] * stars.node_log
            stars.linearisation.copy_(torch.where(due[:, None], slope, stars.linearisation))
            _set_scores(stars, node_scores, tables)
            values, _, residual = settle(stars, loss.tolerance, sweeps)
        loss.residual = residual
        nodes, entries = observed_counts(s, labels[s.nodes], stars.n_labels)
        observed = (nodes * node_scores.detach()[s.nodes]).sum() + (entries * stars.tables).sum()
        by_node, by_entry = torch.empty_like(values.node_counts), torch.empty_like(values.table_counts)
        by_node[s.nodes] = values.node_counts - nodes
        if s.own_tables:
            by_entry[s.edges] = values.table_counts - entries
        else:
            by_entry = values.table_counts - entries
        # Sums over a batch exceed half precision: scaled first, and narrowed last.
        wide = torch.promote_types(torch.promote_types(node_scores.dtype, tables.dtype), torch.float32)
        ctx.save_for_backward(by_node.mul_(scale).to(wide), by_entry.mul_(scale).to(wide), node_scores, tables)
        ctx.graphs = graphs
        return (scale * (values.value - observed)).to(wide)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        by_node, by_entry, node_scores, tables = ctx.saved_tensors
        with memory_of(ctx.graphs, by_node, by_entry):
            found: tuple[Tensor, Tensor] = _Gradient.apply(upstream, node_scores, tables, by_node, by_entry)
        return *found, None, None, None, None, None, None


class _Gradient(torch.autograd.Function):
    """The gradient by node scores and tables, which depends on both but must not be differentiated by them again."""

    @staticmethod
    def forward(
        ctx: Any, upstream: Tensor, node_scores: Tensor, tables: Tensor, by_node: Tensor, by_entry: Tensor
    ) -> tuple[Tensor, Tensor]:
        return (upstream * by_node).to(node_scores.dtype), (upstream * by_entry).to(tables.dtype)

    @staticmethod
    def backward(ctx: Any, *_upstream: Tensor) -> NoReturn:
        raise NotImplementedError(
            "CamelLoss has first derivatives only: a function of its gradient (a penalty on it, a Hessian) cannot be "
            "differentiated; take finite differences of the gradient, or detach() it"
        )


class Graphs:
    """Graphs of a batch under an entropy: values that stand in for log Z less the score of the labels, and beliefs.

    Where some labels are unknown, a second D in which the known ones are fixed stands in for that score. Beliefs are
    differentiated by perturbation (Domke 2010): their derivatives by the scores are second ones of D and so symmetric,
    hence their product with a direction is a difference of beliefs at scores a little up and down that direction.

    Parameters
    ----------
    layout : Layout
    method : {"convex", "camel0", "cccp"}
        With ``"cccp"`` the entropy is linearised at uniform beliefs first and twice again, the same at every visit.
    labels : (N,) ints of all nodes that the layout keeps, or None
    known : (N,) bools of these, or None
        Which labels are known, where some are not.
    own_tables : bool
        Whether tables belong to edges instead of types.
    alike : bool
        Whether the derivatives by the values of all graphs will be the same.
    """

    def __init__(
        self,
        layout: Layout,
        method: str,
        labels: Tensor | None,
        known: Tensor | None,
        *,
        own_tables: bool,
        alike: bool,
        tolerance: float,
        max_sweeps: int,
    ) -> None:
        self.layout, self.method, self.labels, self.known = layout, method, labels, known
        self.own_tables, self.alike = own_tables, alike
        self.tolerance, self.max_sweeps = tolerance, max_sweeps
        self.residual, self.sweeps = 0.0, 0
        self._stars: list[Stars] = []
        self._evaluations: list[StarValues] = []

    def values(self, scores: Tensor, tables: Tensor) -> Tensor:
        """(M,), from scores (N, K) and tables, both in float64."""
        found: Tensor = _Values.apply(scores, tables, self)
        return found

    def counts(self, scores: Tensor, tables: Tensor) -> tuple[Tensor, Tensor]:
        """Beliefs of nodes (N, K), and sums of those of the edges of a table."""
        with torch.no_grad():
            self.solve(scores, tables)
        found: tuple[Tensor, Tensor] = _Counts.apply(scores.new_ones(self.layout.graphs.n_graphs), scores, tables, self)
        return found

    def solve(self, scores: Tensor, tables: Tensor) -> Tensor:
        """Pass messages; returns what :meth:`values` does."""
        graphs, n_labels = self.layout.graphs, scores.shape[1]
        s = graphs.structure(scores.device, n_types=None if self.own_tables else graphs.n_types)
        count = 1 if self.known is None else 2
        entropy = str(METHODS[self.method].entropy)
        self._stars = [graphs.stars(s, entropy, n_labels, number, again=self.alike) for number in range(count)]
        found = self._settle(scores, tables, self.tolerance, self.max_sweeps)
        if self.labels is not None and self.known is None:
            found = found - observed_by_graph(s, self.labels, scores, tables)
        if self.alike:
            self._counts = self._counted(self._evaluations)
        return found

    def perturbed(self, scores: Tensor, tables: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Values (M,), and counts weighted by graph, at other scores not far away."""
        twin = copy.copy(self)
        twin._stars, twin.alike = [stars.twin() for stars in self._stars], False
        return twin._settle(scores, tables, _EXACT, 4 * self.max_sweeps), *twin.weighed(weights)

    def _settle(self, scores: Tensor, tables: Tensor, tolerance: float, max_sweeps: int) -> Tensor:
        """Messages of all stars to a tolerance; what the second has is subtracted from the first."""
        found: Tensor | float = 0.0
        self._evaluations = []
        for stars, sign in zip(self._stars, (1.0, -1.0), strict=False):
            s = stars.structure
            inside = scores[s.nodes]
            if sign < 0.0 and self.known is not None and self.labels is not None:
                states = torch.arange(stars.n_labels, device=scores.device)
                other = self.known[s.nodes][:, None] & (states != self.labels[s.nodes][:, None])
                inside = inside.masked_fill(other, FORBIDDEN)
            ordered = tables[s.edges] if s.own_tables else tables
            for step in range(1 + _RELINEARISATIONS * (self.method == "cccp")):
                if step:
                    stars.linearisation.copy_(-stars.numbers.linearised[:, None] * stars.node_log)
                stars.set_scores(inside - stars.linearisation, ordered)
                values, sweeps, residual = settle(stars, tolerance, max_sweeps, tame=self.method == "convex")
                self.sweeps, self.residual = self.sweeps + sweeps, max(self.residual, residual)
            found = found + sign * sum_by_graph(s, values)
            self._evaluations.append(values)
        return torch.as_tensor(found)

    def weighed(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Derivatives of ``weights @ values`` by scores and tables, at the messages as they are."""
        s = self._stars[0].structure
        if self.alike:
            nodes, entries = self._counts[0] * weights[s.node_graph][:, None], self._counts[1] * weights[0]
        else:
            weighted = replace(s, node_weight=weights[s.node_graph], edge_weight=weights[s.edge_graph])
            for stars in self._stars:
                stars.structure = weighted
            nodes, entries = self._counted([evaluate(stars) for stars in self._stars])
            for stars in self._stars:
                stars.structure = s
        in_order = torch.empty_like(entries).index_copy_(0, s.edges, entries) if s.own_tables else entries
        return torch.empty_like(nodes).index_copy_(0, s.nodes, nodes), in_order

    def _counted(self, evaluations: list[StarValues]) -> tuple[Tensor, Tensor]:
        """Counts of labels and of pairs, less those that agree with the labels, in the order of the structure."""
        free, *bound = evaluations
        nodes, entries = free.node_counts, free.table_counts
        if bound:
            return nodes - bound[0].node_counts, entries - bound[0].table_counts
        if self.labels is None:
            return nodes.clone(), entries.clone()
        s = self._stars[0].structure
        observed = observed_counts(s, self.labels[s.nodes], nodes.shape[1])
        return nodes - observed[0], entries - observed[1]


class _Values(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, tables: Tensor, graphs: Graphs) -> Tensor:
        ctx.save_for_backward(scores, tables)
        ctx.graphs = graphs
        return graphs.solve(scores, tables)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        found: tuple[Tensor, Tensor] = _Counts.apply(upstream, *ctx.saved_tensors, ctx.graphs)
        return *found, None


class _Counts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weights: Tensor, scores: Tensor, tables: Tensor, graphs: Graphs) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(weights, scores, tables)
        ctx.graphs = graphs
        return graphs.weighed(weights)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.graphs.method == "cccp":
            raise NotImplementedError(
                "beliefs of 'cccp' have no derivatives: they stop short of its fixed point; 'convex' and 'camel0' have"
            )
        weights, scores, tables = ctx.saved_tensors
        step = _STEP / max(1e-300, *(float(part.abs().max()) for part in upstream if part.numel()))
        moved = (step * part for part in upstream)
        nodes, entries = moved
        up = ctx.graphs.perturbed(scores + nodes, tables + entries, weights)
        down = ctx.graphs.perturbed(scores - nodes, tables - entries, weights)
        return *((a - b) / (2.0 * step) for a, b in zip(up, down, strict=True)), None


def observed_by_graph(structure: Structure, labels: Tensor, scores: Tensor, tables: Tensor) -> Tensor:
    """(M,) scores of the labels."""
    s = structure
    nodes = scores.gather(1, labels[:, None])[:, 0]
    found = scores.new_zeros(s.n_graphs).index_add_(0, s.node_graph, nodes[s.nodes])
    ends = labels[s.nodes][s.link_node[s.links]]
    ordered = tables[s.edges] if s.own_tables else tables
    return found.index_add_(0, s.edge_graph, ordered[s.edge_table, ends[:, 0], ends[:, 1]])
