"""Maximum entropy from margins: mbi 2.0 (Private-PGM) and bactrian on the same noisy tables, in one run.

``python benchmarks/bench_marginals.py synthetic|adult|large [options]``

- ``synthetic``: 8 attributes of 4 states, k noisy 3-way margins of 10,000 rows, Laplace noise of scale k (epsilon = 1,
  one count per row and margin). Half the L1 distance to the true margins, on measured and on unmeasured ones: exactly,
  by default and by one fit of entropy weight 0.01; on the region graph of the margins; and on the saturated one,
  which has all 3-way margins, those not measured with noise that drowns them. Rows are of a random spanning tree with
  normal potentials times 3, as in the experiments of mbi's authors (``experiments/neurips/exact_vs_approx.py`` of their
  repository), or of a mixture of six products. With ``--published exact_vs_approx.csv``, of ``results`` there,
  seeds, trees, potentials, measured sets and noise are theirs, and their errors stand beside ours.
- ``adult``: 15 single columns and the 23 pairs of most mutual information that keep the junction tree below 16 MiB,
  noise of standard deviation 10. Time until mbi's best training loss (half the sum of squared standardised
  residuals), and the rows' distance to the margins fitted with the last of ``--weights``. Needs BACTRIAN_DATA.
- ``large``: 3-way margins over many variables, on the region graph: time and peak memory of 25 iterations (or others).

mbi needs JAX: ``pip install --target DIR mbi``, then ``--mbi DIR``. Without it bactrian runs alone. Times are of
clock and processor; a run before them compiles. mbi 2.0 has no region graphs, so those of bactrian stand alone.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import os
import resource
import sys
import time
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse.csgraph import minimum_spanning_tree

import bactrian as bt
from bactrian.graphs.elimination import MemoryBudgetError, junction_tree
from bactrian.inference.draw import draw_exactly
from bactrian.margins.rounding import distances

Timed = tuple[Any, float, float]


def timed(function: Any) -> Timed:
    wall, cpu = time.perf_counter(), time.process_time()
    result = function()
    return result, time.perf_counter() - wall, time.process_time() - cpu


def counted(X: Any, scope: tuple[int, ...], sizes: list[int]) -> Any:
    shape = tuple(sizes[v] for v in scope)
    index = np.ravel_multi_index(tuple(X[:, v] for v in scope), shape)
    return np.bincount(index, minlength=int(np.prod(shape))).reshape(shape).astype(float)


class Mbi:
    """mbi behind the few calls that the comparison needs; None where it is not there."""

    def __init__(self, folder: str, estimator: str) -> None:
        self.estimator = estimator
        sys.path.insert(0, folder)
        import jax

        jax.config.update("jax_enable_x64", True)
        import mbi

        self.mbi = mbi

    def fit(
        self, names: list[str], sizes: list[int], scopes: Any, tables: Any, stddev: float, total: float, **options: Any
    ) -> Any:
        mbi = self.mbi
        domain = mbi.Domain(names, sizes)
        measured = [
            mbi.LinearMeasurement(table.ravel(), tuple(names[v] for v in scope), stddev=stddev)
            for scope, table in zip(scopes, tables, strict=True)
        ]
        return getattr(mbi.estimation, self.estimator)().estimate(domain, measured, known_total=total, **options)

    def table(self, model: Any, names: list[str], scope: tuple[int, ...]) -> Any:
        factor = model.project(tuple(names[v] for v in scope))
        order = [list(factor.domain.attributes).index(names[v]) for v in scope]
        return np.asarray(factor.datavector(flatten=False)).transpose(order)


def loss_of(tables: Any, noisy: Any, stddev: float) -> float:
    return 0.5 * sum(float((((a - b) / stddev) ** 2).sum()) for a, b in zip(tables, noisy, strict=True))


def rows_of_tree(edges: Any, potentials: Any, n: int, seed: int) -> Any:
    """Rows of a Markov random field on a tree, as even as whole rows can be."""
    model = bt.LogLinearModel(bt.ClusterGraph([4] * 8, edges), [np.eye(112)[16 * e : 16 * e + 16] for e in range(7)])
    return draw_exactly(model, potentials, n, seed=seed, even=True)


def tree_rows(rng: Any, n: int) -> Any:
    ends = minimum_spanning_tree(rng.random((8, 8))).nonzero()
    edges = [(int(a), int(b)) for a, b in zip(*ends, strict=True)]
    seed = int(rng.integers(2**31))
    return rows_of_tree(edges, 3.0 * rng.standard_normal(112), n, seed)


def mixture_rows(rng: Any, n: int) -> Any:
    parts, mix = rng.dirichlet(0.5 * np.ones(4), size=(6, 8)), rng.dirichlet(np.ones(6))
    kind = rng.choice(6, n, p=mix)
    columns = [(rng.random((n, 1)) > parts[kind, j].cumsum(axis=1)).sum(axis=1).clip(0, 3) for j in range(8)]
    return np.stack(columns, axis=1)


#: Edges of the random trees of mbi's authors, by seed, in the order in which their junction tree has them.
PUBLISHED_TREES = {
    2457026461: ((0, 4), (0, 5), (1, 4), (1, 2), (1, 3), (1, 6), (2, 7)),
    2643031147: ((0, 2), (0, 7), (3, 7), (4, 7), (6, 7), (1, 2), (2, 5)),
    2094276510: ((0, 1), (1, 2), (2, 6), (4, 6), (3, 4), (1, 7), (5, 7)),
    2378741324: ((0, 1), (0, 6), (2, 6), (5, 6), (0, 7), (3, 7), (3, 4)),
    1961979125: ((0, 3), (0, 4), (1, 4), (1, 5), (2, 4), (2, 7), (4, 6)),
}


def published(arguments: argparse.Namespace) -> None:
    """Errors next to those that mbi's authors published, on their trees, measured sets and noise."""
    n, sizes, names = 10_000, [4] * 8, [f"v{i}" for i in range(8)]
    with open(arguments.published) as stream:
        theirs = {(int(r["measurements"]), r["oracle"], int(r["seed"])): r for r in csv.DictReader(stream)}
    triples = list(itertools.combinations(range(8), 3))
    print(
        f"{'k':>3} {'entropy':10} {'seeds':>5} {'theirs':>15} {'ours':>15} {'difference':>27} {'seconds':>7} {'cpu':>6}"
    )
    for k, (oracle, method) in itertools.product(arguments.k, (("exact", "exact"), ("approx2", "cccp"))):
        found = []
        for seed, edges in PUBLISHED_TREES.items():
            if (row := theirs.get((k, oracle, seed))) is None:
                continue
            rng = np.random.RandomState(seed)
            drawn = {(int(a), int(b)) for a, b in zip(*minimum_spanning_tree(rng.rand(8, 8)).nonzero(), strict=True)}
            assert {tuple(sorted(edge)) for edge in drawn} == set(edges)
            X = rows_of_tree(edges, 3.0 * rng.randn(112), n, 0)
            measured = [triples[i] for i in rng.choice(56, k, replace=False)]
            truth = {s: counted(X, s, sizes) / n for s in triples}
            noise = [rng.laplace(0.0, k, 64).reshape(4, 4, 4) for _ in measured]
            assert abs(np.mean([0.5 * np.abs(t).sum() / n for t in noise]) - float(row["baseline_in"])) < 1e-12
            margins = [
                bt.Marginal([names[v] for v in s], n * truth[s] + t, stddev=np.sqrt(2.0) * k)
                for s, t in zip(measured, noise, strict=True)
            ]
            others = [s for s in triples if s not in measured]
            if method == "cccp":
                flat = np.full((4, 4, 4), n / 64)
                margins += [bt.Marginal([names[v] for v in s], flat, stddev=10.0 * n) for s in others]
            field = bt.MarkovRandomField(method=method, tolerance=1e-5)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", bt.ConvergenceWarning)
                field, _, cpu = timed(partial(field.fit_marginals, margins, dict.fromkeys(names, 4), total=n))
            errors = [
                float(np.mean([0.5 * np.abs(field.marginal([names[v] for v in s]) - truth[s]).sum() for s in scopes]))
                for scopes in (measured, others)
            ]
            found.append([float(row["error_in"]), float(row["error_out"]), *errors, float(row["time"]), cpu])
        mean = np.mean(found, axis=0)
        gaps = np.array(found)[:, 2:4] - np.array(found)[:, :2]
        spread = gaps.std(axis=0, ddof=1) / np.sqrt(len(gaps))
        pairs = "  ".join(f"{g:+.4f} +- {e:.4f}" for g, e in zip(gaps.mean(axis=0), spread, strict=True))
        print(
            f"{k:3d} {'exact' if method == 'exact' else 'saturated':10} {len(found):5d} {mean[0]:7.4f} {mean[1]:7.4f} "
            f"{mean[2]:7.4f} {mean[3]:7.4f} {pairs} {mean[4]:7.0f} {mean[5]:6.2f}",
            flush=True,
        )


