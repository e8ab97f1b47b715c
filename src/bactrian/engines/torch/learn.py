"""Learning on the device: the signature and the result of :func:`bactrian.learn`.

Everything but the parts of the dual (:mod:`.parts`) is what learns on the CPU: :class:`bactrian.Camel` with its outer
loop, limits, statuses and certificates, and vectors that stay where they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import ArrayLike

from bactrian.arrays import Floats, Ints
from bactrian.camel.camel import SHORTHAND, Camel
from bactrian.engines.torch.device import checked_data, checked_device, checked_dtype, explain_memory
from bactrian.engines.torch.parts import DeviceGraphs
from bactrian.errors import check_number
from bactrian.graphs.graph_data import GraphData
from bactrian.learners.learn import learn as learn_packed
from bactrian.solvers.lbfgs import PAIRS
from bactrian.solvers.solution import Callback, Solution

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
    gap_tolerance: float | None = None,
    callback: Callback | None = None,
    start: ArrayLike | Solution | None = None,
    verbose: int = 0,
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
    prior_variance, tolerance, max_iterations, max_relinearisations, max_seconds, gap_tolerance, callback, start
        As in :func:`bactrian.learn`. A solution given as ``start`` may come from either engine.
    verbose : int
        1 prints lines about the progress of learning.

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
    camel = checked_method(method)
    checked_data(data, need_labels=True)
    place, precision = checked_device(device), checked_dtype(dtype)
    check_number("chunk", chunk, least=1, whole=True, optional=True)
    tolerance = max(tolerance, SINGLE_TOLERANCE) if precision is torch.float32 else tolerance
    options = {
        "prior_variance": prior_variance, "tolerance": tolerance, "gap_tolerance": gap_tolerance,
        "max_iterations": max_iterations, "max_relinearisations": max_relinearisations, "max_seconds": max_seconds,
        "callback": callback, "start": start, "verbose": verbose,
    }  # fmt: skip
    return _learned(lambda: DeviceGraphs(data, place, precision, chunk), camel, place, options)


class _Later:
    """Data that goes to a device once the options of learning are checked."""

    in_memory = False

    def __init__(self, make: Callable[[], DeviceGraphs]) -> None:
        self._make = make

    def share(self, _rank: int, _size: int) -> DeviceGraphs:
        """All of it: ranks share no device."""
        self.graphs = self._make()
        return self.graphs


def _learned(make: Callable[[], DeviceGraphs], camel: Camel, place: torch.device, options: dict[str, Any]) -> Solution:
    """What :func:`bactrian.learn` finds on the data that ``make`` makes."""
    later: Any = _Later(make)
    with torch.no_grad(), explain_memory(place, lambda: later.graphs.needed(n_vectors=2 * PAIRS + 8)):
        return learn_packed(later, camel, **options)


def conditionals_on(of: Any, device: str | torch.device) -> Callable[[Floats, Floats], tuple[float, Floats, Floats]]:
    """``value_and_gradient`` of :class:`bactrian.learners.structure.Conditionals` of complete rows, on a device."""
    from bactrian.learners.structure import basis  # brings scipy.stats

    place = checked_device(device)
    features, observed, weights, scale = (
        torch.as_tensor(part, device=place) for part in (of.features, of.observed, of.weights, of.scale)
    )
    owner = torch.as_tensor(of.owner, device=place)
    kinds = [
        (torch.as_tensor(columns, device=place), torch.as_tensor(basis(k), device=place)) for k, columns in of.kinds
    ]

    def value_and_gradient(bias: Floats, tables: Floats) -> tuple[float, Floats, Floats]:
        own, joint = (torch.as_tensor(part, device=place) / scale for part in (bias, tables))
        natural, residual = torch.addmm(own, features, joint), observed.clone()
        losses = -(residual * natural).sum(1)
        for columns, base in kinds:
            scores = natural[:, columns].unflatten(1, (-1, base.shape[1])) @ base.T
            losses += torch.logsumexp(scores, 2).sum(1)
            residual[:, columns] -= (torch.softmax(scores, 2) @ base).flatten(1)
        residual *= -weights[:, None] / scale
        slope = features.T @ residual
        slope = (slope + slope.T).masked_fill_(owner[:, None] == owner, 0.0)
        return float(weights @ losses), residual.sum(0).cpu().numpy(), slope.cpu().numpy()

    return value_and_gradient


def learn_field(
    rows: Ints,
    row_weights: Floats,
    sizes: Ints,
    edges: Ints,
    tables: str,
    method: str | Camel,
    *,
    node_factors: str,
    device: str | torch.device,
    **options: Any,
) -> Solution:
    """Learn the tables of a field of variables with ``sizes`` states from rows (n, V) that are complete.

    Weights are those of :func:`bactrian.estimators.pairwise.pairwise_model`. The field is a graph whose nodes all have
    as many labels as the largest variable; those that a variable does not have are forbidden, and their weights are 0.
    """
    camel, place = checked_method(method), checked_device(device)
    if method == "cccp-empirical":
        raise ValueError("method 'cccp-empirical' does not support fields on a device; use bactrian.learn")
    n, k, ends = sizes.size, int(sizes.max(initial=1)), edges.reshape(-1, 2)
    shared, has_tables = tables == "shared", tables == "full"
    if tables not in ("full", "shared", "potts") or (not has_tables and (sizes != k).any()):
        raise ValueError(
            f"tables must be 'full', or 'shared' or 'potts' with equally many states, on a device, found {tables!r}"
        )
    data = GraphData(
        np.ones((n, 1)) if shared else sp.eye_array(n, format="csr"), ends, n_labels=k, labels=rows[0],
        tables="potts" if tables == "potts" else "full",
        edge_inputs=sp.eye_array(len(ends), format="csr") if has_tables and len(ends) else None,
        weights=[float(row_weights.sum())], node_factors=node_factors,
    )  # fmt: skip
    there = np.arange(k) < sizes[:, None]
    pairs = there[ends[:, 0], :, None] & there[ends[:, 1], None, :]
    place_of = (
        np.flatnonzero(np.concatenate([there.ravel(), pairs.ravel()])) if has_tables else np.arange(data.n_weights)
    )
    nodes, joint = np.zeros((n, k)), np.zeros((len(ends), k, k))
    np.add.at(nodes, (np.arange(n), rows), row_weights[:, None])
    np.add.at(joint, (np.arange(len(ends)), rows[:, ends[:, 0]], rows[:, ends[:, 1]]), row_weights[:, None])
    if shared:
        nodes, joint = nodes.sum(0), joint.sum(0)
    elif tables == "potts":
        joint = joint.diagonal(axis1=1, axis2=2).sum()[None]
    options["prior_variance"], options["start"] = (
        _spread(options.get(name), place_of, data.n_weights, fill)
        for name, fill in (("prior_variance", 1.0), ("start", 0.0))
    )

    def make() -> DeviceGraphs:
        graphs = DeviceGraphs(data, place, torch.float64)
        graphs.packed = replace(
            graphs.packed, empirical=np.concatenate([nodes.ravel(), joint.ravel()])[: data.n_weights]
        )
        if not there.all():
            graphs.forbid(~there, ~pairs)
        return graphs

    solution = _learned(make, camel, place, options)
    return replace(solution, weights=solution.weights[place_of], beliefs=(), state=None)


def _spread(values: Any, place_of: Ints, size: int, fill: float) -> Any:
    """Values of some of the weights among those of all; one for all, or none, stays what it is."""
    if values is None or np.ndim(values) == 0:
        return values
    found = np.full(size, fill)
    found[place_of] = values
    return found


def checked_method(method: Any) -> Camel:
    """The learner, or an error where it has none of the entropies of this engine."""
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
