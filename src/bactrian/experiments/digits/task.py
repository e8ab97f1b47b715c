"""Noisy handwritten digits restored by a grid CRF: the task of ``bactrian demo``.

scikit-learn's bundled digits (8 x 8) are thresholded to binary images, and Gaussian noise is added. A 4-connected grid
with shared weights restores them: each pixel has a bias and its noisy intensity as inputs, each edge a symmetric table,
one for neighbours in a row and one for neighbours in a column. Node scores are absorbed into the incident edges, so
that piecewise training does not count them twice. Learners differ only in how they find the weights; all predict with
the marginals of the same method of inference.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace

import numpy as np

from bactrian.arrays import Floats
from bactrian.experiments.demo import DemoSettings, OnStep, in_turn
from bactrian.experiments.digits.data import N_AVAILABLE, NoisyImages, load_noisy_digits
from bactrian.experiments.digits.gallery import gallery
from bactrian.graphs.graph_data import GraphData
from bactrian.inference.infer import infer
from bactrian.learners.learn import learn
from bactrian.runs.comparison import Comparison, Entry, LabelTable, Metric, Training
from bactrian.solvers.solution import ConvergenceWarning

NODE_ONLY = "node-only"

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
class DigitsSettings(DemoSettings):
    """Settings of the task; the defaults are those of ``bactrian demo``."""

    learners: tuple[str, ...] = tuple(LEARNERS)
    n_train: int = 40
    n_test: int = 300
    noise: float = 0.5  #: standard deviation of the noise; pixels are 0 or 1
    prior_variance: float = 1.0
    tolerance: float = 1e-4

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.learners:
            raise ValueError("learners must name at least one learner")
        if self.n_train + self.n_test > N_AVAILABLE:
            raise ValueError(
                f"n_train and n_test must be together at most {N_AVAILABLE}, found {self.n_train} and {self.n_test}"
            )


def run_digits(settings: DigitsSettings | None = None, on_step: OnStep | None = None) -> Comparison:
    """Train every learner on the same images, restore the test images, and compare."""
    settings = settings or DigitsSettings()
    images = load_noisy_digits(settings.n_train + settings.n_test, noise=settings.noise, seed=settings.seed)
    train, test = images[: settings.n_train], images[settings.n_train :]
    noisy_accuracy = float(np.mean((test.noisy > 0.5) == test.truth))
    entries = [Entry("noisy input", "intensities cut at one half, nothing learned", {"accuracy": noisy_accuracy})]
    marginals = {}
    names = (NODE_ONLY, *settings.learners)
    for name, trace, tell in in_turn(names, on_step, lambda: _warm_up(settings, train)):
        linked = name != NODE_ONLY
        data = train.as_graphs(labelled=True, linked=linked)
        solution = learn(data, name if linked else "piecewise", **settings.options, callback=tell)
        unknown = test.as_graphs(labelled=False, linked=linked)
        marginals[name] = node_marginals(unknown, solution.weights, settings.n_threads)
        tables = zip(("along rows", "along columns"), data.split_weights(solution.weights)[1], strict=True)
        states = ("off", "on")
        entries.append(
            Entry.of(
                name,
                LEARNERS.get(name, "") if linked else "logistic regression of each pixel, no edges",
                marginals[name],
                test.truth.ravel(),
                training=Training.of(solution, trace),
                tables=tuple(LabelTable(title, table, states, states) for title, table in tables) if linked else (),
            )
        )
    return Comparison(
        title="Restoring noisy digits with a grid CRF",
        summary=_SUMMARY,
        metrics=METRICS,
        entries=tuple(entries),
        facts=_facts(settings),
        galleries=(gallery(test.truth, test.digits, test.noisy, marginals),),
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
            learn(data, name, **short.options)


def _facts(settings: DigitsSettings) -> dict[str, str]:
    return {
        "training images": str(settings.n_train),
        "test images": str(settings.n_test),
        "noise": f"Gaussian, standard deviation {settings.noise:g}",
        "prior variance": f"{settings.prior_variance:g}",
        "tolerance": f"{settings.tolerance:g}",
        "seed": str(settings.seed),
    }
