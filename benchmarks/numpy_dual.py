"""The joint dual of structured data in plain vectorised NumPy, grouped by table shape: one side of a benchmark."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

import bactrian as bt

Floats = NDArray[np.float64]


class NumpyDual:
    """D(w, d) and its gradient with nodes as clusters of their own, clusters-only entropy and a Gaussian prior."""

    def __init__(self, data: bt.GraphData, prior_variance: float) -> None:
        self.data = data
        self.inputs = data.scores.inputs.dense
        self.precision = 1.0 / prior_variance
        self.rows, self.columns = data.edges.T
        self.index = data.tables[0].index
        labels = data.labels
        assert labels is not None
        assert self.inputs is not None
        eye = np.eye(data.n_labels)
        table = np.zeros((data.n_labels, data.n_labels))
        np.add.at(table, (labels[self.rows], labels[self.columns]), 1.0)
        self.empirical = self._moments(eye[labels], table)

    def _moments(self, nodes: Floats, table: Floats) -> Floats:
        tied = np.bincount(self.index.ravel(), weights=table.ravel())
        return np.concatenate([(self.inputs.T @ nodes).ravel(), tied])

    def value_and_gradient(
        self, weights: Floats, row_delta: Floats, column_delta: Floats
    ) -> tuple[float, Floats, Floats, Floats]:
        """Multipliers are given per edge and end, shape (n_edges, n_labels)."""
        k = self.data.n_labels
        n_node = self.inputs.shape[1] * k
        node_scores = self.inputs @ weights[:n_node].reshape(-1, k)
        table = weights[n_node:][self.index]
        np.subtract.at(node_scores, self.rows, row_delta)
        np.subtract.at(node_scores, self.columns, column_delta)
        node_z = logsumexp(node_scores, axis=1, keepdims=True)
        nodes = np.exp(node_scores - node_z)
        edge_scores = table[None] + row_delta[:, :, None] + column_delta[:, None, :]
        edge_z = logsumexp(edge_scores, axis=(1, 2), keepdims=True)
        edges = np.exp(edge_scores - edge_z)
        value = node_z.sum() + edge_z.sum() - weights @ self.empirical + 0.5 * self.precision * weights @ weights
        gradient = self._moments(nodes, edges.sum(axis=0)) - self.empirical + self.precision * weights
        return float(value), gradient, edges.sum(axis=2) - nodes[self.rows], edges.sum(axis=1) - nodes[self.columns]
