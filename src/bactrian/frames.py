"""Variables and their states as people call them: data frames of words outside, codes inside.

A frame is one of pandas or polars, read through narwhals, or a :class:`Table` of plain lists. A column holds strings,
booleans, whole numbers (as floats where cells are missing), or categories of anything, each called by its words. None,
NaN and NA are missing cells; where they are no states, so are -1 and the empty string. -1 is a state where it is
declared, or where other states are negative; beside a single other state it is refused, and beside several it is a
missing cell, with a warning.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import narwhals.stable.v2 as nw
import numpy as np
from narwhals.stable.v2 import dependencies as libraries

from bactrian.arrays import Ints, check_minus_one, is_missing, is_unknown, rectangular
from bactrian.errors import ArgumentError, ArgumentTypeError, check_count, warn
from bactrian.graphs.graph import Scope

#: Kinds of states, in words. In Python booleans are integers, so they come first.
_KINDS: dict[Any, str] = {
    str: "strings",
    bool | np.bool_: "booleans",
    int | np.integer: "whole numbers",
    float | np.floating: "whole numbers",
}
_PLAIN = (str, bool, int, float)
#: States that an error lists.
_LISTED = 12
_UNSEEN = -2
#: Kinds of frames that can be made.
FRAMES = ("pandas", "polars", "table")


class Table(dict[Any, list[Any]]):
    """Columns of plain lists by name: a frame for those who have neither pandas nor polars.

    Examples
    --------
    >>> Table(smoker=["yes", None], age=[30, 50]).columns
    ['smoker', 'age']
    """

    @property
    def columns(self) -> list[Any]:
        """Names of the columns."""
        return list(self)


def is_frame(X: Any) -> bool:
    """Whether X has named columns."""
    return isinstance(X, Table) or libraries.is_into_dataframe(X) or libraries.is_polars_lazyframe(X)


def column_names(X: Any) -> list[str] | None:
    """Names of the columns of a data frame, where all are strings."""
    names = list(getattr(X, "columns", ()))
    return names if names and all(isinstance(name, str) for name in names) else None


def places(names: Sequence[str], expected: Sequence[str]) -> list[int]:
    """Where the columns of fit are among those of a table; others are refused."""
    for name in names:
        if name not in expected:
            raise ValueError(f"X has a column {name!r}, which fit did not have; expected {', '.join(expected)}")
    for name in expected:
        if name not in names:
            raise ValueError(f"X has no column {name!r}, which fit had")
    return [names.index(name) for name in expected]


def kind_of_frame(X: Any) -> str:
    """The library that makes frames like X; ``"table"`` for a :class:`Table`."""
    if isinstance(X, Table):
        return "table"
    return "polars" if libraries.is_polars_dataframe(X) else "pandas"


def installed_kind() -> str:
    """A kind of frame for which there is a library."""
    return next((kind for kind in FRAMES[:-1] if importlib.util.find_spec(kind) is not None), FRAMES[-1])


def make_frame(kind: str, columns: Mapping[Any, Any], like: Any = None) -> Any:
    """A frame of the kind, with the index of a frame that it is ``like`` where that has one."""
    if kind == "table":
        return Table({name: np.asarray(values, dtype=object).tolist() for name, values in columns.items()})
    index = {"index": like.index} if kind == "pandas" and hasattr(like, "index") else {}
    return _library(kind).DataFrame(columns, **index)


def _library(kind: str) -> Any:
    try:
        return importlib.import_module(kind)
    except ImportError:
        raise ImportError(f"this data frame needs {kind}: pip install {kind}") from None


@dataclass(frozen=True)
class Column:
    """Cells of a frame's column, and its states where the frame declares them."""

    name: Any
    cells: list[Any]
    categories: tuple[Any, ...] | None = None
    ordered: bool | None = None  #: whether categories have an order; None where there are none

    def labels(self, given: Any = None) -> tuple[Any, ...]:
        """Its states: those given, those declared, or those seen, sorted."""
        if self.categories is not None and given is None:
            return self.categories
        try:
            found = {cell for cell in set(self.cells) if not is_missing(cell)}
        except TypeError:
            raise TypeError(f"X: column {self.name!r} holds values that cannot be states, such as lists") from None
        for cell in found:
            if not isinstance(cell.item() if isinstance(cell, np.generic) else cell, _PLAIN):
                raise TypeError(
                    f"X: column {self.name!r} holds {cell!r}, which is not a string, boolean or integer; put times "
                    "into bins, and make strings or categories of other values"
                )
        if given is not None:
            return tuple(range(given)) if isinstance(given, int | np.integer) else tuple(map(plain_state, given))
        cells = set(map(plain_state, found))
        seen = {cell for cell in cells if not is_unknown(cell)}
        kinds = {next(words for kind, words in _KINDS.items() if isinstance(state, kind)) for state in seen}
        if len(kinds) > 1:
            raise TypeError(
                f"X: column {self.name!r} mixes {' and '.join(sorted(kinds))}; its states must be of one kind"
            )
        if not kinds:
            raise ValueError(
                f"X: column {self.name!r} has no observed state; leave it out, give its states with "
                "cardinalities=, or make it a variable of hidden="
            )
        for state in seen:
            if isinstance(state, float) and not state.is_integer():
                raise TypeError(
                    f"X: column {self.name!r} holds {state:g}, a measurement; put it into bins, as pandas.cut does"
                )
        if kinds == {"booleans"}:
            return (False, True)
        if -1 in cells and kinds == {"whole numbers"}:
            if min(seen) < 0:
                return tuple(sorted({*seen, -1}))
            check_minus_one([[-1]], seen, f"X: column {self.name!r}", "None or NaN, or name the states: cardinalities=")
            states = [-1, *sorted(seen)]
            warn(
                f"X: column {self.name!r} holds -1, which counts as a missing cell; if it is a state, give "
                f"cardinalities={{{self.name!r}: {states if len(states) <= _LISTED else '[-1, ...]'}}}; if it "
                "is missing, use None to avoid this warning",
                UserWarning,
            )
        return tuple(sorted(seen))

    def codes(self, labels: Sequence[Any]) -> Ints:
        """Numbers of its states, -1 for missing cells; a state that is not a label is refused."""
        known: dict[Any, int] = {label: k for k, label in enumerate(labels)}
        try:
            codes = np.array([known.get(cell, _UNSEEN) for cell in self.cells], dtype=np.int64)
        except TypeError:
            raise TypeError(f"X: column {self.name!r} holds values that cannot be states, such as lists") from None
        for row in np.flatnonzero(codes == _UNSEEN).tolist():
            cell = self.cells[row]
            codes[row] = -1 if is_unknown(cell) else known.get(plain_state(cell), _UNSEEN)
            if codes[row] == _UNSEEN:
                listed = ", ".join(map(repr, labels[:_LISTED])) + (", ..." if len(labels) > _LISTED else "")
                raise ValueError(
                    f"X: column {self.name!r} has {plain_state(cell)!r}, which is not one of its states: {listed}"
                )
        return codes


