"""Features of superpixels, their own and those of their context, and images prepared for learning.

Context is neighbours, windows at larger scales and to each side, look-alikes and the whole image: always a weighted
mean over superpixels, so a product of a small matrix of weights with their features. Weights multiply a superpixel's
size, so that it counts as its pixels do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bactrian.arrays import Floats, Ints
from bactrian.vision.appearance import Appearance, TextonVocabulary, appearance
from bactrian.vision.superpixels import (
    RegionAdjacency,
    checked_segments,
    majority_labels,
    region_adjacency,
    superpixels,
)

# --- context ---

#: Widths of windows around a superpixel and of those to its sides, as parts of the image's height.
SCALES = (0.08, 0.2)
_REACH = 0.25
#: Look-alikes: how far away, as part of the image's height, and how unlike in L, a, b and L's deviation they may be.
_ALIKE_REACH = 0.35
_ALIKE_DIFFERENCES = (12.0, 6.0, 6.0, 6.0)
SIDES = {"above": (-_REACH, 0.0), "below": (_REACH, 0.0), "left": (0.0, -_REACH), "right": (0.0, _REACH)}


def adjacency_means(values: Floats, edges: Ints, weights: Floats) -> Floats:
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


# --- images and their features ---

#: Columns of an appearance's colour (mean and deviation of Lab) and texture (Laplacians) of which windows take means.
_LAYOUT_COLOUR = slice(0, 6)
_LAYOUT_TEXTURE = slice(9, 13)
#: Columns of an appearance's colour that look-alikes share: mean of Lab and deviation of L.
_LIKENESS = slice(0, 4)


@dataclass(frozen=True, eq=False)
class SegmentedImage:
    """An image as a graph of superpixels."""

    image: NDArray[np.uint8]  #: (h, w, 3)
    segments: Ints  #: (h, w) superpixel of each pixel
    adjacency: RegionAdjacency
    labels: Ints | None  #: (n,) majority label of each superpixel
    pixel_labels: Ints | None  #: (h, w)

    @property
    def n_superpixels(self) -> int:
        """Number of superpixels."""
        return int(self.segments.max()) + 1


def segment_image(
    image: Any, pixel_labels: Any = None, *, n_labels: int = 0, segments: Any = None, **options: Any
) -> SegmentedImage:
    """Superpixels of ``image``, their adjacency and, where ``pixel_labels`` (h, w) are given, their majority labels.

    ``segments`` (h, w) are superpixels made before; else ``options`` go to
    :func:`bactrian.vision.superpixels.superpixels`.
    """
    segments = superpixels(image, **options) if segments is None else checked_segments(segments)
    labels = None if pixel_labels is None else majority_labels(segments, pixel_labels, n_labels)
    return SegmentedImage(
        image=np.asarray(image),
        segments=segments,
        adjacency=region_adjacency(segments, image),
        labels=labels,
        pixel_labels=None if pixel_labels is None else np.asarray(pixel_labels).astype(np.int64),
    )


def superpixel_features(
    image: SegmentedImage, vocabulary: TextonVocabulary, *, context: bool = True
) -> NDArray[np.float32]:
    """Features (n, n_features): own appearance, neighbours, windows around, rank, the whole image and look-alikes.

    Without ``context`` only a superpixel's own appearance.
    """
    own = appearance(image.image, image.segments, vocabulary)
    if not context:
        return np.concatenate([own.own, own.structure], axis=1).astype(np.float32)
    look = np.concatenate([own.colour, own.texture, own.gradients], axis=1)
    around = adjacency_means(look, image.adjacency.edges, image.adjacency.boundary_length)
    layout = np.concatenate([own.colour[:, _LAYOUT_COLOUR], own.texture[:, _LAYOUT_TEXTURE]], axis=1)
    parts = [own.own, around, own.colour - around[:, : own.colour.shape[1]], _ranks(own)]
    windows = context_windows(image, own)
    for weights in windows.values():
        means = weights @ layout
        parts += [means, own.colour[:, :3] - means[:, :3]]
    parts += [windows["image"] @ own.textons, windows["image"] @ own.colours]
    parts.append(look_alikes(image, own) @ np.concatenate([own.own, own.structure], axis=1))
    return np.concatenate(parts, axis=1).astype(np.float32)


def context_windows(image: SegmentedImage, own: Appearance) -> dict[str, Floats]:
    """Weights of the windows around each superpixel; left and right are joined, for photographs have no side."""
    windows = window_weights(own.centre, own.size, (image.segments.shape[0], image.segments.shape[1]))
    windows["beside"] = 0.5 * (windows.pop("left") + windows.pop("right"))
    return windows


def look_alikes(image: SegmentedImage, own: Appearance) -> Floats:
    """Weights (n, n) of the superpixels near and like each of them."""
    shape = (image.segments.shape[0], image.segments.shape[1])
    return look_alike_weights(own.centre, own.size, shape, own.colour[:, _LIKENESS])


def _ranks(own: Appearance) -> Floats:
    """Part of the image that is darker, greener and bluer than the superpixel."""
    mean = own.colour[:, :3]
    share = own.size / own.size.sum()
    return np.stack([(mean[:, c][:, None] > mean[:, c][None]) @ share for c in range(3)], axis=1)
