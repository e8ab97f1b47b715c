"""GridCRF against GraphCRF on the same edges, against enumeration, and on noisy pictures."""

import itertools
import re
from pathlib import Path

import numpy as np
import pytest

import bactrian as bt
from bactrian.estimators.grid_crf import grid_edges
from bactrian.graphs.graph import grid_edges as four_connected


def pictures(n=3, seed=0, shape=(6, 7), noise=0.8):
    """Noisy two-label pictures of rectangles; the second feature is the row, which tells up from down."""
    rng = np.random.default_rng(seed)
    X, y = [], []
    for i in range(n):
        h, w = shape[0] + i, shape[1]
        truth = np.zeros((h, w), dtype=int)
        top, left = rng.integers(0, 3, 2)
        truth[top : top + 4, left : left + 4] = 1
        X.append(np.stack([truth + rng.normal(0, noise, (h, w)), np.linspace(0, 1, h)[:, None].repeat(w, 1)], axis=2))
        y.append(truth)
    return X, y


def neighbours(h, w, connectivity):
    """All unordered pairs of nodes next to each other, by comparing all."""
    found = set()
    for (a, b), (c, d) in itertools.combinations(itertools.product(range(h), range(w)), 2):
        distance = abs(a - c) + abs(b - d) if connectivity == 4 else max(abs(a - c), abs(b - d))
        if distance == 1:
            found.add((a * w + b, c * w + d))
    return found


