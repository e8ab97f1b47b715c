"""Join graphs: clusters of bounded size along an elimination order, for models whose junction tree is too large.

Eliminating a variable takes all tables that hold it. Where their joint table would be too large they are divided among
*mini-buckets* (Dechter & Rish, J. ACM 50(2), 2003), each a cluster; a cluster hands on what is left of its scope to
where that is eliminated next, and the mini-buckets of a variable are linked through it alone. The clusters of every
variable then form a tree, and messages between them are iterative join-graph propagation (Mateescu, Kask, Gogate &
Dechter, JAIR 37, 2010): belief propagation for the smallest clusters, exact where none had to be divided.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from bactrian.graphs.elimination import JunctionTree
from bactrian.graphs.graph import Scope


def elimination_order(tree: JunctionTree) -> list[int]:
    """An order whose elimination gives the cliques of a junction tree: from its leaves to the roots."""
    sepsets = {child: set(sepset) for child, _, sepset in tree.edges}
    downwards = [q for q, _ in tree.downwards]
    return [v for q in reversed(downwards) for v in tree.cliques[q] if v not in sepsets.get(q, set())]


def join_graph(sizes: Sequence[int], scopes: Sequence[Scope], tree: JunctionTree, limit: int) -> JunctionTree:
    """Clusters of at most ``limit`` states, or those of a single scope, along the order of a junction tree.

    Its edges may close circles. ``scopes`` are those of which ``tree`` is the junction tree; others are observed.
    """
    order = elimination_order(tree)
    position = {v: t for t, v in enumerate(order)}
    waiting: list[list[tuple[frozenset[int], int, int]]] = [[] for _ in order]  # what is left, its factor and cluster
    for f, scope in enumerate(scopes):
        free = frozenset(v for v in scope if v in position)
        if free:
            waiting[min(position[v] for v in free)].append((free, f, -1))
    clusters: list[frozenset[int]] = []
    edges: list[tuple[int, int, Scope]] = []
    assignment = [-1] * len(scopes)
    for v in order:
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
                    edges.append((source, cluster, tuple(sorted(part))))
            if before >= 0:
                edges.append((before, cluster, (v,)))
            before = cluster
            left = union - {v}
            if left:
                waiting[min(position[u] for u in left)].append((left, -1, cluster))
    return JunctionTree(
        cliques=tuple(tuple(sorted(cluster)) for cluster in clusters),
        edges=tuple(edges),
        width=max(map(len, clusters), default=0) - 1,
        table_entries=sum(_states(cluster, sizes) for cluster in clusters),
        message_entries=sum(prod([sizes[v] for v in sepset]) for _, _, sepset in edges),
        assignment=tuple(assignment),
    )


def _states(scope: frozenset[int], sizes: Sequence[int]) -> int:
    return prod([sizes[v] for v in scope])
