"""Edges from rows: the penalised pseudo-likelihood, its path, and what the criteria find."""

from itertools import product

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import mutual_info_score

import bactrian as bt
from bactrian.learners.structure import (
    Conditionals,
    basis,
    fit_tables,
    minimise_penalised,
    mutual_information,
    select,
    tree,
    violation,
)

SIZES = np.array([2, 3, 2, 4])


def mixed_rows(n=70, seed=0, missing=0.0):
    """Variables of several sizes, of which the second follows the first."""
    rng = np.random.default_rng(seed)
    X = np.stack([rng.integers(0, k, n) for k in SIZES], axis=1)
    X[:, 1] = np.where(rng.random(n) < 0.6, X[:, 0], X[:, 1])
    X[rng.random(X.shape) < missing] = -1
    return X, rng.uniform(0.5, 2.0, n)


def ising_rows(couplings, fields, n, rng, sweeps=40):
    """Rows of an Ising field by Gibbs sampling, a chain for each; 0 and 1."""
    spins = rng.choice([-1.0, 1.0], (n, len(fields)))
    for _ in range(sweeps):
        for v in range(len(fields)):
            up = 1.0 / (1.0 + np.exp(-2.0 * (spins @ couplings[v] + fields[v])))
            spins[:, v] = np.where(rng.random(n) < up, 1.0, -1.0)
    return (spins > 0.0).astype(int)


def sparse_ising(n_variables, n_edges, rng, low=0.25, high=0.6):
    pairs = np.stack(np.triu_indices(n_variables, 1), axis=1)
    chosen = pairs[rng.choice(len(pairs), n_edges, replace=False)]
    couplings = np.zeros((n_variables, n_variables))
    for a, b in chosen:
        couplings[a, b] = couplings[b, a] = rng.choice([-1, 1]) * rng.uniform(low, high)
    return couplings, rng.uniform(-0.3, 0.3, n_variables)


def random_point(of, rng):
    tables = rng.normal(size=(of.scale.size,) * 2) * 0.4
    tables = tables + tables.T
    tables[of.owner[:, None] == of.owner] = 0.0
    return rng.normal(size=of.scale.size), tables


def sum_to_zero(k):
    """Columns that span the vectors whose sum is 0, orthonormal, by another route than Helmert's."""
    left, _, _ = np.linalg.svd(np.eye(k) - 1.0 / k)
    return left[:, : k - 1]


def tables_of(of, at):
    """Edge tables, from the coordinates of the library."""
    found = {}
    bounds = np.concatenate([[0], np.cumsum(of.sizes - 1)])
    helmert = [basis(k) for k in of.sizes.tolist()]
    for a in range(of.sizes.size):
        for b in range(a + 1, of.sizes.size):
            inner = at.tables[bounds[a] : bounds[a + 1], bounds[b] : bounds[b + 1]]
            scales = of.scale[bounds[a]] * of.scale[bounds[b]]
            found[a, b] = helmert[a] @ inner @ helmert[b].T / scales
    return found


def fields_of(of, at):
    """Tables of variables; the biases of the library belong to centred features."""
    found = []
    for v, k in enumerate(of.sizes.tolist()):
        columns = slice(int(of.starts[v]), int(of.starts[v]) + k - 1)
        plain = at.bias[columns] - (of.mean / of.scale) @ at.tables[:, columns]
        found.append(basis(k) @ (plain / of.scale[columns]))
    return found


def loss_of_tables(X, weights, fields, tables):
    """Mean negative pseudo-log-likelihood of tables, cell by cell; missing neighbours are not supported."""
    total = 0.0
    for row, weight in zip(X, weights, strict=True):
        for v in range(X.shape[1]):
            scores = fields[v].copy()
            for (a, b), table in tables.items():
                if a == v:
                    scores += table[:, row[b]]
                elif b == v:
                    scores += table[row[a]]
            total -= weight * (scores[row[v]] - np.log(np.exp(scores).sum()))
    return total / weights.sum()


