"""The dual D(w, delta) of Eq. 12: a sum over parts of the data, plus observed scores and the prior.

For data with weights M_m and a carving of the entropy,

    D(w, d) = sum_m M_m [ sum_a kappa_a log sum exp((theta_a + d.h_a - g_a) / kappa_a) + hubs ] - w.f_hat
              + |w|^2 / 2 sigma^2
    dD/dw = E[f] - f_hat + w / sigma^2          dD/dd = E[h]

The bracket is worked out part by part (:class:`bactrian.camel.messages.Messages`): one part for data in memory, one per
chunk for data in files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from bactrian.arrays import Floats
from bactrian.camel.entropy import Carving
from bactrian.camel.file_parts import file_parts
from bactrian.camel.messages import Messages
from bactrian.camel.prior import Prior
from bactrian.camel.schedule import Schedule
from bactrian.engines.files.packed_folder import PackedFolder
from bactrian.engines.numba.long_vectors import add_prior
from bactrian.engines.numba.threads import Deadline, Workers
from bactrian.graphs.inputs import N_BLOCKS
from bactrian.graphs.packed import PackedData
from bactrian.parallel.communicator import Alone, Communicator, Message, anywhere, combine, largest

#: Weights from which passes over them are worth several threads.
_MANY_WEIGHTS = 100_000


class Evaluation(NamedTuple):
    """Value and gradient at some weights and multipliers."""

    value: float  #: D with the Gaussian prior, without the L1 term
    gradient: Floats  #: (n_weights,) of the same
    violation: float  #: largest disagreement between a link's cluster and its hub
    sweeps: int  #: sweeps over instances, summed
    residual: float  #: largest change of a marginal in the last sweep


class Dual:
    """D for a data set, an entropy and a prior.

    With several ranks the data is this rank's part of it, and D, its gradient and every decision are those of the
    whole: each rank must make the same calls.

    Parameters
    ----------
    data : PackedData or PackedFolder
        In memory, one part; in a folder, one part per chunk, of which one at a time is in memory.
    carving : Carving, or a function from PackedData to one
        Counting numbers of all parts, or of each.

    Attributes
    ----------
    parts : list of Messages
        To be used inside ``with part:``, or by :meth:`loaded`, since a part in a file then gives its memory back.
    relinearises, has_saddle, is_forest : bool
        Whether, in any part of the data, some entropy is linearised; some hub's number is negative, so that the star
        update solves for a saddle of D; and, in all parts, no instance has a loop.
    message : Message, optional
        What an evaluation sends; None on a single rank.
    """

    def __init__(
        self,
        data: PackedData | PackedFolder,
        carving: Carving | Callable[[PackedData], Carving],
        prior: Prior,
        workers: Workers,
        *,
        consistency: bool = True,
        communicator: Communicator | None = None,
        schedule: Schedule | None = None,
    ) -> None:
        self.data, self.prior, self.workers, self.consistency = data, prior, workers, consistency
        self.communicator = communicator = communicator or Alone()
        carve = (lambda _: carving) if isinstance(carving, Carving) else carving
        self.in_memory = isinstance(data, PackedData)
        if isinstance(data, PackedFolder):
            self.parts = file_parts(data, carve, workers, consistency=consistency)
            self.empirical, base = data.observed()[0], 0.0  # of all ranks; chunks have no fixed scores
            flags = largest(communicator, *self._flags())
        else:
            if data.empirical is None:
                raise ValueError("the data has no labels; the dual needs observed moments")
            self.parts = [Messages(data, carve(data), workers, consistency=consistency, schedule=schedule)]
            self.empirical, (base,), flags = combine(communicator, data.empirical, (data.observed_base,), self._flags())
        self.relinearises, self.has_saddle, self.is_forest = bool(flags[0]), bool(flags[1]), not flags[2]
        self._weight_terms = _WeightTerms(self.empirical, base, prior, workers)
        self.message = Message(communicator, data.n_weights, 2, 2) if communicator.size > 1 else None

    def _flags(self) -> tuple[float, float, float]:
        """Whether some entropy is linearised, some hub's number is negative, and some instance has a loop."""
        parts = self.parts
        return (
            float(any(part.carving.relinearises for part in parts)),
            float(any(part.has_saddle for part in parts)),
            float(not all(part.is_forest for part in parts)),
        )

    @property
    def part(self) -> Messages:
        """The only part, of data in memory."""
        (part,) = self.parts
        return part

    def loaded(self) -> Iterator[Messages]:
        """Each part in turn, in use until the next."""
        for part in self.parts:
            with part:
                yield part

    def heed(self, deadline: Deadline) -> None:
        """Stop sweeping when a time limit has passed."""
        for part in self.parts:
            part.heed(deadline)

    @property
    def late(self) -> bool:
        """Whether the time limit has passed: on some rank, at the last evaluation, where there are several."""
        own = any(part.late for part in self.parts)
        return own if self.communicator.size == 1 else self.message is not None and self.message.is_late

    def evaluate(
        self,
        weights: Floats,
        *,
        tolerance: float = 0.0,
        max_sweeps: int = 0,
        tree_sweeps: int = 1 << 30,
        damping: float = 0.0,
        residual: float = 0.0,
        sweeps: float = 0.0,
    ) -> Evaluation:
        """Value and gradient in w after sweeping the multipliers to ``tolerance`` (not at all: ``max_sweeps`` = 0).

        ``residual`` and ``sweeps`` are those of messages which were passed elsewhere before.
        """
        message = self.message
        place = None if message is None else message.vector
        expected: Floats | None = None
        value, violation = 0.0, 0.0
        for part in self.loaded():
            part.set_weights(weights)
            part.pass_messages(tolerance=tolerance, max_sweeps=max_sweeps, tree_sweeps=tree_sweeps, damping=damping)
            found = part.summary(place if expected is None else None)
            expected = found.moments if expected is None else np.add(expected, found.moments, out=expected)
            value += found.value
            sweeps += found.sweeps
            violation, residual = larger(violation, found.violation), larger(residual, found.residual)
        assert expected is not None
        if message is not None:
            (value, sweeps), (violation, residual) = message.combine((value, sweeps), (violation, residual))
            expected = expected.copy()  # the next evaluation overwrites the message
        value = self._weight_terms.add(value, expected, weights)
        return Evaluation(value, expected, violation, int(sweeps), residual)

    def remember(self) -> None:
        """Keep a copy of the multipliers."""
        for part in self.loaded():
            part.remember()

    def recall(self) -> None:
        """Take up the multipliers that were last remembered, if any were."""
        for part in self.loaded():
            part.recall()

    def remove_levels(self) -> None:
        """See :meth:`Messages.remove_levels`."""
        for part in self.loaded():
            part.remove_levels()

    def belief_change(self) -> float:
        """Largest change of a hub's belief since this was last asked; NaN the first time."""
        change = 0.0
        for part in self.loaded():
            change = larger(change, part.belief_change())
        return change if np.isnan(change) else largest(self.communicator, change)[0]

    def largest_violation(self) -> float:
        """Largest disagreement over edges and sepset states at the last evaluation."""
        found = 0.0
        for part in self.loaded():
            found = larger(found, part.largest_violation())
        return largest(self.communicator, found)[0]

    def states(self) -> Iterator[tuple[str, Floats, Floats]]:
        """Name, multipliers and linearisation of each part; they may be written to."""
        for part in self.loaded():
            yield part.name, part.multipliers, part.linearisation

    def take_up(self, earlier: Any) -> bool:
        """Go on with the states that an earlier dual, or a checkpoint, has for these parts; whether it has all."""
        parts = {part.name: part for part in self.parts}
        taken = 0
        for name, multipliers, linearisation in earlier.states():
            part = parts.get(name)
            if part is None or part.multipliers.size != multipliers.size:
                continue
            with part:
                part.multipliers[:] = multipliers
                if self.relinearises:
                    part.linearisation[:] = linearisation
            taken += 1
        return not anywhere(self.communicator, taken < len(parts))[0]

    def parts_at(self, weights: Floats) -> Iterator[Messages]:
        """The parts of the data, each with its scores at ``weights``."""
        for part in self.loaded():
            part.set_weights(weights)
            yield part

    def parts_since(self) -> Iterator[tuple[Messages, Floats]]:
        """Each part with the change of its multipliers since they were last remembered."""
        for part in self.loaded():
            assert part.remembered is not None
            with np.errstate(invalid="ignore"):  # multipliers that forbid a state are -inf
                yield part, part.multipliers - part.remembered


