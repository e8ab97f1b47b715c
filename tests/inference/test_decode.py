"""Decoding against enumeration, against toulbar2, and at extremes."""

from __future__ import annotations

import time
import warnings
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import DenseModel, joint_scores, joint_states, most_probable, n_states
from random_models import BETHE_SHAPES, EXPLICIT_SHAPES, TREE_SHAPES, Shape, dense_clusters, generative_problem

import bactrian as bt
from bactrian.graphs.elimination import MemoryBudgetError

ALL_SHAPES = BETHE_SHAPES + EXPLICIT_SHAPES


def model_of(dense: DenseModel, edges="bethe") -> bt.LogLinearModel:
    graph = bt.ClusterGraph(dense.cardinalities, dense.clusters, edges)
    return bt.LogLinearModel(graph, dense.features, dense.base_scores)


def table_model(cardinalities, clusters, tables) -> DenseModel:
    """A model given by its log-potentials alone; its one weight does nothing."""
    features = [np.zeros((n_states(cardinalities, cluster), 1)) for cluster in clusters]
    return DenseModel(list(cardinalities), list(clusters), features, [np.asarray(t, dtype=float) for t in tables])


def score_of(dense: DenseModel, weights, assignment) -> float:
    return float(joint_scores(dense, weights)[np.ravel_multi_index(tuple(assignment), dense.cardinalities)])


def first_best(dense: DenseModel, weights, evidence=None):
    """The best assignment and its score by enumeration."""
    best = most_probable(dense, weights, evidence)
    return best, score_of(dense, weights, best)


@pytest.mark.parametrize("shape", ALL_SHAPES)
@pytest.mark.parametrize("seed", range(6))
def test_exact_is_the_best(shape: Shape, seed: int) -> None:
    problem = generative_problem(seed, shape, size=4, rows=1, coupling=2.0, base=seed % 2 == 0)
    dense, weights = problem.data[0].model, problem.true_weights
    if seed % 2:
        weights = np.round(weights)  # ties
    evidence = {1: 1} if seed % 3 == 0 else None
    best, score = first_best(dense, weights, evidence)
    found = bt.decode(model_of(dense, problem.edges[0]), weights, "exact", evidence=evidence, return_result=True)
    if seed % 2 == 0:
        assert found.assignment.tolist() == best.tolist()
    assert score_of(dense, weights, found.assignment) == pytest.approx(score, abs=1e-9)
    assert found.score == pytest.approx(score, abs=1e-9)
    assert found.bound == found.score
    assert found.optimal
    assert found.converged


@pytest.mark.parametrize("method", ["max-product", "dual"])
@pytest.mark.parametrize("seed", range(8))
def test_forests_are_decoded_exactly_by_every_method(method: str, seed: int) -> None:
    problem = generative_problem(seed, "tree", size=6, rows=1, coupling=3.0)
    dense, weights = problem.data[0].model, np.round(problem.true_weights)
    found = bt.decode(model_of(dense), weights, method, return_result=True)
    assert found.assignment.tolist() == most_probable(dense, weights).tolist()
    assert found.optimal


@pytest.mark.parametrize("shape", [shape for shape in ALL_SHAPES if shape not in TREE_SHAPES])
def test_bounds_hold_and_certificates_are_true(shape: Shape) -> None:
    certified = 0
    for seed in range(12):
        problem = generative_problem(seed, shape, size=5, rows=1, coupling=[0.5, 1.0, 3.0][seed % 3], base=True)
        dense, weights = problem.data[0].model, problem.true_weights
        evidence = {0: 1} if seed % 2 else None
        _, best = first_best(dense, weights, evidence)
        found = bt.decode(model_of(dense, problem.edges[0]), weights, "dual", evidence=evidence, return_result=True)
        assert found.bound >= best - 1e-9
        assert found.score <= best + 1e-9
        assert found.score == pytest.approx(score_of(dense, weights, found.assignment), abs=1e-9)
        if found.optimal:
            certified += 1
            assert found.score == pytest.approx(best, abs=1e-8)
    assert certified >= 6


def test_the_bound_never_rises() -> None:
    problem = generative_problem(3, "dense", size=6, rows=1, coupling=4.0)
    model = model_of(problem.data[0].model)
    bounds = [
        bt.decode(model, problem.true_weights, "dual", return_result=True, max_iterations=n, tolerance=0.0).bound
        for n in range(1, 30)
    ]
    assert all(later <= earlier for earlier, later in pairwise(bounds))


