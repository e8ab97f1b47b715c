"""Entities in sequences of tags: label schemes, spans, conversion between schemes, and scores, which equal conlleval's.

A tag is ``O``, or a prefix and an entity type: ``B-PER``. The schemes differ in the prefixes that they know:

========  ==========  =====================================================================================
name      prefixes    an entity
========  ==========  =====================================================================================
IOB1      B I         starts with I, and with B only where it touches an entity of its own type
BIO       B I         starts with B, goes on with I (also called IOB2 or BIO2)
BIOES     B I E S     starts with B and ends with E; one of a single token is S
BILOU     B I L U     is one of BIOES with L for E and U for S
BMES      B M E S     is one of BIOES with M for I
IO        I           is a run of I: **two that touch and share a type become one**
========  ==========  =====================================================================================

Ill-formed sequences, which a tagger may well predict, are read as conlleval reads them (Tjong Kim Sang & De Meulder,
CoNLL 2003): an entity starts at B or S, at I or E after O, after E or after S, and wherever the type changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from bactrian.arrays import Bools, Ints, integers
from bactrian.errors import ArgumentError, check_count

#: An entity: its type, the position of its first token, and the position after its last.
Span = tuple[str, int, int]

#: The prefixes of each label scheme.
SCHEMES: dict[str, str] = {
    "IOB1": "BI",
    "BIO": "BI",
    "BIOES": "BIES",
    "BILOU": "BILU",
    "BMES": "BMES",
    "IO": "I",
}

_ALIASES = {"BIO2": "BIO", "IOB2": "BIO", "IOBES": "BIOES", "BILUO": "BILOU"}

#: All prefixes, as those of BIOES, and the letters of schemes that are BIOES in other letters.
_IN_BIOES = {"B": "B", "I": "I", "E": "E", "S": "S", "L": "E", "U": "S", "M": "I"}
_LETTERS = {"BILOU": {"E": "L", "S": "U"}, "BMES": {"I": "M"}}


def spans(tags: Sequence[str], scheme: str | None = None, *, sentence_starts: ArrayLike | None = None) -> list[Span]:
    """Entities in a sequence of tags, as (type, start, stop), in their order.

    ``scheme``, one of :data:`SCHEMES`, decides only which tags are admitted, None those of all: how a sequence is read
    is the same for all. ``sentence_starts`` are positions at which sentences start, for the tags of a whole document:
    no entity crosses one.

    Examples
    --------
    >>> spans(["I-PER", "I-PER", "O", "I-LOC", "B-LOC"], "IOB1")
    [('PER', 0, 2), ('LOC', 3, 4), ('LOC', 4, 5)]
    >>> spans(["B-PER", "E-PER", "S-LOC"], "BIOES")
    [('PER', 0, 2), ('LOC', 2, 3)]
    >>> spans(["I-PER", "I-PER"], sentence_starts=[0, 1])
    [('PER', 0, 1), ('PER', 1, 2)]
    """
    parts = _split_tags(tags, scheme, "tags")
    borders = _checked_starts(sentence_starts, len(parts), "sentence_starts")
    return _joined(parts, borders)


def tags_of(entities: Iterable[Span], length: int, scheme: str = "BIO", *, strict: bool = False) -> list[str]:
    """The tags of ``length`` tokens with the given entities, in any order: the inverse of :func:`spans`.

    ``strict`` refuses entities that the scheme cannot keep apart: with ``"IO"``, two that touch and share a type.

    Examples
    --------
    >>> tags_of([("PER", 0, 2), ("LOC", 3, 4), ("LOC", 4, 5)], 5, "BIOES")
    ['B-PER', 'E-PER', 'O', 'S-LOC', 'S-LOC']
    """
    return _tags(sorted(entities, key=lambda entity: entity[1:]), length, checked_scheme(scheme, "scheme"), (), strict)


def convert(
    tags: Sequence[str],
    source: str | None,
    target: str,
    *,
    sentence_starts: ArrayLike | None = None,
    strict: bool = False,
) -> list[str]:
    """Tags of one scheme written in another; a source of None admits the prefixes of all.

    The entities stay what they are, so converting there and back returns well-formed tags unchanged; ill-formed ones
    come out well-formed. One loss is possible: ``"IO"`` cannot keep two touching entities of one type apart, and
    merges them unless ``strict`` is set, which makes that an error. ``sentence_starts`` as in :func:`spans`.

    Examples
    --------
    >>> convert(["I-PER", "B-PER", "O"], "IOB1", "BIO")
    ['B-PER', 'B-PER', 'O']
    >>> convert(["I-PER", "I-PER"], "IOB1", "BIOES", sentence_starts=[0, 1])
    ['S-PER', 'S-PER']
    """
    target = checked_scheme(target, "target")
    parts = _split_tags(tags, source, "tags")
    borders = _checked_starts(sentence_starts, len(parts), "sentence_starts")
    return _tags(_joined(parts, borders), len(parts), target, borders, strict)


def guess_scheme(labels: Iterable[Any]) -> str | None:
    """The scheme whose prefixes a set of labels has, or None where they are not tags of entities.

    L or U means BILOU, M means BMES, E or S BIOES, I alone IO, and B with I is taken for BIO: IOB1 has the same
    prefixes, and :func:`spans` reads both alike.

    Examples
    --------
    >>> guess_scheme({"O", "B-PER", "I-PER"}), guess_scheme(["noun", "verb"])
    ('BIO', None)
    """
    prefixes = {_prefix(label) if isinstance(label, str) else "" for label in labels if label != "O"}
    order = ("IO", "BIO", "BIOES", "BILOU", "BMES")
    return next((name for name in order if prefixes and prefixes <= set(SCHEMES[name])), None)


def allowed_transitions(tags: Sequence[str], scheme: str | None = None) -> tuple[Bools, Bools, Bools]:
    """Which tag may follow which, which may be the first, and which the last, in well-formed sequences.

    The first array has a row for each tag before and a column for each that follows, in the order of ``tags``; by
    default the scheme is what :func:`guess_scheme` says.

    Examples
    --------
    >>> between, first, last = allowed_transitions(["O", "B-PER", "I-PER", "I-LOC"], "BIO")
    >>> between.astype(int).tolist(), first.tolist()
    ([[1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 0], [1, 1, 0, 1]], [True, True, False, False])
    """
    found = guess_scheme(tags) if scheme is None else checked_scheme(scheme, "scheme")
    if found is None:
        raise ArgumentError("tags", f"must be written in a known scheme, found {list(tags)!r}")

    def may_follow(before: tuple[str, str], after: tuple[str, str]) -> bool:
        inside = before[0] in "BI" and before[1] == after[1]
        if found in ("IO", "IOB1"):
            return found == "IO" or after[0] != "B" or inside
        if found == "BIO" or before[0] not in "BI":
            return after[0] not in "IE" or inside
        return after[0] in "IE" and inside

    parts, outside = _split_tags(tags, found, "tags"), ("O", "")
    between = np.array([[may_follow(before, after) for after in parts] for before in parts])
    ends = [may_follow(outside, part) for part in parts], [may_follow(part, outside) for part in parts]
    return between, np.array(ends[0]), np.array(ends[1])


def entity_tags(counts: Mapping[str, int]) -> dict[str, str] | None:
    """For each tag of a data set, the tag with prefix and type that it stands for; None where they mark no entities.

    Types without a prefix are runs of one type, as in ``"IO"``, where ``O`` is the most frequent tag; prefixes without
    a type (``B M E S``) get the type ``SPAN``.

    ``counts`` says how often each tag occurs. A tag that is not an entity tag, where others are, is an ArgumentError,
    whose ``argument`` is the tag.

    Examples
    --------
    >>> entity_tags({"O": 90, "PER": 10}), entity_tags({"S": 5, "B": 7, "E": 7}), entity_tags({"noun": 3, "verb": 2})
    ({'O': 'O', 'PER': 'I-PER'}, {'S': 'S-SPAN', 'B': 'B-SPAN', 'E': 'E-SPAN'}, None)
    """
    marks = [tag for tag in counts if tag != "O"]
    whole = [tag for tag in marks if _prefix(tag)]
    if any(tag[0] in "BI" for tag in whole) and len(whole) < len(marks):
        stray = next(tag for tag in marks if tag not in whole)
        raise ArgumentError(stray, f"is not an entity tag, but others are: {', '.join(sorted(whole)[:3])}")
    if whole == marks:
        written = {tag: tag for tag in marks}
    elif "B" in marks and any(set(marks) <= set(letters) for letters in SCHEMES.values()):
        written = {tag: f"{tag}-SPAN" for tag in marks}
    elif "O" in counts and counts["O"] == max(counts.values()):
        written = {tag: f"I-{tag}" for tag in marks}
    else:
        return None
    if guess_scheme(written.values()) is None and written:
        found = ", ".join(f"{prefix}-" for prefix in sorted({tag[0] for tag in written.values()}))
        raise ArgumentError(marks[0], f"and others have prefixes that no scheme has: {found}")
    return {tag: written.get(tag, "O") for tag in counts}


def _prefix(tag: str) -> str:
    """The prefix of an entity tag; nothing for any other."""
    prefix, hyphen, kind = tag.partition("-")
    return prefix if hyphen and kind and prefix in _IN_BIOES else ""


def _split_tags(tags: Sequence[str], scheme: str | None, name: str) -> list[tuple[str, str]]:
    """(prefix of BIOES, type) of each tag, checked against the scheme; ``O`` has an empty type."""
    if isinstance(tags, str) or not isinstance(tags, Iterable):
        raise TypeError(f"{name} must be a sequence of tags, found {tags!r}")
    known = {"O": ("O", "")}
    prefixes = "".join(_IN_BIOES) if scheme is None else SCHEMES[checked_scheme(scheme, "scheme")]
    parts = []
    for position, tag in enumerate(tags):
        pair = known.get(tag) if isinstance(tag, str) else None
        if pair is None:
            prefix = _prefix(tag) if isinstance(tag, str) else ""
            if not (prefix and prefix in prefixes):
                expected = ", ".join(f"{letter}-TYPE" for letter in prefixes)
                label = "an entity tag" if scheme is None else f"a tag of {scheme}"
                raise ValueError(f"{name}[{position}] = {tag!r} is not {label}: expected O or {expected}")
            pair = known[tag] = (_IN_BIOES[prefix], tag.partition("-")[2])
        parts.append(pair)
    return parts


def rising(positions: ArrayLike, length: int, name: str) -> Ints:
    """Positions of tokens, each above the one before."""
    array = integers(positions, name, below=max(length, 1))
    if (np.diff(array) <= 0).any():
        raise ArgumentError(name, f"must rise, found {array.tolist()}")
    return array


def _checked_starts(sentence_starts: ArrayLike | None, length: int, name: str) -> frozenset[int]:
    """Positions at which sentences start, as a set."""
    return frozenset() if sentence_starts is None else frozenset(rising(sentence_starts, length, name).tolist())


def _joined(parts: Sequence[tuple[str, str]], sentence_starts: frozenset[int]) -> list[Span]:
    """Entities in tags that :func:`_split_tags` has split, by conlleval's rules."""
    found: list[Span] = []
    start = -1  # of the entity that is open
    before, kind_before = "O", ""
    for position, (prefix, kind) in enumerate(parts):
        ends = prefix in "OBS" or before in "ES" or kind != kind_before or position in sentence_starts
        if start >= 0 and ends:
            found.append((kind_before, start, position))
            start = -1
        if start < 0 and prefix != "O":
            start = position
        before, kind_before = prefix, kind
    if start >= 0:
        found.append((kind_before, start, len(parts)))
    return found


