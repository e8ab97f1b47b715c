"""Many zones at once: margins of the same variables, fitted on the junction tree that all share."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from bactrian.arrays import Bools, Floats
from bactrian.engines.numba.threads import Workers, single_threaded_blas
from bactrian.errors import ArgumentError, ArgumentTypeError
from bactrian.estimators.margin_fits import (
    ContradictionWarning,
    MarginFit,
    fit_with,
    margin_problem,
    residuals_of,
    tolerance_of,
)
from bactrian.estimators.marginals import CheckedMargins, check_margins
from bactrian.learners.margins import FitOptions, fit_side_by_side, tree_of
from bactrian.solvers.solution import ConvergenceWarning


class Zones(Sequence[Any]):
    """Fitted fields of all zones; ``zones[z]`` makes the field of one.

    ``marginal(names)`` has the probabilities of all zones, the first axis being the zones. ``totals``, ``converged``
    and ``contradictions`` (by zone) say how the fits ended.
    """

    def __init__(
        self, checked: Sequence[CheckedMargins], found: Sequence[MarginFit], make: Callable[[int], Any]
    ) -> None:
        self._checked, self._found, self._make = checked, found, make

    def __len__(self) -> int:
        return len(self._found)

    def __getitem__(self, zone):  # type: ignore[no-untyped-def]
        if isinstance(zone, slice):
            return [self[z] for z in range(*zone.indices(len(self)))]
        return self._make(range(len(self))[zone])

    def __iter__(self) -> Iterator[Any]:
        return (self[z] for z in range(len(self)))

    def __repr__(self) -> str:
        return f"Zones({len(self)} zones, {int(self.converged.sum())} converged)"

    @property
    def totals(self) -> Floats:
        """(n_zones,) rows of each zone."""
        return np.array([checked.total for checked in self._checked])

    @property
    def converged(self) -> Bools:
        """(n_zones,) whether each fit reached its tolerance."""
        return np.array([found.solution.converged for found in self._found], dtype=np.bool_)

    @property
    def contradictions(self) -> dict[int, tuple[str, ...]]:
        """What contradicts what, for zones where anything does."""
        return {
            z: found.residuals.contradictions for z, found in enumerate(self._found) if found.residuals.contradictions
        }

    def marginal(self, names: Any) -> Floats:
        """Joint marginals of some variables in every zone, shape (n_zones, ...)."""
        return np.stack([field.marginal(names) for field in self])


def check_zones(zones: Any, cardinalities: Any, base: Any, impossible: Any) -> list[CheckedMargins]:
    """Refuse zones of which one makes no sense, or has other margins than the first."""
    if isinstance(zones, str) or not isinstance(zones, Sequence):
        raise ArgumentTypeError("zones", f"must be a list with the margins of each zone, found {type(zones).__name__}")
    if not zones:
        raise ArgumentError("zones", "is empty; give at least one zone")
    checked: list[CheckedMargins] = []
    for z, margins in enumerate(zones):
        try:
            checked.append(check_margins(margins, cardinalities, None, base, impossible))
        except ArgumentError as problem:
            kind = ArgumentTypeError if isinstance(problem, TypeError) else ArgumentError
            raise kind("zones", f": {problem}", z) from None
        if (checked[z].scopes, checked[z].variables) != (checked[0].scopes, checked[0].variables):
            listed = [margin.names for margin in checked[0].margins]
            raise ArgumentError("zones", f" must have the margins of zones[0] in the same order: {listed}", z)
    return checked


def fit_all(
    checked: Sequence[CheckedMargins],
    entropy_weight: float | None,
    memory_budget: int,
    options: FitOptions,
    n_threads: int | None,
) -> list[MarginFit]:
    """Fit every zone on the junction tree that all share; zones that contradict themselves by themselves."""
    problems = [margin_problem(zone, entropy_weight, nearest=not zone.is_consistent) for zone in checked]
    tree = tree_of(problems[0], memory_budget, refuse=True)
    assert tree is not None
    tolerances = np.array([tolerance_of(problem, options) for problem in problems])
    graph = problems[0].graph(regions=False)
    with single_threaded_blas():
        solved = fit_side_by_side(problems, tree, tolerances, options, Workers(n_threads))
    found = []
    for zone, problem, done in zip(checked, problems, solved, strict=True):
        if done is None:
            found.append(fit_with(zone, tree, "exact", entropy_weight, options))
        else:
            residuals = residuals_of(zone, problem.split(done[1]), zone.contradictions)
            found.append(MarginFit(problem, graph, done[0], "exact", done[1], residuals))
    _warn(found)
    return found


def _warn(found: Sequence[MarginFit]) -> None:
    short = [z for z, fit in enumerate(found) if not fit.solution.converged]
    if short:
        first = f"zones[{short[0]}]: {found[short[0]].solution.status}"
        warnings.warn(f"{len(short)} of {len(found)} zones stopped short; {first}", ConvergenceWarning, stacklevel=4)
    apart = [z for z, fit in enumerate(found) if fit.residuals.contradictions]
    if apart:
        first = f"zones[{apart[0]}]: {found[apart[0]].residuals.contradictions[0]}"
        said = f"margins of {len(apart)} of {len(found)} zones contradict each other; {first}"
        warnings.warn(said, ContradictionWarning, stacklevel=4)