def test_the_bound_of_a_frustrated_cycle_is_not_tight() -> None:
    """Three pairs that each want to differ: the relaxation satisfies all, an assignment two."""
    dense = table_model([2, 2, 2], [(0, 1), (1, 2), (0, 2)], [[0.0, 1.0, 1.0, 0.0]] * 3)
    found = bt.decode(model_of(dense), [0.0], "dual", return_result=True)
    assert found.score == 2.0
    assert found.bound == pytest.approx(3.0)
    assert not found.optimal
    assert bt.decode(model_of(dense), [0.0], "exact").tolist() == [0, 0, 1]


def test_max_product_is_good_on_loops() -> None:
    hits = 0
    for seed in range(40):
        problem = generative_problem(seed, "dense", size=5, rows=1, coupling=1.5)
        dense, weights = problem.data[0].model, problem.true_weights
        found = bt.decode(model_of(dense), weights, "max-product", return_result=True)
        _, best = first_best(dense, weights)
        assert found.bound is None
        assert found.score <= best + 1e-9
        hits += found.score > best - 1e-9
    assert hits >= 36


def test_max_marginals_are_modes_of_marginals() -> None:
    problem = generative_problem(5, "tree", size=5, rows=1)
    dense, weights = problem.data[0].model, problem.true_weights
    model = model_of(dense)
    expected = [int(np.argmax(p)) for p in bt.infer(model, weights, method="exact").variables]
    assert bt.decode(model, weights, "max-marginals").tolist() == expected
    assert bt.decode(model, weights, "max-marginals", inference="exact").tolist() == expected
    tied = table_model([3, 2], [(0, 1)], [np.zeros(6)])
    assert bt.decode(model_of(tied), [0.0], "max-marginals").tolist() == [0, 0]


@pytest.mark.parametrize("method", ["exact", "max-product", "dual", "max-marginals"])
def test_lists_graph_data_and_threads_agree(method: str) -> None:
    rng = np.random.default_rng(0)
    counts = [4, 1, 6]
    edges = [(0, 1), (1, 2), (2, 3), (3, 0), (5, 6), (6, 7), (7, 8), (5, 9), (9, 10)]
    data = bt.GraphData(rng.normal(size=(11, 2)), edges, n_labels=3, tables="full", node_counts=counts)
    weights = rng.normal(size=data.n_weights)
    together = bt.decode(data, weights, method, evidence=[None, {0: 2}, {}], n_threads=1)
    assert [a.size for a in together] == counts
    assert together[1].tolist() == [2]
    threaded = bt.decode(data, weights, method, evidence=[None, {0: 2}, None], n_threads=3)
    for a, b in zip(together, threaded, strict=True):
        assert a.dtype == np.int64
        assert a.tolist() == b.tolist()

    problems = [generative_problem(s, shape, size=4, rows=1) for s, shape in enumerate(ALL_SHAPES)]
    models = [model_of(p.data[0].model, p.edges[0]) for p in problems]
    weights = problems[0].true_weights
    listed = bt.decode(models, weights, method)
    for model, assignment in zip(models, listed, strict=True):
        assert assignment.tolist() == bt.decode(model, weights, method).tolist()
    assert bt.decode([], weights, method) == []


@pytest.mark.parametrize("method", ["exact", "max-product", "dual", "max-marginals"])
def test_variables_in_no_cluster_are_in_state_0(method: str) -> None:
    dense = table_model([3, 2, 4], [(0, 1)], [[0, 0, 0, 0, 2.0, 0]])
    for edges in ("bethe", []):
        model = model_of(dense, edges)
        assert bt.decode(model, [0.0], method).tolist() == [2, 0, 0]
        assert bt.decode(model, [0.0], method, evidence={2: 3}).tolist() == [2, 0, 3]


@pytest.mark.parametrize("method", ["exact", "max-product", "dual", "max-marginals"])
@pytest.mark.parametrize("loop", [False, True])
def test_contradictory_evidence_is_an_error(method: str, loop: bool) -> None:
    differ = np.where(np.eye(2, dtype=bool), -np.inf, 0.0)
    clusters = [(0, 1), (1, 2), (2, 3), *([(3, 0)] if loop else [])]
    model = model_of(table_model([2] * 4, clusters, [differ] * len(clusters)))
    assert bt.decode(model, [0.0], "exact", evidence={0: 1}).tolist() == [1, 0, 1, 0]
    with pytest.raises(ValueError, match="contradicts"):
        bt.decode(model, [0.0], method, evidence={0: 0, 2: 1})


