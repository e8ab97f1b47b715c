"""Regions of an image as a graph: which touch, along how long a boundary, and with what contrast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bactrian.vision.superpixels import checked_image, checked_segments

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class RegionAdjacency:
    """Pairs of regions that share a boundary; 4-connected pixels."""

    edges: Integers  #: (n_edges, 2), the smaller number first, in lexicographic order
    boundary_length: Floats  #: (n_edges,) pairs of touching pixels
    contrast: Floats  #: (n_edges,) mean Lab distance of the two pixels of such a pair
    mean_contrast: Floats  #: (n_edges,) Lab distance of the regions' mean colours
    verticality: Floats  #: (n_edges,) part of the boundary at which the one region lies above the other


def region_adjacency(segments: Any, image: Any) -> RegionAdjacency:
    """Adjacency of the regions of ``segments`` (h, w) in ``image`` (h, w, 3)."""
    from skimage.color import rgb2lab

    pixels = checked_image(image)
    regions = checked_segments(segments, pixels.shape[:2])
    lab = rgb2lab(pixels)
    pairs, contrasts, vertical = [], [], []
    for axis in (0, 1):
        first = (slice(None, -1), slice(None)) if axis == 0 else (slice(None), slice(None, -1))
        second = (slice(1, None), slice(None)) if axis == 0 else (slice(None), slice(1, None))
        differs = regions[first] != regions[second]
        pairs.append(np.stack([regions[first][differs], regions[second][differs]], axis=1))
        contrasts.append(np.linalg.norm(lab[first][differs] - lab[second][differs], axis=1))
        vertical.append(np.full(pairs[-1].shape[0], 1.0 - axis))
    joined = np.sort(np.concatenate(pairs), axis=1)
    edges, inverse = np.unique(joined, axis=0, return_inverse=True)
    inverse = inverse.ravel()
    length = np.bincount(inverse, minlength=len(edges)).astype(np.float64)
    means = region_means(regions, lab.reshape(-1, 3))
    return RegionAdjacency(
        edges=edges.reshape(-1, 2).astype(np.int64),
        boundary_length=length,
        contrast=np.bincount(inverse, np.concatenate(contrasts), minlength=len(edges)) / np.maximum(length, 1.0),
        mean_contrast=np.linalg.norm(means[edges[:, 0]] - means[edges[:, 1]], axis=1),
        verticality=np.bincount(inverse, np.concatenate(vertical), minlength=len(edges)) / np.maximum(length, 1.0),
    )


def region_means(segments: Integers, values: Floats) -> Floats:
    """Mean of pixel ``values`` (h * w, n) over each region, (n_regions, n)."""
    flat = segments.ravel()
    size = np.bincount(flat).astype(np.float64)
    sums = np.stack([np.bincount(flat, column, minlength=size.size) for column in values.T], axis=1)
    means: Floats = sums / size[:, None]
    return means


def majority_labels(segments: Any, labels: Any, n_labels: int) -> Integers:
    """The commonest pixel label of each region, the lowest where several are; negative labels do not count.

    A region without a labelled pixel has the label -1.
    """
    regions = checked_segments(segments)
    pixel_labels = np.asarray(labels)
    if pixel_labels.shape != regions.shape:
        raise ValueError(f"labels must have the shape {regions.shape} of segments, found {pixel_labels.shape}")
    if pixel_labels.dtype.kind not in "iu":
        raise TypeError(f"labels must be integers, found dtype {pixel_labels.dtype}")
    if pixel_labels.max() >= n_labels:
        raise ValueError(f"labels must be below n_labels = {n_labels}, found {int(pixel_labels.max())}")
    counts = np.zeros((int(regions.max()) + 1, n_labels), dtype=np.int64)
    known = pixel_labels >= 0
    np.add.at(counts, (regions[known], pixel_labels[known].astype(np.int64)), 1)
    majority: Integers = np.where(counts.any(axis=1), counts.argmax(axis=1), -1)
    return majority


def to_pixels(segments: Any, values: Any) -> NDArray[Any]:
    """Values of regions (n_regions, ...) spread over their pixels, (h, w, ...)."""
    regions = checked_segments(segments)
    array = np.asarray(values)
    n_regions = int(regions.max()) + 1
    if array.ndim < 1 or array.shape[0] != n_regions:
        raise ValueError(f"values must have one entry for each of the {n_regions} regions, found shape {array.shape}")
    return array[regions]
