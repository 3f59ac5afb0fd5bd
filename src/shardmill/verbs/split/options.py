"""The options of `split`."""

from __future__ import annotations

from shardmill.plan.options import CUT, ORDER, SOURCE, WRITTEN, CallOptions, option
from shardmill.plan.shared import Printing
from shardmill.plan.values import Place, Places


class SplitSource(CallOptions):
    """What is split."""

    source: Places = option(
        ..., "Files, folders, globs or URLs, or a database URL.", metavar="SOURCE", argument=True, min_length=1
    )
    query: str = option(
        "", "The SELECT to read from the database, in one snapshot.", group=SOURCE, metavar="SELECT", common=True
    )


class Cutting(CallOptions):
    """Where chunks end."""

    items: int | None = option(None, "Items per chunk.", group=CUT, metavar="N", common=True, shown="10000")
    bytes: str = option("", "Bytes of JSON lines per chunk at most: 64MB.", group=CUT, metavar="SIZE", common=True)
    chunks: int | None = option(
        None,
        "Number of chunks with equal numbers of items; counts the items first.",
        group=CUT,
        metavar="N",
        common=True,
    )


class ChunkFiles(CallOptions):
    """What is written, and where."""

    out: Place = option(
        "", "Where to create datasets/NAME: a path or a URL.", group=WRITTEN, metavar="PLACE", common=True
    )
    name: str = option("", "Name of the dataset.", group=WRITTEN, metavar="NAME", common=True, shown="the source's")
    format: str = option(
        "parquet", "parquet, json (an array per chunk) or jsonl.", group=WRITTEN, metavar="FORMAT", common=True
    )
    compress: str = option(
        "",
        "none, gzip or zstd.",
        group=WRITTEN,
        metavar="HOW",
        common=True,
        shown="zstd inside Parquet, else none",
    )


class Ordering(CallOptions):
    """The order of the items, and the parts that they are in."""

    shuffle: int | None = option(None, "Write the items in a random order.", group=ORDER, metavar="SEED", common=True)
    splits: str = option(
        "", "Parts and shares: train=0.8,validation=0.1,test=0.1.", group=ORDER, metavar="PARTS", common=True
    )
    by: str = option(
        "",
        "What decides the part: random:SEED or hash:FIELD.",
        group=ORDER,
        metavar="HOW",
        common=True,
        shown="random:0",
    )


class StartingOver(CallOptions):
    """What is done with a dataset that exists."""

    fresh: bool = option(False, "Delete the dataset of that name and start over.", common=True)


class SplitOptions(SplitSource, Cutting, ChunkFiles, Ordering, StartingOver, Printing):
    """What `split` takes."""
