"""What the commands `embed` and `load` do, as functions."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from shardmill.errors import UsageError
from shardmill.run import Run, start
from shardmill.spec import make_spec, sort_options
from shardmill.tables import load as load_table

Place = str | os.PathLike[str]
Names = str | Sequence[str]


def embed(
    source: str | Sequence[str],
    *,
    text: str,
    out: Place | None = None,
    to: str | None = None,
    table: str | None = None,
    query: str | None = None,
    id: Names | None = None,
    keep: Names | None = None,
    model: str | None = None,
    dims: int | None = None,
    dtype: str | None = None,
    prompt: str | None = None,
    window_tokens: int | None = None,
    overlap: int | None = None,
    windows: str | None = None,
    format: str | None = None,
    workers: int | None = None,
    device: str | None = None,
    engine: str | None = None,
    engine_options: dict[str, Any] | None = None,
    precision: str | None = None,
    batch_tokens: int | None = None,
    max_errors: str | None = None,
    fresh: bool = False,
    quiet: bool = True,
) -> Run:
    """Embed every item of a source. Called again with the same arguments it resumes, or finds that all is done.

    run = shardmill.embed("reviews.jsonl", text="reviewText", out="runs/reviews")

    With `to`, the URL of a database, and `table` the result goes there, as `load` has it.
    """
    values = locals()
    if to or table:
        return _load(values, out, fresh=fresh, quiet=quiet)
    if out is None:
        raise UsageError("Neither `out` nor `to` was given.", hint='Name a folder for the run: out="runs/mine"')
    return start(make_spec(*sort_options(values)), out, fresh=fresh, quiet=quiet)


def load(
    source: str | Sequence[str],
    *,
    to: str,
    text: str | None = None,
    id: Names | None = None,
    table: str | None = None,
    keep: Names | None = None,
    mode: str | None = None,
    changed_only: bool = False,
    vector: str | None = None,
    index: str = "hnsw",
    rebuild_indexes: bool = False,
    batch_rows: int | None = None,
    schema: str | None = None,
    metadata: str | Sequence[str] | None = None,
    unknown_products: str | None = None,
    out: Place | None = None,
    query: str | None = None,
    model: str | None = None,
    dims: int | None = None,
    prompt: str | None = None,
    window_tokens: int | None = None,
    overlap: int | None = None,
    windows: str | None = None,
    format: str | None = None,
    workers: int | None = None,
    device: str | None = None,
    engine: str | None = None,
    engine_options: dict[str, Any] | None = None,
    precision: str | None = None,
    batch_tokens: int | None = None,
    max_errors: str | None = None,
    fresh: bool = False,
    quiet: bool = True,
) -> Run:
    """Embed every item of a source and load it into PostgreSQL, then build the indexes. The same call resumes.

    shardmill.load("corpus.parquet", text="body", id="doc_id", to="postgresql:///docs", table="documents")

    The run's folder is runs/TABLE where `out` names no other.
    """
    values = locals()
    how: dict[str, Any] = {"index": index, "rebuild_indexes": rebuild_indexes, "fresh": fresh, "quiet": quiet}
    return _load(values, out, metadata=metadata, **how)


def _load(values: dict[str, Any], out: Place | None, *, metadata: str | Sequence[str] | None = None, **how: Any) -> Run:
    work, execution = sort_options(values)
    whole = load_table.to_table(work, values, products=bool(metadata))
    place = os.fspath(out or load_table.default_out(whole))
    if not metadata:
        return load_table.load(make_spec(whole, execution), place, **how)
    products = [metadata] if isinstance(metadata, str) else list(metadata)
    return load_table.load_with_products(lambda work: make_spec(work, execution), whole, products, place, **how)
