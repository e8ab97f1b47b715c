"""Inference that chooses, and the exact kernels behind it, against sums over all joint states."""

from __future__ import annotations

import resource
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import bactrian as bt
from bactrian.graphs.elimination import MemoryBudgetError, junction_tree
from bactrian.graphs.join_graph import join_graph
from bactrian.inference.auto import on_join_graph, result_of
from bactrian.inference.problem import Options, bytes_of, new_problem
from bactrian.parallel.threads import Deadline
from bactrian.solvers.solution import ConvergenceWarning

Scope = tuple[int, ...]


def model_of(sizes: list[int], tables: dict[Scope, np.ndarray]) -> bt.LogLinearModel:
    graph = bt.ClusterGraph(sizes, list(tables))
    return bt.LogLinearModel(graph, [np.zeros((t.size, 0)) for t in tables.values()], [*tables.values()])


def random_tables(
    seed: int, n: int, states: int, *, zeros: float = 0.0, scale: float = 1.0
) -> tuple[list[int], dict[Scope, np.ndarray]]:
    """Tables of one to three variables, some with one state, in several components."""
    random = np.random.default_rng(seed)
    sizes = random.integers(1, states + 1, n).tolist()
    tables = {}
    for _ in range(int(1.6 * n)):
        scope = tuple(sorted(random.choice(n - 1, size=random.integers(1, 4), replace=False).tolist()))
        table = scale * random.normal(size=[sizes[v] for v in scope])
        table[random.random(table.shape) < zeros] = -np.inf
        table.flat[0] = 0.0
        tables[scope] = table.ravel()
    return sizes, tables


def enumerated(sizes: list[int], tables: dict[Scope, np.ndarray], evidence: dict[int, int]) -> tuple[float, np.ndarray]:
    """log Z, and the probabilities of all joint states."""
    scores = np.zeros(sizes)
    for scope, table in tables.items():
        scores = scores + table.reshape([k if v in scope else 1 for v, k in enumerate(sizes)])
    for v, state in evidence.items():
        seen = np.full(sizes[v], -np.inf)
        seen[state] = 0.0
        scores = scores + seen.reshape([-1 if u == v else 1 for u in range(len(sizes))])
    top = scores.max()
    if top == -np.inf:
        return top, scores
    weights = np.exp(scores - top)
    return float(np.log(weights.sum()) + top), weights / weights.sum()


def assert_exact(
    sizes: list[int], tables: dict[Scope, np.ndarray], evidence: dict[int, int], method: str, **options: Any
) -> None:
    model = model_of(sizes, tables)
    log_z, joint = enumerated(sizes, tables, evidence)
    if log_z == -np.inf:
        with pytest.raises(ValueError, match="no joint state"):
            bt.infer(model, [], method, evidence, **options)
        return
    result = bt.infer(model, [], method, evidence, **options)
    assert result.bound == "exact"
    assert result.log_partition == pytest.approx(log_z, abs=1e-9, rel=1e-11)
    every = range(len(sizes))
    for v in every:
        expected = joint.sum(axis=tuple(u for u in every if u != v))
        np.testing.assert_allclose(result.variables[v], expected, atol=1e-10)
    for i, scope in enumerate(tables):
        expected = joint.sum(axis=tuple(u for u in every if u not in scope))
        np.testing.assert_allclose(result.clusters[i], expected, atol=1e-10)


@pytest.mark.parametrize("seed", range(24))
def test_small_models_are_exact(seed: int) -> None:
    """Zeros, evidence, components, single states, contradictions, and scores that only logarithms hold."""
    sizes, tables = random_tables(seed, 8, 3, zeros=(0.0, 0.3, 0.6)[seed % 3], scale=(1.0, 300.0)[seed % 2])
    evidence = {v: int(seed % sizes[v]) for v in range(0, 8, 5)} if seed % 4 else {}
    assert_exact(sizes, tables, evidence, "auto")


@pytest.mark.parametrize(("zeros", "scale"), [(0.0, 1.0), (0.5, 1.0), (0.0, 200.0), (0.5, 200.0)])
def test_cliques_of_many_tiles(zeros: float, scale: float) -> None:
    """All pairs of 15 variables: one clique of 2^15 states; and 9 variables of 4 states with a few pairs less."""
    random = np.random.default_rng(5)
    for n, states in ((15, 2), (9, 4)):
        tables = {}
        for u in range(n):
            for v in range(u + 1, n):
                if (u, v) in ((0, n - 1), (1, n - 2), (2, n - 1)):
                    continue
                table = scale / n * random.normal(size=states**2)
                table[random.random(table.size) < zeros / n] = -np.inf
                tables[u, v] = table
        assert_exact([states] * n, tables, {}, "exact")
        assert_exact([states] * n, tables, {3: 1}, "auto")


