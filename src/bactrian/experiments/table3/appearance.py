"""What a superpixel looks like: colour, texture, gradients, structure, place and shape.

Textons are words for filter responses, colours and structures, learned by k-means on training images only. The bank of
filters is that of Winn, Criminisi and Minka (ICCV 2005): Gaussians on the three channels of Lab, Laplacians of
Gaussians and first derivatives on the lightness. Structure is that of the lightness around a pixel: uniform local
binary patterns are those of Ojala, Pietikäinen and Mäenpää (PAMI 24(7), 2002); a descriptor has, as that of Lowe (IJCV
60(2), 2004), the strength of gradients in eight directions in each of 4 x 4 cells, here around every second pixel of
every second row and at one scale.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from bactrian.arrays import Floats, Ints
from bactrian.errors import check_number
from bactrian.vision.superpixels import SegmentedImage, checked_image, checked_segments, region_means

# --- structure ---

_RADII = (1, 2, 4)
_POINTS = 8
#: Codes of one radius: 0 to 8 bright neighbours in one run, and all else.
N_PATTERNS = _POINTS + 2
_DIRECTIONS, _CELLS, _SPACING = 8, 4, 4
N_DESCRIPTOR = _DIRECTIONS * _CELLS**2
_STEP = 2
#: No part of a descriptor of length 1 counts more than this, so that one strong edge does not drown the rest.
_LARGEST = 0.2


def binary_patterns(light: Floats) -> list[Ints]:
    """Code from 0 to 9 of every pixel at each radius; ``light`` (h, w) from 0 to 100."""
    from skimage.feature import local_binary_pattern

    codes = []
    for radius in _RADII:
        smooth = ndimage.gaussian_filter(light, radius / 2.0)
        grey = np.clip(2.55 * smooth, 0.0, 255.0).astype(np.uint8)
        codes.append(local_binary_pattern(grey, _POINTS, radius, method="uniform").astype(np.int64))
    return codes


def descriptors(light: Floats) -> Floats:
    """Descriptors (rows, columns, 128) around every second pixel of every second row."""
    down, right = (ndimage.gaussian_filter(light, 1.0, order=order) for order in ((1, 0), (0, 1)))
    strength, angle = np.hypot(down, right), np.arctan2(down, right)
    maps = [
        ndimage.gaussian_filter(strength * np.maximum(np.cos(angle - 2.0 * np.pi * k / _DIRECTIONS), 0.0) ** 4, 2.0)
        for k in range(_DIRECTIONS)
    ]
    reach = _SPACING * (_CELLS - 1) // 2
    padded = np.pad(np.stack(maps, axis=-1), ((reach, reach), (reach, reach), (0, 0)), mode="symmetric")
    height, width = light.shape
    cells = [
        padded[y : y + height : _STEP, x : x + width : _STEP]
        for y in range(0, _SPACING * _CELLS, _SPACING)
        for x in range(0, _SPACING * _CELLS, _SPACING)
    ]
    found = np.concatenate(cells, axis=-1)
    # The constants keep a descriptor of next to no gradient next to nothing.
    found = np.minimum(found / (np.linalg.norm(found, axis=-1, keepdims=True) + 1.0), _LARGEST)
    return found / (np.linalg.norm(found, axis=-1, keepdims=True) + 0.1)


# --- textons ---

_GAUSSIANS = (1.0, 2.0, 4.0)
_LAPLACIANS = (1.0, 2.0, 4.0, 8.0)
_DERIVATIVES = (2.0, 4.0)
N_FILTERS = 3 * len(_GAUSSIANS) + len(_LAPLACIANS) + 2 * len(_DERIVATIVES)
#: Chroma varies far less than lightness; scaled so that both count.
_CHROMA = 2.0


def lab_of(image: Any) -> Floats:
    """CIE Lab of an image, (h, w, 3)."""
    from skimage.color import rgb2lab

    return rgb2lab(checked_image(image))


def filter_responses(lab: Floats) -> Floats:
    """Responses of the 17 filters at every pixel, (h, w, 17); derivatives are scaled by their width."""
    light = lab[..., 0]
    maps = [
        ndimage.gaussian_filter(lab[..., channel], sigma) * (1.0 if channel == 0 else _CHROMA)
        for sigma in _GAUSSIANS
        for channel in range(3)
    ]
    # The truncated kernel's second derivatives do not quite add up to 0: a constant is taken off first.
    centred = light - light.mean()
    maps += [sigma**2 * ndimage.gaussian_laplace(centred, sigma) for sigma in _LAPLACIANS]
    maps += [
        sigma * ndimage.gaussian_filter(light, sigma, order=order)
        for sigma in _DERIVATIVES
        for order in ((0, 1), (1, 0))
    ]
    return np.stack(maps, axis=-1)


@dataclass(frozen=True, eq=False)
class TextonVocabulary:
    """Centres of clusters of whitened filter responses, of Lab colours, and of descriptors of structure."""

    mean: Floats  #: (17,) of responses
    scale: Floats  #: (17,)
    textons: Floats  #: (n_textons, 17) centres of scaled responses
    colours: Floats  #: (n_colours, 3) centres of Lab colours
    structures: Floats  #: (n_structures, 128) centres of descriptors

    @staticmethod
    def learn(
        images: Iterable[Any],
        *,
        n_textons: int = 64,
        n_colours: int = 32,
        n_structures: int = 100,
        pixels_an_image: int = 1500,
        seed: int = 0,
    ) -> TextonVocabulary:
        """Learn a vocabulary from training images: arrays, or what :func:`bactrian.vision.segment_image` gives."""
        numbers = {"n_textons": n_textons, "n_colours": n_colours, "n_structures": n_structures}
        for name, number in {**numbers, "pixels_an_image": pixels_an_image}.items():
            check_number(name, number, least=1, whole=True)
        rng = np.random.default_rng(seed)
        drawn_responses, drawn_colours, drawn_structures = [], [], []
        for image in images:
            lab = lab_of(image.image if isinstance(image, SegmentedImage) else image)
            responses = filter_responses(lab).reshape(-1, N_FILTERS)
            drawn = rng.choice(responses.shape[0], min(pixels_an_image, responses.shape[0]), replace=False)
            drawn_responses.append(responses[drawn])
            drawn_colours.append(lab.reshape(-1, 3)[drawn])
            found = descriptors(lab[..., 0]).reshape(-1, N_DESCRIPTOR)
            drawn_structures.append(
                found[rng.choice(len(found), min(pixels_an_image // 2 + 1, len(found)), replace=False)]
            )
        if not drawn_responses:
            raise ValueError("images is empty; a vocabulary needs at least one training image")
        responses = np.concatenate(drawn_responses)
        mean, scale = responses.mean(axis=0), np.maximum(responses.std(axis=0), 1e-6)
        return TextonVocabulary(
            mean,
            scale,
            _centres((responses - mean) / scale, n_textons, seed),
            _centres(np.concatenate(drawn_colours), n_colours, seed),
            _centres(np.concatenate(drawn_structures), n_structures, seed, n_starts=1),
        )

    def words(self, lab: Floats, responses: Floats) -> tuple[Ints, Ints]:
        """Nearest texton and nearest colour of every pixel, (h, w) each."""
        flat = (responses.reshape(-1, N_FILTERS) - self.mean) / self.scale
        shape = lab.shape[:2]
        return nearest(flat, self.textons).reshape(shape), nearest(lab.reshape(-1, 3), self.colours).reshape(shape)

    def structure_words(self, light: Floats) -> Ints:
        """Nearest structure of every pixel, (h, w)."""
        found = descriptors(light)
        codes = nearest(found.reshape(-1, N_DESCRIPTOR), self.structures).reshape(found.shape[:2])
        return codes.repeat(_STEP, axis=0).repeat(_STEP, axis=1)[: light.shape[0], : light.shape[1]]


def _centres(points: Floats, number: int, seed: int, n_starts: int = 3) -> Floats:
    from sklearn.cluster import MiniBatchKMeans

    number = min(number, np.unique(points, axis=0).shape[0])
    found = MiniBatchKMeans(number, n_init=n_starts, batch_size=2048, random_state=seed).fit(points).cluster_centers_
    return np.asarray(found, dtype=np.float64)


def nearest(points: Floats, centres: Floats) -> Ints:
    """Number of the nearest centre of each point."""
    distance = (centres**2).sum(axis=1) - 2.0 * points @ centres.T
    return distance.argmin(axis=1)


# --- appearance ---

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


def _structure(regions: Ints, light: Floats, vocabulary: TextonVocabulary) -> Floats:
    patterns = [_histogram(regions, codes, N_PATTERNS) for codes in binary_patterns(light)]
    words = _histogram(regions, vocabulary.structure_words(light), len(vocabulary.structures))
    return np.concatenate([*patterns, words], axis=1)


def _histogram(regions: Ints, codes: Ints, n_codes: int, weights: Floats | None = None) -> Floats:
    """Part of each region's pixels, or of their weights, with each code, (n, n_codes)."""
    n, cells = int(regions.max()) + 1, regions.ravel() * n_codes + codes.ravel()
    counts = np.bincount(cells, weights, minlength=n * n_codes).reshape(n, n_codes)
    return counts / np.maximum(counts.sum(axis=1, keepdims=True), 1e-9)


