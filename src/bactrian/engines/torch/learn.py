"""Learning on the device: the signature and the result of :func:`bactrian.learn`.

The schedule and the stopping rules are the CPU's, with vectors that stay where they are.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from bactrian.arrays import Floats
from bactrian.camel.camel import SHORTHAND, Camel
from bactrian.camel.dual import Dual
from bactrian.camel.prior import Prior
from bactrian.camel.profiled import Profiled, ProfiledObjective
from bactrian.camel.run import InnerResult, Run, Settings
from bactrian.camel.schedule import SCHEDULE
from bactrian.engines.numba.threads import Deadline, Workers
from bactrian.engines.torch.beliefs import (
    GraphBeliefs,
    multipliers_by_node,
    node_values,
    take_multipliers,
    take_node_values,
)
from bactrian.engines.torch.device import checked_chunk, checked_data, checked_device, checked_dtype, explain_memory
from bactrian.engines.torch.dual import (
    DeviceDual,
    DeviceEvaluation,
    DeviceLinearisation,
    Part,
    empirical_log_beliefs,
    make_parts,
    needed,
)
from bactrian.engines.torch.stars import FINEST
from bactrian.errors import check_number
from bactrian.graphs.graph_data import GraphData
from bactrian.graphs.packed import PackedData
from bactrian.graphs.packing import pack
from bactrian.learners.learn import _checked_start
from bactrian.solvers.anderson import Anderson
from bactrian.solvers.lbfgs import Memory, Minimum, largest
from bactrian.solvers.solution import Callback, Solution, Status, WarmState, warn_stopped

METHODS: dict[str, Camel] = {name: camel for name, camel in SHORTHAND.items() if camel.entropy != "trw"}
#: The sharpest tolerance that messages in float32 allow.
SINGLE_TOLERANCE = 1e-4


def learn(
    data: GraphData,
    method: str | Camel = "cccp",
    *,
    device: str | torch.device = "cuda",
    dtype: str | torch.dtype = "float64",
    chunk: int | None = None,
    prior_variance: float | ArrayLike | None = 10.0,
    tolerance: float = 1e-6,
    max_iterations: int = 10_000,
    max_relinearisations: int = 1_000,
    max_seconds: float | None = None,
    callback: Callback | None = None,
    start: ArrayLike | Solution | None = None,
) -> Solution:
    """Learn the weights of pairwise conditional random fields on a GPU, or with PyTorch on the CPU.

    The objective, the stopping rules and the result are those of :func:`bactrian.learn`. Star updates are made in
    parallel over nodes of one colour, which is a sequential sweep in another order: the optimum is the same.

    Parameters
    ----------
    data : GraphData
        Labelled pairwise graphs. Models made by hand, with larger clusters, are for :func:`bactrian.learn`.
    method : str or Camel
        ``"piecewise"``, ``"camel0"``, ``"cccp"``, ``"cccp-empirical"``, ``"convex"``, or a :class:`bactrian.Camel` with
        entropy "clusters", "bethe" (also folded) or "convex" and the profiled solver.
    device : str or torch.device
        ``"cuda"``, ``"cuda:1"``, ... or ``"cpu"``.
    dtype : {"float64", "float32"}
        Precision of the messages. Scores, sums, gradient and weights are float64 in either case; with float32
        messages are only iterated to 1e-5, and a tolerance below 1e-4 counts as 1e-4.
    chunk : int, optional
        Graphs per pass, for data that exceeds the device's memory: chunks are moved to the device in turn.
    prior_variance, tolerance, max_iterations, max_relinearisations, max_seconds, callback, start
        As in :func:`bactrian.learn`. A solution given as ``start`` may come from either engine.

    Returns
    -------
    Solution

    Raises
    ------
    DeviceMemoryError
        Where the device has too little memory; says how much is needed and suggests a ``chunk``.

    Examples
    --------
    >>> import bactrian as bt
    >>> import bactrian.torch
    >>> data = bt.GraphData([[1.0], [1.0]], [(0, 1)], n_labels=2, labels=[0, 1], tables="potts")
    >>> bactrian.torch.learn(data, device="cpu").converged
    True
    """
    camel, name = _checked_method(method)
    checked_data(data, need_labels=True)
    place, precision, chunk = checked_device(device), checked_dtype(dtype), checked_chunk(chunk)
    if precision is torch.float32:
        tolerance = max(tolerance, SINGLE_TOLERANCE)
    settings = _settings(
        data.n_weights, prior_variance, tolerance, max_iterations, max_relinearisations, max_seconds, callback, start
    )
    parts = make_parts(data, chunk)
    with torch.no_grad(), explain_memory(place, lambda: needed(parts, precision, n_vectors=2 * SCHEDULE.memory + 8)):
        solution = _learn(data, camel, name, settings, place, precision, parts)
    warn_stopped(solution)
    return solution


def _learn(
    data: GraphData,
    camel: Camel,
    name: str,
    settings: Settings,
    device: torch.device,
    dtype: torch.dtype,
    parts: list[Part],
) -> Solution:
    def dual_of(entropy: str, consistency: bool) -> DeviceDual:
        return DeviceDual(data, entropy, settings.prior, parts, device=device, dtype=dtype, consistency=consistency)

    weights = torch.zeros(data.n_weights, dtype=torch.float64, device=device)
    if settings.start is not None:
        weights += torch.from_numpy(settings.start).to(device)
    piecewise_first = camel.start == "piecewise" and camel.consistency and settings.start is None
    dual = dual_of("clusters", False) if piecewise_first else dual_of(_entropy(camel), camel.consistency)
    run = DeviceRun(settings, dual, name)
    if piecewise_first:
        weights = cast(Any, camel.start_from(run, DeviceProfiled(dual, run), cast(Any, weights)))
        dual = dual_of(_entropy(camel), camel.consistency)
    linearisation = DeviceLinearisation(dual, None if camel.tight else cast(Any, Anderson().next))
    if not _resume(dual, settings) and camel.start == "empirical" and dual.carving.relinearises:
        linearisation.update(empirical_log_beliefs(data))
    inner = DeviceProfiled(dual, run)
    weights, status = cast(Any, camel.relinearise(run, inner, cast(Any, linearisation), cast(Any, weights)))
    return run.finish_on_device(inner, weights, status, camel)


def _entropy(camel: Camel) -> str:
    return "folded" if camel.fold else str(camel.entropy)


def _resume(dual: DeviceDual, settings: Settings) -> bool:
    """Take up the multipliers and linearisation of an earlier solution on the same data."""
    state = settings.state
    size = dual.graph_data.edges.size * dual.graph_data.n_labels
    if state is None or not dual.consistency or state.multipliers.size != size:
        return False
    take_multipliers(dual, state.multipliers)
    if dual.carving.relinearises:
        take_node_values(dual, "bias", -state.linearisation)
    return True


def _checked_method(method: Any) -> tuple[Camel, str]:
    if isinstance(method, str):
        if method not in METHODS:
            raise ValueError(f"method must be one of {', '.join(map(repr, METHODS))} on this engine, found {method!r}")
        return METHODS[method], method
    if not isinstance(method, Camel):
        raise TypeError(f"method must be a name or a Camel on this engine, found {type(method).__name__}")
    if method.entropy not in ("clusters", "bethe", "convex"):
        raise ValueError(
            f"entropy must be 'clusters', 'bethe' or 'convex' on this engine, found {method.entropy!r}; "
            "bactrian.learn takes all"
        )
    for option in ("solver", "share", "tighten"):
        if getattr(method, option) != getattr(Camel(), option):
            raise ValueError(f"this engine has no Camel({option}={getattr(method, option)!r}); bactrian.learn has")
    return method, method.name


def _settings(
    n_weights: int,
    prior_variance: Any,
    tolerance: Any,
    max_iterations: Any,
    max_relinearisations: Any,
    max_seconds: Any,
    callback: Any,
    start: Any,
) -> Settings:
    check_number("tolerance", tolerance, least=0)
    check_number("max_iterations", max_iterations, least=0, whole=True)
    check_number("max_relinearisations", max_relinearisations, least=0, whole=True)
    if max_seconds is not None:
        check_number("max_seconds", max_seconds, least=0)
    if callback is not None and not callable(callback):
        raise TypeError(f"callback must be callable, found {type(callback).__name__}")
    return Settings(
        prior=Prior.of(prior_variance, 0.0).checked_for(n_weights),
        tolerance=float(tolerance),
        max_iterations=int(max_iterations),
        max_relinearisations=int(max_relinearisations),
        seed=0,
        callback=callback,
        start=_checked_start(start, n_weights),
        state=start.state if isinstance(start, Solution) else None,
        deadline=Deadline(max_seconds),
    )


def inner_products(left: Tensor, right: Tensor) -> Floats:
    """Inner products of the rows of two matrices on the device, brought to the host together."""
    products: Floats = torch.stack([left @ row for row in right], 1).cpu().numpy()
    return products


class DeviceMemory(Memory):
    """Pairs of steps and gradient changes on the device; the small matrix of their inner products on the host."""

    def __init__(self, size: int, dimension: int, device: torch.device) -> None:
        super().__init__(size, 0, cast(Any, inner_products))
        self._vectors: Any = torch.zeros(2 * self._slots, dimension, dtype=torch.float64, device=device)

    def direction(self, gradient: Any) -> Any:
        """See :class:`Memory`."""
        if not self._order:
            return -gradient / max(1.0, float(gradient.norm()))
        projections = self.inner(self._vectors, gradient[None])[:, 0]
        coefficients, scale = self._two_loops(projections)
        combined = torch.from_numpy(coefficients).to(gradient.device) @ self._vectors
        return combined.sub_(gradient, alpha=float(scale))


class DeviceObjective(ProfiledObjective):
    """D minimised over the multipliers, as a function of the weights alone; see :class:`ProfiledObjective`."""

    dual: Any
    last: Any

    def __init__(self, dual: DeviceDual, *, accuracy: float, max_sweeps: int = 1000) -> None:
        self._accuracy = accuracy
        super().__init__(cast(Any, dual), accuracy=accuracy, max_sweeps=max_sweeps)

    @property
    def accuracy(self) -> float:
        """Largest change of a belief that a sweep may still make."""
        return self._accuracy

    @accuracy.setter
    def accuracy(self, wanted: float) -> None:
        # What lies below the messages' precision is as good as nothing: a solver that asks for it has had all.
        self._accuracy = wanted if wanted >= FINEST[self.dual.dtype] else 0.0

    def _evaluate(self, weights: Any) -> Any:
        self.evaluations += 1
        evaluation: DeviceEvaluation = self.dual.evaluate(
            weights, tolerance=self.accuracy, max_sweeps=self.max_sweeps, damping=self.damping
        )
        self.converged = evaluation.residual <= max(self.accuracy, FINEST[self.dual.dtype])
        return evaluation


class DeviceProfiled(Profiled):
    """L-BFGS over weights on the device; see :class:`Profiled`."""

    dual: Any
    objective: Any

    def __init__(self, dual: DeviceDual, run: DeviceRun) -> None:
        # Not the base class's, whose memory is on the host.
        loosest = run.gradient_accuracy if dual.has_saddle else SCHEDULE.loosest
        self.dual, self.run = dual, run
        dual.deadline = run.signals.deadline
        self.objective = DeviceObjective(dual, accuracy=loosest)
        self.memory = DeviceMemory(SCHEDULE.memory, dual.data.n_weights, dual.device)
        self.sweeps = 0
        self._evaluations_before = 0
        self._value_before = np.inf
        self._evaluated = None

    def _result(self, minimum: Minimum, iterations: int) -> InnerResult:
        gap = largest(minimum.gradient)
        violation = self.objective.last.violation
        return InnerResult(minimum.x, minimum.value, gap, violation, iterations, self._status(minimum))


class DeviceRun(Run):
    """A run whose weights are on the device; see :class:`Run`."""

    def __init__(self, settings: Settings, dual: DeviceDual, name: str) -> None:
        super().__init__(settings, cast(PackedData, dual.data), name)
        self._nothing = np.zeros(0)

    def after_step(self, weights: Any, objective: float, gap: float, violation: float) -> bool:
        """See :class:`Run`; weights come to the host only where somebody looks at them."""
        following = self._iterations + 1
        looked_at = self.settings.callback is not None or following & (following - 1) == 0
        return super().after_step(weights.cpu().numpy() if looked_at else self._nothing, objective, gap, violation)

    def finish_on_device(self, inner: DeviceProfiled, weights: Tensor, status: Status, camel: Camel) -> Solution:
        """The solution at ``weights``."""
        dual = inner.dual
        evaluation = inner.evaluate(cast(Any, weights))
        on_host = weights.cpu().numpy()
        solution = Solution(
            weights=on_host,
            status=status,
            history=tuple(self.records),
            objective=evaluation.value,
            moment_gap=largest(evaluation.gradient),
            violation=evaluation.violation,
            beliefs=GraphBeliefs(dual),
            method=self.name,
            evaluations=sum(record.evaluations for record in self.records),
            state=WarmState(multipliers_by_node(dual), -node_values(dual, "bias").ravel()),
        )
        self._inner = None  # a cycle that would hold the device's memory until the next collection
        ended = status in (Status.CONVERGED, Status.STALLED, Status.UNRELIABLE)
        if ended and self.settings.prior.leaves_free and self._is_unbounded_on_host(dual, camel, solution):
            status = Status.UNBOUNDED
        dual.forget_recordings()
        return replace(solution, status=status, seconds=self.seconds)

    def _is_unbounded_on_host(self, dual: DeviceDual, camel: Camel, solution: Solution) -> bool:
        """Whether no finite weights are optimal: the host decides, from the same weights and multipliers."""
        data = pack(dual.graph_data)
        host = Dual(
            data, camel.carving(data, self.settings), self.settings.prior, Workers(), consistency=dual.consistency
        )
        if host.consistency:
            host.part.multipliers[:] = solution.state.multipliers
            host.part.linearisation[:] = solution.state.linearisation
        host.evaluate(solution.weights)
        return self._is_unbounded(host, solution.weights)


__all__ = ["METHODS", "learn"]