def grid(side: int, strength: float, seed: int = 0) -> tuple[list[int], dict[Scope, np.ndarray]]:
    random, tables = np.random.default_rng(seed), {}
    for v in range(side * side):
        tables[v,] = random.normal(size=2)
        for u in ([v + 1] if (v + 1) % side else []) + ([v + side] if v + side < side * side else []):
            tables[v, u] = strength * random.normal() * np.array([1.0, -1.0, -1.0, 1.0])
    return [2] * side**2, tables


def test_a_few_variables_are_summed_over_where_memory_is_short() -> None:
    sizes, tables = grid(4, 1.0)
    model = model_of(sizes, tables)
    with pytest.raises(MemoryBudgetError, match="choose an approximate method"):
        bt.infer(model, [], "exact", memory_budget=16)
    for budget in (400, 600, 10_000):
        assert_exact(sizes, tables, {5: 1}, "exact", memory_budget=budget)


def test_approximations_where_nothing_fits() -> None:
    """Clusters of two variables come near; the route says what was done, and the interval holds log Z."""
    sizes, tables = grid(4, 1.0)
    log_z, joint = enumerated(sizes, tables, {})
    result = bt.infer(model_of(sizes, tables), [], memory_budget=8, max_seconds=10.0)
    assert result.method == "auto"
    assert "exact inference needs" in result.route
    assert "join graph" in result.route
    assert result.bound is None
    assert result.interval is not None
    low, high = result.interval
    assert low <= log_z <= high
    for v in range(16):
        expected = joint.sum(axis=tuple(u for u in range(16) if u != v))
        np.testing.assert_allclose(result.variables[v], expected, atol=0.05)
    for i, scope in enumerate(tables):
        expected = joint.sum(axis=tuple(u for u in range(16) if u not in scope))
        np.testing.assert_allclose(result.clusters[i], expected, atol=0.1)


def test_equal_tables_do_not_end_join_graphs_at_once() -> None:
    """A cycle of equal tables: before ends have told each other anything they agree, and are wrong."""
    tables = {(v, (v + 1) % 6): np.array([0.0, 1.0, 1.0, 3.0]) for v in range(6)}
    _, joint = enumerated([2] * 6, tables, {})
    result = bt.infer(model_of([2] * 6, tables), [], memory_budget=8, max_seconds=10.0)
    np.testing.assert_allclose(result.variables[0], joint.sum(axis=tuple(range(1, 6))), atol=0.05)


def test_join_graphs_heed_the_time() -> None:
    scopes = [(u, v) for u in range(20) for v in range(20, 40)]
    tree = junction_tree([2] * 40, scopes)
    assert join_graph([2] * 40, scopes, len(scopes), tree, 4, Deadline(0.0)) is None
    assert join_graph([2] * 40, scopes, len(scopes), tree, 4, Deadline(100.0)).pairs


def test_a_sum_over_states_of_the_variable_that_closes_a_cycle_is_exact() -> None:
    random, sizes = np.random.default_rng(3), [3, 2, 2, 2, 2, 2]
    pairs = [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (0, 5)]
    tables = {(u, v): random.normal(size=sizes[u] * sizes[v]) for u, v in pairs}
    log_z, joint = enumerated(sizes, tables, {})
    problem = new_problem(model_of(sizes, tables), [], {}, Options())
    _, clusters, hubs = problem.data.structure.scopes(0)
    scopes = [*clusters, *hubs]
    joined = join_graph(sizes, scopes, len(clusters), junction_tree(sizes, scopes, evidence=[0]), 1)
    answer = on_join_graph(problem, 0, joined, lambda _: False, [{0: s} for s in range(3)])
    assert answer is not None
    result = result_of(problem, 0, answer)
    assert result.log_partition == pytest.approx(log_z, abs=1e-4)
    for v in range(6):
        expected = joint.sum(axis=tuple(u for u in range(6) if u != v))
        np.testing.assert_allclose(result.variables[v], expected, atol=1e-4)


def test_join_graphs_that_disagree_are_averaged() -> None:
    """A grid with several modes: marginals of the first are .061 off in the mean, their average .02."""
    model = model_of(*grid(10, 1.5))
    exact = bt.infer(model, [], "exact")
    result = bt.infer(model, [], memory_budget=4096, max_seconds=8.0)  # all 32 take 1
    assert "join graphs of clusters of up to 256 states" in result.route
    far = [np.abs(p - q).max() for p, q in zip(result.variables, exact.variables, strict=True)]
    assert np.mean(far) < 0.04


