"""MarkovRandomField.fit_marginals against proportional fitting and dense solves of the primal."""

import re
import warnings
from itertools import combinations

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import logsumexp

import bactrian as bt

NAMES = ("a", "b", "c", "d")
SHAPE = (3, 4, 2, 3)
SCOPES = ((0, 1), (1, 2), (2, 0), (3, 1))


def margin_of(p, scope):
    left = sorted(scope)
    summed = p.sum(axis=tuple(v for v in range(p.ndim) if v not in scope))
    return summed.transpose([left.index(v) for v in scope])


def proportional_fitting(seed, margins, rounds=100_000):
    """Iterative proportional fitting on the dense table, run to its end."""
    p = seed / seed.sum()
    for _ in range(rounds):
        before = p
        for scope, table in margins:
            now = p.sum(axis=tuple(v for v in range(p.ndim) if v not in scope), keepdims=True)
            wanted = table.transpose(np.argsort(scope)).reshape(now.shape)
            p = p * np.divide(wanted, now, out=np.zeros_like(now), where=now > 0.0)
        if np.abs(p - before).max() < 1e-16:
            break
    return p


def marginals_of(p, scopes, factor=1.0, names=NAMES):
    return [bt.Marginal([names[v] for v in scope], factor * margin_of(p, scope)) for scope in scopes]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("with_base", [False, True])
@pytest.mark.parametrize("zeros", [False, True])
def test_consistent_margins_are_met_as_by_proportional_fitting(seed, with_base, zeros):
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.ones(72)).reshape(SHAPE)
    if zeros:
        p[1, 2] = 0.0
        p[:, 0, 1] = 0.0
        p /= p.sum()
    base = rng.random(SHAPE) if with_base else None
    expected = proportional_fitting(np.ones(SHAPE) if base is None else base, [(s, margin_of(p, s)) for s in SCOPES])
    field = bt.MarkovRandomField(method="auto").fit_marginals(
        marginals_of(p, SCOPES, 250.0), dict(zip(NAMES, SHAPE, strict=True)), base=base
    )
    assert field.method_ == "exact"
    assert field.solution_.converged
    assert field.total_ == pytest.approx(250.0)
    np.testing.assert_allclose(field.marginal(NAMES), expected, atol=1e-8)
    for scope, entry in zip(SCOPES, field.residuals_, strict=True):
        np.testing.assert_allclose(field.marginal(entry.names), margin_of(p, scope), atol=1e-8)
        assert entry.distance < 1e-8
    assert field.residuals_.contradictions == ()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("weight", [1.0, 0.01])
def test_noisy_margins_equal_a_dense_solve_of_the_primal(seed, weight):
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.ones(72)).reshape(SHAPE)
    total = 300.0
    spread = rng.uniform(2.0, 9.0, len(SCOPES))
    tables = [
        total * margin_of(p, scope) + s * rng.standard_normal(margin_of(p, scope).shape)
        for scope, s in zip(SCOPES, spread, strict=True)
    ]
    margins = [
        bt.Marginal([NAMES[v] for v in scope], table, stddev=s)
        for scope, table, s in zip(SCOPES, tables, spread, strict=True)
    ]
    field = bt.MarkovRandomField(method="auto", tolerance=1e-10).fit_marginals(
        margins, dict(zip(NAMES, SHAPE, strict=True)), total=total, entropy_weight=weight
    )

    def primal(logits):
        logs = logits - logsumexp(logits)
        q = np.exp(logs).reshape(SHAPE)
        value, slope = weight * total * float((q * logs.reshape(SHAPE)).sum()), weight * total * (logs + 1.0)
        slope = slope.reshape(SHAPE).copy()
        for scope, table, s in zip(SCOPES, tables, spread, strict=True):
            gap = total * margin_of(q, scope) - table
            value += float((gap**2).sum()) / (2 * s**2)
            shape = [SHAPE[v] if v in scope else 1 for v in range(4)]
            slope += total * (gap / s**2).transpose(np.argsort(scope)).reshape(shape)
        slope = slope.ravel()
        return value, q.ravel() * (slope - q.ravel() @ slope)

    best = minimize(primal, np.zeros(72), jac=True, method="BFGS", options={"maxiter": 50_000, "gtol": 1e-10})
    expected = np.exp(best.x - logsumexp(best.x)).reshape(SHAPE)
    found = field.marginal(NAMES)
    assert primal(np.log(found.ravel()))[0] <= best.fun + 1e-6
    np.testing.assert_allclose(found, expected, atol=2e-5 if weight == 1.0 else 2e-4)
    for entry, s in zip(field.residuals_, spread, strict=True):
        np.testing.assert_allclose(entry.z, entry.difference / s)


