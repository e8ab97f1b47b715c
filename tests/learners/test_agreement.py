"""Whether inference at the learned weights finds what was learned, and solutions that it can follow."""

from __future__ import annotations

import itertools
import warnings
from dataclasses import replace

import numpy as np
import pytest
from sklearn.base import clone

import bactrian as bt
from bactrian.camel.entropy import carve
from bactrian.engines.memory import MemoryPart
from bactrian.graphs.graph import grid_edges
from bactrian.graphs.packing import observed_by, pack
from bactrian.inference.propagation import contracts
from bactrian.learners.learn import followed
from bactrian.parallel.threads import Context, Workers


def picture(seed: int = 0, side: int = 14, n_labels: int = 3, noise: float = 1.0) -> tuple[list, np.ndarray]:
    """Two noisy copies of a picture with rectangles; supercritical for Bethe's entropy."""
    rng = np.random.default_rng(seed)
    truth = np.zeros((side, side), dtype=int)
    truth[3:10, 2:7] = 1
    truth[2:6, 8:13] = n_labels - 1
    return [np.eye(n_labels)[truth] + rng.normal(0, noise, (side, side, n_labels)) for _ in range(2)], truth


@pytest.fixture(scope="module")
def learned() -> tuple:
    (noisy, other), truth = picture()
    crf = bt.GridCRF(method="cccp").fit([noisy], [truth])
    return crf, noisy, other, truth


def test_predictions_of_cccp_are_what_was_learned(learned):
    crf, noisy, _, truth = learned
    solution = crf.solution_
    beliefs = np.stack([solution.beliefs[0][v] for v in range(truth.size)])
    assert np.abs(crf.predict_marginals([noisy])[0].reshape(truth.size, -1) - beliefs).max() < 0.01
    assert solution.status is bt.Status.FOLLOWED
    assert solution.converged
    assert solution.path.shape == (3, solution.weights.size)
    assert np.array_equal(solution.path[-1], crf.weights_)


def test_cccp_beats_single_pixels_and_belief_propagation_at_the_converged_weights_does_not(learned):
    crf, noisy, other, truth = learned
    alone = np.mean(other.argmax(2) == truth)
    assert crf.score([other], [truth]) > alone + 0.1
    with pytest.warns(bt.AttainmentWarning):
        plain = bt.GridCRF(method="cccp", inference="rbp").fit([noisy], [truth])
    assert plain.solution_.status is bt.Status.CONVERGED
    with pytest.warns(bt.AttainmentWarning, match="depend on the messages that belief propagation starts from"):
        score = plain.score([other], [truth])
    assert score < crf.score([other], [truth]) - 0.1


@pytest.mark.parametrize("method", ["cccp", "camel0", bt.Camel(entropy="convex")], ids=str)
@pytest.mark.parametrize("node_factors", ["clusters", "edges"])
def test_learned_beliefs_of_nodes_are_what_is_predicted(method, node_factors):
    (noisy, other), truth = picture()
    X, y = [noisy, other[:5]], [truth, truth[:5]]
    crf = bt.GridCRF(method=method, node_factors=node_factors, tolerance=1e-5).fit(X, y)
    for beliefs, marginals in zip(crf.solution_.beliefs, crf.predict_marginals(X), strict=True):
        assert np.abs(beliefs.hubs() - marginals.reshape(-1, 3)).max() < 0.02


def test_many_graphs_and_empty_ones_are_judged_by_their_beliefs():
    rng = np.random.default_rng(0)
    sizes = [0, 9_000, 0, 9_000, 9_000, 5]
    y = [rng.integers(2, size=n) for n in sizes]
    X = [(labels[:, None] + rng.normal(0, 0.5, (labels.size, 1)), grid_edges(1, labels.size)) for labels in y]
    with warnings.catch_warnings():
        warnings.simplefilter("error", bt.AttainmentWarning)
        crf = bt.GraphCRF().fit(X, y)
    assert crf.score(X, y) > 0.8


def test_a_replay_starts_with_the_convex_problem_of_camel0(learned):
    crf, noisy, _, truth = learned
    data = clone(crf).encode([noisy], [truth])
    path = crf.solution_.path
    first = bt.infer(data, path[:1], "replay", tolerance=1e-6, max_iterations=20_000)[0]
    clusters = bt.infer(data, path[0], "convex", counting_numbers="clusters", tolerance=1e-6, max_iterations=20_000)[0]
    assert np.allclose(np.stack(first.variables), np.stack(clusters.variables), atol=1e-3)
    assert first.iterations > 0


