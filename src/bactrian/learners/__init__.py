"""Learners beside CAMEL, the one entry point for all, and what judges their results."""
