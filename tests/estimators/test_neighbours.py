"""``GraphCRF(neighbours=...)``: features diffused over the edges of a graph of which few labels are known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.linear_model import LogisticRegression

import bactrian as bt
from bactrian.estimators.saving import ModelFileError, read_saved, write_saved
from bactrian.learners.diffusion import Diffusion, diffused, smoothed


def network(seed: int, *, same: float, n: int = 240, k: int = 3, signal: float = 0.7, per: int = 8) -> tuple[Any, ...]:
    """A graph, its labels, and those of a few nodes; a part ``same`` of the edges joins equal labels."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(k, size=n)
    first = rng.integers(n, size=4 * n)
    wanted = np.where(rng.random(first.size) < same, labels[first], (labels[first] + 1) % k)
    second = np.array([rng.choice(np.flatnonzero(labels == label)) for label in wanted])
    edges = np.unique(np.sort(np.column_stack([first, second])[first != second], axis=1), axis=0)
    features = np.concatenate([signal * np.eye(k)[labels], np.zeros((n, 5))], axis=1) + rng.normal(size=(n, k + 5))
    known = np.full(n, -1)
    for label in range(k):
        known[rng.permutation(np.flatnonzero(labels == label))[:per]] = label
    return (features, edges), labels, known


def dense_diffusion(edges: Any, n: int, restart: float) -> Any:
    """The map as one dense matrix, by powers of the mean over a node and its neighbours."""
    joined = np.eye(n)
    for i, j in edges:
        joined[i, j] += 1.0
        joined[j, i] += 1.0
    mean = joined / joined.sum(axis=1, keepdims=True)
    powers = [np.linalg.matrix_power((1.0 - restart) * mean, h) for h in range(11)]
    return powers[10] + restart * sum(powers[:10])


def test_diffusion_is_a_sum_of_powers_and_its_transpose() -> None:
    rng = np.random.default_rng(0)
    edges = np.array([(0, 1), (1, 2), (2, 0), (2, 3), (4, 5)])  # node 6 has no neighbour
    rows, matrix = rng.normal(size=(7, 3)), dense_diffusion(edges, 7, 0.2)
    diffusion = Diffusion(edges, 7, 0.2)
    np.testing.assert_allclose(diffusion.times(rows), matrix @ rows, atol=1e-12)
    np.testing.assert_allclose(diffusion.times(rows, transposed=True), matrix.T @ rows, atol=1e-12)
    np.testing.assert_allclose(diffused(sp.csr_array(rows), edges, 0.2), matrix @ rows, atol=1e-12)
    np.testing.assert_allclose(matrix[6], np.eye(7)[6], atol=1e-12)


def test_mean_field_keeps_known_labels_and_is_a_fixed_point() -> None:
    rng = np.random.default_rng(1)
    joined = np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]], dtype=float)
    scores, labels = rng.normal(size=(3, 2)), np.array([-1, -1, 1])
    q = smoothed(scores, labels, sp.csr_array(joined), 0.5)
    again = np.exp(scores + 0.5 * joined @ q)
    again /= again.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(q[:2], again[:2], atol=1e-6)
    np.testing.assert_array_equal(q[2], [0.0, 1.0])


def test_with_all_labels_weights_are_those_of_logistic_regression_on_diffused_features() -> None:
    (features, edges), labels, _ = network(2, same=0.8)
    variance = 0.5
    crf = bt.GraphCRF(neighbours=0.3, prior_variance=variance, fit_intercept=False).fit([(features, edges)], [labels])
    rows = dense_diffusion(edges, len(labels), 0.3) @ features
    judge = LogisticRegression(C=variance, fit_intercept=False, tol=1e-10, max_iter=10_000).fit(rows, labels)
    np.testing.assert_allclose(crf.weight_tables()[0], judge.coef_.T, atol=0.02)
    assert np.abs(judge.coef_).max() > 1.0


@pytest.mark.parametrize("tables", ["pooled", "potts", "diagonal", "symmetric", "full"])
def test_agreement_of_neighbours_is_one_over_the_mean_degree(tables: str) -> None:
    graph, _, known = network(3, same=0.8)
    crf = bt.GraphCRF(neighbours=0.1, tables=tables).fit([graph], [known])
    expected = np.eye(3) * len(known) / (2 * len(graph[1]))
    np.testing.assert_allclose(crf.weight_tables()[1][0], expected, atol=1e-12)


def test_predictions_are_the_mean_field_of_diffused_features() -> None:
    (features, edges), labels, known = network(4, same=0.8)
    crf = bt.GraphCRF(neighbours=0.1, inference_options={"tolerance": 1e-9}).fit([(features, edges)], [known])
    (found,) = crf.predict_marginals([(features, edges)], known=[known])
    weights, (table,) = crf.weight_tables()
    rows = np.column_stack([dense_diffusion(edges, len(labels), 0.1) @ features, np.ones(len(labels))])
    q = np.full(found.shape, 1.0 / 3.0)
    for _ in range(500):
        for i in range(len(labels)):
            around = np.concatenate([edges[edges[:, 0] == i, 1], edges[edges[:, 1] == i, 0]])
            score = rows[i] @ weights + (q[around] @ table).sum(axis=0)
            q[i] = np.exp(score - score.max()) / np.exp(score - score.max()).sum()
            if known[i] >= 0:
                q[i] = np.eye(3)[known[i]]
    np.testing.assert_allclose(found, q, atol=1e-5)
    (beliefs,), (pairs,) = crf.predict_marginals([(features, edges)], known=[known], edges=True)
    np.testing.assert_allclose(pairs.sum(axis=2), beliefs[edges[:, 0]], atol=1e-6)


