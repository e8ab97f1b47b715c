"""What the tasks of ``bactrian demo`` share: settings, and learners in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bactrian.errors import Number, check_numbers
from bactrian.learners.learn import METHODS
from bactrian.solvers.solution import Progress

#: Quasi-Newton steps of a learner at most; they need tens.
_MAX_ITERATIONS = 1000

#: Ranges of the settings of tasks.
_RULES = {
    **dict.fromkeys(("n_train", "n_test"), Number(least=1, whole=True)),
    **dict.fromkeys(("seed", "n_shown"), Number(least=0, whole=True)),
    "noise": Number(least=0, below=np.inf),
    "prior_variance": Number(positive=True, below=np.inf),
    "tolerance": Number(least=0),
    "max_seconds": Number(least=0, optional=True),
    "n_threads": Number(least=1, whole=True, optional=True),
}


@dataclass(frozen=True, kw_only=True)
class DemoSettings:
    """Settings of a task."""

    learners: tuple[str, ...]
    n_train: int
    n_test: int
    seed: int = 0
    prior_variance: float
    tolerance: float
    max_seconds: float | None = None  #: of each learner; where it strikes, figures depend on the machine
    n_threads: int | None = None

    def __post_init__(self) -> None:
        for name in self.learners:
            if name not in METHODS:
                raise ValueError(f"unknown learner {name!r}; choose from {', '.join(METHODS)}")
        if len(set(self.learners)) < len(self.learners):
            raise ValueError(f"learners must be different, found {', '.join(self.learners)}")
        check_numbers(_RULES, vars(self))

    @property
    def options(self) -> dict[str, Any]:
        """Options of :func:`bactrian.learn`."""
        names = ("prior_variance", "tolerance", "max_seconds", "n_threads", "seed")
        return {"max_iterations": _MAX_ITERATIONS, **{name: getattr(self, name) for name in names}}


@dataclass(frozen=True)
class DemoStep:
    """Where the experiment stands: ``learner`` is at work, the ``number``-th of ``total``."""

    learner: str
    number: int
    total: int
    progress: Progress | None = None  #: None when the learner begins


#: Called with the state of the experiment.
OnStep = Callable[[DemoStep], None]
Tell = Callable[[Progress], None]


def in_turn(
    names: Sequence[str], on_step: OnStep | None, warm_up: Callable[[], None]
) -> Iterator[tuple[str, list[Progress], Tell]]:
    """Each learner's name, with a callback of its learning, and the trace that this one keeps.

    ``warm_up`` comes first, so that no learner's time includes compiling.
    """
    notify = on_step or (lambda step: None)
    notify(DemoStep("compiling", 0, len(names)))
    warm_up()
    for number, name in enumerate(names, start=1):
        step, trace = DemoStep(name, number, len(names)), list[Progress]()
        notify(step)
        yield name, trace, _teller(step, trace, notify)


def _teller(step: DemoStep, trace: list[Progress], notify: OnStep) -> Tell:
    def tell(progress: Progress) -> None:
        trace.append(progress)
        notify(replace(step, progress=progress))

    return tell
