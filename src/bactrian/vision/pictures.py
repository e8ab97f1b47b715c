"""Pictures: segmentations side by side, with a legend of classes, and maps of uncertainty. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bactrian.arrays import Floats
from bactrian.vision.superpixel_features import SegmentedImage
from bactrian.vision.superpixels import to_pixels

if TYPE_CHECKING:
    from matplotlib.figure import Figure


#: Colours of classes, told apart by people who confuse red and green (Okabe and Ito 2008).
PALETTE = ("#000000", "#e69f00", "#0072b2", "#f0e442", "#009e73", "#d55e00", "#56b4e9", "#cc79a7")


def class_colours(n_labels: int) -> Floats:
    """A colour (n_labels, 3) for each class; the palette repeats, lighter, beyond eight."""
    colours = np.array([[int(code[i : i + 2], 16) / 255.0 for i in (1, 3, 5)] for code in PALETTE])
    turns = np.arange(n_labels) // len(PALETTE)
    lightening = (turns / (turns + 1.0))[:, None]
    found: Floats = colours[np.arange(n_labels) % len(PALETTE)] * (1.0 - lightening) + lightening
    return found


def label_picture(image: Any, labels: Any, n_labels: int, *, opacity: float = 0.7) -> Floats:
    """Pixel labels (h, w) painted over an image (h, w, 3), as floats from 0 to 1; negative labels stay clear."""
    grey = np.asarray(image, dtype=np.float64).mean(axis=2, keepdims=True)
    grey = np.repeat(grey / 255.0 if np.asarray(image).dtype == np.uint8 else grey, 3, axis=2)
    codes = np.asarray(labels)
    painted = class_colours(n_labels)[np.maximum(codes, 0)]
    strength = np.where(codes >= 0, opacity, 0.0)[..., None]
    picture: Floats = strength * painted + (1.0 - strength) * grey
    return picture


def uncertainty(marginals: Floats) -> Floats:
    """Entropy of marginals (n, n_labels) as a part of the largest possible, from 0 to 1."""
    n_labels = marginals.shape[1]
    if n_labels < 2:
        return np.zeros(len(marginals))
    logs = np.log(np.where(marginals > 0.0, marginals, 1.0))
    shares: Floats = np.clip(-(marginals * logs).sum(axis=1) / np.log(n_labels), 0.0, 1.0)
    return shares


def segmentation_figure(
    images: Sequence[SegmentedImage], marginals: Mapping[str, Sequence[Floats]], classes: Sequence[str]
) -> Figure:
    """Image, truth and each method's segmentation side by side, a row an image, with a legend.

    ``marginals[method][k]`` (n, n_labels) belong to the superpixels of ``images[k]``.
    """
    figure, axes = _grid(len(images), 2 + len(marginals), room=0.5)
    for k, image in enumerate(images):
        pictures = {"image": image.image, "truth": _truth(image, len(classes))}
        for name, found in marginals.items():
            labels = to_pixels(image.segments, found[k].argmax(axis=1))
            pictures[name] = label_picture(image.image, labels, len(classes))
        for axis, (name, picture) in zip(axes[k], pictures.items(), strict=True):
            axis.imshow(picture)
            if k == 0:
                axis.set_title(name, fontsize=8)
    _legend(figure, classes)
    return figure


def uncertainty_figure(images: Sequence[SegmentedImage], marginals: Mapping[str, Sequence[Floats]]) -> Figure:
    """Each method's uncertainty about every superpixel: entropy of its marginal, white where the label is certain."""
    figure, axes = _grid(len(images), 1 + len(marginals), room=0.0)
    for k, image in enumerate(images):
        axes[k][0].imshow(image.image)
        for axis, (name, found) in zip(axes[k][1:], marginals.items(), strict=True):
            drawn = axis.imshow(to_pixels(image.segments, uncertainty(found[k])), cmap="Purples", vmin=0.0, vmax=1.0)
            if k == 0:
                axis.set_title(name, fontsize=8)
            if k == len(images) - 1 and axis is axes[k][-1]:
                figure.colorbar(drawn, ax=[one for row in axes for one in row], shrink=0.6, label="relative entropy")
    if images:
        axes[0][0].set_title("image", fontsize=8)
    return figure


def _truth(image: SegmentedImage, n_labels: int) -> Any:
    if image.pixel_labels is None:
        return np.ones(image.image.shape)
    return label_picture(image.image, image.pixel_labels, n_labels)


def _grid(n_rows: int, n_columns: int, room: float) -> tuple[Figure, list[list[Any]]]:
    from matplotlib.figure import Figure

    if n_rows < 1:
        raise ValueError("images is empty; a figure needs at least one")
    figure = Figure(figsize=(1.6 * n_columns, 1.15 * n_rows + room + 0.3), layout="constrained")
    axes = figure.subplots(n_rows, n_columns, squeeze=False)
    for axis in axes.flat:
        axis.set_axis_off()
    return figure, [list(row) for row in axes]


def _legend(figure: Figure, classes: Sequence[str]) -> None:
    from matplotlib.patches import Patch

    patches = [
        Patch(facecolor=colour, label=name) for name, colour in zip(classes, class_colours(len(classes)), strict=True)
    ]
    figure.legend(handles=patches, loc="outside lower center", ncols=min(len(classes), 8), fontsize=8, frameon=False)
