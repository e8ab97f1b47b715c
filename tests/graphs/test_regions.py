"""Region graphs: intersections, Kikuchi's numbers, and learning and inference with hubs of several variables."""

import itertools

import numpy as np
import pytest

import bactrian as bt
from bactrian.graphs.regions import RegionGraph

TRIPLES = ((0, 1, 2), (1, 2, 3), (2, 3, 4), (0, 3, 4), (0, 1, 4))


def all_intersections(clusters):
    """By brute force over all subsets of the clusters."""
    found = set()
    for size in range(2, len(clusters) + 1):
        for chosen in itertools.combinations(clusters, size):
            common = frozenset.intersection(*map(frozenset, chosen))
            if common:
                found.add(common)
    return found


@pytest.mark.parametrize("seed", range(20))
def test_regions_are_closed_and_every_intersection_counts_once(seed):
    rng = np.random.default_rng(seed)
    n = 7
    clusters = [tuple(rng.permutation(n)[: rng.integers(1, 5)].tolist()) for _ in range(rng.integers(1, 8))]
    graph = bt.region_graph([2] * n, clusters)
    hubs = graph.all_clusters[len(clusters) :]
    wanted = all_intersections(clusters)
    assert {frozenset(h) for h in hubs} <= wanted
    for left_out in wanted - {frozenset(h) for h in hubs}:  # it would count 0, and larger hubs tie its clusters
        around = [i for i, c in enumerate(clusters) if left_out <= set(c)]
        larger = [(h, hub) for h, hub in enumerate(hubs) if left_out < set(hub)]
        assert len(around) + sum(graph.counting_numbers[h] for h, _ in larger) == pytest.approx(1.0)
        reached = {around[0]}
        for _ in clusters:
            for _, hub in larger:
                tied = {i for i in around if set(hub) <= set(clusters[i])}
                reached |= tied if tied & reached else set()
        assert reached == set(around)
    for h, hub in enumerate(hubs):
        above = sum(set(hub) <= set(c) for c in clusters)
        above += sum(graph.counting_numbers[s] for s, other in enumerate(hubs) if set(hub) <= set(other))
        assert above == pytest.approx(1.0)
        linked = {i for i, j, _ in graph.edges if j == len(clusters) + h}
        assert linked == {i for i, c in enumerate(clusters) if set(hub) <= set(c)}


def random_model(graph, seed, strength=1.0):
    rng = np.random.default_rng(seed)
    scores = [strength * rng.standard_normal(graph.size(scope)) for scope in graph.clusters]
    features = [None] * (len(scores) - 1) + [np.zeros((scores[-1].size, 1))]
    return bt.LogLinearModel(graph, features, scores)


def joint(model):
    sizes = tuple(model.graph.cardinalities)
    scores = np.zeros(sizes)
    for scope, table in zip(model.graph.clusters, model.base_scores, strict=True):
        axes = sorted(scope)
        moved = np.moveaxis(table.reshape(model.graph.shape(scope)), range(len(scope)), [axes.index(v) for v in scope])
        scores += moved.reshape([sizes[v] if v in scope else 1 for v in range(len(sizes))])
    p = np.exp(scores - scores.max())
    return p / p.sum(), float(np.log(np.exp(scores - scores.max()).sum()) + scores.max())


def marginal(p, scope):
    axes = sorted(scope)
    summed = p.sum(axis=tuple(v for v in range(p.ndim) if v not in scope))
    return summed.transpose([axes.index(v) for v in scope])


CHAIN = ((0, 1, 2), (2, 1, 3), (3, 2, 4), (4, 5))


