"""The dual D(w, delta) of Eq. 12: a sum over parts of the data, plus observed scores and the prior.

For data with weights M_m and a carving of the entropy,

    D(w, d) = sum_m M_m [ sum_a kappa_a log sum exp((theta_a + d.h_a - g_a) / kappa_a) + hubs ] - w.f_hat
              + |w|^2 / 2 sigma^2
    dD/dw = E[f] - f_hat + w / sigma^2          dD/dd = E[h]

The bracket is worked out part by part (:mod:`bactrian.camel.parts`): one part for data in memory, one per chunk for
data in files, one or one per chunk for data on a device.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from bactrian.arrays import Floats
from bactrian.camel.accuracy import Schedule
from bactrian.camel.entropy import Carving
from bactrian.camel.parts import Carve, Part, State, Vector, store
from bactrian.camel.prior import Prior
from bactrian.graphs.packed import PackedData, TableReader
from bactrian.parallel import Signals, anywhere, combine, largest_anywhere
from bactrian.parallel.threads import Context
from bactrian.solvers.lbfgs import largest_magnitude, on_host
from bactrian.solvers.solution import WarmState


class Evaluation(NamedTuple):
    """Value and gradient at some weights and multipliers."""

    value: float  #: D with the Gaussian prior, without the L1 term
    gradient: Vector  #: (n_weights,) of the same
    violation: float  #: largest disagreement over edges and sepset states (Eq. 5)
    sweeps: int  #: sweeps over instances, summed
    residual: float  #: largest change of a marginal in the last sweep


class Dual:
    """D for a data set, an entropy and a prior.

    With several ranks the data is this rank's part of it, and D, its gradient and every decision are those of the
    whole: each rank must make the same calls.

    Parameters
    ----------
    data : PackedData, PackedFolder, or of another kind that :func:`bactrian.camel.parts.store` takes
        In memory, one part; in a folder, one part per chunk, one of which is in memory at a time.
    carving : Carving, or a function from PackedData to one
        Counting numbers of all parts, or of each.

    Attributes
    ----------
    data
        What was given; of data on a device its packed form.
    parts : sequence of Part
        To be used inside ``with part:``, or by :meth:`loaded`.
    vectors : Vectors
        Makes vectors over the weights.
    relinearises, has_saddle, is_forest : bool
        Whether, in any part of the data, some entropy is linearised; some hub's number is negative, so that the star
        update solves for a saddle of D; and, in all parts, no instance has a loop.
    finest : float
        Change of a belief below which messages only move within rounding.
    signals : Signals, optional
        What evaluations tell other ranks, and hear from them.
    """

    def __init__(
        self,
        data: Any,
        carving: Carving | Carve,
        prior: Prior,
        context: Context,
        *,
        consistency: bool = True,
        schedule: Schedule | None = None,
    ) -> None:
        self.prior, self.context, self.consistency = prior, context, consistency
        self.communicator = communicator = context.communicator
        self._carve: Carve = (lambda _: carving) if isinstance(carving, Carving) else carving
        self._storage = storage = store(data, self._carve, context, consistency=consistency, schedule=schedule)
        if storage.empirical is None:
            raise ValueError("the data has no labels; the dual needs observed moments")
        self.data, self.parts, self.vectors = storage.data, storage.parts, storage.vectors
        self.empirical, base = storage.empirical, storage.base
        found = zip(*((part.relinearises, part.has_saddle, not part.is_forest) for part in self.parts), strict=True)
        flags = tuple(float(any(each)) for each in found)
        if storage.of_all_ranks:
            flags = largest_anywhere(communicator, *flags)
        else:
            self.empirical, (base,), flags = combine(communicator, self.empirical, (base,), flags)
        self.relinearises, self.has_saddle, self.is_forest = bool(flags[0]), bool(flags[1]), not flags[2]
        self.finest = max(part.finest for part in self.parts)
        self._add_terms = self.vectors.weight_terms(self.empirical, base, prior)
        self.signals: Signals | None = None
        #: Of every part, multipliers to go back to, and beliefs from which the next change is counted.
        self._remembered: list[Vector | None] = [None] * len(self.parts)
        self._beliefs_before: list[Vector | None] = [None] * len(self.parts)

    @property
    def part(self) -> Any:
        """The only part, of data in memory."""
        (part,) = self.parts
        return part

    def loaded(self) -> Iterator[Part]:
        """Each part in turn, in use until the next."""
        for part in self.parts:
            with part:
                yield part

    @property
    def late(self) -> bool:
        """Whether the time limit has passed: on some rank, at the last evaluation, where there are several."""
        if self.communicator.size == 1:
            return self.context.deadline.has_passed
        return self.signals is not None and self.signals.seen[1]

    def evaluate(
        self,
        weights: Vector,
        *,
        tolerance: float = 0.0,
        max_sweeps: int = 0,
        tree_sweeps: int = 1 << 30,
        damping: float = 0.0,
        logs: bool = True,
        residual: float = 0.0,
        sweeps: float = 0.0,
    ) -> Evaluation:
        """Value and gradient in w after sweeping the multipliers to ``tolerance`` (not at all: ``max_sweeps`` = 0).

        ``residual`` and ``sweeps`` are those of messages which were passed elsewhere before.
        """
        expected: Vector = None
        value, violation = 0.0, 0.0
        for part in self.loaded():
            part.set_weights(weights)
            part.pass_messages(
                tolerance=tolerance, max_sweeps=max_sweeps, tree_sweeps=tree_sweeps, damping=damping, logs=logs
            )
            found = part.summary()
            if expected is None:
                expected = found.moments
            else:
                expected += found.moments
            value += found.value
            sweeps += found.sweeps
            violation, residual = larger(violation, found.violation), larger(residual, found.residual)
        numbers = (value, sweeps), (violation, residual)
        expected, (value, sweeps), (violation, residual) = combine(self.communicator, expected, *numbers, self.signals)
        value = self._add_terms(value, expected, weights)
        return Evaluation(value, expected, violation, int(sweeps), residual)

    def remember(self) -> None:
        """Keep a copy of the multipliers."""
        for k, part in enumerate(self.loaded()):
            _keep(part, self._remembered, k, part.multipliers)

    def recall(self) -> None:
        """Take up the multipliers that were last remembered, if any were."""
        for part, remembered in zip(self.loaded(), self._remembered, strict=True):
            if remembered is not None:
                part.multipliers[:] = remembered

    def since_remembered(self) -> Iterator[tuple[Part, Vector]]:
        """Each part with the change of its multipliers since they were last remembered."""
        for part, remembered in zip(self.loaded(), self._remembered, strict=True):
            with np.errstate(invalid="ignore"):  # multipliers that forbid a state are -inf
                yield part, part.multipliers - remembered

    def belief_change(self) -> float:
        """Largest change of a hub's belief since this was last asked, or beliefs were set; NaN the first time."""
        change = 0.0
        for k, part in enumerate(self.loaded()):
            before, beliefs = self._beliefs_before[k], part.hubs.xp.exp(part.hub_log)
            change = larger(change, np.nan if before is None else largest_magnitude(beliefs - before))
            _keep(part, self._beliefs_before, k, beliefs)
        return change if np.isnan(change) else largest_anywhere(self.communicator, change)[0]

    def count_changes_from(self, beliefs: Vector) -> None:
        """Set the beliefs of hubs from which the next change is counted, of a single part."""
        _keep(self.part, self._beliefs_before, 0, beliefs)

    def packed(self) -> Iterator[PackedData]:
        """The data of each part in turn."""
        whole = self._storage.data
        if isinstance(whole, PackedData):
            yield whole
        else:
            yield from (part.data for part in self.loaded())

    def tables(self) -> TableReader | None:
        """Belief tables at the last evaluation; None where they exceed the memory."""
        return None if self._storage.tables is None else self._storage.tables()

    def state(self) -> Any:
        """What :meth:`take_up` takes: a copy of all multipliers, or this dual itself where they exceed the memory."""
        if self._storage.tables is None:
            return self
        multipliers, linearisations = zip(*(part.state() for part in self.parts), strict=True)
        return WarmState(np.concatenate(multipliers), np.concatenate(linearisations))

    def states(self) -> Iterator[tuple[str, Floats, Floats]]:
        """Name, multipliers and linearisation of each part; in files they may be written to."""
        for part in self.loaded():
            yield part.name, *part.state()

    def take_up(self, earlier: Any) -> bool:
        """Go on with the states that an earlier dual, or a checkpoint, has for these parts; whether it has all."""
        left = {part.name: [other for other in self.parts if other.name == part.name] for part in self.parts}
        for name, multipliers, linearisation in earlier.states():
            sizes = [(_size(part.multipliers), _size(part.linearisation)) for part in left.get(name, ())]
            if sum(links for links, _ in sizes) != multipliers.size:
                continue
            given = State(multipliers, linearisation)
            for part, (links, hub_states) in zip(left.pop(name, ()), sizes, strict=True):
                with part:
                    part.restore(given[0][:links], given[1][:hub_states] if self.relinearises else None)
                given = State(given[0][links:], given[1][hub_states:])
        return not anywhere(self.communicator, bool(left))[0]

    def is_unbounded(self, weights: Vector, leg: Floats) -> bool:
        """Whether no finite weights are optimal, by a certificate; ``leg`` is how far the path of weights came last."""
        if self._storage.is_unbounded is not None:
            return self._storage.is_unbounded(self, weights, leg)
        host = Dual(self.data, self._carve, self.prior, self.context, consistency=self.consistency)
        if self.consistency:
            host.take_up(self.state())
        weights = on_host(weights)
        host.evaluate(weights)
        return host.is_unbounded(weights, leg)


def _keep(part: Part, places: list[Vector | None], k: int, values: Vector) -> None:
    """Copy values to their place, where the part is kept."""
    place = part.room_for(values) if places[k] is None else places[k]
    assert place is not None
    place[:] = values
    places[k] = place


def _size(vector: Vector) -> int:
    return int(np.prod(vector.shape))


def larger(a: float, b: float) -> float:
    """The larger of two numbers, NaN if one is: a maximum that hides a NaN would call it converged."""
    return a if a >= b or np.isnan(a) else b
