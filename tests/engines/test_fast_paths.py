"""Kernels compiled for a number of states, and the long vectors of L-BFGS, against the general routes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from numba import njit

import bactrian as bt
from bactrian.camel.accuracy import SCHEDULE
from bactrian.camel.dual import Dual
from bactrian.camel.entropy import Carving, carve
from bactrian.camel.prior import Prior
from bactrian.engines.long_memory import LongMemory
from bactrian.engines.numba.arithmetic import log
from bactrian.graphs import inputs
from bactrian.graphs.inputs import BundledRows, Inputs
from bactrian.graphs.packing import pack
from bactrian.parallel.threads import Context, Workers
from bactrian.solvers.lbfgs import Memory

Array = np.ndarray[Any, Any]


def graphs(k: int, node_factors: str, own_tables: bool, seed: int = 0, copies: int = 1) -> bt.GraphData:
    """Three graphs: one with loops, a path, and nodes without edges."""
    rng = np.random.default_rng(seed)
    edges = [(0, 1), (1, 2), (2, 3), (3, 0), (1, 3), (5, 6), (7, 6), (7, 8)]
    types = [0, 1, 0, 1, 0, 0, 1, 0]
    more = {"edge_inputs": {1: rng.normal(size=(3, 2))}} if own_tables else {}
    inputs, labels = rng.normal(size=(12, 4)), rng.integers(0, k, 12)
    ends = np.concatenate([np.array(edges) + 12 * copy for copy in range(copies)])
    more = {name: {1: np.tile(rows[1], (copies, 1))} for name, rows in more.items()}
    return bt.GraphData(
        np.tile(inputs, (copies, 1)), ends, n_labels=k, labels=np.tile(labels, copies), tables=["full", "symmetric"],
        edge_types=types * copies, node_counts=[5, 4, 3] * copies, node_factors=node_factors,
        weights=[1.0, 2.0, 0.5] * copies, **more,
    )  # fmt: skip


def evaluated(data: bt.GraphData, route: str, entropy: str, scale: float) -> Any:
    fast, damping = route == "compiled", 1e-300 if route == "logs" else 0.0  # damping keeps linear space out of it
    schedule = replace(SCHEDULE, worth_compiling=1 if fast else 10**9)
    packed = pack(data)
    carving: Carving = carve(packed, "bethe").whole if entropy == "total" else carve(packed, entropy.split()[0])
    agree = not entropy.endswith("apart")
    dual = Dual(packed, carving, Prior(1.0, 0.0), Context(Workers(1)), consistency=agree, schedule=schedule)
    assert bool(dual.part.states) == fast
    dual.part.wants_marginals = True
    rng = np.random.default_rng(1)
    weights = scale * rng.normal(size=packed.n_weights)
    dual.part.linearisation[:] = 0.1 * rng.normal(size=dual.part.linearisation.size)
    if dual.consistency:
        dual.part.multipliers[:] = 0.3 * rng.normal(size=dual.part.multipliers.size)
        sweeps = 0 if entropy.endswith("given") else 3
        found = dual.evaluate(weights, tolerance=0.0, max_sweeps=sweeps, damping=damping)
    else:
        found = dual.evaluate(weights, damping=damping)
    return dual, found


@pytest.mark.parametrize("k", [2, 3, pytest.param(7, marks=pytest.mark.slow)])  # each is compiled anew
@pytest.mark.parametrize("entropy", ["total", "bethe", "clusters", "bethe given", "clusters apart"])
@pytest.mark.parametrize("node_factors", ["clusters", "edges", "first-edge"])
@pytest.mark.parametrize("own_tables", [False, True])
@pytest.mark.parametrize("route", ["compiled", "any"])
def test_linear_space_equals_log_space(k: int, entropy: str, node_factors: str, own_tables: bool, route: str) -> None:
    data = graphs(k, node_factors, own_tables)
    (slow_dual, slow), (fast_dual, fast) = (evaluated(data, f, entropy, 1.0) for f in ("logs", route))
    assert not slow_dual.part.beliefs.done.any()
    assert fast_dual.part.beliefs.done.all()
    assert fast.value == pytest.approx(slow.value, rel=1e-12)
    np.testing.assert_allclose(fast.gradient, slow.gradient, atol=1e-11)
    assert fast.violation == pytest.approx(slow.violation, rel=1e-9, abs=1e-13)
    np.testing.assert_allclose(fast_dual.part.beliefs.value, slow_dual.part.beliefs.value, rtol=1e-12)
    np.testing.assert_allclose(fast_dual.part.beliefs.hub_log, slow_dual.part.beliefs.hub_log, atol=1e-11)
    np.testing.assert_allclose(fast_dual.part.beliefs.link_marginal, slow_dual.part.beliefs.link_marginal, atol=1e-12)
    if entropy.endswith("given"):
        np.testing.assert_allclose(fast_dual.part.beliefs.disagreement, slow_dual.part.beliefs.disagreement, atol=1e-12)
    if fast_dual.consistency:
        np.testing.assert_allclose(fast_dual.part.multipliers, slow_dual.part.multipliers, atol=1e-11)


@pytest.mark.parametrize("entropy", ["total", "clusters", "bethe given", "clusters apart"])
def test_scores_out_of_range_take_the_general_route(entropy: str) -> None:
    data = graphs(3, "edges", own_tables=False)
    (_, slow), (dual, fast) = (evaluated(data, f, entropy, 400.0) for f in ("logs", "compiled"))
    assert np.isfinite(fast.value)
    assert fast.value == pytest.approx(slow.value, rel=1e-9)
    np.testing.assert_allclose(fast.gradient, slow.gradient, rtol=1e-7, atol=1e-7)
    assert not dual.part.beliefs.done.all()


@pytest.mark.parametrize("method", ["bp", "convex", "exact"])
def test_inference_on_uniform_pairs(method: str) -> None:
    """The same graphs alone, and among so many that the compiled route is taken."""
    weights = np.random.default_rng(2).normal(size=graphs(3, "clusters", own_tables=True).n_weights)
    found = []
    for copies in (450, 1):
        data = graphs(3, "clusters", own_tables=True, copies=copies)
        results = bt.infer(data, weights, method, evidence=[None, {1: 2}, None] * copies)[:3]
        found.append(np.concatenate([table for result in results for table in result.variables]))
        found.append(np.array([result.log_partition for result in results]))
    np.testing.assert_allclose(found[0], found[2], atol=1e-7)
    np.testing.assert_allclose(found[1], found[3], atol=1e-7)


@pytest.mark.parametrize(("n", "n_inputs", "n_bundles"), [(30, 20, 6), (1000, 300, 400)])
@pytest.mark.parametrize("labels", [2, 3, 9, 25])
def test_products_of_sparse_and_bundled_rows(
    labels: int, n: int, n_inputs: int, n_bundles: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of large ones, for up to 20 labels, in a routine that is compiled for their number."""
    unrolled: list[int] = []
    plain = inputs.rows_times_weights
    monkeypatch.setattr(inputs, "rows_times_weights", lambda *given: unrolled.append(len(given[-1])) or plain(*given))
    rng = np.random.default_rng(0)
    own = sp.random_array((n, n_inputs), density=0.2, rng=rng, format="csr")
    use = sp.random_array((n, n_bundles), density=0.3, rng=rng, format="csr")
    bundles = sp.random_array((n_bundles, n_inputs), density=0.5, rng=rng, format="csr")
    rows = BundledRows(own, use, bundles)
    dense = own.toarray() + use.toarray() @ bundles.toarray()
    np.testing.assert_allclose(rows.multiplied_out().toarray(), dense, atol=1e-14)
    weights, values = rng.normal(size=(n_inputs, labels)), rng.normal(size=(n, labels))
    for matrix, wanted in ((rows, dense), (own, own.toarray()), (own.toarray(), own.toarray())):
        product, transposed = np.full((n, labels), np.nan), np.full((n_inputs, labels), np.nan)
        Inputs(matrix).times(weights, product, Workers(2))
        Inputs(matrix).transposed_times(values, transposed, Workers(2))
        np.testing.assert_allclose(product, wanted @ weights, atol=1e-12)
        np.testing.assert_allclose(transposed, wanted.T @ values, atol=1e-12)
    assert (labels in unrolled) == (n == 1000 and labels <= 20)


