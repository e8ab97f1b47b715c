"""Speed of the learners on Corel, and what moves the accuracy of Table 3.

    python benchmarks/bench_images.py --data DIR --cache CACHE                    # seconds a split, next to LBP
    python benchmarks/bench_images.py --data DIR --cache CACHE --part variants    # scores, priors, edges, inference

DIR holds corel.npz (or the folder corel with it). CACHE keeps features and node scores, which take two CPU minutes a
split the first time. Targets on two quiet cores, a split: piecewise 0.5 s, CAMEL(0) 2.5 s, CCCP to a belief error of
0.01 4 s and at most 8 times piecewise; the belief error is the largest distance of a node belief from the tight
solution. Every time is given as wall and as CPU seconds, for the same run.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

import numpy as np

from bactrian.experiments.table3.cache import ArrayCache
from bactrian.experiments.table3.classifiers import KINDS
from bactrian.experiments.table3.corel import (
    FOLDS,
    CorelImages,
    ScoredSplit,
    ScoreSettings,
    corel_folder,
    draw_splits,
    read_corel,
    score_split,
)
from bactrian.experiments.table3.learners import ROW, ROWS, Budget, Fitted, TableRow, fit, marginals
from bactrian.graphs.graph_data import GraphData

#: Tolerances on the change of beliefs, loosest first, among which the first with a small enough belief error is taken.
LOOSE = (3e-2, 1e-2, 3e-3, 1e-3, 3e-4)
BELIEF_ERROR = 0.01


def node_beliefs(fitted: Fitted) -> np.ndarray:
    """Beliefs of all nodes; they are the clusters of one variable."""
    return np.array([table for tables in fitted.solution.beliefs for table in tables if table.ndim == 1])


def loose_cccp(data: GraphData, limits: Budget, prior: float | None, tight: np.ndarray) -> tuple[Fitted, float, float]:
    """CCCP at the loosest tolerance with a small enough belief error: the run, its error and tolerance."""
    for tolerance in LOOSE:
        fitted = fit(ROW["CCCP"], data, replace(limits, tolerance=tolerance), prior_variance=prior)
        error = float(np.abs(node_beliefs(fitted) - tight).max())
        if error <= BELIEF_ERROR:
            break
    return fitted, error, tolerance


def show(name: str, fitted: Fitted, base: Fitted, note: str = "") -> None:
    solution = fitted.solution
    print(
        f"  {name:28s} {fitted.seconds:7.2f} s, {fitted.cpu_seconds:7.2f} s of CPU, "
        f"{fitted.cpu_seconds / base.cpu_seconds:6.1f} x piecewise, {len(solution.history):4d} outer, "
        f"{solution.evaluations:5d} evaluations, violation {solution.violation:.0e}, gap {solution.moment_gap:.0e}, "
        f"{solution.status.name.lower()}{note}",
        flush=True,
    )


def speed(scored: ScoredSplit, limits: Budget, prior: float | None, fold: str) -> None:
    data = scored.training_graphs(fold, has_prior=prior is not None)
    few = replace(limits, max_iterations=2, max_relinearisations=1)
    for row in ROWS:  # compile
        fit(row, scored.training_graphs(fold, edges=row.edges), few, prior_variance=1.0)
    base = fit(ROW["piecewise"], data, limits, prior_variance=prior)
    show("piecewise", base, base)
    show("CAMEL(0)", fit(ROW["CAMEL(0)"], data, limits, prior_variance=prior), base)
    tight = fit(ROW["CCCP"], data, replace(limits, tolerance=0.01 * limits.tolerance), prior_variance=prior)
    beliefs = node_beliefs(tight)
    loose, error, tolerance = loose_cccp(data, limits, prior, beliefs)
    show("CCCP to a belief error", loose, base, f", error {error:.4f} at tolerance {tolerance:g}")
    show("CCCP, tight", tight, base)
    again, converged = marginals(ROW["CCCP"], data, tight.solution, "rbp")
    apart = np.abs(again - beliefs).max(axis=1)
    print(
        f"  tight CCCP against belief propagation from nothing at its weights: largest distance {apart.max():.1e}, "
        f"{100 * np.mean(apart > 1e-3):.2f} % of nodes beyond 1e-3; it converges on {100 * converged:.0f} % of images"
    )
    for name in ("CCCP (empirical)", "CCCP, folded", "convex", "TRW", "LBP from piecewise", "LBP from zero"):
        start = base.solution.weights if ROW[name].start else None
        show(name, fit(ROW[name], data, limits, prior_variance=prior, start=start), base)


def accuracy(row: TableRow, scored: ScoredSplit, limits: Budget, prior: float | None, fold: str) -> list[float]:
    """Superpixel accuracy in test images with residual belief propagation and with matched inference."""
    options: dict[str, Any] = {"edges": row.edges, "has_prior": prior is not None}
    fitted = fit(row, scored.training_graphs(fold, **options), limits, prior_variance=prior)
    test = scored.test_graphs(fold, **options)
    found = [marginals(row, test, fitted.solution, way)[0] for way in ("rbp", "matched")]
    return [100.0 * float((one.argmax(axis=1) == test.labels).mean()) for one in found]


def variants(corel: CorelImages, settings: ScoreSettings, cache: ArrayCache, limits: Budget, n_splits: int) -> None:
    """Mean accuracy over the splits of every kind of score, in-fold and out-of-fold, with priors and edge features."""
    splits = draw_splits(len(corel.images))[:n_splits]
    for kind in KINDS:
        scored = [score_split(corel, one, replace(settings, kind=kind), cache) for one in splits]
        alone = [np.concatenate([s.argmax(axis=1) for s in one.test_scores]) for one in scored]
        right = [np.mean(a == one.test_graphs().labels) for a, one in zip(alone, scored, strict=True)]
        print(f"{kind}: node scores alone {100 * np.mean(right):.1f}", flush=True)
        for fold in FOLDS:
            for name in ("CAMEL(0)", "CCCP", "convex", "convex, edge features"):
                for prior in (None, 1.0, 0.01):
                    found = [accuracy(ROW[name], s, limits, prior, fold) for s in scored]
                    rbp, matched = np.mean(found, axis=0)
                    print(f"  {fold}, {name}, prior {prior}: rbp {rbp:.1f}, matched {matched:.1f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--cache")
    parser.add_argument("--part", choices=("speed", "variants"), default="speed")
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--fold", choices=FOLDS, default="in-fold")
    parser.add_argument("--prior", type=float)
    parser.add_argument("--tolerance", type=float, default=1e-4)
    parser.add_argument("--iterations", type=int, default=2000, help="limit of one fit")
    parser.add_argument("--seconds", type=float, help="limit of one fit; figures that it stops depend on the machine")
    parser.add_argument("--threads", type=int)
    options = parser.parse_args()
    corel, cache = read_corel(corel_folder(options.data)), ArrayCache(options.cache)
    limits = Budget(
        tolerance=options.tolerance,
        max_iterations=options.iterations,
        max_seconds=options.seconds,
        n_threads=options.threads,
    )
    if options.part == "variants":
        variants(corel, ScoreSettings(), cache, limits, options.splits)
        return
    for number, split in enumerate(draw_splits(len(corel.images))[: options.splits]):
        print(f"split {number + 1}, {options.fold} scores, prior {options.prior}")
        speed(score_split(corel, split, ScoreSettings(), cache), limits, options.prior, options.fold)


if __name__ == "__main__":
    main()
