"""GraphCRF against enumeration, logistic regression and its own promises."""

import itertools

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV

import bactrian as bt
from bactrian.camel.camel import Camel
from bactrian.learners.learn import matched_inference

TRIANGLE = [(0, 1), (1, 2), (0, 2)]


def random_graphs(n_graphs=12, n_labels=3, seed=0, n_features=2, edge_features=0, edges=None):
    """Graphs of 3 to 5 nodes in a ring, with labels that lean on features and neighbours."""
    rng = np.random.default_rng(seed)
    X, y = [], []
    for _ in range(n_graphs):
        n = int(rng.integers(3, 6))
        pairs = [(i, (i + 1) % n) for i in range(n)] if edges is None else edges
        labels = np.cumsum(rng.random(n) < 0.5) % n_labels
        rows = np.eye(n_labels)[labels] @ rng.normal(size=(n_labels, n_features)) + rng.normal(size=(n, n_features))
        graph = (rows, pairs)
        if edge_features:
            graph += (rng.normal(size=(len(pairs), edge_features)),)
        X.append(graph)
        y.append(labels)
    return X, y


def log_potentials(graph, node_weights, tables):
    """Node scores, and a table for each edge, with the intercepts written out."""
    rows = np.hstack([graph[0], np.ones((len(graph[0]), 1))])
    if len(graph) == 2:
        return rows @ node_weights, [tables] * len(graph[1])
    edge_rows = np.hstack([graph[2], np.ones((len(graph[2]), 1))])
    return rows @ node_weights, [np.tensordot(z, tables, axes=1) for z in edge_rows]


def enumerated(graph, node_weights, tables, known=None):
    """Log Z, and marginals of nodes and edges, over all joint labels."""
    scores, pairs = log_potentials(graph, node_weights, tables)
    n, k = scores.shape
    joint = np.array(list(itertools.product(range(k), repeat=n)))
    value = scores[np.arange(n), joint].sum(axis=1)
    for (i, j), table in zip(graph[1], pairs, strict=True):
        value += table[joint[:, i], joint[:, j]]
    if known is not None:
        for i, label in enumerate(known):
            value = np.where((label == -1) | (joint[:, i] == label), value, -np.inf)
    log_z = np.logaddexp.reduce(value)
    p = np.exp(value - log_z)
    nodes = np.stack([np.bincount(joint[:, i], weights=p, minlength=k) for i in range(n)])
    edges = [np.bincount(joint[:, i] * k + joint[:, j], weights=p, minlength=k * k).reshape(k, k) for i, j in graph[1]]
    return log_z, nodes, edges


@pytest.mark.parametrize("edge_features", [0, 2])
@pytest.mark.parametrize("tables", ["full", "symmetric", "diagonal", "potts", "pooled"])
def test_exact_learning_maximises_the_enumerated_likelihood(tables, edge_features):
    X, y = random_graphs(edge_features=edge_features)
    crf = bt.GraphCRF(method="exact", tables=tables, prior_variance=2.0, tolerance=1e-8).fit(X, y)
    variances = np.full(crf.weights_.size, 2.0)
    if tables == "pooled":  # by edge input: an attraction in units of 1 / sqrt(3), deviations of six pairs
        variances[crf.weight_tables()[0].size :] = np.tile([6.0] + [0.2] * 6, edge_features + 1)

    def objective(weights):
        crf_at = clone(crf)
        crf_at.__dict__.update(crf.__dict__)
        crf_at.weights_ = weights
        node_weights, (table,) = crf_at.weight_tables()
        total = weights**2 @ (0.5 / variances)
        for graph, labels in zip(X, y, strict=True):
            scores, pairs = log_potentials(graph, node_weights, table)
            total += enumerated(graph, node_weights, table)[0] - scores[np.arange(len(labels)), labels].sum()
            total -= sum(t[labels[i], labels[j]] for (i, j), t in zip(graph[1], pairs, strict=True))
        return total

    assert objective(crf.weights_) == pytest.approx(crf.solution_.objective, abs=1e-6)
    steps = 1e-5 * np.eye(crf.weights_.size)
    gradient = [(objective(crf.weights_ + s) - objective(crf.weights_ - s)) / 2e-5 for s in steps]
    np.testing.assert_allclose(gradient, 0.0, atol=1e-4)


