"""Packs: the training data of a run in a folder of chunks, with settings and the model that is to be learned.

A pack is made in passes over the files that keep names of features and labels in memory, and one chunk at a time. What
``bactrian train`` learns from it is what it would learn from the files themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bactrian.engines.files.packed_folder import PackedFolder
from bactrian.estimators.base import LearnedEstimator
from bactrian.estimators.encoding import GrowingVocabulary
from bactrian.files import atomic_folder
from bactrian.graphs.graph_data import GraphData
from bactrian.runs.folders import RunFolder, check_free
from bactrian.runs.graph_files import places_of
from bactrian.runs.run_data import batches, breaks_of, labelled_documents, labelled_graphs, say_reading, tag_reading
from bactrian.runs.settings import MODELS, RunSettings
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
    """Pack the files that ``settings.train`` names; the folder appears when all is written.

    Raises
    ------
    ValueError
        For what cannot be read, has no labels, or is empty, and for a folder that exists.
    """
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


def settings_of_pack(path: Path) -> RunSettings:
    """The settings with which a pack was made."""
    return RunFolder(path).read_settings()[0]


def estimator_of_pack(path: Path, settings: RunSettings) -> LearnedEstimator:
    """The estimator that is to learn from a pack: what the data fixed, and the options of the settings."""
    estimator = MODELS[settings.model].load(path / "model.safetensors")
    estimator.set_params(**settings.estimator().get_params(deep=False))
    return estimator


def _told(parts: Iterable[GraphData], tell: Told) -> Iterator[GraphData]:
    for n, part in enumerate(parts):
        tell("packing", n)
        yield part


# --- text ---


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
    growing, classes = GrowingVocabulary(), set[str]()
    for batch in batches(documents(), len, chunk):
        growing.add(list(extractor.extract_many(batch)))
        classes.update(tag for document in batch for tag in reading.tags(document))
    estimator.begin(sorted(classes), growing.vocabulary(estimator.min_frequency))
    estimator.set_params(warm_start=True)
    del growing

    def parts() -> Iterator[GraphData]:
        for batch in batches(documents(), len, chunk):
            X = list(extractor.extract_many(batch))
            yield estimator.encode(X, [reading.tags(document) for document in batch], breaks=breaks_of(batch))

    return parts()


# --- graphs ---


def _graph_parts(settings: RunSettings, estimator: Any, chunk: int) -> Iterator[GraphData]:
    classes = {label for graph in labelled_graphs(settings.train) for label in np.asarray(graph.labels).tolist()}
    estimator.set_params(labels=sorted(classes))

    def parts() -> Iterator[GraphData]:
        known, sizes, squares = 0.0, np.zeros(2), np.zeros(2)
        for batch in batches(labelled_graphs(settings.train), lambda graph: len(graph.node_features), chunk):
            with places_of([graph.place for graph in batch]):
                part = estimator.encode([graph.inputs for graph in batch], [graph.labels for graph in batch])
            estimator.set_params(warm_start=True)
            known += estimator.n_known_
            size = np.array([part.n_nodes, len(part.edges)])
            sizes, squares = sizes + size, squares + size * list(estimator.mean_squares_.values())
            yield part
        means = np.where(sizes > 0, squares / np.maximum(sizes, 1), 1.0)
        estimator.n_known_, estimator.mean_squares_ = known, {"nodes": float(means[0]), "edges": float(means[1])}

    return parts()
