"""Noisy handwritten digits restored by a grid CRF: the task of ``bactrian demo``.

scikit-learn's bundled digits (8 x 8) are thresholded to binary images, and Gaussian noise is added. A 4-connected grid
with shared weights restores them: each pixel has a bias and its noisy intensity as inputs, each edge a symmetric table,
one for neighbours in a row and one for neighbours in a column. Node scores are absorbed into the incident edges, so
that piecewise training does not count them twice. Learners differ only in how they find the weights; all predict with
the marginals of the same method of inference.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from bactrian.arrays import Floats
from bactrian.experiments.digits.data import N_AVAILABLE, NoisyImages, load_noisy_digits
from bactrian.experiments.digits.gallery import gallery
from bactrian.graphs.graph_data import GraphData
from bactrian.inference.infer import infer
from bactrian.learners.learn import METHODS, learn
from bactrian.runs.comparison import Comparison, Entry, LabelTable, Metric, Training, log_loss, reliability
from bactrian.solvers.solution import ConvergenceWarning, Progress, Solution

NODE_ONLY = "node-only"
#: Quasi-Newton steps of a learner at most; they need tens.
MAX_ITERATIONS = 1000

#: The learners of the demonstration, with a line on each.
LEARNERS = {
    "piecewise": "every edge trained as if it stood alone",
    "camel0": "edge entropies only, neighbouring edges must agree",
    "cccp": "Bethe entropy, a sequence of convex problems",
    "cccp-empirical": "the same, started at pooled empirical marginals",
    "lbp": "likelihood by belief propagation",
    "trw": "tree-reweighted entropy, one concave problem",
    "convex": "a concave entropy close to Bethe's",
    "pseudolikelihood": "each pixel given its true neighbours",
    "piecewise-pseudolikelihood": "the same, every edge on its own",
    "exact": "maximum likelihood on a junction tree",
}

METRICS = (
    Metric("accuracy", "pixel accuracy", ".2%", True, "share of test pixels restored to their true value"),
    Metric("log_loss", "log loss", ".3f", False, "mean of −log of the probability of the true value, in nats a pixel"),
    Metric("ece", "ECE", ".3f", False, "expected calibration error of the marginals, in ten bins"),
)

_SUMMARY = (
    "Handwritten digits, thresholded to binary images of 8 × 8 pixels, with Gaussian noise added. A 4-connected grid "
    "CRF, whose weights all pixels and edges share, is trained by each learner in turn; each restores the test images "
    "from the marginals of belief propagation. What tells the learners apart is less the accuracy than the honesty of "
    "those marginals: piecewise training lets neighbouring edges disagree about the pixel they share, and tends to be "
    "surer than it may be; CCCP makes them agree under Bethe's entropy, and comes close to exact maximum likelihood."
)


@dataclass(frozen=True, kw_only=True)
class DigitsSettings:
    """What the experiment does; the defaults are those of ``bactrian demo``."""

    learners: tuple[str, ...] = tuple(LEARNERS)
    n_train: int = 40
    n_test: int = 300
    noise: float = 0.5  #: standard deviation of the noise; pixels are 0 or 1
    seed: int = 0
    prior_variance: float = 1.0
    tolerance: float = 1e-4
    max_seconds: float | None = None  #: of each learner; where it strikes, figures depend on the machine
    n_threads: int | None = None

    def __post_init__(self) -> None:
        if not self.learners:
            raise ValueError("learners must name at least one learner")
        for name in self.learners:
            if name not in METHODS:
                raise ValueError(f"unknown learner {name!r}; choose from {', '.join(METHODS)}")
        if len(set(self.learners)) < len(self.learners):
            raise ValueError(f"learners must be different, found {', '.join(self.learners)}")
        if self.n_train < 1 or self.n_test < 1 or self.n_train + self.n_test > N_AVAILABLE:
            raise ValueError(
                f"n_train and n_test must be at least 1 and together at most {N_AVAILABLE}, "
                f"found {self.n_train} and {self.n_test}"
            )
        if not (np.isfinite(self.prior_variance) and self.prior_variance > 0.0):
            raise ValueError(f"prior_variance must be finite and positive, found {self.prior_variance}")
        if not (np.isfinite(self.noise) and self.noise >= 0.0):
            raise ValueError(f"noise must be finite and at least 0, found {self.noise}")
        for name, value, least in (
            ("tolerance", self.tolerance, 0),
            ("seed", self.seed, 0),
            ("max_seconds", self.max_seconds, 0),
            ("n_threads", self.n_threads, 1),
        ):
            if value is not None and not value >= least:
                raise ValueError(f"{name} must be at least {least}, found {value}")


@dataclass(frozen=True)
class DemoStep:
    """Where the experiment stands: ``learner`` is at work, the ``number``-th of ``total``."""

    learner: str
    number: int
    total: int
    progress: Progress | None = None  #: None when the learner begins


def follower(step: DemoStep, trace: list[Progress], notify: Callable[[DemoStep], None]) -> Callable[[Progress], None]:
    """A callback of learning that keeps a ``trace`` of it and tells where the experiment stands."""

    def follow(progress: Progress) -> None:
        trace.append(progress)
        notify(replace(step, progress=progress))

    return follow


def run_digits(settings: DigitsSettings | None = None, on_step: Callable[[DemoStep], None] | None = None) -> Comparison:
    """Train every learner on the same images, restore the test images, and compare.

    Every learner first runs loosely, so that nobody's seconds contain compilation.
    """
    settings = settings or DigitsSettings()
    notify = on_step or (lambda step: None)
    names = (NODE_ONLY, *settings.learners)
    images = load_noisy_digits(settings.n_train + settings.n_test, noise=settings.noise, seed=settings.seed)
    train, test = images[: settings.n_train], images[settings.n_train :]
    notify(DemoStep("compiling", 0, len(names)))
    _warm_up(settings, train)

    noisy_accuracy = float(np.mean((test.noisy > 0.5) == test.truth))
    entries = [Entry("noisy input", "intensities cut at one half, nothing learned", {"accuracy": noisy_accuracy})]
    marginals = {}
    for number, name in enumerate(names, start=1):
        step = DemoStep(name, number, len(names))
        notify(step)
        entry, marginals[name] = _train_and_restore(step, train, test, settings, notify)
        entries.append(entry)
    return Comparison(
        title="Restoring noisy digits with a grid CRF",
        summary=_SUMMARY,
        metrics=METRICS,
        entries=tuple(entries),
        facts=_facts(settings),
        galleries=(gallery(test.truth, test.digits, test.noisy, marginals),),
    )


def _train_and_restore(
    step: DemoStep,
    train: NoisyImages,
    test: NoisyImages,
    settings: DigitsSettings,
    notify: Callable[[DemoStep], None],
) -> tuple[Entry, Floats]:
    """An entry of the comparison, and the marginals (n_pixels, 2) of the test images."""
    name = step.learner
    trace: list[Progress] = []
    linked = name != NODE_ONLY
    data = train.as_graphs(labelled=True, linked=linked)
    solution = _learn(data, name if linked else "piecewise", settings, follower(step, trace, notify))
    marginals = node_marginals(test.as_graphs(labelled=False, linked=linked), solution.weights, settings.n_threads)
    truth = test.truth.ravel()
    calibration = reliability(marginals, truth)
    states = ("off", "on")
    tables = zip(("along rows", "along columns"), data.split_weights(solution.weights)[1], strict=True)
    entry = Entry(
        name=name,
        description=LEARNERS.get(name, "") if linked else "logistic regression of each pixel, no edges",
        metrics={
            "accuracy": float(np.mean(marginals.argmax(axis=1) == truth)),
            "log_loss": log_loss(marginals, truth),
            "ece": calibration.error,
        },
        training=Training.of(solution, trace),
        reliability=calibration,
        tables=tuple(LabelTable(title, table, states, states) for title, table in tables) if linked else (),
    )
    return entry, marginals


def _learn(
    data: GraphData, method: str, settings: DigitsSettings, callback: Callable[[Progress], None] | None = None
) -> Solution:
    return learn(
        data,
        method=method,
        prior_variance=settings.prior_variance,
        tolerance=settings.tolerance,
        max_iterations=MAX_ITERATIONS,
        max_seconds=settings.max_seconds,
        n_threads=settings.n_threads,
        seed=settings.seed,
        callback=callback,
    )


def node_marginals(data: GraphData, weights: Floats, n_threads: int | None = None) -> Floats:
    """Marginals (n_nodes, n_labels) of all nodes, by belief propagation.

    Graphs on which it does not converge are finished by the double loop, which minimises the same free energy.
    """
    results = infer(data, weights, method="bp", tolerance=1e-6, fallback="double-loop", n_threads=n_threads)
    return np.array([marginal for result in results for marginal in result.variables])


def _warm_up(settings: DigitsSettings, train: NoisyImages) -> None:
    # All of the data, for some kernels are compiled only where there is much to do; to the end, if loosely, for a run
    # that stops at once leaves out what later iterations need.
    data, short = train.as_graphs(labelled=True), replace(settings, max_seconds=None, tolerance=1e-1)
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        for name in settings.learners:
            _learn(data, name, short)


def _facts(settings: DigitsSettings) -> dict[str, str]:
    return {
        "training images": str(settings.n_train),
        "test images": str(settings.n_test),
        "noise": f"Gaussian, standard deviation {settings.noise:g}",
        "prior variance": f"{settings.prior_variance:g}",
        "tolerance": f"{settings.tolerance:g}",
        "seed": str(settings.seed),
    }
