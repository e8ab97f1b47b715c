"""``bactrian bench uai``: the models of the UAI competitions, solved and scored as the board of their organisers does.

Every problem is a process of its own, ``bactrian infer`` as a person would start it: starting up and reading count, and
a late answer is none. A file ``NAME.uai`` is a problem for each reference beside it: ``NAME.uai.MAR``, ``.PR``, and
``.MAP`` or ``.MPE``.

- MAR: 100 (1 - h / u), with h the mean Hellinger distance of the marginals from the reference, u that of uniform ones.
- PR: 100 (1 - |log Z - log Z*| / |log Z0 - log Z*|), at least 0; log Z0 is that of independent tables, each replaced by
  its mean.
- MPE: log10 of the assignment's value less that of the reference's, which others may have beaten.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from bactrian.arrays import Floats
from bactrian.atomic_files import write_atomically
from bactrian.inference.uai import UaiModel, read_evidence, read_log_partition, read_marginals, read_model

#: References by task.
SUFFIXES = {"MAR": (".MAR",), "PR": (".PR",), "MPE": (".MAP", ".MPE")}
#: Seconds of the limit that are left for starting up, loading kernels, reading and writing; after which it is late.
_START, _GRACE = 3.0, 0.5


@dataclass(frozen=True)
class Outcome:
    """How one problem went."""

    problem: str
    task: str
    seconds: float
    score: float | None  #: None where there was no answer, and -inf for an assignment that is impossible
    note: str  #: the method, or what went wrong

    @property
    def family(self) -> str:
        """Problems whose names differ in their number."""
        return self.problem.rpartition("_")[0] or self.problem


def problems_in(folder: Path, tasks: Sequence[str]) -> list[tuple[Path, str, Path]]:
    """Models with a task and its reference."""
    found = [
        (model, task, reference)
        for model in sorted(folder.glob("*.uai"))
        for task in tasks
        for suffix in SUFFIXES[task]
        if (reference := model.with_name(model.name + suffix)).exists()
    ]
    if not found:
        raise FileNotFoundError(f"{folder}: expected models NAME.uai with references such as NAME.uai.MAR beside them")
    return found


def run_uai(
    folder: Path,
    output: Path,
    *,
    seconds: float,
    tasks: Sequence[str] = tuple(SUFFIXES),
    tell: Callable[[str, str, float, float | None], None] | None = None,
) -> list[Outcome]:
    """Solve all problems of a folder that ``output``, a JSON file, does not hold yet; it is written after each."""
    problems = problems_in(folder, tasks)
    kept: dict[str, Any] = {"seconds": seconds, "outcomes": []}
    if output.exists():
        kept = json.loads(output.read_text())
    if kept["seconds"] != seconds:
        raise ValueError(f"{output} has results for {kept['seconds']} seconds; give another file for {seconds}")
    outcomes = [Outcome(**{**row, "score": _of_json(row["score"])}) for row in kept["outcomes"]]
    done = {(outcome.problem, outcome.task) for outcome in outcomes}
    for number, (model, task, reference) in enumerate(problems):
        if tell is not None:
            tell("uai", f"{model.stem} {task}", number, len(problems))
        if (model.stem, task) not in done:
            outcomes.append(solve(model, task, reference, seconds))
            rows = [{**asdict(outcome), "score": _to_json(outcome.score)} for outcome in outcomes]
            write_atomically(output, json.dumps({"seconds": seconds, "outcomes": rows}, indent=1) + "\n")
    wanted = {(model.stem, task) for model, task, _ in problems}
    return [outcome for outcome in outcomes if (outcome.problem, outcome.task) in wanted]


def solve(model: Path, task: str, reference: Path, seconds: float) -> Outcome:
    """One problem in a process of its own, on one thread."""
    evidence = model.with_name(model.name + ".evid")
    with TemporaryDirectory() as folder:
        answer = Path(folder) / f"answer.{task}"
        own = max(seconds - _START, 0.4 * seconds)
        command = [sys.executable, "-m", "bactrian", "infer", str(model), "-o", str(answer), "--threads", "1"]
        command += ["--max-seconds", str(own), *(["-e", str(evidence)] if evidence.exists() else [])]
        began = time.perf_counter()
        try:
            run = subprocess.run(command, capture_output=True, text=True, timeout=seconds + _GRACE, check=False)
        except subprocess.TimeoutExpired:
            return Outcome(model.stem, task, time.perf_counter() - began, None, "too late")
        taken = time.perf_counter() - began
        if not answer.exists():
            said = (run.stderr.strip().splitlines() or ["no answer"])[-1]
            return Outcome(model.stem, task, taken, None, said)
        facts = dict(line.split(None, 1) for line in run.stdout.splitlines() if len(line.split(None, 1)) == 2)
        read = read_model(model)
        observed = read_evidence(evidence, read.cardinalities) if evidence.exists() else {}
        return Outcome(
            model.stem, task, taken, _score(task, answer, reference, read, observed), facts.get("method", "")
        )


def _score(task: str, answer: Path, reference: Path, model: UaiModel, evidence: Mapping[int, int]) -> float:
    if task == "MAR":
        return marginal_score(read_marginals(answer), read_marginals(reference))
    if task == "PR":
        return partition_score(read_log_partition(answer), read_log_partition(reference), model, evidence)
    found, expected = (assignment_value(model, path) for path in (answer, reference))
    return found - expected if expected > -math.inf else math.inf if found > -math.inf else 0.0


def marginal_score(found: Sequence[Floats], expected: Sequence[Floats]) -> float:
    """100 where the marginals are the reference's, 0 where they are no better than uniform ones."""

    def distance(p: Floats, q: Floats) -> float:
        return math.sqrt(0.5 * float(((np.sqrt(p) - np.sqrt(q)) ** 2).sum()))

    uniform = np.mean([distance(np.full(p.size, 1.0 / p.size), p) for p in expected])
    error = np.mean([distance(p, q) for p, q in zip(found, expected, strict=True)])
    return 100.0 * (1.0 - float(error / uniform)) if uniform > 0.0 else 100.0 * float(error == 0.0)


