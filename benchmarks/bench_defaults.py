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
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from scipy.ndimage import gaussian_filter
from sklearn.datasets import load_digits
from sklearn.feature_extraction import DictVectorizer
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV

import bactrian as bt

GRID = (0.01, 0.1, 1.0, 10.0, 100.0)


class Case(NamedTuple):
    """A data set."""

    estimator: Any
    given: tuple[Any, ...]  #: arguments of ``fit``
    score: Callable[[Any], tuple[Any, Any]]  #: losses and hits of held-out labels, by a fitted estimator
    independent: Any  #: losses of independent nodes or variables
    groups: Any  #: the sequence, picture or row of each label; in a graph each is its own
    labelled: tuple[Any, ...] | None = None  #: arguments for the labelled nodes alone
    is_large: bool = False  #: which is fitted by default alone


def judged(rows: Any, labels: Any, classes: Any) -> tuple[Any, Any]:
    """Losses and hits of labels at probabilities."""
    codes = np.searchsorted(classes, labels)
    return -np.log(np.maximum(rows[np.arange(codes.size), codes], 1e-12)), rows.argmax(axis=1) == codes


def alone(X: Any, y: Any, rows: Any, labels: Any) -> Any:
    """Losses of logistic regression."""
    model = LogisticRegressionCV(Cs=5, cv=3, max_iter=300, scoring="neg_log_loss", use_legacy_attributes=False)
    found = model.fit(X, y).predict_proba(rows)
    return judged(found, labels, model.classes_)[0]


def numbered(sizes: Any) -> Any:
    """The group of each label, from their sizes."""
    return np.repeat(np.arange(len(sizes)), sizes)


def mean_and_error(values: Any, groups: Any) -> tuple[float, float]:
    """The mean, and its standard error where groups are drawn, not labels."""
    off = np.bincount(groups, values - values.mean())
    return float(values.mean()), float(np.sqrt((off**2).sum()) / values.size)


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
    independent = alone(*map(np.concatenate, (X, y, rows, truth)))
    return Case(bt.LinearChainCRF(), (X, y), score, independent, numbered([*map(len, truth)]))


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

    independent = alone(flat[0], labels[0], flat[1], labels[1])
    return Case(bt.GridCRF(), (X, y), score, independent, numbered([part.size for part in truth]))


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
    part = known >= 0
    number = np.cumsum(part) - 1
    joined = number[file["edges"][part[file["edges"]].all(axis=1)]]
    independent, labelled = alone(X[train], labels[train], X[test], labels[test]), ([(X[part], joined)], [labels[part]])
    return Case(bt.GraphCRF(), ([graph], [known]), score, independent, np.arange(test.size), labelled)


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
    independent = alone(X[train], labels[train], X[~train], labels[~train])
    return Case(bt.GraphCRF(), ([graph], [known]), score, independent, np.arange(independent.size))


def large_block_model() -> Case:
    """A stochastic block model of 100,000 nodes and 500,000 edges with a tenth of the labels."""
    rng, n = np.random.default_rng(8), 100_000
    labels = rng.integers(5, size=n)
    pairs = rng.integers(n, size=(2_500_000, 2))
    keep = rng.random(len(pairs)) < np.where(labels[pairs[:, 0]] == labels[pairs[:, 1]], 0.5, 0.17)
    edges = np.unique(np.sort(pairs[keep & (pairs[:, 0] != pairs[:, 1])], axis=1), axis=0)[:500_000]
    X = np.hstack([np.eye(5)[labels] + 2.0 * rng.normal(size=(n, 5)), rng.normal(size=(n, 5))])
    train = rng.random(n) < 0.1
    known, graph = np.where(train, labels, -1), (X, rng.permutation(edges))
    score = lambda m: judged(m.predict_marginals([graph], [known])[0][~train], labels[~train], m.classes_)  # noqa: E731
    independent = alone(X[train], labels[train], X[~train], labels[~train])
    groups = np.arange(independent.size)
    return Case(bt.GraphCRF(), ([graph], [known]), score, independent, groups, is_large=True)


