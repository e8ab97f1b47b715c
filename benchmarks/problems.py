"""Synthetic problems for the benchmarks."""

from __future__ import annotations

import platform

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import Delaunay

import bactrian as bt


def superpixel_like(n_nodes: int, n_graphs: int, seed: int = 0, n_labels: int = 7) -> bt.GraphData:
    """Delaunay graphs with smooth regions of ``n_labels`` labels and noisy class scores as inputs: 84 weights for 7.

    Inputs are a score per class and a bias (56 weights), tables are full and symmetric (28 weights).
    """
    rng = np.random.default_rng(seed)
    inputs, edges, labels, counts = [], [], [], []
    offset = 0
    for _ in range(n_graphs):
        size = n_nodes // n_graphs
        points = rng.random((size, 2))
        pairs = _delaunay_edges(points)
        centres = rng.random((3 * n_labels, 2))
        region = ((points[:, None] - centres[None]) ** 2).sum(axis=2).argmin(axis=1)
        truth = rng.integers(0, n_labels, size=len(centres))[region]
        scores = rng.normal(size=(size, n_labels)) + 1.0 * np.eye(n_labels)[truth]
        inputs.append(np.column_stack([scores, np.ones(size)]))
        edges.append(pairs + offset)
        labels.append(truth)
        counts.append(size)
        offset += size
    return bt.GraphData(
        np.concatenate(inputs),
        np.concatenate(edges),
        n_labels=n_labels,
        labels=np.concatenate(labels),
        node_counts=counts,
        tables="symmetric",
    )


def _delaunay_edges(points: NDArray[np.float64]) -> NDArray[np.int64]:
    triangles = Delaunay(points).simplices
    pairs = np.concatenate([triangles[:, [0, 1]], triangles[:, [1, 2]], triangles[:, [0, 2]]])
    return np.unique(np.sort(pairs, axis=1), axis=0).astype(np.int64)


def cpu_name() -> str:
    """The processor's name, as far as the system tells."""
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    return names[0] if names else platform.processor()
