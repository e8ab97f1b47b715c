"""``bactrian fit`` and ``query``: a field from a table of rows, and what it says."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from bactrian.cli.common import bad_input, positive, say
from bactrian.files import atomic_folder

FIT_EXAMPLES = (
    "Examples:  bactrian fit survey.csv -o run  ·  bactrian fit survey.csv -o run --edge age,smoker --edge smoker,lung"
    "  ·  bactrian fit votes.csv -o run --hidden party=3"
)
QUERY_EXAMPLES = (
    'Examples:  bactrian query run "P(lung | smoker=yes)"  ·  bactrian query run "P(age, smoker)"  ·  '
    'bactrian query run "P(lung=ill | smoker=yes, age=old)"'
)


def fit_command(
    table: Annotated[Path, typer.Argument(metavar="TABLE", help="A .csv or .tsv file with a line of names first.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="RUN", help="Folder to make.")],
    edge: Annotated[
        list[str] | None, typer.Option(metavar="A,B", help="Join two columns; may be repeated. All pairs otherwise.")
    ] = None,
    hidden: Annotated[
        list[str] | None, typer.Option(metavar="NAME=STATES", help="A variable that no column shows; may be repeated.")
    ] = None,
    starts: Annotated[int | None, typer.Option(help="Number of starts with hidden variables (default: 5).")] = None,
    method: Annotated[str, typer.Option(help="auto, or a learner such as exact, cccp, pseudolikelihood.")] = "auto",
    prior_variance: Annotated[float, typer.Option(callback=positive, help="Of the Gaussian prior.")] = 10.0,
    seconds: Annotated[float | None, typer.Option(callback=positive, help="Time limit.")] = None,
    memory: Annotated[float, typer.Option(callback=positive, help="MiB that a junction tree may take.")] = 256.0,
    seed: Annotated[int, typer.Option(help="Seed of starts and draws.")] = 0,
) -> None:
    """Fit a Markov random field to the rows of a table, of which cells may be missing.

    A cell holds a word or a whole number; empty cells, ?, NA and NaN are missing. The folder gets the fitted field and
    a page with its tables. Ask it with bactrian query, draw rows from it with bactrian sample.
    """
    with bad_input(ValueError, TypeError, OSError, ModuleNotFoundError):
        from bactrian.estimators.markov_random_field import MarkovRandomField
        from bactrian.report import write_report
        from bactrian.report.fields import field_report
        from bactrian.runs.folders import check_free
        from bactrian.runs.margin_files import MODEL, REPORT
        from bactrian.runs.table_files import read_hidden, read_pairs, read_table

        check_free(output)
        rows = read_table(table)
        field = MarkovRandomField(
            read_pairs(edge) if edge else "complete",
            hidden=read_hidden(hidden) if hidden else None,
            n_starts=starts,
            method=method,
            prior_variance=prior_variance,
            max_seconds=seconds,
            memory_budget=int(memory * 2**20),
            seed=seed,
        ).fit(rows)
        with atomic_folder(output) as draft:
            field.save(draft / MODEL)
            write_report(field_report(field, f"Field of {table.name}"), draft / REPORT)
    missing = sum(cell is None for column in rows.values() for cell in column)
    say(f"{field.method_}: {field.solution_.status}")
    say(f"{int(field.total_)} rows of {len(rows)} columns, {missing} cells missing")
    if not field.solution_.converged:
        raise typer.Exit(1)


def query_command(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A folder of bactrian fit or bactrian rake.")],
    question: Annotated[str, typer.Argument(metavar="QUESTION", help="Such as P(lung | smoker=yes).")],
) -> None:
    """Answer a question to a fitted field: a probability, or a table of them as CSV.

    Variables with a state are events, or evidence behind the bar; a variable without one asks for all of its states.
    """
    with bad_input(ValueError, TypeError, OSError):
        from bactrian.estimators.markov_random_field import MarkovRandomField
        from bactrian.runs.margin_files import MODEL
        from bactrian.runs.table_files import Question, as_csv

        if not (folder / MODEL).is_file():
            raise ValueError(f"{folder} is not a folder of bactrian fit or bactrian rake: it has no {MODEL}")
        asked = Question.of(question)
        answer = asked.answer(MarkovRandomField.load(folder / MODEL))
    sys.stdout.write(f"{answer:.6g}\n" if isinstance(answer, float) else as_csv(answer))
