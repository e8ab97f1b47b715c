"""The protocol of Table 3, on small synthetic photographs; and a smoke test on the real ones."""

from contextlib import contextmanager

import numpy as np
import pytest
from scipy.stats import bootstrap
from threadpoolctl import threadpool_limits

from bactrian import infer, learn
from bactrian.experiments.table3 import choices, protocol
from bactrian.experiments.table3.cache import ArrayCache, arrays_checksum
from bactrian.experiments.table3.choices import Candidate, candidates_of, choose, choose_steps
from bactrian.experiments.table3.classifiers import BoostingSettings
from bactrian.experiments.table3.corel import (
    CLASSES,
    FOLDS,
    CorelImages,
    ScoreSettings,
    corel_folder,
    draw_splits,
    graphs,
    read_corel,
    score_split,
)
from bactrian.experiments.table3.learners import ROW, ROWS, Budget, fit, marginals
from bactrian.experiments.table3.node_scores import image_folds
from bactrian.experiments.table3.protocol import NODE_ROW, Table3Settings, run_table3
from bactrian.experiments.table3.table import (
    HEADINGS,
    PARTS,
    paired_difference,
    run,
    table3_gallery,
    table3_rows,
    worse_than_nodes,
)
from bactrian.graphs.graph_data import GraphData
from bactrian.solvers.solution import Status
from bactrian.vision.superpixels import to_pixels

SMALL = ScoreSettings(
    n_superpixels=24,
    n_textons=6,
    n_colours=6,
    n_structures=6,
    boosting=(
        BoostingSettings(rounds=5, trees=8, least_leaf=4, n_features=20, learning_rate=0.3, linear_penalty=10.0),
    ),
    n_folds=2,
)
COLOURS = np.array(
    [[120, 80, 60], [240, 230, 180], [60, 90, 160], [250, 250, 255], [50, 120, 40], [170, 130, 80], [130, 190, 250]]
)


