"""Experiments: data, learners side by side, and what came of it as a :class:`~.comparison.Comparison`."""
