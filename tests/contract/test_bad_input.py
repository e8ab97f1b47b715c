"""Bad input is refused before any work, with an error that names the argument.

Every learning call here carries a callback that must never be called: the first iteration would call it.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import bactrian as bt
from bactrian.camel.entropy import CountingNumbers

NAN, INF = np.nan, np.inf
CLUSTERS = [(0, 1), (1, 2)]
X = [[0, 1, 0], [1, 1, 0], [0, 0, 1]]


def graph(cardinalities: Any = (2, 2, 3), clusters: Any = CLUSTERS, edges: Any = "bethe") -> Any:
    return bt.ClusterGraph(cardinalities, clusters, edges)


def tables(n_weights: int = 2) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.normal(size=(4, n_weights)), rng.normal(size=(6, n_weights))]


def model(**changes: Any) -> Any:
    return bt.LogLinearModel(**{"graph": graph(), "features": tables(), **changes})


def with_entry(value: Any, place: tuple[int, int] = (1, 1)) -> list[np.ndarray]:
    """Features whose second table holds ``value``."""
    first, second = tables()
    second[place] = value
    return [first, second]


def graph_data(**changes: Any) -> Any:
    """Two small graphs, of three nodes and two nodes."""
    rng = np.random.default_rng(1)
    given = {
        "inputs": rng.normal(size=(5, 2)),
        "edges": [(0, 1), (1, 2), (3, 4)],
        "n_labels": 3,
        "labels": [0, 1, 2, 2, 0],
        "node_counts": [3, 2],
    }
    return bt.GraphData(**{**given, **changes})


def never(_progress: Any) -> None:
    raise AssertionError("work was done before the bad input was noticed")


def learn(data: Any = None, *args: Any, **options: Any) -> Any:
    data = bt.Samples(model(), X) if data is None else data
    return bt.learn(data, *args, **{"callback": never, **options})


def test_the_good_input_that_these_tests_spoil() -> None:
    """Otherwise the errors below might have other causes, and ``never`` might never have been called anyway."""
    graph(edges=[(0, 1, (1,))])
    graph_data(edge_types=[0, 1, 0], tables=["full", "potts"], edge_inputs=np.ones((3, 1)), weights=[1.0, 2.0])
    bt.Samples(model(base_scores=[None, np.zeros(6)]), X, sample_weight=[1, 2, 0])
    with pytest.raises(AssertionError, match="work was done"):
        learn()
    with pytest.raises(AssertionError, match="work was done"):
        learn(graph_data())


# --- graphs ---


def test_cardinality_of_zero() -> None:
    with pytest.raises(ValueError, match=r"cardinalities\[1\] = 0"):
        graph(cardinalities=[2, 0, 3])


def test_negative_cardinality() -> None:
    with pytest.raises(ValueError, match=r"cardinalities\[2\] = -1"):
        graph(cardinalities=[2, 2, -1])


@pytest.mark.parametrize("cardinalities", [[2.0, 2.0, 3.0], [True, True, True], ["2", "2", "3"], [2, None, 3]])
def test_cardinalities_that_are_no_integers(cardinalities: Any) -> None:
    with pytest.raises(TypeError, match="cardinalities must be integers"):
        graph(cardinalities=cardinalities)


@pytest.mark.parametrize("cardinalities", [[[2, 2, 3]], 3, None])
def test_cardinalities_that_are_not_flat(cardinalities: Any) -> None:
    with pytest.raises(ValueError, match="cardinalities must be a flat sequence"):
        graph(cardinalities=cardinalities)


def test_ragged_cardinalities() -> None:
    with pytest.raises(ValueError, match="cardinalities must be a rectangular array"):
        graph(cardinalities=[2, [2, 2], 3])


def test_cluster_with_an_unknown_variable() -> None:
    with pytest.raises(ValueError, match=r"clusters\[1\] = \(1, 3\) names variable 3"):
        graph(clusters=[(0, 1), (1, 3)])


def test_cluster_with_a_negative_variable() -> None:
    with pytest.raises(ValueError, match=r"clusters\[0\] = \(-1, 1\) names variable -1"):
        graph(clusters=[(-1, 1), (1, 2)])


def test_cluster_that_repeats_a_variable() -> None:
    with pytest.raises(ValueError, match=r"clusters\[1\] = \(1, 2, 1\) repeats"):
        graph(clusters=[(0, 1), (1, 2, 1)])


def test_empty_cluster() -> None:
    with pytest.raises(ValueError, match=r"clusters\[1\] is empty"):
        graph(clusters=[(0, 1), ()])


@pytest.mark.parametrize("scope", [(0.0, 1), (True, 2), "ab", 3, None, (0, None)])
def test_cluster_that_is_no_tuple_of_integers(scope: Any) -> None:
    with pytest.raises(TypeError, match=r"clusters\[1\] must be a tuple of variable indices"):
        graph(clusters=[(0, 1), scope])


def test_clusters_that_are_no_sequence() -> None:
    with pytest.raises(TypeError, match="clusters must be a sequence"):
        graph(clusters=None)


@pytest.mark.parametrize("end", [2, -1])
def test_edge_to_an_absent_cluster(end: int) -> None:
    with pytest.raises(ValueError, match=rf"edges\[1\] names cluster {end}"):
        graph(edges=[(0, 1, (1,)), (0, end, (1,))])


@pytest.mark.parametrize("end", ["1", 1.0, None])
def test_edge_to_something_that_is_no_cluster(end: Any) -> None:
    with pytest.raises(ValueError, match=r"edges\[0\] names cluster"):
        graph(edges=[(0, end, (1,))])


def test_edge_from_a_cluster_to_itself() -> None:
    with pytest.raises(ValueError, match=r"edges\[0\] joins cluster 1 to itself"):
        graph(edges=[(1, 1, (1,))])


@pytest.mark.parametrize("sepset", [(0,), (1, 2), (2, 1)])
def test_sepset_outside_a_scope(sepset: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"sepset of edges\[0\] holds variable [02], which is not in the scope"):
        graph(edges=[(0, 1, sepset)])


def test_sepset_with_an_unknown_variable() -> None:
    with pytest.raises(ValueError, match=r"sepset of edges\[0\] = \(7,\) names variable 7"):
        graph(edges=[(0, 1, (7,))])


def test_sepset_that_repeats_a_variable() -> None:
    with pytest.raises(ValueError, match=r"sepset of edges\[0\] = \(1, 1\) repeats"):
        graph(edges=[(0, 1, (1, 1))])


def test_empty_sepset() -> None:
    with pytest.raises(ValueError, match=r"sepset of edges\[0\] is empty"):
        graph(edges=[(0, 1, ())])


@pytest.mark.parametrize("edge", [(0, 1), (0, 1, (1,), 2), 5, "abc"])
def test_edge_that_is_no_triple(edge: Any) -> None:
    with pytest.raises(ValueError, match=r"edges\[0\] must be \(i, j, sepset\)"):
        graph(edges=[edge])


def test_unknown_kind_of_edges() -> None:
    with pytest.raises(ValueError, match="edges must be 'bethe'"):
        graph(edges="kikuchi")


@pytest.mark.parametrize("edges", [None, 3])
def test_edges_that_are_no_sequence(edges: Any) -> None:
    with pytest.raises(TypeError, match="edges must be 'bethe' or a list"):
        graph(edges=edges)


@pytest.mark.parametrize(("height", "width"), [(0, 2), (2, 0), (-1, 3)])
def test_grid_without_extent(height: int, width: int) -> None:
    with pytest.raises(ValueError, match="height and width must be at least 1"):
        bt.grid_graph(height, width, 2)


def test_skip_outside_the_chain() -> None:
    with pytest.raises(ValueError, match="names variable 5"):
        bt.skip_chain_graph([2, 2, 2], [(0, 5)])


# --- models ---


def test_model_without_a_graph() -> None:
    with pytest.raises(TypeError, match="graph must be a ClusterGraph, found list"):
        model(graph=CLUSTERS)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_wrong_number_of_features(count: int) -> None:
    with pytest.raises(ValueError, match=f"features must have one entry per cluster: expected 2, found {count}"):
        model(features=[np.ones((4, 2))] * count)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_wrong_number_of_base_scores(count: int) -> None:
    with pytest.raises(ValueError, match=f"base_scores must have one entry per cluster: expected 2, found {count}"):
        model(base_scores=[None] * count)


@pytest.mark.parametrize("features", [None, 3, "ab", sp.csr_array(np.eye(4))])
def test_features_that_are_no_sequence(features: Any) -> None:
    with pytest.raises(TypeError, match="features must be a sequence"):
        model(features=features)


def test_base_scores_that_are_no_sequence() -> None:
    with pytest.raises(TypeError, match="base_scores must be a sequence"):
        model(base_scores=1.0)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_features_that_are_not_finite(value: float, sparse: bool) -> None:
    features = with_entry(value)
    with pytest.raises(ValueError, match=r"features\[1\] holds NaN or infinite"):
        model(features=[sp.csr_array(f) for f in features] if sparse else features)


@pytest.mark.parametrize("shape", [(5, 2), (7, 2), (6, 3), (6, 1)])
@pytest.mark.parametrize("sparse", [False, True])
def test_features_of_a_wrong_shape(shape: tuple[int, int], sparse: bool) -> None:
    second: Any = sp.csr_array(np.ones(shape)) if sparse else np.ones(shape)
    with pytest.raises(ValueError, match=r"features\[1\] must have shape .* = \(6, 2\), found \(\d, \d\)"):
        model(features=[tables()[0], second])


@pytest.mark.parametrize("entry", [np.ones(4), np.ones((2, 2, 2)), 1.0, sp.coo_array(np.ones(4))])
def test_features_that_are_no_matrix(entry: Any) -> None:
    with pytest.raises(ValueError, match=r"features\[0\] must be a matrix"):
        model(features=[entry, tables()[1]])


def test_ragged_features() -> None:
    with pytest.raises(ValueError, match=r"features\[0\] must be a rectangular array"):
        model(features=[[[1.0, 0.0], [1.0], [0.0, 0.0], [0.0, 1.0]], tables()[1]])


@pytest.mark.parametrize("dtype", [object, complex, str])
def test_features_of_a_wrong_dtype(dtype: Any) -> None:
    with pytest.raises(TypeError, match=r"features\[0\] must hold real numbers, found dtype"):
        model(features=[tables()[0].astype(dtype), tables()[1]])


def test_no_features_at_all() -> None:
    with pytest.raises(ValueError, match="features hold no matrix"):
        model(features=[None, None])


@pytest.mark.parametrize("size", [5, 7])
def test_base_scores_of_a_wrong_size(size: int) -> None:
    with pytest.raises(ValueError, match=rf"base_scores\[1\] must have one score per state .* 6, found {size}"):
        model(base_scores=[None, np.zeros(size)])


@pytest.mark.parametrize("value", [NAN, INF])
def test_base_scores_that_are_nan_or_plus_infinity(value: float) -> None:
    with pytest.raises(ValueError, match=r"base_scores\[0\] holds NaN or \+inf"):
        model(base_scores=[[0.0, value, 0.0, 0.0], None])


def test_base_scores_that_forbid_everything() -> None:
    with pytest.raises(ValueError, match=r"base_scores\[0\] forbids every state"):
        model(base_scores=[[-INF] * 4, None])


@pytest.mark.parametrize("scores", [["a"] * 4, [None] * 4, [1j] * 4])
def test_base_scores_of_a_wrong_dtype(scores: Any) -> None:
    with pytest.raises(TypeError, match=r"base_scores\[0\] must hold real numbers"):
        model(base_scores=[scores, None])


def test_ragged_base_scores() -> None:
    with pytest.raises(ValueError, match=r"base_scores\[0\] must be a rectangular array"):
        model(base_scores=[[[0.0, 1.0], [2.0]], None])


# --- samples and instances ---


@pytest.mark.parametrize("rows", [[[0, 1, 0], [0, 1]], [[0, 1, 0], [0, 1, 0, 1]], [[0, 1, 0], 1]])
def test_samples_of_ragged_lengths(rows: Any) -> None:
    with pytest.raises(ValueError, match="X must be a rectangular array"):
        bt.Samples(model(), rows)


def test_labels_of_ragged_lengths() -> None:
    with pytest.raises(ValueError, match="y must be a rectangular array"):
        bt.Instance(model(), [[0, 1], 0, 0])


@pytest.mark.parametrize("width", [2, 4])
def test_samples_with_a_wrong_number_of_variables(width: int) -> None:
    with pytest.raises(ValueError, match=rf"X must have 3 states .* found shape \(5, {width}\)"):
        bt.Samples(model(), np.zeros((5, width), dtype=int))


@pytest.mark.parametrize("length", [0, 2, 4])
def test_labels_with_a_wrong_number_of_variables(length: int) -> None:
    with pytest.raises(ValueError, match="y must have 3 states"):
        bt.Instance(model(), [0] * length)


@pytest.mark.parametrize("rows", [[0, 1, 0], [[[0, 1, 0]]]])
def test_samples_that_are_no_matrix(rows: Any) -> None:
    with pytest.raises(ValueError, match="X must have shape"):
        bt.Samples(model(), rows)


def test_labels_that_are_not_flat() -> None:
    with pytest.raises(ValueError, match="y must be flat"):
        bt.Instance(model(), [[0, 1, 0]])


@pytest.mark.parametrize(("row", "variable", "state"), [(1, 0, 2), (2, 2, 3), (0, 1, -2)])
def test_sample_with_a_state_out_of_range(row: int, variable: int, state: int) -> None:
    rows = np.array(X)
    rows[row, variable] = state
    with pytest.raises(ValueError, match=rf"X\[{row}, {variable}\] = {state} is not a state of variable {variable}"):
        bt.Samples(model(), rows)


@pytest.mark.parametrize(("variable", "state"), [(0, 2), (2, 3), (1, -2)])
def test_label_out_of_range(variable: int, state: int) -> None:
    y = np.zeros(3, dtype=int)
    y[variable] = state
    with pytest.raises(ValueError, match=rf"y\[{variable}\] = {state} is not a state"):
        bt.Instance(model(), y)


def test_boolean_states_are_0_and_1() -> None:
    states = [[True, False, True], [False, False, True]]
    samples = bt.Samples(model(), states)
    assert samples.X.tolist() == [[1, 0, 1], [0, 0, 1]]
    assert bt.Instance(model(), states[0]).y.tolist() == [1, 0, 1]
    found = [bt.infer(model(), [0.3, -0.2], "exact", {2: state}).log_partition for state in (True, 1, np.True_)]
    assert found[0] == found[1] == found[2]
    with pytest.raises(TypeError, match="evidence names variable True; variables are integers"):
        bt.infer(model(), [0.3, -0.2], "exact", {True: 1})


@pytest.mark.parametrize("dtype", [float, str, object, complex])
def test_states_of_a_wrong_dtype(dtype: Any) -> None:
    with pytest.raises(TypeError, match="X must hold integer states, found dtype"):
        bt.Samples(model(), np.array(X).astype(dtype))
    with pytest.raises(TypeError, match="y must hold integer states, found dtype"):
        bt.Instance(model(), np.array(X[0]).astype(dtype))


@pytest.mark.parametrize("rows", [np.zeros((0, 3), dtype=int), np.zeros((0, 3)), []])
def test_no_samples(rows: Any) -> None:
    with pytest.raises(ValueError, match=r"^X "):
        bt.Samples(model(), rows)


@pytest.mark.parametrize("kind", [bt.Samples, bt.Instance])
def test_data_without_a_model(kind: Any) -> None:
    with pytest.raises(TypeError, match="model must be a LogLinearModel, found ClusterGraph"):
        kind(graph(), X[0])


@pytest.mark.parametrize("weight", [-1.0, NAN, INF])
def test_bad_instance_weight(weight: float) -> None:
    with pytest.raises(ValueError, match="weight must be at least 0 and finite"):
        bt.Instance(model(), X[0], weight=weight)


@pytest.mark.parametrize("weight", [None, "1", [1.0]])
def test_instance_weight_that_is_no_number(weight: Any) -> None:
    with pytest.raises(TypeError, match="weight must be a number"):
        bt.Instance(model(), X[0], weight=weight)


@pytest.mark.parametrize("weight", [-1.0, NAN, INF])
def test_bad_sample_weight(weight: float) -> None:
    with pytest.raises(ValueError, match=r"sample_weight\[1\] must be finite and not negative"):
        bt.Samples(model(), X, sample_weight=[1.0, weight, 1.0])


def test_sample_weight_that_is_no_number() -> None:
    with pytest.raises(TypeError, match="sample_weight must hold real numbers"):
        bt.Samples(model(), X, sample_weight=["a", "b", "c"])


@pytest.mark.parametrize("shape", [(2,), (4,), (3, 1), ()])
def test_sample_weight_of_a_wrong_shape(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"sample_weight must have shape \(3,\)"):
        bt.Samples(model(), X, sample_weight=np.ones(shape))


def test_sample_weight_of_zero_everywhere() -> None:
    with pytest.raises(ValueError, match="sample_weight must not be all zero"):
        bt.Samples(model(), X, sample_weight=np.zeros(3))


# --- packed graphs ---


@pytest.mark.parametrize("edge", [(0, 5), (-1, 0)])
def test_edge_out_of_range(edge: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=r"edges\[1\] = .* must join two different nodes from 0 to 4"):
        graph_data(edges=[(0, 1), edge])


def test_edge_from_a_node_to_itself() -> None:
    with pytest.raises(ValueError, match=r"edges\[1\] = \(2, 2\) must join two different nodes from 0 to"):
        graph_data(edges=[(0, 1), (2, 2)])


def test_edge_across_graphs() -> None:
    with pytest.raises(ValueError, match=r"edges\[1\] = \(2, 3\) joins nodes of two graphs"):
        graph_data(edges=[(0, 1), (2, 3)])


@pytest.mark.parametrize("edges", [[0, 1], [(0, 1, 2)], 3, None])
def test_edges_of_a_wrong_shape(edges: Any) -> None:
    with pytest.raises(ValueError, match=r"edges must have shape \(n_edges, 2\)"):
        graph_data(edges=edges)


def test_ragged_edges() -> None:
    with pytest.raises(ValueError, match="edges must be a rectangular array"):
        graph_data(edges=[(0, 1), (2,)])


@pytest.mark.parametrize("dtype", [float, bool, str, object])
def test_edges_of_a_wrong_dtype(dtype: Any) -> None:
    with pytest.raises(TypeError, match="edges must hold integer node numbers"):
        graph_data(edges=np.array([(0, 1), (1, 2)]).astype(dtype))


@pytest.mark.parametrize("counts", [[3, 1], [3, 3], []])
def test_node_counts_that_do_not_add_up(counts: list[int]) -> None:
    with pytest.raises(ValueError, match="node_counts must"):
        graph_data(node_counts=counts)


@pytest.mark.parametrize("counts", [[6, -1], [2.5, 2.5], [[3, 2]], 5, ["3", "2"]])
def test_node_counts_of_a_wrong_kind(counts: Any) -> None:
    with pytest.raises(
        ValueError, match=r"node_counts(\[1\] = -1 is below 0| must be (integers|a flat sequence of integers))"
    ):
        graph_data(node_counts=counts)


@pytest.mark.parametrize("label", [3, -2])
def test_packed_label_out_of_range(label: int) -> None:
    with pytest.raises(ValueError, match=rf"labels\[3\] = {label} is outside -1 to 2"):
        graph_data(labels=[0, 1, 2, label, 0])


@pytest.mark.parametrize("length", [0, 4, 6])
def test_wrong_number_of_labels(length: int) -> None:
    with pytest.raises(ValueError, match=r"labels must have shape \(5,\)"):
        graph_data(labels=np.zeros(length, dtype=int))


def test_ragged_labels() -> None:
    with pytest.raises(ValueError, match="labels must be a rectangular array"):
        graph_data(labels=[[0, 1, 2], [2, 0]])


def test_boolean_labels_are_0_and_1() -> None:
    assert graph_data(labels=[True, False, True, True, False]).labels.tolist() == [1, 0, 1, 1, 0]


@pytest.mark.parametrize("dtype", [float, str, object])
def test_labels_of_a_wrong_dtype(dtype: Any) -> None:
    with pytest.raises(TypeError, match="labels must be integers"):
        graph_data(labels=np.zeros(5).astype(dtype))


@pytest.mark.parametrize("n_labels", [0, -1, 2.0, "3", None, True])
def test_bad_number_of_labels(n_labels: Any) -> None:
    with pytest.raises(ValueError, match=r"n_labels must be (at least 1|an integer)"):
        graph_data(n_labels=n_labels)


@pytest.mark.parametrize("tying", ["fulll", "", 3])
def test_unknown_tying(tying: Any) -> None:
    with pytest.raises(ValueError, match=r"tables\[1\] must be one of full, symmetric, diagonal, potts"):
        graph_data(tables=["full", tying], edge_types=[0, 1, 0])


@pytest.mark.parametrize("tying", ["triangular", [], None, 3])
def test_tables_of_a_wrong_kind(tying: Any) -> None:
    with pytest.raises(ValueError, match="tables must"):
        graph_data(tables=tying)


@pytest.mark.parametrize("types", [[0, 1, 2], [0, -1, 0]])
def test_edge_type_out_of_range(types: list[int]) -> None:
    with pytest.raises(ValueError, match=r"edge_types\[[12]\] = .* is outside 0 to 1"):
        graph_data(edge_types=types, tables=["full", "potts"])


def test_wrong_number_of_edge_types() -> None:
    with pytest.raises(ValueError, match=r"edge_types must have shape \(3,\)"):
        graph_data(edge_types=[0, 0])


def test_edge_types_of_a_wrong_dtype() -> None:
    with pytest.raises(TypeError, match="edge_types must be integers"):
        graph_data(edge_types=[0.0, 0.0, 0.0])


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize(("name", "rows"), [("inputs", 5), ("edge_inputs", 3)])
def test_inputs_that_are_not_finite(name: str, rows: int, value: float, sparse: bool) -> None:
    matrix = np.ones((rows, 2))
    matrix[1, 1] = value
    with pytest.raises(ValueError, match=f"^{name} holds NaN or infinite"):
        graph_data(**{name: sp.csr_array(matrix) if sparse else matrix})


@pytest.mark.parametrize("name", ["inputs", "edge_inputs"])
@pytest.mark.parametrize("matrix", [np.ones(5), np.ones((5, 2, 2)), 3.0, sp.coo_array(np.ones(5))])
def test_inputs_that_are_no_matrix(name: str, matrix: Any) -> None:
    with pytest.raises(ValueError, match=f"^{name} must be a matrix"):
        graph_data(**{name: matrix})


@pytest.mark.parametrize("name", ["inputs", "edge_inputs"])
@pytest.mark.parametrize("matrix", [np.ones((5, 2), dtype=object), [["a"]] * 5, sp.csr_array(1j * np.ones((5, 2)))])
def test_inputs_of_a_wrong_dtype(name: str, matrix: Any) -> None:
    with pytest.raises(TypeError, match=f"^{name} must hold real numbers"):
        graph_data(**{name: matrix})


def test_ragged_inputs() -> None:
    with pytest.raises(ValueError, match="inputs must be a rectangular array"):
        graph_data(inputs=[[1.0], [1.0, 2.0], [1.0], [1.0], [1.0]])


def test_no_nodes() -> None:
    with pytest.raises(ValueError, match="inputs has no rows"):
        bt.GraphData(np.ones((0, 2)), [], n_labels=2, labels=[])
    nothing = bt.GraphData(np.ones((0, 2)), [], n_labels=2, node_counts=[0, 0])
    weights = np.zeros(nothing.n_weights)
    assert [len(result.variables) for result in bt.infer(nothing, weights, "rbp")] == [0, 0]
    assert [found.size for found in bt.decode(nothing, weights, "exact")] == [0, 0]


@pytest.mark.parametrize("rows", [0, 2, 4])
def test_wrong_number_of_edge_inputs(rows: int) -> None:
    with pytest.raises(ValueError, match=f"edge_inputs must have one row per edge: expected 3, found {rows}"):
        graph_data(edge_inputs=np.ones((rows, 2)))


def test_unknown_place_of_node_factors() -> None:
    with pytest.raises(ValueError, match="node_factors must be one of clusters, edges, first-edge"):
        graph_data(node_factors="hubs")


@pytest.mark.parametrize("weights", [[1.0, -1.0], [NAN, 1.0], [INF, 1.0], [0.0, 0.0]])
def test_bad_graph_weights(weights: list[float]) -> None:
    with pytest.raises(ValueError, match=r"weights(\[[01]\] must be finite and not negative| must not be all zero)"):
        graph_data(weights=weights)


def test_wrong_number_of_graph_weights() -> None:
    with pytest.raises(ValueError, match=r"weights must have shape \(2,\), found \(3,\)"):
        graph_data(weights=[1.0, 1.0, 1.0])


def test_graph_weights_that_are_no_numbers() -> None:
    with pytest.raises(TypeError, match="weights must hold real numbers"):
        graph_data(weights=["a", "b"])


# --- data given to learn ---


def test_learning_without_labels() -> None:
    with pytest.raises(ValueError, match="labels"):
        learn(graph_data(labels=None))


@pytest.mark.parametrize("data", [[], ()])
def test_empty_data(data: Any) -> None:
    with pytest.raises(ValueError, match="data is empty"):
        learn(data)


@pytest.mark.parametrize("data", [3, np.zeros((2, 3)), {"a": 1}])
def test_data_of_a_wrong_kind(data: Any) -> None:
    with pytest.raises(TypeError, match="data must be Samples, Moments, a list of Instance objects or GraphData"):
        learn(data)


def test_a_single_instance_without_its_list() -> None:
    with pytest.raises(TypeError, match="data must be a list of Instance objects"):
        learn(bt.Instance(model(), X[0]))


def test_data_with_something_else_among_the_instances() -> None:
    with pytest.raises(TypeError, match=r"data\[1\] must be an Instance, found Samples"):
        learn([bt.Instance(model(), X[0]), bt.Samples(model(), X)])


def test_instances_with_different_numbers_of_weights() -> None:
    with pytest.raises(ValueError, match=r"data\[1\] has 3 weights and data\[0\] 2"):
        learn([bt.Instance(model(), X[0]), bt.Instance(model(features=tables(3)), X[1])])


def test_instances_that_all_weigh_nothing() -> None:
    with pytest.raises(ValueError, match="every instance has weight 0"):
        learn([bt.Instance(model(), row, weight=0.0) for row in X])


@pytest.mark.parametrize("method", ["piecewise", "cccp", "exact"])
def test_an_observation_that_the_model_forbids(method: str) -> None:
    scores = [0.0, -INF, 0.0, 0.0]
    with pytest.raises(ValueError, match=r"row 2 of instance 0 is in state \(0, 1\) of cluster 0.*base_scores\[0\]"):
        learn(bt.Samples(model(base_scores=[scores, None]), [[0, 0, 0], [1, 1, 2], [0, 1, 1]]), method)
    instances = [bt.Instance(model(base_scores=[scores, None]), y) for y in ([0, 0, 0], [0, 1, 1])]
    with pytest.raises(ValueError, match=r"row 0 of instance 1 is in state \(0, 1\) of cluster 0.*base_scores\[0\]"):
        learn(instances, method)


# --- options of learn ---


@pytest.mark.parametrize("variance", [0, 0.0, -1.0, NAN, INF, -INF])
def test_prior_variance_that_is_not_positive(variance: float) -> None:
    with pytest.raises(ValueError, match="prior_variance must be positive"):
        learn(prior_variance=variance)


@pytest.mark.parametrize("l1", [-1e-9, -1.0, NAN, INF])
def test_bad_l1(l1: float) -> None:
    with pytest.raises(ValueError, match="l1 must not be negative"):
        learn(l1=l1)


@pytest.mark.parametrize("variances", [[1.0], [[1.0, 1.0]], np.ones(3)], ids=str)
def test_one_variance_per_weight(variances: Any) -> None:
    with pytest.raises(ValueError, match=r"prior_variance must have one variance per weight: expected shape \(2,\)"):
        learn(prior_variance=variances)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *itertools.product(["prior_variance", "l1", "tolerance", "max_seconds"], ["1", 1j]),
        *itertools.product(["l1", "tolerance", "max_seconds"], [[1.0]]),
    ],
)
def test_numbers_that_are_none(name: str, value: Any) -> None:
    with pytest.raises(TypeError, match=f"^{name} must be a number"):
        learn(**{name: value})


@pytest.mark.parametrize("name", ["l1", "tolerance", "max_iterations", "max_relinearisations"])
def test_numbers_that_are_left_out(name: str) -> None:
    with pytest.raises(TypeError, match=f"^{name} must be"):
        learn(**{name: None})


@pytest.mark.parametrize("name", ["max_iterations", "max_relinearisations", "n_threads", "seed"])
@pytest.mark.parametrize("value", [1.5, "2", 2.0])
def test_counts_that_are_no_integers(name: str, value: Any) -> None:
    with pytest.raises(TypeError, match=f"^{name} must be an integer"):
        learn(**{name: value})


@pytest.mark.parametrize("name", ["tolerance", "max_iterations", "max_relinearisations", "max_seconds", "seed"])
def test_limits_below_zero(name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name} must be at least 0, found -1"):
        learn(**{name: -1})


@pytest.mark.parametrize("name", ["tolerance", "max_seconds"])
def test_limits_that_are_nan(name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name} must be at least 0, found nan"):
        learn(**{name: NAN})


@pytest.mark.parametrize("n_threads", [0, -2])
def test_too_few_threads(n_threads: int) -> None:
    with pytest.raises(ValueError, match="n_threads must be at least 1"):
        learn(n_threads=n_threads)


@pytest.mark.parametrize("method", ["CCCP", "", "camel", "bp"])
def test_unknown_method(method: str) -> None:
    with pytest.raises(ValueError, match=r"method must be one of piecewise, camel0, cccp.*, found"):
        learn(None, method)


@pytest.mark.parametrize("method", [3, None, bt.Camel, ["cccp"]])
def test_method_of_a_wrong_kind(method: Any) -> None:
    with pytest.raises(TypeError, match="method must be a name or a learner"):
        learn(None, method)


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 1)])
def test_start_of_a_wrong_shape(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"start must have shape \(2,\)"):
        learn(start=np.zeros(shape))


def test_start_from_the_solution_of_another_model() -> None:
    other = bt.learn(bt.Samples(model(features=tables(3)), X), "piecewise")
    with pytest.raises(ValueError, match=r"start must have shape \(2,\), found \(3,\)"):
        learn(start=other)


@pytest.mark.parametrize("value", [NAN, INF])
def test_start_that_is_not_finite(value: float) -> None:
    with pytest.raises(ValueError, match="start holds NaN or infinite"):
        learn(start=[0.0, value])


@pytest.mark.parametrize("start", ["zero", ["a", "b"], [None, None], [1j, 0j]])
def test_start_of_a_wrong_dtype(start: Any) -> None:
    with pytest.raises(TypeError, match="start must hold real numbers"):
        learn(start=start)


@pytest.mark.parametrize("callback", [3, "print", []])
def test_callback_that_cannot_be_called(callback: Any) -> None:
    with pytest.raises(TypeError, match="callback must be callable"):
        learn(callback=callback)


# --- configured learners ---


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("entropy", "kikuchi"),
        ("entropy", None),
        ("start", "random"),
        ("solver", "newton"),
        ("share", -0.1),
        ("share", 1.1),
        ("share", NAN),
    ],
)
def test_bad_settings_of_camel(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^{name} must be"):
        bt.Camel(**{name: value})


def test_sepset_entropies_without_consistency() -> None:
    with pytest.raises(ValueError, match="consistency=False needs"):
        bt.Camel(entropy="bethe", consistency=False)


def test_unknown_inference_of_the_likelihood() -> None:
    with pytest.raises(ValueError, match="inference must be"):
        bt.Likelihood(inference="guesswork")


@pytest.mark.parametrize("start", ["zero", "piecewise", "empirical"])
@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"sepsets": -0.5}, "numbers of sepsets must not be negative"),
        ({"sepsets": [1.0, 1.0, 1.0, -1.0]}, "numbers of sepsets must not be negative"),
        ({"clusters": 0.0}, "numbers of clusters with a table must be positive"),
        ({"clusters": [1.0, -1.0, 1.0, 1.0, 1.0]}, "numbers of clusters with a table must be positive"),
        ({"clusters": [1.0, 1.0, 1.0, -1.0, 1.0]}, "numbers of hubs must not be negative"),
        ({"clusters": NAN}, "numbers of clusters must be finite"),
        ({"sepsets": INF}, "numbers of sepsets must be finite"),
        ({"clusters": np.ones(4)}, r"numbers of clusters must be one number or one for each of the 5, found shape \(4"),
        ({"clusters": np.ones(6)}, r"numbers of clusters must be one number or one for each of the 5, found shape \(6"),
        ({"sepsets": np.ones(5)}, r"numbers of sepsets must be one number or one for each of the 4, found shape \(5"),
        ({"sepsets": np.ones((2, 2))}, r"numbers of sepsets must be one number .* found shape \(2, 2\)"),
    ],
)
def test_bad_counting_numbers(numbers: dict[str, Any], message: str, start: str) -> None:
    """Even where another learner would run first."""
    with pytest.raises(ValueError, match=message):
        learn(None, bt.Camel(entropy=CountingNumbers(**numbers), start=start))


def test_counting_numbers_that_are_no_numbers() -> None:
    with pytest.raises(TypeError, match="counting numbers of clusters must hold real numbers"):
        learn(None, bt.Camel(entropy=CountingNumbers(clusters="many")))
