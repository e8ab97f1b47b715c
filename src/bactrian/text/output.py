"""Predictions as entities with their places in the text, as JSON lines and as columns."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from bactrian.files import atomic_file
from bactrian.text.columns import column_lines
from bactrian.text.documents import Document, joined_text
from bactrian.text.schemes import spans
from bactrian.text.tagged import write_tagged

_NOT_IN_LINES = re.compile("[\\x85\\u2028\\u2029\\ud800-\\udfff]")


@dataclass(frozen=True)
class Entity:
    """A piece of text of some type.

    Attributes
    ----------
    type
        What it is, such as ``"PER"``.
    start, stop
        Its place in the text, in characters.
    text
        The piece itself.
    probability
        The smallest probability of the tags of its tokens, or None. The probability that the whole entity is right
        is at most this.
    """

    type: str
    start: int
    stop: int
    text: str
    probability: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """The attributes, for JSON; a probability only where there is one."""
        values = {"type": self.type, "start": self.start, "stop": self.stop, "text": self.text}
        return values if self.probability is None else {**values, "probability": self.probability}


def find_entities(
    document: Document,
    tags: Sequence[str] | None = None,
    *,
    scheme: str | None = None,
    probabilities: ArrayLike | None = None,
) -> list[Entity]:
    """Entities that tags mark in a document, with their places in its text.

    A document that has no text, as from a file of columns, is given one: words joined by blanks, one sentence per line.

    Parameters
    ----------
    document
        The document.
    tags
        One per token, such as a model predicts; None for those of the document.
    scheme
        Their label scheme; None admits the prefixes of all.
    probabilities
        That of the tag of each token, shape (n_tokens,).

    Examples
    --------
    >>> document = Document(["Ada", "Lovelace", "wrote"])
    >>> find_entities(document, ["B-PER", "I-PER", "O"], probabilities=[0.9, 0.8, 1.0])
    [Entity(type='PER', start=0, stop=12, text='Ada Lovelace', probability=0.8)]
    """
    document = joined_text(document)
    given = document.tags if tags is None else tags
    if given is None:
        raise ValueError("tags must be given for a document that has none")
    if len(given) != len(document):
        raise ValueError(f"tags must have one entry for each of the {len(document)} tokens, found {len(given)}")
    chances = None if probabilities is None else np.asarray(probabilities, dtype=np.float64)
    if chances is not None and chances.shape != (len(document),):
        raise ValueError(f"probabilities must have shape ({len(document)},), found {chances.shape}")
    text, starts, stops = document.text or "", np.asarray(document.starts), np.asarray(document.stops)
    found = []
    for kind, first, last in spans(given, scheme, sentence_starts=document.sentence_starts):
        start, stop = int(starts[first]), int(stops[last - 1])
        probability = None if chances is None else float(chances[first:last].min())
        found.append(Entity(kind, start, stop, text[start:stop], probability))
    return found


def json_line(document: Document, entities: Iterable[Entity]) -> str:
    """A document and its entities as one line of JSON: its name, its text, and the entities with their places.

    Examples
    --------
    >>> document = Document(["Ada", "wrote"], name="a.txt")
    >>> print(json_line(document, find_entities(document, ["B-PER", "O"])))
    {"name": "a.txt", "text": "Ada wrote", "entities": [{"type": "PER", "start": 0, "stop": 3, "text": "Ada"}]}
    """
    record = {
        "name": document.name,
        "text": joined_text(document).text,
        "entities": [entity.as_dict() for entity in entities],
    }
    line = json.dumps(record, allow_nan=False, ensure_ascii=False)
    # What some readers take for the end of a line is escaped, and so are halves of characters, which UTF-8 has not.
    return _NOT_IN_LINES.sub(lambda found: f"\\u{ord(found[0]):04x}", line)


def tagged_text(document: Document, entities: Iterable[Entity]) -> str:
    """The text of a document with its entities in inline tags.

    Examples
    --------
    >>> document = Document(["Ada", "wrote"])
    >>> tagged_text(document, find_entities(document, ["B-PER", "O"]))
    '<PER>Ada</PER> wrote'
    """
    text = joined_text(document).text or ""
    return write_tagged(text, [(entity.type, entity.start, entity.stop) for entity in entities])


def prediction_lines(
    document: Document,
    tags: Sequence[str],
    *,
    probabilities: ArrayLike | None = None,
    separator: str = " ",
    start: bool = False,
) -> Iterator[str]:
    """The lines of a document in a file of columns, with what was predicted in the last.

    The columns are the word; those of the document; where each token starts and stops in the text, if it came from
    one; the document's own tag, if it has one; the probability of the predicted tag, if given; and the predicted tag.
    Where the document has tags and no probabilities are given, this is the format that conlleval reads.

    Examples
    --------
    >>> list(prediction_lines(Document(["Rome", "fell"], tags=["B-LOC", "O"]), ["O", "O"]))
    ['Rome B-LOC O', 'fell O O', '']
    """
    columns: dict[str, Sequence[str]] = dict(document.columns)
    if document.starts is not None and document.stops is not None:
        columns["start"] = [str(place) for place in document.starts.tolist()]
        columns["stop"] = [str(place) for place in document.stops.tolist()]
    if document.tags is not None:
        columns["true"] = document.tags
    if probabilities is not None:
        columns["probability"] = [f"{chance:.4f}" for chance in np.asarray(probabilities, dtype=np.float64).tolist()]
    return column_lines(document.replace(columns=columns, tags=tags), separator=separator, start=start)


def write_lines(path: str | os.PathLike[str], lines: Iterable[str]) -> None:
    """Write lines to a file in UTF-8, replacing what is there in one step."""
    with atomic_file(path) as stream:
        for line in lines:
            stream.write(f"{line}\n".encode())
