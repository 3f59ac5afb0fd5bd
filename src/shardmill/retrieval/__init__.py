"""Nearest-neighbour search: arithmetic on vectors, used by tasks and results."""
