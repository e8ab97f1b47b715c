"""The prior where nothing is said: what it is chosen by, and that it is chosen well."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import bactrian as bt
from bactrian.estimators.auto_prior import Conditionals, Trial, chosen_prior, sampled
from bactrian.graphs.graph_data import GraphData
from bactrian.parallel.threads import Deadline, Workers
from bactrian.runs.packs import estimator_of_pack, write_pack
from bactrian.runs.settings import RunSettings, with_defaults


def graphs(n: int = 6, *, edge_inputs: bool = False, tables: Any = "full", unknown: bool = False) -> GraphData:
    rng = np.random.default_rng(3)
    counts = rng.integers(3, 7, n)
    first = np.concatenate([[0], np.cumsum(counts)])
    edges = np.concatenate([[(a + i, a + i + 1) for i in range(c - 1)] for a, c in zip(first, counts, strict=False)])
    labels = rng.integers(-1 if unknown else 0, 3, first[-1])
    return GraphData(
        rng.normal(size=(first[-1], 2)), edges, n_labels=3, labels=labels, tables=tables, node_counts=counts,
        edge_inputs=rng.normal(size=(len(edges), 2)) if edge_inputs else None, weights=rng.random(n) + 0.5,
    )  # fmt: skip


@pytest.mark.parametrize("tables", ["full", "symmetric", "pooled", "potts", "diagonal"])
@pytest.mark.parametrize("edge_inputs", [False, True])
def test_losses_are_those_of_conditionals_written_out(tables: str, edge_inputs: bool) -> None:
    """Each label given its features and its neighbours' labels, by tables that the data themselves expand."""
    data = graphs(tables=tables, edge_inputs=edge_inputs, unknown=True)
    rng = np.random.default_rng(0)
    weights = rng.normal(size=data.n_weights)
    assert data.labels is not None
    nodes, (table,) = data.split_weights(weights)
    by_edge = np.tile(table, (len(data.edges), 1, 1)) if not edge_inputs else None
    if by_edge is None:
        by_edge = np.einsum("ek,kab->eab", data.scores.types[0].inputs.dense, table)
    scores = data.scores.inputs.dense @ nodes
    for (a, b), own in zip(data.edges.tolist(), by_edge, strict=True):
        if data.labels[a] >= 0 and data.labels[b] >= 0:
            scores[a] += own[:, data.labels[b]]
            scores[b] += own[data.labels[a]]
    logs = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    known = np.flatnonzero(data.labels >= 0)
    by_node = -np.repeat(data.weights, np.diff(data.node_pointer))[known] * logs[known, data.labels[known]]
    of = Conditionals(data, Workers(1))
    x = np.tile(weights[of.numbers], (3, 1))
    assert of.held_out_loss(x) == pytest.approx(by_node.sum())
    x += 0.1 * rng.normal(size=x.shape)
    _, gradient = of.value_and_gradient(x)
    for at in np.ndindex(x.shape):
        ahead, behind = x.copy(), x.copy()
        ahead[at] += 1e-6
        behind[at] -= 1e-6
        slope = (of.value_and_gradient(ahead)[0] - of.value_and_gradient(behind)[0]) / 2e-6
        assert gradient[at] == pytest.approx(slope, abs=1e-5)


def test_what_is_held_out_does_not_teach_and_the_rest_does_not_judge() -> None:
    data, rng = graphs(), np.random.default_rng(1)
    of = Conditionals(data, Workers(1))
    x = rng.normal(size=(3, of.numbers.size))
    value, judged = of.value_and_gradient(x)[0], of.held_out_loss(x)
    assert value + judged == pytest.approx(sum(of.held_out_loss(np.tile(own, (3, 1))) for own in x))
    alone = [
        of.held_out_loss(np.where(np.arange(3)[:, None] == part, x, 0.0)) - of.held_out_loss(np.zeros_like(x))
        for part in range(3)
    ]
    assert judged - of.held_out_loss(np.zeros_like(x)) == pytest.approx(sum(alone))
    assert sorted(np.concatenate(of.held_out)) == list(range(data.n_nodes))


def words(n: int = 60, seed: int = 0, noise: float = 3.0) -> tuple[list[Any], list[Any]]:
    """Sequences of labels that like to repeat, with clear and useless features in dense rows."""
    rng = np.random.default_rng(seed)
    X, y = [], []
    for _ in range(n):
        tags = [int(rng.integers(4))]
        while len(tags) < 7:
            tags.append(tags[-1] if rng.random() < 0.6 else int(rng.integers(4)))
        X.append(np.hstack([2.0 * np.eye(4)[tags], np.zeros((7, 20))]) + noise / 3.0 * rng.normal(size=(7, 24)))
        y.append(tags)
    return X, y


def loss(model: Any, X: Any, y: Any) -> float:
    rows, tags = np.concatenate(model.predict_marginals(X)), np.concatenate(y)
    return -float(np.log(np.maximum(rows[np.arange(tags.size), tags], 1e-12)).mean())


