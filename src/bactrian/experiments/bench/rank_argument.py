"""The paper's rank argument (end of its Section 4) as an experiment.

Maximum entropy learning with clusters-only entropy and no consistency (piecewise training) is held back by its moment
constraints alone, one row per weight over the columns (instance, cluster, state). Sharing weights merges rows and
lowers the rank; the lower it is, the further the beliefs may stray from local consistency. Here the sharing is varied
and three things are measured: the rank, how many independent constraints consistency would add to it, and by how much
the piecewise beliefs disagree.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from scipy.linalg.lapack import dpstrf

from bactrian.arrays import Floats, Ints
from bactrian.experiments.bench.learners import TellBench, quiet_learn
from bactrian.experiments.bench.random_fields import FieldSize, random_field
from bactrian.graphs.graph import ClusterGraph, grid_edges
from bactrian.graphs.loglinear import Instance, LogLinearModel, Samples
from bactrian.parallel.threads import single_threaded_blas

_GENERATIVE, _CONDITIONAL = "tables tied in groups", "inputs of a CRF"


@dataclass(frozen=True)
class RankPoint:
    """Piecewise beliefs at one amount of sharing."""

    setting: str
    seed: int
    n_weights: int
    rank: int  #: of the moment constraints
    n_columns: int  #: (instance, cluster, state) triples, the rank without any sharing
    added_rank: int  #: independent constraints that consistency adds to moments and normalisation
    violation: float  #: largest disagreement of the piecewise beliefs on a variable
    change: float  #: total variation from piecewise to consistent (camel0) beliefs, mean over clusters

    @property
    def share(self) -> float:
        """Rank as a part of the rank without sharing."""
        return self.rank / self.n_columns

    @property
    def added_share(self) -> float:
        """Constraints that consistency adds, as a part of the rank without sharing."""
        return self.added_rank / self.n_columns


def run_rank(n_seeds: int = 5, n_samples: int = 500, tell: TellBench | None = None) -> list[RankPoint]:
    """Both settings, from all weights shared to none."""
    points: list[RankPoint] = []
    for seed in range(n_seeds):
        if tell is not None:
            tell("rank", f"seed {seed}", seed, n_seeds)
        points.extend(_tied_tables(seed, n_samples))
        points.extend(_inputs(seed))
    return points


def _tied_tables(seed: int, n_samples: int) -> Iterator[RankPoint]:
    """Samples of a 4 x 4 spin grid; its 24 edges have full tables, tied at random in ever more groups."""
    rng = np.random.default_rng([seed, 1])
    field = random_field(FieldSize.parse("4x4"), False, 1.0, rng)
    X = field.sample(n_samples, rng)
    edges = grid_edges(4, 4)
    graph = ClusterGraph([2] * 16, [tuple(edge) for edge in edges.tolist()])
    order = rng.permutation(len(edges))
    for n_groups in (1, 2, 4, 8, 12, 16, 20, 24):
        groups = np.empty(len(edges), dtype=np.int64)
        groups[order] = np.arange(len(edges)) % n_groups
        tables = np.eye(4 * n_groups).reshape(n_groups, 4, 4 * n_groups)
        model = LogLinearModel(graph, [tables[group] for group in groups])
        yield _point(_GENERATIVE, seed, [model], Samples(model, X), edges, 1e4)


def _inputs(seed: int) -> Iterator[RankPoint]:
    """Sixteen labelled 2 x 3 grids; all edges share one table per input, and the inputs (noise but two) grow in number.

    Few inputs are the paper's images (84 weights for everything); more inputs than edges are its texts.
    """
    rng = np.random.default_rng([seed, 2])
    field = random_field(FieldSize.parse("2x3"), True, 1.0, rng)
    labels = field.sample(16, rng)
    edges = grid_edges(2, 3)
    graph = ClusterGraph([2] * 6, [tuple(edge) for edge in edges.tolist()])
    signal = labels[:, edges].sum(axis=2) - 1.0 + rng.normal(size=(16, len(edges)))
    noise = rng.normal(size=(16, len(edges), 126))
    inputs = np.concatenate([np.ones((16, len(edges), 1)), signal[..., None], noise], axis=2)
    for n_inputs in (1, 2, 4, 8, 16, 32, 64, 96, 128):
        models = [LogLinearModel(graph, [np.kron(np.eye(4), row[None, :n_inputs]) for row in rows]) for rows in inputs]
        data = [Instance(model, y) for model, y in zip(models, labels, strict=True)]
        yield _point(_CONDITIONAL, seed, models, data, edges, 1e3)


def _point(
    setting: str,
    seed: int,
    models: Sequence[LogLinearModel],
    data: Samples | list[Instance],
    edges: Ints,
    prior_variance: float,
) -> RankPoint:
    piecewise, consistent = (quiet_learn(data, name, prior_variance=prior_variance) for name in ("piecewise", "camel0"))
    moments = np.concatenate([f.toarray() for model in models for f in model.features if f is not None]).T
    fixed = np.concatenate([moments, _normalisation(len(models) * len(edges))])
    whole = np.concatenate([fixed, np.kron(np.eye(len(models)), _consistency(edges))])
    change = [
        0.5 * np.abs(piecewise.beliefs[m][i] - consistent.beliefs[m][i]).sum()
        for m in range(len(models))
        for i in range(len(edges))
    ]
    return RankPoint(
        setting=setting,
        seed=seed,
        n_weights=models[0].n_weights,
        rank=_rank(moments),
        n_columns=moments.shape[1],
        added_rank=_rank(whole) - _rank(fixed),
        violation=_largest_disagreement(piecewise.beliefs, edges),
        change=float(np.mean(change)),
    )


def _rank(matrix: Floats) -> int:
    """Rank by Cholesky's pivots of the smaller Gram matrix; far cheaper than singular values, and the rows are tame."""
    gram = matrix @ matrix.T if matrix.shape[0] <= matrix.shape[1] else matrix.T @ matrix
    with single_threaded_blas():
        return int(dpstrf(gram, tol=1e-8 * float(gram.diagonal().max()))[2])


