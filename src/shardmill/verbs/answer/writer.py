"""A generative reader: a model that writes the answer from the passages, and cites those it used by their numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shardmill.models.decoding.options import GenerationOptions
from shardmill.models.replies import Replies, open_replies
from shardmill.models.reply import Reply
from shardmill.verbs.answer.retriever import FoundPassage

_MOST_TOKENS = 128
_NONE = "no answer"
_TASK = (
    "Answer the question from the numbered passages. Be short. After each statement, cite the passage it comes from by "
    f"its number, such as [1]. If the passages do not hold the answer, write: {_NONE}"
)
_CITED = re.compile(r"\[(\d{1,4})\]")


@dataclass(frozen=True, slots=True)
class Written:
    """An answer as it was written, the ids of the passages it cites, and the tokens read and made."""

    text: str | None
    cited: tuple[str, ...]
    cut: bool
    tokens_in: int
    tokens_out: int
    fault: str = ""


class CitingWriter:
    """A generative model, opened once in each worker, or one behind a server."""

    def __init__(self, model: str, endpoint: str, key_variable: str) -> None:
        options = GenerationOptions(max_new_tokens=_MOST_TOKENS)
        self.replies: Replies = open_replies(model, options, endpoint=endpoint, key_variable=key_variable)

    def write(self, questions: Sequence[str], found: Sequence[Sequence[FoundPassage]]) -> list[Written]:
        """Write an answer for each question; the questions share batches."""
        shown = [list(passages) for passages in found]
        prompts, faults = self._encode(questions, shown)
        given: Iterator[tuple[int, object]] = ((i, p) for i, p in enumerate(prompts) if i not in faults)
        replies = {number: reply for group in self.replies.stream(given) for number, reply in group}
        return [
            Written(None, (), False, 0, 0, faults[i]) if i in faults else _read(replies[i], shown[i])
            for i in range(len(questions))
        ]

    def _encode(self, questions: Sequence[str], shown: list[list[FoundPassage]]) -> tuple[list[object], dict[int, str]]:
        """Encode the prompts; one that is too long for the model loses the worse half of its passages."""
        encoded = self.replies.encode([write_prompt(q, own) for q, own in zip(questions, shown, strict=True)])
        prompts, bad = list(encoded.prompts), dict(encoded.bad)
        while shorter := [i for i in bad if len(shown[i]) > 1]:
            for i in shorter:
                del shown[i][len(shown[i]) // 2 :]
            again = self.replies.encode([write_prompt(questions[i], shown[i]) for i in shorter])
            for at, i in enumerate(shorter):
                prompts[i] = again.prompts[at]
                bad.pop(i)
            bad |= {shorter[at]: why for at, why in again.bad.items()}
        return prompts, bad


def write_prompt(question: str, passages: Sequence[FoundPassage]) -> str:
    """The prompt: what to do, the passages with their numbers, the question. Data is never read as a template."""
    numbered = "\n\n".join(f"[{number}] {each.passage.text}" for number, each in enumerate(passages, 1))
    return f"{_TASK}\n\n{numbered}\n\nQuestion: {question}\nAnswer:"


def _read(reply: Reply, passages: Sequence[FoundPassage]) -> Written:
    text = reply.text.strip()
    numbers = dict.fromkeys(int(number) for number in _CITED.findall(text))
    cited = tuple(passages[n - 1].passage.id for n in numbers if 1 <= n <= len(passages))
    none = not text or text.lower().startswith(_NONE)
    return Written(
        None if none else text,
        () if none else cited,
        reply.finish_reason == "length",
        reply.tokens_in,
        reply.tokens_out,
        reply.fault,
    )