@pytest.mark.parametrize("edge_features", [0, 2])
def test_marginals_of_nodes_and_edges_match_enumeration(edge_features):
    X, y = random_graphs(edge_features=edge_features)
    crf = bt.GraphCRF(method="exact", tables="full").fit(X, y)
    node_weights, (table,) = crf.weight_tables()
    known = [np.where(np.arange(len(labels)) == 1, labels, -1) for labels in y]
    for evidence in (None, known):
        nodes, edges = crf.predict_marginals(X, evidence, edges=True)
        assert crf.inference_method_[0] == "exact"
        for m, graph in enumerate(X):
            _, node, edge = enumerated(graph, node_weights, table, None if evidence is None else evidence[m])
            np.testing.assert_allclose(nodes[m], node, atol=1e-10)
            np.testing.assert_allclose(edges[m], edge, atol=1e-10)
    predicted = crf.predict(X, known)
    assert all(p[1] == labels[1] for p, labels in zip(predicted, y, strict=True))


def test_without_edges_it_is_logistic_regression():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(60, 3))
    labels = (rows @ rng.normal(size=(3, 4)) + rng.gumbel(size=(60, 4))).argmax(axis=1)
    parts = np.split(np.arange(60), [1, 10, 10, 35])
    X = [(rows[part], []) for part in parts]
    y = [labels[part] for part in parts]
    judge = LogisticRegression(C=2.0, fit_intercept=False, tol=1e-10, max_iter=10_000)
    judge.fit(np.hstack([rows, np.ones((60, 1))]), labels)
    for method in ("camel0", "cccp", "exact", "pseudolikelihood"):
        crf = bt.GraphCRF(method=method, prior_variance=2.0, tolerance=1e-8).fit(X, y)
        found = np.vstack(crf.predict_marginals(X))
        np.testing.assert_allclose(found, judge.predict_proba(np.hstack([rows, np.ones((60, 1))])), atol=1e-5)
        assert crf.score(X, y) == pytest.approx((found.argmax(axis=1) == labels).mean())
    assert crf.predict_marginals(X)[2].shape == (0, 4)


def test_sparse_features_give_what_dense_ones_give():
    X, y = random_graphs(edge_features=2)
    sparse = [(sp.csr_matrix(a), e, sp.coo_array(z)) for a, e, z in X]
    mixed = [graph if m % 2 else dense for m, (graph, dense) in enumerate(zip(sparse, X, strict=True))]
    dense_crf = bt.GraphCRF(method="camel0", tolerance=1e-7).fit(X, y)
    for other in (sparse, mixed):
        crf = bt.GraphCRF(method="camel0", tolerance=1e-7).fit(other, y)
        np.testing.assert_allclose(crf.weights_, dense_crf.weights_, atol=1e-4)
        np.testing.assert_allclose(
            np.vstack(crf.predict_marginals(other)), np.vstack(dense_crf.predict_marginals(X)), atol=1e-4
        )


@pytest.mark.parametrize("edge_features", [0, 2])
def test_graphs_may_come_in_an_object_array(edge_features):
    X, y = random_graphs(edge_features=edge_features)
    boxed = np.array(X, dtype=object)
    assert boxed.shape == (len(X), 3 if edge_features else 2)
    np.testing.assert_array_equal(bt.GraphCRF().fit(boxed, y).weights_, bt.GraphCRF().fit(X, y).weights_)


def test_full_tables_follow_the_direction_of_edges():
    """Reversing every edge must transpose the full table and change nothing else."""
    X, y = random_graphs()
    reversed_X = [(rows, [(j, i) for i, j in edges]) for rows, edges in X]
    ahead = bt.GraphCRF(tables="full", method="cccp", tolerance=1e-8).fit(X, y)
    back = bt.GraphCRF(tables="full", method="cccp", tolerance=1e-8).fit(reversed_X, y)
    table = ahead.weight_tables()[1][0]
    np.testing.assert_allclose(table, back.weight_tables()[1][0].T, atol=1e-4)
    assert np.abs(table - table.T).max() > 0.1


