"""CAMEL as a loss on top of any network: scores in, a convex dual out, exact gradients back.

A network gives scores theta of nodes' labels and of edges' tables. The loss is the dual D of
:mod:`bactrian.camel.dual` minimised over the multipliers, less the scores of the observed labels:

    loss(theta) = min_d D(theta, d) - theta . observed,      d loss / d theta = beliefs - observed

by the envelope theorem: at the optimal multipliers only the explicit dependence on theta counts, so that nothing is
differentiated through the message passing. With Bethe's entropy, the part of it that is not concave is linearised, and
relinearised at the last beliefs on a schedule (the concave-convex procedure, one step of it at a time).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bactrian.engines.torch.batch import GraphBatch
from bactrian.engines.torch.graphs import METHODS, Graphs, memory_of
from bactrian.engines.torch.stars import FINEST, Stars, edge_beliefs
from bactrian.engines.torch.structure import Structure
from bactrian.errors import warn
from bactrian.solvers.solution import ConvergenceWarning

#: Entropies of inference.
INFERENCE = {"bp": "total", "convex": "convex", "camel0": "clusters"}


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
    which for ``"cccp"`` leaves the entropy linearised at uniform beliefs, the same as ``"camel0"`` up to a constant.

    All sums are in float64, whatever the type of the scores. The loss is at least float32, and gradients have the type
    of the scores. They may be differentiated again, except those of ``"cccp"``.
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
                self.method, [stars], labels, None, tolerance=self.tolerance,
                max_sweeps=self.max_sweeps if chosen.consistency else 0, relinearisations=again, due=due,
            )  # fmt: skip
            loss: Tensor = _Total.apply(node_scores.to(torch.float64), tables.to(torch.float64), field, graphs)
            self.residual = field.residual
            if ids is not None:
                self._keep(stars, ids, graphs)
        if not self.converged and not self._warned:
            self._warned = True
            warn(
                f"{self.method}: messages did not converge in max_sweeps={self.max_sweeps} sweeps: residual "
                f"{self.residual:.1e} for tolerance={self.tolerance:.1e}; this loss warns only once; see loss.residual",
                ConvergenceWarning,
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
            field = Graphs(method, [stars], None, None, tolerance=self.tolerance, max_sweeps=self.max_sweeps)
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
        # They live for one call: too short for a recording to pay.
        return Stars(structure, numbers, n_labels, consistency=consistency, records=False)

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


class _Total(torch.autograd.Function):
    """The sum of the values of :class:`.graphs.Graphs`."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, tables: Tensor, graphs: Graphs, batch: GraphBatch) -> Tensor:
        value = graphs.solve(scores, tables).sum()
        ctx.save_for_backward(*graphs.counts(), scores, tables)
        ctx.graphs, ctx.batch = graphs, batch
        return value

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        with memory_of(ctx.batch, *ctx.saved_tensors[2:]):
            return *_Counts.apply(upstream, *ctx.saved_tensors, ctx.graphs), None, None


class _Counts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, *given: Any) -> tuple[Tensor, Tensor]:
        nodes, entries, scores, tables, ctx.graphs = given
        ctx.save_for_backward(weight, scores, tables)
        return weight * nodes, weight * entries

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        weight, *inputs = ctx.saved_tensors
        weights = weight.expand(ctx.graphs.stars[0].structure.n_graphs)
        by_weights, *found = ctx.graphs.curvature(upstream, weights, *inputs)
        return by_weights.sum(), None, None, *found, None