def checked_scheme(scheme: str, name: str) -> str:
    """The scheme by its own name, where it was called by another; an error calls the argument ``name``."""
    known = _ALIASES.get(scheme, scheme) if isinstance(scheme, str) else None
    if known not in SCHEMES:
        raise ArgumentError(name, f"must be one of {', '.join(SCHEMES)}, found {scheme!r}")
    return known


def _tags(
    entities: Sequence[Span], length: int, scheme: str, sentence_starts: Collection[int], strict: bool
) -> list[str]:
    """Tags of entities sorted by position; those of IOB1 depend on where sentences start."""
    tags = ["O"] * length
    letters = _LETTERS.get(scheme, {})
    kind_before, end = "", 0
    for number, (kind, start, stop) in enumerate(entities):
        if not (kind and 0 <= start < stop <= length):
            raise ValueError(f"entities[{number}] = {(kind, start, stop)} is not an entity in {length} tokens")
        if start < end:
            raise ValueError(f"entities[{number}] = {(kind, start, stop)} overlaps the entity that ends at {end}")
        touches = start == end and kind == kind_before and start not in sentence_starts
        if touches and strict and scheme == "IO":
            raise ValueError(f"IO cannot separate the two {kind} entities that touch at position {start}")
        inside = [letters.get("I", "I")] * (stop - start)
        if scheme not in ("IO", "IOB1") or (scheme == "IOB1" and touches):
            inside[0] = "B"
        if scheme in ("BIOES", "BILOU", "BMES"):
            inside[-1] = letters.get("E", "E") if stop > start + 1 else letters.get("S", "S")
        tags[start:stop] = [f"{letter}-{kind}" for letter in inside]
        kind_before, end = kind, stop
    return tags