@pytest.mark.parametrize("method", ["exact", "max-product", "dual"])
def test_models_without_any_allowed_state_are_an_error(method: str) -> None:
    """An odd cycle has no colouring with two colours; arc consistency alone does not see it."""
    differ = np.where(np.eye(2, dtype=bool), -np.inf, 0.0)
    model = model_of(table_model([2] * 3, [(0, 1), (1, 2), (0, 2)], [differ] * 3))
    with pytest.raises(ValueError, match="no joint state has positive probability"):
        bt.decode([model], [0.0], method)


def test_what_max_product_cannot_find_is_said() -> None:
    """With no budget for a junction tree there is neither an allowed assignment nor a proof that there is none."""
    differ = np.where(np.eye(2, dtype=bool), -np.inf, 0.0)
    model = model_of(table_model([2] * 3, [(0, 1), (1, 2), (0, 2)], [differ] * 3))
    with pytest.warns(bt.ConvergenceWarning, match="probability zero"):
        found = bt.decode(model, [0.0], return_result=True, memory_budget=8)
    assert found.score == -np.inf
    assert not found.converged
    assert not found.optimal


def test_observed_variables_cost_nothing() -> None:
    """With all but two variables observed the junction tree of a clique of twelve is a pair."""
    rng = np.random.default_rng(1)
    clusters = dense_clusters(rng, 12, 1.0)
    dense = table_model([4] * 12, clusters, [rng.normal(size=16) for _ in clusters])
    evidence = {v: v % 4 for v in range(12) if v not in (3, 7)}
    found = bt.decode(model_of(dense), [0.0], "exact", evidence, return_result=True, memory_budget=2**10)
    assert {v: int(found.assignment[v]) for v in evidence} == evidence
    dual = bt.decode(model_of(dense), [0.0], "dual", evidence, return_result=True)
    assert dual.score == pytest.approx(found.score, abs=1e-9)
    everything = dict.fromkeys(range(12), 1)
    assert bt.decode(model_of(dense), [0.0], "exact", everything).tolist() == [1] * 12


@pytest.mark.parametrize("method", ["max-product", "dual"])
@pytest.mark.parametrize("seed", range(5))
def test_cluster_trees_are_decoded_exactly(method: str, seed: int) -> None:
    problem = generative_problem(seed, "junction", size=4, rows=1, coupling=3.0)
    dense, weights = problem.data[0].model, np.round(problem.true_weights)
    found = bt.decode(model_of(dense, problem.edges[0]), weights, method, return_result=True)
    assert found.optimal
    assert found.assignment.tolist() == most_probable(dense, weights).tolist()


def test_exact_refuses_what_does_not_fit() -> None:
    clusters = dense_clusters(np.random.default_rng(0), 12, 1.0)
    dense = table_model([4] * 12, clusters, [np.zeros(16)] * len(clusters))
    with pytest.raises(MemoryBudgetError, match="width 11"):
        bt.decode(model_of(dense), [0.0], "exact", memory_budget=2**20)


EXTREMES = [-np.inf, -700.0, -1.0, 0.0, 0.0, 1.0, 700.0]


@st.composite
def extreme_models(draw: st.DrawFn) -> tuple[DenseModel, object, dict[int, int]]:
    """Few variables of cardinality 1 to 4, or one of 50, with scores from a short list, so that ties abound."""
    n = draw(st.integers(1, 5))
    cardinalities = [draw(st.integers(1, 4)) for _ in range(n)]
    if draw(st.booleans()):
        cardinalities[draw(st.integers(0, n - 1))] = 50
        cardinalities = [min(k, 2) if k < 50 else k for k in cardinalities]
    scopes = st.lists(st.integers(0, n - 1), min_size=1, max_size=min(3, n), unique=True).map(tuple)
    clusters = draw(st.lists(scopes, min_size=1, max_size=6))
    seed = draw(st.integers(0, 2**20))
    rng = np.random.default_rng(seed)
    tables = []
    for cluster in clusters:
        table = rng.choice(EXTREMES, size=n_states(cardinalities, cluster))
        table[rng.integers(table.size)] = rng.choice([0.0, 1.0, 700.0])
        tables.append(table)
    edges = draw(st.sampled_from(["bethe", []]))
    evidence = {0: draw(st.integers(0, cardinalities[0] - 1))} if draw(st.booleans()) else {}
    return table_model(cardinalities, clusters, tables), edges, evidence


