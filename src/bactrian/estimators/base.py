"""What estimators share: the learner's parameters, learning itself, and files."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from bactrian.arrays import Arrays, Floats
from bactrian.errors import ArgumentError, check_flag
from bactrian.estimators.held_out import PATIENCE, HeldOut
from bactrian.estimators.priors import VARIANCE, Block, Fold, cross_validated, is_by_block, variances
from bactrian.estimators.saving import SavedModel, read_model, write_saved
from bactrian.learners.agreement import can_follow
from bactrian.learners.learn import check_options, followed, learn
from bactrian.parallel.threads import Deadline
from bactrian.solvers.solution import Callback, Solution, Status

#: Numbers of a solution that files hold, in this order.
_FIGURES = ("objective", "moment_gap", "violation", "seconds")

#: Parameters that files do not hold: those of where and how a model was learned.
OF_HERE = frozenset(("verbose", "device"))
#: Options of learning that mean nothing on a device.
_NOT_THERE = ("method", "l1", "n_threads", "seed", "gain_tolerance")


@dataclass(kw_only=True, eq=False, repr=False)  # scikit-learn has its own
class LearnedEstimator(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Base of estimators that keep ``weights_`` and ``solution_``.

    To fit is to ``encode``, to learn and to ``adopt`` what was learned. The ``encode`` of subclasses returns the data
    to learn from, and sets classes and features; with ``warm_start`` it keeps those of the last fit. The parameters
    here are options of :func:`bactrian.learn`, and subclasses add their own. ``_contents`` and ``_restore`` define what
    a file holds besides the weights.
    """

    #: Names of the blocks of weights whose variances may differ.
    _block_names: ClassVar[tuple[str, ...]]
    #: Parameters that files of earlier releases do not have.
    _newer_params: ClassVar[tuple[str, ...]] = ()

    method: Any = "cccp"
    prior_variance: Any = "auto"
    l1: float = 0.0
    tolerance: float = 1e-6
    max_iterations: int = 10_000
    max_seconds: float | None = None
    n_threads: int | None = None
    seed: int = 0
    warm_start: bool = False
    verbose: int = 0
    codec_: Any = field(init=False, default=None)  #: what ``encode`` fixed, in estimators that have a codec
    weights_: Floats = field(init=False)
    solution_: Solution = field(init=False)
    method_: Any = field(init=False)  #: the method that was learned with
    prior_variance_: Any = field(init=False)  #: the prior that was learned with; what was chosen where a word was given
    held_out_scores_: list[tuple[int, float]] = field(init=False)  #: iteration and log loss of each look at ``X_dev``
    prior_scores_: list[tuple[Any, float]] = field(init=False)  #: what ``"cv"`` tried, with the loss per held-out label

    # --- fit: encode, learn, adopt ---

    def _fit(
        self,
        encode: Callable[[], Any],
        callback: Callback | None,
        X_dev: Any = None,
        y_dev: Any = None,
        **given_dev: Any,
    ) -> Self:
        """Encode, learn and adopt, watching held-out data; where anything fails the estimator stays as it was."""
        if (X_dev is None) != (y_dev is None):
            there, missing = ("X_dev", "y_dev") if y_dev is None else ("y_dev", "X_dev")
            raise ArgumentError(missing, f"must be given where {there} is")
        before = self.__dict__.copy()
        start = {"start": self.weights_} if self.warm_start and hasattr(self, "weights_") else {}
        try:
            data, deadline = encode(), Deadline(self.max_seconds)
            watch = None if X_dev is None else held_out(self, X_dev, y_dev, callback, **given_dev)
            choose_prior(self, data)
            options = {**self.learning_options(), "max_seconds": deadline.left, **start}
            solution = self._learner(data, **options, callback=watch or callback, verbose=self.verbose)
            self.adopt(solution if watch is None else watch.chosen(solution))
            self.held_out_scores_ = [] if watch is None else watch.scores
            judge(self, data)
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise
        return self

    @property
    def _learner(self) -> Callable[..., Solution]:
        """What ``fit`` learns with: :func:`bactrian.learn`, or its like whose solution predictions can replay."""
        if getattr(self, "device", None) is not None and self._device_method != "auto":
            return partial(learned_on_device, self)
        return partial(followed, solution=None) if self._replays else learn

    @property
    def _replays(self) -> bool:
        """Whether predictions may replay the path of learning."""
        return False

    def adopt(self, solution: Solution) -> Self:
        """Keep weights that were learned, with ``learning_options``, from the data of ``encode``.

        Examples
        --------
        >>> import bactrian as bt
        >>> X, y = [[["a"], ["b"]], [["b"]]], [["A", "B"], ["B"]]
        >>> chain = bt.LinearChainCRF()
        >>> solution = bt.learn(chain.encode(X, y), **chain.learning_options())  # fit does no more
        >>> chain.adopt(solution).predict(X)
        [['A', 'B'], ['B']]
        """
        if solution.weights.size != self._n_weights():
            raise ValueError(f"solution must have {self._n_weights()} weights, found {solution.weights.size}")
        self.solution_, self.weights_, self.method_ = solution, solution.weights.copy(), self.method
        self.prior_variance_ = self._prior()
        return self

    def _held_out(self, X: Any, y: Any) -> Callable[[], float]:
        """The loss of the adopted weights on these data, looked at after ``encode``."""
        raise NotImplementedError

    def _folds(self, data: Any) -> list[Fold]:
        """How cross-validation divides what ``encode`` gave."""
        raise NotImplementedError

    def _judge(self, data: Any) -> None:
        """Warn where predictions on the data of learning are worse than those of a trivial model."""

    # --- what encode fixed ---

    def _encoded(self, codec: Any) -> None:
        """Adopt what ``encode`` fixed; drop the weights of another model."""
        if not (self.warm_start and self.codec_ is not None):
            self._forget()
        self._hold(codec)

    def _hold(self, codec: Any) -> None:
        self.codec_, self.classes_, self.n_features_in_ = codec, codec.classes, codec.n_features

    def _forget(self) -> None:
        """Drop the weights of an earlier fit: the model that they are of is about to change."""
        self.__dict__.pop("weights_", None)
        self.__dict__.pop("solution_", None)

    def _n_weights(self) -> int:
        """Number of weights of the model that ``encode`` fixed."""
        return int(self.codec_.layout.n_weights)

    def _blocks(self) -> list[Block]:
        """Blocks of weights whose variances may differ; without any there is one variance for all."""
        return [] if self.codec_ is None else self.codec_.blocks

    # --- parameters ---

    def check_params(self) -> None:
        """Check the parameters, before looking at any data."""
        self._check_prior(self._options(), self.prior_variance)
        check_flag("warm_start", self.warm_start)
        check_flag("verbose", self.verbose)

    def _check_prior(self, options: dict[str, Any], prior_variance: Any) -> None:
        """Refuse options with such a prior that :func:`bactrian.learn` would not take."""
        by_block = is_by_block(prior_variance, self._block_names)
        check_options(**{**options, "prior_variance": VARIANCE if by_block else prior_variance})

    def _check_device(self, inference: Collection[str] = ()) -> None:
        """Refuse what ``device`` cannot do; ``inference`` names the methods of prediction that it can."""
        device: Any = getattr(self, "device", None)
        if device is None:
            return
        from bactrian.engines.torch.device import checked_device
        from bactrian.engines.torch.learn import checked_method

        checked_device(device)
        if self._device_method != "auto":
            checked_method(self._device_method)
        if self.l1:
            raise ArgumentError("l1", f"must be 0 on a device, found {self.l1}")
        if inference and getattr(self, "inference", None) not in (None, *inference):
            raise ArgumentError("inference", f"must be one of {', '.join(inference)} on a device")

    @property
    def _device_method(self) -> Any:
        """What learns on a device."""
        return self.method

    def _options(self) -> dict[str, Any]:
        """Options of :func:`bactrian.learn` as they are given."""
        names = [entry.name for entry in dataclasses.fields(LearnedEstimator) if entry.init]
        return {name: getattr(self, name) for name in names if name not in ("warm_start", "verbose")}

    def learning_options(self) -> dict[str, Any]:
        """The method and the options of :func:`bactrian.learn` that ``fit`` learns with, after ``encode``.

        Where ``prior_variance="cv"``, :func:`choose_prior` comes first.
        """
        return {**self._options(), "prior_variance": variances(self._prior(), self._blocks())}

    def _prior(self) -> Any:
        """The prior to learn with, as a number, a mapping or None."""
        if not isinstance(self.prior_variance, str):
            return self.prior_variance
        found = self._auto_prior if self.prior_variance == "auto" else getattr(self, "prior_variance_", None)
        if found is None:
            step = "encode" if self.prior_variance == "auto" else "choose_prior with what encode gave"
            raise ValueError(f"prior_variance={self.prior_variance!r} is not chosen yet: call {step}")
        return found

    @property
    def _auto_prior(self) -> Any:
        """What ``encode`` chose, where ``prior_variance="auto"``."""
        return None if self.codec_ is None else self.codec_.auto_prior

    def __dir__(self) -> list[str]:
        """Names for completion, without the steps of ``fit``."""
        return sorted({*super().__dir__()} - {"adopt", "check_params", "codec_", "encode", "learning_options"})

    # --- files ---

    def _contents(self) -> tuple[dict[str, Any], Arrays]:
        """Attributes (JSON) and arrays that a file holds besides the weights."""
        attributes, arrays = self.codec_.contents()
        return attributes, arrays

    def _restore(self, attributes: dict[str, Any], arrays: Arrays) -> None:
        """Take up what ``_contents`` gave, everything checked; ``weights_`` is set already."""
        raise NotImplementedError

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to one file (safetensors with JSON), replacing an existing file atomically."""
        write_saved(path, saved_model(self))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a model that :meth:`save` wrote.

        Files do not contain the beliefs and history of ``solution_``.

        Raises
        ------
        ModelFileError
            A ValueError: the file is damaged, truncated, not a model of bactrian, or written by a newer release.
        """
        return read_model(path, cls.__name__, partial(restored_model, cls))

    def __getstate__(self) -> dict[str, Any]:
        """What a pickle holds: ``solution_`` with its figures and history, without the beliefs of the training data."""
        state: dict[str, Any] = dict(super().__getstate__())
        if "solution_" in state:
            state["solution_"] = dataclasses.replace(state["solution_"], beliefs=(), state=None)
        return state


