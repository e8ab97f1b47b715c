"""The orthant-wise method on problems with an L1 term: optimality conditions, and how many iterations it takes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from bactrian.engines.long_memory import LongMemory
from bactrian.parallel.threads import Workers
from bactrian.solvers.lbfgs import Memory, local_inner_products, minimise
from bactrian.solvers.solution import Status

Floats = NDArray[np.float64]


def correlated_lasso(seed: int) -> tuple[Callable[[Floats], tuple[float, Floats]], int]:
    """Least squares on 30 groups of ten nearly equal columns."""
    rng = np.random.default_rng(seed)
    matrix = np.repeat(rng.normal(size=(200, 30)), 10, axis=1) + 0.1 * rng.normal(size=(200, 300))
    target = matrix @ (rng.normal(size=300) * (rng.random(300) < 0.2))

    def function(w: Floats) -> tuple[float, Floats]:
        rest = matrix @ w - target
        return float(0.5 * rest @ rest + 0.005 * w @ w), matrix.T @ rest + 0.01 * w

    return function, 300


@pytest.mark.parametrize("memory", ["plain", "long", "not local"])
@pytest.mark.parametrize("seed", range(2))
def test_correlated_columns_in_few_iterations(seed: int, memory: str) -> None:
    """The optimum, by its conditions, where cutting directions off at every sign took 4,500 to 5,100 iterations."""
    function, n = correlated_lasso(seed)
    kind = {
        "plain": lambda: Memory(10, n),
        "long": lambda: LongMemory(10, n, Workers(1)),
        "not local": lambda: Memory(10, n, lambda left, right: local_inner_products(left, right)),
    }[memory]()
    assert kind.gathers is (memory != "not local")
    found = minimise(function, np.zeros(n), tolerance=1e-6, max_iterations=1500, l1=1.0, memory=kind)
    assert found.status is Status.CONVERGED
    gradient = function(found.x)[1]
    assert np.abs(gradient[found.x == 0.0]).max() <= 1.0 + 1e-6
    np.testing.assert_allclose(gradient[found.x != 0.0], -np.sign(found.x[found.x != 0.0]), atol=1.1e-6)
    assert 50 < np.count_nonzero(found.x) < 150


def test_entries_without_the_term_cross_zero() -> None:
    """Where l1 is 0 for some entries, these have no orthant."""
    target = np.array([2.0, -3.0, 0.5])

    def function(w: Floats) -> tuple[float, Floats]:
        return float(0.5 * (w - target) @ (w - target)), w - target

    found = minimise(
        function, np.array([-1.0, 1.0, 1.0]), tolerance=1e-10, max_iterations=50, l1=np.array([0.0, 0.0, 1.0])
    )
    np.testing.assert_allclose(found.x, [2.0, -3.0, 0.0], atol=1e-9)
