"""Parts of the data on a device: the third kind beside those in memory and in files (:mod:`bactrian.camel.parts`).

Graphs are independent given the weights, so the data may be cut into pieces of ``chunk`` graphs. A single piece stays
on the device; several are kept on the host and moved there in turn, which needs less memory and more time, and changes
nothing but the order of additions.

Vectors over the weights are on the device, too: an evaluation takes a few milliseconds there, less than L-BFGS on the
host would take for millions of weights. What comes to the host in an evaluation is a handful of numbers.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NoReturn, Self, cast

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from bactrian.arrays import Bools, Floats, Ints
from bactrian.camel.entropy import Carving
from bactrian.camel.parts import AddTerms, Carve, Hubs, State, Storage, Summary, Vectors, store
from bactrian.camel.prior import Prior
from bactrian.engines.numba.orders import stable_order
from bactrian.engines.torch.device import Movable, Needed, state_bytes
from bactrian.engines.torch.kernels import SparseProduct, block_outer_product
from bactrian.engines.torch.stars import FINEST, FORBIDDEN, NodeNumbers, Recording, Stars, StarValues, joint_beliefs
from bactrian.engines.torch.structure import Structure, build_structure
from bactrian.graphs.graph_data import GraphData
from bactrian.graphs.inputs import Inputs
from bactrian.graphs.packed import TableReader
from bactrian.graphs.packing import pack
from bactrian.graphs.scores import StructuredScores, TiedTable
from bactrian.parallel.threads import Context
from bactrian.solvers.lbfgs import PAIRS, Memory


class DeviceRows(Movable):
    """Input rows, dense, sparse or bundled, multiplied from both sides: the one place where inputs meet weights.

    Sparse rows are kept in both orders, since a transposed product of compressed rows would need atomic additions.
    """

    def __init__(self, inputs: Inputs, chosen: Ints) -> None:
        self.n_inputs = inputs.shape[1]
        self.bundles: DeviceRows | None = None
        self._products: tuple[SparseProduct, SparseProduct] | None = None
        if inputs.dense is not None:
            self._dense = torch.from_numpy(inputs.dense[chosen])
            return
        pointer, indices, values = inputs.compressed
        bundles = inputs.bundles
        width = self.n_inputs
        if bundles is not None:
            width += bundles.shape[0]
            self.bundles = DeviceRows(bundles, np.arange(bundles.shape[0]))
        matrix = sp.csr_array((values, indices, pointer), shape=(inputs.shape[0], width))[chosen]
        self._products = SparseProduct(compressed(matrix)), SparseProduct(compressed(sp.csr_array(matrix.T)))

    @property
    def nbytes(self) -> int:
        """Bytes of all matrices."""
        own = [self._dense] if self._products is None else [product.matrix for product in self._products]
        return sum(map(_bytes, own)) + (0 if self.bundles is None else self.bundles.nbytes)

    def times(self, weights: Tensor) -> Tensor:
        """``rows @ weights``."""
        if self.bundles is not None:
            weights = torch.cat([weights, self.bundles.times(weights)])
        return self._dense @ weights if self._products is None else self._products[0].times(weights)

    def transposed_times(self, values: Tensor) -> Tensor:
        """``rows.T @ values``."""
        if self._products is None:
            return block_outer_product(self._dense, values)
        product = self._products[1].times(values)
        if self.bundles is not None:
            own, bundled = product[: self.n_inputs], product[self.n_inputs :]
            product = own + self.bundles.transposed_times(bundled)
        return product


class DeviceTable(Movable):
    """:class:`bactrian.graphs.scores.TiedTable` with tensors."""

    def __init__(self, table: TiedTable) -> None:
        self.n_tied, self.full = table.n_tied, table.tying == "full"
        self.attraction, self.diagonal = table.attraction if table.is_pooled else 0.0, len(table.index) + 1
        entries, starts = table.by_weight
        self.index = torch.from_numpy(np.where(table.index < 0, self.n_tied, table.index).ravel())
        self.entries = torch.from_numpy(entries)
        self.bounds = torch.from_numpy(np.append(starts, entries.size))

    def expand(self, tied: Tensor) -> Tensor:
        """Tied weights (F, n_tied) to tables (F, K * K)."""
        if self.full:
            return tied
        tables = torch.cat([tied, tied.new_zeros(len(tied), 1)], 1).index_select(1, self.index)
        if self.attraction:
            tables[:, :: self.diagonal] += self.attraction * tied[:, :1]
        return tables

    def reduce(self, counts: Tensor) -> Tensor:
        """The transpose of :meth:`expand`; sums are in order, so that results are the same from call to call."""
        if self.full:
            return counts
        chosen = counts.T.index_select(0, self.entries).contiguous()
        totals = torch.segment_reduce(chosen, "sum", offsets=self.bounds, axis=0, unsafe=True)
        if self.attraction:
            totals[0] *= self.attraction
        return totals.T


class DeviceScores(Movable):
    """Node scores X W and tied edge tables of a set of graphs, in the order of their structure.

    Where some type has edge inputs every edge has a table of its own, those of types without inputs a copy.
    """

    def __init__(self, scores: StructuredScores, structure: Structure, first_node: int, before: Ints) -> None:
        """``before``: how many edges of each type come before those of the structure."""
        self.n_labels = scores.n_labels
        self.bounds = [int(bound) for bound in scores.bounds]
        self.rows = DeviceRows(scores.inputs, first_node + structure.nodes.numpy())
        self.type_edges, self.own_tables = structure.type_edges, structure.own_tables
        counts = np.diff(self.type_edges)
        self.edge_rows = [
            None if kind.inputs is None else DeviceRows(kind.inputs, before[t] + np.arange(counts[t]))
            for t, kind in enumerate(scores.types)
        ]
        self.tables = [DeviceTable(kind.table) for kind in scores.types]
        self.inactive = None if scores.active is None else torch.from_numpy(~scores.active)
        self.fixed: tuple[Tensor, Tensor] | None = None  #: added to the scores of nodes and tables

    @property
    def nbytes(self) -> int:
        """Bytes of all matrices."""
        return self.rows.nbytes + sum(rows.nbytes for rows in self.edge_rows if rows is not None)

    def scores(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Scores of nodes (N, K), and of tables (T, K, K), or (E, K, K) where edges have their own."""
        k = self.n_labels
        nodes = self.rows.times(weights[: self.bounds[1]].view(-1, k))
        tables = []
        for t, rows in enumerate(self.edge_rows):
            tied = weights[self.bounds[t + 1] : self.bounds[t + 2]].view(-1, self.tables[t].n_tied)
            expanded = self.tables[t].expand(tied)
            if rows is not None:
                expanded = rows.times(expanded)
            elif self.own_tables:
                expanded = expanded.expand(self.type_edges[t + 1] - self.type_edges[t], -1)
            tables.append(expanded)
        found = nodes, torch.cat(tables).view(-1, k, k)
        return found if self.fixed is None else (found[0] + self.fixed[0], found[1] + self.fixed[1])

    def moments(self, node_counts: Tensor, table_counts: Tensor) -> Tensor:
        """The transpose of :meth:`scores`."""
        parts = [self.rows.transposed_times(node_counts).reshape(-1)]
        counts = table_counts.flatten(1)
        for t, rows in enumerate(self.edge_rows):
            of_type = counts[slice(*self.type_edges[t : t + 2])] if self.own_tables else counts[t : t + 1]
            entries = of_type.sum(0, keepdim=True) if rows is None else rows.transposed_times(of_type)
            parts.append(self.tables[t].reduce(entries).reshape(-1))
        moments = torch.cat(parts)
        return moments if self.inactive is None else moments.masked_fill_(self.inactive, 0.0)


