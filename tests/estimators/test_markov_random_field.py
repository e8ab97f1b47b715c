"""MarkovRandomField against enumeration, and its manners as a scikit-learn estimator."""

import itertools
import re

import numpy as np
import pytest
import scipy.sparse as sp
from oracle import (
    DenseModel,
    Observed,
    joint_distribution,
    joint_scores,
    joint_states,
    log_partition,
    maximum_likelihood,
    most_probable,
    variable_marginals,
)
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV

import bactrian as bt
from bactrian.estimators.pairwise import check_tables_fit, incomplete_rows
from bactrian.frames import Variables
from bactrian.inference.draw import draw_by_gibbs
from bench_holes import simulated

EDGES = [(0, 1), (2, 1), (0, 2), (2, 3)]


def coupled_samples(seed=0, rows=150, cardinalities=(2, 3, 2, 3)):
    """Samples in which neighbours tend to agree, every state of every variable among them."""
    rng = np.random.default_rng(seed)
    X = rng.integers(0, cardinalities, size=(rows, len(cardinalities)))
    follow = rng.random(X.shape[0]) < 0.5
    X[follow, 1] = X[follow, 0]
    X[~follow, 3] = X[~follow, 2]
    X[:3] = np.minimum(np.arange(3)[:, None], np.array(cardinalities) - 1)
    return X


def dense(field):
    """The same model for the oracle, its features rebuilt from the meaning of ``tables``."""
    sizes = field.cardinalities_.tolist()
    scopes = [(v,) for v in range(len(sizes))] + [tuple(e) for e in field.edges_.tolist()]
    n_weights = field.weights_.size
    features = []
    column = 0
    for scope in scopes:
        shape = tuple(sizes[v] for v in scope)
        states = int(np.prod(shape))
        table = np.zeros((states, n_weights))
        if field.tables == "potts" and len(scope) == 2:
            table[np.eye(*shape).ravel() == 1, -1] = 1
        else:
            if field.tables == "shared":
                column = 0 if len(scope) == 1 else sizes[0]
            table[:, column : column + states] = np.eye(states)
            column += states
        features.append(table)
    return DenseModel(sizes, scopes, features)


@pytest.fixture(scope="module")
def fields():
    X = coupled_samples()
    return {
        "full": bt.MarkovRandomField(EDGES, prior_variance=1.0).fit(X),
        "shared": bt.MarkovRandomField(tables="shared", prior_variance=1.0).fit(X),
        "potts": bt.MarkovRandomField("grid", shape=(2, 2), tables="potts", prior_variance=1.0).fit(X),
    }


@pytest.mark.parametrize("tables", ["full", "shared", "potts"])
def test_probabilities_equal_enumeration(fields, tables):
    field = fields[tables]
    model, weights = dense(field), field.weights_
    everything = joint_states(model.cardinalities)
    expected = joint_scores(model, weights) - log_partition(model, weights)
    assert field.inference_method_ == "exact"
    np.testing.assert_allclose(field.log_partition_, log_partition(model, weights), rtol=1e-10)
    np.testing.assert_allclose(field.score_samples(everything), expected, atol=1e-9)
    np.testing.assert_allclose(np.exp(field.score_samples(everything)).sum(), 1.0)
    for found, marginal in zip(field.marginals(), variable_marginals(model, weights), strict=True):
        np.testing.assert_allclose(found, marginal, atol=1e-9)
    evidence = {3: 1, 0: 0}
    conditional = field.conditional(evidence)
    exact = variable_marginals(model, weights, evidence)
    assert sorted(conditional) == [1, 2]
    for v, found in conditional.items():
        np.testing.assert_allclose(found, exact[v], atol=1e-9)
    np.testing.assert_allclose(field.marginals(evidence)[3], np.eye(model.cardinalities[3])[1])


@pytest.mark.parametrize("tables", ["full", "shared", "potts"])
def test_exact_learner_equals_maximum_likelihood(fields, tables):
    X = coupled_samples()
    field = clone(fields[tables]).set_params(method="exact", tolerance=1e-9).fit(X)
    assert field.solution_.converged
    best = maximum_likelihood([Observed(dense(field), X)], prior_variance=1.0)
    np.testing.assert_allclose(field.weights_, best, atol=1e-5)


def test_potentials_are_the_weights_as_tables(fields):
    variables, pairs = fields["full"].log_potentials()
    assert [table.shape for table in variables] == [(2,), (3,), (2,), (3,)]
    assert [table.shape for table in pairs] == [(2, 3), (2, 3), (2, 2), (2, 3)]
    np.testing.assert_array_equal(np.concatenate([t.ravel() for t in variables + pairs]), fields["full"].weights_)
    variables, pairs = fields["potts"].log_potentials()
    assert pairs[0][0, 0] == pairs[1][1, 1] == fields["potts"].weights_[-1]
    assert pairs[0][0, 1] == 0.0


