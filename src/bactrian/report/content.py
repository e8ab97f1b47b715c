"""What a report holds: a title and sections, as plain data.

A run or a comparison supplies the sections it has something to put into; :func:`report_of` picks them for a
:class:`~bactrian.runs.comparison.Comparison`. Mappings go from the names of learners to what each has to show. A
learner has one colour, and one switch, throughout a page.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bactrian.runs.comparison import Comparison, Entry, Gallery, Metric, TaggedText


@dataclass(frozen=True)
class HeadingSection:
    """Opens a part of a page: what the sections after it are about, and the settings they share."""

    title: str
    text: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class LearnersSection:
    """Learners side by side: metrics, seconds, status; or one alone."""

    metrics: tuple[Metric, ...]
    entries: tuple[Entry, ...]

    @property
    def title(self) -> str:
        """That of one learner or of several."""
        return "Learners side by side" if len(self.entries) > 1 else "Scores and training"

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

    def __post_init__(self) -> None:
        for number, row in enumerate(self.rows):
            if len(row) != len(self.columns):
                raise ValueError(f"rows[{number}] must have {len(self.columns)} cells, found {len(row)}")


#: Lines of a chart; more cannot be told apart.
MOST_LINES = 6

#: Of what learners have to show: the template, its title, and where an entry of a comparison has it.
BY_LEARNER = {
    "types": ("Scores by type", "types"),
    "curves": ("Convergence", "training"),
    "calibration": ("Calibration of marginals", "reliability"),
    "edge_tables": ("Learned tables", "tables"),
    "confusions": ("Confusions", "confusion"),
    "weights": ("Most telling weights", "weights"),
}


@dataclass(frozen=True)
class ByLearnerSection:
    """What each learner has to show of one kind.

    The kinds are ``"types"`` (:class:`TypeScore` objects), ``"curves"`` (:class:`Training`), ``"calibration"``
    (:class:`Reliability`), ``"edge_tables"`` (:class:`LabelTable` objects, as heat maps on one scale),
    ``"confusions"`` (:class:`Confusion`) and ``"weights"`` (:class:`NamedWeight` objects, with a key to their names).
    """

    kind: str
    shown: Mapping[str, Any]
    left_out: tuple[str, ...] = ()  #: learners for which a chart has no room
    key: Mapping[str, str] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """That of its kind."""
        return BY_LEARNER[self.kind][0]


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
    best: str | None = None  #: the learner whose labels are shown first


@dataclass(frozen=True)
class NoteSection:
    """Words alone, a paragraph each."""

    title: str
    paragraphs: tuple[str, ...]


Section = (
    HeadingSection | LearnersSection | TableSection | ByLearnerSection | GallerySection | TextSection | NoteSection
)


@dataclass(frozen=True)
class Report:
    """A page."""

    title: str
    sections: tuple[Section, ...]
    summary: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)  #: settings, shown as they are


def report_of(*comparisons: Comparison, title: str | None = None) -> Report:
    """The report of a comparison; of several, each a part with a heading of its own, on one page.

    A single run is a comparison with one entry.
    """
    if not comparisons:
        raise ValueError("comparisons must hold at least one comparison")
    if len(comparisons) == 1:
        only = comparisons[0]
        return Report(title or only.title, _sections_of(only), only.summary, only.facts)
    sections: list[Section] = []
    for comparison in comparisons:
        sections.append(HeadingSection(comparison.title, comparison.summary, comparison.facts))
        sections.extend(_sections_of(comparison))
    return Report(title or "; ".join(comparison.title for comparison in comparisons), tuple(sections))


def _sections_of(comparison: Comparison) -> tuple[Section, ...]:
    """The sections for which a comparison has anything to show."""
    sections: list[Section] = [LearnersSection(comparison.metrics, comparison.entries)]
    sections += [GallerySection(gallery) for gallery in comparison.galleries]
    if comparison.texts:
        taggers = dict.fromkeys(name for text in comparison.texts for name in text.predictions)
        sections.append(TextSection(comparison.texts, best=next(iter(comparison.ranked(taggers)), None)))
    for kind, (_, attribute) in BY_LEARNER.items():
        found = {entry.name: getattr(entry, attribute) for entry in comparison.entries}
        shown = {name: value for name, value in found.items() if value not in (None, ())}
        left_out: list[str] = []
        if kind in ("curves", "calibration"):
            left_out = comparison.ranked(shown)[MOST_LINES:]
            shown = {name: value for name, value in shown.items() if name not in left_out}
        if shown:
            key = comparison.feature_key if kind == "weights" else {}
            sections.append(ByLearnerSection(kind, shown, tuple(left_out), key))
    return tuple(sections)