def synthetic(arguments: argparse.Namespace, peer: Mbi | None) -> None:
    if arguments.published:
        return published(arguments)
    n, sizes, names = 10_000, [4] * 8, [f"v{i}" for i in range(8)]
    print(f"{'k':>3} {'method':16} {'measured':>9} {'unmeasured':>11} {'seconds':>8} {'cpu':>7}")
    for k in arguments.k:
        found: dict[str, list[tuple[float, float, float, float]]] = {}
        for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
            rng = np.random.default_rng(seed)
            X = tree_rows(rng, n) if arguments.data == "tree" else mixture_rows(rng, n)
            triples = [tuple(t) for t in rng.permutation(list(itertools.combinations(range(8), 3))).tolist()]
            measured, others = triples[:k], triples[k:]
            truth = {scope: counted(X, scope, sizes) / n for scope in triples}
            noisy = [n * truth[scope] + rng.laplace(0.0, k, (4, 4, 4)) for scope in measured]
            stddev = float(np.sqrt(2.0) * k)
            margins = [
                bt.Marginal([names[v] for v in s], t, stddev=stddev) for s, t in zip(measured, noisy, strict=True)
            ]

            flat = [bt.Marginal([names[v] for v in s], np.full((4, 4, 4), n / 64), stddev=10.0 * n) for s in others]

            def ours(method: str, margins: Any = margins, weight: float | None = None) -> Any:
                field = bt.MarkovRandomField(method=method, tolerance=1e-5)
                return field.fit_marginals(margins, dict.fromkeys(names, 4), total=n, entropy_weight=weight)

            runs: dict[str, Any] = {"exact": lambda: ours("exact")}
            runs["exact, 0.01"] = lambda: ours("exact", weight=0.01)
            runs["regions"] = lambda: ours("cccp")
            runs["saturated"] = lambda margins=[*margins, *flat]: ours("cccp", margins)
            if peer is not None:
                runs["mbi, exact"] = partial(
                    peer.fit, names, sizes, measured, noisy, stddev, n, iters=arguments.iterations
                )
            for method, run in runs.items():
                if seed == arguments.first_seed:
                    run()  # compiles
                model, wall, cpu = timed(run)

                if method == "mbi, exact":
                    joint = peer.table(model, names, tuple(range(8))) / n  # type: ignore[union-attr]
                elif method.startswith("exact"):
                    joint = model.marginal(names)

                def table(scope: Any, model: Any = model, method: str = method, joint: Any = joint) -> Any:
                    if "exact" in method:
                        left = joint.sum(axis=tuple(v for v in range(8) if v not in scope))
                        return left.transpose(np.argsort(np.argsort(scope)))
                    return model.marginal([names[v] for v in scope])

                on, off = (
                    float(np.mean([0.5 * np.abs(table(s) - truth[s]).sum() for s in scopes])) if scopes else np.nan
                    for scopes in (measured, () if method == "regions" else others)
                )
                found.setdefault(method, []).append((on, off, wall, cpu))
        for method, rows in found.items():
            on, off, wall, cpu = np.mean(rows, axis=0)
            print(f"{k:3d} {method:16} {on:9.4f} {off:11.4f} {wall:8.2f} {cpu:7.2f}", flush=True)


