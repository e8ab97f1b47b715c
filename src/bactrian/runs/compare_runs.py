"""Runs as a comparison, for the report: scores, curves, tables, confusions, weights and some texts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from bactrian.arrays import Floats
from bactrian.estimators.base import largest_weights
from bactrian.estimators.sequences import LinearChainCRF, SkipChainCRF
from bactrian.runs.comparison import (
    Comparison,
    Confusion,
    Entry,
    LabelTable,
    Metric,
    NamedWeight,
    TaggedText,
    Tagging,
    Training,
    log_loss,
    reliability,
)
from bactrian.runs.fitted_run import FittedRun, RunEvaluation, evaluate_run
from bactrian.runs.run_data import checksum
from bactrian.text.documents import Document, joined_text, skip_edges
from bactrian.text.entities import Score
from bactrian.text.features import feature_key, features_in_words

_METRICS = {
    "f1": Metric("f1", "entity F1", ".1%", True, "harmonic mean of precision and recall of whole entities, all types"),
    "macro_f1": Metric("macro_f1", "macro F1", ".1%", True, "mean entity F1 of the types"),
    "accuracy": Metric("accuracy", "accuracy", ".1%", True, "part of the labels that are right"),
    "ece": Metric("ece", "ECE", ".3f", False, "expected calibration error of the marginals"),
}
_MODELS = {"chain": "linear chain", "skip-chain": "skip chain", "graph": "graph"}
_OPTIONS = {"n_threads": "threads", "max_seconds": "time limit (seconds)", "l1": "L1 penalty"}
_MOST_TEXTS = 8  #: documents that the page shows
_LONGEST_TEXT = 2_000  #: tokens of a document, beyond which its sentences are shown
_LARGEST_TABLE = 40  #: labels, beyond which a heat map or a confusion matrix tells nothing


def compare_runs(runs: Sequence[FittedRun], *, known: Mapping[str, RunEvaluation] | None = None) -> Comparison:
    """Runs side by side; each is scored on its test file, or its dev file, where that is still as it was.

    ``known`` are evaluations of a single run that need not be made again, by path.
    """
    names = _names(runs)
    entries, evaluations = [], []
    for name, run in zip(names, runs, strict=True):
        evaluation = _evaluation(run, known or {})
        evaluations.append(evaluation)
        entries.append(_entry(name, run, evaluation))
    used = [metric for key, metric in _METRICS.items() if any(key in entry.metrics for entry in entries)]
    weights = [weight.feature for entry in entries for weight in entry.weights]
    text = any(run.settings.is_text for run in runs)
    return Comparison(
        title=f"{names[0]}: {_MODELS[runs[0].settings.model]}" if len(runs) == 1 else "Runs side by side",
        summary=" ".join(_remarks(names, runs, evaluations)),
        metrics=tuple(used),
        entries=tuple(entries),
        facts=_facts(runs[0]) if len(runs) == 1 else {},
        texts=_texts(names, runs, evaluations),
        feature_key=feature_key(weights) if text else {},
    )


def _remarks(names: Sequence[str], runs: Sequence[FittedRun], evaluations: Sequence[Any]) -> list[str]:
    """Remarks on the scores: that there are none, or that runs differ in their data."""
    remarks = [] if any(evaluations) else ["No file was named to test on, so there are no scores."]
    checksums = [run.folder.read_settings()[1] for run in runs]
    for what, paths in (
        ("learned from", [run.settings.train for run in runs]),
        ("scored on", [tuple(filter(None, [run.settings.test or run.settings.dev])) for run in runs]),
    ):
        contents = [
            tuple(sums.get(path, path) for path in listed) for sums, listed in zip(checksums, paths, strict=True)
        ]
        if len(set(contents)) > 1:
            each = [f"{name} {_files(listed) or 'nothing'}" for name, listed in zip(names, paths, strict=True)]
            remarks.append(
                f"The runs were {what} different data, so their scores cannot be compared: {'; '.join(each)}."
            )
    return remarks


def _files(paths: Sequence[str]) -> str:
    return ", ".join(Path(path).name for path in paths)


def _names(runs: Sequence[FittedRun]) -> list[str]:
    names = [run.folder.path.resolve().name for run in runs]
    return names if len(set(names)) == len(names) else [str(run.folder.path) for run in runs]


def _evaluation(run: FittedRun, known: Mapping[str, RunEvaluation]) -> RunEvaluation | None:
    path = run.settings.test or run.settings.dev
    if path is not None and path in known:
        return known[path]
    _, checksums = run.folder.read_settings()
    if path is None or not Path(path).exists() or checksum(Path(path)) != checksums.get(path):
        return None
    return evaluate_run(run, [path])


def _entry(name: str, run: FittedRun, evaluation: RunEvaluation | None) -> Entry:
    stored = run.folder.read_metrics()
    description = f"{run.settings.model}, {run.estimator.solution_.method}"
    scores = evaluation.scores if evaluation is not None else stored.get("test") or stored.get("dev") or {}
    trace, records = run.folder.read_history()
    training = Training.of(replace(run.estimator.solution_, history=tuple(records)), trace)
    entry = Entry(name, description, _flat(scores), training, tables=_tables(run), weights=_weights(run))
    if evaluation is None:
        return entry
    entry = judged(entry, run.classes, evaluation.data.y, evaluation.predicted, evaluation.marginals)
    assert entry.confusion is not None
    few = len(entry.confusion.labels) <= _LARGEST_TABLE
    return replace(entry, types=_types(scores, entry.confusion), confusion=entry.confusion if few else None)


def judged(
    entry: Entry,
    classes: Sequence[Any],
    truth: Iterable[Any],
    predicted: Iterable[Sequence[Any]],
    marginals: Sequence[Floats],
) -> Entry:
    """An entry with metrics, calibration and confusion of the labels of sequences or graphs."""
    position = {label: k for k, label in enumerate(classes)}
    true = [label for labels in truth for label in np.asarray(labels).tolist()]
    guess = [label for labels in predicted for label in labels]
    known = np.array([position.get(label, -1) for label in true], dtype=np.int64)
    metrics, calibration = dict(entry.metrics), None
    if known.size:
        table, seen = np.concatenate(marginals), known >= 0
        calibration = reliability(table, known)
        metrics |= {"ece": calibration.error}
        metrics |= {"log_loss": log_loss(table[seen], known[seen])} if seen.any() else {}
    labels = sorted({*map(str, true), *map(str, classes)}, key=lambda label: (label != "O", label[2:], label))
    confusion = Confusion.of(map(str, true), map(str, guess), labels)
    return replace(entry, metrics=metrics, reliability=calibration, confusion=confusion)


def _types(scores: dict[str, Any], confusion: Confusion) -> dict[str, Mapping[str, float]]:
    """Scores of each type of entity and of all; where nothing marks entities, of each label."""
    if "entities" in scores:
        found = scores["entities"]
        return {**found["types"], "all together": found["micro"], "mean of the types": found["macro"]}
    counts = confusion.counts
    rows = zip(counts.sum(axis=1).tolist(), counts.sum(axis=0).tolist(), np.diag(counts).tolist(), strict=True)
    return {name: Score(*row).as_dict() for name, row in zip(confusion.labels, rows, strict=True)}


def _flat(scores: dict[str, Any]) -> dict[str, float]:
    flat = {"accuracy": scores["accuracy"]} if "accuracy" in scores else {}
    if "entities" in scores:
        flat |= {"f1": scores["entities"]["micro"]["f1"], "macro_f1": scores["entities"]["macro"]["f1"]}
    return flat


def _tables(run: FittedRun) -> tuple[LabelTable, ...]:
    names = tuple(map(str, run.classes))
    if len(names) > _LARGEST_TABLE:
        return ()
    model: Any = run.estimator
    if run.settings.model == "graph":
        return tuple(
            LabelTable("edges" if table.ndim == 2 else "edges, all together", table.reshape(-1, *table.shape[-2:])[-1],
                       names, names)
            for table in model.weight_tables()[1]
        )  # fmt: skip
    return tables_of(model)


def tables_of(model: LinearChainCRF | SkipChainCRF) -> tuple[LabelTable, ...]:
    """The tables of a chain, those of skip edges last."""
    labels, pairs = model.classes_.tolist(), model.transition_features_
    tables = {"transitions": np.array([[pairs[a, b] for b in labels] for a in labels])}
    if isinstance(model, SkipChainCRF):
        tables["skip edges"] = np.asarray(model.skip_table_)
    names = tuple(map(str, labels))
    return tuple(LabelTable(title, table, names, names) for title, table in tables.items())


def _weights(run: FittedRun) -> tuple[NamedWeight, ...]:
    model: Any = run.estimator
    if run.settings.is_text:
        found = model.top_features(20)
    else:
        table = model.weight_tables()[0]
        features = [f"feature {i}" for i in range(len(table))]
        if model.codec_.reader.intercepts[0]:
            features[-1] = "intercept"
        found = [entry for entry in largest_weights(table, features, run.classes, 20) if entry[2] != 0.0]
    return tuple(NamedWeight(str(feature), str(label), value) for feature, label, value in found)


def _facts(run: FittedRun) -> dict[str, str]:
    settings, metrics = run.settings, run.folder.read_metrics()
    options = dict(settings.options)
    facts = {"model": _MODELS[settings.model], "learner": str(metrics["method"])}
    facts["learned from"] = _files(settings.train)
    scored = settings.test or settings.dev
    if scored is not None:
        facts["scored on"] = Path(scored).name
    facts["labels"] = f"{len(run.classes)}" + (f", in the scheme {settings.scheme}" if settings.is_text else "")
    facts["weights"] = f"{metrics['weights']:,}"
    facts["prior"] = prior_in_words(getattr(run.estimator, "prior_variance_", options.get("prior_variance", 10.0)))
    frequency = options.get("min_frequency", 1)
    if frequency > 1:
        facts["rare features"] = f"dropped on fewer than {frequency} tokens"
    said = ("method", "prior_variance", "min_frequency", "fit_intercept")
    usual = type(run.estimator)().get_params()
    facts |= {
        _OPTIONS.get(name, name.replace("_", " ")): str(value)
        for name, value in options.items()
        if name not in said and value != usual.get(name)
    }
    if settings.is_text:
        facts["features"] = features_in_words(settings.extractor())
    return facts


def prior_in_words(variance: Any) -> str:
    """A prior as learned with."""
    if variance is None:
        return "none"
    if isinstance(variance, Mapping):
        return "Gaussian; variance " + ", ".join(
            f"{'none' if v is None else f'{v:.3g}'} for {name}" for name, v in variance.items()
        )
    return f"Gaussian, variance {variance:g}" if isinstance(variance, int | float) else "Gaussian"


def _texts(
    names: Sequence[str], runs: Sequence[FittedRun], evaluations: Sequence[RunEvaluation | None]
) -> tuple[TaggedText, ...]:
    """The first documents that the first run was scored on, with the labels of every run scored on the same."""
    first = next((number for number, evaluation in enumerate(evaluations) if evaluation is not None), None)
    if first is None or not runs[first].settings.is_text:
        return ()
    base = evaluations[first]
    assert base is not None
    settings, classes = runs[first].settings, runs[first].classes
    linked = settings.model == "skip-chain" and settings.options.get("skips", "nearest") == "nearest"
    same = [
        (name, evaluation)
        for name, run, evaluation in zip(names, runs, evaluations, strict=True)
        if evaluation is not None and run.classes == classes and evaluation.data.y == base.data.y
    ]
    texts = []
    for number, title, document, part in islice(_pieces(base.data.documents), _MOST_TEXTS):
        truth = base.data.y[number][part]
        found = {name: Tagging(tuple(one.predicted[number][part]), one.marginals[number][part]) for name, one in same}
        skips = skip_edges(document.words) if linked else ()
        texts.append(shown_text(document, title, truth, found, classes, skips))
    return tuple(texts)


def _pieces(documents: Sequence[Document]) -> Iterator[tuple[int, str, Document, slice]]:
    """What the page shows: documents, or the sentences of one that is too long to read, and where they are in it."""
    for number, document in enumerate(documents):
        title, bounds = document.name or f"Document {number + 1}", [0, len(document)]
        pieces = [document]
        if len(document) > _LONGEST_TEXT:
            bounds, pieces = [*document.sentence_starts.tolist(), len(document)], list(document.sentences())
        for k, (piece, first, last) in enumerate(zip(pieces, bounds[:-1], bounds[1:], strict=True)):
            if len(piece):
                yield number, title if len(pieces) == 1 else f"{title}, sentence {k + 1}", piece, slice(first, last)


def shown_text(
    document: Document,
    title: str,
    truth: Iterable[str],
    predictions: Mapping[str, Tagging],
    classes: Iterable[Any],
    skips: Iterable[Sequence[int]],
) -> TaggedText:
    """A document as the report shows it."""
    joined = joined_text(document)
    text, starts, stops = joined.text or "", np.asarray(joined.starts), np.asarray(joined.stops)
    ends = [*starts[1:].tolist(), len(text)]
    return TaggedText(
        title=title,
        tokens=tuple(document.words),
        truth=tuple(truth),
        predictions=predictions,
        label_names=tuple(map(str, classes)),
        gaps=tuple(text[stop:start] for stop, start in zip(stops.tolist(), ends, strict=True)),
        skips=tuple((int(a), int(b)) for a, b in skips),
    )
