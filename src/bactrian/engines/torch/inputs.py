"""From weights to scores and back on the device: the linear maps of :mod:`bactrian.graphs.scores` with tensors."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from bactrian.arrays import Ints
from bactrian.engines.torch.kernels import SparseProduct, block_outer_product
from bactrian.engines.torch.structure import Structure
from bactrian.graphs.inputs import Inputs
from bactrian.graphs.scores import StructuredScores, TiedTable


class DeviceRows:
    """Input rows, dense, sparse or bundled, multiplied from both sides: the one place where inputs meet weights.

    Sparse rows are kept in both orders, since a transposed product of compressed rows would need atomic additions.
    """

    def __init__(self, inputs: Inputs, chosen: Ints) -> None:
        self.n_inputs = inputs.shape[1]
        self.bundles: DeviceRows | None = None
        self._products: tuple[SparseProduct, SparseProduct] | None = None
        if inputs.dense is not None:
            self._rows = torch.from_numpy(inputs.dense[chosen])
            self._columns = None
            return
        pointer, indices, values = inputs._rows
        bundles = inputs._bundles
        width = self.n_inputs
        if bundles is not None:
            width += bundles.shape[0]
            self.bundles = DeviceRows(bundles, np.arange(bundles.shape[0]))
        matrix = sp.csr_array((values, indices, pointer), shape=(inputs.shape[0], width))[chosen]
        self._rows = _compressed(matrix)
        self._columns = _compressed(sp.csr_array(matrix.T))
        self._products = SparseProduct(self._rows), SparseProduct(self._columns)

    def to(self, device: Any) -> DeviceRows:
        """The same on another device."""
        moved = copy.copy(self)
        moved.bundles = None if self.bundles is None else self.bundles.to(device)
        moved._rows = self._rows.to(device)
        if self._columns is not None:
            moved._columns = self._columns.to(device)
            moved._products = SparseProduct(moved._rows), SparseProduct(moved._columns)
        return moved

    @property
    def nbytes(self) -> int:
        """Bytes of all matrices."""
        own = _bytes(self._rows) + (0 if self._columns is None else _bytes(self._columns))
        return own + (0 if self.bundles is None else self.bundles.nbytes)

    def times(self, weights: Tensor) -> Tensor:
        """``rows @ weights``."""
        if self.bundles is not None:
            weights = torch.cat([weights, self.bundles.times(weights)])
        product: Tensor = self._rows @ weights if self._products is None else self._products[0].times(weights)
        return product

    def transposed_times(self, values: Tensor) -> Tensor:
        """``rows.T @ values``."""
        if self._products is None:
            return block_outer_product(self._rows, values)
        product = self._products[1].times(values)
        if self.bundles is not None:
            own, bundled = product[: self.n_inputs], product[self.n_inputs :]
            product = own + self.bundles.transposed_times(bundled)
        return product


class DeviceTable:
    """:class:`bactrian.graphs.scores.TiedTable` with tensors."""

    def __init__(self, table: TiedTable) -> None:
        self.n_tied, self.full = table.n_tied, table.tying == "full"
        self.attraction, self.diagonal = table.attraction if table.is_pooled else 0.0, len(table.index) + 1
        entries, starts = table._entries
        self.index = torch.from_numpy(np.where(table.index < 0, self.n_tied, table.index).ravel())
        self.entries = torch.from_numpy(entries)
        self.bounds = torch.from_numpy(np.append(starts, entries.size))

    def to(self, device: Any) -> DeviceTable:
        """The same on another device."""
        moved = copy.copy(self)
        moved.index, moved.entries, moved.bounds = (t.to(device) for t in (self.index, self.entries, self.bounds))
        return moved

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


class DeviceScores:
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

    def to(self, device: Any) -> DeviceScores:
        """The same on another device."""
        moved = copy.copy(self)
        moved.rows = self.rows.to(device)
        moved.edge_rows = [None if rows is None else rows.to(device) for rows in self.edge_rows]
        moved.tables = [table.to(device) for table in self.tables]
        moved.inactive = None if self.inactive is None else self.inactive.to(device)
        return moved

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
        return nodes, torch.cat(tables).view(-1, k, k)

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
        _compressed(sp.csr_array(np.ones((1, 1))))


def _compressed(matrix: sp.csr_array) -> Tensor:
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
