"""Appearance probabilities of clusters in acyclic subsets: what a tree-reweighted entropy counts them with.

Items, the clusters, join nodes, the variables (on an explicit graph, sepsets join clusters). A vector of probabilities
gives an upper bound on the entropy, concave where beliefs agree, if some distribution over acyclic subsets of items has
it for its marginals, or larger ones. All rules here depend on the graph alone, not on how it is numbered.

1. *Trees.* Cycles, and paths between them, are the 2-core of the graph of items and nodes. Only its links count below;
   items outside it have probability 1.
2. *Pairs.* The marginals of a uniformly random spanning tree: conductance times effective resistance (Kirchhoff), from
   the inverse of the Laplacian. A chain of l items between nodes of degree 3 or more is one edge of conductance 1 / l:
   all of the chain is in the tree with probability q, else all but one, so that each has 1 - (1 - q) / l.
3. *Many pairs*, more than :data:`MOST_NODES` nodes of degree 3 or more: 1 / min(k_u, k_v), with k the core numbers. In
   the order in which nodes are peeled off, v has at most k_v pairs to later nodes and keeps one of them at random: no
   cycle, for its first node in that order would have kept two. Or that rule for whole chains, where it gives more.
4. *Larger clusters.* Each item draws a time. It is taken if all that touch it earlier touch it in one node, the same
   for all: in the order of time what is taken hangs by one node, so that there is no cycle. Of n items that touch it,
   n_v in v alone, the probability is sum_v 1 / (1 + n - n_v) - (p - 1) / (1 + n), p being its number of nodes.
5. *Larger clusters among pairs*: with probability t the larger clusters alone, by rule 4, and pairs between what they
   join, as if each of their components were one node; else pairs alone. Larger clusters and pairs are equally probable
   on average, for t from 1/4 to 3/4. Or rule 4 for all, where that joins more.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components

from bactrian.arrays import Bools, Floats, Ints
from bactrian.engines.numba.orders import core_numbers, stable_order
from bactrian.graphs.ragged import pointer

#: Nodes of degree 3 or more in a component up to which its Laplacian is inverted, which takes a third of a second.
MOST_NODES = 1500
#: Pairs of items that touch each other up to which they are counted one by one.
_MOST_TOUCHING = 3e7


def appearances(item: Ints, node: Ints, n_items: int, n_nodes: int, late: Bools) -> Floats:
    """(n_items,) probabilities, from the links of ``item`` and ``node``; when it is ``late``, by the quick rules."""
    found = np.ones(n_items)
    core = core_numbers(*_neighbours(item, n_items + node, n_items + n_nodes))
    looped = (core[item] > 1) & (core[n_items + node] > 1)
    item, node = item[looped], node[looped]
    if item.size:
        component = _components(item, node, n_items, n_nodes)[0][item]
        large = np.bincount(component, weights=np.bincount(item)[item] > 2)[component] > 0
        for rule, chosen in ((_larger, large), (_pairs, ~large)):
            items, nodes = (np.unique(values[chosen], return_inverse=True) for values in (item, node))
            if items[0].size:
                found[items[0]] = rule(items[1], nodes[1], late)
    return found


def _components(item: Ints, node: Ints, n_items: int, n_nodes: int) -> tuple[Ints, Ints]:
    """Components of items, and of nodes."""
    joined = _graph(np.stack([item, n_items + node], axis=1), n_items + n_nodes)
    component = connected_components(joined, directed=False)[1]
    return component[:n_items], component[n_items:]


def _neighbours(first: Ints, second: Ints, n_nodes: int) -> tuple[Ints, Ints]:
    """Where the neighbours of each node of an undirected graph begin, and the neighbours, parallel edges repeated."""
    ends = np.concatenate([first, second])
    order = stable_order(ends, n_nodes)
    return pointer(np.bincount(ends, minlength=n_nodes)), np.concatenate([second, first])[order]


def _larger(item: Ints, node: Ints, late: Bools) -> Floats:
    """Rule 4 for components with larger clusters, or rule 5 where that joins more."""
    links = np.bincount(item)
    size = links.size, int(node.max()) + 1
    leaves, wide = _leaves(item, node), links > 2
    if wide.all():
        return leaves
    of_wide, component = wide[item], _components(item, node, *size)[0]
    alone = appearances(item[of_wide], node[of_wide], *size, late)
    apart = appearances(item[~of_wide], node[~of_wide], *size, late)
    merged = _components(item[of_wide], node[of_wide], *size)[1][node]
    first, last = np.full(links.size, merged.size), np.full(links.size, -1)
    np.minimum.at(first, item, merged)
    np.maximum.at(last, item, merged)
    is_open = ~wide & (first < last)  # the others are within what larger clusters join
    of_open = is_open[item]
    beside = np.where(is_open, appearances(item[of_open], merged[of_open], links.size, merged.max() + 1, late), 0.0)
    of_larger, of_pairs, of_beside = (
        np.bincount(component, weights=chosen * rule) / np.maximum(np.bincount(component, weights=chosen), 1.0)
        for chosen, rule in ((wide, alone), (~wide, apart), (~wide, beside))
    )
    part = np.clip(of_pairs / (of_larger + of_pairs - of_beside), 0.25, 0.75)[component]
    mixed = np.where(wide, part * alone, part * beside + (1.0 - part) * apart)
    joins = [np.bincount(component, weights=(links - 1.0) * rule) for rule in (leaves, mixed)]
    return np.where((joins[1] > (1.0 + 1e-9) * joins[0])[component], mixed, leaves)


def _leaves(item: Ints, node: Ints) -> Floats:
    """Rule 4; where too many touch each other, only those that touch an item elsewhere than in its busiest node."""
    degrees = np.bincount(node) - 1.0
    if (degrees**2).sum() > _MOST_TOUCHING:
        busiest = np.zeros(item.max() + 1)
        np.maximum.at(busiest, item, degrees[node])
        return np.asarray(1.0 / (1.0 + np.bincount(item, weights=degrees[node]) - busiest))
    links = sp.csr_array((np.ones(item.size), (item, node)))
    shared = (links @ links.T).tocsr()
    touching = np.diff(shared.indptr) - 1.0
    shared.data = (shared.data == 1.0).astype(np.float64)
    in_this_alone = np.asarray((shared @ links)[item, node]).ravel()
    each = np.bincount(item, weights=1.0 / (1.0 + touching[item] - in_this_alone))
    return np.asarray(each - (np.bincount(item) - 1.0) / (1.0 + touching))


def _pairs(item: Ints, node: Ints, late: Bools) -> Floats:
    """Rules 2 and 3, of items with two links each."""
    ends = node[stable_order(item, item.size // 2)].reshape(-1, 2)
    component = connected_components(_graph(ends, int(node.max()) + 1), directed=False)[1]
    chain, chain_ends = _chains(ends)
    length = np.bincount(chain)
    branching = np.bincount(component, weights=np.bincount(ends.ravel()) > 2)
    of_item = component[ends[:, 0]]
    of_chain = np.empty_like(length)
    of_chain[chain] = of_item
    whole, is_known = _spanning(chain_ends, length, of_chain, branching <= MOST_NODES, late)
    found = 1.0 - (1.0 - whole[chain]) / length[chain]
    if not is_known.all():
        by_item = _peeled(ends)
        by_chain = 1.0 - (1.0 - _peeled(chain_ends)[chain]) / length[chain]
        more = np.bincount(of_item, weights=by_chain) > (1.0 + 1e-9) * np.bincount(of_item, weights=by_item)
        found = np.where(is_known[of_item], found, np.where(more[of_item], by_chain, by_item))
    return found


def _graph(ends: Ints, n_nodes: int) -> sp.coo_array:
    return sp.coo_array((np.ones(len(ends)), (ends[:, 0], ends[:, 1])), shape=(n_nodes, n_nodes))


def _chains(ends: Ints) -> tuple[Ints, Ints]:
    """The chain of each pair, which goes on through nodes of degree 2, and the ends of each chain: -1 of a cycle."""
    node = ends.ravel()
    degree = np.bincount(node)[node]
    inner, outer = np.flatnonzero(degree == 2), np.flatnonzero(degree > 2)
    through = inner[np.argsort(node[inner], kind="stable")].reshape(-1, 2) // 2
    n_chains, chain = connected_components(_graph(through, len(ends)), directed=False)
    by_chain = outer[np.argsort(chain[outer // 2], kind="stable")].reshape(-1, 2)
    chain_ends = np.full((n_chains, 2), -1)
    chain_ends[chain[by_chain[:, 0] // 2]] = node[by_chain]
    return chain, chain_ends


def _spanning(ends: Ints, length: Ints, component: Ints, wanted: Bools, late: Bools) -> tuple[Floats, Bools]:
    """Probability of whole chains in a random spanning tree, and of which components it is known.

    Chains that are closed are never whole. Components of one shape, as many instances have, are solved once.
    """
    whole, is_known = np.zeros(length.size), wanted.copy()
    opened = np.flatnonzero((ends[:, 0] != ends[:, 1]) & wanted[component])
    opened = opened[np.argsort(component[opened], kind="stable")]
    solved: dict[bytes, Floats] = {}
    for chains in np.split(opened, np.flatnonzero(np.diff(component[opened])) + 1):
        if late[0]:
            is_known[component[chains]] = False
        elif chains.size:
            nodes, places = np.unique(ends[chains], return_inverse=True)
            places = places.reshape(-1, 2)
            shape = places.tobytes() + length[chains].tobytes()
            if shape not in solved:
                solved[shape] = _resistances(places, 1.0 / length[chains], nodes.size)
            whole[chains] = solved[shape]
    return whole, is_known


def _resistances(ends: Ints, conductance: Floats, n_nodes: int) -> Floats:
    """Conductance times effective resistance of each edge of a connected graph."""
    laplacian = np.zeros((n_nodes, n_nodes))
    first, second = ends.T
    for row, column, sign in ((first, first, 1.0), (second, second, 1.0), (first, second, -1.0), (second, first, -1.0)):
        np.add.at(laplacian, (row, column), sign * conductance)
    green = np.zeros_like(laplacian)
    green[1:, 1:] = np.linalg.inv(laplacian[1:, 1:])
    potential = green.diagonal()[first] + green.diagonal()[second] - 2.0 * green[first, second]
    return np.minimum(conductance * potential, 1.0)


def _peeled(ends: Ints) -> Floats:
    """Rule 3 for the edges of a graph: 1 / min(k_u, k_v); 0 of those that end where they began."""
    opened = ends[:, 0] != ends[:, 1]
    core = core_numbers(*_neighbours(ends[opened, 0], ends[opened, 1], int(ends.max(initial=-1)) + 1))
    found = np.zeros(len(ends))
    found[opened] = 1.0 / core[ends[opened]].min(axis=1)
    return found