@pytest.mark.parametrize("missing", [0.0, 0.15])
def test_slopes_are_those_of_the_loss(missing):
    X, weights = mixed_rows(missing=missing)
    of = Conditionals.of(X, SIZES, weights, 1)
    rng = np.random.default_rng(1)
    bias, tables = random_point(of, rng)
    _, bias_slope, slope = of.value_and_gradient(bias, tables)
    h = 1e-6
    for i in range(bias.size):
        step = np.zeros_like(bias)
        step[i] = h
        by = (of.value_and_gradient(bias + step, tables)[0] - of.value_and_gradient(bias - step, tables)[0]) / (2 * h)
        assert bias_slope[i] == pytest.approx(by, abs=1e-7)
    for i, j in zip(*np.nonzero(np.triu(of.owner[:, None] != of.owner)), strict=True):
        step = np.zeros_like(tables)
        step[i, j] = step[j, i] = h
        by = (of.value_and_gradient(bias, tables + step)[0] - of.value_and_gradient(bias, tables - step)[0]) / (2 * h)
        assert slope[i, j] == pytest.approx(by, abs=1e-7)


def test_loss_is_that_of_tables_cell_by_cell():
    X, weights = mixed_rows()
    of = Conditionals.of(X, SIZES, weights, 1)
    bias, tables = random_point(of, np.random.default_rng(2))
    at = of.point(bias, tables)
    found = tables_of(of, at)
    assert at.value == pytest.approx(loss_of_tables(X, weights, fields_of(of, at), found), rel=1e-12)


def test_loss_is_convex():
    X, weights = mixed_rows(missing=0.1)
    of = Conditionals.of(X, SIZES, weights, 1)
    rng = np.random.default_rng(3)
    for _ in range(10):
        one, other = random_point(of, rng), random_point(of, rng)
        middle = of.value_and_gradient(*(0.5 * (a + b) for a, b in zip(one, other, strict=True)))[0]
        assert middle <= 0.5 * (of.value_and_gradient(*one)[0] + of.value_and_gradient(*other)[0]) + 1e-12


def test_penalised_optimum_meets_the_conditions_of_a_judge_with_tables_of_its_own():
    """Slopes of the loss in tables whose rows and columns sum to 0, by finite differences, against each table."""
    X, weights = mixed_rows()
    of = Conditionals.of(X, SIZES, weights, 1)
    root = np.sqrt(np.outer(SIZES - 1.0, SIZES - 1.0))
    np.fill_diagonal(root, np.inf)
    penalty = 0.25
    at = minimise_penalised(of, of.independent(), penalty * root, 1e-9)
    assert violation(of, at, penalty * root) <= 1e-9
    tables, fields = tables_of(of, at), fields_of(of, at)
    share = weights / weights.sum()
    chances = [np.bincount(X[:, v], share) for v in range(4)]
    deviation = [np.sqrt((p @ (1.0 - p)) / (p.size - 1)) for p in chances]
    n_away = 0
    for (a, b), table in tables.items():
        left, right = sum_to_zero(SIZES[a]), sum_to_zero(SIZES[b])
        slope = np.empty((SIZES[a] - 1, SIZES[b] - 1))
        for i, j in np.ndindex(*slope.shape):
            h = 1e-5 * np.outer(left[:, i], right[:, j])
            up, down = ({**tables, (a, b): table + sign * h} for sign in (1, -1))
            rise = loss_of_tables(X, weights, fields, up) - loss_of_tables(X, weights, fields, down)
            slope[i, j] = rise / 2e-5
        weight = penalty * np.sqrt((SIZES[a] - 1) * (SIZES[b] - 1)) * deviation[a] * deviation[b]
        inner = left.T @ table @ right
        if np.abs(table).max() > 0.0:
            np.testing.assert_allclose(slope, -weight * inner / np.linalg.norm(inner), atol=1e-7)
            n_away += 1
        else:
            assert np.linalg.norm(slope) <= weight + 1e-7
    assert 0 < n_away < 6


def test_tables_under_a_gaussian_prior_are_those_of_the_general_learner():
    X, weights = mixed_rows()
    X[X[:, 3] == 3, 3] = 2  # a state that is never seen
    X = np.insert(X, 1, 0, axis=1)  # and a variable of one state
    sizes = np.insert(SIZES, 1, 1)
    edges = np.array([[0, 2], [3, 2], [0, 4], [1, 3]])
    variances = np.array([10.0, 2.0, 10.0, 5.0, 3.0, 0.5, 2.0, 0.1, 0.7])
    per_weight = np.repeat(variances, np.concatenate([sizes, sizes[edges].prod(axis=1)]))
    field = bt.MarkovRandomField(edges, cardinalities=sizes)
    data = field.encode(X, sample_weight=weights)
    expected = bt.learn(data, "pseudolikelihood", prior_variance=per_weight, tolerance=1e-9)
    found = fit_tables(X, sizes, weights, edges, variances, tolerance=1e-10, max_iterations=1000)
    assert found.converged
    assert found.objective == pytest.approx(expected.objective, rel=1e-11)
    np.testing.assert_allclose(found.weights, expected.weights, atol=1e-6)


