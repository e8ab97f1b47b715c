"""Entropies, constraints, priors, the dual and its linearisation."""
