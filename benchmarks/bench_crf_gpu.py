"""The layer ``bactrian.torch.CRF`` on a GPU: equal to the CPU, and how long it takes beside plain PyTorch.

``python benchmarks/bench_crf_gpu.py [--quick] [--json PATH]``

Chains: forward and backward of the loss, against a forward algorithm in plain PyTorch under ``torch.compile``. Grids:
the same, against ``CamelLoss`` with the graphs made beforehand. Times are medians of CUDA events, in ms. Where Numba is
not installed, ``NUMBA_DISABLE_JIT=1`` runs what prepares graphs as Python.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch

from bactrian.torch import CRF, CamelLoss, GraphBatch
from bactrian.vision import neighbours

TOKENS = 50
CHAINS = [(32, 10), (256, 10), (4096, 10), (32, 25), (4096, 25), (32, 50), (256, 50), (4096, 50)]


def median_ms(step: Callable[[], Any], repeats: int = 40) -> float:
    for _ in range(5):
        step()
    times = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        step()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return float(torch.tensor(times).median())


def plain(scores: torch.Tensor, labels: torch.Tensor, between: torch.Tensor, first: torch.Tensor, last: torch.Tensor):
    """The forward algorithm, one operation after the other."""
    alpha = first + scores[:, 0]
    for t in range(1, scores.shape[1]):
        alpha = torch.logsumexp(alpha[:, :, None] + between, 1) + scores[:, t]
    observed = scores.gather(2, labels[:, :, None]).sum((1, 2)) + between[labels[:, :-1], labels[:, 1:]].sum(1)
    return (torch.logsumexp(alpha + last, 1) - observed - first[labels[:, 0]] - last[labels[:, -1]]).mean()


def check_chains() -> None:
    """Loss, gradients, marginals and labels on the GPU against the CPU in float64."""
    torch.manual_seed(0)
    worst = {}
    for k, dtype, scale, forbidden, masked in (
        (5, torch.float64, 1.0, False, True), (10, torch.float32, 1.0, False, True),
        (50, torch.float32, 1.0, False, True), (10, torch.float32, 1.0, False, False),
        (9, torch.float32, 1.0, True, True), (4, torch.float32, 60.0, False, True),
        (100, torch.float32, 1.0, True, True),
    ):  # fmt: skip
        allowed = torch.rand(k, k) < 0.6
        allowed[0], allowed[:, 0] = True, True
        slow = CRF(k, constraints=allowed if forbidden else None).double()
        with torch.no_grad():
            for parameter in slow.parameters():
                parameter.mul_(10.0 * scale)
        fast = CRF(k, constraints=allowed if forbidden else None).to("cuda", dtype)
        fast.load_state_dict(slow.state_dict())
        scores, labels = scale * torch.randn(300, 20, k, dtype=torch.float64), torch.zeros(300, 20, dtype=torch.long)
        labels[::2, ::3] = -100
        labels[:, 1] = -100
        mask = torch.rand(300, 20) < 0.8 if masked else None
        if mask is not None:
            mask[3] = False
        found = []
        for crf, device in ((slow, "cpu"), (fast, "cuda")):
            leaf = scores.to(device, next(crf.parameters()).dtype, copy=True).requires_grad_()
            there = None if mask is None else mask.to(device)
            loss = crf.loss(leaf, labels.to(device), there, reduction="none")
            loss.backward(torch.arange(1.0, 301.0, device=device, dtype=loss.dtype))
            parts = [loss, leaf.grad, *(p.grad for p in crf.parameters()), crf.marginals(leaf, there)]
            labelling = crf.decode(leaf, there)
            found.append([part.detach().double().cpu() for part in parts] + [labelling.cpu()])
        errors = [
            float((a - b).abs().max() / (1.0 + a.abs().max())) for a, b in zip(*(f[:-1] for f in found), strict=True)
        ]
        same = float((found[0][-1] == found[1][-1]).double().mean())
        worst[f"K {k} {dtype} x{scale:g}{' forbidden' if forbidden else ''}"] = max(errors)
        print(f"chains K={k:3d} {dtype} scale {scale:3g} forbidden {forbidden!s:5} mask {masked!s:5}: largest relative "
              f"error {max(errors):.1e}, labels the same {same:.4f}", flush=True)  # fmt: skip
        assert max(errors) < (1e-10 if dtype is torch.float64 else 2e-4), errors
    crf, scores = CRF(10).cuda(), torch.randn(64, 50, 10, device="cuda", requires_grad=True)
    labels = torch.randint(10, (64, 50), device="cuda")
    torch.cuda.set_sync_debug_mode("warn")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        crf.loss(scores, labels).backward()
        with_mask = len(caught)
        crf.loss(scores, labels, torch.rand(64, 50, device="cuda") < 0.8).backward()
    torch.cuda.set_sync_debug_mode("default")
    print("host synchronisations of a step:", with_mask, "and with a mask", len(caught) - with_mask)
    torch.use_deterministic_algorithms(True)
    both = [torch.autograd.grad(crf.loss(scores, labels), (scores, *crf.parameters())) for _ in range(2)]
    print("the same twice:", all(torch.equal(a, b) for a, b in zip(*both, strict=True)))
    torch.use_deterministic_algorithms(False)
    held = []
    for step in range(1000):
        torch.autograd.grad(crf.loss(scores, labels), scores)
        if step in (10, 999):
            held.append(torch.cuda.memory_allocated())
    print("memory after 10 and 1,000 steps:", *held)
    bad = labels.clone()
    bad[3, 4] = 10
    try:
        crf.loss(scores, bad)
    except ValueError as error:
        print("refused:", error)


def check_grids() -> None:
    """Loss, gradients, and derivatives of marginals on the GPU against the CPU, visit after visit."""
    torch.manual_seed(0)
    for method, neighbours_, shape, reduction in (
        ("convex", 4, (3, 12, 9), "mean"), ("convex", 8, (3, 12, 9), "none"), ("camel0", 4, (3, 12, 9), "sum"),
        ("convex", 6, (2, 5, 6, 4), "mean"), ("cccp", 4, (3, 12, 9), "mean"),
    ):  # fmt: skip
        slow = CRF(4, "grid", method, neighbours=neighbours_).double()
        fast = CRF(4, "grid", method, neighbours=neighbours_).double().cuda()
        worst = 0.0
        for visit in range(4):
            with torch.no_grad():
                for one, other in zip(slow.parameters(), fast.parameters(), strict=True):
                    other.copy_(one.normal_())
            scores, labels = torch.randn(*shape, 4, dtype=torch.float64), torch.randint(4, shape)
            labels[torch.rand(shape) < 0.2 * visit] = -100
            mask = torch.rand(shape) < 0.8 if visit == 3 else None
            found = []
            for crf, device in ((slow, "cpu"), (fast, "cuda")):
                leaf = scores.to(device, copy=True).requires_grad_()
                there = None if mask is None else mask.to(device)
                loss = crf.loss(leaf, labels.to(device), there, reduction=reduction)
                weigh = torch.arange(1.0, loss.numel() + 1, device=device, dtype=loss.dtype).view(loss.shape)
                parts = [loss, *torch.autograd.grad((loss * weigh).sum(), (leaf, *crf.parameters()))]
                if method != "cccp":
                    marginals = crf.marginals(leaf, there)
                    parts += [marginals, torch.autograd.grad(marginals.square().sum(), leaf)[0]]
                found.append([part.detach().cpu() for part in parts])
            worst = max(
                [worst, *(float((a - b).abs().max() / (1 + a.abs().max())) for a, b in zip(*found, strict=True))]
            )
        print(f"grids {method} {neighbours_} neighbours, {reduction}: largest relative error {worst:.1e}", flush=True)
        assert worst < 1e-6


def chains(configurations: list[tuple[int, int]]) -> list[dict[str, float]]:
    rows = []
    for b, k in configurations:
        torch._dynamo.reset()
        crf = CRF(k).cuda()
        scores = torch.randn(b, TOKENS, k, device="cuda", requires_grad=True)
        labels = torch.randint(k, (b, TOKENS), device="cuda")
        tables = [crf.transitions, crf.start_transitions, crf.end_transitions]
        compiled = torch.compile(plain, dynamic=False)

        def ours(crf=crf, scores=scores, labels=labels, tables=tables):
            return torch.autograd.grad(crf.loss(scores, labels), [scores, *tables])

        def theirs(compiled=compiled, scores=scores, labels=labels, tables=tables):
            return torch.autograd.grad(compiled(scores, labels, *tables), [scores, *tables])

        begun = time.perf_counter()
        gap = max(float((a - c).abs().max()) for a, c in zip(ours(), theirs(), strict=True))
        seconds = time.perf_counter() - begun
        times = [[median_ms(step, 20) for step in (ours, theirs)] for _ in range(3)]
        mine, other = (sorted(column)[1] for column in zip(*times, strict=True))
        rows.append({"B": b, "K": k, "ours": mine, "compiled": other, "ratio": mine / other})
        print(f"B {b:5d} K {k:3d}: {mine:7.3f} ms, compiled {other:7.3f}, ratio {mine / other:5.2f}; gradients differ "
              f"by {gap:.1e}, compiled in {seconds:.0f} s", flush=True)  # fmt: skip
    return rows


def grids(sizes: list[tuple[int, int, int]]) -> list[dict[str, float]]:
    rows = []
    for count, side, k in sizes:
        torch.manual_seed(0)
        crf = CRF(k, "grid", tolerance=1e-4).cuda()
        crf.tables.data.copy_(torch.eye(k) + 0.1 * torch.randn(2, k, k))
        scores = torch.randn(count, side, side, k, device="cuda", requires_grad=True)
        labels = torch.randint(k, (count, side, side), device="cuda")
        edges, types = neighbours((side, side), 4)
        batch = GraphBatch.copies(edges, side * side, count, edge_types=types)
        loss = CamelLoss("convex", node_factors="edges", tolerance=1e-4)

        def ours(crf=crf, scores=scores, labels=labels):
            return torch.autograd.grad(crf.loss(scores, labels), [scores, crf.tables])

        def before(crf=crf, scores=scores, labels=labels, loss=loss, batch=batch, k=k):
            value = loss(scores.reshape(-1, k), crf.tables, batch, labels.reshape(-1))
            return torch.autograd.grad(value, [scores, crf.tables])

        gap = max(float((a - c).abs().max()) for a, c in zip(ours(), before(), strict=True))
        times = [[median_ms(step, 10) for step in (ours, before)] for _ in range(3)]
        mine, other = (sorted(column)[1] for column in zip(*times, strict=True))
        rows.append({"pictures": count, "side": side, "K": k, "ours": mine, "CamelLoss": other})
        print(f"grids {count} x {side} x {side}, K {k}: {mine:.2f} ms in {crf.last.sweeps} sweeps, CamelLoss "
              f"{other:.2f}, {other / mine:.2f} times as fast; gradients differ by {gap:.1e}", flush=True)  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer sizes")
    parser.add_argument("--only", choices=["chains", "grids"])
    parser.add_argument("--json")
    arguments = parser.parse_args()
    print(torch.cuda.get_device_name(), torch.__version__)
    if arguments.only != "grids":
        check_chains()
    if arguments.only != "chains":
        check_grids()
    found = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    sizes = [(16, 32, 4)] if arguments.quick else [(16, 32, 4), (16, 64, 8), (4, 256, 21)]
    if arguments.only != "chains":
        found["grids"] = grids(sizes)
    if arguments.only != "grids":
        found["chains"] = chains(CHAINS[::4] if arguments.quick else CHAINS)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(found, file, indent=1)


if __name__ == "__main__":
    main()
