"""Chains and skip chains: against CRFsuite, enumeration and logistic regression, and what users may throw at them."""

from __future__ import annotations

import itertools
import pickle
import warnings
from typing import Any

import numpy as np
import pycrfsuite
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression

import bactrian as bt
from bactrian.compat import CRF
from bactrian.estimators import labelled_nodes as answers
from bactrian.estimators.base import largest_weights
from bactrian.estimators.saving import ModelFileError

Array = np.ndarray[Any, Any]

WORDS = ["Ada", "Bo", "met", "in", "Rome", "Ulm", "and", "."]


def corpus(n: int = 40, seed: int = 0) -> tuple[list[list[dict[str, Any]]], list[list[str]]]:
    """Sentences in which a word's label depends on the word and on the label before it."""
    rng = np.random.default_rng(seed)
    X, y = [], []
    for _ in range(n):
        words = rng.choice(WORDS, size=rng.integers(1, 9)).tolist()
        labels: list[str] = []
        for word in words:
            capital = word[0].isupper()
            label = ("B-LOC" if word in ("Rome", "Ulm") else "B-PER") if capital else "O"
            if capital and labels and labels[-1].endswith(label[2:]) and rng.random() < 0.7:
                label = f"I-{label[2:]}"
            labels.append("O" if rng.random() < 0.1 else label)
        X.append([{"word": w, "capital": w[0].isupper(), "length": len(w) / 4} for w in words])
        y.append(labels)
    return X, y


def strings(X: list[list[dict[str, Any]]]) -> list[list[list[str]]]:
    return [[[f"word={token['word']}", f"capital={token['capital']}"] for token in sentence] for sentence in X]


def crfsuite_objective(model: Any, X: Any, y: Any, c2: float) -> float:
    """Penalised negative log-likelihood of CRFsuite's weights, from its own marginals."""
    tagger = model
    nll = 0.0
    for tokens, labels in zip(X, y, strict=True):
        tagger.set([dict.fromkeys(token, 1.0) for token in tokens])
        nll -= np.log(tagger.probability(labels))
    info = tagger.info()
    square = sum(w * w for w in info.state_features.values()) + sum(w * w for w in info.transitions.values())
    return nll + c2 * square


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, Any, float]:
    X, y = corpus(60)
    tokens = strings(X)
    trainer = pycrfsuite.Trainer(verbose=False)
    for sequence, labels in zip(tokens, y, strict=True):
        trainer.append([dict.fromkeys(token, 1.0) for token in sequence], labels)
    trainer.set_params({"c1": 0.0, "c2": 0.05, "epsilon": 1e-9, "period": 50, "delta": 1e-12, "max_iterations": 5000,
                        "feature.possible_states": True, "feature.possible_transitions": True})  # fmt: skip
    path = str(tmp_path_factory.mktemp("crfsuite") / "model")
    trainer.train(path)
    tagger = pycrfsuite.Tagger()
    tagger.open(path)
    return tagger, tokens, y, crfsuite_objective(tagger, tokens, y, 0.05)


def test_exact_chain_reaches_crfsuites_optimum(judged: Any) -> None:
    tagger, tokens, y, objective = judged
    model = bt.LinearChainCRF(prior_variance=10.0, tolerance=1e-7).fit(tokens, y)
    assert model.solution_.converged
    assert model.solution_.objective == pytest.approx(objective, rel=1e-4)
    predicted = model.predict(tokens)
    theirs = [tagger.tag([dict.fromkeys(token, 1.0) for token in sequence]) for sequence in tokens]
    pairs = [(a, b) for one, other in zip(predicted, theirs, strict=True) for a, b in zip(one, other, strict=True)]
    assert np.mean([a == b for a, b in pairs]) >= 0.999
    marginals = model.predict_marginals(tokens)
    tagger.set([dict.fromkeys(token, 1.0) for token in tokens[3]])
    for t in range(len(tokens[3])):
        wanted = [tagger.marginal(label, t) for label in model.classes_]
        np.testing.assert_allclose(marginals[3][t], wanted, atol=2e-3)


def test_compat_restricts_weights_to_what_was_seen(tmp_path: Any) -> None:
    X, y = corpus(50, seed=1)
    crf = CRF(
        algorithm="lbfgs", c1=0.0, c2=0.1, max_iterations=500, all_possible_transitions=False, epsilon=1e-7, delta=1e-12
    )
    crf.fit(X, y)
    trainer = pycrfsuite.Trainer(verbose=False)
    for sequence, labels in zip(X, y, strict=True):
        trainer.append(sequence, labels)
    trainer.set_params({"c1": 0.0, "c2": 0.1, "epsilon": 1e-9, "delta": 1e-12, "period": 50, "max_iterations": 5000})
    path = str(tmp_path / "model")
    trainer.train(path)
    tagger = pycrfsuite.Tagger()
    tagger.open(path)
    info = tagger.info()
    ours, transitions = crf.state_features_, crf.transition_features_
    assert set(ours) == set(info.state_features)
    np.testing.assert_allclose(
        [ours[key] for key in info.state_features], list(info.state_features.values()), atol=5e-3
    )
    seen = {pair for pair, weight in transitions.items() if weight != 0.0}
    assert seen == set(info.transitions)
    assert crf.predict(X[:3]) == [tagger.tag(sequence) for sequence in X[:3]]
    assert set(crf.predict_marginals(X[:1])[0][0]) == set(crf.classes_)


