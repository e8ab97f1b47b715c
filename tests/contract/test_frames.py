"""Few frames of Python stand between ``learn`` and the kernel: each is a place to look for what goes on."""

import sys

import numpy as np
import pytest

import bactrian as bt
from bactrian.engines import memory

MOST = 12
KERNELS = ["evaluate_given", "evaluate_instances", "evaluate_pairs", "evaluate_trees"]


@pytest.mark.parametrize("method", ["cccp", "camel0", "exact", "convex", "piecewise"])
def test_frames_between_learn_and_the_kernel(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    deepest: list[str] = []

    def watched(kernel):
        def call(*arguments):
            frame, names = sys._getframe(1), []
            while frame.f_code is not bt.learn.__code__:
                names.append(frame.f_code.co_name)
                frame = frame.f_back
            deepest[:] = max(deepest, names, key=len)
            return kernel(*arguments)

        return call

    for name in KERNELS:
        monkeypatch.setattr(memory, name, watched(getattr(memory, name)))
    rng = np.random.default_rng(0)
    edges = [(i, (i + 1) % 40) for i in range(40)]
    data = bt.GraphData(rng.normal(size=(40, 2)), edges, n_labels=2, labels=rng.integers(0, 2, 40))
    bt.learn(data, method, prior_variance=1.0, n_threads=1)
    assert 5 < len(deepest) <= MOST, deepest[::-1]
