"""Learning on the device: the CPU's schedule and stopping rules with vectors that stay where they are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bactrian.camel.camel import Camel
from bactrian.camel.dual import Dual, ProfiledObjective
from bactrian.camel.inner import InnerResult, Profiled
from bactrian.camel.run import Run, Settings
from bactrian.engines.numba.threads import Workers
from bactrian.engines.torch.beliefs import GraphBeliefs, multipliers_by_node, node_values
from bactrian.engines.torch.dual import DeviceDual, DeviceEvaluation
from bactrian.engines.torch.stars import FINEST
from bactrian.graphs.packed import PackedData
from bactrian.graphs.packing import pack
from bactrian.solvers.lbfgs import Memory, Minimum, largest
from bactrian.solvers.solution import Solution, Status, WarmState

Floats = NDArray[np.float64]

#: As in :mod:`bactrian.camel.inner`.
_MEMORY, _LOOSEST = 10, 1e-2


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
        loosest = run.gradient_accuracy if dual.has_saddle else _LOOSEST
        self.dual, self.run = dual, run
        self.objective = DeviceObjective(dual, accuracy=loosest)
        self.memory = DeviceMemory(_MEMORY, dual.data.n_weights, dual.device)
        self.sweeps = 0
        self._evaluations_before = 0
        self._value_before = np.inf

    def _result(self, minimum: Minimum, iterations: int) -> InnerResult:
        gap = largest(minimum.gradient)
        status = self.run.status_of(minimum.outcome) if self.reliable else Status.UNRELIABLE
        return InnerResult(minimum.x, minimum.value, gap, self.objective.last.violation, iterations, status)


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
            state=WarmState(multipliers_by_node(dual), node_values(dual, "bias").ravel()),
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
        host = Dual(data, camel.carving(data, 0), self.settings.prior, Workers(), consistency=dual.consistency)
        if host.consistency:
            host.multipliers[:] = solution.state.multipliers
            host.hub_bias[:] = solution.state.linearisation
        host.evaluate(solution.weights)
        return self._is_unbounded(host, solution.weights)
