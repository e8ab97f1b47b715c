"""``bactrian pack``: labelled files as a folder of chunks, for data beyond the memory and for several ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bactrian.cli.common import bad_input, progress_bar
from bactrian.cli.settings import listed, settings_from

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
    config: Annotated[Path | None, typer.Option(help="Settings in a TOML file; options given here win.")] = None,
    format: Annotated[
        str | None, typer.Option(metavar="NAME", help="columns, tagged or graphs; by the file's name otherwise.")
    ] = None,
    columns: Annotated[
        str | None, typer.Option(metavar="LIST", help="Names of the columns, such as word,pos,chunk,tag.")
    ] = None,
    fields: Annotated[
        str | None, typer.Option(metavar="LIST", help="Names of the inline tags, such as speaker,location.")
    ] = None,
    encoding: Annotated[str | None, typer.Option(help="Of text files; utf-8.")] = None,
    features: Annotated[
        str | None, typer.Option(metavar="NAME", help="conll or seminars; more in [features] of the TOML file.")
    ] = None,
    pos: Annotated[bool | None, typer.Option("--pos/--no-pos", help="Use the column pos.")] = None,
    scheme: Annotated[str | None, typer.Option(help="Label scheme of the model: BIO, BIOES, IOB1 or IO.")] = None,
    model: Annotated[str | None, typer.Option(help="chain, skip-chain or graph.")] = None,
    min_frequency: Annotated[
        int | None, typer.Option(min=1, help="Features on fewer tokens are dropped; 2 by default.")
    ] = None,
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
    with bad_input(ValueError, TypeError, OSError, MemoryError), progress_bar("packing") as show:
        from bactrian.experiments.runs_packs import write_pack
        from bactrian.experiments.runs_settings import RunSettings, with_defaults

        values, _ = settings_from(given, config)

        def tell(what: str, chunks: int) -> None:
            if show is not None:
                show(what, f"{chunks} chunks", chunks, None)

        packed = write_pack(output, RunSettings.of(with_defaults(values)), chunk=chunk, tell=tell)
    size = sum(part.bytes for part in packed.chunks)
    typer.echo(f"{'chunks':<12}{packed.n_chunks}, {size / 2**20:.0f} MiB")
    typer.echo(f"{'weights':<12}{packed.n_weights:,}")
    typer.echo(f"{'written':<12}{output}")