def larger(a: float, b: float) -> float:
    """The larger of two numbers, NaN if one is: a maximum that hides a NaN would call it converged."""
    return a if a >= b or np.isnan(a) else b


class _WeightTerms:
    """- w.f_hat - base + sum_k w_k^2 / 2 sigma_k^2, for observed features f_hat and the fixed scores ``base``."""

    def __init__(self, empirical: Floats, base: float, prior: Prior, workers: Workers) -> None:
        self._empirical, self._base, self._precision, self._workers = empirical, base, prior.precision, workers
        n_blocks = N_BLOCKS if empirical.size >= _MANY_WEIGHTS else 1
        self._blocks = np.linspace(0, empirical.size, n_blocks + 1).astype(np.int64)

    def add(self, value: float, gradient: Floats, weights: Floats) -> float:
        """Add to the ``gradient`` in place, and to the ``value``, which is returned."""
        precision = self._precision
        products = np.zeros((self._blocks.size - 1, 2))

        def block(b: int, first: int, last: int) -> None:
            if isinstance(precision, float):
                add_prior(gradient, weights, self._empirical, precision, first, last, products[b])
                return
            add_prior(gradient, weights, self._empirical, 0.0, first, last, products[b])
            pull = precision[first:last] * weights[first:last]
            gradient[first:last] += pull
            products[b, 1] = pull @ weights[first:last]

        self._workers.run(block, self._blocks)
        linear, square = products.sum(axis=0)
        # In this order: with huge scores the first three cancel, and what is left must not drown in their rounding.
        value = value - float(linear) - self._base
        return value + 0.5 * (precision if isinstance(precision, float) else 1.0) * float(square)
