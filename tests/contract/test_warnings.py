"""Warnings point at the line of the user, and a search gives each of them once."""

import warnings
from pathlib import Path

import numpy as np
import pytest
from sklearn.model_selection import GridSearchCV

import bactrian as bt

X = [[{"w": "a"}, {"w": "b"}], [{"w": "b"}, {"w": "a"}]] * 3
Y = [["A", "B"], ["B", "A"]] * 3


def of_this_file(caught):
    return [warning for warning in caught if Path(warning.filename).name == Path(__file__).name]


def test_a_fit_warns_at_the_line_that_called_it_and_says_what_to_do():
    with pytest.warns(bt.ConvergenceWarning, match="iteration limit; raise max_iterations or tolerance") as caught:
        bt.LinearChainCRF(max_iterations=1, tolerance=1e-9).fit(X, Y)
    assert len(of_this_file(caught)) == len(caught) == 1


def test_learning_that_goes_in_circles_does_not_ask_for_more_iterations():
    rng = np.random.default_rng(1)
    edges = [(i, j) for i in range(12) for j in range(i + 1, 12) if rng.random() < 2.5 / 12]
    nodes = rng.normal(size=(12, 2))
    labels = np.where(rng.random(12) < 0.7, -1, rng.integers(0, 2, 12))
    labels[:2] = [0, 1]
    options = {"max_iterations": 1000, "neighbours": "edges"}
    advice = "iteration limit while its beliefs went in circles; choose method='convex', or a smaller prior_variance"
    with pytest.warns(bt.ConvergenceWarning, match=advice):
        bt.GraphCRF(method="cccp", **options).fit([(nodes, edges)], [labels])
    for better in ({"method": "convex"}, {"method": "cccp", "prior_variance": 0.1}):
        assert bt.GraphCRF(**better, **options).fit([(nodes, edges)], [labels]).solution_.converged


def test_a_search_warns_once():
    search = GridSearchCV(bt.LinearChainCRF(max_iterations=1, tolerance=1e-9), {"prior_variance": [1.0, 10.0]}, cv=2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        search.fit(X, Y)
    assert len(of_this_file(caught)) == len(caught) == 1


def test_a_skip_chain_without_skips_says_so():
    tokens = [[{"word": "rome"}, {"word": "rome"}]] * 25
    with pytest.warns(UserWarning, match="skips='nearest' adds no edges, so this is a chain") as caught:
        model = bt.SkipChainCRF().fit(tokens, [["A", "A"]] * 25)
    assert model.n_skips_ == 0
    assert len(of_this_file(caught)) == 1
    assert bt.SkipChainCRF().fit([[{"word": "Rome"}, {"word": "Rome"}]], [["A", "A"]]).n_skips_ == 1
