"""Scores as a table on the terminal."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table


def print_scores(scores: dict[str, Any], title: str) -> None:
    """Print scores of texts (entities by type, micro, macro, tokens) or of graphs (accuracy, recall by label)."""
    console = Console()
    columns = ["", "precision", "recall", "F1", "number"] if "entities" in scores else ["", "recall", "number"]
    table = Table(title=escape(title), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left", no_wrap=True)
    if "entities" in scores:
        entities, tokens = scores["entities"], scores["token_f1"]
        for name, score in entities["types"].items():
            table.add_row(escape(name), *_figures(score))
        table.add_section()
        table.add_row("entities, micro", *_figures(entities["micro"]))
        table.add_row("entities, macro", *_figures(entities["macro"]))
        table.add_row("tokens, micro", *_figures(tokens["micro"]))
        table.add_row("tokens, macro", *_figures(tokens["macro"]))
        console.print(table)
    elif scores.get("labels"):
        for name, score in scores["labels"].items():
            table.add_row(escape(name), f"{100 * score['recall']:.2f}", str(score["support"]))
        console.print(table)
    else:
        console.print(escape(title), highlight=False, soft_wrap=True)
    what = "nodes" if "nodes" in scores else "tokens"
    console.print(f"{100 * scores['accuracy']:.2f} % of {scores[what]:,} {what} right", highlight=False)


def _figures(score: dict[str, float]) -> list[str]:
    figures = [f"{100 * score[key]:.2f}" for key in ("precision", "recall", "f1")]
    return [*figures, str(score.get("support", ""))]
