"""Learners: CAMEL and the likelihood methods it is compared with."""
