"""CoNLL-2003 with part of the token labels removed at random: what learning around them is worth.

    python benchmarks/bench_unknown_labels.py [--data DIR] [--sentences N] [--removed 0.5] [--seeds 3] [-o FILE]

DIR holds ``conll2003`` (default: the environment variable BACTRIAN_DATA). Four chains with the library's features are
trained on the same sentences and scored on ``testa``: on all labels; on the sentences that kept all of theirs; on what
is left, others unknown; and on what is left, others taken for O. What must hold: unknown labels get at least half of
what lies between the second and the first, and an evaluation takes at most twice the time of complete data.
"""

from __future__ import annotations

import argparse
import itertools
import os
import time
import warnings
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

import bactrian as bt
from bactrian.text import EntityFeatures, entity_scores, read_columns
from problems import cpu_name

Sentences = tuple[list[Any], list[Any]]


def sentences(path: Path, limit: int | None = None) -> Sentences:
    """Tokens and tags of the first sentences of a file."""
    X: list[Any] = []
    y: list[Any] = []
    features = EntityFeatures(pos=True)
    for document in read_columns(path):
        tokens, tags = features.extract(document), document.in_scheme("IOB1", "BIO").tags or ()
        for first, last in itertools.pairwise([*document.sentence_starts.tolist(), len(document)]):
            X.append(tokens[first:last])
            y.append(list(tags[first:last]))
    return X[:limit], y[:limit]


def trained(X: list[Any], y: list[Any], labels: list[str], test: Sentences, tolerance: float) -> dict[str, float]:
    """F1 on the test sentences, with what learning took."""
    model = bt.LinearChainCRF(prior_variance=10.0, labels=labels, min_frequency=2, tolerance=tolerance)
    data = model.encode(X, y)
    bt.learn(data, **{**model.learning_options(), "max_iterations": 1})  # compiles
    began = time.process_time()
    solution = bt.learn(data, **model.learning_options())
    seconds = time.process_time() - began
    model.adopt(solution)
    return {
        "sentences": len(X),
        "labels": sum(label is not None for tags in y for label in tags),
        "F1": 100.0 * entity_scores(test[1], model.predict(test[0])).micro.f1,
        "seconds": seconds,
        "evaluations": solution.evaluations,
        "ms": 1e3 * seconds / solution.evaluations,
    }


def compared(train: Sentences, test: Sentences, removed: float, seed: int, tolerance: float) -> dict[str, Any]:
    """Rows of the table, with the part of the way from whole sentences to all labels."""
    X, y = train
    labels = sorted({tag for tags in y for tag in tags})
    rng = np.random.default_rng(seed)
    left = [[tag if rng.random() >= removed else None for tag in tags] for tags in y]
    whole = [m for m, tags in enumerate(left) if None not in tags]
    tried = {
        "all labels": (X, y),
        "whole sentences": ([X[m] for m in whole], [y[m] for m in whole]),
        "others unknown": (X, left),
        "others O": (X, [[tag or "O" for tag in tags] for tags in left]),
    }
    warnings.simplefilter("ignore", bt.ConvergenceWarning)
    rows: dict[str, Any] = {name: trained(*data, labels, test, tolerance) for name, data in tried.items()}
    best, least, ours = (rows[name]["F1"] for name in list(tried)[:3])
    return {"rows": rows, "way": (ours - least) / (best - least)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("BACTRIAN_DATA", ".")))
    parser.add_argument("--sentences", type=int, help="of the training file; all by default")
    parser.add_argument("--removed", type=float, default=0.5)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--tolerance", type=float, default=1e-3)
    parser.add_argument("-o", "--output", type=Path, help="add the table to this file")
    given = parser.parse_args()
    folder = given.data / "conll2003"
    train, test = sentences(folder / "eng.train", given.sentences), sentences(folder / "eng.testa")
    for seed in range(given.seeds):
        found = compared(train, test, given.removed, seed, given.tolerance)
        rows = found["rows"]
        ratio = rows["others unknown"]["ms"] / rows["all labels"]["ms"]
        lines = [
            f"{len(train[0]):,} sentences, {given.removed:.0%} of the labels removed, seed {seed}, tolerance "
            f"{given.tolerance:g}; {cpu_name()}, {date.today()}",
            "",
            "| learned from | sentences | labels | F1 on testa | processor seconds | evaluations | ms per evaluation |",
            "|---|---|---|---|---|---|---|",
            *(
                f"| {name} | {row['sentences']:,} | {row['labels']:,} | {row['F1']:.2f} | {row['seconds']:.0f} "
                f"| {row['evaluations']} | {row['ms']:.0f} |"
                for name, row in rows.items()
            ),
            "",
            f"Unknown labels get {found['way']:.2f} of the way from whole sentences to all labels (at least 0.5); an "
            f"evaluation takes {ratio:.2f} of the time of complete data (at most 2).",
            "",
        ]
        print("\n".join(lines), flush=True)
        if given.output is not None:
            with given.output.open("a", encoding="utf-8") as stream:
                stream.write("\n".join(["", *lines]))


if __name__ == "__main__":
    main()