def _make_first_sparse_tensor() -> None:
    """PyTorch warns of the first one that these are new; here, since filters are not for threads to change."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        compressed(sp.csr_array(np.ones((1, 1))))


def compressed(matrix: sp.csr_array) -> Tensor:
    """The matrix as a sparse tensor, with indices as short as they can be."""
    index = np.int32 if max(matrix.nnz, *matrix.shape) < 2**31 else np.int64
    parts = (torch.from_numpy(np.ascontiguousarray(a, dtype=index)) for a in (matrix.indptr, matrix.indices))
    values = torch.from_numpy(np.ascontiguousarray(matrix.data, dtype=np.float64))
    return torch.sparse_csr_tensor(*parts, values, size=matrix.shape, check_invariants=False)


def _bytes(tensor: Tensor) -> int:
    if tensor.layout is torch.strided:
        return int(tensor.numel() * tensor.element_size())
    parts = tensor.crow_indices(), tensor.col_indices(), tensor.values()
    return sum(part.numel() * part.element_size() for part in parts)


_make_first_sparse_tensor()


class Piece:
    """Some consecutive graphs of the data: structure and inputs."""

    def __init__(self, data: GraphData, first: int, last: int) -> None:
        nodes = int(data.node_pointer[first]), int(data.node_pointer[last])
        # Edges are sorted by graph, so those of consecutive graphs are consecutive.
        graph = np.searchsorted(data.node_pointer, data.edges[:, 0], side="right") - 1
        edges = slice(*np.searchsorted(graph, [first, last]).tolist())
        own_tables = any(kind.inputs is not None for kind in data.scores.types)
        self.graphs, self.nodes, self.edges = slice(first, last), slice(*nodes), edges
        self.structure = build_structure(
            data.edges[edges] - nodes[0],
            data.edge_types[edges],
            np.diff(data.node_pointer[first : last + 1]),
            data.weights[first:last],
            n_types=len(data.tables),
            own_tables=own_tables,
            symmetric=all(table.tying != "full" for table in data.tables) and not own_tables,
        )
        before = np.bincount(data.edge_types[: edges.start], minlength=len(data.tables))
        self.scores = DeviceScores(data.scores, self.structure, nodes[0], before)
        self.node_order: Ints = self.structure.nodes.numpy()
        self._ends = data.edges[edges].ravel()

    @property
    def links(self) -> Tensor:
        """(2E,) number inside of the links in the order of the packed data: sorted by node, then by edge."""
        of_end = torch.empty(self._ends.size, dtype=torch.int64)
        of_end.view(-1, 2)[self.structure.edges.cpu()] = self.structure.links.cpu()
        return of_end[torch.from_numpy(stable_order(self._ends - self.nodes.start, self.nodes.stop - self.nodes.start))]


class DeviceGraphs:
    """Pairwise graphs for a device, in pieces; one of them stays there, several come in turn."""

    in_memory: ClassVar[bool] = False

    def __init__(
        self,
        data: GraphData,
        device: torch.device,
        dtype: torch.dtype,
        chunk: int | None = None,
        *,
        need_labels: bool = True,
    ) -> None:
        self.packed = pack(data, need_labels=need_labels)
        self.n_weights, self.total_weight = self.packed.n_weights, self.packed.total_weight
        self.n_labels, self.first_edge = data.n_labels, data.node_factors == "first-edge"
        self.device, self.dtype = device, dtype
        self.node_pointer, self.n_nodes = data.node_pointer, data.n_nodes
        step = data.n_graphs if chunk is None else min(chunk, data.n_graphs)
        bounds = [(first, min(first + step, data.n_graphs)) for first in range(0, data.n_graphs, step)]
        # Graphs without nodes make no piece.
        self.pieces = [Piece(data, *b) for b in bounds if data.node_pointer[b[0]] < data.node_pointer[b[1]]]

    def forbid(self, nodes: Bools, tables: Bools | None = None) -> None:
        """Forbid labels of nodes (N, K) and, where every edge has a table of its own, entries of those (E, K, K)."""
        for piece in self.pieces:
            s = piece.structure
            masks = [torch.from_numpy(nodes[piece.nodes])[s.nodes]]
            masks.append(torch.zeros(1, 1, 1) if tables is None else torch.from_numpy(tables[piece.edges])[s.edges])
            of_nodes, of_tables = (FORBIDDEN * mask.to(torch.float64) for mask in masks)
            piece.scores.fixed = of_nodes, of_tables

    def observe(self, evidence: Sequence[Mapping[int, int]]) -> None:
        """Forbid all labels of nodes but those that are known: a mapping for each graph."""
        other = np.zeros((self.n_nodes, self.n_labels), dtype=np.bool_)
        for first, known in zip(self.node_pointer.tolist(), evidence, strict=False):
            rows = first + np.array([*known], dtype=np.int64)
            other[rows] = True
            other[rows, np.array([*known.values()], dtype=np.int64)] = False
        self.forbid(other)

    def needed(self, n_vectors: int = 0) -> Needed:
        """Memory for work on the largest of the pieces, with ``n_vectors`` vectors of weights."""
        single = self.dtype == torch.float32
        sizes = []
        for piece in self.pieces:
            s = piece.structure
            state = state_bytes(s.n_nodes, s.n_edges, self.n_labels, own_tables=s.own_tables, single=single)
            sizes.append((s.nbytes + piece.scores.nbytes + state, s.n_graphs))
        n_bytes, n_graphs = max(sizes)
        remedy = (
            f"give chunk= a smaller number of graphs per pass, such as chunk={max(1, n_graphs // 4)}"
            if n_graphs > 1
            else "a single graph cannot be cut further: use device='cpu' or dtype='float32'"
        )
        return Needed(n_bytes + 8 * n_vectors * self.n_weights, n_graphs, remedy)

    def parts(self, carving: Carving, context: Context, *, consistency: bool = True) -> list[DevicePart]:
        """A part for every piece, under counting numbers of the packed data; edges count 1."""
        if len(self.pieces) == 1:
            (piece,) = self.pieces
            piece.structure, piece.scores = piece.structure.to(self.device), piece.scores.to(self.device)
        return [DevicePart(self, piece, carving, context, consistency) for piece in self.pieces]


class DevicePart:
    """A piece of the data under one entropy; see :class:`bactrian.camel.parts.Part`.

    On a GPU that holds all of the data, the launches of scores and moments are recorded as those of sweeps are.
    """

    name = ""
    is_forest = False  # not looked at: trees are swept like all else

    def __init__(self, data: DeviceGraphs, piece: Piece, carving: Carving, context: Context, consistency: bool) -> None:
        self.data, self.piece, self._deadline = data, piece, context.deadline
        self.stays = len(data.pieces) == 1
        hub, linearised = (numbers[piece.nodes][piece.node_order] for numbers in (carving.hub, carving.linearised))
        self.relinearises, self.has_saddle = bool(linearised.any()), bool((hub < 0.0).any())
        self.finest = FINEST[data.dtype]
        numbers = NodeNumbers.of(hub, linearised)
        self.stars = Stars(
            piece.structure,
            numbers.to(piece.structure.nodes.device),
            data.n_labels,
            dtype=data.dtype,
            consistency=consistency,
            first_edge=data.first_edge,
        )
        self.sweeps, self.value, self.violation, self.residual = 0, 0.0, 0.0, 0.0  #: of the last pass
        self.values: StarValues | None = None  #: of the last pass, until the part is left
        self._working: tuple[Stars, DeviceScores] | None = None
        self._records = self.stars.records and self.stays and consistency
        self._weights: Tensor | None = None  # that launches were recorded with
        self._loading: Recording[Tensor] | None = None
        self._moments: dict[tuple[int, int], Recording[Tensor]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Give back the device's memory: what has changed there is kept."""
        if self._working is not None and not self.stays:
            self.stars.take_state(self._working[0])
        self._working = self.values = None

    @property
    def working(self) -> tuple[Stars, DeviceScores]:
        """State and scores on the device, moved there when first asked for."""
        if self._working is None:
            device, scores = self.data.device, self.piece.scores
            self._working = (self.stars, scores) if self.stays else (self.stars.to(device), scores.to(device))
        return self._working

    def set_weights(self, weights: Tensor) -> None:
        """See :class:`Part`."""
        stars, scores = self.working
        if not self._records:
            nodes, tables = scores.scores(weights)
            stars.set_scores(nodes - stars.linearisation, tables)
            return
        if self._weights is None:
            self._weights = torch.empty_like(weights)
        self._weights.copy_(weights)
        if self._loading is None:
            self._load()  # makes the tensors that are then written to in place
            self._loading = Recording(self._load)
        stars.check_range(float(self._loading()))

    def _load(self) -> Tensor:
        nodes, tables = self.piece.scores.scores(cast(Tensor, self._weights))
        return self.stars.load(nodes - self.stars.linearisation, tables)

    def pass_messages(
        self,
        *,
        tolerance: float = 0.0,
        max_sweeps: int = 0,
        tree_sweeps: int = 1 << 30,
        damping: float = 0.0,
        logs: bool = True,
    ) -> None:
        """See :class:`Part`; trees are swept like all else, and the deadline is asked between sweeps."""
        self.values, self.sweeps, self.residual = self.working[0].solve(
            tolerance=tolerance, max_sweeps=max_sweeps, damping=damping, deadline=self._deadline.at
        )
        self.value, self.violation = self.values.totals.tolist()

    def summary(self) -> Summary:
        """See :class:`Part`."""
        assert self.values is not None
        sweeps = self.sweeps * self.piece.structure.n_graphs
        return Summary(self.value, sweeps, self.violation, self.residual, self._expected(self.values))

    def _expected(self, values: StarValues) -> Tensor:
        """Expected features; recorded where the counts are always the same tensors."""
        stars, scores = self.working
        counts = values.node_counts, values.table_counts
        if not self._records or stars.wide:
            return scores.moments(*counts)
        key = counts[0].data_ptr(), counts[1].data_ptr()
        if key not in self._moments:
            self._moments[key] = Recording(lambda: scores.moments(*counts))
        return self._moments[key]().clone()  # the next evaluation overwrites it

    @property
    def multipliers(self) -> Tensor:
        """See :class:`Part`."""
        return self.stars.multipliers

    @property
    def linearisation(self) -> Tensor:
        """See :class:`Part`."""
        return self.stars.linearisation.view(-1)

    def room_for(self, values: Tensor) -> Tensor:
        """See :class:`Part`."""
        return torch.empty_like(values)

    def links(self) -> NoReturn:
        """See :class:`Part`."""
        raise NotImplementedError("this engine does not support work on single links")

    def state(self) -> State:
        """See :class:`Part`."""
        return State(self.by_link().ravel(), self.by_node(self.stars.linearisation).ravel())

    def restore(self, multipliers: Floats, linearisation: Floats | None) -> None:
        """See :class:`Part`."""
        taken = torch.from_numpy(multipliers.reshape(-1, self.data.n_labels))
        self.stars.multipliers[self.piece.links] = taken.to(self.stars.multipliers)
        if linearisation is not None:
            self.linearisation[:] = self.hubs.of(linearisation)

    def by_link(self) -> Floats:
        """(2E, K) multipliers on the host, in the order of the packed data."""
        return self.stars.multipliers.cpu()[self.piece.links].to(torch.float64).numpy()

    def by_node(self, values: Tensor) -> Floats:
        """(N, K) a state of the nodes on the host, in the order of the data."""
        out = np.empty(values.shape)
        out[self.piece.node_order] = values.cpu().numpy()
        return out

    @property
    def hub_log(self) -> Tensor:
        """See :class:`Part`."""
        return self.stars.node_log.view(-1)

    @property
    def hubs(self) -> DeviceHubs:
        """See :class:`Part`."""
        return DeviceHubs(self)


