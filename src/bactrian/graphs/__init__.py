"""Cluster graphs, log-linear models, data sets, and their packing into arrays."""
