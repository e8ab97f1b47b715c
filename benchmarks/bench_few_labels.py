"""One graph of which a few nodes are labelled: Cora's 140 labels of 2,708 papers, learned on the whole graph.

    python benchmarks/bench_few_labels.py [--data DIR] [--words raw] [--nodes auto 6] [--splits N] [--random N] [--test]

DIR holds ``cora/cora.npz`` (default: the environment variable BACTRIAN_DATA). For every kind of words and variance of
node weights: accuracy, log loss and calibration error on the validation nodes, processor seconds and evaluations, with
the same for edges alone, and for the graph of the labelled nodes alone. ``--splits N`` draws N times 20 labels per
topic from the nodes that are no test nodes, and scores the others of them; ``--random N`` does so on random graphs.
``--test`` looks at the test nodes instead, for the default: once, when all is chosen.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.feature_extraction.text import TfidfTransformer

import bactrian as bt


def figures(marginals: Any, labels: Any) -> tuple[float, float, float]:
    """Accuracy, log loss, and the mean gap between confidence and accuracy in ten bins."""
    right, sure = marginals.argmax(axis=1) == labels, marginals.max(axis=1)
    loss = -np.log(np.maximum(marginals[np.arange(labels.size), labels], 1e-12)).mean()
    bins = np.minimum((10 * sure).astype(int), 9)
    gap = sum(abs(right[bins == b].sum() - sure[bins == b].sum()) for b in range(10)) / labels.size
    return right.mean(), loss, gap


def shown(found: Any) -> str:
    """Such figures in words."""
    return "accuracy {:.3f}, log loss {:.3f}, calibration error {:.3f}".format(*found)


#: Mean degree, part of the edges that join equal classes, and that of words that depend on the class.
RANDOM = [(4, 0.8, 0.25), (2, 0.8, 0.25), (10, 0.6, 0.25), (4, 0.8, 0.6), (4, 0.45, 0.5), (4, 0.25, 0.5), (5, 0.0, 0.4)]


def random_graph(seed: int, degree: int, same: float, clear: float, n: int = 700, k: int = 4) -> tuple[Any, Any, Any]:
    """Words, edges and classes; 25 % equal classes is chance, and 0 joins a class and the next."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(k, size=n)
    first = rng.integers(n, size=n * degree // 2)
    others = (labels[first] + (1 if same == 0.0 else rng.integers(1, k, size=first.size))) % k
    wanted = np.where(rng.random(first.size) < same, labels[first], others)
    second = np.array([rng.choice(np.flatnonzero(labels == label)) for label in wanted])
    edges = np.unique(np.sort(np.column_stack([first, second])[first != second], axis=1), axis=0)
    common, own = rng.dirichlet(np.full(200, 0.5)), rng.dirichlet(np.full(200, 0.3), size=k)
    counts = np.array([rng.multinomial(15, (1.0 - clear) * common + clear * own[label]) for label in labels])
    return sp.csr_matrix(np.minimum(counts, 1).astype(float)), edges, labels


def compare_splits(name: str, graphs: Any) -> None:
    """The default and edges alone, with 20 labels per class; a graph has nodes, too, that may be used at all."""
    totals: dict[str, list[Any]] = {"auto": [], "edges": []}
    for seed, (X, edges, labels, others) in enumerate(graphs):
        order = np.random.default_rng(seed).permutation(others)
        train = np.concatenate([order[labels[order] == topic][:20] for topic in np.unique(labels)])
        known, asked = np.full(labels.size, -1), np.setdiff1d(others, train)
        known[train] = labels[train]
        for neighbours, found in totals.items():
            began = time.process_time()
            model = bt.GraphCRF(neighbours=neighbours, n_threads=1).fit([(X, edges)], [known])
            (marginals,) = model.predict_marginals([(X, edges)], known=[known])
            seconds = time.process_time() - began
            found.append([*figures(marginals[asked], labels[asked]), seconds, model.restart_ is not None])
    for neighbours, found in totals.items():
        *scores, seconds, diffused = np.mean(found, axis=0)
        error = np.std(found, axis=0)[0] / len(found) ** 0.5
        print(
            f"{name}, {neighbours}, {len(found)} splits: {shown(scores)}; {seconds:.1f} s, diffused in {diffused:.0%}; "
            f"standard error of the accuracy {error:.3f}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("BACTRIAN_DATA", ".")))
    parser.add_argument("--words", nargs="+", default=["tfidf", "raw"], choices=["tfidf", "raw"])
    parser.add_argument("--nodes", nargs="+", default=["auto", "6"], help="auto, or the variance of node weights")
    parser.add_argument("--splits", type=int, default=0, help="random splits of the nodes that are no test nodes")
    parser.add_argument("--random", type=int, default=0, help="random graphs of each kind, before Cora")
    parser.add_argument("--test", action="store_true", help="the test nodes, not those of validation")
    given = parser.parse_args()
    for case in RANDOM if given.random else []:
        graphs = (random_graph(seed, *case) for seed in range(given.random))
        compare_splits(f"random graphs {case}", ((*graph, np.arange(graph[2].size)) for graph in graphs))
    cora = np.load(given.data / "cora" / "cora.npz")
    raw = sp.csr_matrix((cora["data"], cora["indices"], cora["indptr"]), shape=tuple(cora["shape"])).astype(float)
    kinds = {"raw": raw, "tfidf": TfidfTransformer().fit_transform(raw)}
    labels, edges, train = cora["labels"], cora["edges"], cora["train"]
    asked = cora["test" if given.test else "validation"]
    known = np.full(labels.size, -1)
    known[train] = labels[train]
    number = np.full(labels.size, -1)
    number[train] = np.arange(train.size)
    among = number[edges][(number[edges] >= 0).all(axis=1)]
    for words in given.words:
        X = kinds[words]
        if given.splits:
            compare_splits(
                words, [(X, edges, labels, np.setdiff1d(np.arange(labels.size), cora["test"]))] * given.splits
            )
            continue
        for nodes in given.nodes:
            prior = "auto" if nodes == "auto" else {"nodes": float(nodes)}
            learned = [
                ("whole graph", (X, edges), known, "auto"),
                ("whole graph, edges alone", (X, edges), known, "edges"),
                ("labelled alone", (X[train], among), labels[train], "auto"),
            ]
            for name, graph, y, neighbours in learned[: 1 if given.test else 3]:
                began = time.process_time()
                model = bt.GraphCRF(prior_variance=prior, neighbours=neighbours, n_threads=1).fit([graph], [y])
                seconds = time.process_time() - began
                (marginals,) = model.predict_marginals([(X, edges)], known=[known])
                print(
                    f"{words}, nodes {nodes}, {name}: {shown(figures(marginals[asked], labels[asked]))}; "
                    f"{seconds:.1f} s, {model.solution_.evaluations} evaluations, restart {model.restart_}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
