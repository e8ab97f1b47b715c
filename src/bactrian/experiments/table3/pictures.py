"""Segmentations as pictures: colours of classes, labels painted over an image, and uncertainty."""

from __future__ import annotations

from typing import Any

import numpy as np

from bactrian.arrays import Floats

#: Colours of classes, told apart by people who confuse red and green (Okabe and Ito 2008).
PALETTE = ("#000000", "#e69f00", "#0072b2", "#f0e442", "#009e73", "#d55e00", "#56b4e9", "#cc79a7")


def class_colours(n_labels: int) -> Floats:
    """A colour (n_labels, 3) for each class; the palette repeats, lighter, beyond eight."""
    colours = np.array([[int(code[i : i + 2], 16) / 255.0 for i in (1, 3, 5)] for code in PALETTE])
    turns = np.arange(n_labels) // len(PALETTE)
    lightening = (turns / (turns + 1.0))[:, None]
    return colours[np.arange(n_labels) % len(PALETTE)] * (1.0 - lightening) + lightening


def label_picture(image: Any, labels: Any, n_labels: int, *, opacity: float = 0.7) -> Floats:
    """Pixel labels (h, w) painted over an image (h, w, 3), as floats from 0 to 1; negative labels stay clear."""
    grey = np.asarray(image, dtype=np.float64).mean(axis=2, keepdims=True)
    grey = np.repeat(grey / 255.0 if np.asarray(image).dtype == np.uint8 else grey, 3, axis=2)
    codes = np.asarray(labels)
    painted = class_colours(n_labels)[np.maximum(codes, 0)]
    strength = np.where(codes >= 0, opacity, 0.0)[..., None]
    return strength * painted + (1.0 - strength) * grey


def uncertainty(marginals: Floats) -> Floats:
    """Entropy of marginals (n, n_labels) as a part of the largest possible, from 0 to 1."""
    n_labels = marginals.shape[1]
    if n_labels < 2:
        return np.zeros(len(marginals))
    logs = np.log(np.where(marginals > 0.0, marginals, 1.0))
    return np.clip(-(marginals * logs).sum(axis=1) / np.log(n_labels), 0.0, 1.0)
