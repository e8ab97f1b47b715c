"""Images as graphs: superpixels, their adjacency and their appearance, neighbours in grids, and pictures of labels.

Superpixels need the extra ``vision`` (scikit-image), pictures the extra ``report`` (matplotlib).
"""

from bactrian.graphs.graph import neighbours
from bactrian.vision.appearance import SegmentedImage, TextonVocabulary, segment_image, superpixel_features
from bactrian.vision.plotting import plot_labels
from bactrian.vision.superpixels import RegionAdjacency, majority_labels, region_adjacency, superpixels, to_pixels

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
