"""Structure of the lightness around a pixel: local binary patterns, and descriptors of gradients.

Uniform local binary patterns are those of Ojala, Pietikäinen and Mäenpää (PAMI 24(7), 2002); a descriptor has, as that
of Lowe (IJCV 60(2), 2004), the strength of gradients in eight directions in each of 4 x 4 cells, here around every
second pixel of every second row and at one scale.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_RADII = (1, 2, 4)
_POINTS = 8
#: Codes of one radius: 0 to 8 bright neighbours in one run, and all else.
N_PATTERNS = _POINTS + 2
_DIRECTIONS, _CELLS, _SPACING = 8, 4, 4
N_DESCRIPTOR = _DIRECTIONS * _CELLS**2
_STEP = 2
#: No part of a descriptor of length 1 counts more than this, so that one strong edge does not drown the rest.
_LARGEST = 0.2


def binary_patterns(light: Floats) -> list[Integers]:
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
    scaled: Floats = found / (np.linalg.norm(found, axis=-1, keepdims=True) + 0.1)
    return scaled


def enlarged(codes: Integers, shape: tuple[int, int]) -> Integers:
    """Codes of every second pixel, (rows, columns), for all pixels of an image of ``shape``."""
    return codes.repeat(_STEP, axis=0).repeat(_STEP, axis=1)[: shape[0], : shape[1]]
