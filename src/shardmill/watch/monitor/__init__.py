"""The web monitor: one thread reads run folders, a page and machines read what it saw. It changes nothing in a run.

Design: docs/design/watching.md
"""