@pytest.mark.parametrize("evidence", [{}, {7: 1, 12: 0}])
def test_larger_clusters_come_nearer(evidence: dict[int, int]) -> None:
    """Copies of variables agree in the end; clusters without copies are exact."""
    sizes, tables = grid(4, 1.5, seed=2)
    log_z, joint = enumerated(sizes, tables, evidence)
    problem = new_problem(model_of(sizes, tables), [], evidence, Options())
    _, clusters, hubs = problem.data.structure.scopes(0)
    scopes = [*clusters, *hubs]
    tree = junction_tree(sizes, scopes, evidence=evidence)
    errors = []
    for limit in (1, 8, 16, 2**16):
        joined = join_graph(sizes, scopes, len(clusters), tree, limit)
        assert all(len(clique) <= 4 for clique in joined.factors.tree.cliques) or limit > 16
        answer = on_join_graph(problem, 0, joined, lambda _: False)
        assert answer is not None
        result = result_of(problem, 0, answer)
        assert result.converged
        assert result.residual <= 1e-5
        every = range(16)
        expected = [joint.sum(axis=tuple(u for u in every if u != v)) for v in every]
        errors.append(max(np.abs(result.variables[v] - expected[v]).max() for v in every))
    assert not joined.pairs
    assert result.bound == "exact"
    assert result.log_partition == pytest.approx(log_z, abs=1e-9)
    assert errors[-1] < 1e-10
    assert errors[2] < errors[0]


def test_observed_variables_of_join_graphs() -> None:
    sizes, tables = grid(4, 1.0)
    evidence = {5: 1, 9: 0}
    _, joint = enumerated(sizes, tables, evidence)
    result = bt.infer(model_of(sizes, tables), [], "auto", evidence, memory_budget=8, max_seconds=10.0)
    assert "join graph" in result.route
    for v in range(16):
        expected = joint.sum(axis=tuple(u for u in range(16) if u != v))
        np.testing.assert_allclose(result.variables[v], expected, atol=0.05)
    assert result.variables[5].tolist() == [0.0, 1.0]


def test_models_of_a_list_are_answered_each_in_its_way() -> None:
    small, large = grid(2, 1.0), grid(5, 1.0)
    models = [model_of(*small), model_of(*large)]
    first, second = bt.infer(models, [], "auto", memory_budget=250, max_seconds=10.0)
    assert (first.bound, second.bound) == ("exact", None)
    assert first.log_partition == pytest.approx(enumerated(*small, {})[0], abs=1e-9)
    assert first.interval is None
    assert second.interval is not None


@pytest.mark.filterwarnings("ignore::bactrian.solvers.solution.ConvergenceWarning")
def test_a_callback_sees_the_best_so_far_and_stops() -> None:
    sizes, tables = grid(6, 2.0)
    seen = []

    def stop(progress: Any) -> bool:
        seen.append(progress.best)
        return any(best is not None for best in progress.best)

    result = bt.infer(model_of(sizes, tables), [], memory_budget=8, callback=stop, max_seconds=30.0)
    assert result.status == "stopped by the callback"
    assert seen[-1][0] is not None
    np.testing.assert_allclose(result.variables[0].sum(), 1.0)


@pytest.mark.filterwarnings("ignore::bactrian.solvers.solution.ConvergenceWarning")
def test_an_interrupt_returns_the_best_so_far() -> None:
    def interrupt(progress: Any) -> None:
        if progress.best[0] is not None:
            raise KeyboardInterrupt

    result = bt.infer(model_of(*grid(6, 2.0)), [], memory_budget=8, callback=interrupt, max_seconds=30.0)
    assert result.status == "interrupted"
    np.testing.assert_allclose(result.variables[0].sum(), 1.0)


def test_the_time_limit_holds() -> None:
    model = model_of(*grid(30, 3.0))
    for _ in range(2):  # the first time compiles, which does not count
        with pytest.warns(ConvergenceWarning, match="auto did not converge"):
            result = bt.infer(model, [], max_seconds=1.0, tolerance=1e-300)
    assert result.seconds < 10.0  # where others keep the machine busy


def test_budgets_in_words() -> None:
    assert bytes_of("1.5 MiB") == 1.5 * 2**20
    assert bytes_of(None) > 0
    with pytest.raises(ValueError, match="memory_budget must be bytes such as '6G'"):
        bt.infer(model_of([2], {(0,): np.zeros(2)}), [], memory_budget="lots")


@pytest.mark.slow
def test_memory_stays_within_the_budget() -> None:
    """A grid whose cliques would take 485 MiB, with messages of 189 MiB."""
    code = (
        "import numpy as np, bactrian as bt\n"
        "n = 19\n"
        "pairs = [(n*i+j, n*i+j+d) for i in range(n) for j in range(n) for d in (1, n) "
        "if (d == 1 and j + 1 < n) or (d == n and i + 1 < n)]\n"
        "graph = bt.ClusterGraph([2]*(n*n), pairs)\n"
        "model = bt.LogLinearModel(graph, [np.array([[1.0], [0], [0], [1.0]])]*len(pairs))\n"
        "print(bt.infer(model, [0.1], 'exact', memory_budget='200M', n_threads=1).log_partition)\n"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(done.stdout) > 0.0
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    assert peak == before or peak <= (200 + 256) * 1024