@pytest.mark.parametrize("possible", [False, True])
@pytest.mark.parametrize("min_freq", [0, 3, 5.5])
def test_compat_prunes_features_as_crfsuite_does(tmp_path: Any, min_freq: float, possible: bool) -> None:
    X, y = corpus(50, seed=1)
    crf = CRF(
        c2=0.1,
        min_freq=min_freq,
        all_possible_states=possible,
        all_possible_transitions=possible,
        epsilon=1e-7,
        delta=1e-12,
    ).fit(X, y)
    trainer = pycrfsuite.Trainer(verbose=False)
    for sequence, labels in zip(X, y, strict=True):
        trainer.append(sequence, labels)
    trainer.set_params({"c1": 0.0, "c2": 0.1, "epsilon": 1e-9, "delta": 1e-12, "period": 50, "max_iterations": 5000,
                        "feature.minfreq": min_freq, "feature.possible_states": possible,
                        "feature.possible_transitions": possible})  # fmt: skip
    path = str(tmp_path / "model")
    trainer.train(path)
    tagger = pycrfsuite.Tagger()
    tagger.open(path)
    theirs = tagger.info()
    assert set(crf.state_features_) == set(theirs.state_features)
    assert {pair for pair, weight in crf.transition_features_.items() if weight != 0.0} == set(theirs.transitions)
    for key, weight in theirs.state_features.items():
        assert crf.state_features_[key] == pytest.approx(weight, abs=5e-3)


def test_compat_takes_every_parameter_of_lbfgs() -> None:
    X, y = corpus(5)
    names = {"num_memories": 6, "period": 10, "delta": 1e-5, "linesearch": "MoreThuente", "max_linesearch": 20}
    crf = CRF(algorithm="lbfgs", c1=0.1, c2=0.1, max_iterations=100, min_freq=None, **names)  # type: ignore[arg-type]
    assert crf.fit(X, y).predict(X) == CRF(c1=0.1, c2=0.1, max_iterations=100).fit(X, y).predict(X)
    assert {name: clone(crf).get_params()[name] for name in names} == names
    with pytest.raises(ValueError, match="min_freq must be at least 0 and finite, found -1"):
        CRF(min_freq=-1).fit(X, y)


def test_compat_features_are_crfsuites_whatever_their_values(tmp_path: Any) -> None:
    """A feature that is False or 0 gets a weight; one whose values sum to less than 0 gets none."""
    rng = np.random.default_rng(3)
    X = [[{"upper": bool(u), "n": 0, "x": float(x)} for u, x in rng.integers(-1, 2, (6, 2))] for _ in range(20)]
    y = [["A" if token["upper"] else "B" for token in sequence] for sequence in X]
    for sequence in X:
        sequence[0]["neg"] = -1.0
        sequence[1]["sum"] = 1.0
    crf = CRF(c2=0.1, epsilon=1e-7, delta=1e-12).fit(X, y)
    trainer = pycrfsuite.Trainer(verbose=False)
    for sequence, labels in zip(X, y, strict=True):
        trainer.append(sequence, labels)
    trainer.set_params({"c1": 0.0, "c2": 0.1, "epsilon": 1e-9, "delta": 1e-12, "period": 50})
    trainer.train(str(tmp_path / "model"))
    tagger = pycrfsuite.Tagger()
    tagger.open(str(tmp_path / "model"))
    theirs = tagger.info()
    assert set(crf.state_features_) == set(theirs.state_features)
    assert set(crf.transition_features_) == set(theirs.transitions)
    for key, weight in theirs.state_features.items():
        assert crf.state_features_[key] == pytest.approx(weight, abs=1e-3)
    ours = crf.tagger_
    for tool in (ours, tagger):
        tool.set(X[2])
    assert ours.tag() == tagger.tag()
    assert ours.probability(y[2]) == pytest.approx(tagger.probability(y[2]), rel=1e-3)
    assert ours.marginal("A", 3) == pytest.approx(tagger.marginal("A", 3), rel=1e-3)


def test_compat_scores_tokens_even_where_labels_are_entities() -> None:
    X = [[{"w": "a"}, {"w": "b"}], [{"w": "a"}, {"w": "b"}], [{"w": "a"}, {"w": "b"}]]
    y = [["B-PER", "I-PER"], ["B-PER", "I-PER"], ["B-PER", "O"]]
    assert CRF(c2=0.1).fit(X, y).score(X, y) == pytest.approx(5 / 6)


def test_compat_stops_when_the_loss_settles_and_keeps_a_log(capsys: Any) -> None:
    X, y = corpus(40)
    early = CRF(c2=0.1, delta=0.1, period=3, verbose=True).fit(X, y, X[:5], y[:5])
    late = CRF(c2=0.1, delta=0.0, epsilon=1e-8).fit(X, y)
    assert early.solution_.converged
    losses = [entry["loss"] for entry in early.training_log_.iterations]
    assert 4 <= len(losses) < len(late.training_log_.iterations)
    assert losses[-4] - losses[-1] < 0.1 * losses[-1]
    assert losses[-5] - losses[-2] >= 0.1 * losses[-2] if len(losses) > 4 else True
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(losses)
    assert lines[0].startswith("Iter ")
    last = early.training_log_.last_iteration
    assert last["item_accuracy_float"] == early.score(X[:5], y[:5])
    with pytest.raises(ValueError, match="X_dev and y_dev must be given together"):
        CRF().fit(X, y, X)


def test_compat_reads_and_writes_the_named_file(tmp_path: Any) -> None:
    X, y = corpus(5)
    path = str(tmp_path / "model")
    crf = CRF(model_filename=path)
    assert crf.tagger_ is None
    with pytest.raises(NotFittedError):
        crf.predict(X)
    crf.fit(X, y)
    assert CRF(model_filename=path).predict(X) == crf.predict(X)


def test_compat_holds_the_chain_of_its_parameters() -> None:
    X, y = corpus(20)
    crf = CRF(c2=0.1, all_possible_states=True, all_possible_transitions=True, epsilon=1e-7, delta=1e-12).fit(X, y)
    chain = bt.LinearChainCRF(prior_variance=5.0, tolerance=1e-7).fit(X, y)
    assert type(crf.chain_) is bt.LinearChainCRF
    np.testing.assert_allclose(crf.chain_.state_weights_, chain.state_weights_, atol=1e-4)
    assert pickle.loads(pickle.dumps(crf)).predict(X) == chain.predict(X)


