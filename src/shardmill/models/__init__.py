"""Model folders, tokenizers, encoders and kernels, for tasks and for training. Knows nothing of runs or sources."""
