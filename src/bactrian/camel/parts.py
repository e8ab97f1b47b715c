"""What a part of the data has to do for the dual, wherever it is kept: in memory, in a file, on a device.

The dual (:mod:`bactrian.camel.dual`) is a sum over parts. It sets weights, lets each part pass its messages and adds up
summaries; the linearisation (:mod:`bactrian.camel.linearisation`) reads and moves g of each. :func:`store` makes the
parts: it alone asks what kind of data it was given, and a new kind registers itself there.

Vectors over the weights are arrays, or tensors on the device of the parts: what makes and multiplies them is
:class:`Vectors`, and all else uses arithmetic that both kinds have.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import singledispatch
from typing import Any, NamedTuple, Protocol, Self

import numpy as np

from bactrian.arrays import Floats, Ints
from bactrian.camel.entropy import Carving
from bactrian.camel.memories import make_memory
from bactrian.camel.prior import Prior
from bactrian.engines.numba.threads import Deadline, Workers
from bactrian.graphs.packed import PackedData, TableReader
from bactrian.solvers.lbfgs import Memory, largest_magnitude

#: An array, or a tensor on a device.
Vector = Any
Carve = Callable[[PackedData], Carving]
#: (value, gradient, weights): adds what the dual has beside its parts to a gradient in place; returns the new value.
AddTerms = Callable[[float, Vector, Vector], float]

#: Weights that passes over them take at a time, few enough to stay in the cache.
_WEIGHTS_AT_ONCE = 1 << 15


class Summary(NamedTuple):
    """What the last pass over a part adds to the dual."""

    value: float
    sweeps: float
    violation: float
    residual: float
    moments: Vector  #: (n_weights,) E[f]; the dual may write to it


class Hubs(NamedTuple):
    """Hubs of a part in the order of the data."""

    offset: Ints  #: (H + 1,) states of a hub
    kind: Ints  #: (H,)
    truth: Floats | None  #: (n_hub_states,) weighted counts of observed states
    virtual: bool  #: some hub is the sepset of an explicit edge


class Part(Protocol):
    """Some instances of the data, with the multipliers and the linearisation that outlast a pass.

    To be used inside ``with part:``: one that is not kept where the work is done gives the memory there back.

    Attributes
    ----------
    name : str
        Parts of one name are consecutive pieces of what was one part, and share its :meth:`state`.
    stays : bool
        Whether the part is where the work is done between passes, too, so that more may be remembered of it.
    relinearises, has_saddle, is_forest : bool
        Whether some entropy is linearised, some hub's number is negative, no instance has a loop.
    finest : float
        Change of a belief below which messages only move within rounding.
    late : bool
        Whether the time limit has passed, so that sweeps were or will be cut short.
    xp : module
        Functions of arrays, numpy or one with the same names.
    linearisation, linearised, hub_log : (n_hub_states,) vectors
        g, how many times each hub's entropy is linearised, and log beliefs at the last pass; in the part's own order.
    """

    name: str = ""
    stays: bool = True
    relinearises: bool
    has_saddle: bool
    is_forest: bool
    finest: float = 0.0
    xp: Any = np
    linearisation: Vector
    remembered: Vector | None = None  #: multipliers that :meth:`recall` takes up
    _beliefs_before: Vector | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Give memory back, of a part that does not stay."""
        return None

    @property
    def own_multipliers(self) -> Vector:
        """Multipliers as the part holds them."""

    def room_for(self, values: Vector) -> Vector:
        """A place that keeps a copy of values, where the part is kept."""

    def heed(self, deadline: Deadline) -> None:
        """Stop sweeping when a time limit has passed."""

    @property
    def late(self) -> bool:
        """See above."""

    def set_weights(self, weights: Vector) -> None:
        """Compute all scores at ``weights``."""

    def pass_messages(self, *, tolerance: float, max_sweeps: int, tree_sweeps: int, damping: float) -> None:
        """Sweep the multipliers to ``tolerance``, then compute beliefs, counts and values."""

    def summary(self, place: Floats | None = None) -> Summary:
        """What the last pass adds to the dual; moments are written to ``place`` where one is given."""

    def largest_violation(self) -> float:
        """Largest disagreement over edges and sepset states at the last pass."""

    def remember(self) -> None:
        """Keep a copy of the multipliers."""
        if self.remembered is None:
            self.remembered = self.room_for(self.own_multipliers)
        self.remembered[:] = self.own_multipliers

    def recall(self) -> None:
        """Take up the multipliers that were last remembered, if any were."""
        if self.remembered is not None:
            self.own_multipliers[:] = self.remembered

    def remove_levels(self) -> None:
        """Take away constants on links where they cost digits."""

    def state(self) -> tuple[Floats, Floats]:
        """Multipliers and linearisation in the order of the packed data; a copy or not."""

    def take_up(self, multipliers: Floats, linearisation: Floats | None) -> None:
        """Go on from a :meth:`state`; without a linearisation from the present one."""

    @property
    def n_link_states(self) -> int:
        """Number of multipliers."""

    @property
    def hubs(self) -> Hubs:
        """Hubs of the part."""

    @property
    def linearised(self) -> Vector:
        """See above."""

    @property
    def hub_log(self) -> Vector:
        """See above."""

    def of_hubs(self, values: Floats) -> Vector:
        """A vector over hub states in the order of the data as one of the part."""

    def hub_sums(self, values: Vector) -> Vector:
        """For every hub state the sum over its hub."""

    def normalised(self, logs: Vector) -> Vector:
        """Log beliefs of hubs, up to a constant each, as those of probabilities."""

    def belief_change(self) -> float:
        """Largest change of a hub's belief since this was last asked, or beliefs were set; NaN the first time."""
        before, beliefs = self._beliefs_before, self.xp.exp(self.hub_log)
        change = np.nan if before is None else largest_magnitude(beliefs - before)
        self.set_beliefs_before(beliefs)
        return change

    def set_beliefs_before(self, beliefs: Vector) -> None:
        """Beliefs of hubs from which the next change is counted."""
        if self._beliefs_before is None:
            self._beliefs_before = self.room_for(beliefs)
        self._beliefs_before[:] = beliefs


