"""Corel images made ready for learning: superpixels, features, node scores, and graphs with 56 + 28 weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bactrian.experiments.corel_data import CLASSES, CorelImages, Split
from bactrian.model.graph_data import GraphData
from bactrian.vision.appearance import appearance
from bactrian.vision.cache import ArrayCache
from bactrian.vision.classifiers import KINDS, BoostingSettings
from bactrian.vision.context import adjacency_means
from bactrian.vision.features import SegmentedImage, context_windows, segment_image, superpixel_features
from bactrian.vision.node_scores import NodeScores, node_scores, with_opinions
from bactrian.vision.superpixels import superpixels
from bactrian.vision.textons import TextonVocabulary

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Follow = Callable[[str], None]

#: Changes of the code that change features or scores raise it, so that caches do not go stale.
_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class ScoreSettings:
    """How superpixels are made, described and scored."""

    superpixels: str = "slic"
    n_superpixels: int = 300
    n_textons: int = 64
    n_colours: int = 32
    boosting: tuple[BoostingSettings, ...] = (BoostingSettings(),)
    stages: int = 1  #: 2: a second stage that sees the first one's opinions of the surroundings
    n_folds: int = 4
    kind: str = "boosted"  #: boosted, forest, blend, or "chosen": that with the least out-of-fold loss
    fold: str = "out-of-fold"  #: which scores of the training images the random field learns from
    seed: int = 0

    def __post_init__(self) -> None:
        if self.kind not in (*KINDS, "chosen"):
            raise ValueError(f"kind must be one of {', '.join(KINDS)} or chosen, found {self.kind!r}")
        if self.fold not in ("in-fold", "out-of-fold"):
            raise ValueError(f"fold must be 'in-fold' or 'out-of-fold', found {self.fold!r}")
        if self.stages not in (1, 2):
            raise ValueError(f"stages must be 1 or 2, found {self.stages}")


@dataclass(frozen=True, eq=False)
class ScoredSplit:
    """A split with node scores of all its images."""

    train: list[SegmentedImage]
    test: list[SegmentedImage]
    train_scores: list[Floats]  #: standardised by the training images' mean and deviation
    test_scores: list[Floats]  #: likewise
    raw_test_scores: list[Floats]  #: log-odds, which tell labels by themselves
    choices: tuple[str, ...]  #: what was chosen, by what, on which images

    def training_graphs(self, **options: Any) -> GraphData:
        """The training images as graphs."""
        return graphs(self.train, self.train_scores, **options)

    def test_graphs(self, **options: Any) -> GraphData:
        """The test images as graphs."""
        return graphs(self.test, self.test_scores, **options)


def graphs(
    images: Sequence[SegmentedImage], scores: Sequence[Floats], *, edge_features: bool = False, **options: Any
) -> GraphData:
    """Images as graphs: 7 node scores and a bias for each label (56 weights), a symmetric table (28 weights).

    With ``edge_features`` an edge's table is a sum of four, weighted by a constant, boundary length and two contrasts.
    """
    starts = np.cumsum([0, *(image.n_superpixels for image in images)])
    edges = np.concatenate([image.adjacency.edges + start for image, start in zip(images, starts[:-1], strict=True)])
    stacked = np.concatenate(scores)
    inputs = np.concatenate([stacked, np.ones((len(stacked), 1))], axis=1)
    labels = [image.labels for image in images]
    return GraphData(
        inputs,
        edges,
        n_labels=len(CLASSES),
        labels=None if any(one is None for one in labels) else np.concatenate([x for x in labels if x is not None]),
        tables="symmetric",
        edge_inputs=np.concatenate([edge_inputs(image) for image in images]) if edge_features else None,
        node_counts=np.diff(starts),
        **options,
    )


def edge_inputs(image: SegmentedImage) -> Floats:
    """A constant, the logarithm of the boundary's length, and likeness along it and of the mean colours."""
    around = image.adjacency
    columns = (
        np.ones(len(around.edges)),
        np.log(np.maximum(around.boundary_length, 1.0) / 10.0),
        np.exp(-around.contrast / 5.0),
        np.exp(-around.mean_contrast / 10.0),
    )
    return np.stack(columns, axis=1)


def segment_all(
    corel: CorelImages, numbers: Integers, settings: ScoreSettings, cache: ArrayCache
) -> list[SegmentedImage]:
    """Superpixels of the images with these numbers."""

    def make() -> dict[str, NDArray[Any]]:
        options: dict[str, Any] = {
            "method": settings.superpixels,
            "n_superpixels": settings.n_superpixels,
            "seed": settings.seed,
        }
        return {"segments": np.stack([superpixels(corel.images[i], **options) for i in numbers]).astype(np.int32)}

    key = [_VERSION, corel.checksum, numbers.tolist(), settings.superpixels, settings.n_superpixels, settings.seed]
    segments = cache.get("superpixels", key, make)["segments"]
    return [
        segment_image(corel.images[i], corel.labels[i], n_labels=len(CLASSES), segments=found)
        for i, found in zip(numbers, segments, strict=True)
    ]


