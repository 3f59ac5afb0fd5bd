"""Merge, verify and search the result of a run. Reads the run folder; never imports `run`.

Design: docs/design/proof-and-trust.md
"""