def test_by_default_sixteen_fits_follow_each_other_each_with_the_last_one_as_base():
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(24)).reshape(2, 3, 4)
    tables = {("a", "b"): p.sum(axis=2), ("b", "c"): p.sum(axis=0)}
    margins = [bt.Marginal(s, 500 * t + rng.normal(0, 6, t.shape), stddev=6.0) for s, t in tables.items()]
    assert all((m.table > 5 * 6.0).any() for m in margins)  # they tell something
    free = 2 * 3 + 3 * 4 - 3
    weight, base, found = 10.0 / (6.0 * np.sqrt(free / 18)), None, []
    field = bt.MarkovRandomField(method="exact", tolerance=1e-9)
    for _ in range(16):
        field.fit_marginals(margins, total=500, entropy_weight=weight, base=base)
        tables = [np.exp(w) for w in np.split(field.weights_, [6])]
        last = base or [bt.Marginal(m.names, np.ones(m.table.shape)) for m in margins]
        base = [
            bt.Marginal(m.names, one.table * table.reshape(m.table.shape))
            for m, one, table in zip(margins, last, tables, strict=True)
        ]
        found.append(np.concatenate([entry.fitted.ravel() for entry in field.residuals_]))
    field.fit_marginals(margins, total=500)
    fitted = np.concatenate([entry.fitted.ravel() for entry in field.residuals_])
    assert np.abs(found[0] - found[-1]).max() > 12.0
    np.testing.assert_allclose(fitted, found[-1], atol=0.1 * 6.0)  # rounds before the last are solved loosely


def test_units_of_counts_do_not_matter():
    rng = np.random.default_rng(1)
    p = rng.dirichlet(np.ones(24)).reshape(2, 3, 4)
    tables = {("a", "b"): 100 * p.sum(axis=2) + rng.normal(0, 2, (2, 3)), ("b", "c"): 100 * p.sum(axis=0)}
    found = []
    for unit in (1.0, 1000.0):
        margins = [bt.Marginal(names, unit * table, stddev=2 * unit) for names, table in tables.items()]
        field = bt.MarkovRandomField(method="auto", tolerance=1e-9).fit_marginals(margins, total=100 * unit)
        found.append(field.marginal(("a", "b", "c")))
    np.testing.assert_allclose(*found, atol=1e-6)


def errors_of(weight, spread, tolerance=1e-6, method="exact", max_iterations=10_000):
    """Mean distance of fitted to true margins of 2,000 rows: all triples of five variables, few states frequent."""
    scopes, found = list(combinations(range(5), 3)), []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        p = rng.dirichlet(0.01 * np.ones(1024)).reshape(4, 4, 4, 4, 4)
        true = [2000 * margin_of(p, scope) for scope in scopes]
        margins = [
            bt.Marginal([str(v) for v in scope], table + spread * rng.standard_normal(table.shape), stddev=spread)
            for scope, table in zip(scopes, true, strict=True)
        ]
        field = bt.MarkovRandomField(method=method, tolerance=tolerance, max_iterations=max_iterations)
        field.fit_marginals(margins, total=2000, entropy_weight=weight)
        gaps = [np.abs(entry.fitted - table).sum() for entry, table in zip(field.residuals_, true, strict=True)]
        found.append(np.mean(gaps) / 4000)
    return np.mean(found)


@pytest.mark.parametrize("method", ["exact", "cccp"])
def test_the_default_is_nearer_to_the_truth_than_least_squares(method):
    assert errors_of(None, 40.0, method=method) < 0.95 * errors_of(0.01, 40.0, method=method)


def test_a_rough_tolerance_costs_little():
    assert errors_of(None, 40.0, tolerance=1e-3) < 1.02 * errors_of(None, 40.0)


def test_margins_of_hardly_any_noise_are_met():
    assert errors_of(None, 1e-4, tolerance=1e-7, max_iterations=6_000) < 1e-5


def test_margins_of_very_different_noise_are_fitted_in_few_steps():
    rng = np.random.default_rng(0)
    p = rng.dirichlet(0.2 * np.ones(256)).reshape(4, 4, 4, 4)
    scopes, spreads = ((0, 1, 2), (1, 2, 3), (0, 2, 3), (0, 1, 3)), (0.1, 100.0, 0.1, 100.0)
    margins = [
        bt.Marginal([NAMES[v] for v in s], 10_000 * margin_of(p, s) + sd * rng.standard_normal((4, 4, 4)), stddev=sd)
        for s, sd in zip(scopes, spreads, strict=True)
    ]
    field = bt.MarkovRandomField(method="exact", tolerance=1e-5)
    field.fit_marginals(margins, dict.fromkeys(NAMES, 4), total=10_000, entropy_weight=0.01)
    assert field.solution_.converged
    assert field.solution_.evaluations < 1500


def test_a_noisy_margin_may_add_up_to_less_than_nothing():
    margins = [bt.Marginal("a", [-30.0, 20.0], stddev=25.0), bt.Marginal("b", [60.0, 40.0], stddev=1.0)]
    field = bt.MarkovRandomField(method="auto").fit_marginals(margins, total=100)
    assert np.isfinite(field.marginal(("a", "b"))).all()