def score_split(
    corel: CorelImages,
    split: Split,
    settings: ScoreSettings,
    cache: ArrayCache,
    follow: Follow | None = None,
) -> ScoredSplit:
    """Superpixels, features and node scores of one split; nothing is learned or chosen from its test images."""
    train, test = (segment_all(corel, numbers, settings, cache) for numbers in (split.train, split.test))

    def make() -> dict[str, NDArray[Any]]:
        stage = _make_scores(train, test, settings, follow)
        arrays: dict[str, NDArray[Any]] = {}
        for kind in KINDS:
            arrays[f"in-fold {kind}"] = np.concatenate(stage.in_fold[kind])
            arrays[f"out-of-fold {kind}"] = np.concatenate(stage.out_of_fold[kind])
            arrays[f"other {kind}"] = np.concatenate(stage.other[kind])
        arrays["losses"] = np.array([stage.kind_losses[kind] for kind in KINDS])
        arrays["accuracies"] = np.array([stage.accuracies[kind] for kind in KINDS])
        arrays["rounds"] = np.array(stage.rounds)
        arrays["settings"] = np.array(str(stage.settings))
        return arrays

    kept = {name: value for name, value in asdict(settings).items() if name not in ("kind", "fold")}
    key = [_VERSION, corel.checksum, split.train.tolist(), split.test.tolist(), kept]
    stored = cache.get("scores", key, make)
    losses = dict(zip(KINDS, stored["losses"].tolist(), strict=True))
    kind = min(losses, key=lambda one: losses[one]) if settings.kind == "chosen" else settings.kind
    learned, other = stored[f"{settings.fold} {kind}"], stored[f"other {kind}"]
    # Log-odds are mostly far below 0: without this they are all but collinear with the bias, and learning is slow.
    mean, scale = learned.mean(axis=0), np.maximum(learned.std(axis=0), 1e-6)
    return ScoredSplit(
        train=train,
        test=test,
        train_scores=_split((learned - mean) / scale, train),
        test_scores=_split((other - mean) / scale, test),
        raw_test_scores=_split(other, test),
        choices=_choices(stored, settings, kind, len(train)),
    )


def _make_scores(
    train: list[SegmentedImage], test: list[SegmentedImage], settings: ScoreSettings, follow: Follow | None
) -> NodeScores:
    vocabulary = TextonVocabulary.learn(
        [image.image for image in train],
        n_textons=settings.n_textons,
        n_colours=settings.n_colours,
        seed=settings.seed,
    )
    everything = [*train, *test]
    features = [superpixel_features(image, vocabulary) for image in everything]
    labels = [image.labels for image in train]
    options: dict[str, Any] = {
        "n_labels": len(CLASSES),
        "candidates": settings.boosting,
        "n_folds": settings.n_folds,
        "follow": follow,
    }
    scores = node_scores(features[: len(train)], labels, features[len(train) :], seed=settings.seed, **options)  # type: ignore[arg-type]
    if settings.stages == 1:
        return scores
    first = [*scores.out_of_fold["blend"], *scores.other["blend"]]
    features = [
        with_opinions(own, score, _windows(image, vocabulary))
        for own, score, image in zip(features, first, everything, strict=True)
    ]
    return node_scores(features[: len(train)], labels, features[len(train) :], seed=settings.seed + 1, **options)  # type: ignore[arg-type]


def _windows(image: SegmentedImage, vocabulary: TextonVocabulary) -> list[Floats]:
    around = image.adjacency
    own = appearance(image.image, image.segments, vocabulary)
    neighbours = adjacency_means(np.eye(image.n_superpixels), around.edges, around.boundary_length)
    return [neighbours, *context_windows(image, own).values()]


def _split(stacked: Floats, images: Sequence[SegmentedImage]) -> list[Floats]:
    return np.split(stacked, np.cumsum([image.n_superpixels for image in images])[:-1])


def _choices(stored: dict[str, NDArray[Any]], settings: ScoreSettings, kind: str, n_train: int) -> tuple[str, ...]:
    where = f"{settings.n_folds}-fold cross-validation over the {n_train} training images"
    rounds = ", ".join(str(int(r)) for r in stored["rounds"])
    compared = "; ".join(
        f"{one}: loss {loss:.3f}, accuracy {100.0 * accuracy:.1f} %"
        for one, loss, accuracy in zip(KINDS, stored["losses"], stored["accuracies"], strict=True)
    )
    source = f"least out-of-fold loss, {where}" if settings.kind == "chosen" else "set beforehand"
    return (
        f"textons and colours: k-means on the {n_train} training images",
        f"boosting rounds of the seven classifiers {rounds} ({stored['settings']}): least out-of-fold loss, {where}",
        f"kind of score {kind}: {source} ({compared})",
        f"scores that the random field learns from: {settings.fold}, set beforehand",
    )