def _binned(values: Floats, low: float, high: float) -> Ints:
    return np.clip((_BINS * (values - low) / (high - low)).astype(np.int64), 0, _BINS - 1)


def _colour(regions: Ints, lab: Floats, hsv: Floats) -> Floats:
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


def _texture(regions: Ints, responses: Floats) -> Floats:
    flat = responses.reshape(-1, responses.shape[-1])
    mean = region_means(regions, flat)
    return np.concatenate(
        [region_means(regions, np.abs(flat)), np.sqrt(region_means(regions, (flat - mean[regions.ravel()]) ** 2))],
        axis=1,
    )


def _gradients(regions: Ints, light: Floats) -> Floats:
    down, right = (ndimage.gaussian_filter(light, 1.0, order=order) for order in ((1, 0), (0, 1)))
    strength = np.hypot(down, right)
    angle = np.mod(np.arctan2(down, right), np.pi)
    code = np.minimum((_ORIENTATIONS * angle / np.pi).astype(np.int64), _ORIENTATIONS - 1)
    mean = region_means(regions, np.stack([strength.ravel(), strength.ravel() ** 2], axis=1))
    deviation = np.sqrt(np.maximum(mean[:, 1] - mean[:, 0] ** 2, 0.0))
    orientations = _histogram(regions, code, _ORIENTATIONS, strength.ravel())
    return np.concatenate([orientations, mean[:, :1], deviation[:, None]], axis=1)


