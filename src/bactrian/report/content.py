"""What a report holds: a title and sections, as plain data.

A run or a comparison supplies the sections it has something to put into; :func:`report_of` picks them for a
:class:`~bactrian.runs.comparison.Comparison`. Mappings go from the names of learners to what each has to show. A
learner has one colour, and one switch, throughout a page.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from bactrian.runs.comparison import (
    Comparison,
    Confusion,
    Entry,
    Gallery,
    LabelTable,
    Metric,
    NamedWeight,
    Reliability,
    TaggedText,
    Training,
)

T = TypeVar("T")


@dataclass(frozen=True)
class HeadingSection:
    """Opens a part of a page: what the sections after it are about, and the settings they share."""

    title: str
    text: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class LearnersSection:
    """Learners side by side: metrics, seconds, status."""

    metrics: tuple[Metric, ...]
    entries: tuple[Entry, ...]
    title: str = "Learners side by side"
    note: str = "Seconds are those of training alone."

    def best(self, metric: Metric) -> float:
        """The best finite value of a metric; NaN where no entry has one."""
        values = [entry.metrics.get(metric.key, np.nan) for entry in self.entries]
        finite = [value for value in values if np.isfinite(value)]
        if not finite:
            return float("nan")
        return max(finite) if metric.higher_is_better else min(finite)


@dataclass(frozen=True)
class TableSection:
    """Any table: headings and rows of texts or numbers, numbers to the right. Every row is as long as ``columns``."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str | float, ...], ...]
    note: str = ""
    number_format: str = ".4g"

    def __post_init__(self) -> None:
        for number, row in enumerate(self.rows):
            if len(row) != len(self.columns):
                raise ValueError(f"rows[{number}] must have {len(self.columns)} cells, found {len(row)}")


@dataclass(frozen=True)
class CurveSection:
    """How training went: objective, moment gap and violation, over time and over relinearisations."""

    trainings: Mapping[str, Training]
    title: str = "Convergence"


@dataclass(frozen=True)
class CalibrationSection:
    """Whether marginals mean what they say: reliability diagrams and expected calibration errors."""

    reliabilities: Mapping[str, Reliability]
    title: str = "Calibration of marginals"


@dataclass(frozen=True)
class EdgeTableSection:
    """Learned tables of scores as heat maps, on one scale."""

    tables: Mapping[str, Sequence[LabelTable]]
    title: str = "Learned tables"


@dataclass(frozen=True)
class ConfusionSection:
    """Which labels are taken for which."""

    confusions: Mapping[str, Confusion]
    title: str = "Confusions"


@dataclass(frozen=True)
class WeightSection:
    """The most telling weights, by name."""

    weights: Mapping[str, Sequence[NamedWeight]]
    title: str = "Most telling weights"


@dataclass(frozen=True)
class GallerySection:
    """Pictures: restored digits, segmentations."""

    gallery: Gallery

    @property
    def title(self) -> str:
        """The gallery's own."""
        return self.gallery.title


@dataclass(frozen=True)
class TextSection:
    """Texts with their entities highlighted, marginals on hovering, skip edges as arcs."""

    texts: tuple[TaggedText, ...]
    title: str = "Texts"
    note: str = ""


@dataclass(frozen=True)
class NoteSection:
    """Words alone, a paragraph each."""

    title: str
    paragraphs: tuple[str, ...]


Section = (
    HeadingSection
    | LearnersSection
    | TableSection
    | CurveSection
    | CalibrationSection
    | EdgeTableSection
    | ConfusionSection
    | WeightSection
    | GallerySection
    | TextSection
    | NoteSection
)


@dataclass(frozen=True)
class Report:
    """A page."""

    title: str
    sections: tuple[Section, ...]
    summary: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)  #: settings, shown as they are


def report_of(*comparisons: Comparison, title: str | None = None, summary: str = "") -> Report:
    """The report of a comparison; of several, each a part with a heading of its own, on one page.

    A single run is a comparison with one entry.
    """
    if not comparisons:
        raise ValueError("comparisons must hold at least one comparison")
    if len(comparisons) == 1:
        only = comparisons[0]
        return Report(title or only.title, sections_of(only), summary or only.summary, only.facts)
    sections: list[Section] = []
    for comparison in comparisons:
        sections.append(HeadingSection(comparison.title, comparison.summary, comparison.facts))
        sections.extend(sections_of(comparison))
    return Report(title or "; ".join(comparison.title for comparison in comparisons), tuple(sections), summary)


def sections_of(comparison: Comparison) -> tuple[Section, ...]:
    """The sections for which a comparison has anything to show."""
    entries = comparison.entries
    sections: list[Section] = [LearnersSection(comparison.metrics, entries)]
    sections += [GallerySection(gallery) for gallery in comparison.galleries]
    if comparison.texts:
        sections.append(TextSection(comparison.texts))
    if trainings := _named(entries, lambda entry: entry.training):
        sections.append(CurveSection(trainings))
    if reliabilities := _named(entries, lambda entry: entry.reliability):
        sections.append(CalibrationSection(reliabilities))
    if tables := _named(entries, lambda entry: entry.tables or None):
        sections.append(EdgeTableSection(tables))
    if confusions := _named(entries, lambda entry: entry.confusion):
        sections.append(ConfusionSection(confusions))
    if weights := _named(entries, lambda entry: entry.weights or None):
        sections.append(WeightSection(weights))
    return tuple(sections)


def _named(entries: Sequence[Entry], of: Callable[[Entry], T | None]) -> dict[str, T]:
    found = {entry.name: of(entry) for entry in entries}
    return {name: value for name, value in found.items() if value is not None}
