"""``bactrian pack``: labelled files as a folder of chunks, for data beyond the memory and for several ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from bactrian.cli.common import bad_input, progress_bar
from bactrian.cli.run_options import DATA_OPTIONS, Config, GivenOptions, merged_settings, takes

EXAMPLES = (
    "Examples:  bactrian pack train.conll -o packed  ·  bactrian pack graphs.jsonl -o packed --chunk 200000  ·  "
    "bactrian train packed -o run  ·  mpirun -n 4 bactrian train packed -o run"
)


@takes(DATA_OPTIONS)
def run(
    train: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FILE...", help="What is to be learned from: column files, tagged texts, graphs."),
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder.")] = Path("bactrian-pack"),
    config: Config = None,
    chunk: Annotated[int, typer.Option(min=1, help="Tokens or nodes of a chunk: one is in memory at a time.")] = 50_000,
    **options: Any,
) -> None:
    """Pack labelled data into a folder that train goes through chunk by chunk.

    The files are read three times (graphs: twice) and never held in memory as a whole. Whatever depends on features
    and labels is settled here; the learner and its options are for train.
    """
    given = GivenOptions.of(options, DATA_OPTIONS)
    kinds = (ValueError, TypeError, OSError, MemoryError)
    with bad_input(*kinds, options=given.in_words), progress_bar("packing") as show:
        from bactrian.runs.packs import write_pack
        from bactrian.runs.settings import RunSettings, with_defaults

        values = merged_settings(train, given, config)
        values.pop("output", None)

        def tell(what: str, chunks: int) -> None:
            if show is not None:
                show(what, f"{chunks} chunks", chunks, None)

        packed = write_pack(output, RunSettings.of(with_defaults(values)), chunk=chunk, tell=tell)
    size = sum(part.bytes for part in packed.chunks)
    typer.echo(f"{'chunks':<12}{packed.n_chunks}, {size / 2**20:.0f} MiB")
    typer.echo(f"{'weights':<12}{packed.n_weights:,}")
    typer.echo(f"{'written':<12}{output}")