@pytest.mark.parametrize("method", ["piecewise", "camel0", "lbp", "trw", "pseudolikelihood", bt.Camel(fold=True)])
def test_any_learner(method):
    X = coupled_samples()
    field = bt.MarkovRandomField(EDGES, method=method, tolerance=1e-4).fit(X)
    independent = bt.MarkovRandomField([]).fit(X)
    assert field.score(X) > independent.score(X)


# --- sampling ---


def chi_square(draws, model, weights):
    """Pearson's statistic per joint state: about 1 for draws from the model."""
    joint = joint_distribution(model, weights)
    index = np.ravel_multi_index(tuple(draws.T), model.cardinalities)
    counts = np.bincount(index, minlength=joint.size)
    expected = joint * len(draws)
    return float(((counts - expected) ** 2 / expected).sum() / (joint.size - 1))


@pytest.mark.parametrize("tables", ["full", "shared", "potts"])
def test_exact_draws_have_the_right_frequencies(fields, tables):
    field = fields[tables]
    draws = field.sample(20_000, seed=3)
    assert draws.shape == (20_000, 4)
    assert draws.dtype == np.int64
    model = dense(field)
    spread = np.sqrt(2.0 / (np.prod(model.cardinalities) - 1))
    assert abs(chi_square(draws, model, field.weights_) - 1.0) < 5 * spread


def test_gibbs_draws_have_the_right_frequencies(fields):
    field = fields["full"]
    draws = draw_by_gibbs(field.model_, field.weights_, 10_000, seed=1)
    assert chi_square(draws, dense(field), field.weights_) < 2.0  # dependent draws spread a little more


def test_sampling_falls_back_on_gibbs(fields):
    field = clone(fields["full"]).set_params(memory_budget=8).fit(coupled_samples())
    assert field.inference_method_ == "rbp"
    draws = field.sample(50)
    np.testing.assert_array_equal(draws, draw_by_gibbs(field.model_, field.weights_, 50))
    assert np.abs(field.marginals()[0] - fields["full"].marginals()[0]).max() < 0.05
    assert abs(field.log_partition_ - fields["full"].log_partition_) < 0.1


def test_draws_depend_on_the_seed_alone(fields):
    field = fields["full"]
    np.testing.assert_array_equal(field.sample(20), field.sample(20, seed=field.seed))
    assert (field.sample(20, seed=1) != field.sample(20, seed=2)).any()


def test_draws_of_unconnected_variables():
    X = coupled_samples()
    field = bt.MarkovRandomField([(0, 1)], prior_variance=1.0).fit(X)
    assert chi_square(field.sample(20_000), dense(field), field.weights_) < 2.0


def test_draws_from_very_unequal_weights():
    field = bt.MarkovRandomField([(0, 1), (1, 2), (0, 2)], cardinalities=2).fit([[0, 0, 0], [1, 1, 1]])
    field.weights_ = np.array([0.0] * 6 + [400.0, 0.0, 0.0, 400.0] * 3)
    draws = field.sample(200)
    assert (draws == draws[:, :1]).all()
    assert 60 < draws[:, 0].sum() < 140


# --- completion ---


def test_missing_states_are_filled_in(fields):
    field = fields["full"]
    model = dense(field)
    X = coupled_samples(seed=1, rows=30)
    rng = np.random.default_rng(2)
    holes = np.where(rng.random(X.shape) < 0.4, -1, X)
    holes[0], holes[1] = -1, X[1]
    before = holes.copy()
    completed, marginals = field.predict(holes), field.predict_marginals(holes)
    np.testing.assert_array_equal(holes, before)
    for m, row in enumerate(holes):
        evidence = {v: int(s) for v, s in enumerate(row) if s >= 0}
        np.testing.assert_array_equal(completed[m], most_probable(model, field.weights_, evidence))
        for v, exact in enumerate(variable_marginals(model, field.weights_, evidence)):
            np.testing.assert_allclose(marginals[v][m], exact, atol=1e-9)


