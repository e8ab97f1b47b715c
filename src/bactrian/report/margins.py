"""The page of a field that was fitted to margins: fitted against given."""

from __future__ import annotations

from typing import Any

import numpy as np

from bactrian.estimators.marginals import MarginResidual
from bactrian.estimators.markov_random_field import MarkovRandomField
from bactrian.report.content import NoteSection, Report, Section, TableSection

#: Cells of each margin that the page lists, those that differ most.
_LISTED = 10


def margins_report(field: MarkovRandomField, title: str) -> Report:
    """What was given, what was fitted, and where they differ most."""
    residuals, solution = field.residuals_, field.solution_
    rows = tuple(
        (
            ", ".join(margin.names),
            float(margin.given.size),
            "exact" if margin.stddev is None else "noisy",
            f"{np.abs(margin.difference).max():.4g}",
            f"{margin.distance:.2e}",
            "–" if margin.stddev is None else f"{np.abs(margin.z).max():.2f}",
        )
        for margin in residuals
    )
    columns = ("margin", "cells", "given as", "largest difference", "total variation", "largest |z|")
    sections: list[Section] = [TableSection("Margins, fitted against given", columns, rows)]
    if residuals.contradictions:
        sections.append(NoteSection("Contradictions", residuals.contradictions))
    sections += [_cells(field, margin) for margin in residuals]
    facts = {
        "method": str(field.method_),
        "status": str(solution.status),
        "total": f"{field.total_:g}",
        "variables": str(field.n_features_in_),
        "evaluations": str(solution.evaluations),
        "seconds": f"{solution.seconds:.2f}",
    }
    return Report(title, tuple(sections), facts=facts)


def _cells(field: MarkovRandomField, margin: MarginResidual) -> TableSection:
    """The cells of a margin that differ most."""
    order = np.argsort(-np.abs(margin.difference), axis=None, kind="stable")[:_LISTED]
    rows = []
    for flat in order.tolist():
        index = tuple(int(i) for i in np.unravel_index(flat, margin.given.shape))
        states: list[Any] = [field.state_label(name, i) for name, i in zip(margin.names, index, strict=True)]
        given, fitted = float(margin.given[index]), float(margin.fitted[index])
        rows.append((*map(str, states), f"{given:.6g}", f"{fitted:.6g}", f"{fitted - given:.3g}"))
    note = "" if margin.given.size <= _LISTED else f"The {_LISTED} of {margin.given.size} cells that differ most."
    return TableSection(", ".join(margin.names), (*margin.names, "given", "fitted", "difference"), tuple(rows), note)
