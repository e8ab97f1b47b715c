"""Priors of estimators: a variance for every block of weights, given by name or chosen by cross-validation."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bactrian.arrays import Bools, Floats, Ints
from bactrian.errors import ArgumentError
from bactrian.estimators.held_out import log_losses
from bactrian.graphs.graph_data import GraphData
from bactrian.learners.learn import learn
from bactrian.parallel.threads import Deadline
from bactrian.solvers.solution import ConvergenceWarning

#: Variance of blocks that a mapping does not name.
VARIANCE = 10.0
#: Of the variance of a pooled table's attraction, the part that its deviations have where theirs is not given.
DEVIATIONS = 0.1
#: What cross-validation tries, from the strongest prior on.
PATH = (0.01, 0.1, 1.0, 10.0, 100.0)
#: Parts into which it divides the data.
N_FOLDS = 5
#: Iterations that it allows each: from the weights of the last, these are enough to tell priors apart.
_ITERATIONS = 300
#: Multiples of the tolerances to which each is solved; that of the gap leaves ten times as much of the loss.
_ROUGHLY = {"tolerance": 10.0, "gap_tolerance": 10.0**0.5}
#: The part of ``max_seconds`` that it may take.
_SHARE = 0.8

_NUMBERS = int | float | np.integer | np.floating


@dataclass(frozen=True)
class Block:
    """Weights that have a variance in common."""

    name: str
    weights: Ints | slice
    beside: str | None = None  #: the block on whose variance this one's depends where its own is not given
    part: float = 1.0  #: of that variance
    unit: float = 1.0  #: what the weights are multiplied by: variances are those of the product
    sizes: Ints | None = None  #: of its tables, where each may have a variance of its own


def graph_blocks(data: GraphData, names: Sequence[str], n_features: int) -> list[Block]:
    """Blocks of the weights of ``data``; ``names`` are those of nodes and of each edge type.

    Inputs of nodes behind the first ``n_features`` are the intercept.
    """
    bounds, own = data.scores.bounds.tolist(), n_features * data.n_labels
    blocks = [Block(names[0], slice(0, own)), Block("intercept", slice(own, bounds[1]), beside=names[0])]
    for name, kind, (first, last) in zip(names[1:], data.scores.types, itertools.pairwise(bounds[1:]), strict=True):
        if kind.table.is_pooled:
            number = np.arange(first, last)
            shared = (number - first) % kind.table.n_tied == 0
            blocks += [
                Block(name, number[shared], unit=kind.table.attraction),
                Block("deviations", number[~shared], beside=name, part=DEVIATIONS),
            ]
        else:
            blocks.append(Block(name, slice(first, last)))
    return blocks


def is_by_block(prior_variance: Any, names: Sequence[str]) -> bool:
    """Whether variances are given for blocks of these names, or a word stands for them; mistakes are refused."""
    if isinstance(prior_variance, str) and prior_variance not in ("auto", "cv"):
        expected = "must be 'auto', a number, None, a mapping by block or 'cv'"
        raise ArgumentError("prior_variance", f"{expected}, found {prior_variance!r}")
    if not isinstance(prior_variance, Mapping):
        return isinstance(prior_variance, str)
    for name, value in prior_variance.items():
        if name not in names:
            raise ArgumentError("prior_variance", f"names block {name!r}; the blocks are {', '.join(names)}")
        if isinstance(value, list) and not value and name == "edges":  # no edge was chosen
            continue
        if isinstance(value, list) and name == "edges":
            value = min(value, key=lambda number: number if isinstance(number, _NUMBERS) else -1.0)
        if value is not None and not (isinstance(value, _NUMBERS) and not isinstance(value, bool) and value > 0.0):
            raise ArgumentError("prior_variance", f"[{name!r}] must be positive, or None for no prior, found {value!r}")
    return True


def variances(prior_variance: Any, blocks: Sequence[Block]) -> Any:
    """``prior_variance`` in the form that :func:`bactrian.learn` takes: None, a number or one per weight."""
    pooled = any(block.name == "deviations" for block in blocks)
    if isinstance(prior_variance, _NUMBERS) and pooled:
        return variances({block.name: prior_variance for block in blocks if block.name != "deviations"}, blocks)
    if not isinstance(prior_variance, Mapping):
        return prior_variance
    given: dict[str, Any] = {name: np.inf if value is None else value for name, value in prior_variance.items()}
    if "deviations" in given and not pooled:
        raise ArgumentError("prior_variance", "names block 'deviations', but no table is pooled")
    found = np.empty(sum(_size(block.weights) for block in blocks))
    for block in blocks:
        value = given.get(block.name, block.part * given.get(block.beside or "", VARIANCE))
        each = np.repeat(value, 1 if block.sizes is None else block.sizes) if isinstance(value, list) else value
        found[block.weights] = each / block.unit**2
    return found


def _size(weights: Ints | slice) -> int:
    return weights.stop - weights.start if isinstance(weights, slice) else weights.size


# --- cross-validation ---


@dataclass(frozen=True)
class Fold:
    """Data to learn from, and the loss of the adopted weights on what was held out, summed over ``size`` labels."""

    train: Any
    loss: Callable[[], float]
    size: int


def graph_folds(data: GraphData, marginals: Callable[[GraphData, Any], Floats], seed: int, unit: str) -> list[Fold]:
    """Folds over whole graphs; over nodes where there is one graph, whose other labels are then known.

    ``marginals(data, evidence)`` gives those of all nodes at the adopted weights. ``unit`` is what an error calls
    graphs; only ``"graph"`` can be divided. Unknown labels are not scored; where one graph has some, the labels that
    are held out are learned around as they are.
    """
    rng = np.random.default_rng(seed)
    graph = data.by_node(np.arange(data.n_graphs))
    known = data.known
    used = np.unique(graph[known])
    whole = used.size > 1
    n_known = int(known.sum())
    if not whole and (unit != "graph" or n_known < 2 * N_FOLDS):
        raise ValueError(
            f"prior_variance='cv' needs at least two {unit}s"
            + ("" if known.all() else " with known labels")
            + (f", or one of at least {2 * N_FOLDS} nodes" if unit == "graph" else "")
            + f"; found one of {n_known} nodes. Give a number"
        )
    fold_of = rng.permutation(used.size if whole else n_known) % N_FOLDS
    held_out = np.full(data.n_nodes, -1)
    if whole:
        fold_of_graph = np.full(data.n_graphs, -1)
        fold_of_graph[used] = fold_of
        held_out = fold_of_graph[graph]
    else:
        held_out[known] = fold_of
    return [_graph_fold(data, held_out == f, marginals, whole) for f in range(min(N_FOLDS, fold_of.size))]


def _graph_fold(data: GraphData, out: Bools, marginals: Callable[..., Floats], whole: bool) -> Fold:
    labels = data.truth
    scored = out & (labels >= 0)
    if whole:
        train, test, evidence, place = data.subset(~out), data.subset(out), None, scored[out]
    else:
        rest = np.flatnonzero((labels >= 0) & ~out)
        evidence = [dict(zip(rest.tolist(), labels[rest].tolist(), strict=True))]
        train = data.subset(~out) if (labels >= 0).all() else data.with_labels(np.where(out, -1, labels))
        test, place = data, scored

    def loss() -> float:
        return float(log_losses(marginals(test, evidence)[place], labels[scored]).sum())

    return Fold(train, loss, int(scored.sum()))


def cross_validated(
    estimator: Any, blocks: Sequence[Block], folds: Sequence[Fold]
) -> tuple[Any, list[tuple[Any, float]]]:
    """The variances of least loss on what is held out, and the mean loss of all that were tried.

    First one variance for all weights, along a path from the strongest prior to weaker ones, each started from the
    weights of the last, until the loss rises; then, with the others fixed, one for every block but the first, away from
    that one as long as the loss falls.
    """
    deadline = Deadline(None if estimator.max_seconds is None else _SHARE * estimator.max_seconds)
    names = list(dict.fromkeys(block.name for block in blocks if not block.beside))
    tried: list[tuple[Any, float]] = []

    def path(candidates: Iterable[Any], start: list[Any]) -> list[Any]:
        """Try candidates one after the other; the weights of all folds at the best."""
        best, kept = min((loss for _, loss in tried), default=np.inf), start
        for variance in candidates:
            if tried and deadline.has_passed:
                break
            estimator.prior_variance_ = variance
            options = estimator.learning_options()
            options |= {name: times * options[name] for name, times in _ROUGHLY.items() if name in options}
            options["max_iterations"] = min(options["max_iterations"], _ITERATIONS)
            found, total = [], 0.0
            for fold, weights in zip(folds, start, strict=True):
                options["max_seconds"] = deadline.left
                with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
                    solution = learn(fold.train, start=weights, **options)
                found.append(solution.weights)
                estimator.adopt(solution)
                total += fold.loss()
            start = found
            tried.append((variance, total / sum(fold.size for fold in folds)))
            if tried[-1][1] > best:
                break
            best, kept = tried[-1][1], start
        return kept

    kept = path(PATH, [None] * len(folds))
    for name in names[1:]:
        fixed = min(tried, key=lambda pair: pair[1])[0]
        fixed = fixed if isinstance(fixed, dict) else dict.fromkeys(names, fixed)
        for side in (reversed([v for v in PATH if v < fixed[name]]), [v for v in PATH if v > fixed[name]]):
            kept = path(({**fixed, name: v} for v in side), kept)
    return min(tried, key=lambda pair: pair[1])[0], tried
