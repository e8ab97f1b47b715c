"""Random problems of every kind that the library takes, small enough for enumeration; plain data, from a seed.

A case is what a number stands for: ``inference_case(17)`` and ``learning_case(17)`` are the same on every machine.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
from oracle import Array, DenseModel, Edge, Ints, Observed, Scope, joint_scores, joint_states, n_states
from reference import EdgeSpec

import bactrian as bt

#: Sizes of scores: ordinary ones, those near the range of exp, and what people write for "forbidden".
MAGNITUDES = (1e2, 7e2, 7.1e2, 1e3, 1e4, 1e5, 1e6, 1e7)
#: Most joint states that are enumerated.
MOST_STATES = 2048


@dataclass(frozen=True)
class Case:
    """Models with their edges and evidence, weights, and the same for the library: ``model`` is its argument."""

    number: int
    models: list[DenseModel]
    edges: list[EdgeSpec]
    weights: Array
    evidence: list[dict[int, int]]
    model: Any
    whole: bool  #: scores are whole numbers, so that ties are exact
    scale: float  #: largest absolute score of a table
    data: list[Observed] = field(default_factory=list)  #: for learning
    options: dict[str, Any] = field(default_factory=dict)
    node_factors: str = "clusters"

    @property
    def many(self) -> bool:
        return not isinstance(self.model, bt.LogLinearModel)


# --- graphs ---


def cardinalities(rng: np.random.Generator, n: int, most: int) -> list[int]:
    """From 1 to 4 states, the joint space held below ``most``; a variable in seven has a single state."""
    sizes = [int(k) for k in rng.choice([1, 2, 2, 2, 3, 3, 4], size=n)]
    while prod(sizes) > most:
        sizes[int(np.argmax(sizes))] -= 1
    return sizes


def clusters(rng: np.random.Generator, n: int) -> list[Scope]:
    """Trees, loops and anything: singletons, pairs, clusters of up to four, repeated ones, variables left out."""
    kind = rng.choice(["tree", "cycle", "pairs", "any", "single"])
    order = [int(v) for v in rng.permutation(n)]
    scopes: list[Scope] = []
    if kind == "tree":
        scopes = [(order[int(rng.integers(child))], order[child]) for child in range(1, n)]
    elif kind == "cycle" and n > 2:
        scopes = [(order[v], order[(v + 1) % n]) for v in range(n)]
    elif kind == "pairs":
        scopes = [(a, b) for a in range(n) for b in range(a + 1, n) if rng.random() < 0.6]
    elif kind == "any":
        for _ in range(int(rng.integers(1, 6))):
            size = int(rng.integers(1, min(n, 4) + 1))
            scopes.append(tuple(int(v) for v in rng.choice(n, size=size, replace=False)))
    if n > 2 and rng.random() < 0.2:
        scopes.append(tuple(int(v) for v in rng.choice(n, size=3, replace=False)))
    if rng.random() < 0.6:
        scopes += [(v,) for v in range(n) if rng.random() < 0.7]
    if scopes and rng.random() < 0.25:
        twin = scopes[int(rng.integers(len(scopes)))]
        scopes.append(twin if rng.random() < 0.5 else twin[::-1])
    if not scopes:
        scopes = [(int(rng.integers(n)),)]
    return [scopes[i] for i in rng.permutation(len(scopes))]


def explicit_edges(rng: np.random.Generator, scopes: list[Scope]) -> list[Edge]:
    """Edges between clusters that share variables: a spanning tree of them or more, sepsets up to the whole overlap."""
    pairs = [(i, j) for i in range(len(scopes)) for j in range(i + 1, len(scopes)) if set(scopes[i]) & set(scopes[j])]
    density = rng.choice([0.5, 1.0])
    edges: list[Edge] = []
    for i, j in pairs:
        if rng.random() > density:
            continue
        shared = [v for v in scopes[i] if v in scopes[j]]
        if rng.random() < 0.4:
            shared = shared[: int(rng.integers(1, len(shared) + 1))]
        edges.append((i, j, tuple(int(v) for v in rng.permutation(shared))))
    return edges


# --- scores ---


def magnitudes(rng: np.random.Generator) -> dict[int, float]:
    """Size of the scores of singletons, pairs and larger clusters: in half of the cases one or more are huge."""
    sizes = {k: float(rng.choice([0.0, 0.3, 1.0, 3.0])) for k in (1, 2, 3)}
    if rng.random() < 0.5:
        for k in sizes:
            if rng.random() < 0.5:
                sizes[k] = float(rng.choice(MAGNITUDES))
    return sizes


def table(rng: np.random.Generator, states: int, size: float, whole: bool) -> Array:
    """Scores of one table: normal, penalties on some states, or three levels; whole numbers give ties."""
    kind = rng.choice(["normal", "penalty", "levels"])
    if kind == "normal":
        scores = size * rng.normal(size=states)
    elif kind == "penalty":
        scores = -size * (rng.random(states) < 0.4)
    else:
        scores = size * rng.integers(-1, 2, size=states)
    return np.rint(scores) if whole else np.asarray(scores, dtype=float)


def forbid(rng: np.random.Generator, scores: Array) -> Array:
    """Some states at -inf, never all."""
    mask = rng.random(len(scores)) < 0.3
    mask[int(rng.integers(len(scores)))] = False
    return np.where(mask, -np.inf, scores)


def dense_model(
    rng: np.random.Generator, n_weights: int, whole: bool, most: int = MOST_STATES
) -> tuple[DenseModel, EdgeSpec]:
    """A model whose fixed scores carry the sizes and whose features are small numbers."""
    n = int(rng.integers(1, 8))
    sizes = cardinalities(rng, n, most)
    scopes = clusters(rng, n)
    edges: EdgeSpec = "bethe" if rng.random() < 0.65 else explicit_edges(rng, scopes)
    levels = magnitudes(rng)
    forbidding = rng.random() < 0.25
    features, base = [], []
    for scope in scopes:
        states = n_states(sizes, scope)
        values = rng.choice([-1.0, 0.5, 1.0], size=(states, n_weights)) * (rng.random((states, n_weights)) < 0.5)
        features.append(np.rint(values) if whole else values)
        scores = table(rng, states, levels[min(len(scope), 3)], whole)
        base.append(forbid(rng, scores) if forbidding and rng.random() < 0.5 else scores)
    return DenseModel(sizes, scopes, features, base), edges


def library_model(model: DenseModel, edges: EdgeSpec) -> bt.LogLinearModel:
    graph = bt.ClusterGraph(model.cardinalities, model.clusters, edges)
    return bt.LogLinearModel(graph, model.features, model.base_scores)


def random_evidence(rng: np.random.Generator, model: DenseModel) -> dict[int, int]:
    if rng.random() < 0.6:
        return {}
    return {v: int(rng.integers(k)) for v, k in enumerate(model.cardinalities) if rng.random() < 0.3}


def largest_score(models: list[DenseModel], weights: Array) -> float:
    tables = [features @ weights + model.base(i) for model in models for i, features in enumerate(model.features)]
    return max(float(np.abs(scores[np.isfinite(scores)]).max(initial=0.0)) for scores in tables)


# --- packed graphs ---


@dataclass(frozen=True)
class Graphs:
    """Arguments of ``bt.GraphData``, and the same graphs as dense models."""

    arguments: dict[str, Any]
    models: list[DenseModel]

    def data(self, **more: Any) -> bt.GraphData:
        return bt.GraphData(**{**self.arguments, **more})


def graphs(rng: np.random.Generator, n_labels: int, most: int = MOST_STATES) -> Graphs:
    """One to four graphs with typed edges, tied tables, and sometimes edge inputs; some chains, some repeated edges."""
    largest = max(1, int(np.log(most) / np.log(max(n_labels, 2))))
    counts = [int(c) for c in rng.integers(1, min(largest, 6) + 1, size=int(rng.integers(1, 5)))]
    n_inputs = int(rng.integers(1, 4))
    inputs = np.round(rng.normal(size=(sum(counts), n_inputs)), 2) * (rng.random((sum(counts), n_inputs)) < 0.8)
    tyings = [str(t) for t in rng.choice(["full", "symmetric", "potts", "diagonal"], size=int(rng.integers(1, 4)))]
    chain = rng.random() < 0.4
    edges: list[tuple[int, int]] = []
    first = 0
    for count in counts:
        if chain:
            edges += [(first + v, first + v + 1) for v in range(count - 1)]
        else:
            pairs = [(first + a, first + b) for a in range(count) for b in range(count) if a != b]
            edges += [pair for pair in pairs if rng.random() < 0.35]
        first += count
    types = rng.integers(len(tyings), size=len(edges))
    edge_inputs = np.round(rng.normal(size=(len(edges), 2)), 2) if edges and rng.random() < 0.3 else None
    arguments = {
        "inputs": inputs,
        "edges": np.array(edges, dtype=np.int64).reshape(-1, 2),
        "n_labels": n_labels,
        "tables": tyings,
        "edge_types": types,
        "edge_inputs": edge_inputs,
        "node_counts": counts,
        "node_factors": str(rng.choice(["clusters", "clusters", "edges", "first-edge"])),
    }
    return Graphs(arguments, _dense_graphs(arguments))


def tied_cells(tying: str, n_labels: int) -> Array:
    """(n_labels^2, parameters): which parameter each cell of a tied table is."""
    cells: dict[Any, int] = {}
    columns = np.full(n_labels * n_labels, -1)
    for a in range(n_labels):
        for b in range(n_labels):
            key: Any = (a, b)
            if tying == "symmetric":
                key = (min(a, b), max(a, b))
            elif tying == "diagonal":
                key = a if a == b else None
            elif tying == "potts":
                key = "same" if a == b else None
            if key is not None:
                columns[a * n_labels + b] = cells.setdefault(key, len(cells))
    matrix = np.zeros((n_labels * n_labels, len(cells)))
    used = np.flatnonzero(columns >= 0)
    matrix[used, columns[used]] = 1.0
    return matrix


def _dense_graphs(arguments: dict[str, Any]) -> list[DenseModel]:
    """The documented meaning of the arrays: node weights (inputs, labels) first, then each type's parameters."""
    labels, inputs = arguments["n_labels"], arguments["inputs"]
    edge_inputs = arguments["edge_inputs"]
    ties = [tied_cells(t, labels) for t in arguments["tables"]]
    per_edge = 1 if edge_inputs is None else edge_inputs.shape[1]
    starts = np.cumsum([inputs.shape[1] * labels, *[per_edge * t.shape[1] for t in ties]])
    n_weights = int(starts[-1])
    models = []
    first = 0
    for count in arguments["node_counts"]:
        scopes: list[Scope] = [(v,) for v in range(count)]
        features = []
        for v in range(count):
            block = np.zeros((labels, n_weights))
            block[:, : starts[0]] = np.kron(inputs[first + v][None, :], np.eye(labels))
            features.append(block)
        for e, (a, b) in enumerate(arguments["edges"]):
            if first <= a < first + count:
                kind = int(arguments["edge_types"][e])
                row = np.ones(1) if edge_inputs is None else edge_inputs[e]
                block = np.zeros((labels * labels, n_weights))
                block[:, starts[kind] : starts[kind + 1]] = np.kron(row[None, :], ties[kind])
                scopes.append((int(a - first), int(b - first)))
                features.append(block)
        models.append(DenseModel([labels] * count, scopes, features))
        first += count
    return models


