"""Learning on the device: the signature and the result of :func:`bactrian.learn`.

Everything but the parts of the dual (:mod:`.parts`) is what learns on the CPU: :class:`bactrian.Camel` with its outer
loop, limits, statuses and certificates, and vectors that stay where they are.
"""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import ArrayLike

from bactrian.camel.camel import SHORTHAND, Camel
from bactrian.camel.run import Settings
from bactrian.engines.torch.device import checked_chunk, checked_data, checked_device, checked_dtype, explain_memory
from bactrian.engines.torch.parts import DeviceGraphs
from bactrian.errors import check_callback
from bactrian.graphs.graph_data import GraphData
from bactrian.learners.learn import check_options, starting_weights
from bactrian.parallel.threads import Context, Deadline
from bactrian.solvers.lbfgs import PAIRS
from bactrian.solvers.solution import Callback, Solution, warn_stopped

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
    camel = _checked_method(method)
    checked_data(data, need_labels=True)
    place, precision, chunk = checked_device(device), checked_dtype(dtype), checked_chunk(chunk)
    _, prior = check_options(
        camel,
        prior_variance=prior_variance,
        l1=0.0,
        tolerance=tolerance,
        max_iterations=max_iterations,
        max_relinearisations=max_relinearisations,
        max_seconds=max_seconds,
    )
    check_callback(callback)
    settings = Settings(
        prior=prior.checked_for(data.n_weights),
        tolerance=float(max(tolerance, SINGLE_TOLERANCE) if precision is torch.float32 else tolerance),
        max_iterations=int(max_iterations),
        max_relinearisations=int(max_relinearisations),
        seed=0,
        start=starting_weights(start, data.n_weights),
        state=start.state if isinstance(start, Solution) else None,
    )
    graphs = DeviceGraphs(data, place, precision, chunk)
    with torch.no_grad(), explain_memory(place, lambda: graphs.needed(n_vectors=2 * PAIRS + 8)):
        solution = camel.learn(graphs, settings, Context(deadline=Deadline(max_seconds), callback=callback))
    warn_stopped(solution)
    return solution


def _checked_method(method: Any) -> Camel:
    if isinstance(method, str):
        if method not in METHODS:
            raise ValueError(f"method must be one of {', '.join(map(repr, METHODS))} on this engine, found {method!r}")
        return METHODS[method]
    if not isinstance(method, Camel):
        raise TypeError(f"method must be a name or a Camel on this engine, found {type(method).__name__}")
    if method.entropy not in ("clusters", "bethe", "convex"):
        raise ValueError(
            f"entropy must be 'clusters', 'bethe' or 'convex' on this engine, found {method.entropy!r}; "
            "bactrian.learn supports all"
        )
    for option in ("solver", "share", "tighten"):
        if getattr(method, option) != getattr(Camel(), option):
            raise ValueError(
                f"this engine does not support Camel({option}={getattr(method, option)!r}); bactrian.learn does"
            )
    return method