def test_labels_may_be_strings_or_any_integers():
    X, y = random_graphs()
    plain = bt.GraphCRF().fit(X, y)
    names = np.array(["zebra", "äpfel", "cat"])
    order = np.argsort(names)
    by_name = bt.GraphCRF().fit(X, [names[labels] for labels in y])
    assert by_name.classes_.tolist() == sorted(names)
    for ours, theirs in zip(plain.predict_marginals(X), by_name.predict_marginals(X), strict=True):
        np.testing.assert_allclose(ours[:, order], theirs, atol=1e-2)
    far = bt.GraphCRF().fit(X, [np.array([-7, 0, 10**12])[labels] for labels in y])
    assert far.classes_.tolist() == [-7, 0, 10**12]
    assert far.score(X, [np.array([-7, 0, 10**12])[labels] for labels in y]) == plain.score(X, y)


def test_sample_weights_count_as_repetitions():
    X, y = random_graphs(6)
    weight = [1, 2, 0, 1, 3, 1]
    repeated = [m for m, w in enumerate(weight) for _ in range(w)]
    settings = {"method": "cccp", "tolerance": 1e-8, "labels": [0, 1, 2], "prior_variance": 3.0}
    weighted = bt.GraphCRF(**settings).fit(X, y, sample_weight=weight)
    copied = bt.GraphCRF(**settings).fit([X[m] for m in repeated], [y[m] for m in repeated])
    np.testing.assert_allclose(weighted.weights_, copied.weights_, atol=1e-4)
    nodes = np.concatenate([p == t for p, t in zip(weighted.predict(X), y, strict=True)])
    expected = np.average(nodes, weights=np.repeat(weight, [len(t) for t in y]))
    assert weighted.score(X, y, weight) == pytest.approx(expected)


def test_class_weights_scale_graphs_by_their_labels():
    X, y = random_graphs(6)
    per_class = {0: 2.0, 2: 0.5}
    graph_weight = [np.mean([per_class.get(int(label), 1.0) for label in labels]) for labels in y]
    ours = bt.GraphCRF(method="cccp", tolerance=1e-8, class_weight=per_class).fit(X, y)
    theirs = bt.GraphCRF(method="cccp", tolerance=1e-8).fit(X, y, sample_weight=graph_weight)
    np.testing.assert_allclose(ours.weights_, theirs.weights_, atol=1e-4)
    with pytest.raises(ValueError, match=r"class_weight names label 7"):
        bt.GraphCRF(class_weight={7: 1.0}).fit(X, y)


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("piecewise", ("convex", {"counting_numbers": "clusters"})),
        ("camel0", ("convex", {"counting_numbers": "clusters"})),
        ("convex", ("convex", {})),
        ("trw", ("trw", {})),
        ("lbp", ("rbp", {})),
        ("exact", ("exact", {})),
        ("cccp-empirical", ("rbp", {})),
        ("pseudolikelihood", ("rbp", {})),
        ("ups", ("rbp", {})),
        (Camel(entropy="trw"), ("trw", {})),
        (Camel(fold=True), ("rbp", {})),
    ],
)
def test_matched_inference_names_the_entropy_of_the_learner(method, expected):
    assert matched_inference(method) == expected


@pytest.mark.parametrize("node_factors", ["clusters", "edges"])
@pytest.mark.parametrize("method", ["camel0", "convex", "trw", "cccp"])
def test_matched_inference_returns_the_beliefs_of_learning(method, node_factors):
    """At the optimum the beliefs of learning are those of inference with the same entropy, moments matched."""
    X, y = random_graphs(edges=TRIANGLE, n_graphs=8)
    X = [(rows[:3], edges) for rows, edges in X]
    y = [labels[:3] for labels in y]
    crf = bt.GraphCRF(
        method=method,
        node_factors=node_factors,
        tolerance=1e-8,
        inference_options={"tolerance": 1e-10},
        labels=[0, 1, 2],
    ).fit(X, y)
    nodes, edges = crf.predict_marginals(X, edges=True)
    for m, beliefs in enumerate(crf.solution_.beliefs):
        np.testing.assert_allclose(nodes[m], np.stack(beliefs[:3]), atol=1e-4)
        np.testing.assert_allclose(edges[m], np.stack(beliefs[3:]), atol=1e-4)


