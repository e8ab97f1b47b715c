"""The content of a report: a title and sections, as plain data.

A run, a comparison or a fitted field supplies the sections it has something to put into; :func:`report_of` picks them
for a :class:`~bactrian.runs.comparison.Comparison`, :func:`field_report` and :func:`margins_report` for a field.
Mappings go from the names of learners to what each has to show. A learner has one colour, and one switch, throughout a
page.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from bactrian.arrays import Floats
from bactrian.errors import check_count
from bactrian.estimators.markov_random_field import MarkovRandomField
from bactrian.estimators.network import interactions, layout
from bactrian.frames import columns_of, word
from bactrian.inference.infer import infer
from bactrian.margins.fit import MarginResidual
from bactrian.runs.comparison import Comparison, Entry, Gallery, Metric, TaggedText


@dataclass(frozen=True)
class HeadingSection:
    """Opens a part of a page: what the sections after it are about, and the settings they share."""

    template: ClassVar = "heading"
    title: str
    text: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class LearnersSection:
    """Learners side by side: metrics, seconds, status; or one alone."""

    template: ClassVar = "learners"
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

    template: ClassVar = "table"
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str | float, ...], ...]
    note: str = ""

    def __post_init__(self) -> None:
        for number, row in enumerate(self.rows):
            check_count("rows", len(row), len(self.columns), "cell per column", number)


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

    The kinds are ``"types"`` (scores by name), ``"curves"`` (:class:`Training`), ``"calibration"``
    (:class:`Reliability`), ``"edge_tables"`` (:class:`LabelTable` objects, as heat maps on one scale),
    ``"confusions"`` (:class:`Confusion`) and ``"weights"`` (:class:`NamedWeight` objects, with a key to their names).
    """

    template: str
    shown: Mapping[str, Any]
    left_out: tuple[str, ...] = ()  #: learners for which a chart has no room
    key: Mapping[str, str] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """That of its kind."""
        return BY_LEARNER[self.template][0]


@dataclass(frozen=True)
class NetworkSection:
    """Which variables are joined, and how strongly: names with places, and lines with widths, styles and notes.

    A name stands above its place or, where that is said, below.
    """

    template: ClassVar = "network"
    width: ClassVar = 640
    title: str
    nodes: tuple[tuple[str, tuple[float, float], bool], ...]
    lines: tuple[tuple[tuple[float, float], tuple[float, float], float, str, str], ...]
    note: str = ""


@dataclass(frozen=True)
class GallerySection:
    """Pictures: restored digits, segmentations."""

    template: ClassVar = "gallery"
    gallery: Gallery

    @property
    def title(self) -> str:
        """The gallery's own."""
        return self.gallery.title


@dataclass(frozen=True)
class TextSection:
    """Texts with their entities highlighted, marginals on hovering, skip edges as arcs."""

    template: ClassVar = "texts"
    texts: tuple[TaggedText, ...]
    title: str = "Texts"
    best: str | None = None  #: the learner whose labels are shown first


@dataclass(frozen=True)
class NoteSection:
    """Words alone, a paragraph each."""

    template: ClassVar = "note"
    title: str
    paragraphs: tuple[str, ...]


