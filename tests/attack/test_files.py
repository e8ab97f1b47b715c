"""Damaged files: each is refused in words, or read as what it says; nothing crashes, hangs or eats the memory."""

from __future__ import annotations

import json
import resource
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
import pytest
from cutting import cases
from generators import graphs
from mutations import mutated
from tampering import rewritten

import bactrian as bt
from bactrian.engines.files import PackedFolder
from bactrian.inference import uai
from bactrian.inference.uai import to_model
from bactrian.runs.checkpoints import Checkpoint
from bactrian.runs.run_data import read_data
from bactrian.runs.settings import RunSettings, with_defaults
from bactrian.solvers.solution import Record, WarmState

pytestmark = pytest.mark.filterwarnings("ignore::bactrian.solvers.solution.ConvergenceWarning")

#: Bytes that reading a damaged file may take on top of what the process has.
SPARE = 2 << 30


@dataclass(frozen=True)
class Target:
    """A file, and what reading it means: raises, or gives problems with what was read."""

    path: Path
    use: Callable[[], list[str]]
    load: Callable[[], object] = lambda: None


@contextmanager
def little_memory() -> Iterator[None]:
    """Let allocations beyond ``SPARE`` fail."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + SPARE, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def differ(found: object, expected: object) -> list[str]:
    same = np.array_equal(np.asarray(found), np.asarray(expected))
    return [] if same else [f"read as {np.ravel(found)[:5]}, not {np.ravel(expected)[:5]}"]


# --- files of each kind ---


def model_files(folder: Path) -> Iterator[Target]:
    """Fitted estimators: a damaged file is refused or predicts the same."""
    rng = np.random.default_rng(0)
    samples = rng.integers(0, 3, (30, 4))
    sequences = [[["a", "b"], ["b"], ["a", "c"]], [["a"], ["c", "b"]]]
    tags = [["x", "y", "y"], ["x", "x"]]
    nodes = [(rng.normal(size=(4, 2)), np.array([[0, 1], [1, 2], [2, 3], [3, 0]]))] * 3
    labels = [rng.integers(0, 2, 4) for _ in nodes]
    pictures = [rng.normal(size=(3, 3, 2)) for _ in range(2)]
    areas = [rng.integers(0, 2, (3, 3)) for _ in pictures]
    fitted = [
        (bt.LinearChainCRF(max_iterations=20), sequences, tags),
        (bt.SkipChainCRF(max_iterations=20), [[["word=" + t[0].upper(), *t] for t in s] for s in sequences], tags),
        (bt.GraphCRF(max_iterations=20), nodes, labels),
        (bt.GridCRF(max_iterations=20), pictures, areas),
    ]
    for model, X, y in fitted:
        model.fit(X, y)
        path = folder / f"{type(model).__name__}.safetensors"
        model.save(path)
        expected = model.predict(X)

        def use(path=path, model=model, X=X, expected=expected):
            loaded = type(model).load(path)
            return differ(loaded.weights_, model.weights_) + [
                problem for a, b in zip(loaded.predict(X), expected, strict=True) for problem in differ(a, b)
            ]

        yield Target(path, use, lambda path=path, model=model: type(model).load(path))
    field = bt.MarkovRandomField(max_iterations=20).fit(samples)
    path = folder / "field.safetensors"
    field.save(path)

    def use_field():
        loaded = bt.MarkovRandomField.load(path)
        return differ(loaded.weights_, field.weights_) + differ(loaded.predict(samples), field.predict(samples))

    yield Target(path, use_field, lambda: bt.MarkovRandomField.load(path))


def checkpoint_files(folder: Path) -> Iterator[Target]:
    """Checkpoints of training."""
    rng = np.random.default_rng(1)
    record = Record(0, 1.5, 1e-3, 1e-4, 7, 8, 20, 0.5)
    kept = Checkpoint(rng.normal(size=20), WarmState(rng.normal(size=30), rng.normal(size=9)), 7, 1.5, 9, (record,) * 3)
    path = folder / "checkpoint.safetensors"
    kept.write(path)

    def use():
        read = Checkpoint.read(path)
        return (
            differ(read.weights, kept.weights)
            + differ(read.state.multipliers, kept.state.multipliers)
            + differ(read.state.linearisation, kept.state.linearisation)
            + differ([read.iterations, read.seconds, read.evaluations], [7, 1.5, 9])
        )

    yield Target(path, use)


def pack_files(folder: Path) -> Iterator[Target]:
    """Every file of a folder of packed data."""
    rng = np.random.default_rng(2)
    made = graphs(rng, 3, 200)
    labels = rng.integers(0, 3, len(made.arguments["inputs"]))
    PackedFolder.write(folder / "pack", [made.data(labels=labels), made.data(labels=labels[::-1].copy())])

    def learned():
        return bt.learn(PackedFolder.open(folder / "pack"), "piecewise", max_iterations=3, n_threads=1).weights

    expected = learned()
    for path in sorted((folder / "pack").iterdir()):
        yield Target(path, lambda: differ(learned(), expected))


def data_files(folder: Path) -> Iterator[Target]:
    """Graphs as JSON lines and as arrays, and columns of text: what is read must be fit to learn from."""
    rng = np.random.default_rng(3)
    nodes, edges, labels = rng.normal(size=(6, 2)).round(2), [[0, 1], [1, 2], [3, 4], [4, 5]], [0, 1, 0, 1, 1, 0]
    line = {"nodes": nodes[:3].tolist(), "edges": edges[:2], "labels": labels[:3], "name": "first"}
    other = {"nodes": nodes[3:].tolist(), "edges": [[0, 1], [1, 2]], "labels": labels[3:], "name": "second"}
    (folder / "graphs.jsonl").write_text(json.dumps(line) + "\n" + json.dumps(other) + "\n", encoding="utf-8")
    np.savez(
        folder / "graphs.npz",
        node_features=nodes,
        node_counts=[3, 3],
        edges=[[0, 1], [1, 2], [0, 1], [1, 2]],
        edge_counts=[2, 2],
        labels=labels,
    )
    (folder / "text.conll").write_text("Ann B-PER\nsees O\n\nBob B-PER\nLee I-PER\n. O\n" * 3, encoding="utf-8")
    for name, model in (("graphs.jsonl", "graph"), ("graphs.npz", "graph"), ("text.conll", "chain")):
        path = folder / name
        settings = RunSettings.of(with_defaults({"train": [str(path)], "model": model, "report": False}))

        def use(path=path, settings=settings, model=model):
            data = read_data([str(path)], settings)
            if model == "graph":
                bt.GraphCRF(method="piecewise", max_iterations=1).fit(data.X, data.y)
            else:
                bt.LinearChainCRF(method="piecewise", max_iterations=1).fit(data.X, data.y)
            return []

        yield Target(path, use)


def uai_files(folder: Path) -> Iterator[Target]:
    """Models and evidence of the UAI format: a file that is read says the same to a reader of our own."""
    rng = np.random.default_rng(4)
    cards, scopes = [2, 3, 2], [(0, 1), (1, 2), (2,), (0, 2)]
    tables = [rng.random([cards[v] for v in scope]).round(3) for scope in scopes]
    model = uai.UaiModel(np.array(cards), scopes, tables)
    path, seen = folder / "model.uai", folder / "model.uai.evid"
    uai.write_model(path, model)
    uai.write_evidence(seen, {0: 1, 2: 0})

    def use_model():
        read = uai.read_model(path)
        words = words_of(path)
        expected = log_partition_of(words)
        if prod(read.cardinalities.tolist()) > 100_000 or expected is None:
            return [] if expected is not None else ["read, though it does not keep to the format"]
        found = bt.infer(to_model(read), [], "exact").log_partition
        return [] if abs(found - expected) <= 1e-9 * (1 + abs(expected)) else [f"log Z {found}, expected {expected}"]

    def use_evidence():
        read = uai.read_evidence(seen, cards)
        numbers = [int(word) for word in words_of(seen)]
        if len(numbers) == 2 * numbers[0] + 2 and numbers[0] == 1:
            numbers = numbers[1:]
        pairs = dict(zip(numbers[1::2], numbers[2::2], strict=True))
        return [] if read == pairs and numbers[0] == len(pairs) else [f"evidence {read} from {numbers}"]

    yield Target(path, use_model)
    yield Target(seen, use_evidence)


def words_of(path: Path) -> list[str]:
    """Words of a file of text, comments left out."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return [word for line in lines for word in line.split("#")[0].split()]


