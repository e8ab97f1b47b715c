"""One entry point for all learners."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from inspect import signature
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike

from bactrian.arrays import Floats, real_numbers
from bactrian.camel.camel import SHORTHAND, Camel
from bactrian.camel.entropy import REGISTERED
from bactrian.camel.prior import Prior
from bactrian.camel.run import Settings
from bactrian.engines.files import PackedFolder
from bactrian.errors import ArgumentTypeError, Number, check_callback, check_choice, check_flag, check_numbers, warn
from bactrian.graphs.graph_data import GraphData
from bactrian.graphs.loglinear import Instance, Moments, Samples
from bactrian.graphs.packed import PackedData
from bactrian.graphs.packing import pack
from bactrian.learners.agreement import UNATTAINED, attained, can_follow, follow, moments_attained
from bactrian.learners.full_tables import PseudoMoments, UnifiedScaling
from bactrian.learners.hidden import Hidden
from bactrian.learners.likelihood import Likelihood
from bactrian.learners.pseudolikelihood import PseudoLikelihood
from bactrian.parallel import Alone, Communicator, largest_anywhere
from bactrian.parallel.threads import Context, Deadline, Workers, single_threaded_blas
from bactrian.solvers.solution import (
    AttainmentWarning,
    Callback,
    Progress,
    ProgressLines,
    Solution,
    Status,
    warn_stopped,
)

#: Part of a time limit after which learning must have converged; the rest is for a solution that inference can follow.
_SHARE = 0.75
#: Learners whose solution is not a sum over instances.
_UNDIVIDED = ("ups", "pseudo-moments")


class Learner(Protocol):
    """A configured learner, such as :class:`Camel` or :class:`Likelihood`."""

    @property
    def name(self) -> str:
        """How the learner calls itself in results and warnings."""

    def learn(self, data: Any, settings: Settings, context: Context) -> Solution:
        """Fit the weights of packed data."""


METHODS: dict[str, Learner] = {
    **SHORTHAND,
    **{name: Likelihood(inference=name) for name in ("exact", "lbp")},
    **{learner.name: learner for learner in (PseudoLikelihood(), PseudoLikelihood(piecewise=True))},
    **{learner.name: learner for learner in (UnifiedScaling(), PseudoMoments())},
}
_OWN = dict(METHODS)


def register_learner(learner: Learner) -> Learner:
    """Register a learner by its name, for :func:`learn`, estimators, files and ``bactrian train``.

    A learner has a ``name`` and ``learn(data, settings, context)``, which returns a :class:`Solution`. It may have
    ``matched_inference``, the method of :func:`bactrian.infer` and its options with which estimators predict; without
    it they use residual belief propagation. Files contain its name or, for a dataclass given as an object, its
    settings: register the learner before you load them.

    Examples
    --------
    >>> import bactrian as bt
    >>> class Patient:
    ...     name = "patient"
    ...     matched_inference = ("convex", {})
    ...
    ...     def learn(self, data, settings, context):
    ...         return bt.Camel(entropy="convex", tight=True).learn(data, settings, context)
    >>> learner = bt.register_learner(Patient())
    >>> bt.GraphCRF(method="patient").fit([([[1.0], [0.0]], [(0, 1)])], [[1, 0]]).inference_method_[0]
    'convex'
    """
    name = getattr(learner, "name", None)
    if not isinstance(name, str) or not callable(getattr(learner, "learn", None)) or isinstance(learner, type):
        raise TypeError(f"learner must be an object with a name and a method learn, found {learner!r}")
    classes = {type(own).__name__: type(own) for own in _OWN.values()}
    if name in _OWN or classes.get(type(learner).__name__, type(learner)) is not type(learner):
        raise ValueError(f"{type(learner).__name__} {name!r} has the name of one of the library's own learners")
    METHODS[name] = learner
    return learner


def learner_classes() -> dict[str, Any]:
    """Classes of the learners that are known, by name; of those, files may hold objects."""
    return {type(learner).__name__: type(learner) for learner in METHODS.values()}


def learn(
    data: Samples | Moments | Sequence[Instance] | GraphData | PackedFolder,
    method: str | Learner = "cccp",
    *,
    prior_variance: float | ArrayLike | None = 10.0,
    l1: float = 0.0,
    tolerance: float = 1e-6,
    gap_tolerance: float | None = None,
    gain_tolerance: float = 0.0,
    max_iterations: int = 10_000,
    max_relinearisations: int = 1_000,
    max_seconds: float | None = None,
    n_threads: int | None = None,
    seed: int = 0,
    callback: Callback | None = None,
    start: ArrayLike | Solution | None = None,
    communicator: Communicator | None = None,
    verbose: int = 0,
) -> Solution:
    """Learn the weights of a log-linear Markov or conditional random field.

    The objective is the sum over instances (or samples) of log-likelihood terms, exact or approximated by the method,
    minus ``sum_k w_k^2 / (2 prior_variance_k)`` and ``l1 |w|_1``.

    Parameters
    ----------
    data : Samples, Moments, list of Instance, GraphData, or PackedFolder
        Generative samples, or only sums of their features; conditional instances; graphs in arrays; or such graphs in
        files, read a chunk at a time (with :class:`Camel`, and with ``"exact"`` on chains and trees).
    method : str or learner
        ``"piecewise"``, ``"camel0"``, ``"cccp"``, ``"cccp-empirical"``, ``"trw"``, ``"convex"`` (shorthand for settings
        of :class:`Camel`), ``"exact"``, ``"lbp"`` (for :class:`Likelihood`),
        ``"pseudolikelihood"``, ``"piecewise-pseudolikelihood"`` (:class:`PseudoLikelihood`),
        ``"ups"`` (:class:`UnifiedScaling`), ``"pseudo-moments"`` (:class:`PseudoMoments`), or a configured object.
    prior_variance : float, (n_weights,) array or None
        Variance of the Gaussian prior, one for all weights or one for each (infinity for no prior); None for no prior.
    l1 : float
        Coefficient of an L1 penalty; with ``prior_variance`` an elastic net.
    tolerance : float
        Largest change of a belief between relinearisations, largest moment gap per instance, and largest change of a
        marginal in message passing, at which learning stops.
    gap_tolerance : float, optional
        Largest ``moment_gap`` at which learning stops, in sums over instances; by default ``tolerance`` per instance,
        or less where a weak prior leaves weights free to move.
    gain_tolerance : float
        Exact likelihoods of known states under a prior also stop when ten iterations gain less than this share of the
        objective, which is about the share that is left to gain.
    max_iterations, max_relinearisations, max_seconds
        Limits; compiling, on first use, does not count as time. At a limit you get the best result so far, with its
        status and a :class:`ConvergenceWarning`.
    n_threads : int, optional
        Number of threads, which share instances and large graphs; one per core by default. It does not change the
        result.
    seed : int
        Seed of the weights at which learning starts where a variable was never seen.
    callback : callable, optional
        Called with a :class:`Progress` after every iteration; return True to stop.
    start : array or Solution, optional
        Weights to start from; a solution on the same data also passes on its messages and linearisation.
    communicator : Communicator, optional
        Connects processes that each call this function with their own part of the instances and otherwise the same
        arguments (:mod:`bactrian.parallel`). All get the weights for the whole data, and the beliefs of their own part.
    verbose : int
        1 prints lines about the progress, as :class:`bactrian.ProgressLines` does.

    Returns
    -------
    Solution

    Examples
    --------
    >>> import bactrian as bt
    >>> graph = bt.ClusterGraph([2, 2], [(0, 1)])
    >>> model = bt.LogLinearModel(graph, [[[1.0], [0.0], [0.0], [1.0]]])
    >>> bt.learn(bt.Samples(model, [[0, 0], [1, 1], [0, 1]]), prior_variance=None).weights.round(3)
    array([0.693])
    """
    options = {
        "prior_variance": prior_variance, "l1": l1, "tolerance": tolerance, "gap_tolerance": gap_tolerance,
        "gain_tolerance": gain_tolerance, "max_iterations": max_iterations,
        "max_relinearisations": max_relinearisations, "max_seconds": max_seconds,
        "n_threads": n_threads, "seed": seed, "callback": callback, "start": start, "communicator": communicator,
        "verbose": verbose,
    }  # fmt: skip
    packed, learner, settings, context = _prepared(data, method, **options)
    with single_threaded_blas(), context.deadline:
        solution = _with_attained(packed, learner, learner.learn(packed, settings, context), settings, context)
    warn_stopped(solution)
    warn_unattained(solution)
    return solution


def _prepared(data: Any, method: str | Learner, **given: Any) -> tuple[Any, Learner, Settings, Context]:
    """Packed data and a learner with its settings, from options of :func:`learn`; the clock starts here."""
    bound = signature(learn).bind(data, method, **given)
    bound.apply_defaults()
    options = bound.kwargs
    check_flag("verbose", options["verbose"])
    learner, prior = check_options(method, **options)
    check_callback(options["callback"])
    deadline = Deadline(options["max_seconds"])
    communicator = options["communicator"] or Alone()
    packed = _own_part(data, communicator)
    if not (packed.in_memory or isinstance(learner, Camel | Likelihood)):
        raise ValueError(
            f"{learner.name} does not learn from a folder of packed data; choose a learner of the CAMEL family, such "
            "as 'cccp', 'camel0' or 'piecewise', or 'convex' or 'trw', or 'exact' for chains and trees"
        )
    prior, start = prior.checked_for(packed.n_weights), options["start"]
    settings = Settings(
        prior=prior.with_noise(data.variances) if isinstance(data, Moments) else prior,
        tolerance=float(options["tolerance"]),
        gap_tolerance=options["gap_tolerance"],
        gain_tolerance=float(options["gain_tolerance"]),
        max_iterations=int(options["max_iterations"]),
        max_relinearisations=int(options["max_relinearisations"]),
        seed=options["seed"],
        start=starting_weights(start, packed.n_weights),
        state=start.state if isinstance(start, Solution) else None,
    )
    if isinstance(packed, PackedData) and packed.holes is not None:
        learner = Hidden(learner)
    _check_ranks(packed, learner.name, communicator)
    lines = with_lines(options["callback"], settings.tolerance, options["verbose"])
    return packed, learner, settings, Context(Workers(options["n_threads"]), deadline, communicator, callback=lines)


def _with_attained(data: Any, learner: Learner, solution: Solution, settings: Settings, context: Context) -> Solution:
    """``solution`` with what cold inference finds of it, for data in memory on one rank, and in time."""
    done = solution.status is not Status.STOPPED and not context.deadline.has_passed
    if not done or context.communicator.size > 1 or not isinstance(data, PackedData):
        return solution
    entropy = learner.folded if isinstance(learner, Hidden) else learner
    return replace(solution, attained=attained(data, entropy, solution, settings, context))


def warn_unattained(solution: Solution, advice: str = "predict with an estimator's inference='matched',") -> None:
    """Say where inference at the learned weights finds other beliefs; what stopped short has a warning already."""
    if solution.converged and solution.attained is not None and solution.attained < 1.0 - UNATTAINED:
        warn(
            f"{solution.method}: belief propagation at these weights does not find the learned beliefs "
            f"(attained {solution.attained:.2f} of 1): {advice} learn with method='convex', or use a stronger prior",
            AttainmentWarning,
        )


def followed(
    data: Samples | Sequence[Instance] | GraphData,
    solution: Solution | None,
    method: str | Learner = "cccp",
    *,
    max_seconds: float | None = None,
    **options: Any,
) -> Solution:
    """A solution that inference can follow, from one that :func:`learn` found with the same options, or from none yet.

    Where belief propagation at the learned weights finds the learned beliefs from every start, for learners other than
    CAMEL with Bethe's entropy, and for data with unknown states, that is what :func:`learn` finds. Elsewhere it is the
    path of ``"cccp"`` up to its second relinearisation at most: its status is ``FOLLOWED``, ``path`` holds the weights
    of each step, and ``infer(models, solution.path, "replay")`` gives the beliefs that belong to it on any data.
    Pseudo-likelihoods, which have no beliefs of their own, are given ``attained``: how near moments of belief
    propagation come to the data.

    Examples
    --------
    >>> import bactrian as bt
    >>> from bactrian.learners.learn import followed
    >>> graph = bt.ClusterGraph([2, 2], [(0, 1)])
    >>> model = bt.LogLinearModel(graph, [[[1.0], [0.0], [0.0], [1.0]]])
    >>> samples = bt.Samples(model, [[0, 0], [1, 1], [0, 1]])
    >>> solution = bt.learn(samples, "cccp")
    >>> followed(samples, solution, "cccp").path is None  # a tree: there is nothing to follow
    True
    """
    packed, learner, settings, context = _prepared(data, method, max_seconds=max_seconds, **options)
    is_new = solution is None
    if solution is not None:
        context = replace(context, begun=context.begun - solution.seconds)
    with single_threaded_blas(), context.deadline:
        if solution is None:
            share = Deadline(None if max_seconds is None else _SHARE * max_seconds)
            with share if can_follow(learner) else nullcontext(context.deadline) as deadline:
                solution = learner.learn(packed, settings, replace(context, deadline=deadline))
        if isinstance(learner, PseudoLikelihood):
            found = replace(solution, attained=moments_attained(packed, solution.weights, context))
        elif can_follow(learner):
            found = follow(packed, learner, solution, settings, context)
        else:
            found = _with_attained(packed, learner, solution, settings, context)
    if isinstance(learner, Hidden):
        warn_unattained(found, "no path is replayed where labels are unknown:")
    if is_new or found.path is not None:
        warn_stopped(found)
    return found


def with_lines(callback: Callback | None, tolerance: float, verbose: int) -> Callback | None:
    """A callback that prints lines now and then where that is wanted, and calls the one that was given."""
    if not verbose:
        return callback
    lines = ProgressLines(tolerance)

    def call(at: Progress) -> Any:
        lines(at)
        return None if callback is None else callback(at)

    return call


def packed_once(data: Any) -> PackedData | PackedFolder:
    """Data as learners take them: packed, unless they are already, in memory or in a folder."""
    return data if hasattr(data, "in_memory") else pack(data)


def _own_part(data: Any, communicator: Communicator) -> PackedData | PackedFolder:
    """The data of this rank, packed; if one rank refuses its data all do, since they would wait for it."""
    refusal = None
    try:
        packed = packed_once(data).share(communicator.rank, communicator.size)
    except Exception as problem:
        if communicator.size == 1:
            raise
        refusal = problem
    (refusing,) = largest_anywhere(communicator, 0.0 if refusal is None else communicator.rank + 1.0)
    if refusal is not None:
        raise refusal
    if refusing:
        raise ValueError(f"rank {refusing - 1:.0f} cannot learn from its data; every rank needs at least one instance")
    return packed


def _check_ranks(data: PackedData | PackedFolder, method: str, communicator: Communicator) -> None:
    """Refuse learners and parts of data that ranks cannot share."""
    if communicator.size == 1:
        return
    if method in _UNDIVIDED:
        raise ValueError(f"{method} runs on one rank; choose a CAMEL, likelihood or pseudo-likelihood learner")
    most, least = largest_anywhere(communicator, float(data.n_weights), -float(data.n_weights))
    if most != -least:
        raise ValueError(f"all ranks must have data of one model; found {-least:.0f} to {most:.0f} weights")


#: Options that are numbers.
_NUMBERS = {
    "tolerance": Number(least=0),
    "gap_tolerance": Number(least=0, optional=True),
    "gain_tolerance": Number(least=0),
    "max_iterations": Number(least=0, whole=True),
    "max_relinearisations": Number(least=0, whole=True),
    "max_seconds": Number(least=0, optional=True),
    "n_threads": Number(least=1, whole=True, optional=True),
    "seed": Number(least=0, whole=True),
}


def check_options(method: Any, *, prior_variance: Any, l1: Any, **options: Any) -> tuple[Learner, Prior]:
    """The learner and the prior; a method or an option that :func:`learn` does not take is refused before any work.

    Raises
    ------
    ArgumentError
        A ValueError (or TypeError) with the name of the option.
    """
    learner = _checked_method(method)
    check_numbers(_NUMBERS, options)
    return learner, Prior.of(prior_variance, l1)


def _checked_method(method: Any) -> Learner:
    if isinstance(method, str):
        check_choice("method", method, METHODS)
        return METHODS[method]
    if isinstance(method, type) or not hasattr(method, "learn"):
        found = type(method).__name__
        raise ArgumentTypeError("method", f"must be a name or a learner such as Camel(...), found {found}")
    return method


def starting_weights(start: ArrayLike | Solution | None, n_weights: int) -> Floats | None:
    """Weights to start from, where there are any."""
    if start is None:
        return None
    weights = real_numbers(start.weights if isinstance(start, Solution) else start, "start", n_weights)
    if not np.isfinite(weights).all():
        raise ValueError("start holds NaN or infinite weights")
    return weights


def matched_inference(method: str | Learner) -> tuple[str, dict[str, Any]]:
    """Method of :func:`bactrian.infer`, and its options, with the entropy of a learner.

    Weights learned under an approximate entropy compensate its errors, and mean little under another. CAMEL(0) counts
    the entropy of every cluster in full, so its weights are too strong for belief propagation by about the number of
    clusters around a node. (Theory: Wainwright, JMLR 7, 2006; with the same approximation on both sides errors cancel.)

    Piecewise training and CAMEL(0) have the clusters-only entropy, tree-reweighted and convex learners their own;
    exact likelihood is matched by exact inference, learners that declare some by that, and all others (Bethe's entropy,
    pseudo-likelihoods, scaling and pseudo-moments) by residual belief propagation.

    >>> matched_inference("camel0")
    ('convex', {'counting_numbers': 'clusters'})
    >>> matched_inference("cccp")
    ('rbp', {})
    """
    learner = METHODS[method] if isinstance(method, str) else method
    declared = getattr(learner, "matched_inference", None)
    if declared is not None:
        name, options = declared
        return name, dict(options)
    if isinstance(learner, Camel):
        if isinstance(learner.entropy, str) and learner.entropy in ("clusters", *REGISTERED):
            return "convex", {"counting_numbers": learner.entropy}
        if isinstance(learner.entropy, str):
            return {"bethe": "rbp"}.get(learner.entropy, learner.entropy), {}
        return "convex", {"counting_numbers": learner.entropy}
    if isinstance(learner, Likelihood):
        return {"lbp": "rbp"}.get(learner.inference, learner.inference), {}
    return "rbp", {}
