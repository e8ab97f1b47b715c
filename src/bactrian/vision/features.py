"""Features of superpixels, their own and of their context, and images prepared for learning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bactrian.vision.appearance import Appearance, appearance
from bactrian.vision.context import adjacency_means, look_alike_weights, window_weights
from bactrian.vision.regions import RegionAdjacency, majority_labels, region_adjacency
from bactrian.vision.superpixels import checked_segments, superpixels
from bactrian.vision.textons import TextonVocabulary

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

#: Columns of an appearance's colour (mean and deviation of Lab) and texture (Laplacians) of which windows take means.
_LAYOUT_COLOUR = slice(0, 6)
_LAYOUT_TEXTURE = slice(9, 13)
#: Columns of an appearance's colour that look-alikes share: mean of Lab and deviation of L.
_LIKENESS = slice(0, 4)


@dataclass(frozen=True, eq=False)
class SegmentedImage:
    """An image as a graph of superpixels."""

    image: NDArray[np.uint8]  #: (h, w, 3)
    segments: Integers  #: (h, w) superpixel of each pixel
    adjacency: RegionAdjacency
    labels: Integers | None  #: (n,) majority label of each superpixel
    pixel_labels: Integers | None  #: (h, w)

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