def log_partition_of(words: list[str]) -> float | None:
    """log Z of a UAI model by enumeration; None where the words do not keep to the format."""
    try:
        rest = iter(words[1:])
        cards = [int(next(rest)) for _ in range(int(next(rest)))]
        scopes = [[int(next(rest)) for _ in range(int(next(rest)))] for _ in range(int(next(rest)))]
        total = np.ones(cards)
        for scope in scopes:
            shape = [cards[v] for v in scope]
            if int(next(rest)) != prod(shape) or len(set(scope)) < len(scope) or min(scope, default=0) < 0:
                return None
            values = np.array([float(next(rest)) for _ in range(prod(shape))]).reshape(shape)
            order = np.argsort(scope)
            spread = [cards[v] if v in scope else 1 for v in range(len(cards))]
            total = total * values.transpose(order).reshape(spread)
        if list(rest) or words[0] not in ("MARKOV", "BAYES"):
            return None
        return float(np.log(total.sum()))
    except (ValueError, StopIteration, IndexError, RuntimeError):
        return None


KINDS = {
    "model": model_files,
    "checkpoint": checkpoint_files,
    "pack": pack_files,
    "data": data_files,
    "uai": uai_files,
}


@pytest.fixture(scope="module", params=KINDS)
def targets(request, tmp_path_factory):
    return request.param, list(KINDS[request.param](tmp_path_factory.mktemp(request.param)))


