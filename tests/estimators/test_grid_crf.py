"""GridCRF against GraphCRF on the same edges, against enumeration, and on noisy pictures."""

import itertools
import re
from pathlib import Path

import numpy as np
import pytest

import bactrian as bt
from bactrian.graphs.graph import grid_edges as four_connected
from bactrian.graphs.graph import neighbours as edges_of


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


def all_neighbours(shape, connectivity):
    """All unordered pairs of nodes next to each other, by comparing all."""
    crossings = {4: 1, 8: 2, 6: 1, 18: 2, 26: 3}[connectivity]
    found = set()
    for (i, a), (j, b) in itertools.combinations(enumerate(itertools.product(*map(range, shape))), 2):
        apart = np.abs(np.subtract(a, b))
        if apart.max() == 1 and apart.sum() <= crossings:
            found.add((i, j))
    return found


@pytest.mark.parametrize(
    ("shape", "connectivity"),
    [(shape, c) for shape in [(1, 1), (1, 4), (3, 1), (3, 4), (2, 2)] for c in (4, 8)]
    + [(shape, c) for shape in [(1, 1, 1), (2, 3, 4), (3, 1, 2), (3, 3, 3)] for c in (6, 18, 26)],
)
def test_edges_join_all_neighbours_once(shape, connectivity):
    edges, directions = edges_of(shape, connectivity)
    assert len(edges) == len(all_neighbours(shape, connectivity)) == len(directions)
    assert {tuple(sorted(e)) for e in edges.tolist()} == all_neighbours(shape, connectivity)
    steps = {}
    for (a, b), direction in zip(edges.tolist(), directions.tolist(), strict=True):
        step = tuple(np.subtract(np.unravel_index(b, shape), np.unravel_index(a, shape)).tolist())
        assert steps.setdefault(direction, step) == step
    assert len(set(steps.values())) == len(steps) <= connectivity // 2
    if connectivity == 4:
        np.testing.assert_array_equal(edges, four_connected(*shape))


@pytest.mark.parametrize("connectivity", [4, 8])
@pytest.mark.parametrize("tables", ["symmetric", "full", "potts"])
def test_a_grid_is_a_graph(tables, connectivity):
    X, y = pictures()
    grid = bt.GridCRF(tables=tables, connectivity=connectivity, method="camel0", tolerance=1e-6).fit(X, y)
    graphs = [(x.reshape(-1, 2), edges_of(x.shape[:2], connectivity)[0]) for x in X]
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
    crf = bt.GridCRF(
        tables="full", by_direction=True, method="exact", fit_intercept=False, tolerance=1e-8, prior_variance=10.0
    ).fit(X, y)
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
        ([np.zeros((2, 2, 1)), np.zeros((2, 2, 2))], [], {}, r"X\[1\]: node_features has 2 features, expected 1"),
        (
            [np.zeros((2, 3))],
            [np.zeros((3, 2), int)],
            {},
            r"y\[0\] must have one label per node: expected shape \(2, 3\)",
        ),
        ([np.full((2, 2), np.inf)], [np.zeros((2, 2), int)], {}, "NaN or infinite"),
        ([np.zeros((2, 2))], [np.zeros((2, 2), int)], {"connectivity": 5}, "connectivity must be 4 or 8"),
        ([np.zeros((2, 2))], [np.zeros((2, 2), int)], {"edge_features": "colour"}, "edge_features must be"),
        ([np.zeros((2, 2))], [np.zeros((2, 2), int)], {"connectivity": 6}, r"\(depth, height, width, n_features\)"),
        (
            [(np.zeros((2, 2)), np.ones((3, 1)))],
            [np.zeros((2, 2), int)],
            {},
            r"edge_features must have one row per edge: expected 4, found 3",
        ),
        ([np.zeros((1, 2)), (np.zeros((1, 2)), np.ones((1, 1)))], [], {}, r"X\[1\] has edge_features, expected no"),
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


