"""Images as graphs: superpixels, their adjacency, neighbours in grids, and pictures of labels.

Superpixels need the extra ``vision`` (scikit-image), pictures the extra ``report`` (matplotlib).
``TextonVocabulary`` and ``superpixel_features`` come from the paper's Table 3 (:mod:`bactrian.experiments.table3`).
"""

from typing import Any

from bactrian.graphs.graph import neighbours
from bactrian.vision.plotting import plot_labels
from bactrian.vision.superpixels import (
    RegionAdjacency,
    SegmentedImage,
    majority_labels,
    region_adjacency,
    segment_image,
    superpixels,
    to_pixels,
)

__all__ = [
    "RegionAdjacency",
    "SegmentedImage",
    "TextonVocabulary",
    "majority_labels",
    "neighbours",
    "plot_labels",
    "region_adjacency",
    "segment_image",
    "superpixel_features",
    "superpixels",
    "to_pixels",
]


def __getattr__(name: str) -> Any:
    """Import the two names of Table 3 where they are asked for (PEP 562)."""
    if name not in ("TextonVocabulary", "superpixel_features"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module("bactrian.experiments.table3.appearance"), name)
