"""``bactrian pack``: labelled files as a folder of chunks, for data beyond the memory and for several ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bactrian.cli.common import as_options, bad_input, progress_bar
from bactrian.cli.settings import (
    Columns,
    Config,
    Encoding,
    Features,
    Fields,
    Format,
    MinFrequency,
    Model,
    Scheme,
    listed,
    options_among,
    settings_from,
)

EXAMPLES = (
    "Examples:  bactrian pack train.conll -o packed  ·  bactrian pack graphs.jsonl -o packed --chunk 200000  ·  "
    "bactrian train packed -o run  ·  mpirun -n 4 bactrian train packed -o run"
)


def run(
    train: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FILE...", help="What is to be learned from: column files, tagged texts, graphs."),
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder.")] = Path("bactrian-pack"),
    config: Config = None,
    format: Format = None,
    columns: Columns = None,
    fields: Fields = None,
    encoding: Encoding = None,
    features: Features = None,
    pos: Annotated[bool | None, typer.Option("--pos/--no-pos", help="Use the column pos.")] = None,
    scheme: Scheme = None,
    model: Model = None,
    min_frequency: MinFrequency = None,
    chunk: Annotated[int, typer.Option(min=1, help="Tokens or nodes of a chunk: one is in memory at a time.")] = 50_000,
) -> None:
    """Pack labelled data into a folder that train goes through chunk by chunk.

    The files are read three times (graphs: twice) and never held in memory as a whole. Whatever depends on features
    and labels is settled here; the learner and its options are for train.
    """
    given = {
        "train": [str(path.absolute()) for path in train or ()] or None,
        "scheme": scheme,
        "model": model,
        "input": {"format": format, "columns": listed(columns), "fields": listed(fields), "encoding": encoding},
        "features": {"preset": features, "pos": pos},
        "options": {"min_frequency": min_frequency},
    }
    kinds = (ValueError, TypeError, OSError, MemoryError)
    with bad_input(*kinds), as_options(options_among(given)), progress_bar("packing") as show:
        from bactrian.runs.packs import write_pack
        from bactrian.runs.settings import RunSettings, with_defaults

        values, _ = settings_from(given, config)

        def tell(what: str, chunks: int) -> None:
            if show is not None:
                show(what, f"{chunks} chunks", chunks, None)

        packed = write_pack(output, RunSettings.of(with_defaults(values)), chunk=chunk, tell=tell)
    size = sum(part.bytes for part in packed.chunks)
    typer.echo(f"{'chunks':<12}{packed.n_chunks}, {size / 2**20:.0f} MiB")
    typer.echo(f"{'weights':<12}{packed.n_weights:,}")
    typer.echo(f"{'written':<12}{output}")
