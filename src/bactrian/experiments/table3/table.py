"""Table 3 beside the paper's, for ``bactrian reproduce``: rows of text, what may be chance, and pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bactrian.arrays import Floats, Ints
from bactrian.experiments.paper_table import PaperTable, Tell, late_note, mean_and_deviation
from bactrian.experiments.table3.cache import ArrayCache
from bactrian.experiments.table3.classifiers import BoostingSettings
from bactrian.experiments.table3.corel import CLASSES, FOLDS, ScoreSettings, corel_folder, read_corel
from bactrian.experiments.table3.learners import ROWS, Budget
from bactrian.experiments.table3.pictures import class_colours, label_picture, uncertainty
from bactrian.experiments.table3.protocol import INFERENCES, NODE_ROW, Cell, Table3, Table3Settings, run_table3
from bactrian.runs.comparison import Gallery, Picture, Sheet
from bactrian.vision.superpixels import SegmentedImage, to_pixels

HEADINGS = (
    "method",
    "prior variance",
    "scores learned from",
    "node factors",
    "superpixel %, rbp",
    "superpixel %, matched",
    "against node scores, matched",
    "against CAMEL(0), matched",
    "against CAMEL(0), rbp",
    "pixel %, rbp",
    "pixel %, matched",
    "paper",
    "seconds",
    "CPU seconds",
    "choosing, s",
    "evaluations",
    "iterations",
    "outer loops",
    "violation",
    "moment gap",
    "BP converges",
    "status",
)

#: Rows of the second part: those of the paper, paths, and a convex entropy.
WEAK_ROWS = (
    "piecewise",
    "CAMEL(0)",
    "LBP from zero",
    "CCCP",
    "CCCP (empirical)",
    "CCCP, followed",
    "CCCP, steps chosen",
    "convex",
)
#: What ``--scores`` chooses. ``"own"``: scores of a superpixel's own appearance, as weak as the paper's may have been,
#: with more splits, both ways to score training images, one prior that is set beforehand, fewer rows and iterations.
PARTS = {
    "rich": Table3Settings(rows=tuple(row.name for row in ROWS if row.most_steps is None)),
    "own": Table3Settings(
        scores=ScoreSettings(context=False),
        n_splits=10,
        rows=WEAK_ROWS,
        folds=FOLDS,
        priors=(1e-2,),
        n_folds=0,
        limits=Budget(tolerance=1e-3, few=True),
    ),
}
#: Few images, weak node scores, one split: to see that everything runs.
_QUICK = Table3Settings(
    scores=ScoreSettings(
        n_superpixels=24,
        n_textons=8,
        n_colours=8,
        n_structures=8,
        boosting=(BoostingSettings(rounds=5, trees=8, least_leaf=4, n_features=20, learning_rate=0.3),),
        n_folds=2,
    ),
    n_drawn=8,
    n_train=4,
    n_splits=1,
    priors=(1.0,),
    limits=Budget(tolerance=1e-3, max_iterations=100),
)


def run(
    data: Path,
    *,
    scores: str = "rich",
    quick: bool = False,
    progress: Tell = lambda _: None,
    rows: Sequence[str] = (),
    seconds: float | None = None,
    splits: int | None = None,
    cache: Path | None = None,
) -> PaperTable:
    """Run every row, or those with the names ``rows``, on every split.

    ``scores`` is one of :data:`PARTS`. ``quick`` takes eight images and weaker node scores, to see that everything
    runs. ``seconds`` limits each fit, ``splits`` is how many splits are drawn, and ``cache`` names a folder that keeps
    features and node scores for the next time.
    """
    if scores not in PARTS:
        raise ValueError(f"scores must be among {', '.join(PARTS)}, found {scores!r}")
    settings = PARTS[scores]
    if quick:
        few = replace(_QUICK.scores, context=settings.scores.context)
        settings = replace(_QUICK, scores=few, folds=settings.folds, rows=settings.rows, n_folds=settings.n_folds)
    settings = replace(
        settings,
        rows=tuple(rows) or settings.rows,
        n_splits=settings.n_splits if splits is None else splits,
        limits=replace(settings.limits, max_seconds=seconds),
    )
    table = run_table3(read_corel(corel_folder(data)), settings, ArrayCache(cache), progress)
    notes = (
        *(("QUICK: eight images and weak node scores; the figures mean nothing",) if quick else ()),
        *late_note([_called(_key(cell)) for cell in table.cells if cell.late]),
        "superpixel: part of the superpixels, pixel: part of the pixels with the right class, in test images; paper: "
        "superpixels",
        "rbp: residual belief propagation with every learner's weights; matched: the entropy that it learned with",
        "followed: along the path of CCCP's first relinearisations, where belief propagation does not find its beliefs",
        "against node scores and CAMEL(0): points of superpixel accuracy above them (95 % of resamples of the test "
        "images, each with all its appearances: the training images of the splits stay as they are), and on how many "
        "of the splits there is a gain",
        "violation and moment gap: the worst of the splits; BP converges: part of the test images; seconds, "
        "evaluations of the objective and iterations: learning on one split; choosing: cross-validation, where a row "
        "has its own",
        worse_than_nodes(table),
        *table.choices,
        _times(table),
    )
    title = (
        f"Table 3, {scores} node scores: {settings.n_drawn} Corel images, splits: {settings.n_splits}, mean (deviation)"
    )
    return PaperTable(title, HEADINGS, tuple(table3_rows(table)), notes, (table3_gallery(table),))


def _times(table: Table3) -> str:
    learning = sum(cell.seconds for cell in table.cells if cell.row != NODE_ROW)
    choosing = sum(cell.choosing_seconds for cell in table.cells)
    return (
        f"{table.seconds:.0f} s in all: features and node scores {table.score_seconds:.0f}, choosing {choosing:.0f}, "
        f"learning {learning:.0f}, the rest for rows that others need, and prediction"
    )


def table3_rows(table: Table3) -> list[tuple[str, ...]]:
    """One row of text, in the order of :data:`HEADINGS`, for each learner with and without a prior."""
    paper = {row.name: row.paper for row in ROWS}
    rows, groups = [], _by_row(table)
    for (name, prior, fold), cells in groups.items():
        reported, camel0 = paper.get(name), groups.get((CAMEL0, prior, fold), [])
        others = (groups[NODE_ROW, False, ""], "matched"), (camel0, "matched"), (camel0, "rbp")
        rows.append(
            (
                name,
                ", ".join(f"{c.prior_variance:g}" for c in cells if c.prior_variance is not None) or "none",
                fold,
                ", ".join(dict.fromkeys(c.node_factors for c in cells)),
                *(mean_and_deviation([c.superpixel[way] for c in cells]) for way in INFERENCES),
                *(
                    "" if name == NODE_ROW or other in ([], cells) else _compared(table, cells, other, way)
                    for other, way in others
                ),
                *(mean_and_deviation([c.pixel[way] for c in cells]) for way in INFERENCES),
                "" if reported is None else f"{reported[0]:.1f} ({reported[1]:.1f})",
                *_learning(cells),
            )
        )
    return rows


#: The row that others are compared with.
CAMEL0 = "CAMEL(0)"
#: A row of the table: its name, whether it has a prior, and the scores that it was learned from.
_Key = tuple[str, bool, str]


def _key(cell: Cell) -> _Key:
    return cell.row, cell.prior_variance is not None, cell.fold


def _by_row(table: Table3) -> dict[_Key, list[Cell]]:
    """Cells of every row; of each kind of scores first those without a prior."""
    folds = ("", *table.settings.folds)
    found: dict[_Key, list[Cell]] = {}
    for cell in sorted(table.cells, key=lambda cell: (folds.index(cell.fold), cell.prior_variance is not None)):
        found.setdefault(_key(cell), []).append(cell)
    return found


def _called(key: _Key) -> str:
    name, prior, fold = key
    return f"{name} {'with' if prior else 'without'} a prior, {fold}"


def against(table: Table3, cells: Sequence[Cell], others: Sequence[Cell], inference: str = "matched") -> Difference:
    """Superpixel accuracy of a row's cells against that of another row on the same splits, both by this inference."""
    return paired_difference(
        _gained(cells, others, inference),
        [table.sizes[cell.split] for cell in cells],
        [table.test_images[cell.split] for cell in cells],
    )


