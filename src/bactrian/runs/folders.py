"""Run folders: what ``bactrian train`` writes, and ``predict``, ``evaluate`` and ``report`` read.

==========================  ==========================================================================================
``settings.json``           all settings, and checksums of the data
``model.safetensors``       the fitted model
``history.jsonl``           a line for every iteration, and one for every outer iteration
``metrics.json``            how training ended, and scores on the dev and test files; written last
``report.html``             the report
``checkpoint.safetensors``  during training, or after it stopped short: where to continue
==========================  ==========================================================================================
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import bactrian
from bactrian.atomic_files import atomic_file, atomic_folder, destination
from bactrian.engines.files import PackedFolder
from bactrian.learners.agreement import UNATTAINED
from bactrian.runs.settings import RunSettings
from bactrian.solvers.solution import Progress, Record, Status

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

FORMAT = "bactrian-run"
FORMAT_VERSION = 1


def _file(name: str, meaning: str) -> property:
    return property(lambda folder: folder.path / name, doc=meaning)


@dataclass(frozen=True)
class RunFolder:
    """A folder with the files of one run."""

    path: Path

    settings = _file("settings.json", "All settings.")
    model = _file("model.safetensors", "The fitted model.")
    history = _file("history.jsonl", "The course of training.")
    metrics = _file("metrics.json", "How training ended, and scores.")
    report = _file("report.html", "The page.")
    checkpoint = _file("checkpoint.safetensors", "Where training continues.")

    @staticmethod
    def create(path: Path, settings: RunSettings, checksums: Mapping[str, str]) -> RunFolder:
        """Make the folder with its settings in it, in one step."""
        check_free(path)
        with atomic_folder(path) as draft:
            RunFolder(draft).write_settings(settings, checksums)
        return RunFolder(path)

    def write_settings(self, settings: RunSettings, checksums: Mapping[str, str]) -> None:
        """Write ``settings.json``."""
        document = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "library_version": bactrian.__version__,
            "settings": settings.as_dict(),
            "checksums": dict(checksums),
        }
        write_json(self.settings, document)

    @contextmanager
    def training(self, *, is_new: bool) -> Iterator[None]:
        """Keep other processes from training the run meanwhile, where the system has locks.

        Drafts of a killed process are removed, and so is a new run that fails before it has learned anything.
        """
        try:
            with tempfile.TemporaryFile(dir=self.path):
                pass
        except OSError as problem:
            raise ValueError(f"{self.path} cannot be written to: {problem.strerror}") from None
        with ExitStack() as stack:
            if fcntl is not None:
                lock = os.open(self.path, os.O_RDONLY)
                stack.callback(os.close, lock)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise ValueError(f"{self.path} is in use: another process is training this run") from None
                except OSError:  # some network drives have no locks
                    pass
            for draft in self.path.glob(".*.part"):
                shutil.rmtree(draft) if draft.is_dir() else draft.unlink(missing_ok=True)
            try:
                yield
            except (TypeError, ValueError, MemoryError):
                if is_new and not self.checkpoint.exists() and not self.model.exists():
                    for path in (self.settings, self.history):
                        path.unlink(missing_ok=True)
                    destination(self.path).rmdir()
                raise

    def read_settings(self) -> tuple[RunSettings, dict[str, str]]:
        """Settings, and checksums of the data by path."""
        if not self.settings.is_file():
            raise ValueError(f"{self.path} is not a run folder: it has no {self.settings.name}")
        document = read_json(self.settings)
        version = document.get("format_version")
        if document.get("format") != FORMAT or not isinstance(version, int):
            raise ValueError(f"{self.settings} was not written by bactrian train")
        if version > FORMAT_VERSION:
            raise ValueError(
                f"{self.settings} has format version {version}, written by bactrian "
                f"{document.get('library_version')}; this release reads versions up to {FORMAT_VERSION}"
            )
        values, checksums = document.get("settings"), document.get("checksums")
        if not isinstance(values, dict) or not isinstance(checksums, dict):
            raise ValueError(f"{self.settings} lacks settings or checksums")
        try:
            return RunSettings.of(values), checksums
        except (TypeError, ValueError) as error:
            raise ValueError(f"{self.settings}: {error}") from None

    def check_learned(self) -> None:
        """Refuse a pack, which looks like a run whose model has weights of 0."""
        if PackedFolder.is_one(self.path):
            raise ValueError(f"{self.path} is a pack, not a run; learn from it first: bactrian train {self.path}")

    def read_metrics(self) -> dict[str, Any]:
        """What ``metrics.json`` holds, which training writes at its end."""
        if not self.metrics.is_file():
            hint = f"; continue with: bactrian train --resume {self.path}" if self.settings.is_file() else ""
            raise ValueError(f"{self.path} holds no finished training{hint}")
        return read_json(self.metrics)

    def write_history(self, trace: Iterable[Progress], records: Iterable[Record]) -> None:
        """Write the iterations and outer iterations, one per line, in one step."""
        with atomic_file(self.history) as stream:
            for progress in trace:
                values = {key: finite(value) for key, value in vars(progress).items() if key != "weights"}
                stream.write(json.dumps({"kind": "iteration", **values}).encode() + b"\n")
            for record in records:
                values = {key: finite(value) for key, value in vars(record).items()}
                stream.write(json.dumps({"kind": "outer", **values}).encode() + b"\n")

    def read_history(self, last_iteration: int | None = None) -> tuple[list[Progress], list[Record]]:
        """The iterations, up to one of them, and the outer iterations."""
        trace: list[Progress] = []
        records: list[Record] = []
        if not self.history.is_file():
            return trace, records
        try:
            for line in self.history.read_text(encoding="utf-8").splitlines():
                values: dict[str, Any] = {
                    key: np.nan if value is None else value for key, value in json.loads(line).items()
                }
                if values.pop("kind") == "outer":
                    records.append(Record(**values))
                elif last_iteration is None or values["iteration"] <= last_iteration:
                    trace.append(Progress(**values, weights=np.zeros(0)))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"{self.history} is damaged: {error}") from None
        return trace, records


def check_free(path: Path, advice: str = "choose another name") -> None:
    """Refuse a folder that is not empty, or that cannot be created or replaced."""
    target = destination(path)
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise ValueError(f"{path} exists already; {advice}")
    if target.exists() and (target.samefile(os.curdir) or os.path.ismount(target)):
        raise ValueError(f"{path} cannot be replaced: it is in use; name a folder inside it")
    there = next(parent for parent in target.absolute().parents if parent.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise ValueError(f"{path} cannot be made in {there}")


def end_in_words(status: Status, attained: float | None) -> str:
    """How training ended, and whether inference finds what was learned (``Solution.attained``).

    In a run, the callback stops training only after an interrupt.

    >>> end_in_words(Status.CONVERGED, 0.62)
    'converged; inference at these weights finds other beliefs (attained 0.62 of 1)'
    """
    ended = "interrupted" if status is Status.STOPPED else str(status)
    if attained is None or attained >= 1.0 - UNATTAINED:
        return ended
    return f"{ended}; inference at these weights finds other beliefs (attained {attained:.2f} of 1)"


def write_json(path: Path, values: Any) -> None:
    """Write JSON to a file in one step; numbers that are not finite become null."""
    with atomic_file(path) as stream:
        stream.write(json.dumps(finite(values), indent=2, allow_nan=False, ensure_ascii=False).encode() + b"\n")


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; errors name the file."""
    try:
        values = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(values, dict):
        raise ValueError(f"{path} must hold a JSON object")
    return values


def finite(value: Any) -> Any:
    """A value as JSON can hold it: numbers that are not finite are None, data classes dicts."""
    if isinstance(value, Mapping):
        return {key: finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [finite(entry) for entry in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) and not isinstance(value, type) else value
