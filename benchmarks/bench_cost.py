"""Fit the cost model to this machine, test it on sizes that it was not fitted to, and predict larger ones.

``python benchmarks/bench_cost.py [--json PATH]``

One thread; some minutes. Evaluations of random graphs of 3, 7 and 12 labels, chains and meshes, dense and sparse
inputs, are timed at 6,000 to 300,000 nodes for the fit and at 600,000 and 1,000,000 for the test; the memory of
training is measured at 6,000 and 30,000, and at 120,000.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from cost_measurements import SHAPES, Measured, Shape, errors, fitted, measure
from cost_model import (
    MEMORY_TERMS,
    TIME_TERMS,
    CostModel,
    Machine,
    Size,
    evaluation_counts,
    predict,
)
from problems import cpu_name

#: Of each kind of inputs, half the combinations of labels and edges.
FIT = tuple(shape for i, shape in enumerate(SHAPES) if (i // 4 + i) % 2 == 0)
IMAGES, TEXT = Shape(7, True, 8, 8, False), Shape(7, False, 70, 30_000, True)
OTHERS = Shape(12, True, 20, 2_000, True), Shape(3, True, 40, 40, False)
CLUSTERS, NODES = (1e7, 1e8, 1e9), (1, 4, 16, 64)
EVALUATIONS = 1_000


def problems(clusters: float) -> dict[str, Size]:
    """Data like images of superpixels, and like text with long-range links."""
    return {
        "images": Size(clusters / 2.9, clusters, 7, 8, 84, sweeps=2.0),
        "text": Size(clusters, clusters, 9, 70, 2.5e7, sweeps=2.0, sparse=True),
    }


def joined(*parts: Measured) -> Measured:
    return Measured(*([row for part in parts for row in getattr(part, name)] for name in ("times", "memory", "steps")))


def follow(kind: str, size: Size, value: float) -> None:
    print(f"{kind:8s} {value:10.4g}  {size}", flush=True)


def predictions(model: CostModel, machine: Machine) -> list[dict[str, Any]]:
    rows = []
    for clusters in CLUSTERS:
        for name, size in problems(clusters).items():
            for nodes in NODES:
                found = predict(model, size, nodes, machine)
                rows.append({
                    "problem": name,
                    "clusters": clusters,
                    "nodes": nodes,
                    "seconds an evaluation": found.seconds,
                    "of it network": found.network_seconds,
                    "of it optimiser": found.optimiser_seconds,
                    "hours of training": EVALUATIONS * found.seconds / 3600.0,
                    "GB a node": found.bytes / 1e9,
                    "per rank": evaluation_counts(size, nodes)._asdict(),
                })  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    every = (IMAGES, TEXT, *OTHERS)
    fit_to = joined(
        measure((6_000, 30_000), FIT, memory=False, n_weights=(500_000, 1_000_000, 2_000_000), follow=follow),
        measure((100_000, 300_000), every, memory=False, follow=follow),
        measure((6_000,), FIT, times=False, follow=follow),
        measure((30_000,), every, times=False, follow=follow),
    )
    held_out = joined(
        measure((600_000,), every, memory=False, n_weights=(4_000_000, 8_000_000), follow=follow),
        measure((1_000_000,), (IMAGES, TEXT), memory=False, follow=follow),
        measure((120_000,), every[:3], times=False, follow=follow),
    )
    model = fitted(fit_to)
    found: dict[str, Any] = {
        "cpu": cpu_name(),
        "python": platform.python_version(),
        "load": os.getloadavg()[1],
        "time": dict(zip(TIME_TERMS, model.time.tolist(), strict=True)),
        "cache": model.cache,
        "step, a weight": model.step,
        "memory": dict(zip(MEMORY_TERMS, model.memory.tolist(), strict=True)),
        "machine": asdict(Machine()),
    }
    for name, measured in (("fitted", fit_to), ("held out", held_out)):
        found[f"relative errors, {name}"] = {
            key: {"n": values.size, "median": float(np.median(np.abs(values))), "worst": float(np.abs(values).max())}
            for key, values in errors(model, measured).items()
        }
    found["held-out measurements"] = [
        {**asdict(size), "measured": seconds, "predicted": model.evaluation_seconds(size)}
        for size, seconds in held_out.times
    ] + [{**asdict(size), "measured bytes": n, "predicted bytes": model.bytes(size)} for size, n in held_out.memory]
    found["predictions"] = predictions(model, Machine())
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(
        json.dumps({key: found[key] for key in found if key not in ("predictions", "held-out measurements")}, indent=1)
    )
    for row in found["predictions"]:
        print({key: f"{value:.3g}" if isinstance(value, float) else value for key, value in row.items()})


if __name__ == "__main__":
    main()
