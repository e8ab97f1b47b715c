"""What inference returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bactrian.arrays import Floats
from bactrian.camel.entropy import CountingNumbers
from bactrian.graphs.packed import InstanceBeliefs, PackedData, TableReader


@dataclass(frozen=True)
class InferenceResult:
    """Marginals and partition function of one model.

    Attributes
    ----------
    variables : sequence
        ``variables[v]``: marginal of variable v, shape (cardinality,). Observed variables are one-hot.
    clusters : sequence
        ``clusters[i]``: belief of cluster i, appended hubs included, shaped by its scope.
    log_partition : float or None
        Log of the sum over the states that agree with the evidence, or the method's approximation or bound; None if the
        method has none.
    converged : bool
        Whether the method's stopping rule was met.
    iterations : int
        Sweeps over the model (for residual belief propagation as many as its message updates amount to;
        for the double loop relinearisations).
    updates : int
        Messages computed.
    method, status : str
        What was done, and how it ended.
    residual : float
        The last change of a marginal or message, in the method's own norm.
    violation : float
        Largest disagreement left between a cluster's belief and the hub or sepset it shares.
    free_energy : float or None
        The method's variational free energy at the beliefs, in nats: that of Bethe for bp, rbp and the double loop.
    counting_numbers : CountingNumbers or None
        Entropy numbers used, of clusters (appended hubs last) and of edges, where the method has them.
    history : tuple of floats
        Free energies after each outer iteration of the double loop.
    seconds : float
        Time of the call, for all of its models together.
    triplets : tuple of tuples of int
        Triplets of variables that ``tighten`` added.
    interval : tuple of two floats or None
        Low and high end of a 95 % interval of log Z, where it is estimated by sampling.
    bound : {"exact", "upper", "lower", None}
        What ``log_partition`` is known to be; None for an approximation.
    route : str
        What ``"auto"`` tried, what it took, and how far to trust the result.
    """

    variables: Sequence[Floats] = field(repr=False)
    clusters: Sequence[Floats] = field(repr=False)
    log_partition: float | None
    converged: bool
    iterations: int
    updates: int
    method: str
    status: str
    residual: float = 0.0
    violation: float = 0.0
    free_energy: float | None = None
    counting_numbers: CountingNumbers | None = field(default=None, repr=False)
    history: tuple[float, ...] = field(default=(), repr=False)
    seconds: float = 0.0
    messages: WarmStart | None = field(default=None, repr=False)
    triplets: tuple[tuple[int, int, int], ...] = field(default=(), repr=False)
    interval: tuple[float, float] | None = None
    bound: str | None = None
    route: str = ""


@dataclass(frozen=True)
class WarmStart:
    """Multipliers and hub beliefs of one model, for a later call to start from."""

    multipliers: Floats
    hub_log: Floats


@dataclass(frozen=True)
class InferenceProgress:
    """What a callback sees between rounds of message passing; returning True stops inference.

    With ``"auto"``, ``best`` has the best result of each model so far, or None.
    """

    method: str
    iteration: int
    residual: float
    n_converged: int
    n_models: int
    seconds: float
    score: float | None = None  #: of the assignments found so far, together, for decoding
    best: Sequence[InferenceResult | None] = field(default=(), repr=False)


InferenceCallback = Callable[[InferenceProgress], Any]


class VariableMarginals(Sequence[Floats]):
    """Marginals of an instance's variables, computed when asked for.

    On a Bethe graph a variable is a hub. On an explicit cluster graph its marginal is that of the first cluster that
    contains it, or of the hub that stands for a variable in no cluster.
    """

    def __init__(self, data: PackedData, tables: TableReader, instance: int) -> None:
        self._data, self.tables, self._instance = data, tables, instance
        self._places: list[tuple[int, tuple[int, ...], int]] | None = None
        first, last = (int(h) for h in data.layout.instance_hubs[instance : instance + 2])
        self._first_hub, self._length = first, last - first
        if not data.is_bethe(instance):
            self._places = self._find_places()
            self._length = len(self._places)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, variable):  # type: ignore[no-untyped-def]
        if isinstance(variable, slice):
            return [self[v] for v in range(*variable.indices(len(self)))]
        v = range(self._length)[variable]
        if self._places is None:
            return self.tables.hub(self._first_hub + v)
        place, shape, axis = self._places[v]
        table = self.tables.hub(-1 - place) if place < 0 else self.tables.cluster(place)
        marginal = table.reshape(shape).sum(axis=tuple(a for a in range(len(shape)) if a != axis))
        return marginal / marginal.sum()  # to the last digit: one-hot where it was observed

    def stacked(self) -> Floats:
        """All marginals, shape (n_variables, cardinality); the variables must have equally many states."""
        if self._places is None:
            return InstanceBeliefs(self._data, self.tables, self._instance).hubs()
        return np.stack(list(self))

    def _find_places(self) -> list[tuple[int, tuple[int, ...], int]]:
        cardinalities, table_scopes, hub_scopes = self._data.structure.scopes(self._instance)
        first = int(self._data.layout.instance_clusters[self._instance])
        places: dict[int, tuple[int, tuple[int, ...], int]] = {}
        for i, scopes in ((1, table_scopes), (-1, hub_scopes)):
            for p, scope in enumerate(scopes):
                shape = tuple(int(cardinalities[v]) for v in scope)
                place = first + p if i > 0 else -1 - (self._first_hub + p)
                for axis, v in enumerate(scope):
                    places.setdefault(v, (place, shape, axis))
        return [places[v] for v in range(cardinalities.size)]