def test_a_solution_where_exact_inference_does_not_fit_falls_back():
    X, y = random_graphs()
    crf = bt.GraphCRF(method="exact", inference_options={"memory_budget": 1}).fit(X, y)
    close = bt.GraphCRF(method="exact").fit(X, y)
    np.testing.assert_allclose(np.vstack(crf.predict_marginals(X)), np.vstack(close.predict_marginals(X)), atol=0.1)
    crf.set_params(inference="exact")
    with pytest.raises(ValueError, match="budget"):
        crf.predict(X)


def test_warm_start_goes_on_from_the_last_weights():
    X, y = random_graphs()
    crf = bt.GraphCRF(method="camel0", tolerance=1e-6, warm_start=True).fit(X, y)
    first = crf.solution_.evaluations
    crf.fit(X, y)
    assert crf.solution_.evaluations < first / 2
    with pytest.raises(ValueError, match="which is not one of the 3 classes"):
        crf.fit(X, [labels + 1 for labels in y])
    with pytest.raises(ValueError, match="has 3 features, expected 2"):
        crf.fit([(np.zeros((2, 3)), [])], [[0, 1]])
    crf.set_params(tables="potts")
    with pytest.raises(ValueError, match="warm_start"):
        crf.fit(X, y)


@pytest.mark.parametrize("strings", [False, True])
def test_a_saved_model_predicts_the_same(tmp_path, strings):
    X, y = random_graphs(edge_features=1)
    if strings:
        y = [np.array(["ü", "b", "c"])[labels] for labels in y]
    crf = bt.GraphCRF(method=Camel(entropy="convex"), tables="full", fit_intercept=False).fit(X, y)
    crf.set_params(fit_intercept=True, tables="potts")  # what was fitted counts
    crf.save(tmp_path / "model")
    loaded = bt.GraphCRF.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.classes_, crf.classes_)
    for ours, theirs in zip(crf.predict_marginals(X), loaded.predict_marginals(X), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert loaded.solution_.status is crf.solution_.status


def test_it_is_a_well_behaved_estimator():
    X, y = random_graphs(16)
    search = GridSearchCV(bt.GraphCRF(method="camel0", labels=[0, 1, 2]), {"prior_variance": [0.1, 10.0]}, cv=2)
    search.fit(X, y)
    assert search.best_params_["prior_variance"] in (0.1, 10.0)
    assert clone(search.best_estimator_).get_params()["labels"] == [0, 1, 2]


def test_a_failed_fit_leaves_the_model_as_it_was():
    X, y = random_graphs()
    crf = bt.GraphCRF().fit(X, y)
    before = crf.predict(X)
    with pytest.raises(ValueError, match="one label per node"):
        crf.fit([(np.zeros((2, 5)), [(0, 1)])], [[0]])
    for ours, theirs in zip(before, crf.predict(X), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_single_class_is_certain():
    crf = bt.GraphCRF().fit([([[1.0], [2.0]], [(0, 1)])], [["only", "only"]])
    np.testing.assert_array_equal(crf.predict_marginals([([[1.0]], [])])[0], [[1.0]])


def test_an_edge_given_twice_counts_twice():
    X, y = random_graphs(4)
    doubled = [(rows, [*edges, *edges]) for rows, edges in X]
    crf = bt.GraphCRF(method="exact").fit(doubled, y)
    node_weights, (table,) = crf.weight_tables()
    for graph, found in zip(doubled, crf.predict_marginals(doubled), strict=True):
        np.testing.assert_allclose(found, enumerated(graph, node_weights, table)[1], atol=1e-10)


@pytest.mark.parametrize("place", [0, 2, 6])
@pytest.mark.parametrize("edge_features", [0, 2])
def test_graphs_without_edges_or_nodes_may_stand_anywhere(edge_features, place):
    X, y = random_graphs(6, edge_features=edge_features)
    lonely, nothing = ([[0.5, 1.0]], []), (np.zeros((0, 0)), [], np.zeros((0, 0)))
    mixed, labels = [*X[:place], lonely, nothing, *X[place:]], [*y[:place], [0], [], *y[place:]]
    crf, last = (bt.GraphCRF(method="exact", tolerance=1e-8, prior_variance=3.0) for _ in range(2))
    crf.fit(mixed, labels)
    last.fit([*X, lonely], [*y, [0]])
    np.testing.assert_allclose(crf.weights_, last.weights_, atol=1e-6)
    assert [len(part) for part in crf.predict(mixed)] == [len(part) for part in labels]


@pytest.mark.parametrize(
    ("X", "y", "error", "message"),
    [
        ([], [], ValueError, "X is empty"),
        ("abc", [], TypeError, "X must be a list"),
        ([np.zeros((2, 2))], [[0, 1]], TypeError, r"X\[0\] must be \(node_features, edges\)"),
        ([([[1.0], [2.0]], [(0, 2)])], [[0, 1]], ValueError, r"X\[0\]: edges\[0\] = \(0, 2\)"),
        ([([[1.0], [2.0]], [(1, 2)])], [[0, 1]], ValueError, r"X\[0\]: edges\[0\] = \(1, 2\)"),
        (
            [([[1.0], [2.0]], [(0.0, 1.0)])],
            [[0, 1]],
            TypeError,
            r"node numbers, found dtype float64: \[0\] =",
        ),
        ([([[1.0], [np.nan]], [])], [[0, 1]], ValueError, "NaN"),
        ([([[1.0]], []), ([[1.0, 2.0]], [])], [[0], [1]], ValueError, r"X\[1\]: node_features has 2 features"),
        ([([[1.0]], [])], [[0], [1]], ValueError, "one array per graph: expected 1, found 2"),
        ([([[1.0]], [])], [[0, 1]], ValueError, r"y\[0\] must have one label per node"),
        ([([[1.0]], [])], [[0.5]], TypeError, r"y\[0\]\[0\] must be a string, an integer or a boolean"),
        ([([[1.0]], []), ([[1.0]], [])], [["a"], [1]], TypeError, "y must be all .* found strings and integers"),
        ([([[1.0], [2.0]], [])], [["a", 1]], TypeError, r"y\[0\] must be all strings, all integers or all booleans"),
        ([([[1.0], [2.0]], [(0, 1)], [[1.0], [2.0]])], [[0, 1]], ValueError, "one row per edge: expected 1, found 2"),
        (
            [([[1.0], [2.0]], [(0, 1)], [[1.0]]), ([[1.0], [2.0]], [(0, 1)])],
            [[0, 1], [0, 1]],
            ValueError,
            r"X\[1\] has no edge_features",
        ),
        ([(np.zeros((0, 2)), [])], [[]], ValueError, "no nodes"),
    ],
)
def test_bad_input_is_refused_by_name(X, y, error, message):
    with pytest.raises(error, match=message):
        bt.GraphCRF().fit(X, y)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"inference": "magic"}, "inference must be one of matched"),
        ({"tables": "round"}, "must be one of full"),
        ({"node_factors": "nowhere"}, "node_factors must be"),
        ({"class_weight": [1.0]}, "class_weight must have one weight per class"),
        ({"labels": [0]}, "y holds label 1"),
        ({"method": "magic"}, "method must be one of .*, found 'magic'"),
    ],
)
def test_bad_settings_are_refused_by_name(settings, message):
    with pytest.raises(ValueError, match=message):
        bt.GraphCRF(**settings).fit([([[1.0], [2.0]], [(0, 1)])], [[0, 1]])


