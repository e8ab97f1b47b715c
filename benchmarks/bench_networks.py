"""How good are selected networks, how fast, and are their edges the true ones? scikit-learn is the judge.

    python benchmarks/bench_networks.py density [sets]        held-out log-likelihood: selected, complete, empty
    python benchmarks/bench_networks.py ahead [sets]          by how much the default is ahead of complete
    python benchmarks/bench_networks.py default [sets]        default on 1,600 rows beside nodewise L1 with CV
    python benchmarks/bench_networks.py recovery KIND [rows]  F1 of edges beside nodewise L1 with EBIC
    python benchmarks/bench_networks.py path                  seconds of a path for 50 and 200 variables, 15,000 rows
    python benchmarks/bench_networks.py labels [sets]         MultiLabelCRF beside a logistic regression per label

Sets are nltcs, plants, jester and mushrooms, in the folder $BACTRIAN_DATA/density (labels: also adult); without the
variable, generated rows alone. Seconds are those of the processor. Every line has both sides, from one run.
"""

import os
import sys
import time
from pathlib import Path

import numpy as np
from numba import njit
from sklearn.datasets import make_multilabel_classification
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV

import bactrian as bt

SETS = ("nltcs", "plants", "jester", "mushrooms")
KINDS = {"ising": 2, "potts": 3}


def folder():
    return Path(os.environ["BACTRIAN_DATA"])


def load(name, part):
    return np.loadtxt(folder() / f"density/{name}/{name}.{part}.data", delimiter=",", dtype=np.int64)


def timed(call):
    begun = time.process_time()
    found = call()
    return found, time.process_time() - begun


def field(**options):
    return bt.MarkovRandomField(cardinalities=2, **options)


# --- how good ---


def density(names):
    """Mean log-likelihood of validation and test rows, with AIS intervals, of fields with and without edges."""
    for name in names or SETS:
        train, valid, test = (load(name, part) for part in ("train", "valid", "test"))
        choices = {
            "default": {},
            "select": {"edges": "select"},
            "complete": {"edges": "complete"},
            "empty": {"edges": []},
        }
        for how, options in choices.items():
            fitted, seconds = timed(lambda options=options, train=train: field(**options).fit(train))
            scores = f"valid {fitted.score(valid)!r} test {fitted.score(test)!r} pseudo {fitted.pseudo_score(test):.3f}"
            print(f"{name}, {how}: {len(fitted.edges_)} edges, {fitted.method_}, {scores}, {seconds:.1f} s", flush=True)


@njit(cache=True)
def annealed(X, fields, tables, to_fields, to_tables, n_steps, rng):
    """Particles (n, V) led from one field of binary variables to another; they, and log Z of that less log Z of this.

    Single-site Gibbs sampling at temperatures between, resampled where half of the weight is in too few of them.
    """
    n, V = X.shape
    more, log_ratio, weights = to_tables - tables, 0.0, np.zeros(n)
    here, change, gain = np.empty((n, V)), np.empty((n, V)), np.empty(n)
    for i in range(n):
        on = X[i].astype(np.float64)
        here[i], change[i] = fields + tables @ on, to_fields - fields + more @ on
        gain[i] = 0.5 * (change[i] + to_fields - fields) @ on
    for step in range(n_steps):
        weights += gain / n_steps
        share = np.exp(weights - weights.max())
        if step == n_steps - 1 or share.sum() ** 2 < 0.5 * n * (share**2).sum():
            log_ratio += weights.max() + np.log(share.mean())
            kept = np.searchsorted(np.cumsum(share), (rng.random() + np.arange(n)) / n * share.sum())
            kept = np.minimum(kept, n - 1)
            X, here, change, gain, weights = X[kept], here[kept], change[kept], gain[kept], np.zeros(n)
        part = (step + 1) / n_steps
        for i in range(n):
            for v in range(V):
                state = rng.random() < 1.0 / (1.0 + np.exp(-here[i, v] - part * change[i, v]))
                if state != X[i, v]:
                    sign = 1.0 if state else -1.0
                    X[i, v], gain[i] = state, gain[i] + sign * change[i, v]
                    here[i] += sign * tables[v]
                    change[i] += sign * more[v]
    return X, log_ratio


