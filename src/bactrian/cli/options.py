"""Values of the options of ``bactrian infer``: tasks, methods and numbers within their limits."""

from __future__ import annotations

import math
from enum import StrEnum

import typer


class Task(StrEnum):
    """What to work out; the name is also the suffix of the result's file."""

    MAR = "MAR"
    PR = "PR"
    MPE = "MPE"


class Method(StrEnum):
    """Methods of ``bactrian.infer`` and ``bactrian.decode``."""

    RBP = "rbp"
    EXACT = "exact"
    BP = "bp"
    TRW = "trw"
    CONVEX = "convex"
    DOUBLE_LOOP = "double-loop"
    MEAN_FIELD = "mean-field"
    GIBBS = "gibbs"
    MAX_PRODUCT = "max-product"
    MAX_MARGINALS = "max-marginals"
    DUAL = "dual"


class Fallback(StrEnum):
    """What finishes where belief propagation does not converge."""

    DOUBLE_LOOP = "double-loop"


def bytes_of(text: str) -> int:
    """A number of bytes such as 4GiB, 500MiB or 1000000."""
    units = {"": 0, "b": 0, "kib": 10, "mib": 20, "gib": 30, "tib": 40}
    number = text.strip().rstrip("BbIiKkMmGgTt ")
    unit = text.strip()[len(number) :].strip().lower()
    try:
        size = float(number) * 2 ** units[unit]
    except (ValueError, KeyError):
        size = math.nan
    if not 1 <= size < 2**63:
        raise typer.BadParameter(f"expected bytes such as 4GiB, 500MiB or 1000000, found {text!r}")
    return int(size)


def positive(value: float | None) -> float | None:
    """A number above 0, where one is given."""
    if value is not None and not 0.0 < value < math.inf:
        raise typer.BadParameter(f"expected a positive number, found {value}")
    return value


def variance(value: float | None) -> float | None:
    """A number above 0, or infinity, where one is given."""
    if value is not None and not value > 0.0:
        raise typer.BadParameter(f"expected a positive number, or inf, found {value}")
    return value


def share(value: float | None) -> float | None:
    """A number from 0 to below 1, where one is given."""
    if value is not None and not 0.0 <= value < 1.0:
        raise typer.BadParameter(f"expected a number of at least 0 and below 1, found {value}")
    return value
