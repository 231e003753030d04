"""Housekeeping on a timer, safe to run in every process at once."""
