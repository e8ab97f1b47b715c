"""Learning that stops where held-out data say so: chains, graphs and grids."""

import numpy as np
import pytest

from bactrian import GraphCRF, GridCRF, LinearChainCRF, SkipChainCRF
from bactrian.solvers.solution import ConvergenceWarning


def sequences(n, seed, noise=0.35):
    """Labels that stay, seen through words that lie now and then, with many words that say nothing."""
    rng = np.random.default_rng(seed)
    X, y = [], []
    for _ in range(n):
        labels = np.repeat(rng.integers(2, size=4), 2)
        seen = np.where(rng.random(8) < noise, 1 - labels, labels)
        X.append([[f"word=W{a}", f"n{rng.integers(60)}"] for a in seen])
        y.append([str(label) for label in labels])
    return X, y


def losses(crf, X, y):
    """Mean - log p of the labels by the public marginals."""
    place = {label: k for k, label in enumerate(crf.classes_.tolist())}
    found = [p[t, place[label]] for q, labels in zip(crf.predict_marginals(X), y, strict=True)
             for p, t, label in zip([q] * len(labels), range(len(labels)), labels, strict=True)]  # fmt: skip
    return -np.log(found).mean()


@pytest.mark.parametrize("kind", [LinearChainCRF, SkipChainCRF])
def test_the_weights_of_the_smallest_held_out_loss_are_kept(kind):
    X, y = sequences(25, 0)
    X_dev, y_dev = sequences(60, 1)
    seen = []
    options = {"prior_variance": None, "max_iterations": 300, "method": "exact"}
    options |= {"inference": "exact"} if kind is SkipChainCRF else {}
    watched = kind(**options).fit(X, y, X_dev=X_dev, y_dev=y_dev, callback=lambda at: seen.append(at.iteration))
    with pytest.warns(ConvergenceWarning):  # nothing bounds the weights
        plain = kind(**options).fit(X, y)
    kept = losses(watched, X_dev, y_dev)
    assert kept < losses(plain, X_dev, y_dev) - 0.1
    iterations, by_look = zip(*watched.held_out_scores_, strict=True)
    assert kept == pytest.approx(min(by_look), rel=1e-9)
    assert list(iterations) == list(range(5, 5 + 5 * len(iterations), 5))
    # It stopped five looks after the best.
    assert len(by_look) - int(np.argmin(by_look)) == 6
    assert seen[-1] == iterations[-1] < 300
    assert watched.solution_.status.name == "HELD_OUT"
    assert watched.solution_.converged
    assert plain.held_out_scores_ == []


def test_a_solution_that_is_best_stays_as_it_is():
    X, y = sequences(200, 2)
    X_dev, y_dev = sequences(50, 3)
    watched = LinearChainCRF(prior_variance=0.1).fit(X, y, X_dev=X_dev, y_dev=y_dev)
    plain = LinearChainCRF(prior_variance=0.1).fit(X, y)
    if watched.solution_.status.name == "HELD_OUT":
        assert min(loss for _, loss in watched.held_out_scores_) <= losses(plain, X_dev, y_dev)
    else:
        np.testing.assert_array_equal(watched.weights_, plain.weights_)
        assert watched.solution_.converged


def test_graphs_and_grids_too():
    rng = np.random.default_rng(4)
    corners = [rng.permutation([[0, 1], [1, 0]]) for _ in range(6)]
    truth = [np.repeat(np.repeat(corner, 3, 0), 3, 1) for corner in corners]
    X = [np.concatenate([t[..., None] + rng.normal(0, 1.5, (6, 6, 1)), rng.normal(0, 1, (6, 6, 40))], 2) for t in truth]
    grid = GridCRF(prior_variance=100.0, method="convex")
    grid.fit(X[:1], truth[:1], X_dev=X[1:], y_dev=truth[1:])
    kept = -np.mean([np.log(np.take_along_axis(p, t[..., None], 2)).mean()
                     for p, t in zip(grid.predict_marginals(X[1:]), truth[1:], strict=True)])  # fmt: skip
    assert kept == pytest.approx(min(loss for _, loss in grid.held_out_scores_), rel=1e-3)
    edges = [(0, 1), (1, 2)]
    graphs = [(rng.normal(size=(3, 2)), edges) for _ in range(8)]
    labels = [(x[:, 0] > 0).astype(int) for x, _ in graphs]
    unknown = [np.array([0, -1, 1]), np.array([1, 1, -1])]
    graph = GraphCRF(prior_variance=1.0).fit(graphs[:6], labels[:6], X_dev=graphs[6:], y_dev=unknown)
    assert graph.held_out_scores_
    assert np.isfinite([loss for _, loss in graph.held_out_scores_]).all()


def test_mistakes_are_told_before_any_work():
    X, y = sequences(3, 5)
    with pytest.raises(ValueError, match="y_dev must be given where X_dev is"):
        LinearChainCRF().fit(X, y, X_dev=X)
    with pytest.raises(ValueError, match="X_dev must be given where y_dev is"):
        GraphCRF().fit([], [], y_dev=[])
    with pytest.raises(ValueError, match=r"y_dev\[0\]\[1\] is 'x'; the labels are '0', '1'"):
        LinearChainCRF().fit(X, y, X_dev=[X[0]], y_dev=[[y[0][0], "x", *y[0][2:]]])
    with pytest.raises(ValueError, match="y_dev holds no known label"):
        LinearChainCRF().fit(X, y, X_dev=[X[0]], y_dev=[[None] * 8])
