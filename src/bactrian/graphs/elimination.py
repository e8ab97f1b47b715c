"""Junction trees by greedy variable elimination.

Eliminating a variable joins its remaining neighbours to each other; the sets {v} and its neighbours met on
the way triangulate the graph, and the maximal ones are the cliques of a junction tree: a spanning forest
with the running-intersection property (Lauritzen & Spiegelhalter, J. R. Stat. Soc. B 50(2), 1988; Blair &
Peyton, *An introduction to chordal graphs and clique trees*, 1993). The best order is NP-hard to find
(Arnborg, Corneil & Proskurowski, SIAM J. Alg. Disc. Meth. 8(2), 1987), so greedy orders are drawn several
times with randomness, and the one whose cliques have the fewest table entries wins (Kask, Gelfand, Otten &
Dechter, AAAI 2011). With d the number of neighbours that v has left, the next variable is the one with least

- ``min-fill``: number f of edges that eliminating v adds (Kjaerulff, Aalborg University R-90-09, 1990);
- ``min-mean-fill``: f / (d + 1)^1.5, after the mean local fill f / d of Ng & Raghavan, SIAM J. Matrix Anal.
  20(4), 1999; the steeper power gives smaller cliques on graphs as they occur in inference;
- ``min-weight``: product of the cardinalities of v and its neighbours (Kjaerulff 1990).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from math import log10, prod

import numpy as np
from numpy.typing import ArrayLike

from bactrian.arrays import Bools, Floats, Ints, integers
from bactrian.engines.numba.elimination import adjacency, assign_scopes, eliminate, initial_fill, supernodes
from bactrian.errors import ArgumentError
from bactrian.graphs.ragged import Ragged, pointer

ORDERS = ("min-fill", "min-mean-fill", "min-weight")

_BYTES_PER_ENTRY = 8
_JITTERS = (0.1, 0.3)  # spread of the log-normal factors that random draws of min-mean-fill put on costs, in turn
_ENTRIES_PER_STEP = 64  # table entries that inference handles in the time of one step of an elimination
_MOST_STEPS = 2**24  # a few seconds, for large models whose tables would cost more still
_HOPELESS = 24.0  # log2 of the factor over the budget that no further draw is expected to make good
_TRIED, _LATE_GAIN = 16, 8.0  # draws of every rule, after which the best goes on alone, and what it may gain yet
#: Entries of cliques that may be worked out for each that is held, where only messages between cliques are.
_WORKED_OUT = 64


class MemoryBudgetError(ArgumentError):
    """The tables of the best junction tree found would not fit in the memory budget.

    Attributes
    ----------
    width, needed, budget
        Width of the tree, bytes of its tables, and bytes allowed.
    tree
        The tree, where the error was raised in this process.
    """

    tree: JunctionTree | None = None

    def __init__(self, width: int, needed: int, budget: int, what: str = "clique tables") -> None:
        found = f"width {width} and {what} of {_readable(needed)}; expected at most {_readable(budget)}"
        enough = f" to {-(-needed // 2**30)}G" if needed < 2**50 else ""
        advice = f"raise the budget{enough}, observe more variables, or choose an approximate method: 'auto' finds one"
        super().__init__("memory_budget", f": the best junction tree found has {found}: {advice}")
        self.width, self.needed, self.budget, self.what = width, needed, budget, what

    def __reduce__(self) -> tuple[type, tuple[int, int, int, str]]:
        return type(self), (self.width, self.needed, self.budget, self.what)


@dataclass(frozen=True)
class JunctionTree:
    """Cliques that cover every scope, and the forest that joins them.

    Attributes
    ----------
    cliques
        Maximal cliques, each a sorted tuple of variables; evidence variables are in none.
    edges
        ``(child, parent, sepset)`` with ``sepset`` the sorted intersection of the two cliques. The edges are
        in collect order: those that lead into a clique precede the one that leaves it. There is one tree
        per connected component; components are not joined.
    width
        Size of the largest clique, less one (-1 where there is no clique).
    table_entries
        Sum over the cliques of the number of joint states.
    message_entries
        The same over the sepsets, and once more for those of one clique's children, the most there are.
    assignment
        For each scope given, the index of a clique that contains what evidence leaves of it; -1 where
        nothing is left.
    """

    cliques: tuple[tuple[int, ...], ...]
    edges: tuple[tuple[int, int, tuple[int, ...]], ...]
    width: int
    table_entries: int
    message_entries: int
    assignment: tuple[int, ...]

    @property
    def downwards(self) -> list[tuple[int, tuple[int, ...]]]:
        """Cliques, every parent before its children, with the sepset towards the parent; that of a root is empty."""
        children = {child for child, _, _ in self.edges}
        roots: list[tuple[int, tuple[int, ...]]] = [(q, ()) for q in range(len(self.cliques)) if q not in children]
        return roots + [(child, sepset) for child, _, sepset in reversed(self.edges)]


def junction_tree(
    cardinalities: ArrayLike,
    scopes: Sequence[Sequence[int]],
    *,
    evidence: Iterable[int] = frozenset(),
    orders: Sequence[str] = ORDERS,
    restarts: int = 2048,
    seed: int = 0,
    memory_budget: int = 4 * 2**30,
    whole: bool = True,
    late: Callable[[], bool] = lambda: False,
) -> JunctionTree:
    """Triangulate by the best of several elimination orders and return the junction tree.

    Parameters
    ----------
    cardinalities
        (n,) number of states of each variable.
    scopes
        Sets of variables, checked by :class:`~bactrian.graphs.graph.Domain`, each of which some clique must contain.
        A variable in no scope has a clique of its own.
    evidence
        Observed variables; they are taken out of every scope before the first elimination.
    orders
        Greedy rules to draw, of ``"min-fill"``, ``"min-mean-fill"`` and ``"min-weight"``.
    restarts
        How often each rule is drawn at most. With seed 0 the first draw breaks ties by the variable's number, others do
        so at random, and after some draws only the best rule goes on. No more are drawn once an order adds no edge
        (the graph is chordal, the tree optimal), or once further search would cost more time than the tables of the
        best tree.
    seed
        Seed of the random draws.
    memory_budget
        Bytes that the clique tables may take together, at 8 bytes per entry.
    whole
        Whether clique tables are held; otherwise the budget is that of messages between cliques, whose tables may be
        64 times as large.
    late
        Says when no more are to be drawn.

    Returns
    -------
    JunctionTree
        The tree of the order with the fewest table entries; the first such order where several tie.

    Raises
    ------
    MemoryBudgetError
        Where the best tree found needs more than ``memory_budget``.
    """
    sizes = integers(cardinalities, "cardinalities", least=1)
    offsets = pointer(np.fromiter(map(len, scopes), np.int64, len(scopes)))
    rows = Ragged(offsets, integers(list(chain.from_iterable(scopes)), "scopes", below=sizes.size))
    free = np.ones(sizes.size, np.bool_)
    free[integers(list(evidence), "evidence", below=sizes.size)] = False
    entries = max(memory_budget, 1) / _BYTES_PER_ENTRY * (1 if whole else _WORKED_OUT)
    best = _best_elimination(sizes, rows, free, orders, restarts, seed, float(np.log2(entries)), late)
    tree = _build(sizes, rows, free, *best)
    needed = _BYTES_PER_ENTRY * (tree.table_entries if whole else tree.message_entries)
    refused = None
    if needed > memory_budget:
        refused = MemoryBudgetError(tree.width, needed, int(memory_budget), "clique tables" if whole else "messages")
    elif tree.table_entries > entries:
        allowed = int(_BYTES_PER_ENTRY * entries)
        refused = MemoryBudgetError(tree.width, _BYTES_PER_ENTRY * tree.table_entries, allowed)
    if refused is not None:
        refused.tree = tree
        raise refused
    return tree


def _best_elimination(
    sizes: Ints,
    scopes: Ragged,
    free: Bools,
    orders: Sequence[str],
    restarts: int,
    seed: int,
    log2_budget: float,
    late: Callable[[], bool],
) -> tuple[Ints, Ints, Ints]:
    """Order, bag offsets and bags of the elimination with the fewest entries in its maximal cliques."""
    start, degree, pool = adjacency(scopes.values, scopes.bounds, free)
    fill = initial_fill(start, degree, pool)
    # Multiples of 2^-20 add and subtract without rounding, so that equal weights stay equal.
    logs = np.rint(np.log2(sizes) * 2**20) / 2**20
    generator = np.random.default_rng(seed)
    n = sizes.size
    rank, jitter = np.arange(n), np.ones(n)
    best, fewest, steps, winner = None, np.inf, 0, orders[0]
    for restart in range(restarts):
        if restart == _TRIED:
            orders = [winner]
        for rule in orders:
            if restart > 0 or seed > 0:
                spread = _JITTERS[restart % len(_JITTERS)]
                rank, jitter = generator.permutation(n), np.exp(spread * generator.standard_normal(n))
            order, bag_offsets, bags, added = eliminate(
                start, degree, pool, fill, free, logs, ORDERS.index(rule), rank, jitter, fewest
            )
            steps += order.size + added
            if order.size < np.count_nonzero(free):
                continue
            _, first_of, _ = supernodes(order, bag_offsets, bags, n)
            total = _log2_entries(logs, order, bag_offsets, bags, first_of)
            if best is None or total < fewest:
                best, fewest, winner = (order, bag_offsets, bags), total, rule
            if added == 0 or fewest > log2_budget + _HOPELESS:
                return best
        if restart > _TRIED and fewest > log2_budget + _LATE_GAIN:
            break
        if late() or steps > _MOST_STEPS or fewest < np.log2(_ENTRIES_PER_STEP * steps):
            break
    assert best is not None
    return best


def _log2_entries(logs: Floats, order: Ints, bag_offsets: Ints, bags: Ints, first_of: Ints) -> float:
    """log2 of the number of entries in the tables of the maximal cliques, which may be past any float."""
    if order.size == 0:
        return -np.inf
    running = np.concatenate([[0.0], np.cumsum(logs[bags])])
    exponents = (logs[order] + running[bag_offsets[1:]] - running[bag_offsets[:-1]])[first_of]
    largest = exponents.max()
    return float(largest + np.log2(np.exp2(exponents - largest).sum()))


def _build(sizes: Ints, scopes: Ragged, free: Bools, order: Ints, bag_offsets: Ints, bags: Ints) -> JunctionTree:
    """Build the junction tree of an elimination: maximal cliques, sepsets, and a clique for every scope."""
    clique_of, first_of, parent = supernodes(order, bag_offsets, bags, sizes.size)
    variables, bounds, ordered = bags.tolist(), bag_offsets.tolist(), order.tolist()
    cliques = tuple(tuple(sorted([ordered[t], *variables[bounds[t] : bounds[t + 1]]])) for t in first_of.tolist())
    leaving = np.flatnonzero((parent >= 0) & (clique_of[order] != clique_of[parent]))
    children, parents = clique_of[order[leaving]].tolist(), clique_of[parent[leaving]].tolist()
    sepsets = [tuple(sorted(variables[bounds[t] : bounds[t + 1]])) for t in leaving.tolist()]
    cards = sizes.tolist()
    messages = [prod([cards[v] for v in sepset]) for sepset in sepsets]
    entering = [0] * (len(cliques) + 1)
    for above, entries in zip(parents, messages, strict=True):
        entering[above] += entries
    return JunctionTree(
        cliques=cliques,
        edges=tuple(zip(children, parents, sepsets, strict=True)),
        width=max(map(len, cliques), default=0) - 1,
        table_entries=sum(prod([cards[v] for v in clique]) for clique in cliques),
        message_entries=sum(messages) + max(entering),
        assignment=tuple(assign_scopes(scopes.values, scopes.bounds, free, order, clique_of).tolist()),
    )


def _readable(n_bytes: int) -> str:
    """Bytes in words; beyond what memory can hold, the power of ten alone."""
    if n_bytes >= 2**63:
        return f"about 10^{round(log10(n_bytes))} bytes"
    return f"{n_bytes} bytes ({n_bytes / 2**30:.3g} GiB)"