class DeviceHubs(Hubs):
    """Nodes of a piece; see :class:`bactrian.camel.parts.Hubs`."""

    xp: Any = torch

    def __init__(self, part: DevicePart) -> None:
        piece, k, packed = part.piece, part.data.n_labels, part.data.packed
        nodes, truth = piece.nodes, packed.hub_truth
        self.offset, self.kind = k * np.arange(nodes.stop - nodes.start + 1), packed.hub_kind[nodes]
        self.truth = None if truth is None else truth[k * nodes.start : k * nodes.stop]
        self.number = part.stars.numbers.linearised.repeat_interleave(k)
        self._order, self._states = piece.node_order, k

    def of(self, values: Floats) -> Tensor:
        """See :class:`Hubs`."""
        inside = values.reshape(-1, self._states)[self._order]
        return torch.from_numpy(inside).to(self.number.device).view(-1)

    def sums(self, values: Tensor) -> Tensor:
        """See :class:`Hubs`."""
        return values.view(-1, self._states).sum(1).repeat_interleave(self._states)

    def normalised(self, logs: Tensor) -> Tensor:
        """See :class:`Hubs`."""
        return logs.view(-1, self._states).log_softmax(1).view(-1)


class DeviceTables(TableReader):
    """Beliefs of all parts at the last pass, copied to the host; those of edges are computed when asked for."""

    def __init__(self, data: DeviceGraphs, parts: list[DevicePart]) -> None:
        self._ends = data.packed.layout.cluster_link.reshape(-1, 2)
        self.nodes = np.concatenate([np.exp(part.by_node(part.stars.node_log)) for part in parts])  #: (N, K)
        self._multipliers = np.concatenate([part.by_link() for part in parts])
        self._tables = np.concatenate([part.stars.tables.cpu().numpy() for part in parts])
        self._table = np.empty(self._ends.shape[0], dtype=np.int64)
        filled = 0
        for part in parts:
            s = part.piece.structure
            edges = part.piece.edges.start + s.edges.cpu().numpy()
            self._table[edges] = filled + s.edge_table.cpu().numpy()
            filled += part.stars.tables.shape[0]

    def edges(self, chosen: Any) -> Floats:
        """(n, K, K) belief tables of some edges of the data."""
        rows, columns = (torch.from_numpy(self._multipliers[ends]) for ends in self._ends[chosen].T)
        return joint_beliefs(torch.from_numpy(self._tables[self._table[chosen]]), rows, columns).numpy()

    def cluster(self, index: int) -> Floats:
        """See :class:`TableReader`."""
        return self.edges([index])[0].ravel()

    def hub(self, index: int) -> Floats:
        """See :class:`TableReader`."""
        return self.nodes[index].copy()


