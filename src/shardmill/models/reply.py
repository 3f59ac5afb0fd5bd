"""A reply to a prompt, and several of them as one."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer and why it ended; `fault` says why it must be set aside.

    `scores` are the log-probabilities of its tokens, if asked for. `others` are further answers to its prompt.
    """

    text: str
    finish_reason: str
    tokens_in: int
    tokens_out: int
    fault: str = ""
    scores: Sequence[float] = ()
    others: tuple[Reply, ...] = ()


def join_answers(lists: Sequence[Sequence[Any]]) -> list[Any]:
    """For each prompt, the prompts of all its answers; None where there is no prompt."""
    return [None if each[0] is None else each for each in zip(*lists, strict=True)]


def stream_answers(
    stream: Callable[[Iterator[tuple[Any, Any] | None]], Iterator[list[tuple[Any, Reply]]]],
    prompts: Iterator[tuple[Key, Any] | None],
) -> Iterator[list[tuple[Key, Reply]]]:
    """Several answers to each prompt: the first, with the `others`, once all are there. One fault is that of all."""
    under_way: dict[Key, list[Reply | None]] = {}

    def spread() -> Iterator[tuple[Any, Any] | None]:
        for given in prompts:
            if given is None:
                yield None
                continue
            key, several = given
            under_way[key] = [None] * len(several)
            for number, prompt in enumerate(several):
                yield (key, number), prompt

    for group in stream(spread()):
        done = []
        for (key, number), reply in group:
            under_way[key][number] = reply
            if None not in under_way[key]:
                done.append((key, _join(under_way.pop(key))))
        if done:
            yield done


def _join(replies: Sequence[Reply | None]) -> Reply:
    first, *others = (each for each in replies if each is not None)
    faults = [f"answer {n} of {len(replies)}: {each.fault}" for n, each in enumerate((first, *others), 1) if each.fault]
    return replace(first, others=tuple(others), fault=faults[0] if faults else "")