def _gained(cells: Sequence[Cell], others: Sequence[Cell], inference: str) -> list[Ints]:
    other = {cell.split: cell for cell in others}
    return [cell.right[inference] - other[cell.split].right[inference] for cell in cells]


def _compared(table: Table3, cells: Sequence[Cell], others: Sequence[Cell], inference: str) -> str:
    """The difference with its interval, and on how many splits there is a gain."""
    above = sum(bool(gained.sum() > 0) for gained in _gained(cells, others, inference))
    return f"{against(table, cells, others, inference)}, {above} of {len(cells)}"


def worse_than_nodes(table: Table3) -> str:
    """Which rows of the CAMEL family are below the node scores alone, and by more than chance."""
    camel = [row.name for row in ROWS if row.is_camel]
    below, surely, groups = [], [], _by_row(table)
    for key, cells in groups.items():
        if key[0] in camel:
            difference = against(table, cells, groups[NODE_ROW, False, ""])
            below += [_called(key)] if difference.mean < 0.0 else []
            surely += [_called(key)] if difference.high < 0.0 else []
    return (
        f"CAMEL rows below the node scores, matched inference: {'; '.join(below) or 'none'}; by more than chance (95 % "
        f"of 4,000 resamples of the test images): {'; '.join(surely) or 'none'}"
    )


