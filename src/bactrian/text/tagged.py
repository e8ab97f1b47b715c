"""Text with inline tags such as ``at <stime>4 pm</stime>``, read and written, and the seminars of Freitag (1998).

This is not XML: tags other than those asked for are text, nothing is escaped, and tags that only mark layout may be
unclosed or cross the others. So it is read by hand, and those are taken out first.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from bactrian.text.documents import Document, decoded
from bactrian.text.tokenizer import tokenize

#: A marked piece of text: its type, and the offsets of its first character and of the one after its last.
TextSpan = tuple[str, int, int]


def read_tagged(text: str, fields: Sequence[str], *, drop: Sequence[str] = ()) -> tuple[str, list[TextSpan]]:
    """Take the tags out of a text: the text without, and what was marked, as (field, start, stop) in its order.

    ``fields`` names the tags that mark something, ``drop`` others that are taken out without a trace, closed or not. A
    tag inside another, or one that is not opened or not closed, is a ValueError that names the line.

    Examples
    --------
    >>> read_tagged("<p>from <stime>4</stime>-<etime>5 pm</etime>, <ada@x>", ["stime", "etime"], drop=["p"])
    ('from 4-5 pm, <ada@x>', [('stime', 5, 6), ('etime', 7, 11)])
    """
    names = _checked_names(fields, "fields")
    if drop:
        text = re.sub(f"</?(?:{'|'.join(map(re.escape, _checked_names(drop, 'drop')))})>", "", text)
    pieces: list[str] = []
    marked: list[TextSpan] = []
    length = end = 0
    opened: tuple[str, int] | None = None
    for tag in re.finditer(f"<(/?)({'|'.join(map(re.escape, names))})>", text):
        pieces.append(text[end : tag.start()])
        length, end = length + tag.start() - end, tag.end()
        closing, name = tag[1] == "/", tag[2]
        if closing != (opened is not None) or (opened is not None and opened[0] != name):
            inside = f" inside <{opened[0]}>" if opened else ""
            raise ValueError(f"line {_line(text, tag.start())}: unexpected {tag[0]}{inside}")
        if opened is None:
            opened = (name, length)
        else:
            marked.append((name, opened[1], length))
            opened = None
    if opened is not None:
        raise ValueError(f"<{opened[0]}> is never closed")
    return "".join([*pieces, text[end:]]), marked


def write_tagged(text: str, marked: Iterable[TextSpan]) -> str:
    """Put tags into a text, the inverse of :func:`read_tagged`.

    What is marked, (field, start, stop) in characters, may come in any order, none overlapping another.

    Examples
    --------
    >>> write_tagged("from 4-5 pm", [("stime", 5, 6), ("etime", 7, 11)])
    'from <stime>4</stime>-<etime>5 pm</etime>'
    """
    pieces, end = [], 0
    for number, (field, start, stop) in enumerate(sorted(marked, key=lambda span: span[1:])):
        if not end <= start <= stop <= len(text):
            raise ValueError(
                f"marked[{number}] = {(field, start, stop)} (sorted) must lie between {end}, the end of the one "
                f"before, and {len(text)}, the end of the text"
            )
        pieces += [text[end:start], f"<{field}>", text[start:stop], f"</{field}>"]
        end = stop
    return "".join([*pieces, text[end:]])


def _line(text: str, offset: int) -> int:
    return text.count("\n", 0, offset) + 1


def _checked_names(names: Sequence[str], argument: str) -> tuple[str, ...]:
    checked = (names,) if isinstance(names, str) else tuple(names)
    if not checked or not all(isinstance(name, str) and name for name in checked):
        raise ValueError(f"{argument} must be names of tags, found {names!r}")
    return checked


# --- announcements of seminars ---

#: What the announcements mark.
SEMINAR_FIELDS = ("stime", "etime", "location", "speaker")

#: Tags of layout, some of them unclosed and some crossing those of the fields.
_LAYOUT = ("sentence", "paragraph")

_MESSAGE_ID = re.compile(r"<[^<>\n]*>[^\S\n]*\n")


def _place(path: Path) -> tuple[bool, int, str]:
    return not path.stem.isdecimal(), int(path.stem) if path.stem.isdecimal() else 0, path.name


def read_seminars(
    folder: str | os.PathLike[str],
    *,
    scheme: str = "BIO",
    fields: Sequence[str] = SEMINAR_FIELDS,
    drop: Sequence[str] = _LAYOUT,
    sentences: str = "document",
    encoding: str = "utf-8",
) -> Iterator[Document]:
    """Read the e-mails of a folder, ``*.txt``, one after the other, ``2.txt`` before ``10.txt``.

    ``scheme`` is that of the tags that are made; ``fields`` and ``drop`` are those of
    :func:`~bactrian.text.tagged.read_tagged`, ``sentences`` those of :func:`~bactrian.text.tokenizer.tokenize`: fields
    run across lines, so each e-mail is one sentence unless told otherwise. Tags that do not match are a ValueError that
    names the file, as is a folder without any files.
    """
    folder = Path(folder)
    paths = sorted(folder.glob("*.txt"), key=_place)
    if not paths:
        raise ValueError(f"{folder} holds no .txt files")

    def read(path: Path) -> Document:
        text = decoded(path.read_bytes(), encoding, str(path))
        try:
            return parse_seminar(text, name=path.name, scheme=scheme, fields=fields, drop=drop, sentences=sentences)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    return map(read, paths)


def parse_seminar(
    text: str,
    *,
    name: str = "",
    scheme: str = "BIO",
    fields: Sequence[str] = SEMINAR_FIELDS,
    drop: Sequence[str] = _LAYOUT,
    sentences: str = "document",
) -> Document:
    r"""Read one e-mail, or any text with such tags.

    A first line that is one pair of brackets is the message's number; it stays in the text but has no tokens.

    Examples
    --------
    >>> document = parse_seminar("<0.1@x>\n<sentence>Come at <stime>4 pm</stime>.\n")
    >>> document.words, document.tags
    (('Come', 'at', '4', 'pm', '.'), ('O', 'O', 'B-stime', 'I-stime', 'O'))
    >>> document.text
    '<0.1@x>\nCome at 4 pm.\n'
    """
    plain, marked = read_tagged(text, fields, drop=drop)
    number = _MESSAGE_ID.match(plain)
    document = tokenize(plain, "plain", sentences=sentences, name=name, skip=number.end() if number else 0)
    return document.with_spans(marked, scheme)