def test_compat_tagger_has_the_chance_of_any_labels() -> None:
    X, y = corpus(20)
    crf = CRF(c2=0.1).fit(X, y)
    tagger = crf.tagger_
    tagger.set(X[3][:3])
    total = sum(tagger.probability(labels) for labels in itertools.product(crf.classes_, repeat=3))
    assert total == pytest.approx(1.0)
    tagger.set(X[0] * 400)
    assert tagger.probability(["I-PER"] * len(X[0]) * 400) == 0.0  # too small for a float, not NaN
    with pytest.raises(ValueError, match="yseq must have one label per item: expected"):
        tagger.probability(["O"])
    tagger.set([])
    assert tagger.probability([]) == 1.0


def test_compat_marginals_of_pairs_and_of_a_model_that_is_not_fitted() -> None:
    X, y = corpus(20)
    with pytest.raises(NotFittedError):
        CRF().predict_marginals(X)
    crf = CRF(c2=0.1).fit(X, y)
    nodes, edges = crf.predict_marginals(X, edges=True)
    assert nodes == crf.predict_marginals(X)
    for dicts, (_, tables) in zip(nodes, edges, strict=True):
        for t, table in enumerate(tables):
            np.testing.assert_allclose(table.sum(axis=1), list(dicts[t].values()), atol=1e-12)


def test_compat_is_cloned_and_refuses_other_algorithms() -> None:
    crf = clone(CRF(c2=0.3, max_iterations=7))
    assert crf.get_params()["c2"] == 0.3
    with pytest.raises(ValueError, match="algorithm must be 'lbfgs', found 'ap'"):
        CRF(algorithm="ap").fit(*corpus(3))
    with pytest.raises(ValueError, match="c2 must be at least 0 and finite"):
        CRF(c2=-1.0).fit(*corpus(3))
    with pytest.raises(ValueError, match="gamma is not a parameter of 'lbfgs'"):
        CRF(gamma=1.0).fit(*corpus(3))
    with pytest.warns(UserWarning, match="num_memories=3 has no effect"):
        CRF(num_memories=3).fit(*corpus(3))


def scores_of(model: Any, X: list[list[list[str]]], m: int) -> tuple[Array, Array]:
    """Node scores from weights by name, and the table of transitions: an independent reading of what was learned."""
    labels = list(model.classes_)
    weight = {name: model.state_weights_[i] for i, name in enumerate(model.feature_names_)}
    nodes = np.array([sum((weight[f] for f in token if f in weight), np.zeros(len(labels))) for token in X[m]])
    table = np.array([[model.transition_features_[a, b] for b in labels] for a in labels])
    return nodes, table


@pytest.mark.parametrize("skip_tables", ["symmetric", "full", "diagonal"])
def test_skip_chain_agrees_with_enumeration(skip_tables: str) -> None:
    X = [[["word=Ada"], ["word=x"], ["word=Ada"], ["word=Bo"], ["word=Ada"]], [["word=Bo"], ["word=Bo"]]]
    y = [["P", "O", "P", "O", "L"], ["O", "P"]]
    model = bt.SkipChainCRF(method="exact", inference="exact", skip_tables=skip_tables, prior_variance=1.0).fit(X, y)
    marginals, edges = model.predict_marginals(X, edges=True)
    nodes, table = scores_of(model, X, 0)
    skip = model.skip_table_
    joint = {}
    for states in itertools.product(range(3), repeat=5):
        score = sum(nodes[t, s] for t, s in enumerate(states))
        score += sum(table[a, b] for a, b in itertools.pairwise(states))
        score += skip[states[0], states[2]] + skip[states[2], states[4]]
        joint[states] = np.exp(score)
    total = sum(joint.values())
    wanted = np.zeros((5, 3))
    pair = np.zeros((3, 3))
    for states, p in joint.items():
        wanted[np.arange(5), states] += p / total
        pair[states[2], states[4]] += p / total
    np.testing.assert_allclose(marginals[0], wanted, atol=1e-10)
    pairs, tables = edges[0]
    at = pairs.tolist().index([2, 4])
    np.testing.assert_allclose(tables[at], pair, atol=1e-10)
    loopy = clone(model).set_params(inference="rbp").fit(X, y)
    assert np.abs(loopy.predict_marginals(X)[0] - wanted).max() < 0.1
    labels = model.classes_
    assert model.predict(X)[0] == labels[wanted.argmax(axis=1)].tolist()
    for decoding in ("exact", "max-product", "dual"):
        best = max(joint, key=lambda states: joint[states])
        assert model.set_params(decoding=decoding).predict(X)[0] == labels[list(best)].tolist()


def test_labels_that_are_best_together_need_not_be_best_alone() -> None:
    # Three ways to go on from the more probable start; the less probable one has a single way.
    X = [[["a"], ["b"]]] * 7
    y = [["P", "P"], ["P", "Q"], ["P", "R"], ["P", "S"], ["Q", "P"], ["Q", "P"], ["Q", "P"]]
    model = bt.SkipChainCRF(skips=lambda words: [], word="w", method="cccp", prior_variance=100.0)
    X = [[{"w": token[0]} for token in sentence] for sentence in X]
    model.fit(X, y)
    assert model.predict(X[:1]) == [["P", "P"]]
    assert model.set_params(decoding="max-product").predict(X[:1]) == [["Q", "P"]]


