"""Optimisers that see an objective and an inner product, and the solution they return."""