def _geometry(regions: Ints, size: Floats) -> tuple[Floats, Floats, Floats]:
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


# --- context ---
#
# Neighbours, windows at larger scales and to each side, look-alikes and the whole image: always a weighted mean over
# superpixels, so a product of a small matrix of weights with their features. Weights multiply a superpixel's size, so
# that it counts as its pixels do.

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


def window_weights(centre: Floats, size: Floats, shape: tuple[int, ...]) -> dict[str, Floats]:
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


def look_alike_weights(centre: Floats, size: Floats, shape: tuple[int, ...], colour: Floats) -> Floats:
    """Weights (n, n) of superpixels that are near and of like colour: a mean over them is one of a region.

    ``colour`` (n, 4) are means of L, a and b, and the deviation of L.
    """
    points, looks = centre * [1.0, shape[1] / shape[0]], colour / _ALIKE_DIFFERENCES
    near = ((points[None] - points[:, None]) ** 2).sum(axis=2) / _ALIKE_REACH**2
    unlike = ((looks[None] - looks[:, None]) ** 2).sum(axis=2)
    return _rows_to_one(np.exp(-0.5 * (near + unlike)) * size)


def _rows_to_one(matrix: Floats) -> Floats:
    return matrix / matrix.sum(axis=1, keepdims=True)


# --- features ---

#: Columns of an appearance's colour (mean and deviation of Lab) and texture (Laplacians) of which windows take means.
_LAYOUT_COLOUR = slice(0, 6)
_LAYOUT_TEXTURE = slice(9, 13)
#: Columns of an appearance's colour that look-alikes share: mean of Lab and deviation of L.
_LIKENESS = slice(0, 4)


def superpixel_features(
    image: SegmentedImage, vocabulary: TextonVocabulary, *, context: bool = True
) -> NDArray[np.float32]:
    """Features (n, n_features): own appearance, neighbours, windows around, rank, the whole image and look-alikes.

    Without ``context`` only a superpixel's own appearance.
    """
    if not isinstance(image, SegmentedImage):
        raise TypeError(f"image must be what segment_image gives, found {type(image).__name__}")
    own = appearance(image.image, image.segments, vocabulary)
    if not context:
        return np.concatenate([own.own, own.structure], axis=1).astype(np.float32)
    look = np.concatenate([own.colour, own.texture, own.gradients], axis=1)
    around = adjacency_means(look, image.adjacency.edges, image.adjacency.boundary_length)
    layout = np.concatenate([own.colour[:, _LAYOUT_COLOUR], own.texture[:, _LAYOUT_TEXTURE]], axis=1)
    parts = [own.own, around, own.colour - around[:, : own.colour.shape[1]], _ranks(own)]
    shape = image.segments.shape
    windows = window_weights(own.centre, own.size, shape)
    windows["beside"] = 0.5 * (windows.pop("left") + windows.pop("right"))  # photographs have no side
    for weights in windows.values():
        means = weights @ layout
        parts += [means, own.colour[:, :3] - means[:, :3]]
    parts += [windows["image"] @ own.textons, windows["image"] @ own.colours]
    alike = look_alike_weights(own.centre, own.size, shape, own.colour[:, _LIKENESS])
    parts.append(alike @ np.concatenate([own.own, own.structure], axis=1))
    return np.concatenate(parts, axis=1).astype(np.float32)


def _ranks(own: Appearance) -> Floats:
    """Part of the image that is darker, greener and bluer than the superpixel."""
    mean = own.colour[:, :3]
    share = own.size / own.size.sum()
    return np.stack([(mean[:, c][:, None] > mean[:, c][None]) @ share for c in range(3)], axis=1)
