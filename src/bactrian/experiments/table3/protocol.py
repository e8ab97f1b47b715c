"""Table 3 of the paper on Corel images: three random splits, every learner, with and without a prior.

Nothing is chosen on test images: see :mod:`bactrian.experiments.table3.choices`.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from bactrian.arrays import Arrays, Floats, Ints
from bactrian.experiments.paper_table import LATE, Tell, iterations_of, rows_named, status_of
from bactrian.experiments.table3.cache import ArrayCache
from bactrian.experiments.table3.choices import Choice, candidates_of, choose, choose_steps, graph_options
from bactrian.experiments.table3.corel import (
    FOLDS,
    CorelImages,
    ScoredSplit,
    ScoreSettings,
    draw_splits,
    score_split,
)
from bactrian.experiments.table3.learners import ROW, ROWS, Budget, Fitted, TableRow, fit, marginals
from bactrian.vision.superpixels import SegmentedImage, to_pixels

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
    rows: tuple[str, ...] = ()  #: names; all rows without any
    folds: tuple[str, ...] = FOLDS[:1]  #: scores to learn from, one after the other
    priors: tuple[float, ...] = (1e-3, 1e-2, 1e-1)  #: variances among which cross-validation chooses
    n_folds: int = 4  #: of that cross-validation; 0: no choice, the strongest prior and node scores as clusters
    limits: Budget = field(default_factory=Budget)

    def __post_init__(self) -> None:
        rows_named(ROWS, self.rows)
        if self.n_splits < 1:
            raise ValueError(f"n_splits must be at least 1, found {self.n_splits}")
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
    right: dict[str, Ints] = field(repr=False)  #: superpixels of each test image with the right label
    node_factors: str = ""
    fold: str = ""
    seconds: float = np.nan
    cpu_seconds: float = np.nan
    choosing_seconds: float = 0.0  #: of cross-validation; none where another row's choices are taken
    evaluations: int = 0
    iterations: int = 0
    outer_loops: int = 0
    violation: float = np.nan
    moment_gap: float = np.nan
    bp_converged: float = np.nan  #: part of the test images on which belief propagation converges
    status: str = ""
    late: bool = False  #: whether a limit in seconds stopped learning, or a fit of what it was chosen or starts from


@dataclass(frozen=True, eq=False)
class Table3:
    """All cells, where every choice came from, and what pictures need."""

    settings: Table3Settings
    cells: tuple[Cell, ...]
    choices: tuple[str, ...]
    seconds: float
    score_seconds: float  #: of these, for features and node scores
    test_images: tuple[Ints, ...]  #: of each split, their numbers
    sizes: tuple[Ints, ...]  #: of each split, superpixels of the test images
    split: ScoredSplit  #: the first one
    predictions: dict[str, list[Floats]]  #: matched marginals of its test images by row, as last learned


def run_table3(corel: CorelImages, settings: Table3Settings, cache: ArrayCache, tell: Tell | None = None) -> Table3:
    """Run every row on every split."""
    began = perf_counter()
    say = tell or (lambda _: None)
    splits = draw_splits(
        len(corel.images),
        n_drawn=settings.n_drawn,
        n_train=settings.n_train,
        n_splits=settings.n_splits,
        seed=settings.seed,
    )
    cells: list[Cell] = []
    choices = [
        f"{settings.n_drawn} of {len(corel.images)} images, {settings.n_train} of them to learn from in each of "
        f"{settings.n_splits} splits: drawn with seed {settings.seed}"
    ]
    sizes: list[Ints] = []
    kept: tuple[ScoredSplit, dict[str, list[Floats]]] | None = None
    scoring = 0.0
    for number, split in enumerate(splits):
        started = perf_counter()
        say(f"split {number + 1}: features and node scores")
        scored = score_split(corel, split, settings.scores, cache, _prefixed(say, f"split {number + 1}: node scores, "))
        scoring += perf_counter() - started
        key = [corel.checksum, split.train.tolist(), split.test.tolist()]
        found, chosen, predictions = _run_split(number, scored, settings, cache, key, say)
        cells += found
        sizes.append(np.array([image.n_superpixels for image in scored.test]))
        choices += [f"split {number + 1}: {choice}" for choice in (*scored.choices, *chosen)]
        kept = kept or (scored, predictions)
    assert kept is not None
    tests = tuple(split.test for split in splits)
    seconds = perf_counter() - began
    return Table3(settings, tuple(cells), tuple(choices), seconds, scoring, tests, tuple(sizes), *kept)


def _prefixed(say: Tell, prefix: str) -> Tell:
    return lambda text: say(prefix + text)


def _run_split(
    number: int,
    scored: ScoredSplit,
    settings: Table3Settings,
    cache: ArrayCache,
    key: list[Any],
    say: Tell,
) -> tuple[list[Cell], list[str], dict[str, list[Floats]]]:
    """Cells, choices and, on the first split, marginals; what the cache has under this key is not learned again."""
    alone = _accuracies([score.argmax(axis=1) for score in scored.test_scores], scored.test)
    superpixel, pixel = (dict.fromkeys(INFERENCES, part) for part in alone[:2])
    cells = [Cell(NODE_ROW, number, None, superpixel, pixel, dict.fromkeys(INFERENCES, alone[2]))]
    predictions = {NODE_ROW: [_softmax(score) for score in scored.test_scores]}
    choices: list[str] = []
    ends = np.cumsum([len(score) for score in scored.test_scores])[:-1]
    for fold, with_prior in itertools.product(settings.folds, (False, True) if settings.priors else (False,)):
        learning = _Learning(number, scored, settings, fold, with_prior, say)
        asked = [sources(), *key, number, asdict(replace(settings, n_splits=1)), fold, with_prior]
        stored = dict(cache.get("rows", asked, learning.measured))
        said, chosen = json.loads(str(stored.pop("said")))
        cells += [
            Cell(**told, right=dict(zip(INFERENCES, r, strict=True)))
            for told, r in zip(said, stored.pop("right"), strict=True)
        ]
        choices += chosen
        predictions |= {name: np.split(found, ends) for name, found in stored.items()}
    return cells, choices, predictions


@functools.cache
def sources() -> str:
    """Checksum of the library's own code: figures of other code are not those of this."""
    digest = hashlib.sha256(version("numba").encode())
    root = Path(__file__).parents[2]
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()


