"""``bactrian warm-up``: compile what the estimators use, once, so that no later process waits for it."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Annotated

import typer

from bactrian.cli.common import BadInputError

EXAMPLES = "Examples:  bactrian warm-up  ·  bactrian warm-up chains grids"


def _chains() -> None:
    import bactrian as bt

    X = [[["a"], ["b"], ["c"]], [["b"]], [["c"], ["a"]]]
    model = bt.LinearChainCRF().fit(X, [["A", "B", "B"], ["B"], ["B", "A"]])
    model.predict(X)
    model.predict_marginals(X)
    model.predict(X[:1], partial=[["A", None, None]])


def _skip_chains() -> None:
    import bactrian as bt

    X = [[["word=A"], ["word=b"], ["word=A"]], [["word=b"]], [["word=C"], ["word=A"], ["word=C"]]]
    model = bt.SkipChainCRF().fit(X, [["A", "B", "B"], ["B"], ["B", "A", "B"]])
    model.predict(X)
    model.predict_marginals(X)


def _graphs() -> None:
    import numpy as np

    import bactrian as bt

    rng = np.random.default_rng(0)
    ring = [(k, (k + 1) % 6) for k in range(6)]
    X = [(rng.normal(size=(6, 2)), ring) for _ in range(5)]
    model = bt.GraphCRF().fit(X, [(nodes[:, 0] > 0).astype(int) for nodes, _ in X])
    model.predict_marginals(X)
    model.decode(X)


def _grids() -> None:
    import numpy as np

    import bactrian as bt

    truth = np.zeros((24, 24), dtype=int)
    truth[6:18, 6:18] = 1
    X = [truth + np.random.default_rng(0).normal(0, 0.8, truth.shape)]
    for edge_features in (None, "contrast"):
        model = bt.GridCRF(edge_features=edge_features, max_iterations=20).fit(X, [truth])
        model.predict_marginals(X)
    model.decode(X)


def _tables() -> None:
    import numpy as np

    import bactrian as bt

    X = np.random.default_rng(0).integers(0, 2, (200, 5))
    model = bt.MarkovRandomField().fit(X)
    model.marginal((0, 1))
    model.sample(10)
    model.predict([[0, -1, 1, 0, 1]])
    model.score(X)


KINDS: dict[str, Callable[[], None]] = {
    "chains": _chains,
    "skip-chains": _skip_chains,
    "graphs": _graphs,
    "grids": _grids,
    "tables": _tables,
}


def warm_up_command(
    kinds: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KIND...]", help=f"What to compile for: {', '.join(KINDS)} (default: all)."),
    ] = None,
) -> None:
    """Compile what learning and prediction use, so that later commands and programs start at once.

    Compiled functions are kept on the disk; without this each is compiled when it is first needed. It takes two to
    three minutes, and seconds where everything is there already.
    """
    for kind in kinds or ():
        if kind not in KINDS:
            raise BadInputError(f"there is nothing called {kind!r} to compile for; choose from {', '.join(KINDS)}")
    for kind in kinds or KINDS:
        typer.echo(f"{kind:<12}", nl=False)
        began = time.perf_counter()
        with warnings.catch_warnings(action="ignore"):  # toys need not converge
            KINDS[kind]()
        typer.echo(f"{time.perf_counter() - began:.1f} s")
