"""Engines: the arithmetic of parts of a data set, on the CPU, from files and on a device."""
