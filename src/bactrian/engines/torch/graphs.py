"""Values and beliefs of the graphs of a batch, by message passing, with their derivatives.

What stands in for log Z is the dual of :mod:`.stars` at its best multipliers. Its derivatives by the scores are the
beliefs, and those of the beliefs differences of beliefs at scores a little up and down a direction (Domke 2010).

Three operators, opaque to ``torch.compile``, take a batch as a layer has it: scores of all nodes, tables of the types
of edges, and a mask or edges from which the graphs follow. The host must know whether messages settled, so it waits for
a GPU once, at the end: it starts as many sweeps as were needed last, and looks after each only if they did not do.
What comes again in the same shape is recorded, from the scores to what the host reads.
"""

from __future__ import annotations

import copy
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cached_property, partial
from threading import get_ident
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bactrian.camel.camel import SHORTHAND
from bactrian.camel.dual import larger
from bactrian.engines.torch.batch import GraphBatch, Layout, laid_out
from bactrian.engines.torch.device import Needed, explain_memory, state_bytes
from bactrian.engines.torch.stars import (
    FINEST,
    FORBIDDEN,
    LINEAR,
    Recording,
    Stars,
    StarValues,
    evaluate,
    settle,
    subtract_observed,
)
from bactrian.errors import ArgumentError, warn
from bactrian.solvers.solution import ConvergenceWarning

#: Learners whose entropy and consistency a loss takes.
METHODS = {name: SHORTHAND[name] for name in ("piecewise", "camel0", "convex", "cccp")}
#: Relinearisations of ``"cccp"`` in a layer; estimators replay as many.
RELINEARISATIONS = 2
#: Step of a perturbation, and the tolerance of messages there.
_STEP, _EXACT = 1e-4, 1e-11
#: Scores below the largest of a node by which a label counts as forbidden, and such entries of tables.
_LOW = 0.25 * FORBIDDEN


def looks_ahead(device: torch.device) -> bool:
    """Whether a look at the device costs more than sweeps in vain."""
    return device.type == "cuda"


class Told(NamedTuple):
    """What a layer knows of its last call, in a tensor on the host, and what the host assumes of the next by it."""

    residual: float = float("nan")
    sweeps: float = 0
    converged: float = False
    warned: float = False
    ahead: float = 0  #: sweeps that messages need; 0 where it is not known, -1 where sweeps alone do not settle them
    wide: float = False  #: some table needs log space
    double: float = False  #: messages in single precision did not settle
    unknown: float = False  #: some labels are unknown

    def tensor(self) -> Tensor:
        """As a tensor."""
        return torch.tensor([*map(float, self)], dtype=torch.float64)


