"""Settings of a run from a TOML file and from options."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Any

import typer

# What train and pack are both told.
Format = Annotated[
    str | None, typer.Option(metavar="NAME", help="columns, tagged or graphs; by the file's name otherwise.")
]
Columns = Annotated[str | None, typer.Option(metavar="LIST", help="Names of the columns, such as word,pos,chunk,tag.")]
Fields = Annotated[str | None, typer.Option(metavar="LIST", help="Names of the inline tags, such as speaker,location.")]
Encoding = Annotated[str | None, typer.Option(help="Of text files; utf-8.")]
Features = Annotated[
    str | None, typer.Option(metavar="NAME", help="conll or seminars; the TOML file's table features has more.")
]
Scheme = Annotated[str | None, typer.Option(help="Label scheme of the model: BIO, BIOES, IOB1 or IO.")]
Model = Annotated[str | None, typer.Option(help="chain, skip-chain or graph.")]
MinFrequency = Annotated[int | None, typer.Option(min=1, help="Features on fewer tokens are dropped; 2 by default.")]
Config = Annotated[Path | None, typer.Option(help="Settings in a TOML file; options given here win.")]


def listed(text: str | None) -> list[str] | None:
    """Names with commas between them."""
    return None if text is None else [part.strip() for part in text.split(",") if part.strip()]


def options_among(given: dict[str, Any]) -> set[str]:
    """Names of the settings that options gave, those of tables as well; files are named by themselves."""
    plain = {name: value for name, value in given.items() if name not in ("train", "dev", "test")}
    names = {name for name, value in plain.items() if value is not None and not isinstance(value, dict)}
    for name, table in given.items():
        if isinstance(table, dict):
            names |= {key for key, value in table.items() if value is not None}
            names |= {name} if table.get("preset") is not None else set()
    return names


def settings_from(given: dict[str, Any], config: Path | None) -> tuple[dict[str, Any], Path]:
    """Those of the TOML file, overruled by what was given; and the folder of the run.

    Where the data is a pack, its own settings come first, and those that it fixes cannot be overruled.
    """
    values: dict[str, Any] = {}
    folder = Path("bactrian-run")
    if config is not None:
        try:
            values = tomllib.loads(config.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{config}: {error}") from None
        beside = config.absolute().parent
        for name in ("train", "dev", "test"):
            if isinstance(values.get(name), str):
                values[name] = str(beside / values[name])
            elif isinstance(values.get(name), list):
                values[name] = [str(beside / str(path)) for path in values[name]]
        if "output" in values:
            folder = beside / str(values.pop("output"))
    for name, value in given.items():
        if isinstance(value, dict):
            wanted = {key: entry for key, entry in value.items() if entry is not None}
            before = values.get(name, {})
            before = {"preset": before} if isinstance(before, str) and name == "features" else before
            if not isinstance(before, dict):
                raise ValueError(f"{config}: {name} must be a table, found {before!r}")
            if before or wanted:
                values[name] = {**before, **wanted}
        elif value is not None:
            values[name] = value
    if not values.get("train"):
        raise ValueError("no file to learn from: name some, or give --config or --resume")
    return _of_pack(values), folder


def _of_pack(values: dict[str, Any]) -> dict[str, Any]:
    from bactrian.runs.packs import is_pack, settings_of_pack

    train = values["train"]
    paths = [train] if isinstance(train, str) else list(train)
    packs = [path for path in paths if is_pack(Path(path))]
    if not packs:
        return values
    if len(paths) > 1:
        raise ValueError(f"{packs[0]} is a pack, which is learned from alone; leave out the other files")
    told = {*values, *values.get("options", {})}
    fixed = [name for name in ("input", "features", "scheme", "model", "min_frequency") if name in told]
    if fixed:
        raise ValueError(f"{fixed[0]} was settled when {packs[0]} was packed; leave it out, or pack again")
    base = settings_of_pack(Path(packs[0])).as_dict()
    options = {**base["options"], **values.get("options", {})}
    return {**base, **values, "train": packs, "options": options}
