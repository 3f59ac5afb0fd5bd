"""Why a model cannot be run without torch."""

from __future__ import annotations

from shardmill.core.errors import ModelError
from shardmill.core.extras import advise


class NotDescribed(Exception):
    """No description fits a model folder; the text says why, as the end of a sentence."""

    def explain(self, model: str) -> ModelError:
        """The error where torch is not installed."""
        return ModelError(
            f"{model} needs torch, which is not installed: {self}.",
            hint=advise("embed"),
        )
