"""Speed of inference, as ratios measured in one run.

Run ``python benchmarks/bench_inference.py`` (all parts) or name some: parallel, residual, frustrated, junction,
intervals, auto. Every figure is printed beside the one it is meant to reach; peers that are not installed are skipped
and named.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import bactrian as bt
from bactrian.inference.uai import read_evidence, read_model, to_model

warnings.simplefilter("ignore")
NO_WEIGHTS = np.zeros(0)


def best(function: Callable[[], Any], repeats: int = 5, clock: Callable[[], float] = time.perf_counter) -> float:
    function()
    times = []
    for _ in range(repeats):
        begun = clock()
        function()
        times.append(clock() - begun)
    return min(times)


def grid_pairs(side: int) -> np.ndarray:
    index = np.arange(side * side).reshape(side, side)
    across = np.stack([index[:, :-1].ravel(), index[:, 1:].ravel()], axis=1)
    down = np.stack([index[:-1].ravel(), index[1:].ravel()], axis=1)
    return np.concatenate([across, down])


def ising_grid(side: int, strength: float, field: float, rng: np.random.Generator) -> bt.LogLinearModel:
    """Couplings uniform in +-strength, fields normal with the given deviation."""
    pairs = grid_pairs(side)
    clusters = [(v,) for v in range(side * side)] + [tuple(pair) for pair in pairs.tolist()]
    scores = [field * rng.normal(size=2) for _ in range(side * side)]
    sign = np.array([1.0, -1.0, -1.0, 1.0])
    scores += [rng.uniform(-strength, strength) * sign for _ in pairs]
    features = [np.zeros((score.size, 0)) for score in scores]
    return bt.LogLinearModel(bt.ClusterGraph([2] * (side * side), clusters), features, scores)


# --- parallel belief propagation beside other people's ---


def parallel() -> None:
    side, n_states, iterations = 100, 5, 20
    rng = np.random.default_rng(0)
    unary, table = rng.normal(size=(side, side, n_states)), 0.3 * rng.normal(size=(n_states, n_states))
    inputs = unary.reshape(-1, n_states)
    data = bt.GraphData(inputs, grid_pairs(side), n_labels=n_states, tables="full")
    weights = np.concatenate([np.eye(n_states).ravel(), table.ravel()])

    def ours(count: int) -> Any:
        return bt.infer(data, weights, "bp", schedule="parallel", n_threads=1, max_iterations=count, tolerance=1e-300)

    long, short = best(lambda: ours(2 * iterations)), best(lambda: ours(iterations))
    each = (long - short) / iterations
    print(f"parallel BP, {side}x{side} grid, {n_states} states, one thread")
    print(f"  bactrian  {1e3 * each:9.2f} ms per iteration ({1e3 * short:.0f} ms for a call of {iterations})")
    theirs = time_pygms(unary, table)
    if theirs is not None:
        print(f"  pyGMs     {1e3 * theirs:9.2f} ms per iteration: {theirs / each:.0f}x (at least 100x)")
    theirs = time_pgmax(unary, table, iterations, ours(iterations)[0])
    if theirs is not None:
        print(f"  PGMax     {1e3 * theirs:9.2f} ms per iteration: {theirs / each:.1f}x (at least 2x)")


def time_pygms(unary: np.ndarray, table: np.ndarray) -> float | None:
    if importlib.util.find_spec("pygms") is None:
        print("  pyGMs is not installed: skipped")
        return None
    import pygms
    from pygms.messagepass import LBP

    side, n_states = unary.shape[0], unary.shape[2]
    variables = [pygms.Var(v, n_states) for v in range(side * side)]
    factors = [pygms.Factor([v], np.exp(unary.reshape(-1, n_states)[v.label])) for v in variables]
    factors += [pygms.Factor([variables[a], variables[b]], np.exp(table)) for a, b in grid_pairs(side)]
    model = pygms.GraphModel(factors)
    with contextlib.redirect_stdout(None):
        begun = time.perf_counter()
        LBP(model, maxIter=1, verbose=False)
        one = time.perf_counter() - begun
        begun = time.perf_counter()
        LBP(model, maxIter=2, verbose=False)
        return time.perf_counter() - begun - one


def time_pgmax(unary: np.ndarray, table: np.ndarray, iterations: int, ours: Any) -> float | None:
    python = os.environ.get("BACTRIAN_PGMAX_PYTHON", sys.executable)
    if subprocess.run([python, "-c", "import pgmax"], capture_output=True, check=False).returncode:
        print("  PGMax is not installed (BACTRIAN_PGMAX_PYTHON names the interpreter that has it): skipped")
        return None
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "problem.npz")
        np.savez(path, unary=unary, table=table)
        script = str(Path(__file__).parent / "peer_pgmax.py")
        run = subprocess.run(
            [python, script, path, str(iterations)], capture_output=True, text=True, check=True,
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
        )  # fmt: skip
        marginals = np.load(f"{path}.marginals.npy").reshape(-1, unary.shape[2])
    gap = max(np.abs(ours.variables[v] - marginals[v]).max() for v in range(0, len(marginals), 37))
    print(f"  PGMax's marginals differ by {gap:.0e} (single precision)")
    return float(run.stdout.strip().splitlines()[-1])


# --- schedules ---


def packed_grid(side: int, strength: float, field: float, rng: np.random.Generator) -> tuple[bt.GraphData, np.ndarray]:
    """As ``ising_grid``, packed, with its weights: every edge's table is its input times one Potts table."""
    pairs = grid_pairs(side)
    inputs, couplings = (
        field * rng.normal(size=(side * side, 2)),
        rng.uniform(-strength, strength, size=(len(pairs), 1)),
    )
    data = bt.GraphData(inputs, pairs, n_labels=2, tables="potts", edge_inputs=couplings)
    return data, np.array([1.0, 0.0, 0.0, 1.0, 2.0])


