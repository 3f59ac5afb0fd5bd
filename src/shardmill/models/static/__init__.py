"""Static embeddings: a text's vector is the mean of its tokens' vectors. There is no network, so NumPy computes it.

Design: docs/design/kinds-of-models.md
"""
