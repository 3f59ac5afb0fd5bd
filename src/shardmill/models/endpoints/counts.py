"""What an endpoint was asked and what it cost."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from shardmill.models.endpoints.request import PromptAnswer, PromptRefusal


@dataclass(slots=True)
class EndpointCounts:
    """What was sent and what came back; `again` counts requests sent again, by cause."""

    requests: int = 0
    answers: int = 0
    refusals: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    again: Counter[str] = field(default_factory=Counter)
    held_s: float = 0.0
    away_s: float = 0.0
    peak: int = 0

    def add(self, result: PromptAnswer | PromptRefusal) -> None:
        self.tokens_in += result.tokens_in
        self.tokens_out += result.tokens_out
        if isinstance(result, PromptAnswer):
            self.answers += 1
        else:
            self.refusals += 1

    def sentences(self, url: str) -> list[str]:
        """For the worker's record."""
        said = [
            f"{self.requests:,} requests to {url}, at most {self.peak} at once: {self.answers:,} answers, "
            f"{self.refusals:,} refusals, {self.tokens_in:,} tokens in, {self.tokens_out:,} tokens out"
        ]
        if self.again:
            said.append("sent again: " + ", ".join(f"{number:,} {cause}" for cause, number in self.again.most_common()))
        if self.held_s >= 1 or self.away_s >= 1:
            said.append(f"held back for {self.held_s:,.0f} s; the server was away for {self.away_s:,.0f} s")
        return said
