"""The verb `split`: a source into chunks, for other programs or for training."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from shardmill.cli import options as o
from shardmill.cli.command import Verb, print_json
from shardmill.console import duration, say

CUT, WRITTEN, ORDER = "Where to cut", "Output", "Order and parts"


Sources = Annotated[list[str], o.argument("SOURCE", "Files, folders, globs or URLs, or a database URL.")]
Query = Annotated[str | None, o.option(o.SOURCE, help="The SELECT to read from the database, in one snapshot.")]
Name = Annotated[str | None, o.option(WRITTEN, help="Name of the dataset.  [default: the source's]")]
Items = Annotated[int | None, o.option(CUT, help="Items per chunk.  [default: 10000]")]
BytesPerChunk = Annotated[str | None, o.option(CUT, help="Maximum bytes of JSON lines per chunk: 64MB.")]
Chunks = Annotated[
    int | None, o.option(CUT, help="Number of chunks with equal numbers of items; counts the items first.")
]
FormatChosen = Annotated[
    str, o.option(WRITTEN, help="parquet, json (an array per chunk) or jsonl.  [default: parquet]")
]
Compress = Annotated[str, o.option(WRITTEN, help="none, gzip or zstd.  [default: zstd inside Parquet, else none]")]
Shuffle = Annotated[int | None, o.option(ORDER, metavar="SEED", help="Write the items in a random order.")]
Splits = Annotated[str | None, o.option(ORDER, help="Parts and shares: train=0.8,validation=0.1,test=0.1.")]
By = Annotated[str, o.option(ORDER, help="What decides the part: random:SEED or hash:FIELD.  [default: random:0]")]


def add_to(app: typer.Typer) -> None:
    app.command("split", cls=Verb, rich_help_panel="Prepare data", epilog=_SPLIT)(split)


_SPLIT = """\
shardmill split reviews.jsonl --out s3://bucket --bytes 64MB
shardmill split reviews.jsonl --out data --shuffle 7 --splits train=0.9,test=0.1 --by hash:asin
shardmill split postgresql://user@host/db --query "SELECT * FROM documents" --out data"""


def split(
    source: Sources,
    out: Annotated[
        str, typer.Option(metavar="PLACE", help="Where to create datasets/NAME: a path or a URL.", show_default=False)
    ],
    query: Query = None,
    name: Name = None,
    items: Items = None,
    bytes: BytesPerChunk = None,
    chunks: Chunks = None,
    format: FormatChosen = "parquet",
    compress: Compress = "",
    shuffle: Shuffle = None,
    splits: Splits = None,
    by: By = "",
    fresh: Annotated[bool, typer.Option("--fresh", help="Delete the dataset of that name and start over.")] = False,
    as_json: o.AsJson = False,
) -> None:
    """Cut a source into chunks. The dataset appears when all chunks are written; the same command resumes."""
    from shardmill.split import parse_bytes, parse_splits, split_files

    began = time.monotonic()
    done = split_files(
        source,
        out,
        name=name,
        items=items,
        bytes=parse_bytes(bytes) if bytes else None,
        workers=chunks,
        query=query,
        format=format,
        compress=compress,
        shuffle=shuffle,
        splits=parse_splits(splits) if splits else (),
        by=by,
        fresh=fresh,
        quiet=as_json,
    )
    made = done.metadata
    if as_json:
        print_json(made)
        return
    if done.was_there:
        say(f"Already complete: {made['total_items']:,} items in {made['total_chunks']:,} chunks, {done.place}")
        return
    kept = f" ({done.kept:,} kept)" if done.kept else ""
    say(
        f"{made['total_items']:,} items in {made['total_chunks']:,} chunks{kept}, {made['total_bytes']:,} bytes, "
        f"{duration(time.monotonic() - began)}: {done.place}"
    )
