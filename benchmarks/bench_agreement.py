"""Do learning and inference agree? Accuracy, log loss and calibration of every learner under every inference.

    python benchmarks/bench_agreement.py --workers 16 --seeds 20 --sides 24 64 -o agreement.json   # pictures
    python benchmarks/bench_agreement.py --workers 16 --kinds cora corel text digits snakes fields -o others.json
    python benchmarks/bench_agreement.py --workers 2 --kinds digits fields --seeds 2               # a look
    python benchmarks/bench_agreement.py --table agreement.json                                    # tables again

Kinds, those with names of data sets given ``BACTRIAN_DATA``:

- ``pictures``: regions of smooth fields, rectangles and ellipses of 2, 3 and 5 labels with noise 0.7, 1.0 and 1.5 and
  one or four training copies; the test picture is one more copy.
- ``cora``: a citation graph, 60/20/20, trained on the labelled subgraph and told the known labels.
- ``corel``: the three splits of Table 3 with in-fold node scores, with the default prior and without one.
- ``text``: skip chains on CoNLL-2003 (testb, Table 1) and seminar announcements (the first fold of Table 2).
- ``digits``: the noisy digits of ``bactrian demo``.
- ``snakes``: grids on which a snake of ten cells crawls, each cell coloured by where the next one is; cells are to be
  numbered, which takes messages from one end to the other.
- ``fields``: grids and complete graphs of ``bactrian bench learners``, couplings to 4, 1,000 samples; half of the cells
  of further samples are predicted from the other half.

Prints one table per kind (learner x inference), and what must hold of ``cccp``: never below node scores alone by more
than half a point, at least 95 % of the gain of the best learner on average, and no worse in log loss than ``camel0``.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.ndimage import gaussian_filter
from scipy.special import softmax
from sklearn.linear_model import LogisticRegression

import bactrian as bt
from bactrian.experiments.bench.random_fields import FieldSize, random_field
from bactrian.experiments.digits.data import load_noisy_digits
from bactrian.experiments.table1 import table as table1
from bactrian.experiments.table2 import table as table2
from bactrian.experiments.table3.cache import ArrayCache
from bactrian.experiments.table3.corel import ScoreSettings, corel_folder, draw_splits, read_corel, score_split
from bactrian.experiments.tagging import Corpus, Row, make_tagger
from bactrian.text.entities import entity_scores
from bactrian.text.tagged import read_seminars

#: Learner and inference; "matched" is the default.
PAIRS = [
    ("piecewise", "matched"), ("piecewise", "rbp"), ("camel0", "matched"), ("camel0", "rbp"), ("convex", "matched"),
    ("convex", "rbp"), ("trw", "matched"), ("cccp", "matched"), ("cccp", "rbp"), ("cccp", "convex"),
    ("pseudolikelihood", "matched"),
]  # fmt: skip
#: The same where "cccp" does not replay its path, so that its matched inference is belief propagation.
PAIRS_WITHOUT_PATH = [pair for pair in PAIRS if pair != ("cccp", "rbp")] + [("lbp", "matched")]
#: Iterations that a fit may take, three times as many as the longest that were looked at: figures depend on no clock.
MAX_ITERATIONS = 3000


@dataclass
class Problem:
    """Data to learn from and to predict, whatever the estimator."""

    make: Callable[[str, str], Any]  #: an estimator of a learner and an inference
    fit: Callable[[Any], Any]
    marginals: Callable[[Any], Any]  #: (n, n_labels) of what is judged
    truth: Any
    alone: Any  #: (n, n_labels) probabilities by each variable alone
    f1: Callable[[Any], float] | None = None  #: of entities, given marginals
    argmax: float = 0.0  #: accuracy of the inputs themselves


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


def estimated(problem: Problem, crf: Any) -> dict[str, Any]:
    """Fit, predict and judge."""
    begun = time.process_time()
    problem.fit(crf)
    seconds = time.process_time() - begun
    begun = time.process_time()
    marginals = problem.marginals(crf)
    took = time.process_time() - begun
    solution = crf.solution_
    return {
        **judged(marginals, problem.truth),
        **({} if problem.f1 is None else {"f1": problem.f1(marginals)}),
        "fit_seconds": seconds,
        "predict_seconds": took,
        "status": solution.status.name,
        "attained": solution.attained,
    }


def one(task: tuple[Any, ...]) -> dict[str, Any]:
    """Learners on one problem."""
    warnings.simplefilter("ignore")
    pairs, seconds, kind, *setting = task
    problem = KINDS[kind](*setting)
    rows = {"alone": judged(problem.alone, problem.truth)}
    if problem.f1 is not None:
        rows["alone"]["f1"] = problem.f1(problem.alone)
    for learner, inference in pairs:
        crf = problem.make(learner, inference).set_params(max_seconds=seconds)
        rows[f"{learner}/{inference}"] = estimated(problem, crf)
    return {"kind": kind, "setting": setting, "rows": rows, "argmax": problem.argmax}


def pictures(side: int, n_labels: int, noise: float, copies: int, seed: int) -> Problem:
    train, test, truth = picture(side, n_labels, noise, copies, seed)
    rows = np.concatenate([copy.reshape(-1, n_labels) for copy in train])
    alone = LogisticRegression(C=10.0).fit(rows, np.tile(truth.ravel(), len(train)))
    pixels = np.full((truth.size, n_labels), 1e-12)
    pixels[:, alone.classes_] = alone.predict_proba(test.reshape(-1, n_labels))
    return Problem(
        make=_maker(bt.GridCRF, labels=list(range(n_labels))),
        fit=lambda crf: crf.fit(train, [truth] * len(train)),
        marginals=lambda crf: crf.predict_marginals([test])[0].reshape(truth.size, -1),
        truth=truth,
        alone=pixels,
        argmax=float(np.mean(test.argmax(axis=2) == truth)),
    )


def citations(seed: int) -> Problem:
    graph, labels, known, inside, edges, nodes, judged_nodes = cora(seed)
    alone = LogisticRegression(C=1.0, max_iter=300).fit(graph[inside], labels[inside])
    return Problem(
        make=_maker(bt.GraphCRF),
        fit=lambda crf: crf.fit([(graph[inside], edges)], [labels[inside]]),
        marginals=lambda crf: crf.predict_marginals([(graph, nodes)], [known])[0][judged_nodes],
        truth=labels[judged_nodes],
        alone=alone.predict_proba(graph)[judged_nodes],
    )


def photographs(number: int, prior: str | None, cache: str | None) -> Problem:
    images = read_corel(corel_folder())
    split = draw_splits(len(images.images))[number]
    scored = score_split(images, split, ScoreSettings(), ArrayCache(cache))
    learned = np.concatenate(scored.in_fold)
    mean, scale = learned.mean(axis=0), learned.std(axis=0)
    train, test = (
        [((scores - mean) / scale, image.adjacency.edges) for scores, image in zip(part, of, strict=True)]
        for part, of in ((scored.in_fold, scored.train), (scored.test_scores, scored.test))
    )
    return Problem(
        make=_maker(bt.GraphCRF, prior_variance=prior, labels=list(range(7))),
        fit=lambda crf: crf.fit(train, [image.labels for image in scored.train]),
        marginals=lambda crf: np.concatenate(crf.predict_marginals(test)),
        truth=np.concatenate([image.labels for image in scored.test]),
        alone=softmax(np.concatenate(scored.test_scores), axis=1),
    )


def text(corpus: str) -> Problem:
    """Tokens alone are a logistic regression of the same features: a skip chain without its edges."""
    data = Path(os.environ["BACTRIAN_DATA"])
    if corpus == "conll2003":
        settings = table1.SETTINGS
        train, test = (table1.read(data, part, settings, None) for part in ("train", "testb"))
    else:
        settings = table2.SETTINGS
        documents = list(read_seminars(table2.folder_of(data), scheme=settings.scheme))
        whole = Corpus.of(documents, settings, settings.scheme)
        held_out = table2.folds(documents, table2.N_FOLDS, seed=table2.SEED)[0]
        train, test = whole[np.setdiff1d(np.arange(len(documents)), held_out)], whole[held_out]

    def make(learner: str, inference: str) -> Any:
        tagger = make_tagger(Row(learner, learner), settings)
        return tagger.set_params(inference=inference, n_threads=1, max_iterations=MAX_ITERATIONS)

    def marginals(tagger: Any) -> Any:
        return np.concatenate(tagger.predict_marginals(test.tokens, breaks=test.breaks))

    edgeless = bt.LinearChainCRF(
        prior_variance=10.0, method="piecewise", min_frequency=settings.min_frequency, tolerance=settings.tolerance
    )
    every = [np.arange(1, len(tokens)) for tokens in train.tokens]  # a break before every token: no transitions
    edgeless.fit(train.tokens, train.tags, breaks=every)
    classes = edgeless.classes_
    code = {label: k for k, label in enumerate(classes.tolist())}
    alone = edgeless.predict_marginals(test.tokens, breaks=[np.arange(1, len(tokens)) for tokens in test.tokens])
    lengths = np.cumsum([len(tokens) for tokens in test.tokens])[:-1]

    def f1(found: Any) -> float:
        labels = [part.tolist() for part in np.split(classes[found.argmax(axis=1)], lengths)]
        scores = entity_scores(test.tags, labels, scheme=settings.scheme, sentence_starts=test.breaks)
        return float(scores.micro.f1)

    return Problem(
        make=make,
        fit=lambda tagger: tagger.fit(train.tokens, train.tags, breaks=train.breaks),
        marginals=marginals,
        truth=np.array([code.get(tag, -1) for tags in test.tags for tag in tags]),
        alone=np.concatenate(alone),
        f1=f1,
    )


def digits(seed: int) -> Problem:
    images = load_noisy_digits(340, noise=0.5, seed=seed)
    train, test = images[:40], images[40:]
    pixels = LogisticRegression(C=10.0).fit(train.noisy.reshape(-1, 1), train.truth.ravel())
    return Problem(
        make=_maker(bt.GridCRF),
        fit=lambda crf: crf.fit(list(train.noisy[..., None]), list(train.truth)),
        marginals=lambda crf: np.concatenate(crf.predict_marginals(list(test.noisy[..., None]))).reshape(-1, 2),
        truth=test.truth,
        alone=pixels.predict_proba(test.noisy.reshape(-1, 1)),
    )


def snakes(seed: int) -> Problem:
    rng = np.random.default_rng([seed, 10])
    drawn = [snake(rng) for _ in range(80)]
    X, y = [inputs for inputs, _ in drawn], [labels for _, labels in drawn]
    rows = np.concatenate([part.reshape(-1, part.shape[2]) for part in X])
    cells = LogisticRegression(C=10.0, max_iter=300).fit(rows[: 40 * 100], np.concatenate(y[:40]).ravel())
    return Problem(
        make=_maker(bt.GridCRF, tables="full", labels=list(range(11))),
        fit=lambda crf: crf.fit(X[:40], y[:40]),
        marginals=lambda crf: np.concatenate([part.reshape(-1, 11) for part in crf.predict_marginals(X[40:])]),
        truth=np.stack(y[40:]),
        alone=cells.predict_proba(rows[40 * 100 :]),
    )


def snake(rng: np.random.Generator, side: int = 10, length: int = 10) -> tuple[Any, Any]:
    """Colours of cells and their neighbours (side, side, 30), and labels: 1 to ``length`` along a walk, else 0."""
    steps = np.array([(0, 1), (1, 0), (0, -1), (-1, 0)])
    while True:
        walk, colours = [tuple(rng.integers(side, size=2).tolist())], []
        while len(walk) < length:
            ways = [(d, tuple((np.array(walk[-1]) + step).tolist())) for d, step in enumerate(steps)]
            ways = [(d, at) for d, at in ways if min(at) >= 0 and max(at) < side and at not in walk]
            if not ways:
                break
            direction, at = ways[rng.integers(len(ways))]
            walk.append(at)
            colours.append(direction)
        if len(walk) == length:
            break
    labels = np.zeros((side, side), dtype=int)
    colour = np.zeros((side + 2, side + 2), dtype=int)
    for k, (row, column) in enumerate(walk):
        labels[row, column] = k + 1
        colour[row + 1, column + 1] = 1 + (colours[k] if k < length - 1 else 4)
    seen = np.eye(6)[colour]
    views = [seen[1 + dy : side + 1 + dy, 1 + dx : side + 1 + dx] for dy, dx in [(0, 0), *steps.tolist()]]
    return np.concatenate(views, axis=2), labels


def fields(size: str, sharing: str, strength: float, seed: int) -> Problem:
    shape = FieldSize.parse(size)
    rng = np.random.default_rng([seed, shape.n_variables, shape.n_labels, shape.height, sharing == "shared"])
    truth = random_field(shape, sharing == "shared", strength, rng)
    samples, test = truth.sample(1000, rng), truth.sample(200, rng)
    hidden = rng.random(test.shape) < 0.5
    shown = np.where(hidden, -1, test)
    counts = np.stack([np.bincount(column, minlength=shape.n_labels) for column in samples.T]) + 1.0
    cells = np.nonzero(hidden)
    edges = [cluster for cluster in truth.model.graph.clusters if len(cluster) == 2]
    return Problem(
        make=lambda learner, inference: bt.MarkovRandomField(
            edges=edges, cardinalities=shape.n_labels, method=learner, inference=inference, memory_budget=1,
            n_threads=1, max_iterations=MAX_ITERATIONS, tolerance=1e-4,
        ),
        fit=lambda field: field.fit(samples),
        marginals=lambda field: np.stack(field.predict_marginals(shown), axis=1)[cells],
        truth=test[cells],
        alone=(counts / counts.sum(axis=1, keepdims=True))[cells[1]],
    )  # fmt: skip


def _maker(kind: Any, **options: Any) -> Callable[[str, str], Any]:
    given = {"n_threads": 1, "max_iterations": MAX_ITERATIONS, **options}
    return lambda learner, inference: kind(method=learner, inference=inference, **given)


KINDS: dict[str, Callable[..., Problem]] = {
    "pictures": pictures,
    "cora": citations,
    "corel": photographs,
    "text": text,
    "digits": digits,
    "snakes": snakes,
    "fields": fields,
}


def tasks_of(kind: str, given: argparse.Namespace) -> list[tuple[Any, ...]]:
    """Settings of a kind, the longest first."""
    if kind == "pictures":
        kinds = itertools.product(
            given.sides, given.labels, given.copies, range(given.first, given.first + given.seeds)
        )
        return [
            (side, n_labels, (0.7, 1.0, 1.5)[(seed // 3 + seed) % 3], copies, seed)
            for side, n_labels, copies, seed in sorted(kinds, reverse=True)
        ]
    if kind == "corel":
        return [(split, prior, given.cache) for split in range(3) for prior in (None, "auto")]
    if kind == "text":
        return [("conll2003",), ("seminars",)]
    if kind == "fields":
        sizes, sharings, strengths = ("4x4", "3x3:3", "K6"), ("shared", "unshared"), (0.5, 1.0, 2.0, 4.0)
        return list(itertools.product(sizes, sharings, strengths, range(min(given.seeds, 5))))
    return [(seed,) for seed in range(min(given.seeds, {"snakes": 3}.get(kind, 5)))]


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
    merged: dict[str, dict[str, Any]] = {}
    for row in results:
        same = merged.setdefault(json.dumps([row["kind"], row["setting"]]), {**row, "rows": {}})
        same["rows"] |= row["rows"]
    for name, group in itertools.groupby(sorted(merged.values(), key=_group), key=_group):
        rows = list(group)
        scored = "f1" in rows[0]["rows"]["alone"]
        print(f"\n{name}: {len(rows)}\n")
        columns = ["learner/inference", "accuracy", *(["F1"] if scored else []), "log loss", "calibration"]
        columns += ["worst - alone", "attained", "fit s", "predict s"]
        print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
        every = [f"{learner}/{inference}" for learner, inference in [*PAIRS, *PAIRS_WITHOUT_PATH]]
        every = [pair for pair in dict.fromkeys(["alone", *every]) if all(pair in row["rows"] for row in rows)]
        for pair in every:
            cells = [row["rows"][pair] for row in rows]
            shown = ["accuracy", *(["f1"] if scored else []), "log_loss", "calibration"]
            means = [f"{np.mean([cell[key] for cell in cells]):.4f}" for key in shown]
            worst = min(cell["accuracy"] - _alone(row) for cell, row in zip(cells, rows, strict=True))
            known = [cell["attained"] for cell in cells if cell.get("attained") is not None]
            least = f"{min(known):.2f}" if known else "–"
            fit, predict = (
                np.mean([cell.get(key, 0.0) for cell in cells]) for key in ("fit_seconds", "predict_seconds")
            )
            print(f"| {pair} | {' | '.join(means)} | {worst:+.3f} | {least} | {fit:.2f} | {predict:.3f} |")
        short = {
            pair: [row["rows"][pair].get("status") for row in rows if "LIMIT" in row["rows"][pair].get("status", "")]
            for pair in every
        }
        for pair, statuses in short.items():
            for status in sorted(set(statuses)):
                said = "; these figures depend on the machine" if status == "TIME_LIMIT" else ""
                print(f"\n{pair}: {statuses.count(status)} of {len(rows)} fits ended with {status}{said}")
        if not all({"cccp/matched", "camel0/matched"} <= row["rows"].keys() for row in rows):
            continue
        ours = np.array([row["rows"]["cccp/matched"]["accuracy"] for row in rows])
        alone = np.array([_alone(row) for row in rows])
        # Of the learners, each by its mean: the best of many on every single picture would be luck.
        best = max(np.mean([row["rows"][pair]["accuracy"] for row in rows]) for pair in every)
        gain = (ours.mean() - alone.mean()) / (best - alone.mean()) if best > alone.mean() else 1.0
        loss, camel0 = (np.mean([row["rows"][f"{m}/matched"]["log_loss"] for row in rows]) for m in ("cccp", "camel0"))
        print(f"\ncccp: worst against alone {(ours - alone).min():+.3f}; gain {gain:.3f} of the best")
        print(f"cccp: log loss {loss:.4f}, camel0 {camel0:.4f}")


def _group(row: dict[str, Any]) -> str:
    kind, setting = row["kind"], row["setting"]
    if kind == "pictures":
        side, n_labels, _, copies, _ = setting
        return f"pictures {side} x {side}, {n_labels} labels, {copies} copies"
    if kind == "corel":
        return f"corel, {'no prior' if setting[1] is None else 'default prior'}"
    if kind == "fields":
        return f"fields, {'dense' if setting[0][0] == 'K' else 'grids'}, strength {setting[2]:g}"
    return f"{kind}, {setting[0]}" if kind == "text" else str(kind)


def _alone(row: dict[str, Any]) -> float:
    return max(float(row["rows"]["alone"]["accuracy"]), float(row["argmax"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=["pictures"])
    parser.add_argument("--seeds", type=int, default=20, help="pictures of each kind; their noise is 0.7, 1.0 and 1.5")
    parser.add_argument("--first", type=int, default=0, help="the seed of the first picture")
    parser.add_argument("--sides", type=int, nargs="*", default=[24, 64])
    parser.add_argument("--labels", type=int, nargs="*", default=[2, 3, 5])
    parser.add_argument("--copies", type=int, nargs="*", default=[1, 4])
    parser.add_argument("--pairs", nargs="*", help="learner/inference; cccp/matched and camel0/matched are judged")
    parser.add_argument("--seconds", type=float, help="of a fit at most; tables say where it ended some")
    parser.add_argument("--cache", help="folder that keeps the node scores of corel")
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--table", type=Path, nargs="*", help="print the tables of earlier runs")
    given = parser.parse_args()
    if given.table:
        table([row for path in given.table for row in json.loads(path.read_text())])
        return
    tasks: list[tuple[Any, ...]] = []
    for kind in given.kinds:
        pairs = PAIRS_WITHOUT_PATH if kind in ("text", "fields") else PAIRS
        if given.pairs is not None:
            pairs = [tuple(pair.split("/")) for pair in given.pairs]
        # Learners of the slowest kinds run side by side.
        parts = [[pair] for pair in pairs] if kind in ("text", "snakes", "corel") else [pairs]
        tasks += [(part, given.seconds, kind, *setting) for setting in tasks_of(kind, given) for part in parts]
    results = []
    with ProcessPoolExecutor(given.workers) as pool:
        for done in as_completed([pool.submit(one, task) for task in tasks]):
            results.append(done.result())
            if given.output is not None:
                given.output.write_text(json.dumps(results))
    table(results)


if __name__ == "__main__":
    main()