def test_total_is_estimated_from_noisy_margins_by_their_variances():
    margins = [bt.Marginal("a", [60.0, 50.0], stddev=1.0), bt.Marginal("b", [40.0, 50.0, 0.0], stddev=3.0)]
    field = bt.MarkovRandomField(method="auto").fit_marginals(margins)
    assert field.total_ == pytest.approx((110 / 2 + 90 / 27) / (1 / 2 + 1 / 27))


def test_probabilities_and_counts_may_be_mixed():
    margins = [bt.Marginal("a", [30.0, 70.0]), bt.Marginal(("a", "b"), [[0.1, 0.2], [0.3, 0.4]])]
    field = bt.MarkovRandomField(method="auto").fit_marginals(margins)
    assert field.total_ == 100.0
    np.testing.assert_allclose(field.marginal(("b", "a")), [[0.1, 0.3], [0.2, 0.4]], atol=1e-9)
    assert bt.MarkovRandomField(method="auto").fit_marginals(margins[1:]).total_ == 1.0


def test_what_ipfn_fits_badly_with_three_margins_that_share_a_column():
    # ipfn issue 22: [education, age], [education, gender], [education, children], the whole distribution as the seed.
    rng = np.random.default_rng(22)
    names, shape = ("education", "age", "gender", "children"), (4, 6, 2, 3)
    whole = rng.integers(0, 40, shape).astype(float)
    margins = marginals_of(whole, ((0, 1), (0, 2), (0, 3)), names=names)
    field = bt.MarkovRandomField(method="auto").fit_marginals(margins, dict(zip(names, shape, strict=True)), base=whole)
    np.testing.assert_allclose(field.marginal(names), whole / whole.sum(), atol=1e-8)
    triangle = marginals_of(whole, ((1, 0), (0, 3), (1, 3)), names=names)
    sizes = {"education": 4, "age": 6, "children": 3}
    field = bt.MarkovRandomField(method="auto").fit_marginals(triangle, sizes)
    assert max(entry.distance for entry in field.residuals_) < 1e-8


def test_a_seed_with_zeros_that_leaves_the_margins_no_room_is_said():
    # After ipfn issue 31, "converged" at a sum of 60 for 100: a seed without mass where a margin has 40 does that.
    seed = np.array([[1.0, 2.0], [0.0, 0.0]])
    margins = [bt.Marginal("row", [60.0, 40.0]), bt.Marginal("column", [50.0, 50.0])]
    with pytest.raises(ValueError, match=r"margins\[0\] gives mass to row=1, where base has none"):
        bt.MarkovRandomField(method="auto").fit_marginals(margins, base=seed)
    room = np.array([[1.0, 2.0], [0.0, 3.0]])
    field = bt.MarkovRandomField(method="auto").fit_marginals(margins, base=room)
    np.testing.assert_allclose(field.marginal(("row", "column")), [[0.5, 0.1], [0.0, 0.4]], atol=1e-8)


def test_exact_margins_that_disagree_are_named_and_the_nearest_answer_is_found():
    margins = [
        bt.Marginal(("a", "b"), [[30.0, 20.0], [10.0, 40.0]]),
        bt.Marginal(("b", "c"), [[20.0, 21.0], [29.0, 30.0]]),
    ]
    message = re.escape("margins[0] ('a', 'b') and margins[1] ('b', 'c') disagree by 1 on b=0: 40 against 41")
    with pytest.warns(bt.ContradictionWarning, match=message):
        field = bt.MarkovRandomField(method="auto").fit_marginals(margins)
    assert len(field.residuals_.contradictions) == 1
    assert "disagree by 1 on b=0" in str(field.residuals_)
    # Least squares: half of the disagreement of each state of b goes to either margin, in equal parts to its cells.
    np.testing.assert_allclose(field.residuals_[0].fitted, [[30.25, 19.75], [10.25, 39.75]], atol=1e-3)
    np.testing.assert_allclose(field.residuals_[1].fitted, [[19.75, 20.75], [29.25, 30.25]], atol=1e-3)


def test_margins_that_agree_two_by_two_and_still_contradict_each_other():
    # Three coins that must differ pairwise: no distribution does that.
    apart = [[0.0, 50.0], [50.0, 0.0]]
    nearly = [[1.0, 49.0], [49.0, 1.0]]
    for table in (apart, nearly):
        margins = [bt.Marginal(names, table) for names in (("a", "b"), ("b", "c"), ("c", "a"))]
        with pytest.warns(bt.ContradictionWarning, match="no distribution has all of these margins, though any two"):
            field = bt.MarkovRandomField(method="auto").fit_marginals(margins)
        for entry in field.residuals_:
            np.testing.assert_allclose(entry.fitted, np.array([[1.0, 2.0], [2.0, 1.0]]) * 100 / 6, atol=1e-2)