def test_auto_takes_what_held_out_labels_like_best() -> None:
    graph, labels, known = network(5, same=0.8, signal=0.4)
    crf = bt.GraphCRF().fit([graph], [known])
    losses = dict(crf.neighbour_scores_)
    assert list(losses) == [None, 0.1, 0.3]
    assert crf.restart_ == min(losses, key=lambda restart: losses[restart]) == 0.1
    edges_alone = bt.GraphCRF(neighbours="edges").fit([graph], [known])
    right = [np.mean((model.predict([graph], known=[known])[0] == labels)[known < 0]) for model in (crf, edges_alone)]
    assert right[0] > right[1] + 0.02
    given = bt.GraphCRF(neighbours=0.1).fit([graph], [known])
    np.testing.assert_array_equal(given.weights_, crf.weights_)
    assert given.prior_variance_ == crf.prior_variance_


def test_auto_sees_that_edges_among_unknown_labels_mislead() -> None:
    """Known neighbours say much, but edges as dense as these make unknown labels all alike."""
    rng, n = np.random.default_rng(8), 2_000
    labels = rng.integers(5, size=n)
    pairs = rng.integers(n, size=(25 * n, 2))
    joined = rng.random(len(pairs)) < np.where(labels[pairs[:, 0]] == labels[pairs[:, 1]], 0.8, 0.1)
    edges = np.unique(np.sort(pairs[joined & (pairs[:, 0] != pairs[:, 1])], axis=1), axis=0)
    graph = np.eye(5)[labels] + 2.0 * rng.normal(size=(n, 5)), rng.permutation(edges)[: 5 * n]
    known = np.where(rng.random(n) < 0.1, labels, -1)
    crf, edges_alone = (bt.GraphCRF(neighbours=how).fit([graph], [known]) for how in ("auto", "edges"))
    right = [np.mean((model.predict([graph], known=[known])[0] == labels)[known < 0]) for model in (crf, edges_alone)]
    assert right[0] > right[1] + 0.1


def test_auto_is_edges_where_neighbours_differ() -> None:
    graph, _, known = network(6, same=0.05, signal=2.0)
    crf, edges_alone = (bt.GraphCRF(neighbours=how).fit([graph], [known]) for how in ("auto", "edges"))
    assert crf.restart_ is None
    assert min(crf.neighbour_scores_, key=lambda pair: pair[1])[0] is None
    np.testing.assert_array_equal(crf.weights_, edges_alone.weights_)
    assert crf.inference_method_[0] == "convex"


@pytest.mark.parametrize(
    "options", [{"method": "camel0"}, {"tables": "potts"}, {"prior_variance": 1.0}, {"inference": "bp"}, {"l1": 0.1}]
)
def test_auto_is_edges_where_the_model_was_chosen(options: dict[str, Any]) -> None:
    graph, _, known = network(5, same=0.8, n=60)
    crf = bt.GraphCRF(max_iterations=3, **options)
    with pytest.warns(bt.ConvergenceWarning):
        crf.fit([graph], [known])
    assert crf.restart_ is None
    assert crf.neighbour_scores_ == []


def test_auto_is_edges_where_labels_are_known_or_far_too_few() -> None:
    graph, labels, _ = network(5, same=0.8, n=60)
    two = np.where(np.arange(60) < 2, labels, -1)
    for y in (labels, two):
        crf = bt.GraphCRF(labels=[0, 1, 2]).fit([graph], [y])
        assert crf.restart_ is None
        assert crf.neighbour_scores_ == []


def test_files_keep_what_was_chosen(tmp_path: Any) -> None:
    graph, _, known = network(5, same=0.8, signal=0.4)
    crf = bt.GraphCRF().fit([graph], [known])
    crf.save(tmp_path / "model")
    again = bt.GraphCRF.load(tmp_path / "model")
    assert (again.restart_, again.neighbour_scores_) == (crf.restart_, crf.neighbour_scores_)
    assert again.inference_method_ == crf.inference_method_
    other, _, _ = network(7, same=0.8)
    for graphs, labels in (([graph], [known]), ([other], None)):
        np.testing.assert_array_equal(
            again.predict_marginals(graphs, labels)[0], crf.predict_marginals(graphs, labels)[0]
        )
    saved = read_saved(tmp_path / "model", "GraphCRF")
    saved.attributes["restart"] = 1.5
    write_saved(tmp_path / "damaged", saved)
    with pytest.raises(ModelFileError, match="restart"):
        bt.GraphCRF.load(tmp_path / "damaged")


