"""The state of a run, read from its folder alone, and how a terminal shows it.

Design: docs/design/watching.md
"""
