"""Noisy binary images of digits, and the grids made of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bactrian.arrays import Floats, Ints
from bactrian.graphs.graph import grid_edges
from bactrian.graphs.graph_data import GraphData

#: Images in scikit-learn's bundled set.
N_AVAILABLE = 1797
_HEIGHT = _WIDTH = 8


@dataclass(frozen=True, eq=False)
class NoisyImages:
    """Binary images (n, 8, 8), the digits they show (n,), and the images with noise added."""

    truth: Ints
    digits: Ints
    noisy: Floats

    def __getitem__(self, chosen: slice) -> NoisyImages:
        return NoisyImages(self.truth[chosen], self.digits[chosen], self.noisy[chosen])

    def as_graphs(self, *, labelled: bool, linked: bool = True) -> GraphData:
        """The images as grids; without labels for prediction, without edges for the node-only baseline.

        A pixel's inputs are a constant and its noisy intensity. Edges along rows have type 0, along columns type 1.
        """
        n_images, n_pixels = self.truth.shape[0], _HEIGHT * _WIDTH
        intensity = self.noisy.ravel()
        grid = grid_edges(_HEIGHT, _WIDTH) if linked else np.zeros((0, 2), dtype=np.int64)
        first_pixel = n_pixels * np.arange(n_images)
        along_column = np.arange(len(grid)) >= _HEIGHT * (_WIDTH - 1)
        return GraphData(
            np.stack([np.ones_like(intensity), intensity], axis=1),
            (first_pixel[:, None, None] + grid).reshape(-1, 2),
            n_labels=2,
            labels=self.truth.ravel() if labelled else None,
            tables=("symmetric", "symmetric"),
            edge_types=np.tile(along_column.astype(np.int64), n_images),
            node_counts=np.full(n_images, n_pixels),
            node_factors="edges",
        )


def load_noisy_digits(n_images: int, *, noise: float, seed: int) -> NoisyImages:
    """Bundled digits in an order drawn with the seed, cut at half intensity, with Gaussian noise added."""
    from sklearn.datasets import load_digits

    bundled = load_digits()
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(bundled.images))[:n_images]
    truth = (bundled.images[order] >= 8.0).astype(np.int64)
    noisy = truth + rng.normal(0.0, noise, truth.shape)
    return NoisyImages(truth, bundled.target[order].astype(np.int64), noisy)
