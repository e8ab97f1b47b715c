"""Options of ``bactrian train`` and ``pack``, each a setting of the run, and a TOML file of settings."""

from __future__ import annotations

import inspect
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from bactrian.errors import ArgumentError

Config = Annotated[Path | None, typer.Option(help="TOML file with settings; options on the command line override it.")]


def number_or_name(text: str) -> float | str:
    """The text as a number, if it is one."""
    try:
        return float(text)
    except ValueError:
        return text


@dataclass(frozen=True)
class RunOption:
    """An option of the command line; its value is checked with the other settings of a run."""

    setting: str  #: its place among the settings: ``options.n_threads``
    kind: Any  #: what the command line reads; ``list`` are names with commas between them, ``dict`` files by name
    help: str
    flags: str = ""  #: where they are not made from the setting
    limit: bool = False  #: whether ``--resume`` may change it

    @property
    def name(self) -> str:
        """The option as the commands know it."""
        return self.flag.removeprefix("--").replace("-", "_")

    @property
    def flag(self) -> str:
        """The option as it is typed."""
        if self.flags:
            return self.flags.split()[0].split("/")[0]
        return f"--{self.setting.rpartition('.')[2].replace('_', '-')}"

    @property
    def parameter(self) -> inspect.Parameter:
        """The option as typer wants it."""
        flags = self.flags.split() or [self.flag]
        metavar = {list: "LIST", str: "NAME", number_or_name: "NUMBER", dict: "[NAME=]FILE"}.get(self.kind)
        kind: Any = list[str] if self.kind is dict else str if self.kind in (list, number_or_name) else self.kind
        annotation = Annotated[kind | None, typer.Option(*flags, metavar=metavar, help=self.help)]
        return inspect.Parameter(self.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)

    def read(self, value: Any) -> Any:
        """The value as settings hold it."""
        if self.kind is list:
            return [part.strip() for part in value.split(",") if part.strip()]
        if self.kind is number_or_name:
            return number_or_name(value)
        if self.kind is dict:
            pairs = [entry.rpartition("=")[::2] for entry in value]
            return {name or Path(path).stem: str(Path(path).absolute()) for name, path in pairs}
        return str(value.absolute()) if self.kind is Path else value


#: What the data, features, labels and model are; a pack settles these.
DATA_OPTIONS = (
    RunOption("input.format", str, "Format of the files: columns, tagged or graphs (default: guessed from the files)."),
    RunOption("input.columns", list, "Names of the columns, such as word,pos,chunk,tag (default: by their number)."),
    RunOption(
        "input.documents",
        str,
        "What separates documents, besides -DOCSTART- lines: marked (nothing else), blank-lines (two of them) or "
        "sentences (every sentence is a document) (default: marked).",
    ),
    RunOption("input.fields", list, "Names of the inline tags (default: stime,etime,location,speaker)."),
    RunOption(
        "input.tokenizer",
        str,
        "How predict splits raw text: news, plain, characters, whitespace, the name of a registered tokenizer, or a "
        "regular expression (default: news; plain for tagged texts).",
    ),
    RunOption("input.encoding", str, "Encoding of text files (default: utf-8)."),
    RunOption(
        "features.preset",
        str,
        "Set of features: conll, seminars or none (default: conll; seminars for tagged texts). The table features of "
        "a TOML file changes single settings.",
        "--features",
    ),
    RunOption(
        "features.pos",
        bool,
        "Use the column pos; such a model cannot tag raw text (default: --no-pos).",
        "--pos/--no-pos",
    ),
    RunOption(
        "features.columns",
        list,
        "More columns to use as features, such as chunk,lemma; such a model cannot tag raw text (default: none).",
        "--feature-columns",
    ),
    RunOption(
        "features.template",
        Path,
        "A feature template as in CRF++, with lines such as U01:%x[-1,0]/%x[0,pos]. It replaces the other features, "
        "unless --features names some.",
    ),
    RunOption(
        "features.gazetteers",
        dict,
        "A file with one name per line; tokens in it get a feature called NAME (default: the name of the file). May be "
        "repeated.",
        "--gazetteer",
    ),
    RunOption("features.own", list, "Names of features that a plugin registers (default: none).", "--own-features"),
    RunOption(
        "scheme",
        str,
        "Label scheme of the model: BIO, BIOES, BILOU, BMES, IOB1 or IO; none keeps tags as they are (default: BIO).",
    ),
    RunOption("model", str, "Model: chain, skip-chain or graph (default: chain; graph for graphs)."),
    RunOption("options.min_frequency", int, "Drop features that occur on fewer tokens (default: 2)."),
)

