"""Entities in sequences of tags: label schemes, spans, and conversion between schemes.

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

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from bactrian.arrays import Ints, integers
from bactrian.errors import ArgumentError

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
    parts = split_tags(tags, scheme, "tags")
    borders = checked_starts(sentence_starts, len(parts), "sentence_starts")
    return joined(parts, borders)


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
    return _tags(sorted(entities, key=lambda entity: entity[1:]), length, checked_scheme(scheme, "scheme"), (), strict)


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
    target = checked_scheme(target, "target")
    parts = split_tags(tags, source, "tags")
    borders = checked_starts(sentence_starts, len(parts), "sentence_starts")
    return _tags(joined(parts, borders), len(parts), target, borders, strict)


def guess_scheme(labels: Iterable[Any]) -> str | None:
    """The scheme whose prefixes a set of labels has, or None where they are not tags of entities.

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


# --- shared with the scores ---


def split_tags(tags: Sequence[str], scheme: str | None, name: str) -> list[tuple[str, str]]:
    """(prefix, type) of each tag, checked against the scheme; ``O`` has an empty type."""
    if isinstance(tags, str) or not isinstance(tags, Iterable):
        raise TypeError(f"{name} must be a sequence of tags, found {tags!r}")
    known = {"O": ("O", "")}
    prefixes = "BIES" if scheme is None else SCHEMES[checked_scheme(scheme, "scheme")]
    parts = []
    for position, tag in enumerate(tags):
        pair = known.get(tag) if isinstance(tag, str) else None
        if pair is None:
            prefix, hyphen, kind = tag.partition("-") if isinstance(tag, str) else ("", "", "")
            if not (hyphen and kind and len(prefix) == 1 and prefix in prefixes):
                expected = ", ".join(f"{letter}-TYPE" for letter in prefixes)
                label = "an entity tag" if scheme is None else f"a tag of {scheme}"
                raise ValueError(f"{name}[{position}] = {tag!r} is not {label}: expected O or {expected}")
            pair = known[tag] = (prefix, kind)
        parts.append(pair)
    return parts


def rising(positions: ArrayLike, length: int, name: str) -> Ints:
    """Positions of tokens, each above the one before."""
    array = integers(positions, name, below=max(length, 1))
    if (np.diff(array) <= 0).any():
        raise ArgumentError(name, f"must rise, found {array.tolist()}")
    return array


def checked_starts(sentence_starts: ArrayLike | None, length: int, name: str) -> frozenset[int]:
    """Positions at which sentences start, as a set."""
    return frozenset() if sentence_starts is None else frozenset(rising(sentence_starts, length, name).tolist())


def joined(parts: Sequence[tuple[str, str]], sentence_starts: frozenset[int]) -> list[Span]:
    """Entities in tags that :func:`split_tags` has split, by conlleval's rules."""
    found: list[Span] = []
    start = -1  # of the entity that is open
    before, kind_before = "O", ""
    for position, (prefix, kind) in enumerate(parts):
        if start >= 0 and (position in sentence_starts or _starts_anew(before, kind_before, prefix, kind)):
            found.append((kind_before, start, position))
            start = -1
        if start < 0 and prefix != "O":
            start = position
        before, kind_before = prefix, kind
    if start >= 0:
        found.append((kind_before, start, len(parts)))
    return found


def _starts_anew(before: str, kind_before: str, prefix: str, kind: str) -> bool:
    """Whether an entity that covers the token before ends there."""
    return prefix in "OBS" or before in "ES" or kind != kind_before


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
    kind_before, end = "", 0
    for number, (kind, start, stop) in enumerate(entities):
        if not (kind and 0 <= start < stop <= length):
            raise ValueError(f"entities[{number}] = {(kind, start, stop)} is not an entity in {length} tokens")
        if start < end:
            raise ValueError(f"entities[{number}] = {(kind, start, stop)} overlaps the entity that ends at {end}")
        touches = start == end and kind == kind_before and start not in sentence_starts
        if touches and strict and scheme == "IO":
            raise ValueError(f"IO cannot keep the two {kind} entities apart that touch at position {start}")
        tags[start:stop] = [f"I-{kind}"] * (stop - start)
        if scheme in ("BIO", "BIOES") or (scheme == "IOB1" and touches):
            tags[start] = f"B-{kind}"
        if scheme == "BIOES":
            tags[stop - 1] = f"S-{kind}" if stop == start + 1 else f"E-{kind}"
        kind_before, end = kind, stop
    return tags
