"""Re-rankers: cross-encoders and causal models that score two texts read together, as sentence-transformers does.

Design: docs/design/generation-and-answers.md
"""
