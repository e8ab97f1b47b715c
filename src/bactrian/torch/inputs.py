"""From weights to scores and back on the device: the linear maps of :mod:`bactrian.model.scores` with tensors."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray

from bactrian.model.inputs import Inputs
from bactrian.model.scores import StructuredScores, TiedTable
from bactrian.torch.stars import block_outer_product
from bactrian.torch.structure import Structure

Tensor = torch.Tensor
Ints = NDArray[np.int64]


class DeviceRows:
    """Input rows, dense, sparse or bundled, multiplied from both sides: the one place where inputs meet weights.

    Sparse rows are kept in both orders, since a transposed product of compressed rows would need atomic additions.
    """

    def __init__(self, inputs: Inputs, chosen: Ints) -> None:
        self.n_inputs = inputs.shape[1]
        self.bundles: DeviceRows | None = None
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

    def to(self, device: Any) -> DeviceRows:
        """The same on another device."""
        moved = object.__new__(DeviceRows)
        moved.n_inputs = self.n_inputs
        moved.bundles = None if self.bundles is None else self.bundles.to(device)
        moved._rows = self._rows.to(device)
        moved._columns = None if self._columns is None else self._columns.to(device)
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
        product: Tensor = self._rows @ weights
        return product

    def transposed_times(self, values: Tensor) -> Tensor:
        """``rows.T @ values``."""
        if self._columns is None:
            return block_outer_product(self._rows, values)
        product: Tensor = self._columns @ values
        if self.bundles is not None:
            own, bundled = product[: self.n_inputs], product[self.n_inputs :]
            product = own + self.bundles.transposed_times(bundled)
        return product


class DeviceScores:
    """Node scores X W and tied edge tables of a set of graphs, in the order of their structure."""

    def __init__(self, scores: StructuredScores, structure: Structure, first_node: int, first_edge: int) -> None:
        self.n_labels = scores.n_labels
        self.tables = scores.tables
        self.bounds = [int(bound) for bound in scores.bounds]
        self.rows = DeviceRows(scores.inputs, first_node + structure.nodes.numpy())
        self.edge_rows = None
        if scores.edge_inputs is not None:
            self.edge_rows = DeviceRows(scores.edge_inputs, first_edge + structure.edges.numpy())
        self.type_edges = structure.type_edges
        self.expansions = torch.from_numpy(np.stack([_expansion(table) for table in scores.tables]))

    def to(self, device: Any) -> DeviceScores:
        """The same on another device."""
        moved = object.__new__(DeviceScores)
        moved.__dict__.update(self.__dict__)
        moved.rows = self.rows.to(device)
        moved.edge_rows = None if self.edge_rows is None else self.edge_rows.to(device)
        moved.expansions = self.expansions.to(device)
        return moved

    @property
    def nbytes(self) -> int:
        """Bytes of all matrices."""
        return self.rows.nbytes + (0 if self.edge_rows is None else self.edge_rows.nbytes)

    def _tied(self, weights: Tensor, t: int) -> Tensor:
        return weights[self.bounds[t + 1] : self.bounds[t + 2]].view(-1, self.tables[t].n_tied)

    def scores(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Scores of nodes (N, K), and of tables (T, K, K), or (E, K, K) with edge inputs."""
        k = self.n_labels
        nodes = self.rows.times(weights[: self.bounds[1]].view(-1, k))
        tables = []
        for t, table in enumerate(self.tables):
            expanded = self._tied(weights, t) @ self.expansions[t, : table.n_tied]
            if self.edge_rows is not None:
                expanded = self.edge_rows.times(expanded)[slice(*self.type_edges[t : t + 2])]
            tables.append(expanded)
        return nodes, torch.cat(tables).view(-1, k, k)

    def moments(self, node_counts: Tensor, table_counts: Tensor) -> Tensor:
        """The transpose of :meth:`scores`."""
        parts = [self.rows.transposed_times(node_counts).reshape(-1)]
        counts = table_counts.flatten(1)
        for t, table in enumerate(self.tables):
            if self.edge_rows is None:
                entries = counts[t : t + 1]
            else:
                of_type = torch.zeros_like(counts)
                chosen = slice(*self.type_edges[t : t + 2])
                of_type[chosen] = counts[chosen]
                entries = self.edge_rows.transposed_times(of_type)
            parts.append((entries @ self.expansions[t, : table.n_tied].T).reshape(-1))
        return torch.cat(parts)


def _expansion(table: TiedTable) -> NDArray[np.float64]:
    """(K^2, K^2) indicator of the entries that a tied weight fills, in as many rows as there may be weights."""
    flat = table.index.ravel()
    indicator = np.zeros((flat.size, flat.size))
    used = np.flatnonzero(flat >= 0)
    indicator[flat[used], used] = 1.0
    return indicator


def _compressed(matrix: sp.csr_array) -> Tensor:
    index = np.int32 if max(matrix.nnz, *matrix.shape) < 2**31 else np.int64
    parts = (torch.from_numpy(np.ascontiguousarray(a, dtype=index)) for a in (matrix.indptr, matrix.indices))
    values = torch.from_numpy(np.ascontiguousarray(matrix.data, dtype=np.float64))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        return torch.sparse_csr_tensor(*parts, values, size=matrix.shape, check_invariants=False)


def _bytes(tensor: Tensor) -> int:
    if tensor.layout is torch.strided:
        return int(tensor.numel() * tensor.element_size())
    parts = tensor.crow_indices(), tensor.col_indices(), tensor.values()
    return sum(part.numel() * part.element_size() for part in parts)
