"""The Corel images of Table 3, 100 photographs in seven classes: splits, superpixels, node scores and graphs.

The paper's 80 images and three splits are not published; a seed draws them here. The model has 56 + 28 weights.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from bactrian.arrays import Arrays, Bools, Floats, Ints
from bactrian.experiments.paper_table import Tell
from bactrian.experiments.table3.appearance import TextonVocabulary, superpixel_features
from bactrian.experiments.table3.cache import ArrayCache, arrays_checksum
from bactrian.experiments.table3.classifiers import KINDS, BoostingSettings
from bactrian.experiments.table3.node_scores import node_scores
from bactrian.graphs.graph_data import GraphData
from bactrian.vision.superpixels import SegmentedImage, segment_image, superpixels

CLASSES = ("rhino or hippo", "polar bear", "water", "snow", "vegetation", "ground", "sky")

#: Scores of the training images that a random field may learn from.
FOLDS = ("in-fold", "out-of-fold")
#: What edges have: a table that all share, tables weighted by features; or there are none.
EDGES = ("tables", "features", "none")
#: Size as inputs of a label's own score and bias, and of the scores of others: a prior of variance v on all weights
#: is one of 100 v and v / 100 on what these do.
_OWN, _OTHER = 10.0, 0.1
#: Changes of the code that change features or scores raise it, so that caches do not go stale.
_VERSION = 2


@dataclass(frozen=True, eq=False)
class CorelImages:
    """Images and the class of every pixel."""

    images: NDArray[np.uint8]  #: (n, h, w, 3)
    labels: NDArray[np.int8]  #: (n, h, w)
    checksum: str


@dataclass(frozen=True, eq=False)
class Split:
    """Numbers of the training and test images, in order."""

    train: Ints
    test: Ints


def corel_folder(given: str | Path | None = None) -> Path:
    """The folder of ``corel.npz``: ``given``, or else the folder BACTRIAN_DATA names, or ``corel`` in it."""
    roots = [Path(given)] if given is not None else []
    if given is None and os.environ.get("BACTRIAN_DATA"):
        roots.append(Path(os.environ["BACTRIAN_DATA"]))
    for root in roots:
        for folder in (root, root / "corel"):
            if (folder / "corel.npz").is_file():
                return folder
    looked = f"{roots[0]} and {roots[0] / 'corel'} have none" if roots else "no folder was given"
    raise ValueError(f"corel.npz is needed and {looked}; name its folder, or set BACTRIAN_DATA to the folder above it")


def read_corel(folder: str | Path) -> CorelImages:
    """Read ``corel.npz``: ``images`` (n, h, w, 3) uint8 and ``labels`` (n, h, w) integers from 0 to 6."""
    path = Path(folder) / "corel.npz"
    try:
        with np.load(path, allow_pickle=False) as stored:
            images, labels = stored["images"], stored["labels"]
    except KeyError as missing:
        raise ValueError(f"{path} must hold the arrays images and labels: {missing}") from missing
    except (zipfile.BadZipFile, ValueError, EOFError) as damage:
        raise ValueError(f"{path} is not a NumPy archive of plain arrays: {damage}") from damage
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] != 3:
        raise ValueError(f"{path}: images must be uint8 of shape (n, h, w, 3), found {images.dtype} {images.shape}")
    if labels.shape != images.shape[:3] or labels.dtype.kind not in "iu":
        raise ValueError(f"{path}: labels must be integers of shape {images.shape[:3]}, found {labels.shape}")
    if labels.min() < 0 or labels.max() >= len(CLASSES):
        raise ValueError(f"{path}: labels must lie between 0 and {len(CLASSES) - 1}")
    return CorelImages(images, labels.astype(np.int8), arrays_checksum(images, labels.astype(np.int8)))


def draw_splits(
    n_images: int, *, n_drawn: int = 80, n_train: int = 40, n_splits: int = 3, seed: int = 0
) -> tuple[Split, ...]:
    """Draw ``n_drawn`` of the images once, and split them at random ``n_splits`` times."""
    if not 1 <= n_train < n_drawn <= n_images:
        raise ValueError(
            f"n_train must be at least 1 and below n_drawn, and n_drawn at most the {n_images} images, "
            f"found n_train = {n_train} and n_drawn = {n_drawn}"
        )
    rng = np.random.default_rng(seed)
    drawn = np.sort(rng.choice(n_images, n_drawn, replace=False))
    orders = [rng.permutation(n_drawn) for _ in range(n_splits)]
    return tuple(Split(np.sort(drawn[order[:n_train]]), np.sort(drawn[order[n_train:]])) for order in orders)


@dataclass(frozen=True, kw_only=True)
class ScoreSettings:
    """How superpixels are made, described and scored."""

    superpixels: str = "slic"
    n_superpixels: int = 300
    n_textons: int = 64
    n_colours: int = 32
    n_structures: int = 100
    context: bool = True  #: whether features tell of a superpixel's surroundings
    boosting: tuple[BoostingSettings, ...] = (BoostingSettings(),)
    n_folds: int = 4
    kind: str = "chosen"  #: that with the least out-of-fold loss; or boosted, linear, or blend
    seed: int = 0

    def __post_init__(self) -> None:
        if self.kind not in (*KINDS, "chosen"):
            raise ValueError(f"kind must be one of {', '.join(KINDS)} or chosen, found {self.kind!r}")


@dataclass(frozen=True, eq=False)
class ScoredSplit:
    """A split with node scores, log-odds, of all its images; lists have an array (n, n_labels) an image."""

    train: list[SegmentedImage]
    test: list[SegmentedImage]
    in_fold: list[Floats]  #: of the training images, by classifiers that saw them
    out_of_fold: list[Floats]  #: of the training images, by classifiers that did not: what test images look like
    test_scores: list[Floats]
    choices: tuple[str, ...]  #: what was chosen, by what, on which images

    def training_graphs(self, fold: str = "in-fold", images: Ints | None = None, **options: Any) -> GraphData:
        """Training images, all or those at the positions ``images``, with in-fold or out-of-fold scores."""
        return self._graphs(self.train, self._learned(fold), fold, images, **options)

    def held_out_graphs(self, fold: str, images: Ints, **options: Any) -> GraphData:
        """Training images that a field did not learn from: with out-of-fold scores, whatever it learned from."""
        return self._graphs(self.train, self.out_of_fold, fold, images, **options)

    def test_graphs(self, fold: str = "in-fold", **options: Any) -> GraphData:
        """The test images for a field that learned from in-fold or out-of-fold scores."""
        return self._graphs(self.test, self.test_scores, fold, None, **options)

    def _learned(self, fold: str) -> list[Floats]:
        if fold not in FOLDS:
            raise ValueError(f"fold must be {' or '.join(map(repr, FOLDS))}, found {fold!r}")
        return self.in_fold if fold == "in-fold" else self.out_of_fold

    def _graphs(
        self, of: list[SegmentedImage], scores: list[Floats], fold: str, images: Ints | None, **options: Any
    ) -> GraphData:
        # Log-odds are mostly far below 0: unless they are standardised, always as those that are learned from, they are
        # all but collinear with the bias, and learning is slow.
        learned = np.concatenate(self._learned(fold))
        mean, scale = learned.mean(axis=0), np.maximum(learned.std(axis=0), 1e-6)
        numbers = range(len(of)) if images is None else images
        return graphs([of[i] for i in numbers], [(scores[i] - mean) / scale for i in numbers], **options)


def graphs(
    images: Sequence[SegmentedImage],
    scores: Sequence[Floats],
    *,
    edges: str = "tables",
    has_prior: bool = True,
    **options: Any,
) -> GraphData:
    """Images as graphs: 7 node scores and a bias for each label (56 weights), a symmetric table (28 weights).

    Where the weights are to have a prior, a label's own score and its bias are inputs at ten times their size, the
    scores of other labels at a tenth: a prior of variance v on all weights is one of 100 v and v / 100 on what these
    do, and leaves the label's own score in charge. The model is the same. Without a prior sizes matter to nothing but
    speed, and all are alike.

    ``edges`` is one of :data:`EDGES`: with ``"features"`` an edge's table is a sum of four, weighted by a constant,
    boundary length and two contrasts; with ``"none"`` there are no edges.
    """
    if edges not in EDGES:
        raise ValueError(f"edges must be one of {', '.join(EDGES)}, found {edges!r}")
    starts = np.cumsum([0, *(image.n_superpixels for image in images)])
    pairs = np.concatenate([image.adjacency.edges + start for image, start in zip(images, starts[:-1], strict=True)])
    features = np.concatenate([edge_inputs(image) for image in images]) if edges == "features" else None
    n_labels = len(CLASSES)
    inputs, in_use = _node_inputs(np.concatenate(scores), has_prior)
    n_tables = 1 if features is None else features.shape[1]
    labels = [image.labels for image in images]
    return GraphData(
        inputs,
        pairs if edges != "none" else pairs[:0],
        n_labels=n_labels,
        labels=None if any(one is None for one in labels) else np.concatenate([x for x in labels if x is not None]),
        tables="symmetric",
        edge_inputs=features,
        node_counts=np.diff(starts),
        active=np.concatenate([in_use.ravel(), np.ones(n_tables * n_labels * (n_labels + 1) // 2, dtype=bool)]),
        **options,
    )


def _node_inputs(scores: Floats, has_prior: bool) -> tuple[Floats, Bools]:
    """Inputs of the nodes, and which of them (n_inputs, n_labels) a label uses."""
    n, n_labels = scores.shape
    if not has_prior:
        return np.concatenate([scores, np.ones((n, 1))], axis=1), np.ones((n_labels + 1, n_labels), dtype=bool)
    own = np.eye(n_labels, dtype=bool)
    in_use = np.concatenate([own, ~own, np.ones((1, n_labels), dtype=bool)])
    return np.concatenate([_OWN * scores, _OTHER * scores, np.full((n, 1), _OWN)], axis=1), in_use


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


def _made_by() -> list[Any]:
    """Versions of what makes superpixels and scores, as part of the cache's key."""
    return [_VERSION, version("scikit-image"), version("scikit-learn")]


