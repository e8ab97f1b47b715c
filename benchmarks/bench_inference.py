"""Speed of inference, as ratios measured in one run.

Run ``python benchmarks/bench_inference.py`` (all parts) or name some: parallel, residual, frustrated, junction. Every
ratio is printed beside the figure it is meant to reach; peers that are not installed are skipped and named.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
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
from bactrian.inference.uai import read_evidence, read_model

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


# --- junction trees ---


def junction() -> None:
    folder = os.environ.get("BACTRIAN_DATA")
    if folder is None:
        print("junction: BACTRIAN_DATA is not set: skipped")
        return
    if importlib.util.find_spec("pyagrum") is None:
        print("junction: pyagrum is not installed: skipped")
        return
    import pyagrum as gum

    print("junction tree on UAI grids, marginals of all variables")
    for name in ("Grids_11", "Grids_12", "Grids_13", "Grids_14"):
        read = read_model(Path(folder) / "uai" / f"{name}.uai")
        evidence = read_evidence(Path(folder) / "uai" / f"{name}.uai.evid", read.cardinalities)
        features = [np.zeros((table.size, 0)) for table in read.tables]
        with np.errstate(divide="ignore"):
            scores = [np.log(table) for table in read.tables]
        model = bt.LogLinearModel(bt.ClusterGraph(read.cardinalities, read.scopes), features, scores)
        result: list[Any] = []

        def ours(model: Any = model, evidence: Any = evidence, result: list[Any] = result) -> None:
            answer = bt.infer(model, NO_WEIGHTS, "exact", evidence)
            result[:] = list(answer.variables)

        field = agrum_field(gum, read)
        posteriors: list[Any] = []

        def theirs(field: Any = field, evidence: Any = evidence, posteriors: list[Any] = posteriors) -> None:
            engine = gum.ShaferShenoyMRFInference(field)
            engine.setEvidence({f"x{v}": s for v, s in evidence.items()})
            engine.makeInference()
            posteriors[:] = [engine.posterior(f"x{v}").toarray() for v in range(len(read.cardinalities))]  # noqa: B023

        mine, other = best(ours, 3), best(theirs, 1)
        gap = max(np.abs(a - b).max() for a, b in zip(result, posteriors, strict=True))
        agreement = f"marginals differ by {gap:.0e}" if np.isfinite(gap) else "pyAgrum's marginals are not numbers"
        print(
            f"  {name}: bactrian {1e3 * mine:7.1f} ms, pyAgrum {1e3 * other:7.1f} ms: {mine / other:.2f} of its time "
            f"(at most 2), {agreement}"
        )


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


PARTS = {"parallel": parallel, "residual": residual, "frustrated": frustrated, "junction": junction}

if __name__ == "__main__":
    for part in sys.argv[1:] or PARTS:
        PARTS[part]()