# --- cases ---


def inference_case(number: int) -> Case:
    """Models, weights and evidence by number."""
    rng = np.random.default_rng([1, number])
    whole = bool(rng.random() < 0.3)
    if rng.random() < 0.3:
        made = graphs(rng, int(rng.integers(1, 5)))
        n_weights, node = made.models[0].n_weights, made.arguments["inputs"].shape[1] * made.arguments["n_labels"]
        if whole:
            made.arguments["inputs"] = np.rint(made.arguments["inputs"])
            if made.arguments["edge_inputs"] is not None:
                made.arguments["edge_inputs"] = np.rint(made.arguments["edge_inputs"])
            made = Graphs(made.arguments, _dense_graphs(made.arguments))
        levels = magnitudes(rng)
        weights = np.concatenate([table(rng, node, levels[1], whole), table(rng, n_weights - node, levels[2], whole)])
        evidence = [random_evidence(rng, model) for model in made.models]
        edges: list[EdgeSpec] = ["bethe"] * len(made.models)
        scale = largest_score(made.models, weights)
        return Case(number, made.models, edges, weights, evidence, made.data(), whole, scale)
    n_weights = int(rng.integers(1, 5))
    weights = table(rng, n_weights, float(rng.choice([0.0, 1.0, 1.0, 2.0])), whole)
    count = int(rng.choice([1, 1, 1, 3]))
    pairs = [dense_model(rng, n_weights, whole) for _ in range(count)]
    models = [model for model, _ in pairs]
    specs = [spec for _, spec in pairs]
    evidence = [random_evidence(rng, model) for model in models]
    built = [library_model(model, spec) for model, spec in pairs]
    argument = built[0] if count == 1 else built
    return Case(number, models, specs, weights, evidence, argument, whole, largest_score(models, weights))