def test_a_long_replay_at_fixed_weights_is_the_double_loop():
    graph = bt.grid_graph(3, 3, 2)
    rng = np.random.default_rng(1)
    features = [rng.normal(size=(2, 4)) * [1, 1, 0, 0] for _ in range(9)]
    features += [rng.normal(size=(4, 4)) * [0, 0, 1, 1] for _ in graph.clusters[9:21]]
    model = bt.LogLinearModel(graph, features)
    weights = rng.normal(size=4) * 0.4
    for evidence in (None, {0: 1, 4: 0}):
        end = bt.infer(model, np.tile(weights, (400, 1)), "replay", evidence, tolerance=1e-10)
        bethe = bt.infer(model, weights, "double-loop", evidence, tolerance=1e-10)
        assert np.allclose(np.stack(end.variables), np.stack(bethe.variables), atol=1e-6)
        assert end.log_partition == pytest.approx(bethe.log_partition, abs=1e-6)


def test_the_path_is_saved_with_the_model(learned, tmp_path):
    crf, _, other, _ = learned
    crf.save(tmp_path / "model")
    again = bt.GridCRF.load(tmp_path / "model")
    assert again.solution_.attained == crf.solution_.attained
    assert again.inference_method_ == crf.inference_method_
    assert np.array_equal(again.predict_marginals([other])[0], crf.predict_marginals([other])[0])


def test_a_diagnosis_looks_at_the_replay(learned):
    crf, noisy, other, truth = learned
    found = crf.diagnose([noisy], [truth], predict=[other])
    assert "moments-unattained" not in found.names
    assert "several-fixed-points" not in found.names


@pytest.mark.parametrize("method", ["cccp-empirical", bt.Camel(fold=True)], ids=str)
def test_other_learners_of_bethe_s_entropy_follow_too(learned, method):
    crf, noisy, _, truth = learned
    other = bt.GridCRF(method=method).fit([noisy], [truth])
    assert np.allclose(other.solution_.path, crf.solution_.path, atol=1e-6)


def noisy_graphs(n: int, seed: int = 0, side: int = 5, n_inputs: int = 8) -> tuple[list, list]:
    """Grids in two regions, with one input that tells them apart and others that are noise, too many for few graphs."""
    rng = np.random.default_rng(seed)
    X, y = [], []
    for _ in range(n):
        labels = np.zeros((side, side), dtype=int)
        labels[:, rng.integers(1, side) :] = 1
        labels = labels.ravel() if rng.random() < 0.5 else labels.T.ravel()
        inputs = rng.normal(size=(side * side, n_inputs))
        inputs[:, 0] += 0.5 * labels
        X.append((np.column_stack([inputs, np.ones(side * side)]), grid_edges(side, side)))
        y.append(labels)
    return X, y


def gaps_by_graph(crf: bt.GraphCRF, X: list, y: list) -> np.ndarray:
    """(graphs, weights) moments of the learned beliefs minus those of the labels, by hand."""
    rows = []
    for (inputs, edges), labels, beliefs in zip(X, y, crf.solution_.beliefs, strict=True):
        nodes = inputs.T @ (beliefs.hubs() - np.eye(2)[labels])
        table = sum(
            (beliefs[len(labels) + e] - np.outer(np.eye(2)[labels[a]], np.eye(2)[labels[b]]))
            for e, (a, b) in enumerate(edges)
        )
        rows.append([*nodes.ravel(), table[0, 0], table[0, 1] + table[1, 0], table[1, 1]])
    return np.array(rows)


def test_without_a_prior_a_path_ends_where_gaps_are_noise():
    X, y = noisy_graphs(12, seed=2)
    others, labels = noisy_graphs(40, seed=102)
    options = {"tables": "symmetric", "prior_variance": None, "max_iterations": 300}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bt.ConvergenceWarning)
        crf = bt.GraphCRF(method="cccp", **options).fit(X, y)
        plain = bt.GraphCRF(method="camel0", **options).fit(X, y)
    assert crf.solution_.path is not None
    gaps = gaps_by_graph(crf, X, y)
    assert np.allclose(np.abs(gaps.sum(axis=0)).max(), crf.solution_.moment_gap, rtol=1e-3)
    assert np.mean(gaps.sum(axis=0) ** 2 / (len(gaps) * gaps.var(axis=0, ddof=1))) <= 1.0
    assert np.abs(gaps.sum(axis=0)).max() > 0.1  # far more than the tolerance
    assert crf.score(others, labels) > plain.score(others, labels)


