"""Names of models that shardmill knows."""

from __future__ import annotations

# The model of whoever names none.
MINILM = "all-MiniLM-L6-v2"
