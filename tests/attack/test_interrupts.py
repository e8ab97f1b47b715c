"""Commands that are interrupted at random moments end soon, say so, and leave all or nothing; of two, one wins."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from cutting import cases

import bactrian as bt
from bactrian.runs.fitted_run import FittedRun
from bactrian.runs.folders import RunFolder

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs signals")

SURVEY = "age,smoker,lung\n" + "young,yes,ill\nold,yes,ill\nold,no,well\nyoung,no,well\nold,yes,well\n" * 10
COLUMNS = "Ada B-PER\nspoke O\n\nBob B-PER\nsaw O\nRome B-LOC\n\nAda B-PER\nleft O\n\n" * 20
COMMANDS = {
    "fit": ["fit", "survey.csv", "-o", "run"],
    "fit by cccp": ["fit", "survey.csv", "-o", "run", "--method", "cccp"],
    "train": ["train", "train.conll", "-o", "run", "--tolerance", "1e-9"],
    "train a skip chain": ["train", "train.conll", "-o", "run", "--model", "skip-chain", "--checkpoint-every", "3"],
    "pack": ["pack", "train.conll", "-o", "run", "--chunk", "10"],
}
#: Seconds that a command may take to end after it was interrupted, on a machine that has other work.
PATIENCE = 20.0
#: Seconds within which interrupts come: where kernels were compiled before, and where they are not.
WARM, COLD = 3.0, 15.0
_MAIN = "from bactrian.cli import main; print('begun', flush=True); main()"


def start(folder: Path, arguments: list[str], cache: Path | None) -> subprocess.Popen[str]:
    """A command that has begun, with a cache of its own, empty so far, or with ours."""
    environment = dict(os.environ) if cache is None else {**os.environ, "NUMBA_CACHE_DIR": str(cache)}
    process = subprocess.Popen(
        [sys.executable, "-c", _MAIN, *arguments],
        cwd=folder,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # A process that was started in the background ignores interrupts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    return process


def write_inputs(folder: Path) -> Path:
    folder.mkdir()
    (folder / "survey.csv").write_text(SURVEY)
    (folder / "train.conll").write_text(COLUMNS)
    return folder


def complete(run: Path, kind: str) -> list[str]:
    """What is wrong with a result that was written."""
    if kind.startswith("fit"):
        field = bt.MarkovRandomField.load(run / "field.safetensors")
        return [] if (run / "report.html").is_file() and field.variable_names else ["no page"]
    if kind == "pack":
        return [] if (run / "pack.json").is_file() else ["no pack"]
    return [] if FittedRun.load(RunFolder(run)).classes else ["no labels"]


def left_behind(folder: Path) -> list[str]:
    return [f"left behind: {path.relative_to(folder)}" for path in folder.rglob("*") if path.name.endswith(".part")]


@cases(sample=3, block=10, total=103)
def test_interrupts(numbers, tmp_path, tally):
    for number in numbers:
        rng = np.random.default_rng([8, number])
        kind = list(COMMANDS)[number % len(COMMANDS)]
        folder = write_inputs(tmp_path / f"{number}")
        cold = number >= 3 and rng.random() < 0.5
        call = f"pytest tests/attack/test_interrupts.py -k interrupts --case {number}"
        with tally.run("interrupts", f"interrupt {number}: {kind}{', cold' if cold else ''}", call) as problems:
            process = start(folder, COMMANDS[kind], tmp_path / f"cache{number}" if cold else None)
            time.sleep(rng.random() * (COLD if cold else WARM))
            told = signal.SIGTERM if kind.startswith("train") and rng.random() < 0.3 else signal.SIGINT
            # Before training listens to it, as after, being told to end is being ended.
            process.send_signal(told)
            began = time.monotonic()
            _, err = process.communicate(timeout=600)
            if time.monotonic() - began > PATIENCE and process.returncode != 0:
                problems.append(f"took {time.monotonic() - began:.0f} s to end")
            tally.counts[f"interrupts: ended with {process.returncode}"] += 1
            problems += judge(folder, kind, process.returncode, err, told)


def judge(folder: Path, kind: str, code: int, err: str, told: signal.Signals) -> list[str]:
    """What is wrong with how an interrupted command ended."""
    run, found = folder / "run", []
    if "Traceback" in err or "Exception ignored" in err:
        found.append(f"said {err[-500:]!r}")
    if code == -signal.SIGTERM and told is signal.SIGTERM:
        return found if not run.exists() or (run / "settings.json").is_file() else [*found, "half a run"]
    found += left_behind(folder)
    if code == 130:
        return [*found, "nothing was said to be written, but there is something"] if run.exists() else found
    if code in (0, -signal.SIGINT):  # it was done, and the interpreter about to end
        return found + complete(run, kind)
    if code != 1 or not kind.startswith("train"):
        return [*found, f"exit code {code}: {err[-300:]!r}"]
    done = subprocess.run(
        [sys.executable, "-m", "bactrian", "train", "--resume", "run"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        found.append(f"resumed, it ends with {done.returncode}: {done.stderr[-300:]!r}")
    return found + complete(run, kind)


@cases(sample=1, block=10, total=31)
def test_two_into_one_folder(numbers, tmp_path, tally):
    for number in numbers:
        rng = np.random.default_rng([9, number])
        kind = list(COMMANDS)[number % len(COMMANDS)]
        folder = write_inputs(tmp_path / f"{number}")
        call = f"pytest tests/attack/test_interrupts.py -k two --case {number}"
        with tally.run("races", f"race {number}: {kind}", call) as problems:
            first = start(folder, COMMANDS[kind], None)
            time.sleep(0.2 * rng.random())
            second = start(folder, COMMANDS[kind], None)
            ends = [(process.communicate(timeout=600)[1], process.returncode) for process in (first, second)]
            if sorted(code for _, code in ends) != [0, 2]:
                problems.append(f"ended with {ends}")
            for err, code in ends:
                words = ("exists already", "filled by another process")
                if code == 2 and not (err.count("\n") == 1 and any(word in err for word in words)):
                    problems.append(f"the second was told {err!r}")
            problems += left_behind(folder) + complete(folder / "run", kind)
