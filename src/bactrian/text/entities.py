"""Scores of predicted entities and of single tokens; those of entities equal conlleval's."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import ArrayLike

from bactrian.text.schemes import checked_starts, joined, split_tags


@dataclass(frozen=True)
class Score:
    """How many were there, how many were predicted, and how many of these were right."""

    n_true: int
    n_predicted: int
    n_correct: int

    @property
    def precision(self) -> float:
        """Share of the predicted that is right; 0 where nothing was predicted."""
        return self.n_correct / self.n_predicted if self.n_predicted else 0.0

    @property
    def recall(self) -> float:
        """Share of the true that was found; 0 where there was nothing to find."""
        return self.n_correct / self.n_true if self.n_true else 0.0

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall; 0 where both are."""
        total = self.n_true + self.n_predicted
        return 2 * self.n_correct / total if total else 0.0

    @property
    def support(self) -> int:
        """Number of the true."""
        return self.n_true

    def as_dict(self) -> dict[str, float]:
        """Precision, recall, F1 and support, for JSON."""
        return {"precision": self.precision, "recall": self.recall, "f1": self.f1, "support": self.n_true}


@dataclass(frozen=True)
class Scores:
    """Scores of each type, and over all of them.

    Attributes
    ----------
    types
        The score of each type that occurs in the truth or in the predictions, by name, sorted.
    micro
        The score of all types thrown together; ``micro.f1`` is what conlleval prints as overall FB1.
    """

    types: dict[str, Score]
    micro: Score

    @property
    def macro_precision(self) -> float:
        """Mean precision of the types."""
        return self._mean("precision")

    @property
    def macro_recall(self) -> float:
        """Mean recall of the types."""
        return self._mean("recall")

    @property
    def macro_f1(self) -> float:
        """Mean F1 of the types."""
        return self._mean("f1")

    @property
    def micro_f1(self) -> float:
        """F1 of all types thrown together."""
        return self.micro.f1

    def as_dict(self) -> dict[str, Any]:
        """All figures, for JSON."""
        macro = {"precision": self.macro_precision, "recall": self.macro_recall, "f1": self.macro_f1}
        return {
            "micro": self.micro.as_dict(),
            "macro": macro,
            "types": {name: score.as_dict() for name, score in self.types.items()},
        }

    def _mean(self, figure: str) -> float:
        values = [getattr(score, figure) for score in self.types.values()]
        return sum(values) / len(values) if values else 0.0


def entity_scores(
    true: Iterable[Sequence[str]],
    predicted: Iterable[Sequence[str]],
    *,
    scheme: str | None = None,
    sentence_starts: Iterable[ArrayLike | None] | None = None,
) -> Scores:
    """Precision, recall and F1 of entities, as conlleval counts: type and both ends must be right.

    Parameters
    ----------
    true, predicted
        Sequences of tags: sentences, or documents.
    scheme
        The label scheme that both must keep to; None admits the prefixes of all.
    sentence_starts
        For documents, where the sentences of each start: no entity crosses one.

    Examples
    --------
    >>> scores = entity_scores([["B-PER", "I-PER", "O", "B-LOC"]], [["B-PER", "I-PER", "O", "O"]])
    >>> scores.micro.precision, scores.micro.recall, scores.macro_f1
    (1.0, 0.5, 0.5)
    >>> scores.types["PER"]
    Score(n_true=1, n_predicted=1, n_correct=1)
    """
    counts: dict[str, list[int]] = {}
    starts = itertools.repeat(None) if sentence_starts is None else _listed(sentence_starts, "sentence_starts")
    pairs = _pairs(true, predicted)
    if isinstance(starts, list) and len(starts) != len(pairs):
        raise ValueError(f"sentence_starts must have one entry per sequence: {len(pairs)}, found {len(starts)}")
    for number, ((ours, theirs), where) in enumerate(zip(pairs, starts, strict=False)):
        borders = checked_starts(where, len(ours), f"sentence_starts[{number}]")
        found = [
            joined(split_tags(tags, scheme, f"{name}[{number}]"), borders)
            for name, tags in (("true", ours), ("predicted", theirs))
        ]
        for kind, *_ in found[0]:
            counts.setdefault(kind, [0, 0, 0])[0] += 1
        for kind, *_ in found[1]:
            counts.setdefault(kind, [0, 0, 0])[1] += 1
        for kind, *_ in set(found[0]).intersection(found[1]):
            counts[kind][2] += 1
    return _scores(counts)


def token_scores(
    true: Iterable[Sequence[str]], predicted: Iterable[Sequence[str]], *, prefixes: bool = False
) -> Scores:
    """Precision, recall and F1 of single tokens, over all labels but ``O``.

    Parameters
    ----------
    true, predicted
        Sequences of tags.
    prefixes
        False: a token is right where the *entity type* is, whatever the prefix; the scores are by type. True: the
        whole tag must be right, and the scores are by tag.

    Examples
    --------
    >>> true, predicted = [["B-PER", "I-PER", "O"]], [["B-PER", "B-PER", "I-PER"]]
    >>> token_scores(true, predicted).micro_f1, token_scores(true, predicted, prefixes=True).micro_f1
    (0.8, 0.4)
    """
    counts: dict[str, list[int]] = {}
    for number, (ours, theirs) in enumerate(_pairs(true, predicted)):
        for a, b in zip(
            _labels(ours, prefixes, f"true[{number}]"), _labels(theirs, prefixes, f"predicted[{number}]"), strict=True
        ):
            if a:
                counts.setdefault(a, [0, 0, 0])[0] += 1
            if b:
                counts.setdefault(b, [0, 0, 0])[1] += 1
                counts[b][2] += a == b
    return _scores(counts)


def _labels(tags: Sequence[str], prefixes: bool, name: str) -> list[str]:
    """What is compared of each token; empty outside entities."""
    parts = split_tags(tags, None, name)
    if prefixes:
        return [tag if kind else "" for tag, (_, kind) in zip(tags, parts, strict=True)]
    return [kind for _, kind in parts]


def _scores(counts: dict[str, list[int]]) -> Scores:
    total = [sum(column) for column in zip(*counts.values(), strict=True)] or [0, 0, 0]
    return Scores({name: Score(*counts[name]) for name in sorted(counts)}, Score(*total))


def _listed(values: Iterable[Any], name: str) -> list[Any]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise TypeError(f"{name} must be a list of sequences, found {values!r}")
    return list(values)


def _pairs(
    true: Iterable[Sequence[str]], predicted: Iterable[Sequence[str]]
) -> list[tuple[Sequence[str], Sequence[str]]]:
    """Each true sequence with its prediction, their lengths checked."""
    ours, theirs = _listed(true, "true"), _listed(predicted, "predicted")
    if len(ours) != len(theirs):
        raise ValueError(f"predicted must have as many sequences as true: expected {len(ours)}, found {len(theirs)}")
    for number, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        for name, tags in (("true", a), ("predicted", b)):
            if isinstance(tags, str) or not hasattr(tags, "__len__"):
                raise TypeError(f"{name}[{number}] must be a sequence of tags, found {tags!r}")
        if len(a) != len(b):
            raise ValueError(f"predicted[{number}] must have {len(a)} tags like true[{number}], found {len(b)}")
    return list(zip(ours, theirs, strict=True))