def binary_scores(fitted):
    """Fields and tables of the states 1 of binary variables."""
    variables, edges = fitted.log_potentials()
    fields, tables = np.array([table[1] - table[0] for table in variables]), np.zeros([len(variables)] * 2)
    for (a, b), table in zip(fitted.edges_.tolist(), edges, strict=True):
        fields[[a, b]] += table[1, 0] - table[0, 0], table[0, 1] - table[0, 0]
        tables[a, b] = tables[b, a] = table[1, 1] + table[0, 0] - table[0, 1] - table[1, 0]
    return fields, tables


def ahead(names, n_populations=8, n_particles=400, n_steps=4000):
    """The default's log-likelihood of validation rows less that of the complete graph, with 95 % intervals.

    What log Z of two fields differ by is found by annealing from the one to the other, in populations that know nothing
    of each other: much closer than either. The other interval is that of the difference over rows.
    """
    for name in names or SETS[1:]:
        train, valid = load(name, "train"), load(name, "valid")
        fits = [field(**options).fit(train) for options in ({}, {"edges": "complete"})]
        own, other = map(binary_scores, fits)
        of_rows = [valid @ fields + 0.5 * ((valid @ tables) * valid).sum(axis=1) for fields, tables in (own, other)]
        chances = (train.sum(axis=0) + 0.5) / (len(train) + 1.0)
        base, found = np.log(chances / (1.0 - chances)), []
        for seed in range(n_populations):
            rng = np.random.default_rng(seed)
            X = rng.random((n_particles, len(base))) < chances
            X, first = annealed(X, base, np.zeros_like(own[1]), *own, n_steps, rng)
            found.append([first + np.logaddexp(0.0, base).sum(), annealed(X, *own, *other, n_steps // 4, rng)[1]])
        log_z, error = np.mean(found, axis=0), 1.96 * np.std(found, axis=0, ddof=1) / np.sqrt(n_populations)
        gap = of_rows[0] - of_rows[1]
        print(
            f"{name}: default ({len(fits[0].edges_)} edges) {of_rows[0].mean() - log_z[0]:.3f} +- {error[0]:.3f}, "
            f"ahead of complete ({len(fits[1].edges_)}) by {gap.mean() + log_z[1]:.4f}, +- {error[1]:.4f} of log Z, "
            f"+- {1.96 * gap.std(ddof=1) / np.sqrt(len(gap)):.4f} of rows",
            flush=True,
        )


def nodewise_cv(train, test):
    """Pseudo-log-likelihood of test rows by L1 logistic regressions, each with a penalty chosen in three folds."""
    total = 0.0
    for v in range(train.shape[1]):
        others, y = np.delete(train, v, axis=1), train[:, v]
        left, of = np.delete(test, v, axis=1), test[:, v]
        if min(y.sum(), (1 - y).sum()) < 3:
            p = np.full(len(of), (y.sum() + 0.5) / (len(y) + 1.0))
        else:
            model = LogisticRegressionCV(
                l1_ratios=[1.0], Cs=np.geomspace(0.01, 10.0, 10), cv=3, solver="liblinear", scoring="neg_log_loss",
                use_legacy_attributes=False, tol=1e-3,
            )  # fmt: skip
            p = model.fit(others, y).predict_proba(left)[:, 1]
        total += np.log(np.clip(np.where(of == 1, p, 1.0 - p), 1e-12, 1.0)).mean()
    return total


def default(names):
    """The default on 1,600 rows: test pseudo-log-likelihood and seconds."""
    for name in names or (*SETS[1:], "generated"):
        if name == "generated":
            rng = np.random.default_rng(0)
            X = potts_rows(*sparse_potts(180, 270, 2, rng), 3200, rng)
            train, test = X[:1600], X[1600:]
        else:
            rng, X = np.random.default_rng(0), load(name, "train")
            train, test = X[rng.permutation(len(X))[:1600]], load(name, "test")
        ours, seconds = timed(lambda train=train: field().fit(train))
        theirs, judged = timed(lambda train=train, test=test: nodewise_cv(train, test))
        apart = field(edges=[]).fit(train).pseudo_score(test)
        score = ours.pseudo_score(test)
        print(
            f"{name}, {train.shape[1]} variables: pseudo-log-likelihood {score:.3f} in {seconds:.1f} s "
            f"({ours.selection_}), nodewise {theirs:.3f} in {judged:.1f} s, independent {apart:.3f}; "
            f"ahead by {score - theirs:.3f}",
            flush=True,
        )


# --- the true edges ---


def sparse_potts(n_variables, n_edges, k, rng, low=0.5, high=1.2):
    """Edge tables, {(a, b): (k, k)}, agreement with a sign and a size of its own, and tables of variables (V, k)."""
    pairs = np.stack(np.triu_indices(n_variables, 1), axis=1)
    chosen = pairs[rng.choice(len(pairs), n_edges, replace=False)].tolist()
    tables = {(a, b): rng.choice([-1, 1]) * rng.uniform(low, high) * np.eye(k) for a, b in chosen}
    return tables, rng.uniform(-0.3, 0.3, (n_variables, k))


def potts_rows(tables, fields, n, rng, sweeps=60):
    """Rows by Gibbs sampling, a chain for each."""
    n_variables, k = fields.shape
    X = rng.integers(0, k, (n, n_variables))
    around = [[] for _ in range(n_variables)]
    for (a, b), table in tables.items():
        around[a].append((b, table))
        around[b].append((a, table.T))
    for _ in range(sweeps):
        for v in range(n_variables):
            scores = fields[v] + sum(table[:, X[:, u]].T for u, table in around[v]) + rng.gumbel(size=(n, k))
            X[:, v] = scores.argmax(axis=1)
    return X


def nodewise_ebic(X, k, gamma=0.25):
    """Pairs that L1 logistic regressions join, each with the penalty of least EBIC; (AND, OR).

    Each state of a variable of more than two is regressed on indicators of the others' states.
    """
    n, n_variables = X.shape
    states = range(1, 2) if k == 2 else range(k)
    indicators = np.concatenate([(X[:, :, None] == j).astype(float) for j in states], axis=2)
    found = np.zeros((n_variables, n_variables), dtype=bool)
    for v in range(n_variables):
        others = np.delete(indicators, v, axis=1).reshape(n, -1)
        others = (others - others.mean(axis=0)) / np.maximum(others.std(axis=0), 1e-9)
        for j in states:
            y = X[:, v] == j
            most, best, joined, worse = np.abs(others.T @ (y - y.mean())).max(), np.inf, None, 0
            for penalty in most * np.geomspace(0.9, 0.05, 12):
                model = LogisticRegression(
                    l1_ratio=1.0, C=1.0 / penalty, solver="liblinear", intercept_scaling=100, tol=1e-3
                )
                scores = model.fit(others, y).decision_function(others)
                used = model.coef_[0] != 0.0
                loss = np.logaddexp(0.0, np.where(y, -scores, scores)).sum()
                criterion = 2.0 * loss + used.sum() * (np.log(n) + 2.0 * gamma * np.log(others.shape[1]))
                worse += 1
                if criterion < best:
                    best, joined, worse = criterion, used.reshape(n_variables - 1, -1).any(axis=1), 0
                elif worse == 3:
                    break
            found[v, np.arange(n_variables) != v] |= joined
    return [np.argwhere(np.triu(both, 1)) for both in (found & found.T, found | found.T)]


def f1(edges, tables):
    found = {tuple(sorted(pair)) for pair in np.asarray(edges).tolist()}
    return 2 * len(found & set(tables)) / (len(found) + len(tables))


def recovery(kind, rows):
    """F1 of the edges of 50 variables with 75 edges."""
    for n in map(int, rows or (200, 500, 1000, 2000, 5000)):
        found = []
        for seed in range(4 if kind == "ising" else 2):
            rng = np.random.default_rng([seed, n])
            tables, fields = sparse_potts(50, 75, KINDS[kind], rng)
            X = potts_rows(tables, fields, n, rng)
            ours, seconds = timed(lambda X=X: bt.MarkovRandomField("select", cardinalities=KINDS[kind]).fit(X))
            theirs, judged = timed(lambda X=X: nodewise_ebic(X, KINDS[kind]))
            found.append([f1(ours.edges_, tables), *(f1(edges, tables) for edges in theirs), seconds, judged])
        ours, both, either, seconds, judged = np.mean(found, axis=0)
        print(
            f"{kind}, {n} rows: F1 {ours:.3f} in {seconds:.1f} s, nodewise AND {both:.3f}, OR {either:.3f} "
            f"in {judged:.1f} s",
            flush=True,
        )


def path(_):
    """Seconds of a path by EBIC, and of the default on 15,000 rows of 100 variables."""
    cases = ((50, 5000, {"edges": "select"}), (200, 5000, {"edges": "select"}), (100, 15000, {}), (180, 1600, {}))
    for n_variables, n, options in cases:
        rng = np.random.default_rng(1)
        X = potts_rows(*sparse_potts(n_variables, 3 * n_variables // 2, 2, rng), n, rng)
        fitted, seconds = timed(lambda X=X, options=options: field(**options).fit(X))
        print(f"{n_variables} variables, {n} rows, {options}: {seconds:.1f} s, {fitted.selection_}", flush=True)


# --- many labels ---


def labelled(name, seed):
    """Columns and six labels."""
    if name == "generated":
        X, Y = make_multilabel_classification(2000, 20, n_classes=6, n_labels=3, random_state=seed)
    elif name == "yeast-like":
        X, Y = make_multilabel_classification(2400, 100, n_classes=14, n_labels=4, random_state=seed)
    elif name == "adult":
        table = np.loadtxt(folder() / "tables/adult.csv", delimiter=",", skiprows=1, dtype=np.int64)
        table = table[np.random.default_rng(seed).permutation(len(table))[:4000]]
        frequent = np.array([np.bincount(column).argmax() for column in table.T])
        Y = (table == frequent)[:, -6:].astype(int)
        X = np.hstack([np.eye(column.max() + 1)[column] for column in table[:, :-6].T])
    else:
        table = load(name, "train")
        table = table[np.random.default_rng(seed).permutation(len(table))[:3000]]
        chosen = np.argsort(-np.abs(table.mean(axis=0) - 0.5))[-6:]  # the six that are nearest to one half
        X, Y = np.delete(table, chosen, axis=1), table[:, chosen]
    X = (X - X.mean(axis=0)) / np.maximum(X.std(axis=0), 1e-9)
    return X, Y


def labels(names):
    """Log loss of a label, and share of rows whose whole set is right, over five draws."""
    for name in names or ("generated", "yeast-like", "adult", "nltcs", "plants"):
        gaps = []
        for seed in range(5):
            X, Y = labelled(name, seed)
            half = len(X) // 2
            crf, seconds = timed(lambda X=X, Y=Y, half=half: bt.MultiLabelCRF().fit(X[:half], Y[:half]))
            ours, theirs = crf.predict_proba(X[half:]), np.empty((len(X) - half, Y.shape[1]))
            for k in range(Y.shape[1]):
                y = Y[:half, k]
                theirs[:, k] = (y.sum() + 0.5) / (half + 1.0)  # where all are alike
                if 0 < y.sum() < half:
                    theirs[:, k] = LogisticRegression().fit(X[:half], y).predict_proba(X[half:])[:, 1]
            truth = Y[half:]
            losses = [-np.log(np.where(truth == 1, p, 1.0 - p).clip(1e-12)) for p in (ours, theirs)]
            right = [(found == truth).all(axis=1).mean() for found in (crf.predict(X[half:]), theirs > 0.5)]
            noise = (losses[0] - losses[1]).mean(axis=1).std() / np.sqrt(len(truth))
            gaps.append([losses[0].mean(), losses[1].mean(), noise, *right, seconds])
        ours, theirs, noise, sets, apart, seconds = np.mean(gaps, axis=0)
        print(
            f"{name}, {Y.shape[1]} labels: log loss {ours:.4f}, logistic regressions {theirs:.4f} (standard error of "
            f"the difference {noise:.4f}); whole sets {sets:.3f}, {apart:.3f}; {seconds:.1f} s",
            flush=True,
        )


if __name__ == "__main__":
    what, given = (sys.argv[1:] or ["path"])[0], sys.argv[2:]
    if what == "recovery":
        recovery(given[0] if given else "ising", given[1:])
    else:
        {"density": density, "ahead": ahead, "default": default, "path": path, "labels": labels}[what](given)
