"""Pictures of Table 3: every method on the same test images."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bactrian.experiments.table3.corel_data import CLASSES
from bactrian.experiments.table3.table import Table3
from bactrian.vision.pictures import segmentation_figure, uncertainty_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def table3_figures(table: Table3, n_images: int = 8) -> dict[str, Figure]:
    """Segmentations and uncertainty of evenly spaced test images of the first split, by name."""
    total = len(table.split.test)
    n_images = min(n_images, total)
    if n_images < 1:
        raise ValueError(f"n_images must be at least 1, found {n_images}")
    numbers = [k * total // n_images for k in range(n_images)]
    images = [table.split.test[k] for k in numbers]
    marginals = {name: [found[k] for k in numbers] for name, found in table.predictions.items()}
    return {
        "segmentations": segmentation_figure(images, marginals, CLASSES),
        "uncertainty": uncertainty_figure(images, marginals),
    }
