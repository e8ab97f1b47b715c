"""Inference and decoding of random models, judged by enumeration, bounds and stationarity."""

from __future__ import annotations

import judges_inference as judges
from cutting import cases
from generators import Case, inference_case

import bactrian as bt

METHODS = ("exact", "bp", "rbp", "trw", "convex", "double-loop", "mean-field", "gibbs")
DECODERS = ("exact", "max-product", "max-marginals", "dual")


@cases(sample=12, block=40, total=900)
def test_inference(numbers, tally):
    for number in numbers:
        case = inference_case(number)
        evidence = case.evidence if case.many else case.evidence[0]
        call = f"c = inference_case({number}); bt.%s(c.model, c.weights, %r, {evidence})"
        for method in METHODS:
            with tally.run("inference", f"inference {number} {method}", call % ("infer", method)) as problems:
                problems += _inferred(case, method, evidence, tally.counts)
        for method in DECODERS:
            with tally.run("decoding", f"decoding {number} {method}", call % ("decode", method)) as problems:
                problems += _decoded(case, method, evidence, tally.counts)


def _possible(case: Case) -> bool:
    pairs = zip(case.models, case.evidence, strict=True)
    return all(judges.enumerate_model(model, case.weights, seen) is not None for model, seen in pairs)


def _inferred(case, method, evidence, counts):
    try:
        results = bt.infer(case.model, case.weights, method, evidence)
    except ValueError as refusal:
        counts["inference: refused, no state is possible"] += 1
        return [f"refused a possible model: {refusal}"] if _possible(case) else []
    problems = []
    for m, result in enumerate(results if case.many else [results]):
        counts["inference: not converged, and said so"] += not result.converged
        found = judges.judge_inference(
            case.models[m], case.edges[m], case.weights, case.evidence[m], case.scale, method, result
        )
        problems += [f"model {m}: {problem}" for problem in found]
    return problems


def _decoded(case, method, evidence, counts):
    try:
        results = bt.decode(case.model, case.weights, method, evidence, return_result=True)
    except ValueError as refusal:
        counts["decoding: refused, no state is possible"] += 1
        return [f"refused a possible model: {refusal}"] if _possible(case) else []
    problems = []
    for m, result in enumerate(results if case.many else [results]):
        found = judges.judge_decoding(case.models[m], case.weights, case.evidence[m], case.scale, method, result)
        problems += [f"model {m}: {problem}" for problem in found]
    return problems
