"""A picture restored from heavy noise by a grid CRF: the first task of ``bactrian demo``, where loops pay most.

One picture of rectangles and ellipses is to learn from, another to restore. Every learner predicts as ``GridCRF`` does
by default: with the inference that belongs to it.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from bactrian.arrays import Floats, Ints
from bactrian.estimators.grid_crf import GridCRF
from bactrian.estimators.labelled_graphs import CONVEX
from bactrian.experiments.demo import OnStep, in_turn
from bactrian.experiments.digits.task import METRICS
from bactrian.runs.comparison import Comparison, Entry, Gallery, Picture, Sheet, Training
from bactrian.solvers.solution import ConvergenceWarning

ALONE = "single pixels"
#: The learners of this task, with a line on each.
LEARNERS = {
    "convex": "the default of GridCRF: a concave entropy close to Bethe's",
    "cccp": "Bethe entropy, a sequence of convex problems that prediction repeats",
    "trw": "tree-reweighted entropy, one concave problem",
    "camel0": "edge entropies only, neighbouring edges must agree",
    "piecewise": "every edge trained as if it stood alone",
}

_SIDE, _LABELS, _SHAPES, _NOISE = 48, 3, 5, 1.0
_COLOURS = np.array([[250, 250, 247], [214, 96, 77], [67, 116, 178]], dtype=np.uint8)
_SUMMARY = (
    "A picture of 48 × 48 pixels in three colours under noise as strong as the colours themselves. What a pixel shows "
    "says little; what its neighbours show says the rest. A grid CRF learns from one other picture how much to trust "
    "them. Each learner predicts with the inference that belongs to it."
)


@dataclass(frozen=True, eq=False)
class NoisyPicture:
    """Labels (side, side), and the noisy indicators (side, side, n_labels) given to the learners."""

    truth: Ints
    noisy: Floats

    @staticmethod
    def drawn(rng: np.random.Generator) -> NoisyPicture:
        """Rectangles and ellipses of all labels but 0 on a ground of label 0."""
        truth = np.zeros((_SIDE, _SIDE), dtype=np.int64)
        y, x = np.mgrid[:_SIDE, :_SIDE]
        for shape in range(_SHAPES):
            (cy, cx), (ry, rx) = rng.uniform(0.2, 0.8, 2) * _SIDE, rng.uniform(0.1, 0.25, 2) * _SIDE
            across, along = np.abs(y - cy) / ry, np.abs(x - cx) / rx
            inside = np.maximum(across, along) < 1 if shape % 2 else across**2 + along**2 < 1
            truth[inside] = 1 + shape % (_LABELS - 1)
        return NoisyPicture(truth, np.eye(_LABELS)[truth] + rng.normal(0, _NOISE, (_SIDE, _SIDE, _LABELS)))


def run_picture(
    learners: tuple[str, ...] = tuple(LEARNERS),
    *,
    seed: int = 0,
    max_seconds: float | None = None,
    n_threads: int | None = None,
    on_step: OnStep | None = None,
) -> Comparison:
    """Train every learner on one picture, restore the other, and compare."""
    rng = np.random.default_rng(seed)
    train, test = NoisyPicture.drawn(rng), NoisyPicture.drawn(rng)
    truth, marginals, entries = test.truth.ravel(), {}, []

    def warm_up() -> None:
        for name in learners:
            _fitted(name, train, max_seconds=None, n_threads=n_threads, tolerance=1e-1)

    for name, trace, tell in in_turn((ALONE, *learners), on_step, warm_up):
        if name == ALONE:
            marginals[name] = _alone(train, test)
            entries.append(Entry.of(name, "logistic regression of each pixel, no edges", marginals[name], truth))
            continue
        crf = _fitted(name, train, max_seconds=max_seconds, n_threads=n_threads, callback=tell)
        marginals[name] = crf.predict_marginals([test.noisy])[0].reshape(truth.size, -1)
        training = Training.of(crf.solution_, trace)
        entries.append(Entry.of(name, LEARNERS[name], marginals[name], truth, training=training))
    return Comparison(
        title="Restoring a picture with a grid CRF",
        summary=_SUMMARY,
        metrics=METRICS,
        entries=tuple(entries),
        facts={"pixels": str(test.truth.size), "noise": f"Gaussian, standard deviation {_NOISE:g}", "seed": str(seed)},
        galleries=(_gallery(test, marginals),),
    )


def _fitted(name: str, train: NoisyPicture, callback: Any = None, **options: Any) -> GridCRF:
    method = CONVEX if name == "convex" else name
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        return GridCRF(method=method, labels=list(range(_LABELS)), **options).fit(
            [train.noisy], [train.truth], callback=callback
        )


def _alone(train: NoisyPicture, test: NoisyPicture) -> Floats:
    pixels = LogisticRegression(C=10.0).fit(train.noisy.reshape(-1, _LABELS), train.truth.ravel())
    return np.asarray(pixels.predict_proba(test.noisy.reshape(-1, _LABELS)))


def _gallery(test: NoisyPicture, marginals: dict[str, Floats]) -> Gallery:
    shown = test.noisy - test.noisy.min(axis=(0, 1))
    colours = (shown / shown.sum(axis=2, keepdims=True)) @ _COLOURS.astype(float)
    given = (Picture(_COLOURS[test.truth], "truth"), Picture(_bytes(colours), "noisy input"))
    restored, believed = [], []
    for name, table in marginals.items():
        labels = table.argmax(axis=1).reshape(test.truth.shape)
        wrong = int((labels != test.truth).sum())
        restored.append(Picture(_COLOURS[labels], f"{name}: {wrong} of {labels.size} pixels wrong"))
        mixed = (table @ _COLOURS.astype(float)).reshape(*test.truth.shape, 3)
        believed.append(Picture(_bytes(mixed), f"{name}, marginals"))
    return Gallery(
        title="The restored picture",
        columns=("truth", "noisy input", *marginals),
        row_labels=("picture",),
        sheets=(
            Sheet("restored", "The most probable colour of every pixel.", ((*given, *restored),)),
            Sheet("marginals", "Colours mixed by their probabilities.", ((*given, *believed),)),
        ),
    )


def _bytes(colours: Floats) -> NDArray[np.uint8]:
    return np.clip(colours.round(), 0, 255).astype(np.uint8)