def converge(data: bt.GraphData, weights: np.ndarray, method: str, options: dict[str, Any]) -> tuple[Any, float]:
    """Result, and the time of its message passing: without packing, scores and the final beliefs."""

    def run(count: int = 5000) -> Any:
        options_ = {"n_threads": 1, "tolerance": 1e-6, "max_iterations": count, **options}
        return bt.infer(data, weights, method, **options_)[0]

    # Processor time, for the difference is small; one thread, so that it is comparable.
    overhead = best(lambda: run(1), 25, time.process_time)
    return run(), best(run, 25, time.process_time) - overhead


def residual() -> None:
    print("32x32 binary grid, couplings uniform in +-1, to 1e-6, one thread: message updates and time to convergence")
    ratios = []
    for seed in range(6):
        data, weights = packed_grid(32, 1.0, 0.5, np.random.default_rng(seed))
        line, figures = f"  grid {seed}", {}
        for name, method, options in (
            ("parallel", "bp", {"schedule": "parallel"}),
            ("sequential", "bp", {"schedule": "sequential"}),
            ("residual", "rbp", {}),
        ):
            result, seconds = converge(data, weights, method, options)
            figures[name] = (result, seconds)
            state = "" if result.converged else " (not converged)"
            line += f" | {name} {result.updates:8d} in {1e3 * seconds:6.1f} ms{state}"
        print(line)
        by_residual, by_parallel, by_sequential = figures["residual"], figures["parallel"], figures["sequential"]
        ratios.append(
            (
                by_residual[0].updates / by_parallel[0].updates,
                by_residual[1] / by_parallel[1],
                by_residual[1] / by_sequential[1],
            )
        )
    middle = np.median(ratios, axis=0)
    print(f"  residual / parallel updates: {middle[0]:.2f} (at most 0.5)")
    print(f"  residual / parallel time: {middle[1]:.2f}, residual / sequential time: {middle[2]:.2f} (below 1)")


