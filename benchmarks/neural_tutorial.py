"""Networks with and without a CRF on top: pictures, a citation graph, and names in newspaper articles.

``python benchmarks/neural_tutorial.py pictures|cora|tagger [--seeds 5] [--models ...] [--device cpu] [--json PATH]``

pictures  Photographs that come with scikit-image, in grey; the label of a pixel is which quarter of the smoothed
          picture's brightness it is in. A network of two 3 x 3 convolutions sees tiles of 24 x 24 pixels under strong
          noise, in each of which a square is covered by noise alone, and in training blocks of labels are void. It is
          trained on tiles of some photographs and tested on tiles of others.
cora      Cora (``BACTRIAN_DATA``), its 140 labelled nodes, tested on its 1,000. The network sees a node's words and the
          mean of its neighbours'; the graph is that of citations, the other labels are unknown in training.
tagger    CoNLL-2003 (``BACTRIAN_DATA``): an embedding of words and of how they are written, and an LSTM both ways over
          sentences, trained on 400 articles and tested on testb. Chains go through an article; skip edges join a word
          that begins with a capital with the same word where it comes next in the article.

Every seed draws its own data (pictures, articles), initial network and order, the same for all models. Accuracy is in
%, log loss is that of the marginals, ECE the expected calibration error of the most probable label in 15 bins, F1 that
of whole names. Models of the same name have the same network, steps and learning rate. A file given as ``--json`` keeps
what was run, and is gone on from.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from scipy.ndimage import gaussian_filter
from scipy.stats import t as student
from torch import nn

from bactrian.text import allowed_transitions, convert, entity_scores, read_columns, skip_edges
from bactrian.torch import CRF

SIDE, LABELS = 24, 4
LEARNING, JUDGED = ("camera", "astronaut", "coffee"), ("cat", "rocket", "coins")


def scored(marginals: torch.Tensor, truth: torch.Tensor) -> dict[str, float]:
    """Figures of marginals (n, K)."""
    confidence, guess = marginals.max(1)
    right = (guess == truth).double()
    bins = (15 * confidence).long().clamp_max(14)
    gaps = torch.zeros(15, dtype=torch.float64).index_add_(0, bins, right - confidence.double())
    log_loss = -marginals.gather(1, truth[:, None]).clamp_min(1e-12).log().mean()
    error = 100.0 * float(gaps.abs().sum()) / len(truth)
    return {"accuracy": 100.0 * float(right.mean()), "log loss": float(log_loss), "ECE": error}


# --- pictures ---


def photograph(name: str) -> tuple[np.ndarray, np.ndarray]:
    """A photograph in grey, standardised and a third as large, and its labels."""
    import skimage.color
    import skimage.data

    grey = getattr(skimage.data, name)()
    grey = skimage.color.rgb2gray(grey) if grey.ndim == 3 else grey / 255.0
    grey = grey[: grey.shape[0] // 3 * 3, : grey.shape[1] // 3 * 3]
    small = grey.reshape(grey.shape[0] // 3, 3, -1, 3).mean((1, 3))
    smooth = gaussian_filter(small, 2.0)
    labels = np.searchsorted(np.quantile(smooth, [0.25, 0.5, 0.75]), smooth)
    return (small - small.mean()) / small.std(), labels


def tiles(names: tuple[str, ...], count: int, rng: np.random.Generator, *, void: bool):
    photographs = [photograph(name) for name in names]
    grey, labels = np.empty((count, 1, SIDE, SIDE)), np.empty((count, SIDE, SIDE), dtype=np.int64)
    for i in range(count):
        picture, truth = photographs[i % len(names)]
        y, x = (rng.integers(size - SIDE) for size in picture.shape)
        grey[i, 0] = picture[y : y + SIDE, x : x + SIDE] + 1.0 * rng.normal(size=(SIDE, SIDE))
        labels[i] = truth[y : y + SIDE, x : x + SIDE]
        y, x = rng.integers(SIDE - 6, size=2)
        grey[i, 0, y : y + 6, x : x + 6] = 1.4 * rng.normal(size=(6, 6))
        if void:
            y, x = rng.integers(SIDE - 8, size=2)
            labels[i, y : y + 8, x : x + 8] = -100
    return torch.from_numpy(grey).float(), torch.from_numpy(labels)


class Pictures(nn.Module):
    """Two convolutions, and what is on top."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.network = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, LABELS, 3, padding=1))
        if kind == "rows":
            self.crf = CRF(LABELS)
        elif kind != "independent":
            self.crf = CRF(LABELS, "grid", kind.removeprefix("grid, "), tolerance=1e-3)

    def scores(self, grey):
        scores = self.network(grey).permute(0, 2, 3, 1)
        return scores.flatten(0, 1) if self.kind == "rows" else scores

    def loss(self, grey, labels):
        if self.kind == "independent":
            return nn.functional.cross_entropy(self.network(grey), labels)
        labels = labels.flatten(0, 1) if self.kind == "rows" else labels
        return self.crf.loss(self.scores(grey), labels) / (SIDE if self.kind == "rows" else SIDE**2)

    @torch.no_grad()
    def marginals(self, grey):
        scores = self.scores(grey)
        found = torch.softmax(scores, -1) if self.kind == "independent" else self.crf.marginals(scores)
        return found.reshape(-1, LABELS)


