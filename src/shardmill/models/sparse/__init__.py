"""Sparse vectors: a weight for each word of a vocabulary, by the head of a masked language model.

Design: docs/design/kinds-of-models.md
"""
