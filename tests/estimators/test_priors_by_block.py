"""``prior_variance`` of estimators: by block, and chosen by cross-validation."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression

import bactrian as bt

WORDS = [[f"w{i}" for i in np.random.default_rng(s).integers(0, 6, 5)] for s in range(12)]
TOKENS = [[[f"word={word}", "bias"] for word in words] for words in WORDS]
TAGS = [[("A", "B", "C")[int(word[1]) % 3] for word in words] for words in WORDS]


def citations(n: int = 200, k: int = 3, seed: int = 0) -> tuple[Any, Any, Any]:
    """A graph whose edges mostly join equal labels; features that say little; the labels."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, k, n)
    pairs = rng.integers(0, n, (12 * n, 2))
    pairs = pairs[pairs[:, 0] < pairs[:, 1]]
    keep = np.where(labels[pairs[:, 0]] == labels[pairs[:, 1]], 0.8, 0.05) > rng.random(len(pairs))
    return np.eye(k)[labels] + 1.5 * rng.normal(size=(n, k)), np.unique(pairs[keep], axis=0), labels


def labelled_part(features: Any, edges: Any, labels: Any, nodes: Any) -> tuple[Any, Any]:
    number = np.full(len(labels), -1)
    number[nodes] = np.arange(len(nodes))
    inside = number[edges]
    return [(features[nodes], inside[(inside >= 0).all(axis=1)])], [labels[nodes]]


def test_blocks_of_a_graph_by_scaled_features() -> None:
    """A block's variance times s^2 is its features times s; the edges have one constant feature here."""
    features, edges, labels = citations(60)
    ones = np.ones((len(edges), 1))
    options: dict[str, Any] = {"tables": "symmetric", "fit_intercept": False, "edge_intercept": False}
    options |= {"tolerance": 1e-6, "method": bt.Camel(entropy="convex")}
    ours = bt.GraphCRF(prior_variance={"nodes": 4.0, "edges": 0.25}, **options)
    ours.fit([(features, edges, ones)], [labels])
    judge = bt.GraphCRF(prior_variance=1.0, **options).fit([(2.0 * features, edges, 0.5 * ones)], [labels])
    scale = np.r_[np.full(9, 2.0), np.full(6, 0.5)]
    np.testing.assert_allclose(ours.weights_, judge.weights_ * scale, atol=1e-3)


def test_blocks_of_sequences_and_fields() -> None:
    skips = [[(0, 3)]] * len(TOKENS)
    numbers = {"tokens": 0.3, "transitions": 2.0, "skips": 0.05}
    model = bt.SkipChainCRF(skips=None, prior_variance=numbers, tolerance=1e-6)
    data = model.encode(TOKENS, TAGS, skips=skips)
    wanted = np.repeat([0.3, 2.0, 0.05], [data.n_weights - 15, 9, 6])
    np.testing.assert_array_equal(model.learning_options()["prior_variance"], wanted)
    np.testing.assert_allclose(
        model.fit(TOKENS, TAGS, skips=skips).weights_,
        bt.learn(data, "cccp", prior_variance=wanted, tolerance=1e-6).weights,
        atol=1e-8,
    )
    X = np.random.default_rng(0).integers(0, 2, (40, 3))
    for tables, n_first in (("full", 6), ("shared", 2), ("potts", 6)):
        field = bt.MarkovRandomField(tables=tables, prior_variance={"variables": None, "edges": 0.1}, method="exact")
        field.encode(X)
        variances = field.learning_options()["prior_variance"]
        assert (variances[:n_first] == np.inf).all()
        assert (variances[n_first:] == 0.1).all()


def test_numbers_reach_learning_as_they_are() -> None:
    for variance in (2.5, None):
        model = bt.LinearChainCRF(prior_variance=variance)
        model.encode(TOKENS, TAGS)
        assert model.learning_options()["prior_variance"] is variance
    pooled = bt.GraphCRF(prior_variance=None)
    features, edges, labels = citations(30)
    pooled.encode([(features, edges)], [labels])
    assert pooled.learning_options()["prior_variance"] is None


