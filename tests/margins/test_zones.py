"""fit_zones: every zone as fit_marginals fits it, whatever the number of threads."""

import numpy as np
import pytest

import bactrian as bt

NAMES, SHAPE = ("age", "sex", "size"), (4, 2, 3)


def zones_of(n, seed=0):
    rng = np.random.default_rng(seed)
    zones = []
    for _ in range(n):
        joint = rng.integers(0, 30, SHAPE).astype(float)
        joint[0, 0, 0] += 1.0
        zones.append(
            [bt.Marginal(("age", "sex"), joint.sum(axis=2)), bt.Marginal("size", joint.sum(axis=(0, 1))),
             bt.Marginal(("size", "sex"), joint.sum(axis=0).T)]
        )  # fmt: skip
    return zones, rng.random(SHAPE)


@pytest.mark.parametrize("n_threads", [1, 3])
def test_zones_are_fitted_as_alone(n_threads):
    zones, base = zones_of(7)
    fitted = bt.MarkovRandomField(method="auto", tolerance=1e-9, n_threads=n_threads).fit_zones(zones, base=base)
    assert len(fitted) == 7
    assert fitted.converged.all()
    assert fitted.contradictions == {}
    joint = fitted.marginal(NAMES)
    for z, margins in enumerate(zones):
        alone = bt.MarkovRandomField(method="auto", tolerance=1e-9).fit_marginals(margins, base=base)
        assert fitted.totals[z] == alone.total_
        np.testing.assert_allclose(joint[z], alone.marginal(NAMES), rtol=1e-9)
    rows = fitted[2].sample(int(fitted.totals[2]), rounded=True)
    assert np.array_equal(np.bincount(rows[:, 2], minlength=3), zones[2][1].table)
    assert [field.total_ for field in fitted[:2]] == fitted.totals[:2].tolist()


def test_noisy_and_exact_zones_together_are_fitted_as_alone():
    zones, base = zones_of(6)
    rng = np.random.default_rng(1)
    for margins in zones[::2]:
        margins[:] = [bt.Marginal(m.names, m.table + rng.normal(0.0, 3.0, m.table.shape), stddev=3.0) for m in margins]
    zones[1][2] = bt.Marginal(zones[1][2].names, zones[1][2].table, stddev=2.0)
    field = bt.MarkovRandomField(method="auto", tolerance=1e-9)
    one, three = (field.set_params(n_threads=n).fit_zones(zones, base=base) for n in (1, 3))
    assert one.converged.all()
    for z, margins in enumerate(zones):
        alone = bt.MarkovRandomField(method="auto", tolerance=1e-9).fit_marginals(margins, base=base)
        np.testing.assert_allclose(one[z].marginal(NAMES), alone.marginal(NAMES), atol=1e-7)
        np.testing.assert_array_equal(one[z].weights_, three[z].weights_)
        assert one[z].solution_.moment_gap <= 1e-9 * one.totals[z]


def test_zones_of_all_sizes_are_fitted_to_their_own_totals():
    zones, _ = zones_of(70)
    factors = 10.0 ** np.random.default_rng(2).uniform(-6.0, 6.0, len(zones))
    zones = [[bt.Marginal(m.names, f * m.table) for m in margins] for f, margins in zip(factors, zones, strict=True)]
    fitted = bt.MarkovRandomField(method="auto", tolerance=1e-8).fit_zones(zones)
    assert fitted.converged.all()
    for zone, total, margins in zip(fitted, fitted.totals, zones, strict=True):
        for margin in margins:
            np.testing.assert_allclose(total * zone.marginal(margin.names), margin.table, atol=1e-10 * total)


def test_a_zone_that_no_distribution_has_leaves_the_others_alone():
    never = [[0.0, 50.0], [50.0, 0.0]]
    ring = [bt.Marginal(names, never) for names in (("a", "b"), ("b", "c"), ("c", "a"))]
    possible = [bt.Marginal(margin.names, [[20.0, 30.0], [30.0, 20.0]]) for margin in ring]
    with pytest.warns(
        bt.ContradictionWarning, match=r"1 of 3 zones contradict each other; zones\[1\]: no distribution"
    ):
        among = bt.MarkovRandomField(method="auto").fit_zones([possible, ring, possible])
    np.testing.assert_allclose(among[2].marginal(("a", "b")), possible[0].table / 100.0, atol=1e-8)


def test_limits_of_zones():
    zones, _ = zones_of(4)
    with pytest.warns(bt.ConvergenceWarning, match="4 of 4 zones stopped short; .*iteration limit"):
        bt.MarkovRandomField(method="auto", max_iterations=1).fit_zones(zones)
    with pytest.warns(bt.ConvergenceWarning, match="zones stopped short; .*time limit"):
        bt.MarkovRandomField(method="auto", max_seconds=0.0).fit_zones(zones)


def test_zones_that_contradict_themselves_are_named():
    zones, _ = zones_of(3)
    zones[1][1] = bt.Marginal("size", zones[1][1].table + np.array([1.0, -1.0, 0.0]))
    with pytest.warns(bt.ContradictionWarning, match=r"margins of 1 of 3 zones contradict each other; zones\[1\]: "):
        fitted = bt.MarkovRandomField(method="auto").fit_zones(zones)
    assert list(fitted.contradictions) == [1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda zones: [], "zones is empty"),
        (lambda zones: 3, "zones must be a list with the margins of each zone"),
        (lambda zones: [zones[0], zones[1][:2]], r"zones\[1\] must have the margins of zones\[0\] in the same order"),
        (lambda zones: [zones[0], [*zones[1][:2], 5]], r"zones\[1\]: margins\[2\] must be a Marginal, found int"),
        (
            lambda zones: [zones[0], [*zones[1][:1], bt.Marginal("size", [1.0, 2.0, 3.0])]],
            r"zones\[1\]: margins\[1\] is exact and adds up to 6",
        ),
        (
            lambda zones: [zones[0], [bt.Marginal(m.names, 1e60 * m.table) for m in zones[1]]],
            r"zones\[1\]: margins: the total that they add up to must be between 1e-20 and 1e\+20, found",
        ),
    ],
)
def test_bad_zones_are_refused(change, message):
    zones, _ = zones_of(2)
    with pytest.raises((ValueError, TypeError), match=message):
        bt.MarkovRandomField(method="auto").fit_zones(change(zones))


def test_zones_need_the_exact_learner():
    zones, _ = zones_of(2)
    with pytest.raises(ValueError, match="method must be 'auto' or 'exact' for zones"):
        bt.MarkovRandomField(method="cccp").fit_zones(zones)
    with pytest.raises(ValueError, match="memory_budget: the best junction tree"):
        bt.MarkovRandomField(memory_budget=8, method="auto").fit_zones(zones)


def test_exact_zeros_that_leave_no_state():
    never = [[0.0, 50.0], [50.0, 0.0]]
    margins = [bt.Marginal(names, never) for names in (("a", "b"), ("b", "c"), ("c", "a"))]
    with pytest.warns(bt.ContradictionWarning, match="no distribution has all"):
        bt.MarkovRandomField(method="auto").fit_marginals(margins)
    cannot = [{"a": 0, "b": 0}, {"a": 1, "b": 1}, {"a": 0, "b": 1}, {"a": 1, "b": 0}]
    noisy = [bt.Marginal("a", [30.0, 20.0], stddev=1.0), bt.Marginal("b", [30.0, 20.0], stddev=1.0)]
    with pytest.raises(ValueError, match="leaves no state of"):
        bt.MarkovRandomField(method="auto").fit_marginals(noisy, impossible=cannot)
