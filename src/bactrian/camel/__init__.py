"""CAMEL, the system of the paper: entropies, the dual, its linearisation, solvers and the outer loop."""
