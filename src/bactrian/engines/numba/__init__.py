"""Array routines, compiled by Numba."""
