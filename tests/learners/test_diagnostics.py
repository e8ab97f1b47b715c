"""Diagnoses of models whose trouble is known beforehand."""

from dataclasses import replace

import numpy as np
import pytest

import bactrian as bt
from bactrian.graphs.graph import grid_edges
from bactrian.learners.findings import unseen_weights


def ising(coupling, side=6, field=0.0, seed=0, n_labels=2):
    """A grid with zero fields and a Potts coupling, labelled at random; weights that give that coupling."""
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(side * side, 1))
    labels = rng.integers(0, n_labels, side * side)
    data = bt.GraphData(inputs, grid_edges(side, side), n_labels=n_labels, labels=labels, tables="potts")
    return data, np.concatenate([field * np.linspace(-1, 1, n_labels), [coupling]])


def test_a_strong_ferromagnet_has_several_fixed_points():
    """Mean-field theory of the square lattice: belief propagation orders above a coupling of log 2 (Bethe, d = 4)."""
    data, strong = ising(1.5)
    diagnosis = bt.diagnose(data, strong)
    assert "several-fixed-points" in diagnosis.names
    finding = diagnosis.findings[diagnosis.names.index("several-fixed-points")]
    assert finding.severity == "serious"
    assert finding.figures["largest"] > 0.4
    assert "camel0" in finding.advice
    data, weak = ising(0.3)
    assert "several-fixed-points" not in bt.diagnose(data, weak).names
    assert bt.diagnose(data, weak).figures["apart"] < 1e-3
    data, strong = ising(1.5)
    assert "several-fixed-points" not in bt.diagnose(data, strong, inference="convex").names  # its optimum is unique


def test_random_couplings_keep_belief_propagation_from_converging():
    rng = np.random.default_rng(0)
    edges = np.stack(np.triu_indices(12, 1), axis=1)
    data = bt.GraphData(
        rng.normal(size=(12, 1)),
        edges,
        n_labels=2,
        labels=rng.integers(0, 2, 12),
        tables="potts",
        edge_inputs=rng.normal(size=(len(edges), 1)),
    )
    diagnosis = bt.diagnose(data, [-1.0, 1.0, 4.0])
    assert "not-converged" in diagnosis.names
    assert str(diagnosis).startswith("serious: inference does not converge")


def test_pairs_that_never_occur_are_named_where_there_is_no_prior():
    rng = np.random.default_rng(0)
    X, y = [], []
    for _ in range(10):
        labels = rng.permutation([0, 0, 1, 2])
        order = np.sort(labels)  # along the chain 0 never meets 2
        X.append((np.eye(3)[order] + rng.normal(size=(4, 3)), [(0, 1), (1, 2), (2, 3)]))
        y.append(np.array(["lake", "shore", "wood"])[order])
    with pytest.warns(bt.ConvergenceWarning, match="unbounded"):
        crf = bt.GraphCRF(method="cccp", prior_variance=None).fit(X, y)
    diagnosis = crf.diagnose(X, y)
    finding = diagnosis.findings[diagnosis.names.index("unseen")]
    assert "lake-wood" in finding.message
    assert "lake-shore" not in finding.message
    assert "add a prior" in finding.advice
    assert finding.figures["lowest"] < -2
    kept = bt.GraphCRF(method="cccp", prior_variance=10.0).fit(X, y)
    assert "unseen" not in kept.diagnose(X, y).names


def test_unseen_weights_are_those_that_count_zero():
    data = bt.GraphData(
        [[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]], [(0, 1), (1, 2)], n_labels=2, labels=[0, 1, 0], tables="full"
    )
    unseen, names = unseen_weights(data, bt.graphs.packing.pack(data), ["a", "b"])
    # Node weights (input, label): inputs 0 and 1 go with labels 0 and 1 only; pairs (0, 1) and (1, 0) occur.
    assert unseen.tolist() == [1, 2, 4, 7]
    assert names == ["a-a", "b-b"]