def test_tokens_without_edges_are_logistic_regression() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(60, 4))
    labels = rng.integers(0, 3, 60)
    X, y = [row[None] for row in rows], [[int(label)] for label in labels]
    model = bt.LinearChainCRF(fit_intercept=False, prior_variance=2.0, tolerance=1e-8).fit(X, y)
    judge = LogisticRegression(C=2.0, fit_intercept=False, tol=1e-10, max_iter=1000).fit(rows, labels)
    np.testing.assert_allclose(np.concatenate(model.predict_marginals(X)), judge.predict_proba(rows), atol=1e-5)


def test_dicts_strings_matrices_and_bundles_agree() -> None:
    X, y = corpus(25)
    tokens = strings(X)
    bundles = {w: (f"word={w}", f"capital={w[0].isupper()}") for w in WORDS}
    bundled = [[[bundles[token["word"]]] for token in sentence] for sentence in X]
    dicts = [[{"word": t["word"], "capital": str(t["capital"])} for t in sentence] for sentence in X]
    names = sorted({name for sentence in tokens for token in sentence for name in token})
    dense = [np.array([[float(n in token) for n in names] for token in sentence]) for sentence in tokens]
    sparse = [sp.csr_array(matrix) for matrix in dense]
    for method in ("exact", "piecewise"):
        fits = [bt.LinearChainCRF(method=method, tolerance=1e-8).fit(data, y)
                for data in (tokens, bundled, dicts, dense, sparse)]  # fmt: skip
        wanted = np.concatenate(fits[0].predict_marginals(tokens))
        for model, data in zip(fits, (tokens, bundled, dicts, dense, sparse), strict=True):
            assert model.solution_.objective == pytest.approx(fits[0].solution_.objective, rel=1e-9)
            np.testing.assert_allclose(np.concatenate(model.predict_marginals(data)), wanted, atol=1e-6)


def test_features_given_twice_count_twice() -> None:
    y = [["A", "B"], ["B", "A"]]
    twice = [[["f", "f"], ["g", "g"]], [["g", "g"], ["f", "f"]]]
    valued = [[{"f": 2.0}, {"g": 2.0}], [{"g": 2.0}, {"f": 2.0}]]
    one, other = bt.LinearChainCRF(tolerance=1e-9).fit(twice, y), bt.LinearChainCRF(tolerance=1e-9).fit(valued, y)
    np.testing.assert_allclose(one.weights_, other.weights_, atol=1e-7)


def test_min_frequency_counts_tokens_in_bundles_too() -> None:
    bundle = ("often", "shared")
    X = [[[bundle, "once"], [bundle, "twice"]], [["twice", "shared"]]]
    model = bt.LinearChainCRF(min_frequency=2).fit(X, [["A", "B"], ["A"]])
    assert sorted(model.feature_names_) == ["often", "shared", "twice"]
    assert bt.LinearChainCRF(min_frequency=3).fit(X, [["A", "B"], ["A"]]).feature_names_ == ["shared"]


def test_unseen_features_are_ignored_and_unseen_labels_refused() -> None:
    X, y = corpus(20)
    model = bt.SkipChainCRF(method="camel0").fit(X, y)
    known = [[{"word": "Ada"}]]
    odd = [[{"word": "Ada", "never": "seen", "unheard": 3.0}]]
    assert np.array_equal(model.predict_marginals(known)[0], model.predict_marginals(odd)[0])
    warm = clone(model).set_params(warm_start=True).fit(X, y)
    with pytest.raises(ValueError, match=r"y\[0\]\[\d+\] is 'B-NEW'; the labels are"):
        warm.fit(X[:1], [["B-NEW"] * len(X[0])])


def test_labels_that_never_occur() -> None:
    X, y = corpus(20)
    model = bt.LinearChainCRF(labels=["O", "B-PER", "I-PER", "B-LOC", "I-LOC", "B-ORG"]).fit(X, y)
    assert "B-ORG" in model.classes_.tolist()
    column = model.classes_.tolist().index("B-ORG")
    assert max(table[:, column].max() for table in model.predict_marginals(X)) < 0.2


def test_integer_labels() -> None:
    X, y = corpus(20)
    codes = {label: 10 * k for k, label in enumerate(sorted({tag for tags in y for tag in tags}))}
    model = bt.LinearChainCRF().fit(X, [np.array([codes[tag] for tag in tags]) for tags in y])
    assert model.classes_.tolist() == sorted(codes.values())
    assert set(model.predict(X)[0]) <= set(codes.values())
    assert 0.0 < model.score(X, [[codes[tag] for tag in tags] for tags in y]) <= 1.0


@pytest.mark.parametrize("make", [bt.LinearChainCRF, bt.SkipChainCRF])
def test_empty_sequences_and_one_token(make: Any) -> None:
    X, y = corpus(15)
    model = make().fit([*X, [], X[0][:1]], [*y, [], y[0][:1]])
    assert model.predict([[], X[0][:1], []])[0] == []
    assert len(model.predict([[], X[0][:1], []])[1]) == 1
    assert model.predict([]) == []
    assert model.predict([[], []]) == [[], []]
    nodes, edges = model.predict_marginals([[], X[0]], edges=True)
    assert nodes[0].shape == (0, len(model.classes_))
    assert edges[0][1].shape[0] == 0
    with pytest.raises(ValueError, match="X has no tokens"):
        make().fit([[], []], [[], []])


def test_long_documents() -> None:
    rng = np.random.default_rng(0)
    words = [f"{'W' if t % 50 == 0 else 'w'}{t % 97}" for t in range(10_000)]
    X = [[[f"word={word}"] for word in words]]
    y = [[("A", "B", "C")[k] for k in rng.integers(0, 3, 10_000)]]
    chain = bt.LinearChainCRF(max_iterations=8, tolerance=1e-2)
    with pytest.warns(bt.ConvergenceWarning):
        chain.fit(X, y)
    marginals = chain.predict_marginals(X)[0]
    np.testing.assert_allclose(marginals.sum(axis=1), 1.0, atol=1e-9)
    assert len(chain.predict(X)[0]) == 10_000