def frustrated() -> None:
    n_grids = 10
    print(f"frustrated 10x10 grids, couplings uniform in +-3, {n_grids} of them, 1000 iterations, to 1e-6: converged")
    models = [ising_grid(10, 3.0, 0.5, np.random.default_rng(seed)) for seed in range(n_grids)]
    exact = np.array([r.log_partition for r in bt.infer(models, NO_WEIGHTS, "exact")])
    for name, method, options in (
        ("bp, parallel", "bp", {"schedule": "parallel"}),
        ("bp, parallel, damping 0.5", "bp", {"schedule": "parallel", "damping": 0.5}),
        ("bp, sequential", "bp", {}),
        ("bp, sequential, damping 0.5", "bp", {"damping": 0.5}),
        ("rbp", "rbp", {}),
        ("rbp, damping 0.5", "rbp", {"damping": 0.5}),
        ("rbp, then double-loop", "rbp", {"fallback": "double-loop"}),
        ("double-loop", "double-loop", {}),
        ("trw", "trw", {}),
        ("convex", "convex", {}),
    ):
        begun = time.perf_counter()
        results = bt.infer(models, NO_WEIGHTS, method, tolerance=1e-6, **options)
        seconds = time.perf_counter() - begun
        done = sum(r.converged for r in results)
        gap = np.mean([r.log_partition for r in results] - exact)
        print(f"  {name:28s} {done:3d} of {n_grids} in {seconds:6.2f} s, log Z off by {gap:+.2f} on average")


# --- inference that chooses ---


def junction() -> None:
    """Exact marginals of all variables beside pyAgrum's, each in a process of its own, and the memory they take."""
    folder = os.environ.get("BACTRIAN_DATA")
    if folder is None:
        print("junction: BACTRIAN_DATA is not set: skipped")
        return
    if importlib.util.find_spec("pyagrum") is None:
        print("junction: pyagrum is not installed: skipped")
        return
    budget, limit, ratios = 2**31, 30.0, []
    print(f"exact marginals of UAI's models, one thread, {limit:g} s at most")
    for path in sorted(Path(folder).glob("uai*/*.uai")):
        if not Path(f"{path}.MAR").exists():
            continue
        mine, memory = in_a_process("ours", path, limit, budget)
        other, _ = in_a_process("theirs", path, limit, budget) if mine < math.inf else (math.inf, math.nan)
        if max(mine, other) < math.inf:
            ratios.append(mine / other)
        print(
            f"  {path.stem:20s} bactrian {mine:8.3f} s, {memory:5.0f} MiB above the budget, pyAgrum {other:8.3f} s: "
            f"{mine / other:.2f} of its time",
            flush=True,
        )
    middle = float(np.exp(np.mean(np.log(ratios))))
    print(f"  {len(ratios)} models: {middle:.2f} in the mean (at most .5), worst {max(ratios):.2f} (at most 1.5)")


def in_a_process(who: str, path: Path, limit: float, budget: int) -> tuple[float, float]:
    """Processor seconds of an answer, after first ones on small models, and MiB less the budget; inf: none."""
    command = [sys.executable, __file__, "one", who, str(path), str(budget)]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=limit + 10.0, check=True)
    except (subprocess.TimeoutExpired, subprocess.CalledProcessError):
        return math.inf, math.nan
    seconds, kilobytes = map(float, run.stdout.split()[-2:])
    return (seconds if seconds <= limit else math.inf), kilobytes / 2**10 - budget / 2**20


