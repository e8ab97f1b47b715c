"""Table 1 of the paper: named entities of CoNLL-2003 with a skip chain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bactrian.experiments.paper_table import LATE, PaperTable, Tell, late_note, percent, rows_named
from bactrian.experiments.tagging import Corpus, Row, TaggerSettings, Trained, train_and_score
from bactrian.text.columns import read_columns
from bactrian.text.features import CONLL

#: Rows of the paper, then ours. Paper: macro and micro F1.
ROWS = (
    Row("piecewise", "piecewise", node_factors="first-edge", paper=("83.7", "85.2")),
    Row("CAMEL(0)", "camel0", paper=("83.9", "85.5")),
    Row("LBP", "lbp", paper=("84.6", "86.2")),
    Row("CCCP", "cccp", paper=("84.6", "86.1")),
    Row("CCCP (empirical)", "cccp-empirical", paper=("84.5", "85.9")),
    Row("exact chain", "exact", chain=True),
    Row("convex", "convex"),
    Row("pseudo-likelihood", "pseudolikelihood"),
)

SETTINGS = TaggerSettings(
    features=replace(CONLL, elsewhere=True),
    skips="names",
    notes=(
        "elsewhere=True adds what the document tells of a capitalised word in other places, after the skip-edge "
        "features of Sutton & McCallum 2004; chosen on testa, exact chain: 90.9 micro F1 without, 91.7 with the words "
        "next to other occurrences in the same case alone, 92.7 with all",
        "skip edges between equal runs of capitalised words; chosen on testa, CCCP: 92.5 micro F1, 92.4 between single "
        "words, a difference that may be chance",
        "predictions: the most probable labels together by max-product, Viterbi on the exact chain; chosen on testa, "
        "CCCP: 92.5 micro F1, against 92.3 for the most probable label of each token by residual belief propagation",
    ),
)

COLUMNS = (
    "learner",
    "outer",
    "iterations",
    "evaluations",
    "seconds",
    "MiB",
    "macro F1",
    "paper",
    "micro F1",
    "paper",
    "token macro",
    "token micro",
    "violation",
    "status",
)

FILES = {"train": "eng.train", "testa": "eng.testa", "testb": "eng.testb"}


def folder_of(data: Path) -> Path:
    """The folder of the three files: ``data`` itself or its ``conll2003``."""
    for folder in (data, data / "conll2003"):
        if all((folder / name).is_file() for name in FILES.values()):
            return folder
    raise FileNotFoundError(f"{data}: expected {', '.join(FILES.values())} in it or in its folder conll2003")


def read(data: Path, part: str, settings: TaggerSettings, limit: int | None = None) -> Corpus:
    """One of the three files, its tags in the scheme of the settings."""
    documents = list(read_columns(folder_of(data) / FILES[part]))[:limit]
    return Corpus.of(documents, settings, "IOB1")


def run(
    data: Path,
    *,
    quick: bool = False,
    progress: Tell = lambda _: None,
    rows: Sequence[str] = (),
    seconds: float | None = None,
    settings: TaggerSettings = SETTINGS,
    part: str = "testb",
) -> PaperTable:
    """Train every row, or those with the names ``rows``, on ``eng.train`` and score it on ``part``.

    ``quick`` takes 40 documents and a loose tolerance, to see that everything runs. ``seconds`` limits each fit.
    """
    chosen = rows_named(ROWS, rows)
    settings = replace(settings, max_seconds=seconds, tolerance=1e-2 if quick else settings.tolerance)
    limit = 40 if quick else None
    progress("reading, and extracting features")
    train, test = read(data, "train", settings, limit), read(data, part, settings, limit)
    results = []
    for row in chosen:
        progress(f"{row.name}: training on {len(train.documents)} documents")
        results.append(train_and_score(row, settings, train, test))
        progress(f"{row.name}: micro F1 {percent(results[-1].entities.micro_f1)}, {results[-1].seconds:.0f} s")
    title = f"Table 1: CoNLL-2003, trained on {len(train.documents)} documents, tested on {part}"
    late = late_note([result.row.name for result in results if result.status == LATE])
    return PaperTable(title, COLUMNS, tuple(map(cells, results)), (*late, *notes(settings, quick)))


def cells(result: Trained) -> tuple[str, ...]:
    """A row of the table."""
    paper: Any = result.row.paper or ("", "")
    inner = result.inner
    shown = ", ".join(map(str, inner[:3])) + (f", … ({sum(inner)})" if len(inner) > 3 else "")
    return (
        result.row.name,
        str(result.outer),
        shown,
        str(result.solution.evaluations),
        f"{result.seconds:.0f}",
        f"{result.memory:.0f}",
        percent(result.entities.macro_f1),
        paper[0],
        percent(result.entities.micro_f1),
        paper[1],
        percent(result.tokens.macro_f1),
        percent(result.tokens.micro_f1),
        f"{result.solution.violation:.0e}",
        result.status,
    )


def notes(settings: TaggerSettings, quick: bool) -> tuple[str, ...]:
    """Where each setting came from."""
    return (
        *(("QUICK: few documents and a loose tolerance; the figures mean nothing",) if quick else ()),
        "F1 of entities as conlleval counts them, and of single tokens: the paper does not say which it means",
        f"prior variance {settings.prior_variance:g}: the paper's",
        f"features: {settings.features}, those seen once dropped: Finkel, Grenager & Manning 2005, and elsewhere",
        f"label scheme {settings.scheme}, skip edges {settings.skips}, table {settings.skip_tables}: chosen on testa",
        "piecewise: node scores wholly in the first incident edge, chosen on testa; the others do not depend on it",
        *settings.notes,
    )