@pytest.mark.parametrize("n_clusters", [1, 30_000, 10**9])
def test_incomplete_rows_come_in_groups_that_cover_them(n_clusters):
    states = coupled_samples(seed=1, rows=30)
    states[::2, [0, 3]] = -1
    groups = incomplete_rows(states, n_clusters)
    assert sorted(np.concatenate([rows for rows, _, _ in groups]).tolist()) == list(range(0, 30, 2))
    assert (len(groups) == 1) is (n_clusters == 1)
    for rows, evidence, which in groups:
        assert len(evidence) <= max(1, 100_000 // n_clusters)
        seen = [{v: s for v, s in enumerate(row) if s >= 0} for row in states[rows].tolist()]
        assert [evidence[k] for k in which] == seen


def test_trees_are_exact_whatever_the_budget():
    X = coupled_samples()
    tree = bt.MarkovRandomField([(0, 1), (1, 2)], memory_budget=0).fit(X)
    assert tree.inference_method_ == "exact"
    assert tree.predict([[0, -1, -1, 0]]).shape == (1, 4)
    assert tree.sample(3).shape == (3, 4)


# --- learning: weights of samples, warm start ---


def test_weighted_samples_count_as_repeated_ones():
    X = coupled_samples(rows=40)
    weight = np.random.default_rng(0).integers(0, 4, size=40)
    options = {"cardinalities": [2, 3, 2, 3], "method": "exact", "tolerance": 1e-9, "prior_variance": 10.0}
    weighted = bt.MarkovRandomField(EDGES, **options).fit(X, sample_weight=weight)
    repeated = bt.MarkovRandomField(EDGES, **options).fit(np.repeat(X, weight, axis=0))
    np.testing.assert_allclose(weighted.weights_, repeated.weights_, atol=1e-5)
    expected = repeated.score(np.repeat(X, weight, axis=0))
    np.testing.assert_allclose(weighted.score(X, sample_weight=weight), expected, atol=1e-6)


def test_warm_start_goes_on_from_the_last_weights():
    X = coupled_samples()
    cold = bt.MarkovRandomField(EDGES, method="exact").fit(X)
    warm = clone(cold).set_params(warm_start=True).fit(X)
    warm.fit(X)
    assert warm.solution_.evaluations < cold.solution_.evaluations
    np.testing.assert_allclose(warm.weights_, cold.weights_, atol=1e-4)


def test_warm_start_keeps_states_and_refuses_another_structure():
    X = coupled_samples()
    field = bt.MarkovRandomField(EDGES, warm_start=True).fit(X)
    field.fit(X[:, :] * 0)
    assert field.cardinalities_.tolist() == [2, 3, 2, 3]
    for change in ({"edges": EDGES[:2]}, {"tables": "potts"}, {"cardinalities": 4}, {"node_factors": "edges"}):
        with pytest.raises(ValueError, match="warm_start: edges, tables, node_factors or the numbers of states"):
            clone_fitted(field).set_params(**change).fit(X)


def clone_fitted(field):
    copy = clone(field)
    copy.__dict__.update(field.__dict__)
    return copy


def test_stopping_short_is_a_warning():
    with pytest.warns(bt.ConvergenceWarning, match="iteration limit"):
        field = bt.MarkovRandomField(EDGES, method="exact", max_iterations=1).fit(coupled_samples())
    assert field.solution_.status is bt.Status.ITERATION_LIMIT


# --- scikit-learn ---


def test_parameters_and_clone():
    field = bt.MarkovRandomField("grid", shape=(2, 2), tables="potts", method=bt.Camel(fold=True), seed=3)
    assert field.get_params()["shape"] == (2, 2)
    copy = clone(field)
    assert copy is not field
    assert copy.get_params() == field.get_params()
    assert not hasattr(copy, "weights_")
    assert repr(bt.MarkovRandomField("grid", shape=(2, 2))) == "MarkovRandomField(edges='grid', shape=(2, 2))"
    assert clone(bt.MarkovRandomField(np.array(EDGES))).edges.shape == (4, 2)


def test_grid_search():
    X = coupled_samples(cardinalities=(2, 2, 2, 2))
    choices = {"prior_variance": [0.01, 1.0], "tables": ["full", "potts"]}
    search = GridSearchCV(bt.MarkovRandomField(EDGES, cardinalities=2, tolerance=1e-4), choices, cv=3)
    search.fit(X)
    assert search.best_params_ == {"prior_variance": 1.0, "tables": "full"}
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert search.predict([[0, -1, 0, 0]]).shape == (1, 4)


def test_nothing_given_is_changed():
    X, edges, cardinalities = coupled_samples(), np.array(EDGES), np.array([2, 3, 2, 3])
    weight = np.ones(len(X))
    field = bt.MarkovRandomField(edges, cardinalities=cardinalities)
    before = field.get_params()
    for array in (X, edges, cardinalities, weight):
        array.flags.writeable = False
    field.fit(X, sample_weight=weight)
    assert all(field.get_params()[name] is value for name, value in before.items())
    field.edges_[0, 0] = 3
    assert edges[0, 0] == 0


def test_same_data_same_weights():
    X = coupled_samples()
    one, two = (bt.MarkovRandomField(EDGES, n_threads=n).fit(X) for n in (1, 2))
    np.testing.assert_array_equal(one.weights_, two.weights_)
    np.testing.assert_array_equal(one.fit(X).weights_, two.weights_)


def test_unfitted():
    field = bt.MarkovRandomField()
    for call in (
        lambda: field.score([[0]]),
        lambda: field.sample(),
        lambda: field.marginals(),
        lambda: field.predict([[0]]),
        lambda: field.predict_marginals([[0]]),
        lambda: field.conditional({}),
        lambda: field.log_potentials(),
        lambda: field.save("nowhere"),
    ):
        with pytest.raises(NotFittedError):
            call()
    assert not hasattr(field, "inference_method_")


class Frame:
    """As much of a data frame as the estimator looks at."""

    def __init__(self, values, columns):
        self.values, self.columns = values, columns

    def __array__(self, dtype=None, copy=None):
        return np.array(self.values, dtype=dtype)


def test_feature_names():
    X = coupled_samples()
    field = bt.MarkovRandomField(EDGES).fit(Frame(X, ["a", "b", "c", "d"]))
    assert field.feature_names_in_.tolist() == ["a", "b", "c", "d"]
    assert field.n_features_in_ == 4
    turned = Frame(X[:, [2, 0, 1, 3]], ["c", "a", "b", "d"])
    assert field.score(turned) == field.score(Frame(X, ["a", "b", "c", "d"]))
    with pytest.raises(ValueError, match="X has no column 'd', which fit had"):
        field.score(Frame(X[:, :3], ["a", "b", "c"]))
    assert not hasattr(field.fit(X), "feature_names_in_")


# --- missing cells ---


def test_cells_may_be_missing_in_every_form():
    X = [[0, 1, 0], [1, -1, 1], [-1, 0, 0], [1, 1, 1], [0, 0, -1]]
    with_nan = np.where(np.array(X) < 0, np.nan, X)
    with_none = [[None if state < 0 else state for state in row] for row in X]
    fields = [bt.MarkovRandomField(method="exact", prior_variance=10.0).fit(form) for form in (X, with_nan, with_none)]
    for field in fields[1:]:
        np.testing.assert_array_equal(field.weights_, fields[0].weights_)
    direct = bt.learn(bt.Samples(fields[0].model_, X), "exact")
    np.testing.assert_allclose(fields[0].weights_, direct.weights, atol=1e-8)
    np.testing.assert_array_equal(fields[0].predict(with_nan), fields[0].predict(X))


@pytest.mark.slow
@pytest.mark.parametrize("at_random", [False, True])
def test_holes_cost_less_than_twice_the_error(at_random):
    """Over 100 simulations; see benchmarks/bench_holes.py."""
    found = {name: errors.mean() for name, errors in simulated(100, 1000, at_random).items()}
    assert found["holes"] < 2.0 * found["complete data"]
    assert found["holes"] < 0.8 * min(found["rows dropped"], found["mode filled in"])


def test_holes_are_better_left_than_filled():
    found = {name: errors.mean() for name, errors in simulated(4, 1000, True).items()}
    assert found["holes"] < 0.8 * min(found["rows dropped"], found["mode filled in"])


# --- bad input ---


@pytest.mark.parametrize(
    ("X", "error", "message"),
    [
        ([[0.0, 1.0]], TypeError, "X must hold integer states, found dtype float64"),
        ([[0, -1]], ValueError, r"X\[:, 1\] has no observed state"),
        ([[0, -2]], ValueError, r"X\[0, 1\] = -2 is not a state"),
        ([[0.5, np.nan]], TypeError, r"X\[0, 0\] = 0.5 is a measurement"),
        ([0, 1], ValueError, "X must have shape"),
        ([[0, 1], [0]], ValueError, "rows have different lengths"),
        (np.zeros((0, 2), dtype=int), ValueError, "at least one sample"),
        (np.zeros((2, 0), dtype=int), ValueError, "at least one sample and one variable"),
        (None, TypeError, r"X must be an array \(n_samples, n_variables\) of integer states, found a NoneType"),
        ("0 1", TypeError, "integer states, found a str"),
        ({"a": [0, 1]}, TypeError, "integer states, found a dict"),
        (sp.csr_array(np.eye(2, dtype=int)), TypeError, r"found a sparse csr_array; give X.toarray\(\)"),
        ([[0, 10**9], [1, 2]], ValueError, "variable 1 would have 1000000001 states, .* the data holds 2 of them"),
        ([[0, 2**63 - 1], [1, 2]], ValueError, "variable 1 would have 9223372036854775808 states"),
        (np.array([[0, 2**64 - 1]], dtype=np.uint64), ValueError, "X holds 18446744073709551615, which is not a state"),
    ],
)
def test_bad_training_data(X, error, message):
    with pytest.raises(error, match=message):
        bt.MarkovRandomField().fit(X)


@pytest.mark.parametrize(
    ("X", "error", "message"),
    [
        ([[0, 0, 0]], ValueError, "X has 3 features, but MarkovRandomField is expecting 4"),
        ([[0, -2, 0, 0]], ValueError, r"X\[0, 1\] = -2 is not a state of variable 1; its states are 0 to 2"),
        ([[0, 0, 2, 0]], ValueError, r"X\[0, 2\] = 2 is not a state of variable 2; its states are 0 to 1"),
        ([[0.5, 0, 0, 0]], TypeError, "X must hold integer states"),
    ],
)
def test_bad_data_to_predict(fields, X, error, message):
    for method in ("predict", "predict_marginals", "score_samples"):
        with pytest.raises(error, match=message):
            getattr(fields["full"], method)(X)


def test_scores_sum_over_missing_cells(fields):
    field = fields["full"]
    every = joint_states(field.cardinalities_)
    chances = np.exp(field.score_samples(every))
    rows = [[-1, 0, -1, 1], [1, -1, 0, 0], [-1, -1, -1, -1], [0, 0, 1, 1], [-1, 0, -1, 1]]
    agree = [[(np.array(row) < 0) | (np.array(row) == state) for state in every] for row in rows]
    expected = [np.log(chances[np.all(fits, axis=1)].sum()) for fits in agree]
    np.testing.assert_allclose(field.score_samples(rows), expected, atol=1e-9)
    assert field.score(rows, sample_weight=[1, 2, 0, 1, 3]) == pytest.approx(
        np.average(expected, weights=[1, 2, 0, 1, 3])
    )


def test_rows_that_cannot_be_score_minus_infinity():
    margins = [bt.Marginal(("a", "b"), [[1, 2], [0, 0]]), bt.Marginal(("b", "c"), [[1, 0], [1, 1]])]
    field = bt.MarkovRandomField().fit_marginals(margins)
    rows = [[0, -1, 0], [1, -1, 0], [1, -1, -1], [-1, -1, -1], [-1, 0, 1], [0, 0, 1]]
    expected = [np.log(2 / 3), -np.inf, -np.inf, 0.0, -np.inf, -np.inf]
    np.testing.assert_allclose(field.score_samples(rows), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"edges": "star"}, ValueError, "edges must be 'auto', 'select', 'tree', 'complete', 'grid' or pairs"),
        ({"edges": "grid"}, ValueError, "shape must be"),
        ({"edges": "grid", "shape": (3, 1)}, ValueError, r"shape must be \(height, width\)"),
        ({"edges": [(0, 4)]}, ValueError, r"edges\[0\] = \(0, 4\) must join two different variables from 0 to 3"),
        ({"edges": [(0, 1), (2, 2)]}, ValueError, r"edges\[1\] = \(2, 2\)"),
        ({"edges": [(0, 1), (1, 0)]}, ValueError, "more than once"),
        ({"edges": [(0, 1, 2)]}, ValueError, r"edges must have shape \(n_edges, 2\)"),
        ({"edges": [(0.0, 1.0)]}, TypeError, "edges must hold integer"),
        ({"tables": "some"}, ValueError, "tables must be one of"),
        ({"tables": "shared", "cardinalities": [2, 3, 2, 3]}, ValueError, "equally many states"),
        ({"cardinalities": [2, 3]}, ValueError, "cardinalities must have one entry per variable"),
        ({"cardinalities": 2}, ValueError, "X.* is not a state of variable"),
        ({"cardinalities": 2.5}, TypeError, "cardinalities must be integers"),
        ({"cardinalities": [2, 10**9, 10**9, 3]}, ValueError, "variable 1 has 1000000000 states, the most of all"),
        ({"cardinalities": 10**18, "tables": "potts"}, ValueError, "variable 0 has 1000000000000000000 states"),
        ({"cardinalities": 10**10, "tables": "shared"}, ValueError, r"this machine has .* GiB.* leave it out"),
        ({"node_factors": "first-edge"}, ValueError, "node_factors must be one of clusters, edges, found"),
        ({"method": "guess"}, ValueError, "method must be one of .*, found 'guess'"),
        ({"inference": "guess"}, ValueError, "inference must be one of"),
        ({"prior_variance": -1.0}, ValueError, "prior_variance"),
    ],
)
def test_bad_parameters(options, error, message):
    with pytest.raises(error, match=message):
        bt.MarkovRandomField(**options).fit(coupled_samples())


