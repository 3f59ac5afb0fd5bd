"""The parameters of the summarize task."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from shardmill.errors import SpecError
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

    @classmethod
    def read(cls, values: dict[str, Any]) -> SummarizeParams:
        """Check plain values; the error names the wrong ones."""
        try:
            return cls(**values)
        except ValidationError as error:
            wrong = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg'].lower()}" for e in error.errors())
            known = ", ".join(cls.model_fields)
            raise SpecError(
                f"Bad parameters of the summarize task: {wrong}.", hint=f"Its parameters are {known}."
            ) from error
