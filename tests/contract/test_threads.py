"""The number of threads changes the speed and nothing else; the same run twice gives the same bits.

Every data set has more instances than there are blocks, so that blocks hold several of them and threads several blocks.
"""

from __future__ import annotations

import threading
import warnings
from functools import cache
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import bactrian as bt
from bactrian.graphs.inputs import N_BLOCKS
from bactrian.graphs.packing import pack
from bactrian.parallel.threads import Workers

N = 3 * N_BLOCKS + 5
LEARNERS: list[Any] = [
    "piecewise",
    "camel0",
    "cccp",
    "cccp-empirical",
    "exact",
    "lbp",
    "trw",
    "convex",
    bt.Camel(entropy="clusters", solver="joint"),
]
IDS = ["piecewise", "camel0", "cccp", "cccp-empirical", "exact", "lbp", "trw", "convex", "joint"]


@cache
def instances() -> list[Any]:
    """Loops, trees and ternary clusters with features of their own, of different sizes and weights."""
    rng = np.random.default_rng(0)
    result = []
    for m in range(N):
        n = 96 + m % 3
        clusters: list[Any] = [(v, (v + 1) % n) for v in range(n if m % 4 else n - 1)]
        clusters += [(0, 1, 2)] if m % 5 == 0 else [(v,) for v in range(n)]
        graph = bt.ClusterGraph([2 + v % 2 for v in range(n)], clusters)
        features = [0.2 * rng.normal(size=(graph.size(scope), 4)) for scope in clusters]
        y = [rng.integers(k) for k in graph.cardinalities]
        result.append(bt.Instance(bt.LogLinearModel(graph, features), y, weight=rng.uniform(0.5, 1.5)))
    return result


@cache
def shared_instances() -> list[Any]:
    """Loops that share one model, so that all blocks add to the same tables."""
    rng = np.random.default_rng(1)
    n = 72
    clusters = [(v, (v + 1) % n) for v in range(n)] + [(v,) for v in range(n)]
    table, single = rng.normal(size=(9, 4)), rng.normal(size=(3, 4))
    model = bt.LogLinearModel(bt.ClusterGraph([3] * n, clusters), [table] * n + [single] * n)
    return [bt.Instance(model, rng.integers(0, 3, size=n)) for _ in range(N)]


@cache
def graphs(sparse: bool, edge_inputs: bool = False) -> Any:
    """Grids of different sizes, packed."""
    rng = np.random.default_rng(2)
    counts, edges, first = [], [], 0
    for m in range(N):
        height, width = 2, 32 + m % 3
        index = first + np.arange(height * width).reshape(height, width)
        edges += list(zip(index[:, :-1].ravel(), index[:, 1:].ravel(), strict=True))
        edges += list(zip(index[:-1].ravel(), index[1:].ravel(), strict=True))
        counts.append(height * width)
        first += height * width
    inputs = 0.4 * rng.normal(size=(first, 6)) * (rng.random((first, 6)) < 0.5)
    rows = rng.normal(size=(len(edges), 2)) if edge_inputs else None
    return bt.GraphData(
        sp.csr_array(inputs) if sparse else inputs, np.array(edges), n_labels=3, labels=rng.integers(0, 3, size=first),
        edge_inputs=rows if rows is None or not sparse else sp.csr_array(rows), node_counts=counts,
    )  # fmt: skip


DATA: dict[str, Any] = {
    "instances": instances,
    "shared instances": shared_instances,
    "dense graphs": lambda: graphs(False),
    "sparse graphs": lambda: graphs(True),
    "sparse graphs with edge inputs": lambda: graphs(True, edge_inputs=True),
}


def learn(name: str, learner: Any, n_threads: int | None) -> Any:
    tolerance = 1e-6 if isinstance(learner, str) else 5e-5  # the joint solver takes many times the steps
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bt.ConvergenceWarning)  # the joint solver may stall a little short of it
        return bt.learn(DATA[name](), learner, prior_variance=10.0, n_threads=n_threads, tolerance=tolerance)


#: What a test compares with, learned once for all of them.
learned = cache(learn)


@pytest.mark.parametrize("name", DATA)
def test_blocks_hold_several_instances(name: str) -> None:
    packed = pack(DATA[name]())
    blocks = packed.blocks.size - 1
    assert 1 < blocks <= N_BLOCKS < packed.layout.n_instances


@pytest.mark.parametrize("learner", LEARNERS, ids=IDS)
@pytest.mark.parametrize("name", ["instances", "sparse graphs"])
def test_weights_do_not_depend_on_the_number_of_threads(name: str, learner: Any) -> None:
    solutions = [learned(name, learner, n_threads) for n_threads in (1, 2, 3)]
    assert np.abs(solutions[0].weights).max() > 0.05
    assert solutions[0].moment_gap < 1e-3
    for other in solutions[1:]:
        np.testing.assert_allclose(other.weights, solutions[0].weights, rtol=0, atol=1e-8)
        assert other.objective == pytest.approx(solutions[0].objective, rel=1e-12)
        assert other.evaluations == solutions[0].evaluations
        for m in (0, N_BLOCKS, N - 1):
            for ours, theirs in zip(other.beliefs[m], solutions[0].beliefs[m], strict=True):
                np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-8)


