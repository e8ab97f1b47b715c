"""Copies of shared tables, one for every counting number: the same dual, by faster kernels."""

from __future__ import annotations

import numpy as np
import pytest

import bactrian as bt
from bactrian.camel.dual import Dual
from bactrian.camel.entropy import CountingNumbers, carve
from bactrian.camel.prior import Prior
from bactrian.engines import memory
from bactrian.graphs.packed import tables_by_number
from bactrian.graphs.packing import pack
from bactrian.parallel.threads import Context, Workers


def graphs(n: int, n_labels: int, seed: int) -> bt.GraphData:
    """Two graphs with loops and two types of edges."""
    rng = np.random.default_rng(seed)
    edges = [(base + a, base + (a + step) % n) for base in (0, n) for a in range(n) for step in (1, 3)]
    return bt.GraphData(
        rng.normal(size=(2 * n, 2)),
        edges,
        n_labels=n_labels,
        labels=rng.integers(n_labels, size=2 * n),
        node_counts=[n, n],
        tables=["full", "symmetric"],
        edge_types=rng.integers(2, size=len(edges)),
    )


@pytest.mark.parametrize("entropy", ["trw", CountingNumbers(clusters=1.5, sepsets=0.25)])
def test_copies_give_the_same_dual(entropy: str | CountingNumbers, monkeypatch: pytest.MonkeyPatch) -> None:
    data = pack(graphs(40, 3, 0))
    carving = carve(data, entropy)
    weights = np.random.default_rng(1).normal(size=data.n_weights)
    split = tables_by_number(data, carving.cluster)
    assert (split is data) == (entropy != "trw")
    found = []
    for own in (True, False):
        with monkeypatch.context() as patch:
            if not own:
                patch.setattr(memory, "tables_by_number", lambda given, _: given)
            dual = Dual(data, carving, Prior(10.0), Context(Workers(1)))
        found.append(dual.evaluate(weights, tolerance=1e-12, max_sweeps=500))
        beliefs = memory.MemoryTables(dual.part)
        found.append([beliefs.cluster(c) for c in range(data.layout.n_clusters)])
    assert found[0].value == pytest.approx(found[2].value, rel=1e-11)
    np.testing.assert_allclose(found[0].gradient, found[2].gradient, atol=1e-9)
    np.testing.assert_allclose(found[1], found[3], atol=1e-9)


def test_tables_are_copied_for_every_number_and_no_other() -> None:
    data = pack(graphs(40, 2, 2))
    number = np.where(np.arange(data.layout.n_clusters) % 3 == 0, 0.5, 1.0)
    split = tables_by_number(data, number)
    layout = split.layout
    assert layout.n_tables == 4
    for table in range(layout.n_tables):
        assert np.unique(number[layout.cluster_table == table]).size == 1
    weights = np.random.default_rng(3).normal(size=data.n_weights)
    tables = []
    for packed in (data, split):
        entries, hubs = np.empty(packed.layout.n_entries), np.empty(packed.layout.n_hub_states)
        packed.scores.scores(weights, entries, hubs, Workers(1))
        tables.append(entries.reshape(-1, 4)[packed.layout.cluster_table])
    np.testing.assert_array_equal(tables[0], tables[1])
    counts = np.random.default_rng(4).random(layout.n_entries)
    hub_counts = np.zeros(layout.n_hub_states)
    inner = split.scores.moments(counts, hub_counts, Workers(1)) @ weights
    assert inner == pytest.approx(counts @ entries)
    assert split.scores.base_score(counts, hub_counts) == 0.0


def test_copies_that_would_outgrow_the_messages_are_not_made() -> None:
    data = pack(graphs(10, 20, 5))
    number = np.random.default_rng(6).random(data.layout.n_clusters)
    assert tables_by_number(data, number) is data
