"""Learning from random data, judged by recomputed moments, consistency, stationarity and values."""

from __future__ import annotations

from typing import Any

from cutting import cases
from generators import Case, folder_case, full_table_case, learning_case
from judges_inference import is_forest
from judges_learning import LearningJudge

import bactrian as bt

#: Learners, what each optimises, and whether that has one optimum.
LEARNERS: dict[str, tuple[Any, str, bool]] = {
    "piecewise": ("piecewise", "piecewise", True),
    "camel0": ("camel0", "camel0", True),
    "cccp": ("cccp", "bethe", False),
    "cccp-empirical": ("cccp-empirical", "bethe", False),
    "exact": ("exact", "exact", True),
    "lbp": ("lbp", "bethe", False),
    "trw": ("trw", "trw", True),
    "convex": ("convex", "convex", True),
    "pseudolikelihood": ("pseudolikelihood", "pseudolikelihood", True),
    "piecewise-pseudolikelihood": ("piecewise-pseudolikelihood", "piecewise-pseudolikelihood", True),
    "tight": (bt.Camel(tight=True), "bethe", False),
    "folded": (bt.Camel(fold=True), "bethe", False),
    "joint": (bt.Camel(entropy="clusters", solver="joint"), "camel0", True),
    "convex likelihood": (bt.Likelihood(inference="convex"), "convex", True),
    "trw likelihood": (bt.Likelihood(inference="trw"), "trw", True),
}
LIMITS = {"max_iterations": 1000, "max_relinearisations": 200}


@cases(sample=4, block=4, total=136)
def test_learning(numbers, tally):
    _learned(numbers, False, tally)


@cases(sample=2, block=6, total=32)
def test_weighted_learning(numbers, tally):
    _learned(numbers, True, tally)


def _learned(numbers, weighted, tally):
    for number in numbers:
        case = learning_case(number, weighted)
        judge = LearningJudge(case.data, case.edges, case.scale, case.options, case.node_factors)
        options = {**LIMITS, **case.options}
        for name, (method, entropy, convex) in LEARNERS.items():
            call = f"c = learning_case({number}, {weighted}); bt.learn(c.model, {method!r}, **{options})"
            with tally.run("learning", f"learning {number} {name}", call) as problems:
                solution = bt.learn(case.model, method, **options)
                tally.counts[f"learning: status {solution.status.name}"] += 1
                numbers_used = _numbers(case, solution.weights, entropy) if entropy in ("trw", "convex") else entropy
                problems += judge.problems(numbers_used, convex, solution)


def _numbers(case: Case, weights, method):
    """The counting numbers that inference reports for the same models."""
    models = case.model
    if isinstance(models, bt.Samples):
        models = [models.model]
    elif isinstance(models, list):
        models = [instance.model for instance in models]
    return [result.counting_numbers for result in bt.infer(models, weights, method, max_iterations=1)]


@cases(sample=6, block=60, total=306)
def test_full_tables(numbers, tally):
    """Pseudo-moment matching, and unified propagation and scaling."""
    for number in numbers:
        for scaling in (False, True):
            case = full_table_case(number, scaling)
            judge = LearningJudge(case.data, case.edges, case.scale, case.options)
            method, options = "ups" if scaling else "pseudo-moments", {**LIMITS, **case.options}
            call = f"c = full_table_case({number}, {scaling}); bt.learn(c.model, {method!r}, **{options})"
            with tally.run(method, f"{method} {number}", call) as problems:
                solution = bt.learn(case.model, method, **options)
                tally.counts[f"{method}: status {solution.status.name}"] += 1
                problems += judge.problems("bethe", True, solution) + judge.full_tables(solution)


@cases(sample=3, block=20, total=63)
def test_folders(numbers, tmp_path, tally):
    """Learning from folders of packed graphs with scores of every size."""
    for number in numbers:
        case, parts = folder_case(number)
        judge = LearningJudge(case.data, case.edges, case.scale, case.options, case.node_factors)
        folder = bt.PackedFolder.write(tmp_path / str(number), parts)
        trees = all(is_forest(model, "bethe") for model in case.models)
        options = {**LIMITS, **case.options}
        for name in ("piecewise", "camel0", "cccp", "convex", *(["exact"] if trees else [])):
            method, entropy, convex = LEARNERS[name]
            call = f"c, parts = folder_case({number}); bt.learn(c.model, {method!r}, **{options}) and by folder"
            with tally.run("folders", f"folder {number} {name}", call) as problems:
                solution = bt.learn(folder, method, **options)
                whole = bt.learn(case.model, method, **options)
                tally.counts[f"folders: status {solution.status.name}"] += 1
                numbers_used = _numbers(case, whole.weights, entropy) if entropy == "convex" else entropy
                problems += judge.problems(numbers_used, convex, whole)
                problems += judge.without_beliefs(numbers_used, convex, solution, whole)