def photographs(n=8, height=32, width=48, seed=0):
    """Upper and lower halves with a patch between, in colours of their classes, with noise."""
    rng = np.random.default_rng(seed)
    labels = np.zeros((n, height, width), dtype=np.int8)
    for k in range(n):
        upper, lower, patch = rng.permutation(7)[:3]
        labels[k, : height // 2], labels[k, height // 2 :] = upper, lower
        labels[k, height // 4 : 3 * height // 4, width // 4 : width // 2] = patch
    images = np.clip(COLOURS[labels] + 25.0 * rng.standard_normal((*labels.shape, 3)), 0, 255).astype(np.uint8)
    return CorelImages(images, labels, arrays_checksum(images, labels))


def _deviation(scores):
    """Standard deviation of each score; a label that never occurs has a constant one."""
    return np.maximum(np.concatenate(scores).std(axis=0), 1e-6)


@pytest.fixture(scope="module")
def scored():
    """Four images to learn from and two to test on."""
    return score_split(photographs(6), draw_splits(6, n_drawn=6, n_train=4)[0], SMALL, ArrayCache(None))


def test_splits_part_the_same_images_again_and_again():
    splits = draw_splits(100)
    assert len(splits) == 3
    drawn = [sorted([*split.train.tolist(), *split.test.tolist()]) for split in splits]
    assert drawn[0] == drawn[1] == drawn[2]
    assert len(set(drawn[0])) == 80
    assert all(len(split.train) == 40 for split in splits)
    assert splits[0].train.tolist() != splits[1].train.tolist()
    assert [s.train.tolist() for s in draw_splits(100)] == [s.train.tolist() for s in splits]
    with pytest.raises(ValueError, match=r"found n_train = 9 and n_drawn = 8"):
        draw_splits(10, n_drawn=8, n_train=9)


def test_the_model_has_56_and_28_weights(scored):
    data = scored.training_graphs()
    assert data.scores.active.sum() == 56 + 28
    assert data.n_graphs == 4
    _, tables = data.split_weights(np.arange(float(data.n_weights)))
    assert np.array_equal(tables[0], tables[0].T)
    assert scored.training_graphs(edges="features").scores.active.sum() == 56 + 4 * 28
    assert scored.training_graphs(has_prior=False).n_weights == 56 + 28
    bare = scored.training_graphs(edges="none")
    assert len(bare.edges) == 0
    assert bare.n_weights == data.n_weights
    with pytest.raises(ValueError, match="edges must be one of tables, features, none, found 'some'"):
        scored.training_graphs(edges="some")


def test_node_weights_are_those_of_seven_scores_and_a_bias(scored):
    rng = np.random.default_rng(0)
    scores = [rng.standard_normal(one.shape) for one in scored.in_fold]
    data = graphs(scored.train, scores)
    weights = np.where(data.scores.active, 0.05 * rng.standard_normal(data.n_weights), 0.0)
    node, (table,) = data.split_weights(weights)
    inputs = np.concatenate([scores[0], np.ones((len(scores[0]), 1))], axis=1)
    # 8 x 7 weights: a label's own score and the bias are ten times as large as inputs, other labels' scores a tenth.
    plain = np.concatenate([np.where(np.eye(7, dtype=bool), 10.0 * node[:7], 0.1 * node[7:14]), 10.0 * node[14:]])
    shared = GraphData(inputs, scored.train[0].adjacency.edges, n_labels=7, tables="symmetric")
    assert shared.n_weights == 56 + 28
    first = data.n_weights - 28
    all_weights = np.concatenate([plain.ravel(), weights[first:]])
    (expected,) = infer(shared, all_weights, "bp", tolerance=1e-10)
    found = infer(data, weights, "bp", tolerance=1e-10)[0]
    # Without a prior inputs have their own size.
    same = infer(graphs(scored.train, scores, has_prior=False), all_weights, "bp", tolerance=1e-10)[0]
    np.testing.assert_allclose(same.variables, expected.variables, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found.variables, expected.variables, rtol=1e-6, atol=1e-9)
    assert np.array_equal(table, table.T)


def test_nothing_is_learned_from_the_labels_of_test_images(tmp_path):
    corel = photographs(6)
    split = draw_splits(6, n_drawn=6, n_train=4)[0]
    other = corel.labels.copy()
    other[split.test] = 0
    shuffled = CorelImages(corel.images, other, arrays_checksum(corel.images, other))
    first, second = (score_split(one, split, SMALL, ArrayCache(None)) for one in (corel, shuffled))
    for a, b in zip(first.test_scores, second.test_scores, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)
    assert first.choices == second.choices


def test_scores_are_taken_from_the_cache(tmp_path):
    corel = photographs(4)
    split = draw_splits(4, n_drawn=4, n_train=2)[0]
    told: list[str] = []
    first = score_split(corel, split, SMALL, ArrayCache(tmp_path), told.append)
    assert told
    told.clear()
    second = score_split(corel, split, SMALL, ArrayCache(tmp_path), told.append)
    assert not told
    assert all(np.array_equal(a, b) for a, b in zip(first.test_scores, second.test_scores, strict=True))


def test_the_table_has_every_row_and_says_where_choices_come_from():
    corel = photographs(6)
    names = ("node weights, no edges", "piecewise", "CAMEL(0)", "CCCP")
    settings = Table3Settings(
        scores=SMALL,
        n_drawn=6,
        n_train=4,
        n_splits=2,
        rows=names,
        priors=(0.1, 1.0),
        n_folds=2,
        limits=Budget(max_iterations=30, tolerance=1e-2),
    )
    table = run_table3(corel, settings, ArrayCache(None))
    assert {cell.row for cell in table.cells} == {NODE_ROW, *names}
    for cell in table.cells:
        for accuracy in (*cell.superpixel.values(), *cell.pixel.values()):
            assert 0.0 <= accuracy <= 1.0
        assert cell.prior_variance in (None, 0.1, 1.0)
    rows = table3_rows(table)
    assert len(rows) == 1 + 2 * len(names)
    assert all(len(row) == len(HEADINGS) for row in rows)
    cells = [c for c in table.cells if c.row == "CCCP" and c.prior_variance is None]
    mean = 100.0 * np.mean([c.superpixel["rbp"] for c in cells])
    (shown,) = [row for row in rows if row[:2] == ("CCCP", "none")]
    assert shown[4].startswith(f"{mean:.1f} (")
    assert shown[11] == "84.4 (0.6)"
    alone = 100.0 * np.mean([c.superpixel["matched"] for c in table.cells if c.row == NODE_ROW])
    matched = 100.0 * np.mean([c.superpixel["matched"] for c in cells])
    assert shown[6].startswith(f"{matched - alone:+.2f} (")
    called = "CCCP without a prior, in-fold"
    assert (called in worse_than_nodes(table).split(";")[0]) == (matched < alone)
    # On two splits: boosting rounds, kind of score, node factors of two rows without a prior, priors of all four rows.
    assert sum("cross-validation over the 4 training images" in choice for choice in table.choices) == 2 * (2 + 2 + 4)
    assert all("training images" in choice for choice in table.choices if "cross-validation" in choice)
    gallery = table3_gallery(table, n_images=2)
    assert gallery.columns == ("image", "truth", NODE_ROW, *names)
    assert [len(sheet.rows) for sheet in gallery.sheets] == [2, 2]
    right = np.mean(table.split.test[0].pixel_labels == to_pixels(
        table.split.test[0].segments, table.predictions["CCCP"][0].argmax(axis=1)))  # fmt: skip
    assert gallery.sheets[0].rows[0][-1].text == f"CCCP: {100 * right:.0f} % of the pixels right"


def test_choices_are_the_best_on_held_out_images_with_their_out_of_fold_scores(scored):
    row = next(row for row in ROWS if row.name == "piecewise")
    candidates = [one for fold in FOLDS for one in candidates_of(row, (1e-2, 1e-6), fold)]
    assert len(candidates) == 8  # two priors, two places of node scores, in-fold and out-of-fold
    assert [one.prior_variance for one in candidates[:2]] == [1e-6, 1e-2]
    limits = Budget(tolerance=1e-5, max_iterations=60)
    options = {"limits": limits, "n_folds": 2, "seed": 0, "say": lambda _: None}
    choice = choose(row, scored, candidates, **options)
    chosen, why = choice.candidate, choice.why
    assert choice.seconds > 0.0
    accuracies = []
    for one in candidates:
        learned = scored.in_fold if one.fold == "in-fold" else scored.out_of_fold
        mean, scale = np.concatenate(learned).mean(axis=0), _deviation(learned)
        seen, held_out = ([(x - mean) / scale for x in scores] for scores in (learned, scored.out_of_fold))
        right = {}
        for held in image_folds(4, 2, 0):
            rest = [k for k in range(4) if k not in held]
            train = graphs([scored.train[k] for k in rest], [seen[k] for k in rest],
                           node_factors=one.node_factors)  # fmt: skip
            crf = learn(train, "piecewise", prior_variance=one.prior_variance, tolerance=1e-5)
            for k in held:
                test = graphs([scored.train[k]], [held_out[k]], node_factors=one.node_factors)
                (found,) = infer(test, crf.weights, "convex", counting_numbers="clusters", tolerance=1e-6,
                                 max_iterations=300)  # fmt: skip
                right[k] = [int(np.argmax(m)) == y for m, y in zip(found.variables, test.labels, strict=True)]
        accuracies.append(100 * np.mean(np.concatenate([right[k] for k in range(4)])))
    assert chosen == candidates[accuracies.index(max(accuracies))]
    for one, accuracy in zip(candidates, accuracies, strict=True):
        assert f"{one}: {accuracy:.1f} %" in why
    assert choose(row, scored, candidates[:1], **options).candidate == candidates[0]
    assert choose(row, scored, candidates, **{**options, "n_folds": 0}).candidate == candidates[0]


def test_held_out_images_have_out_of_fold_scores_whatever_is_learned_from(scored):
    assert not np.allclose(scored.in_fold[0], scored.out_of_fold[0])
    for fold, learned in (("in-fold", scored.in_fold), ("out-of-fold", scored.out_of_fold)):
        mean, scale = np.concatenate(learned).mean(axis=0), _deviation(learned)
        for data, scores in (
            (scored.training_graphs(fold, np.array([2])), learned[2]),
            (scored.held_out_graphs(fold, np.array([2])), scored.out_of_fold[2]),
            (scored.test_graphs(fold), np.concatenate(scored.test_scores)),
        ):
            expected = (scores - mean) / scale
            found = data.scores.inputs.dense
            np.testing.assert_allclose(found[:, 7:14], 0.1 * expected, rtol=1e-9, atol=1e-12)
            np.testing.assert_allclose(found[:, :7], 10.0 * expected, rtol=1e-9, atol=1e-12)
            assert (found[:, 14] == 10.0).all()
    with pytest.raises(ValueError, match="fold must be 'in-fold' or 'out-of-fold', found 'both'"):
        scored.training_graphs("both")


def test_differences_are_those_of_the_accuracies_and_chance_is_that_of_whole_images():
    rng = np.random.default_rng(3)
    gained = rng.integers(-20, 25, 40)
    equal = np.full(40, 100)
    found = paired_difference([gained], [equal], [np.arange(40)])
    assert found.mean == pytest.approx(gained.mean() / 100.0)
    judge = bootstrap((gained / 100.0,), np.mean, n_resamples=20_000, method="percentile", random_state=1)
    np.testing.assert_allclose((found.low, found.high), judge.confidence_interval, atol=0.003)
    # The same images in a second split say nothing new; other images do.
    twice = paired_difference([gained, gained], [equal, equal], [np.arange(40), np.arange(40)])
    assert (twice.mean, twice.low, twice.high) == pytest.approx((found.mean, found.low, found.high))
    more = paired_difference([gained, gained], [equal, equal], [np.arange(40), np.arange(40, 80)])
    assert more.mean == pytest.approx(found.mean)
    assert (more.high - more.low) / (found.high - found.low) == pytest.approx(2.0**-0.5, rel=0.1)
    # Images count by their superpixels.
    uneven = paired_difference([np.array([1, 0])], [np.array([10, 90])], [np.array([5, 2])])
    assert uneven.mean == pytest.approx(0.01)
    assert (uneven.low, uneven.high) == pytest.approx((0.0, 0.1))


@pytest.fixture(scope="module")
def quick_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corel")
    corel = photographs(8)
    np.savez(folder / "corel.npz", images=corel.images, labels=corel.labels)
    return folder


#: One that solves a sequence of problems, one that starts from a row and takes the choices of another, both left out.
FEW = ("LBP from piecewise", "TRW")


@pytest.fixture(scope="module")
def quick_table(quick_folder):
    with cores(1):
        return run(quick_folder, quick=True, rows=FEW, cache=quick_folder / "one")


@contextmanager
def cores(number):
    """As on a machine with so many cores."""
    with pytest.MonkeyPatch.context() as patch, threadpool_limits(number):
        patch.setattr("bactrian.parallel.threads.available_cores", lambda: number)
        patch.setenv("LOKY_MAX_CPU_COUNT", str(number))
        yield


def figures(table):
    """Rows and notes without what the clock says."""
    times = {"seconds", "CPU seconds", "choosing, s"}
    kept = [k for k, name in enumerate(table.columns) if name not in times]
    assert len(table.columns) - len(kept) == len(times)
    return [[row[k] for k in kept] for row in table.rows], [note for note in table.notes if " s in all" not in note]


def test_figures_depend_neither_on_the_clock_nor_on_threads(quick_folder, quick_table, slow_clock):
    with cores(2):
        again = run(quick_folder, quick=True, rows=FEW, cache=quick_folder / "two")
    assert figures(again) == figures(quick_table)
    scores = [next((quick_folder / number).glob("scores-*.npz")) for number in ("one", "two")]
    with np.load(scores[0]) as first, np.load(scores[1]) as second:
        assert all(np.array_equal(first[name], second[name]) for name in first.files)


def test_every_row_says_what_it_cost(quick_table):
    place = {name: k for k, name in enumerate(quick_table.columns)}
    for row in quick_table.rows:
        costs = [row[place[name]] for name in ("seconds", "evaluations", "iterations", "outer loops")]
        if row[0] == NODE_ROW:
            assert costs == [""] * 4
        else:
            assert float(costs[0]) >= 0.0
            assert int(costs[1]) >= 1  # a start may be the end: no iteration
            assert int(costs[2]) >= 0
            assert int(costs[3]) >= 1
    assert [row[0] for row in quick_table.rows] == [NODE_ROW, *FEW, *FEW]
    assert not any("STOPPED" in note for note in quick_table.notes)


def test_rows_are_the_same_with_and_without_those_they_depend_on(quick_folder, quick_table):
    more = run(quick_folder, quick=True, rows=("piecewise", "convex", *FEW), cache=quick_folder / "one")
    kept = [row for row in figures(more)[0] if row[0] in (NODE_ROW, *FEW)]
    assert kept == figures(quick_table)[0]


def test_what_is_in_the_cache_is_not_learned_again_unless_the_code_changes(quick_folder, quick_table, monkeypatch):
    def unwanted(*_, **__):
        raise AssertionError("learned again")

    for module in (protocol, choices):
        monkeypatch.setattr(module, "fit", unwanted)
    again = run(quick_folder, quick=True, rows=FEW, cache=quick_folder / "one")
    assert figures(again) == figures(quick_table)
    assert again.rows == quick_table.rows  # times, too, are those of learning
    monkeypatch.setattr(protocol, "sources", lambda: "other code")
    with pytest.raises(AssertionError, match="learned again"):
        run(quick_folder, quick=True, rows=FEW, cache=quick_folder / "one")


def test_weak_scores_are_learned_from_in_both_ways_and_paths_are_followed(quick_folder):
    rows = ("CAMEL(0)", "CCCP", "CCCP, followed", "CCCP, steps chosen")
    table = run(quick_folder, scores="own", quick=True, rows=rows, splits=1, cache=quick_folder / "own")
    place = {name: k for k, name in enumerate(table.columns)}
    kinds = [(row[0], row[place["prior variance"]], row[place["scores learned from"]]) for row in table.rows]
    learned = [(r, p, f) for f in FOLDS for p in ("none", "1") for r in rows]
    assert kinds == [(NODE_ROW, "none", ""), *(one for one in learned if one[:2] != (rows[3], "none"))]
    assert sum("relinearisations, " in note and "cross-validation" in note for note in table.notes) == len(FOLDS)
    for row in table.rows:
        compared = row[place["against CAMEL(0), matched"]]
        assert (compared == "") == (row[0] in (NODE_ROW, "CAMEL(0)"))
    with pytest.raises(ValueError, match="scores must be among rich, own, found 'poor'"):
        run(quick_folder, scores="poor")


def test_a_followed_row_is_judged_along_its_path(scored):
    train, test = scored.training_graphs("out-of-fold"), scored.test_graphs("out-of-fold")
    limits = Budget(tolerance=1e-4)
    solution = fit(ROW["CCCP"], train, limits, prior_variance=100.0).solution
    path = fit(ROW["CCCP, followed"], train, limits, prior_variance=100.0, start=solution).solution
    assert path.path is not None  # belief propagation leaves the learned beliefs of these weak scores
    found, _ = marginals(ROW["CCCP, followed"], test, path, "matched")
    replayed = infer(test, path.path, "replay", tolerance=1e-6, max_iterations=300)
    np.testing.assert_allclose(found, np.concatenate([one.variables for one in replayed]), atol=1e-12)
    cold, _ = marginals(ROW["CCCP, followed"], test, path, "rbp")
    assert np.abs(cold - found).max() > 1e-3


def test_a_path_is_that_of_the_first_relinearisations_and_its_length_is_the_best_on_held_out_images(scored):
    row, limits = ROW["CCCP, steps chosen"], Budget(tolerance=1e-6)
    train = scored.training_graphs("out-of-fold")
    long = fit(row, train, limits, prior_variance=1.0, steps=2).solution
    assert long.status is Status.FOLLOWED
    assert long.path.shape == (3, train.n_weights)
    for steps in range(3):
        short = fit(row, train, limits, prior_variance=1.0, steps=steps).solution
        np.testing.assert_allclose(short.path, long.path[: steps + 1], atol=1e-12)
        replayed = infer(train, short.path, "replay", tolerance=1e-9, max_iterations=5000)
        learned = np.concatenate([[t for t in tables if t.ndim == 1] for tables in short.beliefs])
        np.testing.assert_allclose(np.concatenate([one.variables for one in replayed]), learned, atol=1e-5)
    camel0 = fit(ROW["CAMEL(0)"], train, limits, prior_variance=1.0).solution
    np.testing.assert_allclose(long.path[0], camel0.weights, atol=1e-3)

    candidate = Candidate(1.0, "clusters", "out-of-fold")
    steps, chosen = choose_steps(row, scored, candidate, limits=limits, seed=0, say=lambda _: None)
    right = np.zeros(row.most_steps + 1)
    for held in image_folds(4, 2, 0):
        rest = np.setdiff1d(np.arange(4), held)
        test = scored.held_out_graphs("out-of-fold", held)
        for n in range(len(right)):
            path = fit(
                row, scored.training_graphs("out-of-fold", rest), limits, prior_variance=1.0, steps=n
            ).solution.path
            found = infer(test, path, "replay", tolerance=1e-6, max_iterations=300)
            right[n] += np.sum(np.concatenate([one.variables for one in found]).argmax(axis=1) == test.labels)
    assert steps == right.argmax()
    shares = ", ".join(f"{100 * n / sum(image.n_superpixels for image in scored.train):.1f}" for n in right)
    assert f"({shares} % from 0 on)" in chosen.why


def test_the_parts_have_the_limits_that_their_figures_were_made_with():
    def limits(part):
        settings = PARTS[part]
        return settings.limits.tolerance, {
            name: settings.limits.options(ROW[name], None)["max_iterations"] for name in settings.rows
        }

    tolerance, rich = limits("rich")
    assert tolerance == 1e-4
    assert {name for name, most in rich.items() if most == 150} == {"LBP from zero", "LBP from piecewise"}
    assert {name for name, most in rich.items() if most == 500} == {
        name for name in rich if name.startswith(("CCCP", "convex"))
    }
    assert rich["TRW"] == 20
    assert sorted(rich.values()).count(1500) == len(rich) - 10  # what is left
    assert limits("own") == (1e-3, {
        "piecewise": 300, "CAMEL(0)": 300, "LBP from zero": 30, "CCCP": 250, "CCCP (empirical)": 250,
        "CCCP, followed": 300, "CCCP, steps chosen": 1000, "convex": 100,
    })  # fmt: skip


def test_a_limit_in_seconds_is_told(quick_folder):
    table = run(quick_folder, quick=True, rows=FEW, seconds=1e-9, splits=2, cache=quick_folder / "one")
    assert "splits: 2" in table.title
    assert {row[-1] for row in table.rows if row[0] != NODE_ROW} == {"time limit"}
    (told,) = [note for note in table.notes if "STOPPED by --seconds" in note]
    for name in FEW:
        assert f"{name} without a prior" in told
        assert f"{name} with a prior" in told


def test_bad_settings_are_refused():
    with pytest.raises(ValueError, match=r"rows must be among .*; found 'nothing'"):
        Table3Settings(rows=("nothing",))
    with pytest.raises(ValueError, match="n_splits must be at least 1, found 0"):
        Table3Settings(n_splits=0)
    with pytest.raises(ValueError, match="priors must be positive"):
        Table3Settings(priors=(0.0,))
    with pytest.raises(ValueError, match="kind must be one of boosted, linear, blend or chosen, found 'best'"):
        ScoreSettings(kind="best")
    with pytest.raises(ValueError, match="folds must be some of in-fold, out-of-fold"):
        Table3Settings(folds=("both",))


def test_data_that_are_missing_or_damaged_are_told(tmp_path, monkeypatch):
    monkeypatch.delenv("BACTRIAN_DATA", raising=False)
    with pytest.raises(ValueError, match=r"corel\.npz is needed and no folder was given"):
        corel_folder()
    with pytest.raises(ValueError, match="have none"):
        corel_folder(tmp_path)
    (tmp_path / "corel").mkdir()
    path = tmp_path / "corel" / "corel.npz"
    corel = photographs(2)
    np.savez(path, images=corel.images, labels=corel.labels)
    monkeypatch.setenv("BACTRIAN_DATA", str(tmp_path))
    assert corel_folder() == tmp_path / "corel"
    assert read_corel(corel_folder()).checksum == corel.checksum
    np.savez(path, images=corel.images)
    with pytest.raises(ValueError, match="must hold the arrays images and labels"):
        read_corel(path.parent)
    np.savez(path, images=corel.images, labels=corel.labels + 5)
    with pytest.raises(ValueError, match="labels must lie between 0 and 6"):
        read_corel(path.parent)
    np.savez(path, images=corel.images[:1], labels=corel.labels)
    with pytest.raises(ValueError, match="labels must be integers of shape"):
        read_corel(path.parent)


@pytest.mark.slow
def test_real_images_can_be_told_apart(real_data):
    corel = read_corel(corel_folder(real_data))
    assert corel.images.shape == (100, 120, 180, 3)
    assert len(CLASSES) == 7
    quick = ScoreSettings(boosting=(BoostingSettings(rounds=20, trees=40, n_features=60),), n_folds=2, kind="blend")
    settings = Table3Settings(
        scores=quick, n_drawn=24, n_train=16, n_splits=1, rows=("piecewise", "CAMEL(0)"), priors=()
    )
    table = run_table3(corel, settings, ArrayCache(None))
    (alone,) = [cell for cell in table.cells if cell.row == NODE_ROW]
    assert alone.superpixel["rbp"] > 0.45
    (camel,) = [cell for cell in table.cells if cell.row == "CAMEL(0)"]
    assert camel.violation <= 1e-3
