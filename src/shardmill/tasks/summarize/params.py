"""The parameters of the summarize task."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from shardmill.models.location import MINILM


class SummarizeParams(BaseModel):
    """The parameters of the task: the model, the number of sentences, a column with reference summaries.

    With `lead`, earlier sentences are preferred, as in news; texts that are joined from several have no such order.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    method: Literal["extractive"] = "extractive"
    model: str = Field(MINILM, min_length=1)
    sentences: int = Field(3, ge=1, le=1_000)
    lead: bool = True
    reference: str | None = None