def columns_of(X: Any) -> list[Column]:
    """The columns of a frame; those of an array are numbered."""
    if not is_frame(X):
        rows = rectangular(X, "X")
        if rows.ndim != 2:
            raise ValueError(f"X must have shape (n_samples, n_variables), found {rows.shape}")
        cells = np.asarray(X, dtype=object)  # or NumPy makes strings of numbers among them
        return [Column(v, cells[:, v].tolist()) for v in range(rows.shape[1])]
    if libraries.is_polars_lazyframe(X):
        raise TypeError(f"X is a {type(X).__name__}, which is not computed yet; give X.collect()")
    if not (isinstance(X, Table) or libraries.is_pandas_like_dataframe(X) or libraries.is_polars_dataframe(X)):
        raise TypeError(f"X is a {type(X).__module__} {type(X).__name__}; give X.to_pandas()")
    names, named = list(X.columns), column_names(X) is not None
    if len(set(names)) < len(names):
        raise ValueError(f"X has two columns {max(names, key=names.count)!r}")
    if not named and names != list(range(len(names))):
        raise ValueError(
            f"X must have columns whose names are strings, or 0 to {len(names) - 1} in this order, found "
            f"{', '.join(map(repr, names[:_LISTED]))}; X.columns = list(map(str, X.columns)) makes strings of them"
        )
    if isinstance(X, Table):
        return [Column(name if named else v, cells) for v, (name, cells) in enumerate(X.items())]
    columns = nw.from_native(X, eager_only=True).iter_columns()
    return [_column(name if named else v, column) for v, (name, column) in enumerate(zip(names, columns, strict=True))]


