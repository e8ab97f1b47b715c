"""Kernels and objectives from below: finite differences, star updates, fast paths against slow ones, optimisers.

The judges are dense formulas written out here, enumeration, SciPy and scikit-learn.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
from numba import njit
from oracle import DenseModel, log_partition, sub_index, variable_marginals
from random_models import dense_clusters, loop_clusters, random_features, tree_clusters
from scipy.optimize import approx_fprime, minimize, rosen, rosen_der
from scipy.special import logsumexp as scipy_logsumexp
from sklearn.linear_model import LogisticRegression

import bactrian as bt
from bactrian.camel.accuracy import Accuracy, Demands
from bactrian.camel.dual import Dual
from bactrian.camel.entropy import Carving, CountingNumbers, carve
from bactrian.camel.joint import JointObjective
from bactrian.camel.linearisation import Linearisation
from bactrian.camel.prior import Prior
from bactrian.camel.profiled import ProfiledObjective
from bactrian.engines.numba.arithmetic import exp, logsumexp
from bactrian.engines.numba.linear import believe
from bactrian.engines.numba.orders import stable_order
from bactrian.engines.numba.sparse import rows_times_weights
from bactrian.graphs.packing import pack, projection_map
from bactrian.graphs.scores import Inputs, TiedTable
from bactrian.parallel.threads import Context, Workers, balanced_blocks, blocks_of_rows
from bactrian.solvers.lbfgs import Memory, minimise
from bactrian.solvers.solution import Status

Array = np.ndarray
ONE = Context(Workers(1))


def exactly(accuracy: float) -> Accuracy:
    """An accuracy of messages from the start."""
    return Accuracy(Demands.of(accuracy, None, 0.0, 1.0), start=accuracy)


#: Damping too small to change a number, but enough to keep the fast path for pairs out of it.
LOG_SPACE = 1e-300


# --- arithmetic ---


@njit
def exp_of_all(values: Array) -> Array:
    out = np.empty_like(values)
    for k in range(values.size):
        out[k] = exp(values[k])
    return out


def test_exp_over_its_whole_range() -> None:
    rng = np.random.default_rng(0)
    halves = np.log(2.0) * (np.arange(-1000, 1000) + 0.5)  # where the reduced argument is largest
    x = np.concatenate([np.linspace(-708.0, 709.0, 50_001), rng.uniform(-1, 1, 5000), halves, [0.0, -0.0, 1e-300]])
    x = x[(x >= -708.0) & (x <= 709.0)]
    truth = np.exp(x.astype(np.longdouble))
    assert np.abs((exp_of_all(x) - truth) / truth).max() < 4e-16
    np.testing.assert_allclose(exp_of_all(x), np.exp(x), rtol=5e-16)
    assert exp_of_all(np.zeros(1))[0] == 1.0


def test_exp_outside_its_range() -> None:
    low = np.array([-708.5, -745.0, -1e4, -1e300, -np.inf])
    np.testing.assert_array_equal(exp_of_all(low), 0.0)
    np.testing.assert_allclose(exp_of_all(np.array([709.0, 709.5, 1e4, np.inf])), np.exp(709.0), rtol=4e-16)


@pytest.mark.parametrize("shift", [0.0, 1e5, -1e5])
def test_logsumexp(shift: float) -> None:
    rng = np.random.default_rng(1)
    for scale in (1e-3, 1.0, 100.0, 700.0):
        values = shift + scale * rng.normal(size=20)
        values[rng.integers(20, size=3)] = -np.inf
        assert logsumexp(values, 0, 20) == pytest.approx(scipy_logsumexp(values), rel=1e-14, abs=1e-14)
        assert logsumexp(values, 5, 9) == pytest.approx(scipy_logsumexp(values[5:9]), rel=1e-14, abs=1e-14)


def test_logsumexp_of_nothing() -> None:
    values = np.array([-np.inf, -np.inf, 0.0])
    assert logsumexp(values, 0, 2) == -np.inf
    assert logsumexp(values, 1, 1) == -np.inf
    assert logsumexp(values, 0, 3) == 0.0


# --- sparse products, tied tables, blocks, projections ---


def random_rows(seed: int, shape: tuple[int, int]) -> Any:
    rng = np.random.default_rng(seed)
    matrix = rng.normal(size=shape) * (rng.random(shape) < 0.2)
    matrix[shape[0] // 2] = 0.0
    matrix[:, -1] = 0.0
    return sp.csr_array(matrix)


def test_belief_of_a_hub_without_links() -> None:
    """What stands where messages would is whatever the memory held before."""
    scores = np.array([0.3, -1.0, 2.0])
    for number in (1.0, 0.5, 4.0):
        nothing = np.full(1, np.nan)
        psi, belief = np.exp(scores - 2.0), np.zeros(3)
        believe(psi, nothing, belief, 0, 0, 0, number, 3)
        expected = scores / number - scipy_logsumexp(scores / number)
        np.testing.assert_allclose(belief, np.exp(expected), rtol=1e-14)


@pytest.mark.parametrize("labels", [1, 2, 7])
def test_sparse_rows_times_weights(labels: int) -> None:
    rows = random_rows(0, (50, 30))
    weights = np.random.default_rng(1).normal(size=(30, labels))
    out = np.full((50, labels), np.nan)
    arrays = (rows.indptr.astype(np.int64), rows.indices.astype(np.int32), rows.data)
    rows_times_weights(arrays, weights.ravel(), out.reshape(-1), labels, 10, 40, ())
    np.testing.assert_allclose(out[10:40], (rows @ weights)[10:40], atol=1e-13)
    assert np.isnan(out[:10]).all()
    assert np.isnan(out[40:]).all()


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("threads", [1, 2])
def test_inputs_from_both_sides(sparse: bool, threads: int) -> None:
    rows = random_rows(2, (200, 40))
    rng = np.random.default_rng(3)
    inputs = Inputs(rows if sparse else rows.toarray())
    weights, values = rng.normal(size=(40, 3)), rng.normal(size=(200, 3))
    forward, backward = np.empty((200, 3)), np.empty((40, 3))
    inputs.times(weights, forward, Workers(threads))
    inputs.transposed_times(values, backward, Workers(threads))
    np.testing.assert_allclose(forward, rows @ weights, atol=1e-12)
    np.testing.assert_allclose(backward, rows.T @ values, atol=1e-12)


@pytest.mark.parametrize("tying", ["full", "symmetric", "diagonal", "potts", "pooled"])
@pytest.mark.parametrize("labels", [1, 2, 5])
def test_tied_tables_and_their_transpose(tying: str, labels: int) -> None:
    rng = np.random.default_rng(4)
    table = TiedTable.make(tying, labels)
    tied, counts = rng.normal(size=(3, table.n_tied)), rng.normal(size=(3, labels * labels))
    assert np.sum(table.expand(tied) * counts) == pytest.approx(np.sum(tied * table.reduce(counts)))
    square = table.expand(tied).reshape(3, labels, labels)
    if tying != "full":
        np.testing.assert_array_equal(square, square.transpose(0, 2, 1))
    if tying == "potts":
        np.testing.assert_array_equal(square, np.eye(labels) * tied[:, :1, None])
    pairs = labels * (labels + 1) // 2
    sizes = {"full": labels**2, "symmetric": pairs, "diagonal": labels, "potts": 1, "pooled": pairs + 1}
    assert table.n_tied == sizes[tying]


@pytest.mark.parametrize("n", [0, 1, 5, 300])
@pytest.mark.parametrize("least", [1.0, 40.0, 1000.0])
def test_blocks_of_rows_are_those_of_their_costs(n: int, least: float) -> None:
    sizes = np.random.default_rng(n).integers(0, 9, n)
    bounds = np.concatenate([[0], np.cumsum(sizes)])
    assert blocks_of_rows(bounds, 4, least).tolist() == balanced_blocks(sizes + 1.0, 4, least).tolist()


@pytest.mark.parametrize("items", [0, 1, 2, 31, 32, 33, 1000])
@pytest.mark.parametrize("blocks", [1, 2, 32])
def test_balanced_blocks_cover_everything_once(items: int, blocks: int) -> None:
    cost = np.random.default_rng(items).exponential(size=items)
    bounds = balanced_blocks(cost, blocks)
    assert bounds[0] == 0
    assert bounds[-1] == items
    assert (np.diff(bounds) > 0).all()
    assert bounds.size - 1 <= blocks
    if items >= 1000:
        sums = np.add.reduceat(cost, bounds[:-1])
        assert sums.max() <= cost.sum() / blocks + cost.max()


@pytest.mark.parametrize("axes", [(0,), (2,), (1, 2), (2, 0), (1, 0, 2), (2, 1, 0)])
def test_projection_map(axes: tuple[int, ...]) -> None:
    cardinalities = [2, 3, 4]
    np.testing.assert_array_equal(projection_map((2, 3, 4), axes), sub_index(cardinalities, (0, 1, 2), axes))


# --- duals of small data sets ---


PAIRS = ("pairs", "pairs with singletons", "shared pairs", "absorbed", "edges of pairs")
OTHERS = ("ternary", "wide sepsets", "mixed")


@cache
def data_of(name: str) -> Any:
    """Weighted data of several instances whose graphs have loops."""
    rng = np.random.default_rng(sum(map(ord, name)))
    if name == "absorbed":
        edges = [(0, 1), (1, 2), (2, 0), (3, 4)]
        return bt.GraphData(
            rng.normal(size=(6, 2)), edges, n_labels=3, labels=[0, 1, 2, 0, 0, 1], tables="symmetric",
            node_counts=[3, 2, 1], node_factors="edges", weights=[1.0, 2.5, 0.5],
        )  # fmt: skip
    table = rng.normal(size=(9, 4))
    instances = []
    for m in range(3):
        cardinalities = [3, 3, 3, 3] if name == "shared pairs" else [2, 3, 2, 3]
        edges: Any = "bethe"
        clusters: list[Any] = loop_clusters(4) if m else dense_clusters(rng, 4)
        if name == "pairs with singletons":
            clusters = [*clusters, (0,), (1,), (2,), (3,)]
        elif name == "ternary":
            clusters = [*clusters, (2, 0, 1), (0,), (1,), (2,), (3,)]
        elif name == "mixed":
            clusters = [*clusters, *([(3, 1, 2), (1,)] if m == 1 else [(2,)])]
        elif name == "wide sepsets":
            clusters = [(0, 1, 2), (1, 2, 3), (3, 0, 1)]
            edges = [(0, 1, (1, 2)), (1, 2, (3, 1)), (2, 0, (0,))]
        elif name == "edges of pairs":
            clusters = loop_clusters(4)
            edges = [(v, (v + 1) % 4, ((v + 1) % 4,)) for v in range(4)]
        features: Any = random_features(rng, cardinalities, clusters, 4)
        base = [rng.normal(size=len(f)) for f in features]
        if name == "shared pairs":
            features, base = [table] * len(clusters), None
        model = bt.LogLinearModel(bt.ClusterGraph(cardinalities, clusters, edges), features, base)
        instances.append(bt.Instance(model, [rng.integers(k) for k in cardinalities], weight=0.5 + m))
    return instances


@cache
def packed_of(name: str) -> Any:
    return pack(data_of(name))


def numbers_of(name: str, entropy: str) -> Carving:
    """Counting numbers by name; "odd" ones are neither 1 nor alike."""
    packed = packed_of(name)
    if entropy != "odd":
        return carve(packed, entropy)
    rng = np.random.default_rng(5)
    plain = carve(packed, "clusters")
    hubs = rng.uniform(0.3, 2.0, size=plain.hub.size) * (rng.random(plain.hub.size) < 0.7)
    return Carving(rng.uniform(0.3, 2.0, size=plain.cluster.size), hubs, np.zeros_like(hubs))


def dual_of(name: str, entropy: str = "bethe", variance: float | None = 3.0, consistency: bool = True) -> Dual:
    """A dual with a linearisation, from random multipliers."""
    packed = packed_of(name)
    dual = Dual(packed, numbers_of(name, entropy), Prior(variance), ONE, consistency=consistency)
    rng = np.random.default_rng(6)
    dual.part.linearisation[:] = 0.5 * rng.normal(size=dual.part.linearisation.size)
    dual.part.multipliers[:] = 0.5 * rng.normal(size=dual.part.multipliers.size)
    return dual


def random_weights(dual: Dual, seed: int = 7) -> Array:
    return 0.7 * np.random.default_rng(seed).normal(size=dual.data.n_weights)


def differences(function: Callable[[Array], float], x: Array, step: float = 1e-5) -> Array:
    """Central differences."""
    columns = np.eye(x.size) * step
    return np.array([(function(x + c) - function(x - c)) / (2 * step) for c in columns])


ENTROPIES = ("bethe", "clusters", "odd")


@pytest.mark.parametrize("name", PAIRS + OTHERS)
@pytest.mark.parametrize("entropy", ENTROPIES)
def test_gradient_of_the_joint_objective(name: str, entropy: str) -> None:
    dual = dual_of(name, entropy)
    objective = JointObjective(dual)
    x = objective.initial(random_weights(dual))
    assert x.size > dual.data.n_weights
    gradient = objective.value_and_gradient(x)[1].copy()
    expected = differences(lambda at: objective.value_and_gradient(at)[0], x)
    assert np.abs(expected[dual.data.n_weights :]).max() > 1e-2
    np.testing.assert_allclose(gradient, expected, atol=1e-7)


@pytest.mark.parametrize("name", PAIRS + OTHERS)
@pytest.mark.parametrize("entropy", ENTROPIES)
def test_gradient_of_the_profiled_objective(name: str, entropy: str) -> None:
    dual = dual_of(name, entropy)
    objective = ProfiledObjective(dual, exactly(1e-14), max_sweeps=20_000)
    weights = random_weights(dual)
    value, gradient = objective.value_and_gradient(weights)
    gradient = gradient.copy()
    assert objective.last is not None
    assert objective.last.violation < 1e-10
    expected = differences(lambda at: objective.value_and_gradient(at)[0], weights, step=1e-4)
    np.testing.assert_allclose(gradient, expected, atol=1e-5)
    assert np.abs(expected).max() > 0.1
    assert objective.value_and_gradient(weights)[0] == pytest.approx(value, abs=1e-10)


@pytest.mark.parametrize("name", PAIRS + OTHERS)
def test_gradient_without_consistency(name: str) -> None:
    dual = dual_of(name, "clusters", consistency=False)
    weights = random_weights(dual)
    gradient = dual.evaluate(weights).gradient
    np.testing.assert_allclose(gradient, differences(lambda w: dual.evaluate(w).value, weights), atol=1e-7)


@pytest.mark.parametrize("name", PAIRS + OTHERS)
@pytest.mark.parametrize("entropy", ENTROPIES)
def test_profile_is_the_minimum_over_the_multipliers(name: str, entropy: str) -> None:
    dual = dual_of(name, entropy)
    weights = random_weights(dual)
    joint = JointObjective(dual)
    start = joint.initial(weights)
    at_random, slope = joint.value_and_gradient(start)
    assert np.abs(slope[weights.size :]).max() > 1e-2  # before the next call overwrites it
    profiled, _ = ProfiledObjective(dual, exactly(1e-14), max_sweeps=20_000).value_and_gradient(weights)
    assert profiled < at_random - 1e-3
    value, gradient = joint.value_and_gradient(joint.initial(weights))
    assert value == pytest.approx(profiled, abs=1e-9)
    np.testing.assert_allclose(gradient[weights.size :], 0.0, atol=1e-8)


def dense_dual(dual: Dual, weights: Array) -> float:
    """D written out table by table, for hubs that all have a positive number."""
    data, layout = dual.data, dual.data.layout
    entries, hub_scores = np.empty(layout.n_entries), np.empty(layout.n_hub_states)
    data.scores.scores(weights, entries, hub_scores, ONE.workers)
    hub_scores -= dual.part.linearisation
    total = (
        -float(weights @ dual.empirical) - data.observed_base + 0.5 * dual.prior.precision * float(weights @ weights)
    )
    for m in range(layout.n_instances):
        value = 0.0
        for c in range(layout.instance_clusters[m], layout.instance_clusters[m + 1]):
            table = layout.cluster_table[c]
            scores = entries[layout.table_offset[table] : layout.table_offset[table + 1]].copy()
            for link in layout.cluster_link[layout.cluster_links[c] : layout.cluster_links[c + 1]]:
                start = layout.link_projection[link]
                states = layout.projection[start : start + scores.size]
                scores += dual.part.multipliers[layout.link_offset[link] : layout.link_offset[link + 1]][states]
            kappa = dual.part.carving.cluster[c]
            value += kappa * scipy_logsumexp(scores / kappa)
        for h in range(layout.instance_hubs[m], layout.instance_hubs[m + 1]):
            scores = hub_scores[layout.hub_offset[h] : layout.hub_offset[h + 1]].copy()
            for link in range(layout.hub_links[h], layout.hub_links[h + 1]):
                scores -= dual.part.multipliers[layout.link_offset[link] : layout.link_offset[link + 1]]
            kappa = dual.part.carving.hub[h]
            value += kappa * scipy_logsumexp(scores / kappa)
        total += data.weights[m] * value
    return total


@pytest.mark.parametrize("name", ["pairs with singletons", "ternary"])
@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_value_of_the_dual(name: str, scale: float) -> None:
    """At arbitrary multipliers, in both paths and with numbers of all sizes."""
    packed = packed_of(name)
    rng = np.random.default_rng(8)
    numbers = rng.uniform(0.3, 2.0, size=packed.layout.n_clusters), rng.uniform(0.3, 2.0, size=packed.layout.n_hubs)
    dual = Dual(packed, Carving(*numbers, np.zeros(packed.layout.n_hubs)), Prior(3.0), ONE)
    dual.part.linearisation[:] = rng.normal(size=dual.part.linearisation.size)
    for _ in range(3):
        dual.part.multipliers[:] = scale * rng.normal(size=dual.part.multipliers.size)
        weights = rng.normal(size=packed.n_weights)
        value = dual.evaluate(weights).value
        assert value == pytest.approx(dense_dual(dual, weights), rel=1e-12)


def test_counting_numbers_are_spread_over_clusters_and_edges() -> None:
    graph = bt.ClusterGraph([2, 2, 2], [(0, 1), (1, 2), (1,)])
    model = bt.LogLinearModel(graph, [np.eye(4)[:, :2], np.eye(4)[:, 2:], np.zeros((2, 2))])
    packed = pack(bt.Samples(model, [[0, 1, 0]]))
    # Clusters in order, then the hubs appended for variables 0 and 2; edges (0, hub 0), (0, 2), (1, 2), (1, hub 2).
    carving = carve(packed, CountingNumbers(clusters=[2.0, 3.0, 0.5, 1.0, 0.25], sepsets=[0.4, 0.5, 0.6, 0.75]))
    np.testing.assert_allclose(carving.cluster, [2.0, 3.0])
    np.testing.assert_allclose(carving.hub - carving.linearised, [1.0 - 0.4, 0.5 - 1.1, 0.25 - 0.75])
    np.testing.assert_allclose(carving.hub, [0.6, 0.5, 0.0])
    assert carving.relinearises
    bethe = carve(packed, "bethe")
    same = carve(packed, CountingNumbers(clusters=1.0, sepsets=1.0))
    np.testing.assert_allclose(same.hub - same.linearised, bethe.hub - bethe.linearised)


# --- star updates ---


@pytest.mark.parametrize("name", PAIRS + OTHERS)
@pytest.mark.parametrize("entropy", ENTROPIES)
@pytest.mark.parametrize("damping", [0.0, LOG_SPACE])
def test_sweeps_never_raise_the_dual(name: str, entropy: str, damping: float) -> None:
    dual = dual_of(name, entropy)
    assert (dual.part.carving.hub >= 0).all()
    dual.part.multipliers *= 4
    weights = 2 * random_weights(dual)
    values = [dual.evaluate(weights, max_sweeps=1, damping=damping).value for _ in range(40)]
    assert np.diff(values).max() <= 1e-11 * abs(values[0])
    assert values[0] - values[-1] > 1e-3
    settled = dual.evaluate(weights, max_sweeps=20_000, tolerance=1e-14, damping=damping)
    assert settled.violation < 1e-10
    assert values[-1] >= settled.value - 1e-9


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("entropy", ENTROPIES)
@pytest.mark.parametrize("sweeps", [0, 1, 2, 7, 200])
def test_linear_space_equals_log_space(name: str, entropy: str, sweeps: int) -> None:
    fast, slow = dual_of(name, entropy), dual_of(name, entropy)
    weights = 2 * random_weights(fast)
    ours = fast.evaluate(weights, max_sweeps=sweeps)
    theirs = slow.evaluate(weights, max_sweeps=sweeps, damping=LOG_SPACE)
    if entropy != "odd" or name not in ("shared pairs", "absorbed"):  # the fast path wants one number a table
        assert fast.part.beliefs.done.all()
    assert not slow.part.beliefs.done.any()
    assert ours.value == pytest.approx(theirs.value, abs=1e-10)
    np.testing.assert_allclose(ours.gradient, theirs.gradient, atol=1e-10)
    assert ours.violation == pytest.approx(theirs.violation, abs=1e-10)
    for field in ("hub_log", "link_marginal", "hub_count", "counts", "value"):
        np.testing.assert_allclose(getattr(fast.part.beliefs, field), getattr(slow.part.beliefs, field), atol=1e-10)
    np.testing.assert_allclose(fast.part.multipliers, slow.part.multipliers, atol=1e-10)


@pytest.mark.parametrize("name", OTHERS)
def test_other_clusters_take_the_path_in_log_space(name: str) -> None:
    dual = dual_of(name)
    dual.evaluate(random_weights(dual), max_sweeps=3)
    assert not dual.part.beliefs.done.all()
    assert name != "mixed" or dual.part.beliefs.done.tolist() == [True, False, True]


def ising(scale: float, clusters: list[Any], n: int, seed: int = 9) -> tuple[DenseModel, Any]:
    """A binary or ternary model with fixed scores of about ``scale`` on pairs and singletons, and data for it."""
    rng = np.random.default_rng(seed)
    cardinalities = [2 + v % 2 for v in range(n)]
    scopes = [*clusters, *[(v,) for v in range(n)]]
    sizes = [int(np.prod([cardinalities[v] for v in scope])) for scope in scopes]
    features = [rng.normal(size=(size, 2)) for size in sizes]
    base = [scale * rng.uniform(-1.0, 1.0, size=size) for size in sizes]
    dense = DenseModel(cardinalities, scopes, features, base)
    model = bt.LogLinearModel(bt.ClusterGraph(cardinalities, scopes), features, base)
    return dense, pack([bt.Instance(model, [0] * n)])


SCALES = (1.0, 50.0, 100.0, 140.0, 160.0, 200.0, 300.0, 700.0, 5000.0)


@pytest.mark.parametrize("scale", SCALES)
def test_wide_tables_on_a_tree_agree_with_enumeration(scale: float) -> None:
    dense, packed = ising(scale, tree_clusters(np.random.default_rng(1), 5), 5)
    weights = np.array([0.3, -0.8])
    for damping in (0.0, LOG_SPACE):
        dual = Dual(packed, carve(packed, "bethe").whole, Prior(None), ONE)
        value = dual.evaluate(weights, max_sweeps=2, damping=damping).value
        observed = weights @ dual.empirical + packed.observed_base
        assert value + observed == pytest.approx(log_partition(dense, weights), rel=1e-12, abs=1e-10)
        marginals = np.concatenate(variable_marginals(dense, weights))
        np.testing.assert_allclose(dual.part.hub_beliefs(), marginals, atol=1e-11 * scale)
        assert np.isfinite(dual.part.beliefs.link_marginal).all()
        np.testing.assert_allclose(dual.evaluate(weights).gradient, differences_of(dense, dual, weights), atol=2e-6)
    if not 150.0 < scale < 700.0:
        assert dual.part.tables.narrow.all() == (scale < 700.0)


def differences_of(dense: DenseModel, dual: Dual, weights: Array) -> Array:
    """Gradient of log Z minus the observed features, by differences of enumerated values."""
    return differences(lambda w: log_partition(dense, w), weights) - dual.empirical


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("kept", [0.0, 1.0])
def test_wide_tables_on_a_loop_reach_the_optimum(scale: float, kept: float) -> None:
    """With numbers that make D convex, agreement at the multipliers found proves them optimal."""
    _, packed = ising(scale, loop_clusters(4), 4)
    weights = np.array([0.3, -0.8])
    values = []
    for damping in (0.0, LOG_SPACE):
        carving = Carving(np.ones(4), np.full(4, kept), np.zeros(4))
        dual = Dual(packed, carving, Prior(None), ONE)
        result = dual.evaluate(weights, max_sweeps=50_000, tolerance=1e-13, damping=damping)
        assert np.isfinite(result.value)
        assert np.isfinite(result.gradient).all()
        assert result.violation < 1e-6
        if kept > 0.0:
            assert result.value == pytest.approx(dense_dual(dual, weights), rel=1e-10)
        values.append(result.value)
    assert values[0] == pytest.approx(values[1], rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("swept", [True, False])
def test_counts_of_shared_tables_survive_a_fresh_start_in_log_space(swept: bool) -> None:
    """Some instances of each block have to leave the fast path, for a table that is too wide."""
    rng = np.random.default_rng(10)
    edges = np.concatenate([4 * m + np.array(loop_clusters(4)) for m in range(80)])
    types = np.repeat(rng.random(80) < 0.4, 4).astype(int)
    packed = pack(
        bt.GraphData(
            rng.normal(size=(320, 1)), edges, n_labels=3, labels=rng.integers(0, 3, size=320), edge_types=types,
            tables=["full", "full"], node_counts=[4] * 80, weights=rng.uniform(0.5, 2.0, size=80),
        )
    )  # fmt: skip
    assert packed.layout.table_shared == 2
    assert packed.blocks.size - 1 < 80
    weights = rng.normal(size=packed.n_weights)
    weights[12:] *= 800.0
    multipliers = (1.0 if swept else 60.0) * rng.normal(size=packed.layout.n_link_states)
    results = []
    for damping in (0.0, LOG_SPACE):
        dual = Dual(packed, carve(packed, "bethe"), Prior(3.0), ONE)
        dual.part.multipliers[:] = multipliers
        sweeps = 3000 if swept else 0
        result = dual.evaluate(weights, damping=damping, max_sweeps=sweeps, tolerance=1e-13)
        results.append((result, dual.part.beliefs, dual))
    (ours, fast, dual), (theirs, slow, _) = results
    assert 10 < fast.done.sum() < 70
    np.testing.assert_allclose(fast.counts, slow.counts, atol=1e-9)
    np.testing.assert_allclose(fast.value, slow.value, rtol=1e-12)
    np.testing.assert_allclose(ours.gradient, theirs.gradient, atol=1e-8)
    if not swept:
        assert ours.value == pytest.approx(dense_dual(dual, weights), rel=1e-12)


def test_a_change_of_gradient_whose_square_underflows_is_not_remembered() -> None:
    memory = Memory(3, 2)
    memory.add(np.array([1e4, 0.0]), np.array([1e-170, 0.0]))
    np.testing.assert_array_equal(memory.direction(np.array([0.5, 0.0])), [-0.5, 0.0])


@pytest.mark.parametrize("damping", [0.0, LOG_SPACE])
def test_multipliers_of_extreme_weights_do_no_harm(damping: float) -> None:
    """Messages that underflowed at one point must not forbid states at the next."""
    _, packed = ising(1.0, loop_clusters(4), 4)
    carving = carve(packed, "bethe")
    calm = np.array([0.3, -0.8])
    cold, warm = (Dual(packed, carving, Prior(None), ONE) for _ in range(2))
    options = {"max_sweeps": 5000, "tolerance": 1e-13, "damping": damping}
    expected = cold.evaluate(calm, **options)
    for extreme in (np.array([2000.0, 500.0]), np.array([-900.0, 3000.0])):
        assert np.isfinite(warm.evaluate(extreme, **options).value)
        result = warm.evaluate(calm, **options)
        assert result.value == pytest.approx(expected.value, abs=1e-9)
        np.testing.assert_allclose(result.gradient, expected.gradient, atol=1e-8)
        np.testing.assert_allclose(warm.part.hub_beliefs(), cold.part.hub_beliefs(), atol=1e-9)


def test_damping_reaches_the_same_point() -> None:
    plain, damped = dual_of("ternary"), dual_of("ternary")
    weights = random_weights(plain)
    expected = plain.evaluate(weights, max_sweeps=5000, tolerance=1e-14)
    result = damped.evaluate(weights, max_sweeps=5000, tolerance=1e-14, damping=0.5)
    assert result.value == pytest.approx(expected.value, abs=1e-9)
    np.testing.assert_allclose(damped.part.hub_beliefs(), plain.part.hub_beliefs(), atol=1e-9)
    first = dual_of("ternary").evaluate(weights, max_sweeps=1).value
    half = dual_of("ternary").evaluate(weights, max_sweeps=1, damping=0.5).value
    assert abs(first - half) > 1e-3


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_linearisation_is_minus_its_number_times_log_beliefs(share: float) -> None:
    """Wherever its shares sit, D and the beliefs at the optimal multipliers are those of hubs that take it all."""
    dual, other = dual_of("ternary"), dual_of("ternary")
    weights = random_weights(dual)
    for each in (dual, other):
        each.part.linearisation[:] = 0.0
        each.evaluate(weights, max_sweeps=5000, tolerance=1e-14)
    number = dual.part.carving.linearised[dual.data.hub_of_state]
    expected = -number * np.log(dual.part.hub_beliefs())
    change = Linearisation(dual, share).update()
    assert change > 0.1
    np.testing.assert_allclose(dual.part.linearisation, expected, atol=1e-9)
    other.part.linearisation[:] = expected
    ours = dual.evaluate(weights, max_sweeps=5000, tolerance=1e-14)
    theirs = other.evaluate(weights, max_sweeps=5000, tolerance=1e-14)
    assert ours.value == pytest.approx(theirs.value, abs=1e-9)
    np.testing.assert_allclose(dual.part.hub_beliefs(), other.part.hub_beliefs(), atol=1e-9)


# --- order of sweeps ---


def random_forest(rng: np.random.Generator, n: int, ternary: bool) -> list[Any]:
    """Clusters of a forest: pairs and perhaps triples that meet in one variable at most."""
    clusters: list[Any] = []
    order = rng.permutation(n).tolist()
    joined = [order.pop()]
    while order:
        if rng.random() < 0.15:
            joined = [order.pop()]  # begin a new component
            continue
        fresh = [order.pop() for _ in range(min(len(order), 2 if ternary and rng.random() < 0.5 else 1))]
        clusters.append(tuple(rng.permutation([joined[rng.integers(len(joined))], *fresh]).tolist()))
        joined += fresh
    singles = [(int(v),) for v in rng.choice(n, size=n // 2, replace=False)]
    return [clusters[i] for i in rng.permutation(len(clusters))] + singles


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("ternary", [False, True])
def test_two_sweeps_are_exact_on_forests(seed: int, ternary: bool) -> None:
    """From any multipliers, for several instances at once."""
    rng = np.random.default_rng(seed)
    dense, instances = [], []
    for _ in range(3):
        n = int(rng.integers(5, 9))
        clusters = random_forest(rng, n, ternary)
        cardinalities = rng.integers(2, 4, size=n).tolist()
        features = random_features(rng, cardinalities, clusters, 3)
        dense.append(DenseModel(cardinalities, clusters, features))
        model = bt.LogLinearModel(bt.ClusterGraph(cardinalities, clusters), features)
        instances.append(bt.Instance(model, [0] * n))
    packed = pack(instances)
    layout = packed.layout
    assert layout.instance_is_tree.all()
    for m in range(3):
        first, last = layout.instance_hubs[m], layout.instance_hubs[m + 1]
        assert sorted(layout.hub_order[first:last].tolist()) == list(range(first, last))
    weights = rng.normal(size=3)
    marginals = np.concatenate([np.concatenate(variable_marginals(model, weights)) for model in dense])
    for damping in (0.0, LOG_SPACE):
        dual = Dual(packed, carve(packed, "bethe").whole, Prior(None), ONE)
        dual.part.multipliers[:] = rng.normal(size=dual.part.multipliers.size)
        dual.evaluate(weights, max_sweeps=1000, tree_sweeps=2, damping=damping)
        np.testing.assert_array_equal(dual.part.beliefs.sweeps, 2)
        np.testing.assert_allclose(dual.part.hub_beliefs(), marginals, atol=1e-12)
        np.testing.assert_allclose(
            dual.part.beliefs.value, [log_partition(model, weights) for model in dense], atol=1e-11
        )
        dual.part.multipliers[:] = rng.normal(size=dual.part.multipliers.size)
        dual.evaluate(weights, max_sweeps=1, damping=damping)
        assert np.abs(dual.part.hub_beliefs() - marginals).max() > 1e-4  # and one sweep is not enough


def test_loops_keep_the_order_given() -> None:
    graphs = [bt.ClusterGraph([2] * 4, clusters) for clusters in (loop_clusters(4), [(3, 0), (0, 1), (1, 2)])]
    models = [bt.LogLinearModel(g, [np.ones((4, 1))] * len(g.clusters)) for g in graphs]
    layout = pack([bt.Instance(model, [0] * 4) for model in models]).layout
    assert layout.instance_is_tree.tolist() == [False, True]
    assert layout.hub_order.tolist() == [0, 1, 2, 3, 4, 7, 5, 6]


def test_forests_among_loops_are_found_and_ordered_from_their_roots() -> None:
    rng = np.random.default_rng(4)
    models, trees = [], []
    for n in rng.integers(1, 12, 60).tolist():
        graph = nx.gnm_random_graph(n, int(rng.integers(0, n + 1)), seed=int(rng.integers(1 << 30)))
        trees.append(nx.is_forest(graph))
        edges = np.array([rng.permutation(edge) for edge in graph.edges], dtype=np.int64).reshape(-1, 2)
        models.append((n, edges))
    first = np.concatenate([[0], np.cumsum([n for n, _ in models])])
    edges = np.concatenate([start + pairs for start, (_, pairs) in zip(first, models, strict=False)])
    data = bt.GraphData(np.ones((first[-1], 1)), edges, n_labels=2, node_counts=np.diff(first))
    layout = pack(data, need_labels=False).layout
    assert layout.instance_is_tree.tolist() == trees
    assert 10 < sum(trees) < 50
    for graph, (start, stop) in enumerate(pairwise(first.tolist())):
        order = layout.hub_order[start:stop].tolist()
        assert sorted(order) == list(range(start, stop))
        if trees[graph]:  # every node but a root has one neighbour before it
            earlier = [
                sum(1 for e in edges.tolist() if v in e and sum(e) - v in order[:k]) for k, v in enumerate(order)
            ]
            assert max(earlier) <= 1


def test_stable_order_is_that_of_numpy() -> None:
    rng = np.random.default_rng(0)
    for n_keys, n in ((1, 0), (1, 5), (7, 100), (1000, 50), (300, 40_000)):
        keys = rng.integers(0, n_keys, n)
        assert np.array_equal(stable_order(keys, n_keys), np.argsort(keys, kind="stable"))


@pytest.mark.parametrize(
    ("clusters", "is_tree"),
    [
        ([(0, 1), (0, 1)], False),
        ([(0, 1), (0,), (0,)], True),
        ([(0, 1, 2), (2, 3)], True),
        ([(0, 1, 2), (2, 3, 1)], False),
        ([(3,)], True),
    ],
)
def test_which_graphs_are_forests(clusters: list[Any], is_tree: bool) -> None:
    graph = bt.ClusterGraph([2] * 4, clusters)
    model = bt.LogLinearModel(graph, [np.ones((graph.size(scope), 1)) for scope in clusters])
    assert pack([bt.Instance(model, [0] * 4)]).layout.instance_is_tree.tolist() == [is_tree]


# --- L-BFGS ---


def quadratic(n: int = 30, condition: float = 300.0) -> tuple[Callable[[Array], tuple[float, Array]], Array]:
    rng = np.random.default_rng(11)
    basis, _ = np.linalg.qr(rng.normal(size=(n, n)))
    hessian = (basis * np.geomspace(1.0, condition, n)) @ basis.T
    centre = rng.normal(size=n)
    return lambda x: (0.5 * (x - centre) @ hessian @ (x - centre), hessian @ (x - centre)), centre


def test_minimum_of_a_quadratic() -> None:
    function, centre = quadratic()
    minimum = minimise(function, np.zeros(30), tolerance=1e-8, max_iterations=2000)
    assert minimum.status is Status.CONVERGED
    np.testing.assert_allclose(minimum.x, centre, atol=1e-7)
    np.testing.assert_allclose(minimum.gradient, function(minimum.x)[1])
    assert minimum.value == function(minimum.x)[0]


@pytest.mark.parametrize("n", [2, 10])
def test_minimum_of_rosenbrocks_function(n: int) -> None:
    minimum = minimise(lambda x: (rosen(x), rosen_der(x)), np.full(n, -0.8), tolerance=1e-8, max_iterations=1000)
    assert minimum.status is Status.CONVERGED
    np.testing.assert_allclose(minimum.x, 1.0, atol=1e-7)


def test_minimum_next_to_a_wall() -> None:
    """Trial points outside the domain have an infinite value; the search comes back from them."""

    def function(x: Array) -> tuple[float, Array]:
        if (x <= 0).any():
            return np.inf, np.full(x.size, np.nan)
        return float((50 * x - np.log(x)).sum()), 50 - 1 / x

    minimum = minimise(function, np.array([1.0, 5.0]), tolerance=1e-8, max_iterations=100)
    assert minimum.status is Status.CONVERGED
    np.testing.assert_allclose(minimum.x, 0.02, rtol=1e-8)


def logistic_loss() -> tuple[Callable[[Array], tuple[float, Array]], Array, Array]:
    rng = np.random.default_rng(12)
    X = rng.normal(size=(120, 8)) * np.geomspace(0.3, 3.0, 8)
    y = (X @ rng.normal(size=8) + rng.normal(size=120) > 0).astype(int)

    def loss(w: Array) -> tuple[float, Array]:
        margins = (2 * y - 1) * (X @ w)
        slope = -(2 * y - 1) / (1 + np.exp(margins))
        return float(np.logaddexp(0, -margins).sum()), X.T @ slope

    assert approx_fprime(np.ones(8), lambda w: loss(w)[0]) == pytest.approx(loss(np.ones(8))[1], rel=1e-4, abs=1e-4)
    return loss, X, y


def test_logistic_regression_as_scipy_has_it() -> None:
    loss, _, _ = logistic_loss()

    def penalised(w: Array) -> tuple[float, Array]:
        value, gradient = loss(w)
        return value + 0.05 * float(w @ w), gradient + 0.1 * w

    expected = minimize(penalised, np.zeros(8), jac=True, method="BFGS", options={"gtol": 1e-9})
    minimum = minimise(penalised, np.zeros(8), tolerance=1e-8, max_iterations=500)
    assert minimum.status is Status.CONVERGED
    np.testing.assert_allclose(minimum.x, expected.x, atol=1e-7)


@pytest.mark.parametrize("cost", [0.5, 3.0, 15.0])
def test_l1_logistic_regression_as_scikit_learn_has_it(cost: float) -> None:
    loss, X, y = logistic_loss()
    other = LogisticRegression(
        l1_ratio=1.0, C=1 / cost, solver="liblinear", fit_intercept=False, tol=1e-10, max_iter=20_000
    )
    expected = other.fit(X, y).coef_[0]
    minimum = minimise(loss, np.zeros(8), tolerance=1e-8, max_iterations=2000, l1=cost)
    assert minimum.status is Status.CONVERGED
    np.testing.assert_allclose(minimum.x, expected, atol=1e-5)
    np.testing.assert_array_equal(minimum.x == 0.0, expected == 0.0)
    assert cost < 3.0 or (minimum.x == 0.0).any()
    assert minimum.value == pytest.approx(loss(minimum.x)[0] + cost * np.abs(minimum.x).sum())


def test_l1_on_some_components_as_scipy_has_it() -> None:
    loss, _, _ = logistic_loss()
    cost = np.array([0.0, 5.0] * 4)

    def split(z: Array) -> tuple[float, Array]:
        value, gradient = loss(z[:8] - z[8:])
        return value + float(cost @ (z[:8] + z[8:])), np.concatenate([gradient + cost, cost - gradient])

    expected = minimize(split, np.zeros(16), jac=True, method="L-BFGS-B", bounds=[(0, None)] * 16,
                        options={"ftol": 1e-15, "gtol": 1e-9, "maxiter": 10_000}).x  # fmt: skip
    minimum = minimise(loss, np.zeros(8), tolerance=1e-8, max_iterations=2000, l1=cost)
    assert minimum.status is Status.CONVERGED
    np.testing.assert_allclose(minimum.x, expected[:8] - expected[8:], atol=1e-5)


def test_l1_elastic_net_optimality() -> None:
    function, _ = quadratic(condition=100.0)
    minimum = minimise(function, np.ones(30), tolerance=1e-9, max_iterations=5000, l1=2.0)
    gradient = function(minimum.x)[1]
    zero = minimum.x == 0.0
    assert 0 < zero.sum() < 30
    assert (np.abs(gradient[zero]) <= 2.0 + 1e-9).all()
    np.testing.assert_allclose(gradient[~zero], -2.0 * np.sign(minimum.x[~zero]), atol=1e-8)


def two_loop_direction(pairs: list[tuple[Array, Array]], gradient: Array) -> Array:
    """The recursion of the textbooks (Nocedal and Wright, Algorithm 7.4)."""
    q = gradient.copy()
    coefficients = []
    for s, y in reversed(pairs):
        alpha = (s @ q) / (y @ s)
        coefficients.append(alpha)
        q -= alpha * y
    s, y = pairs[-1]
    r = (s @ y) / (y @ y) * q
    for (s, y), alpha in zip(pairs, reversed(coefficients), strict=True):
        r += (alpha - (y @ r) / (y @ s)) * s
    return -r


@pytest.mark.parametrize("n_pairs", [1, 3, 5, 6, 13])
def test_direction_is_that_of_the_two_loop_recursion(n_pairs: int) -> None:
    """Also after old pairs have been overwritten."""
    rng = np.random.default_rng(n_pairs)
    memory = Memory(5, 12)
    hessian = np.diag(rng.uniform(0.5, 3.0, size=12))
    pairs = []
    for _ in range(n_pairs):
        s = rng.normal(size=12)
        pairs.append((s, hessian @ s + 0.05 * rng.normal(size=12)))
        memory.add(*pairs[-1])
    gradient = rng.normal(size=12)
    np.testing.assert_allclose(memory.direction(gradient), two_loop_direction(pairs[-5:], gradient), rtol=1e-9)


def test_memory_refuses_pairs_without_curvature() -> None:
    rng = np.random.default_rng(0)
    memory = Memory(3, 6)
    good = rng.normal(size=6)
    memory.add(good, 2 * good)
    gradient = rng.normal(size=6)
    before = memory.direction(gradient)
    memory.add(good, -good)
    memory.add(good, np.zeros(6))
    memory.add(np.zeros(6), np.zeros(6))
    np.testing.assert_array_equal(memory.direction(gradient), before)
    memory.clear()
    np.testing.assert_allclose(memory.direction(gradient), -gradient / max(1.0, np.linalg.norm(gradient)))


def test_inner_products_may_be_made_of_parts() -> None:
    """As on several machines, each with a slice of every vector."""
    calls = []

    def in_two_parts(left: Array, right: Array) -> Array:
        calls.append(left.shape)
        return left[:, :13] @ right[:, :13].T + left[:, 13:] @ right[:, 13:].T

    function, centre = quadratic()
    minimum = minimise(function, np.zeros(30), tolerance=1e-8, max_iterations=2000, memory=Memory(10, 30, in_two_parts))
    assert minimum.status is Status.CONVERGED
    np.testing.assert_allclose(minimum.x, centre, atol=1e-7)
    assert calls


def test_outcomes_of_the_minimiser() -> None:
    function, _ = quadratic()
    steps = []
    limit = minimise(
        function, np.zeros(30), tolerance=1e-8, max_iterations=3, callback=lambda s: steps.append(s) or False
    )
    assert limit.status is Status.ITERATION_LIMIT
    assert limit.iterations == 3
    assert [step.iteration for step in steps] == [1, 2, 3]
    assert (np.diff([step.value for step in steps]) < 0).all()
    stopped = minimise(function, np.zeros(30), tolerance=1e-8, max_iterations=99, callback=lambda s: s.iteration == 2)
    assert stopped.status is Status.STOPPED
    assert stopped.iterations == 2
    at_once = minimise(function, limit.x, tolerance=1e9, max_iterations=3)
    assert at_once.status is Status.CONVERGED
    assert at_once.iterations == 0
    np.testing.assert_array_equal(at_once.x, limit.x)


def test_a_wrong_gradient_ends_as_stalled() -> None:
    function, _ = quadratic()
    wrong = minimise(lambda x: (function(x)[0], -function(x)[1]), np.ones(30), tolerance=1e-8, max_iterations=500)
    assert wrong.status is Status.STALLED
    np.testing.assert_allclose(wrong.x, 1.0, atol=1e-9)


def test_small_steps_add_up_before_the_solver_gives_up() -> None:
    """On a narrow valley far above 0 each step gains less than rounding may hide, but fifty of them gain more."""
    function, _ = quadratic(condition=1e6)
    high = minimise(lambda x: (function(x)[0] + 1e6, function(x)[1]), np.zeros(30), tolerance=1e-4, max_iterations=9999)
    assert high.status is Status.STALLED
    assert function(high.x)[0] < 5e-5  # 5e-11 of the objective


def test_a_fresh_memory_gets_off_the_spot() -> None:
    function, _ = quadratic(condition=1e5)
    high = minimise(lambda x: (function(x)[0] + 1e6, function(x)[1]), np.zeros(30), tolerance=1e-3, max_iterations=9999)
    assert high.status is Status.CONVERGED
    assert np.abs(function(high.x)[1]).max() <= 1e-3


def test_convergence_at_the_last_iteration_counts() -> None:
    """Even where the callback says stop at the same moment."""
    function, _ = quadratic(condition=10.0)
    free = minimise(function, np.zeros(30), tolerance=1e-6, max_iterations=500)
    n = free.iterations
    bound = minimise(function, np.zeros(30), tolerance=1e-6, max_iterations=n, callback=lambda s: s.iteration == n)
    assert bound.status is Status.CONVERGED


def test_the_start_is_not_written_to() -> None:
    function, _ = quadratic()
    start = np.zeros(30)
    minimise(function, start, tolerance=1e-6, max_iterations=50)
    np.testing.assert_array_equal(start, 0.0)
