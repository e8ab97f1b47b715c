"""The GPU against two CPU threads, measured in one run.

``python benchmarks/bench_gpu.py [text] [images] [--device cuda] [--iterations 2000] [--scale 1.0] [--json PATH]``

Two synthetic problems of the size of real ones: a skip-chain of CoNLL-2003's training set (203,621 tokens in 946
documents, 9 labels, 283 thousand features of which a token has 70) and 100 times the Corel images (4,000 graphs of 311
superpixels, 7 labels, 8 inputs, a symmetric table). For each: the time of an evaluation (scores, star sweeps, value,
gradient) with the same number of sweeps, and with as many as each engine needs for the same accuracy; the agreement of
both engines; full CCCP training. ``--seconds`` ends a training that takes longer, and its status says so: what it had
reached by then depends on the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

import bactrian as bt
import bactrian.engines.memory  # keeps packed data for a dual
import bactrian.torch
from bactrian.camel.dual import Dual
from bactrian.camel.entropy import carve
from bactrian.camel.prior import Prior
from bactrian.engines.torch.parts import DeviceGraphs
from bactrian.graphs.packing import pack
from bactrian.parallel.threads import Context, Workers
from problems import cpu_name, superpixel_like

warnings.simplefilter("ignore", bt.ConvergenceWarning)


def skip_chain_like(scale: float, seed: int = 0) -> bt.GraphData:
    """Documents of sentences (chains) with skip edges, and Zipf-distributed features that carry the labels."""
    rng = np.random.default_rng(seed)
    n_tokens, n_documents, n_features = int(203_621 * scale), max(2, int(946 * scale)), max(1000, int(283_000 * scale))
    n_labels, per_token = 9, 70
    node_counts = np.diff(np.sort(np.concatenate([[0, n_tokens], rng.integers(0, n_tokens, n_documents - 1)])))
    document = np.repeat(np.arange(n_documents), node_counts)
    ends_sentence = rng.random(n_tokens) < 14_041 / 203_621
    left = np.flatnonzero(~ends_sentence[:-1] & (document[:-1] == document[1:]))
    chain = np.stack([left, left + 1], axis=1)
    first = rng.integers(0, n_tokens, int(16_000 * scale))
    second = np.minimum(first + 2 + rng.geometric(1 / 60, first.size), n_tokens - 1)
    skips = np.stack([first, second], axis=1)[(document[first] == document[second]) & (second > first + 1)]
    columns = np.minimum(n_features * rng.random((n_tokens, per_token)) ** 3.0, n_features - 1).astype(np.int32)
    inputs = sp.csr_array(
        (np.ones(columns.size), columns.ravel(), per_token * np.arange(n_tokens + 1)), shape=(n_tokens, n_features)
    )
    inputs.sum_duplicates()
    # The same true weights whatever the seed, so that fresh data can be made.
    truth = np.random.default_rng(12345)
    true = truth.normal(size=(n_features, n_labels)) * (truth.random((n_features, 1)) < 0.2)
    score = inputs @ true + rng.gumbel(size=(n_tokens, n_labels))
    score[:, 0] += 6.0
    score[1:] += 0.6 * (score[:-1] - score[:-1].mean(axis=1, keepdims=True))
    edges = np.concatenate([chain, skips])
    return bt.GraphData(
        inputs,
        edges,
        n_labels=n_labels,
        labels=score.argmax(axis=1),
        tables=("full", "symmetric"),
        edge_types=np.repeat([0, 1], [len(chain), len(skips)]),
        node_counts=node_counts,
        node_factors="edges",
    )


def images_like(scale: float, seed: int = 0) -> bt.GraphData:
    n_graphs = max(2, int(4000 * scale))
    return superpixel_like(311 * n_graphs, n_graphs, seed)


def seconds(function: Callable[[], object], repeats: int, cuda: bool) -> float:
    """Median time, the device's work included."""
    function()
    times = []
    for _ in range(repeats):
        if cuda:
            torch.cuda.synchronize()
        begun = time.perf_counter()
        function()
        if cuda:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begun)
    return float(np.median(times))


def evaluate_on_cpu(dual: Dual, weights: Any, sweeps: int) -> float:
    return dual.evaluate(weights, max_sweeps=sweeps, tolerance=-1.0).value


def evaluate_on_device(dual: Dual, weights: Any, sweeps: int) -> float:
    """An evaluation with exactly so many sweeps: of itself the engine stops where nothing changes any more."""
    (part,) = dual.parts
    with part:
        part.set_weights(weights)
        for _ in range(sweeps):
            float(part.stars.sweep())
        part.pass_messages(max_sweeps=0)
        found = part.summary()
        gradient = dual.prior.precision * weights - dual.empirical + found.moments
        return found.value + float(gradient[0])


