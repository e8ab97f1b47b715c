"""Variables, shared log-linear features, instances and data sets."""
