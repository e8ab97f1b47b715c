"""Learners side by side on seeded random fields where everything can be known exactly: ``bactrian bench learners``.

A random field is drawn, samples are drawn from it, and each learner fits its weights to them. Four distances tell how
well: the exact log-likelihood of held-out samples; the learner's own beliefs against the exact marginals of the true
field, and against the exact marginals at the weights it found; and its weights against those of exact maximum
likelihood with the same prior.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

from bactrian.arrays import Floats
from bactrian.camel.camel import Camel
from bactrian.errors import check_number
from bactrian.experiments.bench.random_fields import FieldSize, RandomField, joint_features, random_field
from bactrian.graphs.loglinear import Instance, LogLinearModel, Samples
from bactrian.inference.infer import infer
from bactrian.learners.learn import METHODS, Learner, learn
from bactrian.learners.likelihood import Likelihood
from bactrian.solvers.solution import ConvergenceWarning, Solution

#: What is measured, by the names of the fields of :class:`BenchRow`, with a heading.
METRICS = {
    "log_likelihood": "held-out log-likelihood",
    "loss": "loss to exact ML",
    "error_to_truth": "marginal error to truth",
    "error_to_weights": "marginal error at own weights",
    "weight_error": "weight error",
    "seconds": "seconds",
}


@dataclass(frozen=True, kw_only=True)
class BenchSettings:
    """Which fields are drawn, and how much data from each."""

    sizes: tuple[str, ...] = ("3x3", "4x4", "3x3:3", "K6", "K8")
    strengths: tuple[float, ...] = (0.25, 0.5, 1.0, 2.0)
    n_seeds: int = 5
    n_samples: int = 500
    n_held_out: int = 2000
    prior_variance: float = 10.0
    max_iterations: int = 300  #: of one training run
    max_seconds: float | None = None  #: of one training run; where it strikes, figures depend on the machine

    @property
    def n_problems(self) -> int:
        """Number of fields: each size, sharing, strength and seed."""
        return len(self.sizes) * 2 * len(self.strengths) * self.n_seeds

    @property
    def limits(self) -> dict[str, Any]:
        """Limits of one training run, as options of :func:`bactrian.learn`."""
        return {"max_iterations": self.max_iterations, "max_seconds": self.max_seconds}

    def __post_init__(self) -> None:
        if not self.sizes or not self.strengths:
            raise ValueError("sizes and strengths must name at least one each")
        for size in self.sizes:
            FieldSize.parse(size)
        for strength in self.strengths:
            check_number("strengths", strength, least=0, below=np.inf)
        for name in ("n_seeds", "n_samples", "n_held_out", "max_iterations"):
            check_number(name, getattr(self, name), least=1, whole=True)
        check_number("prior_variance", self.prior_variance, positive=True, below=np.inf)


@dataclass(frozen=True)
class BenchRow:
    """One learner on one field. Numbers are NaN where the learner refused or has none."""

    size: str
    family: str
    sharing: str  #: ``shared`` or ``unshared``
    strength: float
    seed: int
    learner: str
    status: str  #: the name of the solution's status in lower case, or ``refused: `` and the reason
    converged: bool
    prior: bool  #: False where the learner takes no prior and was run without
    log_likelihood: float = np.nan  #: exact, of held-out samples, in nats a sample
    loss: float = np.nan  #: what it lacks of the exact learner's log-likelihood
    error_to_truth: float = np.nan  #: total variation, mean over clusters
    error_to_weights: float = np.nan
    weight_error: float = np.nan  #: root mean square over weights that can be told from the data
    seconds: float = np.nan

    @property
    def refused(self) -> bool:
        """Whether the learner does not take such a model."""
        return self.status.startswith("refused")


@dataclass(frozen=True, eq=False)
class RandomProblem:
    """A field with training data and exact answers."""

    size: FieldSize
    sharing: str
    strength: float
    seed: int
    field: RandomField
    data: Samples
    held_out: Floats  #: mean features of held-out samples, (n_weights,)
    marginals: Sequence[Floats]


TellBench = Callable[[str, str, int, int], None]


def bench_learners() -> dict[str, Learner]:
    """Every learner with a name in :func:`bactrian.learn`, folded CCCP, and the classic loops of concave entropies.

    ``lbp`` gives messages up after 100 sweeps instead of 500: where they do not settle, it would take most of the time.
    """
    return {
        **METHODS,
        "lbp": Likelihood("lbp", max_sweeps=100),
        "cccp, folded": Camel(fold=True),
        "trw likelihood": Likelihood(inference="trw"),
        "convex likelihood": Likelihood(inference="convex"),
    }


def problems(settings: BenchSettings) -> Iterable[RandomProblem]:
    """Every size, sharing, strength and seed in turn; the numbers drawn depend on these alone."""
    for name in settings.sizes:
        size = FieldSize.parse(name)
        for sharing in ("unshared", "shared"):
            for strength in settings.strengths:
                for seed in range(settings.n_seeds):
                    yield make_problem(settings, size, sharing, strength, seed)


def make_problem(settings: BenchSettings, size: FieldSize, sharing: str, strength: float, seed: int) -> RandomProblem:
    """One field and its samples."""
    rng = np.random.default_rng([seed, size.n_variables, size.n_labels, size.height, sharing == "shared"])
    field = random_field(size, sharing == "shared", strength, rng)
    data = Samples(field.model, field.sample(settings.n_samples, rng))
    held_out = joint_features(field.model, field.sample(settings.n_held_out, rng)).mean(axis=0)
    return RandomProblem(
        size, sharing, strength, seed, field, data, held_out, exact_marginals(field.model, field.weights)[0]
    )


def run_learners(settings: BenchSettings, tell: TellBench | None = None) -> list[BenchRow]:
    """Every learner on every field."""
    rows: list[BenchRow] = []
    learners = bench_learners()
    for number, problem in enumerate(problems(settings)):
        if not number:  # compiled code is loaded, and missing code compiled, outside the times
            for name, learner in learners.items():
                run_one(problem, name, learner, settings, None)
        reference: Solution | None = None
        for name in sorted(learners, key=lambda name: name != "exact"):  # the others are measured against it
            if tell is not None:
                tell(
                    name,
                    f"{problem.size.name} {problem.sharing} strength {problem.strength:g}",
                    number,
                    settings.n_problems,
                )
            row, solution = run_one(problem, name, learners[name], settings, reference)
            reference = solution if name == "exact" else reference
            rows.append(row)
    order = {name: k for k, name in enumerate(learners)}
    return sorted(rows, key=lambda row: (settings.sizes.index(row.size), row.sharing, row.strength, order[row.learner]))


def run_one(
    problem: RandomProblem, name: str, learner: Learner, settings: BenchSettings, reference: Solution | None
) -> tuple[BenchRow, Solution | None]:
    """One learner on one field, without the prior where it refuses to run with it."""
    reasons = []
    for prior in (settings.prior_variance, None):
        began = perf_counter()
        try:
            solution = quiet_learn(problem.data, learner, prior_variance=prior, **settings.limits)
        except (ValueError, TypeError) as problem_found:
            reasons.append(" ".join(str(problem_found).split()))
            continue
        seconds = perf_counter() - began
        numbers = _measure(problem, solution, reference or solution)
        return _row(problem, name, solution, prior is not None, seconds=seconds, **numbers), solution
    return _row(problem, name, f"refused: {reasons[-1]}", False), None


def quiet_learn(data: Samples | list[Instance], learner: str | Learner, **options: Any) -> Solution:
    """Learn on one thread; the status says where it stopped short."""
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        return learn(data, learner, n_threads=1, **options)


def exact_marginals(model: LogLinearModel, weights: Floats) -> tuple[list[Floats], float]:
    """Exact marginals of the given clusters and the log partition function."""
    result = infer(model, weights, method="exact", n_threads=1)
    assert result.log_partition is not None
    return [result.clusters[i] for i in range(len(model.features))], result.log_partition


def _measure(problem: RandomProblem, solution: Solution, reference: Solution) -> dict[str, float]:
    at_weights, log_partition = exact_marginals(problem.field.model, solution.weights)
    log_likelihood = float(problem.held_out @ solution.weights) - log_partition
    best = float(problem.held_out @ reference.weights) - exact_marginals(problem.field.model, reference.weights)[1]
    projection = problem.field.identifiable
    difference = projection @ (solution.weights - reference.weights)
    try:
        beliefs = [solution.beliefs[0][i] for i in range(len(at_weights))]
    except ValueError:  # a learner without beliefs
        own = truth = np.nan
    else:
        own, truth = (_distance(beliefs, tables) for tables in (at_weights, problem.marginals))
    return {
        "log_likelihood": log_likelihood,
        "loss": best - log_likelihood,
        "error_to_truth": truth,
        "error_to_weights": own,
        "weight_error": float(np.sqrt(difference @ difference / np.trace(projection))),
    }


def _distance(first: Sequence[Floats], second: Sequence[Floats]) -> float:
    """Total variation between tables, mean over clusters."""
    return float(np.mean([0.5 * np.abs(a - b).sum() for a, b in zip(first, second, strict=True)]))


def _row(problem: RandomProblem, name: str, outcome: Solution | str, prior: bool, **numbers: float) -> BenchRow:
    status = outcome if isinstance(outcome, str) else outcome.status.name.lower().replace("_", " ")
    converged = not isinstance(outcome, str) and outcome.converged
    size = problem.size
    return BenchRow(
        size.name,
        size.family,
        problem.sharing,
        problem.strength,
        problem.seed,
        name,
        status,
        converged,
        prior,
        **numbers,
    )