def _column(name: Any, given: nw.Series[Any]) -> Column:
    if given.dtype not in (nw.Categorical, nw.Enum):
        return Column(name, given.to_list())
    if not given.implementation.is_pandas_like():  # polars' Categorical lists whatever other columns have, too
        declared = tuple(given.dtype.categories) if isinstance(given.dtype, nw.Enum) else None
        return Column(name, given.to_list(), declared, None if declared is None else True)
    own = given.to_native().cat  # narwhals makes strings of numbers, and pandas lists intervals otherwise beside NaN
    categories = tuple(map(plain_state, own.categories.to_list()))
    cells = [None if code < 0 else categories[code] for code in own.codes.to_list()]
    return Column(name, cells, categories, bool(own.ordered))


def states_of_axes(table: Any) -> tuple[tuple[Any, tuple[Any, ...]], ...]:
    """Name and labels of each axis of pandas' frames and series; nothing for a table that has no labels.

    Examples
    --------
    >>> states_of_axes([[1, 2]])
    ()
    """
    if not hasattr(table, "iloc"):
        return ()
    axes = (table.index, table.columns) if table.ndim == 2 else (table.index,)
    return tuple((axis.name, tuple(map(plain_state, axis.to_list()))) for axis in axes)


def labelled_table(table: Any, names: Sequence[Any], labels: Sequence[Sequence[Any] | None]) -> Any:
    """A table of one or two variables as a series or frame of pandas with the states on its axes.

    The table itself where states have no labels, where pandas is not there, and where there are more axes.
    """
    if not any(labels) or table.ndim > 2 or installed_kind() != "pandas":
        return table
    pandas = _library("pandas")
    states = [range(k) if of is None else of for of, k in zip(labels, table.shape, strict=True)]
    if table.ndim == 2:
        rows, columns = (pandas.Index(of, name=name) for of, name in zip(states, names, strict=True))
        return pandas.DataFrame(table, rows, columns)
    return pandas.Series(table, pandas.Index(states[0], name=names[0]))


def has_names(edges: Any) -> bool:
    """Whether edges are pairs of variables of which some are given by name."""
    if isinstance(edges, str) or not isinstance(edges, Sequence | np.ndarray):
        return False
    pairs = [tuple(pair) for pair in edges if isinstance(pair, list | tuple | np.ndarray) and len(pair) == 2]
    return len(pairs) == len(edges) and any(isinstance(name, str) for pair in pairs for name in pair)


def word(state: Any) -> str:
    """A state as it is written; whole numbers without a point."""
    return repr(float(state)).removesuffix(".0") if isinstance(state, float) else str(state)


def plain_state(state: Any) -> Any:
    """A state as Python's own string, boolean or number; in words where it is something else, as intervals are."""
    if isinstance(state, np.generic):
        state = state.item()
    return state if isinstance(state, _PLAIN) else str(state)