# --- files ---


def saved_model(estimator: Any) -> SavedModel:
    """What the file of a fitted estimator holds."""
    check_is_fitted(estimator, "weights_")
    solution = estimator.solution_
    attributes, arrays = estimator._contents()
    figures = np.array([getattr(solution, name) for name in _FIGURES])
    arrays = {"weights": estimator.weights_, "solution": figures, **arrays}
    if solution.path is not None:
        arrays["path"] = solution.path
    attributes = {
        "status": solution.status.name,
        "method": solution.method,
        "evaluations": int(solution.evaluations),
        "attained": solution.attained,
        "fitted_method": estimator.method_,
        "fitted_prior": estimator.prior_variance_,
        "prior_scores": getattr(estimator, "prior_scores_", None),
        **attributes,
    }
    params = {name: value for name, value in estimator.get_params(deep=False).items() if name not in OF_HERE}
    return SavedModel(type(estimator).__name__, params, attributes, arrays)


def restored_model(cls: Any, saved: SavedModel) -> Any:
    """The estimator of which :func:`saved_model` made this, everything checked."""
    if {*saved.params, *cls._newer_params} != {*cls._get_param_names()} - OF_HERE:
        raise ValueError(f"its parameters are {', '.join(sorted(saved.params))}")
    attributes, arrays = saved.attributes, {name: array.copy() for name, array in saved.arrays.items()}
    weights = arrays["weights"]
    if weights.dtype != np.float64 or weights.ndim != 1 or not np.isfinite(weights).all():
        raise ValueError("its weights are not a flat array of finite numbers")
    path = arrays.get("path")
    if path is not None and (path.dtype != np.float64 or path.shape[1:] != weights.shape or not len(path)):
        raise ValueError("its path is not an array with a row of weights per relinearisation")
    if path is not None and not np.isfinite(path).all():
        raise ValueError("its path holds NaN or infinite weights")
    attained = attributes.get("attained")  # older files have none
    estimator = cls(**saved.params)
    estimator.check_params()
    estimator.weights_ = weights
    estimator.solution_ = Solution(
        weights=weights,
        status=Status[attributes["status"]],
        method=str(attributes["method"]),
        evaluations=int(attributes["evaluations"]),
        attained=None if attained is None else float(attained),
        path=path,
        **dict(zip(_FIGURES, arrays["solution"].tolist(), strict=True)),
    )
    estimator.method_ = attributes.get("fitted_method", estimator.method)  # older files of sequences have none
    estimator.prior_variance_ = attributes.get("fitted_prior", estimator.prior_variance)
    estimator._check_prior({**estimator._options(), "method": estimator.method_}, estimator.prior_variance_)
    if attributes.get("prior_scores") is not None:
        estimator.prior_scores_ = [(variance, float(loss)) for variance, loss in attributes["prior_scores"]]
    estimator._restore(attributes, arrays)
    if estimator._n_weights() != weights.size:
        raise ValueError(f"it has {weights.size} weights, which do not fit its features, labels and tables")
    return estimator


