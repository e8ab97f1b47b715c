"""The pictures of Table 3 for a report: every method on the same test images of the first split."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bactrian.experiments.table3.corel_data import CLASSES
from bactrian.experiments.table3.table import Table3
from bactrian.runs.comparison import Gallery, Picture, Sheet
from bactrian.vision.pictures import class_colours, label_picture, uncertainty
from bactrian.vision.superpixel_features import SegmentedImage
from bactrian.vision.superpixels import to_pixels

Floats = NDArray[np.float64]


def table3_gallery(table: Table3, n_images: int = 8) -> Gallery:
    """Segmentations and uncertainty of evenly spaced test images: matched inference, with a prior if there is one."""
    total = len(table.split.test)
    numbers = [k * total // n_images for k in range(n_images)] if n_images < total else list(range(total))
    labels, doubts = [], []
    for k in numbers:
        image = table.split.test[k]
        shown = (Picture(image.image, "the image"), Picture(_painted(image, image.pixel_labels), "the truth"))
        found = {name: marginals[k] for name, marginals in table.predictions.items()}
        labels.append((*shown, *(_segmentation(name, image, marginals) for name, marginals in found.items())))
        doubts.append((*shown, *(_doubt(name, image, marginals) for name, marginals in found.items())))
    colours = (255.0 * class_colours(len(CLASSES))).round().astype(int).tolist()
    return Gallery(
        title="Test images of the first split",
        columns=("image", "truth", *table.predictions),
        row_labels=tuple(f"test image {k + 1}" for k in numbers),
        sheets=(
            Sheet("segmentations", "The most probable class of every superpixel.", tuple(labels)),
            Sheet("uncertainty", "The entropy of every superpixel's marginal: white is certain.", tuple(doubts)),
        ),
        colours={name: (int(r), int(g), int(b)) for name, (r, g, b) in zip(CLASSES, colours, strict=True)},
    )


def _segmentation(name: str, image: SegmentedImage, marginals: Floats) -> Picture:
    labels = to_pixels(image.segments, marginals.argmax(axis=1))
    right = float(np.mean(labels == image.pixel_labels))
    return Picture(_painted(image, labels), f"{name}: {100.0 * right:.0f} % of the pixels right")


def _painted(image: SegmentedImage, labels: NDArray[np.int64] | None) -> NDArray[np.uint8]:
    codes = np.full(image.segments.shape, -1) if labels is None else labels
    return (255.0 * label_picture(image.image, codes, len(CLASSES))).round().astype(np.uint8)


def _doubt(name: str, image: SegmentedImage, marginals: Floats) -> Picture:
    doubt = uncertainty(marginals)
    white, purple = np.array([250.0, 250.0, 247.0]), np.array([98.0, 54.0, 150.0])
    pixels = white + to_pixels(image.segments, doubt)[..., None] * (purple - white)
    return Picture(pixels.round().astype(np.uint8), f"{name}: {doubt.mean():.2f} of the largest entropy on average")