@pytest.mark.parametrize(
    ("variance", "words"),
    [
        ({"nodes": 1.0, "egdes": 2.0}, "block 'egdes'; the blocks are nodes, edges, deviations"),
        ({"nodes": -1.0}, r"prior_variance\['nodes'\] must be positive, or None for no prior, found -1.0"),
        ({"nodes": "ten"}, r"prior_variance\['nodes'\] must be positive"),
        ({"nodes": True}, r"prior_variance\['nodes'\] must be positive"),
        ("evidence", "must be 'auto', a number, None, a mapping by block or 'cv', found 'evidence'"),
        (-3.0, "must be positive"),
        ([1.0, 2.0], "one variance per weight"),
    ],
)
def test_bad_blocks(variance: Any, words: str) -> None:
    features, edges, labels = citations(30)
    model = bt.GraphCRF(prior_variance=variance)
    with pytest.raises(ValueError, match=words):
        model.fit([(features, edges)], [labels])
    assert not hasattr(model, "classes_")


def test_blocks_that_a_model_has_not() -> None:
    with pytest.raises(ValueError, match="block 'skips'; the blocks are tokens, transitions, deviations"):
        bt.LinearChainCRF(prior_variance={"skips": 1.0}).fit(TOKENS, TAGS)
    with pytest.raises(ValueError, match="'deviations', but no table is pooled"):
        bt.LinearChainCRF(prior_variance={"deviations": 1.0}).fit(TOKENS, TAGS)


def test_blocks_survive_clone_and_files(tmp_path: Any) -> None:
    features, edges, labels = citations(60)
    model = clone(bt.GraphCRF(prior_variance={"nodes": 3.0, "edges": None, "deviations": 0.2}))
    model.fit([(features, edges)], [labels])
    model.save(tmp_path / "model.safetensors")
    loaded = bt.GraphCRF.load(tmp_path / "model.safetensors")
    assert loaded.prior_variance == loaded.prior_variance_ == {"nodes": 3.0, "edges": None, "deviations": 0.2}
    np.testing.assert_array_equal(loaded.weights_, model.weights_)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("method", [bt.GraphCRF().method, "cccp", "camel0", "pseudolikelihood"], ids=str)
def test_few_labels_do_not_ruin_the_default(method: Any, seed: int) -> None:
    """Seven labels, some twenty edges among labelled nodes: edges must help, as they do with all labels known."""
    features, edges, labels = citations(700, 7, seed)
    nodes = np.random.default_rng(seed).permutation(700)[:100]
    others = np.setdiff1d(np.arange(700), nodes)
    alone = LogisticRegression(C=10.0).fit(features[nodes], labels[nodes]).score(features[others], labels[others])
    known = np.full(700, -1)
    known[nodes] = labels[nodes]
    model = bt.GraphCRF(method=method).fit(*labelled_part(features, edges, labels, nodes))
    predicted = model.predict([(features, edges)], known=[known])[0]
    assert (predicted == labels)[others].mean() > alone + 0.02


def test_real_citations_with_few_labels(real_data: Any) -> None:
    from scipy.sparse import csr_array

    file = np.load(real_data / "cora" / "cora.npz")
    features = csr_array((file["data"].astype(float), file["indices"], file["indptr"]), shape=tuple(file["shape"]))
    labels, nodes, test = file["labels"], file["train"], file["test"]
    known = np.full(len(labels), -1)
    known[nodes] = labels[nodes]
    # So few labels, with 21 edges among them, cannot choose a prior: docs/priors-and-tables.md.
    prior = {"nodes": 1.65, "edges": 10.0}
    model = bt.GraphCRF(prior_variance=prior).fit(*labelled_part(features, file["edges"], labels, nodes))
    predicted = model.predict([(features, file["edges"])], known=[known])[0]
    assert (predicted == labels)[test].mean() > 0.75  # logistic regression 0.57, a symmetric table 0.59


# --- cross-validation ---


def test_the_loss_of_folds_is_what_hands_would_compute() -> None:
    """Whole sequences are held out: every loss by fitting and predicting apart, at a tolerance that leaves no doubt."""
    model = bt.LinearChainCRF(prior_variance="cv", tolerance=1e-7).fit(TOKENS, TAGS)
    common = {variance: loss for variance, loss in model.prior_scores_ if not isinstance(variance, dict)}
    losses = list(common.values())
    assert list(common) == [0.01, 0.1, 1.0, 10.0, 100.0][: len(common)]
    assert losses[:-1] == sorted(losses[:-1], reverse=True)  # the path ends where they rise
    fold_of = np.random.default_rng(0).permutation(len(TOKENS)) % 5
    for variance in (0.1, 1.0):
        total = 0.0
        for fold in range(5):
            inside, outside = np.flatnonzero(fold_of != fold), np.flatnonzero(fold_of == fold)
            apart = bt.LinearChainCRF(prior_variance=variance, tolerance=1e-8, labels=["A", "B", "C"])
            apart.fit([TOKENS[i] for i in inside], [TAGS[i] for i in inside])
            for i in outside:
                rows = apart.predict_marginals([TOKENS[i]])[0]
                total -= sum(np.log(row["ABC".index(tag)]) for row, tag in zip(rows, TAGS[i], strict=True))
        assert common[variance] == pytest.approx(total / sum(map(len, TOKENS)), abs=1e-3)


