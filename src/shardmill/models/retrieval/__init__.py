"""Finding passages: arithmetic on vectors, and the passages of a run on disk with their indexes, memory-mapped.

`results.passages` writes the passages of a run; tasks and results search them. No task, ledger or source is known here.

Design: docs/design/generation-and-answers.md
"""