def _largest_disagreement(beliefs: Sequence[Sequence[Floats]], edges: Ints) -> float:
    """Largest difference between what two edges believe of a variable they share."""
    largest = 0.0
    for instance in beliefs:
        tables = [instance[i] for i in range(len(edges))]
        for v in range(int(edges.max()) + 1):
            seen = [
                table.sum(axis=1 - axis)[1]
                for table, edge in zip(tables, edges, strict=True)
                for axis in (0, 1)
                if edge[axis] == v
            ]
            largest = max(largest, float(max(seen) - min(seen)))
    return largest


def _normalisation(n_edges: int) -> Floats:
    """Rows that sum the states of each binary edge, (n_edges, 4 n_edges)."""
    return np.repeat(np.eye(n_edges), 4, axis=1)


def _consistency(edges: Ints) -> Floats:
    """Rows that subtract the marginals of two edges on the variable they share, (n_rows, 4 n_edges)."""
    rows = []
    on_axis = np.array([[0.0, 0.0, 1.0, 1.0], [0.0, 1.0, 0.0, 1.0]])
    for v in range(int(edges.max()) + 1):
        places = [(i, axis) for i, edge in enumerate(edges) for axis in (0, 1) if edge[axis] == v]
        for (i, a), (j, b) in pairwise(places):
            row = np.zeros((len(edges), 4))
            row[i] += on_axis[a]
            row[j] -= on_axis[b]
            rows.append(row.ravel())
    return np.array(rows)


def rank_reading(points: Sequence[RankPoint]) -> list[str]:
    """What the points show, in words, a sentence or two per setting."""
    sentences = []
    for setting in dict.fromkeys(point.setting for point in points):
        own = [point for point in points if point.setting == setting]
        levels = [[p for p in own if p.share == share] for share in sorted({p.share for p in own})]
        violations = [_mean(level, "violation") for level in levels]
        peak = int(np.argmax(violations))
        low, high = levels[0], levels[-1]
        sentences.append(
            f"{setting}: at a rank of {low[0].share:.1%} of the unshared one, piecewise beliefs disagree by up to "
            f"{violations[0]:.2g} and consistency would add {_mean(low, 'added_rank'):.0f} independent constraints, "
            f"which move the beliefs by {_mean(low, 'change'):.2g} in total variation; they disagree most, by "
            f"{violations[peak]:.2g}, at {levels[peak][0].share:.1%}; at {high[0].share:.1%} they disagree by "
            f"{violations[-1]:.1g}, and consistency adds {_mean(high, 'added_rank'):.0f} constraints and moves them by "
            f"{_mean(high, 'change'):.1g}."
        )
    return sentences


def _mean(points: Sequence[RankPoint], field: str) -> float:
    return float(np.mean([getattr(point, field) for point in points]))
