"""The layer ``bactrian.torch.CRF`` on chains beside pytorch-crf, on one thread of a CPU.

``python benchmarks/bench_crf_cpu.py [--repeats 30]``

Loss and gradient of a batch in float32: 32 sequences of 50 tokens with 10 labels, whole, or masked to lengths
from 1 to 50. Steps of the two alternate; times are medians of CPU time.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
import torchcrf

from bactrian.torch import CRF

B, T, K = 32, 50, 10


def medians(steps: list[Callable[[], Any]], repeats: int) -> list[float]:
    times = torch.zeros(repeats, len(steps))
    for row in range(-3, repeats):
        for column, step in enumerate(steps):
            begun = time.process_time()
            step()
            if row >= 0:
                times[row, column] = 1e3 * (time.process_time() - begun)
    return times.median(0).values.tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=30)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    torch.manual_seed(0)
    ours, theirs = CRF(K), torchcrf.CRF(K, batch_first=True)
    theirs.load_state_dict(ours.state_dict())
    scores, labels = torch.randn(B, T, K, requires_grad=True), torch.randint(K, (B, T))
    whole = torch.ones(B, T, dtype=torch.bool)
    cut = torch.arange(T) < torch.linspace(1, T, B).long()[:, None]
    for name, mask in (("whole sequences", None), ("lengths from 1 to 50", cut)):
        filled = whole if mask is None else mask

        def mine(mask=mask):
            return torch.autograd.grad(ours.loss(scores, labels, mask, reduction="sum"), (scores, *ours.parameters()))

        def other(filled=filled):
            parameters = [theirs.get_parameter(name) for name, _ in ours.named_parameters()]
            return torch.autograd.grad(-theirs(scores, labels, filled), (scores, *parameters))

        gap = max(float((a - b).abs().max()) for a, b in zip(mine(), other(), strict=True))
        ms = medians([mine, other], repeats)
        print(
            f"{name}: {ms[0]:.2f} ms, pytorch-crf {ms[1]:.2f}, ratio {ms[0] / ms[1]:.2f}; gradients differ by {gap:.1e}"
        )


if __name__ == "__main__":
    main()
