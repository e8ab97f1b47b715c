"""Pages of fitted fields, in the words of their tables.

Of one that was fitted to rows: its variables and what goes together; to margins: fitted against given.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bactrian.arrays import Floats
from bactrian.estimators.frames import word
from bactrian.estimators.margin_fits import MarginResidual
from bactrian.estimators.markov_random_field import MarkovRandomField
from bactrian.inference.infer import infer
from bactrian.report.content import NoteSection, Report, Section, TableSection

#: Pairs that the page lists, those that tell most of each other.
_LISTED = 20
#: Cells of each margin that the page lists, those that differ most.
_CELLS = 10


def field_report(field: MarkovRandomField, title: str) -> Report:
    """Marginals of all variables, and the pairs that tell most of each other."""
    found = infer(field.model_, field.weights_, field.inference_method_, memory_budget=max(1, field.memory_budget))
    names, labels = field.variable_names, field.state_labels
    words = [
        [word(state) for state in (range(k) if of is None else of)]
        for of, k in zip(labels, field.cardinalities_.tolist(), strict=True)
    ]
    shares = [
        (str(names[v]), state, f"{share:.4f}")
        for v, table in enumerate(found.variables)
        for state, share in zip(words[v], table.tolist(), strict=True)
    ]
    pairs = []
    for i, scope in enumerate(field.model_.graph.clusters):
        if len(scope) == 2:
            joint = np.array(found.clusters[i])
            told, lift = _dependence(joint)
            row, column = (int(k) for k in np.unravel_index(int(np.argmax(lift)), joint.shape))
            most = f"{names[scope[0]]}={words[scope[0]][row]}, {names[scope[1]]}={words[scope[1]][column]}"
            pairs.append((told, f"{names[scope[0]]}, {names[scope[1]]}", most, f"{lift[row, column]:.2f}"))
    pairs.sort(key=lambda pair: -pair[0])
    sections: list[Section] = [
        TableSection("Variables", ("variable", "state", "probability"), tuple(shares)),
        TableSection(
            "What goes together",
            ("pair", "mutual information, nats", "states that most go together", "times as often as by chance"),
            tuple((pair, f"{told:.4f}", most, lift) for told, pair, most, lift in pairs[:_LISTED]),
            "" if len(pairs) <= _LISTED else f"The {_LISTED} of {len(pairs)} pairs that tell most of each other.",
        ),
    ]
    if hasattr(field, "starts_"):
        listed = ", ".join(f"{objective:.2f}" for objective in field.starts_)
        sections.append(NoteSection("Starts", (f"They ended with the objectives {listed}; the least is kept.",)))
    facts = {
        "method": str(field.method_),
        "status": str(field.solution_.status),
        "rows": f"{field.total_:g}",
        "variables": str(len(names)),
        "inference": field.inference_method_,
        "seconds": f"{field.solution_.seconds:.2f}",
    }
    return Report(title, tuple(sections), facts=facts)


def _dependence(joint: Floats) -> tuple[float, Floats]:
    """Mutual information of a table, and each cell over what independent variables would give it."""
    apart = np.outer(joint.sum(axis=1), joint.sum(axis=0))
    lift = np.divide(joint, apart, out=np.ones_like(joint), where=apart > 0.0)
    seen = joint > 0.0
    return float(joint[seen] @ np.log(lift[seen])), lift


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
    order = np.argsort(-np.abs(margin.difference), axis=None, kind="stable")[:_CELLS]
    rows = []
    for flat in order.tolist():
        index = tuple(int(i) for i in np.unravel_index(flat, margin.given.shape))
        states: list[Any] = [field.state_label(name, i) for name, i in zip(margin.names, index, strict=True)]
        given, fitted = float(margin.given[index]), float(margin.fitted[index])
        rows.append((*map(str, states), f"{given:.6g}", f"{fitted:.6g}", f"{fitted - given:.3g}"))
    note = "" if margin.given.size <= _CELLS else f"The {_CELLS} of {margin.given.size} cells that differ most."
    return TableSection(", ".join(margin.names), (*margin.names, "given", "fitted", "difference"), tuple(rows), note)