def test_noisy_margins_far_apart_are_named():
    margins = [bt.Marginal("a", [50.0, 50.0], stddev=1.0), bt.Marginal("a", [60.0, 41.0], stddev=1.0)]
    with pytest.warns(bt.ContradictionWarning, match=r"disagree by 10, 7.1 standard deviations on a=0: 50 against 60"):
        bt.MarkovRandomField(method="auto").fit_marginals(margins)


def crossed():
    """A table of pandas over sex and age, and the counts of age, the most frequent first."""
    pandas = pytest.importorskip("pandas")
    counts = pandas.DataFrame([[5.0, 20.0, 15.0], [10.0, 10.0, 40.0]])
    counts.index = pandas.Index(["f", "m"], name="sex")
    counts.columns = pandas.Index(["mid", "old", "young"], name="age")
    return counts, counts.sum(axis=0).sort_values(ascending=False)


@pytest.mark.parametrize(
    "cardinalities", [None, {"age": ["young", "mid", "old"], "sex": ["m", "f"]}, {"sex": 2, "age": 3}]
)
def test_tables_of_pandas_go_by_their_labels(cardinalities):
    counts, of_age = crossed()
    assert of_age.index.tolist() == ["young", "old", "mid"]
    noise = (counts * 0.0 + 2.0)[["young", "mid", "old"]]
    noise.loc["f", "old"] = 9.0
    margins = [
        bt.Marginal("age", of_age),
        bt.Marginal(("sex", "age"), counts.loc[["m", "f"]]),
        bt.Marginal(("age", "sex"), counts.T),
        bt.Marginal(("sex", "age"), counts[["young", "mid", "old"]], stddev=noise),
    ]
    field = bt.MarkovRandomField().fit_marginals(margins, cardinalities, base=bt.Marginal("age", of_age[::-1]))
    for sex in counts.index:
        for age in counts.columns:
            assert field.probability({"sex": sex, "age": age}) == pytest.approx(counts.loc[sex, age] / 100.0, abs=1e-6)
    spread = field.residuals_[3].stddev
    assert spread[field.states["sex"].index("f"), field.states["age"].index("old")] == 9.0
    if cardinalities is None:
        assert field.states == {"age": ("young", "old", "mid"), "sex": ("m", "f")}


def test_tables_of_pandas_with_numbers_of_states_and_zones():
    _, of_age = crossed()
    numbered = of_age.rename({"mid": 0, "old": 1, "young": 2})
    field = bt.MarkovRandomField().fit_marginals([bt.Marginal("age", numbered), bt.Marginal("sex", [40, 60])])
    np.testing.assert_allclose(field.marginal("age"), [0.15, 0.3, 0.55], atol=1e-8)
    zones = bt.MarkovRandomField().fit_zones([[bt.Marginal("age", of_age)], [bt.Marginal("age", of_age[::-1] * 2.0)]])
    np.testing.assert_allclose(zones.marginal("age"), [[0.55, 0.3, 0.15]] * 2, atol=1e-8)


def test_tables_of_pandas_that_do_not_fit():
    counts, of_age = crossed()
    with pytest.raises(ValueError, match="table has 'sex' where names has 'age'"):
        bt.Marginal(("age", "sex"), counts)
    with pytest.raises(ValueError, match="stddev must have the states of the table in the same order"):
        bt.Marginal("age", of_age, stddev=of_age[::-1])
    margins = [bt.Marginal(("sex", "age"), counts), bt.Marginal("age", of_age.rename({"mid": "middle"}))]
    with pytest.raises(ValueError, match=r"margins\[1\] over .* must have the states mid, old, young of 'age', found"):
        bt.MarkovRandomField().fit_marginals(margins)


def test_impossible_cells_and_labels():
    ages, margin = ["child", "adult"], [[25.0, 0.0], [35.0, 40.0]]
    names = {"age": ages, "married": ["no", "yes"], "works": ["no", "yes"]}
    field = bt.MarkovRandomField(method="auto").fit_marginals(
        [bt.Marginal("age", [25.0, 75.0]), bt.Marginal("married", [60.0, 40.0]), bt.Marginal("works", [50.0, 50.0])],
        names,
        impossible=[{"age": "child", "married": "yes"}, {"age": "child", "works": "yes"}],
    )
    np.testing.assert_allclose(field.marginal(("age", "married")), np.array(margin) / 100, atol=1e-8)
    np.testing.assert_allclose(field.marginal(("age", "works")), [[0.25, 0.0], [0.25, 0.5]], atol=1e-8)
    expected = 0.75 * np.outer([35 / 75, 40 / 75], [25 / 75, 50 / 75])
    np.testing.assert_allclose(
        np.reshape(field.marginal(("age", "married", "works")), (2, 2, 2))[1], expected, atol=1e-8
    )


