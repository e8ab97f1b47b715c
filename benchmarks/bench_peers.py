"""What people bring, beside the programs they bring it from: each row runs both sides in one process.

    python benchmarks/bench_peers.py [--data DIR] [--rounds N] [grids] [uai] [packing] [chains] [l1] [tagging] [start]

DIR holds ``conll2003`` and ``uai`` (default: the environment variable BACTRIAN_DATA). Times are seconds of processor
time on one thread, the least of some rounds in which the sides take turns. The table goes to
``benchmarks/results/peers.md`` and the ratios to ``peers.json``; rows that ran before and are now worse by more than a
tenth are named at the end, and the exit status is 1.

libDAI (https://github.com/dbtsai/libDAI) has no package to install: ``grids`` and ``uai`` run where the environment
variable LIBDAI names its folder, with ``include`` and a ``libdai.a`` compiled with -O3 -DNDEBUG, and where g++, GMP and
the headers of Boost are found (CPLUS_INCLUDE_PATH); elsewhere they are left out. Both sides go from factors in memory
to marginals, to a change of 1e-8 or 1,000 iterations.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import bactrian as bt
from bactrian.graphs.packing import pack_models
from bactrian.inference.uai import UaiModel, read_evidence, read_model, to_model, write_model

HERE = Path(__file__).resolve().parent
PARTS = ("grids", "uai", "packing", "chains", "l1", "tagging", "start")
#: Our names of schedules, and libDAI's.
SCHEDULES = {"bp": "SEQFIX", "rbp": "SEQMAX"}
#: Largest difference between marginals of both sides where both converge: they found the same fixed point.
SAME = 1e-6
#: Worse by this factor than the ratio on file is a loss.
TOLERATED = 1.1
warnings.simplefilter("ignore")


class Row(NamedTuple):
    """One comparison."""

    name: str
    ours: float
    theirs: float
    peer: str
    wanted: float  #: the ratio to reach

    @property
    def ratio(self) -> float:
        return self.ours / self.theirs


def in_turns(rounds: int, *sides: Callable[[], Any]) -> list[float]:
    """The least processor time of each side, after a round that is not counted."""
    best = [float("inf")] * len(sides)
    for r in range(rounds + 1):
        for s, side in enumerate(sides):
            begun = time.process_time()
            side()
            if r:
                best[s] = min(best[s], time.process_time() - begun)
    return best


# --- models made by hand ---


def grid(side: int, states: int) -> tuple[list[int], list[tuple[int, ...]], list[Any]]:
    """Cardinalities, clusters and log-potentials of a grid with random tables."""
    rng = np.random.default_rng(0)
    edges = bt.grid_graph(side, side, states).clusters[side * side :]
    clusters = [(v,) for v in range(side * side)] + list(edges)
    return [states] * (side * side), clusters, [0.5 * rng.normal(size=(states,) * len(scope)) for scope in clusters]


def model_of(sizes: list[int], clusters: list[tuple[int, ...]], scores: list[Any]) -> bt.LogLinearModel:
    features = [np.zeros((scores[0].size, 0)), *[None] * (len(clusters) - 1)]
    return bt.LogLinearModel(bt.ClusterGraph(sizes, clusters), features, scores)


def libdai(folder: Path) -> Path | None:
    """A program that runs libDAI, compiled into a folder; None where there is no libDAI."""
    home = os.environ.get("LIBDAI")
    if home is None:
        print("  left out: LIBDAI does not name a folder")
        return None
    program = folder / "peer_libdai"
    parts = [str(HERE / "peer_libdai.cpp"), f"{home}/libdai.a", "-lgmpxx", "-lgmp", "-o", str(program)]
    options = ["-O3", "-DNDEBUG", "-std=c++14", "-w", "-DDAI_WITH_BP", f"-I{home}/include"]
    subprocess.run(["g++", *options, *parts], check=True)
    return program


class Propagated(NamedTuple):
    """Belief propagation on one model by both sides."""

    ours: float
    theirs: float
    differ: float  #: between marginals; NaN where a side did not converge


def propagated(program: Path, path: Path, evidence: Any, model: Callable[[], Any], how: str, rounds: int) -> Propagated:
    """Seconds of both sides on the model of a UAI file, which ``model`` makes from factors in memory."""
    given = read_evidence(evidence) if evidence is not None else None
    (ours,) = in_turns(rounds, lambda: bt.infer(model(), [], how, evidence=given, n_threads=1))
    found = bt.infer(model(), [], how, evidence=given, n_threads=1)
    command = [program, path, evidence or "-", SCHEDULES[how], "1e-8", "1000", str(rounds)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    seconds, _, change = map(float, printed[0].split())
    differ = math.nan
    if found.converged and change <= 1e-8:
        theirs = [np.array(line.split(), dtype=float) for line in printed[1:]]
        differ = max(float(np.abs(a - b).max()) for a, b in zip(found.variables, theirs, strict=True))
    print(f"  {path.stem}, {how}: {ours:.4f} s, libDAI {seconds:.4f} s, marginals differ by {differ:.0e}", flush=True)
    return Propagated(ours, seconds, differ)


def grids(rounds: int, _: str) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        program = libdai(Path(folder))
        for side, states in ((100, 2), (100, 4), (50, 8), (50, 16)) if program else ():
            sizes, clusters, scores = grid(side, states)
            path = Path(folder) / f"grid of {states} states.uai"
            write_model(path, UaiModel(np.array(sizes), clusters, [np.exp(table) for table in scores]))
            for how, words in (("bp", "BP"), ("rbp", "residual BP")):
                both = propagated(
                    program, path, None, lambda given=(sizes, clusters, scores): model_of(*given), how, rounds
                )
                if not both.differ <= SAME:
                    raise SystemExit(f"{words} on {path.stem}: the sides differ by {both.differ}")
                name = f"{words}, {side} x {side} grid of {states} states, as clusters"
                yield Row(name, both.ours, both.theirs, "libDAI", 0.5)


def uai(rounds: int, data: str) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        program = libdai(Path(folder))
        paths = sorted((Path(data) / "uai").glob("*.uai")) if program else []
        for how, words in (("bp", "BP"), ("rbp", "residual BP")) if paths else ():
            found = []
            for path in paths:
                read = read_model(path)
                evidence = path.with_name(f"{path.name}.evid")
                found.append(propagated(program, path, evidence, lambda read=read: to_model(read), how, rounds))
            ours, theirs = (np.exp(np.mean(np.log(side))) for side in list(zip(*found, strict=True))[:2])
            name = f"{words}, {len(paths)} models of UAI 2014, geometric mean"
            yield Row(name, float(ours), float(theirs), "libDAI", 0.7)


def packing(rounds: int, _: str) -> Iterator[Row]:
    given = grid(100, 2)
    clusters = len(given[1])
    (seconds,) = in_turns(rounds, lambda: pack_models([model_of(*given)]))
    yield Row("checks and packing, microseconds per cluster", 1e6 * seconds / clusters, 2.0, "the limit", 1.0)
    small = [model_of(*grid(3, 2)) for _ in range(1000)]
    (seconds,) = in_turns(rounds, lambda: pack_models(small))
    n = sum(len(model.graph.clusters) for model in small)
    yield Row("packing of 1,000 models of 21 clusters, the same", 1e6 * seconds / n, 2.0, "the limit", 1.0)


# --- chains with plain features ---


def tokens_of(sentence: list[list[str]]) -> list[dict[str, Any]]:
    """Features as users of CRFsuite write them."""

    def shape(word: str) -> str:
        return "".join("X" if c.isupper() else "x" if c.islower() else "d" if c.isdigit() else c for c in word)

    found = []
    for i, (word, tag) in enumerate(sentence):
        low = word.lower()
        token: dict[str, Any] = {
            "word": low, "suffix3": low[-3:], "suffix2": low[-2:], "prefix2": low[:2], "prefix3": low[:3],
            "shape": shape(word), "title": word.istitle(), "upper": word.isupper(), "pos": tag,
        }  # fmt: skip
        for place, name in ((i - 1, "before"), (i + 1, "after")):
            if not 0 <= place < len(sentence):
                token[f"{name}:none"] = True
                continue
            other, its_tag = sentence[place]
            token |= {
                f"{name}:word": other.lower(), f"{name}:title": other.istitle(), f"{name}:pos": its_tag,
                f"{name}:shape": shape(other),
            }  # fmt: skip
        found.append(token)
    return found


def conll(data: str, part: str, limit: int) -> tuple[list[Any], list[list[str]]]:
    """The first sentences of a file: features and tags."""
    X, y, sentence = [], [], []
    for line in [*Path(data, "conll2003", part).read_text(encoding="utf-8").splitlines(), ""]:
        words = line.split()
        if words and words[0] != "-DOCSTART-":
            sentence.append((words[0], words[1], words[-1]))
        elif sentence:
            X.append(tokens_of([[word, tag] for word, tag, _ in sentence]))
            y.append([label for *_, label in sentence])
            sentence = []
    return X[:limit], y[:limit]


def strings_of(X: list[Any]) -> list[Any]:
    return [[[f"{key}={value}" for key, value in token.items()] for token in sentence] for sentence in X]


def chain(**options: Any) -> bt.LinearChainCRF:
    return bt.LinearChainCRF(
        fit_intercept=False, all_possible_states=False, all_possible_transitions=False, n_threads=1, **options
    )


#: Seconds since the start, data included, and the objective then.
Trace = list[tuple[float, float]]


def crfsuite_trace(X: list[Any], y: list[Any], **params: Any) -> Trace:
    """Objective of CRFsuite after every iteration; the last entry has the seconds of the whole."""
    import pycrfsuite

    trace: Trace = []

    class Trainer(pycrfsuite.Trainer):
        def message(self, message: str) -> None:
            for line in message.splitlines():
                if line.startswith("Loss:"):
                    trace.append((time.process_time() - begun, float(line.split()[1])))

    begun = time.process_time()
    trainer = Trainer()
    trainer.set_params(params)
    for sequence, labels in zip(X, y, strict=True):
        trainer.append(pycrfsuite.ItemSequence(sequence), labels)
    with tempfile.TemporaryDirectory() as folder:
        trainer.train(str(Path(folder, "model")))
    return [*trace, (time.process_time() - begun, trace[-1][1])]


def own_trace(model: bt.LinearChainCRF, X: list[Any], y: list[Any]) -> Trace:
    """The same of ours."""
    trace: Trace = []
    begun = time.process_time()
    model.fit(X, y, callback=lambda at: trace.append((time.process_time() - begun, at.objective)))
    return [*trace, (time.process_time() - begun, model.solution_.objective)]


def seconds_to(trace: Trace, objective: float) -> float:
    return next(seconds for seconds, reached in trace if reached <= objective)


def letters(n_labels: int, sequences: int) -> tuple[list[Any], list[Any]]:
    """Sequences of ten letters, 64 numbers each: a noisy picture of the letter, which depends on the one before."""
    rng = np.random.default_rng(0)
    pictures = rng.normal(size=(n_labels, 64))
    follows = rng.dirichlet(np.full(n_labels, 0.2), size=n_labels).cumsum(axis=1)
    X, y = [], []
    for _ in range(sequences):
        labels = [int(rng.integers(n_labels))]
        while len(labels) < 10:
            labels.append(min(int(np.searchsorted(follows[labels[-1]], rng.random())), n_labels - 1))
        X.append(np.maximum(pictures[labels] + 2.0 * rng.normal(size=(10, 64)), 0.0))  # CRFsuite counts no other values
        y.append([f"{label:03d}" for label in labels])
    return X, y


def chains(_: int, data: str) -> Iterator[Row]:
    """To 0.1 % of the optimum, the better of the two ends: L2, c2 = 0.1."""
    X, y = conll(data, "eng.train", 14_000)
    cases: list[tuple[str, list[Any], list[Any], dict[str, Any], float]] = [
        ("CoNLL-2003, plain strings, one thread", strings_of(X), y, {}, 0.35),
        ("2,000 sentences of it, plain strings", strings_of(X[:2000]), y[:2000], {}, 0.35),
        ("2,000 sentences of it, dicts", X[:2000], y[:2000], {}, 0.35),
    ]
    for n_labels, sequences, wanted in ((26, 2000, 0.4), (100, 1000, 0.5)):
        full = {"all_possible_states": True, "all_possible_transitions": True}
        cases.append((f"{n_labels} labels, dense", *letters(n_labels, sequences), full, wanted))
    for name, X, y, options, wanted in cases:
        given = {
            "fit_intercept": False,
            "all_possible_states": False,
            "all_possible_transitions": False,
            "n_threads": 1,
            "tolerance": 1e-4,  # ends as CRFsuite does
            **options,
        }
        bt.LinearChainCRF(prior_variance=5.0, max_iterations=2, **given).fit(
            X, y
        )  # compiled, for so many labels and tokens
        ours = own_trace(bt.LinearChainCRF(prior_variance=5.0, **given), X, y)
        words = {f"feature.{name}": 1 for name in ("possible_states", "possible_transitions")} if options else {}
        listed = [[{str(i): v for i, v in enumerate(row)} for row in part] for part in X] if options else X
        theirs = crfsuite_trace(listed, y, c1=0.0, c2=0.1, **words)
        print(f"  {name}: ours {ours[-1]} after {len(ours)}, CRFsuite {theirs[-1]} after {len(theirs)}", flush=True)
        near = 1.001 * min(ours[-1][1], theirs[-1][1])
        yield Row(f"chain, {name}, to 0.1 %", seconds_to(ours, near), seconds_to(theirs, near), "CRFsuite", wanted)
        yield Row(f"chain, {name}, to the end", ours[-1][0], theirs[-1][0], "CRFsuite", 1.0)


def l1(_: int, data: str) -> Iterator[Row]:
    X, y = conll(data, "eng.train", 2000)
    X = strings_of(X)
    chain(prior_variance=5.0, max_iterations=2, l1=0.1).fit(X[:50], y[:50])  # compiled
    theirs = crfsuite_trace(X, y, c1=0.1, c2=0.1)
    ours = own_trace(chain(prior_variance=5.0, l1=0.1, tolerance=1e-5), X, y)
    print(f"  CRFsuite {len(theirs)} iterations to {theirs[-1][1]:.3f}, ours to {ours[-1][1]:.3f}")
    near = seconds_to(ours, theirs[-1][1])
    yield Row("L1, 2,000 sentences, to CRFsuite's objective", near, theirs[-1][0], "CRFsuite", 0.8)
    yield Row("L1, 2,000 sentences, to the end", ours[-1][0], theirs[-1][0], "CRFsuite", 0.8)


def tagging(rounds: int, data: str) -> Iterator[Row]:
    import pycrfsuite

    X, y = conll(data, "eng.train", 1500)
    test, _ = conll(data, "eng.testa", 3000)
    model = chain(prior_variance=10.0, tolerance=1e-2, max_iterations=30).fit(X, y)
    trainer = pycrfsuite.Trainer(verbose=False)
    trainer.set_params({"c2": 0.1, "max_iterations": 30})
    for sequence, labels in zip(X, y, strict=True):
        trainer.append(sequence, labels)
    with tempfile.TemporaryDirectory() as folder:
        trainer.train(str(Path(folder, "model")))
        tagger = pycrfsuite.Tagger()
        tagger.open(str(Path(folder, "model")))

        def tag(sentences: list[Any]) -> list[Any]:
            return [tagger.tag(pycrfsuite.ItemSequence(sentence)) for sentence in sentences]

        ours, theirs = in_turns(rounds, lambda: model.predict(test), lambda: tag(test))
        yield Row("tagging 3,000 sentences from dicts", ours, theirs, "CRFsuite", 0.5)
        one = max(test[:100], key=len)
        ours, theirs = in_turns(
            rounds, lambda: [model.predict([one]) for _ in range(100)], lambda: [tag([one]) for _ in range(100)]
        )
        yield Row(f"one sentence of {len(one)} tokens, ms", 10.0 * ours, 10.0 * theirs, "CRFsuite", 1.0)


# --- from nothing ---


def start(_: int, __: str) -> Iterator[Row]:
    import resource

    def seconds(*arguments: str, cache: str) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-c", "from bactrian.cli import main; main()", *arguments]
        environment = {**os.environ, "NUMBA_CACHE_DIR": cache}
        subprocess.run(command, check=True, capture_output=True, env=environment)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "small.uai")
        file.write_text("MARKOV 3 2 2 3 2 2 0 1 2 1 2  4 4 2.4 1 0  6 2.25 3.25 3.75 0.5 0.5 10\n")
        cold = seconds("infer", str(file), cache=f"{folder}/cache")
        warm = min(seconds("infer", str(file), cache=f"{folder}/cache") for _ in range(3))
    yield Row("`bactrian infer` of two tables, cold cache, s", cold, 5.0, "the limit", 1.0)
    yield Row("the same again, s", warm, 0.4, "the limit", 1.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="[all]")
    parser.add_argument("--data", default=os.environ.get("BACTRIAN_DATA", ""))
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    results = HERE / "results/peers.json"
    kept: dict[str, Any] = json.loads(results.read_text()) if results.exists() else {}
    worse = []
    machine = f"{platform.processor() or platform.machine()}, {len(os.sched_getaffinity(0))} cores"
    for part in options.parts or PARTS:
        print(part, flush=True)
        for row in globals()[part](options.rounds, options.data):
            print(f"  {row.name}: {row.ours:.3g} against {row.theirs:.3g} ({row.peer}), ratio {row.ratio:.2f}, "
                  f"wanted {row.wanted}", flush=True)  # fmt: skip
            before = kept.get(row.name, {}).get("ratio", float("inf"))
            if row.ratio > TOLERATED * before:
                worse.append(f"{row.name}: {before:.2f} before, {row.ratio:.2f} now")
            kept[row.name] = {**row._asdict(), "ratio": round(row.ratio, 3), "machine": machine,
                              "date": time.strftime("%Y-%m-%d"), "part": part}  # fmt: skip
    results.write_text(json.dumps(kept, indent=1) + "\n")
    lines = [
        "# Beside peers",
        "",
        "Seconds of processor time, one thread; `make bench-peers` writes this page.",
        "",
        "| row | ours | peer or limit | | ratio | wanted | date, machine |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, row in kept.items():
        lines.append(
            f"| {name} | {row['ours']:.3g} | {row['theirs']:.3g} | {row['peer']} | {row['ratio']:.2f} | "
            f"{row['wanted']} | {row['date']}, {row['machine']} |"
        )
    results.with_suffix(".md").write_text("\n".join(lines) + "\n")
    if worse:
        sys.exit("worse than on file:\n" + "\n".join(worse))


if __name__ == "__main__":
    main()