def test_bad_arguments(fields):
    field = fields["full"]
    with pytest.raises(ValueError, match="n_samples must be an integer of at least 1"):
        field.sample(0)
    with pytest.raises(ValueError, match="seed must be at least 0, found -1"):
        field.sample(2, seed=-1)
    with pytest.raises(ValueError, match="names variable 9"):
        field.conditional({9: 0})
    with pytest.raises(ValueError, match="has no log-partition"):
        _ = clone(field).set_params(inference="gibbs", memory_budget=8).fit(coupled_samples()).log_partition_


def test_degenerate_shapes():
    single = bt.MarkovRandomField().fit([[0], [1], [1]])
    np.testing.assert_allclose(np.exp(single.score_samples([[0], [1]])).sum(), 1.0)
    assert single.predict([[-1]]).tolist() == [[1]]
    constant = bt.MarkovRandomField().fit([[0, 1], [0, 0]])
    assert constant.sample(4)[:, 0].tolist() == [0] * 4
    assert constant.predict([[-1, -1]]).shape == (1, 2)


# --- sizes ---


def test_an_identifier_is_refused_by_its_name():
    table = Frame(np.array([[0, 7_000_123_456], [1, 7_000_999_999]]), ["sold", "customer"])
    with pytest.raises(ValueError, match=r"variable 1 \('customer'\) would have 7001000000 states.* np.unique"):
        bt.MarkovRandomField().fit(table)


