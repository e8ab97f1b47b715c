"""One large graph, evaluated in pieces: whatever the number of threads, and as if it were in one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import bactrian as bt
from bactrian.camel.accuracy import SCHEDULE
from bactrian.camel.dual import Dual
from bactrian.camel.entropy import carve
from bactrian.camel.prior import Prior
from bactrian.engines import memory
from bactrian.engines.numba.pieces import cut
from bactrian.graphs.packing import pack
from bactrian.parallel.threads import Context, Workers

SIDE = 150
WHOLE = 1 << 60


def grid(*, own_tables: bool = False, shuffled: bool = False, beside: int = 0, side: int = SIDE) -> bt.GraphData:
    """A grid of 150 x 150 nodes, in the order of its rows or any, and small graphs ``beside`` it."""
    rng, labels, size = np.random.default_rng(0), 3, side * side
    number = np.arange(size).reshape(side, side)
    if shuffled:
        number = rng.permutation(number.ravel()).reshape(side, side)
    pairs = [(number[:, :-1], number[:, 1:]), (number[:-1], number[1:])]
    edges = np.concatenate([np.stack([a.ravel(), b.ravel()], axis=1) for a, b in pairs])
    triangles = size + 3 * np.arange(beside)[:, None, None] + [[0, 1], [1, 2], [2, 0]]
    edges = np.concatenate([edges, triangles.reshape(-1, 2)])
    n_nodes = size + 3 * beside
    labelled = rng.integers(0, labels, n_nodes)
    return bt.GraphData(
        rng.normal(size=(n_nodes, 2)) + labelled[:, None], edges, n_labels=labels, labels=labelled, tables="symmetric",
        node_counts=[size, *[3] * beside],
        edge_inputs={0: rng.normal(size=(len(edges), 2))} if own_tables else None,
    )  # fmt: skip


def evaluated(data: Any, entropy: str, threads: int = 1, *, scale: float = 0.3, **how: Any) -> Any:
    packed = data if hasattr(data, "layout") else pack(data)
    carving = carve(packed, "bethe").whole if entropy.startswith("total") else carve(packed, entropy.split()[0])
    agree = not entropy.endswith("apart")
    schedule = replace(SCHEDULE, worth_compiling=how.pop("worth_compiling", SCHEDULE.worth_compiling))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "WORTH_CUTTING", how.pop("worth_cutting", memory.WORTH_CUTTING))
        dual = Dual(packed, carving, Prior(1.0, 0.0), Context(Workers(threads)), consistency=agree, schedule=schedule)
    dual.part.wants_marginals = True
    rng = np.random.default_rng(1)
    if agree:
        dual.part.multipliers[:] = 0.1 * rng.normal(size=dual.part.multipliers.size)
    return dual, dual.evaluate(scale * rng.normal(size=packed.n_weights), **how)


def arrays(dual: Dual, found: Any) -> list[Any]:
    beliefs = dual.part.beliefs
    numbers = [found.value, found.violation, found.residual, found.sweeps]
    return [*numbers, found.gradient, dual.part.multipliers, beliefs.hub_log, beliefs.link_marginal]


@pytest.mark.parametrize("shuffled", [False, True])
def test_pieces_of_a_half_have_no_pair_in_common(shuffled: bool) -> None:
    layout = pack(grid(shuffled=shuffled, beside=1)).layout
    order, bounds = cut(layout, 0)
    assert np.array_equal(np.sort(order), np.arange(SIDE * SIDE))
    assert bounds[0] == 0
    assert bounds[-1] == SIDE * SIDE
    assert bounds.size == 5
    piece = np.empty(SIDE * SIDE, dtype=int)
    piece[order] = np.repeat(np.arange(4), np.diff(bounds))
    links = slice(0, layout.hub_links[SIDE * SIDE])
    ends = piece[layout.link_hub[links]], piece[layout.link_hub[layout.link_partner[links]]]
    assert not ((ends[0] != ends[1]) & (ends[0] // 2 == ends[1] // 2)).any()


@pytest.mark.parametrize("entropy", ["total", "convex", "clusters", "total given", "clusters apart"])
@pytest.mark.parametrize("own_tables", [False, True])
@pytest.mark.parametrize("unrolled", [False, True])
def test_an_evaluation_is_the_sequential_one_in_the_order_of_pieces(
    entropy: str, own_tables: bool, unrolled: bool
) -> None:
    data = pack(grid(own_tables=own_tables, shuffled=entropy == "total", beside=2))
    found = cut(data.layout, 0)
    order = np.concatenate([found[0], data.layout.hub_order[SIDE * SIDE :]])
    same = replace(data, layout=data.layout._replace(hub_order=order))
    how: dict[str, Any] = {} if entropy.split()[-1] in ("given", "apart") else {"max_sweeps": 3}
    how["worth_compiling"] = 1 if unrolled else 1 << 60
    pieces, whole = evaluated(data, entropy, **how), evaluated(same, entropy, worth_cutting=WHOLE, **how)
    assert bool(pieces[0].part.states) == unrolled
    assert pieces[0].part.beliefs.done.all()
    assert whole[0].part.beliefs.done.all()
    for a, b in zip(arrays(*pieces), arrays(*whole), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(pieces[0].part.multipliers, whole[0].part.multipliers)


@pytest.mark.parametrize("how", [{}, {"max_sweeps": 4}, {"max_sweeps": 4, "damping": 0.5}])
def test_results_do_not_depend_on_the_number_of_threads(how: dict[str, Any]) -> None:
    data = grid(beside=2, side=405 if len(how) == 1 else SIDE)  # as many pieces as there may be, and not a whole number
    one, two, three = (arrays(*evaluated(data, "convex", threads, **how)) for threads in (1, 2, 3))
    for a, b, c in zip(one, two, three, strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(a, c)


@pytest.mark.filterwarnings("ignore::bactrian.ConvergenceWarning")  # a few steps are enough
@pytest.mark.parametrize("method", ["cccp", "camel0"])
def test_learning_does_not_depend_on_the_number_of_threads(method: str) -> None:
    data = grid()
    found = [bt.learn(data, method, max_iterations=12, n_threads=n) for n in (1, 2, 3)]
    for other in found[1:]:
        np.testing.assert_array_equal(found[0].weights, other.weights)
        assert found[0].objective == other.objective


@pytest.mark.parametrize("entropy", ["total", "convex"])
@pytest.mark.parametrize("damping", [0.0, 0.5])
def test_the_fixed_point_is_that_of_one_piece(entropy: str, damping: float) -> None:
    data = grid()
    how = {"tolerance": 1e-11, "max_sweeps": 2000, "damping": damping}
    (dual, pieces), (other, whole) = (
        evaluated(data, entropy, 2, **how),
        evaluated(data, entropy, worth_cutting=WHOLE, **how),
    )
    assert pieces.residual <= 1e-11
    assert pieces.value == pytest.approx(whole.value, rel=1e-12)
    np.testing.assert_allclose(pieces.gradient, whole.gradient, atol=1e-6)
    np.testing.assert_allclose(dual.part.hub_beliefs(), other.part.hub_beliefs(), atol=1e-9)
    assert pieces.sweeps < 1.2 * whole.sweeps + 5


@pytest.mark.parametrize("how", [{}, {"max_sweeps": 2}])
def test_scores_out_of_range_are_left_to_log_space(how: dict[str, Any]) -> None:
    data = grid()
    (dual, pieces), (_, whole) = (
        evaluated(data, "clusters", scale=400.0, worth_cutting=size, **how) for size in (20_000, WHOLE)
    )
    assert not dual.part.beliefs.done.any()
    assert np.isfinite(pieces.value)
    if not how:
        assert pieces.value == whole.value


def test_an_entangled_graph_stays_in_one_piece() -> None:
    rng = np.random.default_rng(0)
    n = SIDE * SIDE
    edges = np.unique(np.sort(rng.integers(0, n, size=(2 * n, 2)), axis=1), axis=0)
    edges = edges[edges[:, 0] < edges[:, 1]]
    data = bt.GraphData(rng.normal(size=(n, 2)), edges, n_labels=3, labels=rng.integers(0, 3, n))
    assert cut(pack(data).layout, 0) is None
    pieces, whole = (evaluated(data, "convex", max_sweeps=2, worth_cutting=size) for size in (20_000, WHOLE))
    for a, b in zip(arrays(*pieces), arrays(*whole), strict=True):
        np.testing.assert_array_equal(a, b)


def test_marginals_by_belief_propagation() -> None:
    data = grid()
    weights = 0.2 * np.random.default_rng(2).normal(size=pack(data).n_weights)
    (one,), (three,) = (bt.infer(data, weights, "bp", n_threads=n) for n in (1, 3))
    (residual,) = bt.infer(data, weights, "rbp", n_threads=1)  # which is never cut
    assert one.converged
    assert one.log_partition == three.log_partition
    assert one.log_partition == pytest.approx(residual.log_partition, rel=1e-9)
    np.testing.assert_array_equal(one.variables[7], three.variables[7])