def test_bad_sample_weights_are_called_by_their_name():
    with pytest.raises(ValueError, match=r"sample_weight\[0\] must be finite and not negative"):
        bt.GraphCRF().fit([([[1.0], [2.0]], [(0, 1)])], [[0, 1]], sample_weight=[-1.0])


def test_unknown_labels_in_known_are_refused():
    X, y = random_graphs(2)
    crf = bt.GraphCRF(labels=[0, 1, 2]).fit(X, y)
    with pytest.raises(ValueError, match="known holds label"):
        crf.predict(X, known=[labels + 9 for labels in y])


def test_no_graphs_have_no_labels():
    """As lists of sequences do; bad arguments are refused all the same."""
    X, y = random_graphs(4)
    crf = bt.GraphCRF().fit(X, y)
    for nothing in ([], (), np.zeros(0)):
        assert crf.predict(nothing) == []
        assert crf.predict_marginals(nothing) == []
    assert crf.predict_marginals([], [], edges=True) == ([], [])
    with pytest.raises(ValueError, match="known must have one array per graph: expected 0, found 1"):
        crf.predict([], [[0]])
    with pytest.raises(TypeError, match="X must be a list of"):
        crf.predict({})
    with pytest.raises(NotFittedError):
        bt.GraphCRF().predict([])


