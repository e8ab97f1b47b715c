"""A small convolutional network with a loopy grid CRF on top, against independent outputs and against exact chains.

``python benchmarks/neural_tutorial.py [--seeds 5] [--epochs 25] [--device cpu] [--json PATH]``

The task is segmentation of noisy synthetic images: smooth regions of four labels, each label with a mean grey value,
under strong noise. The same network (two 3 x 3 convolutions) gives the scores of the labels in all models:

independent   a softmax per pixel (cross-entropy);
rows          a chain along each row, with a learned table: its likelihood and its marginals are exact;
grid, convex  a 4-connected grid with a learned table for horizontal and one for vertical edges: loopy, trained with a
              concave entropy and tested with the same;
grid, camel0  the same grid with CAMEL(0), tested with the same;
grid, cccp    the same grid with Bethe's entropy, relinearised five times a visit; tested with belief propagation.

Every seed draws its own images and its own initial network, the same for all models.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import numpy as np
import torch
from scipy.ndimage import gaussian_filter
from scipy.stats import t as student

from bactrian.torch import CamelLoss, GraphBatch

SIDE, LABELS, BATCH = 16, 4, 10
MODELS = ("independent", "rows", "grid, convex", "grid, camel0", "grid, cccp")


def images(rng: np.random.Generator, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Noisy images (count, 1, SIDE, SIDE) and their labels (count, SIDE * SIDE)."""
    fields = gaussian_filter(rng.normal(size=(count, LABELS, SIDE, SIDE)), (0, 0, 2.0, 2.0))
    labels = fields.argmax(axis=1)
    grey = labels / (LABELS - 1) + 0.6 * rng.normal(size=labels.shape)
    return torch.from_numpy(grey[:, None]).float(), torch.from_numpy(labels.reshape(count, -1))


def grid_edges() -> tuple[np.ndarray, np.ndarray]:
    """Edges of the grid, and their type: 0 along rows, 1 along columns."""
    pixel = np.arange(SIDE * SIDE).reshape(SIDE, SIDE)
    across = np.stack([pixel[:, :-1].ravel(), pixel[:, 1:].ravel()], axis=1)
    down = np.stack([pixel[:-1].ravel(), pixel[1:].ravel()], axis=1)
    return np.concatenate([across, down]), np.repeat([0, 1], [len(across), len(down)])


class Model(torch.nn.Module):
    """The network, the tables, and the loss that joins them."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.network = torch.nn.Sequential(
            torch.nn.Conv2d(1, 8, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(8, LABELS, 3, padding=1)
        )
        edges, types = grid_edges()
        if kind == "rows":
            edges, types = edges[types == 0], types[types == 0]
        self.tables = torch.nn.Parameter(torch.zeros(int(types.max()) + 1, LABELS, LABELS))
        self._edges, self._types = edges, types
        self._batches: dict[int, GraphBatch] = {}
        # On a chain the convex entropy is the exact one.
        method = {"rows": "convex", "independent": "piecewise"}.get(kind) or kind.removeprefix("grid, ")
        self.inference = method if method in ("convex", "camel0") else "bp"
        self.loss = CamelLoss(method, node_factors="edges", tolerance=1e-4, max_sweeps=100)

    def graphs(self, count: int) -> GraphBatch:
        """The graphs of ``count`` images, made once."""
        if count not in self._batches:
            self._batches[count] = GraphBatch.copies(self._edges, SIDE * SIDE, count, edge_types=self._types)
        return self._batches[count]

    def scores(self, batch: torch.Tensor) -> torch.Tensor:
        """(pixels, LABELS) scores of all pixels of a batch."""
        return self.network(batch).permute(0, 2, 3, 1).reshape(-1, LABELS)

    def forward(self, batch: torch.Tensor, labels: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """The loss, a mean over pixels."""
        scores, truth = self.scores(batch), labels.reshape(-1)
        if self.kind == "independent":
            return torch.nn.functional.cross_entropy(scores, truth)
        return self.loss(scores, self.tables, self.graphs(len(batch)), truth, ids) / SIDE**2

    @torch.no_grad()
    def marginals(self, batch: torch.Tensor) -> torch.Tensor:
        """(pixels, LABELS)."""
        scores = self.scores(batch)
        if self.kind == "independent":
            return torch.softmax(scores, 1)
        return self.loss.marginals(scores, self.tables, self.graphs(len(batch)), method=self.inference).nodes


def fit_and_score(kind: str, seed: int, epochs: int, device: str) -> dict[str, float]:
    rng = np.random.default_rng(seed)
    train, train_labels = (part.to(device) for part in images(rng, 40))
    test, test_labels = (part.to(device) for part in images(rng, 100))
    torch.manual_seed(seed)
    model = Model(kind).to(device)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
    begun = time.perf_counter()
    for _ in range(epochs):
        for chosen in torch.from_numpy(rng.permutation(len(train))).split(BATCH):
            optimiser.zero_grad()
            model(train[chosen], train_labels[chosen], chosen).backward()
            optimiser.step()
    seconds = time.perf_counter() - begun
    marginals = model.marginals(test)
    truth = test_labels.reshape(-1)
    log_loss = -marginals.gather(1, truth[:, None]).clamp_min(1e-12).log().mean()
    return {
        "accuracy": 100.0 * float((marginals.argmax(1) == truth).double().mean()),
        "log loss": float(log_loss),
        "seconds": seconds,
    }


def interval(values: list[float]) -> tuple[float, float]:
    """Mean and half width of the 95 % t-interval."""
    half = student.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values))
    return float(np.mean(values)), float(half)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=25)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    found: dict[str, Any] = {"epochs": arguments.epochs, "seeds": arguments.seeds, "device": arguments.device}
    for kind in MODELS:
        rows = [fit_and_score(kind, seed, arguments.epochs, arguments.device) for seed in range(arguments.seeds)]
        found[kind] = rows
        texts = [f"{name} {m:.3f} ± {h:.3f}" for name in rows[0] for m, h in [interval([r[name] for r in rows])]]
        print(f"{kind:13s}", ", ".join(texts), flush=True)
    for kind in MODELS[1:]:
        for name in ("accuracy", "log loss"):
            gains = [a[name] - b[name] for a, b in zip(found[kind], found["independent"], strict=True)]
            mean, half = interval(gains)
            print(f"{kind} less independent, {name}: {mean:+.3f} ± {half:.3f}", flush=True)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(found, file, indent=1)


if __name__ == "__main__":
    main()
