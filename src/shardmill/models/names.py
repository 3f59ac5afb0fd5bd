"""Names of models that shardmill knows."""

from __future__ import annotations

# The model of whoever names none; its package is an extra.
MINILM = "all-MiniLM-L6-v2"
