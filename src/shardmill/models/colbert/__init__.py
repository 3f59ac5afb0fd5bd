"""Token vectors: a vector for each token of a text, compared by MaxSim, as ColBERT has them.

Design: docs/design/kinds-of-models.md
"""
