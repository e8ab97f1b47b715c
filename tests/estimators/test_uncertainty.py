"""Standard errors, intervals, refits and comparisons of fields, against closed forms, enumeration and refits."""

import itertools
import pickle
from dataclasses import replace

import numpy as np
import pytest
from scipy.linalg import null_space
from scipy.optimize import approx_fprime
from scipy.special import logit, logsumexp
from scipy.stats import binom, norm
from sklearn.linear_model import LogisticRegression

import bactrian as bt
from bactrian.estimators.fitted_field import AnswerOptions, FieldModel, FittedField
from bactrian.estimators.pairwise import PairwiseTables

CARDINALITIES = (2, 3, 2)


def rows_of(n, seed=0):
    rng = np.random.default_rng(seed)
    X = np.stack([rng.integers(k, size=n) for k in CARDINALITIES], axis=1)
    X[:, 2] = np.where(rng.random(n) < 0.6, (X[:, 1] + X[:, 0]) % 2, X[:, 2])
    return X


def dense_features(field):
    """Features of every joint state, straight from the model."""
    model = field.model_
    states = np.array(list(itertools.product(*map(range, model.graph.cardinalities))))
    features = np.zeros((len(states), model.n_weights))
    for scope, table in zip(model.graph.clusters, model.features, strict=True):
        shape = [model.graph.cardinalities[v] for v in scope]
        features += table.toarray()[np.ravel_multi_index(states[:, scope].T, shape)]
    return states, features


@pytest.mark.parametrize("prior", [3.0, {"variables": 5.0, "edges": 0.5}])
@pytest.mark.parametrize("tables", ["full", "potts"])
def test_exact_covariances_are_the_inverse_hessian_apart_from_the_gauge(prior, tables):
    field = bt.MarkovRandomField(method="exact", prior_variance=prior, tables=tables).fit(rows_of(200))
    _, features = dense_features(field)
    scores = features @ field.weights_
    p = np.exp(scores - logsumexp(scores))
    information = 200 * (features.T * p) @ (features - p @ features)
    n = sum(CARDINALITIES)
    variance = dict.fromkeys(("variables", "edges"), prior) if isinstance(prior, float) else prior
    precision = np.diag(1.0 / np.repeat([variance["variables"], variance["edges"]], [n, field.weights_.size - n]))
    gauge = null_space(information, rcond=1e-9)
    expected = np.linalg.inv(information + precision)
    expected -= gauge @ np.linalg.inv(gauge.T @ precision @ gauge) @ gauge.T
    np.testing.assert_allclose(field.covariance_, expected, atol=1e-6)
    np.testing.assert_allclose(field.standard_errors_, np.sqrt(np.diag(expected)), atol=1e-6)
    interval = field.confint(level=0.9)
    np.testing.assert_allclose(interval.mean(axis=1), field.weights_)
    np.testing.assert_allclose(np.diff(interval)[:, 0], 2 * norm.ppf(0.95) * field.standard_errors_)


def test_a_table_of_two_by_two_has_the_log_odds_ratio_and_its_error():
    counts = np.array([[20, 10], [15, 40]])
    X = np.repeat([[0, 0], [0, 1], [1, 0], [1, 1]], counts.ravel(), axis=0)
    for method in ("exact", "pseudolikelihood", "cccp"):
        field = bt.MarkovRandomField(method=method, prior_variance=None, tolerance=1e-9).fit(X)
        found = field.summary(level=0.95)
        odds = np.log(20 * 40 / (10 * 15))
        error = np.sqrt((1 / counts).sum())
        assert found["association"][0] == pytest.approx(odds, abs=1e-5)
        assert found["low"][0] == pytest.approx(odds - norm.ppf(0.975) * error, abs=1e-4)
        assert found["high"][0] == pytest.approx(odds + norm.ppf(0.975) * error, abs=1e-4)
        low, high = field.confint({1: 1}, given={0: 1})  # as of 55 independent rows
        of = logit(40 / 55) + np.array([-1, 1]) * norm.ppf(0.975) / np.sqrt(55 * 40 / 55 * 15 / 55)
        np.testing.assert_allclose(logit([low, high]), of, atol=1e-4)