def test_on_regions_a_set_that_no_margin_covers_has_what_the_fitted_margins_say_and_most_entropy():
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(72)).reshape(SHAPE)
    margins = [bt.Marginal([NAMES[v] for v in scope], 500 * margin_of(p, scope)) for scope in SCOPES]
    field = bt.MarkovRandomField(method="cccp").fit_marginals(margins, dict(zip(NAMES, SHAPE, strict=True)))
    asked = ("c", "a", "b")
    known = [(pair, margin_of(p, [NAMES.index(asked[v]) for v in pair])) for pair in ((2, 1), (2, 0), (0, 1))]
    expected = proportional_fitting(np.ones([SHAPE[NAMES.index(name)] for name in asked]), known)
    np.testing.assert_allclose(field.marginal(asked), expected, atol=1e-5)
    given = field.marginal(("c", "a"), given={"b": 2})
    np.testing.assert_allclose(given, expected[:, :, 2] / expected[:, :, 2].sum(), atol=1e-5)
    one_hot = field.marginal(("b", "d"), given={"b": 2})
    np.testing.assert_allclose(one_hot[2], margin_of(p, (3, 1))[:, 2] / margin_of(p, (1,))[2], atol=1e-5)
    assert one_hot[[0, 1, 3]].sum() == 0.0
    with pytest.raises(ValueError, match=r"given\[1\]"):
        field.marginal("a", given={1: 4})


def test_where_no_junction_tree_fits_regions_are_used_and_the_field_says_so():
    rng = np.random.default_rng(1)
    p = rng.dirichlet(5 * np.ones(72)).reshape(SHAPE)
    scopes = ((0, 1, 2), (1, 2, 3), (0, 3))
    margins, names = marginals_of(p, scopes, 100.0), dict(zip(NAMES, SHAPE, strict=True))
    exact = bt.MarkovRandomField(method="auto").fit_marginals(margins, names)
    field = bt.MarkovRandomField(method="auto", memory_budget=300).fit_marginals(margins, names)
    assert (exact.method_, field.method_) == ("exact", "cccp")
    assert field.inference_method_ == "double-loop"
    for scope in scopes:
        found = field.marginal([NAMES[v] for v in scope])
        np.testing.assert_allclose(found, margin_of(p, scope), atol=1e-8)
    np.testing.assert_allclose(field.marginal(("d", "a", "b")), exact.marginal(("d", "a", "b")), atol=0.01)
    with pytest.raises(ValueError, match="memory_budget: the best junction tree"):
        bt.MarkovRandomField(method="exact", memory_budget=300).fit_marginals(margins, names)
    convex = bt.MarkovRandomField(method="convex").fit_marginals(margins, names)
    np.testing.assert_allclose(convex.marginal(("a", "b")), margin_of(p, (0, 1)), atol=1e-7)
    with pytest.raises(ValueError, match="needs observed states"):
        bt.MarkovRandomField(method="pseudolikelihood").fit_marginals(margins, names)


@pytest.mark.parametrize("budget", [2**28, 300])
def test_files_keep_what_was_fitted(tmp_path, budget):
    rng = np.random.default_rng(3)
    p = rng.dirichlet(5 * np.ones(72)).reshape(SHAPE)
    names = {"a": ["x", "y", "z"], "b": 4, "c": 2, "d": 3}
    field = bt.MarkovRandomField(method="auto", memory_budget=budget).fit_marginals(
        marginals_of(p, ((0, 1, 2), (1, 2, 3), (0, 3)), 100.0), names, impossible=[{"a": "y", "d": 1, "c": 0}],
        base=bt.Marginal(("a", "c"), rng.random((3, 2)))) if budget == 300 else bt.MarkovRandomField(
        method="auto").fit_marginals(marginals_of(p, SCOPES, 100.0), names)  # fmt: skip
    field.save(tmp_path / "field.bt")
    again = bt.MarkovRandomField.load(tmp_path / "field.bt")
    for asked in (("a", "b"), ("d", "a"), ("d", "c")):
        np.testing.assert_allclose(again.marginal(asked), field.marginal(asked), atol=1e-9)
    X = rng.integers(0, 2, (5, 4))
    np.testing.assert_allclose(again.score_samples(X), field.score_samples(X), atol=1e-6)
    assert again.method_ == field.method_
    assert again.total_ == field.total_


def test_any_fitted_field_has_marginals_of_any_variables():
    rng = np.random.default_rng(0)
    X = rng.integers(0, 2, (50, 4))
    field = bt.MarkovRandomField(edges=[(0, 1), (1, 2), (2, 3)], method="auto").fit(X)
    assert field.method_ == "exact"
    states = np.indices((2, 2, 2, 2)).reshape(4, -1).T
    joint = np.exp(field.score_samples(states)).reshape(2, 2, 2, 2)
    np.testing.assert_allclose(field.marginal((3, 0)), joint.sum(axis=(1, 2)).T, atol=1e-9)
    field.memory_budget = 10
    np.testing.assert_allclose(field.marginal((3, 0, 1)), joint.sum(axis=2).transpose(2, 0, 1), atol=1e-7)


