"""Choices made for Table 3 by cross-validation over the training images of a split, never on its test images.

A random field is fitted to part of the training images and tried on the others. These are given their out-of-fold node
scores, since that is how test images look to it, whatever scores it learns from.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import numpy as np

from bactrian.arrays import Floats, Ints
from bactrian.experiments.paper_table import LATE, Tell, status_of
from bactrian.experiments.table3.corel import ScoredSplit
from bactrian.experiments.table3.learners import Budget, TableRow, fit, marginals
from bactrian.experiments.table3.node_scores import image_folds

#: Tolerance of a fit in cross-validation by that of the table: labels change little beyond, and there are many fits.
_LOOSER = 30.0


@dataclass(frozen=True)
class Candidate:
    """What may be chosen of a row."""

    prior_variance: float | None
    node_factors: str
    fold: str = "in-fold"  #: scores of the training images that the field learns from

    def __str__(self) -> str:
        prior = "no prior" if self.prior_variance is None else f"prior variance {self.prior_variance:g}"
        return f"{self.fold} scores, {prior}, node factors {self.node_factors}"


@dataclass(frozen=True)
class Choice:
    """What was chosen for a row, and what that took."""

    candidate: Candidate
    why: str
    seconds: float = 0.0
    late: bool = False  #: whether a limit in seconds stopped a fit


def graph_options(row: TableRow, candidate: Candidate) -> dict[str, Any]:
    """Options of the graphs that a row learns from and is tried on."""
    return {
        "edges": row.edges,
        "has_prior": candidate.prior_variance is not None,
        "node_factors": candidate.node_factors,
    }


def candidates_of(row: TableRow, priors: Sequence[float | None], fold: str) -> list[Candidate]:
    """Every prior with every place of the node scores; the strongest prior first."""
    ordered = sorted(priors, key=lambda prior: np.inf if prior is None else prior)
    return [Candidate(prior, place, fold) for place, prior in itertools.product(row.node_factors, ordered)]


def choose(
    row: TableRow,
    scored: ScoredSplit,
    candidates: Sequence[Candidate],
    *,
    limits: Budget,
    n_folds: int,
    seed: int,
    say: Tell,
) -> Choice:
    """The candidate with the highest held-out accuracy under matched inference, the first of equals or of all."""
    if len(candidates) == 1 or n_folds == 0:
        return Choice(candidates[0], f"{row.name}: {candidates[0]}, set beforehand")
    began = perf_counter()
    steps = row.rough_iterations if limits.max_iterations is None else min(limits.max_iterations, row.rough_iterations)
    rough = replace(limits, tolerance=_LOOSER * limits.tolerance, max_iterations=steps)
    right, late = np.zeros((len(candidates), len(scored.train))), False
    for number, held in enumerate(image_folds(len(scored.train), n_folds, seed)):
        say(f"{row.name}: cross-validation of {len(candidates)} candidates, fold {number + 1} of {n_folds}")
        right[:, held], stopped = _right(row, scored, candidates, held, rough)
        late |= stopped
    accuracies = 100.0 * right.sum(axis=1) / sum(image.n_superpixels for image in scored.train)
    best = int(accuracies.argmax())
    compared = "; ".join(f"{one}: {accuracy:.1f} %" for one, accuracy in zip(candidates, accuracies, strict=True))
    why = f"highest accuracy, {n_folds}-fold cross-validation over the {len(scored.train)} training images ({compared})"
    return Choice(candidates[best], f"{row.name}: {candidates[best]}: {why}", perf_counter() - began, late)


def choose_steps(
    row: TableRow, scored: ScoredSplit, candidate: Candidate, *, limits: Budget, seed: int, say: Tell
) -> tuple[int, Choice]:
    """How many relinearisations, replayed, have the highest held-out accuracy in two folds: the fewest of equals."""
    assert row.most_steps is not None
    began = perf_counter()
    options = graph_options(row, candidate)
    right, late = np.zeros(row.most_steps + 1), False
    for held in image_folds(len(scored.train), 2, seed):
        say(f"{row.name}: cross-validation of up to {row.most_steps} relinearisations")
        rest = np.setdiff1d(np.arange(len(scored.train)), held)
        train = scored.training_graphs(candidate.fold, rest, **options)
        test = scored.held_out_graphs(candidate.fold, held, **options)
        prior = candidate.prior_variance
        solution = fit(row, train, limits, prior_variance=prior, steps=row.most_steps).solution
        late |= status_of(solution) == LATE
        assert solution.path is not None
        for steps in range(len(right)):
            so_far = replace(solution, path=solution.path[: steps + 1])
            found, _ = marginals(row, test, so_far, "matched", limits.n_threads)
            right[steps] += np.sum(found.argmax(axis=1) == test.labels)
    accuracies = 100.0 * right / sum(image.n_superpixels for image in scored.train)
    best = int(accuracies.argmax())
    why = (
        f"{row.name}: {best} relinearisations, {candidate}: highest accuracy, 2-fold cross-validation over the "
        f"{len(scored.train)} training images ({', '.join(f'{one:.1f}' for one in accuracies)} % from 0 on)"
    )
    return best, Choice(candidate, why, perf_counter() - began, late)


def _right(
    row: TableRow, scored: ScoredSplit, candidates: Sequence[Candidate], held: Ints, limits: Budget
) -> tuple[Floats, bool]:
    """Superpixels that each candidate labels rightly, (n_candidates, held-out images); whether a fit was stopped."""
    rest = np.setdiff1d(np.arange(len(scored.train)), held)
    right = np.zeros((len(candidates), len(held)))
    last: Candidate | None = None
    weights: Floats | None = None
    late = False
    for c, candidate in enumerate(candidates):
        options = graph_options(row, candidate)
        train = scored.training_graphs(candidate.fold, rest, **options)
        test = scored.held_out_graphs(candidate.fold, held, **options)
        # Along a path of weaker and weaker priors the last weights are a good start.
        same = last is not None and replace(last, prior_variance=candidate.prior_variance) == candidate
        start = weights if same else None
        solution = fit(row, train, limits, prior_variance=candidate.prior_variance, start=start).solution
        weights, late = solution.weights, late or status_of(solution) == LATE
        found, _ = marginals(row, test, solution, "matched", limits.n_threads)
        right[c] = np.add.reduceat(found.argmax(axis=1) == test.labels, test.node_pointer[:-1], dtype=np.float64)
        last = candidate
    return right, late
