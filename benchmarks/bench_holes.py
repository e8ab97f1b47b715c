"""Parameters of a field from tables with holes: what is lost, against dropping rows and filling in the mode.

``python benchmarks/bench_holes.py [--simulations 100] [--rows 1000] [--part grids shapes]``; 0 simulations leave the
times alone.

A field of six variables in a ring with a chord (2 and 3 states) draws rows exactly; 30 % of the cells go, either
anywhere or, missing at random, from five columns with a chance that depends on the sixth, which is always seen. The
error is the root mean square over the parameters in zero-sum form, in which they are identified. Then the time of an
evaluation with holes over that with complete data: of a generative field, whose complete data is one model however many
rows there are, and of a conditional one (grids); then of larger generative fields, with 2,000 rows of which hardly two
are the same (shapes).
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

import bactrian as bt

EDGES = [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 0), (1, 4)]
STATES = (2, 3, 2, 2, 3, 2)
HOLES = 0.3


def drawn(rng: Any, rows: int) -> tuple[Any, Any]:
    """Parameters in zero-sum form, and rows of the field that has them."""
    tables = [rng.normal(0.0, 0.4, k) for k in STATES]
    pairs = [rng.normal(0.0, 0.8, (STATES[a], STATES[b])) for a, b in EDGES]
    every = np.array(list(itertools.product(*map(range, STATES))))
    scores = sum(table[every[:, v]] for v, table in enumerate(tables))
    scores = scores + sum(pair[every[:, a], every[:, b]] for (a, b), pair in zip(EDGES, pairs, strict=True))
    chances = np.exp(scores - scores.max())
    return zero_sum(tables, pairs), every[rng.choice(len(every), rows, p=chances / chances.sum())]


def zero_sum(tables: list[Any], pairs: list[Any]) -> Any:
    """The parameters with constants and single effects moved out of the tables of pairs."""
    singles = [table.copy() for table in tables]
    centred = []
    for (a, b), pair in zip(EDGES, pairs, strict=True):
        left, right = pair.mean(axis=1), pair.mean(axis=0)
        singles[a] += left
        singles[b] += right
        centred.append((pair - left[:, None] - right + pair.mean()).ravel())
    return np.concatenate([*(single - single.mean() for single in singles), *centred])


def with_holes(rng: Any, X: Any, at_random: bool) -> Any:
    """X with 30 % of its cells -1: anywhere, or with a chance that depends on the first column, which stays."""
    if not at_random:
        return np.where(rng.random(X.shape) < HOLES, -1, X)
    chance = np.where(X[:, :1] == 1, 1.5, 0.5) * HOLES
    chance = chance * HOLES * X.size / (chance.sum() * (X.shape[1] - 1))  # 30 % of all cells
    holey = np.where(rng.random(X.shape) < chance, -1, X)
    holey[:, 0] = X[:, 0]
    return holey


def errors(seed: int, rows: int, at_random: bool) -> dict[str, float]:
    """Of each way to deal with holes, in one simulation."""
    rng = np.random.default_rng(seed)
    truth, X = drawn(rng, rows)
    holey = with_holes(rng, X, at_random)
    mode = np.array([np.bincount(column[column >= 0]).argmax() for column in holey.T])
    forms = {
        "complete data": X,
        "holes": holey,
        "rows dropped": holey[(holey >= 0).all(axis=1)],
        "mode filled in": np.where(holey < 0, mode, holey),
    }
    found = {}
    for name, form in forms.items():
        field = bt.MarkovRandomField(EDGES, method="exact", cardinalities=STATES, prior_variance=10.0).fit(form)
        found[name] = float(np.sqrt(np.mean((zero_sum(*field.log_potentials()) - truth) ** 2)))
    return found


def simulated(simulations: int, rows: int, at_random: bool) -> dict[str, Any]:
    """Errors of every simulation by way."""
    found = [errors(seed, rows, at_random) for seed in range(simulations)]
    return {name: np.array([each[name] for each in found]) for name in found[0]}


def evaluation_times(pair: Sequence[Any], method: str, rounds: int = 5) -> tuple[float, float]:
    """Milliseconds of an evaluation with complete data and with holes, both in turn: median processor time."""
    taken: list[list[float]] = [[], []]
    for first in (True, *[False] * rounds):  # the first time compiles
        for data, times in zip(pair, taken, strict=True):
            began = time.process_time()
            solution = bt.learn(data, method, n_threads=1, prior_variance=1.0)
            if not solution.converged:
                raise RuntimeError(f"{method}: {solution.status}")
            if not first:
                times.append(1e3 * (time.process_time() - began) / solution.evaluations)
    return float(np.median(taken[0])), float(np.median(taken[1]))


def generative_data(rows: int) -> tuple[list[Any], int]:
    """Samples without and with holes, and how many distinct rows have some."""
    rng = np.random.default_rng(0)
    _, X = drawn(rng, rows)
    holey = with_holes(rng, X, False)
    model = bt.MarkovRandomField(EDGES, cardinalities=STATES, prior_variance=10.0).encode(X).model
    return [bt.Samples(model, table) for table in (X, holey)], len(np.unique(holey[(holey < 0).any(axis=1)], axis=0))


def conditional_data(graphs: int = 100) -> list[Any]:
    """Grids of 8 x 8 with three labels, without and with holes."""
    rng = np.random.default_rng(0)
    labels = [rng.integers(0, 3, (8, 8)) for _ in range(graphs)]
    X = [np.eye(3)[label] + rng.normal(0.0, 1.0, (8, 8, 3)) for label in labels]
    holey = [np.where(rng.random(label.shape) < HOLES, -1, label) for label in labels]
    return [bt.GridCRF().encode(X, y) for y in (labels, holey)]


def shapes() -> dict[str, tuple[list[tuple[int, int]], list[int]]]:
    """Edges and states of larger fields."""
    rng = np.random.default_rng(0)
    across = [(4 * i + j, 4 * i + j + 1) for i in range(3) for j in range(3)]
    down = [(j, j + 4) for j in range(8)]
    return {
        "grid of 3 x 4, 3 states": (across + down, [3] * 12),
        "random tree of 12, 3 states": ([(int(rng.integers(v)), v) for v in range(1, 12)], [3] * 12),
        "complete graph of 10, 2 states": (list(itertools.combinations(range(10), 2)), [2] * 10),
        "ring of 6 with a chord, 3 states": (EDGES, [3] * 6),
    }


def shape_data(edges: list[tuple[int, int]], states: list[int], rows: int = 2000) -> tuple[list[Any], int]:
    """Rows at random, the least alike that there are, without and with holes, and how many distinct ones have some."""
    rng = np.random.default_rng(0)
    X = rng.integers(0, states, (rows, len(states)))
    holey = with_holes(rng, X, False)
    model = bt.MarkovRandomField(edges, cardinalities=states, prior_variance=10.0).encode(X).model
    return [bt.Samples(model, table) for table in (X, holey)], len(np.unique(holey[(holey < 0).any(axis=1)], axis=0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--simulations", type=int, default=100)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--part", nargs="+", default=["grids", "shapes"], choices=["grids", "shapes"])
    options = parser.parse_args()
    for at_random in (False, True) if options.simulations else ():
        found = simulated(options.simulations, options.rows, at_random)
        print("missing at random, by the first column" if at_random else "missing anywhere")
        for name, values in found.items():
            ratio = values / found["complete data"]
            mean = values.mean() / found["complete data"].mean()
            print(f"  {name:16} {values.mean():.4f}, over complete data: {mean:.2f} (median {np.median(ratio):.2f})")
    tasks = []
    if "grids" in options.part:
        samples, patterns = generative_data(options.rows)
        tasks.append((f"generative, {patterns} distinct rows with holes", samples, ["exact"]))
        tasks.append(("conditional", conditional_data(), ["convex", "trw", "camel0", "cccp", "lbp"]))
    for name, shape in shapes().items() if "shapes" in options.part else ():
        samples, patterns = shape_data(*shape)
        tasks.append((f"{name}, {patterns} distinct rows with holes", samples, ["exact"]))
    for name, pair, methods in tasks:
        for method in methods:
            whole, holes = evaluation_times(pair, method)
            print(f"{name}, {method}: {whole:.2f} ms, with holes {holes:.2f} ms, {holes / whole:.2f} times", flush=True)


if __name__ == "__main__":
    main()