def test_without_a_prior_weights_that_still_run_are_not_kept():
    X, _ = noisy_graphs(8)
    rng = np.random.default_rng(0)
    y = [rng.integers(2, size=len(inputs)) for inputs, _ in X]  # nothing to learn: belief propagation finds all of it
    for prior_variance, n_graphs, is_kept in ((None, 8, False), (None, 7, True), (1.0, 8, True)):
        crf = bt.GraphCRF(method="cccp", tables="symmetric", prior_variance=prior_variance, max_iterations=25)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", bt.ConvergenceWarning)
            solution = crf.fit(X[:n_graphs], y[:n_graphs]).solution_
        assert solution.status is (bt.Status.ITERATION_LIMIT if is_kept else bt.Status.FOLLOWED)
        assert (solution.path is None) == is_kept


def test_moments_of_each_graph_are_those_of_that_graph_alone():
    X, y = noisy_graphs(3)
    crf = bt.GraphCRF(tables="symmetric", prior_variance=None)
    data = pack(crf.encode(X, y))
    each, sharing = np.eye(3), carve(data, "bethe")
    part = MemoryPart(data, sharing, Context(Workers(1)))
    weights = np.random.default_rng(0).normal(size=data.n_weights) * 0.2
    part.set_weights(weights)
    part.pass_messages(tolerance=1e-10, max_sweeps=1000)
    whole = part.summary().moments
    rows, seen = part.moments_by(each), observed_by(data, each)
    assert np.allclose(rows.sum(axis=0), whole)
    assert np.allclose(part.summary().moments, whole, rtol=1e-9)
    for graph, labels, row, observed in zip(X, y, rows, seen, strict=True):
        own = pack(clone(crf).encode([graph], [labels]))
        alone = MemoryPart(own, carve(own, "bethe"), Context(Workers(1)))
        alone.set_weights(weights)
        alone.pass_messages(tolerance=1e-10, max_sweeps=1000)
        assert np.allclose(alone.summary().moments, row, atol=1e-6)
        assert np.allclose(own.empirical, observed)


def test_a_path_ends_where_a_relinearisation_makes_the_labels_less_probable():
    X, y = noisy_graphs(6, seed=2)
    crf = bt.GraphCRF(method="cccp", tables="symmetric", prior_variance=None, max_iterations=300)
    data = clone(crf).encode(X, y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bt.ConvergenceWarning)
        solution = crf.fit(X, y).solution_
        given = {**crf.learning_options(), "method": bt.Camel(tight=True), "max_relinearisations": 1}
        further = bt.learn(data, **given, start=solution).weights
    path = [*solution.path, further]
    losses = []
    for steps in range(1, len(path) + 1):
        found = bt.infer(data, np.stack(path[:steps]), "replay", tolerance=1e-8, max_iterations=20_000)
        nodes = np.concatenate([np.stack(result.variables) for result in found])
        losses.append(-np.log(nodes[np.arange(len(nodes)), np.concatenate(y)]).mean())
    assert len(losses) == 3
    assert losses[0] > losses[1] < losses[2]


def test_learning_says_that_inference_is_elsewhere(learned):
    crf, noisy, _, truth = learned
    data, options = clone(crf).encode([noisy], [truth]), crf.learning_options()
    with pytest.warns(bt.AttainmentWarning, match="does not find the learned beliefs"):
        solution = bt.learn(data, **options)
    assert solution.attained < 0.95
    assert solution.path is None
    result = bt.infer(data, solution.weights, "bp", tolerance=1e-6)[0]  # by sweeps, too: "rbp" may end elsewhere
    cold = np.stack(result.variables)
    own = np.stack([solution.beliefs[0][v] for v in range(truth.size)])
    assert solution.attained == pytest.approx(1.0 - 0.5 * np.abs(cold - own).sum(axis=1).mean(), abs=0.01)
    assert followed(data, solution, **options).status is bt.Status.FOLLOWED


def test_where_there_is_one_fixed_point_nothing_changes():
    rng = np.random.default_rng(0)
    y = [rng.integers(2, size=(8, 8))]
    X = [np.eye(2)[y[0]] + rng.normal(0, 0.5, (8, 8, 2))]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        crf = bt.GridCRF(method="cccp").fit(X, y)
    plain = bt.learn(clone(crf).encode(X, y), **crf.learning_options())
    assert np.array_equal(crf.weights_, plain.weights)
    assert crf.solution_.path is None
    assert crf.solution_.attained > 0.999


