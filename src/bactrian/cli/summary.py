"""The summary that ``bactrian infer`` prints: one line for each thing worth knowing."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bactrian.inference.decode import Decoding
    from bactrian.inference.result import InferenceResult

#: What a method's log Z is; bounds hold once it has converged.
_MEANING = {"exact": "exact", "trw": "upper bound", "mean-field": "lower bound", "convex": "convex approximation"}


def inference_lines(result: InferenceResult) -> Iterator[tuple[str, str]]:
    """Name and value of what there is to say about marginals and a partition function."""
    yield "method", result.method
    if result.converged:
        yield "converged", "yes" if result.status == "converged" else f"yes: {result.status}"
    else:
        yield "converged", f"no: {result.status}"
    yield "iterations", str(result.iterations)
    if result.log_partition is None:
        yield "log Z", f"none: {result.method} does not estimate it"
    else:
        yield "log Z", f"{_logarithm(result.log_partition)}, {_MEANING.get(result.method, 'Bethe approximation')}"


def decoding_lines(result: Decoding) -> Iterator[tuple[str, str]]:
    """Name and value of what there is to say about an assignment."""
    yield "method", result.method
    yield "converged", "yes" if result.converged else "no"
    yield "iterations", str(result.iterations)
    yield "log score", _logarithm(result.score) if result.score > -math.inf else "-inf: the assignment is impossible"
    if result.bound is not None:
        yield "bound", _logarithm(result.bound)
    yield "optimal", "yes" if result.optimal else "not proved"


def _logarithm(value: float) -> str:
    return f"{value:.9g} (log10: {value / math.log(10):.9g})"
