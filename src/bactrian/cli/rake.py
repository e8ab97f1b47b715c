"""``bactrian rake`` and ``sample``: a distribution from tables, and rows from the distribution."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from bactrian.cli.common import bad_input, check_output, positive, say
from bactrian.files import atomic_file, atomic_folder

RAKE_EXAMPLES = (
    "Examples:  bactrian rake margins.csv -o run  ·  bactrian rake margins.csv --base seed.csv -o run  ·  "
    "bactrian rake margins.json -o run --method convex"
)
SAMPLE_EXAMPLES = "Examples:  bactrian sample run -n 1000 -o rows.csv  ·  bactrian sample run -n 10 --independent"


def rake_command(
    margins: Annotated[Path, typer.Argument(metavar="MARGINS", help="A .csv or .json file of tables.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="RUN", help="Folder to make.")],
    base: Annotated[
        Path | None, typer.Option("--base", metavar="FILE", help="Seed table, a .csv file like that of the margins.")
    ] = None,
    total: Annotated[
        float | None, typer.Option(callback=positive, help="Number of rows; by the margins otherwise.")
    ] = None,
    method: Annotated[
        str, typer.Option(help="auto, exact, cccp, convex and other learners that need no rows.")
    ] = "auto",
    entropy_weight: Annotated[
        float | None, typer.Option(help="Weight of the entropy against noisy margins; by their noise otherwise.")
    ] = None,
    seconds: Annotated[float | None, typer.Option(callback=positive, help="Time limit.")] = None,
    memory: Annotated[float, typer.Option(callback=positive, help="MiB that a junction tree may take.")] = 256.0,
) -> None:
    """Find the distribution of maximum entropy that has given margins (raking, proportional fitting).

    A CSV file has a column per variable, count, and perhaps stddev; lines with the same variables filled in make one
    margin. Margins that contradict each other are named, and the nearest distribution is kept. The folder gets the
    fitted field and a page with fitted against given tables.
    """
    with bad_input(ValueError, TypeError, OSError, ModuleNotFoundError):
        from bactrian.estimators.markov_random_field import MarkovRandomField
        from bactrian.report import write_report
        from bactrian.report.fields import margins_report
        from bactrian.runs.folders import check_free
        from bactrian.runs.margin_files import MODEL, REPORT, read_margins

        check_free(output)
        given = read_margins(margins, base)
        field = MarkovRandomField(method=method, max_seconds=seconds, memory_budget=int(memory * 2**20))
        field.fit_marginals(
            given.margins,
            given.cardinalities,
            total=given.total if total is None else total,
            base=given.base,
            impossible=given.impossible,
            entropy_weight=entropy_weight,
        )
        with atomic_folder(output) as draft:
            field.save(draft / MODEL)
            write_report(margins_report(field, f"Margins of {margins.name}"), draft / REPORT)
    say(f"{field.method_}: {field.solution_.status}")
    say(str(field.residuals_))
    if not field.solution_.converged:
        raise typer.Exit(1)


def sample_command(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A folder of bactrian rake or bactrian fit.")],
    number: Annotated[
        int | None, typer.Option("--number", "-n", help="Rows; as many as were fitted otherwise.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A .csv file; standard output otherwise.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the draws.")] = 0,
    independent: Annotated[
        bool,
        typer.Option("--independent", help="Independent draws, whose margins differ from the fitted ones by chance."),
    ] = False,
) -> None:
    """Draw rows from a fitted field; their margins match it as closely as whole rows can."""
    with bad_input(ValueError, TypeError, OSError):
        from bactrian.estimators.markov_random_field import MarkovRandomField
        from bactrian.runs.margin_files import MODEL, rows_as_csv

        check_output(output, [folder / MODEL])
        field = MarkovRandomField.load(folder / MODEL)
        number = max(1, round(field.total_)) if number is None else number
        states = field.sample(number, seed=seed, rounded=not independent, frame=False)
        text = rows_as_csv(field.variable_names, field.state_labels, states)
        if output is None:
            sys.stdout.write(text)
            return
        with atomic_file(output) as stream:
            stream.write(text.encode("utf-8"))