def test_many_states_are_learned_where_their_tables_fit():
    X = np.array([[0, 50_000], [1, 0], [1, 3]])
    field = bt.MarkovRandomField(method="piecewise", tolerance=1e-3).fit(X)
    assert field.cardinalities_.tolist() == [2, 50_001]
    given = bt.MarkovRandomField(edges=[], method="piecewise", cardinalities=[2, 1_500_000], tolerance=1e-3).fit(X)
    assert given.weights_.size == 1_500_002


@pytest.mark.parametrize("tables", ["full", "shared", "potts"])
def test_tables_are_measured_against_memory(tables):
    """100 x 100 pairs on two edges: 20,300 entries of 80 bytes, and their weights of 200."""
    variables, edges = Variables.numbered(np.array([100, 100, 100])), np.array([[0, 1], [1, 2]])
    weights = {"full": 20_300, "shared": 10_100, "potts": 301}[tables]
    needed = 80 * 20_300 + 200 * weights
    check_tables_fit(tables, variables, edges, needed)
    with pytest.raises(ValueError, match="3 variables and 2 edges have 20300 entries"):
        check_tables_fit(tables, variables, edges, needed - 1)


# --- where the variables' tables sit ---


@pytest.mark.parametrize("tables", ["full", "shared", "potts"])
def test_absorbed_tables_give_the_same_distribution(tables):
    """An isolated variable among them, and edges of variables with different degrees."""
    sizes = (3, 3, 3, 3, 3) if tables == "shared" else (2, 3, 2, 3, 2)
    X = coupled_samples(cardinalities=sizes)
    options = {"edges": EDGES, "tables": tables, "cardinalities": sizes, "method": "exact", "tolerance": 1e-9}
    own = bt.MarkovRandomField(**options).fit(X)
    absorbed = bt.MarkovRandomField(node_factors="edges", **options).fit(X)
    assert absorbed.model_.graph.clusters[: 1 + len(EDGES)] == ((4,), *EDGES)
    np.testing.assert_allclose(absorbed.weights_, own.weights_, atol=1e-6)
    model = dense(absorbed)
    expected = joint_distribution(model, absorbed.weights_)
    np.testing.assert_allclose(np.exp(absorbed.score_samples(joint_states(sizes))), np.ravel(expected), atol=1e-10)
    found = bt.infer(absorbed.model_, absorbed.weights_, "exact")
    np.testing.assert_allclose(found.log_partition, log_partition(model, absorbed.weights_), rtol=1e-12)


