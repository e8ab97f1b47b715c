"""Bytes of files as text: whole, or line by line, without the mark that some programs put before UTF-8."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator


def decoded(content: bytes, encoding: str, where: str) -> str:
    """The text of a file, or an error that says where it is and what to do."""
    return _decoded(content.removeprefix(codecs.BOM_UTF8), encoding, where)


def decoded_lines(stream: Iterable[bytes], encoding: str, where: str) -> Iterator[str]:
    r"""The lines of a file without their ends; errors name the line.

    >>> list(decoded_lines([b"\xef\xbb\xbfRome\r\n", b"fell\n"], "utf-8", "small.txt"))
    ['Rome', 'fell']
    """
    if b"\n".decode(encoding, "replace") != "\n":
        raise ValueError(f"{where} is read by lines, which {encoding} hides; convert the file to utf-8")
    for number, line in enumerate(stream, start=1):
        content = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
        yield _decoded(content, encoding, f"{where}, line {number}").rstrip("\r\n")


def _decoded(content: bytes, encoding: str, where: str) -> str:
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        raise ValueError(f"{where}: not {encoding}: {error}; give its encoding (encoding=, or --encoding)") from None