def test_raised_numbers_subtract_at_most_half_of_the_clusters_and_leave_trees_alone():
    triples = list(itertools.combinations(range(8), 3))
    graph = RegionGraph([2] * 8, triples, raised=True)
    numbers = dict(zip(graph.all_clusters[56:], graph.counting_numbers, strict=True))
    # A pair is in 6 triples, and Kikuchi's number -5; a variable then is in 21 of them and in 7 pairs.
    assert {numbers[pair] for pair in itertools.combinations(range(8), 2)} == {-3.0}
    assert {numbers[(v,)] for v in range(8)} == {1.0 - 21.0 + 7 * 3.0}
    star = [(0, v) for v in range(1, 8)]  # one hub of seven clusters
    assert RegionGraph([2] * 8, star, raised=True).counting_numbers.tolist() == [-6.0]
    closed = RegionGraph([2] * 8, [*star, (1, 2)], raised=True)
    np.testing.assert_allclose(closed.counting_numbers, [-3.5, -1.0, -1.0])


@pytest.mark.parametrize("method", ["rbp", "bp", "double-loop", "convex", "exact"])
@pytest.mark.parametrize("evidence", [None, {1: 1, 4: 0}])
def test_inference_is_exact_where_clusters_form_a_junction_tree(method, evidence):
    graph = bt.region_graph([2, 3, 2, 2, 3, 2], CHAIN)
    model = random_model(graph, 3)
    p, log_z = joint(model)
    if evidence:
        index = tuple(evidence.get(v, slice(None)) for v in range(6))
        kept = np.zeros_like(p)
        kept[index] = p[index]
        log_z += float(np.log(kept.sum()))
        p = kept / kept.sum()
    result = bt.infer(model, [0.0], method, evidence, tolerance=1e-12, max_iterations=5000)
    assert result.converged
    assert result.log_partition == pytest.approx(log_z, abs=1e-7)
    for scope, table in zip(graph.all_clusters, result.clusters, strict=True):
        np.testing.assert_allclose(table, marginal(p, scope), atol=1e-7)
    for v, table in enumerate(result.variables):
        np.testing.assert_allclose(table, marginal(p, (v,)), atol=1e-7)


def kikuchi_free_energy(model, graph, tables):
    """-<theta, b> - sum of numbers times entropies, at given tables of all clusters."""
    energy = 0.0
    numbers = np.concatenate([np.ones(len(graph.clusters)), graph.counting_numbers])
    for i, (table, number) in enumerate(zip(tables, numbers, strict=True)):
        b = table.ravel()
        energy += number * (b @ np.log(b))
        if i < len(graph.clusters):
            energy -= b @ model.base_scores[i]
    return energy


@pytest.mark.parametrize("seed", range(3))
def test_the_double_loop_minimises_kikuchis_free_energy_where_there_are_loops(seed):
    graph = bt.region_graph([2, 3, 2, 2, 2], TRIPLES)
    model = random_model(graph, seed)
    p, log_z = joint(model)
    result = bt.infer(model, [0.0], "double-loop", tolerance=1e-10, max_iterations=5000)
    assert result.converged
    assert result.violation < 1e-8
    assert result.free_energy == pytest.approx(kikuchi_free_energy(model, graph, result.clusters), abs=1e-6)
    # Stationary: no small consistent move lowers it. Moves are mixtures with consistent tables of random joints.
    rng = np.random.default_rng(seed)
    for _ in range(5):
        other = rng.dirichlet(np.ones(p.size)).reshape(p.shape)

        def moved(step, other=other):
            tables = zip(graph.all_clusters, result.clusters, strict=True)
            return kikuchi_free_energy(model, graph, [t + step * (marginal(other, s) - t) for s, t in tables])

        assert abs(moved(1e-5) - moved(-1e-5)) / 2e-5 < 1e-4
    bethe = bt.infer(random_model(bt.ClusterGraph([2, 3, 2, 2, 2], TRIPLES), seed), [0.0], "double-loop")
    assert abs(result.log_partition - log_z) < abs(bethe.log_partition - log_z) + 1e-3


def full_tables(graph):
    sizes = [graph.size(scope) for scope in graph.clusters]
    bounds = np.concatenate([[0], np.cumsum(sizes)])
    return bt.LogLinearModel(graph, [np.eye(bounds[-1])[a:b] for a, b in itertools.pairwise(bounds)])