def test_three_binary_variables_are_the_regressions_of_scikit_learn_and_statsmodels():
    """Two of them have a table of their own, so that the third is a logistic regression on both (Agresti 2013, 9.5)."""
    rng = np.random.default_rng(4)
    X = rng.integers(2, size=(300, 3))
    X[:, 2] = np.where(rng.random(300) < 0.4, X[:, 0], X[:, 2])
    field = bt.MarkovRandomField("complete", method="exact", prior_variance=None, tolerance=1e-10).fit(X)
    columns = field.summary()
    found = {frozenset(pair): rest for *pair, rest in zip(columns["variable"], columns["with"], range(3), strict=True)}
    for v in range(3):
        others = [u for u in range(3) if u != v]
        at = [found[frozenset((u, v))] for u in others]
        coefficients = LogisticRegression(C=np.inf, tol=1e-10).fit(X[:, others], X[:, v]).coef_[0]
        np.testing.assert_allclose([columns["association"][i] for i in at], coefficients, atol=1e-5)
    models = pytest.importorskip("statsmodels.api")
    counts, cells = np.zeros(8), np.array(list(itertools.product(range(2), repeat=3)))
    np.add.at(counts, X @ [4, 2, 1], 1.0)
    pairs = list(itertools.combinations(range(3), 2))
    design = np.column_stack([np.ones(8), cells, *(cells[:, a] * cells[:, b] for a, b in pairs)])
    judge = models.GLM(counts, design, family=models.families.Poisson()).fit(tol=1e-12)
    for (a, b), (low, high), p in zip(pairs, judge.conf_int()[4:], judge.pvalues[4:], strict=True):
        i = found[frozenset((a, b))]
        np.testing.assert_allclose([columns["low"][i], columns["high"][i], columns["p"][i]], [low, high, p], atol=1e-4)


@pytest.mark.parametrize("method", ["pseudolikelihood", "cccp", "convex", "camel0", "trw"])
def test_sandwiches_are_sums_of_squared_influences(method):
    """Infinitesimal jackknife: the influence of a row is how the weights move with its weight."""
    X = np.array(list(itertools.product(*map(range, CARDINALITIES))))
    rng = np.random.default_rng(3)
    counts = rng.integers(5, 40, len(X)).astype(float)
    options = {"method": method, "prior_variance": None, "tolerance": 1e-10, "cardinalities": CARDINALITIES}
    field = bt.MarkovRandomField(**options).fit(X, sample_weight=counts)
    _, features = dense_features(field)
    scores = features - features.mean(axis=0)  # without a prior, the gauge is where learning began
    total = np.zeros((len(X),) * 2)
    for row in range(len(X)):
        step = 0.02 * counts[row] * np.eye(len(X))[row]
        up, down = (
            bt.learn(bt.Samples(field.model_, X, c), method, prior_variance=None, tolerance=1e-10).weights
            for c in (counts + step, counts - step)
        )
        influence = scores @ (up - down) / (0.04 * counts[row])
        total += counts[row] * np.outer(influence, influence)
    np.testing.assert_allclose(scores @ field.covariance_ @ scores.T, total, atol=1e-3 * np.abs(total).max())


def test_pseudo_likelihoods_with_a_prior_have_the_prior_in_the_hessian():
    X = rows_of(150)
    field = bt.MarkovRandomField(method="pseudolikelihood", prior_variance=0.5, tolerance=1e-9).fit(X)
    states, features = dense_features(field)
    number = {tuple(s): i for i, s in enumerate(states.tolist())}

    def conditionals(w):
        scores, found = features @ w, np.zeros(len(X))
        for v, k in enumerate(CARDINALITIES):
            others = np.array([[number[(*x[:v], j, *x[v + 1 :])] for j in range(k)] for x in X.tolist()])
            found += scores[[number[tuple(x)] for x in X.tolist()]] - logsumexp(scores[others], axis=1)
        return found

    slopes = approx_fprime(field.weights_, conditionals, 1e-7)
    steps = 1e-3 * np.eye(features.shape[1])
    sides = [
        [approx_fprime(w, lambda u: conditionals(u).sum(), 1e-5) for w in field.weights_ + np.stack([e, -e])]
        for e in steps
    ]
    hessian = np.stack([down - up for up, down in sides]) / 2e-3
    precision = 2.0 * np.eye(features.shape[1])
    gauge = null_space(np.vstack([features - features.mean(axis=0)]), rcond=1e-9)
    centred = slopes - slopes.mean(axis=0)
    inverse = np.linalg.inv(hessian + precision)
    expected = inverse @ (centred.T @ centred + precision) @ inverse - 0.5 * gauge @ gauge.T
    np.testing.assert_allclose(field.covariance_, expected, atol=1e-3 * np.abs(expected).max())
    own = conditionals(field.weights_).mean()
    assert field.pseudo_score(X) == pytest.approx(own)
    weighted = field.pseudo_score(X, sample_weight=np.arange(150))
    assert weighted == pytest.approx(np.average(conditionals(field.weights_), weights=np.arange(150)))


