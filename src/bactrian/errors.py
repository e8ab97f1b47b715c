"""Errors that carry what they are about, so that callers can call it by another name; and warnings.

An argument of a function may be an option of the command line, and an item of a list a line of a file.
"""

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
        The argument, or with dots the place in a table of settings: ``input.encoding``.
    problem : str
        What is said behind its name: ``must be positive, found 0``.
    item : int or None
        Which item of the argument it is about, where that is a list.

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
        """The message with this name of what it is about."""
        apart = "" if self.problem.startswith((":", "[", " ")) else " "
        return f"{name}{apart}{self.problem}"


class ArgumentTypeError(ArgumentError, TypeError):
    """The same where the type is not the expected one."""


@contextmanager
def about(argument: str, item: int) -> Iterator[None]:
    """Say of which item of an argument errors are; their messages are what comes behind its name."""
    try:
        yield
    except (TypeError, ValueError) as error:
        kind = ArgumentTypeError if isinstance(error, TypeError) else ArgumentError
        raise kind(argument, str(error), item) from None


def keeper(table: dict[str, Kept], name: object, own: Collection[str] = ()) -> Callable[[Kept], Kept]:
    """A decorator that keeps a user's object in ``table`` under a name that none of the library's ``own`` has."""
    if not isinstance(name, str) or not name or name in own:
        kind = ArgumentError if isinstance(name, str) else ArgumentTypeError
        wanted = f"other than {', '.join(own)}" if own else "that is not empty"
        raise kind("name", f"must be a string {wanted}, found {name!r}")

    def keep(item: Kept) -> Kept:
        table[name] = item
        return item

    return keep


def check_choice(argument: str, value: object, choices: Collection[str]) -> None:
    """Refuse what is not one of the ``choices``."""
    if not isinstance(value, str) or value not in choices:
        raise ArgumentError(argument, f"must be one of {', '.join(choices)}, found {value!r}")


class Number(NamedTuple):
    """What an option that is a number may be; NaN is not a number."""

    least: float = -np.inf
    positive: bool = False  #: more than 0
    below: float | None = None
    whole: bool = False
    optional: bool = False  #: None is allowed

    def check(self, argument: str, value: object) -> None:
        """Refuse another value."""
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
    """Refuse options that are not as the rules want them; options without a rule are left alone."""
    for name, rule in rules.items():
        if name in given:
            rule.check(name, given[name])


def check_number(argument: str, value: object, **rule: Any) -> None:
    """Refuse what is not such a :class:`Number`.

    >>> check_number("damping", 1.5, least=0, below=1)
    Traceback (most recent call last):
        ...
    bactrian.errors.ArgumentError: damping must be at least 0 and below 1, found 1.5
    """
    Number(**rule).check(argument, value)


def check_count(argument: str, found: object, expected: object, what: str, item: int | None = None) -> None:
    """Refuse a length, or a shape, other than the expected one.

    >>> check_count("y", 2, 3, "label per token", 0)
    Traceback (most recent call last):
        ...
    bactrian.errors.ArgumentError: y[0] must have one label per token: expected 3, found 2
    """
    if found != expected:
        shape = "shape " if isinstance(expected, tuple) else ""
        raise ArgumentError(argument, f"must have one {what}: expected {shape}{expected}, found {found}", item)


def check_flag(argument: str, value: object) -> None:
    """Refuse what is neither true nor false; 0 and 1 are."""
    if not (isinstance(value, bool | np.bool_) or (isinstance(value, int | np.integer) and value in (0, 1))):
        raise ArgumentTypeError(argument, f"must be True or False, found {value!r}")


def check_callback(callback: object) -> None:
    """Refuse what can neither be called nor is None."""
    if callback is not None and not callable(callback):
        raise ArgumentTypeError("callback", f"must be callable, found {type(callback).__name__}")


# --- warnings ---

_HERE = os.path.dirname(__file__)
_told: set[tuple[str, int, str]] = set()


def warn(message: str, kind: type[Warning] = UserWarning, figures: str = "") -> None:
    """Warn at the line that called the library, past PyTorch's modules and scikit-learn's searches, each told once.

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
