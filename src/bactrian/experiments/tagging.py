"""What the two text experiments share: learners by row, documents with features, and scores of a trained tagger."""

from __future__ import annotations

import os
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from bactrian.arrays import Ints
from bactrian.estimators.sequences import LinearChainCRF, SkipChainCRF
from bactrian.experiments.paper_table import status_of
from bactrian.learners.learn import learn
from bactrian.solvers.solution import ConvergenceWarning, Solution
from bactrian.text.documents import Document
from bactrian.text.entities import Scores, entity_scores, token_scores
from bactrian.text.features import EntityFeatures, Token


@dataclass(frozen=True)
class Row:
    """A learner of the table: what it is called, how it is made, and the paper's macro and micro F1, if any."""

    name: str
    method: Any
    chain: bool = False
    node_factors: str = "edges"
    paper: tuple[str, str] | None = None


@dataclass(frozen=True)
class TaggerSettings:
    """All settings, chosen on held-out data."""

    features: EntityFeatures
    scheme: str = "BIO"
    skips: str | None = "nearest"
    skip_tables: str = "symmetric"
    decoding: str = "max-product"
    prior_variance: float = 10.0
    min_frequency: int = 2
    tolerance: float = 1e-3
    max_seconds: float | None = None  #: of one fit; a limit that strikes makes figures depend on the machine
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Corpus:
    """Documents with their features and tags in the scheme that is learned."""

    documents: Sequence[Document]
    tokens: Sequence[list[Token]]
    tags: Sequence[list[str]]
    breaks: Sequence[Ints] = field(repr=False)

    @staticmethod
    def of(documents: Sequence[Document], settings: TaggerSettings, source: str) -> Corpus:
        """Extract the features of documents whose tags tell the scheme ``source``."""
        tagged = [document.in_scheme(source, settings.scheme) for document in documents]
        return Corpus(
            documents=documents,
            tokens=list(settings.features.extract_many(documents)),
            tags=[list(document.tags or ()) for document in tagged],
            breaks=[document.sentence_starts for document in documents],
        )

    def __getitem__(self, chosen: Sequence[int]) -> Corpus:
        return Corpus(
            [self.documents[m] for m in chosen],
            [self.tokens[m] for m in chosen],
            [self.tags[m] for m in chosen],
            [self.breaks[m] for m in chosen],
        )


@dataclass(frozen=True)
class Trained:
    """A row's result on one split."""

    row: Row
    solution: Solution  #: without weights and beliefs
    seconds: float
    memory: float  #: MiB that training took beyond what was there before
    entities: Scores
    tokens: Scores

    @property
    def outer(self) -> int:
        """Inner solves: relinearisations and the first."""
        return len(self.solution.history)

    @property
    def status(self) -> str:
        """How training ended, in a few words."""
        return status_of(self.solution)

    @property
    def inner(self) -> list[int]:
        """Quasi-Newton iterations of each inner solve."""
        return [record.iterations for record in self.solution.history]


def make_tagger(row: Row, settings: TaggerSettings) -> LinearChainCRF | SkipChainCRF:
    """The estimator of a row."""
    common: dict[str, Any] = {
        "method": row.method,
        "prior_variance": settings.prior_variance,
        "min_frequency": settings.min_frequency,
        "tolerance": settings.tolerance,
        "max_seconds": settings.max_seconds,
        "node_factors": row.node_factors,
        "fit_intercept": False,
    }
    if row.chain:
        return LinearChainCRF(**common)
    return SkipChainCRF(skips=settings.skips, skip_tables=settings.skip_tables, decoding=settings.decoding, **common)


def train_and_score(row: Row, settings: TaggerSettings, train: Corpus, test: Corpus) -> Trained:
    """Train on one corpus, tag the other and score it; where training stops short its status says so."""
    tagger = make_tagger(row, settings)
    began = time.perf_counter()
    with peak_memory() as memory, warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        if row.chain:  # to the tolerance of the other rows: fit ends by the gain of the objective
            data = tagger.encode(train.tokens, train.tags, breaks=train.breaks)
            tagger.adopt(learn(data, **{**tagger.learning_options(), "gain_tolerance": 0.0}))
        else:
            tagger.fit(train.tokens, train.tags, breaks=train.breaks)
    seconds = time.perf_counter() - began
    predicted = tagger.predict(test.tokens, breaks=test.breaks)
    return Trained(
        row=row,
        # The rest is as large as the data, and there are a row's folds of it.
        solution=replace(tagger.solution_, weights=np.zeros(0), beliefs=(), state=None),
        seconds=seconds,
        memory=memory.peak,
        entities=entity_scores(test.tags, predicted, scheme=settings.scheme, sentence_starts=test.breaks),
        tokens=token_scores(test.tags, predicted),
    )


@dataclass
class _Memory:
    peak: float = float("nan")  # MiB


@contextmanager
def peak_memory() -> Iterator[_Memory]:
    """Watches how much resident memory the process takes beyond what it had, in MiB; NaN where that is not known."""
    found = _Memory()
    before = _resident()
    if before is None:
        yield found
        return
    highest = before
    stop = threading.Event()

    def watch() -> None:
        nonlocal highest
        while not stop.wait(0.02):
            highest = max(highest, _resident() or 0.0)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield found
    finally:
        stop.set()
        watcher.join()
        found.peak = max(highest, _resident() or 0.0) - before


def _resident() -> float | None:
    """Resident memory of this process in MiB."""
    if not sys.platform.startswith("linux"):
        return None
    with open("/proc/self/statm", encoding="ascii") as stream:
        pages = int(stream.read().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
