"""A document of a shard, before it is parsed."""

from __future__ import annotations

from dataclasses import dataclass

from shardmill.sources.base import SourceFile


@dataclass(frozen=True, slots=True)
class Member:
    """A document: its file's number in the shard, its place in that file, its path, and its size.

    Its content is read when it is parsed, unless it is a member of an archive. `why` says what is wrong with it.
    """

    number: int
    line: int
    path: str
    size: int
    content: bytes | SourceFile = b""
    why: str = ""