Section = (
    HeadingSection
    | LearnersSection
    | TableSection
    | ByLearnerSection
    | NetworkSection
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
        shown = {name: value for name, value in found.items() if value not in (None, (), {})}
        left_out: list[str] = []
        if kind in ("curves", "calibration"):
            left_out = comparison.ranked(shown)[MOST_LINES:]
            shown = {name: value for name, value in shown.items() if name not in left_out}
        if shown:
            key = comparison.feature_key if kind == "weights" else {}
            sections.append(ByLearnerSection(kind, shown, tuple(left_out), key))
    return tuple(sections)


# --- pages of fitted fields, in the words of their tables ---

#: Pairs that the page lists, those that tell most of each other.
_LISTED = 20
#: Lines of a network beyond which its picture is a knot.
_LINES = 150
#: Cells of each margin that the page lists, those that differ most.
_CELLS = 10


def field_report(field: MarkovRandomField, title: str, *, intervals: bool = True) -> Report:
    """Marginals of all variables, the pairs that tell most of each other, and with ``intervals`` how sure that is."""
    found = infer(field.model_, field.weights_, field.inference_method_, memory_budget=max(1, field.memory_budget))
    names, words = field.variable_names, [list(map(word, states)) for states in field.states.values()]
    shares = [
        (f"{names[v]}={state}", f"{share:.4f}")
        for v, table in enumerate(found.variables)
        for state, share in zip(words[v], table.tolist(), strict=True)
    ]
    pairs = []
    for i, scope in enumerate(field.model_.graph.clusters):
        if len(scope) == 2:
            joint = np.array(found.clusters[i])
            told, lift = _dependence(joint)
            row, column = (int(k) for k in np.unravel_index(int(np.argmax(lift)), joint.shape))
            most = f"{names[scope[0]]}={words[scope[0]][row]}, {names[scope[1]]}={words[scope[1]][column]}"
            pairs.append((told, f"{names[scope[0]]}, {names[scope[1]]}", most, f"{lift[row, column]:.2f}"))
    pairs.sort(key=lambda pair: -pair[0])
    sections: list[Section] = [
        TableSection(
            "What goes together",
            ("pair", "mutual information, nats", "states that most go together", "times as often as by chance"),
            tuple((pair, f"{told:.4f}", most, lift) for told, pair, most, lift in pairs[:_LISTED]),
            "" if len(pairs) <= _LISTED else f"The {_LISTED} of {len(pairs)} pairs that tell most of each other.",
        ),
    ]
    if pairs and field.tables_ != "margins":
        sections.insert(0, _network(field))
    if intervals and pairs:
        sections.append(_sure(field))
    sections.append(TableSection("Variables", ("state", "probability"), tuple(shares)))
    if hasattr(field, "starts_"):
        listed = ", ".join(f"{objective:.2f}" for objective in field.starts_)
        sections.append(NoteSection("Starts", (f"They ended with the objectives {listed}; the least is kept.",)))
    facts = {
        "method": str(field.method_),
        "status": str(field.solution_.status),
        "rows": f"{field.total_:g}",
        "variables": str(len(names)),
        "pairs": getattr(field, "selection_", str(len(pairs))).partition(";")[0],
        "inference": field.inference_method_,
        "seconds": f"{field.solution_.seconds:.2f}",
    }
    return Report(title, tuple(sections), facts=facts)


def _network(field: MarkovRandomField) -> Section:
    """The picture of the edges, the strongest of them where there are many, and of variables that these join."""
    variables, tables = field.log_potentials()
    every, signs = interactions(tables)
    drawn = np.sort(np.argsort(-every, kind="stable")[:_LINES])
    strengths, number = every[drawn], {name: v for v, name in enumerate(field.variable_names)}
    edges = np.array([[number[a], number[b]] for a, b in field.edges_[drawn].tolist()])
    shown = np.arange(len(variables)) if len(drawn) == len(every) else np.unique(edges)
    names = [str(field.variable_names[v]) for v in shown]
    edges = np.searchsorted(shown, edges)
    places = (NetworkSection.width * layout(len(names), edges, strengths)).round(1).tolist()
    at = [(float(x), float(y)) for x, y in places]
    pull = np.zeros(len(names))  # towards the neighbours, whose lines a name keeps out of
    for (a, b), strength in zip(edges.tolist(), strengths, strict=True):
        pull[a] += strength * (at[b][1] - at[a][1])
        pull[b] += strength * (at[a][1] - at[b][1])
    widths = 0.5 + 6.0 * strengths / max(float(strengths.max()), np.finfo(float).tiny)
    lines = tuple(
        (at[a], at[b], round(width, 2), "above" if sign >= 0.0 else "below", f"{names[a]}, {names[b]}: {strength:.3g}")
        for (a, b), width, sign, strength in zip(edges.tolist(), widths, signs[drawn], strengths, strict=True)
    )
    note = "" if len(drawn) == len(every) else f"The {len(drawn)} strongest of {len(every)} edges."
    return NetworkSection("The network", tuple(zip(names, at, (pull < 0.0).tolist(), strict=True)), lines, note)


def _sure(field: MarkovRandomField) -> Section:
    """Edges with their intervals, the strongest first."""
    title = "How sure the field is"
    try:
        found = {column.name: column.cells for column in columns_of(field.summary())}
    except ValueError as error:
        return NoteSection(title, (f"There are no intervals: {error}.",))
    rows = [
        (f"{a}, {b}", f"{size:.3f}", "" if math.isnan(low) else f"{low:.3f} to {high:.3f}", f"{p:.2g}")
        for a, b, size, low, high, p in zip(*found.values(), strict=True)
    ]
    about = (
        "The association given all other variables: of two variables with two states the log odds ratio and its 95 % "
        "interval, of others the root of the mean square of the centred table. p: Wald's test that there is none."
    )
    return TableSection(title, ("pair", "association", "95 % interval", "p"), tuple(rows[:_LISTED]), about)


def _dependence(joint: Floats) -> tuple[float, Floats]:
    """Mutual information of a table, and each cell over what independent variables would give it."""
    apart = np.outer(joint.sum(axis=1), joint.sum(axis=0))
    lift = np.divide(joint, apart, out=np.ones_like(joint), where=apart > 0.0)
    seen = joint > 0.0
    return float(joint[seen] @ np.log(lift[seen])), lift


def margins_report(field: MarkovRandomField, title: str) -> Report:
    """What was given, what was fitted, and where they differ most."""
    residuals, solution = field.residuals_, field.solution_
    rows = tuple(
        (
            ", ".join(margin.names),
            float(margin.given.size),
            "exact" if margin.stddev is None else "noisy",
            f"{np.abs(margin.difference).max():.4g}",
            f"{margin.distance:.2e}",
            "–" if margin.stddev is None else f"{np.abs(margin.z).max():.2f}",
        )
        for margin in residuals
    )
    columns = ("margin", "cells", "given as", "largest difference", "total variation", "largest |z|")
    sections: list[Section] = [TableSection("Margins, fitted against given", columns, rows)]
    if residuals.contradictions:
        sections.append(NoteSection("Contradictions", residuals.contradictions))
    sections += [_cells(field, margin) for margin in residuals]
    facts = {
        "method": str(field.method_),
        "status": str(solution.status),
        "total": f"{field.total_:g}",
        "variables": str(field.n_features_in_),
        "evaluations": str(solution.evaluations),
        "seconds": f"{solution.seconds:.2f}",
    }
    return Report(title, tuple(sections), facts=facts)


def _cells(field: MarkovRandomField, margin: MarginResidual) -> TableSection:
    """The cells of a margin that differ most."""
    order = np.argsort(-np.abs(margin.difference), axis=None, kind="stable")[:_CELLS]
    rows = []
    for flat in order.tolist():
        index = tuple(int(i) for i in np.unravel_index(flat, margin.given.shape))
        states = [field.states[name][i] for name, i in zip(margin.names, index, strict=True)]
        given, fitted = float(margin.given[index]), float(margin.fitted[index])
        rows.append((*map(str, states), f"{given:.6g}", f"{fitted:.6g}", f"{fitted - given:.3g}"))
    note = "" if margin.given.size <= _CELLS else f"The {_CELLS} of {margin.given.size} cells that differ most."
    return TableSection(", ".join(margin.names), (*margin.names, "given", "fitted", "difference"), tuple(rows), note)