def test_what_is_chosen_is_best_and_fits_as_if_it_had_been_given() -> None:
    graphs = [citations(40, seed=seed) for seed in range(4)]
    X, y = [(features, edges) for features, edges, _ in graphs], [labels for *_, labels in graphs]
    model = bt.GraphCRF(prior_variance="cv").fit(X, y)
    losses = [loss for _, loss in model.prior_scores_]
    assert model.prior_variance_ == model.prior_scores_[int(np.argmin(losses))][0]
    given = bt.GraphCRF(prior_variance=model.prior_variance_).fit(X, y)
    np.testing.assert_array_equal(given.weights_, model.weights_)
    again = clone(model).fit(X, y)
    assert again.prior_scores_ == model.prior_scores_


def test_one_graph_is_divided_by_nodes_whose_neighbours_are_known() -> None:
    """Pure noise beside one useful feature: a strong prior must be chosen, and it must pay."""
    rng = np.random.default_rng(0)
    features, edges, labels = citations(400)
    noisy = np.hstack([features, rng.normal(size=(400, 60))])
    nodes = rng.permutation(400)[:80]
    X, y = labelled_part(noisy, edges, labels, nodes)
    known = np.full(400, -1)
    known[nodes] = labels[nodes]
    found = {}
    for variance in (10.0, "cv"):
        model = bt.GraphCRF(prior_variance=variance).fit(X, y)
        predicted = model.predict([(noisy, edges)], known=[known])[0]
        found[variance] = (predicted == labels)[known < 0].mean()
    nodes_chosen = model.prior_variance_["nodes"] if isinstance(model.prior_variance_, dict) else model.prior_variance_
    assert nodes_chosen <= 1.0
    assert found["cv"] > found[10.0]


def test_fields_and_files(tmp_path: Any) -> None:
    rng = np.random.default_rng(1)
    X = rng.integers(0, 2, (30, 6))  # independent: a strong prior on edges is best
    field = bt.MarkovRandomField(prior_variance="cv", method="exact", tolerance=1e-4).fit(X)
    chosen = field.prior_variance_
    assert (chosen["edges"] if isinstance(chosen, dict) else chosen) <= 0.1
    field.save(tmp_path / "field")
    loaded = bt.MarkovRandomField.load(tmp_path / "field")
    assert loaded.prior_variance == "cv"
    assert loaded.prior_variance_ == chosen
    assert loaded.prior_scores_ == field.prior_scores_


@pytest.mark.parametrize("unknown", [0.0, 0.2])
def test_cross_validation_of_a_field_scores_states_whose_neighbours_are_known(unknown: float) -> None:
    rng = np.random.default_rng(5)
    X = np.cumsum(rng.random((120, 4)) < 0.2, axis=1) % 2  # neighbours agree mostly
    X[rng.random(X.shape) < unknown] = -1
    chain = [(0, 1), (1, 2), (2, 3)]
    field = bt.MarkovRandomField(chain, prior_variance="cv", method="exact", cardinalities=2, tolerance=1e-9).fit(X)
    assert len(field.prior_scores_) >= 3
    data, fold_of = field.encode(X), np.random.default_rng(field.seed).permutation(120) % 5
    for variance, mean in field.prior_scores_[:3]:
        losses = []
        for fold in range(5):
            train = bt.Samples(data.model, X[fold_of != fold])
            weights = bt.learn(train, "exact", prior_variance=variance, tolerance=1e-8).weights
            for row, v in itertools.product(X[fold_of == fold], range(4)):
                around = [u for u in (v - 1, v + 1) if 0 <= u < 4]
                if row[v] >= 0 and (row[around] >= 0).all():
                    beliefs = bt.infer(data.model, weights, "exact", evidence={u: int(row[u]) for u in around})
                    losses.append(-np.log(beliefs.variables[v][row[v]]))
        assert np.mean(losses) == pytest.approx(mean, rel=1e-6)
    with pytest.raises(ValueError, match="neighbours are known, and there are none"):
        bt.MarkovRandomField(chain, prior_variance="cv", cardinalities=2).fit([[0, -1, 1, -1]] * 4)


