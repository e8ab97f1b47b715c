"""What a superpixel looks like: colour, texture, gradients, place and shape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from bactrian.vision.regions import region_means
from bactrian.vision.structure import N_PATTERNS, binary_patterns
from bactrian.vision.superpixels import checked_segments
from bactrian.vision.textons import TextonVocabulary, filter_responses, lab_of

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_ORIENTATIONS = 8
_BINS = 8
#: Lab values between which histograms run; what lies outside goes into the end bins.
_RANGES = ((0.0, 100.0), (-25.0, 25.0), (-20.0, 50.0))


@dataclass(frozen=True, eq=False)
class Appearance:
    """Features of the superpixels of one image, by kind; n superpixels."""

    colour: Floats  #: (n, 16) mean, deviation and skewness of Lab, HSV's and chroma's means
    histograms: Floats  #: (n, 3 * 8) of L, a and b
    texture: Floats  #: (n, 2 * 17) mean modulus and deviation of filter responses
    gradients: Floats  #: (n, 8 + 2) orientations of gradients, their mean and deviation
    textons: Floats  #: (n, n_textons) histogram
    colours: Floats  #: (n, n_colours) histogram
    structure: Floats  #: (n, 3 * 10 + n_structures) histograms of binary patterns and of structures
    place: Floats  #: (n, 8) centre, distance to the image's centre and borders
    shape: Floats  #: (n, 7) size, extent and moments
    size: Floats  #: (n,) pixels
    centre: Floats  #: (n, 2) row and column as parts of height and width

    @property
    def own(self) -> Floats:
        """All features of the superpixel itself but its structure, which takes a larger region to be told."""
        kinds = (
            self.colour, self.histograms, self.texture, self.gradients, self.textons, self.colours, self.place,
            self.shape,
        )  # fmt: skip
        return np.concatenate(kinds, axis=1)


def appearance(image: Any, segments: Any, vocabulary: TextonVocabulary) -> Appearance:
    """Appearance of every superpixel of ``image`` (h, w, 3)."""
    from skimage.color import rgb2hsv

    lab = lab_of(image)
    regions = checked_segments(segments, lab.shape[:2])
    responses = filter_responses(lab)
    texton, colour = vocabulary.words(lab, responses)
    size = np.bincount(regions.ravel()).astype(np.float64)
    place, shape, centre = _geometry(regions, size)
    return Appearance(
        colour=_colour(regions, lab, rgb2hsv(image)),
        histograms=np.concatenate([_histogram(regions, _binned(lab[..., c], *_RANGES[c]), _BINS) for c in range(3)], 1),
        texture=_texture(regions, responses),
        gradients=_gradients(regions, lab[..., 0]),
        textons=_histogram(regions, texton, len(vocabulary.textons)),
        colours=_histogram(regions, colour, len(vocabulary.colours)),
        structure=_structure(regions, lab[..., 0], vocabulary),
        place=place,
        shape=shape,
        size=size,
        centre=centre,
    )


def _structure(regions: Integers, light: Floats, vocabulary: TextonVocabulary) -> Floats:
    patterns = [_histogram(regions, codes, N_PATTERNS) for codes in binary_patterns(light)]
    words = _histogram(regions, vocabulary.structure_words(light), len(vocabulary.structures))
    return np.concatenate([*patterns, words], axis=1)


def _histogram(regions: Integers, codes: Integers, n_codes: int) -> Floats:
    """Part of each region's pixels with each code, (n, n_codes)."""
    n = int(regions.max()) + 1
    counts = np.bincount(regions.ravel() * n_codes + codes.ravel(), minlength=n * n_codes).reshape(n, n_codes)
    shares: Floats = counts / counts.sum(axis=1, keepdims=True)
    return shares


def _binned(values: Floats, low: float, high: float) -> Integers:
    return np.clip((_BINS * (values - low) / (high - low)).astype(np.int64), 0, _BINS - 1)


