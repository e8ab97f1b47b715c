"""How labels are written: -1 that is a class, kinds that are mixed, strings and numbers that arrays cannot hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import bactrian as bt
from bactrian.frames import Table

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
    options = {"prior_variance": 10.0, **options}
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


@pytest.mark.parametrize("fitted", [of_graphs, of_grids, of_labellers])
def test_labels_that_end_in_a_nul_are_refused(fitted):
    """Arrays of strings drop it, so that two classes would be one."""
    with pytest.raises(ValueError, match=r"^[yL].*\[.*\] is 'a\\x00', .* NUL"):
        fitted([["a", "b", "a\0", "a", "b", "a"]] * 3)
    with pytest.raises(ValueError, match="NUL"):
        fitted([["a", "b", "a", "a", "b", "a"]] * 3, labels=["a", "a\0", "b"])


def test_labels_of_chains_may_end_in_a_nul():
    assert of_chains([["a", "b", "a\0", "a", "b", "a"]] * 3).classes_.tolist() == ["a", "a\0", "b"]


@pytest.mark.parametrize("fitted", [of_graphs, of_grids, of_chains, of_skip_chains])
def test_whole_floats_are_integers_where_any_label_is_missing(fitted):
    labels = [[0.0, 1.0, np.nan, 0.0, 1.0, 1.0], [0.0, 1.0, 0.0, 1.0, 1.0, 1.0], [1, 0, 1, 1, 0, 0]]
    numbers = [[0, 1, -1, 0, 1, 1], *np.array(labels[1:], dtype=int).tolist()]
    expected = fitted(numbers).weights_
    np.testing.assert_array_equal(fitted(labels).weights_, expected)
    np.testing.assert_array_equal(fitted([np.array(part) for part in labels]).weights_, expected)
    with pytest.raises(TypeError, match=r"y\[1\].* must be a string, an integer or a boolean, found 0\.5"):
        fitted([labels[0], [0.5, *labels[1][1:]], labels[2]])
    with pytest.raises(TypeError, match=r"must be a string, an integer or a boolean, found 0\.0"):
        fitted([labels[1]] * 3)


@each
def test_integers_beyond_64_bits_are_refused(fitted):
    for large in (2**63, -(2**70)):
        with pytest.raises(ValueError, match=f"^[yL].* is {large}, which is beyond 64-bit integers"):
            fitted([[0, 1, large, 0, 1, 1]] * 3)
        with pytest.raises(ValueError, match=f"^labels.* is {large}, which is beyond 64-bit integers"):
            fitted([[0, 1, 1, 0, 1, 1]] * 3, labels=[0, 1, large])


@each
def test_booleans_among_integers_are_refused_wherever_they_are(fitted):
    one, other = [1, 0, 1, 1, 0, 0], [True, False, True, True, False, False]
    for labels in ([one, other, one], [other, one, one], [[True, *one[1:]], one, one], [one, one, [*one[:-1], False]]):
        with pytest.raises(TypeError, match="must be all strings, all integers or all booleans"):
            fitted(labels)
    assert fitted([other] * 3).classes_.tolist() == [False, True]
    assert fitted([[-1, *other[1:]], other, other]).classes_.tolist() in ([0, 1], [False, True])


@pytest.mark.parametrize("scale", [1e150, 1e200, 1e300])
def test_features_whose_squares_overflow_are_refused(scale):
    y, text = [[0, 1, 0, 1, 1, 0]] * 3, r"holds \d\.?\d*e\+\d+ in magnitude, .* scale features"
    with pytest.raises(ValueError, match=rf"^X\[0\]: node_features {text}"):
        bt.GraphCRF().fit([(scale * rows, edges) for rows, edges in GRAPHS], y)
    with pytest.raises(ValueError, match=rf"^X\[0\]: edge_features {text}"):
        bt.GraphCRF().fit([(rows, edges, np.full((3, 1), scale)) for rows, edges in GRAPHS], y)
    for options in ({}, {"edge_features": "contrast"}):
        with pytest.raises(ValueError, match=rf"^X\[0\].* {text}"):
            bt.GridCRF(**options).fit([scale * grid for grid in GRIDS], [np.reshape(part, (2, 3)) for part in y])
    with pytest.raises(ValueError, match=rf"^X\[0\] {text}"):
        bt.LinearChainCRF().fit([scale * rows for rows, _ in GRAPHS], y)
    with pytest.raises(TypeError, match=r"'size' must be a finite number of at most 1e\+100, found 1e"):
        bt.LinearChainCRF().fit([[{"size": scale}] * 6] * 3, y)


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_moments_in_time_are_refused_as_measurements_are(library):
    """They came back as strings."""
    import datetime

    frames = pytest.importorskip(library)
    days = [datetime.datetime(2020, 1, 1 + day % 2) for day in range(4)]
    frame = frames.DataFrame({"day": days, "sex": [*"fmfm"]})
    with pytest.raises(TypeError, match=r"column 'day' holds .*2020.*strings"):
        bt.MarkovRandomField().fit(frame)
    with pytest.raises(TypeError, match=r"column 'day' holds .*2020.*strings"):
        bt.MarkovRandomField(cardinalities={"day": days[:2]}).fit(frame)
