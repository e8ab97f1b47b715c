"""Training that is killed, at any moment and again and again, ends where training that nobody disturbed ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from bactrian.runs.fitted_run import FittedRun
from bactrian.runs.folders import RunFolder

#: Kills of each kind of training.
KILLS = 20
LEARNERS = {
    "cccp": ["--model", "skip-chain", "--method", "cccp", "--max-iterations", "300"],
    "convex": ["--model", "graph", "--method", "convex"],
    "sparse": ["--model", "chain", "--method", "piecewise", "--l1", "0.05"],
}
SENTENCES = [
    "Ann B-PER\nsees O\nRome B-LOC\n. O\n",
    "Bob B-PER\nLee I-PER\nleft O\nRome B-LOC\n",
    "Ann B-PER\nLee I-PER\n",
]


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-c", "from bactrian.cli import main; main()", *map(str, arguments)]


def start(*arguments: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command(*arguments), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def finish(*arguments: object) -> None:
    done = subprocess.run(command(*arguments), capture_output=True, timeout=900, check=False)
    assert done.returncode in (0, 1), done.stderr.decode()


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A file of text and one of graphs."""
    folder = tmp_path_factory.mktemp("kills")
    rng = np.random.default_rng(5)
    text, graphs = folder / "train.conll", folder / "train.jsonl"
    text.write_text("\n".join(SENTENCES[int(k)] for k in rng.integers(len(SENTENCES), size=40)), encoding="utf-8")
    lines = []
    for _ in range(20):
        edges = [[a, b] for a in range(6) for b in range(a + 1, 6) if rng.random() < 0.5]
        labels = rng.integers(3, size=6)
        nodes = rng.normal(size=(6, 3)) + np.eye(3)[labels]
        lines.append(json.dumps({"nodes": nodes.tolist(), "edges": edges, "labels": labels.tolist()}))
    graphs.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return {"cccp": text, "convex": graphs, "sparse": text}


def outcome(path):
    """What a run leaves: weights, and the numbers of its metrics that do not measure time."""
    run = RunFolder(path)
    metrics = json.loads(run.metrics.read_text())
    kept = {key: metrics[key] for key in ("status", "objective", "iterations", "evaluations", "moment_gap")}
    return FittedRun.load(run).estimator.weights_, kept


def ended(path, weights, metrics):
    """What is wrong with a run that has ended."""
    found, kept = outcome(path)
    problems = [f"drafts left behind: {file.name}" for file in path.iterdir() if file.name.startswith(".")]
    if not np.array_equal(found, weights) or kept != metrics:
        off = float(np.abs(found - weights).max())
        problems.append(f"ends {off:.1e} from the undisturbed run: {kept}, not {metrics}")
    return problems


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="needs signals")
@pytest.mark.parametrize("learner", LEARNERS)
def test_kills(learner, files, tmp_path, tally):
    rng = np.random.default_rng(len(learner))
    options = [*LEARNERS[learner], "--tolerance", "1e-7", "--checkpoint-every", "3", "--no-report"]
    begin = ["train", files[learner], *options, "-o"]
    for path in (tmp_path / "warm", tmp_path / "whole"):  # the first may have to compile, and would mislead about time
        began = time.monotonic()
        process = start(*begin, path)
        while process.poll() is None and not (path / "settings.json").exists():
            time.sleep(0.005)
        reading = time.monotonic() - began
        _, words = process.communicate(timeout=900)
        assert process.returncode in (0, 1), words.decode()
        training = time.monotonic() - began - reading
    weights, metrics = outcome(tmp_path / "whole")
    kills = runs = 0
    path = tmp_path / "run0"
    while kills < KILLS:
        resumed = path.exists()
        process = start("train", "--resume", path) if resumed else start(*begin, path)
        # Most kills hit learning and what it writes, some what comes before it.
        learning = resumed or rng.random() < 0.8
        time.sleep(0.9 * reading + rng.random() * 0.6 * training if learning else rng.random() * reading)
        if process.poll() is None:
            process.kill()
            kills += 1
        else:  # perhaps the machine is less busy than when time was taken
            reading *= 0.9
        _, words = process.communicate(timeout=900)
        if process.returncode == -signal.SIGKILL:
            continue
        found = ended(path, weights, metrics) if process.returncode in (0, 1) else [words.decode()]
        tally.judged("kills", f"{learner}, run {runs}", found, f"pytest tests/attack/test_kills.py -k {learner}")
        runs += 1
        path = tmp_path / f"run{runs}"
    if path.exists():
        finish("train", "--resume", path)
        found = ended(path, weights, metrics)
        tally.judged("kills", f"{learner}, run {runs}", found, f"pytest tests/attack/test_kills.py -k {learner}")
    tally.counts["kills: processes killed"] += kills
