"""Model folders, tokenizers, encoders and kernels, for tasks and for training. Independent of runs and sources.

Design: docs/design/models-and-kernels.md
"""