class _Learning:
    """Learning on a split from some scores, with a prior or without: each row once, with those that it depends on."""

    def __init__(
        self, number: int, scored: ScoredSplit, settings: Table3Settings, fold: str, with_prior: bool, say: Tell
    ) -> None:
        self.number, self.scored, self.settings, self.say = number, scored, settings, say
        self.fold, self.with_prior = fold, with_prior
        self.choices: list[str] = []
        self._chosen: dict[str, Choice] = {}
        self._fitted: dict[str, Fitted] = {}
        self._late: dict[str, bool] = {}
        self._choosing: dict[str, float] = {}

    def choice(self, row: TableRow) -> Choice:
        """The row's prior and place of node scores, by cross-validation, or as of the row it takes them from."""
        if row.choices_from is not None:
            return self.choice(ROW[row.choices_from])
        if row.name not in self._chosen:
            settings = self.settings
            priors = settings.priors if self.with_prior else (None,)
            candidates = candidates_of(row, priors, self.fold)
            found = self._chosen[row.name] = choose(
                row,
                self.scored,
                candidates,
                limits=settings.limits,
                n_folds=settings.n_folds,
                seed=settings.seed,
                say=self.say,
            )
            if len(candidates) > 1 and settings.n_folds:
                kin = [one.name for one in rows_named(ROWS, settings.rows) if one.choices_from == row.name]
                self.choices.append(found.why + (f"; taken over by {', '.join(kin)}" if kin else ""))
        return self._chosen[row.name]

    def fitted(self, row: TableRow) -> Fitted:
        """The row's solution."""
        if row.name not in self._fitted:
            choice, start, steps = self.choice(row), None, None
            late = choice.late
            earlier = row.start or row.follows
            if earlier is not None:
                solution = self.fitted(ROW[earlier]).solution
                start = solution.weights if row.follows is None else solution
                late |= self._late[earlier]
            candidate = choice.candidate
            if row.most_steps is not None:
                limits, seed = self.settings.limits, self.settings.seed
                steps, chosen = choose_steps(row, self.scored, candidate, limits=limits, seed=seed, say=self.say)
                self.choices.append(chosen.why)
                self._choosing[row.name] = chosen.seconds
                late |= chosen.late
            self.say(f"split {self.number + 1}: {row.name}, {candidate}")
            data = self.scored.training_graphs(candidate.fold, **graph_options(row, candidate))
            prior = candidate.prior_variance
            found = fit(row, data, self.settings.limits, prior_variance=prior, start=start, steps=steps)
            self._fitted[row.name] = found
            self._late[row.name] = late or status_of(found.solution) == LATE
        return self._fitted[row.name]

    def measured(self) -> Arrays:
        """All rows as arrays: what is said of each and was chosen, superpixels that are right, and marginals."""
        told, right, found = [], [], {}
        for row in rows_named(ROWS, self.settings.rows):
            if self.with_prior or not row.needs_prior:
                cell, beliefs = self.measure(row)
                told.append({name: value for name, value in vars(cell).items() if name != "right"})
                right.append([cell.right[inference] for inference in INFERENCES])
                if self.number == 0:
                    found[row.name] = beliefs
        return {"said": np.array(json.dumps([told, self.choices])), "right": np.array(right), **found}

    def measure(self, row: TableRow) -> tuple[Cell, Floats]:
        """The row's cell, and matched marginals of the test images."""
        fitted, choice, images = self.fitted(row), self.choice(row), self.scored.test
        candidate, solution = choice.candidate, fitted.solution
        test = self.scored.test_graphs(candidate.fold, **graph_options(row, candidate))
        superpixel, pixel, right, converged, found = {}, {}, {}, {}, np.zeros((0, 0))
        ends = test.node_pointer[1:-1]
        for inference in INFERENCES:
            if inference == "rbp" or not row.has_bethe_entropy:
                threads = self.settings.limits.n_threads
                found, converged[inference] = marginals(row, test, solution, inference, threads)
            parts = np.split(found.argmax(axis=1), ends)
            superpixel[inference], pixel[inference], right[inference] = _accuracies(parts, images)
        cell = Cell(
            row=row.name,
            split=self.number,
            prior_variance=candidate.prior_variance,
            superpixel=superpixel,
            pixel=pixel,
            right=right,
            node_factors=candidate.node_factors,
            fold=candidate.fold,
            seconds=fitted.seconds,
            cpu_seconds=fitted.cpu_seconds,
            choosing_seconds=self._choosing.get(row.name, choice.seconds if row.choices_from is None else 0.0),
            evaluations=solution.evaluations,
            iterations=iterations_of(solution),
            outer_loops=len(solution.history),
            violation=solution.violation,
            moment_gap=solution.moment_gap,
            bp_converged=converged["rbp"],
            status=status_of(solution),
            late=self._late[row.name],
        )
        return cell, found


def _accuracies(predicted: Sequence[Ints], images: Sequence[SegmentedImage]) -> tuple[float, float, Ints]:
    """Part of the superpixels and of the pixels with the right label, and the number of such superpixels by image."""
    right = np.array([np.sum(labels == image.labels) for labels, image in zip(predicted, images, strict=True)])
    pixels = [
        to_pixels(image.segments, labels) == image.pixel_labels for labels, image in zip(predicted, images, strict=True)
    ]
    return float(right.sum() / sum(len(labels) for labels in predicted)), float(np.mean(pixels)), right


def _softmax(scores: Floats) -> Floats:
    positive = np.exp(scores - scores.max(axis=1, keepdims=True))
    return positive / positive.sum(axis=1, keepdims=True)
