"""How exact messages must be: what is asked for as learning goes on, and in the end."""

import numpy as np
import pytest

from bactrian.camel.accuracy import Accuracy, Demands
from bactrian.solvers.solution import Status


def test_demands_follow_from_tolerances_and_the_prior() -> None:
    free = Demands.of(1e-6, None, 0.0, 50.0)
    assert (free.scale, free.gap, free.messages) == (50.0, pytest.approx(5e-5), 1e-6)
    assert free.gradient == pytest.approx(1e-8)  # a hundredth of the gap per instance
    weak = Demands.of(1e-6, None, 1e-3, 50.0)  # weights are free to move: gap / curvature bounds their error
    assert weak.gap == pytest.approx(1e-6)
    given = Demands.of(1e-6, 1.0, 0.0, 50.0)
    assert (given.gap, given.scale) == (1.0, pytest.approx(1e6))


def test_the_accuracy_follows_gap_and_beliefs_down_to_what_is_demanded() -> None:
    accuracy = Accuracy(Demands.of(1e-6, None, 0.0, 100.0))
    seen = [accuracy.now]
    for gap in (10.0, 1.0, 1e-2, 1e-12):
        accuracy.heed_gap(gap)
        seen.append(accuracy.now)
    np.testing.assert_allclose(seen, [1e-2, 1e-2, 1e-3, 1e-5, 1e-6])
    other = Accuracy(Demands.of(1e-6, None, 0.0, 100.0))
    for change, expected in ((np.nan, 1e-2), (1e-3, 1e-4), (0.5, 1e-4), (0.0, 1e-6)):
        other.heed_beliefs(change)
        assert other.now == pytest.approx(expected)


def test_a_search_that_went_astray_and_a_gap_that_is_not_believed_sharpen() -> None:
    accuracy = Accuracy(Demands.of(1e-6, None, 0.0, 1.0))
    accuracy.heed_search(trials=2, gain=1.0, value=10.0)
    assert accuracy.now == 1e-2
    accuracy.heed_search(trials=9, gain=1.0, value=10.0)
    accuracy.heed_search(trials=1, gain=0.0, value=10.0)
    assert accuracy.now == pytest.approx(1e-4)
    assert accuracy.sharpen(Status.CONVERGED, at_once=True)
    assert accuracy.now == 1e-6
    assert not accuracy.sharpen(Status.CONVERGED, at_once=True)
    assert not accuracy.sharpen(Status.ITERATION_LIMIT, at_once=False)
    assert accuracy.sharpen_beyond()
    assert accuracy.now == pytest.approx(1e-8)


def test_below_rounding_all_is_asked_for() -> None:
    accuracy = Accuracy(Demands.of(1e-9, None, 0.0, 1.0), least=1e-5)
    assert accuracy.now == 1e-2
    accuracy.demand_all()
    assert accuracy.now == 0.0
