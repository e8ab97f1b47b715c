"""Seeded random models and data sets, small enough for enumeration; hypothesis strategies on top of them.

Everything is plain data for the oracle and the reference. A problem holds one ``Observed`` per instance (a single
one with many rows if it is generative) and the edges of each instance's cluster graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from hypothesis import strategies as st
from oracle import Array, DenseModel, Edge, Ints, Observed, Scope, joint_distribution, joint_states, n_states
from reference import EdgeSpec

Shape = Literal["tree", "loop", "dense", "ternary", "junction", "cycle-edges", "star-edges", "wide-sepsets"]

BETHE_SHAPES: tuple[Shape, ...] = ("tree", "loop", "dense", "ternary")
EXPLICIT_SHAPES: tuple[Shape, ...] = ("junction", "cycle-edges", "star-edges", "wide-sepsets")
TREE_SHAPES: tuple[Shape, ...] = ("tree", "junction")
LOOPY_SHAPES: tuple[Shape, ...] = ("loop", "dense", "ternary", "cycle-edges", "star-edges", "wide-sepsets")


@dataclass(frozen=True)
class Problem:
    """Data, the edges of every instance's graph, and the weights that the data was drawn with."""

    data: list[Observed]
    edges: list[EdgeSpec]
    true_weights: Array

    @property
    def generative(self) -> bool:
        return len(self.data) == 1


# --- graphs ---


def random_cardinalities(rng: np.random.Generator, n: int, largest: int = 3) -> list[int]:
    """Cardinalities from 2 to ``largest``, not all alike where n allows it."""
    drawn = [int(k) for k in rng.integers(2, largest + 1, size=n)]
    if n > 1 and largest > 2:
        drawn[0], drawn[-1] = 2, largest
    return drawn


def tree_clusters(rng: np.random.Generator, n: int) -> list[Scope]:
    """Pairs that form a random tree, in random orientation."""
    clusters: list[Scope] = []
    for child in range(1, n):
        pair = (int(rng.integers(child)), child)
        clusters.append(pair if rng.random() < 0.5 else pair[::-1])
    return clusters


def loop_clusters(n: int) -> list[Scope]:
    """Pairs around one cycle."""
    return [(v, (v + 1) % n) for v in range(n)]


def dense_clusters(rng: np.random.Generator, n: int, density: float = 0.8) -> list[Scope]:
    """A cycle plus each further pair with the given probability."""
    cycle = {frozenset(pair) for pair in loop_clusters(n)}
    pairs = [(a, b) for a in range(n) for b in range(a + 1, n)]
    return [pair for pair in pairs if frozenset(pair) in cycle or rng.random() < density]


def junction_tree(rng: np.random.Generator, n_clusters: int) -> tuple[int, list[Scope], list[Edge]]:
    """A cluster tree with the running-intersection property, scopes of two or three: (variables, clusters, edges)."""
    clusters: list[Scope] = [(0, 1, 2) if rng.random() < 0.5 else (0, 1)]
    edges: list[Edge] = []
    n = len(clusters[0])
    for child in range(1, n_clusters):
        parent = int(rng.integers(child))
        sepset_size = int(rng.integers(1, min(2, len(clusters[parent]) - 1) + 1))
        sepset = tuple(int(v) for v in rng.permutation(clusters[parent])[:sepset_size])
        fresh = (n,) if sepset_size == 2 or rng.random() < 0.5 else (n, n + 1)
        scope = tuple(int(v) for v in rng.permutation(sepset + fresh))
        n += len(fresh)
        clusters.append(scope)
        edges.append((parent, child, sepset))
    return n, clusters, edges


def star_edges(n: int, clusters: list[Scope]) -> list[Edge]:
    """For each variable edges from the first cluster that contains it to each other one: Bethe without hubs."""
    edges: list[Edge] = []
    for variable in range(n):
        around = [i for i, cluster in enumerate(clusters) if variable in cluster]
        edges += [(around[0], other, (variable,)) for other in around[1:]]
    return edges


