"""Parts of the data that are kept in files, each mapped into memory while it is at work.

Multipliers, linearisation and beliefs of a part live in a file of their own and outlast a pass; scores and counts live
in buffers that the parts share. A pass holds one part in memory, and the vectors over the weights.
"""

from __future__ import annotations

from typing import Any

from bactrian.camel.entropy import Carving
from bactrian.camel.messages import Messages
from bactrian.camel.parts import Carve, HostVectors, Storage, store
from bactrian.engines.files.packed_file import MappedFile
from bactrian.engines.files.packed_folder import PackedFolder
from bactrian.engines.files.space import Buffers, FileSpace
from bactrian.engines.numba.layout import Layout
from bactrian.engines.numba.threads import Workers
from bactrian.graphs.packed import PackedData


class FilePart(Messages):
    """One chunk of a folder, with the state that outlives a pass."""

    stays = False

    def __init__(
        self,
        name: str,
        file: MappedFile,
        data: PackedData,
        carving: Carving,
        workers: Workers,
        *,
        consistency: bool,
        buffers: Buffers,
    ) -> None:
        self._file = file
        self._mapped = space = FileSpace(None, _capacity(data.layout), buffers)
        kept = Carving(space.keep(carving.cluster), space.keep(carving.hub), space.keep(carving.linearised))
        super().__init__(data, kept, workers, consistency=consistency, name=name, space=space)
        self._release()

    def __exit__(self, *error: object) -> None:
        """Give the memory of this part back."""
        self._release()

    def _release(self) -> None:
        self._file.release()
        self._mapped.release()


@store.register
def _(data: PackedFolder, carve: Carve, workers: Workers, *, consistency: bool, **_options: Any) -> Storage:
    """A part for every chunk of a folder; chunks have no fixed scores."""
    buffers = Buffers(max(chunk.widest for chunk in data.chunks))
    parts = [
        FilePart(chunk.file, file, part, carve(part), workers, consistency=consistency, buffers=buffers)
        for chunk, file, part in data.opened()
    ]
    return Storage(data, parts, HostVectors(workers), data.observed()[0], of_all_ranks=True)


def _capacity(layout: Layout) -> int:
    """Bytes that suffice for all that is kept of a part; what is not used takes no room on the disk."""
    states = 3 * layout.n_link_states + 4 * layout.n_hub_states
    places = 4 * layout.n_links + 2 * layout.n_clusters + 4 * layout.n_hubs + 2 * layout.n_tables
    return 8 * (states + places) + (1 << 16)
