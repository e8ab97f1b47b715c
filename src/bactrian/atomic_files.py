"""Files that are either there whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

#: Seconds after which a draft that nobody has written to is one of a killed process.
_STALE = 3600.0
#: Characters of a name that a draft's name repeats; names have an end, at 255 bytes on most systems.
_NAME = 50


@contextlib.contextmanager
def atomic_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a file to be written that takes the place of ``path`` in one step, at the end of the ``with`` block.

    What is written goes to a file beside ``path`` first, so a reader, or a crash, sees the old content or the new,
    never a part of it; after an exception the old content stays. The target of a link is replaced, and the link stays;
    devices and pipes are written to as they are.
    """
    path = Path(path)
    if is_stream(path):
        with path.open("wb") as stream:
            yield stream
        return
    target = destination(path)
    if not target.parent.is_dir():
        raise FileNotFoundError(f"{path} cannot be written: there is no folder {target.parent}")
    if target.is_dir():
        raise IsADirectoryError(f"{path} cannot be written: it is a folder")
    draft = new_draft(target)
    try:
        with draft.open("xb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        draft.replace(target)
    except OSError as problem:
        # A full disk names no file, and the draft's name means nothing to the caller.
        if problem.errno is None or problem.filename not in (None, str(draft)):
            raise
        raise type(problem)(problem.errno, problem.strerror, str(path)) from None
    finally:
        draft.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Make a folder to be filled that becomes ``path``, missing or empty so far, at the end of the ``with`` block.

    Where ``path`` is a link, the folder appears where it points to.
    """
    target = destination(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = new_draft(target)
    try:
        draft.mkdir()
    except OSError as problem:  # the draft's name means nothing to the caller
        raise ValueError(f"{path} cannot be made: {problem.strerror}") from None
    try:
        yield draft
        try:
            if target.is_dir():
                target.rmdir()  # some systems rename onto no folder
            draft.rename(target)
        except OSError as problem:
            if not target.exists():
                raise
            raise ValueError(f"{path} was filled by another process meanwhile; choose another name") from problem
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def destination(path: str | os.PathLike[str]) -> Path:
    """The path itself, or the target of a link; circular links are an OSError."""
    if not os.path.islink(path):
        return Path(path)
    target = Path(os.path.realpath(path))
    if target.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    return target


def is_stream(path: Path) -> bool:
    """Whether the path is a device or a pipe, which is written to but never replaced."""
    return path.exists() and not path.is_file() and not path.is_dir()


def new_draft(path: Path) -> Path:
    """A name beside ``path`` for a draft of it; old drafts of killed processes are removed."""
    name = path.name[:_NAME]
    for entry in path.parent.glob(f".{glob.escape(name)}.{'[0-9a-f]' * 32}.part"):
        with contextlib.suppress(OSError):  # another process was first, or the folder is read-only
            if time.time() - entry.stat().st_mtime > _STALE:
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    return path.with_name(f".{name}.{uuid.uuid4().hex}.part")


def write_atomically(path: str | Path, text: str) -> None:
    """Write ``text`` in UTF-8 to an :func:`atomic_file`; missing folders are made."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as stream:
        stream.write(text.encode())
