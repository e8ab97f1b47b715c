"""Images as graphs: superpixels, their adjacency and their appearance. It needs the extra ``vision`` (scikit-image)."""

from bactrian.vision.appearance import TextonVocabulary
from bactrian.vision.superpixel_features import SegmentedImage, segment_image, superpixel_features
from bactrian.vision.superpixels import RegionAdjacency, majority_labels, region_adjacency, superpixels, to_pixels

__all__ = [
    "RegionAdjacency",
    "SegmentedImage",
    "TextonVocabulary",
    "majority_labels",
    "region_adjacency",
    "segment_image",
    "superpixel_features",
    "superpixels",
    "to_pixels",
]
