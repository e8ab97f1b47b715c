"""Superpixels, small regions of similar pixels, and the graph that they make: which touch, and with what contrast.

SLIC (Achanta and others, PAMI 34(11), 2012) is the default. Normalised cuts (Shi and Malik, PAMI 22(8), 2000; Ren and
Malik, ICCV 2003, the way of the paper) are cut here on the region adjacency graph of a fine over-segmentation, which
keeps the eigenproblem small.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bactrian.arrays import Floats, Ints
from bactrian.errors import check_choice, check_count, check_number

METHODS = ("slic", "normalised-cuts")


def superpixels(
    image: Any,
    *,
    method: str = "slic",
    n_superpixels: int = 300,
    compactness: float = 20.0,
    threshold: float = 0.1,
    seed: int = 0,
) -> Ints:
    """Superpixel number of every pixel.

    Parameters
    ----------
    image : (h, w, 3) uint8, or floats from 0 to 1
        Colour image, sRGB.
    method : {"slic", "normalised-cuts"}
        SLIC, or normalised cuts of the adjacency graph of an over-segmentation.
    n_superpixels : int
        About how many superpixels to make: SLIC's target, or the size of the over-segmentation that is then cut.
    compactness : float
        SLIC: weight of nearness against likeness of colour.
    threshold : float
        Normalised cuts: a region is cut in two while the cut's value is below this.
    seed : int
        Start of the eigenvectors' iteration.

    Returns
    -------
    (h, w) ints
        Numbers 0, 1, ... without gaps, in order of first appearance; every superpixel is connected.
    """
    from skimage.measure import label
    from skimage.segmentation import slic

    pixels = checked_image(image)
    check_choice("method", method, METHODS)
    check_number("n_superpixels", n_superpixels, least=1, whole=True)
    check_number("compactness", compactness, positive=True, below=np.inf)
    check_number("threshold", threshold, positive=True, below=np.inf)
    segments = slic(pixels, n_segments=int(n_superpixels), compactness=compactness, start_label=0, channel_axis=-1)
    if method == "normalised-cuts":
        segments = _cut(pixels, segments, threshold, seed)
    # SLIC may leave a superpixel in pieces, and so may a cut.
    connected = label(segments, background=-1, connectivity=1)
    return _renumbered(connected)


def checked_image(image: Any) -> Floats:
    """Pixels as floats from 0 to 1, or an error."""
    array = np.asarray(image)
    if array.ndim != 3 or array.shape[2] != 3 or 0 in array.shape:
        raise ValueError(f"image must have shape (height, width, 3), found {array.shape}")
    if array.dtype == np.uint8:
        return array.astype(np.float64) / 255.0
    if array.dtype.kind != "f":
        raise TypeError(f"image must be uint8, or floats from 0 to 1, found dtype {array.dtype}")
    if not (np.isfinite(array).all() and array.min() >= 0.0 and array.max() <= 1.0):
        raise ValueError("image of floats must lie between 0 and 1")
    return array.astype(np.float64)


def checked_segments(segments: Any, shape: tuple[int, int] | None = None) -> Ints:
    """A map of superpixel numbers without gaps, or an error."""
    array = np.asarray(segments)
    if array.ndim != 2 or array.size == 0:
        raise ValueError(f"segments must have shape (height, width), found {array.shape}")
    if array.dtype.kind not in "iu":
        raise TypeError(f"segments must hold integers, found dtype {array.dtype}")
    if shape is not None and array.shape != shape:
        raise ValueError(f"segments must have the image's shape {shape}, found {array.shape}")
    if array.min() < 0:
        raise ValueError("segments must not be negative")
    empty = np.bincount(array.ravel()) == 0
    if empty.any():
        raise ValueError(f"segments must be numbered without gaps: no pixel has number {int(np.argmax(empty))}")
    return array.astype(np.int64)


def _cut(pixels: Floats, segments: Ints, threshold: float, seed: int) -> Ints:
    from skimage.graph import cut_normalized, rag_mean_color

    graph = rag_mean_color(255.0 * pixels, segments, mode="similarity")
    return cut_normalized(segments, graph, thresh=threshold, rng=np.random.default_rng(seed))


def _renumbered(segments: Ints) -> Ints:
    _, first, inverse = np.unique(segments, return_index=True, return_inverse=True)
    rank = np.empty(first.size, dtype=np.int64)
    rank[np.argsort(first)] = np.arange(first.size)
    return rank[inverse].reshape(segments.shape)


# --- regions as a graph ---


@dataclass(frozen=True, eq=False)
class RegionAdjacency:
    """Pairs of regions that share a boundary; 4-connected pixels."""

    edges: Ints  #: (n_edges, 2), the smaller number first, in lexicographic order
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
    for axis, first, second in ((0, np.s_[:-1], np.s_[1:]), (1, np.s_[:, :-1], np.s_[:, 1:])):
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


def region_means(segments: Ints, values: Floats) -> Floats:
    """Mean of pixel ``values`` (h * w, n) over each region, (n_regions, n)."""
    flat = segments.ravel()
    size = np.bincount(flat).astype(np.float64)
    sums = np.stack([np.bincount(flat, column, minlength=size.size) for column in values.T], axis=1)
    return sums / size[:, None]


def majority_labels(segments: Any, labels: Any, n_labels: int) -> Ints:
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
    return np.where(counts.any(axis=1), counts.argmax(axis=1), -1)


def to_pixels(segments: Any, values: Any) -> NDArray[Any]:
    """Values of regions (n_regions, ...) spread over their pixels, (h, w, ...)."""
    regions = checked_segments(segments)
    array = np.asarray(values)
    n_regions = int(regions.max()) + 1
    check_count("values", array.shape[:1], (n_regions,), "entry per region")
    return array[regions]


# --- an image as a graph ---


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

    ``segments`` (h, w) are superpixels made before; else ``options`` go to :func:`superpixels`.
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