@cases(sample=20, block=200, total=1220)
def test_damaged_files(numbers, targets, tally):
    kind, files = targets
    pristine = [target.path.read_bytes() for target in files]
    for number in numbers:
        rng = np.random.default_rng([zlib.crc32(kind.encode()), number])
        k = number % len(files)
        target, content = files[k], pristine[k]
        damaged = mutated(content, rng)
        target.path.write_bytes(damaged)
        name = f"{kind} file {number} ({target.path.name})"
        call = f"pytest tests/attack/test_files.py -k {kind} --case {number}"
        with tally.run("files", name, call) as problems:
            if target.path.suffix == ".conll":
                # Tags that are repaired are said to be, and so are tags that mark nothing.
                warnings.filterwarnings("ignore", ".* (not well-formed|mark no entities)")
            try:
                with little_memory():
                    problems += target.use()
            except (ValueError, TypeError, OSError) as refusal:
                tally.counts["files: refused in words"] += 1
                if not str(refusal).strip():
                    problems.append(f"{type(refusal).__name__} without a word")
        target.path.write_bytes(content)


def test_judges_read_intact_files(targets):
    """What is not damaged passes."""
    for target in targets[1]:
        assert target.use() == []


# --- files that were changed on purpose and signed anew ---

#: What a forger writes in place of a value.
VALUES = (None, True, False, -1, 0, 1, 3, 7, 0.5, -2.5, 1e308, float("inf"), "", "x", "exact", [], [1, 2], {}, {"a": 1})


def places(document: object) -> list[tuple[dict, object]]:
    """Every value of a document, by the container that holds it."""
    inside = document.items() if isinstance(document, dict) else enumerate(document)
    found = []
    for key, value in inside:
        found.append((document, key))
        if isinstance(value, dict | list):
            found += places(value)
    return found


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return list(model_files(tmp_path_factory.mktemp("forged")))


@cases(sample=20, block=200, total=620)
def test_forged_models(numbers, models, tally):
    """A file that is loaded predicts, whatever its parameters were made to be; else loading refuses it in words."""
    for number in numbers:
        rng = np.random.default_rng([5, number])
        target = models[number % len(models)]
        content = target.path.read_bytes()

        def forge(document, _, rng=rng):
            options = places({key: document[key] for key in ("params", "attributes")})
            where, key = options[int(rng.integers(2, len(options)))]
            where[key] = VALUES[int(rng.integers(len(VALUES)))]

        rewritten(target.path, forge)
        call = f"pytest tests/attack/test_files.py -k forged --case {number}"
        with tally.run("forged", f"forged file {number} ({target.path.name})", call) as problems, little_memory():
            try:
                target.load()
            except (ValueError, TypeError) as refusal:
                tally.counts["forged: refused in words"] += 1
                problems += [] if str(refusal).strip() else ["refused without a word"]
            else:
                try:
                    target.use()  # may predict otherwise, but must predict
                except ValueError as refusal:
                    if "give skips= to this call" not in str(refusal):  # as skips=None, which is allowed, asks for
                        raise
        target.path.write_bytes(content)