@pytest.mark.parametrize("name", ["shared instances", "dense graphs", "sparse graphs with edge inputs"])
@pytest.mark.parametrize("learner", ["piecewise", "cccp", "exact"])
def test_other_data_does_not_depend_on_them_either(name: str, learner: str) -> None:
    one, two, three = (learn(name, learner, n_threads).weights for n_threads in (1, 2, 3))
    np.testing.assert_allclose(two, one, rtol=0, atol=1e-8)
    np.testing.assert_allclose(three, one, rtol=0, atol=1e-8)


@pytest.mark.parametrize("learner", LEARNERS, ids=IDS)
@pytest.mark.parametrize("n_threads", [1, 2])
def test_the_same_run_twice_gives_the_same_bits(learner: Any, n_threads: int) -> None:
    first, second = learned("instances", learner, n_threads), learn("instances", learner, n_threads)
    assert first.weights.tobytes() == second.weights.tobytes()
    assert first.objective == second.objective
    assert first.status is second.status
    assert [r.objective for r in first.history] == [r.objective for r in second.history]
    assert first.beliefs[7][0].tobytes() == second.beliefs[7][0].tobytes()


@pytest.mark.parametrize("name", ["shared instances", "sparse graphs"])
def test_packed_runs_repeat_as_well(name: str) -> None:
    first, second = (learn(name, "cccp", None) for _ in range(2))
    assert first.weights.tobytes() == second.weights.tobytes()


def test_generative_data_on_several_threads() -> None:
    """One instance, one block: nothing to share out, nothing to go wrong."""
    rng = np.random.default_rng(3)
    graph = bt.grid_graph(3, 3, 2)
    features = [np.eye(2)[:, :1] if len(scope) == 1 else np.eye(4)[:, [3]] for scope in graph.clusters]
    data = bt.Samples(bt.LogLinearModel(graph, features), rng.integers(0, 2, size=(30, 9)))
    one, three = (bt.learn(data, "cccp", n_threads=n).weights for n in (1, 3))
    assert one.tobytes() == three.tobytes()


# --- the workers themselves ---


@pytest.mark.parametrize("n_threads", [1, 2, 3])
def test_workers_run_every_block_once(n_threads: int) -> None:
    seen: list[tuple[int, int, int]] = []
    lock = threading.Lock()

    def task(*block: int) -> None:
        with lock:
            seen.append(block)

    Workers(n_threads).run(task, np.array([0, 3, 4, 9]))
    assert sorted(seen) == [(0, 0, 3), (1, 3, 4), (2, 4, 9)]


def test_workers_share_the_work() -> None:
    """Two blocks wait for each other: only possible on two threads."""
    barrier = threading.Barrier(2, timeout=30)
    Workers(2).run(lambda *_: barrier.wait(), np.array([0, 1, 2]))


@pytest.mark.parametrize("n_threads", [1, 2])
@pytest.mark.parametrize("error", [KeyError, IndexError])
@pytest.mark.parametrize("wrong", [1, 4])
def test_workers_raise_the_errors_of_their_tasks(n_threads: int, error: type[Exception], wrong: int) -> None:
    def task(block: int, _first: int, _last: int) -> None:
        if block == wrong:
            raise error(f"block {wrong}")

    workers = Workers(n_threads)
    with pytest.raises(error, match=f"block {wrong}"):
        workers.run(task, np.arange(6))
    workers.run(lambda *_: None, np.arange(6))


def test_threads_take_over_from_one_that_is_slow_and_end_with_their_workers() -> None:
    done: list[tuple[int, int]] = []
    both, others = threading.Barrier(2, timeout=30.0), threading.Event()

    def task(block: int, _first: int, _last: int) -> None:
        if block in (0, 4):  # with which the two begin
            both.wait()
        if block == 0:
            assert others.wait(30.0)
        done.append((threading.get_ident(), block))
        if len(done) == 7:
            others.set()

    before = set(threading.enumerate())
    workers = Workers(2)
    workers.run(task, np.arange(9))
    assert sorted(block for _, block in done) == [*range(8)]
    assert {block for thread, block in done if thread == threading.get_ident()} == {0}
    (helper,) = set(threading.enumerate()) - before
    del workers
    helper.join(30.0)
    assert not helper.is_alive()


def test_workers_without_work() -> None:
    Workers(2).run(lambda *_: pytest.fail("there is no block"), np.zeros(1, dtype=np.int64))


def test_by_default_every_core_is_used() -> None:
    assert Workers().n_threads >= 1
