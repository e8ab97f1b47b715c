"""Table 3 of the paper on Corel images: three random splits, every learner, with and without a prior.

Nothing is chosen on test images. The prior of each row is chosen by cross-validation over the training images of the
split; since their node scores are out-of-fold, held-out training images look to the random field as test images do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from bactrian.experiments.corel import ScoredSplit, ScoreSettings, graphs, score_split
from bactrian.experiments.corel_data import CorelImages, draw_splits
from bactrian.experiments.table3_learners import ROWS, TableRow, fit, marginals
from bactrian.model.graph_data import GraphData
from bactrian.solvers.solution import Solution
from bactrian.vision.cache import ArrayCache
from bactrian.vision.features import SegmentedImage
from bactrian.vision.node_scores import image_folds
from bactrian.vision.regions import to_pixels

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Follow = Callable[[str], None]

NODE_ROW = "node scores alone"
INFERENCES = ("rbp", "matched")


@dataclass(frozen=True, kw_only=True)
class Table3Settings:
    """What is run."""

    scores: ScoreSettings = field(default_factory=ScoreSettings)
    n_drawn: int = 80
    n_train: int = 40
    n_splits: int = 3
    seed: int = 0
    rows: tuple[str, ...] = tuple(row.name for row in ROWS)
    priors: tuple[float, ...] = (0.1, 1.0, 10.0)  #: variances among which cross-validation chooses
    prior_folds: int = 2
    tolerance: float = 1e-4
    max_iterations: int = (
        2000  #: quasi-Newton steps of one training run; a limit in seconds would depend on the machine
    )
    max_seconds: float | None = None
    edge_features: bool = False
    n_threads: int | None = None

    def __post_init__(self) -> None:
        known = [row.name for row in ROWS]
        for name in self.rows:
            if name not in known:
                raise ValueError(f"rows must be among {', '.join(known)}, found {name!r}")
        if any(not 0.0 < prior < np.inf for prior in self.priors):
            raise ValueError(f"priors must be positive and finite, found {self.priors}")


@dataclass(frozen=True)
class Cell:
    """One row on one split, with or without a prior."""

    row: str
    split: int
    prior_variance: float | None
    superpixel: dict[str, float]  #: accuracy by inference, from 0 to 1
    pixel: dict[str, float]
    seconds: float = np.nan
    outer_loops: int = 0
    violation: float = np.nan
    moment_gap: float = np.nan
    bp_converged: float = np.nan  #: part of the test images on which belief propagation converges
    status: str = ""
    weights: Floats = field(default_factory=lambda: np.zeros(0), repr=False)


@dataclass(frozen=True, eq=False)
class Table3:
    """All cells, where every choice came from, and what pictures need."""

    settings: Table3Settings
    cells: tuple[Cell, ...]
    choices: tuple[str, ...]
    seconds: float
    split: ScoredSplit  #: the first one
    predictions: dict[str, list[Floats]]  #: matched marginals of its test images by row, without a prior


def run_table3(corel: CorelImages, settings: Table3Settings, cache: ArrayCache, follow: Follow | None = None) -> Table3:
    """Run every row on every split."""
    began = perf_counter()
    say = follow or (lambda _: None)
    splits = draw_splits(
        len(corel.images),
        n_drawn=settings.n_drawn,
        n_train=settings.n_train,
        n_splits=settings.n_splits,
        seed=settings.seed,
    )
    cells: list[Cell] = []
    choices = [
        f"{settings.n_drawn} of {len(corel.images)} images and {settings.n_splits} splits into "
        f"{settings.n_train} and {settings.n_drawn - settings.n_train}: drawn with seed {settings.seed}"
    ]
    kept: tuple[ScoredSplit, dict[str, list[Floats]]] | None = None
    for number, split in enumerate(splits):
        say(f"split {number + 1}: features and node scores")
        scored = score_split(corel, split, settings.scores, cache, _prefixed(say, f"split {number + 1}: node scores, "))
        found, chosen, predictions = _run_split(number, scored, settings, say)
        cells += found
        choices += [f"split {number + 1}: {choice}" for choice in (*scored.choices, *chosen)]
        kept = kept or (scored, predictions)
    assert kept is not None
    return Table3(settings, tuple(cells), tuple(choices), perf_counter() - began, *kept)


def _prefixed(say: Follow, prefix: str) -> Follow:
    return lambda text: say(prefix + text)


def _run_split(
    number: int, scored: ScoredSplit, settings: Table3Settings, say: Follow
) -> tuple[list[Cell], list[str], dict[str, list[Floats]]]:
    train = scored.training_graphs(edge_features=settings.edge_features)
    test = scored.test_graphs(edge_features=settings.edge_features)
    alone = _accuracies([score.argmax(axis=1) for score in scored.raw_test_scores], scored.test)
    superpixel, pixel = (dict.fromkeys(INFERENCES, part) for part in alone)
    cells = [Cell(NODE_ROW, number, None, superpixel, pixel)]
    predictions = {NODE_ROW: [_softmax(score) for score in scored.raw_test_scores]}
    choices: list[str] = []
    rows = [row for row in ROWS if row.name in settings.rows]
    priors = {row.name: _choose_prior(row, scored, settings, choices, say) for row in rows if row.prior_from is None}
    for with_prior in (False, True):
        learned: dict[str, Solution] = {}
        for row in rows:
            prior = priors.get(row.prior_from or row.name) if with_prior else None
            if with_prior and prior is None:
                continue
            say(f"split {number + 1}: {row.name}, {'no prior' if prior is None else f'prior variance {prior:g}'}")
            start = None if row.start is None or row.start not in learned else learned[row.start].weights
            solution = learned[row.name] = fit(
                row, train, prior_variance=prior, start=start, tolerance=settings.tolerance,
                max_iterations=settings.max_iterations, max_seconds=settings.max_seconds, n_threads=settings.n_threads,
            )  # fmt: skip
            cell, found = _measure(row, number, prior, solution, test, scored.test, settings)
            cells.append(cell)
            if not with_prior:
                predictions[row.name] = found
    return cells, choices, predictions


def _measure(
    row: TableRow,
    number: int,
    prior: float | None,
    solution: Solution,
    test: GraphData,
    images: list[SegmentedImage],
    settings: Table3Settings,
) -> tuple[Cell, list[Floats]]:
    superpixel, pixel, converged, found = {}, {}, {}, np.zeros((0, 0))
    ends = test.node_pointer[1:-1]
    for inference in INFERENCES:
        found, converged[inference] = marginals(row, test, solution.weights, inference, settings.n_threads)
        parts = np.split(found.argmax(axis=1), ends)
        superpixel[inference], pixel[inference] = _accuracies(parts, images)
    cell = Cell(
        row=row.name,
        split=number,
        prior_variance=prior,
        superpixel=superpixel,
        pixel=pixel,
        seconds=solution.seconds,
        outer_loops=len(solution.history),
        violation=solution.violation,
        moment_gap=solution.moment_gap,
        bp_converged=converged["rbp"],
        status=solution.status.name.lower().replace("_", " "),
        weights=solution.weights,
    )
    return cell, np.split(found, ends)


def _choose_prior(
    row: TableRow, scored: ScoredSplit, settings: Table3Settings, choices: list[str], say: Follow
) -> float | None:
    """The variance with the highest held-out accuracy inside the training images; the smallest of equals."""
    if not settings.priors:
        return None
    folds = image_folds(len(scored.train), settings.prior_folds, settings.seed)
    right = np.zeros(len(settings.priors))
    for held in folds:
        rest = np.setdiff1d(np.arange(len(scored.train)), held)
        train, test = (_part(scored, part, settings) for part in (rest, held))
        start = None
        for p, prior in enumerate(settings.priors):
            say(f"{row.name}: cross-validation, prior variance {prior:g}")
            solution = fit(
                row, train, prior_variance=prior, start=start, tolerance=10.0 * settings.tolerance,
                max_iterations=settings.max_iterations, max_seconds=settings.max_seconds, n_threads=settings.n_threads,
            )  # fmt: skip
            start = solution.weights
            found, _ = marginals(row, test, solution.weights, "matched", settings.n_threads)
            right[p] += float((found.argmax(axis=1) == test.labels).sum())
    accuracies = right / sum(image.n_superpixels for image in scored.train)
    best = int(accuracies.argmax())
    compared = ", ".join(f"{prior:g}: {100 * a:.1f} %" for prior, a in zip(settings.priors, accuracies, strict=True))
    choices.append(
        f"prior variance of {row.name} {settings.priors[best]:g}: {settings.prior_folds}-fold cross-validation over "
        f"the {len(scored.train)} training images ({compared})"
    )
    return settings.priors[best]


def _part(scored: ScoredSplit, part: Integers, settings: Table3Settings) -> GraphData:
    images, scores = ([values[i] for i in part] for values in (scored.train, scored.train_scores))
    return graphs(images, scores, edge_features=settings.edge_features)


def _accuracies(predicted: Sequence[Integers], images: Sequence[SegmentedImage]) -> tuple[float, float]:
    """Part of the superpixels and of the pixels with the right label."""
    right, pixels = [], []
    for labels, image in zip(predicted, images, strict=True):
        right.append(labels == image.labels)
        pixels.append(to_pixels(image.segments, labels) == image.pixel_labels)
    return float(np.concatenate(right).mean()), float(np.mean(pixels))


def _softmax(scores: Floats) -> Floats:
    positive = np.exp(scores - scores.max(axis=1, keepdims=True))
    shares: Floats = positive / positive.sum(axis=1, keepdims=True)
    return shares