def partition_score(found: float, expected: float, model: UaiModel, evidence: Mapping[int, int]) -> float:
    """100 where log Z is the reference's, 0 where it is no better than that of independent tables."""
    free = np.setdiff1d(np.arange(model.cardinalities.size), list(evidence))
    trivial = float(np.log(model.cardinalities[free]).sum())
    for scope, table in zip(model.scopes, model.tables, strict=True):
        mean = float(table[tuple(evidence.get(v, slice(None)) for v in scope)].mean())
        trivial += math.log(mean) if mean > 0.0 else -math.inf
    off, worst = abs(found - expected), abs(trivial - expected)
    return max(0.0, 100.0 * (1.0 - off / worst)) if worst > 0.0 else 100.0 * float(off == 0.0)


def assignment_value(model: UaiModel, path: Path) -> float:
    """Log10 of the product of all tables at the assignment in a file."""
    states = [int(word) for word in path.read_text().split()[-model.cardinalities.size :]]
    with np.errstate(divide="ignore"):
        values = [
            np.log10(table[tuple(states[v] for v in scope)])
            for scope, table in zip(model.scopes, model.tables, strict=True)
        ]
    return float(np.sum(values))


def family_rows(outcomes: Sequence[Outcome]) -> Iterator[list[str]]:
    """Rows of a table with :data:`COLUMNS`."""
    for task in SUFFIXES:
        of_task = [outcome for outcome in outcomes if outcome.task == task]
        families = sorted({outcome.family for outcome in of_task})
        for family in [*families, *(["all"] if len(families) > 1 else [])]:
            own = [outcome for outcome in of_task if family in ("all", outcome.family)]
            late = sum(outcome.score is None for outcome in own)
            missing = -math.inf if task == "MPE" else 0.0
            scores = np.array([missing if outcome.score is None else outcome.score for outcome in own])
            beside = ""
            if task == "MPE":
                beside = f"{(scores > 1e-6).sum()} / {(abs(scores) <= 1e-6).sum()} / {(scores < -1e-6).sum()}"
            mean = f"{scores.mean():.2f}"
            yield [task, family, str(len(own)), mean, f"{scores.min():.2f}", beside, str(late) if late else ""]


#: Scores are means and worst ones; of assignments it says how many are above, at and below the reference.
COLUMNS = ("task", "family", "problems", "mean", "worst", "above / at / below", "no answer")


def _to_json(score: float | None) -> float | str | None:
    return score if score is None or math.isfinite(score) else str(score)


def _of_json(score: float | str | None) -> float | None:
    return None if score is None else float(score)
