"""Learners besides CAMEL, the one entry point for all, and checks of their results."""