def test_files_of_earlier_releases_have_edges_alone(tmp_path: Any) -> None:
    graph, _, known = network(5, same=0.8, n=60)
    crf = bt.GraphCRF(neighbours="edges").fit([graph], [known])
    crf.save(tmp_path / "model")
    saved = read_saved(tmp_path / "model", "GraphCRF")
    del saved.params["neighbours"], saved.attributes["restart"], saved.attributes["neighbour_scores"]
    write_saved(tmp_path / "old", saved)
    old = bt.GraphCRF.load(tmp_path / "old")
    assert old.restart_ is None
    np.testing.assert_array_equal(old.predict_marginals([graph])[0], crf.predict_marginals([graph])[0])


def test_another_fit_and_a_warm_one() -> None:
    graph, labels, known = network(5, same=0.8, signal=0.4)
    crf = bt.GraphCRF(warm_start=True).fit([graph], [known])
    assert crf.fit([graph], [known]).restart_ == 0.1
    assert crf.set_params(warm_start=False).fit([graph], [labels]).restart_ is None
    whole = bt.GraphCRF(neighbours="edges").fit([graph], [labels])
    np.testing.assert_array_equal(crf.weights_, whole.weights_)


def test_a_callback_stops_and_time_runs_out() -> None:
    graph, _, known = network(5, same=0.8)
    seen: list[int] = []
    crf = bt.GraphCRF(neighbours=0.1)
    crf.fit([graph], [known], callback=lambda progress: seen.append(progress.outer) or len(seen) == 3)
    assert len(seen) == 3
    assert crf.solution_.status is bt.Status.STOPPED
    late = bt.GraphCRF(neighbours=0.1, max_seconds=1e-9)
    with pytest.warns(bt.ConvergenceWarning, match="time limit"):
        late.fit([graph], [known])


def test_rounds_end_where_the_objective_settles_and_say_so() -> None:
    graph, _, known = network(5, same=0.8)
    last: dict[int, float] = {}
    crf = bt.GraphCRF(neighbours=0.1)
    crf.fit([graph], [known], callback=lambda progress: last.update({progress.outer: progress.objective}))
    values = [last[outer] for outer in sorted(last)[1:]]
    changes = np.abs(np.diff(values)) / np.abs(values[:-1])
    assert crf.solution_.status is bt.Status.CONVERGED
    assert changes[-1] <= crf.tolerance < changes[:-1].min()
    with pytest.warns(bt.ConvergenceWarning, match="iteration limit"):
        bt.GraphCRF(neighbours=0.1, tolerance=1e-300).fit([graph], [known])


@pytest.mark.parametrize("neighbours", [0.0, 1.0, -0.1, np.nan, "features", None, True])
def test_other_values_are_refused(neighbours: Any) -> None:
    graph, _, known = network(5, same=0.8, n=60)
    with pytest.raises((ValueError, TypeError), match="neighbours"):
        bt.GraphCRF(neighbours=neighbours).fit([graph], [known])


def test_what_does_not_go_with_a_number_is_refused() -> None:
    graph, _, known = network(5, same=0.8, n=60)
    with pytest.raises(ValueError, match="l1 must be 0"):
        bt.GraphCRF(neighbours=0.1, l1=0.1).fit([graph], [known])
    with pytest.raises(ValueError, match="edges have features"):
        bt.GraphCRF(neighbours=0.1).fit([(*graph, np.ones((len(graph[1]), 1)))], [known])
    with pytest.raises(ValueError, match="weights"):
        bt.GraphCRF(neighbours=0.1).fit([graph], [known], sample_weight=[2.0])
    crf = bt.GraphCRF(neighbours=0.1)
    solution = bt.learn(crf.encode([graph], [known]), "camel0", tolerance=1e-2)
    with pytest.raises(ValueError, match="outside fit"):
        crf.adopt(solution)


def test_moments_that_were_not_matched_are_not_diagnosed() -> None:
    graph, labels, known = network(5, same=0.8)
    with pytest.raises(ValueError, match="fit with neighbours='edges'"):
        bt.GraphCRF(neighbours=0.1).fit([graph], [known]).diagnose([graph], [labels])
    assert bt.GraphCRF(neighbours="edges").fit([graph], [labels]).diagnose([graph], [labels]) is not None


def test_real_citations(real_data: Any) -> None:
    """Validation nodes; those of edges alone: .794, log loss .666."""
    file = np.load(real_data / "cora" / "cora.npz")
    words = sp.csr_array((file["data"].astype(float), file["indices"], file["indptr"]), shape=tuple(file["shape"]))
    labels, asked = file["labels"], file["validation"]
    known = np.full(len(labels), -1)
    known[file["train"]] = labels[file["train"]]
    crf = bt.GraphCRF().fit([(words, file["edges"])], [known])
    (found,) = crf.predict_marginals([(words, file["edges"])], known=[known])
    assert crf.restart_ == 0.1
    assert np.mean(found[asked].argmax(axis=1) == labels[asked]) > 0.79
    assert -np.log(found[asked, labels[asked]]).mean() < 0.63
