"""Discrete variables and the scopes of clusters over them."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import chain
from typing import SupportsIndex

import numpy as np
from numpy.typing import NDArray

from bactrian.arrays import Ints, integers, rectangular
from bactrian.graphs.ragged import Ragged


class Domain:
    """Variables ``0 .. n-1`` with their cardinalities, and clusters of variables.

    Tables of a cluster are in C order of its scope as given: the last variable changes fastest.
    """

    def __init__(self, cardinalities: Sequence[int] | NDArray[np.integer], clusters: Iterable[Sequence[int]]) -> None:
        self.cardinalities = integers(cardinalities, "cardinalities", least=1)
        if not isinstance(clusters, Iterable):
            raise TypeError(f"clusters must be a sequence of scopes, found {type(clusters).__name__}")
        given = clusters.tolist() if isinstance(clusters, np.ndarray) and clusters.ndim == 2 else list(clusters)
        self.clusters, self.scopes = self._checked_scopes(given)

    @property
    def n_variables(self) -> int:
        """Number of variables."""
        return int(self.cardinalities.size)

    def shape(self, scope: Sequence[int]) -> tuple[int, ...]:
        """Shape of a table over ``scope``."""
        return tuple(int(self.cardinalities[v]) for v in scope)

    def size(self, scope: Sequence[int]) -> int:
        """Number of joint states of ``scope``."""
        return math.prod(self.shape(scope))

    def _checked_scopes(self, given: list[Sequence[int]]) -> tuple[tuple[tuple[int, ...], ...], Ragged]:
        """The scopes as tuples and as arrays; all are looked at together, and one by one where something is wrong."""
        try:
            clusters = tuple(map(tuple, given))
            types = set(map(type, chain.from_iterable(clusters)))
            scopes = Ragged.of(clusters) if all(map(_is_whole, types)) else None
        except (TypeError, OverflowError):
            scopes = None
        if scopes is not None and not self._is_wrong(scopes):
            return clusters if types <= {int} else tuple(scopes.tuples(0, len(given))), scopes
        clusters = tuple(self.checked_scope(scope, f"clusters[{i}]") for i, scope in enumerate(given))
        return clusters, Ragged.of(clusters)

    def _is_wrong(self, scopes: Ragged) -> bool:
        """Whether a scope is empty, repeats a variable or names one that there is not."""
        values = scopes.values
        keys = np.sort(scopes.row_of_value * (self.n_variables + 1) + values)
        return bool(
            values.min(initial=0) < 0
            or values.max(initial=-1) >= self.n_variables
            or (scopes.lengths == 0).any()
            or (keys[1:] == keys[:-1]).any()
        )

    @cached_property
    def sizes(self) -> Ints:
        """(n_clusters,) number of joint states of each cluster."""
        return self.scopes.products(self.cardinalities)

    def checked_scope(self, scope: Sequence[int], name: str) -> tuple[int, ...]:
        """``scope`` as a tuple of distinct variables, or a ValueError that calls it ``name``."""
        try:
            variables = tuple(_index(v) for v in scope)
        except TypeError:
            raise TypeError(f"{name} must be a tuple of variable indices, found {scope!r}") from None
        for v in variables:
            if not 0 <= v < self.n_variables:
                raise ValueError(f"{name} = {variables} names variable {v}; variables are 0 to {self.n_variables - 1}")
        if len(set(variables)) != len(variables):
            raise ValueError(f"{name} = {variables} repeats a variable")
        if not variables:
            raise ValueError(f"{name} is empty; a scope needs at least one variable")
        return variables

    def checked_states(self, states: object, name: str, *, unknown: bool = False) -> Ints:
        """Rows of states, shape (..., n_variables), or an error that calls them ``name``; booleans are 0 and 1.

        With ``unknown``, -1 stands for a state that was not seen.
        """
        array = rectangular(states, name)
        array = array.astype(np.int64) if array.dtype.kind == "b" else array
        if array.dtype.kind not in "iu" and array.size:
            raise TypeError(f"{name} must hold integer states, found dtype {array.dtype}")
        if array.shape[-1:] != (self.n_variables,):
            raise ValueError(
                f"{name} must have {self.n_variables} states (one per variable), found shape {array.shape}"
            )
        wrong = (array < (-1 if unknown else 0)) | (array >= self.cardinalities)
        if wrong.any():
            position = tuple(int(p) for p in np.argwhere(wrong)[0])
            label = f"{name}[{', '.join(map(str, position))}]"
            if array[position] == -1:
                raise ValueError(f"{label} = -1 stands for an unknown state; every variable needs a state here")
            raise ValueError(
                f"{label} = {array[position]} is not a state of variable {position[-1]}; "
                f"its states are 0 to {self.cardinalities[position[-1]] - 1}"
            )
        return array.astype(np.int64)


def _is_whole(kind: type) -> bool:
    return issubclass(kind, int | np.integer) and not issubclass(kind, bool)


def _index(value: SupportsIndex) -> int:
    if isinstance(value, bool | np.bool_):
        raise TypeError
    return operator.index(value)


def strides(scope: Sequence[int], cardinalities: Sequence[int] | NDArray[np.integer]) -> dict[int, int]:
    """Stride of each variable in a table over ``scope``.

    >>> strides((2, 0), [2, 3, 4])
    {0: 1, 2: 2}
    """
    found: dict[int, int] = {}
    stride = 1
    for v in reversed(scope):
        found[v] = stride
        stride *= int(cardinalities[v])
    return found