def test_what_is_chosen_is_near_the_best_of_a_grid_and_needs_no_unit() -> None:
    (X, y), (others, truth) = words(), words(seed=1, n=200)
    model = bt.LinearChainCRF().fit(X, y)
    grid = [
        loss(bt.LinearChainCRF(prior_variance=v).fit(X, y), others, truth) for v in (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
    ]
    assert loss(model, others, truth) < 1.03 * min(grid)
    scaled = bt.LinearChainCRF(tolerance=1e-7).fit([1000.0 * rows for rows in X], y)
    exact = bt.LinearChainCRF(tolerance=1e-7).fit(X, y)
    np.testing.assert_allclose(
        np.concatenate(scaled.predict_marginals([1000.0 * rows for rows in others])),
        np.concatenate(exact.predict_marginals(others)),
        atol=1e-4,
    )
    again = bt.LinearChainCRF(prior_variance=model.prior_variance_).fit(X, y)
    np.testing.assert_array_equal(again.weights_, model.weights_)


def test_rows_that_are_dense_sparse_or_bundled_choose_alike() -> None:
    X, y = words(20)
    dense, sparse = (bt.LinearChainCRF() for _ in range(2))
    dense.encode(X, y)
    sparse.encode([sp.csr_array(rows) for rows in X], y)
    for name, value in dense.codec_.auto_prior.items():
        assert sparse.codec_.auto_prior[name] == pytest.approx(value, rel=1e-6)
    plain = [[["bias", f"w{int(4 * row[0])}", f"x{int(row[1])}"] for row in rows] for rows in X]
    bundles = [[[(token[0], token[1]), token[2]] for token in tokens] for tokens in plain]
    one, other = (bt.LinearChainCRF() for _ in range(2))
    one.encode(plain, y)
    other.encode(bundles, y)
    for name, value in one.codec_.auto_prior.items():
        assert other.codec_.auto_prior[name] == pytest.approx(value, rel=1e-6)


def test_fields_choose_by_pseudo_likelihood() -> None:
    rng = np.random.default_rng(2)
    alone = bt.MarkovRandomField("complete", cardinalities=2).fit(rng.integers(0, 2, (200, 6)))
    chain = np.cumsum(rng.random((400, 6)) < 0.1, axis=1) % 2
    joined = bt.MarkovRandomField("complete", cardinalities=2).fit(chain)
    assert alone.prior_variance_["edges"] < 0.1 < joined.prior_variance_["edges"]
    few = bt.MarkovRandomField("complete", cardinalities=2).fit(chain[:5])
    assert few.prior_variance_ == {"variables": 10.0, "edges": 1.0}


@pytest.mark.parametrize(("pairs", "times"), [([], 4.0), ([(0, 1), (1, 2), (0, 2)], 2.0)])  # on trees the square
def test_large_data_are_judged_by_a_sample_of_whole_graphs(pairs: list[tuple[int, int]], times: float) -> None:
    n, rng = 4_000, np.random.default_rng(0)
    labels = rng.integers(0, 2, 5 * n)
    edges = (5 * np.arange(n)[:, None, None] + np.array(pairs, dtype=int).reshape(-1, 2)).reshape(-1, 2)
    data = GraphData(
        (labels + rng.normal(size=5 * n))[:, None], edges, n_labels=2, labels=labels, node_counts=np.full(n, 5)
    )
    part = sampled(data)
    assert part.n_nodes == 10_000
    assert sampled(part) is part
    of_part = chosen_prior(part, ("nodes", "edges"), 1)
    assert chosen_prior(data, ("nodes", "edges"), 1) == {**of_part, "edges": times * of_part["edges"]}


def test_chains_with_unknown_labels_choose_a_prior() -> None:
    rng = np.random.default_rng(0)
    y = [np.cumsum(rng.random(12) < 0.2) % 2 for _ in range(40)]
    X = [labels[:, None] + rng.normal(size=(12, 1)) for labels in y]
    half = [[int(label) if rng.random() < 0.7 else None for label in labels] for labels in y]
    crf, known = bt.LinearChainCRF().fit(X, half), bt.LinearChainCRF().fit(X, y)
    assert crf.prior_variance_["transitions"] > 0.1
    assert crf.score(X, y) > known.score(X, y) - 0.02


@pytest.mark.parametrize(("n", "n_parts"), [(2_999, 3), (3_000, 1)])
def test_one_part_is_held_out_where_it_has_labels_enough(n: int, n_parts: int) -> None:
    labels = np.arange(n) % 2
    data = GraphData(
        labels[:, None].astype(float), np.zeros((0, 2), dtype=int), n_labels=2, labels=labels,
        node_counts=np.full(n, 1),
    )  # fmt: skip
    held_out = Conditionals(data, Workers(1)).held_out
    assert [part.size > n // 4 for part in held_out] == [True] * n_parts
    assert np.unique(np.concatenate(held_out)).size == sum(map(np.size, held_out))


def test_labels_of_trees_are_judged_as_exact_inference_tells_them() -> None:
    (X, y), edges = words(40), {"edges": True}
    model = bt.LinearChainCRF(prior_variance=1.0)
    data = model.encode(X, y)
    trial = Trial(data, lambda scores: np.full(data.n_weights, scores["all"]), Workers(1), Deadline(None))
    found, total = trial.loss({"all": 1.0}, **edges), 0.0
    for part, held_out in enumerate(trial.conditionals.held_out):
        model.fit(X, y)
        model.adopt(replace(model.solution_, weights=trial.weights(part)))
        rows = np.concatenate(model.predict_marginals(X))
        total -= np.log(rows[held_out, np.concatenate(y)[held_out]]).sum()
    assert found == pytest.approx(total)


def test_packs_choose_what_files_do(tmp_path: Path) -> None:
    lines = []
    rng = np.random.default_rng(1)
    for _ in range(80):
        tags = rng.integers(0, 2, 6)
        lines += [f"w{rng.integers(3) + 2 * t} {'B-A' if t else 'O'}" for t in tags] + [""]
    (tmp_path / "train.txt").write_text("\n".join(lines))
    settings = RunSettings.of(
        with_defaults({"train": [str(tmp_path / "train.txt")], "input": {"documents": "sentences"}})
    )
    from bactrian.runs.run_data import read_data

    data = read_data(settings.train, settings)
    model: Any = settings.estimator()
    model.encode(data.X, data.y, **data.given)
    write_pack(tmp_path / "pack", settings, chunk=50)
    packed: Any = estimator_of_pack(tmp_path / "pack", settings)
    assert packed.codec_.auto_prior == pytest.approx(model.codec_.auto_prior)
    np.testing.assert_allclose(packed.learning_options()["prior_variance"], model.learning_options()["prior_variance"])


def test_unknown_labels_do_no_harm() -> None:
    """Sixty per cent of the labels: what is learned is what the graph of the labelled nodes teaches."""
    rng = np.random.default_rng(4)
    labels = rng.integers(0, 3, 300)
    pairs = np.unique(np.sort(rng.integers(0, 300, (3000, 2)), axis=1), axis=0)
    pairs = pairs[pairs[:, 0] < pairs[:, 1]]
    edges = pairs[rng.random(len(pairs)) < np.where(labels[pairs[:, 0]] == labels[pairs[:, 1]], 0.6, 0.1)]
    X = np.eye(3)[labels] + 1.5 * rng.normal(size=(300, 3))
    nodes = np.sort(rng.permutation(300)[:180])
    known, number = np.full(300, -1), np.full(300, -1)
    known[nodes], number[nodes] = labels[nodes], np.arange(180)
    among = number[edges][(number[edges] >= 0).all(axis=1)]
    whole, part = bt.GraphCRF().fit([(X, edges)], [known]), bt.GraphCRF().fit([(X[nodes], among)], [labels[nodes]])
    np.testing.assert_allclose(whole.weights_, part.weights_, atol=1e-10)
    assert whole.prior_variance_ == part.prior_variance_


# --- an intercept for chains ---


def test_an_intercept_is_a_column_of_ones_and_is_left_out_where_features_span_one(tmp_path: Path) -> None:
    X, y = words(15)
    model = bt.LinearChainCRF(prior_variance={"tokens": 0.3, "intercept": 2.0}, tolerance=1e-8).fit(X, y)
    ones = bt.LinearChainCRF(prior_variance=0.3, tolerance=1e-8, fit_intercept=False)
    scaled = [np.hstack([rows, np.full((len(rows), 1), (2.0 / 0.3) ** 0.5)]) for rows in X]  # the same prior
    ones.set_params(prior_variance={"tokens": 0.3}).fit(scaled, y)
    np.testing.assert_allclose(
        np.concatenate(model.predict_marginals(X)), np.concatenate(ones.predict_marginals(scaled)), atol=1e-5
    )
    np.testing.assert_allclose(model.intercept_, ones.state_weights_[-1] * (2.0 / 0.3) ** 0.5, atol=1e-4)
    assert model.state_weights_.shape == (24, 4)
    assert model.predict(X) == ones.predict(scaled)
    assert "intercept" in dict(model.explain(X[0], 2, n=None))
    model.save(tmp_path / "model")
    loaded = bt.LinearChainCRF.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.intercept_, model.intercept_)
    assert loaded.predict(X) == model.predict(X)
    with_ones = [np.hstack([rows, np.ones((len(rows), 1))]) for rows in X]
    for tokens in (with_ones, [[[f"w={int(3 * row[0])}", f"v={int(row[1])}"] for row in rows] for rows in X]):
        given, without = (bt.LinearChainCRF(prior_variance=1.0, fit_intercept=flag) for flag in (True, False))
        np.testing.assert_array_equal(given.fit(tokens, y).weights_, without.fit(tokens, y).weights_)
        assert (given.intercept_ == 0.0).all()