class Graphs:
    """Graphs of a batch under an entropy: values that stand in for log Z less the score of the labels, and beliefs.

    Where some labels are unknown, ``known`` (N,) says which are not, and a second D, of stars of their own, in which
    these are fixed stands in for that score. ``relinearisations`` say how often the entropy is linearised again at the
    beliefs found; ``due`` at which nodes, as numbered inside, if not at all.
    """

    def __init__(
        self,
        method: str,
        stars: list[Stars],
        labels: Tensor | None,
        known: Tensor | None,
        *,
        tolerance: float,
        max_sweeps: int,
        relinearisations: int = 0,
        due: Tensor | None = None,
    ) -> None:
        self.method, self.stars, self.labels, self.known = method, stars, labels, known
        self.tolerance, self.max_sweeps = tolerance, max_sweeps
        self.relinearisations, self.due = relinearisations, due
        self.residual: Any = 0.0  #: a tensor where the host has not looked
        self.sweeps, self.longest = 0, 0  #: sweeps in all, and most of a linearisation
        self.spread = torch.zeros(())  #: largest range of a table, where the host has not looked
        self._evaluations: list[StarValues] = []

    def solve(self, scores: Tensor, tables: Tensor, plan: Told | None = None) -> Tensor:
        """(M,) values, from scores (N, K) and tables, both in float64; with a ``plan`` without a look at the device."""
        found: Any = 0.0
        self._evaluations = []
        for number, stars in enumerate(self.stars):
            for step in range(1 + self.relinearisations):
                if step:
                    slope = -stars.numbers.linearised[:, None] * stars.node_log
                    kept = stars.linearisation
                    kept.copy_(slope if self.due is None else torch.where(self.due[:, None], slope, kept))
                given = self._given(number, scores, tables)
                if plan is None:
                    stars.set_scores(*given)
                    tame = self.method == "convex"
                    values, sweeps, residual = settle(stars, self.tolerance, self.max_sweeps, tame=tame)
                    self.residual, self.longest = larger(self.residual, residual), max(self.longest, sweeps)
                else:
                    self.spread = stars.load(*given)
                    stars.turn(wide=bool(plan.wide))
                    sweeps = int(plan.ahead)
                    values, residual = stars.ahead(sweeps)
                    self.residual = torch.maximum(self.residual, residual) if self.sweeps else residual
                self.sweeps += sweeps
            found = found + (-1.0) ** number * stars.structure.by_graph(values.node_value, values.edge_value)
            self._evaluations.append(values)
        if self.labels is not None and self.known is None:
            s = self.stars[0].structure
            labels, nodes = self.labels[s.nodes], scores.gather(1, self.labels[:, None])[:, 0]
            rows, columns = labels[s.link_node[s.links]].T
            ordered = tables[s.edges] if s.own_tables else tables
            found = found - s.by_graph(nodes[s.nodes], ordered[s.edge_table, rows, columns])
        return torch.as_tensor(found)

    def _given(self, number: int, scores: Tensor, tables: Tensor) -> tuple[Tensor, Tensor]:
        """What the stars take: in the second only labels that agree with the known ones."""
        stars = self.stars[number]
        s = stars.structure
        inside = scores[s.nodes]
        if number and self.known is not None and self.labels is not None:
            states = torch.arange(stars.n_labels, device=scores.device)
            other = self.known[s.nodes][:, None] & (states != self.labels[s.nodes][:, None])
            inside = torch.where(other, inside.amax(1, keepdim=True) + FORBIDDEN, inside)
        inside = inside - stars.linearisation if self.method == "cccp" else inside
        return inside, tables[s.edges] if s.own_tables else tables

    def counts(self) -> tuple[Tensor, Tensor]:
        """Beliefs of nodes (N, K), and sums of those of the edges of a table, less those that agree with the labels."""
        free, *bound = self._evaluations
        s, nodes, entries = self.stars[0].structure, free.node_counts, free.table_counts
        if bound:
            nodes, entries = nodes - bound[0].node_counts, entries - bound[0].table_counts
        nodes = torch.empty_like(nodes).index_copy_(0, s.nodes, nodes)
        entries = torch.empty_like(entries).index_copy_(0, s.edges, entries) if s.own_tables else entries.clone()
        if self.labels is not None and not bound:
            subtract_observed(s, self.labels, nodes, entries)
        return nodes, entries

    def weighed(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Derivatives of ``weights @ values`` by scores and tables, at the messages as they are."""
        s = self.stars[0].structure
        weighted = replace(s, node_weight=weights[s.node_graph], edge_weight=weights[s.edge_graph])
        for stars in self.stars:
            stars.structure = weighted
        self._evaluations = [evaluate(stars) for stars in self.stars]
        found = self.counts()
        for stars in self.stars:
            stars.structure = s
        return found

    def curvature(
        self, upstream: tuple[Tensor, Tensor], weights: Tensor, scores: Tensor, tables: Tensor
    ) -> list[Tensor]:
        """Derivatives of the sum of ``upstream`` times :meth:`weighed` by weights, scores and tables."""
        if self.method == "cccp":
            raise NotImplementedError(
                "beliefs and gradients of method 'cccp', which stops short of its fixed point, have no derivatives; "
                "use 'convex' or 'camel0'"
            )
        step = _STEP / max(1e-300, *(float(part.abs().max()) for part in upstream if part.numel()))
        nodes, entries = (step * part for part in upstream)
        sides = []
        for sign in (1.0, -1.0):
            twin = copy.copy(self)
            twin.stars, twin.tolerance = [stars.twin() for stars in self.stars], _EXACT
            twin.max_sweeps = 4 * self.max_sweeps
            sides.append([twin.solve(scores + sign * nodes, tables + sign * entries), *twin.weighed(weights)])
        return [(up - down) / (2.0 * step) for up, down in zip(*sides, strict=True)]

    def packed(self) -> Tensor:
        """Messages and linearisations, one after the other."""
        return torch.cat([part for stars in self.stars for part in (stars.multipliers, stars.linearisation)])

    def unpack(self, packed: Tensor, scores: Tensor, tables: Tensor, *, wide: bool) -> None:
        """Take up what :meth:`packed` gave, at these scores."""
        for number, stars in enumerate(self.stars):
            for part in (stars.multipliers, stars.linearisation):
                part.copy_(packed[: len(part)])
                packed = packed[len(part) :]
            stars.load(*self._given(number, scores, tables))
            stars.turn(wide=wide)


# --- what autograd and the compiler know ---


class Entry(NamedTuple):
    """Scores and labels as the graphs have them, and what is wrong with them."""

    nodes: Tensor  #: (N, K)
    tables: Tensor
    labels: Tensor | None  #: (N,), 0 where there is none
    known: Tensor  #: (N,) bools
    faults: list[Tensor]  #: nodes whose scores are no numbers, such entries of tables, and labels that are outside, ...


class Call:
    """What a layer is called with: the arguments of the operators."""

    def __init__(self, *given: Any) -> None:
        self.tensors: tuple[Any, ...] = (*given[:3], given[4])  #: those that change where the graphs are the same
        self.mask, self.batch, self.types = given[3], given[6], given[7]
        self.edges: Tensor | None = given[5]
        self.options = given[8:]
        self.ignore_index, self.connectivity, self.method, self.tolerance, self.max_sweeps, self.reduction = given[8:]

    @property
    def scores(self) -> Tensor:
        """(*shape, K)."""
        return self.tensors[0]

    @cached_property
    def layout(self) -> Layout:
        """The graphs."""
        return laid_out(
            tuple(self.scores.shape[:-1]), self.connectivity, len(self.tensors[1]), self.scores.device,
            mask=self.mask, edges=self.edges, edge_types=self.types, batch=self.batch,
        )  # fmt: skip

    @property
    def memory(self) -> AbstractContextManager[None]:
        """Explains where it does not suffice."""
        return memory_of(self.layout.graphs, self.scores, self.tensors[1 if self.tensors[2] is None else 2])

    def nodes(self, values: Tensor) -> Tensor:
        """(N, K) in float64, of values in the shape of the scores.

        Where only clusters have entropy, a node has that of each edge around it: its scores count as often.
        """
        found = values.reshape(-1, values.shape[-1]).index_select(0, self.layout.kept).to(torch.float64)
        return found * self.layout.degrees if self.method == "camel0" else found

    def by_input(self, nodes: Tensor, tables: Tensor) -> list[Tensor]:
        """Derivatives by scores, tables and those of edges, from those by :meth:`nodes` and tables of the graphs."""
        layout, (_, types, own, _) = self.layout, self.tensors
        nodes = nodes * layout.degrees if self.method == "camel0" else nodes
        by_scores = nodes.new_zeros(self.scores.shape).flatten(0, -2).index_copy_(0, layout.kept, nodes)
        rest = layout.by_type_and_edge(tables, len(types), None if own is None else len(own))
        return [by_scores.view(self.scores.shape), *rest]

    def entry(self) -> Entry:
        """Scores and labels as the graphs have them, and what is wrong with them."""
        layout, (scores, types, own, labels) = self.layout, self.tensors
        nodes = self.nodes(scores)
        top = nodes.amax(1, keepdim=True)
        own = None if own is None else own.to(torch.float64).clamp_min(FORBIDDEN)
        tables = layout.tables(types, own)
        unfit = ~((top < torch.inf) & (top > -torch.inf))[:, 0]  # true for NaN
        entry = Entry(
            torch.maximum(nodes, top + FORBIDDEN), tables, None, torch.ones_like(unfit),
            [unfit, ~(tables < torch.inf).flatten()],
        )  # fmt: skip
        if labels is None:
            return entry
        labels = labels.reshape(-1).index_select(0, layout.kept)
        known = labels != self.ignore_index
        outside = known & ((labels < 0) | (labels >= scores.shape[-1]))
        label = torch.where(known & ~outside, labels, 0)
        low = (nodes.gather(1, label[:, None]) - top < _LOW * layout.degrees)[:, 0]
        which = layout.types if own is None else torch.arange(len(layout.pairs), device=label.device)
        first, second = layout.pairs.T
        beside = known[first] & known[second] & (tables[which, label[first], label[second]] < _LOW)
        return entry._replace(labels=label, known=known, faults=[*entry.faults, outside, known & low, beside])

    def refuse(self, entry: Entry) -> None:
        """Raise the error that says what is wrong, if anything is."""
        layout, labels = self.layout, self.tensors[3]

        def first_of(wrong: Any) -> str:
            return str([int(part) for part in torch.unravel_index(layout.kept[wrong].squeeze(), layout.shape)])

        def label_of(wrong: Any) -> str:
            return f"{first_of(wrong)} = {int(labels.reshape(-1)[layout.kept[wrong]])}"

        wrong = [fault.nonzero()[:1, 0] for fault in entry.faults]
        if len(wrong[0]):
            why = "holds NaN or +inf, or -inf for all labels (-inf forbids one)"
            raise ArgumentError("scores", f"{first_of(wrong[0])} {why}")
        if len(wrong[1]):
            raise ArgumentError("tables", "and edge_scores must not hold NaN or +inf (-inf forbids a pair of labels)")
        if labels is None:
            return
        if len(wrong[2]):
            why = f"is outside 0 to {self.scores.shape[-1] - 1}, and not {self.ignore_index}"
            raise ArgumentError("labels", f"{label_of(wrong[2])} {why}")
        if len(wrong[3]):
            raise ArgumentError("labels", f"{label_of(wrong[3])} is forbidden there: its score, or as an end, is -inf")
        if len(wrong[4]):
            other, one = layout.pairs[wrong[4]].T
            raise ArgumentError("labels", f"{label_of(one)} is forbidden beside {label_of(other)}")

    def graphs(self, entry: Entry, *, unknown: bool, dtype: torch.dtype = torch.float64) -> Graphs:
        """The graphs without messages, which are to be held in ``dtype``."""
        graphs, device = self.layout.graphs, self.scores.device
        structure = graphs.structure(device, n_types=graphs.n_types if self.tensors[2] is None else None)
        numbers = graphs.numbers(structure, str(METHODS[self.method].entropy), own=False)
        n_labels = self.scores.shape[-1]
        stars = [Stars(structure, numbers, n_labels, dtype=dtype, records=False) for _ in range(1 + unknown)]
        return Graphs(
            self.method, stars, entry.labels, entry.known if unknown else None, tolerance=self.tolerance,
            max_sweeps=self.max_sweeps, relinearisations=RELINEARISATIONS * (self.method == "cccp"),
        )  # fmt: skip

    def room(self, *, keep: bool) -> tuple[int, int]:
        """Shape of what holds the messages, whatever the mask leaves of the graphs."""
        n_nodes = self.scores.shape[:-1].numel()
        n_edges = self.connectivity // 2 * n_nodes + (0 if self.edges is None else self.edges.shape[1])
        return keep * (1 if self.tensors[3] is None else 2) * (2 * n_edges + n_nodes), self.scores.shape[-1]

    def precision(self, told: Told) -> torch.dtype:
        """Type of the messages: single where the scores have no more and the tolerance asks for no more."""
        enough = self.scores.dtype is not torch.float64 and self.tolerance >= FINEST[torch.float32]
        return torch.float32 if enough and not told.double else torch.float64

    def run(self, plan: Told | None, dtype: torch.dtype, *, keep: bool) -> tuple[list[Tensor], Graphs, Tensor]:
        """Value, its derivatives and the messages; the graphs; which faults there are, and if labels are unknown."""
        entry, unknown = self.entry(), plan is not None and bool(plan.unknown)
        flags = torch.stack([*(fault.any() for fault in entry.faults), ~entry.known.all()])
        if plan is None:
            *wrong, unknown = flags.tolist()
            if any(wrong):
                self.refuse(entry)
        graphs = self.graphs(entry, unknown=unknown, dtype=dtype)
        values = graphs.solve(entry.nodes, entry.tables, plan)
        share = 1.0 / len(values) if self.reduction == "mean" else 1.0
        messages = values.new_empty(self.room(keep=keep))
        if keep:
            packed = graphs.packed()
            messages[: len(packed)] = packed
        value = values if self.reduction == "none" else share * values.sum()
        return [value, *(share * part for part in self.by_input(*graphs.counts())), messages], graphs, flags

    def ahead(self, plan: Told, *, keep: bool) -> tuple[list[Tensor], list[float], int]:
        """What :meth:`run` finds; its flags, the range of the tables and the residual; and sweeps."""
        recorded = self.layout.recorded

        def run(*tensors: Tensor | None) -> tuple[list[Tensor], Tensor, int]:
            twin = copy.copy(self)
            twin.tensors = tensors
            found, graphs, flags = twin.run(plan, self.precision(plan), keep=keep)
            read = [flags.to(torch.float64), graphs.spread[None], graphs.residual[None]]
            return found, torch.cat(read), graphs.sweeps

        shapes = tuple(None if part is None else (part.shape, part.dtype) for part in self.tensors)
        key, now = (get_ident(), shapes, self.options, keep), plan[4:]
        before, recording = recorded.get(key, (None, None))
        if before != now or self.scores.device.type == "cpu":
            recorded[key] = now, None
            found, read, sweeps = run(*self.tensors)
            return found, read.tolist(), sweeps
        if recording is None:
            own = [
                None if part is None else torch.empty(part.shape, dtype=part.dtype, device=part.device)
                for part in self.tensors
            ]
            recorded[key] = now, (recording := (own, Recording(partial(run, *own))))
        for mine, given in zip(recording[0], self.tensors, strict=True):
            if mine is not None:
                mine.copy_(given)
        found, read, sweeps = recording[1]()
        return [part.clone() for part in found], read.tolist(), sweeps

    def solve(self, told: Tensor, *, keep: bool) -> tuple[Tensor, ...]:
        """What :meth:`run` finds, and what to tell the next call."""
        before, labelled, tried = Told(*told.tolist()), self.tensors[3] is not None, 0.0
        plan, dtype = before._replace(unknown=before.unknown and labelled), self.precision(before)
        if plan.ahead > 0 and looks_ahead(self.scores.device):
            found, (*wrong, unknown, spread, residual), sweeps = self.ahead(plan, keep=keep)
            if any(wrong):
                self.refuse(self.entry())
            fits = plan.wide or spread < LINEAR[dtype]
            if residual <= self.tolerance and fits and plan.unknown >= unknown:
                return *found, before._replace(residual=residual, sweeps=sweeps, converged=True).tensor()
            tried = plan.ahead if fits and not residual <= self.tolerance else 0.0
        found, graphs, _ = self.run(None, dtype, keep=keep)
        if dtype is torch.float32 and (graphs.stars[0].wide or not graphs.residual <= self.tolerance):
            dtype = torch.float64
            found, graphs, _ = self.run(None, dtype, keep=keep)
        converged = graphs.residual <= self.tolerance
        if not converged and not before.warned:
            warn(
                f"messages did not converge in max_sweeps={self.max_sweeps} sweeps: residual {graphs.residual:.1e} "
                f"for tolerance={self.tolerance:.1e}; this layer warns only once; see CRF.last",
                ConvergenceWarning,
            )
        # As many as they took; a quarter more once that was not enough for others.
        needed = min(graphs.longest + (1 + graphs.longest // 4) * bool(plan.ahead), self.max_sweeps)
        settled = converged and plan.ahead >= 0 and needed > tried
        unknown = len(graphs.stars) > 1 if labelled else before.unknown
        after = Told(
            graphs.residual, graphs.sweeps, converged, before.warned or not converged, needed if settled else -1,
            graphs.stars[0].wide, self.precision(before) is not dtype or before.double, unknown,
        )  # fmt: skip
        return *found, after.tensor()

    def restored(self, messages: Tensor, told: Tensor) -> tuple[Entry, Graphs]:
        """The graphs as a call left them; from the start where nothing was kept of it."""
        entry, plan = self.entry(), Told(*told.tolist())
        graphs = self.graphs(entry, unknown=self.tensors[3] is not None and bool(plan.unknown))
        if len(messages):
            graphs.unpack(messages, entry.nodes, entry.tables, wide=bool(plan.wide))
        return entry, graphs


def _value(*given: Any) -> tuple[Tensor, ...]:
    """Value, its derivatives by scores, tables and those of edges, messages, and what the host was told."""
    *inputs, keep, told = given
    call = Call(*inputs)
    with call.memory:
        return call.solve(told, keep=keep)


def _counts(weights: Tensor, *given: Any) -> tuple[Tensor, ...]:
    """Derivatives of ``weights @ value``, those of its sum or mean given."""
    *by_input, messages, told = given[:5]
    call = Call(*given[5:])
    with call.memory:
        if call.reduction == "none":
            _, graphs = call.restored(messages, told)
            by_input = call.by_input(*graphs.weighed(weights.to(torch.float64)))
        else:
            by_input = [weights * part for part in by_input]
        return _alike(by_input, *call.tensors[:3])


def _curvature(
    upstream: list[Tensor], weights: Tensor, messages: Tensor, told: Tensor, *given: Any
) -> tuple[Tensor, ...]:
    """Derivatives of the sum of ``upstream`` times :func:`_counts` by weights, scores, tables and those of edges."""
    call = Call(*given)
    entry, graphs = call.restored(messages, told)
    n_graphs = call.layout.graphs.n_graphs
    by_scores, by_tables, by_edges = (part.to(torch.float64) for part in upstream)
    tables = call.layout.tables(by_tables, None if call.tensors[2] is None else by_edges)
    share = 1.0 / n_graphs if call.reduction == "mean" else 1.0
    spread = (share * weights.to(torch.float64)).expand(n_graphs)
    by_weights, *found = graphs.curvature((call.nodes(by_scores), tables), spread, entry.nodes, entry.tables)
    by_weights = by_weights if call.reduction == "none" else share * by_weights.sum()
    return _alike([by_weights, *call.by_input(*found)], weights, *call.tensors[:3])


def _alike(found: list[Tensor], *inputs: Tensor | None) -> tuple[Tensor, ...]:
    """Of the types of the inputs."""
    return tuple(part if like is None else part.to(like.dtype) for part, like in zip(found, inputs, strict=True))


def memory_of(graphs: GraphBatch, node_scores: Tensor, edge_scores: Tensor) -> AbstractContextManager[None]:
    """Explains an out-of-memory error in work on a batch."""

    def needed() -> Needed:
        n_edges = len(graphs.edges)
        own = edge_scores.ndim == 3 and len(edge_scores) == n_edges
        n_bytes = state_bytes(graphs.n_nodes, n_edges, node_scores.shape[-1], own_tables=own, single=False)
        return Needed(n_bytes, graphs.n_graphs, "use batches of fewer or smaller graphs")

    return explain_memory(node_scores.device, needed)


_INPUTS = (
    "Tensor scores, Tensor tables, Tensor? edge_scores, Tensor? mask, Tensor? labels, Tensor? edges, Tensor? batch, "
    "Tensor? edge_types, int ignore_index, int connectivity, str method, float tolerance, int max_sweeps, str reduction"
)
_BY_INPUT = "Tensor by_scores, Tensor by_tables, Tensor by_edges"
#: :func:`_value`, differentiable twice.
graph_value = torch.library.custom_op(
    "bactrian::graph_value", mutates_args=(),
    schema=f"({_INPUTS}, bool keep, Tensor told) -> (Tensor value, {_BY_INPUT}, Tensor messages, Tensor after)",
)(_value)  # fmt: skip
#: :func:`_counts`, differentiable.
graph_counts = torch.library.custom_op(
    "bactrian::graph_counts", mutates_args=(),
    schema=f"(Tensor weights, {_BY_INPUT}, Tensor messages, Tensor told, {_INPUTS}) -> (Tensor, Tensor, Tensor)",
)(_counts)  # fmt: skip
_graph_curvature = torch.library.custom_op(
    "bactrian::graph_curvature", mutates_args=(),
    schema=f"(Tensor[] upstream, Tensor weights, Tensor messages, Tensor told, {_INPUTS}) -> "
    "(Tensor, Tensor, Tensor, Tensor)",
)(_curvature)  # fmt: skip


def _empty_like(*inputs: Tensor | None, like: Tensor, dtype: torch.dtype | None = None) -> tuple[Tensor, ...]:
    return tuple(
        like.new_empty(0) if part is None else part.new_empty(part.shape, dtype=dtype or part.dtype) for part in inputs
    )


def _value_of_nothing(*given: Any) -> tuple[Tensor, ...]:
    *inputs, keep, told = given
    call, shape = Call(*inputs), []
    if call.reduction == "none":
        some = call.connectivity or call.batch is None
        first = call.scores.shape[0] if call.connectivity else 1
        shape = [first if some else torch.library.get_ctx().new_dynamic_size()]
    wide = call.scores.new_empty(shape, dtype=torch.float64)
    derivatives = _empty_like(*call.tensors[:3], like=wide, dtype=torch.float64)
    return wide, *derivatives, wide.new_empty(call.room(keep=keep)), torch.empty_like(told)


def _save_value(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*output[1:], *inputs[:8])
    ctx.rest = inputs[8:14]


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(inputs[0], *inputs[4:14])
    ctx.rest = inputs[14:]


def _backward_of_value(ctx: Any, upstream: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    if upstream is None:
        return (None,) * 16
    found = graph_counts(upstream, *ctx.saved_tensors, *ctx.rest)
    return *found[:2], None if ctx.saved_tensors[7] is None else found[2], *[None] * 13


def _backward_of_counts(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
    weights, messages, told, *inputs = ctx.saved_tensors
    found = _graph_curvature([*upstream], weights, messages, told, *inputs, *ctx.rest)
    return found[0], *[None] * 5, *found[1:3], None if inputs[2] is None else found[3], *[None] * 11


torch.library.register_fake("bactrian::graph_value", _value_of_nothing)
torch.library.register_fake(
    "bactrian::graph_counts", lambda weights, *given: _empty_like(given[5], given[6], given[7], like=weights)
)
torch.library.register_fake(
    "bactrian::graph_curvature",
    lambda upstream, weights, _m, _t, *given: _empty_like(weights, *given[:3], like=weights),
)
torch.library.register_autograd("bactrian::graph_value", _backward_of_value, setup_context=_save_value)
torch.library.register_autograd("bactrian::graph_counts", _backward_of_counts, setup_context=_save)