# --- scores ---


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
    """Scores of each type, and over all of them."""

    types: dict[str, Score]  #: of each type that occurs in the truth or in the predictions, by name, sorted
    micro: Score  #: of all types thrown together; ``micro.f1`` is what conlleval prints as overall FB1

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

    Sequences of tags are sentences, or documents with the ``sentence_starts`` of each: no entity crosses one. Both must
    keep to the scheme; None admits the prefixes of all.

    Examples
    --------
    >>> scores = entity_scores([["B-PER", "I-PER", "O", "B-LOC"]], [["B-PER", "I-PER", "O", "O"]])
    >>> scores.micro.precision, scores.micro.recall, scores.macro_f1
    (1.0, 0.5, 0.5)
    >>> scores.types["PER"]
    Score(n_true=1, n_predicted=1, n_correct=1)
    """
    there, guessed, right = Counter[str](), Counter[str](), Counter[str]()
    pairs = _pairs(true, predicted)
    starts = [None] * len(pairs) if sentence_starts is None else _listed(sentence_starts, "sentence_starts")
    check_count("sentence_starts", len(starts), len(pairs), "entry per sequence")
    for number, ((ours, theirs), where) in enumerate(zip(pairs, starts, strict=True)):
        borders = _checked_starts(where, len(ours), f"sentence_starts[{number}]")
        found = [
            _joined(_split_tags(tags, scheme, f"{name}[{number}]"), borders)
            for name, tags in (("true", ours), ("predicted", theirs))
        ]
        both = set(found[0]).intersection(found[1])
        for counter, entities in ((there, found[0]), (guessed, found[1]), (right, both)):
            counter.update(kind for kind, *_ in entities)
    return _scores(there, guessed, right)


def token_scores(
    true: Iterable[Sequence[str]], predicted: Iterable[Sequence[str]], *, prefixes: bool = False
) -> Scores:
    """Precision, recall and F1 of single tokens, over all labels but ``O``.

    A token is right where the *entity type* is, whatever the prefix, and the scores are by type; with ``prefixes`` the
    whole tag must be right, and the scores are by tag.

    Examples
    --------
    >>> true, predicted = [["B-PER", "I-PER", "O"]], [["B-PER", "B-PER", "I-PER"]]
    >>> token_scores(true, predicted).micro_f1, token_scores(true, predicted, prefixes=True).micro_f1
    (0.8, 0.4)
    """
    there, guessed, right = Counter[str](), Counter[str](), Counter[str]()
    for number, (ours, theirs) in enumerate(_pairs(true, predicted)):
        labels = _labels(ours, prefixes, f"true[{number}]"), _labels(theirs, prefixes, f"predicted[{number}]")
        there.update(filter(None, labels[0]))
        guessed.update(filter(None, labels[1]))
        right.update(a for a, b in zip(*labels, strict=True) if a and a == b)
    return _scores(there, guessed, right)


def _labels(tags: Sequence[str], prefixes: bool, name: str) -> list[str]:
    """What is compared of each token; empty outside entities."""
    parts = _split_tags(tags, None, name)
    if prefixes:
        return [tag if kind else "" for tag, (_, kind) in zip(tags, parts, strict=True)]
    return [kind for _, kind in parts]


def _scores(*counts: Counter[str]) -> Scores:
    """Scores of all names, by how many there are, were predicted, and are right."""
    names: set[str] = set().union(*counts)
    types = {name: Score(*(counter[name] for counter in counts)) for name in sorted(names)}
    return Scores(types, Score(*(counter.total() for counter in counts)))


def _listed(values: Iterable[Any], name: str) -> list[Any]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise TypeError(f"{name} must be a list of sequences, found {values!r}")
    return list(values)


def _pairs(
    true: Iterable[Sequence[str]], predicted: Iterable[Sequence[str]]
) -> list[tuple[Sequence[str], Sequence[str]]]:
    """Each true sequence with its prediction, their lengths checked."""
    ours, theirs = _listed(true, "true"), _listed(predicted, "predicted")
    check_count("predicted", len(theirs), len(ours), "sequence per sequence of true")
    for number, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        for name, tags in (("true", a), ("predicted", b)):
            if isinstance(tags, str) or not hasattr(tags, "__len__"):
                raise TypeError(f"{name}[{number}] must be a sequence of tags, found {tags!r}")
        check_count("predicted", len(b), len(a), f"tag per tag of true[{number}]", number)
    return list(zip(ours, theirs, strict=True))