PRIORS: tuple[dict[str, Any], ...] = (
    {"prior_variance": None},
    {"prior_variance": None},
    {"prior_variance": 0.1},
    {"prior_variance": 10.0},
    {"prior_variance": 1e4},
    {"prior_variance": None, "l1": 0.3},
    {"prior_variance": None, "l1": 3.0},
    {"prior_variance": 1.0, "l1": 0.5},
)


def drawn(rng: np.random.Generator, model: DenseModel, weights: Array, rows: int) -> Ints | None:
    """Joint states of the model, by enumeration; None where it allows none."""
    scores = joint_scores(model, weights)
    if scores.max() == -np.inf:
        return None
    probabilities = np.exp(scores - scores.max())
    states: Ints = joint_states(model.cardinalities)
    return states[rng.choice(len(states), size=rows, p=probabilities / probabilities.sum())]


def learning_case(number: int, weighted: bool = False) -> Case:
    """Data of one kind with the options of ``learn`` by number; the case's weights are those it was drawn with.

    ``weighted`` gives every row a whole weight; for the judge it is repeated so often.
    """
    rng = np.random.default_rng([2, number])
    weigh = np.random.default_rng([3, number])
    options = {**PRIORS[int(rng.integers(len(PRIORS)))], "tolerance": float(rng.choice([1e-4, 1e-6, 1e-6, 1e-8]))}
    kind = rng.choice(["samples", "instances", "graphs"])
    node_factors = "clusters"
    while True:
        whole = bool(rng.random() < 0.2)
        data: list[Observed] = []
        if kind == "graphs":
            made = graphs(rng, int(rng.integers(2, 4)), 300)
            weights = rng.normal(size=made.models[0].n_weights)
            for model in made.models:
                rows = drawn(rng, model, weights, 1)
                assert rows is not None
                data.append(Observed(model, rows))
            counts = weigh.integers(1, 5, size=len(data))
            labels = np.concatenate([seen.assignments[0] for seen in data])
            argument: Any = made.data(labels=labels, weights=counts.astype(float) if weighted else None)
            specs: list[EdgeSpec] = ["bethe"] * len(data)
            node_factors = made.arguments["node_factors"]
        else:
            n_weights = int(rng.integers(1, 6))
            weights = rng.normal(size=n_weights)
            count, rows_each = (
                (1, int(rng.choice([1, 3, 10, 100]))) if kind == "samples" else (int(rng.integers(1, 7)), 1)
            )
            specs = []
            for _ in range(count):
                model, spec = dense_model(rng, n_weights, whole, 300)
                rows = drawn(rng, model, weights, rows_each)
                if rows is None:
                    break
                data.append(Observed(model, rows))
                specs.append(spec)
            if len(data) < count:
                continue
            built = [library_model(seen.model, spec) for seen, spec in zip(data, specs, strict=True)]
            counts = weigh.integers(1, 5, size=sum(len(seen.assignments) for seen in data))
            given = counts if weighted else np.ones_like(counts)
            if kind == "samples":
                argument = bt.Samples(built[0], data[0].assignments, given.astype(float))
            else:
                rows_of = zip(built, data, given.tolist(), strict=True)
                argument = [bt.Instance(m, seen.assignments[0], float(count)) for m, seen, count in rows_of]
        if weighted:
            ends = np.cumsum([0, *[len(seen.assignments) for seen in data]])
            data = [
                Observed(seen.model, np.repeat(seen.assignments, counts[a:b], axis=0))
                for seen, a, b in zip(data, ends[:-1], ends[1:], strict=True)
            ]
        models = [seen.model for seen in data]
        scale = largest_score(models, weights)
        return Case(number, models, specs, weights, [], argument, whole, scale, data, options, node_factors)