def evaluations(data: bt.GraphData, device: torch.device, found: dict[str, Any]) -> None:
    cuda = device.type == "cuda"
    rng = np.random.default_rng(0)
    weights = 0.1 * rng.normal(size=data.n_weights)
    nearby = weights + 0.002 * rng.normal(size=data.n_weights)
    packed = pack(data)
    cpu = Dual(packed, carve(packed, "bethe"), Prior(10.0), Context(Workers(2)))
    engines: dict[str, Any] = {"cpu, 2 threads": (cpu, weights, nearby)}
    for dtype in (torch.float64, torch.float32):
        graphs = DeviceGraphs(data, device, dtype)
        dual = Dual(graphs, lambda packed: carve(packed, "bethe"), Prior(10.0), Context(Workers(2)))
        both = (torch.from_numpy(w).to(device) for w in (weights, nearby))
        engines[f"{device.type}, {str(dtype).removeprefix('torch.')}"] = (dual, *both)
    for name, (dual, w, other) in engines.items():
        on_device = dual is not cpu
        repeats = 20 if on_device else 5
        row: dict[str, Any] = {}
        for sweeps in (0, 1, 4):
            evaluate = evaluate_on_device if on_device else evaluate_on_cpu
            row[f"{sweeps} sweeps"] = seconds(
                lambda e=evaluate, d=dual, x=w, n=sweeps: e(d, x, n), repeats, cuda and on_device
            )
        for accuracy in (1e-3, 1e-5):
            counts: list[int] = []

            def there_and_back(d: Any = dual, a: Any = w, b: Any = other, t: float = accuracy, c: Any = counts) -> None:
                c.append(d.evaluate(b, max_sweeps=100, tolerance=t).sweeps)
                c.append(d.evaluate(a, max_sweeps=100, tolerance=t).sweeps)

            half = 0.5 * seconds(there_and_back, max(2, repeats // 4), cuda and on_device)
            row[f"warm to {accuracy:g}"] = half
            row[f"sweeps to {accuracy:g}"] = float(np.mean(counts)) / data.n_graphs
        evaluation = dual.evaluate(w, max_sweeps=200, tolerance=1e-11)
        row["value"] = evaluation.value
        row["gradient norm"] = float(np.linalg.norm(np.asarray(torch.as_tensor(evaluation.gradient).cpu())))
        found[name] = row
        print(name, {k: f"{v:.4g}" for k, v in row.items()}, flush=True)
    reference = found["cpu, 2 threads"]
    for name, row in found.items():
        ratios = {k: reference[k] / row[k] for k in row if ("sweeps" in k and "to" not in k) or "warm" in k}
        row["times faster"] = ratios
        row["value, relative difference"] = abs(row["value"] / reference["value"] - 1.0)
        print(name, "times faster:", {k: f"{v:.1f}" for k, v in ratios.items()}, flush=True)


def training(
    data: bt.GraphData, fresh: bt.GraphData, device: torch.device, limits: dict[str, Any], runs: list[dict[str, Any]]
) -> dict[str, Any]:
    """Learn in several ways; predictions are compared on ``fresh`` data."""
    found: dict[str, Any] = {}
    predictions = {}
    for run in runs:
        name = ", ".join(f"{v}" for v in run.values())
        options = {**limits, **run}
        on_device = options.pop("engine", "torch") == "torch"
        begun = time.perf_counter()
        if on_device:
            solution = bactrian.torch.learn(data, device=device, **options)
        else:
            solution = bt.learn(data, n_threads=2, **options)
        total = time.perf_counter() - begun
        row = {
            "seconds": solution.seconds,
            "seconds with set-up": total,
            "status": str(solution.status),
            "objective": solution.objective,
            "outer": len(solution.history),
            "evaluations": solution.evaluations,
            "sweeps per graph": sum(r.sweeps for r in solution.history) / data.n_graphs,
            "violation": solution.violation,
            "moment gap": solution.moment_gap,
        }
        if on_device:
            nodes = np.concatenate([beliefs.hubs() for beliefs in solution.beliefs])
            row["accuracy on the training data"] = float((nodes.argmax(1) == data.labels).mean())
            marginals = bactrian.torch.infer(fresh, solution.weights, "bp", device=device, tolerance=1e-4)
            predictions[name] = marginals.predict()
            row["fresh data: seconds"] = marginals.seconds
            row["fresh data: nodes below 0.9"] = float((marginals.nodes.max(1) < 0.9).mean())
            if device.type == "cuda":
                row["peak GiB"] = torch.cuda.max_memory_allocated() / 2**30
                torch.cuda.reset_peak_memory_stats()
            for other, labels in predictions.items():
                row[f"same predictions as {other}"] = float((predictions[name] == labels).mean())
        found[name] = row
        print(name, {k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()}, flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("problems", nargs="*", default=["text", "images"])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--iterations", type=int, default=2000, help="of a training at most")
    parser.add_argument("--seconds", type=float, help="of a training at most; none by default")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    limits = {"max_iterations": arguments.iterations, "max_seconds": arguments.seconds}
    hardware = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor()
    found: dict[str, Any] = {
        "device": hardware,
        "cpu": cpu_name(),
        "cpu cores in use": len(os.sched_getaffinity(0)),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    print(found, flush=True)
    for problem in arguments.problems:
        begun = time.perf_counter()
        data = skip_chain_like(arguments.scale) if problem == "text" else images_like(arguments.scale)
        size = {"graphs": data.n_graphs, "nodes": data.n_nodes, "edges": len(data.edges), "weights": data.n_weights}
        print(problem, size, f"made in {time.perf_counter() - begun:.1f} s", flush=True)
        rows: dict[str, Any] = {}
        found[problem] = {"size": size, "evaluation": rows}
        evaluations(data, device, rows)
        tolerances = (1e-3, 1e-6) if problem == "text" else (1e-2,)
        runs = [{"method": "cccp", "tolerance": t, "dtype": d} for t in tolerances for d in ("float64", "float32")]
        runs += [{"method": "camel0", "tolerance": 1e-3, "dtype": d} for d in ("float64", "float32")]
        fresh = skip_chain_like(arguments.scale, 1) if problem == "text" else images_like(0.1 * arguments.scale, 1)
        found[problem]["training"] = training(data, fresh, device, limits, runs)
        if arguments.json:
            with open(arguments.json, "w", encoding="utf-8") as file:
                json.dump(found, file, indent=1)


if __name__ == "__main__":
    main()