@pytest.mark.parametrize(("n", "labels"), [(5, 2), (6, 3)])
def test_belief_propagation_contracts_up_to_the_bound(n, labels):
    """On the complete graph with equal Potts tables the spectral radius is (n - 2) tanh(J / 2)."""
    clusters = [(v,) for v in range(n)] + list(itertools.combinations(range(n), 2))
    model = bt.LogLinearModel(
        bt.ClusterGraph([labels] * n, clusters),
        [np.eye(labels, 2 * labels)] * n
        + [np.eye(labels).reshape(-1, 1) * np.eye(2 * labels)[-1]] * (len(clusters) - n),
    )
    data = pack(bt.Samples(model, [[0] * n]))
    messages = MemoryPart(data, carve(data, "bethe").whole, Context(Workers(1)))
    limit = 2.0 * np.arctanh(1.0 / (n - 2))
    rng = np.random.default_rng(0)
    for factor, expected in ((0.99, True), (1.01, False)):
        weights = np.append(rng.normal(size=2 * labels - 1), factor * limit)
        messages.set_weights(weights)
        assert contracts(messages) == expected
        weights[:-1] = 0.0
        start = bt.infer(model, weights, "bp", tolerance=1e-12)
        favoured = np.tile(np.eye(labels)[0] * 5.0, start.messages.multipliers.size // labels)
        start = replace(start, messages=replace(start.messages, multipliers=favoured))
        end = bt.infer(model, weights, "bp", tolerance=1e-12, start=start, max_iterations=20_000)
        assert (np.abs(np.stack(end.variables) - 1.0 / labels).max() < 1e-3) == (expected or labels > 2)


def test_trees_and_concave_entropies_attain_what_they_learn():
    graph = bt.ClusterGraph([2, 2, 2], [(0, 1), (1, 2)])
    features = [np.eye(4)] * 2
    X = [[0, 0, 1], [1, 1, 0], [0, 1, 1]]
    samples = bt.Samples(bt.LogLinearModel(graph, features), X)
    assert bt.learn(samples, "cccp").attained == 1.0
    loop = bt.Samples(bt.LogLinearModel(bt.ClusterGraph([2] * 3, [(0, 1), (1, 2), (0, 2)]), [np.eye(4)] * 3), X)
    assert bt.learn(loop, "camel0").attained == 1.0
    assert bt.learn(loop, "pseudolikelihood").attained is None


def test_a_replay_needs_a_path_of_weights(learned):
    crf, noisy, _, truth = learned
    data = clone(crf).encode([noisy], [truth])
    with pytest.raises(ValueError, match=r"shape \(n_steps, \d+\)"):
        bt.infer(data, crf.solution_.path[0], "replay")
    with pytest.raises(ValueError, match="inference"):
        bt.GridCRF(inference="replay").fit([noisy], [truth])


def test_edges_that_make_training_labels_worse_are_told():
    (noisy, _), truth = picture(seed=1)
    with pytest.warns(bt.AttainmentWarning, match="scores of the nodes alone"):
        crf = bt.GridCRF(method="pseudolikelihood", tables="full").fit([noisy], [truth])
    assert crf.solution_.attained < 0.9  # of the moments


def test_a_fit_that_stops_short_says_so_once(learned):
    _, noisy, _, truth = learned
    with pytest.warns(bt.ConvergenceWarning, match="iteration limit") as caught:
        bt.GridCRF(method="cccp", max_iterations=3).fit([noisy], [truth])
    assert sum("iteration limit" in str(warning.message) for warning in caught) == 1


def test_one_clock_and_one_count_for_all_phases_of_a_fit():
    (noisy, _), truth = picture()
    seen: list[bt.Progress] = []
    crf = bt.GridCRF(method="cccp").fit([noisy], [truth], callback=seen.append)
    solution = crf.solution_
    assert solution.path is not None  # it was followed
    assert [record.outer for record in solution.history] == list(range(len(solution.history)))
    assert [at.iteration for at in seen] == list(range(1, len(seen) + 1))
    for points in (solution.history, seen):
        assert (np.diff([at.seconds for at in points]) >= 0.0).all()
        assert (np.diff([at.outer for at in points]) >= 0).all()
        phases = np.array([at.phase for at in points])
        assert (np.diff(phases) >= 0).all()
        assert np.unique(phases).tolist() == [0, 1, 2, 3]
        assert points[-1].seconds <= solution.seconds
    assert [at.outer for at in seen][-1] <= len(solution.history)


def test_a_solution_that_is_followed_later_keeps_its_seconds():
    (noisy, _), truth = picture()
    crf = bt.GridCRF(method="cccp")
    data = crf.encode([noisy], [truth])
    options = crf.learning_options()
    with pytest.warns(bt.AttainmentWarning):
        solution = bt.learn(data, **options)
    later = replace(solution, seconds=1e4, history=tuple(replace(r, seconds=1e4) for r in solution.history))
    seen: list[bt.Progress] = []
    found = followed(data, later, **{**options, "callback": seen.append})
    assert found.path is not None
    assert min(at.seconds for at in seen) >= 1e4
    assert (np.diff([record.seconds for record in found.history]) >= 0.0).all()
    assert found.seconds >= found.history[-1].seconds
