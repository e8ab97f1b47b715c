"""The circumstances of a call: threads over fixed blocks of work, and a time limit that array routines can see.

Blocks depend on the data alone, never on the number of threads, and their results are added in order; so the
numbers do not depend on how many threads there are.
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cache
from threading import TIMEOUT_MAX, Timer
from time import perf_counter
from types import TracebackType
from typing import Any

import numpy as np
from threadpoolctl import ThreadpoolController

from bactrian.arrays import Floats, Ints
from bactrian.compiling import seconds_compiling
from bactrian.errors import ArgumentError, ArgumentTypeError
from bactrian.parallel import Alone, Communicator


class Deadline:
    """So many seconds from now; as a context, ``late`` becomes true when they have passed.

    Time that goes into compiling, once on a machine, does not count: it cannot be cut short, and nothing would be done
    in the rest. A thread of its own sets the flag, since array routines hold no lock and cannot ask the clock.
    """

    def __init__(self, seconds: float | None = None) -> None:
        seconds = math.inf if seconds is None else float(seconds)
        self._end = perf_counter() + seconds - seconds_compiling()
        self.late = np.array([seconds <= 0.0])  #: (1,)
        self._timer: Timer | None = None

    @property
    def at(self) -> float:
        """When the time is up, by ``time.perf_counter``, if nothing more is compiled."""
        return self._end + seconds_compiling()

    @property
    def has_passed(self) -> bool:
        """Whether the time is up."""
        if perf_counter() >= self.at:
            self.late[0] = True
        return bool(self.late[0])

    @property
    def left(self) -> float | None:
        """Seconds that are left, or None where there is no end."""
        return None if self.at == math.inf else max(0.0, self.at - perf_counter())

    def half(self) -> Deadline:
        """Half of the time that is left, for work that others wait for."""
        return Deadline(0.5 * (self.at - perf_counter()))

    def __enter__(self) -> Deadline:
        self._look_later()
        return self

    def _look_later(self) -> None:
        left = self.at - perf_counter()
        if left < TIMEOUT_MAX and not self.has_passed:
            self._timer = Timer(left, self._look_later)
            self._timer.daemon = True
            self._timer.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Workers:
    """A pool of ``n_threads`` threads, the caller's among them; ``None`` means one per core that is available."""

    def __init__(self, n_threads: int | None = None) -> None:
        if n_threads is None:
            n_threads = available_cores()
        if not isinstance(n_threads, int | np.integer):
            raise ArgumentTypeError("n_threads", f"must be an integer, found {n_threads!r}")
        if n_threads < 1:
            raise ArgumentError("n_threads", f"must be at least 1, found {n_threads}")
        self.n_threads = int(n_threads)
        self._pool = ThreadPoolExecutor(max(self.n_threads - 1, 1))  # starts threads when they are needed

    def run(self, task: Callable[[int, int, int], object], bounds: Ints) -> None:
        """``task(block, bounds[block], bounds[block + 1])`` for every block; an error in any of them is raised.

        A thread begins with a share of its own, whose data may still be near it, and then helps others.
        """
        ends = bounds.tolist()
        todo = list(zip(range(len(ends) - 1), ends[:-1], ends[1:], strict=True))
        n = min(self.n_threads, len(todo))
        if n <= 1:
            for block in todo:
                task(*block)
            return
        shares = [deque(todo[len(todo) * k // n : len(todo) * (k + 1) // n]) for k in range(n)]

        def drain(thread: int) -> None:
            for share in shares[thread:] + shares[:thread]:
                while share:
                    try:
                        block = share.popleft() if share is shares[thread] else share.pop()
                    except IndexError:  # another thread was faster
                        break
                    task(*block)

        helpers = [self._pool.submit(drain, thread) for thread in range(1, n)]
        try:
            drain(0)
        finally:
            wait(helpers)
        for helper in helpers:
            helper.result()


@dataclass(frozen=True)
class Context:
    """Threads, ranks, time limit and callback of a call; by default one thread per core, one rank and no time limit."""

    workers: Workers = field(default_factory=Workers)
    deadline: Deadline = field(default_factory=Deadline)
    communicator: Communicator = field(default_factory=Alone)
    begun: float = field(default_factory=perf_counter)  #: zero of the clock of all runs in this context
    callback: Callable[[Any], Any] | None = None  #: called with the progress; True asks to stop


@cache
def _libraries() -> ThreadpoolController:
    """The libraries with threads of their own; looking for them takes milliseconds."""
    return ThreadpoolController()


def single_threaded_blas() -> AbstractContextManager[object]:
    """A context in which BLAS uses one thread: its own threads spin after each product and take cores from ours."""
    return _libraries().limit(limits=1, user_api="blas")


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def balanced_blocks(cost: Floats, n_blocks: int, least: float = 0.0) -> Ints:
    """Bounds of at most ``n_blocks`` contiguous blocks of about equal total cost, each of about ``least`` or more.

    >>> balanced_blocks(np.array([1.0, 1.0, 2.0, 4.0]), 2).tolist()
    [0, 3, 4]
    """
    if cost.size == 0:
        return np.zeros(1, dtype=np.int64)
    if least > 0.0:
        n_blocks = max(1, min(n_blocks, int(cost.sum() / least)))
    if n_blocks == 1 or cost.size == 1:
        return np.array([0, cost.size])
    total = np.cumsum(cost)
    targets = total[-1] * np.arange(1, n_blocks) / n_blocks
    inner = np.searchsorted(total, targets, side="left") + 1
    return np.unique(np.concatenate([[0], inner, [cost.size]])).astype(np.int64)


def blocks_of_rows(bounds: Ints, n_blocks: int, least: float) -> Ints:
    """The same for rows of entries between these bounds, which cost one each and one per row."""
    n = bounds.size - 1
    if n > 0 and bounds[n] + n < 2.0 * least:  # as quickly as can be: the rows of one sentence
        return np.array([0, n])
    return balanced_blocks(np.diff(bounds) + 1.0, n_blocks, least)
