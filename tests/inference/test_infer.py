"""Marginals and partition functions: every method against enumeration, each other and the contract of ``infer``."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import (
    Array,
    DenseModel,
    bethe_free_energy,
    cluster_marginals,
    largest_change,
    log_partition,
    variable_marginals,
)
from random_models import (
    BETHE_SHAPES,
    EXPLICIT_SHAPES,
    LOOPY_SHAPES,
    TREE_SHAPES,
    Shape,
    generative_problem,
    problems,
)

import bactrian as bt
from bactrian.camel.entropy import CountingNumbers
from bactrian.graphs.elimination import MemoryBudgetError

EVERYWHERE = (*BETHE_SHAPES, *EXPLICIT_SHAPES)
MESSAGE_METHODS = ("bp", "rbp", "trw", "convex", "double-loop")


def build(model: DenseModel, edges: Any) -> bt.LogLinearModel:
    graph = bt.ClusterGraph(model.cardinalities, model.clusters, edges)
    return bt.LogLinearModel(graph, model.features, model.base_scores)


def random_model(seed: int, shape: Shape, size: int = 5, coupling: float = 1.0) -> tuple[DenseModel, Any, Array]:
    problem = generative_problem(seed, shape, size=size, rows=1, base=True, coupling=coupling)
    return problem.data[0].model, problem.edges[0], problem.true_weights


def tables_model(
    cardinalities: list[int], tables: dict[tuple[int, ...], Array], edges: Any = "bethe"
) -> bt.LogLinearModel:
    """A model of fixed scores, with no weights."""
    scores = [np.ravel(table) for table in tables.values()]
    graph = bt.ClusterGraph(cardinalities, list(tables), edges)
    return bt.LogLinearModel(graph, [np.zeros((table.size, 0)) for table in scores], scores)


def dense(cardinalities: list[int], tables: dict[tuple[int, ...], Array]) -> DenseModel:
    scores: list[Array | None] = [np.ravel(table) for table in tables.values()]
    features = [np.zeros((np.size(table), 0)) for table in tables.values()]
    return DenseModel(cardinalities, list(tables), features, scores)


def frustrated_grid(seed: int, side: int = 6, strength: float = 3.0) -> bt.LogLinearModel:
    rng = np.random.default_rng(seed)
    tables: dict[tuple[int, ...], Array] = {(v,): rng.normal(size=2) * 0.5 for v in range(side * side)}
    for v in range(side * side):
        for u in ([v + 1] if (v + 1) % side else []) + ([v + side] if v + side < side * side else []):
            coupling = rng.uniform(-strength, strength)
            tables[v, u] = coupling * np.array([[1.0, -1.0], [-1.0, 1.0]])
    return tables_model([2] * (side * side), tables)


NO_WEIGHTS = np.zeros(0)


def quiet(*args: Any, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bt.ConvergenceWarning)
        return bt.infer(*args, **options)


def assert_exact(
    result: Any, model: DenseModel, weights: Array, evidence: dict[int, int] | None, within: float
) -> None:
    assert result.log_partition == pytest.approx(log_partition(model, weights, evidence), abs=within)
    assert largest_change(variable_marginals(model, weights, evidence), list(result.variables)) <= within
    expected = cluster_marginals(model, weights, evidence)
    assert largest_change(expected, [result.clusters[i] for i in range(len(expected))]) <= within


# --- exact ---


@pytest.mark.parametrize("shape", EVERYWHERE)
@pytest.mark.parametrize("seed", range(4))
def test_exact_agrees_with_enumeration(shape: Shape, seed: int) -> None:
    model, edges, weights = random_model(seed, shape)
    evidence = {0: 1, 2: 0} if seed % 2 else None
    result = bt.infer(build(model, edges), weights, "exact", evidence)
    assert result.converged
    assert_exact(result, model, weights, evidence, 1e-9)
    for i, scope in enumerate(model.clusters):
        assert result.clusters[i].shape == tuple(model.cardinalities[v] for v in scope)


@settings(max_examples=30)
@given(problem=problems(), data=st.data())
def test_exact_agrees_with_enumeration_on_anything(problem: Any, data: st.DataObject) -> None:
    model, edges = problem.data[0].model, problem.edges[0]
    observed = data.draw(st.sets(st.integers(0, len(model.cardinalities) - 1)))
    evidence = {v: data.draw(st.integers(0, model.cardinalities[v] - 1)) for v in sorted(observed)}
    result = bt.infer(build(model, edges), problem.true_weights, "exact", evidence)
    assert_exact(result, model, problem.true_weights, evidence, 1e-9)
    for v, state in evidence.items():
        assert result.variables[v].tolist() == [float(s == state) for s in range(model.cardinalities[v])]


@pytest.mark.filterwarnings("ignore")  # its SWIG types warn when they are made, and crash where that is an error
@pytest.mark.parametrize("seed", range(6))
def test_exact_agrees_with_pyagrum(seed: int) -> None:
    gum = pytest.importorskip("pyagrum", reason="pyagrum is not installed: the junction tree has no peer to agree with")
    rng = np.random.default_rng(seed)
    cardinalities = rng.integers(2, 4, size=12).tolist()
    scopes = {tuple(sorted(rng.choice(12, size=int(rng.integers(2, 4)), replace=False).tolist())) for _ in range(18)}
    scopes |= {(v,) for v in range(12)}  # it has no answer for a variable without a factor
    tables = {scope: rng.normal(size=[cardinalities[v] for v in scope]) for scope in sorted(scopes)}
    field = gum.MarkovRandomField()
    for v, k in enumerate(cardinalities):
        field.add(gum.RangeVariable(f"x{v}", "", 0, k - 1))
    for scope, table in tables.items():
        field.addFactor([f"x{v}" for v in scope])
        names = field.factor({f"x{v}" for v in scope}).names
        axes = [scope.index(int(name[1:])) for name in reversed(names)]
        field.factor({f"x{v}" for v in scope})[:] = np.ascontiguousarray(np.exp(np.transpose(table, axes)))
    evidence = {0: 1, 5: 0}
    engine = gum.ShaferShenoyMRFInference(field)
    engine.setEvidence({f"x{v}": state for v, state in evidence.items()})
    engine.makeInference()
    result = bt.infer(tables_model(cardinalities, tables), NO_WEIGHTS, "exact", evidence)
    for v in range(12):
        posterior = engine.posterior(f"x{v}").toarray()
        np.testing.assert_allclose(result.variables[v], posterior, atol=1e-9)


def test_exact_refuses_what_does_not_fit() -> None:
    model = frustrated_grid(0, side=12)
    with pytest.raises(MemoryBudgetError, match="width 1"):
        bt.infer(model, NO_WEIGHTS, "exact", memory_budget=10_000)
    row = {v: 0 for v in range(144) if v % 4 == 0}
    assert bt.infer(model, NO_WEIGHTS, "exact", row, memory_budget=200_000).converged


# --- approximations where they are exact ---


@pytest.mark.parametrize("shape", TREE_SHAPES)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("method", ["bp", "rbp", "trw", "double-loop"])
def test_exact_on_trees(shape: Shape, seed: int, method: str) -> None:
    model, edges, weights = random_model(seed, shape)
    evidence = {1: 0} if seed else None
    result = bt.infer(build(model, edges), weights, method, evidence)
    assert result.converged
    assert_exact(result, model, weights, evidence, 1e-6)


@pytest.mark.parametrize(
    "options", [{"schedule": "parallel"}, {"damping": 0.3}, {"schedule": "parallel", "damping": 0.3}]
)
def test_every_schedule_finds_the_same_fixed_point(options: dict[str, Any]) -> None:
    model, edges, weights = random_model(3, "dense")
    graph = build(model, edges)
    expected = bt.infer(graph, weights, "rbp", tolerance=1e-10)
    found = bt.infer(graph, weights, "bp", tolerance=1e-10, **options)
    assert found.converged
    assert found.log_partition == pytest.approx(expected.log_partition, abs=1e-7)
    assert largest_change(list(expected.clusters), list(found.clusters)) <= 1e-7


@pytest.mark.parametrize("seed", range(4))
def test_free_energy_is_that_of_bethe(seed: int) -> None:
    model, edges, weights = random_model(seed, "dense")
    result = bt.infer(build(model, edges), weights, "rbp", tolerance=1e-10)
    tables = [result.clusters[i] for i in range(len(model.clusters))]
    energy = bethe_free_energy(model, weights, tables, list(result.variables))
    assert result.free_energy == pytest.approx(energy, abs=1e-7)
    assert result.log_partition == pytest.approx(-energy, abs=1e-7)


# --- the double loop ---


@pytest.mark.parametrize("shape", LOOPY_SHAPES)
@pytest.mark.parametrize("seed", range(2))
def test_double_loop_stays_at_a_fixed_point_of_bp(shape: Shape, seed: int) -> None:
    model, edges, weights = random_model(seed, shape)
    graph = build(model, edges)
    fixed = bt.infer(graph, weights, "rbp", tolerance=1e-12)
    result = bt.infer(graph, weights, "double-loop", start=fixed, tolerance=1e-10)
    assert result.converged
    assert largest_change(list(fixed.clusters), list(result.clusters)) <= 1e-6
    assert result.free_energy == pytest.approx(fixed.free_energy, abs=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_double_loop_converges_where_bp_does_not_and_never_climbs(seed: int) -> None:
    model = frustrated_grid(seed)
    assert not quiet(model, NO_WEIGHTS, "bp", max_iterations=200).converged
    result = bt.infer(model, NO_WEIGHTS, "double-loop", tolerance=1e-7)
    assert result.converged
    assert result.violation < 1e-5
    assert len(result.history) > 2
    assert max(np.diff(result.history)) <= 1e-9
    assert result.history[-1] == pytest.approx(result.free_energy)


def test_double_loop_takes_no_notice_of_the_company() -> None:
    """A model that needs many relinearisations must not keep another from converging."""
    graph = bt.ClusterGraph([2, 2, 2], [(0, 1), (1, 2), (0, 2), (0,)])
    agree, first = np.array([[1.0, 0.0], [0.0, 0.0], [0.0, 0.0], [1.0, 0.0]]), np.array([[0.0, 1.0], [0.0, 0.0]])
    models = [bt.LogLinearModel(graph, [s * agree, s * agree, s * agree, first]) for s in (3.0, 0.5)]
    alone = bt.infer(models[1], [1.0, 0.005], "double-loop")
    with pytest.warns(bt.ConvergenceWarning, match="1 of 2 models"):
        both = bt.infer(models, [1.0, 0.005], "double-loop", max_iterations=alone.iterations)
    assert [result.converged for result in both] == [False, True]
    assert both[1].history == alone.history
    np.testing.assert_array_equal(np.array(both[1].variables), np.array(alone.variables))


def test_fallback_finishes_what_rbp_does_not() -> None:
    easy, hard = frustrated_grid(0, strength=0.3), frustrated_grid(0)
    with pytest.warns(bt.ConvergenceWarning, match="1 of 2 models"):
        short = bt.infer([easy, hard], NO_WEIGHTS, "rbp", max_iterations=200)
    assert [result.converged for result in short] == [True, False]
    assert "limit of 200" in short[1].status
    finished = bt.infer([easy, hard], NO_WEIGHTS, "rbp", max_iterations=1000, fallback="double-loop", tolerance=1e-6)
    assert [result.converged for result in finished] == [True, True]
    assert [result.method for result in finished] == ["rbp", "double-loop"]
    assert finished[1].violation < 1e-4


# --- bounds and counting numbers ---


@pytest.mark.parametrize("shape", EVERYWHERE)
@pytest.mark.parametrize("seed", range(4))
def test_bounds(shape: Shape, seed: int) -> None:
    model, edges, weights = random_model(seed, shape, coupling=1.5)
    graph = build(model, edges)
    upper = bt.infer(graph, weights, "trw", max_iterations=20_000)
    lower = quiet(graph, weights, "mean-field")
    exact = log_partition(model, weights)
    assert upper.converged
    assert upper.log_partition >= exact - 1e-7
    assert lower.log_partition <= exact + 1e-9


def test_convex_reports_its_numbers_and_takes_them_back() -> None:
    model, edges, weights = random_model(0, "ternary")
    graph = build(model, edges)
    result = bt.infer(graph, weights, "convex", tolerance=1e-10)
    numbers = result.counting_numbers
    for v in range(5):
        around = [cluster for cluster in model.clusters if v in cluster and len(cluster) > 1]
        hub = graph.graph.hub_of_variable[v]
        total = numbers.clusters[hub] - sum(
            numbers.sepsets[e] for e, (_, end, _) in enumerate(graph.graph.edges) if end == hub
        )
        expected = max(1 - len(around), -sum(1 / len(cluster) for cluster in around))
        assert total == pytest.approx(expected)
    again = bt.infer(graph, weights, "convex", tolerance=1e-10, counting_numbers=numbers)
    assert again.log_partition == pytest.approx(result.log_partition, abs=1e-8)
    bethe = bt.infer(graph, weights, "rbp").counting_numbers
    with pytest.raises(ValueError, match="not provably concave"):
        bt.infer(graph, weights, "convex", counting_numbers=bethe)


def test_certificate_needs_the_linear_programme() -> None:
    # Equal shares of the clusters do not cover the middle variable; more of both clusters does.
    model = tables_model([2, 2, 2], {(0, 1): np.eye(2), (1, 2): np.eye(2)})
    covered = CountingNumbers(clusters=[1.0, 1.0, 1.0, 1.0, 1.0], sepsets=[0.0, 1.25, 1.25, 0.0])
    result = bt.infer(model, NO_WEIGHTS, "convex", counting_numbers=covered)
    assert result.converged
    assert all(np.isfinite(table).all() for table in (*result.variables, *result.clusters))
    nothing_left = CountingNumbers(clusters=[1.0, 1.0, 1.0, 1.0, 1.0], sepsets=[0.0, 1.5, 1.5, 0.0])
    with pytest.raises(ValueError, match="add up to more than 0"):
        bt.infer(model, NO_WEIGHTS, "convex", counting_numbers=nothing_left)
    beyond = CountingNumbers(clusters=[1.0, 1.0, 1.0, 1.0, 1.0], sepsets=[0.0, 1.6, 1.6, 0.0])
    with pytest.raises(ValueError, match="not provably concave"):
        bt.infer(model, NO_WEIGHTS, "convex", counting_numbers=beyond)


def test_trw_numbers_are_appearance_probabilities() -> None:
    model = frustrated_grid(0, side=4, strength=0.5)
    numbers = bt.infer(model, NO_WEIGHTS, "trw").counting_numbers
    rho = numbers.clusters[16:]
    assert ((rho > 0.0) & (rho <= 1.0)).all()
    assert rho.sum() == pytest.approx(15.0)  # a spanning tree of 16 variables has 15 edges


# --- zeros and extremes ---


@pytest.mark.parametrize("method", ["exact", *MESSAGE_METHODS])
def test_hard_constraints(method: str) -> None:
    forbid = np.where(np.eye(3, dtype=bool), -np.inf, 0.0)
    tables = {(0,): np.array([0.0, 1.0, -np.inf]), (0, 1): forbid, (1, 2): forbid, (2, 3): forbid}
    result = bt.infer(tables_model([3] * 4, tables), NO_WEIGHTS, method, {3: 0})
    model = dense([3] * 4, tables)
    if method != "convex":
        assert_exact(result, model, NO_WEIGHTS, {3: 0}, 1e-6)
    assert result.variables[0][2] == 0.0
    assert result.variables[3].tolist() == [1.0, 0.0, 0.0]


@pytest.mark.parametrize("method", ["exact", *MESSAGE_METHODS])
@pytest.mark.parametrize("edges", ["bethe", [(0, 1, (1,))]])
def test_contradictory_evidence_is_an_error(method: str, edges: Any) -> None:
    equal = np.where(np.eye(2, dtype=bool), 0.0, -np.inf)
    model = tables_model([2, 2, 2], {(0, 1): equal, (1, 2): equal}, edges)
    with pytest.raises(ValueError, match="evidence contradicts the model"):
        bt.infer(model, NO_WEIGHTS, method, {0: 0, 2: 1})
    with pytest.raises(ValueError, match="model 1: the evidence contradicts"):
        bt.infer([model, model], NO_WEIGHTS, method, [None, {0: 0, 1: 1}])
    assert bt.infer(model, NO_WEIGHTS, method, {0: 1}).variables[2].tolist() == [0.0, 1.0]


@st.composite
def extreme_models(draw: st.DrawFn) -> tuple[list[int], dict[tuple[int, ...], Array]]:
    """Up to five variables, one of which may have 1 or 50 states; scores of 0, +-700 or -inf."""
    n = draw(st.integers(1, 5))
    cardinalities = draw(st.lists(st.sampled_from([1, 2, 2, 3]), min_size=n, max_size=n))
    if draw(st.booleans()):
        cardinalities[0] = 50
    scope = st.lists(st.integers(0, n - 1), min_size=1, max_size=3, unique=True).map(tuple)
    tables = {}
    for s in draw(st.lists(scope, min_size=1, max_size=6, unique=True)):
        rng = np.random.default_rng(draw(st.integers(0, 2**32)))
        values = draw(st.sampled_from([[0.0, 1.0], [-700.0, 700.0], [0.0, -np.inf], [-700.0, -np.inf, 0.3, 700.0]]))
        table = rng.choice(values, size=[cardinalities[v] for v in s])
        table.flat[0] = 0.0
        tables[s] = table
    return cardinalities, tables


@settings(max_examples=60)
@given(drawn=extreme_models(), data=st.data())
def test_extremes(drawn: tuple[list[int], dict[tuple[int, ...], Array]], data: st.DataObject) -> None:
    cardinalities, tables = drawn
    model, reference = tables_model(cardinalities, tables), dense(cardinalities, tables)
    evidence = {0: data.draw(st.integers(0, cardinalities[0] - 1))} if data.draw(st.booleans()) else {}
    exact = log_partition(reference, NO_WEIGHTS, evidence)
    for method in ("exact", *MESSAGE_METHODS):
        if exact == -np.inf and method == "exact":
            with pytest.raises(ValueError, match="positive probability"):
                bt.infer(model, NO_WEIGHTS, method, evidence)
            continue
        try:
            result = quiet(model, NO_WEIGHTS, method, evidence, max_iterations=100)
        except ValueError:  # message passing may notice that no state is possible, but need not
            if exact > -np.inf:
                raise
            continue
        for table in (*result.variables, *result.clusters):
            assert np.isfinite(table).all()
            assert table.sum() == pytest.approx(1.0)
        assert not np.isnan(result.log_partition)
        if method == "exact":
            assert result.log_partition == pytest.approx(exact, abs=1e-9, rel=1e-12)
            assert largest_change(variable_marginals(reference, NO_WEIGHTS, evidence), list(result.variables)) <= 1e-9


def test_wild_disagreement_leaves_no_nan() -> None:
    rng = np.random.default_rng(382)
    tables = {
        (2,): np.array([0.0, 1.0]),
        (0, 1, 2): rng.choice([-700.0, 700.0], size=(5, 2, 2)),
        (1, 0, 2): rng.choice([0.0, -np.inf], size=(2, 5, 2)),
        (0,): rng.choice([0.0, 1.0], size=5),
        (0, 1): rng.choice([0.0, 1.0], size=(5, 2)),
        (1,): np.array([0.0, 700.0]),
    }
    for table in tables.values():
        table.flat[0] = 0.0
    result = quiet(tables_model([5, 2, 2], tables), NO_WEIGHTS, "rbp", max_iterations=100)
    assert not result.converged
    assert np.isfinite(result.log_partition)
    assert all(table.sum() == pytest.approx(1.0) for table in (*result.variables, *result.clusters))


@pytest.mark.parametrize("method", ["exact", "bp", "rbp", "trw"])
def test_a_chain_of_a_hundred_thousand_variables(method: str) -> None:
    n = 100_000
    steps = np.arange(n - 1)
    rng = np.random.default_rng(0)
    data = bt.GraphData(rng.normal(size=(n, 2)), np.stack([steps, steps + 1], axis=1), n_labels=2, tables="full")
    weights = rng.normal(size=data.n_weights)
    (result,) = bt.infer(data, weights, method, [{0: 1, n - 1: 0}])
    assert result.converged
    # The same by a plain forward recursion.
    node, (table,) = data.split_weights(weights)
    scores = data.scores.inputs.dense @ node
    forward, scale = np.array([0.0, 1.0]) * np.exp(scores[0]), 0.0
    for v in range(1, n):
        forward = forward @ np.exp(table) * np.exp(scores[v])
        scale += np.log(forward.sum())
        forward /= forward.sum()
    assert result.log_partition == pytest.approx(scale + np.log(forward[0]), rel=1e-10)
    assert result.variables[n - 1].tolist() == [1.0, 0.0]


def test_variables_in_no_cluster_count() -> None:
    for edges in ("bethe", []):
        model = tables_model([2, 3, 4], {(0,): np.zeros(2)}, edges)
        for method in ("exact", "rbp", "trw", "convex", "double-loop"):
            result = bt.infer(model, NO_WEIGHTS, method, {2: 3})
            assert result.log_partition == pytest.approx(np.log(6.0))
            assert result.variables[1] == pytest.approx(np.full(3, 1 / 3))
            assert result.variables[2].tolist() == [0.0, 0.0, 0.0, 1.0]


@pytest.mark.parametrize(
    "edges", [[(0, 1, (0,))] * 3, [(0, 1, (0,)), (1, 2, (0,)), (0, 2, (0,))]], ids=["twice", "cycle"]
)
def test_messages_that_run_away_do_not_converge(edges: Any) -> None:
    """Sepsets that count a variable too often feed its messages back: they grow past all bounds, never stand still."""
    model = bt.LogLinearModel(
        bt.ClusterGraph([2], [(0,)] * 3, edges), [np.array([[s], [0.0]]) for s in (1.0, 0.5, 0.1)]
    )
    with pytest.warns(bt.ConvergenceWarning, match="rbp did not converge: stopped at the limit"):
        result = bt.infer(model, [1.0], "rbp")
    assert result.residual > 1.0
    beliefs = np.array(result.clusters)
    assert result.violation == pytest.approx(max(np.abs(beliefs[i] - beliefs[j]).max() for i, j, _ in edges), abs=1e-9)
    with pytest.warns(bt.ConvergenceWarning):
        solution = bt.learn([bt.Instance(model, [0])], "lbp", prior_variance=1.0)
    assert solution.status is bt.Status.UNRELIABLE


# --- many models, warm starts, limits ---


@pytest.mark.parametrize("method", ["exact", *MESSAGE_METHODS])
def test_a_list_is_the_same_as_one_by_one(method: str) -> None:
    drawn = [random_model(seed, shape) for seed in range(2) for shape in ("tree", "loop", "dense", "wide-sepsets")]
    models = [build(model, edges) for model, edges, _ in drawn]
    weights = drawn[0][2]
    evidence = [{0: 1} if m % 2 else None for m in range(len(models))]
    together = bt.infer(models, weights, method, evidence, n_threads=2)
    again = bt.infer(models, weights, method, evidence, n_threads=1)
    for m, (one, other) in enumerate(zip(together, again, strict=True)):
        assert one.log_partition == other.log_partition
        alone = bt.infer(models[m], weights, method, evidence[m])
        assert one.log_partition == pytest.approx(alone.log_partition, abs=1e-6)
        assert one.converged == alone.converged


@pytest.mark.parametrize("method", ["bp", "rbp", "trw", "convex", "double-loop"])
def test_warm_start_from_the_answer_is_immediate(method: str) -> None:
    model, edges, weights = random_model(1, "dense", coupling=0.5)
    graph = build(model, edges)
    cold = bt.infer(graph, weights, method)
    warm = bt.infer(graph, weights, method, start=cold)
    assert warm.updates < cold.updates
    assert warm.log_partition == pytest.approx(cold.log_partition, abs=1e-7)
    observed = bt.infer(graph, weights, method, {0: 1}, start=cold)
    expected = bt.infer(graph, weights, method, {0: 1})
    assert observed.log_partition == pytest.approx(expected.log_partition, abs=1e-6)
    back = bt.infer(graph, weights, method, start=observed)
    assert back.log_partition == pytest.approx(cold.log_partition, abs=1e-6)


def test_graph_data_gives_one_result_per_graph() -> None:
    rng = np.random.default_rng(0)
    edges = np.array([[0, 1], [1, 2], [0, 2], [3, 4]])
    data = bt.GraphData(rng.normal(size=(5, 2)), edges, n_labels=3, tables="symmetric", node_counts=[3, 2])
    weights = rng.normal(size=data.n_weights)
    results = bt.infer(data, weights, "exact", [{1: 2}, None])
    node, (table,) = data.split_weights(weights)
    scores = data.scores.inputs.dense @ node
    tables = {(v,): scores[v] for v in range(3)} | {(0, 1): table, (1, 2): table, (0, 2): table}
    assert_exact_variables = variable_marginals(dense([3] * 3, tables), NO_WEIGHTS, {1: 2})
    assert largest_change(assert_exact_variables, list(results[0].variables)) <= 1e-9
    assert len(results) == 2
    assert results[1].clusters[2].shape == (3, 3)


def test_limits_and_callbacks_stop_with_a_status() -> None:
    model = frustrated_grid(0)
    with pytest.warns(bt.ConvergenceWarning, match="rbp did not converge: stopped at the limit of 5 iterations"):
        result = bt.infer(model, NO_WEIGHTS, "rbp", max_iterations=5)
    assert not result.converged
    with pytest.warns(bt.ConvergenceWarning, match="time limit"):
        bt.infer(model, NO_WEIGHTS, "bp", max_iterations=10**9, max_seconds=0.05)
    seen = []
    with pytest.warns(bt.ConvergenceWarning, match="callback"):
        bt.infer(model, NO_WEIGHTS, "bp", callback=lambda progress: seen.append(progress) or len(seen) == 3)
    assert len(seen) == 3
    assert seen[-1].iteration > seen[0].iteration


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"method": "lbp"}, ValueError, "method must be one of exact, bp"),
        ({"evidence": {9: 0}}, ValueError, "evidence names variable 9; variables are 0 to 1"),
        ({"evidence": {0: 2}}, ValueError, r"evidence\[0\] is 2; states of variable 0 are 0 to 1"),
        ({"evidence": {0: 1.0}}, TypeError, "integers"),
        ({"evidence": [{0: 1}]}, TypeError, "must be a mapping"),
        ({"weights": [1.0, 2.0]}, ValueError, r"weights must have shape \(1,\)"),
        ({"weights": [np.nan]}, ValueError, r"weights\[0\] is NaN or infinite"),
        ({"weights": ["a"]}, TypeError, "weights must hold real numbers"),
        ({"tolerance": 0.0}, ValueError, "tolerance must be positive and finite, found 0.0"),
        ({"tolerance": "fine"}, TypeError, "tolerance must be a number, found 'fine'"),
        ({"max_iterations": 1.5}, TypeError, "max_iterations must be an integer, found 1.5"),
        ({"seed": -1}, ValueError, "seed must be at least 0, found -1"),
        ({"max_iterations": 0}, ValueError, "max_iterations"),
        ({"max_seconds": -1.0}, ValueError, "max_seconds"),
        ({"damping": 1.0}, ValueError, "damping"),
        ({"schedule": "random"}, ValueError, "schedule"),
        ({"fallback": "exact"}, ValueError, "fallback"),
        ({"method": "trw", "fallback": "double-loop"}, ValueError, "fallback is an option of"),
        ({"memory_budget": 0}, ValueError, "memory_budget"),
        ({"n_threads": 0}, ValueError, "n_threads"),
        ({"counting_numbers": CountingNumbers()}, ValueError, "counting_numbers is an option of 'convex'"),
        ({"method": "convex", "counting_numbers": 1.0}, TypeError, "must be CountingNumbers"),
        ({"start": 3}, TypeError, "start must be an InferenceResult"),
        ({"callback": 3}, TypeError, "callback must be callable, found int"),
        ({"colour": 3}, TypeError, "colour is not an option of 'auto'"),
        ({"model": "x"}, TypeError, "model must be a LogLinearModel"),
        ({"model": []}, ValueError, "empty list"),
    ],
)
def test_bad_arguments_are_refused(options: dict[str, Any], error: type[Exception], match: str) -> None:
    model = bt.LogLinearModel(bt.ClusterGraph([2, 2], [(0, 1)]), [np.ones((4, 1))])
    arguments = {"model": model, "weights": [0.0], **options}
    with pytest.raises(error, match=match):
        bt.infer(arguments.pop("model"), arguments.pop("weights"), **arguments)


def test_start_must_fit_the_graph() -> None:
    small, large = frustrated_grid(0, side=3, strength=0.1), frustrated_grid(0, side=4, strength=0.1)
    with pytest.raises(ValueError, match=r"start\[0\] holds"):
        bt.infer(large, NO_WEIGHTS, "rbp", start=bt.infer(small, NO_WEIGHTS, "rbp"))