def test_one_variance_for_all_edges_where_variables_follow_from_others():
    """A column, its negation, and noise: the penalty that finds edges would hold their tables small."""
    rng = np.random.default_rng(3)
    first, noise = rng.integers(0, 2, (200, 6)), rng.integers(0, 2, (200, 4))
    sure = bt.MarkovRandomField("select", criterion="aic").fit(np.hstack([first, 1 - first, first, noise]))
    assert isinstance(sure.prior_variance_["edges"], float)
    assert sure.prior_variance_["edges"] > 1.0
    couplings, fields = sparse_ising(20, 25, rng)
    loose = bt.MarkovRandomField("select", criterion="aic").fit(ising_rows(couplings, fields, 200, rng))
    assert len(loose.prior_variance_["edges"]) == len(loose.edges_)


def test_mutual_information_of_the_rows_that_have_both():
    X, _ = mixed_rows(missing=0.2)
    found = mutual_information(X, SIZES, np.ones(len(X)))
    for a, b in product(range(4), range(4)):
        both = (X[:, a] >= 0) & (X[:, b] >= 0)
        expected = 0.0 if a == b else mutual_info_score(X[both, a], X[both, b])
        assert found[a, b] == pytest.approx(expected, abs=1e-12)


def test_tree_is_the_best_of_all_trees():
    rng = np.random.default_rng(5)
    couplings, fields = sparse_ising(5, 6, rng)
    X = ising_rows(couplings, fields, 300, rng)
    told = np.array([[mutual_info_score(X[:, a], X[:, b]) for b in range(5)] for a in range(5)])
    best = -1.0
    for code in product(range(5), repeat=3):  # Pruefer's: one for each tree
        degree = [1 + code.count(v) for v in range(5)]
        total = 0.0
        for v in code:
            leaf = degree.index(1)
            total += told[leaf, v]
            degree[leaf], degree[v] = 0, degree[v] - 1
        a, b = (v for v in range(5) if degree[v] == 1)
        best = max(best, total + told[a, b])
    edges = tree(X, np.full(5, 2), np.ones(300))
    assert len(edges) == 4
    assert sum(told[a, b] for a, b in edges) == pytest.approx(best, rel=1e-12)
    assert len(tree(np.zeros((4, 3), dtype=int), np.array([2, 2, 1]), np.ones(4))) == 0


def nodewise(X, gamma=0.25):
    """L1 logistic regressions of each variable on the others, each with the penalty of least EBIC; joined by AND."""
    n, n_variables = X.shape
    chosen = np.zeros((n_variables, n_variables), dtype=bool)
    for v in range(n_variables):
        others = np.delete(X, v, axis=1).astype(float)
        others = (others - others.mean(axis=0)) / others.std(axis=0)
        most, best = np.abs(others.T @ (X[:, v] - X[:, v].mean())).max(), np.inf
        for penalty in most * np.geomspace(0.9, 0.03, 15):
            model = LogisticRegression(
                l1_ratio=1.0, C=1.0 / penalty, solver="liblinear", intercept_scaling=100, tol=1e-3
            )
            scores = model.fit(others, X[:, v]).decision_function(others)
            used = model.coef_[0] != 0.0
            loss = np.logaddexp(0.0, -(2 * X[:, v] - 1) * scores).sum()
            criterion = 2.0 * loss + used.sum() * (np.log(n) + 2.0 * gamma * np.log(n_variables - 1))
            if criterion < best:
                best, chosen[v, np.arange(n_variables) != v] = criterion, used
    return np.argwhere(np.triu(chosen & chosen.T, 1))


def f1(edges, couplings):
    true = {tuple(pair) for pair in np.argwhere(np.triu(couplings, 1)).tolist()}
    found = {tuple(sorted(pair)) for pair in np.asarray(edges).tolist()}
    return 2 * len(true & found) / (len(true) + len(found))


def test_edges_are_found_better_than_by_nodewise_regressions():
    rng = np.random.default_rng(7)
    ours, theirs = [], []
    for _ in range(2):
        couplings, fields = sparse_ising(20, 30, rng)
        X = ising_rows(couplings, fields, 1000, rng)
        ours.append(f1(select(X, np.ones(1000), "ebic").edges, couplings))
        theirs.append(f1(nodewise(X), couplings))
    assert np.mean(ours) > 0.95
    assert np.mean(ours) >= np.mean(theirs)