def test_non_ascii_text(tmp_path: Any) -> None:
    X = [[["word=Zürich"], ["word=и"], ["word=東京"], ["word=Zürich"]]]
    y = [["ORT", "O", "ORT", "ORT"]]
    model = bt.SkipChainCRF().fit(X, y)
    assert model.predict(X) == y
    model.save(tmp_path / "modèle.safetensors")
    again = bt.SkipChainCRF.load(tmp_path / "modèle.safetensors")
    assert again.feature_names_ == model.feature_names_
    assert again.predict(X) == y


def test_breaks_cut_the_chain() -> None:
    X, y = corpus(30)
    joined = [[token for sentence in X for token in sentence]], [[tag for tags in y for tag in tags]]
    starts = np.cumsum([0, *(len(sentence) for sentence in X[:-1])])
    one = bt.LinearChainCRF(prior_variance=10.0, tolerance=1e-8).fit(X, y)
    other = bt.LinearChainCRF(prior_variance=10.0, tolerance=1e-8).fit(*joined, breaks=[starts])
    np.testing.assert_allclose(one.weights_, other.weights_, atol=1e-5)
    np.testing.assert_allclose(
        np.concatenate(one.predict_marginals(X)), other.predict_marginals(joined[0], breaks=[starts])[0], atol=1e-6
    )
    with pytest.raises(ValueError, match=r"breaks\[0\]\[0\] = \d+ is outside"):
        other.predict(joined[0], breaks=[[10_000]])


def test_skips_given_equal_skips_by_rule() -> None:
    X, y = corpus(20)
    by_rule = bt.SkipChainCRF(skips=lambda words: [(0, len(words) - 1)] if len(words) > 2 else []).fit(X, y)
    given = [[(0, len(sentence) - 1)] if len(sentence) > 2 else [] for sentence in X]
    by_hand = bt.SkipChainCRF(skips=None).fit(X, y, skips=given)
    np.testing.assert_allclose(by_rule.weights_, by_hand.weights_, atol=1e-9)
    with pytest.raises(ValueError, match="skips=None needs the skip edges"):
        by_hand.predict(X)
    with pytest.raises(ValueError, match=r"skips\[0\]\[0\] = \(0, 99\)"):
        by_hand.predict(X[:1], skips=[[(0, 99)]])
    with pytest.raises(ValueError, match="a rule for skips needs the word of every token"):
        bt.SkipChainCRF().fit([[["f"], ["g"]]], [["A", "B"]])


def test_edge_features_add_to_the_table_that_all_share() -> None:
    """Two kinds of transitions, told apart by a feature: the constant and the features make up two tables."""
    X, y = corpus(30, seed=3)
    kinds = [[["kind=even"] if t % 2 == 0 else ["kind=odd"] for t in range(len(s) - 1)] for s in X]
    fitted, bare = (bt.LinearChainCRF(prior_variance=10.0, tolerance=1e-8) for _ in range(2))
    fitted.fit(X, y, transition_features=kinds)
    assert fitted.solution_.moment_gap < 1e-4
    assert fitted.solution_.objective < bare.fit(X, y).solution_.objective
    # The same model by hand: a chain with two types of edges, one table each, and a prior on parts of their sum.
    edges = fitted.predict_marginals(X, transition_features=kinds, edges=True)[1]
    expected = sum(tables.sum(axis=0) for _, tables in edges)
    codes = {label: k for k, label in enumerate(fitted.classes_.tolist())}
    observed = np.zeros_like(expected)
    for tags in y:
        for a, b in itertools.pairwise(tags):
            observed[codes[a], codes[b]] += 1.0
    table = np.array([[fitted.transition_features_[a, b] for b in codes] for a in codes])
    np.testing.assert_allclose(observed - expected, table / 10.0, atol=1e-5)  # moments are matched up to the prior
    with pytest.raises(ValueError, match="the last fit was with transition_features="):
        fitted.predict(X)
    with pytest.raises(ValueError, match=r"transition_features\[0\] must have one entry per edge"):
        fitted.predict(X, transition_features=[[], *kinds[1:]])


def test_partial_labels_are_kept_and_change_their_neighbours() -> None:
    X, y = corpus(40)
    for model in (bt.LinearChainCRF().fit(X, y), bt.SkipChainCRF().fit(X, y)):
        m = max(range(len(X)), key=lambda i: len(X[i]))
        known: list[Any] = [None] * len(X[m])
        known[1] = "I-LOC"
        assert model.predict([X[m]], partial=[known])[0][1] == "I-LOC"
        free, bound = model.predict_marginals([X[m]])[0], model.predict_marginals([X[m]], partial=[known])[0]
        assert bound[1].max() == 1.0
        assert np.abs(free[0] - bound[0]).max() > 1e-3
        with pytest.raises(ValueError, match=r"partial\[0\]\[0\] is 'X'"):
            model.predict([X[m]], partial=[["X"] + [None] * (len(X[m]) - 1)])


def test_sample_and_class_weights() -> None:
    X, y = corpus(20)
    doubled = bt.LinearChainCRF(prior_variance=10.0, tolerance=1e-8).fit([*X, *X[:5]], [*y, *y[:5]])
    weighted = bt.LinearChainCRF(prior_variance=10.0, tolerance=1e-8).fit(X, y, sample_weight=[2.0] * 5 + [1.0] * 15)
    np.testing.assert_allclose(doubled.weights_, weighted.weights_, atol=1e-5)
    rare = bt.LinearChainCRF(class_weight={"I-LOC": 20.0}).fit(X, y)
    assert not np.allclose(rare.weights_, bt.LinearChainCRF().fit(X, y).weights_)
    with pytest.raises(ValueError, match="class_weight names label 'NO'"):
        bt.LinearChainCRF(class_weight={"NO": 1.0}).fit(X, y)


