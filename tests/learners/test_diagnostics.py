"""Diagnoses of models whose trouble is known beforehand."""

import numpy as np
import pytest

import bactrian as bt
from bactrian.graphs.builders import grid_edges
from bactrian.learners.unseen import unseen_weights


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
        labels = rng.integers(0, 2, 5)
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