def test_what_cannot_be_divided_is_refused() -> None:
    with pytest.raises(ValueError, match="at least two sequences; found one of 5 nodes"):
        bt.LinearChainCRF(prior_variance="cv").fit(TOKENS[:1], TAGS[:1])
    with pytest.raises(ValueError, match="at least two graphs, or one of at least 10 nodes; found one of 2 nodes"):
        bt.GraphCRF(prior_variance="cv").fit([([[0.0], [1.0]], [(0, 1)])], [[0, 1]])
    with pytest.raises(ValueError, match="at least two samples"):
        bt.MarkovRandomField(prior_variance="cv").fit([[0, 1]])
    model = bt.LinearChainCRF(prior_variance="cv")
    model.encode(TOKENS, TAGS)
    with pytest.raises(ValueError, match="call choose_prior"):
        model.learning_options()


def test_time_limits_hold() -> None:
    features, edges, labels = citations(60)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = bt.GraphCRF(prior_variance="cv", max_seconds=0.0).fit([(features, edges)] * 3, [labels] * 3)
    assert len(model.prior_scores_) == 1


@pytest.mark.parametrize("edge_features", [False, True])
def test_subsets_of_graphs(edge_features: bool) -> None:
    """Learning from a subset is learning from graphs cut by hand."""
    rng = np.random.default_rng(5)
    features, edges, labels = citations(40)
    inputs = rng.normal(size=(len(edges), 2)) if edge_features else None
    types = rng.integers(0, 2, len(edges))
    options: dict[str, Any] = {"n_labels": 3, "tables": ("pooled", "full")}
    data = bt.GraphData(
        features, edges, labels=labels, edge_types=types, edge_inputs=inputs, node_counts=[40], **options
    )
    chosen = rng.random(40) < 0.6
    number = np.cumsum(chosen) - 1
    inside = chosen[edges].all(axis=1)
    by_hand = bt.GraphData(
        features[chosen],
        number[edges[inside]],
        labels=labels[chosen],
        edge_types=types[inside],
        edge_inputs=None if inputs is None else inputs[inside],
        **options,
    )
    one, other = (bt.learn(part, "camel0", tolerance=1e-6) for part in (data.subset(chosen), by_hand))
    np.testing.assert_array_equal(one.weights, other.weights)


# --- in any unit ---


def test_the_default_prior_does_not_depend_on_the_unit_of_features() -> None:
    features, edges, labels = citations(40)
    features = np.asarray(features.todense() if hasattr(features, "todense") else features, dtype=float)
    metres = bt.GraphCRF(fit_intercept=False, tolerance=1e-7).fit([(features, edges)], [labels])
    millimetres = bt.GraphCRF(fit_intercept=False, tolerance=1e-7).fit([(1000.0 * features, edges)], [labels])
    assert metres.prior_variance_["nodes"] == pytest.approx(1e6 * millimetres.prior_variance_["nodes"])
    found = [
        model.predict_marginals([(unit * features, edges)])[0] for model, unit in ((metres, 1.0), (millimetres, 1000.0))
    ]
    np.testing.assert_allclose(found[0], found[1], atol=1e-4)


def test_the_moment_gap_of_many_labels_is_what_they_can_afford() -> None:
    """The objective is within 0.001 per label of its least, though the gap may be many times the tolerance."""
    features, edges, labels = citations(200)
    quick = bt.GraphCRF(prior_variance=2.0, tables="potts").fit([(features, edges)], [labels])
    gap = quick.learning_options()["gap_tolerance"]
    assert gap == pytest.approx(1e-3 * np.sqrt(2_000.0 * 200 / (2.0 * quick.weights_.size)))
    exact = bt.GraphCRF(prior_variance=2.0, tables="potts", tolerance=1e-8).fit([(features, edges)], [labels])
    assert quick.solution_.moment_gap <= gap
    assert quick.solution_.objective <= exact.solution_.objective + 0.001 * 200
