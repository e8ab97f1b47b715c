"""What the dual needs of a part of the data, whether it is in memory, in a file or on a device.

The dual (:mod:`bactrian.camel.dual`) is a sum over parts. It sets weights, lets each part pass its messages and adds up
summaries; the linearisation (:mod:`bactrian.camel.linearisation`) reads and moves g of each. :func:`store` makes the
parts: it alone asks what kind of data it was given, and an engine registers itself there
(:mod:`bactrian.engines.memory`, :mod:`bactrian.engines.files`, :mod:`bactrian.engines.torch.parts`).

Vectors over the weights are arrays, or tensors on the device of the parts: what makes and multiplies them is
:class:`Vectors`, and all else uses arithmetic that both kinds have.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import singledispatch
from typing import Any, NamedTuple, Protocol, Self

from bactrian.arrays import Bools, Floats, Ints
from bactrian.camel.entropy import Carving
from bactrian.camel.prior import Prior
from bactrian.graphs.packed import PackedData, TableReader
from bactrian.parallel.threads import Context
from bactrian.solvers.lbfgs import Memory

#: An array, or a tensor on a device.
Vector = Any
Carve = Callable[[PackedData], Carving]
#: (value, gradient, weights): adds what the dual has besides its parts to a gradient in place; returns the new value.
AddTerms = Callable[[float, Vector, Vector], float]


class Summary(NamedTuple):
    """What the last pass over a part adds to the dual."""

    value: float
    sweeps: float
    violation: float  #: largest disagreement over edges and sepset states (Eq. 5)
    residual: float  #: largest change of a marginal in the last sweep
    moments: Vector  #: (n_weights,) E[f]; the dual may write to it


class State(NamedTuple):
    """Multipliers and linearisation in the order of the packed data."""

    multipliers: Floats
    linearisation: Floats


class Links(NamedTuple):
    """States of links, for what works on multipliers one by one; all arrays are (n_link_states,) but the last."""

    hub_state: Ints  #: state of the hub that it belongs to
    is_first: Bools  #: of the first link of its hub
    is_virtual: Bools  #: its hub is the sepset of an explicit edge
    degree: Ints  #: number of links around its hub
    hub_number: Floats  #: kept counting number of its hub
    marginal: Floats  #: of the link's cluster, at the last pass
    disagreement: Floats  #: dD/dd at the last pass
    hub_scores: Floats  #: (n_hub_states,) theta - g at the last weights


class Hubs(Protocol):
    """The hubs of a part: vectors over their states, in the part's own order unless said otherwise.

    Attributes
    ----------
    offset, kind, truth
        States (H + 1,) and kinds (H,) of hubs, and weighted counts of observed states, in the order of the data.
    number : (n_hub_states,) vector
        How many times each hub's entropy is linearised.
    xp : module
        Functions of such vectors, numpy or one with the same names.
    """

    offset: Ints
    kind: Ints
    truth: Floats | None
    number: Vector
    xp: Any

    def of(self, values: Floats) -> Vector:
        """A vector in the order of the data as one of the part."""

    def sums(self, values: Vector) -> Vector:
        """For every state the sum over its hub."""

    def normalised(self, logs: Vector) -> Vector:
        """Log beliefs, up to a constant per hub, as those of probabilities."""


class Part(Protocol):
    """Some instances of the data, with the multipliers and the linearisation that outlast a pass.

    To be used inside ``with part:``: one that is not kept where the work is done gives the memory there back.

    Attributes
    ----------
    data
        The instances; PackedData of a part that has all its data in memory while it is in use.
    name : str
        Parts of one name are consecutive pieces of what was one part, and share its :meth:`state`.
    stays : bool
        Whether the part is where the work is done between passes, too, so that more may be remembered of it.
    relinearises, has_saddle, is_forest : bool
        Whether some entropy is linearised, some hub's number is negative, no instance has a loop.
    finest : float
        Change of a belief below which messages only move within rounding.
    multipliers, linearisation, hub_log : vectors
        delta, g, and log beliefs of hubs at the last pass, in the part's own order.
    """

    data: Any
    name: str
    stays: bool
    relinearises: bool
    has_saddle: bool
    is_forest: bool
    finest: float

    @property
    def multipliers(self) -> Vector:
        """See above."""

    @property
    def linearisation(self) -> Vector:
        """See above."""

    @property
    def hub_log(self) -> Vector:
        """See above."""

    @property
    def hubs(self) -> Hubs:
        """The hubs, to be read while the part is in use."""

    def __enter__(self) -> Self:
        """Bring the part to where the work is done."""

    def __exit__(self, *error: object) -> None:
        """Give the memory there back, of a part that does not stay."""

    def set_weights(self, weights: Vector) -> None:
        """Compute all scores at ``weights``."""

    def pass_messages(
        self, *, tolerance: float, max_sweeps: int, tree_sweeps: int, damping: float, logs: bool = True
    ) -> None:
        """Sweep the multipliers to ``tolerance``, then compute beliefs, counts and values.

        Without ``logs`` exact passes over trees need not leave multipliers and log beliefs behind.
        """

    def summary(self) -> Summary:
        """What the last pass adds to the dual."""

    def room_for(self, values: Vector) -> Vector:
        """A place for such a vector, where the part is kept."""

    def state(self) -> State:
        """What :meth:`restore` takes; a copy or not."""

    def restore(self, multipliers: Floats, linearisation: Floats | None) -> None:
        """Go on from a :meth:`state`; without a linearisation from the present one."""

    def links(self) -> Links:
        """States of links, of a part in memory; from now on passes leave their marginals."""


class Vectors(Protocol):
    """Vectors over the weights, where the parts want them."""

    def of(self, values: Any) -> Vector:
        """A vector of these values."""

    def memory(self, dimension: int, *, exact: bool = False) -> Memory:
        """A memory of L-BFGS; an exact likelihood is worth a larger one."""

    def weight_terms(self, empirical: Vector, base: float, prior: Prior) -> AddTerms:
        """- w.f_hat - base + sum_k w_k^2 / 2 sigma_k^2, for observed features f_hat and the fixed scores ``base``."""


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
    #: Whether no finite weights are optimal, of a dual, weights there and the last leg of their path
    #: (:mod:`bactrian.engines.recession`); None where the arrays of the parts are not in memory.
    is_unbounded: Callable[[Any, Floats, Floats], bool] | None = None


@singledispatch
def store(data: Any, carve: Carve, context: Context, *, consistency: bool, **options: Any) -> Storage:
    """The parts of ``data`` under the counting numbers that ``carve`` gives."""
    raise TypeError(f"no engine supports {type(data).__name__}; for PackedData, import bactrian.engines.memory")
