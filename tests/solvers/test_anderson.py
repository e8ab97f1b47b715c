"""Anderson's acceleration on linear contractions, whose fixed points a linear solver knows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ranks import ThreadRank, together

from bactrian.solvers.anderson import Anderson

N = 40


def contraction(seed: int, factor: float = 0.97) -> tuple[Any, Any, Any]:
    """Symmetric A of spectral radius ``factor``, b, and the x with x = A x + b."""
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.normal(size=(N, N)))[0]
    values = rng.uniform(-0.3, 0.6, size=N)
    values[:2] = factor, factor - 0.05  # two slow directions
    matrix = (basis * values) @ basis.T
    offset = rng.normal(size=N)
    return matrix, offset, np.linalg.solve(np.eye(N) - matrix, offset)


def steps_until(error: float, matrix: Any, offset: Any, solution: Any, accelerator: Anderson | None) -> int:
    """Evaluations of x -> A x + b until x is as near to the fixed point as ``error``, relative."""
    x = np.zeros(N)
    for step in range(2000):
        if np.linalg.norm(x - solution) <= error * np.linalg.norm(solution):
            return step
        image = matrix @ x + offset
        further = None if accelerator is None else accelerator.next(image, image - x, np.ones(N))
        x = image if further is None else further
    return 2000


@pytest.mark.parametrize("seed", range(5))
def test_a_linear_contraction_takes_far_fewer_steps(seed: int) -> None:
    matrix, offset, solution = contraction(seed)
    plain = steps_until(1e-8, matrix, offset, solution, None)
    accelerated = steps_until(1e-8, matrix, offset, solution, Anderson())
    assert 400 < plain < 2000  # log 1e-8 / log 0.97 is about 600
    assert accelerated <= plain / 8


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("cut", [1, N // 2])
def test_vectors_in_parts(seed: int, cut: int) -> None:
    """Two ranks that hold parts of x take the steps of one that holds it whole."""
    matrix, offset, solution = contraction(seed)
    whole = Anderson()
    x = np.zeros(N)
    path = []
    for _ in range(40):
        image = matrix @ x + offset
        further = whole.next(image, image - x, np.ones(N))
        x = image if further is None else further
        path.append(x)

    def work(rank: ThreadRank) -> Any:
        own = slice(0, cut) if rank.rank == 0 else slice(cut, N)
        part = Anderson(rank.add_up)
        x = np.zeros(N)
        found = []
        for _ in range(40):
            image = (matrix @ x + offset)[own]
            further = part.next(image, image - x[own], np.ones(image.size))
            x = np.zeros(N)
            x[own] = image if further is None else further
            rank.add_up(x)  # the map needs all of x
            found.append(x)
        return found

    for found in together(2, work):
        np.testing.assert_allclose(found[:10], path[:10], atol=1e-8)
        assert np.linalg.norm(found[-1] - solution) <= 1e-5 * np.linalg.norm(solution)


def test_a_fixed_point_stays() -> None:
    matrix, offset, solution = contraction(0)
    accelerator = Anderson()
    x = solution
    for _ in range(10):
        image = matrix @ x + offset
        further = accelerator.next(image, image - x, np.ones(N))
        x = image if further is None else further
        np.testing.assert_allclose(x, solution, atol=1e-9 * np.abs(solution).max())


def test_importance_weighs_the_residual() -> None:
    """Components that contract at different rates: from two images, the one that counts is found."""
    matrix, offset = np.diag([0.9, -0.5, 0.3]), np.ones(3)
    solution = offset / (1.0 - np.diag(matrix))

    def after_two_steps(importance: Any) -> Any:
        accelerator = Anderson()
        x = np.zeros(3)
        for _ in range(2):
            image = matrix @ x + offset
            further = accelerator.next(image, image - x, importance)
            x = image if further is None else further
        return np.abs(x - solution)

    for component in range(3):
        importance = np.full(3, 1e-12)
        importance[component] = 1.0
        assert after_two_steps(importance)[component] < 1e-5
        assert np.delete(after_two_steps(importance), component).max() > 1e-2


def test_growing_residuals_fall_back_on_plain_steps() -> None:
    """A map that moves away: after steps without progress no step is extrapolated any more."""
    accelerator = Anderson()
    answers = []
    for step in range(60):
        residual = np.full(N, 2.0**step)
        answers.append(accelerator.next(residual, residual, np.ones(N)))
    assert all(answer is None for answer in answers)


def test_infinite_residuals_give_plain_steps() -> None:
    accelerator = Anderson()
    assert accelerator.next(np.ones(2), np.array([np.inf, 0.0]), np.ones(2)) is None
    assert accelerator.next(np.ones(2), np.array([1.0, 0.0]), np.ones(2)) is None


def test_what_it_is_given_is_not_written_to() -> None:
    accelerator = Anderson()
    rng = np.random.default_rng(0)
    for _ in range(8):
        image, residual, importance = rng.normal(size=5), 0.5 * rng.normal(size=5), rng.random(5)
        copies = image.copy(), residual.copy(), importance.copy()
        accelerator.next(image, residual, importance)
        for given, copy in zip((image, residual, importance), copies, strict=True):
            np.testing.assert_array_equal(given, copy)
