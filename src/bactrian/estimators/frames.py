"""Variables and their states as people call them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bactrian.arrays import Ints
from bactrian.errors import ArgumentError, ArgumentTypeError
from bactrian.graphs.graph import Scope


@dataclass(frozen=True)
class Variables:
    """Names, numbers of states and, where they were given, labels of states."""

    names: tuple[Any, ...]
    cardinalities: tuple[int, ...]
    labels: tuple[tuple[Any, ...] | None, ...]

    @staticmethod
    def of(cardinalities: Any) -> Variables:
        """From a mapping of names to numbers or lists of states."""
        if not isinstance(cardinalities, Mapping) or not cardinalities:
            expected = "must map names of variables to numbers of states or lists of their labels"
            raise ArgumentTypeError("cardinalities", f"{expected}, found {cardinalities!r}")
        sizes: list[int] = []
        labels: list[tuple[Any, ...] | None] = []
        for name, states in cardinalities.items():
            if isinstance(states, int | np.integer) and not isinstance(states, bool):
                if states < 1:
                    raise ArgumentError("cardinalities", f"[{name!r}] must be at least 1, found {states}")
                sizes.append(int(states))
                labels.append(None)
                continue
            listed = () if isinstance(states, str) else tuple(states)
            if not listed or len(set(listed)) != len(listed):
                raise ArgumentError("cardinalities", f"[{name!r}] must be a number or different labels: {states!r}")
            sizes.append(len(listed))
            labels.append(listed)
        return Variables(tuple(cardinalities), tuple(sizes), tuple(labels))

    @staticmethod
    def numbered(cardinalities: Ints, names: Iterable[str] | None = None) -> Variables:
        """Variables whose states are numbers, and which are numbers themselves where they have no names."""
        sizes = tuple(cardinalities.tolist())
        return Variables(tuple(range(len(sizes)) if names is None else names), sizes, (None,) * len(sizes))

    @property
    def are_named(self) -> bool:
        """Whether they have names and not only numbers."""
        return all(isinstance(name, str) for name in self.names)

    def index(self, name: Any, what: str) -> int:
        """The number of a variable, given by its name."""
        if name not in self.names:
            raise ArgumentError(
                what, f": there is no variable {name!r}; the variables are {', '.join(map(str, self.names))}"
            )
        return self.names.index(name)

    def scope(self, names: Sequence[Any], what: str) -> Scope:
        """The numbers of variables."""
        return tuple(self.index(name, what) for name in names)

    def state(self, variable: int, state: Any, what: str) -> int:
        """The number of a state, given by its label where there are labels."""
        labels, name = self.labels[variable], self.names[variable]
        if labels is not None:
            if state not in labels:
                raise ArgumentError(what, f": {name!r} has no state {state!r}, only {', '.join(map(str, labels))}")
            return labels.index(state)
        if isinstance(state, bool) or not isinstance(state, int | np.integer):
            raise ArgumentTypeError(what, f": states of {name!r} are integers, found {state!r}")
        if not 0 <= state < self.cardinalities[variable]:
            raise ArgumentError(what, f": {name!r} has states 0 to {self.cardinalities[variable] - 1}, found {state}")
        return int(state)

    def called(self, scope: Scope, states: Sequence[int]) -> str:
        """Such as ``sex=f, age=3``."""
        pairs = []
        for v, state in zip(scope, states, strict=True):
            labels = self.labels[v]
            pairs.append(f"{self.names[v]}={labels[state] if labels else state}")
        return ", ".join(pairs)