@pytest.mark.parametrize("connectivity", [4, 8])
@pytest.mark.parametrize("shape", [(1, 1), (1, 4), (3, 1), (3, 4), (2, 2)])
def test_edges_join_all_neighbours_once(shape, connectivity):
    edges, directions = grid_edges(*shape, connectivity)
    assert len(edges) == len(neighbours(*shape, connectivity)) == len(directions)
    assert {tuple(sorted(e)) for e in edges.tolist()} == neighbours(*shape, connectivity)
    steps = {0: (0, 1), 1: (1, 0), 2: (1, 1), 3: (1, -1)}
    for (a, b), direction in zip(edges.tolist(), directions.tolist(), strict=True):
        assert (b // shape[1] - a // shape[1], b % shape[1] - a % shape[1]) == steps[direction]
    if connectivity == 4:
        np.testing.assert_array_equal(edges, four_connected(*shape))


@pytest.mark.parametrize("connectivity", [4, 8])
@pytest.mark.parametrize("tables", ["symmetric", "full", "potts"])
def test_a_grid_is_a_graph(tables, connectivity):
    X, y = pictures()
    grid = bt.GridCRF(tables=tables, connectivity=connectivity, method="camel0", tolerance=1e-6).fit(X, y)
    graphs = [(x.reshape(-1, 2), grid_edges(*x.shape[:2], connectivity)[0]) for x in X]
    graph = bt.GraphCRF(tables=tables, method="camel0", tolerance=1e-6).fit(graphs, [t.ravel() for t in y])
    np.testing.assert_allclose(grid.weights_, graph.weights_, atol=1e-6)
    for ours, theirs, x in zip(grid.predict_marginals(X), graph.predict_marginals(graphs), X, strict=True):
        assert ours.shape == (*x.shape[:2], 2)
        np.testing.assert_allclose(ours.reshape(-1, 2), theirs, atol=1e-6)


def test_tables_by_direction_are_those_of_enumeration():
    """On a 2 x 2 grid with exact learning: gradient of the enumerated likelihood, a full table for each direction."""
    rng = np.random.default_rng(3)
    X = [rng.normal(size=(2, 2)) for _ in range(20)]
    y = [(x > 0).astype(int) ^ (rng.random((2, 2)) < 0.2) for x in X]
    crf = bt.GridCRF(tables="full", by_direction=True, method="exact", fit_intercept=False, tolerance=1e-8).fit(X, y)
    node, (right, down) = crf.weight_tables()
    joint = np.array(list(itertools.product(range(2), repeat=4)))
    counts = np.zeros((2, 2, 2))
    for x, t in zip(X, y, strict=True):
        value = (x.ravel()[:, None] @ node)[np.arange(4), joint].sum(axis=1)
        value += right[joint[:, 0], joint[:, 1]] + right[joint[:, 2], joint[:, 3]]
        value += down[joint[:, 0], joint[:, 2]] + down[joint[:, 1], joint[:, 3]]
        p = np.exp(value - np.logaddexp.reduce(value))
        for direction, pairs in enumerate((((0, 1), (2, 3)), ((0, 2), (1, 3)))):
            for i, j in pairs:
                np.add.at(counts[direction], (joint[:, i], joint[:, j]), p)
                counts[direction][t.ravel()[i], t.ravel()[j]] -= 1
    np.testing.assert_allclose(counts + np.stack([right, down]) / 10.0, 0.0, atol=1e-5)
    assert np.abs(right - down).max() > 0.05


def test_by_direction_tells_above_from_beside():
    rng = np.random.default_rng(0)
    truth = [np.repeat(np.arange(6) % 2, 5).reshape(6, 5) for _ in range(4)]  # stripes: equal along rows only
    X = [rng.normal(size=(6, 5)) for _ in truth]
    crf = bt.GridCRF(tables="potts", by_direction=True, method="cccp", max_seconds=30).fit(X, truth)
    right, down = (table[0, 0] for table in crf.weight_tables()[1])
    assert right > 0.5
    assert down < -0.5
    assert len(bt.GridCRF(connectivity=8, by_direction=True).fit(X, truth).weight_tables()[1]) == 4


def test_denoising_beats_single_pixels():
    rng = np.random.default_rng(0)
    truth = (np.add.outer(np.arange(16), np.arange(16)) // 8) % 2  # diagonal stripes
    X, y = [truth + rng.normal(0, 1.0, truth.shape) for _ in range(4)], [truth] * 4
    Xt, yt = [truth.T[::-1] + rng.normal(0, 1.0, truth.shape) for _ in range(4)], [truth.T[::-1]] * 4
    alone = bt.GraphCRF().fit([(x.reshape(-1, 1), []) for x in X], [t.ravel() for t in y])
    single = alone.score([(x.reshape(-1, 1), []) for x in Xt], [t.ravel() for t in yt])
    for method in (bt.Camel(entropy="convex"), "camel0", "cccp"):
        assert bt.GridCRF(method=method).fit(X, y).score(Xt, yt) > single + 0.1


def test_known_pixels_stay_and_inform_their_neighbours():
    X, y = pictures()
    crf = bt.GridCRF().fit(X, y)
    known = [np.full(t.shape, -1) for t in y]
    known[0][2, 2] = 1
    free, given = crf.predict_marginals(X)[0], crf.predict_marginals(X, known)[0]
    np.testing.assert_array_equal(given[2, 2], [0.0, 1.0])
    assert given[2, 3, 1] > free[2, 3, 1]
    nodes, edges = crf.predict_marginals(X, edges=True)
    np.testing.assert_allclose(edges[0].sum(axis=2)[0], nodes[0][0, 0], atol=5e-3)


def test_a_single_feature_needs_no_last_axis_and_files_keep_the_neighbourhood(tmp_path):
    X, y = pictures()
    flat = bt.GridCRF(connectivity=8).fit([x[:, :, 0] for x in X], y)
    deep = bt.GridCRF(connectivity=8).fit([x[:, :, :1] for x in X], y)
    np.testing.assert_array_equal(flat.weights_, deep.weights_)
    flat.set_params(connectivity=4)
    flat.save(tmp_path / "grid")
    loaded = bt.GridCRF.load(tmp_path / "grid")
    for ours, theirs in zip(
        deep.predict_marginals([x[:, :, 0] for x in X]), loaded.predict_marginals([x[:, :, 0] for x in X]), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    ("X", "y", "settings", "message"),
    [
        ([], [], {}, "X is empty"),
        ([np.zeros(3)], [np.zeros(3, int)], {}, r"X\[0\] must have shape"),
        ([np.zeros((0, 3))], [np.zeros((0, 3), int)], {}, r"X\[0\] must have shape"),
        ([np.zeros((2, 2, 1)), np.zeros((2, 2, 2))], [], {}, r"X\[1\] has 2 features, expected 1"),
        (
            [np.zeros((2, 3))],
            [np.zeros((3, 2), int)],
            {},
            r"y\[0\] must have one label per node: expected shape \(2, 3\)",
        ),
        ([np.full((2, 2), np.inf)], [np.zeros((2, 2), int)], {}, "NaN or infinite"),
        ([np.zeros((2, 2))], [np.zeros((2, 2), int)], {"connectivity": 6}, "connectivity must be 4 or 8"),
    ],
)
def test_bad_input_is_refused_by_name(X, y, settings, message):
    with pytest.raises(ValueError, match=message):
        bt.GridCRF(**settings).fit(X, y)


def test_no_grids_have_no_labels_and_boolean_ones_come_back():
    X, y = pictures()
    crf = bt.GridCRF().fit(X, [labels > 0 for labels in y])
    assert crf.predict([]) == crf.predict_marginals([]) == []
    assert crf.predict_marginals([], edges=True) == ([], [])
    assert [found.dtype for found in crf.predict(X)] == [np.dtype(bool)] * len(X)


@pytest.mark.slow
def test_the_tutorial_runs():
    """The cells of the tutorial, in order; it asserts itself that neighbours help."""
    pytest.importorskip("skimage")
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    text = (Path(__file__).parents[2] / "docs" / "tutorials" / "denoising.md").read_text(encoding="utf-8")
    cells = re.findall(r"^```\{code-cell\}[^\n]*\n(?::[^\n]*\n)*(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert len(cells) > 8
    names = {}
    for number, cell in enumerate(cells):
        exec(compile(cell, f"denoising.md, cell {number}", "exec"), names)
    names["plt"].close("all")
    assert (
        "moments-unattained"
        in names["crf"].set_params(inference="rbp").diagnose(names["train_X"], names["train_y"]).names
    )


def test_default_learning_of_sharp_pictures_takes_no_detours():
    """Sweeps oscillate here without damping; those that merely take long need more of them, not more damping."""
    rng = np.random.default_rng(0)
    rows, columns = np.mgrid[:40, :50]
    colours = np.array([[0.2, 0.3, 0.8], [0.8, 0.6, 0.2], [0.1, 0.7, 0.2], [0.5, 0.5, 0.5]])
    X, y = [], []
    for _ in range(2):
        labels = np.zeros((40, 50), dtype=int)
        for k in range(1, 4):
            height, width = rng.integers(10, 30), rng.integers(10, 40)
            labels[(rows - height) ** 2 + (columns - width) ** 2 < rng.integers(6, 12) ** 2] = k
        X.append(colours[labels] + rng.normal(0, 0.2, (40, 50, 3)))
        y.append(labels)
    seen = []
    crf = bt.GridCRF(max_iterations=400).fit(X, y, callback=seen.append)
    assert crf.solution_.converged
    assert sum(record.sweeps for record in crf.solution_.history) < 40_000
    assert crf.score(X, y) > 0.97
