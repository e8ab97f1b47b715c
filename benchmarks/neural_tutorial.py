"""Networks with and without a CRF on top: pictures, and a citation graph.

``python benchmarks/neural_tutorial.py pictures|cora [--seeds 5] [--models ...] [--device cpu] [--json PATH]``

pictures  Photographs that come with scikit-image, in grey; the label of a pixel is which quarter of the smoothed
          picture's brightness it is in. A network of two 3 x 3 convolutions sees tiles of 24 x 24 pixels under strong
          noise, in each of which a square is covered by noise alone, and in training blocks of labels are void. It is
          trained on tiles of some photographs and tested on tiles of others.
cora      Cora (``BACTRIAN_DATA``), its 140 labelled nodes, tested on its 1,000. The network sees a node's words and the
          mean of its neighbours'; the graph is that of citations, the other labels are unknown in training.

Every seed draws its own data (pictures), initial network and order, the same for all models. Accuracy is in %, log loss
is that of the marginals, ECE the expected calibration error of the most probable label in 15 bins. Models of the same
name have the same network, steps and learning rate.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from scipy.ndimage import gaussian_filter
from scipy.stats import t as student
from torch import nn

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


TASKS: dict[str, tuple[Callable[[str, int, str], dict[str, float]], tuple[str, ...]]] = {
    "pictures": (pictures, ("independent", "rows", "grid, convex", "grid, camel0", "grid, cccp")),
    "cora": (cora, ("independent", "graph, convex", "graph, camel0", "graph, cccp")),
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
    parser.add_argument("--json")
    arguments = parser.parse_args()
    run, models = TASKS[arguments.task]
    models = tuple(arguments.models or models)
    found: dict[str, Any] = {"task": arguments.task, "seeds": arguments.seeds, "device": arguments.device}
    for kind in models:
        rows = [run(kind, seed, arguments.device) for seed in range(arguments.seeds)]
        found[kind] = rows
        texts = [f"{name} {m:.3f} ± {h:.3f}" for name in rows[0] for m, h in [interval([r[name] for r in rows])]]
        print(f"{kind:13s}", ", ".join(texts), flush=True)
        for name in ("accuracy", "log loss"):
            gains = [a[name] - b[name] for a, b in zip(rows, found[models[0]], strict=True)]
            mean, half = interval(gains)
            print(f"    less independent, {name}: {mean:+.3f} ± {half:.3f}", flush=True)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(found, file, indent=1)


if __name__ == "__main__":
    main()
