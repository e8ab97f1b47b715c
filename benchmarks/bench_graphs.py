"""Large graphs: prediction on one big grid, and CAMEL(0) on a graph of a million nodes.

    python benchmarks/bench_graphs.py                   # both, with peak memory
    python benchmarks/bench_graphs.py --part predict --side 256
    python benchmarks/bench_graphs.py --part learn --nodes 100000 --iterations 20
    python benchmarks/bench_graphs.py --part matched    # log-loss and accuracy of matched inference against rbp

Targets on two cores: a 512 x 512 grid with 5 labels predicted in 5 s; 20 iterations of CAMEL(0) on a graph of a
million nodes within 8 GiB. The first part prints what a tighter tolerance would change, and the time of the same grid
by plain NumPy (parallel belief propagation with as many sweeps) in the same run.
"""

from __future__ import annotations

import argparse
import resource
import time
import warnings

import numpy as np
from scipy.ndimage import gaussian_filter

import bactrian as bt


def picture(side: int, n_labels: int, noise: float, seed: int, smooth: float = 3.0) -> tuple[np.ndarray, np.ndarray]:
    """Regions of a smooth random field, and noisy indicators of the labels as features."""
    rng = np.random.default_rng(seed)
    fields = np.stack([gaussian_filter(rng.normal(size=(side, side)), smooth) for _ in range(n_labels)], axis=2)
    truth = fields.argmax(axis=2)
    return np.eye(n_labels)[truth] + noise * rng.normal(size=(side, side, n_labels)), truth


def peak_gib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def numpy_propagation(unary: np.ndarray, table: np.ndarray, sweeps: int) -> np.ndarray:
    """Parallel belief propagation on a 4-connected grid in plain NumPy; marginals (h, w, k)."""
    h, w, k = unary.shape
    exp_table = np.exp(table - table.max())
    psi = np.exp(unary - unary.max(axis=2, keepdims=True))
    # from_left[i, j]: message into (i, j) from (i, j - 1), and so on.
    left, right, up, down = (np.ones((h, w, k)) for _ in range(4))
    for _ in range(sweeps):
        belief = psi * left * right * up * down
        new = [np.ones((h, w, k)) for _ in range(4)]
        new[0][:, 1:] = (belief / right)[:, :-1] @ exp_table
        new[1][:, :-1] = (belief / left)[:, 1:] @ exp_table.T
        new[2][1:] = (belief / down)[:-1] @ exp_table
        new[3][:-1] = (belief / up)[1:] @ exp_table.T
        left, right, up, down = (m / m.max(axis=2, keepdims=True) for m in new)
    belief = psi * left * right * up * down
    return belief / belief.sum(axis=2, keepdims=True)


def bench_predict(side: int, n_labels: int) -> None:
    train = [picture(48, n_labels, 1.0, seed) for seed in range(4)]
    X, truth = picture(side, n_labels, 1.0, 99)
    print(f"grid {side} x {side}, {n_labels} labels")
    for name, method in (("convex", bt.Camel(entropy="convex")), ("camel0", "camel0"), ("cccp", "cccp")):
        crf = bt.GridCRF(method=method, max_seconds=60).fit([x for x, _ in train], [y for _, y in train])
        crf.predict([X[:8, :8]])  # compile
        labels: dict[float, np.ndarray] = {}
        for tolerance in (1e-6, 1e-4, 1e-3, 1e-2):
            crf.set_params(inference_options={"tolerance": tolerance, "max_seconds": 60})
            began, cpu = time.perf_counter(), time.process_time()
            (labels[tolerance],) = crf.predict([X])
            seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
            differ = float((labels[tolerance] != labels[1e-6]).mean())
            print(
                f"  {name:7s} {crf.inference_method_[0]:7s} tolerance {tolerance:.0e}: {seconds:6.2f} s "
                f"({cpu:.2f} s of CPU), accuracy {(labels[tolerance] == truth).mean():.4f}, labels unlike those at "
                f"1e-6: {differ:.2e}"
            )
    node, (table,) = crf.weight_tables()
    unary = np.concatenate([X, np.ones((side, side, 1))], axis=2) @ node
    began = time.perf_counter()
    theirs_marginals = numpy_propagation(unary, table, 20)
    theirs = time.perf_counter() - began
    crf.set_params(inference="bp", inference_options={"schedule": "parallel", "max_iterations": 20, "tolerance": 1e-12})
    began = time.perf_counter()
    (marginals,) = crf.predict_marginals([X])
    ours = time.perf_counter() - began
    print(
        f"  20 parallel sweeps: bactrian {ours:.2f} s, NumPy {theirs:.2f} s, ratio {theirs / ours:.1f}, largest "
        f"difference {np.abs(marginals - theirs_marginals).max():.1e}; peak memory {peak_gib():.2f} GiB"
    )