def pictures(kind: str, seed: int, device: str) -> dict[str, float]:
    rng = np.random.default_rng(seed)
    grey, labels = (part.to(device) for part in tiles(LEARNING, 60, rng, void=True))
    other, truth = (part.to(device) for part in tiles(JUDGED, 90, rng, void=False))
    torch.manual_seed(seed)
    model = Pictures(kind).to(device)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
    begun = time.process_time()
    for _ in range(20):
        for chosen in torch.from_numpy(rng.permutation(len(grey))).split(10):
            optimiser.zero_grad()
            model.loss(grey[chosen], labels[chosen]).backward()
            optimiser.step()
    seconds = time.process_time() - begun
    return {**scored(model.marginals(other).cpu(), truth.flatten().cpu()), "CPU s": seconds}


# --- a citation graph ---


def cora(kind: str, seed: int, device: str) -> dict[str, float]:
    file = np.load(Path(os.environ["BACTRIAN_DATA"]) / "cora" / "cora.npz")
    words = sp.csr_array((file["data"], file["indices"], file["indptr"]), shape=file["shape"]).toarray()
    words = words / np.maximum(words.sum(1, keepdims=True), 1.0)
    edges, n = file["edges"], len(words)
    both = np.concatenate([edges, edges[:, ::-1]])
    mean = sp.csr_array((np.ones(len(both)), both.T), shape=(n, n))
    mean = np.asarray((mean @ words) / np.maximum(mean.sum(1), 1.0)[:, None])
    inputs = torch.from_numpy(np.concatenate([words, mean], 1)).float().to(device)
    truth = torch.from_numpy(file["labels"].astype(np.int64)).to(device)
    train, test = (torch.from_numpy(file[name].astype(np.int64)) for name in ("train", "test"))
    labels = torch.full_like(truth, -100)
    labels[train] = truth[train]
    torch.manual_seed(seed)
    network = nn.Sequential(
        nn.Dropout(0.5), nn.Linear(inputs.shape[1], 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 7)
    )
    crf = CRF(7, "graph", kind.removeprefix("graph, "), tolerance=1e-3) if kind != "independent" else None
    model = nn.ModuleList([network] if crf is None else [network, crf]).to(device)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    edge_index = torch.from_numpy(both.T.copy()).to(device)
    begun = time.process_time()
    for _ in range(60):
        optimiser.zero_grad()
        scores = network(inputs)
        if crf is None:
            loss = nn.functional.cross_entropy(scores, labels)
        else:
            loss = crf.loss(scores, labels, edges=edge_index) / len(train)
        loss.backward()
        optimiser.step()
    seconds = time.process_time() - begun
    network.eval()
    with torch.no_grad():
        scores = network(inputs)
        found = torch.softmax(scores, 1) if crf is None else crf.marginals(scores, edges=edge_index)
    return {**scored(found[test].cpu(), truth[test].cpu()), "CPU s": seconds}


