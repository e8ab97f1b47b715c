"""Entities in sequences of tags: label schemes, spans, conversion, and scores equal to conlleval's.

A tag is ``O``, or a prefix and an entity type: ``B-PER``. The schemes differ in the prefixes that they know:

========  ==========  =====================================================================================
name      prefixes    an entity
========  ==========  =====================================================================================
IOB1      B I         starts with I, and with B only where it touches an entity of its own type
BIO       B I         starts with B, goes on with I (also called IOB2 or BIO2)
BIOES     B I E S     starts with B and ends with E; one of a single token is S
IO        I           is a run of I: **two that touch and share a type become one**
========  ==========  =====================================================================================

Ill-formed sequences, which a tagger may well predict, are read as conlleval reads them (Tjong Kim Sang & De Meulder,
CoNLL 2003): an entity starts at B or S, at I or E after O, after E or after S, and wherever the type changes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import ArrayLike

#: An entity: its type, the position of its first token, and the position after its last.
Span = tuple[str, int, int]

#: The prefixes of each label scheme.
SCHEMES: dict[str, str] = {"IOB1": "BI", "BIO": "BI", "BIOES": "BIES", "IO": "I"}

_ALIASES = {"BIO2": "BIO", "IOB2": "BIO"}


def spans(tags: Sequence[str], scheme: str | None = None, *, sentence_starts: ArrayLike | None = None) -> list[Span]:
    """Entities in a sequence of tags, as (type, start, stop), in their order.

    Parameters
    ----------
    tags
        One tag per token.
    scheme
        ``"IOB1"``, ``"BIO"``, ``"BIOES"`` or ``"IO"``; None admits the prefixes of all. It decides only which tags
        are admitted: how a sequence is read is the same for all.
    sentence_starts
        Positions at which sentences start, for the tags of a whole document: no entity crosses one.

    Examples
    --------
    >>> spans(["I-PER", "I-PER", "O", "I-LOC", "B-LOC"], "IOB1")
    [('PER', 0, 2), ('LOC', 3, 4), ('LOC', 4, 5)]
    >>> spans(["B-PER", "E-PER", "S-LOC"], "BIOES")
    [('PER', 0, 2), ('LOC', 2, 3)]
    >>> spans(["I-PER", "I-PER"], sentence_starts=[0, 1])
    [('PER', 0, 1), ('PER', 1, 2)]
    """
    parts = _parts(tags, scheme, "tags")
    borders = _borders(sentence_starts, len(parts), "sentence_starts")
    return _spans(parts, borders)


def tags_of(entities: Iterable[Span], length: int, scheme: str = "BIO", *, strict: bool = False) -> list[str]:
    """The tags of ``length`` tokens with the given entities, the inverse of :func:`spans`.

    Parameters
    ----------
    entities
        (type, start, stop), in any order, none overlapping another.
    length
        Number of tokens.
    scheme
        The label scheme to write.
    strict
        Refuse entities that the scheme cannot keep apart: with ``"IO"``, two that touch and share a type.

    Examples
    --------
    >>> tags_of([("PER", 0, 2), ("LOC", 3, 4), ("LOC", 4, 5)], 5, "BIOES")
    ['B-PER', 'E-PER', 'O', 'S-LOC', 'S-LOC']
    """
    return _tags(sorted(entities, key=lambda entity: entity[1:]), length, _scheme(scheme, "scheme"), (), strict)


def convert(
    tags: Sequence[str],
    source: str | None,
    target: str,
    *,
    sentence_starts: ArrayLike | None = None,
    strict: bool = False,
) -> list[str]:
    """Tags of one scheme written in another.

    The entities stay what they are, so converting there and back returns well-formed tags unchanged; ill-formed ones
    come out well-formed. One loss is possible: ``"IO"`` cannot keep two touching entities of one type apart, and
    merges them unless ``strict`` is set, which makes that an error.

    Parameters
    ----------
    tags
        One tag per token.
    source, target
        Label schemes; a source of None admits the prefixes of all.
    sentence_starts
        Positions at which sentences start, for the tags of a whole document.
    strict
        Refuse what ``target`` cannot express.

    Examples
    --------
    >>> convert(["I-PER", "B-PER", "O"], "IOB1", "BIO")
    ['B-PER', 'B-PER', 'O']
    >>> convert(["I-PER", "I-PER"], "IOB1", "BIOES", sentence_starts=[0, 1])
    ['S-PER', 'S-PER']
    """
    target = _scheme(target, "target")
    parts = _parts(tags, source, "tags")
    borders = _borders(sentence_starts, len(parts), "sentence_starts")
    return _tags(_spans(parts, borders), len(parts), target, borders, strict)


def guess_scheme(labels: Iterable[Any]) -> str | None:
    """The scheme whose prefixes a set of labels has, or None where they are no tags of entities.

    E or S means BIOES, I alone IO, and B with I is taken for BIO: IOB1 has the same prefixes, and :func:`spans` reads
    both alike.

    Examples
    --------
    >>> guess_scheme({"O", "B-PER", "I-PER"}), guess_scheme(["noun", "verb"])
    ('BIO', None)
    """
    prefixes = set()
    for label in labels:
        if not isinstance(label, str):
            return None
        if label != "O":
            prefix, hyphen, kind = label.partition("-")
            if not (hyphen and kind and prefix in ("B", "I", "E", "S")):
                return None
            prefixes.add(prefix)
    if not prefixes:
        return None
    return "BIOES" if prefixes & {"E", "S"} else "BIO" if "B" in prefixes else "IO"


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
        borders = _borders(where, len(ours), f"sentence_starts[{number}]")
        found = [
            _spans(_parts(tags, scheme, f"{name}[{number}]"), borders)
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
        labels = [
            [tag if prefixes or prefix == "O" else kind for tag, (prefix, kind) in zip(tags, parts, strict=True)]
            for tags, parts in (
                (ours, _parts(ours, None, f"true[{number}]")),
                (theirs, _parts(theirs, None, f"predicted[{number}]")),
            )
        ]
        outside = [[prefix == "O" for prefix, _ in _parts(tags, None, "")] for tags in (ours, theirs)]
        for a, b, a_outside, b_outside in zip(*labels, *outside, strict=True):
            if not a_outside:
                counts.setdefault(a, [0, 0, 0])[0] += 1
            if not b_outside:
                counts.setdefault(b, [0, 0, 0])[1] += 1
                if a == b and not a_outside:
                    counts[b][2] += 1
    return _scores(counts)