def test_warm_start_goes_on_from_the_last_weights() -> None:
    X, y = corpus(30)
    model = bt.LinearChainCRF(warm_start=True, tolerance=1e-6).fit(X, y)
    first = model.solution_.evaluations
    model.fit(X, y)
    assert model.solution_.evaluations < first / 2
    assert model.solution_.converged


def test_no_entity_of_a_score_crosses_a_break() -> None:
    X, y, breaks = [[["a"], ["a"], ["b"], ["b"]]], [["I-PER", "I-PER", "O", "O"]], [[3, 1]]
    model = bt.LinearChainCRF().fit(X, y, breaks=breaks)
    assert model.predict(X, breaks=breaks) == y
    assert model.score(X, [["I-PER", "B-PER", "O", "O"]], breaks=breaks) == 1.0  # two entities, in two sentences
    assert model.score(X, [["I-PER", "B-PER", "O", "O"]]) == 0.0
    assert model.score([*X, []], [*y, []], breaks=[*breaks, []]) == 1.0


def test_score_is_entity_f1() -> None:
    X, y = corpus(30)
    model = bt.LinearChainCRF(max_iterations=3, tolerance=0.1, labels=None)
    with pytest.warns(bt.ConvergenceWarning):
        model.fit(X, y)
    from seqeval.metrics import f1_score

    assert model.score(X, y) == pytest.approx(f1_score(y, model.predict(X)), abs=1e-12)


@pytest.mark.parametrize(
    "method", ["piecewise", "camel0", "cccp", "cccp-empirical", "lbp", "convex", "pseudolikelihood"]
)
def test_every_learner_tags(method: str) -> None:
    X, y = corpus(40)
    model = bt.SkipChainCRF(method=method, tolerance=1e-4).fit(X, y)
    assert model.solution_.converged
    assert model.score(X, y) > 0.6


@pytest.mark.parametrize("node_factors", ["edges", "first-edge", "clusters"])
def test_where_node_scores_sit_matters_to_piecewise_alone(node_factors: str) -> None:
    X, y = corpus(30)
    even = bt.LinearChainCRF(method="piecewise", tolerance=1e-8).fit(X, y)
    other = bt.LinearChainCRF(method="piecewise", tolerance=1e-8, node_factors=node_factors).fit(X, y)
    assert np.allclose(even.weights_, other.weights_, atol=1e-4) == (node_factors == "edges")
    exact = [bt.LinearChainCRF(tolerance=1e-8, node_factors=n).fit(X, y).weights_ for n in ("edges", node_factors)]
    np.testing.assert_allclose(*exact, atol=1e-6)


def test_saved_models_predict_the_same(tmp_path: Any) -> None:
    X, y = corpus(20)
    for model in (bt.LinearChainCRF(), bt.SkipChainCRF(skips="all"), CRF(c2=0.1)):
        model.fit(X, y)
        path = tmp_path / f"{type(model).__name__}.safetensors"
        model.save(path)
        again = type(model).load(path)
        assert again.predict(X) == model.predict(X)
        assert again.get_params() == model.get_params()
    with pytest.raises(ModelFileError, match="expected a LinearChainCRF"):
        bt.LinearChainCRF.load(tmp_path / "SkipChainCRF.safetensors")
    with pytest.raises(ValueError, match="skips is a function"):
        bt.SkipChainCRF(skips=lambda words: []).fit(X, y).save(tmp_path / "never")
    assert not (tmp_path / "never").exists()


@pytest.mark.parametrize("tables", ["pooled", "symmetric", "potts"])
def test_parameters_changed_after_the_fit_change_no_prediction(tables: str, tmp_path: Any) -> None:
    X, y = [[["a"], ["b"], ["a"]], [["b"], ["a"]]], [["A", "B", "B"], ["B", "A"]]
    model = bt.LinearChainCRF(transition_tables="full").fit(X, y)
    labels, marginals, table = model.predict(X), model.predict_marginals(X), model.transition_features_
    model.set_params(transition_tables=tables, node_factors="clusters")
    model.save(tmp_path / "model")
    for other in (model, bt.LinearChainCRF.load(tmp_path / "model")):
        assert other.transition_tables == tables
        assert other.predict(X) == labels
        assert other.transition_features_ == table
        np.testing.assert_array_equal(np.concatenate(other.predict_marginals(X)), np.concatenate(marginals))
        with pytest.raises(ValueError, match="tied differently"):
            other.set_params(warm_start=True).fit(X, y)  # two labels have four weights in a pooled table too
    part = bt.LinearChainCRF().partial_fit(X, y).set_params(transition_tables=tables)
    with pytest.raises(ValueError, match="transition_tables: the table is tied differently"):
        part.partial_fit(X, y)


def test_rows_of_a_full_skip_table_belong_to_the_earlier_token() -> None:
    X, y = [[["a"], ["b"], ["c"], ["a"]]], [["A", "B", "B", "A"]]
    features = [[["near"], ["far"]]]
    tables, marginals = [], []
    for skips in ([[(0, 2), (0, 3)]], [[(2, 0), (3, 0)]]):
        model = bt.SkipChainCRF(skips=None, skip_tables="full", method="exact", inference="exact")
        model.fit(X, y, skips=skips, skip_features=features)
        tables.append(model.skip_table_)
        _, edges = model.predict_marginals(X, skips=skips, skip_features=features, edges=True)
        assert edges[0][0].tolist()[3:] == [[0, 2], [0, 3]]
        marginals.append(edges[0][1])
    np.testing.assert_array_equal(*tables)
    np.testing.assert_array_equal(*marginals)