def test_stability_keeps_hardly_any_false_edge():
    rng = np.random.default_rng(8)
    couplings, fields = sparse_ising(12, 12, rng, 0.4, 0.6)
    X = ising_rows(couplings, fields, 600, rng)
    found = select(X, np.ones(600), "stability", seed=1)
    true = {tuple(pair) for pair in np.argwhere(np.triu(couplings, 1)).tolist()}
    kept = {tuple(pair) for pair in found.edges.tolist()}
    assert len(kept - true) <= 1
    assert len(kept & true) >= 6
    noise = rng.integers(0, 2, (400, 12))
    assert len(select(noise, np.ones(400), "stability").edges) <= 1


def test_independent_variables_are_hardly_joined():
    """A false edge passes EBIC with probability 0.007, of 45 pairs."""
    rng = np.random.default_rng(9)
    rows = [rng.integers(0, 2, (500, 10)) for _ in range(5)]
    assert sum(len(select(X, np.ones(500), "ebic").edges) for X in rows) <= 5
    assert sum(len(select(X, np.ones(500), "aic").edges) for X in rows) == 0


@pytest.mark.parametrize("coupled", [False, True])
def test_default_is_not_worse_than_independent_variables(coupled):
    rng = np.random.default_rng(11)
    couplings, fields = sparse_ising(25, 40, rng)
    X = ising_rows(couplings * coupled, fields, 250, rng)
    field = bt.MarkovRandomField(cardinalities=2).fit(X[:150])
    apart = bt.MarkovRandomField(edges=[], cardinalities=2).fit(X[:150])
    gain = pseudo_score(field, X[150:]) - pseudo_score(apart, X[150:])
    assert field.selection_.startswith("select")
    assert gain > 0.5 if coupled else gain > -1e-6


def test_default_joins_all_pairs_where_states_follow_from_others():
    rng = np.random.default_rng(1)
    maps = rng.integers(0, 2, (24, 3, 3))  # of two causes with three states each

    def rows(n):
        causes = rng.integers(3, size=(n, 2))
        X = maps[:, causes[:, 0], causes[:, 1]].T
        return np.where(rng.random(X.shape) < 0.01, 1 - X, X)

    X, test = rows(100), rows(1000)
    field = bt.MarkovRandomField(cardinalities=2).fit(X)
    options = {"edges": "select", "criterion": "aic", "method": "pseudolikelihood"}
    few = bt.MarkovRandomField(cardinalities=2, **options).fit(X)
    assert field.selection_.startswith("complete: all 276 pairs, since")
    assert len(few.edges_) < 150
    assert field.pseudo_score(test) > few.pseudo_score(test) + 0.2