def outlines(n=4, seed=0, noise=0.5):
    """Two labels of alike features; only the outline between them, a step of the second feature, tells them apart."""
    rng = np.random.default_rng(seed)
    X, y = [], []
    for _ in range(n):
        truth = np.zeros((12, 12), dtype=int)
        a, b = rng.integers(2, 6, 2)
        truth[a : a + 5, b : b + 5] = 1
        shade = np.where(truth, 1.0, 0.0) * rng.choice([-1.0, 1.0]) + rng.normal(0, 0.05, truth.shape)
        X.append(np.stack([truth + rng.normal(0, 1.5, truth.shape), shade], axis=2))
        y.append(truth)
    return X, y


def test_contrast_is_that_of_the_formula_and_finds_outlines(tmp_path):
    X, y = outlines()
    crf = bt.GridCRF(tables="potts", edge_features="contrast").fit(X, y)
    edges = [edges_of(x.shape[:2], 4)[0] for x in X]
    steps = [(x.reshape(-1, 2)[e[:, 0]] - x.reshape(-1, 2)[e[:, 1]]) ** 2 for x, e in zip(X, edges, strict=True)]
    scale = np.concatenate(steps).mean(axis=0)
    np.testing.assert_allclose(crf.contrast_, scale)
    own = [(x, np.exp(-(s / scale).mean(axis=1) / 2)[:, None]) for x, s in zip(X, steps, strict=True)]
    given = bt.GridCRF(tables="potts").fit(own, y)
    np.testing.assert_allclose(given.weights_, crf.weights_)
    contrast, shared = (table[0, 0] for table in crf.weight_tables()[1][0])
    assert contrast > 0.5 > shared
    Xt, yt = outlines(seed=1)
    assert crf.score(Xt, yt) > bt.GridCRF(tables="potts").fit(X, y).score(Xt, yt) + 0.01
    crf.save(tmp_path / "contrast")
    again = bt.GridCRF.load(tmp_path / "contrast")
    np.testing.assert_array_equal(again.predict_marginals(Xt)[0], crf.predict_marginals(Xt)[0])
    with pytest.raises(ValueError, match="give one of the two"):
        crf.predict(own)


def test_volumes():
    rng = np.random.default_rng(0)
    truth = np.zeros((5, 6, 7), dtype=int)
    truth[1:4, 2:5, 2:6] = 1
    X, y = [truth + rng.normal(0, 0.8, truth.shape) for _ in range(2)], [truth] * 2
    crf = bt.GridCRF(connectivity=26, tables="potts", by_direction=True).fit(X, y)
    assert len(crf.weight_tables()[1]) == 13
    volume = bt.GridCRF(connectivity=6, method="camel0", tolerance=1e-6).fit(X, y)
    graphs = [(x.reshape(-1, 1), edges_of(x.shape, 6)[0]) for x in X]
    graph = bt.GraphCRF(method="camel0", tolerance=1e-6).fit(graphs, [t.ravel() for t in y])
    np.testing.assert_allclose(volume.weights_, graph.weights_, atol=1e-6)
    assert volume.predict(X)[0].shape == volume.decode(X)[0].shape == truth.shape
    assert volume.score(X, y) > 0.9


def test_weights_of_pixels_are_those_of_enumeration():
    """Gradient of sum over layers of weight times log p(labels of the layer's pixels), on 2 x 2 grids."""
    rng = np.random.default_rng(5)
    X = [rng.normal(size=(2, 2)) for _ in range(12)]
    y = [(x > 0).astype(int) ^ (rng.random((2, 2)) < 0.3) for x in X]
    weights = [rng.choice([0.0, 0.5, 2.0], (2, 2)) for _ in X]
    crf = bt.GridCRF(tables="potts", method="exact", fit_intercept=False, tolerance=1e-9, prior_variance=10.0).fit(
        X, y, weights
    )
    node, (table,) = crf.weight_tables()
    joint = np.array(list(itertools.product(range(2), repeat=4)))
    agreements = sum((joint[:, i] == joint[:, j]).astype(float) for i, j in ((0, 1), (2, 3), (0, 2), (1, 3)))
    gradient = np.zeros(3)
    for x, t, w in zip(X, y, weights, strict=True):
        features = np.stack([((joint == k) * x.ravel()).sum(axis=1) for k in (0, 1)] + [agreements], axis=1)
        score = features @ [*node[0], table[0, 0]]
        p = np.exp(score - np.logaddexp.reduce(score))
        below = 0.0
        for level in np.unique(w[w > 0]):
            fits = (joint == t.ravel())[:, w.ravel() >= level].all(axis=1)
            gradient += (level - below) * ((p * fits) @ features / (p * fits).sum() - p @ features)
            below = level
    np.testing.assert_allclose(gradient, np.array([*node[0], table[0, 0]]) / 10.0, atol=1e-5)