def test_long_memory_gives_the_direction_of_the_short_one() -> None:
    rng = np.random.default_rng(0)
    short, long = Memory(5, 3000), LongMemory(5, 3000, Workers(2))
    curvature = rng.uniform(0.5, 2.0, 3000)
    for _ in range(9):
        s = rng.normal(size=3000)
        for memory in (short, long):
            memory.add(s, curvature * s)
        gradient = rng.normal(size=3000)
        np.testing.assert_allclose(long.direction(gradient), short.direction(gradient), atol=2e-5)
    before = long.direction(gradient)
    long.add(s, -s)  # no curvature: not taken up
    np.testing.assert_array_equal(long.direction(gradient), before)
    long.clear()
    np.testing.assert_allclose(long.direction(gradient), -gradient / np.linalg.norm(gradient))


def test_logarithm() -> None:
    @njit(error_model="numpy")
    def logs(x: Array, out: Array) -> None:
        for i in range(x.size):
            out[i] = log(x[i])

    rng = np.random.default_rng(0)
    x = np.concatenate([np.exp(rng.uniform(-700, 700, 10_000)), 1.0 + 1e-3 * rng.normal(size=10_000), [1.0, 0.5, 2.0]])
    out = np.empty_like(x)
    logs(x, out)
    np.testing.assert_array_max_ulp(out, np.log(x), maxulp=4)