def full_table_case(number: int, scaling: bool) -> Case:
    """Samples of a model with full tables of weights: of variables if ``scaling``, else of every larger cluster.

    Half of the data is drawn from the model, half uniformly, whatever the fixed scores say.
    """
    rng = np.random.default_rng([6, int(scaling), number])
    options = {"prior_variance": None, "tolerance": float(rng.choice([1e-4, 1e-6, 1e-8]))}
    while True:
        n = int(rng.integers(1, 7))
        sizes, scopes, levels = cardinalities(rng, n, 300), clusters(rng, n), magnitudes(rng)
        edges: EdgeSpec = "bethe" if scaling or rng.random() < 0.65 else explicit_edges(rng, scopes)
        blocks = []
        for i, scope in enumerate(scopes):
            hub = len(scope) == 1 and edges == "bethe" and scope not in scopes[:i]
            touched = any(len(other) > 1 and scope[0] in other for other in scopes)
            learned = hub and rng.random() < 0.8 if scaling else not (hub and touched and rng.random() < 0.5)
            states = n_states(sizes, scope)
            blocks.append(_full_table(rng, states) if learned else np.zeros((states, 0)))
        n_weights = sum(block.shape[1] for block in blocks)
        if n_weights == 0:
            continue
        starts = np.cumsum([0, *[block.shape[1] for block in blocks]])
        features = [np.zeros((len(block), n_weights)) for block in blocks]
        for table_features, block, a, b in zip(features, blocks, starts[:-1], starts[1:], strict=True):
            table_features[:, a:b] = block
        base = [
            table(rng, len(block), levels[min(len(scope), 3)], False)
            for block, scope in zip(blocks, scopes, strict=True)
        ]
        model = DenseModel(sizes, scopes, features, base)
        weights = rng.normal(size=n_weights)
        rows = int(rng.choice([1, 10, 100, 1000]))
        states = joint_states(sizes)
        seen = states[rng.integers(len(states), size=rows)] if rng.random() < 0.5 else drawn(rng, model, weights, rows)
        assert seen is not None
        data = [Observed(model, seen)]
        samples = bt.Samples(library_model(model, edges), seen)
        return Case(
            number, [model], [edges], weights, [], samples, False, largest_score([model], weights), data, options
        )