def test_weights_of_pixels_leave_out_what_is_void():
    X, y = pictures()
    void = [np.ones(t.shape) for t in y]
    wrong = [t.copy() for t in y]
    for w, t in zip(void, wrong, strict=True):
        w[0], t[0] = 0.0, 1 - t[0]
    hidden = [np.where(w > 0, t, -1) for w, t in zip(void, y, strict=True)]
    weighted, unknown = bt.GridCRF().fit(X, wrong, void), bt.GridCRF().fit(X, hidden)
    np.testing.assert_array_equal(weighted.weights_, unknown.weights_)
    np.testing.assert_array_equal(
        bt.GridCRF().fit(X, y, [np.full(t.shape, 2.0) for t in y]).weights_, bt.GridCRF().fit(X, y, [2.0] * 3).weights_
    )
    right = np.concatenate([(p == t)[w > 0] for p, t, w in zip(weighted.predict(X), y, void, strict=True)])
    np.testing.assert_allclose(weighted.score(X, y, void), right.mean())
    for bad, message in (
        ([np.ones((2, 2))] * 3, r"sample_weight\[0\] must have one weight per node"),
        ([np.random.default_rng(0).random(t.shape) for t in y], "42 different weights"),
        ([np.zeros(t.shape) for t in y], "0 everywhere"),
        (void[:2], "one number, or one array, per graph"),
    ):
        with pytest.raises(ValueError, match=message):
            bt.GridCRF().fit(X, y, bad)


def test_decode_finds_the_best_labelling():
    rng = np.random.default_rng(2)
    X = [rng.normal(size=(3, 4)) for _ in range(6)]
    y = [np.where(x > 0, "land", "sea") for x in X]
    crf = bt.GridCRF(tables="potts", prior_variance=0.5).fit(X, y)
    node, (table,) = crf.weight_tables()
    joint = np.array(list(itertools.product(range(2), repeat=12)))
    edges = edges_of((3, 4), 4)[0]
    labels, results = crf.decode(X, return_result=True)
    for x, found, result in zip(X, labels, results, strict=True):
        score = (np.stack([x.ravel(), np.ones(12)], axis=1) @ node)[np.arange(12), joint].sum(axis=1)
        score += table[joint[:, edges[:, 0]], joint[:, edges[:, 1]]].sum(axis=1)
        np.testing.assert_allclose(result.score, score.max())
        np.testing.assert_array_equal(found, crf.classes_[joint[score.argmax()]].reshape(3, 4))
    known = [np.full((3, 4), "") for _ in X]
    known[0] = np.full((3, 4), "", dtype="<U4")
    known[0][1, 1] = "land" if labels[0][1, 1] == "sea" else "sea"
    assert crf.decode(X, known)[0][1, 1] == known[0][1, 1]
    assert crf.decode([]) == []


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


@pytest.mark.parametrize("noise", [0.2, 0.05])
def test_default_learning_of_sharp_pictures_takes_no_detours(noise):
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
        X.append(colours[labels] + rng.normal(0, noise, (40, 50, 3)))
        y.append(labels)
    seen = []
    crf = bt.GridCRF(max_iterations=400).fit(X, y, callback=seen.append)
    assert crf.solution_.converged
    assert sum(record.sweeps for record in crf.solution_.history) < 40_000
    assert crf.score(X, y) > 0.97


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ({}, "use a stronger prior on the edges"),
        ({"method": "camel0", "inference": "rbp"}, "use inference='matched', method='convex', or a stronger prior"),
    ],
)
def test_advice_is_of_what_was_not_done_yet(options, advice):
    pictures = list(np.random.default_rng(2).random((2, 3, 3, 2)))
    with pytest.warns(bt.AttainmentWarning, match=f"the scores of the nodes alone 66.7 %: {advice}"):
        bt.GridCRF(**options).fit(pictures, [np.eye(3, dtype=int)] * 2)
