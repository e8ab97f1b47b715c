"""What the constants that steer the solvers are worth: learning with each of them halved and doubled.

    python benchmarks/bench_schedule.py [--workers N] [--constants leg loosest ...] [-o results/schedule.md]

A process takes one constant and goes through small problems on which solvers differ: noisy pictures with the default
learner, CAMEL(0), CCCP and loopy belief propagation, random complete graphs, chains of text-like features, and
superpixels. The table has the processor time of all of them with half the constant and with twice as much, against
that with the constant as it is, measured in turns, and the problem that loses or gains most. Ratios within a tenth are
noise. What does not converge any more is named: constants are set by that first, by time second.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

import bactrian as bt
from bactrian.camel.accuracy import SCHEDULE, Schedule
from bactrian.experiments.bench.learners import BenchSettings, make_problem
from bactrian.experiments.bench.random_fields import FieldSize
from bench_agreement import picture
from problems import superpixel_like

#: Constants of which a half or twice as much would be no choice, with the values to try instead.
OTHERS = {"unit_power": (0.0, 0.5)}
#: Seconds that one problem may take.
MAX_SECONDS = 60.0


def chains(n: int = 150) -> bt.GraphData:
    """Chains whose features are as rare as words."""
    rng = np.random.default_rng(0)
    labels = np.cumsum(rng.random(20 * n) < 0.2) % 5
    words = np.minimum((rng.pareto(0.8, 20 * n) * 20).astype(int), 1499) // 5 * 5 + labels
    inputs = np.zeros((20 * n, 1500))
    inputs[np.arange(20 * n), np.where(rng.random(20 * n) < 0.6, words, rng.integers(0, 1500, 20 * n))] = 1.0
    edges = [(20 * m + i, 20 * m + i + 1) for m in range(n) for i in range(19)]
    return bt.GraphData(inputs, edges, n_labels=5, labels=labels, node_counts=[20] * n, tables="full")


def problems() -> dict[str, Callable[[], Any]]:
    """What to learn, by name; each returns a solution."""
    found: dict[str, Callable[[], Any]] = {}

    def estimator(method: Any, *setting: Any) -> Callable[[], Any]:
        train, _, truth = picture(*setting)
        return lambda: (
            bt.GridCRF(method=method, n_threads=1, max_seconds=MAX_SECONDS).fit(train, [truth] * len(train)).solution_
        )

    def learned(data: Any, method: str, **options: Any) -> Callable[[], Any]:
        return lambda: bt.learn(data, method, n_threads=1, max_seconds=MAX_SECONDS, **options)

    for method in ("convex", "camel0", "cccp"):
        found[f"{method}, picture"] = estimator(method, 24, 3, 1.0, 4, 10)
    found["convex, noisy picture"] = estimator("convex", 24, 2, 1.0, 4, 10)
    found["convex, large picture"] = estimator("convex", 64, 2, 0.7, 1, 0)
    complete = make_problem(BenchSettings(), FieldSize.parse("K6"), "shared", 2.0, 0).data
    grid = make_problem(BenchSettings(), FieldSize.parse("4x4"), "unshared", 2.0, 1).data
    for method in ("camel0", "cccp"):
        found[f"{method}, complete graph"] = learned(complete, method)
        found[f"{method}, small grid"] = learned(grid, method)
    found["lbp, complete graph"] = learned(complete, "lbp")  # belief propagation does not converge
    found["exact, chains"] = learned(chains(), "exact")
    found["cccp, superpixels"] = learned(superpixel_like(100, 20), "cccp")
    return found


def measured(name: str, values: tuple[Any, ...]) -> list[dict[str, tuple[float, bool]]]:
    """Processor seconds of each problem with each value in turn, and whether it converged; the least of two rounds."""
    warnings.simplefilter("ignore")
    rows: list[dict[str, tuple[float, bool]]] = [{} for _ in values]
    for problem, learn in problems().items():
        for turn in range(3):
            for row, value in zip(rows, values, strict=True):
                object.__setattr__(SCHEDULE, name, value)  # all solvers read this one object
                begun = time.process_time()
                solution = learn()
                seconds = time.process_time() - begun
                if turn:  # the first compiles
                    least = min(seconds, row.get(problem, (np.inf, True))[0])
                    row[problem] = (least, solution.converged)
                elif seconds > 10.0:
                    row[problem] = (seconds, solution.converged)
            if all(problem in row for row in rows) and not turn:
                break
    return rows


def line(name: str, usual: Any, values: tuple[Any, ...], rows: list[dict[str, tuple[float, bool]]]) -> str:
    """A row of the table."""
    cells = []
    for value, row in zip(values[1:], rows[1:], strict=True):
        total, base = (sum(seconds for seconds, _ in each.values()) for each in (row, rows[0]))
        ratios = {problem: row[problem][0] / max(rows[0][problem][0], 1e-3) for problem in row}
        furthest = max(ratios, key=lambda problem: abs(np.log(ratios[problem])))
        lost = [problem for problem in row if rows[0][problem][1] and not row[problem][1]]
        won = [problem for problem in row if row[problem][1] and not rows[0][problem][1]]
        words = f"{total / base:.2f} ({furthest} {ratios[furthest]:.2f})"
        words += f"; **lost**: {', '.join(lost)}" if lost else ""
        words += f"; gained: {', '.join(won)}" if won else ""
        cells.append(f"{value:g}: {words}")
    return f"| `{name}` | {usual:g} | {cells[0]} | {cells[1]} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    usual = {field.name: field.default for field in dataclasses.fields(Schedule)}
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--constants", nargs="*", choices=usual, default=list(usual))
    parser.add_argument("-o", "--output", type=Path)
    given = parser.parse_args()
    lines = ["| constant | value | less | more |", "|---|---|---|---|"]
    with ProcessPoolExecutor(given.workers) as pool:
        tasks = {}
        for name in given.constants:
            value = usual[name]
            less, more = OTHERS.get(name, (type(value)(value / 2), type(value)(2 * value)))
            tasks[name] = (value, less, more), pool.submit(measured, name, (value, less, more))
        for name, (values, task) in tasks.items():
            lines.append(line(name, usual[name], values, task.result()))
            print(lines[-1], flush=True)
            if given.output is not None:
                given.output.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