def random_graph(rng: np.random.Generator, shape: Shape, size: int) -> tuple[list[int], list[Scope], EdgeSpec]:
    """Cardinalities, clusters and edges of a named shape; ``size`` counts variables (clusters for a junction tree).

    Some Bethe graphs have given singletons (hubs with scores of their own), some have none.
    """
    if shape == "junction":
        n, clusters, explicit = junction_tree(rng, size)
        return random_cardinalities(rng, n, 3 if n <= 6 else 2), clusters, explicit
    if shape == "wide-sepsets":
        clusters = [(0, 1, 2), (1, 2, 3), (3, 0, 1)]
        return random_cardinalities(rng, 4), clusters, [(0, 1, (1, 2)), (1, 2, (3, 1)), (2, 0, (0,))]
    cardinalities = random_cardinalities(rng, size)
    if shape == "cycle-edges":
        clusters = loop_clusters(size)
        return cardinalities, clusters, [(v, (v + 1) % size, ((v + 1) % size,)) for v in range(size)]
    if shape == "star-edges":
        clusters = dense_clusters(rng, size)
        return cardinalities, clusters, star_edges(size, clusters)
    if shape == "tree":
        clusters = tree_clusters(rng, size)
    elif shape == "loop":
        clusters = loop_clusters(size)
    else:
        clusters = dense_clusters(rng, size)
    if shape == "ternary":
        clusters = [*clusters[1:], (2, 0, 1)]
    if rng.random() < 0.5:
        singletons = [(v,) for v in range(size) if rng.random() < 0.7]
        clusters = [*clusters, *singletons] if rng.random() < 0.5 else [*singletons, *clusters]
    return cardinalities, clusters, "bethe"


# --- features and data ---


