"""Files of the UAI inference competitions: models, evidence and results.

The format is that of the UAI evaluations from 2006 to 2014 (Elidan & Globerson, *The 2010 UAI approximate
inference challenge*; Gogate, *UAI 2014 inference competition*). A model is its kind, the cardinalities, the
scopes, and then the tables, each led by its number of entries, in C order: the last variable of a scope
moves fastest. In a ``BAYES`` file that last variable is the child. White space of any kind separates the
words, and ``#`` starts a comment that runs to the end of its line.

Evidence comes in two layouts, ``k v1 s1 ... vk sk`` and the same behind a count of samples, which must be 1.
Partition functions are natural logarithms here and base-10 logarithms in a ``PR`` file.

:func:`to_model` makes a model ready for ``infer`` and ``decode``.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal, NoReturn, cast

import numpy as np
from numpy.typing import ArrayLike

from bactrian.arrays import Floats, Ints, integers
from bactrian.atomic_files import atomic_file
from bactrian.graphs.graph import ClusterGraph
from bactrian.graphs.loglinear import LogLinearModel
from bactrian.graphs.ragged import Ragged, pointer
from bactrian.inference.problem import check_free_variables

Kind = Literal["MARKOV", "BAYES"]
StrPath = str | os.PathLike[str]

_KINDS = ("MARKOV", "BAYES")
_LARGEST = 2**31  # a count beyond this is a damaged file, and must not reach the shape of an array


class UaiError(ValueError):
    """A file that is not what it should be; the message names the file, the line and the problem."""


@dataclass(frozen=True, eq=False)
class UaiModel:
    """A model as a UAI file holds it: a product of non-negative tables.

    Attributes
    ----------
    cardinalities
        (n,) number of states of each variable.
    scopes
        Variables of each table, in the order of its axes.
    tables
        Table i has shape ``tuple(cardinalities[v] for v in scopes[i])``; its entries are finite and not
        negative.
    kind
        ``"MARKOV"``, or ``"BAYES"`` where each table is the distribution of the last variable of its scope
        given the others.
    """

    cardinalities: Ints
    scopes: list[tuple[int, ...]]
    tables: list[Floats]
    kind: Kind = "MARKOV"

    def __post_init__(self) -> None:
        """Take array-likes as well as arrays, and refuse what no file could hold."""
        cards = integers(self.cardinalities, "cardinalities", least=1)
        scopes = [tuple(scope) for scope in self.scopes]
        tables = [np.asarray(table, np.float64) for table in self.tables]
        if self.kind not in _KINDS:
            raise ValueError(f"kind: expected one of {_KINDS}, found {self.kind!r}")
        if len(scopes) != len(tables):
            raise ValueError(f"tables: expected {len(scopes)}, one per scope, found {len(tables)}")
        sizes = dict(enumerate(cards.tolist()))
        for i, (scope, table) in enumerate(zip(scopes, tables, strict=True)):
            if len(set(scope)) != len(scope) or not sizes.keys() >= set(scope):
                raise ValueError(f"scopes[{i}]: expected distinct variables below {cards.size}, found {scope}")
            scopes[i] = scope = tuple(map(int, scope))
            shape = tuple([sizes[v] for v in scope])
            if table.shape != shape:
                raise ValueError(f"tables[{i}]: expected shape {shape}, found {table.shape}")
        _check_probabilities("tables", tables)
        object.__setattr__(self, "cardinalities", cards)
        object.__setattr__(self, "scopes", scopes)
        object.__setattr__(self, "tables", tables)


def read_model(path: StrPath) -> UaiModel:
    """Read a ``MARKOV`` or ``BAYES`` model; a malformed file raises :class:`UaiError`."""
    words = _Words(path)
    kind = cast(Kind, words.header(*_KINDS))
    n = words.integer("number of variables", 0)
    cards = words.integers("cardinality of variable {}", n, 1)
    n_tables = words.integer("number of tables", 0)
    scopes = [_read_scope(words, i, n) for i in range(n_tables)]
    tables = []
    for i, scope in enumerate(scopes):
        shape = [cards[v] for v in scope]
        size = math.prod(shape)
        (entries,) = words.integers("number of entries of table {}", 1, 0, number=i)
        if entries != size:
            words.fail(f"table {i}: expected {size} entries, found a count of {entries}")
        tables.append(words.numbers("table {}", size, i).reshape(shape))
    words.end(f"{n_tables} tables")
    return UaiModel(np.array(cards, np.int64), scopes, tables, kind)


def _read_scope(words: _Words, i: int, n: int) -> tuple[int, ...]:
    """Take the size and the variables of scope i."""
    (size,) = words.integers("size of scope {}", 1, 0, number=i)
    scope = tuple(words.integers("scope {}", size, 0, n, i))
    if len(set(scope)) < size:
        again = next(place for place, v in enumerate(scope) if v in scope[:place])
        words.fail(f"scope {i}: expected distinct variables, found {scope[again]} twice", words.at - size + again)
    return scope


def read_evidence(path: StrPath, cardinalities: ArrayLike | None = None) -> dict[int, int]:
    """Read evidence in either layout as ``{variable: state}``.

    With ``cardinalities`` given, variables and states out of range are refused. A file that fits both
    layouts is read as the one without a count of samples, which is that of 2014.
    """
    words = _Words(path)
    sizes = None if cardinalities is None else integers(cardinalities, "cardinalities", least=1).tolist()
    n_words = words.left
    count = words.integer("number of observations", 0)
    if n_words != 1 + 2 * count:
        if count != 1 and _are_blocks(words.rest(), count, 2):
            words.fail(f"expected evidence for one sample, found {count} samples")
        if count == 1 and n_words % 2 == 0:
            count = words.integer("number of observations", 0)
    evidence: dict[int, int] = {}
    for i in range(count):
        v = words.integer(f"variable of observation {i}", 0, _LARGEST if sizes is None else len(sizes))
        if v in evidence:
            words.fail(f"observation {i}: expected distinct variables, found {v} twice")
        evidence[v] = words.integer(f"state of variable {v}", 0, _LARGEST if sizes is None else sizes[v])
    words.end(f"{count} observations")
    return evidence


def read_marginals(path: StrPath) -> list[Floats]:
    """Read the marginal of every variable from a ``MAR`` file, with or without a leading count of samples."""
    words = _Words(path)
    words.header("MAR")
    n = words.integer("number of variables", 0)
    rest = words.rest()
    if n == 1 and not _are_blocks(rest, 1, 1) and _are_blocks(rest[1:], _whole(rest[0]) if rest else -1, 1):
        n = words.integer("number of variables", 0)
    marginals = []
    for v in range(n):
        cardinality = words.integer(f"cardinality of variable {v}", 1)
        marginals.append(words.numbers("marginal of variable {}", cardinality, v))
    words.end(f"{n} marginals")
    return marginals


def read_log_partition(path: StrPath) -> float:
    """Read log Z, to base e, from a ``PR`` file, which holds it to base 10; -inf is allowed."""
    words = _Words(path)
    words.header("PR")
    if words.left == 2 and words.rest()[0] == "1":
        words.take("count of samples")
    word = words.take("log10 of the partition function")
    value = _to_float(word)
    if not value < np.inf:
        words.fail(f"log10 of the partition function: expected a number, found {_quote(word)}")
    words.end("log10 of the partition function")
    return value * math.log(10)


def write_model(path: StrPath, model: UaiModel) -> None:
    """Write a model; numbers are written so that reading gives the same floats back."""
    lines = [model.kind, str(model.cardinalities.size), _join(model.cardinalities), str(len(model.scopes))]
    lines += [" ".join(map(str, (len(scope), *scope))) for scope in model.scopes]
    for table in model.tables:
        lines += ["", str(table.size), _join(table)]
    _replace(path, lines)


def write_evidence(path: StrPath, evidence: Mapping[int, int]) -> None:
    """Write evidence ``{variable: state}`` in the layout of 2014, without a count of samples."""
    pairs = integers([part for pair in sorted(evidence.items()) for part in pair], "evidence")
    _replace(path, [f"{len(evidence)} {_join(pairs)}".rstrip()])


def write_marginals(path: StrPath, marginals: Sequence[ArrayLike]) -> None:
    """Write the marginal of every variable as a ``MAR`` result."""
    arrays = [np.asarray(marginal, np.float64) for marginal in marginals]
    for v, array in enumerate(arrays):
        if array.ndim != 1 or array.size == 0:
            raise ValueError(f"marginals[{v}]: expected a vector of one or more, found shape {array.shape}")
    _check_probabilities("marginals", arrays)
    blocks = [f"{array.size} {_join(array)}" for array in arrays]
    _replace(path, ["MAR", " ".join([str(len(arrays)), *blocks])])


def write_log_partition(path: StrPath, log_partition: float) -> None:
    """Write log Z, given to base e, as a ``PR`` result, which holds it to base 10; -inf is allowed."""
    if not log_partition < np.inf:
        raise ValueError(f"log_partition: expected a number below infinity, found {log_partition}")
    _replace(path, ["PR", repr(float(log_partition) / math.log(10))])


def write_assignment(path: StrPath, assignment: ArrayLike) -> None:
    """Write one state per variable as an ``MPE`` result."""
    states = integers(assignment, "assignment")
    _replace(path, ["MPE", f"{states.size} {_join(states)}".rstrip()])


class _Words:
    """The words of a file and a cursor; line numbers are worked out only where there is an error."""

    def __init__(self, path: StrPath) -> None:
        self._path = os.fspath(path)
        data = Path(path).read_bytes()
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            raise UaiError(f"{self._path}, line {line}: expected text, found other bytes") from None
        if "\r" in text:
            text = text.replace("\r\n", "\n").replace("\r", "\n")
        self._text = re.sub(r"#[^\n]*", "", text) if "#" in text else text
        self._words = self._text.split()
        self.at = 0
        self._numbers = np.zeros(0)
        self._numbers_from = len(self._words)
        self._first_bad = len(self._words)

    @property
    def left(self) -> int:
        """Number of words not yet taken."""
        return len(self._words) - self.at

    def rest(self) -> list[str]:
        """Copy the words not yet taken."""
        return self._words[self.at :]

    def fail(self, problem: str, at: int | None = None) -> NoReturn:
        """Raise the error, naming the line of word ``at``, by default of the one taken last."""
        at = self.at - 1 if at is None else at
        line = seen = 0
        for content in self._text.rstrip().split("\n"):
            line += 1
            seen += len(content.split())
            if seen > at:
                break
        raise UaiError(f"{self._path}, line {line}: {problem}")

    def take(self, what: str) -> str:
        """Take the next word, which should be ``what``."""
        if not self.left:
            self.fail(f"{what}: expected a word, found the end of the file", len(self._words))
        self.at += 1
        return self._words[self.at - 1]

    def header(self, *expected: str) -> str:
        """Take the first word, which must be one of those expected."""
        word = self.take("header")
        if word not in expected:
            self.fail(f"header: expected {' or '.join(expected)}, found {_quote(word)}")
        return word

    def integer(self, what: str, lowest: int, limit: int = _LARGEST) -> int:
        """Take an integer from ``lowest`` up to but not including ``limit``."""
        word = self.take(what)
        value = _whole(word)
        if not lowest <= value < limit:
            upper = f" and below {limit}" if limit < _LARGEST or value >= limit else ""
            self.fail(f"{what}: expected an integer of at least {lowest}{upper}, found {_quote(word)}")
        return value

    def integers(
        self, what: str, count: int, lowest: int, limit: int = _LARGEST, number: int | None = None
    ) -> list[int]:
        """Take ``count`` integers; ``what`` is formatted with ``number``, or with the place of each."""
        words = self._words[self.at : self.at + count]
        joined = "".join(words)
        if len(words) == count and len(joined) < 10 * count and joined.isascii() and joined.isdigit():
            values = list(map(int, words))
            if min(values) >= lowest and max(values) < limit:
                self.at += count
                return values
        return [
            self.integer(what.format(i if number is None else number), lowest, limit) for i in range(count)
        ]  # says which is wrong

    def numbers(self, what: str, count: int, number: int) -> Floats:
        """Take ``count`` finite numbers that are not negative; ``what`` is formatted with ``number``."""
        if self.left < count:
            problem = f"{what.format(number)}: expected {count} numbers, found {self.left} before the end of the file"
            self.fail(problem, len(self._words))
        if self.at < self._numbers_from:  # all that is left is converted at once, the first time
            self._convert()
        if self._first_bad < self.at + count:
            word = _quote(self._words[self._first_bad])
            problem = f"{what.format(number)}: expected a finite number of at least 0, found {word}"
            self.fail(problem, self._first_bad)
        start = self.at - self._numbers_from
        self.at += count
        return self._numbers[start : start + count]

    def _convert(self) -> None:
        """Convert the words from the cursor on to numbers and find the first that is not acceptable."""
        words = self.rest()
        self._numbers_from = self.at
        try:
            # float() takes digits of any script, and underscores between them; a file may not have those.
            if "_" in self._text or not self._text.isascii():
                raise ValueError
            self._numbers = np.array(list(map(float, words)))
        except ValueError:
            self._numbers = np.array([_to_float(word) for word in words])
        bad = ~((self._numbers >= 0) & (self._numbers < np.inf))
        if bad.any():
            self._first_bad = self.at + int(np.argmax(bad))

    def end(self, what: str) -> None:
        """Require that nothing follows ``what``."""
        if self.left:
            word = _quote(self._words[self.at])
            self.fail(f"expected the end of the file after {what}, found {word}", self.at)


def _whole(word: str) -> int:
    """The integer that a word stands for, or -1 if it is not an integer or is negative."""
    return int(word) if word.isascii() and word.isdigit() and len(word) < 20 else -1


def _to_float(word: str) -> float:
    """The number that a word stands for, or NaN."""
    try:
        return float(word) if word.isascii() and "_" not in word else math.nan
    except ValueError:
        return math.nan


def _quote(word: str) -> str:
    """A word as an error message shows it, in one line of bounded length."""
    return repr(word if len(word) <= 40 else word[:40] + "...")


def _are_blocks(words: Sequence[str], count: int, width: int) -> bool:
    """Whether the words are exactly ``count`` blocks, each a number k and then k * width words."""
    at = 0
    for _ in range(count):
        size = _whole(words[at]) if at < len(words) else -1
        if size < 0:
            return False
        at += 1 + size * width
    return count >= 0 and at == len(words)


def _check_probabilities(name: str, arrays: Sequence[Floats]) -> None:
    """Refuse entries that are negative, infinite or NaN."""
    flat = np.concatenate([np.zeros(0), *[array.ravel() for array in arrays]])
    if not ((flat >= 0) & (flat < np.inf)).all():
        for i, array in enumerate(arrays):
            bad = np.argwhere(~((array >= 0) & (array < np.inf)))
            if bad.shape[0]:
                where = tuple(bad[0].tolist())
                raise ValueError(f"{name}[{i}]: expected finite entries of at least 0, found {array[where]} at {where}")


def _join(values: Ints | Floats) -> str:
    """Values in C order, separated by spaces, with as many digits as it takes to read them back."""
    return " ".join(map(repr, values.ravel().tolist()))


def _replace(path: StrPath, lines: Sequence[str]) -> None:
    """Write the lines to the file in one step."""
    with atomic_file(path) as stream:
        stream.write(("\n".join(lines) + "\n").encode("ascii"))


def to_model(model: UaiModel, memory_budget: int = 4 * 2**30) -> LogLinearModel:
    """The product of the tables as a model without weights, whose fixed scores are their logarithms.

    Clusters are the scopes in their order, less those of no variable; the logarithms of such constant tables are added
    to the scores of the first cluster, so that log Z and the scores of assignments count them. Where no scope holds a
    variable there is one cluster, of variable 0. ``memory_budget`` is that of :func:`bactrian.infer`.

    Raises
    ------
    ValueError
        Where there is no variable, a table of nothing but zeros, or more states than fit in the budget.

    Examples
    --------
    >>> import bactrian as bt
    >>> coin = to_model(UaiModel([2], [(0,), ()], [[1.0, 3.0], 2.0]))
    >>> result = bt.infer(coin, [], method="exact")
    >>> result.variables[0].round(6).tolist(), round(np.exp(result.log_partition).item(), 6)
    ([0.25, 0.75], 8.0)
    """
    if not model.cardinalities.size:
        raise ValueError("the model has no variables")
    check_free_variables(model.cardinalities, Ragged.of(model.scopes).values, memory_budget)
    bounds = pointer([table.size for table in model.tables])
    with np.errstate(divide="ignore"):
        every = np.log(np.concatenate([np.zeros(0), *model.tables], axis=None))
    impossible = np.flatnonzero(np.maximum.reduceat(every, bounds[:-1]) == -np.inf)
    if impossible.size:
        raise ValueError(f"table {impossible[0]} is zero everywhere: no joint state has positive probability")
    logs = [every[first:last] for first, last in pairwise(bounds.tolist())]
    kept = [i for i, scope in enumerate(model.scopes) if scope]
    scopes = [model.scopes[i] for i in kept] or [(0,)]
    scores = [logs[i] for i in kept] or [np.zeros(int(model.cardinalities[0]))]
    scores[0] = scores[0] + sum(float(logs[i][0]) for i, scope in enumerate(model.scopes) if not scope)
    features = [np.zeros((scores[0].size, 0)), *[None] * (len(scopes) - 1)]
    return LogLinearModel(ClusterGraph(model.cardinalities, scopes), features, scores)
