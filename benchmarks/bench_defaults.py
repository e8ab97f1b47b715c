"""Defaults beside options: held-out log loss of ``prior_variance="auto"``, of "cv" and of the best of a grid.

    python benchmarks/bench_defaults.py [NAME ...] [--data DIR] [--out FILE] [--skip cv]

DIR holds ``conll2003``, ``seminars``, ``cora``, ``corel`` and ``density`` (default: the environment variable
BACTRIAN_DATA). Without names all data sets are measured; results go to FILE (JSON) as they come, and those that are in
it already are not measured again. For every data set: log loss, accuracy and processor seconds by default, with "cv",
with variance 10 for all weights (the default of chains and tables before) and for a grid; and the log loss of
independent nodes or variables.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.ndimage import gaussian_filter
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegressionCV

import bactrian as bt

GRID = (0.01, 0.1, 1.0, 10.0, 100.0)

#: A data set: an estimator, the arguments of ``fit``, and what scores a fitted one: losses and hits of held-out labels.
Case = tuple[Any, tuple[Any, ...], Callable[[Any], tuple[Any, Any]], float]


def judged(rows: Any, labels: Any, classes: Any) -> tuple[Any, Any]:
    """Losses and hits of labels at probabilities."""
    codes = np.searchsorted(classes, labels)
    return -np.log(np.maximum(rows[np.arange(codes.size), codes], 1e-12)), rows.argmax(axis=1) == codes


def alone(X: Any, y: Any, rows: Any, labels: Any) -> float:
    """Log loss of logistic regression."""
    model = LogisticRegressionCV(Cs=5, cv=3, max_iter=300, scoring="neg_log_loss", use_legacy_attributes=False)
    found = model.fit(X, y).predict_proba(rows)
    return float(judged(found, labels, model.classes_)[0].mean())


def digits(noise: float, n_train: int) -> Case:
    """Words of eight digits, whose order follows a random chain."""
    data, rng = load_digits(), np.random.default_rng(0)
    table = rng.dirichlet(np.full(10, 0.3), size=10)
    order = rng.permutation(data.target.size)

    def words(pool: Any, n: int) -> tuple[Any, Any]:
        X, y = [], []
        for _ in range(n):
            labels = [int(rng.integers(10))]
            while len(labels) < 8:
                labels.append(int(rng.choice(10, p=table[labels[-1]])))
            images = [data.data[rng.choice(pool[data.target[pool] == label])] for label in labels]
            X.append(np.array(images) + noise * rng.normal(size=(8, 64)))
            y.append(labels)
        return X, y

    X, y = words(order[:900], n_train)
    rows, truth = words(order[900:], 150)
    score = lambda m: judged(np.concatenate(m.predict_marginals(rows)), np.concatenate(truth), m.classes_)  # noqa: E731
    return bt.LinearChainCRF(), (X, y), score, alone(*map(np.concatenate, (X, y, rows, truth)))


def digit_grids() -> Case:
    """Digits as grids of two pixels: which pixel is darker than the mean, from noisy ones."""
    rng = np.random.default_rng(1)
    images = load_digits().images[:120]
    truth = [(image > 4.0).astype(int) for image in images]
    X = [labels + 0.7 * rng.normal(size=labels.shape) for labels in truth]
    return grids(X[:60], truth[:60], X[60:], truth[60:])


def grids(X: Any, y: Any, rows: Any, truth: Any) -> Case:
    """Grids, and others."""
    flat = [np.concatenate([np.asarray(part).reshape(labels.size, -1) for part, labels in zip(*pair, strict=True)])
            for pair in ((X, y), (rows, truth))]  # fmt: skip
    labels = [np.concatenate([part.ravel() for part in parts]) for parts in (y, truth)]

    def score(model: Any) -> tuple[Any, Any]:
        found = np.concatenate([part.reshape(-1, part.shape[-1]) for part in model.predict_marginals(rows)])
        return judged(found, labels[1], model.classes_)

    return bt.GridCRF(), (X, y), score, alone(flat[0], labels[0], flat[1], labels[1])


def pictures(noise: float) -> Case:
    """Smooth pictures of three labels."""
    rng = np.random.default_rng(2)

    def made(n: int) -> tuple[Any, Any]:
        y = [np.stack([gaussian_filter(rng.normal(size=(24, 24)), 2.5) for _ in range(3)]).argmax(0) for _ in range(n)]
        return [np.eye(3)[labels] + noise * rng.normal(size=(24, 24, 3)) for labels in y], y

    return grids(*made(2), *made(4))


def cora(folder: Path, share: float) -> Case:
    """The citation graph with a share of its labels."""
    file, rng = np.load(folder / "cora" / "cora.npz"), np.random.default_rng(3)
    X = sp.csr_array((file["data"].astype(float), file["indices"], file["indptr"]), shape=tuple(file["shape"]))
    labels, order = file["labels"], rng.permutation(file["labels"].size)
    train, test = order[: int(share * labels.size)], order[-800:]
    known = np.full(labels.size, -1)
    known[train] = labels[train]
    graph = (X, file["edges"])
    score = lambda m: judged(m.predict_marginals([graph], [known])[0][test], labels[test], m.classes_)  # noqa: E731
    return bt.GraphCRF(), ([graph], [known]), score, alone(X[train], labels[train], X[test], labels[test])


def block_model() -> Case:
    """A stochastic block model with half of the labels."""
    rng, n = np.random.default_rng(4), 1_500
    labels = rng.integers(4, size=n)
    pairs = rng.integers(n, size=(30_000, 2))
    keep = rng.random(len(pairs)) < np.where(labels[pairs[:, 0]] == labels[pairs[:, 1]], 0.3, 0.05)
    edges = np.unique(np.sort(pairs[keep & (pairs[:, 0] != pairs[:, 1])], axis=1), axis=0)
    X = np.hstack([np.eye(4)[labels] + 1.5 * rng.normal(size=(n, 4)), rng.normal(size=(n, 10))])
    train = rng.random(n) < 0.6
    known, graph = np.where(train, labels, -1), (X, edges)
    score = lambda m: judged(m.predict_marginals([graph], [known])[0][~train], labels[~train], m.classes_)  # noqa: E731
    return bt.GraphCRF(), ([graph], [known]), score, alone(X[train], labels[train], X[~train], labels[~train])


def texts(sentences: list[Any], train: int, test: int) -> Case:
    """Sentences of (word, tag), each word with its form and neighbours."""

    def tokens(sentence: Any) -> list[list[str]]:
        words = [word for word, _ in sentence]
        return [
            [f"w={w}", f"suffix={w[-3:]}", f"shape={w[:1].isupper()}{w.isdigit()}",
             f"before={words[t - 1] if t else ''}", f"after={words[t + 1] if t + 1 < len(words) else ''}"]
            for t, w in enumerate(words)
        ]  # fmt: skip

    X = [tokens(sentence) for sentence in sentences[: train + test]]
    y = [[tag for _, tag in sentence] for sentence in sentences[: train + test]]
    truth = np.concatenate(y[train:])
    labels = sorted({tag for tags in y for tag in tags})

    def score(model: Any) -> tuple[Any, Any]:
        return judged(np.concatenate(model.predict_marginals(X[train:])), truth, model.classes_)

    return bt.LinearChainCRF(labels=labels), (X[:train], y[:train]), score, float("nan")


def conll(folder: Path) -> Case:
    """Sentences of CoNLL-2003."""
    found: list[Any] = [[]]
    for line in (folder / "conll2003" / "eng.train").read_text().splitlines():
        if line and not line.startswith("-DOC"):
            found[-1].append((line.split()[0], line.split()[-1]))
        elif found[-1]:
            found.append([])
    rng = np.random.default_rng(5)
    return texts([found[i] for i in rng.permutation(len(found) - 1)], 800, 800)


def seminars(folder: Path) -> Case:
    """Announcements of seminars: words inside of speakers and places."""
    found = []
    for number in range(1, 241):
        text = (folder / "seminars" / f"{number}.txt").read_text(errors="replace")
        inside, sentence = "O", []
        for word in text.replace("<", " <").replace(">", "> ").split():
            tag = word.strip("</>")
            if word.startswith("<"):
                inside = tag if tag in ("stime", "etime", "location", "speaker") and word[1] != "/" else "O"
            else:
                sentence.append((word, inside))
        found.append(sentence)
    return texts(found, 60, 60)


def table(folder: Path, name: str, rows: int, columns: int, edges: Any = "complete") -> Case:
    """Binary rows: the loss is that of each state given all others."""
    read = [np.loadtxt(folder / "density" / name / f"{name}.{part}.data", delimiter=",", dtype=int)[:, :columns]
            for part in ("train", "test")]  # fmt: skip
    return fields(np.random.default_rng(6).permutation(read[0])[:rows], read[1][:1000], edges)


def fields(train: Any, test: Any, edges: Any) -> Case:
    """A field of binary variables, and other rows."""
    shares = (train.sum(axis=0) + 0.5) / (len(train) + 1.0)

    def score(model: Any) -> tuple[Any, Any]:
        variables, pairs = model.log_potentials()
        scores = np.stack([np.tile(own, (len(test), 1)) for own in variables], axis=1)
        for (a, b), own in zip(model.edges_.tolist(), pairs, strict=True):
            scores[:, a] += own.T[test[:, b]]
            scores[:, b] += own[test[:, a]]
        odds = (scores[..., 1] - scores[..., 0]) * (2 * test - 1)
        return np.logaddexp(0.0, -odds).ravel(), (odds > 0.0).ravel()

    independent = -np.log(np.where(test == 1, shares, 1.0 - shares)).mean()
    return bt.MarkovRandomField(edges, cardinalities=2, tolerance=1e-4), (train,), score, float(independent)


def generated() -> Case:
    """Rows of a random sparse field."""
    rng, n = np.random.default_rng(7), 12
    pairs = [(a, b) for a in range(n) for b in range(a + 1, n)]
    model = bt.MarkovRandomField("complete", cardinalities=2, prior_variance=1.0).fit(rng.integers(0, 2, (4, n))).model_
    own = np.zeros(model.n_weights)
    for e in range(len(pairs)):
        if rng.random() < 0.25:
            own[2 * n + 4 * e : 2 * n + 4 * e + 4] = rng.normal() * np.array([1.0, -1.0, -1.0, 1.0])
    states = (np.arange(1 << n)[:, None] >> np.arange(n)) & 1
    scores = sum(own[2 * n + 4 * e + 2 * states[:, a] + states[:, b]] for e, (a, b) in enumerate(pairs))
    chances = np.exp(scores - scores.max())
    rows = states[rng.choice(len(states), 1_300, p=chances / chances.sum())]
    return fields(rows[:300], rows[300:], "complete")


def corel(folder: Path) -> Case:
    """Photographs in blocks of 12 by 12 pixels: mean colours, and the label in the middle."""
    file = np.load(folder / "corel" / "corel.npz")
    blocks = file["images"].reshape(100, 10, 12, 15, 12, 3) / 255.0
    X = [np.concatenate([b.mean(axis=(1, 3)), b.std(axis=(1, 3))], axis=-1) for b in blocks]
    y = list(file["labels"][:, 6::12, 6::12].astype(int))
    return grids(X[:50], y[:50], X[50:], y[50:])


def cases(folder: Path) -> dict[str, Callable[[], Case]]:
    """All data sets by name."""
    return {
        "digits, 40 words": lambda: digits(0.0, 40),
        "digits, noisy, 100 words": lambda: digits(6.0, 100),
        "digits as grids": digit_grids,
        "pictures, noise 0.8": lambda: pictures(0.8),
        "pictures, noise 1.5": lambda: pictures(1.5),
        "Cora, 5 %": lambda: cora(folder, 0.05),
        "Cora, 20 %": lambda: cora(folder, 0.2),
        "Cora, 60 %": lambda: cora(folder, 0.6),
        "block model": block_model,
        "NLTCS": lambda: table(folder, "nltcs", 500, 16),
        "plants": lambda: table(folder, "plants", 600, 30),
        "jester": lambda: table(folder, "jester", 600, 30),
        "generated table": generated,
        "Corel": lambda: corel(folder),
        "CoNLL": lambda: conll(folder),
        "seminars": lambda: seminars(folder),
    }


def measured(case: Case, found: dict[str, Any], skip: list[str], keep: Callable[[], None]) -> None:
    """Losses, accuracy and seconds of every prior that ``found`` lacks."""
    estimator, given, score, found["independent"] = case
    for prior in ("auto", 10.0, "cv", *GRID):
        if str(prior) in (*skip, *found):
            continue
        model = estimator.__class__(**{**estimator.get_params(deep=False), "prior_variance": prior, "n_threads": 1})
        with warnings.catch_warnings(action="ignore"):
            # compiles
            estimator.__class__(**model.get_params(deep=False)).set_params(
                max_iterations=2, prior_variance="auto" if prior == "auto" else 10.0
            ).fit(*given)
            began = time.process_time()
            model.fit(*given)
            seconds = time.process_time() - began
            losses, hits = score(model)
        error = float(losses.std() / losses.size**0.5)
        found[str(prior)] = {"loss": float(losses.mean()), "error": error, "right": float(hits.mean()), "s": seconds}
        keep()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("BACTRIAN_DATA", ".")))
    parser.add_argument("--out", type=Path, default=Path("defaults.json"))
    parser.add_argument("--skip", nargs="*", default=[])
    given = parser.parse_args()
    results = json.loads(given.out.read_text()) if given.out.is_file() else {}
    for name, make in cases(given.data).items():
        if given.names and name not in given.names:
            continue
        measured(
            make(), results.setdefault(name, {}), given.skip, lambda: given.out.write_text(json.dumps(results, indent=1))
        )
        row = results[name]
        best = min((row[str(v)]["loss"], v) for v in GRID)
        cv = f"{row['cv']['loss']:.4f} ({row['cv']['s']:.1f} s)" if "cv" in row else "-"
        print(
            f"| {name} | {row['auto']['loss']:.4f} ({row['auto']['s']:.1f} s) | {cv} | {best[0]:.4f} at {best[1]:g} | "
            f"{row['10.0']['loss']:.4f} ({row['10.0']['s']:.1f} s) | {row['independent']:.4f} | "
            f"{row['auto']['right']:.3f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
