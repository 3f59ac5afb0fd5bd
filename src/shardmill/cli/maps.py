"""The verb that maps a result."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from shardmill.cli import options as o
from shardmill.cli.command import Verb, print_json, takes
from shardmill.cli.results import FAMILY
from shardmill.cli.specs import read_options
from shardmill.console import count, duration, say
from shardmill.errors import UsageError

_LAYOUT = "Map"

Out = Annotated[str, o.option(o.RESULT, metavar="MAP", help="The folder of the map, created if missing.")]
Vector = Annotated[str, o.option(o.SOURCE, metavar="COLUMN", help="The column with the vectors, if there are several.")]
Text = Annotated[
    str, o.option(o.SOURCE, metavar="COLUMN", help="The column with the texts.  [default: as the run was embedded]")
]
Mark = Annotated[
    Path | None, o.option(_LAYOUT, metavar="FILE", help="Texts to show as marks, one per line, such as questions.")
]
Points = Annotated[
    str, o.option(_LAYOUT, metavar="SOURCE", help="Lay other items onto the same map: a file to embed, or run:RUN.")
]
Method = Annotated[str, o.option(_LAYOUT, metavar="METHOD", help="umap or pacmap.  [default: umap]")]
Sample = Annotated[int, o.option(_LAYOUT, metavar="N", help="Rows that the map is fitted on.  [default: 20000]", min=1)]
Seed = Annotated[int, o.option(_LAYOUT, metavar="SEED", help="Random seed.  [default: 0]", min=0)]


def add_to(app: typer.Typer) -> None:
    app.command("map", cls=Verb, rich_help_panel=FAMILY, epilog=_MAP)(map_)


_MAP = """\
shardmill map runs/reviews --out maps/reviews
shardmill map runs/reviews --out maps/reviews --mark questions.txt
shardmill map runs/reviews --out maps/reviews --points more.jsonl
shardmill map vectors.parquet --vector embedding --text body --keep price,sold --out maps/shop"""


@takes("source", "query", "format", *o.KEEPING, *o.PLACING, "shard_bytes")
def map_(
    out: Out = "",
    vector: Vector = "",
    text: Text = "",
    mark: Mark = None,
    points: Points = "",
    method: Method = "umap",
    sample: Sample = 20_000,
    seed: Seed = 0,
    resume: o.Resume = None,
    as_json: o.AsJson = False,
    **options: Any,
) -> None:
    """Map the vectors of an embed run, of Parquet files or of a query, and write a page that shows them.

    The same command resumes an interrupted map.
    """
    from shardmill.maps.drawing import read_figures
    from shardmill.run.mapping import make_map

    if not out:
        raise UsageError("No --out was given.", hint="Name a folder for the map: --out maps/mine")
    work, execution = read_options(None, options)
    own = {"vector": vector, "text": text, "method": method, "sample": sample, "seed": seed}
    wanted = {**work, **own, "marks": _read_marks(mark), "points": points}
    began = time.monotonic()
    done = make_map(wanted, execution, out, fresh=resume is False, resume=resume is True, quiet=False)
    figures = read_figures(done.ledger.store)
    if as_json:
        print_json({"map": done.ledger.url, **figures})
        return
    say(f"{count(figures['points'], 'point')}, {duration(time.monotonic() - began)}.")
    if figures["quality"] is not None:
        say(figures["quality"]["verdict"])
    for note in figures["notes"]:
        say(note)
    say(f"Open: {done.ledger.url}/map.html")


def _read_marks(path: Path | None) -> list[str]:
    if path is None:
        return []
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{path} cannot be read: {error}.", hint="--mark takes a text file, one text per line."
        ) from error
