"""Packed data in files, for data beyond the memory."""