def segment_all(corel: CorelImages, numbers: Ints, settings: ScoreSettings, cache: ArrayCache) -> list[SegmentedImage]:
    """Superpixels of the images with these numbers."""

    def make() -> dict[str, NDArray[Any]]:
        options: dict[str, Any] = {
            "method": settings.superpixels,
            "n_superpixels": settings.n_superpixels,
            "seed": settings.seed,
        }
        return {"segments": np.stack([superpixels(corel.images[i], **options) for i in numbers]).astype(np.int32)}

    key = [*_made_by(), corel.checksum, numbers.tolist(), settings.superpixels, settings.n_superpixels, settings.seed]
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
    tell: Tell | None = None,
) -> ScoredSplit:
    """Superpixels, features and node scores of one split; nothing is learned or chosen from its test images."""
    train, test = (segment_all(corel, numbers, settings, cache) for numbers in (split.train, split.test))
    made_from = {name: value for name, value in asdict(settings).items() if name != "kind"}
    key = [*_made_by(), corel.checksum, split.train.tolist(), split.test.tolist(), made_from]
    # Libraries with threads of their own round sums differently for each number of threads.
    with threadpool_limits(1):
        stored = cache.get("scores", key, partial(_scores, train, test, settings, tell))
    losses = dict(zip(KINDS, stored["losses"].tolist(), strict=True))
    kind = min(losses, key=lambda one: losses[one]) if settings.kind == "chosen" else settings.kind
    return ScoredSplit(
        train=train,
        test=test,
        in_fold=_split(stored[f"in-fold {kind}"], train),
        out_of_fold=_split(stored[f"out-of-fold {kind}"], train),
        test_scores=_split(stored[f"other {kind}"], test),
        choices=_choices(stored, settings, kind, len(train)),
    )


