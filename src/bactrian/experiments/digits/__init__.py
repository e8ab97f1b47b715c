"""Noisy digits restored: the second task of ``bactrian demo``."""