# --- names in articles ---


def articles(part: str) -> list[Any]:
    """Articles with tags in BIO."""
    documents = read_columns(Path(os.environ["BACTRIAN_DATA"]) / "conll2003" / f"eng.{part}")
    return [
        replace(one, tags=convert(one.tags, "IOB1", "BIO", sentence_starts=one.sentence_starts))
        for one in documents
        if len(one.words) > 1
    ]


def written(word: str) -> int:
    """How a word is written: in small letters, with a capital, in capitals, with figures, or otherwise."""
    tests = (str.islower, str.istitle, str.isupper, lambda w: any(map(str.isdigit, w)))
    return next((i for i, test in enumerate(tests) if test(word)), len(tests))


class Articles:
    """Articles as tensors: sentences for the network, articles for the CRF."""

    def __init__(self, documents: list[Any], words: dict[str, int], tags: list[str], device: str) -> None:
        self.documents = documents
        lengths = torch.tensor([len(one.words) for one in documents])
        self.mask = (torch.arange(int(lengths.max())) < lengths[:, None]).to(device)
        inputs, labels, sizes, skips = [], [], [], []
        for number, one in enumerate(documents):
            inputs += [(words.get(word.lower(), 0), written(word)) for word in one.words]
            labels += [tags.index(tag) for tag in one.tags]
            sizes += np.diff(np.append(one.sentence_starts, len(one.words))).tolist()
            skips.append(skip_edges(one.words) + self.mask.shape[1] * number)
        self.inputs = torch.tensor(inputs, device=device).split(sizes)
        self.flat = torch.tensor(labels, device=device)
        self.labels = torch.zeros(self.mask.shape, dtype=torch.long, device=device)
        self.labels[self.mask] = self.flat
        self.skips = torch.from_numpy(np.concatenate(skips).T.copy()).to(device)


class Tagger(nn.Module):
    """An embedding, an LSTM both ways, and what is on top."""

    def __init__(self, kind: str, n_words: int, tags: list[str]) -> None:
        super().__init__()
        self.kind, self.tags = kind, tags
        self.words, self.writing, self.drop = nn.Embedding(n_words, 32), nn.Embedding(5, 8), nn.Dropout(0.5)
        self.lstm = nn.LSTM(40, 32, batch_first=True, bidirectional=True)
        self.output = nn.Linear(64, len(tags))
        if kind != "independent":
            method, skips = ("convex", 0) if kind == "chain" else (kind.removeprefix("skips, "), 1)
            self.crf = CRF(
                len(tags), method=method, constraints=allowed_transitions(tags), edge_types=skips, tolerance=1e-3
            )

    def scores(self, batch: Articles):
        """(N, K) of the tokens of all articles."""
        lengths = [len(sentence) for sentence in batch.inputs]
        inputs = torch.cat(batch.inputs)
        inputs = self.drop(torch.cat([self.words(inputs[:, 0]), self.writing(inputs[:, 1])], 1)).split(lengths)
        packed = nn.utils.rnn.pack_sequence(inputs, enforce_sorted=False)
        found, _ = nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        inside = torch.arange(found.shape[1]) < torch.tensor(lengths)[:, None]
        return self.output(self.drop(found[inside.to(found.device)]))

    def given(self, scores, batch: Articles):
        """What the layer takes of (N, K) scores."""
        padded = scores.new_zeros(*batch.mask.shape, len(self.tags))
        padded[batch.mask] = scores
        return padded, {"edges": batch.skips} if self.kind != "chain" else {}

    def loss(self, batch: Articles):
        scores = self.scores(batch)
        if self.kind == "independent":
            return nn.functional.cross_entropy(scores, batch.flat)
        padded, edges = self.given(scores, batch)
        return self.crf.loss(padded, batch.labels, batch.mask, reduction="sum", **edges) / len(scores)

    @torch.no_grad()
    def judged(self, batch: Articles) -> dict[str, float]:
        scores = self.scores(batch)
        if self.kind == "independent":
            found = torch.softmax(scores, 1)
            best = found.argmax(1)
        else:
            padded, edges = self.given(scores, batch)
            found = self.crf.marginals(padded, batch.mask, **edges)[batch.mask]
            best = self.crf.decode(padded, batch.mask, **edges)[batch.mask]
        guessed = np.array(self.tags)[best.cpu().numpy()]
        ends = np.cumsum([len(one.words) for one in batch.documents])[:-1]
        f1 = entity_scores(
            [one.tags for one in batch.documents], np.split(guessed, ends),
            sentence_starts=[one.sentence_starts for one in batch.documents],
        ).micro.f1  # fmt: skip
        return {"F1": 100.0 * f1, **scored(found.cpu(), batch.flat.cpu())}


