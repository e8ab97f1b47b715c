"""What star updates and evaluation work on: counting numbers, scores, multipliers and beliefs as plain tensors.

Edges count 1 throughout; counting numbers of nodes come from :mod:`bactrian.camel.entropy`. On a GPU the many small
launches of a step are recorded once and started as one: it takes longer to launch them than to run them.
"""

from __future__ import annotations

import copy
import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, Self, TypeVar

import torch
from torch import Tensor

from bactrian.engines.torch.structure import Structure

Result = TypeVar("Result")

#: A recording waits for the whole device before it begins, which would spoil one that another thread is making.
_ONE_AT_A_TIME = threading.Lock()
#: Range of a table (in nats) up to which messages are products in linear space.
_WIDEST = {torch.float64: 300.0, torch.float32: 40.0}
#: What changes from evaluation to evaluation.
_CHANGING = (
    "multipliers", "node_log", "scores", "tables", "swept", "star_log", "star_belief", "_oriented", "_log_tables",
    "wide",
)  # fmt: skip


@dataclass(frozen=True)
class NodeNumbers:
    """Counting numbers of nodes."""

    hub: Tensor  #: (N,) kept number kappa
    linearised: Tensor  #: (N,) number of times the node's entropy is subtracted through its linearisation

    def to(self, device: Any) -> NodeNumbers:
        """The same on another device."""
        return NodeNumbers(self.hub.to(device), self.linearised.to(device))


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
        result: Result = self._result
        return result

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


class StarState:
    """Scores, multipliers and beliefs of graphs under given counting numbers.

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
        g; whoever sets the scores of nodes subtracts it.
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
        self._change = torch.zeros((), dtype=dtype, device=device)
        self._changes = torch.zeros(n_nodes, dtype=dtype, device=device)
        self._inverse_divisor = (1.0 / (numbers.hub + structure.degree)).to(dtype)[:, None]
        self._offsets = [
            structure.pointer[first : last + 1] - structure.pointer[first]
            for first, last in zip(structure.colour_nodes, structure.colour_nodes[1:], strict=False)
        ]
        self.unowned = numbers.hub == 0.0
        self.any_unowned = bool(self.unowned.any())
        self._oriented = self._log_tables = torch.zeros(0)
        self.wide = False
        self.records = device.type == "cuda"
        self._recordings: dict[str, Recording[Any]] = {}

    def to(self, device: Any) -> Self:
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

    def take_state(self, other: StarState) -> None:
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
        self.wide = not spread < _WIDEST[self.dtype]
        if self.wide:
            self._log_tables = self._turned(self.tables)

    def forget_recordings(self) -> None:
        """Tensors that launches were recorded with are no longer those in use."""
        self._recordings = {}

    def _recorded(self, name: str, function: Callable[[], Result]) -> Result:
        """What ``function`` returns, from its recording."""
        if name not in self._recordings:
            self._recordings[name] = Recording(function)
        result: Result = self._recordings[name]()
        return result

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
