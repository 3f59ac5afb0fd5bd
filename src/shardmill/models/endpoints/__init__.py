"""Prompts sent to an OpenAI-compatible server instead of a model of this process.

`Endpoint.stream` takes requests and gives answers as they arrive. Tasks import this room; it knows no task.

Design: docs/design/generation-and-answers.md
"""

from shardmill.models.endpoints.endpoint import Endpoint, fit_schema
from shardmill.models.endpoints.patience import Patience
from shardmill.models.endpoints.request import PromptAnswer, PromptRefusal, PromptRequest

__all__ = ["Endpoint", "Patience", "PromptAnswer", "PromptRefusal", "PromptRequest", "fit_schema"]
