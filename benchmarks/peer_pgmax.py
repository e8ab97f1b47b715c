"""Time parallel belief propagation of PGMax on the grid of ``bench_inference``; prints seconds per iteration.

Runs in an interpreter of its own, since PGMax pins its dependencies: ``BACTRIAN_PGMAX_PYTHON`` names it.
"""

import sys
import time

import jax
import numpy as np
from pgmax import fgraph, fgroup, infer, vgroup


def main(path: str, iterations: int) -> None:
    problem = np.load(path)
    unary, table = problem["unary"], problem["table"]
    side, n_states = unary.shape[0], unary.shape[2]
    variables = vgroup.NDVarArray(num_states=n_states, shape=(side, side))
    graph = fgraph.FactorGraph(variable_groups=[variables])
    across = [[variables[i, j], variables[i, j + 1]] for i in range(side) for j in range(side - 1)]
    down = [[variables[i, j], variables[i + 1, j]] for i in range(side - 1) for j in range(side)]
    graph.add_factors(fgroup.PairwiseFactorGroup(variables_for_factors=across + down, log_potential_matrix=table))
    inferer = infer.build_inferer(graph.bp_state, backend="bp")
    arrays = inferer.init(evidence_updates={variables: unary})

    def run() -> object:
        out = inferer.run(arrays, num_iters=iterations, damping=0.0, temperature=1.0)
        jax.block_until_ready(out.ftov_msgs)
        return out

    out = run()
    times = []
    for _ in range(5):
        begun = time.perf_counter()
        run()
        times.append(time.perf_counter() - begun)
    marginals = infer.get_marginals(inferer.get_beliefs(out))[variables]
    np.save(f"{path}.marginals.npy", np.asarray(marginals))
    print(min(times) / iterations)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
