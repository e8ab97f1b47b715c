"""Distributions of maximum entropy from margins, exact or noisy; and rows that match them."""
