"""What an experiment has to show besides numbers: pictures, tagged texts, confusions and weights by name.

Experiments fill these; :mod:`bactrian.report` shows them. Nothing here knows how.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_PNG = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True, eq=False)
class Picture:
    """A picture and what it shows, in words.

    ``pixels`` are uint8 of shape (height, width), grey, or (height, width, 3), colour; or the bytes of a PNG file.
    """

    pixels: NDArray[np.uint8] | bytes
    text: str

    def __post_init__(self) -> None:
        if isinstance(self.pixels, bytes):
            if not (self.pixels.startswith(_PNG) and self.pixels[12:16] == b"IHDR" and len(self.pixels) >= 24):
                raise ValueError(f"pixels must be the bytes of a PNG file, found {self.pixels[:8]!r}...")
            return
        shape = self.pixels.shape
        if self.pixels.dtype != np.uint8 or not (len(shape) == 2 or (len(shape) == 3 and shape[2] == 3)):
            raise ValueError(
                f"pixels must be uint8 of shape (height, width) or (height, width, 3), "
                f"found {self.pixels.dtype} of shape {shape}"
            )

    @property
    def size(self) -> tuple[int, int]:
        """Width and height in pixels."""
        if isinstance(self.pixels, bytes):
            return int.from_bytes(self.pixels[16:20]), int.from_bytes(self.pixels[20:24])
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
            if len(sheet.rows) != len(self.row_labels):
                raise ValueError(
                    f"sheet {sheet.name!r} must have a row for each of the {len(self.row_labels)} row_labels, "
                    f"found {len(sheet.rows)}"
                )
            for number, row in enumerate(sheet.rows):
                if len(row) != len(self.columns):
                    raise ValueError(
                        f"sheet {sheet.name!r}, row {number} must have a picture for each of the "
                        f"{len(self.columns)} columns, found {len(row)}"
                    )


@dataclass(frozen=True, eq=False)
class Confusion:
    """How often each label was taken for each: ``counts[t, p]`` of shape (n_labels, n_labels), truth down."""

    labels: tuple[str, ...]
    counts: NDArray[np.int64]

    def __post_init__(self) -> None:
        expected = (len(self.labels), len(self.labels))
        if self.counts.shape != expected:
            raise ValueError(f"counts must have shape {expected}, found {self.counts.shape}")

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


def strongest_weights(
    weights: Floats, features: Sequence[str], labels: Sequence[str], n: int = 20
) -> tuple[NamedWeight, ...]:
    """The ``n`` entries of largest magnitude of a table (n_features, n_labels), zeros left out, largest first.

    >>> [w.feature for w in strongest_weights(np.array([[0.0, 1.0], [-3.0, 2.0]]), ["a", "b"], ["x", "y"])]
    ['b', 'b', 'a']
    """
    weights = np.asarray(weights, dtype=np.float64)
    if weights.shape != (len(features), len(labels)):
        raise ValueError(f"weights must have shape {(len(features), len(labels))}, found {weights.shape}")
    magnitude = np.abs(weights).ravel()
    most = min(n, int(np.count_nonzero(magnitude)))
    chosen = np.argsort(-magnitude, kind="stable")[:most]
    rows, columns = np.unravel_index(chosen, weights.shape)
    return tuple(
        NamedWeight(str(features[r]), str(labels[c]), float(weights[r, c])) for r, c in zip(rows, columns, strict=True)
    )


@dataclass(frozen=True, eq=False)
class Tagging:
    """Labels that a learner gives to the tokens of a text, and marginals (n_tokens, n_labels) if it has any."""

    labels: tuple[str, ...]
    marginals: Floats | None = None


@dataclass(frozen=True)
class TaggedText:
    """A text in tokens, its true labels, what learners make of it, and the skip edges of its graph.

    Labels may be plain (``speaker``) or in the BIO scheme (``B-speaker``); ``outside`` is the label of a token that is
    part of nothing. ``gaps[t]`` is the text between token t and the next: a space, nothing, or the end of a line.
    """

    title: str
    tokens: tuple[str, ...]
    truth: tuple[str, ...]
    predictions: Mapping[str, Tagging]
    label_names: tuple[str, ...]  #: the columns of all marginals
    gaps: tuple[str, ...] = ()  #: spaces, where none are given
    skips: tuple[tuple[int, int], ...] = ()
    outside: str = "O"

    def __post_init__(self) -> None:
        n = len(self.tokens)
        if len(self.truth) != n:
            raise ValueError(f"truth must have a label for each of the {n} tokens, found {len(self.truth)}")
        if self.gaps and len(self.gaps) != n:
            raise ValueError(f"gaps must be empty or have one for each of the {n} tokens, found {len(self.gaps)}")
        for name, tagging in self.predictions.items():
            if len(tagging.labels) != n:
                raise ValueError(
                    f"predictions[{name!r}] must label each of the {n} tokens, found {len(tagging.labels)}"
                )
            expected = (n, len(self.label_names))
            if tagging.marginals is not None and tagging.marginals.shape != expected:
                raise ValueError(
                    f"predictions[{name!r}]: marginals must have shape {expected}, found {tagging.marginals.shape}"
                )
        for number, edge in enumerate(self.skips):
            if not all(0 <= end < n for end in edge):
                raise ValueError(f"skips[{number}] must join tokens 0 to {n - 1}, found {edge}")
