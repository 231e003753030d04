"""Decisions without I/O, clock or randomness of their own."""
