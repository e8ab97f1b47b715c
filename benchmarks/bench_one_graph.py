"""One large graph on several threads: seconds, speed-up, and whether results depend on the number of threads.

    python benchmarks/bench_one_graph.py            # grids of 10^4, 10^5 and 10^6 nodes, 1, 2 and 4 threads
    python benchmarks/bench_one_graph.py --quick    # up to 10^5 nodes, fewer iterations and repetitions
    python benchmarks/bench_one_graph.py --work convex "CAMEL(0) from zero" --sizes 5 --threads 1 2

Wanted: 1.6 times as fast on two threads from 10^5 nodes on, an exponent in nodes of at most 1.1, no difference between
results, and 20 iterations of CAMEL(0) on a million nodes in a minute. Graphs of 10^4 nodes are not cut.
The exponent is that of ``bp``, whose sweeps are counted; learners need other numbers of sweeps from size to size.

Runs on different numbers of threads take turns, and the shortest of each counts. A machine with other work has no
second core to give: the speed-up of hashing on as many threads says what it gives just then. ``ideal`` is what the
processor times of a run allow: all of them over the serial part and, for every round of tasks, the thread that would
finish last.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import os
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

import bactrian as bt
from bactrian.parallel.threads import Workers
from bench_graphs import peak_gib, picture
from problems import cpu_name

N_LABELS = 3
_LEAST_CUT = 30_000
Result = list[np.ndarray]


def grid(n_nodes: int) -> bt.GraphData:
    side = round(math.sqrt(n_nodes))
    X, truth = picture(side, N_LABELS, 1.0, 0)
    number = np.arange(side * side).reshape(side, side)
    pairs = [(number[:, :-1], number[:, 1:]), (number[:-1], number[1:])]
    edges = np.concatenate([np.stack([a.ravel(), b.ravel()], axis=1) for a, b in pairs])
    inputs = np.column_stack([X.reshape(-1, N_LABELS), np.ones(side * side)])
    return bt.GraphData(inputs, edges, n_labels=N_LABELS, labels=truth.ravel(), tables="symmetric")


def learner(method: Any, iterations: int) -> Callable[[bt.GraphData, int], Result]:
    def work(data: bt.GraphData, threads: int) -> Result:
        solution = bt.learn(data, method, max_iterations=iterations, prior_variance=10.0, n_threads=threads)
        return [solution.weights, np.array([solution.objective, solution.moment_gap, solution.violation])]

    return work


def marginals(data: bt.GraphData, threads: int) -> Result:
    weights = np.concatenate([np.eye(N_LABELS).ravel(), np.zeros(N_LABELS), [0.8, 0.0, 0.0, 0.8, 0.0, 0.8]])
    (found,) = bt.infer(data, weights, "bp", max_iterations=100, tolerance=1e-300, n_threads=threads)
    return [found.variables.stacked(), np.array([found.log_partition])]


class Recorded:
    """Processor times of the tasks of each round, while this is a context."""

    def __enter__(self) -> Recorded:
        self.rounds: list[list[float]] = []
        self._run = run = Workers.run

        def recorded(workers: Workers, task: Callable[[int, int, int], object], bounds: Any) -> None:
            times = [0.0] * (len(bounds) - 1)

            def timed(block: int, first: int, last: int) -> None:
                began = time.thread_time()
                task(block, first, last)
                times[block] = time.thread_time() - began

            run(workers, timed, bounds)
            self.rounds.append(times)

        Workers.run = recorded  # type: ignore[method-assign]
        return self

    def __exit__(self, *error: object) -> None:
        Workers.run = self._run  # type: ignore[method-assign]

    def ideal(self, total: float, threads: int) -> float:
        """Seconds, of ``total`` processor seconds, with a core for every thread."""
        seconds = total - sum(map(sum, self.rounds))
        for times in self.rounds:
            busy = [0.0] * threads
            for took in times:
                busy[busy.index(min(busy))] += took
            seconds += max(busy)
        return seconds


def hashing(threads: int) -> float:
    """Seconds in which so many threads hash 64 MiB each."""
    block = bytes(1 << 26)
    workers = [threading.Thread(target=hashlib.sha256, args=(block,)) for _ in range(threads)]
    began = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return time.perf_counter() - began


def bench(
    name: str, work: Callable[[bt.GraphData, int], Result], data: bt.GraphData, threads: list[int], n: int
) -> float:
    """Print a line for each number of threads; returns the processor seconds of one."""
    work(data if data.n_nodes <= _LEAST_CUT else grid(_LEAST_CUT), threads[-1])  # compiles
    wall, cpu = dict.fromkeys(threads, math.inf), dict.fromkeys(threads, math.inf)
    ideal, given, results = dict.fromkeys(threads, 0.0), dict.fromkeys(threads, 0.0), {}
    for _ in range(n):
        for t in threads:
            given[t] = max(given[t], hashing(1) * t / hashing(t))
            with Recorded() as recorded:
                began, used = time.perf_counter(), time.process_time()
                results[t] = work(data, t)
                took, used = time.perf_counter() - began, time.process_time() - used
            wall[t], cpu[t] = min(wall[t], took), min(cpu[t], used)
            ideal[t] = max(ideal[t], used / recorded.ideal(used, t))
    one = threads[0]
    for t in threads:
        apart = max(float(np.abs(a - b).max()) for a, b in zip(results[one], results[t], strict=True))
        print(
            f"| {name} | {data.n_nodes:,} | {t} | {wall[t]:.2f} | {cpu[t]:.2f} | {wall[one] / wall[t]:.2f} | "
            f"{ideal[t]:.2f} | {given[t]:.2f} | {apart:g} |",
            flush=True,
        )
    return cpu[one]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--repetitions", type=int)
    parser.add_argument("--sizes", type=int, nargs="+", help="powers of 10")
    parser.add_argument("--work", nargs="+", help="lines of the table, by default all")
    options = parser.parse_args()
    warnings.simplefilter("ignore", bt.ConvergenceWarning)
    sizes = [10**power for power in options.sizes or ([4, 5] if options.quick else [4, 5, 6])]
    repetitions = options.repetitions or (2 if options.quick else 3)
    iterations = 8 if options.quick else 20
    works = {  # and the largest graph for each
        "camel0": (learner("camel0", iterations), 10**6),
        "bp, 100 sweeps": (marginals, 10**6),
        "convex": (learner("convex", iterations), 10**6),
        "CAMEL(0) from zero": (learner(bt.Camel(entropy="clusters"), iterations), 10**6),
        "cccp": (learner("cccp", iterations), 10**5),
    }
    works = {name: work for name, work in works.items() if name in (options.work or works)}
    print(f"{cpu_name()}, {os.cpu_count()} cores; grids with {N_LABELS} labels, {iterations} iterations\n")
    print("| work | nodes | threads | s | processor s | speed-up | ideal | hashing | difference |")
    print("|---|---|---|---|---|---|---|---|---|")
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for size in sizes:
        data = grid(size)
        for name, (work, largest) in works.items():
            if size <= largest:
                seconds[name].append(bench(name, work, data, options.threads, repetitions if size < 10**6 else 1))
    print("\nExponent in nodes, processor seconds of one thread:")
    for name, found in seconds.items():
        steps = np.diff(np.log(found)) / np.diff(np.log(sizes[: len(found)]))
        print(f"  {name}: " + ", ".join(f"{step:.2f} from {size:,}" for step, size in zip(steps, sizes, strict=False)))
    print(f"peak memory {peak_gib():.2f} GiB")


if __name__ == "__main__":
    main()