def _scores(
    train: list[SegmentedImage], test: list[SegmentedImage], settings: ScoreSettings, tell: Tell | None
) -> Arrays:
    """Node scores, and what was chosen for them, as arrays."""
    vocabulary = TextonVocabulary.learn(
        [image.image for image in train],
        n_textons=settings.n_textons,
        n_colours=settings.n_colours,
        n_structures=settings.n_structures,
        seed=settings.seed,
    )
    features = [superpixel_features(image, vocabulary, context=settings.context) for image in (*train, *test)]
    scores = node_scores(
        features[: len(train)],
        [image.labels for image in train if image.labels is not None],
        features[len(train) :],
        n_labels=len(CLASSES),
        candidates=settings.boosting,
        n_folds=settings.n_folds,
        seed=settings.seed,
        tell=tell,
    )
    arrays: Arrays = {}
    for kind in KINDS:
        arrays[f"in-fold {kind}"] = np.concatenate(scores.in_fold[kind])
        arrays[f"out-of-fold {kind}"] = np.concatenate(scores.out_of_fold[kind])
        arrays[f"other {kind}"] = np.concatenate(scores.other[kind])
    arrays["losses"] = np.array([scores.kind_losses[kind] for kind in KINDS])
    arrays["accuracies"] = np.array([scores.accuracies[kind] for kind in KINDS])
    arrays["rounds"] = np.array(scores.rounds)
    arrays["settings"] = np.array(str(scores.settings))
    return arrays


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
        f"textons, colours and structures: k-means on the {n_train} training images",
        f"boosting rounds of the seven classifiers {rounds} ({stored['settings']}): least out-of-fold loss, {where}",
        f"kind of score {kind}: {source} ({compared})",
    )
