"""``bactrian predict``, ``evaluate`` and ``report``: uses of a trained run."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bactrian.errors import warn
from bactrian.terminal import BadInputError, bad_input, check_output, named, print_scores

if TYPE_CHECKING:
    from bactrian.runs.fitted_run import FittedRun
    from bactrian.text.documents import Document


PREDICT_EXAMPLES = (
    "Examples:  bactrian predict ner letter.txt  ·  bactrian predict ner letter.txt --to tagged  ·  "
    "cat lines.txt | bactrian predict ner - --input lines  ·  bactrian predict ner test.conll --input columns"
)

_OUTPUTS = ("json", "columns", "tagged")
_FEW, _HARDLY_ANY = 20, 0.2  #: tokens from which it counts how many are known, and the part that is too small
_COLUMN_SUFFIXES = (".conll", ".bio", ".iob", ".bioes", ".tsv", ".col", ".columns")


def predict_command(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder of bactrian train.")],
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="Files to tag; - reads text from standard input.")
    ],
    form: Annotated[
        str | None,
        typer.Option(
            "--input",
            "-i",
            metavar="NAME",
            help="Format of the files: text, lines (one document per line), columns or tagged (default: by content).",
        ),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="NAME",
            help="Output: json (with offsets), columns or tagged (default: json, or columns for columns).",
        ),
    ] = None,
    probabilities: Annotated[bool, typer.Option("--probabilities", "-p", help="Add probabilities.")] = False,
    known: Annotated[
        bool,
        typer.Option(
            "--known",
            help="Keep labels in the files, and predict only those given as ? or _ (graphs: -1 or an empty string).",
        ),
    ] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Output file (default: standard output).")
    ] = None,
    encoding: Annotated[str | None, typer.Option(help="Encoding of the texts (default: that of training).")] = None,
) -> None:
    """Tag raw text, files of columns, or graphs.

    Documents are read, tagged and written one by one. JSON has one line per document: its name, its text, and the
    entities with type, start and stop in characters. Columns and scores have tags in the scheme of the run (BIO unless
    trained with --scheme), whatever the scheme of the file. For graphs, each line of JSON has the labels of the nodes.
    """
    with bad_input(options=named("input.encoding", "--encoding")):
        from bactrian.runs.fitted_run import FittedRun
        from bactrian.runs.folders import RunFolder
        from bactrian.runs.texts import TEXT_FORMATS

        fitted = FittedRun.load(RunFolder(folder), encoding)
        if encoding is not None and not fitted.settings.is_text:
            raise BadInputError("--encoding is for texts; files of graphs are always UTF-8")
        for value, choices, option in ((form, TEXT_FORMATS, "--input"), (to, _OUTPUTS, "--to")):
            if value is not None and value not in choices:
                raise BadInputError(f"{option} must be one of {', '.join(choices)}, found {value!r}")
            if value is not None and not fitted.settings.is_text:
                raise BadInputError(f"{option} is for texts; graphs come from .npz or .jsonl files, and go to JSON")
        missing = next((path for path in files if str(path) != "-" and not path.exists()), None)
        if missing is not None:
            raise BadInputError(f"{missing}: there is no such file")
        check_output(output, files)
        if fitted.settings.is_text:
            lines = _text_lines(fitted, files, form, to, probabilities, known)
        else:
            lines = _graph_lines(fitted, files, probabilities, known)
        _write(lines, output)


def _text_lines(
    run: FittedRun, files: list[Path], form: str | None, to: str | None, probabilities: bool, known: bool
) -> Iterator[str]:
    from bactrian.runs.settings import files_of
    from bactrian.runs.texts import read_documents
    from bactrian.text import find_entities, guess_scheme, json_line, prediction_lines, tagged_text

    entities = guess_scheme(run.classes) is not None
    if to == "tagged" and not entities:
        raise BadInputError("--to tagged: the labels of this model mark no entities; use --to columns")
    if known and form not in (None, "columns"):
        raise BadInputError(f"--known reads labels from files of columns, not from {form}")
    form, number = "columns" if known else form, 0
    kinds = {path: form or _form(path, run) for folder in files for path in files_of(folder)}
    ways = {path: to or ("json" if entities and kind != "columns" else "columns") for path, kind in kinds.items()}
    if len(set(ways.values())) > 1:
        some = [next(path for path in kinds if ways[path] == way) for way in ("json", "columns")]
        raise BadInputError(
            f"{some[0]} is read as {kinds[some[0]]} and {some[1]} as {kinds[some[1]]}; give --to json or --to columns"
        )
    for path, kind in kinds.items():
        shown = ways[path]
        # Lines that are piped in want an answer each.
        together = 1 if kind == "lines" and str(path) == "-" else 64
        documents = read_documents(path, run.settings.input, kind)
        documents = _with_known_words(documents, path, run)
        tagged = run.label_documents(documents, probabilities=probabilities, known=known, together=together)
        for document, (labels, chances) in tagged:
            number += 1
            document = document.replace(tags=None) if known else document
            if shown == "columns":
                yield from prediction_lines(
                    document, labels, probabilities=chances, separator=_separator(path, run), start=number > 1
                )
                continue
            found = find_entities(document, labels, probabilities=chances)
            yield json_line(document, found) if shown == "json" else tagged_text(document, found)


def _with_known_words(documents: Iterable[Document], path: Path, run: FittedRun) -> Iterator[Document]:
    """The documents of a file; afterwards a warning, if hardly any of their words occurred in training."""
    known = total = 0
    for document in documents:
        known += sum(word in run.words for word in document.words)
        total += len(document)
        yield document
    if total >= _FEW and known < _HARDLY_ANY * total:
        warn(
            f"{path}: only {known:,} of {total:,} tokens are words of the training texts; if the language is the same, "
            "the texts may be tokenized differently: train with another --tokenizer"
        )


def _separator(path: Path, run: FittedRun) -> str:
    """What stands between columns: what the settings say, or tabs for a file that has them."""
    if run.settings.input.separator or not path.is_file():
        return run.settings.input.separator or " "
    with path.open("rb") as stream:
        return "\t" if b"\t" in stream.read(1 << 12) else " "


def _form(path: Path, run: FittedRun) -> str:
    """How a file is read, with a warning unless its name tells."""
    from bactrian.runs.texts import guess_form

    if path.suffix.lower() in _COLUMN_SUFFIXES:
        return "columns"
    form = guess_form(path, run.settings.input, run.classes)
    if form != "text":
        warn(f"{path}: read as {form}, judging by its content; --input text reads it as raw text")
    return form


def _graph_lines(run: FittedRun, files: list[Path], probabilities: bool, known: bool) -> Iterator[str]:
    from bactrian.runs.graph_files import read_graphs

    for path in files:
        for graph, (labels, chances) in run.label_graphs(read_graphs(path), probabilities=probabilities, known=known):
            record = {"name": graph.name, "labels": labels}
            if chances is not None:
                record["probabilities"] = chances.round(6).tolist()
            yield json.dumps(record)


def _write(lines: Iterator[str], output: Path | None) -> None:
    if output is not None:
        from bactrian.text import write_lines

        write_lines(output, lines)
        return
    stream = sys.stdout
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(encoding="utf-8")  # as in files: results must not lose a letter
    try:
        for line in lines:
            stream.write(f"{line}\n")
            stream.flush()
    except BrokenPipeError:  # head has seen enough; what is still buffered goes nowhere, without a word
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


EVALUATE_EXAMPLES = "Examples:  bactrian evaluate ner test.conll  ·  bactrian evaluate ner test.conll --json"


def evaluate_command(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder of bactrian train.")],
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Labelled data like that of training.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the scores as JSON.")] = False,
    encoding: Annotated[str | None, typer.Option(help="Encoding of the texts (default: that of training).")] = None,
) -> None:
    """Score a run on labelled data: precision, recall and F1 of entities, as conlleval counts them, and accuracy.

    Surface forms count each name of a type once, as in the shared tasks on emerging entities (WNUT).
    """
    with bad_input(options=named("input.encoding", "--encoding")):
        from bactrian.runs.fitted_run import FittedRun, evaluate_run
        from bactrian.runs.folders import RunFolder

        fitted = FittedRun.load(RunFolder(folder), encoding)
        scores = evaluate_run(fitted, [str(path) for path in files]).scores
    if as_json:
        typer.echo(json.dumps(scores))
    else:
        print_scores(scores, ", ".join(map(str, files)))


REPORT_EXAMPLES = "Examples:  bactrian report ner  ·  bactrian report chain skips -o comparison.html"


def report_command(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders of bactrian train.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Page to write (default: report.html in the run folder, or comparison.html)."
        ),
    ] = None,
) -> None:
    """Write or refresh the report of a run, or compare runs on one page.

    Each run is scored on its test (or dev) file, unless the file has changed since training.
    """
    with bad_input():
        from bactrian.report import report_of, write_report
        from bactrian.runs.compare_runs import compare_runs
        from bactrian.runs.fitted_run import FittedRun
        from bactrian.runs.folders import RunFolder

        if len({os.path.realpath(path) for path in folders}) < len(folders):
            raise BadInputError("the same run is named twice")
        runs = [FittedRun.load(RunFolder(path)) for path in folders]
        page = output or (runs[0].folder.report if len(runs) == 1 else Path("comparison.html"))
        if page.is_dir():
            raise BadInputError(f"--output: {page} is a folder")
        write_report(report_of(compare_runs(runs)), page)
    typer.echo(f"Report: {page}")
