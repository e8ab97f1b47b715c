"""``bactrian report``: the page of one run, or several runs side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bactrian.cli.common import BadInputError, bad_input

EXAMPLES = "Examples:  bactrian report ner  ·  bactrian report chain skips -o comparison.html"


def run(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders of bactrian train.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The page; report.html in the run, or comparison.html.")
    ] = None,
) -> None:
    """Write or refresh the report of a run, or compare runs on one page.

    Each run is scored on the test (or dev) file it was given, where that is still the same.
    """
    with bad_input(ValueError, OSError, ImportError):
        from bactrian.report import report_of, write_report
        from bactrian.runs.compare import compare_runs
        from bactrian.runs.folders import RunFolder
        from bactrian.runs.models import FittedRun

        if len({path.resolve() for path in folders}) < len(folders):
            raise BadInputError("the same run is named twice")
        runs = [FittedRun.load(RunFolder(path)) for path in folders]
        page = output or (runs[0].folder.report if len(runs) == 1 else Path("comparison.html"))
        if page.is_dir():
            raise BadInputError(f"--output: {page} is a folder")
        write_report(report_of(compare_runs(runs)), page)
    typer.echo(f"Report: {page}")
