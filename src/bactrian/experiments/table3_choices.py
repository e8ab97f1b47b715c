"""Choices made for Table 3 by cross-validation over the training images of a split, never on its test images.

A random field is fitted to part of the training images and tried on the others. These are given their out-of-fold node
scores, since that is how test images look to it, whatever scores it learns from.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bactrian.experiments.corel import ScoredSplit, graphs
from bactrian.experiments.table3_learners import Limits, TableRow, fit, marginals
from bactrian.model.graph_data import GraphData
from bactrian.vision.features import SegmentedImage
from bactrian.vision.node_scores import image_folds

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Follow = Callable[[str], None]

#: Quasi-Newton steps of a run in cross-validation at most.
_ITERATIONS = 200


@dataclass(frozen=True)
class Candidate:
    """What may be chosen of a row."""

    prior_variance: float | None
    node_factors: str

    def __str__(self) -> str:
        prior = "no prior" if self.prior_variance is None else f"prior variance {self.prior_variance:g}"
        return f"{prior}, node factors {self.node_factors}"


def candidates_of(row: TableRow, priors: Sequence[float | None]) -> list[Candidate]:
    """Every prior with every place of the node scores; the strongest prior first."""
    return [Candidate(prior, place) for place, prior in itertools.product(row.node_factors, priors)]


def choose(
    row: TableRow,
    scored: ScoredSplit,
    candidates: Sequence[Candidate],
    *,
    limits: Limits,
    n_folds: int,
    seed: int,
    edge_features: bool,
    say: Follow,
) -> tuple[Candidate, str]:
    """The candidate with the highest held-out accuracy under matched inference, the first of equals; and why."""
    if len(candidates) == 1:
        return candidates[0], f"{row.name}: {candidates[0]}, set beforehand"
    right = np.zeros(len(candidates))
    # Labels change little once the tolerance is this small, and there are many runs.
    rough = replace(limits, tolerance=10.0 * limits.tolerance, max_iterations=min(limits.max_iterations, _ITERATIONS))
    for number, held in enumerate(image_folds(len(scored.train), n_folds, seed)):
        rest = np.setdiff1d(np.arange(len(scored.train)), held)
        for c, candidate in enumerate(candidates):
            say(f"{row.name}: cross-validation, fold {number + 1} of {n_folds}, {candidate}")
            options: dict[str, Any] = {"edge_features": edge_features, "node_factors": candidate.node_factors}
            train = _part(scored.train, scored.train_scores, rest, **options)
            test = _part(scored.train, scored.held_out_scores, held, **options)
            solution = fit(row, train, rough, prior_variance=candidate.prior_variance).solution
            found, _ = marginals(row, test, solution.weights, "matched", limits.n_threads)
            right[c] += float((found.argmax(axis=1) == test.labels).sum())
    accuracies = 100.0 * right / sum(image.n_superpixels for image in scored.train)
    best = int(accuracies.argmax())
    compared = "; ".join(f"{one}: {accuracy:.1f} %" for one, accuracy in zip(candidates, accuracies, strict=True))
    why = f"{n_folds}-fold cross-validation over the {len(scored.train)} training images ({compared})"
    return candidates[best], f"{row.name}: {candidates[best]}: {why}"


def _part(images: Sequence[SegmentedImage], scores: Sequence[Floats], numbers: Integers, **options: Any) -> GraphData:
    return graphs([images[i] for i in numbers], [scores[i] for i in numbers], **options)