def random_features(
    rng: np.random.Generator,
    cardinalities: list[int],
    clusters: list[Scope],
    n_weights: int,
    density: float = 0.6,
) -> list[Array]:
    """Feature tables with zeros and repeated entries; the first half of the weights is shared by all clusters.

    Each later weight belongs to a random few clusters, so weights are tied both within and between clusters.
    """
    owners = rng.random((len(clusters), n_weights)) < 0.4
    owners[:, : (n_weights + 1) // 2] = True
    owners[rng.integers(len(clusters), size=n_weights), np.arange(n_weights)] = True
    tables = []
    for cluster, owned in zip(clusters, owners, strict=True):
        shape = (n_states(cardinalities, cluster), n_weights)
        values = rng.choice([-1.0, 0.5, 1.0, 1.0], size=shape)
        tables.append(values * (rng.random(shape) < density) * owned)
    return tables


def full_tables(cardinalities: list[int], clusters: list[Scope], owners: list[int]) -> list[Array]:
    """One indicator weight per cell of each cluster in ``owners``, shared with nobody; no features elsewhere."""
    sizes = [n_states(cardinalities, cluster) for cluster in clusters]
    n_weights = sum(sizes[i] for i in owners)
    tables = [np.zeros((size, n_weights)) for size in sizes]
    column = 0
    for i in owners:
        tables[i][:, column : column + sizes[i]] = np.eye(sizes[i])
        column += sizes[i]
    return tables


def random_base_scores(rng: np.random.Generator, features: list[Array], scale: float = 0.5) -> list[Array | None]:
    """Fixed scores on about half of the clusters."""
    return [scale * rng.normal(size=len(table)) if rng.random() < 0.5 else None for table in features]


def sample(rng: np.random.Generator, model: DenseModel, weights: Array, rows: int) -> Ints:
    """Joint assignments drawn from the model by enumeration, shape (rows, n_variables)."""
    joint = joint_distribution(model, weights)
    states: Ints = joint_states(model.cardinalities)[rng.choice(len(joint), size=rows, p=joint / joint.sum())]
    return states


def generative_problem(
    seed: int,
    shape: Shape,
    *,
    size: int = 4,
    rows: int = 40,
    n_weights: int = 6,
    coupling: float = 1.0,
    base: bool = False,
) -> Problem:
    """Samples of one random model whose weights are normal with standard deviation ``coupling``."""
    rng = np.random.default_rng(seed)
    cardinalities, clusters, edges = random_graph(rng, shape, size)
    features = random_features(rng, cardinalities, clusters, n_weights)
    model = DenseModel(cardinalities, clusters, features, random_base_scores(rng, features) if base else None)
    weights = coupling * rng.normal(size=n_weights)
    return Problem([Observed(model, sample(rng, model, weights, rows))], [edges], weights)


def conditional_problem(
    seed: int,
    shape: Shape,
    *,
    size: int = 4,
    instances: int = 5,
    n_weights: int = 5,
    coupling: float = 1.0,
    base: bool = False,
) -> Problem:
    """Instances with graphs, cardinalities and features of their own, labels drawn with common weights."""
    rng = np.random.default_rng(seed)
    weights = coupling * rng.normal(size=n_weights)
    data, specs = [], []
    for m in range(instances):
        grown = size + m % 2 if shape != "junction" else size
        cardinalities, clusters, edges = random_graph(rng, shape, grown)
        features = random_features(rng, cardinalities, clusters, n_weights)
        model = DenseModel(cardinalities, clusters, features, random_base_scores(rng, features) if base else None)
        data.append(Observed(model, sample(rng, model, weights, 1)))
        specs.append(edges)
    return Problem(data, specs, weights)


def ising_problem(
    seed: int,
    clusters: list[Scope],
    *,
    n: int,
    rows: int = 200,
    coupling: float = 0.8,
    field: float = 0.3,
    shared: bool = False,
) -> Problem:
    """Binary variables with agreement features on pairs and fields on given singletons.

    Unshared: a weight per pair, of random sign and of a size around ``coupling``, and a weight per field. Shared: two
    weights in all, an attractive coupling and a field.
    """
    rng = np.random.default_rng(seed)
    scopes: list[Scope] = [*clusters, *[(v,) for v in range(n)]]
    n_weights = 2 if shared else len(scopes)
    features = [np.zeros((2 ** len(scope), n_weights)) for scope in scopes]
    for i, scope in enumerate(scopes):
        column = 2 - len(scope) if shared else i
        features[i][:, column] = [1.0, -1.0, -1.0, 1.0] if len(scope) == 2 else [-1.0, 1.0]
    model = DenseModel([2] * n, scopes, features)
    if shared:
        weights = np.array([coupling, field])
    else:
        sizes = rng.uniform(0.6, 1.2, size=len(clusters)) * rng.choice([-1.0, 1.0], size=len(clusters))
        weights = np.concatenate([coupling * sizes, field * rng.normal(size=n)])
    return Problem([Observed(model, sample(rng, model, weights, rows))], ["bethe"], weights)


def full_table_problem(seed: int, shape: Shape, *, size: int = 3, rows: int = 400) -> Problem:
    """Unshared full tables on every cluster that is no hub, with every cell of every table observed."""
    rng = np.random.default_rng(seed)
    cardinalities, clusters, edges = random_graph(rng, shape, size)
    bethe = isinstance(edges, str)
    owners = [i for i, cluster in enumerate(clusters) if len(cluster) > 1 or not bethe]
    model = DenseModel(cardinalities, clusters, full_tables(cardinalities, clusters, owners))
    weights = 0.5 * rng.normal(size=model.n_weights)
    drawn = sample(rng, model, weights, rows)
    return Problem([Observed(model, np.concatenate([joint_states(cardinalities), drawn]))], [edges], weights)


def triangle_of_equation_8(edges: EdgeSpec = "bethe") -> Problem:
    """The paper's example: f00 and f11 shared by the three pairs, and the data [0,0,1], [0,1,0], [1,0,0]."""
    shared = np.array([[1.0, 0.0], [0.0, 0.0], [0.0, 0.0], [0.0, 1.0]])
    model = DenseModel([2, 2, 2], [(0, 1), (1, 2), (0, 2)], [shared, shared, shared])
    rows = np.array([[0, 0, 1], [0, 1, 0], [1, 0, 0]], dtype=np.int64)
    return Problem([Observed(model, rows)], [edges], np.zeros(2))


# --- hypothesis ---


@st.composite
def problems(draw: st.DrawFn, shapes: tuple[Shape, ...] = BETHE_SHAPES + EXPLICIT_SHAPES) -> Problem:
    """Generative or conditional problems of any shape, three or four variables, weak to strong couplings."""
    seed = draw(st.integers(0, 2**20))
    shape = draw(st.sampled_from(shapes))
    coupling = draw(st.sampled_from([0.3, 1.0, 2.0]))
    base = draw(st.booleans())
    if draw(st.booleans()):
        rows = draw(st.integers(1, 60))
        return generative_problem(seed, shape, size=3, rows=rows, coupling=coupling, base=base)
    return conditional_problem(seed, shape, size=3, instances=3, coupling=coupling, base=base)
