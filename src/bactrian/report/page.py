"""The page: a report rendered through templates into one HTML text that needs neither network, server nor script."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined

from bactrian import __version__
from bactrian.files import write_atomically
from bactrian.report.content import Report, report_of
from bactrian.report.images import data_address
from bactrian.report.views import learners_of, view_of
from bactrian.runs.comparison import Comparison


def write_report(report: Report | Comparison, path: str | Path) -> Path:
    """Write a report, or the report of a comparison, as a self-contained HTML page; the path is returned.

    Missing folders are made, and the file is replaced atomically: a page that cannot be rendered leaves no trace.
    """
    path = Path(path)
    write_atomically(path, render_report(report))
    return path


def render_report(report: Report | Comparison) -> str:
    """The page as text."""
    if isinstance(report, Comparison):
        report = report_of(report)
    if not isinstance(report, Report):
        raise TypeError(f"report must be a Report or a Comparison, found {type(report).__name__}")
    numbers = learners_of(report)
    views = [view_of(section, str(number), numbers) for number, section in enumerate(report.sections, start=1)]
    return (
        _environment()
        .get_template("page.html")
        .render(report=report, version=__version__, numbers=numbers, views=views)
    )


@cache
def _environment() -> Environment:
    """Templates, compiled once."""
    environment = Environment(
        loader=PackageLoader("bactrian.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(data_address=data_address)
    environment.filters.update(small=_small_number, signed=_signed)
    return environment


def _small_number(value: float) -> str:
    """Two digits that show the magnitude.

    >>> [_small_number(v) for v in (0.0, 0.4312, 3.6e-05, float("nan"))]
    ['0', '0.43', '3.6e-05', '–']
    """
    if not np.isfinite(value):
        return "–"
    return "0" if value == 0.0 else f"{value:.2g}"


def _signed(value: float) -> str:
    """A number with its sign.

    >>> _signed(1.25), _signed(-1.25)
    ('+1.25', '−1.25')
    """
    return f"{value:+.2f}".replace("-", "−") if np.isfinite(value) else "–"
