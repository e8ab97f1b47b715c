"""Two versions of bactrian beside each other: the same benchmarks, run at the same time on cores of their own.

    git worktree add ../before COMMIT
    python benchmarks/before_after.py ../before [learning inference text images gpu] [--rounds 2] [--data DIR]
        [--cache CACHE]

Each benchmark runs once per round and version, with the benchmark script of that version. The two versions of a
benchmark run side by side, each on two cores, and change places from round to round; `gpu` runs one version after the
other. Every figure with a unit that both versions print is compared by the smallest value of the rounds (the largest,
for speeds). The table is written to ``benchmarks/results/before_after.md``.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
CORES = 2  #: per version of a benchmark
ARGUMENTS = {
    "learning": ["evaluation", "threads", "scaling", "solvers", "schedules"],
    "inference": ["parallel", "residual", "frustrated", "junction"],
    "text": ["small", "tagging"],
    "images": ["--splits", "1", "--prior", "1", "--seconds", "30"],
    "gpu": [],
}
#: A number, perhaps with thousands separators or an exponent, and its unit.
_FIGURE = re.compile(r"(?P<number>\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?) (?P<unit>ms|ns|s|MiB|tokens a second)\b")
_NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")


class Figure(NamedTuple):
    """A measured number."""

    key: Any  #: the same in both versions
    words: str
    unit: str
    number: float


class Job(NamedTuple):
    """One run of one benchmark in one version."""

    bench: str
    version: str
    tree: Path
    cores: tuple[int, ...]


def printed(output: str) -> Iterator[Figure]:
    """Figures with a unit. Both versions print the same lines, so a figure is known by its line without the numbers."""
    section, seen = "", defaultdict(int)
    for line in output.splitlines():
        if not line.startswith(" "):
            section = line.split(":")[0]
        for match in _FIGURE.finditer(line):
            words = (
                f"{section}: {line[: match.start()].strip(' ,(:')[-60:]}" if line[0] == " " else line[: match.start()]
            )
            shape = _NUMBER.sub("#", words)
            seen[shape] += 1
            yield Figure((shape, seen[shape]), words, match["unit"], float(match["number"].replace(",", "")))


def kept(found: Any, path: tuple[str, ...] = ()) -> Iterator[Figure]:
    """Seconds in the JSON file of bench_gpu.py."""
    for key, value in found.items():
        if isinstance(value, dict) and key != "times faster":
            yield from kept(value, (*path, key))
        elif "seconds" in key or key.startswith("warm") or key.endswith("sweeps"):
            yield Figure(((*path, key), 1), ", ".join((*path, key)), "s", float(value))


def run(job: Job, options: argparse.Namespace) -> list[Figure]:
    """The figures of one run."""
    command = [sys.executable, "-u", str(job.tree / f"benchmarks/bench_{job.bench}.py"), *ARGUMENTS[job.bench]]
    if job.bench == "images":
        command += ["--data", options.data, "--cache", options.cache]
    if job.bench == "text":
        command += ["--data", options.data]
    kept_file = Path(tempfile.mkdtemp()) / "gpu.json"
    if job.bench == "gpu":
        command += ["--json", str(kept_file)]
    environment = os.environ | {
        "PYTHONPATH": f"{job.tree / 'src'}:{job.tree / 'benchmarks'}",
        "NUMBA_NUM_THREADS": str(CORES),
        "BACTRIAN_DATA": options.data,
    }

    def settle() -> None:
        if job.cores:
            os.sched_setaffinity(0, job.cores)

    begun = time.perf_counter()
    done = subprocess.run(
        command, cwd=job.tree, env=environment, capture_output=True, text=True, preexec_fn=settle, check=False
    )
    seconds = time.perf_counter() - begun
    print(f"{job.bench}, {job.version}: exit {done.returncode} after {seconds:.0f} s", flush=True)
    if done.returncode:
        print(done.stderr[-2000:], flush=True)
    if job.bench == "gpu":
        return list(kept(json.loads(kept_file.read_text()))) if kept_file.exists() else []
    return list(printed(done.stdout))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="folder with the earlier version")
    parser.add_argument("benchmarks", nargs="*", choices=[*ARGUMENTS, []], help="[all but gpu]")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--data", default=os.environ.get("BACTRIAN_DATA", ""))
    parser.add_argument("--cache", default="/tmp/bactrian-images")
    parser.add_argument("--out", type=Path, default=HERE / "results/before_after.md")
    options = parser.parse_args()
    trees = {"before": options.before.resolve(), "after": HERE.parent}
    benches = options.benchmarks or [b for b in ARGUMENTS if b != "gpu"]

    found: dict[Any, dict[str, list[Figure]]] = defaultdict(lambda: defaultdict(list))
    available = sorted(os.sched_getaffinity(0))
    places = [tuple(available[i : i + CORES]) for i in range(0, len(available) - CORES + 1, CORES)]
    for round_ in range(options.rounds):
        jobs = []
        for b, bench in enumerate(benches):
            for v, version in enumerate(trees):
                place = places[(2 * b + (v + round_) % 2) % len(places)]
                jobs.append(Job(bench, version, trees[version], () if bench == "gpu" else place))
        side_by_side = max(1, len(places) // 2 * 2) if "gpu" not in benches else 1
        with ThreadPoolExecutor(side_by_side) as pool:
            for job, results in zip(jobs, pool.map(lambda job: run(job, options), jobs), strict=True):
                for figure in results:
                    found[job.bench, figure.key][job.version].append(figure)

    lines = [
        "# Before and after",
        "",
        f"{platform.processor() or platform.machine()}, {len(available)} cores, {CORES} per version, "
        f"{options.rounds} rounds, {time.strftime('%Y-%m-%d')}. Best of the rounds.",
        "",
        "| benchmark | figure | unit | before | after | after / before |",
        "|---|---|---|---|---|---|",
    ]
    for (bench, _), sides in found.items():
        if len(sides) < len(trees):
            continue
        unit = sides["after"][0].unit
        best = max if unit.startswith("tokens") else min
        before, after = (best(figure.number for figure in sides[version]) for version in trees)
        ratio = f"{after / before:.2f}" if before > 0 else ""
        words = sides["after"][0].words.replace("|", "/")
        lines.append(f"| {bench} | {words} | {unit} | {before:g} | {after:g} | {ratio} |")
    options.out.write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
