"""Decoding that chooses: exact where that fits, else local search whose answers enumeration and bounds judge."""

from __future__ import annotations

import itertools
from unittest import mock

import numpy as np
import pytest

import bactrian as bt
from bactrian.engines.numba.neighbourhoods import merge, new_part, search_neighbourhoods
from bactrian.inference import maximum
from bactrian.inference.factors import factor_scores
from bactrian.inference.problem import packed
from bactrian.parallel.threads import Workers


@pytest.fixture(autouse=True)
def _own_search_alone(monkeypatch):
    monkeypatch.setattr(maximum, "find_spec", lambda name: None)


def random_model(seed: int, *, forbidden: float = 0.0) -> tuple[bt.LogLinearModel, np.ndarray]:
    """A model of nine variables, and the scores of all its states."""
    random = np.random.default_rng(seed)
    sizes = random.integers(2, 4, 9).tolist()
    scopes = [tuple(random.choice(9, random.integers(1, 4), replace=False).tolist()) for _ in range(16)]
    tables = [random.normal(0.0, 2.0, [sizes[v] for v in scope]) for scope in scopes]
    for table in tables:
        table[random.random(table.shape) < forbidden] = -np.inf
    states = np.array(list(itertools.product(*map(range, sizes))))
    scores = sum(t[tuple(states[:, v] for v in scope)] for scope, t in zip(scopes, tables, strict=True))
    features = [np.zeros((table.size, 0)) for table in tables]
    return bt.LogLinearModel(bt.ClusterGraph(sizes, scopes), features, [t.ravel() for t in tables]), scores


def grid(n: int, seed: int) -> bt.LogLinearModel:
    random = np.random.default_rng(seed)
    cells = np.arange(n * n).reshape(n, n)
    across, down = np.stack([cells[:, :-1], cells[:, 1:]], -1), np.stack([cells[:-1], cells[1:]], -1)
    pairs = [*across.reshape(-1, 2).tolist(), *down.reshape(-1, 2).tolist()]
    coupling = random.normal(0.0, 2.0, len(pairs))
    tables = [np.array([c, -c, -c, c]) for c in coupling] + list(random.normal(0.0, 0.3, (n * n, 2)))
    scopes = [*map(tuple, pairs)] + [(v,) for v in range(n * n)]
    return bt.LogLinearModel(bt.ClusterGraph([2] * n**2, scopes), [np.zeros((t.size, 0)) for t in tables], tables)


@pytest.mark.parametrize("seed", range(8))
def test_exact_where_a_tree_fits(seed: int) -> None:
    model, scores = random_model(seed, forbidden=0.2 if seed % 2 else 0.0)
    if scores.max() == -np.inf:
        with pytest.raises(ValueError, match="probability zero"):
            bt.decode(model, [])
        return
    found = bt.decode(model, [], return_result=True)
    assert found.optimal
    assert found.converged
    assert found.score == pytest.approx(scores.max())


@pytest.mark.parametrize("seed", range(8))
def test_search_finds_the_best_of_small_models(seed: int) -> None:
    model, scores = random_model(seed, forbidden=0.2 if seed % 2 else 0.0)
    if scores.max() == -np.inf:
        return
    found = bt.decode(model, [], memory_budget=3000, max_iterations=15, return_result=True)
    assert found.score == pytest.approx(scores.max())
    assert found.bound >= scores.max() - 1e-9


@pytest.mark.parametrize("seed", range(4))
def test_a_neighbourhood_is_set_to_its_best(seed: int) -> None:
    """With room for everything, one neighbourhood is the whole model; with less, the score never falls."""
    model, expected = random_model(seed)
    data, seen = packed(model, None)
    scores = factor_scores(data, np.zeros(0), seen, Workers(1))
    for bound, best in ((20.0, True), (3.0, False)):
        states, before = np.zeros(9, dtype=np.int64), -np.inf
        for _ in range(1 if best else 20):
            search_neighbourhoods(
                scores.layout, scores.arrays, np.ones(9, dtype=bool), states, 0, new_part(9, 9), bound, 9,
                np.random.default_rng(seed), np.zeros(1, dtype=bool),
            )  # fmt: skip
            after = maximum.score_assignments(scores, states)[0]
            assert after >= before - 1e-9
            before = after
        if best:
            assert before == pytest.approx(expected.max())


def test_assignments_are_merged_part_by_part() -> None:
    """On a chain the best of all ways to take each run of variables that differ from the one or the other."""
    random = np.random.default_rng(0)
    tables = [random.normal(size=9) for _ in range(9)]
    graph = bt.ClusterGraph([3] * 10, [(v, v + 1) for v in range(9)])
    data, seen = packed(bt.LogLinearModel(graph, [np.zeros((9, 0))] * 9, tables), None)
    scores = factor_scores(data, np.zeros(0), seen, Workers(1))
    for _ in range(20):
        states, other = random.integers(0, 3, (2, 10))
        other[[0, 3, 6]] = states[[0, 3, 6]]
        ways = []
        for taken in itertools.product([False, True], repeat=3):
            mixed = states.copy()
            for part, chosen in zip((slice(1, 3), slice(4, 6), slice(7, 10)), taken, strict=True):
                mixed[part] = other[part] if chosen else states[part]
            ways.append(maximum.score_assignments(scores, mixed)[0])
        merge(scores.layout, scores.arrays, states, other, 0)
        assert maximum.score_assignments(scores, states)[0] >= max(ways) - 1e-12


def test_beats_its_starts_and_reports_on_the_way() -> None:
    model, seen = grid(16, 0), []
    starts = [bt.decode(model, [], method, return_result=True) for method in ("dual", "max-product")]
    found = bt.decode(
        model, [], memory_budget=2**16, max_seconds=4.0, callback=lambda at: seen.append(at.score), return_result=True
    )
    exact = bt.decode(model, [], "exact", return_result=True)
    assert found.score > max(start.score for start in starts)
    assert found.score == pytest.approx(exact.score)
    assert found.bound >= exact.score
    assert seen == sorted(seen)
    assert bt.decode(model, [], memory_budget=2**16, callback=lambda at: True, return_result=True).iterations >= 0


def test_an_interrupt_returns_the_best_so_far() -> None:
    model = grid(12, 1)

    def interrupt(at) -> None:
        if at.iteration == 5:
            raise KeyboardInterrupt

    found = bt.decode(model, [], memory_budget=2**12, callback=interrupt, max_seconds=None, return_result=True)
    assert not found.converged
    assert found.score >= bt.decode(model, [], "max-product", return_result=True, max_iterations=50).score


def test_toulbar2_proves_what_it_finds() -> None:
    pytest.importorskip("pytoulbar2")
    model = grid(9, 2)
    exact = bt.decode(model, [], "exact", return_result=True)
    with mock.patch.object(maximum, "find_spec", return_value=True):
        found = bt.decode(model, [], memory_budget=2**10, return_result=True)
    assert found.optimal
    assert found.score == pytest.approx(exact.score)


def test_time_limits_of_all_methods() -> None:
    model = grid(40, 3)
    for method in ("dual", "max-product"):
        found = bt.decode(model, [], method, max_seconds=1e-3, tolerance=0.0, return_result=True)
        assert found.iterations < 100
        assert not found.converged
    with pytest.raises(ValueError, match="max_seconds"):
        bt.decode(model, [], max_seconds=0.0)
