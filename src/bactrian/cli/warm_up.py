"""``bactrian warm-up``: compile what the estimators use, once, so that no later process waits for it."""

from __future__ import annotations

import time
import warnings
from typing import Annotated, Any

import typer

from bactrian.terminal import BadInputError

EXAMPLES = "Examples:  bactrian warm-up  ·  bactrian warm-up chains grids"


KINDS = ("chains", "skip-chains", "graphs", "grids", "tables")


def _use(kind: str) -> None:
    """Fit a toy model of a kind, and call what users of the estimator call."""
    import numpy as np

    import bactrian as bt

    X: Any
    model: Any
    rng = np.random.default_rng(0)
    if kind == "chains":
        X = [[["a"], ["b"], ["c"]], [["b"]], [["c"], ["a"]]]
        model = bt.LinearChainCRF().fit(X, [["A", "B", "B"], ["B"], ["B", "A"]])
        model.predict(X)
        model.predict_marginals(X)
        model.predict(X[:1], partial=[["A", None, None]])
    elif kind == "skip-chains":
        X = [[["word=A"], ["word=b"], ["word=A"]], [["word=b"]], [["word=C"], ["word=A"], ["word=C"]]]
        model = bt.SkipChainCRF().fit(X, [["A", "B", "B"], ["B"], ["B", "A", "B"]])
        model.predict(X)
        model.predict_marginals(X)
    elif kind == "graphs":
        ring = [(k, (k + 1) % 6) for k in range(6)]
        X = [(rng.normal(size=(6, 2)), ring) for _ in range(5)]
        model = bt.GraphCRF().fit(X, [(nodes[:, 0] > 0).astype(int) for nodes, _ in X])
        model.predict_marginals(X)
        model.decode(X)
    elif kind == "grids":
        for side, edge_features in ((16, None), (24, "contrast")):  # loops of any length, and those for two labels
            truth = np.zeros((side, side), dtype=int)
            truth[6:-6, 6:-6] = 1
            X = [truth + rng.normal(0, 0.8, truth.shape)]
            model = bt.GridCRF(edge_features=edge_features, max_iterations=20).fit(X, [truth])
            model.predict_marginals(X)
        model.decode(X)
    else:
        X = rng.integers(0, 2, (200, 5))
        model = bt.MarkovRandomField().fit(X)
        model.marginal((0, 1))
        model.sample(10)
        model.predict([[0, -1, 1, 0, 1]])
        model.score(X)


def warm_up_command(
    kinds: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KIND...]", help=f"What to compile for: {', '.join(KINDS)} (default: all)."),
    ] = None,
) -> None:
    """Compile the functions of learning and prediction, so that later commands and programs start at once.

    Compiled functions are cached on disk; without this command each is compiled on first use. It takes two to three
    minutes, or seconds if everything is cached already.
    """
    for kind in kinds or ():
        if kind not in KINDS:
            raise BadInputError(f"unknown kind {kind!r}; choose from {', '.join(KINDS)}")
    for kind in kinds or KINDS:
        typer.echo(f"{kind:<12}", nl=False)
        began = time.perf_counter()
        with warnings.catch_warnings(action="ignore"):  # toys need not converge
            _use(kind)
        typer.echo(f"{time.perf_counter() - began:.1f} s")