@pytest.mark.parametrize("n", [1, 4, 15, 40])
def test_largest_weights_are_the_largest(n: int) -> None:
    table = np.random.default_rng(n).normal(size=(5, 3))
    features, labels = [f"f{k}" for k in range(5)], ["x", "y", "z"]
    found = largest_weights(table, features, labels, n)
    assert [abs(weight) for _, _, weight in found] == sorted(np.abs(table).ravel().tolist(), reverse=True)[:n]
    assert all(table[features.index(feature), labels.index(label)] == weight for feature, label, weight in found)


def test_top_features_name_the_largest_weights() -> None:
    X, y = corpus(30)
    model = bt.LinearChainCRF().fit(X, y)
    name, label, weight = model.top_features(1)[0]
    assert abs(weight) == pytest.approx(np.abs(model.state_weights_).max())
    column = model.classes_.tolist().index(label)
    assert model.state_weights_[model.feature_names_.index(name), column] == weight
    assert all(one[1] == "O" for one in model.top_features(4, label="O"))
    with pytest.raises(ValueError, match="label must be one of"):
        model.top_features(3, label="?")


@pytest.mark.parametrize(
    ("X", "y", "error", "match"),
    [
        ("text", [["A"]], TypeError, "X must be a list of sequences"),
        ([["word"]], [["A"]], TypeError, r"X\[0\]\[0\]: a token is a dict or a list of strings, found str"),
        ([[[1]]], [["A"]], TypeError, r"X\[0\]\[0\]: features must be strings"),
        ([[{"f": object()}]], [["A"]], TypeError, r"X\[0\]\[0\]: feature 'f' must be a string, number"),
        ([[{"f": float("nan")}]], [["A"]], TypeError, "must be a finite number"),
        ([[["f"]]], [["A", "B"]], ValueError, r"y\[0\] must have one label per token: expected 1, found 2"),
        ([[["f"]]], [["A"], ["B"]], ValueError, "one label sequence per sequence of X"),
        ([[["f"]]], [[1.5]], TypeError, r"y\[0\]\[0\] must be a string, an integer or a boolean"),
        ([[["f"], ["g"]]], [["A", 1]], TypeError, "all strings, all integers or all booleans"),
        ([np.ones((2, 3)), np.ones((2, 4))], [[0, 1], [0, 1]], ValueError, r"X\[1\] must have 3 columns"),
        (np.ones((2, 3)), [[0, 1]], TypeError, "one matrix per sequence"),
    ],
)  # fmt: skip
def test_bad_input(X: Any, y: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        bt.LinearChainCRF().fit(X, y)


def test_bad_parameters() -> None:
    X, y = corpus(3)
    with pytest.raises(ValueError, match="min_frequency must be at least 1, found 0"):
        bt.LinearChainCRF(min_frequency=0).fit(X, y)
    with pytest.raises(ValueError, match="labels names a label twice"):
        bt.LinearChainCRF(labels=["A", "A"]).fit(X, y)
    with pytest.raises(
        ValueError, match="decoding must be one of auto, exact, max-product, max-marginals, dual, found 'rbp'"
    ):
        bt.SkipChainCRF(decoding="rbp").fit(X, y)
    with pytest.raises(ValueError, match=r"inference must be one of exact, bp, .* found 'magic'"):
        bt.SkipChainCRF(inference="magic").fit(X, y)
    with pytest.raises(ValueError, match=r"transition_tables must be one of full, .* found 'round'"):
        bt.LinearChainCRF(transition_tables="round").fit(X, y)
    with pytest.raises(ValueError, match=r"skip_tables must be one of full, .* found 'round'"):
        bt.SkipChainCRF(skip_tables="round").fit(X, y)
    with pytest.raises(ValueError, match=r"sample_weight must have shape \(3,\), found \(1,\)"):
        bt.LinearChainCRF().fit(X, y, sample_weight=[1.0])
    with pytest.raises(NotFittedError):
        bt.SkipChainCRF().predict(X)


def test_bad_input_of_a_fitted_model() -> None:
    X, y = corpus(3)
    model = bt.LinearChainCRF().fit(X, y)
    for use in (model.predict, model.predict_marginals, lambda X: model.score(X, y)):
        for wrong in (None, 3, (sequence for sequence in X)):
            with pytest.raises(TypeError, match="X must be a list of sequences, found"):
                use(wrong)
    with pytest.raises(TypeError, match="y must be a list of label sequences, found NoneType"):
        model.score(X, None)
    with pytest.raises(ValueError, match="y must have one label sequence per sequence of X: expected 3, found 2"):
        model.score(X, y[:2])
    with pytest.raises(ValueError, match=r"y\[1\] must have one label per token"):
        model.score(X, [y[0], [*y[1], "O"], y[2]])


@pytest.mark.parametrize("node_factors", ["edges", "clusters"])
@pytest.mark.parametrize("method", ["camel0", "cccp", "convex", "trw", "exact", bt.Camel(entropy="convex")])
def test_matched_inference_of_skip_chains_is_the_learners(method: Any, node_factors: str) -> None:
    X, y = corpus(4)
    model = bt.SkipChainCRF(
        method=method, node_factors=node_factors, tolerance=1e-7, inference="matched", inference_tolerance=1e-9
    ).fit(X, y)
    beliefs = model.solution_.beliefs
    for m, nodes in enumerate(model.predict_marginals(X)):
        # The variables' clusters come first, one a token.
        np.testing.assert_allclose(nodes, [beliefs[m][t] for t in range(len(X[m]))], atol=1e-5)


def test_a_warm_start_refuses_what_the_last_fit_was_without() -> None:
    X, y = corpus(6)
    features = [np.ones((len(sequence) - 1, 1)) for sequence in X]
    model = bt.LinearChainCRF(warm_start=True).fit(X, y)
    with pytest.raises(ValueError, match="the last fit was without transition_features="):
        model.fit(X, y, transition_features=features)
    with pytest.raises(ValueError, match="tied differently from the last fit"):
        model.set_params(transition_tables="potts").fit(X, y)
    model = bt.LinearChainCRF(warm_start=True).fit(X, y, transition_features=features)
    with pytest.raises(ValueError, match="the last fit was with transition_features="):
        model.fit(X, y)
    assert model.fit(X, y, transition_features=features).solution_.converged


def test_boolean_labels_come_back_as_booleans(tmp_path: Any) -> None:
    X = [[["a"], ["b"]], [["b"], ["b"], ["a"]]]
    y = [[True, False], [False, False, True]]
    model = bt.LinearChainCRF(class_weight={True: 2.0}).fit(X, [np.array(labels) for labels in y])
    assert model.classes_.dtype == bool
    assert model.predict(X) == y
    assert all(type(label) is bool for labels in model.predict(X) for label in labels)
    assert model.score(X, y) == 1.0
    model.save(tmp_path / "model")
    loaded = bt.LinearChainCRF.load(tmp_path / "model")
    assert loaded.class_weight == {True: 2.0}
    assert all(type(label) is bool for labels in loaded.predict(X) for label in labels)
    assert model.predict_marginals(X)[0].shape == (2, 2)
    known = bt.LinearChainCRF(labels=[True, False]).fit(X, y).predict_marginals(X, partial=[[None, True], None])
    assert known[0][1].tolist() == [0.0, 1.0]
    integers = bt.LinearChainCRF(class_weight={1: 2.0}).fit(X, [[int(label) for label in labels] for labels in y])
    np.testing.assert_array_equal(model.weights_, integers.weights_)
    with pytest.raises(TypeError, match="all strings, all integers or all booleans, found booleans and integers"):
        bt.LinearChainCRF().fit(X, [[True, False], [2, 3, 4]])
    with pytest.raises(TypeError, match=r"y\[0\]\[0\] must be a string, an integer or a boolean, found 0.5"):
        bt.LinearChainCRF().fit(X, [[0.5, False], [2, 3, 4]])


@pytest.mark.parametrize("tables", ["full", "symmetric", "potts", "pooled"])
@pytest.mark.parametrize("breaks", [False, True])
def test_viterbi_beside_decoding_of_the_graph(tables: str, breaks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The short way of chains gives the labels of exact decoding; where labellings tie it is not taken."""
    calls: list[int] = []
    monkeypatch.setattr(answers, "decode", lambda *args, **options: calls.append(1) or bt.decode(*args, **options))
    rng = np.random.default_rng(len(tables))
    X = [rng.normal(size=(int(n), 3)) for n in (4, 0, 1, 7)]
    y = [rng.choice(list("abc"), len(part)).tolist() for part in X]
    given = {"breaks": [[2], [], [], [1, 5]]} if breaks else {}
    model = bt.LinearChainCRF(transition_tables=tables)
    data = model.encode(X, y, **given)
    model.fit(X, y, **given)
    for scale in (1.0, 30.0, 0.0):
        calls.clear()
        model.weights_ = scale * rng.normal(size=model.weights_.size)
        codes = np.concatenate(bt.decode(data, model.weights_, "exact"))
        assert [label for labels in model.predict(X, **given) for label in labels] == model.classes_[codes].tolist()
        assert bool(calls) is (scale == 0.0)


@pytest.mark.parametrize("method", ["piecewise", "camel0", "pseudolikelihood"])
def test_a_word_where_edges_make_training_labels_worse(method):
    """Tokens held back by their prior, and skip edges between all pairs, which say the same many times over."""
    rng = np.random.default_rng(0)
    y = [(rng.random(12) < rng.choice([0.25, 0.75])).astype(int) for _ in range(30)]
    X = [np.column_stack([labels + rng.normal(0, 0.35, 12), np.ones(12)]) for labels in y]
    skips = [[(a, b) for b in range(12) for a in range(b)]] * 30
    model = bt.SkipChainCRF(method=method, skips=None, prior_variance={"tokens": 0.003, "skips": 100.0})
    with pytest.warns(bt.AttainmentWarning, match=r"inference gets .* right, the scores of the nodes alone 81.7 %"):
        model.fit(X, y, skips=skips)
    with warnings.catch_warnings():
        warnings.simplefilter("error", bt.AttainmentWarning)
        bt.SkipChainCRF(method=method, skips=None).fit(X, y, skips=skips)
        bt.LinearChainCRF(method=method).fit(X, y)


def test_a_score_needs_a_token():
    crf = bt.LinearChainCRF().fit([[["a"], ["b"]]], [[0, 1]])
    for X in ([], [[]], [[], []]):
        with pytest.raises(ValueError, match="X has no tokens; a score needs at least one"):
            crf.score(X, X)
    assert crf.score([[], [["a"]]], [[], [0]]) == 1.0


def test_learning_stops_where_ten_iterations_gain_little() -> None:
    """A thousandth by default, which is about what is left; the last digits with a tolerance of 1e-6."""
    X, y = corpus(60)
    objectives: list[float] = []
    rough = bt.LinearChainCRF(prior_variance=10.0).fit(X, y, callback=lambda at: objectives.append(at.objective))
    exact = bt.LinearChainCRF(prior_variance=10.0, tolerance=1e-6).fit(X, y)
    gains = [(before - after) / after for before, after in zip(objectives, objectives[10:], strict=False)]
    assert rough.solution_.converged
    assert gains[-1] < 1e-3 <= min(gains[:-1])
    left = rough.solution_.objective / exact.solution_.objective - 1.0
    assert 1e-6 < left < 3e-3
    assert exact.solution_.moment_gap < 1e-2
    assert rough.solution_.evaluations < 0.7 * exact.solution_.evaluations
