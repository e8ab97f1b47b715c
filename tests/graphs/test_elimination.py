"""Junction trees: cover, running intersection, known widths, budgets and bad input."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from itertools import combinations, permutations
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bactrian.graphs.elimination import ORDERS, JunctionTree, MemoryBudgetError, junction_tree

Scopes = Sequence[tuple[int, ...]]


def cycle(n: int) -> Scopes:
    return [(v, (v + 1) % n) for v in range(n)]


def grid(height: int, width: int) -> Scopes:
    right = [(i * width + j, i * width + j + 1) for i in range(height) for j in range(width - 1)]
    down = [(i * width + j, (i + 1) * width + j) for i in range(height - 1) for j in range(width)]
    return [*right, *down]


def random_tree(n: int, seed: int) -> Scopes:
    generator = np.random.default_rng(seed)
    return [(int(generator.integers(v)), v) for v in range(1, n)]


def components(nodes: list[int], links: list[tuple[int, int]]) -> list[set[int]]:
    """Connected components by repeated merging, the plainest way there is."""
    groups = [{v} for v in nodes]
    for i, j in links:
        touching = [g for g in groups if i in g or j in g]
        groups = [g for g in groups if g not in touching] + [set().union(*touching)]
    return groups


def check(tree: JunctionTree, cardinalities: list[int], scopes: Scopes, evidence: frozenset[int] = frozenset()) -> None:
    """Every property a junction tree promises, checked without the library."""
    free = set(range(len(cardinalities))) - evidence
    cliques = [set(clique) for clique in tree.cliques]
    assert all(list(clique) == sorted(set(clique)) for clique in tree.cliques)
    assert set().union(*cliques) == free
    assert not any(a < b or (a == b and i != j) for i, a in enumerate(cliques) for j, b in enumerate(cliques))
    assert tree.width == max((len(clique) for clique in cliques), default=0) - 1
    assert tree.table_entries == sum(prod(cardinalities[v] for v in clique) for clique in cliques)

    assert len(tree.assignment) == len(scopes)
    for scope, i in zip(scopes, tree.assignment, strict=True):
        left = set(scope) - evidence
        assert (i == -1) == (not left)
        assert not left or left <= cliques[i]

    links = [(i, j) for i, j, _ in tree.edges]
    trees = components(list(range(len(cliques))), links)
    assert len(trees) == len(cliques) - len(links), "the edges close a loop"
    for i, j, sepset in tree.edges:
        assert sepset == tuple(sorted(cliques[i] & cliques[j])) != ()
    for v in free:  # running intersection: the cliques that hold v hang together by edges that hold v
        holding = [i for i, clique in enumerate(cliques) if v in clique]
        assert len(components(holding, [(i, j) for i, j, sepset in tree.edges if v in sepset])) == 1
    done: set[int] = set()
    for i, j, _ in tree.edges:  # collect order: nothing arrives at a clique that has sent already
        assert not {i, j} & done
        done.add(i)

    pairs = [p for scope in scopes for p in combinations(set(scope) - evidence, 2)]
    assert len(trees) == len(components(sorted(free), pairs)), "one tree per connected component"


def treewidth(n: int, scopes: Scopes) -> int:
    """Smallest width over all elimination orders."""
    best = n
    for order in permutations(range(n)):
        joined = {v: {u for s in scopes if v in s for u in s} - {v} for v in range(n)}
        width = 0
        for v in order:
            around = joined.pop(v)
            width = max(width, len(around))
            for u in around:
                joined[u] = (joined[u] | around) - {u, v}
        best = min(best, width)
    return best


@st.composite
def models(draw: st.DrawFn) -> tuple[list[int], Scopes, frozenset[int]]:
    n = draw(st.integers(0, 12))
    cardinalities = draw(st.lists(st.integers(1, 5), min_size=n, max_size=n))
    variable = st.integers(0, max(n - 1, 0))
    scope = st.lists(variable, max_size=min(n, 4), unique=True).map(tuple) if n else st.just(())
    scopes = draw(st.lists(scope, max_size=20))
    evidence = draw(st.frozensets(variable, max_size=n)) if n else frozenset()
    return cardinalities, scopes, evidence


@settings(deadline=None, max_examples=300)
@given(models(), st.sampled_from([(order,) for order in ORDERS] + [ORDERS]), st.integers(1, 3), st.integers(0, 9))
def test_random_models(
    model: tuple[list[int], Scopes, frozenset[int]], orders: tuple[str, ...], restarts: int, seed: int
) -> None:
    cardinalities, scopes, evidence = model
    tree = junction_tree(cardinalities, scopes, evidence=evidence, orders=orders, restarts=restarts, seed=seed)
    check(tree, cardinalities, scopes, evidence)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("seed", range(5))
def test_larger_random_graphs(order: str, seed: int) -> None:
    generator = np.random.default_rng(seed)
    cardinalities = generator.integers(1, 4, 60).tolist()
    scopes = [tuple(generator.choice(60, generator.integers(1, 4), replace=False).tolist()) for _ in range(70)]
    evidence = frozenset(generator.choice(60, 8, replace=False).tolist())
    tree = junction_tree(
        cardinalities, scopes, evidence=evidence, orders=[order], restarts=2, seed=seed, memory_budget=2**200
    )
    check(tree, cardinalities, scopes, evidence)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("n", "scopes", "width"),
    [
        (1, [], 0),
        (50, random_tree(50, 0), 1),
        (200, random_tree(200, 1), 1),
        (3, cycle(3), 2),
        (40, cycle(40), 2),
        (6, [tuple(range(6))], 5),
        (6, list(combinations(range(6), 2)), 5),
        (8, [(i, 4 + j) for i in range(4) for j in range(4)], 4),
        *[(n * n, grid(n, n), n) for n in range(2, 7)],
        (400, grid(100, 4), 4),
    ],
)
def test_known_treewidths(n: int, scopes: Scopes, width: int, order: str) -> None:
    # No heuristic is sure to find the treewidth, so several draws are allowed where the graph has loops.
    widths = []
    for seed in range(20):
        tree = junction_tree([2] * n, scopes, orders=[order], seed=seed, restarts=4)
        check(tree, [2] * n, scopes)
        widths.append(tree.width)
        if tree.width == width:
            break
    assert min(widths) == width


def greedy_cliques(cardinalities: list[int], scopes: Scopes, rule: str) -> set[tuple[int, ...]]:
    """Maximal cliques of a greedy elimination that counts everything anew at every step."""
    left = {v: {u for s in scopes if v in s for u in s} - {v} for v in range(len(cardinalities))}
    found: list[set[int]] = []

    def cost(v: int) -> float:
        fill: float = sum(b not in left[a] for a, b in combinations(left[v], 2))
        if rule == "min-mean-fill":
            return float(fill / (len(left[v]) + 1) ** 1.5)
        return fill if rule == "min-fill" else prod(cardinalities[u] for u in {v, *left[v]})

    while left:
        v = min(left, key=lambda v: (cost(v), v))
        around = left.pop(v)
        found.append({v, *around})
        for u in around:
            left[u] = (left[u] | around) - {u, v}
    return {tuple(sorted(c)) for c in found if not any(c < other for other in found)}


@pytest.mark.parametrize("rule", ORDERS)
@pytest.mark.parametrize("seed", range(10))
def test_first_draw_is_the_plain_greedy_order(seed: int, rule: str) -> None:
    generator = np.random.default_rng(seed)
    cardinalities = (2 ** generator.integers(0, 4, 30)).tolist()
    scopes = [tuple(generator.choice(30, 2 + seed % 2, replace=False).tolist()) for _ in range(20 + 4 * seed)]
    tree = junction_tree(cardinalities, scopes, orders=[rule], restarts=1, memory_budget=2**200)
    assert set(tree.cliques) == greedy_cliques(cardinalities, scopes, rule)


@pytest.mark.parametrize("seed", range(8))
def test_against_every_order(seed: int) -> None:
    generator = np.random.default_rng(seed)
    pairs = [pair for pair in combinations(range(7), 2) if generator.random() < 0.45]
    tree = junction_tree([2] * 7, pairs)
    assert tree.width >= treewidth(7, pairs)
    assert tree.width <= treewidth(7, pairs) + 1


def test_chordal_graph_keeps_its_cliques() -> None:
    scopes = [(0, 1, 2), (1, 2, 3), (3, 4), (3, 5), (6, 7)]
    tree = junction_tree([2, 3, 2, 3, 2, 3, 2, 3], scopes)
    assert sorted(tree.cliques) == scopes
    assert sorted(sepset for _, _, sepset in tree.edges) == [(1, 2), (3,), (3,)]


def test_weights_decide_where_cardinalities_differ() -> None:
    # On the cycle 0-1-2-3 the chord joins either 0 and 2 or 1 and 3; the tables of the first are smaller.
    tree = junction_tree([2, 9, 2, 9], cycle(4), orders=["min-weight"])
    assert sorted(tree.cliques) == [(0, 1, 2), (0, 2, 3)]
    assert tree.table_entries == 72


def test_best_order_is_kept() -> None:
    scopes = grid(12, 12)
    one = [junction_tree([2] * 144, scopes, orders=[order], restarts=1) for order in ORDERS]
    best = junction_tree([2] * 144, scopes, restarts=16)
    assert best.table_entries <= min(tree.table_entries for tree in one)


def test_degenerate_models() -> None:
    assert junction_tree([], []) == JunctionTree((), (), -1, 0, 0, ())
    assert junction_tree([], [()]).assignment == (-1,)
    alone = junction_tree([3, 1, 2], [])
    assert sorted(alone.cliques) == [(0,), (1,), (2,)]
    assert (alone.edges, alone.width, alone.table_entries) == ((), 0, 6)
    observed = junction_tree([2, 2], [(0, 1), (1,)], evidence={0: 1, 1: 0})
    assert (observed.cliques, observed.assignment) == ((), (-1, -1))
    numpy_input = junction_tree(np.array([2, 2]), [np.array([0, 1])])  # type: ignore[list-item]
    assert numpy_input.cliques == ((0, 1),)


def test_evidence_cuts_loops() -> None:
    tree = junction_tree([2] * 10, cycle(10), evidence={0})
    assert tree.width == 1
    assert all(0 not in clique for clique in tree.cliques)


def test_same_seed_same_tree() -> None:
    trees = {junction_tree([2] * 100, grid(10, 10), seed=3) for _ in range(3)}
    assert len(trees) == 1


def test_hundred_thousand_variables() -> None:
    n = 100_000
    chain = junction_tree([2] * n, [(v, v + 1) for v in range(n - 1)])
    assert (chain.width, len(chain.cliques)) == (1, n - 1)
    star = junction_tree([2] * n, [(0, v) for v in range(1, n)])
    assert (star.width, len(star.edges)) == (1, n - 2)
    wheel = [(0, v) for v in range(1, n)] + [(v, v % (n - 1) + 1) for v in range(1, n)]
    assert junction_tree([2] * n, wheel).width == 3


def test_budget_names_width_and_bytes() -> None:
    with pytest.raises(MemoryBudgetError, match=r"width 9 .* 8192 bytes .* 8191 bytes") as caught:
        junction_tree([2] * 10, [tuple(range(10))], memory_budget=8191)
    assert (caught.value.width, caught.value.needed, caught.value.budget) == (9, 8192, 8191)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    assert junction_tree([2] * 10, [tuple(range(10))], memory_budget=8192).table_entries == 1024


@pytest.mark.parametrize("cardinality", [2, 50, 2**31])
def test_budget_refuses_what_no_number_holds(cardinality: int) -> None:
    scopes = [tuple(range(v, v + 600)) for v in range(0, 1200, 300)]
    with pytest.raises(MemoryBudgetError, match=r"width 599 .*about 10\^\d+ bytes") as caught:
        junction_tree([cardinality] * 1500, scopes)
    assert caught.value.needed == 8 * 4 * cardinality**600


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"cardinalities": [[2, 2]]}, r"cardinalities must be a flat sequence of integers, found shape \(1, 2\)"),
        ({"cardinalities": [2, 0]}, r"cardinalities\[1\] = 0 is below 1"),
        ({"scopes": [(0,), (0, 2)]}, r"scopes\[2\] = 2 is outside 0 to 1"),
        ({"scopes": [(-1,)]}, r"scopes\[0\] = -1 is outside 0 to 1"),
        ({"evidence": [2]}, r"evidence\[0\] = 2 is outside 0 to 1"),
    ],
)
def test_bad_input(arguments: dict[str, object], message: str) -> None:
    full: dict[str, object] = {"cardinalities": [2, 2], "scopes": [(0, 1)], **arguments}
    with pytest.raises(ValueError, match=message):
        junction_tree(**full)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"cardinalities": [2.0, 2.0]}, "cardinalities must be integers, found dtype float64"),
        ({"scopes": [(0.5,)]}, "scopes must be integers, found dtype float64"),
        ({"evidence": [0.5]}, "evidence must be integers, found dtype float64"),
    ],
)
def test_bad_types(arguments: dict[str, object], message: str) -> None:
    full: dict[str, object] = {"cardinalities": [2, 2], "scopes": [(0, 1)], **arguments}
    with pytest.raises(TypeError, match=message):
        junction_tree(**full)  # type: ignore[arg-type]
