"""The cost model: counts against counting by hand, the fit against constants that are known, predictions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cost_measurements import GRAPH, SHAPES, Shape, errors, fitted, measure, random_graphs
from cost_model import (
    MEMORY_TERMS,
    TIME_TERMS,
    CostModel,
    Machine,
    Size,
    evaluation_counts,
    fit,
    memory_terms,
    predict,
    sweep_counts,
    time_terms,
)

SIZE = Size(nodes=1000, edges=3000, labels=7, inputs=8, weights=84, sweeps=2)


def random_sizes(n: int) -> list[Size]:
    rng = np.random.default_rng(0)
    return [
        Size(
            nodes=float(np.exp(rng.uniform(4, 14))),
            edges=float(np.exp(rng.uniform(4, 14))),
            labels=int(rng.integers(2, 15)),
            inputs=float(rng.integers(1, 80)),
            weights=float(np.exp(rng.uniform(3, 16))),
            sweeps=float(rng.integers(1, 6)),
            sparse=bool(rng.random() < 0.5),
        )
        for _ in range(n)
    ]


@pytest.mark.parametrize(("terms", "names"), [(time_terms, TIME_TERMS), (memory_terms, MEMORY_TERMS)])
def test_known_constants_are_found_again(terms: Any, names: tuple[str, ...]) -> None:
    rows = [terms(size) for size in random_sizes(60)]
    assert {row.size for row in rows} == {len(names)}
    constants = np.random.default_rng(1).uniform(0.5, 2.0, size=len(names))
    constants[3] = 0.0
    np.testing.assert_allclose(fit(rows, [row @ constants for row in rows]), constants, atol=1e-6)


def test_constants_are_not_negative() -> None:
    assert (fit([np.array([1.0, x]) for x in (1.0, 2.0, 3.0)], [3.0, 2.0, 1.0]) >= 0.0).all()


@pytest.mark.parametrize("measured", [[], [1.0, 0.0]])
def test_nothing_to_fit(measured: list[float]) -> None:
    with pytest.raises(ValueError, match="positive"):
        fit([np.ones(2)] * len(measured), measured)


def test_what_ranks_share_and_what_they_do_not() -> None:
    one, four = evaluation_counts(SIZE), evaluation_counts(SIZE, 4)
    own = 6.0 * SIZE.weights
    assert (four.flops - own) * 4 == pytest.approx(one.flops - own)
    assert (one.messages, one.bytes_sent) == (0.0, 0.0)
    # Each of four ranks passes on three quarters of the array twice: while adding, and while handing out the sums.
    assert four.messages == 6.0
    assert four.bytes_sent == pytest.approx(2 * 0.75 * 8 * (84 + 2 + 2 * 4))


def test_more_sweeps_cost_their_sweeps() -> None:
    more = evaluation_counts(Size(1000, 3000, 7, 8, 84, sweeps=5))
    assert more.flops - evaluation_counts(SIZE).flops == pytest.approx(3 * sweep_counts(SIZE).flops)
    # Two messages an edge, each at least a multiplication and an addition for each entry of the table.
    assert sweep_counts(SIZE).flops >= 2 * 3000 * 2 * 49


def test_predictions() -> None:
    model = CostModel(np.ones(len(TIME_TERMS)), 1e-9, np.ones(len(MEMORY_TERMS)))
    machine = Machine(cores=1, efficiency=1.0, bandwidth_cores=1.0, latency=1.0, bandwidth=8.0)
    alone = predict(model, SIZE, 1, machine)
    assert alone.network_seconds == 0.0
    assert alone.seconds == pytest.approx(time_terms(SIZE).sum() + 84e-9)
    assert alone.bytes == pytest.approx(memory_terms(SIZE).sum())
    shared = predict(model, SIZE, 2, machine)
    assert shared.network_seconds == pytest.approx(2 * 1.0 + 1.0 * (84 + 2 + 4))
    assert shared.bytes < alone.bytes
    assert 0.0 < shared.efficiency < alone.efficiency < 1.0
    with pytest.raises(ValueError, match="nodes"):
        predict(model, SIZE, 0)


@pytest.mark.parametrize("shape", SHAPES[:4])
def test_graphs_have_the_size_that_is_said(shape: Shape) -> None:
    data, size = random_graphs(shape, 2 * GRAPH)
    assert (data.n_nodes, len(data.edges), data.n_weights) == (size.nodes, size.edges, size.weights)
    assert size.sparse is shape.sparse
    assert size.inputs <= shape.inputs


def test_a_small_measurement_can_be_fitted() -> None:
    seen: list[str] = []
    measured = measure((GRAPH, 3 * GRAPH), SHAPES[:1], n_weights=(100, 1000), follow=lambda kind, *_: seen.append(kind))
    assert seen == ["seconds", "seconds", "seconds", "bytes"] * 2
    model = fitted(measured)
    assert {key: values.shape for key, values in errors(model, measured).items()} == {
        "time": (6,),
        "step": (2,),
        "memory": (2,),
    }
    # Twice the multipliers at least: they are kept at the best point as well.
    for size, peak in measured.memory:
        assert peak > 2 * 2 * 8 * size.edges * size.labels