def test_boolean_labels_come_back_as_booleans(tmp_path):
    X, y = random_graphs(6)
    y = [labels > 0 for labels in y]
    crf = bt.GraphCRF(class_weight={True: 2.0}, labels=np.array([False, True])).fit(X, y)
    as_integers = bt.GraphCRF(class_weight={1: 2.0}).fit(X, [labels.astype(int) for labels in y])
    np.testing.assert_array_equal(crf.weights_, as_integers.weights_)
    crf.save(tmp_path / "model")
    loaded = bt.GraphCRF.load(tmp_path / "model")
    assert loaded.class_weight == {True: 2.0}
    assert loaded.labels.dtype == bool
    for model in (crf, loaded):
        assert model.classes_.dtype == bool
        for ours, theirs in zip(model.predict(X), as_integers.predict(X), strict=True):
            assert ours.dtype == bool
            np.testing.assert_array_equal(ours, theirs == 1)
        assert model.score(X, y) == as_integers.score(X, [labels.astype(int) for labels in y])
    known = [np.where(np.arange(labels.size) == 0, labels, -1) for labels in y]
    for found, labels in zip(crf.predict_marginals(X, known), y, strict=True):
        assert found[0, int(labels[0])] == 1.0
    assert all(np.array_equal(*pair) for pair in zip(crf.predict(X, y), y, strict=True))
    with pytest.raises(TypeError, match=r"y must be all strings, .* found booleans and integers"):
        crf.fit(X[:2], [y[0], y[1].astype(int)])


def test_the_default_prior_goes_by_the_scale_of_features():
    rng = np.random.default_rng(3)
    features, labels = rng.normal(size=(40, 3)), rng.integers(0, 2, 40)
    edges = [(i, i + 1) for i in range(39)]
    one, small = (bt.GraphCRF().fit([(scale * features, edges)], [labels]) for scale in (1.0, 1e-4))
    assert small.prior_variance_["nodes"] == pytest.approx(1e8 * one.prior_variance_["nodes"])
    assert small.prior_variance_["edges"] == pytest.approx(one.prior_variance_["edges"])
    few = bt.GraphCRF().fit([(features[:8], edges[:7])], [[0, 1] * 4])  # too few to choose by
    square = np.square(features[:8]).sum(axis=1).mean()
    assert few.prior_variance_ == pytest.approx({"nodes": 30.0 / square, "edges": 1.0, "intercept": 10.0})
    bare = bt.GraphCRF().fit([(np.zeros((40, 0)), edges)], [labels])  # nothing but the intercept
    assert bare.prior_variance_["intercept"] == 10.0


def test_graphs_without_nodes_alone():
    graphs = [(np.array([[0.0], [1.0], [0.2]]), [(0, 1), (1, 2)])] * 4
    crf = bt.GraphCRF().fit(graphs, [[0, 1, 0]] * 4)
    empty = (np.zeros((0, 1)), np.zeros((0, 2), dtype=int))
    for alone in ([empty], [empty, (np.zeros((0, 0)), [])]):
        beside = [*alone, graphs[0]]
        for call in (crf.predict, crf.predict_marginals, crf.decode, lambda X: crf.predict_marginals(X, edges=True)[1]):
            for one, other in zip(call(alone), call(beside), strict=False):
                assert one.shape == other.shape
                assert one.dtype == other.dtype
        assert len(crf.predict(alone, known=[[]] * len(alone))) == len(alone)
        assert len(crf.decode(alone, return_result=True)[1]) == len(alone)
    with pytest.raises(ValueError, match="node_features has 3 features, expected 1"):
        crf.predict([(np.zeros((0, 3)), [])])
    for X in ([], [empty]):
        with pytest.raises(ValueError, match=r"X (is empty|has no nodes)"):
            crf.score(X, [[]] * len(X))
    with pytest.raises(ValueError, match="X has no nodes at all"):
        bt.GraphCRF().fit([empty], [[]])
