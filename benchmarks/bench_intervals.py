"""Do intervals hold the truth as often as they say, and what does a bootstrap cost?

Simulates rows of trees and of a loop, fits them, and counts how many 95 % intervals of weights and of
a probability hold the truth; then times bootstrap refits beside plain ones, in one process, in processor seconds.

    python benchmarks/bench_intervals.py [simulations] [rows]
"""

import sys
import time

import numpy as np

import bactrian as bt

TREE, LOOP = [(0, 1), (1, 2), (1, 3)], [(0, 1), (1, 2), (2, 3), (0, 3)]
METHODS = ("exact", "pseudolikelihood", "cccp")
EVENT, GIVEN = {3: 1}, {0: 1}


def truth_of(edges, cardinalities):
    """A field with weights of its own, in the gauge that learning without a prior leaves them in."""
    states = np.indices(cardinalities).reshape(len(cardinalities), -1).T
    weights = 1.0 + np.random.default_rng(0).uniform(0, 6, len(states))
    return bt.MarkovRandomField(edges, prior_variance=None).fit(states, sample_weight=weights)


def coverage(edges, cardinalities, method, simulations, rows):
    """Share of the intervals that hold the true contrasts, and the true probability."""
    truth = truth_of(edges, cardinalities)
    target = truth.rows_.contrasts.matrix @ truth.weights_
    chance, inside, held = truth.probability(EVENT, GIVEN), [], 0
    for seed in range(simulations):
        field = bt.MarkovRandomField(edges, method=method, prior_variance=None, cardinalities=list(cardinalities))
        field.fit(truth.sample(rows, seed=seed))
        matrix = field.rows_.contrasts.matrix
        error = np.sqrt(np.einsum("qp,pr,qr->q", matrix.toarray(), field.covariance_, matrix.toarray()))
        inside.append(np.abs(matrix @ field.weights_ - target) <= 1.959964 * error)
        low, high = field.confint(EVENT, GIVEN)
        held += low <= chance <= high
    return float(np.mean(inside)), held / simulations


def cost():
    """Processor seconds of 1,000 bootstrap refits of 20 items and 500 rows, and of as many plain fits."""
    latent = np.random.default_rng(1).normal(size=(500, 1))
    X = (latent + 1.5 * np.random.default_rng(2).normal(size=(500, 20)) > 0).astype(int)
    field = bt.MarkovRandomField("complete", method="pseudolikelihood", prior_variance=1.0).fit(X)
    _ = field.standard_errors_
    begun, wall = time.process_time(), time.perf_counter()
    field.bootstrap(1000, seed=0)
    refits, wall = time.process_time() - begun, time.perf_counter() - wall
    begun = time.process_time()
    for i in range(20):
        times = np.random.default_rng([0, i]).multinomial(500, np.full(500, 1 / 500))
        bt.MarkovRandomField("complete", method="pseudolikelihood", prior_variance=1.0, cardinalities=2).fit(
            X, sample_weight=times
        )
    plain = 50 * (time.process_time() - begun)
    print(f"1,000 refits: {refits:.1f} CPU s ({wall:.1f} s), plain fits {plain:.1f} CPU s, ratio {plain / refits:.1f}")


if __name__ == "__main__":
    simulations, rows = (int(given) for given in (*sys.argv[1:], "500", "500")[:2])
    cost()
    for name, edges, cardinalities in (
        ("tree", TREE, (2, 2, 2, 2)),
        ("tree", TREE, (2, 3, 2, 3)),
        ("loop", LOOP, (2,) * 4),
    ):
        for method in METHODS:
            weights, chance = coverage(edges, cardinalities, method, simulations, rows)
            print(f"{name} of {cardinalities}, {method}: weights {weights:.3f}, P {chance:.3f}", flush=True)