@pytest.mark.parametrize("method", ["cccp", "convex", "camel0", "exact", "lbp", bt.Camel(fold=True)])
def test_learning_on_a_junction_tree_of_regions(method):
    rng = np.random.default_rng(0)
    graph = bt.region_graph([2, 3, 2, 2, 3, 2], CHAIN)
    p = rng.dirichlet(np.ones(144)).reshape(2, 3, 2, 2, 3, 2)
    model = full_tables(graph)
    observed = 100.0 * np.concatenate([marginal(p, scope).ravel() for scope in CHAIN])
    found = bt.learn(bt.Moments(model, observed, 100.0), method, prior_variance=None, tolerance=1e-9)
    for scope, table in zip(graph.all_clusters, found.beliefs[0], strict=True):
        np.testing.assert_allclose(table, marginal(p, scope), atol=1e-7)
    if method == "camel0":
        return  # its weights are those of another entropy
    result = bt.infer(model, found.weights, "exact")
    for scope, table in zip(CHAIN, result.clusters, strict=False):
        np.testing.assert_allclose(table, marginal(p, scope), atol=1e-6)


def test_learning_by_cccp_is_a_fixed_point_of_kikuchis_free_energy():
    rng = np.random.default_rng(2)
    graph = bt.region_graph([2, 3, 2, 2, 2], TRIPLES)
    p = rng.dirichlet(np.ones(48)).reshape(2, 3, 2, 2, 2)
    model = full_tables(graph)
    observed = 100.0 * np.concatenate([marginal(p, scope).ravel() for scope in TRIPLES])
    found = bt.learn(bt.Moments(model, observed, 100.0), "cccp", prior_variance=None, tolerance=1e-9)
    assert found.converged
    assert found.violation < 1e-7
    for scope, table in zip(TRIPLES, found.beliefs[0], strict=False):
        np.testing.assert_allclose(table, marginal(p, scope), atol=1e-6)
    again = bt.infer(model, found.weights, "double-loop", tolerance=1e-10, max_iterations=20_000)
    for a, b in zip(again.clusters, found.beliefs[0], strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4)


def test_what_has_no_meaning_on_regions_is_refused():
    graph = bt.region_graph([2, 2, 2], [(0, 1), (1, 2), (0, 2)])
    model = random_model(graph, 0)
    with pytest.raises(ValueError, match="trw has no numbers for region graphs"):
        bt.infer(model, [0.0], "trw")
    with pytest.raises(ValueError, match="trw has no numbers for region graphs"):
        bt.learn(bt.Moments(model, [0.0], 1.0), "trw")
    with pytest.raises(ValueError, match="names variable 5"):
        bt.region_graph([2, 2], [(0, 5)])


@pytest.mark.parametrize("method", ["mean-field", "gibbs"])
def test_methods_on_factors_take_region_graphs(method):
    graph = bt.region_graph([2, 3, 2, 2, 3, 2], [*CHAIN, (5,)])
    model = random_model(graph, 1, 0.3)
    p, _ = joint(model)
    result = bt.infer(model, [0.0], method, max_iterations=2000)
    for v, table in enumerate(result.variables):
        np.testing.assert_allclose(table, marginal(p, (v,)), atol=0.08)
    best = bt.decode(model, [0.0], "exact")
    assert np.array_equal(best, np.unravel_index(p.argmax(), p.shape))


def test_agreement_with_belief_propagation_is_not_asked_of_regions():
    graph = bt.region_graph([2, 3, 2, 2, 2], TRIPLES)
    p = np.random.default_rng(2).dirichlet(np.ones(48)).reshape(2, 3, 2, 2, 2)
    observed = 100.0 * np.concatenate([marginal(p, scope).ravel() for scope in TRIPLES])
    found = bt.learn(bt.Moments(full_tables(graph), observed, 100.0), "cccp", prior_variance=None)
    assert found.attained is None
