"""Do learning and inference agree? Accuracy, log loss and calibration of every learner under every inference.

    python benchmarks/bench_agreement.py --workers 16 --seeds 20 --sides 24 64 -o agreement.json   # all of it
    python benchmarks/bench_agreement.py --workers 2 --seeds 2 --sides 24                          # a look
    python benchmarks/bench_agreement.py --table agreement.json                                    # tables again

Random pictures (regions of smooth fields, rectangles, ellipses) of 2, 3 and 5 labels with noise 0.7, 1.0 and 1.5 and
one or four training copies; the test picture is one more copy. Cora's citation graph (60/20/20, given
``BACTRIAN_DATA``), trained on the labelled subgraph and told the known labels. Prints one table (learner x inference),
and what must hold: ``cccp`` never below pixels alone by more than half a point, at least 95 % of the gain of the best
learner on average, and no worse in log loss than ``camel0``.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.ndimage import gaussian_filter
from sklearn.linear_model import LogisticRegression

import bactrian as bt

#: Learner and inference; "matched" is the default.
PAIRS = [
    ("piecewise", "matched"), ("piecewise", "rbp"), ("camel0", "matched"), ("camel0", "rbp"), ("convex", "matched"),
    ("convex", "rbp"), ("trw", "matched"), ("cccp", "matched"), ("cccp", "rbp"), ("cccp", "convex"),
    ("pseudolikelihood", "matched"),
]  # fmt: skip


def picture(side: int, n_labels: int, noise: float, copies: int, seed: int) -> tuple[list[Any], Any, Any]:
    """Training copies, a test copy and the labels."""
    rng = np.random.default_rng([seed, side, n_labels, copies, int(100 * noise)])
    if seed % 3 == 0:
        fields = [gaussian_filter(rng.normal(size=(side, side)), side / 10) for _ in range(n_labels)]
        truth = np.stack(fields, axis=2).argmax(axis=2)
    else:
        truth = np.zeros((side, side), dtype=int)
        y, x = np.mgrid[:side, :side]
        for shape in range((n_labels - 1) * (seed % 3)):
            (cy, cx), (ry, rx) = rng.uniform(0.15, 0.85, 2) * side, rng.uniform(0.1, 0.3, 2) * side
            inside = np.maximum(abs(y - cy) / ry, abs(x - cx) / rx) < 1
            if seed % 3 == 2:
                inside = ((y - cy) / ry) ** 2 + ((x - cx) / rx) ** 2 < 1
            truth[inside] = 1 + shape % (n_labels - 1)
    noisy = [np.eye(n_labels)[truth] + rng.normal(0, noise, (side, side, n_labels)) for _ in range(copies + 1)]
    return noisy[:-1], noisy[-1], truth


def judged(marginals: np.ndarray, truth: np.ndarray) -> dict[str, float]:
    """Accuracy, log loss, and expected calibration error over ten bins of confidence."""
    truth = truth.ravel()
    marginals = marginals.reshape(truth.size, -1)
    right = marginals.argmax(axis=1) == truth
    sure = marginals.max(axis=1)
    bins = np.minimum((10 * sure).astype(int), 9)
    error = sum(abs((right - sure)[bins == b].sum()) for b in range(10)) / truth.size
    loss = -np.log(np.maximum(marginals[np.arange(truth.size), truth], 1e-12)).mean()
    return {"accuracy": float(right.mean()), "log_loss": float(loss), "calibration": float(error)}


def estimated(crf: Any, fit: tuple[Any, Any], predict: tuple[Any, Any], truth: np.ndarray, free: Any) -> dict[str, Any]:
    """Fit, predict and judge; ``free`` are the nodes that count."""
    begun = time.process_time()
    crf.fit(*fit)
    seconds = time.process_time() - begun
    begun = time.process_time()
    marginals = crf.predict_marginals(*predict)[0].reshape(truth.size, -1)
    solution = crf.solution_
    return {
        **judged(marginals[free], truth.ravel()[free]),
        "fit_seconds": seconds,
        "predict_seconds": time.process_time() - begun,
        "status": solution.status.name,
        "attained": solution.attained,
        "inference": crf.inference_method_[0],
    }


def one(task: tuple[Any, ...]) -> dict[str, Any]:
    """All learners on one picture, or on one split of Cora."""
    warnings.simplefilter("ignore")
    pairs, kind, *setting = task
    found: dict[str, Any] = {"kind": kind, "setting": setting, "rows": {}}
    if kind == "picture":
        train, test, truth = picture(*setting)
        every = slice(None)
        n_labels = setting[1]
        rows = np.concatenate([copy.reshape(-1, n_labels) for copy in train])
        alone = LogisticRegression(C=10.0).fit(rows, np.tile(truth.ravel(), len(train)))
        pixels = np.full((truth.size, n_labels), 1e-12)
        pixels[:, alone.classes_] = alone.predict_proba(test.reshape(-1, n_labels))
        found["argmax"] = float(np.mean(test.argmax(axis=2) == truth))
        fit, predict = (train, [truth] * len(train)), ([test],)
        make, options = bt.GridCRF, {"labels": list(range(n_labels))}
    else:
        graph, labels, known, inside, edges, nodes, every = cora(setting[0])
        alone = LogisticRegression(C=1.0, max_iter=300).fit(graph[inside], labels[inside])
        pixels = alone.predict_proba(graph)
        fit, predict = ([(graph[inside], edges)], [labels[inside]]), ([(graph, nodes)], [known])
        truth, make, options = labels, bt.GraphCRF, {}
    found["rows"]["alone"] = judged(pixels[every], truth.ravel()[every])
    for learner, inference in PAIRS if pairs is None else [tuple(pair.split("/")) for pair in pairs]:
        crf = make(method=learner, inference=inference, n_threads=1, max_seconds=120.0, **options)
        found["rows"][f"{learner}/{inference}"] = estimated(crf, fit, predict, truth, every)
    return found


def cora(seed: int) -> tuple[Any, ...]:
    """Features, labels, those known, labelled nodes, edges among them, all edges and the nodes to score."""
    file = np.load(Path(os.environ["BACTRIAN_DATA"]) / "cora" / "cora.npz")
    features = sp.csr_matrix((file["data"], file["indices"], file["indptr"]), shape=tuple(file["shape"]))
    labels, edges = file["labels"], file["edges"]
    order = np.random.default_rng(seed).permutation(labels.size)
    inside = np.sort(order[: int(0.6 * labels.size)])
    place = np.full(labels.size, -1)
    place[inside] = np.arange(inside.size)
    own = place[edges]
    known = np.full(labels.size, -1)
    known[inside] = labels[inside]
    test = np.sort(order[int(0.8 * labels.size) :])
    return features, labels, known, inside, own[(own >= 0).all(axis=1)], edges, test


def table(results: list[dict[str, Any]]) -> None:
    """Means of every learner and inference, and what must hold of ``cccp``, by kind."""
    for name, group in itertools.groupby(sorted(results, key=_group), key=_group):
        rows = list(group)
        print(f"\n{name}: {len(rows)}")
        print(
            "| learner/inference | accuracy | log loss | calibration | worst - alone | attained | fit s | predict s |"
        )
        print("|---|---|---|---|---|---|---|---|")
        for pair in rows[0]["rows"]:
            cells = [row["rows"][pair] for row in rows]
            mean = {key: np.mean([cell[key] for cell in cells]) for key in ("accuracy", "log_loss", "calibration")}
            worst = min(cell["accuracy"] - _alone(row) for cell, row in zip(cells, rows, strict=True))
            known = [cell["attained"] for cell in cells if cell.get("attained") is not None]
            least = f"{min(known):.2f}" if known else "–"
            fit, predict = (
                np.mean([cell.get(key, 0.0) for cell in cells]) for key in ("fit_seconds", "predict_seconds")
            )
            print(
                f"| {pair} | {mean['accuracy']:.4f} | {mean['log_loss']:.4f} | {mean['calibration']:.4f} "
                f"| {worst:+.3f} | {least} | {fit:.2f} | {predict:.3f} |"
            )
        ours = np.array([row["rows"]["cccp/matched"]["accuracy"] for row in rows])
        alone = np.array([_alone(row) for row in rows])
        # Of the learners, each by its mean: the best of many on every single picture would be luck.
        means = {pair: np.mean([row["rows"][pair]["accuracy"] for row in rows]) for pair in rows[0]["rows"]}
        gain = (ours.mean() - alone.mean()) / (max(means.values()) - alone.mean())
        loss, camel0 = (np.mean([row["rows"][f"{m}/matched"]["log_loss"] for row in rows]) for m in ("cccp", "camel0"))
        print(
            f"cccp: worst against alone {(ours - alone).min():+.3f} (>= -0.005); gain {gain:.3f} of the best (>= 0.95)"
        )
        print(f"cccp: log loss {loss:.4f}, camel0 {camel0:.4f}")


def _group(row: dict[str, Any]) -> str:
    if row["kind"] != "picture":
        return str(row["kind"])
    side, n_labels, _, copies, _ = row["setting"]
    return f"pictures {side} x {side}, {n_labels} labels, {copies} copies"


def _alone(row: dict[str, Any]) -> float:
    return max(float(row["rows"]["alone"]["accuracy"]), float(row.get("argmax", 0.0)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=20, help="pictures of each kind; their noise is 0.7, 1.0 and 1.5")
    parser.add_argument("--sides", type=int, nargs="*", default=[24, 64])
    parser.add_argument("--labels", type=int, nargs="*", default=[2, 3, 5])
    parser.add_argument("--copies", type=int, nargs="*", default=[1, 4])
    parser.add_argument("--cora", type=int, default=0, help="random splits of Cora")
    parser.add_argument("--pairs", nargs="*", help="learner/inference; cccp/matched and camel0/matched are judged")
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--table", type=Path, help="print the tables of an earlier run")
    given = parser.parse_args()
    if given.table is not None:
        table(json.loads(given.table.read_text()))
        return
    kinds = itertools.product(given.sides, given.labels, given.copies, range(given.seeds))
    tasks: list[tuple[Any, ...]] = [
        ("picture", side, n_labels, (0.7, 1.0, 1.5)[(seed // 3 + seed) % 3], copies, seed)
        for side, n_labels, copies, seed in sorted(kinds, reverse=True)  # the longest first
    ]
    tasks += [("cora 60/20/20", seed) for seed in range(given.cora)]
    results = []
    with ProcessPoolExecutor(given.workers) as pool:
        for found in pool.map(one, [(given.pairs, *task) for task in tasks]):
            results.append(found)
            if given.output is not None:
                given.output.write_text(json.dumps(results))
    table(results)


if __name__ == "__main__":
    main()