def letters(folder: Path) -> Case:
    """Words of CoNLL-2003 in letters of 16 by 8 black and white pixels, of several fonts, turned, moved and noisy."""
    import matplotlib
    from PIL import Image, ImageDraw, ImageFont

    rng = np.random.default_rng(9)
    text = (folder / "conll2003" / "eng.train").read_text().split()
    words = rng.permutation(sorted({word for word in text if word.isascii() and word.isalpha() and word.islower()}))
    words = [word for word in words.tolist() if 4 <= len(word) <= 10][:1_104]
    names = ("DejaVuSans", "DejaVuSerif", "DejaVuSansMono", "DejaVuSerif-Italic", "STIXGeneral", "cmr10", "cmtt10")
    path = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    fonts = [ImageFont.truetype(str(path / f"{name}.ttf"), 26) for name in names]

    def drawn(letter: str) -> Any:
        image = Image.new("L", (48, 48))
        ImageDraw.Draw(image).text((24, 24), letter, 255, fonts[rng.integers(len(fonts))], anchor="mm")
        pixels = np.asarray(image.rotate(rng.normal(0.0, 15.0), Image.Resampling.BILINEAR)) > 100
        rows, columns = np.flatnonzero(pixels.any(axis=1)), np.flatnonzero(pixels.any(axis=0))
        box = Image.fromarray(pixels[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1])
        small = np.asarray(box.convert("L").resize((8, 16), Image.Resampling.BILINEAR)) > 100
        return (np.roll(small, rng.integers(-1, 2, 2), (0, 1)) ^ (rng.random((16, 8)) < 0.1)).ravel().astype(float)

    X = [np.array([drawn(letter) for letter in word]) for word in words]
    y = [list(word) for word in words]
    flat = [np.concatenate(part) for part in (X[:704], y[:704], X[704:], y[704:])]
    score = lambda m: judged(np.concatenate(m.predict_marginals(X[704:])), flat[3], m.classes_)  # noqa: E731
    model = bt.LinearChainCRF(labels=sorted({*map(str, np.unique(flat[1]))}))
    return Case(model, (X[:704], y[:704]), score, alone(*flat), numbered([*map(len, y[704:])]))


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

    flat = [[dict.fromkeys(token, 1.0) for sentence in part for token in sentence] for part in (X[:train], X[train:])]
    rows = DictVectorizer().fit(flat[0])
    tags = np.concatenate(y[:train])
    independent: Any = None
    for strength in (1.0, 10.0):
        model = LogisticRegression(C=strength, max_iter=300).fit(rows.transform(flat[0]), tags)
        found = judged(model.predict_proba(rows.transform(flat[1])), truth, model.classes_)[0]
        independent = found if independent is None or found.mean() < independent.mean() else independent
    groups = numbered([*map(len, y[train:])])
    return Case(bt.LinearChainCRF(labels=labels), (X[:train], y[:train]), score, independent, groups)


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

    independent = -np.log(np.where(test == 1, shares, 1.0 - shares)).ravel()
    groups = numbered(np.full(len(test), test.shape[1]))
    return Case(bt.MarkovRandomField(edges, cardinalities=2, tolerance=1e-4), (train,), score, independent, groups)


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
        "letters": lambda: letters(folder),
        "large block model": large_block_model,
        "CoNLL": lambda: conll(folder),
        "seminars": lambda: seminars(folder),
    }


def measured(case: Case, found: dict[str, Any], skip: list[str], keep: Callable[[], None]) -> None:
    """Losses, accuracy and seconds of every prior that ``found`` lacks, and of the labelled nodes alone."""
    found["independent"] = float(case.independent.mean())
    fits = {str(prior): (prior, case.given) for prior in ("auto", 10.0, "cv", *GRID)}
    if case.labelled is not None:
        fits["labelled nodes alone"] = "auto", case.labelled
    for name, (prior, given) in fits.items():
        if name in (*skip, *found) or (case.is_large and name != "auto"):
            continue
        options = {**case.estimator.get_params(deep=False), "n_threads": None if case.is_large else 1}
        model = case.estimator.__class__(**{**options, "prior_variance": prior})
        with warnings.catch_warnings(action="ignore"):
            if prior in ("auto", 10.0) and not case.is_large:  # compiles
                case.estimator.__class__(**model.get_params(deep=False)).set_params(max_iterations=20).fit(*given)
            began, wall = time.process_time(), time.perf_counter()
            model.fit(*given)
            seconds, wall = time.process_time() - began, time.perf_counter() - wall
            losses, hits = case.score(model)
        mean, error = mean_and_error(losses, case.groups)
        found[name] = {
            "loss": mean,
            "error": error,
            "above independent": mean_and_error(losses - case.independent, case.groups),
            "right": float(hits.mean()),
            "s": seconds,
            "wall": wall,
            "prior": model.prior_variance_,
        }
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
            make(),
            results.setdefault(name, {}),
            given.skip,
            lambda: given.out.write_text(json.dumps(results, indent=1)),
        )
        print(in_words(name, results[name]), flush=True)


def in_words(name: str, row: dict[str, Any]) -> str:
    """A row of the table."""

    def said(prior: str) -> str:
        return f"{row[prior]['loss']:.4f} ({row[prior]['s']:.2f} s)" if prior in row else "-"

    best = min(((row[str(v)]["loss"], v) for v in GRID if str(v) in row), default=(float("nan"), float("nan")))
    return (
        f"| {name} | {said('auto')} | {said('cv')} | {best[0]:.4f} at {best[1]:g} | {said('10.0')} | "
        f"{row['independent']:.4f} | {row['auto']['right']:.3f} |"
    )


if __name__ == "__main__":
    main()
