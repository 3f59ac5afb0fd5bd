"""Conditions on the columns of a row, in a small subset of SQL: `overall <= 2 AND title IS NOT NULL`.

`parse` reads one, `evaluate` finds the rows of an Arrow batch for which it holds, and `bounds` tells from the least and
greatest values of some rows whether it can hold for any. It knows of no source.

Design: docs/design/documents-memory-and-parts.md
"""
