"""Rows that match margins: drawn evenly, then changed until their counts are as close as whole rows can be."""

import math
import sys
import types

import numpy as np
import pytest

import bactrian as bt
from bactrian.margins.rounding import (
    RowsInTables,
    TablesAround,
    cells_of,
    change_states,
    distances,
    draw_along,
    exchange_states,
    round_rows,
)

SHAPE = np.array([3, 4, 2, 5])
SCOPES = ((0, 1), (2, 1), (3, 0), (3,))


def margin_of(p, scope):
    left = sorted(scope)
    summed = p.sum(axis=tuple(v for v in range(p.ndim) if v not in scope))
    return summed.transpose([left.index(v) for v in scope])


def problem(seed, n=400):
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(0.3 * np.ones(120)).reshape(SHAPE)
    states = np.stack(np.unravel_index(rng.choice(120, n, p=p.ravel()), SHAPE), axis=1).astype(np.int64)
    return p, states, [margin_of(p, scope) for scope in SCOPES]


def squares(states, margins, weights):
    sizes = [table.size for table in margins]
    return float(np.repeat(weights, sizes) @ cells_of(states, SHAPE, SCOPES, margins)[1] ** 2)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("exchange", [False, True])
def test_every_pass_lowers_the_squares_by_what_its_bookkeeping_says(seed, exchange):
    _, states, margins = problem(seed)
    weights = np.array([1.0, 0.2, 3.0, 0.7])
    before = squares(states, margins, weights)
    cells, excess = cells_of(states, SHAPE, SCOPES, margins)
    barrier = np.where(np.concatenate([table.ravel() for table in margins]) > 0.0, 0.0, np.inf)
    entries = [(0, 0, 4), (0, 2, 1), (1, 0, 1), (1, 1, 1), (2, 1, 4), (3, 2, 3), (3, 3, 1)]
    variable, table, stride = np.array(entries).T.copy()
    rows = RowsInTables(states, cells, excess, barrier)
    around = TablesAround(np.searchsorted(variable, np.arange(5)), table, stride, weights[table])
    rng = np.random.default_rng(seed)
    counts = [np.bincount(column) for column in states.T]
    if exchange:
        partners = rng.integers(0, len(states), len(states))
        n = exchange_states(rows, around, rng.permutation(len(states)), partners)
        assert all(np.array_equal(a, np.bincount(b)) for a, b in zip(counts, states.T, strict=True))
    else:
        n = change_states(rows, around, SHAPE, rng.permutation(len(states)))
    assert n > 0
    again, left = cells_of(states, SHAPE, SCOPES, margins)
    np.testing.assert_array_equal(cells, again)
    np.testing.assert_allclose(excess, left, atol=1e-9)
    assert squares(states, margins, weights) < before - 1e-6


def test_the_worst_margin_comes_near_the_nearest_whole_numbers():
    rng = np.random.default_rng(0)
    sizes, n = np.array([24, 24, 6, 6, 5]), 5000
    kinds = [rng.dirichlet(0.3 * np.ones(k), size=6) for k in sizes]
    kind = rng.integers(0, 6, (2, n))
    drawn, truth = (
        np.stack([(rng.random((n, 1)) > p[z].cumsum(axis=1)).sum(axis=1).clip(0, len(p[0]) - 1) for p in kinds], axis=1)
        for z in kind
    )
    scopes = [(0, 1), *((u, v) for u in (0, 1) for v in (2, 3, 4)), (2, 3), (3, 4), (0,), (4,)]
    margins = []
    for scope in scopes:
        product = sum(math.prod(np.ix_(*(kinds[v][z] for v in scope))) for z in range(6)) / 6
        counts = np.zeros(sizes[list(scope)])
        np.add.at(counts, tuple(truth[:, v] for v in scope), 1.0 / n)
        margins.append(0.5 * (product + counts))
    rounded = round_rows(drawn, sizes, scopes, margins)
    least = max(np.abs(n * table - np.rint(n * table)).sum() / (2 * n) for table in margins)
    assert distances(rounded, sizes, scopes, margins).max() < 1.1 * least


@pytest.mark.parametrize("seed", range(4))
def test_margins_of_whole_numbers_are_nearly_met_and_zeros_stay_zeros(seed):
    p, states, _ = problem(seed)
    target = np.random.default_rng(seed + 100).multinomial(400, p.ravel()).reshape(SHAPE) / 400
    margins = [margin_of(target, scope) for scope in SCOPES]
    rounded = round_rows(states, SHAPE, SCOPES, margins, seed=seed)
    drawn, now = distances(states, SHAPE, SCOPES, margins), distances(rounded, SHAPE, SCOPES, margins)
    assert now.max() < 0.02
    assert now.mean() < 0.15 * drawn.mean()
    started_in_zero = states != rounded
    assert started_in_zero.mean() < 0.35
    moved = cells_of(rounded, SHAPE, SCOPES, margins)[0]
    unmoved = cells_of(states, SHAPE, SCOPES, margins)[0]
    allowed = np.concatenate([table.ravel() for table in margins]) > 0.0
    assert (allowed[moved] | (moved == unmoved)).all()