def tagger(kind: str, seed: int, device: str) -> dict[str, float]:
    rng = np.random.default_rng(seed)
    documents, others = articles("train"), articles("testb")
    documents = [documents[i] for i in rng.permutation(len(documents))[:400]]
    counts = Counter(word.lower() for one in documents for word in one.words)
    words = {word: i + 1 for i, word in enumerate(sorted(word for word, n in counts.items() if n > 1))}
    tags = sorted({tag for one in documents for tag in one.tags})
    documents.sort(key=lambda one: len(one.words))
    batches = [Articles(documents[i : i + 10], words, tags, device) for i in range(0, len(documents), 10)]
    torch.manual_seed(seed)
    model = Tagger(kind, len(words) + 1, tags).to(device)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    begun = time.process_time()
    for _ in range(8):
        for i in rng.permutation(len(batches)):
            optimiser.zero_grad()
            model.loss(batches[i]).backward()
            optimiser.step()
    seconds = time.process_time() - begun
    return {**model.eval().judged(Articles(others, words, tags, device)), "CPU s": seconds}


TASKS: dict[str, tuple[Callable[[str, int, str], dict[str, float]], tuple[str, ...]]] = {
    "pictures": (pictures, ("independent", "rows", "grid, convex", "grid, camel0", "grid, cccp")),
    "cora": (cora, ("independent", "graph, convex", "graph, camel0", "graph, cccp")),
    "tagger": (tagger, ("independent", "chain", "skips, convex", "skips, camel0", "skips, cccp")),
}


def interval(values: list[float]) -> tuple[float, float]:
    """Mean and half width of the 95 % t-interval."""
    half = student.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values))
    return float(np.mean(values)), float(half)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=[*TASKS])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--models", nargs="*", help="all by default; the first is what the others are compared with")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    run, models = TASKS[arguments.task]
    models = tuple(arguments.models or models)
    file = arguments.json
    kept: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file and file.exists() else {}
    found: dict[str, list[dict[str, float]]] = kept.setdefault(arguments.task, {})
    for seed in range(arguments.seeds):
        for kind in models:
            rows = found.setdefault(kind, [])
            if len(rows) > seed:
                continue
            rows.append(run(kind, seed, arguments.device))
            print(f"seed {seed}, {kind}:", ", ".join(f"{n} {v:.3f}" for n, v in rows[-1].items()), flush=True)
            if file:
                file.write_text(json.dumps(kept, indent=1), encoding="utf-8")
    for kind in models:
        rows = found[kind][: arguments.seeds]
        texts = [f"{name} {m:.3f} ± {h:.3f}" for name in rows[0] for m, h in [interval([r[name] for r in rows])]]
        print(f"{kind:13s}", ", ".join(texts), flush=True)
        for name in [name for name in rows[0] if name not in ("ECE", "CPU s")]:
            gains = [a[name] - b[name] for a, b in zip(rows, found[models[0]], strict=False)]
            mean, half = interval(gains)
            print(f"    less {models[0]}, {name}: {mean:+.3f} ± {half:.3f}", flush=True)


if __name__ == "__main__":
    main()
