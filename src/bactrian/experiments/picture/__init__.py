"""A picture of several labels restored from noise: the first task of ``bactrian demo``."""
