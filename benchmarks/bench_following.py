"""What it costs to see that belief propagation finds what was learned, where it has one fixed point.

    python benchmarks/bench_following.py

Processor time of what ``fit`` does beyond learning (look for further fixed points, judge the labels) over that of the
rest, the least of five fits of pictures whose edges are weak. Wanted: at most 10 %. No row may have a path.
"""

from __future__ import annotations

import time
import warnings
from typing import Any

import bactrian as bt
from bactrian.estimators import base
from bactrian.learners import learn
from bench_agreement import picture

WEAK = {"nodes": 10, "edges": 0.001}
#: Copies, side, labels, noise and prior of pictures.
SETTINGS = [
    (4, 24, 2, 0.3, 0.01),
    (4, 24, 3, 0.3, 0.01),
    (4, 64, 2, 0.3, 0.01),
    (4, 24, 2, 1.0, WEAK),
    (1, 64, 5, 1.0, WEAK),
]


def timed(owner: Any, name: str, spent: list[float]) -> None:
    """Add the processor time of a function to ``spent``."""
    function = getattr(owner, name)

    def work(*given: Any, **options: Any) -> Any:
        begun = time.process_time()
        try:
            return function(*given, **options)
        finally:
            spent[0] += time.process_time() - begun

    setattr(owner, name, work)


def main() -> None:
    warnings.simplefilter("ignore")
    spent = [0.0]
    for owner, name in ((learn, "attained"), (learn, "follow"), (base, "judge")):
        timed(owner, name, spent)
    print(
        "| copies, side, labels, noise | learner | fit s | beyond learning | ratio | path |\n|---|---|---|---|---|---|"
    )
    for copies, side, n_labels, noise, prior in SETTINGS:
        train, _, truth = picture(side, n_labels, noise, copies, 0)
        for method in ("cccp", "convex"):
            rounds = []
            for _ in range(5):
                spent[0], begun = 0.0, time.process_time()
                crf = bt.GridCRF(method=method, n_threads=1, prior_variance=prior).fit(train, [truth] * copies)
                rounds.append((time.process_time() - begun, spent[0]))
            fit, beyond = min(rounds)
            path = "no" if crf.solution_.path is None else "yes"
            row = f"{copies}, {side}, {n_labels}, {noise} | {method} | {fit:.3f} | {beyond:.4f}"
            print(f"| {row} | {beyond / (fit - beyond):.3f} | {path} |", flush=True)


if __name__ == "__main__":
    main()
