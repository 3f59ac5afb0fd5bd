"""The commands `embed`, `load`, `answer`, `ask` and `run` as functions."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from shardmill.errors import UsageError, nearest
from shardmill.run import Run, prepare, start
from shardmill.spec import make_spec, sort_options
from shardmill.tables.asking import ask as ask_over
from shardmill.tables.asking import make_searchable
from shardmill.tables.load import load as load_table
from shardmill.tables.load import prepare as prepare_table

if TYPE_CHECKING:
    from shardmill.tasks.answer import Answer

Place = str | os.PathLike[str]
Names = str | Sequence[str]


class EmbedOptions(TypedDict, total=False):
    """Options of `embed` and `load`, with the meaning of the command-line options of the same name."""

    id: Names | None
    keep: Names | None
    query: str | None
    format: str | None
    model: str | None
    dims: int | None
    dtype: str | None
    prompt: str | None
    window_tokens: int | None
    overlap: int | None
    windows: str | None
    engine: str | None
    engine_options: dict[str, Any] | None
    workers: int | None
    device: str | None
    precision: str | None
    batch_tokens: int | None
    max_errors: str | None
    shard_bytes: int | None
    then: Names | None
    detach: bool


class AnswerOptions(TypedDict, total=False):
    """Options of `answer`, with the meaning of the command-line options of the same name."""

    id: Names | None
    keep: Names | None
    query: str | None
    format: str | None
    by: str | None
    k: int | None
    rerank: str | None
    reader: str | None
    null_threshold: float | None
    model: str | None
    engine: str | None
    engine_options: dict[str, Any] | None
    workers: int | None
    device: str | None
    precision: str | None
    max_errors: str | None
    shard_bytes: int | None
    then: Names | None
    detach: bool


class LoadOptions(EmbedOptions, total=False):
    """Options of `load`: those of `embed`, and those of the table."""

    table: str | None
    mode: str | None
    changed_only: bool
    vector: str | None
    index: str
    rebuild_indexes: bool
    batch_rows: int | None
    schema: str | None
    metadata: Names | None
    unknown_products: str | None


def embed(
    source: str | Sequence[str],
    *,
    text: str,
    out: Place | None = None,
    fresh: bool = False,
    quiet: bool = True,
    **options: Unpack[EmbedOptions],
) -> Run:
    """Embed every item of a source. The same call resumes, or returns at once if all is done.

    run = shardmill.embed("reviews.jsonl", text="reviewText", out="runs/reviews")
    """
    _check("embed", EmbedOptions, options)
    if out is None:
        raise UsageError("No `out` was given.", hint='Name a folder for the run: out="runs/mine"')
    work, execution = sort_options({"source": source, "text": text, **options})
    return start(make_spec(work, execution), out, fresh=fresh, quiet=quiet)


def load(
    source: str | Sequence[str],
    *,
    to: str,
    text: str | None = None,
    out: Place | None = None,
    fresh: bool = False,
    quiet: bool = True,
    **options: Unpack[LoadOptions],
) -> Run:
    """Embed every item of a source and load it into PostgreSQL, then build the indexes. The same call resumes.

    shardmill.load("corpus.parquet", text="body", id="doc_id", to="postgresql:///docs", table="documents")

    Without `out` the run folder is runs/TABLE.
    """
    _check("load", LoadOptions, options)
    work, execution = sort_options({"source": source, "to": to, "text": text, **options})
    return carry_out(work, execution, out, fresh=fresh, quiet=quiet)


def answer(
    source: str | Sequence[str],
    *,
    over: Place,
    text: str,
    out: Place | None = None,
    fresh: bool = False,
    quiet: bool = True,
    **options: Unpack[AnswerOptions],
) -> Run:
    """Answer every question of a source over an embed run or a table. The same call resumes.

    shardmill.answer("questions.jsonl", over="runs/wiki", text="question", id="id", out="runs/answers")
    """
    _check("answer", AnswerOptions, options)
    place = make_searchable(os.fspath(over), quiet=quiet)
    work, execution = sort_options({"source": source, "text": text, "task": "answer", "over": place, **options})
    return carry_out(work, execution, out, fresh=fresh, quiet=quiet)


def ask(over: Place, question: str, **params: Any) -> Answer:
    """Answer one question over an embed run or a table; `params` are those of `answer`: k, by, reader, rerank.

    shardmill.ask("runs/wiki", "Who built the tower?").text
    """
    return ask_over(os.fspath(over), [question], **params)[0]


def carry_out(work: dict[str, Any], execution: dict[str, Any], out: Place | None = None, **how: Any) -> Run:
    """Run the `[work]` and `[execution]` of a spec, whatever its task, into a folder or a table."""
    if work.get("to"):
        return load_table(work, execution, out or "", **how)
    if not out:
        raise UsageError("No --out was given.", hint="Name a folder for the run: --out runs/mine")
    return start(make_spec(work, execution), out, **how)


def lay_out(work: dict[str, Any], execution: dict[str, Any], out: Place, **how: Any) -> Run:
    """Write the run folder that `carry_out` would write, and place nobody."""
    if work.get("to"):
        return prepare_table(work, execution, out, **how)
    return prepare(make_spec(work, execution), out, **how)


def _check(function: str, known: type[Any], options: Mapping[str, Any]) -> None:
    for name in options:
        if function == "embed" and name in ("to", "table"):
            raise UsageError(
                "embed() writes a run folder.", hint="Use shardmill.load(source, to=…, table=…) for a table."
            )
        if name not in known.__annotations__:
            hint = nearest(name, sorted(known.__annotations__))
            raise TypeError(f"{function}() has no option {name!r}. {hint}")