@dataclass(frozen=True)
class Variables:
    """Names, numbers of states and, where they were given, labels of states."""

    names: tuple[Any, ...]
    cardinalities: tuple[int, ...]
    labels: tuple[tuple[Any, ...] | None, ...]
    ordered: tuple[bool | None, ...] = ()  #: of variables that were categories, whether these have an order
    n_hidden: int = 0  #: how many of them, the last ones, no table has a column of

    @staticmethod
    def of(cardinalities: Any, what: str = "cardinalities") -> Variables:
        """From a mapping of names to numbers or lists of states."""
        if not isinstance(cardinalities, Mapping) or not cardinalities:
            expected = "must map names of variables to numbers of states or lists of their labels"
            raise ArgumentTypeError(what, f"{expected}, found {cardinalities!r}")
        sizes: list[int] = []
        labels: list[tuple[Any, ...] | None] = []
        for name, states in cardinalities.items():
            if isinstance(states, int | np.integer) and not isinstance(states, bool):
                if states < 1:
                    raise ArgumentError(what, f"[{name!r}] must be at least 1, found {states}")
                sizes.append(int(states))
                labels.append(None)
                continue
            listed = tuple(states) if isinstance(states, Iterable) and not isinstance(states, str) else ()
            if not listed or len(set(listed)) != len(listed):
                raise ArgumentError(what, f"[{name!r}] must be a number or different labels: {states!r}")
            sizes.append(len(listed))
            labels.append(listed)
        return Variables(tuple(cardinalities), tuple(sizes), tuple(labels))

    @staticmethod
    def numbered(cardinalities: Ints, names: Iterable[str] | None = None) -> Variables:
        """Variables whose states are numbers, and which are numbers themselves where they have no names."""
        sizes = tuple(cardinalities.tolist())
        return Variables(tuple(range(len(sizes)) if names is None else names), sizes, (None,) * len(sizes))

    @staticmethod
    def of_columns(columns: Sequence[Column], cardinalities: Any = None, *, alike: bool = False) -> Variables:
        """The variables of a frame; their states are given, declared or seen, and those of all where ``alike``."""
        names = [column.name for column in columns]
        if cardinalities is None or isinstance(cardinalities, Mapping):
            given = dict(cardinalities or {})
        else:
            numbers = np.broadcast_to(cardinalities, len(names)) if np.ndim(cardinalities) == 0 else cardinalities
            check_count("cardinalities", len(numbers), len(names), "entry per variable")
            given = dict(zip(names, np.asarray(numbers).tolist(), strict=True))
        for name in given:
            if name not in names:
                raise ArgumentError("cardinalities", f": there is no column {name!r} in X")
        labels = [column.labels(given.get(column.name)) for column in columns]
        for column, of in zip(columns, labels, strict=True):
            if column.name not in given and column.categories is None and len(of) > max(_LISTED, len(column.cells) / 2):
                warn(
                    f"X: column {column.name!r} has {len(of)} states in {len(column.cells)} rows: leave out "
                    "identifiers, and put times and measurements into bins, as pandas.cut does",
                    UserWarning,
                )
        for name, of in zip(names, labels, strict=True):
            words = list(map(word, of))
            if len(set(words)) < len(words):
                raise ValueError(f"X: column {name!r} has two states that are written {max(words, key=words.count)}")
        if alike and len(set(labels)) > 1:
            every = {label for of in labels for label in of}
            try:
                labels = [tuple(sorted(every))] * len(labels)
            except TypeError:
                raise ValueError("tables that variables share need columns with the same states") from None
        sizes = tuple(map(len, labels))
        return Variables(tuple(names), sizes, tuple(labels), tuple(column.ordered for column in columns))

    def with_hidden(self, hidden: Any) -> Variables:
        """These and variables that no table has a column of, with their numbers or lists of states."""
        more = Variables.of(hidden, "hidden")
        for name in more.names:
            if name in self.names:
                raise ArgumentError("hidden", f" has {name!r}, which is a column of X")
        ordered = (*(self.ordered or (None,) * len(self.names)), *(None,) * len(more.names))
        sizes, labels = self.cardinalities + more.cardinalities, self.labels + more.labels
        return Variables(self.names + more.names, sizes, labels, ordered, len(more.names))

    @property
    def seen(self) -> Variables:
        """Those that tables have columns of."""
        n = len(self.names) - self.n_hidden
        return Variables(self.names[:n], self.cardinalities[:n], self.labels[:n], self.ordered[:n])

    @property
    def are_ordered(self) -> tuple[bool, ...]:
        """Whether the states of each have an order: ordered categories, and numbers."""
        ordered = self.ordered or (None,) * len(self.names)
        return tuple(
            of if of is not None else all(isinstance(s, int | float) and not isinstance(s, bool) for s in states)
            for of, states in zip(ordered, self.states, strict=True)
        )

    @property
    def states(self) -> tuple[Sequence[Any], ...]:
        """What the states of each variable are called: labels, or else numbers."""
        return tuple(labels or range(k) for labels, k in zip(self.labels, self.cardinalities, strict=True))

    def codes(self, columns: Sequence[Column]) -> Ints:
        """Rows of a frame, a column for each variable, as numbers of states; -1 for missing cells."""
        return np.stack([column.codes(of) for column, of in zip(columns, self.states, strict=True)], axis=1)

    def cells(self, v: int, codes: Ints, kind: str) -> Any:
        """A column of a frame of the kind, from numbers of states."""
        labels = self.labels[v]
        if labels is None:
            return codes
        words = [labels[code] for code in codes.tolist()]
        ordered = self.ordered[v] if self.ordered else None
        if ordered is None or kind == "table":
            return words
        if kind == "pandas":
            return _library(kind).Categorical.from_codes(codes, labels, ordered=ordered)
        return _library(kind).Series(list(map(word, words)), dtype=_library(kind).Enum(list(map(word, labels))))

    def frame(self, scope: Iterable[int], codes: Ints, kind: str, like: Any = None, **more: Any) -> Any:
        """A frame of some variables, from (n, n_variables) numbers of states; more columns come behind."""
        columns = {self.names[v]: self.cells(v, codes[:, i], kind) for i, v in enumerate(scope)}
        for name, values in more.items():
            columns[f"{name}_" if name in columns else name] = values
        return make_frame(kind, columns, like)

    def words(self, scope: Iterable[int]) -> list[Any]:
        """States of variables, one after the other; as strings where they are of several kinds."""
        states = [state for v in scope for state in self.states[v]]
        kinds = {next(kind for kind in _KINDS if isinstance(state, kind)) for state in states}
        return states if len(kinds) == 1 else list(map(word, states))

    def evidence(self, given: Any, what: str) -> Any:
        """Numbers of states by number of variable: by name with the state's label, or by number with its number."""
        if not isinstance(given, Mapping):
            return given
        found = {}
        for name, state in given.items():
            if isinstance(name, str) or (name in self.names and self.labels[self.names.index(name)] is not None):
                v = self.index(name, what)
                found[v] = self.state(v, state, what)
            else:
                found[name] = state
        return found

    def edges(self, given: Any) -> Any:
        """Pairs of variables by number, where they are given by name."""
        if not has_names(given):
            return given
        return [[self.index(name, "edges") if isinstance(name, str) else name for name in pair] for pair in given]

    @property
    def are_named(self) -> bool:
        """Whether all have names and not only numbers."""
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
            state = state if state in labels else plain_state(state)
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
        pairs = zip(scope, states, strict=True)
        return ", ".join(f"{self.names[v]}={word(self.states[v][state])}" for v, state in pairs)


def restored_variables(cardinalities: Ints, attributes: Mapping[str, Any]) -> Variables:
    """Variables as a model's file has them, checked; older files have no labels, or those of margins apart."""
    n, names = cardinalities.size, attributes["feature_names"]
    labels = attributes.get("labels", attributes.get("margins", {}).get("labels", [None] * n))
    found = Variables(
        tuple(range(n) if names is None else names),
        tuple(cardinalities.tolist()),
        tuple(None if of is None else tuple(of) for of in labels),
        tuple(attributes.get("ordered", ())),
        int(attributes.get("n_hidden", 0)),
    )
    if not (0 <= found.n_hidden < n and all(isinstance(name, str) for name in found.names[n - found.n_hidden :])):
        raise ValueError("its hidden variables do not fit its variables")
    if not len(found.names) == len(found.labels) == n or len(found.ordered) not in (0, n):
        raise ValueError("its names do not fit its variables")
    for k, of in zip(found.cardinalities, found.labels, strict=True):
        if of is not None and not (len(of) == k == len(set(of)) and all(isinstance(s, _PLAIN) for s in of)):
            raise ValueError("its labels do not fit its states")
    return found