def bench_learn(n_nodes: int, iterations: int, n_labels: int, seconds_at_most: float | None) -> None:
    side = round(n_nodes**0.5)
    X, truth = picture(side, n_labels, 1.0, 0)
    print(f"one graph of {side * side} nodes, {n_labels} labels, CAMEL(0), {iterations} iterations")
    # From zero: the iterations of a piecewise start would count too.
    crf = bt.GridCRF(method=bt.Camel(entropy="clusters"), max_iterations=iterations, max_seconds=seconds_at_most)
    began, cpu = time.perf_counter(), time.process_time()
    crf.fit([X], [truth])
    print(
        f"  {time.perf_counter() - began:.1f} s ({time.process_time() - cpu:.1f} s of CPU), "
        f"{sum(r.iterations for r in crf.solution_.history)} iterations, {crf.solution_.evaluations} evaluations, "
        f"{sum(r.sweeps for r in crf.solution_.history)} sweeps, peak memory {peak_gib():.2f} GiB "
        f"({crf.solution_.status}, gap {crf.solution_.moment_gap / (side * side):.1e} a node)"
    )


def bench_matched(n_labels: int = 4) -> None:
    """Matched inference against residual belief propagation, at the same weights."""
    print("learner, inference: accuracy, log-loss on 16 test grids of 24 x 24")
    for smooth, noise in ((1.0, 1.0), (2.0, 1.5), (4.0, 1.5)):
        pictures = [picture(24, n_labels, noise, seed, smooth) for seed in range(24)]
        X, y = [x for x, _ in pictures], [t for _, t in pictures]
        truth = np.concatenate([t.ravel() for t in y[8:]])
        for name, method in (
            ("convex", bt.Camel(entropy="convex")), ("trw", bt.Camel(entropy="trw")), ("camel0", "camel0"),
            ("cccp", "cccp"), ("pseudolikelihood", "pseudolikelihood"),
        ):  # fmt: skip
            crf = bt.GridCRF(method=method, max_seconds=60).fit(X[:8], y[:8])
            for inference in ("matched", "rbp"):
                crf.set_params(inference=inference)
                marginals = np.concatenate([m.reshape(-1, n_labels) for m in crf.predict_marginals(X[8:])])
                right = float((marginals.argmax(axis=1) == truth).mean())
                loss = -float(np.log(np.maximum(marginals[np.arange(truth.size), truth], 1e-12)).mean())
                print(f"  smoothness {smooth:.0f} noise {noise}: {name:16s} {inference:8s} {right:.3f} {loss:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("predict", "learn", "matched"))
    parser.add_argument("--side", type=int, default=512)
    parser.add_argument("--nodes", type=int, default=1_000_000)
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--labels", type=int, default=5)
    parser.add_argument("--seconds", type=float, help="limit on learning")
    options = parser.parse_args()
    warnings.simplefilter("ignore", bt.ConvergenceWarning)
    if options.part in (None, "learn"):  # first, for its peak memory
        bench_learn(options.nodes, options.iterations, options.labels, options.seconds)
    if options.part in (None, "predict"):
        bench_predict(options.side, options.labels)
    if options.part in (None, "matched"):
        bench_matched()


if __name__ == "__main__":
    main()
