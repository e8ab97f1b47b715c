"""Learning from a folder four times the allowed memory, against the same data in memory.

    python benchmarks/bench_streaming.py [--nodes 1000000] [--folder DIR]

Either side runs in a process of its own; memory is the growth of its resident set, mapped files included, over that
after learning from a tiny folder, so that the interpreter, the libraries and compiled code do not count. A pass is one
evaluation of CAMEL(0).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import bactrian as bt

LABELS, INPUTS = 5, 8


def part(seed: int, n_graphs: int, side: int) -> bt.GraphData:
    """Grids of ``side`` x ``side`` nodes with noisy inputs."""
    rng = np.random.default_rng(seed)
    node = np.arange(side * side).reshape(side, side)
    one = np.concatenate(
        [np.stack([node[:, :-1], node[:, 1:]], -1).reshape(-1, 2), np.stack([node[:-1], node[1:]], -1).reshape(-1, 2)]
    )
    edges = (one[None] + (side * side * np.arange(n_graphs))[:, None, None]).reshape(-1, 2)
    labels = np.repeat(rng.integers(0, LABELS, n_graphs * side), side)
    inputs = np.eye(LABELS, INPUTS)[labels] + rng.normal(0, 1.0, (labels.size, INPUTS))
    return bt.GraphData(inputs, edges, n_labels=LABELS, labels=labels, node_counts=np.full(n_graphs, side * side))


def parts(nodes: int, chunk: int, side: int = 50) -> Iterator[bt.GraphData]:
    graphs = chunk // side**2
    return (part(seed, graphs, side) for seed in range(nodes // (graphs * side**2)))


class Resident:
    """Largest resident set of this process while the block runs, in MiB over that before; mapped files included."""

    def __enter__(self) -> Resident:
        self.before = self.largest = self.now()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        self.growth = self.largest - self.before

    def _watch(self) -> None:
        while not self._done.wait(0.005):
            self.largest = max(self.largest, self.now())

    @staticmethod
    def now() -> float:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * resource.getpagesize() / 2**20


def learn(data: object, iterations: int) -> dict[str, float]:
    began = time.perf_counter()
    solution = bt.learn(data, bt.Camel(entropy="clusters"), max_iterations=iterations, n_threads=2)
    return {
        "seconds": time.perf_counter() - began,
        "evaluations": solution.evaluations,
        "objective": solution.objective,
        "sweeps": sum(record.sweeps for record in solution.history),
    }


def side(kind: str, folder: str, iterations: int) -> None:
    """One side of the comparison, in a process of its own."""
    warnings.simplefilter("ignore", bt.ConvergenceWarning)
    with tempfile.TemporaryDirectory() as tiny:
        learn(bt.PackedFolder.write(tiny, parts(20_000, 10_000)), 3)
    learn(next(parts(10_000, 10_000)), 3)
    packed = bt.PackedFolder.open(folder)
    with Resident() as resident:
        data = packed if kind == "folder" else joined(packed)
        result = learn(data, iterations)
    print(json.dumps(result | {"growth": resident.growth}))


def joined(packed: bt.PackedFolder) -> bt.GraphData:
    """The graphs of all chunks, in memory."""
    whole = [part(seed, chunk.instances, 50) for seed, chunk in enumerate(packed.chunks)]
    return bt.GraphData(
        np.concatenate([p.scores.inputs.dense for p in whole]),
        np.concatenate([p.edges + k * p.n_nodes for k, p in enumerate(whole)]),
        n_labels=LABELS,
        labels=np.concatenate([p.labels for p in whole]),
        node_counts=np.concatenate([np.diff(p.node_pointer) for p in whole]),
    )


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--nodes", type=int, default=1_000_000)
    arguments.add_argument("--chunk", type=int, default=50_000)
    arguments.add_argument("--iterations", type=int, default=10)
    arguments.add_argument("--folder", type=Path, default=None)
    arguments.add_argument("--side", default="")
    given = arguments.parse_args()
    if given.side:
        side(given.side, str(given.folder), given.iterations)
        return
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        began = time.perf_counter()
        packed = bt.PackedFolder.write(folder, parts(given.nodes, given.chunk))
        size = sum(chunk.bytes for chunk in packed.chunks) / 2**20
        took = time.perf_counter() - began
        print(f"{platform.machine()}, {os.cpu_count()} cores")
        print(f"{packed.n_chunks} chunks, {size:.0f} MiB, packed in {took:.1f} s")
        found = {}
        for kind in ("memory", "folder"):
            command = [
                sys.executable,
                __file__,
                "--side",
                kind,
                "--folder",
                folder,
                "--iterations",
                str(given.iterations),
            ]
            found[kind] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            print(kind, found[kind])
        memory, streamed = found["memory"], found["folder"]
        passes = [side["seconds"] / side["evaluations"] for side in (memory, streamed)]
        ratio, less = passes[1] / passes[0], size / streamed["growth"]
        print(f"seconds a pass: memory {passes[0]:.3f}, folder {passes[1]:.3f}, ratio {ratio:.2f} (wanted 2)")
        print(f"memory beside the folder: {streamed['growth']:.0f} MiB, {less:.1f} times less than the data")


if __name__ == "__main__":
    main()
