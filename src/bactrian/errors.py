"""Errors that know the argument they are about, so that a command can name its option instead; and warnings."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import numpy as np

Kept = TypeVar("Kept")


class ArgumentError(ValueError):
    """Bad input.

    Attributes
    ----------
    argument : str
        Name of the argument, or with dots of a setting: ``input.encoding``.
    problem : str
        The message without that name: ``must be positive, found 0``.
    item : int or None
        Index of the bad item, where the argument is a list.

    Examples
    --------
    >>> error = ArgumentError("n_threads", "must be at least 1, found 0")
    >>> print(error)
    n_threads must be at least 1, found 0
    >>> error.said_of("--threads")
    '--threads must be at least 1, found 0'
    """

    def __init__(self, argument: str, problem: str, item: int | None = None) -> None:
        super().__init__(argument, problem, item)
        self.argument, self.problem, self.item = argument, problem, item

    def __str__(self) -> str:
        return self.said_of(self.argument if self.item is None else f"{self.argument}[{self.item}]")

    def said_of(self, name: str) -> str:
        """The message with another name of the argument."""
        apart = "" if self.problem.startswith((":", "[", " ")) else " "
        return f"{name}{apart}{self.problem}"


class ArgumentTypeError(ArgumentError, TypeError):
    """Bad input of the wrong type."""


@contextmanager
def about(argument: str, item: int) -> Iterator[None]:
    """Put the argument and the index of its bad item in front of error messages."""
    try:
        yield
    except (TypeError, ValueError) as error:
        kind = ArgumentTypeError if isinstance(error, TypeError) else ArgumentError
        raise kind(argument, str(error), item) from None


def keeper(table: dict[str, Kept], name: object, own: Collection[str] = ()) -> Callable[[Kept], Kept]:
    """A decorator that registers a user's object in ``table``; the library's ``own`` names are refused."""
    if not isinstance(name, str) or not name or name in own:
        kind = ArgumentError if isinstance(name, str) else ArgumentTypeError
        wanted = f"other than {', '.join(own)}" if own else "that is not empty"
        raise kind("name", f"must be a string {wanted}, found {name!r}")

    def keep(item: Kept) -> Kept:
        table[name] = item
        return item

    return keep


def check_choice(argument: str, value: object, choices: Collection[str]) -> None:
    """Check that ``value`` is one of the ``choices``."""
    if not isinstance(value, str) or value not in choices:
        raise ArgumentError(argument, f"must be one of {', '.join(choices)}, found {value!r}")


class Number(NamedTuple):
    """The range of an option that is a number; NaN is refused."""

    least: float = -np.inf
    positive: bool = False  #: more than 0
    below: float | None = None
    whole: bool = False
    optional: bool = False  #: None is allowed

    def check(self, argument: str, value: object) -> None:
        """Raise an error for a value outside the range."""
        if value is None and self.optional:
            return
        kinds = int | np.integer if self.whole else int | float | np.integer | np.floating
        if isinstance(value, bool) or not isinstance(value, kinds):
            raise ArgumentTypeError(argument, f"must be {'an integer' if self.whole else 'a number'}, found {value!r}")
        large = value > 0 if self.positive else value >= self.least
        if not large or not (self.below is None or value < self.below):
            lower = "positive" if self.positive else f"at least {self.least}"
            upper = "" if self.below is None else " and finite" if self.below == np.inf else f" and below {self.below}"
            raise ArgumentError(argument, f"must be {lower}{upper}, found {value}")


def check_numbers(rules: Mapping[str, Number], given: Mapping[str, object]) -> None:
    """Check the options that have a rule."""
    for name, rule in rules.items():
        if name in given:
            rule.check(name, given[name])


def check_number(argument: str, value: object, **rule: Any) -> None:
    """Check a number; ``rule`` as in :class:`Number`.

    >>> check_number("damping", 1.5, least=0, below=1)
    Traceback (most recent call last):
        ...
    bactrian.errors.ArgumentError: damping must be at least 0 and below 1, found 1.5
    """
    Number(**rule).check(argument, value)


def check_count(argument: str, found: object, expected: object, what: str, item: int | None = None) -> None:
    """Check a length, or a shape.

    >>> check_count("y", 2, 3, "label per token", 0)
    Traceback (most recent call last):
        ...
    bactrian.errors.ArgumentError: y[0] must have one label per token: expected 3, found 2
    """
    if found != expected:
        shape = "shape " if isinstance(expected, tuple) else ""
        raise ArgumentError(argument, f"must have one {what}: expected {shape}{expected}, found {found}", item)


def check_flag(argument: str, value: object) -> None:
    """Check that ``value`` is true or false; 0 and 1 are allowed."""
    if not (isinstance(value, bool | np.bool_) or (isinstance(value, int | np.integer) and value in (0, 1))):
        raise ArgumentTypeError(argument, f"must be True or False, found {value!r}")


def check_callback(callback: object) -> None:
    """Check that ``callback`` is callable or None."""
    if callback is not None and not callable(callback):
        raise ArgumentTypeError("callback", f"must be callable, found {type(callback).__name__}")


# --- warnings ---

_HERE = os.path.dirname(__file__)
_told: set[tuple[str, int, str]] = set()


def warn(message: str, kind: type[Warning] = UserWarning, figures: str = "") -> None:
    """Warn at the line that called the library, also through PyTorch, or once for all fits of a search of scikit-learn.

    ``figures`` are added to the message outside of searches, where they would differ from fit to fit.
    """
    frame, level, searches = sys._getframe(1), 2, False
    while frame.f_back is not None:
        module = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if module not in ("sklearn", "joblib", "torch") and not frame.f_code.co_filename.startswith(_HERE):
            break
        searches |= module in ("sklearn", "joblib")
        frame, level = frame.f_back, level + 1
    if searches:
        place = (frame.f_code.co_filename, frame.f_lineno, message)
        if place in _told:
            return
        _told.add(place)
    warnings.warn(message if searches else message + figures, kind, stacklevel=level)
