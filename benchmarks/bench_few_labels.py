"""One graph of which a few nodes are labelled: Cora's 140 labels of 2,708 papers, learned on the whole graph.

    python benchmarks/bench_few_labels.py [--data DIR] [--words tfidf raw] [--nodes auto 6] [--test]

DIR holds ``cora/cora.npz`` (default: the environment variable BACTRIAN_DATA). For every kind of words and variance of
node weights: accuracy, log loss and calibration error on the validation nodes, processor seconds and evaluations, with
the same for the graph of the labelled nodes alone. ``--test`` looks at the test nodes instead, for the whole graph:
once, when all is chosen.
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


def figures(marginals: Any, labels: Any) -> str:
    """Accuracy, log loss, and the mean gap between confidence and accuracy in ten bins."""
    right, sure = marginals.argmax(axis=1) == labels, marginals.max(axis=1)
    loss = -np.log(np.maximum(marginals[np.arange(labels.size), labels], 1e-12)).mean()
    bins = np.minimum((10 * sure).astype(int), 9)
    gap = sum(abs(right[bins == b].sum() - sure[bins == b].sum()) for b in range(10)) / labels.size
    return f"accuracy {right.mean():.3f}, log loss {loss:.3f}, calibration error {gap:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("BACTRIAN_DATA", ".")))
    parser.add_argument("--words", nargs="+", default=["tfidf", "raw"], choices=["tfidf", "raw"])
    parser.add_argument("--nodes", nargs="+", default=["auto", "6"], help="auto, or the variance of node weights")
    parser.add_argument("--test", action="store_true", help="the test nodes, not those of validation")
    given = parser.parse_args()
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
        for nodes in given.nodes:
            prior = "auto" if nodes == "auto" else {"nodes": float(nodes)}
            learned = [("whole graph", (X, edges), known), ("labelled alone", (X[train], among), labels[train])]
            for name, graph, y in learned[: 1 if given.test else 2]:
                began = time.process_time()
                model = bt.GraphCRF(prior_variance=prior, n_threads=1).fit([graph], [y])
                seconds = time.process_time() - began
                (marginals,) = model.predict_marginals([(X, edges)], known=[known])
                print(
                    f"{words}, nodes {nodes}, {name}: {figures(marginals[asked], labels[asked])}; {seconds:.1f} s, "
                    f"{model.solution_.evaluations} evaluations",
                    flush=True,
                )


if __name__ == "__main__":
    main()
