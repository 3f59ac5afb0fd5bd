"""Model folders, tokenizers, encoders and kernels, for tasks and for training. Independent of runs and sources."""
