"""Counts of what samples show: by products of matrices where most pairs have a table, one by one elsewhere."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

import bactrian as bt
from bactrian.graphs.packing import pack


@pytest.mark.parametrize("sizes", [[2, 3, 2, 4], [2] * 9, [6, 7, 5], [1, 2, 1]])
@pytest.mark.parametrize("tables", ["of all pairs", "that pairs share", "of one pair"])
def test_weighted_counts_of_samples(sizes: list[int], tables: str) -> None:
    rng = np.random.default_rng(0)
    pairs = [(1, 0), *combinations(range(len(sizes)), 2)][: 1 if tables == "of one pair" else None]
    if tables == "that pairs share":
        pairs = [pair for pair in pairs if [sizes[v] for v in pair] == [sizes[v] for v in pairs[0]]]
    clusters = [*((v,) for v in range(len(sizes))), *pairs]
    n_states = [int(np.prod([sizes[v] for v in scope])) for scope in clusters]
    features = [rng.normal(size=(n, 3)) for n in n_states]
    if tables == "that pairs share":
        features[len(sizes) :] = [features[len(sizes)]] * len(pairs)
    X = np.column_stack([rng.integers(size, size=1_700) for size in sizes])
    weights = rng.random(1_700)
    packed = pack(bt.Samples(bt.LogLinearModel(bt.ClusterGraph(sizes, clusters), features), X, weights))
    wanted = np.zeros(3)
    for scope, matrix in zip(clusters, features, strict=True):
        for row, weight in zip(X, weights, strict=True):
            place = 0
            for v in scope:
                place = place * sizes[v] + row[v]
            wanted += weight * matrix[place]
    assert packed.empirical is not None
    np.testing.assert_allclose(packed.empirical, wanted, rtol=1e-10)
