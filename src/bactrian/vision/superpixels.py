"""Superpixels: small regions of similar pixels, the nodes of an image's graph.

SLIC (Achanta and others, PAMI 34(11), 2012) is the default. Normalised cuts (Shi and Malik, PAMI 22(8), 2000; Ren and
Malik, ICCV 2003, the way of the paper) are cut here on the region adjacency graph of a fine over-segmentation, which
keeps the eigenproblem small.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

METHODS = ("slic", "normalised-cuts")


def superpixels(
    image: Any,
    *,
    method: str = "slic",
    n_superpixels: int = 300,
    compactness: float = 20.0,
    threshold: float = 0.1,
    seed: int = 0,
) -> Integers:
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
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(map(repr, METHODS))}, found {method!r}")
    if isinstance(n_superpixels, bool) or not isinstance(n_superpixels, int | np.integer) or n_superpixels < 1:
        raise ValueError(f"n_superpixels must be an integer of at least 1, found {n_superpixels!r}")
    for name, value in (("compactness", compactness), ("threshold", threshold)):
        if not 0.0 < value < np.inf:
            raise ValueError(f"{name} must be positive and finite, found {value}")
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


def checked_segments(segments: Any, shape: tuple[int, int] | None = None) -> Integers:
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


def _cut(pixels: Floats, segments: Integers, threshold: float, seed: int) -> Integers:
    from skimage.graph import cut_normalized, rag_mean_color

    graph = rag_mean_color(255.0 * pixels, segments, mode="similarity")
    cut: Integers = cut_normalized(segments, graph, thresh=threshold, rng=np.random.default_rng(seed))
    return cut


def _renumbered(segments: Integers) -> Integers:
    _, first, inverse = np.unique(segments, return_index=True, return_inverse=True)
    rank = np.empty(first.size, dtype=np.int64)
    rank[np.argsort(first)] = np.arange(first.size)
    renumbered: Integers = rank[inverse].reshape(segments.shape)
    return renumbered
