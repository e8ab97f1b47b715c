"""Runs of ``bactrian train``: settings, data, checkpoints, folders, packs and comparisons."""
