"""Boosted node scores and pictures, on small synthetic data."""

import numpy as np
import pytest

from bactrian.experiments.table3.classifiers import BoostedClassifiers, BoostingSettings, binary_losses
from bactrian.experiments.table3.node_scores import image_folds, node_scores
from bactrian.experiments.table3.pictures import class_colours, label_picture, uncertainty

SMALL = BoostingSettings(
    rounds=8, least_leaf=3, trees=10, n_features=4, features_a_split=1.0, learning_rate=0.3, linear_penalty=1.0
)


def blobs(n_images=6, n=40, seed=0):
    """Images whose superpixels have three classes in a plane, with features that say nothing."""
    rng = np.random.default_rng(seed)
    centres = np.array([[0.0, 0.0], [3.0, 0.0], [0.0, 3.0]])
    labels = [rng.integers(0, 3, n) for _ in range(n_images)]
    features = [
        np.concatenate([centres[y] + rng.standard_normal((n, 2)), rng.standard_normal((n, 4))], axis=1) for y in labels
    ]
    return features, labels


def test_scores_tell_classes_apart_and_do_so_in_fold_better():
    features, labels = blobs()
    found = node_scores(features[:4], labels[:4], features[4:], n_labels=3, candidates=[SMALL], n_folds=2)
    for kind in ("boosted", "linear", "blend"):
        in_fold, out, other = (
            np.mean(np.concatenate(scores[kind]).argmax(axis=1) == np.concatenate(truth))
            for scores, truth in (
                (found.in_fold, labels[:4]),
                (found.out_of_fold, labels[:4]),
                (found.other, labels[4:]),
            )
        )
        assert other > 0.7
        assert in_fold > out > 0.7
        assert found.accuracies[kind] == pytest.approx(out)
    assert [len(s) for s in found.in_fold["boosted"]] == [40] * 4
    np.testing.assert_allclose(
        found.out_of_fold["blend"][0], (found.out_of_fold["boosted"][0] + 3 * found.out_of_fold["linear"][0]) / 4
    )


def test_out_of_fold_scores_never_saw_their_image():
    # Labels that are pure chance: only a classifier that saw them can guess them.
    rng = np.random.default_rng(1)
    features, labels = [rng.standard_normal((60, 6)) for _ in range(6)], [rng.integers(0, 2, 60) for _ in range(6)]
    found = node_scores(features, labels, n_labels=2, candidates=[SMALL], n_folds=3)
    assert all(accuracy < 0.6 for accuracy in found.accuracies.values())
    in_fold = np.mean(np.concatenate(found.in_fold["boosted"]).argmax(axis=1) == np.concatenate(labels))
    assert in_fold > found.accuracies["boosted"] + 0.1
    # Changing an image's labels leaves its own out-of-fold linear scores as they are.
    (fold,) = [f for f in image_folds(6, 3, 0) if 0 in f]
    changed = [1 - y if k in fold else y for k, y in enumerate(labels)]
    again = node_scores(features, changed, n_labels=2, candidates=[SMALL], n_folds=3)
    for k in range(6):
        same = np.allclose(found.out_of_fold["linear"][k], again.out_of_fold["linear"][k], rtol=1e-9)
        assert same == (k in fold)


def test_the_candidate_with_the_least_loss_is_taken():
    features, labels = blobs()
    poor = BoostingSettings(rounds=1, least_leaf=3, trees=10, learning_rate=0.01)
    found = node_scores(features, labels, n_labels=3, candidates=[poor, SMALL], n_folds=2)
    assert found.settings == SMALL
    assert found.losses[str(SMALL)] < found.losses[str(poor)]
    assert all(1 <= r <= 16 for r in found.rounds)


def test_labels_that_are_missing_or_unknown_are_dealt_with():
    features, labels = blobs(4)
    labels[0][:5] = -1
    found = node_scores(features, labels, n_labels=4, candidates=[SMALL], n_folds=2)
    scores = np.concatenate(found.out_of_fold["boosted"])
    assert (scores[:, 3] == scores[:, 3].min()).all()
    assert np.isfinite(scores).all()


def test_losses_agree_with_scikit_learn():
    from sklearn.metrics import log_loss

    rng = np.random.default_rng(2)
    scores, labels = rng.standard_normal((30, 3)), rng.integers(0, 3, 30)
    expected = [log_loss(labels == k, 1.0 / (1.0 + np.exp(-scores[:, k]))) for k in range(3)]
    np.testing.assert_allclose(binary_losses(scores, labels), expected)


def test_folds_part_the_images():
    folds = image_folds(10, 3, 5)
    assert sorted(np.concatenate(folds).tolist()) == list(range(10))
    with pytest.raises(ValueError, match="n_folds must lie between 2 and the 3 training images, found 4"):
        image_folds(3, 4, 0)


def test_the_linear_classifier_minimises_penalised_loss():
    from scipy.optimize import minimize

    from bactrian.experiments.table3.classifiers import LinearClassifier

    rng = np.random.default_rng(3)
    X, y = rng.standard_normal((50, 3)) ** 3, rng.integers(0, 3, 50)
    rooted = np.sign(X) * np.sqrt(np.abs(X))
    Z = np.clip((rooted - rooted.mean(axis=0)) / rooted.std(axis=0), -4, 4)

    def loss(w):
        scores = Z @ w[:9].reshape(3, 3) + w[9:]
        lost = np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(50), y]
        return lost.sum() + 0.5 * 4.0 * (w[:9] ** 2).sum()

    w = minimize(loss, np.zeros(12), tol=1e-10).x
    scores = Z @ w[:9].reshape(3, 3) + w[9:]
    share = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    found = LinearClassifier(4, penalty=4.0).fit(X, y).log_odds(X)
    np.testing.assert_allclose(found[:, :3], np.log(share / (1 - share)), atol=2e-3)
    assert (found[:, 3] == -np.inf).all()


@pytest.mark.parametrize(
    "bad",
    [{"rounds": 0}, {"leaves": 1}, {"features_a_split": 0.0}, {"bins": 256}, {"l2": -1.0}, {"linear_penalty": 0.0}],
)
def test_bad_settings_are_refused(bad):
    with pytest.raises(ValueError, match="must"):
        BoostingSettings(**bad)


def test_a_single_class_has_constant_scores():
    model = BoostedClassifiers(2, SMALL).fit(np.random.default_rng(0).standard_normal((20, 3)), np.zeros(20, dtype=int))
    scores = model.scores(np.zeros((4, 3)))["boosted"]
    assert (scores[:, 0] > 0).all()
    assert (scores[:, 1] < 0).all()


def test_uncertainty_runs_from_zero_to_one():
    found = uncertainty(np.array([[1.0, 0.0], [0.5, 0.5], [0.9, 0.1]]))
    expected = [0.0, 1.0, -(0.9 * np.log2(0.9) + 0.1 * np.log2(0.1))]
    np.testing.assert_allclose(found, expected)
    assert uncertainty(np.ones((2, 1))).tolist() == [0.0, 0.0]


def test_labels_are_painted_in_their_colours():
    picture = label_picture(np.zeros((1, 2, 3), np.uint8), np.array([[1, -1]]), 2, opacity=1.0)
    np.testing.assert_allclose(picture[0, 0], class_colours(2)[1])
    np.testing.assert_allclose(picture[0, 1], 0.0)
    assert len(np.unique(class_colours(20), axis=0)) == 20