def adult(arguments: argparse.Namespace, peer: Mbi | None) -> None:
    folder = Path(os.environ["BACTRIAN_DATA"]) / "tables"
    with (folder / "adult.csv").open() as stream:
        names = stream.readline().strip().split(",")
        X = np.loadtxt(stream, delimiter=",", dtype=np.int64)
    domain = json.loads((folder / "adult-domain.json").read_text())
    sizes, n = [domain[name] for name in names], len(X)
    scopes = _informative(X, sizes, 38)
    rng = np.random.default_rng(arguments.seed)
    noisy = [counted(X, scope, sizes) + 10.0 * rng.standard_normal([sizes[v] for v in scope]) for scope in scopes]
    margins = [bt.Marginal([names[v] for v in s], t, stddev=10.0) for s, t in zip(scopes, noisy, strict=True)]

    def ours(weight: float | None, tolerance: float, most: int = 10_000) -> Any:
        field = bt.MarkovRandomField(method="auto", tolerance=tolerance, max_iterations=most)
        return field.fit_marginals(margins, dict(zip(names, sizes, strict=True)), total=n, entropy_weight=weight)

    best = np.inf
    if peer is not None:
        peer.fit(names, sizes, scopes, noisy, 10.0, n, iters=50)
        for iterations in arguments.mbi_iterations:
            model, wall, cpu = timed(partial(peer.fit, names, sizes, scopes, noisy, 10.0, n, iters=iterations))
            loss = loss_of([peer.table(model, names, scope) for scope in scopes], noisy, 10.0)
            best = min(best, loss)
            print(
                f"mbi, {peer.estimator}, {iterations:6d} iterations: loss {loss:10.2f}, {wall:7.2f} s, cpu {cpu:7.2f}",
                flush=True,
            )
    ours(None, 1e-3, 2)
    for weight, tolerance in itertools.product(arguments.weights, arguments.tolerances):
        field, wall, cpu = timed(partial(ours, weight, tolerance))
        loss = loss_of([entry.fitted for entry in field.residuals_], noisy, 10.0)
        true = np.mean(
            [entry_distance(entry, counted(X, s, sizes)) for entry, s in zip(field.residuals_, scopes, strict=True)]
        )
        given = "by noise" if weight is None else f"{weight:g}"
        reached = "" if peer is None else f", {'at' if loss <= best else 'above'} mbi's best"
        print(
            f"bactrian, {field.method_}, entropy weight {given}, tolerance {tolerance:g}: loss {loss:10.2f}{reached}"
            f", {wall:7.2f} s, cpu {cpu:7.2f}, {field.solution_.evaluations} evaluations, error {true:.5f}",
            flush=True,
        )
    field = ours(arguments.weights[-1], 1e-5)
    tables = [entry.fitted / n for entry in field.residuals_]
    for rounded in (False, True):
        rows, wall, cpu = timed(lambda rounded=rounded: field.sample(n, seed=0, rounded=rounded))
        gap = distances(rows, np.array(sizes), scopes, tables)
        kind = "rounded" if rounded else "independent"
        print(
            f"{n} rows, {kind}: total variation mean {gap.mean():.5f}, largest {gap.max():.5f}, "
            f"{wall:.2f} s, cpu {cpu:.2f}"
        )
    least = [np.abs(n * table - np.rint(n * table)).sum() / (2 * n) for table in tables]
    print(f"the nearest whole numbers, cell by cell: mean {np.mean(least):.5f}, largest {np.max(least):.5f}")
    if peer is not None:
        data, wall, _ = timed(lambda: model.synthetic_data(n))
        frame = np.stack([np.asarray(data.data[name]) for name in names], axis=1).astype(np.int64)
        own = [peer.table(model, names, scope) / n for scope in scopes]
        gap = distances(frame, np.array(sizes), scopes, own)
        print(f"mbi, {n} rows: total variation mean {gap.mean():.5f}, largest {gap.max():.5f}, {wall:.2f} s")


