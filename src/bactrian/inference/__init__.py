"""Inference on cluster graphs: marginals, partition functions, decoding and UAI files."""
