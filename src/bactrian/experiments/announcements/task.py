"""Who speaks where and when: a skip chain tags made-up announcements, the third task of ``bactrian demo``.

Learners differ only in how they find the weights; all take the most probable label of each token by the marginals of
belief propagation. Nothing in the test announcements but cue words and ways to write times has been seen in training.
"""

from __future__ import annotations

import signal
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bactrian.arrays import Floats, Ints
from bactrian.estimators.sequences import SkipChainCRF
from bactrian.experiments.announcements.generator import make_announcements
from bactrian.experiments.demo import DemoSettings, OnStep, Tell, in_turn
from bactrian.runs.compare_runs import judged, shown_text, tables_of
from bactrian.runs.comparison import Comparison, Entry, Metric, NamedWeight, Tagging, Training
from bactrian.solvers.solution import ConvergenceWarning, Progress
from bactrian.text.documents import Document, skip_edges
from bactrian.text.entities import entity_scores
from bactrian.text.features import EntityFeatures
from bactrian.text.tagged import parse_seminar

CHAIN = "chain"

LEARNERS = {
    "piecewise": "every edge trained as if it stood alone",
    "camel0": "edge entropies only, neighbouring edges must agree",
    "cccp": "Bethe entropy, a sequence of convex problems",
    "lbp": "likelihood by belief propagation",
}

METRICS = (
    Metric("f1", "entity F1", ".1%", True, "harmonic mean of precision and recall of whole entities, all fields"),
    Metric("speaker", "speaker F1", ".1%", True, "entity F1 of speakers alone"),
    Metric("location", "place F1", ".1%", True, "entity F1 of places alone"),
    Metric("log_loss", "log loss", ".3f", False, "mean of −log of the probability of the true label, in nats a token"),
    Metric("ece", "ECE", ".3f", False, "expected calibration error of the marginals, in ten bins"),
)

_FEATURES = EntityFeatures(ngrams=4, window=4, reach=2, pos=False, lowercase=True, lines=True)
_SUMMARY = (
    "Announcements of seminars, made up by a generator, in which a conditional random field looks for the speaker, the "
    "place and the times. The test announcements come from other layouts, with names and buildings that are not in the "
    "training ones, so nothing can be remembered; and they name other people, places and times too. The chain links "
    "neighbouring words alone. All other learners fit a skip chain, which also links each capitalised word to its next "
    "occurrence. These links are worth little here, since names that are not the speaker's repeat as well: a limit of "
    "loops that the picture does not show."
)
#: Variance of the weights of skip edges. At that of all others, 10, a table of links learned from 80 texts costs eight
#: points of F1 (CCCP, mean of four seeds: 62.2; 70.6 with this, and 70.6 for the chain).
_SKIPS = 0.1


@dataclass(frozen=True, kw_only=True)
class AnnouncementsSettings(DemoSettings):
    """What the experiment does; the defaults are those of ``bactrian demo``."""

    learners: tuple[str, ...] = tuple(LEARNERS)
    n_train: int = 80
    n_test: int = 80
    n_shown: int = 8  #: test announcements that the report shows
    prior_variance: float = 10.0
    tolerance: float = 1e-3


@dataclass(frozen=True, eq=False)
class _Texts:
    """Announcements as documents, features and labels."""

    documents: list[Document]
    features: list[Any]
    labels: list[list[str]]

    @staticmethod
    def of(n: int, seed: int, split: str) -> _Texts:
        made = make_announcements(n, seed=seed, split=split)
        documents = [parse_seminar(announcement.tagged) for announcement in made]
        features = [_FEATURES.extract(document) for document in documents]
        return _Texts(documents, features, [list(document.tags or ()) for document in documents])


