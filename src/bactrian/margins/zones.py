"""Many zones with margins of the same variables, fitted on the junction tree that all share."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from bactrian.arrays import Bools, Floats, Ints
from bactrian.errors import ArgumentError, ArgumentTypeError
from bactrian.margins.fit import ContradictionWarning, MarginFit, fit_with, residuals_of, tolerance_of
from bactrian.margins.given import CheckedMargins, check_margins
from bactrian.margins.problem import FitOptions, MarginProblem, NoStateError, margin_problem
from bactrian.margins.tree import fit_together, tree_of
from bactrian.parallel.threads import Deadline, Workers, single_threaded_blas
from bactrian.solvers.solution import ConvergenceWarning

#: Zones fitted together, bytes that their vectors may take, about, and vectors of each.
_TOGETHER, _BYTES, _VECTORS = 64, 2**28, 30


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
    """Check the margins of all zones, which must have the variables of the first."""
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
        if z == 0 and any(checked[0].variables.labels):
            cardinalities = dict(zip(checked[0].variables.names, checked[0].variables.states, strict=True))
        if (checked[z].scopes, checked[z].variables) != (checked[0].scopes, checked[0].variables):
            listed = [margin.names for margin in checked[0].margins]
            raise ArgumentError("zones", f" must have the margins of zones[0] in the same order: {listed}", z)
    return checked


def fit_all_zones(
    checked: Sequence[CheckedMargins],
    entropy_weight: float | None,
    memory_budget: int,
    options: FitOptions,
    n_threads: int | None,
) -> list[MarginFit]:
    """Fit every zone on the junction tree that all share: in batches, then unfinished ones alone."""
    problems = [margin_problem(zone, entropy_weight, nearest=not zone.is_consistent) for zone in checked]
    tree = tree_of(problems[0], memory_budget, refuse=True)
    assert tree is not None
    graph, deadline = problems[0].graph(regions=False), Deadline(options.max_seconds)
    found: list[Any] = [None] * len(problems)

    def fit(zones: Ints) -> None:
        limits = replace(options, tolerance=tolerance_of(problems[zones[0]], options), max_seconds=deadline.left)
        try:
            solved = fit_together([problems[z] for z in zones], tree, limits)
        except NoStateError:
            solved = []
        for z, (solution, cells) in zip(zones, solved, strict=False):
            if solution.converged or deadline.has_passed:
                residuals = residuals_of(checked[z], problems[z].split(cells), checked[z].contradictions)
                found[z] = MarginFit(problems[z], graph, solution, "exact", cells, residuals)
        for z in zones:
            if found[z] is None:
                alone = replace(options, max_seconds=deadline.left)
                found[z] = fit_with(checked[z], tree, "exact", entropy_weight, alone)

    batches = _batches(problems)
    with single_threaded_blas():
        Workers(n_threads).run(lambda b, *_: fit(batches[b]), np.arange(len(batches) + 1))
    _warn_of_zones(found)
    return found


def _batches(problems: Sequence[MarginProblem]) -> list[Ints]:
    """Zones that are fitted together: those in which the same margins are noisy, of similar totals."""
    most = max(1, min(_TOGETHER, _BYTES // (8 * _VECTORS * max(problems[0].observed.size, 1))))
    noisy = np.stack([[problem.rounds, *(problem.precision[problem.bounds[:-1]] > 0.0)] for problem in problems])
    totals = np.array([problem.total for problem in problems])
    batches = []
    for kind in np.unique(noisy, axis=0):
        alike = np.flatnonzero((noisy == kind).all(axis=1))
        alike = alike[np.argsort(totals[alike], kind="stable")]
        batches += [alike[first : first + most] for first in range(0, alike.size, most)]
    return batches


def _warn_of_zones(found: Sequence[MarginFit]) -> None:
    short = [z for z, fit in enumerate(found) if not fit.solution.converged]
    if short:
        first = f"zones[{short[0]}]: {found[short[0]].solution.status}"
        warnings.warn(f"{len(short)} of {len(found)} zones stopped short; {first}", ConvergenceWarning, stacklevel=4)
    apart = [z for z, fit in enumerate(found) if fit.residuals.contradictions]
    if apart:
        first = f"zones[{apart[0]}]: {found[apart[0]].residuals.contradictions[0]}"
        said = f"margins of {len(apart)} of {len(found)} zones contradict each other; {first}"
        warnings.warn(said, ContradictionWarning, stacklevel=4)
