"""Cluster graphs and the builders that make them."""