def test_missing_cells_count_by_the_spread_of_their_scores():
    X = rows_of(120)
    X[np.random.default_rng(1).random(X.shape) < 0.2] = -1
    field = bt.MarkovRandomField(method="exact", prior_variance=2.0, cardinalities=CARDINALITIES).fit(X)
    states, features = dense_features(field)
    scores = features @ field.weights_
    p = np.exp(scores - logsumexp(scores))
    slopes = []
    for x in X:
        agrees = ((x < 0) | (states == x)).all(axis=1) * p
        slopes.append((agrees / agrees.sum() - p) @ features)
    spread = 120 * np.cov(np.array(slopes).T, bias=True)
    gauge = null_space(features - features.mean(axis=0), rcond=1e-9)
    expected = np.linalg.inv(spread + 0.5 * np.eye(len(spread))) - 2.0 * gauge @ gauge.T
    np.testing.assert_allclose(field.covariance_, expected, atol=1e-5)


def test_probabilities_have_the_slope_of_their_logarithm():
    field = bt.MarkovRandomField(method="exact", prior_variance=1.0).fit(rows_of(200))
    states, features = dense_features(field)

    def log_probability(w):
        scores = features @ w
        given = states[:, 0] == 1
        return logsumexp(scores[given & (states[:, 1] == 2) & (states[:, 2] == 0)]) - logsumexp(scores[given])

    slope, p = approx_fprime(field.weights_, log_probability, 1e-7), np.exp(log_probability(field.weights_))
    error = np.sqrt(slope @ field.covariance_ @ slope) / (1 - p)
    found = field.confint({1: 2, 2: 0}, given={0: 1}, level=0.9)
    np.testing.assert_allclose(logit(found), logit(p) + np.array([-1, 1]) * norm.ppf(0.95) * error, atol=1e-5)


@pytest.mark.parametrize("method", ["exact", "pseudolikelihood", "cccp", "convex"])
def test_refits_of_the_bootstrap_are_plain_fits(method):
    X = rows_of(150)
    field = bt.MarkovRandomField(method=method, prior_variance=1.0, n_threads=2).fit(X)
    found = field.bootstrap(6, seed=4)
    for i in range(6):
        times = np.random.default_rng([4, i]).multinomial(150, np.full(150, 1 / 150))
        again = bt.MarkovRandomField(method=method, prior_variance=1.0, tolerance=1e-8, cardinalities=CARDINALITIES)
        np.testing.assert_allclose(found.weights[i], again.fit(X, sample_weight=times).weights_, atol=5e-5)
    np.testing.assert_array_equal(found.weights, field.set_params(n_threads=1).bootstrap(6, seed=4).weights)
    assert not np.array_equal(found.weights, field.bootstrap(6, seed=5).weights)
    np.testing.assert_allclose(found.confint(level=0.5), np.quantile(found.weights, [0.25, 0.75], axis=0).T)
    low, high = found.confint({0: 1}, level=0.99)
    assert 0.0 < low < high < 1.0
    assert found.stability.shape == (3,)
    assert ((found.stability >= 0.0) & (found.stability <= 1.0)).all()


def test_refits_that_lack_a_state_are_finished_by_the_learner():
    X = np.array([[0, 0]] * 15 + [[1, 1]] * 15 + [[0, 1]])
    found = bt.MarkovRandomField(method="exact", prior_variance=1.0).fit(X).bootstrap(30, seed=1)
    assert np.isfinite(found.weights).all()


def test_groups_that_differ_in_one_edge_differ_there():
    rng = np.random.default_rng(5)

    def group(strength, n=300):
        X = rng.integers(2, size=(n, 4))
        X[:, 1] = np.where(rng.random(n) < strength, X[:, 0], X[:, 1])
        X[:, 3] = np.where(rng.random(n) < 0.5, X[:, 2], X[:, 3])
        return bt.MarkovRandomField(prior_variance=1.0).fit(X)

    a, b, c = group(0.6), group(0.0), group(0.6)
    found = bt.compare(a, b, n_permutations=199, seed=1)
    least = 1 / 200
    assert found.p_value == least
    assert found.edges[0] == (0, 1)
    assert found.p_values[0] == found.adjusted[0] == least
    assert (found.adjusted[1:] > 0.05).all()
    assert (found.adjusted >= found.p_values).all()
    assert found.differences[0][0, 0] > 0.2
    np.testing.assert_allclose(found.differences[0].sum(axis=0), 0.0, atol=1e-12)
    same = bt.compare(a, c, n_permutations=199, seed=1)
    assert same.p_value > 0.05
    assert same.p_value == bt.compare(a, c, n_permutations=199, seed=1).p_value