def _colour(regions: Integers, lab: Floats, hsv: Floats) -> Floats:
    flat = lab.reshape(-1, 3)
    mean = region_means(regions, flat)
    away = flat - mean[regions.ravel()]
    deviation = np.sqrt(region_means(regions, away**2))
    skewness = np.cbrt(region_means(regions, away**3))
    angle = 2.0 * np.pi * hsv[..., 0].ravel()
    hue = np.stack([np.cos(angle), np.sin(angle)], axis=1) * hsv[..., 1].reshape(-1, 1)
    extremes = np.stack(
        [f(lab[..., 0], regions, np.arange(len(mean))) for f in (ndimage.minimum, ndimage.maximum)], axis=1
    )
    chroma = np.hypot(mean[:, 1], mean[:, 2])[:, None]
    saturation = region_means(regions, hsv[..., 1:].reshape(-1, 2))
    return np.concatenate([mean, deviation, skewness, region_means(regions, hue), extremes, chroma, saturation], axis=1)


def _texture(regions: Integers, responses: Floats) -> Floats:
    flat = responses.reshape(-1, responses.shape[-1])
    mean = region_means(regions, flat)
    return np.concatenate(
        [region_means(regions, np.abs(flat)), np.sqrt(region_means(regions, (flat - mean[regions.ravel()]) ** 2))],
        axis=1,
    )


def _gradients(regions: Integers, light: Floats) -> Floats:
    down, right = (ndimage.gaussian_filter(light, 1.0, order=order) for order in ((1, 0), (0, 1)))
    strength = np.hypot(down, right)
    angle = np.mod(np.arctan2(down, right), np.pi)
    code = np.minimum((_ORIENTATIONS * angle / np.pi).astype(np.int64), _ORIENTATIONS - 1)
    n = int(regions.max()) + 1
    place = regions.ravel() * _ORIENTATIONS + code.ravel()
    votes = np.bincount(place, strength.ravel(), minlength=n * _ORIENTATIONS).reshape(n, _ORIENTATIONS)
    mean = region_means(regions, np.stack([strength.ravel(), strength.ravel() ** 2], axis=1))
    deviation = np.sqrt(np.maximum(mean[:, 1] - mean[:, 0] ** 2, 0.0))
    orientations = votes / np.maximum(votes.sum(axis=1, keepdims=True), 1e-9)
    return np.concatenate([orientations, mean[:, :1], deviation[:, None]], axis=1)


def _geometry(regions: Integers, size: Floats) -> tuple[Floats, Floats, Floats]:
    """Place, shape and centre of the regions."""
    height, width = regions.shape
    row, column = np.indices(regions.shape).reshape(2, -1)
    down, right = (row + 0.5) / height, (column + 0.5) / width
    centre = region_means(regions, np.stack([down, right], axis=1))
    y, x = centre.T
    place = np.stack(
        [y, x, np.abs(x - 0.5), np.hypot(y - 0.5, x - 0.5), (y - 0.5) ** 2, y * np.abs(x - 0.5),
         np.minimum(x, 1.0 - x), np.minimum(y, 1.0 - y)],
        axis=1,
    )  # fmt: skip
    away = np.stack([row, column], axis=1) - (centre * [height, width] - 0.5)[regions.ravel()]
    spread = region_means(regions, np.stack([away[:, 0] ** 2, away[:, 1] ** 2, away[:, 0] * away[:, 1]], axis=1))
    half, turn = (spread[:, 0] + spread[:, 1]) / 2.0, np.hypot((spread[:, 0] - spread[:, 1]) / 2.0, spread[:, 2])
    elongation = np.sqrt((half + turn + 1.0 / 12.0) / (half - turn + 1.0 / 12.0))
    edge = np.zeros(regions.shape)
    edge[:-1] += regions[:-1] != regions[1:]
    edge[:, :-1] += regions[:, :-1] != regions[:, 1:]
    border = np.zeros(regions.shape)
    border[[0, -1], :] = border[:, [0, -1]] = 1.0
    outline = np.bincount(regions.ravel(), edge.ravel())
    shape = np.stack(
        [size / regions.size, np.sqrt(spread[:, 0]), np.sqrt(spread[:, 1]), spread[:, 2] / (half + 1.0), elongation,
         outline / np.sqrt(size), np.bincount(regions.ravel(), border.ravel()) / np.sqrt(size)],
        axis=1,
    )  # fmt: skip
    return place, shape, centre