def test_default_selects_where_states_follow_from_others_by_few_edges():
    rng = np.random.default_rng(0)
    causes = rng.integers(4, size=(560, 2))
    X = np.hstack([np.eye(4, dtype=int)[of] for of in (causes[:, 0], causes[:, 1], causes[:, 0] // 2)])
    field = bt.MarkovRandomField(cardinalities=2).fit(X[:60])
    assert field.selection_.startswith("select: 17 of 66 pairs")
    assert field.pseudo_score(X[60:]) > -0.1


def pseudo_score(field, X):
    variables, pairs = field.log_potentials()
    tables = dict(zip(map(tuple, field.edges_.tolist()), pairs, strict=True))
    return -loss_of_tables(X, np.ones(len(X)), variables, tables)


def test_field_with_selected_edges_and_some_given():
    rng = np.random.default_rng(12)
    couplings, fields = sparse_ising(12, 14, rng, 0.4, 0.6)
    X = ising_rows(couplings, fields, 500, rng)
    X[:, 11] = 0
    given = [tuple(pair) for pair in np.argwhere(np.triu(couplings[:11, :11] == 0.0, 1))[:2].tolist()]
    field = bt.MarkovRandomField(edges=[*given, "select"], cardinalities=2).fit(X)
    assert [tuple(pair) for pair in field.edges_[:2].tolist()] == given
    assert 11 not in field.edges_
    assert f"{len(field.edges_)} of 66 pairs, 2 of them given, by ebic" in field.selection_
    assert list(field.path_) == ["penalty", "edges", "pseudo_log_likelihood", "criterion"]
    again = bt.MarkovRandomField(edges="select", cardinalities=2).fit(X)
    true = {tuple(pair) for pair in np.argwhere(np.triu(couplings[:11, :11], 1)).tolist()}
    found = {tuple(pair) for pair in again.edges_.tolist()}
    assert len(found & true) >= 0.9 * len(true)
    strengths = dict(zip(map(tuple, again.edges_.tolist()), again.edge_strengths_, strict=True))
    a, b = max(strengths, key=strengths.get)
    assert strengths[a, b] == pytest.approx(2.0 * abs(couplings[a, b]), abs=0.4)


def test_prior_of_selected_edges_has_the_penalised_optimum(tmp_path):
    """|T| / variance is n times the penalty, in the units of the variables."""
    rng = np.random.default_rng(13)
    couplings, fields = sparse_ising(30, 40, rng)
    X = ising_rows(couplings, fields, 150, rng)
    field = bt.MarkovRandomField(edges="select", criterion="aic", method="pseudolikelihood").fit(X)
    deviation = np.sqrt(2.0 * X.mean(axis=0) * (1.0 - X.mean(axis=0)))
    a, b = field.edges_.T
    penalty = field.path_["penalty"][int(np.argmin(field.path_["criterion"]))]
    slopes = field.edge_strengths_ / np.array(field.prior_variance_["edges"])
    away = field.edge_strengths_ > 0.02
    np.testing.assert_allclose((slopes / (150 * penalty * deviation[a] * deviation[b]))[away], 1.0, atol=0.12)
    field.save(tmp_path / "field")
    loaded = bt.MarkovRandomField.load(tmp_path / "field")
    assert loaded.prior_variance_ == field.prior_variance_
    np.testing.assert_array_equal(loaded.edge_strengths_, field.edge_strengths_)


def test_plot_shows_thickness_and_sign():
    pyplot = pytest.importorskip("matplotlib.pyplot")
    X = [[0, 0, 1], [1, 1, 0], [1, 1, 0], [0, 0, 1], [0, 1, 1], [1, 1, 0], [0, 0, 0], [1, 0, 0]]
    field = bt.MarkovRandomField(edges=[(0, 1), (1, 2)]).fit(X)
    axes = field.plot()
    assert [text.get_text() for text in axes.texts] == ["0", "1", "2"]
    assert [line.get_linestyle() for line in axes.lines] == ["-", "--"]
    widths = [line.get_linewidth() for line in axes.lines]
    assert np.argmax(widths) == np.argmax(field.edge_strengths_)
    pyplot.close("all")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"edges": "all"}, "edges must be 'auto', 'select'"),
        ({"edges": "select", "criterion": "bic"}, "criterion must be one of ebic, aic, cv, stability"),
        ({"edges": "tree", "tables": "potts"}, "needs tables='full' and no hidden variables"),
        ({"edges": "tree", "criterion": "cv"}, "criterion = 'cv' is for selected edges, found edges='tree'"),
        ({"edges": [(0, 1), "selects"]}, "must be pairs, perhaps followed by 'select', found 'selects'"),
        ({"edges": [(0, 5), "select"]}, r"edges\[0\] = \(0, 5\) must join two different variables from 0 to 2"),
    ],
)
def test_mistakes_are_named(options, said):
    with pytest.raises(ValueError, match=said):
        bt.MarkovRandomField(**options).fit([[0, 1, 0], [1, 0, 1], [1, 1, 0]])


def test_weights_of_rows_are_copies():
    X, _ = mixed_rows()
    weights = np.random.default_rng(0).integers(0, 3, len(X)).astype(float)
    for criterion in ("ebic", "aic"):
        one = select(X, weights, criterion)
        other = select(np.repeat(X, weights.astype(int), axis=0), np.ones(int(weights.sum())), criterion)
        np.testing.assert_array_equal(one.edges, other.edges)
        np.testing.assert_allclose(one.path["criterion"], other.path["criterion"], rtol=1e-6)


@pytest.mark.parametrize("criterion", ["ebic", "aic", "cv", "stability"])
def test_few_rows_are_enough_to_say_that_nothing_is_known(criterion):
    for rows in ([[0, 1, 0]], [[0, 1, 0], [1, 1, 1]] * 2, [[0, -1, 0], [1, 1, -1], [-1, 0, 1], [0, 0, -1]]):
        found = select(np.array(rows), np.ones(len(rows)), criterion)
        assert len(found.edges) <= 1
        assert all(np.isfinite(column).all() for column in found.path.values())
