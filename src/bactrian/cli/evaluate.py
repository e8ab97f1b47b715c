"""``bactrian evaluate``: score the model of a run on labelled data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from bactrian.cli.common import bad_input, named, print_scores

EXAMPLES = "Examples:  bactrian evaluate ner test.conll  ·  bactrian evaluate ner test.conll --json"


def run(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder of bactrian train.")],
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Labelled data like that of training.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    encoding: Annotated[str | None, typer.Option(help="Of the texts; that of training otherwise.")] = None,
) -> None:
    """Precision, recall and F1 of entities as conlleval counts them, and of tokens; accuracy for graphs."""
    with bad_input(ValueError, TypeError, OSError, options=named("input.encoding", "--encoding")):
        from bactrian.runs.compare import evaluate_run
        from bactrian.runs.folders import RunFolder
        from bactrian.runs.models import FittedRun

        fitted = FittedRun.load(RunFolder(folder)).with_encoding(encoding)
        scores = evaluate_run(fitted, [str(path) for path in files]).scores
    if as_json:
        typer.echo(json.dumps(scores))
    else:
        print_scores(scores, ", ".join(map(str, files)))