def run_announcements(settings: AnnouncementsSettings | None = None, on_step: OnStep | None = None) -> Comparison:
    """Train every learner on the same announcements, tag the test announcements, and compare."""
    settings = settings or AnnouncementsSettings()
    names = (CHAIN, *settings.learners)
    train = _Texts.of(settings.n_train, settings.seed, "train")
    test = _Texts.of(settings.n_test, settings.seed, "test")
    entries, found = [], dict[str, list[Tagging]]()
    for name, trace, tell in in_turn(names, on_step, lambda: _warm_up(names, train, settings)):
        model = _fit(name, train, settings, tell)
        marginals = [np.asarray(table) for table in model.predict_marginals(test.features)]
        classes = [str(label) for label in model.classes_]
        found[name] = [Tagging(tuple(classes[k] for k in table.argmax(axis=1)), table) for table in marginals]
        entries.append(_entry(name, model, trace, test, found[name], marginals))
    return Comparison(
        title="Who speaks where and when",
        summary=_SUMMARY,
        metrics=METRICS,
        entries=tuple(entries),
        facts=_facts(settings, train, test),
        texts=tuple(
            shown_text(
                document,
                f"Announcement {m + 1}",
                test.labels[m],
                {name: tagged[m] for name, tagged in found.items()},
                classes,
                skip_edges(document.words),
            )
            for m, document in enumerate(test.documents[: settings.n_shown])
        ),
    )


def compile_kernels(settings: AnnouncementsSettings) -> None:
    """Compile all that :func:`run_announcements` will need, into Numba's cache, in a process beside the working one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is for the other process, which ends this one
    _warm_up((CHAIN, *settings.learners), _Texts.of(settings.n_train, settings.seed, "train"), settings)


def _fit(name: str, train: _Texts, settings: AnnouncementsSettings, callback: Tell | None = None) -> SkipChainCRF:
    chain, variance = name == CHAIN, settings.prior_variance
    # A skip chain without skips is the chain; one class for both keeps features, inference and tables the same.
    prior = {"tokens": variance, "transitions": variance, "skips": min(_SKIPS, variance)}
    model = SkipChainCRF(
        skips=_no_skips if chain else "nearest",
        method="exact" if chain else name,
        inference="bp",
        **{**settings.options, "prior_variance": prior, "fit_intercept": False},
    )
    return model.fit(train.features, train.labels, callback=callback)


def _no_skips(words: Sequence[str]) -> Ints:
    return np.zeros((0, 2), dtype=np.int64)


def _warm_up(names: Sequence[str], train: _Texts, settings: AnnouncementsSettings) -> None:
    """Let every learner begin on all of the data, so that no learner's time includes compiling."""
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        for name in names:
            short = replace(settings, max_seconds=None, tolerance=10.0)
            _fit(name, train, short).predict_marginals(train.features[:1])


def _entry(
    name: str,
    model: SkipChainCRF,
    trace: list[Progress],
    test: _Texts,
    found: Sequence[Tagging],
    marginals: Sequence[Floats],
) -> Entry:
    predicted = [tagging.labels for tagging in found]
    scores = entity_scores(test.labels, predicted)
    entry = Entry(
        name=name,
        description="no skip edges; maximum likelihood" if name == CHAIN else LEARNERS.get(name, ""),
        metrics={
            "f1": scores.micro_f1,
            **{field: scores.types[field].f1 for field in ("speaker", "location") if field in scores.types},
        },
        training=Training.of(model.solution_, trace),
        tables=tables_of(model)[: 1 if name == CHAIN else 2],
        weights=tuple(NamedWeight(*weight) for weight in model.top_features(15)),
    )
    return judged(entry, model.classes_.tolist(), test.labels, predicted, marginals)


def _facts(settings: AnnouncementsSettings, train: _Texts, test: _Texts) -> dict[str, str]:
    def size(texts: _Texts) -> str:
        return f"{len(texts.documents)} announcements, {sum(map(len, texts.labels)):,} tokens"

    return {
        "training": size(train),
        "test": size(test),
        "prior variance": f"{settings.prior_variance:g}, of skip edges {min(_SKIPS, settings.prior_variance):g}",
        "tolerance": f"{settings.tolerance:g}",
        "seed": str(settings.seed),
    }
