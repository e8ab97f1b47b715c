"""What estimators share: the learner's parameters, learning itself, and files."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from bactrian.estimators.saving import Arrays, ModelFileError, SavedModel, read_model, write_model
from bactrian.learners.learn import learn
from bactrian.solvers.solution import Callback, Solution, Status

Floats = NDArray[np.float64]


class LearnedEstimator(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Base of estimators that keep ``weights_`` and ``solution_``.

    Subclasses have the parameters of :func:`bactrian.learn` that are named here, and say in ``_contents`` and
    ``_restore`` what a file holds beside the weights.
    """

    method: Any
    prior_variance: float | None
    l1: float
    tolerance: float
    max_iterations: int
    max_seconds: float | None
    n_threads: int | None
    seed: int
    warm_start: bool
    weights_: Floats
    solution_: Solution
    #: What learns; a run with checkpoints puts its own in place, for one instance.
    _learning: Callable[..., Solution] = staticmethod(learn)

    def _learn(self, data: Any, *, callback: Callback | None = None, start: Any = None) -> None:
        """Learn the weights from what :func:`bactrian.learn` takes, and keep them."""
        self.solution_ = self._learning(
            data,
            self.method,
            prior_variance=self.prior_variance,
            l1=self.l1,
            tolerance=self.tolerance,
            max_iterations=self.max_iterations,
            max_seconds=self.max_seconds,
            n_threads=self.n_threads,
            seed=self.seed,
            callback=callback,
            start=start,
        )
        self.weights_ = self.solution_.weights.copy()

    def _contents(self) -> tuple[dict[str, Any], Arrays]:
        """Attributes (JSON) and arrays that a file holds beside the weights."""
        raise NotImplementedError

    def _restore(self, attributes: dict[str, Any], arrays: Arrays) -> None:
        """Take up what ``_contents`` gave, everything checked; ``weights_`` is set already."""
        raise NotImplementedError

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to one file (safetensors with JSON), replacing what is there in one step."""
        check_is_fitted(self, "weights_")
        solution = self.solution_
        attributes, arrays = self._contents()
        numbers = [solution.objective, solution.moment_gap, solution.violation, solution.seconds]
        arrays = {"weights": self.weights_, "solution": np.array(numbers), **arrays}
        attributes = {
            "status": solution.status.name,
            "method": solution.method,
            "evaluations": int(solution.evaluations),
            **attributes,
        }
        write_model(path, SavedModel(type(self).__name__, self.get_params(deep=False), attributes, arrays))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a model that :meth:`save` wrote.

        Beliefs and history of ``solution_`` are not kept in files.

        Raises
        ------
        ModelFileError
            A ValueError, where the file is damaged, truncated, foreign or written by a newer release.
        """
        saved = read_model(path, cls.__name__)
        try:
            return cls._restored(saved)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError, OverflowError) as error:
            raise ModelFileError(f"{os.fspath(path)}: the file describes no valid model: {error}") from None

    @classmethod
    def _restored(cls, saved: SavedModel) -> Self:
        if set(saved.params) != set(cls._get_param_names()):
            raise ValueError(f"its parameters are {', '.join(sorted(saved.params))}")
        attributes, arrays = saved.attributes, {name: array.copy() for name, array in saved.arrays.items()}
        weights = arrays["weights"]
        if weights.dtype != np.float64 or weights.ndim != 1 or not np.isfinite(weights).all():
            raise ValueError("its weights are not a flat array of finite numbers")
        objective, moment_gap, violation, seconds = arrays["solution"].tolist()
        estimator = cls(**saved.params)
        estimator.weights_ = weights
        estimator.solution_ = Solution(
            weights=weights,
            status=Status[attributes["status"]],
            history=(),
            objective=objective,
            moment_gap=moment_gap,
            violation=violation,
            beliefs=(),
            method=str(attributes["method"]),
            seconds=seconds,
            evaluations=int(attributes["evaluations"]),
        )
        estimator._restore(attributes, arrays)
        return estimator