@pytest.mark.parametrize("budget", [2**28, 60])
def test_rounded_samples_of_a_field(budget):
    p, _, _ = problem(5)
    p = 0.7 * p + 0.3 / 120
    names = ("a", "b", "c", "d")
    margins = [bt.Marginal([names[v] for v in scope], 1000 * margin_of(p, scope)) for scope in SCOPES]
    field = bt.MarkovRandomField(method="auto", memory_budget=budget).fit_marginals(
        margins, dict(zip(names, SHAPE.tolist(), strict=True))
    )
    assert field.method_ == ("exact" if budget > 60 else "cccp")
    rows = field.sample(2000, seed=3, rounded=True)
    gap = distances(rows, SHAPE, SCOPES, [margin_of(p, scope) for scope in SCOPES])
    assert gap.max() < 0.004
    assert np.array_equal(rows, field.sample(2000, seed=3, rounded=True))
    assert not np.array_equal(rows, field.sample(2000, seed=4, rounded=True))
    # What no margin says is as in independent draws: here, the pair of c and d given by nothing but the model.
    joint = field.marginal(("c", "d"))
    counts = np.zeros((2, 5))
    np.add.at(counts, (rows[:, 2], rows[:, 3]), 1.0 / 2000)
    assert 0.5 * np.abs(counts - joint).sum() < 0.06


@pytest.mark.parametrize("how", ["impossible", "base"])
def test_what_no_margin_says_cannot_be_stays_out_of_rounded_rows(how, tmp_path):
    shape = (4, 3, 3)
    p = np.random.default_rng(0).dirichlet(np.ones(36)).reshape(shape)
    p[1, 2, 0] = p[3, 0, 2] = p[0, 1, 1] = 0.0
    p /= p.sum()
    never = [{"a": a, "b": b, "c": c} for a, b, c in np.argwhere(p == 0.0).tolist()]
    options = {"impossible": never} if how == "impossible" else {"base": (p > 0.0).astype(float)}
    margins = [bt.Marginal(name, 500 * margin_of(p, (v,))) for v, name in enumerate("abc")]
    field = bt.MarkovRandomField().fit_marginals(margins, dict(zip("abc", shape, strict=True)), **options)
    field.save(tmp_path / "field")
    for fitted in (field, bt.MarkovRandomField.load(tmp_path / "field")):
        for seed in range(10):
            rows = fitted.sample(57, seed=seed, rounded=True)
            assert (p[tuple(rows.T)] > 0.0).all()
            for v, column in enumerate(rows.T):
                counts = np.bincount(column, minlength=shape[v])
                assert np.abs(counts - 57 * margin_of(p, (v,))).max() < 1.5


def test_rounding_of_a_field_learned_from_rows():
    rng = np.random.default_rng(0)
    X = rng.integers(0, 3, (300, 4))
    field = bt.MarkovRandomField(edges=[(0, 1), (1, 2), (2, 3)], method="auto").fit(X)
    rows = field.sample(3000, rounded=True)
    for a, b in field.edges_.tolist():
        counts = np.zeros((3, 3))
        np.add.at(counts, (rows[:, a], rows[:, b]), 1.0 / 3000)
        assert 0.5 * np.abs(counts - field.marginal((a, b))).sum() < 0.003


def test_frames_have_names_and_labels(monkeypatch):
    field = bt.MarkovRandomField(method="auto").fit_marginals(
        [bt.Marginal(("sex", "age"), [[10.0, 20.0, 30.0], [5.0, 25.0, 10.0]])], {"sex": ["f", "m"], "age": 3}
    )
    kept = {}
    fake = types.ModuleType("pandas")
    fake.DataFrame = lambda columns: kept.update(columns) or "frame"
    monkeypatch.setitem(sys.modules, "pandas", fake)
    assert field.sample(100, rounded=True, frame=True) == "frame"
    assert list(kept) == ["sex", "age"]
    assert kept["sex"].count("f") == 60
    assert np.bincount(kept["age"]).tolist() == [15, 45, 40]
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="needs pandas: pip install pandas"):
        field.sample(3, frame=True)


def test_draws_down_a_tree_of_margins():
    rng = np.random.default_rng(0)
    p = np.zeros((4, 3, 2))  # a chain: c depends on a through b alone
    for b, part in enumerate(rng.dirichlet(np.ones(3))):
        p[:, b, :] = part * np.outer(rng.dirichlet(np.ones(4)), rng.dirichlet(np.ones(2)))
    sizes, scopes = np.array([4, 3, 2, 5]), [(1, 0), (1, 2)]
    rows = draw_along(sizes, scopes, [p.sum(axis=2).T, p.sum(axis=0)], 6000, seed=1)
    counts = np.zeros((4, 3, 2))
    np.add.at(counts, tuple(rows[:, :3].T), 1.0 / 6000)
    assert 0.5 * np.abs(counts - p).sum() < 0.02
    assert np.bincount(rows[:, 3]).min() > 1150  # in no margin
    np.testing.assert_array_equal(rows, draw_along(sizes, scopes, [p.sum(axis=2).T, p.sum(axis=0)], 6000, seed=1))
