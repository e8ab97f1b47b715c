"""Images as graphs: superpixels, their adjacency, appearance features, node scores and pictures.

It needs the extra ``vision`` (scikit-image and scikit-learn); pictures need the extra ``report`` (matplotlib).
"""

from bactrian.vision.appearance import TextonVocabulary
from bactrian.vision.cache import ArrayCache
from bactrian.vision.classifiers import BoostedClassifiers, BoostingSettings
from bactrian.vision.node_scores import NodeScores, node_scores
from bactrian.vision.pictures import class_colours, label_picture, segmentation_figure, uncertainty, uncertainty_figure
from bactrian.vision.superpixel_features import SegmentedImage, segment_image, superpixel_features
from bactrian.vision.superpixels import RegionAdjacency, majority_labels, region_adjacency, superpixels, to_pixels

__all__ = [
    "ArrayCache",
    "BoostedClassifiers",
    "BoostingSettings",
    "NodeScores",
    "RegionAdjacency",
    "SegmentedImage",
    "TextonVocabulary",
    "class_colours",
    "label_picture",
    "majority_labels",
    "node_scores",
    "region_adjacency",
    "segment_image",
    "segmentation_figure",
    "superpixel_features",
    "superpixels",
    "to_pixels",
    "uncertainty",
    "uncertainty_figure",
]
