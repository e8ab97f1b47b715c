"""Join graphs: clusters of bounded size along an elimination order, for models whose junction tree is too large.

Eliminating a variable takes all tables that hold it. Where their joint table would be too large they are divided among
*mini-buckets* (Dechter & Rish, J. ACM 50(2), 2003), each a cluster; a cluster hands on what is left of its scope to
where that is eliminated next, and the mini-buckets of a variable are linked through it alone. The clusters of every
variable then form a tree, and messages between them are iterative join-graph propagation (Mateescu, Kask, Gogate &
Dechter, JAIR 37, 2010): belief propagation for the smallest clusters, exact where none had to be divided.

All links but those through a single variable are a junction tree of a model in which that variable has copies. So
messages are passed exactly on the tree, and only what copies tell each other is iterated (edge deletion: Choi &
Darwiche, AAAI 2006).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from bactrian.graphs.elimination import JunctionTree
from bactrian.graphs.graph import Scope
from bactrian.graphs.junction import FactorTree
from bactrian.parallel.threads import Deadline


def elimination_order(tree: JunctionTree) -> list[int]:
    """An order whose elimination gives the cliques of a junction tree: from its leaves to the roots."""
    sepsets = {child: set(sepset) for child, _, sepset in tree.edges}
    downwards = [q for q, _ in tree.downwards]
    return [v for q in reversed(downwards) for v in tree.cliques[q] if v not in sepsets.get(q, set())]


@dataclass(frozen=True)
class JoinGraph:
    """A join graph as a junction tree in which some variables have several copies.

    Attributes
    ----------
    factors
        The tree. Its scopes are those given, with copies in the place of some variables, then those of single copies,
        one for each end of each pair; its ``sizes`` go on with those of copies.
    pairs
        Copies of one variable that the tree does not tie together.
    """

    factors: FactorTree
    pairs: tuple[tuple[int, int], ...]


def join_graph(
    sizes: Sequence[int], scopes: Sequence[Scope], n_tables: int, tree: JunctionTree, limit: int,
    deadline: Deadline | None = None,
) -> JoinGraph | None:  # fmt: skip
    """Clusters of at most ``limit`` states, or those of a single scope, along the order of a junction tree.

    ``scopes``, of which ``n_tables`` are tables, are those of which ``tree`` is the junction tree; variables that it
    lacks are observed. None where time is up before all are there.
    """
    order = elimination_order(tree)
    position = {v: t for t, v in enumerate(order)}
    waiting: list[list[tuple[frozenset[int], int, int]]] = [[] for _ in order]  # what is left, its factor and cluster
    for f, scope in enumerate(scopes):
        free = frozenset(v for v in scope if v in position)
        if free:
            waiting[min(position[v] for v in free)].append((free, f, -1))
    clusters: list[frozenset[int]] = []
    parents: dict[int, tuple[int, frozenset[int]]] = {}
    split: list[tuple[int, int, int]] = []
    assignment = [-1] * len(scopes)
    for v in order:
        if deadline is not None and deadline.has_passed:
            return None
        items = sorted(waiting[position[v]], key=lambda item: (-_states(item[0], sizes), sorted(item[0])))
        buckets: list[tuple[frozenset[int], list[tuple[frozenset[int], int, int]]]] = []
        for item in items or [(frozenset((v,)), -1, -1)]:
            for b, (union, members) in enumerate(buckets):
                joint = union | item[0]
                if joint == union or _states(joint, sizes) <= limit:
                    buckets[b] = (joint, [*members, item])
                    break
            else:
                buckets.append((item[0], [item]))
        before = -1
        for union, members in buckets:
            cluster = next((source for _, _, source in members if source >= 0 and union <= clusters[source]), -1)
            if cluster < 0:
                cluster = len(clusters)
                clusters.append(union)
            for part, factor, source in members:
                if factor >= 0:
                    assignment[factor] = cluster
                elif source >= 0 and source != cluster:
                    parents[source] = cluster, part
            if before >= 0:
                split.append((v, before, cluster))
            before = cluster
            left = union - {v}
            if left:
                waiting[min(position[u] for u in left)].append((left, -1, cluster))
    return _with_copies(sizes, scopes, n_tables, clusters, parents, split, assignment)


def _with_copies(
    sizes: Sequence[int], scopes: Sequence[Scope], n_tables: int, clusters: Sequence[frozenset[int]],
    parents: dict[int, tuple[int, frozenset[int]]], split: Sequence[tuple[int, int, int]], assignment: list[int],
) -> JoinGraph:  # fmt: skip
    """Give variables another name wherever the tree does not tie them to the first place where they are."""
    downwards: list[int] = []
    children: list[list[int]] = [[] for _ in clusters]
    for child, (parent, _) in parents.items():
        children[parent].append(child)
    waiting = [q for q in range(len(clusters)) if q not in parents]
    while waiting:
        q = waiting.pop()
        downwards.append(q)
        waiting += children[q]
    names: list[dict[int, int]] = [{} for _ in clusters]
    longer, used = list(sizes), set[int]()
    for q in downwards:
        parent, sepset = parents.get(q, (-1, frozenset[int]()))
        for v in sorted(clusters[q]):
            if v in sepset:
                names[q][v] = names[parent][v]
            elif v not in used:
                names[q][v] = v
                used.add(v)
            else:
                names[q][v] = len(longer)
                longer.append(sizes[v])
    pairs, ends = [], []
    for v, a, b in split:
        if names[a][v] != names[b][v]:
            pairs.append((names[a][v], names[b][v]))
            ends += [a, b]
    named = [
        tuple(names[q].get(v, v) for v in scope) if q >= 0 else scope
        for scope, q in zip(scopes, assignment, strict=True)
    ]
    edges = [
        (q, parents[q][0], tuple(sorted(names[q][v] for v in parents[q][1])))
        for q in reversed(downwards)
        if q in parents
    ]
    entering = [0] * (len(clusters) + 1)
    for _, above, scope in edges:
        entering[above] += prod([longer[v] for v in scope])
    whole = JunctionTree(
        cliques=tuple(tuple(sorted(names[q].values())) for q in range(len(clusters))),
        edges=tuple(edges),
        width=max(map(len, clusters), default=0) - 1,
        table_entries=sum(_states(cluster, sizes) for cluster in clusters),
        message_entries=sum(entering) + max(entering),
        assignment=(*assignment, *ends),
    )
    singles = [(copy,) for pair in pairs for copy in pair]
    return JoinGraph(FactorTree(longer, [*named, *singles], n_tables, whole), tuple(pairs))


def _states(scope: frozenset[int], sizes: Sequence[int]) -> int:
    return prod([sizes[v] for v in scope])