#: How a run learns, is scored and is shown.
LEARNING_OPTIONS = (
    RunOption("dev", Path, "Labelled data to score the model on, and with --patience to stop by."),
    RunOption("test", Path, "More labelled data to score the model on; if both are given, the report shows this one."),
    RunOption(
        "patience",
        int,
        "Stop after so many looks at --dev, every 5 iterations, without a smaller log loss, and keep the weights of "
        "the smallest (default: learn to the end).",
    ),
    RunOption(
        "options.method",
        str,
        "Learner: exact, cccp, cccp-empirical, camel0, piecewise, lbp, trw, convex, pseudolikelihood, "
        "piecewise-pseudolikelihood, ups or pseudo-moments (default: exact for chains, cccp for skip chains, CAMEL "
        "with a convex entropy for graphs).",
        "--method -m",
    ),
    RunOption(
        "options.prior_variance",
        number_or_name,
        "Variance of the Gaussian prior; inf for no prior, auto to choose it by held-out labels, cv by "
        "cross-validation of whole fits (default: auto).",
    ),
    RunOption("options.l1", float, "Coefficient of an L1 penalty (default: 0)."),
    RunOption("options.tolerance", float, "Tolerance at which learning stops (default: 1e-3; 1e-4 for skip chains)."),
    RunOption(
        "options.max_iterations", int, "Maximum number of iterations, over all sessions (default: 10000).", limit=True
    ),
    RunOption(
        "options.max_seconds",
        float,
        "Time limit of a session, in seconds, compiling not counted (default: no limit).",
        limit=True,
    ),
    RunOption("options.n_threads", int, "Number of threads (default: one per core).", "--threads", limit=True),
    RunOption("options.seed", int, "Seed of learners that draw random numbers (default: 0)."),
    RunOption("checkpoint_every", int, "Iterations between checkpoints; 0 for none (default: 100)."),
    RunOption("report", bool, "Write report.html (default: --report).", "--report/--no-report"),
)


def takes(options: Sequence[RunOption]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command these options; it gets their values as keywords, None for those not given."""

    def with_options(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        own = [entry for entry in signature.parameters.values() if entry.kind is not entry.VAR_KEYWORD]
        parameters = [*own, *(option.parameter for option in options)]
        command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return command

    return with_options


@dataclass(frozen=True)
class GivenOptions:
    """The options that were given, with their values."""

    values: Mapping[RunOption, Any]

    @staticmethod
    def of(given: Mapping[str, Any], options: Sequence[RunOption]) -> GivenOptions:
        """Those of a command that ``takes`` these options."""
        return GivenOptions({option: given[option.name] for option in options if given[option.name] not in (None, [])})

    @property
    def settings(self) -> dict[str, Any]:
        """The values as settings, in tables."""
        settings: dict[str, Any] = {}
        for option, value in self.values.items():
            table, _, name = option.setting.rpartition(".")
            (settings.setdefault(table, {}) if table else settings)[name] = option.read(value)
        return settings

    @property
    def limits(self) -> dict[str, Any]:
        """The values of limits, by the name of the estimator's parameter."""
        return {option.setting.rpartition(".")[2]: value for option, value in self.values.items() if option.limit}

    def in_words(self, error: ArgumentError) -> str:
        """The message of an error, which names the option as it is typed."""
        flags = {option.setting: option.flag for option in self.values}
        return error.said_of(flags[error.argument]) if error.argument in flags else str(error)


def merged_settings(files: Sequence[Path] | None, given: GivenOptions, config: Path | None) -> dict[str, Any]:
    """Settings of the TOML file, overruled by files and options; ``output`` is the folder of the run, if it names one.

    Where the data is a pack, its own settings come first, and those that it fixes cannot be overruled.
    """
    values: dict[str, Any] = {}
    if config is not None:
        try:
            values = tomllib.loads(config.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{config}: {error}") from None
        beside = config.absolute().parent
        values |= _placed({name: values[name] for name in ("train", "dev", "test", "output") if name in values}, beside)
        if isinstance(values.get("train"), list):
            values["train"] = [str(beside / str(path)) for path in values["train"]]
        features = values.get("features")
        if isinstance(features, dict):
            named = {name: features[name] for name in ("template", "gazetteers") if name in features}
            values["features"] = features | _placed(named, beside)
    if files:
        values["train"] = [str(path.absolute()) for path in files]
    for name, value in given.settings.items():
        before = values.get(name, {})
        if isinstance(value, dict):
            before = {"preset": before} if isinstance(before, str) and name == "features" else before
            if not isinstance(before, dict):
                raise ValueError(f"{config}: {name} must be a table, found {before!r}")
            value = {**before, **value}
        values[name] = value
    if not values.get("train"):
        raise ValueError("no file to learn from: give one or more, or --config or --resume")
    return _of_pack(values)


def _placed(files: dict[str, Any], beside: Path) -> dict[str, Any]:
    """Names of files, in tables too, relative to the folder of the TOML file; other values stay as they are."""
    return {
        name: str(beside / file) if isinstance(file, str) else _placed(file, beside) if isinstance(file, dict) else file
        for name, file in files.items()
    }


def _of_pack(values: dict[str, Any]) -> dict[str, Any]:
    from bactrian.runs.folders import RunFolder
    from bactrian.runs.packs import is_pack

    train = values["train"]
    paths = [train] if isinstance(train, str) else list(train)
    packs = [path for path in paths if is_pack(Path(path))]
    if not packs:
        return values
    if len(paths) > 1:
        raise ValueError(f"{packs[0]} is a pack; train on it alone, without other files")
    told = {*values, *values.get("options", {})}
    fixed = [name for name in ("input", "features", "scheme", "model", "min_frequency") if name in told]
    if fixed:
        raise ValueError(f"{fixed[0]} is fixed in the pack {packs[0]}; leave it out, or pack again")
    base = RunFolder(Path(packs[0])).read_settings()[0].as_dict()
    options = {**base["options"], **values.get("options", {})}
    return {**base, **values, "train": packs, "options": options}
