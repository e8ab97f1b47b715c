"""A layer that turns a network's scores into a conditional random field: loss, marginals, most probable labels."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from bactrian.engines.torch.chains import chain_counts, chain_labels, chain_value
from bactrian.engines.torch.graphs import Told, graph_counts, graph_value
from bactrian.engines.torch.stars import FORBIDDEN
from bactrian.errors import ArgumentError, ArgumentTypeError, check_number

LAYER_METHODS = ("convex", "camel0", "cccp")
REDUCTIONS = ("mean", "sum", "none")
#: Numbers of neighbours in pictures and volumes.
NEIGHBOURS = {4: 2, 8: 2, 6: 3, 18: 3, 26: 3}
#: What describes the edges of graphs, and those of skip edges.
_OF_GRAPHS = {"graph": ("edges", "batch", "edge_types", "edge_scores"), "chain": ("edges", "edge_types"), "grid": ()}
#: What :meth:`CRF.decode` has where the mask is off.
PADDING = -100


class Last(NamedTuple):
    """How inference went in the last call of a layer."""

    residual: float  #: largest change of a belief, or disagreement, that was left; 0 where inference is exact
    sweeps: int
    converged: bool


class CRF(torch.nn.Module):
    """A conditional random field on top of a network, which gives the scores of labels; the layer owns the tables.

    Parameters
    ----------
    n_labels : int
        K.
    structure : {"chain", "grid", "graph"}
        Which labels depend on each other directly: those of neighbours in sequences (B, T, K), in pictures (B, H, W, K)
        or volumes (B, D, H, W, K), or at the ends of edges between nodes (N, K).
    method : {"convex", "camel0", "cccp"}
        Entropy of learning, which marginals and decoding share. With ``"camel0"`` the scores of a node count in each
        edge around it, as its entropy does: without couplings marginals are softmax(scores), whatever the degree.
        Chains without skip edges are exact, unless ``"camel0"`` is asked for; there parameters are called as in
        pytorch-crf, and its ``state_dict`` loads.
        ``"cccp"`` linearises Bethe's entropy at uniform beliefs and twice at those found, again at each visit.
    constraints : (K, K) bools, or three arrays, optional
        Which label (column) may follow which (row); with (K,) bools for the first and the last label as in
        :func:`bactrian.text.allowed_transitions`. Observed labels that they forbid raise an error.
    edge_types : int, optional
        Types of edges, each with a table of its own. In graphs 1 by default; in grids one per step to a neighbour, or
        1 for all; in chains 0, or more for skip edges.
    neighbours : {4, 8, 6, 18, 26}
        Of a pixel, or from 6 of a voxel.
    class_weights : (K,), optional
        The loss of a sequence, picture or graph counts as much as these say of its known labels, on average.
    tolerance : float, optional
        Largest change of a belief at which message passing stops; by default 1e-9 for scores in float64, else 1e-5.
    max_sweeps : int
        Sweeps of message passing at most.

    Attributes
    ----------
    transitions, start_transitions, end_transitions : Parameter
        Chains: scores (K, K) of a label (column) after another (row), of the first, and of the last label.
    tables : Parameter
        (edge_types, K, K) scores of the pairs of labels of an edge; rows belong to its first node: the one to the left,
        above or in front, or the first one given. Of edges given both ways the two tables are averaged.
    last : Last
        How inference went in the last call. The first that did not converge gives a
        :class:`bactrian.ConvergenceWarning`.

    Notes
    -----
    Scores and parameters of -inf forbid labels. Sums are float32 at least in chains and float64 elsewhere, whatever the
    type of the scores, also under autocast; messages are float32 where scores have no more digits and it settles them.
    All results but :meth:`decode` may be differentiated, and the loss and the marginals twice in chains; marginals of
    ``"cccp"`` may not. Nothing is kept of an instance between calls.

    Examples
    --------
    >>> import torch
    >>> from bactrian.torch import CRF
    >>> crf = CRF(3)
    >>> scores, labels = torch.zeros(2, 4, 3), torch.zeros(2, 4, dtype=torch.long)
    >>> crf.loss(scores, labels).backward()
    >>> crf.marginals(scores).shape, crf.decode(scores).shape
    (torch.Size([2, 4, 3]), torch.Size([2, 4]))
    >>> crf, CRF(2, "grid")
    (CRF(3 labels, chain, convex, exact), CRF(2 labels, grid, convex, 2 tables, 4 neighbours))
    """

    def __init__(
        self,
        n_labels: int,
        structure: str = "chain",
        method: str = "convex",
        constraints: Any = None,
        *,
        edge_types: int | None = None,
        neighbours: int = 4,
        class_weights: Any = None,
        tolerance: float | None = None,
        max_sweeps: int = 200,
    ) -> None:
        super().__init__()
        check_number("n_labels", n_labels, least=1, whole=True)
        check_number("max_sweeps", max_sweeps, least=1, whole=True)
        for name, found, among in (
            ("structure", structure, ("chain", "grid", "graph")),
            ("method", method, LAYER_METHODS),
            ("neighbours", neighbours, tuple(NEIGHBOURS)),
        ):
            if found not in among:
                raise ArgumentError(name, f"must be one of {', '.join(map(str, among))}, found {found!r}")
        steps = {"chain": 0, "grid": neighbours // 2, "graph": 1}[structure]
        n_tables = steps if edge_types is None else edge_types
        check_number("edge_types", n_tables, least=min(steps, 1), whole=True)
        if structure == "grid" and n_tables not in (1, steps):
            raise ArgumentError("edge_types", f"must be 1 or {steps}, one per step to a neighbour, found {edge_types}")
        self.n_labels, self.structure, self.method, self.neighbours = n_labels, structure, method, neighbours
        self.tolerance, self.max_sweeps = tolerance, max_sweeps
        if structure == "chain":
            self.start_transitions = torch.nn.Parameter(torch.empty(n_labels))
            self.end_transitions = torch.nn.Parameter(torch.empty(n_labels))
            self.transitions = torch.nn.Parameter(torch.empty(n_labels, n_labels))
        if n_tables:
            self.tables = torch.nn.Parameter(torch.empty(n_tables, n_labels, n_labels))
        self._n_tables = n_tables
        self.reset_parameters()
        weights = None if class_weights is None else torch.as_tensor(class_weights, dtype=torch.float32)
        if weights is not None and (weights.shape != (n_labels,) or not bool((weights >= 0).all())):
            raise ArgumentError("class_weights", f"must be {n_labels} numbers that are not negative")
        self.register_buffer("_class_weights", weights, persistent=False)
        for name, allowed in zip(("between", "first", "last"), self._checked_constraints(constraints), strict=True):
            self.register_buffer(f"_allowed_{name}", allowed, persistent=False)
        self._told = Told().tensor()  # stays on the host
        self._exact = False

    def reset_parameters(self) -> None:
        """Draw all scores of the layer from -0.1 to 0.1."""
        for parameter in self.parameters():
            torch.nn.init.uniform_(parameter, -0.1, 0.1)

    def extra_repr(self) -> str:
        """What ``repr`` shows in brackets."""
        words = [f"{self.n_labels} labels", self.structure, self.method]
        if self.structure == "chain" and self.method != "camel0":
            words.append("exact but with skip edges" if self._n_tables else "exact")
        if self._n_tables:
            words.append(f"{self._n_tables} table{'s' if self._n_tables > 1 else ''}")
        if self.structure == "grid":
            words.append(f"{self.neighbours} neighbours")
        if self._allowed_between is not None:
            words.append(f"{int(self._allowed_between.sum())} of {self.n_labels**2} transitions allowed")
        return ", ".join(words)

    @property
    def last(self) -> Last:
        """How inference went in the last call."""
        if self._exact:
            return Last(0.0, 1, converged=True)
        told = Told(*self._told.tolist())
        return Last(told.residual, int(told.sweeps), bool(told.converged))

    def forward(self, *arguments: Any, **options: Any) -> Tensor:
        """The loss, for those who call the layer, such as ``DistributedDataParallel``."""
        return self.loss(*arguments, **options)

    def loss(
        self,
        scores: Tensor,
        labels: Tensor,
        mask: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        *,
        weights: Tensor | None = None,
        **graph: Any,
    ) -> Tensor:
        """Negative log-likelihood of the labels, or what stands in for it in graphs with loops.

        Parameters
        ----------
        scores : (B, T, K), (B, H, W, K), (B, D, H, W, K) or (N, K)
            Scores of labels; -inf forbids one.
        labels : ints of the same shape, without the last axis
            Observed labels. Where one is ``ignore_index`` it is not known, and summed over: the likelihood is that of
            the labels that are known.
        mask : bools of that shape, optional
            Which nodes are there. Tokens on both sides of a gap in a chain are neighbours, pixels are not.
        ignore_index : int
            Stands for a label that is not known.
        reduction : {"mean", "sum", "none"}
            Over sequences, pictures or graphs.
        weights : (B,), optional
            The loss of each sequence, picture or graph counts so much; the mean still divides by their number.
        edges : (2, E) ints
            Edges of graphs, or skip edges of chains: pairs of nodes, numbered through all graphs of the batch (token t
            of sequence b is T b + t). Edges may come one way or both ways, in any order.
        batch : (N,) ints, optional
            The graph of each node, as in PyTorch Geometric, in any order; by default there is one.
        edge_types : (E,) ints, optional
            Which of ``tables`` an edge has; 0 by default.
        edge_scores : (E, K, K), optional
            Added to the table of each edge of a graph.
        """
        if reduction not in REDUCTIONS:
            raise ArgumentError("reduction", f"must be one of {', '.join(REDUCTIONS)}, found {reduction!r}")
        self._check_shapes(scores, mask, graph)
        if labels.shape != scores.shape[:-1] or labels.is_floating_point():
            wanted = tuple(scores.shape[:-1])
            raise ArgumentError("labels", f"must be integers of shape {wanted}, found {tuple(labels.shape)}")
        if self._is_exact(graph):
            found = chain_value(*self._chain(scores), mask, labels, ignore_index)
        elif weights is None and self._class_weights is None:
            return self._value(scores, mask, labels, ignore_index, reduction, **graph)
        else:
            found = self._value(scores, mask, labels, ignore_index, "none", **graph)
        if self._class_weights is not None:
            found = found * self._mean_class_weight(labels, mask, ignore_index, graph.get("batch"), len(found))
        if weights is not None:
            if weights.shape != found.shape:
                raise ArgumentError("weights", f"must have shape ({len(found)},), found {tuple(weights.shape)}")
            found = found * weights
        if reduction == "none":
            return found
        return found.sum() if reduction == "sum" else found.mean()

    def log_partition(self, scores: Tensor, mask: Tensor | None = None, **graph: Any) -> Tensor:
        """(B,) log of the sum of exp(score) over all labellings; ``edges`` and the like as in :meth:`loss`."""
        self._check_shapes(scores, mask, graph)
        if self._is_exact(graph):
            return chain_value(*self._chain(scores), mask, None, 0)
        return self._value(scores, mask, None, 0, "none", **graph)

    def marginals(self, scores: Tensor, mask: Tensor | None = None, **graph: Any) -> Tensor:
        """Probabilities of labels in the shape of the scores, 0 where the mask is off; options as in :meth:`loss`."""
        self._check_shapes(scores, mask, graph)
        if self._is_exact(graph):
            inputs = self._chain(scores)
            return chain_counts(inputs[0].new_ones(len(scores)), *inputs, mask, None, 0)[0]
        return self._beliefs(scores, mask, **graph)

    @torch.no_grad()
    def decode(self, scores: Tensor, mask: Tensor | None = None, **graph: Any) -> Tensor:
        """Labels, -100 where the mask is off: the most probable labelling of an exact chain, else of each node.

        Options are those of :meth:`loss`.
        """
        self._check_shapes(scores, mask, graph)
        if self._is_exact(graph):
            found = chain_labels(*self._chain(scores), mask)
        else:
            found = self._beliefs(scores, mask, **graph).argmax(-1)
        return found if mask is None else found.masked_fill(~mask.to(found.device, torch.bool), PADDING)

    def _is_exact(self, graph: dict[str, Any]) -> bool:
        return self.structure == "chain" and self.method != "camel0" and graph.get("edges") is None

    def _check_shapes(self, scores: Tensor, mask: Tensor | None, graph: dict[str, Any]) -> None:
        for name in graph:
            if name not in _OF_GRAPHS["graph"]:
                raise TypeError(f"CRF has no option {name}; graphs are given as {', '.join(_OF_GRAPHS['graph'])}")
            if name not in _OF_GRAPHS[self.structure] and graph[name] is not None:
                raise ArgumentError(name, f"does not belong to structure={self.structure!r}")
        axes = {"chain": 3, "grid": NEIGHBOURS[self.neighbours] + 2, "graph": 2}[self.structure]
        if scores.ndim != axes or scores.shape[-1] != self.n_labels or min(scores.shape[1:]) < 1:
            names = {2: "N", 3: "B, T", 4: "B, H, W", 5: "B, D, H, W"}[axes]
            raise ArgumentError("scores", f"must have shape ({names}, {self.n_labels}), found {tuple(scores.shape)}")
        if not scores.is_floating_point():
            raise ArgumentTypeError("scores", f"must be floating-point numbers, found {scores.dtype}")
        if mask is not None and mask.shape != scores.shape[:-1]:
            raise ArgumentError("mask", f"must have shape {tuple(scores.shape[:-1])}, found {tuple(mask.shape)}")

    def _chain(self, scores: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Scores, transitions, and those at the start and at the end, of one type."""
        wide = torch.promote_types(torch.promote_types(scores.dtype, self.transitions.dtype), torch.float32)
        between, first, last = (part.to(wide) for part in self._constrained(-torch.inf))
        self._exact = True
        return scores.to(wide), between, first, last

    def _constrained(self, low: float) -> list[Tensor]:
        """Transitions, and those at the start and at the end, ``low`` where constraints forbid them."""
        parts = [self.transitions, self.start_transitions, self.end_transitions]
        if self._allowed_between is None:
            return parts
        allowed = (self._allowed_between, self._allowed_first, self._allowed_last)
        return [part.masked_fill(~may, low) for part, may in zip(parts, allowed, strict=True)]

    def _value(
        self, scores: Tensor, mask: Tensor | None, labels: Tensor | None, ignore_index: int, reduction: str,
        **graph: Tensor | None,
    ) -> Tensor:  # fmt: skip
        """Values by message passing: (B,), or their sum or mean."""
        given = self._given(scores, mask, labels, ignore_index, reduction, **graph)
        found, *_, told = graph_value(*given, torch.is_grad_enabled() and reduction == "none", self._told)
        self._told.copy_(told.detach())
        return found.to(torch.promote_types(scores.dtype, torch.float32))

    def _beliefs(self, scores: Tensor, mask: Tensor | None, **graph: Tensor | None) -> Tensor:
        """Marginals by message passing."""
        given = self._given(scores, mask, None, 0, "sum", **graph)
        keep = torch.is_grad_enabled()
        with torch.no_grad():
            _, *kept, told = graph_value(*given, keep, self._told)
            self._told.copy_(told)
        found, *_ = graph_counts(given[0].new_ones(()), *kept, told, *given)
        if self.method == "camel0":  # as often as the scores count
            found = found / found.sum(-1, keepdim=True).clamp_min(1.0)
        return found.to(torch.promote_types(scores.dtype, torch.float32))

    def _given(
        self,
        scores: Tensor,
        mask: Tensor | None,
        labels: Tensor | None,
        ignore_index: int,
        reduction: str,
        *,
        edges: Tensor | None = None,
        batch: Tensor | None = None,
        edge_types: Tensor | None = None,
        edge_scores: Tensor | None = None,
    ) -> tuple[Any, ...]:
        """What the operators take."""
        self._check_edges(edges, edge_types, batch, edge_scores)
        steps = {"chain": 1, "grid": self.neighbours // 2, "graph": 0}[self.structure]
        tolerance = self.tolerance or (1e-9 if scores.dtype == torch.float64 else 1e-5)
        self._exact = False
        return (
            self._with_ends(scores, mask) if self.structure == "chain" else scores, self._tables(steps), edge_scores,
            mask, labels, edges, batch, edge_types, ignore_index, 2 * steps, self.method, tolerance, self.max_sweeps,
            reduction,
        )  # fmt: skip

    def _with_ends(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        """Scores (B, T, K) in float64, those of the first and the last label added."""
        there = (
            torch.ones_like(scores[..., 0], dtype=torch.bool) if mask is None else mask.to(scores.device, torch.bool)
        )
        places = torch.arange(scores.shape[1], device=scores.device)
        first, last = there.to(torch.uint8).argmax(1), scores.shape[1] - 1 - there.flip(1).to(torch.uint8).argmax(1)
        found = scores.to(torch.float64)
        for part, at in zip(self._constrained(FORBIDDEN)[1:], (first, last), strict=True):
            end = part.to(torch.float64).clamp_min(FORBIDDEN)
            found = found + (places == at[:, None])[..., None] * end
        return found

    def _check_edges(
        self, edges: Tensor | None, edge_types: Tensor | None, batch: Tensor | None, edge_scores: Tensor | None
    ) -> None:
        """Refuse edges that do not belong to the structure or have another shape."""
        if edges is None and self.structure == "graph":
            raise ArgumentError("edges", "are missing: structure='graph' needs them")
        if edges is not None and not self._n_tables:
            raise ArgumentError("edges", "are for structure='graph', or for chains with edge_types")
        if edges is not None and (edges.ndim != 2 or len(edges) != 2 or edges.is_floating_point()):
            raise ArgumentError("edges", f"must be integers of shape (2, E), found {tuple(edges.shape)}")
        for name, part in (("edge_types", edge_types), ("batch", batch)):
            if part is not None and part.is_floating_point():
                raise ArgumentTypeError(name, f"must be integers, found {part.dtype}")
        k = self.n_labels
        if edge_scores is not None and (edges is None or edge_scores.shape != (edges.shape[1], k, k)):
            raise ArgumentError("edge_scores", f"must have shape (E, {k}, {k}), one table per edge")

    def _tables(self, steps: int) -> Tensor:
        """(T, K, K) tables of all types of edges."""
        parts = [self.transitions[None]] if self.structure == "chain" else []
        if self._n_tables:
            parts.append(self.tables.expand(max(steps, self._n_tables), -1, -1))
        tables = torch.cat(parts).to(torch.float64)
        if self._allowed_between is not None:
            n_between = 1 if self.structure == "chain" else len(tables)
            allowed = torch.cat(
                [self._allowed_between.expand(n_between, -1, -1), torch.ones_like(tables[n_between:], dtype=torch.bool)]
            )
            tables = tables.masked_fill(~allowed, FORBIDDEN)
        return tables.clamp_min(FORBIDDEN)

    def _mean_class_weight(
        self, labels: Tensor, mask: Tensor | None, ignore_index: int, batch: Tensor | None, count: int
    ) -> Tensor:
        """(B,) means of the class weights of known labels."""
        known = labels != ignore_index
        if mask is not None:
            known = known & mask.to(labels.device, torch.bool)
        each = self._class_weights[torch.where(known, labels, 0)] * known
        if self.structure != "graph":
            return each.flatten(1).sum(1) / known.flatten(1).sum(1).clamp_min(1)
        where = torch.zeros_like(labels) if batch is None else batch.to(labels.device, torch.int64)
        sums = each.new_zeros(2, count).index_add_(1, where, torch.stack([each, known.to(each.dtype)]))
        return sums[0] / sums[1].clamp_min(1)

    def _checked_constraints(self, constraints: Any) -> tuple[Tensor | None, ...]:
        """What may follow what, begin and end."""
        if constraints is None:
            return None, None, None
        k = self.n_labels
        parts = constraints if isinstance(constraints, tuple) else (constraints, [True] * k, [True] * k)
        allowed = tuple(torch.as_tensor(part) for part in parts)
        if [part.shape for part in allowed] != [(k, k), (k,), (k,)] or any(p.dtype != torch.bool for p in allowed):
            raise ArgumentError("constraints", f"must be bools of shape ({k}, {k}), or also two of shape ({k},)")
        return allowed
