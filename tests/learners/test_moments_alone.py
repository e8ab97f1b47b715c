"""bt.Moments: learning from sums of features, exact or noisy, without rows."""

import itertools

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import logsumexp

import bactrian as bt

CARDINALITIES = (2, 3, 2)
CLUSTERS = ((0, 1), (1, 2), (0, 2))


def model_of(rng, n_weights=5):
    graph = bt.ClusterGraph(CARDINALITIES, CLUSTERS)
    features = [rng.standard_normal((graph.size(scope), n_weights)) for scope in CLUSTERS]
    base = [rng.standard_normal(graph.size(scope)) for scope in CLUSTERS]
    return bt.LogLinearModel(graph, features, base)


def dense(model):
    """Features (states, n_weights) and base scores (states,) of all joint states."""
    graph = model.graph
    states = np.array(list(itertools.product(*map(range, graph.cardinalities))))
    features, base = 0.0, 0.0
    for i, scope in enumerate(graph.clusters):
        index = np.ravel_multi_index(tuple(states[:, scope].T), graph.shape(scope))
        features = features + model.features[i].toarray()[index]
        base = base + model.base_scores[i][index]
    return features, base


@pytest.mark.parametrize(
    "method", ["exact", "cccp", "camel0", "piecewise", "convex", "trw", "lbp", bt.Camel(fold=True), bt.Camel(tighten=2)]
)
@pytest.mark.parametrize("prior", [None, 3.0])
def test_moments_of_samples_give_what_the_samples_give(method, prior):
    rng = np.random.default_rng(0)
    model = model_of(rng)
    X = np.stack([rng.integers(0, k, 40) for k in CARDINALITIES], axis=1)
    features, _ = dense(model)
    observed = features[np.ravel_multi_index(tuple(X.T), CARDINALITIES)].sum(axis=0)
    options = {"prior_variance": prior, "tolerance": 1e-9}
    rows = bt.learn(bt.Samples(model, X), method, **options)
    sums = bt.learn(bt.Moments(model, observed, 40.0), method, **options)
    np.testing.assert_allclose(sums.weights, rows.weights, atol=1e-6)
    for a, b in zip(sums.beliefs[0], rows.beliefs[0], strict=True):
        np.testing.assert_allclose(a, b, atol=1e-7)


@pytest.mark.parametrize("seed", range(3))
def test_noise_is_a_penalty_on_the_gap_as_a_dense_solve_of_the_primal_says(seed):
    rng = np.random.default_rng(seed)
    model = model_of(rng)
    features, base = dense(model)
    total, variances = 50.0, np.array([0.5, 2.0, 0.1, 30.0, 4.0])
    observed = total * (rng.dirichlet(np.ones(len(base))) @ features) + rng.standard_normal(5)
    found = bt.learn(bt.Moments(model, observed, total, variances), "exact", prior_variance=None, tolerance=1e-10)

    def primal(logits):
        # total * (entropy + base) - sum gap^2 / 2 s^2, over all distributions
        logs = logits - logsumexp(logits)
        p = np.exp(logs)
        gap = observed - total * (p @ features)
        slope = total * (-logs - 1.0 + base) + total * features @ (gap / variances)
        value = total * p @ (base - logs) - np.sum(gap**2 / (2 * variances))
        return -value, -p * (slope - p @ slope)

    best = minimize(primal, base, jac=True, method="L-BFGS-B", options={"maxiter": 20_000, "ftol": 0.0, "gtol": 1e-11})
    assert found.objective == pytest.approx(-best.fun, abs=1e-6)
    expected = np.exp(best.x - logsumexp(best.x)).reshape(CARDINALITIES)
    np.testing.assert_allclose(found.beliefs[0][0], expected.sum(axis=2), atol=1e-6)
    np.testing.assert_allclose(
        observed - total * np.exp(best.x - logsumexp(best.x)) @ features, found.weights * variances, atol=1e-4
    )


def test_noise_adds_to_the_precision_of_the_prior():
    rng = np.random.default_rng(1)
    model = model_of(rng)
    observed, variances = rng.standard_normal(5), np.array([0.5, 2.0, 0.0, 3.0, 0.0])
    noisy = bt.learn(bt.Moments(model, observed, 9.0, variances), "exact", prior_variance=4.0, tolerance=1e-10)
    priors = bt.learn(
        bt.Moments(model, observed, 9.0), "exact", prior_variance=1.0 / (0.25 + variances), tolerance=1e-10
    )
    np.testing.assert_allclose(noisy.weights, priors.weights, atol=1e-9)


@pytest.mark.parametrize("method", ["pseudolikelihood", "piecewise-pseudolikelihood", "ups", "pseudo-moments"])
def test_learners_that_look_at_rows_say_so(method):
    model = model_of(np.random.default_rng(0))
    with pytest.raises(ValueError, match="needs observed states, but Moments have only sums"):
        bt.learn(bt.Moments(model, np.zeros(5), 1.0), method, prior_variance=None)


def test_an_empirical_start_needs_rows():
    model = model_of(np.random.default_rng(0))
    with pytest.raises(ValueError, match="cccp-empirical, which starts at the empirical distribution, needs observed"):
        bt.learn(bt.Moments(model, np.zeros(5), 1.0), "cccp-empirical")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"observed": np.zeros(4)}, r"observed must have one sum per weight: expected shape \(5,\), found \(4,\)"),
        ({"observed": [0, 0, np.nan, 0, 0]}, r"observed\[2\] is NaN or infinite"),
        ({"observed": ["a"] * 5}, "observed must hold real numbers"),
        ({"total": 0.0}, "total must be positive and finite, found 0"),
        ({"total": -1.0}, "total must be positive and finite, found -1"),
        ({"total": np.nan}, "total must be positive and finite"),
        ({"total": "many"}, "total must be a number"),
        ({"variances": [1.0, 2.0]}, r"variances must be one number or one per weight, shape \(5,\), found \(2,\)"),
        ({"variances": [1.0, 1.0, -2.0, 1.0, 1.0]}, r"variances\[2\] must be finite and not negative, found -2.0"),
        ({"variances": np.inf}, r"variances\[0\] must be finite and not negative, found inf"),
        ({"model": 3}, "model must be a LogLinearModel, found int"),
    ],
)
def test_bad_moments_are_refused(changed, message):
    given = {"model": model_of(np.random.default_rng(0)), "observed": np.zeros(5), "total": 10.0, **changed}
    with pytest.raises((ValueError, TypeError), match=message):
        bt.Moments(**given)
