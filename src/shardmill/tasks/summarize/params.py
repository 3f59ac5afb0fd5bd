"""The parameters of the summarize task."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class SummarizeParams(BaseModel):
    """The parameters of the task: the method and its model, the number of sentences, a column with references.

    `extractive` chooses that many sentences; with `lead`, earlier ones are preferred, as in news: texts that are joined
    from several have no such order. `generative` asks a model for them, in at most `max_tokens`; the other parameters
    are those of `generate`, `prompt` is the text put first, and longer texts are cut into windows of `window_tokens`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    method: Literal["extractive", "generative"] = "extractive"
    model: str = ""
    sentences: int = Field(3, ge=1, le=1_000)
    lead: bool = True
    reference: str | None = None
    prompt: str | None = None
    window_tokens: int | None = Field(None, ge=16)
    max_tokens: int = Field(128, ge=1)
    endpoint: str = ""
    key_variable: str = "OPENAI_API_KEY"
    temperature: float | None = Field(None, gt=0, lt=100)
    seed: int = Field(0, ge=0)
    beams: int = Field(1, ge=1)
