"""``bactrian bench``: learners on random fields, speed, and the rank argument."""
