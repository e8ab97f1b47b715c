"""Triplets against Bethe: marginal errors by enumeration on small frustrated graphs, and errors of learned weights.

Run ``python benchmarks/bench_tighten.py`` (all parts) or name some: inference, budget, learning. Binary variables,
fields N(0, 0.1), couplings uniform in [-s, s] as scores of agreement minus disagreement; seeds 0, 1, 2, ... Errors are
means over graphs of the mean absolute error of a table's entries. The figure to reach is a ratio of at most 0.5.
"""

from __future__ import annotations

import sys
import time
import warnings
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

import bactrian as bt
from bactrian.graphs.graph import grid_edges

warnings.simplefilter("ignore")
N_GRAPHS = 20
GRAPHS = {
    **{f"K{n}": (n, list(combinations(range(n), 2))) for n in (4, 5, 6)},
    **{f"{k}x{k}": (k * k, [(a, b) for a, b in grid_edges(k, k).tolist()]) for k in (3, 4)},
}


def spin_model(name: str) -> bt.LogLinearModel:
    """A weight for each variable and each pair."""
    n, pairs = GRAPHS[name]
    scopes = [*((v,) for v in range(n)), *pairs]
    features = []
    for i, scope in enumerate(scopes):
        table = np.zeros((2 ** len(scope), len(scopes)))
        table[:, i] = [1.0, -1.0] if len(scope) == 1 else [1.0, -1.0, -1.0, 1.0]
        features.append(table)
    return bt.LogLinearModel(bt.ClusterGraph([2] * n, scopes), features)


def spin_weights(name: str, seed: int, strength: float) -> NDArray[np.float64]:
    """Random fields and couplings."""
    n, pairs = GRAPHS[name]
    rng = np.random.default_rng(seed)
    return np.concatenate([0.1 * rng.normal(size=n), rng.uniform(-strength, strength, size=len(pairs))])


def errors(found: bt.InferenceResult, exact: bt.InferenceResult, n: int) -> tuple[float, float, float]:
    """Mean error of variables and of pairs, and of log Z."""
    variables = np.mean([np.abs(a - b).mean() for a, b in zip(found.variables, exact.variables, strict=True)])
    both = zip(list(found.clusters)[n:], list(exact.clusters)[n:], strict=True)
    assert found.log_partition is not None
    assert exact.log_partition is not None
    return (
        float(variables),
        float(np.mean([np.abs(a - b).mean() for a, b in both])),
        abs(found.log_partition - exact.log_partition),
    )


def measure(name: str, strength: float, tighten: int) -> tuple[NDArray[np.float64], int, float, float]:
    """Mean errors over the graphs, how many converged, triplets and seconds a graph."""
    model, n = spin_model(name), GRAPHS[name][0]
    rows, converged, triplets, seconds = [], 0, 0, 0.0
    for seed in range(N_GRAPHS):
        weights = spin_weights(name, seed, strength)
        exact = bt.infer(model, weights, "exact")
        begun = time.perf_counter()
        found = bt.infer(model, weights, "double-loop", tolerance=1e-6, tighten=tighten)
        seconds += time.perf_counter() - begun
        rows.append(errors(found, exact, n))
        converged += found.converged
        triplets += len(found.triplets)
    return np.mean(rows, axis=0), converged, triplets / N_GRAPHS, seconds / N_GRAPHS


def inference() -> None:
    """As many triplets as there are independent cycles."""
    print(f"inference: mean over {N_GRAPHS} graphs, Bethe (double loop) -> with triplets")
    for name in GRAPHS:
        for strength in (1.0, 2.0, 3.0):
            (v0, p0, z0), done, _, t0 = measure(name, strength, 0)
            (v1, p1, z1), tight, triplets, t1 = measure(name, strength, 100)
            print(
                f"  {name} s={strength:.0f}  variables {v0:.4f} -> {v1:.4f} ({v1 / v0:.2f})  "
                f"pairs {p0:.4f} -> {p1:.4f} ({p1 / p0:.2f})  log Z {z0:.3f} -> {z1:.3f}  "
                f"converged {done} -> {tight}  {triplets:.1f} triplets  {1e3 * t0:.0f} -> {1e3 * t1:.0f} ms"
            )


def budget() -> None:
    """Fewer triplets than independent cycles."""
    print(f"budget: mean error of variables over {N_GRAPHS} graphs at s=2 with at most k triplets")
    for name in ("K5", "K6", "4x4"):
        row = [f"k={k} {measure(name, 2.0, k)[0][0]:.4f}" for k in (0, 1, 2, 4, 8, 16, 32)]
        print(f"  {name:4} " + "  ".join(row))


def learning() -> None:
    """Weights learned from 500 exact samples, against exact maximum likelihood, and the marginals that they give."""
    print(f"learning: mean over {N_GRAPHS} data sets, mean |w - w_exact| and exact marginals at w against w_exact")
    for name in ("K4", "K5", "3x3"):
        model, (n, _) = spin_model(name), GRAPHS[name]
        states = np.indices([2] * n).reshape(n, -1).T
        scores = np.stack(
            [np.where(states[:, v], -1.0, 1.0) for v in range(n)]
            + [np.where(states[:, a] == states[:, b], 1.0, -1.0) for a, b in GRAPHS[name][1]],
            axis=1,
        )
        for strength in (0.5, 1.0, 2.0):
            rows: dict[int, list[tuple[float, float, float]]] = {0: [], 100: []}
            converged = dict.fromkeys(rows, 0)
            for seed in range(N_GRAPHS):
                joint = np.exp(scores @ spin_weights(name, seed, strength))
                drawn = np.random.default_rng(seed).choice(len(states), size=500, p=joint / joint.sum())
                data = bt.Samples(model, states[drawn])
                truth = bt.learn(data, "exact", prior_variance=10.0)
                exact = bt.infer(model, truth.weights, "exact")
                for k, row in rows.items():
                    begun = time.perf_counter()
                    found = bt.learn(data, bt.Camel(tighten=k), prior_variance=10.0, tolerance=1e-5)
                    seconds = time.perf_counter() - begun
                    at = bt.infer(model, found.weights, "exact")
                    row.append((float(np.abs(found.weights - truth.weights).mean()), errors(at, exact, n)[1], seconds))
                    converged[k] += found.converged
            (w0, p0, t0), (w1, p1, t1) = (np.mean(row, axis=0) for row in rows.values())
            print(
                f"  {name:4} s={strength:.1f}  weights {w0:.4f} -> {w1:.4f} ({w1 / w0:.2f})  "
                f"pairs {p0:.4f} -> {p1:.4f} ({p1 / p0:.2f})  "
                f"converged {converged[0]} -> {converged[100]}  {1e3 * t0:.0f} -> {1e3 * t1:.0f} ms"
            )


PARTS = {"inference": inference, "budget": budget, "learning": learning}

if __name__ == "__main__":
    for part in sys.argv[1:] or PARTS:
        PARTS[part]()