def _full_table(rng: np.random.Generator, states: int) -> Array:
    """Features that can express every score up to a constant: indicators, all but one of them, or mixtures."""
    kind = rng.choice(["indicators", "all but one", "mixtures"])
    indicators = np.eye(states)
    if kind == "all but one":
        return indicators[:, 1:]
    return (
        indicators
        if kind == "indicators"
        else indicators + np.round(0.3 * rng.normal(size=(states, states)), 2) / states
    )


def folder_case(number: int) -> tuple[Case, list[bt.GraphData]]:
    """Graphs for learning with inputs of up to 1e6, and the same in parts, one for each chunk of a folder."""
    rng = np.random.default_rng([7, number])
    options = {**PRIORS[int(rng.integers(len(PRIORS)))], "tolerance": float(rng.choice([1e-4, 1e-6]))}
    made = graphs(rng, int(rng.integers(2, 4)), 300)
    wide = made.arguments
    size = float(rng.choice([1.0, 1e2, 1e3, 1e4, 1e6]))
    wide["inputs"] = wide["inputs"] * np.where(rng.random(wide["inputs"].shape[1]) < 0.5, size, 1.0)
    if wide["edge_inputs"] is not None and rng.random() < 0.5:
        wide["edge_inputs"] = wide["edge_inputs"] * size
    made = Graphs(wide, _dense_graphs(wide))
    n_nodes = len(wide["inputs"])
    labels = rng.integers(wide["n_labels"], size=n_nodes)
    bounds = np.cumsum([0, *wide["node_counts"]])
    data = [Observed(m, labels[None, a:b]) for m, a, b in zip(made.models, bounds[:-1], bounds[1:], strict=True)]
    weights = rng.normal(size=made.models[0].n_weights)
    scale = largest_score(made.models, weights)
    specs: list[EdgeSpec] = ["bethe"] * len(data)
    whole = made.data(labels=labels)
    case = Case(
        number, made.models, specs, weights, [], whole, False, scale, data, options, made.arguments["node_factors"]
    )
    cuts = [0, *sorted(set(rng.integers(1, len(data) + 1, size=2).tolist()) | {len(data)})]
    return case, [_graphs_between(wide, labels, a, b) for a, b in pairwise(cuts)]


def _graphs_between(arguments: dict[str, Any], labels: Ints, a: int, b: int) -> bt.GraphData:
    """Graphs a to b - 1 of the arguments of a ``GraphData``."""
    counts = arguments["node_counts"]
    first, last = sum(counts[:a]), sum(counts[:b])
    edges = arguments["edges"]
    inside = (edges[:, 0] >= first) & (edges[:, 0] < last)
    rows = arguments["edge_inputs"]
    return bt.GraphData(
        **{
            **arguments,
            "inputs": arguments["inputs"][first:last],
            "edges": edges[inside] - first,
            "edge_types": arguments["edge_types"][inside],
            "edge_inputs": None if rows is None else rows[inside],
            "node_counts": counts[a:b],
            "labels": labels[first:last],
        }
    )
