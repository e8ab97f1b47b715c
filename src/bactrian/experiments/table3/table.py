"""Table 3 of the paper on Corel images: three random splits, every learner, with and without a prior.

Nothing is chosen on test images: see :mod:`bactrian.experiments.table3.choices`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from bactrian.experiments.table3.choices import Candidate, candidates_of, choose, graph_options
from bactrian.experiments.table3.corel import FOLDS, ScoredSplit, ScoreSettings, score_split
from bactrian.experiments.table3.corel_data import CorelImages, draw_splits
from bactrian.experiments.table3.learners import ROWS, Fitted, Limits, TableRow, fit, marginals
from bactrian.graphs.graph_data import GraphData
from bactrian.vision.cache import ArrayCache
from bactrian.vision.superpixel_features import SegmentedImage
from bactrian.vision.superpixels import to_pixels

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
    folds: tuple[str, ...] = FOLDS[:1]  #: scores that may be learned from; without a prior the first
    priors: tuple[float, ...] = (1e-3, 1e-2, 1e-1)  #: variances among which cross-validation chooses
    n_folds: int = 4  #: of that cross-validation
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        known = [row.name for row in ROWS]
        for name in self.rows:
            if name not in known:
                raise ValueError(f"rows must be among {', '.join(known)}, found {name!r}")
            needed = next(row.choices_from for row in ROWS if row.name == name)
            if needed is not None and needed not in self.rows:
                raise ValueError(f"rows with {name!r} must have {needed!r}, whose choices it takes")
        if not self.folds or any(fold not in FOLDS for fold in self.folds):
            raise ValueError(f"folds must be some of {', '.join(FOLDS)}, found {self.folds}")
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
    right: dict[str, Integers] = field(repr=False)  #: superpixels of each test image with the right label
    node_factors: str = ""
    fold: str = ""
    seconds: float = np.nan
    cpu_seconds: float = np.nan
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
    test_images: tuple[Integers, ...]  #: of each split, their numbers
    sizes: tuple[Integers, ...]  #: of each split, superpixels of the test images
    split: ScoredSplit  #: the first one
    predictions: dict[str, list[Floats]]  #: matched marginals of its test images by row, with a prior if there is one


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
    sizes: list[Integers] = []
    kept: tuple[ScoredSplit, dict[str, list[Floats]]] | None = None
    for number, split in enumerate(splits):
        say(f"split {number + 1}: features and node scores")
        scored = score_split(corel, split, settings.scores, cache, _prefixed(say, f"split {number + 1}: node scores, "))
        found, chosen, predictions = _run_split(number, scored, settings, say)
        cells += found
        sizes.append(np.array([image.n_superpixels for image in scored.test]))
        choices += [f"split {number + 1}: {choice}" for choice in (*scored.choices, *chosen)]
        kept = kept or (scored, predictions)
    assert kept is not None
    tests = tuple(split.test for split in splits)
    return Table3(settings, tuple(cells), tuple(choices), perf_counter() - began, tests, tuple(sizes), *kept)


def _prefixed(say: Follow, prefix: str) -> Follow:
    return lambda text: say(prefix + text)


def _run_split(
    number: int, scored: ScoredSplit, settings: Table3Settings, say: Follow
) -> tuple[list[Cell], list[str], dict[str, list[Floats]]]:
    alone = _accuracies([score.argmax(axis=1) for score in scored.test_scores], scored.test)
    superpixel, pixel = (dict.fromkeys(INFERENCES, part) for part in alone[:2])
    cells = [Cell(NODE_ROW, number, None, superpixel, pixel, dict.fromkeys(INFERENCES, alone[2]))]
    predictions = {NODE_ROW: [_softmax(score) for score in scored.test_scores]}
    rows = [row for row in ROWS if row.name in settings.rows]
    choices: list[str] = []
    for with_prior in (False, True) if settings.priors else (False,):
        priors = settings.priors if with_prior else (None,)
        folds = settings.folds if with_prior else settings.folds[:1]
        # Four times as many weights of tables call for a prior.
        shown = [row for row in rows if with_prior or row.edges != "features"]
        ways = {row.name: candidates_of(row, priors, folds) for row in shown}
        chosen = {row.name: _choose(row, scored, settings, ways[row.name], choices, say) for row in shown}
        learned: dict[str, Floats] = {}
        for row in shown:
            candidate = chosen[row.choices_from or row.name]
            say(f"split {number + 1}: {row.name}, {candidate}")
            options = graph_options(row, candidate)
            fitted = fit(
                row,
                scored.training_graphs(candidate.fold, **options),
                settings.limits,
                prior_variance=candidate.prior_variance,
                start=learned.get(row.start or ""),
            )
            learned[row.name] = fitted.solution.weights
            test = scored.test_graphs(candidate.fold, **options)
            cell, found = _measure(row, number, candidate, fitted, test, scored.test, settings.limits.n_threads)
            cells.append(cell)
            predictions[row.name] = found
    return cells, choices, predictions


def _choose(
    row: TableRow,
    scored: ScoredSplit,
    settings: Table3Settings,
    candidates: Sequence[Candidate],
    choices: list[str],
    say: Follow,
) -> Candidate:
    if row.choices_from is not None:
        return candidates[0]  # the other row's choice is taken instead
    candidate, why = choose(
        row,
        scored,
        candidates,
        limits=settings.limits,
        n_folds=settings.n_folds,
        seed=settings.seed,
        say=say,
    )
    if len(candidates) > 1:
        kin = [other.name for other in ROWS if other.choices_from == row.name and other.name in settings.rows]
        choices.append(why + (f"; taken over by {', '.join(kin)}" if kin else ""))
    return candidate


def _measure(
    row: TableRow,
    number: int,
    candidate: Candidate,
    fitted: Fitted,
    test: GraphData,
    images: list[SegmentedImage],
    n_threads: int | None,
) -> tuple[Cell, list[Floats]]:
    superpixel, pixel, right, converged, found = {}, {}, {}, {}, np.zeros((0, 0))
    ends, solution = test.node_pointer[1:-1], fitted.solution
    for inference in INFERENCES:
        if inference == "rbp" or not row.has_bethe_entropy:
            found, converged[inference] = marginals(row, test, solution.weights, inference, n_threads)
        parts = np.split(found.argmax(axis=1), ends)
        superpixel[inference], pixel[inference], right[inference] = _accuracies(parts, images)
    cell = Cell(
        row=row.name,
        split=number,
        prior_variance=candidate.prior_variance,
        superpixel=superpixel,
        pixel=pixel,
        right=right,
        node_factors=candidate.node_factors,
        fold=candidate.fold,
        seconds=fitted.seconds,
        cpu_seconds=fitted.cpu_seconds,
        outer_loops=len(solution.history),
        violation=solution.violation,
        moment_gap=solution.moment_gap,
        bp_converged=converged["rbp"],
        status=solution.status.name.lower().replace("_", " "),
        weights=solution.weights,
    )
    return cell, np.split(found, ends)


def _accuracies(predicted: Sequence[Integers], images: Sequence[SegmentedImage]) -> tuple[float, float, Integers]:
    """Part of the superpixels and of the pixels with the right label, and the number of such superpixels by image."""
    right = np.array([np.sum(labels == image.labels) for labels, image in zip(predicted, images, strict=True)])
    pixels = [
        to_pixels(image.segments, labels) == image.pixel_labels for labels, image in zip(predicted, images, strict=True)
    ]
    return float(right.sum() / sum(len(labels) for labels in predicted)), float(np.mean(pixels)), right


def _softmax(scores: Floats) -> Floats:
    positive = np.exp(scores - scores.max(axis=1, keepdims=True))
    shares: Floats = positive / positive.sum(axis=1, keepdims=True)
    return shares
