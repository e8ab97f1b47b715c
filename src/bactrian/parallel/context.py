"""Where and for how long work is done: threads, ranks, a time limit, and who is told of progress, as one argument."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from bactrian.parallel import Alone, Communicator
from bactrian.parallel.threads import Deadline, Workers


@dataclass(frozen=True)
class Context:
    """The circumstances of a call; by default one thread per core, one rank and no time limit."""

    workers: Workers = field(default_factory=Workers)
    deadline: Deadline = field(default_factory=Deadline)
    communicator: Communicator = field(default_factory=Alone)
    begun: float = field(default_factory=perf_counter)  #: zero of the clock of all runs in this context
    callback: Callable[[Any], Any] | None = None  #: called with the progress; True asks to stop
