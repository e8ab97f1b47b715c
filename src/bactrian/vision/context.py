"""What surrounds a superpixel: neighbours, windows at larger scales and to each side, look-alikes, the whole image.

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
#: Look-alikes: how far away, as part of the image's height, and how unlike in L, a, b and L's deviation they may be.
_ALIKE_REACH = 0.35
_ALIKE_DIFFERENCES = (12.0, 6.0, 6.0, 6.0)
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


def look_alike_weights(centre: Floats, size: Floats, shape: tuple[int, int], colour: Floats) -> Floats:
    """Weights (n, n) of superpixels that are near and of like colour: a mean over them is one of a region.

    ``colour`` (n, 4) are means of L, a and b, and the deviation of L.
    """
    points, looks = centre * [1.0, shape[1] / shape[0]], colour / _ALIKE_DIFFERENCES
    near = ((points[None] - points[:, None]) ** 2).sum(axis=2) / _ALIKE_REACH**2
    unlike = ((looks[None] - looks[:, None]) ** 2).sum(axis=2)
    return _rows_to_one(np.exp(-0.5 * (near + unlike)) * size)


def _rows_to_one(matrix: Floats) -> Floats:
    rows: Floats = matrix / matrix.sum(axis=1, keepdims=True)
    return rows
