"""Margins by name, as counts or probabilities: checked, converted to counts, and compared two by two."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from bactrian.arrays import Bools, Floats, real_numbers
from bactrian.errors import ArgumentError, ArgumentTypeError, check_flag, check_number, warn
from bactrian.frames import (
    Variables,
    column_names,
    columns_of,
    is_frame,
    plain_state,
    states_of_axes,
    word,
)
from bactrian.graphs.graph import Scope
from bactrian.graphs.regions import intersections

#: Sums of exact margins, and what two of them say of the variables they share, may differ by this part of the total.
AGREEMENT = 1e-7
#: Standard deviations by which two noisy margins must differ to be called contradictory.
_CONTRADICTION = 5.0
#: Margins whose sums are this close to 1 hold probabilities.
_ONE = 1e-6
#: Numbers lie between this and its inverse: whatever is given, so that squares stay in range; totals, with which fits
#: converge and tell contradictions from rounding; and noise, as part of the total.
_ANY, _TOTAL, _NOISE = 1e100, 1e20, 1e15
#: The size of a noisy count, in totals and its standard deviations together.
_COUNT = 1e6


class Marginal:
    """A table over some variables, for :meth:`bactrian.MarkovRandomField.fit_marginals`.

    Parameters
    ----------
    names : str or tuple of str
        The variables, one per axis of the table.
    table : array, dict or frame
        Counts, or probabilities: a table that adds up to 1 holds probabilities. The index and columns of pandas' series
        and frames are states: they are put in the order of the field's states, and name them if nothing else does. A
        dict has the count of each state, or of each tuple of states; a frame with a column for each of ``names`` has a
        row per cell and one more column, and perhaps ``stddev``. Exact cells that they do not list are 0.
    stddev : float or array, optional
        Standard deviation of the noise in each entry, in its units; None for an exact table. Only noisy tables may have
        negative entries.

    Examples
    --------
    >>> Marginal(("sex", "smoker"), [[30, 20], [10, 40]])
    Marginal(('sex', 'smoker'), 2 x 2, exact)
    """

    def __init__(self, names: str | Sequence[str], table: ArrayLike, stddev: ArrayLike | None = None) -> None:
        listed = (names,) if isinstance(names, str) or not isinstance(names, Iterable) else tuple(names)
        if not all(isinstance(name, str) for name in listed):
            raise ArgumentTypeError("names", f"must be one or more strings, found {names!r}")
        self.names: tuple[str, ...] = listed
        if not self.names or len(set(self.names)) != len(self.names):
            raise ArgumentError("names", f"must be one or more different variables, found {names!r}")
        cells = _cells_of(self.names, table)
        if cells is not None:
            table, stddev, states = _filled(self.names, *cells, stddev)
        self.table = real_numbers(table, "table")
        if self.table.ndim != len(self.names):
            raise ArgumentError("table", f"must have one axis for each of {self.names}, found shape {self.table.shape}")
        #: Of each axis, where the table says them.
        self.states: tuple[tuple[Any, ...] | None, ...] = self._checked_states(table) or (None,) * len(self.names)
        self.states, self.is_listed = (self.states if cells is None else states), cells is not None
        if not np.isfinite(self.table).all():
            raise ArgumentError("table", f"holds NaN or infinity at {first_cell(~np.isfinite(self.table))}")
        if (np.abs(self.table) > _ANY).any():
            raise ArgumentError("table", f"holds a number above {_ANY:g} at {first_cell(np.abs(self.table) > _ANY)}")
        self.stddev: Floats | None = None
        if stddev is not None:
            given = real_numbers(stddev, "stddev")
            if self._checked_states(stddev) not in ((), self.states):
                raise ArgumentError("stddev", "must have the states of the table in the same order")
            if given.ndim and given.shape != self.table.shape:
                expected = f"must be one number or have the table's shape {self.table.shape}"
                raise ArgumentError("stddev", f"{expected}, found {given.shape}")
            if not (np.isfinite(given) & (given > 0.0)).all():
                raise ArgumentError("stddev", "must be positive and finite; None stands for an exact table")
            _check_range("stddev", given, _ANY)
            self.stddev = np.broadcast_to(given, self.table.shape).copy()
        elif (self.table < 0.0).any():
            raise ArgumentError(
                "table",
                f"is exact and has a negative entry at {first_cell(self.table < 0.0)}; give stddev= where it is noisy",
            )
        if stddev is None and not self.table.sum() > 0.0:
            raise ArgumentError("table", f"must add up to more than 0, found {self.table.sum():g}")

    def __repr__(self) -> str:
        kind = "exact" if self.stddev is None else "noisy"
        return f"Marginal({self.names}, {' x '.join(map(str, self.table.shape))}, {kind})"

    def _checked_states(self, table: Any) -> tuple[tuple[Any, ...], ...]:
        """States that the axes of a table name, which are those of the variables in their order."""
        found = []
        for name, (called, states) in zip(self.names, states_of_axes(table), strict=False):
            if called != name and called in self.names:
                raise ArgumentError("table", f"has {called!r} where names has {name!r}")
            if len(set(states)) < len(states):
                raise ArgumentError("table", f"has the same state of {name!r} twice")
            found.append(states)
        return tuple(found)

    def in_order(self, variables: Variables, what: str) -> Marginal:
        """The same with its states in the order of those of the variables; 0, 1, ... are numbers of states."""
        table, stddev = self.table, self.stddev
        for axis, (name, states) in enumerate(zip(self.names, self.states, strict=True)):
            known = tuple(variables.states[variables.index(name, what)])
            if states is None or states == known or states == tuple(range(len(known))):
                continue
            if self.is_listed and stddev is None and set(states) < set(known):  # cells that are not listed are 0
                table = np.concatenate([table, np.zeros_like(table.take([0] * (len(known) - len(states)), axis))], axis)
                states = (*states, *(state for state in known if state not in states))
            if set(states) != set(known):
                expected = f"must have the states {', '.join(map(word, known))} of {name!r}"
                found = f"found {', '.join(map(word, states))}; reindex fills in those of count 0"
                raise ArgumentError(what, f"over {self.names} {expected}, {found}")
            order = [states.index(state) for state in known]
            table, stddev = table.take(order, axis), None if stddev is None else stddev.take(order, axis)
        return Marginal(self.names, table, stddev)

    @property
    def variance(self) -> Floats:
        """Of every entry; 0 where exact."""
        return np.zeros(self.table.shape) if self.stddev is None else self.stddev**2

    @property
    def holds_probabilities(self) -> bool:
        """Whether it adds up to 1, as far as its noise lets one say."""
        spread = _CONTRADICTION * float(np.sqrt(self.variance.sum()))
        return bool(spread < 0.5 and abs(self.table.sum() - 1.0) <= max(_ONE, spread))

    def scaled(self, factor: float) -> Marginal:
        """The same in other units."""
        return Marginal(self.names, factor * self.table, None if self.stddev is None else factor * self.stddev)


def _cells_of(names: tuple[str, ...], table: Any) -> tuple[list[tuple[Any, ...]], list[Any], Any] | None:
    """States and number of each cell of a dict or of a frame with a row per cell, and its noise; None for the rest."""
    if is_frame(table) and set(names) <= set(column_names(table) or ()):
        columns = {column.name: column.cells for column in columns_of(table)}
        counts = [name for name in columns if name not in (*names, "stddev")]
        if len(counts) != 1:
            raise ArgumentError("table", f"must have one column of counts besides {names}, found {counts}")
        return list(zip(*(columns[name] for name in names), strict=True)), columns[counts[0]], columns.get("stddev")
    if getattr(getattr(table, "index", None), "nlevels", 1) == len(names) > 1 == table.ndim:  # a series of pandas
        return list(table.index), list(table), None
    if isinstance(table, Mapping) and not is_frame(table):
        return [key if len(names) > 1 else (key,) for key in table], list(table.values()), None
    return None


def _filled(
    names: tuple[str, ...], cells: list[tuple[Any, ...]], numbers: list[Any], noise: Any, stddev: Any
) -> tuple[Any, Any, tuple[tuple[Any, ...], ...]]:
    """Arrays of numbers and of noise, and the states of each axis in the order in which cells name them."""
    for cell in cells:
        if not isinstance(cell, tuple) or len(cell) != len(names):
            raise ArgumentError("table", f"must have a state of each of {names} in every cell, found {cell!r}")
    plain = [tuple(map(plain_state, cell)) for cell in cells]
    if len(set(plain)) < len(plain):
        raise ArgumentError("table", f"has the cell {max(plain, key=plain.count)} twice")
    states = tuple(tuple(dict.fromkeys(axis)) for axis in zip(*plain, strict=True))
    place = tuple(
        np.array([[of.index(s) for s in axis] for of, axis in zip(states, zip(*plain, strict=True), strict=True)])
    )
    shape = tuple(map(len, states))
    table = np.zeros(shape)
    table[place] = real_numbers(numbers, "table")
    if (stddev is not None or noise is not None) and len(plain) < table.size:
        raise ArgumentError("table", f"is noisy and has {len(plain)} of {table.size} cells; expected all")
    if noise is not None:
        stddev = np.zeros(shape)
        stddev[place] = real_numbers(noise, "stddev")
    return table, stddev, states


def check_entropy_weight(weight: Any) -> None:
    """Check the weight of the entropy."""
    check_number("entropy_weight", weight, positive=True, below=np.inf, optional=True)
    if weight is not None:
        _check_range("entropy_weight", weight, _ANY)


def _check_range(argument: str, values: Any, most: float, what: str = "", item: int | None = None) -> None:
    """Check that positive numbers are between ``most`` and its inverse."""
    given = np.atleast_1d(values)
    beyond = (given < 1.0 / most) | (given > most)
    if beyond.any():
        bounds = f"must be between {1.0 / most:g} and {most:g}, found {given[beyond][0]}"
        raise ArgumentError(argument, f"{what}{bounds}", item)


def first_cell(where: Bools) -> tuple[int, ...]:
    """Index of the first cell where it is True."""
    return tuple(np.argwhere(where)[0].tolist())


@dataclass(frozen=True)
class CheckedMargins:
    """Margins in counts over numbered variables, with all else that restricts the distribution."""

    variables: Variables
    margins: tuple[Marginal, ...]
    scopes: tuple[Scope, ...]
    total: float
    base: tuple[tuple[Scope, Floats], ...]
    impossible: tuple[Bools, ...]  #: cells of each margin that cannot be
    contradictions: tuple[str, ...]
    is_consistent: bool  #: exact margins agree, two by two


def check_margins(
    margins: Any, cardinalities: Any, total: Any, base: Any, impossible: Any, *, rescale: bool = False
) -> CheckedMargins:
    """Check margins, base and impossible combinations, before any work."""
    check_flag("rescale", rescale)
    if isinstance(margins, Marginal) or not isinstance(margins, Sequence):
        raise ArgumentTypeError("margins", f"must be a list of Marginal, found {type(margins).__name__}")
    if not margins:
        raise ArgumentError("margins", "is empty; give at least one Marginal")
    for i, margin in enumerate(margins):
        if not isinstance(margin, Marginal):
            raise ArgumentTypeError("margins", f"must be a Marginal, found {type(margin).__name__}", i)
    sizes = _shapes(margins) if cardinalities is None else cardinalities
    if isinstance(sizes, Mapping):
        sizes = {name: _named_states(name, states, margins) for name, states in sizes.items()}
    variables = Variables.of(sizes)
    margins = [margin.in_order(variables, f"margins[{i}]") for i, margin in enumerate(margins)]
    scopes = [_scope_of(margin, variables, f"margins[{i}]") for i, margin in enumerate(margins)]
    in_counts, number = _in_counts(margins, total, rescale)
    tables = _checked_base(base, variables)
    told = {v for scope in (*scopes, *(scope for scope, _ in tables)) for v in scope}
    untold = [repr(name) for v, name in enumerate(variables.names) if v not in told]
    if untold:
        warn(f"cardinalities: no margin has {', '.join(untold)}, whose states will be equally likely", UserWarning)
    cells, more = _checked_impossible(impossible, variables, in_counts, scopes, tables)
    _check_base_has_mass(in_counts, scopes, tables, variables)
    words, consistent = _contradictions(in_counts, scopes, number, variables)
    return CheckedMargins(
        variables, tuple(in_counts), tuple(scopes), number, (*tables, *more), cells, tuple(words), consistent
    )


def _scope_of(margin: Marginal, variables: Variables, what: str) -> Scope:
    """The numbers of its variables, which have as many states as its table."""
    scope = variables.scope(margin.names, what)
    expected = tuple(variables.cardinalities[v] for v in scope)
    if margin.table.shape != expected:
        raise ArgumentError(what, f"over {margin.names} must have shape {expected}, found {margin.table.shape}")
    return scope


def _shapes(margins: Sequence[Marginal]) -> dict[str, int]:
    """Numbers of states by name, as the margins have them."""
    seen: dict[str, int] = {}
    for i, margin in enumerate(margins):
        for name, size in zip(margin.names, margin.table.shape, strict=True):
            if seen.setdefault(name, size) != size:
                raise ArgumentError("margins", f" has {size} states of {name!r}, an earlier margin {seen[name]}", i)
    return seen


def _named_states(name: Any, states: Any, margins: Sequence[Marginal]) -> Any:
    """States of a variable: where only their number is given, those that a margin names, unless they are numbers."""
    for margin in margins if isinstance(states, int | np.integer) else ():
        named = dict(zip(margin.names, margin.states, strict=True)).get(name)
        if named is not None and states == len(named) and set(named) != set(range(len(named))):
            return named
    return states


def _in_counts(margins: Sequence[Marginal], total: Any, rescale: bool) -> tuple[list[Marginal], float]:
    """All margins in counts, and the total: given, that of exact margins, or the best estimate from noisy ones."""
    check_number("total", total, positive=True, below=np.inf, optional=True)
    if total is not None:
        _check_range("total", total, _TOTAL)
    number = None if total is None else float(total)
    probabilities = [margin.holds_probabilities for margin in margins]
    counts = [margin for margin, is_probability in zip(margins, probabilities, strict=True) if not is_probability]
    exact = [(i, margin) for i, margin in enumerate(margins) if margin.stddev is None and not probabilities[i]]
    if number is None and exact:
        number = float(exact[0][1].table.sum())
    if number is None and counts:
        # The sum of n entries of variance s^2 has variance n s^2.
        weights = np.array([1.0 / margin.variance.sum() for margin in counts])
        number = float(weights @ [margin.table.sum() for margin in counts] / weights.sum())
        if not number > 0.0:
            raise ArgumentError("total", "must be given: the noisy margins add up to less than 0")
    number = 1.0 if number is None else number
    _check_range("margins", number, _TOTAL, ": the total that they add up to ")
    for i, margin in exact:
        if abs(margin.table.sum() - number) > AGREEMENT * number and not rescale:
            other = f"total is {number:g}" if total is not None else f"margins[{exact[0][0]}] to {number:g}"
            raise ArgumentError(
                "margins",
                f" is exact and adds up to {margin.table.sum():.10g}, but {other}; use rescale=True, give "
                "probabilities, or give stddev= where it is only known roughly",
                i,
            )
    scaled = [
        margin.scaled(number / margin.table.sum())
        if margin.stddev is None and (is_probability or rescale)
        else margin.scaled(number if is_probability else 1.0)
        for margin, is_probability in zip(margins, probabilities, strict=True)
    ]
    for i, margin in enumerate(scaled):
        if margin.stddev is not None:
            _check_range("margins", margin.stddev / number, _NOISE, ": stddev as part of the total ", i)
            far = np.abs(margin.table) > _COUNT * (number + margin.stddev)
            if far.any():
                found = f"{margin.table[far][0]:g} at {first_cell(far)}"
                raise ArgumentError("margins", f" is too far from counts in a total of {number:g}, found {found}", i)
    return scaled, number


def _checked_base(base: Any, variables: Variables) -> tuple[tuple[Scope, Floats], ...]:
    """Log tables of the seed."""
    if base is None:
        return ()
    listed = [base] if isinstance(base, Marginal) else base
    if not (isinstance(listed, Sequence) and any(isinstance(entry, Marginal) for entry in listed)):
        table = real_numbers(base, "base")
        if table.shape != variables.cardinalities:
            expected = f"must be a Marginal, a list of them, or a table of shape {variables.cardinalities}"
            raise ArgumentError("base", f"{expected}, found shape {table.shape}")
        bad = ~((table >= 0.0) & (table <= _ANY))
        if bad.any() or not table.any():
            what = f"{table[first_cell(bad)]:g} at {first_cell(bad)}" if bad.any() else "zeros alone"
            raise ArgumentError("base", f"must hold numbers from 0 to {_ANY:g}, some of them positive, found {what}")
        listed = [Marginal(variables.names, base)]
    found = []
    for i, entry in enumerate(listed):
        if not isinstance(entry, Marginal):
            raise ArgumentTypeError("base", f"must be a Marginal, found {type(entry).__name__}", i)
        margin = entry.in_order(variables, "base")
        scope = _scope_of(margin, variables, "base")
        if (margin.table < 0.0).any():
            raise ArgumentError("base", f"over {margin.names} has a negative entry at {first_cell(margin.table < 0.0)}")
        with np.errstate(divide="ignore"):
            found.append((scope, (np.log(margin.table) - np.log(margin.table.max())).ravel()))
    return tuple(found)


def _checked_impossible(
    impossible: Any,
    variables: Variables,
    margins: Sequence[Marginal],
    scopes: Sequence[Scope],
    base: Sequence[tuple[Scope, Floats]],
) -> tuple[tuple[Bools, ...], tuple[tuple[Scope, Floats], ...]]:
    """Impossible cells of each margin, and tables for those that are in none."""
    cells = [np.zeros(margin.table.shape, dtype=bool) for margin in margins]
    others: dict[Scope, Floats] = {}
    if isinstance(impossible, Mapping | str) or not isinstance(impossible, Sequence):
        raise ArgumentTypeError("impossible", f"must be a list of mappings from names to states, found {impossible!r}")
    for k, entry in enumerate(impossible):
        what = f"impossible[{k}]"
        if not isinstance(entry, Mapping) or not entry:
            raise ArgumentTypeError(what, f"must map names of variables to states, found {entry!r}")
        states = {variables.index(n, what): s for n, s in entry.items()}
        states = {v: variables.state(v, s, what) for v, s in states.items()}
        covered = False
        for i, (margin, scope) in enumerate(zip(margins, scopes, strict=True)):
            if states.keys() <= set(scope):
                index = tuple(states.get(v, slice(None)) for v in scope)
                cells[i][index] = True
                covered = True
                mass = float(margin.table[index].sum())
                if margin.stddev is None and mass > 0.0:
                    cell = variables.called(tuple(states), list(states.values()))
                    raise ArgumentError("margins", f" gives {mass:g} to {cell}, which {what} rules out", i)
        if not covered:
            scope = tuple(sorted(states))
            shape = tuple(variables.cardinalities[v] for v in scope)
            others.setdefault(scope, np.zeros(shape))[tuple(states[v] for v in scope)] = -np.inf
    for scope, table in others.items():
        if (table == -np.inf).all():
            raise ArgumentError("impossible", f"leaves no state of {[variables.names[v] for v in scope]}")
    return tuple(cells), tuple((scope, table.ravel()) for scope, table in others.items())


def _check_base_has_mass(
    margins: Sequence[Marginal], scopes: Sequence[Scope], base: Sequence[tuple[Scope, Floats]], variables: Variables
) -> None:
    """Refuse exact margins that give mass to what the base says is impossible."""
    for base_scope, table in base:
        support = np.isfinite(table).reshape([variables.cardinalities[v] for v in base_scope])
        for i, (margin, scope) in enumerate(zip(margins, scopes, strict=True)):
            common = [v for v in base_scope if v in scope]
            if margin.stddev is not None or not common:
                continue
            has_base = support.any(axis=tuple(a for a, v in enumerate(base_scope) if v not in common))
            has_mass = projected(margin.table, scope, common) > 0.0
            if (has_mass & ~has_base).any():
                cell = variables.called(tuple(common), first_cell(has_mass & ~has_base))
                raise ArgumentError("margins", f" gives mass to {cell}, where base has none", i)


def projected(table: Floats, scope: Scope, onto: Sequence[int]) -> Floats:
    """Sums over all variables but ``onto``, in that order."""
    summed = table.sum(axis=tuple(a for a, v in enumerate(scope) if v not in onto))
    left = [v for v in scope if v in onto]
    return summed.transpose([left.index(v) for v in onto])


def given_states(joint: Floats, asked: Scope, scope: Scope, evidence: Mapping[int, Any], name: str) -> Floats:
    """The marginal of some variables of a table over ``asked``, given states of others; errors say ``name``.

    Evidence may be several states, any of which a variable has.
    """
    seen = np.zeros_like(joint)
    at = np.ix_(*(np.atleast_1d(evidence.get(v, range(k))) for v, k in zip(asked, joint.shape, strict=True)))
    seen[at] = joint[at]
    if not seen.sum() > 0.0:
        raise ArgumentError(name, "has probability 0")
    return projected(seen / seen.sum(), asked, scope)


def _contradictions(
    margins: Sequence[Marginal], scopes: Sequence[Scope], total: float, variables: Variables
) -> tuple[list[str], bool]:
    """Which margins disagree on shared variables, in words; and whether all exact ones agree."""
    found: dict[tuple[int, int], str] = {}
    consistent = True
    sets = [set(scope) for scope in scopes]
    for common, around in zip(*intersections(scopes), strict=True):
        tables = np.stack([projected(margins[i].table, scopes[i], common).ravel() for i in around])
        variances = np.stack([projected(margins[i].variance, scopes[i], common).ravel() for i in around])
        least = (AGREEMENT * total) ** 2
        most = np.maximum(tables.max(axis=0) - tables, tables - tables.min(axis=0)) ** 2
        suspects = (most > np.maximum(_CONTRADICTION**2 * (variances + variances.min(axis=0)), least)).any(axis=1)
        for row in np.flatnonzero(suspects).tolist():
            i, a = around[row], margins[around[row]]
            gap = np.abs(tables - tables[row])
            variance = variances + variances[row]
            excess = gap**2 / np.maximum(_CONTRADICTION**2 * variance, least)
            for other in np.flatnonzero((excess > 1.0).any(axis=1)).tolist():
                j, b, worst = around[other], margins[around[other]], int(np.argmax(excess[other]))
                if j <= i or sets[i] & sets[j] != set(common):
                    continue
                by = f"by {gap[other, worst]:.6g}"
                if a.stddev is None and b.stddev is None:
                    consistent = False
                else:
                    by += f", {gap[other, worst] / np.sqrt(variance[other, worst]):.1f} standard deviations"
                shape = [variables.cardinalities[v] for v in common]
                cell = variables.called(common, [int(s) for s in np.unravel_index(worst, shape)])
                found[i, j] = (
                    f"margins[{i}] {a.names} and margins[{j}] {b.names} disagree {by} on {cell}: "
                    f"{tables[row, worst]:.10g} against {tables[other, worst]:.10g}"
                )
    return [found[pair] for pair in sorted(found)], consistent
