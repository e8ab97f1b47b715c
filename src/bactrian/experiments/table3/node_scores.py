"""Node scores of training images, in-fold and out-of-fold, and of other images.

Out-of-fold scores of a training image come from classifiers that saw none of its superpixels, so they look like scores
of new images, while in-fold scores look better than they are. Folds are groups of images. The number of boosting rounds
is where the out-of-fold loss is least.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bactrian.arrays import Floats, Ints
from bactrian.experiments.paper_table import Tell
from bactrian.experiments.table3.classifiers import KINDS, BoostedClassifiers, BoostingSettings, binary_losses, kinds_of


@dataclass(frozen=True, eq=False)
class NodeScores:
    """Scores of every kind (:data:`KINDS`): lists have an array (n, n_labels) an image."""

    in_fold: dict[str, list[Floats]]  #: of the training images, by classifiers that saw them
    out_of_fold: dict[str, list[Floats]]  #: of the training images, by classifiers that did not
    other: dict[str, list[Floats]]  #: of the other images, by classifiers that saw all training images
    rounds: tuple[int, ...]  #: of each label's final classifier
    settings: BoostingSettings  #: the candidate with the least out-of-fold loss
    losses: dict[str, float]  #: out-of-fold loss of every candidate: sum of the labels' mean logistic losses
    kind_losses: dict[str, float]  #: the same of every kind of score
    accuracies: dict[str, float]  #: out-of-fold, of the label with the highest score, of every kind


def image_folds(n_images: int, n_folds: int, seed: int) -> list[Ints]:
    """Positions of the images of each fold, drawn at random."""
    if not 2 <= n_folds <= n_images:
        raise ValueError(f"n_folds must lie between 2 and the {n_images} training images, found {n_folds}")
    order = np.random.default_rng(seed).permutation(n_images)
    return [np.sort(order[f::n_folds]) for f in range(n_folds)]


def node_scores(
    features: Sequence[NDArray[Any]],
    labels: Sequence[Ints],
    others: Sequence[NDArray[Any]] = (),
    *,
    n_labels: int,
    candidates: Sequence[BoostingSettings] = (BoostingSettings(),),
    n_folds: int = 4,
    seed: int = 0,
    tell: Tell | None = None,
) -> NodeScores:
    """Boost classifiers on training images; score these, in-fold and out-of-fold, and ``others``.

    Parameters
    ----------
    features, labels : lists with an array (n, n_features) and (n,) per training image
        Labels below 0 are unknown: such superpixels are scored but not learned from.
    others : list of arrays (n, n_features)
        Images that are only scored.
    n_labels : int
        Number of labels.
    candidates : sequence of BoostingSettings
        Tried in cross-validation; that with the least out-of-fold loss is taken.
    n_folds, seed : int
        Folds of training images, and the seed of folds and classifiers.
    tell : callable, optional
        Told what is being fitted.
    """
    if len(features) != len(labels):
        raise ValueError(f"features and labels must be of the same images: found {len(features)} and {len(labels)}")
    folds = image_folds(len(features), n_folds, seed)
    sizes = [len(x) for x in features]
    stacked, truth = np.concatenate(features), np.concatenate(labels)
    fold_of = np.repeat(_fold_numbers(folds, len(features)), sizes)
    known = truth >= 0
    tried = [_cross_validated(stacked, truth, fold_of, n_labels, one, seed, tell) for one in candidates]
    best = min(tried, key=lambda one: one.loss)
    # More images bear more rounds, in proportion.
    final = np.ceil(best.rounds * n_folds / (n_folds - 1.0)).astype(np.int64)
    if tell is not None:
        tell("all training images")
    model = BoostedClassifiers(n_labels, replace(best.settings, rounds=int(final.max())), seed=seed)
    model.fit(stacked[known], truth[known], final)
    rest = model.scores(np.concatenate(others)) if others else {kind: np.zeros((0, n_labels)) for kind in KINDS}
    out = best.scores
    return NodeScores(
        in_fold={kind: _split(scores, sizes) for kind, scores in model.scores(stacked).items()},
        out_of_fold={kind: _split(scores, sizes) for kind, scores in out.items()},
        other={kind: _split(scores, [len(x) for x in others]) for kind, scores in rest.items()},
        rounds=tuple(int(r) for r in final),
        settings=best.settings,
        losses={str(one.settings): one.loss for one in tried},
        kind_losses={kind: float(binary_losses(out[kind][known], truth[known]).sum()) for kind in KINDS},
        accuracies={kind: float(np.mean(out[kind][known].argmax(axis=1) == truth[known])) for kind in KINDS},
    )


@dataclass(frozen=True, eq=False)
class _Tried:
    settings: BoostingSettings
    rounds: Ints
    loss: float
    scores: dict[str, Floats]


def _cross_validated(
    features: NDArray[Any],
    labels: Ints,
    fold_of: Ints,
    n_labels: int,
    settings: BoostingSettings,
    seed: int,
    tell: Tell | None,
) -> _Tried:
    """Out-of-fold scores at the best number of rounds of each label."""
    n_folds = int(fold_of.max()) + 1
    staged = np.empty((settings.rounds, len(labels), n_labels))
    linear = np.empty((len(labels), n_labels))
    known = labels >= 0
    for f in range(n_folds):
        if tell is not None:
            tell(f"fold {f + 1} of {n_folds}, {settings}")
        held = fold_of == f
        learned = ~held & known
        model = BoostedClassifiers(n_labels, settings, seed=seed).fit(features[learned], labels[learned])
        staged[:, held] = model.staged_scores(features[held])
        linear[held] = model.linear_scores(features[held])
    loss = binary_losses(staged[:, known], labels[known])
    rounds = 1 + loss.argmin(axis=0)
    boosted = np.ascontiguousarray(staged[rounds - 1, :, np.arange(n_labels)].T)
    return _Tried(settings, rounds, float(loss.min(axis=0).sum()), kinds_of(boosted, linear))


def _fold_numbers(folds: Sequence[Ints], n_images: int) -> Ints:
    numbers = np.empty(n_images, dtype=np.int64)
    for f, images in enumerate(folds):
        numbers[images] = f
    return numbers


def _split(stacked: Floats, sizes: Sequence[int]) -> list[Floats]:
    return np.split(stacked, np.cumsum(sizes)[:-1]) if len(sizes) else []
