"""Noisy digits restored: the first task of ``bactrian demo``."""
