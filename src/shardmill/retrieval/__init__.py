"""Nearest-neighbour search: arithmetic on vectors, for tasks and results to use."""
