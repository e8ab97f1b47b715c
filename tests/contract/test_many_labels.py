"""Memory with many labels: nothing grows faster than a label table, whatever the learner."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

from bactrian.graphs.scores import TYINGS, TiedTable

GIB = 2**30

_CHAIN = """
import json, resource, sys, tempfile, warnings
import bactrian as bt

warnings.simplefilter("ignore")
labels = [f"label{i}" for i in range(1000)]
X = [[["a", "b"], ["b"], ["c"], ["a"], ["c", "a"]], [["c"], ["a"], ["b"]]]
y = [["label3", "label141", "label592", "label653", "label5"], ["label897", "label3", "label238"]]
crf = bt.LinearChainCRF(method=sys.argv[1], labels=labels, max_iterations=3).fit(X, y)
crf.predict(X)
crf.predict_marginals(X, edges=True)
with tempfile.TemporaryDirectory() as folder:
    crf.save(f"{folder}/model.safetensors")
    bt.LinearChainCRF.load(f"{folder}/model.safetensors").score(X, y)
print(json.dumps(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)))
"""


@pytest.mark.parametrize("method", ["exact", "cccp", "pseudolikelihood"])
def test_a_chain_of_a_thousand_labels_takes_less_than_4_gib(method: str) -> None:
    pytest.importorskip("resource")  # Windows has none
    done = subprocess.run([sys.executable, "-c", _CHAIN, method], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) < 4 * GIB


@pytest.mark.parametrize("tying", TYINGS)
def test_counts_are_added_up_as_weights_are_spread(tying: str) -> None:
    """The inner product of tied weights with reduced counts is that of their table with the counts."""
    rng = np.random.default_rng(5)
    table = TiedTable.make(tying, 4)
    weights, counts = rng.normal(size=(3, table.n_tied)), rng.normal(size=(3, 16))
    assert np.allclose((weights * table.reduce(counts)).sum(1), (table.expand(weights) * counts).sum(1))
