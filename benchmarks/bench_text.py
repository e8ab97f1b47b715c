"""Chains and skip chains against python-crfsuite on CoNLL-2003, both sides in one run.

    python benchmarks/bench_text.py [--data DIR] [chain] [small] [skip] [tagging]

DIR holds ``conll2003`` (default: the environment variable BACTRIAN_DATA). CRFsuite learns the same objective: all
possible states and transitions, c2 = 1 / (2 * 10). It stops by its own rule; ours is timed until its objective is
within 0.1 % of CRFsuite's final one. Feature extraction is common to both and not counted; encoding is.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bactrian as bt
from bactrian.experiments.table1 import table as table1
from bactrian.experiments.tagging import Corpus, peak_memory
from bactrian.inference.infer import graph_marginals
from bactrian.text.features import flatten

PARTS = ("chain", "small", "skip", "tagging")


def sentences(corpus: Corpus, limit: int | None = None) -> tuple[list[Any], list[Any]]:
    """Tokens and tags sentence by sentence."""
    X, y = [], []
    for tokens, tags, starts in zip(corpus.tokens, corpus.tags, corpus.breaks, strict=True):
        bounds = [*starts.tolist(), len(tokens)]
        for first, last in itertools.pairwise(bounds):
            X.append(tokens[first:last])
            y.append(tags[first:last])
    return X[:limit], y[:limit]


def seen_twice(X: list[Any]) -> set[str]:
    """Features on at least two tokens, as both sides use them."""
    counts: dict[str, int] = {}
    for sequence in X:
        for token in sequence:
            for name in set(flatten(token)):
                counts[name] = counts.get(name, 0) + 1
    return {name for name, n in counts.items() if n >= 2}


def crfsuite(X: list[Any], y: list[Any]) -> dict[str, float]:
    """Train CRFsuite; seconds of adding the data and of training, its final objective, and MiB."""
    import pycrfsuite

    known = seen_twice(X)
    plain = [[[name for name in flatten(token) if name in known] for token in sequence] for sequence in X]
    trainer = pycrfsuite.Trainer(verbose=False)
    trainer.set_params({"c1": 0.0, "c2": 0.05, "feature.possible_states": True, "feature.possible_transitions": True})
    with tempfile.TemporaryDirectory() as folder, peak_memory() as memory:
        began = time.perf_counter()
        for sequence, labels in zip(plain, y, strict=True):
            trainer.append(pycrfsuite.ItemSequence(sequence), labels)
        trainer.train(str(Path(folder) / "model"))
        seconds = time.perf_counter() - began
        last = trainer.logparser.last_iteration
    return {"seconds": seconds, "objective": float(last["loss"]), "MiB": memory.peak, "iterations": last["num"]}


def ours(X: list[Any], y: list[Any], target: float) -> dict[str, float]:
    """Train the exact chain until its objective is at most ``target``."""
    reached = {}

    def stop(progress: Any) -> bool:
        reached.update(objective=progress.objective, iterations=progress.iteration)
        return bool(progress.objective <= target)

    with peak_memory() as memory:
        began = time.perf_counter()
        bt.LinearChainCRF(prior_variance=10.0, min_frequency=2, tolerance=1e-6).fit(X, y, callback=stop)
        seconds = time.perf_counter() - began
    return {"seconds": seconds, "MiB": memory.peak, **reached}


def report(name: str, theirs: dict[str, float], mine: dict[str, float], wanted: float) -> None:
    for side, found in (("CRFsuite", theirs), ("bactrian", mine)):
        print(f"{name}: {side} {found['seconds']:.1f} s to {found['objective']:.2f} in {found['iterations']} "
              f"iterations, {found['MiB']:.0f} MiB")  # fmt: skip
    print(f"{name}: time ratio {mine['seconds'] / theirs['seconds']:.3f} (wanted at most {wanted}), "
          f"memory ratio {mine['MiB'] / theirs['MiB']:.2f}", flush=True)  # fmt: skip


def bench_chain(train: Corpus, limit: int | None, name: str, wanted: float) -> float:
    X, y = sentences(train, limit)
    bt.LinearChainCRF(prior_variance=10.0, min_frequency=2, max_iterations=3, tolerance=1.0).fit(
        X[:4000], y[:4000]
    )  # compiles
    theirs = crfsuite(X, y)
    report(name, theirs, ours(X, y, 1.001 * theirs["objective"]), wanted)
    return theirs["seconds"]


def bench_skip(train: Corpus, chain_seconds: float) -> None:
    fits = {
        "cccp, 3 relinearisations": (bt.Camel(entropy="bethe"), 0.4),
        "camel0, piecewise included": (bt.Camel(entropy="clusters", start="piecewise"), 0.25),
    }
    for name, (method, wanted) in fits.items():
        outer = [0]

        def stop(progress: Any, outer: list[int] = outer) -> bool:
            outer[0] = progress.outer
            return bool(progress.outer > 3)

        with peak_memory() as memory:
            began = time.perf_counter()
            model = bt.SkipChainCRF(prior_variance=10.0, method=method, min_frequency=2, tolerance=1e-3)
            model.fit(train.tokens, train.tags, breaks=train.breaks, callback=stop)
            seconds = time.perf_counter() - began
        solution = model.solution_
        print(f"skip, {name}: {seconds:.1f} s, {seconds / chain_seconds:.3f} of CRFsuite's chain (wanted {wanted}), "
              f"{memory.peak:.0f} MiB, violation {solution.violation:.1e}, {len(solution.history)} solves, "
              f"{solution.evaluations} evaluations", flush=True)  # fmt: skip


def crfsuite_tagger(train: Corpus, test: Corpus, folder: str) -> Callable[[], None]:
    """CRFsuite tagging the same sentences from flat lists of the same strings; its weights do not matter here."""
    import pycrfsuite

    X, y = sentences(train)
    known = seen_twice(X)
    trainer = pycrfsuite.Trainer(verbose=False)
    trainer.set_params({"c1": 0.0, "c2": 0.05, "max_iterations": 3,
                        "feature.possible_states": True, "feature.possible_transitions": True})  # fmt: skip
    for sequence, labels in zip(X, y, strict=True):
        plain = [[name for name in flatten(token) if name in known] for token in sequence]
        trainer.append(pycrfsuite.ItemSequence(plain), labels)
    model = str(Path(folder) / "model")
    trainer.train(model)
    tagger = pycrfsuite.Tagger()
    tagger.open(model)
    flat = flattened(test)
    bounds = [[*starts.tolist(), len(tokens)] for tokens, starts in zip(flat, test.breaks, strict=True)]
    parts = [tokens[a:b] for tokens, ends in zip(flat, bounds, strict=True) for a, b in itertools.pairwise(ends)]

    def tag() -> None:
        for part in parts:
            tagger.tag(part)

    return tag


def flattened(corpus: Corpus) -> list[Any]:
    return [[flatten(token) for token in tokens] for tokens in corpus.tokens]


def tokens_a_second(n: int, tag: Callable[[], Any]) -> float:
    tag()  # compiles
    best = 1e9
    for _ in range(5):
        began = time.perf_counter()
        tag()
        best = min(best, time.perf_counter() - began)
    return n / best


def labels_of(model: bt.LinearChainCRF | bt.SkipChainCRF, rows: bt.GraphData) -> Any:
    """Numbers of the labels that ``predict`` gives."""
    if isinstance(model, bt.LinearChainCRF):
        return bt.decode(rows, model.weights_, "exact", n_threads=model.n_threads)
    options = {"tolerance": model.inference_tolerance, "seed": model.seed, "n_threads": model.n_threads}
    return graph_marginals(rows, model.weights_, model.inference, **options).nodes.argmax(axis=1)


def bench_tagging(train: Corpus, test: Corpus) -> None:
    n = sum(map(len, test.tokens))
    chain = bt.LinearChainCRF(prior_variance=10.0, min_frequency=2, max_iterations=60, tolerance=1.0)
    skip = bt.SkipChainCRF(prior_variance=10.0, method="camel0", min_frequency=2, tolerance=1e-2, max_iterations=60)
    flat = flattened(test)
    with tempfile.TemporaryDirectory() as folder:
        theirs = tokens_a_second(n, crfsuite_tagger(train, test, folder))
    print(f"tagging, chain, CRFsuite, from flat lists of strings: {theirs:,.0f} tokens a second", flush=True)
    for name, model, wanted in (("chain", chain, 200_000), ("skip chain", skip, 60_000)):
        model.fit(train.tokens, train.tags, breaks=train.breaks)
        rows = model.set_params(warm_start=True).encode(test.tokens, test.tags, breaks=test.breaks)
        ways = {
            "from flat lists of strings": lambda m=model: m.predict(flat, breaks=test.breaks),
            "from strings in bundles": lambda m=model: m.predict(test.tokens, breaks=test.breaks),
            "from encoded rows": lambda m=model, r=rows: labels_of(m, r),
        }
        for way, tag in ways.items():
            speed = tokens_a_second(n, tag)
            print(f"tagging, {name}, {way}: {speed:,.0f} tokens a second (wanted {wanted:,}), "
                  f"{speed / theirs:.1f} times CRFsuite's chain", flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=os.environ.get("BACTRIAN_DATA"))
    parser.add_argument("parts", nargs="*", default=PARTS)
    given = parser.parse_args()
    if given.data is None:
        sys.exit("give --data, or set BACTRIAN_DATA")
    train = table1.read(Path(given.data), "train", table1.SETTINGS)
    seconds = float("nan")
    if "small" in given.parts:
        bench_chain(train, 2000, "small", 0.5)
    if "chain" in given.parts:
        seconds = bench_chain(train, None, "chain", 0.25)
    if "skip" in given.parts:
        bench_skip(train, seconds)
    if "tagging" in given.parts:
        bench_tagging(train, table1.read(Path(given.data), "testb", table1.SETTINGS))


if __name__ == "__main__":
    import warnings

    warnings.simplefilter("ignore", bt.ConvergenceWarning)  # stopped on purpose
    main()