GOOD = (("a", "b"), [[30.0, 20.0], [10.0, 40.0]])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: bt.Marginal(("a", "b"), [1.0, 2.0]),
            r"table must have one axis for each of \('a', 'b'\), found shape",
        ),
        (lambda: bt.Marginal(("a", "a"), [[1.0]]), "names must be one or more different variables"),
        (
            lambda: bt.Marginal((1, 0), [[1.0, 2.0]]),
            r"names must be one or more strings, found \(1, 0\)",
        ),
        (lambda: bt.Marginal(0, [1.0, 2.0]), "names must be one or more strings"),
        (lambda: bt.Marginal("a", [1.0, np.nan]), r"table holds NaN or infinity at \(1,\)"),
        (lambda: bt.Marginal("a", [1.0, -2.0]), r"table is exact and has a negative entry at \(1,\); give stddev="),
        (lambda: bt.Marginal("a", [0.0, 0.0]), "table must add up to more than 0"),
        (lambda: bt.Marginal("a", ["x", "y"]), "table must hold real numbers"),
        (lambda: bt.Marginal("a", [1.0, 2.0], stddev=0.0), "stddev must be positive and finite"),
        (
            lambda: bt.Marginal("a", [1.0, 2.0], stddev=1e-200),
            r"stddev must be between 1e-100 and 1e\+100, found 1e-200",
        ),
        (lambda: bt.Marginal("a", [1.0, 2.0], stddev=[1.0, 1e200]), r"stddev must be between .* found 1e\+200"),
        (lambda: bt.Marginal("a", [1.0, 1e300]), r"table holds a number above 1e\+100 at \(1,\)"),
        (lambda: bt.Marginal("a", [1.0, -1e300], stddev=1.0), r"table holds a number above 1e\+100 at \(1,\)"),
        (lambda: bt.Marginal("a", [1.0, 2.0], stddev=[1.0]), r"stddev must be one number or have the table's shape"),
    ],
)
def test_bad_tables_are_refused(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make()


@pytest.mark.parametrize(
    ("margins", "options", "message"),
    [
        ([], {}, "margins is empty"),
        (bt.Marginal(*GOOD), {}, "margins must be a list of Marginal"),
        ([bt.Marginal(*GOOD), 3], {}, r"margins\[1\] must be a Marginal, found int"),
        ([bt.Marginal(*GOOD)], {"cardinalities": {"a": 2}}, r"margins\[0\]: there is no variable 'b'; the"),
        ([bt.Marginal(*GOOD)], {"cardinalities": {"a": 2, "b": 3}}, r"margins\[0\] over .* must have shape \(2, 3\)"),
        ([bt.Marginal(*GOOD)], {"cardinalities": {"a": 2, "b": ["x", "x"]}}, r"cardinalities\['b'\] must be a number"),
        ([bt.Marginal(*GOOD)], {"cardinalities": {"a": 2, "b": 0}}, r"cardinalities\['b'\] must be at least 1"),
        ([bt.Marginal(*GOOD)], {"cardinalities": [2, 2]}, "cardinalities must map names"),
        ([bt.Marginal(*GOOD), bt.Marginal("b", [1.0, 2.0, 3.0])], {}, r"margins\[1\] has 3 states of 'b', an"),
        ([bt.Marginal(*GOOD), bt.Marginal("b", [41.0, 60.0])], {}, r"margins\[1\] is exact and adds up to 101, but ma"),
        ([bt.Marginal(*GOOD)], {"total": 90.0}, r"margins\[0\] is exact and adds up to 100, but total is 90"),
        ([bt.Marginal(*GOOD)], {"total": -1.0}, "total must be positive and finite"),
        ([bt.Marginal(*GOOD)], {"total": "many"}, "total must be a number"),
        ([bt.Marginal("a", [0.4, 0.6])], {"total": 1e200}, r"total must be between 1e-20 and 1e\+20, found 1e\+200"),
        ([bt.Marginal("a", [0.4, 0.6])], {"total": 10**400}, r"total must be between 1e-20 and 1e\+20, found 10000"),
        ([bt.Marginal("a", [0.4, 0.6], stddev=0.01)], {"total": 1e-200}, "total must be between 1e-20 .* found 1e-200"),
        ([bt.Marginal("a", [1e-300])], {}, "margins: the total that they add up to must be between .* found 1e-300"),
        ([bt.Marginal("a", [1.0, 2e60])], {}, r"margins: the total that they add up to must be .* found 2e\+60"),
        (
            [bt.Marginal("a", [4.0, 6.0], stddev=1e-30)],
            {},
            r"margins\[0\]: stddev as part of the total must be between",
        ),
        ([bt.Marginal("a", [4.0, 6.0], stddev=1e60)], {}, r"margins\[0\]: stddev as part of the total must be between"),
        ([bt.Marginal("a", [4.0, -1e30], stddev=1.0)], {"total": 5}, r"margins\[0\] is too far from counts in a"),
        ([bt.Marginal(*GOOD)], {"entropy_weight": 1e-200}, "entropy_weight must be between 1e-100 and"),
        ([bt.Marginal(*GOOD)], {"entropy_weight": 1e200}, r"entropy_weight must be between .* found 1e\+200"),
        ([bt.Marginal(*GOOD)], {"base": np.full((2, 2), 1e308)}, r"base must hold .* found 1e\+308 at \(0, 0\)"),
        ([bt.Marginal(*GOOD)], {"entropy_weight": 0.0}, "entropy_weight must be positive"),
        (
            [bt.Marginal(*GOOD)],
            {"impossible": [{"a": 0}]},
            r"margins\[0\] gives 50 to a=0, which impossible\[0\] rules out",
        ),
        ([bt.Marginal(*GOOD)], {"impossible": [{"z": 0}]}, r"impossible\[0\]: there is no variable 'z'"),
        ([bt.Marginal(*GOOD)], {"impossible": [{"a": 7}]}, r"impossible\[0\]: 'a' has states 0 to 1, found 7"),
        ([bt.Marginal(*GOOD)], {"impossible": {"a": 1}}, "impossible must be a list of mappings"),
        ([bt.Marginal(*GOOD)], {"base": [[1.0, 2.0, 3.0]]}, r"base must be a Marginal, a list of them, or a table of"),
        ([bt.Marginal(*GOOD)], {"base": [[1.0, 2.0], [3.0, -1.0]]}, r"base must hold .* found -1 at \(1, 1\)"),
        ([bt.Marginal(*GOOD)], {"base": [[1.0, 2.0], [np.nan, 1.0]]}, r"base must hold .* found nan at \(1, 0\)"),
        ([bt.Marginal(*GOOD)], {"base": np.zeros((2, 2))}, "base must hold .* found zeros alone"),
        ([bt.Marginal(*GOOD)], {"base": []}, r"base must be a Marginal, .* found shape \(0,\)"),
        ([bt.Marginal(*GOOD)], {"base": [bt.Marginal(*GOOD), 3]}, r"base\[1\] must be a Marginal, found int"),
        ([bt.Marginal(*GOOD)], {"base": bt.Marginal("z", [1.0, 2.0])}, "base: there is no variable 'z'"),
        ([bt.Marginal(*GOOD)], {"base": [[1.0, 2.0], [0.0, 1.0]]}, r"margins\[0\] gives mass to a=1, b=0, where base"),
    ],
)
def test_bad_margins_are_refused_before_any_work(margins, options, message, monkeypatch):
    def work(*_args, **_options):
        raise AssertionError("work was begun")

    monkeypatch.setattr("bactrian.estimators.markov_random_field.fit_margins", work)
    field = bt.MarkovRandomField(method="auto")
    with pytest.raises((ValueError, TypeError), match=message):
        field.fit_marginals(margins, options.pop("cardinalities", None), **options)
    assert not hasattr(field, "weights_")


def extremes():
    """Margins at the edges of what is allowed, with the options of their fit."""
    table = np.array([[0.3, 0.2], [0.1, 0.4]])
    for total in (1e-19, 1e-3, 1e19):
        for stddev in (None, 1e-14 * total, 1e-3 * total, 1e14 * total):
            pair = [bt.Marginal(("a", "b"), total * table, stddev), bt.Marginal(("b", "c"), total * table.T, stddev)]
            yield pair, {"total": total}
            yield [bt.Marginal(("a", "b"), total * table), pair[1]], {"entropy_weight": 1e-90}
            yield pair, {"entropy_weight": 1e90}
    for one in (1e-19, 1.0, 1e19):
        yield [bt.Marginal("a", [one])], {}
        yield [bt.Marginal("a", [-one], one)], {"total": one}
        yield [bt.Marginal(("a", "b"), [[one, one]]), bt.Marginal(("a", "c"), [[2 * one, 0.0]])], {}
    yield [bt.Marginal(("a", "b"), [[1e-300, 20.0], [10.0, 40.0]])], {"base": [[1e-300, 1e100], [0.5, 1.0]]}
    yield [bt.Marginal("a", [-9e6, 4.0], 2.0), bt.Marginal("a", [7.0, 9e6], 1e-13)], {"total": 11.0}
    yield [bt.Marginal("a", [-9e6, 4.0], 1e-13), bt.Marginal("a", [7.0, 9e18], 1e13)], {"total": 11.0}


@pytest.mark.filterwarnings("ignore::bactrian.ConvergenceWarning", "ignore::bactrian.ContradictionWarning")
@pytest.mark.parametrize("method", ["exact", "cccp", "zones"])
def test_extreme_numbers_give_finite_answers(method):
    for margins, options in extremes():
        if method == "zones":
            options.pop("total", None)
            if not margins[0].table.sum() > 0.0:
                continue
            field = bt.MarkovRandomField(method="exact").fit_zones([margins, margins], **options)[1]
        else:
            field = bt.MarkovRandomField(method=method).fit_marginals(margins, **options)
        found = field.solution_
        assert np.isfinite([*found.weights, found.objective, found.moment_gap, found.violation]).all(), (
            margins,
            options,
        )
        for margin in field.residuals_:
            assert np.isfinite(margin.fitted).all()
            assert np.isfinite(margin.distance)
            assert margin.stddev is None or np.isfinite(margin.z).all()
            assert field.marginal(margin.names).sum() == pytest.approx(1.0)


def test_unknown_names_in_marginal():
    field = bt.MarkovRandomField(method="auto").fit_marginals([bt.Marginal(*GOOD)])
    with pytest.raises(ValueError, match="names: there is no variable 'z'; the variables are a, b"):
        field.marginal("z")
    with pytest.raises(ValueError, match="repeats a variable"):
        field.marginal(("a", "a"))


def test_limits_give_a_status_and_a_warning():
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(72)).reshape(SHAPE)
    margins = marginals_of(p, SCOPES, 100.0)
    with pytest.warns(bt.ConvergenceWarning, match="iteration limit"):
        field = bt.MarkovRandomField(method="auto", max_iterations=2).fit_marginals(margins)
    assert field.solution_.status is bt.Status.ITERATION_LIMIT
    seen = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bt.ConvergenceWarning)
        field = bt.MarkovRandomField(method="auto").fit_marginals(
            margins, callback=lambda progress: seen.append(progress) or len(seen) == 3
        )
    assert field.solution_.status is bt.Status.STOPPED
    assert [progress.iteration for progress in seen] == [1, 2, 3]


