"""Prompts sent to an OpenAI-compatible server instead of a model of this process.

`Endpoint.stream` takes requests and gives answers as they arrive. Tasks import this room; it knows no task.
"""

from shardmill.endpoints.endpoint import Endpoint, fit_schema
from shardmill.endpoints.patience import Patience
from shardmill.endpoints.request import PromptAnswer, PromptRefusal, PromptRequest

__all__ = ["Endpoint", "Patience", "PromptAnswer", "PromptRefusal", "PromptRequest", "fit_schema"]
