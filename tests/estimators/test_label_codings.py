"""How labels are written: -1 that is a class, kinds that are mixed, strings and numbers that arrays cannot hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import bactrian as bt
from bactrian.estimators.frames import Table

RNG = np.random.default_rng(0)
GRAPHS = [(RNG.normal(size=(6, 2)), [(0, 1), (1, 2), (3, 4)]) for _ in range(3)]
GRIDS = [RNG.normal(size=(2, 3, 2)) for _ in range(3)]
CHAINS = [[["a"], ["b"], ["a", "c"], ["c"], ["b"], ["a"]] for _ in range(3)]
TABLE = RNG.integers(0, 2, (20, 3))


def of_graphs(y: Any, **options: Any) -> Any:
    return bt.GraphCRF(**options).fit(GRAPHS, y)


def of_grids(y: Any, **options: Any) -> Any:
    shaped = [np.array([*part], dtype=object).reshape(2, 3).tolist() for part in y]
    return bt.GridCRF(**options).fit(GRIDS, shaped)


def of_chains(y: Any, **options: Any) -> Any:
    return bt.LinearChainCRF(**options).fit(CHAINS, y)


def of_skip_chains(y: Any, **options: Any) -> Any:
    return bt.SkipChainCRF(**options).fit(CHAINS, y, skips=[[(0, 2)]] * 3)


def of_labellers(y: Any, **options: Any) -> Any:
    return bt.LabelModel(**options).fit(list(zip(*y, strict=True)))


ESTIMATORS = [of_graphs, of_grids, of_chains, of_skip_chains, of_labellers]
each = pytest.mark.parametrize("fitted", ESTIMATORS)


@each
def test_two_classes_that_are_minus_one_and_one_are_refused(fitted):
    labels = [[-1, 1, 1, -1, 1, -1], [1, 1, 1, -1, -1, -1], [1, -1, 1, -1, 1, -1]]
    with pytest.raises(
        ValueError, match=r"^[yL] holds -1, .* no class but 1.* number the classes from 0.* None or NaN"
    ):
        fitted(labels)
    with pytest.raises(ValueError, match="no class but 1"):
        fitted([np.array(part) for part in labels])
    with pytest.raises(ValueError, match="no class but 0"):
        fitted([[min(label, 0) for label in part] for part in labels])
    hidden = [[None if label < 0 else label for label in part] for part in labels]
    assert fitted(hidden).classes_.tolist() == [1]
    assert fitted(labels, labels=[0, 1]).classes_.tolist() == [0, 1]


@each
def test_minus_one_beside_other_negative_numbers_is_refused(fitted):
    labels = [[-2, -1, 1, -1, 1, -1], [1, -2, 1, -1, -1, -2], [1, -1, 1, -1, 1, -1]]
    with pytest.raises(ValueError, match=r"^[yL] holds -1, .* other negative numbers, such as -2"):
        fitted(labels)
    assert fitted([[-5 if label == -1 else label for label in part] for part in labels]).classes_.tolist() == [
        -5,
        -2,
        1,
    ]


@each
def test_minus_one_is_unknown_beside_two_classes_wherever_they_are(fitted):
    labels = [[-1, 1, 1, -1, 1, -1], [0, 0, -1, -1, 0, -1], [-1] * 6]
    assert fitted(labels).classes_.tolist() == [0, 1]
    words = [[-1 if label < 0 else "yes" for label in part] for part in labels]
    assert fitted(words).classes_.tolist() == ["yes"]  # -1 cannot be a class of strings


def test_a_field_refuses_spins():
    spins = 2 * TABLE - 1
    with pytest.raises(ValueError, match=r"^X\[:, 0\] holds -1, .* no class but 1.* number .* from 0.* cardinalities="):
        bt.MarkovRandomField().fit(spins)
    with pytest.raises(ValueError, match=r"^X\[:, 2\] holds -1, .* no class but 1"):
        bt.MarkovRandomField().fit(np.column_stack([TABLE[:, :2], spins[:, 2]]))
    with pytest.raises(ValueError, match=r"^X\[:, 0\] holds -1, .* other negative numbers, such as -2"):
        bt.MarkovRandomField().fit(np.where(TABLE == 0, -2, np.where(spins > 0, -1, 1)))
    with pytest.raises(ValueError, match=r"^X: column 'a' holds -1, .* no class but 1.* cardinalities="):
        bt.MarkovRandomField().fit(Table({name: column.tolist() for name, column in zip("abc", spins.T, strict=True)}))
    assert bt.MarkovRandomField(cardinalities=2).fit(spins).cardinalities_.tolist() == [2, 2, 2]
    holes = np.where(spins < 0, np.nan, 1.0)
    assert bt.MarkovRandomField().fit(holes).cardinalities_.tolist() == [2, 2, 2]
    declared = {name: [-1, 1] for name in "abc"}
    rows = Table({name: column.tolist() for name, column in zip("abc", spins.T, strict=True)})
    by_code = bt.MarkovRandomField().fit(TABLE)
    np.testing.assert_array_equal(bt.MarkovRandomField(cardinalities=declared).fit(rows).weights_, by_code.weights_)


def test_a_field_of_shared_tables_asks_all_columns():
    rows = np.column_stack([TABLE, np.where(TABLE[:, 0] > 0, -1, 1)])
    assert bt.MarkovRandomField(tables="shared").fit(rows).cardinalities_.tolist() == [2, 2, 2, 2]
    with pytest.raises(ValueError, match=r"^X holds -1, .* no class but 1"):
        bt.MarkovRandomField(tables="shared").fit(2 * TABLE - 1)