# --- the steps of fit, for those who learn in another way ---


def choose_prior(estimator: Any, data: Any) -> None:
    """Choose ``prior_variance_`` by cross-validation on what ``encode`` gave, where ``prior_variance="cv"``."""
    for name in ("prior_variance_", "prior_scores_"):
        vars(estimator).pop(name, None)
    if isinstance(estimator.prior_variance, str) and estimator.prior_variance == "cv":
        found = cross_validated(estimator, estimator._blocks(), estimator._folds(data))
        estimator.prior_variance_, estimator.prior_scores_ = found
        estimator._forget()


def held_out(
    estimator: Any, X: Any, y: Any, callback: Callback | None, patience: int = PATIENCE, **given: Any
) -> HeldOut:
    """A callback that stops learning when the loss of these data no longer falls; ``given`` as in ``fit``."""
    return HeldOut(estimator, estimator._held_out(X, y, **given), callback, patience)


def to_adopt(estimator: Any, data: Any, solution: Solution) -> Solution:
    """What to adopt of a ``solution`` that was learned from what ``encode`` gave: one that predictions can replay.

    That is the solution itself, unless belief propagation does not find its beliefs and predictions are to match the
    learner; see :func:`bactrian.learners.learn.followed`.
    """
    if not estimator._replays:
        return solution
    options = estimator.learning_options()
    if options["max_seconds"] is not None:
        options["max_seconds"] = max(0.0, options["max_seconds"] - solution.seconds)
    return followed(data, solution, **options)