def test_groups_with_other_edges_are_compared_on_those_of_either():
    X = rows_of(200)
    a = bt.MarkovRandomField(edges=[(0, 1)]).fit(X[:100])
    b = bt.MarkovRandomField(edges=[(2, 1)]).fit(X[100:])
    assert bt.compare(a, b, n_permutations=9).edges == [(0, 1), (1, 2)]
    other = bt.MarkovRandomField().fit(X[:, :2])
    with pytest.raises(ValueError, match="field_b must have the variables and states of field_a"):
        bt.compare(a, other)


def test_p_values_are_uniform_where_groups_do_not_differ():
    rng = np.random.default_rng(8)
    p = []
    for _ in range(40):
        X = rng.integers(2, size=(80, 3))
        a, b = (
            bt.MarkovRandomField(method="pseudolikelihood", prior_variance=1.0).fit(part) for part in (X[:40], X[40:])
        )
        p.append(bt.compare(a, b, n_permutations=19).p_value)
    assert binom.cdf(np.sum(np.array(p) <= 0.5), 40, 0.5) > 1e-3
    assert binom.sf(np.sum(np.array(p) <= 0.5) - 1, 40, 0.5) > 1e-3


@pytest.mark.parametrize("method", ["exact", "pseudolikelihood", "cccp"])
def test_intervals_on_trees_cover(method):
    edges, n, runs = [(0, 1), (1, 2), (1, 3)], 400, 40
    truth = bt.MarkovRandomField(edges=edges, prior_variance=None).fit(
        np.array(list(itertools.product(range(2), repeat=4))), sample_weight=np.arange(4, 20)
    )
    inside = total = 0
    for seed in range(runs):
        X = truth.sample(n, seed=seed)
        field = bt.MarkovRandomField(edges=edges, method=method, prior_variance=None, cardinalities=2).fit(X)
        interval = field.confint()
        inside += int(((interval[:, 0] <= truth.weights_) & (truth.weights_ <= interval[:, 1])).sum())
        total += truth.weights_.size
    # The weights of a run depend on each other, so runs are counted and not weights.
    assert binom.cdf(inside / total * runs, runs, 0.95) > 1e-3
    assert inside / total < 1.0


def test_intervals_are_kept_by_files_if_they_were_asked_for(tmp_path):
    field = bt.MarkovRandomField(prior_variance=1.0).fit(rows_of(80))
    field.save(tmp_path / "without")
    expected = field.confint({0: 1})
    field.save(tmp_path / "with")
    for again in (bt.MarkovRandomField.load(tmp_path / "with"), pickle.loads(pickle.dumps(field))):
        np.testing.assert_allclose(again.confint({0: 1}), expected)
        np.testing.assert_allclose(again.standard_errors_, field.standard_errors_)
    with pytest.raises(ValueError, match="need the rows that the field was fitted to"):
        bt.MarkovRandomField.load(tmp_path / "without").confint()


def test_what_has_no_intervals_says_so():
    X = rows_of(60)
    with pytest.raises(ValueError, match=r"rows that the field was fitted to: some of its variables are hidden"):
        _ = bt.MarkovRandomField(hidden={"h": 2}, n_starts=1, tolerance=0.01).fit(X).standard_errors_
    with pytest.raises(ValueError, match="no formulas for intervals of 'piecewise'; use bootstrap"):
        bt.MarkovRandomField(method="piecewise").fit(X).confint()
    with pytest.raises(ValueError, match=r"l1 = 0\.1"):
        bt.MarkovRandomField(method="exact", l1=0.1).fit(X).confint()
    field = bt.MarkovRandomField().fit(X)
    with pytest.raises(TypeError, match="the level is level="):
        field.confint(0.9)
    with pytest.raises(ValueError, match="level must"):
        field.confint(level=1.5)
    with pytest.raises(ValueError, match="n must be"):
        field.bootstrap(1)