class Vectors:
    """Vectors over the weights, where the parts want them: here in memory."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers

    def of(self, values: Any) -> Vector:
        """A vector of these values."""
        return np.asarray(values, dtype=np.float64)

    def memory(self, dimension: int) -> Memory:
        """A memory of L-BFGS."""
        return make_memory(dimension, self._workers)

    def weight_terms(self, empirical: Vector, base: float, prior: Prior) -> AddTerms:
        """- w.f_hat - base + sum_k w_k^2 / 2 sigma_k^2, for observed features f_hat and the fixed scores ``base``."""
        blocks = np.append(np.arange(0, empirical.size, _WEIGHTS_AT_ONCE), empirical.size)
        precision = np.broadcast_to(prior.precision, empirical.shape)

        def add(value: float, gradient: Floats, weights: Floats) -> float:
            products = np.zeros((blocks.size - 1, 2))

            def block(b: int, first: int, last: int) -> None:
                own, observed, slope = weights[first:last], empirical[first:last], gradient[first:last]
                pull = precision[first:last] * own
                slope += pull
                slope -= observed
                products[b] = own @ observed, pull @ own

            self._workers.run(block, blocks)
            linear, square = products.sum(axis=0).tolist()
            # In this order: with huge scores the first three cancel, and what is left must not drown in their rounding.
            return float(value - linear - base + 0.5 * square)

        return add


@dataclass(frozen=True)
class Storage:
    """Data as the dual sees it."""

    data: Any  #: n_weights and total_weight; PackedData where there are belief tables
    parts: Sequence[Part]
    vectors: Vectors
    empirical: Vector | None  #: (n_weights,) observed features
    base: float = 0.0  #: fixed scores of what was observed
    of_all_ranks: bool = False  #: the two before are those of all ranks together
    #: Belief tables of all parts at the last pass; None where they exceed the memory.
    tables: Callable[[], TableReader] | None = None
    readable: bool = True  #: others may read the arrays of the parts


@singledispatch
def store(data: Any, carve: Carve, workers: Workers, *, consistency: bool, **options: Any) -> Storage:
    """The parts of ``data`` under the counting numbers that ``carve`` gives."""
    raise TypeError(f"data must be packed, found {type(data).__name__}")
