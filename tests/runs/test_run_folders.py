"""Run folders beside other processes, and files on drives that are full or read-only."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bactrian as bt
from bactrian.atomic_files import atomic_file
from bactrian.runs.folders import RunFolder
from bactrian.runs.settings import RunSettings, with_defaults
from bactrian.runs.training import interrupted_run, new_run, train

#: Trains until it is told to go on; the run then has a checkpoint, and drafts may be on their way.
_TRAINER = """
import sys
from pathlib import Path
from bactrian.runs.settings import RunSettings, with_defaults
from bactrian.runs.training import new_run, train

def follow(progress):
    if progress.iteration == 3:
        print("training", flush=True)
        sys.stdin.readline()

values = {"train": [sys.argv[1]], "model": "chain", "report": False, "checkpoint_every": 2}
values["options"] = {"tolerance": 1e-4}
train(new_run(Path(sys.argv[2]), RunSettings.of(with_defaults(values))), follow)
"""


def write_columns(path: Path) -> Path:
    path.write_text("Ava B-PER\nsleeps O\n\nBo B-PER\nand O\nCy B-PER\nrun O\n\n" * 5)
    return path


def settings(path: Path) -> RunSettings:
    options = {"tolerance": 1e-4, "max_iterations": 4}
    values = {"train": [str(path)], "model": "chain", "report": False, "checkpoint_every": 2, "options": options}
    return RunSettings.of(with_defaults(values))


@contextmanager
def read_only(path: Path) -> Iterator[None]:
    """Nobody writes to the folder, not even root."""
    root = os.geteuid() == 0
    path.chmod(0o555)
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)
        path.chmod(0o755)


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such locks")
def test_a_run_that_is_being_trained_is_left_alone(tmp_path: Path) -> None:
    data, path = write_columns(tmp_path / "train.conll"), tmp_path / "run"
    command = [sys.executable, "-c", _TRAINER, str(data), str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as trainer:
        assert trainer.stdin is not None
        assert trainer.stdout is not None
        assert trainer.stdout.readline() == "training\n"
        draft = path / f".model.safetensors.{'0' * 32}.part"
        draft.write_text("being written")
        with pytest.raises(ValueError, match="is in use: another process is training this run"):
            train(interrupted_run(path))
        assert draft.exists()
        trainer.stdin.write("\n")
        trainer.stdin.close()
        assert trainer.wait(timeout=120) == 0
    assert RunFolder(path).read_metrics()["status"] == "CONVERGED"
    assert train(interrupted_run(path)).converged  # nobody is there any more


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such locks")
def test_a_killed_process_leaves_no_lock(tmp_path: Path) -> None:
    data, path = write_columns(tmp_path / "train.conll"), tmp_path / "run"
    command = [sys.executable, "-c", _TRAINER, str(data), str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as trainer:
        assert trainer.stdout is not None
        assert trainer.stdout.readline() == "training\n"
        (path / f".model.safetensors.{'0' * 32}.part").write_text("a part")
        trainer.kill()
        trainer.wait(timeout=60)
    assert train(interrupted_run(path)).converged
    assert not list(path.glob(".*"))


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="permissions of POSIX")
def test_a_read_only_run_is_refused_before_training(tmp_path: Path) -> None:
    data, path = write_columns(tmp_path / "train.conll"), tmp_path / "run"
    train(new_run(path, settings(data)))
    began: list[Any] = []
    for folder in (tmp_path, *tmp_path.parents):
        if os.geteuid() == 0 and not os.stat(folder).st_mode & 0o001:
            folder.chmod(folder.stat().st_mode | 0o055)  # the other user passes through
    with read_only(path), pytest.raises(ValueError, match="run cannot be written to: Permission denied"):
        train(interrupted_run(path, max_iterations=100), began.append)
    assert not began


def test_a_full_disk_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_text("before")
    with pytest.raises(OSError, match="No space left") as caught, atomic_file(path) as stream:
        raise OSError(errno.ENOSPC, f"No space left on device for {stream.name}")
    assert caught.value.filename == str(path)
    assert path.read_text() == "before"
    assert os.listdir(tmp_path) == [path.name]


def test_errors_about_other_files_keep_their_names(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught, atomic_file(tmp_path / "copy"):
        (tmp_path / "missing").read_bytes()
    assert caught.value.filename == str(tmp_path / "missing")


@pytest.mark.skipif(sys.platform == "win32", reason="limits of POSIX")
def test_a_limit_of_the_system_names_the_file(tmp_path: Path) -> None:
    code = (
        "import resource, signal, sys; from bactrian.atomic_files import write_atomically\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try: write_atomically(sys.argv[1], 'x' * 100_000)\n"
        "except OSError as problem: print(problem.filename)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "page.html")], capture_output=True, text=True)
    assert done.stdout.strip() == str(tmp_path / "page.html"), done.stderr
    assert not list(tmp_path.iterdir())


def test_old_drafts_of_killed_saves_are_removed(tmp_path: Path) -> None:
    old = tmp_path / f".model.safetensors.{'a' * 32}.part"
    new = tmp_path / f".model.safetensors.{'b' * 32}.part"
    other = tmp_path / f".another.safetensors.{'a' * 32}.part"
    theirs = tmp_path / ".model.safetensors.download.part"
    for draft in (old, new, other, theirs):
        draft.write_text("a part")
    long_ago = time.time() - 7200
    for draft in (old, other, theirs):
        os.utime(draft, (long_ago, long_ago))
    bt.MarkovRandomField(edges=[(0, 1)]).fit(np.eye(2, dtype=int)).save(tmp_path / "model.safetensors")
    assert not old.exists()
    assert new.exists()
    assert other.exists()
    assert theirs.exists()
