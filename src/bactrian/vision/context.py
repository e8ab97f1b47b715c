"""What surrounds a superpixel: neighbours, windows at larger scales and to each side, and the whole image.

All context is a weighted mean over superpixels, so it is a product of a small matrix of weights with their features.
Weights multiply a superpixel's size, so that it counts as its pixels do.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

#: Widths of windows around a superpixel and of those to its sides, as parts of the image's height.
SCALES = (0.08, 0.2)
_REACH = 0.25
SIDES = {"above": (-_REACH, 0.0), "below": (_REACH, 0.0), "left": (0.0, -_REACH), "right": (0.0, _REACH)}


def adjacency_means(values: Floats, edges: Integers, weights: Floats) -> Floats:
    """Mean of the neighbours' values, weighted by edge; a superpixel without neighbours has its own."""
    n = values.shape[0]
    matrix = np.zeros((n, n))
    matrix[edges[:, 0], edges[:, 1]] = weights
    matrix[edges[:, 1], edges[:, 0]] = weights
    matrix[np.arange(n), np.arange(n)] = np.where(matrix.any(axis=1), 0.0, 1.0)
    return _rows_to_one(matrix) @ values


def window_weights(centre: Floats, size: Floats, shape: tuple[int, int]) -> dict[str, Floats]:
    """Weights (n, n) of every window by name: Gaussian rings, sides, bands of rows and columns, the image.

    ``centre`` (n, 2) are rows and columns as parts of height and width.
    """
    points = centre * [1.0, shape[1] / shape[0]]
    apart = points[None] - points[:, None]
    near = (apart**2).sum(axis=2)
    weights = {f"within {scale:g}": np.exp(-near / (2.0 * scale**2)) for scale in SCALES}
    for name, offset in SIDES.items():
        weights[name] = np.exp(-((apart - offset) ** 2).sum(axis=2) / (2.0 * (0.5 * _REACH) ** 2))
    weights["row"] = np.exp(-(apart[..., 0] ** 2) / (2.0 * 0.05**2))
    weights["column"] = np.exp(-(apart[..., 1] ** 2) / (2.0 * 0.08**2))
    weights["image"] = np.ones_like(near)
    return {name: _rows_to_one(matrix * size + 1e-12) for name, matrix in weights.items()}


def _rows_to_one(matrix: Floats) -> Floats:
    rows: Floats = matrix / matrix.sum(axis=1, keepdims=True)
    return rows
