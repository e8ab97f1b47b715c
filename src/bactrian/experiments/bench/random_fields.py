"""Random Markov random fields small enough for exact answers: grids and complete graphs, by name and seed.

Binary variables are spins: a node has one feature s, a pair one feature s t, with s, t = -1 or 1, so every weight can
be told from the data. With more labels every node and pair has a full table of indicators. Weights are unshared (one
block per node and pair) or shared (one for all nodes and one for each direction of the grid, or for all pairs).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import numpy as np

from bactrian.arrays import Floats, Ints
from bactrian.graphs.graph import ClusterGraph, grid_graph
from bactrian.graphs.loglinear import LogLinearModel

#: Node weights are uniform between minus this and this.
FIELD = 0.25
#: Joint states that are listed one by one when samples are drawn.
MOST_STATES = 1 << 17
_SIZE = re.compile(r"(?:(\d+)x(\d+)|K(\d+))(?::(\d+))?")


@dataclass(frozen=True)
class FieldSize:
    """The shape of a graph: ``3x4`` is a grid, ``K6`` the complete graph on six variables, ``3x3:3`` has three labels.

    >>> FieldSize.parse("3x3:3").n_states, FieldSize.parse("K6").family
    (19683, 'dense')
    """

    name: str
    height: int  #: 0 for a complete graph
    n_variables: int
    n_labels: int

    @staticmethod
    def parse(text: str) -> FieldSize:
        """The size that ``text`` names."""
        match = _SIZE.fullmatch(text.strip())
        if match is None:
            raise ValueError(f"size {text!r} is neither a grid such as 3x4 or 3x3:3 nor a complete graph such as K6")
        height, width, n, labels = (0 if part is None else int(part) for part in match.groups())
        size = FieldSize(text.strip(), height, n or height * width, labels or 2)
        if size.n_variables < 2 or size.n_labels < 2:
            raise ValueError(f"size {text!r} needs at least two variables and two labels")
        if size.n_states > MOST_STATES:
            raise ValueError(
                f"size {text!r} has {size.n_states} joint states; exact answers need {MOST_STATES} at most"
            )
        return size

    @property
    def family(self) -> str:
        """``grid`` or ``dense``."""
        return "grid" if self.height else "dense"

    @property
    def n_states(self) -> int:
        """Joint states of all variables."""
        return int(self.n_labels**self.n_variables)

    def graph(self) -> ClusterGraph:
        """Singletons, then pairs."""
        if self.height:
            return grid_graph(self.height, self.n_variables // self.height, self.n_labels)
        clusters: list[tuple[int, ...]] = [(v,) for v in range(self.n_variables)]
        return ClusterGraph(
            [self.n_labels] * self.n_variables, clusters + list(combinations(range(self.n_variables), 2))
        )


@dataclass(frozen=True, eq=False)
class RandomField:
    """A model, the weights that the data come from, and its joint states (n_states, n_variables) in C order."""

    model: LogLinearModel
    weights: Floats
    states: Ints

    @cached_property
    def joint_features(self) -> Floats:
        """Features of every joint state, (n_states, n_weights)."""
        return joint_features(self.model, self.states)

    @cached_property
    def identifiable(self) -> Floats:
        """Projection (n_weights, n_weights) on the weights that make a difference to the distribution."""
        values, vectors = np.linalg.eigh(np.cov(self.joint_features, rowvar=False).reshape(self.weights.size, -1))
        kept = vectors[:, values > 1e-10 * values.max()]
        return np.asarray(kept @ kept.T)

    def sample(self, n: int, rng: np.random.Generator) -> Ints:
        """Independent draws (n, n_variables) from the distribution, exact ones."""
        scores = self.joint_features @ self.weights
        probabilities = np.exp(scores - scores.max())
        chosen = rng.choice(self.states.shape[0], size=n, p=probabilities / probabilities.sum())
        return np.asarray(self.states[chosen])


def random_field(size: FieldSize, shared: bool, strength: float, rng: np.random.Generator) -> RandomField:
    """A field whose pair weights are uniform within ``strength`` of 0.

    Shared spin couplings have a random sign and the size strength / 2, which is the mean size of the unshared ones: a
    single uniform draw would often be no coupling at all.
    """
    graph = size.graph()
    blocks = _blocks(size, graph, shared)
    spin = np.array([-1.0, 1.0])
    single = spin[:, None] if size.n_labels == 2 else np.eye(size.n_labels)
    pair = np.outer(spin, spin).reshape(-1, 1) if size.n_labels == 2 else np.eye(size.n_labels**2)
    widths = np.zeros(max(blocks) + 1, dtype=np.int64)
    for block, scope in zip(blocks, graph.clusters, strict=True):
        widths[block] = single.shape[1] if len(scope) == 1 else pair.shape[1]
    starts = np.concatenate([[0], np.cumsum(widths)])
    tables: dict[int, Floats] = {}
    weights = np.empty(starts[-1])
    for block, scope in zip(blocks, graph.clusters, strict=True):
        if block in tables:
            continue
        own = slice(int(starts[block]), int(starts[block + 1]))
        local = single if len(scope) == 1 else pair
        tables[block] = np.zeros((local.shape[0], weights.size))
        tables[block][:, own] = local
        weights[own] = rng.uniform(-1.0, 1.0, local.shape[1]) * (FIELD if len(scope) == 1 else strength)
        if shared and len(scope) == 2 and size.n_labels == 2:
            weights[own] = 0.5 * strength * np.sign(weights[own])
    model = LogLinearModel(graph, [tables[block] for block in blocks])
    states = np.stack(np.unravel_index(np.arange(size.n_states), (size.n_labels,) * size.n_variables), axis=1)
    return RandomField(model, weights, states.astype(np.int64))


def joint_features(model: LogLinearModel, X: Ints) -> Floats:
    """Features (n, n_weights), summed over clusters, of joint states ``X`` (n, n_variables)."""
    total = np.zeros((X.shape[0], model.n_weights))
    cardinalities = np.asarray(model.graph.cardinalities)
    for scope, features in zip(model.graph.clusters, model.features, strict=False):
        if features is not None:
            chosen = np.ravel_multi_index(tuple(X[:, v] for v in scope), tuple(cardinalities[list(scope)]))
            total += features.toarray()[chosen]
    return total


def _blocks(size: FieldSize, graph: ClusterGraph, shared: bool) -> list[int]:
    """The block of weights of every cluster."""
    if not shared:
        return list(range(len(graph.clusters)))
    along_row = [bool(size.height) and scope[-1] - scope[0] == 1 for scope in graph.clusters]
    kinds = [0 if len(scope) == 1 else 1 + along for scope, along in zip(graph.clusters, along_row, strict=True)]
    present = sorted(set(kinds))
    return [present.index(kind) for kind in kinds]
