"""Every call of a command ends with a result, or with one line that says why not; nothing is half-written or lost."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import re
import warnings
from contextlib import redirect_stderr, redirect_stdout
from itertools import pairwise
from pathlib import Path

import pytest
from cutting import cases
from doors import Case, make_case, write_kit
from test_files import little_memory, log_partition_of, words_of

import bactrian as bt
from bactrian.cli import main
from bactrian.runs.fitted_run import FittedRun
from bactrian.runs.folders import RunFolder

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs links")


def call(arguments: list[str]) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a command; other exceptions than the exit are findings."""
    out, err = io.StringIO(), io.StringIO()
    try:
        with redirect_stdout(out), redirect_stderr(err):
            main(arguments)
    except SystemExit as ended:
        return int(ended.code or 0), out.getvalue(), err.getvalue()
    raise AssertionError("main returned")


def there(folder: Path) -> dict[str, str]:
    """What is in a folder: content of files, targets of links."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = f"-> {os.readlink(path)}"
        else:
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
    return found


def judge(case: Case, code: int, out: str, err: str, before: dict[str, str]) -> list[str]:
    """What is wrong with how a call ended."""
    after, found = there(case.folder), []
    lines = err.splitlines()
    if "Traceback" in err or not all(line.startswith(("bactrian: ", "iteration ")) for line in lines):
        found.append(f"said: {err[:500]!r}")
    found += [f"left behind: {name}" for name in after if name.endswith(".part")]
    if code not in (0, 1, 2):
        found.append(f"exit code {code}")
    if case.intact and code == 2:
        found.append(f"refused: {err[:300]!r}")
    # A run that is continued writes to its own folder; all else stays, unless it is the output.
    mine = case.input.name if case.door.writes == "run" else os.path.relpath(os.path.realpath(case.output), case.folder)
    for name, content in before.items():
        written = code != 2 or case.door.writes == "run"
        replaced = case.door.writes != "nothing" and (name == mine or name.startswith(f"{mine}/"))
        if after.get(name) != content and not (written and replaced):
            found.append(f"{name} has changed")
    if code == 2:
        if not lines or not lines[-1].removeprefix("bactrian: ").strip():
            found.append("refused without a word")
        if case.door.writes != "run" and after.keys() - before.keys():
            found.append(f"refused, but wrote {sorted(after.keys() - before.keys())}")
    elif not {"--help", "-h"} & set(case.arguments):
        found += right(case, out)
    return found


def right(case: Case, out: str) -> list[str]:
    """What is wrong with what a call that was not refused has written."""
    output, words = case.folder / case.output, case.arguments
    if case.door.writes in ("folder", "file"):
        named = [after for word, after in pairwise(words) if word in ("-o", "--output")]
        if named[-1:] != [case.output]:  # another one was given after it, or none
            return []
        if not output.exists():
            return [f"nothing was written to {case.output}"]
    kind = case.kind.split()[0]
    if kind in ("fit", "rake"):
        field = bt.MarkovRandomField.load(output / "field.safetensors")
        tables = [field.marginal((name,)) for name in field.variable_names]
        total = sum(sum(table["probability"] if isinstance(table, dict) else table.tolist()) for table in tables)
        if abs(total - len(field.variable_names)) > 1e-6:
            return [f"probabilities of {len(field.variable_names)} variables add up to {total}"]
        return rows_counted(case.input, out) if kind == "fit" else []
    if kind == "train" or case.kind == "resume":
        run = FittedRun.load(RunFolder(case.input if case.kind == "resume" else output))
        return [] if run.classes and run.folder.metrics.is_file() else ["no labels or no metrics"]
    if kind == "pack":
        return [] if (output / "pack.json").is_file() else ["no pack"]
    if kind == "sample":
        number = [int(word.split("=")[1]) for word in words if re.match(r"(--number|-n)=", word)]
        rows = list(csv.reader(io.StringIO(output.read_text(encoding="utf-8"))))
        expected = number[-1] if number else len(rows) - 1
        return [] if len(rows) - 1 == expected else [f"{len(rows) - 1} rows, not {expected}"]
    if kind == "query":
        numbers = [float(line.rpartition(",")[2]) for line in out.splitlines() if not line.endswith("probability")]
        return [] if numbers and all(0 <= number <= 1 + 1e-5 for number in numbers) else [f"answered {out[:200]!r}"]
    if kind == "evaluate" and "--json" in words:
        return [] if 0 <= json.loads(out)["accuracy"] <= 1 else [f"scored {out[:200]!r}"]
    if kind == "report":
        return [] if output.read_text(encoding="utf-8").startswith("<!DOCTYPE html>") else ["no page"]
    if case.kind == "infer" and "--method=exact" in words and not any(word.startswith("-e") for word in words):
        return exact(case.input, out)
    return []


def rows_counted(table: Path, out: str) -> list[str]:
    """Whether the command has read as many rows and columns as a reader of our own, where lines are of one length."""
    rows = list(csv.reader(io.StringIO(table.read_bytes().decode("utf-8-sig"))))
    rows = [row for row in rows if row]
    words = re.search(r"(\d+) rows of (\d+) columns", out)
    if len({len(row) for row in rows}) > 1 or words is None:
        return [] if words else [f"no rows were counted: {out!r}"]
    expected = len(rows) - 1, len(rows[0])
    return [] if tuple(map(int, words.groups())) == expected else [f"read {words[0]}, not {expected}"]


def exact(model: Path, out: str) -> list[str]:
    """Whether log Z is that of enumeration."""
    expected, words = log_partition_of(words_of(model)), re.search(r"log Z +(\S+) ", out)
    if expected is None or words is None:
        return [f"an answer to what does not keep to the format: {out!r}"]
    return (
        [] if abs(float(words[1]) - expected) <= 1e-6 * (1 + abs(expected)) else [f"log Z {words[1]}, not {expected}"]
    )


@pytest.fixture(scope="module")
def kit(tmp_path_factory):
    folder = tmp_path_factory.mktemp("doors") / "kit"
    folder.mkdir()
    write_kit(folder, lambda arguments: call(arguments)[0])
    return folder


@cases(sample=60, block=183, total=1890)
def test_doors(numbers, kit, tmp_path, monkeypatch, tally):
    for number in numbers:
        case = make_case(number, kit, tmp_path / f"{number}")
        monkeypatch.chdir(case.folder)
        before = there(case.folder)
        shown = " ".join(repr(word) if " " in word or not word else word[:60] for word in case.arguments)
        name = f"door {number}: bactrian {shown} ({'; '.join(case.notes) or 'plain'})"
        with tally.run("doors", name, f"pytest tests/attack/test_doors.py --case {number}") as problems:
            warnings.simplefilter("default")  # the command prints them
            with little_memory():
                code, out, err = call(case.arguments)
            tally.counts[f"doors: exit code {code}"] += 1
            problems += judge(case, code, out, err, before)