@pytest.mark.parametrize("method", ["piecewise", "camel0"])
@pytest.mark.parametrize("node_factors", ["clusters", "edges"])
def test_tables_sit_where_those_of_graphs_do(method, node_factors):
    """Every sample as a graph of its own, with no input but a constant."""
    X = coupled_samples(rows=12, cardinalities=(3, 3, 3, 3))
    field = bt.MarkovRandomField(
        EDGES, tables="shared", method=method, prior_variance=1.0, tolerance=1e-9, node_factors=node_factors
    ).fit(X)
    edges = np.concatenate([np.array(EDGES) + 4 * m for m in range(12)])
    graphs = bt.GraphData(
        np.ones((48, 1)), edges, n_labels=3, labels=X.ravel(), tables="full", node_counts=[4] * 12,
        node_factors=node_factors,
    )  # fmt: skip
    expected = bt.learn(graphs, method, prior_variance=1.0, tolerance=1e-9)
    np.testing.assert_allclose(field.weights_, expected.weights, atol=1e-6)


# --- matched inference and callbacks ---


@pytest.mark.parametrize(
    ("method", "expected"), [("camel0", "convex"), (bt.Camel(entropy="trw"), "trw"), ("cccp", "rbp")]
)
def test_matched_inference_gives_the_beliefs_of_the_learner(tmp_path, method, expected):
    """Whether or not exact inference would fit."""
    X = coupled_samples()
    field = bt.MarkovRandomField(EDGES, method=method, inference="matched", tolerance=1e-9).fit(X)
    assert field.inference_method_ == expected
    field.save(tmp_path / "field")
    for model in (field, bt.MarkovRandomField.load(tmp_path / "field").set_params(method="piecewise")):
        for v, table in enumerate(model.marginals()):
            np.testing.assert_allclose(table, field.solution_.beliefs[0][v], atol=1e-5)
    matched = field.log_partition_
    assert field.set_params(inference="rbp").inference_method_ == "exact"  # which fits, and is no part of the above
    assert abs(matched - field.log_partition_) > 1e-6