def learned_on_device(estimator: Any, data: Any, **options: Any) -> Solution:
    """What :func:`bactrian.torch.learn` finds; a path for predictions to replay is looked for on the CPU."""
    from bactrian.engines.torch.learn import learn as learn_there

    given = {name: value for name, value in options.items() if name not in _NOT_THERE}
    solution = learn_there(data, estimator._device_method, device=estimator.device, **given)
    return to_adopt(estimator, data, solution) if can_follow(estimator._device_method) else solution


def judge(estimator: Any, data: Any) -> None:
    """Warn where predictions on the data of learning are worse than those of a trivial model."""
    estimator._judge(data)


def largest_weights(
    table: Floats, features: Sequence[str], labels: Sequence[Any], n: int
) -> list[tuple[str, Any, float]]:
    """The ``n`` entries of largest magnitude of a table (n_features, n_labels), largest first.

    >>> largest_weights(np.array([[0.0, 1.0], [-3.0, 2.0]]), ["a", "b"], ["x", "y"], 3)
    [('b', 'x', -3.0), ('b', 'y', 2.0), ('a', 'y', 1.0)]
    """
    order = np.argsort(-np.abs(table), axis=None, kind="stable")[:n].tolist()
    places = (divmod(place, len(labels)) for place in order)
    return [(features[i], labels[k], float(table[i, k])) for i, k in places]