def test_moments_that_inference_does_not_attain_are_reported():
    """Weights of CAMEL(0) under belief propagation: too strong by far, so that moments are off."""
    rng = np.random.default_rng(0)
    truth = (np.add.outer(np.arange(12), np.arange(12)) // 4) % 2
    X, y = [truth + rng.normal(0, 1.0, truth.shape) for _ in range(4)], [truth] * 4
    crf = bt.GridCRF(method="camel0").fit(X, y)
    well = crf.diagnose(X, y)
    assert well.findings == ()
    assert well.figures["moment_gap"] < 0.01
    crf.set_params(inference="rbp")
    ill = crf.diagnose(X, y)
    assert "moments-unattained" in ill.names
    assert ill.figures["moment_gap"] > 0.02


def test_a_fixed_point_that_belief_propagation_leaves_is_unstable():
    """CCCP can sit at the disordered fixed point of a ferromagnet with moments that say otherwise."""
    data, weights = ising(1.5)
    packed_size = bt.graphs.packing.pack(data).layout.n_link_states
    state = bt.solvers.solution.WarmState(np.zeros(packed_size), np.zeros(2 * data.n_nodes))
    solution = bt.Solution(
        weights=weights, status=bt.Status.CONVERGED, history=(), objective=0.0, moment_gap=0.0, violation=0.0,
        beliefs=(), state=state,
    )  # fmt: skip
    diagnosis = bt.diagnose(data, solution)
    assert "unstable" in diagnosis.names
    data, weak = ising(0.3)
    calm = bt.Solution(
        weights=weak, status=bt.Status.CONVERGED, history=(), objective=0.0, moment_gap=0.0, violation=0.0,
        beliefs=(), state=state,
    )  # fmt: skip
    assert "unstable" not in bt.diagnose(data, calm).names


@pytest.mark.parametrize("method", ["camel0", "convex", "cccp", "exact", "lbp"])
def test_a_well_behaved_model_has_no_findings(method):
    rng = np.random.default_rng(0)
    X, y = [], []
    for _ in range(20):
        labels = np.roll(np.arange(5) < rng.integers(6), rng.integers(5)).astype(int)  # neighbours tend to agree
        X.append((labels[:, None] + rng.normal(size=(5, 1)), [(0, 1), (1, 2), (2, 3), (3, 4), (0, 4)]))
        y.append(labels)
    crf = bt.GraphCRF(method=method, tolerance=1e-4).fit(X, y)
    diagnosis = crf.diagnose(X, y)
    assert diagnosis.findings == ()
    assert str(diagnosis) == "no findings"


def test_learning_that_stopped_short_is_told():
    data, _ = ising(0.3)
    with pytest.warns(bt.ConvergenceWarning):
        solution = bt.learn(data, "cccp", max_iterations=1)
    assert "stopped-short" in bt.diagnose(data, solution).names


def test_samples_and_bad_arguments():
    field = bt.MarkovRandomField(edges=[(0, 1), (1, 2)]).fit([[0, 0, 1], [1, 1, 0], [0, 1, 1], [1, 0, 0]])
    samples = bt.Samples(field.model_, [[0, 0, 1], [1, 1, 0], [0, 1, 1], [1, 0, 0]])
    assert bt.diagnose(samples, field.solution_).findings == ()
    with pytest.raises(ValueError, match="inference must be"):
        bt.diagnose(samples, field.solution_, inference="gibbs")
    with pytest.raises(ValueError, match="restarts must be"):
        bt.diagnose(samples, field.solution_, restarts=-1)
    with pytest.raises(ValueError, match="weights, found shape"):
        bt.diagnose(samples, [0.0])


def citations(n_labelled, seed=0, n=500, k=6):
    """A graph of like labels, and its part among the labelled nodes."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, k, n)
    pairs = rng.integers(0, n, (10 * n, 2))
    pairs = pairs[pairs[:, 0] < pairs[:, 1]]
    keep = np.where(labels[pairs[:, 0]] == labels[pairs[:, 1]], 0.8, 0.05) > rng.random(len(pairs))
    edges = np.unique(pairs[keep], axis=0)
    features = np.eye(k)[labels] + rng.normal(size=(n, k))
    known = np.where(np.arange(n) < n_labelled, labels, -1)
    inside = edges[(edges < n_labelled).all(axis=1)]
    return (features, edges), known, (features[:n_labelled], inside), labels[:n_labelled]


def test_label_pairs_seen_too_seldom_are_named():
    _, _, graph, labels = citations(60)
    diagnosis = bt.GraphCRF(tables="symmetric").fit([graph], [labels]).diagnose([graph], [labels])
    finding = next(finding for finding in diagnosis.findings if finding.name == "seldom")
    counts = np.zeros((6, 6), dtype=int)
    for a, b in graph[1]:
        counts[min(labels[a], labels[b]), max(labels[a], labels[b])] += 1
    seldom = [f"{a}-{b}" for a in range(6) for b in range(a, 6) if counts[a, b] < 5]
    assert finding.figures == {"edges": len(graph[1]), "weights": 21, "pairs": len(seldom)}
    assert ", ".join(seldom[:5]) in finding.message
    for settings in ({"tables": "pooled"}, {"tables": "potts"}, {"prior_variance": {"nodes": 10.0, "edges": 0.1}}):
        model = bt.GraphCRF(**settings).fit([graph], [labels])
        assert "seldom" not in model.diagnose([graph], [labels]).names
    _, _, graph, labels = citations(500)
    assert "seldom" not in bt.GraphCRF(tables="symmetric").fit([graph], [labels]).diagnose([graph], [labels]).names


def test_edges_that_do_harm_are_told():
    """Weights by hand: nodes that know their labels, and edges that forbid the truth."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 60)
    edges = [(i, i + 1) for i in range(59)]
    data = bt.GraphData(np.eye(2)[labels], edges, n_labels=2, labels=labels, tables="potts")
    good, bad = np.array([1.0, 0, 0, 1.0, 0.1]), np.array([1.0, 0, 0, 1.0, 5.0])
    assert "edges-hurt" not in bt.diagnose(data, good).names
    diagnosis = bt.diagnose(data, bad)
    assert "edges-hurt" in diagnosis.names
    assert diagnosis.figures["accuracy_without_edges"] == 1.0
    marginals = [bt.infer(data, bad, "exact")[0].variables[v] for v in range(60)]
    exact = np.mean([np.argmax(p) == label for p, label in zip(marginals, labels, strict=True)])
    assert diagnosis.figures["accuracy"] == pytest.approx(exact, abs=0.02)


def _neighbours(seed, kind, n=150):
    """Noisy indicators of labels; edges at random, more often between like or unlike ones, or signed by an input."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, n)
    pairs = rng.integers(0, n, (3 * n, 2))
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    same = labels[pairs[:, 0]] == labels[pairs[:, 1]]
    inputs = None
    if kind in ("like", "unlike"):
        pairs = pairs[(same == (kind == "like")) | (rng.random(len(pairs)) < 0.4)]
    elif kind == "signed":
        inputs = np.where(same, 1.0, -1.0)[:, None] * np.where(rng.random((len(pairs), 1)) < 0.8, 1.0, -1.0)
    features = np.eye(3)[labels] + 1.2 * rng.normal(size=(n, 3))
    options = {"n_labels": 3, "labels": labels, "tables": "pooled", "edge_inputs": inputs}
    return bt.GraphData(features, pairs, **options)


def test_edges_that_tell_nothing_are_named():
    """At random the finding is missing once in twenty; edges that matter, in any way, never have it."""
    chances = []
    for seed in range(30):
        data = _neighbours(seed, "random")
        diagnosis = bt.diagnose(data, np.zeros(data.n_weights), inference="convex", restarts=0)
        chances.append(diagnosis.figures["edges_by_chance"])
        assert ("edges-idle" in diagnosis.names) == (chances[-1] > 0.05)
    assert np.mean(np.array(chances) <= 0.05) <= 0.15
    assert np.mean(np.array(chances) <= 0.3) <= 0.5
    for seed in range(6):
        for kind in ("like", "unlike", "signed"):
            data = _neighbours(seed, kind)
            assert "edges-idle" not in bt.diagnose(data, np.zeros(data.n_weights), inference="convex", restarts=0).names


def test_graphs_to_be_predicted_show_what_training_data_cannot():
    """An edge table that favours one label everywhere fits the few edges of the training data."""
    (features, edges), known, graph, labels = citations(60)
    model = bt.GraphCRF(tables="symmetric", method="cccp").fit([graph], [labels])
    strong = model.weights_.copy()
    strong[model.weight_tables()[0].size] += 3.0  # agreement on label 0
    model.adopt(replace(model.solution_, weights=strong))
    quiet = model.diagnose([graph], [labels])
    assert "labels-shifted" not in quiet.names
    diagnosis = model.diagnose([graph], [labels], [(features, edges)], [known])
    finding = next(finding for finding in diagnosis.findings if finding.name == "labels-shifted")
    predicted = model.predict([(features, edges)], known=[known])[0][60:]
    node, _ = model.weight_tables()
    alone = (np.hstack([features, np.ones((500, 1))]) @ node).argmax(axis=1)[60:]
    shares = [f"{100 * np.mean(labels == 0):.0f} %" for labels in (predicted, alone)]
    assert f"{shares[0]} of the nodes to be predicted get label 0, {shares[1]} by" in finding.message
    assert diagnosis.figures["changed"] == pytest.approx(np.mean(predicted != alone), abs=0.01)
    pooled = bt.GraphCRF().fit([graph], [labels])
    assert pooled.diagnose([graph], [labels], [(features, edges)], [known]).findings == ()


def test_residuals_are_moments_beside_those_of_the_data():
    data, weights = ising(0.3)
    diagnosis = bt.diagnose(data, 2.0 * weights, prior_variance=None, inference="convex")
    agreement = diagnosis.residuals[0]
    assert agreement.name == "agreement"
    edges, labels = data.edges, data.labels
    assert agreement.observed == np.mean(labels[edges[:, 0]] == labels[edges[:, 1]]) * len(edges)
    found = bt.infer(data, 2.0 * weights, "convex")[0]
    pairs = [found.clusters[data.n_nodes + e] for e in range(len(edges))]
    assert agreement.expected == pytest.approx(sum(np.trace(table) for table in pairs), rel=1e-2)
    assert agreement.gap == pytest.approx(abs(agreement.expected - agreement.observed))


def random_grid(seed, side=8):
    rng, edges = np.random.default_rng(seed), grid_edges(side, side)
    inputs, labels = 0.3 * rng.normal(size=(side * side, 1)), rng.integers(0, 2, side * side)
    return bt.GraphData(
        inputs, edges, n_labels=2, labels=labels, tables="potts", edge_inputs=rng.normal(size=(len(edges), 1))
    )


def test_inference_that_hardly_moves_is_not_serious():
    """Where sweeps end just before the tolerance is reached, marginals are as good as converged."""
    finding = bt.diagnose(random_grid(3), [1.0, -1.0, 2.0], inference="bp").findings[0]
    assert finding.name == "not-converged"
    assert 0.0 < finding.figures["moving"] < 0.003
    assert finding.severity == "warning"


def test_marginals_that_jump_to_and_fro_are_serious():
    """After 300 more sweeps those of a cycle of two are where they were, and every sweep changes some by half."""
    data, weights = random_grid(0), [1.0, -1.0, 2.2]
    finding = bt.diagnose(data, weights, inference="bp").findings[0]
    assert finding.name == "not-converged"
    assert finding.figures["moving"] > 0.3
    assert finding.severity == "serious"