@given(extreme_models())
def test_extremes(drawn) -> None:
    dense, edges, evidence = drawn
    model = model_of(dense, edges)
    scores = joint_scores(dense, np.zeros(1))
    agrees = np.all([joint_states(dense.cardinalities)[:, v] == x for v, x in evidence.items()], axis=0)
    possible = (np.where(agrees, scores, -np.inf) > -np.inf).any()
    if not possible:
        for method in ("exact", "max-product", "dual"):
            with pytest.raises(ValueError, match="contradicts" if evidence else "no joint state"):
                bt.decode(model, [0.0], method, evidence=evidence)
        return
    _, score = first_best(dense, np.zeros(1), evidence)
    exact = bt.decode(model, [0.0], "exact", evidence=evidence)
    assert score_of(dense, np.zeros(1), exact) == pytest.approx(score, abs=1e-9)
    assert all(exact[v] == x for v, x in evidence.items())
    for method in ("max-product", "dual"):
        found = bt.decode(model, [0.0], method, evidence=evidence, return_result=True)
        assert found.score == pytest.approx(score_of(dense, np.zeros(1), found.assignment), abs=1e-9)
        assert -np.inf < found.score <= score + 1e-9
        assert all(found.assignment[v] == x for v, x in evidence.items())
        if found.bound is not None:
            assert found.bound >= score - 1e-9
        if found.optimal:
            assert found.score == pytest.approx(score, abs=1e-5)