def test_nothing_is_left_of_an_earlier_fit_of_another_kind() -> None:
    """Neither of margins after rows, nor of rows after margins."""
    X = np.random.default_rng(0).integers(0, 2, (30, 3))
    holes = X.copy()
    holes[0, 0] = -1
    margins = [bt.Marginal(("a", "b"), [[30, 10], [20, 40]])]
    field = bt.MarkovRandomField([(0, 1), (1, 2)], prior_variance="cv", n_starts=2).fit(holes)
    assert field.prior_scores_
    assert field.starts_.size == 2
    field.fit_marginals(margins)
    assert not {"prior_scores_", "starts_"} & set(vars(field))
    assert field.residuals_.margins
    assert "residuals_" not in vars(field.set_params(prior_variance=1.0).fit(X))


def test_all_answers_of_a_region_graph_are_those_of_its_margins() -> None:
    """Whichever way they are asked for; belief propagation given the evidence would say something else."""
    joint = np.random.default_rng(0).dirichlet(np.ones(81)).reshape(3, 3, 3, 3)
    pairs = [(a, b) for a, b in combinations(range(4), 2)]
    tables = {pair: joint.sum(axis=tuple(v for v in range(4) if v not in pair)) for pair in pairs}
    margins = [bt.Marginal(tuple("abcd"[v] for v in pair), table) for pair, table in tables.items()]
    field = bt.MarkovRandomField(method="cccp").fit_marginals(margins, total=1000)
    states = np.array([[-1, state, -1, -1] for state in range(3)])
    rows = field.predict_marginals(states)
    for b in range(3):
        expected = tables[0, 1][:, b] / tables[0, 1][:, b].sum()
        np.testing.assert_allclose(field.conditional({"b": b})[0], expected, atol=1e-8)
        np.testing.assert_allclose(field.marginals({"b": b})[0], expected, atol=1e-8)
        np.testing.assert_allclose(field.marginal("a", given={"b": b}), expected, atol=1e-8)
        np.testing.assert_allclose(rows[0][b], expected, atol=1e-8)
        for a in range(3):
            np.testing.assert_allclose(field.probability({"a": a}, given={"b": b}), expected[a], atol=1e-8)
            np.testing.assert_allclose(field.probability({"b": b, "a": a}), tables[0, 1][a, b], atol=1e-8)
    np.testing.assert_allclose(field.marginals()[2], joint.sum(axis=(0, 1, 3)), atol=1e-8)
    with pytest.raises(TypeError, match=r"event\[0\] is 'x'; states of variable 0 are integers"):
        bt.MarkovRandomField(prior_variance=1.0).fit([[0, 1], [1, 0]]).probability({0: "x"})