def test_exact_learners_are_matched_by_exact_inference_where_it_fits():
    field = bt.MarkovRandomField(EDGES, method="exact", inference="matched").fit(coupled_samples())
    assert field.inference_method_ == "exact"
    assert field.set_params(memory_budget=8).inference_method_ == "rbp"


def test_a_callback_sees_progress_and_stops_learning():
    seen = []

    def callback(progress):
        seen.append(progress.iteration)
        return len(seen) == 2

    field = bt.MarkovRandomField(EDGES, tolerance=1e-12).fit(coupled_samples(), callback=callback)
    assert len(seen) == 2
    assert not field.solution_.converged


# --- learners that some fields cannot have ---


def test_pseudo_moments_need_tables_of_their_own_and_no_prior():
    X = coupled_samples()
    options = {"edges": EDGES, "method": "pseudo-moments", "prior_variance": None}
    assert bt.MarkovRandomField(**options).fit(np.concatenate([X, joint_grid()])).solution_.converged
    for change in ({"prior_variance": 1.0}, {"l1": 0.1}, {"tables": "potts"}, {"node_factors": "edges"}):
        with pytest.raises(ValueError, match=r"pseudo-moments (has no prior|needs weights of its own)"):
            bt.MarkovRandomField(**{**options, **change}).fit(X)


def test_scaling_cannot_learn_edges():
    X = coupled_samples()
    with pytest.raises(ValueError, match="ups learns the tables of variables and takes all others as they are"):
        bt.MarkovRandomField(EDGES, method="ups", prior_variance=None).fit(X)


def joint_grid():
    return np.stack(np.meshgrid(*map(np.arange, (2, 3, 2, 3)), indexing="ij"), axis=-1).reshape(-1, 4)


def test_boolean_states_are_0_and_1():
    X = coupled_samples(cardinalities=(2, 2, 2, 2))
    expected = bt.MarkovRandomField(EDGES).fit(X)
    field = bt.MarkovRandomField(EDGES).fit(X.astype(bool))
    np.testing.assert_array_equal(field.weights_, expected.weights_)
    np.testing.assert_array_equal(field.score_samples(X.astype(bool)), expected.score_samples(X))
    np.testing.assert_array_equal(field.marginals({0: True})[1], expected.marginals({0: 1})[1])
    assert field.predict([[True, False, True, True]]).tolist() == [[1, 0, 1, 1]]


@pytest.mark.parametrize(
    ("X", "words"),
    [
        ([[0.0, 1.0], [1.0, 0.0]], "the values are whole, so give X.astype(int)"),
        ([[0.0, 1.0], [1.0, 0.5]], "X[1, 1] = 0.5 is a measurement; put it into a few bins"),
        ([[0.0, 1.0], [np.nan, 0.5]], "X[1, 1] = 0.5 is a measurement"),
        ([["a", "b"], ["b", "a"]], "X[0, 0] = a; number the values, as sklearn.preprocessing.OrdinalEncoder"),
        ([[0, 1], [1, -3]], "X[1, 1] = -3"),
    ],
)
def test_what_is_not_a_state_is_named_with_a_way_out(X, words):
    with pytest.raises((TypeError, ValueError), match=re.escape(words)):
        bt.MarkovRandomField().fit(X)


