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
from typing import Any

import torch
from torch import Tensor

from bactrian.camel.camel import SHORTHAND
from bactrian.camel.dual import larger
from bactrian.engines.torch.batch import GraphBatch
from bactrian.engines.torch.device import Needed, explain_memory, state_bytes
from bactrian.engines.torch.stars import (
    FINEST,
    FORBIDDEN,
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
    max_instances : int
        Instances of which anything is kept: beyond, those visited longest ago start anew.
    save_instances : bool
        Whether ``state_dict()`` has what is kept of instances, megabytes for thousands of sentences.
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
    its device and in float64: message passing starts where it stopped. Without ``instances`` every call starts anew,
    which for ``"cccp"`` leaves the entropy linearised at uniform beliefs, the same as ``"camel0"`` but for a constant.

    All sums are in float64, whatever the type of the scores. The loss is at least float32, and gradients have the type
    of the scores. They may be differentiated again, but for those of ``"cccp"``.
    """

    def __init__(
        self,
        method: str = "convex",
        *,
        node_factors: str = "clusters",
        relinearise_every: int = 1,
        relinearisations: int = 5,
        reduction: str = "mean",
        max_instances: int = 100_000,
        save_instances: bool = False,
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
        if min(relinearise_every, relinearisations, max_instances, max_sweeps) < 1:
            raise ValueError("relinearise_every, relinearisations, max_instances and max_sweeps must be at least 1")
        self.method, self.node_factors, self.reduction = method, node_factors, reduction
        self.relinearise_every, self.relinearisations = relinearise_every, relinearisations
        self.max_instances, self.save_instances = max_instances, save_instances
        self.tolerance, self.max_sweeps = tolerance, max_sweeps
        self.residual = math.nan
        self._warned = False
        self._states: dict[Any, InstanceState] = {}

    @property
    def converged(self) -> bool:
        """Whether message passing came to within the tolerance in the last call."""
        return self.residual <= max(self.tolerance, FINEST[torch.float64])

    def get_extra_state(self) -> dict[Any, dict[str, Any]]:
        """What is kept of instances, for ``state_dict``; nothing unless ``save_instances``."""
        return {name: vars(state).copy() for name, state in self._states.items() if self.save_instances}

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
            again = 0 if due is None or not bool(due.any()) else self.relinearisations - 1
            field = Graphs(
                self.method, graphs, [stars], labels, None, alike=True, tolerance=self.tolerance,
                max_sweeps=self.max_sweeps if chosen.consistency else 0, relinearisations=again, due=due,
            )  # fmt: skip
            loss = field.values(node_scores.to(torch.float64), tables.to(torch.float64)).sum()
            self.residual = field.residual
            if ids is not None:
                self._keep(stars, ids, graphs)
        if not self.converged:
            warn_once(
                self,
                f"{self.method}: messages did not converge in max_sweeps={self.max_sweeps} sweeps: residual "
                f"{self.residual:.1e} for tolerance={self.tolerance:.1e}; this loss warns only once; see loss.residual",
            )
        wide = torch.promote_types(torch.promote_types(node_scores.dtype, tables.dtype), torch.float32)
        return (loss / graphs.n_graphs if self.reduction == "mean" else loss).to(wide)

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
            field = Graphs(
                method, graphs, [stars], None, None, alike=False, tolerance=self.tolerance, max_sweeps=self.max_sweeps
            )
            field.solve(node_scores.to(torch.float64), tables.to(torch.float64))
            every = torch.arange(structure.n_edges, device=node_scores.device)
            nodes, edges = torch.empty_like(stars.node_log), edge_beliefs(stars, every)
            nodes[structure.nodes] = stars.node_log.exp()
            in_order = torch.empty_like(edges)
            in_order[structure.edges] = edges
            converged = field.residual <= max(self.tolerance, FINEST[stars.dtype])
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
        s, k = stars.structure, stars.n_labels
        states, due = [], []
        for m, name in enumerate(ids):
            shape = int(graphs.node_counts[m]), k
            edges = graphs.edges_of(m)
            state = self._states.get(name)
            if state is None:
                zero, never = stars.scores.new_zeros(shape), stars.scores.new_full(shape, -math.inf)
                state = InstanceState(stars.scores.new_zeros(edges.stop - edges.start, 2, k), zero, never)
            elif state.linearisation.shape != shape or len(state.multipliers) != edges.stop - edges.start:
                raise ValueError(f"instances[{m}] = {name!r} was seen before with another graph")
            due.append(self.method == "cccp" and name in self._states and state.visits >= self.relinearise_every)
            state.visits = 0 if due[-1] else state.visits
            states.append(state)
        multipliers, linearisation, logs = (
            torch.cat([getattr(state, name) for state in states]).to(stars.scores)
            for name in ("multipliers", "linearisation", "log_beliefs")
        )
        stars.multipliers[s.links] = multipliers[s.edges].to(stars.dtype)
        stars.star_belief.copy_(logs[s.nodes].exp())
        by_node = torch.tensor(due, device=logs.device)[s.node_graph]
        slope = -stars.numbers.linearised[:, None] * logs[s.nodes]
        stars.linearisation.copy_(torch.where(by_node[:, None], slope, linearisation[s.nodes]))
        return by_node

    def _keep(self, stars: Stars, ids: list[Any], graphs: GraphBatch) -> None:
        s = stars.structure
        multipliers = stars.multipliers.new_empty(s.n_edges, 2, stars.n_labels)
        multipliers[s.edges] = stars.multipliers[s.links]
        linearisation, log_beliefs = torch.empty_like(stars.node_log), torch.empty_like(stars.node_log)
        linearisation[s.nodes], log_beliefs[s.nodes] = stars.linearisation, stars.node_log
        for m, name in enumerate(ids):
            nodes, edges = graphs.nodes_of(m), graphs.edges_of(m)
            before = self._states.pop(name, None)  # the last visited are the last
            self._states[name] = InstanceState(
                multipliers[edges].clone(), linearisation[nodes].clone(), log_beliefs[nodes].clone(),
                1 if before is None else before.visits + 1,
            )  # fmt: skip
        while len(self._states) > self.max_instances:
            self._states.pop(next(iter(self._states)))


def warn_once(module: Any, text: str) -> None:
    """Warn of messages that did not converge, the first time in the life of a module."""
    if not module._warned:
        module._warned = True
        warn(text, ConvergenceWarning)


def memory_of(graphs: GraphBatch, node_scores: Tensor, edge_scores: Tensor) -> AbstractContextManager[None]:
    """Explains an out-of-memory error in work on a batch."""

    def needed() -> Needed:
        n_edges = len(graphs.edges)
        own = edge_scores.ndim == 3 and len(edge_scores) == n_edges
        n_bytes = state_bytes(graphs.n_nodes, n_edges, node_scores.shape[-1], own_tables=own, single=False)
        return Needed(n_bytes, graphs.n_graphs, "use batches of fewer or smaller graphs")

    return explain_memory(node_scores.device, needed)


class Graphs:
    """Graphs of a batch under an entropy: values that stand in for log Z less the score of the labels, and beliefs.

    Where some labels are unknown, a second D in which the known ones are fixed stands in for that score. Beliefs are
    differentiated by perturbation (Domke 2010): their derivatives by the scores are second ones of D and so symmetric,
    hence their product with a direction is a difference of beliefs at scores a little up and down that direction.

    Parameters
    ----------
    method : {"convex", "camel0", "cccp", "piecewise", "bp"}
    batch : GraphBatch
    stars : list of Stars
        One or, where some labels are unknown, two.
    labels : (N,) ints, or None
    known : (N,) bools, or None
        Which labels are known, where some are not.
    alike : bool
        Whether the derivatives by the values of all graphs will be the same.
    tolerance, max_sweeps
        Of message passing.
    relinearisations : int
        How often the entropy is linearised again at the beliefs found.
    due : (N,) bools, optional
        Nodes, as numbered inside, where it is; by default all.
    """

    def __init__(
        self,
        method: str,
        batch: GraphBatch,
        stars: list[Stars],
        labels: Tensor | None,
        known: Tensor | None,
        *,
        alike: bool,
        tolerance: float,
        max_sweeps: int,
        relinearisations: int = 0,
        due: Tensor | None = None,
    ) -> None:
        self.method, self.batch, self.stars, self.labels, self.known = method, batch, stars, labels, known
        self.alike, self.tolerance, self.max_sweeps = alike, tolerance, max_sweeps
        self.relinearisations, self.due = relinearisations, due
        self.residual, self.sweeps = 0.0, 0
        self._evaluations: list[StarValues] = []

    def values(self, scores: Tensor, tables: Tensor) -> Tensor:
        """(M,), from scores (N, K) and tables, both in float64."""
        found: Tensor = _Values.apply(scores, tables, self)
        return found

    def counts(self, scores: Tensor, tables: Tensor) -> tuple[Tensor, Tensor]:
        """Beliefs of nodes (N, K), and sums of those of the edges of a table."""
        with torch.no_grad():
            self.solve(scores, tables)
        found: tuple[Tensor, Tensor] = _Counts.apply(scores.new_ones(self.batch.n_graphs), scores, tables, self)
        return found

    def solve(self, scores: Tensor, tables: Tensor) -> Tensor:
        """Pass messages; returns what :meth:`values` does."""
        found = self._settle(scores, tables, self.tolerance, self.max_sweeps)
        if self.alike:
            self._counts = self._counted(self._evaluations)
        return found

    def perturbed(self, scores: Tensor, tables: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Values (M,), and counts weighted by graph, at other scores not far away."""
        twin = copy.copy(self)
        twin.stars, twin.alike = [stars.twin() for stars in self.stars], False
        return twin._settle(scores, tables, _EXACT, 4 * self.max_sweeps), *twin.weighed(weights)

    def _settle(self, scores: Tensor, tables: Tensor, tolerance: float, max_sweeps: int) -> Tensor:
        """Messages to a tolerance; returns values (M,), less those of the second stars or of the labels."""
        found: Tensor | float = 0.0
        self._evaluations = []
        for stars, sign in zip(self.stars, (1.0, -1.0), strict=False):
            s = stars.structure
            inside = scores[s.nodes]
            if sign < 0.0 and self.known is not None and self.labels is not None:
                states = torch.arange(stars.n_labels, device=scores.device)
                other = self.known[s.nodes][:, None] & (states != self.labels[s.nodes][:, None])
                inside = torch.where(other, inside.amax(1, keepdim=True) + FORBIDDEN, inside)
            ordered = tables[s.edges] if s.own_tables else tables
            for step in range(1 + self.relinearisations):
                if step:
                    slope = -stars.numbers.linearised[:, None] * stars.node_log
                    kept = stars.linearisation
                    stars.linearisation.copy_(
                        slope if self.due is None else torch.where(self.due[:, None], slope, kept)
                    )
                stars.set_scores(inside - stars.linearisation, ordered)
                values, sweeps, residual = settle(stars, tolerance, max_sweeps, tame=self.method == "convex")
                self.sweeps, self.residual = self.sweeps + sweeps, larger(self.residual, residual)
            found = found + sign * sum_by_graph(s, values)
            self._evaluations.append(values)
        if self.labels is not None and self.known is None:
            found = found - observed_by_graph(self.stars[0].structure, self.labels, scores, tables)
        return torch.as_tensor(found)

    def weighed(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Derivatives of ``weights @ values`` by scores and tables, at the messages as they are."""
        s = self.stars[0].structure
        if self.alike:
            nodes, entries = self._counts[0] * weights[s.node_graph][:, None], self._counts[1] * weights[0]
        else:
            weighted = replace(s, node_weight=weights[s.node_graph], edge_weight=weights[s.edge_graph])
            for stars in self.stars:
                stars.structure = weighted
            nodes, entries = self._counted([evaluate(stars) for stars in self.stars])
            for stars in self.stars:
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
        s = self.stars[0].structure
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
        scores, tables = ctx.saved_tensors
        with memory_of(ctx.graphs.batch, scores, tables):
            found: tuple[Tensor, Tensor] = _Counts.apply(upstream, scores, tables, ctx.graphs)
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
                "beliefs and gradients of method 'cccp', which stops short of its fixed point, have no derivatives; "
                "use 'convex' or 'camel0'"
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