@pytest.mark.parametrize("n_pairs", [1, 3, 7])
def test_direction_is_that_of_the_dense_update_of_bfgs(n_pairs: int) -> None:
    """H of the last three pairs by the textbook's recursion (Nocedal and Wright, 2006, Equation 6.17), as matrices."""
    rng = np.random.default_rng(n_pairs)
    n, memory = 6, Memory(3, 6)
    curvature = np.diag(rng.uniform(0.5, 20.0, n))
    pairs = []
    for _ in range(n_pairs):
        s = rng.normal(size=n)
        pairs.append((s, curvature @ s))
        memory.add(*pairs[-1])
        memory.add(s, -s)  # of negative curvature: not taken
    s, y = pairs[-1]
    inverse = (s @ y) / (y @ y) * np.eye(n)
    for s, y in pairs[-3:]:
        left = np.eye(n) - np.outer(s, y) / (s @ y)
        inverse = left @ inverse @ left.T + np.outer(s, s) / (s @ y)
    gradient = rng.normal(size=n)
    np.testing.assert_allclose(memory.direction(gradient), -inverse @ gradient, rtol=1e-10)


@pytest.mark.parametrize("damping", [0.5, 0.75])
def test_damped_sweeps_of_the_fast_path_reach_the_same_optimum(damping: float) -> None:
    data = graphs(3, "clusters", own_tables=False)
    found = []
    for fast in (True, False):
        packed = pack(data)
        schedule = replace(SCHEDULE, worth_compiling=1 if fast else 10**9)
        dual = Dual(packed, carve(packed, "convex"), Prior(1.0, 0.0), Context(Workers(1)), schedule=schedule)
        weights = np.random.default_rng(1).normal(size=packed.n_weights)
        found.append(dual.evaluate(weights, tolerance=1e-10, max_sweeps=2000, damping=damping))
        assert found[-1].residual <= 1e-10
        assert 2 < found[-1].sweeps < 2000
    assert found[0].value == pytest.approx(found[1].value, rel=1e-12)
    np.testing.assert_allclose(found[0].gradient, found[1].gradient, atol=1e-8)


def trees(k: int, own_tables: bool) -> bt.GraphData:
    """A tree that branches, a path, and nodes without edges."""
    rng = np.random.default_rng(4)
    edges = [(0, 1), (2, 1), (1, 3), (4, 3), (3, 5), (6, 7), (8, 7), (8, 9)]
    more = {"edge_inputs": {1: rng.normal(size=(3, 2))}} if own_tables else {}
    return bt.GraphData(
        rng.normal(size=(13, 4)), edges, n_labels=k, labels=rng.integers(0, k, 13), tables=["full", "symmetric"],
        edge_types=[0, 1, 0, 1, 0, 0, 1, 0], node_counts=[6, 4, 3], weights=[1.0, 2.0, 0.5], **more,
    )  # fmt: skip


@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("own_tables", [False, True])
@pytest.mark.parametrize("route", ["compiled", "any"])
@pytest.mark.parametrize("scale", [1.0, 400.0])
def test_two_passes_over_trees_equal_sweeps_in_log_space(k: int, own_tables: bool, route: str, scale: float) -> None:
    packed = pack(trees(k, own_tables))
    weights = scale * np.random.default_rng(1).normal(size=packed.n_weights)
    schedule = replace(SCHEDULE, worth_compiling=1 if route == "compiled" else 10**9)
    slow, fast, brief = (
        Dual(packed, carve(packed, "bethe").whole, Prior(1.0), Context(Workers(1)), schedule=schedule) for _ in range(3)
    )
    found = [
        dual.evaluate(weights, max_sweeps=9, tree_sweeps=2, damping=damping, logs=dual is not brief)
        for dual, damping in ((slow, 1e-300), (fast, 0.0), (brief, 0.0))
    ]
    assert not slow.part.beliefs.done.any()
    assert fast.part.beliefs.done.all() == (scale == 1.0)
    for other in found[1:]:
        assert other.value == pytest.approx(found[0].value, rel=1e-12)
        np.testing.assert_allclose(other.gradient, found[0].gradient, atol=1e-11 * scale)
        assert other.violation < 1e-12 * scale
    np.testing.assert_allclose(fast.part.beliefs.value, slow.part.beliefs.value, rtol=1e-12)
    np.testing.assert_allclose(fast.part.hub_beliefs(), slow.part.hub_beliefs(), atol=1e-12 * scale)
    # The multipliers left behind are those of the beliefs: at them, without a sweep, D and its gradient are the same.
    given = fast.evaluate(weights)
    assert given.value == pytest.approx(found[0].value, rel=1e-12)
    np.testing.assert_allclose(given.gradient, found[0].gradient, atol=1e-11 * scale)
    assert scale > 1.0 or not brief.part.multipliers.any()