def test_summaries_have_names_and_are_frames_like_those_of_the_fit():
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    smoker = rng.choice(["no", "yes"], 200)
    lung = np.where(rng.random(200) < 0.7, smoker, rng.choice(["no", "yes"], 200))
    frame = pandas.DataFrame({"smoker": smoker, "age": rng.choice(["old", "young"], 200), "lung": lung})
    field = bt.MarkovRandomField(edges=[("smoker", "age"), ("smoker", "lung")]).fit(frame)
    found = field.summary()
    assert list(found.columns) == ["variable", "with", "association", "low", "high", "p"]
    assert found.iloc[0, :2].tolist() == ["smoker", "lung"]
    assert found["low"][0] > 0.0
    assert found["p"][0] < 1e-6 < found["p"][1]
    low, high = field.confint({"lung": "yes"}, given={"smoker": "yes"})
    assert low < field.probability({"lung": "yes"}, given={"smoker": "yes"}) < high


def test_scores_say_whether_log_z_is_exact_or_has_an_interval():
    X = np.random.default_rng(0).integers(2, size=(300, 9))
    X[:, 1:] = np.where(np.random.default_rng(1).random((300, 8)) < 0.5, X[:, :1], X[:, 1:])
    exact = bt.MarkovRandomField(prior_variance=1.0).fit(X)
    sampled = bt.MarkovRandomField(prior_variance=1.0, method="pseudolikelihood", memory_budget=0).fit(X)
    sampled.weights_ = exact.weights_
    truth, found = exact.score(X), sampled.score(X)
    assert (truth.how, truth.interval) == ("exact", None)
    assert repr(truth) == f"{float(truth):.4f} (exact)"
    assert found.how == "by annealed importance sampling"
    low, high = found.interval
    assert low - 0.05 < truth < high + 0.05
    assert low < found < high < low + 0.5
    again = pickle.loads(pickle.dumps(found))
    assert (again, again.interval, again.how) == (found, found.interval, found.how)
    assert "annealed importance sampling, " in repr(found)


def test_large_junction_trees_have_the_information_of_drawn_rows():
    X = np.random.default_rng(0).integers(2, size=(400, 6))
    X[:, 1:] = np.where(np.random.default_rng(1).random((400, 5)) < 0.5, X[:, :1], X[:, 1:])
    rows = bt.MarkovRandomField("complete", method="exact", prior_variance=1.0).fit(X).rows_
    found = replace(rows, work=1e12).covariance.standard_errors
    np.testing.assert_allclose(found, rows.covariance.standard_errors, rtol=0.03)
    assert not np.array_equal(found, rows.covariance.standard_errors)


def test_constant_columns_and_fields_without_edges_are_no_trouble():
    X = np.column_stack([rows_of(60), np.zeros(60, dtype=int)])
    for method in ("exact", "pseudolikelihood"):
        field = bt.MarkovRandomField("complete", method=method, prior_variance=1.0).fit(X)
        assert np.isfinite(field.standard_errors_).all()
        assert field.confint({3: 0}) == (1.0, 1.0)
        assert field.bootstrap(3).weights.shape == (3, field.weights_.size)
        assert bt.compare(field, field, n_permutations=9).p_value > 0.05
        apart = bt.MarkovRandomField([], method=method, prior_variance=1.0).fit(X)
        assert len(apart.summary()) == 0
        assert bt.compare(apart, apart, n_permutations=3).p_value == 1.0


def test_sets_of_states_have_the_slope_of_their_logarithm():
    field = bt.MarkovRandomField(method="exact", prior_variance=1.0).fit(rows_of(200))
    states, features = dense_features(field)
    options = AnswerOptions("rbp", 2**20, 1, 0)
    variables = field.rows_.variables
    model = FieldModel(field.model_, variables, PairwiseTables.of("full", variables, field.edges_))
    held = FittedField(model, field.weights_, "exact", None, options)

    def log_probability(w):
        scores = features @ w
        given = np.isin(states[:, 1], [0, 2])
        return logsumexp(scores[given & (states[:, 1] > 0) & (states[:, 2] == 0)]) - logsumexp(scores[given])

    found = held.log_slope({1: [1, 2], 2: 0}, {1: [0, 2]}, field.rows_.contrasts)
    expected = approx_fprime(field.weights_, log_probability, 1e-7)
    np.testing.assert_allclose(field.rows_.contrasts.matrix.T @ found, expected, atol=1e-6)
    np.testing.assert_array_equal(held.log_slope({1: 1}, {1: 0}, field.rows_.contrasts), 0.0)
