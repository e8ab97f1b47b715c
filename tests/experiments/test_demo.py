"""The pictures and digits of the demo: what they compare, what they find, and odds and ends."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bactrian.experiments.digits.data import N_AVAILABLE, load_noisy_digits
from bactrian.experiments.digits.task import LEARNERS, METRICS, NODE_ONLY, DigitsSettings, node_marginals, run_digits
from bactrian.experiments.picture import task as picture
from bactrian.report import LearnersSection
from bactrian.runs.comparison import Curve, Entry, LabelTable, Metric, Picture, log_loss, reliability
from bactrian.solvers.solution import ConvergenceWarning

SMALL = DigitsSettings(n_train=30, n_test=60, tolerance=1e-3)


@pytest.fixture(scope="module")
def comparison():
    return run_digits(SMALL)


def by_name(comparison):
    return {entry.name: entry for entry in comparison.entries}


def test_neighbours_restore_a_picture_that_pixels_do_not():
    found = picture.run_picture(("convex", "cccp", "camel0"))
    entries = by_name(found)
    alone = entries.pop(picture.ALONE).metrics["accuracy"]
    assert found.converged
    assert all(entry.metrics["accuracy"] > alone + 0.2 for entry in entries.values())
    confident = entries.pop("camel0")  # its entropy is
    assert confident.metrics["ece"] < 0.05
    assert all(entry.metrics["ece"] < 0.03 for entry in entries.values())
    assert len(found.galleries[0].sheets[0].rows[0]) == 6


def test_curves_of_a_learner_that_is_followed_go_on_in_time():
    training = {entry.name: entry.training for entry in picture.run_picture(("cccp",)).entries}["cccp"]
    for curve in (training.iterations, training.history):
        assert set(curve.phase.tolist()) == {0, 1, 2, 3}
        for course in (curve.seconds, curve.outer, curve.phase):
            assert (np.diff(course) >= 0).all()


def test_every_learner_has_a_row_and_converges(comparison):
    assert [entry.name for entry in comparison.entries] == ["noisy input", NODE_ONLY, *LEARNERS]
    assert comparison.converged
    for entry in comparison.entries[1:]:
        assert set(entry.metrics) == {metric.key for metric in METRICS}
        assert entry.training.seconds > 0.0
        assert entry.training.outer_iterations >= 1
        assert entry.training.iterations.seconds.size > 1


def test_the_loopy_model_beats_the_noise_and_the_nodes(comparison):
    accuracy = {name: entry.metrics["accuracy"] for name, entry in by_name(comparison).items()}
    for name in ("camel0", "cccp", "cccp-empirical", "exact"):
        assert accuracy[name] > accuracy["noisy input"] + 0.04
        assert accuracy[name] > accuracy[NODE_ONLY] + 0.02


def test_cccp_is_close_to_maximum_likelihood_and_piecewise_overconfident(comparison):
    entries = by_name(comparison)
    loss = {name: entry.metrics["log_loss"] for name, entry in entries.items() if entry.training}
    assert abs(loss["cccp"] - loss["exact"]) < 0.01
    assert abs(loss["cccp"] - loss["cccp-empirical"]) < 1e-3
    assert loss["piecewise"] > loss["exact"] + 0.1
    assert entries["piecewise"].metrics["ece"] > entries["cccp"].metrics["ece"]


def test_only_piecewise_leaves_neighbours_in_disagreement(comparison):
    violation = {entry.name: entry.training.violation for entry in comparison.entries if entry.training}
    assert violation["piecewise"] > 0.1
    assert all(violation[name] < 1e-3 for name in ("camel0", "cccp", "cccp-empirical", "exact"))


def test_same_seed_gives_the_same_numbers_whatever_the_threads(comparison):
    again = run_digits(DigitsSettings(learners=("cccp",), n_train=30, n_test=60, tolerance=1e-3, n_threads=1))
    expected, found = by_name(comparison)["cccp"], by_name(again)["cccp"]
    for metric in METRICS:
        assert found.metrics[metric.key] == pytest.approx(expected.metrics[metric.key], abs=1e-8)
    other = run_digits(DigitsSettings(learners=("piecewise",), n_train=30, n_test=60, tolerance=1e-3, seed=1))
    assert other.entries[0].metrics != again.entries[0].metrics


def test_figures_do_not_depend_on_the_clock(comparison, slow_clock):
    again = run_digits(SMALL)
    assert [entry.metrics for entry in again.entries] == [entry.metrics for entry in comparison.entries]
    assert all(entry.training is None or entry.training.converged for entry in again.entries)


def test_steps_are_told_in_order():
    steps = []
    run_digits(DigitsSettings(learners=("piecewise",), n_train=4, n_test=4, tolerance=1e-2), steps.append)
    begun = [(step.learner, step.number) for step in steps if step.progress is None]
    assert begun == [("compiling", 0), (NODE_ONLY, 1), ("piecewise", 2)]
    assert any(step.progress is not None and step.learner == "piecewise" for step in steps)
    assert {step.total for step in steps} == {2}


def test_a_time_limit_is_a_status_not_a_failure():
    settings = DigitsSettings(learners=("cccp",), n_train=10, n_test=5, max_seconds=0.0)
    with pytest.warns(ConvergenceWarning, match="time limit"):
        comparison = run_digits(settings)
    assert not comparison.converged
    assert "time limit" in by_name(comparison)["cccp"].training.status


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"learners": ()}, "at least one"),
        ({"learners": ("dromedary",)}, "unknown learner 'dromedary'"),
        ({"learners": ("cccp", "cccp")}, "must be different"),
        ({"n_train": 0}, "n_train must be at least 1, found 0"),
        ({"n_test": N_AVAILABLE}, "n_train and n_test must be together at most 1797"),
        ({"noise": float("nan")}, "noise must be at least 0 and finite, found nan"),
        ({"noise": -1.0}, "noise must be at least 0 and finite"),
        ({"seed": -1}, "seed"),
        ({"prior_variance": 0.0}, "prior_variance"),
        ({"tolerance": float("nan")}, "tolerance"),
        ({"max_seconds": -1.0}, "max_seconds"),
        ({"n_threads": 0}, "n_threads"),
    ],
)
def test_bad_settings_are_refused(change, words):
    with pytest.raises(ValueError, match=words):
        DigitsSettings(**change)


def test_images_are_a_bijection_of_the_bundled_ones():
    images = load_noisy_digits(N_AVAILABLE, noise=0.0, seed=3)
    assert images.truth.shape == (N_AVAILABLE, 8, 8)
    assert set(np.unique(images.truth)) == {0, 1}
    np.testing.assert_array_equal(images.noisy, images.truth)
    np.testing.assert_array_equal(np.bincount(images.digits), [178, 182, 177, 183, 181, 182, 181, 179, 174, 180])


def test_grids_have_112_edges_an_image_half_of_each_type():
    graphs = load_noisy_digits(3, noise=0.5, seed=0).as_graphs(labelled=True)
    assert graphs.edges.shape == (3 * 112, 2)
    step = graphs.edges[:, 1] - graphs.edges[:, 0]
    np.testing.assert_array_equal(step, np.where(graphs.edge_types == 0, 1, 8))


def test_marginals_of_unlinked_pixels_are_logistic():
    images = load_noisy_digits(2, noise=0.5, seed=0)
    weights = np.zeros(images.as_graphs(labelled=False, linked=False).n_weights)
    weights[:4] = [0.3, -0.3, -1.0, 1.0]
    marginals = node_marginals(images.as_graphs(labelled=False, linked=False), weights)
    scores = 2.0 * images.noisy.ravel() - 0.6
    np.testing.assert_allclose(marginals[:, 1], 1.0 / (1.0 + np.exp(-scores)), atol=1e-12)


@given(st.integers(0, 2**32 - 1), st.integers(2, 5), st.integers(1, 40), st.integers(1, 12))
def test_reliability_agrees_with_a_loop(seed, n_labels, n, n_bins):
    rng = np.random.default_rng(seed)
    marginals = rng.dirichlet(np.full(n_labels, 0.3), size=n)
    labels = rng.integers(n_labels, size=n)
    found = reliability(marginals, labels, n_bins)
    assert found.counts.sum() == n
    bins = {}
    for row, label in zip(marginals, labels, strict=True):
        position = (row.max() - 1 / n_labels) / (1 - 1 / n_labels)
        bins.setdefault(min(max(int(position * n_bins), 0), n_bins - 1), []).append((row.max(), row.argmax() == label))
    error = sum(abs(sum(c - r for c, r in members)) for members in bins.values()) / n
    assert found.error == pytest.approx(error, abs=1e-9)


def test_calibration_of_certain_marginals():
    certain = np.eye(2)[[0, 1, 1]]
    assert reliability(certain, np.array([0, 1, 1])).error == 0.0
    assert reliability(certain, np.array([1, 0, 0])).error == 1.0
    assert np.isfinite(log_loss(certain, np.array([1, 0, 0])))
    with pytest.raises(ValueError, match="n_bins"):
        reliability(certain, np.array([0, 1, 1]), n_bins=0)


def test_interaction_forgets_what_single_states_say():
    table = np.array([[1.0, 0.0], [0.0, 1.0]])
    shifted = table + np.array([[3.0], [-2.0]]) + np.array([[0.5, 7.0]])
    shown = [LabelTable("", values, ("a", "b"), ("a", "b")).interaction for values in (table, shifted)]
    np.testing.assert_allclose(*shown, atol=1e-12)
    np.testing.assert_allclose(shown[0], [[0.5, -0.5], [-0.5, 0.5]])


def test_best_knows_which_way_is_up():
    entries = (Entry("a", "", {"x": 1.0}), Entry("b", "", {"x": 2.0}), Entry("c", "", {}))
    up, down = Metric("x", "x", ".1f", True), Metric("x", "x", ".1f", False)
    section = LearnersSection((up, down), entries)
    assert (section.best(up), section.best(down)) == (2.0, 1.0)
    assert np.isnan(section.best(Metric("y", "y", ".1f", True)))


def test_pictures_must_be_bytes():
    with pytest.raises(ValueError, match="uint8"):
        Picture(np.zeros((2, 2)), "floats")
    with pytest.raises(ValueError, match="uint8"):
        Picture(np.zeros((2, 2, 4), dtype=np.uint8), "four channels")


def test_an_empty_curve_is_a_curve():
    assert Curve.of([]).objective.shape == (0,)