class DeviceVectors(Vectors):
    """Vectors over the weights on a device; see :class:`bactrian.camel.parts.Vectors`."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def of(self, values: Any) -> Tensor:
        """See :class:`Vectors`."""
        return torch.as_tensor(values, dtype=torch.float64, device=self._device)

    def memory(self, dimension: int, *, exact: bool = False) -> Memory:
        """See :class:`Vectors`."""
        return DeviceMemory(PAIRS, dimension, self._device)

    def weight_terms(self, empirical: Tensor, base: float, prior: Prior) -> AddTerms:
        """See :class:`Vectors`."""
        precision = prior.precision if isinstance(prior.precision, float) else self.of(prior.precision)

        def add(value: float, gradient: Tensor, weights: Tensor) -> float:
            pull = precision * weights
            gradient += pull
            gradient -= empirical
            linear, square = torch.stack([weights @ empirical, pull @ weights]).tolist()
            return float(value - linear - base + 0.5 * square)

        return add


def inner_products(left: Tensor, right: Tensor) -> Floats:
    """Inner products of the rows of two matrices on the device, brought to the host together."""
    return torch.stack([left @ row for row in right], 1).cpu().numpy()


class DeviceMemory(Memory):
    """Pairs of steps and gradient changes on the device; the small matrix of their inner products on the host."""

    def __init__(self, size: int, dimension: int, device: torch.device) -> None:
        super().__init__(size, 0, cast(Any, inner_products))
        self._vectors: Any = torch.zeros(2 * self._slots, dimension, dtype=torch.float64, device=device)

    def direction(self, gradient: Any) -> Any:
        """See :class:`Memory`."""
        if not self._order:
            return -gradient / max(1.0, float(gradient.norm()))
        projections = self.inner(self._vectors, gradient[None])[:, 0]
        coefficients, scale = self._coefficients(projections)
        combined = torch.from_numpy(coefficients).to(gradient.device) @ self._vectors
        return combined.sub_(gradient, alpha=float(scale))


@store.register
def _(data: DeviceGraphs, carve: Carve, context: Context, *, consistency: bool, **_options: Any) -> Storage:
    """Graphs on a device, in one piece or several."""
    parts, vectors = data.parts(carve(data.packed), context, consistency=consistency), DeviceVectors(data.device)
    observed = data.packed.empirical
    return Storage(
        data.packed,
        parts,
        vectors,
        None if observed is None else vectors.of(observed),
        of_all_ranks=True,
        tables=lambda: DeviceTables(data, parts),
    )
