"""Packs: the training data of a run in a folder of chunks, with settings and the model that is to be learned.

A pack is made in passes over the files that keep names of features and labels in memory, and one chunk at a time. What
``bactrian train`` learns from it is what it would learn from the files themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bactrian.atomic_files import atomic_folder
from bactrian.engines.files import PackedFolder
from bactrian.estimators.auto_prior import of_all, sampled_places
from bactrian.estimators.base import LearnedEstimator
from bactrian.estimators.encoding import GrowingVocabulary
from bactrian.estimators.labelled_sequences import SequenceCodec
from bactrian.estimators.labels import Labels, known_labels
from bactrian.graphs.graph_data import GraphData
from bactrian.runs.folders import RunFolder, check_free
from bactrian.runs.graph_files import LabelledGraph, places_of
from bactrian.runs.run_data import batches, breaks_of, labelled_documents, labelled_graphs
from bactrian.runs.settings import MODELS, RunSettings
from bactrian.runs.texts import say_reading, tag_reading
from bactrian.solvers.solution import Solution, Status
from bactrian.text.documents import Document

#: Tokens or nodes of a chunk.
CHUNK = 50_000

#: Sees what is being done, and how many chunks are written.
Told = Callable[[str, int], None]


def is_pack(path: Path) -> bool:
    """Whether ``path`` is a folder that :func:`write_pack` wrote."""
    return PackedFolder.is_one(path) and (path / "model.safetensors").is_file()


def write_pack(
    path: Path, settings: RunSettings, *, chunk: int = CHUNK, tell: Told = lambda what, n: None
) -> PackedFolder:
    """Pack the files that ``settings.train`` names; the folder, which must not exist, appears when all is written."""
    check_free(path)
    estimator = settings.estimator()
    tell("looking at the data", 0)
    parts = _text_parts(settings, estimator, chunk) if settings.is_text else _graph_parts(settings, estimator, chunk)
    with atomic_folder(path) as draft:
        packed = PackedFolder.write(draft, _told(parts, tell))
        # The model as it is before anything is learned: with weights of 0.
        nothing = Solution(np.zeros(packed.n_weights), Status.STOPPED)
        estimator.set_params(**settings.estimator().get_params(deep=False)).adopt(nothing)
        estimator.save(draft / "model.safetensors")
        RunFolder(draft).write_settings(settings, {})
    return PackedFolder.open(path)


def _told(parts: Iterable[GraphData], tell: Told) -> Iterator[GraphData]:
    for n, part in enumerate(parts):
        tell("packing", n)
        yield part


def estimator_of_pack(path: Path, settings: RunSettings) -> LearnedEstimator:
    """The estimator that is to learn from a pack: what the data fixed, and the options of the settings."""
    estimator = MODELS[settings.model].load(path / "model.safetensors")
    estimator.set_params(**settings.estimator().get_params(deep=False))
    return estimator


def _text_parts(settings: RunSettings, estimator: Any, chunk: int) -> Iterator[GraphData]:
    extractor = settings.extractor()

    def documents() -> Iterator[Document]:
        return (document for document in labelled_documents(settings.train, settings) if len(document))

    reading = tag_reading(documents(), settings.train, settings, None)
    if reading.unknown:
        raise ValueError(
            f"{', '.join(settings.train)}: some tags are unknown, and a pack needs every tag; train from files"
        )
    say_reading(reading, documents(), settings.train)
    growing, classes, sizes = GrowingVocabulary(), set[str](), list[int]()
    for batch in batches(documents(), len, chunk):
        growing.add(list(extractor.extract_many(batch)))
        classes.update(tag for document in batch for tag in reading.tags(document))
        sizes += map(len, batch)
    vocabulary = growing.vocabulary(estimator.min_frequency)
    estimator.codec_ = SequenceCodec(Labels.of([], sorted(classes)), {"X": vocabulary})
    del growing

    def encoded(batch: list[Document]) -> GraphData:
        X = list(extractor.extract_many(batch))
        return estimator.encode(X, [reading.tags(document) for document in batch], breaks=breaks_of(batch))

    estimator.set_params(warm_start=True, prior_variance=None)
    for batch in batches(documents(), len, chunk):
        yield encoded(batch)
    _choose_prior_of_pack(estimator, settings, encoded, documents(), sizes)


def _choose_prior_of_pack(
    estimator: Any, settings: RunSettings, encoded: Callable[[list[Any]], GraphData], parts: Iterable[Any], sizes: Any
) -> None:
    """Choose the prior by the sample of the parts of these sizes that would be looked at if all were in memory."""
    if settings.estimator().prior_variance != "auto":
        return
    estimator.set_params(prior_variance="auto")
    places = sampled_places(np.array(sizes))
    chosen = set(places.tolist())
    sample = encoded([part for place, part in enumerate(parts) if place in chosen])
    codec = estimator.codec_
    estimator.codec_ = replace(codec, auto_prior=of_all(codec.auto_prior, codec.block_names[0], sample, sum(sizes)))


def _graph_parts(settings: RunSettings, estimator: Any, chunk: int) -> Iterator[GraphData]:
    classes, n_edge_features = set[Any](), None
    for graph in labelled_graphs(settings.train):
        labels = np.asarray(graph.labels)
        if not known_labels(labels).all():
            raise ValueError(f"{graph.place}: some labels are unknown, and a pack needs every label; train from files")
        classes.update(labels.tolist())
        if graph.edge_features is not None and len(graph.edges):
            n_edge_features = graph.edge_features.shape[1]
    estimator.set_params(labels=sorted(classes))

    def graphs() -> Iterator[LabelledGraph]:
        for graph in labelled_graphs(settings.train):
            if n_edge_features is not None and not len(graph.edges):  # a chunk may have no others
                graph = replace(graph, edge_features=np.zeros((0, n_edge_features)))
            if len(graph.node_features):
                yield graph

    def encoded(batch: list[LabelledGraph]) -> GraphData:
        with places_of([graph.place for graph in batch]):
            return estimator.encode([graph.inputs for graph in batch], [graph.labels for graph in batch])

    known, sizes = 0.0, list[int]()
    estimator.set_params(prior_variance=None)
    for batch in batches(graphs(), lambda graph: len(graph.node_features), chunk):
        part = encoded(batch)
        estimator.set_params(warm_start=True)
        known += estimator.codec_.n_known
        sizes += [len(graph.node_features) for graph in batch]
        yield part
    _choose_prior_of_pack(estimator, settings, encoded, graphs(), sizes)
    estimator.codec_ = replace(estimator.codec_, n_known=known)
