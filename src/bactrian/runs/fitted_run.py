"""A finished run as something that labels texts or graphs, and is scored."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import numpy as np

from bactrian.arrays import Floats
from bactrian.errors import warn
from bactrian.estimators.base import LearnedEstimator
from bactrian.estimators.labels import accuracy
from bactrian.runs.folders import RunFolder
from bactrian.runs.graph_files import LabelledGraph, places_of
from bactrian.runs.run_data import RunData, batches, breaks_of, read_data
from bactrian.runs.settings import MODELS, RunSettings
from bactrian.text.columns import UNKNOWN_TAGS, find_entities
from bactrian.text.documents import Document
from bactrian.text.entities import Score, convert, entity_scores, token_scores
from bactrian.text.features import EntityFeatures

#: Tokens of documents, or nodes of graphs, that are labelled together.
_TOGETHER = 20_000


#: Labels of one document or graph, and the probability of each, where asked for.
Labelled = tuple[list[Any], Floats | None]


@dataclass(frozen=True, eq=False)
class FittedRun:
    """The model of a run, ready to use."""

    folder: RunFolder
    settings: RunSettings
    estimator: LearnedEstimator
    extractor: EntityFeatures | None  #: None for graphs

    @staticmethod
    def load(folder: RunFolder, encoding: str | None = None) -> FittedRun:
        """Read settings and model, for texts in another encoding where one is given.

        A folder that is not a run folder, or holds no finished training, is refused.
        """
        folder.check_learned()
        settings, _ = folder.read_settings()
        if not folder.model.is_file():
            raise ValueError(f"{folder.path} has no model yet; continue with: bactrian train --resume {folder.path}")
        if encoding is not None:
            settings = replace(settings, input=replace(settings.input, encoding=encoding))
        estimator = MODELS[settings.model].load(folder.model)
        return FittedRun(folder, settings, estimator, settings.extractor() if settings.is_text else None)

    @property
    def classes(self) -> list[Any]:
        """The labels."""
        return self.estimator.classes_.tolist()

    @cached_property
    def words(self) -> frozenset[str]:
        """The words of the training texts that the model has a weight for."""
        names = getattr(self.estimator, "feature_names_", None) or ()
        return frozenset(name.removeprefix("word=") for name in names if name.startswith("word="))

    def check_columns(self, document: Document, place: str) -> None:
        """Refuse a document that lacks columns or lines for the features."""
        missing = None if self.extractor is None else self.extractor.missing_column(document)
        if missing is not None:
            what, option = ("parts of speech", "--pos") if missing == "pos" else (f"the column {missing!r}", "it")
            raise ValueError(
                f"{place}: the model needs {what}; give a file with a column "
                f"called {missing}, or train without {option} to tag raw text"
            )
        if self.extractor is not None and self.extractor.lines and document.line_starts is None and len(document):
            raise ValueError(f"{place}: the model uses features of lines, which files of columns do not have")

    def label_documents(
        self, documents: Iterable[Document], *, probabilities: bool = False, known: bool = False, together: int = 64
    ) -> Iterator[tuple[Document, Labelled]]:
        """Tag documents as they come, at most ``together`` and some thousand tokens at a time.

        With ``known`` the documents' own tags are kept, except unknown ones (``?`` or ``_``).
        """
        for batch in batches(documents, len, _TOGETHER, together):
            yield from zip(batch, self._tagged(batch, probabilities, known), strict=True)

    def label_graphs(
        self, graphs: Iterable[LabelledGraph], *, probabilities: bool = False, known: bool = False
    ) -> Iterator[tuple[LabelledGraph, Labelled]]:
        """Label graphs as they come, some thousand nodes at a time; with ``known`` their labels are kept."""
        for batch in batches(graphs, lambda graph: len(graph.node_features), _TOGETHER, 64):
            missing = next((graph for graph in batch if graph.labels is None), None) if known else None
            if missing is not None:
                raise ValueError(f"{missing.place}: --known needs labels")
            tables = self.graph_marginals(
                [graph.inputs for graph in batch],
                [graph.place for graph in batch],
                [graph.labels for graph in batch] if known else None,
            )
            for graph, table in zip(batch, tables, strict=True):
                chosen = table.argmax(axis=1)
                chances = table[np.arange(chosen.size), chosen] if probabilities else None
                yield graph, ([self.classes[k] for k in chosen.tolist()], chances)

    def graph_marginals(self, X: Sequence[Any], places: Sequence[str], known: Any = None) -> list[Floats]:
        """Probabilities of the labels of all nodes of graphs, some or all of which may have none."""
        tables = [np.zeros((0, len(self.classes)))] * len(X)
        chosen = [m for m, graph in enumerate(X) if len(graph[0])]
        if chosen:
            model: Any = self.estimator
            with places_of([places[m] for m in chosen]):
                found = model.predict_marginals([X[m] for m in chosen], known and [known[m] for m in chosen])
            for m, table in zip(chosen, found, strict=True):
                tables[m] = np.asarray(table)
        return tables

    def _tagged(self, documents: list[Document], probabilities: bool, known: bool) -> list[Labelled]:
        assert self.extractor is not None
        for document in documents:
            self.check_columns(document, document.name or "standard input")
        X = list(self.extractor.extract_many(documents))
        model: Any = self.estimator
        given: dict[str, Any] = {"breaks": breaks_of(documents)}
        if known:
            given["partial"] = [self._known_tags(document) for document in documents]
        predicted = model.predict(X, **given)
        if not probabilities:
            return [(tags, None) for tags in predicted]
        column = {label: k for k, label in enumerate(self.classes)}
        labelled: list[Labelled] = []
        for tags, table in zip(predicted, model.predict_marginals(X, **given), strict=True):
            columns = np.array([column[tag] for tag in tags], dtype=np.int64)
            labelled.append((tags, table[np.arange(len(tags)), columns]))
        return labelled

    def _known_tags(self, document: Document) -> list[Any]:
        """Tags of a document, None for those that are unknown."""
        if document.tags is None:
            raise ValueError(f"{document.name}: --known needs a column called tag")
        named = {str(label): label for label in self.classes}
        for t, tag in enumerate(document.tags):
            if tag not in named and tag not in UNKNOWN_TAGS:
                some = ", ".join([*named][:8])
                raise ValueError(
                    f"{document.name}, token {t + 1} ({document.words[t]!r}): the tag {tag!r} is neither a label of "
                    f"the model ({some}{', ...' if len(named) > 8 else ''}) nor ? for an unknown one"
                )
        return [named.get(tag) for tag in document.tags]


def text_scores(true: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], data: RunData) -> dict[str, Any]:
    """Scores of predicted tags: of entities and tokens where tags mark entities, else the part that is right."""
    scores: dict[str, Any] = {"tokens": sum(map(len, true)), "accuracy": accuracy(true, predicted)}
    if data.scheme is not None:
        starts = [document.sentence_starts for document in data.documents]
        # A tagger may predict ill-formed tags: conversion reads them as conlleval does.
        plain = [
            convert(tags, None, data.scheme, sentence_starts=where)
            for tags, where in zip(predicted, starts, strict=True)
        ]
        scores["entities"] = entity_scores(true, plain, sentence_starts=starts).as_dict()
        # Each name of a type once, as in the shared tasks on emerging entities (WNUT).
        names = [
            {
                (found.type, found.text)
                for document, of in zip(data.documents, tags, strict=True)
                for found in find_entities(document, of)
            }
            for tags in (true, plain)
        ]
        scores["surface"] = Score(len(names[0]), len(names[1]), len(names[0] & names[1])).as_dict()
        scores["token_f1"] = token_scores(true, plain).as_dict()
    return scores


def graph_scores(true: Sequence[Any], predicted: Sequence[Any]) -> dict[str, Any]:
    """The part of all nodes with the right label, and of each label."""
    truth, guess = (
        np.concatenate([np.asarray(part) for part in parts if len(part)] or [np.zeros(0)])
        for parts in (true, predicted)
    )
    right = truth == guess
    labels = {
        str(label): {"recall": float(right[truth == label].mean()), "support": int((truth == label).sum())}
        for label in np.unique(truth).tolist()
    }
    return {"nodes": int(truth.size), "accuracy": float(right.mean()) if right.size else 0.0, "labels": labels}


@dataclass(frozen=True, eq=False)
class RunEvaluation:
    """Predictions and scores of a run on labelled data."""

    data: RunData
    predicted: list[list[Any]]
    marginals: list[Floats]
    scores: dict[str, Any]


def evaluate_run(run: FittedRun, paths: Sequence[str]) -> RunEvaluation:
    """Label files whose labels are known, and score it."""
    settings, estimator = run.settings, cast(Any, run.estimator)
    data = read_data(paths, settings, run.classes)
    if settings.is_text:
        marginals = [np.asarray(table) for table in estimator.predict_marginals(data.X, **data.given)]
        predicted = [list(tags) for tags in estimator.predict(data.X, **data.given)]
        strange = sorted({str(tag)[2:] for tags in data.y for tag in tags} - {str(tag)[2:] for tag in run.classes})
        if data.scheme is not None and strange:
            warn(f"the model has no labels of type {', '.join(strange)}, so it misses every such entity", UserWarning)
        return RunEvaluation(data, predicted, marginals, text_scores(data.y, predicted, data))
    classes, marginals = run.classes, run.graph_marginals(data.X, data.places)
    predicted = [[classes[k] for k in table.argmax(axis=1)] for table in marginals]
    return RunEvaluation(data, predicted, marginals, graph_scores(data.y, predicted))
