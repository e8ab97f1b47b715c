"""Results of experiments as plain data: learners side by side, and pictures, texts, confusions and weights to show.

Experiments fill these; :mod:`bactrian.report` and the command line show them. Nothing here depends on how.

Reliability is whether marginals mean what they say: of all the places to which a model gives its prediction a
probability of 0.8, four in five should be right (Guo, Pleiss, Sun and Weinberger, ICML 2017).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bactrian.arrays import Floats, Ints
from bactrian.errors import check_count, check_number
from bactrian.runs.folders import end_in_words
from bactrian.solvers.solution import Progress, Record, Solution

# --- calibration ---


@dataclass(frozen=True, eq=False)
class Reliability:
    """Confidence of predictions against how often they are right, in bins of equal width that are not empty.

    All arrays have shape (n_bins,); ``error`` is the expected calibration error, the sum over bins of
    n_b |accuracy_b - confidence_b| / n.
    """

    confidence: Floats
    accuracy: Floats
    counts: Ints
    error: float


def reliability(marginals: Floats, labels: Ints, n_bins: int = 10) -> Reliability:
    """Reliability of marginals (n, n_labels); a prediction is the most probable label.

    Confidence lies between 1 / n_labels and 1; the bins divide that range.

    >>> marginals = np.array([[0.8, 0.2], [0.8, 0.2], [0.8, 0.2], [0.2, 0.8], [0.2, 0.8]])
    >>> float(round(reliability(marginals, np.array([0, 0, 0, 1, 0])).error, 12))
    0.0
    """
    check_number("n_bins", n_bins, least=1, whole=True)
    confidence = marginals.max(axis=1)
    right = marginals.argmax(axis=1) == labels
    least = 1.0 / marginals.shape[1]
    position = (confidence - least) / max(1.0 - least, np.finfo(float).tiny) * n_bins
    number = np.clip(position.astype(np.int64), 0, n_bins - 1)
    counts = np.bincount(number, minlength=n_bins)
    used = counts > 0
    mean_confidence = np.bincount(number, confidence, n_bins)[used] / counts[used]
    mean_right = np.bincount(number, right, n_bins)[used] / counts[used]
    error = float((counts[used] * np.abs(mean_right - mean_confidence)).sum() / max(labels.size, 1))
    return Reliability(mean_confidence, mean_right, counts[used], error)


def log_loss(marginals: Floats, labels: Ints) -> float:
    """Mean of -log of the probability given to the true label, in nats; a probability of 0 counts as 1e-300.

    >>> round(log_loss(np.array([[0.5, 0.5]]), np.array([1])), 4)
    0.6931
    """
    given = marginals[np.arange(labels.size), labels]
    return float(-np.log(np.maximum(given, 1e-300)).mean())


# --- what there is to show ---


@dataclass(frozen=True, eq=False)
class Picture:
    """A picture, uint8 of shape (height, width), grey, or (height, width, 3), colour; and what it shows, in words."""

    pixels: NDArray[np.uint8]
    text: str

    def __post_init__(self) -> None:
        shape = self.pixels.shape
        if self.pixels.dtype != np.uint8 or not (len(shape) == 2 or (len(shape) == 3 and shape[2] == 3)):
            raise ValueError(
                f"pixels must be uint8 of shape (height, width) or (height, width, 3), "
                f"found {self.pixels.dtype} of shape {shape}"
            )

    @property
    def size(self) -> tuple[int, int]:
        """Width and height in pixels."""
        return self.pixels.shape[1], self.pixels.shape[0]


@dataclass(frozen=True)
class Sheet:
    """One way to look at the same cases: rows of pictures, a picture per column."""

    name: str
    legend: str
    rows: tuple[tuple[Picture, ...], ...]


@dataclass(frozen=True)
class Gallery:
    """Pictures of the data: cases down, columns (truth, input, learners) across, several sheets to choose from."""

    title: str
    columns: tuple[str, ...]
    row_labels: tuple[str, ...]
    sheets: tuple[Sheet, ...]
    colours: Mapping[str, tuple[int, int, int]] = field(default_factory=dict)  #: what colours mean: label to RGB

    def __post_init__(self) -> None:
        for sheet in self.sheets:
            check_count(f"sheet {sheet.name!r}", len(sheet.rows), len(self.row_labels), "row per row label")
            for number, row in enumerate(sheet.rows):
                check_count(f"sheet {sheet.name!r}, row {number}", len(row), len(self.columns), "picture per column")


@dataclass(frozen=True, eq=False)
class Confusion:
    """How often each label was taken for each: ``counts[t, p]`` of shape (n_labels, n_labels), truth down."""

    labels: tuple[str, ...]
    counts: Ints

    def __post_init__(self) -> None:
        n = len(self.labels)
        check_count("counts", self.counts.shape, (n, n), "row and one column per label")

    @staticmethod
    def of(truth: Iterable[str], predicted: Iterable[str], labels: Sequence[str] | None = None) -> Confusion:
        """Count pairs of labels; ``labels`` gives their order, else they are sorted.

        >>> Confusion.of("aab", "abb").counts.tolist()
        [[1, 1], [0, 1]]
        """
        pairs = list(zip(truth, predicted, strict=True))
        names = tuple(sorted({label for pair in pairs for label in pair})) if labels is None else tuple(labels)
        position = {name: number for number, name in enumerate(names)}
        counts = np.zeros((len(names), len(names)), dtype=np.int64)
        for place, (true, guess) in enumerate(pairs):
            if true not in position or guess not in position:
                unknown = guess if true in position else true
                raise ValueError(f"labels must hold every label, but position {place} has {unknown!r}")
            counts[position[true], position[guess]] += 1
        return Confusion(names, counts)


@dataclass(frozen=True)
class NamedWeight:
    """A weight and what it is the weight of: a feature, and the label (or the labels) it speaks for."""

    feature: str
    label: str
    value: float


@dataclass(frozen=True, eq=False)
class Tagging:
    """Labels that a learner gives to the tokens of a text, and marginals (n_tokens, n_labels) if it has any."""

    labels: tuple[str, ...]
    marginals: Floats | None = None


@dataclass(frozen=True)
class TaggedText:
    """A text in tokens, its true labels, what learners make of it, and the skip edges of its graph.

    Labels may be plain (``speaker``) or in the BIO scheme (``B-speaker``); a token that is part of nothing has ``O``.
    ``gaps[t]`` is the text between token t and the next: a space, nothing, or the end of a line.
    """

    title: str
    tokens: tuple[str, ...]
    truth: tuple[str, ...]
    predictions: Mapping[str, Tagging]
    label_names: tuple[str, ...]  #: the columns of all marginals
    gaps: tuple[str, ...] = ()  #: spaces, where none are given
    skips: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        n = len(self.tokens)
        check_count("truth", len(self.truth), n, "label per token")
        if self.gaps:
            check_count("gaps", len(self.gaps), n, "entry per token, where there are any")
        for name, tagging in self.predictions.items():
            what, shape = f"predictions[{name!r}]", (n, len(self.label_names))
            check_count(what, len(tagging.labels), n, "label per token")
            if tagging.marginals is not None:
                check_count(f"{what}: marginals", tagging.marginals.shape, shape, "row per token, a column per label")
        for number, edge in enumerate(self.skips):
            if not all(0 <= end < n for end in edge):
                raise ValueError(f"skips[{number}] must join tokens 0 to {n - 1}, found {edge}")


# --- learners side by side ---


@dataclass(frozen=True)
class Metric:
    """A column of the table of learners; ``format`` is a format specification such as ``.1%``."""

    key: str
    name: str
    format: str
    higher_is_better: bool
    explanation: str = ""


@dataclass(frozen=True, eq=False)
class Curve:
    """The course of a training run, one point per iteration or outer iteration; every array has shape (n_points,)."""

    outer: Ints
    seconds: Floats
    objective: Floats
    moment_gap: Floats
    violation: Floats
    phase: Ints

    @staticmethod
    def of(points: Iterable[Progress | Record]) -> Curve:
        """The curve through the points that a callback saw, or through a history."""
        rows = [(p.outer, p.seconds, p.objective, p.moment_gap, p.violation, p.phase) for p in points]
        outer, seconds, objective, gap, violation, phase = np.array(rows, dtype=np.float64).reshape(-1, 6).T
        return Curve(outer.astype(np.int64), seconds, objective, gap, violation, phase.astype(np.int64))


@dataclass(frozen=True)
class Training:
    """How training went: its end, its cost and its course, per iteration and per outer iteration."""

    status: str
    converged: bool
    seconds: float
    outer_iterations: int
    violation: float
    moment_gap: float
    iterations: Curve
    history: Curve

    @staticmethod
    def of(solution: Solution, trace: Iterable[Progress] = ()) -> Training:
        """What a solution, and the progress that a callback saw, say about the run.

        The last point of both curves is the solution itself.
        """
        figures = ("objective", "moment_gap", "violation", "seconds")
        at_end = {name: getattr(solution, name) for name in figures}
        end = [replace(record, **at_end) for record in solution.history[-1:]]
        return Training(
            status=end_in_words(solution.status, solution.attained),
            converged=solution.converged,
            seconds=solution.seconds,
            outer_iterations=len(solution.history),
            violation=solution.violation,
            moment_gap=solution.moment_gap,
            iterations=Curve.of([*trace, *end]),
            history=Curve.of([*solution.history[:-1], *end]),
        )


@dataclass(frozen=True, eq=False)
class LabelTable:
    """A learned table of scores (n_rows, n_columns), with the names of its states."""

    title: str
    values: Floats
    row_labels: tuple[str, ...]
    column_labels: tuple[str, ...]

    @property
    def interaction(self) -> Floats:
        """The table with its row and column means removed.

        What depends on one state alone can move between tables, and between tables and node scores, without changing
        the model; what is left here is what a table says about the two together. Scores that are not finite, those of
        forbidden pairs, stay as they are and are left out of the means.
        """
        finite = np.isfinite(self.values)
        values = np.where(finite, self.values, 0.0)
        rows = values.sum(axis=1, keepdims=True) / np.maximum(finite.sum(axis=1, keepdims=True), 1)
        columns = values.sum(axis=0, keepdims=True) / np.maximum(finite.sum(axis=0, keepdims=True), 1)
        mean = values.sum() / max(int(finite.sum()), 1)
        return np.where(finite, values - rows - columns + mean, self.values)


@dataclass(frozen=True)
class Entry:
    """One learner, or one baseline that learns nothing (then ``training`` is None)."""

    name: str
    description: str
    metrics: Mapping[str, float]  #: by the key of the metric; one that has no meaning here is left out
    training: Training | None = None
    reliability: Reliability | None = None
    tables: tuple[LabelTable, ...] = ()
    confusion: Confusion | None = None
    weights: tuple[NamedWeight, ...] = ()  #: the most telling ones
    #: How well each type of entity, or each label, is found: precision, recall, f1 and, where it counts any, support.
    types: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @staticmethod
    def of(name: str, description: str, marginals: Floats, truth: Ints, **more: Any) -> Entry:
        """An entry with accuracy, log loss and calibration of marginals (n, n_labels) of labels ``truth`` (n,)."""
        calibration = reliability(marginals, truth)
        metrics = {
            "accuracy": float(np.mean(marginals.argmax(axis=1) == truth)),
            "log_loss": log_loss(marginals, truth),
            "ece": calibration.error,
        }
        return Entry(name, description, metrics, reliability=calibration, **more)


@dataclass(frozen=True)
class Comparison:
    """Learners side by side on one task."""

    title: str
    summary: str
    metrics: tuple[Metric, ...]
    entries: tuple[Entry, ...]
    facts: Mapping[str, str] = field(default_factory=dict)  #: the settings of the experiment, to be shown as they are
    galleries: tuple[Gallery, ...] = ()
    texts: tuple[TaggedText, ...] = ()
    feature_key: Mapping[str, str] = field(default_factory=dict)  #: what the names of features begin with, and mean

    def ranked(self, names: Iterable[str]) -> list[str]:
        """Names of learners, best first by the first metric; those without a value last."""
        metric = self.metrics[0] if self.metrics else None
        values = {entry.name: entry.metrics.get(metric.key, np.nan) if metric else np.nan for entry in self.entries}
        sign = -1.0 if metric is not None and metric.higher_is_better else 1.0
        worst = {name: sign * value if np.isfinite(value) else np.inf for name, value in values.items()}
        return sorted(names, key=lambda name: worst.get(name, np.inf))

    @property
    def converged(self) -> bool:
        """Whether every learner met its stopping rule."""
        return all(entry.training is None or entry.training.converged for entry in self.entries)
