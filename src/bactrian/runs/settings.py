"""The settings of a run: its data, features, labels, model and learner; as plain data that a file can hold.

The same settings come from a TOML file, from the options of ``bactrian train``, and from ``settings.json`` of a run.
Nothing in them is ever executed: functions are named, and only the library's own are known.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bactrian.errors import ArgumentError, check_choice, check_flag, check_number
from bactrian.estimators.base import LearnedEstimator
from bactrian.estimators.graph_crf import GraphCRF
from bactrian.estimators.sequences import LinearChainCRF, SkipChainCRF
from bactrian.learners.learn import learner_classes
from bactrian.runs.checkpoints import EVERY
from bactrian.text.columns import DOCUMENTS, looks_like_columns
from bactrian.text.documents import RULES
from bactrian.text.entities import checked_scheme
from bactrian.text.features import CONLL, SEMINARS, EntityFeatures, check_strings
from bactrian.text.tagged import SEMINAR_FIELDS
from bactrian.text.tokenizer import SENTENCES, token_spans

MODELS: dict[str, type[LearnedEstimator]] = {
    "chain": LinearChainCRF,
    "skip-chain": SkipChainCRF,
    "graph": GraphCRF,
}
FORMATS = ("columns", "tagged", "graphs")
GRAPH_SUFFIXES = (".npz", ".jsonl", ".ndjson")

#: Settings of the features by name; without parts of speech, so that raw text can be tagged.
FEATURES: dict[str, EntityFeatures] = {
    "conll": dataclasses.replace(CONLL, pos=False),
    "seminars": SEMINARS,
    "none": EntityFeatures(ngrams=0, window=0, reach=0, pos=False, shapes=False),  # the word itself alone
}

_COLUMN = re.compile(r"(%x\[\s*[+-]?\d+\s*,\s*)(\d+)\s*\]")

#: Parameters of estimators that a run does not support.
_NOT_FOR_RUNS = ("warm_start", "verbose", "labels", "class_weight", "word", "device")


@dataclass(frozen=True, kw_only=True)
class InputSettings:
    """How files are read."""

    format: str = "columns"  #: ``"columns"``, ``"tagged"`` (text with inline tags) or ``"graphs"``
    columns: tuple[str, ...] | None = None  #: of files of columns; see :func:`bactrian.text.read_columns`
    separator: str | None = None  #: of columns
    documents: str = "marked"  #: what sets them apart in files of columns
    fields: tuple[str, ...] = SEMINAR_FIELDS  #: inline tags that mark something
    drop: tuple[str, ...] = ("sentence", "paragraph")  #: tags to be taken out
    tokenizer: str = "news"  #: how text is split; see :func:`bactrian.text.tokenize`
    sentences: str = "prose"
    encoding: str = "utf-8"  #: of text files

    def __post_init__(self) -> None:
        check_choice("input.format", self.format, FORMATS)
        check_choice("input.documents", self.documents, DOCUMENTS)
        try:
            token_spans(self.tokenizer)
        except (TypeError, ValueError) as error:
            raise ArgumentError("input.tokenizer", f": {error}") from None
        check_choice("input.sentences", self.sentences, SENTENCES)
        for name in ("columns", "fields", "drop"):
            value = getattr(self, name)
            if value is not None or name != "columns":
                check_strings(f"input.{name}", value)
                object.__setattr__(self, name, tuple(value))
        for name, kinds in (("encoding", str), ("separator", str | None)):
            if not isinstance(getattr(self, name), kinds):
                raise ArgumentError(f"input.{name}", f"must be a string, found {getattr(self, name)!r}")
        try:
            "".encode(self.encoding)
        except LookupError:
            raise ArgumentError("input.encoding", f"is unknown: {self.encoding!r}") from None


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """All settings of ``bactrian train``, which ``predict`` needs, too."""

    train: tuple[str, ...]  #: files, or folders of tagged texts
    dev: str | None = None
    test: str | None = None
    input: InputSettings = field(default_factory=InputSettings)  #: how they are read
    features: Mapping[str, Any] = field(default_factory=dict)  #: of :class:`bactrian.text.EntityFeatures`, for text
    scheme: str = "BIO"  #: label scheme of the model, for tags of entities; ``"none"`` takes tags as they are
    model: str = "chain"  #: one of :data:`MODELS`
    #: Parameters of the estimator; ``method`` may be a dict with the name of a learner and its settings:
    #: ``{"learner": "Camel", "fold": True}``.
    options: Mapping[str, Any] = field(default_factory=dict)
    patience: int | None = None  #: looks at ``dev`` without a smaller loss after which learning stops; None: none
    checkpoint_every: int = EVERY  #: iterations; 0 for no checkpoints
    report: bool = True  #: whether one is written

    def __post_init__(self) -> None:
        object.__setattr__(self, "train", tuple(self.train))
        if not self.train:
            raise ArgumentError("train", "must name at least one file to learn from")
        if self.scheme != "none":
            object.__setattr__(self, "scheme", checked_scheme(self.scheme, "scheme"))
        check_choice("model", self.model, MODELS)
        if "prior_variance" in self.options:
            object.__setattr__(
                self, "options", {**self.options, "prior_variance": _finite(self.options["prior_variance"])}
            )
        graphs = self.input.format == "graphs"
        if graphs != (self.model == "graph"):
            raise ArgumentError("model", f"{self.model!r} does not support data in the format {self.input.format!r}")
        check_number("patience", self.patience, least=1, whole=True, optional=True)
        if self.patience is not None and self.dev is None:
            raise ArgumentError("patience", "needs held-out data: name a file as dev")
        check_number("checkpoint_every", self.checkpoint_every, least=0, whole=True)
        check_flag("report", self.report)
        if not graphs:
            self.extractor()
        self.estimator()

    @property
    def is_text(self) -> bool:
        """Whether the data are texts, not graphs."""
        return self.model != "graph"

    def extractor(self) -> EntityFeatures:
        """What turns words into features."""
        _check_names(self.features, _entries(EntityFeatures), "features")
        with _inside("features"):
            return EntityFeatures(**self.features)

    def estimator(self) -> LearnedEstimator:
        """The estimator with these options, not yet fitted."""
        kind = MODELS[self.model]
        known = [name for name in kind._get_param_names() if name not in _NOT_FOR_RUNS]
        _check_names(self.options, known, f"options of {self.model}")
        check_choice("options.skips", self.options.get("skips", "nearest"), RULES)
        learner = {"method": _learner(self.options["method"])} if "method" in self.options else {}
        estimator = kind(**{**self.options, **learner})
        with _inside("options"):
            estimator.check_params()
        return estimator

    def as_dict(self) -> dict[str, Any]:
        """The settings as plain data, for JSON."""
        values = dataclasses.asdict(self)
        return {**values, "features": dict(self.features), "options": dict(self.options)}

    @staticmethod
    def of(values: Mapping[str, Any]) -> RunSettings:
        """Settings from plain data, as :meth:`as_dict` gives them; what is left out has its default."""
        plain = dict(values)
        _check_names(plain, _entries(RunSettings), "settings")
        for name in ("input", "features", "options"):
            if not isinstance(plain.get(name, {}), Mapping):
                raise ValueError(f"{name} must be a table of settings, found {plain[name]!r}")
        inputs = dict(plain.pop("input", {}))
        _check_names(inputs, _entries(InputSettings), "input")
        train = plain.pop("train", ())
        for name in ("dev", "test"):
            if not isinstance(plain.get(name), str | None):
                raise ValueError(f"{name} must be the name of a file, found {plain[name]!r}")
        listed = [train] if isinstance(train, str) else train
        if not isinstance(listed, Sequence) or not all(isinstance(path, str) for path in listed):
            raise ValueError(f"train must be names of files, found {train!r}")
        return RunSettings(train=tuple(listed), input=InputSettings(**inputs), **plain)


def with_defaults(values: Mapping[str, Any]) -> dict[str, Any]:
    """Fill in defaults that depend on the files: their format, features and model."""
    filled = dict(values)
    train = filled.get("train") or ()
    first = Path(train if isinstance(train, str) else train[0]) if train else Path()
    inputs = dict(filled.get("input", {}))
    if "format" not in inputs:
        texts = first.is_dir() and not _is_column_file(files_of(first)[0])
        inputs["format"] = "graphs" if first.suffix in GRAPH_SUFFIXES else "tagged" if texts else "columns"
    if inputs["format"] == "tagged":
        inputs = {"tokenizer": "plain", "sentences": "document", **inputs}
    filled["input"] = inputs
    graphs = inputs["format"] == "graphs"
    filled.setdefault("model", "graph" if graphs else "chain")
    features = filled.get("features", {})
    if not graphs:
        preset = "seminars" if inputs["format"] == "tagged" else "conll"
        if isinstance(features, Mapping):
            features = dict(features)
            preset = features.pop("preset", preset)
        else:
            preset, features = features, {}
        if "template" in features and "preset" not in (filled.get("features") or ()):
            preset = "none"
        check_choice("features.preset", preset, FEATURES)
        named = {name: getattr(FEATURES[preset], name) for name in _entries(EntityFeatures)}
        filled["features"] = {**named, **_read_features(features, inputs.get("columns"))}
        # Features of texts span an intercept; packs, which see a chunk at a time, need not ask.
        filled["options"] = {"min_frequency": 2, "fit_intercept": False, **filled.get("options", {})}
    elif features:
        raise ValueError("features are for texts; graphs come with their own")
    return filled


def _read_features(features: Mapping[str, Any], columns: Any) -> dict[str, Any]:
    """Settings of features with the contents of their files, and columns of a template by name."""
    read = dict(features)
    if isinstance(read.get("template"), str):
        read["template"] = _lines_of(read["template"], "features.template")
        if columns:
            names = dict(enumerate(columns))
            read["template"] = [
                _COLUMN.sub(lambda found: f"{found[1]}{names.get(int(found[2]), found[2])}]", line)
                for line in read["template"]
            ]
    if isinstance(read.get("gazetteers"), Mapping):
        read["gazetteers"] = {
            name: _lines_of(entries, "features.gazetteers") if isinstance(entries, str) else entries
            for name, entries in read["gazetteers"].items()
        }
    return read


def _lines_of(path: str, setting: str) -> list[str]:
    """Lines of a UTF-8 file, without empty ones at the end of it."""
    try:
        return Path(path).read_text(encoding="utf-8-sig").rstrip().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        problem = error.strerror if isinstance(error, OSError) else f"not UTF-8: {error}"
        raise ArgumentError(setting, f": {path}: {problem}") from None


def files_of(path: Path) -> list[Path]:
    """The files of a folder, or the file itself."""
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.iterdir() if file.is_file() and not file.name.startswith("."))
    if not files:
        raise ValueError(f"{path} holds no files")
    return files


def _is_column_file(path: Path) -> bool:
    """Whether a file starts like one of columns."""
    with path.open("rb") as stream:
        lines = [line.decode("latin-1") for line in stream.readlines(1 << 16)]
    return looks_like_columns("".join(lines), ())


def _finite(variance: Any) -> Any:
    """A variance, or one per block; infinity stands for None, which neither options nor TOML can express."""
    if isinstance(variance, Mapping):
        return {name: _finite(value) for name, value in variance.items()}
    return None if variance == math.inf else variance


def _learner(method: Any) -> Any:
    if isinstance(method, str):
        return method
    if not isinstance(method, Mapping) or "learner" not in method:
        expected = "a name or a table with a learner and its settings"
        raise ArgumentError("options.method", f"must be {expected}, found {method!r}")
    settings = dict(method)
    name = settings.pop("learner")
    learners = learner_classes()
    check_choice("options.method.learner", name, learners)
    try:
        return learners[name](**settings)
    except (TypeError, ValueError) as error:
        raise ArgumentError("options.method", f": {error}") from None


@contextmanager
def _inside(table: str) -> Iterator[None]:
    """Name the table of settings in errors about its arguments."""
    try:
        yield
    except ArgumentError as error:
        raise type(error)(f"{table}.{error.argument}", error.problem) from None


def _entries(table: Any) -> list[str]:
    """Names of the settings that a data class takes."""
    return [entry.name for entry in dataclasses.fields(table) if entry.init]


def _check_names(values: Mapping[str, Any], known: Sequence[str], name: str) -> None:
    for key in values:
        if key not in known:
            raise ValueError(f"{name} has no entry {key!r}; it has {', '.join(known)}")
