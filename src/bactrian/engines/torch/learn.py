"""Learning on the device: one entry point with the signature and the result of :func:`bactrian.learn`."""

from __future__ import annotations

import warnings
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import ArrayLike

from bactrian.camel.camel import SHORTHAND, Camel
from bactrian.camel.prior import Prior
from bactrian.camel.run import Settings
from bactrian.engines.torch.arguments import checked_chunk, checked_data, checked_device, checked_dtype
from bactrian.engines.torch.beliefs import take_multipliers, take_node_values
from bactrian.engines.torch.dual import (
    DeviceDual,
    DeviceLinearisation,
    Part,
    empirical_log_beliefs,
    make_parts,
    needed,
)
from bactrian.engines.torch.memory import explain_memory
from bactrian.engines.torch.solve import _MEMORY, DeviceProfiled, DeviceRun
from bactrian.errors import check_number
from bactrian.graphs.graph_data import GraphData
from bactrian.learners.learn import _checked_start
from bactrian.solvers.anderson import Anderson
from bactrian.solvers.solution import Callback, ConvergenceWarning, Solution

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
    with torch.no_grad(), explain_memory(place, lambda: needed(parts, precision, n_vectors=2 * _MEMORY + 8)):
        solution = _learn(data, camel, name, settings, place, precision, parts)
    if not solution.converged:
        warnings.warn(f"{solution.method}: {solution.status}", ConvergenceWarning, stacklevel=2)
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
        take_node_values(dual, "bias", state.linearisation)
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
        max_seconds=np.inf if max_seconds is None else float(max_seconds),
        seed=0,
        callback=callback,
        start=_checked_start(start, n_weights),
        state=start.state if isinstance(start, Solution) else None,
    )


__all__ = ["METHODS", "learn"]