def entry_distance(entry: Any, truth: Any) -> float:
    return float(0.5 * np.abs(entry.fitted - truth).sum() / truth.sum())


def _informative(X: Any, sizes: list[int], number: int) -> list[tuple[int, ...]]:
    """All single columns, then pairs by mutual information as long as the junction tree stays small."""

    def information(pair: tuple[int, int]) -> float:
        p = counted(X, pair, sizes) / len(X)
        product = np.outer(p.sum(axis=1), p.sum(axis=0))
        return float((p[p > 0.0] * np.log(p[p > 0.0] / product[p > 0.0])).sum())

    chosen: list[tuple[int, ...]] = [(v,) for v in range(len(sizes))]
    for pair in sorted(itertools.combinations(range(len(sizes)), 2), key=lambda pair: -information(pair)):
        if len(chosen) == number:
            break
        try:
            junction_tree(np.array(sizes), [*chosen, pair], memory_budget=2**24, restarts=4)
        except MemoryBudgetError:
            continue
        chosen.append(pair)
    return chosen


def large(arguments: argparse.Namespace, _: Mbi | None) -> None:
    rng = np.random.default_rng(arguments.seed)
    d, k, size = arguments.variables, arguments.margins, arguments.states
    names, chosen = [f"v{i}" for i in range(d)], set()
    while len(chosen) < k:
        chosen.add(tuple(sorted(rng.choice(d, 3, replace=False).tolist())))
    # Rows of a mixture, so that the margins belong to one distribution.
    n = 100_000
    parts, kind = rng.dirichlet(np.ones(size), size=(4, d)), rng.integers(0, 4, n)
    X = np.stack(
        [(rng.random((n, 1)) > parts[kind, j].cumsum(axis=1)).sum(axis=1).clip(0, size - 1) for j in range(d)], 1
    )
    scopes = sorted(chosen)
    tables = [counted(X, s, [size] * d) + 10.0 * rng.standard_normal((size,) * 3) for s in scopes]
    margins = [bt.Marginal([names[v] for v in s], t, stddev=10.0) for s, t in zip(scopes, tables, strict=True)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        limits = {"max_iterations": arguments.iterations, "tolerance": 1e-4}
        field = bt.MarkovRandomField(method=arguments.method, memory_budget=2**20, **limits)
        _, wall, cpu = timed(lambda: field.fit_marginals(margins, dict.fromkeys(names, size), total=n))
    errors = [entry_distance(e, counted(X, s, [size] * d)) for e, s in zip(field.residuals_, scopes, strict=True)]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"{k} margins of {size}^3 cells over {d} variables, {arguments.method}: {wall:.1f} s, cpu {cpu:.1f}, "
        f"{field.solution_.evaluations} evaluations, {field.solution_.status}, error {np.mean(errors):.4f}, "
        f"peak {peak:.2f} GiB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mbi", metavar="DIR", help="where mbi and JAX are installed")
    parser.add_argument("--mbi-estimator", default="MirrorDescent", help="of mbi.estimation, such as LBFGS")
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("synthetic")
    one.add_argument("--k", type=int, nargs="+", default=[8, 20, 40])
    one.add_argument("--data", choices=("tree", "mixture"), default="tree")
    one.add_argument("--seeds", type=int, default=5)
    one.add_argument("--first-seed", type=int, default=0)
    one.add_argument("--iterations", type=int, default=1000, help="of mbi")
    one.add_argument("--published", metavar="CSV", help="errors that mbi's authors published")
    two = commands.add_parser("adult")
    two.add_argument("--seed", type=int, default=0)
    two.add_argument("--mbi-iterations", type=int, nargs="+", default=[1000, 5000])
    two.add_argument("--weights", type=float, nargs="+", default=[None])
    two.add_argument("--tolerances", type=float, nargs="+", default=[1e-3, 1e-4, 1e-5])
    three = commands.add_parser("large")
    three.add_argument("--variables", type=int, default=100)
    three.add_argument("--margins", type=int, default=10_000)
    three.add_argument("--states", type=int, default=10)
    three.add_argument("--method", default="cccp")
    three.add_argument("--iterations", type=int, default=25)
    three.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    peer = Mbi(arguments.mbi, arguments.mbi_estimator) if arguments.mbi else None
    {"synthetic": synthetic, "adult": adult, "large": large}[arguments.command](arguments, peer)


if __name__ == "__main__":
    main()