@given(st.integers(0, 2**20), st.integers(2, 8), st.integers(1, 3))
def test_ties_on_trees_go_to_first_states(seed: int, n: int, states: int) -> None:
    """The assignment is one of the best; where all are, that of first states."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(n)
    clusters = [(int(order[rng.integers(i)]), int(order[i])) for i in range(1, n)]
    tables = [rng.choice([0.0, 1.0], size=states * states) for _ in clusters]
    dense = table_model([states] * n, clusters, tables)
    found = bt.decode(model_of(dense), [0.0])
    assert score_of(dense, np.zeros(1), found) == joint_scores(dense, np.zeros(1)).max()
    equal = table_model([states] * n, clusters, [np.zeros(states * states)] * len(clusters))
    assert not bt.decode(model_of(equal), [0.0]).any()


@pytest.mark.parametrize("method", ["max-product", "dual"])
@pytest.mark.parametrize("seed", range(20))
def test_ties_go_the_same_way_every_time(method: str, seed: int) -> None:
    """Whoever else is decoded, and on however many threads; the score is that of the assignment."""
    rng = np.random.default_rng(seed)
    models, alone = [], []
    for n in rng.integers(3, 6, size=4).tolist():
        states = int(rng.integers(2, 4))
        clusters = [(i, (i + 1) % n) for i in range(n)] + [(2, 0, 1)] * (seed % 2)
        values = [0.0, 1.0, -np.inf] if seed % 4 == 0 else [0.0, 1.0]
        tables = [rng.choice(values, size=states ** len(cluster)) for cluster in clusters]
        tables = [np.where(np.arange(t.size) == 0, 0.0, t) for t in tables]  # all zeros are allowed
        dense = table_model([states] * n, clusters, tables)
        models.append(model_of(dense))
        alone.append(bt.decode(models[-1], [0.0], method, return_result=True))
        assert alone[-1].score == score_of(dense, np.zeros(1), alone[-1].assignment)
    for threads in (1, 2):
        for together, own in zip(bt.decode(models, [0.0], method, n_threads=threads), alone, strict=True):
            assert together.tolist() == own.assignment.tolist()


@pytest.mark.parametrize("scores", ["random", "agree", "differ", "free"])
def test_long_chains(scores: str) -> None:
    rng = np.random.default_rng(1)
    n, k = 100_000, 4
    place = rng.permutation(n) if scores == "differ" else np.arange(n)
    edges = place[np.stack([np.arange(n - 1), np.arange(1, n)], axis=1)]
    inputs = rng.normal(size=(n, 2))
    data = bt.GraphData(inputs, edges, n_labels=k, tables="full")
    weights = np.zeros(data.n_weights)
    table = {"random": rng.normal(size=k * k), "agree": np.eye(k), "differ": -np.eye(k), "free": np.zeros(k * k)}
    weights[-k * k :] = np.ravel(table[scores])
    if scores == "random":
        weights[: 2 * k] = rng.normal(size=2 * k)
    bt.decode(data, weights, "exact")
    started = time.perf_counter()
    (found,) = bt.decode(data, weights, "exact", return_result=True)
    assert time.perf_counter() - started < 30.0
    assert found.optimal
    if scores == "differ":
        assert found.score == 0.0
    elif scores == "random":
        expected = viterbi(inputs @ weights[: 2 * k].reshape(2, k), np.reshape(table[scores], (k, k)))
        assert found.score == pytest.approx(expected, rel=1e-12)
    else:
        assert found.assignment.max() == 0


def viterbi(node, table) -> float:
    best = node[0].copy()
    for row in node[1:]:
        best = row + (best[:, None] + table).max(axis=0)
    return float(best.max())


def test_bad_arguments_are_named() -> None:
    model = model_of(table_model([2, 2], [(0, 1)], [np.zeros(4)]))
    for message, arguments in {
        "method must be one of auto, exact, max-product": {"method": "best"},
        "weights must have shape": {"weights": [1.0, 2.0]},
        "NaN": {"weights": [np.nan]},
        "variables are 0 to 1": {"evidence": {2: 0}},
        "states of variable 1": {"evidence": {1: 2}},
        "damping must be at least 0 and below 1, found 1.0": {"damping": 1.0},
        "inference must be one of exact, bp": {"inference": "guesswork"},
        "max_iterations": {"max_iterations": 0},
        "tolerance": {"tolerance": -1.0},
    }.items():
        with pytest.raises(ValueError, match=message):
            bt.decode(model, **{"weights": [0.0], **arguments})
    with pytest.raises(TypeError, match="unexpected keyword argument 'dampening'"):
        bt.decode(model, [0.0], dampening=0.5)
    with pytest.raises(ValueError, match="expected 1, found 2"):
        bt.decode([model], [0.0], evidence=[None, None])
    with pytest.raises(TypeError, match="one mapping per model"):
        bt.decode([model], [0.0], evidence={0: 1})
    with pytest.raises(TypeError, match="must be a LogLinearModel"):
        bt.decode(3, [0.0])
    with pytest.raises(TypeError, match=r"model\[1\]"):
        bt.decode([model, 3], [0.0])


def test_toulbar2_agrees() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        toulbar2 = pytest.importorskip("pytoulbar2", reason="pytoulbar2 is not installed: it solves the same models")
    rng = np.random.default_rng(2)
    for _ in range(5):
        side, k = 5, 3
        n = side * side
        graph = bt.grid_graph(side, side, k)
        clusters = [scope for scope in graph.clusters if len(scope) > 1]
        clusters += [(v,) for v in range(n)]
        tables = [rng.integers(-40, 40, size=k ** len(c)) / 8.0 for c in clusters]
        dense = table_model([k] * n, clusters, tables)
        model = model_of(dense)
        problem = toulbar2.CFN(1e6, resolution=3)
        for v in range(n):
            problem.AddVariable(f"x{v}", range(k))
        for cluster, table in zip(clusters, tables, strict=True):
            problem.AddFunction(list(cluster), (5.0 - table).tolist())
        _, cost, _ = problem.Solve()
        best = 5.0 * len(clusters) - cost
        found = bt.decode(model, [0.0], "exact", return_result=True)
        assert found.score == pytest.approx(best, abs=1e-2)
        bound = bt.decode(model, [0.0], "dual", return_result=True)
        assert bound.bound >= found.score - 1e-9
        if bound.optimal:
            assert bound.score == pytest.approx(found.score, abs=1e-8)


@pytest.mark.parametrize("seed", range(20))
def test_forests_of_unequal_variables(seed: int) -> None:
    """Forests of pairs with unequal numbers of states, either end of an edge above the other."""
    rng = np.random.default_rng(seed)
    cardinalities = rng.integers(1, 5, 7).tolist()
    edges = [(v, int(rng.integers(0, v))) for v in range(1, 6)]  # the last variable is alone
    edges = [edge if rng.random() < 0.5 else edge[::-1] for edge in edges]
    tables = [rng.normal(size=n_states(cardinalities, edge)) for edge in edges]
    if seed % 2:
        for table in tables:
            table[rng.random(table.size) < 0.2] = -np.inf
    dense = table_model(cardinalities, edges, tables)
    dense.cardinalities[6] = 1  # nothing tells its states apart
    if joint_scores(dense, np.zeros(1)).max() == -np.inf:
        pytest.skip("every state is forbidden")
    best, score = first_best(dense, np.zeros(1))
    found = bt.decode(model_of(dense), np.zeros(1), "exact", return_result=True)
    assert found.assignment.tolist() == best.tolist()
    assert found.score == pytest.approx(score, abs=1e-12)