def noisy_copies(n_variables: int = 8, n_samples: int = 300) -> np.ndarray:
    """Copies of a hidden bit, on which Bethe's entropy of a complete graph is far off."""
    rng = np.random.default_rng(0)
    return (rng.integers(2, size=(n_samples, 1)) ^ (rng.random((n_samples, n_variables)) < 0.1)).astype(int)


def test_the_default_learner_is_exact_where_that_fits():
    X = noisy_copies()
    assert bt.MarkovRandomField().fit(X).method_ == "exact"
    assert bt.MarkovRandomField(memory_budget=0).fit(X).method_ == "pseudolikelihood"
    X[0, 0] = -1
    field = bt.MarkovRandomField(memory_budget=0, cardinalities=2)
    field.encode(X)
    assert field.learning_options()["method"] == "cccp"


def test_a_field_that_loses_to_independent_variables_says_so():
    X = noisy_copies()
    with pytest.warns(bt.AttainmentWarning, match="independent variables"):
        field = bt.MarkovRandomField(method="cccp").fit(X)
    frequency = X.mean(axis=0)
    independent = (X * np.log(frequency) + (1 - X) * np.log(1 - frequency)).sum(axis=1).mean()
    assert field.score(X) < independent < bt.MarkovRandomField().fit(X).score(X)


def test_log_z_is_that_of_the_weights_adopted_last() -> None:
    X = np.random.default_rng(0).integers(0, 2, (50, 4))
    field = bt.MarkovRandomField(edges=[(0, 1), (1, 2), (2, 3)])
    data = field.encode(X)
    for variance in (100.0, 0.01):
        field.adopt(bt.learn(data, "exact", prior_variance=variance))
        every = np.array(list(itertools.product(range(2), repeat=4)))
        np.testing.assert_allclose(np.exp(field.score_samples(every)).sum(), 1.0)


@pytest.mark.parametrize("method", ["cccp", "camel0", "trw", "convex"])
@pytest.mark.parametrize("memory_budget", [2**28, 0])
def test_matched_inference_answers_every_question(method: str, memory_budget: int) -> None:
    """Also where exact inference would fit, or conditioning would do."""
    field = bt.MarkovRandomField(EDGES, method=method, inference="matched", memory_budget=memory_budget)
    field.set_params(tolerance=1e-9).fit(coupled_samples())
    clusters = field.model_.graph.clusters
    pair = field.solution_.beliefs[0][clusters.index((0, 1))]
    np.testing.assert_allclose(field.marginal((1, 0)), pair.T, atol=1e-5)
    np.testing.assert_allclose(field.marginal(2), field.marginals()[2], atol=1e-9)
    np.testing.assert_allclose(field.probability({1: 1, 0: 0}), pair[0, 1], atol=1e-5)
    given = field.conditional({0: 1})[1]
    np.testing.assert_allclose(field.marginal(1, given={0: 1}), given, atol=1e-9)
    np.testing.assert_allclose(field.probability({1: 0}, given={0: 1}), given[0], atol=1e-9)


@pytest.mark.parametrize(("n", "method"), [(8, "exact"), (11, "pseudolikelihood")])
def test_auto_leaves_exact_learning_where_an_evaluation_takes_long(n: int, method: str) -> None:
    """A table of 32 MiB fits the budget, but each of 66 pairs goes through all of it."""
    X = np.random.default_rng(0).integers(0, 4, (60, n))
    field = bt.MarkovRandomField("complete", max_iterations=3)
    with pytest.warns(bt.ConvergenceWarning):
        assert field.fit(X).method_ == method
    assert field.inference_method_ == "exact"


def test_scores_by_a_log_partition_that_did_not_converge_say_so():
    X = np.random.default_rng(0).integers(0, 2, (60, 24))
    options = {"edges": "complete", "method": "pseudolikelihood", "memory_budget": 1000, "prior_variance": 10.0}
    field = bt.MarkovRandomField(**options)
    field.fit(X)  # no warning: where messages do not converge, annealing tells that the field is the better model
    for call in (field.score_samples, field.score_samples):  # each time, whatever is remembered
        with pytest.warns(
            bt.ConvergenceWarning, match=r"log Z comes from rbp, which did not converge.*memory_budget"
        ) as once:
            call(X)
        assert len(once) == 1
    assert field.score(X).interval is not None  # of annealed importance sampling
    settled = bt.MarkovRandomField(**options, inference="convex")
    with pytest.warns(bt.AttainmentWarning) as warned:
        settled.fit(X)
    assert "did not converge" not in str(warned[0].message)
    assert np.isfinite(settled.score(X))
