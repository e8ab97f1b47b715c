"""``bactrian fit``, ``rake``, ``query`` and ``sample``: a field from rows or margins, its answers and its draws."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from bactrian.atomic_files import atomic_file, atomic_folder
from bactrian.cli.run_options import number_or_name
from bactrian.terminal import bad_input, check_output, positive, say

FIT_EXAMPLES = (
    "Examples:  bactrian fit survey.csv -o run  ·  bactrian fit survey.csv -o run --edge age,smoker --edge smoker,lung"
    "  ·  bactrian fit items.csv -o run --edges select"
    "  ·  bactrian fit votes.csv -o run --hidden party=3"
)
QUERY_EXAMPLES = (
    'Examples:  bactrian query run "P(lung | smoker=yes)"  ·  bactrian query run "P(age, smoker)"  ·  '
    'bactrian query run "P(lung=ill | smoker=yes, age in {40-59, 60+})"'
)

TimeLimit = Annotated[
    float | None, typer.Option(callback=positive, help="Time limit in seconds; compiling not counted.")
]
MemoryLimit = Annotated[float, typer.Option(callback=positive, help="Memory limit of a junction tree, in MiB.")]


def fit_command(
    table: Annotated[
        Path, typer.Argument(metavar="TABLE", help="A .csv or .tsv file whose first line names the columns.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="RUN", help="Folder to write.")],
    edge: Annotated[list[str] | None, typer.Option(metavar="A,B", help="Two columns to join. May be repeated.")] = None,
    edges: Annotated[
        str | None,
        typer.Option(
            metavar="HOW", help="auto, select, tree or complete (default: auto, without --edge); select joins more."
        ),
    ] = None,
    hidden: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=STATES", help="A hidden variable, which is not a column. May be repeated."),
    ] = None,
    starts: Annotated[int | None, typer.Option(help="Number of starts with hidden variables (default: 5).")] = None,
    method: Annotated[str, typer.Option(help="auto, or a learner such as exact, cccp or pseudolikelihood.")] = "auto",
    prior_variance: Annotated[
        str, typer.Option(metavar="NUMBER", help="Variance of the Gaussian prior; auto chooses it by held-out rows.")
    ] = "auto",
    seconds: TimeLimit = None,
    memory: MemoryLimit = 256.0,
    seed: Annotated[int, typer.Option(help="Seed of starts and draws.")] = 0,
    intervals: Annotated[
        bool, typer.Option(help="Work out how sure the field is, for the page and for bactrian query --interval.")
    ] = True,
) -> None:
    """Fit a Markov random field to the rows of a table, which may have missing cells.

    A cell holds a word or a whole number; empty cells, ?, NA and NaN are missing. The folder gets the fitted field and
    a page with its tables. Query the field with bactrian query; draw rows from it with bactrian sample.
    """
    with bad_input(ValueError, TypeError, OSError):
        from bactrian.estimators.markov_random_field import MarkovRandomField
        from bactrian.report import field_report, write_report
        from bactrian.runs.field_files import (
            MODEL,
            REPORT,
            edges_of,
            read_hidden,
            read_table,
            states_with_minus_one,
        )
        from bactrian.runs.folders import check_free

        check_free(output)
        rows = read_table(table)
        field = MarkovRandomField(
            edges_of(edge, edges),
            cardinalities=states_with_minus_one(rows),
            hidden=read_hidden(hidden) if hidden else None,
            n_starts=starts,
            method=method,
            prior_variance=number_or_name(prior_variance),
            max_seconds=seconds,
            memory_budget=int(memory * 2**20),
            seed=seed,
        ).fit(rows)
        with atomic_folder(output) as draft:
            report = field_report(field, f"Field of {table.name}", intervals=intervals)
            field.save(draft / MODEL)  # with the intervals of the page
            write_report(report, draft / REPORT)
    missing = sum(cell is None for column in rows.values() for cell in column)
    if edges or hasattr(field, "path_"):
        say(getattr(field, "selection_", f"{len(field.edges_)} pairs"))
    say(f"{field.method_}: {field.solution_.status}")
    say(f"{int(field.total_)} rows of {len(rows)} columns, {missing} cells missing")
    if not field.solution_.converged:
        raise typer.Exit(1)


def query_command(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A folder of bactrian fit or bactrian rake.")],
    question: Annotated[str, typer.Argument(metavar="QUESTION", help="A query such as P(lung | smoker=yes).")],
    interval: Annotated[
        bool, typer.Option("--interval", help="Print the 95 % confidence interval, low and high, behind each number.")
    ] = False,
) -> None:
    """Query a fitted field: print a probability, or a table of them as CSV.

    A variable with a state, or with one of several (edu in {13, 14}), is an event, or evidence after the bar; a
    variable without one stands for all of its states.
    """
    with bad_input(ValueError, TypeError, OSError):
        from bactrian.estimators.markov_random_field import MarkovRandomField
        from bactrian.runs.field_files import MODEL, Question, as_csv

        if not (folder / MODEL).is_file():
            raise ValueError(f"{folder} is not a folder of bactrian fit or bactrian rake: it has no {MODEL}")
        asked = Question.of(question)
        field = MarkovRandomField.load(folder / MODEL)
        answer, limits = asked.answer(field), asked.limits(field) if interval else []
    if isinstance(answer, float):
        sys.stdout.write(" ".join(f"{number:.6g}" for number in (answer, *(n for pair in limits for n in pair))) + "\n")
        return
    for name, numbers in zip(("low", "high"), zip(*limits, strict=True), strict=False):
        answer[name if name not in answer else f"{name}_"] = [f"{number:.6g}" for number in numbers]
    sys.stdout.write(as_csv(answer))


RAKE_EXAMPLES = (
    "Examples:  bactrian rake margins.csv -o run  ·  bactrian rake margins.csv --base seed.csv -o run  ·  "
    "bactrian rake margins.json -o run --method convex"
)
SAMPLE_EXAMPLES = "Examples:  bactrian sample run -n 1000 -o rows.csv  ·  bactrian sample run -n 10 --independent"


def rake_command(
    margins: Annotated[Path, typer.Argument(metavar="MARGINS", help="A .csv or .json file of tables.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="RUN", help="Folder to write.")],
    base: Annotated[
        Path | None, typer.Option("--base", metavar="FILE", help="Seed table, a .csv file like that of the margins.")
    ] = None,
    total: Annotated[
        float | None, typer.Option(callback=positive, help="Number of rows (default: from the margins).")
    ] = None,
    method: Annotated[
        str, typer.Option(help="auto, or a learner that needs no rows, such as exact, cccp or convex.")
    ] = "auto",
    entropy_weight: Annotated[
        float | None, typer.Option(help="Weight of the entropy against noisy margins (default: from their noise).")
    ] = None,
    rescale: Annotated[bool, typer.Option("--rescale", help="Scale exact margins to the same total.")] = False,
    seconds: TimeLimit = None,
    memory: MemoryLimit = 256.0,
) -> None:
    """Find the maximum-entropy distribution with given margins (raking, proportional fitting).

    A CSV file has a column per variable, a column count and, optionally, stddev; lines with the same variables filled
    in form one margin. A warning names margins that contradict each other, and the nearest distribution is fitted. The
    folder gets the fitted field and a page that compares fitted with given tables.
    """
    with bad_input(ValueError, TypeError, OSError):
        from bactrian.estimators.markov_random_field import MarkovRandomField
        from bactrian.margins.files import read_margins
        from bactrian.report import margins_report, write_report
        from bactrian.runs.field_files import MODEL, REPORT
        from bactrian.runs.folders import check_free

        check_free(output)
        given = read_margins(margins, base) | ({} if total is None else {"total": total})
        field = MarkovRandomField(method=method, max_seconds=seconds, memory_budget=int(memory * 2**20))
        field.fit_marginals(**given, entropy_weight=entropy_weight, rescale=rescale)
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
        int | None, typer.Option("--number", "-n", help="Number of rows (default: as many as were fitted).")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A .csv file to write (default: standard output).")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the draws.")] = 0,
    independent: Annotated[
        bool,
        typer.Option(
            "--independent", help="Draw rows independently; their margins differ from the fitted ones by chance."
        ),
    ] = False,
) -> None:
    """Draw rows from a fitted field; their margins match it as closely as whole rows can."""
    with bad_input(ValueError, TypeError, OSError):
        from bactrian.estimators.markov_random_field import MarkovRandomField
        from bactrian.runs.field_files import MODEL, rows_as_csv

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