@dataclass(frozen=True)
class Difference:
    """Mean over the splits of a difference in accuracy, with the bounds between which 95 % of resamples lie."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{100.0 * self.mean:+.2f} ({100.0 * self.low:+.1f} to {100.0 * self.high:+.1f})"


def paired_difference(
    gained: Sequence[Ints],
    sizes: Sequence[Ints],
    images: Sequence[Ints],
    *,
    n_resamples: int = 4000,
    seed: int = 0,
) -> Difference:
    """Difference and its interval by a bootstrap over images (Efron and Tibshirani 1993, chapter 13).

    Superpixels of an image are right or wrong together, and an image may be in several splits: so whole images are
    drawn, each with all its appearances.

    Parameters
    ----------
    gained, sizes, images : lists with an array per split
        Superpixels that the one method labels rightly minus those of the other; superpixels; and the number of each
        test image.
    n_resamples, seed : int
        How often images are drawn anew, and the seed.
    """
    numbers, places = np.unique(np.concatenate(images), return_inverse=True)
    places_of = np.split(places, np.cumsum([len(part) for part in images])[:-1])
    draws = np.random.default_rng(seed).multinomial(
        len(numbers), np.full(len(numbers), 1.0 / len(numbers)), n_resamples
    )
    # The first is the sample itself.
    times = np.concatenate([np.ones((1, len(numbers)), dtype=draws.dtype), draws])
    total = np.zeros(len(times))
    for gain, size, place in zip(gained, sizes, places_of, strict=True):
        chosen = times[:, place]
        # A resample may hold no image of a split: it then says nothing of it.
        total += (chosen @ gain) / np.maximum(chosen @ size, 1)
    means = total / len(gained)
    low, high = np.quantile(means[1:], [0.025, 0.975])
    return Difference(float(means[0]), float(low), float(high))


def _choosing(cells: Sequence[Cell]) -> str:
    seconds = np.mean([cell.choosing_seconds for cell in cells])
    return f"{seconds:.1f}" if seconds else ""


def _learning(cells: Sequence[Cell]) -> tuple[str, ...]:
    """What tells how learning went; empty for a row that does not learn."""
    if all(np.isnan(cell.seconds) for cell in cells):
        return ("",) * 10
    converged = np.mean([cell.bp_converged for cell in cells])
    return (
        f"{np.mean([cell.seconds for cell in cells]):.1f}",
        f"{np.mean([cell.cpu_seconds for cell in cells]):.1f}",
        _choosing(cells),
        f"{np.mean([cell.evaluations for cell in cells]):.0f}",
        f"{np.mean([cell.iterations for cell in cells]):.0f}",
        f"{np.mean([cell.outer_loops for cell in cells]):.0f}",
        f"{max(cell.violation for cell in cells):.1e}",
        f"{max(cell.moment_gap for cell in cells):.1e}",
        f"{100.0 * converged:.0f} %",
        ", ".join(dict.fromkeys(cell.status for cell in cells)),
    )


def table3_gallery(table: Table3, n_images: int = 8) -> Gallery:
    """Segmentations and uncertainty of evenly spaced test images: matched inference, with a prior if there is one."""
    total = len(table.split.test)
    numbers = [k * total // n_images for k in range(n_images)] if n_images < total else list(range(total))
    labels, doubts = [], []
    for k in numbers:
        image = table.split.test[k]
        shown = (Picture(image.image, "the image"), Picture(_painted(image, image.pixel_labels), "the truth"))
        found = {name: marginals[k] for name, marginals in table.predictions.items()}
        labels.append((*shown, *(_segmentation(name, image, marginals) for name, marginals in found.items())))
        doubts.append((*shown, *(_doubt(name, image, marginals) for name, marginals in found.items())))
    colours = (255.0 * class_colours(len(CLASSES))).round().astype(int).tolist()
    return Gallery(
        title="Test images of the first split",
        columns=("image", "truth", *table.predictions),
        row_labels=tuple(f"test image {k + 1}" for k in numbers),
        sheets=(
            Sheet("segmentations", "The most probable class of every superpixel.", tuple(labels)),
            Sheet("uncertainty", "The entropy of every superpixel's marginal: white is certain.", tuple(doubts)),
        ),
        colours={name: (int(r), int(g), int(b)) for name, (r, g, b) in zip(CLASSES, colours, strict=True)},
    )


def _segmentation(name: str, image: SegmentedImage, marginals: Floats) -> Picture:
    labels = to_pixels(image.segments, marginals.argmax(axis=1))
    right = float(np.mean(labels == image.pixel_labels))
    return Picture(_painted(image, labels), f"{name}: {100.0 * right:.0f} % of the pixels right")


def _painted(image: SegmentedImage, labels: Ints | None) -> NDArray[np.uint8]:
    codes = np.full(image.segments.shape, -1) if labels is None else labels
    return (255.0 * label_picture(image.image, codes, len(CLASSES))).round().astype(np.uint8)


def _doubt(name: str, image: SegmentedImage, marginals: Floats) -> Picture:
    doubt = uncertainty(marginals)
    white, purple = np.array([250.0, 250.0, 247.0]), np.array([98.0, 54.0, 150.0])
    pixels = white + to_pixels(image.segments, doubt)[..., None] * (purple - white)
    return Picture(pixels.round().astype(np.uint8), f"{name}: {doubt.mean():.2f} of the largest entropy on average")
