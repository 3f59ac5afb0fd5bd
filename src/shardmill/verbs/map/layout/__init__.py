"""A plane for vectors: a map fitted on some of them, the anchors, and the place of any other vector on it.

Vectors are rounded to whole numbers first, so that every similarity is exact: a place depends on the fitted map and on
that vector alone, whatever the batch, the number of threads or the worker.

Design: docs/design/maps.md
"""