def one(who: str, name: str, budget: str) -> None:
    """What :func:`in_a_process` runs."""
    path = Path(name)
    read = read_model(path)
    evidence = read_evidence(f"{path}.evid", read.cardinalities)
    if who == "ours":
        for side in (3, 16, 16):  # kernels, and those that plan larger models, are loaded once
            bt.infer(ising_grid(side, 1.0, 0.5, np.random.default_rng(0)), NO_WEIGHTS, "exact", n_threads=1)
        begun = time.process_time()
        result = bt.infer(to_model(read), NO_WEIGHTS, "exact", evidence, memory_budget=int(budget), n_threads=1)
        _ = list(result.variables)
    else:
        import pyagrum as gum

        gum.setNumberOfThreads(1)
        field = agrum_field(gum, read)
        begun = time.process_time()
        engine = gum.ShaferShenoyMRFInference(field)
        engine.setEvidence({f"x{v}": s for v, s in evidence.items()})
        engine.makeInference()
        for v in range(len(read.cardinalities)):
            engine.posterior(f"x{v}").toarray()
    print(time.process_time() - begun, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def intervals() -> None:
    """How often the 95 % interval of annealing holds log Z, on models small enough to be exact."""
    held, widths, n = 0, [], 300
    for seed in range(n):
        model = random_model(20, np.random.default_rng(seed))
        low, high = bt.infer(model, NO_WEIGHTS, "annealing", seed=seed, n_threads=1, n_samples=256).interval
        held += low <= bt.infer(model, NO_WEIGHTS, "exact").log_partition <= high
        widths.append(high - low)
    print(
        f"{n} models of 20 variables at strengths .5 to 5: 95 % intervals hold log Z in {held / n:.1%} (at least 93 %)"
    )
    print(f"  their width is {np.median(widths):.2g} in the median, {max(widths):.2g} at most")


def random_model(n: int, random: np.random.Generator) -> bt.LogLinearModel:
    """Pairs at random, all pairs, or triplets, with scores uniform up to the strength of the model."""
    strength, kind = random.uniform(0.5, 5.0), random.integers(3)
    pairs = list(itertools.combinations(range(n), 2))
    scopes: list[tuple[int, ...]] = [pair for pair in pairs if kind == 1 or random.random() < 0.2]
    if kind == 2:
        scopes = [tuple(sorted(random.choice(n, 3, replace=False).tolist())) for _ in range(n)]
    scores = [strength * random.uniform(-1.0, 1.0, 2 ** len(scope)) for scope in scopes]
    scopes += [(v,) for v in range(n)]
    scores += [0.2 * random.normal(size=2) for _ in range(n)]
    return bt.LogLinearModel(bt.ClusterGraph([2] * n, scopes), [np.zeros((s.size, 0)) for s in scores], scores)


def auto() -> None:
    """What choosing costs on models that are small."""
    print("auto beside exact, the method that it picks, one thread: processor time (at most 1.10)")
    rng = np.random.default_rng(0)
    models = {f"{side}x{side} grid": ising_grid(side, 1.0, 0.5, rng) for side in (3, 6, 10)}
    models["chain of 100"] = bt.LogLinearModel(
        bt.ClusterGraph([2] * 100, [(v, v + 1) for v in range(99)]), [rng.normal(size=(4, 1)) for _ in range(99)]
    )
    for name, model in models.items():
        weights = np.ones(model.n_weights)
        times = {
            method: best(lambda m=method: bt.infer(model, weights, m, n_threads=1), 60, time.process_time)  # noqa: B023
            for method in ("exact", "auto")
        }
        print(f"  {name:14s} {1e3 * times['auto']:.2f} ms, {times['auto'] / times['exact']:.3f} of exact's")


def agrum_field(gum: Any, read: Any) -> Any:
    field = gum.MarkovRandomField()
    for v, k in enumerate(read.cardinalities.tolist()):
        field.add(gum.RangeVariable(f"x{v}", "", 0, k - 1))
    products: dict[tuple[int, ...], np.ndarray] = {}
    for scope, table in zip(read.scopes, read.tables, strict=True):
        order = tuple(sorted(scope))
        table = np.transpose(table, [scope.index(v) for v in order])
        products[order] = products.get(order, 1.0) * table
    for scope, table in products.items():
        names = {f"x{v}" for v in scope}
        field.addFactor([f"x{v}" for v in scope])
        axes = [scope.index(int(name[1:])) for name in reversed(field.factor(names).names)]
        field.factor(names)[:] = np.ascontiguousarray(np.transpose(table, axes))
    return field


PARTS = {part.__name__: part for part in (parallel, residual, frustrated, junction, intervals, auto)}

if __name__ == "__main__":
    if sys.argv[1:2] == ["one"]:
        one(*sys.argv[2:])
    else:
        for part in sys.argv[1:] or PARTS:
            PARTS[part]()
