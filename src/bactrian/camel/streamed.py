"""The dual D of data that is gone through part by part, each mapped into memory while it is at work.

Multipliers, linearisation and beliefs of a part live in a file of their own and outlast a pass; scores and counts live
in buffers that the parts share. A pass holds one part in memory, and the vectors over the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bactrian.camel.dual import Dual, Evaluation
from bactrian.camel.entropy import Carving
from bactrian.camel.linearisation import Linearisation, pooled_counts, smoothed_log
from bactrian.camel.messages import Messages
from bactrian.camel.prior import Prior
from bactrian.camel.space import Buffers, FileSpace
from bactrian.camel.weight_terms import WeightTerms
from bactrian.engines.files.packed_file import MappedFile
from bactrian.engines.files.packed_folder import Chunk, PackedFolder
from bactrian.engines.numba.layout import Layout
from bactrian.engines.numba.threads import Workers
from bactrian.graphs.packed import PackedData
from bactrian.parallel.communicator import Communicator, Message, anywhere, largest

Floats = NDArray[np.float64]
Carve = Callable[[PackedData], Carving]


class Part:
    """One chunk: its data, and the state that outlives a pass."""

    def __init__(
        self,
        chunk: Chunk,
        file: MappedFile,
        data: PackedData,
        carve: Carve,
        workers: Workers,
        *,
        consistency: bool,
        buffers: Buffers,
        folder: Path | None,
    ) -> None:
        self.name, self._file = chunk.file, file
        self._space = space = FileSpace(folder, _capacity(data.layout), buffers)
        carving = carve(data)
        self.relinearises = carving.relinearises
        self.has_saddle = bool((carving.hub < 0.0).any())
        self.is_forest = bool(data.layout.instance_is_tree.all())
        kept = Carving(space.keep(carving.cluster), space.keep(carving.hub), space.keep(carving.linearised))
        self.messages = Messages(data, kept, workers, consistency=consistency, space=space)
        self.remembered = space.zeros(data.layout.n_link_states)
        self.beliefs_before = space.zeros(data.layout.n_hub_states)
        self.release()

    def release(self) -> None:
        """Let the system have the memory of this part."""
        self._file.release()
        self._space.release()


class StreamedDual:
    """D over the chunks of a folder; see :class:`Dual`, of which it has all that the profiled solver needs."""

    def __init__(
        self,
        data: PackedFolder,
        carve: Carve,
        prior: Prior,
        workers: Workers,
        *,
        consistency: bool,
        communicator: Communicator,
        folder: Path | None = None,
    ) -> None:
        self.data, self.workers = data, workers
        self.consistency, self.communicator = consistency, communicator
        buffers = Buffers(max(chunk.widest for chunk in data.chunks))
        self.parts = [
            Part(chunk, file, part, carve, workers, consistency=consistency, buffers=buffers, folder=folder)
            for chunk, file, part in data.opened()
        ]
        self.empirical = data.observed()[0]
        self._weight_terms = WeightTerms(self.empirical, 0.0, prior, workers)  # chunks have no fixed scores
        self.message = Message(communicator, data.n_weights, 2, 2)
        flags = largest(
            communicator,
            float(any(part.relinearises for part in self.parts)),
            float(any(part.has_saddle for part in self.parts)),
            float(not all(part.is_forest for part in self.parts)),
        )
        self.relinearises, self.has_saddle, self.is_forest = bool(flags[0]), bool(flags[1]), not flags[2]
        self._has_remembered = self._has_beliefs = False

    def loaded(self) -> Iterator[Part]:
        """Each part in turn, its memory given back afterwards."""
        for part in self.parts:
            yield part
            part.release()

    def evaluate(
        self,
        weights: Floats,
        *,
        tolerance: float = 0.0,
        max_sweeps: int = 0,
        tree_sweeps: int = 1 << 30,
        damping: float = 0.0,
    ) -> Evaluation:
        """See :class:`Dual`."""
        expected = self.message.vector
        expected[:] = 0.0
        value, sweeps, violation, residual = 0.0, 0.0, 0.0, 0.0
        for part in self.loaded():
            messages = part.messages
            beliefs, data = messages.beliefs, messages.data
            messages.set_weights(weights)
            messages.pass_messages(tolerance=tolerance, max_sweeps=max_sweeps, tree_sweeps=tree_sweeps, damping=damping)
            expected += data.scores.moments(beliefs.counts, beliefs.hub_count, self.workers)
            value += float(data.weights @ beliefs.value)
            sweeps += float(beliefs.sweeps.sum())
            violation = max(violation, float(beliefs.violation.max(initial=0.0)))
            residual = max(residual, float(beliefs.residual.max(initial=0.0)))
        (value, sweeps), (violation, residual) = self.message.combine((value, sweeps), (violation, residual))
        value = self._weight_terms.add(value, expected, weights)
        return Evaluation(value, expected.copy(), violation, int(sweeps), residual)

    def remember(self) -> None:
        """See :class:`Dual`."""
        self._has_remembered = True
        for part in self.loaded():
            part.remembered[:] = part.messages.multipliers

    def recall(self) -> None:
        """See :class:`Dual`."""
        if self._has_remembered:
            for part in self.loaded():
                part.messages.multipliers[:] = part.remembered

    def remove_levels(self) -> None:
        """See :class:`Messages`."""
        for part in self.loaded():
            part.messages.remove_levels()

    def belief_change(self) -> float:
        """See :class:`Dual`."""
        change = 0.0
        for part in self.loaded():
            beliefs = part.messages.hub_beliefs()
            change = max(change, float(np.abs(beliefs - part.beliefs_before).max(initial=0.0)))
            part.beliefs_before[:] = beliefs
        first, self._has_beliefs = not self._has_beliefs, True
        return np.nan if first else largest(self.communicator, change)[0]

    def largest_violation(self) -> float:
        """See :class:`Dual`."""
        found = max(float(part.messages.beliefs.violation.max(initial=0.0)) for part in self.parts)
        return largest(self.communicator, found)[0]

    def parts_at(self, weights: Floats) -> Iterator[Messages]:
        """See :class:`Dual`."""
        for part in self.loaded():
            part.messages.set_weights(weights)
            yield part.messages

    def parts_since(self) -> Iterator[tuple[Messages, Floats]]:
        """See :class:`Dual`."""
        for part in self.loaded():
            with np.errstate(invalid="ignore"):
                yield part.messages, part.messages.multipliers - part.remembered

    def take_up(self, earlier: Any) -> bool:
        """Go on with the states that an earlier dual, or a checkpoint, has for these chunks; whether it has all."""
        parts = {part.name: part for part in self.parts}
        taken = 0
        for name, multipliers, bias in earlier.states():
            part = parts.get(name)
            if part is None or part.messages.multipliers.size != multipliers.size:
                continue
            part.messages.multipliers[:] = multipliers
            if self.relinearises:
                part.messages.hub_bias[:] = bias
            part.release()
            taken += 1
        return not anywhere(self.communicator, taken < len(parts))[0]

    def states(self) -> Iterator[tuple[str, Floats, Floats]]:
        """Name, multipliers and linearisation (as ``hub_bias``) of each chunk; they may be written to."""
        for part in self.loaded():
            yield part.name, part.messages.multipliers, part.messages.hub_bias


class StreamedLinearisation:
    """Keeps the linearisation of every part up to date, without extrapolating it."""

    def __init__(self, dual: StreamedDual) -> None:
        self.dual = dual

    def update(self) -> float:
        """Relinearise at the beliefs of the last evaluation; returns the change of g."""
        changes = [Linearisation(part.messages).update() for part in self.dual.loaded()]
        return largest(self.dual.communicator, max(changes))[0]

    def start_at_observed(self, communicator: Communicator) -> None:
        """See :class:`Linearisation`."""
        kinds = [(part.messages.data.hub_kind, part.messages.data.layout) for part in self.dual.parts]
        most_states, last_kind = largest(
            communicator,
            float(max(int(np.diff(layout.hub_offset).max(initial=1)) for _, layout in kinds)),
            float(max(int(kind.max(initial=0)) for kind, _ in kinds)),
        )
        shape = int(last_kind) + 1, int(most_states)
        counts = np.zeros(shape)
        for part in self.dual.loaded():
            counts += pooled_counts(part.messages.data, shape)
        communicator.add_up(counts.reshape(-1))
        for part in self.dual.loaded():
            Linearisation(part.messages).update(smoothed_log(part.messages.data, counts))


def make_dual(
    data: PackedData | PackedFolder,
    carve: Carve,
    prior: Prior,
    workers: Workers,
    *,
    consistency: bool = True,
    communicator: Communicator,
) -> Dual | StreamedDual:
    """D of data in memory or in a folder."""
    if isinstance(data, PackedFolder):
        return StreamedDual(data, carve, prior, workers, consistency=consistency, communicator=communicator)
    return Dual(data, carve(data), prior, workers, consistency=consistency, communicator=communicator)


def _capacity(layout: Layout) -> int:
    """Bytes that suffice for all that is kept of a part; what is not used takes no room on the disk."""
    states = 3 * layout.n_link_states + 4 * layout.n_hub_states
    places = 4 * layout.n_links + 2 * layout.n_clusters + 4 * layout.n_hubs + 2 * layout.n_tables
    return 8 * (states + places) + (1 << 16)
